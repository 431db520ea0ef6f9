"""The archive open for appending: lock, catch up, cut a torn tail, publish, seal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import durable, format
from edcache.contents import Chain, Contents, find_headers, read_revision, read_table
from edcache.durable import File
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    FormatVersionError,
    NotAnArchiveError,
    StaleArchiveError,
    StorageError,
)
from edcache.format import PAGE, Cursor, Head, Header
from edcache.labels.revisions import RevisionTypes, check_types, settled
from edcache.labels.tables import (
    ChunkTable,
    Revision,
    pack_chunk_table,
    pack_index,
    pack_labels,
    pack_revision,
)
from edcache.labels.types import LabelTypes
from edcache.options import Sync
from edcache.writer.anywhere import Appending
from edcache.writer.chunk import Chunk
from edcache.writer.syncing import TimedSync

# How often a call begins again because another process has compacted the archive that it had open.
MOST_REPLACED: Final = 20


class Appender(Appending):
    """An archive open for appending by this process.

    Any number of processes may hold one on the same file; each publication takes the file's append
    lock, first takes in what others published, and cuts the torn tail of one that died. Nothing
    that was ever published is written again.

    Attributes:
        head: what the archive says about itself. path: as given. chain: its entries, as far as seen.
    """

    def __init__(self, file: File, head: Head, cursor: Cursor, sync: Sync) -> None:
        super().__init__()
        self.path = file.path
        self.head = head
        self._chain = Chain(head, cursor, file.path)
        self._file = file
        self._sync = sync
        self._timed = TimedSync(sync, self._sync_file) if isinstance(sync, int | float) else None
        self._failed: str | None = None
        self._intended: tuple[Chunk, Header] | None = None
        self._label_types: tuple[int, LabelTypes] | None = None
        self._revision_types: dict[int, RevisionTypes] = {}

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        head: Head,
        *,
        create: bool,
        sync: Sync = "seal",
        begins_anew: Callable[[Head], bool] | None = None,
        joins: bool = False,
    ) -> Appender:
        """Open an archive, or make one with `head` where there is none yet.

        Args:
            head: used only when the file is new (or was never finished being created).
            create: True: the path must not exist. False: continue what is there, or make it.
            begins_anew: whether an archive with another head gives way to a new one, where its first fill
                failed before its first sample and no process writes it.
            joins: whether others see from the start that this process writes it; see `join_fillers`.
        Raises:
            ArchiveExistsError, NotAnArchiveError, CorruptArchiveError, StorageError.
        Safety: two processes that create one path at once end up with one head.
        """
        name = os.fspath(path)
        durable.make_parent(name)
        if begins_anew is not None:
            _discard_abandoned(name, begins_anew)
        file = File.open(name, "x" if create else "a")
        try:
            with file.locked(format.LOCK_APPEND):
                if _never_created(file, head):
                    # Not where it is empty: ext4 writes a file that was cut to nothing out when it is closed.
                    if file.size():
                        file.truncate(0)
                    file.pwrite(0, format.pack_head(head))
                    # Whatever sync= says: without its head no chunk is found again.
                    file.sync()
                    durable.sync_directory(os.path.dirname(name))
                found, cursor = format.read_head(file.pread, name)
                appender = cls(file, found, cursor, sync)
                appender._recover()
                if joins:
                    appender.join_fillers()
        except BaseException:
            file.close()
            raise
        return appender

    @property
    def chain(self) -> Chain:
        """Its entries, as far as seen."""
        return self._chain

    def catch_up(self) -> None:
        """Take in what others published since; reads headers only and takes no lock."""
        self.check_usable()
        self._take_in()

    def indices_of(self, chunks: Iterable[Header]) -> npt.NDArray[np.int64]:
        """The sample indices in these chunks, in their order: int64 [n], a copy; reads their tables."""
        tables = [self._table(header).records.index for header in chunks]
        found = [index for index in tables if index is not None]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def held(self, indices: Sequence[int]) -> set[int]:
        """Which of some samples that were published are there still: all of them, in a file."""
        return set(indices)

    def append(self, chunk: Chunk) -> None:
        """Publish a chunk: afterwards every reader that looks finds it, whatever becomes of this process.

        Raises:
            LabelTypeError: its label columns do not go with those of the archive.
            StorageError: nothing of the chunk was published, what was there before still is.
        After any exception the same chunk may be given again: it is published once.
        """
        with self._appending():
            if self._is_published(chunk):
                return
            records = chunk.records
            assert records.index is not None
            if chunk.appended:
                records = replace(records, index=records.index - records.index[0] + self.end_index)
            assert records.index is not None
            types, known = LabelTypes.of(chunk.labels), self.label_types()
            if known is not None:
                types = known.joined(types, self.path)
            check_types(types, self._revised_types(), self.path)
            stream = pack_chunk_table(
                ChunkTable(records, chunk.labels, chunk.schemas, types, len(chunk.data))
            )
            table = b"".join([stream, chunk.block_crcs])
            self._publish(
                format.KIND_CHUNK,
                [table, bytes(format.align(len(table), 64) - len(table)), chunk.data],
                chunk,
                samples=chunk.count,
                end_index=int(records.index.max()) + 1,
                table_nbytes=len(table),
                table_crc=format.crc32(table),
            )
            self._label_types = self.chain.cursor.seq - 1, types

    def keep(self, chunk: Chunk) -> None:
        """`append`, for a cache whose samples others may evict: from a file nobody does."""
        self.append(chunk)

    def _is_published(self, chunk: Chunk) -> bool:
        """Whether an earlier call was interrupted between writing this chunk's header and saying so."""
        if self._intended is None or self._intended[0] is not chunk:
            return False
        return self._intended[1] in self.chain.entries

    def append_dictionary(self, dictionary: bytes) -> None:
        """Publish a compression dictionary, synced, since the records of every later chunk need it."""
        with self._appending():
            self._publish_whole(format.KIND_DICTIONARY, dictionary)
            if self._sync != "never":
                self._sync_file()

    def amend(self, **changes: object) -> None:
        """Revise what the head said: `length`, or entries that are `lost`."""
        text = json.dumps(changes, ensure_ascii=True).encode("ascii")
        with self._appending():
            self._publish_whole(format.KIND_AMENDMENT, text)

    def _publish_whole(
        self, kind: int, payload: bytes | memoryview, *, at_once: bool = False, **fields: int
    ) -> None:
        fields |= {"table_nbytes": len(payload), "table_crc": format.crc32(payload)}
        self._publish(kind, [payload], None, at_once=at_once, **fields)

    def revise(self, revision: Revision) -> None:
        """Publish a revision of labels, synced; an archive that was sealed is sealed again.

        What it drops and others dropped before is left out; where nothing is left, nothing is published.

        Raises:
            LabelTypeError: a column does not go with what the archive has of it.
            StorageError: nothing of the revision was published, or all of it, and it is not sealed.
        """
        with self._appending():
            before, told = self._revised_types(), [name for name, _ in self.head.labels]
            length = max(self.chain.length or 0, self.end_index)
            revision = settled(revision, told, before, length)
            if not (revision.labels.num_columns or revision.dropped):
                return
            types = RevisionTypes.of(revision)
            check_types(self.label_types(), [*before, types], self.path)
            was_sealed = self.chain.seal is not None
            stream = pack_revision(revision)
            rows = {"samples": revision.labels.num_rows, "end_index": revision.end_index}
            self._publish_whole(format.KIND_REVISION, stream, **rows)
            self._revision_types[self.chain.cursor.seq - 1] = types
            if was_sealed:
                self._write_seal(self.chain.contents(self._table))
            elif self._sync != "never":
                self._sync_file()

    def _revised_types(self) -> list[RevisionTypes]:
        """Of the revisions published so far, in order; each is read once."""
        for header in self.chain.revisions:
            if header.seq not in self._revision_types:
                self._revision_types[header.seq] = RevisionTypes.of(self._revision(header))
        return [self._revision_types[header.seq] for header in self.chain.revisions]

    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries published so far that are whole, oldest first."""
        headers = self.chain.dictionaries
        found = [(self._file.pread(h.payload_offset, h.table_nbytes), h.table_crc) for h in headers]
        return [data for data, crc in found if format.crc32(data) == crc]

    def label_types(self) -> LabelTypes | None:
        """The types of the archive's label columns; None where it has no chunk yet."""
        chunks = self.chain.chunks
        if not chunks:
            return None
        # The newest chunk knows the types of all before it, whoever wrote them.
        if self._label_types is None or self._label_types[0] != chunks[-1].seq:
            self._label_types = chunks[-1].seq, self._table(chunks[-1]).label_types
        return self._label_types[1]

    def seal(self) -> None:
        """Write index, labels and zip directory, unless the archive already ends with them.

        Cost: reads every chunk's table; writes about 30 bytes a sample plus its labels.
        """
        with self._appending():
            if self.chain.seal is None:
                self._write_seal(self.chain.contents(self._table))

    def check_tables(self) -> None:
        """Read the tables that `seal` will read.

        Raises:
            CorruptArchiveError: one is damaged.
        """
        self._revised_types()
        for header in self.chain.chunks:
            self._table(header)

    def join_fillers(self) -> bool:
        """Let others see, until `close`, that this process writes the archive; says whether no other did."""
        is_first = not self.has_fillers
        # Of several that begin at once, one gets the first byte.
        if self._file.try_lock(format.LOCK_FILLER):
            return is_first
        own = os.getpid()
        for place in range(own, own + format.FILLERS):
            if self._file.try_lock(format.LOCK_FILLER + place % format.FILLERS):
                break
        return False

    @property
    def can_lock(self) -> bool:
        """Whether other processes can share the work; False once the file system has refused a lock."""
        return self._file.can_lock

    @property
    def has_fillers(self) -> bool:
        """Whether another process fills the archive; False where the system cannot tell."""
        self.check_usable()
        return self._file.is_locked(format.LOCK_FILLER, format.FILLERS)

    def claim(self, number: int) -> bool:
        """Lock claim `number` of a fill if nobody else holds it; says whether it did."""
        self.check_usable()
        return self._file.try_lock(format.LOCK_CLAIM + number)

    def wait_claim(self, number: int) -> None:
        """Lock claim `number`, waiting until its holder publishes or dies."""
        self.check_usable()
        self._file.lock(format.LOCK_CLAIM + number)

    def release(self, number: int) -> None:
        """Let go of a claim."""
        self._file.unlock(format.LOCK_CLAIM + number)

    def _is_closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        """Close the file without sealing; idempotent.

        Raises:
            StorageError: sync= is a number, and what was published last could not be synced.
        """
        try:
            if self._timed is not None and not self.closed and self._pid == os.getpid():
                self._timed.finish()
        finally:
            self._file.close()

    def move(self, target: str) -> None:
        """Give the archive another path, in the place of what is there; see `durable.move`."""
        durable.move(self._file, target)
        self.path = target

    # --- the chain, as far as this process has seen it ---

    def _take_in(self) -> None:
        self.chain.extend(self._file.pread, self._file.size())

    def _recover(self) -> None:
        """Take in what is there, and make it an archive that reads, whatever a crash left behind."""
        self._take_in()
        is_fresh = durable.written_since_boot(self._file)
        end, size = self._end(), self._file.size()
        if size > end:
            self._refuse_damage(is_fresh, end, size)
        if not is_fresh:
            self._give_up_lost()
        if size > end:
            # Behind a chain that a power cut broke there may be a seal still, which readers would believe.
            self._cut_torn_tail()

    def _refuse_damage(self, is_fresh: bool, end: int, size: int) -> None:
        """Tell damage, behind which entries stand that must not be cut off, from a torn tail.

        A kill leaves no whole entry behind a broken one, but the labels of a seal. A power cut may, where
        that entry does not say that everything before it was synced.

        Args:
            is_fresh: the file was last written since the machine started, so no power cut came after that.
            end: where the file ends when nothing is torn. size: where it does.
        Raises:
            CorruptArchiveError: "train.zip: no entry fits at offset 8,192, but chunks/00000002 follows ...".
        """
        if self.chain.gave_up_last:
            return
        for later in find_headers(self._file, end, size, self.head.uuid):
            is_behind = later.offset > end and later.kind != format.KIND_LABELS
            if is_behind and (is_fresh or later.durable > end):
                raise CorruptArchiveError(
                    f"{self.path}: no entry fits at offset {end:,}, but {later.name} follows at offset "
                    f'{later.offset:,}: it is damaged there; "edcache repair" keeps all that is sound'
                )

    def _give_up_lost(self) -> None:
        """Write down what a power cut took, so that everyone counts those samples as missing.

        In one write within one page, which no kill can leave half done, and before anything else is written:
        with a half, or with the torn tail cut first, the file would look as if written since the machine
        started, and the next writer would not look for losses. As the tail is not cut, what lies behind may
        be an entry that followed the very same amendment once, in a recovery that lost its power too; with a
        hash of it in the amendment, its link does not fit (tests/faults/test_crash_states.py).
        """
        lost = _few_ranges(sorted(self.chain.find_lost(self._file.pread)))
        if lost:
            behind = self._file.pread(self.chain.cursor.offset + PAGE, format.MAX_HEADER_NBYTES)
            said = {"lost": lost, "behind": f"{format.link_after(behind):016x}"}
            text = json.dumps(said, separators=(",", ":")).encode("ascii")
            assert len(text) <= PAGE - format.HEADER_NBYTES
            self._publish_whole(format.KIND_AMENDMENT, text, at_once=True)

    def _table(self, header: Header) -> ChunkTable:
        return read_table(self._file.pread, header, self.path)

    def _revision(self, header: Header) -> Revision:
        return read_revision(self._file.pread, header, self.path)

    # --- publication ---

    @contextmanager
    def _appending(self) -> Iterator[None]:
        self.check_usable()
        with self._file.locked(format.LOCK_APPEND):
            if not self._file.is_named():
                raise StaleArchiveError(
                    f"{self.path}: deleted, or another file has taken its place, while it was open for "
                    "appending; open it again"
                )
            self._take_in()
            self._cut_torn_tail()
            yield

    def check_usable(self) -> None:
        """Raise ArchiveClosedError after close() or in a forked child, StorageError after a failed sync."""
        super().check_usable()
        if self._failed:
            raise StorageError(f"{self.path}: {self._failed}; open it again, which checks what is there")

    def _cut_torn_tail(self) -> None:
        end = self._end()
        if self._file.size() > end:
            self._file.truncate(end)

    def _end(self) -> int:
        """Where the file ends when nothing is torn."""
        if self.chain.seal is None:
            return self.chain.cursor.offset
        return self.chain.seal[1].payload_end + len(self.chain.directory(self._file.pread, self.chain.seal))

    def _publish(
        self, kind: int, parts: list[Any], chunk: Chunk | None, *, at_once: bool = False, **fields: Any
    ) -> None:
        """Write an entry at the end of the chain: payload first, header last, or both by one call."""
        cursor = self.chain.cursor
        bare = Header(kind, self.head.uuid, cursor.seq, cursor.offset, cursor.link, 0, 0)
        nbytes = sum(memoryview(part).nbytes for part in parts)
        # The header is longer where 64-bit sizes are needed, so the padding follows from it.
        header_nbytes = replace(bare, payload_nbytes=nbytes).nbytes
        total = format.align(header_nbytes + nbytes, PAGE)
        parts = [*parts, bytes(total - header_nbytes - nbytes)]
        crc = 0
        for part in parts:
            crc = format.crc32(part, crc)
        header = replace(
            bare,
            payload_nbytes=total - header_nbytes,
            payload_crc=crc,
            next=cursor.offset + total,
            durable=self.chain.durable,
            **fields,
        )
        if chunk is not None:
            self._intended = chunk, header
        with self._giving_back_space():
            if at_once:
                self._file.pwrite(header.offset, b"".join([format.pack_header(header), *parts]))
            else:
                self._write_parts(header.payload_offset, parts)
                self._file.pwrite(header.offset, format.pack_header(header))
        self.chain.note(self._file.pread, header)
        if self._sync == "chunk":
            self._sync_file()
        elif self._sync != "never":
            self._file.write_back(header.offset, total)
        if self._timed is not None:
            self._timed.published()

    def _write_parts(self, position: int, parts: list[Any]) -> None:
        for part in parts:
            self._file.pwrite(position, part)
            position += memoryview(part).nbytes

    @contextmanager
    def _giving_back_space(self) -> Iterator[None]:
        end = self._end()
        try:
            yield
        except StorageError:
            # The write's own error is the one to report, and the next append cuts the tail anyway.
            with suppress(StorageError):
                self._file.truncate(end)
            raise

    def _sync_file(self) -> None:
        """Sync what the chain holds so far; the headers that follow say so."""
        end = self.chain.cursor.offset
        try:
            self._file.sync()
        except StorageError:
            self._failed = "a sync failed, so what was written since the last one is in doubt"
            raise
        self.chain.durable = max(end, self.chain.durable)

    def _write_seal(self, contents: Contents) -> None:
        revised = self.chain.revised(contents, self._revision)
        index_bytes = pack_index(contents.index._replace(labels=revised.columns))
        labels_bytes = pack_labels(revised.table)
        records = len(contents.index.records.offset)
        rows = max(records, revised.table.num_rows)
        length = contents.index.length
        index, labels, directory = format.seal_headers(
            self._seal_header(format.KIND_INDEX, index_bytes, records, length),
            self._seal_header(format.KIND_LABELS, labels_bytes, rows, length),
            [self.chain.head_header(self._file.pread), *self.chain.entries],
        )
        with self._giving_back_space():
            self._file.pwrite(index.payload_offset, index_bytes)
            self._file.pwrite(labels.payload_offset, labels_bytes)
            self._file.pwrite(labels.payload_end, directory)
            self._file.pwrite(labels.offset, format.pack_header(labels))
            if self._sync != "never":
                self._sync_file()
            self._file.pwrite(index.offset, format.pack_header(index))
        self.chain.note(self._file.pread, index)
        self.chain.note(self._file.pread, labels)
        if self._sync != "never":
            self._sync_file()

    def _seal_header(self, kind: int, data: memoryview, rows: int, length: int) -> Header:
        crc, cursor = format.crc32(data), self.chain.cursor
        # The index's header is written behind the seal's first sync, that of the labels before it.
        is_synced = kind == format.KIND_INDEX and self._sync != "never"
        return Header(
            kind,
            self.head.uuid,
            cursor.seq,
            cursor.offset,
            cursor.link,
            len(data),
            crc,
            samples=rows,
            end_index=length,
            table_nbytes=len(data),
            table_crc=crc,
            durable=cursor.offset if is_synced else self.chain.durable,
        )


