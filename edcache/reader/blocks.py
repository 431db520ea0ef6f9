"""Which bytes of an archive were checked in this process, block by block (format.py section 3).

A block is 16 KiB of a chunk's records. Checking the blocks around what is read costs the same for
twenty tiny records as for one, and spares the rest of a large record of which one field is wanted.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import once

_BITS = format.BLOCK_NBYTES.bit_length() - 1
# When no more than this is left unchecked, all of it is checked at once (16 MiB).
_REST = 1024
_CRC = struct.Struct("<I")

Ints = npt.NDArray[np.int64]


class CheckedBlocks:
    """A bitmap over the blocks of an archive; memory: one bit for 16 KiB.

    Attributes:
        done: every block was checked and found sound.
    """

    def __init__(self, view: memoryview, blocks: Ints) -> None:
        self._view = view
        # A hostile index may point anywhere: records in what is left out are checked one by one.
        counts = -(-blocks[:, 2] // format.BLOCK_NBYTES)
        fits = (blocks[:, 1] + blocks[:, 2] <= len(view)) & (blocks[:, 0] + 4 * counts <= blocks[:, 1])
        known, counts = blocks[fits], counts[fits]
        self._crcs_offsets, self._starts = known[:, 0].copy(), known[:, 1].copy()
        self._ends = self._starts + known[:, 2]
        firsts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        self._firsts = firsts[:-1]
        # Adding this to an offset and shifting gives the number of its block.
        self._bias = (self._firsts << _BITS) - self._starts
        self._count = int(firsts[-1])
        self._bits = bytearray(-(-self._count // 8))
        self._left = self._count
        self._is_rest_tried = False
        self.done = False

    @once
    def _lists(self) -> tuple[list[int], list[int], list[int]]:
        """Start, end and first block of each chunk's records: one record is found faster in lists."""
        return self._starts.tolist(), self._ends.tolist(), self._firsts.tolist()

    @property
    def nbytes(self) -> int:
        """Memory that this takes."""
        return len(self._bits) + 40 * len(self._starts)

    def are_sound(self, start: int, end: int) -> bool:
        """Whether the blocks around [start, end) fit their crc32; False says nothing of what is within."""
        starts, ends, firsts = self._lists
        run = bisect_right(starts, start) - 1
        if run < 0 or end > ends[run]:
            return False
        base, first = starts[run], firsts[run]
        bits, low, high = self._bits, first + (start - base >> _BITS), first + (end - 1 - base >> _BITS)
        wanted = [block for block in range(low, high + 1) if not bits[block >> 3] & 1 << (block & 7)]
        return all(self._check_one(block, run) for block in wanted)

    def unsound(self, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
        """Where the blocks around extents do not fit their crc32: bool [n].

        Args:
            start, end: int64 [n], bytes from the start of the file.
        """
        if not len(self._starts):
            return np.ones(len(start), bool)
        run = np.searchsorted(self._starts, start, "right") - 1
        outside: npt.NDArray[np.bool_] = (run < 0) | (end > self._ends[run]) | (end <= start)
        low = start + self._bias[run] >> _BITS
        high = end - 1 + self._bias[run] >> _BITS
        if np.any(outside):
            low, high = low[~outside], high[~outside]
        wanted = self._unchecked(_covered(low, high))
        failed = self._check(wanted) if len(wanted) else wanted
        if len(failed):
            hit = np.searchsorted(failed, low) < np.searchsorted(failed, high, "right")
            outside[np.flatnonzero(~outside)[hit]] = True
        return outside

    def _unchecked(self, blocks: Ints) -> Ints:
        bits = np.frombuffer(self._bits, np.uint8)
        unchecked = (bits[blocks >> 3] >> (blocks & 7).astype(np.uint8)) & 1 == 0
        if not np.any(unchecked):
            return blocks[:0]
        # Not np.unique(): it imports numpy.ma, at the first read of a process.
        chosen = np.sort(blocks[unchecked])
        distinct: Ints = chosen[np.append(True, chosen[1:] != chosen[:-1])]
        return distinct

    def _check(self, blocks: Ints) -> Ints:
        """Check blocks that rise and were not checked yet; returns those that fail."""
        failed = self._failing(blocks)
        # No lock, which a fork could freeze: of two threads that set bits of one byte one may lose its bit,
        # which is then checked again, and the count is only believed after `_check_rest` made it anew.
        sound = blocks[~np.isin(blocks, failed)] if len(failed) else blocks
        bits = np.frombuffer(self._bits, np.uint8)
        np.bitwise_or.at(bits, sound >> 3, np.uint8(1) << (sound & 7).astype(np.uint8))
        self._note_sound(len(sound))
        return failed

    def _check_one(self, block: int, run: int) -> bool:
        """`_check` for one block, without numpy's price."""
        starts, ends, firsts = self._lists
        number = block - firsts[run]
        start = starts[run] + (number << _BITS)
        data = self._view[start : min(start + format.BLOCK_NBYTES, ends[run])]
        if format.crc32(data) != _CRC.unpack_from(self._view, int(self._crcs_offsets[run]) + 4 * number)[0]:
            return False
        self._bits[block >> 3] |= 1 << (block & 7)
        self._note_sound(1)
        return True

    def _note_sound(self, count: int) -> None:
        self._left -= count
        if self._left <= _REST and not self._is_rest_tried:
            self._is_rest_tried = True
            self._check_rest()

    def _failing(self, blocks: Ints) -> Ints:
        run = np.searchsorted(self._firsts, blocks, "right") - 1
        number = blocks - self._firsts[run]
        start = self._starts[run] + (number << _BITS)
        end = np.minimum(start + format.BLOCK_NBYTES, self._ends[run])
        view, crc32, expected = self._view, format.crc32, _CRC.unpack_from
        found = [crc32(view[low:high]) for low, high in zip(start.tolist(), end.tolist(), strict=True)]
        wanted = [expected(view, at)[0] for at in (self._crcs_offsets[run] + 4 * number).tolist()]
        return blocks[:0] if found == wanted else blocks[np.array(found) != np.array(wanted)]

    def _check_rest(self) -> None:
        every = np.arange(self._count)
        self._check(self._unchecked(every))
        self.done = not len(self._unchecked(every))


def _covered(low: Ints, high: Ints) -> Ints:
    """Every number in the ranges [low, high]; some twice."""
    width = int((high - low).max(initial=0))
    if width == 0:
        return low
    if width == 1:
        return np.concatenate((low, high))
    counts = high - low + 1
    starts = np.repeat(low - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    return starts + np.arange(len(starts))
