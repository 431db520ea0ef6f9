"""One sample's tree, and what a schema promises of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import interop
from edcache.cli.output import cell, plain, plural, shortened

_SHOWN_ITEMS: Final = 8
_DEEPEST: Final = 64
_ATOMS: Final = (type(None), bool, int, float, str, bytes)


def describe_sample(sample: object) -> list[dict[str, Any]]:
    """The leaves of a sample in tree order, each a JSON object.

    Keys where they apply: path, type, dtype, shape, value (what is short), min, mean, max (of numbers), items
    (of a long list), nonfinite (how many are nan or infinite).
    """
    return [{"path": ".".join(map(str, path)), **_leaf(value)} for path, value in _leaves(sample, ())]


def leaf_row(leaf: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """A described leaf as the cells path, type, dtype, shape, value."""
    shape = "" if "shape" not in leaf else _shape_text(leaf["shape"])
    return leaf["path"] or ".", leaf["type"], leaf.get("dtype", ""), shape, _value_text(leaf)


def field_row(field: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A described field as the cells path, kind, dtype, shape."""
    sized = field["kind"] in ("tensor", "array", "scalar")
    shape = "varies" if field["shape"] is None else _shape_text(field["shape"])
    return field["path"] or ".", field["kind"], field["dtype"] if sized else "", shape if sized else ""


def _shape_text(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _value_text(leaf: Mapping[str, Any]) -> str:
    if "value" in leaf:
        return repr(leaf["value"]) if leaf["type"] == "str" else _short(leaf["value"])
    parts = [f"{name} {cell(leaf[name])}" for name in ("min", "mean", "max") if name in leaf]
    parts += [plural(leaf["items"], "item")] if "items" in leaf else []
    parts += [f"{leaf['nonfinite']:,} not finite"] if "nonfinite" in leaf else []
    return ", ".join(parts)


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _leaves(value: Any, path: tuple[object, ...]) -> Iterator[tuple[tuple[object, ...], Any]]:

    children = interop.children_of(value) if len(path) < _DEEPEST else None
    is_long = isinstance(value, (list, tuple)) and len(value) > _SHOWN_ITEMS
    if not children or (is_long and all(isinstance(item, _ATOMS) for item in value)):
        yield path, value
        return
    for key, child in children:
        yield from _leaves(child, (*path, key))


def _leaf(value: Any) -> dict[str, Any]:
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
    array = _as_array(value)
    if array is None or not array.size:
        return described
    if array.size <= _SHOWN_ITEMS and array.dtype.kind != "O":
        return described | {"value": plain(array)}
    return described | _statistics(array)


def _as_array(value: Any) -> npt.NDArray[Any] | None:
    """The numbers as numpy; a float type that numpy lacks becomes float64."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    try:
        tensor = value.detach().cpu()
        array: npt.NDArray[Any] = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    except (AttributeError, TypeError, RuntimeError, ValueError, NotImplementedError):
        return None  # sparse, quantized, or no tensor at all
    return array


def _statistics(array: npt.NDArray[Any]) -> dict[str, Any]:
    if array.dtype.kind not in "biuf":
        return {}
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    lost = {"nonfinite": array.size - finite.size} if finite.size < array.size else {}
    if not finite.size:
        return lost
    with np.errstate(over="ignore"):
        mean = plain(finite.mean(dtype=np.float64))
    return {"min": plain(finite.min()), "mean": mean, "max": plain(finite.max()), **lost}


def describe_fields(fields: Iterable[Any]) -> list[dict[str, Any]]:
    """The leaves that a schema promises: path, kind, dtype and shape (null where it varies).

    Args:
        fields: with the attributes path, kind, dtype and shape, as a decoder lists them.
    """
    return [
        {
            "path": ".".join(map(str, field.path)),
            "kind": field.kind,
            "dtype": None if field.dtype is None else str(field.dtype).removeprefix("torch."),
            "shape": None if field.shape is None else list(field.shape),
        }
        for field in fields
    ]
