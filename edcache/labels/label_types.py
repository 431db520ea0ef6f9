"""Types of labels: of the value of one sample, and of a user's column."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np

from edcache.base import shown
from edcache.format import (
    EXACT,
    cast,
    detached,
    family,
    from_numpy,
    from_texts,
    is_label_type,
    is_list,
    is_text,
    list_of,
    merged,
    number_type,
    number_values,
    numpy_dtype,
    pa,
)

_NUMBERS: Final = {int: np.int64, float: np.float64, bool: np.bool_}


class NotALabel(Exception):
    """Error for a value that no column holds; the text says why, if the type alone does not."""


class OutOfRange(NotALabel):
    """Error for a value of a column's kind that its type does not reach. kind: such a type."""

    def __init__(self, kind: pa.DataType, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def typed(value: Any) -> tuple[pa.DataType, Any]:
    """Return the type of a label's value, and the value for its column, a copy if it can change. Raises NotALabel."""
    value = _from_tensor(value)
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray) or value.ndim > 1:
            raise NotALabel
        kind = number_type(value.dtype)
        if value.ndim == 1 and kind is not None:
            # A copy: the caller may fill the same buffer again for the next sample.
            own = np.array(value, dtype=value.dtype.newbyteorder("="))
            return pa.list_(kind), own
        value = list(value) if value.ndim else value[()]
    return _list(value) if isinstance(value, (list, tuple)) else _scalar(value)


def beyond_exact(value: Any) -> int | None:
    """Find an integer beyond 2**53, which float64 may not hold, in a value of `typed`; None without one."""
    if isinstance(value, np.ndarray):
        value = [value.min().item(), value.max().item()] if value.size else []
    values = value if isinstance(value, list) else [value]
    return next((one for one in values if type(one) is int and not -EXACT <= one <= EXACT), None)


def _list(values: Iterable[Any]) -> tuple[pa.DataType, Any]:
    items = [_scalar(_from_tensor(item)) for item in values]
    inner: pa.DataType | None = pa.null()
    for kind, _ in items:
        inner = None if inner is None else merged(inner, kind)
    kept = [item for _, item in items]
    inexact = beyond_exact(kept) if inner is not None and pa.types.is_floating(inner) else None
    if inner is None or inexact is not None:
        kinds = " and ".join(dict.fromkeys(str(kind) for kind, _ in items))
        clash = "" if inexact is None else f", and float64 does not hold {inexact} exactly"
        raise NotALabel(f"a list of mixed types ({kinds}{clash})")
    return pa.list_(inner), kept


@cache
def _plain_types() -> dict[type, pa.DataType]:
    return {bool: pa.bool_(), float: pa.float64(), bytes: pa.binary(), str: pa.string()}


def _scalar(value: Any) -> tuple[pa.DataType, Any]:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if value is None:
        return pa.null(), None
    if isinstance(value, np.generic) and (kind := number_type(value.dtype)) is not None:
        return kind, value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            size = f"an int of {value.bit_length()} bits"
            raise OutOfRange(pa.int64(), f"{size}, beyond int64; numpy.uint64(value) holds unsigned ones")
        return pa.int64(), int(value)
    for cls, kind in _plain_types().items():
        if isinstance(value, cls):
            # A subclass, such as an enum, is stored as its plain class.
            plain = str.__str__(value) if cls is str else cls(value)
            if cls is str and plain.encode(errors="ignore").decode() != plain:
                raise OutOfRange(kind, f"a str that is not UTF-8 ({shown(plain)})")
            return kind, plain
    return _time(value)


def _time(value: Any) -> tuple[pa.DataType, Any]:
    """Convert a date, a time or a duration to numpy's scalar in the unit of its column."""
    try:
        time, zone = _numpy_time(value)
    except OverflowError:
        is_time = isinstance(value, dt.datetime)
        reach = "the years 1 to 9999 in UTC" if is_time else "64-bit microseconds"
        kind = pa.timestamp("us", "UTC") if is_time else pa.duration("us")
        raise OutOfRange(kind, f"a {type(value).__name__} outside of {reach}") from None
    if time is None:
        raise NotALabel
    code, unit = time.dtype.kind, np.datetime_data(time.dtype)[0]
    if unit == "generic" and np.isnat(time):
        return pa.null(), None
    if code == "m" and unit in ("generic", "Y", "M"):
        raise NotALabel(f"a timedelta64 without a fixed length (unit {unit})")
    if unit in ("ps", "fs", "as"):
        raise NotALabel(f"a time in {unit}, finer than the ns that Arrow has")
    if code == "M" and unit in ("Y", "M", "W", "D"):
        kind, unit = pa.date32(), "D"
    else:
        unit = unit if unit in ("s", "ms", "us", "ns") else "s"
        kind = pa.duration(unit) if code == "m" else pa.timestamp(unit, zone)
    if np.isnat(time):
        return kind, None
    with suppress(OverflowError):  # which newer numpy raises; older wraps
        ticks = time.astype(f"{code}8[{unit}]")
        if ticks.astype(time.dtype) == time and (unit != "D" or -(2**31) <= int(ticks.astype("i8")) < 2**31):
            return kind, ticks
    reach = "the years that 32-bit days reach" if unit == "D" else f"64-bit {unit}"
    raise OutOfRange(kind, f"a time outside {reach}")


