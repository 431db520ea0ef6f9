"""labels.arrow: an Arrow IPC file of record batches, and behind them a table of where each column lies.

A reader takes names and types from the footer and everything else from that table (spec.py section 4), so it
never looks at the messages of the batches. `checked_labels` proves that they say the same to other readers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptArchiveError
from edcache.format.arrays import from_numpy, is_list, is_number, is_text, is_time, number_values, pa
from edcache.format.framing import (
    END,
    FILE_START,
    BatchFrame,
    check_batches,
    check_footer,
    pack_footer,
    read_batch,
)
from edcache.format.spec import Header, align, crc32
from edcache.format.tables import MAX_LABELS, Revision, check_types, reported

BATCH_ROWS: Final = 1 << 18
"""Rows of each batch that is written but the last."""
_MOST_ROWS: Final = 1 << 20
_MOST_BUFFERS: Final = 5
_UNBOUNDED: Final = 1 << 61  # so that no sum wraps
# One batch of one column. is_bounded: it has values, from least to most, which are int64, uint64 or float64.
_PART: Final = np.dtype(
    [
        *(("at", "<u8"), ("sizes", "<u8", (_MOST_BUFFERS,)), ("items", "<u8"), ("nulls", "<u8")),
        *(("item_nulls", "<u8"), ("crc32", "<u4"), ("is_bounded", "<u4"), ("least", "<u8"), ("most", "<u8")),
    ]
)
_ROWS: Final = struct.Struct("<QQ")


class Extent(NamedTuple):
    """Bytes of the payload of labels.arrow, from `at` on, and their crc32."""

    at: int
    nbytes: int
    crc32: int


Load = Callable[[Sequence[Extent]], Sequence[memoryview]]
"""Returns the bytes of extents, which it has checked; raises CorruptArchiveError."""


class Layer(NamedTuple):
    """Values that a revision puts over those in the file. rows: where; None: from the first on."""

    values: pa.ChunkedArray
    rows: npt.NDArray[np.int64] | None

    def part(self, start: int, length: int) -> tuple[Any, pa.ChunkedArray]:
        """Which of so many rows from `start` on it has, counted from there, and their values."""
        if self.rows is None:
            values = self.values.slice(start, length)
            return np.arange(len(values)), values
        low, high = np.searchsorted(self.rows, (start, start + length)).tolist()
        return self.rows[low:high] - start, self.values.slice(low, high - low)


class Written(NamedTuple):
    """What a `LabelFile` wrote: the payload, and the table at its end."""

    nbytes: int
    crc32: int
    table_nbytes: int
    table_crc: int


# ---- writing


class LabelFile:
    """Writes labels.arrow to a sink, batch by batch, of tables that come one after another.

    Args:
        sink: called with bytes, in their order. schema: the columns of all tables.
    """

    def __init__(self, sink: Callable[[Any], object], schema: pa.Schema) -> None:
        self._sink, self._schema = sink, schema.remove_metadata()
        self._nbytes = self._crc = self._rows = self._pending_rows = 0
        self._batch_rows = BATCH_ROWS
        self._pending: list[pa.Table] = []
        self._blocks: list[tuple[int, int, int]] = []
        self._parts: list[Any] = []
        self._schema_message = memoryview(self._schema.serialize())
        self._put(FILE_START)
        self._put(self._schema_message)

    def write(self, table: pa.Table) -> None:
        """Take the next rows."""
        if not len(self._schema) or not table.num_rows:
            return
        self._pending.append(table)
        self._pending_rows += table.num_rows
        if self._pending_rows >= self._batch_rows:
            rows = pa.concat_tables(self._pending)
            start = 0
            while rows.num_rows - start >= self._batch_rows:
                self._write_batch(rows.slice(start, self._batch_rows))
                start += self._batch_rows
            self._pending, self._pending_rows = [rows.slice(start)], rows.num_rows - start

    def finish(self) -> Written:
        """Write what is left, and the table."""
        if self._pending_rows:
            self._write_batch(pa.concat_tables(self._pending))
        self._put(END)
        parts = b"".join(part.tobytes() for part in self._parts)
        footer = pack_footer(self._schema_message, self._blocks)
        table = parts + _ROWS.pack(self._rows, self._batch_rows) + footer
        self._put(table)
        return Written(self._nbytes, self._crc, len(table), crc32(table))

    def _write_batch(self, rows: pa.Table) -> None:
        # Copied, so that behind the bits of a slice there are none of the rows that follow it.
        arrays = [pa.concat_arrays(column.chunks) for column in rows.columns]
        message = memoryview(pa.RecordBatch.from_arrays(arrays, schema=self._schema).serialize())
        batch, _ = read_batch(message, 0)
        nodes, buffers = iter(batch.nodes), iter(batch.buffers)
        parts = np.zeros(len(arrays), _PART)
        for part, array in zip(parts, arrays, strict=True):
            _, part["nulls"] = next(nodes)
            if is_list(array.type):
                part["items"], part["item_nulls"] = next(nodes)
            places = [next(buffers) for _ in range(_buffer_count(array.type))]
            part["at"] = places[0][0] if places else 0
            part["sizes"][: len(places)] = [nbytes for _, nbytes in places]
            start, nbytes, _ = _extent(part)
            part["crc32"] = crc32(message[start : start + nbytes])
            part["is_bounded"], part["least"], part["most"] = _bounds(array)
        _check_batch(batch, parts, self._schema, rows.num_rows)
        parts["at"] += np.uint64(self._nbytes)
        self._parts.append(parts)
        self._blocks.append((self._nbytes, *batch.block[1:]))
        self._rows += rows.num_rows
        self._put(message)

    def _put(self, data: Any) -> None:
        self._sink(data)
        self._nbytes += len(data)
        self._crc = crc32(data, self._crc)


def _buffer_count(kind: pa.DataType) -> int:
    if is_list(kind):
        return 2 + _buffer_count(kind.value_type)
    return 0 if pa.types.is_null(kind) else 3 if is_text(kind) else 2


def _bound_dtype(kind: pa.DataType) -> str | None:
    """How the bounds of a column are kept; None where its type has no order."""
    if is_number(kind):
        return "<f8" if pa.types.is_floating(kind) else "<u8" if pa.types.is_unsigned_integer(kind) else "<i8"
    return "<i8" if is_time(kind) or pa.types.is_boolean(kind) else None


def _bounds(array: pa.Array) -> tuple[bool, int, int]:
    """True if an array has values with an order, the least and the greatest of them, as bits."""
    dtype = _bound_dtype(array.type)
    if dtype is None or array.null_count == len(array):
        return False, 0, 0
    values = number_values(array)
    if is_time(array.type):
        values = values.view("<i8")
    if dtype == "<f8":
        with np.errstate(invalid="ignore"):  # a signalling nan
            ends = [np.fmin.reduce(values), np.fmax.reduce(values)]
        if ends[0] != ends[0]:
            return False, 0, 0
        ends = [end + 0.0 for end in ends]  # -0.0 becomes 0.0
    else:
        ends = [values.min(), values.max()]
    least, most = np.array(ends).astype(dtype).view("<u8").tolist()
    return True, least, most


# ---- reading


class StoredLabels:
    """The columns of a labels.arrow: a batch of a column is read and checked at its first use.

    Args:
        parts: of the table, [batches, columns]. load: reads bytes of the payload. where: it, in messages.
    Attributes:
        schema, num_rows: as of a pyarrow Table. parts: as given. lengths: rows of each batch.
    Raises: CorruptArchiveError, at the first use of a column.
    Safety: threads may use it at once; two may read one batch.
    """

    def __init__(
        self, schema: pa.Schema, parts: npt.NDArray[Any], rows: int, batch_rows: int, load: Load, where: str
    ) -> None:
        self.schema, self.num_rows = schema, rows
        self.parts, self._load, self._where = parts, load, where
        self.lengths = (
            [min(batch_rows, rows - start) for start in range(0, rows, batch_rows)] if len(parts) else []
        )
        self._arrays: dict[tuple[int, int], pa.Array] = {}
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._taken: pa.Array | None = None
        self._layers: dict[str, list[Layer]] = {}
        self._absent: set[str] = set()

    def revised(self, revisions: Sequence[Revision]) -> StoredLabels:
        """The same with revisions behind the seal applied, of which row i is sample i.

        Raises: CorruptArchiveError, what no writer puts behind a seal: other types, or over no rows.
        """
        kinds = {field.name: field.type for field in self.schema}
        layers: dict[str, list[Layer]] = {}
        absent: set[str] = set()
        for revision in revisions:
            for name in revision.dropped:
                kinds.pop(name, None)
                layers.pop(name, None)
                absent.add(name)
            for field, values in zip(revision.labels.schema, revision.labels.columns, strict=True):
                kind = kinds.setdefault(field.name, field.type)
                if field.type not in (kind, pa.null()):
                    raise CorruptArchiveError(
                        f"{self._where}: {field.name[:80]!r} is {kind}, {field.type} in a revision behind "
                        "the seal; no release of edcache wrote that: build the archive again"
                    )
                layers.setdefault(field.name, []).append(Layer(values, revision.index))
        if revisions and not self.parts.size:
            raise CorruptArchiveError(f"{self._where}: revisions follow a seal that has no labels")
        new = copy(self)
        new.schema = pa.schema(list(kinds.items()))
        new.parts = np.zeros((len(self.parts), len(kinds)), _PART)
        new._absent = {name for name in kinds if name in absent or name not in self.schema.names}
        for k, name in enumerate(kinds):
            if name not in new._absent:
                new.parts[:, k] = self.parts[:, self.schema.get_field_index(name)]
        new._arrays, new._columns, new._layers = {}, {}, layers
        return new

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in their order."""
        names: list[str] = self.schema.names
        return names

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that were read."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def table(self) -> pa.Table:
        """All columns."""
        self.read(self.column_names)
        return pa.table({name: self.column(name) for name in self.column_names})

    def column(self, name: str) -> pa.ChunkedArray:
        """One column, over the bytes that were read; a chunk for each batch."""
        column = self._columns.get(name)
        if column is None:
            self.read([name])
            k = self.schema.get_field_index(name)
            chunks = [self._arrays[number, k] for number in range(len(self.parts))]
            kind = self.schema.field(k).type
            column = pa.chunked_array(chunks or [pa.nulls(0, kind)], kind)
            self._columns[name] = column if self._taken is None else column.take(self._taken)
        return self._columns[name]

    def read(self, names: Sequence[str]) -> None:
        """Read what columns lack, together."""
        columns = [self.schema.get_field_index(name) for name in names]
        new = [(n, k) for n in range(len(self.parts)) for k in columns if (n, k) not in self._arrays]
        if not new:
            return
        loaded = self._load([_extent(self.parts[n, k]) for n, k in new])
        with reported(self._where):
            for (n, k), data in zip(new, loaded, strict=True):
                self._arrays[n, k] = self._array(n, k, data)

    def _array(self, number: int, k: int, data: memoryview) -> pa.Array:
        field, length = self.schema.field(k), self.lengths[number]
        if field.name in self._absent:
            array = pa.nulls(length, field.type)
        else:
            array = self._stored_array(field, length, self.parts[number, k], data)
        pick, parts = np.arange(length), [array]
        for layer in self._layers.get(field.name, ()):
            rows, values = layer.part(number * self.lengths[0], length)
            pick[rows] = np.arange(len(rows)) + sum(map(len, parts))
            is_null = pa.types.is_null(values.type)
            parts += [pa.nulls(len(rows), field.type)] if is_null else values.chunks
        return pa.concat_arrays(parts).take(from_numpy(pick, pa.int64())) if len(parts) > 1 else array

    def _stored_array(self, field: pa.Field, length: int, part: Any, data: memoryview) -> pa.Array:
        buffers, at = [], 0
        for nbytes in part["sizes"].tolist():
            buffers.append(pa.py_buffer(data[at : at + nbytes]) if nbytes else None)
            at = align(at + nbytes, 8)
        array = _from_buffers(field.type, length, buffers, part)
        array.validate(full=True)
        return array

    def take(self, rows: pa.Array) -> StoredLabels:
        """The given rows, null for a row of null, taken of each column at its first use."""
        taken = copy(self)
        taken._taken, taken.num_rows, taken._columns = rows, len(rows), {}
        return taken

    def check_bounds(self) -> None:
        """Check what the table says of the values; reads all of it."""
        self.read(self.column_names)
        for (n, k), array in self._arrays.items():
            part = self.parts[n, k]
            if _bounds(array) != (part["is_bounded"], part["least"], part["most"]):
                raise CorruptArchiveError(
                    f"labels.arrow has other bounds than values in {self.column_names[k][:80]!r}"
                )


