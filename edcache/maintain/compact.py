"""The same samples without what nobody reads any more."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from edcache import durable, format
from edcache.contents import Contents, merge, read_revision, read_table
from edcache.digests import OnProgress
from edcache.durable import File, local_path
from edcache.errors import ArchiveLockedError, CorruptRecordError, StaleArchiveError
from edcache.format import Header
from edcache.labels.tables import ChunkTable, Dictionary, Failure, Revision
from edcache.maintain.copying import Copier, Ints, NewArchive, check_free, chunk_count
from edcache.maintain.survey import Survey, sound_survey


@dataclass(frozen=True)
class CompactReport:
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

    Records are copied as they are stored, each checked by its crc32. What stays: uuid, options, length,
    labels, failures, dictionaries. What goes: old seals, outdated records, what power cuts took, torn
    tails, and the small chunks of a slow fill. All revisions of labels become one. Samples that are
    missing stay missing.

    Args:
        path: the archive. A symbolic link is followed.
        target: where the compact one goes; nothing may be there. None puts it in the place of the old
            one in one step, once it is on the disk; it is written as `path + ".edcache.new"` until then.
        on_progress: called with (bytes of records copied, bytes of records) now and then.
        allow_partial: seal what there is of an archive that is not sealed.
    Raises:
        PartialArchiveError: the archive is not sealed, so that samples may be missing.
        CorruptArchiveError: the archive is damaged; the text has the first problem.
        ArchiveLockedError: another process writes the archive, or is replacing it.
        ArchiveExistsError: something is at the target.
        StorageError: the disk is full or failing. After any error the archive is as it was.
    Cost: reads and writes every record once; needs the disk space of the new file beside the old one.
    Safety: whoever reads the archive keeps the old file, and sees the new one after refresh(). In place,
        appending waits while the last entries are taken over; a process that had the archive open for
        appending gets StaleArchiveError then. Killed at any point, the path leads to the old archive or to
        the new one; a leftover `.edcache.new` is begun anew by the next run.
    """
    tell = on_progress or (lambda done, total: None)
    durable.check_outlives(path if target is None else target)
    name = local_path(path) if target is not None else os.path.realpath(local_path(path))
    with closing(File.open(name, "r")) as file:
        if target is None:
            _refuse_fillers(file)
        survey = sound_survey(file, allow_partial)
        contents = survey.contents
        assert contents is not None
        if target is not None:
            return _copy_beside(file, survey, contents, local_path(target), tell)
        if _is_compact(survey, contents):
            report = _report(path, survey, contents, survey.size, len(survey.chain.chunks))
            return replace(report, rewritten=False)
        # Locks need write access.
        with closing(File.open(name, "a")) as old:
            if old.identity() != file.identity():
                raise _replaced(name)
            report = _copy_in_place(old, survey, contents, tell)
            return replace(report, path=os.fspath(path))


def _is_compact(survey: Survey, contents: Contents) -> bool:
    """Whether nothing would be gained: no dead bytes, and less than twice the entries that there must be."""
    needed = chunk_count(contents.index.records.nbytes)
    has_few = len(survey.chain.chunks) < 2 * max(1, needed) and len(survey.chain.revisions) <= 1
    return survey.seal is not None and not survey.dead.total and has_few


