"""Bytes that survive: open, read, write, sync, lock and replace files, and nothing else.

Every file operation of the package goes through `File` and the functions below, and every one of
those through `system`, so that a test can record the operations or fail the n-th one
(`replace_system`). What the operating system does *not* promise:

- A write is in the page cache when it returns, not on the disk; after a power loss any part of it
  may be absent. Only `sync` promises more, and only for what was written before it began.
- A failed sync leaves the pages marked clean: trying again proves nothing (fsyncgate, 2018).
- A new name is on the disk only after `sync_directory` of its folder.
- On Linux a pwrite to a descriptor opened with O_APPEND ignores its offset, so none is.
- A POSIX record lock vanishes when *any* descriptor of the file is closed in the process. Locks
  here are open-file-description locks, which end with the description that took them: at its last
  close, however the process dies. A fork shares them; so a child closes what its parent may lock.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import struct
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from edcache import memory, servers
from edcache.errors import (
    ArchiveExistsError,
    ArchiveLockedError,
    ArchiveNotFoundError,
    SourceError,
    StorageError,
    WorkerError,
)

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Elsewhere the structure that these locks take is another one.
_HAS_OFD_LOCKS = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = struct.Struct("hhqqi0q")  # struct flock on 64-bit Linux: type, whence, start, len, pid
# Where a lock is on the whole file (macOS), the one on this byte is taken and the others are not:
# fills that overlap then compute some samples twice, and the newer record wins.
WHOLE_FILE_LOCK = 1 << 62
_MAX_OFFSET = 1 << 62
# Windows has no pread: there, threads take turns with the position. (It has no fork either.)
_position = threading.Lock()
_CAN_TELL_CACHED = hasattr(os, "preadv") and hasattr(os, "RWF_NOWAIT")
_CAN_ADVISE = hasattr(os, "posix_fadvise")
_MOUNTS = "/proc/self/mountinfo"
_REMOTE = ("nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "ceph", "9p", "afs", "beegfs", "gluster", "pvfs")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_ABSENT = "no such file; check the path, or build the cache first"
_MAX_WRITE = 1 << 30  # Linux moves at most 0x7ffff000 bytes a call


class System:
    """The calls that reach the operating system, one method each; a test puts its own in place."""

    def open(self, path: str, flags: int, into: list[int]) -> None:
        """Append a descriptor that programs which this process starts do not inherit.

        An interrupt finds the file not open, or its descriptor in the list: between the instructions of
        Python code that held it in a variable it would be lost (tests/faults/test_interrupts.py).
        """
        if memory.is_memory(path):
            memory.open_memory(self, path, flags, into)
            return
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        into.extend(map(os.open, (path,), (flags,), (0o666,)))

    def close(self, descriptors: list[int]) -> None:
        """Take the last descriptor out and close it; as with `open`, it is in the list or closed."""
        list(map(os.close, map(descriptors.pop, (-1,))))

    def stat(self, fd: int) -> os.stat_result:
        """Size, device and inode."""
        return os.fstat(fd)

    def stat_path(self, path: str) -> os.stat_result:
        """The same of what a path leads to."""
        if not memory.is_memory(path):
            return os.stat(path)
        descriptors: list[int] = []
        memory.open_memory(self, path, os.O_RDONLY, descriptors)
        try:
            return os.fstat(descriptors[-1])
        finally:
            while descriptors:
                os.close(descriptors.pop())

    def map(self, fd: int, nbytes: int) -> memoryview:
        """The first bytes of a file as read-only memory, shared with all who map it."""
        # access= works on every platform; the mapping outlives the descriptor.
        return memoryview(mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ))

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Read at an offset; the descriptor's own position is neither used nor moved."""
        if hasattr(os, "pread"):
            return os.pread(fd, nbytes, offset)
        with _position:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, nbytes)

    def next_data(self, fd: int, offset: int) -> int:
        """Where the next bytes are that are no hole; the offset itself where the system cannot tell."""
        return os.lseek(fd, offset, os.SEEK_DATA) if hasattr(os, "SEEK_DATA") else offset

    def pread_cached(self, fd: int, offset: int) -> bool:
        """Whether the byte at an offset can be read without waiting for a disk."""
        try:
            os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        return True

    def will_need(self, fd: int, offset: int, nbytes: int) -> None:
        """Let the kernel begin to read a range into its cache."""
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)

    def write_back(self, fd: int, offset: int, nbytes: int) -> None:
        """Let the kernel begin to bring a range to the disk."""
        # What this advice drops is only what is on the disk already, so not what was just written.
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write at an offset; returns how many bytes went."""
        if hasattr(os, "pwrite"):
            return os.pwrite(fd, data, offset)
        with _position:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        """Bring the file's data and size to the disk."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there does not flush the drive's cache
        elif hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def sync_directory(self, path: str) -> None:
        """Bring a folder's names to the disk, where folders can be opened (not on Windows)."""
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folders(self, path: str) -> None:
        """Make a folder and those above it, where they are absent."""
        os.makedirs(path, exist_ok=True)

    def copy_permissions(self, source: str, target: str) -> None:
        """Let `target` be read and written by whom `source` may be."""
        shutil.copymode(memory.entry(source), memory.entry(target))

    def replace(self, source: str, target: str) -> None:
        """Give `source` the name `target` in one step."""
        with memory.turn(self, target, creates=True):
            os.replace(memory.entry(source), memory.entry(target))

    def remove(self, path: str) -> None:
        """Take a file's name away."""
        with memory.turn(self, path):
            os.unlink(memory.entry(path))

    def touch(self, path: str) -> None:
        """Set the times of a file to now."""
        os.utime(path)

    def boot_time(self) -> float | None:
        """When this machine started, in seconds of the clock that stamps files; None if unknown."""
        if not hasattr(time, "CLOCK_BOOTTIME"):
            return None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def lock(self, fd: int, start: int, length: int, wait: bool) -> None:
        """Lock bytes exclusively; without `wait`, BlockingIOError when another holds them."""
        if sys.platform == "win32":
            _windows_lock(fd, start, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK)
        elif _HAS_OFD_LOCKS:
            request = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
            fcntl.fcntl(fd, request, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
        else:
            if start == WHOLE_FILE_LOCK:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def share(self, fd: int, start: int) -> None:
        """Lock a byte together with others who share it, waiting for one who has it alone; Linux only."""
        if _HAS_OFD_LOCKS:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, 1, 0))

    def is_locked(self, fd: int, start: int, length: int) -> bool:
        """Whether others hold a lock on one of the bytes; False where the system cannot tell."""
        if sys.platform == "win32" or not _HAS_OFD_LOCKS:
            return False
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
        return bool(kind != fcntl.F_UNLCK)

    def first_locked(self, fd: int, start: int, length: int) -> int | None:
        """One of these bytes on which another holds a lock, if there is one; Linux only."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        kind, _, found, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(found)

    def freeze(self, fd: int) -> None:
        """Let nobody write into memory any more, nor cut it, for as long as it is there; Linux only."""
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)

    def is_frozen(self, fd: int) -> bool:
        """Whether `freeze` was called for the memory, by whichever process."""
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE)

    def unlock(self, fd: int, start: int, length: int) -> None:
        """Release what `lock` took."""
        if sys.platform == "win32":
            _windows_lock(fd, start, msvcrt.LK_UNLCK)
        elif _HAS_OFD_LOCKS:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))
        elif start == WHOLE_FILE_LOCK:
            fcntl.flock(fd, fcntl.LOCK_UN)


if sys.platform == "win32":

    def _windows_lock(fd: int, start: int, request: int) -> None:
        # msvcrt locks at the descriptor's position; nothing else here uses that position.
        os.lseek(fd, start, os.SEEK_SET)
        msvcrt.locking(fd, request, 1)


system: System = System()


@contextmanager
def replace_system(other: System) -> Iterator[System]:
    """Route every file operation of the package through `other` inside the block (for tests)."""
    global system
    before, system = system, other
    try:
        yield other
    finally:
        system = before


_lockable: weakref.WeakSet[File] = weakref.WeakSet()
_in_memory: weakref.WeakSet[File] = weakref.WeakSet()


def _settle_inherited() -> None:
    """Let go of the parent's locks in a forked child, which would outlive the parent with it.

    What the parent reads in memory, the child holds too, by a lock of its own.
    """
    for file in list(_lockable):
        file._close()
    for file in list(_in_memory):
        memory.inherit(system, file._descriptors)


if hasattr(os, "register_at_fork"):  # pragma: no branch - where it is absent, nothing forks
    os.register_at_fork(after_in_child=_settle_inherited)


class File:
    """One open regular file, read and written at offsets.

    path: as given. writable: whether writes and locks are allowed. can_lock: False once its file system
    has refused all locks.

    Raises StorageError, with the errno kept, wherever the operating system refuses; a full disk
    reads "train.zip: writing 4,096 bytes at offset 8,192: No space left on device".
    Safety: positions are never shared, so reads are safe from any thread and after a fork. A lock
    belongs to the open description: only the process that took it may release it.
    """

    # Read by calls of the system, not by requests (see places/place.py).
    by_request = False
    _is_ending = staticmethod(sys.is_finalizing)

    def __init__(self, path: str, writable: bool) -> None:
        self.path = path
        self.writable = writable
        self.can_lock = True
        self._descriptors: list[int] = []
        self._is_in_memory = memory.is_memory(path)
        # The process may change its folder.
        self._absolute = path if self._is_in_memory else os.path.abspath(path)
        if writable:
            _lockable.add(self)
        if self._is_in_memory:
            _in_memory.add(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str], mode: str, more_flags: int = 0) -> File:
        """Open a file.

        Args:
            mode: "r" existing, read only; "r+" existing, read and write; "a" read and write, made if
                absent; "x" read and write, must not exist.
            more_flags: for open(2), such as O_NOATIME.
        Raises:
            ArchiveNotFoundError, ArchiveExistsError, StorageError.
        """
        name = os.fspath(path)
        servers.refuse(name)
        file = cls(name, mode != "r")
        made = {"r": 0, "r+": 0, "a": os.O_CREAT, "x": os.O_CREAT | os.O_EXCL}[mode]
        flags = made | (os.O_RDWR if file.writable else os.O_RDONLY)
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        flags |= more_flags | getattr(os, "O_NONBLOCK", 0)
        try:
            system.open(name, flags, file._descriptors)
        except FileNotFoundError as error:
            absent = memory.ABSENT if file._is_in_memory else _ABSENT
            raise _with_errno(ArchiveNotFoundError(f"{name}: {absent}"), error) from None
        except FileExistsError as error:
            raise _with_errno(
                ArchiveExistsError(
                    f'{name}: exists already; use mode="a" to continue or grow it, mode="w" to replace it'
                ),
                error,
            ) from None
        except OSError as error:
            _refused(name, "opening it", error)
        try:
            if not stat.S_ISREG(file._stat().st_mode):
                raise StorageError(f"{name}: not a regular file; an archive is an ordinary file")
        except BaseException:
            file.close()
            raise
        return file

    def __del__(self) -> None:
        # A cache that is dropped without close() must not keep its descriptor.
        # An interrupted __init__ may not have come so far.
        # Where the interpreter ends, this module may have been cleared before (test_stress.py,
        # test_an_interpreter_ends_quietly_*); the kernel closes what is open.
        if self.__dict__.get("_descriptors") and not self._is_ending():
            with suppress(OSError):
                if self._is_in_memory:
                    self.close()
                else:
                    # At once: an interrupt that falls into what a finaliser calls is lost, and with it the
                    # descriptor (tests/faults/test_interrupts.py).
                    system.close(self._descriptors)

    @property
    def _fd(self) -> int:
        """The descriptor; -1, which no call takes, once closed."""
        # In memory it is behind that of its entry.
        return self._descriptors[-1] if self._descriptors else -1

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._descriptors

    def size(self) -> int:
        """Bytes of the file now."""
        return self._stat().st_size

    def identity(self) -> tuple[int, int]:
        """(device, inode): equal for two names of one file."""
        found = self._stat()
        return found.st_dev, found.st_ino

    def tag(self) -> tuple[int, ...]:
        """(device, inode, bytes, nanoseconds since 1970 of the last write): equal while nobody writes."""
        found = self._stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def stamp(self) -> Stamp:
        """Size, time of the last change and inode, as `stamp` tells them of a path."""
        return _stamp(self._stat())

    def reopened(self) -> File:
        """What the path leads to now, opened for reading."""
        return File.open(self.path, "r")

    def check_unchanged(self) -> None:
        """Nothing: an open file stays the one that was opened."""

    def is_named(self) -> bool:
        """Whether the path still leads to this file: not where another took its place, or it was deleted."""
        try:
            named = system.stat_path(self._absolute)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return False
            _refused(self.path, "looking for its name", error)
        return (named.st_dev, named.st_ino) == self.identity()

    def move(self, target: str) -> None:
        """Give this file the name `target` in one step, then sync the folder.

        Whoever has open what had that name before keeps it.
        """
        replace(self._absolute, target)
        self.path, self._absolute = target, os.path.abspath(target)

    def modified(self) -> float:
        """When the file was last written, in seconds since 1970."""
        return self._stat().st_mtime

    def _stat(self) -> os.stat_result:
        try:
            return system.stat(self._fd)
        except OSError as error:
            _refused(self.path, "asking for its size", error)

    def pread(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` at `offset`; fewer only at the end of the file."""
        if offset > _MAX_OFFSET:
            return b""  # damaged or hostile numbers: no file reaches there
        parts: list[bytes] = []
        missing = nbytes
        try:
            while missing > 0:
                part = system.pread(self._fd, min(missing, _MAX_WRITE), offset + nbytes - missing)
                if not part:
                    break
                parts.append(part)
                missing -= len(part)
        except OSError as error:
            _refused(self.path, f"reading {nbytes:,} bytes at offset {offset:,}", error)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read extents (offset, nbytes), one after the other; shorter only at the end of the file."""
        return [memoryview(self.pread(offset, nbytes)) for offset, nbytes in extents]

    def next_data(self, offset: int) -> int:
        """The next offset, from this one on, that is in no hole of the file; its size where none is."""
        try:
            return system.next_data(self._fd, offset)
        except OSError as error:
            return self.size() if error.errno == errno.ENXIO else offset

    def map(self, nbytes: int) -> memoryview:
        """The first bytes of the file as read-only memory; it outlives `close`.

        A file that another program cuts meanwhile gives zeros or a SIGBUS: nothing here can tell.
        """
        try:
            return system.map(self._fd, nbytes)
        except (OverflowError, MemoryError, ValueError) as error:  # the last where it was cut meanwhile
            raise StorageError(f"{self.path}: mapping {nbytes:,} bytes: {error}") from error
        except OSError as error:
            _refused(self.path, f"mapping {nbytes:,} bytes", error)

    def is_cached(self, offset: int) -> bool:
        """Whether the page of an offset is in memory; True where the system cannot tell."""
        if not _CAN_TELL_CACHED:
            return True
        try:
            return system.pread_cached(self._fd, offset)
        except OSError:  # EOPNOTSUPP: the file system cannot tell
            return True

    def will_need(self, offset: int, nbytes: int) -> None:
        """Say that a range will be read soon; nothing where the system cannot be told."""
        if _CAN_ADVISE:
            # Advice that is refused costs time and nothing else.
            with suppress(OSError):
                system.will_need(self._fd, offset, nbytes)

    def write_back(self, offset: int, nbytes: int) -> None:
        """Say that a range will be synced, so that the sync need not wait for all of it; a hint."""
        if _CAN_ADVISE:
            with suppress(OSError):
                system.write_back(self._fd, offset, nbytes)

    def is_remote(self) -> bool:
        """Whether the file system is known to be on another machine."""
        return _filesystem(self._stat().st_dev).startswith(_REMOTE)

    def pwrite(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`, however many calls it takes."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            if self._is_in_memory:
                memory.reserve(self._fd, offset, len(view))
            while done < len(view):
                done += system.pwrite(self._fd, view[done : done + _MAX_WRITE], offset + done)
        except OSError as error:
            _refused(self.path, f"writing {len(view):,} bytes at offset {offset:,}", error)

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        try:
            system.truncate(self._fd, size)
        except OSError as error:
            _refused(self.path, f"cutting it to {size:,} bytes", error)

    def sync(self) -> None:
        """Bring everything written so far to the disk; a failure is final for this file."""
        try:
            system.sync(self._fd)
        except OSError as error:
            _refused(self.path, "syncing it; what was written since the last sync is in doubt", error)

    @contextmanager
    def locked(self, start: int) -> Iterator[None]:
        """Hold the lock on byte `start` for the block, waiting for it as long as it takes."""
        # Twice over: an interrupt may come within the first way out (tests/faults/test_interrupts.py).
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
        try:
            system.lock(self._fd, start, length, True)
        except OSError as error:
            self._do_without_lock(error)

    def try_lock(self, start: int, length: int = 1) -> bool:
        """Lock bytes if nobody else holds them; says whether it did."""
        try:
            system.lock(self._fd, start, length, False)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            self._do_without_lock(error)
        return True

    def share(self, start: int) -> None:
        """Lock byte `start` together with others who share it: who asks for it alone is refused meanwhile.

        A file that was opened to be read can share, and so can a forked child, which ends it with its last
        copy of the descriptor. Nothing on macOS and Windows.
        """
        try:
            system.share(self._fd, start)
        except OSError as error:
            self._do_without_lock(error)

    def _do_without_lock(self, error: OSError) -> None:
        """Go on where the file system has no locks, and say what that takes; else raise."""
        if error.errno not in _NO_LOCKS:
            _refused(self.path, "locking it", error)
        if self.can_lock:
            self.can_lock = False
            warnings.warn(
                f"{self.path}: its file system has no byte locks, so that processes cannot share the work; "
                "see that only one writes at a time, or build it on a local disk and copy it",
                RuntimeWarning,
                stacklevel=2,
            )

    def freeze(self) -> None:
        """Let nobody write into a file in memory any more, for as long as it is there."""
        try:
            system.freeze(self._fd)
        except OSError as error:
            _refused(self.path, "protecting it from writing", error)

    def is_frozen(self) -> bool:
        """Whether `freeze` was called for a file in memory, by whichever process."""
        try:
            return system.is_frozen(self._fd)
        except OSError as error:
            _refused(self.path, "asking whether it is protected", error)

    def is_locked(self, start: int, length: int) -> bool:
        """Whether another open file has locked one of the bytes; False where the system cannot tell."""
        try:
            return system.is_locked(self._fd, start, length)
        except OSError as error:
            _refused(self.path, "asking for its locks", error)

    def unlock(self, start: int, length: int = 1) -> None:
        """Release bytes that this open file locked; nothing once it is closed."""
        if self._fd < 0:
            return
        try:
            system.unlock(self._fd, start, length)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            _refused(self.path, "releasing a lock", error)

    def close(self) -> None:
        """Close the descriptor, and with it every lock that only it held; idempotent."""
        if not self._descriptors:
            return
        if self._is_in_memory:
            memory.forget(system, self._descriptors)
        try:
            self._close()
        except OSError as error:
            _refused(self.path, "closing it", error)

    def _close(self) -> None:
        while self._descriptors:
            system.close(self._descriptors)


def _filesystem(device: int) -> str:
    """The type of the file system of a device number, "" where the system does not tell."""
    name = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as mounts:
            lines = [line.split(" - ") for line in mounts]
    except OSError:
        return ""
    found = [after.split()[0] for before, *rest in lines for after in rest[:1] if before.split()[2] == name]
    return found[-1] if found else ""


def written_since_boot(file: File) -> bool:
    """Whether the last write happened under the running kernel, so that no power cut came after it."""
    boot_time = system.boot_time()
    return boot_time is not None and file.modified() > boot_time + 1


def replace(source: str, target: str) -> None:
    """Give the file `source` the name `target` in one step, then sync the folder."""
    try:
        system.replace(source, target)
    except OSError as error:
        _refused(target, f"giving {source} its name", error)
    for keeper in _keepers.copy():
        if keeper.path == target:
            keeper.take()
    sync_directory(os.path.dirname(target))


class Keeper:
    """Holds what has a name in memory; nothing where the path is that of a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File | None = None

    def take(self) -> None:
        """Hold what has the name now; an empty file where nothing has."""
        made = File.open(self.path, "a")
        try:
            taken = made.reopened()
        finally:
            made.close()
        self.close()
        self.file = taken

    def has_lost(self) -> bool:
        """Whether the name was given to what another process made, which is then held."""
        if self.file is None or self.file.is_named():
            return False
        self.take()
        return True

    def close(self) -> None:
        """Hold nothing."""
        if self.file is not None:
            self.file.close()
            self.file = None


