"""The frame of Arrow IPC bytes, walked before Arrow sees them: what is in them, and where.

Arrow allocates what a compressed buffer claims, reads batches one does not ask for, and makes objects of
every field and every key of a schema. So this looks first, bounds checked, at no more of the flatbuffers
than that: one schema of few fields, plain batches whose buffers lie apart within their bodies, nothing else.

    stream   schema message, batch message, end mark
    file     "ARROW1" and 2 zeros, the same with any number of batches, what Arrow does not look at,
             a footer that points at the batches, its length, "ARROW1"
    message  0xFFFFFFFF, int32 bytes of the flatbuffer, the flatbuffer, body
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

_CONTINUES: Final = b"\xff\xff\xff\xff"
_MAGIC: Final = b"ARROW1"
_SCHEMA, _BATCH = 1, 3
_PREFIX_NBYTES: Final = 8
_VERSION: Final = 4  # of the metadata: V5
END: Final = _CONTINUES + bytes(4)
"""The end mark of a stream."""
FILE_START: Final = _MAGIC + bytes(2)
"""What a file has before the stream that says the same."""
_METADATA_KEYS: Final = 2
_BYTE, _INT16, _UINT16 = (struct.Struct(code).unpack_from for code in ("<B", "<h", "<H"))
_INT32, _UINT32, _INT64 = (struct.Struct(code).unpack_from for code in ("<i", "<I", "<q"))
_BLOCK: Final = struct.Struct("<qi4xq")
_OUTSIDE: Final = "a frame that points out of the bytes"

Metadata = dict[bytes, memoryview]
"""The metadata of a schema, over the bytes that were walked: Arrow would copy it, twice."""


class BatchFrame(NamedTuple):
    """A batch where its message says it: offsets count from the start of the bytes that were walked.

    block: where the message starts, bytes of its metadata and of its body. nodes: length and nulls of each
    column, of a list's items behind it. buffers: offset and bytes of each.
    """

    block: tuple[int, int, int]
    rows: int
    nodes: list[tuple[int, int]]
    buffers: list[tuple[int, int]]


def check_stream(data: Any, max_columns: int) -> tuple[Metadata, int]:
    """Check the IPC stream that `data` begins with; returns its metadata, and where it ends.

    Raises ValueError or struct.error unless it is one schema of few columns and one plain batch.
    """
    data = memoryview(data).cast("B")
    schema, _, start = _message(data, 0, _SCHEMA)
    metadata = _check_schema(data, schema, max_columns)
    _, end = read_batch(data, start)
    return metadata, _end_of(data, end)


def check_batches(data: Any, max_columns: int, blocks: Sequence[tuple[int, int, int]]) -> list[BatchFrame]:
    """Check what an IPC file has before its footer, for those too who read it as a stream; its batches.

    That both see the same columns is left to Arrow. Raises as `check_stream`.
    """
    data = memoryview(data).cast("B")
    if bytes(data[: len(FILE_START)]) != FILE_START:
        raise ValueError("no Arrow file")
    schema, _, start = _message(data, len(FILE_START), _SCHEMA)
    _check_schema(data, schema, max_columns)
    batches = []
    for block in blocks:
        batch, start = read_batch(data, start)
        if batch.block != block:
            raise ValueError("a footer that does not point at the batches")
        batches.append(batch)
    if _end_of(data, start) != len(data):
        raise ValueError("bytes behind the batches")
    return batches


def check_footer(data: Any, max_columns: int) -> tuple[int, list[tuple[int, int, int]]]:
    """Check the footer that an IPC file ends with; returns where it starts, and the blocks of its batches."""
    data = memoryview(data).cast("B")
    end = len(data) - 4 - len(_MAGIC)
    if end < 0 or bytes(data[-len(_MAGIC) :]) != _MAGIC:
        raise ValueError("no Arrow file")
    start = end - _INT32(data, end)[0]
    if not 0 <= start <= end:
        raise ValueError(_OUTSIDE)
    _, schema, dictionaries, batches = _table(data, _target(data, start), 4)
    _check_schema(data, schema and _target(data, schema), max_columns)
    if _vector(data, dictionaries, _BLOCK.size)[1]:
        raise ValueError("dictionary batches")
    at, count = _vector(data, batches, _BLOCK.size)
    return start, list(_BLOCK.iter_unpack(data[at : at + _BLOCK.size * count]))


def pack_footer(message: memoryview, blocks: Sequence[tuple[int, int, int]]) -> bytes:
    """The end of an IPC file, of its schema's message and the blocks of its batches."""
    listed = b"".join(_BLOCK.pack(*block) for block in blocks)
    embedded = message[_PREFIX_NBYTES:]  # its offsets are relative, so it serves here as it is
    schema = 48 + len(listed) + _message(message, 0, _SCHEMA)[0] - _PREFIX_NBYTES
    # Where the table is; its vtable; the table; no dictionaries; the batches, whose numbers start at 48.
    fixed = struct.pack("<IHHHHHH", 16, 12, 20, 16, 4, 8, 12)
    fixed += struct.pack("<iIIIhxxI4xI", 12, schema - 20, 36 - 24, 44 - 28, _VERSION, 0, len(blocks))
    footer = fixed + listed + bytes(embedded)
    return footer + struct.pack("<i", len(footer)) + _MAGIC


