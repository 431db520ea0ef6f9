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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from edcache import format
from edcache.base import Ints, LabelError, StaleArchiveError, StorageError, Sync
from edcache.format import (
    Chain,
    ChunkTable,
    Column,
    ColumnFile,
    Contents,
    Cursor,
    Head,
    Header,
    Place,
    Root,
    StoredLabels,
    pa,
)
from edcache.storage import File
from edcache.writer.chunk import Chunk


@dataclass(frozen=True)
class LabelChange:
    """Label columns that are added to an archive or replace those of their names, and names to drop.

    labels: of all samples, or of those of `index`, int64 [rows], rising; the others keep what they have.
    """

    labels: pa.Table = field(default_factory=lambda: pa.table({}))
    index: Ints | None = None
    dropped: Sequence[str] = ()


class Log:
    """The entries of an archive, as far as this process has seen them, and how others are added.

    Attributes:
        chain: the entries. syncs: False if nothing is ever synced.
        failed: why nothing may be published any more; None while all is well.
    """

    def __init__(self, file: File, head: Head, cursor: Cursor, sync: Sync) -> None:
        self.file = file
        self.head = head
        self.chain = Chain(head, cursor, file.path)
        self.failed: str | None = None
        self._sync, self.syncs = sync, sync != "never"
        self._synced = time.monotonic()
        self._has_unsynced = False

    def catch_up(self) -> None:
        """Take in what others published since; reads headers only and takes no lock."""
        self.chain.extend(self.file.pread, self.file.size())

    def table(self, header: Header) -> ChunkTable:
        """The table of a chunk."""
        return format.read_table(self.file.pread, header, self.file.path)

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
            self.mend_end()
            yield

    def mend_end(self) -> None:
        """Cut off what a writer left that died, and write the zip directory if it is not there."""
        chain, end = self.chain, self.chain.end
        if self.file.size() > end:
            self.file.truncate(end)
        if chain.sealed:
            assert chain.root_header is not None
            at, directory = chain.root_header.payload_end, chain.directory(self.file.pread)
            if self.file.pread(at, len(directory)) != directory:
                self.file.pwrite(at, directory)

    def cut(self, offset: int) -> None:
        """End the archive before the group at an offset."""
        head, first = format.read_head(self.file.pread, self.file.path)
        self.chain = Chain(head, first, self.file.path)
        self.chain.extend(self.file.pread, offset)
        self.file.truncate(self.chain.end)

    # --- a chunk, a note ---

    def append(self, kind: int, parts: Sequence[Any], *, max_bytes: int | None = None, **fields: int) -> None:
        """Publish a chunk or a note: payload first, header last.

        max_bytes: StorageError with EFBIG if the file would grow larger.
        """
        header = self._placed(kind, "chunks" if kind == format.CHUNK else "notes", parts, **fields)
        if max_bytes is not None and header.next > max_bytes:
            error = StorageError(
                f"{self.file.path}: the archive would grow beyond max_bytes={max_bytes:,}",
                path=self.file.path,
            )
            error.errno = errno.EFBIG
            raise error
        with self._giving_back_space():
            position = header.payload_offset
            for part in parts:
                self.file.pwrite(position, part)
                position += memoryview(part).nbytes
            self.file.pwrite(header.offset, format.pack_header(header))
        self.chain.add(self.file.pread, [self.linked(header)])
        self._has_unsynced = True
        if self._sync == "chunk" or self._is_sync_due():
            self.sync()
        elif self.syncs:
            self.file.write_back(header.offset, header.next - header.offset)

    def append_chunk(self, chunk: Chunk, max_bytes: int | None) -> None:
        """Publish a chunk, whose labels have types that hold the values of all before. See `append`."""
        nbytes = format.table_nbytes(chunk.count, chunk.schemas, chunk.labels)
        name = f"chunks/{self.chain.cursor.number:08d}"
        start = self.chain.cursor.offset + format.header_nbytes(name) + format.align(nbytes, 64)
        rows = chunk.rows.copy()
        rows["offset"] += np.uint64(start)
        table = format.pack_table(chunk.samples, rows, chunk.schemas, chunk.labels)
        self.append(
            format.CHUNK,
            [table, bytes(format.align(nbytes, 64) - nbytes), chunk.data],
            max_bytes=max_bytes,
            first=int(chunk.samples.min()),
            end=int(chunk.samples.max()) + 1,
            table_nbytes=nbytes,
            table_crc32=format.crc32(table),
        )

    def check_widened(self, known: pa.Schema, schema: pa.Schema) -> None:
        """Raise LabelError if an integer that was published may be rounded where floats join its column.

        Cost: reads a column, if its type changes from integers to floats.
        """
        kinds = {name: schema.field(name).type for name in known.names}
        names = [name for name, kind in kinds.items() if format.is_widened(known.field(name).type, kind)]
        contents = Contents(self.chain, self.file.pread, self.table) if names else None
        for name in names:
            assert contents is not None
            column = pa.chunked_array([contents.column(name, 0, contents.length)])
            format.check_widened(name, column, kinds[name], self.file.path)

    def _placed(self, kind: int, folder: str, parts: Sequence[Any], **fields: int) -> Header:
        """The header of a chunk or a note at the end of the chain."""
        cursor, crc = self.chain.cursor, 0
        for part in parts:
            crc = format.crc32(part, crc)
        nbytes = sum(memoryview(part).nbytes for part in parts)
        name = f"{folder}/{cursor.number:08d}"
        end = cursor.offset + format.header_nbytes(name) + nbytes
        place = cursor.number, cursor.offset, nbytes, crc, format.align(end, format.PAGE), cursor.link
        return Header(kind, name, self.head.uuid, *place, self.chain.durable, **fields)

    def linked(self, header: Header) -> Header:
        """The header with the link that follows it."""
        return replace(header, link_after=format.link_after(format.pack_header(header)))

    @contextmanager
    def _giving_back_space(self) -> Iterator[None]:
        end = self.chain.end
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
        if not self.syncs:
            return
        end = self.chain.cursor.offset
        try:
            self.file.sync()
        except StorageError:
            self.failed = "a sync failed, so what was written since the last one is in doubt"
            raise
        self.chain.durable = max(end, self.chain.durable)
        self._synced, self._has_unsynced = time.monotonic(), False

    # --- a seal ---

    def seal(self, change: LabelChange) -> None:
        """Publish what the last root does not say: index, label columns, a root and a zip directory.

        change: columns to add, replace or drop. Of a sealed archive nothing else is written but these.
        Cost: reads the table of each chunk that the last root does not know, for the rows and for each label
        column. Takes some 150 MB of memory, and as much as `format.WINDOW` labels of a column.
        """
        chain = self.chain
        contents = None if chain.sealed else Contents(chain, self.file.pread, self.table)
        group = _Group(self)
        with self._giving_back_space():
            if contents is None:
                assert chain.root is not None
                root = chain.root
            else:
                root = self._indexed(contents, group)
            labels = {name: column for name, column in root.labels.items() if name not in change.dropped}
            if contents is not None:
                for name in contents.schema.names:
                    if name not in change.dropped and name not in change.labels.column_names:
                        labels[name] = _merged(contents, name, group)
            for name in change.labels.column_names:
                column = self._changed(change, name, root, contents)
                place = group.column(name, column.type, iter(column.chunks))
                labels[name] = Column(place, column.type, True)
            own = {name for name, _ in self.head.labels}
            dropped = [name for name in dict.fromkeys([*root.dropped, *change.dropped]) if name in own]
            headers = group.written(replace(root, labels=labels, dropped=dropped))
        group.publish(headers)

    def _indexed(self, contents: Contents, group: _Group) -> Root:
        """Write the index; returns its root, without label columns."""
        chain, seen, failures = self.chain, _Seen(), dict(self.chain.failures)
        index = group.entry(format.INDEX, "index.rows")
        for start, stop in contents.windows():
            rows = contents.rows(start, stop)
            seen.add(rows)
            inside = [k for k in failures if start <= k < stop]
            for k in inside:
                if rows["flags"][k - start] & format.PRESENT:
                    del failures[k]
            index.write(rows)
        return Root(
            head=self.head,
            length=contents.length,
            present=seen.present,
            chunks=len(chain.chunks),
            schemas=contents.schemas,
            index=index.close(),
            dropped=() if chain.root is None else chain.root.dropped,
            failures=sorted(one for _, one in failures.values() if one.index < contents.length),
            uniform=seen.uniform,
            fingerprint=None if chain.origin is chain.head else chain.origin.fingerprint,
        )

    def _changed(
        self, change: LabelChange, name: str, root: Root, contents: Contents | None
    ) -> pa.ChunkedArray:
        """A whole column: the values that are given, and elsewhere those that are there."""
        given = change.labels.column(name)
        if change.index is None:
            if len(given) != root.length:
                raise LabelError(
                    f'{self.file.path}: label "{name}" has {len(given):,} values, the archive '
                    f"{root.length:,} samples; give one value per sample"
                )
            if name in root.dropped or name not in (own for own, _ in self.head.labels):
                return given
            # Samples fill it, also later ones, which are of this type then.
        stored = pa.chunked_array([pa.nulls(root.length)])
        if name not in change.dropped:
            if change.index is None and (kind := _kind_of(name, root, contents)) is not None:
                stored = pa.chunked_array([], kind)  # not read: what is damaged is replaced
            elif contents is None and name in root.labels:
                read = partial(format.read_places, self.file.pread)
                stored = StoredLabels(root, read, self.file.path).column(name)
            elif contents is not None and name in contents.schema.names:
                stored = pa.chunked_array([contents.column(name, 0, root.length)])
        try:
            both = format.unify([pa.table({name: one}) for one in (stored, given)], self.file.path).column(
                name
            )
        except LabelError:
            raise LabelError(
                f'{self.file.path}: label "{name}" is {stored.type} in the archive and {given.type} in '
                f'labels that were added; add them under another name, or drop_labels("{name}") first'
            ) from None
        if change.index is None:
            return given
        pick = np.arange(root.length)
        pick[change.index] = root.length + np.arange(len(given))
        return both.take(format.from_numpy(pick, pa.int64()))


