"""Files in shared memory, which are deleted when nobody has them open any more.

Whoever has a file of `memory_folder()` open holds a shared lock of the kernel's (flock), which is of the open
file: forked children hold it too, and it ends with them, however they die. Whoever closes a file opens it
once more, and asks for the exclusive lock, without waiting: only if nobody holds the file it gets that, and
deletes it. So does `free_unheld_memory` with the files that killed processes left.

Another process may delete a file between the opening and the lock. Whoever has got the shared lock looks
whether the path still leads to the file, so nobody holds a file that others cannot find.

The end of Python closes what is open. The workers of a DataLoader may live until multiprocessing ends them by a
signal, as Python ends, and could not delete a file then: their parent lets go after them. A forked worker that ends by
itself, since its parent is gone, skips atexit, and lets go as multiprocessing ends it.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import stat
from contextlib import suppress
from multiprocessing import util as multiprocessing_util
from typing import Final

from edcache.storage import calls

MORE_MEMORY: Final = "give a container more shared memory (docker run --shm-size=16g)"
_FOLDERS: Final = "/dev/shm"  # noqa: S108 - the folder in it is the user's own, which is checked
# A negative priority comes after the child processes have ended.
_LAST: Final = -1_000
# The numbers of the open files in shared memory of this process.
_held: set[int] = set()


def memory_folder() -> str:
    """Return the folder of this user's files in shared memory; it may not be there."""
    return os.path.join(_FOLDERS, f"edcache-{os.geteuid()}")


def is_in_memory(path: str) -> bool:
    """True if a file at this absolute path is deleted when nobody has it open any more."""
    return os.path.dirname(path) == memory_folder()


def make_memory_folder() -> str:
    """Make the folder, private; OSError if another user has made one of its name."""
    folder = memory_folder()
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise OSError(errno.EPERM, f"{folder} is not a private folder of this user; delete it")
    return folder


def hold(path: str, fd: int) -> bool:
    """Hold an open file in shared memory; False if it was deleted meanwhile."""
    fcntl.flock(fd, fcntl.LOCK_SH)
    if _leads_to(path, fd):
        _held.add(fd)
        return True
    return False


def map_apart(fd: int, nbytes: int) -> memoryview:
    """Map the first bytes of a file by an open file of its own: a mapping keeps its open file, and so the lock."""
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    try:
        return calls.map(other, nbytes)
    finally:
        os.close(other)


def let_go(fd: int) -> str:
    """Return the path of a file that is held, and will be closed, to delete it then; "" for any other file."""
    if fd not in _held:
        return ""
    _held.discard(fd)
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")  # it may have been renamed
    return ""


def delete_unheld(path: str) -> int:
    """Delete a file unless it is held; returns the bytes that are freed."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _leads_to(path, fd):
                os.unlink(path)
                return os.fstat(fd).st_size
        finally:
            os.close(fd)
    return 0


@atexit.register
def _at_exit() -> None:
    """Let go of all files after the child processes: a cache that is never closed is closed with its process."""
    if multiprocessing_util.is_exiting():
        _let_go_of_all()
    else:
        _end_with_multiprocessing(_held)


def _end_with_multiprocessing(held: set[int]) -> None:
    """Let go of all files as the last that multiprocessing does in this process, when no child is left."""
    multiprocessing_util.Finalize(None, _let_go_of_all, exitpriority=_LAST)


multiprocessing_util.register_after_fork(_held, _end_with_multiprocessing)


def _let_go_of_all() -> None:
    for fd in list(_held):
        path = let_go(fd)
        # The number stays taken: threads may still read by it, and finalizers will close it.
        other = os.open(os.devnull, os.O_RDONLY)
        os.dup2(other, fd, inheritable=False)
        os.close(other)
        delete_unheld(path)


def free_unheld_memory() -> dict[str, int]:
    """Delete the files in shared memory that killed processes left; returns their paths and bytes.

    Safety: files that a process has open stay.
    """
    paths: list[str] = []
    with suppress(OSError), os.scandir(memory_folder()) as entries:
        paths = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    return {path: nbytes for path in paths if (nbytes := delete_unheld(path))}


def _leads_to(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
