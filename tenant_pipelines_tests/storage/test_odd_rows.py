"""What goes in comes out, or is refused by name: everything that pandas 2 and pandas 3 can hold.

Each case runs under the pandas that is installed. Where ``OTHER_PANDAS_PYTHON`` names the Python of
an environment with another pandas, the two also read each other's artifacts.
"""

import collections
import datetime as dt
import enum
import json
import math
import os
import subprocess
import sys
import uuid
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sqlalchemy.sql import quoted_name

from tenant_pipelines.errors import ArtifactDamaged, UnsupportedOutput
from tenant_pipelines.storage.artifacts import ArtifactStore
from tenant_pipelines.storage.digest import table_digest
from tenant_pipelines.storage.frame import from_table, to_table
from tenant_pipelines.storage.output import StoredOutput
from tenant_pipelines_tests.storage.cells import attempt

Frame = pd.DataFrame
Make = Callable[[], Any]
ARROW: Any = pd.ArrowDtype  # whose stubs know few types
UNITS: tuple[Any, ...] = ("s", "ms", "us", "ns")
TEXTS = ["a", "", "\0", "a\0b", "längere", "x" * 300]
INSTANTS = ["2024-03-31T00:59:59", "1677-09-22", "2262-04-11"]
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
FLOATS = [1.5, 0.0, -0.0, math.inf, -math.inf]


def col(values: Any, dtype: Any = object) -> Frame:
    """Return a frame whose only column is ``m``."""
    return pd.DataFrame({"m": pd.Series(values, dtype=dtype)})


def arrow(values: Any, type_: Any) -> Frame:
    array = values if isinstance(values, pa.Array) else pa.array(values, type_)
    return pd.DataFrame({"m": pd.arrays.ArrowExtensionArray(pa.chunked_array([array]))})


def category(categories: Any, codes: Any = (1, -1, 0), *, ordered: bool = False) -> Frame:
    made: Any = pd.Categorical  # whose stubs want lists
    return pd.DataFrame({"m": made.from_codes(codes, categories=categories, ordered=ordered)})


def times(zone: Any) -> Any:
    index = pd.DatetimeIndex(np.array([*INSTANTS, "NaT"], dtype="datetime64[us]"))
    return index.tz_localize("UTC").tz_convert(zone)


def index(values: Any, **names: Any) -> Frame:
    made = values if isinstance(values, pd.MultiIndex) else pd.Index(values, **names)
    return pd.DataFrame({"a": np.arange(len(values))}, index=made)


def levels(*arrays: Any, names: Any = None) -> Frame:
    return index(pd.MultiIndex.from_arrays(list(arrays), names=names))


def with_columns(names: Any) -> Frame:
    return pd.DataFrame(np.arange(2 * len(names)).reshape(2, -1), columns=names)


def nested(levels_: int) -> Any:
    value: Any = 1
    for _ in range(levels_):
        value = [value]
    return value


def circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


