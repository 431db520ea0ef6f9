"""Pickles of other programs, read by a closed list of names; nothing that they name is ever called.

A name in a pickle leads to a stand-in of ours or is refused. Stand-ins keep what they were called with; when
the pickle has ended they are made into arrays, tensors and times, by code that checks every number first. The
unpickler is the one that is written in Python: C's allocates for whatever number a pickle puts into its memo.

    restored      one pickle
    Loading       the unpickler underneath, for formats that hold several (torchsave)
    Budget        how much a pickle may become
"""

from __future__ import annotations

import collections
import datetime as dt
import io
import pathlib
import pickle
import re
import struct
from collections.abc import Callable
from typing import Any, ClassVar, Final, NoReturn

import numpy as np
import torch

from edcache.base import CorruptRecordError, ForeignCacheError, PickleRefusedError
from edcache.codec import dtypes

MOST_NBYTES: Final = 1 << 31
"""Bytes that the arrays, tensors and texts of one sample may have, unless more are allowed."""

_FREE_NODES: Final = 1 << 16
_NODES_A_BYTE: Final = 8
# As numpy writes them into a pickle, the unit of a time inserted.
_TEXT = re.compile(r"[biufcSUV]\d{1,10}|[mM]8(?:\[\d{1,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_DAMAGED = (
    struct.error,
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, LookupError, MemoryError),
    *(CorruptRecordError, ImportError, RecursionError, RuntimeError, SyntaxError, TypeError, ValueError),
)
_TRUST = (
    "; if you trust its author, trust_pickle=True (--trust-pickle) reads it as pickle does, which runs "
    "whatever code is in it"
)


class Budget:
    """What one pickle may become: nodes of its tree, and bytes of its leaves.

    Args:
        nbytes: bytes in all arrays, tensors, texts and byte strings together.
        source_nbytes: of the pickle; it justifies the nodes.
    """

    def __init__(self, nbytes: int, source_nbytes: int) -> None:
        self._most = nbytes
        self._nbytes = 0
        self._nodes = _FREE_NODES + _NODES_A_BYTE * source_nbytes

    def spend(self, nbytes: int) -> None:
        """Take one node of so many bytes; ValueError where that is too much."""
        self._nodes -= 1
        self._nbytes += nbytes
        if self._nodes < 0:
            raise ValueError("it refers to its own parts so often that it would fill the memory")
        if self._nbytes > self._most:
            raise ValueError(f"its arrays and texts have more than {self._most:,} bytes")


def restored(data: bytes, where: str, *, trust: bool = False, most_nbytes: int = MOST_NBYTES) -> Any:
    """What a pickle holds: containers, plain Python values, arrays and tensors; the caller owns them.

    Args:
        where: for messages: "train.zip: example_3.p".
        trust: read it with pickle itself, which runs whatever code its author put there.
        most_nbytes: bytes that its arrays and texts may have together.
    Raises:
        PickleRefusedError: "train.zip: example_3.p needs os.system; ...". Nothing was called.
        ForeignCacheError: it is damaged, or would become larger than allowed.

    Tensors come back without requires_grad and on the CPU.
    """
    with Told(where, trust=trust):
        if trust:
            return pickle.loads(data)  # noqa: S301 - the caller said so
        return resolved(Loading(io.BytesIO(data)).load(), Budget(most_nbytes, len(data)))


class Told:
    """Puts what a pickle does wrong into an error that says where.

    Args:
        trust: the code that a pickle names runs, and may raise anything.
    """

    def __init__(self, where: str, *, trust: bool = False) -> None:
        self._where = where
        self._damaged = Exception if trust else _DAMAGED

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, _Refused):
            raise PickleRefusedError(f"{self._where} needs {error}{_TRUST}") from None
        if isinstance(error, self._damaged):
            what = "nested too deep" if isinstance(error, RecursionError) else str(error)[:300]
            name = type(error).__name__
            raise ForeignCacheError(f"{self._where} does not unpickle: {name}: {what}") from error


class _Refused(Exception):
    """A name that is not on the list."""


