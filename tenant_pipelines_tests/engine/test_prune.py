"""Pruning deletes what old cycles left, and nothing that a run, a reader or a cursor needs."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tenant_pipelines.engine.cycles import known_cycles
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.engine.overview import FleetReader, ShardStatus
from tenant_pipelines.engine.plan import Request
from tenant_pipelines.engine.prune import ShardPruned, old_cycles, prune_shard
from tenant_pipelines.engine.verify import verify_shard
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet, Tenant
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.journal.entries import Draft, EntryKind
from tenant_pipelines.journal.fold import Cycle
from tenant_pipelines.journal.journal import Journal
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard

_FAULT = "fault"


@step(window=lambda ctx: int(ctx.cycle))
def extract(ctx: StepContext) -> pd.DataFrame:
    return pd.DataFrame({"cycle": [ctx.cycle], "after": [str(ctx.cursor)]})


@step
def transform(ctx: StepContext, extract: pd.DataFrame) -> pd.DataFrame:
    if ctx.tenant == "umbrella" and (ctx.state / _FAULT).exists():
        raise OSError("not now")
    return extract


def _fleet(folder: Path) -> Fleet:
    steps = [extract, transform, sql_load(table="t", key=["cycle"])]
    warehouse = f"sqlite:///{folder}/warehouse.db"
    return make_fleet(folder, steps, {"a": ["acme", "umbrella"]}, warehouse=warehouse)


def _run_cycles(fleet: Fleet, *cycles: int) -> None:
    for cycle in cycles:
        run_shard(fleet, new_cycle=str(cycle) if cycle > 1 else None)


def _prune(fleet: Fleet, *, keep: int = 1, **options: Any) -> ShardPruned:
    known, _ = known_cycles(fleet)
    old = old_cycles(known, keep=keep, older_than=None, now=datetime.now(UTC))
    return prune_shard(fleet, "a", old, **{"artifacts_only": False, "dry_run": False, **options})


def _files(fleet: Fleet) -> int:
    return sum(path.is_file() for path in Path(fleet.artifacts).rglob("*"))


def _status(fleet: Fleet) -> ShardStatus:
    return FleetReader(fleet, environ={}).shard("a", Request(root="")).status


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Return a fleet whose umbrella failed in the newest two of four cycles."""
    fleet = _fleet(tmp_path)
    _run_cycles(fleet, 1, 2)
    (fleet.state / _FAULT).touch()
    _run_cycles(fleet, 3, 4)
    (fleet.state / _FAULT).unlink()
    return fleet


def test_old_cycles_go_and_what_is_needed_stays(fleet: Fleet, tmp_path: Path) -> None:
    """umbrella's newest transform and load are of cycle 2, and the cursor with them."""
    assert _files(fleet) == 14
    planned = _prune(fleet, dry_run=True)
    assert _files(fleet) == 14
    done = _prune(fleet)
    assert done == planned
    # acme: cycles 1 to 3, umbrella: cycles 1 and 3
    assert (done.entries, done.artifacts, done.ledger_rows) == (3 * 6 + 6 + 4, 9 + 1, 3 + 1)
    assert done.size_bytes > 0
    assert _files(fleet) == 14 - 10
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        kept = {(entry.tenant, entry.cycle) for entry in journal.all_entries() if entry.tenant}
        assert len(journal.cycle_entries()) == 4
    assert kept == {("acme", "4"), ("umbrella", "2"), ("umbrella", "4")}
    assert verify_shard(fleet, "a").problems == []
    assert _prune(fleet) == ShardPruned(shard="a")
    ledger = Ledger(f"sqlite:///{tmp_path}/warehouse.db", "fleet")
    assert ledger.cursors("umbrella", {"load": "t"}) == [2]
    assert run_shard(fleet).cells == [("umbrella", "load"), ("umbrella", "transform")]
    assert _status(fleet) is ShardStatus.COMPLETED
    with contextlib.closing(sqlite3.connect(tmp_path / "warehouse.db")) as connection:
        rows = connection.execute("SELECT cycle, after FROM t WHERE _tenant = 'umbrella'")
        assert sorted(rows) == [("1", "None"), ("2", "1"), ("4", "2")]


def test_artifacts_alone_leave_the_history(fleet: Fleet) -> None:
    """Every entry is there; an artifact that nobody needs is not missed."""
    before = verify_shard(fleet, "a")
    done = _prune(fleet, keep=2, artifacts_only=True)
    # acme: two of cycles 1 and 2 each; umbrella: its extract of cycles 1 and 2, transform of 1
    assert (done.entries, done.ledger_rows, done.artifacts) == (0, 0, 4 + 3)
    after = verify_shard(fleet, "a")
    assert (after.entries, after.problems) == (before.entries, [])
    assert after.artifacts == before.artifacts - done.artifacts == _files(fleet)
    assert run_shard(fleet).cells == [("umbrella", "load"), ("umbrella", "transform")]


def test_a_tenant_that_a_run_works_on_is_left_alone(fleet: Fleet) -> None:
    """The others are pruned."""
    with contextlib.closing(TenantLeases(fleet.shard_state("a") / "locks")) as leases:
        assert leases.try_take("acme")
        done = _prune(fleet)
    assert (done.busy, done.entries) == (["acme"], 10)
    assert _prune(fleet).entries == 18


