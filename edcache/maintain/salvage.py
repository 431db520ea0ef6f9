"""What a damaged archive still proves: its entries, the newest record of each sample, their labels.

An entry counts when its header fits its own crc32, stands where it says, and its number goes on from the
entries before it. What lies between such entries hides. A table counts when it fits the crc32 in its
header: the table of a chunk says of its samples where they are, and so does the index of a seal of all
samples before it, so that each can stand in for the other. Whether a record is good, its crc32 tells later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.contents import Chain, Contents, chunk_numbers, find_headers, merge, read_revision, read_table
from edcache.durable import File
from edcache.errors import (
    ArchiveError,
    CorruptArchiveError,
    FormatVersionError,
    LabelTypeError,
    NotAnArchiveError,
)
from edcache.format import PAGE, Cursor, Head, Header
from edcache.labels.arrays import replace_columns, take_rows
from edcache.labels.columns import no_labels, unify
from edcache.labels.revisions import Placed, revised
from edcache.labels.tables import (
    MAX_SCHEMAS,
    ChunkTable,
    Dictionary,
    Failure,
    IndexTable,
    Records,
    Revision,
    parse_index,
    parse_labels,
    spread,
)
from edcache.maintain.survey import ROW_NBYTES

# An entry at the end of a file that was cut reaches beyond it; what is left of it is looked at.
_ANYWHERE: Final = 1 << 62
_END_RECORD: Final = b"PK\x05\x06"
_END_RECORD_NBYTES: Final = 22
_PICKLES: Final = '{"pickle":5}'

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Doubtful:
    """Something of the archive of which nothing intact tells what it held.

    What it held is missing. Where it held newer records of samples that older chunks have too, those samples
    are the older ones now.

    Attributes:
        seq: its sequence number. offset: where it begins. samples: how many it had, None where nobody
            knows. entries: how many entries hide there; they need not be chunks.
    """

    seq: int
    offset: int
    samples: int | None
    entries: int = 1


@dataclass(frozen=True)
class _Rows:
    """Records with their offsets in the file and their index, their schemas, and their labels row by row."""

    records: Records
    schemas: list[str]
    labels: Any

    @property
    def index(self) -> Ints:
        assert self.records.index is not None
        return self.records.index


class Salvage:
    """What a damaged file proves.

    Attributes:
        head: as it reads, or what can be told without it. head_lost: whether it did not read.
        contents: the newest record of each sample as far as anything tells, each once, none overlapping.
        length: of the dataset. lost: indices of samples whose newest record cannot be in `contents`.
        unlabelled: indices whose labels are lost. doubtful: see there.
        revision: what all revisions of labels that are intact say, as one; None where that is nothing.
        lost_revisions: names of those of which nothing intact tells what they said.
        dictionaries: where they lie, whole or not. failures: what was last said of samples that failed.
        problems: one line each, with path and offset.
    Raises:
        NotAnArchiveError, CorruptArchiveError: nothing of an archive is there.
        FormatVersionError: the head is of a newer format.
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
        self._entries = _Entries(file, self.head.uuid, cursor)
        self._chain = self._noted()
        self._sealed = self._last_index()
        self._tables = {header.seq: self._table(header) for header in self._chain.chunks}
        self._look_at_gaps()
        rows = self._newest_rows()
        if self.head_lost:
            self.head = self._guessed_head(rows)
        self.length = self._length()
        self.contents = self._contents(rows)
        self.lost_revisions: list[str] = []
        self.revision = self._folded()

    def _problem(self, offset: int, what: str) -> None:
        self.problems.append(f"{self.path}: at offset {offset:,}: {what}")

    # --- the head ---

    def _read_head(self) -> tuple[Head, Cursor | None]:
        try:
            return format.read_head(self._pread, self.path)
        except (NotAnArchiveError, CorruptArchiveError, FormatVersionError) as error:
            # A newer format's headers would not parse either: where others do, the head's version is damage.
            uuids = Counter(header.uuid for header in find_headers(self._file, 0, self._size))
            if not uuids:
                raise
            self._problem(0, "the head is damaged: fingerprint, codec and label paths are not known for sure")
            self.head_lost = True
            damage: ArchiveError = error
        uuid = uuids.most_common(1)[0][0]
        first = format.parse_header(self._pread(0, format.MAX_HEADER_NBYTES))
        if first is None or first.kind != format.KIND_HEAD or first.uuid != uuid:
            return Head(uuid), None
        if set(uuids) == {uuid} and uuids[uuid] == 1:
            raise damage
        return Head(uuid), format.after(first)._replace(seq=0)

    def _guessed_head(self, rows: _Rows) -> Head:
        compression = None
        if rows.records.raw_nbytes is not None:
            compression = "zstd+dict" if self.dictionaries else "zstd"
        pickled = bool(rows.schemas) and set(rows.schemas) == {_PICKLES}
        names = rows.labels.column_names
        return Head(
            self.head.uuid,
            codec="pickle" if pickled else "native",
            compression=compression,
            labels=tuple((name, None) for name in names),
        )

    # --- entries and tables ---

    def _noted(self) -> Chain:
        chain = Chain(self.head, Cursor(0, 0, 0), self.path)
        for run in self._entries.runs:
            for header in run:
                if len(run) > 1 or header.kind != format.KIND_LABELS:
                    chain.note(self._pread, header)
                self._check_amendment(header)
        return chain

    def _check_amendment(self, header: Header) -> None:
        if header.kind == format.KIND_AMENDMENT and not self._is_whole(header):
            self._problem(header.offset, f"{header.name} is damaged: what it revised is not known")

    def _is_whole(self, header: Header) -> bool:
        return self._read_whole(header) is not None

    def _read_whole(self, header: Header) -> bytes | None:
        """The table bytes of an entry, if they fit their crc32."""
        if header.payload_offset + header.table_nbytes > self._size:
            return None
        data = self._pread(header.payload_offset, header.table_nbytes)
        return data if format.crc32(data) == header.table_crc else None

    def _table(self, header: Header) -> ChunkTable | None:
        if header.samples * ROW_NBYTES <= header.table_nbytes <= self._size:
            try:
                return read_table(self._pread, header, self.path)
            except CorruptArchiveError:
                pass
        self._problem(header.offset, f"{header.name}: the table of its {header.samples:,} samples is damaged")
        if header.seq > self._sealed.seq:
            self.doubtful.append(Doubtful(header.seq, header.offset, header.samples))
        return None

    def _last_index(self) -> _Sealed:
        """The newest index that is intact, with its labels where they are intact too."""
        headers = [header for run in self._entries.runs for header in run]
        found = _Sealed(-1, None, None)
        for header, following in zip_longest(headers, headers[1:]):
            if header.kind == format.KIND_INDEX:
                index = self._index(header)
                if index is not None:
                    found = _Sealed(header.seq, index, self._labels(index, following))
        return found

    def _index(self, header: Header) -> IndexTable | None:
        data = self._read_whole(header)
        try:
            if data is not None:
                return parse_index(data, header.samples)
        except CorruptArchiveError:
            pass
        self._problem(header.offset, "index.arrow is damaged")
        return None

    def _labels(self, index: IndexTable, header: Header | None) -> Any:
        rows = len(index.records.offset)
        if header is None or header.kind != format.KIND_LABELS:
            return None
        data = self._read_whole(header)
        try:
            if data is not None and header.samples in (rows, index.length):
                return parse_labels(data, header.samples)
        except CorruptArchiveError:
            pass
        self._problem(header.offset, "labels.arrow is damaged")
        return None

    def _look_at_gaps(self) -> None:
        for gap in self._entries.gaps:
            self._problem(gap.start, gap.said)
            if gap.hidden and gap.seq > self._sealed.seq:
                self.doubtful.append(Doubtful(gap.seq, gap.start, None, gap.hidden))
        self.doubtful.sort(key=lambda doubtful: doubtful.seq)

    # --- rows ---

    def _newest_rows(self) -> _Rows:
        """The newest record of each sample as far as anything tells; contradictions are lost."""
        seq, index = self._sealed.seq, self._sealed.index
        after = self._merged([header for header in self._chain.chunks if header.seq > seq])
        if index is None:
            return after
        before = self._merged([header for header in self._chain.chunks if header.seq < seq])
        base = self._reconciled(index, before)
        self.unlabelled = self.unlabelled[~np.isin(self.unlabelled, after.index)]
        return _joined(_without(base, after.index), after, self.path)

    def _merged(self, chunks: Sequence[Header]) -> _Rows:
        sound = [header for header in chunks if self._tables[header.seq] is not None]
        names = [name for name, _ in self.head.labels]
        contents = merge(sound, lambda header: self._tables[header.seq], [], None, names, self.path)
        return _rows_of(contents)

    def _reconciled(self, index: IndexTable, before: _Rows) -> _Rows:
        """The rows of an index, as far as no chunk before it contradicts them, with their labels."""
        records = index.records
        if records.index is None:
            records = Records(**{**records.columns(), "index": np.arange(len(records.offset))})
        assert records.index is not None
        at = np.searchsorted(before.index, records.index)
        known = at < len(before.index)
        known[known] = before.index[at[known]] == records.index[known]
        same = known.copy()
        said, told = records.columns(), before.records.columns()
        for name in {*said, *told} - {"index", "schema"}:
            # Where only one of them compresses, they agree on nothing.
            if name not in said or name not in told:
                same[:] = False
            else:
                same[known] &= told[name][at[known]] == said[name][known]
        texts = np.array([*index.schemas, ""], object)
        numbers = np.minimum(records.schema, len(index.schemas))
        others = np.array([*before.schemas, ""], object)
        same[known] &= texts[numbers[known]] == others[before.records.schema[at[known]]]
        # A newer record may hide in what does not read, never in a chunk whose table says otherwise.
        newer = known & ~same
        newer[newer] = records.offset[newer] > before.records.offset[at[newer]]
        hides = ~self._is_in_sound_chunk(records.offset)
        believed = same | (hides & (newer | ~known))
        believed &= numbers < len(index.schemas)
        forgotten = before.index[~np.isin(before.index, records.index)]
        self._lose(records.index[~believed], "index.arrow and the chunks contradict each other about")
        self._lose(forgotten, "index.arrow leaves out what a chunk holds:")
        rows = np.flatnonzero(believed)
        labels = self._labels_of(records, rows, before, np.where(same, at, -1))
        return _Rows(records.take(rows), index.schemas, labels)

    def _is_in_sound_chunk(self, offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        sound = [
            header
            for header in self._chain.chunks
            if header.seq < self._sealed.seq and self._tables[header.seq] is not None
        ]
        if not sound:
            return np.zeros(len(offsets), bool)
        start = np.array([header.offset for header in sound], np.uint64)
        end = np.array([min(header.payload_end, _ANYWHERE) for header in sound], np.uint64)
        run = np.searchsorted(start, offsets, "right") - 1
        return (run >= 0) & (offsets < end[np.maximum(run, 0)])

    def _labels_of(self, records: Records, rows: Ints, before: _Rows, at: Ints) -> Any:
        """The labels that rows of an index had when they were written: its own, or those the chunks tell."""
        labels, index = self._sealed.labels, self._sealed.index
        assert index is not None
        if labels is not None and index.labels is None:
            return take_rows(labels, rows)
        assert records.index is not None
        told = np.flatnonzero(at[rows] >= 0)
        found = take_rows(before.labels, at[rows][told])
        names = self._label_names()
        # Where revisions were sealed in, the seal says what the labels are now.
        if labels is None and (names is None or names):
            self.unlabelled = records.index[rows][at[rows] < 0]
        found = spread(found if found.num_columns else no_labels(names or []), told, len(rows))
        if labels is None or index.labels is None:
            return found
        places = rows if labels.num_rows == len(index.records.offset) else records.index[rows]
        own = [name for name, is_revised in index.labels if not is_revised and name in labels.column_names]
        return replace_columns(found, take_rows(labels.select(own), places))

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

    def _contents(self, rows: _Rows) -> Contents:
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
        return Contents(table, take_rows(rows.labels, kept))

    # --- revisions of labels ---

    def _folded(self) -> Revision | None:
        records = self.contents.index.records
        placed = self._revisions()
        if not placed:
            return None
        written = chunk_numbers(self._chain.chunks, records.offset)
        arguments = self.contents.labels, records.index, written
        try:
            found = revised(*arguments, placed, self.length, self.path)
        except LabelTypeError:
            # Types that changed where nothing tells any more: what was added counts.
            placed = [Placed(seq, _replacing(said)) for seq, said in placed]
            found = revised(*arguments, placed, self.length, self.path)
        return found.folded(records.index)

    def _revisions(self) -> list[Placed]:
        """Those that are intact, those before a seal as the seal has them if that is intact."""
        found = [(header, self._revision(header)) for header in self._chain.revisions]
        sealed = self._sealed_revision([said for header, said in found if header.seq < self._sealed.seq])
        since = self._sealed.seq if sealed is not None else -1
        self.lost_revisions += [h.name for h, said in found if said is None and h.seq > since]
        rest = [Placed(h.seq, said) for h, said in found if said is not None and h.seq > since]
        return rest if sealed is None else [Placed(since, sealed), *rest]

    def _revision(self, header: Header) -> Revision | None:
        if self._is_whole(header):
            try:
                return read_revision(self._pread, header, self.path)
            except CorruptArchiveError:
                pass
        self._problem(header.offset, f"{header.name}: labels that were added or dropped are damaged")
        return None

    def _sealed_revision(self, before: Sequence[Revision | None]) -> Revision | None:
        """What the revisions before a seal came to, as its labels.arrow has it."""
        index, labels = self._sealed.index, self._sealed.labels
        if index is None or labels is None or index.labels is None:
            return None
        columns = dict(index.labels)
        if list(columns) != labels.column_names:
            return None
        told = self._label_names() or []
        dropped = {name for said in before if said is not None for name in said.dropped}
        ended = [name for name in told if name not in columns or name in dropped]
        is_per_sample = labels.num_rows == index.length
        added = labels.select([name for name, is_revised in columns.items() if is_revised])
        return Revision(added, ended, None if is_per_sample else index.records.index)

    # --- what else the archive said ---

    def _length(self) -> int:
        sealed = 0 if self._sealed.index is None else self._sealed.index.length
        ends = (header.end_index for header in self._chain.chunks if header.end_index < _ANYWHERE)
        return max(self._chain.length or 0, sealed, *ends, 0)

    @property
    def dictionaries(self) -> list[Dictionary]:
        """Where the compression dictionaries lie, oldest first; whole or not."""
        found = {
            d.payload_offset: Dictionary(d.payload_offset, d.table_nbytes, d.table_crc)
            for d in self._chain.dictionaries
        }
        if self._sealed.index is not None:
            found |= {d.offset: d for d in self._sealed.index.dictionaries}
        apart: list[Dictionary] = []
        end = 0
        for dictionary in sorted(found.values()):
            if end <= dictionary.offset <= dictionary.offset + dictionary.nbytes <= self._size:
                apart.append(dictionary)
                end = dictionary.offset + dictionary.nbytes
        return apart

    @property
    def failures(self) -> list[Failure]:
        """What was last said of each sample that failed; it may have a record."""
        found: dict[int, Failure] = {}
        if self._sealed.index is not None:
            found = {failure.index: failure for failure in self._sealed.index.failures}
        for seq, failure in self._chain.failures.values():
            if seq > self._sealed.seq:
                found[failure.index] = failure
        return sorted(failure for failure in found.values() if failure.index < self.length)


@dataclass(frozen=True)
class _Sealed:
    """The newest intact index, its sequence number, and the labels that go with it."""

    seq: int
    index: IndexTable | None
    labels: Any


class _Gap(NamedTuple):
    """Entries that hide: the first's sequence number, where, how many that are no seal, and a sentence."""

    seq: int
    start: int
    hidden: int
    said: str


class _Entries:
    """The entries of a damaged archive that are whole, as runs, each linked from header to header.

    Where a run ends before the file does, the pages behind are searched for the next one.

    Attributes:
        runs: by rising offset and sequence number. gaps: what hides between and behind them.
    """

    def __init__(self, file: File, uuid: bytes, cursor: Cursor | None) -> None:
        self._file, self._pread, self._size, self._uuid = file, file.pread, file.size(), uuid
        self._is_anchored = cursor is not None
        # Where the first entry belongs.
        self._first = cursor or Cursor(PAGE, 0, 0)
        self.runs: list[list[Header]] = []
        if cursor is not None:
            self.runs.append(list(format.walk(self._pread, _ANYWHERE, uuid, cursor)))
        for run in self._searched():
            self._take(run)
        self.gaps = [*self._gaps_between(), *self._gap_behind()]

    def _searched(self) -> Iterator[list[Header]]:
        position = self._end(self.runs[0]) if self.runs else PAGE
        while position < self._size:
            headers = find_headers(self._file, position, self._size, self._uuid)
            # Two entries begin on a page at most: nobody has written a number beyond that.
            found = next((h for h in headers if h.seq <= 2 * h.offset // PAGE), None)
            if found is None:
                return
            cursor = Cursor(found.offset, found.seq, found.link)
            run = list(format.walk(self._pread, _ANYWHERE, self._uuid, cursor))
            if not run and found.kind in (format.KIND_INDEX, format.KIND_LABELS):
                run = [found]  # one half of a seal
            if run:
                yield run
            position = max(found.offset + PAGE, self._end(run) if run else 0)

    def _end(self, run: list[Header]) -> int:
        """Where what follows a run belongs."""
        if not run:
            return self._first.offset
        last = run[-1]
        return last.payload_end if len(run) == 1 and last.kind == format.KIND_LABELS else last.next

    def _take(self, run: list[Header]) -> None:
        """Add a run, if its numbers go on; of two that exclude each other the longer one stays."""
        while not self._goes_on(run) and len(self.runs) > self._is_anchored:
            if len(self.runs[-1]) >= len(run):
                break
            self.runs.pop()
        if self._goes_on(run):
            self.runs.append(run)

    def _goes_on(self, run: list[Header]) -> bool:
        # The very next number would have been found at its place, with its link: it is of a history that
        # was cut off and written over.
        if self.runs and self.runs[-1]:
            return run[0].seq >= self.runs[-1][-1].seq + 2
        return run[0].seq >= int(self._is_anchored)

    def _gaps_between(self) -> Iterator[_Gap]:
        ends: list[tuple[int, int, bool]] = [(0, self._first.offset, False)]
        for run in self.runs:
            if not run:
                continue
            seq, start, labels_hide = ends[-1]
            if run[0].seq > seq:
                yield self._gap(seq + labels_hide, start, run[0])
            last = run[-1]
            ends.append((last.seq + 1, self._end(run), last.kind == format.KIND_INDEX))

    def _gap(self, seq: int, start: int, following: Header) -> _Gap:
        hidden = following.seq - seq - (following.kind == format.KIND_LABELS)
        tail = self._directory_in(start, following.offset)
        if tail is not None and hidden >= 2:
            hidden -= 2
        found = f"{following.name} follows at offset {following.offset:,}"
        return _Gap(seq, start, hidden, f"no entry fits here, {found}")

    def _gap_behind(self) -> Iterator[_Gap]:
        last = next((run[-1] for run in reversed(self.runs) if run), None)
        seq = 0 if last is None else last.seq + 1
        start = self._end(next((run for run in reversed(self.runs) if run), []))
        if start >= self._size or (last is not None and last.kind == format.KIND_INDEX):
            return
        tail = self._directory_in(start, self._size)
        if tail is not None:
            hidden = int(tail.index_offset > start)
            yield _Gap(seq, start, hidden, "a seal begins here or behind that is damaged")
        elif last is None or last.kind != format.KIND_LABELS or start < self._size:
            yield from self._begun(seq, start)

    def _begun(self, seq: int, start: int) -> Iterator[_Gap]:
        """The header of an entry goes last: where a part of one stands, it was whole once, or nearly."""
        found = self._pread(start, format.HEADER_NBYTES)
        name = found[30:]
        if name.startswith(b"index.arrow"):
            yield _Gap(seq, start, 0, "a seal begins here that is damaged")
        elif found.startswith(b"PK\x03\x04") or name.startswith(
            (b"chunks/", b"zstd/", b"notes/", b"labels/")
        ):
            yield _Gap(seq, start, 1, "an entry begins here that is damaged")
        else:
            nbytes = self._size - start
            yield _Gap(seq, start, 0, f"{nbytes:,} bytes behind the last entry are no entry: a torn tail")

    def _directory_in(self, start: int, end: int) -> format.Tail | None:
        """The end of a zip directory that lies behind `start`, and but for zeros right before `end`."""
        data = self._pread(max(start, end - 2 * PAGE), min(2 * PAGE, end - start))
        at = data.rfind(_END_RECORD)
        if at < 0:
            return None
        size = max(start, end - 2 * PAGE) + at + _END_RECORD_NBYTES
        found = self._pread(max(0, size - format.TAIL_NBYTES), format.TAIL_NBYTES)
        tail = format.parse_tail(found, size)
        return tail if tail is not None and tail.index_offset >= start else None


def _replacing(revision: Revision) -> Revision:
    return replace(revision, dropped=[*{*revision.dropped, *revision.labels.column_names}])


def _rows_of(contents: Contents) -> _Rows:
    records = contents.index.records
    if records.index is None:
        records = Records(**{**records.columns(), "index": np.arange(len(records.offset))})
    return _Rows(records, contents.index.schemas, contents.labels)


def _without(rows: _Rows, index: Ints) -> _Rows:
    kept = np.flatnonzero(~np.isin(rows.index, index))
    return _Rows(rows.records.take(kept), rows.schemas, take_rows(rows.labels, kept))


def _joined(first: _Rows, second: _Rows, where: str) -> _Rows:
    """Both together, one behind the other."""
    if not len(second.index):
        return first
    schemas = list(dict.fromkeys([*first.schemas, *second.schemas]))
    if len(schemas) > MAX_SCHEMAS:
        raise CorruptArchiveError(f"{where}: {len(schemas):,} schemas, the format allows {MAX_SCHEMAS:,}")
    columns = []
    for rows in (first, second):
        numbers = np.array([*map(schemas.index, rows.schemas), 0], np.uint16)
        found = rows.records.columns() | {"schema": numbers[rows.records.schema]}
        columns.append(found)
    if any("raw_nbytes" in found for found in columns):
        for found, rows in zip(columns, (first, second), strict=True):
            found.setdefault("raw_nbytes", np.zeros(len(rows.index), np.uint64))
    records = Records(**{name: np.concatenate([c[name] for c in columns]) for name in columns[0]})
    labels = unify([first.labels, second.labels], where) if len(first.index) else second.labels
    return _Rows(records, schemas, labels)
