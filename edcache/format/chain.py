"""What an archive holds: its chain of entries, and the tables of its chunks, read with care."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.base import CorruptArchiveError
from edcache.format import spec, tables
from edcache.format.chunk_tables import Contents, Merge, merge
from edcache.format.revisions import Revised, revised
from edcache.format.spec import Cursor, Head, Header, PRead, Seal
from edcache.format.tables import ChunkTable, Failure, Revision

_T = TypeVar("_T")
_PIECE_NBYTES = 1 << 22
_WINDOW = 1024 * spec.PAGE
# Amendments may name an entry that an earlier one gave up, as their ranges are few; not without end.
_MOST_LOST = 100


class Chain:
    """The entries of an archive in order, as far as walked, and what they amount to.

    cursor: where the next entry belongs. seal: the last one, if nothing came after it but revisions that
    leave it valid. length: of the dataset, where the head or an amendment says it. origin: the head, with the
    fingerprint and the length of the source that was the last to lengthen it. end_index: one more than
    the largest index in a chunk. durable: what lies before was synced. lost: numbers of entries that a power
    cut took; they are in none of the lists. failures: by index, the number of the entry that says it, and the
    failure; a record may follow.
    """

    def __init__(self, head: Head, cursor: Cursor, where: str) -> None:
        self.head = head
        self.where = where
        self.cursor = cursor
        self.seal: Seal | None = None
        self.length = head.length
        self.origin = head
        self.end_index = 0
        self.durable = 0
        self.lost: set[int] = set()
        self.failures: dict[int, tuple[int, Failure]] = {}
        self._entries: dict[int, Header] = {}  # by sequence number
        self._by_kind: dict[int, list[Header]] = {}
        self._index: Header | None = None
        self._last_seal = -1
        self._lost_named = 0
        self._gave_up = -2

    def copy(self) -> Chain:
        """The same as far as walked; one may go on without the other."""
        other = copy.copy(self)
        other.lost, other.failures = self.lost.copy(), self.failures.copy()
        other._entries, other._by_kind = self._entries.copy(), {}
        return other

    @property
    def entries(self) -> list[Header]:
        """Everything but seals, in order: what a zip directory lists between head and index."""
        return list(self._entries.values())

    @property
    def chunks(self) -> list[Header]:
        """The chunks, in order."""
        return self._of_kind(spec.KIND_CHUNK)

    @property
    def revisions(self) -> list[Header]:
        """The revisions of labels, in order."""
        return self._of_kind(spec.KIND_REVISION)

    @property
    def sealed_revisions(self) -> list[Header]:
        """Those that the seal has in its labels: but for those behind it."""
        behind = () if self.seal is None else self.seal.revisions
        return self.revisions[: len(self.revisions) - len(behind)]

    def _of_kind(self, kind: int) -> list[Header]:
        # Filtered once, however many amendments give entries up.
        if kind not in self._by_kind:
            self._by_kind[kind] = [header for header in self._entries.values() if header.kind == kind]
        return self._by_kind[kind]

    @property
    def holds_nothing(self) -> bool:
        """True if no sample and no label is published, nor a seal: a first fill that failed leaves that."""
        return self.seal is None and not self.chunks and not self.revisions

    @property
    def was_sealed(self) -> bool:
        """True if only revisions came behind a seal: who made one may have died before the next seal."""
        others = (header.seq for header in self._entries.values() if header.kind != spec.KIND_REVISION)
        return self.seal is not None or self._last_seal > max(others, default=-1)

    @property
    def gave_up_last(self) -> bool:
        """True if the last entry gives up what a power cut took: what lies behind is of before that."""
        return self._gave_up == self.cursor.seq - 1

    def extend(self, pread: PRead, size: int) -> None:
        """Take in what follows the cursor in a file of `size` bytes."""
        for header in spec.walk(pread, size, self.head.uuid, self.cursor):
            self.note(pread, header)

    def note(self, pread: PRead, header: Header) -> None:
        """Take in one entry, which must be the one that belongs at the cursor.

        The cursor moves last, and of a seal only with its second entry: where an interrupt falls in between,
        the same entry is taken in again, which changes nothing (tests/faults/soak_interrupts.py).
        """
        if header.kind == spec.KIND_INDEX:
            self._index = header
            return
        if header.kind == spec.KIND_LABELS:
            assert self._index is not None
            self.seal, self._last_seal = Seal(self._index, header), header.seq
        else:
            self.seal = self._seal_before(header)
            self._add(pread, header)
        self.durable = max(self.durable, header.durable)
        self.cursor = spec.after(header)

    def _seal_before(self, header: Header) -> Seal | None:
        """The seal that an entry, which is no seal, leaves valid."""
        if self.seal is None or not header.keeps_seal:
            return None
        others = [revision for revision in self.seal.revisions if revision.seq < header.seq]
        if len(others) == spec.MAX_BEHIND_SEAL:
            return None
        return replace(self.seal, revisions=(*others, header))

    def _add(self, pread: PRead, header: Header) -> None:
        self._entries[header.seq] = header
        listed = self._by_kind.get(header.kind)
        if listed is not None and (not listed or listed[-1].seq < header.seq):
            listed.append(header)
        if header.kind == spec.KIND_CHUNK:
            self.end_index = max(self.end_index, header.end_index)
        elif header.kind == spec.KIND_AMENDMENT:
            self._amend(pread, header)

    def _amend(self, pread: PRead, header: Header) -> None:
        amendment = _read_amendment(pread, header, self.where)
        if amendment is None:
            return
        if amendment.length is not None:
            self.length = amendment.length
        if amendment.fingerprint is not None:
            self.origin = replace(self.head, length=amendment.length, fingerprint=amendment.fingerprint)
        self.failures |= {failure.index: (header.seq, failure) for failure in amendment.failed}
        if amendment.lost:
            self._gave_up = header.seq
        self._lost_named += sum(map(len, amendment.lost))
        if self._lost_named > _MOST_LOST * (header.seq + 1):
            raise CorruptArchiveError(
                f"{self.where}: {self._lost_named:,} entries given up of {header.seq:,}; no release of "
                "edcache wrote that: build the archive again"
            )
        self.give_up(seq for part in amendment.lost for seq in part)

    def give_up(self, numbers: Iterable[int]) -> None:
        """Leave entries out that a power cut took."""
        for seq in numbers:
            self.lost.add(seq)
            entry = self._entries.pop(seq, None)
            if entry is not None:
                self._by_kind.pop(entry.kind, None)

    def find_lost(self, pread: PRead) -> set[int]:
        """Numbers of unsynced entries whose payload fails its crc32, newly found; reads all of them."""
        unsynced = [header for header in self.entries if header.payload_end > self.durable]
        seal = self.seal
        if seal is not None:
            # Of a seal its first header is written last.
            written_last = seal.revisions[-1] if seal.revisions else seal.index
            unsynced += [seal.index, seal.labels] if seal.index.durable < seal.index.offset else []
            seal = seal if written_last.durable < written_last.offset else None
        lost = {header.seq for header in unsynced if not has_sound_payload(pread, header)}
        if seal is not None:
            directory = self.directory(pread, seal)
            if pread(seal.directory_offset, len(directory)) != directory:
                lost |= {seal.index.seq, seal.labels.seq}
        return lost

    def head_header(self, pread: PRead) -> Header:
        """The header of the head; CorruptArchiveError where it changed since it was read."""
        header = spec.parse_header(pread(0, spec.MAX_HEADER_NBYTES))
        if header is None:
            raise CorruptArchiveError(f"{self.where}: the head at offset 0 changed while it was open")
        return header

    def directory(self, pread: PRead, seal: Seal) -> bytes:
        """The zip directory that belongs behind a seal of what was walked; raises as `head_header`."""
        return spec.pack_directory(
            [self.head_header(pread), *self.entries, seal.index, seal.labels], seal.directory_offset
        )

    def ends_with_directory(self, pread: PRead, size: int, seal: Seal) -> bool:
        """True if the zip directory of the walked chain is what lies between a seal and `size`."""
        directory, start = self.directory(pread, seal), seal.directory_offset
        # Not a byte behind `size`: others append (test_process.py, test_an_archive_that_changes_*).
        return start + len(directory) == size and pread(start, len(directory)) == directory

    def merged(self, table: Callable[[Header], ChunkTable | None]) -> Merge:
        """The tables of the chunks, to be merged part by part."""
        names = [name for name, _ in self.head.labels]
        failures = [failure for _, failure in self.failures.values()]
        return Merge(self.chunks, table, names, self.where, failures)

    def contents(
        self, table: Callable[[Header], ChunkTable | None], before: Contents | None = None
    ) -> Contents:
        """Where every sample lies, and its labels; as `merge` does it."""
        names = [name for name, _ in self.head.labels]
        failures = [failure for _, failure in self.failures.values()]
        return merge(self.chunks, table, self.length, names, self.where, failures, before)

    def revised(
        self,
        contents: Contents,
        revision: Callable[[Header], Revision | None],
        headers: Sequence[Header] | None = None,
    ) -> Revised:
        """The label table with the revisions of headers, or with all. revision: reads one; None: not it."""
        headers = self.revisions if headers is None else headers
        if not headers:
            return Revised(contents.labels, None)
        read = [(header.seq, revision(header)) for header in headers]
        placed = [(seq, labels) for seq, labels in read if labels is not None]
        records = contents.index.records
        written = chunk_numbers(self.chunks, records.offset)
        whole = revised(contents.labels, records.index, written, placed, contents.index.length, self.where)
        # Even where none of them reads the seal says that there are some.
        plain = tuple((name, False) for name in whole.table.column_names)
        return whole if whole.columns is not None else whole._replace(columns=plain)


def chunk_numbers(chunks: Sequence[Header], offsets: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The sequence number of the chunk that each record lies in: the last that begins before it, or -1."""
    begins = np.array([chunk.offset for chunk in chunks], np.uint64)
    numbers = np.array([-1, *(chunk.seq for chunk in chunks)], np.int64)
    return numbers[np.searchsorted(begins, offsets, "right")]


