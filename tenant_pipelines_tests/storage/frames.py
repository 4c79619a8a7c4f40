"""Generated DataFrames and JSON values: what the store must give back unchanged."""

import datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_SECONDS = st.integers(-(2**40), 2**40)
_INTS = st.integers(-(2**63), 2**63 - 1)


def _arrow(type_: "pa.DataType") -> Any:
    return pd.ArrowDtype(type_)


def _series(dtype: Any, values: st.SearchStrategy[Any]) -> Any:
    def build(size: int) -> Any:
        return st.lists(values, min_size=size, max_size=size).map(
            lambda entries: pd.Series(entries, dtype=dtype)
        )

    return build


def _categorical(size: int) -> Any:
    codes = st.lists(st.integers(-1, 2), min_size=size, max_size=size)
    categories = st.one_of(
        st.lists(_TEXT, min_size=3, max_size=3, unique=True),
        st.lists(_INTS, min_size=3, max_size=3, unique=True),
        st.lists(_SECONDS, min_size=3, max_size=3, unique=True).map(
            lambda entries: pd.DatetimeIndex(np.array(entries, dtype="datetime64[s]"))
        ),
    )

    def make(drawn: Any) -> Any:
        chosen, names, is_ordered = drawn
        categorical: Any = pd.Categorical
        return pd.Series(
            categorical.from_codes(chosen, categories=pd.Index(names), ordered=is_ordered)
        )

    return st.tuples(codes, categories, st.booleans()).map(make)


def _times(unit: str, zone: str | None) -> Any:
    def build(size: int) -> Any:
        entries = st.lists(st.one_of(st.none(), _SECONDS), min_size=size, max_size=size)

        def make(seconds: list[int | None]) -> Any:
            numbers = np.array(
                [np.datetime64("NaT") if s is None else np.datetime64(s, "s") for s in seconds],
                dtype="datetime64[s]",
            )
            series = pd.Series(numbers).astype(np.dtype(f"datetime64[{unit}]"))
            return series if zone is None else series.dt.tz_localize("UTC").dt.tz_convert(zone)

        return entries.map(make)

    return build


# Arrow counts microseconds in 64 bit, which is less than Python holds
_SPANS = st.timedeltas(datetime.timedelta(-(10**5)), datetime.timedelta(10**5))
_NESTED = st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=3)
_KINDS = [
    _series("int64", _INTS),
    _series("uint64", st.integers(0, 2**64 - 1)),
    _series("int8", st.integers(-128, 127)),
    _series("float64", st.floats()),
    _series("float32", st.floats(width=32)),
    _series("bool", st.booleans()),
    _series("Int64", st.one_of(st.none(), _INTS)),
    _series("boolean", st.one_of(st.none(), st.booleans())),
    _series("string", st.one_of(st.none(), _TEXT)),
    _series("str", st.one_of(st.none(), _TEXT)),
    _series(object, st.one_of(st.none(), _TEXT)),
    _series(object, st.one_of(st.none(), st.binary(max_size=5))),
    _series(object, st.one_of(st.none(), st.dates())),
    _series(object, st.one_of(st.none(), _INTS)),
    _series(object, st.one_of(st.none(), _NESTED)),
    _series(object, st.one_of(st.none(), st.fixed_dictionaries({"a": _INTS, "b": _TEXT}))),
    _series(object, st.one_of(st.none(), st.decimals(-(10**6), 10**6, places=3))),
    _series(object, st.one_of(st.none(), st.datetimes().map(lambda t: t.replace(fold=0)))),
    _series(object, st.one_of(st.none(), st.times().map(lambda time: time.replace(fold=0)))),
    _series(object, st.one_of(st.none(), _SPANS)),
    _series(object, st.one_of(st.none(), st.lists(st.fixed_dictionaries({"a": _NESTED})))),
    _series("float16", st.floats(width=16)),
    _series("UInt64", st.one_of(st.none(), st.integers(0, 2**64 - 1))),
    _series("Float64", st.one_of(st.none(), st.floats(allow_nan=False))),
    _series(pd.StringDtype("python"), st.one_of(st.none(), _TEXT)),
    _series(pd.StringDtype("python", na_value=np.nan), st.one_of(st.none(), _TEXT)),
    _series(_arrow(pa.float64()), st.one_of(st.none(), st.floats(allow_nan=False))),
    _series(_arrow(pa.list_(pa.int64())), st.one_of(st.none(), _NESTED)),
    _series(_arrow(pa.decimal128(9, 3)), st.one_of(st.none(), st.decimals(-9, 9, places=3))),
    _series(_arrow(pa.binary()), st.one_of(st.none(), st.binary(max_size=5))),
    _series("timedelta64[ms]", st.timedeltas(datetime.timedelta(-9), datetime.timedelta(9))),
    _times("s", None),
    _times("us", "Europe/Berlin"),
    _times("ms", "UTC"),
    _categorical,
]


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    """Draw a DataFrame of up to 6 rows and 5 columns with any index."""
    size = draw(st.integers(0, 6))
    names = draw(st.lists(_TEXT, max_size=5, unique=True))
    columns = {name: draw(draw(st.sampled_from(_KINDS))(size)) for name in names}
    frame = pd.DataFrame(columns, index=pd.RangeIndex(size))
    if draw(st.booleans()):
        frame.columns.name = draw(_TEXT)
    index = draw(
        st.sampled_from(["default", "range", "text", "times", "two levels", "objects", "missing"])
    )
    if index == "range":
        frame.index = pd.RangeIndex(5, 5 + 3 * size, 3, name="n")
    elif index == "text":
        frame.index = pd.Index([f"row {n % 2}" for n in range(size)], dtype="str", name="row")
    elif index == "times":
        frame.index = pd.date_range("2024-03-30", periods=size, freq="D", tz="Europe/Berlin")
    elif index == "two levels":
        levels: list[Any] = [list(range(size)), pd.Categorical(["x"] * size)]
        frame.index = pd.MultiIndex.from_arrays(levels, names=["a", None])
    elif index == "missing":
        frame.index = pd.Index([None, 2**63 - 1] * size, dtype="Int64", name="id")[:size]
    elif index == "objects":
        frame.index = pd.Index([f"row {n}" for n in range(size)], dtype=object)
    return frame


def json_values() -> st.SearchStrategy[Any]:
    """Draw JSON data."""
    leaves = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
    )
    texts = st.text(st.characters(codec="utf-8"))
    return st.recursive(
        st.one_of(leaves, texts),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(texts, inner)),
    )
