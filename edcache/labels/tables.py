"""The three tables of an archive as Arrow IPC bytes, and back (format.py sections 3 and 4).

Bytes that come from a file are checked by their crc32 before they reach this module; here the
structure is checked before anything is believed: exact column names and types, no nulls where
none belong, no compressed buffers, no extension or dictionary types, every buffer within bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edcache.errors import CorruptArchiveError
from edcache.labels.arrays import from_numpy, number_values, numpy_dtype
from edcache.labels.columns import LabelTypes

_META: Final = b"edcache"
_LABEL: Final = "label/"
_COLUMNS: Final = {
    "index": pa.int64(),
    "offset": pa.uint64(),
    "nbytes": pa.uint64(),
    "crc32": pa.uint32(),
    "schema": pa.uint16(),
    "raw_nbytes": pa.uint64(),
}
_REQUIRED: Final = ("offset", "nbytes", "crc32", "schema")


@dataclass(frozen=True, slots=True)
class Records:
    """One row per record, as numpy arrays [n] that may alias mapped memory.

    index: int64, or None where row i is sample i. offset: uint64, bytes. nbytes: uint64, stored.
    crc32: uint32 of the stored bytes. schema: uint16. raw_nbytes: uint64, or None where nothing is
    compressed.
    """

    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    crc32: npt.NDArray[np.uint32]
    schema: npt.NDArray[np.uint16]
    index: npt.NDArray[np.int64] | None = None
    raw_nbytes: npt.NDArray[np.uint64] | None = None

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """The given rows, copied."""
        return Records(**{name: column[rows] for name, column in self.columns().items()})

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns that there are, by name, in the order in which they are written."""
        named = {name: getattr(self, name) for name in _COLUMNS}
        return {name: column for name, column in named.items() if column is not None}


class ChunkTable(NamedTuple):
    """What the table at the start of a chunk says. offset counts from the chunk's first record.

    label_types: of the label columns of this chunk and all before it. records_nbytes: from the first
    record to the end of the last.
    """

    records: Records
    labels: pa.Table
    schemas: list[str]
    label_types: LabelTypes
    records_nbytes: int


class Dictionary(NamedTuple):
    """Where a compression dictionary lies: bytes from the start of the file, and its crc32."""

    offset: int
    nbytes: int
    crc32: int


class Blocks(NamedTuple):
    """Where the records of a chunk and the crc32 of their blocks lie: bytes from the start of the file."""

    crcs_offset: int
    records_offset: int
    records_nbytes: int


@dataclass(frozen=True, order=True, slots=True)
class Failure:
    """A sample that could not be made.

    Attributes:
        index: its index. final: it counts as absent for good; else a later fill tries again.
        error: the name of what was raised. message: its text. traceback: as Python prints it.
    """

    index: int
    final: bool
    error: str
    message: str
    traceback: str

    def to_json(self) -> list[Any]:
        """What `failures_of` reads."""
        return [self.index, self.final, self.error, self.message, self.traceback]


def failures_of(said: Any) -> list[Failure]:
    """Read what JSON has of failures; ValueError for anything else."""
    if not isinstance(said, list):
        raise ValueError("its failures are no list")
    for entry in said:
        kinds = [type(part) for part in entry] if isinstance(entry, list) else None
        if kinds != [int, bool, str, str, str] or entry[0] < 0:
            raise ValueError("one of its failures is none")
    return [Failure(*entry) for entry in said]


class IndexTable(NamedTuple):
    """What index.arrow says. offset counts from the start of the file; blocks are by rising offset.

    failures: of samples without a record, by rising index.
    """

    records: Records
    length: int
    schemas: list[str]
    dictionaries: list[Dictionary]
    blocks: list[Blocks]
    failures: Sequence[Failure] = ()


def pack_chunk_table(table: ChunkTable) -> memoryview:
    """The Arrow IPC stream for the start of a chunk's payload."""
    columns = _columns(table.records)
    for name in table.labels.column_names:
        columns[_LABEL + name] = table.labels.column(name).combine_chunks()
    meta = {
        "schemas": table.schemas,
        "records_nbytes": table.records_nbytes,
        "labels": table.label_types.to_json(),
    }
    return _stream(_batch(columns, meta))


def parse_chunk_table(data: Any, rows: int) -> ChunkTable:
    """Read a chunk's table of `rows` rows; arrays alias `data`.

    Raises:
        CorruptArchiveError: the bytes are no such table; the caller says which chunk.
    """
    with _reported("the chunk's table"):
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        meta = _checked(table, rows, allow_labels=True)
        names = [name for name in table.column_names if name.startswith(_LABEL)]
        labels = table.select(names).rename_columns([name[len(_LABEL) :] for name in names])
        labels.validate(full=True)
        records = _records(table)
        if records.index is None:
            raise ValueError("it has no column 'index'")
        types = LabelTypes.from_json(meta["labels"])
        nbytes = meta["records_nbytes"]
        if type(nbytes) is not int or nbytes < 0:
            raise ValueError(f"it says that its records take {nbytes!r} bytes")
        labels = labels.replace_schema_metadata(None)
        return ChunkTable(records, labels, _texts(meta["schemas"]), types, nbytes)


def pack_index(table: IndexTable) -> memoryview:
    """The Arrow IPC file index.arrow."""
    meta: dict[str, Any] = {
        "length": table.length,
        "schemas": table.schemas,
        "dictionaries": table.dictionaries,
        "chunks": table.blocks,
    }
    if table.failures:
        meta["failed"] = [failure.to_json() for failure in table.failures]
    return _file(_batch(_columns(table.records), meta))


