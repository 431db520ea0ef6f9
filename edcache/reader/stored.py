"""Bytes of an archive and of its records: mapped, read or requested, checked, and read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from edcache import base, format
from edcache.base import Ints
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

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Copy an extent of metadata. Later bytes may be fetched ahead."""
        if self.view is not None:
            return bytes(self.view[offset : offset + nbytes])
        return self.file.pread(offset, min(nbytes, max(0, self.nbytes - offset)))

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read several extents (offset, nbytes) together."""
        if self.view is not None:
            return [self.view[at : at + nbytes] for at, nbytes in extents]
        return self.file.read_many([(at, min(nbytes, max(0, self.nbytes - at))) for at, nbytes in extents])

    def checked(self, places: Sequence[Place]) -> list[memoryview | None]:
        """Read several places together; None for one that fails its crc32."""
        data = self.read_many([(at, nbytes) for at, nbytes, _ in places])
        return [one if self._is_sound(one, place) else None for one, place in zip(data, places, strict=True)]

    def _is_sound(self, data: memoryview, place: Place) -> bool:
        """True if bytes have their crc32; raises if they are damaged in this copy alone."""
        if len(data) == place.nbytes and format.crc32(data) == place.crc32:
            return True
        self.file.check_damaged(place.offset, place.nbytes)
        return False

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
            CorruptRecordError: a record ends behind the file, or fails its crc32, if requested, twice.
            StaleArchiveError: the archive was replaced since it was opened.
        """
        rows: list[Row] = self._index.rows(np.array(indices, np.int64)).tolist()
        if self._file.by_request:
            return self._request(indices, rows, list(map(_blocks, rows, wanted)))
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

    def _request(
        self, indices: Sequence[int], rows: list[Row], chosen: list[tuple[int, int] | None]
    ) -> list[Piece]:
        extents: list[tuple[int, int]] = []
        for index, row, blocks in zip(indices, rows, chosen, strict=True):
            self._checks.check_place(index, row)
            offset, nbytes = row[:2]
            behind = format.behind_nbytes(nbytes)
            if blocks is None:
                extents.append((offset, nbytes + behind))
            else:
                extents += [(offset + blocks[0], blocks[1] - blocks[0]), (offset + nbytes, behind)]
        data = iter(self._file.read_many(extents))
        pieces = []
        for index, row, blocks in zip(indices, rows, chosen, strict=True):
            if blocks is None:
                piece = self._check_whole(index, row, next(data))
            else:
                piece = self._check_part(index, row, blocks, next(data), next(data))
            pieces.append(piece or self._fetch_again(index, row))
        return pieces

    def _check_whole(self, index: int, row: Row, data: memoryview) -> Piece | None:
        is_sound = self._checks.is_done or self._checks.fits(index, row, data)
        return Piece(0, data[: row[1]]) if is_sound else None

    def _check_part(
        self, index: int, row: Row, blocks: tuple[int, int], data: memoryview, behind: memoryview
    ) -> Piece | None:
        """Check blocks of a large record; None if they are not sound."""
        is_sound = len(data) == blocks[1] - blocks[0] and self._checks.blocks_fit(
            index, row, data, behind, blocks[0] // BLOCK_NBYTES
        )
        return Piece(blocks[0], data) if self._checks.is_done or is_sound else None

    def _fetch_again(self, index: int, row: Row) -> Piece:
        """Fetch a whole record again: the transfer or a copy was damaged, or the archive was replaced."""
        offset, nbytes = row[:2]
        self._file.check_damaged(offset, nbytes)
        data = self._file.read_many([(offset, nbytes + format.behind_nbytes(nbytes))])[0]
        self._checks.compare(index, row, data)
        return Piece(0, data[:nbytes])


def _blocks(row: Row, wanted: ByteRange) -> tuple[int, int] | None:
    """Round wanted bytes (start, end) to blocks; None if the whole record is read."""
    nbytes, flags = row[1], row[4]
    if wanted is None or nbytes <= BLOCK_NBYTES or flags & format.COMPRESSED:
        return None
    low = wanted[0] // BLOCK_NBYTES * BLOCK_NBYTES
    high = min(format.align(wanted[1], BLOCK_NBYTES), nbytes)
    return (low, high) if 0 <= low < high and high - low < nbytes else None
