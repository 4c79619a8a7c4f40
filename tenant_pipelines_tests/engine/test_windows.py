"""Incremental extracts over several cycles: whoever failed meanwhile misses nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import Step, step
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.sql_source import sql_extract
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard

_TENANTS = ("acme", "globex")


def _order(folder: Path, *ids: int) -> None:
    """Put an order of each tenant into the source under each id; acme's ids are the even ones."""
    rows = [(2 * id_ + position, name) for id_ in ids for position, name in enumerate(_TENANTS)]
    with closing(sqlite3.connect(folder / "source.db")) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, tenant TEXT)"
        )
        connection.executemany("INSERT INTO orders VALUES (?, ?)", rows)


def _loaded(folder: Path, tenant: str) -> list[tuple[int, str]]:
    """Return (id, cycle) of a tenant's orders in the warehouse: the cycle wrote the row last."""
    query = "SELECT id, _cycle FROM orders WHERE _tenant = ? ORDER BY id"
    with closing(sqlite3.connect(folder / "warehouse.db")) as connection:
        return connection.execute(query, (tenant,)).fetchall()


def test_a_tenant_that_failed_for_three_cycles_loads_every_row_once_when_it_works_again(
    tmp_path: Path,
) -> None:
    """Nobody mends the old cycles: they stay incomplete, and the cursor has not moved in them.

    The neighbour works in every cycle, and each of its rows is loaded in the cycle it came in.
    """
    fault = tmp_path / "fault"
    read: list[tuple[str, str, list[int]]] = []

    @step
    def transform(ctx: StepContext, extract: pd.DataFrame) -> pd.DataFrame:
        read.append((ctx.cycle, ctx.tenant, list(extract["id"])))
        if ctx.tenant == "globex" and fault.exists():
            raise OSError("the vendor's file is broken")
        return extract

    extract = sql_extract(
        source=f"sqlite:///{tmp_path}/source.db",
        table="orders",
        tenant_column="tenant",
        cursor_column="id",
    )
    fleet = make_fleet(
        tmp_path,
        [extract, transform, sql_load(table="orders", key=["id"])],
        {"a": _TENANTS},
        warehouse=f"sqlite:///{tmp_path}/warehouse.db",
    )
    fault.touch()
    for cycle in ("1", "2", "3"):
        _order(tmp_path, int(cycle))
        ran = run_shard(fleet, new_cycle=cycle)
        assert [(cell.tenant, cell.step) for cell in ran.report.failed] == [("globex", "transform")]
    _order(tmp_path, 4)
    fault.unlink()
    assert run_shard(fleet, new_cycle="4").report.is_complete
    assert run_shard(fleet).cells == []

    assert _loaded(tmp_path, "acme") == [(2, "1"), (4, "2"), (6, "3"), (8, "4")]
    assert _loaded(tmp_path, "globex") == [(3, "4"), (5, "4"), (7, "4"), (9, "4")]
    assert sorted(read) == [
        ("1", "acme", [2]), ("1", "globex", [3]),
        ("2", "acme", [4]), ("2", "globex", [3, 5]),
        ("3", "acme", [6]), ("3", "globex", [3, 5, 7]),
        ("4", "acme", [8]), ("4", "globex", [3, 5, 7, 9]),
    ]  # fmt: skip


def _corrected_fleet(folder: Path, *loads: Step) -> Fleet:
    """Return a fleet whose transform multiplies by what the file ``factor`` says."""

    @step
    def transform(ctx: StepContext, extract: pd.DataFrame) -> pd.DataFrame:
        factor = int((folder / "factor").read_text())
        return extract.assign(value=extract["id"] * factor)[extract["id"] * factor != 50]

    extract = sql_extract(
        source=f"sqlite:///{folder}/source.db",
        table="orders",
        tenant_column="tenant",
        cursor_column="id",
        columns=["id"],
    )
    return make_fleet(
        folder,
        [extract, transform, *loads],
        {"a": ["acme"]},
        warehouse=f"sqlite:///{folder}/warehouse.db",
    )


def test_a_correction_with_fewer_rows_leaves_fewer_rows(tmp_path: Path) -> None:
    """What the outdated cycle had loaded is deleted, as its own later generation would do."""
    fleet = _corrected_fleet(tmp_path, sql_load(table="orders", key=["id"]))
    factor = tmp_path / "factor"
    factor.write_text("1")
    _order(tmp_path, 1)
    run_shard(fleet)
    _order(tmp_path, 5, 6)  # 10 and 12
    run_shard(fleet, new_cycle="2")
    factor.write_text("5")  # 10 * 5 is left out
    run_shard(fleet, force=True, is_exact=True, steps=["transform"])
    _order(tmp_path, 7)
    run_shard(fleet, new_cycle="3")
    assert _values(tmp_path) == [(2, 2, "1"), (12, 60, "3"), (14, 70, "3")]


def test_a_correction_over_two_incomplete_cycles_leaves_fewer_rows(tmp_path: Path) -> None:
    """The cycles that the first outdated one covers are replaced with it."""
    fleet = _corrected_fleet(tmp_path, sql_load(table="orders", key=["id"]))
    factor = tmp_path / "factor"
    factor.write_text("1")
    _order(tmp_path, 5, 6)  # 10 and 12
    run_shard(fleet)
    for cycle in ("2", "3"):
        factor.write_text("2")
        run_shard(fleet, force=True, is_exact=True, steps=["transform"])
        _order(tmp_path, 5 + int(cycle))
        run_shard(fleet, new_cycle=cycle, steps=["extract", "transform"])
    factor.write_text("5")  # 10 * 5 is left out
    run_shard(fleet, new_cycle="4")
    assert _values(tmp_path) == [(12, 60, "4"), (14, 70, "4"), (16, 80, "4")]


