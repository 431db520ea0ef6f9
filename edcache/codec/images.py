"""Images: `ImageFile` as a field of samples; `Decoding`: decode, crop and resize files at a read.

Pillow decodes a closed list of formats, which the first bytes of a file choose. Pillow's limit of pixels holds, and
truncated files are errors. If simplejpeg is installed, it decodes JPEG to arrays and tensors, 1.3 times as fast, to
the same pixels if both have the same libjpeg-turbo; Pillow decodes again if simplejpeg warns. Both are imported at
the first image.

torch resizes colours, three times as fast as Pillow, and the same to a grey level. Pillow resizes grey, for which torch
gains little, and alpha, since a clear pixel must lend its neighbours no colour. A JPEG with enough pixels is decoded at
a half, a quarter or an eighth of its size, in a fraction of the time.

The pictures of a batch are decoded in the threads that its thread has (`decode_in`), batch after batch. A batch to
each thread would take as long as all pictures of a batch: the first one comes late, and at the end threads have none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import (
    Decode,
    EdcacheError,
    ImageError,
    MissingDependencyError,
    OptionError,
    check_choice,
    cut_traceback,
    shown,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import torch

ImageForm = Literal["pil", "numpy", "tensor"] | None

STORED: Final = "stored"
"""The `decode=` argument for the decoding that the writer chose."""

_FORMS: Final = ("pil", "numpy", "tensor", None)
_CHOICES: Final = {"form": _FORMS, "mode": ("L", "RGB", "RGBA", None), "crop": ("center", "random", None)}

_INSTEAD: Final = "decode=None gives the bytes as they are"

# First bytes of a file, and the format that Pillow may try then.
_SIGNATURES: Final = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}
# Pillow's modes that are converted to a mode of 8 bits. 16 bits keep their high byte.
_AS_BYTES: Final = {"1": "L", "La": "LA", "PA": "RGBA", "RGBa": "RGBA"} | dict.fromkeys(
    ("RGBX", "CMYK", "YCbCr", "LAB", "HSV"), "RGB"
)
# (colours of the JPEG, requested mode): the mode in which simplejpeg makes the same pixels as Pillow.
_COLORS: Final = {
    ("Gray", None): "GRAY",
    ("Gray", "L"): "GRAY",
    ("YCbCr", None): "RGB",
    ("YCbCr", "RGB"): "RGB",
}

# Pillow's names for JPEG, with one picture or with more behind it.
_JPEG: Final = ("JPEG", "MPO")
# EXIF's tag, and its values that swap height and width.
_ORIENTATION: Final = 0x0112
_ON_ITS_SIDE: Final = (5, 6, 7, 8)

# Pictures that a thread decodes before it takes others: some milliseconds.
_AT_ONCE = 4
_Pixels = npt.NDArray[np.uint8]
_Buffer = bytes | memoryview
# Pixels of a side of a reduced picture, per pixel after the resize: with 1, the mean error of a noisy photo is 2.5 grey
# levels, with 1.5 0.7.
_KEPT = 1.5
_ATTEMPTS = 10
# Of torchvision's RandomResizedCrop: share of the area, and width divided by height.
_SCALE = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)


@cut_traceback
@dataclasses.dataclass(frozen=True)
class Decoding:
    """Decoding of image files when a sample is read.

    Args:
        form: "pil" gives a PIL image. "numpy" gives an array uint8 [H, W] or [H, W, C]. "tensor" gives a tensor uint8
            [C, H, W]. The caller owns the memory. None gives an `edcache.ImageFile`.
        mode: "L", "RGB" or "RGBA" converts every image to this mode. None keeps the mode of the file. Arrays and
            tensors then convert palettes to RGB (RGBA if they are transparent), CMYK to RGB, one bit to 0 or 255, and
            16 bits to their high byte.
        exif_transpose: True rotates the picture by its EXIF orientation. The stored bytes do not change.
        size: (height, width) in pixels, or one number for both. Every picture is resized to it, antialiased, and has
            channels of 8 bits. None keeps the size of the file.
        crop: the part of the picture that is resized to `size`. None takes all of it and ignores its aspect ratio.
            "center" takes the largest part in the middle that has the shape of `size`. "random" draws a new part at
            every read, as torchvision's RandomResizedCrop does, from torch's generator of the process, which a
            DataLoader seeds in each worker, and which the threads of a loader share.
    Raises:
        OptionError: an argument has another value.

    Animations and files of several pages give their first picture. If simplejpeg is installed, it decodes JPEG to
    arrays and tensors; Pillow decodes everything else. A JPEG that has more than three times the pixels that a side
    needs is decoded at a half, a quarter or an eighth of its size before it is resized. This changes values by about 1.
    An archive never stores `size` and `crop`. Other sizes, crops that belong to a sample, and other filters are a
    `transform=` of torchvision.

    >>> decode = edcache.Decoding("tensor", mode="RGB", size=224, crop="center")
    >>> ds = edcache.CachedDataset.from_cache("photos.zip", decode=decode)
    """

    form: ImageForm = "pil"
    mode: str | None = None
    exif_transpose: bool = False
    size: int | tuple[int, int] | None = None
    crop: Literal["center", "random"] | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if type(self.exif_transpose) is not bool:
            raise OptionError(f"exif_transpose={self.exif_transpose!r} of a Decoding: give True or False")
        if self.size is not None:
            object.__setattr__(self, "size", _parse_size(self.size, self.form))
        elif self.crop is not None:
            raise OptionError("crop of a Decoding: goes with size=; give that too, or leave it out")

    @classmethod
    def of(cls, decode: Any) -> Decoding:
        """Make the Decoding of a `decode=` argument, a form or a Decoding. Raises: OptionError."""
        if isinstance(decode, cls):
            return decode
        if decode is not None and (not isinstance(decode, str) or decode not in _FORMS):
            choices = 'choose "pil", "numpy", "tensor" or None, or give an edcache.Decoding'
            raise OptionError(f"decode={shown(decode)}: {choices}")
        return cls(decode)  # type: ignore[arg-type]


def _parse_size(size: Any, form: ImageForm) -> tuple[int, int]:
    """Return height and width of a `size=`. Raises: OptionError."""
    sides = (size, size) if _is_count(size) else tuple(size) if isinstance(size, (list, tuple)) else ()
    if len(sides) != 2 or not all(map(_is_count, sides)):
        raise OptionError(
            f"size={size!r} of a Decoding: give height and width in pixels, or one number for both"
        )
    if form is None:
        raise OptionError(f"size={size!r} of a Decoding: form=None decodes nothing; choose another form")
    return int(sides[0]), int(sides[1])


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


@cut_traceback
class ImageFile:
    """Image file as a field of a sample: its bytes are stored unchanged, and decoded at each read.

    Args:
        source: the path of a file, or the bytes of a file. A path is read when the sample is written.
        decode: the default decoding of readers: "pil", "numpy", "tensor", None (an ImageFile), or an `edcache.Decoding`
            without a size. A reader may choose another one.
    Attributes:
        path: the path as given; None for bytes, and for an ImageFile that was read from an archive.
        decoding: `decode` as an `edcache.Decoding`.
    Raises:
        OptionError: `decode` or `source` is something else.

    The formats are JPEG, PNG, WebP, GIF, BMP and TIFF. Writing a sample refuses the path of a file of another format,
    but stores any bytes. Two ImageFiles are equal if their bytes and decodings are equal.

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
        """Bytes of the file. A path is read anew at each access. Raises: OSError."""
        if self._data is not None:
            return self._data
        assert self.path is not None
        with open(self.path, "rb") as file:
            return file.read()

    @property
    def format(self) -> str | None:
        """Format by the first bytes, "JPEG", "PNG", "WEBP", "GIF", "BMP" or "TIFF"; None for another file."""
        return format_of(self.data)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, from the header of the file. Raises: ImageError, as `decode`."""
        data = self.data
        with _image_errors(data, self.path), _open(data) as image:
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
        return self if decoding.form is None else _decode_file(self.data, decoding, self.path)


def file_bytes(image: ImageFile) -> bytes:
    """Return the bytes of an image file. Raises: ImageError, the file cannot be read."""
    try:
        return image.data
    except OSError as error:
        reason = error.strerror or str(error)
        raise ImageError(f"image file {image.path!r} ({reason}); mend it or leave it out") from error


def revived(data: Any, decoding: Decoding) -> Any:
    """Decode a field from the stored bytes of an image file. Raises: as `ImageFile.decode`."""
    return ImageFile(bytes(data), decoding) if decoding.form is None else _decode_file(data, decoding)


def format_of(data: _Buffer) -> str | None:
    """Return Pillow's name of the format, by the first bytes of a file; None for another format."""
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "WEBP"
    return next((name for start, name in _SIGNATURES.items() if head.startswith(start)), None)


