"""Views that repeat the samples of rare classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, shown
from edcache.dataset.ordering import assigned_by_class, generator
from edcache.labels import Classes

_STRATEGIES = ("exact", "multiply")


def oversampled(classes: Classes, strategy: str, seed: int) -> Ints:
    """The positions of all samples, those of rare classes several times, one after the other."""
    if strategy not in _STRATEGIES:
        raise OptionError(
            f"strategy={shown(strategy)}; choose one of {', '.join(map(repr, _STRATEGIES))}",
            option="strategy",
        )
    random = generator(seed)
    counts = np.bincount(classes.codes, minlength=len(classes.values))
    times, rest = np.divmod(int(counts.max(initial=0)), np.maximum(counts, 1))
    times = times[classes.codes]
    if strategy == "exact":
        times += _is_drawn(random, classes, counts, rest)
    return np.repeat(np.arange(len(times), dtype=np.int64), times)


def _is_drawn(random: np.random.Generator, classes: Classes, counts: Ints, wanted: Ints) -> npt.NDArray[Any]:
    """1 for so many samples of each class, drawn without replacement, and 0 for the others."""
    return assigned_by_class(random, classes.codes, np.stack([counts - wanted, wanted], axis=1).tolist())
