"""Files that are written beside the path that they are for, and get its name when they are whole.

`train.zip.edcache.new` becomes `train.zip`. Its writer holds `LOCK_SESSION` of it, a lock of the kernel's
that ends with that process. So a file without a lock was left by a process that was killed: nothing reads it, the next
writer of the same path begins anew, and `edcache caches --prune` deletes it. All temporary files have such a name, but
for copies of archives far away.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

from edcache import format, storage
from edcache.base import ArchiveError, ArchiveNotFoundError, StorageError, on_error
from edcache.storage import File

SUFFIX: Final = ".edcache.new"
# Of the local copy of a far archive: files beside it, PARTIAL while it is not whole, SIDE with its origin.
# A reader of a copy shares the lock, which lies before every lock of the format, so that the copy stays.
PARTIAL: Final = ".partial"
SIDE: Final = ".origin"
LOCK_USE: Final = format.LOCK_APPEND - 1
KEPT: Final = "what was there before stays as it was"
"""Outcome for a path if the file that was to get its name is not made."""


def name_for(target: str) -> str:
    """Return the path of the file that is written beside `target`, and gets that name when it is whole."""
    return target + SUFFIX


def is_temporary(path: str) -> bool:
    """True if a file has the name of one that is being written."""
    return path.endswith(SUFFIX)


def start(target: str, wait: float | None = None) -> File:
    """Make and lock the file that is to get the name `target`; keep the result open until it has that name.

    A leftover of a process that was killed is deleted, not emptied: another process may have it mapped.

    Args:
        wait: seconds after which it is tried again while another process is at it; None raises
            ArchiveError.
    """
    with suppress(ArchiveNotFoundError):
        File.open(target, "r").close()  # StorageError for a device or a pipe, which would be replaced
    work = name_for(target)
    while True:
        storage.make_parent(work)
        session = File.open(work, "a")
        with on_error(session.close):
            is_locked = session.try_lock(format.LOCK_SESSION)
            if not is_locked and wait is None:
                raise ArchiveError(f"{work}: another process is writing it; wait for it to end")
            # Its last holder may just have given it another name.
            if is_locked and session.is_named():
                if not session.size():
                    return session
                storage.remove(work)
        session.close()
        if not is_locked:
            time.sleep(wait or 0)


@contextmanager
def replacing(target: str, wait: float | None = None) -> Iterator[File]:
    """Do as `start`, for a block that gives the file its name. If the block raises before, the file is deleted."""
    session = start(target, wait)
    try:
        with on_error(lambda: storage.try_remove(name_for(target))):  # --prune deletes the rest
            yield session
    finally:
        session.close()


def note_use(copy: str) -> None:
    """Remember that a local copy was used now, if this user may write there."""
    with suppress(StorageError):
        storage.touch(copy + SIDE)


def is_held(path: str) -> bool:
    """True if a living process writes a temporary file; False if the system cannot tell."""
    with suppress(ArchiveNotFoundError), closing(File.open(path, "r")) as file:
        return file.is_locked(format.LOCK_SESSION, 1)
    return False


def discard(path: str) -> bool:
    """Delete a temporary file, unless a living process writes it; return True if it is gone."""
    with suppress(ArchiveNotFoundError), closing(File.open(path, "r+")) as file:
        if not file.try_lock(format.LOCK_SESSION):
            return False
        if file.is_named():
            storage.remove(path)
    return True
