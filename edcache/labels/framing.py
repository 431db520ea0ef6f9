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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

_CONTINUES: Final = b"\xff\xff\xff\xff"
_END: Final = _CONTINUES + bytes(4)
_MAGIC: Final = b"ARROW1"
_SCHEMA, _BATCH = 1, 3
_METADATA_KEYS: Final = 2
_PIECE: Final = 1 << 20
_BYTE, _INT16, _UINT16 = (struct.Struct(code).unpack_from for code in ("<B", "<h", "<H"))
_INT32, _UINT32, _INT64 = (struct.Struct(code).unpack_from for code in ("<i", "<I", "<q"))
_BLOCK: Final = struct.Struct("<qi4xq").unpack_from
# A Field has the most.
_MOST_FIELDS: Final = 7
_OUTSIDE: Final = "a frame that points out of the bytes"
# Numbers of Arrow's union of types: an integer, a float, a date, a timestamp, a duration.
_INT, _FLOAT, _DATE, _TIMESTAMP, _DURATION = 2, 3, 8, 10, 18
_WITH_UNIT: Final = (_INT, _FLOAT, _DATE, _TIMESTAMP, _DURATION)


class _Message(NamedTuple):
    kind: int
    root: int
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
    with _bounded():
        frame = _checked(_Walk(data), 0, max_columns)
    return frame.metadata, frame.end


def check_file(data: Any, max_columns: int) -> Metadata:
    """Check an IPC file, and that it says the same to those who read it as a stream; returns its metadata.

    Raises: as `check_stream`.
    """
    with _bounded():
        return _checked_file(_Walk(data), max_columns)


@contextmanager
def _bounded() -> Iterator[None]:
    """Around the walk: a number that does not lie within the bytes is an error of theirs."""
    try:
        yield
    except struct.error:
        raise ValueError(_OUTSIDE) from None


def _checked_file(walk: _Walk, max_columns: int) -> Metadata:
    data, size = walk.data, len(walk.data)
    if bytes(data[:8]) != _MAGIC + bytes(2) or bytes(data[-6:]) != _MAGIC:
        raise ValueError("no Arrow file")
    frame = _checked(walk, 8, max_columns)
    footer, (footer_nbytes,) = frame.end, _INT32(data, size - 10)
    if footer + footer_nbytes + 10 != size:
        raise ValueError("bytes between the batch and the footer")
    _, schema, dictionaries, batches, *_ = walk.fields(walk.table(footer, size))
    schema = walk.table_at(schema)
    metadata = _check_schema(walk, schema, max_columns)
    if not _is_same(metadata, frame.metadata) or _columns(walk, schema) != _columns(walk, frame.schema):
        raise ValueError("its two schemas differ")
    if walk.vector(dictionaries, 24)[1]:
        raise ValueError("dictionary batches")
    at, count = walk.vector(batches, 24)
    # The block's int32 is padded to 8 bytes.
    if count != 1 or _BLOCK(data, at) != frame.batch:
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
    schema: int
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
    return _Frame(metadata, schema.header, place, batch.end + 8)


def _check_schema(walk: _Walk, schema: int, max_columns: int) -> Metadata:
    order, fields, keys, features, *_ = walk.fields(schema) if schema else (1, 0, 0, 0)
    if not schema or (order and _INT16(walk.data, order)[0]):
        raise ValueError("no schema, or numbers that are not little-endian")
    at, columns = walk.vector(fields, 4)
    if columns > max_columns:
        raise ValueError(f"{columns:,} columns, {max_columns:,} are written")
    for column in walk.tables(at, columns):
        _check_field(walk, column, is_item=False)
    if features:
        raise ValueError("features that no writer uses")
    at, count = walk.vector(keys, 4)
    if count > _METADATA_KEYS:
        raise ValueError("metadata that no writer makes")
    pairs = [walk.fields(pair) for pair in walk.tables(at, count)]
    return {bytes(walk.text(key)): walk.text(value) for key, value, *_ in pairs}


def _columns(walk: _Walk, schema: int) -> list[Any]:
    """What tells the columns of one schema from those of another: names and types."""
    return [_described(walk, field) for field in walk.tables(*walk.vector(walk.fields(schema)[1], 4))]


def _described(walk: _Walk, field: int) -> tuple[Any, ...]:
    name, nullable, kind, parameters, _, children, *_ = walk.fields(field)
    number = walk.byte(kind)
    items = [_described(walk, child) for child in walk.tables(*walk.vector(children, 4))]
    described = _parameters(walk, number, walk.table_at(parameters))
    return bytes(walk.text(name)), walk.byte(nullable), number, described, items


