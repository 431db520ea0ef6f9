"""The far archive: bytes at offsets, and what tells one state of it from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edcache import durable
from edcache.durable import ByteSource, File, Location

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


class RemoteOrigin:
    """An object behind a URL; what is read is of the state that it had when it was opened."""

    def __init__(self, source: ByteSource) -> None:
        self.path = source.path
        self._place = source

    def size(self) -> int:
        """Bytes of that state."""
        return self._place.size()

    def pread(self, offset: int, nbytes: int) -> bytes:
        """The bytes of an extent; what follows may be fetched with it."""
        return self._place.pread(offset, nbytes)

    def read_many(self, extents: Sequence[Extent]) -> list[bytes]:
        """The bytes of many extents, fetched all at a time."""
        return [bytes(data) for data in self._place.read_many(extents)]

    def identity(self) -> tuple[object, ...]:
        """What tells the state that was opened from others."""
        return self._place.tag()

    def close(self) -> None:
        """Let go of it."""
        self._place.close()


def open_origin(where: Location) -> Origin:
    """Open what is at a path or behind a URL; raises as `Location.open`."""
    return RemoteOrigin(where.open()) if where.by_request else FileOrigin(where.local_path())


def identity_at(where: Location) -> Identity:
    """The identity of what is there: of a path by one call of the system, of a URL by one or two requests.

    Raises:
        ArchiveNotFoundError, StorageError.
    """
    if not where.by_request:
        return as_identity(durable.stamp(where.local_path()))
    origin = open_origin(where)
    try:
        return as_identity(origin.identity())
    finally:
        origin.close()


def as_identity(said: object) -> Identity:
    """What `Origin.identity` says, as it is compared and kept."""
    return tuple(map(str, said)) if isinstance(said, (tuple, list)) else (str(said),)
