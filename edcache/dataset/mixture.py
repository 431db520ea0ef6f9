"""`mix`: several datasets in fixed proportions, which hold in every stretch of the order."""

from __future__ import annotations

import heapq
import math
import reprlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache.base import Ints, OptionError, cut_traceback
from edcache.dataset.combined import concat
from edcache.dataset.epoch import EpochSampler, draws_of
from edcache.dataset.permutation import permuted, word, words
from edcache.dataset.split import apportioned
from edcache.dataset.state import State
from edcache.dataset.view import Samples

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edcache.dataset.epoch import SamplerKeywords

Weights = Sequence[float]

# Draws of a round; weights that need more are rounded to parts of it.
_MOST_DRAWS = 1 << 16


class Mixture(EpochSampler):
    """Sampler over several datasets that draws from each by its weight; `edcache.mix` makes it.

    Attributes:
        dataset: all samples; the positions refer to it.
    """

    # A name of DistributedSampler's.
    dataset: Any
    _may_repeat = True

    def __init__(
        self,
        datasets: Iterable[Samples],
        weights: Weights,
        *,
        num_samples: int | None = None,
        seed: int = 0,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        datasets = list(datasets)
        self.dataset = concat(datasets)
        self._sizes = np.array([len(one) for one in datasets])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._counts = np.array(_counts(weights, self._sizes.tolist()))
        self._sources, self._numbers = _round(self._counts.tolist())
        super().__init__(self.dataset, draws_of(num_samples, len(self.dataset)), seed, **keywords)

    def _drawn(self, epoch: int) -> Ints:
        draws = epoch * self._count + np.arange(self._count, dtype=np.int64)
        rounds, places = np.divmod(draws, len(self._sources))
        sources = self._sources[places]
        sizes: Ints = self._sizes[sources]
        cycles, places = np.divmod(rounds * self._counts[sources] + self._numbers[places], sizes)
        drawn: Ints = self._starts[sources] + permuted(places, sizes, words(word(self.seed), sources, cycles))
        return drawn

    def _options(self) -> State:
        counts, sizes = self._counts.tolist(), self._sizes.tolist()
        return {"weights": "/".join(map(str, counts)), "sizes": "/".join(map(str, sizes))}


@cut_traceback
def mix(
    datasets: Iterable[Samples],
    weights: Weights,
    *,
    num_samples: int | None = None,
    seed: int = 0,
    **keywords: Unpack[SamplerKeywords],
) -> Mixture:
    """Draw from several caches and views in fixed proportions.

    Args:
        datasets: at least one; they are joined as by `edcache.concat`.
        weights: one number for each, 0 or more: [5, 3, 2] as [0.5, 0.3, 0.2]. They are exact as decimals that have a
            common denominator up to 65,536, others are rounded to parts of that.
        num_samples: the number of draws in an epoch, by all ranks together. None is the number of all samples.
        seed: any integer. The same seed gives the same order in every process and on every platform.
        uneven, global_batch_size, num_replicas, rank: as in `edcache.samplers.Shuffle`.
    Returns:
        A sampler; its `dataset` has the samples.
    Raises:
        OptionError: "weights=[1, nan]; give finite numbers of 0 or more, ..., one for each of 2 datasets".

    Any stretch of the order has the share of each dataset, to less than 2 draws, and a stretch from draw 0 to less than
    1. A dataset is drawn in random order, to its end before it begins again in another order. The next epoch goes on at
    the end of the last one: nothing is left out. State and resumption are as of the samplers.
    Cost: 8 bytes and 0.2 us a draw when an epoch begins, and 80 bytes a draw while it is made.

    >>> mixture = edcache.mix([web, books, code], weights=[0.7, 0.2, 0.1])
    >>> for batch in mixture.dataset.loader(64, sampler=mixture): ...
    """
    return Mixture(datasets, weights, num_samples=num_samples, seed=seed, **keywords)


def _counts(weights: Weights, sizes: Sequence[int]) -> list[int]:
    """Convert weights to whole numbers in proportion, with a sum of at most `_MOST_DRAWS`."""
    try:
        # As decimals: 0.1 means a tenth.
        parts = [Fraction(str(weight)) for weight in weights]
    except (TypeError, ValueError):
        parts = []
    wrong = ""
    if len(parts) != len(sizes) or min(parts) < 0 or not any(parts):
        each = f"one for each of {len(sizes)} datasets"
        wrong = f"; give finite numbers of 0 or more, not all of them 0, {each}"
    elif empty := [k for k, size in enumerate(sizes) if parts[k] and not size]:
        wrong = f", and dataset {empty[0]} has no samples; leave it out"
    else:
        common = math.lcm(*(part.denominator for part in parts))
        counts = [int(part * common) for part in parts]
        if sum(counts) // math.gcd(*counts) > _MOST_DRAWS:
            counts = apportioned([_MOST_DRAWS], counts)[0]
        if counts.count(0) > len(parts) - sum(map(bool, parts)):
            least = f"the least is below 1 / {_MOST_DRAWS:,} of all"
            wrong = f": {least}; leave it out, or give it more"
    if wrong:
        raise OptionError(f"weights={reprlib.repr(weights)}{wrong}", option="weights")
    return [count // math.gcd(*counts) for count in counts]


def _round(counts: list[int]) -> tuple[Ints, Ints]:
    """Schedule a round: return the dataset of each draw, and the number of its draws before: int64 [n] each.

    The k-th of n draws of a dataset lies in the k-th of n equal parts of the round.

    Among the draws whose part has begun, the one whose part ends first comes next (earliest deadline first). So a
    prefix has the share of each dataset to less than one draw.
    """
    total = sum(counts)
    begins = [(0, source, 0) for source, count in enumerate(counts) if count]
    begun: list[tuple[int, int, int]] = []
    sources, numbers = np.empty(total, np.int64), np.empty(total, np.int64)
    for draw in range(total):
        while begins and begins[0][0] <= draw:
            _, source, number = heapq.heappop(begins)
            heapq.heappush(begun, (-(-(number + 1) * total // counts[source]), source, number))
        _, source, number = heapq.heappop(begun)
        sources[draw], numbers[draw] = source, number
        if number + 1 < counts[source]:
            heapq.heappush(begins, ((number + 1) * total // counts[source], source, number + 1))
    return sources, numbers
