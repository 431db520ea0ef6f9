"""The side file of a copy: its origin, the map of its blocks, and its locks.

A path, `train.zip`, has a copy in one of three states. They are told from its files:

ABSENT   neither of the two; a file that is there is the user's
BEGUN    `train.zip.partial` has some blocks of the origin; the side file `train.zip.origin` says which
WHOLE    `train.zip` is proven, and has the stamp (bytes, time, inode) of its note: nothing wrote to it since

ABSENT --locked_copy()--> BEGUN --publish()--> WHOLE; both --remove()--> ABSENT

A process that changes the state holds `LOCK_COPY` of the side file, which is made with the copy and deleted
with it. So a map is never that of another copy.

    offset  size  field
    0       ..    the note of the copy: crc32 of the JSON in hex, JSON, newline
    8192    ..    the note with the stamp of the whole copy
    16384   n     a byte for each block of 256 KiB: 1 once the block is in the copy

Each note is written once, so a process that is killed leaves what was there before. A side file proves
nothing: the stamp is on the disk before the copy has its name, and the bytes of a block are believed by the
crc32s of the archive.

Other locks: byte `CLAIMS + k` of the side file while block k is fetched; `ROOM` while disk space is taken;
`FIRST` is shared by readers that wait for the first batch of an order. `LOCK_USE` of the copy is shared by
all processes that have it open, however they came by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

from edcache import base, format, storage
from edcache.base import ArchiveNotFoundError, StorageError
from edcache.storage import WHOLE_FILE_LOCK, ByteSource, File, Location, Stamp
from edcache.writer import PARTIAL, SIDE

LOCK_COPY: Final = WHOLE_FILE_LOCK
CLAIMS: Final = 1 << 61
ROOM: Final = CLAIMS - 1
FIRST: Final = CLAIMS - 2
_WHOLE_OFFSET: Final = 8 << 10
MAP_OFFSET: Final = 16 << 10

Identity = tuple[str, ...]
"""Values that change when an origin does: of a file its size, the time of its last change and its inode."""


def identity_at(where: Location) -> Identity:
    """Return the identity of an archive that is not open: one system call for a path, two requests for a URL."""
    if not where.by_request:
        return tuple(map(str, storage.stamp(where.local_path())))
    with closing(where.open()) as origin:
        return identity_of(origin)


def identity_of(origin: ByteSource) -> Identity:
    """Return the identity of an open origin."""
    # Not the device of a file: a mount may have another number tomorrow.
    return tuple(map(str, origin.stamp() if isinstance(origin, File) else origin.tag()))


class Note(NamedTuple):
    """The origin of a copy in one state. stamp, digest: of the whole copy."""

    origin: str
    identity: Identity
    uuid: str
    nbytes: int
    stamp: Stamp | None = None
    digest: str | None = None

    def is_like(self, other: Note | None) -> bool:
        """True if both are of one state of an archive."""
        return other is not None and self[1:4] == other[1:4]


def note_of_origin(origin: ByteSource) -> Note | None:
    """Return the note for a copy of an open archive; None if it is not sealed, so that it may still grow."""
    nbytes = origin.size()
    found = format.read_root(origin.pread, nbytes, origin.path)
    if found is None:
        format.read_head(origin.pread, origin.path)  # raises if it is no archive
        return None
    return Note(origin.path, identity_of(origin), found[0].head.uuid.hex(), nbytes)


def note_of(copy: str) -> Note | None:
    """Read the side file of the copy at a path; None if there is none, or none that reads."""
    with suppress(ArchiveNotFoundError, StorageError), closing(File.open(copy + SIDE, "r")) as side:
        return _note_in(side)
    return None


def _note_in(side: File) -> Note | None:
    head = side.pread(0, MAP_OFFSET)
    return _parsed(head[_WHOLE_OFFSET:]) or _parsed(head[:_WHOLE_OFFSET])


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
    """Return the stamp of a file; None if there is no file."""
    try:
        return storage.stamp(path)
    except ArchiveNotFoundError:
        return None


def whole_note(copy: str) -> Note | None:
    """Return the note of the copy at a path; None if it is not WHOLE."""
    stamp = stamp_of(copy)
    note = None if stamp is None else note_of(copy)
    return note if note is not None and note.stamp == stamp else None


def begun_note(copy: str) -> Note | None:
    """Return the note of the copy at a path; None if it is not BEGUN."""
    stamp = stamp_of(copy + PARTIAL)
    note = None if stamp is None else note_of(copy)
    return note if note is not None and stamp is not None and stamp[0] == note.nbytes else None


@contextmanager
def locked_side(copy: str, *, wait: bool = True) -> Iterator[File | None]:
    """Lock the side file of a copy, made if it is absent. The lock ends with the process, however that dies.

    Without `wait` gives None if another process has it.
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
    """Lock the side file of a copy of this state, whole or begun; begin one in the place of any other."""
    while True:
        with locked_side(copy) as side:
            assert side is not None
            is_new = side.size() == 0
            if is_new:
                _begin(copy, note, side)
            if is_new or note.is_like(whole_note(copy)) or note.is_like(begun_note(copy)):
                yield side
                return
            remove(copy)


def _begin(copy: str, note: Note, side: File) -> None:
    """Begin a copy, which has no block, by a new side file."""
    text = _packed(note)
    if len(text) > _WHOLE_OFFSET:
        raise StorageError(
            f"{side.path}: no room for the path of the origin; give a shorter one", path=side.path
        )
    with suppress(ArchiveNotFoundError):
        storage.remove(copy + PARTIAL)
    with closing(File.open(copy + PARTIAL, "x")) as data:
        data.truncate(note.nbytes)
    side.pwrite(0, text)


def publish(side: File, partial: File, copy: str, digest: str | None) -> None:
    """Give a copy that is begun, and proven, the name of a whole one."""
    note = _note_in(side)
    assert note is not None
    partial.sync()
    # The stamp stays when the file gets its name, so the note is right whenever this is killed.
    side.pwrite(_WHOLE_OFFSET, _packed(Note(*note[:4], stamp=partial.stamp(), digest=digest)))
    side.sync()
    storage.move(partial, copy)


def remove(copy: str) -> None:
    """Delete a copy, whole or begun, under the lock of its side file, which goes last. Readers keep it."""
    if whole_note(copy) is not None:
        storage.remove(copy)
    with suppress(ArchiveNotFoundError):
        storage.remove(copy + PARTIAL)
    storage.remove(copy + SIDE)
