"""JSON of a sample for the viewer's page: one small picture in the grid, or all its leaves."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np

from edcache.base import CodecError, EdcacheError, MissingSampleError, SampleIndexError
from edcache.display.media import MOST_LEAVES, Media, gray, lines_of, main_media, media_of, png, thumbnail
from edcache.display.tree import leaf, leaves_of, sample_tree

_EXCERPT: Final = 300
_MOST_POINTS: Final = 1_000

Result = TypeVar("Result")


def tried(call: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """Return the result of a call, or the error that it raises, to be shown in the place of a sample."""
    try:
        return call(*arguments)
    except Exception as error:  # noqa: BLE001 - of any class: of damage, of a user's transforms and classes
        return error


def cell(sample: Any) -> dict[str, Any]:
    """Describe a sample for the grid, or the error that reading it raised.

    It has "png" in base64, "lines" of a signal, "text", or "why", the reason for no picture.
    """
    if isinstance(sample, Exception):
        is_missing = isinstance(sample, MissingSampleError)
        return {"why": "No record." if is_missing else error_text(sample)[:_EXCERPT]}
    media = main_media(sample)
    if media is None or media.kind == "note":
        leaves = islice(sample_tree(sample), 8)
        return {"text": "\n".join(f"{one['path']}: {one.get('value', one['type'])}"[:80] for one in leaves)}
    if media.kind == "text":
        return {"text": media.data[:_EXCERPT]}
    if media.kind == "signal":
        return {"lines": lines_of(media.data, 120)}
    return {"png": base64.b64encode(thumbnail(media)).decode("ascii")}


def error_text(error: Exception) -> str:
    """Say why a sample cannot be read, without a traceback or paths of this machine."""
    if isinstance(error, CodecError) and error.option == "allow_pickle":
        return "This sample is a pickle. A pickle runs code when it is opened; the viewer opens none."
    if isinstance(error, EdcacheError):
        # The message of a failed sample includes its traceback.
        return str(error).partition("\nTraceback (most recent call last)")[0]
    return f"{type(error).__name__} while this sample was read"


def described_leaves(sample: Any) -> list[dict[str, Any]]:
    """Describe the leaves of a sample: type, shape, statistics, and a picture or text if there is one."""
    leaves = []
    for number, (path, value) in enumerate(islice(leaves_of(sample), MOST_LEAVES)):
        media = media_of(value)
        about = {"number": number, "path": ".".join(map(str, path)), **leaf(value)}
        if "value" in about:
            about["value"] = str(about["value"])  # a browser's numbers are floats
        leaves.append(about if media is None else about | {"media": _describe(media)})
    return leaves


def _describe(media: Media) -> dict[str, Any]:
    if media.kind in ("text", "note"):
        return {"kind": media.kind, "text": media.data}
    if media.kind == "signal":
        return {"kind": "signal", "lines": lines_of(media.data, _MOST_POINTS)}
    return {"kind": media.kind} | ({"sizes": list(media.data.shape)} if media.kind == "volume" else {})


def picture(sample: Any, number: int, axis: int, at: int) -> bytes:
    """Encode a leaf, an image or the slice of a volume along an axis, as a PNG file.

    Raises:
        SampleIndexError: the leaf is no picture, or there is none.
    """
    leaves = islice(() if isinstance(sample, Exception) else leaves_of(sample), MOST_LEAVES)
    media = next((media_of(value) for _, value in islice(leaves, number, None)), None)
    if media is None or media.kind not in ("image", "volume"):
        raise SampleIndexError(f"this sample has no picture at leaf {number}")
    if media.kind == "image":
        return png(media.data)
    if axis >= 3 or at >= media.data.shape[axis]:
        raise SampleIndexError(f"no slice {at:,} along axis {axis}; the shape is {media.data.shape}")
    return png(gray(np.take(media.data, at, axis)))
