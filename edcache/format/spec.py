"""The archive on disk, as FORMAT.md specifies it: pure functions that turn its bytes into values and back.

Nothing here opens a file.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from edcache import base
from edcache.base import ArchiveError, CorruptArchiveError, OptionError

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform; the same polynomial, slower
    from zlib import crc32

__all__ = ["crc32"]

VERSION: Final = 2
PAGE: Final = 4096
LATTICE: Final = 8
BLOCK_NBYTES: Final = 1 << 14
HEADER_NBYTES: Final = 192
MAX_HEADER_NBYTES: Final = 320
MAX_HEAD_NBYTES: Final = 1 << 20
MAX_LENGTH: Final = 1 << 62
MAX_BEHIND_SEAL: Final = 64
"""So many revisions leave a seal valid; one more undoes it."""
ROW_NBYTES: Final = 30
"""What a record takes in a chunk's table, at the least."""

KIND_HEAD, KIND_CHUNK, KIND_AMENDMENT, KIND_INDEX, KIND_LABELS, KIND_REVISION = range(6)

LOCK_APPEND: Final = 1 << 62
LOCK_SESSION: Final = LOCK_APPEND + 1
LOCK_FILLER: Final = LOCK_APPEND + (1 << 16)
FILLERS: Final = 1 << 16
LOCK_CLAIM: Final = LOCK_APPEND + (1 << 32)

_NAMES: Final = {
    KIND_HEAD: "edcache.json",
    KIND_CHUNK: "chunks/{:08d}",
    KIND_AMENDMENT: "notes/{:08d}",
    KIND_INDEX: "index.pages",
    KIND_LABELS: "labels.arrow",
    KIND_REVISION: "labels/{:08d}",
}

_EXTRA: Final = struct.Struct("<HH")
_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")  # 46 bytes
_END64: Final = struct.Struct("<4sQHHIIQQQQ")  # 56 bytes
_LOCATOR: Final = struct.Struct("<4sIQI")  # 20 bytes
_END: Final = struct.Struct("<4sHHHHIIH")  # 22 bytes
# The very last record of a zip file.
END_SIGNATURE: Final = b"PK\x05\x06"
END_NBYTES: Final = _END64.size + _LOCATOR.size + _END.size

_ZIP64_ID: Final = 0x0001
_DATE: Final = 0x0021
_MAX32: Final = 0xFFFFFFFF
_MAX16: Final = 0xFFFF
_MADE_BY: Final = (3 << 8) | 45  # Unix, so that the mode below is honoured
_MODE: Final = 0o100644 << 16

_MAGIC: Final = b"PK\x03\x04"
_LOCAL = struct.Struct("<4sHHHHHIIIHH")  # 30 bytes
_ZIP64_SIZES = struct.Struct("<HHQQ")  # 20 bytes
_PRIVATE = struct.Struct("<HHI16sQQQQQQQQII")  # 96 bytes
# What lies in _PRIVATE between the format version and the header's crc32.
_FIELDS: Final = (
    *("kind", "nbytes", "uuid", "seq", "offset", "next", "link", "samples", "end_index"),
    *("table_nbytes", "durable", "table_crc"),
)
_fields_of = attrgetter(*_FIELDS)

_EXTRA_ID: Final = 0x6465
_SHORT_SEQ: Final = 10**8  # names of more digits are longer

PRead = Callable[[int, int], bytes]
"""`pread(offset, nbytes)` returns the bytes that are there: fewer at the end of the file."""


