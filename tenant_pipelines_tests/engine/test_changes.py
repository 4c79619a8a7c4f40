"""What changes between two runs: code, sources, tables, files. Each run does what its plan said."""

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tenant_pipelines.engine.overview import FleetReader
from tenant_pipelines.engine.plan import Action, Request
from tenant_pipelines.engine.verify import verify_shard
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.storage.sql_source import sql_extract
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.engine.fleets import Ran, make_fleet, run_shard

_SOURCE = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, who TEXT, n INTEGER, x REAL, note TEXT);
INSERT INTO orders VALUES (1, 'acme', 10, 1.5, 'a'), (2, 'acme', 20, 2.5, 'b'),
  (3, 'globex', 30, 3.5, 'c');
"""


def _sql(file: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(script)


def _rows(folder: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(folder / "warehouse.db")) as connection:
        return connection.execute(query).fetchall()


def _dump(folder: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(folder / "warehouse.db")) as connection:
        return list(connection.iterdump())


def run_as_planned(fleet: Fleet, *, new_cycle: str | None = None, **asked: Any) -> Ran:
    """Run a shard and check that it did what its plan had said, cell for cell.

    A cell to be checked may run; below a failed one nothing does.
    """
    reader = FleetReader(fleet, environ={})
    view = reader.shard("a", Request(root="", **asked), new_cycle=new_cycle is not None)
    plan = {(cell.tenant, cell.step): cell.action for cell in view.cells}
    ran = run_shard(fleet, new_cycle=new_cycle, **asked)
    did = {*ran.cells, *((cell.tenant, cell.step) for cell in ran.report.failed)}
    excused = {(cell.tenant, name) for cell in ran.report.failed for name in cell.blocked}
    must = {cell for cell, action in plan.items() if action is Action.RUN}
    may = {cell for cell, action in plan.items() if action in {Action.RUN, Action.CHECK}}
    assert must - excused <= did <= may
    held = {cell for cell, action in plan.items() if action is Action.HOLD}
    assert held == {(cell.tenant, cell.step) for cell in ran.report.held}
    return ran


def _fleet(
    folder: Path,
    shape: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame,
    *,
    version: str = "1",
    tenants: tuple[str, ...] = ("acme",),
    columns: list[str] | None = None,
) -> Fleet:
    @step(code_version=version)
    def transform(ctx: StepContext, extract: pd.DataFrame) -> pd.DataFrame:
        return shape(extract)

    extract = sql_extract(
        source=f"sqlite:///{folder}/source.db",
        table="orders",
        tenant_column="who",
        cursor_column="id",
        columns=columns,
    )
    return make_fleet(
        folder,
        [extract, transform, sql_load(table="loaded", key=["id"])],
        {"a": tenants},
        warehouse=f"sqlite:///{folder}/warehouse.db",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a source of three orders of two tenants."""
    _sql(tmp_path / "source.db", _SOURCE)
    return tmp_path


_CHANGED = [("acme", "load"), ("acme", "transform")]


def test_a_code_version_raised_and_lowered_works_from_what_it_finds(folder: Path) -> None:
    """Exactly the transforms and loads run again, and fewer rows leave fewer rows."""
    whole = _fleet(folder, version="1")
    fewer = _fleet(folder, lambda frame: frame[frame["n"] > 10], version="2")
    same_as_whole = _fleet(folder, version="3")
    ids = "SELECT id, _cycle FROM loaded ORDER BY id"
    assert len(run_as_planned(whole).cells) == 3
    assert run_as_planned(fewer).cells == _CHANGED
    assert _rows(folder, ids) == [(2, "1")]
    assert run_as_planned(fewer).cells == []
    assert run_as_planned(whole).cells == _CHANGED
    assert _rows(folder, ids) == [(1, "1"), (2, "1")]
    assert run_as_planned(same_as_whole).cells == [("acme", "transform")]
    assert run_as_planned(fewer).cells == _CHANGED
    _sql(
        folder / "source.db",
        "INSERT INTO orders VALUES (4, 'acme', 5, 0, ''), (5, 'acme', 50, 0, '')",
    )
    assert len(run_as_planned(fewer, new_cycle="2").cells) == 3
    assert _rows(folder, ids) == [(2, "1"), (5, "2")]
    assert run_as_planned(whole).cells == _CHANGED
    assert _rows(folder, ids) == [(2, "1"), (4, "2"), (5, "2")]


