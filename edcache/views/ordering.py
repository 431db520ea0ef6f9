"""Orders of n things: shuffled, dealt out, grouped and sorted, in time that 10 million of them do not show.

Every random order is a function of the seed alone: it comes from `numpy.random.Generator(PCG64(seed))`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.errors import OptionError
from edcache.labels.classes import counted

Ints = npt.NDArray[np.int64]

# Numbers of as many things lie in the processor's second cache, where a shuffle takes a sixth of the time.
_BLOCK = 1 << 16
_BUCKETS = 256
# What numpy's hypergeometric distribution takes.
_MOST_DEALT = 10**9


def generator(seed: int) -> np.random.Generator:
    """The source of all randomness of one call.

    Raises:
        OptionError: "seed=-1; give an integer of 0 or more".
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise OptionError(f"seed={seed!r}; give an integer of 0 or more")
    return np.random.Generator(np.random.PCG64(int(seed)))


def permutation(random: np.random.Generator, count: int) -> Ints:
    """A random order of 0 to count - 1; each is as likely as any other."""
    if count <= _BLOCK:
        return random.permutation(count).astype(np.int64, copy=False)
    # After Rao and Sandelius: each goes into a bucket by chance, then the buckets are shuffled.
    buckets = random.integers(0, _BUCKETS, count, dtype=np.uint8)
    order, ends = grouped(buckets, _BUCKETS)
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        random.shuffle(order[start:end])
    return order


def dealt(random: np.random.Generator | None, sizes: list[int]) -> npt.NDArray[Any]:
    """Which hand each of sum(sizes) things goes to, where hand k gets sizes[k]: unsigned ints [sum(sizes)].

    Each way to deal is as likely as any other. Without a generator the first things go to the first hand.
    """
    dtype = np.min_scalar_type(max(len(sizes) - 1, 0))
    count = sum(sizes)
    if random is None or count <= _BLOCK or count >= _MOST_DEALT:
        hands = np.repeat(np.arange(len(sizes), dtype=dtype), sizes)
        if random is not None:
            random.shuffle(hands)
        return hands
    hands, left = np.empty(count, dtype), np.array(sizes, np.int64)
    for start in range(0, count, _BLOCK):
        block = hands[start : start + _BLOCK]
        given = random.multivariate_hypergeometric(left, len(block))
        block[:] = np.repeat(np.arange(len(sizes), dtype=dtype), given)
        random.shuffle(block)
        left -= given
    return hands


def dealt_by_class(
    random: np.random.Generator | None, codes: npt.NDArray[Any], tables: list[list[int]]
) -> npt.NDArray[Any]:
    """Which hand each thing goes to, where of class c hand k gets tables[c][k]; as `dealt` within a class."""
    order, ends = grouped(codes, len(tables))
    hands = np.empty(len(codes), np.min_scalar_type(max((len(sizes) for sizes in tables), default=1) - 1))
    for sizes, start, end in zip(tables, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        hands[order[start:end]] = dealt(random, sizes)
    return hands


def grouped(codes: npt.NDArray[Any], count: int) -> tuple[Ints, Ints]:
    """The positions of each code, one code after the other, ascending within each.

    Args:
        codes: unsigned ints [n], each below `count`.
    Returns:
        order int64 [n], ends int64 [count + 1]: the positions of code k are order[ends[k]:ends[k + 1]].
    """
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(counted(codes, count), out=ends[1:])
    return stable_order(codes), ends


def stable_order(keys: npt.NDArray[Any]) -> Ints:
    """The positions of unsigned keys by rising key, equal ones as they come: int64 [n]."""
    order: Ints
    if len(keys) <= _BLOCK or keys.dtype.itemsize <= 2:
        order = np.argsort(keys, kind="stable")
        return order.astype(np.int64, copy=False)
    # 16 bits at a time, from the lowest: of these numpy sorts by counting.
    bits = int(keys.max()).bit_length()
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, bits, 16):
        digits = (keys >> keys.dtype.type(shift)).astype(np.uint16)[order]
        order = order[np.argsort(digits, kind="stable")]
    return order.astype(np.int64, copy=False)
