"""Collect samples into a chunk: encoded records beside each other, and their labels."""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CodecError, EdcacheError, Ints, LabelError, SourceError
from edcache.codec import Columns, Encoder, FlatPlan, compressor
from edcache.format import MAX_LENGTH, Failure, Head, pa
from edcache.labels import LabelCollector, LabelSpec
from edcache.writer.appender import Appender, Lacking
from edcache.writer.chunk import CHUNK_NBYTES, Chunk, aligned

# Seconds between two publications if chunks do not get full: a tenth of the time so far, within these
# bounds. A kill costs little work, even in the first seconds; chunks of slow sources are not
# tiny.
_SECONDS: Final = (0.2, 2.0)
# A chunk takes some 3 KB of the file beside its records, and each of several processes publishes its own. So
# one of fewer bytes waits longer: half of the time so far, within these bounds.
_SMALL_NBYTES: Final = 64 << 10
_SMALL_SECONDS: Final = (1.0, 10.0)
# After a row of columns that differs in structure from the next, this many are added one by one.
_SINGLY: Final = 1 << 12
# The memory of a chunk is used again if its records are as large on average: faulting new pages in takes as
# long as filling them. Among small records new zeros are cheaper than clearing the gaps.
_LARGE: Final = 1 << 15
_NO_BYTES: Final = memoryview(bytearray())
_pack_row = struct.Struct("4q").pack

FailureOf = Callable[[int, EdcacheError], Failure]
"""Makes the Failure that the archive keeps of a sample that could not be made or stored."""


