"""`mix`: several datasets in fixed proportions, which hold in every stretch of the order."""

from __future__ import annotations

import heapq
import math
import reprlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edcache.base import Ints, OptionError, check_count
from edcache.dataset.combined import Chained, Joined, concat
from edcache.dataset.epoch import EpochSampler
from edcache.dataset.indexing import reading_of
from edcache.dataset.orders import Drawn
from edcache.dataset.permutation import permuted, word, words
from edcache.dataset.selection import Selection
from edcache.dataset.split import apportioned
from edcache.dataset.state import State
from edcache.dataset.view import Samples

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edcache.dataset.epoch import SamplerKeywords

Weights = Sequence[float]

# Draws of a round; weights that need more are rounded to parts of it.
_MOST_DRAWS = 1 << 16
# Draws of an epoch that are computed at once.
_BLOCK = 1 << 14


class Mixture(EpochSampler):
    """Sampler over several datasets that draws from each by its weight; `edcache.mix` makes it.

    Args:
        dataset: a result of `edcache.concat`.
        weights, stop, seed: as in `edcache.mix`.
        uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.
    Attributes:
        dataset: all samples; the positions refer to it.

    >>> DataLoader(mixture.dataset, batch_size=64, sampler=mixture)
    """

    # A name of DistributedSampler's.
    dataset: Any
    _may_repeat = True

    def __init__(
        self,
        dataset: Joined,
        weights: Weights,
        *,
        stop: Literal["first", "longest"] | int = "first",
        seed: int = 0,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        root = reading_of(dataset).root if isinstance(dataset, Joined) else None
        if not isinstance(root, Chained):
            raise OptionError(f"a mixture of {type(dataset).__name__}; give what edcache.concat() returns")
        self.dataset = dataset
        self._starts = root.bounds[:-1]
        self._sizes = np.diff(self._starts, append=len(dataset))
        self._counts = np.array(_counts(weights, self._sizes.tolist()))
        self._sources, self._numbers = _round(self._counts.tolist())
        super().__init__(dataset, self._draws(stop), seed, **keywords)

    def _draws(self, stop: object) -> int:
        """Return the number of draws in an epoch."""
        if stop not in ("first", "longest"):
            if isinstance(stop, str):
                raise OptionError(f'stop="{stop}"; give "first", "longest" or a number of draws')
            check_count("stop", stop)
            return int(stop)  # type: ignore[call-overload, no-any-return]
        if stop == "longest" and not self._counts.all():
            raise OptionError(
                f'stop="longest", and dataset {self._counts.argmin()} is never drawn from to its end; '
                "give a number of draws"
            )
        rounds, number = np.divmod(self._sizes - 1, np.maximum(self._counts, 1))
        # Places in a round at which a dataset ends, in one of the rounds.
        last = np.flatnonzero(self._numbers == number[self._sources])
        ends = rounds[self._sources[last]] * len(self._sources) + last + 1
        return int(ends.min() if stop == "first" else ends.max())

    def _drawn(self, epoch: int) -> Drawn:
        drawn, first = np.empty(self._count, np.int64), word(self.seed)
        for low in range(0, self._count, _BLOCK):  # whose interim results are small
            block = drawn[low : low + _BLOCK]
            draws = epoch * self._count + low + np.arange(len(block), dtype=np.int64)
            rounds, places = np.divmod(draws, len(self._sources))
            sources = self._sources[places]
            sizes: Ints = self._sizes[sources]
            cycles, places = np.divmod(rounds * self._counts[sources] + self._numbers[places], sizes)
            block[:] = self._starts[sources] + permuted(places, sizes, words(first, sources, cycles))
        return Drawn(Selection(drawn))

    def _options(self) -> State:
        counts, sizes = self._counts.tolist(), self._sizes.tolist()
        return {"weights": "/".join(map(str, counts)), "sizes": "/".join(map(str, sizes))}


def mix(
    datasets: Iterable[Samples],
    weights: Weights,
    *,
    stop: Literal["first", "longest"] | int = "first",
    seed: int = 0,
    **keywords: Unpack[SamplerKeywords],
) -> Mixture:
    """Draw from several caches and views in fixed proportions.

    Args:
        datasets: at least one; they are joined as by `edcache.concat`.
        weights: one number for each, 0 or more: [5, 3, 2] as [0.5, 0.3, 0.2]. They are exact as decimals that have a
            common denominator up to 65,536, others are rounded to parts of that.
        stop: the end of an epoch. "first": when one dataset has been drawn to its end. "longest": when each has been,
            so that small ones come several times. A number of draws.
        seed: any integer. The same seed gives the same order in every process and on every platform.
        uneven, global_batch_size, num_replicas, rank: as in `edcache.samplers.Shuffle`.
    Returns:
        A sampler; its `dataset` has the samples.
    Raises:
        OptionError: "weights=[1, nan]; give finite numbers of 0 or more, ..., one for each of 2 datasets".

    Any stretch of the order has the share of each dataset, to less than 2 draws, and a stretch from draw 0 to less than
    1. A dataset is drawn in random order, to its end before it begins again in another order. The next epoch goes on at
    the end of the last one: nothing is left out. State and resumption are as of the samplers.
    Cost: 8 bytes and 0.2 us a draw when an epoch begins.

    >>> mixture = edcache.mix([web, books, code], weights=[0.7, 0.2, 0.1])
    >>> for batch in mixture.dataset.loader(64, sampler=mixture): ...
    """
    return Mixture(concat(datasets), weights, stop=stop, seed=seed, **keywords)


def _counts(weights: Weights, sizes: Sequence[int]) -> list[int]:
    """Convert weights to whole numbers in proportion, with a sum of at most `_MOST_DRAWS`."""
    try:
        # As decimals: 0.1 means a tenth.
        parts = [Fraction(str(weight)) for weight in weights]
    except (TypeError, ValueError):
        parts = []
    if len(parts) != len(sizes) or min(parts) < 0 or not any(parts):
        raise OptionError(
            f"weights={reprlib.repr(weights)}; give finite numbers of 0 or more, not all of them 0, one for "
            f"each of {len(sizes)} datasets",
            option="weights",
        )
    empty = [k for k, (part, size) in enumerate(zip(parts, sizes, strict=True)) if part and not size]
    if empty:
        raise OptionError(
            f"weights={reprlib.repr(weights)}, and dataset {empty[0]} has no samples; leave it out",
            option="weights",
        )
    common = math.lcm(*(part.denominator for part in parts))
    counts = [int(part * common) for part in parts]
    counts = [count // math.gcd(*counts) for count in counts]
    if sum(counts) > _MOST_DRAWS:
        counts = apportioned([_MOST_DRAWS], counts)[0]
        if any(part and not count for part, count in zip(parts, counts, strict=True)):
            raise OptionError(
                f"weights={reprlib.repr(weights)}: the least is below 1 / {_MOST_DRAWS:,} of all; leave it "
                "out, or give it more",
                option="weights",
            )
        counts = [count // math.gcd(*counts) for count in counts]
    return counts


def _round(counts: Sequence[int]) -> tuple[Ints, Ints]:
    """Schedule a round: return the dataset of each draw, and the number of its draws before: int64 [n] each.

    The k-th of n draws of a dataset lies in the k-th of n equal parts of the round.

    Among the draws whose part has begun, the one whose part ends first comes next (earliest deadline first). So a
    prefix has the share of each dataset to less than one draw.
    """
    total = sum(counts)
    begins = [(0, source, 0) for source, count in enumerate(counts) if count]
    open_: list[tuple[int, int, int]] = []
    sources, numbers = np.empty(total, np.int64), np.empty(total, np.int64)
    for draw in range(total):
        while begins and begins[0][0] <= draw:
            _, source, number = heapq.heappop(begins)
            heapq.heappush(open_, (-(-(number + 1) * total // counts[source]), source, number))
        _, source, number = heapq.heappop(open_)
        sources[draw], numbers[draw] = source, number
        if number + 1 < counts[source]:
            heapq.heappush(begins, ((number + 1) * total // counts[source], source, number + 1))
    return sources, numbers
