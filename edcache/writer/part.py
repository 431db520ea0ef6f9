"""Share a fill between processes: claims, and the samples that an archive has.

A claim is `claim_size` consecutive indices. The process that locks its byte computes the samples that are missing in
it; the kernel frees the lock when that process ends. So any number of processes that fill one archive share the work,
and none waits for a dead one. Of fast samples a process locks many claims by one call.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import numpy as np

from edcache.writer.appender import Appender
from edcache.writer.chunk import Chunk
from edcache.writer.features import After, Before, gives_batches
from edcache.writer.fetcher import Fetcher
from edcache.writer.job import Job

# States of a sample; the higher one counts. MISSING: it is to be computed. RETRIED: an earlier fill failed at it, and
# it is to be computed again. FAILED: this fill failed at it. ABSENT: for good. PRESENT: it has a record.
MISSING, RETRIED, FAILED, ABSENT, PRESENT = range(5)

# Seconds that the claims of one lock call should take, and their largest part of the claims ahead: no process waits
# long for the one with the last claims, also if samples take longer than those before them.
_RUN_SECONDS: Final = 0.25
_RUN_PART: Final = 64
# Seconds of computed batches that a kill may cost, beside the one that is being computed. Models make them mostly, so
# they are expensive; a publication takes a millisecond.
_BATCH_SECONDS: Final = 0.02


class Presence:
    """State of each sample of an archive, with the entries of all processes.

    Args:
        since: failures of entries before this number are tried again.
    Attributes:
        state: uint8 [length], the states above. count: samples with a record.
    """

    def __init__(self, appender: Appender, length: int, since: int = 0) -> None:
        self._appender = appender
        self._claim_size = appender.head.claim_size
        self._since = since
        self._entries = self._chunks = 0
        self.state = np.full(length, MISSING, np.uint8)
        self.count = 0
        root = appender.chain.root
        if root is not None:
            present = appender.presence()[:length]
            self.state[: len(present)][present] = PRESENT
            self._chunks = root.chunks
        self.update()

    def update(self) -> int:
        """Take in the entries published since the last call; returns the number of new samples."""
        self._appender.catch_up()
        chain = self._appender.chain
        if chain.cursor.number == self._entries:
            return 0
        self._entries = chain.cursor.number
        for index, (entry, failure) in chain.failures.items():
            if index < len(self.state) and self.state[index] != PRESENT:
                self.state[index] = ABSENT if failure.final else FAILED if entry >= self._since else RETRIED
        indices = self._appender.indices_of(chain.chunks[self._chunks :])
        self._chunks = len(chain.chunks)
        self.state[indices[indices < len(self.state)]] = PRESENT
        before, self.count = self.count, int(np.count_nonzero(self.state == PRESENT))
        return self.count - before

    def has(self, index: int) -> bool:
        """True if a sample has a record."""
        return bool(self.state[index] == PRESENT)

    def lacking(self, chunk: Chunk) -> Chunk:
        """Leave out of a chunk the records of samples that have one in the archive."""
        return chunk.only(self.state[chunk.samples] != PRESENT)

    @property
    def missing(self) -> int:
        """Number of samples to compute."""
        return int(np.count_nonzero(self.state <= RETRIED))

    def missing_in(self, claim: int, count: int = 1) -> list[int]:
        """Indices to compute in `count` claims from `claim` on."""
        start = claim * self._claim_size
        missing = np.flatnonzero(self.state[start : start + count * self._claim_size] <= RETRIED)
        return [start + offset for offset in missing.tolist()]

    @property
    def missing_claims(self) -> list[int]:
        """Claims with samples to compute, first those with samples that failed before."""
        starts = np.arange(0, len(self.state), self._claim_size)
        retried = np.logical_or.reduceat(self.state == RETRIED, starts)
        missing = np.logical_or.reduceat(self.state == MISSING, starts)
        return [*np.flatnonzero(retried).tolist(), *np.flatnonzero(missing & ~retried).tolist()]

    @property
    def complete(self) -> bool:
        """True if every sample has a record, or is recorded as absent for good."""
        return bool((self.state >= ABSENT).all())


class Part:
    """Share of one process in filling an archive; no other thread uses the appender meanwhile, and the caller seals."""

    def __init__(
        self, job: Job, appender: Appender, presence: Presence, before: Before, after: After
    ) -> None:
        self._appender, self._claims = appender, appender.claims
        self._presence = presence
        self._before, self._after = before, after
        seconds = _BATCH_SECONDS if gives_batches(job.source) else None
        self._builder = job.builder(appender, seconds=seconds)
        self._claim_size = appender.head.claim_size
        self._fetcher = Fetcher(job, self._builder, before, after)
        self._batch_size = job.options.batch_size or self._claim_size
        # Locked claims, and the number of samples to compute that were locked up to the last of them.
        self._held: deque[tuple[range, int]] = deque()
        self._locked = self._computed = 0
        # Claims to lock by one call.
        self._least = self._most = -(-self._batch_size // self._claim_size)
        # Samples published here that `presence` has not counted yet.
        self._unseen = 0

    def run(self, claims: list[int]) -> None:
        """Compute the samples that are missing in some claims, and wait for other processes that have claimed them.

        Computed samples are published before anything is raised.
        """
        try:
            while claims:
                of_others: list[int] = []
                self._compute(self._lock_free(claims, of_others))
                # Nothing is locked while waiting, so that two fills cannot wait for each other.
                self._publish()
                self._look()
                claims = [claim for claim in of_others if self._presence.missing_in(claim)]
                if claims:
                    self._before(-1, 0)
                    self._claims.wait(claims[0])
                    self._after(0, 0)
                    self._compute(self._missing(range(claims[0], claims[0] + 1)))
                    # The others may be free too: their holder may have ended.
                    del claims[0]
        finally:
            self._publish()
            self._presence.update()

    def _compute(self, batches: Iterator[list[int]]) -> None:
        """Compute batches of samples in locked claims, and publish each chunk that is due."""
        for count in self._fetcher.compute(batches):
            self._computed += count
            if self._builder.is_due:
                self._publish(is_computing=True)

    def _lock_free(self, claims: list[int], of_others: list[int]) -> Iterator[list[int]]:
        """Lock the claims that no other process has, and yield the missing samples; list the others."""
        position = 0
        while position < len(claims):
            first = claims[position]
            if not self._presence.missing_in(first):
                position += 1
                continue
            most = min(self._most, 1 + (len(claims) - position) // _RUN_PART)
            ahead = claims[position : position + max(self._least, most)]
            most = next((k for k, claim in enumerate(ahead) if claim != first + k), len(ahead))
            count = self._claims.claim(first, most)
            if count:
                yield from self._missing(range(first, first + count))
            else:
                of_others.append(first)
            position += max(1, count)

    def _missing(self, claims: range) -> Iterator[list[int]]:
        """Yield the samples that are missing in claims that this process has locked, in batches."""
        # Their last holder published before it freed them, so now is the time to look.
        self._look()
        began, missing = time.monotonic(), self._presence.missing_in(claims.start, len(claims))
        self._locked += len(missing)
        self._held.append((claims, self._locked))
        size = max(1, len(missing)) if self._fetcher.takes_any else self._batch_size
        for start in range(0, len(missing), size):
            yield missing[start : start + size]
        seconds = time.monotonic() - began
        self._most = max(self._least, int(len(claims) * _RUN_SECONDS / max(seconds, 1e-6)))
        if not len(self._builder) and not self._builder.failures:
            self._release(is_computing=True)

    def _look(self) -> None:
        """Count the samples that other processes have published."""
        others = self._presence.update() - self._unseen
        self._unseen = 0
        if others > 0:
            self._after(others, 0)

    def _publish(self, is_computing: bool = False) -> None:
        """Publish the pending samples and free the claims, but for the ones that are being computed."""
        try:
            self._unseen += self._builder.publish(self._appender)
        finally:
            self._release(is_computing)

    def _release(self, is_computing: bool = False) -> None:
        while self._held and not (is_computing and self._held[0][1] > self._computed):
            claims, _ = self._held[0]
            self._claims.release(claims.start, len(claims))
            self._held.popleft()
