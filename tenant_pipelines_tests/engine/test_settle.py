"""A load that took effect before a crash is settled from the ledger, and never applied twice."""

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.engine.fleets import cell_states, make_fleet, run_shard


@step
def extract(ctx: StepContext) -> pd.DataFrame:
    return pd.DataFrame({"day": ["2026-01-01", "2026-01-02"], "orders": [1, 2]})


_LOAD = sql_load(table="daily", key=["day"], upstream="extract")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    return make_fleet(tmp_path, [extract, _LOAD], {"a": ["acme"]}, warehouse=warehouse)


def _rows(tmp_path: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as connection:
        return connection.execute("SELECT day, orders FROM daily ORDER BY day").fetchall()


def _forget_completion_of_load(fleet: Fleet) -> None:
    """Make the journal as a crash between the warehouse's commit and the entry leaves it."""
    with closing(sqlite3.connect(fleet.journal_path("a"))) as connection, connection:
        connection.execute("DELETE FROM entries WHERE step = 'load' AND kind = 'completed'")


def test_a_load_that_took_effect_is_journaled_and_not_applied_again(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The row that somebody changed meanwhile shows that the load did not run."""
    assert run_shard(fleet).report.ran == 2
    _forget_completion_of_load(fleet)
    with closing(sqlite3.connect(tmp_path / "warehouse.db")) as connection, connection:
        connection.execute("UPDATE daily SET orders = 99 WHERE day = '2026-01-01'")
    again = run_shard(fleet)
    assert again.cells == [("acme", "load")]
    assert _rows(tmp_path) == [("2026-01-01", 99), ("2026-01-02", 2)]
    cell = cell_states(fleet)["acme:load"]
    assert (cell.generation, cell.attempts) == (1, 1)
    assert cell.output is not None
    assert cell.output["value"] == {"table": "daily", "rows": 2}
    assert run_shard(fleet).cells == []


def test_a_ledger_that_knows_more_than_the_journal_is_reported_as_damage(
    fleet: Fleet, tmp_path: Path
) -> None:
    """A journal restored from an old backup must not load everything again."""
    run_shard(fleet)
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        fleet.journal_path("a").with_name(name).unlink(missing_ok=True)
    before = _rows(tmp_path)
    again = run_shard(fleet)
    (failure,) = again.report.failed
    assert failure.error["type"].endswith("LedgerDisagrees")
    assert "journal does not know" in failure.error["message"]
    assert again.cells == []
    assert _rows(tmp_path) == before


def test_the_cursor_moves_with_the_load_and_the_window_is_pinned(tmp_path: Path) -> None:
    """A failed load reads the same rows again; the next cycle reads what came after."""
    newest = [10]
    windows = []
    fault = tmp_path / "fault"
    fault.touch()

    @step(window=lambda ctx: newest[0])
    def read(ctx: StepContext) -> pd.DataFrame:
        windows.append((ctx.window.after, ctx.window.to))
        return pd.DataFrame({"id": [1]})

    @step
    def shape(ctx: StepContext, read: pd.DataFrame) -> pd.DataFrame:
        if fault.exists():
            raise OSError("not now")
        return read

    steps = [read, shape, sql_load(table="t", key=["id"], upstream="shape")]
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    fleet = make_fleet(tmp_path, steps, {"a": ["acme"]}, warehouse=warehouse)
    run_shard(fleet)
    newest[0] = 20
    run_shard(fleet, force=True, steps=["read"])
    fault.unlink()
    run_shard(fleet)
    run_shard(fleet, new_cycle="2")
    assert windows == [(None, 10), (None, 10), (10, 20)]
    assert Ledger(warehouse, "fleet").cursors("acme", {"load": "t"}) == [20]


def test_a_crash_between_two_cells_leaves_a_journal_that_resumes(fleet: Fleet) -> None:
    """Whatever run wrote it: the state is in the entries alone."""
    run_shard(fleet, steps=["extract"], root=uuid.uuid4().hex)
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        kinds = [entry.kind.value for entry in journal.all_entries()]
    assert kinds == ["cycle_opened", "started", "completed"]
    assert run_shard(fleet).cells == [("acme", "load")]
