"""DataFrames as Arrow tables, exactly: what ``from_table`` returns equals what ``to_table`` got.

Covered: values, column order, dtypes, index, names. What Arrow or Parquet would change is refused
instead, and so is what another version of pandas could not read. Not kept: ``DataFrame.attrs``.

Normalised in columns of objects: a missing value becomes None, a tuple or numpy array in a cell a
list, numpy's numbers and strings Python's; decimals get the column's number of places (and lose the
sign of a zero), dicts the column's order of keys. Elsewhere: a name of a subclass of str is plain
text, an index 0, 1, 2, … without a name is a RangeIndex, and a time zone is what the reader's
pandas makes of its name (pytz's under pandas 2).

pandas 2 and 3 read each other's tables. Text has the same digest in both, whether its dtype is
object, str or string. Where pandas 3 makes another dtype of the same source, the digest differs,
and a step that is run again after an upgrade has its downstream run too: times parsed from text or
made by date_range have the unit us where pandas 2 gives them ns.
"""

import json
from typing import TYPE_CHECKING, Any

from tenant_pipelines.errors import TenantPipelinesError
from tenant_pipelines.storage.digest import NAMES_KEY, logical_type
from tenant_pipelines.storage.objects import Unkept, object_array
from tenant_pipelines.storage.parquet import check_storable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_META = b"tenant_pipelines.pandas"


class UnstorableFrame(TenantPipelinesError, TypeError):
    """A DataFrame that Arrow would change or cannot hold."""

    def __init__(self, *, found: str, wanted: str) -> None:
        super().__init__(f"found {found}; wanted {wanted}", found=found, wanted=wanted)


def to_table(frame: "pd.DataFrame") -> "pa.Table":
    """Convert a DataFrame to an Arrow table that ``from_table`` turns back into its equal.

    Args:
        frame: column names are unique strings; any index.

    Returns:
        The columns, then the index levels unless the index is 0, 1, 2, …; each in one chunk, with
        what Arrow does not know about pandas in the schema's metadata.

    Raises:
        UnstorableFrame: a name, a dtype or a value cannot be kept; names the column.
    """
    import pandas as pd
    import pyarrow as pa

    _check_columns(frame)
    index = frame.index
    # a table without columns does not know how many rows it has
    is_default = _is_default(index) and (len(frame.columns) > 0 or len(index) == 0)
    names = [_checked_name(name, "the columns") for name in frame.columns]
    columns_name = _checked_name(frame.columns.name, "the columns' names")
    fields = [(name, frame[name], f"column {name!r}") for name in names]
    levels: list[dict[str, Any]] = []
    if not is_default:
        for position, level_name in enumerate(index.names):
            place = f"index level {position} ({level_name!r})"
            level_name = _checked_name(level_name, place)
            _check_level(index, position, place)
            field_name = f"__index_{position}_{json.dumps(level_name)}"
            while field_name in names:
                field_name = "_" + field_name
            fields.append((field_name, _series_of(index.get_level_values(position)), place))
            levels.append({"name": level_name})
    arrays, kinds = [], []
    for _, series, place in fields:
        array, kind = _to_array(series, place)
        arrays.append(array)
        kinds.append(kind)
    meta = {
        "kinds": kinds,
        "levels": levels,
        "multi": isinstance(index, pd.MultiIndex),
        "range": None
        if is_default or not isinstance(index, pd.RangeIndex)
        else [index.start, index.stop, index.step],
        "freq": _freq_name(index),
        "columns": [_names_kind(frame.columns), columns_name],
        "duplicates": frame.flags.allows_duplicate_labels,
    }
    metadata: dict[bytes | str, bytes | str] = {_META: json.dumps(meta)}
    if levels or columns_name is not None:
        # data too, but not in any field
        metadata[NAMES_KEY] = json.dumps([len(levels), columns_name])
    schema = pa.schema(
        [(name, array.type) for (name, _, _), array in zip(fields, arrays, strict=True)],
        metadata=metadata,
    )
    return pa.Table.from_arrays(arrays, schema=schema)


