"""Encoded records of one chunk, in memory, which `Appender.append` publishes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import Ints
from edcache.format import ChunkTable, Header, take_rows
from edcache.storage import ByteSource

CHUNK_NBYTES = 4 << 20


@dataclass(frozen=True)
class Chunk:
    """Encoded records of one chunk, before they have a place in the file.

    samples: int64 [n]. rows: `format.ROW` [n] as in memory; offset counts from `data`, which holds the records at their
    alignment with zeros between, and schema in `schemas`. labels: a row for each record.
    continues: the samples follow the last one that the archive has at the moment of publication. maker: of a part,
    see `Header.maker`; "" of a chunk that counts at once.
    """

    samples: Ints
    rows: format.Rows
    labels: Any
    schemas: list[str]
    data: memoryview | bytes
    continues: bool = False
    maker: str = ""

    @classmethod
    def of(
        cls, samples: Ints, rows: format.Rows, labels: Any, schemas: Sequence[str], pieces: Iterable[Any]
    ) -> Chunk:
        """Make a chunk of stored records, `pieces`. Of `schemas` it keeps the ones in use."""
        data, offsets = aligned(pieces)
        used, numbers = np.unique(rows["schema"], return_inverse=True)
        rows = rows.copy()
        rows["schema"], rows["offset"] = numbers.reshape(-1), offsets
        return cls(samples, rows, labels, [schemas[number] for number in used.tolist()], data)

    @classmethod
    def stored(cls, file: ByteSource, header: Header, table: ChunkTable) -> Chunk:
        """Read a chunk of a file; a record that is damaged there stays so. Behind the end of the file are zeros."""
        start = format.records_offset(header)
        rows = table.rows.copy()
        rows["offset"] -= np.uint64(start)
        nbytes = header.payload_end - start
        data = file.pread(start, nbytes).ljust(nbytes, b"\0")
        return cls(table.samples, rows, table.labels, list(table.schemas), data, maker=header.maker)

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.rows)

    def moved(self, first: int) -> Chunk:
        """Renumber the samples, consecutively from `first` on; the records stay."""
        return replace(self, samples=self.samples - self.samples[0] + first)

    def __reduce__(self) -> tuple[Any, ...]:
        # A memoryview does not travel.
        parts = self.samples, self.rows, self.labels, self.schemas, bytes(self.data)
        return Chunk, (*parts, self.continues, self.maker)

    def only(self, kept: npt.NDArray[np.bool_]) -> Chunk:
        """Leave out the records that are False in `kept`, bool [n]."""
        if kept.all():
            return self
        rows = self.rows[kept]
        extents = zip(rows["offset"].tolist(), format.stored_ends(rows).tolist(), strict=True)
        pieces = (self.data[at:end] for at, end in extents)
        labels = take_rows(self.labels, np.flatnonzero(kept))
        chunk = Chunk.of(self.samples[kept], rows, labels, self.schemas, pieces)
        return replace(chunk, continues=self.continues, maker=self.maker)


def aligned(pieces: Iterable[Any]) -> tuple[memoryview, list[int]]:
    """Join records, each at its alignment with zeros before it; return the bytes and the offsets.

    pieces: records, with the crc32s of blocks behind them.
    """
    data, offsets = bytearray(), []
    for piece in pieces:
        offset = format.align(len(data), format.record_alignment(len(piece)))
        data += bytes(offset - len(data))
        data += piece
        offsets.append(offset)
    return memoryview(data), offsets
