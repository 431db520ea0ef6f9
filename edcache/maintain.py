"""Prove an archive: every byte of it is checked against another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from edcache import format
from edcache.contents import Chain, Contents, blocks_of, padding_of, payload_crc, read_table
from edcache.durable import File
from edcache.errors import CorruptArchiveError
from edcache.format import Cursor, Header
from edcache.labels.tables import ChunkTable, IndexTable, parse_index, parse_labels


@dataclass
class Report:
    """What `verify` found.

    problems: one line each, with path and offset; empty when every byte is proven.
    samples, missing: of the dataset, as the chunks tell. nbytes: of the file.
    """

    samples: int = 0
    missing: int = 0
    chunks: int = 0
    nbytes: int = 0
    sealed: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong. An unsealed archive is sound; samples may be missing from it."""
        return not self.problems


def verify(path: str | os.PathLike[str], on_progress: Callable[[int, int], None] | None = None) -> Report:
    """Check structure, every checksum, and that index, labels, directory and chunks agree.

    Args:
        on_progress: called with (bytes checked, bytes of the file) now and then.
    Returns:
        A report; damage is reported, not raised, as far as the head can be read.
    Raises:
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError (the head).
    Cost: reads the whole file once. Writes and locks nothing.
    """
    file = File.open(path, "r")
    try:
        return _Verification(file, on_progress or (lambda done, total: None)).run()
    finally:
        file.close()


