"""One label value, as its column keeps it, with its Arrow type."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from edcache.base import shown
from edcache.format import Clash, deciding_numbers, detached, no_type, pa

_FLOATS = (float, np.float16, np.float32, np.float64)
_INTEGERS = (
    *(np.int8, np.int16, np.int32, np.longlong, np.int64),
    *(np.uint8, np.uint16, np.uint32, np.ulonglong, np.uint64),
)
# No value of these classes can change a column's type, but for a str that is not UTF-8.
SETTLED = frozenset({bool, bytes, np.bool_, *_FLOATS})
INTEGERS = frozenset({int, *_INTEGERS})


class Cell(NamedTuple):
    """One value as the column keeps it.

    `numbers` are the ints that decide about a wider type: all of them, or the least, the greatest and the
    first that is no float64.
    """

    type: pa.DataType
    value: Any
    numbers: Sequence[int] = ()


class NotALabel(Exception):
    """A value that no column holds; the text says why, where the type alone does not."""


def cell_of(value: Any) -> Cell:
    """The value of one sample: a scalar, or a flat list of scalars."""
    value = _from_tensor(value)
    if isinstance(value, (list, tuple)):
        return _list_cell([_scalar_cell(_from_tensor(item)) for item in value])
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return _scalar_cell(value)
    if value.ndim > 1:
        raise NotALabel
    kind = _numpy_types().get(value.dtype.type)
    if kind is None:
        return _list_cell([_scalar_cell(item) for item in value])
    # A copy: the caller may fill the same buffer again for the next sample.
    own = np.array(value, dtype=value.dtype.newbyteorder("="))
    return Cell(pa.list_(kind), own, deciding_numbers(own))


@cache
def _numpy_types() -> dict[type, pa.DataType]:
    # Of two classes that are one Arrow type the last is its numpy dtype.
    scalars = (np.bool_, *_INTEGERS, *_FLOATS[1:])
    return {scalar: pa.from_numpy_dtype(np.dtype(scalar)) for scalar in scalars}


def _from_tensor(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if value.ndim > 1:
        raise NotALabel
    try:
        return detached(value)
    except (TypeError, RuntimeError):
        raise NotALabel from None


def _list_cell(items: list[Cell]) -> Cell:
    inner = no_type()
    try:
        for item in items:
            inner = inner.with_values(item.type, item.numbers)
    except Clash as clash:
        kinds = " and ".join(dict.fromkeys(str(item.type) for item in items))
        raise NotALabel(f"a list of mixed types ({kinds}{clash})") from None
    numbers = [number for item in items for number in item.numbers]
    return Cell(pa.list_(inner.arrow), [item.value for item in items], numbers)


def _scalar_cell(value: Any) -> Cell:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if value is None:
        return Cell(pa.null(), None)
    known = _numpy_types().get(type(value))
    if known is not None:
        item = value.item()
        return Cell(known, item, (item,) if pa.types.is_integer(known) else ())
    if isinstance(value, bool):
        return Cell(pa.bool_(), value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise NotALabel(f"an int of {value.bit_length()} bits, which neither int64 nor uint64 holds")
        return Cell(pa.int64() if value < 2**63 else pa.uint64(), int(value), (int(value),))
    if isinstance(value, float):
        return Cell(pa.float64(), float(value))
    if isinstance(value, bytes):
        return Cell(pa.binary(), bytes(value))
    if not isinstance(value, str):
        return _time_cell(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise NotALabel(f"a str that is not UTF-8 ({shown(value)})") from None
    return Cell(pa.string(), str.__str__(value))


def _time_cell(value: Any) -> Cell:
    """A date, a time or a duration, as numpy's scalar of the unit that its column has."""
    time, zone = _numpy_time(value)
    code, unit = time.dtype.kind, np.datetime_data(time.dtype)[0]
    if unit == "generic" and np.isnat(time):
        return Cell(pa.null(), None)
    if code == "m" and unit in ("generic", "Y", "M"):
        raise NotALabel(f"a timedelta64 without a fixed length (unit {unit})")
    if unit in ("ps", "fs", "as"):
        raise NotALabel(f"a time in {unit}, finer than the ns that Arrow has")
    if code == "M" and unit in ("Y", "M", "W", "D"):
        kind, unit = pa.date32(), "D"
    else:
        unit = unit if unit in ("s", "ms", "us", "ns") else "s"
        kind = pa.duration(unit) if code == "m" else pa.timestamp(unit, zone)
    ticks = time.astype(f"{code}8[{unit}]")
    if np.isnat(ticks):
        return Cell(kind, None)
    if unit == "D" and not -(2**31) <= int(ticks.astype("i8")) < 2**31:
        raise NotALabel("a date outside the years that 32-bit days reach")
    return Cell(kind, ticks)


def _numpy_time(value: Any) -> tuple[Any, str | None]:
    """A time as a datetime64 or timedelta64, and its zone."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value, None
    if isinstance(value, dt.datetime):
        zone = None if value.tzinfo is None else "UTC"
        if hasattr(value, "to_datetime64"):  # a pandas.Timestamp has nanoseconds, and converts to UTC
            return value.to_datetime64(), zone
        try:
            utc = value if zone is None else value.astimezone(dt.timezone.utc).replace(tzinfo=None)
        except OverflowError:
            raise NotALabel("a datetime outside the years 1 to 9999 in UTC") from None
        return np.datetime64(utc, "us"), zone
    if isinstance(value, dt.date):
        return np.datetime64(value, "D"), None
    if not isinstance(value, dt.timedelta):
        raise NotALabel
    micros = value // dt.timedelta(microseconds=1)
    if not -(2**63) <= micros < 2**63:
        raise NotALabel("a timedelta longer than 64-bit microseconds reach")
    return np.timedelta64(micros, "us"), None
