"""Prove an archive: every byte of it is checked against another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from edcache import format
from edcache.contents import Contents, merge, payload_crc, read_amendment, read_table
from edcache.durable import File
from edcache.errors import CorruptArchiveError
from edcache.format import Cursor, Head, Header
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
        head, cursor = format.read_head(self._file.pread, self._path)
        head_header = format.parse_header(self._file.pread(0, format.MAX_HEADER_NBYTES))
        assert head_header is not None
        headers = list(format.walk(self._file.pread, self._size, head.uuid, cursor))
        sound = [header for header in headers if self._payload_is_sound(header)]
        chunks = [header for header in sound if header.kind == format.KIND_CHUNK]
        contents = self._contents(head, chunks, sound)
        seal = format.read_seal(self._file.pread, self._size, head.uuid)
        self._report.sealed = seal is not None
        self._report.chunks = len(chunks)
        if seal is not None:
            self._check_seal(seal, [head_header, *sound], contents)
        else:
            self._check_tail(head, format.after(headers[-1]) if headers else cursor, headers)
        self._check_gaps(headers, seal is not None)
        return self._report

    def _problem(self, offset: int, what: str) -> None:
        self._report.problems.append(f"{self._path}: at offset {offset:,}: {what}")

    def _payload_is_sound(self, header: Header) -> bool:
        crc = payload_crc(self._file.pread, header)
        self._on_progress(header.payload_end, self._size)
        if crc != header.payload_crc:
            self._problem(
                header.offset,
                f"{header.name} has crc32 {crc:#010x}, its header says {header.payload_crc:#010x}",
            )
        return crc == header.payload_crc

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
        if any(data[end:]):
            self._problem(header.records_offset + end, "bytes after the last record are not zero")

    def _contents(self, head: Head, chunks: list[Header], sound: list[Header]) -> Contents:
        length = head.length
        for header in sound:
            if header.kind == format.KIND_AMENDMENT:
                length = read_amendment(self._file.pread, header, self._path).get("length", length)
        dictionaries = [header for header in sound if header.kind == format.KIND_DICTIONARY]
        contents = merge(chunks, self._table, dictionaries, length, self._path)
        self._report.samples = contents.index.length
        self._report.missing = contents.index.length - len(contents.index.records.offset)
        return contents

    def _check_seal(self, seal: tuple[Header, Header], listed: list[Header], contents: Contents) -> None:
        index_header, labels_header = seal
        index = self._file.pread(index_header.payload_offset, index_header.payload_nbytes)
        labels = self._file.pread(labels_header.payload_offset, labels_header.payload_nbytes)
        try:
            same_index = _same_index(parse_index(index, index_header.samples), contents.index)
            same_labels = parse_labels(labels, labels_header.samples).equals(contents.labels)
        except CorruptArchiveError as error:
            self._problem(index_header.offset, str(error))
            return
        if not same_index:
            self._problem(index_header.offset, "index.arrow does not say what the chunks say")
        if not same_labels:
            self._problem(labels_header.offset, "labels.arrow does not say what the chunks say")
        seals = (format.KIND_INDEX, format.KIND_LABELS)
        entries = [header for header in listed if header.kind not in seals]
        expected = format.pack_directory([*entries, *seal], labels_header.payload_end)
        if self._file.pread(labels_header.payload_end, self._size) != expected:
            self._problem(labels_header.payload_end, "the zip directory does not list what the chain holds")

    def _check_tail(self, head: Head, cursor: Cursor, headers: list[Header]) -> None:
        """An unsealed archive ends with its last entry; what follows is a torn tail or damage."""
        if self._size <= cursor.offset:
            return
        later = self._later_entry(head, cursor)
        if later is not None:
            self._problem(
                cursor.offset,
                f"the chain is broken: {later.name} follows at offset {later.offset:,}, no entry fits here",
            )
            return
        if self._ends_like_a_zip():
            self._problem(
                cursor.offset,
                "the archive ends with a zip directory that does not fit its chain; seal it again",
            )

    def _later_entry(self, head: Head, cursor: Cursor) -> Header | None:
        for offset in range(format.align(cursor.offset + 1, format.PAGE), self._size, format.PAGE):
            header = format.parse_header(self._file.pread(offset, format.MAX_HEADER_NBYTES))
            if header is not None and header.uuid == head.uuid and header.offset == offset:
                return header
        return None

    def _ends_like_a_zip(self) -> bool:
        return b"PK\x05\x06" in self._file.pread(max(0, self._size - 1024), 1024)

    def _check_gaps(self, headers: list[Header], sealed: bool) -> None:
        """Between an old seal's directory and the entry behind it lie zeros."""
        listed: list[Header] = []
        for position, header in enumerate(headers):
            if header.kind == format.KIND_LABELS and position + 1 < len(headers):
                self._check_old_directory(header, headers[position - 1], listed)
            if header.kind not in (format.KIND_INDEX, format.KIND_LABELS):
                listed.append(header)

    def _check_old_directory(self, labels: Header, index: Header, listed: list[Header]) -> None:
        head = format.parse_header(self._file.pread(0, format.MAX_HEADER_NBYTES))
        assert head is not None
        directory = format.pack_directory([head, *listed, index, labels], labels.payload_end)
        found = self._file.pread(labels.payload_end, labels.next - labels.payload_end)
        if found != directory.ljust(len(found), b"\0"):
            self._problem(labels.payload_end, "the dead directory of an earlier seal is damaged")


def _same_index(found: IndexTable, expected: IndexTable) -> bool:
    columns, others = found.records.columns(), expected.records.columns()
    return (
        found.length == expected.length
        and found.schemas == expected.schemas
        and found.dictionaries == expected.dictionaries
        and columns.keys() == others.keys()
        and all(np.array_equal(columns[name], others[name]) for name in columns)
    )
