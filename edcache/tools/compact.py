"""The same samples without what nobody reads any more."""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial

from edcache import base, format, storage
from edcache.base import ArchiveLockedError, StaleArchiveError
from edcache.format import Contents, Revised
from edcache.reader import OnProgress
from edcache.storage import File, local_path
from edcache.tools.rewrite import RecordSelection, Rewrite, RewriteProgress, check_free, chunk_rows, rewriting
from edcache.tools.verify import Survey, sound_survey


@dataclass(frozen=True)
class CompactReport(base.Tabular):
    """What `compact` did.

    path: where the compact archive is. samples: those with a record. rewritten: False where there was
    nothing to gain, so that the file is as it was. dead_nbytes: bytes of the old file that are not in the
    new one; 0 where nothing was to gain. nbytes_before, nbytes, chunks_before, chunks: of old and new.
    """

    path: str
    samples: int
    rewritten: bool
    dead_nbytes: int
    nbytes_before: int
    nbytes: int
    chunks_before: int
    chunks: int


def compact(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
    *,
    allow_partial: bool = False,
) -> CompactReport:
    """Rewrite an archive with the newest record of every sample, in index order, and seal it.

    The records are copied without decoding them, and the crc32 of each is checked. The new archive has the
    same uuid, options, length, labels, failures and dictionaries. It does not have old seals, replaced
    records, incomplete ends, or the small chunks of a slow fill. All changes of labels become one. Samples
    that are missing stay missing.

    Args:
        path: the archive. A symbolic link is followed.
        target: the path of the new archive, which must not exist. None replaces the old archive in one step,
            after the new one is on the disk. Until then the new one is `path + ".edcache.new"`.
        on_progress: a function that is called with (bytes of records copied, bytes of records) now and then.
        allow_partial: True accepts an archive that is not sealed, and seals the samples that it has.
    Returns:
        A report with sizes and numbers of chunks, before and after.
    Raises:
        PartialArchiveError: the archive is not sealed, so samples may be missing.
        CorruptArchiveError: the archive is damaged; the message has the first problem.
        ArchiveLockedError: another process is writing or replacing the archive.
        ArchiveExistsError: the target exists.
        StorageError: the disk is full or fails. After any error the archive is unchanged.
    Cost: reads and writes every record once. The disk must have space for both files.
    Safety: open readers keep the old file, and see the new one after refresh(). Without a target, writers
        wait while the last entries are copied; a writer that had the archive open then gets
        StaleArchiveError. After a kill at any time, the path is the complete old archive or the complete new
        one. The next run replaces a `.edcache.new` that was left.
    """
    storage.check_outlives(path if target is None else target)
    name = local_path(path) if target is not None else os.path.realpath(local_path(path))
    with closing(File.open(name, "r")) as file:
        if target is None:
            _refuse_fillers(file)
        survey = sound_survey(file, allow_partial)
        if target is not None:
            destination = local_path(target)
            check_free(destination)
            return _report(destination, survey, _copied(file, survey, destination, on_progress))
        if _is_compact(survey):
            return _report(path, survey, None)
        # Locks need write access.
        with closing(File.open(name, "a")) as old:
            if old.identity() != file.identity():
                raise _replaced(name)
            _refuse_fillers(old)
            return _report(path, survey, _copied(old, survey, name, on_progress, in_place=True))


def _is_compact(survey: Survey) -> bool:
    """Whether nothing would be gained: no dead bytes, and less than twice the entries that there must be."""
    needed = sum(1 for _ in chunk_rows(survey.contents.index.records.nbytes))
    has_few = len(survey.chain.chunks) < 2 * max(1, needed) and len(survey.chain.revisions) <= 1
    return survey.seal is not None and not survey.dead.total and has_few


def _copied(
    file: File, survey: Survey, target: str, on_progress: OnProgress | None, in_place: bool = False
) -> Rewrite:
    contents, revised = survey.contents, survey.revised
    progress = RewriteProgress(on_progress, int(contents.index.records.nbytes.sum()))
    with rewriting(target, survey.head, file, progress) as new:
        new.copy(RecordSelection(file, contents))
        # In place nobody appends from here on to what is about to lose its name. Who waits for this lock
        # finds another file at the path then, and says so.
        with file.locked(format.LOCK_APPEND) if in_place else nullcontext():
            if in_place:
                _refuse_fillers(file)
                if not file.is_named():
                    raise _replaced(file.path)
                contents, revised = _caught_up(file, survey, new)
            revision = revised.folded(contents.index.records.index)
            length, origin = survey.chain.length, survey.chain.origin
            new.publish(length, contents.index.failures, revision, origin=origin, replace=in_place)
    return new


def _caught_up(file: File, survey: Survey, new: Rewrite) -> tuple[Contents, Revised]:
    """Copy what others have appended since the survey; they wait while this runs."""
    chain, pread, path = survey.chain, file.pread, file.path
    first, lost = chain.cursor.seq, set(chain.lost)
    chain.extend(pread, file.size())
    if chain.lost != lost:
        raise ArchiveLockedError(
            f"{path}: another process has given up samples in it meanwhile; compact it again"
        )
    table = partial(format.read_table, pread, where=path)
    chunks = [header for header in chain.chunks if header.seq >= first]
    if chunks:
        new.copy(RecordSelection(file, format.merge(chunks, table, chain.dictionaries, None, [], path)))
    if chain.cursor.seq == first or not (chain.failures or chain.revisions):
        return survey.contents, survey.revised
    contents = chain.contents(table)
    return contents, chain.revised(contents, partial(format.read_revision, pread, where=path))


def _refuse_fillers(file: File) -> None:
    if file.is_locked(format.LOCK_FILLER, format.FILLERS):
        raise ArchiveLockedError(
            f"{file.path}: another process writes it; compact it when that has ended, or into another file"
        )


def _replaced(path: str) -> StaleArchiveError:
    return StaleArchiveError(f"{path}: the file was replaced since it was opened; compact it again")


def _report(path: str | os.PathLike[str], survey: Survey, new: Rewrite | None) -> CompactReport:
    nbytes, chunks_before = survey.size if new is None else new.nbytes, len(survey.chain.chunks)
    return CompactReport(
        path=os.fspath(path),
        samples=len(survey.contents.index.records.offset),
        rewritten=new is not None,
        dead_nbytes=max(0, survey.size - nbytes),
        nbytes_before=survey.size,
        nbytes=nbytes,
        chunks_before=chunks_before,
        chunks=chunks_before if new is None else len(new.out.chain.chunks),
    )
