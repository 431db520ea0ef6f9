"""The tables of an archive as Arrow IPC bytes, and back (format.py sections 3 and 4).

Bytes that come from a file are checked by their crc32 before they reach this module; here the
structure is checked before anything is believed: one batch and nothing else, exact column names and
types of a closed list, no nulls where none belong, every buffer within bounds (framing.py looks before
Arrow allocates anything).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edcache import bounded
from edcache.errors import CorruptArchiveError
from edcache.labels.arrays import from_numpy, number_values, numpy_dtype
from edcache.labels.columns import LabelTypes
from edcache.labels.framing import Metadata, check_file, check_stream
from edcache.labels.values import is_label_type

_META: Final = b"edcache"
_CHUNKS: Final = b"edcache.chunks"
_LABEL: Final = "label/"
_COLUMNS: Final = {
    "index": pa.int64(),
    "offset": pa.uint64(),
    "nbytes": pa.uint64(),
    "crc32": pa.uint32(),
    "schema": pa.uint16(),
    "raw_nbytes": pa.uint64(),
}
MAX_LABELS: Final = 1 << 16
MAX_SCHEMAS: Final = 1 << 16
_MOST_SAMPLES: Final = 1 << 62
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
    record to the end of the last. behind_nbytes: of what lies behind the Arrow stream, the block crcs.
    """

    records: Records
    labels: pa.Table
    schemas: list[str]
    label_types: LabelTypes
    records_nbytes: int
    behind_nbytes: int = 0


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
        if kinds != [int, bool, str, str, str] or not 0 <= entry[0] < 1 << 62:
            raise ValueError("one of its failures is none")
    return [Failure(*entry) for entry in said]


class IndexTable(NamedTuple):
    """What index.arrow says. offset counts from the start of the file.

    blocks: int64 [chunks, 3], a row of `Blocks` each, by rising offset. failures: of samples without a
    record, by rising index. labels: the columns of labels.arrow and whether a revision has rows of each;
    None where the chain has no revision.
    """

    records: Records
    length: int
    schemas: list[str]
    dictionaries: list[Dictionary]
    blocks: npt.NDArray[np.int64]
    failures: Sequence[Failure] = ()
    labels: Sequence[tuple[str, bool]] | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """Label columns that were added or dropped after the samples were written.

    labels: the rows of each column. dropped: columns that end before these begin. index: int64, the sample
    of each row, strictly rising; None where row i is sample i.
    """

    labels: pa.Table
    dropped: Sequence[str] = ()
    index: npt.NDArray[np.int64] | None = None

    @property
    def end_index(self) -> int:
        """One more than the last sample that it has a row of."""
        if self.index is None:
            return int(self.labels.num_rows)
        return int(self.index[-1]) + 1 if len(self.index) else 0


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
        metadata, end = check_stream(data, len(_COLUMNS) + MAX_LABELS)
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            _check_columns(reader.schema, allow_labels=True)
            table = reader.read_all()
        _check_rows(table, rows)
        meta = _said(metadata, {_META}, {"schemas", "records_nbytes", "labels"})
        labels = _label_table(table)
        records = _records(table)
        if records.index is None:
            raise ValueError("it has no column 'index'")
        types = LabelTypes.from_json(meta["labels"])
        nbytes = meta["records_nbytes"]
        if type(nbytes) is not int or nbytes < 0:
            raise ValueError(f"it says that its records take {str(nbytes)[:80]} bytes")
        behind = len(data) - end
        return ChunkTable(records, labels, _texts(meta["schemas"]), types, nbytes, behind)


def _label_table(table: pa.Table) -> pa.Table:
    names = [name for name in table.column_names if name.startswith(_LABEL)]
    labels = table.select(names).rename_columns([name[len(_LABEL) :] for name in names])
    labels.validate(full=True)
    return labels.replace_schema_metadata(None)


def pack_index(table: IndexTable) -> memoryview:
    """The Arrow IPC file index.arrow."""
    meta: dict[str, Any] = {
        "length": table.length,
        "schemas": table.schemas,
        "dictionaries": table.dictionaries,
    }
    if table.failures:
        meta["failed"] = [failure.to_json() for failure in table.failures]
    if table.labels is not None:
        meta["labels"] = [[name, is_revised] for name, is_revised in table.labels]
    # No JSON: a quarter of a million chunks would take its parser longer than all else.
    chunks = base64.b64encode(table.blocks.astype("<i8").tobytes())
    return _file(_batch(_columns(table.records), meta, {_CHUNKS: chunks}))


