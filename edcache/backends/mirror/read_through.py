"""Read an archive through a copy that fills as it is read: a sparse file, and a map of its blocks.

A block that is read is fetched once, by the first process of this machine that needs it, and kept. A block
that has no room is read from far and not kept.
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
from edcache.backends.mirror.blocks import BLOCK_BITS, FULL, BlockFetcher, Opener, Origin, Pinned, blocks_of
from edcache.backends.mirror.complete import complete
from edcache.backends.mirror.evict import Budget
from edcache.backends.mirror.sidecar import Note, begun_note, locked_copy, locked_side, whole_note
from edcache.base import ArchiveNotFoundError, CorruptArchiveError, Sound, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File, Location
from edcache.writer import LOCK_USE, PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

# If no more than this part of the blocks is missing when a copy is opened, all of them are fetched.
_REST: Final = 1 / 16


class WholeCopy(ByteSource):
    """Read an archive from a whole copy on this machine, `data`; messages name the origin."""

    is_copy = True
    tries = 5

    def __init__(self, pinned: Pinned, data: File, opener: Opener, budget: Budget) -> None:
        self.data, self.origin, self.budget = data, Origin(pinned, opener), budget
        self.path = pinned.note.origin
        self.pinned = self.token = pinned

    def size(self) -> int:
        """Bytes of the origin when it was pinned."""
        return self.pinned.note.nbytes

    def identity(self) -> tuple[int, int]:
        return self.data.identity()

    def tag(self) -> tuple[object, ...]:
        return self.data.tag()

    def reopened(self) -> WholeCopy:
        """Open this copy again, completed if nearly all of it is here. Another state of the origin is another copy."""
        return _reopened(self.pinned, self.origin.opener, self.budget)

    def is_remote(self) -> bool:
        return self.data.is_remote()

    def are_cached(self, offsets: Sequence[int]) -> bool:
        return self.data.are_cached(offsets)

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        return bytes(self.read_many([(offset, nbytes)], None if is_sound is None else [is_sound])[0])

    def read_many(
        self, extents: Sequence[tuple[int, int]], checks: Sequence[Sound] | None = None
    ) -> list[memoryview]:
        data = self._read(extents)
        return data if checks is None else self.until_sound(extents, data, checks)

    def _read(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        return self.data.read_many(extents)

    def map(self, nbytes: int) -> memoryview:
        return self.data.map(nbytes)

    def will_need(self, extents: Sequence[tuple[int, int]]) -> None:
        self.data.will_need(extents)

    def ask_again(self, extents: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """See `ByteSource`: asks the origin."""
        try:
            return self.origin.ask_again(extents)
        except (base.ArchiveError, OSError) as error:
            here, (offset, nbytes) = self.data.path, extents[0]
            raise CorruptArchiveError(
                f"{here}: bytes {offset:,} to {offset + nbytes:,} fail their crc32, and the original cannot be read to "
                f"compare: {error}; delete this copy, and open {self.path} again"
            ) from error

    def check_unchanged(self) -> None:
        self.origin.check_unchanged()

    def mend(self, offset: int, data: memoryview) -> None:
        """See `ByteSource`: a whole copy stays so, as it keeps its time. A disk that refuses changes nothing."""
        copy = self.pinned.copy
        note = sidecar.note_of(copy)
        for name in (copy, copy + PARTIAL):
            with suppress(StorageError, ArchiveNotFoundError), closing(File.open(name, "r+")) as out:
                if out.identity() == self.data.identity():
                    out.pwrite(offset, data)
                    if note is not None and note.stamp is not None:
                        storage.touch(name, note.stamp[1])

    def close(self) -> None:
        """Close the copy, which others may delete then, and the origin."""
        self.data.close()
        self.origin.close()


class ReadThrough(WholeCopy):
    """Read an archive from the blocks on this machine, and fetch the others; it counts as an object on a server.

    Safety: threads and forks; a child opens the copy, to write to it, and the origin for itself.
    """

    by_request = True

    @property
    def tries(self) -> int:  # type: ignore[override]
        """See `ByteSource`: what the origin allows."""
        return self.origin.tries

    def __init__(self, pinned: Pinned, data: File, opener: Opener, budget: Budget) -> None:
        super().__init__(pinned, data, opener, budget)
        self.ahead = self.fetcher = BlockFetcher(pinned, data, self.origin, budget)

    def is_remote(self) -> bool:
        return True

    def are_cached(self, offsets: Sequence[int]) -> bool:
        return True

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        """See `ByteSource`: no block is fetched for bytes that came with the opening of the origin."""
        known = self.origin.known(offset, nbytes)
        if known is None:
            return super().pread(offset, nbytes, is_sound)
        if is_sound is None:
            return bytes(known)
        return bytes(self.until_sound([(offset, nbytes)], [known], [is_sound])[0])

    def _read(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Fetch missing blocks, all at once, and read. Raises: StaleArchiveError, the origin has changed."""
        if not extents:
            return []
        start, nbytes = np.array(extents, np.int64).T
        which, blocks = blocks_of(start, np.minimum(start + nbytes, self.size()))
        if self.fetcher.keep(np.unique(blocks)):
            return self.data.read_many(extents)
        is_far = np.isin(blocks, self.fetcher.map.missing(np.unique(blocks)))
        far = [extents[k] for k in np.unique(which[is_far]).tolist()]
        near = sorted(set(extents) - set(far))
        read = dict(zip(near, self.data.read_many(near), strict=True))
        for extent, data in zip(far, self.origin.read_many(far), strict=True):
            read[extent] = memoryview(data)
        return [read[extent] for extent in extents]

    def ask_again(self, extents: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        """See `ByteSource`: asks the origin, whose errors are told as they are."""
        return self.origin.ask_again(extents)

    def mend(self, offset: int, data: memoryview) -> None:
        """See `ByteSource`: writes over blocks that are here; others are fetched when they are read next."""
        blocks = np.arange(offset >> BLOCK_BITS, (offset + len(data) - 1 >> BLOCK_BITS) + 1)
        if not len(self.fetcher.map.missing(blocks)):
            super().mend(offset, data)

    def close(self) -> None:
        super().close()
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
    budget = Budget.of(max_bytes, folder)
    if token is not None:
        return _reopened(token, where.open, budget)
    try:
        origin = where.open()
    except (StorageError, ArchiveNotFoundError) as error:
        # An answer that it is gone is no failure to reach it.
        if where.has_query or (where.by_request and isinstance(error, ArchiveNotFoundError)):
            raise
        return _without_origin(where, folder, error)
    with base.on_error(origin.close):
        return _opened(where, origin, budget, is_share=isinstance(max_bytes, float))


def _opened(where: Location, origin: ByteSource, budget: Budget, *, is_share: bool) -> ByteSource:
    """Open the copy of an open origin; begin one if there is none. is_share: the limit is one of the disk."""
    copy, note = _named(where, budget.folder, sidecar.identity_of(origin))
    while (file := None if note is None else _attached(Pinned(copy, note), where.open, budget)) is None:
        note = _begun(where, origin, copy, budget)
        if note is None:
            return origin
        if is_share and budget.limit is not None:
            text = "%s: what is read is kept in %s, at most %s for all copies there; local= and max_bytes= "
            text += "choose others, local=False reads without a copy"
            logger.warning(text, where.path, budget.folder, base.human_bytes(budget.limit))
    if not isinstance(file, ReadThrough):
        origin.close()
        return file
    file.origin.keep(origin)
    return _completed(file)


def _named(where: Location, folder: str, identity: sidecar.Identity) -> tuple[str, Note | None]:
    """Return the path for the copy of one state of an archive, and the note of a copy that is there."""
    copy = os.path.join(folder, os.path.basename(where.path))
    note = whole_note(copy)
    if note is not None and note.identity == identity:  # made by copy_to_local
        return copy, note
    stem, ending = os.path.splitext(copy)
    key = hashlib.sha256(json.dumps([where.path, identity]).encode()).hexdigest()[:16]
    copy = f"{stem}-{key}{ending}"
    return copy, whole_note(copy) or begun_note(copy)


def _begun(where: Location, origin: ByteSource, copy: str, budget: Budget) -> Note | None:
    """Begin a copy of an open origin; None if it is not sealed, or if the folder cannot be written."""
    identity = sidecar.identity_of(origin)
    note = sidecar.note_of_origin(origin)
    if note is None:
        return None
    if note.identity != identity:
        raise StaleArchiveError(f"{where.path}: it changed while it was opened; open it again")
    try:
        storage.make_parent(copy)
        with locked_copy(copy, note):
            pass
    except StorageError as error:
        if error.errno not in FULL:
            raise
        base.warn(f"{error}; {where.path} is read without a copy", once=budget.folder)
        return None
    return note


def _without_origin(where: Location, folder: str, error: Exception) -> WholeCopy:
    """Open the newest whole copy of an origin that cannot be reached; raises the error if there is none."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    copies = [os.path.join(folder, name.removesuffix(SIDE)) for name in names if name.endswith(SIDE)]
    found = [Pinned(copy, note) for copy in copies if (note := whole_note(copy)) is not None]
    for pinned in sorted(found, key=lambda one: one.note.stamp[1] if one.note.stamp else 0, reverse=True):
        file = _attached(pinned, where.open, Budget(folder)) if pinned.note.origin == where.path else None
        if file is not None:
            logger.warning("%s: reading its copy %s: %s", where.path, pinned.copy, error)
            return file
    raise error


def _reopened(pinned: Pinned, opener: Opener, budget: Budget) -> WholeCopy:
    """Open a copy that is there; StaleArchiveError if it is gone."""
    file = _attached(pinned, opener, budget)
    if file is None:
        raise pinned.gone()
    return _completed(file)


def _attached(pinned: Pinned, opener: Opener, budget: Budget) -> WholeCopy | None:
    """Open a copy of this state, whole or not, and share the lock that keeps it; None if there is none."""
    copy = pinned.copy
    whole, begun = (whole_note, copy, WholeCopy), (begun_note, copy + PARTIAL, ReadThrough)
    # It may become whole between the first look and the second.
    for look, name, kind in (whole, begun, whole):
        if not pinned.note.is_like(look(copy)):
            continue
        with suppress(ArchiveNotFoundError):
            data = File.open(name, "r")
            with base.on_error(data.close):
                data.share(LOCK_USE)
                file = kind(pinned, data, opener, budget)
                # Between opening and sharing another process may have deleted it, or given it its name.
                if data.is_named() and data.size() == pinned.note.nbytes:
                    note_use(copy)
                    return file
            file.close()
    return None


def _completed(file: WholeCopy) -> WholeCopy:
    """Complete a copy if few blocks are missing; returns the whole copy, or else the same file."""
    if not isinstance(file, ReadThrough):
        return file
    fetcher, copy = file.fetcher, file.pinned.copy
    blocks = np.arange(fetcher.map.count)
    if len(fetcher.map.missing(blocks)) > _REST * len(blocks):
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
    whole = _attached(file.pinned, file.origin.opener, file.budget)
    if whole is None:
        return file
    file.close()
    return whole
