"""`Session`: the state of an open archive in one process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.format import COMPRESSED, PRESENT
from edcache.labels import checked_indices
from edcache.reader.checks import Checks, Part, Piece, Requested, Row
from edcache.reader.group import Group, GroupRecords, joined
from edcache.reader.metadata import Metadata
from edcache.storage import ByteSource

# Labels do not wait for what decodes samples.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoders, Decoding

# A record of this many bytes or more is read ahead if it is not in memory.
_LARGE = 1 << 16


class _Plain(NamedTuple):
    """Records of one schema and size: mapped bytes, rows as numbers, and a bit for each that was checked."""

    view: memoryview
    numbers: memoryview
    nbytes: int
    decoder: Decoder
    bits: memoryview


class Session(Metadata):
    """One state of an open archive in one process: its metadata and its samples.

    Args:
        allow_pickle, decoding: as in `Reader`. A decoding of None is the one that the writer chose. The
            others as of `Metadata`.
    Attributes:
        as_arrays: tensors come as numpy arrays. The reader sets it before the first sample.
    """

    as_arrays = False

    def __init__(
        self,
        file: ByteSource,
        verify: str = "touch",
        allow_pickle: bool = False,
        decoding: Decoding | None = None,
        before: Session | None = None,
        skips_damage: bool = False,
    ) -> None:
        super().__init__(file, verify, before, skips_damage)
        self._allow_pickle, self._decoding = allow_pickle, decoding
        self._checks: Checks | None = None
        self._requested = Requested(file, self.checks) if file.by_request else None
        # The records of the last gather. _is_bulk: they hold all samples, of one schema.
        self._records: GroupRecords | None = None
        self._is_bulk = False
        self._plain: _Plain | None = None

    @property
    def checks(self) -> Checks:
        """The records whose crc32 was checked; made at the first read."""
        # Two threads may both make one. Then some records are checked twice.
        if self._checks is None:
            self._checks = Checks(self.file, self._view, self.nbytes, self.index, self.verify)
        return self._checks

    @once
    def _decoders(self) -> Decoders:
        return codec.Decoders()

    @property
    def private_nbytes(self) -> int:
        # The notes of checks, and the tables if they are not mapped.
        index = self.index.nbytes + self.checks.nbytes
        if self.sealed and self._view is not None:
            return index
        rows = self.index.memory
        return index + self.label_nbytes + (0 if rows is None else rows.nbytes)

    def placed(self, error: base.EdcacheError, index: int) -> base.EdcacheError:
        """The same error, with the place of the sample in front of its text."""
        is_record = isinstance(error, base.CorruptRecordError)
        where = self.checks.place(index) if is_record else f"{self.path}: sample {index}"
        return error.within(where, self.path, index)

    def places(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return start and end of records in the file: int64 [m] each, without absent ones."""
        rows = self.index.rows(indices % self.length)
        rows = rows[rows["flags"] & PRESENT > 0]
        return rows["offset"].astype(np.int64), format.stored_ends(rows)

    def has(self, index: int) -> bool:
        """True if an index in [0, length) has a record, as far as known."""
        return self.index.has(index)

    def row(self, index: int) -> Row:
        """The row of a sample that has a record. Raises: SampleIndexError, MissingSampleError."""
        if not 0 <= index < self.length:
            raise base.SampleIndexError(
                f"{self.path}: index {index} not in [0, {self.length:,})", path=self.path, index=index
            )
        row = self.index.row(index)
        if not row[4] & PRESENT and not self.index.is_dense:
            raise self._no_record(index)
        return row

    def _no_record(self, index: int) -> base.MissingSampleError:
        failure = next((one for one in self.index.failures if one.index == index), None)
        if failure is not None:
            again = "it counts as absent for good" if failure.final else "a later fill tries again"
            return base.MissingSampleError(
                f"{self.path}: sample {index} failed when it was made, {again}; ds.missing has it\n"
                f"{failure.error}: {failure.message}\n{failure.traceback}",
                path=self.path,
                index=index,
            )
        return base.MissingSampleError(
            f"{self.path}: sample {index} has no record yet ({self.present:,} of {self.length:,} have); "
            "fill it with warmup() on a dataset that has its source",
            path=self.path,
            index=index,
        )

    # --- samples ---

    def read(self, index: int, copy: bool) -> Any:
        """Decode one sample; see `Reader.read`."""
        record, decoder = self.fetch(index)
        try:
            return decoder.decode(record, copy=copy)
        except (base.CodecError, base.CorruptRecordError) as error:
            raise self.placed(error, index) from error

    def read_many(self, indices: Ints, copy: bool) -> list[Any]:
        """Decode the samples at indices (int64 [n], in [-length, length)) as `read` does."""
        group = self.group(indices) if len(indices) else None
        if group is not None:
            # If a record is damaged, reading one by one below names the sample.
            with suppress(base.EdcacheError):
                return group.decoded(copy)
        with self.reading_ahead(indices):
            return [self.read(index % self.length, copy) for index in indices.tolist()]

    def decoder_of(self, index: int) -> Decoder | None:
        """The decoder of a sample; None if it has no record."""
        return self.decoder_at(index, self.index.row(index)[3]) if self.has(index) else None

    def common_decoder(self, indices: Ints) -> Decoder | None:
        """The decoder of samples that share one schema; None as in `group`. It reads no record."""
        alike = self.alike(checked_indices(indices, self.length))
        return None if alike is None else alike[0]

    def decoder(self, number: int) -> Decoder:
        """The decoder of a schema. Raises: CorruptRecordError without a place; `placed` adds it."""
        if number in self._decoders:
            return self._decoders[number]
        schemas = self.index.schemas
        if number >= len(schemas):
            raise base.CorruptRecordError(f"schema {number} of {len(schemas)}")
        text = schemas[number]
        if (text == codec.PICKLE_SCHEMA) != (self.head.codec == "pickle"):
            raise base.CorruptRecordError(
                f"its schema {text[:40]} is not of the codec {self.head.codec!r} that the head names; "
                f'run "edcache verify {self.path}"'
            )
        decoder = codec.decoder_of(text, self._allow_pickle, self._decoding, self.as_arrays)
        return self._decoders.keep(number, decoder)

    def decoder_at(self, index: int, number: int) -> Decoder:
        """The decoder of a sample whose record is of the schema `number`."""
        try:
            return self._decoders.get(number) or self.decoder(number)
        except base.CorruptRecordError as error:
            raise self.placed(error, index) from error

    # --- one record ---

    def fetch(self, index: int, wanted: Part = None) -> tuple[memoryview, Decoder]:
        """The record of a sample, decompressed, and its decoder.

        Args:
            wanted: (start, end) of the bytes of it that will be read; of a large record only their blocks are
                checked.
        Returns:
            Read-only bytes, a view of a mapped file; and the decoder.
        Raises: as `Reader.read`.
        """
        plain = self._plain
        if plain is not None and 0 <= index < self.length and plain.bits[index >> 3] & 1 << (index & 7):
            offset = plain.numbers[3 * index]
            return plain.view[offset : offset + plain.nbytes], plain.decoder
        row = self.row(index)
        data = self._stored(index, row, wanted)
        if row[4] & COMPRESSED:
            try:
                data = memoryview(codec.decompress(data))
            except base.CorruptRecordError as error:
                raise error.within(self.checks.place(index), self.path, index) from error
        decoder = self._decoders.get(row[3]) or self.decoder_at(index, row[3])
        if len(data) < decoder.fixed_nbytes:
            what = f"it has {len(data):,} bytes, its schema needs {decoder.fixed_nbytes:,}"
            raise base.CorruptRecordError(f"{self.checks.place(index)}: {what}", path=self.path, index=index)
        if self._plain is None and row[1] < _LARGE:
            self._plain = self._plain_records(decoder)
        return data, decoder

    def _plain_records(self, decoder: Decoder) -> _Plain | None:
        """Parts of the short look-up of one record; None unless all are alike, mapped and checked once."""
        index, view, numbers = self.index, self._view, self.index.numbers
        is_alike = index.only_schema is not None and index.least_nbytes == index.most_nbytes
        if view is None or numbers is None or self.verify != "touch" or not (is_alike and index.is_dense):
            return None
        return _Plain(view, numbers, index.most_nbytes, decoder, self.checks.bits)

    def _stored(self, index: int, row: Row, wanted: Part = None, *, is_announced: bool = False) -> memoryview:
        """The stored bytes of a record; at least the wanted ones are checked."""
        wanted = None if row[4] & COMPRESSED else wanted
        if self._requested is not None:
            return self._requested.record(index, wanted)
        offset, nbytes = row[:2]
        if self._view is None:
            self.checks.check_place(index, row)
            whole = self.extents.read(offset, nbytes + format.behind_nbytes(nbytes))
            if not self.checks.is_done:
                self.checks.compare(index, row, whole[:nbytes], whole[nbytes:])
            return whole[:nbytes]
        if nbytes >= _LARGE and not is_announced and self.extents.is_probe_due():
            self.checks.check_place(index, row)
            self._announce(np.array([index]), np.array([offset], np.int64), None)
        if self._checks is None or not self._checks.is_done:
            self.checks.record(index, row, wanted)
        elif self.verify == "never":
            self.checks.check_place(index, row)
        return self._view[offset : offset + nbytes]

    # --- many records ---

    def reading_ahead(
        self, indices: Ints, wanted: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        """Fetch records together that this thread then reads one by one; nothing for a mapped file.

        Args:
            indices: int64 [n]. Indices that are out of range or have no record are skipped.
            wanted: as in `fetch`.
        Raises: CorruptRecordError, StaleArchiveError, StorageError.
        """
        if self._requested is None:
            return nullcontext()
        inside = indices[(indices >= -self.length) & (indices < self.length)] % self.length
        there = inside[self.index.are_present(inside)]
        return self._requested.reading_ahead(sorted(set(there.tolist())), wanted)

    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None:
        """Records of one schema, for reading field by field. They are checked as `Reader.read` does.

        Args:
            indices: int64 [n], n > 0, each in [-length, length).
            wanted: (start, end) of the bytes of each record that will be read; None for the whole record.
        Returns:
            None if samples are missing or differ in structure, or if records are pickles or carry their own
            schema. `read` them one by one then.
        Raises: CorruptRecordError, SampleIndexError, as `Reader.read`.
        """
        # Nearly every batch comes here. Keep it short: a batch of small samples takes 50 us in all.
        checks = self._checks
        if self._is_bulk and checks is not None and checks.is_done and self._records is not None:
            indices = self._wrapped(indices)
            start = self.index.offsets(indices)
            if self.verify == "never":
                self._check_inside(indices, start)
            if self.extents.is_probe_due():
                self._announce(indices, start, wanted)
            return self._records.at(start, indices)
        indices = checked_indices(indices, self.length)
        alike = self.alike(indices)
        if alike is None:
            return None
        decoder, is_compressed = alike
        start = self.index.offsets(indices)
        if self.extents.is_probe_due():
            self._announce(indices, start, wanted)
        if is_compressed or self._view is None:
            return self._loaded(indices, decoder, wanted)
        self._check_inside(indices, start)
        records = self._records
        if records is None or records.decoder is not decoder:
            records = self._records = GroupRecords(decoder, self._view, self.index.sizes)
        self._is_bulk = self.index.only_schema is not None and self.index.is_dense
        return records.at(start, indices, self.checks.group(indices, wanted))

    def _check_inside(self, indices: Ints, start: Ints) -> None:
        """Raise CorruptRecordError if a record would begin or end out of the file."""
        ends = start + self.index.sizes(indices)
        if np.maximum.reduce(start.view(np.uint64)) > self.nbytes or ends.max() > self.nbytes:
            for index in indices.tolist():
                self.checks.check_place(index, self.index.row(index))

    def _wrapped(self, indices: Ints) -> Ints:
        """Indices in [0, length): int64 [n], of those that may count from the end."""
        # One pass checks the range: viewed as unsigned, negative numbers are the largest.
        if len(indices) and np.maximum.reduce(indices.view(np.uint64)) >= self.length:
            return checked_indices(indices, self.length)
        return indices

    def _announce(self, indices: Ints, start: Ints, wanted: Part) -> None:
        """Read records ahead that are not in memory."""
        if not self.extents.are_in_memory(start):
            low, high = (0, self.index.sizes(indices)) if wanted is None else wanted
            self.extents.announce(start + low, start + high)

    def alike(self, indices: Ints) -> tuple[Decoder, bool] | None:
        """The decoder of samples in [0, length) that share one schema, and whether some are compressed.

        None if they do not, if one has no record, or if a gather would read beyond records.
        """
        index = self.index
        if not len(indices):
            return None
        if index.only_schema is not None:
            decoder = self.decoder_at(int(indices[0]), index.only_schema)
            fits = _is_gathered(decoder, index.least_nbytes, index.most_nbytes)
            return (decoder, False) if fits else None
        rows = index.rows(indices)
        schemas, flags = rows["schema"], rows["flags"]
        if not np.all(flags & PRESENT) or np.any(schemas != schemas[0]):
            return None
        decoder = self.decoder_at(int(indices[0]), int(schemas[0]))
        if np.any(flags & COMPRESSED):
            return (decoder, True) if decoder.structure is not None and np.all(flags & COMPRESSED) else None
        sizes = rows["nbytes"]
        return (decoder, False) if _is_gathered(decoder, int(sizes.min()), int(sizes.max())) else None

    def _loaded(self, indices: Ints, decoder: Decoder, wanted: Part) -> Group | None:
        """A group of records that are compressed or not mapped, in new memory."""
        rows = self.index.rows(indices)
        is_compressed = bool(rows["flags"][0] & COMPRESSED)
        if self._requested is not None:
            stored = self._requested.pieces(indices.tolist(), None if is_compressed else wanted)
        else:
            pairs = zip(indices.tolist(), rows.tolist(), strict=True)
            stored = [Piece(0, self._stored(index, row, is_announced=True)) for index, row in pairs]
        if is_compressed:
            lengths = np.array([codec.content_nbytes(data) for _, data in stored], np.int64)
            if not _is_gathered(decoder, int(lengths.min()), int(lengths.max())):
                return None
        else:
            lengths = rows["nbytes"].astype(np.int64)
        return joined(decoder, lengths, stored, is_compressed)

    # --- growth ---

    def close(self) -> None:
        self.file.close()

    def look_again(self) -> Session | None:
        """A new session if the file has changed; else None."""
        file = self.file.reopened()
        options = self.verify, self._allow_pickle, self._decoding
        try:
            if file.identity() != self.file.identity():
                if _is_rewritten(file, self.path, self.head.uuid):
                    return Session(file, *options)
                raise base.StaleArchiveError(
                    f"{self.path}: the file was replaced since it was opened; open it again", path=self.path
                )
            size = file.size()
            if self.sealed:
                has_changed = size != self.size
            else:
                # A size proves nothing: a payload may be half written, a chunk may have replaced a torn tail.
                entries = format.walk(file.pread, size, self.head.uuid, self.chain.cursor)
                has_changed = next(entries, None) is not None
                # The end of a seal may follow a look that had its headers already.
                has_changed = has_changed or format.read_root(file.pread, size, self.path) is not None
            if not has_changed:
                file.close()
                return None
            return Session(file, *options, self)
        except BaseException:
            file.close()
            raise


def _is_gathered(decoder: Decoder, least: int, most: int) -> bool:
    """True if a gather of records of so many bytes stays within them; else they are read one by one."""
    fits = least >= decoder.fixed_nbytes and (decoder.nbytes is None or most == decoder.nbytes == least)
    return decoder.structure is not None and fits


def _is_rewritten(file: ByteSource, path: str, uuid: bytes) -> bool:
    """True if another file is the same archive, saved over itself."""
    try:
        return format.read_head(file.pread, path)[0].uuid == uuid
    except base.ArchiveError:
        return False
