"""An open file, whose descriptor may be closed while other files need theirs.

OPEN       has a descriptor
RESTING    has none; the next call opens the path again, which must lead to the same file
CLOSED     has none, and every call raises ArchiveError

OPEN --_close_first()--> RESTING --a call--> OPEN; both --close()--> CLOSED

Only a file that is read rests: with their descriptor end the locks of a file, and a file in shared memory.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from edcache import base
from edcache.base import ArchiveError, ArchiveNotFoundError, StaleArchiveError, StorageError
from edcache.storage import calls, memory
from edcache.storage.errors import storage_error, with_errno
from edcache.storage.paths import absolute

# Files that are read, and have a descriptor. A process may have 1,024 of these, and thousands of archives.
_MOST_OPEN: Final = 128

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


_writable: weakref.WeakSet[Handle] = weakref.WeakSet()
# Files that may rest and have a descriptor, the first opened first.
_readers: OrderedDict[weakref.ref[Handle], None] = OrderedDict()


class Handle:
    """One open regular file, whose descriptor no thread closes while another one uses it.

    Attributes:
        path: as given. absolute: the absolute path. writable: whether writes and locks are allowed.
        closed: True after `close`.
    """

    def __init__(self, path: str, mode: str) -> None:
        self.path, self.absolute = path, absolute(path)
        self.writable, self.closed = mode != "r", False
        self._reference = weakref.ref(self)
        self._refusals: list[OSError] = []
        made = {"r": 0, "r+": 0, "a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL}[mode]
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        flags = made | (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_NONBLOCK
        self._descriptor: Descriptor | None = self._opened(flags)
        # A descriptor that is never closed for other files.
        self._kept: Descriptor | None = None
        if self.writable or memory.is_in_memory(self.absolute):
            self.keep()
        if self.writable:
            _writable.add(self)
        try:
            status = self._stat()
            if not stat.S_ISREG(status.st_mode):
                raise StorageError(f"{path}: not a regular file; an archive is an ordinary file", path=path)
            self._identity = identity_of(status)
        except BaseException:
            self.close()
            raise
        self._may_rest()

    def keep(self) -> None:
        """Never let the file rest: it will be locked, for instance."""
        self._kept = self._held()

    def close(self) -> None:
        """Close the file and release its locks; a second call does nothing.

        If other threads are in a call, the last of them closes it.
        """
        if self.writable and not self.closed:
            # A fork just as the file was opened has its descriptor too, and so the locks until it ends.
            with suppress(OSError):
                self._call(calls.unlock, 0, 0)
        self.closed = True
        self._kept = self._descriptor = None
        _readers.pop(self._reference, None)
        if self._refusals:
            refusal = self._refusals.pop()
            raise storage_error(self.path, "closing it", refusal) from refusal

    def _opened(self, flags: int) -> Descriptor:
        try:
            try:
                descriptor = Descriptor.open(self.absolute, flags)
            except OSError as error:
                if error.errno != errno.EMFILE or not _readers:
                    raise
                _close_first(but=0)
                descriptor = Descriptor.open(self.absolute, flags)
        except FileNotFoundError as error:
            text = f"{self.path}: no such file; check the path, or build the cache first"
            raise with_errno(ArchiveNotFoundError(text, path=self.path), error) from None
        except FileExistsError as error:
            text = f'{self.path}: exists already; use mode="a" to continue or grow it, mode="w" to replace it'
            raise with_errno(base.ArchiveExistsError(text, path=self.path), error) from None
        except OSError as error:
            raise storage_error(self.path, "opening it", error) from error
        descriptor.refusals = self._refusals
        return descriptor

    def _held(self) -> Descriptor:
        """Return the descriptor, which stays open as long as the caller has this reference."""
        descriptor = self._kept if self._descriptor is None else self._descriptor
        if descriptor is not None:
            return descriptor
        if self.closed:
            raise ArchiveError(f"{self.path}: closed; open it again", path=self.path)
        descriptor = self._opened(os.O_RDONLY)
        if identity_of(calls.stat(int(descriptor))) != self._identity:
            raise StaleArchiveError(
                f"{self.path}: replaced since it was opened; open it again", path=self.path
            )
        self._descriptor = descriptor
        self._may_rest()
        return descriptor

    def _may_rest(self) -> None:
        """Count an open file, and let others rest if there are too many."""
        if self._kept is None:
            _readers[self._reference] = None
            _close_first(but=_MOST_OPEN)
        if self.closed:  # by another thread, meanwhile
            self.close()

    def _call(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the system with the descriptor, or raise ArchiveError."""
        descriptor = self._held()
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


def _close_first(but: int) -> None:
    """Let the files that were opened first rest, until at most this many have a descriptor."""
    if len(_readers) > but:
        for reference in [reference for reference in list(_readers) if reference() is None]:
            _readers.pop(reference, None)
    while len(_readers) > but:
        with suppress(KeyError):  # another thread took the last one
            handle = _readers.popitem(last=False)[0]()
            if handle is not None:
                handle._descriptor = None


def _close_inherited() -> None:
    """Close the parent's writable files in a forked child: their locks would outlive the parent."""
    for handle in list(_writable):
        descriptor = handle._descriptor
        handle.closed, handle._descriptor, handle._kept = True, None, None
        if descriptor is not None:
            descriptor.close()  # a thread of the parent's may have been in a call


os.register_at_fork(after_in_child=_close_inherited)


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return (device, inode) of a file, from its status."""
    return status.st_dev, status.st_ino
