"""One process's part in filling an archive, and which samples an archive has.

A fill walks the archive's claims: `claim_size` consecutive indices each. Whoever locks a claim's byte
computes what is missing in it; the kernel frees the lock when that process ends. So any number of processes
that fill one archive share the work, and none waits for a dead one. Of samples that take no time a process
locks many claims by one call: what it asks of the file and its locks is asked once for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import numpy as np

from edcache.base import SourceError
from edcache.writer.appender import Appender
from edcache.writer.features import ColumnsOf, columns_of
from edcache.writer.job import Job

# Of a sample, in the order in which they rule: it is to be computed; again, as an earlier fill failed at it;
# this fill failed at it; it is recorded as absent for good; it has a record.
MISSING, RETRIED, FAILED, ABSENT, PRESENT = range(5)

# What is claimed at once lasts about so long, and is at most such a part of what the walk has ahead: then
# nobody waits long for whoever has the last claims.
_RUN_SECONDS: Final = 0.25
_RUN_PART: Final = 16


class Presence:
    """Which samples an archive holds, kept up to date as chunks are published by anyone.

    Args:
        since: failures that were recorded before the entry of this sequence number are tried again.
    Attributes:
        state: uint8 [length], the states above. count: how many samples have a record.
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
        """Take in what was published since the last call; returns how many samples are new."""
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

    @property
    def missing(self) -> int:
        """How many samples are to be computed."""
        return int(np.count_nonzero(self.state <= RETRIED))

    def missing_in(self, claim: int, count: int = 1) -> list[int]:
        """The indices in so many claims, from one on, that are to be computed."""
        start = claim * self._claim_size
        missing = np.flatnonzero(self.state[start : start + count * self._claim_size] <= RETRIED)
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
        """True if every sample has a record, or is recorded as absent for good."""
        return bool((self.state >= ABSENT).all())


Before: TypeAlias = Callable[[int], object]
"""Called with the index of a sample that will be computed, or -1 if a claim is waited for; may raise."""
After: TypeAlias = Callable[[int, int], object]
"""Called with the number of samples that were computed or found, and the bytes of their raw records."""


class Part:
    """One process's part in filling one archive; the appender is its own meanwhile, and its caller seals."""

    def __init__(
        self, job: Job, appender: Appender, presence: Presence, before: Before, after: After
    ) -> None:
        self._job = job
        self._presence = presence
        self._before, self._after = before, after
        self._appender = appender
        self._claims = appender.claims
        self._builder = job.builder(appender)
        self._claim_size = appender.head.claim_size
        # What was claimed at once, and is not published yet: the last may still be computed.
        self._held: list[range] = []
        self._columns_of = columns_of(job.source)
        self._most = 1
        self._unseen = 0

    def run(self, claims: list[int]) -> None:
        """Compute what is missing, and wait for what others have claimed.

        What was computed is published before anything is raised.
        """
        try:
            while claims:
                of_others = self._walk(claims)
                # Nothing is held while waiting, so that two fills cannot wait for each other.
                self._publish()
                self._look()
                claims = [claim for claim in of_others if self._presence.missing_in(claim)]
                if claims:
                    self._before(-1)
                    self._claims.wait(claims[0])
                    self._after(0, 0)
                    self._compute(range(claims[0], claims[0] + 1))
                    # What its holder gave back unfinished is free for everybody.
                    del claims[0]
        finally:
            if not self._builder.is_broken:
                self._publish()
            self._presence.update()

    def _walk(self, claims: list[int]) -> list[int]:
        """Compute what is missing in the claims that nobody else has; returns the others."""
        of_others, position = [], 0
        while position < len(claims):
            first = claims[position]
            if not self._presence.missing_in(first):
                position += 1
                continue
            ahead = claims[position : position + min(self._most, 1 + (len(claims) - position) // _RUN_PART)]
            most = next((k for k, claim in enumerate(ahead) if claim != first + k), len(ahead))
            count = self._claims.claim(first, most)
            if count:
                position += self._compute(range(first, first + count))
            else:
                of_others.append(first)
                position += 1
        return of_others

    def _look(self) -> None:
        """See what others have published."""
        others = self._presence.update() - self._unseen
        self._unseen = 0
        if others > 0:
            self._after(others, 0)

    def _compute(self, claims: range) -> int:
        """Compute what is missing in claims that this process has locked; returns in how many of them.

        Where samples take longer than those before them, the last claims are given back for others to take.
        """
        self._held.append(claims)
        # Their last holder published before letting go, so now is the time to look.
        self._look()
        began, end = time.monotonic(), (claims.start + 1) * self._claim_size
        missing = deque(self._presence.missing_in(claims.start, len(claims)))
        while missing:
            index = missing.popleft()
            if index >= end:
                claim = index // self._claim_size
                if time.monotonic() - began > 2 * _RUN_SECONDS:
                    self._held[-1] = range(claims.start, claim)
                    self._claims.release(claim, claims.stop - claim)
                    break
                end = (claim + 1) * self._claim_size
            if self._columns_of is None:
                self._add(index)
                self._publish_full()
                continue
            stop = index + 1
            while missing and missing[0] == stop:
                stop = missing.popleft() + 1
            self._add_columns(index, stop, self._columns_of)
        done = len(self._held[-1])
        self._most = max(1, int(done * _RUN_SECONDS / max(time.monotonic() - began, 1e-6)))
        if not len(self._builder) and not self._builder.failures:
            self._release()
        return done

    def _add(self, index: int) -> None:
        nbytes = self._builder.nbytes
        self._before(index)
        try:
            sample = self._job.compute(index)
        except SourceError as error:
            self._builder.refuse(index, error)
        else:
            self._builder.add(index, sample)
        finally:
            self._after(1, self._builder.nbytes - nbytes)

    def _add_columns(self, index: int, stop: int, columns_of: ColumnsOf) -> None:
        """As `_add` of each, and what is full is published between."""
        self._before(index)
        columns, row = None, 0
        try:
            with suppress(Exception):  # one by one, the sample is named
                columns = columns_of(slice(index, stop))
        finally:
            self._after(0, 0)
        if columns is None or columns.count != stop - index:
            for each in range(index, stop):
                self._add(each)
                self._publish_full()
            return
        while row < columns.count:
            nbytes = self._builder.nbytes
            count = self._builder.add_columns(index + row, columns, row)
            row += count
            self._after(count, self._builder.nbytes - nbytes)
            self._publish_full()

    def _publish_full(self) -> None:
        if self._builder.is_due:
            self._publish(is_computing=True)

    def _publish(self, is_computing: bool = False) -> None:
        """Publish what is pending and let go of the claims, but for those that are still being computed."""
        try:
            self._unseen += self._builder.publish(self._appender)
        finally:
            self._release(is_computing)

    def _release(self, is_computing: bool = False) -> None:
        while len(self._held) > is_computing:
            claims = self._held[0]
            self._claims.release(claims.start, len(claims))
            del self._held[0]
