"""The chain of entries in a file, their publication at its end, and when they are brought to the disk.

Payload first, header last. What survives, whatever `sync=` is: after a crash of the process everything that
was published, and never other bytes than were written. After a power cut:

    sync=        an unsealed archive                              once `seal` returned
    "never"      any part may be missing, and is noticed          the same
    "seal"       the same                                         everything
    seconds      what was published before the last sync          everything
    "chunk"      everything that was published                    everything

With a number of seconds, the first publication that many seconds after the last sync is synced, and so is
what was published when the archive is closed.

tests/faults/test_filesystems.py and tests/faults/test_crash_states.py hold every line of this table.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from edcache import format
from edcache.base import StaleArchiveError, StorageError, Sync
from edcache.format import Chain, ChunkTable, Cursor, Extent, Head, Header, Revision, Seal, read_table
from edcache.storage import File


class Log:
    """The entries of an archive, as far as this process has seen them, and how others are added.

    Attributes:
        chain: the entries. failed: why nothing may be published any more; None while all is well.
    """

    def __init__(self, file: File, head: Head, cursor: Cursor, sync: Sync) -> None:
        self.file = file
        self.head = head
        self.chain = Chain(head, cursor, file.path)
        self.failed: str | None = None
        self._sync = sync
        self._synced = time.monotonic()
        self._has_unsynced = False

    def catch_up(self) -> None:
        """Take in what others published since; reads headers only and takes no lock."""
        self.chain.extend(self.file.pread, self.file.size())

    def table(self, header: Header) -> ChunkTable:
        """The table of a chunk."""
        return read_table(self.file.pread, header, self.file.path)

    def revision(self, header: Header) -> Revision:
        """The labels that an entry adds or drops."""
        return format.read_revision(self.file.pread, header, self.file.path)

    def sound(self, extents: Sequence[Extent]) -> list[memoryview | None]:
        """The bytes of extents of the file; None for one that fails its crc32."""
        each = [(memoryview(self.file.pread(at, nbytes)), crc) for at, nbytes, crc in extents]
        return [data if format.crc32(data) == crc else None for data, crc in each]

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Hold the append lock, with everything taken in that others published and no torn tail."""
        with self.file.locked(format.LOCK_APPEND):
            if not self.file.is_named():
                raise StaleArchiveError(
                    f"{self.file.path}: deleted, or another file has taken its place, while it was open for "
                    "appending; open it again",
                    path=self.file.path,
                )
            self.catch_up()
            self.cut_torn_tail()
            yield

    @property
    def end(self) -> int:
        """Where the file ends when nothing is torn."""
        seal = self.chain.seal
        if seal is None:
            return self.chain.cursor.offset
        return seal.directory_offset + len(self.chain.directory(self.file.pread, seal))

    def cut_torn_tail(self) -> None:
        """Cut off what a writer left that died."""
        end = self.end
        if self.file.size() > end:
            self.file.truncate(end)

    def publish_whole(
        self, kind: int, payload: bytes | memoryview, *, at_once: bool = False, **fields: int
    ) -> None:
        """Publish an entry that is nothing but a table."""
        fields |= {"table_nbytes": len(payload), "table_crc": format.crc32(payload)}
        self.publish(kind, [payload], at_once=at_once, **fields)

    def publish(
        self,
        kind: int,
        parts: list[Any],
        *,
        at_once: bool = False,
        max_bytes: int | None = None,
        **fields: Any,
    ) -> None:
        """Write an entry at the end of the chain: payload first, header last, or both by one call.

        max_bytes: StorageError with EFBIG if the file would grow larger.
        """
        cursor = self.chain.cursor
        bare = Header(kind, self.head.uuid, cursor.seq, cursor.offset, cursor.link, 0, 0)
        nbytes = sum(memoryview(part).nbytes for part in parts)
        # The header is longer where 64-bit sizes are needed, so the padding follows from it.
        header_nbytes = replace(bare, payload_nbytes=nbytes).nbytes
        total = format.align(header_nbytes + nbytes, format.PAGE)
        if max_bytes is not None and cursor.offset + total > max_bytes:
            error = StorageError(
                f"{self.file.path}: the archive would grow beyond max_bytes={max_bytes:,}",
                path=self.file.path,
            )
            error.errno = errno.EFBIG
            raise error
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
        with self._giving_back_space():
            if at_once:
                self.file.pwrite(header.offset, b"".join([format.pack_header(header), *parts]))
            else:
                self._write_parts(header.payload_offset, parts)
                self.file.pwrite(header.offset, format.pack_header(header))
        self.chain.note(self.file.pread, header)
        self._has_unsynced = True
        if self._sync == "chunk" or self._is_sync_due():
            self.sync()
        elif self._sync != "never":
            self.file.write_back(header.offset, total)

    def publish_behind_seal(self, seal: Seal, payload: memoryview, samples: int, end_index: int) -> None:
        """Publish a revision and, behind it, the directory with which the seal stays valid; synced."""
        chain, cursor, pread, crc = self.chain, self.chain.cursor, self.file.pread, format.crc32(payload)
        bare = Header(
            *(format.KIND_REVISION, self.head.uuid, cursor.seq, cursor.offset, cursor.link),
            *(len(payload), crc),
            samples=samples,
            end_index=end_index,
            table_nbytes=len(payload),
            table_crc=crc,
            durable=chain.durable if self._sync == "never" else cursor.offset,
        )
        header, directory = format.behind_seal(bare, seal, [chain.head_header(pread), *chain.entries])
        with self._giving_back_space():
            self._write_parts(header.payload_offset, [payload, directory])
            # With its header it is a seal, of which readers believe that it is there.
            self.sync()
            self.file.pwrite(header.offset, format.pack_header(header))
        chain.note(pread, header)
        self.sync()

    def _write_parts(self, position: int, parts: list[Any]) -> None:
        for part in parts:
            self.file.pwrite(position, part)
            position += memoryview(part).nbytes

    @contextmanager
    def _giving_back_space(self) -> Iterator[None]:
        end = self.end
        try:
            yield
        except StorageError:
            # The write's own error is the one to report, and the next append cuts the tail anyway.
            with suppress(StorageError):
                self.file.truncate(end)
            raise

    def _is_sync_due(self) -> bool:
        return isinstance(self._sync, int | float) and time.monotonic() - self._synced >= self._sync

    def finish(self) -> None:
        """Sync what this process published since the last sync, if `sync=` is a number of seconds."""
        if isinstance(self._sync, int | float) and self._has_unsynced:
            self.sync()

    def sync(self) -> None:
        """Sync what the chain holds so far, unless `sync=` is "never"; the headers that follow say so."""
        if self._sync == "never":
            return
        end = self.chain.cursor.offset
        try:
            self.file.sync()
        except StorageError:
            self.failed = "a sync failed, so what was written since the last one is in doubt"
            raise
        self.chain.durable = max(end, self.chain.durable)
        self._synced, self._has_unsynced = time.monotonic(), False

    def seal(self) -> None:
        """Write index, labels and zip directory behind the chain, the index's header last.

        Cost: reads the table of every chunk three times. Takes some 50 MB of memory, whatever the archive
        has, but for chunks whose samples are mixed with one another and for labels that were added later.
        """
        chain, pread = self.chain, self.file.pread
        with self._giving_back_space():
            index, labels, directory = self._written_seal()
            self.file.pwrite(labels.payload_end, directory)
            self.file.pwrite(labels.offset, format.pack_header(labels))
            self.sync()
            self.file.pwrite(index.offset, format.pack_header(index))
        chain.note(pread, index)
        chain.note(pread, labels)
        self.sync()

    def _written_seal(self) -> tuple[Header, Header, bytes]:
        """Write the payloads of a seal; returns its headers, of index and labels, and its directory."""
        chain, cursor, pread = self.chain, self.chain.cursor, self.file.pread
        merged = chain.merged(self.table)
        tables: Iterator[Any] = (table for _, table in merged.parts())
        schema, columns, rows = merged.schema, None, 0
        if chain.revisions:
            revised = chain.revised(chain.contents(self.table), self.revision)
            tables, schema, columns = iter([revised.table]), revised.table.schema, revised.columns
            rows = revised.table.num_rows
        index = Header(format.KIND_INDEX, self.head.uuid, cursor.seq, cursor.offset, cursor.link, 0, 0)
        pages = format.IndexWriter(
            self._written_from(index.payload_offset), merged.most_rows, merged.is_compressed
        )
        for records, _ in merged.parts():
            pages.add(records)
        content = merged.index(chain.length)._replace(labels=columns)
        table = pages.finish(content)
        index = replace(
            index,
            payload_nbytes=pages.nbytes,
            payload_crc=pages.crc,
            samples=pages.rows,
            end_index=content.length,
            table_nbytes=len(table),
            table_crc=format.crc32(table),
            # This header is written behind the seal's first sync, that of the labels before it.
            durable=chain.durable if self._sync == "never" else cursor.offset,
        )
        labels = replace(index, kind=format.KIND_LABELS, offset=index.payload_end, durable=chain.durable)
        batches = format.LabelFile(self._written_from(labels.payload_offset), schema)
        for batch in tables:
            batches.write(batch)
        written = batches.finish()
        labels = replace(
            labels,
            payload_nbytes=written.nbytes,
            payload_crc=written.crc32,
            samples=max(pages.rows, rows),
            table_nbytes=written.table_nbytes,
            table_crc=written.table_crc,
        )
        return format.seal_headers(index, labels, [chain.head_header(pread), *chain.entries])

    def _written_from(self, position: int) -> Callable[[Any], None]:
        """A function that writes the next bytes, from a position of the file on."""

        def write(data: Any) -> None:
            nonlocal position
            self.file.pwrite(position, data)
            position += len(data)

        return write
