"""Read pickles and files of torch.save that other programs wrote; only an allow-list of names is called.

Numpy's own functions take shapes, offsets and flags from a pickle unchecked, so arrays are made here.
"""

from __future__ import annotations

import collections
import datetime as dt
import io
import pathlib
import pickle
import re
import types
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from edcache.base import ArchiveError, CodecError, EdcacheError, foreign_code
from edcache.codec.tensors import NAMES

_LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_ZIP: Final = b"PK\x03\x04"
_NDARRAY: Final = "numpy", "ndarray"
# As numpy writes them into a pickle; without "O8", which would make pointers of a file's bytes.
_DTYPE: Final = re.compile(r"[biufcSUVmM]\d{1,10}")


def restored(data: bytes, place: str, *, trust: bool = False) -> Any:
    """Unpickle containers, plain values, arrays, and tensors, without gradient and on the CPU.

    Args:
        place: the beginning of messages: "train.zip: example_3.p".
        trust: True reads it with pickle itself, which runs any code of its author.
    Raises:
        CodecError: "train.zip: example_3.p needs os.system; ...". It was not called.
        ArchiveError: it is damaged.
    """
    with _unpickling(place):
        return pickle.loads(data) if trust else _resolve(_Unpickler(io.BytesIO(data)).load())  # noqa: S301


def torch_loaded(data: bytes, place: str, *, trust: bool = False) -> Any:
    """Read a file of torch.save: a zip, or the stream of pickles from before torch 1.6.

    Arguments, result and errors: as of `restored`.
    """
    if not data.startswith((_LEGACY, _ZIP)):
        raise ArchiveError(f"{place} begins with {data[:8]!r}, as no file of torch.save does")
    with _unpickling(place):
        if trust:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        return _resolve(_torch_load(data))


def _unpickling(place: str) -> foreign_code:
    """Turn errors of unpickling into ours."""

    def made(error: Exception) -> EdcacheError:
        if isinstance(error, CodecError):
            return CodecError(
                f"{place} needs {error}; if you trust its author, trust_pickle=True reads it as "
                "pickle does, which runs whatever code is in it",
                option="trust_pickle",
            )
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:300]
        return ArchiveError(f"{place} does not unpickle: {type(error).__name__}: {reason}")

    return foreign_code(made)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise CodecError(f"{module}.{name}")
        return _ALLOWED[module, name]


def _torch_load(data: bytes) -> Any:
    # torch.load runs TorchScript, which has a file of this name. Zip readers differ, so all bytes are searched.
    if b"constants.pkl" in data:
        raise CodecError("TorchScript, which is a program")
    # weights_only=True would refuse arrays. Torch looks names up in this Unpickler, and makes storages itself.
    return torch.load(io.BytesIO(data), "cpu", pickle_module=_PICKLE, weights_only=False)


def _pickle_load(file: Any, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


_PICKLE: Final = types.SimpleNamespace(__name__="pickle", Unpickler=_Unpickler, load=_pickle_load)


class _StandIn:
    """Stand-in for a library's object, which opcodes of a pickle could change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise ValueError(f"a state for {type(self).__name__}, which has none")


class _Function(_StandIn):
    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


class _Dtype(_StandIn):
    """Stand-in for a numpy.dtype."""

    def __init__(self, text: str, align: Any = False, copy: Any = True) -> None:
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise CodecError(f"an array of dtype {text!r:.40}")
        self.dtype: np.dtype[Any] = np.dtype(text)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, parts, names, *_ = state
        if parts is not None or names is not None:
            raise CodecError("an array of a dtype with fields")
        if self.dtype.kind in "mM":
            unit, number, *_ = state[8][1]
            plain = unit.decode("ascii") if isinstance(unit, bytes) else unit
            if plain != "generic":
                self.dtype = np.dtype(f"{self.dtype.kind}8[{int(number)}{plain}]")
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)


class _Array(_StandIn):
    """Stand-in for an array, which its state makes."""

    def __init__(self, kind: object, shape: object, code: object) -> None:
        if kind is not _ALLOWED[_NDARRAY]:
            raise CodecError("a subclass of numpy.ndarray")
        self._state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._state = state

    def value(self) -> Any:
        shape, dtype, is_fortran, data = self._state[-4:]
        return _array(data, dtype, shape, "F" if is_fortran else "C")


class _Tensor(_StandIn):
    """Stand-in for a tensor; older files of torch.save have its bytes behind the pickle."""

    def __init__(
        self,
        storage: Any,
        offset: Any,
        shape: Any,
        strides: Any,
        grad: object,
        hooks: object,
        bits: Any = None,
    ) -> None:
        self._view = shape, strides, offset
        self._dtype, self._storage = storage.dtype, storage._untyped_storage
        if bits:
            raise CodecError("a tensor that is conjugated or negated by a bit")

    def value(self) -> Any:
        # as_strided ends in the storage, which torch's own function would make longer.
        whole = torch.empty(0, dtype=self._dtype).set_(self._storage)
        return whole.as_strided(*self._view).clone(memory_format=torch.contiguous_format)


def _array(data: Any, dtype: Any, shape: Any, order: str = "C", axes: Any = None) -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    array: Any = np.ndarray(shape, dtype.dtype, bytearray(raw), order="F" if order == "F" else "C")
    if array.nbytes != len(raw):
        raise ValueError(f"an array of shape {shape} and dtype {dtype.dtype} with {len(raw):,} bytes")
    return array if axes is None else array.transpose(axes)


def _scalar(dtype: Any, data: Any = b"") -> Any:
    return _array(data, dtype, ())[()]


def _encoded(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes written as {encoding!r}")
    return text.encode("latin1")


def _bytes(value: Any = b"", *encoding: Any) -> bytes:
    return _encoded(value, *encoding) if isinstance(value, str) else bytes(memoryview(value))


def _resolve(value: Any) -> Any:
    """Replace stand-ins in a value by their arrays and tensors."""
    if isinstance(value, (_Array, _Tensor)):
        return value.value()
    if type(value) in (dict, collections.OrderedDict):
        return type(value)((_resolve(key), _resolve(item)) for key, item in value.items())
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(_resolve, value))
    if isinstance(value, _StandIn):
        raise ValueError("a function, a class or a dtype where a value should be")
    return value


def _allowed() -> dict[tuple[str, str], Any]:
    calls: dict[tuple[str, str], Callable[..., Any]] = {
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _encoded,
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch.storage", "_load_from_bytes"): _torch_load,
        ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
    }
    for core in ("numpy.core", "numpy._core"):
        calls[f"{core}.multiarray", "_reconstruct"] = _Array
        calls[f"{core}.multiarray", "scalar"] = _scalar
        calls[f"{core}.numeric", "_frombuffer"] = _array
    for module in ("builtins", "__builtin__"):
        calls[module, "bytes"] = _bytes
        calls[module, "bytearray"] = lambda *value: bytearray(_bytes(*value))
        calls |= {(module, kind.__name__): kind for kind in (set, frozenset, complex)}
    calls |= {("datetime", k.__name__): k for k in (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone)}
    for module in ("pathlib", "pathlib._local"):
        for path in (pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath):
            calls[module, path.__name__] = path
    values = {("torch", name): dtype for dtype, name in NAMES.items()}
    return {name: _Function(call) for name, call in calls.items()} | values | {_NDARRAY: _StandIn()}


_ALLOWED: Final = _allowed()