def _decode_file(data: _Buffer, decoding: Decoding, path: str | None = None) -> Any:
    """Decode an image file; `decoding.form` is not None."""
    with _image_errors(data, path):
        if decoding.form == "pil" and decoding.size is None:
            return _decode_by_pillow(data, decoding)
        array = _pixels(data, decoding)
        if decoding.form == "pil":
            return pillow().fromarray(array)
        if decoding.form == "numpy":
            return np.require(array, requirements=["C", "W"])
        import torch  # here, because `edcache info` starts fast and reads no tensors

        return torch.from_numpy(array.copy("C"))


_of_thread = threading.local()


def decode_in(threads: Executor) -> None:
    """Let this thread decode the pictures of its batches in other threads, which may be given to several."""
    _of_thread.threads = threads


def decoded_together(
    files: Sequence[_Buffer],
    decoding: Decoding,
    allocate: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
) -> torch.Tensor | None:
    """Decode one or more files to one uint8 tensor [n, *shape of each picture]; None if they differ in shape.

    Args:
        decoding: to arrays or tensors. allocate: `allocate(shape, dtype)` returns the memory.
    Raises: as `ImageFile.decode`; and ImageError if memory does not suffice.
    """
    import torch

    with _image_errors(files[0]):
        first = _pixels(files[0], decoding)
    try:
        together = allocate((len(files), *first.shape), torch.uint8)
    except MemoryError:
        raise ImageError(
            f"{len(files)} pictures of {first.nbytes:,} bytes do not fit into the memory of this process"
        ) from None
    rows = together.numpy()
    rows[0] = first

    def decode(start: int) -> bool:
        """Decode the next pictures; False if one differs in shape."""
        for row in range(start, min(start + _AT_ONCE, len(files))):
            with _image_errors(files[row]):
                array = _pixels(files[row], decoding)
            if array.shape != rows.shape[1:]:
                return False
            rows[row] = array
        return True

    starts = range(1, len(files), _AT_ONCE)
    threads: Executor | None = getattr(_of_thread, "threads", None)
    are_alike = map(decode, starts) if threads is None else threads.map(decode, starts)
    return together if all(are_alike) else None


