"""The table behind a load: which DataFrames it takes, how it is made, and when it fits.

``_tenant`` and ``_cycle`` are ours and say whose row it is and which cycle wrote it last.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tenant_pipelines.fleet.pipeline import Target
from tenant_pipelines.storage.engines import Place

if TYPE_CHECKING:
    import pyarrow as pa

OWN = ("_tenant", "_cycle")


def checked_columns(value: Any, keys: list[str], place: Place) -> "dict[str, pa.ChunkedArray[Any]]":
    """Return the columns of a DataFrame that can be loaded, NaN as null."""
    import pandas as pd

    from tenant_pipelines.storage.frame import UnstorableFrame, to_table
    from tenant_pipelines.storage.sql_types import family_of_arrow, without_nan

    if not isinstance(value, pd.DataFrame):
        raise place.refused(
            found=f"a {type(value).__name__}", wanted="a DataFrame", fix="Return one upstream."
        )
    try:
        data = to_table(value.reset_index(drop=True))
    except UnstorableFrame as error:
        raise place.refused(
            found=error.facts["found"], wanted=error.facts["wanted"], fix="Convert it upstream."
        ) from error
    columns = {
        name: without_nan(column)
        for name, column in zip(data.column_names, data.columns, strict=True)
    }
    if not len(value):
        return columns
    folded = {name.casefold() for name in columns}
    for name, column in columns.items():
        if not name or "\0" in name or name.casefold() in OWN or len(folded) < len(columns):
            raise place.refused(
                found=f"the columns {list(columns)}",
                wanted="names that differ in more than case, none of them _tenant, _cycle or empty",
                fix="Rename columns upstream.",
            )
        if family_of_arrow(column.type) is None:
            raise place.refused(
                found=f"column {name!r} of type {column.type}",
                wanted="numbers, booleans, strings, bytes, dates or times",
                fix="Convert it upstream, for example to a string.",
            )
    for name in keys:
        if name not in columns:
            is_level = name in value.index.names
            raise place.refused(
                found=f"no column {name!r} in the data{', but an index level' * is_level}",
                wanted=f"the key columns {keys}",
                fix="Call reset_index() upstream." if is_level else "Return it upstream.",
            )
        if columns[name].null_count:
            raise place.refused(
                found=f"{columns[name].null_count} rows without a value in key column {name!r}",
                wanted="a value in every key column",
                fix="Fill or drop these rows upstream.",
            )
    twice = value.duplicated(keys)
    if twice.any():
        example = value.loc[twice.to_numpy(), keys].iloc[0].to_dict()
        raise place.refused(
            found=f"{int(twice.sum())} rows with a key that came before, such as {example}",
            wanted=f"each {keys} once in a load",
            fix="Aggregate or drop duplicates upstream.",
        )
    return columns


def create_table(
    connection: sa.Connection, columns: Mapping[str, Any], target: Target, place: Place
) -> None:
    """Make the table that a load's columns need; refuse a column whose type nothing tells."""
    from tenant_pipelines.storage.sql_types import family_of_arrow, sql_type

    made = []
    for name, column in columns.items():
        family = family_of_arrow(column.type)
        if family is None or family == "nothing":
            raise place.refused(
                found=f"column {name!r} without any value or type",
                wanted="a typed column when the table is made",
                fix='Give it a dtype upstream, for example astype("str") or astype("Int64").',
            )
        made.append(sa.Column(name, sql_type(family), primary_key=name in target.key))
    sa.Table(
        place.table,
        sa.MetaData(),
        sa.Column("_tenant", sa.Text, nullable=False),
        sa.Column("_cycle", sa.Text, nullable=False),
        *(sa.Column(column.name, column.type, nullable=not column.primary_key) for column in made),
        # the groups first, so that replacing one reads no other
        sa.PrimaryKeyConstraint("_tenant", *dict.fromkeys([*(target.replaces or ()), *target.key])),
        # the rows of one tenant lie side by side: replacing a generation reads nobody else's
        sqlite_with_rowid=False,
    ).create(connection)


