"""Leaves of a sample by name, of a few kinds, and the columns of the leaves of many samples."""

from __future__ import annotations

import datetime
import enum
import io
import pathlib
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from edcache.base import CodecError
from edcache.codec import ImageFile
from edcache.codec import leaves_of as walk
from edcache.format import number_type, numpy_dtype, pa
from edcache.interop.arrow_columns import ArrowColumn

_EXTENSIONS: Final = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}
_PNG_MODES: Final = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
_ATOMS: Final = (bool, int, float, str, type(None))
_PLAIN_KINDS: Final = (bool, int, float, complex, str, bytes)
_MOST: Final = 2**63

Leaves = dict[str, Any]
"""Leaves by name: None, bool, int, float, complex, str, bytes, a date, a datetime, a numpy array, an `EncodedImage` or
a list of the first five.
"""

Columns = dict[str, ArrowColumn]


class EncodedImage(NamedTuple):
    """Image as the bytes of a file: extension without a dot, "jpg", "png", or "bin" if unknown."""

    data: bytes
    extension: str


def leaves_of(sample: Any, place: str) -> Leaves:
    """Return the leaves of a sample by name: keys, indices and field names, with dots between; "" if it is one leaf.

    A list of plain values is one leaf. `place` begins messages: "export(): sample 17".
    """
    leaves: Leaves = {}
    for path, value in walk(sample, _is_leaf):
        name = ".".join(map(str, path))
        if name in leaves:
            raise CodecError(f'{place}: two fields are called "{name}"; rename one with with_transform()')
        leaves[name] = _plain(value, name, place)
    if not leaves:
        raise CodecError(f"{place}: it has no field; leave it out with a filter")
    return leaves


def _is_leaf(value: Any, depth: int) -> bool:
    return isinstance(value, list) and all(type(item) in _ATOMS for item in value)


def _plain(value: Any, name: str, place: str) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    for kinds, make in _PLAIN.items():
        if isinstance(value, kinds):
            return make(value)
    if isinstance(value, torch.Tensor):
        try:
            return value.detach().cpu().numpy()
        except (TypeError, RuntimeError):
            raise unsupported(place, name, value, "numpy has no such type") from None
    if hasattr(value, "mode") and hasattr(value, "getpixel"):
        return _png(value, name, place)
    raise unsupported(place, name, value, "no format holds that")


_PLAIN: Final[dict[Any, Callable[[Any], Any]]] = {
    **{kind: kind for kind in _PLAIN_KINDS},  # numpy's float64 and str_ are subclasses
    (type(None), datetime.date, list): lambda value: value,
    (np.ndarray, np.generic): np.asarray,
    ImageFile: lambda file: EncodedImage(file.data, _EXTENSIONS.get(file.format or "", "bin")),
    bytearray: bytes,
    (pathlib.PurePath, uuid.UUID): str,
    datetime.timedelta: datetime.timedelta.total_seconds,
}


def _png(image: Any, name: str, place: str) -> EncodedImage:
    if image.mode not in _PNG_MODES:
        raise unsupported(place, name, image, f"a PNG has no mode {image.mode!r}")
    file = io.BytesIO()
    image.save(file, "PNG")
    return EncodedImage(file.getvalue(), "png")


def unsupported(place: str, name: str, value: object, why: str) -> CodecError:
    """Make the error for a leaf that a format cannot hold."""
    if isinstance(value, np.ndarray):
        kind = f"an array of {value.dtype} {value.shape}"
    elif isinstance(value, torch.Tensor):
        kind = f"a tensor of {value.dtype} {tuple(value.shape)}"
    elif isinstance(value, EncodedImage):
        kind = f"an image (.{value.extension})"
    else:
        kind = f"of type {type(value).__name__}"
    field = f'field "{name}"' if name else "it"
    return CodecError(
        f"{place}: {field} is {kind}; {why}; leave it out with select(), or make something else of it with "
        "with_transform()"
    )


def nbytes_of(leaves: Leaves) -> int:
    """Estimate the bytes of a sample."""
    nbytes = 64
    for value in leaves.values():
        data = value.data if isinstance(value, EncodedImage) else value
        if isinstance(data, np.ndarray):
            nbytes += data.nbytes
        else:
            nbytes += len(data) if isinstance(data, str | bytes) else 8
    return nbytes


