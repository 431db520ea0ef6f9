"""PIL images: taken apart into plain values, and built again from them.

Pillow is optional. A sample holds an image only if Pillow is imported already, so encoding looks for it in
sys.modules; decoding imports it. What a record keeps of an image: mode, size, pixels, palette, info. The
current frame alone is kept; the file format and the class (JpegImageFile...) are not.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from edcache.base import CorruptRecordError, MissingDependencyError

# Bytes of one pixel in what Image.tobytes() returns; 0: packed bits, each row from a new byte.
_PIXEL_NBYTES = {
    "1": 0, "L": 1, "P": 1, "LA": 2, "La": 2, "PA": 2, "RGB": 3, "YCbCr": 3, "LAB": 3, "HSV": 3, "RGBA": 4,
    "RGBa": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2,
}  # fmt: skip
PALETTE_MODES = frozenset({"RGB", "RGBA", "CMYK"})
MODES = frozenset(_PIXEL_NBYTES)

# Pillow allocates a pointer for each row, whatever the width: an image without pixels must stay small.
_MAX_EMPTY_SIDE = 1 << 16


class ImageParts(NamedTuple):
    """An image as plain values.

    Attributes:
        mode: Pillow's mode.
        palette_mode: "RGB", "RGBA", "CMYK", or None without a palette.
        keys: names of the values.
        values: width, height, pixels, palette (only with a palette), info.
    """

    mode: str
    palette_mode: str | None
    keys: tuple[str, ...]
    values: list[Any]


def image_keys(palette_mode: str | None) -> tuple[str, ...]:
    """Return the names of an image's values, in the order of a record."""
    palette = () if palette_mode is None else ("palette",)
    return ("width", "height", "pixels", *palette, "info")


def is_image(value: object) -> bool:
    """Tell whether a value is a PIL image."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def take_apart(image: Any) -> ImageParts | None:
    """Return the parts of an image, or None if its mode or size cannot be stored.

    An image that is not loaded yet is loaded, which reads its file; what that raises passes through.
    """
    image.load()
    pixels = image.tobytes()
    if image.mode not in _PIXEL_NBYTES or not _fits(image.mode, image.size, len(pixels)):
        return None
    palette_mode, palette = _palette(image)
    values = [*image.size, pixels, _plain(dict(image.info))]
    if palette_mode is not None:
        values.insert(3, palette)
    return ImageParts(image.mode, palette_mode, image_keys(palette_mode), values)


def _palette(image: Any) -> tuple[str | None, bytes]:
    try:
        mode = image.im.getpalettemode()
    except ValueError:
        return None, b""
    return mode, bytes(image.im.getpalette(mode, mode))


def _plain(value: Any) -> Any:
    """Turn what Pillow leaves in `info` into plain values: its rationals and its texts with a language."""
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, str):
        return str.__str__(value)
    module = sys.modules.get("PIL.TiffImagePlugin")
    if module is not None and isinstance(value, module.IFDRational):
        return float(value)
    return value


def _fits(mode: str, size: tuple[int, int], nbytes: int) -> bool:
    width, height = size
    if not (0 <= width < 1 << 31 and 0 <= height < 1 << 31):
        return False
    if not width or not height:
        return nbytes == 0 and max(width, height) <= _MAX_EMPTY_SIDE
    row = width * _PIXEL_NBYTES[mode] or (width + 7) // 8
    return row * height == nbytes


def put_together(mode: str, palette_mode: str | None, values: list[Any]) -> object:
    """Build an image from its parts.

    Raises:
        MissingDependencyError: Pillow is not installed.
        CorruptRecordError: the parts do not make an image.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingDependencyError("the sample holds an image; pip install edcache[images]") from None
    width, height, pixels, info = (*values[:3], values[-1])
    if not _fits(mode, (width, height), len(pixels)):
        raise CorruptRecordError(
            f"image of mode {mode} and size {(width, height)} has {len(pixels)} bytes of pixels"
        )
    try:
        if pixels:
            image = Image.frombytes(mode, (width, height), pixels)
        else:
            image = Image.new(mode, (width, height))
        if palette_mode is not None:
            image.putpalette(values[3], palette_mode)
    except (ValueError, TypeError, OSError, KeyError, SystemError) as error:
        raise CorruptRecordError(f"image of mode {mode} does not decode: {error}") from error
    image.info = info
    return image
