"""A sample as named leaves of a few kinds, and the columns that leaves of many samples make."""

from __future__ import annotations

import datetime
import enum
import io
import pathlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from edcache.base import ExportError
from edcache.codec import ImageFile, children_of
from edcache.labels import ArrowColumn

_EXTENSIONS: Final = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}
_PNG_MODES: Final = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
_ATOMS: Final = (bool, int, float, str, type(None))
_KINDS: Final = {bool: "bool", int: "int", float: "float", complex: "complex", str: "text", bytes: "bytes"}
_MOST: Final = 2**63

Leaves = dict[str, Any]
"""Leaves by name: None, bool, int, float, complex, str, bytes, a date, a datetime, a numpy array, a `Picture`
or a list of the first five."""

Columns = dict[str, ArrowColumn]


class Picture(NamedTuple):
    """An image as the bytes of a file: extension without a dot, "jpg", "png", "bin" where nobody knows."""

    data: bytes
    extension: str


def leaves_of(sample: Any, place: str) -> Leaves:
    """The leaves of a sample by name: keys, indices and field names, with dots between; "" where it is one.

    Lists of plain values are one leaf. `place` is what messages begin with: "export(): sample 17".
    """
    leaves: Leaves = {}
    for path, value in _walked(sample, ()):
        name = ".".join(map(str, path))
        if name in leaves:
            raise ExportError(f'{place}: two fields are called "{name}"; rename one with with_transform()')
        leaves[name] = _plain(value, name, place)
    if not leaves:
        raise ExportError(f"{place}: it has no field; leave it out with a filter")
    return leaves


