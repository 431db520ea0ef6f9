"""Prove an archive: its chain, seals, tables and samples, against one another; and identify it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from edcache import format
from edcache.base import CorruptArchiveError, Ints, LabelError, LaterReleaseError, cut_traceback
from edcache.format import ChunkTable, Contents, Header, Root, Rows
from edcache.reader import OnProgress, Session, file_digest, no_digest
from edcache.storage import ByteSource, located

_SHOWN: Final = 20


@dataclass
class Report:
    """Findings of `verify`.

    problems: one line each, with path, offset, damage and remedy; empty if every byte that was read is proven.
    samples, missing, chunks: of the dataset, by its chunks. failures: missing samples that were tried. nbytes: of the
    file. has_writer: True if it is not sealed and a process writes it now.
    quick: True if the samples' records were not read.
    """

    samples: int = 0
    missing: int = 0
    chunks: int = 0
    failures: int = 0
    nbytes: int = 0
    sealed: bool = False
    has_writer: bool = False
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


@cut_traceback
def verify(
    path: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    quick: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Check every byte of an archive: its structure, all checksums, and that its tables agree.

    Args:
        path: the path or URL of the archive.
        on_progress: a function that is called with (bytes checked, bytes of the file) now and then.
        quick: True does not read the records of samples. It checks headers, tables and the seal.
        storage_options: for a URL, as in `edcache.reader.Reader`.
    Returns:
        A report. `report.sound` is True if nothing is wrong, and `report.problems` is a list of sentences.
        Damage is reported and not raised, unless the head of the file cannot be read.
    Raises:
        ArchiveNotFoundError, CorruptArchiveError; ArchiveError for a newer format.
        CorruptArchiveError: the head is damaged.
    Cost: reads the file once, with `quick` only headers, tables and the seal.
        It takes some 200 MB of memory, and as much as the largest chunk or label column.
    Safety: it writes nothing and locks nothing. Samples that others append meanwhile are not checked.
    """
    where = located(path, storage_options)
    path, storage_options = where.path, None  # a traceback with locals would show credentials
    with closing(where.open()) as file:
        survey = Survey(file, not quick, on_progress)
    chain, contents = survey.chain, survey.contents
    length = 0 if contents is None else contents.length
    return Report(
        samples=length,
        missing=length - survey.present,
        chunks=len(chain.chunks),
        failures=survey.failures,
        nbytes=survey.size,
        sealed=survey.is_sealed,
        has_writer=survey.has_writer,
        quick=quick,
        problems=survey.problems,
    )


