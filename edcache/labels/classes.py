"""The values of a column as small numbers: which are equal, and which come first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.format import is_text, pa
from edcache.labels.view import Labels, one_chunk, to_numpy

# Integers of so small a range are looked up in a table instead of being hashed.
_SMALL_RANGE = 1 << 16


class Classes(NamedTuple):
    """The distinct values of a column.

    codes: unsigned ints [num_rows], of the smallest dtype: which of `values` each row has.
    values: in the order of their first rows, as Python has them, times as numpy does; None is a missing
        value.
    """

    codes: npt.NDArray[Any]
    values: list[Any]


def classes(labels: Labels, name: str, asked_by: str) -> Classes:
    """The distinct values of a column, a missing one among them.

    Raises:
        UnknownLabelError: no such column.
        LabelTypeError: 'label "boxes" is list<item: int64>; group_by() needs a column of single values'.
    """
    column = labels.singles(name, asked_by)
    offsets, low = _offsets(labels, name)
    return _encoded(column) if offsets is None else _by_appearance(offsets, low)


def sort_keys(labels: Labels, name: str, descending: bool) -> npt.NDArray[Any]:
    """Unsigned ints [num_rows] that are in the order of a column's values; missing ones and nans are last.

    Raises: as `classes`.
    """
    column = labels.singles(name, "sort_by")
    if not len(column):
        return np.empty(0, np.uint8)
    offsets, _ = _offsets(labels, name)
    if offsets is not None:
        return offsets.max() - offsets if descending else offsets
    keys, missing = _ordered(column)
    if missing.any():
        # So that what is not there does not count for the largest or the smallest.
        keys[missing] = keys[~missing].min(initial=np.iinfo(np.uint64).max)
    keys = keys.max() - keys if descending else keys - keys.min()
    if missing.any():
        if keys.max() == np.iinfo(keys.dtype).max:  # or there is no number left for the others
            keys = np.unique(keys, return_inverse=True)[1].astype(np.uint64)
        keys[missing] = keys.max() + np.uint64(1)
    return keys.astype(np.min_scalar_type(int(keys.max())), copy=False)


def _offsets(labels: Labels, name: str) -> tuple[npt.NDArray[Any] | None, int]:
    """How much larger than the least each integer of a column is, and the least.

    None for other columns, those with missing values, and those of a large range.
    """
    is_integer = pa.types.is_integer(labels.whole.column(name).type)
    column = labels[name] if is_integer and labels.num_rows else np.empty(0)
    if column.dtype.kind not in "iu":
        return None, 0
    low, high = int(column.min()), int(column.max())
    if high - low >= _SMALL_RANGE:
        return None, 0
    offsets = np.empty(len(column), np.min_scalar_type(high - low))
    wide = np.uint64 if column.dtype.kind == "u" else np.int64
    # Without an array of the wide type in between.
    np.subtract(column, wide(low), out=offsets, casting="unsafe", dtype=wide)
    return offsets, low


def _by_appearance(offsets: npt.NDArray[Any], low: int) -> Classes:
    """The classes of small integers, numbered by their first rows."""
    length = len(offsets)
    first = np.full(int(offsets.max()) + 1, length)
    # Of several rows with one value the one that is assigned last stays.
    first[offsets[::-1]] = np.arange(length - 1, -1, -1)
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < length)]
    numbers = np.zeros(len(first), np.min_scalar_type(len(order) - 1))
    numbers[order] = np.arange(len(order))
    return Classes(numbers[offsets], [low + offset for offset in order.tolist()])


def _encoded(column: pa.ChunkedArray) -> Classes:
    """The classes of any column, as Arrow finds them, which numbers them by their first rows too."""
    if not len(column) or pa.types.is_null(column.type):
        return Classes(np.zeros(len(column), np.uint8), [None] * bool(len(column)))
    encoded = one_chunk(column).dictionary_encode()
    distinct = to_numpy(encoded.dictionary, nullable=False)
    # Of times, numpy keeps what Python's types would round.
    values = list(distinct) if distinct.dtype.kind in "mM" else distinct.tolist()
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


def _ordered(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Unsigned ints in the values' order, of memory of their own, and which values are missing or nan."""
    kind = column.type
    if is_text(kind) or pa.types.is_null(kind):
        codes, values = _encoded(column)
        is_none = np.array([value is None for value in values], bool)
        present = sorted(np.flatnonzero(~is_none).tolist(), key=values.__getitem__)
        ranks = np.zeros(len(values), np.uint64)
        ranks[present] = np.arange(len(present))
        return ranks[codes], is_none[codes]
    array = one_chunk(column)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if array.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        array = array.fill_null(pa.scalar(0).cast(kind))
    numbers = to_numpy(array, nullable=array.null_count > 0)
    if numbers.dtype.kind in "bu":
        return numbers.astype(np.uint64), missing
    if numbers.dtype.kind == "f":
        # Of what is below zero more bits are less.
        bits = numbers.astype(np.float64).view(np.int64)
        missing, signed = np.isnan(numbers), np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    elif numbers.dtype.kind in "mM":
        missing, signed = np.isnat(numbers), numbers.view(np.int64)
    else:
        signed = numbers.astype(np.int64)
    return signed.view(np.uint64) ^ np.uint64(1 << 63), missing
