"""Objects of other libraries as trees of ordinary values, and their enums: a fixed list.

A record names the form of an object by the class's public name. The list is ours, so importing a module of it
runs no code that a record chose; it is imported when the first such record is decoded. Other classes get a
form by `edcache.register(cls, encode=..., decode=...)`.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple

from edcache.base import CodecError, MissingDependencyError, foreign_code

ClassName = tuple[str, str]


class Form(NamedTuple):
    """Conversion of the objects of a class, not of its subclasses, to trees of values, and back."""

    name: ClassName
    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


@lru_cache(maxsize=256)
def form_of(cls: type) -> Form | None:
    """Return the form of a class, None if it is not on the list."""
    shown = cls.__module__.partition(".")[0], cls.__qualname__
    forms = (_form(name) for name in _FORMS if (name[0].partition(".")[0], name[1]) == shown)
    form = next((form for form in forms if form.cls is cls), None)
    # No object is an image before Pillow is imported.
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return _form(_IMAGE) if form is None and image is not None and issubclass(cls, image) else form


def listed(name: ClassName) -> Form | type[enum.Enum] | None:
    """Return the form or the enum of a name; None if it is not on the list. Raises: MissingDependencyError."""
    if name in _FORMS:
        return _form(name)
    if name[0] not in _ENUM_MODULES:
        return None
    cls = _import(name)
    return cls if isinstance(cls, type) and issubclass(cls, enum.Enum) else None


@cache
def _form(name: ClassName) -> Form:
    cls = _import(name)
    if not isinstance(cls, type):
        raise MissingDependencyError(
            f"a record holds a {'.'.join(name)}, which the {name[0]} installed here does not have"
        )
    return Form(name, cls, *_FORMS[name](cls))


def _import(name: ClassName) -> Any:
    def missing(error: Exception) -> MissingDependencyError:
        package = name[0].partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name in (package, name[0]):
            remedy = f"; pip install {'Pillow' if package == 'PIL' else package}"
        else:
            reason = f"{type(error).__name__}: {error!s:.200}"
            remedy = f", and {package} does not import here: {reason}; reinstall it"
        return MissingDependencyError(f"a record holds a {'.'.join(name)}{remedy}")

    with foreign_code(missing):
        return getattr(import_module(name[0]), name[1], None)


_Functions = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def _tensor(cls: Any) -> _Functions:
    """Convert a subclass of torch.Tensor: its values, and its attributes as they are."""
    import torch

    def encode(value: Any) -> Any:
        # A subclass may override any function of torch.
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(torch.Tensor), _attributes(vars(value), cls)

    def decode(tree: Any) -> Any:
        plain, attributes = tree
        value = plain.as_subclass(cls)
        vars(value).update(_attributes(attributes, cls))
        return value

    return encode, decode


def _attributes(attributes: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Copy attributes; ValueError if one hides a method of the class."""
    for name in attributes:
        if not isinstance(name, str) or hasattr(cls, name):
            raise ValueError(f"attribute {name!r} hides one of the class")
    return dict(attributes)


# Bytes of one pixel in Image.tobytes(); 0: packed bits, each row from a new byte.
_PIXEL_NBYTES: Final = {
    "1": 0, "L": 1, "P": 1, "LA": 2, "La": 2, "PA": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4,
    "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2,
}  # fmt: skip
# Pillow allocates a pointer for each row: an image of width 0 must stay small.
_MAX_EMPTY_SIDE: Final = 1 << 16


def _image(cls: Any) -> _Functions:
    """Convert an image of Pillow: its current frame, without the format of its file and the class of its plugin."""
    from PIL import Image

    def encode(image: Any) -> Any:
        # An MPO is a photo of a telephone, whose other pictures are previews.
        if getattr(image, "is_animated", False) and image.format != "MPO":
            raise CodecError("of several pictures; .copy() has the shown one, edcache.ImageFile all of them")
        image.load()
        added = vars(image).keys() - vars(Image.new("L", (1, 1))).keys()
        if added and type(image) is Image.Image:
            raise CodecError(f"with the attribute {min(added)!r}; store that beside it, and its .copy()")
        pixels, palette_mode, palette = image.tobytes(), None, None
        with suppress(ValueError):  # it has none
            palette_mode = image.im.getpalettemode()
            palette = bytes(image.im.getpalette(palette_mode, palette_mode))
        if not _fits(image.mode, image.size, len(pixels)):
            raise CodecError(
                f'of mode {image.mode} and size {image.size}; call .convert("RGB") or numpy.asarray()'
            )
        return image.mode, *image.size, pixels, palette_mode, palette, _to_plain(dict(image.info))

    def decode(tree: Any) -> Any:
        mode, width, height, pixels, palette_mode, palette, info = tree
        if not _fits(mode, (width, height), len(pixels)):
            raise ValueError(f"{len(pixels)} bytes of pixels, of mode {mode} and size {(width, height)}")
        size = width, height
        image = Image.frombytes(mode, size, pixels) if pixels else Image.new(mode, size)
        if palette_mode is not None:
            image.putpalette(palette, palette_mode)
        image.info = dict(info)
        return image

    return encode, decode


def _fits(mode: str, size: tuple[int, int], nbytes: int) -> bool:
    width, height = size
    if mode not in _PIXEL_NBYTES or not (0 <= width < 1 << 31 and 0 <= height < 1 << 31):
        return False
    if not width or not height:
        return nbytes == 0 and max(width, height) <= _MAX_EMPTY_SIDE
    return nbytes == height * (width * _PIXEL_NBYTES[mode] or (width + 7) // 8)


def _to_plain(value: Any) -> Any:
    """Turn rationals and texts with a language, which Pillow leaves in `info`, into plain values."""
    if type(value) is dict:
        return {key: _to_plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_to_plain, value))
    if isinstance(value, str):
        return str.__str__(value)
    module = sys.modules.get("PIL.TiffImagePlugin")
    return float(value) if module is not None and isinstance(value, module.IFDRational) else value


_IMAGE: Final = "PIL.Image", "Image"
_FORMS: Final[dict[ClassName, Callable[[Any], _Functions]]] = {
    ("torch", "Size"): lambda cls: (tuple, cls),
    _IMAGE: _image,
    ("monai.data", "MetaTensor"): _tensor,
    **{
        ("torchvision.tv_tensors", name): _tensor
        for name in ("Image", "Video", "Mask", "BoundingBoxes", "KeyPoints")
    },
}

_ENUM_MODULES: Final = frozenset(
    {
        "monai.utils.enums",
        "torchvision.tv_tensors._bounding_boxes",
        "torchvision.transforms.functional",
    }
)
