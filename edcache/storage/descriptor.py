"""Descriptors of open files, closed by their last reference; and the folder of files in shared memory.

A file in `memory_folder()` is there while somebody has it open. Whoever opens it holds a shared lock of the
kernel's (flock). Closing it asks for the exclusive lock, without waiting: only the last gets that, and
deletes the file. A killed process deletes nothing, but its locks end with it: `free_unheld_memory` deletes
what nobody has locked.

After it got the shared lock, whoever opens a file looks whether the path still leads to it. If not, the last
one has deleted it meanwhile, and opening begins again. So nobody holds a file that others cannot find.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import os
import stat
import sys
import threading
from contextlib import suppress
from typing import Final, TypeVar

from edcache.storage import calls

D = TypeVar("D", bound="Descriptor")

MORE_MEMORY: Final = "give a container more shared memory (docker run --shm-size=16g)"
_FOLDERS: Final = "/dev/shm"  # noqa: S108 - the folder in it is the user's own, which is checked
# The numbers of the files in shared memory that this process holds.
_held: set[int] = set()
_pid = os.getpid()


class Descriptor(int):
    """The number of an open file, which is closed with the last reference to this object.

    A call holds a reference, so a close() in another thread does not let the number become another file's.
    refusals: gets the error with which the system closes it, as NFS does for a disk that is full.
    """

    refusals: list[OSError] | None = None
    _is_ending = staticmethod(sys.is_finalizing)
    _is_closed = False

    @classmethod
    def open(cls: type[D], path: str, flags: int) -> D:
        """Open a file, which child programs do not inherit."""
        # In one instruction: an interrupt between two would lose the number (tests/faults).
        [descriptor] = map(cls, map(calls.open, (path,), (flags,), (0o666,)))
        return descriptor

    def close(self) -> None:
        """Close it though others have references, as in a forked child, whose other threads are gone."""
        if not self._is_closed:
            self._is_closed = True
            calls.close(int(self))

    def __del__(self) -> None:
        # At the end of the interpreter `calls` may be cleared already; the kernel closes the file then
        # (test_stress.py, test_an_interpreter_ends_quietly_*).
        if not self._is_ending():
            try:
                self.close()
            except OSError as error:
                if self.refusals is not None:
                    self.refusals.append(error)


class MemoryDescriptor(Descriptor):
    """The number of an open file in shared memory; the last one that is closed deletes the file."""

    @classmethod
    def open(cls: type[D], path: str, flags: int) -> D:
        """Open a file and hold it."""
        while True:
            [descriptor] = map(cls, map(calls.open, (path,), (flags,), (0o600,)))
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _leads_to(path, descriptor):
                _held.add(int(descriptor))
                return descriptor
            descriptor.close()

    def close(self) -> None:
        """Close it; the last one deletes the file."""
        number = int(self)
        if not self._is_closed and number in _held:
            _held.discard(number)
            # A child that C code forked has its parent's lock, and must not change it.
            if _pid == os.getpid():
                _delete_unheld(number)
        super().close()


def _leads_to(path: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _delete_unheld(fd: int) -> int:
    """Delete an open file unless another process or descriptor holds it; gives the bytes that are freed.

    flock() gives up this descriptor's shared lock first: of two that close at once one gets the other lock.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = os.readlink(f"/proc/self/fd/{fd}")  # it may have been renamed
        if not _leads_to(path, fd):
            return 0
        os.unlink(path)
        return os.fstat(fd).st_size
    except OSError:
        return 0


def memory_folder() -> str:
    """The folder of this user's files in shared memory; it may not be there."""
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


def free_unheld_memory() -> dict[str, int]:
    """Delete the files in shared memory that killed processes left; gives their paths and bytes.

    Safety: files that a process has open stay.
    """
    freed: dict[str, int] = {}
    with suppress(OSError), os.scandir(memory_folder()) as entries:
        for path in [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]:
            with suppress(OSError):
                descriptor = Descriptor.open(path, os.O_RDONLY)
                nbytes = _delete_unheld(int(descriptor))
                freed |= {path: nbytes} if nbytes else {}
    return freed


# A fork shares the lock of its parent, which ends when either of them closes the file. So the child gets an
# open file of its own, with a lock that is taken before the fork. By thread: two may fork at once.
_for_child: dict[int, dict[int, int]] = {}


def _before_fork() -> None:
    twins = _for_child[threading.get_ident()] = {}
    for number in list(_held):
        with suppress(OSError):
            twins[number] = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
            fcntl.flock(twins[number], fcntl.LOCK_SH)


def _after_in_parent() -> None:
    for twin in _for_child.pop(threading.get_ident(), {}).values():
        os.close(twin)


def _after_in_child() -> None:
    global _pid
    _pid = os.getpid()
    twins = _for_child.get(threading.get_ident(), {})
    _held.intersection_update(twins)
    for number, twin in twins.items():
        os.dup2(twin, number, inheritable=False)
    while _for_child:
        for twin in _for_child.popitem()[1].values():
            os.close(twin)


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


@atexit.register
def _at_exit() -> None:
    """Delete what nobody else holds: a cache that is never closed is closed with its process."""
    if _pid == os.getpid():
        for number in _held:
            _delete_unheld(number)
