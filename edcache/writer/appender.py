"""The archive open for appending: lock, catch up, cut a torn tail, publish, seal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import durable, format
from edcache.contents import Contents, merge, payload_crc, read_amendment, read_table
from edcache.durable import File
from edcache.errors import ArchiveClosedError, CorruptArchiveError, EdcacheError, OptionError, StorageError
from edcache.format import PAGE, Cursor, Head, Header
from edcache.labels.columns import check_compatible
from edcache.labels.tables import ChunkTable, pack_chunk_table, pack_index, pack_labels
from edcache.writer.chunk import Chunk

SYNC_CHOICES = ("never", "seal", "chunk")


class Appender:
    """An archive open for appending by this process.

    Any number of processes may hold one on the same file; each publication takes the file's append
    lock, first takes in what others published, and cuts the torn tail of one that died. Nothing
    that was ever published is written again.

    Attributes:
        head: what the archive says about itself. path: as given.
        end_index: one more than the largest sample index published so far.
        length: samples of the dataset, where the head or an amendment says it, else None.
        damaged: chunks whose payload was lost in a power cut; their samples count as missing.
    """

    def __init__(self, file: File, head: Head, cursor: Cursor, sync: str) -> None:
        if sync not in SYNC_CHOICES:
            raise OptionError(f"sync={sync!r}; choose one of {', '.join(map(repr, SYNC_CHOICES))}")
        self.path = file.path
        self.head = head
        self.end_index = 0
        self.length = head.length
        self.damaged: set[int] = set()
        self._file = file
        self._pid = os.getpid()
        self._sync = sync
        self._failed: str | None = None
        self._first = cursor
        self._cursor = cursor
        self._listed: list[Header] = []
        self._seal: tuple[Header, Header] | None = None
        self._durable = 0
        self._label_schema: Any | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str], head: Head, *, create: bool, sync: str = "seal") -> Appender:
        """Open an archive, or make one with `head` where there is none yet.

        Args:
            head: used only when the file is new (or was never finished being created).
            create: True: the path must not exist. False: continue what is there, or make it.
        Raises:
            ArchiveExistsError, NotAnArchiveError, CorruptArchiveError, StorageError.
        Safety: two processes that create one path at once end up with one head.
        """
        name = os.fspath(path)
        durable.make_parent(name)
        file = File.open(name, "x" if create else "a")
        try:
            with file.locked(format.LOCK_APPEND):
                if _never_created(file):
                    file.truncate(0)
                    file.pwrite(0, format.pack_head(head))
                found, cursor = format.read_head(file.pread, name)
                appender = cls(file, found, cursor, sync)
                appender._take_in()
                if appender._seal is None and not durable.written_since_boot(file):
                    appender._find_damage()
        except BaseException:
            file.close()
            raise
        return appender

    @property
    def sealed(self) -> bool:
        """Whether a seal was the last thing in the chain when it was last looked at."""
        return self._seal is not None

    @property
    def chunks(self) -> list[Header]:
        """The chunks taken in so far, in chain order, but for the damaged ones."""
        chunks = [h for h in self._listed if h.kind == format.KIND_CHUNK]
        return [h for h in chunks if h.seq not in self.damaged]

    def catch_up(self) -> None:
        """Take in what others published since; reads headers only and takes no lock."""
        self._check_usable()
        self._take_in()

    def contents(self) -> Contents:
        """Where every sample lies, and its labels, as far as taken in. Reads every chunk's table."""
        self._check_usable()
        return merge(self.chunks, self._table, self._dictionaries(), self.length, self.path)

    def indices_of(self, chunks: Iterable[Header]) -> npt.NDArray[np.int64]:
        """The sample indices in these chunks, in their order: int64 [n], a copy; reads their tables."""
        tables = [self._table(header).records.index for header in chunks]
        found = [index for index in tables if index is not None]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def append(self, chunk: Chunk) -> Header:
        """Publish a chunk: afterwards every reader that looks finds it, whatever becomes of this process.

        Raises:
            LabelTypeError: its label columns do not go with those of the archive.
            StorageError: nothing of the chunk was published, what was there before still is.
        """
        with self._appending():
            self._label_schema = self._labels_with(chunk)
            records = chunk.records
            assert records.index is not None
            if chunk.appended:
                records = replace(records, index=records.index - records.index[0] + self.end_index)
            assert records.index is not None
            table = pack_chunk_table(ChunkTable(records, chunk.labels, chunk.schemas))
            return self._publish(
                format.KIND_CHUNK,
                [table, bytes(format.align(len(table), 64) - len(table)), chunk.data],
                samples=chunk.count,
                end_index=int(records.index.max()) + 1,
                table_nbytes=len(table),
                table_crc=format.crc32(table),
            )

    def append_dictionary(self, dictionary: bytes) -> None:
        """Publish a compression dictionary; records compressed with it may follow."""
        with self._appending():
            self._publish_whole(format.KIND_DICTIONARY, dictionary)

    def amend(self, **changes: object) -> None:
        """Revise what the head said; so far that is `length`."""
        text = json.dumps(changes, ensure_ascii=True).encode("ascii")
        with self._appending():
            self._publish_whole(format.KIND_AMENDMENT, text)

    def _publish_whole(self, kind: int, payload: bytes) -> Header:
        crc = format.crc32(payload)
        return self._publish(kind, [payload], table_nbytes=len(payload), table_crc=crc)

    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries published so far, oldest first."""
        found = []
        for header in self._dictionaries():
            data = self._file.pread(header.payload_offset, header.table_nbytes)
            if format.crc32(data) != header.table_crc:
                raise CorruptArchiveError(
                    f"{self.path}: the dictionary at offset {header.offset:,} fails its crc32"
                )
            found.append(data)
        return found

    def seal(self) -> None:
        """Write index, labels and zip directory, unless the archive already ends with them.

        Cost: reads every chunk's table; writes about 30 bytes a sample plus its labels.
        """
        with self._appending():
            if self._seal is not None:
                return
            self._write_seal(self.contents())

    def claim(self, number: int) -> bool:
        """Lock claim `number` of a fill if nobody else holds it; says whether it did."""
        self._check_usable()
        return self._file.try_lock(format.LOCK_CLAIM + number)

    def wait_claim(self, number: int) -> None:
        """Lock claim `number`, waiting until its holder publishes or dies."""
        self._check_usable()
        self._file.lock(format.LOCK_CLAIM + number)

    def release(self, number: int) -> None:
        """Let go of a claim."""
        self._file.unlock(format.LOCK_CLAIM + number)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._file.fd < 0

    def close(self) -> None:
        """Close the file without sealing; idempotent."""
        self._file.close()

    # --- the chain, as far as this process has seen it ---

    def _take_in(self) -> None:
        pread, size = self._file.pread, self._file.size()
        for header in format.walk(pread, size, self.head.uuid, self._cursor):
            self._note(header)

    def _note(self, header: Header) -> None:
        if header.kind == format.KIND_INDEX:
            self._pending_index = header
        elif header.kind == format.KIND_LABELS:
            self._seal = (self._pending_index, header)
        else:
            self._seal = None
            self._listed.append(header)
            self.end_index = max(self.end_index, header.end_index)
            if header.kind == format.KIND_AMENDMENT:
                self._read_amendment(header)
        self._durable = max(self._durable, header.durable)
        self._cursor = format.after(header)

    def _read_amendment(self, header: Header) -> None:
        self.length = read_amendment(self._file.pread, header, self.path).get("length", self.length)

    def _find_damage(self) -> None:
        """Samples whose bytes a power cut took count as missing; those synced before are not read."""
        for header in self._listed:
            unsynced = header.payload_end > self._durable
            if unsynced and payload_crc(self._file.pread, header) != header.payload_crc:
                self.damaged.add(header.seq)

    def _table(self, header: Header) -> ChunkTable:
        return read_table(self._file.pread, header, self.path)

    def _dictionaries(self) -> list[Header]:
        return [h for h in self._listed if h.kind == format.KIND_DICTIONARY]

    def _labels_with(self, chunk: Chunk) -> Any:
        if self._label_schema is None and self.chunks:
            last = self._table(self.chunks[-1])
            self._label_schema = last.labels.schema
        if self._label_schema is None:
            return chunk.labels.schema
        return check_compatible(self._label_schema, chunk.labels.schema)

    # --- publication ---

    @contextmanager
    def _appending(self) -> Iterator[None]:
        self._check_usable()
        with self._file.locked(format.LOCK_APPEND):
            self._take_in()
            self._cut_torn_tail()
            yield

    def _check_usable(self) -> None:
        if self._file.fd < 0:
            raise ArchiveClosedError(f"{self.path}: closed; open it again to append")
        if self._pid != os.getpid():
            # The description, and so every lock on it, is shared with the parent.
            raise ArchiveClosedError(
                f"{self.path}: opened for appending by process {self._pid}, used in its child "
                f"{os.getpid()}; open it again in the child"
            )
        if self._failed:
            raise StorageError(f"{self.path}: {self._failed}; open it again, which checks what is there")

    def _cut_torn_tail(self) -> None:
        end = self._cursor.offset if self._seal is None else self._seal_end()
        if self._file.size() > end:
            self._file.truncate(end)

    def _seal_end(self) -> int:
        assert self._seal is not None
        return self._seal[1].payload_end + len(self._directory(*self._seal))

    def _publish(self, kind: int, parts: list[Any], **fields: Any) -> Header:
        """Write an entry at the end of the chain: payload first, header last."""
        cursor = self._cursor
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
            durable=self._durable,
            **fields,
        )
        self._write(header, parts)
        self._note(header)
        return header

    def _write(self, header: Header, parts: list[Any]) -> None:
        try:
            position = header.payload_offset
            for part in parts:
                self._file.pwrite(position, part)
                position += memoryview(part).nbytes
            self._file.pwrite(header.offset, format.pack_header(header))
        except StorageError:
            self._give_back_space(header.offset)
            raise
        if self._sync == "chunk":
            self._synced()
            self._durable = header.next

    def _give_back_space(self, size: int) -> None:
        # The write's own error is the one to report, and the next append cuts the tail anyway.
        with suppress(StorageError):
            self._file.truncate(size)

    def _synced(self) -> None:
        try:
            self._file.sync()
        except StorageError:
            self._failed = "a sync failed, so what was written since the last one is in doubt"
            raise

    def _directory(self, index: Header, labels: Header) -> bytes:
        before = [h for h in self._listed if h.offset < index.offset and h.seq not in self.damaged]
        return format.pack_directory([self._head_header(), *before, index, labels], labels.payload_end)

    def _head_header(self) -> Header:
        found = format.parse_header(self._file.pread(0, format.MAX_HEADER_NBYTES))
        if found is None:
            raise CorruptArchiveError(f"{self.path}: the head at offset 0 changed while it was open")
        return found

    def _write_seal(self, contents: Contents) -> None:
        index_bytes, labels_bytes = pack_index(contents.index), pack_labels(contents.labels)
        rows, length = len(contents.index.records.offset), contents.index.length
        cursor, uuid = self._cursor, self.head.uuid

        def header(kind: int, data: memoryview) -> Header:
            crc = format.crc32(data)
            return Header(
                kind,
                uuid,
                cursor.seq,
                cursor.offset,
                cursor.link,
                len(data),
                crc,
                samples=rows,
                end_index=length,
                table_nbytes=len(data),
                table_crc=crc,
                durable=self._durable,
            )

        index, labels, directory = format.seal_headers(
            header(format.KIND_INDEX, index_bytes),
            header(format.KIND_LABELS, labels_bytes),
            [self._head_header(), *(h for h in self._listed if h.seq not in self.damaged)],
        )
        try:
            self._file.pwrite(index.payload_offset, index_bytes)
            self._file.pwrite(labels.payload_offset, labels_bytes)
            self._file.pwrite(labels.payload_end, directory)
            self._file.pwrite(labels.offset, format.pack_header(labels))
            if self._sync != "never":
                self._synced()
            self._file.pwrite(index.offset, format.pack_header(index))
        except StorageError:
            self._give_back_space(cursor.offset)
            raise
        if self._sync != "never":
            self._synced()
            durable.sync_directory(os.path.dirname(self.path))
        self._note(index)
        self._note(labels)


def never_created(path: str) -> bool:
    """Whether a path holds at most what a creator left that died within the head."""
    file = File.open(path, "r")
    try:
        return _never_created(file)
    finally:
        file.close()


def _never_created(file: File) -> bool:
    """Whether the file holds at most a head that its creator did not live to finish."""
    size = file.size()
    if size == 0:
        return True
    if size > PAGE:
        return False
    data = file.pread(0, PAGE)
    if data[:4] not in (b"PK\x03\x04", bytes(4)) or (b"edcache.json" not in data[:64] and data.strip(b"\0")):
        return False
    try:
        format.read_head(file.pread, file.path)
    except EdcacheError:
        return True
    return False