def test_a_lost_artifact_matters_when_a_step_needs_it(folder: Path) -> None:
    """It is made again first, from the pinned window, and nothing follows an equal digest."""
    fleet = _fleet(folder, tenants=("acme", "globex"))
    run_as_planned(fleet)
    artifacts = [path for path in Path(fleet.artifacts).rglob("*") if path.is_file()]
    assert len(artifacts) == 4
    for path in artifacts:
        path.unlink()
    _sql(folder / "source.db", "INSERT INTO orders VALUES (4, 'acme', 40, 4.5, 'd')")
    assert run_as_planned(fleet).cells == []
    newer = _fleet(folder, tenants=("acme", "globex"), version="2")
    again = run_as_planned(newer, tenants=["acme"])
    assert again.cells == [("acme", "extract"), ("acme", "transform")]
    other = _fleet(folder, lambda frame: frame[1:], tenants=("acme", "globex"), version="3")
    for path in Path(fleet.artifacts).rglob("*.parquet"):
        path.unlink()
    assert run_as_planned(other, tenants=["acme"]).cells == [
        ("acme", "extract"),
        ("acme", "load"),
        ("acme", "transform"),
    ]
    assert _rows(folder, "SELECT id FROM loaded WHERE _tenant = 'acme'") == [(2,)]
    assert run_as_planned(other, tenants=["acme"]).cells == []


SOURCE_CHANGES = {
    "added": (
        "ALTER TABLE orders ADD COLUMN extra TEXT DEFAULT 'new'",
        ["table 'loaded'", "no column 'extra'", 'ADD COLUMN "extra" TEXT'],
        "ALTER TABLE loaded ADD COLUMN extra TEXT",
    ),
    "dropped": (
        "ALTER TABLE orders DROP COLUMN note",
        ["table 'loaded'", "the column 'note' in the table, which the data lacks"],
        "ALTER TABLE loaded DROP COLUMN note",
    ),
    "retyped": (
        "ALTER TABLE orders DROP COLUMN n; ALTER TABLE orders ADD COLUMN n TEXT DEFAULT 'many'",
        ["table 'loaded'", "column 'n' of type BIGINT", "one that holds text"],
        "ALTER TABLE loaded DROP COLUMN n; ALTER TABLE loaded ADD COLUMN n TEXT",
    ),
}


@pytest.mark.parametrize("change", list(SOURCE_CHANGES))
def test_a_source_that_changed_its_columns_is_refused_until_the_table_has_them(
    folder: Path, change: str
) -> None:
    """Table and column are named, nothing is written; what the error says to do works."""
    script, says, mended = SOURCE_CHANGES[change]
    fleet = _fleet(folder)
    run_as_planned(fleet)
    _sql(folder / "source.db", script + "; INSERT INTO orders (id, who) VALUES (9, 'acme')")
    before = _dump(folder)
    (failed,) = run_as_planned(fleet, new_cycle="2").report.failed
    assert failed.step == "load"
    assert failed.error["type"].endswith("WarehouseRefused")
    assert [text for text in says if text not in failed.error["message"]] == []
    assert _dump(folder) == before
    _sql(folder / "warehouse.db", mended)
    assert run_as_planned(fleet).cells == [("acme", "load")]
    assert _rows(folder, "SELECT id, _cycle FROM loaded") == [(1, "1"), (2, "1"), (9, "2")]


def test_a_column_that_the_extract_names_and_the_source_dropped(folder: Path) -> None:
    """The source's table and column are named; the tenant's other cells wait."""
    fleet = _fleet(folder, columns=["id", "n"])
    run_as_planned(fleet)
    _sql(folder / "source.db", "ALTER TABLE orders DROP COLUMN n")
    (failed,) = run_as_planned(fleet, new_cycle="2").report.failed
    assert (failed.step, failed.blocked) == ("extract", ("transform", "load"))
    assert "table 'orders', tenant 'acme': found no column 'n'" in failed.error["message"]


