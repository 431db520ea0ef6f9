"""zstd frames, true and forged."""

from __future__ import annotations

from functools import cache

from fuzz_draw import Draw

from edcache.codec.compression import Compression, content_nbytes, decompress
from edcache.errors import CorruptRecordError

_CONTENT = [b"", b"a", b"abc" * 50, bytes(5000), bytes(range(256)) * 4, b'{"text": "word7 word9"}' * 9]


@cache
def _frame(content: int, level: int) -> bytes:
    return Compression(level).compress(_CONTENT[content])


def run(data: bytes) -> None:
    draw = Draw(data)
    content = draw.below(len(_CONTENT))
    frame = _frame(content, draw.pick((1, 3, 19)))
    kind = draw.below(5)
    if kind == 1:
        frame = draw.changed(frame)
    elif kind == 2:
        frame = draw.rest()
    elif kind == 3:
        frame = b"\x28\xb5\x2f\xfd" + draw.rest()
    elif kind == 4:
        frame = frame + draw.rest()
    try:
        raw = decompress(frame)
    except CorruptRecordError:
        return
    assert len(raw) == content_nbytes(frame)
    assert raw == _CONTENT[content] or kind in (1, 2, 3)


def seeds() -> list[bytes]:
    plain = [bytes([content, level, 0]) for content in range(6) for level in (0, 2)]
    return [*plain, b"\2\0\1\1\5\0\2ab", b"\2\0\2\x80", b"\2\0\3\x20\5hello", b"\3\0\4tail"]
