"""Fill an archive: alone, with workers, by an executor, or beside other processes that fill it already.

fill                  with a first sample for a new archive (recheck.py); then by the kind of the source:
    fill_stream         a source that can only be iterated (stream.py)
    _fill_and_seal      any other source
_filled_once          looks for missing samples (`loop.Presence`; with keys refill.py lists them first), has them
                      computed, and seals the archive, with keys in the order of the source:
    Crew.run            by worker processes, each with a loop of its own (crew.py)
    FillLoop.run        by this process with an engine: itself, an executor or a device (loop.py, engine.py)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

from edcache import base, format, storage
from edcache.format import Head
from edcache.writer import refill, temporary
from edcache.writer.appender import Appender
from edcache.writer.crew import Crew, crew_size
from edcache.writer.engine import engine_of
from edcache.writer.job import Job, telling_kept
from edcache.writer.loop import FillLoop, Presence
from edcache.writer.match import check_length
from edcache.writer.recheck import check_before, with_first_sample
from edcache.writer.seal import seal
from edcache.writer.source import is_stream
from edcache.writer.stream import fill_stream

logger = logging.getLogger("edcache")

_LOOK_SECONDS = 0.2


def fill(job: Job, *, rebuild: bool = False) -> None:
    """Compute every sample of a source that the archive lacks, and seal it.

    Args:
        job: the task; `job.options` say how. Each task of an executor carries the source.
        rebuild: fill `path + ".edcache.new"` from nothing and put it in the place of `path` at the end;
            a process that has the old archive open keeps reading it. If several processes rebuild at once, one
            fills the new archive. The others wait for it, and open it.
    Raises:
        SourceError: the source raised, hung, or killed its workers; calling again continues there. Or workers end, and
            no sample is to blame.
        StaleCacheError: the archive has another length than the source.
        CodecError, LabelError: a sample cannot be stored, or makes no label column.
        StorageError: the disk is full.

    After any of these, everything computed before is published.
    """
    run = fill_stream if is_stream(job.source) else _fill_and_seal
    before = _head_of(job.path)
    if rebuild or before is None:
        job = with_first_sample(job)
    if rebuild:
        _rebuild(job, run, before)
    else:
        run(job)


def _rebuild(job: Job, run: Callable[[Job], None], before: Head | None) -> None:
    """Fill a new archive in the place of one. before: the head of the old one, as the call found it."""
    target = storage.followed(job.path)
    with temporary.replacing(target, _LOOK_SECONDS) as session:
        now = _head_of(target)
        if now is not None and now != before and _made_as(now, job):
            # The same call in another process built it while this one waited.
            storage.remove(session.path)
            return
        run(replace(job, path=session.path))
        if job.sync != "never":
            session.sync()  # a sealed one is synced already; one that lacks samples is not
        storage.replace(session.path, target)


def _made_as(one: Head, job: Job) -> bool:
    if one.fingerprint is None or job.head.fingerprint is None:
        return one.fingerprint is job.head.fingerprint
    return one.fingerprint == job.made_by(one.fingerprint)  # seconds differ


def _head_of(path: str) -> Head | None:
    """Read the head of the archive at a path; None if there is none."""
    try:
        with closing(storage.File.open(path, "r")) as file:
            return format.read_head(file.pread, path)[0]
    except (base.ArchiveNotFoundError, base.CorruptArchiveError):
        return None


def _fill_and_seal(job: Job) -> None:
    # An error of its own ends this fill. Another process may have noted failures meanwhile: a fill that skips errors,
    # or one from another source, as an import. This one tries such samples itself.
    while _filled_once(job) and job.options.on_error == "raise":
        pass


def _filled_once(job: Job) -> int:
    """Compute the missing samples, and seal the archive; return the number of samples that failed meanwhile."""
    with closing(job.open()) as appender:
        job, known, keyed = replace(job, since=appender.chain.cursor.number), None, job.keyed
        if keyed is not None:
            if refill.is_done(appender.chain, keyed):
                return 0
            job, known = refill.begun(job, keyed, appender)
        presence = Presence(appender, job)
        total = len(presence.state)
        if presence.count or (known is not None and known.places is not None):
            check_before(job, known)

        def count() -> int:
            with suppress(base.EdcacheError):  # the error that ends the fill may be of the archive
                presence.update()
            return presence.count

        if presence.missing:
            is_first = appender.claims.join_fillers()
            shown = base.Progress(job.name, job.options.progress, is_first=is_first)
            with shown.begin(presence.count, total) as progress, telling_kept(job, count, total):
                workers = crew_size(job, total)
                if workers and appender.file.can_lock:
                    Crew(job, workers, appender, partial(_show_published, appender, presence, progress)).run()
                else:
                    engine = engine_of(job)
                    if job.options.executor is not None:
                        from edcache.writer.cluster import Cluster

                        engine = Cluster(job, appender.head)
                    FillLoop(job, appender, presence, engine, progress.advance).run()
                presence.update()
                progress.failed = presence.failed
                if presence.missing:
                    text = f"{job.path}: {presence.missing:,} of {total:,} samples were not computed"
                    raise base.SourceError(text, path=job.path)
            if keyed is None:
                # Another process may have made it longer.
                check_length(job.path, appender.chain.length, job.length)
        # In the order of the source also without a sample that failed: else others that it repeats were absent.
        if keyed is not None and (job.maker or total < len(keyed)):
            seal(appender, find_order=partial(refill.order_of, job, keyed, appender, presence))
        elif presence.complete:
            seal(appender)
        if presence.failed and job.options.on_error != "raise":
            text = f"{job.path}: {presence.failed:,} of {total:,} {job.told_samples} failed"
            logger.warning("%s; the dataset's `errors` tells why, filling again tries again", text)
        return presence.failed


def _show_published(appender: Appender, presence: Presence, progress: base.Progress) -> None:
    """Show the samples that the workers of this fill, and others, have published."""
    before = appender.chain.cursor.offset
    if samples := presence.update():
        progress.advance(samples, appender.chain.cursor.offset - before)