# dtype, values, and whether it has missing ones: each is tried with, without and of only those
DTYPES: dict[str, tuple[Any, list[Any], bool]] = {
    **{
        f"{kind}{bits}": (f"{kind}{bits}", [0, 1, 127], False)
        for kind in ("int", "uint")
        for bits in (8, 16, 32)
    },
    "int64": ("int64", [2**53 + 1, -(2**63), 2**63 - 1], False),
    "uint64": ("uint64", [2**53 + 1, 2**63, 2**64 - 1], False),
    "bool": ("bool", [True, False], False),
    **{f"float{bits}": (f"float{bits}", FLOATS, True) for bits in (16, 32, 64)},
    **{name: (name, [0, 1, 127], True) for name in ("Int8", "UInt8", "Int16", "UInt16", "Int32")},
    "Int64": ("Int64", [2**53 + 1, -(2**63), 2**63 - 1], True),
    "UInt64": ("UInt64", [2**53 + 1, 2**63, 2**64 - 1], True),
    "Float32": ("Float32", FLOATS, True),
    "Float64": ("Float64", FLOATS, True),
    "boolean": ("boolean", [True, False], True),
    **{
        f"datetime64[{unit}]": (f"datetime64[{unit}]", [np.datetime64(at) for at in INSTANTS], True)
        for unit in UNITS
    },
    **{
        f"timedelta64[{unit}]": (
            f"timedelta64[{unit}]",
            [np.timedelta64(n, unit) for n in (0, -1, 2**30)],
            True,
        )
        for unit in UNITS
    },
    "str": ("str", TEXTS, False),  # pandas 2 makes objects of it, and text of None
    "string python": (pd.StringDtype("python"), TEXTS, True),
    "string pyarrow": (pd.StringDtype("pyarrow"), TEXTS, True),
    "str python": (pd.StringDtype("python", na_value=np.nan), TEXTS, True),
    "str pyarrow": (pd.StringDtype("pyarrow", na_value=np.nan), TEXTS, True),
    "category": ("category", ["b", "", "ä", "a b"], True),  # pandas 2 itself ends these at a NUL
    "objects: str": (object, TEXTS, True),
    "objects: bytes": (object, [b"", b"\0\xff"], True),
    "objects: int": (object, [2**53 + 1, -(2**63), 2**63 - 1], True),
    "objects: float": (object, FLOATS, True),
    "objects: bool": (object, [True, False], True),
    "objects: date": (object, [dt.date.min, dt.date.max], True),
    "objects: time": (object, [dt.time.min, dt.time.max], True),
    "objects: timedelta": (object, [dt.timedelta(-1, 2, 3), dt.timedelta(10**5)], True),
    "objects: datetime": (object, [dt.datetime.min, dt.datetime.max], True),
    "objects: zoned datetime": (
        object,
        [dt.datetime(2024, 10, 27, 2, fold=1, tzinfo=BERLIN)],
        True,
    ),
    "objects: decimal": (
        object,
        [Decimal("1.10"), Decimal("-0.01"), Decimal("1" * 60 + ".00")],
        True,
    ),
    "objects: lists": (object, [[1, None], [], [2**53 + 1]], True),
    "objects: lists of floats": (object, [[math.nan, None, -0.0], [math.inf]], True),
    "objects: no lists but empty": (object, [[], []], True),
    "objects: lists of lists": (object, [[[1], [2, None]], [[]], [None]], True),
    "objects: dicts": (object, [{"a": 1, "b": ["x"]}, {"a": None, "b": None}], True),
    "objects: dicts of nothing": (object, [{"a": None}, {"a": {"b": math.nan}}], True),
    "arrow null": (ARROW(pa.null()), [None], True),
    "arrow bool": (ARROW(pa.bool_()), [True, False], True),
    "arrow uint64": (ARROW(pa.uint64()), [2**64 - 1], True),
    "arrow float16": (ARROW(pa.float16()), [np.float16(1.5)], True),
    "arrow double": (ARROW(pa.float64()), FLOATS, True),
    "arrow string": (ARROW(pa.string()), TEXTS, True),
    "arrow large_string": (ARROW(pa.large_string()), TEXTS, True),
    "arrow binary": (ARROW(pa.binary()), [b"", b"\0"], True),
    "arrow large_binary": (ARROW(pa.large_binary()), [b"", b"\0"], True),
    "arrow fixed binary": (ARROW(pa.binary(2)), [b"\0\0", b"ab"], True),
    "arrow date32": (ARROW(pa.date32()), [dt.date.min, dt.date.max], True),
    "arrow date64": (ARROW(pa.date64()), [dt.date.min, dt.date.max], True),
    **{
        f"arrow time32 {unit}": (ARROW(pa.time32(unit)), [dt.time(23, 59, 59)], True)
        for unit in ("s", "ms")
    },
    **{
        f"arrow time64 {unit}": (ARROW(pa.time64(unit)), [dt.time(23, 59, 59, 1)], True)
        for unit in ("us", "ns")
    },
    **{
        f"arrow timestamp {unit}": (
            ARROW(pa.timestamp(unit, "Europe/Berlin")),
            [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
            True,
        )
        for unit in UNITS
    },
    **{
        f"arrow duration {unit}": (ARROW(pa.duration(unit)), [dt.timedelta(9)], True)
        for unit in UNITS
    },
    "arrow decimal128": (ARROW(pa.decimal128(10, 2)), [Decimal("-1.50")], True),
    "arrow decimal256": (ARROW(pa.decimal256(60, 2)), [Decimal("1" * 50)], True),
    "arrow list": (ARROW(pa.list_(pa.timestamp("s"))), [[dt.datetime(2024, 1, 1), None], []], True),
    "arrow large_list": (ARROW(pa.large_list(pa.string())), [["a", None], []], True),
    "arrow fixed list": (ARROW(pa.list_(pa.int8(), 2)), [[1, None], [2, 3]], True),
    "arrow struct": (
        ARROW(pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])),
        [{"a": 1, "b": ["x"]}],
        True,
    ),
    "arrow dictionary": (ARROW(pa.dictionary(pa.int8(), pa.string())), ["b", "a", "b"], True),
}

