"""The structure of an archive: its chain, its seals and their directories, its tables, and what contradicts.

With the samples' bytes or without: they are most of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from edcache import format
from edcache.base import CorruptArchiveError, LabelError, PartialArchiveError
from edcache.format import (
    END_SIGNATURE,
    PAGE,
    Chain,
    ChunkTable,
    Contents,
    Cursor,
    Header,
    IndexTable,
    Revised,
    Revision,
    find_headers,
    merge,
    padding_of,
    parse_index,
    parse_labels,
    partial_text,
    payload_crc,
    read_revision,
    read_table,
    same_tables,
)
from edcache.storage import ByteSource, File, written_since_boot
from edcache.tools.proof import check_chunk, check_layout

# index, offset, nbytes, crc32 and schema of a record, as Arrow writes them.
ROW_NBYTES: Final = 30

# What the directory has of an entry, at least.
_LISTED_NBYTES: Final = 46


@dataclass
class Dead:
    """Bytes of a file that no reader of its newest state needs, by what they are."""

    old_seals: int = 0
    superseded: int = 0
    lost: int = 0
    torn: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.old_seals + self.superseded + self.lost + self.torn


class Survey:
    """The structure of an archive as it was when its size was taken; it may grow meanwhile.

    Args:
        reads_records: check the samples' bytes too.
        forgives_power_cut: leave out what a power cut took from an unsealed archive, as a writer would.
        on_position: called with the offset up to which the file was looked at, now and then.

    Attributes:
        head, chain, seal: as far as they read; seal is that of a sealed archive, else None.
        contents: the newest record of every sample; None where the tables cannot be joined.
        revised: the label table, revisions included; None where it cannot be made.
        has_writer: whether a process writes the archive now; False where that cannot be asked.
        superseded: records that a newer one of the same sample has outdated.
        problems: one line each, with path and offset.
    Raises: as `format.read_head`.
    """

    def __init__(
        self,
        file: ByteSource,
        reads_records: bool,
        forgives_power_cut: bool = False,
        on_position: Callable[[int], object] = lambda offset: None,
    ) -> None:
        # The size first: what others append from now on lies behind it.
        self.size = file.size()
        self.path = file.path
        self.problems: list[str] = []
        self.dead = Dead()
        self.superseded = 0
        self._file, self._pread = file, file.pread
        self.has_writer = isinstance(file, File) and file.is_locked(format.LOCK_FILLER, format.FILLERS)
        self._reads_records = reads_records
        self._on_position = on_position
        self.head, cursor = format.read_head(self._pread, self.path)
        self.chain = Chain(self.head, cursor, self.path)
        headers: list[Header] = []
        self._damaged_seals: list[Header] = []
        for header in format.walk(self._pread, self.size, self.head.uuid, cursor):
            self._check_old_seal(header)
            self.chain.note(self._pread, header)
            self._check_reach(header)
            headers.append(header)
        for labels in self._damaged_seals:
            if labels.seq not in self.chain.lost:  # to a power cut, with what belongs to it
                self.problem(labels.payload_end, "the dead directory of an earlier seal is damaged")
        self.seal = format.read_seal(self._pread, self.size, self.head.uuid)
        if forgives_power_cut and self.chain.seal is None and not _is_since_boot(file):
            self.chain.lost |= self.chain.find_lost(self._pread)
        self.contents = self._merged()
        self.revised = None if self.contents is None else self._revised(self.contents)
        for header in self._kept(headers):
            if header.kind != format.KIND_CHUNK:
                self._check_crc(header, payload_crc(self._pread, header))
                self._check_padding(header)
        self._check_end()
        self._count_dead(headers)

    def problem(self, offset: int, what: str, remedy: str | None = None) -> None:
        """Note damage."""
        remedy = remedy or f'run "edcache repair {self.path} -o NEW"'
        self.problems.append(f"{self.path}: at offset {offset:,}: {what}; {remedy}")

    # --- tables ---

    def _merged(self) -> Contents | None:
        chain = self.chain
        chunks = []
        for header in self._kept(chain.chunks):
            # A count that its table has no room for must not decide how much memory is taken.
            room = header.table_nbytes // ROW_NBYTES
            if header.samples <= room:
                chunks.append(header)
            else:
                claim = f"{header.name} claims {header.samples:,} samples, its table has room for {room:,}"
                self.problem(header.offset, claim)
        dictionaries = self._kept(chain.dictionaries)
        names = [name for name, _ in chain.head.labels]
        failures = [failure for _, failure in chain.failures.values()]
        self._rows_nbytes = self._rows = 0
        try:
            contents = merge(chunks, self._table, dictionaries, chain.length, names, self.path, failures)
        except (CorruptArchiveError, LabelError) as error:
            self.problem(0, f"its chunks do not go together: {error}")
            return None
        self.superseded = self._rows - len(contents.index.records.offset)
        self.dead.superseded = self._rows_nbytes - int(contents.index.records.nbytes.sum())
        return contents

    def _check_reach(self, header: Header) -> None:
        """A revision has no rows of samples that the dataset had not when it was written."""
        length = max(self.chain.end_index, self.chain.length or 0)
        if header.kind == format.KIND_REVISION and header.end_index > length:
            rows = f"{header.name} has rows up to sample {header.end_index:,}"
            self.problem(header.offset, f"{rows}, the dataset had {length:,}")

    def _revised(self, contents: Contents) -> Revised | None:
        try:
            return self.chain.revised(contents, self._revision)
        except LabelError as error:
            self.problem(0, f"its revisions do not go together: {error}")
            return None

    def _revision(self, header: Header) -> Revision | None:
        if header.seq in self.chain.lost:
            return None
        try:
            return read_revision(self._pread, header, self.path)
        except CorruptArchiveError as error:
            self._unread(header, header.name, error)
            return None

    def _kept(self, entries: list[Header]) -> list[Header]:
        return [entry for entry in entries if entry.seq not in self.chain.lost]

    def _table(self, header: Header) -> ChunkTable | None:
        table_bytes = self._pread(header.payload_offset, header.table_nbytes)
        try:
            table = read_table(lambda offset, nbytes: table_bytes, header, self.path)
        except CorruptArchiveError as error:
            self._unread(header, f"chunk {header.seq}", error)
            if self._reads_records:
                self._check_crc(header, payload_crc(self._pread, header))
            self._on_position(min(header.next, self.size))
            return None
        self._rows += len(table.records.offset)
        self._rows_nbytes += int(table.records.nbytes.sum())
        self._check_padding(header)
        if self._reads_records:
            self._check_crc(header, check_chunk(self._pread, header, table, table_bytes, self.problem))
        else:
            check_layout(header, table, self.problem)
        self._on_position(min(header.next, self.size))
        return table

    def _unread(self, header: Header, name: str, error: Exception) -> None:
        """Note an entry that does not read, where the error says only what is wrong with it."""
        why = str(error).removeprefix(f"{self.path}: {name} at offset {header.offset:,}: ")
        self.problem(header.offset, f"{header.name}: {why.partition('; run')[0]}")

    def _check_padding(self, header: Header) -> None:
        if any(padding_of(self._pread, header)):
            self.problem(header.offset, f"{header.name}: bytes behind its content are not zero")

    def _check_crc(self, header: Header, crc: int) -> None:
        """Compare the crc32 of a payload with its header's."""
        if crc != header.payload_crc:
            expected = f"its header says {header.payload_crc:#010x}"
            self.problem(header.offset, f"{header.name} has crc32 {crc:#010x}, {expected}")

    # --- seals ---

    def _check_old_seal(self, following: Header) -> None:
        """Between an earlier seal and the entry behind it lie its directory and zeros."""
        seal = self.chain.seal
        if seal is None:
            return
        start, end = seal[1].payload_end, following.offset
        # A directory takes work as its entries are many; one for which there is no room takes none.
        room = end - start - format.END_NBYTES
        directory = self._directory(seal) if room >= _LISTED_NBYTES * len(self.chain.entries) else b""
        is_there = directory and end == format.align(start + len(directory), PAGE)
        if not is_there or self._pread(start, end - start) != directory.ljust(end - start, b"\0"):
            self._damaged_seals.append(seal[1])
        self.dead.old_seals += end - seal[0].offset

    def _directory(self, seal: tuple[Header, Header]) -> bytes:
        return self.chain.directory(self._pread, seal)

    def _check_end(self) -> None:
        if self.seal is not None:
            self._check_seal(*self.seal)
        elif self.chain.seal is not None:
            self._check_last_seal(self.chain.seal)
        else:
            self._check_tail()

    def _check_seal(self, index_header: Header, labels_header: Header) -> None:
        if self.chain.seal != (index_header, labels_header):
            before = f"so the chain ends before its seal at offset {index_header.offset:,}"
            self.problem(self.chain.cursor.offset, f"no entry fits here, {before}")
            return
        if self.contents is not None and self.revised is not None:
            self._check_sealed_tables(index_header, labels_header, self.contents, self.revised)
        if not self.chain.ends_with_directory(self._pread, self.size, (index_header, labels_header)):
            self.problem(labels_header.payload_end, "the zip directory does not list what the chain holds")

    def _check_sealed_tables(
        self, index_header: Header, labels_header: Header, contents: Contents, revised: Revised
    ) -> None:
        index = self._pread(index_header.payload_offset, index_header.payload_nbytes)
        labels = self._pread(labels_header.payload_offset, labels_header.payload_nbytes)
        try:
            sealed = parse_index(index, index_header.samples)
            same_index = _same_index(sealed, contents.index._replace(labels=revised.columns))
            names = [name for name, _ in (self.head.labels if sealed.labels is None else sealed.labels)]
            same_labels = same_tables(parse_labels(labels, labels_header.samples, names), revised.table)
        except CorruptArchiveError as error:
            self.problem(index_header.offset, str(error))
            return
        if not same_index:
            self.problem(index_header.offset, "index.arrow does not say what the chunks say")
        if not same_labels:
            what = "the chunks" if revised.columns is None else "the chunks and revisions"
            self.problem(labels_header.offset, f"labels.arrow does not say what {what} say")

    def _check_last_seal(self, seal: tuple[Header, Header]) -> None:
        """The chain ends with a seal, the file not with its directory: torn growth, or damage."""
        start, directory = seal[1].payload_end, self._directory(seal)
        if self._pread(start, len(directory)) != directory:
            self.problem(
                start, "the zip directory does not list what the chain holds", "seal the archive again"
            )
        self._check_tail()

    def _check_tail(self) -> None:
        """What an unsealed archive may end with: its last entry, and behind it a torn tail."""
        cursor = self.chain.cursor
        if self.size <= cursor.offset:
            return
        later = next(find_headers(self._file, cursor.offset + 1, self.size, self.head.uuid), None)
        if later is not None:
            follows = f"{later.name} follows at offset {later.offset:,}"
            self.problem(cursor.offset, f"the chain is broken: no entry fits here, but {follows}")
        elif self._is_broken_seal(cursor):
            self.problem(cursor.offset, "a seal begins here that is damaged", "seal the archive again")

    def _is_broken_seal(self, cursor: Cursor) -> bool:
        """The header of index.arrow goes last: where it stands, or nearly, the whole seal stood."""
        data = self._pread(cursor.offset, format.HEADER_NBYTES)
        if format.parse_header(data) is not None:
            # Unless another process has written it since the walk.
            return next(format.walk(self._pread, 1 << 62, self.head.uuid, cursor), None) is None
        # A kill within the header leaves no crc32; with one, it was whole once.
        had_crc, is_named = any(data[137:141]), data[30:41] == b"index.arrow"
        return had_crc and (is_named or END_SIGNATURE in self._pread(max(0, self.size - 1024), 1024))

    # --- what nobody needs ---

    def _count_dead(self, headers: list[Header]) -> None:
        self.dead.lost = sum(h.next - h.offset for h in headers if h.seq in self.chain.lost)
        end = self.chain.cursor.offset
        if self.chain.seal is not None:
            labels = self.chain.seal[1]
            end = labels.payload_end + len(self._directory(self.chain.seal))
        if self.seal is None:
            self.dead.torn = max(0, self.size - end)


