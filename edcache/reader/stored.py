"""Bytes of an archive and of its records: mapped, read or requested, checked, and read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from edcache import base, format
from edcache.base import Ints, Sound
from edcache.format import BLOCK_NBYTES, Place
from edcache.reader.checks import ByteRange, Checks
from edcache.reader.index import Row
from edcache.storage import ByteSource

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

    def read(self, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an extent, read-only; fewer at the end of the file."""
        if self.view is not None:
            return self.view[offset : offset + nbytes]
        return self.file.read_many([(offset, min(nbytes, max(0, self.nbytes - offset)))])[0]

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

    def is_probe_due(self) -> bool:
        """True if the next batch is to be probed; seldom after many batches in memory."""
        self._hot_batches += 1
        return self._hot_batches <= _HOT_BATCHES or self._hot_batches % _HOT_STRIDE == 0

    def are_in_memory(self, start: Ints) -> bool:
        """Probe a few of the extents at these offsets; True if they are in memory."""
        probes = start[:: max(1, len(start) // _PROBES)].tolist()
        return self.file.are_cached(probes)

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
        if self._extents.is_probe_due() and not self._extents.are_in_memory(start):
            low, high = (0, self._index.sizes(indices)) if wanted is None else wanted
            self._extents.announce(start + low, start + high)
        return start

    # --- one record ---

    def record(self, index: int, row: Row, wanted: ByteRange = None) -> memoryview:
        """Return the stored bytes of one record; the wanted ones are checked, others may be zero."""
        wanted = None if row[4] & format.COMPRESSED else wanted
        offset, nbytes = row[:2]
        if self._view is None:
            piece = self.records([index], [wanted])[0]
            nbytes = self._index.row(index)[1]
            if len(piece.data) == nbytes:
                return piece.data
            record = bytearray(nbytes)
            record[piece.low : piece.low + len(piece.data)] = piece.data
            return memoryview(record)
        if nbytes >= LARGE and self._extents.is_probe_due():
            self._checks.check_place(index, row)
            start = np.array([offset], np.int64)
            if not self._extents.are_in_memory(start):
                self._extents.announce(start, start + nbytes)
        return self._read_mapped(index, row, wanted)

    def _read_mapped(self, index: int, row: Row, wanted: ByteRange) -> memoryview:
        assert self._view is not None
        if not self._checks.is_done:
            self._checks.record(index, row, wanted)
        elif self._checks.is_trusting:
            self._checks.check_place(index, row)
        return self._view[row[0] : row[0] + row[1]]

    # --- many records ---

    def records(self, indices: Sequence[int], wanted: Sequence[ByteRange]) -> list[Piece]:
        """Return the records of some samples, or at least the wanted bytes of each; by request, in one fetch.

        Raises:
            CorruptRecordError: a record ends behind the file, or fails its crc32 after all tries.
            StaleArchiveError: the archive was replaced since it was opened.
        """
        rows: list[Row] = self._index.rows(np.array(indices, np.int64)).tolist()
        if self._file.by_request:
            return self._request(indices, rows, wanted)
        pairs = zip(indices, rows, strict=True)
        if self._view is not None:
            return [Piece(0, self._read_mapped(index, row, None)) for index, row in pairs]
        for index, row in zip(indices, rows, strict=True):
            self._checks.check_place(index, row)
        if len(indices) > 1 and self._extents.is_probe_due():
            offset = np.array([row[0] for row in rows], np.int64)
            if not self._extents.are_in_memory(offset):
                self._extents.announce(offset, offset + np.array([row[1] for row in rows], np.int64))
        return [Piece(0, self._read(index, row)) for index, row in pairs]

    def _read(self, index: int, row: Row) -> memoryview:
        offset, nbytes = row[:2]
        whole = self._extents.read(offset, nbytes + format.behind_nbytes(nbytes))
        if not self._checks.is_done:
            self._checks.compare(index, row, whole)
        return whole[:nbytes]

    def _request(self, indices: Sequence[int], rows: list[Row], wanted: Sequence[ByteRange]) -> list[Piece]:
        """Request records. One that fails its sum is requested again, and then its row too: either may be wrong."""
        found = self._requested(indices, rows, wanted, _TRIES_OF_A_ROW)
        asked = 0
        while failed := [k for k, piece in enumerate(found) if piece is None]:
            asked += 1
            if asked >= self._file.tries:
                break
            again = self._ask_rows([indices[k] for k in failed])
            tries = _TRIES_OF_A_ROW if asked < self._file.tries - 1 else self._file.tries
            some = self._requested([indices[k] for k in failed], again, [wanted[k] for k in failed], tries)
            for k, row, piece in zip(failed, again, some, strict=True):
                found[k] = piece
                if piece is not None and row != rows[k]:
                    self._mend_row(indices[k], row)
        for index, row, piece in zip(indices, rows, found, strict=True):
            if piece is None:
                self._checks.check_place(index, row)
                raise self._checks.error(index, "it fails its crc32")
        return [piece for piece in found if piece is not None]

    def _requested(
        self, indices: Sequence[int], rows: list[Row], wanted: Sequence[ByteRange], tries: int
    ) -> list[Piece | None]:
        """Request records, up to `tries` times; None for one that fails its sum, or lies where none can be."""
        checks = self._checks
        placed = [k for k, row in enumerate(rows) if checks.misplaced(row) is None]
        blocks = {k: _blocks(rows[k], wanted[k]) for k in placed}
        extents = [extent for k in placed for extent in _extents(rows[k], blocks[k])]
        data = self._file.read_many(extents)
        sums: list[Sound] = []
        places: dict[int, int] = {}
        for k in placed:
            places[k] = len(sums)
            sums += self._sums(indices[k], rows[k], blocks[k], data, len(sums))
        if not checks.is_done:
            self._file.until_sound(extents, data, sums, tries)
        found: list[Piece | None] = [None] * len(rows)
        for k, at in places.items():
            if checks.is_done or sums[at](data[at]):
                low, _ = blocks[k] or (0, 0)
                found[k] = Piece(low, data[at] if blocks[k] else data[at][: rows[k][1]])
        return found

    def _sums(
        self, index: int, row: Row, blocks: tuple[int, int] | None, data: list[memoryview], at: int
    ) -> list[Sound]:
        """Make the checks of the extents of a record, which are `data[at]` and what follows."""
        checks = self._checks
        if blocks is None:
            return [lambda record: checks.fits(index, row, memoryview(record))]
        low, high = blocks

        def blocks_fit(some: bytes | memoryview) -> bool:
            first = low // BLOCK_NBYTES
            return len(some) == high - low and checks.blocks_fit(
                index, row, memoryview(some), data[at + 1], first
            )

        behind = format.behind_nbytes(row[1])
        return [blocks_fit, format.fits_crc32(behind, self._index.crc32_of(index, row))]

    # --- rows that a server sent ---

    def settle(self, indices: Ints) -> None:
        """Ask again for rows by which no record can be read, until they can be, or came twice alike."""
        if self._index.is_proven or self._checks.are_plausible(self._index.rows(indices)):
            return
        rows = self._index.rows(indices)
        doubtful = [k for k in range(len(rows)) if not self._checks.are_plausible(rows[k : k + 1])]
        for _ in range(self._file.tries - 1):
            asked = indices[doubtful].tolist()
            before = self._index.rows(indices[doubtful]).tolist()
            again = self._ask_rows(asked)
            self._index.keep(asked, again)
            doubtful = [
                k
                for k, old, new in zip(doubtful, before, again, strict=True)
                if old != new and not self._checks.are_plausible(np.array([new], format.ROW))
            ]
            if not doubtful:
                break

    def _ask_rows(self, indices: Sequence[int]) -> list[Row]:
        if self._index.is_proven:
            return [self._index.row(index) for index in indices]
        answers = self._file.ask_again([self._index.extent(index) for index in indices])
        return [np.frombuffer(answer, format.ROW)[0].item() for answer in answers]

    def _mend_row(self, index: int, row: Row) -> None:
        """Keep a row by which a record is sound."""
        self._index.keep([index], [row])
        if self._index.place is not None:
            self._file.mend(self._index.extent(index)[0], memoryview(np.array(row, format.ROW).tobytes()))


def _extents(row: Row, blocks: tuple[int, int] | None) -> list[tuple[int, int]]:
    """List the extents of a record, or of some blocks of it and of the crc32s behind it."""
    offset, nbytes = row[:2]
    behind = format.behind_nbytes(nbytes)
    if blocks is None:
        return [(offset, nbytes + behind)]
    return [(offset + blocks[0], blocks[1] - blocks[0]), (offset + nbytes, behind)]


def _blocks(row: Row, wanted: ByteRange) -> tuple[int, int] | None:
    """Round wanted bytes (start, end) to blocks; None if the whole record is read."""
    nbytes, flags = row[1], row[4]
    if wanted is None or nbytes <= BLOCK_NBYTES or flags & format.COMPRESSED:
        return None
    low = wanted[0] // BLOCK_NBYTES * BLOCK_NBYTES
    high = min(format.align(wanted[1], BLOCK_NBYTES), nbytes)
    return (low, high) if 0 <= low < high and high - low < nbytes else None