def from_table(table: "pa.Table") -> "pd.DataFrame":
    """Convert a table of ``to_table`` back.

    Raises:
        KeyError, TypeError, ValueError: it is not such a table, or of another pandas' dtypes.
    """
    import pandas as pd

    meta = json.loads((table.schema.metadata or {})[_META])
    kinds, levels = meta["kinds"], meta["levels"]
    values = [_to_values(column, kind) for column, kind in zip(table.columns, kinds, strict=True)]
    split = len(values) - len(levels)
    names = [level["name"] for level in levels]
    # without a dtype, pandas would make strings of objects
    levels = [
        pd.Index(level, dtype=object if kind == "object" else None, tupleize_cols=False)
        for level, kind in zip(values[split:], kinds[split:], strict=True)
    ]
    index: pd.Index[Any]
    if not levels:
        index = pd.RangeIndex(table.num_rows)
    elif meta["range"] is not None:
        start, stop, step = meta["range"]
        index = pd.RangeIndex(start, stop, step, name=names[0])
    elif meta["multi"]:
        index = pd.MultiIndex.from_arrays(levels, names=names)
        for position, level in enumerate(levels):
            # pandas 2 takes texts for the same that differ only after a NUL
            if not index.get_level_values(position).equals(level):
                raise ValueError(f"index level {position} ({names[position]!r}) would be changed")
    else:
        index = levels[0].rename(names[0])
        if meta["freq"] is not None:
            index.freq = meta["freq"]  # type: ignore[attr-defined]  # only a DatetimeIndex has one
    columns_dtype, columns_name = meta["columns"]
    columns = pd.Index(
        table.column_names[:split], dtype=_dtype_of(columns_dtype), name=columns_name
    )
    series = {
        position: pd.Series(
            values[position], index=index, dtype=object if kinds[position] == "object" else None
        )
        for position in range(split)
    }
    frame = pd.DataFrame(series, index=index, copy=False)
    frame.columns = columns
    flags: Any = frame.flags  # which the stubs take for a column
    flags.allows_duplicate_labels = meta.get("duplicates", True)
    return frame


def _check_columns(frame: "pd.DataFrame") -> None:
    import pandas as pd

    if type(frame) is not pd.DataFrame:
        raise UnstorableFrame(found=f"a {type(frame).__name__}", wanted="a plain pandas DataFrame")
    others = [name for name in frame.columns if not isinstance(name, str)]
    if others:
        raise UnstorableFrame(
            found=f"the column name {others[0]!r}", wanted="column names that are strings"
        )
    for name in frame.columns:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UnstorableFrame(
                found=f"the column name {name!r}, which holds half of a surrogate pair",
                wanted="column names in Unicode text",
            ) from None
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise UnstorableFrame(
            found=f"the column name {name!r} more than once", wanted="each column name once"
        )


def _checked_name(name: Any, place: str) -> Any:
    """Return a name in plain text: SQLAlchemy gives pandas 2 a subclass of str."""
    if isinstance(name, str):
        return str.__str__(name)
    if name is not None and type(name) is not int:
        raise UnstorableFrame(
            found=f"{place} with the name {name!r}", wanted="a name that is a string"
        )
    return name


def _check_level(index: "pd.Index[Any]", position: int, place: str) -> None:
    import pandas as pd

    if isinstance(index, pd.MultiIndex):
        kept, values = index.levels[position].dtype, index.get_level_values(position).dtype
        if kept != values:
            raise UnstorableFrame(
                found=f"{place} of dtype {kept} with missing values, which come back as {values}",
                wanted="an index level whose dtype holds them, such as Int64, or reset_index()",
            )


def _names_kind(columns: "pd.Index[Any]") -> Any:
    """Return the kind of the dtype that column names have."""
    import pandas as pd

    if isinstance(columns.dtype, pd.StringDtype):
        return _string_kind(columns.dtype)
    is_none = len(columns) == 0 and columns.dtype == "int64"  # what pandas makes of no columns
    if isinstance(columns, pd.MultiIndex) or not (columns.dtype == object or is_none):
        raise UnstorableFrame(
            found=f"column names of dtype {columns.dtype} ({type(columns).__name__})",
            wanted="column names of dtype object or str",
        )
    return str(columns.dtype)


def _is_default(index: "pd.Index[Any]") -> bool:
    """Tell whether it is 0, 1, 2, … without a name, however pandas holds it."""
    import pandas as pd

    is_plain = index.nlevels == 1 and index.name is None and index.dtype == "int64"
    return is_plain and pd.RangeIndex(len(index)).equals(index)


def _freq_name(index: "pd.Index[Any]") -> str | None:
    from pandas.tseries.frequencies import to_offset

    freq = getattr(index, "freq", None)
    if freq is None:
        return None
    name = str(freq.freqstr)
    try:
        is_kept = bool(to_offset(name) == freq)
    except ValueError:
        is_kept = False  # pandas cannot read all names that it gives
    if not is_kept:
        raise UnstorableFrame(
            found=f"index level 0 ({index.name!r}) with freq {freq!r}, more than its name {name!r}",
            wanted="a freq that its name says in full, or none: frame.index.freq = None",
        )
    return name


def _series_of(index: "pd.Index[Any]") -> "pd.Series[Any]":
    import pandas as pd

    # Index.to_series would make strings of objects
    return pd.Series(index.array, dtype=index.dtype)


