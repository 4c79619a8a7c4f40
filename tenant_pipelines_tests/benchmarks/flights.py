"""The flights fleet beside one plain script: pandas.read_sql, the same transform, to_sql.

The source database is built before and not counted, nor is the start of processes: they have
imported everything and wait. The script keeps nothing: no journal, no artifacts, no digests, and
after a crash it would load the same rows twice.
"""

import contextlib
import multiprocessing
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from threading import Barrier
from typing import Any

from tenant_pipelines.engine.plan import Request
from tenant_pipelines.engine.runner import ShardRun
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.places import SAMPLES, STATE_VARIABLE
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.benchmarks.trivial import begin
from tenant_pipelines_tests.storage.cells import context

_PROCESSES = 4
_QUERY = (
    "SELECT flight_id, year, month, day, origin, dest, dep_time, dep_delay, arr_delay FROM flights "
    "WHERE carrier = ? ORDER BY seq"
)
_PLAIN = "plain.db"


def plain_script(state: Path, carriers: Sequence[str]) -> None:
    """Extract, transform and load carrier by carrier, as one would write it without a fleet."""
    import pandas as pd

    from tenant_pipelines.samples.flights.pipeline import transform

    ctx = context(state)
    with (
        contextlib.closing(sqlite3.connect(state / "flights.db")) as source,
        contextlib.closing(sqlite3.connect(state / _PLAIN)) as warehouse,
    ):
        for carrier in carriers:
            routes: pd.DataFrame = transform(ctx, pd.read_sql(_QUERY, source, params=(carrier,)))
            routes.insert(0, "_tenant", carrier)
            routes.to_sql("daily_routes", warehouse, if_exists="append", index=False)
            warehouse.commit()


def run_shards(
    root: Path, shards: Sequence[str], cycle: Cycle, carriers: Sequence[str]
) -> list[Any]:
    """Run shards one after another; return what failed."""
    fleet = _fleet(root)
    problems: list[Any] = []
    for shard in shards:
        with Journal(fleet.journal_path(shard), fleet=fleet.name, shard=shard) as journal:
            run = ShardRun(
                fleet=fleet,
                shard=shard,
                journal=journal,
                store=ArtifactStore(fleet.artifacts),
                cycle=cycle,
                run_id="benchmark",
                request=Request(root="benchmark", tenants=carriers),
                environ={},
            )
            for _ in run.events():
                pass
        problems += [*run.report.failed, *run.report.held]
    return [str(problem) for problem in problems]


def _fleet(root: Path) -> Fleet:
    return load_fleet(SAMPLES / "flights" / "fleet.yaml", environ={STATE_VARIABLE: str(root)})


def _wait_until_all_are_ready(ready: Barrier) -> None:
    import pandas  # noqa: F401  (a process that has started has imported it)
    import pyarrow.parquet  # noqa: F401

    import tenant_pipelines.samples.flights.pipeline  # noqa: F401

    ready.wait(120)


@contextlib.contextmanager
def _ready_processes() -> Iterator[Pool]:
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(_PROCESSES)
    with spawn.Pool(_PROCESSES, initializer=_wait_until_all_are_ready, initargs=(ready,)) as pool:
        pool.apply(os.getpid)
        yield pool


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure all 16 carriers; a smaller scale takes the smallest carriers."""
    from tenant_pipelines.samples.flights.source import flights_source

    with tempfile.TemporaryDirectory(dir=folder) as name, _ready_processes() as pool:
        base = Path(name)
        flights_source(context(base))
        source = base / "flights.db"
        with contextlib.closing(sqlite3.connect(source)) as connection:
            smallest_first = [
                carrier
                for (carrier,) in connection.execute(
                    "SELECT carrier FROM flights GROUP BY carrier ORDER BY count(*)"
                )
            ]
        carriers = smallest_first[: max(2, round(len(smallest_first) * scale))]
        loaded: dict[str, Any] = {}

        def once(run: Callable[[Path], None], database: str) -> float:
            with tempfile.TemporaryDirectory(dir=base) as round_name:
                state = _fleet(Path(round_name)).state
                state.mkdir(parents=True)
                os.link(source, state / "flights.db")
                began = time.perf_counter()
                run(Path(round_name))
                seconds = time.perf_counter() - began
                with contextlib.closing(sqlite3.connect(state / database)) as connection:
                    found = connection.execute(
                        "SELECT count(*), sum(flights), sum(cancelled) FROM daily_routes"
                    ).fetchone()
            if loaded.setdefault("rows", found) != found:
                raise RuntimeError(f"loaded {found}, the others {loaded['rows']}")
            return seconds

        def plain(root: Path) -> None:
            plain_script(_fleet(root).state, carriers)

        def in_turn(root: Path) -> None:
            fleet = _fleet(root)
            _check(run_shards(root, list(fleet.shards), begin(fleet), carriers))

        def at_once(root: Path) -> None:
            fleet = _fleet(root)
            cycle = begin(fleet)
            tasks = [(root, [shard], cycle, carriers) for shard in fleet.shards]
            for problems in pool.starmap(run_shards, tasks, chunksize=1):
                _check(problems)

        once(plain, _PLAIN)  # warm: imports, first-use caches, the source in memory
        once(in_turn, "warehouse.db")
        once(at_once, "warehouse.db")
        return {
            "flights": compare(
                f"the flights fleet: {len(carriers)} carriers, {loaded['rows'][1]:,} flights, "
                f"{loaded['rows'][0]:,} rows loaded",
                unit="s",
                floor=Contestant(title="one plain pandas script", once=lambda: once(plain, _PLAIN)),
                subjects={
                    "in_turn": Contestant(
                        title="engine, 4 shards one after another (2 threads)",
                        once=lambda: once(in_turn, "warehouse.db"),
                        target=Target(ratio_at_most=2),
                    ),
                    "processes": Contestant(
                        title=f"engine, 4 shards in {_PROCESSES} processes (2 threads each)",
                        once=lambda: once(at_once, "warehouse.db"),
                        target=Target(ratio_at_most=2),
                    ),
                },
                rounds=rounds,
            )
        }


def _check(problems: list[Any]) -> None:
    if problems:
        raise RuntimeError(f"cells that did not run: {problems}")
