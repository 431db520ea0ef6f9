"""Which copies a folder has, who has them open, and which of them go when there is too little room."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection
from contextlib import closing, suppress
from typing import NamedTuple

from edcache import storage
from edcache.backends.mirror.sidecar import LOCK_COPY, locked_side, note_of, stamp_of
from edcache.base import ArchiveNotFoundError, OptionError, StorageError, human_bytes, parsed_bytes, shown
from edcache.storage import File
from edcache.writer import LOCK_USE, PARTIAL, SIDE, copies_beside


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
    used, note = stamp_of(path + SIDE), note_of(path)
    if used is None:
        return None
    whole, partial = stamp_of(path), stamp_of(path + PARTIAL)
    if whole is not None and (note is None or note.stamp != whole):
        return None
    sizes = [stamp[0] for stamp in (whole, partial) if stamp is not None]
    if not sizes:
        return None
    # The last page of a file is never full.
    here = min(storage.allocated(path) + storage.allocated(path + PARTIAL), sum(sizes))
    return Copy(path, "" if note is None else note.origin, max(sizes), here, used[1] / 1e9)


def why_stays(path: str) -> str | None:
    """Why a copy should not be deleted now; None where nothing, or macOS, speaks against it."""
    if _is_locked(path + SIDE, LOCK_COPY):
        return "another process is copying it"
    is_open = any(_is_locked(name, LOCK_USE) for name in (path, path + PARTIAL))
    return "a process has this copy open" if is_open else None


def _is_locked(path: str, start: int) -> bool:
    try:
        with closing(File.open(path, "r")) as file:
            return file.is_locked(start, 1)
    except ArchiveNotFoundError:
        return False


def discard_side(path: str) -> bool:
    """Delete a side file that is of no copy, unless somebody makes that; says whether it is gone."""
    with locked_side(path.removesuffix(SIDE), wait=False) as side:
        if side is None or any(map(storage.exists, copies_beside(path))):
            return False
        storage.remove(path)
    return True


def leftovers(path: str) -> list[str]:
    """What lies beside an archive because it is a copy, whole or not: to be deleted with it."""
    copy = path.removesuffix(PARTIAL)
    if not storage.exists(copy + SIDE) or (path != copy and storage.exists(copy)):
        return []
    return [name for name in (copy + PARTIAL, copy + SIDE) if storage.exists(name)]


# ------------------------------------------------------------------------------------------ making room


def limit_of(max_bytes: int | str | None) -> int | None:
    """How many bytes the copies of a folder may have; OptionError: 'max_bytes=-1; give bytes, or ...'."""
    limit = parsed_bytes(max_bytes)
    if max_bytes is not None and limit is None:
        raise OptionError(
            f'max_bytes={shown(max_bytes)}; give bytes, or text such as "200GB"', option="max_bytes"
        )
    return limit


def make_room(folder: str, limit: int | None, nbytes: int, what: str, keep: Collection[str]) -> None:
    """Delete copies that nobody has open, least recently used first, until a new one fits the limit.

    Raises OptionError where the new one is above the limit itself, StorageError where too much has to stay.
    """
    if limit is None:
        return
    if nbytes > limit:
        raise OptionError(
            f"{what}: {human_bytes(nbytes)}, max_bytes= allows {human_bytes(limit)} for all copies in "
            f"{folder}; allow more"
        )
    excess = left_by_others(folder, limit, nbytes, what, keep) + nbytes - limit
    if excess > 0:
        raise _no_space(
            f"{what}: {human_bytes(nbytes)}, max_bytes= allows {human_bytes(limit)} for all copies in "
            f"{folder}; of those there, which are in use, {human_bytes(excess)} would have to go; allow "
            "more, or wait"
        )


def left_by_others(folder: str, limit: int, nbytes: int, what: str, keep: Collection[str]) -> int:
    """The bytes of the other copies, after those that nobody has open have made room for so many more."""
    stays = {os.path.realpath(path) for path in keep}
    others = [copy for copy in copies_in(folder) if os.path.realpath(copy.path) != os.path.realpath(what)]
    # One that is being copied will have all its bytes.
    sizes = [copy.nbytes if _is_locked(copy.path + SIDE, LOCK_COPY) else copy.here for copy in others]
    total = sum(sizes)
    for copy, size in zip(others, sizes, strict=True):
        if total + nbytes > limit and os.path.realpath(copy.path) not in stays and evict(copy.path):
            total -= size
    return total


def evict(path: str) -> bool:
    """Delete a copy, unless somebody has it open or makes it; says whether it is gone."""
    try:
        with locked_side(path, wait=False) as side:
            # Looked at again: since it was listed, another archive may have come to be there.
            if side is None or copy_at(path) is None or not all(map(_removed, (path, path + PARTIAL))):
                return False
            storage.remove(path + SIDE)
    except StorageError:
        return False  # another user's
    return True


def _removed(path: str) -> bool:
    with suppress(ArchiveNotFoundError), closing(File.open(path, "r+")) as file:
        if not file.try_lock(LOCK_USE):
            return False
        storage.remove(path)
    return True


def check_space(path: str, nbytes: int) -> None:
    """Raise StorageError where the disk cannot hold the `nbytes` of a copy that are still to be written."""
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    if nbytes > free:
        raise _no_space(
            f"{path}: the copy takes {human_bytes(nbytes)} more, the disk has {human_bytes(free)} left; free "
            "some, or copy it to another disk"
        )


def _no_space(text: str) -> StorageError:
    error = StorageError(text)
    error.errno = errno.ENOSPC
    return error