def _extent(part: Any) -> Extent:
    nbytes = sum(align(size, 8) for size in part["sizes"].tolist())
    return Extent(int(part["at"]), nbytes, int(part["crc32"]))


def _check_batch(batch: BatchFrame, parts: npt.NDArray[Any], schema: pa.Schema, rows: int) -> None:
    """Check that a batch's message says of its columns what the table says."""
    nodes, buffers = [], []
    for part, field in zip(parts, schema, strict=True):
        nodes.append((rows, int(part["nulls"])))
        if is_list(field.type):
            nodes.append((int(part["items"]), int(part["item_nulls"])))
        at = int(part["at"])
        for nbytes in part["sizes"].tolist()[: _buffer_count(field.type)]:
            buffers.append((at, nbytes))
            at = align(at + nbytes, 8)
    if (batch.rows, batch.nodes, batch.buffers) != (rows, nodes, buffers):
        raise ValueError("a batch is not where its table says")


def _from_buffers(kind: pa.DataType, length: int, buffers: list[Any], part: Any) -> pa.Array:
    """An array that lies in these buffers; ValueError where it has other nulls than the table says."""
    nulls = int(part["nulls"])
    if pa.types.is_null(kind):
        array = pa.nulls(length)
    elif is_list(kind):
        inner = {"nulls": part["item_nulls"]}
        items = _from_buffers(kind.value_type, int(part["items"]), buffers[2:], inner)
        array = pa.Array.from_buffers(kind, length, buffers[:2], children=[items])
    else:
        count = _buffer_count(kind)
        array = pa.Array.from_buffers(
            kind, length, [buffers[0], *(b or pa.py_buffer(b"") for b in buffers[1:count])]
        )
    array.validate()  # before the nulls are counted: within its buffer
    if array.null_count != nulls:
        raise ValueError(f"it has {array.null_count:,} nulls, its table says {nulls:,}")
    return array


