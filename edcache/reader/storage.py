"""Where an archive's bytes are: mapped into memory, or read from their source into memory of ours.

Mapped bytes are shared by all processes and cost nothing to look at. On a file system of another
machine a mapping fetches page by page and a lost connection is a SIGBUS, so there records are read; what is
behind a URL cannot be mapped at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edcache.base import StorageError
from edcache.storage import ByteSource

_PROBES = 8
# After so many batches that lay in memory, only every so-manyth is probed.
_HOT_BATCHES, _HOT_STRIDE = 32, 16
# What lies no further apart is one announcement: the kernel reads ahead that far anyway.
_GAP = 1 << 16


class Storage:
    """The bytes of one source up to `size`, and announcing what will be read of them.

    Attributes:
        mend: fetches an extent again, see `ByteSource.mend`.
        view: all of them, mapped and read only; None where they are read instead.
    """

    def __init__(self, file: ByteSource, size: int, io: str) -> None:
        self.file = file
        self.size = size
        self.mend = file.mend
        self.view: memoryview | None = None
        # What a partial copy lacks is fetched where it is read.
        if not file.is_partial and (io == "mmap" or (io == "auto" and not file.is_remote())):
            try:
                self.view = file.map(size)
            except StorageError as error:
                raise StorageError(f'{error}; io="pread" reads it without') from error
        self._hot_batches = 0

    @property
    def mapped_nbytes(self) -> int:
        """Bytes that are mapped, and so shared by all processes."""
        return 0 if self.view is None else self.size

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent; fewer at the end of the file. Read only."""
        if self.view is not None:
            return self.view[offset : offset + nbytes]
        return self.file.read_many([(offset, self._within(offset, nbytes))])[0]

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The same of many extents (offset, nbytes) of what is not mapped; at a time where by request."""
        return self.file.read_many([(offset, self._within(offset, nbytes)) for offset, nbytes in extents])

    def pread(self, offset: int, nbytes: int) -> bytes:
        """A copy of an extent, of what leads to records: what follows may be fetched with it."""
        if self.view is not None:
            return bytes(self.view[offset : offset + nbytes])
        return self.file.pread(offset, self._within(offset, nbytes))

    def _within(self, offset: int, nbytes: int) -> int:
        return min(nbytes, max(0, self.size - offset))

    def announce(self, start: npt.NDArray[np.int64], end: npt.NDArray[np.int64]) -> None:
        """Let extents be fetched that will be read: by the source what it lacks, then by the kernel.

        Args:
            start, end: int64 [n], bytes from the start of the file.
        """
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

    def is_probe_due(self) -> bool:
        """Whether to ask `seems_hot` of the next batch; seldom after many that lay in memory."""
        if self.file.is_partial:
            return True
        self._hot_batches += 1
        return self._hot_batches <= _HOT_BATCHES or self._hot_batches % _HOT_STRIDE == 0

    def seems_hot(self, start: npt.NDArray[np.int64]) -> bool:
        """Whether what begins at `start` is in the kernel's cache, by a few probes."""
        probes = start[:: max(1, len(start) // _PROBES)].tolist()
        if not self.file.is_partial and all(map(self.file.is_cached, probes)):
            return True
        self._hot_batches = 0
        return False
