"""An archive in a file, open for appending."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Final, Literal

from edcache import format, storage
from edcache.base import CorruptArchiveError, StaleArchiveError, StorageError, Sync
from edcache.format import Revision, Seal
from edcache.storage import File
from edcache.writer.chunk import Chunk
from edcache.writer.log import Log
from edcache.writer.recovery import discard_abandoned, lacks_head, recover_log
from edcache.writer.store import AnyAppender

_MOST_REPLACED: Final = 20
# Of the bytes of its labels, what may be written behind a seal before it is made anew.
_MOST_BEHIND_SEAL: Final = 0.125


def retry_if_replaced(run: Callable[[], object], is_done: Callable[[], bool] = lambda: False) -> None:
    """Run something, and again while another process replaces the archive, unless it `is_done` then."""
    for _ in range(_MOST_REPLACED):
        with suppress(StaleArchiveError):
            run()
            return
        if is_done():
            return
    run()


class _Claims:
    """Locks on bytes far behind a file's data, which the kernel frees when a process ends."""

    def __init__(self, file: File) -> None:
        self._file = file

    @property
    def can_lock(self) -> bool:
        return self._file.can_lock

    @property
    def has_fillers(self) -> bool:
        return self._file.is_locked(format.LOCK_FILLER, format.FILLERS)

    def join_fillers(self) -> bool:
        is_first = not self.has_fillers
        # Of several that begin at once, one gets the first byte.
        if self._file.try_lock(format.LOCK_FILLER):
            return is_first
        own = os.getpid()
        for place in range(own, own + format.FILLERS):
            if self._file.try_lock(format.LOCK_FILLER + place % format.FILLERS):
                break
        return False

    def claim(self, number: int, most: int = 1) -> int:
        # The first alone: where another has it, as is mostly so near others, one call says so.
        if not self._file.try_lock(format.LOCK_CLAIM + number):
            return 0
        while most > 1 and not self._file.try_lock(format.LOCK_CLAIM + number, most):
            most //= 2
        return most

    def wait(self, number: int) -> None:
        self._file.lock(format.LOCK_CLAIM + number)

    def release(self, number: int, count: int = 1) -> None:
        self._file.unlock(format.LOCK_CLAIM + number, count)


