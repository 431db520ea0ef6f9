"""The JSON of heads and of amendments, behind fitting checksums."""

from __future__ import annotations

import json
from typing import Any

from fuzz_draw import Draw

from edcache import format
from edcache.errors import EdcacheError
from edcache.format import Head, Header
from edcache.format.chain import Chain

UUID = bytes(range(16))
_HEAD = json.loads(format.pack_head(Head(UUID, 5, labels=(("y", "y"), ("z", ["a", 0]))))[192:])
_NOTE = {"length": 7, "lost": [1, 2], "failed": [[1, True, "ValueError", "text", "trace"]]}
_FAILED = [1, False, "E", "", ""]


def run(data: bytes) -> None:
    draw = Draw(data)
    is_head = draw.flag()
    text = _text(draw, _HEAD if is_head else _NOTE)
    (_read_head if is_head else _read_note)(text)


def _text(draw: Draw, honest: dict[str, Any]) -> bytes:
    kind = draw.below(4)
    if kind == 0:
        return draw.rest()
    if kind == 1:
        return draw.changed(json.dumps(honest).encode())
    said = dict(honest)
    while draw:
        key = draw.pick(sorted(honest))
        if key == "failed" and draw.flag():
            said[key] = [
                [draw.value() if draw.flag() else part for part in _FAILED] for _ in range(draw.below(4))
            ]
        else:
            said[key] = draw.value()
        if draw.below(4) == 3:
            del said[key]
    return json.dumps(said).encode()


def _read_head(text: bytes) -> None:
    crc = format.crc32(text)
    header = Header(0, UUID, 0, 0, 0, len(text), crc, len(text) + 192, table_nbytes=len(text), table_crc=crc)
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
    crc = format.crc32(text)
    chain = Chain(Head(UUID), format.Cursor(4096, 0, 0), "fuzz.zip")
    header = Header(3, UUID, 0, 4096, 0, len(text), crc, 8192, table_nbytes=len(text), table_crc=crc)
    try:
        chain.note(lambda offset, nbytes: text[:nbytes], header)
    except EdcacheError:
        return
    assert chain.length is None or chain.length >= 0
    assert all(type(seq) is int for seq in chain.lost)
    assert all(index == failure.index >= 0 for index, (_, failure) in chain.failures.items())


def seeds() -> list[bytes]:
    notes = [b"\0\0" + json.dumps(_NOTE).encode(), b"\0\0{}", b'\0\0{"length": 3}', b'\0\0{"lost": [1e400]}']
    heads = [b"\1\0" + json.dumps(_HEAD).encode(), b"\1\2\0\0\1\1\1\0\1\2", b"\1\1\x20\3abc"]
    return [*notes, *heads, b"\0\2\0\1\1\0\1\0\1\0", b"\0\0" + b"[" * 3000]
