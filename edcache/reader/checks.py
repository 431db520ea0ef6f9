"""`Checks`: records are compared with their sums, at the first read in a process or after a fetch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CorruptRecordError, EdcacheError, Ints
from edcache.format import BLOCK_NBYTES, Rows
from edcache.reader.index import RecordIndex
from edcache.storage import ByteSource

Check = Callable[[slice], None]
"""`check(part)` checks the records of a slice of a group; raises CorruptRecordError."""

Part = tuple[int, int] | None
"""Bytes (start, end) of a record that will be read; None for all of it."""

Row = tuple[int, int, int, int, int]
"""offset, nbytes, crc32, schema and flags of a record."""


class Checks:
    """Checks of one archive in one process.

    Args:
        file: read up to `size`. view: its mapping; None checks a record at every read.
        verify: "touch", "always" or "never", as in `Reader`.
    Attributes:
        is_done: True if nothing is left to check. is_trusting: True if no record is ever checked.
        bits: one for each sample, set when its record was checked.
    """

    # It does not hold the session: a cycle would keep the descriptor until the next garbage collection.
    def __init__(
        self, file: ByteSource, view: memoryview | None, size: int, index: RecordIndex, verify: str
    ) -> None:
        self._path, self.size, self.index = file.path, size, index
        self._view, self._check_damaged = view, file.check_damaged
        self.is_done = self.is_trusting = verify == "never"
        self._always = verify == "always" or view is None
        # A bit for each checked sample; of large records that are read in parts, for each block.
        nbytes = 0 if self.is_done or self._always else -(-index.length // 8)
        self.bits = np.zeros(nbytes, np.uint8).data  # takes memory as it is written
        self._left = index.present
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
        is_record = isinstance(error, CorruptRecordError)
        where = self.place(index) if is_record else f"{self._path}: sample {index}"
        return error.within(where, self._path, index)

    # --- one record ---

    def record(self, index: int, row: Row, wanted: Part = None) -> None:
        """Check a record of the mapped file, or at least its bytes `wanted`.

        Raises:
            CorruptRecordError: "train.zip: record 17 at offset 4,096 fails its crc32; run ...".
        """
        if self.is_done or (not self._always and self.bits[index >> 3] & 1 << (index & 7)):
            return
        assert self._view is not None
        self.check_place(index, row)
        offset, nbytes = row[:2]
        end = offset + nbytes
        behind = self._view[end : end + format.behind_nbytes(nbytes)]
        if wanted is None or not behind or self._always:
            self.compare(index, row, self._view[offset:end], behind)
            self._note(index)
        else:
            self._check_blocks(index, row, behind, wanted)

    def check_place(self, index: int, row: Row) -> None:
        """Raise CorruptRecordError if a row points out of the file, or contradicts `uniform` of the index."""
        offset, nbytes, _, schema, flags = row
        end = offset + nbytes + format.behind_nbytes(nbytes)
        if end > self.size:
            raise self._error(index, row, f"it ends at {end:,}, the file at {self.size:,}")
        said = self.index
        is_alike = schema == said.only_schema and flags == format.PRESENT
        is_said = is_alike and said.least_nbytes <= nbytes <= said.most_nbytes
        # A row of zeros has the sum of an empty record of sample 0.
        if not flags & format.PRESENT or (said.only_schema is not None and not is_said):
            raise self._error(index, row, "its row is damaged")

    def compare(self, index: int, row: Row, record: memoryview, behind: memoryview) -> None:
        """Raise CorruptRecordError if a whole record fails its sum."""
        if not fits(index, row, record, behind):
            self._fail(index, row)

    def check_row(self, index: int) -> None:
        """Raise if the row of a sample is damaged in this copy alone."""
        if self.index.place is not None:
            self._check_damaged(self.index.place.offset + format.ROW.itemsize * index, format.ROW.itemsize)

    def _fail(self, index: int, row: Row) -> NoReturn:
        """Raise CorruptRecordError for a record that fails its sum, or another error if this copy alone is damaged."""
        if self._view is not None:
            self._check_damaged(*row[:2])
        raise self._error(index, row, "it fails its crc32")

    def _error(self, index: int, row: Row, why: str) -> CorruptRecordError:
        """Make the error of a record; raises another one if the row is damaged in this copy alone."""
        self.check_row(index)
        text = f'{self.place(index)}: {why}; run "edcache verify {self._path}"'
        return CorruptRecordError(text, path=self._path, index=index)

    def _check_blocks(self, index: int, row: Row, behind: memoryview, wanted: tuple[int, int]) -> None:
        """Check the blocks of the wanted bytes of a large record, unless they were checked."""
        offset, nbytes = row[:2]
        low, high = wanted[0] // BLOCK_NBYTES, -(-min(wanted[1], nbytes) // BLOCK_NBYTES)
        asked, checked = (1 << max(low, high)) - (1 << low), self._blocks.get(index, 0)
        if not asked & ~checked:
            return
        assert self._view is not None
        data = self._view[offset + low * BLOCK_NBYTES : offset + min(high * BLOCK_NBYTES, nbytes)]
        if not blocks_fit(index, row, data, behind, low):
            self._fail(index, row)
        checked |= asked
        self._blocks[index] = checked
        if checked.bit_count() == len(behind) // 4:
            del self._blocks[index]
            self._note(index)

    def _note(self, index: int) -> None:
        # No lock: a fork could freeze it. If two threads lose a bit, a record is checked again.
        if not self._always:
            self.bits[index >> 3] |= 1 << (index & 7)
            self._left -= 1
            self._recount()

    def _recount(self) -> None:
        if self._left <= 0:
            self._left = self.index.present - int.from_bytes(self.bits.tobytes(), "little").bit_count()
            self.is_done = not self._left

    # --- many ---

    def check_inside(self, indices: Ints, start: Ints) -> None:
        """Raise CorruptRecordError if a record would begin or end out of the file."""
        ends = start + self.index.sizes(indices)
        if np.maximum.reduce(start.view(np.uint64)) > self.size or ends.max() > self.size:
            for index in indices.tolist():
                self.check_place(index, self.index.row(index))

    def group(self, indices: Ints, wanted: Part) -> Check | None:
        """Make the check of the records of some samples; None if all were checked."""
        if self.is_done:
            return None
        unchecked = self._find_unchecked(indices)
        if not np.any(unchecked):
            return None

        def check(part: slice) -> None:
            self.samples(indices[part][unchecked[part]], wanted)

        return check

    def samples(self, indices: Ints, wanted: Part = None) -> None:
        """Check the records of samples in the mapped file; raises as `record`."""
        if self.is_done or not len(indices):
            return
        view, rows = self._view, self.index.rows(indices)
        assert view is not None
        if not self._are_plausible(rows) or rows["nbytes"].max() > BLOCK_NBYTES:
            for index, row in zip(indices.tolist(), rows.tolist(), strict=True):
                self.record(index, row, wanted)
            return
        for place in np.flatnonzero(~are_sound(indices, rows, view)).tolist():
            self._fail(int(indices[place]), rows[place].item())
        if not self._always:
            bits = np.frombuffer(self.bits, np.uint8)
            np.bitwise_or.at(bits, indices >> 3, np.uint8(1) << (indices & 7).astype(np.uint8))
            self._left -= len(indices)
            self._recount()

    def _find_unchecked(self, indices: Ints) -> npt.NDArray[np.bool_]:
        if self._always:
            return np.ones(len(indices), np.bool_)
        bits = np.frombuffer(self.bits, np.uint8)
        unchecked: npt.NDArray[np.bool_] = (bits[indices >> 3] >> (indices & 7).astype(np.uint8)) & 1 == 0
        return unchecked

    def _are_plausible(self, rows: Rows) -> bool:
        """True if no row points out of the file or contradicts `uniform` of the index."""
        index, nbytes = self.index, rows["nbytes"]
        # Both first, so that no sum of them wraps.
        if max(int(rows["offset"].max()), int(nbytes.max())) > self.size:
            return False
        if int(format.stored_ends(rows).max()) > self.size:
            return False
        if index.only_schema is None:
            return bool(np.all(rows["flags"] & format.PRESENT))
        is_sized = index.least_nbytes <= int(nbytes.min()) and int(nbytes.max()) <= index.most_nbytes
        are_alike = (rows["schema"] == index.only_schema) & (rows["flags"] == format.PRESENT)
        return is_sized and bool(np.all(are_alike))


def are_sound(samples: Ints, rows: Rows, data: memoryview, start: int = 0) -> npt.NDArray[np.bool_]:
    """Mark the records that fit the sums of their rows: bool [n]. data: bytes of the file from `start` on."""
    offset, nbytes = rows["offset"].astype(np.int64) - start, rows["nbytes"].astype(np.int64)
    if nbytes.max() <= BLOCK_NBYTES:
        sound: npt.NDArray[np.bool_] = format.record_crc32s(data, offset, nbytes) == (
            rows["crc32"] ^ format.keys(samples, rows)
        )
        return sound
    ends, stops = (offset + nbytes).tolist(), (format.stored_ends(rows) - start).tolist()
    places = zip(samples.tolist(), rows.tolist(), offset.tolist(), ends, stops, strict=True)
    return np.array([fits(i, row, data[at:end], data[end:stop]) for i, row, at, end, stop in places])


def fits(index: int, row: Row, record: memoryview, behind: memoryview) -> bool:
    """True if a record, with the crc32s of its blocks behind it, fits the sum of its row."""
    _, nbytes, crc, schema, flags = row
    if len(record) != nbytes:
        return False
    if nbytes > BLOCK_NBYTES:
        return blocks_fit(index, row, record, behind)
    return not behind and format.crc32(record) == crc ^ format.key(index, schema, flags)


def blocks_fit(index: int, row: Row, data: memoryview, behind: memoryview, first: int = 0) -> bool:
    """True if blocks of a large record, from the one numbered `first` on, fit their crc32s, and these the row."""
    _, nbytes, crc, schema, flags = row
    if len(behind) != format.behind_nbytes(nbytes):
        return False
    if format.crc32(behind) != crc ^ format.key(index, schema, flags):
        return False
    crcs = [format.crc32(data[at : at + BLOCK_NBYTES]) for at in range(0, len(data), BLOCK_NBYTES)]
    return crcs == behind.cast("I")[first : first + len(crcs)].tolist()
