"""One process's part in filling an archive.

A fill walks the claims of the archive: runs of `claim_size` consecutive indices. Whoever locks a
claim's byte computes what is missing in it; the kernel frees the lock when that process ends,
however it ends. So any number of processes that fill one archive share the work, and none waits
for a dead one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from edcache.base import SourceError
from edcache.writer.job import Job
from edcache.writer.presence import Presence
from edcache.writer.protocol import AnyAppender


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
        """So many samples of this part are in the archive now."""

    def found(self, samples: int) -> None:
        """So many others were published by somebody else."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Around code of the source, and around waiting: what may be cut short."""
        return nullcontext()


class Part:
    """One process's part in filling one archive; its caller seals.

    Args:
        appender: the archive; nobody else may use it meanwhile.
        claims: those to look at; None for all.
    """

    def __init__(
        self, job: Job, appender: AnyAppender, watch: Watch, claims: list[int] | None = None
    ) -> None:
        self._job = job
        self._appender = appender
        self._watch = watch
        self._publisher = job.publisher(appender)
        self.presence = Presence(appender, job.length, job.since)
        self._only = claims
        self._held: list[int] = []
        self._published = self._unseen = 0

    def run(self) -> int:
        """Compute what is missing, and wait for what others have claimed; returns how many were published.

        Raises: what ends the fill; before it goes on, what was computed is published.
        """
        try:
            self._compute_claims()
        finally:
            self._publish()
            self.presence.update()
        return self._published

    def _compute_claims(self) -> None:
        claimed_by_others = []
        for claim in self._claims():
            if self._appender.claim(claim):
                self._compute(claim)
            else:
                claimed_by_others.append(claim)
        for claim in claimed_by_others:
            # Nothing is held while waiting, so that two fills cannot wait for each other.
            self._publish()
            with self._watch.interruptible():
                self._appender.wait_claim(claim)
            self._compute(claim)

    def _claims(self) -> Iterator[int]:
        """The numbers of the claims in which something is missing, first those that failed before."""
        size, presence = self._appender.head.claim_size, self.presence
        first = np.unique(np.flatnonzero(presence.retried & presence.missing) // size).tolist()
        everything = range(-(-len(presence.present) // size)) if self._only is None else self._only
        first = [claim for claim in first if claim in everything]
        for claim in [*first, *(claim for claim in everything if claim not in set(first))]:
            if presence.missing_in(claim):
                yield claim

    def _compute(self, claim: int) -> None:
        """Compute what is missing in a claim that this process has locked."""
        self._held.append(claim)
        # Its last holder published before letting go, so now is the time to look.
        self._look()
        for index in self.presence.missing_in(claim):
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

    def _look(self) -> None:
        others = self.presence.update() - self._unseen
        self._unseen = 0
        if others > 0:
            self._watch.found(others)

    def _publish(self, keep: int | None = None) -> None:
        """Publish what is pending and let go of the claims, but for the one still being computed."""
        try:
            published = self._publisher.publish()
            self._published += published
            self._unseen += published
            self._watch.published(published)
        finally:
            self._release(keep)

    def _release(self, keep: int | None = None) -> None:
        for claim in self._held:
            if claim != keep:
                self._appender.release(claim)
        self._held = [claim for claim in self._held if claim == keep]
