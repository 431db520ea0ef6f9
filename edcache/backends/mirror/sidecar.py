"""The side file of a copy: of what it is a copy, which blocks of it are there, and the locks on it.

`train.zip.origin` lies beside `train.zip`, and beside `train.zip.partial` until that is whole. It is made
once and written in place, so that its locks stay; only who deletes the copy deletes it.

    offset  size  field
    0       8     b"edcopy1\\n"
    8       8     how often it was written
    16      4     crc32 of the 8 bytes before and the JSON
    20      4     bytes of the JSON
    24      ..    JSON: {"origin": path, "versions": [[identity, uuid, nbytes, stamp, digest], ...]}
    16384   ..    the same again: the older of the two is overwritten, so that a kill leaves the other
    32768   n     a copy that fills as it is read: one byte for each block, odd where the block is here, and
                  one more whenever it comes or goes
    32768+n n     one byte for each block, for who needs room: see `room`

That it says something proves nothing: a whole copy is one whose size, time and inode are those of a version,
and a block is believed by the crc32s of what lies in it.

Locks: `LOCK_COPY` of the side file, by who makes or deletes the copy; its byte `CLAIMS + k`, by who fetches
or frees block k; `ROOM`, by who takes disk space for blocks; `LOCK_USE` of the copy, shared by all who have
it open, however they came by it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

from edcache import base, format, storage
from edcache.base import ArchiveNotFoundError, StorageError
from edcache.storage import WHOLE_FILE_LOCK, ByteSource, File, Location, Stamp
from edcache.writer import SIDE

LOCK_COPY: Final = WHOLE_FILE_LOCK
CLAIMS: Final = 1 << 61
ROOM: Final = CLAIMS - 1
MAP_OFFSET: Final = 1 << 15

_SLOT_NBYTES: Final = 1 << 14
_HEADER = struct.Struct("<8sQII")
_MAGIC: Final = b"edcopy1\n"

Identity = tuple[str, ...]
"""What changes when an origin does: of a file its size, the time of its last change and its inode."""


def identity_at(where: Location) -> Identity:
    """The identity of what is there: of a path by one call of the system, of a URL by one or two requests."""
    if not where.by_request:
        return tuple(map(str, storage.stamp(where.local_path())))
    with closing(where.open()) as origin:
        return identity_of(origin)


def identity_of(origin: ByteSource) -> Identity:
    """The identity of an open origin, as it is compared and kept."""
    # Not the device of a file: a mount may have another number tomorrow.
    return tuple(map(str, origin.stamp() if isinstance(origin, File) else origin.tag()))


class Version(NamedTuple):
    """A state of the origin that was copied; `stamp` and `digest` are of the whole copy, where known."""

    identity: Identity
    uuid: str
    nbytes: int
    stamp: Stamp | None = None
    digest: str | None = None


class Note(NamedTuple):
    """What a side file says: the path of the origin, and which states of it were copied, newest first."""

    origin: str
    versions: tuple[Version, ...]

    def version_of(self, stamp: Stamp | None) -> Version | None:
        """The version that a whole copy with this stamp is of, where nothing was written to it since."""
        return next((v for v in self.versions if stamp is not None and v.stamp == stamp), None)

    def version_at(self, stamp: Stamp) -> Version | None:
        """The same where a block of it may have been fetched again, which leaves its size as it is."""
        return self.version_of(stamp) or next((v for v in self.versions if v.nbytes == stamp[0]), None)


class Side:
    """An open side file."""

    def __init__(self, file: File) -> None:
        self.file = file

    def read(self) -> Note | None:
        """What it says; None where it says nothing yet, or nothing that reads."""
        return max(self._slots(), key=lambda slot: slot[0])[1]

    def _slots(self) -> list[tuple[int, Note | None]]:
        """How often each half was written, and what it says; 0 where nothing reads."""
        return [_parsed(self.file.pread(start, _SLOT_NBYTES)) for start in (0, _SLOT_NBYTES)]

    def write(self, note: Note) -> None:
        """Say something else from now on; StorageError where the origin's path is too long to be kept."""
        text = json.dumps({"origin": note.origin, "versions": note.versions}).encode("ascii")
        if _HEADER.size + len(text) > _SLOT_NBYTES:
            raise StorageError(f"{self.file.path}: no room for the path of the origin; give a shorter one")
        first, second = (times for times, _ in self._slots())
        times = max(first, second) + 1
        header = _HEADER.pack(_MAGIC, times, _crc(times, text), len(text))
        self.file.pwrite(0 if first <= second else _SLOT_NBYTES, header + text)

    def replace(self, before: Version, after: Version) -> None:
        """Say something else of one version."""
        note = self.read()
        if note is not None:
            self.write(note._replace(versions=tuple(after if v == before else v for v in note.versions)))

    def publish(self, partial: File, copy: str, note: Note) -> None:
        """Give a partial copy, which is proven to be of the note's first version, the name of a whole one."""
        partial.sync()
        # Before it has its name: the stamp stays, so whenever this is killed the side file is right.
        version, *others = note.versions
        self.write(Note(note.origin, (version._replace(stamp=partial.stamp()), *others)))
        state = self.file.pread(MAP_OFFSET, self.file.size() - MAP_OFFSET)
        self.file.pwrite(MAP_OFFSET, bytes(byte | 1 for byte in state))
        self.file.sync()
        storage.move(partial, copy)


def _crc(times: int, text: bytes) -> int:
    return format.crc32(times.to_bytes(8, "little") + text)


def _parsed(slot: bytes) -> tuple[int, Note | None]:
    if len(slot) < _HEADER.size:
        return 0, None
    magic, times, crc, nbytes = _HEADER.unpack_from(slot)
    text = slot[_HEADER.size : _HEADER.size + nbytes]
    if magic != _MAGIC or _crc(times, text) != crc:
        return 0, None
    try:
        note = base.loads(text)
        versions = tuple(
            Version(tuple(map(str, identity)), uuid, nbytes, None if stamp is None else tuple(stamp), digest)
            for identity, uuid, nbytes, stamp, digest in note["versions"]
        )
        return times, Note(note["origin"], versions) if type(note["origin"]) is str and versions else None
    except (ValueError, TypeError, KeyError):
        return 0, None


def note_of(copy: str) -> Note | None:
    """What the side file of a copy says; None where there is none, or where it cannot be read."""
    with suppress(ArchiveNotFoundError, StorageError), closing(File.open(copy + SIDE, "r")) as file:
        return Side(file).read()
    return None


def stamp_of(path: str) -> Stamp | None:
    """The stamp of a file; None where there is none."""
    try:
        return storage.stamp(path)
    except ArchiveNotFoundError:
        return None


@contextmanager
def locked_side(copy: str, *, wait: bool = True) -> Iterator[Side | None]:
    """Make or delete a copy alone on this machine: the side file, made where there is none, and locked.

    Without `wait` gives None where another has it. The lock ends with the process, however that dies.
    """
    while True:
        with closing(File.open(copy + SIDE, "a")) as file:
            if wait:
                file.lock(LOCK_COPY)
            elif not file.try_lock(LOCK_COPY):
                yield None
                return
            # Who deleted the copy has deleted the side file that was waited for.
            if file.is_named():
                yield Side(file)
                return
