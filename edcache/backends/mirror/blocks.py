"""Blocks of a copy: a map of the ones that are here, and fetching of the others.

A block that a read needs is, in turn:

1. looked up in the map, a byte for each block, which all processes of this machine share;
2. claimed, by a lock on its byte of the side file, which the kernel frees with its holder. Another process that needs
   it waits for that lock, and looks again; a look-ahead passes on;
3. given room, if the copies of the folder have a limit: others are evicted, or it is read from far and not kept;
4. fetched, written, and then marked in the map.

A process that is killed between writing and marking has fetched for nothing. A power cut may leave a mark without its
bytes; the crc32s of the archive show that, before a copy counts as whole (`complete`) and at each read.

What must never happen: that a block is marked before its bytes are written; that blocks of two states of the origin
stand in one copy, so its identity is compared after every read of it.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np

from edcache import base, storage
from edcache.backends import LEAST_TRIES
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.evict import Budget
from edcache.backends.mirror.sidecar import CLAIMS, FIRST, MAP_OFFSET, ROOM, Note
from edcache.base import ArchiveNotFoundError, Ints, PerProcess, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File, Prefetch
from edcache.writer import PARTIAL, SIDE

logger = logging.getLogger("edcache")

Opener = Callable[[], ByteSource]
ByteRanges = Sequence[tuple[int, int]]

BLOCK_BITS: Final = 18
BLOCK_NBYTES: Final = 1 << BLOCK_BITS
# Blocks of one read of the origin, and blocks in memory at once.
RUN, _AT_ONCE = 16, 256
# Bytes of the map with smaller gaps are read together.
_MAP_GAP: Final = 1 << 12
FULL: Final = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, errno.EROFS, errno.EACCES)
# Seconds between two walks of the folder, which sum up the bytes of its other copies.
_SECONDS: Final = 5.0


class Pinned(NamedTuple):
    """A copy, for other processes: `copy` is its path once it is whole."""

    copy: str
    note: Note

    def gone(self) -> StaleArchiveError:
        """Return the error for a copy that was deleted, or has another one in its place."""
        origin = self.note.origin
        return StaleArchiveError(f"{self.copy}: this copy of {origin} is gone; open {origin} again")


def blocks_of(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """List the blocks of each extent in turn: numbers of extents and of blocks, int64 [m] each."""
    low = start >> BLOCK_BITS
    counts = np.where(end > start, (end - 1 >> BLOCK_BITS) - low + 1, 0)
    extents = np.repeat(np.arange(len(low)), counts)
    return extents, low[extents] + np.arange(len(extents)) - np.repeat(np.cumsum(counts) - counts, counts)


def runs(blocks: Ints, gap: int = 1, most: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Split sorted numbers into half-open ranges of at most `most`, with gaps of at most `gap` inside."""
    for some in np.split(blocks, np.flatnonzero(np.diff(blocks) > gap) + 1):
        for low in range(int(some[0]), int(some[-1]) + 1, most) if len(some) else ():
            yield low, min(low + most, int(some[-1]) + 1)


