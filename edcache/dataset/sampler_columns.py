"""Columns for samplers: one value, number or class for each sample."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Ints, OptionError, described
from edcache.dataset.indexing import Readable
from edcache.dataset.ordering import grouped
from edcache.format import detached, fits_arrow, pa
from edcache.labels import classes_of, comparable

Column = str | npt.ArrayLike
"""A label's name, or one value for each sample."""


def column_of(ds: Sized, column: Column) -> npt.NDArray[Any]:
    """Return one value per sample: [len(ds)]."""
    labels: Mapping[str, npt.NDArray[Any]] | None = getattr(ds, "labels", None)
    if isinstance(column, str) and labels is None:
        raise OptionError(f"{type(ds).__name__} has no labels; give an array, one value for each sample")
    if isinstance(column, str) and isinstance(ds, Readable):
        ds._root._warn_of_absent(ds, "a sampler by labels", column)
    try:
        values = labels[column] if isinstance(column, str) and labels else np.asarray(detached(column))
    except ValueError as error:
        raise OptionError(f"{described(column)}: {error}; give one value for each sample") from error
    if values.ndim != 1:
        raise OptionError(f"{_named(column)} of shape {list(values.shape)}; give one value for each sample")
    if len(values) != len(ds):
        raise OptionError(f"{len(values):,} values for {len(ds):,} samples; give one for each")
    return values


def numbers_of(ds: Sized, column: Column) -> npt.NDArray[Any]:
    """Return one number per sample, none missing: [len(ds)], integers, floats or bools."""
    values = column_of(ds, column)
    missing = _is_missing(values)
    if missing.any():
        at = int(missing.argmax())
        raise OptionError(
            f"{_named(column)}: sample {at} has no value; filter() such samples out, or give an array"
        )
    if values.dtype == object:
        # Such are the labels of a view without missing values.
        listed = values.tolist()
        if all(isinstance(value, (int, float)) for value in listed):
            values = np.array(listed, None if listed else np.int64)
    if values.dtype.kind not in "iufb":
        raise OptionError(f"{_named(column)} of {values.dtype}; give numbers")
    return values


def _named(column: Column) -> str:
    return f'label "{column}"' if isinstance(column, str) else "an array"


def _is_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mark missing values: None, nan or NaT, by dtype."""
    if values.dtype == object:
        return np.fromiter((value is None for value in values.tolist()), bool, len(values))
    return np.asarray(values != values)


def by_class(values: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Group positions by class, as `grouped`, without missing values.

    Numbers and times come by rising class, others as they appear.
    """
    exact = values if fits_arrow(values) else values.astype(object)
    try:
        column = pa.array(exact, from_pandas=True)
        codes, classes = classes_of(comparable(pa.chunked_array([column])))
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise OptionError(
            f"classes of {type(values[0]).__name__}: {error}; give single values of one type"
        ) from error
    kept = [code for code, value in enumerate(classes) if value is not None]
    if values.dtype.kind in "iufbmM":
        kept.sort(key=classes.__getitem__)
    numbers = np.full(len(classes), len(kept), np.min_scalar_type(len(kept)))
    numbers[kept] = np.arange(len(kept))
    positions, ends = grouped(numbers[codes], len(kept) + 1)
    return positions[: ends[-2]], ends[:-1]
