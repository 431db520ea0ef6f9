"""Read an archive through a copy that fills as it is read: a sparse file, and a map of its blocks.

What is read is fetched once, by the first process of this machine that needs it, and kept. What has no room
is read from far and not kept.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

import numpy as np

from edcache import base, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.blocks import FULL, Fetcher, Opener, Pinned, blocks_of, gone
from edcache.backends.mirror.complete import THREADS, complete, state_of
from edcache.backends.mirror.copy import Copying
from edcache.backends.mirror.evict import limit_of
from edcache.backends.mirror.sidecar import Note, locked_copy, locked_side, notes_of, whole_note
from edcache.base import ArchiveNotFoundError, CorruptArchiveError, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File, Location
from edcache.writer import LOCK_USE, PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

# If no more than this part of the blocks is missing when a copy is opened, all of them are fetched.
_REST: Final = 1 / 16
# The last blocks, with the index and the labels, are fetched with the first one when a copy is begun.
_TAIL_BLOCKS: Final = 2


class ReadThrough(ByteSource):
    """An archive of which this machine has a copy, `data`, whole or not; messages name the origin.

    A copy that is not whole is read as an object on a server is: `by_request`.

    Safety: threads and forks; a child opens the copy, to write to it, and the origin for itself.
    """

    is_copy = True

    def __init__(
        self, pinned: Pinned, data: File, is_whole: bool, opener: Opener, limit: int | None = None
    ) -> None:
        self.data = data
        self.path = pinned.note.origin
        self.pinned = self.token = pinned
        self.by_request = not is_whole
        self.fetcher = Fetcher(pinned, data, opener, limit)
        self.ahead = None if is_whole else self.fetcher

    def size(self) -> int:
        """Bytes of the origin when it was pinned."""
        return self.pinned.note.nbytes

    def identity(self) -> tuple[int, int]:
        return self.data.identity()

    def tag(self) -> tuple[object, ...]:
        return self.data.tag()

    def reopened(self) -> ReadThrough:
        """This copy, completed if nearly all of it is here. Another state of the origin is another copy."""
        return _reopened(self.pinned, self.fetcher.opener, self.fetcher.limit)

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
        which, blocks = blocks_of(start, np.minimum(start + nbytes, self.size()))
        if self.fetcher.obtain(np.unique(blocks)):
            return self.data.read_many(extents)
        is_far = np.isin(blocks, self.fetcher.map.missing(np.unique(blocks)))
        far = [extents[k] for k in np.unique(which[is_far]).tolist()]
        near = sorted(set(extents) - set(far))
        read = dict(zip(near, self.data.read_many(near), strict=True))
        for extent, data in zip(far, self.fetcher.read_far(far), strict=True):
            read[extent] = memoryview(data)
        return [read[extent] for extent in extents]

    def map(self, nbytes: int) -> memoryview:
        return self.data.map(nbytes)

    def will_need(self, extents: Sequence[tuple[int, int]]) -> None:
        self.data.will_need(extents)

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
            self.discard()
            raise CorruptArchiveError(
                f"{here}: {place} of this copy are damaged, so it was deleted; open {self.path} "
                "again, which makes another"
            )

    def discard(self) -> None:
        """See `ByteSource`: unless another copy is in its place, or is being made."""
        copy = self.pinned.copy
        with locked_side(copy, wait=False) as side:
            if side is None:
                return  # a process that completes it proves all of it
            for name in (copy, copy + PARTIAL):
                with suppress(ArchiveNotFoundError), closing(File.open(name, "r")) as there:
                    if there.identity() == self.data.identity():
                        storage.remove(name)
                        storage.remove(copy + SIDE)

    def close(self) -> None:
        """Close the copy, which others may delete then, and the origin."""
        self.data.close()
        self.fetcher.close()


def open_copy(
    where: Location, token: Pinned | None, *, folder: str, max_bytes: int | float | str | None = None
) -> ByteSource:
    """Open an archive by its copy in a folder, which begins empty and fills as it is read.

    Args:
        where: the archive. token: of a copy that another process has open: the origin is not looked at then.
        folder: created if absent. max_bytes: as in `copy_to_local`.
    Returns:
        The copy; the archive itself if it is not sealed, or if nothing can be written to the folder.
    Raises:
        ArchiveNotFoundError, StorageError: the archive is not there; nor, if it cannot be reached, is a whole
        copy of it. StaleArchiveError: the copy with this token is gone.
    """
    limit = limit_of(max_bytes, folder)
    if token is not None:
        return _reopened(token, where.open, limit)
    try:
        origin = where.open()
    except (StorageError, ArchiveNotFoundError) as error:
        # An answer that it is gone is no failure to reach it.
        if where.has_query or (where.by_request and isinstance(error, ArchiveNotFoundError)):
            raise
        return _without_origin(where, folder, error)
    try:
        return _opened(where, folder, limit, origin, is_share=isinstance(max_bytes, float))
    except BaseException:
        origin.close()
        raise


def _opened(
    where: Location, folder: str, limit: int | None, origin: ByteSource, *, is_share: bool
) -> ByteSource:
    """Open the copy of an open origin; begin one if there is none. is_share: the limit is one of the disk."""
    identity = sidecar.identity_of(origin)
    copy = os.path.join(folder, os.path.basename(where.path))
    note = whole_note(copy)
    if note is None or note.identity != identity:
        stem, ending = os.path.splitext(copy)
        key = hashlib.sha256(json.dumps([where.path, identity]).encode()).hexdigest()[:16]
        copy = f"{stem}-{key}{ending}"
        notes = notes_of(copy)
        note = notes.whole or notes.begun
    is_new = False
    while (file := None if note is None else _attached(Pinned(copy, note), where.open, limit)) is None:
        note = state_of(origin)
        if note is None:
            return origin
        if note.identity != identity:
            raise StaleArchiveError(f"{where.path}: it changed while it was opened; open it again")
        try:
            storage.make_parent(copy)
            if not origin.has_ranges:
                Copying(copy, folder, THREADS, limit, [copy]).copy_from(origin)
                continue
            with locked_copy(copy, note):
                is_new = True
        except StorageError as error:
            if error.errno not in FULL:
                raise
            base.warn(f"{error}; {where.path} is read without a copy", once=folder)
            return origin
        if is_share and limit is not None:
            text = "%s: what is read is kept in %s, at most %s for all copies there; local= and max_bytes= "
            text += "choose others, local=False reads without a copy"
            logger.warning(text, where.path, folder, base.human_bytes(limit))
    if file.by_request:
        file.fetcher.keep_origin(origin)
    else:
        origin.close()
    if is_new:
        count = file.fetcher.map.count
        file.fetcher.obtain(np.unique([0, *range(max(0, count - _TAIL_BLOCKS), count)]))
    return _completed(file)


def _without_origin(where: Location, folder: str, error: Exception) -> ReadThrough:
    """Open the newest whole copy of what cannot be reached; raises the error if there is none."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    copies = [os.path.join(folder, name.removesuffix(SIDE)) for name in names if name.endswith(SIDE)]
    found = [Pinned(copy, note) for copy in copies if (note := whole_note(copy)) is not None]
    for pinned in sorted(found, key=lambda one: one.note.stamp[1] if one.note.stamp else 0, reverse=True):
        file = _attached(pinned, where.open, None) if pinned.note.origin == where.path else None
        if file is not None:
            logger.warning("%s: reading its copy %s: %s", where.path, pinned.copy, error)
            return file
    raise error


def _reopened(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough:
    """Open a copy that is there; StaleArchiveError if it is gone."""
    file = _attached(pinned, opener, limit)
    if file is None:
        raise gone(pinned)
    return _completed(file)


def _attached(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough | None:
    """Open a copy of this state, whole or not, and share the lock that keeps it; None if there is none."""
    copy = pinned.copy
    for name, is_whole in ((copy, True), (copy + PARTIAL, False), (copy, True)):
        note: Note | None = whole_note(copy) if is_whole else notes_of(copy).begun
        if note is None or not note.is_like(pinned.note):
            continue
        with suppress(ArchiveNotFoundError):
            data = File.open(name, "r")
            try:
                data.share(LOCK_USE)
                # Between opening and sharing another process may have deleted it, or given it its name.
                if data.is_named() and data.size() == note.nbytes:
                    note_use(copy)
                    return ReadThrough(pinned, data, is_whole, opener, limit)
            except BaseException:
                data.close()
                raise
            data.close()
    return None


def _completed(file: ReadThrough) -> ReadThrough:
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
    whole = _attached(file.pinned, fetcher.opener, fetcher.limit)
    if whole is None:
        return file
    file.close()
    return whole
