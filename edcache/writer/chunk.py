"""Samples to one chunk in memory: encoded, aligned, checksummed, not yet anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edcache import format
from edcache.base import CodecError
from edcache.codec import Encoder
from edcache.format import Records, take_rows
from edcache.labels import LabelCollector

CHUNK_NBYTES = 4 << 20

_LARGE = 1 << 15
# Of a chunk's table: for each record, and for each label column, besides the labels.
_ROW_NBYTES = 64
_COLUMN_NBYTES = 1024


@dataclass(frozen=True)
class Chunk:
    """Encoded records of one chunk, before they have a place in the file.

    records: offset counts from `data`, which holds them at their alignment with zeros between.
    appended: the indices continue whatever the archive holds at the moment of publication.
    """

    records: Records
    labels: Any
    schemas: list[str]
    data: memoryview | bytes
    block_crcs: bytes
    appended: bool

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.records.offset)

    @property
    def indices(self) -> list[int]:
        """Of its samples."""
        assert self.records.index is not None
        return self.records.index.tolist()  # type: ignore[no-any-return]

    def fits(self, nbytes: int) -> int:
        """How many of its records, from the first on, make a chunk of at most so many bytes in a file."""
        ends = (self.records.offset + self.records.nbytes).astype(np.int64)
        row = _ROW_NBYTES + -(-self.labels.nbytes // max(1, self.count))
        fixed = 2 * format.PAGE + _COLUMN_NBYTES * self.labels.num_columns + sum(map(len, self.schemas))
        rows = row * np.arange(1, self.count + 1)
        return int(np.searchsorted(ends + ends // 4096 + rows, nbytes - fixed))

    def __reduce__(self) -> tuple[Any, ...]:
        # A memoryview does not travel.
        data = bytes(self.data)
        return Chunk, (self.records, self.labels, self.schemas, data, self.block_crcs, self.appended)

    def without(self, indices: Set[int]) -> Chunk:
        """The same chunk without the records of some indices."""
        rows = np.array([row for row, known in enumerate(self.indices) if known not in indices], np.int64)
        if len(rows) == self.count:
            return self
        records = self.records.take(rows)
        extents = zip(records.offset.tolist(), records.nbytes.tolist(), strict=True)
        data, offsets, _ = aligned(self.data[offset : offset + nbytes] for offset, nbytes in extents)
        return replace(
            self,
            records=replace(records, offset=np.array(offsets, np.uint64)),
            labels=take_rows(self.labels, rows),
            data=data,
            block_crcs=format.block_crcs(data),
        )


class ChunkBuilder:
    """Collects encoded samples until they are published together.

    Adding a sample either takes all of it, record and labels, or raises and leaves the builder as it
    was, whatever raises and wherever, a KeyboardInterrupt too. The sample's memory is copied then.

    Attributes:
        unpublished: the chunk that was made of it, until a successor takes its place.
    """

    def __init__(
        self,
        encoder: Encoder,
        collector: LabelCollector,
        expected_nbytes: int,
        buffer: memoryview | None = None,
        dirty: int = 0,
    ) -> None:
        self._encoder = encoder
        self._collector = collector
        self._expected_nbytes = expected_nbytes
        self._rows: list[tuple[int, int, int, int]] = []  # index, offset, nbytes, schema
        # Zeros from `dirty` on; before, what an earlier chunk left.
        self._buffer = _zeros(expected_nbytes) if buffer is None else buffer
        self._dirty = dirty
        self._written = 0
        self.unpublished: Chunk | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the records so far, before compression."""
        return self._rows[-1][1] + self._rows[-1][2] if self._rows else 0

    @property
    def indices(self) -> list[int]:
        """Of the samples, in the order in which they were added."""
        return [index for index, *_ in self._rows]

    def add(self, index: int, sample: object) -> None:
        """Encode a sample and collect its labels; CodecError or LabelError where that cannot be done."""
        try:
            encoded = self._encoder.encode(sample)
        except CodecError as error:
            raise type(error)(f"sample {index}: {error}") from error
        self._settle()
        offset = format.align(self.nbytes, format.record_alignment(encoded.nbytes))
        buffer = self._room(offset, encoded.nbytes)
        self._collector.add(index, sample)
        if offset < self._dirty:
            # What lies between the pieces, and before the record, is zero.
            start = self.nbytes
            buffer[start:offset] = bytes(offset - start)
            if sum(memoryview(piece).nbytes for _, piece in encoded.pieces) < encoded.nbytes:
                buffer[offset : offset + encoded.nbytes] = bytes(encoded.nbytes)
        for position, piece in encoded.pieces:
            flat: Any = piece if type(piece) is bytes else np.frombuffer(piece, np.uint8)
            start = offset + position
            buffer[start : start + len(flat)] = flat
        self._rows.append((index, offset, encoded.nbytes, encoded.schema))

    def _settle(self) -> None:
        """Undo what an interrupted `add` left: labels without a row, bytes behind the last."""
        end = self.nbytes
        if self._written > end:
            self._collector.truncate(len(self._rows))
            self._buffer[end : self._written] = bytes(self._written - end)
            self._written = end

    def _room(self, offset: int, nbytes: int) -> memoryview:
        """The buffer, with at least `nbytes` zeros at `offset`."""
        if offset + nbytes > len(self._buffer):
            bigger = _zeros((offset + nbytes) * 3 // 2)
            bigger[:offset] = self._buffer[:offset]
            self._buffer, self._dirty = bigger, min(self._dirty, offset)
        self._written = offset + nbytes
        return self._buffer

    def successor(self, *, is_published: bool = False) -> ChunkBuilder:
        """An empty one with the same types of labels, in this one's memory where that `is_published`."""
        collector, used = self._collector.successor(), self.nbytes
        # Faulting new pages in takes as long as filling them; among small records new zeros are cheaper.
        if is_published and used >= _LARGE * max(1, len(self)):
            dirty = max(used, self._dirty)
            return ChunkBuilder(self._encoder, collector, self._expected_nbytes, self._buffer, dirty)
        return ChunkBuilder(self._encoder, collector, self._expected_nbytes)

    def raw_records(self) -> list[bytes]:
        """A copy of each record as it is before compression, to train a dictionary on."""
        return [bytes(self._buffer[offset : offset + nbytes]) for _, offset, nbytes, _ in self._rows]

    def chunk(self, compress: Callable[[Any], bytes] | None, appended: bool) -> Chunk:
        """All that was added as a chunk, `unpublished` from now on, each record compressed unless by None."""
        self._settle()
        index, offset, nbytes, schema = (list(column) for column in zip(*self._rows, strict=True))
        data, raw_nbytes = self._buffer[: self.nbytes], None
        if compress is not None:
            raw_nbytes = np.array(nbytes, np.uint64)
            raw, extents = data, zip(offset, nbytes, strict=True)
            data, offset, nbytes = aligned(compress(raw[at : at + size]) for at, size in extents)
        crcs = [format.crc32(data[o : o + n]) for o, n in zip(offset, nbytes, strict=True)]
        used = sorted(set(schema))
        local = {known: position for position, known in enumerate(used)}
        records = Records(
            offset=np.array(offset, np.uint64),
            nbytes=np.array(nbytes, np.uint64),
            crc32=np.array(crcs, np.uint32),
            schema=np.array([local[known] for known in schema], np.uint16),
            index=np.array(index, np.int64),
            raw_nbytes=raw_nbytes,
        )
        schemas = [self._encoder.schemas[known] for known in used]
        labels = self._collector.table()
        self.unpublished = Chunk(records, labels, schemas, data, format.block_crcs(data), appended)
        return self.unpublished


def _zeros(nbytes: int) -> memoryview:
    return np.zeros(nbytes, np.uint8).data


def aligned(pieces: Iterable[Any]) -> tuple[memoryview, list[int], list[int]]:
    """Records one after another, each at its alignment with zeros before it; their offsets and sizes."""
    data, offsets, sizes = bytearray(), [], []
    for piece in pieces:
        nbytes = len(piece)
        offset = format.align(len(data), format.record_alignment(nbytes))
        data += bytes(offset - len(data))
        data += piece
        offsets.append(offset)
        sizes.append(nbytes)
    return memoryview(data), offsets, sizes