def _walked(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    children = children_of(value)
    if children is None or (isinstance(value, list) and all(type(item) in _ATOMS for item in value)):
        yield path, value
        return
    for key, child in children:
        yield from _walked(child, (*path, key))


def _plain(value: Any, name: str, place: str) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    for kind in _KINDS:
        if isinstance(value, kind):
            return kind(value)  # numpy's float64 and str_ are subclasses
    if value is None or isinstance(value, datetime.date | list):
        return value
    if isinstance(value, torch.Tensor):
        try:
            return value.detach().cpu().numpy()
        except (TypeError, RuntimeError):
            raise refused(place, name, value, "numpy has no such type") from None
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if isinstance(value, ImageFile):
        return Picture(value.data, _EXTENSIONS.get(value.format or "", "bin"))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, pathlib.PurePath | uuid.UUID):
        return str(value)
    if isinstance(value, datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if hasattr(value, "mode") and hasattr(value, "getpixel"):
        return _png(value, name, place)
    raise refused(place, name, value, "no format holds that")


def _png(image: Any, name: str, place: str) -> Picture:
    if image.mode not in _PNG_MODES:
        raise refused(place, name, image, f"a PNG has no mode {image.mode!r}")
    file = io.BytesIO()
    image.save(file, "PNG")
    return Picture(file.getvalue(), "png")


def refused(place: str, name: str, value: object, why: str) -> ExportError:
    """The error for a leaf that a format cannot hold."""
    if isinstance(value, np.ndarray):
        kind = f"an array of {value.dtype} {value.shape}"
    elif isinstance(value, torch.Tensor):
        kind = f"a tensor of {value.dtype} {tuple(value.shape)}"
    elif isinstance(value, Picture):
        kind = f"an image (.{value.extension})"
    else:
        kind = f"of type {type(value).__name__}"
    field = f'field "{name}"' if name else "it"
    return ExportError(
        f"{place}: {field} is {kind}; {why}; leave it out with select(), or make something else of it with "
        "with_transform()"
    )


def nbytes_of(leaves: Leaves) -> int:
    """About so many bytes takes a sample."""
    nbytes = 64
    for value in leaves.values():
        if isinstance(value, np.ndarray):
            nbytes += value.nbytes
        elif isinstance(value, Picture):
            nbytes += len(value.data)
        else:
            nbytes += len(value) if isinstance(value, str | bytes) else 8
    return nbytes


def columns_of(leaves: Leaves, place: str, to: str, arrays: str) -> Columns:
    """The columns that one sample needs, in a format that holds arrays of some of numpy's kinds."""
    return {name: _column(name, value, place, to, arrays) for name, value in leaves.items()}


def _column(name: str, value: Any, place: str, to: str, arrays: str) -> ArrowColumn:
    if value is None:
        return ArrowColumn(name, "null", is_nullable=True)
    if isinstance(value, complex) and "c" not in arrays:
        raise refused(place, name, value, f"{to} holds no complex numbers")
    numbers = value if type(value) is list else [value]
    if any(type(number) is int and not -_MOST <= number < _MOST for number in numbers):
        raise refused(place, name, value, f"a column of {to} holds integers from -2**63 to 2**63 - 1")
    if type(value) in _KINDS:
        return ArrowColumn(name, _KINDS[type(value)])
    if isinstance(value, Picture):
        return ArrowColumn(name, "image")
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in arrays or not value.dtype.isnative:
            held = "arrays of bool, int and float" + (", complex too" if "c" in arrays else "")
            raise refused(place, name, value, f"{to} holds {held} in the byte order of this machine")
        return ArrowColumn(name, "array", value.dtype.name, value.shape, value.ndim)
    if isinstance(value, datetime.datetime):
        return ArrowColumn(name, "datetime" if value.tzinfo is None else "datetime with a zone")
    if isinstance(value, datetime.date):
        return ArrowColumn(name, "date")
    kinds = {_KINDS[type(item)] for item in value if item is not None}
    if len(kinds) > 1:
        raise refused(place, name, value, f"its values are {' and '.join(sorted(kinds))}")
    return ArrowColumn(name, "list", kinds.pop() if kinds else "null")


def joined(samples: Iterable[tuple[Columns, str]]) -> Columns:
    """The columns that hold what all samples show; what messages about each begin with comes with it."""
    known: dict[str, tuple[ArrowColumn, str, int]] = {}
    count = 0
    for shown, place in samples:
        count += 1
        for name, column in shown.items():
            before, where, times = known.get(name, (column, place, 0))
            both = _common(before, column)
            if both is None:
                raise ExportError(
                    f'{place}: field "{name}" is {_described(column)}, and {_described(before)} in another '
                    f"sample ({where}); a column has one type: make it one with with_transform(), or leave "
                    "it out with select()"
                )
            known[name] = both, place, times + 1
    return {
        name: replace(column, is_nullable=column.is_nullable or times < count)
        for name, (column, _, times) in known.items()
    }


def _common(old: ArrowColumn, new: ArrowColumn) -> ArrowColumn | None:
    """The column that holds the values of two; None where there is none."""
    if old == new:
        return old
    is_nullable = old.is_nullable or new.is_nullable
    if "null" in (old.kind, new.kind):
        return replace(new if old.kind == "null" else old, is_nullable=True)
    if old.kind == new.kind == "list" and "null" in (old.dtype, new.dtype):
        return replace(old if new.dtype == "null" else new, is_nullable=is_nullable)
    if (old.kind, old.dtype, old.ndim) == (new.kind, new.dtype, new.ndim):
        return replace(old, shape=old.shape if old.shape == new.shape else None, is_nullable=is_nullable)
    return None


def check_fits(columns: Mapping[str, ArrowColumn], shown: Mapping[str, ArrowColumn], place: str) -> None:
    """Refuse a sample that is otherwise than those that were looked at."""
    for name in columns.keys() | shown.keys():
        known, now = columns.get(name), shown.get(name, ArrowColumn(name, "null"))
        if known is None or _common(known, now) != known:
            before = "in no sample" if known is None else _described(known)
            raise ExportError(
                f'{place}: field "{name}" is {_described(now)}, and was {before} when samples '
                "were looked at; a transform must give the same every time"
            )


def _described(column: ArrowColumn) -> str:
    if column.kind == "array":
        shape = f"of {column.ndim} dimensions" if column.shape is None else column.shape
        return f"an array of {column.dtype} {shape}"
    return f"a list of {column.dtype}" if column.kind == "list" else column.kind
