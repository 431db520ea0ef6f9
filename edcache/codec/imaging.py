"""The bytes of an image file to a picture, an array or a tensor.

Pillow decodes, from a closed list of formats that the first bytes choose among, within its own limit of
pixels, and without its tolerance for truncated files. JPEG to arrays and tensors is left to simplejpeg where
that is installed: 1.3 times as fast, and the same pixels where both bring the same libjpeg-turbo. What it
does not decode without a warning is Pillow's to judge.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import EdcacheError, ImageError, MissingDependencyError, OptionError

Form = Literal["pil", "numpy", "tensor"] | None

FORMS: Final = ("pil", "numpy", "tensor", None)
IMAGE_MODES: Final = ("L", "RGB", "RGBA", None)
_LIBRARIES: Final = ("auto", "pillow", "simplejpeg")
_NAMES: Final = "JPEG, PNG, WebP, GIF, BMP or TIFF"
_INSTEAD: Final = "decode=None gives the bytes as they are"

# Where the first bytes of a file are these, Pillow is asked for this one format.
_SIGNATURES: Final = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}
# Pillow's modes that are bytes already, and what the others become; 16 bits are cut to their high byte.
_BYTES: Final = frozenset({"L", "LA", "RGB", "RGBA"})
_AS_BYTES: Final = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"} | dict.fromkeys(
    ("RGBX", "CMYK", "YCbCr", "LAB", "HSV"), "RGB"
)

_Array = npt.NDArray[np.uint8]
_Buffer = bytes | memoryview

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


@dataclass(frozen=True)
class Decoding:
    """How the bytes of an image file become what a sample holds.

    Args:
        form: "pil": a PIL image, in memory of its own. "numpy": uint8 [H, W] or [H, W, C]. "tensor": uint8
            [C, H, W]. None: an `edcache.ImageFile`, nothing is decoded.
        mode: "L", "RGB" or "RGBA": what every image is converted to. None leaves it as the file has it; in
            arrays and tensors palettes then become RGB, or RGBA where they have transparency, CMYK becomes
            RGB, one bit becomes 0 or 255, and of 16 bits there is the high byte.
        exif_transpose: turn the picture as its EXIF orientation says; what is stored never is.
        library: what decodes JPEG to arrays and tensors: "pillow", "simplejpeg", or "auto": simplejpeg where
            it is installed. They give the same pixels where both bring the same release of libjpeg-turbo;
            other releases may differ by a grey level. Everything else is decoded by Pillow.
    Raises:
        OptionError: another value.

    Of animations and files of several pages, the first picture is decoded.
    """

    form: Form = "pil"
    mode: str | None = None
    exif_transpose: bool = False
    library: str = "auto"

    def __post_init__(self) -> None:
        for name, choices in (("form", FORMS), ("mode", IMAGE_MODES), ("library", _LIBRARIES)):
            if getattr(self, name) not in choices:
                raise OptionError(
                    f"{name}={getattr(self, name)!r} of a Decoding: choose one of "
                    f"{', '.join(map(repr, choices))}"
                )
        if type(self.exif_transpose) is not bool:
            raise OptionError(f"exif_transpose={self.exif_transpose!r} of a Decoding: give True or False")

    @classmethod
    def of(cls, decode: Any) -> Decoding:
        """What a `decode=` argument means: a form, or a Decoding as it is.

        Raises:
            OptionError: it is neither.
        """
        if isinstance(decode, cls):
            return decode
        if decode is not None and (not isinstance(decode, str) or decode not in FORMS):
            raise OptionError(
                f'decode={decode!r}: choose "pil", "numpy", "tensor" or None, or give an edcache.Decoding'
            )
        return cls(decode)  # type: ignore[arg-type]


def format_of(data: _Buffer) -> str | None:
    """Pillow's name for the format that the first bytes of a file tell; None for all others."""
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "WEBP"
    return next((name for start, name in _SIGNATURES.items() if head.startswith(start)), None)


def image_size(data: _Buffer) -> tuple[int, int]:
    """Width and height as the file has them, not turned; no pixel is decoded.

    Raises: as `decoded`.
    """
    with _refusing(data), _opened(data) as image:
        width, height = image.size
        return width, height


def decoded(data: _Buffer, decoding: Decoding) -> Any:
    """The picture of an image file, in the form that is asked for, which is not None; the caller owns it.

    Raises:
        ImageError: "JPEG does not decode: image file is truncated (5 bytes not processed); ..."; it has more
            pixels than Pillow's limit, is of another format, or of a mode that is no bytes.
        MissingDependencyError: there is no Pillow, or the library that was asked for is not there.
    """
    with _refusing(data):
        if decoding.form == "pil":
            return _picture(data, decoding)
        array = _pixels(data, decoding)
        if decoding.form == "numpy":
            return array if array.flags.writeable else array.copy()
        planes = np.empty(_planes(array).shape, np.uint8)
        planes[...] = _planes(array)
        return torch.from_numpy(planes)