class _Verification:
    def __init__(self, file: File, on_progress: Callable[[int, int], None]) -> None:
        self._file = file
        self._path = file.path
        self._size = file.size()
        self._on_progress = on_progress
        self._report = Report(nbytes=self._size)

    def run(self) -> Report:
        pread = self._file.pread
        self._head, cursor = format.read_head(pread, self._path)
        self._chain = Chain(self._head, cursor, self._path)
        headers = list(format.walk(pread, self._size, self._head.uuid, cursor))
        for header in headers:
            self._check_dead_directory(header)
            self._chain.note(pread, header)
        for header in headers:
            if header.seq not in self._chain.lost:
                self._check_payload(header)
        contents = self._chain.contents(self._table)
        self._report.chunks = len(self._chain.chunks)
        self._report.samples = contents.index.length
        self._report.missing = contents.index.length - len(contents.index.records.offset)
        seal = format.read_seal(pread, self._size, self._head.uuid)
        self._report.sealed = seal is not None
        if seal is not None:
            self._check_seal(seal, contents)
        else:
            self._check_tail()
        return self._report

    def _problem(self, offset: int, what: str) -> None:
        self._report.problems.append(f"{self._path}: at offset {offset:,}: {what}")

    def _check_payload(self, header: Header) -> None:
        crc = payload_crc(self._file.pread, header)
        self._on_progress(header.payload_end, self._size)
        if crc != header.payload_crc:
            said = f"its header says {header.payload_crc:#010x}"
            self._problem(header.offset, f"{header.name} has crc32 {crc:#010x}, {said}")
        if any(padding_of(self._file.pread, header)):
            self._problem(header.offset, f"{header.name}: bytes behind its content are not zero")

    def _table(self, header: Header) -> ChunkTable | None:
        try:
            table = read_table(self._file.pread, header, self._path)
        except CorruptArchiveError as error:
            self._report.problems.append(str(error))
            return None
        self._check_records(header, table)
        return table

    def _check_records(self, header: Header, table: ChunkTable) -> None:
        """Each record's own crc32, its alignment, and that they do not overlap."""
        records = table.records
        data = memoryview(self._file.pread(header.records_offset, header.payload_end - header.records_offset))
        end = 0
        assert records.index is not None
        for row, (offset, nbytes, crc) in enumerate(
            zip(records.offset.tolist(), records.nbytes.tolist(), records.crc32.tolist(), strict=True)
        ):
            index = int(records.index[row])
            if offset < end or offset % format.record_alignment(nbytes):
                self._problem(header.records_offset + offset, f"record {index} overlaps or is not aligned")
            elif format.crc32(data[offset : offset + nbytes]) != crc:
                self._problem(header.records_offset + offset, f"record {index} fails its crc32")
            if any(data[end:offset]):
                self._problem(header.records_offset + end, f"bytes before record {index} are not zero")
            end = max(end, offset + nbytes)
        blocks = blocks_of(header, table)
        if format.block_crcs(data[:end]) != self._file.pread(blocks.crcs_offset, 4 * format.block_count(end)):
            self._problem(header.records_offset, "the crc32 of its blocks do not fit its records")
        if any(data[end:]):
            self._problem(header.records_offset + end, "bytes after the last record are not zero")

    def _check_seal(self, seal: tuple[Header, Header], contents: Contents) -> None:
        index_header, labels_header = seal
        if self._chain.seal != seal:
            before = f"so the chain ends before its seal at offset {index_header.offset:,}"
            self._problem(self._chain.cursor.offset, f"no entry fits here, {before}")
            return
        index = self._file.pread(index_header.payload_offset, index_header.payload_nbytes)
        labels = self._file.pread(labels_header.payload_offset, labels_header.payload_nbytes)
        try:
            same_index = _same_index(parse_index(index, index_header.samples), contents.index)
            names = [name for name, _ in self._head.labels]
            same_labels = parse_labels(labels, labels_header.samples, names).equals(contents.labels)
        except CorruptArchiveError as error:
            self._problem(index_header.offset, str(error))
            return
        if not same_index:
            self._problem(index_header.offset, "index.arrow does not say what the chunks say")
        if not same_labels:
            self._problem(labels_header.offset, "labels.arrow does not say what the chunks say")
        directory = self._directory(seal)
        if self._file.pread(labels_header.payload_end, len(directory) + 1) != directory:
            self._problem(labels_header.payload_end, "the zip directory does not list what the chain holds")

    def _directory(self, seal: tuple[Header, Header]) -> bytes:
        head = format.parse_header(self._file.pread(0, format.MAX_HEADER_NBYTES))
        assert head is not None
        return format.pack_directory([head, *self._chain.entries, *seal], seal[1].payload_end)

    def _check_dead_directory(self, following: Header) -> None:
        """Between an earlier seal and the entry behind it lie its directory and zeros."""
        if self._chain.seal is None:
            return
        start, end = self._chain.seal[1].payload_end, following.offset
        if self._file.pread(start, end - start) != self._directory(self._chain.seal).ljust(
            end - start, b"\0"
        ):
            self._problem(start, "the dead directory of an earlier seal is damaged")

    def _check_tail(self) -> None:
        """What an unsealed archive may end with: its last entry, and behind it a torn tail."""
        if self._chain.seal is not None:
            self._check_last_seal(self._chain.seal)
        cursor = self._chain.cursor
        if self._size <= cursor.offset:
            return
        later = self._later_entry(cursor)
        if later is not None:
            found = f"{later.name} follows at offset {later.offset:,}"
            self._problem(cursor.offset, f"the chain is broken: no entry fits here, but {found}")
        elif self._is_broken_seal(cursor):
            self._problem(cursor.offset, "a seal begins here that is damaged; seal the archive again")

    def _check_last_seal(self, seal: tuple[Header, Header]) -> None:
        """The chain ends with a seal, the file not with its directory: torn growth, or damage."""
        start, directory = seal[1].payload_end, self._directory(seal)
        if self._file.pread(start, len(directory)) != directory:
            self._problem(
                start, "the zip directory does not list what the chain holds; seal the archive again"
            )

    def _later_entry(self, cursor: Cursor) -> Header | None:
        offset = self._next_data(format.align(cursor.offset + 1, format.PAGE))
        while offset < self._size:
            header = format.parse_header(self._file.pread(offset, format.MAX_HEADER_NBYTES))
            if header is not None and header.uuid == self._head.uuid and header.offset == offset:
                return header
            offset = self._next_data(offset + format.PAGE)
        return None

    def _next_data(self, page: int) -> int:
        """The first page from this one on that is no hole: a file of a terabyte may be nothing else."""
        return max(page, self._file.next_data(page) // format.PAGE * format.PAGE)

    def _is_broken_seal(self, cursor: Cursor) -> bool:
        """The header of index.arrow goes last: where it stands, or nearly, the whole seal stood."""
        found = self._file.pread(cursor.offset, format.HEADER_NBYTES)
        if format.parse_header(found) is not None:
            return True
        # A kill within the header leaves no crc32; with one, it was whole once.
        had_crc, named = any(found[137:141]), found[30:41] == b"index.arrow"
        return had_crc and (named or self._ends_like_a_zip())

    def _ends_like_a_zip(self) -> bool:
        return b"PK\x05\x06" in self._file.pread(max(0, self._size - 1024), 1024)


def _same_index(found: IndexTable, expected: IndexTable) -> bool:
    columns, others = found.records.columns(), expected.records.columns()
    return (
        found.length == expected.length
        and found.schemas == expected.schemas
        and found.dictionaries == expected.dictionaries
        and np.array_equal(found.blocks, expected.blocks)
        and list(found.failures) == list(expected.failures)
        and columns.keys() == others.keys()
        and all(np.array_equal(columns[name], others[name]) for name in columns)
    )
