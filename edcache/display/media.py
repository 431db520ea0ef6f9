"""Pictures, curves and texts of values, and PNG files of pictures.

A picture is always decoded and encoded again: no byte of a stranger's reaches a browser as it is.
"""

from __future__ import annotations

import struct
import zlib
from colorsys import hsv_to_rgb
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import EdcacheError
from edcache.codec import Array, ImageFile, format_of
from edcache.display.tree import as_array, leaves_of

MOST_PIXELS: Final = 50_000_000  # of an image file that is decoded to be seen
MOST_SIDE: Final = 2_048  # of a picture that is shown
_THUMBNAIL_SIDE: Final = 128
_LEAST_SIDE: Final = 8  # smaller arrays are numbers
# Leaves that are searched: aliases may make a sample without an end.
MOST_LEAVES: Final = 1_000
_MOST_LINES: Final = 16
_SHOWN_LINES: Final = 8
_LONG_TEXT: Final = 30
_LONGEST_TEXT: Final = 100_000
_CLASSES: Final = 32  # of a mask; a photo has brighter pixels
_COLOR_TYPES: Final = {1: 0, 3: 2, 4: 6}


class Media(NamedTuple):
    """Picture, curve or text of a leaf.

    kind, data: "image": uint8 [h, w] or [h, w, 3 or 4]. "volume": numbers [d, h, w]. "signal": numbers [lines, n].
    "text": a str. "note": the reason for no picture, a sentence.
    """

    kind: str
    data: Any


def media_of(value: Any) -> Media | None:
    """Find the picture, curve or text of a leaf; None of numbers, small arrays and other values.

    Arrays and tensors are images as [H, W], [H, W, C] and [C, H, W] with 1, 3 or 4 channels, of 4 dimensions the middle
    one of a film; volumes as [D, H, W] and [1, D, H, W]; signals as [n], [lines, n], [n, lines]. Floats from 0 to 1 are
    shades, integers below 32 in one channel the classes of a mask; other numbers go from their least to their greatest.
    """
    if isinstance(value, str):
        return Media("text", value[:_LONGEST_TEXT])
    if isinstance(value, (bytes, bytearray)):
        return _of_image_file(ImageFile(bytes(value))) if format_of(bytes(value)) else None
    if isinstance(value, ImageFile):
        return _of_image_file(value)
    if hasattr(value, "getpixel") and hasattr(value, "convert"):
        picture = value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB")
        return Media("image", _stride(np.asarray(picture)))
    array = as_array(value) if hasattr(value, "shape") and hasattr(value, "dtype") else None
    return None if array is None or array.dtype.kind not in "biuf" else _of_array(array)