def decoded_together(files: Sequence[_Buffer], decoding: Decoding, allocate: Allocate) -> torch.Tensor | None:
    """Several files as one uint8 tensor: [n, *shape], the shape being that of each `decoded`.

    Args:
        decoding: to arrays or tensors. allocate: `allocate(shape, dtype)` gives its memory.
    Returns: None where the pictures differ in shape.
    Raises: as `decoded`; and ImageError where there is no memory for all of them.
    """
    view = _planes if decoding.form == "tensor" else np.asarray
    together, rows = None, np.empty(0, np.uint8)
    for row, data in enumerate(files):
        with _refusing(data):
            array = view(_pixels(data, decoding))
        if together is None:
            try:
                together = allocate((len(files), *array.shape), torch.uint8)
            except MemoryError:
                raise ImageError(
                    f"{len(files)} pictures of {array.nbytes:,} bytes do not fit into the memory of this "
                    "process"
                ) from None
            rows = together.numpy()
        if array.shape != rows.shape[1:]:
            return None
        rows[row] = array
    return together


def _pixels(data: _Buffer, decoding: Decoding) -> _Array:
    """The picture as [H, W] or [H, W, C]; it may be read-only."""
    array = _by_simplejpeg(data, decoding)
    return np.asarray(_picture(data, decoding)) if array is None else array


def _planes(array: _Array) -> _Array:
    """The same as [C, H, W], a view."""
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


class _refusing:
    """Makes an ImageError of whatever a decoder raises over bytes that may be anybody's."""

    def __init__(self, data: _Buffer) -> None:
        self._data = data

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, EdcacheError) or not isinstance(error, Exception):
            return
        name = format_of(self._data)
        if isinstance(error, MemoryError):
            raise ImageError(
                f"{name} does not fit into the memory of this process when it is decoded; {_INSTEAD}"
            ) from None
        if type(error).__name__ in ("DecompressionBombError", "DecompressionBombWarning"):
            raise ImageError(
                f"{name} is larger than Pillow's limit, PIL.Image.MAX_IMAGE_PIXELS ({error}); set that if "
                f"you trust the file; {_INSTEAD}"
            ) from error
        said = str(error)[:200] or type(error).__name__
        raise ImageError(f"{name} does not decode: {said}; mend or leave out the file; {_INSTEAD}") from error


@functools.cache
def _pillow() -> Any:
    """Pillow, with the plugins of the closed list."""
    try:
        from PIL import (  # noqa: F401
            BmpImagePlugin,
            GifImagePlugin,
            Image,
            ImageOps,
            JpegImagePlugin,
            PngImagePlugin,
            TiffImagePlugin,
            WebPImagePlugin,
        )
    except ImportError:
        raise MissingDependencyError(
            "decoding an image file takes Pillow; pip install edcache[images]"
        ) from None
    return Image


def _opened(data: _Buffer) -> Any:
    name = format_of(data)
    if name is None:
        raise ImageError(f"its first bytes are {bytes(data[:8])!r}, of no {_NAMES} file; {_INSTEAD}")
    return _pillow().open(io.BytesIO(data), formats=(name,))


def _picture(data: _Buffer, decoding: Decoding) -> Any:
    """A PIL image; of 8-bit channels where that is asked for."""
    with _opened(data) as opened:
        opened.load()
        image = opened
        if decoding.exif_transpose:
            from PIL import ImageOps

            image = ImageOps.exif_transpose(opened)
        if decoding.mode is not None or decoding.form != "pil":
            image = _in_bytes(image, opened.format)
        if decoding.mode is not None and image.mode != decoding.mode:
            image = image.convert(decoding.mode)
        # A file's own image keeps the file, and its class.
        return image.copy() if image is opened and decoding.form == "pil" else image


def _in_bytes(image: Any, file_format: str) -> Any:
    if image.mode in _BYTES:
        return image
    if image.mode == "P":
        is_clear = "transparency" in image.info or image.palette.mode == "RGBA"
        return image.convert("RGBA" if is_clear else "RGB")
    # Older releases of Pillow open 16-bit PNGs as "I".
    if image.mode.startswith("I;16") or (image.mode == "I" and file_format == "PNG"):
        return _pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in _AS_BYTES:
        return image.convert(_AS_BYTES[image.mode])
    raise ImageError(
        f'{file_format} of mode {image.mode} has no form in bytes; decode="pil" gives it as it is'
    )


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _by_simplejpeg(data: _Buffer, decoding: Decoding) -> _Array | None:
    """The pixels of a JPEG; None where Pillow is to decode it, or to say what is wrong."""
    if decoding.library == "pillow" or decoding.exif_transpose or format_of(data) != "JPEG":
        return None
    library = _simplejpeg()
    if library is None:
        if decoding.library == "simplejpeg":
            raise MissingDependencyError('library="simplejpeg" takes it; pip install simplejpeg')
        return None
    try:
        height, width, space, _ = library.decode_jpeg_header(data)
        target = _COLORS.get((space, decoding.mode))
        limit = _pillow().MAX_IMAGE_PIXELS
        if target is None or (limit is not None and height * width > limit):
            return None
        array: _Array = library.decode_jpeg(data, target, strict=True)
    except ValueError:
        return None
    return array[..., 0] if target == "GRAY" else array


# What simplejpeg makes of a JPEG's colours exactly as Pillow does, by the mode that is asked for.
_COLORS: Final = {
    ("Gray", None): "GRAY",
    ("Gray", "L"): "GRAY",
    ("YCbCr", None): "RGB",
    ("YCbCr", "RGB"): "RGB",
}
