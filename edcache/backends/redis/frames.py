"""A record as the value of a key, which tells all that is needed to decode and to distrust it.

    offset  bytes  field
    0       4      "EDR1"
    4       4      crc32 of all that follows, padding aside
    8       8      schema: the first 8 bytes of the SHA-256 of its text, which an entry of the log has
    16      8      index of the sample
    24      8      bytes of the record as it is stored
    32      8      bytes of it before compression
    40             the record; then zeros up to a multiple of 8, so that joined values are a lattice

So a record that was computed again, and differs, needs nobody to be told.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache
from typing import Any, Final, NamedTuple

from edcache import format
from edcache.base import CorruptRecordError

_FRAME: Final = struct.Struct("<4sIQQQQ")
_MAGIC: Final = b"EDR1"
_REST: Final = struct.Struct("<QQQQ")
NBYTES: Final = _FRAME.size


class Frame(NamedTuple):
    """One record: the number of its schema, its bytes as they are stored, its size before compression."""

    schema: int
    data: memoryview
    raw_nbytes: int


@lru_cache(maxsize=4096)
def schema_number(text: str) -> int:
    """What stands for a schema in a frame."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def packed(index: int, schema: int, data: memoryview, raw_nbytes: int) -> bytes:
    """The value of a record."""
    rest = _REST.pack(schema, index, len(data), raw_nbytes)
    crc = format.crc32(data, format.crc32(rest))
    return b"".join(
        [_MAGIC, crc.to_bytes(4, "little"), rest, data, bytes(format.align(len(data), 8) - len(data))]
    )


def unpacked(value: Any, index: int) -> Frame:
    """The record in a value, which is not copied.

    Raises:
        CorruptRecordError: "crc32 0x1c291ca3, its frame says 0x9ae0daf0"; the caller says which record.
    """
    if len(value) < NBYTES or value[:4] != _MAGIC:
        raise CorruptRecordError("its value is none that edcache wrote")
    _, said, schema, at, nbytes, raw_nbytes = _FRAME.unpack_from(value)
    view = memoryview(value)
    if at != index or len(value) != NBYTES + format.align(nbytes, 8):
        raise CorruptRecordError(f"its frame is of record {at} with {nbytes:,} bytes, in {len(value):,}")
    found = format.crc32(view[8 : NBYTES + nbytes])
    if found != said:
        raise CorruptRecordError(f"crc32 {found:#010x}, its frame says {said:#010x}")
    return Frame(schema, view[NBYTES : NBYTES + nbytes], raw_nbytes)
