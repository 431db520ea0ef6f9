"""What the codec tests share: samples of every kind, and how to encode one."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import math
import pathlib
import subprocess
import sys
import typing
import uuid

import numpy as np
import torch
from hypothesis import strategies as st

from edcache.codec.classes import register
from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoded, Encoder
from tests.kit.systems import child_environ


@register
class Color(enum.Enum):
    RED = 1
    GREEN = "green"
    CRIMSON = 1  # noqa: PIE796 - an alias


@register
class Access(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


@register
class Level(enum.IntEnum):
    LOW = 0
    HIGH = 9


@register
@dataclasses.dataclass
class Box:
    corner: typing.Any
    size: typing.Any = 0

    def __post_init__(self):
        if isinstance(self.size, str) and self.size == "explode":
            raise AssertionError("__post_init__ ran")


@register
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: typing.Any


@register
class Point(typing.NamedTuple):
    x: typing.Any
    y: typing.Any = 0


Renamed = register(collections.namedtuple("Renamed", ["good", "class", "good"], rename=True))


def encoded_bytes(encoded: Encoded) -> bytes:
    """Join the pieces of a record, with zeros between them."""
    parts, end = [], 0
    for offset, piece in encoded.pieces:
        parts += [bytes(offset - end), piece]
        end = offset + memoryview(piece).nbytes
    return b"".join([*parts, bytes(encoded.nbytes - end)])


def encode(sample, encoder: Encoder | None = None) -> tuple[str, bytes]:
    encoder = encoder or Encoder()
    encoded = encoder.encode(sample)
    record = encoded_bytes(encoded)
    assert len(record) == encoded.nbytes
    end = 0
    for offset, piece in encoded.pieces:
        assert offset >= end
        end = offset + memoryview(piece).nbytes
    return encoder.schemas[encoded.schema], record


def round_trip(sample, **options):
    text, record = encode(sample)
    return Decoder(text).decode(memoryview(record), **options)


_TORCH_NAMES = """
bool uint8 int8 uint16 int16 uint32 int32 uint64 int64
float16 bfloat16 float32 float64 complex64 complex128
float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2
"""
TORCH_DTYPES = [getattr(torch, name) for name in _TORCH_NAMES.split() if hasattr(torch, name)]

_NUMPY_NAMES = """
? b B h H i I l L q Q e f d F D S1 S7 U1 U5 V3 M8 M8[ns] M8[25s] m8 m8[D]
"""
NUMPY_DTYPES = [
    *map(np.dtype, _NUMPY_NAMES.split()),
    *(np.dtype(text) for text in (">i4", ">f8", ">U3", ">M8[us]", ">c8", ">f2", ">q")),
    np.dtype([("a", "u1"), ("b", "<f8")]),
    np.dtype([("a", "S3"), ("c", "M8[s]"), ("d", ">f8")]),
    np.dtype({"names": ["x", "y"], "formats": ["<i4", "<i2"], "offsets": [4, 4], "itemsize": 24}),
    np.dtype([("é", "?"), ("q", "q")]),
]


def random_array(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """An array of random bytes that are values of the dtype."""
    rng = np.random.default_rng(seed)
    if dtype.names is not None:
        made = np.full(math.prod(shape) * dtype.itemsize, 255, np.uint8).view(dtype).reshape(shape)
        for name in dtype.names:
            made[name] = random_array(made[name].dtype, made[name].shape, seed + 1)
        return made
    if dtype.kind == "U":
        size = math.prod(shape)
        return np.array(["aé€\U0001f600"[: 1 + i % 4] for i in range(size)], dtype).reshape(shape)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), dtype)
    raw = rng.integers(0, 256, math.prod(shape) * dtype.itemsize, np.uint8)
    return raw.view(dtype).reshape(shape)


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    count = math.prod(shape)
    if dtype is torch.bool:
        return torch.from_numpy(rng.integers(0, 2, count, np.uint8).reshape(shape)).bool()
    item = dtype.itemsize
    code = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}[item]
    raw = torch.from_numpy(rng.integers(0, 256, count * item, np.uint8).view(code).reshape(shape).copy())
    return raw.view(dtype) if raw.dtype is not dtype else raw


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
seeds = st.integers(0, 1 << 30)
tensors = st.builds(random_tensor, st.sampled_from(TORCH_DTYPES), shapes, seeds)
arrays = st.builds(random_array, st.sampled_from(NUMPY_DTYPES), shapes, seeds)
numpy_scalars = st.builds(
    lambda dtype, seed: random_array(dtype, (), seed)[()], st.sampled_from(NUMPY_DTYPES), seeds
)
texts = st.text(st.characters(), max_size=12)
zones = st.one_of(
    st.none(),
    st.just(dt.timezone.utc),
    st.builds(dt.timezone, st.timedeltas(dt.timedelta(hours=-23), dt.timedelta(hours=23))),
)
leaves = st.one_of(
    tensors,
    arrays,
    numpy_scalars,
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(),
    st.complex_numbers(),
    texts,
    st.binary(max_size=12),
    st.binary(max_size=12).map(bytearray),
    texts.map(np.str_),
    st.binary(max_size=12).map(np.bytes_),
    st.binary(min_size=1, max_size=12).map(np.void),
    st.builds(dt.datetime.replace, st.datetimes(), tzinfo=zones, fold=st.integers(0, 1)),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.sampled_from([pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("C:\\y\\z")]),
    st.sampled_from([*Color, *Level, *Access]),
    *(st.lists(kind, min_size=6, max_size=12) for kind in (st.integers(), st.floats(), st.booleans(), texts)),
    st.lists(st.integers(-5, 5), min_size=8, max_size=12).map(tuple),
)
keys = st.one_of(texts, texts, st.integers(-9, 9))


def branches(children):
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.dictionaries(keys, children, max_size=4),
        st.dictionaries(keys, children, max_size=4).map(collections.OrderedDict),
        st.builds(Point, children, children),
        st.builds(Box, children, children),
        st.builds(Frozen, children),
    )


samples = st.recursive(leaves, branches, max_leaves=8)
UUID = uuid.UUID(int=7)


def run_script(script: str, **environment: str) -> str:
    """Run a script in a fresh process that imports what this one can; return what it printed."""
    env = child_environ() | environment
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout
