"""`RecordIndex`: where the record of every sample lies, by rows in memory or fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import CorruptArchiveError, Ints
from edcache.format import COMPRESSED, PRESENT, ROW, Failure, Place, Root, Rows

Fetch = Callable[[Sequence[tuple[int, int]]], Sequence[memoryview]]
"""`fetch(extents)` reads bytes (offset, nbytes) of the file together."""

# Rows of an archive behind a URL are fetched so many together (6 KiB), and kept up to so many bytes; of an
# index up to so many bytes all rows are fetched at once.
_RUN_BITS: Final = 8
_MOST_KEPT_NBYTES: Final = 1 << 26
_SMALL_NBYTES: Final = 1 << 18


class RecordIndex:
    """Rows of the samples [0, length).

    Args:
        rows: `format.ROW` [length], or None if `fetch` reads them. place: where they lie in the file then.
        schemas, failures: of the archive. present: how many samples have a record.
        uniform: (schema, nbytes) that all records are said to have; each record is checked for it.
    Attributes:
        only_schema, only_nbytes: those of `uniform`; None if there is none.
    Safety: threads and forks may use it at once; two may fetch the same rows.
    """

    def __init__(
        self,
        rows: Rows | None,
        length: int,
        present: int,
        schemas: Sequence[str],
        failures: Sequence[Failure],
        uniform: tuple[int, int] | None = None,
        *,
        place: Place | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self.length, self.present, self.schemas, self.failures = length, present, schemas, failures
        self.only_schema: int | None = None if uniform is None else uniform[0]
        self.only_nbytes: int | None = None if uniform is None else uniform[1]
        self.is_dense = present == length
        self.nbytes = 0
        self._rows, self._place, self._fetch = rows, place, fetch
        # Of each row three numbers: offset, nbytes, and crc32, schema and flags together.
        self._words = None if rows is None else rows.view("<i8").reshape(-1, 3)
        # A cast needs a length.
        self._numbers = rows.view("<u8").data.cast("B").cast("Q") if rows is not None and len(rows) else None
        self._kept: dict[int, Rows] = {}

    @classmethod
    def of(cls, root: Root, memory: memoryview | None, fetch: Fetch) -> RecordIndex:
        """The index of a sealed archive: mapped, or fetched."""
        rows = None if memory is None else np.frombuffer(memory, ROW, root.length)
        said = root.length, root.present, root.schemas, root.failures, root.uniform
        return cls(rows, *said, place=root.index, fetch=fetch)

    @property
    def chunk_bits(self) -> int:
        """Rows are fetched in runs of 2 ** this."""
        return _RUN_BITS

    # --- one row ---

    def row(self, index: int) -> tuple[int, int, int, int, int]:
        """(offset, nbytes, crc32, schema, flags) of a sample in [0, length)."""
        if self._numbers is not None:  # three look-ups take less than one of a numpy record
            numbers, at = self._numbers, 3 * index
            last = numbers[at + 2]
            return numbers[at], numbers[at + 1], last & 0xFFFFFFFF, last >> 32 & 0xFFFF, last >> 48
        return self.rows(np.array([index]))[0].item()  # type: ignore[no-any-return]

    def has(self, index: int) -> bool:
        """True if a sample in [0, length) has a record."""
        return bool(self.row(index)[4] & PRESENT)

    # --- many rows ---

    def rows(self, indices: Ints) -> Rows:
        """The rows of samples in [0, length), copied: `format.ROW` [n]."""
        if self._rows is not None:
            return self._rows[indices]
        self.prepare(indices)
        rows, runs = np.empty(len(indices), ROW), indices >> _RUN_BITS
        for run in sorted(set(runs.tolist())):
            chosen = runs == run
            rows[chosen] = self._kept[run][indices[chosen] - (run << _RUN_BITS)]
        return rows

    def prepare(self, indices: Ints) -> None:
        """Fetch rows that are not in memory, all at once."""
        if self._rows is not None:
            return
        assert self._place is not None
        assert self._fetch is not None
        if self._place.nbytes <= _SMALL_NBYTES:
            new = [run for run in range(-(-self.length >> _RUN_BITS) + 1) if run not in self._kept]
        else:
            new = sorted(set((indices >> _RUN_BITS).tolist()) - self._kept.keys())
        stop = self._place.offset + self._place.nbytes
        step = ROW.itemsize << _RUN_BITS
        extents = []
        for run in new:
            at = self._place.offset + run * step
            extents.append((at, max(0, min(step, stop - at))))
        if not new:
            return
        kept = {} if self.nbytes + step * len(new) > _MOST_KEPT_NBYTES else self._kept.copy()
        for run, data in zip(new, self._fetch(extents), strict=True):
            kept[run] = np.frombuffer(data, ROW)
        wanted = {run: self._kept[run] for run in set((indices >> _RUN_BITS).tolist()) & self._kept.keys()}
        self._kept = kept | wanted
        self.nbytes = sum(rows.nbytes for rows in self._kept.values())

    def offsets(self, indices: Ints) -> Ints:
        """Where records begin, in bytes from the start of the file: int64 [n]."""
        if self._words is not None:
            found: Ints = self._words[indices, 0]
            return found
        return self.rows(indices)["offset"].astype(np.int64)

    def sizes(self, indices: Ints) -> Ints:
        """The bytes of records as they are stored: int64 [n]."""
        if self.only_nbytes is not None:
            return np.full(len(indices), self.only_nbytes)
        if self._words is not None:
            found: Ints = self._words[indices, 1]
            return found
        return self.rows(indices)["nbytes"].astype(np.int64)

    def are_present(self, indices: Ints) -> npt.NDArray[np.bool_]:
        """Which samples in [0, length) have a record: bool [n]."""
        if self.is_dense:
            return np.ones(len(indices), np.bool_)
        there: npt.NDArray[np.bool_] = self.rows(indices)["flags"] & PRESENT > 0
        return there

    def all_rows(self) -> Rows:
        """The rows of all samples; a view, if they are in memory."""
        if self._rows is not None:
            return self._rows
        assert self._place is not None
        assert self._fetch is not None
        return np.frombuffer(self._fetch([self._place[:2]])[0], ROW)

    def held(self) -> Ints | None:
        """The samples that have a record: int64 [k]; None if all have one."""
        if self.is_dense:
            return None
        held = np.flatnonzero(self.all_rows()["flags"] & PRESENT)
        if len(held) != self.present:
            raise CorruptArchiveError(
                f"index.rows is damaged: it has {len(held):,} records, root.json says {self.present:,}"
            )
        return held

    @property
    def memory(self) -> Rows | None:
        """The rows, if they are in memory."""
        return self._rows


def is_compressed(flags: int) -> bool:
    """True if a record is a zstd frame."""
    return bool(flags & COMPRESSED)


def sums(samples: Ints, rows: Rows) -> npt.NDArray[np.uint32]:
    """The crc32 that each record must have: uint32 [n]."""
    found: npt.NDArray[np.uint32] = rows["crc32"] ^ format.keys(samples, rows)
    return found
