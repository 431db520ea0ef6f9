"""Random assignment to groups, repeats of rare classes, grouping and stable sorting, by numpy.

All randomness is a function of the seed: it comes from `numpy.random.Generator(PCG64(seed))`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, check_choice, shown
from edcache.labels import Classes


def checked_seed(seed: int) -> int:
    """Return a user's seed; OptionError unless it is an integer from 0 up."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise OptionError(f"seed={shown(seed)}; give an integer of 0 or more", option="seed")
    return int(seed)


def generator(seed: int) -> np.random.Generator:
    """Make the random generator of one call."""
    return np.random.Generator(np.random.PCG64(checked_seed(seed)))


def assigned(random: np.random.Generator | None, sizes: list[int]) -> npt.NDArray[Any]:
    """Assign sum(sizes) items to groups at random; group k gets exactly sizes[k]: unsigned ints [sum(sizes)].

    Without a generator the first items go to the first group.
    """
    groups = np.repeat(np.arange(len(sizes), dtype=np.min_scalar_type(max(len(sizes) - 1, 0))), sizes)
    if random is not None:
        random.shuffle(groups)
    return groups


def assigned_by_class(
    random: np.random.Generator | None, codes: npt.NDArray[Any], tables: list[list[int]]
) -> npt.NDArray[Any]:
    """Assign items to groups; group k gets tables[c][k] items of class c, as by `assigned`."""
    most = max((len(sizes) for sizes in tables), default=1)
    groups = np.empty(len(codes), np.min_scalar_type(most - 1))
    if tables:
        groups[grouped(codes, len(tables))[0]] = np.concatenate([assigned(random, sizes) for sizes in tables])
    return groups


def grouped(codes: npt.NDArray[Any], count: int) -> tuple[Ints, Ints]:
    """Sort positions by code, equal codes by position.

    Args:
        codes: unsigned ints [n], each below `count`.
    Returns:
        order int64 [n], ends int64 [count + 1]: the positions of code k are order[ends[k]:ends[k + 1]].
    """
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=count), out=ends[1:])
    # numpy sorts 16 bits five times as fast as 64.
    narrow = codes.astype(np.uint16) if count <= 1 << 16 else codes
    return np.argsort(narrow, kind="stable").astype(np.int64, copy=False), ends


def oversampled(classes: Classes, strategy: str, seed: int) -> Ints:
    """Return the positions of all samples, each of a rare class several times, one after the other."""
    check_choice("strategy", strategy, ("exact", "multiply"))
    random = generator(seed)
    counts = np.bincount(classes.codes, minlength=len(classes.values))
    times, rest = np.divmod(int(counts.max(initial=0)), np.maximum(counts, 1))
    times = times[classes.codes]
    if strategy == "exact":
        # The rest of each class is drawn once more, without replacement.
        tables = np.stack([counts - rest, rest], axis=1).tolist()
        times += assigned_by_class(random, classes.codes, tables)
    return np.repeat(np.arange(len(times), dtype=np.int64), times)
