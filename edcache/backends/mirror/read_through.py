"""A copy that fills as it is read: a sparse file, and a map of the blocks that were fetched.

What is read is fetched once, by the first process of this machine that needs it, and kept. What has no room
is read from far and not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

import numpy as np

from edcache import base, storage
from edcache.backends.mirror.blocks import BLOCK_BITS, Fetcher, Opener, Pinned, blocks_of, gone
from edcache.backends.mirror.complete import complete
from edcache.backends.mirror.sidecar import locked_side
from edcache.base import ArchiveNotFoundError, CorruptArchiveError, Ints
from edcache.storage import File, Prefetch, Wrapped
from edcache.writer import LOCK_USE, PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

# If no more than this part of the blocks is missing when a copy is opened, all of them are fetched.
_REST: Final = 1 / 16


class ReadThrough(Wrapped):
    """An archive of which this machine has a copy, `data`, whole or not; messages name the origin.

    A copy that is not whole is read as an object on a server is: `by_request`.

    Safety: threads and forks; a child opens the copy, to write to it, and the origin for itself.
    """

    def __init__(
        self, pinned: Pinned, data: File, is_whole: bool, opener: Opener, limit: int | None = None
    ) -> None:
        super().__init__(data)
        self.data: File = data
        self.path = pinned.note.origin
        self.pinned = self.token = pinned
        self.by_request = not is_whole
        self.fetcher = Fetcher(pinned, data, opener, limit)
        self.ahead = None if is_whole else CopyAhead(self.fetcher)

    def size(self) -> int:
        """Bytes of the origin when it was pinned."""
        return self.pinned.note.nbytes

    def reopened(self) -> ReadThrough:
        """This copy, completed if nearly all of it is here. Another state of the origin is another copy."""
        return completed(reopened(self.pinned, self.fetcher.opener, self.fetcher.limit))

    def is_remote(self) -> bool:
        return self.by_request or self.data.is_remote()

    def are_cached(self, offsets: Sequence[int]) -> bool:
        return self.by_request or self.data.are_cached(offsets)

    def pread(self, offset: int, nbytes: int) -> bytes:
        """See `ByteSource`: fetches what is missing; StaleArchiveError if the origin has changed."""
        return bytes(self.read_many([(offset, nbytes)])[0])

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: fetches what is missing, all at once."""
        if not self.by_request or not extents:
            return self.data.read_many(extents)
        start, nbytes = np.array(extents, np.int64).T
        end = np.minimum(start + nbytes, self.size())
        if self.fetcher.obtain(np.unique(blocks_of(start, end)[1])):
            return self.data.read_many(extents)
        which, blocks = blocks_of(start, end)
        is_far = np.isin(blocks, self.fetcher.map.missing(np.unique(blocks)))
        far = [extents[k] for k in np.unique(which[is_far]).tolist()]
        fetched = zip(far, self.fetcher.read_far(far), strict=True)
        read = {extent: memoryview(data) for extent, data in fetched}
        near = [extent for extent in extents if extent not in read]
        read.update(zip(near, self.data.read_many(near), strict=True))
        return [read[extent] for extent in extents]

    def check_damaged(self, offset: int, nbytes: int) -> None:
        """See `ByteSource`: compares the bytes with those of the origin; a copy that differs is deleted."""
        here, place = self.data.path, f"bytes {offset:,} to {offset + nbytes:,}"
        try:
            (far,) = self.fetcher.read_far([(offset, nbytes)])
        except (base.ArchiveError, OSError) as error:
            raise CorruptArchiveError(
                f"{here}: {place} fail their crc32, and the original cannot be read to compare: {error}; "
                f"delete this copy, and open {self.path} again"
            ) from error
        if far != self.data.pread(offset, nbytes):
            delete(self.pinned, self.data)
            raise CorruptArchiveError(
                f"{here}: {place} of this copy are damaged, so it was deleted; open {self.path} "
                "again, which makes another"
            )

    def discard(self) -> None:
        """See `ByteSource`."""
        delete(self.pinned, self.data)

    def close(self) -> None:
        """Close the copy, which others may delete then, and the origin."""
        self.data.close()
        self.fetcher.close()


class CopyAhead(Prefetch):
    """Fetches blocks of a partial copy before they are read."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    @property
    def has_room(self) -> bool:
        return self._fetcher.has_room

    def missing(self, start: Ints, end: Ints) -> list[tuple[int, int]]:
        """See the base class: whole blocks."""
        blocks, first = np.unique(blocks_of(start, end)[1], return_index=True)
        is_missing = np.isin(blocks, self._fetcher.map.missing(blocks))
        in_order = blocks[is_missing][np.argsort(first[is_missing])]
        return [(block << BLOCK_BITS, block + 1 << BLOCK_BITS) for block in in_order.tolist()]

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See the base class."""
        blocks = np.array([start for start, _ in ranges], np.int64) >> BLOCK_BITS
        self._fetcher.obtain(np.unique(blocks), waits=False)


def reopened(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough:
    """Open a copy that is there; StaleArchiveError if it is gone."""
    file = attached(pinned, opener, limit)
    if file is None:
        raise gone(pinned)
    return file


def attached(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough | None:
    """Open a copy, whole or not, and share the lock that keeps it; None if there is none."""
    for name, is_whole in ((pinned.copy, True), (pinned.copy + PARTIAL, False), (pinned.copy, True)):
        try:
            data = File.open(name, "r")
        except ArchiveNotFoundError:
            continue
        try:
            data.share(LOCK_USE)
            # Between opening and sharing another process may have deleted it, or given it its name.
            is_there = data.is_named() and data.size() == pinned.note.nbytes
        except BaseException:
            data.close()
            raise
        if is_there:
            note_use(pinned.copy)
            return ReadThrough(pinned, data, is_whole, opener, limit)
        data.close()
    return None


def completed(file: ReadThrough) -> ReadThrough:
    """Complete a partial copy of which nearly all is here; returns the whole copy, or else the same file."""
    fetcher, copy = file.fetcher, file.pinned.copy
    blocks = np.arange(fetcher.map.count)
    if not file.by_request or len(fetcher.map.missing(blocks)) > _REST * len(blocks):
        return file
    with locked_side(copy, wait=False) as side:
        if side is None:
            return file
        try:
            if storage.exists(copy + PARTIAL):
                complete(fetcher, side)
        except (base.ArchiveError, OSError) as error:
            logger.warning("%s: it stays a partial copy: %s", copy, error)
            return file
    whole = attached(file.pinned, fetcher.opener, fetcher.limit)
    if whole is None:
        return file
    file.close()
    return whole


def delete(pinned: Pinned, data: File) -> None:
    """Delete a copy that proved damaged, unless another one is in its place or is being made."""
    with locked_side(pinned.copy, wait=False) as side:
        if side is None:
            return  # a process that completes it proves all of it
        for name in (pinned.copy, pinned.copy + PARTIAL):
            with suppress(ArchiveNotFoundError), closing(File.open(name, "r")) as there:
                if there.identity() == data.identity():
                    storage.remove(name)
                    storage.remove(pinned.copy + SIDE)
