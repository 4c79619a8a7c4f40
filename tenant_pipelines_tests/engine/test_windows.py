"""Incremental extracts over several cycles: whoever failed meanwhile misses nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd

from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.pipeline import step
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
