"""When a record's bytes are compared with their crc32: alone, many at once, block by block, or by request.

A block is 16 KiB of a chunk's records (format/spec.py section 3). Checking the blocks around what is read
costs the same for twenty tiny records as for one, and spares the rest of a large one.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CorruptRecordError, Ints, once
from edcache.format import IndexTable
from edcache.storage import ByteSource

Check = Callable[[slice], None]
"""`check(part)` checks the records of a slice of a group; raises CorruptRecordError."""

# A record from here on is checked as a whole, by its own crc32, smaller ones by the blocks around them.
LARGE = 1 << 16
_BITS = format.BLOCK_NBYTES.bit_length() - 1
# When no more blocks than this are left unchecked, all of them are checked at once (16 MiB).
_REST = 1024
_CRC = struct.Struct("<I")
# Block crcs that are kept of what is read by request, in bytes: those of 256 GiB of records.
_MOST_KEPT_NBYTES = 1 << 26


class Runs:
    """Where the records of each chunk and the crc32 of their blocks lie, as index.arrow says."""

    def __init__(self, blocks: Ints, size: int) -> None:
        # A hostile index may point anywhere: records in what is left out are checked one by one.
        counts = -(-blocks[:, 2] // format.BLOCK_NBYTES)
        fits = (blocks[:, 1] + blocks[:, 2] <= size) & (blocks[:, 0] + 4 * counts <= blocks[:, 1])
        known, self._counts = blocks[fits], counts[fits]
        self._crcs_offsets, self._starts = known[:, 0].copy(), known[:, 1].copy()
        self._ends = self._starts + known[:, 2]

    @once
    def _lists(self) -> tuple[list[int], list[int], list[int]]:
        """Start and end of each chunk's records, offset of its crcs: one is found faster in lists."""
        return self._starts.tolist(), self._ends.tolist(), self._crcs_offsets.tolist()

    def run_of(self, start: int, end: int) -> int:
        """Which chunk has bytes [start, end) of the file among its records; -1 for none."""
        starts, ends, _ = self._lists
        run = bisect_right(starts, start) - 1
        return run if run >= 0 and end <= ends[run] else -1


