"""Prove an archive: its chain, seals, tables and samples, against one another; and identify it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edcache import format
from edcache.base import CorruptArchiveError, Ints, LabelError
from edcache.format import ChunkTable, Contents, Header, IndexTable, PRead, Seal, checked_labels, parse_index
from edcache.reader import OnProgress, check_digest, file_digest, no_digest, parse_digest
from edcache.storage import ByteSource, File, located

# What the directory has of an entry, at least.
_LISTED_NBYTES: Final = 46
# A multiple of the block; what is read stays in a processor's cache while three checksums pass over it.
_WINDOW: Final = 64 * format.BLOCK_NBYTES
_SHOWN: Final = 20

OnProblem = Callable[[int, str], None]
"""`on_problem(offset, what)`; the offset counts from the start of the file."""


@dataclass
class Report:
    """What `verify` found.

    problems: one line each, with path and offset, what is wrong and what helps; empty when every byte
    that was looked at is proven. samples, missing, chunks, failures: of the dataset, as the chunks
    tell; failures are those of the missing that were tried. nbytes: of the file. sealed: whether it was;
    has_writer: where not, whether a process writes it now.
    dead: bytes that only older states of the archive need; `ds.save(ds.path)` leaves them out.
    quick: the samples' records were not read.
    """

    samples: int = 0
    missing: int = 0
    chunks: int = 0
    failures: int = 0
    nbytes: int = 0
    sealed: bool = False
    has_writer: bool = False
    dead: int = 0
    quick: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True if nothing is wrong: there is no damage, and it is sealed or a process is writing it."""
        return not self.problems and not self.is_partial

    @property
    def is_partial(self) -> bool:
        """True if it is not sealed and no process is writing it, so that samples may be missing."""
        return not (self.sealed or self.has_writer)


