"""The far archive: bytes at offsets, and what tells one state of it from another."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

from edcache import durable
from edcache.durable import File
from edcache.places import local_path

Identity = tuple[str, ...]
"""What changes when an origin does: of a file its size, the time of its last change and its inode."""

Extent = tuple[int, int]
"""(offset, nbytes)."""


class Origin(Protocol):
    """An archive that is copied, wherever it is.

    `identity` is equal as long as the archive is the same: of a file (size, time, inode), elsewhere an ETag.
    `pread` and `read_many` return fewer bytes only at the end; any thread may call them.
    """

    path: str

    def size(self) -> int:
        """Bytes."""
        ...

    def pread(self, offset: int, nbytes: int) -> bytes:
        """The bytes of an extent."""
        ...

    def read_many(self, extents: Sequence[Extent]) -> list[bytes]:
        """The bytes of many extents, in their order."""
        ...

    def identity(self) -> object:
        """A value, or a tuple of values, that another state of the archive has not."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


Opener = Callable[[], Origin]


class FileOrigin:
    """A file on a file system that is mounted here."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = File.open(path, "r")

    def size(self) -> int:
        """Bytes of the file now."""
        return self._file.size()

    def pread(self, offset: int, nbytes: int) -> bytes:
        """The bytes of an extent."""
        return self._file.pread(offset, nbytes)

    def read_many(self, extents: Sequence[Extent]) -> list[bytes]:
        """The bytes of many extents; the kernel is told of all before the first is read."""
        if len(extents) > 1:
            for offset, nbytes in extents:
                self._file.will_need(offset, nbytes)
        return [self._file.pread(offset, nbytes) for offset, nbytes in extents]

    def identity(self) -> durable.Stamp:
        """Size, time of the last change, inode. Not the device: a mount may have another number tomorrow."""
        return self._file.stamp()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_origin(path: str) -> Origin:
    """Open what is at a path; raises as `File.open`."""
    return FileOrigin(path)


def identity_at(path: str) -> Identity:
    """The identity of what is at a path, by one call of the system, without opening it.

    Raises:
        ArchiveNotFoundError, StorageError.
    """
    return as_identity(durable.stamp(path))


def as_identity(said: object) -> Identity:
    """What `Origin.identity` says, as it is compared and kept."""
    return tuple(map(str, said)) if isinstance(said, (tuple, list)) else (str(said),)


def full_path(path: str | os.PathLike[str]) -> str:
    """The path that names an origin from everywhere on this machine.

    Raises:
        OptionError: it is a URL of what is no file.
    """
    return os.path.abspath(local_path(path))
