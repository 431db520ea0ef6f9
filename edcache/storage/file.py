"""`File`: one open file, read, written and locked at offsets."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from edcache import base
from edcache.base import ArchiveNotFoundError, Sound, StorageError
from edcache.storage import calls, memory
from edcache.storage.errors import storage_error
from edcache.storage.handle import Handle, identity_of
from edcache.storage.paths import Stamp, absolute, exists, replace, stamp_of, status_of
from edcache.storage.source import ByteSource

RECOVERY: Final = ".edcache.cut"
"""Ending of the name of the file that stands beside an archive while it is recovered after a power cut."""
_MAX_OFFSET: Final = 1 << 62
_MOUNTS = "/proc/self/mountinfo"
_REMOTE: Final = (
    *("nfs", "cifs", "smb", "fuse", "lustre", "gpfs", "ceph", "9p", "afs", "beegfs", "gluster", "pvfs"),
)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
# Neighbours are read by one call: records lie up to 64 bytes apart.
_GAP_NBYTES, _TOGETHER_NBYTES = 1 << 10, 1 << 22
_MAX_WRITE: Final = 1 << 30  # Linux moves at most 0x7ffff000 bytes a call

T = TypeVar("T")


class File(Handle, ByteSource):
    """One open regular file, read and written at offsets.

    Attributes:
        can_lock: False after the file system has refused locks. Others as of `Handle`.

    Every method raises StorageError, with the errno, if the operating system refuses. A full disk gives
    "train.zip: writing 4,096 bytes at offset 8,192: No space left on device".
    Safety: there is no file position, so threads and forked processes may read at once. A read during a
    close returns its bytes or raises ArchiveError. A lock belongs to the open file description: only
    the process that took it may release it.
    """

    is_live = True
    can_lock = True

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
        return self._identity

    def stamp(self) -> Stamp:
        """State of the file, equal after its disk was mounted again; see `Stamp`."""
        return stamp_of(self._stat())

    def tag(self) -> tuple[int, ...]:
        """Identity, bytes, and time of the last write in ns since 1970."""
        return *self._identity, *self.stamp()[:2]

    def reopened(self) -> File:
        """Open the file that has the path now, for reading."""
        return File.open(self.path, "r")

    def is_named(self) -> bool:
        """True if the path still leads to this file: it was neither deleted nor replaced."""
        with suppress(ArchiveNotFoundError):
            return identity_of(status_of(self.absolute)) == self._identity
        return False

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
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

    def read_many(
        self, extents: Sequence[tuple[int, int]], checks: Sequence[Sound] | None = None
    ) -> list[memoryview]:
        """Read extents (offset, nbytes), neighbours together; shorter only at the end of the file."""
        data: list[memoryview] = []
        for run in _neighbours(extents):
            start, end = run[0][0], sum(run[-1])
            read = memoryview(self.pread(start, end - start))
            data += (read[offset - start : offset - start + nbytes] for offset, nbytes in run)
        return data

    def next_data(self, offset: int) -> int:
        """Offset of the next data from this one on, by the holes of the file; its size if there is none."""
        try:
            return self._call(calls.next_data, offset)
        except OSError as error:
            return self.size() if error.errno == errno.ENXIO else offset

    def map(self, nbytes: int) -> memoryview:
        """Map the first bytes of the file as read-only memory, which stays valid after `close`.

        If another program truncates the file, reading the memory gives zeros or a SIGBUS.
        """
        try:
            call = memory.map_apart if memory.is_in_memory(self.absolute) else calls.map
            return self._ask(f"mapping {nbytes:,} bytes", call, nbytes)
        except (OverflowError, MemoryError, ValueError) as error:  # the last where it was cut meanwhile
            raise StorageError(f"{self.path}: mapping {nbytes:,} bytes: {error}", path=self.path) from error

    def are_cached(self, offsets: Sequence[int]) -> bool:
        """True if the pages of some offsets are in memory; True if the system cannot tell."""
        try:
            return self._call(calls.pread_cached, tuple(offsets))
        except OSError:  # EOPNOTSUPP: the file system cannot tell
            return True

    def will_need(self, extents: Sequence[tuple[int, int]]) -> None:
        """Announce that extents (offset, nbytes) will be read soon; a hint."""
        # Advice that is refused costs time and nothing else.
        with suppress(OSError):
            for extent in extents:
                self._call(calls.will_need, *extent)

    def write_back(self, offset: int, nbytes: int) -> None:
        """Start writing a range to the disk, so that a later sync waits less; a hint."""
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

    def reserve(self, offset: int, nbytes: int) -> None:
        """Take the disk space of a range, so that writing it cannot fail for want of room."""
        self._ask(f"taking {nbytes:,} bytes at offset {offset:,}", calls.reserve, offset, nbytes)

    def sync(self) -> None:
        """Write all data to the disk and wait for it. After a failure, do not use this file again."""
        self._ask("syncing it; what was written since the last sync is in doubt", calls.sync)

    @contextmanager
    def locked(self, start: int) -> Iterator[None]:
        """Hold the lock on byte `start` for the block, waiting for it as long as it takes."""
        try:
            try:
                self.lock(start)
                yield
            finally:
                self.unlock(start)
        except BaseException:  # an interrupt within the first way out (tests/faults/soak_interrupts.py)
            self.unlock(start)
            raise

    def lock(self, start: int, length: int = 1) -> None:
        """Lock bytes for this open file; waits until no other one holds them (signals interrupt)."""
        self._lock(calls.lock, start, length, True)

    def try_lock(self, start: int, length: int = 1) -> bool:
        """Lock bytes if no other open file holds them; returns whether it did."""
        try:
            self._lock(calls.lock, start, length, False)
        except StorageError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def share(self, start: int) -> None:
        """Take a shared lock on byte `start`: an exclusive one is refused meanwhile.

        A file opened with "r" can share. A forked child shares too, and the lock ends with the last copy of
        the descriptor. Nothing on macOS.
        """
        self._lock(calls.share, start)

    def _lock(self, call: Callable[..., object], *arguments: Any) -> None:
        """Lock; if the file system has no locks, warn once and continue."""
        if self._ask_locks("locking it", call, *arguments) is False and self.can_lock:
            self.can_lock = False
            base.warn(
                f"{self.path}: its file system has no byte locks, so that processes cannot share the "
                "work; see that only one writes at a time, or build it on a local disk and copy it"
            )

    def _ask_locks(self, doing: str, call: Callable[..., T], *arguments: Any) -> T | Literal[False]:
        """As `_ask`; False if the file system has no locks."""
        try:
            return self._call(call, *arguments)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise storage_error(self.path, doing, error) from error
            return False

    def is_locked(self, start: int, length: int) -> bool:
        """True if another open file has locked one of the bytes; False if the system cannot tell."""
        return self._ask_locks("asking for its locks", calls.is_locked, start, length)

    def unlock(self, start: int, length: int = 1) -> None:
        """Release bytes that this open file locked; nothing if it is closed."""
        if not self.closed:
            self._ask_locks("releasing a lock", calls.unlock, start, length)


def _neighbours(extents: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Split extents (offset, nbytes) into runs that are read by one call each."""
    run: list[tuple[int, int]] = []
    for offset, nbytes in extents:
        if run:
            gap, together = offset - sum(run[-1]), offset + nbytes - run[0][0]
            if not (0 <= gap <= _GAP_NBYTES and together <= _TOGETHER_NBYTES):
                yield run
                run = []
        run.append((offset, nbytes))
    if run:
        yield run


def move(file: File, target: str) -> None:
    """Rename an open file to `target` atomically, then sync the folder.

    Processes that have the old file of that name open keep it.
    """
    replace(file.absolute, target)
    file.path, file.absolute = target, absolute(target)


def _filesystem(device: int) -> str:
    """Type of the file system of a device number; "" if the system does not tell."""
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        text = Path(_MOUNTS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.split(" - ") for line in text.splitlines()]
    types = [after.split()[0] for before, *rest in lines for after in rest[:1] if before.split()[2] == name]
    return types[-1] if types else ""


def is_fresh(file: File) -> bool:
    """True if no power cut came after the last write, or its recovery has ended: the running kernel made the write."""
    boot_time, written = calls.boot_time(), file.stamp()[1] / 1e9
    return boot_time is not None and written > boot_time + 1 and not exists(file.absolute + RECOVERY)
