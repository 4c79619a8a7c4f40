"""A step that loads a DataFrame into a warehouse table, exactly once per generation.

Data, ledger row and cursor are written in one transaction, so a crash at any instant leaves all of
them or none. The table belongs to this one step: ``_tenant`` and ``_cycle`` say whose row it is and
which cycle wrote it last. A later generation of a cycle replaces the rows of that cycle; values it
had overwritten from older cycles are not restored. The table is never altered: a load whose columns
differ is refused, apart from the conversions that ``sql_types`` names.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tenant_pipelines.errors import InvalidPipeline, LedgerDisagrees, WarehouseRefused
from tenant_pipelines.fleet.context import StepContext
from tenant_pipelines.fleet.pipeline import Retries, Step, Target, make_step
from tenant_pipelines.storage.engines import Place, shown, writing
from tenant_pipelines.storage.ledger import TABLE as LEDGER_TABLE
from tenant_pipelines.storage.ledger import Ledger, LedgerRow

if TYPE_CHECKING:
    import pyarrow as pa

_OWN = ("_tenant", "_cycle")


def sql_load(
    *,
    table: str,
    key: Sequence[str],
    replaces: Sequence[str] | None = None,
    name: str = "load",
    upstream: str = "transform",
    code_version: str | None = None,
    retries: Retries = Retries(),
) -> Step:
    """Make a step that merges its input into a table of the fleet's warehouse.

    Args:
        table: made when missing, with ``_tenant``, ``_cycle`` and the DataFrame's columns.
        key: columns that identify a row within a tenant; a row with a known key replaces it.
        replaces: columns of the key that make a group, such as ``["day"]``: every group with a row
            in the input is replaced whole, so that rows which its newest state lacks are gone;
            ``[]`` replaces all of the tenant's rows. Groups without a row in the input stay.
        name: of the step.
        upstream: the step whose DataFrame is loaded; its index is not.
        code_version: see Step.
        retries: see Step.

    Returns:
        A step that returns ``{"table": …, "rows": …}`` and raises WarehouseRefused for data or a
        table that do not fit, with nothing written.

    Raises:
        InvalidPipeline: the table's name, the key or the group cannot be used.
    """
    keys = [key] if isinstance(key, str) else list(key)
    if isinstance(key, str) or not keys or len(set(keys)) < len(keys) or set(keys) & set(_OWN):
        raise InvalidPipeline(
            place=f"sql_load(table={table!r})",
            found=f"key={key!r}",
            wanted="a list of the columns that identify a row, each once, without _tenant",
            fix=f'Write key=["{keys[0] if keys else "id"}"].',
        )
    if not table or "\0" in table or table.casefold() == LEDGER_TABLE:
        raise InvalidPipeline(
            place="sql_load",
            found=f"table={table!r}",
            wanted="a table of its own for the step",
            fix="Choose another name.",
        )

    groups = None if replaces is None else tuple(replaces)
    if groups is not None and (isinstance(replaces, str) or not set(groups) <= set(keys)):
        raise InvalidPipeline(
            place=f"sql_load(table={table!r})",
            found=f"replaces={replaces!r}",
            wanted=f"a list of columns of the key {keys}",
            fix=f'Write replaces=["{keys[0]}"], or replaces=[] for all of the tenant\'s rows.',
        )
    target = Target(table=table, key=tuple(keys), replaces=groups)

    def load(ctx: StepContext, /, **inputs: Any) -> dict[str, Any]:
        return _load(ctx, target, upstream=upstream, value=inputs[upstream])

    return make_step(
        load,
        name=name,
        code_version=code_version,
        retries=retries,
        target=target,
        upstream=(upstream,),
    )


def _load(ctx: StepContext, target: Target, *, upstream: str, value: Any) -> dict[str, Any]:
    table, keys = target.table, list(target.key)
    place = Place(table, ctx.tenant)
    if ctx.warehouse is None:
        raise place.refused(
            found="a fleet without a warehouse",
            wanted="warehouse: in the fleet file",
            fix="Write warehouse: sqlite:///{state}/warehouse.db there.",
        )
    columns = _checked(value, keys, place)
    rows = len(value)
    prepared = _prepared(columns, place) if rows else []
    ledger = Ledger(ctx.warehouse, ctx.fleet)
    with writing(ctx.warehouse, place) as connection:
        settled = ledger.settled_by(connection, tenant=ctx.tenant, step=ctx.step, cycle=ctx.cycle)
        effect = _effect_of(ctx, settled, ctx.inputs[upstream])
        if effect is not None:
            return effect
        exists = sa.inspect(connection).has_table(table)
        if exists:
            _check_table(connection, columns, keys, place, is_empty=rows == 0)
        elif rows:
            if ledger.has_loaded(connection, step=ctx.step, table=table):
                raise _table_is_gone(ctx, place)
            _create_table(connection, columns, target, place)
        if exists:
            _delete_replaced(connection, ctx, target, dict(zip(columns, prepared, strict=False)))
        if rows:
            _upsert(connection, ctx, prepared, names=list(columns), keys=keys, table=table)
        output = {"table": table, "rows": rows}
        cursor = ctx.window.to
        if cursor is None:
            cursor = ledger.cursor_in(connection, ctx.tenant, ctx.step)
        ledger.record(
            connection,
            LedgerRow(
                fleet=ctx.fleet,
                tenant=ctx.tenant,
                step=ctx.step,
                cycle=ctx.cycle,
                generation=ctx.generation,
                input_digest=ctx.inputs[upstream],
                cursor=cursor,
                output=output,
                at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            ),
        )
    return output


def _table_is_gone(ctx: StepContext, place: Place) -> WarehouseRefused:
    return place.refused(
        found="no such table in the warehouse, although its ledger says that rows were loaded",
        wanted="the table with all rows up to the tenants' cursors: this load has only what is new",
        fix="Restore the table. Or, to load everything again, delete the step's rows from the "
        f"ledger ({LEDGER_TABLE}, fleet {ctx.fleet!r}, step {ctx.step!r}), then run --new-cycle.",
    )


def _delete_replaced(
    connection: sa.Connection, ctx: StepContext, target: Target, prepared: Mapping[str, Any]
) -> None:
    """Delete what this load replaces: an earlier generation's rows, and the groups it touches."""
    quoted = _quoter(connection)
    delete = f"DELETE FROM {quoted(target.table)} WHERE _tenant = ?"  # noqa: S608  (quoted)
    if ctx.generation > 1:
        connection.exec_driver_sql(f"{delete} AND _cycle = ?", (ctx.tenant, ctx.cycle))
    if target.replaces == ():
        connection.exec_driver_sql(delete, (ctx.tenant,))
    elif target.replaces and prepared:
        from tenant_pipelines.storage.sql_types import distinct_rows

        matches = "".join(f" AND {quoted(name)} = ?" for name in target.replaces)
        columns = [prepared[name] for name in target.replaces]
        for rows in distinct_rows(columns, constants=(ctx.tenant,)):
            connection.exec_driver_sql(delete + matches, rows)


