"""What a damaged archive still proves: the newest record of each sample, and their labels.

Of the entries that are whole (entries.py) a table counts when it fits its crc32. That of a chunk says where
its samples are, and so does the index of a seal of all samples before it: each can stand in for the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from edcache import base, format
from edcache.base import Ints
from edcache.format import Chain, Contents, Head, Header, IndexTable, Records, Revision
from edcache.storage import File
from edcache.tools.entries import ANYWHERE, Entries

_PICKLES: Final = '{"pickle":5}'

T = TypeVar("T")


@dataclass(frozen=True)
class Doubtful:
    """An entry, or several, of which nothing intact tells what they held.

    Those samples are missing, or are older records where older chunks have them too.

    Attributes:
        seq: its sequence number. offset: where it begins. samples: how many it had, None where nobody
            knows. entries: how many entries hide there; they need not be chunks.
    """

    seq: int
    offset: int
    samples: int | None
    entries: int = 1


@dataclass(frozen=True)
class _SalvagedRows:
    """Records with their offsets in the file and their index, their schemas, and their labels row by row."""

    records: Records
    schemas: list[str]
    labels: Any

    @property
    def index(self) -> Ints:
        """The sample of each."""
        return self.records.samples

    def without(self, index: Ints) -> _SalvagedRows:
        """Those of other samples than these."""
        kept = np.flatnonzero(~np.isin(self.index, index))
        return _SalvagedRows(self.records.take(kept), self.schemas, format.take_rows(self.labels, kept))


@dataclass(frozen=True)
class _Sealed:
    """The newest intact index, its sequence number, and the labels that go with it."""

    seq: int = -1
    index: IndexTable | None = None
    labels: Any = None


class Salvage:
    """What a damaged file proves. Whether a record is good, its crc32 tells later.

    Attributes:
        head: as it reads, or what can be told without it, where it is lost. origin: as of its `Chain`.
        contents: the newest record of each sample as far as anything tells, each once, none overlapping.
        lost: samples whose newest record cannot be in `contents`. unlabelled: whose labels are lost.
        revision: what all revisions of labels that are intact say, as one; None where that is nothing.
        lost_revisions: names of those of which nothing intact tells what they said.
    Raises: as `repair`.
    """

    def __init__(self, file: File) -> None:
        self.path = file.path
        self.problems: list[str] = []
        self.doubtful: list[Doubtful] = []
        self.lost: Ints = np.empty(0, np.int64)
        self.unlabelled: Ints = np.empty(0, np.int64)
        self._file, self._pread = file, file.pread
        self._size = file.size()
        self.head_lost = False
        self.head, cursor = self._read_head()
        self._entries = Entries(file, self.head.uuid, cursor)
        self._chain = self._noted()
        self._sealed = self._last_index()
        self._tables = {header.seq: self._table(header) for header in self._chain.chunks}
        self._look_at_gaps()
        rows = self._newest_rows()
        if self.head_lost:
            self.head = self._guessed_head(rows)
        sealed = 0 if self._sealed.index is None else self._sealed.index.length
        ends = (header.end_index for header in self._chain.chunks if header.end_index < ANYWHERE)
        self.length = max(self._chain.length or 0, sealed, *ends, 0)
        self.origin = self._chain.origin
        self.contents = self._contents(rows)
        self.lost_revisions: list[str] = []
        self.revision = self._folded()

    def _problem(self, offset: int, what: str) -> None:
        self.problems.append(f"{self.path}: at offset {offset:,}: {what}")

    # --- the head ---

    def _read_head(self) -> tuple[Head, format.Cursor | None]:
        try:
            return format.read_head(self._pread, self.path)
        except (base.NotAnArchiveError, base.CorruptArchiveError, base.FormatVersionError) as error:
            # A newer format's headers would not parse either: where others do, the head's version is damage.
            uuids = Counter(header.uuid for header in format.find_headers(self._file, 0, self._size))
            if not uuids:
                raise
            self._problem(0, "the head is damaged: fingerprint, codec and label paths are not known for sure")
            self.head_lost = True
            damage: base.ArchiveError = error
        uuid = uuids.most_common(1)[0][0]
        first = format.parse_header(self._pread(0, format.MAX_HEADER_NBYTES))
        if first is None or first.kind != format.KIND_HEAD or first.uuid != uuid:
            return Head(uuid), None
        if set(uuids) == {uuid} and uuids[uuid] == 1:
            raise damage
        return Head(uuid), format.after(first)._replace(seq=0)

    def _guessed_head(self, rows: _SalvagedRows) -> Head:
        compression = None
        if rows.records.raw_nbytes is not None:
            compression = "zstd+dict" if self.dictionaries else "zstd"
        codec = "pickle" if set(rows.schemas) == {_PICKLES} else "native"
        labels = tuple((name, None) for name in rows.labels.column_names)
        return Head(self.head.uuid, codec=codec, compression=compression, labels=labels)

    # --- entries and tables ---

    def _noted(self) -> Chain:
        chain = Chain(self.head, format.Cursor(0, 0, 0), self.path)
        for run in self._entries.runs:
            for header in run:
                if len(run) > 1 or header.kind != format.KIND_LABELS:
                    chain.note(self._pread, header)
                if header.kind == format.KIND_AMENDMENT:
                    self._parsed(header, bytes, f"{header.name} is damaged: what it revised is not known")
        return chain

    def _parsed(self, header: Header, parse: Callable[[bytes], T], damage: str) -> T | None:
        """The table of an entry; None, and a problem, where it fits no crc32 or does not parse."""
        # With a fitting crc32 a header may say any number: it decides not how much memory is taken.
        # Of a seal all is read, which the payload's crc32 proves.
        nbytes, crc = header.table_nbytes, header.table_crc
        if header.kind in (format.KIND_INDEX, format.KIND_LABELS):
            nbytes, crc = header.payload_nbytes, header.payload_crc
        if header.payload_offset + nbytes <= self._size:
            data = self._pread(header.payload_offset, nbytes)
            try:
                if format.crc32(data) == crc:
                    return parse(data)
            except base.CorruptArchiveError:
                pass
        self._problem(header.offset, damage)
        return None

    def _table(self, header: Header) -> format.ChunkTable | None:
        damage = f"{header.name}: the table of its {header.samples:,} samples is damaged"
        table = self._parsed(
            header, lambda data: format.read_table(lambda *_: data, header, self.path), damage
        )
        if table is None and header.seq > self._sealed.seq:
            self.doubtful.append(Doubtful(header.seq, header.offset, header.samples))
        return table

    def _revision(self, header: Header) -> Revision | None:
        damage = f"{header.name}: labels that were added or dropped are damaged"
        return self._parsed(
            header, lambda data: format.read_revision(lambda *_: data, header, self.path), damage
        )

    def _last_index(self) -> _Sealed:
        """The newest index that is intact, with its labels where they are intact too."""
        headers = [header for run in self._entries.runs for header in run]
        sealed = _Sealed()
        for header, following in zip_longest(headers, headers[1:]):
            if header.kind != format.KIND_INDEX:
                continue
            parse = partial(format.parse_index, rows=header.samples, table_nbytes=header.table_nbytes)
            index = self._parsed(header, parse, "index.pages is damaged")
            if index is not None:
                sealed = _Sealed(header.seq, index, self._labels(index, following))
        return sealed

    def _labels(self, index: IndexTable, header: Header | None) -> Any:
        def parse(data: bytes) -> Any:
            assert header is not None
            if header.samples not in (len(index.records.offset), index.length):
                raise base.CorruptArchiveError("rows of other samples")
            return format.parse_labels(data, header.samples, header.table_nbytes)

        if header is None or header.kind != format.KIND_LABELS:
            return None
        return self._parsed(header, parse, "labels.arrow is damaged")

    def _look_at_gaps(self) -> None:
        for gap in self._entries.gaps:
            self._problem(gap.start, gap.problem)
            if gap.hidden and gap.seq > self._sealed.seq:
                self.doubtful.append(Doubtful(gap.seq, gap.start, None, gap.hidden))
        self.doubtful.sort(key=lambda doubtful: doubtful.seq)

    # --- rows ---

    def _newest_rows(self) -> _SalvagedRows:
        """The newest record of each sample as far as anything tells; contradictions are lost."""
        sound = [header for header in self._chain.chunks if self._tables[header.seq] is not None]
        seq, index = self._sealed.seq, self._sealed.index
        after = self._merged([header for header in sound if header.seq > seq])
        if index is None:
            return after
        before = self._reconciled(index, [header for header in sound if header.seq < seq])
        self.unlabelled = self.unlabelled[~np.isin(self.unlabelled, after.index)]
        return _joined(before.without(after.index), after, self.path)

    def _merged(self, chunks: Sequence[Header]) -> _SalvagedRows:
        names = [name for name, _ in self.head.labels]
        contents = format.merge(chunks, lambda header: self._tables[header.seq], [], None, names, self.path)
        records = contents.index.records
        records = replace(records, index=records.samples)
        return _SalvagedRows(records, contents.index.schemas, contents.labels)

    def _reconciled(self, index: IndexTable, chunks: Sequence[Header]) -> _SalvagedRows:
        """The rows of an index, as far as no chunk before it contradicts them, with their labels."""
        records, before = replace(index.records, index=index.records.samples), self._merged(chunks)
        # Samples of both: their rows in the index, and in the chunks.
        _, known, at = np.intersect1d(records.samples, before.index, assume_unique=True, return_indices=True)
        texts = np.array([*index.schemas, ""], object)
        numbers = np.minimum(records.schema, len(index.schemas))
        others = np.array([*before.schemas, ""], object)
        alike = texts[numbers[known]] == others[before.records.schema[at]]
        sealed, chunked = records.columns(), before.records.columns()
        for name in {*sealed, *chunked} - {"index", "schema"}:
            if name in sealed and name in chunked:
                alike &= chunked[name][at] == sealed[name][known]
            else:
                alike[:] = False  # where only one of them compresses, they agree on nothing
        place = np.full(len(numbers), -1)
        place[known[alike]] = at[alike]
        # A newer record may hide in what does not read, never in a chunk whose table says otherwise.
        is_hidden = ~_lies_within(chunks, records.offset)
        is_newer = np.ones(len(numbers), np.bool_)
        is_newer[known] = records.offset[known] > before.records.offset[at]
        believed = ((place >= 0) | (is_hidden & is_newer)) & (numbers < len(index.schemas))
        forgotten = before.index[~np.isin(before.index, records.samples)]
        self._lose(records.samples[~believed], "index.pages and the chunks contradict each other about")
        self._lose(forgotten, "index.pages leaves out what a chunk holds:")
        rows = np.flatnonzero(believed)
        labels = self._labels_of(records, rows, before, place)
        return _SalvagedRows(records.take(rows), index.schemas, labels)

    def _labels_of(self, records: Records, rows: Ints, before: _SalvagedRows, at: Ints) -> Any:
        """The labels that rows of an index had when they were written: its own, or those the chunks tell."""
        labels, index = self._sealed.labels, self._sealed.index
        assert index is not None
        if labels is not None and index.labels is None:
            return format.take_rows(labels, rows)
        known = np.flatnonzero(at[rows] >= 0)
        own = format.take_rows(before.labels, at[rows][known])
        names = self._label_names()
        # Where revisions were sealed in, the seal says what the labels are now.
        if labels is None and (names is None or names):
            self.unlabelled = records.samples[rows][at[rows] < 0]
        own = format.spread(own if own.num_columns else format.no_labels(names or []), known, len(rows))
        if labels is None or index.labels is None:
            return own
        places = rows if labels.num_rows == len(index.records.offset) else records.samples[rows]
        plain = [name for name, is_revised in index.labels if not is_revised and name in labels.column_names]
        return format.replace_columns(own, format.take_rows(labels.select(plain), places))

    def _label_names(self) -> list[str] | None:
        """The label columns of the archive; None where nothing intact tells them."""
        if not self.head_lost:
            return [name for name, _ in self.head.labels]
        tables = (table for table in self._tables.values() if table is not None)
        return next((list(table.labels.column_names) for table in tables), None)

    def _lose(self, index: Ints, why: str) -> None:
        if len(index):
            self.problems.append(f"{self.path}: {why} {len(index):,} samples, the first is {int(index[0])}")
            self.lost = np.union1d(self.lost, index)

    def _contents(self, rows: _SalvagedRows) -> Contents:
        """The rows that lie within the file and overlap no other, by index."""
        records = rows.records
        offset, nbytes = records.offset, records.nbytes
        within = (offset <= self._size) & (nbytes <= self._size)
        within &= np.where(within, offset + nbytes, 0) <= self._size
        self._lose(rows.index[~within], "beyond the end of the file lie")
        order = np.flatnonzero(within)[np.argsort(offset[within], kind="stable")]
        end = np.maximum.accumulate((offset + nbytes)[order])
        overlapping = np.zeros(len(offset), bool)
        overlapping[order[1:]] = offset[order[1:]] < end[:-1]
        self._lose(rows.index[overlapping], "other records overlap those of")
        kept = np.flatnonzero(within & ~overlapping)
        kept = kept[np.argsort(rows.index[kept], kind="stable")]
        self.unlabelled = self.unlabelled[np.isin(self.unlabelled, rows.index[kept])]
        table = IndexTable(
            records.take(kept), self.length, rows.schemas, self.dictionaries, np.empty((0, 3), np.int64)
        )
        return Contents(table, format.take_rows(rows.labels, kept))

    # --- revisions of labels ---

    def _folded(self) -> Revision | None:
        records = self.contents.index.records
        placed = self._revisions()
        if not placed:
            return None
        written = format.chunk_numbers(self._chain.chunks, records.offset)
        arguments = self.contents.labels, records.index, written
        try:
            labels = format.revised(*arguments, placed, self.length, self.path)
        except base.LabelTypeError:
            # Types that changed where nothing tells any more: what was added counts.
            named = [({*r.dropped, *r.labels.column_names}, seq, r) for seq, r in placed]
            placed = [format.Placed(seq, replace(r, dropped=list(names))) for names, seq, r in named]
            labels = format.revised(*arguments, placed, self.length, self.path)
        return labels.folded(records.index)

    def _revisions(self) -> list[format.Placed]:
        """Those that are intact, those before a seal as the seal has them if that is intact."""
        each = [(header, self._revision(header)) for header in self._chain.revisions]
        sealed = self._sealed_revision([labels for header, labels in each if header.seq < self._sealed.seq])
        since = self._sealed.seq if sealed is not None else -1
        self.lost_revisions += [h.name for h, labels in each if labels is None and h.seq > since]
        rest = [format.Placed(h.seq, labels) for h, labels in each if labels is not None and h.seq > since]
        return rest if sealed is None else [format.Placed(since, sealed), *rest]

    def _sealed_revision(self, before: Sequence[Revision | None]) -> Revision | None:
        """What the revisions before a seal came to, as its labels.arrow has it."""
        index, labels = self._sealed.index, self._sealed.labels
        if index is None or labels is None or index.labels is None:
            return None
        columns = dict(index.labels)
        if list(columns) != labels.column_names:
            return None
        dropped = {name for revision in before if revision is not None for name in revision.dropped}
        names = self._label_names() or []
        ended = [name for name in names if name not in columns or name in dropped]
        is_per_sample = labels.num_rows == index.length
        added = labels.select([name for name, is_revised in columns.items() if is_revised])
        return Revision(added, ended, None if is_per_sample else index.records.index)

    # --- what else the archive said ---

    @property
    def dictionaries(self) -> list[format.Dictionary]:
        """Where the compression dictionaries lie, oldest first; whole or not."""
        by_offset = {
            d.payload_offset: format.Dictionary(d.payload_offset, d.table_nbytes, d.table_crc)
            for d in self._chain.dictionaries
        }
        if self._sealed.index is not None:
            by_offset |= {d.offset: d for d in self._sealed.index.dictionaries}
        apart: list[format.Dictionary] = []
        end = 0
        for dictionary in sorted(by_offset.values()):
            if end <= dictionary.offset <= dictionary.offset + dictionary.nbytes <= self._size:
                apart.append(dictionary)
                end = dictionary.offset + dictionary.nbytes
        return apart

    @property
    def failures(self) -> list[format.Failure]:
        """Why samples have no record that is neither there nor lost: what was last said of each."""
        last: dict[int, format.Failure] = {}
        if self._sealed.index is not None:
            last = {failure.index: failure for failure in self._sealed.index.failures}
        for seq, failure in self._chain.failures.values():
            if seq > self._sealed.seq:
                last[failure.index] = failure
        index = np.array(list(last), np.int64)
        records = self.contents.index.records
        stays = (index < self.length) & ~np.isin(index, records.samples) & ~np.isin(index, self.lost)
        return sorted(last[k] for k in index[stays].tolist())


def _lies_within(chunks: Sequence[Header], offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Whether each offset is that of a byte of one of the chunks."""
    starts = np.array([0, *(header.offset for header in chunks)], np.uint64)
    ends = np.array([0, *(min(header.payload_end, ANYWHERE) for header in chunks)], np.uint64)
    within: npt.NDArray[np.bool_] = offsets < ends[np.searchsorted(starts, offsets, "right") - 1]
    return within


def _joined(first: _SalvagedRows, second: _SalvagedRows, where: str) -> _SalvagedRows:
    """Both together, one behind the other; CorruptArchiveError where they have too many schemas."""
    if not len(second.index):
        return first
    schemas = list(dict.fromkeys([*first.schemas, *second.schemas]))
    if len(schemas) > format.MAX_SCHEMAS:
        raise base.CorruptArchiveError(
            f"{where}: {len(schemas):,} schemas, the format allows {format.MAX_SCHEMAS:,}"
        )
    compresses = any(rows.records.raw_nbytes is not None for rows in (first, second))
    columns = []
    for rows in (first, second):
        numbers = np.array([*map(schemas.index, rows.schemas), 0], np.uint16)
        own = rows.records.columns() | {"schema": numbers[rows.records.schema]}
        if compresses:
            own.setdefault("raw_nbytes", np.zeros(len(rows.index), np.uint64))
        columns.append(own)
    records = Records(**{name: np.concatenate([own[name] for own in columns]) for name in columns[0]})
    labels = format.unify([first.labels, second.labels], where) if len(first.index) else second.labels
    return _SalvagedRows(records, schemas, labels)
