"""Archives in shared memory: "shm://digits" is the path of a file in the user's own folder of /dev/shm.

The file is deleted when the last process that has it open closes it (`edcache/storage/memory.py`). In all
else it is an ordinary archive.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

from edcache import format, storage
from edcache.backends import FileStore, copy_bytes
from edcache.base import ArchiveNotFoundError, OptionError, StorageError, human_bytes
from edcache.storage import MORE_MEMORY, ByteSource, File, Location
from edcache.writer import SUFFIX

_PREFIX: Final = "shm://"
_ENDING: Final = ".zip"
_MOST_NAME: Final = 200
# The byte of a copy that is being made, which is locked by its maker.
_MAKING: Final = format.LOCK_SESSION


def folder_for(name: str) -> str:
    """The folder of the files, made if it is absent; what killed processes left there is deleted."""
    if not os.path.isdir("/dev/shm"):  # noqa: S108 - only looked for
        raise OptionError(
            f"{name}: shared memory takes Linux with /dev/shm; elsewhere give the path of a file, "
            "on a RAM disk for instance"
        )
    try:
        folder = storage.make_memory_folder()
    except OSError as error:
        raise storage.storage_error(name, "making its folder", error) from error
    storage.free_unheld_memory()
    return folder


def _path_in(folder: str, name: str) -> str:
    return os.path.join(folder, quote(name, safe="") + _ENDING)


class MemoryStore(FileStore):
    """A cache in shared memory."""

    # DataLoader workers that find no room for their batches die.
    max_bytes = 0.75
    # A process has it open, or it would be deleted.
    gives_way = False

    def __init__(self, text: str, storage_options: Mapping[str, Any] | None = None) -> None:
        if not storage.is_in_memory(text):
            if not text.startswith(_PREFIX):
                raise OptionError(f'{text}: write it as text, "{_PREFIX}name"; a Path has lost a slash')
            name = text[len(_PREFIX) :]
            if not 0 < len(quote(name, safe="")) <= _MOST_NAME or "\0" in name:
                raise OptionError(f'{text}: give 1 to {_MOST_NAME} letters after "{_PREFIX}"')
            text = _path_in(folder_for(text), name)
        super().__init__(text, storage_options)

    def local_path(self) -> str:
        raise OptionError(
            f"{self.path}: an archive in shared memory is deleted when nobody has it open; give the path of "
            "a file, or make it with CachedDataset(source, path), which keeps it open"
        )

    def open(self) -> ByteSource:
        """See the base class; who unpickles a reader of it opens it at once, while the sender has it open."""
        file = super().open()
        file.token = self.path
        return file

    @contextmanager
    def held(self) -> Iterator[None]:
        self._file = File.open(self.path, "a")
        try:
            yield
        finally:
            self._file.close()
            del self._file  # a store is pickled with its dataset, and a file is not

    def begin_anew(self) -> bool:
        """See the base class; whoever has the old archive open keeps it. Within the block of `held`."""
        storage.remove(self.path)
        self._file = File.open(self.path, "a")
        return True


class MemoryCopy(File):
    """The copy of an archive, open for reading; `token` is its path. Messages name the archive."""

    is_live = False

    def __init__(self, where: Location, path: str) -> None:
        super().__init__(path, "r")
        self.path, self.token, self._where = where.path, path, where

    def reopened(self) -> File:
        source = open_copy(self._where)
        assert isinstance(source, File)
        return source


def open_copy(where: Location, token: str | None = None) -> ByteSource:
    """Copy an archive to shared memory, once for all processes of the user, or open the copy that is there.

    A copy is named after the state of the archive: device, inode, size, time of the last write. An archive
    that has changed gets another copy. What is in shared memory already is opened.

    Args:
        token: of the copy that another process reads, though the archive may have changed since.
    """
    if token is not None:
        with suppress(ArchiveNotFoundError):
            return MemoryCopy(where, token)
    source = where.open()
    if storage.is_in_memory(source.path):
        return source
    with closing(source):
        name = "-".join(["preload", *map(str, source.tag())])
        return _copied(where, source, _path_in(folder_for(source.path), name))


def _copied(where: Location, source: ByteSource, path: str) -> MemoryCopy:
    """Open the copy at a path; the first process makes it, others wait for it."""
    while True:
        with suppress(ArchiveNotFoundError):
            return MemoryCopy(where, path)
        with closing(File.open(path + SUFFIX, "a")) as copy, copy.locked(_MAKING):
            # Whoever had the lock before has renamed it, unless it was killed.
            if copy.is_named():
                copy.path = f"{source.path}: its copy in shared memory"
                copy.truncate(0)
                _check_room(source)
                copy_bytes(source, copy)
                storage.replace(copy.absolute, path)
                return MemoryCopy(where, path)


def _check_room(source: ByteSource) -> None:
    format.read_head(source.pread, source.path)  # raises if it is no archive, before gigabytes are copied
    status = os.statvfs(storage.memory_folder())
    nbytes, free = source.size(), status.f_bavail * status.f_frsize
    if nbytes > free:
        error = StorageError(
            f"{source.path}: takes {human_bytes(nbytes)} of shared memory, /dev/shm has {human_bytes(free)} "
            f"left; {MORE_MEMORY}, or read it from the disk, without preload"
        )
        error.errno = errno.ENOSPC
        raise error