def _effect_of(
    ctx: StepContext, settled: list[LedgerRow], input_digest: str
) -> dict[str, Any] | None:
    """Return the output of this generation if it took effect already, None if it did not."""
    found = None
    for row in settled:
        if row.generation > ctx.generation:
            found = f"generation {row.generation}, newer than the one that loads now,"
        elif row.generation == ctx.generation and row.input_digest != input_digest:
            found = f"a load of input {row.input_digest}, not of {input_digest},"
    if found is not None:
        raise LedgerDisagrees(
            warehouse=shown(ctx.warehouse or ""),
            shard=ctx.shard,
            tenant=ctx.tenant,
            step=ctx.step,
            cycle=ctx.cycle,
            generation=ctx.generation,
            found=found,
        )
    same = [row.output for row in settled if row.generation == ctx.generation]
    return same[0] if same else None


def _checked(value: Any, keys: list[str], place: Place) -> "dict[str, pa.ChunkedArray[Any]]":
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
        if not name or "\0" in name or name.casefold() in _OWN or len(folded) < len(columns):
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


def _create_table(
    connection: sa.Connection, columns: Mapping[str, Any], target: Target, place: Place
) -> None:
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


def _check_table(
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
    wanted = {*_OWN, *columns} if not is_empty else set(_OWN)
    another = "Load into another table; this one is not of this step's making."
    for name in sorted(wanted - set(existing)):
        raise place.refused(
            found=f"no column {name!r} in the table",
            wanted=f"the columns {sorted(wanted)}",
            fix=another
            if name in _OWN
            else _how_to_add(connection, place.table, columns[name], name),
        )
    if set(primary) != {"_tenant", *keys}:
        raise place.refused(
            found=f"the primary key {primary}", wanted=f"{['_tenant', *keys]}", fix=another
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


def _how_to_add(connection: sa.Connection, table: str, column: Any, name: str) -> str:
    from tenant_pipelines.storage.sql_types import family_of_arrow, sql_type

    family = family_of_arrow(column.type) or "nothing"
    quoted = _quoter(connection)
    type_ = "TEXT" if family == "nothing" else sql_type(family).compile(connection.dialect)
    return (
        f"Leave it out upstream, or add it to the warehouse, where older rows then have no value: "
        f"ALTER TABLE {quoted(table)} ADD COLUMN {quoted(name)} {type_}."
    )


def _prepared(columns: Mapping[str, Any], place: Place) -> list[Any]:
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
                wanted="integers of 64 bit with sign, times in whole microseconds",
                fix="Convert the column upstream.",
            ) from error
    return prepared


def _upsert(
    connection: sa.Connection,
    ctx: StepContext,
    prepared: list[Any],
    *,
    names: list[str],
    keys: list[str],
    table: str,
) -> None:
    from tenant_pipelines.storage.sql_types import rows_of

    quoted = _quoter(connection)
    names = [*_OWN, *names]
    unique = ["_tenant", *keys]
    changed = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in unique]
    statement = (
        f"INSERT INTO {quoted(table)} ({', '.join(map(quoted, names))}) "  # noqa: S608  (quoted)
        f"VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT ({', '.join(map(quoted, unique))}) DO UPDATE SET {', '.join(changed)}"
    )
    for rows in rows_of(prepared, constants=(ctx.tenant, ctx.cycle)):
        connection.exec_driver_sql(statement, rows)


def _quoter(connection: sa.Connection) -> Any:
    return connection.dialect.identifier_preparer.quote_identifier