def _kind_of(name: str, root: Root, contents: Contents | None) -> pa.DataType | None:
    """The type of a column that is there; None if there is none."""
    if contents is None:
        return root.labels[name].type if name in root.labels else None
    return contents.schema.field(name).type if name in contents.schema.names else None


def _merged(contents: Contents, name: str, group: _Group) -> Column:
    """Write a column of chunks and of the last root."""
    kind, known = contents.schema.field(name).type, contents.columns.get(name)
    arrays = (contents.column(name, start, stop) for start, stop in contents.windows())
    place = group.column(name, kind, arrays)
    return Column(place, kind, known.is_added if known else False)


class _Seen:
    """Common schema and sizes of the rows of a seal."""

    def __init__(self) -> None:
        self.present = 0
        self._least, self._most = 1 << 62, 0
        self._schemas: set[int] = set()
        self._is_plain = True

    def add(self, rows: format.Rows) -> None:
        """Take rows in."""
        flags = rows["flags"]
        present = rows[flags & format.PRESENT > 0]
        self.present += len(present)
        self._is_plain = self._is_plain and bool(np.all(flags == format.PRESENT))
        if self._is_plain and len(rows):
            self._schemas |= {int(rows["schema"].min()), int(rows["schema"].max())}
            self._least = min(self._least, int(rows["nbytes"].min()))
            self._most = max(self._most, int(rows["nbytes"].max()))

    @property
    def uniform(self) -> tuple[int, int, int] | None:
        """The schema of all records, and their least and most bytes.

        None if the schemas differ, or if one is compressed or absent.
        """
        if not self._is_plain or len(self._schemas) != 1:
            return None
        return next(iter(self._schemas)), self._least, self._most


