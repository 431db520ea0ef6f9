"""The blocks of a copy: which are here, and fetching those that are not.

A block is fetched by the process that has its claim, a lock that the kernel frees with its holder. Another
process that needs it meanwhile waits for that lock.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np

from edcache import base, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.evict import left_by_others
from edcache.backends.mirror.sidecar import CLAIMS, FIRST, MAP_OFFSET, ROOM, Note
from edcache.base import ArchiveNotFoundError, Ints, PerProcess, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File, Prefetch
from edcache.writer import PARTIAL, SIDE

logger = logging.getLogger("edcache")

Opener = Callable[[], ByteSource]
Extents = Sequence[tuple[int, int]]

BLOCK_BITS: Final = 18
BLOCK_NBYTES: Final = 1 << BLOCK_BITS
# Blocks that are asked of the origin in one piece, and those that are in memory at once.
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


def blocks_of(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The blocks around each extent in turn: the numbers of the extents and of the blocks, int64 [m] each."""
    low = start >> BLOCK_BITS
    counts = np.where(end > start, (end - 1 >> BLOCK_BITS) - low + 1, 0)
    which = np.repeat(np.arange(len(low)), counts)
    return which, low[which] + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def runs(blocks: Ints, gap: int = 1, most: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Split sorted numbers into half-open ranges of at most `most`, with gaps of at most `gap` inside."""
    for some in np.split(blocks, np.flatnonzero(np.diff(blocks) > gap) + 1):
        for low in range(int(some[0]), int(some[-1]) + 1, most) if len(some) else ():
            yield low, min(low + most, int(some[-1]) + 1)


class BlockMap:
    """Which blocks of a copy are here: the map in its side file, and what is known of it. Blocks never go.

    Safety: threads and forks.
    """

    def __init__(self, copy: str, nbytes: int) -> None:
        self._copy = copy
        self.count = -(-nbytes // BLOCK_NBYTES)
        self._here = np.zeros(self.count, np.uint8)
        self._side: File | None = None

    def missing(self, blocks: Ints) -> Ints:
        """Return the missing ones of these sorted blocks."""
        blocks = blocks[self._here[blocks] == 0]
        if len(blocks):
            if self._side is None:
                self._side = File.open(self._copy + SIDE, "r")
            for low, high in runs(blocks, _MAP_GAP):
                state = self._side.pread(MAP_OFFSET + low, high - low)
                self._here[low : low + len(state)] |= np.frombuffer(state, np.uint8)
            blocks = blocks[self._here[blocks] == 0]
        return blocks

    def is_in(self, side: File) -> bool:
        """True if this map is in an open side file."""
        return self._side is None or self._side.identity() == side.identity()

    def mark(self, side: File, low: int, high: int, is_here: bool = True) -> None:
        """Record whether blocks [low, high) are here."""
        side.pwrite(MAP_OFFSET + low, bytes([is_here]) * (high - low))
        self._here[low:high] = is_here

    def close(self) -> None:
        """Close the side file."""
        if self._side is not None:
            self._side.close()


class Fetcher(Prefetch):
    """Fetches blocks of a partial copy, each once for all processes of this machine, while there is room.

    Args:
        data: the copy, open for reading. opener: opens the origin. limit: bytes that the copies in its folder
            may have; None for any number. keeps_all: raise if a block cannot be kept.
    Attributes:
        map: which blocks are here.
    Safety: threads and forks; a child opens the copy, to write to it, and the origin for itself.
    """

    def __init__(
        self, pinned: Pinned, data: File, opener: Opener, limit: int | None, *, keeps_all: bool = False
    ) -> None:
        self.pinned, self.opener, self.limit, self._keeps_all = pinned, opener, limit, keeps_all
        self._data = data
        self.map = BlockMap(pinned.copy, pinned.note.nbytes)
        self._is_full = False
        self._allowed, self._looked = 0, -_SECONDS
        self._out: File | None = None
        self._origin: PerProcess[ByteSource] = PerProcess()

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

    def fetch(self, ranges: Extents) -> None:
        """See the base class."""
        self.obtain(np.unique([start >> BLOCK_BITS for start, _ in ranges]), waits=False)

    def obtain(self, blocks: Ints, *, waits: bool = True) -> bool:
        """Fetch those of sorted blocks that are missing; False if some could not be kept.

        waits: for blocks that others fetch.
        """
        kept = True
        try:
            for first in range(0, len(blocks), _AT_ONCE):
                kept &= self._obtain(blocks[first : first + _AT_ONCE], waits)
        except StorageError as error:
            # Without space, or the right, to write to the copy all that is missing is read from far.
            if self._keeps_all or error.errno not in FULL:
                raise
            self._is_full, kept = True, False
            base.warn(f"{error}; what is not here yet is read from {self.pinned.note.origin} every time")
        return kept

    def _obtain(self, blocks: Ints, waits: bool) -> bool:
        while len(missing := self.map.missing(blocks)):
            if self._is_full:
                return False
            try:
                # A descriptor for each fetch: a claim is of the open file, so threads exclude each other too,
                # and closing it ends all claims.
                side = File.open(self.pinned.copy + SIDE, "r+")
            except ArchiveNotFoundError:
                raise gone(self.pinned) from None
            with closing(side):
                if not self.map.is_in(side):
                    raise gone(self.pinned)  # begun anew: its map is of another file
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
        """Fetch missing blocks under their claims; False if some could not be kept."""
        note, out = self.pinned.note, self._opened_out()
        kept = self._with_room(side, out, blocks)
        ranges = list(runs(kept, most=RUN))
        extents = [
            (low << BLOCK_BITS, min(high << BLOCK_BITS, note.nbytes) - (low << BLOCK_BITS))
            for low, high in ranges
        ]
        fetched = self.read_far(extents)
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

    # --- room ---

    @property
    def has_room(self) -> bool:
        return not self._is_full and (self.limit is None or self._free() > 0)

    def _free(self) -> int:
        """Blocks that may come here: the limit, without the other copies in the folder and what is here."""
        assert self.limit is not None
        if time.monotonic() - self._looked >= _SECONDS:
            copy = self.pinned.copy
            others = left_by_others(os.path.dirname(copy), self.limit, self.pinned.note.nbytes, copy, [copy])
            self._allowed, self._looked = self.limit - others, time.monotonic()
        return (self._allowed - storage.allocated(self.pinned.copy + PARTIAL)) // BLOCK_NBYTES

    def _with_room(self, side: File, out: File, blocks: Ints) -> Ints:
        """Take the disk space of missing blocks; returns the first of them, as many as there is room for."""
        if self.limit is None:
            return blocks
        with side.locked(ROOM):
            kept = blocks[: max(0, self._free())]
            for low, high in runs(kept):
                start = low << BLOCK_BITS
                out.reserve(start, min(high << BLOCK_BITS, self.pinned.note.nbytes) - start)
        return kept

    def _opened_out(self) -> File:
        """The copy, open for writing; closed in a child that was forked meanwhile."""
        if self._out is None or self._out.closed:
            try:
                out = File.open(self.pinned.copy + PARTIAL, "r+")
            except ArchiveNotFoundError:
                out = File.open(self.pinned.copy, "r+")  # whole since it was opened
            if out.identity() != self._data.identity():
                out.close()
                raise gone(self.pinned)
            self._out = out
        return self._out

    # --- the origin ---

    def read_far(self, extents: Extents) -> Sequence[bytes | memoryview]:
        """Read extents from the origin; StaleArchiveError if it has changed."""
        origin = self.origin
        if len(extents) > 1:
            origin.will_need(extents)
        data = origin.read_many(extents)
        self._check_identity(origin)
        return data

    def download(self, side: File, tell: Callable[[int, int], object] | None) -> None:
        """Fetch all of an origin without ranges, by one request; as `complete`."""
        note, out = self.pinned.note, self._opened_out()
        text = "%s: the server sends no ranges of it, so all %s are fetched by one request"
        logger.warning(text, note.origin, base.human_bytes(note.nbytes))

        def write(offset: int, piece: bytes) -> None:
            out.pwrite(offset, piece)
            if tell is not None:
                tell(offset + len(piece), note.nbytes)

        self.origin.download(write)
        self.map.mark(side, 0, self.map.count)

    @property
    def origin(self) -> ByteSource:
        """The origin, open in this process."""
        return self._origin.get(self._opened_origin)

    def keep_origin(self, origin: ByteSource) -> None:
        """Read from this origin, which is open, and close it with this."""
        self._origin.get(lambda: origin)

    def _opened_origin(self) -> ByteSource:
        origin = self.opener()
        try:
            self._check_identity(origin)
        except BaseException:
            origin.close()
            raise
        return origin

    def _check_identity(self, origin: ByteSource) -> None:
        if sidecar.identity_of(origin) != self.pinned.note.identity:
            raise StaleArchiveError(
                f"{self.pinned.note.origin}: it has changed since it was opened; open it again, which begins "
                "another copy"
            )

    def close(self) -> None:
        """Close the map, the copy that is written, and the origin."""
        for source in (self.map, self._out, self._origin.pop()):
            if source is not None:
                source.close()


def gone(pinned: Pinned) -> StaleArchiveError:
    """The error for a copy that was deleted, or has another one in its place."""
    return StaleArchiveError(
        f"{pinned.copy}: this copy of {pinned.note.origin} is gone; open {pinned.note.origin} again"
    )


def _claimed(side: File, blocks: Ints) -> Ints:
    """Claim those of sorted blocks that no other process or thread has claimed."""
    mine: list[int] = []
    for low, high in runs(blocks):
        if side.try_lock(CLAIMS + low, high - low):
            mine += range(low, high)
        else:
            mine += (block for block in range(low, high) if side.try_lock(CLAIMS + block))
    return np.array(mine, np.int64)
