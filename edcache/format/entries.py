"""Entries of an archive: zip local headers with a private field; groups of entries; and the locks of the file.

An entry counts only if its header is whole and fits in its place: by its crc32, the uuid of the archive, its number and
offset, and the link, a hash of the header before it. So neither bytes that an earlier writer left there, nor an archive
inside of a record, pass for an entry. `walk` ends, without an error, where none fits: the next one is written there.

Locks are of single bytes far behind all data. Nothing is written to take one, and the kernel frees it with the open
file, however its process ends. A forked child closes its parent's writable files, and so has none of their locks.

    byte              held                                                      taken by
    LOCK_APPEND       while entries are published, or an end is mended          writer/appender.py, `appending`
    LOCK_FILLER + k   while a process writes the archive, to show it            writer/appender.py, `join_fillers`
    LOCK_CLAIM + k    while a process computes the samples of claim k; 0 also   writer/appender.py, `Claims`
                      while one alone fills, from an iterable
    LOCK_SESSION      while a file is made beside its path                      writer/temporary.py
    LOCK_APPEND - 1   shared by readers of a copy, which stays meanwhile        writer/temporary.py, `LOCK_USE`

A read takes none of the first three. Where the system has no locks of bytes, as macOS, LOCK_APPEND locks the file and
the others do nothing: two processes may compute one sample, and the later record counts.

What must never happen: that bytes of the chain are written without LOCK_APPEND; that a process waits for a claim while
it holds LOCK_APPEND, or a claim with a higher number, for longer than seconds: two would wait for each other.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

from edcache.base import CorruptArchiveError, LaterReleaseError, Sound
from edcache.format.arrays import pa

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform; the same polynomial, slower
    from zlib import crc32

__all__ = ["crc32"]

VERSION: Final = 3
PAGE: Final = 4096
LATTICE: Final = 8
"""A record begins on a multiple of these bytes, so that a batch is one gather."""
MAX_HEADER_NBYTES: Final = 1024
MAX_LENGTH: Final = 1 << 62

HEAD, CHUNK, NOTE, INDEX, COLUMN, ROOT, KEYS = range(7)
PART: Final = 8 | CHUNK
"""Kind of a chunk whose records count if the rows of a later root name them."""
ALONE: Final = CHUNK, NOTE, PART
"""Kinds of entries that are a group each."""
_KINDS: Final = {*range(7), PART}

LOCK_APPEND: Final = 1 << 62
LOCK_SESSION: Final = LOCK_APPEND + 1
LOCK_FILLER: Final = LOCK_APPEND + (1 << 16)
FILLERS: Final = 1 << 16
LOCK_CLAIM: Final = LOCK_APPEND + (1 << 32)

MAGIC: Final = b"PK\x03\x04"
LOCAL: Final = struct.Struct("<4sHHHHHIIIHH")  # 30 bytes
_ZIP64: Final = struct.Struct("<HHQQ")  # 20 bytes
# id, size, version, kind, uuid, number, offset, next, link, durable, first, end, table bytes and crc32, crc32
_PRIVATE: Final = struct.Struct("<HHHH16sQQQQQQQQII")  # 96 bytes
_PRIVATE_ID: Final = 0x6465
# Bytes of a header from its link up to its own crc32.
CRC32_FROM_LINK: Final = struct.calcsize("<QQQQQI")
_FIXED_NBYTES: Final = LOCAL.size + _ZIP64.size + _PRIVATE.size
LEAST_HEADER_NBYTES: Final = 192
MAX_NAME_NBYTES: Final = MAX_HEADER_NBYTES - _FIXED_NBYTES
_DEVICES: Final = {"con", "prn", "aux", "nul", *(f"{port}{k}" for port in ("com", "lpt") for k in range(10))}
DATE: Final = 0x21  # 1980-01-01, as zip has no other "none"
_PIECE_NBYTES: Final = 1 << 24  # several answers of a far file at once
MAX32: Final = 0xFFFFFFFF
UUID_PLACE: Final = slice(70, 86)
"""Bytes of a file that have the uuid of its head."""


class PRead(Protocol):
    """`pread(offset, nbytes)` returns fewer bytes at the end of the file.

    With a check a source that is far asks again for bytes that fail it. They are returned in the end, and the caller
    raises its error.
    """

    def __call__(self, offset: int, nbytes: int, is_sound: Sound | None = None, /) -> bytes: ...


def fits_crc32(nbytes: int, crc: int) -> Sound:
    """Make the check of bytes by their number and their crc32."""
    return lambda data: len(data) == nbytes and crc32(data) == crc


def came_again(times: int = 2) -> Sound:
    """Make the check of bytes without a sum of their own: believed is what comes for the given time."""
    came: dict[int, int] = {}

    def is_sound(data: bytes | memoryview) -> bool:
        crc = crc32(data)
        came[crc] = came.get(crc, 0) + 1
        return came[crc] >= times

    return is_sound


def or_absent(is_sound: Sound) -> Sound:
    """Make the check of a place where nothing need stand: it is believed if three answers are alike."""
    is_same = came_again(3)
    return lambda data: is_sound(data) or is_same(data)


class Place(NamedTuple):
    """Range of bytes of the file, and their crc32."""

    offset: int
    nbytes: int
    crc32: int


def read_sound(pread: PRead, place: Place) -> bytes | None:
    """Read the bytes of a place; None if they fail their crc32."""
    is_sound = fits_crc32(place.nbytes, place.crc32)
    data = pread(place.offset, place.nbytes, is_sound)
    return data if is_sound(data) else None


def align(position: int, multiple: int) -> int:
    """Round up to a multiple."""
    return -(-position // multiple) * multiple


def column_name(label: str) -> str:
    """Name the entry of a label column: two names differ in more than the case of letters.

    So columns that are unzipped on Windows or macOS do not overwrite each other, and none is a device, as con.
    """
    letters = [f"%{ord(letter):02X}" if "A" <= letter <= "Z" else quote(letter, safe="") for letter in label]
    if label in _DEVICES:
        letters[0] = f"%{ord(label[0]):02X}"
    return f"labels/{''.join(letters)}.arrow"


def header_nbytes(name: str) -> int:
    """Count the bytes of the header of an entry of this name: the payload starts behind them."""
    return align(max(LEAST_HEADER_NBYTES, _FIXED_NBYTES + len(name)), 64)


@dataclass(frozen=True, slots=True)
class Header:
    """One entry.

    nbytes, crc32: of the payload. next: offset of the next entry. link: the `link_after` of the entry before. durable:
    bytes of the file up to here were synced before this header was written. Of a chunk, first, end: its lowest sample,
    and one more than its highest; table_nbytes, table_crc32: of its table. version: of the format. moved: bytes
    that damage has moved the entry by, away from its `offset`.
    """

    kind: int
    name: str
    uuid: bytes
    number: int
    offset: int
    nbytes: int
    crc32: int
    next: int
    link: int
    durable: int = 0
    first: int = 0
    end: int = 0
    table_nbytes: int = 0
    table_crc32: int = 0
    link_after: int = field(default=0, compare=False)
    version: int = VERSION
    moved: int = 0

    @property
    def is_later(self) -> bool:
        """True if a later release wrote it, of a version or a kind that this one does not know."""
        return self.version > VERSION or self.kind not in _KINDS

    @property
    def maker(self) -> str:
        """Mark that the writer of a part gave it: equal of parts that one source made; "" of other entries."""
        return self.name.partition("-")[2] if self.kind == PART else ""

    @property
    def payload_offset(self) -> int:
        """Offset of the payload."""
        return self.offset + self.moved + header_nbytes(self.name)

    @property
    def payload_end(self) -> int:
        """Offset of the end of the payload."""
        return self.payload_offset + self.nbytes

    @property
    def payload(self) -> Place:
        """Place of the payload."""
        return Place(self.payload_offset, self.nbytes, self.crc32)


def pack_header(header: Header) -> bytes:
    """Pack a header."""
    h, name = header, header.name.encode("ascii")
    total = header_nbytes(header.name)
    extra_nbytes = total - LOCAL.size - len(name)
    local = LOCAL.pack(MAGIC, 45, 0, 0, 0, DATE, h.crc32, MAX32, MAX32, len(name), extra_nbytes)
    zip64 = _ZIP64.pack(1, 16, h.nbytes, h.nbytes)
    private_nbytes = extra_nbytes - _ZIP64.size - 4
    place = h.uuid, h.number, h.offset, h.next, h.link, h.durable
    chunk = h.first, h.end, h.table_nbytes, h.table_crc32
    private = _PRIVATE.pack(_PRIVATE_ID, private_nbytes, h.version, h.kind, *place, *chunk, 0)
    body = (local + name + zip64 + private)[:-4]
    return (body + struct.pack("<I", crc32(body))).ljust(total, b"\0")


def parse_header(data: bytes) -> Header | None:
    """Parse the header at the start of some bytes; None if they are none, or fail their crc32.

    `MAX_HEADER_NBYTES` always suffice. A header of a later version may say more, in the place of zeros here.
    """
    if len(data) < LEAST_HEADER_NBYTES or data[:4] != MAGIC:
        return None
    *_, payload_crc, _, _, name_nbytes, _ = LOCAL.unpack_from(data)
    end = _FIXED_NBYTES + name_nbytes
    name = data[LOCAL.size : LOCAL.size + name_nbytes].decode("latin-1")
    if end > len(data) or not name.isascii():
        return None
    nbytes = _ZIP64.unpack_from(data, LOCAL.size + name_nbytes)[2]
    # From "next" on the fields of a header stand in the order of `Header`.
    own, _, version, kind, uuid, number, offset, *rest, crc = _PRIVATE.unpack_from(data, end - _PRIVATE.size)
    said = [number, offset, nbytes, payload_crc, *rest, link_after(data[:end]), version]
    header = Header(kind, name, uuid, *said)
    is_sound = own == _PRIVATE_ID and crc == crc32(data[: end - 4])
    if is_sound and not header.is_later:
        is_sound = version == VERSION and data.startswith(pack_header(header))
    return header if is_sound else None


def link_after(packed: bytes) -> int:
    """Hash a packed header, without its padding, to the link that the next entry carries."""
    end = _FIXED_NBYTES + LOCAL.unpack_from(packed)[9]
    return int.from_bytes(hashlib.blake2b(packed[:end], digest_size=8).digest(), "little")


class Cursor(NamedTuple):
    """Offset, number and link of the next entry."""

    offset: int
    number: int
    link: int

    @classmethod
    def behind(cls, header: Header) -> Cursor:
        """Return the cursor behind a parsed entry."""
        return cls(header.next + header.moved, header.number + 1, header.link_after)


def walk(pread: PRead, size: int, uuid: bytes, cursor: Cursor, where: str) -> Iterator[list[Header]]:
    """Yield the groups of entries from a cursor on whose payloads lie in the file.

    where: path of the archive in messages. A group is a chunk, a part, a note, or the entries of one seal: index,
    columns, keys, root. The walk ends without an error if no whole group follows: the next one will be written there.
    One pread for each entry.
    Raises: LaterReleaseError, an entry is of a version or a kind that this release does not know.
    """
    group: list[Header] = []
    while (header := entry_at(pread, size, uuid, cursor, where)) is not None:
        if header.kind == HEAD or (group and header.kind in ALONE):
            return
        group.append(header)
        if header.kind in (*ALONE, ROOT):
            yield group
            group = []
        cursor = Cursor.behind(header)


def entry_at(pread: PRead, size: int, uuid: bytes, cursor: Cursor, where: str) -> Header | None:
    """Read the header of the entry at a cursor; None if none fits there. Raises: LaterReleaseError."""
    if cursor.offset + LEAST_HEADER_NBYTES > size:
        return None

    def next_header(data: bytes | memoryview) -> Header | None:
        header = parse_header(bytes(data))
        if header is None or header.uuid != uuid or (header.offset, header.number, header.link) != cursor:
            return None
        return header

    is_next = or_absent(lambda data: next_header(data) is not None)
    header = next_header(pread(cursor.offset, MAX_HEADER_NBYTES, is_next))
    if header is None:
        return None
    check_release(header, where)
    least = align(header.payload_end, PAGE)
    follows = header.next == least or (header.kind == ROOT and header.next > least)
    fits = header.payload_end <= size and follows and header.next % PAGE == 0 and header.next < LOCK_APPEND
    if header.kind in (CHUNK, PART):
        fits = fits and header.table_nbytes <= header.nbytes and header.first < header.end <= MAX_LENGTH
    return header if fits else None


def check_release(header: Header, where: str) -> None:
    """Raise LaterReleaseError if a later release wrote an entry; see `Header.is_later`."""
    if header.is_later:
        kind = f"the kind {header.kind}" if header.version <= VERSION else f"version {header.version}"
        what = f"{kind} of entries, as {header.name[:80]} at offset {header.offset:,}"
        raise LaterReleaseError.needing(what).within(where, where)


def stored_crc32(pread: PRead, place: Place) -> int:
    """Compute the crc32 of the bytes of a place, piece by piece; of fewer if the file ends before.

    A far source sends bytes again that fail the place's crc32. Of more than one piece the bytes count that come twice
    alike.
    """
    offset, nbytes, expected = place
    if nbytes <= _PIECE_NBYTES:
        return crc32(pread(offset, nbytes, fits_crc32(nbytes, expected)))
    # Doubted twice: two wrong answers may be alike.
    checks: list[Callable[[], Sound | None]] = [lambda: None, came_again, came_again]
    crc, end = 0, offset + nbytes
    for check in checks:
        crc, at = 0, offset
        while at < end and (part := pread(at, min(_PIECE_NBYTES, end - at), check())):
            crc = crc32(part, crc)
            at += len(part)
        if crc == expected:
            break
    return crc


@contextmanager
def reported(what: str, path: str | None = None) -> Iterator[None]:
    """Turn errors of parsing, of pyarrow and of checks, into a CorruptArchiveError: the crc32 of the bytes holds."""
    try:
        yield
    except CorruptArchiveError:
        raise
    except LaterReleaseError as error:
        raise error if error.path is not None else error.within(what, path) from None
    except (
        *(pa.ArrowException, struct.error, OSError),
        *(ValueError, KeyError, TypeError, AttributeError, OverflowError),
    ) as error:
        raise CorruptArchiveError(
            f"{what} does not read: {str(error)[:500]}; no release of edcache wrote it: build the archive again",
            path=path,
        ) from error
