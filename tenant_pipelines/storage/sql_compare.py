"""Whether a warehouse table holds exactly the rows that a DataFrame would load. Writes nothing.

The expected rows go into a temporary table of the same columns, and the database compares: so a
value counts as equal when the table stores it as it stores the expected one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from tenant_pipelines.fleet.pipeline import Target
from tenant_pipelines.storage.engines import Place
from tenant_pipelines.storage.sql_tables import (
    check_table,
    checked_columns,
    prepared_columns,
    quoter,
)

_EXPECTED = "_tenant_pipelines_expected"
_MOST_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a tenant's rows differ from the expected ones; a changed row counts on both sides.

    Attributes:
        rows: rows that are expected.
        lacking: expected rows that the table does not have.
        unexpected: rows of the table that are not expected.
        examples: some of both, each with a key ``"side"``.
    """

    rows: int
    lacking: int = 0
    unexpected: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_none(self) -> bool:
        """Whether the table holds exactly the expected rows."""
        return not (self.lacking or self.unexpected)


def compare_rows(
    connection: sa.Connection, target: Target, *, tenant: str, value: Any
) -> Difference:
    """Compare a tenant's rows of a table with those that a load of ``value`` would leave.

    Args:
        connection: of the warehouse, in a transaction.
        target: the table.
        tenant: name of the tenant.
        value: DataFrame with all of the tenant's rows.

    Raises:
        WarehouseRefused: a load of ``value`` would be refused.
    """
    place = Place(target.table, tenant)
    columns = checked_columns(value, list(target.key), place)
    rows = len(value)
    if not sa.inspect(connection).has_table(target.table):
        return Difference(rows=rows, lacking=rows)
    quoted = quoter(connection)
    ours = f"FROM {quoted(target.table)} WHERE _tenant = ?"
    if not rows:
        (found,) = connection.exec_driver_sql(f"SELECT count(*) {ours}", (tenant,)).one()
        return Difference(rows=0, unexpected=found)
    check_table(connection, columns, list(target.key), place, is_empty=False)
    names = ", ".join(map(quoted, columns))
    connection.exec_driver_sql(f"DROP TABLE IF EXISTS temp.{_EXPECTED}")
    connection.exec_driver_sql(
        # no rows yet, but columns with the table's affinities, by which SQLite converts values
        f"CREATE TEMP TABLE {_EXPECTED} AS SELECT {names} FROM {quoted(target.table)} LIMIT 0"  # noqa: S608  (quoted)
    )
    _fill(connection, columns, place)
    expected = f"SELECT {names} FROM temp.{_EXPECTED}"  # noqa: S608  (quoted)
    stored = f"SELECT {names} {ours}"
    lacking = f"{expected} EXCEPT {stored}"
    unexpected = f"{stored} EXCEPT {expected}"
    found = {
        side: connection.exec_driver_sql(
            f"SELECT count(*) FROM ({query})",  # noqa: S608  (made above)
            (tenant,),
        ).scalar_one()
        for side, query in (("recomputed", lacking), ("warehouse", unexpected))
    }
    examples = [
        {"side": side, **dict(row)}
        for side, query in (("recomputed", lacking), ("warehouse", unexpected))
        if found[side]
        for row in connection.exec_driver_sql(
            f"{query} ORDER BY {', '.join(map(quoted, target.key))} LIMIT {_MOST_EXAMPLES}",
            (tenant,),
        ).mappings()
    ]
    connection.exec_driver_sql(f"DROP TABLE temp.{_EXPECTED}")
    return Difference(
        rows=rows,
        lacking=found["recomputed"],
        unexpected=found["warehouse"],
        examples=examples,
    )


def _fill(connection: sa.Connection, columns: Mapping[str, Any], place: Place) -> None:
    from tenant_pipelines.storage.sql_types import rows_of

    marks = ", ".join("?" * len(columns))
    for rows in rows_of(prepared_columns(columns, place), constants=()):
        connection.exec_driver_sql(
            f"INSERT INTO temp.{_EXPECTED} VALUES ({marks})",  # noqa: S608  (our names)
            rows,
        )
