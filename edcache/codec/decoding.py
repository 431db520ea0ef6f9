"""What an image file becomes when it is read: `decode=` and its options."""

from __future__ import annotations

import dataclasses
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
    "crop": ("center", "random", None),
}


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
        size: (height, width) in pixels, or one number for both. Every picture is resized to it, antialiased,
            and has channels of 8 bits. None keeps the size of the file.
        crop: the part of the picture that is resized to `size`. None takes all of it and ignores its aspect
            ratio. "center" takes the largest part in the middle that has the shape of `size`. "random" draws
            a new part at every read, as torchvision's RandomResizedCrop does, from torch's generator of the
            process, which a DataLoader seeds in each worker, and which the threads of a loader share.
    Raises:
        OptionError: an argument has another value.

    Animations and files of several pages give their first picture. If simplejpeg is installed, it decodes
    JPEG to arrays and tensors; Pillow decodes everything else. A JPEG that has more than three times the
    pixels that a side needs is decoded at a half, a quarter or an eighth of its size before it is resized.
    This changes values by about 1. An archive never stores `size` and `crop`. Other sizes, crops that belong
    to a sample, and other filters are a `transform=` of torchvision.

    >>> decode = edcache.Decoding("tensor", mode="RGB", size=224, crop="center")
    >>> ds = edcache.CachedDataset.from_cache("photos.zip", decode=decode)
    """

    form: Form = "pil"
    mode: str | None = None
    exif_transpose: bool = False
    size: int | tuple[int, int] | None = None
    crop: Literal["center", "random"] | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise OptionError(
                    f"{name}={getattr(self, name)!r} of a Decoding: choose one of "
                    f"{', '.join(map(repr, choices))}"
                )
        if type(self.exif_transpose) is not bool:
            raise OptionError(f"exif_transpose={self.exif_transpose!r} of a Decoding: give True or False")
        if self.size is not None:
            object.__setattr__(self, "size", _pair(self.size, self.form))
        elif self.crop is not None:
            raise OptionError("crop of a Decoding: goes with size=; give that too, or leave it out")

    @classmethod
    def of(cls, decode: Any) -> Decoding:
        """The Decoding of a `decode=` argument, which is a form or a Decoding. Raises: OptionError."""
        if isinstance(decode, cls):
            return decode
        if decode is not None and (not isinstance(decode, str) or decode not in _FORMS):
            choices = 'choose "pil", "numpy", "tensor" or None, or give an edcache.Decoding'
            raise OptionError(f"decode={shown(decode)}: {choices}")
        return cls(decode)  # type: ignore[arg-type]


def _pair(size: Any, form: Form) -> tuple[int, int]:
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
