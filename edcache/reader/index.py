"""`RecordIndex`: the rows of all samples, in memory or fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptArchiveError, Ints, Sound
from edcache.format import (
    PRESENT,
    ROW,
    Failure,
    Place,
    Root,
    Rows,
    bound,
    fits_crc32,
    salt,
    unbound_crc32,
)
from edcache.reader.extents import Extents

Row = tuple[int, int, int, int, int]
"""offset, nbytes, sum, schema and flags of a record."""

Fetch = Callable[[Sequence[tuple[int, int]], "Sequence[Sound] | None"], Sequence[memoryview]]
"""`fetch(extents, checks)` reads bytes (offset, nbytes) of the file together."""

# Rows behind a URL are fetched in runs of 256 (6 KiB), and kept up to 64 MiB; an index of up to 256 KiB is fetched
# at once.
_RUN_BITS: Final = 8
_MOST_KEPT_NBYTES: Final = 1 << 26
_SMALL_NBYTES: Final = 1 << 18
_NOWHERE: Final = Place(0, 0, 0)
# Runs, and samples of each, that are probed to see if records are in order.
_PROBED_RUNS, _PROBED_SAMPLES = 8, 256


class RecordIndex:
    """Rows of the samples [0, length).

    Args:
        rows: `format.ROW` [length] as in the file, or None if `fetch` reads them.
        place: of the rows in the file of a sealed archive.
        salt: of their sums.
        schemas, failures: of the archive. present: number of samples with a record.
        uniform: schema of all records, and their least and most bytes, as the root says; each record is checked for it.
    Attributes:
        memory: the rows, if all are in memory: none of these is of a wrong answer. place: as given.
        only_schema, least_nbytes, most_nbytes: of `uniform`; None and 0 without.
    Safety: threads and forks may use it at once; two may fetch the same rows.
    """

    def __init__(
        self,
        rows: Rows | None,
        length: int,
        present: int,
        schemas: Sequence[str],
        failures: Sequence[Failure],
        uniform: tuple[int, int, int] | None = None,
        *,
        salt: int = 0,
        place: Place = _NOWHERE,
        fetch: Fetch | None = None,
    ) -> None:
        self.length, self.present, self.schemas, self.failures = length, present, schemas, failures
        self.only_schema: int | None = None if uniform is None else uniform[0]
        self.least_nbytes, self.most_nbytes = (0, 0) if uniform is None else uniform[1:]
        self.is_dense = present == length
        self.place, self._salt, self._fetch = place, salt, fetch
        self.memory: Rows | None = None
        self._words: Ints | None = None
        self._numbers: memoryview | None = None
        self._kept: dict[int, Rows] = {}
        if rows is not None:
            self._hold(rows)

    @classmethod
    def of(cls, root: Root, extents: Extents) -> RecordIndex:
        """Make the index of a sealed archive: mapped, or fetched when it is needed."""
        said = root.length, root.present, root.schemas, root.failures, root.uniform
        own = salt(root.head.uuid, root.index.offset)
        index = cls(None, *said, salt=own, place=root.index, fetch=extents.read_many)
        if extents.view is not None:
            index._hold(index.all_rows())
        return index

    def _hold(self, rows: Rows) -> None:
        """Take the rows of all samples."""
        # Three numbers a row: offset, nbytes, and crc32, schema and flags together. A cast needs a length.
        self._numbers = rows.view("<u8").data.cast("B").cast("Q") if len(rows) else None
        self._words = rows.view("<i8").reshape(-1, 3)
        self.memory = rows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are in memory, or mapped."""
        return sum(rows.nbytes for rows in self._kept.values()) if self.memory is None else self.memory.nbytes

    # --- one row ---

    def row(self, index: int) -> Row:
        """Return (offset, nbytes, crc32, schema, flags) of a sample in [0, length)."""
        if self._numbers is not None:  # three look-ups take less than one of a numpy record
            numbers, at = self._numbers, 3 * index
            last = numbers[at + 2]
            return numbers[at], numbers[at + 1], last & 0xFFFFFFFF, last >> 32 & 0xFFFF, last >> 48
        return self.rows(np.array([index]))[0].item()  # type: ignore[no-any-return]

    def crc32_of(self, index: int, row: Row) -> int:
        """Return the crc32 of the record of a sample, from the sum of its row."""
        return unbound_crc32(index, *row[2:], self._salt)

    def has(self, index: int) -> bool:
        """True if a sample in [0, length) has a record."""
        return bool(self.row(index)[4] & PRESENT)

    # --- many rows ---

    def rows(self, indices: Ints) -> Rows:
        """Copy the rows of samples in [0, length): `format.ROW` [n]."""
        if self._words is None:
            runs = sorted(set((indices >> _RUN_BITS).tolist()))
            if self.place.nbytes > _SMALL_NBYTES and len(runs) < -(-self.length >> _RUN_BITS):
                return self._fetch_rows(indices, runs)
            self._hold(self.all_rows())
            assert self._words is not None
        # In a third of the time that numpy's records take.
        return self._words.take(indices, axis=0).view(ROW)[:, 0]

    def unbound_rows(self, indices: Ints) -> Rows:
        """Copy the rows of samples, with the crc32 of its record in each: `format.ROW` [n]."""
        return bound(indices, self.rows(indices), self._salt)

    def extent(self, index: int) -> tuple[int, int]:
        """Return the place of a row in the file of a sealed archive: offset and bytes."""
        return self.place.offset + ROW.itemsize * index, ROW.itemsize

    def keep(self, index: int, row: Row) -> None:
        """Take a row that was asked for again in the place of the one that is kept."""
        run, at = index >> _RUN_BITS, index & (1 << _RUN_BITS) - 1
        if run in self._kept:
            new = self._kept[run].copy()
            new[at] = row
            self._kept[run] = new

    def _fetch_rows(self, indices: Ints, runs: list[int]) -> Rows:
        """Copy the rows of samples from these runs; missing ones are fetched together."""
        assert self._fetch is not None
        before, (start, nbytes, _), step = self._kept, self.place, ROW.itemsize << _RUN_BITS
        new = [run for run in runs if run not in before]
        # Another thread may drop runs meanwhile: this one keeps its own.
        found = {run: before[run] for run in runs if run in before}
        if new:
            extents = [(start + run * step, min(step, nbytes - run * step)) for run in new]
            fetched = zip(new, self._fetch(extents, None), strict=True)
            found |= {run: np.frombuffer(data, ROW) for run, data in fetched}
            is_full = self.nbytes + step * len(new) > _MOST_KEPT_NBYTES
            self._kept = found if is_full else self._kept | found
        rows, run_of = np.empty(len(indices), ROW), indices >> _RUN_BITS
        for run in runs:
            chosen = run_of == run
            rows[chosen] = found[run][indices[chosen] - (run << _RUN_BITS)]
        return rows

    def offsets(self, indices: Ints) -> Ints:
        """Return the offset of each record in the file: int64 [n]."""
        if self._words is None:
            return self.rows(indices)["offset"].astype(np.int64)
        found: Ints = self._words[indices, 0]
        return found

    def chunk_size(self, chunks: int) -> int | None:
        """Return the average number of samples in a chunk; None if records are not in the order of their indices."""
        if not chunks or not self.is_dense:
            return None
        size = -(-self.length // chunks)
        runs = np.arange(0, self.length, size * -(-chunks // _PROBED_RUNS))[:, None]
        probed = np.minimum(runs + np.arange(0, size, -(-size // _PROBED_SAMPLES)), self.length - 1)
        offsets = self.offsets(probed.reshape(-1)).reshape(probed.shape)
        return size if np.all(np.diff(offsets) >= 0) else None

    def sizes(self, indices: Ints) -> Ints:
        """Return the stored bytes of each record: int64 [n]."""
        return self.rows(indices)["nbytes"].astype(np.int64)

    def are_present(self, indices: Ints) -> npt.NDArray[np.bool_]:
        """Mark the samples in [0, length) that have a record: bool [n]."""
        if self.is_dense:
            return np.ones(len(indices), np.bool_)
        there: npt.NDArray[np.bool_] = self.rows(indices)["flags"] & PRESENT > 0
        return there

    def all_rows(self) -> Rows:
        """Return the rows of all samples; a view, if they are in memory."""
        if self.memory is not None:
            return self.memory
        assert self._fetch is not None
        is_sound = fits_crc32(self.place.nbytes, self.place.crc32)
        return np.frombuffer(self._fetch([self.place[:2]], [is_sound])[0], ROW)

    def held(self) -> Ints:
        """List the samples that have a record: int64 [k]."""
        if self.is_dense:
            return np.arange(self.length)
        held = np.flatnonzero(self.all_rows()["flags"] & PRESENT)
        if len(held) != self.present:
            raise CorruptArchiveError(
                f"index.rows has {len(held):,} samples with a record, root.json says {self.present:,}; it is "
                "damaged"
            )
        return held

    def missing(self) -> Ints:
        """List the samples that have no record: int64 [k]."""
        absent = np.ones(self.length, bool)
        absent[self.held()] = False
        return np.flatnonzero(absent)
