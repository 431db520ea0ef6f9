"""Pictures, curves, numbers and texts of values; PNG files of pictures and WAV files of sounds.

A picture is always decoded and encoded again: no byte of a stranger's reaches a browser as it is.
"""

from __future__ import annotations

import io
import struct
import wave
import zlib
from collections.abc import Callable
from colorsys import hsv_to_rgb
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edcache.base import EdcacheError, MissingDependencyError, OptionError, foreign_code
from edcache.codec import Array, ImageFile, format_of
from edcache.display.tree import as_array

MOST_PIXELS: Final = 50_000_000  # of an image file that is decoded to be seen
MOST_SIDE: Final = 2_048  # of a picture that is shown
THUMBNAIL_SIDE: Final = 128
_LEAST_SIDE: Final = 8  # smaller arrays are numbers
_MOST_LINES: Final = 16
_SHOWN_LINES: Final = 8
_LONGEST_TEXT: Final = 100_000
_CLASSES: Final = 32  # of a mask; a photo has brighter pixels
_NO_CLASS: Final = 255
_COLORS: Final = (3, 1, 4)  # channels of a picture
_MOST_FRAMES: Final = 20_000_000  # of a sound that is played: seven minutes of the finest
_COLOR_TYPES: Final = {1: 0, 3: 2, 4: 6}

# Returns the text of tokens; None if they are not of its vocabulary.
Detokenizer: TypeAlias = "Callable[[list[int]], str | None]"


class Media(NamedTuple):
    """Picture, sound, curve, numbers or text that shows a leaf.

    kind, data: "image": uint8 [h, w] or [h, w, 3 or 4]. "volume": numbers [d, h, w]. "film": numbers [frames, h, w] or
    [frames, h, w, 3 or 4]. "signal" and "sound": numbers [lines, n]. "tokens": integers [n]. "text": a str. "note": the
    reason for no picture, a sentence.
    classes: the greatest class of a mask, whose data are class numbers, uint8; None for any other.
    step: of the value's pixels an image has each step-th.
    rate: of a sound, frames a second.
    """

    kind: str
    data: Any
    classes: int | None = None
    step: int = 1
    rate: int = 0

    @property
    def is_picture(self) -> bool:
        """True if `pixels` can draw it."""
        return self.kind in ("image", "film", "volume")


def media_of(value: Any) -> Media | None:
    """Find what shows a leaf; None of numbers, small arrays and other values.

    Arrays and tensors are images as [H, W], [H, W, C] and [C, H, W] with 1, 3 or 4 channels; films with one more
    dimension, the frames, before these or behind three colors; volumes as [D, H, W] and [1, D, H, W]; tokens as
    integers [n], in an array or a list; signals as other numbers [n], as [lines, n] and [n, lines]. Floats from 0 to 1
    are shades, integers below 32 in one channel the classes of a mask; other numbers go from their least to their
    greatest.
    """
    if isinstance(value, str):
        return Media("text", value[:_LONGEST_TEXT])
    if isinstance(value, (bytes, bytearray)):
        return _of_image_file(ImageFile(bytes(value))) if format_of(bytes(value)) else None
    if isinstance(value, ImageFile):
        return _of_image_file(value)
    if hasattr(value, "getpixel") and hasattr(value, "convert"):
        picture = value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB")
        return _of_pixels(np.asarray(picture))
    if isinstance(value, (list, tuple)) and all(type(number) is int for number in value):
        value = np.asarray(value)  # of Python's long integers an array of objects
    array = as_array(value) if hasattr(value, "shape") and hasattr(value, "dtype") else None
    return None if array is None or array.dtype.kind not in "biuf" else _of_array(array)


def _of_array(array: Array) -> Media | None:
    shape = array.shape
    if array.ndim == 1 and shape[0] >= _LEAST_SIDE:
        # int16 is how sounds are stored.
        is_tokens = array.dtype.kind in "iu" and array.dtype != np.int16
        return Media("tokens", array) if is_tokens else Media("signal", array[None])
    if array.ndim == 2:
        lines, length = sorted(shape)
        if 0 < lines <= _MOST_LINES and length >= 4 * max(lines, _LEAST_SIDE):
            return Media("signal", array if shape[0] == lines else array.T)
        return _of_pixels(array) if lines >= _LEAST_SIDE else None
    if array.ndim == 3:
        if shape[2] in _COLORS and min(shape[:2]) >= _LEAST_SIDE:
            return _of_pixels(array)
        if shape[0] in _COLORS and min(shape[1:]) >= _LEAST_SIDE:
            return _of_pixels(array.transpose(1, 2, 0))
        return _moving("volume", array) if sorted(shape)[1] >= _LEAST_SIDE and min(shape) > 1 else None
    if array.ndim == 4 and shape[0]:
        return _of_four(array)
    return None


