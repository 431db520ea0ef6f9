"""The tables of an archive as Arrow IPC bytes, and back (spec.py sections 3 and 4).

Bytes that come from a file are checked by their crc32 before they reach this module; here the
structure is checked before anything is believed: one batch and nothing else, exact column names and
types of a closed list, no nulls where none belong, every buffer within bounds (framing.py looks before
Arrow allocates anything).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.base import CorruptArchiveError
from edcache.format.arrays import from_numpy, is_label_type, pa
from edcache.format.framing import Metadata, check_stream
from edcache.format.spec import MAX_LENGTH
from edcache.format.types import LabelTypes

_META: Final = b"edcache"
_LABEL: Final = "label/"
COLUMNS: Final = {
    "index": "int64",
    "offset": "uint64",
    "nbytes": "uint64",
    "crc32": "uint32",
    "schema": "uint16",
    "raw_nbytes": "uint64",
}
_REQUIRED: Final = ["offset", "nbytes", "crc32", "schema"]
_RECORDS: Final = [["index", *_REQUIRED, *raw] for raw in ([], ["raw_nbytes"])]
MAX_LABELS: Final = 1 << 16
MAX_SCHEMAS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Records:
    """One row per record, as numpy arrays [n] that may alias mapped memory.

    index: None where row i is sample i. nbytes, crc32: as stored. raw_nbytes: None without compression.
    """

    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    crc32: npt.NDArray[np.uint32]
    schema: npt.NDArray[np.uint16]
    index: npt.NDArray[np.int64] | None = None
    raw_nbytes: npt.NDArray[np.uint64] | None = None

    @property
    def samples(self) -> npt.NDArray[np.int64]:
        """Which sample each row is of."""
        return np.arange(len(self.offset)) if self.index is None else np.asarray(self.index)

    def take(self, rows: npt.NDArray[np.int64]) -> Records:
        """The given rows, copied."""
        return Records(**{name: column[rows] for name, column in self.columns().items()})

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns that there are, by name, in the order in which they are written."""
        named = {name: getattr(self, name) for name in COLUMNS}
        return {name: column for name, column in named.items() if column is not None}


class ChunkTable(NamedTuple):
    """The table of a chunk; offsets count from its first record.

    label_types: of this chunk and all before. behind_nbytes: behind the Arrow stream, the block crcs.
    """

    records: Records
    labels: pa.Table
    schemas: list[str]
    label_types: LabelTypes
    records_nbytes: int
    behind_nbytes: int = 0


class Blocks(NamedTuple):
    """Where the records of a chunk and the crc32 of their blocks lie: bytes from the start of the file."""

    crcs_offset: int
    records_offset: int
    records_nbytes: int


@dataclass(frozen=True, order=True, slots=True)
class Failure:
    """A sample that could not be made. final: it counts as absent for good; else a later fill tries again."""

    index: int
    final: bool
    error: str
    message: str
    traceback: str

    def to_json(self) -> list[Any]:
        """What `failures_of` reads."""
        return list(astuple(self))


def failures_of(value: Any) -> list[Failure]:
    """Read what JSON has of failures; ValueError for anything else."""
    failures = [Failure(*entry) for entry in entries_of(value, "failures", int, bool, str, str, str)]
    if any(not 0 <= failure.index < MAX_LENGTH for failure in failures):
        raise ValueError("one of its failures is none")
    return failures


def entries_of(value: Any, what: str, *kinds: type) -> list[list[Any]]:
    """A list out of JSON whose entries are lists of values of these types; ValueError for anything else."""
    if type(value) is not list:
        raise ValueError(f"its {what} are no list")
    if any(type(entry) is not list or tuple(map(type, entry)) != kinds for entry in value):
        raise ValueError(f"one of its {what} is none")
    return value


class IndexTable(NamedTuple):
    """What index.pages says, as arrays; offsets count from the start of the file.

    blocks: int64 [chunks, 3], a row of `Blocks` each. failures: of samples without a record, by rising index.
    labels: columns of labels.arrow, and whether a revision has rows of each; None without a revision.
    """

    records: Records
    length: int
    schemas: list[str]
    blocks: npt.NDArray[np.int64]
    failures: Sequence[Failure] = ()
    labels: Sequence[tuple[str, bool]] | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """Label columns that were added or dropped after the samples were written.

    dropped: columns that end before these begin. index: of each row, rising; None where row i is i.
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
    columns = _columns(table.records) | _label_columns(table.labels)
    meta = {
        "schemas": table.schemas,
        "records_nbytes": table.records_nbytes,
        "labels": table.label_types.to_json(),
    }
    return _packed(columns, meta)


def parse_chunk_table(data: Any, rows: int) -> ChunkTable:
    """A chunk's table of `rows` rows, over the bytes of `data`; CorruptArchiveError if it is none."""
    with reported("the chunk's table"):
        metadata, end = check_stream(data, len(COLUMNS) + MAX_LABELS)
        table = _read(data, rows, _RECORDS)
        meta = _meta(metadata, {"schemas", "records_nbytes", "labels"})
        labels = _label_table(table)
        records = _records(table)
        types = LabelTypes.from_json(meta["labels"])
        nbytes = meta["records_nbytes"]
        if type(nbytes) is not int or nbytes < 0:
            raise ValueError(f"it says that its records take {str(nbytes)[:80]} bytes")
        return ChunkTable(records, labels, schemas_of(meta["schemas"]), types, nbytes, len(data) - end)


