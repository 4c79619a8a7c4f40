"""What changes between two runs: code, sources, tables, files. Each run does what its plan said."""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tenant_pipelines.engine.cycles import open_cycle
from tenant_pipelines.engine.overview import FleetReader
from tenant_pipelines.engine.plan import Action, Request
from tenant_pipelines.engine.verify import verify_shard
from tenant_pipelines.errors import JournalUnusable
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet, Limits, Shard
from tenant_pipelines.fleet.pipeline import Pipeline, step
from tenant_pipelines.journal.journal import Journal
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


def _lose_warehouse(folder: Path) -> None:
    for name in ("warehouse.db", "warehouse.db-wal", "warehouse.db-shm"):
        (folder / name).unlink(missing_ok=True)


def _restore_warehouse(folder: Path) -> None:
    _lose_warehouse(folder)
    shutil.copy(folder / "backup.db", folder / "warehouse.db")


def _take_cursor_back(folder: Path) -> None:
    _sql(folder / "warehouse.db", "DELETE FROM loaded")
    _sql(folder / "warehouse.db", "UPDATE _tenant_pipelines_ledger SET cursor = 'null'")


@pytest.mark.parametrize("change", [_lose_warehouse, _restore_warehouse, _take_cursor_back])
@pytest.mark.parametrize("asked", [{}, {"force": True}, {"force": True, "steps": ["load"]}])
def test_a_load_never_begins_after_what_its_table_has(
    folder: Path, change: Callable[[Path], None], asked: dict[str, Any]
) -> None:
    """The cycle's window was pinned before the warehouse went back: the rows between would go."""
    fails = folder / "fails"

    def shape(frame: pd.DataFrame) -> pd.DataFrame:
        if fails.exists():
            raise OSError("not now")
        return frame

    fleet = _fleet(folder, shape)
    run_as_planned(fleet)
    _sql(folder / "warehouse.db", f"VACUUM INTO '{folder}/backup.db'")
    _sql(folder / "source.db", "INSERT INTO orders VALUES (4, 'acme', 40, 0, '')")
    run_as_planned(fleet, new_cycle="2")
    _sql(folder / "source.db", "INSERT INTO orders VALUES (5, 'acme', 50, 0, '')")
    if asked:
        run_as_planned(fleet, new_cycle="3")
    else:
        fails.touch()
        run_as_planned(fleet, new_cycle="3")
        fails.unlink()
    change(folder)
    (failed,) = run_as_planned(fleet, **asked).report.failed
    assert failed.step == "load"
    assert "a window that begins after 4, where the warehouse's ledger" in failed.error["message"]
    assert "run --new-cycle" in failed.error["message"]
    assert run_as_planned(fleet, new_cycle="4").report.is_complete
    assert _rows(folder, "SELECT id FROM loaded ORDER BY id") == [(1,), (2,), (4,), (5,)]


def test_a_load_that_is_added_in_a_cycle_gets_everything_in_the_next(folder: Path) -> None:
    """Its table would begin with this cycle's rows, and nobody would miss the older ones."""
    fleet = _fleet(folder)
    run_as_planned(fleet)
    _sql(folder / "source.db", "INSERT INTO orders VALUES (4, 'acme', 40, 0, '')")
    run_as_planned(fleet, new_cycle="2")
    second = sql_load(table="copies", key=["id"], name="copy")
    both = replace(fleet, pipeline=Pipeline([*fleet.pipeline.steps, second]))
    (failed,) = run_as_planned(both).report.failed
    assert (failed.step, "load up to None" in failed.error["message"]) == ("copy", True)
    run_as_planned(both, new_cycle="3")
    assert _rows(folder, "SELECT id FROM copies ORDER BY id") == [(1,), (2,), (4,)]


