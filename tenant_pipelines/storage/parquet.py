"""Arrow tables as Parquet bytes that give back the same table, and notice damage when read.

Parquet alone would turn dictionaries into plain values and seconds into milliseconds, so the file
carries the exact schema and the dictionaries in its own metadata, together with the content
digest. Other readers ignore that and see an ordinary file. What that cannot mend is refused.
"""

import base64
import functools
import hashlib
import io
from typing import IO, TYPE_CHECKING, Any

from tenant_pipelines.storage.digest import table_digest

if TYPE_CHECKING:
    import pyarrow as pa

_SHAPE = b"tenant_pipelines.shape"
_DIGEST = b"tenant_pipelines.digest"
_CHECK = b"tenant_pipelines.check"
# Thrift's default of 100 MB would refuse large dictionaries that the writer accepted
_MOST_METADATA_BYTES = 2**31 - 1


class DamagedParquet(ValueError):
    """Bytes that are not the file that was written."""


def check_storable(array: "pa.Array[Any]") -> None:
    """Refuse an array that ``read_table`` would not give back.

    Raises:
        pyarrow.ArrowException, ValueError: Parquet has no such type or no room for a value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values: Any = array
    if isinstance(array, pa.DictionaryArray):
        values = array.dictionary
        # as writing and reading do it; a null or the same category twice would not be found again
        array.slice(0, 0).cast(values.type)
        found = pc.index_in(values, value_set=values)
        if values.null_count or found.to_pylist() != list(range(len(values))):
            raise ValueError("categories that are not one by one different values")
    stored = _stored_type(values.type)
    if stored != values.type:
        again = values.cast(stored).cast(values.type)
        if table_digest(pa.table({"": again})) != table_digest(pa.table({"": values})):
            raise ValueError(f"a value that does not fit into Parquet's {stored}")


@functools.lru_cache(maxsize=1024)
def _stored_type(type_: "pa.DataType") -> "pa.DataType":
    """Return the type as which Parquet gives back a type: seconds come back as milliseconds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    try:
        pq.write_table(pa.table({"": pa.array([], type_)}), file)
        stored: pa.DataType = pq.ParquetFile(file).read().schema.field(0).type
    except OSError as error:  # what is nested too deep, for one
        raise ValueError(str(error)) from error
    return stored


def write_table(table: "pa.Table", file: IO[bytes], *, digest: str) -> None:
    """Write a table.

    Args:
        table: each column in one chunk that ``check_storable`` passed.
        file: receives the bytes.
        digest: of the table, to be compared when it is read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shape = _shape_of(table)
    check = _check(shape, digest.encode(), table.num_rows)
    plain = pa.Table.from_arrays(
        [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in table.columns
        ],
        names=table.column_names,
    ).replace_schema_metadata({_SHAPE: shape, _DIGEST: digest.encode(), _CHECK: check})
    pq.write_table(plain, file, write_page_checksum=True)


def read_table(file: Any, *, digest: str) -> "pa.Table":
    """Read a table back, comparing page checksums, shape, row count and recorded digest.

    Args:
        file: path or binary file.
        digest: what ``write_table`` was given.

    Raises:
        DamagedParquet: the bytes are not what was written, or hold another table.
        FileNotFoundError: there is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        plain = pq.ParquetFile(
            file,
            page_checksum_verification=True,
            thrift_string_size_limit=_MOST_METADATA_BYTES,
            thrift_container_size_limit=_MOST_METADATA_BYTES,
        ).read(use_threads=False)  # each thread would keep memory of its own
        metadata = plain.schema.metadata or {}
        shape, recorded = metadata[_SHAPE], metadata[_DIGEST]
        if metadata[_CHECK] != _check(shape, recorded, plain.num_rows):
            raise DamagedParquet("its metadata or its number of rows was changed")
        if recorded != digest.encode():
            raise DamagedParquet(f"it holds digest {recorded.decode()!r}, wanted {digest!r}")
        empty = pa.ipc.open_stream(base64.b64decode(shape)).read_all()
        columns = [
            _restored(column, model)
            for column, model in zip(plain.columns, empty.columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=empty.schema)
    except KeyError as error:
        raise DamagedParquet(f"its metadata lacks {error}") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise DamagedParquet(_brief(error)) from error
    except (pa.ArrowException, ValueError) as error:
        if isinstance(error, DamagedParquet):
            raise
        raise DamagedParquet(_brief(error)) from error


def _shape_of(table: "pa.Table") -> bytes:
    """Return the schema and the dictionaries: an Arrow stream of one batch without rows."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        # made anew: an empty slice of a string column would take all its bytes along
        columns: list[Any] = table.columns
        arrays = [
            pa.DictionaryArray.from_arrays(
                pa.array([], column.type.index_type),
                column.chunk(0).dictionary,
                ordered=column.type.ordered,
            )
            if pa.types.is_dictionary(column.type)
            else pa.array([], column.type)
            for column in columns
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=table.schema))
    return base64.b64encode(sink.getvalue())


def _check(shape: bytes, digest: bytes, rows: int) -> bytes:
    parts = hashlib.blake2b(shape, digest_size=16)
    parts.update(digest)
    parts.update(str(rows).encode())
    return parts.hexdigest().encode()


def _restored(column: Any, model: Any) -> Any:
    """Return a column in the type that was stored, ``model`` having its type and dictionary."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(model.type):
        return column if column.type == model.type else column.cast(model.type)
    values = column.cast(model.type.value_type)
    dictionary = model.chunk(0).dictionary
    indices = pc.index_in(values, value_set=dictionary).cast(model.type.index_type)
    if indices.null_count != values.null_count:
        raise DamagedParquet("it has categories that were not stored")
    flat = indices.combine_chunks()
    if isinstance(flat, pa.ChunkedArray):
        flat = flat.chunk(0) if flat.num_chunks else pa.array([], model.type.index_type)
    return pa.DictionaryArray.from_arrays(flat, dictionary, ordered=model.type.ordered)


def _brief(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
