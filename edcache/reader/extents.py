"""The bytes of an archive that is a file: mapped or read, mended, and announced before they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from edcache import base, format
from edcache.base import Ints
from edcache.storage import ByteSource

Data = TypeVar("Data", bytes, memoryview)

# The directory of some fifteen thousand.
_DIRECTORY_NBYTES = 1 << 20
_PROBES = 8
# What lies no further apart is one announcement: the kernel reads ahead that far anyway.
_GAP = 1 << 16
# After so many batches that lay in memory, every so-manyth is probed.
_HOT_BATCHES, _HOT_STRIDE = 32, 16


class Extents:
    """The bytes of a file up to `nbytes`, where its last entry ends.

    They are mapped: shared by all processes, and nothing to look at. On a file system of another machine a
    mapping fetches page by page and a lost connection is a SIGBUS, so there records are read; what is behind
    a URL cannot be mapped at all.

    Args:
        io: as in `Reader`.
    Attributes:
        view: what is mapped; None where it is read.
    """

    def __init__(self, file: ByteSource, nbytes: int, io: str) -> None:
        self.file, self.nbytes = file, nbytes
        self.view: memoryview | None = None
        self._hot_batches = 0
        # What a partial copy lacks is fetched where it is read.
        if not file.is_partial and (io == "mmap" or (io == "auto" and not file.is_remote())):
            try:
                self.view = file.map(nbytes)
            except base.StorageError as error:
                raise base.StorageError(f'{error}; io="pread" reads it without') from error

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent; fewer at the end of the file. Read only."""
        if self.view is not None:
            return self.view[offset : offset + nbytes]
        return self.file.read_many([(offset, min(nbytes, max(0, self.nbytes - offset)))])[0]

    def pread(self, offset: int, nbytes: int) -> bytes:
        """A copy of an extent, of what leads to records: what follows may be fetched with it."""
        if self.view is not None:
            return bytes(self.view[offset : offset + nbytes])
        return self.file.pread(offset, min(nbytes, max(0, self.nbytes - offset)))

    def mended(self, read: Callable[[int, int], Data], offset: int, nbytes: int, crc: int) -> Data | None:
        """The bytes of an extent, fetched again where that helps; None where they fail their crc32."""
        data = read(offset, nbytes)
        if format.crc32(data) != crc and self.file.mend(offset, nbytes):
            data = read(offset, nbytes)
        return data if len(data) == nbytes and format.crc32(data) == crc else None

    def is_probe_due(self) -> bool:
        """Whether to look if what will be read is in memory; seldom after many batches that were."""
        self._hot_batches += 1
        return (
            self._hot_batches <= _HOT_BATCHES or self._hot_batches % _HOT_STRIDE == 0 or self.file.is_partial
        )

    def are_in_memory(self, start: Ints) -> bool:
        """Whether what begins at these offsets is, by a few probes."""
        probes = start[:: max(1, len(start) // _PROBES)].tolist()
        return not self.file.is_partial and self.file.are_cached(probes)

    def announce(self, start: Ints, end: Ints) -> None:
        """Let extents be fetched that will be read: by the source what it lacks, then by the kernel."""
        self._hot_batches = 0
        self.file.announce(start, end)
        order = np.argsort(start)
        start, end = start[order], np.maximum.accumulate(end[order])
        breaks = np.flatnonzero(start[1:] > end[:-1] + _GAP) + 1
        firsts = np.concatenate(([0], breaks))
        lasts = np.concatenate((breaks, [len(start)])) - 1
        # In the order in which they will be read: the first is copied while the last is fetched.
        first_read = np.argsort(np.minimum.reduceat(order, firsts))
        firsts, lasts = firsts[first_read], lasts[first_read]
        for low, high in zip(start[firsts].tolist(), end[lasts].tolist(), strict=True):
            # One run is a pass in file order: what follows will be asked for next.
            ahead = high - low if len(firsts) == 1 else 0
            self.file.will_need(low, high - low + ahead)


def announce_headers(file: ByteSource, directory: int, size: int) -> None:
    """Let the kernel fetch every header at once, rather than each when the one before was read."""
    listed = file.pread(directory, min(size - directory, _DIRECTORY_NBYTES))
    offsets = [offset for offset in format.directory_offsets(listed) if offset < size]
    if not file.are_cached(offsets[:: 1 + len(offsets) // _PROBES]):
        for offset in offsets:
            file.will_need(offset, format.HEADER_NBYTES)
