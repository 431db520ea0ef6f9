"""One loop that fills an archive: claims give batches, an engine computes each, a chunk takes what comes back.

    for batch in claims:
        pending = engine.submit(batch)
        ...
        add(pending)

A claim is `claim_size` consecutive indices. Its states:

    free -> held        by the process that locks its byte; of fast samples a process locks many by one call
    held -> free        when no sample is missing in it any more: each has a record in the file or a failure that is
                        noted there; or when the loop ends; the kernel frees it when its holder dies
    of another process  comes last: nothing is locked while this one waits for it, so that two fills cannot wait for
                        each other; then it is held, with what its holder has left

So any number of processes that fill one archive share the work, and none waits for a dead one. The samples that a claim
lacks are looked up after it is locked, since its last holder published before it let go. The archive alone says which
samples are there and which have failed (`Presence`), of all processes: failures are counted there.

What must never happen:
- that a sample is stored under another index than the one that it was computed for, or twice: a lazy cache, which
  claims nothing, may have published it meanwhile, so each publication leaves out what the archive has by then;
- that a process computes a sample twice which the source gave it once, but for a batch that raised;
- that an error is lost: it ends the loop, or it is a Failure in the archive; samples before it are published;
- that a claim is free while this process computes its samples, or has not published them. An executor's tasks that run
  when the loop ends by an error go on: their samples are computed again, and stored once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from edcache.base import EdcacheError, Ints
from edcache.format import Contents, Failure
from edcache.writer.appender import Appender, other_order
from edcache.writer.chunk import Chunk
from edcache.writer.engine import BatchEngine, MadeSamples, Pending
from edcache.writer.job import Job

# States of a sample; the higher one counts. MISSING: it is to be computed, also if an earlier fill failed at it.
# FAILED: this fill failed at it. ABSENT: for good. PRESENT: it has a record.
MISSING, FAILED, ABSENT, PRESENT = range(4)

# Seconds that the claims of one lock call should take, and their largest part of the claims ahead: no process waits
# long for the one with the last claims, also if samples take longer than those before them.
_RUN_SECONDS: Final = 0.25
_RUN_PART: Final = 64
# Seconds of computed batches that a kill may cost, beside the one that is being computed. Models make them mostly, so
# they are expensive; a publication takes a millisecond.
_BATCH_SECONDS: Final = 0.02


class Presence:
    """State of each sample that a job is to compute, with the entries of all processes.

    Attributes:
        state: uint8 [n], the states above, of the samples of the job in their order. count: samples with a record.
    """

    def __init__(self, appender: Appender, job: Job) -> None:
        self._appender = appender
        self._claim_size = appender.head.claim_size
        self._since, self._todo, self._maker = job.since, job.todo, job.maker
        self._keys_digest = appender.chain.origin.keys_digest
        self._entries = self._chunks = 0
        self.state = np.full(job.length if job.todo is None else len(job.todo), MISSING, np.uint8)
        self.count = 0
        chain = appender.chain
        if chain.root is not None and not self._maker:
            self._take(Contents(chain, appender.file.pread, appender.table).held())
            self._chunks = len(chain.chunks)
        self.update()

    def update(self) -> int:
        """Take in the entries published since the last call; returns the number of new samples.

        Raises: StaleArchiveError, another process has given the samples other numbers. A worker may open the archive
        only then, and would find no part of its fill: so any seal in an order counts that came since the fill began.
        """
        self._appender.catch_up()
        chain, root = self._appender.chain, self._appender.chain.root_header
        is_later = chain.is_reordered and root is not None and root.number >= self._since > 0
        if is_later or chain.origin.keys_digest != self._keys_digest:
            raise other_order(chain.where)
        if chain.cursor.number == self._entries:
            return 0
        known, self._entries = self._entries, chain.cursor.number
        for index, (entry, failure) in self.failures.items():
            if entry >= known and (failure.final or entry >= self._since):
                places = self._places(np.array([index]))
                self.state[places] = np.maximum(self.state[places], ABSENT if failure.final else FAILED)
        chunks = chain.parts if self._maker else chain.chunks
        new = [one for one in chunks[self._chunks :] if one.maker == self._maker]
        self._chunks = len(chunks)
        return self._take(self._appender.indices_of(new))

    @property
    def failures(self) -> Mapping[int, tuple[int, Failure]]:
        """Failures by number in the source, each with the number of its note or root; a record may follow."""
        chain = self._appender.chain
        return chain.part_failures.get(self._maker, {}) if self._maker else chain.failures

    def _take(self, samples: Ints) -> int:
        """Note that samples have a record; returns the number of new ones."""
        places = self._places(samples)
        # Counted by the new ones: a chunk costs no pass over all samples.
        new = np.unique(places[self.state[places] != PRESENT])
        self.state[new] = PRESENT
        self.count += len(new)
        return len(new)

    def _places(self, samples: Ints) -> Ints:
        """Find samples among the ones of the fill; others are left out."""
        if self._todo is None:
            return samples[samples < len(self.state)]
        places = np.searchsorted(self._todo, samples)
        is_inside = places < len(self._todo)
        places, samples = places[is_inside], samples[is_inside]
        found: Ints = places[self._todo[places] == samples]
        return found

    def has(self, index: int) -> bool:
        """True if a sample has a record, or is none of the fill."""
        return bool(np.all(self.state[self._places(np.array([index]))] == PRESENT))

    def lacking(self, chunk: Chunk) -> Chunk:
        """Leave out of a chunk the records of samples that have one in the archive now, of any process."""
        self.update()
        return chunk.only(self.state[self._places(chunk.samples)] != PRESENT)

    @property
    def missing(self) -> int:
        """Number of samples to compute."""
        return int(np.count_nonzero(self.state == MISSING))

    @property
    def failed(self) -> int:
        """Number of samples at which this fill failed."""
        return int(np.count_nonzero(self.state == FAILED))

    def missing_in(self, claim: int, count: int = 1) -> list[int]:
        """Indices to compute in `count` claims from `claim` on."""
        start = claim * self._claim_size
        missing = np.flatnonzero(self.state[start : start + count * self._claim_size] == MISSING) + start
        indices: list[int] = (missing if self._todo is None else self._todo[missing]).tolist()
        return indices

    @property
    def missing_claims(self) -> list[int]:
        """Claims with samples to compute."""
        starts = np.arange(0, len(self.state), self._claim_size)
        claims: list[int] = np.flatnonzero(np.logical_or.reduceat(self.state == MISSING, starts)).tolist()
        return claims

    @property
    def complete(self) -> bool:
        """True if every sample has a record, or is recorded as absent for good."""
        return bool((self.state >= ABSENT).all())


class FillLoop:
    """Share of one process in filling an archive; no other thread uses the appender meanwhile, and the caller seals.

    advance: called with the number of samples that are there or failed since the last call, and the bytes of their
    records; samples of other processes count none.
    """

    def __init__(
        self,
        job: Job,
        appender: Appender,
        presence: Presence,
        engine: BatchEngine,
        advance: Callable[[int, int], object] = lambda count, nbytes: None,
    ) -> None:
        self._appender, self._claims = appender, appender.claims
        self._presence, self._engine, self._watch = presence, engine, engine.watch
        self._advance = advance
        self._builder = job.builder(appender, seconds=_BATCH_SECONDS if engine.gives_batches else None)
        self._claim_size = appender.head.claim_size
        self._batch_size = job.options.batch_size or self._claim_size
        self._held: list[range] = []
        # Claims to lock by one call.
        self._least = self._most = -(-self._batch_size // self._claim_size)
        # Number of samples with a record that `advance` was told.
        self._told = presence.count

    def run(self) -> None:
        """Compute the samples that are missing, and wait for other processes that have claimed some.

        Computed samples are published before anything is raised.
        """
        claims = self._presence.missing_claims
        with self._engine:
            try:
                while claims:
                    of_others: list[int] = []
                    self._compute(self._batches(claims, of_others))
                    self._release(is_all=True)
                    claims = of_others
                    if claims and self._presence.missing_in(claims[0]):
                        with self._watch.begin(-1, 0):
                            self._claims.wait(
                                claims[0]
                            )  # the next round holds it, and others that are free then
                        self._watch.end()
            finally:
                self._watch.end()
                try:
                    self._publish()
                finally:
                    self._release(is_all=True)

    def _compute(self, batches: Iterator[list[int]]) -> None:
        """Have the engine compute the batches of held claims, add their samples, and publish each chunk that is due."""
        running: deque[Pending] = deque()
        while True:
            while len(running) < self._engine.depth and (batch := next(batches, None)) is not None:
                running.append(self._engine.submit(batch))
            if not running:
                break
            ended, errors = self._engine.ended(running), list[EdcacheError]()
            for pending in ended:
                try:
                    for indices, made in pending:
                        self._add(indices, made)
                        del made  # no memory of it beside the next one
                except EdcacheError as error:  # raised when the others that have ended are published
                    errors.append(error)
            if errors:
                raise errors[0]
            if not ended:
                self._count_others()
        self._publish()

    def _add(self, indices: list[int], made: MadeSamples | Failure | Chunk) -> None:
        """Add the samples of indices, or failures, or append their chunk; publish each time that this is due."""
        row, builder = 0, self._builder
        if isinstance(made, Chunk):
            self._told += builder.append(self._appender, made, self._presence.lacking)
            self._advance(made.count, len(made.data))
            self._publish()
            return
        while row < len(indices):
            before = builder.nbytes
            count = builder.add_made(indices, made, row)
            self._advance(count, builder.nbytes - before)
            row += count
            if builder.is_due:
                self._watch.end()
                self._publish()
        self._watch.end()

    def _batches(self, claims: list[int], of_others: list[int]) -> Iterator[list[int]]:
        """Lock the claims that no other process has, and yield the missing samples in batches; list the others."""
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
                began = time.monotonic()
                # Between two batches they are computed and added, so these are the seconds of the samples.
                yield from self._hold(range(first, first + count))
                seconds = max(time.monotonic() - began, 1e-6)
                self._most = max(self._least, int(count * _RUN_SECONDS / seconds))
            else:
                of_others.append(first)
            position += max(1, count)

    def _hold(self, claims: range) -> list[list[int]]:
        """Hold claims that this process has just locked; return the samples that are missing in them, in batches."""
        self._held.append(claims)
        self._count_others()
        missing = self._presence.missing_in(claims.start, len(claims))
        if not missing:
            self._release()
        size = max(1, len(missing)) if self._engine.takes_any else self._batch_size
        return [missing[start : start + size] for start in range(0, len(missing), size)]

    def _count_others(self) -> None:
        """Count the samples that other processes have published."""
        self._presence.update()
        others, self._told = self._presence.count - self._told, self._presence.count
        if others > 0:
            self._advance(others, 0)

    def _publish(self) -> None:
        """Publish the pending samples and failures, and free the claims in which none is missing any more."""
        self._told += self._builder.publish(self._appender, lacking=self._presence.lacking)
        self._count_others()
        self._release()

    def _release(self, is_all: bool = False) -> None:
        for claims in [*self._held]:
            if is_all or not self._presence.missing_in(claims.start, len(claims)):
                self._claims.release(claims.start, len(claims))
                self._held.remove(claims)
