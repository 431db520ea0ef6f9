"""A disk in memory: every call of storage.calls, a journal of what changed it, and kernel-like locks."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Any

from systems import System

WRITTEN_AT = 1_000.0
_FIRST_FD = 1 << 20  # no descriptor of the process is so large


@dataclass(eq=False)
class Inode:
    number: int
    data: bytearray
    locks: list[tuple[int, int, int]] = field(default_factory=list)  # (descriptor, first byte, one past)


@dataclass(eq=False)
class Open:
    inode: Inode
    writable: bool


class MemoryDisk(System):
    """Files by absolute path.

    Attributes:
        names: path -> inode. journal: what changed the disk, in order (see `explore.py`).
        open_files: descriptor -> what it has open.
    """

    def __init__(self, files: dict[str, bytes] | None = None, rebooted: bool = False) -> None:
        self.names = {path: Inode(k, bytearray(data)) for k, (path, data) in enumerate((files or {}).items())}
        self.open_files: dict[int, Open] = {}
        self.journal: list[tuple[Any, ...]] = []
        self.rebooted = rebooted
        self._inodes = len(self.names)
        self._next_fd = _FIRST_FD

    def files(self) -> dict[str, bytes]:
        return {path: bytes(inode.data) for path, inode in self.names.items()}

    @property
    def locked(self) -> list[tuple[int, int, int]]:
        return [lock for inode in self.names.values() for lock in inode.locks]

    # --- what storage.calls does ---

    def open(self, path: str, flags: int, mode: int) -> int:
        inode = self.names.get(path)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = self.names[path] = Inode(self._inodes, bytearray())
            self._inodes += 1
            self.journal.append(("create", path, inode))
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        fd, self._next_fd = self._next_fd, self._next_fd + 1
        self.open_files[fd] = Open(inode, bool(flags & os.O_RDWR))
        return fd

    def close(self, fd: int) -> None:
        inode = self._of(fd).inode
        kept = [lock for lock in inode.locks if lock[0] != fd]
        # From here on nothing takes memory: a kernel needs none to close.
        del self.open_files[fd]
        inode.locks = kept

    def _of(self, fd: int) -> Open:
        if fd not in self.open_files:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self.open_files[fd]

    def _writable(self, fd: int) -> Inode:
        opened = self._of(fd)
        if not opened.writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened.inode

    def stat(self, fd: int) -> os.stat_result:
        return _stat(self._of(fd).inode)

    def stat_path(self, path: str) -> os.stat_result:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _stat(self.names[path])

    def map(self, fd: int, nbytes: int) -> memoryview:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
        return bytes(self._of(fd).inode.data[offset : offset + nbytes])

    def next_data(self, fd: int, offset: int) -> int:
        if offset >= len(self._of(fd).inode.data):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return offset

    def pread_cached(self, fd: int, offsets: tuple[int, ...]) -> bool:
        return True

    def will_need(self, fd: int, offset: int, nbytes: int) -> None:
        self._of(fd)

    def write_back(self, fd: int, offset: int, nbytes: int) -> None:
        self._of(fd)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        inode = self._writable(fd)
        written = bytes(data)
        if len(inode.data) < offset:
            inode.data.extend(bytes(offset - len(inode.data)))
        inode.data[offset : offset + len(written)] = written
        self.journal.append(("write", inode, offset, written))
        return len(written)

    def truncate(self, fd: int, size: int) -> None:
        inode = self._writable(fd)
        del inode.data[size:]
        inode.data.extend(bytes(size - len(inode.data)))
        self.journal.append(("truncate", inode, size))

    def sync(self, fd: int) -> None:
        self.journal.append(("sync", self._of(fd).inode))

    def sync_directory(self, path: str) -> None:
        self.journal.append(("sync_directory",))

    def make_folders(self, path: str) -> None:
        return

    def copy_permissions(self, source: str, target: str) -> None:
        self.stat_path(source), self.stat_path(target)

    def replace(self, source: str, target: str) -> None:
        self.names[target] = self.names.pop(source)
        self.journal.append(("replace", source, target))

    def remove(self, path: str) -> None:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        del self.names[path]
        self.journal.append(("remove", path))

    def boot_time(self) -> float | None:
        return WRITTEN_AT + 1_000 if self.rebooted else 0.0

    def lock(self, fd: int, start: int, length: int, wait: bool) -> None:
        inode = self._writable(fd)
        if self.is_locked(fd, start, length):
            assert not wait, f"descriptor {fd} would wait for ever for byte {start}: {inode.locks}"
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.unlock(fd, start, length)
        inode.locks.append((fd, start, start + length))

    def is_locked(self, fd: int, start: int, length: int) -> bool:
        locks = self._of(fd).inode.locks
        return any(owner != fd and low < start + length and start < high for owner, low, high in locks)

    def unlock(self, fd: int, start: int, length: int) -> None:
        inode, end, kept = self._of(fd).inode, start + length, []
        for owner, low, high in inode.locks:
            if owner != fd:
                kept.append((owner, low, high))
                continue
            kept += [(owner, a, b) for a, b in ((low, min(high, start)), (max(low, end), high)) if a < b]
        inode.locks = kept


def _stat(inode: Inode) -> os.stat_result:
    mode = stat.S_IFREG | 0o644
    return os.stat_result(
        (mode, inode.number, 1, 1, 0, 0, len(inode.data), WRITTEN_AT, WRITTEN_AT, WRITTEN_AT),
        {"st_mtime_ns": int(WRITTEN_AT) * 10**9},
    )
