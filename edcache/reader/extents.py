"""The bytes of an archive that is a file: mapped or read, checked, and read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from edcache import base, format
from edcache.base import Ints
from edcache.format import Place
from edcache.storage import ByteSource

_PROBES = 8
# Extents with smaller gaps are announced together: the kernel reads ahead that far anyway.
_GAP = 1 << 16
# After _HOT_BATCHES batches that were in memory, only each _HOT_STRIDE-th batch is probed.
_HOT_BATCHES, _HOT_STRIDE = 32, 16


class Extents:
    """The bytes of a file up to `nbytes`, the end of its last entry.

    A local file is mapped, so that all processes share its pages. A file on a network file system is read:
    mapped, it would be fetched page by page, and a lost connection would be a SIGBUS. A URL cannot be mapped,
    and neither can a file of some file systems.

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

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent, read-only; fewer at the end of the file."""
        if self.view is not None:
            return self.view[offset : offset + nbytes]
        return self.file.read_many([(offset, min(nbytes, max(0, self.nbytes - offset)))])[0]

    def pread(self, offset: int, nbytes: int) -> bytes:
        """A copy of an extent of metadata. The bytes after it may be fetched ahead."""
        if self.view is not None:
            return bytes(self.view[offset : offset + nbytes])
        return self.file.pread(offset, min(nbytes, max(0, self.nbytes - offset)))

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The bytes of several extents (offset, nbytes), read together."""
        if self.view is not None:
            return [self.view[at : at + nbytes] for at, nbytes in extents]
        return self.file.read_many([(at, min(nbytes, max(0, self.nbytes - at))) for at, nbytes in extents])

    def checked(self, places: Sequence[Place]) -> list[memoryview | None]:
        """The bytes of several places, read together; None for one that fails its crc32."""
        data = self.read_many([(at, nbytes) for at, nbytes, _ in places])
        return [one if self._is_sound(one, place) else None for one, place in zip(data, places, strict=True)]

    def _is_sound(self, data: memoryview, place: Place) -> bool:
        """True if bytes have their crc32; raises if the archive has other ones there."""
        if len(data) == place.nbytes and format.crc32(data) == place.crc32:
            return True
        self.file.check_damaged(place.offset, place.nbytes)
        return False

    def is_probe_due(self) -> bool:
        """True if to check that the next batch is in memory. After many batches in memory: seldom."""
        self._hot_batches += 1
        return self._hot_batches <= _HOT_BATCHES or self._hot_batches % _HOT_STRIDE == 0

    def are_in_memory(self, start: Ints) -> bool:
        """True if the extents at these offsets are in memory, by a few probes."""
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
        if len(firsts) == 1:  # a pass in file order: the next batch follows it
            nbytes *= 2
        self.file.will_need(list(zip(start[firsts].tolist(), nbytes.tolist(), strict=True)))
