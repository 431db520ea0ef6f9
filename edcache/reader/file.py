"""What one process has of an archive that is a file, or behind a URL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edcache import format
from edcache.base import ArchiveError, CorruptRecordError, EdcacheError, LengthError, StaleArchiveError, once
from edcache.codec import Decoder, Decoding, aliased, decompress
from edcache.format import LATTICE, partial_text
from edcache.format import Records as Rows
from edcache.labels import checked_indices
from edcache.reader.checks import LARGE, Checks, Places
from edcache.reader.group import Group, Piece, Records, joined
from edcache.reader.requested import Requested
from edcache.reader.session import Alike, Session
from edcache.reader.tables import FileTables
from edcache.storage import ByteSource

Ints = npt.NDArray[np.int64]

# How long a reader waits for a publication to end: longer, and it takes what is there before.
_MOST_LOOKS, _LOOK_SECONDS = 500, 0.002


class FileSession(Session):
    """What one process has of an archive that is a file: the bytes, and which of them were checked.

    Args:
        io, verify, allow_pickle: as in `Reader`. decoding: of image files; None for what their writer chose.
        before: an earlier session with the same file.
    """

    def __init__(
        self,
        file: ByteSource,
        io: str = "auto",
        verify: str = "touch",
        allow_pickle: bool = False,
        decoding: Decoding | None = None,
        before: FileSession | None = None,
    ) -> None:
        self.file = file
        self._io, self._verify = io, verify
        self.tables: FileTables = FileTables(file, io, verify, None if before is None else before.tables)
        super().__init__(file.path, self.tables.head, self.tables.contents, allow_pickle, decoding)
        self.storage, self.chunks, self.damaged = self.tables.storage, self.tables.chunks, self.tables.damaged
        self.has_label_rows = self.tables.seal is not None and self.tables.seal[1].samples == self.length
        index, self._view = self.tables.contents.index, self.storage.view
        records = index.records
        self._offset, self._nbytes = records.offset.data, records.nbytes.data
        self._raw_nbytes = None if records.raw_nbytes is None else records.raw_nbytes.data
        self._starts = records.offset.view(np.int64)
        self.place = Places(self.path, index)
        self.checks = Checks(self.storage, index, verify, self.place)
        self._is_bulk = False
        self._requested = Requested(self.storage, self.checks, index) if file.by_request else None

    # --- what is there ---

    @property
    def sealed(self) -> bool:
        """See the base class."""
        return self.tables.seal is not None

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
    def is_abandoned(self) -> bool:
        """See the base class."""
        return self.tables.holds_nothing and not self.has_writer

    def partial_text(self) -> str:
        """What is to be said of an archive that is not sealed."""
        return partial_text(self.path, self._rows, self.tables.chain.length, self.damaged)

    @property
    def nbytes(self) -> int:
        """Bytes of the file up to its last entry."""
        return self.storage.size

    @property
    def mapped_nbytes(self) -> int:
        """See the base class."""
        return self.storage.mapped_nbytes

    @property
    def private_nbytes(self) -> int:
        """See the base class: what was checked, and what is not mapped."""
        if self.sealed and self._view is not None:
            return self.checks.nbytes
        index = sum(column.nbytes for column in self.contents.index.records.columns().values())
        return index + self.label_nbytes + self.checks.nbytes

    def record_extents(self) -> tuple[Ints, Ints]:
        """Where the records of each chunk begin and end: int64 arrays."""
        blocks = self.contents.index.blocks
        return blocks[:, 1], blocks[:, 1] + blocks[:, 2]

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        """See the base class."""
        is_record = isinstance(error, CorruptRecordError)
        where = self.place(self.row(index)) if is_record else f"{self.path}: sample {index}"
        return type(error)(f"{where}: {error}")

    # --- labels ---

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        """See the base class."""
        return self.tables.label_columns

    def _label_table(self) -> Any:
        return self.tables.labels()

    # --- one record ---

    def fetch(self, index: int, wanted: tuple[int, int] | None = None) -> tuple[memoryview, Decoder]:
        """See the base class."""
        row = index if self._index is None and 0 <= index < self.length else self.row(index)
        data = self._stored(row, wanted) if self._raw_nbytes is None else self._decompressed(row)
        return data, self._decoders.get(self._schema[row]) or self.decoder_at(row)

    def _decompressed(self, row: int) -> memoryview:
        assert self._raw_nbytes is not None
        data = self._stored(row)
        try:
            return memoryview(decompress(data, self._raw_nbytes[row], self.tables.dictionaries))
        except (CorruptRecordError, LengthError) as error:
            raise type(error)(f"{self.place(row)}: {error}") from error

    def _stored(
        self, row: int, wanted: tuple[int, int] | None = None, *, is_announced: bool = False
    ) -> memoryview:
        """The bytes of a record as they are stored, checked at least where they are wanted."""
        if self._requested is not None:
            return self._requested.record(row, wanted)
        offset, nbytes, view = self._offset[row], self._nbytes[row], self._view
        end = offset + nbytes
        if end > self.storage.size:
            raise self.checks.beyond_end(row)
        if view is None:
            return self._read(row, wanted)
        if nbytes >= LARGE and not is_announced and self.storage.is_probe_due():
            start = np.array([offset], np.int64)
            if not self.storage.seems_hot(start):
                self.storage.announce(start, start + nbytes)
        data = view[offset:end]
        if not self.checks.is_done:
            self.checks.record(row, data, wanted)
        return data

    def _read(self, row: int, wanted: tuple[int, int] | None) -> memoryview:
        """The same of a file that is not mapped; what fails its check is mended and read again."""
        extent = self._offset[row], self._nbytes[row]
        data = self.storage.read(*extent)
        try:
            self.checks.record(row, data, wanted)
        except CorruptRecordError:
            if not self.storage.mend(*extent):
                raise
            data = self.storage.read(*extent)
            self.checks.record(row, data, wanted)
        return data

    # --- many records ---

    def reading_ahead(
        self, indices: Ints, wanted: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        """See the base class."""
        if self._requested is None:
            return nullcontext()
        inside = indices[(indices >= -self.length) & (indices < self.length)] % self.length
        rows = sorted(set(self.rows_of(inside).tolist()) - {-1})
        return self._requested.reading_ahead(rows, wanted if self._raw_nbytes is None else None)

    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None:
        """See the base class."""
        # The way of nearly every batch, kept short: a batch of small samples takes some 50 us in all.
        probe = self.storage.is_probe_due()
        if self._is_bulk and self.checks.is_done and not probe:
            return Group(self._mapped, self._starts[indices], indices)
        alike = self.alike(indices)
        if alike is None:
            return None
        rows, decoder = alike
        try:
            start = self._starts[rows]
        except IndexError:
            checked_indices(indices, self.length)
            raise
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
        return Records(self.decoder_at(0), self._view, self._base, self.contents.index.records.nbytes)

    @once
    def _base(self) -> torch.Tensor:
        assert self._view is not None
        return torch.from_numpy(aliased(self._view))

    def alike(self, indices: Ints) -> Alike | None:
        """See the base class; None too where a gather would leave the records. Rows may be negative."""
        if not self._is_uniform:
            alike = super().alike(indices)
            is_sound = alike is not None and self._are_alike(self.records.take(alike.rows), alike.decoder)
            return alike if is_sound else None
        if (
            self._index is None
            and len(indices)
            and -self.length <= indices.min() <= indices.max() < self.length
        ):
            return Alike(indices, self.decoder_at(0))
        rows = self.rows_of(checked_indices(indices, self.length))
        return Alike(rows, self.decoder_at(0)) if len(rows) and rows.min() >= 0 else None

    @once
    def _is_uniform(self) -> bool:
        """Whether any records of the archive can be gathered together; looks at the whole index once."""
        return self._rows > 0 and self._are_alike(self.records, self.decoder_at(0))

    def _are_alike(self, chosen: Rows, decoder: Decoder) -> bool:
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
        is_raw = index.raw_nbytes is None
        if self._requested is not None:
            stored = self._requested.pieces(rows.tolist(), wanted if is_raw else None)
        else:
            stored = [Piece(0, self._stored(row, is_announced=True)) for row in rows.tolist()]
        lengths = (index.nbytes if index.raw_nbytes is None else index.raw_nbytes)[rows].view(np.int64)
        return joined(decoder, lengths, stored, None if is_raw else self.tables.dictionaries)

    # --- growth ---

    def close(self) -> None:
        """See the base class."""
        self.file.close()

    def settled(self) -> FileSession:
        """The newest session once nobody is publishing: adding labels seals a sealed archive again.

        This one where it is sealed, or is filled, or is no file that others append to. The file of any other
        is closed.
        """
        session = self
        try:
            for _ in range(_MOST_LOOKS):
                # In this order: what is the same as it was before nobody published is what is there.
                is_filled = session.has_writer and not session.is_appended
                if session.sealed or is_filled or not session.file.is_live:
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
        options = file, self._io, self._verify, self._allow_pickle, self._decoding
        try:
            if file.identity() != self.file.identity():
                if self._is_rewritten(file):
                    return FileSession(*options)
                raise StaleArchiveError(
                    f"{self.path}: the file was replaced since it was opened; open it again"
                )
            if not self.tables.has_changed(file):
                file.close()
                return None
            return FileSession(*options, self)
        except BaseException:
            file.close()
            raise

    def _is_rewritten(self, file: ByteSource) -> bool:
        """Whether another file is the same archive, compacted."""
        try:
            return format.read_head(file.pread, self.path)[0].uuid == self.head.uuid
        except ArchiveError:
            return False
