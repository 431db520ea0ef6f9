"""Split a dataset into parts that share no sample: at random, by class in proportion, by whole groups.

All randomness is a function of the seed: it comes from `numpy.random.Generator(PCG64(seed))`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, check_choice, check_count, shown
from edcache.labels import Classes

_LARGEST_DENOMINATOR = 10**9
_ROUNDING = 1e-6

# Rounding makes ties that differ in the last bits equal on every platform.
_DIGITS = 12


def weights_of(parts: Sequence[Any], count: int) -> list[int]:
    """Convert the sizes of a split, fractions of 1 or counts, to integers in proportion."""
    if not parts:
        raise OptionError(
            "split() needs the sizes of the parts: fractions, split(0.8, 0.2), or counts of samples"
        )
    text = ", ".join(map(shown, parts))
    if not all(isinstance(part, (int, float, np.integer, np.floating)) for part in parts):
        raise OptionError(f"split() takes fractions or counts, not {text}")
    if any(not 0 <= part <= sys.float_info.max for part in parts):
        raise OptionError(f"split({text}): a part cannot be negative or infinite; give fractions or counts")
    if all(isinstance(part, (int, np.integer)) for part in parts):
        if sum(parts) != count:
            raise OptionError(
                f"split({text}): these are {sum(parts):,} samples, but the dataset has {count:,}; "
                "give counts with that sum"
            )
        return [int(part) for part in parts]
    fractions = [Fraction(float(part)).limit_denominator(_LARGEST_DENOMINATOR) for part in parts]
    total = float(sum(fractions))
    if abs(total - 1) > _ROUNDING:
        raise OptionError(
            f"split({text}): the sum of the fractions is {total:g}; give fractions whose sum is 1"
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
    """Assign samples to parts, by class and group of each sample; returns them as `grouped`."""
    random = None if seed is None else generator(seed)
    if groups is not None:
        classes = np.zeros(count, np.uint8) if strata is None else strata
        hands = _deal_groups(random, classes, groups, weights)
    elif strata is not None:
        counts = np.bincount(strata, minlength=int(strata.max()) + 1).tolist() if count else []
        hands = assigned_by_class(random, strata, apportioned(counts, weights))
    else:
        hands = assigned(random, sizes_of(count, weights))
    return grouped(hands, len(weights))


def sizes_of(count: int, weights: Sequence[int]) -> list[int]:
    """Return the number of samples of each part, within one of its share."""
    return apportioned([count], weights)[0] if count else [0] * len(weights)


def check_folds(folds: int, count: int, group: str | None, groups: npt.NDArray[Any] | None) -> None:
    """Raise OptionError if a fold would be empty."""
    check_count("n", folds, 2)
    most, what = count, "samples"
    if groups is not None:
        most, what = int(groups.max()) + 1 if len(groups) else 0, f'groups of "{group}"'
    if folds > most:
        raise OptionError(f"kfold({shown(folds)}): there are {most:,} {what}; give at most as many folds")


def _deal_groups(
    random: np.random.Generator | None,
    codes: npt.NDArray[Any],
    groups: npt.NDArray[Any],
    weights: Sequence[int],
) -> npt.NDArray[Any]:
    """Return the part of each sample; all samples of a group are in one part.

    The largest group goes first, or with classes the most uneven one, each to the part that leaves the shares most
    even: by the sum over parts and classes of squared counts relative to the share, weighted with the shares.
    """
    if not len(groups):
        return groups
    count = int(groups.max()) + 1
    kinds = int(codes.max()) + 1
    pairs = groups.astype(np.int64) * kinds + codes
    members = np.bincount(pairs, minlength=count * kinds).reshape(count, kinds)
    # With classes, a group of one class is harder to place than one of all.
    weight = members.sum(axis=1) if kinds == 1 else members.std(axis=1).round(_DIGITS)
    order = np.arange(count)
    if random is not None:
        # Random among groups of about one weight, or each seed would give the same parts.
        order = random.permutation(count)
        weight = np.floor(2 * np.log2(np.maximum(weight, 10.0**-_DIGITS)))
    order = order[np.argsort(-weight[order], kind="stable")]
    hands = np.empty(count, np.min_scalar_type(len(weights) - 1))
    hands[order] = _choose_parts(members[order].astype(np.float64), np.array(weights, np.float64))
    return hands[groups]  # type: ignore[no-any-return]


def _choose_parts(members: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> list[int]:
    """Choose the part of each group, in their order; members: [groups, classes]."""
    shares = weights / weights.sum()
    with np.errstate(divide="ignore"):
        cost = 1 / (shares[:, None] * members.sum(axis=0) ** 2)
        tie = 1 / shares
    usable = np.flatnonzero(shares > 0)
    cost, tie = cost[usable], tie[usable]
    held, sizes = np.zeros(cost.shape), np.zeros(len(usable))
    given = []
    for group in members:
        worse = ((2 * held + group) * group * cost).sum(axis=1).round(_DIGITS)
        filled = (sizes + group.sum()) * tie
        best = int(np.lexsort((filled, worse))[0])
        held[best] += group
        sizes[best] += group.sum()
        given.append(int(usable[best]))
    return given


def apportioned(counts: Sequence[int], weights: Sequence[int]) -> list[list[int]]:
    """Apportion the count of each row to columns by weight.

    Args:
        counts: of each row. weights: of each column, not all 0.
    Returns:
        A row for each count, which adds up to it. The first rows together have in each column their sum's share,
        `sum * weight / sum(weights)`, rounded down or up; so a row is within 2 of its share.

    Items are dealt one by one to the column that first needs one, among columns that may have one more (Tijdeman's
    schedule, 1980). Here the items of a row are dealt at once.
    """
    whole, total = sum(weights), 0
    held, table = [0] * len(weights), []
    for count in counts:
        before, total = held, total + count
        held = [max(have, total * weight // whole) for have, weight in zip(held, weights, strict=True)]
        # These columns lack less than one item.
        able = [k for k, weight in enumerate(weights) if held[k] * whole < total * weight]
        able.sort(key=lambda k: -((held[k] + 1) * -whole // weights[k]))
        for column in able[: total - sum(held)]:
            held[column] += 1
        table.append([now - then for now, then in zip(held, before, strict=True)])
    return table


def generator(seed: int) -> np.random.Generator:
    """Make the random generator of one call."""
    return np.random.Generator(np.random.PCG64(check_count("seed", seed, 0)))


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
