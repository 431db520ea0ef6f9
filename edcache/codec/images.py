"""Images: the bytes of a file to a picture, an array or a tensor; PIL images as plain values, and back.

Pillow decodes a closed list of formats. The first bytes of a file choose the format. Pillow's limit of pixels
holds, and truncated files are errors. If simplejpeg is installed, it decodes JPEG to arrays and tensors. It
is 1.3 times as fast, and gives the same pixels if both have the same libjpeg-turbo. Pillow decodes again what
simplejpeg warns of. Both are imported at the first image.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edcache.base import EdcacheError, ImageError, MissingDependencyError, OptionError
from edcache.codec import photos
from edcache.codec.classes import dataclass_fields, is_namedtuple_class
from edcache.codec.decoding import Decode, Decoding

if TYPE_CHECKING:
    import torch

_INSTEAD: Final = "decode=None gives the bytes as they are"

# The first bytes of a file, and the only format that Pillow tries then.
_SIGNATURES: Final = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}
# Pillow's modes of 8 bits, and the mode that each other one is converted to. 16 bits keep their high byte.
_BYTES: Final = frozenset({"L", "LA", "RGB", "RGBA"})
_AS_BYTES: Final = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"} | dict.fromkeys(
    ("RGBX", "CMYK", "YCbCr", "LAB", "HSV"), "RGB"
)
# By (colours of the JPEG, requested mode): the mode of simplejpeg that gives the same pixels as Pillow.
_COLORS: Final = {
    ("Gray", None): "GRAY",
    ("Gray", "L"): "GRAY",
    ("YCbCr", None): "RGB",
    ("YCbCr", "RGB"): "RGB",
}

# Of decoded pixels, by each thread.
_MOST_KEPT: Final = 1 << 24
# Pillow's names for a file that begins like a JPEG; the second is one with more pictures behind the first.
_JPEG: Final = ("JPEG", "MPO")
# Of EXIF: its tag, and the values that swap height and width.
_ORIENTATION: Final = 0x0112
_ON_ITS_SIDE: Final = (5, 6, 7, 8)

_Array = npt.NDArray[np.uint8]
_Buffer = bytes | memoryview


class ImageFile:
    """An image file as a field of a sample: its bytes are stored unchanged, and decoded at each read.

    Args:
        source: the path of a file, or the bytes of a file. A path is read when the sample is written.
        decode: the default decoding of readers: "pil", "numpy", "tensor", None (an ImageFile), or an
            `edcache.Decoding` without a size. A reader may choose another one.
    Attributes:
        path: the path as given; None for bytes, and for an ImageFile that was read from an archive.
        decoding: `decode` as an `edcache.Decoding`.
    Raises:
        OptionError: `decode` or `source` is something else.

    The formats are JPEG, PNG, WebP, GIF, BMP and TIFF. Writing a sample refuses the path of a file of another
    format, but stores any bytes. Two ImageFiles are equal if their bytes and decodings are equal.

    >>> {"image": edcache.ImageFile("cat.jpg", decode="tensor"), "label": 3}
    """

    __slots__ = ("_data", "decoding", "path")

    def __init__(self, source: str | os.PathLike[str] | bytes, decode: Decode = "pil") -> None:
        self.path: str | None = None
        self._data: bytes | None = None
        if isinstance(source, (bytes, bytearray, memoryview)):
            self._data = bytes(source)
        elif isinstance(source, (str, os.PathLike)):
            self.path = os.fspath(source)
        else:
            raise OptionError(f"ImageFile of a {type(source).__name__}; give a path, or the bytes of a file")
        self.decoding = Decoding.of(decode)
        if self.decoding.size is not None:
            raise OptionError(
                f"size={self.decoding.size} of the Decoding of an ImageFile: an archive stores none; the "
                "reader gives it: from_cache(path, decode=Decoding(size=...))"
            )

    def __repr__(self) -> str:
        source = repr(self.path) if self._data is None else f"{len(self._data):,} bytes"
        return f"ImageFile({source}, decode={self.decoding.form!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ImageFile):
            return NotImplemented
        return self.decoding == other.decoding and self.data == other.data

    __hash__ = None  # type: ignore[assignment]

    @property
    def data(self) -> bytes:
        """The bytes of the file. A path is read anew at each access. Raises: OSError."""
        if self._data is not None:
            return self._data
        assert self.path is not None
        with open(self.path, "rb") as file:
            return file.read()

    @property
    def format(self) -> str | None:
        """ "JPEG", "PNG", "WEBP", "GIF", "BMP" or "TIFF", by the first bytes; None for another file."""
        return format_of(self.data)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, from the header of the file. Raises: ImageError, as `decode`."""
        data = self.data
        with _image_errors(data, self.path), _opened(data) as image:
            width, height = image.size
            return width, height

    def decode(self, decode: Decode = "pil") -> Any:
        """Decode the picture, as `edcache.Decoding` describes. The caller owns the result.

        Raises:
            OptionError: `decode` is something else.
            ImageError: "JPEG does not decode: image file is truncated (5 bytes not processed); ...".
            MissingDependencyError: Pillow is not installed.
        """
        decoding = Decoding.of(decode)
        return self if decoding.form is None else _decoded(self.data, decoding, self.path)


