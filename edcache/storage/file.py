"""`File`: one open file."""

from __future__ import annotations

import errno
import os
import stat
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from edcache import base
from edcache.base import (
    ArchiveError,
    ArchiveNotFoundError,
    OptionError,
    StaleArchiveError,
    StorageError,
)
from edcache.storage import calls
from edcache.storage.descriptor import Descriptor, MemoryDescriptor, is_in_memory
from edcache.storage.errors import storage_error, with_errno
from edcache.storage.registry import scheme_of
from edcache.storage.source import ByteSource

_MAX_OFFSET: Final = 1 << 62
_CAN_TELL_CACHED = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
_CAN_ADVISE = hasattr(os, "posix_fadvise")
_MOUNTS = "/proc/self/mountinfo"
_REMOTE: Final = (
    *("nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "ceph", "9p", "afs", "beegfs", "gluster", "pvfs"),
)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Neighbours are read by one call: records lie up to 64 bytes apart.
_GAP_NBYTES, _TOGETHER_NBYTES = 1 << 10, 1 << 22
_MAX_WRITE: Final = 1 << 30  # Linux moves at most 0x7ffff000 bytes a call
# Of all files that are mapped. A process may have 1,024 open, and thousands of archives.
_MOST_SPARE: Final = 64

T = TypeVar("T")

Stamp = tuple[int, int, int]
"""Bytes of a file, when it was last written (in ns since 1970), its inode: equal while it is the same."""


def stamp_of(status: os.stat_result) -> Stamp:
    """The stamp of a file, from its status."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def absolute(path: str | bytes | os.PathLike[str]) -> str:
    """The absolute path, without resolving links; a URL stays unchanged.

    OptionError for what no file system takes, StorageError where the working folder is gone.
    """
    name = os.fsdecode(path)
    if scheme_of(name):
        return name
    if not name:
        raise OptionError("an empty path; give that of a file")
    try:
        is_name = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise OptionError(f"{name!a}: not a path, because it has a NUL or half of a surrogate pair")
    if os.path.isabs(name):
        return name
    try:
        # Not normalised: behind a link, ".." is another folder.
        return os.path.join(os.getcwd(), name)
    except OSError as error:
        doing = "asking for the folder that this process works in; give an absolute path"
        raise storage_error(name, doing, error) from error


_writable: weakref.WeakSet[_Handle] = weakref.WeakSet()
# Files whose descriptor may be closed until their next call, the first opened first.
_spare: deque[weakref.ref[_Handle]] = deque()


def _close_spare(most: int) -> None:
    """Close descriptors until at most this many are spare, the first opened first."""
    while len(_spare) > most:
        file = _spare.popleft()()
        if file is not None:
            file._descriptor = None


def _open(kind: type[Descriptor], path: str, flags: int) -> Descriptor:
    """Open a file; if the process may open no more, close the spare descriptors and try again."""
    try:
        return kind.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE or not _spare:
            raise
    _close_spare(0)
    return kind.open(path, flags)


def _close_inherited() -> None:
    """Close the parent's writable files in a forked child: their locks would outlive the parent."""
    for file in list(_writable):
        descriptor = file._descriptor
        file._is_locked = False  # its locks are the parent's
        file.close()
        if descriptor is not None:
            descriptor.close()  # a thread of the parent's may have been in a call


os.register_at_fork(after_in_child=_close_inherited)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class _Handle:
    """The descriptor of one open regular file, which no thread closes while another one uses it."""

    def __init__(self, path: str, mode: str) -> None:
        self.path, self.absolute = path, absolute(path)
        self.writable = mode != "r"
        self.can_lock = True
        self.closed = False
        self._is_locked = self._is_shared = False
        self._refusals: list[OSError] = []
        # Of a file whose descriptor may be closed until the next call.
        self._reopens: tuple[int, int] | None = None
        made = {"r": 0, "r+": 0, "a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL}[mode]
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        flags = made | (os.O_RDWR if self.writable else os.O_RDONLY) | os.O_NONBLOCK
        self._descriptor: Descriptor | None = self._opened(flags)
        if self.writable:
            _writable.add(self)
        try:
            if not stat.S_ISREG(self._stat().st_mode):
                raise StorageError(f"{path}: not a regular file; an archive is an ordinary file", path=path)
        except BaseException:
            self.close()
            raise

    def _opened(self, flags: int) -> Descriptor:
        kind = MemoryDescriptor if is_in_memory(self.absolute) else Descriptor
        try:
            descriptor = _open(kind, self.absolute, flags)
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
        """The descriptor; it stays open as long as the caller has this reference."""
        descriptor = self._descriptor
        if descriptor is not None:
            return descriptor
        if self._reopens is None or self.closed:
            raise ArchiveError(f"{self.path}: closed; open it again", path=self.path)
        descriptor = self._opened(os.O_RDONLY)
        if _identity(calls.stat(int(descriptor))) != self._reopens:
            raise StaleArchiveError(
                f"{self.path}: replaced since it was opened; open it again", path=self.path
            )
        self._descriptor = descriptor
        self._spare()
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

    def close(self) -> None:
        """Close the file and release its locks; a second call does nothing.

        If other threads are in a call, the last of them closes it.
        """
        if self._is_locked:
            # A fork just as the file was opened has its descriptor too, and so the locks until it ends.
            self._is_locked = False
            with suppress(OSError):
                self._call(calls.unlock, 0, 0)
        self.closed = True
        self._descriptor = None
        if self._refusals:
            refusal = self._refusals.pop()
            raise storage_error(self.path, "closing it", refusal) from refusal

    def rest(self) -> None:
        """Let the descriptor be closed until the next call, once other files need theirs.

        Nothing for a file that is written or locked, or is in shared memory, where it is gone when closed.
        """
        if not (self.writable or self._is_shared or is_in_memory(self.absolute) or self.closed):
            self._reopens = _identity(self._stat())
            self._spare()

    def _spare(self) -> None:
        _spare.append(weakref.ref(self))
        _close_spare(_MOST_SPARE)

    def _stat(self) -> os.stat_result:
        return self._ask("asking for its size", calls.stat)

    def reserve(self, offset: int, nbytes: int) -> None:
        """Take the disk space of a range, so that writing it cannot fail for want of room."""
        self._ask(f"taking {nbytes:,} bytes at offset {offset:,}", calls.reserve, offset, nbytes)


class File(_Handle, ByteSource):
    """One open regular file, read and written at offsets.

    path: as given. absolute: the absolute path. writable: whether writes and locks are allowed. can_lock:
    False after the file system has refused locks. closed: whether `close` was called.

    Every method raises StorageError, with the errno, if the operating system refuses. A full disk gives
    "train.zip: writing 4,096 bytes at offset 8,192: No space left on device".
    Safety: there is no file position, so threads and forked processes may read at once. A read during a
    close returns its bytes or raises ArchiveError. A lock belongs to the open file description: only
    the process that took it may release it.
    """

    is_live = True

    @classmethod
    def open(cls, path: str | os.PathLike[str], mode: str) -> File:
        """Open a file.

        Args:
            mode: "r" existing, read only; "r+" existing, read and write; "a" read and write, made if
                absent; "x" read and write, must not exist.
        Raises:
            ArchiveNotFoundError, ArchiveExistsError, StorageError.
        """
        return cls(os.fspath(path), mode)

    def size(self) -> int:
        """Bytes of the file now."""
        return self._stat().st_size

    def identity(self) -> tuple[int, int]:
        """(device, inode): equal for two names of one file."""
        return self._reopens or _identity(self._stat())

    def stamp(self) -> Stamp:
        """The state of the file, which stays equal after its disk was mounted again; see `Stamp`."""
        return stamp_of(self._stat())

    def tag(self) -> tuple[int, ...]:
        """Which state of which file: its identity, bytes and time of the last write."""
        return *self.identity(), *self.stamp()[:2]

    def reopened(self) -> File:
        """The file that has the path now, opened for reading."""
        return File.open(self.path, "r")

    def is_named(self) -> bool:
        """True if the path still leads to this file: it was neither deleted nor replaced."""
        try:
            named = calls.stat_path(self.absolute)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            raise storage_error(self.path, "looking for its name", error) from error
        return _identity(named) == self.identity()

    def modified(self) -> float:
        """When the file was last written, in seconds since 1970."""
        return self._stat().st_mtime

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` at `offset`; fewer only at the end of the file."""
        if offset > _MAX_OFFSET:
            return b""  # damaged or hostile numbers: no file reaches there
        parts: list[bytes] = []
        missing = nbytes
        try:
            while missing > 0:
                part = self._call(calls.pread, min(missing, _MAX_WRITE), offset + nbytes - missing)
                if not part:
                    break
                parts.append(part)
                missing -= len(part)
        except OSError as error:
            raise storage_error(self.path, f"reading {nbytes:,} bytes at offset {offset:,}", error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read extents (offset, nbytes), neighbours together; shorter only at the end of the file."""
        data: list[memoryview] = []
        run: list[tuple[int, int]] = []
        for extent in (*extents, (-1, 0)):
            end = sum(run[-1]) if run else 0
            together = extent[0] + extent[1] - run[0][0] if run else 0
            if run and not (0 <= extent[0] - end <= _GAP_NBYTES and together <= _TOGETHER_NBYTES):
                start = run[0][0]
                read = memoryview(self.pread(start, end - start))
                data += (read[offset - start : offset - start + nbytes] for offset, nbytes in run)
                run = []
            run.append(extent)
        return data

    def next_data(self, offset: int) -> int:
        """The next offset, from this one on, that is in no hole of the file; its size where none is."""
        try:
            return self._call(calls.next_data, offset)
        except OSError as error:
            return self.size() if error.errno == errno.ENXIO else offset

    def map(self, nbytes: int) -> memoryview:
        """The first bytes of the file as read-only memory, which stays valid after `close`.

        If another program truncates the file, reading the memory gives zeros or a SIGBUS.
        """
        try:
            return self._ask(f"mapping {nbytes:,} bytes", calls.map, nbytes)
        except base.EdcacheError:
            raise
        except (OverflowError, MemoryError, ValueError) as error:  # the last where it was cut meanwhile
            raise StorageError(f"{self.path}: mapping {nbytes:,} bytes: {error}", path=self.path) from error

    def are_cached(self, offsets: Sequence[int]) -> bool:
        """True if the pages of some offsets are in memory; True where the system cannot tell."""
        if not _CAN_TELL_CACHED:
            return True
        try:
            return self._call(calls.pread_cached, tuple(offsets))
        except OSError:  # EOPNOTSUPP: the file system cannot tell
            return True

    def will_need(self, extents: Sequence[tuple[int, int]]) -> None:
        """Announce that extents (offset, nbytes) will be read soon; a hint."""

        def tell(fd: int) -> None:
            for extent in extents:
                calls.will_need(fd, *extent)

        if _CAN_ADVISE:
            # Advice that is refused costs time and nothing else.
            with suppress(OSError):
                self._call(tell)

    def write_back(self, offset: int, nbytes: int) -> None:
        """Start writing a range to the disk, so that a later sync waits less; a hint."""
        if _CAN_ADVISE:
            with suppress(OSError):
                self._call(calls.write_back, offset, nbytes)

    def is_remote(self) -> bool:
        """True if the file system is known to be on another machine."""
        return _filesystem(self._stat().st_dev).startswith(_REMOTE)

    def pwrite(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`, however many calls it takes."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view):
                done += self._call(calls.pwrite, view[done : done + _MAX_WRITE], offset + done)
        except OSError as error:
            doing = f"writing {len(view):,} bytes at offset {offset:,}"
            raise storage_error(self.path, doing, error) from error

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        self._ask(f"cutting it to {size:,} bytes", calls.truncate, size)

    def sync(self) -> None:
        """Write all data to the disk and wait for it. After a failure, do not use this file again."""
        self._ask("syncing it; what was written since the last sync is in doubt", calls.sync)

    @contextmanager
    def locked(self, start: int) -> Iterator[None]:
        """Hold the lock on byte `start` for the block, waiting for it as long as it takes."""
        # Twice over: an interrupt may come within the first way out (tests/faults/soak_interrupts.py).
        try:
            try:
                self.lock(start)
                yield
            finally:
                self.unlock(start)
        except BaseException:
            self.unlock(start)
            raise

    def lock(self, start: int, length: int = 1) -> None:
        """Lock bytes for this open file, waiting for whoever holds them (signals interrupt)."""
        self._is_locked = True
        self._lock(calls.lock, start, length, True)

    def try_lock(self, start: int, length: int = 1) -> bool:
        """Lock bytes if no other open file holds them. Returns whether it did."""
        self._is_locked = True
        try:
            self._lock(calls.lock, start, length, False)
        except StorageError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def share(self, start: int) -> None:
        """Lock byte `start` together with others who share it: who asks for it alone is refused meanwhile.

        A file that was opened to be read can share, and so can a forked child, which ends it with its last
        copy of the descriptor. Nothing on macOS.
        """
        self._lock(calls.share, start)
        self._is_shared = True

    def _lock(self, call: Callable[..., object], *arguments: Any) -> None:
        """Take a lock. If the file system has no locks, warn and continue."""
        if self._ask_locks("locking it", call, *arguments) is False and self.can_lock:
            self.can_lock = False
            base.warn(
                f"{self.path}: its file system has no byte locks, so that processes cannot share the "
                "work; see that only one writes at a time, or build it on a local disk and copy it"
            )

    def _ask_locks(self, doing: str, call: Callable[..., T], *arguments: Any) -> T | Literal[False]:
        """As `_ask`; False where the file system has no locks."""
        try:
            return self._call(call, *arguments)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise storage_error(self.path, doing, error) from error
            return False

    def is_locked(self, start: int, length: int) -> bool:
        """True if another open file has locked one of the bytes; False where the system cannot tell."""
        return self._ask_locks("asking for its locks", calls.is_locked, start, length)

    def unlock(self, start: int, length: int = 1) -> None:
        """Release bytes that this open file locked; nothing once it is closed."""
        if not self.closed:
            self._ask_locks("releasing a lock", calls.unlock, start, length)


def _filesystem(device: int) -> str:
    """The type of the file system of a device number, "" where the system does not tell."""
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        text = Path(_MOUNTS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.split(" - ") for line in text.splitlines()]
    types = [after.split()[0] for before, *rest in lines for after in rest[:1] if before.split()[2] == name]
    return types[-1] if types else ""


def written_since_boot(file: File) -> bool:
    """True if the last write happened under the running kernel, so that no power cut came after it."""
    boot_time = calls.boot_time()
    return boot_time is not None and file.modified() > boot_time + 1
