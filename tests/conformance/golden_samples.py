"""What the golden archives hold: plain generators of samples.

Nothing here imports edcache, and nothing here may change once a golden archive was made from it.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import uuid
from typing import Any

import numpy as np
import torch

UUID = bytes.fromhex("00112233445566778899aabbccddeeff")


class Colour(enum.Enum):
    RED = 1
    GREEN = "green"


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


@dataclasses.dataclass
class Box:
    corner: tuple[int, int]
    pixels: np.ndarray


Point = collections.namedtuple("Point", "x y")

TO_REGISTER = (Colour, Access, Box, Point)


def fixed(i: int) -> dict[str, Any]:
    """One layout for all samples."""
    image = (torch.arange(3 * 8 * 8, dtype=torch.int64) * (i + 1) % 251).to(torch.uint8).reshape(3, 8, 8)
    return {"image": image, "box": np.arange(4, dtype=np.float32) / (i + 1), "label": i % 10, "score": i / 7}


def text(i: int) -> dict[str, Any]:
    """Variable size, and compressible."""
    words = [f"word{(i * 31 + k * k) % 97}" for k in range(40 + i % 7)]
    return {"text": " ".join(words), "tokens": np.arange(20 + i % 5, dtype=np.int32) * i, "label": i % 3}


def different(i: int) -> dict[str, Any]:
    """Another schema for every sample."""
    return {f"field{i}": float(i), "i": i}


# 3 x 2 pixels, written by hand: no library's packing is in it.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000030000000208020000001216f14d0000001f4944415478010114"
    "00ebff00ff000000ff000000ff0001020328323cfaf0e635a3066a164f30740000000049454e44ae426082"
)
PIXELS = [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[1, 2, 3], [40, 50, 60], [250, 240, 230]]]


def picture(i: int, file: Any) -> dict[str, Any]:
    """One image file in every form; `file(data, form, mode, turn)` makes the leaf."""
    return {
        "file": file(bytes(range(i * 7)), None, None, False),
        "pil": file(PNG, "pil", "L", True),
        "numpy": file(PNG, "numpy", None, False),
        "tensor": file(PNG, "tensor", "RGBA", False),
        "label": i,
    }


KEYED = (3, 1, 0, 2, 9, 8, 3, 7, 5, 6)
"""Order of ten samples; one is there twice, one is not."""

PARTS = (5, 6, 0, -1, 8, 7, 1), (9, 0, 7, 10, -1, -1, 2)
"""Orders of samples that come twice with new ones, which are numbered behind the ones before; -1 failed."""

FAILED = {
    1: ["ValueError", "sample 1 is not there", "Traceback (most recent call last):\n"],
    3: ["KeyError", "'3'", ""],
    4: ["TimeoutError", "sample 4: ünd \U0001f600", ""],
}
"""Exception, text and traceback of samples that failed; 3 was made after all."""


def mixed(i: int) -> Any:
    """Every kind of leaf and container, a few at a time."""
    return MIXED[i]()


def _scalars() -> dict[str, Any]:
    return {
        "none": None,
        "bools": (True, False),
        "ints": (0, -1, 2**63 - 1, -(2**63)),
        "bigints": [2**63, -(2**200), 10**30],
        "floats": [0.0, -0.0, math.inf, math.nan, 5e-324],
        "complex": complex(1.5, -2.5),
        "uuid": uuid.UUID(bytes=UUID),
        "str": ["", "ascii", "grüße", "\U0001f600", "lone \ud800"],
        "bytes": [b"", b"\0\xff"],
        "bytearray": bytearray(b"abc"),
        "path": [pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("c:\\d")],
    }


def _times() -> dict[str, Any]:
    east = dt.timezone(dt.timedelta(hours=5, minutes=30))
    west = dt.timezone(dt.timedelta(hours=-3))
    return {
        "date": dt.date(2024, 2, 29),
        "datetime": [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)],
        "west": dt.datetime(2000, 1, 1, tzinfo=west),
        "east": dt.datetime(2024, 10, 27, 2, 30, tzinfo=east, fold=1),
        "timedelta": dt.timedelta(days=-1, seconds=5, microseconds=7),
    }


def _arrays() -> dict[str, Any]:
    structure = np.dtype([("a", "<i2"), ("b", "<f8"), ("c", "S3")])
    rows = np.zeros(2, structure)
    rows["a"], rows["b"], rows["c"] = [1, 2], [1, 3], [b"x", b"yz"]
    codes = "?bBhHiIqQefdFD"
    return {
        "all": {code: np.arange(6).astype(code).reshape(2, 3) for code in codes},
        "big-endian": np.arange(3, dtype=">i4"),
        "zero-dimensional": np.array(7.0),
        "empty": np.empty((0, 3), np.float32),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "times": np.array(["2024-01-01", "NaT"], "M8[s]"),
        "spans": np.array([1, -1], "m8[ms]"),
        "texts": np.array(["ab", "ü"]),
        "bytes": np.array([b"ab", b"c"]),
        "struct": rows,
        "scalars": [np.int8(-3), np.float16(0.5), np.uint64(2**63), np.bool_(True), np.complex64(1j)],
        "time": np.datetime64("2024-01-01T00:00:00", "ns"),
        "flexible": [np.str_("numpy"), np.bytes_(b"numpy"), np.void(b"\1\2\3")],
        "row": rows[0],
    }


def _tensors() -> dict[str, Any]:
    plain = "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128 bfloat16"
    tensors = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in plain.split()}
    eights = {name: torch.arange(4.0).to(getattr(torch, name)) for name in ("float8_e4m3fn", "float8_e5m2")}
    return {
        **tensors,
        **eights,
        "zero-dimensional": torch.tensor(3.5),
        "empty": torch.empty(2, 0),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
    }


def _containers() -> Any:
    keys = {"text": 1, 7: 2, "grüße": 3, "lone \ud800": 4}
    return (
        [],
        (),
        {},
        keys,
        collections.OrderedDict(b=1, a=[2, (3,)]),
        Point(1, np.arange(2)),
        Box((1, 2), np.ones((2, 2), np.uint8)),
        [Colour.RED, Colour.GREEN, Access.READ],
        list(range(20)),
        tuple(range(9)),
        [k / 2 for k in range(10)],
        tuple(k % 2 == 0 for k in range(11)),
        [f"item {k}" for k in range(8)],
    )


def _variable(rows: int) -> dict[str, Any]:
    # More than four shapes of one layout: the later ones share a schema of variable shapes.
    return {"boxes": np.arange(rows * 4, dtype=np.float32).reshape(rows, 4), "mask": torch.ones(rows) > 0}


MIXED: list[Any] = [_scalars, _times, _arrays, _tensors, _containers]
MIXED += [(lambda rows=rows: _variable(rows)) for rows in (1, 2, 3, 0, 5, 6, 7)]
MIXED += [lambda: 5, lambda: "bare", lambda: torch.arange(3), lambda: None]


def large(i: int) -> dict[str, Any]:
    """Of several blocks, so that each is checked alone; of sizes around one block."""
    nbytes = (1 << 16) - 24 + 8 * i
    return {"x": (np.arange(nbytes) % 251).astype(np.uint8), "label": i}