_keepers: list[Keeper] = []
# By name, what a fill left in memory that did not come to its end.
_unfinished: dict[str, File] = {}


@contextmanager
def kept(path: str) -> Iterator[Keeper]:
    """Let what has a name in memory, or gets it here, stay for the block, whoever closes it.

    After an interrupt, or where a sample could not be made, it stays until the next time that this process
    has done with the name, so that the same call goes on where it stopped.
    """
    keeper = Keeper(path)
    if not memory.is_memory(path):
        yield keeper
        return
    keeper.take()
    _keepers.append(keeper)
    try:
        yield keeper
    except (KeyboardInterrupt, SourceError, WorkerError):
        if keeper.file is not None and keeper.file.is_named():
            _unfinished[path] = keeper.file.reopened()
        raise
    else:
        _unfinished.pop(path, None)
    finally:
        _keepers.remove(keeper)
        keeper.close()


def free_nbytes(path: str) -> int:
    """Bytes that may still be written where a file is, or would be.

    Raises:
        OSError: the system does not say.
    """
    if memory.is_memory(path):
        return memory.available()
    return shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free


Stamp = tuple[int, int, int]
"""Bytes of a file, when it was last written (in ns since 1970), its inode: equal while it is the same."""


def stamp(path: str) -> Stamp:
    """What `File.stamp` says, of a path; one call of the system.

    Raises:
        ArchiveNotFoundError, StorageError.
    """
    return _stamp(_stat_path(path))


