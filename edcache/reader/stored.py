"""Bytes of an archive and of its records: mapped, read or requested, checked, and read ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from edcache import base, format
from edcache.base import Ints, Sound
from edcache.format import BLOCK_NBYTES, Place, Rows
from edcache.reader.checks import ByteRange, Checks
from edcache.reader.index import Row
from edcache.storage import ByteSource

Wanted = Callable[[Row], ByteRange]
"""`wanted(row)` returns the bytes of a record that will be read."""

# A record of these bytes or more is read ahead if it is not in memory.
LARGE = 1 << 16
_PROBES = 8
# Extents with smaller gaps are announced together: the kernel reads ahead that far anyway.
_GAP = 1 << 16
# After _HOT_BATCHES batches in memory, only each _HOT_STRIDE-th batch is probed.
_HOT_BATCHES, _HOT_STRIDE = 32, 16
# Requests for a record by one row, before the next one for the row too.
_TRIES_OF_A_ROW = 2


class Extents:
    """Bytes of a file up to `nbytes`, the end of its last entry.

    A local file is mapped, so that all processes share its pages. A file on a network file system is read: mapped, it
    would be fetched page by page, and a lost connection would be a SIGBUS. A URL, or a file of some file systems,
    cannot be mapped.

    Attributes:
        view: the mapped bytes; None if the file is read.
    """

    def __init__(self, file: ByteSource, nbytes: int) -> None:
        self.file, self.nbytes = file, nbytes
        self.view: memoryview | None = None
        self._hot_batches = 0
        if not file.is_remote():
            with suppress(base.StorageError):
                self.view = file.map(nbytes)
        # Compared with itself alone: a damaged one does no harm.
        self._shown = None if self.view is None else self.view[format.UUID_PLACE]
        self._uuid = None if self._shown is None else bytes(self._shown)

    def check_same(self) -> None:
        """Raise StaleArchiveError if another archive was written over the mapped file; called behind the last use.

        Checked records are not checked again, so that a copy over an open file, as by `cp`, would pass otherwise. A
        copy writes the head first: bytes that were taken before this call are the archive's own.
        """
        if self._shown != self._uuid:
            raise base.StaleArchiveError(
                f"{self.file.path}: another archive was written over it while it was open; open it again. Give a new "
                "file its name by a rename, as `mv` does, and readers keep the old one",
                path=self.file.path,
            )

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        """Copy an extent of metadata. Later bytes may be fetched ahead."""
        if self.view is not None:
            return bytes(self.read_many([(offset, nbytes)], None if is_sound is None else [is_sound])[0])
        return self.file.pread(offset, min(nbytes, max(0, self.nbytes - offset)), is_sound)

    def read_many(
        self, extents: Sequence[tuple[int, int]], checks: Sequence[Sound] | None = None
    ) -> list[memoryview]:
        """Read several extents (offset, nbytes) together; see `ByteSource`."""
        if self.view is None:
            clipped = [(at, min(nbytes, max(0, self.nbytes - at))) for at, nbytes in extents]
            return self.file.read_many(clipped, checks)
        data = [self.view[at : at + nbytes] for at, nbytes in extents]
        if checks is not None and self.file.is_copy:
            self.file.until_sound(extents, data.copy(), checks)  # what it mends shows in the mapping
        return data

    def copied(self, places: Sequence[Place]) -> list[memoryview | None]:
        """Copy several places, which are read together; None for one that fails its crc32.

        Raises: StaleArchiveError, as `check_same`. Later no byte of another archive shows in them.
        """
        checks = [format.fits_crc32(nbytes, crc32) for _, nbytes, crc32 in places]
        data = self.read_many([(at, nbytes) for at, nbytes, _ in places], checks)
        if self.view is not None:
            data = [memoryview(bytes(one)) for one in data]
        self.check_same()
        return [one if check(one) else None for one, check in zip(data, checks, strict=True)]

    def are_cold(self, start: Ints | Sequence[int]) -> bool:
        """Probe a few of the offsets of a batch; True if they are not in memory. After many hot ones most pass."""
        self._hot_batches += 1
        if self._hot_batches > _HOT_BATCHES and self._hot_batches % _HOT_STRIDE:
            return False
        return not self.file.are_cached([int(at) for at in start[:: max(1, len(start) // _PROBES)]])

    def announce(self, start: Ints, end: Ints) -> None:
        """Let the kernel read extents ahead."""
        self._hot_batches = 0
        order = np.argsort(start)
        start, end = start[order], np.maximum.accumulate(end[order])
        breaks = np.flatnonzero(start[1:] > end[:-1] + _GAP) + 1
        firsts = np.concatenate(([0], breaks))
        lasts = np.concatenate((breaks, [len(start)])) - 1
        # In reading order, so that the first is copied while the last is fetched.
        first_read = np.argsort(np.minimum.reduceat(order, firsts))
        firsts, lasts = firsts[first_read], lasts[first_read]
        nbytes = end[lasts] - start[firsts]
        if len(firsts) == 1:  # the dataset is read in file order: the next batch follows
            nbytes *= 2
        self.file.will_need(list(zip(start[firsts].tolist(), nbytes.tolist(), strict=True)))


class Piece(NamedTuple):
    """Checked bytes of one record, from byte `low` on; the rest was not requested."""

    low: int
    data: memoryview


class Stored:
    """Stored bytes of records, checked: mapped, read, or requested from a server.

    Args:
        extents: the bytes of the archive. checks: of its records.
    """

    # Without the session: a cycle would keep the descriptor until the next garbage collection.
    def __init__(self, extents: Extents, checks: Checks) -> None:
        self._extents, self._checks, self._index = extents, checks, checks.index
        self._file, self._view = extents.file, extents.view

    # --- mapped ---

    def locate(self, indices: Ints, wanted: ByteRange) -> Ints:
        """Return the offsets of records in the mapping: int64 [n]. The kernel may be told to read them ahead.

        Args:
            wanted: the bytes of each to be read.
        Raises: CorruptRecordError, an unchecked record ends out of the file. Its sum is compared later.
        """
        start = self._index.offsets(indices)
        if self._checks.is_trusting or not self._checks.is_done:
            self._checks.check_inside(indices, start)
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
            if self._extents.are_cold(row[:1]):
                start = np.array(row[:1], np.int64)
                self._extents.announce(start, start + row[1])
        return row, self._mapped(index, row, wanted)

    def records(self, indices: Ints, wanted: Wanted) -> tuple[Rows, list[Piece]]:
        """Return the rows of samples, and their records, or at least the wanted bytes of each.

        Those that are not mapped are read in one fetch.

        Raises:
            MissingSampleError: a sample has no record.
            CorruptRecordError: a record ends behind the file, or fails its crc32 after all tries.
            StaleArchiveError: the archive was replaced since it was opened.
        """
        if self._view is None:
            rows, pieces = self._request(indices.tolist(), wanted)
            return np.array(rows, format.ROW), pieces
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
        if len(extents) > 1 and self._extents.are_cold([start for start, _ in extents]):
            start, nbytes = np.array(extents, np.int64).T
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
        """Return what is requested of a record: its first byte, the extents and their checks.

        These are a whole record, or some blocks of it and the crc32s behind it. data: of all extents, when they are
        checked; those of this record begin at `at`.
        """
        offset, nbytes = row[:2]
        behind, crc = format.behind_nbytes(nbytes), self._index.crc32_of(index, row)
        blocks = _blocks(row, wanted)
        if blocks is None:
            whole = offset, nbytes + behind
            return 0, [whole], [lambda record: format.fits(crc, nbytes, memoryview(record))]
        low, high = blocks

        def blocks_fit(some: bytes | memoryview) -> bool:
            first = low // BLOCK_NBYTES
            return len(some) == high - low and format.blocks_fit(crc, memoryview(some), data[at + 1], first)

        extents = [(offset + low, high - low), (offset + nbytes, behind)]
        return low, extents, [blocks_fit, format.fits_crc32(behind, crc)]

    # --- rows that a server sent ---

    # --- rows that a server sent ---

    def _ask_rows(self, indices: Sequence[int]) -> list[Row]:
        if self._index.is_proven:
            return [self._index.row(index) for index in indices]
        answers = self._file.ask_again([self._index.extent(index) for index in indices])
        return [np.frombuffer(answer, format.ROW)[0].item() for answer in answers]

    def _mend_row(self, index: int, row: Row) -> None:
        """Keep a row by which a record is sound."""
        if not self._index.is_proven:
            self._index.keep(index, row)
            self._file.mend(self._index.extent(index)[0], memoryview(np.array(row, format.ROW).tobytes()))


def _blocks(row: Row, wanted: Wanted) -> tuple[int, int] | None:
    """Round the wanted bytes of a record to blocks (start, end); None if the whole record is read."""
    nbytes = row[1]
    asked = None if nbytes <= BLOCK_NBYTES else wanted(row)
    if asked is None:
        return None
    low = asked[0] // BLOCK_NBYTES * BLOCK_NBYTES
    high = min(format.align(asked[1], BLOCK_NBYTES), nbytes)
    return (low, high) if 0 <= low < high and high - low < nbytes else None
