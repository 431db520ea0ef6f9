"""`mix`: several datasets in fixed proportions, which hold in every stretch of the order."""

from __future__ import annotations

import heapq
import math
import reprlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from edcache.base import Ints, OptionError, check_count
from edcache.dataset.combined import Concat, concat
from edcache.dataset.epoch import EpochSampler
from edcache.dataset.permutation import Computed, permuted, word, words
from edcache.dataset.selection import Selection, Shuffled
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
        dataset: Concat,
        weights: Weights,
        *,
        stop: Literal["first", "longest"] | int = "first",
        seed: int = 0,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        if not isinstance(dataset, Concat):
            raise OptionError(f"a mixture of {type(dataset).__name__}; give what edcache.concat() returns")
        self.dataset = dataset
        self._starts = np.array(dataset.starts)
        self._sizes = np.diff(self._starts, append=len(dataset))
        self._round = _round(_counts(weights, self._sizes.tolist()))
        super().__init__(dataset, self._draws(stop), seed, **keywords)

    def _draws(self, stop: object) -> int:
        """Return the number of draws in an epoch."""
        if stop not in ("first", "longest"):
            if isinstance(stop, str):
                raise OptionError(f'stop="{stop}"; give "first", "longest" or a number of draws')
            check_count("stop", stop)
            return int(stop)  # type: ignore[call-overload, no-any-return]
        ends = [_end(self._round, k, size) for k, size in enumerate(self._sizes.tolist())]
        known = [end for end in ends if end is not None]
        if stop == "longest" and len(known) < len(ends):
            raise OptionError(
                f'stop="longest", and dataset {ends.index(None)} is never drawn from to its end; '
                "give a number of draws"
            )
        return min(known) if stop == "first" else max(known)

    def _drawn(self, epoch: int) -> Selection:
        order = _Order(self, epoch * self._count)
        return Shuffled(range(self._count), Selection(range(self._samples)), order)

    def _options(self) -> State:
        return {
            "weights": "/".join(map(str, self._round.counts.tolist())),
            "sizes": "/".join(map(str, self._sizes.tolist())),
        }


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
    Cost: no memory, but for a round of at most 65,536 draws; 0.2 us a draw.

    >>> mixture = edcache.mix([web, books, code], weights=[0.7, 0.2, 0.1])
    >>> for batch in mixture.dataset.loader(64, sampler=mixture): ...
    """
    return Mixture(concat(datasets), weights, stop=stop, seed=seed, **keywords)


class _Round(NamedTuple):
    """Round of draws, which repeats.

    counts: of each dataset. sources: int64 [n], the dataset of each draw. numbers: int64 [n], draws of its
    dataset before it.
    """

    counts: Ints
    sources: Ints
    numbers: Ints


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


def _round(counts: Sequence[int]) -> _Round:
    """Schedule a round: the k-th of n draws of a dataset lies in the k-th of n equal parts of the round.

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
    return _Round(np.array(counts, np.int64), sources, numbers)


def _end(round_: _Round, source: int, size: int) -> int | None:
    """Return the number of draws that read a dataset to its end; None if it is never drawn from."""
    count = int(round_.counts[source])
    if not count or not size:
        return None
    rounds, number = divmod(size - 1, count)
    place = np.flatnonzero(round_.sources == source)[number]
    return rounds * len(round_.sources) + int(place) + 1


class _Order(Computed):
    """Draws of an epoch, as indices of the joined datasets. first: number of draws before it."""

    def __init__(self, mixture: Mixture, first: int) -> None:
        super().__init__(mixture._count)
        self._round, self._sizes, self._starts = mixture._round, mixture._sizes, mixture._starts
        self._word, self._first = word(mixture.seed), first

    def _computed(self, positions: Ints) -> Ints:
        rounds, places = np.divmod(positions + self._first, len(self._round.sources))
        sources: Ints = self._round.sources[places]
        numbers = rounds * self._round.counts[sources] + self._round.numbers[places]
        sizes: Ints = self._sizes[sources]
        epochs, positions = np.divmod(numbers, sizes)
        return self._starts[sources] + permuted(positions, sizes, words(self._word, sources, epochs))
