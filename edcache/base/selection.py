"""Which of n things are chosen, in which order: a range, an array, or a repetition. Holds no more than that.

Positions are int64 and count in the selection; what they give counts in what was selected from.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class Selection:
    """A sequence of int64 that never changes."""

    numbers: range | Ints

    def __len__(self) -> int:
        return len(self.numbers)

    @abstractmethod
    def at(self, position: int) -> int:
        """What lies at a position in [0, len(self))."""

    @abstractmethod
    def take(self, positions: Ints) -> Ints:
        """What lies at positions in [-len(self), len(self))."""

    @abstractmethod
    def cut(self, part: range) -> Selection:
        """The positions of a range, all of them in [0, len(self)); holds no more memory than this one."""

    def array(self) -> Ints:
        """All of it, read only; a view where this is an array."""
        return _read_only(self.take(np.arange(len(self), dtype=np.int64)))


@dataclass(frozen=True)
class Span(Selection):
    """Those of a range, none of which is negative."""

    numbers: range

    def at(self, position: int) -> int:
        return self.numbers[position]

    def take(self, positions: Ints) -> Ints:
        # Not min(): as in dataset/indexing.py.
        if len(positions) and positions[positions.argmin()] < 0:
            positions = np.where(positions < 0, positions + len(self), positions)
        return positions * self.numbers.step + self.numbers.start

    def cut(self, part: range) -> Selection:
        return Span(self.numbers[_as_slice(part)])


@dataclass(frozen=True, eq=False)
class Picks(Selection):
    """Those of an array, which nobody may change."""

    numbers: Ints

    def at(self, position: int) -> int:
        return int(self.numbers[position])

    def take(self, positions: Ints) -> Ints:
        taken: Ints = self.numbers[positions]
        return taken

    def cut(self, part: range) -> Selection:
        return Picks(self.numbers[_as_slice(part)])

    def array(self) -> Ints:
        return _read_only(self.numbers.view())


@dataclass(frozen=True)
class Cycle(Selection):
    """Another selection over and over: what lies at `numbers[k] % len(base)` of it."""

    base: Selection
    numbers: range

    def at(self, position: int) -> int:
        return self.base.at(self.numbers[position] % len(self.base))

    def take(self, positions: Ints) -> Ints:
        return self.base.take(Span(self.numbers).take(positions) % len(self.base))

    def cut(self, part: range) -> Selection:
        numbers = self.numbers[_as_slice(part)]
        size = len(self.base)
        if not numbers:
            return Span(range(0))
        if numbers[0] // size == numbers[-1] // size:
            first = numbers[0] // size * size
            return self.base.cut(range(numbers.start - first, numbers.stop - first, numbers.step))
        return Cycle(self.base, numbers)


def repeated(selection: Selection, times: int) -> Selection:
    """A selection so many times over, one after the other; holds nothing.

    Raises:
        OverflowError: more than fits an int64.
    """
    if times == 0 or not len(selection):
        return Span(range(0))
    if times == 1:
        return selection
    if times * len(selection) > sys.maxsize:
        raise OverflowError(f"{times} times {len(selection)}")
    return Cycle(selection, range(times * len(selection)))


def index_ranges(indices: Ints, most: int = 200, hint: str = "; --json lists all") -> str:
    """Sorted indices as "17, 40-63"; the first runs, and how many more there are."""
    ends = np.flatnonzero(np.diff(indices) != 1)
    runs = zip(indices[[0, *(ends[:most] + 1)]].tolist(), indices[[*ends[:most], -1]].tolist(), strict=True)
    texts = [f"{low}" if low == high else f"{low}-{high}" for low, high in runs]
    more = len(ends) + 1 - most
    return ", ".join(texts[:most]) + (f", and {more:,} more runs{hint}" if more > 0 else "")


def _as_slice(part: range) -> slice:
    """What cuts an array or a range as `part` says: a slice counts a stop before the start from the end."""
    return slice(part.start, part.stop if part.stop >= 0 else None, part.step) if part else slice(0)


def _read_only(numbers: Ints) -> Ints:
    numbers.flags.writeable = False
    return numbers