def align(position: int, multiple: int) -> int:
    """The first multiple of `multiple` that is not before `position`."""
    return -(-position // multiple) * multiple


def record_alignment(nbytes: int) -> int:
    """The multiple on which a record of `nbytes` stored bytes starts (section 3)."""
    return 64 if nbytes >= 1024 else LATTICE


def block_crcs(records: memoryview) -> bytes:
    """The crc32 of each started `BLOCK_NBYTES` of a chunk's records (section 3)."""
    blocks = (records[start : start + BLOCK_NBYTES] for start in range(0, len(records), BLOCK_NBYTES))
    crcs = [crc32(block) for block in blocks]
    return struct.pack(f"<{len(crcs)}I", *crcs)


def block_count(records_nbytes: int) -> int:
    """How many block crcs a chunk has."""
    return -(-records_nbytes // BLOCK_NBYTES)


@dataclass(frozen=True, slots=True)
class Header:
    """One entry of the chain, as its header says it (section 2). link: the previous entry's `link_after`."""

    kind: int
    uuid: bytes
    seq: int
    offset: int
    link: int
    payload_nbytes: int
    payload_crc: int
    next: int = 0
    samples: int = 0
    end_index: int = 0
    table_nbytes: int = 0
    table_crc: int = 0
    durable: int = 0
    # Bytes of this header: the payload starts behind them, on a multiple of 64.
    nbytes: int = field(default=0, init=False, repr=False, compare=False)
    # The link behind it, where it was parsed and so is at hand; `replace` does not carry it over.
    _link_after: int | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The zip entry's name."""
        return _NAMES[self.kind].format(self.seq)

    @property
    def keeps_seal(self) -> bool:
        """True if it is a revision behind which a zip directory lies: the seal before it stays valid."""
        return self.kind == KIND_REVISION and self.next > self.payload_end

    def __post_init__(self) -> None:
        nbytes = HEADER_NBYTES
        if self.offset % 64 or self.payload_nbytes >= _MAX32 or self.seq >= _SHORT_SEQ:
            nbytes = align(self.offset + max(self._private_end, HEADER_NBYTES), 64) - self.offset
        object.__setattr__(self, "nbytes", nbytes)

    @property
    def payload_offset(self) -> int:
        """Where the payload starts, in bytes from the start of the file."""
        return self.offset + self.nbytes

    @property
    def payload_end(self) -> int:
        """One past the last byte of the payload."""
        return self.offset + self.nbytes + self.payload_nbytes

    @property
    def table_offset(self) -> int:
        """Where the table bytes start: behind the pages of an index and the batches of labels, else first."""
        if self.kind in (KIND_INDEX, KIND_LABELS):
            return self.payload_end - self.table_nbytes
        return self.payload_offset

    @property
    def records_offset(self) -> int:
        """Where a chunk's records start, in bytes from the start of the file."""
        return self.payload_offset + align(self.table_nbytes, 64)

    @property
    def _private_end(self) -> int:
        return _LOCAL.size + len(self.name) + self._zip64_nbytes + _EXTRA.size + _PRIVATE.size

    @property
    def _zip64_nbytes(self) -> int:
        return _ZIP64_SIZES.size if self.payload_nbytes >= _MAX32 else 0


def pack_header(header: Header) -> bytes:
    """The bytes of a header: zip local file header, name, extra fields (section 2)."""
    unsigned = _pack_header(header, 0)
    return _pack_header(header, crc32(unsigned))


def _pack_header(header: Header, header_crc: int) -> bytes:
    name = header.name.encode("ascii")
    wide = header._zip64_nbytes > 0
    size = _MAX32 if wide else header.payload_nbytes
    extra_nbytes = header.nbytes - _LOCAL.size - len(name)
    version, sizes = 45 if wide else 20, (size, size, len(name), extra_nbytes)
    local = _LOCAL.pack(_MAGIC, version, 0, 0, 0, _DATE, header.payload_crc, *sizes)
    zip64 = _ZIP64_SIZES.pack(_ZIP64_ID, 16, header.payload_nbytes, header.payload_nbytes) if wide else b""
    private = _PRIVATE.pack(VERSION, *_fields_of(header), header_crc)
    private_nbytes = extra_nbytes - len(zip64) - _EXTRA.size
    return (
        local + name + zip64 + _EXTRA.pack(_EXTRA_ID, private_nbytes) + private.ljust(private_nbytes, b"\0")
    )


def parse_header(data: bytes) -> Header | None:
    """The header that bytes begin with; None where they are not exactly what `pack_header` makes of it.

    Absent, torn, damaged and foreign look alike: no entry here. `MAX_HEADER_NBYTES` always suffice.
    """
    if len(data) < HEADER_NBYTES or data[:4] != _MAGIC:
        return None
    local = _LOCAL.unpack_from(data)
    payload_crc, payload_nbytes = local[6:8]
    position = _LOCAL.size + local[9]
    if payload_nbytes == _MAX32:
        if position + _ZIP64_SIZES.size > len(data):
            return None
        payload_nbytes = _ZIP64_SIZES.unpack_from(data, position)[2]
        position += _ZIP64_SIZES.size
    position += _EXTRA.size
    if position + _PRIVATE.size > len(data):
        return None
    header, packed = _unpacked(data[position : position + _PRIVATE.size], payload_nbytes, payload_crc)
    return header if header is not None and packed == data[: header.nbytes] else None


def _unpacked(private: bytes, payload_nbytes: int, payload_crc: int) -> tuple[Header | None, bytes]:
    """The header with these private fields, and its bytes; None where they do not go together."""
    version, *values, header_crc = _PRIVATE.unpack(private)
    fields = dict(zip(_FIELDS, values, strict=True))
    nbytes = fields.pop("nbytes")
    if version != VERSION or fields["kind"] not in _NAMES:
        return None, b""
    header = Header(**fields, payload_nbytes=payload_nbytes, payload_crc=payload_crc)
    if header.nbytes != nbytes:
        return None, b""
    # Packed but once: its crc32 is that of the same bytes with zeros in its place.
    packed, end = _pack_header(header, header_crc), header._private_end
    if crc32(packed[end:], crc32(bytes(4), crc32(packed[: end - 4]))) != header_crc:
        return None, b""
    object.__setattr__(header, "_link_after", link_after(packed))
    return header, packed


def link_after(packed: bytes) -> int:
    """The link that the entry behind this packed header must carry (section 2)."""
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


# --- the head ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Head:
    """What an archive says about itself in its first pages.

    length: None where it was unknown at creation. codec: "native" or "pickle". compression: as "zstd:19".
    labels: [name, field path or None] of each column. claim_size: consecutive indices of one claim of a fill.
    """

    uuid: bytes
    length: int | None = None
    codec: str = "native"
    compression: str | None = None
    labels: tuple[tuple[str, Any], ...] = ()
    claim_size: int = 64
    fingerprint: dict[str, Any] | None = None


# In the order of the JSON.
_HEAD_KEYS: Final = ("format", "version", *(field.name for field in fields(Head)))


def pack_head(head: Head) -> bytes:
    """The first pages of an archive: header and JSON, padded with spaces to whole pages."""
    meta = {"format": "edcache", "version": VERSION, **asdict(head), "uuid": head.uuid.hex()}
    text = json.dumps(meta, indent=1, ensure_ascii=True).encode("ascii")
    total = align(HEADER_NBYTES + len(text) + 1, PAGE)
    if total > MAX_HEAD_NBYTES:
        raise OptionError(
            f"the archive's head would have {total:,} bytes, the format allows {MAX_HEAD_NBYTES:,}; "
            "shorten the fingerprint's arguments or the label names"
        )
    payload = text.ljust(total - HEADER_NBYTES - 1) + b"\n"
    header = _head_header(head.uuid, len(payload), crc32(payload), total)
    return pack_header(header) + payload


def _head_header(uuid: bytes, nbytes: int, crc: int, end: int) -> Header:
    return Header(KIND_HEAD, uuid, 0, 0, 0, nbytes, crc, end, table_nbytes=nbytes, table_crc=crc)


def read_head(pread: PRead, where: str) -> tuple[Head, Cursor]:
    """The head, and the place of the first entry.

    Raises CorruptArchiveError for what is no archive, or a damaged head; ArchiveError for a newer format.
    """
    data = pread(0, PAGE)
    _check_magic(data, where)
    header = parse_header(data)
    if header is None or header.kind != KIND_HEAD or header.next != header.payload_end:
        raise CorruptArchiveError(
            f"{where}: the head at offset 0 fails its checksum; "
            f'run "edcache verify {where}" and build the archive again if it holds nothing',
            path=where,
        )
    payload = pread(header.payload_offset, min(header.payload_nbytes, MAX_HEAD_NBYTES))
    if len(payload) != header.payload_nbytes or crc32(payload) != header.payload_crc:
        raise CorruptArchiveError(
            f"{where}: the head's {header.payload_nbytes:,} bytes fail their crc32; build the archive again",
            path=where,
        )
    head = _parse_head(payload, header, where)
    if header != _head_header(head.uuid, header.payload_nbytes, header.payload_crc, header.next):
        raise CorruptArchiveError(
            f"{where}: the header at offset 0 is not one that begins an archive", path=where
        )
    return head, after(header)._replace(seq=0)


def begins_archive(data: bytes) -> bool:
    """True if the first bytes of a file are those of an archive, of any format version."""
    name = _NAMES[KIND_HEAD].encode()
    return data[:4] == _MAGIC and data[_LOCAL.size : _LOCAL.size + len(name)] == name


def _check_magic(data: bytes, where: str) -> None:
    # The version is judged before the checksum: a newer format may compute it otherwise.
    name = _NAMES[KIND_HEAD]
    private = _LOCAL.size + len(name)
    if not begins_archive(data):
        raise CorruptArchiveError(
            f"{where}: not an edcache archive: it does not begin with a zip entry {name}"
            + ("; it is empty" if not data else ""),
            path=where,
        )
    if len(data) >= private + 6 and data[private : private + 2] == _EXTRA_ID.to_bytes(2, "little"):
        version = int.from_bytes(data[private + 4 : private + 6], "little")
        if version != VERSION and parse_header(data) is None:
            remedy = "upgrade edcache" if version > VERSION else "build the archive again"
            raise ArchiveError(
                f"{where}: archive format {version}, this release reads format {VERSION}; {remedy}",
                path=where,
            )


def _parse_head(payload: bytes, header: Header, where: str) -> Head:
    try:
        meta = base.loads(payload)
        if type(meta) is not dict or tuple(meta) != _HEAD_KEYS:
            raise ValueError("it has other keys than those of this format version")
        kind = meta.pop("format"), meta.pop("version")
        labels = tuple((name, path) for name, path in meta["labels"])
        head = Head(**meta | {"uuid": bytes.fromhex(meta["uuid"]), "labels": labels})
    except (ValueError, TypeError) as error:
        raise CorruptArchiveError(f"{where}: the head's JSON does not read: {error}", path=where) from error
    sound = (
        kind == ("edcache", VERSION)
        and head.uuid == header.uuid
        and (head.length is None or is_count(head.length))
        and is_count(head.claim_size)
        and head.claim_size > 0
        and head.codec in ("native", "pickle")
        and isinstance(head.compression, str | None)
        and isinstance(head.fingerprint, dict | None)
        and all(isinstance(name, str) and name and _is_path(path) for name, path in head.labels)
        and len(dict(head.labels)) == len(head.labels)
    )
    if not sound:
        raise CorruptArchiveError(
            f"{where}: the head's JSON is not one that this format version allows", path=where
        )
    return head


def _is_path(path: object) -> bool:
    """True if this is a label's field path as the head keeps it: None for a function."""
    if type(path) is list and path:
        return all(type(part) in (str, int) for part in path)
    return path is None or type(path) in (str, int)


def is_count(value: object) -> bool:
    """True if this is a number of samples, as JSON may state one."""
    return type(value) is int and 0 <= value < MAX_LENGTH


# --- the chain --------------------------------------------------------------------------------


class Cursor(NamedTuple):
    """Where the next entry of the chain belongs: its offset, sequence number and link."""

    offset: int
    seq: int
    link: int


def after(header: Header) -> Cursor:
    """The cursor behind an entry."""
    link = header._link_after
    return Cursor(header.next, header.seq + 1, link_after(pack_header(header)) if link is None else link)


def walk(pread: PRead, size: int, uuid: bytes, cursor: Cursor) -> Iterator[Header]:
    """The entries from `cursor` on whose payload lies in the file; a seal gives its two at once.

    It ends without an error where no fitting header is: there the next entry will be written. One pread each.
    """
    while True:
        header = _entry_at(pread, size, uuid, cursor)
        if header is None or header.kind == KIND_LABELS:
            return
        if header.kind == KIND_INDEX:
            labels = _entry_at(pread, size, uuid, after(header))
            if labels is None or labels.kind != KIND_LABELS:
                return
            yield header
            header = labels
        yield header
        cursor = after(header)


def _entry_at(pread: PRead, size: int, uuid: bytes, cursor: Cursor) -> Header | None:
    if cursor.offset + HEADER_NBYTES > size:
        return None
    header = parse_header(pread(cursor.offset, MAX_HEADER_NBYTES))
    if header is None or header.uuid != uuid or header.kind == KIND_HEAD:
        return None
    end = header.payload_end
    if (header.offset, header.seq, header.link) != cursor or end > size:
        return None
    return header if _is_consistent(header, end) else None


def _is_consistent(header: Header, end: int) -> bool:
    """True if an entry's sizes go together as section 2 says; `end` is that of its payload."""
    whole = (header.payload_nbytes, header.payload_crc)
    if header.kind in (KIND_INDEX, KIND_LABELS):
        is_last = header.kind == KIND_LABELS
        goes_on = header.next % PAGE == 0 and header.next > end if is_last else header.next == end
        return header.table_nbytes <= whole[0] and header.samples <= header.end_index and goes_on
    if header.keeps_seal:
        is_whole = whole == (header.table_nbytes, header.table_crc) and header.next % PAGE == 0
        return is_whole and header.samples <= header.end_index <= MAX_LENGTH
    if header.next != end or end % PAGE or header.table_nbytes > whole[0]:
        return False
    if header.kind == KIND_CHUNK:
        return 0 < header.samples <= header.table_nbytes // ROW_NBYTES and header.end_index <= MAX_LENGTH
    if header.next != align(end - whole[0] + header.table_nbytes, PAGE):
        return False
    if header.kind == KIND_REVISION:
        return header.samples <= header.end_index <= MAX_LENGTH
    return header.samples == header.end_index == 0


# --- the zip directory --------------------------------------------------------------------------


def _pack_central(header: Header) -> bytes:
    """The directory's entry of a header."""
    name, nbytes, offset = header.name, header.payload_nbytes, header.offset
    # The seal's own take the long form always, so that they have a fixed place at the end.
    is_long = header.kind in (KIND_INDEX, KIND_LABELS)
    wide_size, wide_offset = is_long or nbytes >= _MAX32, is_long or offset >= _MAX32
    values = [nbytes] * 2 * wide_size + [offset] * wide_offset
    extra = struct.pack(f"<HH{len(values)}Q", _ZIP64_ID, 8 * len(values), *values) if values else b""
    if header.kind == KIND_INDEX:
        end = header._private_end
        extra += _EXTRA.pack(_EXTRA_ID, _PRIVATE.size) + pack_header(header)[end - _PRIVATE.size : end]
    version, lengths = 45 if values else 20, (len(name), len(extra), 0)
    size, place = _MAX32 if wide_size else nbytes, _MAX32 if wide_offset else offset
    sizes = (header.payload_crc, size, size, *lengths)
    fixed = _CENTRAL.pack(b"PK\x01\x02", _MADE_BY, version, 0, 0, 0, _DATE, *sizes, 0, 0, _MODE, place)
    return fixed + name.encode("ascii") + extra


def pack_end(count: int, offset: int, nbytes: int) -> bytes:
    """The end records behind a directory of so many entries: where it begins, how long it is."""
    end64 = _END64.pack(b"PK\x06\x06", 44, _MADE_BY, 45, 0, 0, count, count, nbytes, offset)
    locator = _LOCATOR.pack(b"PK\x06\x07", 0, offset + nbytes, 1)
    end = _END.pack(END_SIGNATURE, 0, 0, _MAX16, _MAX16, _MAX32, _MAX32, 0)
    return end64 + locator + end


def _parse_end(end: bytes, size: int) -> int | None:
    """Where the directory begins, of the last `END_NBYTES`; None unless they are what `pack_end` makes."""
    fields = _END64.unpack_from(end)
    count, nbytes, offset = fields[6], fields[8], fields[9]
    # In this order: absurd numbers in foreign bytes would not pack.
    if offset + nbytes + END_NBYTES != size or end != pack_end(count, offset, nbytes):
        return None
    return int(offset)


def directory_offsets(directory: bytes) -> Iterator[int]:
    """Where the entries of a zip directory say that they begin: unchecked, a hint for reading ahead.

    directory: or the end of one, from the first whole entry of which they are read.
    """
    at = max(0, directory.find(b"PK\x01\x02"))
    while at + _CENTRAL.size <= len(directory) and directory[at : at + 4] == b"PK\x01\x02":
        fields = _CENTRAL.unpack_from(directory, at)
        # Where it is long, behind the id of zip64's field and, if they are long too, both sizes.
        long = at + _CENTRAL.size + fields[10] + _EXTRA.size + (16 if fields[8] == _MAX32 else 0)
        at += _CENTRAL.size + sum(fields[10:13])
        yield int.from_bytes(directory[long : long + 8], "little") if fields[16] == _MAX32 else fields[16]


def pack_directory(headers: Sequence[Header], offset: int) -> bytes:
    """The zip directory of entries, those of the seal last, as it stands at `offset`."""
    central = b"".join([_pack_central(header) for header in headers])
    return central + pack_end(len(headers), offset, len(central))


# What the long form of an entry takes, and the private fields of the index.
_AGAIN_NBYTES: Final = _EXTRA.size + _PRIVATE.size
_INDEX_CENTRAL, _LABELS_CENTRAL = (
    _CENTRAL.size + len(_NAMES[kind]) + _EXTRA.size + 24 + more
    for kind, more in ((KIND_INDEX, _AGAIN_NBYTES), (KIND_LABELS, 0))
)
TAIL_NBYTES: Final = _INDEX_CENTRAL + _LABELS_CENTRAL + END_NBYTES


class Tail(NamedTuple):
    """The end of a sealed archive: where the directory, index.pages and labels.arrow begin.

    index_header: as the directory has it; None where that does not read.
    """

    directory_offset: int
    index_offset: int
    labels_offset: int
    index_header: Header | None


def parse_tail(tail: bytes, size: int) -> Tail | None:
    """The canonical end of a sealed archive, of its last `TAIL_NBYTES`; None where it does not end so."""
    if len(tail) < TAIL_NBYTES:
        return None
    offset = _parse_end(tail[-END_NBYTES:], size)
    if offset is None:
        return None
    # The long form of an entry ends with its size, twice, and the offset of its header.
    ends = len(tail) - END_NBYTES - _LABELS_CENTRAL, len(tail) - END_NBYTES
    nbytes, index_offset = struct.unpack_from("<Q8xQ", tail, ends[0] - _AGAIN_NBYTES - 24)
    crc = _CENTRAL.unpack_from(tail, ends[0] - _INDEX_CENTRAL)[7]
    index, _ = _unpacked(tail[ends[0] - _PRIVATE.size : ends[0]], nbytes, crc)
    return Tail(offset, index_offset, int.from_bytes(tail[ends[1] - 8 : ends[1]], "little"), index)


@dataclass(frozen=True, slots=True)
class Seal:
    """The headers of a seal, and of the revisions behind it, which leave it valid."""

    index: Header
    labels: Header
    revisions: tuple[Header, ...] = ()

    @property
    def last(self) -> Header:
        """The last of them."""
        return self.revisions[-1] if self.revisions else self.labels

    @property
    def directory_offset(self) -> int:
        """Where the zip directory begins."""
        return self.last.payload_end


def read_seal(pread: PRead, size: int, uuid: bytes, is_final: bool = False) -> Seal | None:
    """The headers of the seal of a sealed archive, and of the revisions behind it; None if it is unsealed.

    That the directory agrees with the whole chain is left to those who walk it.

    Args:
        is_final: nobody writes to these bytes: the directory says what the header of index.pages is, which
            otherwise publishes the seal and so is read.
    """
    tail_bytes = pread(max(0, size - TAIL_NBYTES), TAIL_NBYTES)
    tail = parse_tail(tail_bytes, size)
    if tail is None:
        return None
    index = tail.index_header if is_final else parse_header(pread(tail.index_offset, MAX_HEADER_NBYTES))
    labels = parse_header(pread(tail.labels_offset, MAX_HEADER_NBYTES))
    if index is None or labels is None or index.kind != KIND_INDEX or labels.kind != KIND_LABELS:
        return None
    expected = tail_bytes[: _INDEX_CENTRAL + _LABELS_CENTRAL]
    seal = Seal(index, labels)
    while (cursor := after(seal.last)).offset < tail.directory_offset:
        revision = _entry_at(pread, size, uuid, cursor)
        if revision is None or not revision.keeps_seal or len(seal.revisions) == MAX_BEHIND_SEAL:
            return None
        seal = replace(seal, revisions=(*seal.revisions, revision))
    fits = (
        index.uuid == labels.uuid == uuid
        and _is_consistent(index, index.payload_end)
        and _is_consistent(labels, labels.payload_end)
        and index.offset == tail.index_offset
        and (labels.offset, labels.seq, labels.link) == after(index)
        and seal.directory_offset == tail.directory_offset
        and seal.last.next == align(size, PAGE)
        and labels.samples in (index.end_index, *([] if seal.revisions else [index.samples]))
        and index.end_index == labels.end_index
        and _pack_central(index) + _pack_central(labels) == expected
    )
    return seal if fits else None


def behind_seal(revision: Header, seal: Seal, headers: Sequence[Header]) -> tuple[Header, bytes]:
    """The header of a revision that leaves the seal valid, and the directory, which goes to `payload_end`.

    headers: all other entries but the seal's.
    """
    directory = pack_directory([*headers, revision, seal.index, seal.labels], revision.payload_end)
    return replace(revision, next=align(revision.payload_end + len(directory), PAGE)), directory


def seal_headers(index: Header, labels: Header, headers: Sequence[Header]) -> tuple[Header, Header, bytes]:
    """The headers of a seal, with link, offset and next as `index.offset` makes them, and its directory.

    headers: what the directory lists before them. It goes to `labels.payload_end`.
    """
    index = replace(index, next=index.payload_end)
    labels = replace(labels, offset=index.next, seq=index.seq + 1, link=link_after(pack_header(index)))
    directory = pack_directory([*headers, index, labels], labels.payload_end)
    return index, replace(labels, next=align(labels.payload_end + len(directory), PAGE)), directory
