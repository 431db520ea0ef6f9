"""Pickles and files of torch.save of other programs, by a closed list of names; none of these is ever called.

A name in a pickle leads to a stand-in of ours or is refused. Stand-ins keep what they were called with; when
the pickle has ended they are made into arrays, tensors and times, by code that checks every number first. The
unpickler is the one that is written in Python: C's allocates for whatever number a pickle puts into its memo.
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import functools
import io
import pathlib
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NoReturn

import numpy as np
import torch

from edcache.base import CorruptRecordError, ForeignCacheError, PickleRefusedError
from edcache.codec import dtypes
from edcache.codec.pickles import LOAD_ERRORS
from edcache.codec.tensors import NAMES

MOST_NBYTES: Final = 1 << 31
"""Bytes that the arrays, tensors and texts of one sample may have, unless more are allowed."""

LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP: Final = b"PK\x03\x04"

_FREE_NODES: Final = 1 << 16
_NODES_A_BYTE: Final = 8
# As numpy writes them into a pickle, the unit of a time inserted.
_TEXT = re.compile(r"[biufcSUV]\d{1,10}|[mM]8(?:\[\d{1,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_DAMAGED = (*LOAD_ERRORS, CorruptRecordError, SyntaxError, struct.error, zipfile.BadZipFile)


def restored(data: bytes, place: str, *, trust: bool = False, most_nbytes: int = MOST_NBYTES) -> Any:
    """What a pickle holds: containers, plain values, arrays, and tensors on the CPU without requires_grad.

    Args:
        place: what messages begin with: "train.zip: example_3.p".
        trust: read it with pickle itself, which runs whatever code its author put there.
        most_nbytes: bytes that its arrays and texts may have together.
    Raises:
        PickleRefusedError: "train.zip: example_3.p needs os.system; ...". Nothing was called.
        ForeignCacheError: it is damaged, or would become larger than allowed.
    """
    with _foreign_errors(place, trust=trust):
        if trust:
            return pickle.loads(data)  # noqa: S301 - the caller said so
        return _real(_Loading(io.BytesIO(data)).load(), _Budget(most_nbytes, len(data)))


def torch_loaded(data: bytes, place: str, *, trust: bool = False, most_nbytes: int = MOST_NBYTES) -> Any:
    """What torch.save wrote: a zip, or the stream of pickles from before torch 1.6.

    Args, raises, and what it returns: as `restored`; tensors that were views have their own memory.
    """
    if not data.startswith((LEGACY, _ZIP)):
        raise ForeignCacheError(f"{place} begins with {data[:8]!r}, as no file of torch.save does")
    with _foreign_errors(place, trust=trust):
        if trust:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        tree = _legacy(data) if data.startswith(LEGACY) else _zipped(data)
        return _real(tree, _Budget(most_nbytes, len(data)))


@contextlib.contextmanager
def _foreign_errors(place: str, *, trust: bool) -> Iterator[None]:
    """Puts what a pickle does wrong into an error of ours; code that it names may raise anything."""
    damaged = (Exception,) if trust else _DAMAGED
    try:
        yield
    except _Refused as error:
        raise PickleRefusedError(
            f"{place} needs {error}; if you trust its author, trust_pickle=True reads it as "
            "pickle does, which runs whatever code is in it",
            option="trust_pickle",
        ) from None
    except damaged as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:300]
        raise ForeignCacheError(f"{place} does not unpickle: {type(error).__name__}: {reason}") from error


class _Refused(Exception):
    """A name that is not on the list."""


class _Budget:
    """What one pickle may become: nodes of its tree, justified by its own bytes, and bytes of its leaves."""

    def __init__(self, nbytes: int, source_nbytes: int) -> None:
        self._most = nbytes
        self._nbytes = 0
        self._nodes = _FREE_NODES + _NODES_A_BYTE * source_nbytes

    def spend(self, nbytes: int) -> None:
        self._nodes -= 1
        self._nbytes += nbytes
        if self._nodes < 0:
            raise ValueError("it refers to its own parts so often that it would fill the memory")
        if self._nbytes > self._most:
            raise ValueError(f"its arrays and texts have more than {self._most:,} bytes")


class _StandIn:
    """What a pickle gets in place of an object; the pickle cannot change it, and `real` makes the object."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise ValueError(f"a state for {type(self).__name__[1:]}, which has none")

    def real(self, budget: _Budget) -> Any:
        raise ValueError("a function or a class where a value should be")


