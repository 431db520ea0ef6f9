"""Lazy index sequences of views: a range, an array, a repetition, a shuffle.

Positions are int64 and count in the selection; what they give counts in what was selected from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edcache.base import Ints
from edcache.dataset.permutation import permutation

_BLOCK = 1 << 13


@dataclass(frozen=True, eq=False)
class Selection:
    """A sequence of int64 that never changes: a range without negative numbers, or an array."""

    numbers: range | Ints

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        """An int for a position, an int64 array for a slice."""
        part = range(len(self))[index]
        return self.cut(part).array() if isinstance(part, range) else self.at(part)

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK].tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array(), dtype)

    def at(self, position: int) -> int:
        """What lies at a position in [0, len(self))."""
        return int(self.numbers[position])

    def take(self, positions: Ints) -> Ints:
        """What lies at positions in [-len(self), len(self))."""
        numbers = self.numbers
        if isinstance(numbers, range):
            # numpy's min() and max() take three times as long as argmin().
            if len(positions) and positions[positions.argmin()] < 0:
                positions = np.where(positions < 0, positions + len(self), positions)
            is_plain = numbers.start == 0 and numbers.step == 1
            return positions if is_plain else positions * numbers.step + numbers.start
        taken: Ints = numbers[positions]
        return taken

    def cut(self, part: range) -> Selection:
        """Return a sub-range, all of it in [0, len(self)), without a copy."""
        return Selection(self.numbers[_as_slice(part)])

    @property
    def step(self) -> int | None:
        """The distance between neighbours; None if they are not all equally far apart."""
        numbers = self.numbers
        return numbers.step if type(self) is Selection and isinstance(numbers, range) else None

    def array(self) -> Ints:
        """All of it, read only; a view where this is an array."""
        numbers = self.numbers
        array = (
            self.take(np.arange(len(self), dtype=np.int64)) if isinstance(numbers, range) else numbers.view()
        )
        array.flags.writeable = False
        return array


@dataclass(frozen=True, eq=False)
class Cycle(Selection):
    """Another selection over and over: what lies at `numbers[k] % len(base)` of it."""

    numbers: range
    base: Selection

    def at(self, position: int) -> int:
        return self.base.at(self.numbers[position] % len(self.base))

    def take(self, positions: Ints) -> Ints:
        return self.base.take(super().take(positions) % len(self.base))

    def cut(self, part: range) -> Selection:
        numbers, size = self.numbers[_as_slice(part)], len(self.base)
        if not numbers:
            return Selection(range(0))
        first = numbers[0] // size * size
        if first <= numbers[-1] < first + size:
            return self.base.cut(range(numbers.start - first, numbers.stop - first, numbers.step))
        return Cycle(numbers, self.base)


class Order(Protocol):
    """A bijection of [0, n), as `permutation` gives one."""

    def at(self, position: int) -> int: ...

    def take(self, positions: Ints) -> Ints: ...


@dataclass(frozen=True, eq=False)
class Shuffled(Selection):
    """Another selection in another order, of which `numbers` are the positions."""

    numbers: range
    base: Selection
    order: Order

    def at(self, position: int) -> int:
        return self.base.at(self.order.at(self.numbers[position]))

    def take(self, positions: Ints) -> Ints:
        return self.base.take(self.order.take(super().take(positions)))

    def cut(self, part: range) -> Selection:
        return Shuffled(self.numbers[_as_slice(part)], self.base, self.order)


def shuffled(selection: Selection, *key: int) -> Selection:
    """A selection in the random order that a key determines; holds nothing."""
    return Shuffled(range(len(selection)), selection, permutation(len(selection), *key))


def repeated(selection: Selection, times: int) -> Selection:
    """A selection so many times over; holds nothing. OverflowError for more than an int64 counts."""
    if times == 0 or not len(selection):
        return Selection(range(0))
    if times == 1:
        return selection
    if times * len(selection) > sys.maxsize:
        raise OverflowError(f"{times} times {len(selection)}")
    return Cycle(range(times * len(selection)), selection)


def _as_slice(part: range) -> slice:
    """What cuts an array or a range as `part` says: a slice counts a stop before the start from the end."""
    return slice(part.start, part.stop if part.stop >= 0 else None, part.step) if part else slice(0)
