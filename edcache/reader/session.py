"""What one process has of an open archive, wherever that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.format import Contents, Head, Records
from edcache.labels import checked_indices

# What reads samples takes torch; it is imported when the first is read, so that labels are there before.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoders, Decoding
    from edcache.reader.group import Group


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
