"""`Extents`: bytes of an archive, mapped, read or requested, and read ahead; `RecordIndex`: its rows, by these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache import base, format
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
from edcache.storage import ByteSource

Row = tuple[int, int, int, int, int]
"""offset, nbytes, sum, schema and flags of a record."""

Fetch = Callable[[Sequence[tuple[int, int]], "Sequence[Sound] | None"], Sequence[memoryview]]
"""`fetch(extents, checks)` reads bytes (offset, nbytes) of the file together."""

_PROBES = 8
# Extents with smaller gaps are announced together: the kernel reads ahead that far anyway.
_GAP = 1 << 16
# After _HOT_BATCHES batches in memory, only each _HOT_STRIDE-th batch is probed.
_HOT_BATCHES, _HOT_STRIDE = 32, 16
# Rows behind a URL are fetched in runs of 256 (6 KiB), and kept up to 64 MiB; an index of up to 256 KiB is fetched
# at once.
_RUN_BITS: Final = 8
_MOST_KEPT_NBYTES: Final = 1 << 26
_SMALL_NBYTES: Final = 1 << 18
_NOWHERE: Final = Place(0, 0, 0)
# Runs, and samples of each, that are probed to see if records are in order.
_PROBED_RUNS, _PROBED_SAMPLES = 8, 256


class Extents:
    """Bytes of a file up to `nbytes`, the end of its last entry.

    A local file is mapped, so that all processes share its pages. A file on a network file system is read: mapped, it
    would be fetched page by page, and a lost connection would be a SIGBUS. A URL, or a file of some file systems,
    cannot be mapped.

    Attributes:
        view: the mapped bytes; None if the file is read.
    """

    def __init__(self, file: ByteSource, nbytes: int) -> None:
        self.file, self.nbytes = file, nbytes
        self.view: memoryview | None = None
        self._hot_batches = 0
        if not file.is_remote():
            with suppress(base.StorageError):
                self.view = file.map(nbytes)
        # Compared with itself alone: a damaged one does no harm.
        self._shown = None if self.view is None else self.view[format.UUID_PLACE]
        self._uuid = None if self._shown is None else bytes(self._shown)

    def check_same(self) -> None:
        """Raise StaleArchiveError if another archive was written over the mapped file; called behind the last use.

        Checked records are not checked again, so that a copy over an open file, as by `cp`, would pass otherwise. A
        copy writes the head first: bytes that were taken before this call are the archive's own.
        """
        if self._shown != self._uuid:
            raise base.StaleArchiveError(
                f"{self.file.path}: another archive was written over it while it was open; open it again. Give a new "
                "file its name by a rename, as `mv` does, and readers keep the old one",
                path=self.file.path,
            )

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        """Copy an extent of metadata. Later bytes may be fetched ahead."""
        if self.view is not None:
            return bytes(self.read_many([(offset, nbytes)], None if is_sound is None else [is_sound])[0])
        return self.file.pread(offset, min(nbytes, max(0, self.nbytes - offset)), is_sound)

    def read_many(
        self, extents: Sequence[tuple[int, int]], checks: Sequence[Sound] | None = None
    ) -> list[memoryview]:
        """Read several extents (offset, nbytes) together; see `ByteSource`."""
        if self.view is None:
            clipped = [(at, min(nbytes, max(0, self.nbytes - at))) for at, nbytes in extents]
            return self.file.read_many(clipped, checks)
        data = [self.view[at : at + nbytes] for at, nbytes in extents]
        if checks is not None and self.file.is_copy:
            self.file.until_sound(extents, data.copy(), checks)  # what it mends shows in the mapping
        return data

    def copied(self, places: Sequence[Place]) -> list[memoryview | None]:
        """Copy several places, which are read together; None for one that fails its crc32.

        Raises: StaleArchiveError, as `check_same`. Later no byte of another archive shows in them.
        """
        checks = [format.fits_crc32(nbytes, crc32) for _, nbytes, crc32 in places]
        data = self.read_many([(at, nbytes) for at, nbytes, _ in places], checks)
        if self.view is not None:
            data = [memoryview(bytes(one)) for one in data]
        self.check_same()
        return [one if check(one) else None for one, check in zip(data, checks, strict=True)]

    def are_cached(self, start: Ints) -> bool:
        """Probe a few of the offsets of a batch; True if they are in memory."""
        return self.file.are_cached(start[:: max(1, len(start) // _PROBES)].tolist())

    def are_cold(self, start: Ints) -> bool:
        """True if a batch is not in memory. After many that are, most are taken to be."""
        self._hot_batches += 1
        if self._hot_batches > _HOT_BATCHES and self._hot_batches % _HOT_STRIDE:
            return False
        return not self.are_cached(start)

    def announce(self, start: Ints, end: Ints) -> None:
        """Let the kernel read extents ahead."""
        self._hot_batches = 0
        order = np.argsort(start)
        start, end = start[order], np.maximum.accumulate(end[order])
        breaks = np.flatnonzero(start[1:] > end[:-1] + _GAP) + 1
        firsts = np.concatenate(([0], breaks))
        lasts = np.concatenate((breaks, [len(start)])) - 1
        # In reading order, so that the first is copied while the last is fetched.
        first_read = np.argsort(np.minimum.reduceat(order, firsts))
        firsts, lasts = firsts[first_read], lasts[first_read]
        nbytes = end[lasts] - start[firsts]
        if len(firsts) == 1:  # the dataset is read in file order: the next batch follows
            nbytes *= 2
        self.file.will_need(list(zip(start[firsts].tolist(), nbytes.tolist(), strict=True)))


class RecordIndex:
    """Rows of the samples [0, length).

    Args:
        rows: `format.ROW` [length] as in the file, or None if `fetch` reads them: all at once if `is_mapped`.
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
        is_mapped: bool = False,
    ) -> None:
        self.length, self.present, self.schemas, self.failures = length, present, schemas, failures
        self.only_schema: int | None = None if uniform is None else uniform[0]
        self.least_nbytes, self.most_nbytes = (0, 0) if uniform is None else uniform[1:]
        self.is_dense = present == length
        self.place, self._salt, self._fetch, self._is_mapped = place, salt, fetch, is_mapped
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
        is_mapped = extents.view is not None
        return cls(None, *said, salt=own, place=root.index, fetch=extents.read_many, is_mapped=is_mapped)

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
        if self._numbers is None and self._is_mapped:
            self._hold(self.all_rows())
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
            is_whole = self._is_mapped or self.place.nbytes <= _SMALL_NBYTES
            if not is_whole and len(runs) < -(-self.length >> _RUN_BITS):
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
        """Replace the row of a sample by another answer for it."""
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