@cut_traceback
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
        ArchiveNotFoundError, CorruptArchiveError; LaterReleaseError, as a reader.
    Cost: reads the file once.
    Safety: it writes nothing and locks nothing. It does not check the file; `verify` does.
    """
    where = located(path, storage_options)
    path, storage_options = where.path, None  # a traceback with locals would show credentials
    with closing(where.open()) as file:
        if not Session(file).sealed:
            raise no_digest(file.path)
        return file_digest(file, on_progress)[0]


# Bytes of tables that are kept.
_MOST_KEPT_NBYTES: Final = 1 << 26


class Survey:
    """Structure of an archive as it was when its size was taken; it may grow meanwhile.

    Attributes:
        chain: as far as it reads. contents: rows and labels of its chunks; None if they do not go together.
        is_sealed: True if its end says so too. A kill within a seal leaves a sealed chain without that end.
        has_writer: True if a process writes the archive now; False if unknown, as for a URL.
        problems: one line each, with path and offset.
    """

    def __init__(self, file: ByteSource, reads_records: bool, on_progress: OnProgress | None) -> None:
        # The size first: what others append from now on lies behind it.
        self.size, self.path, self.problems = file.size(), file.path, list[str]()
        self._file, self._pread = file, file.pread
        self._reads_records, self._on_progress = reads_records, on_progress
        self._unread: set[int] = set()
        self._tables: dict[int, ChunkTable] = {}
        self._room = _MOST_KEPT_NBYTES
        self._padding = b""
        self.has_writer = file.is_locked(format.LOCK_FILLER, format.FILLERS)
        head, head_header = format.read_head(self._pread, self.path)
        self.chain = format.Chain(head, head_header, self.path)
        known = format.Chain(head, head_header, self.path)
        groups = list(format.walk(self._pread, self.size, head.uuid, known.cursor, self.path))
        for group in groups:
            known.add(self._pread, group)
        self._lost = known.lost  # by a later note
        for group in groups:
            self.chain.add(self._pread, group)
            for header in group:
                self._check_entry(header)
        self._root = self.chain.root if self.chain.is_settled else None
        end = format.read_root(self._pread, self.size, self.path)
        # Parts that wait behind a root take no end of their own.
        self.is_sealed = self._root is not None and (end is not None or not self.chain.sealed)
        self._check_end()
        self.contents = self._joined()
        self.present = self.failures = 0
        if self.contents is not None:
            self._check_rows(self.contents)
            self._check_labels(self.contents)
            self._check_keys()
        self._passed(self.size)

    def _passed(self, offset: int) -> None:
        if self._on_progress is not None:
            self._on_progress(min(offset, self.size), self.size)

    def _problem(self, offset: int, what: str) -> None:
        self.problems.append(
            f'{self.path}: at offset {offset:,}: {what}; run "edcache copy {self.path} -o NEW --skip-damaged"'
        )

    # --- entries ---

    def _check_entry(self, header: Header) -> None:
        if header.number in self._lost:
            self._padding = b""
            return
        is_chunk, crc = header.kind in (format.CHUNK, format.PART), None
        if is_chunk:
            crc = self._chunk_crc32(header)
        if crc is None and (not is_chunk or self._reads_records):
            crc = format.stored_crc32(self._pread, header.payload)
        if crc not in (None, header.crc32):
            expected = f"its header says {header.crc32:#010x}"
            self._problem(header.offset, f"{header.name} has crc32 {crc:#010x}, {expected}")
        # What lies behind the last entry may be a torn tail.
        if self._padding.strip(b"\0"):
            self._problem(header.offset, f"bytes before {header.name} are not zero")
        start = header.payload_end
        if header.kind == format.ROOT and self.chain.sealed:
            start = self.chain.end  # each root has its own directory
            directory = self.chain.directory()
            # The end of it is written last: without it the archive is not sealed yet.
            end = self._pread(
                header.payload_end, len(directory), lambda data: directory.startswith(bytes(data))
            )
            if not directory.startswith(end):
                self._problem(header.payload_end, "the zip directory does not list what the chain holds")
        self._padding = self._pread(start, max(0, header.next - start), lambda data: not any(data))
        self._passed(header.next)

    def _chunk_crc32(self, header: Header) -> int | None:
        """Check the table of a chunk, and its records by it; return the crc32 of its payload, if that was read."""
        table = self._table(header)
        if table is None:
            return None
        rows = table.rows
        alignment = format.record_alignment(rows["nbytes"]).astype(np.uint64)
        self._report(header, table, np.flatnonzero(rows["offset"] % alignment), "is not aligned")
        if not self._reads_records:
            return None
        is_whole = format.fits_crc32(header.nbytes, header.crc32)
        data = self._pread(header.payload_offset, header.nbytes, is_whole).ljust(header.nbytes, b"\0")
        is_sound = format.are_sound(rows, memoryview(data), header.payload_offset)
        self._report(header, table, np.flatnonzero(~is_sound), "fails its crc32")
        return format.crc32(data)

    def _report(self, header: Header, table: ChunkTable, rows: Ints, what: str) -> None:
        for row in rows[:_SHOWN].tolist():
            self._problem(int(table.rows["offset"][row]), f"record {int(table.samples[row])} {what}")
        if len(rows) > _SHOWN:
            more = f"{len(rows) - _SHOWN:,} more records of {header.name}"
            self._problem(header.offset, f"the same of {more}")

    def _table(self, header: Header) -> ChunkTable | None:
        """Read the table of a chunk; small ones are kept, as each is read twice."""
        table = self._tables.get(header.number)
        if table is not None:
            return table
        try:
            table = format.read_table(self._pread, header, self.path)
            self._room -= header.table_nbytes
            if self._room > 0:
                self._tables[header.number] = table
            return table
        except CorruptArchiveError as error:
            why = str(error).removeprefix(f"{self.path}: {header.name} at offset {header.offset:,}: ")
            what = f"{header.name}: {why.partition('; run')[0]}"
            if header.offset not in self._unread:
                self._unread.add(header.offset)
                self._problem(header.offset, what)
            return None

    # --- what they add up to ---

    def _check_end(self) -> None:
        """Compare the end of the file with the end of the chain; a torn tail is no damage."""
        chain = self.chain
        damage = format.find_damage(chain, self._pread, self._file.next_data, self.size, is_fresh=True)
        # Read on: entries that others appended meanwhile are whole by now.
        if damage is not None and not chain.copy().extend(self._pread, self._file.size()):
            self._problem(chain.cursor.offset, damage)

    def _joined(self) -> Contents | None:
        try:
            return Contents(self.chain, self._pread, self._table, of_chunks=True)
        except (CorruptArchiveError, LabelError) as error:
            self._problem(0, f"its chunks do not go together: {error}")
            return None

    def _check_rows(self, contents: Contents) -> None:
        """Compare the rows of the chunks with those of the root, and count them."""
        root = self._root
        if root is None:
            # Its length may be any number, and has no bytes that bound it.
            held = contents.held()
            self.present = len(held)
            self.failures = len({*self.chain.failures} - {*held.tolist()})
            return
        if (root.length, sorted(root.schemas)) != (contents.length, sorted(contents.schemas)):
            self._problem(
                self.chain.cursor.offset, "root.json has another length or other schemas than its chunks"
            )
            return
        if root.is_reordered:
            self._check_reordered(root)
            return
        numbers = np.array([root.schemas.index(text) for text in contents.schemas], np.int64)
        salt = format.salt(root.head.uuid, root.index.offset)
        for start, stop in contents.windows():
            rows = contents.rows(start, stop)
            present = rows["flags"] & format.PRESENT > 0
            self.present += int(np.count_nonzero(present))
            failed = [k for k in self.chain.failures if start <= k < stop]
            self.failures += int(np.count_nonzero(~present[np.array(failed, np.int64) - start]))
            samples = np.arange(start, stop)
            rows["schema"][present] = numbers[rows["schema"][present]]
            rows = format.bound(samples, rows, salt)
            at, nbytes = root.index.offset + start * format.ROW.itemsize, len(rows) * format.ROW.itemsize
            is_same = partial(_are_bytes, rows.tobytes())
            stored = np.frombuffer(self._pread(at, nbytes, is_same), format.ROW)
            self._check_known(format.bound(samples[: len(stored)], stored, salt), start)
            differ = samples[: len(stored)][rows[: len(stored)] != stored]
            if len(differ):
                self._problem(at, f"index.rows has another row of sample {differ[0]} than its chunk")
        if root.present != self.present:
            self._problem(
                self.chain.cursor.offset,
                f"root.json says {root.present:,} records, there are {self.present:,}",
            )

    def _check_known(self, rows: Rows, first: int) -> None:
        """Raise LaterReleaseError if a record is stored as only a later release knows.

        Its sum tells a flag from a damaged row. rows: as in memory, from sample `first` on.
        """
        for row in np.flatnonzero(rows["flags"] & ~np.uint16(format.PRESENT | format.COMPRESSED)).tolist():
            offset, nbytes, crc, _, flags = rows[row].tolist()
            end = offset + nbytes + format.behind_nbytes(nbytes)
            if end > self.size or not format.fits(crc, nbytes, memoryview(self._pread(offset, end - offset))):
                continue
            try:
                format.check_flags(flags)
            except LaterReleaseError as error:
                place = f"{self.path}: record {first + row} at offset {offset:,}"
                raise error.within(place, self.path, first + row) from None

    def _check_reordered(self, root: Root) -> None:
        """Compare the rows of the root with those of the chunks by their offset: samples have new numbers."""
        schemas = {text: number for number, text in enumerate(root.schemas)}
        parts = []
        for header in self.chain.chunks:
            table = self._table(header)
            if table is not None:
                numbers = np.array([schemas.get(text, format.MAX_SCHEMAS - 1) for text in table.schemas])
                rows = table.rows.copy()
                rows["schema"] = numbers[rows["schema"]]
                parts.append(rows)
        known = np.sort(np.concatenate([np.empty(0, format.ROW), *parts]), order="offset")
        salt = format.salt(root.head.uuid, root.index.offset)
        for start in range(0, root.length, format.WINDOW):
            count = min(format.WINDOW, root.length - start)
            at = root.index.offset + start * format.ROW.itemsize
            data = self._pread(at, count * format.ROW.itemsize, format.came_again())
            rows = np.frombuffer(data, format.ROW)
            samples = np.flatnonzero(rows["flags"] & format.PRESENT)
            own = format.bound(samples + start, rows[samples], salt)
            self._check_known(format.bound(np.arange(start, start + len(rows)), rows, salt), start)
            places = np.searchsorted(known["offset"], own["offset"])
            is_known = places < len(known)
            is_known[is_known] = known[places[is_known]] == own[is_known]
            self.present += len(samples)
            for sample in samples[~is_known][:_SHOWN].tolist():
                self._problem(at, f"index.rows has a row of sample {sample + start} that is of no chunk")
        self.failures = len(root.failures)

    def _check_keys(self) -> None:
        """Compare the table of keys with their column."""
        root = self._root
        if root is None or root.keys is None or format.KEY_COLUMN not in root.labels:
            return
        stored = format.StoredLabels(root, partial(format.read_places, self._pread), self.path)
        with suppress(CorruptArchiveError):  # the column is reported already
            column = stored.column(format.KEY_COLUMN)
            samples = np.flatnonzero(column.is_valid().to_numpy())
            table, *said = format.pack_keys(format.column_hashes(column.drop_null()), samples)
            stored_table = self._pread(root.keys.offset, root.keys.nbytes, root.keys.fits)
            if (table, *said) != (stored_table, root.keys.crc32, root.keys.items):
                self._problem(root.keys.offset, "index.keys has other keys than their column")

    def _check_labels(self, contents: Contents) -> None:
        """Compare the label columns of the root with those of the chunks, unless they were added later."""
        root = self._root
        if root is None:
            return
        read = partial(format.read_places, self._pread)
        for name, column in root.labels.items():
            stored = format.StoredLabels(root, read, self.path)
            try:
                values = stored.column(name)
            except CorruptArchiveError as error:
                self._problem(column.place.offset, str(error).partition(": ")[2])
                continue
            if column.is_added or root.is_reordered or name not in contents.schema.names:
                continue
            for start, stop in contents.windows():
                own = contents.column(name, start, stop).cast(values.type)
                if not format.same_values(own, format.one_chunk(values.slice(start, stop - start))):
                    self._problem(
                        column.place.offset, f"the label column {name!r} has other values than its chunks"
                    )
                    break


def _are_bytes(expected: bytes, data: bytes | memoryview) -> bool:
    return data == expected
