"""Leaves of a sample with what shows each, which the other leaves of the sample decide too.

A signal is a sound by a sample rate: beside it or nearer to the root, by its name; or behind it in a tuple. A mask lies
over the pictures of its size, and boxes on the nearest image, if they fit it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edcache.base import brief, shortened
from edcache.display.media import Media, media_of
from edcache.display.tree import as_array, leaves_of

# Leaves that are searched: aliases may make a sample without an end.
_MOST_LEAVES: Final = 1_000
_MOST_BOXES: Final = 300
_MOST_LAYERS: Final = 31  # of a mask: the palette's colors
_LONG_TEXT: Final = 30
_LEAST_RATE: Final = 1_000
_MOST_RATE: Final = 400_000
# Rates that a number without a name may be, behind a signal in a tuple.
_RATES: Final = (8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)
_NAME_OF_RATE: Final = re.compile(r"(.*_)?(sampl(e|ing)_?rate|rate|sr|fs)", re.IGNORECASE)
_NAMES_OF_BOXES: Final = (
    "labels",
    "label",
    "names",
    "classes",
    "class",
    "categories",
    "category",
    "category_id",
)

LeafPath: TypeAlias = "tuple[object, ...]"


class Leaf(NamedTuple):
    """Leaf of a sample, and what shows it."""

    path: LeafPath
    value: Any
    media: Media | None


class Boxes(NamedTuple):
    """Boxes on a picture.

    form: how the numbers of a box were read, such as "x y x y". corners: [n, 4], the left, upper, right and lower side
    in pixels. names: of the boxes, or none.
    """

    path: LeafPath
    form: str
    corners: list[list[float]]
    names: list[str]


def shown_leaves(sample: Any) -> Iterator[Leaf]:
    """Yield the leaves of a sample, each with its media, which is computed as the iteration comes to it."""
    values = dict(islice(leaves_of(sample), _MOST_LEAVES))
    rates = {path[:-1]: rate for path, value in values.items() if (rate := _named_rate(path, value))}
    for path, value in values.items():
        media = media_of(value)
        if media is not None and media.kind == "signal":
            nearest = (rates[path[:depth]] for depth in range(len(path), -1, -1) if path[:depth] in rates)
            rate = next(nearest, None) or _rate_behind(path, values)
            # A signal below a fiftieth of a second is a vector.
            if media.data.dtype.kind != "b" and rate is not None and media.data.shape[1] >= rate // 50:
                media = Media("sound", media.data, rate=rate)
        yield Leaf(path, value, media)


def main_media(sample: Any) -> Media | None:
    """Choose what shows a sample: a picture, else a long text or a signal, else a short text."""
    best = None
    for leaf in shown_leaves(sample):
        if leaf.media is not None and (best is None or _rank(leaf.media) < _rank(best)):
            best = leaf.media
            if not _rank(best):
                break
    return best


def is_short(media: Media) -> bool:
    """True of a text that is one value of several, such as a name."""
    return media.kind == "text" and len(media.data) < _LONG_TEXT


def _rank(media: Media) -> int:
    if media.is_picture:
        return 0 if media.classes is None else 1  # a mask stands behind its image
    if media.kind == "text":
        return 4 if is_short(media) else 2
    return {"sound": 2, "signal": 2, "tokens": 3}.get(media.kind, 5)


def _named_rate(path: LeafPath, value: Any) -> int | None:
    """Return the number of a leaf that its name tells to be a sample rate."""
    is_named = bool(path) and isinstance(path[-1], str) and _NAME_OF_RATE.fullmatch(path[-1])
    rate = _whole(value) if is_named else None
    return rate if rate is not None and _LEAST_RATE <= rate <= _MOST_RATE else None


def _rate_behind(path: LeafPath, values: Mapping[LeafPath, Any]) -> int | None:
    """Return a usual sample rate behind a leaf of a tuple, as torchaudio has it."""
    last = path[-1] if path else None
    rate = _whole(values.get((*path[:-1], last + 1))) if isinstance(last, int) else None
    return rate if rate in _RATES else None


def _whole(value: Any) -> int | None:
    """Return the whole number of a leaf that is one number; None of any other leaf."""
    array = (
        as_array(value)
        if hasattr(value, "dtype")
        else np.asarray(value if type(value) in (int, float) else ())
    )
    if array is None or array.size != 1 or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        return None
    return int(array.item())


# ------------------------------------------------------------------------------------ over a picture


def masks_over(leaves: list[Leaf]) -> dict[int, list[int]]:
    """Return for each picture, by its number, the masks of its size, by theirs."""
    pictures = [(k, leaf.media) for k, leaf in enumerate(leaves) if leaf.media and leaf.media.is_picture]

    def size(media: Media) -> tuple[int, ...]:
        shape: tuple[int, ...] = media.data.shape
        return shape[:2] if media.kind == "image" else shape[:3]

    masks = [(k, size(media)) for k, media in pictures if media.classes is not None]
    return {
        k: [mask for mask, of in masks if of == size(media)] for k, media in pictures if media.classes is None
    }


def with_layers(leaves: list[Leaf]) -> list[Leaf]:
    """Show what a name calls a mask as one: masks [n, h, w] of objects as the classes 1 to n, floats as classes."""
    sizes = {leaf.media.data.shape[:2] for leaf in leaves if leaf.media and _takes_boxes(leaf.media)}

    def layered(leaf: Leaf) -> Leaf:
        array = as_array(leaf.value) if hasattr(leaf.value, "dtype") and "mask" in _name(leaf.path) else None
        if array is None or not array.size or array.dtype.kind not in "biuf":
            return leaf
        # Written so that nan fails.
        if not (array.min() >= 0 and array.max() <= _MOST_LAYERS and (array == array.astype(np.uint8)).all()):
            return leaf
        classes = array.astype(np.uint8)
        if (
            array.ndim == 3
            and 1 < len(array) <= _MOST_LAYERS
            and array.shape[1:] in sizes
            and array.max() <= 1
        ):
            layers = classes * np.arange(1, len(array) + 1, dtype=np.uint8)[:, None, None]
            return Leaf(leaf.path, leaf.value, Media("image", layers.max(axis=0), len(array)))
        return Leaf(leaf.path, leaf.value, media_of(classes)) if array.dtype.kind == "f" else leaf

    return list(map(layered, leaves))


def boxes_on(leaves: list[Leaf]) -> dict[int, list[Boxes]]:
    """Return for each image, by its number, the boxes that lie on it: of several images that is the nearest."""
    images = [
        (k, leaf.path, leaf.media) for k, leaf in enumerate(leaves) if leaf.media and _takes_boxes(leaf.media)
    ]
    values = {leaf.path: leaf.value for leaf in leaves}
    found: dict[int, list[Boxes]] = {}
    for leaf in leaves if images else ():
        given = _rows_of_four(leaf)
        if given is None:
            continue
        near = [_shared(leaf.path, path) for _, path, _ in images]
        number, _, media = images[near.index(max(near))]
        height, width = (side * media.step for side in media.data.shape[:2])
        read = _corners(given[:_MOST_BOXES], width, height, is_named="box" in _name(leaf.path))
        if read is not None:
            form, corners = read
            scaled = (corners / media.step).round(2).tolist()
            boxes = Boxes(leaf.path, form, scaled, _names_near(leaf.path, len(given), values))
            found.setdefault(number, []).append(boxes)
    return found


def _takes_boxes(media: Media) -> bool:
    return media.kind == "image" and media.classes is None


def _name(path: LeafPath) -> str:
    return next((part.lower() for part in reversed(path) if isinstance(part, str)), "")


def _shared(path: LeafPath, other: LeafPath) -> int:
    """Count the containers that two leaves have in common."""
    return next((k for k, (a, b) in enumerate(zip(path, other, strict=False)) if a != b), len(path))


def _rows_of_four(leaf: Leaf) -> npt.NDArray[np.float64] | None:
    """Return finite numbers [n, 4], or one row of them that a name calls a box; None of any other leaf."""
    array = as_array(leaf.value) if hasattr(leaf.value, "dtype") else None
    if array is None or array.dtype.kind not in "iuf" or array.shape[-1:] != (4,) or not array.size:
        return None
    if array.ndim != 2 and not (array.ndim == 1 and "box" in _name(leaf.path)):
        return None
    rows = array.reshape(-1, 4).astype(np.float64)
    return rows if np.isfinite(rows).all() else None


def _corners(
    boxes: npt.NDArray[np.float64], width: int, height: int, is_named: bool
) -> tuple[str, npt.NDArray[np.float64]] | None:
    """Read boxes [n, 4] on a picture of this size as corners in pixels; None if they do not fit it.

    They are x y x y, as in torchvision, with the larger number last; else, if a name calls them boxes, x y width
    height, as in COCO. Numbers up to 1 are shares of the picture.
    """
    limit = np.array([width, height, width, height], np.float64)
    is_share = boxes.max() <= 1
    scaled = boxes * limit if is_share else boxes
    behind = np.concatenate([scaled[:, :2], scaled[:, :2] + scaled[:, 2:]], axis=1)
    for form, corners in (("x y x y", scaled), ("x y width height", behind))[: 1 + is_named]:
        # A box may end a pixel beyond its picture, since its sides were rounded.
        is_inside = (corners >= -1).all() and (corners <= limit + 1).all()
        sides = corners[:, 2:] - corners[:, :2]
        if is_inside and ((sides >= 0).all() if is_named else (sides > 0).all()):
            return form + (", of 1" if is_share else ""), corners
    return None


def _names_near(path: LeafPath, count: int, values: Mapping[LeafPath, Any]) -> list[str]:
    """Find a name for each box: an array or a list of as many labels beside the boxes."""
    for name in _NAMES_OF_BOXES:
        beside = (*path[:-1], name)
        given = values.get(beside)
        if given is None:  # of a short list each item is a leaf
            items = ((*beside, k) for k in range(count))
            given = [values[item] for item in items if item in values]
        array = as_array(given) if hasattr(given, "dtype") else None
        listed = given if array is None else array.tolist()
        if isinstance(listed, (list, tuple)) and len(listed) == count:
            return [shortened(brief(one)) for one in listed[:_MOST_BOXES]]
    return []
