"""The side file of a copy: of what it is a copy, which blocks of it are here, and the locks on it.

`train.zip.origin` lies beside `train.zip`, and beside `train.zip.partial` until that is whole. It is written
in place, so that its locks stay; who deletes the copy deletes it.

    offset  size  field
    0       ..    the note of the copy that is begun: crc32 of the JSON in hex, JSON, newline
    8192    ..    the note of the whole copy, with its stamp
    16384   n     a byte for each block of 256 KiB: 1 once the block is in the copy that is begun

Each note is written once, so a process that is killed in between leaves what was there before. A side file
proves nothing: a whole copy is a file with the stamp of its note (its size, time and inode), which is on the
disk before the copy has its name; the bytes of a block are believed by the crc32s of the archive.

Locks: `LOCK_COPY` of the side file is held by a process that makes or deletes the copy; its byte `CLAIMS + k`
while block k is fetched; `ROOM` while disk space is taken; `FIRST` is shared by all readers that
wait for the first batch of an order. `LOCK_USE` of the copy is shared by all processes
that have it open, however they came by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

from edcache import base, format, storage
from edcache.base import ArchiveNotFoundError, StorageError
from edcache.storage import WHOLE_FILE_LOCK, ByteSource, File, Location, Stamp
from edcache.writer import PARTIAL, SIDE, SUFFIX

LOCK_COPY: Final = WHOLE_FILE_LOCK
CLAIMS: Final = 1 << 61
ROOM: Final = CLAIMS - 1
FIRST: Final = CLAIMS - 2
_WHOLE_OFFSET: Final = 8 << 10
MAP_OFFSET: Final = 16 << 10

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
    """The state of an origin that is copied.

    stamp: of the whole copy; in the note of one that is begun, of the whole copy that it will replace.
    """

    origin: str
    identity: Identity
    uuid: str
    nbytes: int
    stamp: Stamp | None = None
    digest: str | None = None

    def is_like(self, other: Note | None) -> bool:
        """True if both are of one state of an archive."""
        return other is not None and self[1:4] == other[1:4]


class Notes(NamedTuple):
    """The notes of a side file; None for one that is not there or does not read."""

    begun: Note | None
    whole: Note | None

    def have(self, stamp: Stamp) -> bool:
        """True if a file with this stamp is a copy as it was made."""
        return any(note is not None and note.stamp == stamp for note in self)


def notes_in(side: File) -> Notes:
    """Read the notes of an open side file."""
    head = side.pread(0, MAP_OFFSET)
    return Notes(_parsed(head[:_WHOLE_OFFSET]), _parsed(head[_WHOLE_OFFSET:]))


def notes_of(copy: str) -> Notes:
    """Read the notes of the copy at a path."""
    with suppress(ArchiveNotFoundError, StorageError), closing(File.open(copy + SIDE, "r")) as side:
        return notes_in(side)
    return Notes(None, None)


def _packed(note: Note) -> bytes:
    text = json.dumps(note).encode("ascii")
    return b"%08x%s\n" % (format.crc32(text), text)


def _parsed(slot: bytes) -> Note | None:
    text = slot.partition(b"\n")[0]
    try:
        if int(text[:8], 16) != format.crc32(text[8:]):
            return None
        origin, identity, uuid, nbytes, stamp, digest = base.loads(text[8:])
        return Note(origin, tuple(identity), uuid, nbytes, stamp and tuple(stamp), digest)
    except (ValueError, TypeError):
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
    note = None if stamp is None else notes_of(copy).whole
    return note if note is not None and note.stamp == stamp else None


def publish(side: File, partial: File, copy: str, digest: str | None) -> None:
    """Give the copy that is begun, and proven, the name of a whole one. Readers of an old one keep it."""
    note = notes_in(side).begun
    assert note is not None
    partial.sync()
    # The stamp stays when it gets its name, so the side file is right whenever this is killed.
    side.pwrite(_WHOLE_OFFSET, _packed(note._replace(stamp=partial.stamp(), digest=digest)))
    side.sync()
    storage.move(partial, copy)


@contextmanager
def locked_side(copy: str, *, wait: bool = True) -> Iterator[File | None]:
    """Make or delete a copy alone on this machine: the side file, created if absent, and locked.

    Without `wait` gives None if another process has it. The lock ends with the process, however that dies.
    """
    while True:
        with closing(File.open(copy + SIDE, "a")) as side:
            if wait:
                side.lock(LOCK_COPY)
            elif not side.try_lock(LOCK_COPY):
                yield None
                return
            # The process that had the lock may have deleted the side file with the copy.
            if side.is_named():
                yield side
                return


@contextmanager
def locked_copy(copy: str, note: Note) -> Iterator[File]:
    """Lock the side file of a copy of this state, whole or begun; begin one if there is none."""
    while True:
        with locked_side(copy) as side:
            assert side is not None
            notes, stamp, partial = notes_in(side), stamp_of(copy), stamp_of(copy + PARTIAL)
            is_whole = note.is_like(notes.whole) and stamp is not None and notes.have(stamp)
            is_begun = note.is_like(notes.begun) and partial is not None and partial[0] == note.nbytes
            if not (is_whole or is_begun):
                _begin(copy, note, notes, stamp)
                continue
            yield side
            return


def _begin(copy: str, note: Note, notes: Notes, stamp: Stamp | None) -> None:
    """Begin a copy, empty, under the lock of the side file; that a whole one is there stays noted.

    The side file is another one: a process that reads an older copy would take the new map for its own.
    """
    if stamp is not None and notes.have(stamp):
        note = note._replace(stamp=stamp)
    text = _packed(note)
    if len(text) > _WHOLE_OFFSET:
        raise StorageError(
            f"{copy}{SIDE}: no room for the path of the origin; give a shorter one", path=copy + SIDE
        )
    with suppress(ArchiveNotFoundError):
        storage.remove(copy + PARTIAL)
    with closing(File.open(copy + SIDE + SUFFIX, "a")) as side:
        side.lock(LOCK_COPY, 2)  # and LOCK_SESSION, by which is told that a temporary file is written
        side.truncate(0)
        if notes.whole is not None:
            side.pwrite(_WHOLE_OFFSET, _packed(notes.whole))
        side.pwrite(0, text)
        storage.move(side, copy + SIDE)
        with closing(File.open(copy + PARTIAL, "a")) as data:
            data.truncate(note.nbytes)
