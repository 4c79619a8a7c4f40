"""A rerun that finds everything done, and the plan of it, beside reading the same rows."""

import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tenant_pipelines.engine.overview import FleetReader
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.benchmarks.trivial import STEPS, run_fleet, trivial_fleet

_SHARDS = 10


def _rows_read(fleet: Fleet) -> int:
    count = 0
    for shard in fleet.shards:
        with closing(sqlite3.connect(fleet.journal_path(shard))) as connection:
            count += len(connection.execute("SELECT * FROM entries ORDER BY seq").fetchall())
    return count


def _cells_planned(fleet: Fleet) -> int:
    reader = FleetReader(fleet, environ={})
    request = Request(root="benchmark")
    return sum(
        len(view.cells)
        for view in (reader.shard(shard, request) for shard in fleet.shards)
        if not view.has_work
    )


def _seconds(once: Callable[[], object]) -> float:
    began = time.perf_counter()
    once()
    return time.perf_counter() - began


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure the rerun of 10,000 done tenants in 10 shards."""
    tenants = max(_SHARDS, round(10_000 * scale))
    cells = tenants * len(STEPS)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        fleet = trivial_fleet(Path(name), tenants=tenants, shards=_SHARDS, max_concurrent=32)
        run_fleet(fleet).check(ran=cells)

        def read() -> None:
            if _rows_read(fleet) != 2 * cells + _SHARDS:
                raise RuntimeError("the journals hold other entries than two per cell")

        def plan() -> None:
            if _cells_planned(fleet) != cells:
                raise RuntimeError("the plan finds work")

        return {
            "rerun": compare(
                f"nothing to do: {tenants:,} done tenants in {_SHARDS} shards, one process",
                unit="s",
                floor=Contestant(
                    title=f"sqlite3 alone: fetch {2 * cells:,} rows", once=lambda: _seconds(read)
                ),
                subjects={
                    "rerun": Contestant(
                        title="engine: open the cycle, run every shard",
                        once=lambda: _seconds(lambda: run_fleet(fleet).check(ran=0, skipped=cells)),
                        target=Target(at_most=1),
                    ),
                    "plan": Contestant(
                        title="FleetReader: every cell with its state and reason",
                        once=lambda: _seconds(plan),
                    ),
                },
                rounds=rounds,
            )
        }
