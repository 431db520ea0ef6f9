"""Every class equally often."""

from __future__ import annotations

from typing import Any

import numpy as np

from edcache.base import OptionError
from edcache.dataset.sampler_columns import Column, column_of, grouped
from edcache.dataset.sampler_epochs import EpochSampler, Ints, check_count


class Balanced(EpochSampler):
    """Draws every class equally often, and all samples of a class before one comes again.

    Args:
        ds: a cache, a view, or anything with `len` and `.labels`.
        label: the label that holds the class, of any type of single values; or an array [len(ds)] of them.
            Samples whose class is missing (None, nan, NaT) are left out.
        num_samples: draws of an epoch, by all ranks together; None for as many as samples have a class.
            Classes differ by at most one of them.
        seed, drop_last, num_replicas, rank: as in `EpochSampler`.
    Raises:
        OptionError, UnknownLabelError.

    With k classes every k draws in a row, counted from the first, hold each class once in a random order, so
    that batches are balanced too. Within an epoch each class is gone through in a fresh permutation each
    time. No sample is read.

    Cost: 8 bytes a sample, and some 32 a draw while an epoch is made. 10 million samples: 0.3 s, then 0.5 s
    an epoch; 1.6 s and 0.7 s where they are of a million classes.

    >>> DataLoader(ds, batch_size=64, sampler=edcache.samplers.Balanced(ds, "label"))
    """

    def __init__(
        self,
        ds: Any,
        label: Column,
        num_samples: int | None = None,
        seed: int = 0,
        *,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self._members, self._starts = grouped(column_of(ds, label))
        if num_samples is not None:
            check_count("num_samples", num_samples)
            if not len(self._members):
                raise OptionError(f"num_samples={num_samples}, and no sample has a class to draw from")
        count = len(self._members) if num_samples is None else num_samples
        super().__init__(count, seed, drop_last, num_replicas, rank)

    def _drawn(self, generator: np.random.Generator) -> Ints:
        sizes = np.diff(self._starts)
        if not len(sizes):
            return np.empty(0, np.int64)
        rounds = -(-self._count // len(sizes))
        drawn = np.empty((rounds, len(sizes)), np.int64)
        # Classes of one size are permuted together: there are few sizes, whatever the number of classes.
        for size in np.unique(sizes).tolist():
            classes = np.flatnonzero(sizes == size)
            cycles = -(-rounds // size)
            starts = np.repeat(self._starts[classes], cycles)
            members = self._members[starts[:, None] + np.arange(size)]
            generator.permuted(members, axis=1, out=members)
            drawn[:, classes] = members.reshape(len(classes), -1)[:, :rounds].T
        generator.permuted(drawn, axis=1, out=drawn)
        return drawn.reshape(-1)[: self._count]
