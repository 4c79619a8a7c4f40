"""How long Dagster's code server needs for many shards, and how much memory, in fresh processes.

Loading is what the code server does before it answers (``load_all_definitions``); telling is what
the webserver and the daemon then ask of it once, and after each reload.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tenant_pipelines.fleet.places import STATE_VARIABLE
from tenant_pipelines_tests.benchmarks.report import (
    Contestant,
    Measurement,
    Result,
    Spread,
    Target,
    compare,
)

_SHARDS = 1_000
_TENANTS = 100
_PIPELINE = """\
from tenant_pipelines import Pipeline, step

@step
def extract(ctx):
    return None

@step
def transform(ctx, extract):
    return None

@step
def load(ctx, transform):
    return None

pipeline = Pipeline([extract, transform, load])
"""
_IMPORT = "import dagster\n"
_LOAD = """\
from tenant_pipelines.definitions import defs
repository = defs.get_repository_def()
repository.load_all_definitions()
"""
# as dagster/_grpc/server.py answers the webserver
_TELL = """\
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value
serialize_value(RepositorySnap.from_def(repository, defer_snapshots=True))
"""
_PEAK = """\
from tenant_pipelines_tests.benchmarks.memory import status_mib
print(status_mib("VmHWM"))
"""


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure the definitions of 1,000 shards of 100 tenants."""
    shards = max(2, round(_SHARDS * scale))
    with tempfile.TemporaryDirectory(dir=folder) as name:
        base = Path(name)
        (base / "wide_pipeline.py").write_text(_PIPELINE, encoding="utf-8")
        document = {
            "name": "wide",
            "pipeline": "wide_pipeline:pipeline",
            "shards": {
                f"shard_{shard}": {"tenants": [f"t{shard}_{tenant}" for tenant in range(_TENANTS)]}
                for shard in range(shards)
            },
        }
        # JSON is YAML, and quick to write
        (base / "fleet.yaml").write_text(json.dumps(document, indent=1), encoding="utf-8")
        environ = {key: value for key, value in os.environ.items() if key != "DAGSTER_HOME"}
        environ |= {
            STATE_VARIABLE: str(base / "state"),
            "TENANT_PIPELINES_FLEET": str(base / "fleet.yaml"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        peaks: list[float] = []

        def seconds(code: str, *, is_peak_kept: bool = False) -> float:
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-c", code + _PEAK],
                cwd=base, env=environ, capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"the definitions did not load: {done.stderr}")
            if is_peak_kept:
                peaks.append(float(done.stdout))
            return time.perf_counter() - began

        measured = compare(
            f"definitions of {shards:,} shards of {_TENANTS} tenants, whole processes",
            unit="s",
            floor=Contestant(title="import dagster", once=lambda: seconds(_IMPORT)),
            subjects={
                "load": Contestant(
                    title="load, until the code server answers",
                    once=lambda: seconds(_LOAD),
                    target=Target(at_most=10.0),
                ),
                "tell": Contestant(
                    title="load, and tell the webserver everything",
                    once=lambda: seconds(_LOAD + _TELL, is_peak_kept=True),
                ),
            },
            rounds=rounds,
        )
    peak = Result(
        title="MiB at the peak, loaded and told",
        spread=Spread(peaks),
        target=Target(at_most=1_024),
    )
    return {"definitions": dataclasses.replace(measured, derived={"peak_mib": peak})}
