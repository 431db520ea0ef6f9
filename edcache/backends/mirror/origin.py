"""The far archive: bytes at offsets, and what tells one state of it from another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Protocol

from edcache import storage
from edcache.storage import ByteSource, File, Location

Identity = tuple[str, ...]
"""What changes when an origin does: of a file its size, the time of its last change and its inode."""

Extent = tuple[int, int]
"""(offset, nbytes)."""


class Origin(Protocol):
    """An archive that is copied, wherever it is.

    `pread` and `read_many` return fewer bytes only at the end; any thread may call them.
    """

    path: str

    def size(self) -> int:
        """Bytes."""

    def pread(self, offset: int, nbytes: int) -> bytes:
        """The bytes of an extent."""

    def read_many(self, extents: Sequence[Extent]) -> Sequence[bytes | memoryview]:
        """The bytes of many extents, in their order."""

    def identity(self) -> object:
        """A value, or a tuple of values, that another state of the archive has not; see `identity_of`."""

    def close(self) -> None:
        """Let go of it."""


Opener = Callable[[], Origin]


class _MountedFile(File):
    """A file on a file system that is mounted here."""

    def read_many(self, extents: Sequence[Extent]) -> list[memoryview]:
        """The bytes of many extents; the kernel is told of all before the first is read."""
        if len(extents) > 1:
            for offset, nbytes in extents:
                self.will_need(offset, nbytes)
        return super().read_many(extents)


def open_origin(where: Location) -> Origin:
    """Open what is at a path or behind a URL; raises as `Location.open`."""
    return where.open() if where.by_request else _MountedFile.open(where.local_path(), "r")


def identity_at(where: Location) -> Identity:
    """The identity of what is there: of a path by one call of the system, of a URL by one or two requests.

    Raises:
        ArchiveNotFoundError, StorageError.
    """
    if not where.by_request:
        return _as_text(storage.stamp(where.local_path()))
    with closing(open_origin(where)) as origin:
        return identity_of(origin)


def identity_of(origin: Origin) -> Identity:
    """The identity of an open origin, as it is compared and kept."""
    if isinstance(origin, File):
        # Not the device: a mount may have another number tomorrow.
        return _as_text(origin.stamp())
    return _as_text(origin.tag() if isinstance(origin, ByteSource) else origin.identity())


def _as_text(state: object) -> Identity:
    return tuple(map(str, state)) if isinstance(state, (tuple, list)) else (str(state),)
