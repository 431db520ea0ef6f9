"""Leaves: one Python value to the JSON of its schema node and its wire value, and back.

A wire value is ready to be written: a number for the struct codes "B", "q" and "d", bytes for the others, a C-ordered
numpy array for tensors and arrays.
"""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import struct
import uuid
from array import array
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from edcache.base import (
    CodecError,
    CorruptRecordError,
    ImageError,
)
from edcache.codec import dtypes
from edcache.codec.classes import class_name, lookup, member_named, own_name, stored_as
from edcache.codec.images import Decoding, ImageFile, file_bytes, format_of, revived

# A list of this length or more, with items of one plain type, is one leaf.
PACKED_LENGTH = 8

Revive = Callable[[Any], Any]
Encode = Callable[[Any, list[Any]], Any]

_OTHER_DTYPE = "convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"
_US = dt.timedelta(microseconds=1)
_DAY_US = 86_400_000_000
_TRIPLE = struct.Struct("<iii")
_PAIR = struct.Struct("<dd")


class Refusal(TypeError):
    """Refusal of a value: the text behind "cannot store "; the walk adds the path, inside out, and raises the error."""

    def __init__(self, message: str, error: type[CodecError] = CodecError) -> None:
        super().__init__(message)
        self.error = error
        self.path: list[tuple[Any, bool]] = []


def type_name(value: object) -> str:
    """Return the name of a value's type for messages."""
    return own_name(type(value)).removeprefix("builtins.")


def text_bytes(text: str) -> bytes:
    """Encode as UTF-8, with three bytes for each lone surrogate."""
    return text.encode("utf-8", "surrogatepass")


