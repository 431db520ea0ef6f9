"""`Extents`: bytes of an archive: mapped, read or requested, and read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from edcache import base, format
from edcache.base import Ints, Sound
from edcache.format import Place
from edcache.storage import ByteSource

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

    def are_cached(self, start: Ints | Sequence[int]) -> bool:
        """Probe a few of the offsets of a batch; True if they are in memory."""
        return self.file.are_cached([int(at) for at in start[:: max(1, len(start) // _PROBES)]])

    def are_cold(self, start: Ints | Sequence[int]) -> bool:
        """True if a batch is not in memory. After many that are, most are taken to be."""
        self._hot_batches += 1
        if self._hot_batches > _HOT_BATCHES and self._hot_batches % _HOT_STRIDE:
            return False
        return not self.are_cached(start)

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
