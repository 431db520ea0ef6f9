"""An open file as a state: its descriptor may be closed while other files need theirs.

OPEN       has a descriptor, until `close`
SPARE      has a descriptor, which is closed once other files need theirs
RESTING    has none; the next call opens the path again, which must lead to the same file
CLOSED     has none, and every call raises ArchiveError

OPEN --rest()--> SPARE --_close_spare()--> RESTING --a call--> SPARE; all --close()--> CLOSED
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final, TypeVar

from edcache import base
from edcache.base import ArchiveError, ArchiveNotFoundError, StaleArchiveError, StorageError
from edcache.storage import calls
from edcache.storage.descriptor import Descriptor, MemoryDescriptor, is_in_memory
from edcache.storage.errors import storage_error, with_errno
from edcache.storage.paths import absolute

# A process may have 1,024 descriptors, and thousands of archives.
_MOST_SPARE: Final = 64

T = TypeVar("T")


class State(Enum):
    """See the module."""

    OPEN = auto()
    SPARE = auto()
    RESTING = auto()
    CLOSED = auto()


_writable: weakref.WeakSet[Handle] = weakref.WeakSet()
# Files in the state SPARE, the first opened first; some have left it since.
_spare: deque[weakref.ref[Handle]] = deque()


class Handle:
    """One open regular file, whose descriptor no thread closes while another one uses it.

    Attributes:
        path: as given. absolute: the absolute path. writable: whether writes and locks are allowed.
    """

    def __init__(self, path: str, mode: str) -> None:
        self.path, self.absolute = path, absolute(path)
        self.writable = mode != "r"
        # The locks of a file, and a file in shared memory, end with their descriptor.
        self._may_rest = not (self.writable or is_in_memory(self.absolute))
        self._state = State.OPEN
        self._refusals: list[OSError] = []
        made = {"r": 0, "r+": 0, "a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL}[mode]
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        flags = made | (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_NONBLOCK
        self._descriptor: Descriptor | None = self._opened(flags)
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

    def _become(self, state: State, descriptor: Descriptor | None) -> None:
        """Enter a state, the only way to change it. CLOSED is never left, whatever other threads do."""
        if self._state is State.CLOSED:
            return
        self._state = state
        self._descriptor = descriptor
        if state is State.SPARE:
            _spare.append(weakref.ref(self))
            _close_spare(_MOST_SPARE)

    def rest(self) -> None:
        """Let the descriptor be closed until the next call, once other files need theirs.

        Nothing for a file that is written or locked, or is in shared memory, where it is gone when closed.
        """
        if self._may_rest and self._state is State.OPEN:
            self._become(State.SPARE, self._descriptor)

    def close(self) -> None:
        """Close the file and release its locks; a second call does nothing.

        If other threads are in a call, the last of them closes it.
        """
        if self.writable and not self.closed:
            # A fork just as the file was opened has its descriptor too, and so the locks until it ends.
            with suppress(OSError):
                self._call(calls.unlock, 0, 0)
        self._become(State.CLOSED, None)
        if self._refusals:
            refusal = self._refusals.pop()
            raise storage_error(self.path, "closing it", refusal) from refusal

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._state is State.CLOSED

    def _opened(self, flags: int) -> Descriptor:
        kind = MemoryDescriptor if is_in_memory(self.absolute) else Descriptor
        try:
            try:
                descriptor = kind.open(self.absolute, flags)
            except OSError as error:
                if error.errno != errno.EMFILE or not _spare:
                    raise
                _close_spare(0)
                descriptor = kind.open(self.absolute, flags)
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
        descriptor = self._descriptor
        if descriptor is not None:
            return descriptor
        if self.closed:
            raise ArchiveError(f"{self.path}: closed; open it again", path=self.path)
        descriptor = self._opened(os.O_RDONLY)
        if identity_of(calls.stat(int(descriptor))) != self._identity:
            raise StaleArchiveError(
                f"{self.path}: replaced since it was opened; open it again", path=self.path
            )
        self._become(State.SPARE, descriptor)
        return descriptor

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


def _close_spare(most: int) -> None:
    """Close descriptors until at most this many are spare, the first opened first."""
    while len(_spare) > most:
        with suppress(IndexError):  # another thread took the last one
            handle = _spare.popleft()()
            if handle is not None and handle._state is State.SPARE:
                handle._become(State.RESTING, None)


def _close_inherited() -> None:
    """Close the parent's writable files in a forked child: their locks would outlive the parent."""
    for handle in list(_writable):
        descriptor = handle._descriptor
        handle._become(State.CLOSED, None)
        if descriptor is not None:
            descriptor.close()  # a thread of the parent's may have been in a call


os.register_at_fork(after_in_child=_close_inherited)


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Return (device, inode) of a file, from its status."""
    return status.st_dev, status.st_ino
