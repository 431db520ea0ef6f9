"""Parts of a dataset that share no sample: by chance, with classes in proportion, with groups kept whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, dealt, dealt_by_class, generator, grouped, shown
from edcache.dataset.apportioning import apportioned

_LARGEST_DENOMINATOR = 10**9
_ROUNDING = 1e-6
# What is equal but for the last bits is equal on every platform.
_DIGITS = 12


def weights_of(parts: Sequence[Any], count: int) -> list[int]:
    """The sizes of the parts of a split, in numbers that are in proportion.

    Raises:
        OptionError: neither fractions of 1 nor counts of all samples.
    """
    if not parts:
        raise OptionError("split() takes the parts' sizes: split(0.8, 0.2), or counts of samples")
    if not all(isinstance(part, (int, float, np.integer, np.floating)) for part in parts):
        raise OptionError(f"split() takes fractions or counts, not {_told(parts)}")
    if any(not 0 <= part <= sys.float_info.max for part in parts):
        raise OptionError(
            f"split({_told(parts)}): a part is neither negative nor infinite; give fractions or counts"
        )
    if all(isinstance(part, (int, np.integer)) for part in parts):
        if sum(parts) != count:
            raise OptionError(
                f"split({_told(parts)}): these are {sum(parts):,} samples, the dataset has {count:,}; "
                "the parts are the whole dataset"
            )
        return [int(part) for part in parts]
    fractions = [Fraction(float(part)).limit_denominator(_LARGEST_DENOMINATOR) for part in parts]
    total = float(sum(fractions))
    if abs(total - 1) > _ROUNDING:
        raise OptionError(
            f"split({_told(parts)}): the fractions make {total:g}; they make 1 together, "
            "the parts are the whole dataset"
        )
    whole = math.lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * whole) for fraction in fractions]


def parted(
    count: int,
    weights: Sequence[int],
    seed: int | None,
    strata: npt.NDArray[Any] | None,
    groups: npt.NDArray[Any] | None,
) -> tuple[Ints, Ints]:
    """Which samples each part has: as `grouped` gives it, the positions of each part ascending.

    Args:
        strata, groups: the class and the group of each sample, numbered from 0; None for no such rule.
    """
    random = None if seed is None else generator(seed)
    if groups is not None:
        classes = np.zeros(count, np.uint8) if strata is None else strata
        hands = _dealt_in_groups(random, classes, groups, weights)
    elif strata is not None:
        # Each part has of each class within one of its share.
        counts = np.bincount(strata, minlength=int(strata.max()) + 1).tolist() if count else []
        hands = dealt_by_class(random, strata, apportioned(counts, weights))
    else:
        hands = dealt(random, sizes_of(count, weights))
    return grouped(hands, len(weights))


def sizes_of(count: int, weights: Sequence[int]) -> list[int]:
    """How many samples each part has, within one of its share."""
    return apportioned([count], weights)[0] if count else [0] * len(weights)


def check_folds(folds: int, count: int, group: str | None, groups: npt.NDArray[Any] | None) -> None:
    """Refuse a number of folds of which some would be empty.

    Raises:
        OptionError: "kfold(5): there are 3 samples; give at most as many folds".
    """
    if isinstance(folds, bool) or not isinstance(folds, (int, np.integer)) or folds < 2:
        raise OptionError(f"kfold({shown(folds)}): give a number of folds, 2 or more")
    found, what = count, "samples"
    if groups is not None:
        found, what = int(groups.max(initial=0)) + 1 if len(groups) else 0, f'groups of "{group}"'
    if folds > found:
        raise OptionError(f"kfold({shown(folds)}): there are {found:,} {what}; give at most as many folds")


def _dealt_in_groups(
    random: np.random.Generator | None,
    codes: npt.NDArray[Any],
    groups: npt.NDArray[Any],
    weights: Sequence[int],
) -> npt.NDArray[Any]:
    """The part of each sample, where all samples of a group are in one part.

    The largest group goes first, or with classes the most uneven one, each to where it leaves the shares
    most even: the sum over the parts and classes of the squares of what a part has of a class, relative to
    its share, weighted with the shares.
    """
    if not len(groups):
        return groups
    count = int(groups.max()) + 1
    kinds = int(codes.max()) + 1
    pairs = groups.astype(np.int64) * kinds + codes
    members = np.bincount(pairs, minlength=count * kinds).reshape(count, kinds)
    # Where there are classes, a group of one class is harder to place than one of all.
    weight = members.sum(axis=1) if kinds == 1 else members.std(axis=1).round(_DIGITS)
    order = np.arange(count)
    if random is not None:
        # By chance among those of about one weight, or each seed would give the same parts.
        order = random.permutation(count)
        weight = np.floor(2 * np.log2(np.maximum(weight, 10.0**-_DIGITS)))
    order = order[np.argsort(-weight[order], kind="stable")]
    given = _even(members[order].astype(np.float64), np.array(weights, np.float64))
    hands = np.empty(count, np.min_scalar_type(len(weights) - 1))
    hands[order] = given
    found: npt.NDArray[Any] = hands[groups]
    return found


def _even(members: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> list[int]:
    """The part of each group in turn; members: [groups, classes]."""
    shares = weights / weights.sum()
    with np.errstate(divide="ignore"):
        cost = 1 / (shares[:, None] * members.sum(axis=0) ** 2)
        tie = 1 / shares
    held = np.zeros((len(weights), members.shape[1]))
    sizes = np.zeros(len(weights))
    usable = np.flatnonzero(shares > 0)
    cost, tie, held, sizes = cost[usable], tie[usable], held[usable], sizes[usable]
    given = []
    for group in members:
        worse = ((2 * held + group) * group * cost).sum(axis=1).round(_DIGITS)
        filled = (sizes + group.sum()) * tie
        best = int(np.lexsort((filled, worse))[0])
        held[best] += group
        sizes[best] += group.sum()
        given.append(int(usable[best]))
    return given


def _told(parts: Sequence[object]) -> str:
    return ", ".join(map(shown, parts))
