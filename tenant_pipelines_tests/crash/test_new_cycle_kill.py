"""Kills around a new cycle: while it is opened, and just before it, when a load is half told."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tenant_pipelines.journal.entries import EntryKind
from tenant_pipelines.orchestration.instance import end_dead_runs
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines_tests.crash.rig import Rig, rig_of
from tenant_pipelines_tests.engine.fleets import run_shard

pytestmark = pytest.mark.slow

_OPENING_STEPS = """
@step
def extract(ctx: StepContext) -> dict:
    return {"tenant": ctx.tenant, "cycle": ctx.cycle}

@step
def load(ctx: StepContext, extract: dict) -> None:
    pass

pipeline = Pipeline([extract, load])

if dies_at("the third opening"):
    from tenant_pipelines.journal.journal import Journal
    open_cycle, opened = Journal.open_cycle, []

    def opens(self, cycle, *, run_id):
        opened.append(cycle)
        if len(opened) == 3:
            die_at("the third opening")
        open_cycle(self, cycle, run_id=run_id)

    Journal.open_cycle = opens
"""
_SHARDS = {"a": ["a1", "a2"], "b": ["b1"], "c": ["c1"], "d": ["d1"]}
_CELLS = sorted(
    (shard, tenant, step)
    for shard, tenants in _SHARDS.items()
    for tenant in tenants
    for step in ("extract", "load")
)


def _kill_while_it_opens(rig: Rig, *new_cycle: str) -> str:
    """Finish cycle 1, kill a run that opens the next one in half of the shards; return its name."""
    for shard in _SHARDS:
        assert run_shard(rig.fleet, shard).report.is_complete
    with rig.dying_at("the third opening"):
        rig.start("run", "--json", *new_cycle).die()
    opened = rig.opened()
    name = opened["a"][-1]
    assert name != "1"
    assert opened == {"a": ["1", name], "b": ["1", name], "c": ["1"], "d": ["1"]}
    return name


def _check_cycle_is_done_once(rig: Rig, name: str) -> None:
    assert rig.opened() == {shard: ["1", name] for shard in _SHARDS}
    assert rig.completed() == sorted(
        (tenant, step, cycle, 1) for _, tenant, step in _CELLS for cycle in ("1", name)
    )


def test_a_plain_run_finishes_the_cycle_that_a_kill_left_half_opened(tmp_path: Path) -> None:
    """Half of the shards in the new cycle and half in the old one would never meet again.

    The cycle has no name of its own, and the run after the kill asks for none. What plan and
    status say in between is what that run finds.
    """
    with rig_of(tmp_path, module=_OPENING_STEPS, shards=_SHARDS) as rig:
        name = _kill_while_it_opens(rig, "--new-cycle")
        status = rig.call("status", "--json").document
        assert {(shard["shard"], shard["cycle"]) for shard in status["shards"]} == {
            (shard, name) for shard in _SHARDS
        }
        assert sorted(_cells_in(status)) == [(*cell, "missing") for cell in _CELLS]
        planned = rig.call("plan", "--json").document["cells"]
        will_run = [cell for cell in planned if cell["action"] == "run"]
        assert sorted((cell["shard"], cell["tenant"], cell["step"]) for cell in will_run) == _CELLS

        plain = rig.call("run", "--json")
        assert plain.code == 0, plain.err
        assert {shard["cycle"] for shard in plain.document["shards"]} == {name}
        assert sum(shard["ran"] for shard in plain.document["shards"]) == len(_CELLS)
        _check_cycle_is_done_once(rig, name)


def _cells_in(status: Any) -> list[tuple[str, str, str, str]]:
    """Return (shard, tenant, step, state) of every cell of a status document."""
    return [
        (shard["shard"], tenant["tenant"], step["step"], step["state"])
        for shard in status["shards"]
        for tenant in shard["tenants"]
        for step in tenant["steps"]
    ]


def test_a_re_execution_finishes_the_cycle_that_its_killed_run_half_opened(tmp_path: Path) -> None:
    """Its config still says to open a new cycle; a second one would start everything over."""
    with rig_of(tmp_path, module=_OPENING_STEPS, shards=_SHARDS) as rig:
        name = _kill_while_it_opens(rig, "--new-cycle")
        with rig.instance() as instance:
            (killed,) = end_dead_runs(instance, rig.fleet)
        ended = rig.start_reexecution(killed, "from failure").finish()
        assert ended.code == 0, ended.err
        _check_cycle_is_done_once(rig, name)


_LOADING_STEPS = """
from tenant_pipelines import sql_extract, sql_load

