"""Check by a sample that is computed again: before a fill begins or goes on, and when its archive is opened.

Before a fill, a process of its own kind computes it: this one, a worker, or a task of an executor. Many sources open
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
from typing import Any, Final, TypeAlias

from torch.utils.data import get_worker_info

from edcache import base, identity
from edcache.base import OptionError, ReadOptions, SourceError, StaleCacheError
from edcache.format import Head
from edcache.identity import FirstSample, Other, Recomputed
from edcache.labels import LabelSpec
from edcache.reader import Reader, Session
from edcache.writer.appender import Appender, other_order
from edcache.writer.crew import compute_apart, crew_size
from edcache.writer.engine import compute_again
from edcache.writer.job import Job, Known
from edcache.writer.match import check_length
from edcache.writer.source import is_stream, length_of

_Record: TypeAlias = tuple[str, bytes]

_MOST_ASKED: Final = 8
_MOST_FAILING: Final = 8
_NOTHING: Final = "nothing that edcache compares has changed: it is a setting elsewhere, a file, or a library"
_REMEDY: Final = (
    '. Use another path, or build it anew: keep_existing=False, with @cachable another version= or on_stale="rebuild"; '
    "spot_check=False compares no sample"
)


def with_first_sample(job: Job, index: int = 0) -> Job:
    """Compute the first sample of a new archive twice, and return the job with a head that describes the sample.

    index: the first one to try. A sample that fails is passed over, unless on_error="raise".
    Warns if the two results differ.
    """
    where, again = job.path, None
    if job.head.fingerprint is None:
        return job
    if job.options.spot_check is False or is_stream(job.source) or not job.length:
        return with_state(job)
    most = 1 if job.options.on_error == "raise" else _MOST_FAILING
    for index in range(index, min(job.length, index + most)):  # noqa: B020 - the one that did not fail is told
        with suppress(Exception):  # the fill raises it again
            again = _as_a_fill_does(job, index, 2)
            break
    if again is None:
        return with_state(job)
    first, other = identity.learned(again, job.head.codec)
    if other is not None:
        name = f"field {other.field} of sample {index}" if other.field else f"sample {index}"
        base.warn(
            f"{where}: {name} is another one each time that it is computed. Random augmentation would be the same in "
            "every epoch: put it behind the cache with with_transform(), or keep several with edcache.variants()"
        )
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


def settled(job: Job, origin: Head) -> Job:
    """Return the job with attributes as state that computing a sample changes, if source and archive differ in no more.

    State is not compared: the archive may be of a source that was read before it was cached.
    origin: head of the last source of the archive.
    """
    recipe = job.recipe
    if recipe is None or not recipe.count or recipe.is_made or job.options.spot_check is False:
        return job
    if not all(
        line.startswith("attribute ") for line in identity.compare(origin.fingerprint, recipe).settings
    ):
        return job
    with suppress(Exception):  # the fill raises it again
        return replace(job, recipe=replace(recipe, state=frozenset(compute_again(job, 0, 1).state)))
    return job


def note_seconds(job: Job, appender: Appender, seconds: float) -> None:
    """Note in the archive of a stream how long its first sample took, so that it is compared later."""
    found = appender.chain.origin.fingerprint
    if found is None or identity.ENTRY in found or isinstance(job.source, Iterator):
        return
    if job.options.spot_check is not False:
        appender.amend(fingerprint={**found, identity.ENTRY: FirstSample(seconds).to_json()})


def check_open(job: Job, session: Session) -> None:
    """Compare a sample of an archive with the source, which this process computes.

    Raises: StaleCacheError, it is another one.
    """
    here = replace(job.options, executor=None, num_workers=0, timeout=None)
    # Nothing is added here: a lazy cache adds samples later, as they are read.
    _check(replace(job, options=here), session, adds=False)


def check_before(job: Job, known: Known | None = None) -> None:
    """Compare a sample that an archive has with the source, before others are added.

    known: samples that it has, of a source with keys.
    Raises: StaleCacheError, it is another one. StaleArchiveError, samples have other numbers since `known` was found.
    """
    if known is not None and known.places is not None and not len(known.places):
        return
    options = ReadOptions(allow_partial=True, allow_pickle=job.head.codec == "pickle")
    with closing(Reader(job.path, options)) as archive:
        session = archive.open()
        root = session.root
        if known is not None and (None if root is None else root.index) != known.numbered_by:
            raise other_order(job.path)
        _check(job, session, adds=True, known=known)


def compared(source: Any, session: Session, most: int) -> dict[int, Other]:
    """Compute samples of an archive again; return the ones that differ from their records, each with a field.

    Of a stream it is the first one.
    Raises: OptionError, its samples do not repeat, or it is an iterator; StaleCacheError, it has another length; as
        the source.
    """
    if not is_stream(source):
        check_length(session.path, session.length, length_of(source, session.path))
    if isinstance(source, Iterator):
        text = f"{session.path}: the source is an iterator, which gives each sample once"
        raise OptionError(f"{text}; give the dataset that makes it")
    first = FirstSample.of(session.origin.fingerprint)
    if first is not None and not first.repeats:
        text = f"{session.path}: its samples are other ones each time that they are computed"
        raise OptionError(f"{text}, so that none can be compared")
    found, job = {}, Job(source, session.path, session.head, LabelSpec({}))
    for index in sorted(_chosen(job, session, most)):
        stored = _stored(session, index)
        other = _other(session, stored, compute_again(job, index, 1, stored), True)
        if other is not None:
            found[index] = other
    return found


def is_due(job: Job, session: Session, *, adds: bool) -> bool:
    """True if a sample is to be computed: it repeats, and is fast, or the user or changed code asks; on one rank.

    adds: True if others are to be added; then also if the archive tells no time, as one that reads fill.
    """
    asked, first = job.options.spot_check, FirstSample.of(session.origin.fingerprint)
    is_another = isinstance(job.source, Iterator) or (first is not None and not first.repeats)
    if is_another or not _may_compare(job, session):
        return False
    if job.head.fingerprint is None:  # nothing is to be compared
        return bool(asked)
    return bool(asked or job.found.asking) or (adds if first is None else first.seconds <= identity.SECONDS)


def _count(job: Job, session: Session) -> int:
    """Return the number of samples to compare: one; if code asks several, as time allows, since one may not show it."""
    if job.options.spot_check not in (None, True):
        return int(job.options.spot_check or 1)
    first = FirstSample.of(session.origin.fingerprint)
    if not job.found.asking or first is None:
        return 1
    return max(1, min(_MOST_ASKED, int(identity.SECONDS / max(first.seconds, 1e-9))))


def _may_compare(job: Job, session: Session) -> bool:
    """True if the user lets samples be compared, by this process, and the archive has one."""
    is_here = get_worker_info() is None and base.is_rank_0()  # else another process compares
    return job.options.spot_check is not False and is_here and bool(session.index.present)


def _some(count: int, most: int) -> list[int]:
    """Choose different numbers below `count`, others each time: not by the generators of the process."""
    return random.SystemRandom().sample(range(count), min(count, most))


def _chosen(job: Job, session: Session, most: int) -> list[int]:
    """Choose samples with a record; of a stream its first one, since it gives no other without the ones before."""
    index = session.index
    if is_stream(job.source):
        return [0] if most and index.has(0) else []
    if index.is_dense:
        return _some(session.length, most)
    held = index.held()
    return [int(held[k]) for k in _some(len(held), most)]


def _check(job: Job, session: Session, *, adds: bool, known: Known | None = None) -> None:
    """Compare samples of the source with records, until as many are equal as `_count` says.

    A sample that fails is passed over, unless on_error="raise".
    Warns of changed code if none was compared.
    """
    most = _count(job, session) if is_due(job, session, adds=adds) else 0
    # Some may fail, as the user expects.
    tries = most if job.options.on_error == "raise" or not most else most + _MOST_FAILING
    if known is not None and known.positions is not None and known.places is not None:
        pairs = [(int(known.positions[k]), int(known.places[k])) for k in _some(len(known.places), tries)]
    else:
        # One that was written without a dataset may have more samples than the source.
        end = session.length if is_stream(job.source) or not adds else job.length
        pairs = [(index, index) for index in _chosen(job, session, tries) if index < end]
    compared, error_line = 0, ""
    for position, index in pairs:
        if compared == most:
            break
        try:
            is_compared, other = _differing(job, session, position, index)
        except Exception as error:  # noqa: BLE001 - of the source, or the record is damaged: who needs it sees it
            why = str(error).removeprefix(f"{job.path}: ").partition("\n")[0]
            error_line = f"sample {position} was not compared: {why}"
            if job.options.on_error == "raise":
                break
            continue
        if other is not None:
            what = job.found.asking or _NOTHING
            text = f"{session.path}: sample {position} is another one now: {other}; {what}{_REMEDY}"
            raise StaleCacheError(text, path=session.path, option="spot_check")
        if not is_compared:
            break
        compared += 1
    if compared:
        return
    if error_line:
        base.tell(f"{job.path}: {error_line}", False if job.found.asking else job.options.progress)
    not_compared(job, session, error_line or "no sample was computed again to compare it")


def not_compared(job: Job, session: Session, why: str) -> None:
    """Tell that no sample could be compared though something asks.

    Raises: StaleCacheError, the inside of an object of a library has changed; of code it is a warning.
    """
    if not _may_compare(job, session):
        return
    first = FirstSample.of(session.origin.fingerprint)
    what = job.found.asking
    is_known = not is_stream(job.source) and (first is None or first.repeats)  # a stream may shuffle
    if job.found.asks and is_known:
        text = f"{session.path}: {what}, and {why}{_REMEDY}"
        raise StaleCacheError(text, path=session.path, option="spot_check")
    if what:
        message = (
            f"{session.path}: {what} since this cache was made, and {why}; if it makes other samples now"
        )
        base.warn(f"{message}, build it anew or use another path", once=(session.path, what))


def _differing(job: Job, session: Session, position: int, index: int) -> tuple[bool, Other | None]:
    """Compute a sample until it is equal to its record, or is known to repeat.

    Returns: whether it was compared, and a field that is another one.
    """
    stored, records, other = _stored(session, index), list[_Record](), None
    for least in (1, identity.FEW_DRAWS):  # one that differs may be another one each time
        again = _as_a_fill_does(job, position, least, stored)
        if again is None:
            return False, None
        known, records = records, [*dict.fromkeys([*records, *again.records])]
        if records == known:
            break  # to compare a large record takes longer than to compute it
        if is_stream(job.source) and len(records) > 1:  # as of a stream that shuffles
            return False, None
        other = _other(session, stored, Recomputed(records, again.seconds), bool(job.found.asking))
        if other is None:
            break
    return True, other


def _stored(session: Session, index: int) -> _Record:
    """Return schema and bytes of a record."""
    try:
        record, decoder = session.fetch(index)
        return decoder.text, bytes(record)
    finally:
        session.check_same()


def _other(session: Session, stored: _Record, again: Recomputed, is_asked: bool) -> Other | None:
    first = FirstSample.of(session.origin.fingerprint)
    return identity.find_other(stored, again, first, session.head.codec, is_asked)


def _as_a_fill_does(job: Job, index: int, least: int, stored: _Record | None = None) -> Recomputed | None:
    """Compute a sample again where a fill would: in a task of the executor, a worker, or this process.

    Returns: None if that process ends. Raises: as the source.
    """
    options = job.options
    if options.executor is not None:
        task = options.executor.submit(compute_again, job, index, least, stored)
        error = task.exception()
        if error is not None:  # an exit or an interrupt of a task is none of this process
            raise SourceError(f"a task raised {type(error).__name__}: {error}") from error
        made: Recomputed = task.result()
        return made
    if not is_stream(job.source) and crew_size(job, job.length):
        return compute_apart(replace(job, again=(index, least, stored)))
    return compute_again(job, index, least, stored)