class Appender(AnyAppender):
    """An archive in a file: each publication takes its append lock, and cuts the torn tail of who died."""

    _log: Log

    def __init__(self, log: Log) -> None:
        super().__init__(log, _Claims(log.file))
        self.path, self.head = log.file.path, log.head
        self._revision_types: dict[int, format.RevisionTypes] = {}

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        head: format.Head,
        *,
        mode: Literal["r+", "a", "x"],
        sync: Sync = "seal",
        begins_anew: Callable[[format.Head], bool] | None = None,
        joins: bool = False,
    ) -> Appender:
        """Open an archive, or make one with `head`; of two processes that do so at once, one's head stays.

        mode: as of `File.open`. begins_anew: whether an archive with another head gives way to a new
            one, where its first fill failed before its first sample and no process writes it.
        joins: whether others see from the start that this process writes it.
        """
        name = os.fspath(path)
        storage.make_parent(name)
        if begins_anew is not None:
            discard_abandoned(name, begins_anew)
        file = File.open(name, mode)
        try:
            with file.locked(format.LOCK_APPEND):
                if lacks_head(file, head):
                    # Not where it is empty: ext4 writes a file that was cut to nothing out when it is closed.
                    if file.size():
                        file.truncate(0)
                    file.pwrite(0, format.pack_head(head))
                    # Whatever sync= says: without its head no chunk is found again.
                    file.sync()
                    storage.sync_directory(os.path.dirname(name))
                log = Log(file, *format.read_head(file.pread, name), sync)
                recover_log(log)
                appender = cls(log)
                if joins:
                    appender.claims.join_fillers()
        except BaseException:
            file.close()
            raise
        return appender

    def append(self, chunk: Chunk, *, restores: bool = False) -> None:
        """See the base class."""
        with self._appending():
            if self._log.is_published(chunk):
                return
            records = chunk.records
            if chunk.appended:
                records = replace(records, index=records.samples - records.samples[0] + self.chain.end_index)
            types = self._joined_types(chunk.labels)
            format.check_types(types, self._revised_types(), self.path)
            table = replace(chunk, records=records).table(types)
            self._log.publish(
                format.KIND_CHUNK,
                [table, bytes(format.align(len(table), 64) - len(table)), chunk.data],
                chunk,
                samples=chunk.count,
                end_index=int(records.samples.max()) + 1,
                table_nbytes=len(table),
                table_crc=format.crc32(table),
            )
            self._label_types = self.chain.chunks[-1], types

    def append_dictionary(self, dictionary: bytes) -> None:
        """See the base class."""
        with self._appending():
            self._log.publish_whole(format.KIND_DICTIONARY, dictionary)
            self._log.sync()

    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries published so far that are whole, oldest first."""
        pread = self._log.file.pread
        payloads = ((pread(h.payload_offset, h.table_nbytes), h.table_crc) for h in self.chain.dictionaries)
        return [data for data, crc in payloads if format.crc32(data) == crc]

    def _publish_amendment(self, text: bytes) -> None:
        with self._appending():
            self._log.publish_whole(format.KIND_AMENDMENT, text)

    def revise(self, revision: Revision) -> None:
        """Publish a revision of labels, synced; an archive that was sealed is sealed again, or stays so.

        What others dropped before is left out; where nothing is left, nothing is published. LabelTypeError
        where a column does not go with what the archive has. After a StorageError all of it is there or none.
        """
        with self._appending():
            before, names = self._revised_types(), [name for name, _ in self.head.labels]
            length = max(self.chain.length or 0, self.chain.end_index)
            revision = format.settled(revision, names, before, length)
            if not (revision.labels.num_columns or revision.dropped):
                return
            types = format.RevisionTypes.of(revision)
            format.check_types(self.label_types(), [*before, types], self.path)
            seal, payload = self.chain.seal, format.pack_revision(revision)
            rows = {"samples": revision.labels.num_rows, "end_index": revision.end_index}
            if seal is not None and self._stays_sealed(seal, revision, len(payload)):
                self._log.publish_behind_seal(seal, payload, **rows)
            else:
                self._log.publish_whole(format.KIND_REVISION, payload, **rows)
                self._log.sync() if seal is None else self._log.seal()
            self._revision_types[self.chain.revisions[-1].seq] = types

    def _stays_sealed(self, seal: Seal, revision: Revision, nbytes: int) -> bool:
        """Whether a revision goes behind the seal: few bytes, and each column keeps the type that it has.

        Else it is sealed in: opening would read ever more of them, and tools that read labels.arrow never
        see them.
        """
        chain, header, log = self.chain, seal.labels, self._log
        # What was written since the seal, directories included, that it saved to write again.
        behind_nbytes = chain.cursor.offset - header.next + nbytes
        is_few = len(seal.revisions) < format.MAX_BEHIND_SEAL
        if not is_few or behind_nbytes > header.payload_nbytes * _MOST_BEHIND_SEAL:
            return False
        if header.samples != header.end_index:
            return False  # rows of records are not samples
        others = [log.revision(other) for other in seal.revisions]
        try:
            labels = format.sealed_labels(log.sound, header, self.path).revised([*others, revision])
        except CorruptArchiveError:
            return False
        tables_nbytes = sum(entry.table_nbytes for entry in (*chain.chunks, *chain.revisions))
        changed = map(labels.schema.field, revision.labels.column_names)
        return not any(format.may_be_large(field.type, tables_nbytes + nbytes) for field in changed)

    def _revised_types(self) -> list[format.RevisionTypes]:
        """Of the revisions published so far, in order; each is read once."""
        for header in self.chain.revisions:
            if header.seq not in self._revision_types:
                self._revision_types[header.seq] = format.RevisionTypes.of(self._log.revision(header))
        return [self._revision_types[header.seq] for header in self.chain.revisions]

    def seal(self) -> None:
        """See the base class; reads every chunk's table, writes 4 to 12 bytes a sample plus its labels."""
        with self._appending():
            if self.chain.seal is None:
                self._log.seal()

    def check_tables(self) -> None:
        """Read the tables that `seal` will read; raises CorruptArchiveError where one is damaged."""
        self._revised_types()
        for header in self.chain.chunks:
            self._log.table(header)

    def move(self, target: str) -> None:
        """Give the archive another path, in the place of what is there; see `storage.move`."""
        storage.move(self._log.file, target)
        self.path = target

    def _appending(self) -> AbstractContextManager[None]:
        super().check_usable()
        self.check_usable()
        return self._log.appending()

    def check_usable(self) -> None:
        """Raise ArchiveClosedError after close() or in a forked child, StorageError after a failed sync."""
        log = self._log
        if log.file.closed:  # also in a forked child, of which no system call need say so
            super().check_usable()
        if log.failed:
            raise StorageError(f"{self.path}: {log.failed}; open it again, which checks what is there")

    def _is_closed(self) -> bool:
        return self._log.file.closed

    def close(self) -> None:
        """See the base class; StorageError where sync= is a number, and the last could not be synced."""
        try:
            if not self.closed and self._pid == os.getpid() and not self._log.failed:
                self._log.finish()
        finally:
            self._log.file.close()
