"""`Selection`: lazy index sequences of views: a range, an array, a repetition, a shuffle.

It maps positions in the view, int64, to indices of its dataset.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from edcache.base import Ints
from edcache.dataset.permutation import Computed, Permutation


@dataclass(frozen=True, eq=False)
class Selection:
    """Immutable sequence of int64: a range without negative numbers, or an array."""

    numbers: range | Ints

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, position: int) -> int:
        """Return the index at a position in [0, len(self))."""
        return int(self.numbers[position])

    def take(self, positions: Ints, /) -> Ints:
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
        """Return all indices, read-only: int64 [len(self)]. An array is not copied: the result is a view of it."""
        numbers = self.numbers
        array = (
            self.take(np.arange(len(self), dtype=np.int64)) if isinstance(numbers, range) else numbers.view()
        )
        array.flags.writeable = False
        return array


@dataclass(frozen=True, eq=False)
class Arranged(Selection):
    """Another selection in another order: position k is position `order.at(numbers[k])` of it.

    order: None repeats it: position k is position `numbers[k] % len(base)` of it.
    """

    numbers: range
    base: Selection
    order: Computed | None = None

    def at(self, position: int) -> int:
        number = self.numbers[position]
        return self.base.at(number % len(self.base) if self.order is None else self.order.at(number))

    def take(self, positions: Ints, /) -> Ints:
        numbers = super().take(positions)
        return self.base.take(numbers % len(self.base) if self.order is None else self.order.take(numbers))

    def cut(self, part: range) -> Selection:
        return Arranged(self.numbers[_as_slice(part)], self.base, self.order)


def shuffled(selection: Selection, *key: int) -> Selection:
    """Put a selection in the random order of a key."""
    return Arranged(range(len(selection)), selection, Permutation(len(selection), *key))


def repeated(selection: Selection, times: int) -> Selection:
    """Repeat a selection, without an array. OverflowError for more than int64 counts."""
    if times == 0 or not len(selection):
        return Selection(range(0))
    if times == 1:
        return selection
    if times * len(selection) > sys.maxsize:
        raise OverflowError(f"{times} times {len(selection)}")
    return Arranged(range(times * len(selection)), selection)


def _as_slice(part: range) -> slice:
    """Convert a range to the slice that cuts it: a slice counts a negative stop from the end."""
    return slice(part.start, part.stop if part.stop >= 0 else None, part.step) if part else slice(0)