def _pixels(data: _Buffer, decoding: Decoding) -> _Pixels:
    """Decode to [H, W] or [H, W, C], for tensors to a view [C, H, W]; it may be read-only."""
    array = _decode_by_simplejpeg(data, decoding)
    array = np.asarray(_decode_by_pillow(data, decoding)) if array is None else array
    if decoding.form != "tensor":
        return array
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
    """Import Pillow, with plugins that it does not load by itself when it opens a file."""
    try:
        from PIL import Image, TiffImagePlugin, WebPImagePlugin  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "decoding an image file needs Pillow; pip install edcache[images]"
        ) from None
    return Image


def _open(data: _Buffer) -> Any:
    name = format_of(data)
    if name is None:
        raise ImageError(
            f"its first bytes are {bytes(data[:8])!r}, of no JPEG, PNG, WebP, GIF, BMP or TIFF file; "
            f"{_INSTEAD}"
        )
    return pillow().open(io.BytesIO(data), formats=(name,))


def _decode_by_pillow(data: _Buffer, decoding: Decoding) -> Any:
    """Decode by Pillow to a PIL image, or to an array if `decoding` has a size; 8-bit channels if requested."""
    with _open(data) as opened:
        size: Any = decoding.size
        part, by = None, 1
        if size is not None and opened.format in _JPEG:
            orientation = opened.getexif().get(_ORIENTATION, 1) if decoding.exif_transpose else 1
            width, height = opened.size[::-1] if orientation in _ON_ITS_SIDE else opened.size
            part = crop_of(decoding, height, width)
            by = part.reduction(size)
            if orientation != 1:
                by = math.gcd(by, height, width)  # whole rows and columns: only the last may be partial
            if by > 1:
                opened.draft(None, tuple(side // by for side in opened.size))
        opened.load()
        image = opened
        if decoding.exif_transpose:
            from PIL import ImageOps

            image = ImageOps.exif_transpose(opened)
        if decoding.mode is not None or decoding.form != "pil" or size is not None:
            image = _convert_to_bytes(image, opened.format)
        if decoding.mode is not None and image.mode != decoding.mode:
            image = image.convert(decoding.mode)
        if size is not None:
            # Only now other formats have their upright size: some are turned as they load.
            part = part or crop_of(decoding, image.height, image.width)
            return part.resized(np.asarray(image), size, by)
        # The opened image keeps the file, and its class.
        return image.copy() if image is opened and decoding.form == "pil" else image


def _convert_to_bytes(image: Any, file_format: str) -> Any:
    if image.mode in ("L", "LA", "RGB", "RGBA"):
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


def _decode_by_simplejpeg(data: _Buffer, decoding: Decoding) -> _Pixels | None:
    """Decode a JPEG by simplejpeg; None if Pillow is to decode it, or to raise the error."""
    library = None if decoding.exif_transpose or format_of(data) != "JPEG" else _simplejpeg()
    if library is None:
        return None
    try:
        height, width, space, _ = library.decode_jpeg_header(data)
        target = _COLORS.get((space, decoding.mode))
        limit = pillow().MAX_IMAGE_PIXELS
        if target is None or (limit is not None and height * width > limit):
            return None
        size: Any = decoding.size
        part = None if size is None else crop_of(decoding, height, width)
        by = 1 if part is None else part.reduction(size)
        sides = {"min_height": -(-height // by), "min_width": -(-width // by)}
        array: _Pixels = library.decode_jpeg(data, target, strict=True, **sides)
    except ValueError:
        return None
    array = array[..., 0] if target == "GRAY" else array
    return array if part is None else part.resized(array, size, by)


class Crop(NamedTuple):
    """Part of a picture that is resized, in whole pixels."""

    top: int
    left: int
    height: int
    width: int

    def reduction(self, size: tuple[int, int]) -> int:
        """Return by how much a JPEG may be reduced before it is cut: 1, 2, 4 or 8."""
        height, width = (_KEPT * side for side in size)
        return next((n for n in (8, 4, 2) if self.height >= n * height and self.width >= n * width), 1)

    def resized(self, picture: _Pixels, size: tuple[int, int], by: int = 1) -> _Pixels:
        """Return uint8 [*size] or [*size, C], a copy, of a picture that was reduced `by` times."""
        top, left, rows, columns = self.top // by, self.left // by, self.height / by, self.width / by
        part = picture[top : math.ceil(top + rows), left : math.ceil(left + columns)]
        return _resize(part, (rows, columns), size)


def crop_of(decoding: Decoding, height: int, width: int) -> Crop:
    """Choose the part of a picture of this size; a random one is drawn from torch's generator."""
    if decoding.crop == "random":
        return _draw(height, width)
    if decoding.crop is None:
        return Crop(0, 0, height, width)
    size: Any = decoding.size  # a pair, as the Decoding made it
    # The largest part in the middle that has the shape of the result.
    scale = min(height / size[0], width / size[1])
    rows, columns = (max(1, round(side * scale)) for side in size)
    return Crop((height - rows) // 2, (width - columns) // 2, rows, columns)


def _draw(height: int, width: int) -> Crop:
    """Draw a part as torchvision's RandomResizedCrop does by default."""
    import torch

    (least, most), (narrow, wide) = _SCALE, _RATIO
    for _ in range(_ATTEMPTS):
        area, shape, y, x = torch.rand(4).tolist()
        area = height * width * (least + area * (most - least))
        shape = math.exp(math.log(narrow) + shape * (math.log(wide) - math.log(narrow)))
        rows, columns = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
        if 0 < rows <= height and 0 < columns <= width:
            return Crop(int(y * (height - rows + 1)), int(x * (width - columns + 1)), rows, columns)
    # The largest allowed part, in the middle.
    rows = min(height, max(1, round(width / narrow)))
    columns = min(width, max(1, round(height * wide)))
    return Crop((height - rows) // 2, (width - columns) // 2, rows, columns)


def _resize(picture: _Pixels, sides: tuple[float, float], size: tuple[int, int]) -> _Pixels:
    """Resize a picture, antialiased; `sides`: its height and width, as its last row may be partial."""
    if picture.shape[2:] != (3,):
        image, box = pillow().fromarray(picture), (0, 0, sides[1], sides[0])
        return np.asarray(image.resize(size[::-1], pillow().Resampling.BILINEAR, box=box))
    import torch

    # torch takes no read-only memory, copies an array with gaps, and makes planes of one with other strides.
    own = np.require(picture, requirements=["C", "W"])
    planes = torch.from_numpy(own)[None].permute(0, 3, 1, 2)
    # Not by size=, which would take 187.5 rows for 188; torch rounds the size down.
    factors = tuple(to / side * (1 + 1e-9) for to, side in zip(size, sides, strict=True))
    resized = torch.nn.functional.interpolate(planes, scale_factor=factors, mode="bilinear", antialias=True)
    array: _Pixels = resized[0].permute(1, 2, 0).numpy()
    return array[: size[0], : size[1]]
