"""Compute samples again: before a fill begins or goes on, and when its archive is opened; `identity.compare` judges.

Before a fill, a process of its own kind computes them: this one, a worker, or a task of an executor. Many sources open
files, or a device, at their first sample, and a process that has them open is not to be forked. An archive that is only
opened has this process compute.

What must never happen: that a check writes to the archive, or runs in a worker of a DataLoader; that samples of another
source are added before it has ended.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final

from torch.utils.data import get_worker_info

from edcache import base, identity
from edcache.base import OptionError, ReadOptions, SourceError, StaleCacheError
from edcache.identity import FirstSample, Keyed, Other, Recomputable, Recomputed, Record
from edcache.labels import LabelSpec
from edcache.reader import Reader, Session
from edcache.writer.appender import Appender, other_order
from edcache.writer.crew import compute_apart, crew_size
from edcache.writer.engine import Again, compute_again
from edcache.writer.job import Job, Known
from edcache.writer.match import check_length
from edcache.writer.source import is_stream, length_of

_MOST_FAILING: Final = 8
# Samples that a fill computes twice beside its first one, if they are cheap: randomness may be in some alone.
_BESIDE: Final = 2


class StoredSamples(Recomputable):
    """Samples of an archive that is opened with its source, or that a fill goes on with.

    Args:
        adds: True if samples are to be added: then a process of the fill's own kind computes.
        known: samples that the archive has, of a source with keys; None if their numbers are their positions.
    """

    def __init__(self, job: Job, session: Session, *, adds: bool, known: Known | None = None) -> None:
        # Nothing is added by an open: a lazy cache adds samples later, as they are read.
        here = replace(job.options, executor=None, num_workers=0, timeout=None)
        self.job, self.session, self.adds = job if adds else replace(job, options=here), session, adds
        self._known, self.passes_over = known, job.options.on_error != "raise"
        self.path, self.codec = session.path, session.head.codec
        self.asked, self.first = job.options.spot_check, FirstSample.of(session.origin.fingerprint)
        # The archive of a stream, or of reads that fill it, may tell no time.
        self.is_cheap = adds if self.first is None else self.first.seconds <= identity.SECONDS
        # One rank compares a complete archive; each rank that goes on with a fill compares before it adds.
        is_here = get_worker_info() is None and (base.is_rank_0() or not session.complete)
        self.is_here = is_here and bool(session.index.present)
        self.use(job.source)

    def use(self, source: Any) -> None:
        """Compute samples by a source."""
        self.job, self.is_stream = replace(self.job, source=source), is_stream(source)
        is_known_random = self.first is not None and not self.first.repeats
        self.is_repeated = not (is_known_random or isinstance(source, Iterator))

    def drawn(self, most: int) -> list[tuple[int, int]]:
        """Draw samples, others each time; of a stream its first one, since it gives no other without the ones before.

        See `Recomputable`.
        """
        index, known = self.session.index, self._known
        if known is not None and known.positions is not None and known.places is not None:
            return [(int(known.positions[k]), int(known.places[k])) for k in _some(len(known.places), most)]
        if self.is_stream:
            return [(0, 0)] if most and index.has(0) else []
        held = None if index.is_dense else index.held()
        places = _some(self.session.length if held is None else len(held), most)
        numbers = places if held is None else [int(held[place]) for place in places]
        # An archive that was written without a dataset may have more samples than the source.
        return [(number, number) for number in numbers if not self.adds or number < self.job.length]

    def stored(self, number: int) -> Record:
        """Return schema and bytes of a record."""
        try:
            record, decoder = self.session.fetch(number)
            return decoder.text, bytes(record)
        finally:
            self.session.check_same()

    def again(self, position: int, least: int, stored: Record) -> Recomputed | None:
        """Compute a sample again where a fill would, see `Recomputable`."""
        return _as_a_fill_does(self.job, Again(position, least, stored))


def check_open(job: Job, session: Session) -> None:
    """Compare the recipe of a source, and samples that this process computes, with an archive that is opened.

    Raises: StaleCacheError, see `Verdict.settle`.
    """
    _check(job, StoredSamples(job, session, adds=False))


def check_before(job: Job, known: Known | None = None) -> None:
    """Compare samples that an archive has with the source, before others are added.

    known: samples that it has, of a source with keys.
    Raises: StaleCacheError, see `Verdict.settle`; StaleArchiveError, samples have other numbers since `known` was
        found.
    """
    if known is not None and known.places is not None and not len(known.places):
        return
    options = ReadOptions(allow_partial=True, allow_pickle=job.head.codec == "pickle")
    with closing(Reader(job.path, options)) as archive:
        session = archive.open()
        root = session.root
        if known is not None and (None if root is None else root.index) != known.numbered_by:
            raise other_order(job.path)
        _check(job, StoredSamples(job, session, adds=True, known=known))


def _check(job: Job, samples: StoredSamples) -> None:
    verdict = identity.compare(samples.session.origin.fingerprint, job.recipe, samples)
    if verdict.reason:
        base.tell(f"{job.path}: {verdict.reason}", False if verdict.asks else job.options.progress)
    verdict.settle(samples.path)


def compared(source: Any, session: Session, most: int) -> dict[int, Other]:
    """Compute samples of an archive again; return the ones that differ from their records, each with a field.

    Of a stream it is the first one.
    Raises: OptionError, its samples do not repeat, or it is an iterator; StaleCacheError, it has another length, or
        other keys; as the source.
    """
    if not is_stream(source):
        check_length(session.path, session.length, length_of(source, session.path))
    if isinstance(source, Iterator):
        text = f"{session.path}: the source is an iterator, which gives each sample once"
        raise OptionError(f"{text}; give the dataset that makes it")
    keyed = None if is_stream(source) else Keyed.of(source)
    if keyed is not None and keyed.digest != session.origin.keys_digest:
        text = f"{session.path}: made of samples of other keys than the source has now"
        raise StaleCacheError(f"{text}; fill it again before", path=session.path, option="keep_existing")
    samples = StoredSamples(Job(source, session.path, session.head, LabelSpec({})), session, adds=False)
    if not samples.is_repeated:
        text = f"{session.path}: its samples are other ones each time that they are computed"
        raise OptionError(f"{text}, so that none can be compared")
    found = dict[int, Other]()
    for position, number in sorted(samples.drawn(most)):
        _, other = identity.recheck(samples, position, number, True)
        if other is not None:
            found[number] = other
    return found


def with_first_sample(job: Job, index: int = 0, beside: int = _BESIDE) -> Job:
    """Compute the first sample of a new archive twice, and return the job with a head that describes the sample.

    index: the first one to try. A sample that fails is passed over, unless on_error="raise". beside: how many others
        are computed twice, if that is cheap.
    Warns if two results of a sample differ.
    """
    again = None
    if job.head.fingerprint is None:
        return job
    if job.options.spot_check is False or is_stream(job.source) or not job.length:
        return with_state(job)
    most = 1 if job.options.on_error == "raise" else _MOST_FAILING
    for index in range(index, min(job.length, index + most)):  # noqa: B020 - the one that did not fail is told
        with suppress(Exception):  # the fill raises it again
            again = _as_a_fill_does(job, Again(index, 2, None, _some_beside(job, index, beside)))
            break
    if again is None:
        return with_state(job)
    first, index, other = identity.learned(again, job.head.codec)
    if other is not None:
        base.warn(f"{job.path}: {identity.random_text(index, other, again.state)}")
    job = with_state(job, again.state)
    first = replace(first, call_seconds=0.0 if job.recipe is None else job.recipe.seconds)
    fingerprint = {**(job.head.fingerprint or {}), identity.ENTRY: first.to_json()}
    return replace(job, head=replace(job.head, fingerprint=fingerprint))


def with_state(job: Job, state: Sequence[str] = ()) -> Job:
    """Return the job with a head that names all state: `state` of the source, and arguments that its call changes."""
    recipe = job.recipe
    if recipe is None:
        return job
    found = {*state}
    if recipe.again is not None:
        # It knows no attributes.
        found |= {
            name
            for name in recipe.changed(recipe.again())
            if name.removeprefix("inside of ").startswith("argument ")
        }
    fingerprint = recipe.put_into(job.head.fingerprint, found)
    return replace(job, head=replace(job.head, fingerprint=fingerprint))


def settled(job: Job, refused: Sequence[str]) -> Job:
    """Mark attributes as state that computing a sample changes, if source and archive differ in attributes alone.

    State is not compared: the archive may be of a source that was read before it was cached.
    refused: lines about what differs, see `Verdict`.
    """
    recipe = job.recipe
    is_here = get_worker_info() is None and job.options.spot_check is not False
    if recipe is None or not recipe.count or recipe.is_made or not is_here:
        return job
    if not all(line.startswith("attribute ") for line in refused):
        return job
    with suppress(Exception):  # the fill raises it again
        return replace(job, recipe=replace(recipe, state=frozenset(compute_again(job, Again(0, 1)).state)))
    return job


def note_seconds(job: Job, appender: Appender, seconds: float) -> None:
    """Note in the archive of a stream how long its first sample took, so that it is compared later."""
    found = appender.chain.origin.fingerprint
    if found is None or identity.ENTRY in found or isinstance(job.source, Iterator):
        return
    if job.options.spot_check is not False:
        appender.amend(fingerprint={**found, identity.ENTRY: FirstSample(seconds).to_json()})


def _some(count: int, most: int) -> list[int]:
    """Choose different numbers below `count`, others each time: not by the generators of the process."""
    return random.SystemRandom().sample(range(count), min(count, most))


def _some_beside(job: Job, index: int, most: int) -> tuple[int, ...]:
    return tuple(other for other in _some(job.length, most + 1) if other != index)[:most]


def _as_a_fill_does(job: Job, asked: Again) -> Recomputed | None:
    """Compute a sample again where a fill would: in a task of the executor, a worker, or this process.

    Returns: None if that process ends. Raises: as the source.
    """
    options = job.options
    if options.executor is not None:
        task = options.executor.submit(compute_again, job, asked)
        error = task.exception()
        if error is not None:  # an exit or an interrupt of a task is none of this process
            raise SourceError(f"a task raised {type(error).__name__}: {error}") from error
        made: Recomputed = task.result()
        return made
    if not is_stream(job.source) and crew_size(job, job.length):
        return compute_apart(job, asked)
    return compute_again(job, asked)
