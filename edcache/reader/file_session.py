"""`FileSession`: the state of an open archive that is a file, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.format import Contents, Head, Header, parse_root, read_table
from edcache.labels import checked_indices
from edcache.reader.checks import LARGE, Checks, Piece, Requested
from edcache.reader.extents import Extents, announce_headers
from edcache.reader.group import Group, GroupRecords, joined
from edcache.reader.index import RecordIndex
from edcache.reader.sealed import SealedLabels
from edcache.reader.session import Alike, Session
from edcache.storage import ByteSource

if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoding

T = TypeVar("T")

Trust: TypeAlias = Literal["all", "index", "chunks"]
"""What is believed of an archive: all, if it agrees; the index of its seal; or the tables of its chunks."""

# Opening walks the chain of at most so many entries: some 10 us each.
_WALKED = 1 << 10
# How often a reader looks for the end of a publication, before it takes the state before it.
_MOST_LOOKS, _LOOK_SECONDS = 500, 0.002


class FileSession(Session):
    """A session with an archive that is a file; see the base class.

    Args:
        io, verify: as in `Reader`. before: an earlier session with the same file.
        trust: "index" does not compare the index of a seal with the chain, and needs no zip directory behind
            it. "chunks" reads no seal at all.
    Attributes:
        size: bytes of the file. seal: the headers of its seal; None if it is not sealed. chain: its entries,
            as far as they were walked.
        extents: its bytes. is_uniform: whether any records can be gathered together; None if not known yet.
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
        trust: Trust = "all",
    ) -> None:
        self.file, self.path = file, file.path
        self._io, self.verify, self.trust = io, verify, trust
        self.size = file.size()
        head, first = format.read_head(file.pread, self.path)
        is_copy = file.by_request or file.is_partial
        self.seal: format.Seal | None = None
        if trust != "chunks":
            self.seal = format.read_seal(file.pread, self.size, head.uuid, is_copy)
        self.chain = format.Chain(head, first, self.path)
        self._tables: dict[int, format.ChunkTable | None] = {}
        self.damaged: list[str] = []
        self._contents_before: Contents | None = None
        if before is not None and before.seal is None:
            # A growing archive is opened again and again: its old entries are not read again.
            self.chain, self._tables = before.chain.copy(), before._tables
            self.damaged = before.damaged.copy()
            self._contents_before = before._contents
        self._take_in_chain(is_copy)
        # Map no byte behind the last entry: a writer may cut off a torn tail, and reading a mapping beyond
        # the end of the file is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        end = self.chain.cursor.offset if self.seal is None else self.size
        self.sealed, self.nbytes = self.seal is not None, min(end, self.size)
        self.extents = Extents(file, self.nbytes, io)
        self._view = self.extents.view
        self.mapped_nbytes = 0 if self._view is None else self.nbytes
        super().__init__(self.path, head, self._opened_index(), allow_pickle, decoding)
        if self.sealed and self._view is not None:
            file.rest()
        self.has_label_rows = False
        self._sealed_labels: SealedLabels | None = None
        if self.seal is not None:
            self.has_label_rows = self.seal.labels.samples == self.length
            names, remedy = [name for name, _ in head.labels], f"; {_lost_index(self.path)}"
            places = self.extents, self.seal, self.index.labels
            self._sealed_labels = SealedLabels(*places, names, self.path, remedy)
        self._checks: Checks | None = None
        self._requested = Requested(file, self.checks) if file.by_request else None
        # The records of the last gather. _is_bulk: they hold all samples, of one schema.
        self._records: GroupRecords | None = None
        self._is_bulk = False
        self.is_uniform: bool | None = None

    def _take_in_chain(self, is_copy: bool) -> None:
        """Walk the chain of an archive that is not sealed, and of one that is if that is cheap."""
        file, seal = self.file, self.seal
        if seal is None:
            self.chain.extend(file.pread, self.size)
            self.chunks = len(self.chain.chunks)
            if self.chain.seal is not None and self.trust != "chunks":
                # The seal may have been written between the two looks.
                self.seal = format.read_seal(file.pread, self.size, self.chain.head.uuid)
            if self.trust == "index":
                self.seal = self.seal or self.chain.seal
            return
        is_cheap = self.verify != "never" and seal.index.seq <= _WALKED and not is_copy
        if self.trust == "all" and (self.verify == "open" or is_cheap):
            # Cheap for few entries, and it proves that the zip directory and the index list just these.
            announce_headers(file, seal.directory_offset, self.size)
            self.chain.extend(file.pread, self.size)
            self.chain.check_seal(file.pread, self.size, seal)
            self.chunks = len(self.chain.chunks)

    @property
    def checks(self) -> Checks:
        """The records whose crc32 was checked; made at the first read."""
        # Two threads may both make one. Then some records are checked twice.
        if self._checks is None:
            self._checks = Checks(self.file, self._view, self.nbytes, self.index, self.verify)
        return self._checks

    @property
    def origin(self) -> Head:
        # Without an amendment of its length there is none.
        if self.seal is not None and self.chunks is None and self.head.length not in (None, self.length):
            announce_headers(self.file, self.seal.directory_offset, self.size)
            chain = self.chain.copy()
            chain.extend(self.extents.pread, self.size)
            return chain.origin
        return self.chain.origin

    # --- index ---

    def _opened_index(self) -> RecordIndex:
        if self.seal is None:
            return RecordIndex.of(self._contents.index)
        header, remedy = self.seal.index, f"; {_lost_index(self.path)}"
        table = self.extents.mended(
            self.extents.read, header.table_offset, header.table_nbytes, header.table_crc
        )
        if table is None:
            raise base.CorruptArchiveError(
                f"{self.path}: index.pages at offset {header.offset:,} fails its crc32{remedy}"
            )
        start, end, extents = header.payload_offset, header.payload_end, self.extents
        memory = None if self._view is None else self._view[start:end]

        def fetch(parts: Sequence[format.Extent]) -> list[memoryview | None]:
            # The session is not held: a cycle would keep the mapping until the next garbage collection.
            return extents.checked([part._replace(at=start + part.at) for part in parts])

        try:
            root = parse_root(table, header.samples, header.payload_nbytes, self.size)
            if root.length != header.end_index:
                raise base.CorruptArchiveError(f"index.pages claims {root.length:,} samples")
            index = RecordIndex(root, self.size, memory=memory, fetch=fetch, where=self.path, remedy=remedy)
        except base.CorruptArchiveError as error:
            raise base.CorruptArchiveError(f"{self.path}: {error}{remedy}") from error
        if self.chunks is not None:
            self.chain.check_index(index.length, index.labels, index.dictionaries, index.blocks)
        return index

    @once
    def _contents(self) -> Contents:
        """What the chunks of an archive that is not sealed amount to."""
        before, self._contents_before = self._contents_before, None
        return self.chain.contents(self._sound_table, before)

    @once
    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries, without unreadable ones: records that need those raise an error."""
        entries = self.index.dictionaries
        extents = self.extents
        read = [extents.mended(extents.pread, one.offset, one.nbytes, one.crc32) for one in entries]
        return [data for data in read if data is not None]

    def _sound(self, read: Callable[[format.PRead, Header, str], T], header: Header) -> T | None:
        """The content of a chunk or a revision; None if a power cut left its header without its payload."""
        try:
            return read(self.extents.pread, header, self.path)
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
        return self.chain.revised(self._contents, partial(self._sound, format.read_revision))

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        columns = self._revised.columns if self._sealed_labels is None else self._sealed_labels.columns
        return super().label_columns if columns is None else columns

    def _label_table(self) -> Any:
        return self._revised.table if self._sealed_labels is None else self._sealed_labels.table()

    # --- writers ---

    @property
    def has_writer(self) -> bool:
        """Whether a process of this machine writes the archive now; False if unknown, as for a URL."""
        return self.file.is_locked(format.LOCK_FILLER, format.FILLERS) or self.is_appended

    @property
    def is_appended(self) -> bool:
        """Whether a process publishes an entry at this moment; False if unknown."""
        return self.file.is_locked(format.LOCK_APPEND, 1)

    @property
    def is_abandoned(self) -> bool:
        # No sample was published, and no bytes behind the chain could be one.
        is_empty = not self.sealed and self.chain.holds_nothing and self.size <= self.chain.cursor.offset
        return is_empty and not self.has_writer

    @property
    def private_nbytes(self) -> int:
        # The notes of checks, and the tables if they are not mapped.
        index = self.index.nbytes + self.checks.nbytes
        if self.sealed:
            return index if self._view is not None else index + self.label_nbytes
        assert self.index.memory is not None
        return index + len(self.index.memory) + self.label_nbytes

    def placed(self, error: base.EdcacheError, index: int) -> base.EdcacheError:
        is_record = isinstance(error, base.CorruptRecordError)
        where = self.checks.place(self.row(index)) if is_record else f"{self.path}: sample {index}"
        return type(error)(f"{where}: {error}")

    # --- one record ---

    def fetch(self, index: int, wanted: tuple[int, int] | None = None) -> tuple[memoryview, Decoder]:
        places = self.index
        row = index if places.is_dense and 0 <= index < self.length else self.row(index)
        data = self._stored(row, None if places.is_compressed else wanted)
        if places.is_compressed:
            try:
                data = memoryview(codec.decompress(data, places.raw_nbytes(row), self.dictionaries))
            except (base.CorruptRecordError, base.LengthError) as error:
                raise type(error)(f"{self.checks.place(row)}: {error}") from error
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
        """As `_stored`, of a file that is not mapped. A damaged record is fetched again if possible.

        Args:
            data: the record, where it was read.
        """
        extent = self.index.place(row)
        if sum(extent) > self.nbytes:
            raise self.checks.beyond_end(row)
        if data is None:
            data = self.extents.read(*extent)
        try:
            self.checks.record(row, data, wanted)
        except base.CorruptRecordError:
            if not self.file.mend(*extent):
                raise
            data = self.extents.read(*extent)
            self.checks.record(row, data, wanted)
        return data

    # --- many records ---

    def reading_ahead(
        self, indices: Ints, wanted: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        if self._requested is None:
            return nullcontext()
        inside = indices[(indices >= -self.length) & (indices < self.length)] % self.length
        rows = sorted(set(self.index.rows_of(inside).tolist()) - {-1})
        return self._requested.reading_ahead(rows, None if self.index.is_compressed else wanted)

    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None:
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
        # As unsigned numbers, negative ones are the largest: one pass tells that all are in range.
        if len(indices) and np.maximum.reduce(indices.view(np.uint64)) >= self.length:
            return checked_indices(indices, self.length)
        return indices

    def _announce(self, rows: Ints, start: Ints, wanted: tuple[int, int] | None) -> None:
        """Read records ahead that are not in memory."""
        if not self.extents.are_in_memory(start):
            low, high = (0, self.index.sizes(rows)) if wanted is None else wanted
            self.extents.announce(start + low, start + high)

    def alike(self, indices: Ints) -> Alike | None:
        """See the base class. None also if a gather would read beyond records."""
        first = self.decoder_at(0) if self.present and self.is_uniform is not False else None
        if self.is_uniform is None:
            self.is_uniform = first is not None and self.index.is_uniform(first)
        if first is None or not self.is_uniform:
            alike = super().alike(indices)
            return alike if alike is not None and self._is_gathered(*alike) else None
        rows = self.index.rows_of(checked_indices(indices, self.length))
        return Alike(rows, first) if len(rows) and rows.min() >= 0 else None

    def _is_gathered(self, rows: Ints, decoder: Decoder) -> bool:
        """Whether a gather of records stays within them; else reading one by one works, or raises."""
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
        dictionaries = None if is_raw else self.dictionaries
        return joined(decoder, self.index.raw_sizes(rows), stored, dictionaries)

    # --- growth ---

    def close(self) -> None:
        self.file.close()

    def settled(self) -> FileSession:
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

    def look_again(self) -> FileSession | None:
        """A new session if the file has changed; else None."""
        file = self.file.reopened()
        options = self._io, self.verify, self._allow_pickle, self._decoding
        try:
            if file.identity() != self.file.identity():
                if _is_rewritten(file, self.path, self.head.uuid):
                    return FileSession(file, *options)
                raise base.StaleArchiveError(
                    f"{self.path}: the file was replaced since it was opened; open it again"
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
            return FileSession(file, *options, self)
        except BaseException:
            file.close()
            raise


def _is_rewritten(file: ByteSource, path: str, uuid: bytes) -> bool:
    """Whether another file is the same archive after a compaction."""
    try:
        return format.read_head(file.pread, path)[0].uuid == uuid
    except base.ArchiveError:
        return False


def _lost_index(path: str) -> str:
    return (
        'the samples are not lost: open the archive with CacheWriter(..., mode="a") after '
        f'"edcache verify {path}"'
    )
