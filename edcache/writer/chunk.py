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
from edcache.base import CodecError, Ints
from edcache.codec import Columns, Encoder
from edcache.format import take_rows
from edcache.labels import LabelCollector

CHUNK_NBYTES = 4 << 20

_LARGE = 1 << 15
_pack_row = struct.Struct("4q").pack


@dataclass(frozen=True)
class Chunk:
    """Encoded records of one chunk, before they have a place in the file.

    samples: int64 [n]. rows: `format.ROW` [n]; offset counts from `data`, which holds the records at their
    alignment with zeros between, and schema in `schemas`. labels: a row for each record.
    appended: the samples continue whatever the archive holds at the moment of publication.
    """

    samples: Ints
    rows: format.Rows
    labels: Any
    schemas: list[str]
    data: memoryview | bytes
    appended: bool = False

    @classmethod
    def of(
        cls, samples: Ints, rows: format.Rows, labels: Any, schemas: Sequence[str], pieces: Iterable[Any]
    ) -> Chunk:
        """A chunk of records as they are stored, `pieces`, with those of the schemas that they use."""
        data, offsets = aligned(pieces)
        used, numbers = np.unique(rows["schema"], return_inverse=True)
        rows = format.renumbered(samples, rows, samples, numbers.reshape(-1))
        rows["offset"] = offsets
        return cls(samples, rows, labels, [schemas[number] for number in used.tolist()], data)

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.rows)

    @property
    def indices(self) -> list[int]:
        """Of its samples."""
        return self.samples.tolist()  # type: ignore[no-any-return]

    def moved(self, first: int) -> Chunk:
        """The same records as those of consecutive samples, of which this is the first."""
        samples = self.samples - self.samples[0] + first
        rows = format.renumbered(self.samples, self.rows, samples, self.rows["schema"])
        return replace(self, samples=samples, rows=rows)

    def __reduce__(self) -> tuple[Any, ...]:
        # A memoryview does not travel.
        return Chunk, (self.samples, self.rows, self.labels, self.schemas, bytes(self.data), self.appended)

    def without(self, indices: Set[int]) -> Chunk:
        """The same chunk without the records of some indices."""
        kept = np.array([row for row, known in enumerate(self.indices) if known not in indices], np.int64)
        if len(kept) == self.count:
            return self
        rows = self.rows[kept]
        extents = zip(rows["offset"].tolist(), format.stored_ends(rows).tolist(), strict=True)
        pieces = (self.data[at:end] for at, end in extents)
        chunk = Chunk.of(self.samples[kept], rows, take_rows(self.labels, kept), self.schemas, pieces)
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
        whole = nbytes + format.behind_nbytes(nbytes)
        buffer = self._room(offset, whole)
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
        self.nbytes = offset + whole

    def add_columns(self, index: int, columns: Columns, start: int, most: int, most_nbytes: int) -> int:
        """Add samples from the row `start` on, until there are `most` or as many bytes at the most.

        Returns how many, at least one; 0 if they are to be added one by one. Errors are as of `add`, but of
        another sample than the first that is refused.
        """
        most -= len(self)
        run = self._encoder.encode_columns(columns, start, most, max(0, most_nbytes - self.nbytes))
        if run is None:
            return 0
        self._settle()
        offset = _places(self.nbytes, run.nbytes)
        ends = offset[:-1] + run.nbytes + format.behind_nbytes(run.nbytes)
        count = min(len(ends), int(np.searchsorted(ends, most_nbytes)) + 1)
        offset, ends, nbytes = offset[: count + 1], ends[:count], run.nbytes[:count]
        first, last = int(offset[0]), int(offset[-1])
        buffer = np.frombuffer(self._room(first, last - first), np.uint8)
        rows = slice(start, start + count)
        self._collector.add_columns(index, columns.at(rows), count, lambda k: columns.at(start + k))
        buffer[self.nbytes : first] = 0
        run.write(buffer[first:last], offset)
        numbers = np.arange(index, index + count), offset[:-1], nbytes, np.full(count, run.schema)
        self._rows.frombytes(np.stack(numbers, axis=1).data.cast("B"))
        self.nbytes = int(ends[-1])
        return count

    def _settle(self) -> None:
        """Undo what an interrupted `add` left: labels without a row, bytes behind the last."""
        end = 0
        if self._rows:
            end = self._rows[-3] + self._rows[-2] + format.behind_nbytes(self._rows[-2])
        self.nbytes = end
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
        samples, offset, nbytes, schema = np.array(self._rows).reshape(-1, 4).T
        rows = np.zeros(len(samples), format.ROW)
        data, rows["flags"] = self._buffer[: self.nbytes], format.PRESENT
        if compress is not None:
            raw, extents = data, zip(offset.tolist(), nbytes.tolist(), strict=True)
            frames = [compress(raw[at : at + size]) for at, size in extents]
            nbytes = np.fromiter(map(len, frames), np.int64, len(frames))
            data, offset = aligned(frame + format.block_crc32s(frame) for frame in frames)
            rows["flags"] |= format.COMPRESSED
        used, local = np.unique(schema, return_inverse=True)
        rows["offset"], rows["nbytes"], rows["schema"] = offset, nbytes, local.reshape(-1)
        crcs = _record_crc32s(data, np.asarray(offset), nbytes, is_behind=compress is not None)
        rows["crc32"] = crcs ^ format.keys(samples, rows)
        schemas = [self._encoder.schemas[known] for known in used]
        return Chunk(samples.copy(), rows, self._collector.table(), schemas, data, appended)


def _record_crc32s(data: memoryview, offset: Ints, nbytes: Ints, is_behind: bool) -> npt.NDArray[np.uint32]:
    """The crc32 of each record; of a large one those of its blocks are written behind it, unless they are."""
    if not np.any(nbytes > format.BLOCK_NBYTES):
        return format.record_crc32s(data, offset, nbytes)
    crcs = np.empty(len(offset), np.uint32)
    for k, (at, end) in enumerate(zip(offset.tolist(), (offset + nbytes).tolist(), strict=True)):
        behind = format.block_crc32s(data[at:end])
        if behind and not is_behind:
            data[end : end + len(behind)] = behind
        crcs[k] = format.crc32(behind or data[at:end])
    return crcs


def _places(end: int, nbytes: Ints) -> Ints:
    """Offsets of records behind `end`, and of one more like the last: int64 [n + 1]."""
    nbytes = np.append(nbytes, nbytes[-1])
    taken = format.align(nbytes + format.behind_nbytes(nbytes), format.LATTICE)
    offset = np.cumsum(taken) - taken + format.align(end, format.LATTICE)
    alignment = format.record_alignment(nbytes)
    # Between two that lie on multiples of a larger number others are as far apart as without it.
    larger = np.flatnonzero(alignment > format.LATTICE)
    pads = np.zeros(len(offset), np.int64)
    pads[larger] = -np.diff(offset[larger], prepend=0) % alignment[larger]
    shifted: Ints = offset + np.cumsum(pads)
    return shifted


def _zeros(nbytes: int) -> memoryview:
    return np.zeros(nbytes, np.uint8).data


def aligned(pieces: Iterable[Any]) -> tuple[memoryview, list[int]]:
    """Records one after another, each at its alignment with zeros before it; and their offsets.

    pieces: records with what is behind them.
    """
    data, offsets = bytearray(), []
    for piece in pieces:
        offset = format.align(len(data), format.record_alignment(len(piece)))
        data += bytes(offset - len(data))
        data += piece
        offsets.append(offset)
    return memoryview(data), offsets