@step
def transform(ctx: StepContext, extract):
    return extract

pipeline = Pipeline([
    sql_extract(
        source=f"sqlite:///{HERE}/source.db",
        table="orders",
        tenant_column="tenant",
        cursor_column="id",
    ),
    transform,
    sql_load(table="orders", key=["id"]),
])

if dies_at("before the warehouse's commit"):
    from tenant_pipelines.storage.ledger import Ledger
    record = Ledger.record

    def records(self, connection, row):
        record(self, connection, row)
        die_at("before the warehouse's commit")

    Ledger.record = records

if dies_at("before the journal's entry"):
    from tenant_pipelines.journal.journal import Journal
    append = Journal.append

    def appends(self, *drafts):
        if ("completed", "load") in {(draft.kind, draft.step) for draft in drafts}:
            die_at("before the journal's entry")
        append(self, *drafts)

    Journal.append = appends
"""


@pytest.mark.parametrize(
    ("moment", "committed"),
    [("before the warehouse's commit", []), ("before the journal's entry", [1, 3])],
)
def test_a_new_cycle_goes_on_where_the_killed_load_of_the_old_one_committed(
    tmp_path: Path, moment: str, committed: list[int]
) -> None:
    """Nobody finishes the old cycle: only the ledger can tell the new one what took effect.

    ``_cycle`` says which cycle wrote a row last, and would show rows that were loaded twice.
    """
    with rig_of(
        tmp_path,
        module=_LOADING_STEPS,
        shards={"a": ["acme", "globex"]},
        warehouse=f"sqlite:///{tmp_path}/warehouse.db",
        defaults={"max_concurrent": 1},
    ) as rig:
        orders = [(1, "acme"), (2, "globex"), (3, "acme")]
        _order(tmp_path, orders)
        with rig.dying_at(moment):
            rig.start_engine("a").die()
        assert _loaded(tmp_path) == [(id_, "acme", "1") for id_ in committed]
        new = [(4, "acme"), (5, "globex")]
        _order(tmp_path, new)
        after = run_shard(rig.fleet, "a", new_cycle="2")
        assert after.report.is_complete
        assert run_shard(rig.fleet, "a").cells == []

        assert _loaded(tmp_path) == [
            (id_, tenant, "1" if id_ in committed else "2") for id_, tenant in orders + new
        ]
        cursor = max(committed, default=None)
        assert _windows(rig, cycle="2") == {"acme": (cursor, 4), "globex": (None, 5)}
        ledger = Ledger(f"sqlite:///{tmp_path}/warehouse.db", rig.name)
        assert {
            cycle: [
                (row.generation, row.cursor) for row in ledger.settled(tenant="acme", cycle=cycle)
            ]
            for cycle in ("1", "2")
        } == {"1": [(1, 3)] if committed else [], "2": [(1, 4)]}


def _order(folder: Path, orders: list[tuple[int, str]]) -> None:
    """Put orders into the source."""
    with closing(sqlite3.connect(folder / "source.db")) as connection, connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, tenant TEXT)"
        )
        connection.executemany("INSERT INTO orders VALUES (?, ?)", orders)


def _loaded(folder: Path) -> list[tuple[int, str, str]]:
    """Return (id, tenant, cycle) of the orders in the warehouse."""
    with closing(sqlite3.connect(folder / "warehouse.db")) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'orders'").fetchall():
            return []
        return connection.execute("SELECT id, tenant, _cycle FROM orders ORDER BY id").fetchall()


def _windows(rig: Rig, cycle: str) -> dict[str, tuple[Any, Any]]:
    """Return the window that each tenant's extract read in a cycle."""
    windows = {
        entry.tenant: entry.payload["window"]
        for entry in rig.entries("a")
        if (entry.kind, entry.step, entry.cycle) == (EntryKind.STARTED, "extract", cycle)
    }
    return {tenant: (window["after"], window["to"]) for tenant, window in windows.items()}
