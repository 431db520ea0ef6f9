"""Datasets of other libraries: KappaData's by items; Hugging Face's with their dtypes; any by columns.

Without a format, one of Hugging Face gives lists of Python numbers for arrays. They become arrays: ArrayXD
whole, and sequences of numbers one by one, so that ragged ones stay possible. A None, and a list with a None in it,
stays as it is. A dataset with a format (`with_format`, `set_transform`) gives its samples in that format.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from edcache.codec import Columns

_DTYPES: Final = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_NUMBERS: Final = {dtype.name: dtype for dtype in map(np.dtype, _DTYPES)}
# Features whose values are stored in the table, and made by no code of the user's nor a decoder of images or sounds.
_DATA: Final = {"Value", "ClassLabel", "Sequence", "List", "LargeList", *(f"Array{n}D" for n in range(2, 6))}
_Converter = Callable[[Any], Any]
Ask: TypeAlias = Callable[[list[int]], Any]
"""Gives samples of a source: a list of them, Columns, or a dict or a tuple of columns."""


def is_stream(source: Any) -> bool:
    """True if a source is iterated, because it is no map-style dataset."""
    if isinstance(source, IterableDataset):
        return True
    is_map = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return hasattr(source, "__iter__") and not is_map


def declared(source: Any) -> Any:
    """Wrap a source so that samples have the dtypes that it declares; return it as it is if it declares none."""
    datasets: Any = sys.modules.get("datasets")
    if datasets is None or not isinstance(source, (datasets.Dataset, datasets.IterableDataset)):
        return source
    is_stream = isinstance(source, datasets.IterableDataset)
    is_plain = source._formatting is None if is_stream else source.format["type"] is None
    convert = converter_of(dict(source.features or {})) if is_plain else None
    if convert is None:
        return source
    return _FeatureStream(source, convert) if is_stream else _FeatureRows(source, convert)


def by_items(source: Any) -> Any:
    """Wrap a KDDataset, which has getitem_x in place of [index], so that samples are dicts; return any other."""
    read = getattr(type(source), "__getitem__", None)
    if read is not None and not str(getattr(read, "__module__", "")).startswith("kappadata.datasets."):
        return source
    attributes = {*dir(source), *dir(getattr(source, "root_dataset", None))}
    names = sorted(name[8:] for name in attributes if name.startswith("getitem_"))
    return _Items(source, names) if names else source


class _Items(Dataset[Any]):
    def __init__(self, source: Any, names: list[str]) -> None:
        self.source, self.names = source, names
        self.in_memory_keys = getattr(source, "in_memory_keys", None)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        context: dict[str, Any] = {}  # items of one sample may share what they draw
        items = {name: getattr(self.source, f"getitem_{name}")(index, context) for name in self.names}
        return {"index": index, **items}


def root_of(source: Any) -> Any:
    """Return the source that a Subset is of, at any depth."""
    while type(source) is Subset:
        source = source.dataset
    return source


def rows_in_root(source: Any, indices: list[int]) -> list[int]:
    """Return indices of a Subset as its root numbers them."""
    while type(source) is Subset:
        indices = [operator.index(source.indices[index]) for index in indices]
        source = source.dataset
    return indices


def batches_of(source: Any) -> tuple[Ask | None, bool]:
    """Return a function that gives many samples of a source, or None; and True if it takes any number of them."""
    root = root_of(source)
    ask = _columns_of(root)
    takes_any = ask is not None
    inner = ask or _getitems(root)
    if root is source or inner is None:
        return inner, takes_any
    # A table of `datasets` takes none that count from its end.
    count = len(root) if takes_any else 0
    return lambda rows: inner([row + count * (row < 0) for row in rows_in_root(source, rows)]), takes_any


def _getitems(source: Any) -> Ask | None:
    """Return the method `__getitems__` if it gives the same samples as `__getitem__`.

    It may not if a class overrides `__getitem__` alone, or hands on attributes by `__getattr__`, nor if one of torch's
    own calls what has the name there. Batches of a table of `datasets` may have other types than its rows.
    """
    datasets: Any = sys.modules.get("datasets")
    if datasets is not None and isinstance(source, datasets.Dataset):
        return None
    for kind in type(source).__mro__:
        if "__getitems__" in vars(kind):
            ask: Ask = source.__getitems__
            return None if kind.__module__.startswith("torch.utils.data.") else ask
        if "__getitem__" in vars(kind):
            return None
    return None


def _columns_of(source: Any) -> Ask | None:
    """Return a function that gives samples as columns; None unless they are rows of plain data."""
    if type(source) is TensorDataset:
        tensors = source.tensors
        if all(type(tensor) is torch.Tensor and len(tensor) == len(source) for tensor in tensors):
            return lambda rows: Columns(tuple(tensor[_run(rows)] for tensor in tensors))
        return None
    converters, table = (source.converters, source.source) if type(source) is _FeatureRows else ({}, source)
    datasets: Any = sys.modules.get("datasets")
    if datasets is None or type(table) is not datasets.Dataset or not table.column_names:
        return None
    features = [table.features[name] for name in table.format["columns"]]
    if table.format["type"] is None:
        return partial(_lists, table, converters) if all(map(_is_data, features)) else None
    is_plain = table.format["type"] in ("torch", "numpy") and len(features) == len(table.column_names)
    # Of None, or of lists that differ in length, a column makes another type than a row does.
    is_plain = is_plain and all(getattr(feature, "dtype", None) in _NUMBERS for feature in features)
    is_plain = is_plain and not any(hasattr(feature, "shape") for feature in features)
    if is_plain and not any(column.null_count for column in table.data.columns):
        with suppress(Exception):  # one by one, the sample raises it, if any does
            _arrays(table, [0])
            return partial(_arrays, table)
    return None


def _run(rows: list[int]) -> slice | list[int]:
    """Rows that follow one another as a slice, which copies nothing."""
    is_run = rows[0] >= 0 and rows == [*range(rows[0], rows[0] + len(rows))]
    return slice(rows[0], rows[-1] + 1) if is_run else rows


def _is_data(feature: Any) -> bool:
    if isinstance(feature, dict | list):
        return all(map(_is_data, feature.values() if isinstance(feature, dict) else feature))
    return type(feature).__name__ in _DATA and _is_data(getattr(feature, "feature", []))


def _lists(table: Any, converters: dict[str, _Converter], rows: list[int]) -> Columns:
    columns = table[_run(rows)]
    return Columns(
        {
            name: list(map(converters[name], values) if name in converters else values)
            for name, values in columns.items()
        }
    )


def _arrays(table: Any, rows: list[int]) -> Columns:
    """Return columns of rows; TypeError if a row has another type, as have floats with the format of numpy."""
    columns = Columns(dict(table[_run(rows)]))
    for one, other in zip(table[rows[0]].items(), columns.at(0).items(), strict=True):
        if [*map(_kind, one)] != [*map(_kind, other)]:
            raise TypeError(f"{one} is {other} in its column")
    return columns


def _kind(value: Any) -> Any:
    return type(value), getattr(value, "dtype", value), getattr(value, "shape", None)


def converter_of(feature: Any) -> _Converter | None:
    """Return the conversion of a value of a feature, a dict of these or a list of one; None if it has its dtype."""
    if isinstance(feature, dict):
        converters = {
            key: convert for key, inner in feature.items() if (convert := converter_of(inner)) is not None
        }
        return partial(_fields, converters) if converters else None
    dtype = _NUMBERS.get(getattr(feature, "dtype", None) or "")
    if hasattr(feature, "shape"):
        return None if dtype is None else partial(_array, dtype, tuple(feature.shape))
    inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if inner is None:
        return None
    if isinstance(inner, dict) and not isinstance(feature, list) and type(feature).__name__ == "Sequence":
        return converter_of({key: type(feature)(each) for key, each in inner.items()})
    number = None if hasattr(inner, "shape") else _NUMBERS.get(getattr(inner, "dtype", None) or "")
    if number is not None:
        return partial(_array, number, (None,))
    convert = converter_of(inner)
    return None if convert is None else partial(_items, convert)


def _fields(converters: dict[str, _Converter], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: converters[key](item) if key in converters else item for key, item in value.items()}


def _items(convert: _Converter, value: Any) -> Any:
    return [convert(item) for item in value] if isinstance(value, list) else value


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
    def __init__(self, source: Any, convert: _Converter) -> None:
        self.source = source
        self._convert = convert


class _FeatureRows(_Declared, Dataset[Any]):
    @property
    def converters(self) -> dict[str, _Converter]:
        """Converters of the columns that have one."""
        return self._convert.args[0]  # type: ignore[attr-defined,no-any-return]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self._convert(self.source[index])


class _FeatureStream(_Declared, IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(self._convert, self.source)
