"""Head of an archive: identity and options, on its first pages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from edcache import base
from edcache.base import ArchiveError, CorruptArchiveError, OptionError
from edcache.format.entries import (
    HEAD,
    LOCAL,
    MAGIC,
    MAX_LENGTH,
    PAGE,
    VERSION,
    Cursor,
    Header,
    PRead,
    align,
    crc32,
    header_nbytes,
    pack_header,
    parse_header,
    reported,
)

MAX_HEAD_NBYTES: Final = 1 << 20
HEAD_NAME: Final = "edcache.json"
_BEGIN: Final = LOCAL.size + len(HEAD_NAME)


KEYS_DIGEST: Final = "keys"
"""Entry of a fingerprint: see `Head.keys_digest`."""


@dataclass(frozen=True)
class Head:
    """Identity and options of an archive.

    length: None if it was unknown at creation. codec: "native" or "pickle". compression: as "zstd:19". labels: [name,
    field path or None] of each column. claim_size: consecutive indices of one claim of a fill.
    """

    uuid: bytes
    length: int | None = None
    codec: str = "native"
    compression: str | None = None
    labels: tuple[tuple[str, Any], ...] = ()
    claim_size: int = 64
    fingerprint: dict[str, Any] | None = None

    @property
    def keys_digest(self) -> str | None:
        """Digest of the keys and versions of the samples that an archive was filled for."""
        return (self.fingerprint or {}).get(KEYS_DIGEST)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `parsed_head` reads."""
        return {"format": "edcache", "version": VERSION, **asdict(self), "uuid": self.uuid.hex()}


_KEYS: Final = ("format", "version", *(field.name for field in fields(Head)))


def pack_head(head: Head) -> bytes:
    """Pack the first pages of an archive: header and JSON, padded with spaces to whole pages."""
    text = json.dumps(head.to_json(), indent=1, ensure_ascii=True).encode("ascii")
    start = header_nbytes(HEAD_NAME)
    total = align(start + len(text) + 1, PAGE)
    if total > MAX_HEAD_NBYTES:
        raise OptionError(
            f"the archive's head would have {total:,} bytes, the format allows {MAX_HEAD_NBYTES:,}; "
            "shorten the fingerprint's arguments or the label names"
        )
    payload = text.ljust(total - start - 1) + b"\n"
    header = Header(HEAD, HEAD_NAME, head.uuid, 0, 0, len(payload), crc32(payload), total, 0)
    return pack_header(header) + payload


def read_head(pread: PRead, where: str) -> tuple[Head, Cursor]:
    """Read the head; return it with the cursor of the first entry.

    Raises CorruptArchiveError if it is no archive or the head is damaged; ArchiveError for a newer format.
    """
    data = pread(0, PAGE)
    _check_begin(data, where)
    header = parse_header(data)
    if header is None or header.kind != HEAD or header.offset or header.next != header.payload_end:
        raise CorruptArchiveError(
            f"{where}: the head at offset 0 fails its checksum; "
            f'run "edcache verify {where}" and build the archive again if it holds nothing',
            path=where,
        )
    payload = pread(header.payload_offset, min(header.nbytes, MAX_HEAD_NBYTES))
    if len(payload) != header.nbytes or crc32(payload) != header.crc32:
        raise CorruptArchiveError(
            f"{where}: the head's {header.nbytes:,} bytes fail their crc32; build the archive again",
            path=where,
        )
    with reported(f"{where}: the head", where):
        head = parsed_head(base.loads(payload))
        if head.uuid != header.uuid:
            raise ValueError("its uuid is not that of its entry")
    return head, Cursor.behind(header)


def begins_archive(data: bytes) -> bool:
    """True if an archive of any format version begins with these bytes."""
    return data[:4] == MAGIC and data[LOCAL.size : _BEGIN] == HEAD_NAME.encode()


def _check_begin(data: bytes, where: str) -> None:
    if not begins_archive(data):
        raise CorruptArchiveError(
            f"{where}: not an edcache archive: it does not begin with a zip entry {HEAD_NAME}"
            + ("; it is empty" if not data else ""),
            path=where,
        )
    # Each format from 3 on has the version at this place; it is judged before the checksum.
    at = _BEGIN + 24
    version = int.from_bytes(data[at : at + 2], "little")
    if data[_BEGIN + 20 : _BEGIN + 22] == b"ed" and version > VERSION and parse_header(data) is None:
        raise ArchiveError(
            f"{where}: archive format {version}, this release reads format {VERSION}; upgrade edcache",
            path=where,
        )


def parsed_head(meta: Any) -> Head:
    """Make a head from its JSON object; ValueError or TypeError if it is none."""
    if type(meta) is not dict or tuple(meta) != _KEYS:
        raise ValueError("it has other keys than those of this format version")
    kind = meta.pop("format"), meta.pop("version")
    labels = tuple((name, path) for name, path in meta["labels"])
    head = Head(**meta | {"uuid": bytes.fromhex(meta["uuid"]), "labels": labels})
    sound = (
        kind == ("edcache", VERSION)
        and len(head.uuid) == 16
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
        raise ValueError("it has values that this format version does not allow")
    return head


def _is_path(path: object) -> bool:
    """True if this is a label's field path as the head has it; None for a function."""
    if type(path) is list and path:
        return all(type(part) in (str, int) for part in path)
    return path is None or type(path) in (str, int)


def is_count(value: object) -> bool:
    """True if this is a number of samples."""
    return type(value) is int and 0 <= value < MAX_LENGTH