def _of_array(array: Array) -> Media | None:
    shape = array.shape
    if array.ndim == 1 and shape[0] >= _LEAST_SIDE:
        return Media("signal", array[None])
    if array.ndim == 2:
        lines, length = sorted(shape)
        if 0 < lines <= _MOST_LINES and length >= 4 * max(lines, _LEAST_SIDE):
            return Media("signal", array if shape[0] == lines else array.T)
        return Media("image", _of_one_channel(_stride(array))) if lines >= _LEAST_SIDE else None
    if array.ndim == 3:
        if shape[2] in (1, 3, 4) and min(shape[:2]) >= _LEAST_SIDE:
            return _of_colors(array)
        if shape[0] in (1, 3, 4) and min(shape[1:]) >= _LEAST_SIDE:
            return _of_colors(array.transpose(1, 2, 0))
        return Media("volume", array) if sorted(shape)[1] >= _LEAST_SIDE and min(shape) > 1 else None
    if array.ndim == 4 and shape[0]:
        return _of_array(array[0] if shape[0] == 1 else array[shape[0] // 2])
    return None


def _of_colors(array: Array) -> Media:
    pixels = _stride(array)
    return Media("image", _of_one_channel(pixels[..., 0]) if pixels.shape[2] == 1 else gray(pixels))


def _of_one_channel(array: Array) -> npt.NDArray[np.uint8]:
    """Color the classes of a mask: integers below `_CLASSES`, and 255 for no class; any other array in shades.

    Class 0 is black, 255 is white, and so is 1 if it is the only other one.
    """
    is_mask = array.dtype.kind in "iu" and array.size > 0 and int(array.min()) >= 0
    classes = array[array != 255] if is_mask else array
    if not is_mask or not classes.size or int(classes.max()) >= _CLASSES:
        return gray(array)
    most = int(classes.max())
    return np.where(array > 0, 255, 0).astype(np.uint8) if most <= 1 else _palette()[array]


def _palette() -> npt.NDArray[np.uint8]:
    """Make colors of classes, uint8 [256, 3]: neighbors differ in hue by the golden angle."""
    colors = np.full((256, 3), 255, np.uint8)
    colors[0] = 0
    for k in range(1, _CLASSES):
        colors[k] = [round(255 * part) for part in hsv_to_rgb(0.618 * k % 1, 0.65, 1.0 if k % 2 else 0.7)]
    return colors


def _of_image_file(image: ImageFile) -> Media:
    try:
        width, height = image.size
        if width * height > MOST_PIXELS:
            return Media("note", f"An image of {width:,} x {height:,} pixels is too large to be shown.")
        return Media("image", _stride(image.decode("numpy")))
    except (EdcacheError, OSError) as error:
        return Media("note", str(error))


def gray(array: Array) -> npt.NDArray[np.uint8]:
    """Map numbers to shades: uint8 as it is, 0 to 1 as black to white, others from least to greatest."""
    if array.dtype == np.uint8:
        return array
    numbers = array.astype(np.float64)
    is_finite = np.isfinite(numbers)
    finite = numbers[is_finite]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if array.dtype.kind in "bf" and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        # Halved, so that the span of the largest floats is no infinity.
        shades = (numbers / 2 - low / 2) / ((high / 2 - low / 2) or 1.0) * 255
    return np.where(is_finite, np.clip(shades, 0, 255), 0).astype(np.uint8)


def _stride(array: Array) -> Array:
    """Take every k-th pixel of a picture that is too large to show."""
    step = -(-max(array.shape[:2]) // MOST_SIDE)
    return array[::step, ::step] if step > 1 else array


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode uint8 [h, w], [h, w, 3] or [h, w, 4] as a PNG file."""
    height, width = pixels.shape[:2]
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter, none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def thumbnail(media: Media) -> bytes:
    """Encode an image, or the middle slice of a volume, as a small PNG file."""
    is_image = media.kind == "image"
    return png(_reduce(media.data if is_image else gray(_stride(media.data[len(media.data) // 2]))))


def lines_of(data: Array, most: int) -> list[list[float | None]]:
    """Thin the first lines of a signal to the minimum and maximum of each piece; None is not finite."""

    lines = []
    for line in data[:_SHOWN_LINES]:
        step = -(-2 * len(line) // most)
        if len(line) > most:
            pieces = line[: len(line) // step * step].reshape(-1, step)
            line = np.stack([pieces.min(axis=1), pieces.max(axis=1)], axis=1).reshape(-1)
        lines.append([float(value) if np.isfinite(value) else None for value in line])
    return lines


def main_media(sample: Any) -> Media | None:
    """Choose the leaf to show for a sample: a picture, else a long text or a signal, else a short text."""
    best = None
    for _, value in islice(leaves_of(sample), MOST_LEAVES):
        media = media_of(value)
        if media is not None and (best is None or _rank(media) < _rank(best)):
            best = media
            if not _rank(best):
                break
    return best


def _rank(media: Media) -> int:
    if media.kind == "text":
        return 2 if len(media.data) >= _LONG_TEXT else 4
    if media.kind == "signal":
        return 2 if media.data.dtype.kind == "f" else 3  # integers may be tokens of a text
    return 5 if media.kind == "note" else 0


def _reduce(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Reduce a picture to a thumbnail: means of squares of pixels."""
    step = -(-max(pixels.shape[:2]) // _THUMBNAIL_SIDE)
    if step <= 1:
        return pixels
    height, width = (max(side // step, 1) * step for side in pixels.shape[:2])
    if min(pixels.shape[:2]) < step:
        return pixels[::step, ::step]
    squares = pixels[:height, :width].reshape(height // step, step, width // step, step, -1)
    means: npt.NDArray[np.uint8] = squares.mean(axis=(1, 3)).astype(np.uint8)
    return means[..., 0] if pixels.ndim == 2 else means
