"""An open file, whose descriptor no thread closes while another one uses it; open files after a fork."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, Final, TypeVar

from edcache import base
from edcache.base import ArchiveError, ArchiveNotFoundError, ForkLock, SourceError, StorageError
from edcache.storage import calls, memory
from edcache.storage.errors import storage_error, with_errno
from edcache.storage.paths import absolute

# A process may have 1,024 files open by default, and thousands of archives.
_MOST_OPEN: Final = 1 << 16
_OPEN_FILES: Final = "/proc/self/fd"
_LAST_STANDARD: Final = 2
# Errors of a call on a number that is closed, and of an open() of its link.
_IS_CLOSED: Final = errno.EBADF, errno.ENOENT

T = TypeVar("T")


class Descriptor(int):
    """The number of an open file, which is closed with the last reference to this object.

    A call holds a reference, so a close() in another thread does not let the number become another file's.
    refusals: gets the error with which the system closes it, as NFS does for a disk that is full.
    """

    refusals: list[OSError] | None = None
    _is_ending = staticmethod(sys.is_finalizing)
    _is_closed = False

    @classmethod
    def open(cls, path: str, flags: int) -> Descriptor:
        """Open a file, which child programs do not inherit; one in shared memory stays while it is open."""
        while True:
            # In one instruction: an interrupt between two would lose the number (tests/faults).
            [descriptor] = map(cls, map(calls.open, (path,), (flags,), (0o666,)))
            if not memory.is_in_memory(path) or memory.hold(path, int(descriptor)):
                _allow_more(descriptor)
                return descriptor
            descriptor.close()

    def close(self) -> None:
        """Close it though others have references, as in a forked child, whose other threads are gone."""
        if not self._is_closed:
            self._is_closed = True
            path = memory.let_go(int(self))
            calls.close(int(self))
            memory.delete_unheld(path)

    def __del__(self) -> None:
        # At the end of the interpreter `calls` may be cleared already; the kernel closes the file then
        # (test_stress.py, test_an_interpreter_ends_quietly_*).
        if not self._is_ending():
            try:
                self.close()
            except OSError as error:
                if self.refusals is not None:
                    self.refusals.append(error)


def _allow_more(descriptor: int) -> None:
    """Raise the soft limit of open files once half of it is in use, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN)
    if soft // 2 < descriptor and soft < most:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