def read_batch(data: memoryview, start: int) -> tuple[BatchFrame, int]:
    """The batch of the message at `start`, checked, and where that ends."""
    batch, body, end = _message(data, start, _BATCH)
    rows, nodes, buffers, compression, views = _table(data, batch, 5)
    if compression:
        raise ValueError("compressed buffers")
    if views:
        raise ValueError("views, which no writer makes")
    at, count = _vector(data, buffers, 16)
    last = 0
    places = []
    for offset, nbytes in struct.iter_unpack("<qq", data[at : at + 16 * count]):
        if offset < last or offset % 8 or nbytes < 0 or offset + nbytes > end - body:
            raise ValueError("buffers that overlap, or leave its body")
        last = offset + nbytes
        places.append((body + offset, nbytes))
    at, count = _vector(data, nodes, 16)
    lengths = list(struct.iter_unpack("<qq", data[at : at + 16 * count]))
    block = start, body - start, end - body
    return BatchFrame(block, _INT64(data, rows)[0] if rows else 0, lengths, places), end


def _end_of(data: memoryview, end: int) -> int:
    """Where a stream ends that has an end mark there."""
    if bytes(data[end : end + len(END)]) != END:
        raise ValueError("something else behind its batches")
    return end + len(END)


def _check_schema(data: memoryview, schema: int, max_columns: int) -> Metadata:
    endianness, fields, metadata, features = _table(data, schema, 4) if schema else (0, 0, 0, 0)
    if not schema or (endianness and _INT16(data, endianness)[0]):
        raise ValueError("no schema, or numbers that are not little-endian")
    for column in _tables(data, fields, 7, max_columns, f"too many columns, {max_columns:,} are written"):
        _check_field(data, column, most_children=1)
    if features:
        raise ValueError("features that no writer uses")
    pairs = _tables(data, metadata, 2, _METADATA_KEYS, "metadata that no writer makes")
    return {bytes(_text(data, key)): _text(data, value) for key, value in pairs}


def _check_field(data: memoryview, field: Sequence[int], most_children: int) -> None:
    """A column holds plain values, or lists of them."""
    *_, dictionary, children, metadata = field
    if dictionary:
        raise ValueError("a dictionary type, which no writer makes")
    if _vector(data, metadata, 4)[1]:
        raise ValueError("a column with metadata of its own: an extension type, which no writer makes")
    for child in _tables(data, children, 7, most_children, "a nested type that no writer makes"):
        _check_field(data, child, most_children=0)


# Flatbuffers, each number within the bytes, or struct.error; a place of 0 is that of nothing.


def _target(data: memoryview, at: int) -> int:
    """What the offset at a place points at."""
    return at + int(_UINT32(data, at)[0])


def _table(data: memoryview, at: int, count: int) -> list[int]:
    """Where the first so many fields of a table lie."""
    vtable = at - _INT32(data, at)[0]
    if vtable < 0:  # which would count from the end
        raise ValueError(_OUTSIDE)
    known = min(count, max(0, _UINT16(data, vtable)[0] // 2 - 2))
    offsets = struct.unpack_from(f"<{known}H", data, vtable + 4)
    return [at + offset if offset else 0 for offset in offsets] + [0] * (count - known)


def _vector(data: memoryview, at: int, item_nbytes: int) -> tuple[int, int]:
    """Where the items of the vector in a field lie, and how many."""
    if not at:
        return 0, 0
    start = at + _UINT32(data, at)[0]
    count = _UINT32(data, start)[0]
    if start + 4 + count * item_nbytes > len(data):
        raise ValueError(_OUTSIDE)
    return start + 4, count


def _tables(data: memoryview, at: int, fields: int, most: int, refusal: str) -> list[list[int]]:
    """The first so many fields of each table in a vector; ValueError where it has more than `most`."""
    at, count = _vector(data, at, 4)
    if count > most:
        raise ValueError(refusal)
    return [_table(data, _target(data, place), fields) for place in range(at, at + 4 * count, 4)]


def _text(data: memoryview, at: int) -> memoryview:
    start, nbytes = _vector(data, at, 1)
    return data[start : start + nbytes]


def _message(data: memoryview, start: int, kind: int) -> tuple[int, int, int]:
    """Where the table of a message lies, its body, and its end."""
    if bytes(data[start : start + 4]) != _CONTINUES:
        raise ValueError("no message where one belongs")
    body = start + 8 + _INT32(data, start + 4)[0]
    _, actual, header, size = _table(data, _target(data, start + 8), 4)
    end = body + (_INT64(data, size)[0] if size else 0)
    is_within = start + 8 < body <= end <= len(data) and body % 8 == 0
    if not (is_within and header and actual and _BYTE(data, actual)[0] == kind):
        raise ValueError("another message than belongs here")
    return _target(data, header), body, end
