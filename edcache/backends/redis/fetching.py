"""What a server says of many records at a time, and their values joined into one memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edcache.backends.redis import frames
from edcache.backends.redis.client import PIECE_KEYS, PIECE_NBYTES, Client
from edcache.base import CorruptRecordError
from edcache.codec import Decoder, most_content
from edcache.reader import Group, Piece, Records, joined

Ints = npt.NDArray[np.int64]


class Fetched(threading.local):
    """Values that a thread has fetched for a batch, and will read one by one."""

    def __init__(self) -> None:
        self._uuid = b""
        self._values: dict[int, Any] = {}

    def keep(self, uuid: bytes, indices: Ints, values: list[Any]) -> None:
        """Keep these of a cache, and no others."""
        self._uuid = uuid
        self._values = dict(zip(indices.tolist(), values, strict=True))

    def has_all(self, uuid: bytes, indices: Ints) -> bool:
        """Whether all of these are kept."""
        return self._uuid == uuid and self._values.keys() >= set(indices.tolist())

    def take(self, uuid: bytes, index: int) -> Any:
        """A value, once; None where it must be asked for."""
        return self._values.pop(index, None) if self._uuid == uuid else None


def pieces_of(nbytes: npt.NDArray[np.uint64]) -> list[slice]:
    """Parts of many records of some thousand keys and few megabytes each, or of one record."""
    if not len(nbytes):
        return []
    # Whatever a log says: no more than the server stores in one value.
    total = np.cumsum(np.minimum(nbytes, 1 << 29).astype(np.int64) + frames.NBYTES)
    piece = np.maximum(total // PIECE_NBYTES, np.arange(len(nbytes)) // PIECE_KEYS)
    starts = [0, *(np.flatnonzero(piece[1:] != piece[:-1]) + 1).tolist()]
    return [slice(low, high) for low, high in zip(starts, [*starts[1:], len(nbytes)], strict=True)]


def held(client: Client, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which keys the server has: bool [n]."""
    pieces = [keys[start : start + PIECE_KEYS] for start in range(0, len(keys), PIECE_KEYS)]
    there: list[npt.NDArray[np.bool_]] = [np.ones(0, bool)]
    for piece in pieces:
        if client.ask("exists", *piece) == len(piece):
            there.append(np.ones(len(piece), bool))
        else:
            there.append(np.array(client.ask_all([("exists", key) for key in piece]), bool))
    return np.concatenate(there)


def gathered_from(
    values: list[Any], indices: Iterable[int], decoder: Decoder, *, is_compressed: bool
) -> Group | None:
    """What the server sent for records of one schema, as a group over memory of its own.

    Returns:
        None where the records must be looked at one by one: some are lost, or not as the log says.
    """
    if None in values:
        return None
    number, least = frames.schema_number(decoder.text), decoder.fixed_nbytes
    try:
        read = [frames.unpacked(value, index) for index, value in zip(indices, values, strict=True)]
    except CorruptRecordError:
        return None
    sizes = {frame.raw_nbytes for frame in read}
    if any(frame.schema != number for frame in read) or min(sizes) < least:
        return None
    if decoder.nbytes is not None and sizes != {least}:
        return None
    lengths = np.array([frame.raw_nbytes for frame in read], np.int64)
    if is_compressed:
        if any(frame.raw_nbytes > most_content(len(frame.data)) for frame in read):
            return None
        return joined(decoder, lengths, [Piece(0, frame.data) for frame in read], ())
    if any(frame.raw_nbytes != len(frame.data) for frame in read):
        return None
    # Values are multiples of 8 long, so that joined they are what a gather goes over.
    starts = np.array([0, *accumulate(map(len, values[:-1]))], np.int64) + frames.NBYTES
    memory = np.frombuffer(bytearray().join(values), np.uint8)
    records = Records(decoder, memory.data, torch.from_numpy(memory), lengths)
    return Group(records, starts, np.arange(len(read)))
