"""Check by a sample that is computed again: before a fill begins or goes on, and when its archive is opened.

Before a fill, a process of its own kind computes it: this one, a worker, or a task of an executor. Many sources open
files, or a device, at their first sample, and a process that has them open is not to be forked. An archive that is only
opened has this process compute.

What must never happen: that a check writes to the archive, or runs in a worker of a DataLoader; that samples of another
source are added before it has ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final, TypeAlias

from torch.utils.data import get_worker_info

from edcache import base, identity
from edcache.base import Ints, ReadOptions, SourceError, StaleCacheError
from edcache.identity import FirstSample, Other, Recomputed
from edcache.reader import Reader, Session
from edcache.writer.crew import compute_apart, crew_size
from edcache.writer.fetcher import compute_again
from edcache.writer.job import Job
from edcache.writer.stream import is_stream

_Record: TypeAlias = tuple[str, bytes]

_REMEDY: Final = (
    "nothing that edcache compares has changed: it is a setting elsewhere, a file, or a library. Use another path, or "
    "build it anew with keep_existing=False; spot_check=False compares no sample"
)


def with_first_sample(job: Job) -> Job:
    """Compute the first sample of a new archive twice, and return the job with what its head is to tell of it.

    Warns if it is another one each time.
    """
    fingerprint, where = job.head.fingerprint, job.path
    if fingerprint is None or job.options.spot_check is False or is_stream(job.source) or not job.length:
        return job
    learned = None
    with suppress(Exception):  # the fill raises it again
        again = _as_a_fill_does(job, 0, 2)
        learned = None if again is None else identity.learned(again, job.head.codec)
    if learned is None:
        return job
    first, other = learned
    if other is not None:
        name = f"field {other.field} of sample 0" if other.field else "sample 0"
        base.warn(
            f"{where}: {name} is another one each time that it is computed. Random augmentation would be the same in "
            "every epoch: put it behind the cache with with_transform(), or keep several with edcache.variants()"
        )
    return replace(job, head=replace(job.head, fingerprint={**fingerprint, identity.ENTRY: first.to_json()}))


def check_open(job: Job, archive: Reader, is_asked: bool = False) -> None:
    """Compare a sample of an archive with the source, which this process computes.

    is_asked: True if something has changed that may make other samples.
    Raises: StaleCacheError, it is another one.
    """
    session = archive.session
    if _is_due(job, session, is_asked):
        pairs = [(index, index) for index in _some(session, _count(job))]
        _compare(job, session, pairs, compute_again, is_asked)


def check_before(job: Job, positions: Ints | None = None, places: Ints | None = None) -> None:
    """Compare a sample that an archive has with the source, before others are added.

    positions, places: of the samples that it has: in the source, and in the archive; None if they are the same.
    Raises: StaleCacheError, it is another one.
    """
    options = ReadOptions(allow_partial=True, allow_pickle=job.head.codec == "pickle")
    with closing(Reader(job.path, options)) as archive:
        session = archive.open()
        if not _is_due(job, session, False):
            return
        if positions is None or places is None:
            pairs = [(index, index) for index in _some(session, _count(job)) if index < job.length]
        else:
            chosen = [secrets.randbelow(len(places)) for _ in range(_count(job))] if len(places) else []
            pairs = [(int(positions[k]), int(places[k])) for k in chosen]
        _compare(job, session, pairs, _as_a_fill_does, False)


def compared(job: Job, archive: Reader, count: int) -> list[tuple[int, Other]]:
    """Compute samples of an archive again; return the ones that are other ones than their records, each with a field.

    Raises: as the source.
    """
    found, session = [], archive.session
    for index in _some(session, count):
        stored = _stored(session, index)
        other = _other(session, stored, compute_again(job, index, 1, stored), True)
        if other is not None:
            found.append((index, other))
    return found


def _is_due(job: Job, session: Session, is_asked: bool) -> bool:
    """True if a sample is to be computed: it repeats, and is fast, or the user asks for it; on one rank."""
    asked, first = job.options.spot_check, FirstSample.of(session.origin.fingerprint)
    if asked is False or (first is not None and not first.repeats) or not session.index.present:
        return False
    if is_stream(job.source):  # it has no sample at an index
        return False
    if get_worker_info() is not None or not base.is_rank_0():
        return False
    return bool(asked) or is_asked or (first is not None and first.seconds <= identity.SECONDS)


def _count(job: Job) -> int:
    return max(1, int(job.options.spot_check or 1))


def _some(session: Session, count: int) -> list[int]:
    """Choose samples with a record, others each time: not by the generators of the process."""
    index = session.index
    if index.is_dense:
        return [secrets.randbelow(session.length) for _ in range(min(count, session.length))]
    held = index.held()
    return [int(held[secrets.randbelow(len(held))]) for _ in range(min(count, len(held)))]


def _compare(
    job: Job,
    session: Session,
    pairs: Sequence[tuple[int, int]],
    compute: Callable[[Job, int, int, _Record], Recomputed | None],
    is_asked: bool,
) -> None:
    for position, index in pairs:
        made: list[Recomputed] = []
        try:
            stored = _stored(session, index)
            for least in (1, identity.MOST_DRAWS):  # one that differs may be another one each time
                again = compute(job, position, least, stored)
                if again is None:
                    return
                made.append(again)
                records = [record for one in made for record in one.records]
                other = _other(session, stored, Recomputed(records, again.seconds), is_asked)
                if other is None:
                    break
        except Exception as error:  # noqa: BLE001 - of the source, or the record is damaged: who needs it sees it
            text = next(iter(str(error).removeprefix(f"{job.path}: ").splitlines()), "")
            base.tell(f"{job.path}: sample {position} was not compared: {text}", job.options.progress)
            return
        if other is not None:
            text = f"{session.path}: sample {position} is another one now: {other}; {_REMEDY}"
            raise StaleCacheError(text, path=session.path, option="spot_check")


def _stored(session: Session, index: int) -> _Record:
    """Return schema and bytes of a record."""
    record, decoder = session.fetch(index)
    return decoder.text, bytes(record)


def _other(session: Session, stored: _Record, again: Recomputed, is_asked: bool) -> Other | None:
    first = FirstSample.of(session.origin.fingerprint)
    return identity.find_other(stored, again, first, session.head.codec, is_asked)


def _as_a_fill_does(job: Job, index: int, least: int, stored: _Record | None = None) -> Recomputed | None:
    """Compute a sample again; None if the process that computes it ends. Raises: as the source."""
    options = job.options
    if options.executor is not None:
        task = options.executor.submit(compute_again, job, index, least, stored)
        error = task.exception()
        if error is not None:  # an exit or an interrupt of a task is none of this process
            raise SourceError(f"a task raised {type(error).__name__}: {error}") from error
        made: Recomputed = task.result()
        return made
    if crew_size(job):
        return compute_apart(replace(job, again=(index, least, stored)))
    return compute_again(job, index, least, stored)
