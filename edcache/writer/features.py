"""Samples of a Hugging Face dataset with the dtypes that its features declare.

Without a format, such a dataset gives lists of Python numbers for whatever is an array in its features. They
become arrays of the declared dtype again: ArrayXD whole, and sequences of numbers one by one, so that ragged
ones stay possible. What is None, or has a None in it, stays as it is. So do scalars, texts, times and what
`datasets` decodes itself. A dataset with a format (`with_format`, `set_transform`) gives what that says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from torch.utils.data import Dataset, IterableDataset

_NUMBERS: Final = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
_Way = Callable[[Any], Any]


def declared(source: Any) -> Any:
    """A source whose samples have the dtypes that it declares; the source itself where it declares none."""
    datasets: Any = sys.modules.get("datasets")
    if datasets is None or not isinstance(source, (datasets.Dataset, datasets.IterableDataset)):
        return source
    is_stream = isinstance(source, datasets.IterableDataset)
    is_plain = source._formatting is None if is_stream else source.format["type"] is None
    if not is_plain or way_of(dict(source.features or {})) is None:
        return source
    return _Stream(source) if is_stream else _Rows(source)


def way_of(feature: Any) -> _Way | None:
    """How a value of a feature, a dict of these or a list of one gets its dtype; None where it has it."""
    if isinstance(feature, dict):
        ways = {key: way for key, inner in feature.items() if (way := way_of(inner)) is not None}
        return _fields(ways) if ways else None
    dtype = _NUMBERS.get(getattr(feature, "dtype", None) or "")
    if hasattr(feature, "shape"):
        return None if dtype is None else _array(dtype, tuple(feature.shape))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is None:
        return None
    if isinstance(inner, dict) and not isinstance(feature, list) and type(feature).__name__ == "Sequence":
        return way_of({key: type(feature)(each) for key, each in inner.items()})
    number = None if hasattr(inner, "shape") else _NUMBERS.get(getattr(inner, "dtype", None) or "")
    return _items(way_of(inner)) if number is None else _array(number, (None,))


def _fields(ways: dict[str, _Way]) -> _Way:
    def typed(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: ways[key](item) if key in ways else item for key, item in value.items()}

    return typed


def _array(dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> _Way:
    def typed(value: Any) -> Any:
        if not isinstance(value, list) or _has_none(value):
            return value
        return np.array(value, dtype) if value else np.empty((0, *shape[1:]), dtype)

    return typed


def _has_none(value: list[Any]) -> bool:
    # numpy would make a nan of it.
    if value and isinstance(value[0], list):
        return any(item is None or _has_none(item) for item in value)
    return None in value


def _items(way: _Way | None) -> _Way | None:
    if way is None:
        return None
    return lambda value: [way(item) for item in value] if isinstance(value, list) else value


class _Rows(Dataset[Any]):
    def __init__(self, source: Any) -> None:
        self._source = source
        self._typed: Any = None

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        if self._typed is None:
            self._typed = way_of(dict(self._source.features))
        return self._typed(self._source[index])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_typed": None}


class _Stream(IterableDataset[Any]):
    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        typed: Any = way_of(dict(self._source.features))
        return map(typed, self._source)