class _Amendment(NamedTuple):
    length: int | None
    fingerprint: dict[str, Any] | None
    lost: list[range]
    failed: list[Failure]


def _read_amendment(pread: PRead, header: Header, where: str) -> _Amendment | None:
    """What an amendment revises, or None where its bytes were lost in a power cut."""
    data = pread(header.payload_offset, header.table_nbytes)
    if len(data) != header.table_nbytes or spec.crc32(data) != header.table_crc:
        return None
    try:
        changes = base.loads(data)
        known = {"length", "fingerprint", "lost", "behind", "failed"}
        if type(changes) is not dict or not changes or not changes.keys() <= known:
            raise ValueError("it revises something else than length, fingerprint, lost and failed")
        length = changes.get("length")
        if not (length is None or spec.is_count(length)):
            raise ValueError(f"a length of {str(length)[:80]}")
        fingerprint = changes.get("fingerprint")
        if not (fingerprint is None or (type(fingerprint) is dict and length is not None)):
            raise ValueError("a fingerprint that is no object, or without a length")
        lost = tables.entries_of(changes.get("lost", []), "lost entries", int, int)
        ranges = [range(first, last + 1) for first, last in lost]
        if not all(0 <= part.start < part.stop <= header.seq for part in ranges):
            raise ValueError("it gives up entries that are not before it")
        return _Amendment(length, fingerprint, ranges, tables.failures_of(changes.get("failed", [])))
    except ValueError as error:
        raise CorruptArchiveError(
            f"{where}: {header.name} at offset {header.offset:,} does not read: {error}; "
            "no release of edcache wrote it: build the archive again"
        ) from error


