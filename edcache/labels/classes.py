"""The values of a column as small numbers: which are equal, and which come first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.errors import LabelTypeError
from edcache.labels.arrow import pa
from edcache.labels.types import is_text
from edcache.labels.view import Labels, one_chunk, to_numpy

# Integers of so small a range are looked up in a table instead of being hashed.
_SMALL_RANGE = 1 << 16
_BLOCK = 1 << 16


class Classes(NamedTuple):
    """The distinct values of a column.

    codes: unsigned ints [num_rows], of the smallest dtype: which of `values` each row has.
    values: in the order of their first rows, as Python has them; None is a missing value.
    """

    codes: npt.NDArray[Any]
    values: list[Any]


def classes(labels: Labels, name: str, asked_by: str) -> Classes:
    """The distinct values of a column, a missing one among them.

    Raises:
        UnknownLabelError: no such column.
        LabelTypeError: 'label "boxes" is list<item: int64>; group_by() needs a column of single values'.
    """
    kind = _single(labels, name, asked_by)
    if not labels.num_rows:
        return Classes(np.empty(0, np.uint8), [])
    offsets = _offsets(labels, name, kind)
    return _encoded(labels.comparable(name)) if offsets is None else _by_appearance(*offsets)


def sort_keys(labels: Labels, name: str, descending: bool) -> npt.NDArray[Any]:
    """Unsigned ints [num_rows] that are in the order of a column's values; missing ones and nans are last.

    Raises: as `classes`.
    """
    kind = _single(labels, name, "sort_by")
    if not labels.num_rows:
        return np.empty(0, np.uint8)
    offsets = _offsets(labels, name, kind)
    if offsets is not None:
        small = offsets[0]
        return small.max() - small if descending else small
    keys, missing = _ordered(labels, name, kind)
    keys = keys.max() - keys if descending else keys - keys.min()
    last = int(keys.max())
    if missing is not None and missing.any():
        # Values that are there count up to last, or there is no number left for the others.
        if last == np.iinfo(keys.dtype).max:
            keys = _dense(keys)
            last = int(keys.max())
        keys[missing] = last + 1
        last += 1
    return keys.astype(np.min_scalar_type(last), copy=False)


def _single(labels: Labels, name: str, asked_by: str) -> pa.DataType:
    """The type of a column of single values."""
    kind = labels.whole.column(name).type
    if pa.types.is_nested(kind):
        raise LabelTypeError(f'label "{name}" is {kind}; {asked_by}() needs a column of single values')
    return kind


# ----------------------------------------------------------------------------------------- codes


def _offsets(labels: Labels, name: str, kind: pa.DataType) -> tuple[npt.NDArray[Any], int] | None:
    """How much larger than the least each integer of a column is, and the least; None for all other columns.

    And for those with missing values, or of a large range.
    """
    column = labels[name] if pa.types.is_integer(kind) else None
    if column is None or column.dtype.kind not in "iu":
        return None
    low, high = int(column.min()), int(column.max())
    if high - low >= _SMALL_RANGE:
        return None
    offsets = np.empty(len(column), np.min_scalar_type(high - low))
    wide = np.uint64 if column.dtype.kind == "u" else np.int64
    # Without an array of the wide type in between.
    np.subtract(column, wide(low), out=offsets, casting="unsafe", dtype=wide)
    return offsets, low


def _by_appearance(offsets: npt.NDArray[Any], low: int) -> Classes:
    """The classes of small integers, numbered by their first rows."""
    count = int(offsets.max()) + 1
    first = np.full(count, -1, np.int64)
    wanted = np.count_nonzero(counted(offsets, count))
    for start in range(0, len(offsets), _BLOCK):
        block = offsets[start : start + _BLOCK]
        found = np.full(count, -1, np.int64)
        # Of several rows with one value the one that is assigned last stays.
        found[block[::-1]] = np.arange(start + len(block) - 1, start - 1, -1)
        is_new = (first < 0) & (found >= 0)
        first[is_new] = found[is_new]
        if np.count_nonzero(first >= 0) == wanted:
            break
    order = np.argsort(np.where(first < 0, len(offsets), first), kind="stable")[:wanted]
    numbers = np.zeros(count, np.min_scalar_type(wanted - 1))
    numbers[order] = np.arange(wanted, dtype=numbers.dtype)
    return Classes(numbers[offsets], [low + offset for offset in order.tolist()])


def counted(codes: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """How often each number below `count` comes: int64 [count]."""
    if count > _BLOCK:
        return np.bincount(codes, minlength=count)
    # numpy makes wide copies of what it counts; of a block they stay in the processor's cache.
    blocks = (codes[start : start + _BLOCK] for start in range(0, len(codes), _BLOCK))
    total = np.zeros(count, np.int64)
    for block in blocks:
        total += np.bincount(block, minlength=count)
    return total


def _encoded(column: pa.ChunkedArray) -> Classes:
    """The classes of any column, as Arrow finds them, which numbers them by their first rows too."""
    if pa.types.is_null(column.type):
        return Classes(np.zeros(len(column), np.uint8), [None])
    encoded = one_chunk(column).dictionary_encode()
    found = to_numpy(encoded.dictionary, nullable=False)
    # Of times, numpy keeps what Python's types would round.
    values = list(found) if found.dtype.kind in "mM" else found.tolist()
    codes, missing = encoded.indices, None
    if codes.null_count:
        missing = codes.is_null().to_numpy(zero_copy_only=False)
        codes = codes.fill_null(0)
    numbers = codes.to_numpy(zero_copy_only=False).astype(np.min_scalar_type(len(values)))
    if missing is not None:
        place = int(numbers[: int(missing.argmax())].max(initial=0)) + 1 if not missing[0] else 0
        numbers[numbers >= place] += 1
        numbers[missing] = place
        values.insert(place, None)
    return Classes(numbers, values)


# ------------------------------------------------------------------------------------------ order


def _ordered(
    labels: Labels, name: str, kind: pa.DataType
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Unsigned ints in the values' order, of memory of their own, and which values are missing."""
    column = labels.comparable(name)
    if is_text(kind) or pa.types.is_null(kind):
        return _ranked(column)
    array = one_chunk(column)
    if array.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        filled = to_numpy(array.fill_null(pa.scalar(0).cast(kind)), nullable=False)
        return _unsigned(filled, array.is_null().to_numpy(zero_copy_only=False))
    return _unsigned(to_numpy(array, nullable=array.null_count > 0), None)