class ChunkBuilder:
    """Collects samples, and publishes them a chunk at a time.

    Adding a sample copies its record and its labels. If it raises, a KeyboardInterrupt too, neither is there.

    Args:
        head: of the archive. path: its name in messages.
        chunk_size: a chunk is full with this many samples, or with CHUNK_NBYTES before compression.
        failure_of: makes the `failures` of samples that are refused; None lets the error end the work.
        label_schema: types of the label columns that the archive has.
        seconds: from one publication to the next; None: as long as samples take to compute.
        maker: of the parts that it makes; "" makes chunks.
    Attributes:
        nbytes: bytes of the pending records, before compression.
        failures: of samples that were refused, not published yet.
    """

    def __init__(
        self,
        head: Head,
        path: str,
        spec: LabelSpec,
        chunk_size: int | None = None,
        *,
        failure_of: FailureOf | None = None,
        label_schema: pa.Schema | None = None,
        seconds: float | None = None,
        maker: str = "",
    ) -> None:
        self._path, self._maker = path, maker
        self._spec = spec
        self._most = MAX_LENGTH if chunk_size is None else chunk_size
        self._failure_of = failure_of
        self.failures: list[Failure] = []
        self._encoder = Encoder(head.codec)
        self._compress = compressor(head.compression)
        self._plan: FlatPlan | None = None
        self._alignment = 0  # of its records
        self._seconds = seconds
        self._began = time.monotonic()
        self._begin(LabelCollector(spec, label_schema))

    def _begin(self, collector: LabelCollector) -> None:
        """Begin an empty chunk."""
        # In this order: after an interrupt between two of these lines `_settle` makes rows, labels and bytes agree.
        self.nbytes = 0
        # Index, offset, nbytes, schema of one record after another.
        self._rows = array("q")
        self._collector = collector
        # Zeros from `_dirty` on; before it the records of an earlier chunk may lie.
        self._buffer, self._dirty = _NO_BYTES, 0
        self._written = 0
        self._published = time.monotonic()

    def __len__(self) -> int:
        """Pending samples: added, and neither taken nor published."""
        return len(self._rows) // 4

    @property
    def is_due(self) -> bool:
        """True if the pending samples make a whole chunk, or have waited long enough."""
        # Not `len(self)`: a call takes 1 % of the time of a small sample.
        if self.nbytes >= CHUNK_NBYTES or len(self._rows) >= 4 * self._most:
            return True
        now = time.monotonic()
        waited = now - self._published
        if self._seconds is not None:
            return waited > self._seconds
        so_far = now - self._began
        least, most = _SECONDS
        if waited <= least or waited <= min(so_far / 10, most):
            return False
        least, most = _SMALL_SECONDS
        return self.nbytes >= _SMALL_NBYTES or waited > max(least, min(so_far / 2, most))

    # --- samples in ---

    def add(self, index: int, sample: object) -> None:
        """Add a sample. A CodecError or LabelError is raised with the path, or kept in `failures`."""
        try:
            self._add(index, sample)
        except (CodecError, LabelError) as error:
            self.refuse(index, error)

    def refuse(self, index: int, error: EdcacheError) -> None:
        """Keep the error of a sample that cannot be stored, or raise it if failures are not kept."""
        if self._failure_of is not None:
            self.failures.append(self._failure_of(index, error))
        elif isinstance(error, SourceError):  # names the archive already
            raise error
        else:
            raise error.within(self._path, self._path, index) from error

    def _add(self, index: int, sample: object) -> None:
        if self._written != self.nbytes:
            self._settle()
        end, plan = self.nbytes, self._encoder.plan
        if plan is not None:  # of the last sample: one like it goes straight into the buffer
            if plan is not self._plan:
                self._plan, self._alignment = plan, format.record_alignment(plan.nbytes)
            offset = format.align(end, self._alignment)
            buffer = self._room(offset, plan.nbytes)
            if plan.pack(sample, buffer, offset):
                self._collector.add(index, sample)
                if end < self._dirty:
                    buffer[end:offset] = bytes(offset - end)
                self._rows.frombytes(_pack_row(index, offset, plan.nbytes, plan.schema))
                self.nbytes = offset + plan.nbytes
                return
        try:
            encoded = self._encoder.encode_unlike(sample)
        except CodecError as error:
            raise error.within(f"sample {index}", index=index) from error
        schema, nbytes, pieces = encoded
        if self._written != self.nbytes:
            self._settle()
        offset = format.align(end, format.record_alignment(nbytes))
        whole = nbytes + format.behind_nbytes(nbytes)
        buffer = self._room(offset, whole)
        self._collector.add(index, sample)
        if end < self._dirty:
            # The gaps before the record and between its pieces are zero.
            buffer[end:offset] = bytes(offset - end)
            if sum(memoryview(piece).nbytes for _, piece in pieces) < nbytes:
                buffer[offset : offset + nbytes] = bytes(nbytes)
        for position, piece in pieces:
            flat: Any = piece if type(piece) is bytes else np.frombuffer(piece, np.uint8)
            start = offset + position
            buffer[start : start + len(flat)] = flat
        # All four or none, also if memory ends.
        self._rows.frombytes(_pack_row(index, offset, nbytes, schema))
        self.nbytes = offset + whole

    def add_made(
        self, indices: Sequence[int], made: Columns | list[Any] | SourceError | Failure, row: int
    ) -> int:
        """Add samples that an engine made, from `row` on, or refuse one that raised; returns how many it took."""
        if isinstance(made, list):
            self.add(indices[row], made[row])
        elif isinstance(made, Columns):
            return self.add_columns(indices, made, row)
        elif isinstance(made, Failure):
            self.failures.append(made)
        else:
            self.refuse(indices[row], made)
        return 1

    def add_columns(self, indices: Sequence[int], columns: Columns, start: int) -> int:
        """Add samples from the row `start` on, until the chunk is full at the most; returns how many.

        indices: of all rows.

        Rows that differ in structure are added one by one, as by `add`, which names the one that is refused.
        """
        if start >= columns.singly_until:
            try:
                count = self._add_run(indices, columns, start)
            except (CodecError, LabelError):
                count = 0
            if count:
                return count
            columns.singly_until = start + _SINGLY
        self.add(indices[start], columns.at(start))
        return 1

    def _add_run(self, indices: Sequence[int], columns: Columns, start: int) -> int:
        """Add rows of one structure together; returns how many, 0 if they are to be added one by one."""
        room = max(0, CHUNK_NBYTES - self.nbytes)
        run = self._encoder.encode_columns(columns, start, self._most - len(self), room)
        if run is None:
            return 0
        self._settle()
        offset = _places(self.nbytes, run.nbytes)
        ends = offset[:-1] + run.nbytes + format.behind_nbytes(run.nbytes)
        count = min(len(ends), int(np.searchsorted(ends, CHUNK_NBYTES)) + 1)
        offset, ends, nbytes = offset[: count + 1], ends[:count], run.nbytes[:count]
        first, last = int(offset[0]), int(offset[-1])
        buffer = np.frombuffer(self._room(first, last - first), np.uint8)
        rows = slice(start, start + count)
        own = indices[rows]
        self._collector.add_columns(own, columns.at(rows), lambda k: columns.at(start + k))
        buffer[self.nbytes : first] = 0
        run.write(buffer[first:last], offset)
        # numpy would take the ints of a range one after another.
        numbers = np.arange(own.start, own.stop) if isinstance(own, range) else np.array(own)
        records = numbers, offset[:-1], nbytes, np.full(count, run.schema)
        self._rows.frombytes(np.stack(records, axis=1).data.cast("B"))
        self.nbytes = int(ends[-1])
        return count

    def _settle(self) -> None:
        """Undo an interrupted change: drop labels without a row, and bytes behind the last record."""
        end = 0
        if self._rows:
            end = self._rows[-3] + self._rows[-2] + format.behind_nbytes(self._rows[-2])
        self.nbytes = end
        if self._written > end:
            self._collector.truncate(len(self))
            self._dirty = max(self._dirty, self._written)
            self._written = end

    def _room(self, offset: int, nbytes: int) -> memoryview:
        """Return the buffer, enlarged if it ends before `offset + nbytes`."""
        end = offset + nbytes
        if end > len(self._buffer):
            bigger = np.zeros(max(CHUNK_NBYTES + (CHUNK_NBYTES >> 3), end * 3 // 2), np.uint8).data
            bigger[: self.nbytes] = self._buffer[: self.nbytes]
            self._buffer, self._dirty = bigger, 0
        self._written = end
        return self._buffer

    # --- chunks out ---

    def take(self, continues: bool = False) -> Chunk:
        """Return the pending samples as a chunk; they are pending no more."""
        self._settle()
        samples, offset, nbytes, schema = np.array(self._rows).reshape(-1, 4).T
        rows = np.zeros(len(samples), format.ROW)
        data, rows["flags"] = self._buffer[: self.nbytes], format.PRESENT
        compress, raw = self._compress, data
        if compress is not None:
            extents = zip(offset.tolist(), nbytes.tolist(), strict=True)
            frames = [compress(raw[at : at + size]) for at, size in extents]
            nbytes = np.fromiter(map(len, frames), np.int64, len(frames))
            data, offset = aligned(frame + bytes(format.behind_nbytes(len(frame))) for frame in frames)
            rows["flags"] |= format.COMPRESSED
        used = np.flatnonzero(np.bincount(schema))
        rows["offset"], rows["nbytes"], rows["schema"] = offset, nbytes, np.searchsorted(used, schema)
        rows["crc32"] = _record_crc32s(data, np.asarray(offset), nbytes)
        schemas = [self._encoder.schemas[known] for known in used]
        labels = self._collector.table(samples)
        chunk = Chunk(samples.copy(), rows, labels, schemas, data, continues, self._maker)
        self.discard()
        return chunk

    def discard(self) -> None:
        """Forget the pending samples."""
        self._begin(self._collector.successor())

    def publish(self, appender: Appender, continues: bool = False, lacking: Lacking | None = None) -> int:
        """Append the pending samples as one chunk, and note the failures; returns the number of samples.

        continues: their indices follow the last one that the archive has then. lacking: as of `append`.
        After any exception they are pending no more.
        """
        # First: a stream's sample that failed is gone with its iteration.
        self._note_failures(appender)
        count = 0
        if self._rows:
            buffer, is_large = self._buffer, self.nbytes >= _LARGE * len(self)
            dirty = max(self.nbytes, self._dirty)
            count = self.append(appender, self.take(continues), lacking)
            if is_large:
                self._buffer, self._dirty = buffer, dirty
        self._published = time.monotonic()
        return count

    def append(self, appender: Appender, chunk: Chunk, lacking: Lacking | None = None) -> int:
        """Append a chunk that was made here or elsewhere; returns the number of its samples.

        lacking: of `Appender.append`; samples that it leaves out count too, since the archive has them.
        Raises: LabelError, another process has published labels of another type. No later call could append them
        either: if failures are kept, these are noted in the place of the error.
        """
        try:
            appender.append(chunk, lacking=lacking)
        except LabelError as error:
            self._begin(LabelCollector(self._spec, appender.label_schema(self._maker)))
            if self._failure_of is None:
                raise
            self.failures += [self._failure_of(index, error) for index in chunk.samples.tolist()]
            self._note_failures(appender)
            return 0
        return chunk.count

    def _note_failures(self, appender: Appender) -> None:
        if self.failures:
            appender.note_failures(self.failures, self._maker)
            self.failures = []


def _record_crc32s(data: memoryview, offset: Ints, nbytes: Ints) -> npt.NDArray[np.uint32]:
    """Compute the crc32 of each record: uint32 [n]. Writes the sums of its blocks behind a large one."""
    if not np.any(nbytes > format.BLOCK_NBYTES):
        return format.record_crc32s(data, offset, nbytes)
    crcs = np.empty(len(offset), np.uint32)
    for k, (at, end) in enumerate(zip(offset.tolist(), (offset + nbytes).tolist(), strict=True)):
        behind = format.block_crc32s(data[at:end])
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