def file_bytes(image: ImageFile) -> bytes:
    """The bytes of an image file. Raises: ImageError, the file cannot be read."""
    try:
        return image.data
    except OSError as error:
        reason = error.strerror or str(error)
        raise ImageError(f"image file {image.path!r} ({reason}); mend it or leave it out") from error


def revived(data: Any, decoding: Decoding) -> Any:
    """The value of a field, from the stored bytes of an image file. Raises: as `ImageFile.decode`."""
    return ImageFile(bytes(data), decoding) if decoding.form is None else _decoded(data, decoding)


def read_through(sample: Any, decoding: Decoding | None) -> Any:
    """A sample as it would be read: image files are decoded by `decoding`, or by their own if it is None."""
    if isinstance(sample, ImageFile):
        return revived(file_bytes(sample), decoding or sample.decoding)
    kind = type(sample)
    is_plain = kind in (dict, OrderedDict, list, tuple)
    if not (is_plain or is_namedtuple_class(kind) or dataclasses.is_dataclass(kind)):
        return sample
    children = children_of(sample) or []
    read = [(key, read_through(value, decoding)) for key, value in children]
    if all(new is value for (_, new), (_, value) in zip(read, children, strict=True)):
        return sample
    if isinstance(sample, dict):
        return kind(read)
    if isinstance(sample, list | tuple):
        values = [value for _, value in read]
        return values if kind is list else tuple.__new__(kind, values)
    made = copy.copy(sample)
    for name, value in read:
        object.__setattr__(made, name, value)
    return made


def children_of(value: Any) -> list[tuple[Any, Any]] | None:
    """(key, value) of each child of a dict, dataclass, list or tuple; None for another value."""
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(type(value)):
        return [(name, getattr(value, name)) for name in dataclass_fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    return list(enumerate(value)) if isinstance(value, list | tuple) else None


def format_of(data: _Buffer) -> str | None:
    """Pillow's name of the format, by the first bytes of a file; None for a format that is not supported."""
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "WEBP"
    return next((name for start, name in _SIGNATURES.items() if head.startswith(start)), None)


def _decoded(data: _Buffer, decoding: Decoding, path: str | None = None) -> Any:
    """The picture of an image file; `decoding.form` is not None."""
    with _image_errors(data, path):
        if decoding.form == "pil" and decoding.size is None:
            return _picture(data, decoding)
        array = _pixels(data, decoding)
        if decoding.form == "pil":
            return pillow().fromarray(array)
        if decoding.form == "numpy":
            return np.require(array, requirements=["C", "W"])
        import torch  # here, because `edcache info` and its like read no tensors and start fast

        return torch.from_numpy(_planes(array).copy("C"))


def decoded_together(
    files: Sequence[_Buffer],
    decoding: Decoding,
    allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
) -> torch.Tensor | None:
    """Several files as one uint8 tensor [n, *shape of each picture]; None where they differ in shape.

    Args:
        decoding: to arrays or tensors. allocate: `allocate(shape, dtype)` gives the memory.
    Raises: as `ImageFile.decode`; and ImageError where there is no memory for all of them.
    """
    import torch

    view = _planes if decoding.form == "tensor" else np.asarray
    together, rows = None, np.empty(0, np.uint8)
    for row, data in enumerate(files):
        with _image_errors(data):
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


@contextlib.contextmanager
def _image_errors(data: _Buffer, path: str | None = None) -> Iterator[None]:
    """Turn every exception of a decoder in the block into an ImageError."""
    where = "" if path is None else f"image file {path!r}: "
    try:
        yield
    except EdcacheError:
        raise
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"this decoding takes {error.name}; pip install {error.name}") from error
    except MemoryError:
        # Not chained: the decoder's frames hold memory.
        flaw = "does not fit into the memory of this process when it is decoded"
        raise ImageError(f"{where}{format_of(data)} {flaw}; {_INSTEAD}") from None
    except Exception as error:  # decoders raise any type over damaged bytes
        if type(error).__name__ in ("DecompressionBombError", "DecompressionBombWarning"):
            flaw = (
                f"is larger than Pillow's limit, PIL.Image.MAX_IMAGE_PIXELS ({error}); set that if you trust "
                "the file"
            )
        else:
            reason = re.sub(" <[^<>]* at 0x[^<>]*>", "", str(error))[:200] or type(error).__name__
            flaw = f"does not decode: {reason}; mend or leave out the file"
        raise ImageError(f"{where}{format_of(data)} {flaw}; {_INSTEAD}") from error


