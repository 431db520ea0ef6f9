"""What an image file becomes when it is read: `decode=` and its options."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, Literal

import numpy as np

from edcache.base import OptionError, shown

Form = Literal["pil", "numpy", "tensor"] | None
Decode = Any  # "pil", "numpy", "tensor", None or a Decoding

STORED: Final = "stored"
"""The `decode=` argument for the decoding that the writer chose."""

_FORMS: Final = ("pil", "numpy", "tensor", None)
_CHOICES: Final = {
    "form": _FORMS,
    "mode": ("L", "RGB", "RGBA", None),
    "library": ("auto", "pillow", "simplejpeg"),
    "crop": ("center", "random", None),
    "interpolation": ("bilinear", "bicubic"),
}
# RandomResizedCrop's of torchvision.
_SCALE: Final = (0.08, 1.0)
_RATIO: Final = (3 / 4, 4 / 3)


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How image files are decoded when a sample is read.

    Args:
        form: "pil" gives a PIL image. "numpy" gives an array uint8 [H, W] or [H, W, C]. "tensor" gives a
            tensor uint8 [C, H, W]. The caller owns the memory. None gives an `edcache.ImageFile`.
        mode: "L", "RGB" or "RGBA" converts every image to this mode. None keeps the mode of the file. Arrays
            and tensors then convert palettes to RGB (RGBA if they are transparent), CMYK to RGB, one bit to 0
            or 255, and 16 bits to their high byte.
        exif_transpose: True rotates the picture by its EXIF orientation. The stored bytes do not change.
        library: the library that decodes JPEG to arrays and tensors: "pillow", "simplejpeg", or "auto", which
            is simplejpeg if it is installed. Both give the same pixels if they contain the same release of
            libjpeg-turbo; otherwise values may differ by 1. Pillow decodes everything else.
        size: (height, width) in pixels, or one number for both. Every picture is resized to it, and has
            channels of 8 bits. None keeps the size of the file.
        crop: the part of the picture that is resized to `size`. None takes all of it and ignores its aspect
            ratio. "center" resizes the short side to `resize` and cuts out the middle, as torchvision's
            Resize and CenterCrop do. A side of more than 16 times the cut is first shortened evenly. "random"
            draws a new part at every read, as torchvision's RandomResizedCrop does.
        resize: the pixels of the short side before `crop="center"`. None takes as few as the cut needs.
        interpolation: "bilinear" or "bicubic". Both use antialiasing.
        scale: the least and the most of the share of the area that a random part has.
        ratio: the least and the most of the width of a random part divided by its height.
        seed: a number makes a random part a function of seed, epoch and index of the sample, as for
            `edcache.Seeded`: whoever reads it, and the same for all pictures of a sample. `ImageFile.decode`
            and readers that are no dataset take epoch 0, and the crc32 of the file for the index. None draws
            from torch's generator of the process, which a DataLoader seeds in each worker, and which the
            threads of a loader share.
    Raises:
        OptionError: an argument has another value.

    Animations and files of several pages give their first picture. A JPEG that has more than three times the
    pixels that a side needs is decoded at a half, a quarter or an eighth of its size before it is resized.
    This changes values by about 1. An archive never stores `size` and the arguments after it.

    >>> decode = edcache.Decoding("tensor", mode="RGB", size=224, crop="center", resize=256)
    >>> ds = edcache.CachedDataset.from_cache("photos.zip", decode=decode)
    """

    form: Form = "pil"
    mode: str | None = None
    exif_transpose: bool = False
    library: str = "auto"
    size: int | tuple[int, int] | None = None
    crop: Literal["center", "random"] | None = None
    resize: int | None = None
    interpolation: str = "bilinear"
    scale: tuple[float, float] = _SCALE
    ratio: tuple[float, float] = _RATIO
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise OptionError(
                    f"{name}={getattr(self, name)!r} of a Decoding: choose one of "
                    f"{', '.join(map(repr, choices))}"
                )
        if type(self.exif_transpose) is not bool:
            raise OptionError(f"exif_transpose={self.exif_transpose!r} of a Decoding: give True or False")
        _check_size(self)

    @classmethod
    def of(cls, decode: Any) -> Decoding:
        """The Decoding of a `decode=` argument, which is a form or a Decoding. Raises: OptionError."""
        if isinstance(decode, cls):
            return decode
        if decode is not None and (not isinstance(decode, str) or decode not in _FORMS):
            choices = 'choose "pil", "numpy", "tensor" or None, or give an edcache.Decoding'
            raise OptionError(f"decode={shown(decode)}: {choices}")
        return cls(decode)  # type: ignore[arg-type]


def _check_size(decoding: Decoding) -> None:
    """Make the size of a Decoding a pair, and what goes with it tuples. Raises: OptionError."""
    size: Any = decoding.size
    resize, seed = decoding.resize, decoding.seed
    scale, ratio = (_range(name, getattr(decoding, name)) for name in ("scale", "ratio"))
    if scale[1] > 1:
        raise _refused("scale", decoding.scale, "give two parts of the area, 0 < least <= most <= 1")
    if size is not None:
        sides = (size, size) if _is_count(size) else tuple(size) if isinstance(size, (list, tuple)) else ()
        if len(sides) != 2 or not all(map(_is_count, sides)):
            raise _refused("size", size, "give height and width in pixels, or one number for both")
        size = int(sides[0]), int(sides[1])
        if decoding.form is None:
            raise _refused("size", size, "form=None decodes nothing; choose another form")
    if resize is not None and not (_is_count(resize) and resize >= max(size or (1,))):
        raise _refused("resize", resize, "give the pixels of the short side before the crop, size or more")
    if (seed is not None and not (_is_count(seed) or seed == 0)) or seed is False:
        raise _refused("seed", seed, "give an integer of 0 or more, or None")
    is_drawn = (scale, ratio, seed) != (_SCALE, _RATIO, None)
    for name, is_given, needed in (
        ("crop", decoding.crop is not None and size is None, "size="),
        ("interpolation", decoding.interpolation != "bilinear" and size is None, "size="),
        ("resize", resize is not None and decoding.crop != "center", 'crop="center"'),
        ("scale, ratio and seed", is_drawn and decoding.crop != "random", 'crop="random"'),
    ):
        if is_given:
            raise OptionError(f"{name} of a Decoding: goes with {needed}; give that too, or leave it out")
    for name, value in (("size", size), ("scale", scale), ("ratio", ratio)):
        object.__setattr__(decoding, name, value)


def _refused(name: str, value: object, remedy: str) -> OptionError:
    return OptionError(f"{name}={value!r} of a Decoding: {remedy}")


def _is_count(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 1)


def _range(name: str, value: Any) -> tuple[float, float]:
    """The least and the most of a range of positive numbers."""
    try:
        least, most = map(float, value)
    except (TypeError, ValueError):
        least, most = 0.0, 0.0
    if not 0 < least <= most < math.inf:
        raise _refused(name, value, "give two numbers, the least and the most, larger than 0")
    return least, most
