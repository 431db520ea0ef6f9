"""Comparison of samples, batches and calls, exact in types, bits and order of keys; shares no code with the package."""

import dataclasses
import datetime as dt
import enum
import re
import struct

import numpy as np
import torch


def bits(value):
    """Return the bytes of a number or tensor: those of nan and of -0.0 too."""
    if isinstance(value, torch.Tensor):
        if not value.numel():
            return torch.empty(0)  # Tensors of some dtypes are not compared, empty ones too.
        return value.resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return struct.pack("<d", value)


def same(a, b):
    """Compare: nan equals nan of the same bits, 0.0 is not -0.0, the order of keys counts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        is_alike = (a.dtype, a.shape, a.is_conj()) == (b.dtype, b.shape, b.is_conj())
        return is_alike and bits(a).equal(bits(b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.dtype.isnative, a.shape) == (b.dtype, b.dtype.isnative, b.shape) and same_items(
            a, b
        )
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and same_items(np.asarray(a), np.asarray(b))
    if isinstance(a, float):
        return bits(a) == bits(b)
    if isinstance(a, complex):
        return bits(a.real) == bits(b.real) and bits(a.imag) == bits(b.imag)
    if isinstance(a, enum.Enum):
        return a is b or a == b
    if isinstance(a, dict):
        return same(list(a), list(b)) and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if isinstance(a, (dt.datetime, dt.time)):
        naive = a.replace(tzinfo=None) == b.replace(tzinfo=None)
        return naive and a.fold == b.fold and same_zone(a.tzinfo, b.tzinfo)
    return bool(a == b)


def same_zone(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dt.timezone):
        return a.utcoffset(None) == b.utcoffset(None) and a.tzname(None) == b.tzname(None)
    return a is None or a.key == b.key


def same_items(a, b):
    """Compare the values of two arrays of one dtype."""
    if a.dtype.names is not None:
        return all(same_items(a[n], b[n]) for n in a.dtype.names) and repr(a.dtype) == repr(b.dtype)
    if a.dtype == object:
        return same(a.tolist(), b.tolist())
    return a.tobytes() == b.tobytes()


def outcome(make):
    """Return the result of a call, and the type and text of its error, without the remedy that a collation adds."""
    try:
        return make(), None
    except Exception as error:
        return None, (type(error), re.split(r"; (?:field |a sample )", str(error))[0])
