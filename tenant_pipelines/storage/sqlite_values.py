"""What SQLite stores, in the type that a column declares: exactly, or not at all. Pure.

SQLite keeps any value in any column (https://www.sqlite.org/flextypegood.html), and the usual
conversions round numbers, call every text true and drop offsets. Here a value that is not of its
column's declared type is a ValueError.
"""

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)


def converted(values: Sequence[Any], family: str | None) -> Sequence[Any]:
    """Return the values of one column as Python's type for its family.

    Args:
        values: as sqlite3 gives them: int, float, str, bytes, None.
        family: of the declared type, see ``family_of_sql``.

    Raises:
        ValueError: a value is of another type, or would be changed.
    """
    kinds, convert = _FAMILIES.get(family or "", (_ANY, None))
    if not kinds.issuperset(map(type, values)):
        raise ValueError("a value of another type")
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _boolean(value: int) -> bool:
    if value not in {0, 1}:
        raise ValueError(f"{value} as a boolean")
    return value == 1


def _float(value: float) -> float:
    kept = float(value)
    if kept != value and value == value:
        raise ValueError(f"{value}, which no float holds")
    return kept


def _decimal(value: float) -> Decimal:
    return Decimal(value) if type(value) is int else Decimal(repr(value))


def _date(value: str) -> date:
    return date.fromisoformat(value)


def _time(value: str) -> datetime:
    if _TIME.fullmatch(value) is None:
        raise ValueError(f"{value!r} as a time without an offset, of whole microseconds")
    return datetime.fromisoformat(value)


_NONE = type(None)
_ANY = frozenset({int, float, str, bytes, _NONE})
_FAMILIES: dict[str, tuple[frozenset[type], Callable[[Any], Any] | None]] = {
    "integer": (frozenset({int, _NONE}), None),
    "float": (frozenset({int, float, _NONE}), _float),
    "numeric": (frozenset({int, float, _NONE}), _decimal),
    "boolean": (frozenset({int, _NONE}), _boolean),
    "text": (frozenset({str, _NONE}), None),
    "bytes": (frozenset({bytes, _NONE}), None),
    "date": (frozenset({str, _NONE}), _date),
    "time": (frozenset({str, _NONE}), _time),
    "instant": (frozenset({str, _NONE}), _time),
}
