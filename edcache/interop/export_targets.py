"""Where an export is written: beside its path, until all of it is there."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import IO, Any, Final

from edcache import storage, writer
from edcache.base import ArchiveExistsError, EdcacheError
from edcache.storage import File

_BUFFER: Final = 1 << 20


def check_free(out: str) -> None:
    """Raise ArchiveExistsError where something is in the way."""
    if storage.exists(out):
        raise ArchiveExistsError(f"{out}: exists already; give a path where nothing is")


@contextmanager
def new_folder(out: str) -> Iterator[str]:
    """A folder to write into, `out + ".edcache.new"`, that gets its name when the block ends well, else goes.

    Raises:
        ArchiveExistsError: something is at `out`.
        ArchiveLockedError: another process writes there.
    """
    check_free(out)
    with closing(writer.start(out, is_folder=True)) as session:
        work = os.path.dirname(session.path)
        try:
            yield work
            check_free(out)
            # With the file that is locked, so that nobody else begins meanwhile.
            storage.replace(work, out)
            storage.remove(os.path.join(out, writer.SUFFIX))
        except BaseException:
            # The error that led here is the one to report; prune deletes what could not be.
            with suppress(EdcacheError):
                storage.remove_tree(work)
            raise


@contextmanager
def new_file(out: str) -> Iterator[IO[bytes]]:
    """A file to write, `out + ".edcache.new"`, that gets its name, synced, when the block ends well.

    Raises: as `new_folder`.
    """
    check_free(out)
    with writer.replacing(out) as session:
        with io.BufferedWriter(_Writing(session), _BUFFER) as stream:
            yield stream
        session.sync()
        check_free(out)
        storage.move(session, out)


@contextmanager
def shard(path: str, sync: bool = True) -> Iterator[IO[bytes]]:
    """A new file in a folder that is being written; it is brought to the disk when the block ends well."""
    file = File.open(path, "x")
    try:
        with io.BufferedWriter(_Writing(file), _BUFFER if sync else io.DEFAULT_BUFFER_SIZE) as stream:
            yield stream
        if sync:
            file.sync()
    finally:
        file.close()


class _Writing(io.RawIOBase):
    """A durable file as Python's libraries write to one: its errors are those of all files here."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._position = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.pwrite(self._position, view)
        self._position += len(view)
        return len(view)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = (0, self._position, self._file.size())[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position
