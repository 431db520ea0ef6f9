"""`Checks`: records are compared with their sums, at the first read in a process or after a fetch.

Small records of a batch are checked with their neighbours, a run of at most 64 KiB, and in order with the runs behind
them: the processor's time goes into calls. They are checked if memory has them; nothing is read from a disk for that.
In a shuffled epoch all runs are checked after a few batches. A damaged neighbour raises nothing: it stays unchecked,
and its own read names it.

What must never happen: that a record is handed out unchecked; that an error names a record that was not asked for.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CorruptRecordError, EdcacheError, Ints, LaterReleaseError, MissingSampleError
from edcache.format import BLOCK_NBYTES
from edcache.reader.index import Extents, RecordIndex, Row

ByteRange = tuple[int, int] | None
"""Bytes (start, end) of a record that will be read; None for all of it."""


_COMPRESSED: Final = format.PRESENT | format.COMPRESSED
# Records of a run, a multiple of 8: its marks are whole bytes.
_LEAST_RUN, _MOST_RUN = 8, 256
# In order, a batch has few runs: this number of records is checked for each of its own, as a call takes as long as 100.
_AHEAD = 16


class Checks:
    """Checks of one archive in one process.

    Args:
        extents: bytes of the archive; a record that is not mapped is checked at every read.
        verify: "touch", "always" or "never", as of `ReadOptions`.
    Attributes:
        is_done: True if nothing is left to check. is_trusting: True if no record is ever checked.
        bits: one for each sample, set when its record was checked.
    """

    # It does not hold the session: a cycle would keep the descriptor until the next garbage collection.
    def __init__(self, extents: Extents, index: RecordIndex, verify: str) -> None:
        self.extents, self.index = extents, index
        self._path, self._view, self._size = extents.file.path, extents.view, extents.nbytes
        self.is_done = self.is_trusting = verify == "never"
        self._always = verify == "always" or self._view is None
        # A bit for each checked sample; of large records that are read in parts, for each block.
        nbytes = 0 if self.is_done or self._always else -(-index.length // 8)
        self.bits = np.zeros(nbytes, np.uint8).data  # takes memory as it is written
        self._left = index.present
        self._run = _run_length(index) if nbytes else 0
        self._blocks: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of memory of this object."""
        return len(self.bits) + 100 * len(self._blocks)

    def place(self, index: int) -> str:
        """Name a record for messages: "train.zip: record 17 at offset 4,096"."""
        return f"{self._path}: record {index} at offset {self.index.row(index)[0]:,}"

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        """Put the place of a sample in front of an error's text."""
        is_record = isinstance(error, CorruptRecordError | LaterReleaseError)
        where = self.place(index) if is_record else f"{self._path}: sample {index}"
        return error.within(where, self._path, index)

    # --- one record ---

    def record(self, index: int, row: Row, wanted: ByteRange) -> None:
        """Check a record of the mapped file, or at least its bytes `wanted`.

        Raises:
            CorruptRecordError: "train.zip: record 17 at offset 4,096 fails its crc32; run ...".
        """
        if self.is_done or (not self._always and self.bits[index >> 3] & 1 << (index & 7)):
            return
        assert self._view is not None
        self.check_place(index, row)
        end = row[0] + row[1]
        behind = self._view[end : end + format.behind_nbytes(row[1])]
        if wanted is None or not behind or self._always:
            self._compare(index, row)
            self.check_known(index, row)
            self._note(index)
        else:
            self._check_blocks(index, row, behind, wanted)

    def check_place(self, index: int, row: Row) -> None:
        """Raise MissingSampleError if a sample has no record, CorruptRecordError if its row is `misplaced`."""
        if not row[4] & format.PRESENT and not self.index.is_dense:
            raise self._no_record(index)
        why = self.misplaced(row)
        if why is not None:
            raise self.error(index, why)

    def misplaced(self, row: Row) -> str | None:
        """Tell that a row points out of the file, or contradicts `uniform` of the index."""
        offset, nbytes, _, schema, flags = row
        end = offset + nbytes + format.behind_nbytes(nbytes)
        if end > self._size:
            return f"it ends at {end:,}, the file at {self._size:,}"
        said = self.index
        # The sum tells if a flag that only a later release knows is true.
        is_alike = schema == said.only_schema and not flags & format.COMPRESSED
        is_said = is_alike and said.least_nbytes <= nbytes <= said.most_nbytes
        # A row of zeros has the sum of an empty record of sample 0.
        if not flags & format.PRESENT or (said.only_schema is not None and not is_said):
            return "its row is damaged"
        return None

    def check_known(self, index: int, row: Row) -> None:
        """Raise LaterReleaseError if a record is stored in a way that this release does not know."""
        try:
            format.check_flags(row[4])
        except LaterReleaseError as error:
            raise self.placed(error, index) from None

    def error(self, index: int, why: str) -> CorruptRecordError:
        """Make the error of a record that fails, after all tries."""
        text = f'{self.place(index)}: {why}; run "edcache verify {self._path}"'
        return CorruptRecordError(text, path=self._path, index=index)

    def _no_record(self, index: int) -> MissingSampleError:
        present, length = self.index.present, self.index.length
        failure = next((one for one in self.index.failures if one.index == index), None)
        if failure is not None:
            again = "it counts as absent for good" if failure.final else "a later fill tries again"
            return MissingSampleError(
                f"{self._path}: sample {index} failed when it was made: {failure.error}: {failure.message}; {again}; "
                "ds.errors has its traceback, and ds.missing all such samples",
                path=self._path,
                index=index,
            )
        return MissingSampleError(
            f"{self._path}: sample {index} has no record yet ({present:,} of {length:,} have); "
            "fill it with warmup() on a dataset that has its source",
            path=self._path,
            index=index,
        )

    def _compare(self, index: int, row: Row) -> None:
        """Raise CorruptRecordError if a record of the mapping fails its sum, unless a copy is mended."""
        assert self._view is not None
        offset, nbytes = row[:2]
        stored = self._view[offset : offset + nbytes + format.behind_nbytes(nbytes)]
        crc = self.index.crc32_of(index, row)

        def is_sound(record: bytes | memoryview) -> bool:
            return format.fits(crc, nbytes, memoryview(record))

        if is_sound(stored):
            return
        self.extents.file.until_sound([(offset, len(stored))], [stored], [is_sound])
        if not is_sound(stored):
            raise self.error(index, "it fails its crc32")

    def _check_blocks(self, index: int, row: Row, behind: memoryview, wanted: tuple[int, int]) -> None:
        """Check the blocks of the wanted bytes of a large record, unless they were checked."""
        offset, nbytes = row[:2]
        low, high = wanted[0] // BLOCK_NBYTES, -(-min(wanted[1], nbytes) // BLOCK_NBYTES)
        asked, checked = (1 << max(low, high)) - (1 << low), self._blocks.get(index, 0)
        if not asked & ~checked:
            return
        assert self._view is not None
        data = self._view[offset + low * BLOCK_NBYTES : offset + min(high * BLOCK_NBYTES, nbytes)]
        if not format.blocks_fit(self.index.crc32_of(index, row), data, behind, low):
            self._compare(index, row)
        checked |= asked
        self._blocks[index] = checked
        if checked.bit_count() == len(behind) // 4:
            del self._blocks[index]
            self._note(index)

    def _note(self, index: int) -> None:
        # No lock: a fork could freeze it. If two threads lose a bit, a record is checked again.
        if not self._always:
            self.bits[index >> 3] |= 1 << (index & 7)
            self._count(1)

    def _count(self, checked: int) -> None:
        self._left -= checked
        if self._left <= 0:
            self._left = self.index.present - int.from_bytes(self.bits.tobytes(), "little").bit_count()
            self.is_done = not self._left

    # --- many ---

    def records(self, indices: Ints, wanted: ByteRange) -> None:
        """Check records of the mapped file, or at least their bytes `wanted`; raises as `record`."""
        if self.is_done:
            return
        indices = indices[self._find_unchecked(indices)]
        if not len(indices):
            return
        together = self._with_neighbours(indices) if self._run else indices
        # Another thread may have checked all of them meanwhile.
        sound = self._find_sound(together) if len(together) else None
        if sound is not None and self._always:
            indices = indices[~sound]
        elif sound is not None:
            self._mark(together[sound])
            indices = indices[self._find_unchecked(indices)]
        for index in indices.tolist():
            self.record(index, self.index.row(index), wanted)

    def _with_neighbours(self, indices: Ints) -> Ints:
        """Add the unchecked records of the runs of some samples and of the next runs, if memory has them."""
        # Not np.unique, whose first call imports 9 ms of numpy.
        runs = np.sort(indices // self._run)
        runs = runs[np.flatnonzero(np.diff(runs, prepend=-1))]
        ahead = runs[-1] + np.arange(1, 1 + max(0, _AHEAD * len(indices) // self._run - len(runs)))
        ahead = ahead[ahead * self._run < self.index.length]
        starts = np.append(runs, ahead) * self._run
        if not self.extents.are_cached(self.index.offsets(starts)):
            return indices
        samples = (starts[:, None] + np.arange(self._run)).reshape(-1)
        samples = samples[samples < self.index.length]
        return samples[self._find_unchecked(samples)]

    def _find_sound(self, indices: Ints) -> npt.NDArray[np.bool_] | None:
        """Mark the records that fit their sums; None if one may be large or `misplaced`, for a check one by one."""
        assert self._view is not None
        index, rows = self.index, self.index.unbound_rows(indices)
        offset, nbytes, flags = rows["offset"], rows["nbytes"], rows["flags"]
        # A large offset first, so that no sum wraps.
        if nbytes.max() > BLOCK_NBYTES or offset.max() > self._size or (offset + nbytes).max() > self._size:
            return None
        if index.only_schema is None:
            are_alike = (flags == format.PRESENT) | (flags == _COMPRESSED)
        else:
            are_sized = (nbytes >= index.least_nbytes) & (nbytes <= index.most_nbytes)
            are_alike = (rows["schema"] == index.only_schema) & (flags == format.PRESENT) & are_sized
        return format.are_sound(rows, self._view) if are_alike.all() else None

    def _mark(self, indices: Ints) -> None:
        """Note different samples as checked."""
        bits = np.frombuffer(self.bits, np.uint8)
        np.bitwise_or.at(bits, indices >> 3, np.uint8(1) << (indices & 7).astype(np.uint8))
        self._count(len(indices))

    def _find_unchecked(self, indices: Ints) -> npt.NDArray[np.bool_]:
        if self._always:
            return np.ones(len(indices), np.bool_)
        bits = np.frombuffer(self.bits, np.uint8)
        unchecked: npt.NDArray[np.bool_] = (bits[indices >> 3] >> (indices & 7).astype(np.uint8)) & 1 == 0
        return unchecked


def _run_length(index: RecordIndex) -> int:
    """Return how many neighbours are checked together; 0 if records are large, or differ."""
    if index.only_schema is None or not index.is_dense:
        return 0
    count = min(BLOCK_NBYTES // max(index.most_nbytes, 1), _MOST_RUN)
    return count // _LEAST_RUN * _LEAST_RUN
