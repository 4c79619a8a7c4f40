"""Verifying: the warehouse equals a recomputation, or every difference is found."""

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tenant_pipelines.engine.recompute import Recomputed, Verdict, recompute
from tenant_pipelines.errors import InvalidRequest
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.model import Fleet, Tenant
from tenant_pipelines.fleet.pipeline import Pipeline, step
from tenant_pipelines.storage.sql_source import sql_extract
from tenant_pipelines.storage.sql_warehouse import sql_load
from tenant_pipelines_tests.engine.fleets import make_fleet, run_shard

_SOURCE = """
CREATE TABLE orders (seq INTEGER PRIMARY KEY, who TEXT, day TEXT, amount REAL, note TEXT);
INSERT INTO orders (who, day, amount, note) VALUES ('acme', 'mon', 1.5, NULL),
  ('acme', 'tue', 2.5, 'x'), ('acme', 'tue', 0.1, 'y'), ('globex', 'mon', 7, NULL);
"""


@step
def per_day(ctx: StepContext, extract: pd.DataFrame) -> pd.DataFrame:
    groups = extract.groupby("day", as_index=False)
    return groups.agg(amount=("amount", "sum"), note=("note", "last"))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    _sql(tmp_path / "source.db", _SOURCE)
    steps = [
        sql_extract(
            source=f"sqlite:///{tmp_path}/source.db",
            table="orders",
            tenant_column="who",
            cursor_column="seq",
            whole=["day"],
        ),
        per_day,
        sql_load(table="daily", key=["day"], replaces=["day"], upstream="per_day"),
    ]
    return make_fleet(
        tmp_path,
        steps,
        {"a": ["acme", "globex", "new"]},
        warehouse=f"sqlite:///{tmp_path}/warehouse.db",
    )


