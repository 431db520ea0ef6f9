"""Leaves: one Python value <-> the JSON of its schema node and its wire value.

The wire value of a leaf is what its place in a record needs: a number for the struct codes "B", "q" and "d",
bytes for the others, a C-ordered numpy array for tensors and arrays.
"""

from __future__ import annotations

import datetime as dt
import enum
import os
import pathlib
import struct
import uuid
import zoneinfo
from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch

from edcache.base import (
    CodecError,
    CorruptRecordError,
    ImageError,
    MissingDependencyError,
    UnsupportedTypeError,
)
from edcache.codec import dtypes
from edcache.codec.imagefile import ImageFile, file_bytes, revived
from edcache.codec.imaging import format_of
from edcache.codec.registry import class_name, is_registered, member_named, registered
from edcache.codec.schema import Node

# A list at least this long whose items are all of one plain type is one leaf, whatever its length.
PACKED_LENGTH = 8

Leaf = tuple[Any, Any]
Revive = Callable[[Any], Any]

_US = dt.timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_TRIPLE = struct.Struct("<iii")
_PAIR = struct.Struct("<dd")


class Refusal(TypeError):
    """A value that the native codec does not store; the walk that meets it adds the path.

    Args: the message after "cannot store ".
    """

    error: type[CodecError] = UnsupportedTypeError


class ImageRefusal(Refusal):
    """An image file that is not there, or is none."""

    error = ImageError


def leaf_of(value: Any) -> Leaf | None:
    """Return (schema node, wire value) of a leaf, or None if the value is a container or unknown.

    Raises:
        Refusal: a leaf that cannot be stored as it is.
    """
    make = LEAF_TYPES.get(type(value))
    if make is not None:
        return make(value)
    if isinstance(value, enum.Enum):
        return _enum(value)
    return None


def type_name(value: object) -> str:
    """Return the name of a value's type as messages show it."""
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def text_bytes(text: str) -> bytes:
    """Return UTF-8, with three bytes for each lone surrogate."""
    return text.encode("utf-8", "surrogatepass")


def _text(data: Any) -> str:
    return str(data, "utf-8", "surrogatepass")


def _int(value: int) -> Leaf:
    if -(1 << 63) <= value < 1 << 63:
        return "int", value
    return "bigint", int_bytes(value)


def int_bytes(value: int) -> bytes:
    """Return the shortest two's complement of an int, little-endian."""
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _plain(kind: str, wire: Callable[[Any], Any]) -> Callable[[Any], Leaf]:
    return lambda value: (kind, wire(value))


def _path(value: pathlib.PurePath) -> Leaf:
    return ["path", type(value).__name__], text_bytes(str(value))


def tensor_array(value: torch.Tensor, known: dtypes.TorchDtype) -> dtypes.Array:
    """Return the memory of a strided CPU tensor as a C-ordered array: a view where it is so already."""
    if known.bits is None:
        plain = value.resolve_conj().resolve_neg()
        return plain.contiguous().numpy()
    plain = _conj_half(value) if value.is_conj() else value
    # Viewed first: torch copies integers, but not every one of its dtypes.
    return plain.view(known.bits).contiguous().numpy()


def _conj_half(value: torch.Tensor) -> torch.Tensor:
    # torch has no conj_physical for complex32; its real view is half precision, which has negation.
    pairs = torch.view_as_real(value.conj()).clone()
    pairs[..., 1].neg_()
    return torch.view_as_complex(pairs)


def _tensor(value: torch.Tensor) -> Leaf:
    remedy = _tensor_remedy(value)
    if remedy:
        raise Refusal(remedy)
    known = dtypes.TORCH_BY_DTYPE.get(value.dtype)
    if known is None:
        raise Refusal(f"a tensor of {value.dtype}; convert it to another dtype")
    if value.dim() > dtypes.MAX_NDIM:
        raise Refusal(f"a tensor of {value.dim()} dimensions, more than {dtypes.MAX_NDIM}; reshape it")
    try:
        return ["tensor", known.name, list(value.shape)], tensor_array(value, known)
    except (RuntimeError, TypeError) as error:
        raise Refusal(f"this tensor; call .detach().clone() on it ({error})") from error