# what must come back exactly
KEPT: dict[str, Make] = {
    "ten million characters": lambda: col(["x" * 10**7, None]),
    "Float64 with NaN beside NA": lambda: pd.DataFrame(
        {"m": pd.arrays.FloatingArray(np.array([1, np.nan, 2]), np.array([False, False, True]))}
    ),
    "arrow NaN beside null": lambda: arrow([math.nan, None, 1.0], pa.float64()),
    "arrow chunks": lambda: pd.DataFrame(
        {"m": pd.arrays.ArrowExtensionArray(pa.chunked_array([[1], [], [2, None]]))}
    ),
    "arrow chunks of dictionaries": lambda: pd.DataFrame(
        {
            "m": pd.arrays.ArrowExtensionArray(
                pa.chunked_array([pa.array(each).dictionary_encode() for each in (["a"], ["b"])])
            )
        }
    ),
    "arrow list of dictionaries": lambda: arrow(
        [["a", None], ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))
    ),
    "arrow not null": lambda: arrow([[1]], pa.list_(pa.field("x", pa.int64(), nullable=False))),
    "zone UTC": lambda: pd.DataFrame({"m": times("UTC")}),
    "zone by name": lambda: pd.DataFrame({"m": times("Europe/Berlin")}),
    "zone by offset": lambda: pd.DataFrame({"m": times("-03:30")}),
    "zone timedelta": lambda: pd.DataFrame({"m": times(dt.timezone(dt.timedelta(hours=1)))}),
    "zone with name of its own": lambda: pd.DataFrame(
        {"m": times(dt.timezone(dt.timedelta(hours=1), "X"))}
    ),
    "category unused": lambda: category(["b", "a", "unused"]),
    "category ordered": lambda: category(["b", "a"], ordered=True),
    "category none": lambda: category([], [-1, -1]),
    "category no rows": lambda: category(["a"], []),
    "category 300": lambda: category([str(n) for n in range(300)], [299, -1, 0]),
    "category named": lambda: category(pd.Index(["b", "a"], name="n")),
    "category objects": lambda: category(pd.Index(["b", "a"], dtype=object)),
    "category string": lambda: category(pd.Index(["b", "a"], dtype="string")),
    "category ints": lambda: category([3, 1]),
    "category range": lambda: category(pd.RangeIndex(2)),
    "category uint64": lambda: category(pd.Index([2**64 - 1, 1], dtype="uint64")),
    "category Int64": lambda: category(pd.Index([2, 1], dtype="Int64")),
    "category floats": lambda: category([math.inf, -0.0]),
    "category bools": lambda: category([True, False]),
    "category times": lambda: category(times("Europe/Berlin")[:3]),
    "category seconds": lambda: category(pd.DatetimeIndex(np.array([1, 0], "datetime64[s]"))),
    "category timedeltas": lambda: category(pd.TimedeltaIndex(np.array([2, 1], "m8[ms]"))),
    "category dates": lambda: category(pd.Index([dt.date(2024, 1, 1), dt.date.min], dtype=object)),
    "category decimals": lambda: category(pd.Index([Decimal("1.5"), Decimal("2.0")], dtype=object)),
    "category bytes": lambda: category(pd.Index([b"\0", b"a"], dtype=object)),
    "category arrow": lambda: category(pd.Index(["b", "a"], dtype=ARROW(pa.string()))),
    "names odd": lambda: with_columns(["", " ", "\0", "a.b", "__index_0_null", "x" * 300, "é"]),
    "names objects": lambda: with_columns(pd.Index(["a"], dtype=object)),
    "names string": lambda: with_columns(pd.Index(["a"], dtype="string")),
    "names str python": lambda: with_columns(
        pd.Index(["a"], dtype=pd.StringDtype("python", na_value=np.nan))
    ),
    "names named by a number": lambda: with_columns(pd.Index(["a"], name=3)),
    "names named": lambda: with_columns(pd.Index(["a"], name="n")),
    "nothing": pd.DataFrame,
    "no columns": lambda: pd.DataFrame(index=range(3)),
    "no columns, index": lambda: pd.DataFrame(index=["a", "b"]),
    "no columns, range": lambda: pd.DataFrame(index=range(3, 9, 2)),
    "no rows": lambda: pd.DataFrame(columns=["a", "b"]),
    "no rows, index": lambda: index(pd.Index([], dtype=object), name="n"),
    "no rows, levels": lambda: levels([], [], names=["a", "b"]),
    "index named": lambda: index([3, 1], name="n"),
    "index named by a number": lambda: index([3, 1], name=7),
    "index duplicates": lambda: index(["a", "a", None]),
    "index range": lambda: index(pd.RangeIndex(5, 1, -2, name="n")),
    "index int32": lambda: index(pd.Index([0, 1], dtype="int32")),
    "index floats": lambda: index([1.5, math.nan]),
    "index bool": lambda: index([True, False]),
    "index objects": lambda: index(pd.Index(["a", None], dtype=object)),
    "index string": lambda: index(pd.Index(["a", None], dtype="string")),
    "index Int64": lambda: index(pd.Index([2**63 - 1, None], dtype="Int64")),
    "index arrow": lambda: index(pd.Index([1, None], dtype=ARROW(pa.int64()))),
    "index category": lambda: index(pd.CategoricalIndex(["a", None], categories=["b", "a"])),
    "index times": lambda: index(times("Europe/Berlin")),
    "index freq": lambda: index(
        pd.date_range("2024-03-30", periods=3, freq="D", tz="Europe/Berlin", unit="us")
    ),
    "index freq ME": lambda: index(pd.date_range("2024-01-31", periods=3, freq="ME", unit="s")),
    "index freq of timedeltas": lambda: index(pd.timedelta_range("1h", periods=3, unit="ms")),
    "index dates": lambda: index(pd.Index([dt.date.min, dt.date.max], dtype=object)),
    "levels": lambda: levels([1, 1], ["a", None], names=["x", None]),
    "levels of one": lambda: levels([1, 2]),
    "levels named alike": lambda: levels([1, 2], [3, 4], names=["x", "x"]),
    "levels of all sorts": lambda: levels(
        times("Europe/Berlin"),
        pd.Categorical(["a", "b", None, "a"]),
        pd.Index([1, None, 2, 3], dtype="Int64"),
        pd.Index(["a", "b", "c", "d"], dtype=object),
    ),
    "levels unused": lambda: index(pd.MultiIndex.from_product([[1, 2, 3], ["a"]])[:2]),
    "levels of text with NUL": lambda: levels(pd.Categorical(["a"]), ["a\0b"]),
    "no duplicate labels": lambda: index([1, 2]).set_flags(allows_duplicate_labels=False),
}