def allocated(path: str) -> int:
    """Bytes that a file takes of its disk; 0 where there is none."""
    try:
        return _allocated(_stat_path(path))
    except ArchiveNotFoundError:
        return 0


def _stat_path(path: str) -> os.stat_result:
    try:
        return system.stat_path(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _with_errno(ArchiveNotFoundError(f"{path}: no such file"), error) from None
    except OSError as error:
        _refused(path, "looking for it", error)


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _allocated(found: os.stat_result) -> int:
    # 512 whatever the file system's own blocks are; Windows does not tell.
    return 512 * found.st_blocks if hasattr(found, "st_blocks") else found.st_size


def touch(path: str) -> None:
    """Set the times of a file to now."""
    try:
        system.touch(path)
    except OSError as error:
        _refused(path, "setting its times", error)


def copy_permissions(source: str, target: str) -> None:
    """Let `target` be read and written by whom `source` may be."""
    try:
        system.copy_permissions(source, target)
    except OSError as error:
        _refused(target, f"giving it the permissions of {source}", error)


def remove(path: str) -> None:
    """Take a file's name away; who has it open or mapped keeps it."""
    try:
        system.remove(path)
    except FileNotFoundError as error:
        raise _with_errno(ArchiveNotFoundError(f"{path}: no such file"), error) from None
    except OSError as error:
        _refused(path, "deleting it", error)


def remove_tree(path: str) -> None:
    """Take a file away, or a folder with all that is in it; links are not followed."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            system.remove(path)
    except OSError as error:
        _refused(path, "deleting it", error)


def sync_directory(path: str) -> None:
    """Bring the names in a folder to the disk; "" is the working folder."""
    if memory.is_memory(path):
        return
    try:
        system.sync_directory(path or os.curdir)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):
            _refused(path or os.curdir, "syncing the folder", error)


def exists(path: str) -> bool:
    """Whether something is at a path."""
    try:
        system.stat_path(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        _refused(path, "looking for it", error)
    return True


def make_parent(path: str) -> None:
    """Make the folder of `path` and those above it, where they are absent."""
    servers.refuse(path)
    parent = os.path.dirname(path)
    try:
        if parent and not memory.is_memory(path):
            system.make_folders(parent)
    except OSError as error:
        _refused(parent, "making the folder", error)


def _refused(path: str, doing: str, error: OSError) -> NoReturn:
    if error.errno in (errno.EDEADLK, errno.ETIMEDOUT):
        raise _with_errno(ArchiveLockedError(f"{path}: {doing}: {error.strerror}"), error) from error
    reason = error.strerror or str(error)
    raise _with_errno(StorageError(f"{path}: {doing}: {reason}"), error) from error


def _with_errno(raised: Any, cause: OSError) -> Any:
    raised.errno = cause.errno
    raised.filename = cause.filename
    return raised
