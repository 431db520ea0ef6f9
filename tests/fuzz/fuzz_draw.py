"""Choices made by bytes: a fuzzer that changes the bytes changes the choices, a little at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

EDGES = [
    *(0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 191, 192, 4095, 4096, 4097, 8192, 1 << 14, (1 << 14) + 1, 0x7FFF),
    *(0x8000, 0xFFFF, 0x10000, 1 << 20, (1 << 27) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32),
    *(1 << 40, 1 << 47, 1 << 52, (1 << 53) + 1, (1 << 61) - 1, (1 << 62) - 8, 1 << 62, (1 << 62) + 1),
    *((1 << 63) - 4096, (1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 8, (1 << 64) - 1),
]


class Draw:
    """Takes choices from the front of some bytes; zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def below(self, count: int) -> int:
        number = self.byte()
        if count > 256:
            number |= self.byte() << 8
        return number % count

    def flag(self) -> bool:
        return bool(self.byte() & 1)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    def raw(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def number(self) -> int:
        """In [0, 2**64): small, at an edge, near one, or any."""
        kind = self.byte()
        if kind < 96:
            return kind
        if kind < 160:
            return EDGES[kind % len(EDGES)]
        if kind < 192:
            return (EDGES[self.byte() % len(EDGES)] + kind - 176) % (1 << 64)
        return int.from_bytes(self.raw(2 if kind < 224 else 8), "little")

    def signed(self) -> int:
        number = self.number()
        return number - (1 << 64) if number >> 63 else number

    def some(self) -> bytes:
        return self.raw(self.byte())

    def rest(self) -> bytes:
        return self.raw(len(self._data))

    def text(self) -> str:
        return self.some().decode("utf-8", "replace")

    def value(self, depth: int = 0) -> Any:
        """Anything that JSON can say."""
        kind = self.below(10 if depth < 4 else 7)
        if kind < 3:
            return self.signed() if kind else self.number()
        if kind < 7:
            return (None, self.flag(), self.text(), self.number() / 3)[kind - 3]
        if kind < 9:
            return [self.value(depth + 1) for _ in range(self.below(6))]
        return {self.text(): self.value(depth + 1) for _ in range(self.below(5))}

    def changed(self, data: bytes) -> bytes:
        """The bytes with a few of them changed, put in or taken out."""
        out = bytearray(data)
        for _ in range(1 + self.below(4)):
            at = self.below(len(out) + 1)
            kind, piece = self.below(5), self.raw(1 + self.below(8))
            if kind < 2:
                out[at : at + len(piece)] = piece[: max(0, len(out) - at)]
            elif kind == 2:
                out[at:at] = piece
            elif kind == 3:
                del out[at : at + len(piece)]
            else:
                out[at : at + 8] = self.number().to_bytes(8, "little")[: max(0, len(out) - at)]
        return bytes(out)