class _StandIn:
    """What a pickle gets in place of an object; the pickle cannot change it, and `real` makes the object."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise ValueError(f"a state for {type(self).__name__[1:]}, which has none")

    def real(self, budget: Budget) -> Any:
        """The object itself."""
        raise ValueError("a function or a class where a value should be")


class _Name(_StandIn):
    """A function or class that a pickle may name; calling it calls ours."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)


class TorchType(_StandIn):
    """A dtype of torch, or the class of a storage, which has one; `dtype` is None for untyped bytes."""

    __slots__ = ("dtype",)

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.dtype = dtype


class _Made(_StandIn):
    """A value of a plain class, made when the pickle has ended."""

    __slots__ = ("_arguments", "_make")

    def __init__(self, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._make, self._arguments = make, arguments

    def real(self, budget: Budget) -> Any:
        budget.spend(0)
        return self._make(*(resolved(argument, budget) for argument in self._arguments))


class _Dtype(_StandIn):
    """A numpy dtype: its text, and what `dtype.__setstate__` would get."""

    __slots__ = ("_state", "_text")

    def __init__(self, text: Any, align: Any = False, copy: Any = True) -> None:
        if type(text) is not str:
            raise _Refused("a numpy dtype that is not named by a text")
        self._text: str = text
        self._state: tuple[Any, ...] = (3, "|", None, None, None, -1, -1, 0)

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or not 8 <= len(state) <= 9:
            raise ValueError("the state of a numpy dtype is malformed")
        self._state = state

    def real(self, budget: Budget) -> Any:
        found = self._found(0)
        if dtypes.describe(found) is None:
            raise _Refused(f"an array of dtype {found}")
        budget.spend(0)
        return found

    def _found(self, depth: int) -> np.dtype[Any]:
        if depth > dtypes.MAX_DEPTH:
            raise ValueError("a numpy dtype that is nested too deep")
        _, order, sub, names, fields, itemsize, _, flags = self._state[:8]
        if sub is not None:
            base, shape = sub
            return np.dtype((_part(base)._found(depth + 1), dtypes.check_shape(list(shape))))
        if names is not None:
            parts = [(name, *fields[name]) for name in names]
            spec: Any = {
                "names": list(names),
                "formats": [_part(part[1])._found(depth + 1) for part in parts],
                "offsets": [part[2] for part in parts],
                "itemsize": itemsize,
            }
            if any(len(part) > 3 for part in parts):
                spec["titles"] = [part[3] if len(part) > 3 else None for part in parts]
            made: np.dtype[Any] = np.dtype(spec, align=bool(flags & 0x80))
            return made
        text = self._text
        if text in ("M8", "m8"):
            unit, number, *_ = self._state[8][1]
            plain = unit.decode("ascii") if isinstance(unit, bytes) else unit
            text += "" if plain == "generic" else f"[{int(number)}{plain}]"
        if not _TEXT.fullmatch(text):
            raise _Refused(f"an array of dtype {text[:40]!r}")
        found: np.dtype[Any] = np.dtype(order + text if order in ("<", ">") else text)
        return found


class _Array(_StandIn):
    """A numpy array that is filled by its state."""

    __slots__ = ("_data", "_dtype", "_fortran", "_shape")

    def __init__(self, kind: Any, shape: Any, code: Any) -> None:
        if kind is not _NDARRAY:
            raise _Refused("a subclass of numpy.ndarray")
        self._shape: Any = None

    def __setstate__(self, state: Any) -> None:
        self._shape, self._dtype, self._fortran, self._data = state[-4:]

    def real(self, budget: Budget) -> Any:
        if self._shape is None:
            raise ValueError("an array without its bytes")
        return _array(self._data, self._dtype, self._shape, "F" if self._fortran else "C", budget)


class Storage(_StandIn):
    """The memory of tensors.

    Args:
        dtype: None for untyped bytes.
        read: returns the bytes; called when the pickle has ended.
    """

    __slots__ = ("_read", "dtype")

    def __init__(self, dtype: torch.dtype | None, read: Callable[[], Any]) -> None:
        self.dtype = dtype
        self._read = read

    def data(self) -> Any:
        """Its bytes, not copied."""
        return self._read()


class _Tensor(_StandIn):
    """A tensor over a storage."""

    __slots__ = ("_dtype", "_offset", "_shape", "_storage", "_strides")

    def __init__(self, storage: Any, offset: Any, shape: Any, strides: Any, dtype: Any) -> None:
        if not isinstance(storage, Storage) or dtype is None:
            raise ValueError("a tensor without a storage")
        self._storage, self._dtype = storage, dtype
        self._offset, self._shape, self._strides = offset, shape, strides

    def real(self, budget: Budget) -> Any:
        shape, strides = (tuple(resolved(numbers, budget)) for numbers in (self._shape, self._strides))
        numbers = (self._offset, *shape, *strides)
        if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError(f"a tensor of shape {shape} and strides {strides}")
        data, itemsize = self._storage.data(), self._dtype.itemsize
        budget.spend(dtypes.array_nbytes(shape, itemsize))
        if 0 in shape:
            return torch.empty(shape, dtype=self._dtype)
        last = self._offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if last >= len(data) // itemsize:
            raise ValueError(f"a tensor that ends at item {last:,} of a storage of {len(data):,} bytes")
        whole = torch.frombuffer(bytearray(data), dtype=self._dtype)
        # Without its neighbours: a saved view has the whole of what it was a view of.
        return whole.as_strided(shape, strides, self._offset).clone(memory_format=torch.contiguous_format)


def resolved(value: Any, budget: Budget) -> Any:
    """A value with the objects in the place of their stand-ins; what is in it twice is there twice."""
    kind = type(value)
    if isinstance(value, _StandIn):
        return value.real(budget)
    budget.spend(len(value) if kind in (str, bytes, bytearray) else 0)
    if kind in (dict, collections.OrderedDict):
        return kind((resolved(key, budget), resolved(item, budget)) for key, item in value.items())
    if kind in (list, tuple, set, frozenset):
        return kind([resolved(item, budget) for item in value])
    return value


class Loading(pickle._Unpickler):
    """One pickle at the place where a file stands, read into stand-ins.

    Args:
        storage_of: makes the Storage of a persistent id, which only torch's files have.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: io.BytesIO, storage_of: Callable[[Any], Storage] | None = None) -> None:
        super().__init__(file)
        self._storage_of = storage_of

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in of a name; PickleRefusedError, later, where there is none."""
        found = NAMES.get((module, name))
        if found is None:
            raise _Refused(f"{module}.{name}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        """The storage of a persistent id."""
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


Loading.dispatch[pickle.BYTEARRAY8[0]] = Loading._bytearray8
for _code in (pickle.EXT1, pickle.EXT2, pickle.EXT4):
    Loading.dispatch[_code[0]] = Loading._extension


def _part(value: Any) -> _Dtype:
    if not isinstance(value, _Dtype):
        raise ValueError("a numpy dtype with a part that is none")
    return value


def _array(data: Any, dtype: Any, shape: Any, order: str, budget: Budget) -> Any:
    kind = _part(dtype).real(budget)
    sizes = dtypes.check_shape(list(resolved(shape, budget)))
    nbytes = dtypes.array_nbytes(sizes, kind.itemsize)
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(raw, (bytes, bytearray)) or len(raw) != nbytes:
        raise ValueError(f"an array of shape {sizes} and dtype {kind} whose bytes are not {nbytes:,}")
    budget.spend(nbytes)
    return np.ndarray(sizes, kind, bytearray(raw), order="F" if order == "F" else "C")


def _buffer_array(data: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> _StandIn:
    return _Made(_ordered, (_Late(data, dtype, shape, order), axes))


class _Late(_StandIn):
    """An array of protocol 5, whose bytes are an argument."""

    __slots__ = ("_arguments",)

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def real(self, budget: Budget) -> Any:
        data, dtype, shape, order = self._arguments
        return _array(data, dtype, shape, order, budget)


def _ordered(array: Any, axes: Any) -> Any:
    return array if axes is None else array.transpose(axes)


class _Scalar(_StandIn):
    """A numpy scalar."""

    __slots__ = ("_data", "_dtype")

    def __init__(self, dtype: Any, data: Any = b"") -> None:
        self._dtype, self._data = dtype, data

    def real(self, budget: Budget) -> Any:
        return _array(self._data, self._dtype, (), "C", budget)[()]


def _rebuild_tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    grad: Any = False,
    hooks: Any = None,
    meta: Any = None,
) -> _Tensor:
    if meta:
        raise _Refused("a tensor that is conjugated or negated by a bit")
    return _Tensor(storage, offset, shape, strides, getattr(storage, "dtype", None))


def _rebuild_tensor_of(
    storage: Any, offset: Any, shape: Any, strides: Any, _: Any, __: Any, dtype: Any, meta: Any = None
) -> _Tensor:
    if meta:
        raise _Refused("a tensor that is conjugated or negated by a bit")
    return _Tensor(storage, offset, shape, strides, getattr(dtype, "dtype", None))


def _nested(data: Any) -> Storage:
    from edcache.codec.torchsave import legacy

    found = legacy(bytes(data), is_nested=True)
    if not isinstance(found, Storage):
        raise ValueError("a nested file of torch.save that is no storage")
    return found


def _encoded(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes written as {encoding!r}")
    return str.encode(text, "latin1")


def _plain_bytes(*arguments: Any) -> bytes:
    if not arguments:
        return b""
    value, *encoding = arguments
    return _encoded(value, *encoding) if type(value) is str else bytes(memoryview(value))


def _plain_bytearray(*arguments: Any) -> bytearray:
    return bytearray(_plain_bytes(*arguments))


def _later(make: Callable[..., Any]) -> _Name:
    return _Name(lambda *arguments: _Made(make, arguments))


def _ordered_dict(*arguments: Any) -> Any:
    return collections.OrderedDict(*arguments)


def _path(kind: type[pathlib.PurePath]) -> Callable[..., pathlib.PurePath]:
    def make(*parts: Any) -> pathlib.PurePath:
        if not all(type(part) is str for part in parts):
            raise ValueError("a path of parts that are no texts")
        return kind(*parts)

    return make


def _names() -> dict[tuple[str, str], _StandIn]:
    numpy: dict[str, _StandIn] = {"_reconstruct": _Name(_Array), "scalar": _Name(_Scalar)}
    found: dict[tuple[str, str], _StandIn] = {
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _Name(_Dtype),
        ("_codecs", "encode"): _Name(_encoded),
        ("collections", "OrderedDict"): _Name(_ordered_dict),
        ("torch.storage", "_load_from_bytes"): _Name(_nested),
        ("torch._utils", "_rebuild_tensor"): _Name(_rebuild_tensor),
        ("torch._utils", "_rebuild_tensor_v2"): _Name(_rebuild_tensor),
        ("torch._utils", "_rebuild_tensor_v3"): _Name(_rebuild_tensor_of),
    }
    for core in ("numpy.core", "numpy._core"):
        found |= {(f"{core}.multiarray", name): make for name, make in numpy.items()}
        found[f"{core}.numeric", "_frombuffer"] = _Name(_buffer_array)
    for module in ("builtins", "__builtin__"):
        found |= {
            (module, "bytes"): _Name(_plain_bytes),
            (module, "bytearray"): _Name(_plain_bytearray),
            (module, "complex"): _later(complex),
            (module, "set"): _Name(set),
            (module, "frozenset"): _Name(frozenset),
        }
    for kind in (dt.datetime, dt.date, dt.time, dt.timedelta, dt.timezone):
        found["datetime", kind.__name__] = _later(kind)
    for path in (pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath):
        for module in ("pathlib", "pathlib._local"):
            found[module, path.__name__] = _later(_path(path))
    return found | _torch_names()


def _torch_names() -> dict[tuple[str, str], _StandIn]:
    found: dict[tuple[str, str], _StandIn] = {}
    for known in dtypes.TORCH_BY_NAME.values():
        found["torch", known.name] = TorchType(known.dtype)
    for name, dtype in _STORAGES.items():
        found["torch", f"{name}Storage"] = TorchType(dtype)
    for module in ("torch", "torch.storage"):
        found[module, "UntypedStorage"] = TorchType(None)
    return found


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
NAMES: Final = _names()
