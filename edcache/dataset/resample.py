"""More of the rare classes, or fewer of the frequent ones; the first of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, dealt_by_class, generator, shown
from edcache.labels import Classes

_STRATEGIES = ("exact", "multiply")


def oversampled(classes: Classes, strategy: str, seed: int) -> Ints:
    """The positions of all samples, those of rare classes several times, one after the other."""
    if strategy not in _STRATEGIES:
        raise OptionError(f"strategy={shown(strategy)}; choose one of {', '.join(map(repr, _STRATEGIES))}")
    random = generator(seed)
    counts = np.bincount(classes.codes, minlength=len(classes.values))
    times, rest = np.divmod(int(counts.max(initial=0)), np.maximum(counts, 1))
    times = times[classes.codes]
    if strategy == "exact":
        times += _is_drawn(random, classes, counts, rest)
    return np.repeat(np.arange(len(times), dtype=np.int64), times)


def undersampled(classes: Classes, count: int | None, seed: int) -> Ints:
    """The positions of at most `count` samples of each class, ascending; None for those of the rarest."""
    random = generator(seed)
    is_count = isinstance(count, (int, np.integer)) and not isinstance(count, bool) and count >= 0
    if count is not None and not is_count:
        raise OptionError(f"count={shown(count)}; give how many samples of each class to keep, or None")
    most = len(classes.codes)
    counts = np.bincount(classes.codes, minlength=len(classes.values))
    kept = int(counts.min(initial=most)) if count is None else min(int(count), most)
    return np.flatnonzero(_is_drawn(random, classes, counts, np.minimum(counts, kept)))


def firsts(classes: Classes) -> Ints:
    """The position of the first sample of each class, ascending; codes are numbered as they appear."""
    latest = np.maximum.accumulate(classes.codes)
    return np.concatenate([np.arange(min(len(latest), 1)), np.flatnonzero(latest[1:] != latest[:-1]) + 1])


def _is_drawn(random: np.random.Generator, classes: Classes, counts: Ints, wanted: Ints) -> npt.NDArray[Any]:
    """1 for so many samples of each class, drawn without replacement, and 0 for the others."""
    return dealt_by_class(random, classes.codes, np.stack([counts - wanted, wanted], axis=1).tolist())
