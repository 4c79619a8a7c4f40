"""What Dagster's own events cost: planned ones before a run starts, and materializations in it.

What doctor says of a large shard rests on these numbers.
"""

import tempfile
import time
from pathlib import Path

from dagster import (
    AssetKey,
    AssetMaterialization,
    DagsterEventType,
    DagsterInstance,
    OpExecutionContext,
    job,
    op,
)

from tenant_pipelines.orchestration import names
from tenant_pipelines.orchestration.build import build_definitions
from tenant_pipelines.orchestration.register import register_shard
from tenant_pipelines_tests.benchmarks.cells import append_fsync_seconds
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, compare
from tenant_pipelines_tests.benchmarks.sync import fresh_instance
from tenant_pipelines_tests.benchmarks.trivial import STEPS, trivial_fleet

_KEYS = 1_000
_PLANNED = DagsterEventType.ASSET_MATERIALIZATION_PLANNED


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure a run over 1,000 keys of three assets, and as many materializations in a run."""
    keys = max(2, round(_KEYS * scale))
    events = keys * len(STEPS)
    return {
        "events": compare(
            f"Dagster's events of {keys:,} keys of {len(STEPS)} assets, on SQLite",
            unit="ms an event",
            floor=Contestant(
                title="append + fsync of 200 B",
                once=lambda: 1_000 * append_fsync_seconds(folder, lines=min(events, 500)),
            ),
            subjects={
                "planned": Contestant(
                    title="planned, before the run starts",
                    once=lambda: 1_000 * _planned_seconds(folder, keys=keys) / events,
                ),
                "materialization": Contestant(
                    title="materialization, from inside a run",
                    once=lambda: 1_000 * _materialization_seconds(folder, events) / events,
                ),
            },
            rounds=rounds,
        )
    }


def _planned_seconds(folder: Path, *, keys: int) -> float:
    """Return the seconds of making a run over a range of keys, as the UI's backfill does."""
    with tempfile.TemporaryDirectory(dir=folder) as name, fresh_instance(folder) as instance:
        fleet = trivial_fleet(Path(name), tenants=keys)
        register_shard(instance, fleet, "shard_0")
        shard_job = build_definitions(fleet).resolve_job_def(names.shard_job("fleet", "shard_0"))
        tenants = list(fleet.shard("shard_0").tenants)
        tags = {names.RANGE_START_TAG: tenants[0], names.RANGE_END_TAG: tenants[-1]}
        began = time.perf_counter()
        run = instance.create_run_for_job(shard_job, tags=tags)
        seconds = time.perf_counter() - began
        _check_count(instance, run.run_id, _PLANNED, keys * len(STEPS))
        return seconds


def _materialization_seconds(folder: Path, events: int) -> float:
    """Return the seconds of logging materializations from an op, the run itself not counted."""
    took: list[float] = []

    @op
    def logs(context: OpExecutionContext) -> None:
        began = time.perf_counter()
        for number in range(events):
            event = AssetMaterialization(AssetKey(["a", "b", "c"]), partition=f"tenant-{number}")
            context.log_event(event)
        took.append(time.perf_counter() - began)

    @job
    def logging() -> None:
        logs()

    with fresh_instance(folder) as instance:
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        done = logging.execute_in_process(instance=instance, run_config=quiet)
        _check_count(instance, done.run_id, DagsterEventType.ASSET_MATERIALIZATION, events)
    return took[0]


def _check_count(
    instance: DagsterInstance, run_id: str, kind: DagsterEventType, wanted: int
) -> None:
    found = len(instance.all_logs(run_id, of_type=kind))
    if found != wanted:
        raise RuntimeError(f"the run has {found} events of {kind.value}, wanted {wanted}")
