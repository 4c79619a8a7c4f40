"""The commands as processes of their own, as the demos start and kill them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tenant_pipelines.errors import InvalidRequest


def start(folder: Path | str, verb: str, fleet: str, *options: str) -> "subprocess.Popen[str]":
    """Start a command with ``--json`` in a session of its own, its state below ``folder``."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in {"DAGSTER_HOME", "TENANT_PIPELINES_FLEET"}
    }
    environ["TENANT_PIPELINES_STATE"] = str(folder)
    command = [sys.executable, "-m", "tenant_pipelines", verb, "--fleet", fleet, "--json"]
    return subprocess.Popen(
        [*command, *options],
        env=environ,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_to_end(folder: Path | str, fleet: str, *options: str, verb: str = "run") -> dict[str, Any]:
    """Run a command to its end and return the document that it printed.

    Raises:
        InvalidRequest: it printed none.
    """
    process = start(folder, verb, fleet, *options)
    printed, complaints = process.communicate()
    try:
        document: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise InvalidRequest(
            place="demo",
            found=f"a {verb} that ended with {process.returncode}: {complaints[-2000:]}",
            wanted=f"a {verb} of the sample fleet",
            fix=f"Run tenant-pipelines {verb} --fleet {fleet} to see more.",
        ) from None
    return document
