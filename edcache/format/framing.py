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
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

_CONTINUES: Final = b"\xff\xff\xff\xff"
_END: Final = _CONTINUES + bytes(4)
_MAGIC: Final = b"ARROW1"
_SCHEMA, _BATCH = 1, 3
STREAM: Final = 8
"""Where in a file the stream begins that says the same."""
_METADATA_KEYS: Final = 2
_BYTE, _INT16, _UINT16 = (struct.Struct(code).unpack_from for code in ("<B", "<h", "<H"))
_INT32, _UINT32, _INT64 = (struct.Struct(code).unpack_from for code in ("<i", "<I", "<q"))
_OUTSIDE: Final = "a frame that points out of the bytes"

Metadata = dict[bytes, memoryview]
"""The metadata of a schema, over the bytes that were walked: Arrow would copy it, twice."""


def check_stream(data: Any, max_columns: int) -> tuple[Metadata, int]:
    """Check the IPC stream that `data` begins with; returns its metadata, and where it ends.

    Raises ValueError or struct.error unless it is one schema of few columns and one plain batch.
    """
    metadata, _, end = _frame(memoryview(data).cast("B"), 0, max_columns)
    return metadata, end


def check_file(data: Any, max_columns: int) -> Metadata:
    """Check an IPC file, and that it is one to those who read it as a stream too; returns its metadata.

    That both see the same columns is left to Arrow, by `STREAM`. Raises as `check_stream`.
    """
    data = memoryview(data).cast("B")
    if bytes(data[:STREAM]) != _MAGIC + bytes(2) or bytes(data[-6:]) != _MAGIC:
        raise ValueError("no Arrow file")
    metadata, batch, start = _frame(data, STREAM, max_columns)
    end = len(data) - 10
    if start + _INT32(data, end)[0] != end:
        raise ValueError("bytes between the batch and the footer")
    _, schema, dictionaries, batches = _table(data, _target(data, start), 4)
    footer = _check_schema(data, schema and _target(data, schema), max_columns)
    # By numpy: memoryviews are compared item by item, which takes ten times as long.
    is_same = (np.array_equal(footer[key], metadata[key]) for key in metadata)
    if footer.keys() != metadata.keys() or not all(is_same):
        raise ValueError("the metadata of its two schemas differ")
    if _vector(data, dictionaries, 24)[1]:
        raise ValueError("dictionary batches")
    at, count = _vector(data, batches, 24)
    if count != 1 or struct.unpack_from("<qi4xq", data, at) != batch:
        raise ValueError("a footer that does not point at the one batch")
    return footer


def _frame(data: memoryview, start: int, max_columns: int) -> tuple[Metadata, tuple[int, int, int], int]:
    """Metadata; offset, bytes of the metadata and bytes of the body of the batch; where the stream ends."""
    schema, _, start = _message(data, start, _SCHEMA)
    metadata = _check_schema(data, schema, max_columns)
    batch, body, end = _message(data, start, _BATCH)
    _, _, buffers, compression, views = _table(data, batch, 5)
    if compression:
        raise ValueError("compressed buffers")
    if views:
        raise ValueError("views, which no writer makes")
    at, count = _vector(data, buffers, 16)
    last = 0
    for offset, nbytes in struct.iter_unpack("<qq", data[at : at + 16 * count]):
        if offset < last or offset % 8 or nbytes < 0 or offset + nbytes > end - body:
            raise ValueError("buffers that overlap, or leave its body")
        last = offset + nbytes
    if bytes(data[end : end + 8]) != _END:
        raise ValueError("something else behind its first batch")
    return metadata, (start, body - start, end - body), end + 8


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
