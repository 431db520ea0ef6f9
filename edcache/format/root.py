"""Root of a sealed archive, which locates all other entries, and the zip directory that points at it.

A sealed file ends so:

    root.json                   payload of the last entry: counts, schemas, places of index and label columns
    zip directory               a record for the head, and for the newest entry of each name
    zip64 end, its locator
    end record                  its comment tells offset, bytes and crc32 of the payload of root.json

- A reader takes the last 64 KiB, and then the root that the comment names, mostly of the same bytes (`read_root`). It
  reads no record of the directory: these are for unzip and other programs.
- So an archive is sealed if it ends in a comment, and the root fits the crc32 there. The zip64 locator says where it
  ends: bytes of its own end that stand behind it again are a torn tail as any others. As soon as entries are appended
  behind, it is not sealed, until the next seal ends the file again. The old directory stays, and no reader needs it.
- The directory is a function of the chain (`Chain.listed`, `pack_directory`). A writer writes it again where a crash
  took it, and a check compares all its bytes.
- Sizes and offsets in it are zip64 at any size, so it has one form.

What must never happen: that the comment is believed without the crc32 of the root; that a place leads out of the file.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from edcache import base
from edcache.base import LaterReleaseError
from edcache.format.arrays import pa
from edcache.format.entries import (
    DATE,
    MAX32,
    VERSION,
    Header,
    Place,
    PRead,
    align,
    came_again,
    or_absent,
    read_sound,
    reported,
)
from edcache.format.head import Head, check_known, is_count, parsed_head
from edcache.format.records import ROW, Failure, failures_of, fits, schemas_of, texts_of
from edcache.format.types import is_type_json, type_of_json

TAIL_NBYTES: Final = 1 << 16
"""Bytes at the end of an archive that opening it reads; and once more if its root is not among them."""

_CENTRAL: Final = struct.Struct("<4sHHHHHHIIIHHHHHII")  # 46 bytes
_ZIP64: Final = struct.Struct("<HHQQQ")  # 28 bytes
_END64: Final = struct.Struct("<4sQHHIIQQQQ")  # 56 bytes
_LOCATOR: Final = struct.Struct("<4sIQI")  # 20 bytes
_END: Final = struct.Struct("<4sHHHHIIH")  # 22 bytes
# Text, since unzip prints it: offset, bytes and crc32 of the root's payload.
_COMMENT: Final = b"edcache %d root.json %016x %016x %08x"
_COMMENT_READ: Final = re.compile(rb"edcache [0-9] root\.json ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{8})")
_COMMENT_NBYTES: Final = len(_COMMENT % (VERSION, 0, 0, 0))
END_NBYTES: Final = _END.size + _COMMENT_NBYTES
_MADE_BY: Final = (3 << 8) | 45  # Unix, so that the mode below is honoured
_MODE: Final = 0o100644 << 16
_MAX16: Final = 0xFFFF


class KeysPlace(NamedTuple):
    """Range of bytes of the table of keys; crc32 of the crc32s of its blocks, or of one block; number of keys."""

    offset: int
    nbytes: int
    crc32: int
    items: int

    def fits(self, data: bytes | memoryview) -> bool:
        """True if bytes fit the table's sum."""
        return fits(self.crc32, 24 * self.items, memoryview(data))


P = TypeVar("P", Place, KeysPlace)


@dataclass(frozen=True, slots=True)
class Column:
    """Label column of a sealed archive.

    type_json: its type, as `type_to_json` returns it. is_added: True if `add_labels` added it after the samples.
    """

    place: Place
    type_json: str | list[str]
    is_added: bool = False

    @property
    def type(self) -> pa.DataType:
        """Arrow type; the first one of a process imports pyarrow."""
        return type_of_json(self.type_json)


@dataclass(frozen=True)
class Root:
    """Contents of root.json: counts, schemas, and places of index and label columns.

    length: samples of the dataset. present: samples with a record. chunks: of the file. index: the rows, one a sample.
    labels: columns by name, one value a sample. dropped: columns of chunks that the archive lost. uniform: schema of
    all records, and their least and most bytes; None if they have several, or if one is compressed or absent.
    fingerprint: of the last source that lengthened it. keys: place of the table of the keys (key_table.py) and their
    number, or None. is_reordered: True if samples have other numbers here than in chunks. is_synced: True if the file
    was synced before its end was written, so that all before the end is on the disk. reads, writes, more: as of `Head`.
    """

    head: Head
    length: int
    present: int
    chunks: int
    schemas: Sequence[str]
    index: Place
    labels: Mapping[str, Column] = field(default_factory=dict)
    dropped: Sequence[str] = ()
    failures: Sequence[Failure] = ()
    uniform: tuple[int, int, int] | None = None
    fingerprint: dict[str, Any] | None = None
    keys: KeysPlace | None = None
    is_reordered: bool = False
    is_synced: bool = False
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> Head:
        """Head, with fingerprint and length of the last source that lengthened it."""
        if self.fingerprint is None:
            return self.head
        return replace(self.head, length=self.length, fingerprint=self.fingerprint)


_FIELDS: Final = tuple(one.name for one in fields(Root))


