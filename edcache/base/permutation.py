"""Random orders that nobody stores: what stands at a position is computed, in constant time and memory.

The function is version 1 of docs/reference/orders.md, and stays: test_permutation.py has its values.
A position is two digits, which take turns in adding a hash of the other one: a Feistel network over the
numbers below a * b, where b is about a, of 10 rounds as in NIST's FF1. What comes out at count or above
goes through it again.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_VERSION = 1
# The fractions of the golden ratio and of pi, as odd numbers of 64 bits.
_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0x243F6A8885A308D3
# Up to so many, more rounds make each of the orders of a few things as likely as any other.
_FEW = 1 << 16
_ROUNDS, _ROUNDS_OF_FEW = 10, 24
# The interim results of so many stay in the processor's cache.
_BLOCK = 1 << 14
# A call of numpy takes as long for so many as for a few.
_NEAR = 1 << 12
_WORD, _HALF = (1 << 64) - 1, np.uint64(32)


class Permutation:
    """An order of 0 to count - 1, each as likely as any other: a function of the count and of a key.

    Args:
        count: how many, up to 2**63 - 1.
        key: integers, such as a seed and an epoch. Other keys give orders that have nothing in common.

    Cost: 0.03 us for each of many positions, 6 us for a single one. Up to 65,536 positions are computed once.
    """

    def __init__(self, count: int, *key: int) -> None:
        self._count, self._key = count, key
        root = math.isqrt(max(count - 1, 0)) + 1
        # Where both were odd, each round would be an even permutation, and so would the order.
        self._low = root + root % 2
        self._high = -(-count // self._low)
        rounds = _ROUNDS if count > _FEW else _ROUNDS_OF_FEW
        # Hexadecimal: of decimal digits Python makes 4,300 at most.
        text = "/".join(("edcache order", *(format(part, "x") for part in (_VERSION, count, *key))))
        self._rounds = np.frombuffer(hashlib.shake_128(text.encode()).digest(8 * rounds), "<u8").tolist()
        self._near: tuple[int, Ints] = (0, np.empty(0, np.int64))

    def __reduce__(self) -> tuple[Any, ...]:
        return Permutation, (self._count, *self._key)

    def at(self, position: int) -> int:
        """What stands at a position in [0, count)."""
        start, near = self._near
        if start <= position < start + len(near):
            return int(near[position - start])
        if self._count <= _FEW or position % _NEAR == 0:  # who reads one after the other begins a block here
            return int(self.take(np.array([position]))[0])
        while True:
            high, low = divmod(position, self._low)
            size, other = self._low, self._high
            for key in self._rounds:
                hashed = (high ^ key) * _FIRST & _WORD
                hashed = (hashed ^ hashed >> 32) * _SECOND & _WORD
                low = (low + ((hashed >> 32) * size >> 32)) % size
                low, high, size, other = high, low, other, size
            position = high * self._low + low
            if position < self._count:
                return position

    def take(self, positions: Ints) -> Ints:
        """What stands at positions in [0, count): int64 [len(positions)]."""
        start, near = self._near
        if self._count <= _FEW:
            if len(near) < self._count:
                near = self._computed(np.arange(self._count))
                self._near = 0, near
            return near[positions]
        if not 0 < len(positions) <= _NEAR:
            return self._computed(positions)
        # Not min(): as in dataset/indexing.py.
        first, last = int(positions[positions.argmin()]), int(positions[positions.argmax()])
        if not start <= first <= last < start + len(near):
            start = first // _NEAR * _NEAR
            if last >= start + _NEAR:
                return self._computed(positions)
            near = self._computed(np.arange(start, min(start + _NEAR, self._count)))
            self._near = start, near
        return near[positions - start]

    def _computed(self, positions: Ints) -> Ints:
        order = np.empty(len(positions), np.int64)
        for start in range(0, len(positions), _BLOCK):
            block = self._permuted(positions[start : start + _BLOCK].astype(np.uint64))
            while len(beyond := np.flatnonzero(block >= self._count)):
                block[beyond] = self._permuted(block[beyond])
            order[start : start + _BLOCK] = block
        return order

    def _permuted(self, positions: _Words) -> _Words:
        """All rounds, once; `at` has them for one number."""
        high, low = np.divmod(positions, np.uint64(self._low))
        size, other = np.uint64(self._low), np.uint64(self._high)
        hashed, spare = np.empty_like(low), np.empty_like(low)
        for key in self._rounds:
            np.bitwise_xor(high, np.uint64(key), out=hashed)
            np.multiply(hashed, np.uint64(_FIRST), out=hashed)
            np.right_shift(hashed, _HALF, out=spare)
            np.bitwise_xor(hashed, spare, out=hashed)
            np.multiply(hashed, np.uint64(_SECOND), out=hashed)
            np.right_shift(hashed, _HALF, out=hashed)
            np.multiply(hashed, size, out=hashed)
            np.right_shift(hashed, _HALF, out=hashed)
            np.add(low, hashed, out=low)
            # Below zero is a huge number here, so that the smaller one is the remainder.
            np.subtract(low, size, out=spare)
            np.minimum(low, spare, out=low)
            low, high, size, other = high, low, other, size
        high *= np.uint64(self._low)
        high += low
        return high