def _ranked(column: pa.ChunkedArray) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    if not len(column):
        return np.empty(0, np.uint64), np.empty(0, bool)
    codes, values = _encoded(column)
    missing = np.array([value is None for value in values], bool)
    present = sorted(np.flatnonzero(~missing).tolist(), key=values.__getitem__)
    ranks = np.zeros(len(values), np.uint64)
    ranks[present] = np.arange(len(present), dtype=np.uint64)
    return ranks[codes], missing[codes]


def _unsigned(
    values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    if values.dtype.kind in "bu":
        keys = values.astype(np.uint64)
    elif values.dtype.kind == "i":
        keys = _from_signed(values.astype(np.int64))
    elif values.dtype.kind in "mM":
        missing = np.isnat(values)
        keys = _from_signed(values.astype(f"{values.dtype.kind}8[{_unit(values)}]").view(np.int64))
    else:
        missing = np.isnan(values)
        # Of what is below zero more bits are less.
        bits = values.astype(np.float64).view(np.int64)
        keys = _from_signed(np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits))
    if missing is not None and missing.any():
        # So that what is not there does not count for the largest or the smallest.
        keys[missing] = keys[~missing].min(initial=np.iinfo(np.uint64).max)
    return keys, missing


def _unit(values: npt.NDArray[Any]) -> str:
    return np.datetime_data(values.dtype)[0]


def _from_signed(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    flipped: npt.NDArray[np.uint64] = values.view(np.uint64) ^ np.uint64(1 << 63)
    return flipped


def _dense(keys: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same order in numbers without gaps."""
    found: npt.NDArray[Any] = np.unique(keys, return_inverse=True)[1].astype(np.uint64)
    return found
