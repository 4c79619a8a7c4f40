"""The ledger: which loads took effect, written in the transaction of their data.

A row that is there says that its load happened, whatever the journal knows; a row that is not says
that nothing of it did. Runs never change a row. Reading creates neither file nor table.
"""

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tenant_pipelines.fleet.context import Cursor
from tenant_pipelines.storage.engines import Place, reading, writing

TABLE = "_tenant_pipelines_ledger"
_table = sa.Table(
    TABLE,
    sa.MetaData(),
    # tells the newest row; AUTOINCREMENT never gives an id twice
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("fleet", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("cycle", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("input_digest", sa.Text, nullable=False),
    sa.Column("cursor", sa.Text, nullable=False),
    sa.Column("output", sa.Text, nullable=False),
    sa.Column("at", sa.Text, nullable=False),
    sa.UniqueConstraint("fleet", "cycle", "tenant", "step", "generation"),
    sa.Index(f"{TABLE}_by_tenant", "fleet", "tenant", "id"),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """One load that took effect.

    Attributes:
        fleet: name of the fleet.
        tenant: whose rows were loaded.
        step: name of the load step.
        cycle: name of the cycle.
        generation: which asked-for run of the cell.
        input_digest: content digest of what was loaded.
        cursor: newest cursor value that the warehouse holds; None when there is none.
        output: what the step returned.
        at: when the transaction was written, ISO 8601, UTC.
    """

    fleet: str
    tenant: str
    step: str
    cycle: str
    generation: int
    input_digest: str
    cursor: Cursor | None
    output: Any
    at: str


class Ledger:
    """The ledger of one fleet in its warehouse.

    A crash leaves either no row and none of its data, or both.
    """

    def __init__(self, warehouse_url: str, fleet: str) -> None:
        self._url = warehouse_url
        self._fleet = fleet
        self._place = Place(TABLE, "(every tenant)")

    def settled(self, *, tenant: str, cycle: str) -> list[LedgerRow]:
        """Return one tenant's rows of a cycle, oldest first; empty without file or table."""
        return self._read(_table.c.cycle == cycle, _table.c.tenant == tenant)

    def settled_in(self, cycle: str) -> dict[str, list[LedgerRow]]:
        """Return all rows of a cycle by tenant, oldest first, with one query."""
        found: dict[str, list[LedgerRow]] = {}
        for row in self._read(_table.c.cycle == cycle):
            found.setdefault(row.tenant, []).append(row)
        return found

    def cursors(self, tenant: str, tables: Mapping[str, str]) -> list[Cursor | None]:
        """Return the cursor up to which each load's table has the tenant's rows, None for no load.

        Args:
            tenant: name of the tenant.
            tables: each load step's table.
        """
        with reading(self._url, self._place) as connection:
            if connection is None:
                return [None for _ in tables]
            newest = (
                self.newest_in(connection, tenant=tenant, step=step, table=table)
                for step, table in tables.items()
            )
            return [None if row is None else row.cursor for row in newest]

    def newest_in(
        self, connection: sa.Connection, *, tenant: str, step: str, table: str
    ) -> LedgerRow | None:
        """Return the newest row of a load into a table, as an open transaction sees it.

        What the step loaded into another table does not count.
        """
        if not sa.inspect(connection).has_table(TABLE):
            return None
        rows = self._newest_first(connection, _table.c.tenant == tenant, _table.c.step == step)
        return next((row for row in rows if row.output.get("table") == table), None)

    def newest(self, tenant: str) -> LedgerRow | None:
        """Return the tenant's newest row of any step and cycle."""
        with reading(self._url, self._place) as connection:
            if connection is None or not sa.inspect(connection).has_table(TABLE):
                return None
            return next(self._newest_first(connection, _table.c.tenant == tenant), None)

    def other_fleet_of(self, connection: sa.Connection, table: str) -> str | None:
        """Return another fleet that loaded into a table, after ``settled_by``; None without one."""
        query = sa.select(_table.c.fleet, _table.c.output).where(_table.c.fleet != self._fleet)
        for fleet, output in connection.execute(query):
            if json.loads(output).get("table", "").casefold() == table.casefold():
                return str(fleet)
        return None

    def has_loaded(self, connection: sa.Connection, *, step: str, table: str) -> bool:
        """Tell whether a cursor counts on rows of any tenant in a table, after ``settled_by``."""
        query = sa.select(_table.c.output).where(
            _table.c.fleet == self._fleet, _table.c.step == step, _table.c.cursor != "null"
        )
        outputs = (json.loads(text) for text in connection.scalars(query))
        return any(output.get("table") == table and output.get("rows") for output in outputs)

    def of_tenant(self, tenant: str) -> list[LedgerRow]:
        """Return one tenant's rows of every cycle, oldest first; empty without file or table."""
        return self._read(_table.c.tenant == tenant)

    def prune(self, tenant: str, cycles: Collection[str], *, dry_run: bool = False) -> int:
        """Delete a tenant's rows of some cycles, but no step's newest, nor its newest with rows.

        Call it while the tenant's lease is held.

        Args:
            tenant: name of the tenant.
            cycles: names of the cycles.
            dry_run: only count.

        Returns:
            How many rows.
        """
        rows = self.of_tenant(tenant)
        # the newest with rows tells that its table must be there
        newest = {(row.step, False): row for row in rows}
        newest |= {(row.step, True): row for row in rows if row.output.get("rows")}
        kept = [id(row) for row in newest.values()]
        old = [row for row in rows if row.cycle in cycles and id(row) not in kept]
        if old and not dry_run:
            with writing(self._url, self._place) as connection:
                for row in old:
                    connection.execute(
                        sa.delete(_table).where(
                            _table.c.fleet == self._fleet,
                            _table.c.tenant == tenant,
                            _table.c.step == row.step,
                            _table.c.cycle == row.cycle,
                            _table.c.generation == row.generation,
                        )
                    )
        return len(old)

    def settled_by(
        self, connection: sa.Connection, *, tenant: str, step: str, cycle: str
    ) -> list[LedgerRow]:
        """Return one cell's rows, oldest first, making the table when it is missing.

        Args:
            connection: the load's transaction.
            tenant: whose load it is.
            step: name of the load step.
            cycle: name of the cycle.
        """
        _table.create(connection, checkfirst=True)
        return self._select(
            connection, _table.c.cycle == cycle, _table.c.tenant == tenant, _table.c.step == step
        )

    def record(self, connection: sa.Connection, row: LedgerRow) -> None:
        """Write a row in the load's transaction, after ``settled_by`` in the same one.

        Raises:
            sqlalchemy.exc.IntegrityError: this generation is recorded already.
        """
        connection.execute(
            _table.insert(),
            {
                "fleet": self._fleet,
                "tenant": row.tenant,
                "step": row.step,
                "cycle": row.cycle,
                "generation": row.generation,
                "input_digest": row.input_digest,
                "cursor": json.dumps(row.cursor),
                "output": json.dumps(row.output),
                "at": row.at,
            },
        )

    def _read(self, *conditions: sa.ColumnElement[bool]) -> list[LedgerRow]:
        with reading(self._url, self._place) as connection:
            if connection is None or not sa.inspect(connection).has_table(TABLE):
                return []
            return self._select(connection, *conditions)

    def _newest_first(
        self, connection: sa.Connection, *conditions: sa.ColumnElement[bool]
    ) -> Iterator[LedgerRow]:
        query = sa.select(_table).where(_table.c.fleet == self._fleet, *conditions)
        with contextlib.closing(connection.execute(query.order_by(_table.c.id.desc()))) as rows:
            for row in rows.mappings():
                yield _to_row(row)

    def _select(
        self, connection: sa.Connection, *conditions: sa.ColumnElement[bool]
    ) -> list[LedgerRow]:
        query = sa.select(_table).where(_table.c.fleet == self._fleet, *conditions)
        rows = connection.execute(query.order_by(_table.c.id)).mappings()
        return [_to_row(row) for row in rows]


def _to_row(row: Mapping[Any, Any]) -> LedgerRow:
    return LedgerRow(
        fleet=row["fleet"],
        tenant=row["tenant"],
        step=row["step"],
        cycle=row["cycle"],
        generation=row["generation"],
        input_digest=row["input_digest"],
        cursor=json.loads(row["cursor"]),
        output=json.loads(row["output"]),
        at=row["at"],
    )