def parse_index(data: Any, rows: int) -> IndexTable:
    """Read index.arrow of `rows` rows; the arrays alias `data`, so a mapped file is not copied.

    Raises:
        CorruptArchiveError: the bytes are no such table.
    """
    with _reported("index.arrow"):
        table = _read_file(data)
        meta = _checked(table, rows, allow_labels=False)
        records, length = _records(table), meta["length"]
        if type(length) is not int or length < rows or (records.index is None and length != rows):
            raise ValueError(f"it has {rows} rows and claims {length!r} samples")
        if records.index is not None and not _is_index_column(records.index, length):
            raise ValueError("its index column is not strictly increasing within the length")
        dictionaries = [Dictionary(*(int(part) for part in entry)) for entry in meta["dictionaries"]]
        blocks = [Blocks(*(int(part) for part in entry)) for entry in meta["chunks"]]
        if not _are_apart(blocks):
            raise ValueError("its chunks overlap")
        failures = failures_of(meta.get("failed", []))
        if any(failure.index >= length for failure in failures):
            raise ValueError("one of its failures is of no sample")
        return IndexTable(records, length, _texts(meta["schemas"]), dictionaries, blocks, failures)


def pack_labels(labels: pa.Table) -> memoryview:
    """The Arrow IPC file labels.arrow: plain columns under their own names."""
    columns = {name: labels.column(name).combine_chunks() for name in labels.column_names}
    return _file(_batch(columns, {"rows": labels.num_rows}))


def parse_labels(data: Any, rows: int) -> pa.Table:
    """Read labels.arrow of `rows` rows; the columns alias `data`.

    Raises:
        CorruptArchiveError: the bytes are no such table.
    """
    with _reported("labels.arrow"):
        table = _read_file(data)
        if table.num_columns and table.num_rows != rows:
            raise ValueError(f"it has {table.num_rows} rows, the index has {rows}")
        _refuse_exotic(table.schema)
        table.validate(full=True)
        return table.replace_schema_metadata(None)


def spread(labels: pa.Table, index: npt.NDArray[np.int64] | None, length: int) -> pa.Table:
    """Give `labels` one row per sample: null where no record is there.

    Args:
        labels: rows as in `index`. index: int64 [rows], strictly increasing, or None when dense.
        length: samples of the dataset.
    Returns:
        `labels` itself when it is dense, else a copy of `length` rows.
    """
    if index is None or len(index) == length:
        return labels
    rows = np.full(length, -1, np.int64)
    rows[index] = np.arange(len(index))
    return labels.take(from_numpy(rows, pa.int64(), rows < 0))


def _columns(records: Records) -> dict[str, Any]:
    return {name: from_numpy(column, _COLUMNS[name]) for name, column in records.columns().items()}


def _batch(columns: Mapping[str, Any], meta: Mapping[str, Any]) -> pa.RecordBatch:
    text = json.dumps(meta, ensure_ascii=True, separators=(",", ":"))
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    schema = pa.schema(fields, metadata={_META: text.encode("ascii")})
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)


def _stream(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _file(batch: pa.RecordBatch) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _read_file(data: Any) -> pa.Table:
    reader = pa.ipc.open_file(pa.py_buffer(data))
    if reader.num_record_batches != 1:
        raise ValueError(f"it has {reader.num_record_batches} batches, one is written")
    batch = reader.get_batch(0)
    return pa.Table.from_batches([batch], schema=reader.schema)


def _checked(table: pa.Table, rows: int, allow_labels: bool) -> dict[str, Any]:
    """The table's metadata, once its columns are the ones that a writer makes."""
    if table.num_rows != rows:
        raise ValueError(f"it has {table.num_rows} rows, the header says {rows}")
    own = [name for name in table.column_names if not (allow_labels and name.startswith(_LABEL))]
    if own != [name for name in _COLUMNS if name in own] or not set(_REQUIRED) <= set(own):
        raise ValueError(f"it has the columns {own}")
    for name in own:
        column = table.column(name)
        if column.type != _COLUMNS[name] or column.null_count or column.num_chunks > 1:
            raise ValueError(f"column {name!r} is {column.type} with {column.null_count} nulls")
    _refuse_exotic(table.schema)
    meta = json.loads((table.schema.metadata or {}).get(_META, b"null"))
    if not isinstance(meta, dict):
        raise ValueError("it lacks its metadata")
    return meta


def _refuse_exotic(schema: pa.Schema) -> None:
    for field in schema:
        if isinstance(field.type, pa.BaseExtensionType) or pa.types.is_dictionary(field.type):
            raise ValueError(f"column {field.name!r} has type {field.type}, which no writer makes")


def _records(table: pa.Table) -> Records:
    return Records(**{name: _values(table.column(name)) for name in table.column_names if name in _COLUMNS})


def _values(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    if column.num_chunks == 0:
        return np.empty(0, numpy_dtype(column.type))
    array = column.chunk(0)
    array.validate(full=True)
    return number_values(array)


def _are_apart(blocks: list[Blocks]) -> bool:
    """Whether each chunk's block crcs and then its records lie behind those of the chunk before."""
    end = 0
    for crcs_offset, records_offset, nbytes in blocks:
        if nbytes < 0 or crcs_offset < end or records_offset < crcs_offset:
            return False
        end = records_offset + nbytes
    return True


def _is_index_column(index: npt.NDArray[np.int64], length: int) -> bool:
    if not len(index):
        return True
    return bool(index[0] >= 0 and index[-1] < length and np.all(index[1:] > index[:-1]))


def _texts(values: Sequence[Any]) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("its schemas are not texts")
    return values


class _reported:
    """Turn what pyarrow and the checks above raise into a CorruptArchiveError."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(
            error,
            (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError),
        ):
            raise CorruptArchiveError(f"{self.what} does not read: {error}") from error