class Sound(NamedTuple):
    """An archive without a fault: its survey, the newest record of every sample, and the label table."""

    survey: Survey
    contents: Contents
    revised: Revised


def sound_survey(file: ByteSource, allow_partial: bool) -> Sound:
    """Survey an archive whose records will be copied, without reading them.

    Args:
        allow_partial: an archive will do that is not sealed.
    Raises:
        CorruptArchiveError: it is damaged; the text has the first problem.
        PartialArchiveError: it is not sealed: what was made of it would pass for whole.
    """
    survey = Survey(file, False, forgives_power_cut=True)
    while (
        isinstance(file, File)
        and survey.seal is None
        and not (allow_partial or survey.has_writer)
        and _is_appended(file, survey)
    ):
        # Its seal may be being written just now.
        file.share(format.LOCK_APPEND)
        file.unlock(format.LOCK_APPEND)
        survey = Survey(file, False, forgives_power_cut=True)
    if survey.problems:
        raise CorruptArchiveError(survey.problems[0])
    assert survey.contents is not None  # or there would be a problem
    assert survey.revised is not None
    if survey.seal is None and not allow_partial:
        present = len(survey.contents.index.records.offset)
        raise PartialArchiveError(partial_text(survey.path, present, survey.chain.length))
    return Sound(survey, survey.contents, survey.revised)


def _is_appended(file: File, survey: Survey) -> bool:
    """Whether somebody publishes just now, or has since the survey."""
    return file.is_locked(format.LOCK_APPEND, 1) or file.size() != survey.size


def _is_since_boot(file: ByteSource) -> bool:
    """Whether no power cut came after the last write; what is behind a URL was uploaded whole."""
    return not isinstance(file, File) or written_since_boot(file)


def _same_index(sealed: IndexTable, expected: IndexTable) -> bool:
    columns, others = sealed.records.columns(), expected.records.columns()
    return (
        sealed.length == expected.length
        and sealed.schemas == expected.schemas
        and sealed.dictionaries == expected.dictionaries
        and np.array_equal(sealed.blocks, expected.blocks)
        and list(sealed.failures) == list(expected.failures)
        and list(sealed.labels or ()) == list(expected.labels or ())
        and (sealed.labels is None) == (expected.labels is None)
        and columns.keys() == others.keys()
        and all(np.array_equal(columns[name], others[name]) for name in columns)
    )
