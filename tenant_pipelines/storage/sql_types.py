"""How columns of a DataFrame and columns of a SQL table correspond. Pure.

Instants with a time zone are stored in UTC. Integers up to 2^53 go into a column of floats, and
floats without a fraction into a column of integers, since pandas turns one into the other at the
first missing value; nothing else is converted.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from pyarrow import types

Values = list[Any]
_BATCH_ROWS = 10_000
_ACCEPTS = {
    "integer": {"integer"},
    "float": {"float", "integer"},
    "numeric": {"float", "integer"},
    "boolean": {"boolean"},
    "text": {"text"},
    "bytes": {"bytes"},
    "date": {"date"},
    "time": {"time"},
    "instant": {"instant"},
}
_SQL: dict[str, sa.types.TypeEngine[Any]] = {
    "integer": sa.BigInteger(),
    "float": sa.Float(),
    "boolean": sa.Boolean(),
    "text": sa.Text(),
    "bytes": sa.LargeBinary(),
    "date": sa.Date(),
    "time": sa.DateTime(),
    "instant": sa.TIMESTAMP(timezone=True),
}


def family_of_arrow(type_: Any) -> str | None:
    """Return the family of an Arrow type; ``"nothing"`` for no type; None when there is none."""
    if types.is_dictionary(type_):
        return family_of_arrow(type_.value_type)
    checks = (
        (types.is_null, "nothing"),
        (types.is_boolean, "boolean"),
        (types.is_integer, "integer"),
        (types.is_floating, "float"),
        (types.is_string, "text"),
        (types.is_large_string, "text"),
        (types.is_binary, "bytes"),
        (types.is_large_binary, "bytes"),
        (types.is_date32, "date"),
    )
    for check, family in checks:
        if check(type_):
            return family
    if types.is_timestamp(type_):
        return "time" if type_.tz is None else "instant"
    return None


def family_of_sql(type_: sa.types.TypeEngine[Any]) -> str | None:
    """Return the family of a column's SQL type; None when there is none."""
    checks: tuple[tuple[type, str], ...] = (
        (sa.Boolean, "boolean"),
        (sa.Integer, "integer"),
        (sa.Float, "float"),
        (sa.Numeric, "numeric"),
        (sa.String, "text"),
        (sa.LargeBinary, "bytes"),
        (sa.Date, "date"),
        (sa.TIMESTAMP, "instant"),
        (sa.DateTime, "time"),
    )
    return next((family for kind, family in checks if isinstance(type_, kind)), None)


def sql_type(family: str) -> sa.types.TypeEngine[Any]:
    """Return the SQL type of a new column."""
    return _SQL[family]


def fits(column: "pa.ChunkedArray[Any]", *, into: str | None) -> bool:
    """Tell whether a column's values can be stored in an existing column of family ``into``."""
    family = family_of_arrow(column.type)
    if family is None or into is None:
        return False
    if into == "float" and family == "integer" and column.null_count < len(column):
        found: Any = pc.min_max(column).as_py()
        return bool(max(-found["min"], found["max"]) <= 2**53)  # doubles have gaps beyond
    if family == "nothing" or column.null_count == len(column) or family in _ACCEPTS[into]:
        return True
    return into == "integer" and family == "float" and _is_whole(column)


def _is_whole(column: Any) -> bool:
    values = column.drop_null().to_numpy()
    # doubles hold every integer only up to 2^53
    return bool(np.all((np.floor(values) == values) & (np.abs(values) <= 2**53)))


def without_nan(column: Any) -> Any:
    """Return a column with NaN as null."""
    if not types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)


def storable(column: Any) -> Any:
    """Return a column in the form that ``rows_of`` reads quickly.

    Raises:
        pyarrow.ArrowInvalid: an integer beyond 64 bit with sign, a fraction of a microsecond, or a
            day outside the years 1 to 9999, whose text would not sort or not be read back.
    """
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_uint64(column.type):
        return column.cast(pa.int64())
    if types.is_float16(column.type):
        return column.cast(pa.float32())
    if types.is_timestamp(column.type):
        # an Arrow timestamp with a zone counts from the epoch in UTC already
        utc = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        _check_years(utc, datetime.min, datetime.max, pa.timestamp("us"))
        return utc.cast(pa.timestamp("us"))
    if types.is_date32(column.type):
        _check_years(column.cast(pa.int32()), date.min, date.max, pa.date32())
    return column


def _check_years(counts: Any, first: date, last: date, type_: Any) -> None:
    """Refuse counts since 1970 outside of two days or instants."""
    found: Any = pc.min_max(counts).as_py()
    if found["min"] is None:
        return
    if found["min"] < pa.scalar(first, type_).value or found["max"] > pa.scalar(last, type_).value:
        raise pa.ArrowInvalid("a year before 1 or after 9999")


def rows_of(
    columns: Sequence[Any], *, constants: Sequence[Any]
) -> "Iterator[list[tuple[Any, ...]]]":
    """Yield the rows in lists of up to 10,000, the constants before each.

    Args:
        columns: results of ``storable``, at least one, all of one length.
        constants: values of the columns that are the same in every row.
    """
    size = len(columns[0])
    for start in range(0, size, _BATCH_ROWS):
        parts = [_python_values(column.slice(start, _BATCH_ROWS)) for column in columns]
        same = [[constant] * len(parts[0]) for constant in constants]
        yield list(zip(*same, *parts, strict=True))


def distinct_rows(
    columns: Sequence[Any], *, constants: Sequence[Any]
) -> "Iterator[list[tuple[Any, ...]]]":
    """Yield what ``rows_of`` does, each row once."""
    names = [str(number) for number in range(len(columns))]
    groups = pa.table(dict(zip(names, columns, strict=True))).group_by(names).aggregate([])
    yield from rows_of(groups.select(names).columns, constants=constants)


def _python_values(column: Any) -> Values:
    """Return Python values; numpy's way to them is several times faster than ``to_pylist``."""
    flat = column.combine_chunks()
    if types.is_null(flat.type):
        return [None] * len(flat)
    if types.is_temporal(flat.type):
        flat = flat.cast(pa.string())
    if not (types.is_integer(flat.type) or types.is_floating(flat.type)):
        return list(flat.to_numpy(zero_copy_only=False).tolist())
    if not flat.null_count:
        return list(flat.to_numpy().tolist())
    values = list(flat.fill_null(0).to_numpy().tolist())
    for index in np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[index] = None
    return values
