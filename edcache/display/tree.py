"""Leaves of a sample, each with type, dtype and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache.base import plain, shortened
from edcache.codec import walk_leaves

SHOWN_ITEMS: Final = 8
_DEEPEST: Final = 64
_ATOMS: Final = (type(None), bool, int, float, str, bytes)


def leaves_of(value: Any) -> Iterator[tuple[tuple[object, ...], Any]]:
    """Walk the leaves of a sample with their paths; a long list of plain values is one leaf."""
    return walk_leaves(value, _is_leaf)


def _is_leaf(value: Any, depth: int) -> bool:
    if not isinstance(value, (Mapping, list, tuple)):
        return depth >= _DEEPEST
    is_long = not isinstance(value, Mapping) and len(value) > SHOWN_ITEMS
    return not value or depth >= _DEEPEST or (is_long and all(isinstance(item, _ATOMS) for item in value))


def sample_tree(sample: Any) -> Iterator[dict[str, Any]]:
    """Describe the leaves of a sample as JSON; without end for one that contains itself.

    Each has "path" and "type"; arrays, tensors and images "dtype" and "shape"; a short leaf "value", a long array
    "min", "mean" and "max" of finite values, and "nonfinite"; a list, text or bytes "items".
    """
    return ({"path": ".".join(map(str, at)), **leaf(value)} for at, value in leaves_of(sample))


def leaf(value: Any) -> dict[str, Any]:
    """Describe a leaf of a sample as JSON; see `sample_tree`."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array_leaf(value)
    if hasattr(value, "mode") and hasattr(value, "getpixel"):
        return {"type": "PIL.Image", "dtype": value.mode, "shape": [value.height, value.width]}
    described: dict[str, Any] = {"type": type(value).__qualname__}
    if isinstance(value, (bytes, bytearray, list, tuple, Mapping)):
        return described | {"items": len(value)}
    if value is None or isinstance(value, (bool, int, float)):
        return described | {"value": plain(value)}
    return described | {"value": shortened(value if isinstance(value, str) else str(plain(value)))}


def _array_leaf(value: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": f"{type(value).__module__}.{type(value).__qualname__}",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": [int(size) for size in value.shape],
    }
    array = as_array(value)
    if array is None:
        return described
    if 0 < array.size <= SHOWN_ITEMS and array.dtype.kind != "O":
        return described | {"value": plain(array)}
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    if finite.size and array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):
            mean = plain(finite.mean(dtype=np.float64))
        described |= {"min": plain(finite.min()), "mean": mean, "max": plain(finite.max())}
    return described | ({"nonfinite": array.size - finite.size} if finite.size < array.size else {})


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """Convert to numpy, a float type that numpy lacks to float64; None if that fails."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        tensor = value.detach().cpu()
        array: npt.NDArray[Any] = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    except (AttributeError, TypeError, RuntimeError, ValueError, NotImplementedError):
        return None  # sparse, quantized, or no tensor at all
    return array
