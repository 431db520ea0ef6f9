"""The crc32 checks of records: one record, many at once, by blocks, or by request.

A block is 16 KiB of a chunk's records (format/spec.py section 3). One check of a block covers many tiny
records. Reading a part of a large record checks only the blocks of that part.
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
from edcache.reader.index import RecordIndex
from edcache.storage import ByteSource

Check = Callable[[slice], None]
"""`check(part)` checks the records of a slice of a group; raises CorruptRecordError."""

# Records of this size or more are checked by their own crc32, smaller ones by their blocks.
LARGE = 1 << 16
_BITS = format.BLOCK_NBYTES.bit_length() - 1
# When at most so many blocks are left (16 MiB), all of them are checked at once.
_REST = 1024
_CRC = struct.Struct("<I")
# Bytes of block crcs that are kept for reads by request: enough for 256 GiB of records.
_MOST_KEPT_NBYTES = 1 << 26


class Runs:
    """The extents of each chunk's records and of the crc32 of their blocks, from index.pages."""

    def __init__(self, blocks: Ints, size: int) -> None:
        # A hostile index may point anywhere. Records of chunks that are left out are checked one by one.
        counts = -(-blocks[:, 2] // format.BLOCK_NBYTES)
        fits = (blocks[:, 1] + blocks[:, 2] <= size) & (blocks[:, 0] + 4 * counts <= blocks[:, 1])
        known, self._counts = blocks[fits], counts[fits]
        self._crcs_offsets, self._starts = known[:, 0].copy(), known[:, 1].copy()
        self._ends = self._starts + known[:, 2]

    @once
    def _lists(self) -> tuple[list[int], list[int], list[int]]:
        """Starts and ends of each chunk's records, offsets of its crcs. Lists are faster for one look-up."""
        return self._starts.tolist(), self._ends.tolist(), self._crcs_offsets.tolist()

    def run_of(self, start: int, end: int) -> int:
        """The chunk whose records contain bytes [start, end) of the file; -1 for none."""
        starts, ends, _ = self._lists
        run = bisect_right(starts, start) - 1
        return run if run >= 0 and end <= ends[run] else -1

    def extent(self, run: int) -> tuple[int, int]:
        """Where the records of a chunk start and end, in bytes from the start of the file."""
        return self._lists[0][run], self._lists[1][run]

    def crcs_extent(self, run: int) -> tuple[int, int]:
        """Where the crc32 of its blocks lie: (offset, nbytes)."""
        return self._lists[2][run], 4 * int(self._counts[run])


class CheckedBlocks(Runs):
    """The checked blocks of a mapped archive: a bitmap, one bit for 16 KiB.

    Attributes:
        done: every block was checked, and none is damaged.
    """

    def __init__(self, view: memoryview, blocks: Ints) -> None:
        super().__init__(blocks, len(view))
        self._view = view
        firsts = np.concatenate(([0], np.cumsum(self._counts, dtype=np.int64)))
        self._firsts, self._count = firsts[:-1], int(firsts[-1])
        # (offset + bias) >> _BITS is the number of a block.
        self._bias = (self._firsts << _BITS) - self._starts
        self._bits = bytearray(-(-self._count // 8))
        self._left = self._count
        self._is_rest_tried = False
        self.done = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory of this object."""
        return len(self._bits) + 40 * len(self._starts)

    def are_sound(self, start: int, end: int) -> bool:
        """True if the blocks around [start, end) fit their crc32. If not, the record may still be sound."""
        run = self.run_of(start, end)
        if run < 0:
            return False
        bits, bias = self._bits, int(self._bias[run])
        low, high = start + bias >> _BITS, end - 1 + bias >> _BITS
        wanted = [block for block in range(low, high + 1) if not bits[block >> 3] & 1 << (block & 7)]
        return all(self._check_one(block, run) for block in wanted)

    def unsound(self, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
        """For each extent, whether a block around it does not fit its crc32: bool [n].

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
        # np.unique() would import numpy.ma, at the first read of a process.
        chosen = np.sort(blocks[unchecked])
        distinct: Ints = chosen[np.append(True, chosen[1:] != chosen[:-1])]
        return distinct

    def _check(self, blocks: Ints) -> Ints:
        """Check blocks, which are unchecked and in rising order. Returns those that fail."""
        run = np.searchsorted(self._firsts, blocks, "right") - 1
        number = blocks - self._firsts[run]
        start = self._starts[run] + (number << _BITS)
        end = np.minimum(start + format.BLOCK_NBYTES, self._ends[run])
        view, crc32, expected = self._view, format.crc32, _CRC.unpack_from
        crcs = [crc32(view[low:high]) for low, high in zip(start.tolist(), end.tolist(), strict=True)]
        wanted = [expected(view, at)[0] for at in (self._crcs_offsets[run] + 4 * number).tolist()]
        is_sound = np.array(crcs) == np.array(wanted)
        # No lock: a fork could freeze it. Two threads that set bits of one byte may lose a bit. Then a block
        # is checked again. `_note_sound` looks at all bits before it trusts the count.
        sound = blocks[is_sound]
        bits = np.frombuffer(self._bits, np.uint8)
        np.bitwise_or.at(bits, sound >> 3, np.uint8(1) << (sound & 7).astype(np.uint8))
        self._note_sound(len(sound))
        failed: Ints = blocks[~is_sound]
        return failed

    def _check_one(self, block: int, run: int) -> bool:
        """`_check` for one block, without the overhead of numpy."""
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
        file: the bytes, up to `size`. view: the same, mapped; None checks a record at every read.
        verify: "touch", "always" or "never", as in `Reader`.
    Attributes:
        is_done: nothing is left to check.
    """

    # It does not hold the session: a cycle would keep the descriptor until the next garbage collection.
    def __init__(
        self, file: ByteSource, view: memoryview | None, size: int, index: RecordIndex, verify: str
    ) -> None:
        self._path, self.size, self.index = file.path, size, index
        self._view, self._check_damaged = view, file.check_damaged
        self.is_done = verify == "never"
        self._always = verify == "always"
        self._blocks = None if view is None else CheckedBlocks(view, index.blocks)
        self._whole_left = index.rows

    @property
    def nbytes(self) -> int:
        """Bytes of memory of this object."""
        blocks = 0 if self._blocks is None else self._blocks.nbytes
        return blocks + (len(self._whole) if "_whole" in vars(self) else 0)

    def place(self, row: int) -> str:
        """The name of a record in messages: "train.zip: record 17 at offset 4,096"."""
        return f"{self._path}: record {self.index.sample_of(row)} at offset {self.index.place(row)[0]:,}"

    def record(self, row: int, data: memoryview, wanted: tuple[int, int] | None) -> None:
        """Check one record, or at least its bytes `wanted`, which is (start, end).

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
            offset = self.index.place(row)[0]
            low, high = (0, len(data)) if wanted is None else wanted
            if not blocks.are_sound(offset + low, offset + min(high, len(data))):
                self._compare(row, data)
            self.is_done |= blocks.done

    def beyond_end(self, row: int) -> CorruptRecordError:
        """The error for a record that ends behind the end of the file."""
        return CorruptRecordError(
            f"{self.place(row)}: it ends at {sum(self.index.place(row)):,}, the file at {self.size:,}; "
            f'run "edcache verify {self._path}"',
            path=self._path,
            index=self.index.sample_of(row),
        )

    def group(self, rows: Ints, start: Ints, wanted: tuple[int, int] | None) -> Check | None:
        """The check of the records of some rows; None if they were all checked.

        Args:
            start: int64 [n], their offsets in the mapped file.
        """
        blocks = self._blocks
        assert blocks is not None
        if self.is_done:
            return None
        if self._always:
            return lambda part: self._check_each(rows[part], self._compare)
        if wanted is None and self.index.place(int(rows[0]))[1] >= LARGE:
            bits = np.frombuffer(self._whole, np.uint8)
            if np.all((bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1):
                return None
            return lambda part: self._check_each(rows[part], self._check_whole)
        low = start if wanted is None else start + wanted[0]
        high = start + (self.index.sizes(rows) if wanted is None else wanted[1])

        def check(part: slice) -> None:
            unsound = blocks.unsound(low[part], high[part])
            if np.any(unsound):
                self._check_each(rows[part][unsound], self._compare)
            self.is_done |= blocks.done

        return check

    def _check_each(self, rows: Ints, check: Callable[[int, memoryview], None]) -> None:
        assert self._view is not None
        for row in rows.tolist():
            offset, nbytes = self.index.place(row)
            check(row, self._view[offset : offset + nbytes])

    @once
    def _whole(self) -> bytearray:
        """One bit for every row: whether its record was checked as a whole."""
        return bytearray(-(-self.index.rows // 8))

    def _check_whole(self, row: int, data: memoryview) -> None:
        # Threads and lost bits: as in CheckedBlocks.
        bit, bits = 1 << (row & 7), self._whole
        if bits[row >> 3] & bit:
            return
        self._compare(row, data)
        bits[row >> 3] |= bit
        self._whole_left -= 1
        if self._whole_left <= 0:
            self._whole_left = self.index.rows - sum(byte.bit_count() for byte in bits)
            self.is_done = not self._whole_left

    def _compare(self, row: int, data: memoryview) -> None:
        crc, expected = format.crc32(data), self.index.crc32(row)
        if crc != expected:
            if self._view is not None:
                self._check_damaged(*self.index.place(row))
            raise CorruptRecordError(
                f"{self.place(row)}: crc32 {crc:#010x}, the index says {expected:#010x}; "
                f'run "edcache verify {self._path}"',
                path=self._path,
                index=self.index.sample_of(row),
            )


# --- by request -------------------------------------------------------------------------------------

Part = tuple[int, int] | None


class Piece(NamedTuple):
    """Checked bytes of one record, from its byte `low` on; the rest was not requested."""

    low: int
    data: memoryview


class _Blocks(NamedTuple):
    """Whole blocks of chunk `run`: bytes [start, end) of the file; `first` is the number of the first crc."""

    run: int
    first: int
    start: int
    end: int


class Requested:
    """Reads records by request, and checks each by its own crc32 or by the crc32 of its blocks.

    The block crcs of a chunk are fetched together with its first blocks, and kept.
    """

    def __init__(self, file: ByteSource, checks: Checks) -> None:
        self._file, self._checks, self._index = file, checks, checks.index
        self._crcs: dict[int, memoryview] = {}
        self._ahead = threading.local()

    @once
    def _runs(self) -> Runs:
        return Runs(self._index.blocks, self._checks.size)

    def record(self, row: int, wanted: Part) -> memoryview:
        """The stored bytes of one record. Bytes outside of `wanted` may be zero."""
        ahead: dict[int, Piece] = getattr(self._ahead, "pieces", {})
        piece = ahead[row] if row in ahead else self.pieces([row], wanted)[0]
        nbytes = self._index.place(row)[1]
        if len(piece.data) == nbytes:
            return piece.data
        record = bytearray(nbytes)
        record[piece.low : piece.low + len(piece.data)] = piece.data
        return memoryview(record)

    @contextmanager
    def reading_ahead(self, rows: Sequence[int], wanted: Part) -> Iterator[None]:
        """Fetch records together; this thread then reads them in the block."""
        try:
            self._ahead.pieces = dict(zip(rows, self.pieces(rows, wanted), strict=True))
            yield
        finally:
            self._ahead.pieces = {}

    def pieces(self, rows: Sequence[int], wanted: Part) -> list[Piece]:
        """The records of some rows, or the wanted bytes of each, by one concurrent fetch.

        Args:
            wanted: (start, end) in bytes of the record; None for all of it.
        Raises:
            CorruptRecordError: a record fails its crc32, twice, or ends behind the file.
            StaleArchiveError: the archive was replaced since it was opened.
        """
        self._index.prepare(np.array(rows, np.int64))
        extents = [self._index.place(row) for row in rows]
        for row, (offset, nbytes) in zip(rows, extents, strict=True):
            if offset + nbytes > self._checks.size:
                raise self._checks.beyond_end(row)
        chosen = [self._chosen(*extent, wanted) for extent in extents]
        known = self._crcs
        new = sorted({part.run for part in chosen if part is not None} - known.keys())
        reads = [
            extent if part is None else (part.start, part.end - part.start)
            for extent, part in zip(extents, chosen, strict=True)
        ]
        reads += [self._runs.crcs_extent(run) for run in new]
        # No read goes beyond the end of the file; a record that is too short fails its crc32.
        size = self._checks.size
        cut = [(start, min(nbytes, max(0, size - start))) for start, nbytes in reads]
        data = self._file.read_many(cut)
        crcs = {**known, **dict(zip(new, data[len(extents) :], strict=True))} if new else known
        self._crcs = {} if sum(map(len, crcs.values())) > _MOST_KEPT_NBYTES else crcs
        return [
            self._checked(row, fetched, wanted, part, b"" if part is None else crcs[part.run])
            for row, fetched, part in zip(rows, data, chosen, strict=False)
        ]

    def _chosen(self, offset: int, nbytes: int, wanted: Part) -> _Blocks | None:
        """The blocks to read instead of the whole record; None if that saves no bytes."""
        if wanted is None:
            return None
        start, end = offset + wanted[0], offset + min(wanted[1], nbytes)
        run = self._runs.run_of(start, end)
        if run < 0 or start >= end:
            return None
        base, stop = self._runs.extent(run)
        first = (start - base) // format.BLOCK_NBYTES
        low = base + first * format.BLOCK_NBYTES
        high = min(base + -(-(end - base) // format.BLOCK_NBYTES) * format.BLOCK_NBYTES, stop)
        crcs = 0 if run in self._crcs else self._runs.crcs_extent(run)[1]
        return _Blocks(run, first, low, high) if high - low + crcs < nbytes else None

    def _checked(
        self, row: int, data: memoryview, wanted: Part, part: _Blocks | None, crcs: bytes | memoryview
    ) -> Piece:
        """The fetched part of a record. If its check fails, the whole record is fetched again."""
        if part is None or wanted is None:
            try:
                self._checks.record(row, data, None)
                return Piece(0, data)
            except CorruptRecordError:
                pass
        elif self._are_sound(part, data, crcs):
            low = self._index.place(row)[0] - part.start
            return Piece(wanted[0], data[low + wanted[0] : low + wanted[1]])
        # The transfer was damaged, the archive was replaced, or a copy of it is damaged.
        self._file.check_damaged(*self._index.place(row))
        whole = self._file.read_many([self._index.place(row)])[0]
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
