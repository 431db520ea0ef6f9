"""Images: the bytes of a file to a picture, an array or a tensor; PIL images as plain values, and back.

Pillow decodes, from a closed list of formats that the first bytes choose among, within its own limit of
pixels, and without its tolerance for truncated files. JPEG to arrays and tensors is left to simplejpeg where
that is installed: 1.3 times as fast, and the same pixels where both bring the same libjpeg-turbo. What it
does not decode without a warning is Pillow's to judge. Neither is imported before there is an image.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import io
import operator
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from edcache.base import EdcacheError, ImageError, MissingDependencyError, OptionError
from edcache.codec.classes import dataclass_fields, is_namedtuple

if TYPE_CHECKING:
    import torch

Form = Literal["pil", "numpy", "tensor"] | None
Decode = Any  # "pil", "numpy", "tensor", None or a Decoding

STORED: Final = "stored"
"""As a `decode=` argument: what the writer chose."""

_FORMS: Final = ("pil", "numpy", "tensor", None)
_MODES: Final = ("L", "RGB", "RGBA", None)
_LIBRARIES: Final = ("auto", "pillow", "simplejpeg")
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
# What simplejpeg makes of a JPEG's colours exactly as Pillow does, by the mode that is asked for.
_COLORS: Final = {
    ("Gray", None): "GRAY",
    ("Gray", "L"): "GRAY",
    ("YCbCr", None): "RGB",
    ("YCbCr", "RGB"): "RGB",
}

_Array = npt.NDArray[np.uint8]
_Buffer = bytes | memoryview


@dataclasses.dataclass(frozen=True)
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
        for name, choices in (("form", _FORMS), ("mode", _MODES), ("library", _LIBRARIES)):
            if getattr(self, name) not in choices:
                raise OptionError(
                    f"{name}={getattr(self, name)!r} of a Decoding: choose one of "
                    f"{', '.join(map(repr, choices))}"
                )
        if type(self.exif_transpose) is not bool:
            raise OptionError(f"exif_transpose={self.exif_transpose!r} of a Decoding: give True or False")

    @classmethod
    def of(cls, decode: Any) -> Decoding:
        """What a `decode=` argument means: a form, or a Decoding as it is. Raises: OptionError."""
        if isinstance(decode, cls):
            return decode
        if decode is not None and (not isinstance(decode, str) or decode not in _FORMS):
            raise OptionError(
                f'decode={decode!r}: choose "pil", "numpy", "tensor" or None, or give an edcache.Decoding'
            )
        return cls(decode)  # type: ignore[arg-type]


class ImageFile:
    """An image as the bytes of its file: a leaf that is stored exactly, and decoded when it is read.

    Args:
        source: the path of a file, which is read when the sample is encoded, or its bytes.
        decode: what a reader gets unless it chooses for itself: "pil", "numpy", "tensor", None for an
            ImageFile, or an `edcache.Decoding`, whose `library` is not stored.
    Attributes:
        path: as it was given; None for bytes, and for one that was read from an archive.
        decoding: the Decoding that `decode` means.
    Raises:
        OptionError: another `decode`.

    JPEG, PNG, WebP, GIF, BMP and TIFF are decoded. A file that begins like none of them is refused when the
    sample is encoded; bytes are stored whatever they are. Two are equal if their bytes and decodings are.

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
        """The bytes of the file; of a path, they are read anew each time. Raises: OSError."""
        if self._data is not None:
            return self._data
        assert self.path is not None
        with open(self.path, "rb") as file:
            return file.read()

    @property
    def format(self) -> str | None:
        """ "JPEG", "PNG", "WEBP", "GIF", "BMP" or "TIFF" by its first bytes; None for any other file."""
        return format_of(self.data)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, as the file has them; no pixel is decoded. Raises: ImageError, as `decode`."""
        data = self.data
        with _refusing(data), _opened(data) as image:
            width, height = image.size
            return width, height

    def decode(self, decode: Decode = "pil") -> Any:
        """The picture: see `edcache.Decoding`; the caller owns it.

        Raises:
            ImageError: "JPEG does not decode: image file is truncated (5 bytes not processed); ...".
            MissingDependencyError: there is no Pillow.
        """
        decoding = Decoding.of(decode)
        return self if decoding.form is None else _decoded(self.data, decoding)


def file_bytes(image: ImageFile) -> bytes:
    """The bytes of an image file; ImageError where it cannot be read."""
    try:
        return image.data
    except OSError as error:
        reason = error.strerror or str(error)
        raise ImageError(f"image file {image.path!r} ({reason}); mend it or leave it out") from error


def revived(data: Any, decoding: Decoding) -> Any:
    """What a reader gets of the bytes of an image file. Raises: as `ImageFile.decode`."""
    return ImageFile(bytes(data), decoding) if decoding.form is None else _decoded(data, decoding)


def read_through(sample: Any, decoding: Decoding | None) -> Any:
    """A sample that is not stored, as it would be read: image files decoded as `decoding` or each says."""
    if isinstance(sample, ImageFile):
        return revived(file_bytes(sample), decoding or sample.decoding)
    kind, names = type(sample), tuple[str, ...]()
    if kind in (dict, OrderedDict):
        values = list(sample.values())
    elif kind in (list, tuple) or is_namedtuple(sample):
        values = list(sample)
    elif dataclasses.is_dataclass(kind):
        names = dataclass_fields(kind)
        values = [getattr(sample, name) for name in names]
    else:
        return sample
    read = [read_through(value, decoding) for value in values]
    if all(map(operator.is_, read, values)):
        return sample
    if kind is list:
        return read
    if isinstance(sample, dict):
        return kind(zip(sample, read, strict=True))
    if isinstance(sample, tuple):
        return tuple.__new__(kind, read)
    made = copy.copy(sample)
    for name, value in zip(names, read, strict=True):
        object.__setattr__(made, name, value)
    return made


def children_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Key and value of each child of a dict, dataclass, list or tuple; None for anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    return list(enumerate(value)) if isinstance(value, list | tuple) else None


def format_of(data: _Buffer) -> str | None:
    """Pillow's name for the format that the first bytes of a file tell; None for all others."""
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "WEBP"
    return next((name for start, name in _SIGNATURES.items() if head.startswith(start)), None)