def _sql(file: Path, script: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(script)


def _verify(fleet: Fleet, **options: Any) -> dict[str, Recomputed]:
    options = {"tenants": None, "environ": {}, **options}
    return {one.tenant: one for one in recompute(fleet, "a", **options)}


def test_what_increments_made_equals_a_recomputation(fleet: Fleet, tmp_path: Path) -> None:
    """Also while the source has rows that no cycle has read yet."""
    assert {one.verdict for one in _verify(fleet).values()} == {Verdict.NOT_LOADED}
    run_shard(fleet, tenants=["acme", "globex"])
    for number in range(2):
        insert = (
            "INSERT INTO orders (who, day, amount) VALUES ('acme', 'tue', 1), ('acme', 'wed', 2)"
        )
        _sql(tmp_path / "source.db", insert)
        found = _verify(fleet)
        assert {name: one.verdict for name, one in found.items()} == {
            "acme": Verdict.EQUAL,
            "globex": Verdict.EQUAL,
            "new": Verdict.NOT_LOADED,
        }
        run_shard(fleet, new_cycle=f"next {number}", tenants=["acme", "globex"])
    found = _verify(fleet, tenants=["acme"])
    assert list(found) == ["acme"]
    assert (found["acme"].verdict, found["acme"].cursor) == (Verdict.EQUAL, 8)
    assert found["acme"].difference is not None
    assert found["acme"].difference.rows == 3


@pytest.mark.parametrize(
    ("change", "lacking", "unexpected"),
    [
        ("DELETE FROM daily WHERE day = 'mon' AND _tenant = 'acme'", 1, 0),
        ("UPDATE daily SET amount = 2.6000000000000001 WHERE day = 'tue'", 0, 0),
        ("UPDATE daily SET amount = 2.6000000000000005 WHERE day = 'tue'", 1, 1),
        ("UPDATE daily SET note = '' WHERE note IS NULL", 1, 1),
        ("INSERT INTO daily VALUES ('acme', '1', 'sun', 1, NULL)", 0, 1),
        ("DELETE FROM daily; DELETE FROM _tenant_pipelines_ledger", 0, 0),
        ("DELETE FROM _tenant_pipelines_ledger", 0, 2),
        ("DROP TABLE daily", 2, 0),
    ],
)
def test_every_difference_is_found(
    fleet: Fleet, tmp_path: Path, change: str, lacking: int, unexpected: int
) -> None:
    """Rows that are gone, changed in their last bit, or nobody loaded; the file stays as it is."""
    run_shard(fleet)
    _sql(tmp_path / "warehouse.db", change)
    with sqlite3.connect(tmp_path / "warehouse.db") as connection:
        before = list(connection.iterdump())
        one = _verify(fleet)["acme"]
        assert list(connection.iterdump()) == before
    assert one.difference is not None
    assert (one.difference.lacking, one.difference.unexpected) == (lacking, unexpected)
    assert (one.verdict is Verdict.DIFFERS) == bool(lacking or unexpected)
    sides = [example["side"] for example in one.difference.examples]
    if "daily" in change and "DROP" not in change:
        assert sides == ["recomputed"] * lacking + ["warehouse"] * unexpected


def test_a_tenant_that_cannot_be_recomputed_says_why(tmp_path: Path) -> None:
    """Its own error only: a setting that is unset, a source that is gone; no secret is shown."""
    _sql(tmp_path / "acme.db", _SOURCE)
    read = sql_extract(
        source=lambda ctx: f"sqlite:///{tmp_path}/{ctx.settings['db']}",
        table="orders",
        tenant_column="who",
        cursor_column="seq",
    )
    steps = [read, sql_load(table="t", key=["seq"], upstream="extract")]
    tenants = [Tenant(name=name, settings={"db": "${DB}"}) for name in ("acme", "globex")]
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    fleet = make_fleet(tmp_path, steps, {"a": tenants}, warehouse=warehouse)
    environ = {"DB": "acme.db"}
    run_shard(fleet, environ=environ)
    assert {one.verdict for one in _verify(fleet, environ=environ).values()} == {Verdict.EQUAL}
    unset = _verify(fleet)["acme"]
    assert (unset.verdict, unset.difference) == (Verdict.FAILED, None)
    assert "environment variable DB" in unset.error["message"]
    (tmp_path / "acme.db").unlink()
    gone = _verify(fleet, environ=environ)["globex"]
    assert gone.verdict is Verdict.FAILED
    assert "no file" in gone.error["message"]
    assert "acme.db" not in str(gone.error)


def test_a_pipeline_without_a_load_has_nothing_to_compare(tmp_path: Path) -> None:
    """Said before anything runs."""

    @step
    def extract(ctx: StepContext) -> int:
        raise AssertionError

    with pytest.raises(InvalidRequest, match="without a sql_load"):
        _verify(make_fleet(tmp_path, [extract], {"a": ["acme"]}))


def test_steps_see_their_inputs_digests_and_loads_do_not_run_again(tmp_path: Path) -> None:
    """A load above another one has an effect; what it returned is known from the ledger."""
    seen: list[str] = []

    @step
    def extract(ctx: StepContext) -> pd.DataFrame:
        return pd.DataFrame({"day": ["mon"], "n": [1]})

    @step
    def count(ctx: StepContext, load: dict[str, Any]) -> pd.DataFrame:
        seen.append(ctx.inputs["load"])
        return pd.DataFrame({"table": [load["table"]], "rows": [load["rows"]]})

    steps = [
        extract,
        sql_load(table="daily", key=["day"], upstream="extract"),
        count,
        sql_load(table="counts", key=["table"], upstream="count", name="load_counts"),
    ]
    warehouse = f"sqlite:///{tmp_path}/warehouse.db"
    fleet = make_fleet(tmp_path, steps, {"a": ["acme"]}, warehouse=warehouse)
    run_shard(fleet)
    found = list(recompute(fleet, "a", tenants=None, environ={}))
    assert [(one.step, one.verdict) for one in found] == [
        ("load", Verdict.EQUAL),
        ("load_counts", Verdict.EQUAL),
    ]
    assert len(set(seen)) == 1


def test_a_step_that_ends_the_process_fails_its_tenant(fleet: Fleet, tmp_path: Path) -> None:
    """``sys.exit(0)`` in a step must not end a proof as if all was well."""

    @step
    def per_day(ctx: StepContext, extract: pd.DataFrame) -> pd.DataFrame:
        raise SystemExit(0)

    run_shard(fleet, tenants=["acme"])
    read, _, load = fleet.pipeline.steps
    leaving = replace(fleet, pipeline=Pipeline([read, per_day, load]))
    one = _verify(leaving)["acme"]
    assert (one.verdict, one.error["type"]) == (Verdict.FAILED, "SystemExit")