_writable: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """One open regular file.

    Attributes:
        path: as given. absolute: the absolute path. writable: whether writes and locks are allowed.
        closed: True after `close`.
    """

    def __init__(self, path: str, mode: str) -> None:
        self.path, self.absolute = path, absolute(path)
        self.writable, self.closed = mode != "r", False
        made = {"r": 0, "r+": 0, "a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL}[mode]
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        flags = made | (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_NONBLOCK
        self._descriptor: Descriptor | None = self._opened(flags)
        self._descriptor.refusals = self._refusals = list[OSError]()
        if self.writable:
            _writable.add(self)
        with base.on_error(self.close):
            status = self._stat()
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{path}: not a regular file; an archive is an ordinary file", path=path)
            self._identity = identity_of(status)

    def close(self) -> None:
        """Close the file and release its locks; a second call does nothing.

        If other threads are in a call, the last of them closes it.
        """
        if self.writable and not self.closed:
            # A fork just as the file was opened has its descriptor too, and so the locks until it ends.
            with suppress(OSError):
                self._call(calls.unlock, 0, 0)
        self.closed, self._descriptor = True, None
        if self._refusals:
            refusal = self._refusals.pop()
            raise storage_error(self.path, "closing it", refusal) from refusal

    def leave_to_parent(self) -> None:
        """Close the file in a forked child: its locks would outlive the parent."""
        descriptor = self._descriptor
        self.closed, self._descriptor = True, None
        if descriptor is not None:
            descriptor.close()  # a thread of the parent's may have been in a call

    def _opened(self, flags: int) -> Descriptor:
        try:
            return Descriptor.open(self.absolute, flags)
        except FileNotFoundError as error:
            if flags & os.O_CREAT:
                text = f"{self.path}: no file can be made in this folder; choose one on a disk that you may write to"
                raise with_errno(StorageError(text, path=self.path), error) from None
            text = f"{self.path}: no such file; check the path, or build the cache first"
            raise with_errno(ArchiveNotFoundError(text, path=self.path), error) from None
        except FileExistsError as error:
            text = f'{self.path}: exists already; use mode="a" to continue or grow it, mode="w" to replace it'
            raise with_errno(base.ArchiveExistsError(text, path=self.path), error) from None
        except OSError as error:
            raise storage_error(self.path, "opening it", error) from error

    def _call(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the system with the descriptor, which stays open until it returns, or raise ArchiveError."""
        descriptor = self._descriptor
        if descriptor is None:
            raise ArchiveError(f"{self.path}: closed; open it again", path=self.path)
        try:
            return call(int(descriptor), *arguments)
        finally:
            del descriptor  # a traceback keeps this frame, and so would keep the file open and locked

    def _ask(self, doing: str, call: Callable[..., T], *arguments: Any) -> T:
        """`_call`, with an OSError as a StorageError that names the operation."""
        try:
            return self._call(call, *arguments)
        except OSError as error:
            raise storage_error(self.path, doing, error) from error

    def _stat(self) -> os.stat_result:
        return self._ask("asking for its size", calls.stat)


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return (device, inode) of a file, from its status."""
    return status.st_dev, status.st_ino


def _open_files() -> dict[int, tuple[int, int]]:
    """Return the identities of open regular files by their numbers; none without /proc."""
    found = {}
    for number in map(int, os.listdir(_OPEN_FILES) if os.path.isdir(_OPEN_FILES) else ()):
        with suppress(OSError):  # the listing itself is closed
            status = os.fstat(number)
            if number > _LAST_STANDARD and stat.S_ISREG(status.st_mode):
                found[number] = identity_of(status)
    return found


_sharing: Final = ForkLock()
# Files that a fork left open, also one before this module was imported. A process that multiprocessing
# spawned has none. Files that this process opens are not among them: its threads may read and close them meanwhile.
_inherited: dict[int, tuple[int, int]] = {}
if parent_process() is not None and not any("multiprocessing" in text for text in sys.orig_argv):
    _inherited = _open_files()


def _begin_process() -> None:
    global _inherited
    for handle in list(_writable):
        handle.leave_to_parent()
    _inherited = _open_files()


os.register_at_fork(after_in_child=_begin_process)


def own_positions(worker: int = 0) -> None:
    """Open each file again that this process got by a fork and may read, with its number and at its position.

    Both processes have one position in it: a read of the one moves it for the other, also between a seek and a read.

    Left as they are: standard streams and files that are open for writing alone, whose position is shared on purpose;
    files under a lock of flock or OFD, as archives may be, which would end with the parent; files that were closed
    since.

    Args:
        worker: not used; a DataLoader calls this with the number of a worker.
    Raises:
        SourceError: "data.bin: open in the process ...", a file cannot be opened again.

    Cost: 40 us a file, once in a process. Nothing without /proc, as on macOS, where processes are spawned.
    """
    global _inherited
    if not _inherited:
        return
    with _sharing.held():
        for number, identity in _inherited.items():
            _open_again(number, identity)
        _inherited = {}


def _open_again(number: int, identity: tuple[int, int]) -> None:
    path = f"{_OPEN_FILES}/{number}"
    try:
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        is_locked = "\nlock:" in Path(f"/proc/self/fdinfo/{number}").read_text()  # by flock or OFD
        is_same = identity_of(os.fstat(number)) == identity
    except OSError:  # closed since
        return
    if is_locked or not is_same or flags & (os.O_WRONLY | os.O_PATH):
        return
    try:
        own = os.open(path, flags & (os.O_RDWR | os.O_APPEND | os.O_DIRECT))
    except OSError as error:
        if error.errno in _IS_CLOSED:  # by another thread
            return
        name = os.readlink(path)
        raise SourceError(
            f"{name}: open in the process that forked this one, so both read at one position, and it cannot be opened "
            f"again: {error.strerror}; open it in the process that reads it, or use num_workers=0",
            path=name,
        ) from error
    try:
        if identity_of(os.fstat(own)) == identity == identity_of(os.fstat(number)):
            os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, number, inheritable=os.get_inheritable(number))
    except OSError as error:
        if error.errno not in _IS_CLOSED:
            raise
    finally:
        os.close(own)
