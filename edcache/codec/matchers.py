"""Matchers: the fast way from a sample to its wire values, for samples shaped like an earlier one.

A matcher is compiled from the JSON of a schema node. Called with a value and a list, it appends the value's
wire values and returns True exactly if the general walk would have made that same node; otherwise it returns
False, and the list is spoilt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from edcache.codec import dtypes
from edcache.codec.containers import CONTAINERS, take
from edcache.codec.images import ImageFile
from edcache.codec.leaves import PLAIN, Refusal, image_node, leaf_of, tensor_array

Match = Callable[[Any, list[Any]], bool]

_INT64_MIN, _INT64_END = -(1 << 63), 1 << 63


def matcher(node: Any) -> Match:
    """Compile the matcher of a schema node whose arrays have their ndim in place of a shape."""
    if type(node) is str:
        return _BY_TEXT.get(node) or _leaf(node)
    kind, *parameters = node
    if kind in _BY_KIND:
        return _BY_KIND[kind](*parameters)
    if kind == "dict" and all(type(key) is str for key in parameters[0]):
        return _dict(*parameters)
    return _container(node) if kind in CONTAINERS else _leaf(node)


def _exactly(cls: type, wire: Callable[[Any], Any] | None = None) -> Match:
    def match(value: Any, out: list[Any]) -> bool:
        if type(value) is not cls:
            return False
        out.append(value if wire is None else wire(value))
        return True

    return match


def _int(value: Any, out: list[Any]) -> bool:
    if type(value) is not int or not _INT64_MIN <= value < _INT64_END:
        return False
    out.append(value)
    return True


_BY_TEXT: dict[str, Match] = {kind: _exactly(cls, wire) for cls, (kind, wire) in PLAIN.items()} | {
    "none": lambda value, out: value is None,
    "int": _int,
}


def _leaf(node: Any) -> Match:
    """Match by making the leaf and comparing nodes, for the kinds that are rare or variable."""

    def match(value: Any, out: list[Any]) -> bool:
        try:
            leaf = leaf_of(value)
        except Refusal:
            return False
        if leaf is None or leaf[0] != node:
            return False
        out.append(leaf[1])
        return True

    return match


def _image_file(*parameters: Any) -> Match:
    """As `_leaf`, but the file is read only where the node is this one."""
    node = ["imagefile", *parameters]
    match_leaf = _leaf(node)

    def match(value: Any, out: list[Any]) -> bool:
        return type(value) is ImageFile and image_node(value) == node and match_leaf(value, out)

    return match


def _tensor(name: str, shape: Any) -> Match:
    known = dtypes.TORCH_BY_NAME[name]
    dtype, bits = known.dtype, known.bits
    ndim = shape if type(shape) is int else 0

    def match(value: Any, out: list[Any]) -> bool:
        if type(value) is not torch.Tensor or value.dtype is not dtype or value.requires_grad:
            return False
        if bits is not None and (value.layout is not torch.strided or value.is_nested):
            return False
        try:
            # numpy() refuses devices, layouts and lazy conjugation, all at once.
            array = value.numpy() if bits is None else tensor_array(value, known)
        except (RuntimeError, TypeError):
            return False
        if array.ndim != ndim:
            return False
        out.append(array if array.flags.c_contiguous else array.copy("C"))
        return True

    return match


def _array(description: Any, shape: Any) -> Match:
    dtype = dtypes.parse(description)
    ndim = shape if type(shape) is int else 0
    plain = _is_plain(dtype)

    def match(value: Any, out: list[Any]) -> bool:
        if type(value) is not np.ndarray or value.ndim != ndim:
            return False
        if value.dtype is not dtype and dtypes.describe(value.dtype) != description:
            return False
        out.append(value if plain and value.flags.c_contiguous else dtypes.own_bytes(value))
        return True

    return match


def _scalar(description: Any) -> Match:
    dtype = dtypes.parse(description)
    # The class of a plain scalar says all of its dtype; a datetime has a unit, a structure has fields.
    return _exactly(dtype.type, dtype.type.tobytes) if _is_plain(dtype) else _leaf(["scalar", description])


def _is_plain(dtype: dtypes.Dtype) -> bool:
    """Tell whether every byte of an item is value: no fields, no padding of long doubles."""
    return dtype.kind in "biufc" and dtype.char not in "gG"


def _dict(keys: list[str], children: list[Any]) -> Match:
    matches = [matcher(child) for child in children]
    texts = {str} if keys else set()

    def match(value: Any, out: list[Any]) -> bool:
        # A subclass of str may equal a key: the types are compared too.
        if type(value) is not dict or list(value) != keys or set(map(type, value)) != texts:
            return False
        # Not all(): a generator costs as much as the matching of a small sample.
        for child, item in zip(matches, value.values()):  # noqa: B905, SIM110 - of equal length by now
            if not child(item, out):
                return False
        return True

    return match


def _sequence(cls: type[list[Any]] | type[tuple[Any, ...]]) -> Callable[[list[Any]], Match]:
    def compiled(children: list[Any]) -> Match:
        matches = [matcher(child) for child in children]
        count = len(matches)

        def match(value: Any, out: list[Any]) -> bool:
            if type(value) is not cls or len(value) != count:
                return False
            for child, item in zip(matches, value):  # noqa: B905, SIM110 - of equal length by now
                if not child(item, out):
                    return False
            return True

        return match

    return compiled


_BY_KIND: dict[str, Callable[..., Match]] = {
    "tensor": _tensor,
    "array": _array,
    "scalar": _scalar,
    "imagefile": _image_file,
    "list": _sequence(list),
    "tuple": _sequence(tuple),
}


def _container(node: list[Any]) -> Match:
    """Match by taking the container apart and comparing headers."""
    *header, children = node
    matches = [matcher(child) for child in children]

    def match(value: Any, out: list[Any]) -> bool:
        try:
            if leaf_of(value) is not None:
                return False
            parts = take(value)
        except Refusal:
            return False
        if parts.header != header or len(parts.values) != len(matches):
            return False
        return all(child(item, out) for child, item in zip(matches, parts.values, strict=True))

    return match
