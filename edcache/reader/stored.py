"""Stored bytes of records: mapped, read or requested, checked, and read ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from edcache import format
from edcache.base import Ints, Sound
from edcache.format import BLOCK_NBYTES, Rows
from edcache.reader.checks import ByteRange, Checks
from edcache.reader.index import Row

Wanted = Callable[[Row], ByteRange]
"""`wanted(row)` returns the bytes of a record that will be read."""

# A record of these bytes or more is read ahead if it is not in memory.
LARGE = 1 << 16
# Requests for a record by one row, before the next one for the row too.
_TRIES_OF_A_ROW = 2


class Piece(NamedTuple):
    """Checked bytes of one record, from byte `low` on; the rest was not requested."""

    low: int
    data: memoryview


class Stored:
    """Stored bytes of records, checked: mapped, read, or requested from a server.

    Args:
        checks: of the records.
    """

    # Without the session: a cycle would keep the descriptor until the next garbage collection.
    def __init__(self, checks: Checks) -> None:
        self._checks, self._index, self._extents = checks, checks.index, checks.extents
        self._file, self._view = self._extents.file, self._extents.view

    # --- mapped ---

    def locate(self, indices: Ints, wanted: ByteRange) -> Ints:
        """Return the offsets of records in the mapping: int64 [n]. The kernel may be told to read them ahead.

        Args:
            wanted: the bytes of each to be read.
        Raises: CorruptRecordError, an unchecked record begins or ends out of the file. Its sum is compared later.
        """
        start = self._index.offsets(indices)
        if self._checks.is_trusting or not self._checks.is_done:
            last = max(int(start.view(np.uint64).max()), int((start + self._index.sizes(indices)).max()))
            if last > self._extents.nbytes:
                for index in indices.tolist():
                    self._checks.check_place(index, self._index.row(index))
        if self._extents.are_cold(start):
            low, high = (0, self._index.sizes(indices)) if wanted is None else wanted
            self._extents.announce(start + low, start + high)
        return start

    def _mapped(self, index: int, row: Row, wanted: Wanted) -> memoryview:
        assert self._view is not None
        if not self._checks.is_done:
            self._checks.record(index, row, wanted(row))
        elif self._checks.is_trusting or not row[4] & format.PRESENT:
            self._checks.check_place(index, row)
        return self._view[row[0] : row[0] + row[1]]

    # --- records ---

    def record(self, index: int, wanted: Wanted) -> tuple[Row, memoryview]:
        """Return the row of a sample and its stored bytes; the wanted ones are checked, others may be zero.

        Raises: MissingSampleError; others as `records`.
        """
        if self._view is None:
            (row,), (piece,) = self._request([index], wanted)
            if len(piece.data) == row[1]:
                return row, piece.data
            record = bytearray(row[1])
            record[piece.low : piece.low + len(piece.data)] = piece.data
            return row, memoryview(record)
        row = self._index.row(index)
        if row[1] >= LARGE:
            self._checks.check_place(index, row)
            start = np.array(row[:1], np.int64)
            if self._extents.are_cold(start):
                self._extents.announce(start, start + row[1])
        return row, self._mapped(index, row, wanted)

    def records(self, indices: Ints, wanted: Wanted) -> tuple[Rows, list[Piece]]:
        """Return the rows of samples, and their records, or at least the wanted bytes of each.

        Records of a file that is not mapped are read in one fetch.

        Raises:
            MissingSampleError: a sample has no record.
            CorruptRecordError: a record ends behind the file, or fails its crc32 after all tries.
            StaleArchiveError: the archive was replaced since it was opened.
        """
        if self._view is None:
            rows, pieces = self._request(indices.tolist(), wanted)
            return np.array(rows, format.ROW), pieces
        self.locate(indices, None)
        found = self._index.rows(indices)
        pairs = zip(indices.tolist(), found.tolist(), strict=True)
        return found, [Piece(0, self._mapped(index, row, wanted)) for index, row in pairs]

    def _request(self, indices: list[int], wanted: Wanted) -> tuple[list[Row], list[Piece]]:
        """Request records. One that fails its sum is requested again, and then its row too: either may be wrong.

        A row by which no record can be read is given up when it came twice alike.
        """
        rows: list[Row] = self._index.rows(np.array(indices, np.int64)).tolist()
        found = self._requested(indices, rows, wanted, _TRIES_OF_A_ROW)
        failed = [k for k, piece in enumerate(found) if piece is None]
        for asked in range(1, self._file.tries):
            again = self._ask_rows([indices[k] for k in failed])
            pairs = zip(failed, again, strict=True)
            new = {k: row for k, row in pairs if row != rows[k] or self._checks.misplaced(row) is None}
            tries = _TRIES_OF_A_ROW if asked < self._file.tries - 1 else self._file.tries
            some = self._requested([indices[k] for k in new], [*new.values()], wanted, tries)
            for (k, row), piece in zip(new.items(), some, strict=True):
                rows[k], found[k] = row, piece
                if piece is not None:
                    self._mend_row(indices[k], row)
            failed = [k for k in new if found[k] is None]
            if not failed:
                break
        for index, row, piece in zip(indices, rows, found, strict=True):
            if piece is None:
                self._checks.check_place(index, row)
                raise self._checks.error(index, "it fails its crc32")
        return rows, [piece for piece in found if piece is not None]

    def _requested(
        self, indices: Sequence[int], rows: Sequence[Row], wanted: Wanted, tries: int
    ) -> list[Piece | None]:
        """Request records, up to `tries` times; None for one that fails its sum, or lies where none can be."""
        checks, data = self._checks, list[memoryview]()
        extents: list[tuple[int, int]] = []
        sums: list[Sound] = []
        places: dict[int, tuple[int, int]] = {}
        for k, row in enumerate(rows):
            if checks.misplaced(row) is None:
                low, own, own_sums = self._asked(indices[k], row, wanted, data, len(extents))
                places[k] = len(extents), low
                extents += own
                sums += own_sums
        start, nbytes = np.array(extents, np.int64).reshape(-1, 2).T
        if len(extents) > 1 and self._extents.are_cold(start):
            self._extents.announce(start, start + nbytes)
        data += self._file.read_many(extents)
        if not checks.is_done and self._file.tries > 1:
            self._file.until_sound(extents, data, sums, tries)
        found: list[Piece | None] = [None] * len(rows)
        for k, (at, low) in places.items():
            if checks.is_done or sums[at](data[at]):
                found[k] = Piece(low, data[at][: rows[k][1]])
        return found

    def _asked(
        self, index: int, row: Row, wanted: Wanted, data: list[memoryview], at: int
    ) -> tuple[int, list[tuple[int, int]], list[Sound]]:
        """List the extents of a record to be requested, and their checks; returns its first byte in them too.

        It is a whole record, or some blocks and the crc32s behind the record. data: of all extents, when they are
        checked; the ones of this record begin at `at`.
        """
        offset, nbytes = row[:2]
        behind, crc = format.behind_nbytes(nbytes), self._index.crc32_of(index, row)
        asked = wanted(row) if behind else None
        start, end = (0, nbytes) if asked is None else asked
        low, high = start // BLOCK_NBYTES * BLOCK_NBYTES, min(format.align(end, BLOCK_NBYTES), nbytes)
        if not 0 <= low < high or high - low == nbytes:
            whole = offset, nbytes + behind
            return 0, [whole], [lambda record: format.fits(crc, nbytes, memoryview(record))]

        def blocks_fit(some: bytes | memoryview) -> bool:
            first = low // BLOCK_NBYTES
            return len(some) == high - low and format.blocks_fit(crc, memoryview(some), data[at + 1], first)

        extents = [(offset + low, high - low), (offset + nbytes, behind)]
        return low, extents, [blocks_fit, format.fits_crc32(behind, crc)]

    # --- rows that a server sent ---

    def _ask_rows(self, indices: Sequence[int]) -> list[Row]:
        if self._index.memory is not None:  # one sum is over all of them
            return [self._index.row(index) for index in indices]
        answers = self._file.ask_again([self._index.extent(index) for index in indices])
        return [np.frombuffer(answer, format.ROW)[0].item() for answer in answers]

    def _mend_row(self, index: int, row: Row) -> None:
        """Keep a row by which a record is sound."""
        if self._index.memory is None:
            self._index.keep(index, row)
            self._file.mend(self._index.extent(index)[0], memoryview(np.array(row, format.ROW).tobytes()))
