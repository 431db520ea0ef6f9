"""The frame of Arrow IPC bytes, walked before Arrow sees them: what is in them, and where.

Arrow allocates what a compressed buffer claims, reads batches one does not ask for, and makes objects of
every field and every key of a schema. So this looks first, bounds checked, at no more of the flatbuffers
than that: one schema of few fields, one plain batch whose buffers lie apart within its body, nothing else.

    stream   schema message, batch message, end mark
    file     "ARROW1" and 2 zeros, the same, a footer that points at the batch, its length, "ARROW1"
    message  0xFFFFFFFF, int32 bytes of the flatbuffer, the flatbuffer, body
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

_CONTINUES: Final = b"\xff\xff\xff\xff"
_END: Final = _CONTINUES + bytes(4)
_MAGIC: Final = b"ARROW1"
_SCHEMA, _BATCH = 1, 3
STREAM: Final = 8
"""Where in a file the stream begins that says the same."""
_METADATA_KEYS: Final = 2
_PIECE: Final = 1 << 20
_BYTE, _INT16, _UINT16 = (struct.Struct(code).unpack_from for code in ("<B", "<h", "<H"))
_INT32, _UINT32, _INT64 = (struct.Struct(code).unpack_from for code in ("<i", "<I", "<q"))
_OUTSIDE: Final = "a frame that points out of the bytes"

_Unpack = Callable[[memoryview, int], tuple[Any, ...]]


class _Message(NamedTuple):
    header: int
    body: int
    end: int
    metadata_nbytes: int


Metadata = dict[bytes, memoryview]
"""The metadata of a schema, over the bytes that were walked: Arrow would copy it, twice."""


def check_stream(data: Any, max_columns: int) -> tuple[Metadata, int]:
    """Check an IPC stream that `data` begins with; returns its metadata, and where it ends.

    Raises:
        ValueError: it is not one schema of at most so many columns and one plain batch.
    """
    frame = _checked(_Walk(data), 0, max_columns)
    return frame.metadata, frame.end


def check_file(data: Any, max_columns: int) -> Metadata:
    """Check an IPC file, and that it is one to those who read it as a stream too; returns its metadata.

    That both see the same columns is left to Arrow, by `STREAM`.

    Raises: as `check_stream`.
    """
    walk = _Walk(data)
    if bytes(walk.data[:STREAM]) != _MAGIC + bytes(2) or bytes(walk.data[-6:]) != _MAGIC:
        raise ValueError("no Arrow file")
    frame = _checked(walk, STREAM, max_columns)
    size = len(walk.data)
    footer, footer_nbytes = frame.end, walk.number(_INT32, size - 10)
    if footer + footer_nbytes + 10 != size:
        raise ValueError("bytes between the batch and the footer")
    root = walk.table(footer, size)
    schema = walk.field_table(root, 1)
    metadata = _check_schema(walk, schema, max_columns)
    if not _is_same(metadata, frame.metadata):
        raise ValueError("the metadata of its two schemas differ")
    if walk.vector(walk.field(root, 2), 24)[1]:
        raise ValueError("dictionary batches")
    at, count = walk.vector(walk.field(root, 3), 24)
    batch = frame.batch
    # The block's int32 is padded to 8 bytes.
    if (
        count != 1
        or (walk.number(_INT64, at), walk.number(_INT32, at + 8), walk.number(_INT64, at + 16)) != batch
    ):
        raise ValueError("a footer that does not point at the one batch")
    return metadata


def _is_same(one: Metadata, other: Metadata) -> bool:
    # In pieces: memoryviews are compared item by item, which takes ten times as long.
    return one.keys() == other.keys() and all(
        len(one[key]) == len(other[key])
        and all(
            bytes(one[key][at : at + _PIECE]) == bytes(other[key][at : at + _PIECE])
            for at in range(0, len(one[key]), _PIECE)
        )
        for key in one
    )


class _Frame(NamedTuple):
    metadata: Metadata
    batch: tuple[int, int, int]
    end: int


def _checked(walk: _Walk, start: int, max_columns: int) -> _Frame:
    schema = walk.message(start, _SCHEMA)
    metadata = _check_schema(walk, schema.header, max_columns)
    batch = walk.message(schema.end, _BATCH)
    _check_batch(walk, batch)
    if bytes(walk.data[batch.end : batch.end + 8]) != _END:
        raise ValueError("something else behind its first batch")
    place = (schema.end, batch.metadata_nbytes, batch.end - batch.body)
    return _Frame(metadata, place, batch.end + 8)


def _check_schema(walk: _Walk, schema: int, max_columns: int) -> Metadata:
    if not schema or walk.small(schema, 0, _INT16):
        raise ValueError("no schema, or numbers that are not little-endian")
    at, columns = walk.vector(walk.field(schema, 1), 4)
    if columns > max_columns:
        raise ValueError(f"{columns:,} columns, {max_columns:,} are written")
    for column in walk.tables(at, columns):
        _check_field(walk, column, is_item=False)
    if walk.field(schema, 3):
        raise ValueError("features that no writer uses")
    at, keys = walk.vector(walk.field(schema, 2), 4)
    if keys > _METADATA_KEYS:
        raise ValueError("metadata that no writer makes")
    pairs = [
        (walk.text(walk.field(pair, 0)), walk.text(walk.field(pair, 1))) for pair in walk.tables(at, keys)
    ]
    return {bytes(key): value for key, value in pairs}


def _check_field(walk: _Walk, field: int, is_item: bool) -> None:
    """A column holds plain values, or lists of them."""
    if walk.field(field, 4):
        raise ValueError("a dictionary type, which no writer makes")
    if walk.vector(walk.field(field, 6), 4)[1]:
        raise ValueError("a column with metadata of its own: an extension type, which no writer makes")
    at, children = walk.vector(walk.field(field, 5), 4)
    if children > (0 if is_item else 1):
        raise ValueError("a nested type that no writer makes")
    for child in walk.tables(at, children):
        _check_field(walk, child, is_item=True)


def _check_batch(walk: _Walk, message: _Message) -> None:
    batch, body_nbytes = message.header, message.end - message.body
    if walk.field(batch, 3):
        raise ValueError("compressed buffers")
    if walk.field(batch, 4):
        raise ValueError("views, which no writer makes")
    at, count = walk.vector(walk.field(batch, 2), 16)
    end = 0
    for offset, nbytes in walk.pairs(at, count):
        if offset < end or offset % 8 or nbytes < 0 or offset + nbytes > body_nbytes:
            raise ValueError("buffers that overlap, or leave its body")
        end = offset + nbytes


class _Walk:
    """Reads numbers of flatbuffers out of bytes, each of them checked to be within."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data).cast("B")

    def number(self, unpack: _Unpack, at: int) -> int:
        if at < 0:  # which would count from the end
            raise ValueError(_OUTSIDE)
        try:
            number: int = unpack(self.data, at)[0]
        except struct.error:
            raise ValueError(_OUTSIDE) from None
        return number

    def pairs(self, at: int, count: int) -> Any:
        return struct.iter_unpack("<qq", self.data[at : at + 16 * count])

    def message(self, start: int, kind: int) -> _Message:
        if bytes(self.data[start : start + 4]) != _CONTINUES:
            raise ValueError("no message where one belongs")
        metadata = start + 8
        body = metadata + self.number(_INT32, start + 4)
        root = self.table(metadata, body)
        body_nbytes = self.small(root, 3, _INT64)
        actual, header = self.small(root, 1, _BYTE), self.field_table(root, 2)
        end = body + body_nbytes
        if actual != kind or not header or body_nbytes < 0 or body % 8 or end > len(self.data):
            raise ValueError("another message than belongs here")
        return _Message(header, body, end, body - start)

    def table(self, start: int, end: int) -> int:
        """The root table of the flatbuffer at [start, end)."""
        if not start < end <= len(self.data):
            raise ValueError(_OUTSIDE)
        return start + self.number(_UINT32, start)

    def field(self, table: int, place: int) -> int:
        """Where a table's field lies; 0 where it has none."""
        vtable = table - self.number(_INT32, table)
        if 6 + 2 * place > self.number(_UINT16, vtable):
            return 0
        offset = self.number(_UINT16, vtable + 4 + 2 * place)
        return table + offset if offset else 0

    def small(self, table: int, place: int, unpack: _Unpack) -> int:
        """A number in a field; 0 where it has none."""
        at = self.field(table, place)
        return self.number(unpack, at) if at else 0

    def field_table(self, table: int, place: int) -> int:
        """A table in a field; 0 where it has none."""
        at = self.field(table, place)
        return at + self.number(_UINT32, at) if at else 0

    def text(self, at: int) -> memoryview:
        """The bytes of a text in a field; none for no field."""
        start, nbytes = self.vector(at, 1)
        return self.data[start : start + nbytes]

    def tables(self, at: int, count: int) -> Iterator[int]:
        """The tables that a vector points at."""
        return (place + self.number(_UINT32, place) for place in range(at, at + 4 * count, 4))

    def vector(self, at: int, item_nbytes: int) -> tuple[int, int]:
        """Where the items of a vector in a field lie, and how many; (0, 0) for no field."""
        if not at:
            return 0, 0
        start = at + self.number(_UINT32, at)
        count = self.number(_UINT32, start)
        if start + 4 + count * item_nbytes > len(self.data):
            raise ValueError(_OUTSIDE)
        return start + 4, count