def _of_four(array: Array) -> Media | None:
    """Find a film of colors, or of an array of other dimensions what shows its middle."""
    shape = array.shape
    if shape[0] > 1 and min(shape[2:]) >= _LEAST_SIDE:
        if shape[1] in _COLORS:
            return _moving("film", array.transpose(0, 2, 3, 1))
        if shape[0] == 3:  # colors first; one and four are more often modalities of a volume
            return _moving("film", array.transpose(1, 2, 3, 0))
    if shape[0] > 1 and shape[3] in _COLORS and min(shape[1:3]) >= _LEAST_SIDE:
        return _moving("film", array)
    return _of_array(array[shape[0] // 2])


def _of_pixels(array: Array) -> Media:
    """Show numbers [h, w] or [h, w, channels] as an image."""
    step = -(-max(array.shape[:2]) // MOST_SIDE)
    pixels = array[::step, ::step] if step > 1 else array
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    most = _greatest_class(pixels) if pixels.ndim == 2 else None
    return Media("image", gray(pixels) if most is None else pixels.astype(np.uint8), most, max(step, 1))


def _moving(kind: str, array: Array) -> Media:
    """Show numbers [frames or depth, h, w] or [frames, h, w, channels] as a film or a volume."""
    frames = array[..., 0] if array.ndim == 4 and array.shape[3] == 1 else array
    most = _greatest_class(frames) if frames.ndim == 3 else None
    return Media(kind, frames if most is None else frames.astype(np.uint8), most)


def _greatest_class(array: Array) -> int | None:
    """Return the greatest class of a mask: integers below `_CLASSES`, and 255 for no class; None of other arrays."""
    if array.dtype.kind not in "biu" or not array.size or int(array.min()) < 0:
        return None
    most = int(array.max(where=array != _NO_CLASS, initial=0))
    return None if most >= _CLASSES else most


def pixels(
    media: Media, axis: int = 0, at: int | None = None, *, is_over: bool = False
) -> npt.NDArray[np.uint8]:
    """Draw an image, a frame or a slice, by default the middle one, as uint8 [h, w] or [h, w, 3 or 4].

    is_over: of a mask; it is drawn to lie over its image, class 0 transparent.
    """
    data = media.data
    if media.kind != "image":
        data = np.take(data, data.shape[axis] // 2 if at is None else at, axis)
        step = -(-max(data.shape[:2]) // MOST_SIDE)
        data = data[::step, ::step] if step > 1 else data
    if media.classes is None:
        shades: npt.NDArray[np.uint8] = data if media.kind == "image" else gray(data)
        return shades
    if is_over:
        return np.dstack([_palette()[data], np.where(data > 0, 255, 0).astype(np.uint8)])
    # Alone, a mask of one class is black and white.
    return np.where(data > 0, 255, 0).astype(np.uint8) if media.classes <= 1 else _palette()[data]


def _palette() -> npt.NDArray[np.uint8]:
    """Make colors of classes, uint8 [256, 3]: neighbors differ in hue by the golden angle; 255 is white."""
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
        return _of_pixels(image.decode("numpy"))
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


def wav(sound: Media) -> bytes:
    """Encode a sound as a WAV file of 16 bits: int16 as it is, floats from -1 to 1, louder ones by their peak.

    Of several channels it has two, of a long sound the beginning.
    """
    data = sound.data[:2, :_MOST_FRAMES]
    if data.dtype != np.int16:
        numbers = np.nan_to_num(data.astype(np.float64), posinf=0, neginf=0)
        data = (numbers / max(1.0, np.abs(numbers).max(initial=0)) * 32_767).astype(np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(len(data))
        out.setsampwidth(2)
        out.setframerate(sound.rate)
        out.writeframes(data.T.astype("<i2").tobytes())
    return file.getvalue()


def thumbnail(media: Media, side: int = THUMBNAIL_SIDE) -> bytes:
    """Encode an image, or the middle of a film or a volume, as a small PNG file of at most this side."""
    return png(_reduce(pixels(media), side))


def numbers_text(numbers: Array, most: int) -> str:
    """Write the first numbers of an array [n], with spaces between."""
    return " ".join(map(str, numbers[:most].tolist())) + (" ..." if len(numbers) > most else "")


def detokenizer(name: str) -> Detokenizer:
    """Load a tokenizer from files of this machine, by its folder or by the name under which it was downloaded.

    The function that it returns gives None for numbers that are no tokens: beyond the vocabulary, or all 0 and 1, as of
    an attention mask. Negative numbers, which mark what a loss leaves out, have no text.

    Raises:
        MissingDependencyError: transformers is not installed.
        OptionError: 'no tokenizer at "./tok"; give its folder, or download it first'.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingDependencyError("a tokenizer takes transformers; pip install transformers") from None

    def absent(error: Exception) -> OptionError:
        reason = f"{type(error).__name__} when transformers loads it from files"
        remedy = "give the folder of its tokenizer.json, or the name of one that transformers has downloaded"
        return OptionError(f'no tokenizer at "{name}": {reason}; {remedy}', option="tokenizer")

    with foreign_code(absent):
        # Not from far, and without code of the tokenizer's own.
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
        size = len(tokenizer)

    def text(numbers: list[int]) -> str | None:
        tokens = [number for number in numbers if number >= 0]
        return str(tokenizer.decode(tokens)) if 1 < max(tokens, default=0) < size else None

    return text


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


def _reduce(pixels: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Reduce a picture to a thumbnail: means of squares of pixels."""
    step = -(-max(pixels.shape[:2]) // side)
    if step <= 1:
        return pixels
    height, width = (max(side // step, 1) * step for side in pixels.shape[:2])
    if min(pixels.shape[:2]) < step:
        return pixels[::step, ::step]
    squares = pixels[:height, :width].reshape(height // step, step, width // step, step, -1)
    means: npt.NDArray[np.uint8] = squares.mean(axis=(1, 3)).astype(np.uint8)
    return means[..., 0] if pixels.ndim == 2 else means
