"""A column of labels, or an array, as what a sampler can use."""

from __future__ import annotations

from collections import defaultdict
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import ordering
from edcache.errors import OptionError
from edcache.labels.arrays import detached
from edcache.labels.wording import described
from edcache.ordering import Ints

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
    missing = is_missing(values)
    if missing.any():
        raise OptionError(
            f"{_named(column)}: sample {int(missing.argmax())} has no value; filter() such samples out, "
            "or give an array"
        )
    if values.dtype == object:
        # As the labels of a view are without those that have none.
        values = _plain(values)
    if values.dtype.kind not in "iufb":
        raise OptionError(f"{_named(column)} of {values.dtype}; give numbers")
    return values


def _plain(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    listed = values.tolist()
    if not all(isinstance(value, (int, float)) for value in listed):
        return values
    return np.array(listed, None if listed else np.int64)


def is_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a column has no value: None, nan or NaT, as the dtype has it."""
    missing = np.zeros(len(values), bool)
    if values.dtype.kind in "fc":
        np.isnan(values, out=missing)
    elif values.dtype.kind in "mM":
        np.isnat(values, out=missing)
    elif values.dtype == object:
        missing[:] = [value is None for value in values.tolist()]
    return missing


def _is_nothing(value: Any) -> bool:
    """Whether an object is None, a nan, a NaT, or pandas' NA, which does not say whether it is itself."""
    if value is None or type(value).__name__ == "NAType":
        return True
    is_other = value != value
    return is_other is True or is_other is np.True_


def grouped(values: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Places of equal values, group by group; missing values are left out.

    Returns:
        places, int64 [n]: indices into values, ascending within a group. starts, int64 [groups + 1]: group
        g is places[starts[g]:starts[g + 1]].
    """
    if values.dtype.kind not in "iufbmM":
        values = _numbered(values)
        missing = values < 0
    else:
        missing = is_missing(values)
    if not missing.any():
        return _grouped(values)
    present = np.flatnonzero(~missing)
    places, starts = _grouped(values[present])
    return present[places], starts


def _grouped(values: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    small = _small(values)
    if small is not None:
        places, ends = ordering.grouped(small, int(small.max()) + 1)
        return places, ends[np.append(True, ends[1:] > ends[:-1])]
    places = np.argsort(values, kind="stable")
    ordered = values[places]
    return places, np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1], [True])))


def ascending(values: npt.NDArray[Any]) -> Ints:
    """The stable argsort of integers."""
    small = _small(values)
    return np.argsort(values, kind="stable") if small is None else ordering.stable_order(small)


def _small(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16] | None:
    """Integers that span less than 65,536 in two bytes, which numpy sorts by radix; None for others."""
    if values.dtype.kind not in "iu" or not len(values):
        return None
    low, high = int(values.min()), int(values.max())
    # Modulo 2**16, which no dtype is too narrow for.
    return values.astype(np.uint16) - np.uint16(low % (1 << 16)) if high - low < 1 << 16 else None


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


def _named(column: Column) -> str:
    return f'label "{column}"' if isinstance(column, str) else "an array"
