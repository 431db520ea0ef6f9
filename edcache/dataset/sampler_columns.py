"""A column of labels, or an array, as what a sampler can use."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.base import Ints, OptionError, described
from edcache.format import detached

Column = str | npt.ArrayLike
"""A label's name, or one value for each sample."""


def column_of(ds: Any, column: Column) -> npt.NDArray[Any]:
    """One value per sample: [len(ds)].

    Raises:
        OptionError: "7 values for 10 samples; give one for each"; or several values a sample, or no labels.
        UnknownLabelError: the dataset has no such label.
    """
    if isinstance(column, str) and not hasattr(ds, "labels"):
        raise OptionError(f"{type(ds).__name__} has no labels; give an array, one value for each sample")
    try:
        values = ds.labels[column] if isinstance(column, str) else np.asarray(detached(column))
    except ValueError as error:
        raise OptionError(f"{described(column)}: {error}; give one value for each sample") from error
    if values.ndim != 1:
        raise OptionError(f"{_named(column)} of shape {list(values.shape)}; give one value for each sample")
    if len(values) != len(ds):
        raise OptionError(f"{len(values):,} values for {len(ds):,} samples; give one for each")
    return values


def numbers_of(ds: Any, column: Column) -> npt.NDArray[Any]:
    """One number per sample, none missing: [len(ds)], integers, floats or bools.

    Raises:
        OptionError: 'label "n_tokens": sample 3 has no value; ...'; or no numbers.
    """
    values = column_of(ds, column)
    missing = _is_missing(values)
    if missing.any():
        raise OptionError(
            f"{_named(column)}: sample {int(missing.argmax())} has no value; filter() such samples out, "
            "or give an array"
        )
    if values.dtype == object:
        # As the labels of a view are without those that have none.
        listed = values.tolist()
        if all(isinstance(value, (int, float)) for value in listed):
            values = np.array(listed, None if listed else np.int64)
    if values.dtype.kind not in "iufb":
        raise OptionError(f"{_named(column)} of {values.dtype}; give numbers")
    return values


def _named(column: Column) -> str:
    return f'label "{column}"' if isinstance(column, str) else "an array"


def _is_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a column has no value: None, nan or NaT, as the dtype has it."""
    if values.dtype == object:
        return np.fromiter((value is None for value in values.tolist()), bool, len(values))
    if values.dtype.kind in "fcmM":
        is_other: npt.NDArray[np.bool_] = values != values
        return is_other
    return np.zeros(len(values), bool)


def grouped(values: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Places of equal values, group by group; missing values are left out.

    Returns:
        places, int64 [n]: indices into values, ascending within a group. starts, int64 [groups + 1]: group
        g is places[starts[g]:starts[g + 1]].
    """
    if values.dtype.kind in "iufbmM":
        missing = _is_missing(values)
    else:
        values = _numbered(values)
        missing = values < 0
    if missing.any():
        present = np.flatnonzero(~missing)
        places = present[ascending(values[present])]
    else:
        places = ascending(values)
    ordered = values[places]
    return places, np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True])))


def ascending(values: npt.NDArray[Any]) -> Ints:
    """The stable argsort."""
    if values.dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < 1 << 16:
            # Modulo 2**16, which no dtype is too narrow for.
            return base.stable_order(values.astype(np.uint16) - np.uint16(low % (1 << 16)))
    return np.argsort(values, kind="stable")


def _numbered(values: npt.NDArray[Any]) -> Ints:
    """Equal values get equal numbers, in order of appearance, missing ones get -1.

    Sorting ten million objects takes ten times longer.
    """
    numbers: defaultdict[Any, int] = defaultdict(count().__next__)
    try:
        codes = np.fromiter(map(numbers.__getitem__, values.tolist()), np.int64, len(values))
    except TypeError:
        raise OptionError(f"classes of {type(values[0]).__name__}; give single values") from None
    missing = [number for value, number in numbers.items() if _is_nothing(value)]
    if missing:
        codes[np.isin(codes, missing)] = -1
    return codes


def _is_nothing(value: Any) -> bool:
    """Whether an object is None, a nan, a NaT, or pandas' NA, which does not say whether it is itself."""
    if value is None or type(value).__name__ == "NAType":
        return True
    is_other = value != value
    return is_other is True or is_other is np.True_
