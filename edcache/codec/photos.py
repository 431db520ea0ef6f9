"""Photos of any shape to one size: the part of a picture that is taken, what a decoder reduces, the resize.

torch resizes colours, three times as fast as Pillow, and the same to a grey level. Pillow resizes grey, where
torch gains little, and alpha, where a clear pixel must lend its neighbours no colour. A JPEG that has pixels
enough is decoded at a half, a quarter or an eighth of its size, which takes a fraction of the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.codec.decoding import Decoding

# A reduced picture keeps this many times the pixels of a side that the resize needs: with fewer, the mean
# error of a noisy photo is 2.5 grey levels, with these 0.7.
_KEPT = 1.5
_ATTEMPTS = 10
# RandomResizedCrop's of torchvision: the share of the area, and width divided by height.
_SCALE = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)

_Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Crop:
    """The part of a picture that is resized.

    Attributes:
        whole: height and width of the picture.
        top, left, height, width: the part, in whole pixels.
        size: height and width of the result.
    """

    whole: tuple[int, int]
    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]

    def reduction(self, is_turned: bool = False) -> int:
        """Return 1, 2, 4 or 8: a JPEG may be decoded this many times smaller before it is cut.

        A picture that is turned afterwards must have whole rows and columns, as only the last may be partial.
        """
        common = math.gcd(*self.whole, 8) if is_turned else 8
        height, width = (_KEPT * side for side in self.size)
        for by in (8, 4, 2):
            if common % by == 0 and self.height >= by * height and self.width >= by * width:
                return by
        return 1

    def resized(self, picture: _Array, by: int = 1) -> _Array:
        """Return uint8 [*size] or [*size, C], a copy, of a picture that was reduced `by` times."""
        top, left, rows, columns = self.top // by, self.left // by, self.height / by, self.width / by
        part = picture[top : math.ceil(top + rows), left : math.ceil(left + columns)]
        return _resize(part, (rows, columns), self.size)


def crop_of(decoding: Decoding, height: int, width: int) -> Crop:
    """Choose the part of a picture of this size; a random one is drawn from torch's generator."""
    size: Any = decoding.size  # a pair, as the Decoding made it
    if decoding.crop == "random":
        return Crop((height, width), *_draw(height, width), size)
    if decoding.crop is None:
        return Crop((height, width), 0, 0, height, width, size)
    # The largest part in the middle that has the shape of the result.
    scale = min(height / size[0], width / size[1])
    rows, columns = (max(1, round(side * scale)) for side in size)
    return Crop((height, width), (height - rows) // 2, (width - columns) // 2, rows, columns, size)


def _draw(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw top, left, height and width, as torchvision's RandomResizedCrop does by default."""
    import torch

    (least, most), (narrow, wide) = _SCALE, _RATIO
    for _ in range(_ATTEMPTS):
        area, shape, y, x = torch.rand(4).tolist()
        area = height * width * (least + area * (most - least))
        shape = math.exp(math.log(narrow) + shape * (math.log(wide) - math.log(narrow)))
        rows, columns = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
        if 0 < rows <= height and 0 < columns <= width:
            return int(y * (height - rows + 1)), int(x * (width - columns + 1)), rows, columns
    # As large as the shapes allow, in the middle.
    rows = min(height, max(1, round(width / narrow)))
    columns = min(width, max(1, round(height * wide)))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def _resize(picture: _Array, sides: tuple[float, float], size: tuple[int, int]) -> _Array:
    """Resize a picture, antialiased; `sides`: its height and width, as its last row may be partial."""
    if picture.shape[2:] != (3,):
        from PIL import Image

        box = 0, 0, sides[1], sides[0]
        return np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR, box=box))
    import torch

    # torch takes no read-only memory, copies what has gaps, and makes planes of what has other strides.
    own = np.require(picture, requirements=["C", "W"])
    planes = torch.from_numpy(own)[None].permute(0, 3, 1, 2)
    # Not by size=, where a picture of 187.5 rows would be one of 188; torch rounds the size down.
    factors = tuple(to / side * (1 + 1e-9) for to, side in zip(size, sides, strict=True))
    resized = torch.nn.functional.interpolate(planes, scale_factor=factors, mode="bilinear", antialias=True)
    array: _Array = resized[0].permute(1, 2, 0).numpy()
    return array[: size[0], : size[1]]
