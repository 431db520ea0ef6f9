"""Photos of any shape to one size: which part of a picture is taken, what a decoder reduces, and the resize.

torch resizes colours: three times as fast as Pillow, and the same to a grey level. Grey, where it gains
little, and alpha are left to Pillow, where a clear pixel lends its neighbours no colour. A JPEG that has
pixels enough is decoded at a half, a quarter or an eighth, which takes a fraction of the time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.codec.decoding import Decoding

# A reduced picture keeps so many times the pixels of a side that the resize needs: with fewer, the mean error
# of a noisy photo is 2.5 grey levels, with these 0.7.
_KEPT = 1.5
# Of a picture of extreme shape, no more than this much of its long side beyond the crop is resized.
_MARGIN = 16
_ATTEMPTS = 10

_Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Cut:
    """The part of a picture that is resized, and to what; the middle of that is the result.

    Attributes:
        whole: height and width of the picture that the part is of. size: of the result.
    """

    interpolation: str
    whole: tuple[int, int]
    top: int
    left: int
    height: int
    width: int
    target: tuple[int, int]
    size: tuple[int, int]

    def reduction(self, is_turned: bool = False) -> int:
        """1, 2, 4 or 8: how many times smaller a JPEG may be decoded before.

        What is turned after that must have whole rows and columns, as only the last may be one in part.
        """
        common = math.gcd(*self.whole, 8) if is_turned else 8
        height, width = (_KEPT * side for side in self.target)
        for by in (8, 4, 2):
            if common % by == 0 and self.height >= by * height and self.width >= by * width:
                return by
        return 1

    def of(self, picture: _Array, by: int = 1) -> _Array:
        """uint8 [*size] or [*size, C] of a picture, or of one that was reduced; never over its memory."""
        top, left, rows, columns = self.top // by, self.left // by, self.height / by, self.width / by
        part = picture[top : math.ceil(top + rows), left : math.ceil(left + columns)]
        resized = _resized(part, (rows, columns), self.target, self.interpolation)
        height, width = self.size
        y, x = round((self.target[0] - height) / 2), round((self.target[1] - width) / 2)
        return resized[y : y + height, x : x + width]


def cut_of(decoding: Decoding, height: int, width: int, data: bytes | memoryview) -> Cut:
    """The cut of a picture of this size; `data`, the bytes of its file, tell it where no dataset reads it."""
    size: Any = decoding.size  # a pair, as the Decoding made it
    of = decoding.interpolation, (height, width)
    if decoding.crop == "random":
        return Cut(*of, *_random(decoding, height, width, data), size, size)
    if decoding.crop is None:
        return Cut(*of, 0, 0, height, width, size, size)
    rows, columns = size
    # Evenly on both sides, so the middle stays where it is.
    top = max(0, (height - _MARGIN * -(-width * rows // columns)) // 2)
    left = max(0, (width - _MARGIN * -(-height * columns // rows)) // 2)
    height, width = height - 2 * top, width - 2 * left
    if decoding.resize is not None:
        rows, columns = decoding.resize, decoding.resize
    is_wide = width * rows >= height * columns
    target = (rows, rows * width // height) if is_wide else (columns * height // width, columns)
    return Cut(*of, top, left, height, width, target, size)


def _random(
    decoding: Decoding, height: int, width: int, data: bytes | memoryview
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a part whose area and shape are drawn within `scale` and `ratio`."""
    if decoding.seed is None:
        import torch

        uniform: Callable[[int], Any] = torch.rand
    else:
        uniform = base.numpy_generator(base.crop_key(decoding.seed, zlib.crc32(data))).random
    (least, most), (narrow, wide) = decoding.scale, decoding.ratio
    for _ in range(_ATTEMPTS):
        area, shape, y, x = uniform(4).tolist()
        area = height * width * (least + area * (most - least))
        shape = math.exp(math.log(narrow) + shape * (math.log(wide) - math.log(narrow)))
        rows, columns = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = int(y * (height - rows + 1)), int(x * (width - columns + 1))
            return min(top, height - rows), min(left, width - columns), rows, columns
    # As large as the shapes allow, in the middle.
    rows = min(height, max(1, round(width / narrow)))
    columns = min(width, max(1, round(height * wide)))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def _resized(
    picture: _Array, sides: tuple[float, float], target: tuple[int, int], interpolation: str
) -> _Array:
    """The picture, of which the last row and column may be whole only in part, at its target size."""
    if picture.shape[2:] != (3,):
        from PIL import Image

        kind = getattr(Image, interpolation.upper())
        box = 0, 0, sides[1], sides[0]
        return np.asarray(Image.fromarray(picture).resize(target[::-1], kind, box=box))
    import torch

    # torch takes no read-only memory, copies what has gaps, and makes planes of what has other strides.
    own = np.require(picture, requirements=["C", "W"])
    planes = torch.from_numpy(own)[None].permute(0, 3, 1, 2)
    # Not by size=, where a picture of 187.5 rows would be one of 188; torch rounds the size down.
    factors = tuple(to / side * (1 + 1e-9) for to, side in zip(target, sides, strict=True))
    resized = torch.nn.functional.interpolate(
        planes, scale_factor=factors, mode=interpolation, antialias=True
    )
    rows, columns = target
    array: _Array = resized[0].permute(1, 2, 0).numpy()
    return array[:rows, :columns]
