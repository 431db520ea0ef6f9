"""Which samples an archive has."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edcache.writer.protocol import AnyAppender


class Presence:
    """Which samples an archive holds, kept up to date as chunks are published by anyone.

    Args:
        since: failures that were recorded before the entry of this sequence number are tried again.
    Attributes:
        present: bool [length], which have a record. count: how many.
        absent: bool [length], which are recorded as absent for good.
        tried: bool [length], which failed since. retried: which failed before.
    """

    def __init__(self, appender: AnyAppender, length: int, since: int = 0) -> None:
        self._appender = appender
        self._claim_size = appender.head.claim_size
        self._since = since
        self._entries = self._chunks = self._lost = 0
        self.present, self.absent, self.tried, self.retried = (np.zeros(length, bool) for _ in range(4))
        self.count = 0
        self.update()

    def update(self) -> int:
        """Take in what was published since the last call; returns how many samples are new."""
        self._appender.catch_up()
        chain = self._appender.chain
        if chain.cursor.seq == self._entries and len(chain.lost) == self._lost:
            return 0
        self._entries = chain.cursor.seq
        self._note_failures()
        if len(chain.lost) != self._lost:
            # What a power cut took is missing again, and stands in the list of chunks no more.
            self._lost, self._chunks, self.present[:] = len(chain.lost), 0, False
        index = self._appender.indices_of(chain.chunks[self._chunks :])
        self._chunks = len(chain.chunks)
        self.present[index[index < len(self.present)]] = True
        before, self.count = self.count, int(np.count_nonzero(self.present))
        return self.count - before

    def _note_failures(self) -> None:
        for index, (entry, failure) in self._appender.chain.failures.items():
            if index < len(self.present):
                self.absent[index] = failure.final
                self.tried[index] = entry >= self._since
                self.retried[index] = entry < self._since

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Which samples are to be computed: bool [length]."""
        settled: npt.NDArray[np.bool_] = self.present | self.absent | self.tried
        return ~settled

    def missing_in(self, claim: int) -> list[int]:
        """The indices in a claim that are to be computed."""
        start = claim * self._claim_size
        part = slice(start, start + self._claim_size)
        settled = self.present[part] | self.absent[part] | self.tried[part]
        return [start + offset for offset in np.flatnonzero(~settled).tolist()]

    @property
    def complete(self) -> bool:
        """Whether every sample has a record, or is recorded as absent for good."""
        return bool((self.present | self.absent).all())
