"""``verify`` and ``prune`` as people and scripts see them: text, JSON and exit codes."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from tenant_pipelines import Pipeline, StepContext, sql_load, step
from tenant_pipelines.cli.main import app
from tenant_pipelines.engine.leases import TenantLeases
from tenant_pipelines.fleet.file import load_fleet
from tenant_pipelines.fleet.model import Fleet
from tenant_pipelines_tests.engine.fleets import run_shard

_Call = Callable[..., Result]


@step
def transform(ctx: StepContext) -> pd.DataFrame:
    print("a step prints")
    return pd.DataFrame({"day": ["mon", "tue"], "n": [1.0, float("inf")], "raw": [b"a", b"b"]})


pipeline = Pipeline([transform, sql_load(table="daily", key=["day"])])


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Return a fleet of two shards that ran three cycles."""
    (tmp_path / "fleet.yaml").write_text(
        f"name: data\npipeline: {__name__}:pipeline\nwarehouse: sqlite:///w.db\n"
        "shards: {a: {tenants: [acme, globex]}, b: {tenants: [hooli]}}\n"
    )
    monkeypatch.setenv("TENANT_PIPELINES_STATE", str(tmp_path))
    monkeypatch.delenv("TENANT_PIPELINES_FLEET", raising=False)
    monkeypatch.chdir(tmp_path)
    fleet = load_fleet(tmp_path / "fleet.yaml")
    for cycle in (None, "2", "3"):
        for shard in fleet.shards:
            run_shard(fleet, shard, new_cycle=cycle if shard == "a" else None)
    return fleet


@pytest.fixture
def call(fleet: Fleet) -> _Call:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)

    return run


def _sql(folder: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "w.db")) as connection, connection:
        connection.execute(statement)


def _document(ended: Result) -> Any:
    return json.loads(ended.stdout, parse_constant=lambda name: pytest.fail(name))


def test_a_warehouse_that_is_right_is_told_in_a_line_a_shard(call: _Call) -> None:
    """What steps print is not in it."""
    ended = call("verify")
    assert (ended.exit_code, ended.stdout) == (
        0,
        "a: 4 rows recomputed; loads: 2 equal\nb: 2 rows recomputed; loads: 1 equal\n",
    )
    one = _document(call("verify", "--tenant", "hooli", "--json"))["loads"]
    assert [(load["tenant"], load["verdict"], load["rows"]) for load in one] == [
        ("hooli", "equal", 2)
    ]


def test_a_difference_is_told_with_examples(call: _Call, tmp_path: Path) -> None:
    """Exit 1; the JSON is JSON whatever the values are."""
    _sql(tmp_path, "DELETE FROM daily WHERE day = 'tue' AND _tenant = 'acme'")
    ended = call("verify", "--shard", "a")
    assert ended.exit_code == 1
    assert "a acme load: table 'daily' lacks 1 of the 2 rows" in ended.stdout
    assert "'day': 'tue'" in ended.stdout
    assert "loads: 1 equal, 1 differs" in ended.stdout
    loads = _document(call("verify", "--json"))["loads"]
    (wrong,) = [load for load in loads if load["verdict"] == "differs"]
    assert (wrong["lacking"], wrong["unexpected"]) == (1, 0)
    assert wrong["examples"] == [{"side": "recomputed", "day": "tue", "n": "inf", "raw": "62"}]


def test_a_warehouse_that_is_gone_proves_nothing(call: _Call, tmp_path: Path) -> None:
    """Exit 1: what was never loaded is not what a computation from scratch gives."""
    for path in tmp_path.glob("w.db*"):
        path.unlink()
    ended = call("verify")
    assert ended.exit_code == 1
    assert "b hooli load: the warehouse's ledger knows no load of it" in ended.stdout
    assert "loads: 2 not_loaded" in ended.stdout


def test_prune_counts_then_deletes_then_finds_nothing(call: _Call) -> None:
    """A dry run says what a run then does."""
    would = call("prune", "--keep-cycles", "1", "--dry-run")
    did = call("prune", "--keep-cycles", "1")
    assert (would.exit_code, did.exit_code) == (0, 0)
    assert would.stdout.replace("would go", "deleted") == did.stdout
    assert "a: 16 entries, 4 artifacts (0.0 MB), 4 ledger rows deleted" in did.stdout
    again = _document(call("prune", "--keep-cycles", "1", "--json"))
    assert [shard["entries"] for shard in again["shards"]] == [0, 0]
    assert again["cycles"] == ["1", "2"]
    assert call("journal", "verify").exit_code == 0
    assert "no cycle is old enough" in call("prune").stdout


def test_prune_says_what_it_left(call: _Call, fleet: Fleet, tmp_path: Path) -> None:
    """A tenant at work, a warehouse that cannot be read, a damaged journal: exit 1 each."""
    leases = TenantLeases(fleet.shard_state("a") / "locks")
    assert leases.try_take("acme")
    busy = call("prune", "--keep-cycles", "1", "--shard", "a")
    assert busy.exit_code == 1
    assert "left alone, a run works on them: acme" in busy.stdout
    leases.close()
    for path in tmp_path.glob("w.db*"):
        path.unlink()
    (tmp_path / "w.db").write_text("no database" * 500)
    before = fleet.journal_path("b").stat().st_size, _entries(call, "b")
    broken = call("prune", "--keep-cycles", "1")
    assert broken.exit_code == 1
    assert broken.stdout.count("not pruned to the end") == 2
    assert (fleet.journal_path("b").stat().st_size, _entries(call, "b")) == before
    fleet.journal_path("a").write_text("no journal")
    damaged = call("prune", "--keep-cycles", "1", "--json")
    assert damaged.exit_code == 1
    assert [("error" in shard) for shard in _document(damaged)["shards"]] == [True, True]


def _entries(call: _Call, shard: str) -> int:
    return len(_document(call("journal", "show", "--shard", shard, "--json"))["entries"])


@pytest.mark.parametrize("age", ["soon", "-3d", "3 d", "3w"])
def test_an_age_that_is_none_is_refused(fleet: Fleet, age: str) -> None:
    """Before anything is deleted."""
    ended = CliRunner().invoke(app, ["prune", f"--older-than={age}"])
    assert ended.exit_code == 1
    assert "--older-than: found" in str(ended.exception)