def _tensor_remedy(value: torch.Tensor) -> str:
    if value.is_quantized:
        return "a quantized tensor; call .dequantize() on it"
    if value.is_nested:
        return "a nested tensor; store .unbind() of it, a tuple of tensors"
    if value.layout is not torch.strided:
        return f"a tensor of layout {value.layout}; call .to_dense() on it"
    if value.device.type != "cpu":
        return f"a tensor on device {value.device}; call .cpu() on it"
    if value.requires_grad:
        return "a tensor that requires grad; call .detach() on it"
    return ""


def _array(value: dtypes.Array) -> Leaf:
    description = dtypes.describe(value.dtype)
    if description is None:
        raise Refusal(f"an array of dtype {value.dtype}; convert it to a dtype of fixed size with .astype()")
    return ["array", description, list(value.shape)], dtypes.own_bytes(np.asarray(value))


def _memmap(value: dtypes.Array) -> Leaf:
    return _array(value.view(np.ndarray))


def _scalar(value: np.generic) -> Leaf:
    description = dtypes.describe(value.dtype)
    if description is None:
        raise Refusal(f"a numpy scalar of dtype {value.dtype}; call .item() on it")
    return ["scalar", description], dtypes.own_bytes(np.asarray(value)).tobytes()


def _void(value: np.void) -> Leaf:
    if value.dtype.names is not None:
        return _scalar(value)
    return "numpy.void", value.tobytes()


