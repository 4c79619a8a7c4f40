"""A journal's loads against the warehouse's ledger: each side must know what the other one has."""

import contextlib
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from tenant_pipelines.engine.cycles import known_cycles
from tenant_pipelines.engine.prune import old_cycles, prune_shard
from tenant_pipelines.engine.verify import verify_shard
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines.fleet.pipeline import step
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard


@step
def transform(ctx: StepContext) -> pd.DataFrame:
    return pd.DataFrame({"day": ["mon"], "n": [1]})


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Return a fleet with two cycles, a forced generation in the second."""
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    steps = [transform, sql_load(table="t", key=["day"])]
    fleet = make_fleet(tmp_path, steps, {"a": ["acme", "globex"]}, warehouse=warehouse)
    run_shard(fleet)
    run_shard(fleet, new_cycle="2")
    run_shard(fleet, force=True, tenants=["acme"], steps=["load"])
    return fleet


_ADD_ROW = """
INSERT INTO _tenant_pipelines_ledger
SELECT NULL, fleet, tenant, step, '3', generation, input_digest, cursor, output, at
FROM _tenant_pipelines_ledger WHERE id = 1
"""


def _sql(file: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(statement)


def test_what_runs_wrote_agrees(fleet: Fleet, tmp_path: Path) -> None:
    """Also a load that took effect and is not journaled yet: the next run settles it."""
    assert verify_shard(fleet, "a").problems == []
    completed = "step = 'load' AND kind = 'completed' AND tenant = 'globex' AND cycle = '2'"
    last = f"SELECT seq FROM entries WHERE {completed}"
    with contextlib.closing(sqlite3.connect(fleet.journal_path("a"))) as connection, connection:
        (seq,) = connection.execute(last).fetchone()
        connection.execute("DELETE FROM entries WHERE seq >= ?", (seq,))
    problems = verify_shard(fleet, "a").problems
    # the forced generation came later and went with it
    assert [line for line in problems if "globex" in line] == []
    assert ["'acme'" in line and "generation 2" in line for line in problems] == [True]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "DELETE FROM _tenant_pipelines_ledger WHERE cycle = '1'",
            ["2 loads that the journal completed are not there", "older than the journal"],
        ),
        ("DROP TABLE _tenant_pipelines_ledger", ["5 loads that the journal completed"]),
        (
            "UPDATE _tenant_pipelines_ledger SET input_digest = 'x' WHERE generation = 2",
            ["tenant 'acme', step 'load', cycle '2', generation 2 loaded input x, the journal"],
        ),
        (
            _ADD_ROW,
            ["step 'load', cycle '3', generation 1 took effect, and the journal does not know it"],
        ),
    ],
)
def test_what_one_side_does_not_know_is_a_problem(
    fleet: Fleet, tmp_path: Path, change: str, says: list[str]
) -> None:
    """A restored backup of either side, or a hand in the ledger."""
    _sql(tmp_path / "warehouse.db", change)
    (problem,) = verify_shard(fleet, "a").problems
    assert [text for text in says if text not in problem] == []


def test_a_warehouse_that_cannot_be_read_is_named(fleet: Fleet, tmp_path: Path) -> None:
    """The journal is checked all the same."""
    for name in ("warehouse.db", "warehouse.db-wal", "warehouse.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (problem,) = verify_shard(fleet, "a").problems
    assert "5 loads" in problem
    (tmp_path / "warehouse.db").write_text("no database" * 100)
    verdict = verify_shard(fleet, "a")
    (problem,) = verdict.problems
    assert "not a database" in problem
    assert verdict.entries > 0


@pytest.mark.slow
def test_runs_and_prunes_beside_it_are_no_problem(fleet: Fleet) -> None:
    """A load that takes effect between the looks, and entries that go, are nobody's damage."""
    ends = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(12):
                run_shard(fleet, new_cycle=f"beside {number}")
                known, _ = known_cycles(fleet)
                old = old_cycles(known, keep=2, older_than=None, now=datetime.now(UTC))
                if number % 3 == 2:
                    prune_shard(fleet, "a", old, artifacts_only=False, dry_run=False)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
        finally:
            ends.set()

    thread = threading.Thread(target=work)
    thread.start()
    looks = 0
    while not ends.is_set():
        assert verify_shard(fleet, "a").problems == []
        looks += 1
    thread.join()
    assert failures == []
    assert looks > 3
