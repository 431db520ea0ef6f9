"""When a record's bytes are compared with their crc32, and how for many at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CorruptRecordError, once
from edcache.format import IndexTable
from edcache.reader.blocks import CheckedBlocks
from edcache.reader.storage import Storage

Ints = npt.NDArray[np.int64]
Check = Callable[[slice], None]
"""`check(part)` checks the records of a slice of a group; raises CorruptRecordError."""

# A record from here on is checked as a whole, by its own crc32, smaller ones by the blocks around them.
LARGE = 1 << 16


class Places:
    """Names records in messages."""

    def __init__(self, path: str, index: IndexTable) -> None:
        self.path = path
        self._records = index.records

    def __call__(self, row: int) -> str:
        """As "train.zip: record 17 at offset 4,096"."""
        records = self._records
        index = row % len(records.offset) if records.index is None else int(records.index[row])
        return f"{self.path}: record {index} at offset {records.offset[row]:,}"


class Checks:
    """The checks of one archive in one process.

    Args:
        storage: the bytes; where they are not mapped, a record is checked at every read.
        verify: "touch", "always" or "never", as in `Reader`.
        place: names the record of a row in messages.
    Attributes:
        is_done: nothing is left to check.
    """

    # Not the session itself: a cycle would keep a dropped reader's descriptor until the next collection.
    def __init__(self, storage: Storage, index: IndexTable, verify: str, place: Places) -> None:
        records = index.records
        self._view, self._size, self._mend = storage.view, storage.size, storage.mend
        self.is_done = verify == "never"
        self._always = verify == "always"
        self._place = place
        # Reading one element of a memoryview costs half of what numpy takes.
        self._lengths = records.nbytes
        self._offset, self._nbytes, self._crc32 = (
            column.data for column in (records.offset, records.nbytes, records.crc32)
        )
        self._blocks = None if self._view is None else CheckedBlocks(self._view, index.blocks)
        self._whole_left = len(self._offset)

    @property
    def nbytes(self) -> int:
        """Memory that this takes."""
        blocks = 0 if self._blocks is None else self._blocks.nbytes
        return blocks + (len(self._whole) if "_whole" in self.__dict__ else 0)

    def record(self, row: int, data: memoryview, wanted: tuple[int, int] | None) -> None:
        """Check one record, at least the half-open part of its bytes that is wanted.

        Raises:
            CorruptRecordError: "train.zip: record 17 at offset 4,096: crc32 0x1c291ca3, the index says ...".
        """
        blocks = self._blocks
        if self.is_done:
            return
        if blocks is None or self._always:
            self._compare(row, data)
        elif wanted is None and len(data) >= LARGE:
            self._check_whole(row, data)
        else:
            offset = self._offset[row]
            low, high = (0, len(data)) if wanted is None else wanted
            if not blocks.are_sound(offset + low, offset + min(high, len(data))):
                self._compare(row, data)
            self.is_done |= blocks.done

    def beyond_end(self, row: int) -> CorruptRecordError:
        """What to raise for a record that does not lie within the file."""
        end = self._offset[row] + self._nbytes[row]
        return CorruptRecordError(
            f"{self._place(row)}: it ends at {end:,}, the file at {self._size:,}; "
            f'run "edcache verify {self._place.path}"'
        )

    def group(self, rows: Ints, start: Ints, wanted: tuple[int, int] | None) -> Check | None:
        """How the records of some rows are checked; None where all is known to be sound.

        Args:
            start: int64 [n], their offsets in the mapped file.
        """
        blocks = self._blocks
        assert blocks is not None
        if self.is_done:
            return None
        if self._always:
            return lambda part: self._check_each(rows[part])
        if wanted is None and self._nbytes[int(rows[0])] >= LARGE:
            return self._whole_checker(rows)
        low = start if wanted is None else start + wanted[0]
        high = start + (self._lengths[rows].view(np.int64) if wanted is None else wanted[1])

        def check(part: slice) -> None:
            self._check_each(rows[part][blocks.unsound(low[part], high[part])])
            self.is_done |= blocks.done

        return check

    def _check_each(self, rows: Ints) -> None:
        assert self._view is not None
        for row in rows.tolist():
            offset = self._offset[row]
            self._compare(row, self._view[offset : offset + self._nbytes[row]])

    @once
    def _whole(self) -> bytearray:
        """One bit for every row: whether its record was checked as a whole."""
        return bytearray(-(-len(self._offset) // 8))

    def _whole_checker(self, rows: Ints) -> Check | None:
        bits = np.frombuffer(self._whole, np.uint8)
        rows = rows % len(self._offset)
        if np.all((bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1):
            return None
        view, chosen = self._view, rows.tolist()
        assert view is not None

        def check(part: slice) -> None:
            for row in chosen[part]:
                offset = self._offset[row]
                self._check_whole(row, view[offset : offset + self._nbytes[row]])

        return check

    def _check_whole(self, row: int, data: memoryview) -> None:
        # Threads and lost bits: as in CheckedBlocks.
        bit, bits = 1 << (row & 7), self._whole
        if bits[row >> 3] & bit:
            return
        self._compare(row, data)
        bits[row >> 3] |= bit
        self._whole_left -= 1
        if self._whole_left <= 0:
            self._whole_left = len(self._offset) - sum(byte.bit_count() for byte in bits)
            self.is_done = not self._whole_left

    def _compare(self, row: int, data: memoryview) -> None:
        crc, expected = format.crc32(data), self._crc32[row]
        if crc != expected and self._view is not None and self._mend(self._offset[row], self._nbytes[row]):
            crc = format.crc32(data)
        if crc != expected:
            raise CorruptRecordError(
                f"{self._place(row)}: crc32 {crc:#010x}, the index says {expected:#010x}; "
                f'run "edcache verify {self._place.path}"'
            )