def _numpy_time(value: Any) -> tuple[Any, str | None]:
    """Convert a date, a time or a duration to numpy, with "UTC" if it had a zone; (None, None) for another value.

    Raises OverflowError for a time with a zone outside the years 1 to 9999 in UTC, and for a duration of more
    microseconds than 64 bits hold.
    """
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value, None
    if isinstance(value, dt.datetime):
        zone = None if value.tzinfo is None else "UTC"
        if hasattr(value, "to_datetime64"):  # a pandas.Timestamp has nanoseconds, and converts to UTC
            return value.to_datetime64(), zone
        if zone is not None:
            value = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
        return np.datetime64(value, "us"), zone
    if isinstance(value, dt.date):
        return np.datetime64(value, "D"), None
    if not isinstance(value, dt.timedelta):
        return None, None
    if hasattr(value, "to_timedelta64"):  # of a pandas.Timedelta, which has nanoseconds
        return value.to_timedelta64(), None
    return np.timedelta64(value // dt.timedelta(microseconds=1), "us"), None


def array_of(values: Any, kind: pa.DataType) -> pa.Array:
    """Build an Arrow array of values that fit `kind`; no validity bitmap without a None."""
    # Not by pa.array, which imports pandas: 0.3 s and 57 MB in every process that writes.
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if isinstance(values, pa.Array):
        return cast(values, kind)
    if isinstance(values, np.ndarray):
        return from_numpy(values.astype(numpy_dtype(kind)), kind)
    if is_text(kind):
        small = pa.string() if family(kind) == "text" else pa.binary()
        texts = from_texts(values, small)
        return texts if kind == small else texts.cast(kind)
    if is_list(kind):
        present = [value for value in values if value is not None]
        if present and all(isinstance(value, np.ndarray) for value in present):
            items = array_of(np.concatenate(present), kind.value_type)
        else:
            items = array_of([item for value in present for item in value], kind.value_type)
        ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int32)
        absent = np.array([*(value is None for value in values), False])
        return pa.ListArray.from_arrays(from_numpy(ends, pa.int32(), absent), items)
    dtype = numpy_dtype(kind)
    missing = np.array([value is None for value in values]) if None in values else None
    if missing is not None:
        filler = np.zeros((), dtype)[()]
        values = [filler if value is None else value for value in values]
    array = np.array(values, dtype=dtype)
    if dtype.kind in "mM":
        array = array.view(np.int64).astype(np.int32 if pa.types.is_date32(kind) else np.int64)
    return from_numpy(array, kind, missing)


def typed_column(values: Any) -> tuple[pa.DataType, Any] | None:
    """Return the type and a copy of a column of numbers, bools or ASCII texts [n]; None for any other column.

    values: also an Arrow array of texts or integers without nulls, such as keys, which nothing changes.
    """
    if isinstance(values, pa.Array):
        if not is_text(values.type):
            return values.type, number_values(values)
        small = pa.string() if family(values.type) == "text" else pa.binary()
        return small, cast(values, small)
    try:
        values = _from_tensor(values)
    except NotALabel:
        return None
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            return None
        if values.dtype.kind != "U":
            kind = number_type(values.dtype)
            return None if kind is None else (kind, np.array(values, dtype=values.dtype.newbyteorder("=")))
        values = values.tolist()
    kinds = set(map(type, values)) if isinstance(values, list) else set()
    if kinds == {str} and all(map(str.isascii, values)):
        return pa.string(), values.copy()
    dtype = _NUMBERS[kinds.pop()] if len(kinds) == 1 and kinds <= _NUMBERS.keys() else None
    with suppress(OverflowError):  # one by one the error names the sample
        return None if dtype is None else typed_column(np.array(values, dtype))
    return None


def _from_tensor(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    try:
        return detached(value)
    except (TypeError, RuntimeError):
        raise NotALabel from None


def held_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the label type that holds the values of an Arrow type; None without one."""
    if isinstance(kind, pa.BaseExtensionType):
        # Other extension types hold numbers without a unit, as the ordinals of pandas' periods.
        return None if kind.extension_name.startswith("pandas.") else held_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return held_type(kind.value_type)
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = held_type(kind.value_type)
        return None if inner is None or is_list(inner) else list_of(inner, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_date64(kind):
        return pa.timestamp("ms")
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    views = {"string_view": pa.string(), "binary_view": pa.binary()}
    kind = views.get(str(kind), kind)
    return kind if is_label_type(kind) else None
