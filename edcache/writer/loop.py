"""One loop that fills an archive: claims give batches, an engine computes each, a chunk takes what comes back.

    for batch in claims:
        pending = engine.submit(batch)
        ...
        add(pending())

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
from edcache.writer.job import Job, Todo

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
    """State of each sample that a fill is to compute, with the entries of all processes.

    Args:
        length: samples of the source. since: number of the first entry behind the ones that the fill began with.
            Failures before it are tried again.
        todo: samples of the fill; None: all. In the parts of a maker they have the numbers of the source.
    Attributes:
        state: uint8 [n], the states above, of the samples of the fill in their order. count: samples with a record.
    """

    def __init__(self, appender: Appender, length: int, since: int = 0, todo: Todo | None = None) -> None:
        self._appender = appender
        self._claim_size = appender.head.claim_size
        self._since = since
        self._entries = self._chunks = 0
        self._todo: Ints | None = None if todo is None else todo.samples
        self._maker = "" if todo is None else todo.maker
        self.state = np.full(length if self._todo is None else len(self._todo), MISSING, np.uint8)
        self.count = 0
        root = appender.chain.root
        if root is not None and not self._maker:
            chain = appender.chain
            self._take(Contents(chain, appender.file.pread, appender.table).held())
            self._chunks = len(chain.chunks)
        self.update()

    def update(self) -> int:
        """Take in the entries published since the last call; returns the number of new samples.

        Raises: StaleArchiveError, another process has given the samples other numbers since the fill began. A worker
        that opens the archive then would find none of them.
        """
        self._appender.catch_up()
        chain = self._appender.chain
        if chain.is_reordered and chain.root_header is not None and chain.root_header.number >= self._since:
            raise other_order(chain.where)
        if chain.cursor.number == self._entries:
            return 0
        known, self._entries = self._entries, chain.cursor.number
        for index, (entry, failure) in self.failures.items():
            for place in self._places(np.array([index])).tolist() if entry >= known else ():
                if self.state[place] != PRESENT:
                    is_new = entry >= self._since
                    self.state[place] = ABSENT if failure.final else FAILED if is_new else RETRIED
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

    def _samples(self, places: Ints) -> Ints:
        return places if self._todo is None else self._todo[places]

    def has(self, index: int) -> bool:
        """True if a sample has a record."""
        return bool(np.all(self.state[self._places(np.array([index]))] == PRESENT))

    def held(self) -> Ints:
        """List the samples of the fill that have a record: int64 [k]."""
        return self._samples(np.flatnonzero(self.state == PRESENT))

    def lacking(self, chunk: Chunk) -> Chunk:
        """Leave out of a chunk the records of samples that have one in the archive now, of any process."""
        self.update()
        return chunk.only(self.state[self._places(chunk.samples)] != PRESENT)

    @property
    def missing(self) -> int:
        """Number of samples to compute."""
        return int(np.count_nonzero(self.state <= RETRIED))

    def missing_in(self, claim: int, count: int = 1) -> list[int]:
        """Indices to compute in `count` claims from `claim` on."""
        start = claim * self._claim_size
        missing = np.flatnonzero(self.state[start : start + count * self._claim_size] <= RETRIED) + start
        indices: list[int] = self._samples(missing).tolist()
        return indices

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
                        first = claims.pop(0)  # the others may be free then: their holder may have ended
                        with self._watch.begin(-1, 0):
                            self._claims.wait(first)
                        self._watch.end()
                        self._compute(iter(self._hold(range(first, first + 1))))
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
                    for indices, made in pending():
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
        if not isinstance(made, list) and isinstance(made, Failure | Chunk):
            self._add_encoded(made)
            return
        row, builder = 0, self._builder
        while row < len(indices):
            before = builder.nbytes
            count = builder.add_made(indices, made, row)
            self._advance(count, builder.nbytes - before)
            row += count
            if builder.is_due:
                self._watch.end()
                self._publish()
        self._watch.end()

    def _add_encoded(self, made: Failure | Chunk) -> None:
        if isinstance(made, Failure):
            self._builder.failures.append(made)
            self._advance(1, 0)
            if self._builder.is_due:
                self._publish()
            return
        self._told += self._builder.append(self._appender, made, self._presence.lacking)
        self._advance(made.count, len(made.data))
        self._publish()

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
