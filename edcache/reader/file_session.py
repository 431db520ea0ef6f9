"""What one process has of an open archive that is a file: what it says of its samples, and their records.

torch is imported when the first sample is read: labels and all else that an archive says are there before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.format import Contents, Header, Records, parse_index, parse_labels, read_table
from edcache.labels import checked_indices
from edcache.reader.checks import LARGE, Checks, Piece, Requested
from edcache.reader.extents import Extents, announce_headers
from edcache.reader.session import Alike, Session
from edcache.storage import ByteSource

if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoding
    from edcache.reader.group import Group, GroupRecords

T = TypeVar("T")

# With so many entries and fewer, opening walks the chain: some 10 us each.
_WALKED = 1 << 10
# How long a reader waits for a publication to end: longer, and it takes what is there before.
_MOST_LOOKS, _LOOK_SECONDS = 500, 0.002


class FileSession(Session):
    """What one process has of an archive that is a file, up to where its last entry ends; see the base class.

    Args:
        io, verify: as in `Reader`. before: an earlier look at the same file.
    Attributes:
        size: of the file. seal: its last one, where it is sealed. chain: its entries, as far as walked.
    """

    sealed = False
    nbytes = 0

    def __init__(
        self,
        file: ByteSource,
        io: str = "auto",
        verify: str = "touch",
        allow_pickle: bool = False,
        decoding: Decoding | None = None,
        before: FileSession | None = None,
    ) -> None:
        self.file, self.path = file, file.path
        self._io, self._verify = io, verify
        self.size = file.size()
        head, first = format.read_head(file.pread, self.path)
        self.seal = format.read_seal(file.pread, self.size, head.uuid)
        self.chain = format.Chain(head, first, self.path)
        self._tables: dict[int, format.ChunkTable | None] = {}
        self.damaged: list[str] = []
        if before is not None and before.seal is None:
            # A growing archive is looked at again and again: what was read of it is not read again.
            self.chain, self._tables = before.chain.copy(), before._tables
            self.damaged = before.damaged.copy()
        if self.seal is None:
            self.chain.extend(file.pread, self.size)
            self.chunks = len(self.chain.chunks)
            if self.chain.seal is not None:
                # Its last header may have been written since it was looked for.
                self.seal = format.read_seal(file.pread, self.size, head.uuid)
        elif verify == "open" or (
            verify != "never" and self.seal[0].seq <= _WALKED and not (file.by_request or file.is_partial)
        ):
            # Cheap among a file's few entries; then the zip directory and the index can tell of no others.
            announce_headers(file, self.seal[1].payload_end, self.size)
            self.chain.extend(file.pread, self.size)
            self.chain.check_seal(file.pread, self.size, self.seal)
            self.chunks = len(self.chain.chunks)
        # Not a byte behind the last entry: a writer may cut a torn tail off, and a mapping of what is no
        # longer there is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        end = self.chain.cursor.offset if self.seal is None else self.size
        self.sealed, self.nbytes = self.seal is not None, min(end, self.size)
        self._extents = Extents(file, self.nbytes, io)
        self._view = self._extents.view
        self.mapped_nbytes = 0 if self._view is None else self.nbytes
        contents = self._sealed_contents() if self.seal else self.chain.contents(self._sound_table)
        super().__init__(self.path, head, contents, allow_pickle, decoding)
        self.has_label_rows = self.seal is not None and self.seal[1].samples == self.length
        records = self.contents.index.records
        self._offset, self._nbytes = records.offset.data, records.nbytes.data
        self._raw_nbytes = None if records.raw_nbytes is None else records.raw_nbytes.data
        self._starts = records.offset.view(np.int64)
        self._checks: Checks | None = None
        self._requested = Requested(file, self.checks, self.contents.index) if file.by_request else None
        # What was gathered from last; and whether it has all samples, of one schema, so that any can be.
        self._records: GroupRecords | None = None
        self._is_bulk = False
        self._is_uniform: bool | None = None

    @property
    def checks(self) -> Checks:
        """Which records were compared with their crc32; none before the first is read."""
        # Of two threads that both make one, what the one notes is compared once more by the other.
        if self._checks is None:
            self._checks = Checks(self.file, self._view, self.nbytes, self.contents.index, self._verify)
        return self._checks

    # --- index ---

    def _payload(self, header: Header, name: str) -> memoryview:
        extent = header.payload_offset, header.payload_nbytes
        data = self._extents.mended(self._extents.read, *extent, header.payload_crc)
        if data is None:
            raise base.CorruptArchiveError(
                f"{self.path}: {name} at offset {header.offset:,} fails its crc32; {_lost_index(self.path)}"
            )
        return data

    def _sealed_contents(self) -> Contents:
        assert self.seal is not None
        header = self.seal[0]
        data = self._payload(header, "index.arrow")
        try:
            index = parse_index(data, header.samples)
        except base.CorruptArchiveError as error:
            raise base.CorruptArchiveError(f"{self.path}: {error}; {_lost_index(self.path)}") from error
        if self.chunks is not None:
            self.chain.check_index(index)
        if index.length != header.end_index or not _is_held(index.records, self.size):
            raise base.CorruptArchiveError(
                f"{self.path}: index.arrow lists more than a file of {self.size:,} bytes holds; "
                f"{_lost_index(self.path)}"
            )
        return Contents(index, None)

    @once
    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries, read once; only the records that need an unreadable one say so."""
        entries = self.contents.index.dictionaries
        extents = self._extents
        read = [extents.mended(extents.pread, one.offset, one.nbytes, one.crc32) for one in entries]
        return [data for data in read if data is not None]

    def _sound(self, read: Callable[[format.PRead, Header, str], T], header: Header) -> T | None:
        """What a chunk or a revision says; None where a power cut left its header without its payload."""
        try:
            return read(self._extents.pread, header, self.path)
        except base.CorruptArchiveError as error:
            self.damaged.append(str(error))
            return None

    def _sound_table(self, header: Header) -> format.ChunkTable | None:
        if header.seq not in self._tables:
            self._tables[header.seq] = self._sound(read_table, header)
        return self._tables[header.seq]

    # --- labels ---

    @once
    def _revised(self) -> format.Revised:
        """The labels of an archive that is not sealed."""
        return self.chain.revised(self.contents, partial(self._sound, format.read_revision))

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        columns = self.contents.index.labels if self.seal is not None else self._revised.columns
        return super().label_columns if columns is None else columns

    def _label_table(self) -> Any:
        if self.seal is None:
            return self._revised.table
        header = self.seal[1]
        told_by = "the head" if self.contents.index.labels is None else "index.arrow"
        try:
            names = [name for name, _ in self.label_columns]
            return parse_labels(self._payload(header, "labels.arrow"), header.samples, names, told_by)
        except base.CorruptArchiveError as error:
            raise base.CorruptArchiveError(f"{self.path}: {error}") from error

    # --- what is there ---

    @property
    def has_writer(self) -> bool:
        """Whether a process writes the archive now; False where that cannot be asked, as behind a URL."""
        return self.file.is_locked(format.LOCK_FILLER, format.FILLERS) or self.is_appended

    @property
    def is_appended(self) -> bool:
        """Whether a process is publishing something just now; False where that cannot be asked."""
        return self.file.is_locked(format.LOCK_APPEND, 1)

    @property
    def is_abandoned(self) -> bool:
        # No sample was ever published, and nothing lies behind that could have been one.
        is_empty = not self.sealed and self.chain.holds_nothing and self.size <= self.chain.cursor.offset
        return is_empty and not self.has_writer

    def partial_text(self) -> str:
        """What is to be said of an archive that is not sealed."""
        return format.partial_text(self.path, self._rows, self.chain.length, self.damaged)

    @property
    def private_nbytes(self) -> int:
        # What was checked, and what is not mapped.
        if self.sealed and self._view is not None:
            return self.checks.nbytes
        index = sum(column.nbytes for column in self.contents.index.records.columns().values())
        return index + self.label_nbytes + self.checks.nbytes

    def placed(self, error: base.EdcacheError, index: int) -> base.EdcacheError:
        is_record = isinstance(error, base.CorruptRecordError)
        where = self.checks.place(self.row(index)) if is_record else f"{self.path}: sample {index}"
        return type(error)(f"{where}: {error}")

    # --- one record ---

    def fetch(self, index: int, wanted: tuple[int, int] | None = None) -> tuple[memoryview, Decoder]:
        row = index if self._index is None and 0 <= index < self.length else self.row(index)
        data = self._stored(row, wanted if self._raw_nbytes is None else None)
        if self._raw_nbytes is not None:
            try:
                data = memoryview(codec.decompress(data, self._raw_nbytes[row], self.dictionaries))
            except (base.CorruptRecordError, base.LengthError) as error:
                raise type(error)(f"{self.checks.place(row)}: {error}") from error
        return data, self._decoders.get(self._schema[row]) or self.decoder_at(row)

    def _stored(
        self, row: int, wanted: tuple[int, int] | None = None, *, is_announced: bool = False
    ) -> memoryview:
        """The bytes of a record as they are stored, checked at least where they are wanted."""
        if self._requested is not None:
            return self._requested.record(row, wanted)
        offset, nbytes, view = self._offset[row], self._nbytes[row], self._view
        end = offset + nbytes
        if end > self.nbytes:
            raise self.checks.beyond_end(row)
        if view is None:
            return self._unmapped(row, wanted)
        if nbytes >= LARGE and not is_announced and self._extents.is_probe_due():
            self._announce(np.array([row]), np.array([offset], np.int64), None)
        data = view[offset:end]
        if self._checks is None or not self._checks.is_done:
            self.checks.record(row, data, wanted)
        return data

    def _unmapped(self, row: int, wanted: tuple[int, int] | None) -> memoryview:
        """The same of a file that is not mapped; what fails its check is mended and read again."""
        extent = self._offset[row], self._nbytes[row]
        data = self._extents.read(*extent)
        try:
            self.checks.record(row, data, wanted)
        except base.CorruptRecordError:
            if not self.file.mend(*extent):
                raise
            data = self._extents.read(*extent)
            self.checks.record(row, data, wanted)
        return data

    # --- many records ---

    def reading_ahead(
        self, indices: Ints, wanted: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        if self._requested is None:
            return nullcontext()
        inside = indices[(indices >= -self.length) & (indices < self.length)] % self.length
        rows = sorted(set(self.rows_of(inside).tolist()) - {-1})
        return self._requested.reading_ahead(rows, wanted if self._raw_nbytes is None else None)

    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None:
        # The way of nearly every batch, kept short: a batch of small samples takes some 50 us in all.
        checks = self._checks
        records = self._records if self._is_bulk and checks is not None and checks.is_done else None
        alike = self.alike(indices) if records is None else Alike(indices, records.decoder)
        if alike is None:
            return None
        rows, decoder = alike
        try:
            start = self._starts[rows]
        except IndexError:
            checked_indices(indices, self.length)
            raise
        if self._extents.is_probe_due():
            self._announce(rows, start, wanted)
        if records is not None:
            return records.at(start, rows)
        if self._raw_nbytes is not None or self._view is None:
            return self._loaded(rows, decoder, wanted)
        records = self._records
        if records is None or records.decoder is not decoder:
            from edcache.reader.group import GroupRecords

            records = self._records = GroupRecords(decoder, self._view, self.records.nbytes)
        self._is_bulk = bool(self._is_uniform) and self._index is None
        return records.at(start, rows, self.checks.group(rows, start, wanted))

    def _announce(self, rows: Ints, start: Ints, wanted: tuple[int, int] | None) -> None:
        """Let records be fetched that will be read, where they are not in memory."""
        if not self._extents.are_in_memory(start):
            low, high = (0, self.records.nbytes[rows].view(np.int64)) if wanted is None else wanted
            self._extents.announce(start + low, start + high)

    def alike(self, indices: Ints) -> Alike | None:
        """See the base class; None too where a gather would leave the records. Rows may be negative."""
        records = self.contents.index.records
        first = self.decoder_at(0) if self._rows and self._is_uniform is not False else None
        if self._is_uniform is None:
            # Whether any records can be gathered together; looks at the whole index once.
            self._is_uniform = first is not None and self._are_alike(records, first)
        if first is None or not self._is_uniform:
            alike = super().alike(indices)
            is_sound = alike is not None and self._are_alike(records.take(alike.rows), alike.decoder)
            return alike if is_sound else None
        low, high = -self.length, self.length
        if self._index is None and len(indices) and low <= indices.min() <= indices.max() < high:
            return Alike(indices, first)
        rows = self.rows_of(checked_indices(indices, self.length))
        return Alike(rows, first) if len(rows) and rows.min() >= 0 else None

    def _are_alike(self, chosen: Records, decoder: Decoder) -> bool:
        """Whether the records have one schema and a gather stays within them.

        Where not, reading them one by one works, or says what is wrong.
        """
        size, least = self.nbytes, decoder.fixed_nbytes
        lengths = chosen.nbytes if chosen.raw_nbytes is None else chosen.raw_nbytes
        return bool(
            decoder.structure is not None
            and not np.any(chosen.schema != chosen.schema[0])
            and chosen.offset.max() <= size
            and chosen.nbytes.max() <= size
            and (chosen.offset + chosen.nbytes).max() <= size
            and not np.any(chosen.offset % format.LATTICE)
            and lengths.min() >= least
            and (decoder.nbytes is None or lengths.max() == least)
        )

    def _loaded(self, rows: Ints, decoder: Decoder, wanted: tuple[int, int] | None) -> Group | None:
        """A group over memory of its own: records that are compressed, or not mapped."""
        index = self.contents.index.records
        rows = rows % self._rows  # as `group` takes them: some from the end
        is_raw = index.raw_nbytes is None
        if self._requested is not None:
            stored = self._requested.pieces(rows.tolist(), wanted if is_raw else None)
        else:
            stored = [Piece(0, self._stored(row, is_announced=True)) for row in rows.tolist()]
        lengths = (index.nbytes if index.raw_nbytes is None else index.raw_nbytes)[rows].view(np.int64)
        return self._joined(decoder, lengths, stored, None if is_raw else self.dictionaries)

    @once
    def _joined(self) -> Callable[..., Group | None]:
        """What makes such a group; with it torch is imported, for the first batch."""
        from edcache.reader.group import joined

        return joined

    # --- growth ---

    def close(self) -> None:
        self.file.close()

    def settled(self) -> FileSession:
        """The newest session once nobody is publishing: adding labels seals a sealed archive again.

        The file of any other is closed.
        """
        session = self
        try:
            for _ in range(_MOST_LOOKS):
                if session.sealed or not session.file.is_live:
                    break
                # In this order: what is the same as it was before nobody published is what is there.
                if session.has_writer and not session.is_appended:
                    break
                is_appended, newer = session.is_appended, session.look_again()
                if newer is not None:
                    session.close()
                    session = newer
                elif is_appended:
                    time.sleep(_LOOK_SECONDS)
                else:
                    break
        except BaseException:
            session.close()
            raise
        return session

    def look_again(self) -> FileSession | None:
        """A new session with the file if it changed, else None."""
        file = self.file.reopened()
        options = self._io, self._verify, self._allow_pickle, self._decoding
        try:
            if file.identity() != self.file.identity():
                if self._is_rewritten(file):
                    return FileSession(file, *options)
                raise base.StaleArchiveError(
                    f"{self.path}: the file was replaced since it was opened; open it again"
                )
            size = file.size()
            has_changed = size != self.size
            if not self.sealed:
                # The size alone does not tell: a torn tail may have been cut and its bytes used for a chunk.
                entries = format.walk(file.pread, size, self.head.uuid, self.chain.cursor)
                has_changed = next(entries, None) is not None
            if not has_changed:
                file.close()
                return None
            return FileSession(file, *options, self)
        except BaseException:
            file.close()
            raise

    def _is_rewritten(self, file: ByteSource) -> bool:
        """Whether another file is the same archive, compacted."""
        try:
            return format.read_head(file.pread, self.path)[0].uuid == self.head.uuid
        except base.ArchiveError:
            return False


def _is_held(records: Records, size: int) -> bool:
    """Whether all records together have no more bytes than the file: else a batch could take any memory."""
    nbytes, raw_nbytes = records.nbytes, records.raw_nbytes
    return not len(nbytes) or bool(
        records.offset.max() <= size
        and nbytes.max() <= size
        and nbytes.sum(dtype=np.float64) <= size
        and (raw_nbytes is None or int(raw_nbytes.max()) <= codec.most_content(size))
    )


def _lost_index(path: str) -> str:
    return (
        'the samples are not lost: open the archive with CacheWriter(..., mode="a") after '
        f'"edcache verify {path}"'
    )
