"""A seal: index, label columns, root and zip directory, published as one group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from edcache import format
from edcache.base import ArchiveError, Ints, LabelError
from edcache.format import Column, ColumnFile, Contents, Header, Place, Root, StoredLabels, pa
from edcache.writer.appender import Appender, linked


@dataclass(frozen=True)
class LabelChange:
    """Label columns that are added to an archive or replace those of their names, and names to drop.

    labels: of all samples, or of those of `index`, int64 [rows], rising; the others keep what they have.
    """

    labels: pa.Table = field(default_factory=lambda: pa.table({}))
    index: Ints | None = None
    dropped: Sequence[str] = ()


def seal(appender: Appender, change: LabelChange | None = None) -> None:
    """Write index, labels, root and zip directory behind the chain; nothing if they are there.

    change: of labels. Cost: reads the table of each chunk that the last root does not know, for the rows and
    for each label column. Takes some 150 MB of memory, and as much as `format.WINDOW` labels of a column.
    """
    with appender.appending():
        if not appender.chain.sealed or change is not None:
            _seal(appender, change or LabelChange())


def change_labels(appender: Appender, change: LabelChange) -> None:
    """Publish label columns of a sealed archive, and drop others; it stays sealed.

    Raises: ArchiveError, it is not sealed; LabelError, a column has another length than the archive.
    After a StorageError all of it is there or none.
    """
    with appender.appending():
        root = appender.chain.root
        if root is None or not appender.chain.sealed:
            raise ArchiveError(
                f"{appender.path}: not sealed, so its labels cannot be changed yet; fill it first, with "
                "CachedDataset(source, path) or warmup()",
                path=appender.path,
            )
        dropped = [name for name in change.dropped if name in root.labels]
        if change.labels.num_columns or dropped:
            _seal(appender, replace(change, dropped=dropped))


def _seal(appender: Appender, change: LabelChange) -> None:
    """Publish what the last root does not say; of a sealed archive nothing but label columns and a root."""
    chain = appender.chain
    contents = None if chain.sealed else Contents(chain, appender.file.pread, appender.table)
    group = _Group(appender)
    with appender.giving_back_space():
        if contents is None:
            assert chain.root is not None
            root = chain.root
        else:
            root = _indexed(contents, group)
        labels = {name: column for name, column in root.labels.items() if name not in change.dropped}
        if contents is not None:
            for name in contents.schema.names:
                if name not in change.dropped and name not in change.labels.column_names:
                    labels[name] = _merged(contents, name, group)
        for name in change.labels.column_names:
            column = _changed(appender, change, name, root, contents)
            place = group.column(name, column.type, iter(column.chunks))
            labels[name] = Column(place, format.type_to_json(column.type), True)
        own = {name for name, _ in appender.head.labels}
        dropped = [name for name in dict.fromkeys([*root.dropped, *change.dropped]) if name in own]
        headers = group.written(replace(root, labels=labels, dropped=dropped))
    group.publish(headers)


def _indexed(contents: Contents, group: _Group) -> Root:
    """Write the index; returns its root, without label columns."""
    chain, seen = group.appender.chain, _Seen()
    failures = dict(chain.failures)
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
        head=chain.head,
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
    appender: Appender, change: LabelChange, name: str, root: Root, contents: Contents | None
) -> pa.ChunkedArray:
    """A whole column: the values that are given, and elsewhere those that are there."""
    given = change.labels.column(name)
    if change.index is None and len(given) != root.length:
        raise LabelError(
            f'{appender.path}: label "{name}" has {len(given):,} values, the archive '
            f"{root.length:,} samples; give one value per sample"
        )
    kind = None if name in change.dropped else _known_type(name, root, contents)
    # What samples fill, later ones fill too.
    is_filled = name in dict(appender.head.labels) and name not in root.dropped
    if change.index is None and not is_filled:
        return given
    if kind is not None and format.merged(kind, given.type) is None:
        raise LabelError(
            f'{appender.path}: label "{name}" is {kind} in the archive and {given.type} in labels that were '
            f'added; add them under another name, or drop_labels("{name}") first'
        )
    if change.index is None:
        return given
    if kind is None:
        stored = pa.chunked_array([pa.nulls(root.length)])
    elif contents is None:
        read = partial(format.read_places, appender.file.pread)
        stored = StoredLabels(root, read, appender.path).column(name)
    else:
        stored = pa.chunked_array([contents.column(name, 0, root.length)])
    both = format.unify([pa.table({name: one}) for one in (stored, given)], appender.path).column(name)
    pick = np.arange(root.length)
    pick[change.index] = root.length + np.arange(len(given))
    return both.take(format.from_numpy(pick, pa.int64()))


def _known_type(name: str, root: Root, contents: Contents | None) -> pa.DataType | None:
    """The type of a column that is there; None if there is none."""
    schema = root.schema if contents is None else contents.schema
    return schema.field(name).type if name in schema.names else None


def _merged(contents: Contents, name: str, group: _Group) -> Column:
    """Write a column of chunks and of the last root."""
    kind, known = contents.schema.field(name).type, contents.columns.get(name)
    arrays = (contents.column(name, start, stop) for start, stop in contents.windows())
    place = group.column(name, kind, arrays)
    return Column(place, format.type_to_json(kind), known.is_added if known else False)


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
        self._group.appender.file.pwrite(self.start + self.nbytes, view)
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

    def __init__(self, appender: Appender) -> None:
        self.appender = appender
        self.position = appender.chain.cursor.offset
        self._end, self._directory = 0, b""
        self._entries: list[_Entry] = []

    def entry(self, kind: int, name: str) -> _Entry:
        """Begin an entry behind the last one, which was closed."""
        number = self.appender.chain.cursor.number + len(self._entries)
        entry = _Entry(self, kind, name, number, self.position)
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
        appender, chain = self.appender, self.appender.chain
        last = self.entry(format.ROOT, "root.json")
        last.write(format.pack_root(root))
        last.close()
        headers = self._headers()
        listed = [chain.head_header(appender.file.pread), *chain.listed(root.labels, headers)]
        end = headers[-1].payload_end
        following = format.align(end + format.directory_nbytes([one.name for one in listed]), format.PAGE)
        listed[-1] = headers[-1] = linked(replace(headers[-1], next=following))
        self._end, self._directory = end, format.pack_directory(listed, end)
        appender.file.pwrite(end, self._directory[: -format.END_NBYTES])
        appender.sync()
        return headers

    def publish(self, headers: list[Header]) -> None:
        """Write the headers, from last to first, and the end of the directory; synced."""
        appender, last = self.appender, self._directory[-format.END_NBYTES :]
        for header in reversed(headers):
            appender.file.pwrite(header.offset, format.pack_header(header))
        # A reader that finds the end relies on the headers, also after a power cut.
        appender.sync()
        appender.file.pwrite(self._end + len(self._directory) - len(last), last)
        appender.chain.add(appender.file.pread, headers)
        appender.sync()

    def _headers(self) -> list[Header]:
        appender, headers = self.appender, []
        link = appender.chain.cursor.link
        # Up to the group: its payloads were synced.
        start = appender.chain.cursor.offset
        durable = start if appender.syncs else min(appender.chain.durable, start - 1)
        for entry in self._entries:
            following = format.align(entry.start + entry.nbytes, format.PAGE)
            place = entry.number, entry.offset, entry.nbytes, entry.crc32, following, link, durable
            header = linked(Header(entry.kind, entry.name, appender.head.uuid, *place))
            headers.append(header)
            link = header.link_after
        return headers