def _decoded(data: _Buffer, decoding: Decoding) -> Any:
    """The picture of an image file, in a form that is not None."""
    with _refusing(data):
        if decoding.form == "pil":
            return _picture(data, decoding)
        array = _pixels(data, decoding)
        if decoding.form == "numpy":
            return array if array.flags.writeable else array.copy()
        import torch  # what says of an archive what it holds loads no torch

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


@contextlib.contextmanager
def _refusing(data: _Buffer) -> Iterator[None]:
    """Makes an ImageError of whatever a decoder raises over bytes that may be anybody's."""
    try:
        yield
    except EdcacheError:
        raise
    except MemoryError:
        # Not chained: the decoder's frames hold memory.
        flaw = "does not fit into the memory of this process when it is decoded"
        raise ImageError(f"{format_of(data)} {flaw}; {_INSTEAD}") from None
    except Exception as error:  # decoders raise what they like
        if type(error).__name__ in ("DecompressionBombError", "DecompressionBombWarning"):
            flaw = (
                f"is larger than Pillow's limit, PIL.Image.MAX_IMAGE_PIXELS ({error}); set that if you trust "
                "the file"
            )
        else:
            reason = str(error)[:200] or type(error).__name__
            flaw = f"does not decode: {reason}; mend or leave out the file"
        raise ImageError(f"{format_of(data)} {flaw}; {_INSTEAD}") from error


@functools.cache
def pillow() -> Any:
    """Pillow, with the plugins of the closed list, of which it loads the others when it opens a file."""
    try:
        from PIL import Image, TiffImagePlugin, WebPImagePlugin  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "decoding an image file takes Pillow; pip install edcache[images]"
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
        return pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
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
        limit = pillow().MAX_IMAGE_PIXELS
        if target is None or (limit is not None and height * width > limit):
            return None
        array: _Array = library.decode_jpeg(data, target, strict=True)
    except ValueError:
        return None
    return array[..., 0] if target == "GRAY" else array
