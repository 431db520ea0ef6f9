"""`FlatPlan`: a flat sample, a dict, list or tuple of numbers and small arrays, is packed by one call."""

from __future__ import annotations

import collections
import struct
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from edcache.codec import dtypes
from edcache.codec.schema import Layout, Node

# In larger records a second copy of arrays would cost more than the walk.
_MOST_NBYTES = 1 << 15
_DICTS = {"dict": dict, "OrderedDict": collections.OrderedDict}
_CONTAINERS: dict[str, Any] = {**_DICTS, "list": list, "tuple": tuple}
_CLASSES: dict[str, type] = {"none": type(None), "bool": bool, "int": int, "float": float}


class FlatPlan:
    """Check of samples for one schema, and packing of their values to a record.

    Attributes: schema: its number. nbytes: of each record.
    """

    def __init__(self, layout: Layout, schema: int) -> None:
        root = layout.root
        self.schema = schema
        self._class: Any = _CONTAINERS[root.kind]
        self._keys = [*root.keys] if root.kind in _DICTS else []
        self._key_classes = [str] * len(self._keys)
        self._classes = [_class_of(leaf) for leaf in root.children]
        self._tensors = [place for place, leaf in enumerate(root.children) if leaf.kind == "tensor"]
        self._arrays = [
            (place, leaf.memory, leaf.shape)
            for place, leaf in enumerate(root.children)
            if leaf.memory is not None
        ]
        leaves = [leaf for leaf in root.children if leaf.kind != "none"]
        order = [root.children.index(leaves[place]) for place in layout.fixed]
        self._in_order = itemgetter(*order) if len(order) > 1 else itemgetter(slice(order[0], order[0] + 1))
        codes, end = "<", 0
        for place in layout.fixed:
            offset, nbytes = leaves[place].offset or 0, leaves[place].nbytes or 0
            codes += f"{offset - end}x{leaves[place].code or f'{nbytes}s'}"
            end = offset + nbytes
        self.nbytes, self._pack_into = end, struct.Struct(codes).pack_into

    @classmethod
    def of(cls, layout: Layout, schema: int) -> FlatPlan | None:
        """Make the plan for a schema; None unless its samples are flat, small, and of plain numbers."""
        root = layout.root
        if root.kind not in _CONTAINERS or not layout.fixed or not 0 < (layout.nbytes or 0) <= _MOST_NBYTES:
            return None
        is_plain = root.kind not in _DICTS or all(type(key) is str for key in root.keys)
        return cls(layout, schema) if is_plain and all(map(_is_plain, root.children)) else None

    def pack(self, sample: Any, buffer: bytearray | memoryview, offset: int) -> bool:
        """Pack a sample at an offset; False unless it is sure to have this schema, and `nbytes` there are any then."""
        if type(sample) is not self._class:
            return False
        if self._keys:
            if [*sample] != self._keys or [*map(type, sample)] != self._key_classes:
                return False
            values = [*sample.values()]
        else:
            values = [*sample]
        if [*map(type, values)] != self._classes:
            return False
        try:
            for place in self._tensors:
                tensor = values[place]
                values[place] = tensor.numpy()
                if tensor.__dict__ or tensor.grad is not None:
                    return False
            for place, dtype, shape in self._arrays:
                array = values[place]
                if array.dtype is not dtype or array.shape != shape:
                    return False
                values[place] = array.tobytes()
            self._pack_into(buffer, offset, *self._in_order(values))
        except (RuntimeError, TypeError, ValueError, struct.error):  # a tensor with a gradient, a large int
            return False
        return True


def _is_plain(leaf: Node) -> bool:
    if leaf.kind == "tensor":
        return dtypes.TENSOR_DTYPES[str(leaf.dtype)].bits is None
    if leaf.kind in ("array", "scalar"):
        return leaf.memory is not None and leaf.memory.isnative and leaf.memory.num in dtypes.PLAIN
    return leaf.kind in _CLASSES


def _class_of(leaf: Node) -> type:
    if leaf.memory is None:
        return _CLASSES[leaf.kind]
    return {"tensor": torch.Tensor, "array": np.ndarray, "scalar": leaf.memory.type}[leaf.kind]
