"""The JSON of heads, notes and roots, behind fitting checksums."""

from __future__ import annotations

import json
from typing import Any

from fuzz_draw import Draw

from edcache import format
from edcache.errors import EdcacheError
from edcache.format import Chain, Column, Head, Header, Place, Root
from edcache.format.entries import HEAD

UUID = bytes(range(16))
_HEAD = json.loads(format.pack_head(Head(UUID, 5, labels=(("y", "y"), ("z", ["a", 0]))))[192:])
_ROOT = json.loads(
    format.pack_root(
        Root(
            *(Head(UUID, 5), 5, 3, 1, ['"int"'], Place(4288, 120, 7)),
            labels={"y": Column(Place(4500, 99, 3), "int64")},
            uniform=(0, 8),
        )
    )
)
_NOTE = {"length": 7, "fingerprint": None, "failed": [[1, True, "ValueError", "text", "trace"]]}
_FAILED = [1, False, "E", "", ""]


def run(data: bytes) -> None:
    draw = Draw(data)
    honest, read = draw.pick(((_NOTE, _read_note), (_HEAD, _read_head), (_ROOT, _read_root)))
    read(_text(draw, honest))


def _text(draw: Draw, honest: dict[str, Any]) -> bytes:
    kind = draw.below(4)
    if kind == 0:
        return draw.rest()
    if kind == 1:
        return draw.changed(json.dumps(honest).encode())
    said = dict(honest)
    while draw:
        key = draw.pick(sorted(honest))
        if key in ("failed", "failures") and draw.flag():
            said[key] = [
                [draw.value() if draw.flag() else part for part in _FAILED] for _ in range(draw.below(4))
            ]
        else:
            said[key] = draw.value()
        if draw.below(4) == 3:
            del said[key]
    return json.dumps(said).encode()


def _read_head(text: bytes) -> None:
    nbytes = format.header_nbytes(format.HEAD_NAME)
    crc, end = format.crc32(text), nbytes + len(text)
    header = Header(HEAD, format.HEAD_NAME, UUID, 0, 0, len(text), crc, end, 0)
    data = format.pack_header(header) + text
    try:
        head, _ = format.read_head(lambda offset, nbytes: data[offset : offset + nbytes], "fuzz.zip")
    except EdcacheError:
        return
    assert head.uuid == UUID
    assert head.length is None or 0 <= head.length < 1 << 62
    assert type(head.claim_size) is int
    assert all(type(name) is str for name, _ in head.labels)


def _read_note(text: bytes) -> None:
    chain = Chain(Head(UUID), format.Cursor(4096, 0, 0), "fuzz.zip")
    place = 0, 4096, len(text), format.crc32(text), 8192, 0
    try:
        chain.add(lambda offset, nbytes: text[:nbytes], [Header(format.NOTE, "notes/00000001", UUID, *place)])
    except EdcacheError:
        return
    assert chain.length is None or chain.length >= 0
    assert all(index == failure.index >= 0 for index, (_, failure) in chain.failures.items())


def _read_root(text: bytes) -> None:
    chain = Chain(Head(UUID), format.Cursor(4096, 0, 0), "fuzz.zip")
    place = 0, 8192, len(text), format.crc32(text), 1 << 20, 0
    try:
        chain.add(lambda offset, nbytes: text[:nbytes], [Header(format.ROOT, "root.json", UUID, *place)])
    except EdcacheError:
        return
    root = chain.root
    assert root is not None
    assert 0 <= root.present <= root.length
    end = chain.cursor.offset
    assert all(0 <= one.offset <= one.offset + one.nbytes <= end for one in (root.index, *_places(root)))
    assert all(type(name) is str for name in (*root.labels, *root.dropped, *root.schemas))
    assert list(root.schema.names) == list(root.labels)
    assert chain.end > 0


def _places(root: Root) -> list[Place]:
    return [column.place for column in root.labels.values()]


def seeds() -> list[bytes]:
    notes = [b"\0\0" + json.dumps(_NOTE).encode(), b"\0\0{}", b'\0\0{"length": 3}', b'\0\0{"length": 1e400}']
    roots = [b"\2\0" + json.dumps(_ROOT).encode(), b"\2\1\1\0\4", b"\2\2\3\4\5\6\7"]
    heads = [b"\1\0" + json.dumps(_HEAD).encode(), b"\1\2\0\0\1\1\1\0\1\2", b"\1\1\x20\3abc"]
    return [*notes, *heads, *roots, b"\0\2\0\1\1\0\1\0\1\0", b"\0\0" + b"[" * 1_000_000]