def _to_array(series: "pd.Series[Any]", place: str) -> "tuple[pa.Array[Any], Any]":
    """Return one column as Arrow array, and the kind that ``_to_values`` needs."""
    try:
        array, kind = _converted(series, place)
        logical_type(array.type)
        check_storable(array)
    except (UnstorableFrame, MemoryError):
        raise
    except Unkept as error:
        raise UnstorableFrame(found=f"{place} with {error}", wanted=error.wanted) from None
    except Exception as error:  # the methods of the values run in there, and may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise UnstorableFrame(
            found=f"{place} of dtype {series.dtype}, which Arrow or Parquet cannot hold ({reason})",
            wanted="one type of value in a column, such as numbers, strings, times or lists",
        ) from error
    return array, kind


def _converted(series: "pd.Series[Any]", place: str) -> "tuple[pa.Array[Any], Any]":
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    dtype: Any = series.dtype
    array: Any
    kind: Any
    if isinstance(dtype, pd.CategoricalDtype):
        name = _checked_name(dtype.categories.name, f"{place} with categories")
        categories, inner = _to_array(_series_of(dtype.categories), place)
        codes = series.cat.codes.to_numpy()
        indices: Any = pa.array(codes, mask=codes == -1)
        array = pa.DictionaryArray.from_arrays(indices, categories, ordered=bool(dtype.ordered))
        return array, {"categories": inner, "name": name}
    if dtype == np.dtype(object):
        array, kind = object_array(series), "object"
    elif isinstance(dtype, pd.StringDtype):
        array, kind = pa.array(series, from_pandas=True), _string_kind(dtype)
    elif isinstance(dtype, pd.ArrowDtype):
        array, kind = pa.array(series), "arrow"
    elif isinstance(dtype, pd.DatetimeTZDtype):
        if type(dtype.tz).__module__.partition(".")[0] not in {"datetime", "zoneinfo", "pytz"}:
            raise Unkept(
                f"the time zone {dtype.tz!r}",
                wanted='a zone by its name, such as tz_convert("Europe/Berlin"), or an offset',
            )
        array = pa.array(series, from_pandas=True)
        kind = f"datetime64[{dtype.unit}, {array.type.tz}]"
    elif isinstance(dtype, np.dtype) or isinstance(
        series.array,
        (pd.arrays.IntegerArray, pd.arrays.FloatingArray, pd.arrays.BooleanArray),
    ):
        array, kind = pa.array(series, from_pandas=True), str(dtype)
    else:
        raise Unkept(f"dtype {dtype}", wanted='a plain dtype, for example astype("str")')
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array, kind


def _string_kind(dtype: "pd.StringDtype") -> Any:
    import pandas as pd

    return {"string": dtype.storage, "na": "NA" if dtype.na_value is pd.NA else "nan"}


def _dtype_of(kind: Any) -> Any:
    """Return the dtype of a kind without categories."""
    import pandas as pd

    if isinstance(kind, dict):
        options = {} if kind["na"] == "NA" else {"na_value": float("nan")}
        return pd.StringDtype(kind["string"], **options)
    return pd.api.types.pandas_dtype(kind)


def _to_values(column: "pa.ChunkedArray[Any]", kind: Any) -> Any:
    """Return one column as pandas holds it."""
    import pandas as pd
    import pyarrow as pa
    from pyarrow import types

    if kind == "arrow":
        return pd.arrays.ArrowExtensionArray(column)
    if isinstance(kind, dict) and "categories" in kind:
        chunk: Any = column.combine_chunks()
        if isinstance(chunk, pa.ChunkedArray):
            chunk = chunk.chunk(0)
        inner = kind["categories"]
        categories = pd.Index(
            _to_values(pa.chunked_array([chunk.dictionary]), inner),
            dtype=object if inner == "object" else None,  # pandas 3 would make strings of objects
            tupleize_cols=False,
            name=kind.get("name"),
        )
        codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return pd.Categorical.from_codes(
            _writable(codes), categories=categories, ordered=chunk.type.ordered, validate=False
        )
    if kind == "object":
        if types.is_string(column.type) or types.is_binary(column.type):
            return column.to_numpy()
        return pd.Series(column.to_pylist(), dtype=object).to_numpy()
    dtype = _dtype_of(kind)
    if types.is_floating(column.type) and isinstance(dtype, pd.api.extensions.ExtensionDtype):
        # __from_arrow__ of pandas 3 takes NaN for missing
        nan = pa.scalar(float("nan"), column.type)
        return pd.arrays.FloatingArray(
            column.fill_null(nan).to_numpy().copy(), column.is_null().to_numpy().copy()
        )
    if isinstance(dtype, pd.api.extensions.ExtensionDtype):
        return dtype.__from_arrow__(column)  # type: ignore[attr-defined]  # every dtype of a kind
    return _writable(column.to_numpy().astype(dtype, copy=False))


def _writable(values: Any) -> Any:
    """Copy what is Arrow's under pandas 2, which would fail where a step assigns to a cell."""
    import pandas as pd

    copies_on_write = int(pd.__version__.partition(".")[0]) >= 3
    return values if copies_on_write or values.flags.writeable else values.copy()
