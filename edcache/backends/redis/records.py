"""A record as the value of a key, which says all that it takes to decode and distrust it; and many at once.

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
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.backends.redis.client import PIECE_KEYS, PIECE_NBYTES, Client
from edcache.backends.redis.url import Keys
from edcache.base import CorruptRecordError
from edcache.reader import GroupRecords, Piece, joined

if TYPE_CHECKING:
    from edcache.codec import Decoder
    from edcache.reader import Group

_FRAME: Final = struct.Struct("<4sIQQQQ")
_MAGIC: Final = b"EDR1"
_REST: Final = struct.Struct("<QQQQ")
FRAME_NBYTES: Final = _FRAME.size


class Frame(NamedTuple):
    """One record: the number of its schema, its bytes as they are stored, its size before compression."""

    schema: int
    data: memoryview
    raw_nbytes: int


@lru_cache(maxsize=4096)
def schema_number(text: str) -> int:
    """What stands for a schema in a frame."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def packed(index: int, schema: int, data: memoryview | bytes, raw_nbytes: int) -> bytes:
    """The value of a record."""
    rest = _REST.pack(schema, index, len(data), raw_nbytes)
    crc = format.crc32(data, format.crc32(rest))
    padding = bytes(format.align(len(data), 8) - len(data))
    return b"".join([_MAGIC, crc.to_bytes(4, "little"), rest, data, padding])


def unpacked(value: Any, index: int, *, is_compressed: bool) -> Frame:
    """The record in a value, which is not copied; CorruptRecordError, which does not say of which record."""
    if len(value) < FRAME_NBYTES or value[:4] != _MAGIC:
        raise CorruptRecordError("its value is none that edcache wrote")
    _, expected, schema, at, nbytes, raw_nbytes = _FRAME.unpack_from(value)
    view = memoryview(value)
    if at != index or len(value) != FRAME_NBYTES + format.align(nbytes, 8):
        raise CorruptRecordError(f"its frame is of record {at} with {nbytes:,} bytes, in {len(value):,}")
    crc = format.crc32(view[8 : FRAME_NBYTES + nbytes])
    if crc != expected:
        raise CorruptRecordError(f"crc32 {crc:#010x}, its frame says {expected:#010x}")
    if not is_compressed and raw_nbytes != nbytes:
        raise CorruptRecordError(f"it has {nbytes:,} bytes, its frame says otherwise")
    return Frame(schema, view[FRAME_NBYTES : FRAME_NBYTES + nbytes], raw_nbytes)


def pieces_of(nbytes: npt.NDArray[Any], most: int = PIECE_NBYTES) -> list[slice]:
    """Parts of many records of some thousand keys and about so many bytes each, or of one record."""
    if not len(nbytes):
        return []
    # Whatever a log says: no more than the server stores in one value.
    total = np.cumsum(np.minimum(nbytes, 1 << 29).astype(np.int64) + FRAME_NBYTES)
    piece = np.maximum(total // most, np.arange(len(nbytes)) // PIECE_KEYS)
    starts = [0, *(np.flatnonzero(piece[1:] != piece[:-1]) + 1).tolist()]
    return [slice(low, high) for low, high in zip(starts, [*starts[1:], len(nbytes)], strict=True)]


def held(client: Client, keys: Keys, indices: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which records the server has: bool [n]."""
    there: list[bool] = []
    for start in range(0, len(indices), PIECE_KEYS):
        piece = list(map(keys.record, indices[start : start + PIECE_KEYS]))
        if client.ask("exists", *piece) == len(piece):
            there += [True] * len(piece)
        else:
            there += map(bool, client.ask_all([("exists", key) for key in piece]))
    return np.array(there, bool)


def gathered_from(
    values: list[Any], indices: Iterable[int], decoder: Decoder, *, is_compressed: bool
) -> Group | None:
    """What the server sent for records of one schema, as a group; None where one is lost or not as logged."""
    if None in values:
        return None
    try:
        frames = [
            unpacked(value, index, is_compressed=is_compressed)
            for index, value in zip(indices, values, strict=True)
        ]
    except CorruptRecordError:
        return None
    number, least = schema_number(decoder.text), decoder.fixed_nbytes
    sizes = {frame.raw_nbytes for frame in frames}
    if any(frame.schema != number for frame in frames) or min(sizes) < least:
        return None
    if decoder.nbytes is not None and sizes != {least}:
        return None
    lengths = np.array([frame.raw_nbytes for frame in frames], np.int64)
    if is_compressed:
        return joined(decoder, lengths, [Piece(0, frame.data) for frame in frames], ())
    # Values are multiples of 8 long, so that joined they are what a gather goes over.
    starts = np.array([0, *accumulate(map(len, values[:-1]))], np.int64) + FRAME_NBYTES
    memory = np.frombuffer(bytearray().join(values), np.uint8)
    return GroupRecords(decoder, memory.data, lengths.__getitem__).at(starts, np.arange(len(frames)))
