"""What one process has of an archive: the bytes, the index, decoders, what was checked."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from edcache import format
from edcache.codec import PICKLE_SCHEMA, Decoder, Decoders, Decoding, aliased
from edcache.codec.compression import decompress, decompress_into, most_content
from edcache.contents import Chain, Contents, partial_text, read_revision, read_table
from edcache.durable import ByteSource
from edcache.errors import (
    ArchiveError,
    CorruptArchiveError,
    CorruptRecordError,
    LengthError,
    MissingSampleError,
    SampleFailedError,
    SampleIndexError,
    StaleArchiveError,
)
from edcache.format import LATTICE, Header
from edcache.labels import tables
from edcache.labels.revisions import Revised
from edcache.labels.tables import (
    Blocks,
    ChunkTable,
    Dictionary,
    Failure,
    Revision,
    parse_index,
    parse_labels,
    spread,
)
from edcache.labels.view import checked_indices
from edcache.once import once
from edcache.reader.checks import LARGE, Checks, Places
from edcache.reader.group import Group, Records
from edcache.reader.requested import Piece, Requested
from edcache.reader.storage import Storage

Ints = npt.NDArray[np.int64]

# With so many entries and fewer, opening walks the chain: some 10 us each.
_WALKED = 1 << 10
# The directory of some fifteen thousand.
_DIRECTORY_NBYTES = 1 << 20
_PROBES = 8
# How long a reader waits for a publication to end: longer, and it takes what is there before.
_MOST_LOOKS, _LOOK_SECONDS = 500, 0.002


class _Alike(NamedTuple):
    """Records of one schema: their rows in the index table, where they start in the file, int64 [n]."""

    rows: Ints
    start: Ints
    decoder: Decoder


class Hold:
    """A reader's hold on the file in one process.

    Args:
        decoding: of image files; None for what their writer chose. before: an earlier hold on the same file.

    Attributes:
        head: what the archive says about itself. contents: its index.
        place: names the record of a row in messages.
        chunks: how many, where the chain was walked. damaged: what was unreadable, a line a chunk.
    """

    def __init__(
        self,
        file: ByteSource,
        io: str,
        verify: str,
        decoding: Decoding | None = None,
        before: Hold | None = None,
    ) -> None:
        self.file = file
        self.path = file.path
        self._io, self._verify, self._decoding = io, verify, decoding
        self._size = file.size()
        self.head, first = format.read_head(file.pread, self.path)
        self._seal = self._found_seal(file)
        self._chain = Chain(self.head, first, self.path)
        self._tables: dict[int, ChunkTable | None] = {}
        self.chunks: int | None = None
        self.damaged: list[str] = []
        if before is not None and not before.sealed:
            # A growing archive is looked at again and again: what was read of it is not read again.
            self._chain, self._tables = before._chain.copy(), before._tables
            self.damaged = before.damaged.copy()
        if self._seal is None:
            self._chain.extend(file.pread, self._size)
            self.chunks = len(self._chain.chunks)
            if self._chain.seal is not None:
                # Its last header may have been written since it was looked for.
                self._seal = self._found_seal(file)
        elif verify == "open" or (
            verify != "never" and self._seal[0].seq <= _WALKED and not (file.by_request or file.is_partial)
        ):
            # Cheap among a file's few entries; then the zip directory and the index can tell of no others.
            self._announce_headers(file, self._seal[1].payload_end)
            self._chain.extend(file.pread, self._size)
            self._chain.check_seal(file.pread, self._size, self._seal)
            self.chunks = len(self._chain.chunks)
        # Not a byte behind the last entry: a writer may cut a torn tail off, and a mapping of what is no
        # longer there is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        end = self._chain.cursor.offset if self._seal is None else self._size
        self.storage = Storage(file, min(end, self._size), io)
        self.contents = self._sealed_contents() if self._seal else self._chain.contents(self._sound_table)
        self._prepare()

    def _found_seal(self, file: ByteSource) -> tuple[Header, Header] | None:
        return format.read_seal(file.pread, self._size, self.head.uuid)

    def _announce_headers(self, file: ByteSource, directory: int) -> None:
        """Let the kernel fetch every header at once, rather than each when the one before was read."""
        listed = file.pread(directory, min(self._size - directory, _DIRECTORY_NBYTES))
        offsets = [offset for offset in format.directory_offsets(listed) if offset < self._size]
        if not all(map(file.is_cached, offsets[:: 1 + len(offsets) // _PROBES])):
            for offset in offsets:
                file.will_need(offset, format.HEADER_NBYTES)

    @property
    def sealed(self) -> bool:
        """Whether the archive was sealed when this hold was taken."""
        return self._seal is not None

    @property
    def has_writer(self) -> bool:
        """Whether a process writes the archive now; False where that cannot be asked, as behind a URL."""
        is_filled = self.file.is_locked(format.LOCK_FILLER, format.FILLERS)
        return is_filled or self.is_appended

    @property
    def is_appended(self) -> bool:
        """Whether a process is publishing something just now; False where that cannot be asked."""
        return self.file.is_locked(format.LOCK_APPEND, 1)

    @property
    def holds_nothing(self) -> bool:
        """Whether no sample was ever published, and nothing lies behind that could have been one."""
        chain = self._chain
        return self._seal is None and chain.holds_nothing and self._size <= chain.cursor.offset

    def partial_text(self) -> str:
        """What is to be said of an archive that is not sealed."""
        return partial_text(self.path, self._rows, self._chain.length, self.damaged)

    @property
    def nbytes(self) -> int:
        """Bytes of the file up to its last entry."""
        return self.storage.size

    @property
    def private_nbytes(self) -> int:
        """Bytes of memory that this process has for itself: what was checked, and what is not mapped."""
        index = self.contents.index.records.columns().values()
        read = 0 if self.sealed and self.storage.view is not None else sum(column.nbytes for column in index)
        labels = 0
        if self._labels is not None and (self.storage.view is None or not self.sealed):
            labels = int(self._labels.nbytes)
        return read + labels + self.checks.nbytes

    def _pread(self, offset: int, nbytes: int) -> bytes:
        return self.storage.pread(offset, nbytes)

    def _sealed_contents(self) -> Contents:
        assert self._seal is not None
        header = self._seal[0]
        data = self._checked(header, "index.arrow")
        try:
            index = parse_index(data, header.samples)
        except CorruptArchiveError as error:
            raise CorruptArchiveError(f"{self.path}: {error}; {self._lost_index}") from error
        if self.chunks is not None:
            self._chain.check_index(index)
        self._check_sizes(index.records, index.length, header.end_index)
        return Contents(index, None)

    def _check_sizes(self, records: tables.Records, length: int, said: int) -> None:
        """All records together have no more bytes than the file: else a batch could take any memory."""
        size, nbytes = self._size, records.nbytes
        sound = length == said
        if sound and len(nbytes):
            sound = bool(
                records.offset.max() <= size and nbytes.max() <= size and nbytes.sum(dtype=np.float64) <= size
            )
        if sound and len(nbytes) and records.raw_nbytes is not None:
            sound = int(records.raw_nbytes.max()) <= most_content(size)
        if not sound:
            raise CorruptArchiveError(
                f"{self.path}: index.arrow lists more than a file of {size:,} bytes holds; {self._lost_index}"
            )

    @property
    def _lost_index(self) -> str:
        return (
            'the samples are not lost: open the archive with CacheWriter(..., mode="a") after '
            f'"edcache verify {self.path}"'
        )

    def _checked(self, header: Header, name: str) -> memoryview:
        offset, nbytes = header.payload_offset, header.payload_nbytes
        data = self.storage.read(offset, nbytes)
        if format.crc32(data) != header.payload_crc and self.storage.mend(offset, nbytes):
            data = self.storage.read(offset, nbytes)
        if format.crc32(data) != header.payload_crc:
            raise CorruptArchiveError(
                f"{self.path}: {name} at offset {header.offset:,} fails its crc32; {self._lost_index}"
            )
        return data

    def _sound_table(self, header: Header) -> ChunkTable | None:
        if header.seq not in self._tables:
            self._tables[header.seq] = self._read_table(header)
        return self._tables[header.seq]

    def _read_table(self, header: Header) -> ChunkTable | None:
        try:
            return read_table(self._pread, header, self.path)
        except CorruptArchiveError as error:
            # A power cut may leave a header without its payload: those samples are missing.
            self.damaged.append(str(error))
            return None

    def _sound_revision(self, header: Header) -> Revision | None:
        try:
            return read_revision(self._pread, header, self.path)
        except CorruptArchiveError as error:
            # As with a chunk: a power cut took what it said.
            self.damaged.append(str(error))
            return None

    def _prepare(self) -> None:
        records = self.contents.index.records
        self._rows = len(records.offset)
        # Reading one element of a memoryview costs half of what numpy takes.
        self._offset, self._nbytes = records.offset.data, records.nbytes.data
        self._schema = records.schema.data
        self._raw_nbytes = None if records.raw_nbytes is None else records.raw_nbytes.data
        self._index = records.index
        self._view = self.storage.view
        self.place = Places(self.path, self.contents.index)
        mend = self.storage.mend
        self.checks = Checks(self._view, self.contents.index, self._verify, self.place, mend)
        self._decoders = Decoders()
        self._is_bulk = False
        self._labels: Any = None
        self._dictionaries: list[bytes] | None = None
        self._ahead = threading.local()
        self._requested: Requested | None = None
        if self.file.by_request:
            places = records.offset.view(np.int64), records.nbytes.view(np.int64)
            self._requested = Requested(self.storage, self.checks, self.contents.index.blocks, *places)

    # --- one record ---

    def row(self, index: int) -> int:
        """The row of the index table that holds a sample."""
        length = self.contents.index.length
        if not 0 <= index < length:
            raise SampleIndexError(f"{self.path}: index {index} not in [0, {length:,})")
        row = self.find(index)
        if row is None:
            raise self._no_record(index)
        return row

    def _no_record(self, index: int) -> MissingSampleError:
        failure = self.failures.get(index)
        if failure is not None:
            again = "it counts as absent for good" if failure.final else "a later fill tries again"
            return SampleFailedError(
                f"{self.path}: sample {index} failed when it was made, {again}; available() leaves it out\n"
                f"{failure.error}: {failure.message}\n{failure.traceback}"
            )
        length = self.contents.index.length
        return MissingSampleError(
            f"{self.path}: sample {index} has no record yet ({self._rows:,} of {length:,} have); "
            "fill it with warmup() on a dataset that has its source"
        )

    @once
    def failures(self) -> dict[int, Failure]:
        """Why samples have no record, by index; of some that have none."""
        return {failure.index: failure for failure in self.contents.index.failures}

    @property
    def has_all(self) -> bool:
        """Whether no sample is missing, as far as known: of a sealed archive all is known."""
        absent = sum(failure.final for failure in self.contents.index.failures)
        return self._rows + absent == self.contents.index.length

    def find(self, index: int) -> int | None:
        """The row of the index table for an index in range, or None where it has no record."""
        if self._index is None:
            return index
        row = int(np.searchsorted(self._index, index))
        return row if row < len(self._index) and self._index[row] == index else None

    def chunk_of(self, indices: Ints) -> Ints:
        """See `Reader.chunk_of`."""
        index = self.contents.index
        starts = index.blocks[:, Blocks._fields.index("records_offset")]
        rows, found = indices, np.ones(len(indices), bool)
        if self._index is not None:
            rows = np.searchsorted(self._index, indices)
            found = rows < self._rows
            found[found] = self._index[rows[found]] == indices[found]
        chunks = np.full(len(indices), -1, np.int64)
        chunks[found] = np.searchsorted(starts, self._starts[rows[found]], side="right") - 1
        return chunks

    def record_extents(self) -> tuple[Ints, Ints]:
        """Where the records of each chunk begin and end: int64 arrays."""
        blocks = self.contents.index.blocks
        return blocks[:, 1], blocks[:, 1] + blocks[:, 2]

    def record(self, row: int, wanted: tuple[int, int] | None = None) -> memoryview:
        """The bytes of a record before compression, checked at least where they are wanted."""
        data = self._stored(row, wanted)
        if self._raw_nbytes is None:
            return data
        try:
            return memoryview(decompress(data, self._raw_nbytes[row], self.dictionaries()))
        except (CorruptRecordError, LengthError) as error:
            raise type(error)(f"{self.place(row)}: {error}") from error

    def _stored(
        self, row: int, wanted: tuple[int, int] | None = None, *, is_announced: bool = False
    ) -> memoryview:
        if self._requested is not None:
            return self._whole(row, self._piece(row, wanted))
        self._check_within(row)
        offset, nbytes = self._offset[row], self._nbytes[row]
        end = offset + nbytes
        if nbytes >= LARGE and not is_announced and self._view is not None and self.storage.is_probe_due():
            start = np.array([offset], np.int64)
            if not self.storage.seems_hot(start):
                self.storage.announce(start, start + nbytes)
        data = self.storage.read(offset, nbytes) if self._view is None else self._view[offset:end]
        part = None if self._raw_nbytes is not None else wanted
        try:
            self.checks.record(row, data, part)
        except CorruptRecordError:
            # Mapped bytes change under the check; what was read is read again.
            if self._view is not None or not self.storage.mend(offset, nbytes):
                raise
            data = self.storage.read(offset, nbytes)
            self.checks.record(row, data, part)
        return data

    def _check_within(self, row: int) -> None:
        end = self._offset[row] + self._nbytes[row]
        if end > self.storage.size:
            raise CorruptRecordError(
                f"{self.place(row)}: it ends at {end:,}, the file at {self.storage.size:,}; "
                f'run "edcache verify {self.path}"'
            )

    def _piece(self, row: int, wanted: tuple[int, int] | None) -> Piece:
        ahead: dict[int, Piece] = getattr(self._ahead, "pieces", {})
        return ahead[row] if row in ahead else self._pieces(np.array([row]), wanted)[0]

    def _pieces(self, rows: Ints, wanted: tuple[int, int] | None) -> list[Piece]:
        """The stored bytes of records, or what is wanted of those that are not compressed, by one fetch."""
        assert self._requested is not None
        for row in rows.tolist():
            self._check_within(row)
        return self._requested.read(rows, None if self._raw_nbytes is not None else wanted)

    def _whole(self, row: int, piece: Piece) -> memoryview:
        """A record of which the bytes beside a piece are zero; nobody looks at them."""
        nbytes = self._nbytes[row]
        if len(piece.data) == nbytes:
            return piece.data
        record = bytearray(nbytes)
        record[piece.low : piece.low + len(piece.data)] = piece.data
        return memoryview(record)

    @contextmanager
    def reading_ahead(self, indices: Ints, wanted: tuple[int, int] | None) -> Iterator[None]:
        """See `Reader.reading_ahead`."""
        if self._requested is None:
            yield
            return
        length = self.contents.index.length
        found = {self.find(index % length) for index in indices.tolist() if -length <= index < length}
        rows = np.array(sorted(found - {None}), np.int64)  # type: ignore[type-var]
        try:
            self._ahead.pieces = dict(zip(rows.tolist(), self._pieces(rows, wanted), strict=True))
            yield
        finally:
            self._ahead.pieces = {}

    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries, read and checked once per process."""
        if self._dictionaries is None:
            found = (self._dictionary(entry) for entry in self.contents.index.dictionaries)
            self._dictionaries = [data for data in found if data is not None]
        return self._dictionaries

    def _dictionary(self, entry: Dictionary) -> bytes | None:
        """None where it fails its crc32: then only the records that need it are unreadable, and say so."""
        offset, nbytes = entry.offset, entry.nbytes
        data = self._pread(offset, nbytes)
        if format.crc32(data) != entry.crc32 and self.storage.mend(offset, nbytes):
            data = self._pread(offset, nbytes)
        return data if len(data) == nbytes and format.crc32(data) == entry.crc32 else None

    def decoder(self, row: int, allow_pickle: bool) -> Decoder:
        """The decoder for a record's schema, compiled once per process unless there are very many."""
        number = self._schema[row]
        decoder = self._decoders.get((number, allow_pickle))
        if decoder is None:
            schemas = self.contents.index.schemas
            if number >= len(schemas):
                raise CorruptRecordError(f"{self.place(row)}: schema {number} of {len(schemas)}")
            compiled = self._compiled(schemas[number], row, allow_pickle)
            decoder = self._decoders.keep((number, allow_pickle), compiled)
        return decoder

    def _compiled(self, text: str, row: int, allow_pickle: bool) -> Decoder:
        if (text == PICKLE_SCHEMA) != (self.head.codec == "pickle"):
            raise CorruptRecordError(
                f"{self.place(row)}: its schema {text[:40]} is not of the codec {self.head.codec!r} that the "
                f'head names; run "edcache verify {self.path}"'
            )
        try:
            return Decoder(text, allow_pickle=allow_pickle, decoding=self._decoding)
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{self.place(row)}: {error}") from error

    # --- many records ---

    def group(self, indices: Ints, wanted: tuple[int, int] | None) -> Group | None:
        """See `Reader.group`."""
        # The way of nearly every batch, kept short: a batch of small samples takes some 50 us in all.
        probe = self.storage.is_probe_due()
        if self._is_bulk and self.checks.is_done and not probe:
            return Group(self._mapped, self._starts[indices], indices)
        found = self.alike(indices)
        if found is None:
            return None
        rows, start, decoder = found
        nbytes = self.contents.index.records.nbytes
        if probe and not self.storage.seems_hot(start):
            low, high = (0, nbytes[rows].view(np.int64)) if wanted is None else wanted
            self.storage.announce(start + low, start + high)
        if self._raw_nbytes is not None or self._view is None:
            return self._loaded(rows, decoder, wanted)
        check = self.checks.group(rows, start, wanted)
        if self._is_uniform:
            self._is_bulk = self._index is None
            return Group(self._mapped, start, rows, check)
        return Group(Records(decoder, self._view, self._base, nbytes), start, rows, check)

    @once
    def _mapped(self) -> Records:
        """The mapped file, where all of its records are of one schema."""
        assert self._view is not None
        return Records(self._first_decoder, self._view, self._base, self.contents.index.records.nbytes)

    def alike(self, indices: Ints) -> _Alike | None:
        """Samples that have records of one schema; None where they have not."""
        rows, records = self._rows_of(indices), self.contents.index.records
        if rows is None:
            return None
        try:
            start = self._starts[rows]
        except IndexError:
            checked_indices(indices, self.contents.index.length)
            raise
        if self._is_uniform:
            return _Alike(rows, start, self._first_decoder)
        decoder = self.decoder(int(rows[0]), False)
        return _Alike(rows, start, decoder) if self._are_alike(records.take(rows), decoder) else None

    @once
    def _starts(self) -> Ints:
        return self.contents.index.records.offset.view(np.int64)

    @once
    def _first_decoder(self) -> Decoder:
        return self.decoder(0, False)

    @once
    def _is_uniform(self) -> bool:
        """Whether any records of the archive can be gathered together; looks at the whole index once."""
        return self._rows > 0 and self._are_alike(self.contents.index.records, self._first_decoder)

    def _rows_of(self, indices: Ints) -> Ints | None:
        """The rows of the index table that hold samples; None where one has no record."""
        if self._index is None:
            return indices
        indices = checked_indices(indices, self.contents.index.length)
        rows = np.searchsorted(self._index, indices)
        found = np.all(rows < len(self._index)) and np.all(self._index[rows] == indices)
        return rows if found else None

    def _are_alike(self, chosen: tables.Records, decoder: Decoder) -> bool:
        """Whether the records have one schema and a gather stays within them.

        Where not, reading them one by one works, or says what is wrong.
        """
        size, least = self.storage.size, decoder.fixed_nbytes
        lengths = chosen.nbytes if chosen.raw_nbytes is None else chosen.raw_nbytes
        return bool(
            decoder.structure is not None
            and not np.any(chosen.schema != chosen.schema[0])
            and chosen.offset.max() <= size
            and chosen.nbytes.max() <= size
            and (chosen.offset + chosen.nbytes).max() <= size
            and not np.any(chosen.offset % LATTICE)
            and lengths.min() >= least
            and (decoder.nbytes is None or lengths.max() == least)
        )

    def _loaded(self, rows: Ints, decoder: Decoder, wanted: tuple[int, int] | None) -> Group | None:
        """A group over memory of its own: records that are compressed, or not mapped."""
        index = self.contents.index.records
        rows = rows % self._rows  # as `group` takes them: some from the end
        if self._requested is not None:
            stored = self._pieces(rows, wanted)
        else:
            stored = [Piece(0, self._stored(row, is_announced=True)) for row in rows.tolist()]
        raw_nbytes = index.raw_nbytes
        lengths = (index.nbytes if raw_nbytes is None else raw_nbytes)[rows].view(np.int64)
        ends = np.cumsum((lengths + LATTICE - 1) & -LATTICE)
        places = np.concatenate(([0], ends[:-1]))
        try:
            # Not touched before its bytes are there: what frames claim and do not hold costs nothing.
            memory = np.empty(int(ends[-1]), np.uint8)
        except MemoryError:
            return None  # the general path looks at each frame before it believes it
        view, threads = memory.data, torch.get_num_threads()
        if raw_nbytes is None:
            for at, (low, data) in zip(places.tolist(), stored, strict=True):
                view[at + low : at + low + len(data)] = data
        else:
            try:
                decompress_into(
                    view,
                    places.tolist(),
                    lengths.tolist(),
                    [data for _, data in stored],
                    self.dictionaries(),
                    threads,
                )
            except (CorruptRecordError, LengthError):
                return None  # the general path names the record
        records = Records(decoder, view, torch.from_numpy(memory), lengths)
        return Group(records, places, np.arange(len(rows)))

    @once
    def _base(self) -> torch.Tensor:
        assert self._view is not None
        return torch.from_numpy(aliased(self._view))

    # --- labels, growth ---

    def labels(self) -> Any:
        """The label table with one row per sample."""
        if self._labels is None:
            index = self.contents.index
            if self._seal is None:
                table = self._revised.table
            else:
                table = self._sealed_labels(self._seal[1])
            self._labels = spread(table, index.records.index, index.length)
        return self._labels

    @once
    def _revised(self) -> Revised:
        return self._chain.revised(self.contents, self._sound_revision)

    @once
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        """The label columns, and whether values of them were added after the samples were written."""
        said = self.contents.index.labels if self._seal is not None else self._revised.columns
        return [(name, False) for name, _ in self.head.labels] if said is None else said

    @once
    def unoriginal_labels(self) -> frozenset[str]:
        """The head's label columns that may have other values than the samples' own, or are dropped."""
        original = {name for name, is_revised in self.label_columns if not is_revised}
        return frozenset(name for name, _ in self.head.labels if name not in original)

    @property
    def has_label_rows(self) -> bool:
        """Whether the file stores a row of labels per sample, so that making one takes no memory."""
        return self._seal is not None and self._seal[1].samples == self.contents.index.length

    def _sealed_labels(self, header: Header) -> Any:
        told_by = "the head" if self.contents.index.labels is None else "index.arrow"
        try:
            names = [name for name, _ in self.label_columns]
            return parse_labels(self._checked(header, "labels.arrow"), header.samples, names, told_by)
        except CorruptArchiveError as error:
            raise CorruptArchiveError(f"{self.path}: {error}") from error

    def _has_changed(self, file: ByteSource) -> bool:
        size = file.size()
        if self.sealed:
            return size != self._size
        # The size alone does not tell: a torn tail may have been cut and its bytes used for a chunk.
        return next(format.walk(file.pread, size, self.head.uuid, self._chain.cursor), None) is not None

    def _is_rewritten(self, file: ByteSource) -> bool:
        """Whether another file is the same archive, compacted."""
        try:
            return format.read_head(file.pread, self.path)[0].uuid == self.head.uuid
        except ArchiveError:
            return False

    def settled(self) -> Hold:
        """The newest hold once nobody is publishing: adding labels seals a sealed archive again.

        This one where it is sealed, or is filled, or is no file that others append to. The file of any other
        is closed.
        """
        hold = self
        try:
            for _ in range(_MOST_LOOKS):
                # In this order: what is the same as it was before nobody published is what is there.
                is_filled = hold.has_writer and not hold.is_appended
                if hold.sealed or is_filled or not hold.file.is_live:
                    break
                is_appended, newer = hold.is_appended, hold.look_again()
                if newer is not None:
                    hold.file.close()
                    hold = newer
                elif is_appended:
                    time.sleep(_LOOK_SECONDS)
                else:
                    break
        except BaseException:
            hold.file.close()
            raise
        return hold

    def look_again(self) -> Hold | None:
        """A new hold on the file if it changed, else None."""
        file = self.file.reopened()
        try:
            if file.identity() != self.file.identity():
                if self._is_rewritten(file):
                    return Hold(file, self._io, self._verify, self._decoding)
                raise StaleArchiveError(
                    f"{self.path}: the file was replaced since it was opened; open it again"
                )
            if not self._has_changed(file):
                file.close()
                return None
            return Hold(file, self._io, self._verify, self._decoding, self)
        except BaseException:
            file.close()
            raise
