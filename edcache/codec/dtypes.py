"""Dtypes of numpy and torch, and their texts in a schema.

numpy: the text is `dtype.str` ("<f4", "|b1", ">M8[ns]", "<U12"). C's second 32 or 64 bit integer keeps its
letter ("<q"), because its scalars are of another class. A structure, whose fields are neither structures nor
arrays, is a list:

    ["struct", [[name, offset, dtype], ...], itemsize]

torch: the text is the attribute's name ("uint8", "bfloat16"). A dtype that numpy lacks travels as an integer array of
the same item size, called its bits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptRecordError, LaterReleaseError, MissingDependencyError

Dtype = np.dtype[Any]
Array = npt.NDArray[Any]

MAX_NBYTES = 1 << 44
MAX_NDIM = 64

U1: Dtype = np.dtype("u1")

_UNIT = r"\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]"
_TEXT = re.compile(rf"[<>|](?:b1|[iu][1248]|f[248]|c(?:8|16)|[lLqQiI]|[SUV]\d{{1,10}}|[mM]8(?:{_UNIT})?)")
_TWIN_INTEGERS = frozenset("lLqQiI")

_NUMPY_TWIN = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_BITS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "float4_e2m1fn_x2": "uint8",
}


class TensorDtype(NamedTuple):
    """Dtype of torch by name; `bits`: an integer of its size, if numpy lacks it; `array`: dtype of its memory."""

    name: str
    bits: str | None
    array: Dtype


TENSOR_DTYPES = {
    name: TensorDtype(name, bits, np.dtype(bits or name))
    for name, bits in (dict.fromkeys(_NUMPY_TWIN) | _BITS).items()
}


def array_dtype(name: str) -> Dtype:
    """Return numpy's dtype of a tensor as an array, or ml_dtypes', else of its bits. MissingDependencyError."""
    known = TENSOR_DTYPES[name]
    if known.bits is None or not name.startswith(("bfloat16", "float8")):
        return known.array
    try:
        import ml_dtypes  # noqa: F401 - numpy then knows its dtypes by name
    except ImportError:
        raise MissingDependencyError(f"{name} as an array takes ml_dtypes; pip install ml_dtypes") from None
    return np.dtype(name)


def _describe(dtype: Dtype) -> Any:
    """Describe a dtype, which `parse` may refuse."""
    if dtype.names is not None:
        fields: Any = dtype.fields
        # A title, or a field that is a structure, gets lost: `describe` refuses such dtypes.
        return "struct", tuple((k, fields[k][1], _text(fields[k][0])) for k in dtype.names), dtype.itemsize
    return _text(dtype)


def _text(dtype: Dtype) -> str:
    text: str = dtype.str
    is_twin = dtype.char in _TWIN_INTEGERS and np.dtype(text).char != dtype.char
    return text[0] + dtype.char if is_twin else text


# Numbers of dtypes without padding and parameters.
PLAIN = {dtype.num: _describe(dtype) for dtype in map(np.dtype, "?bBhHiIlLqQefdFD")}


def describe(dtype: Dtype) -> Any:
    """Describe a numpy dtype, in tuples; None if the codec does not store it."""
    plain = PLAIN.get(dtype.num) if dtype.isnative else None
    if plain is not None and dtype.metadata is None:
        return plain
    try:
        description = _describe(dtype)
        parsed = parse(description)
    except (CorruptRecordError, LaterReleaseError):
        return None
    # A dtype that another library added to numpy looks like plain void.
    is_same = parsed == dtype and parsed.type is dtype.type and not _has_metadata(dtype)
    return description if is_same else None


def _has_metadata(dtype: Dtype) -> bool:
    """True if a dtype or one of its fields has metadata, which == ignores."""
    fields: Any = (dtype.fields or {}).values()
    return dtype.metadata is not None or any(_has_metadata(field[0]) for field in fields)


def parse(description: Any) -> Dtype:
    """Return the numpy dtype of a description; CorruptRecordError if this platform lacks it."""
    try:
        dtype = _parse(description)
    except (TypeError, ValueError, OverflowError, SyntaxError) as error:
        raise CorruptRecordError(f"schema: not a dtype here: {str(description)[:80]} ({error})") from None
    if dtype.hasobject:  # pragma: no cover - no text of this grammar names one
        raise CorruptRecordError(f"schema: dtype {str(description)[:80]} holds objects")
    return dtype


def _parse(description: Any) -> Dtype:
    if type(description) is str:
        return _plain(description)
    kind, rows, itemsize = description
    if kind != "struct" or type(rows) not in (list, tuple) or type(itemsize) is not int:
        raise ValueError("malformed struct")
    if any(type(name) is not str or type(offset) is not int for name, offset, _ in rows):
        raise ValueError("malformed field")
    spec: Any = {
        "names": [name for name, _, _ in rows],
        "offsets": [offset for _, offset, _ in rows],
        "formats": [_plain(text) for _, _, text in rows],
        "itemsize": itemsize,
    }
    dtype: Dtype = np.dtype(spec)
    return dtype


def _plain(text: Any) -> Dtype:
    if type(text) is not str:
        raise ValueError("no text")
    if not _TEXT.fullmatch(text):
        raise LaterReleaseError.needing(f"the dtype {text[:40]!r}")
    return np.dtype(text)


def check_shape(shape: Any) -> tuple[int, ...]:
    """Return a JSON shape as a tuple, or raise ValueError."""
    is_sequence = type(shape) in (list, tuple) and len(shape) <= MAX_NDIM
    if not is_sequence or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("malformed shape")
    return tuple(shape)


def array_nbytes(shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of an array; CorruptRecordError for a negative dimension, or beyond all memory."""
    nbytes, span = itemsize, max(itemsize, 1)
    for n in shape:
        if n < 0:
            raise CorruptRecordError(f"array of shape {tuple(shape)}: {n} is negative")
        nbytes *= n
        span *= max(n, 1)
    if span > MAX_NBYTES:
        raise CorruptRecordError(f"array of shape {tuple(shape)} does not fit an address space")
    return nbytes


def alignment(dtype: Dtype) -> int:
    """Return the alignment of an array's bytes inside a record, 1 to 8."""
    return 8 if dtype.names is not None else min(8, dtype.itemsize & -dtype.itemsize) or 1


def own_bytes(array: Array) -> Array:
    """Return a C-ordered array whose bytes depend on its values alone: padding inside items is zero."""
    if array.dtype.names is None:
        return array if array.flags.c_contiguous else array.copy("C")
    clean = np.zeros(array.shape, array.dtype)
    for name in array.dtype.names:
        clean[name] = array[name]
    return clean


def as_buffer(array: Array) -> Array:
    """View a C-ordered array so that Python's buffer protocol can export it."""
    return array if is_exportable(array.dtype) else array.reshape(-1).view(U1)


def is_exportable(dtype: Dtype) -> bool:
    """True if numpy exports arrays of a dtype through Python's buffer protocol."""
    return dtype.kind in "biufc" and dtype.isnative
