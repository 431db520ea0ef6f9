"""Things dealt out, grouped and sorted, in time that 10 million of them do not show.

Chance is a function of the seed alone: it comes from `numpy.random.Generator(PCG64(seed))`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base.errors import OptionError
from edcache.base.permutation import Ints
from edcache.base.wording import shown

# Numbers of as many things lie in the processor's second cache, where a shuffle takes a sixth of the time.
_BLOCK = 1 << 16
# What numpy's hypergeometric distribution takes.
_MOST_DEALT = 10**9


def checked_seed(seed: int) -> int:
    """A seed that a user gave; OptionError for what is no integer from 0 up."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise OptionError(f"seed={shown(seed)}; give an integer of 0 or more")
    return int(seed)


def generator(seed: int) -> np.random.Generator:
    """The source of all randomness of one call; `seed` is checked."""
    return np.random.Generator(np.random.PCG64(checked_seed(seed)))


def dealt(random: np.random.Generator | None, sizes: list[int]) -> npt.NDArray[Any]:
    """Which hand each of sum(sizes) things goes to, where hand k gets sizes[k]: unsigned ints [sum(sizes)].

    Each way to deal is as likely as any other. Without a generator the first things go to the first hand.
    """
    dtype = np.min_scalar_type(max(len(sizes) - 1, 0))
    count = sum(sizes)
    if random is None or count >= _MOST_DEALT:
        hands = np.repeat(np.arange(len(sizes), dtype=dtype), sizes)
        if random is not None:
            random.shuffle(hands)
        return hands
    hands, left = np.empty(count, dtype), np.array(sizes, np.int64)
    for start in range(0, count, _BLOCK):
        block = hands[start : start + _BLOCK]
        is_last = start + len(block) == count
        given = left if is_last else random.multivariate_hypergeometric(left, len(block))
        _deal(random, given, block)
        left = left - given
    return hands


def _deal(random: np.random.Generator, sizes: Ints, hands: npt.NDArray[Any]) -> None:
    # Only those are drawn that do not go to the largest hand.
    largest = int(sizes.argmax())
    others = sizes.copy()
    others[largest] = 0
    hands[:] = largest
    hands[random.choice(len(hands), int(others.sum()), replace=False)] = np.repeat(
        np.arange(len(sizes)), others
    )


def dealt_by_class(
    random: np.random.Generator | None, codes: npt.NDArray[Any], tables: list[list[int]]
) -> npt.NDArray[Any]:
    """Which hand each thing goes to, where of class c hand k gets tables[c][k]; as `dealt` within a class."""
    most = max((len(sizes) for sizes in tables), default=1)
    by_class = np.empty(len(codes), np.min_scalar_type(most - 1))
    ends = np.cumsum([0, *map(sum, tables)])
    for sizes, start, end in zip(tables, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        by_class[start:end] = dealt(random, sizes)
    hands = np.empty_like(by_class)
    hands[grouped(codes, len(tables))[0]] = by_class
    return hands


def grouped(codes: npt.NDArray[Any], count: int) -> tuple[Ints, Ints]:
    """The positions of each code, one code after the other, ascending within each.

    Args:
        codes: unsigned ints [n], each below `count`.
    Returns:
        order int64 [n], ends int64 [count + 1]: the positions of code k are order[ends[k]:ends[k + 1]].
    """
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=count), out=ends[1:])
    if codes.dtype.itemsize > 2:
        return stable_order(codes), ends
    order, free = np.empty(len(codes), np.int64), ends[:-1].copy()
    for start in range(0, len(codes), _BLOCK):
        # Of so many all that is needed stays in the processor's cache.
        block = codes[start : start + _BLOCK]
        counts = np.bincount(block, minlength=count)
        shifts = free - (np.cumsum(counts) - counts)
        places = np.repeat(shifts, counts) + np.arange(len(block))
        order[places] = np.argsort(block, kind="stable") + start
        free += counts
    return order, ends


def stable_order(keys: npt.NDArray[Any]) -> Ints:
    """The positions of unsigned keys by rising key, equal ones as they come: int64 [n]."""
    if len(keys) <= _BLOCK:
        return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
    most = int(keys.max())
    if most < 1 << 16:
        return grouped(keys.astype(np.uint16, copy=False), most + 1)[0]
    # Numbers are sorted in half of the time that their order takes: each has its place in its last bits.
    places = (len(keys) - 1).bit_length()
    cut = max(most.bit_length() + places - 64, 0)
    packed = (keys >> keys.dtype.type(cut)).astype(np.uint64) << np.uint64(places)
    packed |= np.arange(len(keys), dtype=np.uint64)
    packed.sort()
    order: Ints = (packed & np.uint64((1 << places) - 1)).astype(np.int64)
    if cut:
        packed >>= np.uint64(places)
        is_next_alike = np.append(packed[1:] == packed[:-1], False)
        alike = np.flatnonzero(is_next_alike | np.roll(is_next_alike, 1))
        positions = order[alike]
        order[alike] = positions[np.argsort(keys[positions], kind="stable")]
    return order
