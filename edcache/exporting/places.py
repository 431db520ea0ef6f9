"""Where an export is written: beside its path, until all of it is there."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

from edcache import durable, format
from edcache.durable import File
from edcache.errors import ArchiveExistsError, ArchiveLockedError
from edcache.writer import start_replacing

_MARK: Final = ".edcache-export"
_BUFFER: Final = 1 << 20


def check_free(out: str) -> None:
    """Raise ArchiveExistsError where something is in the way."""
    if durable.exists(out):
        raise ArchiveExistsError(f"{out}: exists already; give a path where nothing is")


@contextmanager
def new_folder(out: str) -> Iterator[str]:
    """A folder to write into, `out + ".new"`, that gets its name when the block ends well, else goes.

    One that an export left which was killed is emptied.

    Raises:
        ArchiveExistsError: something is at `out`; or at `out + ".new"`, and no export left it.
        ArchiveLockedError: another process writes there.
    """
    check_free(out)
    work = f"{out}.new"
    mark = os.path.join(work, _MARK)
    if durable.exists(work) and not durable.exists(mark) and os.listdir(work):
        raise ArchiveExistsError(f"{work}: is in the way, and no export left it; move it away")
    durable.make_parent(mark)
    session = File.open(mark, "a")
    try:
        if not session.try_lock(format.LOCK_SESSION):
            raise ArchiveLockedError(f"{work}: another process is writing it; wait for it to end")
        try:
            _empty(work)
            yield work
            check_free(out)
            # With the mark, without which nobody would know that a killed export left it.
            durable.replace(work, out)
            durable.remove(os.path.join(out, _MARK))
        except BaseException:
            if durable.exists(work):
                _empty(work)
                durable.remove_tree(work)
            raise
    finally:
        session.close()


def _empty(work: str) -> None:
    """Delete all but the mark."""
    for name in os.listdir(work):
        if name != _MARK:
            durable.remove_tree(os.path.join(work, name))


@contextmanager
def new_file(out: str) -> Iterator[IO[bytes]]:
    """A file to write, `out + ".new"`, that gets its name, and is on the disk, when the block ends well.

    Raises: as `new_folder`.
    """
    check_free(out)
    session = start_replacing(f"{out}.new")
    try:
        try:
            with io.BufferedWriter(_Writing(session), _BUFFER) as stream:
                yield stream
            session.sync()
            check_free(out)
            durable.move(session, out)
        except BaseException:
            durable.remove(f"{out}.new")
            raise
    finally:
        session.close()


@contextmanager
def shard(path: str) -> Iterator[IO[bytes]]:
    """A new file in a folder that is being written; it is brought to the disk when the block ends well."""
    file = File.open(path, "x")
    try:
        with io.BufferedWriter(_Writing(file), _BUFFER) as stream:
            yield stream
        file.sync()
    finally:
        file.close()


def write_small(path: str, data: bytes) -> None:
    """A new file with these bytes, not synced."""
    file = File.open(path, "x")
    try:
        file.pwrite(0, data)
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
