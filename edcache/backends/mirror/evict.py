"""Which copies a folder has, who has them open, and which of them go when there is too little room."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from contextlib import closing, suppress
from typing import Final, NamedTuple

from edcache import base, storage
from edcache.backends.mirror.sidecar import LOCK_COPY, locked_side, notes_of, stamp_of
from edcache.base import ArchiveNotFoundError, OptionError, StorageError, human_bytes
from edcache.storage import File
from edcache.writer import LOCK_USE, PARTIAL, SIDE

# Start and length: from the lock of readers on, all locks of an archive.
_EVERY_LOCK: Final = LOCK_USE, (1 << 63) - 1 - LOCK_USE


class Copy(NamedTuple):
    """A copy in a folder; `path` has `PARTIAL` behind it until it is whole.

    origin: "" where it is not known. nbytes: of all of it; here: on the disk. used: seconds since 1970.
    """

    path: str
    origin: str
    nbytes: int
    here: int
    used: float


def copies_in(folder: str) -> list[Copy]:
    """The copies in a folder and in those below it that are as they were made, least recently used first."""
    names = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    copies = (copy_at(name.removesuffix(SIDE)) for name in names if name.endswith(SIDE))
    return sorted((copy for copy in copies if copy is not None), key=lambda copy: (copy.used, copy.path))


def copy_at(path: str) -> Copy | None:
    """The copy that belongs at a path, whole or not; None where what is there is none."""
    used, notes = stamp_of(path + SIDE), notes_of(path)
    if used is None:
        return None
    whole, partial = stamp_of(path), stamp_of(path + PARTIAL)
    if whole is not None and not notes.have(whole):
        return None
    note = notes.begun or notes.whole
    sizes = [stamp[0] for stamp in (whole, partial) if stamp is not None]
    if not sizes:
        return None
    # The last page of a file is never full.
    here = min(storage.allocated(path) + storage.allocated(path + PARTIAL), sum(sizes))
    return Copy(path, "" if note is None else note.origin, max(sizes), here, used[1] / 1e9)


def is_made(path: str) -> bool:
    """True if a process makes a copy at a path now."""
    with suppress(ArchiveNotFoundError), closing(File.open(path + SIDE, "r")) as side:
        return side.is_locked(LOCK_COPY, 1)
    return False


def delete(path: str, *, if_unchanged: bool = False) -> str | None:
    """Delete a copy, whole and begun, and its side file, unless a process uses it; returns why it stays."""
    with locked_side(path, wait=False) as side:
        if side is None:
            return "another process is copying it"
        if if_unchanged and copy_at(path) is None:
            return "it is no copy"
        for name in (path, path + PARTIAL):
            with suppress(ArchiveNotFoundError), closing(File.open(name, "r+")) as file:
                if not file.try_lock(*_EVERY_LOCK):
                    return "a process has this copy open"
                storage.remove(name)
        storage.remove(path + SIDE)
    return None


def evict(path: str) -> bool:
    """Delete a copy as it was made, unless a process uses it; returns whether it is gone."""
    try:
        return delete(path, if_unchanged=True) is None
    except StorageError:
        return False  # another user's


def limit_of(max_bytes: int | float | str | None, folder: str) -> int | None:
    """The bytes that the copies of a folder may have; OptionError: 'max_bytes=-1; give bytes, ...'."""

    def part(fraction: float) -> int:
        return int(fraction * (storage.free(folder) + sum(copy.here for copy in copies_in(folder))))

    return base.bytes_limit(max_bytes, part)


def make_room(
    folder: str, limit: int | None, nbytes: int, old: int, what: str, keep: Collection[str]
) -> bool:
    """Delete copies that nobody has open, the least recently used first, until a new one fits.

    Args:
        nbytes: of the new copy, at the path `what`. old: of the one that it replaces, on the disk.
    Returns:
        False if the old one has to be deleted first.
    Raises:
        OptionError: the new one is above the limit. StorageError: too much has to stay, or the disk is full.
    """
    others = 0
    if limit is not None:
        allowed = f"{human_bytes(nbytes)}, max_bytes= allows {human_bytes(limit)} for all copies in {folder}"
        if nbytes > limit:
            raise OptionError(f"{what}: {allowed}; allow more")
        others = left_by_others(folder, limit, nbytes, what, keep)
        if others + nbytes > limit:
            raise _no_space(
                f"{what}: {allowed}; of those there, which are in use, "
                f"{human_bytes(others + nbytes - limit)} would have to go; allow more, or wait"
            )
    free = storage.free(what)
    more = nbytes - storage.allocated(what + PARTIAL)
    if more > free + old:
        raise _no_space(
            f"{what}: the copy takes {human_bytes(more - old)} more, the disk has {human_bytes(free)} left; "
            "free some, or copy it to another disk"
        )
    return more <= free and (limit is None or others + nbytes + old <= limit)


def left_by_others(folder: str, limit: int, nbytes: int, what: str, keep: Collection[str]) -> int:
    """The bytes of the other copies, after those that nobody has open have made room for so many more."""
    stays = {os.path.realpath(path) for path in keep}
    others = [copy for copy in copies_in(folder) if os.path.realpath(copy.path) != os.path.realpath(what)]
    # One that is being copied will have all its bytes.
    sizes = [copy.nbytes if is_made(copy.path) else copy.here for copy in others]
    total = sum(sizes)
    for copy, size in zip(others, sizes, strict=True):
        if total + nbytes > limit and os.path.realpath(copy.path) not in stays and evict(copy.path):
            total -= size
    return total


def _no_space(text: str) -> StorageError:
    error = StorageError(text)
    error.errno = errno.ENOSPC
    return error
