"""The calls that reach the operating system, all of them, so that a test can put others in their place.

What it refuses becomes an error of ours that keeps its errno: `refused`.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from edcache.base import ArchiveLockedError, StorageError
from edcache.storage.registry import naming_of

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Elsewhere the structure that these locks take is another one.
_HAS_OFD_LOCKS = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock on 64-bit Linux: type, whence, start, len, pid
# Where a lock is on the whole file (macOS), the one on this byte is taken and the others are not:
# fills that overlap then compute some samples twice, and the newer record wins.
WHOLE_FILE_LOCK: Final = 1 << 62
# Windows has no pread: there, threads take turns with the position. (It has no fork either.)
_position = threading.Lock()


class System:
    """The calls that reach the operating system, one method each; a test puts its own in place."""

    def open(self, path: str, flags: int, into: list[int]) -> None:
        """Append a descriptor that programs which this process starts do not inherit.

        An interrupt finds the file not open, or its descriptor in the list: between the instructions of
        Python code that held it in a variable it would be lost (tests/faults/test_interrupts.py).
        """
        naming_of(path).open(self, path, flags, into)

    def close(self, descriptors: list[int]) -> None:
        """Take the last descriptor out and close it; as with `open`, it is in the list or closed."""
        list(map(os.close, map(descriptors.pop, (-1,))))

    def stat(self, fd: int) -> os.stat_result:
        """Size, device and inode."""
        return os.fstat(fd)

    def stat_path(self, path: str) -> os.stat_result:
        """The same of what a path leads to."""
        return naming_of(path).stat(self, path)

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

    def pread_cached(self, fd: int, offsets: tuple[int, ...]) -> bool:
        """Whether the bytes at some offsets can be read without waiting for a disk."""
        try:
            for offset in offsets:
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
        try:
            os.makedirs(path, exist_ok=True)
        except RecursionError:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)) from None

    def copy_permissions(self, source: str, target: str) -> None:
        """Let `target` be read and written by whom `source` may be."""
        shutil.copymode(naming_of(source).entry(source), naming_of(target).entry(target))

    def replace(self, source: str, target: str) -> None:
        """Give `source` the name `target` in one step."""
        naming = naming_of(target)
        with naming.turn(self, target, creates=True):
            os.replace(naming_of(source).entry(source), naming.entry(target))

    def remove(self, path: str) -> None:
        """Take a file's name away."""
        naming = naming_of(path)
        with naming.turn(self, path):
            os.unlink(naming.entry(path))

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
            _ofd_lock(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, fcntl.F_WRLCK, start, length)
        elif start == WHOLE_FILE_LOCK:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def share(self, fd: int, start: int) -> None:
        """Lock a byte together with others who share it, waiting for one who has it alone; Linux only."""
        if _HAS_OFD_LOCKS:
            _ofd_lock(fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, start, 1)

    def is_locked(self, fd: int, start: int, length: int) -> bool:
        """Whether others hold a lock on one of the bytes; False where the system cannot tell."""
        return bool(_HAS_OFD_LOCKS and self.first_locked(fd, start, length) is not None)

    def first_locked(self, fd: int, start: int, length: int) -> int | None:
        """One of these bytes on which another holds a lock, if there is one; Linux only."""
        kind, _, byte, *_ = _FLOCK.unpack(_ofd_lock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length))
        return None if kind == fcntl.F_UNLCK else int(byte)

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
            _ofd_lock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, start, length)
        elif start == WHOLE_FILE_LOCK:
            fcntl.flock(fd, fcntl.LOCK_UN)


if sys.platform == "win32":

    def _windows_lock(fd: int, start: int, request: int) -> None:
        # msvcrt locks at the descriptor's position; nothing else here uses that position.
        os.lseek(fd, start, os.SEEK_SET)
        msvcrt.locking(fd, request, 1)

else:

    def _ofd_lock(fd: int, request: int, kind: int, start: int, length: int) -> bytes:
        return fcntl.fcntl(fd, request, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


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


def refused(path: str, doing: str, error: OSError) -> NoReturn:
    """Raise what an error of the system means that fell while `doing` something to a path."""
    if error.errno in (errno.EDEADLK, errno.ETIMEDOUT):
        raise with_errno(ArchiveLockedError(f"{path}: {doing}: {error.strerror}"), error) from error
    reason = error.strerror or str(error)
    if error.errno == errno.EMFILE and sys.platform != "win32":
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason += f"; this process may have {limit:,} (ulimit -n): "
        reason += "allow more, or open fewer archives and workers"
    raise with_errno(StorageError(f"{path}: {doing}: {reason}"), error) from error


def with_errno(raised: Any, cause: OSError) -> Any:
    """The same error, with the errno and file name of its cause."""
    raised.errno = cause.errno
    raised.filename = cause.filename
    return raised
