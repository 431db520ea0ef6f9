"""The calls of the operating system by which archives are read, written, locked and renamed.

They are called through this module, `calls.pread(...)`, so that a test can put others in their place
(tests/kit/systems.py).
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import struct
import sys
import time
import typing

# On other systems `struct flock` has another layout.
_HAS_OFD_LOCKS = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_FLOCK: typing.Final = struct.Struct("hhqqi0q")  # struct flock on 64-bit Linux: type, whence, start, len, pid
# macOS locks only whole files. There the lock on this byte locks the file, and other locks do nothing:
# concurrent fills then compute some samples twice, and the newer record counts.
WHOLE_FILE_LOCK: typing.Final = 1 << 62

open = os.open
close = os.close
stat = os.fstat
stat_path = os.stat
pread = os.pread
pwrite = os.pwrite
truncate = os.ftruncate
replace = os.replace
remove = os.unlink
touch = os.utime
copy_permissions = shutil.copymode


def map(fd: int, nbytes: int) -> memoryview:
    """The first bytes of a file as read-only memory, which all processes that map it share.

    Raises: ValueError, the file has fewer: reading behind its end would be a SIGBUS.
    """
    if not nbytes:
        return memoryview(b"")
    # Else it keeps a descriptor of its own.
    options: typing.Any = {"trackfd": False} if sys.version_info >= (3, 13) else {}
    return memoryview(mmap.mmap(fd, nbytes, prot=mmap.PROT_READ, **options))


def next_data(fd: int, offset: int) -> int:
    """The offset of the next bytes that are not in a hole; `offset` itself if the system cannot tell."""
    return os.lseek(fd, offset, os.SEEK_DATA) if hasattr(os, "SEEK_DATA") else offset


def pread_cached(fd: int, offsets: tuple[int, ...]) -> bool:
    """True if the bytes at some offsets can be read without waiting for a disk, or if the system cannot tell."""
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
        return True
    try:
        for offset in offsets:
            os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    return True


def will_need(fd: int, offset: int, nbytes: int) -> None:
    """Start reading a range into the page cache; nothing if the system cannot."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)


def write_back(fd: int, offset: int, nbytes: int) -> None:
    """Start writing a range to the disk; nothing if the system cannot."""
    # DONTNEED drops only pages that are on the disk already, so not the pages that were just written.
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)


def reserve(fd: int, offset: int, nbytes: int) -> None:
    """Take the disk space of a range; nothing if the system cannot."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, nbytes)


def sync(fd: int) -> None:
    """Write the file's data and size to the disk, and wait for it."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there does not flush the drive's cache
    else:
        os.fdatasync(fd)


def sync_directory(path: str) -> None:
    """Write a folder's names to the disk, and wait for it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(path: str) -> None:
    """Make a folder and its parents if they are absent."""
    try:
        os.makedirs(path, exist_ok=True)
    except RecursionError:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)) from None


def boot_time() -> float | None:
    """The start of this machine, in seconds since 1970, by the clock of file times; None if unknown."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def lock(fd: int, start: int, length: int, wait: bool) -> None:
    """Lock bytes exclusively. Without `wait`, raise BlockingIOError if another open file holds them."""
    if _HAS_OFD_LOCKS:
        _ofd_lock(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, fcntl.F_WRLCK, start, length)
    elif start == WHOLE_FILE_LOCK:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def share(fd: int, start: int) -> None:
    """Take a shared lock on a byte. It waits for an exclusive lock to end. Linux only."""
    if _HAS_OFD_LOCKS:
        _ofd_lock(fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, start, 1)


def is_locked(fd: int, start: int, length: int) -> bool:
    """True if another open file holds a lock on one of the bytes; False if the system cannot tell."""
    if not _HAS_OFD_LOCKS:
        return False
    kind, *_ = _FLOCK.unpack(_ofd_lock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length))
    return bool(kind != fcntl.F_UNLCK)


def unlock(fd: int, start: int, length: int) -> None:
    """Release the locks that `lock` took on bytes."""
    if _HAS_OFD_LOCKS:
        _ofd_lock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, start, length)
    elif start == WHOLE_FILE_LOCK:
        fcntl.flock(fd, fcntl.LOCK_UN)


def _ofd_lock(fd: int, request: int, kind: int, start: int, length: int) -> bytes:
    return fcntl.fcntl(fd, request, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