@dataclass(eq=False, slots=True)
class _Name(_StandIn):
    """A function or class that a pickle may name; calling it calls ours."""

    make: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.make(*arguments)


@dataclass(eq=False, slots=True)
class _Storage(_StandIn):
    """The memory of tensors; `read` returns its bytes, when the pickle has ended.

    Without `read`, its class or a dtype of torch. A class has a dtype unless its bytes are untyped.
    """

    dtype: torch.dtype | None
    read: Callable[[], Any] | None = None


@dataclass(eq=False, slots=True)
class _Deferred(_StandIn):
    """A value that is made when the pickle has ended: `make(budget, *arguments)`."""

    make: Callable[..., Any]
    arguments: tuple[Any, ...]

    def real(self, budget: _Budget) -> Any:
        return self.make(budget, *self.arguments)


@dataclass(eq=False, slots=True)
class _Built(_Deferred):
    """One that a state completes: `make(budget, state, *arguments)`."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def real(self, budget: _Budget) -> Any:
        return self.make(budget, self.state, *self.arguments)


def _real(value: Any, budget: _Budget) -> Any:
    """A value with the objects in the place of their stand-ins; what is in it twice is there twice."""
    kind = type(value)
    if isinstance(value, _StandIn):
        return value.real(budget)
    budget.spend(len(value) if kind in (str, bytes, bytearray) else 0)
    if kind in (dict, collections.OrderedDict):
        return kind((_real(key, budget), _real(item, budget)) for key, item in value.items())
    if kind in (list, tuple, set, frozenset):
        return kind([_real(item, budget) for item in value])
    return value


class _Loading(pickle._Unpickler):
    """One pickle at the place where a file stands, read into stand-ins.

    `storage_of` makes the _Storage of a persistent id, which only torch's files have. A nested file is one
    storage in a pickle, and holds no other.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def __init__(
        self, file: io.BytesIO, storage_of: Callable[[Any], _Storage] | None = None, is_nested: bool = False
    ) -> None:
        super().__init__(file)
        self._storage_of = storage_of
        self._is_nested = is_nested

    def find_class(self, module: str, name: str) -> Any:
        if self._is_nested and name == "_load_from_bytes":
            raise ValueError("a file of torch.save in one in a pickle")
        stand_in = _NAMES.get((module, name))
        if stand_in is None:
            raise _Refused(f"{module}.{name}")
        return stand_in

    def persistent_load(self, pid: Any) -> Any:
        if self._storage_of is None:
            raise ValueError("a persistent id outside a file of torch.save")
        return self._storage_of(pid)

    def _bytearray8(self) -> None:
        # Python's own allocates what is claimed before it reads.
        reader: Any = self
        nbytes = int.from_bytes(reader.read(8), "little")
        reader.append(bytearray(reader.read(min(nbytes, 1 << 62))))

    def _extension(self) -> NoReturn:
        raise _Refused("an extension code of copyreg")


_Loading.dispatch[pickle.BYTEARRAY8[0]] = _Loading._bytearray8
for _code in (pickle.EXT1, pickle.EXT2, pickle.EXT4):
    _Loading.dispatch[_code[0]] = _Loading._extension


# --- numpy


