"""What ``tenant-pipelines sync`` costs: 40,000 tenants as partition keys, each shard's pool."""

import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dagster import DagsterInstance

from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.orchestration.instance import Home, open_instance
from tenant_pipelines.orchestration.register import register_shards
from tenant_pipelines_tests.benchmarks.report import Contestant, Measurement, Target, compare
from tenant_pipelines_tests.benchmarks.trivial import trivial_fleet

_KEYS = 40_000
_TARGET = Target(at_most=30.0)


@contextmanager
def fresh_instance(folder: Path) -> Iterator[DagsterInstance]:
    """Open a new instance on SQLite with our settings, its databases made already."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        instance = open_instance(Home(Path(name), "benchmark"))
        try:
            instance.event_log_storage.get_pool_limits()
            yield instance
        finally:
            instance.dispose()


def measure(folder: Path, *, scale: float, rounds: int) -> dict[str, Measurement]:
    """Measure 40,000 new keys in shards of 1,000 and of 100, and again with nothing new."""
    keys = max(200, round(_KEYS * scale))
    fleets = {
        size: trivial_fleet(folder, tenants=keys, shards=max(1, keys // size))
        for size in (1_000, 100)
    }

    def floor() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            return _insert_seconds(Path(name), keys)

    def new(fleet: Fleet) -> float:
        with fresh_instance(folder) as instance:
            return _sync_seconds(instance, fleet, wanted=keys)

    def again(fleet: Fleet) -> float:
        with fresh_instance(folder) as instance:
            _sync_seconds(instance, fleet, wanted=keys)
            return _sync_seconds(instance, fleet, wanted=0)

    return {
        "sync": compare(
            f"sync of {keys:,} tenants",
            unit="s",
            floor=Contestant(title="the keys in plain SQLite, one commit each 500", once=floor),
            subjects={
                "shards_of_1000": Contestant(
                    title=f"{len(fleets[1_000].shards):,} shards of 1,000",
                    once=lambda: new(fleets[1_000]),
                    target=_TARGET,
                ),
                "shards_of_100": Contestant(
                    title=f"{len(fleets[100].shards):,} shards of 100",
                    once=lambda: new(fleets[100]),
                    target=_TARGET,
                ),
                "again": Contestant(
                    title=f"{len(fleets[100].shards):,} shards of 100, nothing new",
                    once=lambda: again(fleets[100]),
                ),
            },
            rounds=rounds,
        )
    }


def _sync_seconds(instance: DagsterInstance, fleet: Fleet, *, wanted: int) -> float:
    began = time.perf_counter()
    added = sum(done.keys_added for _, done in register_shards(instance, fleet, list(fleet.shards)))
    seconds = time.perf_counter() - began
    if added != wanted:
        raise RuntimeError(f"sync added {added} keys, wanted {wanted}")
    return seconds


def _insert_seconds(folder: Path, keys: int) -> float:
    with closing(sqlite3.connect(folder / "floor.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE keys (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE)")
        connection.commit()
        began = time.perf_counter()
        for start in range(0, keys, 500):
            rows = [(f"tenant-{number}",) for number in range(start, min(start + 500, keys))]
            connection.executemany("INSERT INTO keys (key) VALUES (?)", rows)
            connection.commit()
        return time.perf_counter() - began
