"""Samples to one chunk in memory: encoded, aligned, checksummed, not yet anywhere."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CodecError
from edcache.codec import Columns, Encoder, Repeated
from edcache.format import Records, take_rows
from edcache.labels import LabelCollector

CHUNK_NBYTES = 4 << 20

_LARGE = 1 << 15
_pack_row = struct.Struct("4q").pack


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
    appended: bool

    @classmethod
    def of(cls, records: Records, labels: Any, schemas: Sequence[str], pieces: Iterable[Any]) -> Chunk:
        """A chunk of records as they are stored, `pieces`, with those of the schemas that they use."""
        data, offsets, _ = aligned(pieces)
        used, numbers = np.unique(records.schema, return_inverse=True)
        schema = numbers.reshape(-1).astype(np.uint16)
        placed = replace(records, offset=np.array(offsets, np.uint64), schema=schema)
        return cls(placed, labels, [schemas[number] for number in used.tolist()], data, False)

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.records.offset)

    @property
    def indices(self) -> list[int]:
        """Of its samples."""
        return self.records.samples.tolist()  # type: ignore[no-any-return]

    def table(self, types: format.LabelTypes) -> bytes:
        """Its table as an entry has it; behind that the crc32 of its blocks."""
        table = format.ChunkTable(self.records, self.labels, self.schemas, types, len(self.data))
        return b"".join([format.pack_chunk_table(table), format.block_crcs(memoryview(self.data))])

    def __reduce__(self) -> tuple[Any, ...]:
        # A memoryview does not travel.
        return Chunk, (self.records, self.labels, self.schemas, bytes(self.data), self.appended)

    def without(self, indices: Set[int]) -> Chunk:
        """The same chunk without the records of some indices."""
        rows = np.array([row for row, known in enumerate(self.indices) if known not in indices], np.int64)
        if len(rows) == self.count:
            return self
        records = self.records.take(rows)
        extents = zip(records.offset.tolist(), records.nbytes.tolist(), strict=True)
        pieces = (self.data[offset : offset + nbytes] for offset, nbytes in extents)
        chunk = Chunk.of(records, take_rows(self.labels, rows), self.schemas, pieces)
        return replace(chunk, appended=self.appended)


class ChunkBuilder:
    """Collects encoded samples until they are published together.

    Adding a sample either takes all of it, record and labels, or raises and leaves the builder as it
    was, whatever raises and wherever, a KeyboardInterrupt too. The sample's memory is copied then.

    Attributes:
        nbytes: of the records so far, before compression.
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
        # Index, offset, nbytes, schema of one record after another.
        self._rows = array("q")
        # Zeros from `dirty` on; before, what an earlier chunk left.
        self._buffer = _zeros(expected_nbytes) if buffer is None else buffer
        self._dirty = dirty
        self._written = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._rows) // 4

    def add(self, index: int, sample: object) -> None:
        """Encode a sample and collect its labels; CodecError or LabelError where that cannot be done."""
        try:
            encoded = self._encoder.encode(sample)
        except CodecError as error:
            raise error.within(f"sample {index}", index=index) from error
        schema, nbytes, pieces = encoded
        if self._written != self.nbytes:
            self._settle()
        end = self.nbytes
        offset = format.align(end, format.record_alignment(nbytes))
        buffer = self._room(offset, nbytes)
        self._collector.add(index, sample)
        if offset < self._dirty:
            # What lies between the pieces, and before the record, is zero.
            buffer[end:offset] = bytes(offset - end)
            if sum(memoryview(piece).nbytes for _, piece in pieces) < nbytes:
                buffer[offset : offset + nbytes] = bytes(nbytes)
        for position, piece in pieces:
            flat: Any = piece if type(piece) is bytes else np.frombuffer(piece, np.uint8)
            start = offset + position
            buffer[start : start + len(flat)] = flat
        # All four or none, also where the memory ends.
        self._rows.frombytes(_pack_row(index, offset, nbytes, schema))
        self.nbytes = offset + nbytes

    def add_columns(self, index: int, columns: Columns, start: int, most: int, most_nbytes: int) -> int:
        """Add samples from the row `start` on until there are `most` or as many bytes; returns how many.

        Whole columns at a time: 0 where records are not made of these, and errors as of `add`, but of another
        sample than the first that is refused.
        """
        same = self._encoder.encode_columns(columns, start)
        if same is None or not len(same.record):
            return 0
        self._settle()
        nbytes = len(same.record)
        stride = format.align(nbytes, format.record_alignment(nbytes))
        end, offset = self.nbytes, format.align(self.nbytes, format.record_alignment(nbytes))
        fitting = -(-(most_nbytes - offset - nbytes) // stride) + 1
        count = max(1, min(columns.count - start, most - len(self), fitting))
        rows = slice(start, start + count)
        wires = columns.wires(rows)
        buffer = np.frombuffer(self._room(offset, count * stride), np.uint8)
        self._collector.add_columns(index, columns.at(rows), count, lambda k: columns.at(start + k))
        buffer[end:offset] = 0
        _fill_records(buffer[offset:], same, wires, stride)
        steps = np.arange(count)[:, np.newaxis] * [1, stride, 0, 0]
        self._rows.frombytes(np.add(steps, [index, offset, nbytes, same.schema]).data.cast("B"))
        self.nbytes = self._rows[-3] + nbytes
        return count

    def _settle(self) -> None:
        """Undo what an interrupted `add` left: labels without a row, bytes behind the last."""
        end = self.nbytes = self._rows[-3] + self._rows[-2] if self._rows else 0
        if self._written > end:
            self._collector.truncate(len(self))
            self._buffer[end : self._written] = bytes(self._written - end)
            self._written = end

    def _room(self, offset: int, nbytes: int) -> memoryview:
        """The buffer, with at least `nbytes` zeros at `offset`."""
        if offset + nbytes > len(self._buffer):
            bigger = _zeros((offset + nbytes) * 3 // 2)
            used = min(offset, len(self._buffer))
            bigger[:used] = self._buffer[:used]
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

    def chunk(self, compress: Callable[[Any], bytes] | None, appended: bool) -> Chunk:
        """All that was added as a chunk, each record compressed unless by None."""
        self._settle()
        index, offset, nbytes, schema = np.array(self._rows).reshape(-1, 4).T
        data, raw_nbytes = self._buffer[: self.nbytes], None
        if compress is not None:
            raw_nbytes = nbytes.astype(np.uint64)
            raw, rows = data, zip(offset.tolist(), nbytes.tolist(), strict=True)
            data, *places = aligned(compress(raw[at : at + size]) for at, size in rows)
            offset, nbytes = np.array(places, np.int64)
        # Loops of C: they take as long as the rest of a small record's way.
        extents = map(slice, offset.tolist(), (offset + nbytes).tolist())
        crcs = map(format.crc32, map(data.__getitem__, extents))
        used, local = np.unique(schema, return_inverse=True)
        records = Records(
            offset=offset.astype(np.uint64),
            nbytes=nbytes.astype(np.uint64),
            crc32=np.fromiter(crcs, np.uint32, len(index)),
            schema=local.astype(np.uint16),
            index=index.copy(),
            raw_nbytes=raw_nbytes,
        )
        schemas = [self._encoder.schemas[known] for known in used]
        labels = self._collector.table()
        return Chunk(records, labels, schemas, data, appended)


def _fill_records(
    buffer: npt.NDArray[np.uint8], same: Repeated, wires: Sequence[npt.NDArray[Any]], stride: int
) -> None:
    """Write records `stride` bytes apart: what they have in common, and a row of each wire at its offset."""
    count = len(wires[0])
    gaps = np.ones(stride, np.bool_)
    for wire, offset in zip(wires, same.offsets, strict=True):
        row = wire[0].nbytes
        if row:
            strides = stride, *wire[:1].copy().strides[1:]  # in C order, whatever those of the column are
            np.ndarray(wire.shape, wire.dtype, buffer, offset, strides)[...] = wire
            gaps[offset : offset + row] = False
    template = np.zeros(stride, np.uint8)
    template[: len(same.record)] = same.record
    edges = np.flatnonzero(np.diff(gaps, prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        np.ndarray((count, end - begin), np.uint8, buffer, begin, (stride, 1))[...] = template[begin:end]


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
