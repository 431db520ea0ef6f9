"""A second decoder of records, made from the specification of the format and sharing no code with edcache.

It knows the common schemas, and gives leaves of rarer kinds as their bytes.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

CODES = {"bool": "?", "int": "<q", "float": "<d"}


def decode(text: str, record: bytes, value: Any = None, rebuilt: Any = None) -> Any:
    """The sample of a record; tensors come back as arrays, leaves of rarer kinds as their bytes.

    Args:
        value: `value(node, bytes, dims)` makes a leaf instead. rebuilt: `rebuilt(tree, leaves)` the sample.
    """
    value, rebuilt = value or _value, rebuilt or _rebuilt
    tree = json.loads(text)
    if tree == {"self": 1}:
        nbytes = struct.unpack_from("<Q", record)[0]
        return decode(record[8 : 8 + nbytes].decode(), record[-(-(8 + nbytes) // 8) * 8 :], value, rebuilt)
    leaves: list[Any] = []
    _collect(tree, leaves)
    places: dict[int, tuple[int, int, Any]] = {}
    end = 0
    fixed = [i for i, leaf in enumerate(leaves) if leaf[1] is not None]
    for i in sorted(fixed, key=lambda i: -leaves[i][1]):
        nbytes, alignment = leaves[i][1:3]
        end = -(-end // alignment) * alignment
        places[i] = (end, nbytes, None)
        end += nbytes
    variable = [i for i in range(len(leaves)) if i not in places]
    slots = -(-end // 8) * 8
    end = slots + 8 * sum(leaves[i][3] for i in variable) if variable else end
    for i in variable:
        dims = struct.unpack_from(f"<{leaves[i][3]}q", record, slots)
        slots += 8 * leaves[i][3]
        dtype = _dtype(leaves[i][0])
        nbytes = dims[0] if dtype is None else dtype.itemsize * int(np.prod(dims))
        end = -(-end // 8) * 8
        places[i] = (end, nbytes, dims)
        end += nbytes
    assert end == len(record), f"record of {len(record)} bytes, its leaves end at {end}"
    values = iter([value(leaf[0], record[p : p + n], d) for leaf, (p, n, d) in _ordered(leaves, places)])
    return rebuilt(tree, values)


def _ordered(leaves: list[Any], places: dict[int, Any]) -> list[Any]:
    return [(leaf, places[i]) for i, leaf in enumerate(leaves)]


def _dtype(node: Any) -> np.dtype[Any] | None:
    if node[0] not in ("array", "tensor", "scalar"):
        return None
    name = node[1] if isinstance(node[1], str) else f"V{node[1][2]}"  # a structured dtype as its bytes
    return np.dtype(
        {"bfloat16": "<i2", "complex32": "<i4"}.get(name, "u1" if name.startswith("float8") else name)
    )


def _collect(node: Any, leaves: list[Any]) -> None:
    """Append (node, nbytes or None, alignment, slots) of each leaf that has bytes."""
    kind = node if isinstance(node, str) else node[0]
    sizes = {
        "bool": 1,
        "int": 8,
        "float": 8,
        "complex": 16,
        "uuid": 16,
        "date": 8,
        "timedelta": 12,
        "time": 8,
    }
    if kind in ("dict", "OrderedDict", "list", "tuple", "namedtuple", "dataclass", "object"):
        for child in node[-1]:
            _collect(child, leaves)
    elif kind in ("array", "tensor", "scalar"):
        dtype, shape = _dtype(node), node[2] if kind != "scalar" else []
        assert dtype is not None
        alignment = 8 if not isinstance(node[1], str) else min(8, dtype.itemsize & -dtype.itemsize) or 1
        nbytes = None if isinstance(shape, int) else dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        leaves.append((node, nbytes, alignment, shape if nbytes is None else 0))
    elif kind in sizes or kind == "datetime":
        nbytes = sizes.get(kind, 8)
        leaves.append((node, nbytes, min(8, nbytes & -nbytes), 0))
    elif kind != "none":
        leaves.append((node, None, 8, 1))


def _value(node: Any, data: bytes, dims: Any) -> Any:
    kind = node if isinstance(node, str) else node[0]
    if kind in CODES:
        return struct.unpack(CODES[kind], data)[0]
    if kind in ("array", "tensor"):
        return np.frombuffer(data, _dtype(node)).reshape(node[2] if dims is None else dims)
    if kind == "scalar" and isinstance(node[1], str):
        return np.frombuffer(data, _dtype(node))[0]
    if kind in ("str", "numpy.str"):
        return data.decode("utf-8", "surrogatepass")
    if kind in ("ints", "floats", "bools"):
        values = np.frombuffer(data, {"ints": "<i8", "floats": "<f8", "bools": "?"}[kind]).tolist()
        return values if node[1] == "list" else tuple(values)
    return data


def _rebuilt(node: Any, values: Any) -> Any:
    kind = node if isinstance(node, str) else node[0]
    if kind == "none":
        return None
    if kind in ("list", "tuple"):
        items = [_rebuilt(child, values) for child in node[1]]
        return items if kind == "list" else tuple(items)
    if kind in ("dict", "OrderedDict", "namedtuple", "dataclass", "object"):
        keys = range(len(node[-1])) if kind == "object" else node[-2]
        names = [key if not isinstance(key, list) else tuple(key) for key in keys]
        return {name: _rebuilt(child, values) for name, child in zip(names, node[-1], strict=True)}
    return next(values)
