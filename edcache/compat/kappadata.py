"""KappaData's RedisDataset, and its wrappers that round in their own way, over caches and their views.

A KDDataset is the source of a cache as it is. docs/migrating.md has the other wrappers as methods of a cache.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edcache.backends import RedisDataset
from edcache.dataset import Samples, View

__all__ = ["OversamplingWrapper", "PercentFilterWrapper", "RedisDataset"]


def PercentFilterWrapper(
    dataset: Samples[Any],
    from_percent: float | None = None,
    to_percent: float | None = None,
    ceil_from_index: bool = False,
    ceil_to_index: bool = False,
) -> View[Any]:
    """Select the samples between two fractions of the length, which are rounded down, or up by `ceil_...`.

    None and 0 are the start for `from_percent`, and the end for `to_percent`.
    """
    start, stop = (from_percent or 0.0) * len(dataset), (to_percent or 1.0) * len(dataset)
    first, last = math.ceil if ceil_from_index else int, math.ceil if ceil_to_index else int
    return dataset[first(start) : last(stop)]


def OversamplingWrapper(dataset: Samples[Any], label: str = "class") -> View[Any]:
    """Append whole copies of smaller classes, until no more fit into the size of the largest.

    label: the label column of the class, integers; -1 is no class. Raises UnknownLabelError.
    """
    classes = dataset.labels[label]
    rows = [np.flatnonzero(classes == kind) for kind in np.unique(classes[classes != -1])]
    most = max(map(len, rows), default=0)
    copies = [np.tile(each, most // len(each) - 1) for each in rows]
    return dataset[np.concatenate([np.arange(len(dataset)), *copies])]