def _parameters(walk: _Walk, kind: int, parameters: int) -> tuple[Any, ...]:
    """Of a type: bits or unit, and whether an integer has a sign, or the zone of a time."""
    if not parameters:
        return ()
    first, second, *_ = walk.fields(parameters)
    zone = bytes(walk.text(second)) if kind == _TIMESTAMP else None
    signed = walk.byte(second) if kind == _INT else None
    unit = _INT16(walk.data, first)[0] if first and kind in _WITH_UNIT else 0
    return unit if kind in _WITH_UNIT else None, signed, zone


def _check_field(walk: _Walk, field: int, is_item: bool) -> None:
    """A column holds plain values, or lists of them."""
    _, _, _, _, dictionary, items, metadata, *_ = walk.fields(field)
    if dictionary:
        raise ValueError("a dictionary type, which no writer makes")
    if walk.vector(metadata, 4)[1]:
        raise ValueError("a column with metadata of its own: an extension type, which no writer makes")
    at, children = walk.vector(items, 4)
    if children > (0 if is_item else 1):
        raise ValueError("a nested type that no writer makes")
    for child in walk.tables(at, children):
        _check_field(walk, child, is_item=True)


def _check_batch(walk: _Walk, message: _Message) -> None:
    batch, body_nbytes = message.header, message.end - message.body
    _, _, buffers, compression, views, *_ = walk.fields(batch)
    if compression:
        raise ValueError("compressed buffers")
    if views:
        raise ValueError("views, which no writer makes")
    at, count = walk.vector(buffers, 16)
    end = 0
    for offset, nbytes in struct.iter_unpack("<qq", walk.data[at : at + 16 * count]):
        if offset < end or offset % 8 or nbytes < 0 or offset + nbytes > body_nbytes:
            raise ValueError("buffers that overlap, or leave its body")
        end = offset + nbytes


class _Walk:
    """Reads numbers of flatbuffers out of bytes, each of them checked to be within."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data).cast("B")

    def message(self, start: int, kind: int) -> _Message:
        if bytes(self.data[start : start + 4]) != _CONTINUES:
            raise ValueError("no message where one belongs")
        metadata = start + 8
        body = metadata + _INT32(self.data, start + 4)[0]
        root = self.table(metadata, body)
        _, kind_at, header_at, size_at, *_ = self.fields(root)
        body_nbytes = _INT64(self.data, size_at)[0] if size_at else 0
        found, header = self.byte(kind_at), self.table_at(header_at)
        end = body + body_nbytes
        if found != kind or not header or body_nbytes < 0 or body % 8 or end > len(self.data):
            raise ValueError("another message than belongs here")
        return _Message(found, root, header, body, end, body - start)

    def table(self, start: int, end: int) -> int:
        """The root table of the flatbuffer at [start, end)."""
        if not start < end <= len(self.data):
            raise ValueError(_OUTSIDE)
        return start + int(_UINT32(self.data, start)[0])

    def fields(self, table: int) -> list[int]:
        """Where each of a table's fields lies, 0 where it has none: of as many as any table here has."""
        vtable = table - _INT32(self.data, table)[0]
        if vtable < 0:  # which would count from the end
            raise ValueError(_OUTSIDE)
        count = min(_UINT16(self.data, vtable)[0] // 2 - 2, _MOST_FIELDS)
        offsets = struct.unpack_from(f"<{max(count, 0)}H", self.data, vtable + 4)
        places = [table + offset if offset else 0 for offset in offsets]
        return places + [0] * (_MOST_FIELDS - len(places))

    def byte(self, at: int) -> int:
        """The number of a field of one byte; 0 for no field."""
        return int(_BYTE(self.data, at)[0]) if at else 0

    def table_at(self, at: int) -> int:
        """The table of a field; 0 for no field."""
        return at + int(_UINT32(self.data, at)[0]) if at else 0

    def text(self, at: int) -> memoryview:
        """The bytes of a text in a field; none for no field."""
        start, nbytes = self.vector(at, 1)
        return self.data[start : start + nbytes]

    def tables(self, at: int, count: int) -> Iterator[int]:
        """The tables that a vector points at."""
        return (place + _UINT32(self.data, place)[0] for place in range(at, at + 4 * count, 4))

    def vector(self, at: int, item_nbytes: int) -> tuple[int, int]:
        """Where the items of a vector in a field lie, and how many; (0, 0) for no field."""
        if not at:
            return 0, 0
        start = at + _UINT32(self.data, at)[0]
        count = _UINT32(self.data, start)[0]
        if start + 4 + count * item_nbytes > len(self.data):
            raise ValueError(_OUTSIDE)
        return start + 4, count
