"""What one process knows of a cache, as of one look at its log."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.codec import PICKLE_SCHEMA, Decoder, Decoders, Decoding
from edcache.contents import Contents
from edcache.errors import CorruptRecordError
from edcache.labels.tables import Records, spread
from edcache.once import once
from edcache.redis import frames
from edcache.redis.log import Log

Ints = npt.NDArray[np.int64]


class Hold:
    """What one process knows of a cache, as of one look at its log.

    Attributes:
        contents: the samples that were published. gone: those of them that the server was found to have lost.
        remade: places of schemas, of samples whose record was found to have another than the log says.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.contents: Contents = log.contents()
        self.gone: set[int] = set()
        self.remade: dict[int, int] = {}
        self._index = self.contents.index.records.index
        self._decoders = Decoders()
        self._labels: Any = None

    def find(self, index: int) -> int | None:
        """The row of a sample, None where it was not published."""
        if self._index is None:
            return index
        row = int(np.searchsorted(self._index, index))
        return row if row < len(self._index) and self._index[row] == index else None

    def schema_of(self, index: int) -> int | None:
        """The place of a sample's schema, None where it was not published."""
        row = self.find(index)
        if row is None or index in self.remade:
            return self.remade.get(index)
        return int(self.contents.index.records.schema[row])

    def rows_of(self, indices: Ints) -> Ints:
        """The rows of samples, -1 where they were not published: int64 [n]."""
        if self._index is None:
            return indices
        rows = np.searchsorted(self._index, indices)
        found = rows < len(self._index)
        found[found] = self._index[rows[found]] == indices[found]
        return np.where(found, rows, -1)

    @once
    def indices(self) -> Ints:
        """The samples that were published."""
        return np.arange(self.contents.index.length) if self._index is None else self._index

    @property
    def records(self) -> Records:
        """Those that are not known to be gone."""
        records = self.contents.index.records
        if not self.gone:
            return records
        rows = np.flatnonzero(~np.isin(self.indices, np.fromiter(self.gone, np.int64, len(self.gone))))
        return Records(**{**records.take(rows).columns(), "index": self.indices[rows]})

    @once
    def schema_places(self) -> dict[int, int]:
        """The place of each schema in `schemas`, by its number in frames."""
        texts = self.contents.index.schemas
        return {frames.schema_number(text): place for place, text in enumerate(texts)}

    def decoder(self, place: int, allow_pickle: bool, decoding: Decoding | None) -> Decoder:
        """The decoder of a schema; raises CorruptRecordError where it is none that the head allows."""
        decoder = self._decoders.get((place, allow_pickle))
        if decoder is None:
            text = self.contents.index.schemas[place]
            if (text == PICKLE_SCHEMA) != (self.log.head.codec == "pickle"):
                raise CorruptRecordError(
                    f"its schema {text[:40]} is not of the codec {self.log.head.codec!r} that the head names"
                )
            made = Decoder(text, allow_pickle=allow_pickle, decoding=decoding)
            decoder = self._decoders.keep((place, allow_pickle), made)
        return decoder

    def labels(self) -> Any:
        """The label table with one row per sample."""
        if self._labels is None:
            self._labels = spread(self.contents.labels, self._index, self.contents.index.length)
        return self._labels

    @property
    def label_nbytes(self) -> int:
        """Of the label table, where it was made."""
        return 0 if self._labels is None else int(self._labels.nbytes)
