"""One process's part in filling an archive, and which samples an archive has.

A fill walks the archive's claims: runs of `claim_size` consecutive indices. Whoever locks a claim's byte
computes what is missing in it; the kernel frees the lock when that process ends. So any number of processes
that fill one archive share the work, and none waits for a dead one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext

import numpy as np

from edcache.base import SourceError
from edcache.writer.job import Job
from edcache.writer.store import AnyAppender

# Of a sample, in the order in which they rule: it is to be computed; again, as an earlier fill failed at it;
# this fill failed at it; it is recorded as absent for good; it has a record.
MISSING, RETRIED, FAILED, ABSENT, PRESENT = range(5)


class Presence:
    """Which samples an archive holds, kept up to date as chunks are published by anyone.

    Args:
        since: failures that were recorded before the entry of this sequence number are tried again.
    Attributes:
        state: uint8 [length], the states above. count: how many samples have a record.
    """

    def __init__(self, appender: AnyAppender, length: int, since: int = 0) -> None:
        self._appender = appender
        self._claim_size = appender.head.claim_size
        self._since = since
        self._entries = self._chunks = self._lost = 0
        self.state = np.full(length, MISSING, np.uint8)
        self.count = 0
        self.update()

    def update(self) -> int:
        """Take in what was published since the last call; returns how many samples are new."""
        self._appender.catch_up()
        chain = self._appender.chain
        if chain.cursor.seq == self._entries and len(chain.lost) == self._lost:
            return 0
        self._entries = chain.cursor.seq
        if len(chain.lost) != self._lost:
            # What a power cut took is missing again, and stands in the list of chunks no more.
            self._lost, self._chunks, self.state[:] = len(chain.lost), 0, MISSING
        for index, (entry, failure) in chain.failures.items():
            if index < len(self.state) and self.state[index] != PRESENT:
                self.state[index] = ABSENT if failure.final else FAILED if entry >= self._since else RETRIED
        indices = self._appender.indices_of(chain.chunks[self._chunks :])
        self._chunks = len(chain.chunks)
        self.state[indices[indices < len(self.state)]] = PRESENT
        before, self.count = self.count, int(np.count_nonzero(self.state == PRESENT))
        return self.count - before

    def has(self, index: int) -> bool:
        """Whether a sample has a record."""
        return bool(self.state[index] == PRESENT)

    @property
    def missing(self) -> int:
        """How many samples are to be computed."""
        return int(np.count_nonzero(self.state <= RETRIED))

    def missing_in(self, claim: int) -> list[int]:
        """The indices in a claim that are to be computed."""
        start = claim * self._claim_size
        missing = np.flatnonzero(self.state[start : start + self._claim_size] <= RETRIED)
        return [start + offset for offset in missing.tolist()]

    @property
    def missing_claims(self) -> list[int]:
        """The claims in which something is to be computed, first those with samples that failed before."""
        starts = np.arange(0, len(self.state), self._claim_size)
        retried = np.logical_or.reduceat(self.state == RETRIED, starts)
        missing = np.logical_or.reduceat(self.state == MISSING, starts)
        return [*np.flatnonzero(retried).tolist(), *np.flatnonzero(missing & ~retried).tolist()]

    @property
    def complete(self) -> bool:
        """Whether every sample has a record, or is recorded as absent for good."""
        return bool((self.state >= ABSENT).all())


class Watch:
    """What a part tells whoever watches it, and asks; this one hears nothing and says nothing."""

    def is_aside(self, index: int) -> bool:
        """Whether a sample, in a claim that this process holds, is not to be computed."""
        return False

    def begin(self, index: int) -> None:
        """A sample will be computed now; may raise to end the part."""

    def done(self, nbytes: int) -> None:
        """It was computed, and its record takes so many bytes before compression."""

    def published(self, samples: int) -> None:
        """Called when so many samples of this part were published."""

    def found(self, samples: int) -> None:
        """Called when so many samples of others were seen in the archive."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Around code of the source, and around waiting: what may be cut short."""
        return nullcontext()


class Part:
    """One process's part in filling one archive, which nobody else may use meanwhile; its caller seals."""

    def __init__(self, job: Job, appender: AnyAppender, presence: Presence, watch: Watch) -> None:
        self._job = job
        self._presence = presence
        self._watch = watch
        self._claims = appender.claims
        self._publisher = job.publisher(appender)
        self._held: list[int] = []
        self._unseen = 0

    def run(self, claims: list[int]) -> None:
        """Compute what is missing, and wait for what others have claimed.

        What was computed is published before anything is raised.
        """
        claimed_by_others = []
        try:
            for claim in claims:
                if not self._presence.missing_in(claim):
                    continue
                if self._claims.claim(claim):
                    self._compute(claim)
                else:
                    claimed_by_others.append(claim)
            for claim in claimed_by_others:
                # Nothing is held while waiting, so that two fills cannot wait for each other.
                self._publish()
                with self._watch.interruptible():
                    self._claims.wait(claim)
                self._compute(claim)
        finally:
            self._publish()
            self._presence.update()

    def _compute(self, claim: int) -> None:
        """Compute what is missing in a claim that this process has locked."""
        self._held.append(claim)
        # Its last holder published before letting go, so now is the time to look.
        others = self._presence.update() - self._unseen
        self._unseen = 0
        if others > 0:
            self._watch.found(others)
        for index in self._presence.missing_in(claim):
            if self._watch.is_aside(index):
                continue
            self._add(index)
            if self._publisher.full or self._publisher.overdue:
                self._publish(keep=claim)
        if not self._publisher.pending and not self._publisher.failures:
            self._release()

    def _add(self, index: int) -> None:
        before = self._publisher.pending_nbytes
        self._watch.begin(index)
        try:
            with self._watch.interruptible():
                sample = self._job.compute(index)
        except SourceError as error:
            self._publisher.refuse(index, error)
        else:
            self._publisher.add(index, sample)
        self._watch.done(self._publisher.pending_nbytes - before)

    def _publish(self, keep: int | None = None) -> None:
        """Publish what is pending and let go of the claims, but for the one still being computed."""
        try:
            published = self._publisher.publish()
            self._unseen += published
            self._watch.published(published)
        finally:
            self._release(keep)

    def _release(self, keep: int | None = None) -> None:
        for claim in self._held:
            if claim != keep:
                self._claims.release(claim)
        self._held = [claim for claim in self._held if claim == keep]


def help_fill(job: Job, watch: Watch, claims: list[int] | None = None) -> None:
    """Have this process compute what is missing in some claims, or in all, beside others."""
    with closing(job.open()) as appender:
        appender.claims.join_fillers()
        presence = Presence(appender, job.length, job.since)
        Part(job, appender, presence, watch).run(presence.missing_claims if claims is None else claims)