@functools.cache
def pillow() -> Any:
    """Pillow, with the plugins that it does not load by itself when it opens a file."""
    try:
        from PIL import Image, TiffImagePlugin, WebPImagePlugin  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "decoding an image file needs Pillow; pip install edcache[images]"
        ) from None
    return Image


def _opened(data: _Buffer) -> Any:
    name = format_of(data)
    if name is None:
        raise ImageError(
            f"its first bytes are {bytes(data[:8])!r}, of no JPEG, PNG, WebP, GIF, BMP or TIFF file; "
            f"{_INSTEAD}"
        )
    return pillow().open(io.BytesIO(data), formats=(name,))


def _picture(data: _Buffer, decoding: Decoding) -> Any:
    """The picture as a PIL image, or as an array if it has a size; 8-bit channels if these are requested."""
    with _opened(data) as opened:
        crop, by, is_sized = None, 1, decoding.size is not None
        if is_sized and opened.format in _JPEG:
            orientation = opened.getexif().get(_ORIENTATION, 1) if decoding.exif_transpose else 1
            width, height = opened.size[::-1] if orientation in _ON_ITS_SIDE else opened.size
            crop = photos.crop_of(decoding, height, width)
            by = crop.reduction(orientation != 1)
            if by > 1:
                opened.draft(None, tuple(side // by for side in opened.size))
        opened.load()
        image = opened
        if decoding.exif_transpose:
            from PIL import ImageOps

            image = ImageOps.exif_transpose(opened)
        if decoding.mode is not None or decoding.form != "pil" or is_sized:
            image = _in_bytes(image, opened.format)
        if decoding.mode is not None and image.mode != decoding.mode:
            image = image.convert(decoding.mode)
        if is_sized:
            # What is no JPEG has its upright size only now: some formats are turned as they load.
            crop = crop or photos.crop_of(decoding, image.height, image.width)
            return crop.resized(np.asarray(image), by)
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
        return pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in _AS_BYTES:
        return image.convert(_AS_BYTES[image.mode])
    raise ImageError(
        f'{file_format} of mode {image.mode} has no form in bytes; decode="pil" gives it as it is'
    )


_thread = threading.local()


def _scratch(nbytes: int) -> _Array:
    """Memory of this thread, for a picture that is resized at once; fresh memory costs half of a decode."""
    if nbytes > _MOST_KEPT:
        return np.empty(nbytes, np.uint8)
    kept: _Array | None = getattr(_thread, "memory", None)
    if kept is None or len(kept) < nbytes:
        kept = _thread.memory = np.empty(nbytes, np.uint8)
    return kept


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _by_simplejpeg(data: _Buffer, decoding: Decoding) -> _Array | None:
    """The pixels of a JPEG; None where Pillow is to decode it, or to say what is wrong."""
    library = None if decoding.exif_transpose or format_of(data) != "JPEG" else _simplejpeg()
    if library is None:
        return None
    try:
        height, width, space, _ = library.decode_jpeg_header(data)
        target = _COLORS.get((space, decoding.mode))
        limit = pillow().MAX_IMAGE_PIXELS
        if target is None or (limit is not None and height * width > limit):
            return None
        if decoding.size is None:
            array: _Array = library.decode_jpeg(data, target, strict=True)
            return array[..., 0] if target == "GRAY" else array
        crop = photos.crop_of(decoding, height, width)
        by = crop.reduction()
        height, width = -(-height // by), -(-width // by)
        memory = _scratch(height * width * 3)
        reduced = {"min_height": height, "min_width": width, "buffer": memory}
        array = library.decode_jpeg(data, target, strict=True, **reduced)
    except ValueError:
        return None
    return crop.resized(array[..., 0] if target == "GRAY" else array, by)
