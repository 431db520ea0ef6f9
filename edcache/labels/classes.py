"""The values of a column as small numbers: which are equal, and which come first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edcache.errors import LabelTypeError
from edcache.labels.values import widened_float16
from edcache.labels.view import Labels, is_text, one_chunk, to_numpy

# Integers of so small a range are looked up in a table instead of being hashed.
_SMALL_RANGE = 1 << 16


class Classes(NamedTuple):
    """The distinct values of a column.

    codes: unsigned ints [num_rows], of the smallest dtype: which of `values` each row has.
    values: in the order of their first rows, as Python has them; None is a missing value.
    """

    codes: npt.NDArray[Any]
    values: list[Any]


def classes(labels: Labels, name: str, asked_by: str) -> Classes:
    """The distinct values of a column, a missing one among them; all nans are one value.

    Raises:
        UnknownLabelError: no such column.
        LabelTypeError: 'label "boxes" is list<item: int64>; group_by() needs a column of single values'.
    """
    kind = _single(labels, name, asked_by)
    if not labels.num_rows:
        return Classes(np.empty(0, np.uint8), [])
    codes, values = _small_integers(labels, name, kind) or _encoded(labels.column(name))
    return _by_appearance(codes, values)


def sort_keys(labels: Labels, name: str, descending: bool) -> npt.NDArray[Any]:
    """Unsigned ints [num_rows] that are in the order of a column's values; missing ones and nans are last.

    Raises: as `classes`.
    """
    kind = _single(labels, name, "sort_by")
    if not labels.num_rows:
        return np.empty(0, np.uint8)
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
    kind = labels.whole_column(name).type
    if pa.types.is_nested(kind):
        raise LabelTypeError(f'label "{name}" is {kind}; {asked_by}() needs a column of single values')
    return kind


# ----------------------------------------------------------------------------------------- codes


def _small_integers(
    labels: Labels, name: str, kind: pa.DataType
) -> tuple[npt.NDArray[Any], list[Any]] | None:
    column = labels[name] if pa.types.is_integer(kind) else None
    if column is None or column.dtype.kind not in "iu":
        return None
    low, high = int(column.min()), int(column.max())
    if high - low >= _SMALL_RANGE:
        return None
    offsets = (column.astype(np.int64) if column.dtype.itemsize < 8 else column) - column.dtype.type(low)
    return offsets.astype(np.min_scalar_type(high - low)), list(range(low, high + 1))


def _encoded(column: pa.ChunkedArray) -> tuple[npt.NDArray[Any], list[Any]]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.uint8), [None]
    array = one_chunk(column)
    if pa.types.is_float16(array.type):
        array = widened_float16(array)
    encoded = array.dictionary_encode()
    found = to_numpy(encoded.dictionary, nullable=False)
    # Of times, numpy keeps what Python's types would round.
    values = list(found) if found.dtype.kind in "mM" else found.tolist()
    codes = encoded.indices
    if codes.null_count:
        codes = codes.fill_null(len(values))
        values.append(None)
    return codes.to_numpy(zero_copy_only=False), values


def _by_appearance(codes: npt.NDArray[Any], values: list[Any]) -> Classes:
    """Renumber the codes by their first rows; values without a row go."""
    count = len(codes)
    first = np.full(len(values), count, np.int64)
    # Of several rows with one code the one that is assigned last stays.
    first[codes[::-1]] = np.arange(count - 1, -1, -1)
    order = np.argsort(first, kind="stable")
    order = order[: int(np.count_nonzero(first < count))]
    dtype = np.min_scalar_type(max(len(order) - 1, 0))
    renumbered = np.zeros(len(values), dtype)
    renumbered[order] = np.arange(len(order), dtype=dtype)
    return Classes(renumbered[codes], [values[place] for place in order.tolist()])


# ------------------------------------------------------------------------------------------ order


def _ordered(
    labels: Labels, name: str, kind: pa.DataType
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Unsigned ints in the values' order, of memory of their own, and which values are missing."""
    if is_text(kind) or pa.types.is_null(kind):
        return _ranked(labels.column(name))
    if labels.whole_column(name).null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        array = one_chunk(labels.column(name))
        filled = to_numpy(array.fill_null(pa.scalar(0).cast(kind)), nullable=False)
        return _unsigned(filled, array.is_null().to_numpy(zero_copy_only=False))
    return _unsigned(labels[name], None)


def _ranked(column: pa.ChunkedArray) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
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
        # -0.0 becomes 0.0; of what is below it more bits are less.
        bits = (values.astype(np.float64) + 0.0).view(np.int64)
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
