"""What one process has of an open archive: of any (`Session`), of one that is a file (`FileSession`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.format import Contents, Head, Header, Records, parse_index, parse_labels, read_table
from edcache.labels import checked_indices
from edcache.reader.checks import LARGE, Checks, Piece, Requested
from edcache.storage import ByteSource

# What reads samples takes torch; it is imported when the first is read, so that labels are there before.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoders, Decoding
    from edcache.reader.group import Group, GroupRecords

T = TypeVar("T")
Data = TypeVar("Data", bytes, memoryview)

# With so many entries and fewer, opening walks the chain: some 10 us each.
_WALKED = 1 << 10
# The directory of some fifteen thousand.
_DIRECTORY_NBYTES = 1 << 20
_PROBES = 8
# What lies no further apart is one announcement: the kernel reads ahead that far anyway.
_GAP = 1 << 16
# How long a reader waits for a publication to end: longer, and it takes what is there before.
_MOST_LOOKS, _LOOK_SECONDS = 500, 0.002
# After so many batches that lay in memory, every so-manyth is probed.
_HOT_BATCHES, _HOT_STRIDE = 32, 16


class Alike(NamedTuple):
    """Records of one schema: their rows in the index table, int64 [n], and its decoder."""

    rows: Ints
    decoder: Decoder


class Session(ABC):
    """What one process has of an open archive, as of one look at it; `AnyReader` describes its methods.

    A refresh makes another one, so that whoever is at work goes on with what was there before.

    Args:
        allow_pickle, decoding: as in `Reader`; a decoding of None is what the writer chose.
    Attributes:
        length: samples of the dataset. mapped_nbytes: bytes that are mapped, and so shared by all processes.
        chunks: how many, where the chain was walked. damaged: what was unreadable, a line a chunk.
        has_label_rows: whether a row of labels per sample is stored, so that making one takes no memory.
    """

    mapped_nbytes = 0
    chunks: int | None = None
    damaged: Sequence[str] = ()
    has_label_rows = False

    def __init__(
        self, path: str, head: Head, contents: Contents, allow_pickle: bool, decoding: Decoding | None
    ) -> None:
        self.path, self.head, self.contents = path, head, contents
        self.length = contents.index.length
        self._allow_pickle, self._decoding = allow_pickle, decoding
        records = contents.index.records
        self._index = records.index
        self._rows = len(records.offset)
        # Reading one element of a memoryview costs half of what numpy takes.
        self._schema = records.schema.data

    @once
    def _decoders(self) -> Decoders:
        return codec.Decoders()

    # --- what differs ---

    @property
    @abstractmethod
    def sealed(self) -> bool: ...

    @property
    @abstractmethod
    def nbytes(self) -> int: ...

    @property
    @abstractmethod
    def private_nbytes(self) -> int: ...

    @abstractmethod
    def fetch(self, index: int, wanted: tuple[int, int] | None = None) -> tuple[memoryview, Decoder]: ...

    @abstractmethod
    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None: ...

    @abstractmethod
    def placed(self, error: base.EdcacheError, index: int) -> base.EdcacheError: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _label_table(self) -> Any:
        """The labels as they are stored, for the rows of the index or for every sample."""

    def reading_ahead(
        self, indices: Ints, wanted: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def is_abandoned(self) -> bool:
        return False

    @property
    def justified_nbytes(self) -> int:
        """Bytes that are there for certain, by which claims of the archive are measured."""
        return self.nbytes

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        """The label columns, and whether values of them were added after the samples were written."""
        return [(name, False) for name, _ in self.head.labels]

    # --- what is there ---

    def find(self, index: int) -> int | None:
        """The row of the index table for an index in range, or None where it has no record."""
        if self._index is None:
            return index
        row = int(np.searchsorted(self._index, index))
        return row if row < len(self._index) and self._index[row] == index else None

    def has(self, index: int) -> bool:
        return self.find(index) is not None

    def rows_of(self, indices: Ints) -> Ints:
        """The rows of samples in [0, length), -1 where they have no record: int64 [n]."""
        if self._index is None:
            return indices
        rows = np.searchsorted(self._index, indices)
        found = rows < len(self._index)
        found[found] = self._index[rows[found]] == indices[found]
        return np.where(found, rows, -1)

    def row(self, index: int) -> int:
        """The row of the index table that holds a sample."""
        if not 0 <= index < self.length:
            raise base.SampleIndexError(f"{self.path}: index {index} not in [0, {self.length:,})")
        row = self.find(index)
        if row is None:
            raise self._no_record(index)
        return row

    def _no_record(self, index: int) -> base.MissingSampleError:
        failure = next((one for one in self.contents.index.failures if one.index == index), None)
        if failure is not None:
            again = "it counts as absent for good" if failure.final else "a later fill tries again"
            return base.SampleFailedError(
                f"{self.path}: sample {index} failed when it was made, {again}; available() leaves it out\n"
                f"{failure.error}: {failure.message}\n{failure.traceback}"
            )
        return base.MissingSampleError(
            f"{self.path}: sample {index} has no record yet ({self.present:,} of {self.length:,} have); "
            "fill it with warmup() on a dataset that has its source"
        )

    @property
    def records(self) -> Records:
        return self.contents.index.records

    @property
    def present(self) -> int:
        return self._rows

    @property
    def has_all(self) -> bool:
        """Whether no sample is missing, as far as known: of a sealed archive all is known."""
        absent = sum(failure.final for failure in self.contents.index.failures)
        return self.present + absent == self.length

    def held(self) -> Ints | None:
        """The indices that have a record; None where all have one."""
        return self._index

    # --- samples ---

    def read(self, index: int, copy: bool) -> Any:
        record, decoder = self.fetch(index)
        try:
            return decoder.decode(record, copy=copy)
        except (base.CodecError, base.CorruptRecordError) as error:
            raise self.placed(error, index) from error

    def read_many(self, indices: Ints, copy: bool) -> list[Any]:
        group = self.group(indices) if len(indices) else None
        if group is not None:
            # Whatever is wrong is named by the way below.
            with suppress(base.EdcacheError):
                return group.decoded(copy)
        with self.reading_ahead(indices):
            return [self.read(index % self.length, copy) for index in indices.tolist()]

    def decoder(self, number: int) -> Decoder:
        """The decoder of a schema; CorruptRecordError, which has no place yet, where the head allows none."""
        if number in self._decoders:
            return self._decoders[number]
        schemas = self.contents.index.schemas
        if number >= len(schemas):
            raise base.CorruptRecordError(f"schema {number} of {len(schemas)}")
        text = schemas[number]
        if (text == codec.PICKLE_SCHEMA) != (self.head.codec == "pickle"):
            raise base.CorruptRecordError(
                f"its schema {text[:40]} is not of the codec {self.head.codec!r} that the head names; "
                f'run "edcache verify {self.path}"'
            )
        decoder = codec.decoder_of(text, allow_pickle=self._allow_pickle, decoding=self._decoding)
        return self._decoders.keep(number, decoder)

    def decoder_at(self, row: int) -> Decoder:
        """The decoder of the record of a row of the index table."""
        number = self._schema[row]
        try:
            return self._decoders.get(number) or self.decoder(number)
        except base.CorruptRecordError as error:
            index = row if self._index is None else int(self._index[row])
            raise self.placed(error, index % self.length) from error

    def alike(self, indices: Ints) -> Alike | None:
        """The rows of samples that have records of one schema, and its decoder; None where they have not."""
        rows = self.rows_of(checked_indices(indices, self.length))
        if not len(rows) or rows.min() < 0:
            return None
        schemas = self.contents.index.records.schema[rows]
        if np.any(schemas != schemas[0]):
            return None
        decoder = self.decoder_at(int(rows[0]))
        return None if decoder.structure is None else Alike(rows, decoder)

    # --- labels ---

    @once
    def labels(self) -> Any:
        """The label table with one row per sample."""
        return format.spread(self._label_table(), self._index, self.length)

    @property
    def label_nbytes(self) -> int:
        """Of the label table, where it was made."""
        return int(self.labels.nbytes) if "labels" in vars(self) else 0


class FileTables(Session):
    """An archive that is a file: its bytes up to `nbytes`, and what they say of its samples.

    They are mapped: shared by all processes, and nothing to look at. On a file system of another machine a
    mapping fetches page by page and a lost connection is a SIGBUS, so there records are read; what is behind
    a URL cannot be mapped at all.

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
        before: FileTables | None = None,
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
            _announce_headers(file, self.seal[1].payload_end, self.size)
            self.chain.extend(file.pread, self.size)
            self.chain.check_seal(file.pread, self.size, self.seal)
            self.chunks = len(self.chain.chunks)
        # Not a byte behind the last entry: a writer may cut a torn tail off, and a mapping of what is no
        # longer there is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        end = self.chain.cursor.offset if self.seal is None else self.size
        self.sealed, self.nbytes = self.seal is not None, min(end, self.size)
        self._view: memoryview | None = None
        # What a partial copy lacks is fetched where it is read.
        if not file.is_partial and (io == "mmap" or (io == "auto" and not file.is_remote())):
            try:
                self._view = file.map(self.nbytes)
            except base.StorageError as error:
                raise base.StorageError(f'{error}; io="pread" reads it without') from error
        self.mapped_nbytes = 0 if self._view is None else self.nbytes
        contents = self._sealed_contents() if self.seal else self.chain.contents(self._sound_table)
        super().__init__(self.path, head, contents, allow_pickle, decoding)
        self.has_label_rows = self.seal is not None and self.seal[1].samples == self.length

    # --- bytes ---

    def _read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent; fewer at the end of the file. Read only."""
        if self._view is not None:
            return self._view[offset : offset + nbytes]
        return self.file.read_many([(offset, min(nbytes, max(0, self.nbytes - offset)))])[0]

    def _pread(self, offset: int, nbytes: int) -> bytes:
        """A copy of an extent, of what leads to records: what follows may be fetched with it."""
        if self._view is not None:
            return bytes(self._view[offset : offset + nbytes])
        return self.file.pread(offset, min(nbytes, max(0, self.nbytes - offset)))

    def _payload(self, header: Header, name: str) -> memoryview:
        extent = header.payload_offset, header.payload_nbytes
        data = self._mended(self._read, *extent, header.payload_crc)
        if data is None:
            raise base.CorruptArchiveError(
                f"{self.path}: {name} at offset {header.offset:,} fails its crc32; {_lost_index(self.path)}"
            )
        return data

    def _mended(self, read: Callable[[int, int], Data], offset: int, nbytes: int, crc: int) -> Data | None:
        """The bytes of an extent, fetched again where that helps; None where they fail their crc32."""
        data = read(offset, nbytes)
        if format.crc32(data) != crc and self.file.mend(offset, nbytes):
            data = read(offset, nbytes)
        return data if len(data) == nbytes and format.crc32(data) == crc else None

    # --- index ---

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
        read = [self._mended(self._pread, one.offset, one.nbytes, one.crc32) for one in entries]
        return [data for data in read if data is not None]

    def _sound(self, read: Callable[[format.PRead, Header, str], T], header: Header) -> T | None:
        """What a chunk or a revision says; None where a power cut left its header without its payload."""
        try:
            return read(self._pread, header, self.path)
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


def _announce_headers(file: ByteSource, directory: int, size: int) -> None:
    """Let the kernel fetch every header at once, rather than each when the one before was read."""
    listed = file.pread(directory, min(size - directory, _DIRECTORY_NBYTES))
    offsets = [offset for offset in format.directory_offsets(listed) if offset < size]
    if not file.are_cached(offsets[:: 1 + len(offsets) // _PROBES]):
        for offset in offsets:
            file.will_need(offset, format.HEADER_NBYTES)


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


class FileSession(FileTables):
    """What one process has of an archive that is a file; see the base class."""

    def __init__(self, file: ByteSource, *options: Any) -> None:
        super().__init__(file, *options)
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
        self._hot_batches = 0

    @property
    def checks(self) -> Checks:
        """Which records were compared with their crc32; none before the first is read."""
        # Of two threads that both make one, what the one notes is compared once more by the other.
        if self._checks is None:
            self._checks = Checks(self.file, self._view, self.nbytes, self.contents.index, self._verify)
        return self._checks

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
        if nbytes >= LARGE and not is_announced and self._is_probe_due():
            self._announce(np.array([row]), np.array([offset], np.int64), None)
        data = view[offset:end]
        if self._checks is None or not self._checks.is_done:
            self.checks.record(row, data, wanted)
        return data

    def _unmapped(self, row: int, wanted: tuple[int, int] | None) -> memoryview:
        """The same of a file that is not mapped; what fails its check is mended and read again."""
        extent = self._offset[row], self._nbytes[row]
        data = self._read(*extent)
        try:
            self.checks.record(row, data, wanted)
        except base.CorruptRecordError:
            if not self.file.mend(*extent):
                raise
            data = self._read(*extent)
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
        if self._is_probe_due():
            self._announce(rows, start, wanted)
        if records is not None:
            return records.at(start, rows)
        if self._raw_nbytes is not None or self._view is None:
            return self._loaded(rows, decoder, wanted)
        records = self._records
        if records is None or records.decoder is not decoder:
            from edcache.reader.group import GroupRecords

            nbytes = self.contents.index.records.nbytes
            records = self._records = GroupRecords(decoder, self._view, nbytes)
        self._is_bulk = bool(self._is_uniform) and self._index is None
        return records.at(start, rows, self.checks.group(rows, start, wanted))

    def _is_probe_due(self) -> bool:
        """Whether to look if what will be read is in memory; seldom after many batches that were."""
        self._hot_batches += 1
        return (
            self._hot_batches <= _HOT_BATCHES or self._hot_batches % _HOT_STRIDE == 0 or self.file.is_partial
        )

    def _announce(self, rows: Ints, start: Ints, wanted: tuple[int, int] | None) -> None:
        """Let records be fetched that will be read, where they are not in memory by a few probes.

        By the source what it lacks, then by the kernel.
        """
        probes = start[:: max(1, len(start) // _PROBES)].tolist()
        if not self.file.is_partial and self.file.are_cached(probes):
            return
        self._hot_batches = 0
        low, high = (0, self.records.nbytes[rows].view(np.int64)) if wanted is None else wanted
        start, end = start + low, start + high
        self.file.announce(start, end)
        order = np.argsort(start)
        start, end = start[order], np.maximum.accumulate(end[order])
        breaks = np.flatnonzero(start[1:] > end[:-1] + _GAP) + 1
        firsts = np.concatenate(([0], breaks))
        lasts = np.concatenate((breaks, [len(start)])) - 1
        # In the order in which they will be read: the first is copied while the last is fetched.
        first_read = np.argsort(np.minimum.reduceat(order, firsts))
        firsts, lasts = firsts[first_read], lasts[first_read]
        for low, high in zip(start[firsts].tolist(), end[lasts].tolist(), strict=True):
            # One run is a pass in file order: what follows will be asked for next.
            ahead = high - low if len(firsts) == 1 else 0
            self.file.will_need(low, high - low + ahead)

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
        from edcache.reader.group import joined

        index = self.contents.index.records
        rows = rows % self._rows  # as `group` takes them: some from the end
        is_raw = index.raw_nbytes is None
        if self._requested is not None:
            stored = self._requested.pieces(rows.tolist(), wanted if is_raw else None)
        else:
            stored = [Piece(0, self._stored(row, is_announced=True)) for row in rows.tolist()]
        lengths = (index.nbytes if index.raw_nbytes is None else index.raw_nbytes)[rows].view(np.int64)
        return joined(decoder, lengths, stored, None if is_raw else self.dictionaries)

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