def columns_of(leaves: Leaves, place: str) -> Columns:
    """Return the columns of one sample."""
    return {name: _column(name, value, place) for name, value in leaves.items()}


@cache
def _types() -> dict[type, pa.DataType]:
    """Map classes of plain values to Arrow types."""
    plain = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
    return plain | {
        EncodedImage: pa.binary(),
        datetime.date: pa.date32(),
        datetime.datetime: pa.timestamp("us"),
    }


def _column(name: str, value: Any, place: str) -> ArrowColumn:
    if value is None:
        return ArrowColumn(name, pa.null(), is_nullable=True)
    numbers = value if type(value) is list else [value]
    if any(type(number) is int and not -_MOST <= number < _MOST for number in numbers):
        raise unsupported(place, name, value, "a column holds integers from -2**63 to 2**63 - 1")
    if isinstance(value, complex):
        raise unsupported(place, name, value, "parquet holds no complex numbers")
    if isinstance(value, np.ndarray):
        kind = number_type(value.dtype)
        if kind is None or not value.dtype.isnative:
            held = "arrays of bool, int and float in the byte order of this machine"
            raise unsupported(place, name, value, f"parquet holds {held}")
        return ArrowColumn(name, kind, value.ndim, value.shape)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return ArrowColumn(name, pa.timestamp("us", "UTC"))
    if not isinstance(value, list):
        kinds = _types()
        # A pandas.Timestamp is a datetime.
        return ArrowColumn(name, next(kinds[base] for base in type(value).__mro__ if base in kinds))
    items = {_types()[type(item)] for item in value if item is not None}
    if len(items) > 1:
        raise unsupported(place, name, value, f"its values are {' and '.join(sorted(map(str, items)))}")
    return ArrowColumn(name, pa.list_(items.pop() if items else pa.null()))


def unified(samples: Iterable[tuple[Columns, str]]) -> Columns:
    """Merge the columns of samples; each comes with its place in messages."""
    known: dict[str, tuple[ArrowColumn, str, int]] = {}
    count = 0
    for shown, place in samples:
        count += 1
        for name, column in shown.items():
            before, where, times = known.get(name, (column, place, 0))
            both = _merge(before, column)
            if both is None:
                raise CodecError(
                    f'{place}: field "{name}" is {_describe(column)}, and {_describe(before)} in another '
                    f"sample ({where}); a column has one type: make it one with with_transform(), or leave "
                    "it out with select()"
                )
            known[name] = both, place, times + 1
    return {
        name: replace(column, is_nullable=column.is_nullable or times < count)
        for name, (column, _, times) in known.items()
    }


def _merge(old: ArrowColumn, new: ArrowColumn) -> ArrowColumn | None:
    """Return the column that holds the values of two; None if there is none."""
    if old == new:
        return old
    is_nullable = old.is_nullable or new.is_nullable
    for one, other in ((old, new), (new, old)):
        if pa.types.is_null(one.type):
            return replace(other, is_nullable=True)
        if one.type == pa.list_(pa.null()) and pa.types.is_list(other.type):
            return replace(other, is_nullable=is_nullable)
    if (old.type, old.ndim) == (new.type, new.ndim):
        return replace(old, shape=old.shape if old.shape == new.shape else None, is_nullable=is_nullable)
    return None


def check_fits(columns: Columns, shown: Columns, place: str) -> None:
    """Raise CodecError for a sample of other columns than the inspected ones."""
    if unified([(columns, "of those that were looked at"), (shown, place)]) != columns:
        raise CodecError(
            f"{place}: it has other fields or shapes than samples had when they were looked at; a transform "
            "must give the same every time"
        )


def _describe(column: ArrowColumn) -> str:
    if column.ndim is not None:
        shape = f"of {column.ndim} dimensions" if column.shape is None else column.shape
        return f"an array of {numpy_dtype(column.type).name} {shape}"
    return f"a list of {column.type.value_type}" if pa.types.is_list(column.type) else str(column.type)