def pack_root(root: Root) -> bytes:
    """Pack the payload of root.json."""
    meta = {name: getattr(root, name) for name in _FIELDS}
    meta["head"] = root.head.to_json()
    meta["failures"] = [failure.to_json() for failure in root.failures]
    meta["labels"] = {
        name: [*column.place, column.type_json, column.is_added] for name, column in root.labels.items()
    }
    return json.dumps(meta, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def parse_root(data: bytes | memoryview, size: int, where: str) -> Root:
    """Parse the root of a file of `size` bytes.

    Raises: LaterReleaseError; CorruptArchiveError, no release of edcache wrote it.
    """
    with reported(f"{where}: root.json", where):
        meta = base.loads(data)
        check_known(meta, _FIELDS, "root.json")
        meta["head"] = parsed_head(meta["head"])
        meta["failures"] = failures_of(meta["failures"])
        schemas_of(meta["schemas"])
        texts_of(meta["dropped"], "names of columns")
        labels = {}
        for name, (*place, kind, is_added) in meta["labels"].items():
            if not is_type_json(kind):
                raise LaterReleaseError.needing(f"the label type {str(kind)[:80]!r}")
            labels[name] = Column(_place(Place, place, size), kind, bool(is_added))
        meta["labels"], meta["index"] = labels, _place(Place, meta["index"], size)
        meta["uniform"] = None if meta["uniform"] is None else tuple(meta["uniform"])
        meta["keys"] = None if meta["keys"] is None else _place(KeysPlace, meta["keys"], size)
        meta |= {name: tuple(meta[name]) for name in ("reads", "writes")}
        root = Root(**meta)
        sound = (
            all(map(is_count, (root.length, root.present, root.chunks)))
            and root.present <= root.length
            and root.index.nbytes == ROW.itemsize * root.length
            and (root.uniform is None or (len(root.uniform) == 3 and all(map(is_count, root.uniform))))
            and isinstance(root.fingerprint, dict | None)
            and {type(root.is_reordered), type(root.is_synced)} == {bool}
        )
        if not sound:
            raise ValueError("it has values that this format version does not allow")
    return root


def _place(kind: type[P], value: Any, size: int) -> P:
    place = kind(*value)
    if not all(map(is_count, place)) or place.offset + place.nbytes > size:
        raise ValueError("a place that is not in the file")
    return place


# --- the directory ------------------------------------------------------------------------------------


def pack_directory(headers: Sequence[Header], offset: int) -> bytes:
    """Pack the zip directory of entries, to stand at `offset`; its comment points at the last, the root."""
    root, central = headers[-1], b"".join(map(_pack_central, headers))
    count, end = len(headers), offset + len(central)
    end64 = _END64.pack(b"PK\x06\x06", 44, _MADE_BY, 45, 0, 0, count, count, len(central), offset)
    locator = _LOCATOR.pack(b"PK\x06\x07", 0, end, 1)
    last = _END.pack(b"PK\x05\x06", 0, 0, _MAX16, _MAX16, MAX32, MAX32, _COMMENT_NBYTES)
    return central + end64 + locator + last + _COMMENT % (VERSION, *root.payload)


def _pack_central(header: Header) -> bytes:
    extra = _ZIP64.pack(1, 24, header.nbytes, header.nbytes, header.offset)
    sizes = header.crc32, MAX32, MAX32, len(header.name), len(extra), 0
    fixed = _CENTRAL.pack(b"PK\x01\x02", _MADE_BY, 45, 0, 0, 0, DATE, *sizes, 0, 0, _MODE, MAX32)
    return fixed + header.name.encode("ascii") + extra


def _root_place(tail: bytes | memoryview, size: int) -> Place | None:
    """Read the place of the root from the last bytes of a file; None if it does not end as a sealed archive."""
    end = bytes(tail[-END_NBYTES:])
    found = _COMMENT_READ.fullmatch(end, _END.size) if end[:4] == b"PK\x05\x06" else None
    if found is None or len(tail) < _LOCATOR.size + END_NBYTES:
        return None
    _, _, end64, _ = _LOCATOR.unpack_from(tail, len(tail) - END_NBYTES - _LOCATOR.size)
    place = Place(*[int(number, 16) for number in found.groups()])
    is_end = end64 + _END64.size + _LOCATOR.size + END_NBYTES == size
    # A crc32 of nothing is 0, as a power cut leaves it.
    return place if is_end and 0 < place.nbytes <= size - place.offset else None


def read_places(pread: PRead, places: Sequence[Place]) -> list[bytes | None]:
    """Read the bytes of several places; None for one that fails its crc32."""
    return [read_sound(pread, place) for place in places]


def read_root(pread: PRead, size: int, where: str) -> tuple[Root, Place] | None:
    """Read the root that the end of a file points at, and its place; None without a sound one.

    Cost: one pread of `TAIL_NBYTES`, and one of the root, which is mostly in them. Raises: CorruptArchiveError: its
    crc32 holds, but no release of edcache wrote it.
    """
    start = align(max(0, size - TAIL_NBYTES), 64)
    is_end = or_absent(lambda tail: _root_place(tail, size) is not None)
    for check in (is_end, came_again()):
        place = _root_place(pread(start, size - start, check), size)
        if place is None:
            return None
        data = read_sound(pread, place)
        if data is not None:
            return parse_root(data, size, where), place
        # The comment has no sum of its own: another answer may name another place.
    return None