def parse_label_table(
    table: Any,
    payload_nbytes: int,
    rows: int,
    load: Load,
    names: Sequence[str] | None = None,
    told_by: str = "the head",
    where: str = "",
) -> StoredLabels:
    """The columns of a labels.arrow, of the table at its end; CorruptArchiveError if it is none.

    Args:
        table: checked bytes. rows: of the columns. names: that it must have, as `told_by` says; None for any.
        where: the archive's path, for messages.
    """
    table = memoryview(table).cast("B")
    what = f"{where}: labels.arrow" if where else "labels.arrow"
    with reported(what):
        footer, _ = check_footer(table, MAX_LABELS if names is None else len(names))
        with pa.ipc.open_file(pa.py_buffer(table)) as file:  # no more of it than the footer
            schema = file.schema.remove_metadata()
        check_types(schema, {})
        if names is not None and schema.names != list(names):
            raise ValueError(f"it has other columns than {told_by} says")
        stored, batch_rows = _ROWS.unpack_from(table, footer - _ROWS.size) if footer >= _ROWS.size else (0, 0)
        if stored != (rows if len(schema) else 0):
            raise ValueError(f"it has {stored:,} rows, the index has {rows:,}")
        if not 0 < batch_rows <= _MOST_ROWS:
            raise ValueError(f"batches of {batch_rows:,} rows")
        shape = -(-stored // batch_rows), len(schema)
        if footer != shape[0] * shape[1] * _PART.itemsize + _ROWS.size:
            raise ValueError("a table of another size than its columns need")
        parts = np.frombuffer(table, _PART, shape[0] * shape[1]).reshape(shape)
        _check_parts(parts, schema, payload_nbytes - len(table))
    return StoredLabels(schema, parts, stored, batch_rows, load, what)


def _check_parts(parts: npt.NDArray[Any], schema: pa.Schema, end: int) -> None:
    """Check that the buffers lie one behind the other, up to `end`, as many as the types have."""
    counts = np.array([_buffer_count(field.type) for field in schema], np.int64)
    sizes, at = parts["sizes"], parts["at"]
    if max(values.max(initial=0) for values in (sizes, at, parts["items"])) >= _UNBOUNDED:
        raise ValueError("numbers beyond all bytes")
    has = np.arange(_MOST_BUFFERS) < counts[:, np.newaxis]
    ends = (at + ((sizes + np.uint64(7)) & ~np.uint64(7)).sum(axis=2))[:, counts > 0].reshape(-1)
    starts = at[:, counts > 0].reshape(-1)
    if np.any(sizes[:, ~has]) or np.any(starts % 8) or np.any(starts[1:] < ends[:-1]) or np.any(ends > end):
        raise ValueError("buffers that overlap, or leave its batches")


def sealed_labels(
    read: Callable[[Sequence[Extent]], Sequence[memoryview | None]],
    header: Header,
    where: str,
    remedy: str = "",
    names: Sequence[str] | None = None,
    told_by: str = "the head",
) -> StoredLabels:
    """The labels of a seal; CorruptArchiveError, perhaps at the first use: they are damaged.

    read: bytes of the file; None for those that fail their crc32. names, told_by: as `parse_label_table`.
    """
    start = header.payload_offset

    def load(parts: Sequence[Extent]) -> list[memoryview]:
        data = read([part._replace(at=start + part.at) for part in parts])
        sound = [one for one in data if one is not None]
        if len(sound) < len(data):
            raise CorruptArchiveError(
                f"{where}: labels.arrow at offset {header.offset:,} fails its crc32{remedy}"
            )
        return sound

    (table,) = load([Extent(header.table_offset - start, header.table_nbytes, header.table_crc)])
    return parse_label_table(table, header.payload_nbytes, header.samples, load, names, told_by, where)


def checked_labels(
    data: Any, rows: int, table_nbytes: int, names: Sequence[str] | None = None
) -> StoredLabels:
    """All of a labels.arrow; CorruptArchiveError if it is none, or another to those who read it as Arrow.

    Args:
        data: its payload. table_nbytes: of the table at its end. Others as of `parse_label_table`.
    """
    data = memoryview(data).cast("B")

    def load(extents: Sequence[Extent]) -> list[memoryview]:
        pieces = [data[extent.at : extent.at + extent.nbytes] for extent in extents]
        if any(crc32(piece) != extent.crc32 for piece, extent in zip(pieces, extents, strict=True)):
            raise CorruptArchiveError("labels.arrow has a column that fails its crc32")
        return pieces

    if not 0 <= table_nbytes <= len(data):
        raise CorruptArchiveError("labels.arrow does not read: it is shorter than its table")
    start = len(data) - table_nbytes
    labels = parse_label_table(data[start:], len(data), rows, load, names)
    with reported("labels.arrow"):
        batches = check_batches(data[:start], len(labels.schema), check_footer(data, len(labels.schema))[1])
        if labels.schema != pa.ipc.read_schema(pa.py_buffer(data).slice(len(FILE_START))).remove_metadata():
            raise ValueError("its two schemas differ")
        for number, batch in enumerate(batches):
            _check_batch(batch, labels.parts[number], labels.schema, labels.lengths[number])
    labels.check_bounds()
    return labels
