"""The side file of a copy: of what it is a copy, which blocks of it are here, and the locks on it.

`train.zip.origin` lies beside `train.zip`, and beside `train.zip.partial` until that is whole. It is written
in place, so that its locks stay; who deletes the copy deletes it.

    offset  size  field
    0       16    b"edcopy2\\n", crc32 of the JSON behind it, bytes of that
    16      ..    JSON of the state that is copied: [origin, identity, uuid, nbytes]
    12288   ..    the same of the whole copy: [stamp, digest]
    16384   n     a byte for each block of 256 KiB: 1 once the block is in the copy

Each is written once, so a process that is killed in between leaves what was there before. A side file proves
nothing: a whole copy is a file with this stamp (its size, time and inode), which is on the disk before the
copy has its name; the bytes of a block are believed by the crc32s of the archive.

Locks: `LOCK_COPY` of the side file is held by a process that makes or deletes the copy; its byte `CLAIMS + k`
while block k is fetched; `ROOM` while disk space is taken. `LOCK_USE` of the copy is shared by all processes
that have it open, however they came by it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, NamedTuple

from edcache import base, format, storage
from edcache.base import ArchiveNotFoundError, StorageError
from edcache.storage import WHOLE_FILE_LOCK, ByteSource, File, Location, Stamp
from edcache.writer import PARTIAL, SIDE

LOCK_COPY: Final = WHOLE_FILE_LOCK
CLAIMS: Final = 1 << 61
ROOM: Final = CLAIMS - 1
_WHOLE_OFFSET: Final = 12 << 10
MAP_OFFSET: Final = 16 << 10

_HEADER = struct.Struct("<8sII")
_MAGIC: Final = b"edcopy2\n"

Identity = tuple[str, ...]
"""Values that change when an origin does: of a file its size, the time of its last change and its inode."""


def identity_at(where: Location) -> Identity:
    """The identity of the archive at a place: one system call for a path, one or two requests for a URL."""
    if not where.by_request:
        return tuple(map(str, storage.stamp(where.local_path())))
    with closing(where.open()) as origin:
        return identity_of(origin)


def identity_of(origin: ByteSource) -> Identity:
    """The identity of an open origin."""
    # Not the device of a file: a mount may have another number tomorrow.
    return tuple(map(str, origin.stamp() if isinstance(origin, File) else origin.tag()))


class Note(NamedTuple):
    """The state of an origin that is copied; stamp and digest: of the whole copy, None until there is one."""

    origin: str
    identity: Identity
    uuid: str
    nbytes: int
    stamp: Stamp | None = None
    digest: str | None = None


class Side:
    """An open side file."""

    def __init__(self, file: File) -> None:
        self.file = file

    def read(self) -> Note | None:
        """The note; None if there is none that reads."""
        head = self.file.pread(0, MAP_OFFSET)
        try:
            origin, identity, uuid, nbytes = _parsed(head[:_WHOLE_OFFSET])
            stamp, digest = _parsed(head[_WHOLE_OFFSET:]) or (None, None)
            return Note(origin, tuple(identity), uuid, nbytes, stamp and tuple(stamp), digest)
        except (ValueError, TypeError):
            return None

    def begin(self, note: Note) -> None:
        """Write the state that is copied; StorageError if the path of the origin is too long to be kept."""
        data = _packed(note[:4])
        if len(data) > _WHOLE_OFFSET:
            raise StorageError(
                f"{self.file.path}: no room for the path of the origin; give a shorter one",
                path=self.file.path,
            )
        self.file.pwrite(0, data)

    def publish(self, partial: File, copy: str, digest: str | None) -> None:
        """Give a partial copy, which is proven, the name of a whole one."""
        partial.sync()
        # The stamp stays when it gets its name, so the side file is right whenever this is killed.
        self.file.pwrite(_WHOLE_OFFSET, _packed((partial.stamp(), digest)))
        self.file.sync()
        storage.move(partial, copy)


def _packed(value: object) -> bytes:
    text = json.dumps(value).encode("ascii")
    return _HEADER.pack(_MAGIC, format.crc32(text), len(text)) + text


def _parsed(data: bytes) -> Any:
    """The value; None if it does not read."""
    if len(data) < _HEADER.size:
        return None
    magic, crc, nbytes = _HEADER.unpack_from(data)
    text = data[_HEADER.size : _HEADER.size + nbytes]
    return base.loads(text) if magic == _MAGIC and format.crc32(text) == crc else None


def note_of(copy: str) -> Note | None:
    """The note in the side file of a copy; None if there is none, or none that reads."""
    with suppress(ArchiveNotFoundError, StorageError), closing(File.open(copy + SIDE, "r")) as file:
        return Side(file).read()
    return None


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file; None if there is no file."""
    try:
        return storage.stamp(path)
    except ArchiveNotFoundError:
        return None


def whole_note(copy: str) -> Note | None:
    """The note of a whole copy to which nothing was written since it was made; None for any other file."""
    stamp = stamp_of(copy)
    note = None if stamp is None else note_of(copy)
    return note if note is not None and note.stamp == stamp else None


@contextmanager
def locked_side(copy: str, *, wait: bool = True) -> Iterator[Side | None]:
    """Make or delete a copy alone on this machine: the side file, created if absent, and locked.

    Without `wait` gives None if another process has it. The lock ends with the process, however that dies.
    """
    while True:
        with closing(File.open(copy + SIDE, "a")) as file:
            if wait:
                file.lock(LOCK_COPY)
            elif not file.try_lock(LOCK_COPY):
                yield None
                return
            # The process that had the lock may have deleted the side file with the copy.
            if file.is_named():
                yield Side(file)
                return


@contextmanager
def locked_copy(copy: str, note: Note) -> Iterator[Side]:
    """Lock the side file of a copy of this state, whole or not; begin one if there is none."""
    while True:
        with locked_side(copy) as side:
            assert side is not None
            there = side.read()
            if there is None or there[1:4] != note[1:4] or not _has_data(copy, there):
                if side.file.size():
                    # Not cut: a process that reads what was begun before would take the new map for its own.
                    storage.remove(copy + SIDE)
                    continue
                with suppress(ArchiveNotFoundError):
                    storage.remove(copy + PARTIAL)
                with closing(File.open(copy + PARTIAL, "a")) as data:
                    data.truncate(note.nbytes)
                # The note last: without it nothing else counts.
                side.begin(note)
            yield side
            return


def _has_data(copy: str, note: Note) -> bool:
    partial = stamp_of(copy + PARTIAL)
    is_whole = note.stamp is not None and note.stamp == stamp_of(copy)
    return is_whole or (partial is not None and partial[0] == note.nbytes)