def check_table(
    connection: sa.Connection,
    columns: Mapping[str, Any],
    keys: list[str],
    place: Place,
    *,
    is_empty: bool,
) -> None:
    """Refuse an existing table that this load cannot merge into."""
    from tenant_pipelines.storage.sql_types import family_of_arrow, family_of_sql, fits

    inspector = sa.inspect(connection)
    existing = {column["name"]: column["type"] for column in inspector.get_columns(place.table)}
    primary = inspector.get_pk_constraint(place.table)["constrained_columns"]
    wanted = {*OWN, *columns} if not is_empty else set(OWN)
    another = "Load into another table; this one is not of this step's making."
    for name in sorted(wanted - set(existing)):
        raise place.refused(
            found=f"no column {name!r} in the table",
            wanted=f"the columns {sorted(wanted)}",
            fix=another
            if name in OWN
            else _how_to_add(connection, place.table, columns[name], name),
        )
    if set(primary) != {"_tenant", *keys}:
        raise place.refused(
            found=f"the primary key {primary}", wanted=f"{['_tenant', *keys]}", fix=another
        )
    for name in OWN:
        if family_of_sql(existing[name]) != "text":
            raise place.refused(
                found=f"the column {name!r} of type {existing[name]}", wanted="text", fix=another
            )
    for name, collation in _key_collations(connection, place.table):
        if collation != "BINARY":
            # two tenants, or two keys of one, would be one row
            raise place.refused(
                found=f"the key column {name!r} with the collation {collation}",
                wanted="a key that tells apart whatever differs (BINARY)",
                fix=another,
            )
    if is_empty:
        return
    for name in sorted(set(existing) - wanted):
        raise place.refused(
            found=f"the column {name!r} in the table, which the data lacks",
            wanted=f"the columns {sorted(wanted)}",
            fix="Return it upstream, None for no value, or drop it from the table.",
        )
    for name, column in columns.items():
        if not fits(column, into=family_of_sql(existing[name])):
            raise place.refused(
                found=f"column {name!r} of type {existing[name]} in the table",
                wanted=f"one that holds {family_of_arrow(column.type)} ({column.type})",
                fix="Convert it upstream, or load it into a new column of another name.",
            )


def _key_collations(connection: sa.Connection, table: str) -> list[tuple[str, str]]:
    """Return the collation of each column of a table's primary key."""
    if connection.dialect.name != "sqlite":
        return []
    return [
        (str(name), str(collation))
        for name, collation in connection.exec_driver_sql(
            # https://www.sqlite.org/pragma.html#pragma_index_xinfo
            "SELECT part.name, part.coll FROM pragma_index_list(?) AS i, "
            "pragma_index_xinfo(i.name) AS part WHERE i.origin = 'pk' AND part.key = 1",
            (table,),
        )
    ]


def _how_to_add(connection: sa.Connection, table: str, column: Any, name: str) -> str:
    from tenant_pipelines.storage.sql_types import family_of_arrow, sql_type

    family = family_of_arrow(column.type) or "nothing"
    quoted = quoter(connection)
    type_ = "TEXT" if family == "nothing" else sql_type(family).compile(connection.dialect)
    return (
        f"Leave it out upstream, or add it to the warehouse, where older rows then have no value: "
        f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {type_}."
    )


def prepared_columns(columns: Mapping[str, Any], place: Place) -> list[Any]:
    """Return the columns' values as SQL holds them."""
    import pyarrow as pa

    from tenant_pipelines.storage.sql_types import storable

    prepared = []
    for name, column in columns.items():
        try:
            prepared.append(storable(column))
        except pa.ArrowInvalid as error:
            raise place.refused(
                found=f"a value in column {name!r} that SQL cannot hold exactly ({error})",
                wanted="integers of 64 bit with sign, times in whole microseconds, years 1 to 9999",
                fix="Convert the column upstream.",
            ) from error
    return prepared


def quoter(connection: sa.Connection) -> Callable[[str], str]:
    """Return the function that writes a name as the database wants it."""
    return connection.dialect.identifier_preparer.quote_identifier