def verify(
    path: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    quick: bool = False,
    expected_digest: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Check every byte of an archive: its structure, all checksums, and that its tables agree.

    Args:
        path: the path or URL of the archive.
        on_progress: a function that is called with (bytes checked, bytes of the file) now and then.
        quick: True does not read the records of samples. It checks headers, tables and the seal.
        expected_digest: "sha256:...", as `digest` returned it for the archive. It is compared first.
        storage_options: for a URL, as in `edcache.reader.Reader`.
    Returns:
        A report. `report.sound` is True if nothing is wrong, and `report.problems` is a list of sentences.
        Damage is reported and not raised, unless the head of the file cannot be read.
    Raises:
        ArchiveNotFoundError, CorruptArchiveError; ArchiveError for a newer format.
        CorruptArchiveError: the head is damaged.
        ArchiveError: the file is not the one with this digest.
        OptionError: expected_digest is not a digest.
    Cost: reads the file once, with expected_digest twice; with `quick` only headers, tables and the seal.
        It takes about 70 bytes of memory per sample, and twice the labels.
    Safety: it writes nothing and locks nothing. Samples that others append meanwhile are not checked.
    """
    expected = None if expected_digest is None else parse_digest(expected_digest)
    with closing(located(path, storage_options).open()) as file:
        if expected is not None:
            check_digest(file, expected)
        survey = Survey(file, not quick, on_progress)
        if expected is not None and survey.seal is None:
            raise no_digest(file.path)
    index = survey.contents.index
    return Report(
        samples=index.length,
        missing=index.length - len(index.records.offset),
        chunks=len(survey.chain.chunks),
        failures=len(index.failures),
        nbytes=survey.size,
        sealed=survey.seal is not None,
        has_writer=survey.has_writer,
        dead=survey.dead,
        quick=quick,
        problems=survey.problems,
    )


def digest(
    path: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Hash a sealed archive.

    Args:
        path: the path or URL of the archive.
        on_progress: a function that is called with (bytes hashed, bytes of the file) now and then.
        storage_options: for a URL, as in `edcache.reader.Reader`.
    Returns:
        "sha256:" and the hex digits that `sha256sum` prints for the file.
    Raises:
        ArchiveError: "train.zip: it is not sealed, so it may still grow and has no digest; ...".
        ArchiveNotFoundError, CorruptArchiveError; ArchiveError for a newer format.
        CorruptArchiveError: the head is damaged.
    Cost: reads the file once.
    Safety: it writes nothing and locks nothing. It does not check the file; `verify` does.
    """
    with closing(located(path, storage_options).open()) as file:
        head, _ = format.read_head(file.pread, file.path)
        if format.read_seal(file.pread, file.size(), head.uuid) is None:
            raise no_digest(file.path)
        return file_digest(file, on_progress)[0]


class Survey:
    """The structure of an archive as it was when its size was taken; it may grow meanwhile.

    Attributes:
        head, chain, seal: as far as they read; seal is that of a sealed archive, else None.
        contents: the newest record of every sample. revised: the label table, revisions included. Where the
            tables cannot be joined, which is a problem, there is nothing in them.
        has_writer: whether a process writes the archive now; False where that cannot be asked.
        dead: bytes that only older states of the archive need. problems: one line each, with path and offset.
    """

    def __init__(self, file: ByteSource, reads_records: bool, on_progress: OnProgress | None) -> None:
        # The size first: what others append from now on lies behind it.
        self.size = file.size()
        self.path = file.path
        self.problems: list[str] = []
        self._outdated_nbytes = 0
        self._file, self._pread = file, file.pread
        self.has_writer = isinstance(file, File) and file.is_locked(format.LOCK_FILLER, format.FILLERS)
        self._reads_records, self._on_progress = reads_records, on_progress
        self.head, cursor = format.read_head(self._pread, self.path)
        self.chain = format.Chain(self.head, cursor, self.path)
        headers: list[Header] = []
        self._damaged_seals: list[Seal] = []
        self._head_end = cursor.offset
        for header in format.walk(self._pread, self.size, self.head.uuid, cursor):
            self._check_old_seal(header)
            self.chain.note(self._pread, header)
            self._check_reach(header)
            headers.append(header)
        for seal in self._damaged_seals:
            if seal.labels.seq not in self.chain.lost:  # to a power cut, with what belongs to it
                self._problem(seal.directory_offset, "the dead directory of an earlier seal is damaged")
        self.seal = format.read_seal(self._pread, self.size, self.head.uuid)
        self._is_joined = True
        self._revisions: dict[int, format.Revision | None] = {}
        self.contents = self._merged()
        self.revised = self._revised(self.chain.revisions)
        for header in (header for header in headers if header.seq not in self.chain.lost):
            if any(format.padding_of(self._pread, header)):
                self._problem(header.offset, f"{header.name}: bytes behind its content are not zero")
            if header.kind != format.KIND_CHUNK:
                self._check_crc(header, format.payload_crc(self._pread, header))
        if self.seal is not None:
            self._check_seal(self.seal)
        else:
            self._check_end()
        self.dead = self._dead()
        self._passed(self.size)

    def _passed(self, offset: int) -> None:
        if self._on_progress is not None:
            self._on_progress(min(offset, self.size), self.size)

    def _problem(self, offset: int, what: str) -> None:
        self.problems.append(
            f'{self.path}: at offset {offset:,}: {what}; run "edcache copy {self.path} -o NEW --skip-damaged"'
        )

    def _dead(self) -> int:
        """What the newest state does not need: superseded records, old seals, lost entries, a torn tail."""
        needed, seal = self._head_end - self._outdated_nbytes, self.chain.seal
        for header in self.chain.entries:
            # Behind an entry that leaves a seal valid, a zip directory stood or stands.
            end = header.payload_end if header.keeps_seal else min(header.next, self.size)
            needed += end - header.offset
        if seal is not None:
            needed += (
                seal.labels.payload_end - seal.index.offset + len(self.chain.directory(self._pread, seal))
            )
        return self.size - needed

    # --- tables ---

    def _merged(self) -> Contents:
        try:
            contents = self.chain.contents(self._table)
        except (CorruptArchiveError, LabelError) as error:
            self._problem(0, f"its chunks do not go together: {error}")
            self._is_joined, self._outdated_nbytes = False, 0
            names = [name for name, _ in self.head.labels]
            return format.merge([], self._table, None, names, self.path)
        self._outdated_nbytes -= int(contents.index.records.nbytes.sum())
        return contents

    def _table(self, header: Header) -> ChunkTable | None:
        table_bytes = self._pread(header.payload_offset, header.table_nbytes)
        try:
            table = format.read_table(lambda offset, nbytes: table_bytes, header, self.path)
        except CorruptArchiveError as error:
            self._unread(header, f"chunk {header.seq}", error)
            if self._reads_records:
                self._check_crc(header, format.payload_crc(self._pread, header))
            self._passed(header.next)
            return None
        self._outdated_nbytes += int(table.records.nbytes.sum())
        alignment = np.where(table.records.nbytes >= 1024, np.uint64(64), np.uint64(8))
        rows = np.flatnonzero(table.records.offset % alignment)
        _report_rows(header, table, rows, "is not aligned", self._problem)
        if self._reads_records:
            self._check_crc(header, check_chunk(self._pread, header, table, table_bytes, self._problem))
        self._passed(header.next)
        return table

    def _check_reach(self, header: Header) -> None:
        """A revision has no rows of samples that the dataset had not when it was written."""
        length = max(self.chain.end_index, self.chain.length or 0)
        if header.kind == format.KIND_REVISION and header.end_index > length:
            rows = f"{header.name} has rows up to sample {header.end_index:,}"
            self._problem(header.offset, f"{rows}, the dataset had {length:,}")

    def _revised(self, headers: Sequence[Header]) -> format.Revised:
        try:
            if self._is_joined:
                return self.chain.revised(self.contents, self._revision, headers)
        except LabelError as error:
            self._problem(0, f"its revisions do not go together: {error}")
            self._is_joined = False
        return format.Revised(self.contents.labels, None)

    def _revision(self, header: Header) -> format.Revision | None:
        if header.seq not in self._revisions:
            try:
                self._revisions[header.seq] = format.read_revision(self._pread, header, self.path)
            except CorruptArchiveError as error:
                self._unread(header, header.name, error)
                self._revisions[header.seq] = None
        return self._revisions[header.seq]

    def _unread(self, header: Header, name: str, error: Exception) -> None:
        """Note an entry that does not read, where the error says only what is wrong with it."""
        why = str(error).removeprefix(f"{self.path}: {name} at offset {header.offset:,}: ")
        self._problem(header.offset, f"{header.name}: {why.partition('; run')[0]}")

    def _check_crc(self, header: Header, crc: int) -> None:
        """Compare the crc32 of a payload with its header's."""
        if crc != header.payload_crc:
            expected = f"its header says {header.payload_crc:#010x}"
            self._problem(header.offset, f"{header.name} has crc32 {crc:#010x}, {expected}")

    # --- seals ---

    def _check_old_seal(self, following: Header) -> None:
        """Between an earlier seal and the entry behind it lie its directory and zeros."""
        seal = self.chain.seal
        if seal is None:
            if following.keeps_seal:
                self._problem(following.offset, f"{following.name} is one behind a seal, and follows none")
            return
        start, end = seal.directory_offset, following.offset
        # A directory takes work as its entries are many; one for which there is no room takes none.
        room = end - start - format.END_NBYTES
        has_room = room >= _LISTED_NBYTES * len(self.chain.entries)
        directory = self.chain.directory(self._pread, seal) if has_room else b""
        is_there = directory and end == format.align(start + len(directory), format.PAGE)
        if not is_there or self._pread(start, end - start) != directory.ljust(end - start, b"\0"):
            self._damaged_seals.append(seal)

    def _check_seal(self, seal: Seal) -> None:
        if self.chain.seal != seal:
            before = f"so the chain ends before its seal at offset {seal.index.offset:,}"
            self._problem(self.chain.cursor.offset, f"no entry fits here, {before}")
            return
        if self._is_joined:
            self._check_sealed_tables(seal.index, seal.labels, seal.revisions)
        if not self.chain.ends_with_directory(self._pread, self.size, seal):
            self._problem(seal.directory_offset, "the zip directory does not list what the chain holds")

    def _check_sealed_tables(
        self, index_header: Header, labels_header: Header, behind: Sequence[Header]
    ) -> None:
        revised = self._revised(self.chain.sealed_revisions) if behind else self.revised
        index = self._pread(index_header.payload_offset, index_header.payload_nbytes)
        labels = self._pread(labels_header.payload_offset, labels_header.payload_nbytes)
        columns = revised.columns
        try:
            sealed = parse_index(index, index_header.samples, index_header.table_nbytes, self.size)
            names = [name for name, _ in (self.head.labels if sealed.labels is None else sealed.labels)]
            stored = checked_labels(labels, labels_header.samples, labels_header.table_nbytes, names)
            others = [revision for revision in map(self._revision, behind) if revision is not None]
            newest = stored.revised(others).table if others else stored.table
        except CorruptArchiveError as error:
            self._problem(index_header.offset, str(error))
            return
        if not _same_index(sealed, self.contents.index._replace(labels=columns)):
            self._problem(index_header.offset, "index.pages does not say what the chunks say")
        if not format.same_tables(stored.table, revised.table):
            what = "the chunks" if columns is None else "the chunks and revisions"
            self._problem(labels_header.offset, f"labels.arrow does not say what {what} say")
        if behind and not format.same_tables(newest, self.revised.table):
            self._problem(behind[0].offset, "revisions behind the seal make other labels than the chain")

    def _check_end(self) -> None:
        """What an unsealed archive may end with: an entry, or a seal and its directory; and a torn tail."""
        seal, at = self.chain.seal, self.chain.cursor.offset
        if seal is not None:
            start, directory = seal.directory_offset, self.chain.directory(self._pread, seal)
            if self._pread(start, len(directory)) != directory:
                self._problem(start, "the zip directory does not list what the chain holds")
        if self.size <= at:
            return
        later = next(format.find_headers(self._file, at + 1, self.size, self.head.uuid), None)
        if later is not None:
            follows = f"{later.name} follows at offset {later.offset:,}"
            self._problem(at, f"the chain is broken: no entry fits here, but {follows}")
        elif self._has_broken_seal():
            self._problem(at, "a seal begins here that is damaged")

    def _has_broken_seal(self) -> bool:
        """Return True if a whole seal stood here: the header of index.pages is written last."""
        cursor = self.chain.cursor
        data = self._pread(cursor.offset, format.HEADER_NBYTES)
        if format.parse_header(data) is not None:
            # Unless another process has written it since the walk.
            return next(format.walk(self._pread, 1 << 62, self.head.uuid, cursor), None) is None
        # A kill within the header leaves no crc32; with one, it was whole once.
        had_crc, is_named = any(data[137:141]), data[30:41] == b"index.pages"
        return had_crc and (is_named or format.END_SIGNATURE in self._pread(max(0, self.size - 1024), 1024))


def _same_index(sealed: IndexTable, expected: IndexTable) -> bool:
    columns, others = sealed.records.columns(), expected.records.columns()
    return (
        sealed.length == expected.length
        and sealed.schemas == expected.schemas
        and np.array_equal(sealed.blocks, expected.blocks)
        and list(sealed.failures) == list(expected.failures)
        and list(sealed.labels or ()) == list(expected.labels or ())
        and (sealed.labels is None) == (expected.labels is None)
        and columns.keys() == others.keys()
        and all(np.array_equal(columns[name], others[name]) for name in columns)
    )


def check_chunk(
    pread: PRead, header: Header, table: ChunkTable, table_bytes: bytes, on_problem: OnProblem
) -> int:
    """Compare records, blocks and gaps of a chunk with its table; returns the crc32 of its payload.

    Each byte is read once, a window of 1 MiB at a time, whatever the chunk's size. The records of the table
    must lie in its order, and none reach into another: `read_table` lets no other table pass.
    """
    records, first_offset, crc32 = table.records, header.records_offset, format.crc32
    start = records.offset.astype(np.int64)
    end = start + records.nbytes.astype(np.int64)
    # A record may reach over many windows.
    crcs, block_crcs = np.zeros(len(start), np.uint32), b""
    foreign: list[int] = []
    crc = crc32(format.padding_of(pread, header), crc32(table_bytes))
    for base in range(0, header.payload_end - first_offset, _WINDOW):
        nbytes = min(_WINDOW, header.payload_end - first_offset - base)
        window = memoryview(pread(first_offset + base, nbytes))
        if not window:
            break  # the file was cut
        crc = crc32(window, crc)
        block_crcs += format.block_crcs(window[: max(0, table.records_nbytes - base)])
        first, last = np.searchsorted(end, base, "right"), np.searchsorted(start, base + len(window))
        low = (start[first:last] - base).clip(0)
        high = (end[first:last] - base).clip(None, len(window))
        parts = zip(low.tolist(), high.tolist(), crcs[first:last].tolist(), strict=True)
        crcs[first:last] = [crc32(window[begin:stop], before) for begin, stop, before in parts]
        gaps = zip([0, *high.tolist()], [*low.tolist(), len(window)], strict=True)
        foreign += [base + begin for begin, stop in gaps if window[begin:stop].tobytes().strip(b"\0")]
    if foreign:
        on_problem(first_offset + foreign[0], "bytes that belong to no record are not zero")
    _report_rows(header, table, np.flatnonzero(crcs != records.crc32), "fails its crc32", on_problem)
    if block_crcs != table_bytes[len(table_bytes) - table.behind_nbytes :]:
        on_problem(first_offset, "the crc32 of its blocks do not fit its records")
    return crc


def _report_rows(header: Header, table: ChunkTable, rows: Ints, what: str, on_problem: OnProblem) -> None:
    for row in rows[:_SHOWN].tolist():
        offset = header.records_offset + int(table.records.offset[row])
        on_problem(offset, f"record {int(table.records.samples[row])} {what}")
    if len(rows) > _SHOWN:
        more = f"{len(rows) - _SHOWN:,} more records of {header.name}"
        on_problem(header.records_offset, f"the same of {more}")
