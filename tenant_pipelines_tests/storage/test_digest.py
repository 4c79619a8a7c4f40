"""The digest sees logical content and nothing else."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenant_pipelines.storage.digest import NAMES_KEY, UnsupportedType, table_digest
from tenant_pipelines.storage.frame import to_table
from tenant_pipelines_tests.storage.frames import frames

VALUES: dict[str, Any] = {
    "int": pa.array([1, None, 3, 4]),
    "bool": pa.array([True, None, False, True]),
    "text": pa.array(["a", None, "", "längere"]),
    "list": pa.array([[1], None, [], [2, None]]),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 3, "b": None}]),
    "time": pa.array([1, None, 3, 4], pa.timestamp("us", "UTC")),
    "decimal": pa.array([1, None, 3, 4]).cast(pa.decimal128(21, 2)),
}


def digest(array: Any) -> str:
    return table_digest(pa.table({"c": array}))


@given(frame=frames(), cut=st.integers(0, 6))
@settings(max_examples=150, deadline=None)
def test_chunks_and_slices_do_not_count(frame: Any, cut: int) -> None:
    """A table read in another number of pieces is the same data."""
    table = to_table(frame)
    cut = min(cut, table.num_rows)
    pieces = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    padded = pa.concat_tables([table, table]).combine_chunks().slice(table.num_rows)
    assert {table_digest(pieces), table_digest(padded)} == {table_digest(table)}


@pytest.mark.parametrize("name", list(VALUES))
def test_every_value_and_every_null_counts(name: str) -> None:
    """Two different columns never share a digest; order, length and nulls included."""
    array = VALUES[name]
    variants = [
        array,
        array.take(pa.array([0, 1, 3, 2])),
        array.slice(0, 3),
        array.drop_null(),
        pa.nulls(4, array.type),
        pa.nulls(0, array.type),
    ]
    assert len({digest(variant) for variant in variants}) == len(variants)


def test_what_lies_in_null_slots_does_not_count() -> None:
    """Arrow leaves anything in the slot of a null."""
    validity = pa.py_buffer(bytes([0b101]))
    first = pa.Array.from_buffers(pa.int64(), 3, [validity, pa.array([1, 7, 3]).buffers()[1]])
    second = pa.Array.from_buffers(pa.int64(), 3, [validity, pa.array([1, 8, 3]).buffers()[1]])
    text = pa.array(["a", "garbage", "b"])
    texts = pa.Array.from_buffers(pa.string(), 3, [validity, *text.buffers()[1:]])
    assert digest(first) == digest(second) == digest(pa.array([1, None, 3]))
    assert digest(texts) == digest(pa.array(["a", None, "b"]))


def test_encodings_of_the_same_values_are_the_same() -> None:
    """Index and offset width, NaN bits and order of fields are no content; categories are."""
    one = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", "b"]))
    other = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None], pa.int8()), pa.array(["a", "b"], pa.large_string())
    )
    unused = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", "b", "c"]))
    turned = pa.DictionaryArray.from_arrays(pa.array([1, 0, None]), pa.array(["b", "a"]))
    ordered = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None]), pa.array(["a", "b"]), ordered=True
    )
    reverse = pa.DictionaryArray.from_arrays(
        pa.array([1, 0, None]), pa.array(["b", "a"]), ordered=True
    )
    assert digest(one) == digest(other)
    assert len({digest(each) for each in (one, unused, turned, ordered, reverse)}) == 5
    assert digest(pa.array(["x"])) == digest(pa.array(["x"], pa.large_string()))
    assert digest(pa.array(["x"])) == digest(pa.array(["x"], pa.string_view()))
    assert digest(pa.nulls(2)) == digest(pa.nulls(2, pa.string()))
    rows = [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    orders = [pa.struct([("a", pa.int64()), ("b", pa.string())])]
    orders += [pa.struct([("b", pa.string()), ("a", pa.int64())])]
    assert len({digest(pa.array(rows, order)) for order in orders}) == 1
    quiet, signed = 0x7FF8000000000000, 0xFFF8000000000001
    nans = [
        pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(bits.to_bytes(8, "little"))])
        for bits in (quiet, signed)
    ]
    assert digest(nans[0]) == digest(nans[1])


def test_types_and_names_count() -> None:
    """The same bytes under another type or name are other data."""
    tables = [
        pa.table({"c": pa.array([1, 2])}),
        pa.table({"d": pa.array([1, 2])}),
        pa.table({"c": pa.array([1, 2], pa.uint64())}),
        pa.table({"c": pa.array([1, 2], pa.timestamp("us"))}),
        pa.table({"c": pa.array([1, 2], pa.timestamp("us", "UTC"))}),
        pa.table({"c": pa.array([1, 2]), "d": pa.array([1, 2])}),
        pa.table({"c": pa.array([[1, 2], []])}),
        pa.table({"c": pa.array([[1], [2]])}),
    ]
    assert len({table_digest(table) for table in tables}) == len(tables)


def test_schema_metadata_does_not_count() -> None:
    """Versions of pandas write different metadata."""
    table = pa.table({"c": pa.array([1])})
    assert table_digest(table.replace_schema_metadata({"pandas": "x"})) == table_digest(table)
    assert table_digest(table.replace_schema_metadata({NAMES_KEY: "x"})) != table_digest(table)


def test_a_type_without_a_logical_form_is_refused() -> None:
    """Better no digest than one that misses content."""
    for type_ in (pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64(), 0), pa.uuid()):
        with pytest.raises(UnsupportedType):
            digest(pa.nulls(1, type_))
