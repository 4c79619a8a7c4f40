"""What a run costs before and after its first cell: ``tenant-pipelines run``, whole processes."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tenant_pipelines.fleet.places import STATE_VARIABLE
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, compare

_FLEET = """\
name: startup
pipeline: startup_pipeline:pipeline
shards:
  shard_1:
    tenants: [acme]
"""
_PIPELINE = """\
from tenant_pipelines import Pipeline, step

@step
def only(ctx):
    return None

pipeline = Pipeline([only])
"""


def measure(folder: Path, *, rounds: int) -> dict[str, Measurement]:
    """Measure a run of one trivial cell, and one of none, beside importing Dagster."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        base = Path(name)
        (base / "fleet.yaml").write_text(_FLEET, encoding="utf-8")
        (base / "startup_pipeline.py").write_text(_PIPELINE, encoding="utf-8")
        environ = {key: value for key, value in os.environ.items() if key != "DAGSTER_HOME"}
        environ[STATE_VARIABLE] = str(base / "state")

        def seconds(*arguments: str) -> float:
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, *arguments], cwd=base, env=environ, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"{arguments} exited with {done.returncode}: {done.stderr}")
            return time.perf_counter() - began

        run = ("-m", "tenant_pipelines", "run", "--fleet", "fleet.yaml")
        seconds(*run)  # warm: Dagster makes its databases once
        return {
            "startup": compare(
                "whole commands",
                unit="s",
                floor=Contestant(
                    title="import dagster", once=lambda: seconds("-c", "import dagster")
                ),
                subjects={
                    "run": Contestant(
                        title="tenant-pipelines run --new-cycle, one trivial cell",
                        once=lambda: seconds(*run, "--new-cycle"),
                    ),
                    "nothing": Contestant(
                        title="tenant-pipelines run, nothing to do (without Dagster)",
                        once=lambda: seconds(*run),
                    ),
                },
                rounds=rounds,
            )
        }