def parse_index(data: Any, rows: int) -> IndexTable:
    """Read index.arrow of `rows` rows; the arrays alias `data`, so a mapped file is not copied.

    Raises:
        CorruptArchiveError: the bytes are no such table.
    """
    with _reported("index.arrow"):
        metadata = check_file(data, len(_COLUMNS))
        names = {"length", "schemas", "dictionaries", "failed", "labels"}
        meta = _said(metadata, {_META, _CHUNKS}, names, {"failed", "labels"})
        table = _read_file(data, allow_labels=False)
        _check_rows(table, rows)
        records, length = _records(table), meta["length"]
        if type(length) is not int or length < rows or (records.index is None and length != rows):
            raise ValueError(f"it has {rows} rows and claims {str(length)[:80]} samples")
        if records.index is not None and not _is_index_column(records.index, length):
            raise ValueError("its index column is not strictly increasing within the length")
        blocks = _blocks(metadata[_CHUNKS])
        dictionaries = _dictionaries(meta["dictionaries"])
        failures = failures_of(meta.get("failed", []))
        if any(failure.index >= length for failure in failures):
            raise ValueError("one of its failures is of no sample")
        labels = _label_columns(meta["labels"]) if "labels" in meta else None
        return IndexTable(records, length, _texts(meta["schemas"]), dictionaries, blocks, failures, labels)


def _label_columns(said: Any) -> list[tuple[str, bool]]:
    if type(said) is not list or any(type(entry) is not list for entry in said):
        raise ValueError("its label columns are no list")
    if any([type(part) for part in entry] != [str, bool] for entry in said):
        raise ValueError("one of its label columns is none")
    if len(dict(said)) != len(said):
        raise ValueError("two of its label columns have one name")
    return [(name, is_revised) for name, is_revised in said]


def _blocks(text: memoryview) -> npt.NDArray[np.int64]:
    blocks = np.frombuffer(base64.b64decode(text, validate=True), "<i8").reshape(-1, 3)
    if not _are_apart(blocks):
        raise ValueError("its chunks overlap")
    return blocks.astype(np.int64, copy=False)


def _dictionaries(said: Any) -> list[Dictionary]:
    if type(said) is not list:
        raise ValueError("its dictionaries are no list")
    end = 0
    for entry in said:
        if type(entry) is not list or len(entry) != 3 or any(type(part) is not int for part in entry):
            raise ValueError("one of its dictionaries is none")
        if entry[0] < end or entry[1] < 0:
            raise ValueError("its dictionaries overlap")
        end = entry[0] + entry[1]
    return [Dictionary(*entry) for entry in said]


def pack_revision(revision: Revision) -> memoryview:
    """The Arrow IPC stream of a revision."""
    columns = {} if revision.index is None else {"index": from_numpy(revision.index, pa.int64())}
    for name in revision.labels.column_names:
        columns[_LABEL + name] = revision.labels.column(name).combine_chunks()
    return _stream(_batch(columns, {"dropped": list(revision.dropped)}))


def parse_revision(data: Any, rows: int) -> Revision:
    """Read a revision of `rows` rows; its arrays alias `data`.

    Raises:
        CorruptArchiveError: the bytes are no such table; the caller says which entry.
    """
    with _reported("the revision's table"):
        metadata, end = check_stream(data, 1 + MAX_LABELS)
        if end != len(data):
            raise ValueError("bytes behind its table")
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            _check_columns(reader.schema, allow_labels=True, allowed=([], ["index"]))
            table = reader.read_all()
        _check_rows(table, rows)
        dropped = _said(metadata, {_META}, {"dropped"})["dropped"]
        if type(dropped) is not list or any(type(name) is not str for name in dropped):
            raise ValueError("the columns that it drops are not names")
        if len(set(dropped)) != len(dropped):
            raise ValueError("it drops a column twice")
        labels = _label_table(table)
        index = _values(table.column("index")) if "index" in table.column_names else None
        if index is not None and not _is_index_column(index, _MOST_SAMPLES):
            raise ValueError("its index column is not strictly increasing from 0")
        if not labels.num_columns and (rows or not dropped):
            raise ValueError("it has no label column")
        return Revision(labels, dropped, index)


def pack_labels(labels: pa.Table) -> memoryview:
    """The Arrow IPC file labels.arrow: plain columns under their own names."""
    columns = {name: labels.column(name).combine_chunks() for name in labels.column_names}
    return _file(_batch(columns, {"rows": labels.num_rows}))


def parse_labels(
    data: Any, rows: int, names: Sequence[str] | None = None, told_by: str = "the head"
) -> pa.Table:
    """Read labels.arrow of `rows` rows; the columns alias `data`.

    Args:
        names: of the columns that it must have; None where the caller compares them itself.
        told_by: who says so, for the error.
    Raises:
        CorruptArchiveError: the bytes are no such table.
    """
    with _reported("labels.arrow"):
        check_file(data, MAX_LABELS if names is None else len(names))
        table = _read_file(data, allow_labels=True, prefix="")
        if names is not None and table.column_names != list(names):
            raise ValueError(f"it has other columns than {told_by} says")
        if table.num_columns and table.num_rows != rows:
            raise ValueError(f"it has {table.num_rows} rows, the index has {rows}")
        table.validate(full=True)
        return table.replace_schema_metadata(None)