def _dtype(budget: _Budget, state: Any, text: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    dtype = _dtype_of(text, state, 0)
    if dtypes.describe(dtype) is None:
        raise _Refused(f"an array of dtype {dtype}")
    budget.spend(0)
    return dtype


def _part(value: Any) -> _Built:
    if not isinstance(value, _Built) or value.make is not _dtype:
        raise ValueError("a numpy dtype with a part that is none")
    return value


def _dtype_of(text: Any, state: Any, depth: int) -> np.dtype[Any]:
    """The dtype of a text, and of what `numpy.dtype.__setstate__` would get."""
    if type(text) is not str:
        raise _Refused("a numpy dtype that is not named by a text")
    if depth > dtypes.MAX_DEPTH:
        raise ValueError("a numpy dtype that is nested too deep")
    state = (3, "|", None, None, None, -1, -1, 0) if state is None else state
    if type(state) is not tuple or not 8 <= len(state) <= 9:
        raise ValueError("the state of a numpy dtype is malformed")

    def inner(part: Any) -> np.dtype[Any]:
        return _dtype_of(_part(part).arguments[0], part.state, depth + 1)

    _, order, sub, names, fields, itemsize, _, _ = state[:8]
    if sub is not None:
        base, shape = sub
        return np.dtype((inner(base), dtypes.check_shape(list(shape))))
    if names is not None:
        rows = [(name, fields[name][1], dtypes.describe(inner(fields[name][0]))) for name in names]
        return dtypes.parse(("struct", rows, itemsize))
    if text in ("M8", "m8"):
        unit, number, *_ = state[8][1]
        plain = unit.decode("ascii") if isinstance(unit, bytes) else unit
        text += "" if plain == "generic" else f"[{int(number)}{plain}]"
    if not _TEXT.fullmatch(text):
        raise _Refused(f"an array of dtype {text[:40]!r}")
    plain_dtype: np.dtype[Any] = np.dtype(order + text if order in ("<", ">") else text)
    return plain_dtype


def _array(budget: _Budget, data: Any, dtype: Any, shape: Any, order: Any) -> Any:
    kind = _part(dtype).real(budget)
    sizes = dtypes.check_shape(list(_real(shape, budget)))
    nbytes = dtypes.array_nbytes(sizes, kind.itemsize)
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(raw, (bytes, bytearray)) or len(raw) != nbytes:
        raise ValueError(f"an array of shape {sizes} and dtype {kind} whose bytes are not {nbytes:,}")
    budget.spend(nbytes)
    return np.ndarray(sizes, kind, bytearray(raw), order="F" if order == "F" else "C")


def _reconstructed(budget: _Budget, state: Any, kind: Any, shape: Any, code: Any) -> Any:
    if kind is not _NDARRAY:
        raise _Refused("a subclass of numpy.ndarray")
    if state is None:
        raise ValueError("an array without its bytes")
    shape, dtype, is_fortran, data = state[-4:]
    return _array(budget, data, dtype, shape, "F" if is_fortran else "C")


def _from_buffer(budget: _Budget, data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> Any:
    array = _array(budget, data, dtype, shape, order)
    return array if axes is None else array.transpose(_real(axes, budget))


def _scalar(budget: _Budget, dtype: Any, data: Any = b"") -> Any:
    return _array(budget, data, dtype, (), "C")[()]


# --- torch


def _tensor(budget: _Budget, arguments: tuple[Any, ...], typed: Any, meta: tuple[Any, ...]) -> torch.Tensor:
    if any(meta):
        raise _Refused("a tensor that is conjugated or negated by a bit")
    storage, offset, shape, strides = arguments
    dtype = getattr(typed, "dtype", None)
    if not isinstance(storage, _Storage) or storage.read is None or dtype is None:
        raise ValueError("a tensor without a storage")
    shape, strides = (tuple(_real(numbers, budget)) for numbers in (shape, strides))
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"a tensor of shape {shape} and strides {strides}")
    data, itemsize = storage.read(), dtype.itemsize
    budget.spend(dtypes.array_nbytes(shape, itemsize))
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if last >= len(data) // itemsize:
        raise ValueError(f"a tensor that ends at item {last:,} of a storage of {len(data):,} bytes")
    whole = torch.frombuffer(bytearray(data), dtype=dtype)
    # Without its neighbours: a saved view has the whole of what it was a view of.
    return whole.as_strided(shape, strides, offset).clone(memory_format=torch.contiguous_format)


def _nested(data: Any) -> _Storage:
    storage = _legacy(bytes(data), is_nested=True)
    if not isinstance(storage, _Storage) or storage.read is None:
        raise ValueError("a nested file of torch.save that is no storage")
    return storage


def _legacy(data: bytes, *, is_nested: bool = False) -> Any:
    """The stand-ins of a stream of pickles."""
    if not data.startswith(LEGACY):
        raise ValueError("a nested file of torch.save in another format than its first")
    file = io.BytesIO(data)
    for _ in range(3):  # the magic number, the version of the protocol, the sizes of C's integers
        _Loading(file).load()
    parts: dict[str, memoryview] = {}
    itemsizes: dict[str, int] = {}

    def storage_of(pid: Any) -> _Storage:
        dtype, key = _storage_id(pid)
        itemsizes[key] = 1 if dtype is None else dtype.itemsize
        return _Storage(dtype, lambda: parts[key])

    tree = _Loading(file, storage_of, is_nested).load()
    keys = _Loading(file).load()
    view, offset = memoryview(data), file.tell()
    for key in keys:
        items = int.from_bytes(view[offset : offset + 8], "little")
        end = offset + 8 + items * itemsizes[key]
        if end > len(data):
            raise EOFError(f"storage {key} should end at offset {end:,} of {len(data):,}")
        parts[key] = view[offset + 8 : end]
        offset = end
    return tree


def _storage_id(pid: Any) -> tuple[torch.dtype | None, str]:
    if type(pid) is not tuple or pid[0] != "storage" or not isinstance(pid[1], _Storage):
        raise ValueError("a persistent id that names no storage")
    if len(pid) > 5 and pid[5] is not None:
        raise ValueError("a storage that is a part of another")
    return pid[1].dtype, str(pid[2])


def _zipped(data: bytes) -> Any:
    """The stand-ins of a zip."""
    try:
        members = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise EOFError(str(error)) from None
    names = set(members.namelist())
    roots = [name.removesuffix("data.pkl") for name in names if re.fullmatch(r"[^/]*/data\.pkl", name)]
    if len(roots) != 1:
        raise ValueError("a zip without one data.pkl, which torch.save writes")
    root = roots[0]
    if f"{root}constants.pkl" in names:
        raise ValueError("TorchScript, which is a program and no sample")
    if f"{root}byteorder" in names and _member(members, f"{root}byteorder") != b"little":
        raise ValueError("saved by a big-endian machine")

    def storage_of(pid: Any) -> _Storage:
        dtype, key = _storage_id(pid)
        return _Storage(dtype, functools.partial(_member, members, f"{root}data/{key}"))

    return _Loading(io.BytesIO(_member(members, f"{root}data.pkl")), storage_of).load()


def _member(members: zipfile.ZipFile, name: str) -> bytes:
    info = members.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
        raise ValueError(f"{name} is compressed, as torch.save never does")
    return members.read(info)


# --- plain values


def _encoded(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes written as {encoding!r}")
    return str.encode(text, "latin1")


def _bytes(value: Any = b"", *encoding: Any) -> bytes:
    return _encoded(value, *encoding) if type(value) is str else bytes(memoryview(value))


def _path(kind: type[pathlib.PurePath], budget: _Budget, *parts: Any) -> pathlib.PurePath:
    if not all(type(part) is str for part in parts):
        raise ValueError("a path of parts that are no texts")
    budget.spend(0)
    return kind(*parts)


def _call(make: Callable[..., Any], kind: type[_Deferred] = _Deferred) -> _Name:
    return _Name(lambda *arguments: kind(make, arguments))


def _names() -> dict[tuple[str, str], _StandIn]:
    rebuilt = _call(lambda budget, *a: _tensor(budget, a[:4], a[0], a[6:7]))
    retyped = _call(lambda budget, *a: _tensor(budget, a[:4], a[6], a[7:8]))
    names: dict[tuple[str, str], _StandIn] = {
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _call(_dtype, _Built),
        ("_codecs", "encode"): _Name(_encoded),
        ("collections", "OrderedDict"): _Name(collections.OrderedDict),
        ("torch.storage", "_load_from_bytes"): _Name(_nested),
        ("torch._utils", "_rebuild_tensor"): rebuilt,
        ("torch._utils", "_rebuild_tensor_v2"): rebuilt,
        ("torch._utils", "_rebuild_tensor_v3"): retyped,
        ("torch", "UntypedStorage"): _Storage(None),
        ("torch.storage", "UntypedStorage"): _Storage(None),
    }
    for core in ("numpy.core", "numpy._core"):
        names[f"{core}.multiarray", "_reconstruct"] = _call(_reconstructed, _Built)
        names[f"{core}.multiarray", "scalar"] = _call(_scalar)
        names[f"{core}.numeric", "_frombuffer"] = _call(_from_buffer)
    for module in ("builtins", "__builtin__"):
        names[module, "bytes"] = _Name(_bytes)
        names[module, "bytearray"] = _Name(lambda *arguments: bytearray(_bytes(*arguments)))
        names |= {(module, kind.__name__): _Name(kind) for kind in (set, frozenset, complex)}
    for kind in (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone):
        names["datetime", kind.__name__] = _Name(kind)
    for path in (pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath):
        for module in ("pathlib", "pathlib._local"):
            names[module, path.__name__] = _call(functools.partial(_path, path))
    names |= {("torch", name): _Storage(dtype) for dtype, name in NAMES.items()}
    return names | {("torch", f"{name}Storage"): _Storage(dtype) for name, dtype in _STORAGES.items()}


_STORAGES = {
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
_NDARRAY: Final = _Name(_Refused)
_NAMES: Final = _names()
