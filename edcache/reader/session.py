"""`Session`: the state of an open archive in one process, for every kind of storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edcache import base, codec, format
from edcache.base import Ints, once
from edcache.format import Head, Records
from edcache.labels import checked_indices
from edcache.reader.index import RecordIndex

# Labels do not wait for what decodes samples.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Decoders, Decoding
    from edcache.reader.group import Group


class Alike(NamedTuple):
    """Records of one schema: their rows in the index table, int64 [n], and their decoder."""

    rows: Ints
    decoder: Decoder


class Session(ABC):
    """One state of an open archive in one process. `AnyReader` documents the methods.

    A session does not change. A refresh makes a new one, and threads at work keep the old one.

    Args:
        allow_pickle, decoding: as in `Reader`. A decoding of None is the one that the writer chose.
    Attributes:
        index: where the record of every sample lies.
        length: the samples of the dataset. mapped_nbytes: mapped bytes, which all processes share.
        chunks: how many, if the chain was walked, else None. damaged: one line per unreadable chunk.
        has_label_rows: the stored label table has one row per sample, so `labels` allocates nothing.
        as_arrays: tensors come as numpy arrays. The reader sets it before the first sample.
    """

    mapped_nbytes = 0
    chunks: int | None = None
    damaged: Sequence[str] = ()
    has_label_rows = False
    as_arrays = False

    def __init__(
        self, path: str, head: Head, index: RecordIndex, allow_pickle: bool, decoding: Decoding | None
    ) -> None:
        self.path, self.head, self.index = path, head, index
        self.length = index.length
        self._allow_pickle, self._decoding = allow_pickle, decoding

    @once
    def _decoders(self) -> Decoders:
        return codec.Decoders()

    # --- what a subclass defines ---

    @property
    @abstractmethod
    def origin(self) -> Head: ...

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
        """The labels as stored, a Table or `StoredLabels`: a row per row of the index, or per sample."""

    def reading_ahead(
        self, indices: Ints, wanted: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def is_abandoned(self) -> bool:
        return False

    @property
    def justified_nbytes(self) -> int:
        """The bytes that surely exist. Allocations that the archive asks for are compared with them."""
        return self.nbytes

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        """(name, whether values were added after the samples were written) of each label column."""
        return [(name, False) for name, _ in self.head.labels]

    # --- records ---

    def has(self, index: int) -> bool:
        return self.index.find(index) is not None

    def row(self, index: int) -> int:
        """The row of the index table for a sample. Raises: SampleIndexError, MissingSampleError."""
        if not 0 <= index < self.length:
            raise base.SampleIndexError(f"{self.path}: index {index} not in [0, {self.length:,})")
        row = self.index.find(index)
        if row is None:
            raise self._no_record(index)
        return row

    def _no_record(self, index: int) -> base.MissingSampleError:
        failure = next((one for one in self.index.failures if one.index == index), None)
        if failure is not None:
            again = "it counts as absent for good" if failure.final else "a later fill tries again"
            return base.SampleFailedError(
                f"{self.path}: sample {index} failed when it was made, {again}; ds.missing has it\n"
                f"{failure.error}: {failure.message}\n{failure.traceback}"
            )
        return base.MissingSampleError(
            f"{self.path}: sample {index} has no record yet ({self.present:,} of {self.length:,} have); "
            "fill it with warmup() on a dataset that has its source"
        )

    @property
    def records(self) -> Records:
        return self.index.table().records

    @property
    def present(self) -> int:
        return self.index.rows

    @property
    def has_all(self) -> bool:
        """Whether no sample is missing, as far as known. A sealed archive knows all its samples."""
        absent = sum(failure.final for failure in self.index.failures)
        return self.present + absent == self.length

    def held(self) -> Ints | None:
        """The indices that have a record; None if all have one."""
        return self.index.held()

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
            # If a record is damaged, reading one by one below names the sample.
            with suppress(base.EdcacheError):
                return group.decoded(copy)
        with self.reading_ahead(indices):
            return [self.read(index % self.length, copy) for index in indices.tolist()]

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

    def alike(self, indices: Ints) -> Alike | None:
        """The rows and the decoder of samples that share one schema; None if they do not."""
        rows = self.index.rows_of(checked_indices(indices, self.length))
        if not len(rows) or rows.min() < 0:
            return None
        schemas = self.index.schemas_of(rows)
        if np.any(schemas != schemas[0]):
            return None
        decoder = self.decoder_at(int(rows[0]))
        return None if decoder.structure is None else Alike(rows, decoder)

    # --- labels ---

    @once
    def labels(self) -> Any:
        """The labels with one row per sample: a pyarrow Table, or `StoredLabels`."""
        return format.spread(self._label_table(), self.index.held(), self.length)

    @property
    def label_nbytes(self) -> int:
        """Bytes of the labels that were read."""
        return int(self.labels.nbytes) if "labels" in vars(self) else 0
