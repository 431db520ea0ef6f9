"""One copy of an archive per host, in shared memory, for all processes and jobs of a user that ask for it.

The copy has the name of what it is a copy of: device, inode, size and time of the last write. A file that has
changed is another one, and gets a copy of its own.
"""

from __future__ import annotations

import errno
from contextlib import closing
from typing import Final

from edcache import base, format
from edcache.backends import copy_bytes
from edcache.backends.shm import memory
from edcache.base import ArchiveNotFoundError, StorageError, human_bytes
from edcache.storage import ByteSource, File, Location, Wrapped

_COPYING: Final = 0


class MemoryCopy(Wrapped):
    """The copy of an archive, open for reading; `token` is its name in memory. Messages name the archive."""

    def __init__(self, where: Location, name: str, data: File) -> None:
        super().__init__(data)
        self.path, self.token = where.path, name
        self._where = where

    def reopened(self) -> MemoryCopy:
        """The copy of what is there now."""
        return open_copy(self._where)


def open_copy(where: Location, token: str | None = None) -> MemoryCopy:
    """Copy an archive to memory, or join a copy that is there; one that another process makes is waited for.

    Args:
        token: of the copy that another process reads, though the archive may have changed since.
    """
    joined = None if token is None else _join(where, token)
    if joined is not None:
        return joined
    with closing(where.open()) as source:
        # Another container cannot be joined, though it may share the folder of the entries.
        tag = memory.process_namespace(), *source.tag()
        name = memory.PREFIX + "-".join(["preload", *map(str, tag)])
        return _join(where, name) or _made(where, source, name)


def _join(where: Location, name: str) -> MemoryCopy | None:
    """Open a copy that is there already and complete; else None."""
    try:
        file = File.open(name, "r")
    except ArchiveNotFoundError:
        return None
    if file.is_frozen():
        return MemoryCopy(where, name, file)
    file.close()
    return None


def _made(where: Location, source: ByteSource, name: str) -> MemoryCopy:
    with closing(File.open(name, "a")) as copy:
        copy.path = f"{source.path}: its copy in memory"
        with copy.locked(_COPYING):
            if not copy.is_frozen():
                _copy(source, copy)
                copy.freeze()
        # Before it is closed here, or it might be gone.
        joined = _join(where, name)
    assert joined is not None
    return joined


def _copy(source: ByteSource, copy: File) -> None:
    """Copy all; whoever was killed at it left some bytes, which are copied again."""
    format.read_head(source.pread, source.path)  # not gigabytes of what is no archive
    nbytes, free = source.size(), base.available() + copy.size()
    if nbytes > free:
        error = StorageError(
            f"{source.path}: takes {human_bytes(nbytes)} of memory, {human_bytes(free)} are free; end what "
            "else takes memory, or read it from the disk, without preload"
        )
        error.errno = errno.ENOMEM
        raise error
    copy_bytes(source, copy)
