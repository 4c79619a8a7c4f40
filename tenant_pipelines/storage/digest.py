"""Content digests: equal for equal logical data, whatever its layout in memory or on disk.

A table's digest covers its field names, types and values, and the metadata under ``NAMES_KEY``. It
ignores other metadata, chunking, slice offsets, what lies in null slots, the bit pattern of NaN, 32
or 64-bit offsets of strings and lists, and the order of a struct's fields. The values of a
dictionary count, used or not, in order: they are categories. A column without type and values
counts as text, which it is under another version of pandas. Pure.
"""

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

NAMES_KEY = b"tenant_pipelines.names"
_BYTES = 16


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


class UnsupportedType(TypeError):
    """An Arrow type without a logical form here (unions, maps, extensions, run-end encoding)."""


def bytes_digest(data: bytes) -> str:
    """Return the digest of canonical bytes, as 32 hex digits."""
    return hashlib.blake2b(data, digest_size=_BYTES).hexdigest()


NONE_DIGEST = bytes_digest(b"none")


def table_digest(table: "pa.Table") -> str:
    """Return the digest of a table's logical content.

    Args:
        table: any Arrow table whose types ``logical_type`` knows.

    Returns:
        32 hex digits.

    Raises:
        UnsupportedType: a column has a type without a logical form.
    """
    hasher = hashlib.blake2b(b"table", digest_size=_BYTES)
    hasher.update(struct.pack("<QQ", table.num_rows, table.num_columns))
    hasher.update((table.schema.metadata or {}).get(NAMES_KEY, b""))
    for field, column in zip(table.schema, table.columns, strict=True):
        # one JSON text per field: no name can be mistaken for the end of another
        head = json.dumps([field.name, logical_type(field.type)]).encode()
        hasher.update(struct.pack("<Q", len(head)))
        hasher.update(head)
        _update(hasher, list(column.chunks), field.type)
    return hasher.hexdigest()


def logical_type(type_: "pa.DataType") -> str:
    """Return the name of a type's logical form, the same for all its encodings.

    Raises:
        UnsupportedType: it has none.
    """
    from pyarrow import types

    if types.is_dictionary(type_):
        return f"dictionary<{logical_type(type_.value_type)}, ordered={bool(type_.ordered)}>"
    if _is_text(type_):
        return "string"
    if _is_bytes(type_):
        return "binary"
    if types.is_list(type_) or types.is_large_list(type_):
        return f"list<{logical_type(type_.value_type)}>"
    if types.is_fixed_size_list(type_) and type_.list_size:  # Parquet loses lists without room
        return f"list<{logical_type(type_.value_type)}, {type_.list_size}>"
    if types.is_struct(type_):
        fields = [type_.field(index) for index in _field_order(type_)]
        return "struct" + json.dumps([[field.name, logical_type(field.type)] for field in fields])
    if types.is_primitive(type_) or types.is_decimal(type_):
        return str(type_)
    if types.is_fixed_size_binary(type_):
        return str(type_)
    raise UnsupportedType(str(type_))


def _field_order(type_: "pa.StructType") -> list[int]:
    return sorted(range(type_.num_fields), key=lambda index: type_.field(index).name)


def _is_text(type_: "pa.DataType") -> bool:
    from pyarrow import types

    return bool(
        types.is_string(type_)
        or types.is_large_string(type_)
        or types.is_string_view(type_)
        or types.is_null(type_)
    )


def _is_bytes(type_: "pa.DataType") -> bool:
    from pyarrow import types

    return bool(
        types.is_binary(type_) or types.is_large_binary(type_) or types.is_binary_view(type_)
    )


def _update(hasher: _Hash, chunks: "list[Any]", type_: "pa.DataType") -> None:
    """Feed one column: its length, which slots are null, then the values of the others."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(type_):
        _update(hasher, [chunk.dictionary for chunk in chunks[:1]], type_.value_type)
        chunks = [chunk.dictionary_decode() for chunk in chunks]
        type_ = type_.value_type
    if types.is_string_view(type_) or types.is_binary_view(type_):  # which cannot drop_null
        type_ = pa.large_string() if types.is_string_view(type_) else pa.large_binary()
        chunks = [chunk.cast(type_) for chunk in chunks]
    nulls = sum(chunk.null_count for chunk in chunks)
    hasher.update(struct.pack("<QQ", sum(len(chunk) for chunk in chunks), nulls))
    if nulls:
        for chunk in chunks:
            # a byte per value: bits of neighbouring chunks would not line up
            hasher.update(chunk.is_valid().cast("uint8").to_numpy(zero_copy_only=False))
        chunks = [chunk.drop_null() if chunk.null_count else chunk for chunk in chunks]
    if _is_text(type_) or _is_bytes(type_):
        _update_varying(hasher, chunks)
    elif types.is_list(type_) or types.is_large_list(type_):
        for chunk in chunks:
            hasher.update(np.ascontiguousarray(chunk.value_lengths().cast("int64").to_numpy()))
        _update(hasher, [chunk.flatten() for chunk in chunks], type_.value_type)
    elif types.is_fixed_size_list(type_):
        _update(hasher, [chunk.flatten() for chunk in chunks], type_.value_type)
    elif types.is_struct(type_):
        fields = [chunk.flatten() for chunk in chunks]
        for index in _field_order(type_):
            _update(hasher, [each[index] for each in fields], type_.field(index).type)
    else:
        for chunk in chunks:
            hasher.update(_fixed_width(chunk, type_))


def _update_varying(hasher: _Hash, chunks: "list[Any]") -> None:
    """Feed the lengths of all values, then their bytes."""
    import numpy as np
    from pyarrow import types

    spans = []
    for chunk in chunks:
        if not len(chunk):
            continue
        wide = types.is_large_string(chunk.type) or types.is_large_binary(chunk.type)
        _, offsets_buffer, data = chunk.buffers()
        offsets = np.frombuffer(offsets_buffer, dtype=np.int64 if wide else np.int32)
        offsets = offsets[chunk.offset : chunk.offset + len(chunk) + 1]
        lengths = np.diff(offsets)
        hasher.update(lengths.astype(np.uint32, copy=False))
        if data is not None:
            start, stop = int(offsets[0]), int(offsets[-1])
            spans.append(data.slice(start, stop - start))
    for span in spans:
        hasher.update(span)


def _fixed_width(chunk: Any, type_: "pa.DataType") -> Any:
    """Return the bytes of a chunk without nulls."""
    import numpy as np
    from pyarrow import types

    if not len(chunk):
        return b""
    if types.is_boolean(type_):
        return chunk.cast("uint8").to_numpy()
    if types.is_floating(type_):
        values = chunk.to_numpy()
        is_nan = np.isnan(values)
        if is_nan.any():
            values = np.where(is_nan, values.dtype.type("nan"), values)
        return np.ascontiguousarray(values)
    width = type_.bit_width // 8
    return chunk.buffers()[1].slice(chunk.offset * width, len(chunk) * width)
