"""The copies in a folder, and the eviction of whole ones when there is too little room."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import Final, NamedTuple

from edcache import base, storage
from edcache.backends.mirror.sidecar import LOCK_COPY, locked_side, note_of, stamp_of
from edcache.base import ArchiveNotFoundError, StorageError
from edcache.storage import File
from edcache.writer import LOCK_USE, PARTIAL, SIDE

# Start and length: from the lock of readers on, all locks of an archive.
_EVERY_LOCK: Final = LOCK_USE, (1 << 63) - 1 - LOCK_USE


class Copy(NamedTuple):
    """A copy in a folder; `PARTIAL` stands behind `path` until it is whole.

    origin: "" if unknown. nbytes: of the whole copy; here: on the disk. used: seconds since 1970.
    """

    path: str
    origin: str
    nbytes: int
    here: int
    used: float


def copies_in(folder: str) -> list[Copy]:
    """List the copies in a folder and in those below it, least recently used first."""
    names = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    copies = (copy_at(name.removesuffix(SIDE)) for name in names if name.endswith(SIDE))
    return sorted((copy for copy in copies if copy is not None), key=lambda copy: (copy.used, copy.path))


def copy_at(path: str) -> Copy | None:
    """Return the copy that belongs at a path, whole or not; None for any other file, and for none."""
    used, note, whole = stamp_of(path + SIDE), note_of(path), stamp_of(path)
    stamp = whole or stamp_of(path + PARTIAL)
    if used is None or stamp is None or (whole is not None and (note is None or note.stamp != whole)):
        return None
    # The last page of a file is never full.
    here = min(storage.allocated(path if whole else path + PARTIAL), stamp[0])
    return Copy(path, "" if note is None else note.origin, stamp[0], here, used[1] / 1e9)


def is_made(path: str) -> bool:
    """True if a process makes a copy at a path now."""
    with suppress(ArchiveNotFoundError), closing(File.open(path + SIDE, "r")) as side:
        return side.is_locked(LOCK_COPY, 1)
    return False


def delete(path: str, *, if_unchanged: bool = False) -> str | None:
    """Delete a copy, whole or begun, and its side file; returns the reason if a process uses it.

    Args:
        if_unchanged: keep a file that somebody wrote in the place of the copy.
    """
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
    """Delete a copy as it was made, unless a process uses it; True if it is gone."""
    try:
        return delete(path, if_unchanged=True) is None
    except StorageError:
        return False  # another user's


class Budget(NamedTuple):
    """The bytes that all copies in a folder may have together; None for any number."""

    folder: str
    limit: int | None = None

    @classmethod
    def of(cls, max_bytes: int | float | str | None, folder: str) -> Budget:
        """Read the option `max_bytes`; OptionError: 'max_bytes=-1; give bytes, ...'."""

        def part(fraction: float) -> int:
            return int(fraction * (storage.free(folder) + sum(copy.here for copy in copies_in(folder))))

        return cls(folder, base.bytes_limit(max_bytes, part))

    def evict_others(self, path: str, nbytes: int) -> int:
        """Evict copies until `nbytes` fit at a path; returns the bytes of the other copies that are left."""
        assert self.limit is not None
        others = [
            copy for copy in copies_in(self.folder) if os.path.realpath(copy.path) != os.path.realpath(path)
        ]
        # One that is being copied will have all its bytes.
        sizes = [copy.nbytes if is_made(copy.path) else copy.here for copy in others]
        total = sum(sizes)
        for copy, size in zip(others, sizes, strict=True):
            if total + nbytes > self.limit and evict(copy.path):
                total -= size
        return total