class CheckedBlocks(Runs):
    """Which blocks of a mapped archive were checked: a bitmap, one bit for 16 KiB.

    Attributes:
        done: every block was checked and found sound.
    """

    def __init__(self, view: memoryview, blocks: Ints) -> None:
        super().__init__(blocks, len(view))
        self._view = view
        firsts = np.concatenate(([0], np.cumsum(self._counts, dtype=np.int64)))
        self._firsts, self._count = firsts[:-1], int(firsts[-1])
        # Adding this to an offset and shifting gives the number of its block.
        self._bias = (self._firsts << _BITS) - self._starts
        self._bits = bytearray(-(-self._count // 8))
        self._left = self._count
        self._is_rest_tried = False
        self.done = False

    @property
    def nbytes(self) -> int:
        """Memory that this takes."""
        return len(self._bits) + 40 * len(self._starts)

    def are_sound(self, start: int, end: int) -> bool:
        """Whether the blocks around [start, end) fit their crc32; False says nothing of what is within."""
        run = self.run_of(start, end)
        if run < 0:
            return False
        bits, bias = self._bits, int(self._bias[run])
        low, high = start + bias >> _BITS, end - 1 + bias >> _BITS
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
        run = np.searchsorted(self._firsts, blocks, "right") - 1
        number = blocks - self._firsts[run]
        start = self._starts[run] + (number << _BITS)
        end = np.minimum(start + format.BLOCK_NBYTES, self._ends[run])
        view, crc32, expected = self._view, format.crc32, _CRC.unpack_from
        crcs = [crc32(view[low:high]) for low, high in zip(start.tolist(), end.tolist(), strict=True)]
        wanted = [expected(view, at)[0] for at in (self._crcs_offsets[run] + 4 * number).tolist()]
        is_sound = np.array(crcs) == np.array(wanted)
        # No lock, which a fork could freeze: of two threads that set bits of one byte one may lose its bit,
        # which is then checked again; `_note_sound` looks at all of them before it believes the count.
        sound = blocks[is_sound]
        bits = np.frombuffer(self._bits, np.uint8)
        np.bitwise_or.at(bits, sound >> 3, np.uint8(1) << (sound & 7).astype(np.uint8))
        self._note_sound(len(sound))
        failed: Ints = blocks[~is_sound]
        return failed

    def _check_one(self, block: int, run: int) -> bool:
        """`_check` for one block, without numpy's price."""
        starts, ends, crcs_offsets = self._lists
        number = block - int(self._firsts[run])
        start = starts[run] + (number << _BITS)
        data = self._view[start : min(start + format.BLOCK_NBYTES, ends[run])]
        if format.crc32(data) != _CRC.unpack_from(self._view, crcs_offsets[run] + 4 * number)[0]:
            return False
        self._bits[block >> 3] |= 1 << (block & 7)
        self._note_sound(1)
        return True

    def _note_sound(self, count: int) -> None:
        self._left -= count
        if self._left <= _REST and not self._is_rest_tried:
            self._is_rest_tried = True
            self.done = not len(self._check(self._unchecked(np.arange(self._count))))


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


class Checks:
    """The checks of one archive in one process.

    Args:
        file: the bytes, up to `size`. view: the same, mapped; None where a record is checked at every read.
        verify: "touch", "always" or "never", as in `Reader`.
    Attributes:
        is_done: nothing is left to check.
    """

    # Not the session itself: a cycle would keep a dropped reader's descriptor until the next collection.
    def __init__(
        self, file: ByteSource, view: memoryview | None, size: int, index: IndexTable, verify: str
    ) -> None:
        records = self._records = index.records
        self._path, self.size, self._mend = file.path, size, file.mend
        self._view = view
        self.is_done = verify == "never"
        self._always = verify == "always"
        # Reading one element of a memoryview costs half of what numpy takes.
        self._offset, self._nbytes = records.offset.data, records.nbytes.data
        self._crc32 = records.crc32.data
        self._blocks = None if view is None else CheckedBlocks(view, index.blocks)
        self._whole_left = len(self._offset)

    @property
    def nbytes(self) -> int:
        """Memory that this takes."""
        blocks = 0 if self._blocks is None else self._blocks.nbytes
        return blocks + (len(self._whole) if "_whole" in vars(self) else 0)

    def place(self, row: int) -> str:
        """What messages call a record: "train.zip: record 17 at offset 4,096"."""
        records = self._records
        index = row % len(records.offset) if records.index is None else int(records.index[row])
        return f"{self._path}: record {index} at offset {records.offset[row]:,}"

    def record(self, row: int, data: memoryview, wanted: tuple[int, int] | None) -> None:
        """Check one record, at least the half-open part of its bytes that is wanted.

        Raises:
            CorruptRecordError: "train.zip: record 17 at offset 4,096: crc32 0x1c291ca3, the index says ...".
        """
        blocks = self._blocks
        if self.is_done:
            return
        if blocks is None or self._always:
            self._compare(row, data)
        elif wanted is None and len(data) >= LARGE:
            self._check_whole(row, data)
        else:
            offset = self._offset[row]
            low, high = (0, len(data)) if wanted is None else wanted
            if not blocks.are_sound(offset + low, offset + min(high, len(data))):
                self._compare(row, data)
            self.is_done |= blocks.done

    def beyond_end(self, row: int) -> CorruptRecordError:
        """What to raise for a record that does not lie within the file."""
        end = self._offset[row] + self._nbytes[row]
        return CorruptRecordError(
            f"{self.place(row)}: it ends at {end:,}, the file at {self.size:,}; "
            f'run "edcache verify {self._path}"'
        )

    def group(self, rows: Ints, start: Ints, wanted: tuple[int, int] | None) -> Check | None:
        """How the records of some rows are checked; None where all is known to be sound.

        Args:
            start: int64 [n], their offsets in the mapped file.
        """
        blocks = self._blocks
        assert blocks is not None
        if self.is_done:
            return None
        if self._always:
            return lambda part: self._check_each(rows[part], self._compare)
        if wanted is None and self._nbytes[int(rows[0])] >= LARGE:
            rows = rows % len(self._offset)
            bits = np.frombuffer(self._whole, np.uint8)
            if np.all((bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1):
                return None
            return lambda part: self._check_each(rows[part], self._check_whole)
        low = start if wanted is None else start + wanted[0]
        high = start + (self._records.nbytes[rows].view(np.int64) if wanted is None else wanted[1])

        def check(part: slice) -> None:
            unsound = blocks.unsound(low[part], high[part])
            if np.any(unsound):
                self._check_each(rows[part][unsound], self._compare)
            self.is_done |= blocks.done

        return check

    def _check_each(self, rows: Ints, check: Callable[[int, memoryview], None]) -> None:
        assert self._view is not None
        for row in rows.tolist():
            offset = self._offset[row]
            check(row, self._view[offset : offset + self._nbytes[row]])

    @once
    def _whole(self) -> bytearray:
        """One bit for every row: whether its record was checked as a whole."""
        return bytearray(-(-len(self._offset) // 8))

    def _check_whole(self, row: int, data: memoryview) -> None:
        # Threads and lost bits: as in CheckedBlocks.
        bit, bits = 1 << (row & 7), self._whole
        if bits[row >> 3] & bit:
            return
        self._compare(row, data)
        bits[row >> 3] |= bit
        self._whole_left -= 1
        if self._whole_left <= 0:
            self._whole_left = len(self._offset) - sum(byte.bit_count() for byte in bits)
            self.is_done = not self._whole_left

    def _compare(self, row: int, data: memoryview) -> None:
        crc, expected = format.crc32(data), self._crc32[row]
        if crc != expected and self._view is not None and self._mend(self._offset[row], self._nbytes[row]):
            crc = format.crc32(data)
        if crc != expected:
            raise CorruptRecordError(
                f"{self.place(row)}: crc32 {crc:#010x}, the index says {expected:#010x}; "
                f'run "edcache verify {self._path}"'
            )


# --- by request -------------------------------------------------------------------------------------

Part = tuple[int, int] | None


class Piece(NamedTuple):
    """Bytes of one record from `low` on, checked; the rest of it was not asked for."""

    low: int
    data: memoryview


class _Blocks(NamedTuple):
    """Whole blocks of a chunk: bytes [start, end) of the file, and which crcs of the chunk's are theirs."""

    run: int
    first: int
    start: int
    end: int


class Requested(Runs):
    """Reads records of one archive by request, each checked by its own crc32 or by those of its blocks.

    The block crcs of a chunk are fetched with the first blocks of it, and kept.
    """

    def __init__(self, file: ByteSource, checks: Checks, index: IndexTable) -> None:
        super().__init__(index.blocks, checks.size)
        self._file, self._checks = file, checks
        self._offset = index.records.offset.view(np.int64)
        self._nbytes = index.records.nbytes.view(np.int64)
        self._crcs: dict[int, memoryview] = {}
        self._ahead = threading.local()

    def record(self, row: int, wanted: Part) -> memoryview:
        """One record as it is stored; the bytes beside what is wanted may be zero."""
        ahead: dict[int, Piece] = getattr(self._ahead, "pieces", {})
        piece = ahead[row] if row in ahead else self.pieces([row], wanted)[0]
        nbytes = int(self._nbytes[row])
        if len(piece.data) == nbytes:
            return piece.data
        record = bytearray(nbytes)
        record[piece.low : piece.low + len(piece.data)] = piece.data
        return memoryview(record)

    @contextmanager
    def reading_ahead(self, rows: Sequence[int], wanted: Part) -> Iterator[None]:
        """Let this thread read records inside the block that are fetched at once before."""
        try:
            self._ahead.pieces = dict(zip(rows, self.pieces(rows, wanted), strict=True))
            yield
        finally:
            self._ahead.pieces = {}

    def pieces(self, rows: Sequence[int], wanted: Part) -> list[Piece]:
        """The records of some rows, or what is wanted of each, by one concurrent fetch.

        Args:
            wanted: half-open, in bytes of the record; None for all of it.
        Raises:
            CorruptRecordError: a record fails its crc32, twice, or ends behind the file.
            StaleArchiveError: and the archive was replaced since it was opened.
        """
        extents = list(zip(self._offset[rows].tolist(), self._nbytes[rows].tolist(), strict=True))
        for row, (offset, nbytes) in zip(rows, extents, strict=True):
            if offset + nbytes > self._checks.size:
                raise self._checks.beyond_end(row)
        chosen = [self._chosen(*extent, wanted) for extent in extents]
        known = self._crcs
        new = sorted({part.run for part in chosen if part is not None} - known.keys())
        asked = [
            extent if part is None else (part.start, part.end - part.start)
            for extent, part in zip(extents, chosen, strict=True)
        ]
        asked += [(int(self._crcs_offsets[run]), 4 * int(self._counts[run])) for run in new]
        # Nothing behind the end, whatever the index says: what comes short fails its crc32.
        size = self._checks.size
        data = self._file.read_many([(start, min(nbytes, max(0, size - start))) for start, nbytes in asked])
        crcs = {**known, **dict(zip(new, data[len(extents) :], strict=True))} if new else known
        self._crcs = {} if sum(map(len, crcs.values())) > _MOST_KEPT_NBYTES else crcs
        return [
            self._checked(row, fetched, wanted, part, b"" if part is None else crcs[part.run])
            for row, fetched, part in zip(rows, data, chosen, strict=False)
        ]

    def _chosen(self, offset: int, nbytes: int, wanted: Part) -> _Blocks | None:
        """The blocks of a chunk to read in the place of a whole record, where they are fewer bytes."""
        if wanted is None:
            return None
        start, end = offset + wanted[0], offset + min(wanted[1], nbytes)
        run = self.run_of(start, end)
        if run < 0 or start >= end:
            return None
        base, stop = int(self._starts[run]), int(self._ends[run])
        first = (start - base) // format.BLOCK_NBYTES
        low = base + first * format.BLOCK_NBYTES
        high = min(base + -(-(end - base) // format.BLOCK_NBYTES) * format.BLOCK_NBYTES, stop)
        crcs = 0 if run in self._crcs else 4 * int(self._counts[run])
        return _Blocks(run, first, low, high) if high - low + crcs < nbytes else None

    def _checked(
        self, row: int, data: memoryview, wanted: Part, part: _Blocks | None, crcs: bytes | memoryview
    ) -> Piece:
        """What was fetched of a record; where it fails its check, the whole record is, once more."""
        if part is None or wanted is None:
            try:
                self._checks.record(row, data, None)
                return Piece(0, data)
            except CorruptRecordError:
                # The network may have done it, or the archive is another one by now.
                self._file.check_unchanged()
        elif self._are_sound(part, data, crcs):
            low = int(self._offset[row]) - part.start
            return Piece(wanted[0], data[low + wanted[0] : low + wanted[1]])
        whole = self._file.read_many([(int(self._offset[row]), int(self._nbytes[row]))])[0]
        self._checks.record(row, whole, None)
        return Piece(0, whole)

    def _are_sound(self, part: _Blocks, data: memoryview, crcs: bytes | memoryview) -> bool:
        if self._checks.is_done:
            return True
        step = format.BLOCK_NBYTES
        expected = np.frombuffer(crcs, "<u4")[part.first :]
        return all(
            format.crc32(data[at : at + step]) == int(expected[at // step])
            for at in range(0, len(data), step)
        )
