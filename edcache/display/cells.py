"""JSON of a sample for the viewer's page: one small picture in the grid, or all its leaves."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeVar

from edcache.base import CodecError, EdcacheError, MissingSampleError, SampleIndexError
from edcache.display.leaves import (
    Leaf,
    LeafPath,
    boxes_on,
    is_short,
    main_media,
    masks_over,
    shown_leaves,
    with_layers,
)
from edcache.display.media import (
    THUMBNAIL_SIDE,
    Detokenizer,
    Media,
    lines_of,
    numbers_text,
    pixels,
    png,
    thumbnail,
    wav,
)
from edcache.display.tree import leaf as described
from edcache.display.tree import sample_tree

_EXCERPT: Final = 300
_MOST_POINTS: Final = 1_000
_MOST_TOKENS: Final = 4_000
_FEW_TOKENS: Final = 60  # of a cell

Result = TypeVar("Result")


def tried(call: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """Return the result of a call, or the error that it raises, to be shown in the place of a sample."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - of any class: of damage, of a user's transforms and classes
        return error


def cell(sample: Any, side: int = THUMBNAIL_SIDE, detokenizer: Detokenizer | None = None) -> dict[str, Any]:
    """Describe a sample for the grid, or the error that reading it raised.

    It has "png" in base64, of at most `side` pixels, "lines" of a signal, "text", or "why", the reason for no picture.
    """
    if isinstance(sample, Exception):
        is_missing = isinstance(sample, MissingSampleError)
        return {"why": "No record." if is_missing else error_text(sample)[:_EXCERPT]}
    media = main_media(sample)
    if media is None or media.kind == "note" or (is_short(media) and not isinstance(sample, str)):
        leaves = islice(sample_tree(sample), 8)
        return {"text": "\n".join(f"{one['path']}: {one.get('value', one['type'])}"[:80] for one in leaves)}
    return small(media, side, detokenizer)


def small(media: Media, side: int = THUMBNAIL_SIDE, detokenizer: Detokenizer | None = None) -> dict[str, Any]:
    """Describe what shows a leaf as `cell` does."""
    if media.kind in ("text", "note"):
        return {"text": media.data[:_EXCERPT]}
    if media.kind == "tokens":
        numbers = numbers_text(media.data, _FEW_TOKENS)
        text = _text_of(media, _FEW_TOKENS, detokenizer)
        return {"text": (numbers if text is None else text)[:_EXCERPT]}
    if not media.is_picture:
        return {"lines": lines_of(media.data, 120)}
    return {"png": base64.b64encode(thumbnail(media, side)).decode("ascii")}


def _text_of(tokens: Media, most: int, detokenizer: Detokenizer | None) -> str | None:
    """Return the text of the first tokens, or None if there is none."""
    return None if detokenizer is None else detokenizer(tokens.data[:most].tolist())


def error_text(error: Exception) -> str:
    """Say why a sample cannot be read, without a traceback or paths of this machine."""
    if isinstance(error, CodecError) and error.option == "allow_pickle":
        return "This sample is a pickle. A pickle runs code when it is opened; the viewer opens none."
    if isinstance(error, EdcacheError):
        # The message of a failed sample includes its traceback.
        return str(error).partition("\nTraceback (most recent call last)")[0]
    return f"{type(error).__name__} while this sample was read"


def sample_leaves(sample: Any) -> list[Leaf]:
    """List the leaves of a sample and what shows each; an empty list if the sample could not be read."""
    return [] if isinstance(sample, Exception) else with_layers(list(shown_leaves(sample)))


def described_leaves(leaves: list[Leaf], detokenizer: Detokenizer | None = None) -> list[dict[str, Any]]:
    """Describe leaves: type, shape, statistics, and what shows them, a picture with the masks and boxes on it."""
    masks, boxes = masks_over(leaves), boxes_on(leaves)
    documents = []
    for number, (path, value, media) in enumerate(leaves):
        about = {"number": number, "path": path_text(path), **described(value)}
        if "value" in about:
            about["value"] = str(about["value"])  # a browser's numbers are floats
        if media is not None:
            about["media"] = _describe(media, detokenizer)
        if media is not None and media.is_picture:
            over = [{"number": mask, "path": path_text(leaves[mask].path)} for mask in masks.get(number, ())]
            on = [
                {"path": path_text(one.path), "form": one.form, "corners": one.corners, "names": one.names}
                for one in boxes.get(number, ())
            ]
            about["media"] |= {"masks": over, "boxes": on}
        documents.append(about)
    return documents


def path_text(path: LeafPath) -> str:
    """Write the path of a leaf with dots: "target.boxes"."""
    return ".".join(map(str, path))


def _describe(media: Media, detokenizer: Detokenizer | None) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": media.kind}
    if media.kind in ("text", "note"):
        return document | {"text": media.data}
    if media.kind == "tokens":
        numbers, text = numbers_text(media.data, _MOST_TOKENS), _text_of(media, _MOST_TOKENS, detokenizer)
        return document | {"numbers": numbers, "text": text}
    if not media.is_picture:
        return document | {"lines": lines_of(media.data, _MOST_POINTS), "rate": media.rate}
    return document | {"sizes": list(media.data.shape)}


def picture(leaves: list[Leaf], number: int, axis: int, at: int, is_over: bool = False) -> bytes:
    """Encode a leaf, an image, a frame of a film or the slice of a volume along an axis, as a PNG file.

    is_over: of a mask; it is drawn to lie over its image.
    Raises:
        SampleIndexError: the leaf is no picture, or there is none.
    """
    media = leaves[number].media if number < len(leaves) else None
    if media is None or not media.is_picture:
        raise SampleIndexError(f"this sample has no picture at leaf {number}")
    axes = {"image": 0, "film": 1, "volume": 3}[media.kind]
    if axes and (axis >= axes or at >= media.data.shape[axis]):
        raise SampleIndexError(f"no slice {at:,} along axis {axis}; the shape is {media.data.shape}")
    return png(pixels(media, axis, at, is_over=is_over))


def sound(leaves: list[Leaf], number: int) -> bytes:
    """Encode a leaf that is a sound as a WAV file. Raises: SampleIndexError, it is none."""
    media = leaves[number].media if number < len(leaves) else None
    if media is None or media.kind != "sound":
        raise SampleIndexError(f"this sample has no sound at leaf {number}")
    return wav(media)
