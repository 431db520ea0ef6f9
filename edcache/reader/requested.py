"""Records that are read by request: many at a time, of large ones only the blocks around what is wanted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CorruptRecordError
from edcache.format import IndexTable
from edcache.reader.checks import Checks
from edcache.reader.group import Piece
from edcache.reader.storage import Storage

Ints = npt.NDArray[np.int64]
Part = tuple[int, int] | None

# Block crcs that are kept, in bytes: those of 256 GiB of records.
_MOST_KEPT_NBYTES = 1 << 26


class _Blocks(NamedTuple):
    """Whole blocks of a chunk: bytes [start, end) of the file, and which crcs of the chunk's are theirs."""

    run: int
    first: int
    start: int
    end: int


class _Runs:
    """Where the records of each chunk and the crc32 of their blocks lie, as index.arrow says."""

    def __init__(self, blocks: Ints, size: int) -> None:
        counts = -(-blocks[:, 2] // format.BLOCK_NBYTES)
        # A hostile index may point anywhere: what is left out is read and checked record by record.
        fits = (blocks[:, 1] + blocks[:, 2] <= size) & (blocks[:, 0] + 4 * counts <= blocks[:, 1])
        known = blocks[fits]
        self._crcs_offsets, self._starts = known[:, 0].copy(), known[:, 1].copy()
        self._ends = self._starts + known[:, 2]
        self._counts = counts[fits]

    def around(self, start: int, end: int) -> _Blocks | None:
        """The blocks around bytes [start, end) of the file; None where they are of no chunk."""
        run = int(np.searchsorted(self._starts, start, "right")) - 1
        if run < 0 or start >= end or end > self._ends[run]:
            return None
        base = int(self._starts[run])
        first = (start - base) // format.BLOCK_NBYTES
        low = base + first * format.BLOCK_NBYTES
        high = min(base + -(-(end - base) // format.BLOCK_NBYTES) * format.BLOCK_NBYTES, int(self._ends[run]))
        return _Blocks(run, first, low, high)

    def crcs_extent(self, run: int) -> tuple[int, int]:
        """Offset and bytes of the block crcs of a chunk."""
        return int(self._crcs_offsets[run]), 4 * int(self._counts[run])


class Requested:
    """Reads records of one archive by request, each checked by its own crc32 or by those of its blocks.

    The block crcs of a chunk are fetched with the first blocks of it, and kept.
    """

    def __init__(self, storage: Storage, checks: Checks, index: IndexTable) -> None:
        self._storage, self._checks = storage, checks
        self._offset = index.records.offset.view(np.int64)
        self._nbytes = index.records.nbytes.view(np.int64)
        self._runs = _Runs(index.blocks, storage.size)
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
        offsets, sizes = self._offset[rows].tolist(), self._nbytes[rows].tolist()
        for row, offset, nbytes in zip(rows, offsets, sizes, strict=True):
            if offset + nbytes > self._storage.size:
                raise self._checks.beyond_end(row)
        chosen = [self._chosen(*extent, wanted) for extent in zip(offsets, sizes, strict=True)]
        known = self._crcs
        new = sorted({part.run for part in chosen if part is not None} - known.keys())
        extents = [
            (offset, nbytes) if part is None else (part.start, part.end - part.start)
            for offset, nbytes, part in zip(offsets, sizes, chosen, strict=True)
        ]
        data = self._storage.read_many(extents + [self._runs.crcs_extent(run) for run in new])
        crcs = {**known, **dict(zip(new, data[len(extents) :], strict=True))} if new else known
        self._crcs = {} if sum(map(len, crcs.values())) > _MOST_KEPT_NBYTES else crcs
        return [
            self._checked(row, fetched, part, offset, wanted, crcs)
            for row, fetched, part, offset in zip(rows, data, chosen, offsets, strict=False)
        ]

    def _chosen(self, offset: int, nbytes: int, wanted: Part) -> _Blocks | None:
        """The blocks to read in the place of a whole record, where they are fewer bytes."""
        if wanted is None:
            return None
        part = self._runs.around(offset + wanted[0], offset + min(wanted[1], nbytes))
        if part is None:
            return None
        crcs = 0 if part.run in self._crcs else self._runs.crcs_extent(part.run)[1]
        return part if part.end - part.start + crcs < nbytes else None

    def _checked(
        self,
        row: int,
        data: memoryview,
        part: _Blocks | None,
        offset: int,
        wanted: Part,
        crcs: dict[int, memoryview],
    ) -> Piece:
        if part is not None and wanted is not None and self._are_sound(part, data, crcs[part.run]):
            low, high = offset + wanted[0] - part.start, offset + wanted[1] - part.start
            return Piece(wanted[0], data[low:high])
        if part is None:
            try:
                self._checks.record(row, data, None)
            except CorruptRecordError:
                # The network may have done it, or the archive is another one by now.
                self._storage.file.check_unchanged()
            else:
                return Piece(0, data)
        whole = self._storage.read(offset, int(self._nbytes[row]))
        self._checks.record(row, whole, None)
        return Piece(0, whole)

    def _are_sound(self, part: _Blocks, data: memoryview, crcs: memoryview) -> bool:
        if self._checks.is_done:
            return True
        step = format.BLOCK_NBYTES
        expected = np.frombuffer(crcs, "<u4")[part.first :]
        return all(
            format.crc32(data[at : at + step]) == int(expected[at // step])
            for at in range(0, len(data), step)
        )
