"""Samples of a Hugging Face dataset with the dtypes that its features declare.

Without a format, such a dataset gives lists of Python numbers for arrays. They become arrays again: ArrayXD
whole, and sequences of numbers one by one, so that ragged ones stay possible. What is None, or has a None in
it, stays as it is. A dataset with a format (`with_format`, `set_transform`) gives what that says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
from torch.utils.data import Dataset, IterableDataset

_DTYPES: Final = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_NUMBERS: Final = {dtype.name: dtype for dtype in map(np.dtype, _DTYPES)}
_Way = Callable[[Any], Any]


def declared(source: Any) -> Any:
    """A source whose samples have the dtypes that it declares; the source itself where it declares none."""
    datasets: Any = sys.modules.get("datasets")
    if datasets is None or not isinstance(source, (datasets.Dataset, datasets.IterableDataset)):
        return source
    is_stream = isinstance(source, datasets.IterableDataset)
    is_plain = source._formatting is None if is_stream else source.format["type"] is None
    way = way_of(dict(source.features or {})) if is_plain else None
    if way is None:
        return source
    return _FeatureStream(source, way) if is_stream else _FeatureRows(source, way)


def way_of(feature: Any) -> _Way | None:
    """How a value of a feature, a dict of these or a list of one gets its dtype; None where it has it."""
    if isinstance(feature, dict):
        ways = {key: way for key, inner in feature.items() if (way := way_of(inner)) is not None}
        return partial(_fields, ways) if ways else None
    dtype = _NUMBERS.get(getattr(feature, "dtype", None) or "")
    if hasattr(feature, "shape"):
        return None if dtype is None else partial(_array, dtype, tuple(feature.shape))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is None:
        return None
    if isinstance(inner, dict) and not isinstance(feature, list) and type(feature).__name__ == "Sequence":
        return way_of({key: type(feature)(each) for key, each in inner.items()})
    number = None if hasattr(inner, "shape") else _NUMBERS.get(getattr(inner, "dtype", None) or "")
    if number is not None:
        return partial(_array, number, (None,))
    way = way_of(inner)
    return None if way is None else partial(_items, way)


def _fields(ways: dict[str, _Way], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: ways[key](item) if key in ways else item for key, item in value.items()}


def _items(way: _Way, value: Any) -> Any:
    return [way(item) for item in value] if isinstance(value, list) else value


def _array(dtype: np.dtype[Any], shape: tuple[int | None, ...], value: Any) -> Any:
    if not isinstance(value, list) or _has_none(value):
        return value
    return np.array(value, dtype) if value else np.empty((0, *shape[1:]), dtype)


def _has_none(value: list[Any]) -> bool:
    # numpy would make a nan of it.
    if value and isinstance(value[0], list):
        return any(item is None or _has_none(item) for item in value)
    return None in value


class _Declared:
    def __init__(self, source: Any, way: _Way) -> None:
        self._source = source
        self._way = way


class _FeatureRows(_Declared, Dataset[Any]):
    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        return self._way(self._source[index])


class _FeatureStream(_Declared, IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(self._way, self._source)
