"""DataFrames as Arrow tables, exactly: what ``from_table`` returns equals what ``to_table`` got.

Covered: values, column order, dtypes, index, names. What Arrow would change is refused instead.
Not kept: ``DataFrame.attrs``. Normalised: a missing value in an object column becomes None, tuples
and arrays inside one become lists. Files and digests are other modules' business.
"""

import decimal
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tenant_pipelines.errors import TenantPipelinesError
from tenant_pipelines.storage.digest import UnsupportedType, logical_type

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_META = b"tenant_pipelines.pandas"
# object columns of these kinds (pandas.api.types.infer_dtype) come back from Arrow as they went in
_EXACT_KINDS = {"string", "bytes", "integer", "floating", "boolean", "date", "time", "empty"}


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
    is_default = (
        isinstance(index, pd.RangeIndex)
        and (index.start, index.step, index.name) == (0, 1, None)
        # a table without columns does not know how many rows it has
        and (len(frame.columns) > 0 or len(index) == 0)
    )
    names: list[str] = list(frame.columns)
    fields = [(name, frame[name], f"column {name!r}") for name in names]
    levels: list[dict[str, Any]] = []
    if not is_default:
        for position, level_name in enumerate(index.names):
            place = f"index level {position} ({level_name!r})"
            if level_name is not None and type(level_name) not in {str, int}:
                raise UnstorableFrame(found=f"{place}", wanted="an index name that is a string")
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
        "freq": getattr(index, "freqstr", None),
        "columns": [str(frame.columns.dtype), frame.columns.name],
    }
    try:
        schema = pa.schema(
            [(name, array.type) for (name, _, _), array in zip(fields, arrays, strict=True)],
            metadata={_META: json.dumps(meta)},
        )
    except (TypeError, ValueError) as error:
        raise UnstorableFrame(
            found=f"names that are not text ({error})", wanted="names in plain strings"
        ) from None
    return pa.Table.from_arrays(arrays, schema=schema)


def from_table(table: "pa.Table") -> "pd.DataFrame":
    """Convert a table of ``to_table`` back.

    Raises:
        KeyError, ValueError: it is not such a table.
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
    else:
        index = levels[0].rename(names[0])
        if meta["freq"] is not None:
            index.freq = meta["freq"]  # type: ignore[attr-defined]  # only a DatetimeIndex has one
    columns_dtype, columns_name = meta["columns"]
    columns = pd.Index(table.column_names[:split], dtype=columns_dtype, name=columns_name)
    series = {
        position: pd.Series(
            values[position], index=index, dtype=object if kinds[position] == "object" else None
        )
        for position in range(split)
    }
    frame = pd.DataFrame(series, index=index, copy=False)
    frame.columns = columns
    return frame


def _check_columns(frame: "pd.DataFrame") -> None:
    import pandas as pd

    if type(frame) is not pd.DataFrame:
        raise UnstorableFrame(found=f"a {type(frame).__name__}", wanted="a plain pandas DataFrame")
    others = [name for name in frame.columns if type(name) is not str]
    if others or isinstance(frame.columns.dtype, pd.CategoricalDtype):
        found = f"the column name {others[0]!r}" if others else "categorical column names"
        raise UnstorableFrame(found=found, wanted="column names that are strings")
    if not frame.columns.is_unique:
        name = frame.columns[frame.columns.duplicated()][0]
        raise UnstorableFrame(
            found=f"the column name {name!r} more than once", wanted="each column name once"
        )
    if frame.columns.name is not None and type(frame.columns.name) is not str:
        raise UnstorableFrame(
            found=f"{frame.columns.name!r} as name of the columns", wanted="a string or none"
        )


def _series_of(index: "pd.Index[Any]") -> "pd.Series[Any]":
    import pandas as pd

    # Index.to_series would make strings of objects
    return pd.Series(index.array, dtype=index.dtype)


def _to_array(series: "pd.Series[Any]", place: str) -> "tuple[pa.Array[Any], Any]":
    """Return one column as Arrow array, and the kind that ``_to_values`` needs."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    dtype: Any = series.dtype
    kind: Any
    try:
        if isinstance(dtype, pd.CategoricalDtype):
            categories, inner = _to_array(_series_of(dtype.categories), place)
            codes = series.cat.codes.to_numpy()
            indices: Any = pa.array(codes, mask=codes == -1)
            array: Any = pa.DictionaryArray.from_arrays(
                indices, categories, ordered=bool(dtype.ordered)
            )
            return array, {"categories": inner}
        if dtype == np.dtype(object):
            array, kind = _object_array(series, place), "object"
        elif isinstance(dtype, pd.StringDtype):
            array = pa.array(series, from_pandas=True)
            kind = {"string": dtype.storage, "na": "NA" if dtype.na_value is pd.NA else "nan"}
        elif isinstance(dtype, pd.ArrowDtype):
            array, kind = pa.array(series), "arrow"
        elif isinstance(dtype, (pd.PeriodDtype, pd.IntervalDtype, pd.SparseDtype)):
            raise UnstorableFrame(
                found=f"{place} of dtype {dtype}", wanted='a plain dtype, for example astype("str")'
            )
        else:
            array, kind = pa.array(series, from_pandas=True), str(dtype)
            if type(pd.api.types.pandas_dtype(kind)) is not type(dtype):
                raise UnstorableFrame(found=f"{place} of dtype {dtype}", wanted="a pandas dtype")
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        logical_type(array.type)
    except (pa.ArrowException, UnsupportedType, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, UnstorableFrame):
            raise
        raise UnstorableFrame(
            found=f"{place} of dtype {dtype}, which Arrow cannot hold ({_brief(error)})",
            wanted="one type of value in a column, such as numbers, strings, times or lists",
        ) from error
    return array, kind


