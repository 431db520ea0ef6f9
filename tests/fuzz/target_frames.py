"""zstd frames, true and forged, with and without a dictionary."""

from __future__ import annotations

from functools import cache

from fuzz_draw import Draw

from edcache.codec.compression import Compression, decompress, train_dictionary
from edcache.errors import CorruptRecordError

_CONTENT = [b"", b"a", b"abc" * 50, bytes(5000), bytes(range(256)) * 4, b'{"text": "word7 word9"}' * 9]


@cache
def _dictionary() -> bytes:
    trained = train_dictionary([f"record {i}: word{i % 7} {i * i}".encode() * 4 for i in range(200)], 2048)
    assert trained is not None
    return trained


@cache
def _frame(content: int, level: int, has_dictionary: bool) -> bytes:
    return Compression(level).compress(_CONTENT[content], _dictionary() if has_dictionary else None)


def run(data: bytes) -> None:
    draw = Draw(data)
    content, has_dictionary = draw.below(len(_CONTENT)), draw.flag()
    frame, length = _frame(content, draw.pick((1, 3, 19)), has_dictionary), len(_CONTENT[content])
    kind = draw.below(6)
    if kind == 1:
        frame = draw.changed(frame)
    elif kind == 2:
        length = draw.number()
    elif kind == 3:
        length, frame = draw.byte(), draw.rest()
    elif kind == 4:
        frame = b"\x28\xb5\x2f\xfd" + draw.rest()
        length = frame[5] if len(frame) > 5 else 0
    elif kind == 5:
        frame = frame + draw.rest()
    dictionaries = [_dictionary()] if not draw.below(3) else [draw.changed(_dictionary())]
    try:
        raw = decompress(frame, length, dictionaries if has_dictionary or draw.flag() else ())
    except CorruptRecordError:
        return
    assert len(raw) == length
    assert raw == _CONTENT[content] or kind in (1, 3, 4) or dictionaries != [_dictionary()]


def seeds() -> list[bytes]:
    plain = [bytes([content, flag, level, 0]) for content in range(6) for flag in (0, 1) for level in (0, 2)]
    return [*plain, b"\2\0\0\1\1\5\0\2ab", b"\2\1\0\2\x80", b"\2\0\0\4\x20\5hello", b"\3\0\0\5tail"]
