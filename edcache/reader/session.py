"""`Session`: the state of an open archive in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.format import COMPRESSED, PRESENT, Rows
from edcache.labels import checked_indices
from edcache.reader.checks import Checks, Part, Piece, Requested, Row
from edcache.reader.group import Group, GroupRecords, loaded, too_short
from edcache.reader.metadata import Metadata
from edcache.reader.projection import Projection, planned
from edcache.reader.several import Made, Records, Several
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
        self._requested = Requested(file, self.checks) if file.by_request else None
        # The records of the last gather, if there is no memory of all.
        self._records: GroupRecords | None = None
        self._plain: _Plain | None = None

    @once
    def checks(self) -> Checks:
        """The records whose crc32 was checked."""
        return Checks(self.file, self._view, self.nbytes, self.index, self.verify)

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

    def read(self, index: int, fields: Projection | None = None, copy: bool = True) -> Any:
        """Decode one sample, or fields of it; see `Reader.read`."""
        record, decoder = self.fetch(index, fields)
        try:
            if fields is None:
                return decoder.decode(record, copy=copy)
            plan = planned(fields, decoder)
            if plan is not None:
                return plan.decode(record)
            return fields.of_sample(decoder.decode(record), dict(self.label_columns))
        except (base.CodecError, base.CorruptRecordError) as error:
            raise self.placed(error, index) from error

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
            self.checks.check_row(index)
            raise self.placed(error, index) from error

    # --- one record ---

    def fetch(self, index: int, fields: Projection | None = None) -> tuple[memoryview, Decoder]:
        """The record of a sample, decompressed, and its decoder.

        Args:
            fields: those that will be read; of a large record only the blocks that hold them are checked.
        Returns:
            Read-only bytes, a view of a mapped file; and the decoder.
        Raises: as `Reader.read`.
        """
        plain = self._plain
        if plain is not None and 0 <= index < self.length and plain.bits[index >> 3] & 1 << (index & 7):
            offset = plain.numbers[3 * index]
            return plain.view[offset : offset + plain.nbytes], plain.decoder
        row = self.row(index)
        wanted = None if fields is None else _wanted(fields, self.decoder_at(index, row[3]))
        data = self._stored(index, row, wanted)
        if row[4] & COMPRESSED:
            try:
                data = memoryview(codec.decompress(data))
            except base.CorruptRecordError as error:
                raise error.within(self.checks.place(index), self.path, index) from error
        decoder = self._decoders.get(row[3]) or self.decoder_at(index, row[3])
        if len(data) < decoder.fixed_nbytes:
            raise self.placed(too_short(len(data), decoder), index)
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
        if not self.checks.is_done:
            self.checks.record(index, row, wanted)
        elif self.verify == "never":
            self.checks.check_place(index, row)
        return self._view[offset : offset + nbytes]

    # --- many records ---

    @once
    def uniform(self) -> GroupRecords | None:
        """All records as one memory; None unless they are mapped, and all samples have one of one schema."""
        index, view = self.index, self._view
        if index.only_schema is None or view is None or not index.is_dense or not index.length:
            return None
        try:
            decoder = self.decoder(index.only_schema)
        except base.CorruptRecordError:
            return None  # reading a record names it
        is_regular = _is_regular(decoder, index.least_nbytes, index.most_nbytes)
        return GroupRecords(decoder, view, index.sizes) if is_regular else None

    def group(self, indices: Ints, fields: Projection | None = None) -> Records:
        """Records of samples, to be read one by one or field by field. They are checked as `read` does.

        Args:
            indices: int64 [n], each in [-length, length).
            fields: those that will be read of each; None for all.
        Returns:
            A `Group`, if all records are of one schema.
        Raises: SampleIndexError, MissingSampleError; of records that are not mapped: as `read`.
        """
        uniform = self.uniform
        if not len(indices):
            return Made(list)
        if uniform is not None:  # Nearly every batch comes here: one of small samples takes 50 us in all.
            # One pass checks the range: viewed as unsigned, negative numbers are the largest.
            if np.maximum.reduce(indices.view(np.uint64)) >= self.length:
                indices = checked_indices(indices, self.length)
            decoder, checks = uniform.decoder, self.checks
            wanted = None if fields is None else _wanted(fields, decoder)
            start = self._located(indices, wanted)
            check = None if checks.is_done else checks.group(indices, wanted)
            return Group(uniform, start, indices, self, fields, check)
        indices = checked_indices(indices, self.length)
        index, rows = self.index, self.index.rows(indices)
        if not index.is_dense and not np.all(rows["flags"] & PRESENT):
            raise self._no_record(int(indices[rows["flags"] & PRESENT == 0][0]))
        # A row of another schema than all are said to have is damaged, which its check tells.
        schemas = rows["schema"] if index.only_schema is None else np.full(len(rows), index.only_schema)
        used, first, numbers = np.unique(schemas, return_index=True, return_inverse=True)
        decoders = [self.decoder_at(int(indices[k]), int(schemas[k])) for k in first.tolist()]
        stored: list[Piece] = []
        if self._requested is not None:
            wanted_of = [None if fields is None else _wanted(fields, decoder) for decoder in decoders]
            wanted_by = [wanted_of[number] for number in numbers.reshape(-1).tolist()]
            stored = self._requested.pieces(indices.tolist(), wanted_by)
        if len(used) == 1:
            return self._of_schema(decoders[0], indices, rows, fields, stored)
        parts: list[tuple[Ints, Records]] = []
        for number, decoder in enumerate(decoders):
            places = np.flatnonzero(numbers.reshape(-1) == number)
            own = [stored[place] for place in places.tolist()] if stored else stored
            parts.append((places, self._of_schema(decoder, indices[places], rows[places], fields, own)))
        return Several(parts)

    def _of_schema(
        self, decoder: Decoder, indices: Ints, rows: Rows, fields: Projection | None, stored: list[Piece]
    ) -> Records:
        """Records of one schema. stored: those that were requested."""
        are_compressed = rows["flags"] & COMPRESSED > 0
        lengths = rows["nbytes"].astype(np.int64)
        if self._view is not None and not are_compressed.any():
            wanted = None if fields is None else _wanted(fields, decoder)
            start, records = self._located(indices, wanted), self._records
            if records is None or records.decoder is not decoder:
                records = self._records = GroupRecords(decoder, self._view, self.index.sizes)
            is_regular = _is_regular(decoder, int(lengths.min()), int(lengths.max()))
            check = self.checks.group(indices, wanted)
            return Group(records, start, indices, self, fields, check, is_regular)
        if not stored:
            pairs = zip(indices.tolist(), rows.tolist(), strict=True)
            stored = [Piece(0, self._stored(index, row, is_announced=True)) for index, row in pairs]
        try:
            for row in np.flatnonzero(are_compressed).tolist():
                lengths[row] = codec.content_nbytes(stored[row].data)
            view, start = loaded(stored, lengths, are_compressed)
        except (MemoryError, ValueError, base.CorruptRecordError):
            return Made(lambda: [self.read(index, fields) for index in indices.tolist()])
        records = GroupRecords(decoder, view, lambda _: lengths)
        is_regular = _is_regular(decoder, int(lengths.min()), int(lengths.max()))
        return Group(records, start, indices, self, fields, is_regular=is_regular)

    def _located(self, indices: Ints, wanted: Part) -> Ints:
        """Where records of the mapped file begin: int64 [n]. They are read ahead."""
        start = self.index.offsets(indices)
        if self.verify == "never" or not self.checks.is_done:
            self._check_inside(indices, start)
        if self.extents.is_probe_due():
            self._announce(indices, start, wanted)
        return start

    def _check_inside(self, indices: Ints, start: Ints) -> None:
        """Raise CorruptRecordError if a record would begin or end out of the file."""
        ends = start + self.index.sizes(indices)
        if np.maximum.reduce(start.view(np.uint64)) > self.nbytes or ends.max() > self.nbytes:
            for index in indices.tolist():
                self.checks.check_place(index, self.index.row(index))

    def _announce(self, indices: Ints, start: Ints, wanted: Part) -> None:
        """Read records ahead that are not in memory."""
        if not self.extents.are_in_memory(start):
            low, high = (0, self.index.sizes(indices)) if wanted is None else wanted
            self.extents.announce(start + low, start + high)

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


def _wanted(fields: Projection, decoder: Decoder) -> Part:
    """The bytes of a record in which fields lie; None for all of it."""
    plan = planned(fields, decoder)
    return None if plan is None else plan.wanted


def _is_regular(decoder: Decoder, least: int, most: int) -> bool:
    """True if a gather of records of so many bytes stays within them; else they are read one by one."""
    fits = least >= decoder.fixed_nbytes and (decoder.nbytes is None or most == decoder.nbytes == least)
    return decoder.structure is not None and fits


def _is_rewritten(file: ByteSource, path: str, uuid: bytes) -> bool:
    """True if another file is the same archive, saved over itself."""
    try:
        return format.read_head(file.pread, path)[0].uuid == uuid
    except base.ArchiveError:
        return False