def _int_bytes(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _array(value: dtypes.Array, values: list[Any]) -> Any:
    description = dtypes.describe(value.dtype)
    if description is None:
        raise Refusal(f"an array of dtype {value.dtype}; {_OTHER_DTYPE}")
    values.append(dtypes.own_bytes(value))
    return "array", description, value.ndim or ()


def _scalar(value: np.generic, values: list[Any]) -> Any:
    description = dtypes.describe(value.dtype)
    if description is None:
        raise Refusal(f"a numpy scalar of dtype {value.dtype}; call .item() on it")
    is_plain = value.dtype.num in dtypes.PLAIN
    values.append(value.tobytes() if is_plain else dtypes.own_bytes(np.asarray(value)).tobytes())
    return "scalar", description


def _datetime(value: dt.datetime, values: list[Any]) -> Any:
    tz, offset = value.tzinfo, None
    if tz is not None:
        if type(tz) is not dt.timezone or tz.tzname(None) != dt.timezone(tz.utcoffset(None)).tzname(None):
            raise Refusal(f"a datetime of time zone {tz!r}; call .astimezone(datetime.timezone.utc) on it")
        offset = (tz.utcoffset(None) // _US,)
    values.append(2 * ((value.replace(tzinfo=None, fold=0) - dt.datetime.min) // _US) + value.fold)
    return "datetime", offset


def encode_enum(value: enum.Enum, values: list[Any]) -> Any:
    """Encode a member of any enum, as `ENCODERS` do."""
    cls = type(value)
    if stored_as(cls) is not cls:
        raise Refusal(f"{type_name(value)}; register it with edcache.register({cls.__name__})")
    # A combination of flags has no name, or one that leads nowhere.
    if value.name is None or cls.__members__.get(value.name) is not value:
        raise Refusal(f"{value!r}, which is no member of its enum; store its value")
    values.append(text_bytes(value.name))
    return "enum", *class_name(cls)


def _image_file(value: ImageFile, values: list[Any]) -> Any:
    try:
        data = file_bytes(value)
    except ImageError as error:
        raise Refusal(str(error), ImageError) from error.__cause__
    if value.path is not None and format_of(data) is None:
        raise Refusal(
            f"image file {value.path!r}, which begins with {data[:8]!r}, as no JPEG, PNG, WebP, GIF, BMP or "
            "TIFF does; leave it out, or store its bytes",
            ImageError,
        )
    values.append(data)
    return "imagefile", value.decoding.form, value.decoding.mode, value.decoding.exif_transpose


def encode_packed(value: list[Any] | tuple[Any, ...], values: list[Any]) -> Any:
    """Encode a list or tuple of one plain type, as `ENCODERS` do; None if it is a container."""
    kinds = set(map(type, value))
    packed = _PACKED.get(kinds.pop()) if len(kinds) == 1 else None
    if packed is None:
        return None
    try:
        values.append(packed.pack(value))
    except OverflowError:
        return None
    return packed.kind, type(value).__name__


def _pack_texts(texts: Any) -> bytes:
    parts = [text_bytes(text) for text in texts]
    lengths = array("q", [len(parts), *map(len, parts)])
    return lengths.tobytes() + b"".join(parts)


_PATHS = {cls.__name__: cls for cls in (pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath)}


class LeafKind(NamedTuple):
    """Kind of leaf, but not of arrays and tensors.

    Attributes:
        revive: wire value to value; None: they are the same. With parameters, it takes the result of `parse` and
            returns that function. The wire value comes from struct, or is a memoryview for a variable leaf. Raises
            ValueError, OverflowError or an EdcacheError over damaged bytes.
        code: struct code of a leaf of fixed size; None: its size varies.
        dtype: numpy's text for the bytes, if it has one.
        parse: the JSON of the parameters, if there are any, to `const` of the node; ValueError, TypeError.
        cls: the class whose values are all of this kind. wire: value to wire value; None: they are the same.
    """

    revive: Callable[..., Any] | None = None
    code: str | None = None
    dtype: str | None = None
    parse: Callable[..., Any] | None = None
    cls: type | None = None
    wire: Callable[[Any], Any] | None = None


def _text(data: Any) -> str:
    return str(data, "utf-8", "surrogatepass")


def _bool(value: int) -> bool:
    if value > 1:
        raise CorruptRecordError(f"bool stored as {value}")
    return value == 1


def _bigint(data: Any) -> int:
    return int.from_bytes(data, "little", signed=True)


def _parse_offset(tz: Any) -> int | None:
    if tz is None:
        return None
    (offset,) = tz
    if type(offset) is not int or not -_DAY_US < offset < _DAY_US:
        raise ValueError("malformed offset of a time zone")
    return offset


def _revive_datetime(offset: int | None) -> Callable[[int], dt.datetime]:
    tz = None if offset is None else dt.timezone(dt.timedelta(microseconds=offset))

    def revive(value: int) -> dt.datetime:
        local = dt.datetime.min + dt.timedelta(microseconds=value >> 1)
        return local.replace(tzinfo=tz, fold=value & 1)

    return revive


def _revive_path(name: str) -> Revive:
    cls = _PATHS[name]
    return lambda data: cls(_text(data))


def _one_of(*choices: Any) -> Callable[[Any], Any]:
    def parse(choice: Any) -> Any:
        if choice not in choices:
            raise ValueError(f"{choice!r} is none of {choices}")
        return choice

    return parse


def parse_class(module: Any, qualname: Any) -> tuple[str, str]:
    """Return the name of a class, or raise ValueError."""
    if type(module) is not str or type(qualname) is not str:
        raise ValueError("malformed class name")
    return module, qualname


class _Packed(NamedTuple):
    """List or tuple of items of one type: its kind, to bytes, and back to a list."""

    kind: str
    pack: Callable[[Any], bytes]
    unpack: Callable[[Any], list[Any]]

    def revive(self, name: str) -> Revive:
        unpack = self.unpack
        return unpack if name == "list" else lambda data: tuple(unpack(data))


def _numbers(dtype: str) -> Callable[[Any], list[Any]]:
    return lambda data: np.frombuffer(data, dtype).tolist() if len(data) else []


def _unpack_bools(data: Any) -> list[bool]:
    if bytes(data).translate(None, b"\0\1"):
        raise CorruptRecordError("a bool is neither 0 nor 1")
    return np.frombuffer(data, np.bool_).tolist() if len(data) else []


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


_PACKED: dict[type, _Packed] = {
    int: _Packed("ints", lambda items: array("q", items).tobytes(), _numbers("<i8")),
    float: _Packed("floats", lambda items: array("d", items).tobytes(), _numbers("<f8")),
    bool: _Packed("bools", bytes, _unpack_bools),
    str: _Packed("strs", _pack_texts, _unpack_texts),
}

LEAVES: dict[str, LeafKind] = {
    "bool": LeafKind(_bool, "B", "|b1", cls=bool),
    "int": LeafKind(None, "q", "<i8"),
    "float": LeafKind(None, "d", "<f8", cls=float),
    "complex": LeafKind(
        lambda data: complex(*_PAIR.unpack(data)),
        "16s",
        "<c16",
        cls=complex,
        wire=lambda value: _PAIR.pack(value.real, value.imag),
    ),
    "uuid": LeafKind(
        lambda data: uuid.UUID(bytes=data), "16s", cls=uuid.UUID, wire=lambda value: value.bytes
    ),
    "date": LeafKind(dt.date.fromordinal, "q", cls=dt.date, wire=dt.date.toordinal),
    "timedelta": LeafKind(
        lambda data: dt.timedelta(*_TRIPLE.unpack(data)),
        "12s",
        cls=dt.timedelta,
        wire=lambda value: _TRIPLE.pack(value.days, value.seconds, value.microseconds),
    ),
    "datetime": LeafKind(_revive_datetime, "q", parse=_parse_offset),
    # A structured scalar is a view of its array, hence the copy.
    "scalar": LeafKind(
        lambda dtype: lambda data: np.ndarray((), dtype, data or b"\0").copy()[()], "s", parse=dtypes.parse
    ),
    "str": LeafKind(_text, cls=str, wire=text_bytes),
    "bytes": LeafKind(bytes, cls=bytes),
    "bytearray": LeafKind(bytearray, cls=bytearray, wire=bytes),
    "bigint": LeafKind(_bigint),
    "numpy.str": LeafKind(lambda data: np.str_(_text(data)), cls=np.str_, wire=text_bytes),
    "numpy.bytes": LeafKind(lambda data: np.bytes_(bytes(data)), cls=np.bytes_, wire=bytes),
    "path": LeafKind(_revive_path, parse=_one_of(*_PATHS)),
    "enum": LeafKind(
        lambda name: lambda data: member_named(lookup(name, type), _text(data)), parse=parse_class
    ),
    "imagefile": LeafKind(
        lambda decoding: lambda data: revived(data, decoding),
        parse=lambda form, mode, is_turned: Decoding(form, mode, is_turned),
    ),
    **{packed.kind: LeafKind(packed.revive, parse=_one_of("list", "tuple")) for packed in _PACKED.values()},
}


def _plain(kind: str, wire: Callable[[Any], Any] | None) -> Encode:
    def make(value: Any, values: list[Any]) -> str:
        values.append(value if wire is None else wire(value))
        return kind

    return make


def _int(value: int, values: list[Any]) -> str:
    if -(1 << 63) <= value < 1 << 63:
        values.append(value)
        return "int"
    values.append(_int_bytes(value))
    return "bigint"


def _path(value: pathlib.PurePath, values: list[Any]) -> Any:
    values.append(text_bytes(str(value)))
    return "path", type(value).__name__


# By class: functions that append the wire value of a leaf, and return its node. They raise Refusal.
ENCODERS: dict[type, Encode] = {
    **{cls: _scalar for cls in {*np.sctypeDict.values()} if issubclass(cls, np.generic)},
    **{leaf.cls: _plain(kind, leaf.wire) for kind, leaf in LEAVES.items() if leaf.cls is not None},
    **dict.fromkeys(_PATHS.values(), _path),
    type(None): lambda value, values: "none",
    int: _int,
    np.ndarray: _array,
    np.memmap: lambda value, values: _array(value.view(np.ndarray), values),
    dt.datetime: _datetime,
    ImageFile: _image_file,
}


def reviver(kind: str, const: Any) -> Revive | None:
    """Return the function from wire value to value, but for arrays and tensors; None: they are the same."""
    leaf = LEAVES[kind]
    return leaf.revive if leaf.parse is None or leaf.revive is None else leaf.revive(const)
