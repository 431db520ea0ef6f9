"""Random permutations: up to a million elements are shuffled by numpy, more are computed one by one.

The functions are version 1 of docs/reference/orders.md, and stay: test_permutation.py has their values.

numpy's RandomState shuffles. A Feistel network computes, in constant time and memory: a position
is two digits, which take turns in adding a hash of the other one, over the numbers below a * b with b about a, in 10
rounds as in NIST's FF1. A result of count or more goes through it again. A word of 64 bits is the key of the order.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints

_Uints = npt.NDArray[np.uint64]

_VERSION = 1
# Fractions of the golden ratio and of pi, as odd numbers of 64 bits.
_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0x243F6A8885A308D3
# Most elements of a shuffled list: 60,000 take 1 ms (the network: 8), 2**20 25 ms (35) and 8 MiB, 2**22 170 ms (140).
_MOST_SHUFFLED = 1 << 20
# Up to these elements, more rounds make each order as likely as any other.
_FEW = 1 << 16
_ROUNDS, _ROUNDS_OF_FEW = 10, 24
# Positions whose interim results stay in the processor's cache.
_BLOCK = 1 << 14
# A call of numpy takes as long for these positions as for a few.
_NEAR = 1 << 12
_HALF = np.uint64(32)


def word(*key: int) -> int:
    """Hash a key, such as a seed and an epoch, to 64 bits. Other keys have unrelated hashes."""
    # Hexadecimal: Python makes at most 4,300 decimal digits.
    text = "/".join(("edcache order", *(format(part, "x") for part in (_VERSION, *key))))
    return int.from_bytes(hashlib.shake_128(text.encode()).digest(8), "little")


def stream(*key: int) -> np.random.RandomState:
    """Make the generator of a key. numpy has frozen its stream."""
    number = word(*key)
    return np.random.RandomState([number & 0xFFFFFFFF, number >> 32])


def words(first: int, *numbers: Ints) -> _Uints:
    """Hash each combination of numbers of 0 or more to a word, by SplitMix64: uint64 [n]."""
    mixed = np.array([first], np.uint64)
    for number in numbers:
        mixed = mixed + (number.astype(np.uint64) + np.uint64(1)) * np.uint64(_FIRST)
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def permuted(positions: Ints, counts: Ints, words: _Uints) -> Ints:
    """Return the element at each position of a random order; each position may be of another order: int64 [n].

    counts, words: the number of elements of each order, and its key; or arrays [1], of one order for all positions.
    Cost: 0.1 us each, 0.2 us if the order has at most 65,536 elements; 0.03 us in one order.
    """
    taken = np.empty(len(positions), np.uint64)
    is_few = np.broadcast_to(counts <= _FEW, len(positions))
    for rounds, chosen in ((_ROUNDS, ~is_few), (_ROUNDS_OF_FEW, is_few)):
        every = np.flatnonzero(chosen)
        for rest in (every[start : start + _BLOCK] for start in range(0, len(every), _BLOCK)):
            at = positions[rest].view(np.uint64)
            while len(rest):
                count = (counts if len(counts) == 1 else counts[rest]).astype(np.uint64)
                low = _root(count - np.uint64(1)) + np.uint64(1)
                # If both sizes were odd, each round would be an even permutation, and so would the order.
                low += low & np.uint64(1)
                high = (count + low - np.uint64(1)) // low
                at = _network(at, low, high, words if len(words) == 1 else words[rest], rounds)
                taken[rest] = at
                beyond = np.flatnonzero(at >= count)
                rest, at = rest[beyond], at[beyond]
    return taken.view(np.int64)


def _root(squares: _Uints) -> _Uints:
    """Compute integer square roots; the floats' may be off by one above 2**52."""
    roots = np.sqrt(squares.astype(np.float64)).astype(np.uint64)
    roots -= roots * roots > squares
    roots += (roots + np.uint64(1)) ** np.uint64(2) <= squares
    return roots


def _network(positions: _Uints, low_size: Any, high_size: Any, words: _Uints, rounds: int) -> _Uints:
    """Run all rounds once."""
    high, low = np.divmod(positions, low_size)
    size, other = low_size, high_size
    hashed, spare = np.empty_like(low), np.empty_like(low)
    for _ in range(rounds):
        np.bitwise_xor(high, words, out=hashed)
        words = words + np.uint64(_FIRST)
        np.multiply(hashed, np.uint64(_FIRST), out=hashed)
        np.right_shift(hashed, _HALF, out=spare)
        np.bitwise_xor(hashed, spare, out=hashed)
        np.multiply(hashed, np.uint64(_SECOND), out=hashed)
        np.right_shift(hashed, _HALF, out=hashed)
        np.multiply(hashed, size, out=hashed)
        np.right_shift(hashed, _HALF, out=hashed)
        np.add(low, hashed, out=low)
        # A negative number is huge here, so the smaller one is the remainder.
        np.subtract(low, size, out=spare)
        np.minimum(low, spare, out=low)
        low, high, size, other = high, low, other, size
    high *= low_size
    high += low
    return high


class Computed:
    """Order whose elements are computed; a range around the last ones is kept.

    Args:
        count: number of elements.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._near: tuple[int, Ints] = (0, np.empty(0, np.int64))

    def at(self, position: int) -> int:
        """Return the element at a position in [0, count)."""
        start, near = self._near
        if start <= position < start + len(near):
            return int(near[position - start])
        return int(self.take(np.array([position]))[0])

    def take(self, positions: Ints, /) -> Ints:
        """Return the elements at positions in [0, count): int64 [len(positions)]."""
        start, near = self._near
        if len(near) == self._count:
            return near.take(positions)
        if not 0 < len(positions) <= _NEAR:
            return self._computed(positions)
        # numpy's min() and max() take three times as long as argmin().
        first, last = int(positions[positions.argmin()]), int(positions[positions.argmax()])
        if not start <= first <= last < start + len(near):
            start = first // _NEAR * _NEAR
            if last >= start + _NEAR:
                return self._computed(positions)
            near = self._computed(np.arange(start, min(start + _NEAR, self._count)))
            self._near = start, near
        return near[positions - start]

    def _computed(self, positions: Ints) -> Ints:
        raise NotImplementedError


class Permutation(Computed):
    """Random order of 0 to count - 1, a function of the count and of a key. It is pickled as these.

    Args:
        count: up to 2**63 - 1.
        key: integers, such as a seed and an epoch. Orders of other keys are unrelated.

    Cost: up to a million elements 20 ns and 8 bytes each, when it is made. Of more elements 0.03 us for each of many
    positions, 120 us for a single one that is far from the last ones.
    """

    def __init__(self, count: int, *key: int) -> None:
        super().__init__(count)
        self.key, self._word = key, np.array([word(count, *key)], np.uint64)
        if count <= _MOST_SHUFFLED:
            order = np.arange(count, dtype=np.int64)
            stream(count, *key).shuffle(order)
            self._near = 0, order

    def __reduce__(self) -> tuple[Any, ...]:
        return Permutation, (self._count, *self.key)

    def _computed(self, positions: Ints) -> Ints:
        return permuted(positions, np.array([self._count]), self._word)
