"""More of the rare classes, or fewer of the frequent ones; the first of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, dealt_by_class, generator, shown
from edcache.labels import Classes

STRATEGIES = ("exact", "multiply")


def oversampled(found: Classes, strategy: str, seed: int) -> Ints:
    """The positions of all samples, those of rare classes several times, one after the other.

    Raises:
        OptionError: an unknown strategy.
    """
    if strategy not in STRATEGIES:
        raise OptionError(f"strategy={shown(strategy)}; choose one of {', '.join(map(repr, STRATEGIES))}")
    random = generator(seed)
    counts = np.bincount(found.codes, minlength=len(found.values))
    most = int(counts.max(initial=0))
    times = (most // np.maximum(counts, 1))[found.codes]
    if strategy == "exact":
        times += _is_drawn(random, found, counts, most % np.maximum(counts, 1))
    return np.repeat(np.arange(len(times), dtype=np.int64), times)


def undersampled(found: Classes, count: int | None, seed: int) -> Ints:
    """The positions of at most `count` samples of each class, ascending; None for those of the rarest.

    Raises:
        OptionError: a negative count.
    """
    random = generator(seed)
    is_count = isinstance(count, (int, np.integer)) and not isinstance(count, bool) and count >= 0
    if count is not None and not is_count:
        raise OptionError(f"count={shown(count)}; give how many samples of each class to keep, or None")
    counts = np.bincount(found.codes, minlength=len(found.values))
    kept = int(counts.min(initial=len(found.codes))) if count is None else min(int(count), len(found.codes))
    return np.flatnonzero(_is_drawn(random, found, counts, np.minimum(counts, kept)))


def firsts(found: Classes) -> Ints:
    """The position of the first sample of each class, ascending."""
    if not len(found.codes):
        return np.empty(0, np.int64)
    # Codes are numbered in the order in which they appear.
    latest = np.maximum.accumulate(found.codes)
    return np.concatenate([[0], np.flatnonzero(latest[1:] != latest[:-1]) + 1])


def _is_drawn(random: np.random.Generator, found: Classes, counts: Ints, wanted: Ints) -> npt.NDArray[Any]:
    """1 for so many samples of each class, drawn without replacement, and 0 for the others."""
    pairs = zip((counts - wanted).tolist(), wanted.tolist(), strict=True)
    return dealt_by_class(random, found.codes, [[left, drawn] for left, drawn in pairs])
