"""`Session`: the state of an open archive in one process."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.labels import checked_indices
from edcache.reader.checks import LARGE, Checks, Piece, Requested
from edcache.reader.group import Group, GroupRecords, joined
from edcache.reader.metadata import Metadata
from edcache.storage import ByteSource

# Labels do not wait for what decodes samples.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoders, Decoding

# Tries, and seconds between them, until a reader that waits for a publication takes the older state.
_MOST_LOOKS, _LOOK_SECONDS = 500, 0.002


class Session(Metadata):
    """One state of an open archive in one process: its metadata and its samples.

    Args:
        allow_pickle, decoding: as in `Reader`. A decoding of None is the one that the writer chose. The
            others as of `Metadata`.
    Attributes:
        is_uniform: whether any records can be gathered together; None if not known yet.
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
        trusts_seal: bool = True,
    ) -> None:
        super().__init__(file, verify, before, trusts_seal)
        self._allow_pickle, self._decoding = allow_pickle, decoding
        self._checks: Checks | None = None
        self._requested = Requested(file, self.checks) if file.by_request else None
        # The records of the last gather. _is_bulk: they hold all samples, of one schema.
        self._records: GroupRecords | None = None
        self._is_bulk = False
        self.is_uniform: bool | None = None

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
        if self.sealed:
            return index if self._view is not None else index + self.label_nbytes
        assert self.index.memory is not None
        return index + len(self.index.memory) + self.label_nbytes

    def placed(self, error: base.EdcacheError, index: int) -> base.EdcacheError:
        """The same error, with the place of the sample in front of its text."""
        is_record = isinstance(error, base.CorruptRecordError)
        where = self.checks.place(self.row(index)) if is_record else f"{self.path}: sample {index}"
        return error.within(where, self.path, index)

    def places(self, indices: Ints) -> tuple[Ints, Ints]:
        """Return start and end of records in the file: int64 [m] each, without absent ones."""
        rows = self.index.rows_of(indices % self.length)
        rows = rows[rows >= 0]
        start = self.index.offsets(rows)
        return start, start + self.index.sizes(rows)

    def has(self, index: int) -> bool:
        """True if an index in [0, length) has a record, as far as known."""
        return self.index.find(index) is not None

    def row(self, index: int) -> int:
        """The row of the index table for a sample. Raises: SampleIndexError, MissingSampleError."""
        if not 0 <= index < self.length:
            raise base.SampleIndexError(
                f"{self.path}: index {index} not in [0, {self.length:,})", path=self.path, index=index
            )
        row = self.index.find(index)
        if row is None:
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
        row = self.index.find(index)
        return None if row is None else self.decoder_at(row)

    def common_decoder(self, indices: Ints) -> Decoder | None:
        """The decoder of samples that share one schema; None as in `group`. It reads no record."""
        alike = self.alike(indices)
        return None if alike is None else alike[1]

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

    def decoder_at(self, row: int) -> Decoder:
        """The decoder of the record in a row of the index table."""
        number = self.index.schema(row)
        try:
            return self._decoders.get(number) or self.decoder(number)
        except base.CorruptRecordError as error:
            raise self.placed(error, self.index.sample_of(row)) from error

    # --- one record ---

    def fetch(self, index: int, wanted: tuple[int, int] | None = None) -> tuple[memoryview, Decoder]:
        """The record of a sample, decompressed, and its decoder.

        Args:
            wanted: (start, end) of the bytes of it that will be read; only their blocks are checked.
        Returns:
            Read-only bytes, a view of a mapped file; and the decoder.
        Raises: as `Reader.read`.
        """
        places = self.index
        row = index if places.is_dense and 0 <= index < self.length else self.row(index)
        data = self._stored(row, None if places.is_compressed else wanted)
        if places.is_compressed:
            try:
                data = memoryview(codec.decompress(data, places.raw_nbytes(row)))
            except base.CorruptRecordError as error:
                raise error.within(self.checks.place(row), self.path, index) from error
        schema = places.schema(row) if places.only_schema is None else places.only_schema
        return data, self._decoders.get(schema) or self.decoder_at(row)

    def _stored(
        self, row: int, wanted: tuple[int, int] | None = None, *, is_announced: bool = False
    ) -> memoryview:
        """The stored bytes of a record; at least the wanted ones are checked."""
        if self._requested is not None:
            return self._requested.record(row, wanted)
        if self._view is None:
            return self._unmapped(row, wanted)
        (offset, nbytes), view = self.index.place(row), self._view
        end = offset + nbytes
        if end > self.nbytes:
            raise self.checks.beyond_end(row)
        if nbytes >= LARGE and not is_announced and self.extents.is_probe_due():
            self._announce(np.array([row]), np.array([offset], np.int64), None)
        data = view[offset:end]
        if self._checks is None or not self._checks.is_done:
            self.checks.record(row, data, wanted)
        return data

    def _unmapped(
        self, row: int, wanted: tuple[int, int] | None, data: memoryview | None = None
    ) -> memoryview:
        """As `_stored`, of a file that is not mapped.

        Args:
            data: the record, where it was read.
        """
        extent = self.index.place(row)
        if sum(extent) > self.nbytes:
            raise self.checks.beyond_end(row)
        if data is None:
            data = self.extents.read(*extent)
        self.checks.record(row, data, wanted)
        return data

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
        rows = sorted(set(self.index.rows_of(inside).tolist()) - {-1})
        return self._requested.reading_ahead(rows, None if self.index.is_compressed else wanted)

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
        records = self._records if self._is_bulk and checks is not None and checks.is_done else None
        if records is None:
            alike = self.alike(indices)
            if alike is None:
                return None
            rows, decoder = alike
        else:
            rows, decoder = self._wrapped(indices), records.decoder
        start = self.index.offsets(rows)
        if self.extents.is_probe_due():
            self._announce(rows, start, wanted)
        if records is not None:
            return records.at(start, rows)
        if self.index.is_compressed or self._view is None:
            return self._loaded(rows, decoder, wanted)
        records = self._records
        if records is None or records.decoder is not decoder:
            records = self._records = GroupRecords(decoder, self._view, self.index.sizes)
        self._is_bulk = bool(self.is_uniform) and self.index.is_dense
        return records.at(start, rows, self.checks.group(rows, start, wanted))

    def _wrapped(self, indices: Ints) -> Ints:
        """Rows of a dense archive: int64 [n], in [0, length), of indices that may count from its end."""
        # One pass checks the range: viewed as unsigned, negative numbers are the largest.
        if len(indices) and np.maximum.reduce(indices.view(np.uint64)) >= self.length:
            return checked_indices(indices, self.length)
        return indices

    def _announce(self, rows: Ints, start: Ints, wanted: tuple[int, int] | None) -> None:
        """Read records ahead that are not in memory."""
        if not self.extents.are_in_memory(start):
            low, high = (0, self.index.sizes(rows)) if wanted is None else wanted
            self.extents.announce(start + low, start + high)

    def alike(self, indices: Ints) -> tuple[Ints, Decoder] | None:
        """The rows, int64 [n], and the decoder of samples that share one schema; None if they do not.

        None also if a gather would read beyond records.
        """
        first = self.decoder_at(0) if self.present and self.is_uniform is not False else None
        if self.is_uniform is None:
            self.is_uniform = first is not None and self.index.is_uniform(first)
        rows = self.index.rows_of(checked_indices(indices, self.length))
        if not len(rows) or rows.min() < 0:
            return None
        if first is not None and self.is_uniform:
            return rows, first
        schemas = self.index.schemas_of(rows)
        if np.any(schemas != schemas[0]):
            return None
        decoder = self.decoder_at(int(rows[0]))
        return (rows, decoder) if self._is_gathered(rows, decoder) else None

    def _is_gathered(self, rows: Ints, decoder: Decoder) -> bool:
        """True if a gather of records stays within them; else reading one by one works, or raises."""
        sizes, least = self.index.raw_sizes(rows), decoder.fixed_nbytes
        fits = sizes.min() >= least and (decoder.nbytes is None or sizes.max() == least)
        return decoder.structure is not None and bool(fits)

    def _loaded(self, rows: Ints, decoder: Decoder, wanted: tuple[int, int] | None) -> Group | None:
        """A group of records that are compressed or not mapped, in new memory."""
        is_raw = not self.index.is_compressed
        if self._requested is not None:
            stored = self._requested.pieces(rows.tolist(), wanted if is_raw else None)
        elif self._view is not None:
            stored = [Piece(0, self._stored(row, is_announced=True)) for row in rows.tolist()]
        else:
            extents = list(
                zip(self.index.offsets(rows).tolist(), self.index.sizes(rows).tolist(), strict=True)
            )
            inside = [(at, max(0, min(nbytes, self.nbytes - at))) for at, nbytes in extents]
            read = zip(rows.tolist(), self.file.read_many(inside), strict=True)
            stored = [Piece(0, self._unmapped(row, None, data)) for row, data in read]
        return joined(decoder, self.index.raw_sizes(rows), stored, not is_raw)

    # --- growth ---

    def close(self) -> None:
        self.file.close()

    def settled(self) -> Session:
        """The newest session after a publication that is under way; this one is closed if it is another.

        Adding labels unseals an archive for a moment: a reader must not see that state.
        """
        session = self
        try:
            for _ in range(_MOST_LOOKS):
                if session.sealed or not session.file.is_live:
                    break
                # Ask for the writer first: no change after "nobody publishes" means that this is the newest.
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
            has_changed = size != self.size
            if not self.sealed:
                # An equal size proves nothing: a writer may have replaced a torn tail by a chunk.
                entries = format.walk(file.pread, size, self.head.uuid, self.chain.cursor)
                has_changed = next(entries, None) is not None
            if not has_changed:
                file.close()
                return None
            return Session(file, *options, self)
        except BaseException:
            file.close()
            raise


def _is_rewritten(file: ByteSource, path: str, uuid: bytes) -> bool:
    """True if another file is the same archive, saved over itself."""
    try:
        return format.read_head(file.pread, path)[0].uuid == uuid
    except base.ArchiveError:
        return False