def _zone(tz: dt.tzinfo | None) -> Any:
    if tz is None:
        return None
    if type(tz) is dt.timezone:
        name = tz.tzname(None)
        plain = dt.timezone(tz.utcoffset(None)).tzname(None)
        return [tz.utcoffset(None) // _US, None if name == plain else name]
    if type(tz) is zoneinfo.ZoneInfo and tz.key is not None:
        return tz.key
    raise Refusal(f"a time zone of type {type_name(tz)}; use zoneinfo.ZoneInfo or datetime.timezone")


def _datetime(value: dt.datetime) -> Leaf:
    local = (value.replace(tzinfo=None, fold=0) - dt.datetime.min) // _US
    return ["datetime", _zone(value.tzinfo)], 2 * local + value.fold


def _time(value: dt.time) -> Leaf:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return ["time", _zone(value.tzinfo)], 2 * (seconds * 1_000_000 + value.microsecond) + value.fold


def _enum(value: enum.Enum) -> Leaf:
    cls = type(value)
    if not is_registered(cls):
        raise Refusal(f"{type_name(value)}; register it with edcache.register({cls.__name__})")
    name = list(class_name(cls))
    # A combination of flags has no name, or one that leads nowhere.
    if value.name is not None and cls.__members__.get(value.name) is value:
        return ["enum", *name], text_bytes(value.name)
    if isinstance(value, enum.Flag) and type(value.value) is int:
        return ["flag", *name], int_bytes(value.value)
    raise Refusal(f"{value!r}, which is no member of its enum; store its value")


def image_node(value: ImageFile) -> list[Any]:
    """Return the schema node of an image file; its bytes are not read."""
    decoding = value.decoding
    return ["imagefile", decoding.form, decoding.mode, decoding.exif_transpose]


def _image_file(value: ImageFile) -> Leaf:
    try:
        data = file_bytes(value)
    except ImageError as error:
        raise ImageRefusal(str(error)) from error.__cause__
    if value.path is not None and format_of(data) is None:
        raise ImageRefusal(
            f"image file {value.path!r}, which begins with {data[:8]!r}, as no JPEG, PNG, WebP, GIF, BMP or "
            "TIFF does; leave it out, or store its bytes"
        )
    return image_node(value), data


def packed(value: list[Any] | tuple[Any, ...]) -> Leaf | None:
    """Return the leaf of a long list or tuple of one plain type, None if it is a container."""
    if len(value) < PACKED_LENGTH:
        return None
    kinds = set(map(type, value))
    pack = _PACKS.get(kinds.pop()) if len(kinds) == 1 else None
    if pack is None:
        return None
    kind, make = pack
    try:
        return [kind, type(value).__name__], make(value)
    except OverflowError:
        return None


def _pack_texts(texts: Any) -> bytes:
    parts = [text_bytes(text) for text in texts]
    lengths = array("q", [len(parts), *map(len, parts)])
    return lengths.tobytes() + b"".join(parts)


_PACKS: dict[type, tuple[str, Callable[[Any], bytes]]] = {
    int: ("ints", lambda items: array("q", items).tobytes()),
    float: ("floats", lambda items: array("d", items).tobytes()),
    bool: ("bools", bytes),
    str: ("strs", _pack_texts),
}

LEAF_TYPES: dict[type, Callable[[Any], Leaf | None]] = {
    cls: _scalar for cls in {*np.sctypeDict.values(), np.record} if issubclass(cls, np.generic)
}
LEAF_TYPES.update(
    {
        np.str_: _plain("numpy.str", text_bytes),
        np.bytes_: _plain("numpy.bytes", bytes),
        np.void: _void,
        np.ndarray: _array,
        np.memmap: _memmap,
        torch.Tensor: _tensor,
        bool: _plain("bool", bool),
        int: _int,
        float: _plain("float", float),
        complex: _plain("complex", lambda value: _PAIR.pack(value.real, value.imag)),
        str: _plain("str", text_bytes),
        bytes: _plain("bytes", bytes),
        bytearray: _plain("bytearray", bytes),
        list: packed,
        tuple: packed,
        pathlib.PosixPath: _path,
        pathlib.PurePosixPath: _path,
        pathlib.WindowsPath: _path,
        pathlib.PureWindowsPath: _path,
        dt.datetime: _datetime,
        dt.date: _plain("date", dt.date.toordinal),
        dt.time: _time,
        dt.timedelta: _plain(
            "timedelta", lambda value: _TRIPLE.pack(value.days, value.seconds, value.microseconds)
        ),
        uuid.UUID: _plain("uuid", lambda value: value.bytes),
        ImageFile: _image_file,
    }
)


def reviver(node: Node) -> Revive:
    """Return the function wire value -> value of a leaf that is no array, int or float.

    It takes what struct unpacks for a leaf of fixed size, a memoryview for one of variable size, and raises
    ValueError or OverflowError, or an EdcacheError, over bytes that no writer left.
    """
    simple = _REVIVE.get(node.kind)
    return simple if simple is not None else _REVIVE_MADE[node.kind](node)


def _revive_bool(value: int) -> bool:
    if value > 1:
        raise CorruptRecordError(f"bool stored as {value}")
    return value == 1


def _revive_timedelta(data: bytes) -> dt.timedelta:
    days, seconds, microseconds = _TRIPLE.unpack(data)
    return dt.timedelta(days, seconds, microseconds)


def _revive_bigint(data: Any) -> int:
    return int.from_bytes(data, "little", signed=True)


def _tzinfo(tz: Any) -> dt.tzinfo | None:
    if tz is None:
        return None
    if type(tz) is str:
        try:
            return zoneinfo.ZoneInfo(tz)
        except (zoneinfo.ZoneInfoNotFoundError, OSError):
            raise MissingDependencyError(f"no time zone {tz!r} on this system; pip install tzdata") from None
    offset, name = tz
    delta = dt.timedelta(microseconds=offset)
    return dt.timezone(delta) if name is None else dt.timezone(delta, name)


def _revive_datetime(node: Node) -> Revive:
    def revive(value: int) -> dt.datetime:
        local = dt.datetime.min + dt.timedelta(microseconds=value >> 1)
        return local.replace(tzinfo=_tzinfo(node.const), fold=value & 1)

    return revive


def _revive_time(node: Node) -> Revive:
    def revive(value: int) -> dt.time:
        if not 0 <= value < 2 * _DAY_US:
            raise CorruptRecordError(f"time of day stored as {value}")
        clock = (dt.datetime.min + dt.timedelta(microseconds=value >> 1)).time()
        return clock.replace(tzinfo=_tzinfo(node.const), fold=value & 1)

    return revive


def _revive_scalar(node: Node) -> Revive:
    dtype: Any = node.memory

    def revive(data: bytes) -> Any:
        if not data:
            return np.zeros((), dtype)[()]
        # A structured scalar is a view of its array, so the array has to be its own.
        return np.ndarray((), dtype, data).copy()[()]

    return revive


def _revive_path(node: Node) -> Revive:
    native = "PosixPath" if os.name == "posix" else "WindowsPath"
    name = node.const
    if name in ("PosixPath", "WindowsPath") and name != native:
        name = "Pure" + name
    cls = getattr(pathlib, name)
    return lambda data: cls(_text(data))


def _revive_enum(node: Node) -> Revive:
    def revive(data: Any) -> Any:
        return member_named(registered(node.const), _text(data))

    return revive


def _revive_flag(node: Node) -> Revive:
    def revive(data: Any) -> Any:
        cls: Any = registered(node.const)
        return cls(_revive_bigint(data))

    return revive


def _revive_image_file(node: Node) -> Revive:
    decoding = node.const
    return lambda data: revived(data, decoding)


def _revive_packed(unpack: Callable[[Any], list[Any]]) -> Callable[[Node], Revive]:
    return lambda node: unpack if node.const == "list" else lambda data: tuple(unpack(data))


def _unpack_numbers(dtype: str) -> Callable[[Any], list[Any]]:
    item = np.dtype(dtype)
    return lambda data: np.frombuffer(data, item).tolist() if len(data) else []


def _unpack_bools(data: Any) -> list[bool]:
    flags = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    if flags.max(initial=0) > 1:
        raise CorruptRecordError("a bool is neither 0 nor 1")
    bools: list[bool] = flags.astype(np.bool_).tolist()
    return bools


def _unpack_texts(data: Any) -> list[str]:
    count = int.from_bytes(data[:8], "little") if len(data) >= 8 else len(data)
    start = 8 * (count + 1)
    if start > len(data):
        raise CorruptRecordError(f"{count} texts in {len(data)} bytes")
    lengths = np.frombuffer(data, "<i8", count, 8).tolist() if count else []
    if min(lengths, default=0) < 0 or start + sum(lengths) != len(data):
        raise CorruptRecordError(f"the lengths of {count} texts do not sum to {len(data) - start} bytes")
    ends = list(accumulate(lengths, initial=start))
    return [_text(data[at:end]) for at, end in pairwise(ends)]


_REVIVE: dict[str, Revive] = {
    "bool": _revive_bool,
    "complex": lambda data: complex(*_PAIR.unpack(data)),
    "uuid": lambda data: uuid.UUID(bytes=data),
    "date": dt.date.fromordinal,
    "timedelta": _revive_timedelta,
    "str": _text,
    "bytes": bytes,
    "bytearray": bytearray,
    "bigint": _revive_bigint,
    "numpy.str": lambda data: np.str_(_text(data)),
    "numpy.bytes": lambda data: np.bytes_(bytes(data)),
    "numpy.void": lambda data: np.void(bytes(data)),
}

_REVIVE_MADE: dict[str, Callable[[Node], Revive]] = {
    "time": _revive_time,
    "datetime": _revive_datetime,
    "scalar": _revive_scalar,
    "path": _revive_path,
    "enum": _revive_enum,
    "flag": _revive_flag,
    "imagefile": _revive_image_file,
    "ints": _revive_packed(_unpack_numbers("<i8")),
    "floats": _revive_packed(_unpack_numbers("<f8")),
    "bools": _revive_packed(_unpack_bools),
    "strs": _revive_packed(_unpack_texts),
}