_MOST_RANGES = 100  # as JSON they fit into one page behind a header


def _few_ranges(numbers: list[int]) -> list[list[int]]:
    """The ranges [first, last] that hold these numbers; where they are too many, others between them too."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    while len(ranges) > _MOST_RANGES:
        gaps = [after[0] - before[1] for before, after in pairwise(ranges)]
        k = gaps.index(min(gaps))
        ranges[k : k + 2] = [[ranges[k][0], ranges[k + 1][1]]]
    return ranges


_HEAD_PREFIX = format.pack_head(Head(bytes(16)))[: 30 + len("edcache.json")]
_CONSTANT = [*range(14), *range(26, len(_HEAD_PREFIX))]  # the rest is crc32 and sizes


def never_created(path: str) -> bool:
    """Whether a path holds at most what a creator left that died within the head."""
    file = File.open(path, "r")
    try:
        return _never_created(file)
    finally:
        file.close()


def _discard_abandoned(path: str, begins_anew: Callable[[Head], bool]) -> None:
    """Delete what a first fill left that failed before its first sample, where its head is to go.

    Deleted, not cut: who has it open finds that it lost its name.
    """
    with suppress(ArchiveNotFoundError):
        with closing(File.open(path, "r")) as file:
            if not _is_abandoned(file, begins_anew):
                return
        with closing(File.open(path, "r+")) as file, file.locked(format.LOCK_APPEND):
            if file.is_named() and _is_abandoned(file, begins_anew):
                durable.remove(path)


def _is_abandoned(file: File, begins_anew: Callable[[Head], bool]) -> bool:
    try:
        head, cursor = format.read_head(file.pread, file.path)
    except (NotAnArchiveError, CorruptArchiveError, FormatVersionError):
        return False  # opening it says so
    if not begins_anew(head) or file.is_locked(format.LOCK_FILLER, format.FILLERS):
        return False
    chain = Chain(head, cursor, file.path)
    chain.extend(file.pread, file.size())
    # What lies behind may be a chunk of which the header is damaged.
    holds_nothing = chain.holds_nothing and file.size() <= chain.cursor.offset
    # One that has grown is as long as its amendments say (tests/kit/model.py).
    return holds_nothing and begins_anew(replace(head, length=chain.length))


def recover(path: str) -> None:
    """Do to an archive what opening it for appending does, for one who reads before writing.

    Raises:
        CorruptArchiveError: it is damaged where nothing says that a power cut did it.
        StorageError: it cannot be written.
    """
    file = File.open(path, "a")
    try:
        with file.locked(format.LOCK_APPEND):
            Appender(file, *format.read_head(file.pread, path), "never")._recover()
    finally:
        file.close()


def _never_created(file: File, head: Head | None = None) -> bool:
    """Whether the file holds at most a head that its creator did not live to finish.

    Killed, it left the head's first bytes. After a power cut any of them may read as zero.

    Args:
        head: what is to be written there: more zeros than it has bytes are somebody else's file.
    """
    size = file.size()
    if size > format.MAX_HEAD_NBYTES:
        return False
    start = file.pread(0, min(size, PAGE))
    header = format.parse_header(start)
    if header is not None:
        if size != header.next:
            return size < header.next
        return format.crc32(file.pread(header.nbytes, size - header.nbytes)) != header.payload_crc
    if any(start[i] != _HEAD_PREFIX[i] for i in _CONSTANT if i < size):
        most = format.MAX_HEAD_NBYTES if head is None else len(format.pack_head(head))
        return size <= most and not file.pread(0, size).strip(b"\0")
    return size <= PAGE
