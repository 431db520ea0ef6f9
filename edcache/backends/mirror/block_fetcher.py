"""The blocks of a copy that fills as it is read: who fetches which, where there is room, and from where.

Who fetches a block has its claim, a lock that the kernel frees with its holder; who needs it meanwhile waits
for that. Where `max_bytes` allows less than the archive, blocks go again (`room`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import base, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.block_map import BlockMap
from edcache.backends.mirror.copy import THREADS
from edcache.backends.mirror.fetch import Fetch, read_many
from edcache.backends.mirror.room import BLOCK_BITS, Room, claimed, runs
from edcache.backends.mirror.sidecar import CLAIMS, ROOM, Side, Version
from edcache.base import ArchiveNotFoundError, PerProcess, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File
from edcache.writer import PARTIAL, SIDE

Opener = Callable[[], ByteSource]
Ints = npt.NDArray[np.int64]

# Blocks that are asked of the origin in one piece.
_RUN: Final = 16
_FULL: Final = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, errno.EROFS, errno.EACCES)


class Pinned(NamedTuple):
    """What names a copy to other processes: `copy` is its path once it is whole."""

    source: str
    copy: str
    version: Version


class BlockFetcher:
    """Fetches blocks of a copy, each once for all processes of this machine, and keeps what has room.

    Args:
        data: the copy, open to be read. opener: opens the origin. limit: bytes that copies in its folder may
            have, None for any number.
    Attributes:
        blocks: which of them are here. room: None where what is here stays. is_full: nothing can be kept.
    Safety: threads and forks; a child opens for itself what it writes to, and the origin.
    """

    def __init__(
        self, pinned: Pinned, data: File, is_partial: bool, opener: Opener, limit: int | None
    ) -> None:
        self.pinned, self.opener, self.limit = pinned, opener, limit
        self._data, self._is_partial, self._nbytes = data, is_partial, pinned.version.nbytes
        self.blocks = BlockMap(pinned.copy, self._nbytes)
        # Where the whole archive fits, what it has stays, whoever reads it.
        self.room = Room(pinned.copy, self._nbytes, limit) if is_partial and limit is not None else None
        self.is_full = False
        self._out: File | None = None
        self._origin: PerProcess[ByteSource] = PerProcess()

    @property
    def holds_all(self) -> bool:
        """Whether there is room for the whole archive."""
        return self.room is None or self.room.holds_all()

    def obtain(
        self,
        blocks: Sequence[int],
        again: bool = False,
        worth: Collection[int] | None = None,
        waits: bool = True,
    ) -> bool:
        """Have rising blocks here, by fetching them or by waiting for who does; False where not all are kept.

        Args:
            again: fetch them whether they are here or not. worth: for which of them others may be freed.
            waits: for those that others fetch.
        """
        while missing := list(blocks) if again else self.blocks.missing(blocks):
            if self.is_full and not again:
                return False
            try:
                # A descriptor for each fetch: a claim is of the open file, so that threads exclude each other
                # too, and closing it ends all claims.
                side = File.open(self.pinned.copy + SIDE, "r+")
            except StorageError as error:
                self._keep_no_more(error)
                return False
            with closing(side):
                mine = claimed(side, missing, wait=again)
                if not mine and waits:
                    side.lock(CLAIMS + missing[0])
                # It may have been fetched between the look and the claim.
                lacking = self.blocks.missing(mine)
                if not self._fetch(side, mine if again else lacking, None if again else worth, not waits):
                    return False
            if len(mine) == len(missing) or not waits:
                break
        return True

    def obtain_again(self, blocks: Sequence[int]) -> bool:
        """Fetch rising blocks that are here and wrong; whether that was possible."""
        before = self._data.stamp()
        is_mended = bool(blocks) and self.obtain(blocks, again=True)
        if is_mended and not self._is_partial:
            # The side file knows the copy by its time; where another process copies anew it need not.
            with sidecar.locked_side(self.pinned.copy, wait=False) as side:
                note = None if side is None else side.read()
                version = None if note is None else note.version_of(before)
                if side is not None and version is not None:
                    side.replace(version, version._replace(stamp=self._data.stamp()))
        return is_mended

    def complete(self, side: Side) -> None:
        """Fetch and prove all that lacks, and give the copy its name, under the lock of its side file."""
        copy, note = self.pinned.copy, side.read()
        if note is None or storage.exists(copy):
            return  # what has its name is a copy no more: somebody has changed it
        origin = self.origin()
        with closing(File.open(copy + PARTIAL, "r+")) as partial, side.file.locked(ROOM):
            Fetch(origin, THREADS).into(partial)
            self.check_identity(origin)
            side.publish(partial, copy, note._replace(versions=note.versions[:1]))

    def read_far(self, extents: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """What extents hold, from the origin; StaleArchiveError where it has changed."""
        origin = self.origin()
        data = read_many(origin, extents)
        self.check_identity(origin)
        return data

    def keep_origin(self, origin: ByteSource) -> None:
        """Read from this one, which is open; it is closed with this."""
        self._origin.get(lambda: origin)

    def origin(self) -> ByteSource:
        """The origin, as this process has it open."""

        def opened() -> ByteSource:
            origin = self.opener()
            try:
                self.check_identity(origin)
            except BaseException:
                origin.close()
                raise
            return origin

        return self._origin.get(opened)

    def check_identity(self, origin: ByteSource) -> None:
        """Raise StaleArchiveError where the origin is not what was pinned."""
        if sidecar.identity_of(origin) != self.pinned.version.identity:
            raise StaleArchiveError(
                f"{self.pinned.source}: it has changed since it was opened; open it again, which begins "
                "another copy"
            )

    def close(self) -> None:
        """Let go of what it has open: the map, the copy to be written, the origin."""
        for source in (self.blocks, self._out, self._origin.pop()):
            if source is not None:
                source.close()

    def _keep_no_more(self, error: StorageError) -> None:
        """Go on where there is no room, or no right, to write to a copy that is not whole; else raise it."""
        if not self._is_partial or error.errno not in _FULL:
            raise error
        self.is_full = True
        base.warn(f"{error}; what is not here yet is read from {self.pinned.source} every time")

    def _fetch(self, side: File, blocks: list[int], worth: Collection[int] | None, is_ahead: bool) -> bool:
        """Fetch rising blocks, of which the caller has the claims and has just looked at the map.

        Gives whether all are here now.
        """
        kept = blocks
        if blocks and self.room is not None:
            try:
                kept = self.room.take(side, self.open_out(), blocks, worth, is_ahead)
            except StorageError as error:
                self._keep_no_more(error)
                return False
        if not kept:
            return not blocks
        ranges = list(runs(kept, _RUN))
        starts = [(low << BLOCK_BITS, min(high << BLOCK_BITS, self._nbytes)) for low, high in ranges]
        extents = [(start, end - start) for start, end in starts]
        fetched = self.read_far(extents)
        for (offset, nbytes), data in zip(extents, fetched, strict=True):
            if len(data) < nbytes:
                raise StorageError(
                    f"{self.pinned.source}: got {len(data):,} of {nbytes:,} bytes at offset {offset:,}; "
                    "read again"
                )
        try:
            out = self.open_out()
            for (low, high), data in zip(ranges, fetched, strict=True):
                out.pwrite(low << BLOCK_BITS, data)
                if self._is_partial:
                    # Behind its bytes: who is killed in between has fetched for nothing, and that is all.
                    self.blocks.mark(side, low, high)
        except StorageError as error:
            self._keep_no_more(error)
            return False
        return len(kept) == len(blocks)

    def open_out(self) -> File:
        """The copy, to be written; closed in a child that was forked meanwhile."""
        if self._out is None or self._out.closed:
            # Its name may have been that of a partial copy when this one was opened.
            try:
                out = File.open(self.pinned.copy, "r+")
            except ArchiveNotFoundError:
                out = File.open(self.pinned.copy + PARTIAL, "r+")
            if out.identity() != self._data.identity():
                raise StaleArchiveError(f"{out.path}: another copy is here now; open it again")
            self._out = out
        return self._out
