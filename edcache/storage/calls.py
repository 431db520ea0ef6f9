"""All calls of the operating system, in one class, so that a test can replace them.

`refused` turns an OSError into an edcache error with the same errno.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import struct
import sys
import threading
import time
from functools import cache, partial
from typing import Any, Final, NoReturn

import numpy as np

from edcache.base import ArchiveLockedError, StorageError
from edcache.storage.registry import naming_of

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# On other systems `struct flock` has another layout.
_HAS_OFD_LOCKS = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock on 64-bit Linux: type, whence, start, len, pid
# macOS locks only whole files. There the lock on this byte locks the file, and other locks do nothing:
# concurrent fills then compute some samples twice, and the newer record counts.
WHOLE_FILE_LOCK: Final = 1 << 62
# Windows has no pread: threads take turns with the file position. (It has no fork either.)
_position = threading.Lock()


_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_PUNCH_HOLE: Final = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


@cache
def _libc() -> Any:
    """The C library's calls that Python has no way to."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if sys.platform == "linux":
        library.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return library


class _Mapping:
    """Mapped memory, until no array over it is left."""

    __slots__ = ("__array_interface__", "_unmap")

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, True),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
        # Bound here: when the interpreter ends, the module's names may go before.
        self._unmap = partial(_libc().munmap, address, nbytes)

    def __del__(self) -> None:
        self._unmap()


class System:
    """The calls of the operating system, one method each. A test replaces the object."""

    def open(self, path: str, flags: int, into: list[int]) -> None:
        """Open a file and append its descriptor, which child programs do not inherit.

        An interrupt between two Python instructions would lose a descriptor in a variable. With the list, the
        file is not open, or its descriptor is in the list (tests/faults/test_interrupts.py).
        """
        naming_of(path).open(self, path, flags, into)

    def close(self, descriptors: list[int]) -> None:
        """Remove the last descriptor and close it. As in `open`, an interrupt loses none."""
        list(map(os.close, map(descriptors.pop, (-1,))))

    def stat(self, fd: int) -> os.stat_result:
        """Size, device and inode."""
        return os.fstat(fd)

    def stat_path(self, path: str) -> os.stat_result:
        """Size, device and inode of the file at a path."""
        return naming_of(path).stat(self, path)

    def map(self, fd: int, nbytes: int) -> memoryview:
        """The first bytes of a file as read-only memory, which all processes that map it share."""
        if sys.platform == "win32":
            return memoryview(mmap.mmap(fd, nbytes, access=mmap.ACCESS_READ))
        # Python's own mapping keeps a descriptor, of which a process may have a thousand.
        if os.fstat(fd).st_size < nbytes:
            raise ValueError("the file has fewer")  # what is behind its end would be a SIGBUS
        if not nbytes:
            return memoryview(b"")
        address = _libc().mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return np.asarray(_Mapping(address, nbytes)).data

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        """Read at an offset, without the file position of the descriptor."""
        if hasattr(os, "pread"):
            return os.pread(fd, nbytes, offset)
        with _position:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.read(fd, nbytes)

    def next_data(self, fd: int, offset: int) -> int:
        """The offset of the next bytes that are not in a hole; `offset` itself if the system cannot tell."""
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
        """Start reading a range into the page cache."""
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_WILLNEED)

    def write_back(self, fd: int, offset: int, nbytes: int) -> None:
        """Start writing a range to the disk."""
        # DONTNEED drops only pages that are on the disk already, so not the pages that were just written.
        os.posix_fadvise(fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write at an offset. Returns the number of bytes that were written."""
        if hasattr(os, "pwrite"):
            return os.pwrite(fd, data, offset)
        with _position:
            os.lseek(fd, offset, os.SEEK_SET)
            return os.write(fd, data)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    def reserve(self, fd: int, offset: int, nbytes: int) -> None:
        """Take the disk space of a range; nothing where the system cannot."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, offset, nbytes)

    def punch(self, fd: int, offset: int, nbytes: int) -> None:
        """Give back the disk space of a range, which reads as zeros from then on. Linux only."""
        if sys.platform != "linux":
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if _libc().fallocate(fd, _PUNCH_HOLE, offset, nbytes):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def sync(self, fd: int) -> None:
        """Write the file's data and size to the disk, and wait for it."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there does not flush the drive's cache
        elif hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def sync_directory(self, path: str) -> None:
        """Write a folder's names to the disk, and wait for it. On Windows it does nothing."""
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_folders(self, path: str) -> None:
        """Make a folder and its parents if they are absent."""
        try:
            os.makedirs(path, exist_ok=True)
        except RecursionError:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)) from None

    def copy_permissions(self, source: str, target: str) -> None:
        """Give `target` the permissions of `source`."""
        shutil.copymode(naming_of(source).entry(source), naming_of(target).entry(target))

    def replace(self, source: str, target: str) -> None:
        """Rename `source` to `target` atomically."""
        naming = naming_of(target)
        with naming.turn(self, target, creates=True):
            os.replace(naming_of(source).entry(source), naming.entry(target))

    def remove(self, path: str) -> None:
        """Delete a file's name."""
        naming = naming_of(path)
        with naming.turn(self, path):
            os.unlink(naming.entry(path))

    def touch(self, path: str) -> None:
        """Set the times of a file to now."""
        os.utime(path)

    def boot_time(self) -> float | None:
        """The start of this machine, in seconds since 1970, by the clock of file times; None if unknown."""
        if not hasattr(time, "CLOCK_BOOTTIME"):
            return None
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)

    def lock(self, fd: int, start: int, length: int, wait: bool) -> None:
        """Lock bytes exclusively. Without `wait`, raise BlockingIOError if another process holds them."""
        if sys.platform == "win32":
            _windows_lock(fd, start, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK)
        elif _HAS_OFD_LOCKS:
            _ofd_lock(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, fcntl.F_WRLCK, start, length)
        elif start == WHOLE_FILE_LOCK:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def share(self, fd: int, start: int) -> None:
        """Take a shared lock on a byte. It waits for an exclusive lock to end. Linux only."""
        if _HAS_OFD_LOCKS:
            _ofd_lock(fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, start, 1)

    def is_locked(self, fd: int, start: int, length: int) -> bool:
        """Whether another open file holds a lock on one of the bytes; False if the system cannot tell."""
        return bool(_HAS_OFD_LOCKS and self.first_locked(fd, start, length) is not None)

    def first_locked(self, fd: int, start: int, length: int) -> int | None:
        """One of the bytes that another open file has locked; None if there is none. Linux only."""
        kind, _, byte, *_ = _FLOCK.unpack(_ofd_lock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, length))
        return None if kind == fcntl.F_UNLCK else int(byte)

    def freeze(self, fd: int) -> None:
        """Forbid writing and resizing of a memory file, permanently. Linux only."""
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)

    def is_frozen(self, fd: int) -> bool:
        """Whether any process called `freeze` for the memory file."""
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
        # msvcrt locks at the file position, which nothing else in edcache uses.
        os.lseek(fd, start, os.SEEK_SET)
        msvcrt.locking(fd, request, 1)

else:

    def _ofd_lock(fd: int, request: int, kind: int, start: int, length: int) -> bytes:
        return fcntl.fcntl(fd, request, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))


# A test sets another one.
system: System = System()


def refused(path: str, doing: str, error: OSError) -> NoReturn:
    """Raise the StorageError or ArchiveLockedError for an OSError that came while `doing` something."""
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