def partial_text(where: str, present: int, length: int | None, damaged: Sequence[str] = ()) -> str:
    """What is wrong with an archive that is not sealed, and what helps. damaged: a line a bad chunk."""
    count = f"{present:,} samples" if length is None else f"{present:,} of {length:,} samples"
    damage = "".join(f"\n{line}" for line in damaged)
    return (
        f"{where}: not sealed: its writer was killed or is still at work, or the file was cut; {count} are "
        'there. Fill it again: CachedDataset(source, path), or CacheWriter(path, "a"); or keep what is there '
        f'in a sealed archive: "edcache copy {where} -o NEW --skip-damaged"; or take it as it is: '
        "allow_partial=True"
        f"{damage}"
    )


def read_table(pread: PRead, header: Header, where: str) -> ChunkTable:
    """The table of one chunk, checked; CorruptArchiveError names chunk and offset."""
    place = f"{where}: chunk {header.seq} at offset {header.offset:,}"
    table = _parsed(tables.parse_chunk_table, pread, header, where, place)
    if not _within(header, table):
        raise CorruptArchiveError(
            f"{place}: its table points outside of it, twice at one place, or at a schema it has not"
        )
    return table


def read_revision(pread: PRead, header: Header, where: str) -> Revision:
    """A revision of labels, checked; CorruptArchiveError names entry and offset."""
    place = f"{where}: {header.name} at offset {header.offset:,}"
    revision = _parsed(tables.parse_revision, pread, header, where, place)
    if revision.end_index != header.end_index:
        raise CorruptArchiveError(
            f"{place}: its rows end at {revision.end_index:,}, its header says {header.end_index:,}"
        )
    return revision