def spread(labels: pa.Table, index: npt.NDArray[np.int64] | None, length: int) -> pa.Table:
    """Give `labels` one row per sample: null where no record is there.

    Args:
        labels: rows as in `index`, or `length` of them. index: int64 [rows], strictly increasing, or None
            when dense.
        length: samples of the dataset.
    Returns:
        `labels` itself when it has a row per sample, else a copy of `length` rows.
    """
    if index is None or len(index) == length or labels.num_rows == length:
        return labels
    rows = np.full(length, -1, np.int64)
    rows[index] = np.arange(len(index))
    return labels.take(from_numpy(rows, pa.int64(), rows < 0))


def _columns(records: Records) -> dict[str, Any]:
    return {name: from_numpy(column, _COLUMNS[name]) for name, column in records.columns().items()}


def _batch(
    columns: Mapping[str, Any], meta: Mapping[str, Any], more: Mapping[bytes, bytes] | None = None
) -> pa.RecordBatch:
    text = json.dumps(meta, ensure_ascii=True, separators=(",", ":"))
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    schema = pa.schema(fields, metadata={_META: text.encode("ascii"), **(more or {})})
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


def _read_file(data: Any, *, allow_labels: bool, prefix: str = _LABEL) -> pa.Table:
    reader = pa.ipc.open_file(pa.py_buffer(data))
    _check_columns(reader.schema, allow_labels=allow_labels, prefix=prefix)
    return pa.Table.from_batches([reader.get_batch(0)], schema=reader.schema)


def _check_columns(
    schema: pa.Schema,
    *,
    allow_labels: bool,
    prefix: str = _LABEL,
    allowed: Sequence[list[str]] | None = None,
) -> None:
    """Refuse columns that no writer makes, before a batch is read.

    allowed: the choices of columns that are no labels; None for those of records.
    """
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two of its columns have one name")
    is_label = [allow_labels and name.startswith(prefix) for name in schema.names]
    own = [name for name, label in zip(schema.names, is_label, strict=True) if not label]
    if allowed is None:
        is_known = own == [name for name in _COLUMNS if name in own] and set(_REQUIRED) <= set(own)
    else:
        is_known = own in allowed
    if prefix and not is_known:
        raise ValueError(f"it has the columns {str(own)[:200]}")
    for field, label in zip(schema, is_label, strict=True):
        if not (is_label_type(field.type) if label else field.type == _COLUMNS[field.name]):
            raise ValueError(f"column {field.name[:80]!r} is {str(field.type)[:80]}, which no writer makes")


def _check_rows(table: pa.Table, rows: int) -> None:
    if table.num_rows != rows:
        raise ValueError(f"it has {table.num_rows} rows, the header says {rows}")
    for name in table.column_names:
        column = table.column(name)
        if name in _COLUMNS and (column.null_count or column.num_chunks > 1):
            raise ValueError(f"column {name!r} has {column.null_count} nulls")


def _said(
    metadata: Metadata, keys: Set[bytes], names: Set[str], optional: Set[str] = frozenset()
) -> dict[str, Any]:
    """What a table's metadata says."""
    if metadata.keys() != keys:
        raise ValueError("it lacks its metadata, or has more")
    said = bounded.loads(metadata[_META])
    if type(said) is not dict or not names - optional <= said.keys() <= names:
        raise ValueError("its metadata has other keys than are written")
    return said


def _records(table: pa.Table) -> Records:
    return Records(**{name: _values(table.column(name)) for name in table.column_names if name in _COLUMNS})


def _values(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    if column.num_chunks == 0:
        return np.empty(0, numpy_dtype(column.type))
    array = column.chunk(0)
    array.validate(full=True)
    return number_values(array)


def _are_apart(blocks: npt.NDArray[np.int64]) -> bool:
    """Whether each chunk's block crcs and then its records lie behind those of the chunk before."""
    if not len(blocks):
        return True
    if blocks.min() < 0 or blocks.max() >= 1 << 61:  # so that no sum wraps
        return False
    crcs, records, nbytes = blocks.T
    return bool(np.all(records >= crcs) and np.all(crcs[1:] >= (records + nbytes)[:-1]))


def _is_index_column(index: npt.NDArray[np.int64], length: int) -> bool:
    if not len(index):
        return True
    return bool(index[0] >= 0 and index[-1] < length and np.all(index[1:] > index[:-1]))


def _texts(values: Sequence[Any]) -> list[str]:
    if type(values) is not list or not all(type(value) is str for value in values):
        raise ValueError("its schemas are not texts")
    if len(values) > MAX_SCHEMAS:
        raise ValueError(f"it has {len(values):,} schemas, the format allows {MAX_SCHEMAS:,}")
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
            (pa.ArrowException, ValueError, KeyError, TypeError, OSError, OverflowError),
        ):
            raise CorruptArchiveError(f"{self.what} does not read: {str(error)[:500]}") from error
