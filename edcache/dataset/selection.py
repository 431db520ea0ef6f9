"""`Selection`: lazy index sequences of views: a range, an array, a repetition, a shuffle.

It maps positions in the view, int64, to indices of its dataset.
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
    """Immutable sequence of int64: a range without negative numbers, or an array."""

    numbers: range | Ints

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        """Return an int for a position, an int64 array for a slice."""
        part = range(len(self))[index]
        return self.cut(part).array() if isinstance(part, range) else self.at(part)

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self), _BLOCK):
            yield from self[start : start + _BLOCK].tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.array(), dtype)

    def at(self, position: int) -> int:
        """Return the index at a position in [0, len(self))."""
        return int(self.numbers[position])

    def take(self, positions: Ints) -> Ints:
        """Return the indices at positions in [-len(self), len(self))."""
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
        """Return a sub-range, which lies in [0, len(self)), without a copy."""
        return Selection(self.numbers[_as_slice(part)])

    @property
    def step(self) -> int | None:
        """Distance between neighbours; None if it varies."""
        numbers = self.numbers
        return numbers.step if type(self) is Selection and isinstance(numbers, range) else None

    def array(self) -> Ints:
        """Return all indices, read only; a view of an array."""
        numbers = self.numbers
        array = (
            self.take(np.arange(len(self), dtype=np.int64)) if isinstance(numbers, range) else numbers.view()
        )
        array.flags.writeable = False
        return array


@dataclass(frozen=True, eq=False)
class Cycle(Selection):
    """Another selection repeated: position k is position `numbers[k] % len(base)` of it."""

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


class Bijection(Protocol):
    """Bijection of [0, n), such as `permutation` returns."""

    def at(self, position: int) -> int: ...

    def take(self, positions: Ints) -> Ints: ...


@dataclass(frozen=True, eq=False)
class Shuffled(Selection):
    """Another selection in another order: position k is position `order.at(numbers[k])` of it."""

    numbers: range
    base: Selection
    order: Bijection

    def at(self, position: int) -> int:
        return self.base.at(self.order.at(self.numbers[position]))

    def take(self, positions: Ints) -> Ints:
        return self.base.take(self.order.take(super().take(positions)))

    def cut(self, part: range) -> Selection:
        return Shuffled(self.numbers[_as_slice(part)], self.base, self.order)


def shuffled(selection: Selection, *key: int) -> Selection:
    """Put a selection in the random order of a key, without an array."""
    return Shuffled(range(len(selection)), selection, permutation(len(selection), *key))


def repeated(selection: Selection, times: int) -> Selection:
    """Repeat a selection, without an array. OverflowError for more than int64 counts."""
    if times == 0 or not len(selection):
        return Selection(range(0))
    if times == 1:
        return selection
    if times * len(selection) > sys.maxsize:
        raise OverflowError(f"{times} times {len(selection)}")
    return Cycle(range(times * len(selection)), selection)


def _as_slice(part: range) -> slice:
    """Convert a range to the slice that cuts it: a slice counts a negative stop from the end."""
    return slice(part.start, part.stop if part.stop >= 0 else None, part.step) if part else slice(0)
