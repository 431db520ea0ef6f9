"""Fill an archive: alone, with workers, or beside other processes that fill it already."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from edcache import format, storage
from edcache.base import (
    ArchiveLockedError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    FillOptions,
    NotAnArchiveError,
    Progress,
    SourceError,
    WorkerError,
)
from edcache.format import Failure, Head
from edcache.writer import temporary
from edcache.writer.cluster import Cluster
from edcache.writer.crew import Crew, crew_context, worker_count
from edcache.writer.job import Job, check_length, check_source
from edcache.writer.part import Part, Watch
from edcache.writer.presence import Presence
from edcache.writer.protocol import AnyAppender
from edcache.writer.space import SpaceCheck
from edcache.writer.stream import fill_stream, is_stream

logger = logging.getLogger("edcache")

_LOOK_SECONDS = 0.2


def fill(job: Job, *, rebuild: bool = False) -> int:
    """Compute every sample of a source that the archive lacks, and seal it.

    Args:
        job: how, `job.options` say. The source goes with every task of an executor; after an error, tasks
            that run already may go on appending for a while.
        rebuild: fill `path + ".edcache.new"` from nothing and put it in the place of `path` at the end;
            whoever has the old archive open keeps reading it. Of several processes that rebuild at once one
            does; the others wait, and take what it built.
    Returns:
        How many samples this process and its workers published.
    Raises:
        SourceError: the source raised, hung, or killed its workers; everything computed before is
            published, and calling again continues there.
        StaleCacheError: the archive has another length than the source.
        UnsupportedTypeError, LabelError: a sample cannot be stored, or makes no label column.
        StorageError: the disk is full, or will be; everything published stays.
        WorkerError: workers end, and no sample is to blame.

    A chunk is published when it is full, and otherwise after a tenth of the time spent so far
    (0.2 to 2 seconds): a kill costs little of what was computed, even in the first seconds.
    """
    if is_stream(job.source):
        return fill_stream(job, rebuild)
    check_source(job.source, job.path)
    compute = _means(job.options)
    if rebuild and not job.store.begin_anew(job.head):
        return _rebuild(job, compute)
    return _Filling(job, compute).run()


def _rebuild(job: Job, compute: _Compute) -> int:
    before = _head_of(job.path)
    patience = None if job.options.if_filling == "fail" else _LOOK_SECONDS
    with temporary.replacing(job.path, patience) as session:
        now = _head_of(job.path)
        if now is not None and now != before and now.fingerprint == job.head.fingerprint:
            # The same call in another process built it while this one waited.
            storage.remove(session.path)
            return 0
        computed = _Filling(replace(job, path=session.path), compute).run()
        if job.sync != "never":
            session.sync()  # a sealed one is synced already; one that lacks samples is not
        storage.replace(session.path, job.path)
    return computed


def _head_of(path: str) -> Head | None:
    """What is at a path says about itself; None where there is nothing, or no archive."""
    try:
        file = storage.File.open(path, "r")
    except ArchiveNotFoundError:
        return None
    try:
        return format.read_head(file.pread, path)[0]
    except (NotAnArchiveError, CorruptArchiveError):
        return None
    finally:
        file.close()


_Compute = Callable[[Job, AnyAppender, Presence, "_Shown"], int]


def _means(options: FillOptions) -> _Compute:
    """How a fill computes: by an engine, by a crew of workers, or alone."""
    context = crew_context(options.multiprocessing_context)
    if options.executor is not None:
        return partial(_by_engine, options.executor, options.shared_filesystem)
    workers = worker_count(options.num_workers)
    if options.timeout is not None:
        workers = max(1, workers)
    # A daemonic process, such as a DataLoader's worker, may not start others.
    if not workers or multiprocessing.current_process().daemon:
        return _alone
    return partial(_by_crew, workers, context)


def _alone(job: Job, appender: AnyAppender, presence: Presence, watch: _Shown) -> int:
    return Part(job, appender, watch).run()


def _by_crew(
    workers: int, context: Any, job: Job, appender: AnyAppender, presence: Presence, watch: _Shown
) -> int:
    claims = -(-len(presence.present) // appender.head.claim_size)

    def record(failure: Failure) -> None:
        appender.amend(failed=[failure.to_json()])

    crew = Crew(job, min(workers, claims), context, watch.look, record)
    crew.run()
    if crew.set_aside and job.options.on_error == "raise":
        reasons = "; ".join(failure.message for failure in crew.set_aside)
        raise SourceError(f"{job.path}: {reasons}; the others are kept, and filling again tries again")
    return crew.computed


def _by_engine(
    executor: Any, shared: bool, job: Job, appender: AnyAppender, presence: Presence, watch: _Shown
) -> int:
    return Cluster(executor, job, appender, presence, watch.look).run(shared)


class _Filling:
    """One call of `fill`."""

    def __init__(self, job: Job, compute: _Compute) -> None:
        self._job = job
        self._options = job.options
        self._compute = compute

    def run(self) -> int:
        appender = self._job.open()
        try:
            self._job.publisher(appender)  # the labels are looked at before anything is computed
            self._job = replace(self._job, since=appender.chain.cursor.seq)
            return self._fill(appender, Presence(appender, self._job.length, self._job.since))
        finally:
            appender.close()

    def _fill(self, appender: AnyAppender, presence: Presence) -> int:
        total, kept = len(presence.present), presence.count
        if not presence.missing.any():
            self._seal(appender, presence)
            return 0
        is_first = appender.join_fillers() if self._options.if_filling == "join" else not appender.has_fillers
        name = os.path.basename(self._job.path)
        with Progress(name, kept, total, self._options.progress, is_first) as progress:
            self._heed_others(appender, presence, progress)
            appender.join_fillers()
            watch = _Shown(progress, self._space(presence), appender, presence)
            try:
                compute = self._compute if appender.can_lock else _alone
                computed = compute(self._job, appender, presence, watch)
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(self._how_to_resume(presence, *stop.args[:1])) from None
        presence.update()
        check_length(self._job.path, appender.length, total)  # another process may have made it longer
        left = int(np.count_nonzero(presence.missing))
        if left:
            raise WorkerError(
                f"{self._job.path}: {left:,} of {total:,} samples were not computed; what was is kept, and "
                "filling again computes the rest"
            )
        self._seal(appender, presence)
        return computed

    def _heed_others(self, appender: AnyAppender, presence: Presence, progress: Progress) -> None:
        if self._options.if_filling == "fail" and appender.has_fillers:
            raise ArchiveLockedError(
                f'{self._job.path}: another process is filling it; wait for it, or use if_filling="join"'
            )
        while self._options.if_filling == "wait" and appender.has_fillers and presence.missing.any():
            time.sleep(_LOOK_SECONDS)
            progress.advance(presence.update())

    def _space(self, presence: Presence) -> SpaceCheck | None:
        missing = int(np.count_nonzero(presence.missing))
        return SpaceCheck(self._job.path, missing) if self._options.check_space else None

    def _seal(self, appender: AnyAppender, presence: Presence) -> None:
        if presence.complete:
            appender.seal()
            return
        failed = int(np.count_nonzero(presence.tried & ~presence.present & ~presence.absent))
        if failed:
            logger.warning(
                "%s: %s of %s samples failed; the dataset's `errors` tells why, filling again tries again",
                *(self._job.path, f"{failed:,}", f"{len(presence.present):,}"),
            )

    def _how_to_resume(self, presence: Presence, where: str = "") -> str:
        presence.update()
        total = len(presence.present)
        if temporary.is_temporary(self._job.path):
            return f"{f'interrupted {where}'.rstrip()}; {temporary.KEPT}"
        return (
            f"{f'interrupted {where}'.rstrip()}; {self._job.path} keeps {presence.count:,} of "
            f"{total:,} samples, the same call computes the rest"
        )


class _Shown(Watch):
    """What a fill in this process shows of itself."""

    def __init__(
        self, progress: Progress, space: SpaceCheck | None, appender: AnyAppender, presence: Presence
    ) -> None:
        self._progress = progress
        self._space = space
        self._appender = appender
        self._presence = presence
        self._began_at = appender.end_offset

    def done(self, nbytes: int) -> None:
        self._progress.advance(1, nbytes)

    def published(self, samples: int) -> None:
        self._note_space(samples, self._appender.end_offset - self._began_at)

    def found(self, samples: int) -> None:
        self._progress.advance(samples)

    def look(self) -> None:
        """Show what others have published, workers of this fill too."""
        before = self._appender.end_offset
        samples = self._presence.update()
        nbytes = self._appender.end_offset - before
        if samples:
            self._progress.advance(samples, nbytes)
            self._note_space(samples, nbytes)

    def _note_space(self, samples: int, nbytes: int) -> None:
        if self._space is not None and samples:
            space, self._space = self._space, None
            space.look(samples, nbytes)