def test_a_load_into_another_table_begins_again_and_so_does_the_way_back(folder: Path) -> None:
    """A cursor counts for the table that has the rows."""
    fleet = _fleet(folder)
    extract, transform, _ = fleet.pipeline.steps
    other = sql_load(table="other", key=["id"])
    moved = replace(fleet, pipeline=Pipeline([extract, transform, other]))
    run_as_planned(fleet)
    _sql(folder / "source.db", "INSERT INTO orders VALUES (4, 'acme', 40, 0, '')")
    run_as_planned(moved, new_cycle="2")
    assert _rows(folder, "SELECT id FROM other ORDER BY id") == [(1,), (2,), (4,)]
    run_as_planned(fleet, new_cycle="3")
    assert _rows(folder, "SELECT id FROM loaded ORDER BY id") == [(1,), (2,), (4,)]


def test_a_sequence_that_was_restarted_is_read_from_its_beginning(folder: Path) -> None:
    """The source was built anew: its rows have lower numbers than what was loaded."""
    fleet = _fleet(folder)
    _sql(folder / "source.db", "INSERT INTO orders VALUES (9, 'acme', 90, 0, '')")
    run_as_planned(fleet)
    _sql(
        folder / "source.db", "DELETE FROM orders; INSERT INTO orders VALUES (3, 'acme', 1, 0, '')"
    )
    run_as_planned(fleet, new_cycle="2")
    _sql(folder / "source.db", "INSERT INTO orders VALUES (4, 'acme', 2, 0, '')")
    run_as_planned(fleet, new_cycle="3")
    assert _rows(folder, "SELECT id, n FROM loaded WHERE n < 5 ORDER BY id") == [(3, 1), (4, 2)]


def test_a_journal_from_a_backup_does_not_load_an_old_cycle_over_a_new_one(folder: Path) -> None:
    """The ledger has loads of a cycle that the journal never opened."""
    fleet = _fleet(folder)
    run_as_planned(fleet)
    _sql(fleet.journal_path("a"), f"VACUUM INTO '{folder}/journal.db'")
    run_as_planned(fleet, new_cycle="2")
    before = _dump(folder)
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        fleet.journal_path("a").with_name(name).unlink(missing_ok=True)
    shutil.copy(folder / "journal.db", fleet.journal_path("a"))
    _sql(fleet.journal_path("a"), "PRAGMA journal_mode = WAL")
    (failed,) = run_shard(fleet, force=True).report.failed
    assert "took effect that the journal does not know" in failed.error["message"]
    assert "cycle '2'" in failed.error["message"]
    assert _dump(folder) == before


def test_a_table_belongs_to_one_fleet(folder: Path) -> None:
    """A generation of one fleet would delete the rows of the other's cycle of that name."""
    fleet = _fleet(folder)
    run_as_planned(fleet)
    before = _dump(folder)
    state = folder / "other state"
    other = replace(fleet, name="other", state=state, artifacts=str(state / "artifacts"))
    (failed,) = run_shard(other).report.failed
    assert "a table that fleet 'fleet' loads" in failed.error["message"]
    assert _dump(folder) == before


def test_damage_in_an_older_cycle_stops_the_shard(folder: Path) -> None:
    """Found when the new cycle's window asks for the old one: nothing more is written."""
    fleet = _fleet(folder, tenants=("acme", "globex"))
    run_as_planned(fleet)
    open_cycle(fleet, asked="2", root="r", run_id="r")
    tampered = "UPDATE entries SET run_id = 'x' WHERE tenant = 'acme' AND kind = 'started'"
    drop = "DROP TRIGGER entries_are_never_updated"
    _sql(fleet.journal_path("a"), f"{drop}; {tampered}")
    with pytest.raises(JournalUnusable, match="checksum"):
        run_shard(replace(fleet, shards=_one_at_a_time(fleet)))
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        entries = [entry.kind.value for entry in journal.after(journal.last_seq() - 1)]
    assert entries == ["cycle_opened"]


def _one_at_a_time(fleet: Fleet) -> dict[str, Shard]:
    return {"a": replace(fleet.shard("a"), limits=Limits(max_concurrent=1))}
