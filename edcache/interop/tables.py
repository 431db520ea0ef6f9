"""Datasets of other libraries as sources: KappaData's by items; Hugging Face's with their dtypes, and by columns.

Without a format, one of Hugging Face gives lists of Python numbers for arrays. They become arrays: ArrayXD
whole, and sequences of numbers one by one, so that ragged ones stay possible. A None, and a list with a None in it,
stays as it is. A dataset with a format (`with_format`, `set_transform`) gives its samples in that format.

A fill finds these functions by their names (writer/source.py), since this room stands above it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from edcache.codec import Columns
from edcache.writer import run_of

_DTYPES: Final = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_NUMBERS: Final = {dtype.name: dtype for dtype in map(np.dtype, _DTYPES)}
# Features whose values are stored in the table, and made by no code of the user's nor a decoder of images or sounds.
_DATA: Final = {"Value", "ClassLabel", "Sequence", "List", "LargeList", *(f"Array{n}D" for n in range(2, 6))}
_Converter = Callable[[Any], Any]


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
    attributes = {*dir(source), *dir(getattr(source, "root_dataset", None))}
    names = sorted(name[8:] for name in attributes if name.startswith("getitem_"))
    return _Items(source, names) if names else source


class _Items(Dataset[Any]):
    def __init__(self, source: Any, names: list[str]) -> None:
        self.source, self.names = source, names
        self.in_memory_keys = getattr(source, "in_memory_keys", None)
        # A ModeWrapper says whether its samples come with their context; a KDDataset leaves it to one later.
        self._has_context = getattr(source, "return_ctx", True)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        context: dict[str, Any] = {}  # items of one sample may share what they draw
        items = {name: getattr(self.source, f"getitem_{name}")(index, context) for name in self.names}
        kept = {"ctx": context} if context and self._has_context else {}
        return {"index": index, **items, **kept}


def is_table(source: Any) -> bool:
    """True if a source is a table of `datasets`, whose batches may have other types than its rows."""
    datasets: Any = sys.modules.get("datasets")
    return datasets is not None and isinstance(source, datasets.Dataset | _FeatureRows)


def columns_of(source: Any) -> Callable[[list[int]], Columns] | None:
    """Return a function that gives samples of a table as columns; None unless they are rows of plain data."""
    converters, table = (source.converters, source.source) if type(source) is _FeatureRows else ({}, source)
    if type(table) is not sys.modules["datasets"].Dataset or not table.column_names:
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


def _is_data(feature: Any) -> bool:
    if isinstance(feature, dict | list):
        return all(map(_is_data, feature.values() if isinstance(feature, dict) else feature))
    return type(feature).__name__ in _DATA and _is_data(getattr(feature, "feature", []))


def _lists(table: Any, converters: dict[str, _Converter], rows: list[int]) -> Columns:
    columns = table[run_of(rows)]
    return Columns(
        {
            name: list(map(converters[name], values) if name in converters else values)
            for name, values in columns.items()
        }
    )


def _arrays(table: Any, rows: list[int]) -> Columns:
    """Return columns of rows; TypeError if a row has another type, as have floats with the format of numpy."""
    columns = Columns(dict(table[run_of(rows)]))
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


class _FeatureRows(Dataset[Any]):
    def __init__(self, source: Any, convert: _Converter) -> None:
        self.source, self._convert = source, convert

    @property
    def converters(self) -> dict[str, _Converter]:
        """Converters of the columns that have one."""
        return self._convert.args[0]  # type: ignore[attr-defined,no-any-return]

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self._convert(self.source[index])


class _FeatureStream(IterableDataset[Any]):
    def __init__(self, source: Any, convert: _Converter) -> None:
        self.source, self._convert = source, convert

    def __iter__(self) -> Iterator[Any]:
        return map(self._convert, self.source)