def _values(folder: Path, table: str = "orders") -> list[tuple[int, int, str]]:
    with closing(sqlite3.connect(folder / "warehouse.db")) as connection:
        return connection.execute(f"SELECT id, value, _cycle FROM {table} ORDER BY id").fetchall()


@pytest.mark.parametrize("how", ["forced", "forced extract", "completed"])
def test_a_correction_that_was_never_loaded_is_loaded_by_the_next_cycle(
    tmp_path: Path, how: str
) -> None:
    """The cursor had moved before the correction; the next window goes back to fetch its rows."""
    fleet = _corrected_fleet(tmp_path, sql_load(table="orders", key=["id"]))
    factor = tmp_path / "factor"
    factor.write_text("1")
    for cycle in ("1", "2"):
        _order(tmp_path, int(cycle))
        run_shard(fleet, new_cycle=cycle)
    factor.write_text("10")
    if how == "completed":
        run_shard(fleet, force=True, is_exact=True, steps=["transform"])
    else:
        # as a kill right after it leaves the journal
        name = "extract" if "extract" in how else "transform"
        with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
            journal.append(
                Draft(
                    kind=EntryKind.FORCED, cycle="2", run_id="r", tenant="acme", step=name,
                    generation=2, payload={"root": "r"},
                )
            )  # fmt: skip
    _order(tmp_path, 3)
    run_shard(fleet, new_cycle="3")
    # cycle 1 was complete: what it loaded stays as it is
    assert _values(tmp_path) == [(2, 2, "1"), (4, 40, "3"), (6, 60, "3")]
    _order(tmp_path, 4)
    run_shard(fleet, new_cycle="4")
    assert _values(tmp_path)[1:] == [(4, 40, "3"), (6, 60, "3"), (8, 80, "4")]


def test_several_incomplete_cycles_in_a_row_go_back_to_the_first(tmp_path: Path) -> None:
    """The window of the second begins where the first one's did, and so on."""
    fleet = _corrected_fleet(tmp_path, sql_load(table="orders", key=["id"]))
    factor = tmp_path / "factor"
    factor.write_text("1")
    for cycle in ("1", "2"):
        _order(tmp_path, int(cycle))
        run_shard(fleet, new_cycle=cycle)
    factor.write_text("10")
    run_shard(fleet, force=True, is_exact=True, steps=["transform"])
    for cycle in ("3", "4"):
        _order(tmp_path, int(cycle))
        run_shard(fleet, new_cycle=cycle, steps=["extract"])
    run_shard(fleet, new_cycle="5")
    assert _values(tmp_path) == [(2, 2, "1"), (4, 40, "5"), (6, 60, "5"), (8, 80, "5")]


def test_of_two_loads_the_one_that_failed_gets_the_rows_of_its_window_again(
    tmp_path: Path,
) -> None:
    """The other one moved its own cursor; the next window begins at the older of the two."""
    (tmp_path / "factor").write_text("1")
    second = sql_load(table="copies", key=["id"], name="copy")
    fleet = _corrected_fleet(tmp_path, sql_load(table="orders", key=["id"]), second)
    _order(tmp_path, 1)
    run_shard(fleet)
    _order(tmp_path, 2)
    run_shard(fleet, new_cycle="2", steps=["extract", "transform", "load"])
    _order(tmp_path, 3)
    run_shard(fleet, new_cycle="3")
    assert [row[0] for row in _values(tmp_path)] == [2, 4, 6]
    assert _values(tmp_path, "copies") == [(2, 2, "1"), (4, 4, "3"), (6, 6, "3")]


def test_a_window_function_pins_the_window_whichever_source_runs_first(tmp_path: Path) -> None:
    """A source step without a window may come before the one that has it."""
    seen: dict[str, object] = {}

    @step
    def aside(ctx: StepContext) -> int:
        seen["aside"] = ctx.window.to
        return 1

    @step(window=lambda ctx: 7)
    def extract(ctx: StepContext) -> pd.DataFrame:
        seen["extract"] = ctx.window.to
        return pd.DataFrame({"id": [1]})

    steps = [aside, extract, sql_load(table="t", key=["id"], upstream="extract")]
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    run_shard(make_fleet(tmp_path, steps, {"a": ["acme"]}, warehouse=warehouse))
    assert seen == {"aside": 7, "extract": 7}


def test_a_cursor_of_another_kind_reads_everything_once(tmp_path: Path) -> None:
    """The cursor column was changed from a number to a text: neither is before the other."""
    newest: list[int | str] = [5]
    windows = []

    @step(window=lambda ctx: newest[0])
    def extract(ctx: StepContext) -> pd.DataFrame:
        windows.append((ctx.window.after, ctx.window.to))
        return pd.DataFrame({"id": [1]})

    steps = [extract, sql_load(table="t", key=["id"], upstream="extract")]
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    fleet = make_fleet(tmp_path, steps, {"a": ["acme"]}, warehouse=warehouse)
    for cycle, value in (("1", 5), ("2", 6), ("3", "x"), ("4", "y")):
        newest[0] = value
        run_shard(fleet, new_cycle=cycle)
    assert windows == [(None, 5), (5, 6), (None, "x"), ("x", "y")]
