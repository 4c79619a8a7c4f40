"""A step that reads one tenant's rows from a SQL table, in a stable order, within its window.

The source is never written to, and never created. Column types follow the table's declaration and
not the data, so that a tenant without a single value has the same dtypes as one with millions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from tenant_pipelines.errors import InvalidPipeline, nearest
from tenant_pipelines.fleet.context import Cursor, StepContext, Window, is_cursor
from tenant_pipelines.fleet.pipeline import Retries, Step, make_step
from tenant_pipelines.storage.engines import Place, reading_once
from tenant_pipelines.storage.sqlite_values import converted

_BATCH_ROWS = 5_000

Source = str | Callable[[StepContext], str]


def sql_extract(
    *,
    source: Source,
    table: str,
    tenant_column: str,
    cursor_column: str | None = None,
    whole: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    name: str = "extract",
    code_version: str | None = None,
    retries: Retries = Retries(),
) -> Step:
    """Make a step that reads the tenant's rows of a table.

    Rows come ordered by the cursor column, then the primary key; without a primary key by all
    columns that are read.

    Args:
        source: SQLAlchemy URL with ``{state}`` for the state folder, or a function that returns
            one, such as ``lambda ctx: ctx.settings["source"]``.
        table: name of a table or view.
        tenant_column: holds the tenant's name, compared byte for byte.
        cursor_column: an insertion sequence; only rows in the window ``(after, to]`` are read.
            Without it every cycle reads all rows. Rows must become visible in its order: a
            transaction that commits after one with a higher number would be missed.
        whole: columns of a group, such as ``["day"]``: each group with a row in the window is read
            whole, up to ``window.to``, for results that one new row changes.
        columns: what to read; every column when None.
        name: of the step.
        code_version: see Step.
        retries: see Step.

    Returns:
        A step that returns a DataFrame: integers as int64 (Int64 where NULL is allowed), floats as
        float64, decimals as Decimal, text as str (objects before pandas 3), times as
        datetime64[us]; of SQLite exactly what is stored, never rounded. It raises
        WarehouseRefused for a missing file, table or column, a cursor that is no number or text
        or is missing in a row, or a value that is not of its column's type.

    Raises:
        InvalidPipeline: ``whole`` without a cursor column.
    """
    if isinstance(whole, str) or (whole and cursor_column is None):
        raise InvalidPipeline(
            place=f"sql_extract(table={table!r})",
            found=f"whole={whole!r}, cursor_column={cursor_column!r}",
            wanted="a list of columns, beside a cursor column",
            fix="Without a cursor column every cycle reads all rows: leave whole out.",
        )

    def extract(ctx: StepContext) -> Any:
        place = Place(table, ctx.tenant)
        with reading_once(_url(source, ctx), place) as connection:
            found = _reflected(connection, place)
            chosen = [_column(found, column, place) for column in columns or found.c.keys()]
            is_ours = _is_tenant(connection, _column(found, tenant_column, place), ctx.tenant)
            is_sqlite = connection.dialect.name == "sqlite"
            # what SQLite has, which the usual conversions change; ``_frame`` converts exactly
            as_stored = [sa.type_coerce(column, sa.types.NullType()) for column in chosen]
            query = sa.select(*(as_stored if is_sqlite else chosen)).where(is_ours)
            order = list(found.primary_key.columns) or chosen
            if cursor_column is not None:
                cursor = _cursor(found, cursor_column, place)
                group = [_column(found, name, place) for name in whole]
                query = _within(query, ctx.window, cursor, is_ours, group)
                order = [cursor, *(column for column in order if column is not cursor)]
            rows = connection.execute(query.order_by(*order))
            return _frame(rows, chosen, place, is_stored=is_sqlite)

    def end(ctx: StepContext) -> Cursor | None:
        place = Place(table, ctx.tenant)
        with reading_once(_url(source, ctx), place) as connection:
            found = _reflected(connection, place)
            cursor = _cursor(found, cursor_column or "", place)
            is_ours = _is_tenant(connection, _column(found, tenant_column, place), ctx.tenant)
            if cursor.nullable and connection.scalar(
                sa.select(sa.literal(1)).where(is_ours, cursor.is_(None)).limit(1)
            ):
                raise place.refused(
                    found=f"rows without a value in cursor column {cursor_column!r}",
                    wanted="a value in every row: these would never be read",
                    fix="Fill the column in, and declare it NOT NULL.",
                )
            value = connection.scalar(sa.select(sa.func.max(cursor)).where(is_ours))
            is_text = isinstance(cursor.type, sa.String)
            if value is not None and (not is_cursor(value) or isinstance(value, str) != is_text):
                raise place.refused(
                    found=f"a {type(value).__name__} in cursor column {cursor_column!r}, which is "
                    f"declared {cursor.type}",
                    wanted="values of the declared type, which have one order",
                    fix="Mend the row in the source.",
                )
            newest: Cursor | None = value
            return newest

    return make_step(
        extract,
        name=name,
        code_version=code_version,
        retries=retries,
        window=None if cursor_column is None else end,
        upstream=(),
    )


def _is_tenant(
    connection: sa.Connection, column: sa.Column[Any], tenant: str
) -> sa.ColumnElement[bool]:
    is_alike = sa.type_coerce(column, sa.Text) == tenant  # what an index answers
    if connection.dialect.name != "sqlite":
        return is_alike
    # whatever the column's collation and affinity: 'Acme' is not acme, and 7 is not '007'
    return sa.and_(is_alike, sa.cast(column, sa.Text).collate("BINARY") == tenant)


def _within(
    query: sa.Select[Any],
    window: Window,
    cursor: sa.Column[Any],
    is_ours: sa.ColumnElement[bool],
    group: Sequence[sa.Column[Any]],
) -> sa.Select[Any]:
    """Return the query for the rows of a window, or for every group that it touches, up to its end.

    Args:
        query: of the tenant's rows.
        window: what to read.
        cursor: the column that the window counts in.
        is_ours: the condition that a row is the tenant's.
        group: columns of a group; none for the window's own rows.
    """
    if window.to is None:
        return query.where(sa.false())
    query = query.where(cursor <= window.to)
    if window.after is None:
        return query
    if not group:
        return query.where(cursor > window.after)
    touched = (
        sa.select(*group)
        .where(is_ours, cursor <= window.to, cursor > window.after)
        .distinct()
        .subquery()
    )
    return query.join(
        touched, sa.and_(*(column.is_not_distinct_from(touched.c[column.name]) for column in group))
    )


def _url(source: Source, ctx: StepContext) -> str:
    if callable(source):
        return source(ctx)
    return source.replace("{state}", str(ctx.state))


def _reflected(connection: sa.Connection, place: Place) -> sa.Table:
    try:
        return sa.Table(place.table, sa.MetaData(), autoload_with=connection, resolve_fks=False)
    except sa.exc.NoSuchTableError:
        known = sa.inspect(connection).get_table_names()
        raise place.refused(
            found=f"no such table in the source, which has {', '.join(known[:8]) or 'none'}",
            wanted="an existing table",
            fix=f"{nearest(place.table, known).capitalize()}Correct the table's name.",
        ) from None


def _column(table: sa.Table, name: str, place: Place) -> sa.Column[Any]:
    if name not in table.c:
        known = list(table.c.keys())
        raise place.refused(
            found=f"no column {name!r}",
            wanted=f"one of {', '.join(known[:20])}",
            fix=f"{nearest(name, known).capitalize()}Correct the column's name.",
        )
    return table.c[name]


def _cursor(table: sa.Table, name: str, place: Place) -> sa.Column[Any]:
    column = _column(table, name, place)
    if not isinstance(column.type, (sa.Integer, sa.Float, sa.String)):
        raise place.refused(
            found=f"cursor column {name!r} of type {column.type}",
            wanted="an insertion sequence: integers, floats or text (rows that arrive late have "
            "an old time, and would be missed)",
            fix="Choose another cursor column.",
        )
    return column


def _frame(
    result: sa.CursorResult[Any], columns: list[sa.Column[Any]], place: Place, *, is_stored: bool
) -> Any:
    import pandas as pd
    import pyarrow as pa

    from tenant_pipelines.storage.sql_types import family_of_sql

    wanted = [_types_of(column) for column in columns]
    families = [family_of_sql(column.type) for column in columns]
    chunks: list[list[Any]] = [[] for _ in columns]
    try:
        for rows in result.partitions(_BATCH_ROWS):
            for index, values in enumerate(zip(*rows, strict=True)):
                try:
                    exact = converted(values, families[index]) if is_stored else values
                    kind = wanted[index][0]
                    # decimals of two batches need not have one Arrow type
                    chunks[index].append(list(exact) if kind is None else pa.array(exact, kind))
                except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                    column = columns[index]
                    raise place.refused(
                        found=f"a value in column {column.name!r} that is no {column.type}",
                        wanted="values of the declared type, which it holds exactly; times in ISO "
                        "8601 without an offset, in whole microseconds",
                        fix="Mend the row in the source, or leave the column out.",
                    ) from error
    except ValueError as error:  # SQLAlchemy cannot read a time of another database
        raise place.refused(
            found=f"a value that cannot be read ({error})",
            wanted="times in ISO 8601",
            fix="Mend the row in the source, or leave the column out.",
        ) from error
    data = {}
    for column, (arrow_type, dtype) in zip(columns, wanted, strict=True):
        # popped: not held any more once it is converted
        data[column.name] = _series(chunks.pop(0), arrow_type, dtype)
    pa.default_memory_pool().release_unused()  # or what comes next would need as much again
    return pd.DataFrame(data, columns=[column.name for column in columns])


def _series(parts: list[Any], arrow_type: Any, dtype: Any) -> Any:
    """Return the values of a column's batches as one Series."""
    import pandas as pd
    import pyarrow as pa

    if arrow_type is None:
        return pd.Series([value for part in parts for value in part], dtype=object)
    array: Any = pa.chunked_array(parts, arrow_type)
    if dtype is None:
        return pd.Series(array.to_pylist(), dtype=object)
    if isinstance(dtype, pd.api.extensions.ExtensionDtype):
        # in one piece: many small ones would keep the memory between them from being given back
        return pd.Series(dtype.__from_arrow__(array.combine_chunks()))  # type: ignore[attr-defined]  # these dtypes have it
    return pd.Series(array.to_numpy().astype(dtype, copy=False))


def _types_of(column: sa.Column[Any]) -> tuple[Any, Any]:
    """Return the Arrow type and the pandas dtype of a column; None for plain Python objects."""
    import pandas as pd
    import pyarrow as pa

    from tenant_pipelines.storage.sql_types import family_of_sql

    is_nullable = column.nullable and not column.primary_key
    family = family_of_sql(column.type)
    if family == "integer":
        return pa.int64(), pd.Int64Dtype() if is_nullable else "int64"
    if family == "boolean":
        return pa.bool_(), pd.BooleanDtype() if is_nullable else "bool"
    if family == "float":
        return pa.float64(), "float64"
    if family == "text":
        dtype = pd.Series([], dtype="str").dtype
        # before pandas 3 that is a column of objects
        return pa.large_string(), dtype if isinstance(dtype, pd.StringDtype) else None
    if family in {"time", "instant"}:
        zone = "UTC" if getattr(column.type, "timezone", False) else None
        return (
            pa.timestamp("us", zone),
            "datetime64[us]" if zone is None else pd.DatetimeTZDtype("us", zone),
        )
    kinds = {"bytes": pa.binary(), "date": pa.date32()}
    return kinds.get(family or ""), None
