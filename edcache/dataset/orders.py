"""`RankOrder`: the items of one rank in an epoch, cut out of the draws of all ranks.

Draws are numbered over all ranks. They come in steps, of one draw a rank or of `global_batch_size` draws. Of a step
that begins at draw c, rank r of n has the draws c + r, c + r + n, ... So a step holds the same draws with any number of
ranks, and no two ranks have a draw in common. The first draws come again where the last step is filled up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import Ints
from edcache.dataset.selection import Selection
from edcache.dataset.transforms import drawn

# Items that are computed at once.
_BLOCK = 1 << 13


class Drawn(NamedTuple):
    """Draws of an epoch by all ranks together, in order.

    bounds: None if draw k is positions[k]; else int64 [n + 1], and draw k is the batch
    positions[bounds[k]:bounds[k + 1]].
    """

    positions: Selection
    bounds: Ints | None = None


@dataclass(frozen=True)
class RankSteps:
    """Steps of a rank: `each` draws of all ranks from `start` on, then as many again, up to `stop`.

    After `count` draws the first ones come again.
    """

    count: int
    start: int
    stop: int
    each: int
    rank: int
    ranks: int

    def __len__(self) -> int:
        """Return the number of steps in which the rank has a draw."""
        return len(range(self.start + self.rank, self.stop, self.each))

    def numbers(self, low: int, high: int) -> Ints:
        """Return the numbers of the draws in steps [low, high): int64 [n]."""
        begins = self.start + self.each * np.arange(low, high, dtype=np.int64)
        numbers = (begins[:, None] + np.arange(self.rank, self.each, self.ranks)).reshape(-1)
        # Only the last step may be cut, or be filled up with the first draws.
        return numbers if high < len(self) else numbers[numbers < self.stop] % self.count


class RankOrder(Sequence[Any]):
    """Items of a rank in a pass: positions, or lists of them.

    order[k] is an int, order[a:b] an int64 array, np.asarray(order) all of it. If items are lists, order[k] is an int64
    array.

    Args:
        gives_lists: True if an item is a step or a batch. may_repeat: True if a sample may be drawn twice.
    """

    def __init__(
        self, epoch: int, draws: Drawn, share: RankSteps, *, gives_lists: bool, may_repeat: bool
    ) -> None:
        self.epoch, self.gives_lists = epoch, gives_lists
        self._draws, self._share, self._may_repeat = draws, share, may_repeat

    def __len__(self) -> int:
        return len(self._share)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            low, high, step = index.indices(len(self))
            return self.positions(low, max(low, high)) if step == 1 else np.asarray(self)[index]
        number = range(len(self))[index]
        positions = self.positions(number, number + 1)
        return positions if self.gives_lists else int(positions[0])

    def __iter__(self) -> Iterator[Any]:
        if self.gives_lists:
            return (self[number] for number in range(len(self)))
        # No generator stands between a block and who asks for its items: they are most of the time of small ones.
        return itertools.chain.from_iterable(self.positions(*block).tolist() for block in self._blocks())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.positions(0, len(self)).astype(dtype or np.int64, copy=False)

    def positions(self, low: int, high: int) -> Ints:
        """Return the positions in items [low, high), one after the other: int64 [n]."""
        numbers, (positions, bounds) = self._share.numbers(low, high), self._draws
        if bounds is None:
            return positions.take(numbers)
        batches = [positions[bounds[number] : bounds[number + 1]] for number in numbers]
        return np.concatenate(batches) if batches else np.empty(0, np.int64)

    def carried(self, items: Iterator[Any]) -> Iterator[Any]:
        """Let the positions in this rank's items carry epoch and draw, for seeded transforms."""
        if not self._may_repeat:
            return drawn(items, self.epoch, None)
        blocks = (self._share.numbers(low, high) + 1 for low, high in self._blocks())
        return drawn(items, self.epoch, (number for block in blocks for number in block.tolist()))

    def _blocks(self) -> Iterator[tuple[int, int]]:
        for low in range(0, len(self), _BLOCK):
            yield low, min(low + _BLOCK, len(self))