def test_a_tenant_can_begin_again(folder: Path) -> None:
    """As the docs and the error of a table that is gone say: the cursor is taken back by hand."""
    fleet = _fleet(folder, tenants=("acme", "globex"))
    run_as_planned(fleet)
    _sql(folder / "source.db", "DELETE FROM orders WHERE id = 1")
    back = "UPDATE _tenant_pipelines_ledger SET cursor = 'null' WHERE fleet = 'fleet'"
    _sql(
        folder / "warehouse.db",
        f"BEGIN; DELETE FROM loaded WHERE _tenant = 'acme'; {back} AND tenant = 'acme'; COMMIT",
    )
    run_as_planned(fleet, new_cycle="2")
    everything = [(2, "2"), (3, "1")]
    assert _rows(folder, "SELECT id, _cycle FROM loaded ORDER BY id") == everything
    _sql(folder / "warehouse.db", "DROP TABLE loaded")
    _sql(folder / "source.db", "INSERT INTO orders VALUES (9, 'acme', 1, 1, '')")
    (failed,) = run_as_planned(fleet, new_cycle="3").report.failed
    assert f"{back} AND step = 'load'; then run --new-cycle" in failed.error["message"]
    _sql(folder / "warehouse.db", f"{back} AND step = 'load'")
    assert run_as_planned(fleet, new_cycle="4").report.is_complete
    assert _rows(folder, "SELECT id FROM loaded ORDER BY id") == [(2,), (3,), (9,)]
    assert verify_shard(fleet, "a").problems == []


@pytest.mark.parametrize(
    ("declared", "value", "stored"), [("INTEGER", 7, 7.0), ("REAL", 7.5, 7.5)], ids=str
)
def test_numbers_are_widened_as_documented(
    folder: Path, declared: str, value: float, stored: float
) -> None:
    """A column of floats takes the integers of a source that was retyped."""
    fleet = _fleet(folder)
    run_as_planned(fleet)
    change = f"ALTER TABLE orders DROP COLUMN x; ALTER TABLE orders ADD COLUMN x {declared}"
    insert = f"INSERT INTO orders (id, who, x) VALUES (9, 'acme', {value})"
    _sql(folder / "source.db", f"{change}; {insert}")
    assert len(run_as_planned(fleet, new_cycle="2").cells) == 3
    assert _rows(folder, "SELECT x, typeof(x) FROM loaded WHERE id = 9") == [(stored, "real")]


TABLE_CHANGES = {
    "column dropped": ("ALTER TABLE loaded DROP COLUMN n", "no column 'n' in the table"),
    "column added": ("ALTER TABLE loaded ADD COLUMN m TEXT", "the column 'm' in the table"),
    "table dropped": ("DROP TABLE loaded", "no such table in the warehouse, although its ledger"),
    "another's": (
        "DROP TABLE loaded; CREATE TABLE loaded (id INTEGER PRIMARY KEY, who TEXT)",
        "no column '_cycle' in the table",
    ),
    "another key": (
        """CREATE TABLE other AS SELECT * FROM loaded; DROP TABLE loaded;
        ALTER TABLE other RENAME TO loaded""",
        "the primary key []",
    ),
    "a view": (
        "ALTER TABLE loaded RENAME TO old; CREATE VIEW loaded AS SELECT * FROM old",
        "loaded",
    ),
}


@pytest.mark.parametrize("change", list(TABLE_CHANGES))
def test_a_table_that_was_changed_by_hand_is_left_as_it_is(folder: Path, change: str) -> None:
    """The load says what it found, table and column; the other tenant's refusal is its own."""
    script, says = TABLE_CHANGES[change]
    fleet = _fleet(folder, tenants=("acme", "globex"))
    run_as_planned(fleet)
    _sql(folder / "warehouse.db", script)
    insert = "INSERT INTO orders VALUES (8, 'acme', 1, 1, ''), (9, 'globex', 1, 1, '')"
    _sql(folder / "source.db", insert)
    before = _dump(folder)
    ran = run_as_planned(fleet, new_cycle="2")
    assert {(cell.tenant, cell.step) for cell in ran.report.failed} == {
        ("acme", "load"),
        ("globex", "load"),
    }
    for cell in ran.report.failed:
        assert "table 'loaded'" in cell.error["message"]
        assert says in cell.error["message"]
    assert _dump(folder) == before
