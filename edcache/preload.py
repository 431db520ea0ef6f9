"""One copy of an archive per host, in shared memory, for all processes and jobs of a user that ask for it.

The copy has the name of what it is a copy of: device, inode, size and time of the last write. A file that has
changed is another one, and gets a copy of its own.
"""

from __future__ import annotations

import errno
from contextlib import closing
from typing import Final

from edcache import format, memory
from edcache.durable import File
from edcache.errors import ArchiveNotFoundError, StorageError
from edcache.places import Place, Where, open_place
from edcache.sizes import human_bytes

_COPYING: Final = 0
_PIECE_NBYTES: Final = 1 << 24


class Preloaded(File):
    """The copy of a file, open for reading; messages name the file.

    Attributes:
        name: of the copy in memory; the same for all who share it. where: what it is a copy of.
    """

    name: str
    where: Where

    @classmethod
    def join(cls, where: Where, name: str) -> Preloaded | None:
        """Open a copy that is there already and complete; else None."""
        try:
            file = cls.open(name, "r")
        except ArchiveNotFoundError:
            return None
        assert isinstance(file, Preloaded)
        file.path = where if isinstance(where, str) else where.shown
        file.name, file.where = name, where
        if file.is_frozen():
            return file
        file.close()
        return None

    @classmethod
    def of(cls, where: Where) -> Preloaded:
        """Copy a file to memory, or join a copy that is there; one that another process makes is waited for.

        Raises:
            StorageError: "train.zip: takes 120.0 GB of memory, 80.0 GB are free; ...". ArchiveNotFoundError.
        Cost: the first process of the host reads the file once.
        """
        with closing(open_place(where)) as source:
            # Another container cannot be joined, though it may share the folder of the entries.
            tag = memory.process_namespace(), *source.tag()
            name = memory.PREFIX + "-".join(["preload", *map(str, tag)])
            return cls.join(where, name) or cls._made(where, source, name)

    @classmethod
    def _made(cls, where: Where, source: Place, name: str) -> Preloaded:
        with closing(File.open(name, "a")) as copy:
            copy.path = f"{source.path}: its copy in memory"
            with copy.locked(_COPYING):
                if not copy.is_frozen():
                    _copy(source, copy)
                    copy.freeze()
            # Before it is closed here, or it might be gone.
            file = cls.join(where, name)
        assert file is not None
        return file

    def reopened(self) -> File:
        """The copy of what the path leads to now."""
        return Preloaded.of(self.where)


def _copy(source: Place, copy: File) -> None:
    """Copy all; whoever was killed at it left some bytes, which are copied again."""
    format.read_head(source.pread, source.path)  # not gigabytes of what is no archive
    nbytes, free = source.size(), memory.available() + copy.size()
    if nbytes > free:
        error = StorageError(
            f"{source.path}: takes {human_bytes(nbytes)} of memory, {human_bytes(free)} are free; end what "
            "else takes memory, or read it from the disk, without preload"
        )
        error.errno = errno.ENOMEM
        raise error
    offset = 0
    while piece := source.pread(offset, min(_PIECE_NBYTES, nbytes - offset)):
        copy.pwrite(offset, piece)
        offset += len(piece)