class _Entry:
    """An entry of a group, whose payload is written piece by piece."""

    def __init__(self, group: _Group, kind: int, name: str, number: int, offset: int) -> None:
        self.kind, self.name, self.number, self.offset = kind, name, number, offset
        self._group = group
        self.start = offset + format.header_nbytes(name)
        self.nbytes = self.crc32 = 0

    def write(self, data: Any) -> None:
        """Write the next bytes of the payload."""
        view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
        self._group.log.file.pwrite(self.start + self.nbytes, view)
        self.crc32 = format.crc32(view, self.crc32)
        self.nbytes += len(view)

    def close(self) -> Place:
        """End the payload; returns where it lies."""
        self._group.position = format.align(self.start + self.nbytes, format.PAGE)
        return Place(self.start, self.nbytes, self.crc32)


class _Group:
    """Entries that are published together: their payloads, a sync, then headers from last to first.

    So a kill leaves all of them or none. The zip directory is written behind the root before its header, but
    for its end: who finds that knows that the headers are there.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.position = log.chain.cursor.offset
        self._end, self._directory = 0, b""
        self._entries: list[_Entry] = []

    def entry(self, kind: int, name: str) -> _Entry:
        """Begin an entry behind the last one, which was closed."""
        entry = _Entry(self, kind, name, self.log.chain.cursor.number + len(self._entries), self.position)
        self._entries.append(entry)
        return entry

    def column(self, name: str, kind: pa.DataType, arrays: Iterator[pa.Array]) -> Place:
        """Write a label column; returns where its Arrow file lies."""
        entry = self.entry(format.COLUMN, format.column_name(name))
        file = ColumnFile(entry.write, name, kind)
        for array in arrays:
            file.write(array)
        file.close()
        return entry.close()

    def written(self, root: Root) -> list[Header]:
        """Write the root and the directory but for its end, and sync; returns the headers to publish."""
        log, chain = self.log, self.log.chain
        last = self.entry(format.ROOT, "root.json")
        last.write(format.pack_root(root))
        last.close()
        headers = self._headers()
        listed = [chain.head_header(log.file.pread), *chain.listed(root.labels, headers)]
        end = headers[-1].payload_end
        following = format.align(end + format.directory_nbytes([one.name for one in listed]), format.PAGE)
        listed[-1] = headers[-1] = log.linked(replace(headers[-1], next=following))
        self._end, self._directory = end, format.pack_directory(listed, end)
        log.file.pwrite(end, self._directory[: -format.END_NBYTES])
        log.sync()
        return headers

    def publish(self, headers: list[Header]) -> None:
        """Write the headers, from last to first, and the end of the directory; synced."""
        log, last = self.log, self._directory[-format.END_NBYTES :]
        for header in reversed(headers):
            log.file.pwrite(header.offset, format.pack_header(header))
        # A reader that finds the end relies on the headers, also after a power cut.
        log.sync()
        log.file.pwrite(self._end + len(self._directory) - len(last), last)
        log.chain.add(log.file.pread, headers)
        log.sync()

    def _headers(self) -> list[Header]:
        log, headers = self.log, []
        link = log.chain.cursor.link
        # Up to the group: its payloads were synced.
        start = log.chain.cursor.offset
        durable = start if log.syncs else min(log.chain.durable, start - 1)
        for entry in self._entries:
            following = format.align(entry.start + entry.nbytes, format.PAGE)
            place = entry.number, entry.offset, entry.nbytes, entry.crc32, following, link, durable
            header = log.linked(Header(entry.kind, entry.name, log.head.uuid, *place))
            headers.append(header)
            link = header.link_after
        return headers