def _object_array(series: "pd.Series[Any]", place: str) -> Any:
    import pandas as pd
    import pyarrow as pa

    kind = pd.api.types.infer_dtype(series, skipna=True)
    # NaN inside a list stays NaN only if top-level missing values are not left to Arrow
    values = series.where(series.notna(), None).to_list()
    array = pa.array(values)
    if kind not in _EXACT_KINDS:
        for given, kept in zip(values, array.to_pylist(), strict=True):
            if not _is_kept(given, kept):
                raise UnstorableFrame(
                    found=f"{place} with {kind} values: {str(given)[:60]} ({type(given).__name__})"
                    f" would come back as {str(kept)[:60]} ({type(kept).__name__})",
                    wanted="one type of value in a column; convert with astype",
                )
    return array


def _is_kept(given: Any, kept: Any) -> bool:
    """Tell whether Arrow gave back the same value, apart from lists for tuples and arrays."""
    import numpy as np

    if isinstance(given, (list, tuple, np.ndarray)):
        return (
            isinstance(kept, list) and len(given) == len(kept) and all(map(_is_kept, given, kept))
        )
    if isinstance(given, Mapping):
        return (
            isinstance(kept, dict)
            and given.keys() == kept.keys()
            and all(_is_kept(value, kept[name]) for name, value in given.items())
        )
    if isinstance(given, np.generic):
        given = given.item()
    if isinstance(given, float) and given != given:
        return isinstance(kept, float) and kept != kept
    if isinstance(given, (bool, int, float, str, bytes, decimal.Decimal, type(None))):
        return isinstance(given, type(kept)) and bool(given == kept)
    return bool(given == kept)


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
        categories = pd.Index(
            _to_values(pa.chunked_array([chunk.dictionary]), kind["categories"]),
            tupleize_cols=False,
        )
        codes = chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return pd.Categorical.from_codes(
            codes, categories=categories, ordered=chunk.type.ordered, validate=False
        )
    if isinstance(kind, dict):
        options = {} if kind["na"] == "NA" else {"na_value": float("nan")}
        dtype: Any = pd.StringDtype(kind["string"], **options)
        return dtype.__from_arrow__(column)
    if kind == "object":
        if types.is_string(column.type) or types.is_binary(column.type):
            return column.to_numpy()
        return pd.Series(column.to_pylist(), dtype=object).to_numpy()
    dtype = pd.api.types.pandas_dtype(kind)
    if isinstance(dtype, pd.api.extensions.ExtensionDtype):
        return dtype.__from_arrow__(column)  # type: ignore[attr-defined]  # every nullable dtype
    return column.to_numpy().astype(dtype, copy=False)


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:120]