def _label_table(table: pa.Table) -> pa.Table:
    names = [name for name in table.column_names if name.startswith(_LABEL)]
    labels = table.select(names).rename_columns([name[len(_LABEL) :] for name in names])
    labels.validate(full=True)
    return labels.replace_schema_metadata(None)


def pack_revision(revision: Revision) -> memoryview:
    """The Arrow IPC stream of a revision."""
    columns = {} if revision.index is None else {"index": from_numpy(revision.index, pa.int64())}
    meta = {"dropped": list(revision.dropped)}
    return _packed(columns | _label_columns(revision.labels), meta)


def parse_revision(data: Any, rows: int) -> Revision:
    """A revision of `rows` rows, over the bytes of `data`; CorruptArchiveError if it is none."""
    with reported("the revision's table"):
        metadata, end = check_stream(data, 1 + MAX_LABELS)
        if end != len(data):
            raise ValueError("bytes behind its table")
        table = _read(data, rows, [[], ["index"]])
        dropped = _meta(metadata, {"dropped"})["dropped"]
        if type(dropped) is not list or any(type(name) is not str for name in dropped):
            raise ValueError("the columns that it drops are not names")
        if len(set(dropped)) != len(dropped):
            raise ValueError("it drops a column twice")
        labels = _label_table(table)
        index = _values(table, "index") if "index" in table.column_names else None
        if (
            index is not None
            and len(index)
            and not (index[0] >= 0 and index[-1] < MAX_LENGTH and np.all(index[1:] > index[:-1]))
        ):
            raise ValueError("its index column is not strictly increasing from 0")
        if not labels.num_columns and (rows or not dropped):
            raise ValueError("it has no label column")
        return Revision(labels, dropped, index)


def spread(labels: pa.Table, index: npt.NDArray[np.int64] | None, length: int) -> pa.Table:
    """`labels`, whose rows are of the samples `index`, with one row per sample: null where no record is.

    Itself where it has those already; index: None where dense.
    """
    if index is None or len(index) == length or labels.num_rows == length:
        return labels
    rows = np.full(length, -1, np.int64)
    rows[index] = np.arange(len(index))
    return labels.take(from_numpy(rows, pa.int64(), rows < 0))


def _columns(records: Records) -> dict[str, pa.Array]:
    return {name: from_numpy(c, pa.type_for_alias(COLUMNS[name])) for name, c in records.columns().items()}


def _label_columns(labels: pa.Table) -> dict[str, pa.Array]:
    return {_LABEL + name: labels.column(name).combine_chunks() for name in labels.column_names}


def _packed(columns: Mapping[str, Any], meta: Mapping[str, Any]) -> memoryview:
    """Columns as an Arrow IPC stream of one batch."""
    text = json.dumps(meta, ensure_ascii=True, separators=(",", ":"))
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    schema = pa.schema(fields, metadata={_META: text.encode("ascii")})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    return memoryview(sink.getvalue())


def _read(data: Any, rows: int, columns: Sequence[list[str]]) -> pa.Table:
    """The one batch of an Arrow IPC stream, after columns that no writer makes are refused.

    columns: the choices of those that are no labels.
    """
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        own = [name for name in reader.schema.names if not name.startswith(_LABEL)]
        if own not in columns:
            raise ValueError(f"it has the columns {str(own)[:200]}")
        check_types(reader.schema, {name: COLUMNS[name] for name in own})
        table = reader.read_all()
    if table.num_rows != rows:
        raise ValueError(f"it has {table.num_rows} rows, the header says {rows}")
    for name in own:
        column = table.column(name)
        if column.null_count or column.num_chunks > 1:
            raise ValueError(f"column {name!r} has {column.null_count} nulls")
    return table


def check_types(schema: pa.Schema, own: Mapping[str, str]) -> None:
    """Check that no name is there twice, and that columns have the types of labels, or of their `own`."""
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two of its columns have one name")
    for field in schema:
        kind = str(field.type)
        if not (kind == own[field.name] if field.name in own else is_label_type(field.type)):
            raise ValueError(f"column {field.name[:80]!r} is {kind[:80]}, which no writer makes")


def _meta(metadata: Metadata, names: Set[str]) -> dict[str, Any]:
    """The object of JSON in a table's metadata, which has these names."""
    if metadata.keys() != {_META}:
        raise ValueError("it lacks its metadata, or has more")
    meta = base.loads(metadata[_META])
    if type(meta) is not dict or meta.keys() != names:
        raise ValueError("its metadata has other keys than are written")
    return meta


def _records(table: pa.Table) -> Records:
    return Records(**{name: _values(table, name) for name in table.column_names if name in COLUMNS})


def _values(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """A column of records, of which `_read` knows the type and that it has one chunk and no nulls."""
    column, dtype = table.column(name), np.dtype(COLUMNS[name])
    if not len(column):
        return np.empty(0, dtype)
    array = column.chunk(0)
    array.validate(full=True)
    values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    values.flags.writeable = False
    return values


def schemas_of(schemas: Any) -> list[str]:
    """Read what JSON has of schemas; ValueError for anything else."""
    if type(schemas) is not list or not all(type(schema) is str for schema in schemas):
        raise ValueError("its schemas are not texts")
    if len(schemas) > MAX_SCHEMAS:
        raise ValueError(f"it has {len(schemas):,} schemas, the format allows {MAX_SCHEMAS:,}")
    return schemas


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn what pyarrow and the checks above raise into a CorruptArchiveError."""
    try:
        yield
    except (
        pa.ArrowException,
        struct.error,
        ValueError,
        KeyError,
        TypeError,
        OSError,
        OverflowError,
    ) as error:
        raise CorruptArchiveError(f"{what} does not read: {str(error)[:500]}") from error
