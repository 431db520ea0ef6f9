"""A sample as named leaves of a few kinds, which is what every format is given."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import pathlib
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from edcache.base import ExportError
from edcache.codec import ImageFile

_EXTENSIONS: Final = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}
_PNG_MODES: Final = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")
_ATOMS: Final = (bool, int, float, str, type(None))

Leaves = dict[str, Any]
"""Leaves by name: None, bool, int, float, complex, str, bytes, a date, a datetime, a numpy array, a `Picture`
or a list of the first five."""


class Picture(NamedTuple):
    """An image as the bytes of a file: extension without a dot, "jpg", "png", "bin" where nobody knows."""

    data: bytes
    extension: str


def leaves_of(sample: Any, place: str) -> Leaves:
    """The leaves of a sample by name: keys, indices and field names, with dots between.

    A sample that is a leaf itself has the name "". Lists of plain values are one leaf.

    Args:
        place: what messages begin with: "export(): sample 17".
    Raises:
        ExportError: 'export(): sample 17: field "x" is a set, which no format holds; ...'.
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


def refused(place: str, name: str, value: object, why: str) -> ExportError:
    """The error for a leaf that a format cannot hold."""
    field = f'field "{name}"' if name else "it"
    return ExportError(
        f"{place}: {field} is {described(value)}; {why}; leave it out with select(), or make something else "
        "of it with with_transform()"
    )


def described(value: object) -> str:
    """A leaf's type as a person reads it: "an array of float32 (3, 4)"."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} {tuple(value.shape)}"
    if isinstance(value, Picture):
        return f"an image (.{value.extension})"
    return f"of type {type(value).__name__}"


def _walked(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    children = children_of(value)
    if children is None or (isinstance(value, list) and all(type(item) in _ATOMS for item in value)):
        yield path, value
        return
    for key, child in children:
        yield from _walked(child, (*path, key))


def children_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Key and value of each child of a dict, dataclass, list or tuple; None for anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type | ImageFile):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    return list(enumerate(value)) if isinstance(value, list | tuple) else None


def _plain(value: Any, name: str, place: str) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (*_ATOMS, bytes, complex, datetime.date, list)):
        return value
    if isinstance(value, torch.Tensor):
        return _array_of(value, name, place)
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
        return _picture_of(value, name, place)
    raise refused(place, name, value, "no format holds that")


def _array_of(tensor: torch.Tensor, name: str, place: str) -> np.ndarray[Any, Any]:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError):
        raise refused(place, name, tensor, "numpy has no such type") from None


def _picture_of(image: Any, name: str, place: str) -> Picture:
    if image.mode not in _PNG_MODES:
        why = f"a PNG has no mode {image.mode!r}"
        raise refused(place, name, image, why)
    file = io.BytesIO()
    image.save(file, "PNG")
    return Picture(file.getvalue(), "png")


def nbytes_of(leaves: Leaves) -> int:
    """About so many bytes takes a sample."""
    return 64 + sum(map(_nbytes_of_one, leaves.values()))


def _nbytes_of_one(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Picture):
        return len(value.data)
    return len(value) if isinstance(value, str | bytes) else 8
