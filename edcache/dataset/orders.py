"""`RankOrder`: the items of one rank in an epoch, cut out of the draws of all ranks.

Draws are numbered over all ranks. They come in steps, of one draw a rank or of `global_batch_size` draws. Of a step
that begins at draw c, rank r of n has the draws c + r, c + r + n, ... So a step holds the same draws with any number of
ranks, and no two ranks have a draw in common. The first draws come again where the last step is filled up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from edcache.base import Ints
from edcache.dataset.transforms import Draw

# Items that are computed at once.
_BLOCK = 1 << 13


class EpochDraws(Protocol):
    """Draws of an epoch by all ranks together, by their numbers: an array, a `Selection`, or `Batches`."""

    def take(self, numbers: Ints, /) -> Any:
        """Return the positions of some draws: int64 [n]."""


class Batches(NamedTuple):
    """Draws of whole batches: draw k is positions[bounds[k]:bounds[k + 1]]."""

    positions: Ints
    bounds: Ints

    def take(self, numbers: Ints, /) -> Ints:
        """Return the positions in some batches, one after the other: int64 [n]."""
        batches = [self.positions[self.bounds[number] : self.bounds[number + 1]] for number in numbers]
        return np.concatenate([np.empty(0, np.int64), *batches])


@dataclass(frozen=True)
class RankSteps:
    """Draws of one rank, step by step. A step is `each` draws of all ranks; the first one begins at draw `start`.

    The last step ends at draw `stop` at the latest. If that is beyond `count`, the draws of the epoch, it is filled up
    with the first ones.
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
        """Return the numbers of the draws in steps [low, high), without steps that do not exist: int64 [n]."""
        begins = self.start + self.each * np.arange(low, high, dtype=np.int64)
        numbers = (begins[:, None] + np.arange(self.rank, self.each, self.ranks)).reshape(-1)
        # Only the last step may be cut, or be filled up with the first draws.
        return numbers if high < len(self) else numbers[numbers < self.stop] % self.count


@dataclass(frozen=True, eq=False)
class RankOrder:
    """Items of a rank in a pass: positions, or lists of them.

    Attributes:
        draws: of all ranks. share: the draws of this one.
        gives_lists: True if an item is a step or a batch. may_repeat: True if a sample may be drawn twice.
    """

    epoch: int
    draws: EpochDraws
    share: RankSteps
    gives_lists: bool
    may_repeat: bool

    def __len__(self) -> int:
        return len(self.share)

    def positions(self, low: int, high: int) -> Ints:
        """Return the positions in items [low, high), one after the other: int64 [n]."""
        positions: Ints = self.draws.take(self.share.numbers(low, high))
        return positions

    def batches(self, size: int, *, is_seeded: bool) -> Iterator[Ints | list[Draw]]:
        """Yield the positions in `size` items at a time: int64 [n], or Draws for seeded transforms.

        Many are computed at once, since a take is a dozen calls of numpy; but lists, whose lengths differ, one by one.
        """
        block = size if self.gives_lists else size * max(_BLOCK // size, 1)
        for low in range(0, len(self), block):
            numbers = self.share.numbers(low, low + block)
            positions: Ints | list[Draw] = self.draws.take(numbers)
            if is_seeded:
                own = (numbers + 1).tolist() if self.may_repeat else itertools.repeat(0)
                positions = [*map(Draw, positions, itertools.repeat(self.epoch), own)]
            if self.gives_lists:
                yield positions
            else:
                yield from (positions[k : k + size] for k in range(0, len(positions), size))

    def items(self, *, is_seeded: bool) -> Iterator[Any]:
        """Yield ints, or lists of them; for seeded transforms they are Draws."""
        batches = self.batches(1 if self.gives_lists else _BLOCK, is_seeded=is_seeded)
        lists = (batch if isinstance(batch, list) else batch.tolist() for batch in batches)
        # No generator stands between a block and who asks for its items: they are most of the time of small ones.
        return lists if self.gives_lists else itertools.chain.from_iterable(lists)
