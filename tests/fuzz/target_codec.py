"""Schemas and records: what decodes is a value that encodes and decodes again to the same."""

from __future__ import annotations

import json
import struct
from functools import cache
from typing import Any

import numpy as np
import torch
from codec_samples import encoded_bytes
from fuzz_draw import Draw
from likeness import same

from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.errors import EdcacheError

_LEAVES = [
    *("none", "bool", "int", "float", "complex", "uuid", "date", "timedelta", "str", "bytes", "bytearray"),
    *("bigint", "numpy.str", "numpy.bytes", ["datetime", None], ["path", "PosixPath"]),
    *(["datetime", [3600_000_000]], ["ints", "list"], ["floats", "tuple"], ["bools", "list"]),
    *(["strs", "tuple"], ["scalar", "<f4"], ["scalar", "<M8[ns]"], ["array", "<f4", [2, 3]]),
    *(["array", "|u1", 1], ["array", "<i8", 3], ["array", "<U3", [2]], ["array", "|S0", [2]]),
    *(["tensor", "uint8", [3]], ["tensor", "bfloat16", 2], ["tensor", "float32", []]),
    *(["tensor", "complex64", [0, 2]], ["array", ["struct", [["a", 0, "<i4"], ["b", 4, "<f8"]], 12], [2]]),
    *(["scalar", "|V5"], ["enum", "m", "E"], ["path", "PureWindowsPath"], ["imagefile", None, None, False]),
    *(["imagefile", "tensor", "RGB", True], ["scalar", ">f8"], ["array", "<c16", 2], ["scalar", "|b1"]),
]
_KEYS = ["a", "b", "é", ["int", 5], ["enum", "m", "Key", "A"]]


@cache
def _samples() -> list[tuple[str, bytes]]:
    samples: list[Any] = [
        {"image": torch.arange(6, dtype=torch.uint8).reshape(2, 3), "label": 3},
        {"s": "text é", "list": list(range(10)), "strs": ["a", "", "ccc"] * 3, "t": (1.5, None, True)},
        [np.arange(4.0), np.zeros((0, 3), "i2"), np.float32(2), 1 << 100, b"bytes", bytearray(b"x")],
        {"nested": [{"a": ({"b": [1, [2, [3]]]},)}]},
    ]
    return [_encoded(sample) for sample in samples]


def _encoded(sample: Any) -> tuple[str, bytes]:
    encoder = Encoder()
    encoded = encoder.encode(sample)
    return encoder.schemas[encoded.schema], encoded_bytes(encoded)


def run(data: bytes) -> None:
    draw = Draw(data)
    how = draw.below(5)
    if how == 0:
        text, record = draw.raw(draw.below(400)).decode("latin-1"), draw.rest()
    elif how == 1:
        text, record = draw.pick(_samples())
        text = draw.changed(text.encode()).decode("latin-1") if draw.flag() else text
        record = draw.changed(record) if draw.flag() else record
    else:
        text = json.dumps(_node(draw, 0), separators=(",", ":"))
        if how == 4:
            text = draw.changed(text.encode()).decode("latin-1")
        record = _record(draw, text)
    if draw.byte() == 255:
        size = len(text.encode())
        self_described = struct.pack("<Q", size) + text.encode()
        text, record = '{"self":1}', self_described.ljust(-(-len(self_described) // 8) * 8, b"\0") + record
    _decode(text, record)


_IMAGE = ["str", "int", "int", "bytes", "none", "none", ["dict", [], []]]


def _node(draw: Draw, depth: int) -> Any:
    kind = draw.byte()
    if kind < 200 or depth > 5:
        return draw.pick(_LEAVES)
    count = draw.below(4)
    children = [_node(draw, depth + 1) for _ in range(count)]
    at = draw.below(len(_KEYS))
    names = [f"f{k}" for k in range(count)]
    return [
        ["list", children],
        ["tuple", children],
        ["dict", (_KEYS[at:] + _KEYS)[:count], children],
        ["OrderedDict", (_KEYS[at:] + _KEYS)[:count], children],
        ["namedtuple", "m", "Point", names, children],
        ["dataclass", "m", "Box", names, children],
        ["object", "PIL.Image", "Image", [["tuple", _IMAGE]]],
        ["array", draw.value(), draw.value()],
        ["object", *draw.pick([("m", "Mesh"), ("torch", "Size")]), children[:1]],
    ][draw.below(9)]


def _record(draw: Draw, text: str) -> bytes:
    """Bytes of the right length for a schema, where it is one."""
    try:
        layout = Decoder(text).layout
    except EdcacheError:
        return draw.rest()
    if layout is None:
        return draw.rest()
    if layout.nbytes is not None:
        return (
            draw.raw(min(layout.nbytes, 4096)) if draw.flag() else bytes(min(layout.nbytes, 1 << 16))
        ).ljust(min(layout.nbytes, 1 << 16), b"\0")
    out = bytearray(
        draw.raw(draw.below(64)).ljust(min(layout.data_offset, 1 << 16), b"\0")[: layout.data_offset]
    )
    at = layout.slots_offset
    for place in layout.variable:
        leaf = layout.leaves[place]
        dims = [draw.number() if draw.byte() > 240 else draw.below(6) for _ in range(leaf.slots)]
        for dim in dims:
            out[at : at + 8] = dim.to_bytes(8, "little")
            at += 8
        size = int(np.prod(dims, dtype=object)) * (leaf.memory.itemsize if leaf.memory is not None else 1)
        out += bytes(-len(out) % 8) + draw.raw(min(size, 256)).ljust(min(size, 1 << 12), b"\0")
    return bytes(out)


def _decode(text: str, record: bytes) -> None:
    values = []
    for copy in (True, False):
        try:
            values.append(Decoder(text).decode(memoryview(record), copy=copy))
        except EdcacheError:
            continue
    if not values:
        return
    assert len(values) == 2
    assert same(*values)
    try:
        text, record = _encoded(values[0])
    except EdcacheError:
        return
    again = Decoder(text).decode(memoryview(record))
    assert same(values[0], again), (text, values[0], again)


def seeds() -> list[bytes]:
    changed = [bytes([1, sample, flag, flag, 1, 0, 3, 65]) for sample in range(4) for flag in (0, 1)]
    leaves = [bytes([2, 0, leaf, 0, 1, 2, 3, 4, 5]) for leaf in range(len(_LEAVES))]
    nodes = [
        bytes([3, 220, 2, 0, leaf, 0, leaf + 3, leaf, kind, 0, 1]) for kind in range(8) for leaf in (1, 8, 22)
    ]
    return [*changed, *leaves, *nodes, b'\0\5"int"' + bytes(8), b"\0\x20" + b"[" * 32]
