"""Head of an archive: identity and options, on its first pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from edcache import base
from edcache.base import CorruptArchiveError, LaterReleaseError, OptionError
from edcache.format.entries import (
    HEAD,
    LOCAL,
    MAGIC,
    MAX_LENGTH,
    PAGE,
    VERSION,
    Header,
    PRead,
    align,
    crc32,
    header_nbytes,
    or_absent,
    pack_header,
    parse_header,
    read_sound,
    reported,
)
from edcache.format.key_table import KEY_COLUMN
from edcache.format.records import texts_of

MAX_HEAD_NBYTES: Final = 1 << 20
HEAD_NAME: Final = "edcache.json"


READS: Final = frozenset[str]()
"""Features of archives that this release reads; a later one names what it adds in "reads" of head and root."""
WRITES: Final = frozenset[str]()
"""Features, named in "writes", that a writer must know and a reader need not."""
MORE: Final = "more"
"""Key of each JSON object of an archive. A later release puts there what an older one may ignore."""
CODECS: Final = "native", "pickle"

_REMEDY: Final = (
    "no writer goes on with it, and a sealed one can still be read: write its samples into a new archive"
)

KEYS_DIGEST: Final = "keys"
"""Entry of a fingerprint: see `Head.keys_digest`."""


@dataclass(frozen=True)
class Head:
    """Identity and options of an archive.

    length: None if it was unknown at creation. codec: "native" or "pickle". compression: as "zstd:19". labels: [name,
    field path or None] of each column. claim_size: consecutive indices of one claim of a fill. reads, writes: features
    that a reader, and that a writer, must know. more: what may be ignored.
    """

    uuid: bytes
    length: int | None = None
    codec: str = "native"
    compression: str | None = None
    labels: tuple[tuple[str, Any], ...] = ()
    claim_size: int = 64
    fingerprint: dict[str, Any] | None = None
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys_digest(self) -> str | None:
        """Digest of the keys and versions of the samples that an archive was filled for."""
        return (self.fingerprint or {}).get(KEYS_DIGEST)

    @property
    def takes_values(self) -> bool:
        """True of a KeyedCache, to which values are added for ever: it has no length, and no label but the key."""
        return self.length is None and self.fingerprint is not None and self.labels == ((KEY_COLUMN, None),)

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


def read_head(pread: PRead, where: str) -> tuple[Head, Header]:
    """Read the head; return it with its header.

    Raises: CorruptArchiveError, it is no archive or the head is damaged; LaterReleaseError.
    """
    data = pread(0, PAGE, or_absent(is_head))
    _check_begin(data, where)
    header = parse_header(data)
    if header is not None and header.version > VERSION:
        what = f"archive format {header.version} (this release knows {VERSION})"
        raise LaterReleaseError.needing(what).within(where, where)
    if header is None or header.kind != HEAD or header.offset or header.next != header.payload_end:
        found = "fails its checksum" if header is None else f"is gone: {header.name[:80]} stands there"
        raise CorruptArchiveError(f"{where}: the head at offset 0 {found}; {_REMEDY}", path=where)
    payload = read_sound(pread, header.payload) if header.nbytes <= MAX_HEAD_NBYTES else None
    if payload is None:
        found = f"the head's {header.nbytes:,} bytes fail their crc32"
        raise CorruptArchiveError(f"{where}: {found}; {_REMEDY}", path=where)
    with reported(f"{where}: the head", where):
        head = parsed_head(base.loads(payload))
        if head.uuid != header.uuid:
            raise ValueError("its uuid is not that of its entry")
    return head, header


def is_head(page: bytes | memoryview) -> bool:
    """True if the first page of a file has a sound header of a head, and a sound payload if that ends in it."""
    header = parse_header(bytes(page))
    if header is None or header.kind != HEAD:
        return False
    payload = page[header.payload_offset : header.payload_end]
    return len(payload) < header.nbytes or crc32(payload) == header.crc32


def begins_archive(data: bytes) -> bool:
    """True if an archive of any format version begins with these bytes."""
    return data[:4] == MAGIC and data.startswith(HEAD_NAME.encode(), LOCAL.size)


def _check_begin(data: bytes, where: str) -> None:
    if not data:
        raise CorruptArchiveError(
            f"{where}: it is empty: its writer begins, or died before the first bytes; try again, or fill it",
            path=where,
        )
    if not begins_archive(data) and parse_header(data) is None:
        hint = f'; if edflow wrote it, "edcache import {where} -o NEW --from edflow" reads it'
        raise CorruptArchiveError(
            f"{where}: not an edcache archive: it does not begin with a zip entry {HEAD_NAME}"
            + hint * (data[:4] == MAGIC),
            path=where,
        )


def check_known(meta: object, keys: Iterable[str], what: str, optional: bool = False) -> None:
    """Check the keys of a JSON object of an archive. optional: True if none of them must be there.

    Raises: LaterReleaseError, there are others, or features that this release does not know; ValueError, some lack.
    """
    if type(meta) is not dict:
        raise ValueError(f"{what} is no object")
    for feature in texts_of(meta.get("reads", []), "names of features"):
        if feature not in READS:
            raise LaterReleaseError.needing(repr(feature))
    known = {*keys}
    for key in meta:
        if key not in known:
            raise LaterReleaseError.needing(f"the key {key[:80]!r} of {what}")
    if type(meta.get(MORE, {})) is not dict or not (optional or meta.keys() == known):
        raise ValueError(f"{what} lacks a key")
    texts_of(meta.get("writes", []), "names of features")


def check_writable(names: Iterable[str], where: str) -> None:
    """Raise LaterReleaseError if a writer of an archive must know a feature that this release does not know."""
    for feature in names:
        if feature not in WRITES:
            raise LaterReleaseError.needing(f"{feature!r} for writing").within(where, where)


def parsed_head(meta: Any) -> Head:
    """Make a head from its JSON object; ValueError or TypeError if it is none. Raises: LaterReleaseError."""
    version = meta.get("version") if type(meta) is dict else None
    if type(version) is int and version > VERSION:
        raise LaterReleaseError.needing(f"archive format {version} (this release knows {VERSION})")
    check_known(meta, _KEYS, HEAD_NAME)
    kind = meta.pop("format"), meta.pop("version")
    labels = tuple((name, path) for name, path in meta["labels"])
    lists = {name: tuple(meta[name]) for name in ("reads", "writes")}
    head = Head(**meta | {"uuid": bytes.fromhex(meta["uuid"]), "labels": labels} | lists)
    if type(head.codec) is str and head.codec not in CODECS:
        raise LaterReleaseError.needing(f"the codec {head.codec[:80]!r}")
    sound = (
        kind == ("edcache", VERSION)
        and len(head.uuid) == 16
        and (head.length is None or is_count(head.length))
        and is_count(head.claim_size)
        and head.claim_size > 0
        and head.codec in CODECS
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
