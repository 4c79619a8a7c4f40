"""Runs ``tenant-pipelines`` as a user does, in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SECONDS = 300


def environ_of(state: Path, **more: str) -> dict[str, str]:
    """Return the environment of a command whose state and DAGSTER_HOME are below ``state``."""
    home = state / "dagster_home"
    home.mkdir(parents=True, exist_ok=True)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TENANT_PIPELINES")
    }
    return {**kept, "TENANT_PIPELINES_STATE": str(state), "DAGSTER_HOME": str(home), **more}


def tenant_pipelines(
    *arguments: str | Path, state: Path, cwd: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tenant_pipelines", *map(str, arguments)],
        env=environ_of(state, **environ), cwd=cwd or state, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip


def document(ended: subprocess.CompletedProcess[str]) -> Any:
    """Return the JSON document that a command printed."""
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise AssertionError(f"no JSON: {ended.stdout!r} {ended.stderr!r}") from None
