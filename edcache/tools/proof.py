"""The bytes of one chunk against its crc32s: payload, blocks and records, from one read of each byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import Ints
from edcache.format import ChunkTable, Header, PRead, blocks_of, padding_of

# A multiple of the block; what is read stays in a processor's cache while three checksums pass over it.
_WINDOW: Final = 64 * format.BLOCK_NBYTES
_SHOWN: Final = 20

OnProblem = Callable[[int, str], None]
"""`on_problem(offset, what)`; the offset counts from the start of the file."""


def check_layout(header: Header, table: ChunkTable, on_problem: OnProblem) -> npt.NDArray[np.bool_]:
    """Where records overlap an earlier one of the chunk, or are not aligned: bool [n]; reads nothing."""
    start, end = _extents(table)
    behind = np.concatenate(([0], np.maximum.accumulate(end)[:-1])) if len(end) else end
    wrong: npt.NDArray[np.bool_] = (start < behind) | (start % np.where(end - start >= 1024, 64, 8) != 0)
    assert table.records.index is not None
    _report_rows(header, table, np.flatnonzero(wrong), "overlaps or is not aligned", on_problem)
    return wrong


def check_chunk(
    pread: PRead, header: Header, table: ChunkTable, table_bytes: bytes, on_problem: OnProblem
) -> int:
    """Compare records, blocks and gaps of a chunk with its table; returns the crc32 of its payload.

    Memory: a window of 1 MiB, whatever the chunk's size.
    """
    wrong = check_layout(header, table, on_problem)
    records = _RecordsProof(header, table, table_bytes, wrong, on_problem)
    crc = format.crc32(table_bytes)
    crc = format.crc32(padding_of(pread, header), crc)
    position = header.records_offset
    while position < header.payload_end:
        part = pread(position, min(_WINDOW, header.payload_end - position))
        if not part:
            break
        crc = format.crc32(part, crc)
        records.take(position - header.records_offset, memoryview(part))
        position += len(part)
    records.finish()
    return crc


def _extents(table: ChunkTable) -> tuple[Ints, Ints]:
    """Start and end of each record, counted from the first; `read_table` saw that they lie in the chunk."""
    start = table.records.offset.astype(np.int64)
    return start, start + table.records.nbytes.astype(np.int64)


def _report_rows(header: Header, table: ChunkTable, rows: Ints, what: str, on_problem: OnProblem) -> None:
    assert table.records.index is not None
    for row in rows[:_SHOWN].tolist():
        offset = header.records_offset + int(table.records.offset[row])
        on_problem(offset, f"record {int(table.records.index[row])} {what}")
    if len(rows) > _SHOWN:
        more = f"{len(rows) - _SHOWN:,} more records of {header.name}"
        on_problem(header.records_offset, f"the same of {more}")


class _RecordsProof:
    """Takes in the records of a chunk window by window."""

    def __init__(
        self,
        header: Header,
        table: ChunkTable,
        table_bytes: bytes,
        wrong: npt.NDArray[np.bool_],
        on_problem: OnProblem,
    ) -> None:
        self._header, self._table, self._on_problem = header, table, on_problem
        # Those in order and apart: at most one of them reaches from one window into the next.
        self._rows = np.flatnonzero(~wrong)
        start, end = _extents(table)
        self._start, self._end = start[self._rows], end[self._rows]
        self._crcs = table.records.crc32[self._rows]
        self._has_gaps_to_check = not wrong.any()
        self._next = 0
        self._reaching: tuple[int, int] | None = None  # a record that goes on, and its crc32 so far
        self._covered = 0
        count = format.block_count(table.records_nbytes)
        self._block_crcs = np.frombuffer(table_bytes, "<u4", count, len(table_bytes) - 4 * count)
        self._blocks_nbytes = blocks_of(header, table).records_nbytes
        self._failed: list[int] = []
        self._has_foreign = self._has_wrong_block = False

    def take(self, base: int, window: memoryview) -> None:
        """The bytes from `base` on, counted from the first record; windows come in order."""
        end = base + len(window)
        self._go_on(base, window)
        first = self._next
        last = self._next = first + int(np.searchsorted(self._start[first:], end))
        self._check_gaps(base, window, first, last)
        if last > first and self._end[last - 1] > end:
            last -= 1
            self._reaching = last, format.crc32(window[int(self._start[last]) - base :])
        crc32 = format.crc32
        starts = (self._start[first:last] - base).tolist()
        ends = (self._end[first:last] - base).tolist()
        crcs = [crc32(window[low:high]) for low, high in zip(starts, ends, strict=True)]
        self._failed += (first + np.flatnonzero(np.array(crcs, np.uint32) != self._crcs[first:last])).tolist()
        self._check_blocks(base, window)

    def finish(self) -> None:
        """Report what does not fit."""
        # What was not reached is missing from a file that was cut, or empty at the very end.
        rest = np.arange(self._next, len(self._rows))
        self._failed += rest[(self._start[rest] < self._end[rest]) | (self._crcs[rest] != 0)].tolist()
        if self._reaching is not None:
            self._failed.append(self._reaching[0])
        rows = self._rows[np.array(self._failed, np.int64)]
        _report_rows(self._header, self._table, rows, "fails its crc32", self._on_problem)
        if self._has_wrong_block:
            what = "the crc32 of its blocks do not fit its records"
            self._on_problem(self._header.records_offset, what)

    def _go_on(self, base: int, window: memoryview) -> None:
        if self._reaching is None:
            return
        row, crc = self._reaching
        crc = format.crc32(window[: max(0, int(self._end[row]) - base)], crc)
        self._reaching = row, crc
        if self._end[row] <= base + len(window):
            self._reaching = None
            if crc != self._crcs[row]:
                self._failed.append(row)

    def _check_gaps(self, base: int, window: memoryview, first: int, last: int) -> None:
        """What belongs to no record is zero."""
        end = base + len(window)
        low = np.concatenate(([self._covered], self._end[first:last])).clip(base, end)
        high = np.concatenate((self._start[first:last], [end]))
        if last > first:
            self._covered = int(self._end[last - 1])
        counts = high - low
        total = int(counts.sum())
        if not total or not self._has_gaps_to_check or self._has_foreign:
            return
        behind = np.concatenate(([0], np.cumsum(counts)[:-1]))
        places = np.repeat(low - base - behind, counts) + np.arange(total)
        foreign = places[np.frombuffer(window, np.uint8)[places] != 0]
        if len(foreign):
            self._has_foreign = True
            offset = self._header.records_offset + base + int(foreign[0])
            self._on_problem(offset, "bytes that belong to no record are not zero")

    def _check_blocks(self, base: int, window: memoryview) -> None:
        window = window[: max(0, self._blocks_nbytes - base)]
        crcs = format.block_crcs(window)
        first = base // format.BLOCK_NBYTES
        if crcs != self._block_crcs[first : first + len(crcs) // 4].tobytes():
            self._has_wrong_block = True