class Origin:
    """The origin of a copy, which each process opens at its first read.

    Safety: threads and forks.
    """

    def __init__(self, pinned: Pinned, opener: Opener) -> None:
        self.opener, self._note = opener, pinned.note
        self._source: PerProcess[ByteSource] = PerProcess()
        self._first: ByteSource | None = None

    @property
    def source(self) -> ByteSource:
        """The origin, open in this process."""
        return self._source.get(self._opened)

    def keep(self, source: ByteSource) -> None:
        """Read from this source, which is open, and close it with this."""
        self._first = self._source.get(lambda: source)

    def read_many(self, extents: ByteRanges) -> Sequence[bytes | memoryview]:
        """Read extents; StaleArchiveError if the origin has changed."""
        source = self.source
        if len(extents) > 1:
            source.will_need(extents)
        data = source.read_many(extents)
        self._check_identity(source)
        return data

    @property
    def tries(self) -> int:
        """See `ByteSource`."""
        return max(LEAST_TRIES, self.source.tries)

    def ask_again(self, extents: ByteRanges) -> Sequence[bytes | memoryview]:
        """Read extents past all that is kept of them."""
        source = self.source
        data = source.ask_again(extents)
        self._check_identity(source)
        return data

    def check_unchanged(self) -> None:
        """See `ByteSource`."""
        self.source.check_unchanged()

    def known(self, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes that came with its opening, also in a forked child; None for others."""
        return None if self._first is None else self._first.known(offset, nbytes)

    def _opened(self) -> ByteSource:
        source = self.opener()
        with base.on_error(source.close):
            self._check_identity(source)
        return source

    def _check_identity(self, source: ByteSource) -> None:
        if sidecar.identity_of(source) != self._note.identity:
            raise StaleArchiveError(
                f"{self._note.origin}: it has changed since it was opened; open it again, which begins "
                "another copy"
            )

    def close(self) -> None:
        """Close what this process has open of it."""
        source = self._source.pop()
        if source is not None:
            source.close()


class BlockMap:
    """The map of the blocks of a copy that are here, in its side file. Blocks never go.

    Safety: threads and forks.
    """

    def __init__(self, copy: str, nbytes: int) -> None:
        self.count = -(-nbytes // BLOCK_NBYTES)
        self._here = np.zeros(self.count, np.uint8)
        self._side = File.open(copy + SIDE, "r")

    def missing(self, blocks: Ints) -> Ints:
        """Return the missing ones of these sorted blocks."""
        blocks = blocks[self._here[blocks] == 0]
        if len(blocks):
            for low, high in runs(blocks, _MAP_GAP):
                state = self._side.pread(MAP_OFFSET + low, high - low)
                self._here[low : low + len(state)] |= np.frombuffer(state, np.uint8)
            blocks = blocks[self._here[blocks] == 0]
        return blocks

    def is_in(self, side: File) -> bool:
        """True if this map is in an open side file."""
        return self._side.identity() == side.identity()

    def mark(self, side: File, low: int, high: int, is_here: bool = True) -> None:
        """Record whether blocks [low, high) are here."""
        side.pwrite(MAP_OFFSET + low, bytes([is_here]) * (high - low))
        self._here[low:high] = is_here

    def close(self) -> None:
        """Close the side file."""
        self._side.close()


class BlockFetcher(Prefetch):
    """Fetches blocks of a copy that is begun, each once for all processes of this machine.

    Args:
        data: the copy, open for reading. budget: of its folder; the copies in it are never more.
    Attributes:
        map: of the blocks that are here.
    Safety: threads and forks; a child opens the copy, to write to it, and the origin for itself.
    """

    def __init__(self, pinned: Pinned, data: File, origin: Origin, budget: Budget) -> None:
        self.pinned, self.origin, self.budget = pinned, origin, budget
        self.map = BlockMap(pinned.copy, pinned.note.nbytes)
        self._data = data
        self._out: File | None = None
        self._is_refused = False  # once true it stays so: the disk is full, or cannot be written
        self._allowed, self._looked = 0, -_SECONDS

    # --- look-ahead ---

    def hold(self) -> File:
        """See the base class."""
        side = File.open(self.pinned.copy + SIDE, "r")
        side.share(FIRST)
        return side

    def is_held(self) -> bool:
        """See the base class."""
        with closing(File.open(self.pinned.copy + SIDE, "r")) as side:
            return side.is_locked(FIRST, 1)

    def missing(self, start: Ints, end: Ints) -> list[tuple[int, int]]:
        """See the base class: whole blocks."""
        blocks, first = np.unique(blocks_of(start, end)[1], return_index=True)
        is_missing = np.isin(blocks, self.map.missing(blocks))
        in_order = blocks[is_missing][np.argsort(first[is_missing])]
        return [(block << BLOCK_BITS, block + 1 << BLOCK_BITS) for block in in_order.tolist()]

    def fetch(self, ranges: ByteRanges) -> None:
        """See the base class."""
        self.keep(np.unique([start >> BLOCK_BITS for start, _ in ranges]), waits=False)

    # --- blocks ---

    def keep(self, blocks: Ints, *, waits: bool = True) -> bool:
        """Fetch blocks as `obtain`; a disk that takes no more is a warning, and no room from then on."""
        try:
            return self.obtain(blocks, waits=waits)
        except StorageError as error:
            if error.errno not in FULL:
                raise
            self._is_refused = True
            base.warn(f"{error}; what is not here yet is read from {self.pinned.note.origin} every time")
            return False

    def obtain(self, blocks: Ints, *, waits: bool = True) -> bool:
        """Fetch the missing ones of sorted blocks; False if there is no room for some.

        waits: True waits for blocks that other processes fetch now; False leaves them out.
        """
        kept = True
        for first in range(0, len(blocks), _AT_ONCE):
            kept &= self._obtain(blocks[first : first + _AT_ONCE], waits)
        return kept

    def _obtain(self, blocks: Ints, waits: bool) -> bool:
        while len(missing := self.map.missing(blocks)):
            if not self.has_room:
                return False
            try:
                # A descriptor for each fetch: a claim is of the open file, so threads exclude each other too,
                # and closing it ends all claims.
                side = File.open(self.pinned.copy + SIDE, "r+")
            except ArchiveNotFoundError:
                raise self.pinned.gone() from None
            with closing(side):
                if not self.map.is_in(side):
                    raise self.pinned.gone()  # begun anew: its map is of another file
                mine = _claimed(side, missing)
                if not len(mine) and waits:
                    side.lock(CLAIMS + int(missing[0]))
                # Blocks may have been fetched between the look and the claim.
                mine = self.map.missing(mine)
                if len(mine) and not self._fetch(side, mine):
                    return False
            if not waits:
                break
        return True

    def _fetch(self, side: File, blocks: Ints) -> bool:
        """Fetch missing blocks under their claims; False if there is no room for some."""
        note, out = self.pinned.note, self._opened_out()
        kept = self._with_room(side, out, blocks)
        ranges = list(runs(kept, most=RUN))
        extents = [
            (low << BLOCK_BITS, min(high << BLOCK_BITS, note.nbytes) - (low << BLOCK_BITS))
            for low, high in ranges
        ]
        fetched = self.origin.read_many(extents)
        for (offset, nbytes), data in zip(extents, fetched, strict=True):
            if len(data) < nbytes:
                raise StorageError(
                    f"{note.origin}: got {len(data):,} of {nbytes:,} bytes at offset {offset:,}; read again"
                )
        for (low, high), data in zip(ranges, fetched, strict=True):
            out.pwrite(low << BLOCK_BITS, data)
            # After its bytes: a process that is killed in between has fetched for nothing, and no more.
            self.map.mark(side, low, high)
        return len(kept) == len(blocks)

    def _opened_out(self) -> File:
        """Return the copy, open for writing; a child that was forked meanwhile opens it for itself."""
        if self._out is None or self._out.closed:
            try:
                out = File.open(self.pinned.copy + PARTIAL, "r+")
            except ArchiveNotFoundError:
                out = File.open(self.pinned.copy, "r+")  # whole since it was opened
            if out.identity() != self._data.identity():
                out.close()
                raise self.pinned.gone()
            self._out = out
        return self._out

    # --- room ---

    @property
    def has_room(self) -> bool:
        return not self._is_refused and (self.budget.limit is None or self._free(self.budget.limit) > 0)

    def _free(self, limit: int) -> int:
        """Count the blocks that may come here: the limit, without the other copies and what is here."""
        if time.monotonic() - self._looked >= _SECONDS:
            others = self.budget.evict_others(self.pinned.copy, self.pinned.note.nbytes)
            self._allowed, self._looked = limit - others, time.monotonic()
        return (self._allowed - storage.allocated(self.pinned.copy + PARTIAL)) // BLOCK_NBYTES

    def _with_room(self, side: File, out: File, blocks: Ints) -> Ints:
        """Take the disk space of missing blocks; returns the first of them, as many as there is room for."""
        if self.budget.limit is None:
            return blocks
        with side.locked(ROOM):
            kept = blocks[: max(0, self._free(self.budget.limit))]
            for low, high in runs(kept):
                start = low << BLOCK_BITS
                out.reserve(start, min(high << BLOCK_BITS, self.pinned.note.nbytes) - start)
        return kept

    def close(self) -> None:
        """Close the map, the copy that is written, and the origin."""
        for source in (self.map, self._out, self.origin):
            if source is not None:
                source.close()


def _claimed(side: File, blocks: Ints) -> Ints:
    """Lock the blocks that no other process or thread has locked, and return them; all are sorted."""
    mine: list[int] = []
    for low, high in runs(blocks):
        if side.try_lock(CLAIMS + low, high - low):
            mine += range(low, high)
        else:
            mine += (block for block in range(low, high) if side.try_lock(CLAIMS + block))
    return np.array(mine, np.int64)
