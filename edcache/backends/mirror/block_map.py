"""Which blocks of a copy that fills as it is read are here: the map in its side file."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from edcache.backends.mirror.room import BLOCK_BITS, BLOCK_NBYTES, runs
from edcache.backends.mirror.sidecar import MAP_OFFSET
from edcache.storage import File
from edcache.writer import SIDE

Ints = npt.NDArray[np.int64]

# At most so much of the map is read at once, and so much more than is asked for.
_AT_ONCE, _GAPS = 1 << 8, 1 << 14


class BlockMap:
    """A byte for each block: odd where the block is here, and one more whenever it comes or goes.

    Attributes:
        known: the map as it was when it was last looked at. last: the number of the last block.
    Safety: threads and forks.
    """

    def __init__(self, copy: str, nbytes: int) -> None:
        self._copy = copy
        self.known = bytearray(-(-nbytes // BLOCK_NBYTES))
        self.last = len(self.known) - 1
        self._side: File | None = None

    def look(self, low: int, high: int) -> bytes:
        """What it says of blocks [low, high) now."""
        if self._side is None:
            self._side = File.open(self._copy + SIDE, "r")
        state = self._side.pread(MAP_OFFSET + low, high - low).ljust(high - low, b"\0")
        self.known[low:high] = state
        return state

    def states(self, blocks: Ints) -> npt.NDArray[np.uint8]:
        """What it says of rising blocks now: uint8 [n]."""
        first, stop = int(blocks[0]), int(blocks[-1]) + 1
        if stop - first <= _GAPS:
            return np.frombuffer(self.look(first, stop), np.uint8)[blocks - first]
        return np.frombuffer(b"".join(self.look(k, k + 1) for k in blocks.tolist()), np.uint8)

    def missing(self, blocks: Iterable[int]) -> list[int]:
        """Those of rising blocks that are not here now."""
        there = ((low, self.look(low, high)) for low, high in runs(blocks, _AT_ONCE))
        return [low + k for low, state in there for k, byte in enumerate(state) if not byte & 1]

    def unknown(self, blocks: Ints) -> Ints:
        """Those of blocks that were not here when they were last looked at."""
        lacking: Ints = blocks[np.frombuffer(self.known, np.uint8)[blocks] & 1 == 0]
        return lacking

    def mark(self, side: File, low: int, high: int) -> None:
        """Say that blocks [low, high) are here, of which the caller has the claims by `side`."""
        state = bytes(byte | 1 for byte in side.pread(MAP_OFFSET + low, high - low))
        side.pwrite(MAP_OFFSET + low, state)
        self.known[low:high] = state

    def of(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The blocks of each extent in turn: the numbers of the extents, and of the blocks."""
        low = np.clip(start >> BLOCK_BITS, 0, self.last)
        counts = np.clip(end - 1 >> BLOCK_BITS, low, self.last) - low + 1
        which = np.repeat(np.arange(len(low)), counts)
        return which, low[which] + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)

    def around(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The blocks around extents, rising, and how many bytes of each are in the extents."""
        which, block = self.of(start, end)
        first = block << BLOCK_BITS
        nbytes = np.minimum(end[which], first + BLOCK_NBYTES) - np.maximum(start[which], first)
        order = np.argsort(block, kind="stable")
        block = block[order]
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        return block[starts], np.add.reduceat(nbytes[order], starts) if len(starts) else starts

    def worth(self, start: Ints, end: Ints) -> set[int]:
        """The blocks around extents that are worth the room of others."""
        blocks, nbytes = self.around(start, end)
        return set(blocks[nbytes >= BLOCK_NBYTES // 2].tolist())

    def close(self) -> None:
        """Let go of the side file."""
        if self._side is not None:
            self._side.close()
