"""A step that loads a DataFrame into a warehouse table, exactly once per generation.

Data, ledger row and cursor are written in one transaction, so a crash at any instant leaves all of
them or none. The table belongs to this one step: ``_tenant`` and ``_cycle`` say whose row it is and
which cycle wrote it last. A later generation of a cycle replaces the rows of that cycle; values it
had overwritten from older cycles are not restored. The table is never altered: a load whose columns
differ is refused, apart from the conversions that ``sql_types`` names.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from tenant_pipelines.errors import InvalidPipeline, LedgerDisagrees, WarehouseRefused
from tenant_pipelines.fleet.context import Cursor, StepContext, oldest_cursor
from tenant_pipelines.fleet.pipeline import Retries, Step, Target, make_step
from tenant_pipelines.storage.engines import Place, shown, writing
from tenant_pipelines.storage.ledger import TABLE as LEDGER_TABLE
from tenant_pipelines.storage.ledger import Ledger, LedgerRow
from tenant_pipelines.storage.sql_tables import (
    OWN,
    check_table,
    checked_columns,
    create_table,
    prepared_columns,
    quoter,
)

# "excluded" is the new row in an upsert, whatever table has that name
_RESERVED = ("sqlite_", "_tenant_pipelines_")
# (warehouse, fleet, table) that this process found to be the fleet's alone
_known_ours: set[tuple[str, str, str]] = set()


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
    if isinstance(key, str) or not keys or len(set(keys)) < len(keys) or set(keys) & set(OWN):
        raise InvalidPipeline(
            place=f"sql_load(table={table!r})",
            found=f"key={key!r}",
            wanted="a list of the columns that identify a row, each once, without _tenant",
            fix=f'Write key=["{keys[0] if keys else "id"}"].',
        )
    used = table.casefold()
    if not table or "\0" in table or used.startswith(_RESERVED) or used == "excluded":
        raise InvalidPipeline(
            place="sql_load",
            found=f"table={table!r}",
            wanted="a table of its own for the step, whose name nothing else uses",
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
    columns = checked_columns(value, keys, place)
    rows = len(value)
    prepared = prepared_columns(columns, place) if rows else []
    ledger = Ledger(ctx.warehouse, ctx.fleet)
    with writing(ctx.warehouse, place) as connection:
        settled = ledger.settled_by(connection, tenant=ctx.tenant, step=ctx.step, cycle=ctx.cycle)
        effect = _effect_of(ctx, settled, ctx.inputs[upstream])
        if effect is not None:
            return effect
        before = ledger.newest_in(connection, tenant=ctx.tenant, step=ctx.step, table=table)
        committed = None if before is None else before.cursor
        _check_window(ctx, committed, place)
        if (ctx.warehouse, ctx.fleet, table) not in _known_ours:
            _check_fleet(connection, ledger, place)
        exists = sa.inspect(connection).has_table(table)
        if exists:
            check_table(connection, columns, keys, place, is_empty=rows == 0)
        elif rows:
            if ledger.has_loaded(connection, step=ctx.step, table=table):
                raise _table_is_gone(ctx, place)
            create_table(connection, columns, target, place)
        if exists:
            _delete_replaced(connection, ctx, target, dict(zip(columns, prepared, strict=False)))
        if rows:
            _upsert(connection, ctx, prepared, names=list(columns), keys=keys, table=table)
        output = {"table": table, "rows": rows}
        cursor = committed if ctx.window.to is None else ctx.window.to
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
    _known_ours.add((ctx.warehouse, ctx.fleet, table))
    return output


def _check_window(ctx: StepContext, committed: Cursor | None, place: Place) -> None:
    """Refuse a window that begins after what the table has: the rows between would be lost."""
    after = ctx.window.after
    if after is not None and oldest_cursor([committed, after]) != after:
        raise place.refused(
            found=f"a window that begins after {after!r}, where the warehouse's ledger has this "
            f"load up to {committed!r} (a new load, or a warehouse from a backup)",
            wanted="a window that begins where the table ends",
            fix="Run tenant-pipelines run --new-cycle: its window does.",
        )


def _check_fleet(connection: sa.Connection, ledger: Ledger, place: Place) -> None:
    """Refuse another fleet's table: a generation of one would delete rows of the other."""
    other = ledger.other_fleet_of(connection, place.table)
    if other is not None:
        raise place.refused(
            found=f"a table that fleet {other!r} loads",
            wanted="a table of its own for each fleet",
            fix="Name another table in sql_load, or another file as warehouse: in the fleet file.",
        )


def _table_is_gone(ctx: StepContext, place: Place) -> WarehouseRefused:
    begin_again = (
        f"UPDATE {LEDGER_TABLE} SET cursor = 'null' "  # noqa: S608  (shown, not run)
        f"WHERE fleet = '{ctx.fleet}' AND step = '{ctx.step}'"
    )
    return place.refused(
        found="no such table in the warehouse, although its ledger says that rows were loaded",
        wanted="the table with all rows up to the tenants' cursors: this load has only what is new",
        fix=f"Restore the table. Or to load everything again: {begin_again}; then run --new-cycle.",
    )


def _delete_replaced(
    connection: sa.Connection, ctx: StepContext, target: Target, prepared: Mapping[str, Any]
) -> None:
    """Delete what this load replaces: an earlier generation's rows, and the groups it touches."""
    quoted = quoter(connection)
    delete = f"DELETE FROM {quoted(target.table)} WHERE _tenant = ?"  # noqa: S608  (quoted)
    redone = [*ctx.window.redoes, *([ctx.cycle] if ctx.generation > 1 else [])]
    for cycle in redone:
        connection.exec_driver_sql(f"{delete} AND _cycle = ?", (ctx.tenant, cycle))
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

    quoted = quoter(connection)
    names = [*OWN, *names]
    unique = ["_tenant", *keys]
    changed = [f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name not in unique]
    statement = (
        f"INSERT INTO {quoted(table)} ({', '.join(map(quoted, names))}) "  # noqa: S608  (quoted)
        f"VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT ({', '.join(map(quoted, unique))}) DO UPDATE SET {', '.join(changed)}"
    )
    for rows in rows_of(prepared, constants=(ctx.tenant, ctx.cycle)):
        connection.exec_driver_sql(statement, rows)
