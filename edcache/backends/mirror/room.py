"""The disk space of a copy that is read while it fills, where `max_bytes` allows less than the archive has.

Whoever needs room frees blocks by punching holes: first those that were read in this order of samples and are
not needed soon again, then idle ones in the order of a clock, of which a part stays from epoch to epoch, and
last those that a reader needs soon, which only a batch may take and not who looks ahead.
Who fetches or frees a block has its claim (`sidecar`), and who decides on room has the lock `ROOM`. The map
says that a block is gone before it goes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache import base, storage
from edcache.backends.mirror.evict import left_by_others
from edcache.backends.mirror.sidecar import CLAIMS, MAP_OFFSET, ROOM
from edcache.base import StorageError
from edcache.storage import File
from edcache.writer import PARTIAL, SIDE

BLOCK_BITS: Final = 18
BLOCK_NBYTES: Final = 1 << BLOCK_BITS
# In the second map: a reader needs it soon; who needed it has read it, and not begun another order since.
_SOON, _READ = 1, 2
# Which goes first: what was read, idle blocks but for a part of the room, these, what is needed soon.
_READ_RANK, _IDLE_RANK, _STAYING_RANK, _SOON_RANK = range(4)
_RANKS = np.array([_IDLE_RANK, _SOON_RANK, _READ_RANK])
_STAYING: Final = 3
# This part of the room is for what is needed soon.
_SOON_PART: Final = 7 / 8
# At least this part of the room is freed at once, but no more blocks than that: looking costs milliseconds.
_PART, _MOST = 16, 256
_SECONDS: Final = 5.0


class Room:
    """How much of a copy may be on the disk: what `limit` leaves beside the other copies in its folder."""

    def __init__(self, copy: str, nbytes: int, limit: int) -> None:
        self._copy, self._nbytes, self._limit = copy, nbytes, limit
        self._count = -(-nbytes // BLOCK_NBYTES)
        self._hand = 0
        self._allowed, self._asked = 0, -_SECONDS
        self._can_free, self._has_looked = True, False
        self._soon: set[int] = set()

    def holds_all(self) -> bool:
        """Whether the whole archive fits."""
        return self.allowance() >= self._nbytes

    def allowance(self) -> int:
        """How many bytes of it may be on the disk."""
        if time.monotonic() - self._asked >= _SECONDS:
            folder = os.path.dirname(self._copy) or os.curdir
            others = left_by_others(folder, self._limit, self._nbytes, self._copy, [self._copy])
            self._allowed, self._asked = self._limit - others, time.monotonic()
        return self._allowed

    def take(
        self, side: File, out: File, blocks: list[int], worth: Collection[int] | None, is_ahead: bool
    ) -> list[int]:
        """Take the space of blocks that are to be fetched, under their claims; returns those that have some.

        Args:
            worth: for which of them others may be freed; None for all. is_ahead: not for those needed soon.
        """
        with side.locked(ROOM):
            if not storage.exists(self._copy + PARTIAL):
                return blocks  # it is whole, and what it has stays
            free = self._free()
            if free < len(blocks):
                blocks = blocks if worth is None else [block for block in blocks if block in worth]
                if free < len(blocks):
                    self._make(side, out, len(blocks) - free, is_ahead)
                blocks = blocks[: self._free()]
            for low, high in runs(blocks):
                out.reserve(low << BLOCK_BITS, min(high << BLOCK_BITS, self._nbytes) - (low << BLOCK_BITS))
            return blocks

    def expect(self, side: File, blocks: list[int], is_new: bool) -> set[int]:
        """Note which blocks this reader needs soon, in the order of need: those that there is room for.

        Args:
            is_new: its order begins, so what was read before may be read again.
        Returns: those that were noted.
        """
        if is_new:
            side.pwrite(MAP_OFFSET + self._count, bytes(self._count))
            self._soon = set()
        soon = set(blocks[: int(_SOON_PART * self.allowance()) // BLOCK_NBYTES])
        for some, mark in ((self._soon - soon, _READ), (soon, _SOON)):
            for low, high in runs(sorted(some)):
                side.pwrite(MAP_OFFSET + self._count + low, bytes([mark]) * (high - low))
        self._soon = soon
        return soon

    def _free(self) -> int:
        """How many more blocks may be here."""
        # What a file system notes of holes is on the disk too.
        allowed = self.allowance() - (self._limit >> 8)
        return max(0, (allowed - storage.allocated(self._copy + PARTIAL)) // BLOCK_NBYTES)

    def _make(self, side: File, out: File, count: int, is_ahead: bool) -> None:
        """Free so many blocks, or more; fewer where no more can go."""
        if not self._can_free:
            return
        n, allowed = self._count, self.allowance() // BLOCK_NBYTES
        is_here = np.frombuffer(side.pread(MAP_OFFSET, n), np.uint8) & 1 == 1
        marks = np.frombuffer(side.pread(MAP_OFFSET + n, n).ljust(n, b"\0"), np.uint8)
        here = np.flatnonzero(is_here)
        ranks = _RANKS[marks[here] % len(_RANKS)]
        ranks[np.flatnonzero(ranks == _IDLE_RANK)[: allowed // _STAYING]] = _STAYING_RANK
        # Of equals those behind the last one that went.
        turn = np.roll(np.arange(len(here)), -int(np.searchsorted(here, self._hand)))
        turn = turn[np.argsort(ranks[turn], kind="stable")]
        idle, free = (int(np.count_nonzero(ranks <= rank)) for rank in (_IDLE_RANK, _STAYING_RANK))
        count = max(count, min(allowed // _PART, _MOST, idle))
        victims = here[turn[: min(count, free) if is_ahead else count]]
        self._hand = int(victims[-1]) + 1 if len(victims) else 0
        if not self._has_looked:
            # Who was killed has left space that no block has.
            self._has_looked = True
            victims = np.concatenate((victims, np.flatnonzero(~is_here)))
        try:
            self._punch(out, np.sort(victims))
        except StorageError as error:
            self._can_free = False
            base.warn(f"{error}; what max_bytes= leaves no room for is read every time and not kept")

    def _punch(self, out: File, victims: npt.NDArray[np.int64]) -> None:
        # Locks of its own: what this process fetches itself is claimed by another descriptor.
        with closing(File.open(self._copy + SIDE, "r+")) as side:
            for low, high in runs(claimed(side, victims.tolist(), wait=False)):
                state = side.pread(MAP_OFFSET + low, high - low)
                side.pwrite(MAP_OFFSET + low, bytes((byte + byte % 2) % 256 for byte in state))
                side.pwrite(MAP_OFFSET + self._count + low, bytes(high - low))
                out.punch(low << BLOCK_BITS, (high - low) << BLOCK_BITS)


def runs(blocks: Iterable[int], most: int = 1 << 30) -> Iterator[tuple[int, int]]:
    """Rising numbers as half-open ranges of at most so many."""
    low = high = -1
    for block in blocks:
        if block != high or high - low == most:
            if low >= 0:
                yield low, high
            low = block
        high = block + 1
    if low >= 0:
        yield low, high


def claimed(side: File, blocks: Iterable[int], wait: bool) -> list[int]:
    """Claim those of rising blocks that nobody else has claimed; with `wait` all of them."""
    mine: list[int] = []
    for low, high in runs(blocks):
        if wait:
            side.lock(CLAIMS + low, high - low)
            mine += range(low, high)
        elif side.try_lock(CLAIMS + low, high - low):
            mine += range(low, high)
        else:
            mine += (block for block in range(low, high) if side.try_lock(CLAIMS + block))
    return mine