# what frame.py documents as normalised: given, and as what it comes back
NORMALISED: dict[str, tuple[Make, Make]] = {
    "missing": (
        lambda: col(["a", None, math.nan, pd.NA, pd.NaT, Decimal("NaN")]),
        lambda: col(["a", None, None, None, None, None]),
    ),
    "only missing": (lambda: col([math.nan, pd.NA, pd.NaT]), lambda: col([None] * 3)),
    "ints and NaN": (lambda: col([2**53 + 1, math.nan]), lambda: col([2**53 + 1, None])),
    "tuples": (lambda: col([(1, 2), (), None]), lambda: col([[1, 2], [], None])),
    "arrays": (
        lambda: col([np.array([0.1, np.nan], "float32"), np.array([True]).astype(float), None]),
        lambda: col([[float(np.float32(0.1)), math.nan], [1.0], None]),
    ),
    "arrays of rows": (lambda: col([np.eye(2)]), lambda: col([[[1.0, 0.0], [0.0, 1.0]]])),
    "arrays of objects": (lambda: col([np.array(["a", None], object)]), lambda: col([["a", None]])),
    "numpy ints": (lambda: col([np.int8(1), np.uint64(2)]), lambda: col([1, 2])),
    "numpy floats": (
        lambda: col([np.float32(0.1), 0.5]),
        lambda: col([float(np.float32(0.1)), 0.5]),
    ),
    "numpy bools": (lambda: col([np.True_, None]), lambda: col([True, None])),
    "numpy strings": (lambda: col([np.str_("a"), "b"]), lambda: col(["a", "b"])),
    "places": (
        lambda: col([Decimal("1.1"), Decimal("1E+1"), Decimal("-0"), Decimal("0.001")]),
        lambda: col([Decimal(n) for n in ("1.100", "10.000", "0.000", "0.001")]),
    ),
    "order of keys": (
        lambda: col([{"a": 1, "b": 2}, {"b": 3, "a": 4}]),
        lambda: col([{"a": 1, "b": 2}, {"a": 4, "b": 3}]),
    ),
    "zone in objects": (
        lambda: col([dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
        lambda: col([dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC"))]),
    ),
    "zone of zoneinfo": (
        lambda: pd.DataFrame({"m": times(BERLIN)}),
        lambda: pd.DataFrame({"m": times("Europe/Berlin")}),
    ),
    "names of SQLAlchemy": (
        lambda: (
            levels([1], [2], names=[quoted_name("x", quote=True), "y"])
            .set_axis([quoted_name("a", quote=None)], axis=1)
            .rename_axis(columns=quoted_name("n", quote=None))
        ),
        lambda: levels([1], [2], names=["x", "y"]).rename_axis(columns="n"),
    ),
    "index 0, 1, 2": (lambda: index([0, 1, 2]), lambda: index(pd.RangeIndex(3))),
}


class Sub(pd.DataFrame):
    """A subclass, such as geopandas has."""


class Letter(enum.StrEnum):
    A = "a"


Point = collections.namedtuple("Point", "x")


def objects(*cells: Any) -> Make:
    return lambda: col(list(cells))


# found by name: "column 'm'" where nothing else is said
REFUSED: dict[str, Make | tuple[Make, str]] = {
    "int and str": objects(1, "a"),
    "int and float": objects(1, 2.5),
    "bool and int": objects(True, 1),
    "bytes and str": objects(b"a", "a"),
    "date and datetime": objects(dt.date(2024, 1, 1), dt.datetime(2024, 1, 1, 12)),
    "decimal and int": objects(Decimal(1), 1),
    "decimal and float": objects(Decimal(1), 1.5),
    "decimal of 80 digits": objects(Decimal("1" * 80)),
    "decimal infinity": objects(Decimal("Infinity")),
    "int of 2^63": objects(2**63, 1),
    "int of 2^64": objects(2**64),
    "int of 2^63 and -1": objects(2**63, -1),
    "int of 2^63 in a list": objects([2**63]),
    "numpy int of 2^63": objects(np.uint64(2**63)),
    "int and float in a list": objects([1, 2.5]),
    "int and str in a tuple": objects((1, "a")),
    "list and dict": objects({"a": 1}, [1]),
    "dicts of different keys": objects({"a": 1}, {"b": 1}),
    "dicts without keys": objects({}, None),
    "dicts in dicts without keys": objects({"a": {}}),
    "dict of int keys": objects({1: 1}),
    "dict of bytes keys": objects({b"a": 1}),
    "OrderedDict": objects(collections.OrderedDict(a=1)),
    "defaultdict": objects(collections.defaultdict(int, a=1)),
    "namedtuple": objects(Point(1)),
    "set": objects({1, 2}),
    "frozenset": objects(frozenset({1})),
    "deque": objects(collections.deque([1])),
    "range": objects(range(3)),
    "generator": lambda: col([(n for n in [1])]),
    "Series in a cell": lambda: col([pd.Series([1]), None]),
    "DataFrame in a cell": lambda: col([pd.DataFrame({"a": [1]}), None]),
    "bytearray": objects(bytearray(b"a")),
    "memoryview": lambda: col([memoryview(b"a")]),
    "uuid": objects(uuid.UUID(int=1)),
    "enum": objects(Letter.A),
    "object": objects(object()),
    "type": objects(int),
    "complex": objects(1j),
    "complex128": lambda: col([1j], "complex128"),
    "longdouble": lambda: pd.DataFrame({"m": np.array([1.5], np.longdouble)}),
    "longdouble in objects": objects(np.longdouble("0.1")),
    "big-endian": lambda: pd.DataFrame({"m": np.array([1], ">i8")}),
    "Period": objects(pd.Period("2024", "M")),
    "Interval": objects(pd.Interval(0, 1)),
    "Timestamp": objects(pd.Timestamp(2024, 1, 1)),
    "Timestamp in a list": objects([pd.Timestamp(2024, 1, 1)]),
    "Timedelta": objects(pd.Timedelta(1)),
    "timedelta beyond 64 bit": objects(dt.timedelta.max),
    "datetime64": objects(np.datetime64("2024-01-01", "us")),
    "array of datetime64": objects(np.array(["2024-01-01", "NaT"], "M8[us]")),
    "array without rows": objects(np.array(1)),
    "array of complex": objects(np.array([1j])),
    "NA in a list": objects([pd.NA]),
    "NaT in a dict": objects({"a": pd.NaT}),
    "time with zone": objects(dt.time(1, tzinfo=dt.UTC)),
    "time with zone but no offset": objects(dt.time(1, tzinfo=BERLIN)),
    "time of a fold": objects(dt.time(1, fold=1)),
    "datetime of a fold": objects(dt.datetime(2024, 10, 27, 2, fold=1)),
    "two zones": objects(
        dt.datetime(2024, 7, 1, tzinfo=BERLIN),
        dt.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
    ),
    "zone and none": objects(dt.datetime(2024, 7, 1, tzinfo=BERLIN), dt.datetime(2024, 7, 1)),
    "offset of a second": lambda: pd.DataFrame(
        {"m": times(dt.timezone(dt.timedelta(hours=1, seconds=1)))}
    ),
    "half a surrogate pair": objects("a", "\ud800"),
    "half a surrogate pair in a list": objects(["\ud800"]),
    "half a surrogate pair as key": objects({"\ud800": 1}),
    "60 lists deep": lambda: col([nested(60)]),
    "200 lists deep": lambda: col([nested(200)]),
    "100,000 lists deep": lambda: col([nested(100_000)]),
    "circular": lambda: col([circle()]),
    "seconds beyond milliseconds": lambda: col(np.array([2**60], "datetime64[s]"), None),
    "zoned seconds beyond milliseconds": lambda: pd.DataFrame(
        {"m": pd.Series(np.array([2**60], "datetime64[s]")).dt.tz_localize("UTC")}
    ),
    "seconds beyond milliseconds in a list": lambda: arrow([[2**60]], pa.list_(pa.timestamp("s"))),
    "time beyond a day": lambda: arrow([2**31 - 1], pa.time32("s")),
    "part of a day in a date": lambda: arrow(
        pa.array([5]).cast(pa.timestamp("ms")).view(pa.date64()), None
    ),
    "period": lambda: pd.DataFrame({"m": pd.period_range("2024", periods=2, freq="M")}),
    "interval": lambda: pd.DataFrame({"m": pd.interval_range(0, 2)}),
    "sparse": lambda: pd.DataFrame({"m": pd.arrays.SparseArray([0, 1])}),
    "arrow month_day_nano": lambda: arrow([(1, 2, 3)], pa.month_day_nano_interval()),
    "arrow map": lambda: arrow([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "arrow uuid": lambda: arrow([b"a" * 16], pa.uuid()),
    "arrow list_view": lambda: arrow([[1]], pa.list_view(pa.int64())),
    "arrow struct without fields": lambda: arrow([{}], pa.struct([])),
    "arrow lists of none": lambda: arrow([[]], pa.list_(pa.int64(), 0)),
    "arrow decimal without places": lambda: arrow([Decimal(100)], pa.decimal128(10, -2)),
    "arrow dictionary with null": lambda: arrow(
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None])), None
    ),
    "arrow dictionary of twins": lambda: arrow(
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", "a"])), None
    ),
    "category mixed": lambda: category(pd.Index([1, "a"], dtype=object)),
    "category interval": lambda: category(pd.interval_range(0, 2)),
    "category period": lambda: category(pd.period_range("2024", periods=2, freq="M")),
    "category tuples": lambda: category(pd.Index([(1, 2), (3, 4)], tupleize_cols=False)),
    "category named by a tuple": lambda: category(pd.Index(["b", "a"], name=("n", 1))),
    "name twice": lambda: pd.DataFrame([[1, 2]], columns=["m", "m"]),
    "name int": (lambda: pd.DataFrame([[1, 2]]), "column name 0"),
    "name None": (lambda: pd.DataFrame({None: [1]}), "column name None"),
    "names in levels": (lambda: with_columns(pd.MultiIndex.from_tuples([("a", 1)])), r"\('a', 1\)"),
    "no names in levels": (
        lambda: pd.DataFrame(columns=pd.MultiIndex.from_arrays([[], []])),
        "MultiIndex",
    ),
    "no names but times": (lambda: pd.DataFrame(columns=pd.DatetimeIndex([])), "DatetimeIndex"),
    "names category": (lambda: with_columns(pd.CategoricalIndex(["a"])), "category"),
    "names arrow": (lambda: with_columns(pd.Index(["a"], dtype=ARROW(pa.string()))), "string"),
    "names named by a tuple": (
        lambda: with_columns(pd.Index(["a"], name=("n", 1))),
        "columns.*'n'",
    ),
    "index mixed": (lambda: index(pd.Index([1, "a"], dtype=object)), "index level 0"),
    "index tuples": (lambda: index(pd.Index([(1, "a")], tupleize_cols=False)), "index level 0"),
    "index period": (lambda: index(pd.period_range("2024", periods=2, freq="M")), "index level 0"),
    "index named by a tuple": (lambda: index([1], name=("a", 1)), r"index level 0 \(\('a', 1\)\)"),
    "index freq with holidays": (
        lambda: index(
            pd.date_range(
                "2024-01-01",
                periods=2,
                freq=pd.offsets.CustomBusinessDay(holidays=["2024-01-02"]),
            )
        ),
        "index level 0",
    ),
    "index freq without name": (
        lambda: index(pd.date_range("2024-01-01", periods=2, freq=pd.DateOffset(months=1))),
        "index level 0",
    ),
    "level of ints with missing": (
        lambda: index(pd.MultiIndex(levels=[["a"], [1, 2]], codes=[[0, 0], [0, -1]])),
        "index level 1",
    ),
    "subclass": (lambda: Sub({"m": [1]}), "a Sub"),
}

# two of each that differ, though an encoding or a careless digest would take them for the same
DIFFERENT: dict[str, tuple[Make, Make]] = {
    "zeros": (lambda: col([0.0], "float64"), lambda: col([-0.0], "float64")),
    "2^53": (lambda: col([2**53]), lambda: col([2**53 + 1])),
    "2^64": (lambda: col([2**64 - 1], "uint64"), lambda: col([2**64 - 2], "uint64")),
    "sign": (lambda: col([2**64 - 1], "uint64"), lambda: col([-1], "int64")),
    "text of nothing": (objects("", "a"), objects(None, "a")),
    "NUL": (objects("a\0"), objects("a")),
    "borders": (objects("ab", "c"), objects("a", "bc")),
    "nulls moved": (objects("a", None), objects(None, "a")),
    "bytes": (objects(b"a"), objects("a")),
    "lists of nothing": (objects([1], []), objects([1], None)),
    "lists of null": (objects([1], [None]), objects([1], [])),
    "lists borders": (objects([1], [2, 3]), objects([1, 2], [3])),
    "dicts": (objects({"a": 1, "b": 2}), objects({"a": 2, "b": 1})),
    "categories unused": (lambda: category(["b", "a"]), lambda: category(["b", "a", "c"])),
    "categories turned": (lambda: category(["b", "a"]), lambda: category(["a", "b"], [0, -1, 1])),
    "categories in order": (
        lambda: category(["a", "b"]),
        lambda: category(["a", "b"], ordered=True),
    ),
    "zone": (lambda: pd.DataFrame({"m": times("UTC")}), lambda: pd.DataFrame({"m": times(BERLIN)})),
    "fold": (
        objects(dt.datetime(2024, 10, 27, 2, tzinfo=BERLIN)),
        objects(dt.datetime(2024, 10, 27, 2, fold=1, tzinfo=BERLIN)),
    ),
    "NaN and NA": (
        lambda: arrow([math.nan], pa.float64()),
        lambda: arrow([None], pa.float64()),
    ),
    "name": (lambda: with_columns(["a", "b"]), lambda: with_columns(["b", "a"])),
    "name of names": (
        lambda: with_columns(pd.Index(["a"], name="n")),
        lambda: with_columns(pd.Index(["a"])),
    ),
    "index": (lambda: index([1, 2]), lambda: index([2, 1])),
    "index name": (lambda: index([1, 2], name="n"), lambda: index([1, 2])),
    "index name int": (lambda: index([1, 2], name="1"), lambda: index([1, 2], name=1)),
    "index as column": (
        lambda: pd.DataFrame({"a": [0], "__index_0_null": [5]}),
        lambda: pd.DataFrame({"a": [0]}, index=[5]),
    ),
    "rows only": (lambda: pd.DataFrame(index=range(2)), lambda: pd.DataFrame(index=range(3))),
}

# two of each that are the same data; text in one pandas' dtypes and the other's among them
SAME: dict[str, tuple[Make, Make]] = {
    "text of pandas 3": (
        objects("a", None),
        lambda: col(["a", None], pd.StringDtype("pyarrow", na_value=np.nan)),
    ),
    "text with NA": (objects("a", None), lambda: col(["a", None], pd.StringDtype("python"))),
    "text in Arrow": (objects("a", None), lambda: col(["a", None], ARROW(pa.string()))),
    "no text": (lambda: col([]), lambda: col([], "string")),
    "no text at all": (objects(None, None), lambda: col([None, None], "string")),
    "ints": (lambda: col([1, 2], "int64"), lambda: col([1, 2], "Int64")),
    "index": (lambda: index(pd.RangeIndex(2)), lambda: index([0, 1])),
    "order of keys": (objects({"a": 1, "b": 2}), objects({"b": 2, "a": 1})),
    "names": (
        lambda: with_columns(pd.Index(["a"], dtype=object)),
        lambda: with_columns(pd.Index(["a"], dtype="string")),
    ),
}

# journals hold digests: they must not change with pandas, Arrow or this package
DIGESTS: dict[str, tuple[Make, str]] = {
    "nothing": (pd.DataFrame, "8ea6a0d1266b563a62cc91e78302beae"),
    "ints": (lambda: col([1, 2**63 - 1], "int64"), "362192b06a1567970c6b53ed4bcca901"),
    "floats": (
        lambda: col([1.5, -0.0, math.nan, math.inf], "float64"),
        "9496a7a0322a30b6e523f1a47824ed02",
    ),
    "text": (objects("a", None, "längere"), "055b134a816ed3af9661053b297d9347"),
    "instants": (
        lambda: pd.DataFrame({"m": times("Europe/Berlin")}),
        "347533b974486389f66ff652e0e24c62",
    ),
    "decimals": (objects(Decimal("1.10"), None), "86703ac97f106aa07f4327bada39c7c9"),
    "nested": (
        objects({"a": [1, None], "b": {"c": "x"}}, None),
        "396e3d67fabd0958d12871a9b4f7fe37",
    ),
    "categories": (
        lambda: category(["b", "a", "unused"], ordered=True),
        "9f0a599d37432abd645a26d044845e9e",
    ),
    "names": (
        lambda: levels([1, 2], ["a", None], names=["x", 7]).rename_axis(columns="n"),
        "e400a88b144774a8e4c6b7115b3eb3e0",
    ),
}

JSON_KEPT: dict[str, Any] = {
    "huge ints": [2**53 + 1, 2**63, -(2**64), 10**4000],
    "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1.0],
    "bools are no ints": [True, 1, 1.0, False, 0, None],
    "text": ["", "\0", "\u2028", "é", "e\u0301", "\U0001f600", '"\\/'],
    "keys": {"": 1, "\0": {"b": [], "a": {}}, "é": 3, "e\u0301": 4},
    "100 deep": nested(100),
    "ten million characters": "x" * 10**7,
}
JSON_REFUSED: dict[str, tuple[Any, str]] = {
    "NaN": ({"a": [1, math.nan]}, r"nan at \['a'\]\[1\]"),
    "infinity": ([-math.inf], r"-inf at \[0\]"),
    "tuple": ({"a": (1, 2)}, r"tuple at \['a'\].*a list"),
    "set": ([{1}], r"set at \[0\]"),
    "generator": ((n for n in [1]), "generator"),
    "bytes": ([b"a"], r"bytes at \[0\]"),
    "datetime": ({"at": dt.datetime(2024, 1, 1)}, r"datetime.datetime at \['at'\]"),
    "date": ([dt.date(2024, 1, 1)], r"datetime.date at \[0\]"),
    "Decimal": ({"price": Decimal("1.10")}, r"decimal.Decimal at \['price'\]"),
    "uuid": ([uuid.UUID(int=1)], r"uuid.UUID at \[0\]"),
    "enum": ([Letter.A], r"Letter at \[0\]"),
    "OrderedDict": ([collections.OrderedDict(a=1)], r"OrderedDict at \[0\]"),
    "numpy int": ({"n": np.int64(1)}, r"numpy.int64 at \['n'\].*\.item\(\)"),
    "numpy float": ([np.float64(1)], r"numpy.float64 at \[0\].*\.item\(\)"),
    "numpy array": ({"n": np.array([1])}, r"numpy.ndarray at \['n'\].*\.tolist\(\)"),
    "NA": ([pd.NA], r"NAType at \[0\]"),
    "NaT": ([pd.NaT], r"NaTType at \[0\]"),
    "Timestamp": ([pd.Timestamp(2024, 1, 1)], r"Timestamp at \[0\].*str\(\)"),
    "Series": ({"s": pd.Series([1])}, r"pandas.Series at \['s'\]|Series at \['s'\]"),
    "DataFrame": ({"f": pd.DataFrame()}, r"DataFrame at \['f'\]"),
    "key int": ({"a": {1: 2}}, r"the key 1 \(int\) at \['a'\]"),
    "key None": ([{None: 2}], r"the key None \(NoneType\) at \[0\]"),
    "half a surrogate pair": ({"a": ["x", "\ud800"]}, r"surrogate pair at \['a'\]\[1\]"),
    "half a surrogate pair as key": ({"a": {"\ud800": 1}}, r"surrogate pair at \['a'\]"),
    "int of 5,000 digits": ({"a": [10**5000]}, r"a number at \['a'\]\[0\]"),
    "200 deep": ({"a": nested(200)}, r"100 deep at \['a'\]\[0\].*…"),
    "circular": ([circle()], r"100 deep at \[0\]"),
}


@pytest.fixture
def local(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def digest(frame: Any) -> str:
    return table_digest(to_table(frame))


def assert_same(loaded: Frame, expected: Frame) -> None:
    """Compare also what pandas' own comparison takes for the same: types of cells, sign of zero."""
    pd.testing.assert_frame_equal(loaded, expected)
    for name in expected.columns:
        assert loaded[name].dtype == expected[name].dtype
        if expected[name].dtype in (object, "float64"):
            assert repr(list(loaded[name])) == repr(list(expected[name]))


def assert_kept(store: ArtifactStore, given: Frame, expected: Frame) -> None:
    stored = store.store(attempt(), given)
    loaded = store.load(attempt(), stored)
    assert_same(loaded, expected)
    assert digest(given) == digest(loaded) == stored.digest
    if len(given):
        renamed = given.rename(columns=dict.fromkeys(given.columns[:1], "another"))
        assert digest(given.iloc[1:]) != stored.digest
        assert len(given.columns) == 0 or digest(renamed) != stored.digest


def rows_of(name: str) -> list[Frame]:
    dtype, values, has_missing = DTYPES[name]
    rows = [values, [None, *values, None], [None, None]] if has_missing else [values]
    return [*(col(each, dtype) for each in rows), col([], dtype)]


@pytest.mark.parametrize("name", list(DTYPES))
def test_every_dtype_comes_back_with_and_without_missing_values(
    local: ArtifactStore, name: str
) -> None:
    """Also a column of nothing but missing values, and one without rows."""
    frames = rows_of(name)
    for frame in frames:
        assert_kept(local, frame, frame)
    assert len({digest(frame) for frame in frames if len(frame)}) == sum(
        map(bool, map(len, frames))
    )


@pytest.mark.parametrize("name", list(KEPT))
def test_odd_frames_come_back(local: ArtifactStore, name: str) -> None:
    """Names, index, categories, zones: all of it, and the digest too."""
    assert_kept(local, KEPT[name](), KEPT[name]())


@pytest.mark.parametrize("name", list(NORMALISED))
def test_what_is_normalised_is_what_the_docs_say(local: ArtifactStore, name: str) -> None:
    """And it has the same digest before and after, or a rerun would look like new data."""
    given, expected = (make() for make in NORMALISED[name])
    assert_kept(local, given, expected)


@pytest.mark.parametrize("name", list(REFUSED))
def test_odd_frames_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """The error names tenant, step and column; nothing is written; the process lives."""
    case = REFUSED[name]
    make, says = case if isinstance(case, tuple) else (case, "column (name )?'m'")
    with pytest.raises(UnsupportedOutput, match=f"(?s)'acme'.*'extract'.*{says}.*; wanted "):
        ArtifactStore(tmp_path / "artifacts").store(attempt(), make())
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.parametrize("name", list(DIFFERENT))
def test_changed_data_has_another_digest(name: str) -> None:
    """Or what is downstream would not run."""
    one, other = DIFFERENT[name]
    assert digest(one()) != digest(other())


@pytest.mark.parametrize("name", list(SAME))
def test_equal_data_has_an_equal_digest(name: str) -> None:
    """Or what is downstream would run for nothing, above all after an upgrade of pandas."""
    one, other = SAME[name]
    assert digest(one()) == digest(other())


@pytest.mark.parametrize("name", list(DIGESTS))
def test_digests_are_for_ever(name: str) -> None:
    """The same under every pandas and Arrow; whoever changes them makes fleets run again."""
    make, expected = DIGESTS[name]
    assert digest(make()) == expected


@pytest.mark.parametrize(
    "dtype", ["int64", "float64", "bool", "datetime64[us]", "Float64", "category"]
)
def test_a_step_may_write_into_what_it_loaded(local: ArtifactStore, dtype: str) -> None:
    """Arrow's memory is read-only, and pandas 2 does not copy on write."""
    given = col([1, 0], dtype)
    stored = local.store(attempt(), given)
    changed = local.load(attempt(), stored)
    changed.iloc[0, 0] = given.iloc[1, 0]
    pd.testing.assert_frame_equal(
        changed.iloc[:1].reset_index(drop=True), given.iloc[1:].reset_index(drop=True)
    )
    pd.testing.assert_frame_equal(local.load(attempt(), stored), given)


@pytest.mark.parametrize("name", list(JSON_KEPT))
def test_odd_json_comes_back(local: ArtifactStore, name: str) -> None:
    """Of the same types and with the same digest, whether inline or in a file."""
    given = JSON_KEPT[name]
    for number, value in enumerate([given, [given, "x" * 9000]]):
        stored = local.store(attempt(number=number), value)
        loaded = local.load(attempt(), StoredOutput.from_json(stored.to_json()))
        assert repr(loaded) == repr(value) or loaded == value
        assert local.store(attempt(number=number), loaded).digest == stored.digest


def test_changed_json_has_another_digest(local: ArtifactStore) -> None:
    """Types count: 1 is not 1.0, True or "1"."""
    values: list[Any] = [1, 1.0, True, "1", [1], {"1": 1}, 0.0, -0.0, 0, False, [], {}, "", "\0"]
    values += [2**63, 2**63 + 1, float(2**63), "é", "e\u0301", [None], [[]]]
    assert len({local.store(attempt(), value).digest for value in values}) == len(values)


@pytest.mark.parametrize("name", list(JSON_REFUSED))
def test_odd_json_is_refused_by_place(tmp_path: Path, name: str) -> None:
    """The error names tenant, step and place; nothing is written."""
    value, says = JSON_REFUSED[name]
    with pytest.raises(UnsupportedOutput, match=f"(?s)'acme'.*'extract'.*{says}"):
        ArtifactStore(tmp_path / "artifacts").store(attempt(), value)
    assert not (tmp_path / "artifacts").exists()


def test_attrs_are_not_kept(local: ArtifactStore) -> None:
    """The one thing that goes without a word, since pandas' own functions drop it as well."""
    given = col([1], "int64")
    given.attrs["source"] = object()
    loaded = local.load(attempt(), local.store(attempt(), given))
    assert (loaded.attrs, digest(given)) == ({}, digest(loaded))


def test_data_of_a_dtype_that_this_pandas_lacks_is_a_clear_error(local: ArtifactStore) -> None:
    """Such as a newer pandas may have written."""
    from tenant_pipelines.storage.parquet import write_table

    stored = local.store(attempt(), col([1], "int64"))
    table = to_table(col([1], "int64"))
    (key,) = table.schema.metadata
    meta = table.schema.metadata[key].replace(b'"int64"', b'"int4096"')
    assert stored.path
    path = Path(repr(local).split("(")[1].rstrip(")")) / stored.path
    with path.open("wb") as file:
        write_table(table.replace_schema_metadata({key: meta}), file, digest=stored.digest)
    with pytest.raises(ArtifactDamaged, match=r"'acme'.*pandas.*int4096"):
        local.load(attempt(), stored)


def portable() -> dict[str, Frame]:
    """Return the cases as this pandas makes them."""
    made = {
        f"{name} {number}": frame for name in DTYPES for number, frame in enumerate(rows_of(name))
    }
    kept = {name: make() for name, make in KEPT.items() if name != "ten million characters"}
    return {**made, **kept, **{name: make() for name, (make, _) in NORMALISED.items()}}


def write_all(folder: str) -> None:
    """Store every case; print what the journal would hold."""
    store = ArtifactStore(folder)
    print(
        json.dumps({n: store.store(attempt(), frame).to_json() for n, frame in portable().items()})
    )


def read_all(folder: str, written: str) -> None:
    """Load every case of another pandas, and compare with what this one makes of it."""
    store = ArtifactStore(folder)
    wrong = []
    for name, mine in portable().items():
        stored = StoredOutput.from_json(json.loads(written)[name])
        loaded = store.load(attempt(), stored)
        if len({stored.digest, digest(loaded), digest(mine)}) > 1:
            wrong.append((name, "digest"))
        if cells(loaded) != cells(from_table(to_table(mine))):
            wrong.append((name, f"{cells(loaded)} for {cells(mine)}"))
    assert wrong == []


def cells(frame: Frame) -> list[list[str | None]]:
    """Return every value of every column and index level as text, None for what is missing."""
    levels_ = [frame.index.get_level_values(n) for n in range(frame.index.nlevels)]
    columns: list[Any] = [*(frame[name] for name in frame), *levels_]
    return [
        [
            None if is_missing else str(value)
            for value, is_missing in zip(each, each.isna(), strict=True)
        ]
        for each in columns
    ]


OTHER = os.environ.get("OTHER_PANDAS_PYTHON", "")


@pytest.mark.skipif(not OTHER, reason="OTHER_PANDAS_PYTHON names no Python with another pandas")
@pytest.mark.parametrize("directions", [(OTHER, sys.executable), (sys.executable, OTHER)])
def test_two_versions_of_pandas_read_each_others_artifacts(
    tmp_path: Path, directions: tuple[str, str]
) -> None:
    """The same values and digests, so that an upgrade of pandas runs nothing again."""
    said = ""
    for python, verb in zip(directions, ("write_all", "read_all"), strict=True):
        script = f"from {__name__} import {verb} as do; import sys; do(sys.argv[1], *sys.stdin)"
        ended = subprocess.run(
            [python, "-W", "ignore", "-c", script, str(tmp_path)],
            input=said,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        said = ended.stdout