def _parsed(parse: Callable[[Any, int], _T], pread: PRead, header: Header, where: str, place: str) -> _T:
    """What the table bytes of an entry say."""
    data = pread(header.payload_offset, header.table_nbytes)
    if len(data) != header.table_nbytes or spec.crc32(data) != header.table_crc:
        raise CorruptArchiveError(f'{place}: its table fails its crc32; run "edcache verify {where}"')
    try:
        return parse(data, header.samples)
    except CorruptArchiveError as error:
        raise CorruptArchiveError(f"{place}: {error}") from error


def _within(header: Header, table: ChunkTable) -> bool:
    records, room = table.records, header.payload_end - header.records_offset
    if room < 0 or records.index is None or int(records.schema.max()) >= len(table.schemas):
        return False
    if int(records.offset.max()) > room or int(records.nbytes.max()) > room:  # so that the sum cannot wrap
        return False
    if spec.block_count(table.records_nbytes) * 4 != table.behind_nbytes:
        return False
    ends = records.offset + records.nbytes
    if np.any(records.offset[1:] < ends[:-1]):
        return False
    return (
        int(ends[-1]) == table.records_nbytes <= room
        and int(records.index.min()) >= 0
        and int(records.index.max()) == header.end_index - 1
    )


def find_headers(file: Any, start: int, end: int, uuid: bytes | None = None) -> Iterator[Header]:
    """The headers that stand on the pages from `start` to `end`, where they say that they belong.

    Reads all of it but holes, a few MiB at a time: a file of a terabyte may be nothing else.
    """
    position = spec.align(start, spec.PAGE)
    while position < end:
        position = max(position, file.next_data(position) // spec.PAGE * spec.PAGE)
        window = file.pread(position, max(0, min(_WINDOW, end - position)))
        if not window:
            return
        firsts = np.frombuffer(window, "<u4", len(window) // 4)[:: spec.PAGE // 4]
        for page in np.flatnonzero(firsts == int.from_bytes(b"PK\x03\x04", "little")).tolist():
            offset = position + page * spec.PAGE
            header = spec.parse_header(file.pread(offset, spec.MAX_HEADER_NBYTES))
            if header is not None and header.offset == offset and uuid in (None, header.uuid):
                yield header
        position += spec.align(len(window), spec.PAGE)


def padding_of(pread: PRead, header: Header) -> bytes:
    """What lies behind an entry's table and is to be zero: to its records in a chunk, else to its end."""
    if header.kind in (spec.KIND_INDEX, spec.KIND_LABELS):
        return b""  # their tables say where all else lies
    start = header.payload_offset + header.table_nbytes
    end = header.records_offset if header.kind == spec.KIND_CHUNK else header.payload_end
    return pread(start, end - start)


def has_sound_payload(pread: PRead, header: Header) -> bool:
    """True if an entry's payload is what its header says; reads all of it."""
    return payload_crc(pread, header) == header.payload_crc


def payload_crc(pread: PRead, header: Header) -> int:
    """The crc32 that an entry's payload has, to compare with `header.payload_crc`; reads all of it."""
    crc, position = 0, header.payload_offset
    while position < header.payload_end:
        part = pread(position, min(_PIECE_NBYTES, header.payload_end - position))
        if not part:
            break
        crc = spec.crc32(part, crc)
        position += len(part)
    return crc
