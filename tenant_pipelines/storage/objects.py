"""Columns of Python objects as Arrow arrays: every value comes back equal and of its type, or none.

Normalised: a missing value becomes None, a tuple or numpy array a list, numpy's numbers and strings
Python's. Pure.
"""

import datetime
import decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_WANTED = "one plain type of value in a column; convert with astype"
_MOST_LEVELS = 100  # Arrow follows nested lists without end, and the process dies of it
# objects all of one of these types come back from Arrow as they went in
_EXACT = {str, bytes, int, float, bool, datetime.date}
_LEAVES = {
    *_EXACT,
    type(None),
    decimal.Decimal,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
}


class Unkept(ValueError):
    """What a column has that would come back as something else."""

    def __init__(self, found: str, *, wanted: str = _WANTED) -> None:
        super().__init__(found)
        self.wanted = wanted


def object_array(series: "pd.Series[Any]") -> Any:
    """Return a column of dtype object as an Arrow array.

    Raises:
        Unkept: a value would come back as something else.
    """
    import pyarrow as pa

    # NaN inside a list stays NaN only if top-level missing values are not left to Arrow
    values = series.where(series.notna(), None).to_list()
    types = set(map(type, values)) - {type(None)}
    if len(types) <= 1 and types <= _EXACT:
        return pa.array(values)
    values = [_plain(value, _MOST_LEVELS) for value in values]
    array = pa.array(values)
    for row, (given, kept) in enumerate(zip(values, array.to_pylist(), strict=True)):
        if not _is_kept(given, kept):
            raise Unkept(
                f"{str(given)[:60]!r} ({type(given).__name__}) in row {row}, which would come back "
                f"as {str(kept)[:60]!r} ({type(kept).__name__})"
            )
    return array


def _plain(value: Any, levels: int) -> Any:
    """Return a value in Python's own types, so that Arrow meets no others."""
    import numpy as np

    kind = type(value)
    if kind is np.ndarray or issubclass(kind, np.generic):
        known = value.dtype.kind in "biufUSO" and value.dtype != np.longdouble
        if not known or (kind is np.ndarray and value.ndim == 0):
            raise Unkept(f"a value of numpy's type {value.dtype}")
        value = value.tolist()
        kind = type(value)
    if kind in _LEAVES:
        return value
    if levels == 0:
        raise Unkept(f"data nested more than {_MOST_LEVELS} deep")
    if kind is list or kind is tuple:
        return [_plain(entry, levels - 1) for entry in value]
    if kind is dict and all(type(name) is str for name in value):
        return {name: _plain(entry, levels - 1) for name, entry in value.items()}
    not_text = " whose keys are not all strings" if kind is dict else ""
    raise Unkept(f"a value of type {kind.__name__}{not_text}")


def _is_kept(given: Any, kept: Any) -> bool:
    """Tell whether Arrow gave back the same value of the same type."""
    kind = type(given)
    if kind is not type(kept):
        return False
    if kind is list:
        return len(given) == len(kept) and all(map(_is_kept, given, kept))
    if kind is dict:
        return given.keys() == kept.keys() and all(
            _is_kept(value, kept[name]) for name, value in given.items()
        )
    if kind is float and given != given:
        return bool(kept != kept)
    if kind is datetime.datetime:
        # instants are equal across zones
        is_same_zone = _zone(given) == _zone(kept) and given.utcoffset() == kept.utcoffset()
        return bool(given == kept and given.fold == kept.fold and is_same_zone)
    if kind is datetime.time:
        return bool(given == kept and given.fold == kept.fold and given.tzinfo is None)
    return bool(given == kept)


def _zone(instant: datetime.datetime) -> Any:
    zone = instant.tzinfo
    if zone is None:
        return None
    return getattr(zone, "key", None) or getattr(zone, "zone", None) or zone.tzname(None)