def test_a_cursor_outlives_the_cycle_that_committed_it(tmp_path: Path) -> None:
    """The load took effect, was never journaled, and fails since: its ledger row stays."""
    fleet = _fleet(tmp_path)
    _run_cycles(fleet, 1, 2)
    with contextlib.closing(sqlite3.connect(fleet.journal_path("a"))) as connection, connection:
        last = "tenant = 'umbrella' AND cycle = '2' AND step = 'load' AND kind = 'completed'"
        (seq,) = connection.execute(f"SELECT seq FROM entries WHERE {last}").fetchone()
        connection.execute("DELETE FROM entries WHERE seq >= ?", (seq,))
    (fleet.state / _FAULT).touch()
    _run_cycles(fleet, 3)
    _prune(fleet)
    ledger = Ledger(f"sqlite:///{tmp_path}/warehouse.db", "fleet")
    assert ledger.cursors("umbrella", {"load": "t"}) == [2]


def test_seqs_are_never_given_twice(tmp_path: Path) -> None:
    """Not even when the newest entry is of a cycle that is pruned."""
    fleet = _fleet(tmp_path)
    _run_cycles(fleet, 1, 2)
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        journal.append(
            Draft(kind=EntryKind.FAILED, cycle="1", run_id="late", tenant="acme", step="load",
                  generation=1, attempt=9, payload={"error": {}, "seconds": 0.0})
        )  # fmt: skip
        last = journal.last_seq()
    _prune(fleet)
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        assert journal.last_seq() == last


def test_a_tenant_that_moved_keeps_its_artifacts(fleet: Fleet) -> None:
    """Its old journal may still list them; they are the new shard's now."""
    moved = replace(
        fleet,
        shards={
            "a": replace(fleet.shard("a"), tenants={"umbrella": Tenant(name="umbrella")}),
            "b": replace(fleet.shard("a"), name="b", tenants={"acme": Tenant(name="acme")}),
        },
    )
    _prune(moved)
    with Journal(fleet.journal_path("a"), fleet="fleet", shard="a") as journal:
        assert len(journal.completions_of("acme")) == 12


def test_a_cycle_that_was_pruned_is_never_opened_again(fleet: Fleet) -> None:
    """Its name stays taken, and a re-execution of its run opens nothing."""
    _prune(fleet)
    known, _ = known_cycles(fleet)
    assert {cycle.name for cycle in known} == {"1", "2", "3", "4"}


def test_a_lost_entry_is_told_from_a_pruned_one(fleet: Fleet) -> None:
    """The number of what was pruned and the sum of its seqs have to match what is not there."""
    _prune(fleet)
    with contextlib.closing(sqlite3.connect(fleet.journal_path("a"))) as connection, connection:
        connection.execute("DELETE FROM entries WHERE cycle = '4' AND step = 'extract'")
    (problem, *_) = verify_shard(fleet, "a").problems
    assert "32 entries are gone" in problem
    assert "28 were pruned" in problem


def test_a_journal_made_before_there_was_pruning(fleet: Fleet) -> None:
    """Its table for it is made when it is needed; reading does without."""
    with contextlib.closing(sqlite3.connect(fleet.journal_path("a"))) as connection, connection:
        connection.execute("DROP TABLE pruned")
    assert verify_shard(fleet, "a").problems == []
    assert _prune(fleet).entries == 28
    assert verify_shard(fleet, "a").problems == []


@pytest.mark.parametrize(
    ("keep", "older_than", "old"),
    [
        (1, None, {"a", "b", "c"}),
        (3, None, {"a"}),
        (9, None, set()),
        (1, timedelta(days=2), {"a", "b"}),
        (3, timedelta(days=2), {"a"}),
        (1, timedelta(days=9), set()),
    ],
)
def test_a_cycle_is_old_by_count_and_by_age(
    keep: int, older_than: timedelta | None, old: set[str]
) -> None:
    """Both have to say so; a cycle's earliest instant counts, the newest is never old."""
    instants = {"a": "04", "b": "05", "c": "06", "d": "07"}
    known = [Cycle(f"2026-03-{day}T00:00:00.000000Z", name) for name, day in instants.items()]
    known.append(Cycle("2026-03-08T00:00:00.000000Z", "a"))
    now = datetime(2026, 3, 8, tzinfo=UTC)
    assert old_cycles(known, keep=keep, older_than=older_than, now=now) == old


_PRUNE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.ledger import Ledger
from tenant_pipelines_tests.engine.test_prune import _fleet, _prune
die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
setattr(*{"ledger": (Ledger, "prune"), "files": (ArtifactStore, "collect")}[sys.argv[2]], die)
_prune(_fleet(Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["ledger", "files"])
def test_a_prune_that_was_killed_is_finished_by_the_next_one(
    fleet: Fleet, tmp_path: Path, point: str
) -> None:
    """With the entries gone and their ledger rows or files still there, nothing is wrong."""
    command = [sys.executable, "-c", _PRUNE_AND_DIE, str(tmp_path), point]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert verify_shard(fleet, "a").problems == []
    _prune(fleet)
    assert _files(fleet) == 4
    assert verify_shard(fleet, "a").problems == []