class _Compaction:
    """One archive on its way into a new file."""

    def __init__(
        self, file: File, survey: Survey, contents: Contents, new: NewArchive, tell: OnProgress
    ) -> None:
        self._file, self._survey, self._contents, self._new = file, survey, contents, new
        self._tell = tell
        self._surveyed = survey.chain.cursor.offset
        self._reading, self._copied = contents, list[Ints]()
        self._done, self._total = 0, int(contents.index.records.nbytes.sum())
        self._copier = Copier(file, new.appender, self._advance, self._refuse)

    def run(self) -> None:
        """Copy what the survey found."""
        self._tell(0, self._total)
        self._copier.copy_dictionaries(self._contents.index.dictionaries)
        self._copy(self._contents)

    def catch_up(self) -> None:
        """Copy what others have appended since; they must wait while this runs.

        Raises:
            ArchiveLockedError: one of them has written down what a power cut took.
        """
        chain = self._survey.chain
        first, lost = chain.cursor.seq, set(chain.lost)
        chain.extend(self._file.pread, self._file.size())
        if chain.lost != lost:
            raise ArchiveLockedError(
                f"{self._file.path}: another process has given up samples in it meanwhile; compact it again"
            )
        chunks = [header for header in chain.chunks if header.seq >= first]
        if chunks:
            self._copier.copy_dictionaries(
                Dictionary(d.payload_offset, d.table_nbytes, d.table_crc) for d in chain.dictionaries
            )
            self._copy(merge(chunks, self._table, [], None, [], self._file.path))

    def finish(self) -> None:
        """Write down the length, and the failures of samples that have no record still."""
        chain, out = self._survey.chain, self._new.appender
        changes: dict[str, object] = {}
        if chain.length not in (None, out.length):
            changes["length"] = chain.length
        failures = self._failures()
        if failures:
            changes["failed"] = [failure.to_json() for failure in failures]
        if changes:
            out.amend(**changes)
        revision = self._revision()
        if revision is not None:
            out.revise(revision)

    def _revision(self) -> Revision | None:
        """What all revisions say, as one."""
        survey, contents = self._survey, self._contents
        if not survey.chain.revisions:
            return None
        revised = survey.revised
        if revised is None or survey.chain.cursor.offset != self._surveyed:
            contents = survey.chain.contents(self._sound_table)
            revised = survey.chain.revised(contents, self._sound_revision)
        return revised.folded(contents.index.records.index)

    def _sound_table(self, header: Header) -> ChunkTable | None:
        return None if header.seq in self._survey.chain.lost else self._table(header)

    def _sound_revision(self, header: Header) -> Revision | None:
        lost = header.seq in self._survey.chain.lost
        return None if lost else read_revision(self._file.pread, header, self._file.path)

    def _failures(self) -> list[Failure]:
        failures = [failure for _, failure in self._survey.chain.failures.values()]
        if not failures:
            return []
        index = np.array([failure.index for failure in failures])
        present = np.concatenate([np.empty(0, np.int64), *self._copied])
        kept = ~np.isin(index, present) & (index < max(self._survey.chain.end_index, self._length))
        return sorted(failure for failure, keep in zip(failures, kept, strict=True) if keep)

    @property
    def _length(self) -> int:
        return self._survey.chain.length or 0

    def _copy(self, contents: Contents) -> None:
        self._reading = contents
        index = contents.index.records.index
        self._copied.append(np.arange(contents.index.length) if index is None else index)
        self._copier.copy(contents)

    def _advance(self, nbytes: int) -> None:
        self._done = min(self._done + nbytes, self._total)
        self._tell(self._done, self._total)

    def _refuse(self, rows: Ints, why: str) -> None:
        records, row = self._reading.index.records, int(rows[0])
        index = row if records.index is None else int(records.index[row])
        path = self._file.path
        raise CorruptRecordError(
            f"{path}: record {index} at offset {records.offset[row]:,} {why}; "
            f'run "edcache repair {path} -o NEW"'
        )

    def _table(self, header: Header) -> ChunkTable:
        return read_table(self._file.pread, header, self._file.path)


def _copy_beside(
    file: File, survey: Survey, contents: Contents, target: str, tell: OnProgress
) -> CompactReport:
    check_free(target)
    with NewArchive(target, survey.head, like=file) as new:
        compaction = _Compaction(file, survey, contents, new, tell)
        compaction.run()
        compaction.finish()
        new.publish(replace=False)
    return _report(target, survey, contents, new.nbytes, len(new.appender.chain.chunks))


def _copy_in_place(file: File, survey: Survey, contents: Contents, tell: OnProgress) -> CompactReport:
    """Take the file's place; `file` is open for writing, as locks need."""
    _refuse_fillers(file)
    with NewArchive(file.path, survey.head, like=file) as new:
        compaction = _Compaction(file, survey, contents, new, tell)
        compaction.run()
        # From here on nobody appends to what is about to lose its name. Who waits for this lock finds
        # another file at the path then, and says so.
        with file.locked(format.LOCK_APPEND):
            _refuse_fillers(file)
            if not file.is_named():
                raise _replaced(file.path)
            compaction.catch_up()
            compaction.finish()
            new.publish(replace=True)
    return _report(file.path, survey, contents, new.nbytes, len(new.appender.chain.chunks))


def _refuse_fillers(file: File) -> None:
    if file.is_locked(format.LOCK_FILLER, format.FILLERS):
        raise ArchiveLockedError(
            f"{file.path}: another process writes it; compact it when that has ended, or into another file"
        )


def _replaced(path: str) -> StaleArchiveError:
    return StaleArchiveError(f"{path}: the file was replaced since it was opened; compact it again")


def _report(
    path: str | os.PathLike[str], survey: Survey, contents: Contents, nbytes: int, chunks: int
) -> CompactReport:
    return CompactReport(
        path=os.fspath(path),
        samples=len(contents.index.records.offset),
        rewritten=True,
        dead_nbytes=max(0, survey.size - nbytes),
        nbytes_before=survey.size,
        nbytes=nbytes,
        chunks_before=len(survey.chain.chunks),
        chunks=chunks,
    )
