"""One label value and its Arrow type, and the one type that holds many of them.

A column's type is found from the values, not asked for, and grows only where no value changes:
null -> anything, narrow -> wide of one kind, integers and floats -> float64 where every integer is exact,
int64 and uint64 -> whichever holds all values. Everything else is a Clash.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edcache.labels.arrays import NUMBERS, detached, numpy_dtype
from edcache.labels.wording import shown

EXACT = 2**53  # every integer up to here is a float64
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)
_INT32 = range(-(2**31), 2**31)


class Cell(NamedTuple):
    """One value as the column keeps it.

    `numbers` are the ints that decide about a wider type: all of them, or the least, the greatest and the
    first that is no float64.
    """

    type: pa.DataType
    value: Any
    numbers: Sequence[int] = ()


def widened_float16(array: pa.Array) -> pa.Array:
    """A float16 array as float32, which older pyarrow neither casts nor compares."""
    values = array.to_numpy(zero_copy_only=False).astype(np.float32)
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(values, mask=missing)


class NotALabel(Exception):
    """A value that no column holds; the text says why, where the type alone does not."""


_NUMPY_TYPES: dict[type, pa.DataType] = {
    scalar: pa.from_numpy_dtype(np.dtype(scalar))
    for scalar in (
        # Of two that are one Arrow type the last is its numpy dtype.
        *(np.bool_, np.int8, np.int16, np.int32, np.longlong, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.ulonglong, np.uint64),
        *(np.float16, np.float32, np.float64),
    )
}
_FLOATS = (float, np.float16, np.float32, np.float64)
# No value of these classes can change a column's type, but for a str that is not UTF-8.
SETTLED = frozenset({bool, bytes, np.bool_, *_FLOATS})
INTEGERS = frozenset({int, *(cls for cls, kind in _NUMPY_TYPES.items() if pa.types.is_integer(kind))})


def cell_of(value: Any) -> Cell:
    """The value of one sample: a scalar, or a flat list of scalars."""
    value = _from_tensor(value)
    if isinstance(value, np.ndarray):
        return _array_cell(value)
    if isinstance(value, (list, tuple)):
        return _list_cell([_scalar_cell(_from_tensor(item)) for item in value])
    return _scalar_cell(value)


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


def _scalar_cell(value: Any) -> Cell:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if value is None:
        return Cell(pa.null(), None)
    known = _NUMPY_TYPES.get(type(value))
    if known is not None:
        item = value.item()
        return Cell(known, item, (item,) if pa.types.is_integer(known) else ())
    return _python_cell(value)


def _python_cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return Cell(pa.bool_(), value)
    if isinstance(value, int):
        return _int_cell(int(value))
    if isinstance(value, float):
        return Cell(pa.float64(), float(value))
    if isinstance(value, str):
        return _str_cell(value)
    if isinstance(value, bytes):
        return Cell(pa.binary(), bytes(value))
    return _time_cell(value)


def _int_cell(value: int) -> Cell:
    if value in _INT64:
        return Cell(pa.int64(), value, (value,))
    if value in _UINT64:
        return Cell(pa.uint64(), value, (value,))
    raise NotALabel(f"an int of {value.bit_length()} bits, which neither int64 nor uint64 holds")


def _str_cell(value: str) -> Cell:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise NotALabel(f"a str that is not UTF-8 ({shown(value)})") from None
    return Cell(pa.string(), str.__str__(value))


def _time_cell(value: Any) -> Cell:
    if isinstance(value, np.datetime64):
        return _datetime64_cell(value)
    if isinstance(value, np.timedelta64):
        return _timedelta64_cell(value)
    if isinstance(value, dt.datetime):
        return _datetime_cell(value)
    if isinstance(value, dt.date):
        return Cell(pa.date32(), np.datetime64(value, "D"))
    if isinstance(value, dt.timedelta):
        return _python_timedelta_cell(value)
    raise NotALabel


def _datetime_cell(value: dt.datetime) -> Cell:
    aware = value.tzinfo is not None
    if hasattr(value, "to_datetime64"):  # a pandas.Timestamp has nanoseconds, and converts to UTC
        cell = _datetime64_cell(value.to_datetime64())
        return cell._replace(type=pa.timestamp(cell.type.unit, "UTC")) if aware else cell
    if not aware:
        return Cell(pa.timestamp("us"), np.datetime64(value, "us"))
    try:
        utc = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    except OverflowError:
        raise NotALabel("a datetime outside the years 1 to 9999 in UTC") from None
    return Cell(pa.timestamp("us", "UTC"), np.datetime64(utc, "us"))


def _datetime64_cell(value: np.datetime64) -> Cell:
    unit = np.datetime_data(value.dtype)[0]
    if unit == "generic":
        return Cell(pa.null(), None)  # only NaT has no unit
    if unit in ("Y", "M", "W", "D"):
        days = value.astype("M8[D]")
        if not np.isnat(days) and int(days.astype("i8")) not in _INT32:
            raise NotALabel("a date outside the years that 32-bit days reach")
        return Cell(pa.date32(), None if np.isnat(days) else days)
    return _ticks_cell(value, "M8", pa.timestamp)


def _timedelta64_cell(value: np.timedelta64) -> Cell:
    unit = np.datetime_data(value.dtype)[0]
    if unit in ("Y", "M") or (unit == "generic" and not np.isnat(value)):
        raise NotALabel(f"a timedelta64 without a fixed length (unit {unit})")
    return Cell(pa.null(), None) if unit == "generic" else _ticks_cell(value, "m8", pa.duration)


def _ticks_cell(value: Any, code: str, arrow_type: Callable[[str], pa.DataType]) -> Cell:
    unit = np.datetime_data(value.dtype)[0]
    if unit in ("ps", "fs", "as"):
        raise NotALabel(f"a time in {unit}, finer than the ns that Arrow has")
    unit = unit if unit in ("s", "ms", "us", "ns") else "s"
    ticks = value.astype(f"{code}[{unit}]")
    return Cell(arrow_type(unit), None if np.isnat(ticks) else ticks)


def _python_timedelta_cell(value: dt.timedelta) -> Cell:
    micros = value // dt.timedelta(microseconds=1)
    if micros not in _INT64:
        raise NotALabel("a timedelta longer than 64-bit microseconds reach")
    return Cell(pa.duration("us"), np.timedelta64(micros, "us"))


def _array_cell(array: npt.NDArray[Any]) -> Cell:
    if array.ndim == 0:
        return _scalar_cell(array[()])
    if array.ndim > 1:
        raise NotALabel
    kind = _NUMPY_TYPES.get(array.dtype.type)
    if kind is None:
        return _list_cell([_scalar_cell(item) for item in array])
    # A copy: the caller may fill the same buffer again for the next sample.
    own = np.array(array, dtype=array.dtype.newbyteorder("="))
    return Cell(pa.list_(kind), own, deciding_numbers(own))


def deciding_numbers(values: npt.NDArray[Any]) -> Sequence[int]:
    """The least, the greatest and the first inexact of many ints: what decides about a wider type."""
    if values.dtype.kind not in "iu" or not values.size:
        return ()
    low, high = int(values.min()), int(values.max())
    if low >= -EXACT and high <= EXACT:
        return (low, high)
    size = np.where(values < 0, np.negative(values), values).astype(np.uint64)
    lowest_bit = size & (~size + np.uint64(1))
    inexact = np.flatnonzero((size >> np.uint64(53) >= lowest_bit) & (size > 0))
    return (low, high, *(int(value) for value in values[inexact[:1]]))


def _list_cell(items: list[Cell]) -> Cell:
    inner = ColumnType()
    try:
        for item in items:
            inner = inner.with_cell(item)
    except Clash as clash:
        kinds = " and ".join(dict.fromkeys(str(item.type) for item in items))
        raise NotALabel(f"a list of mixed types ({kinds}{clash})") from None
    numbers = [number for item in items for number in item.numbers]
    return Cell(pa.list_(inner.arrow), [item.value for item in items], numbers)


class Clash(Exception):
    """Two values that make no column; the text is what else to know about the earlier one, or empty."""


class ColumnType(NamedTuple):
    """The type of the values so far, with the few facts about them that a wider type depends on."""

    arrow: pa.DataType = pa.null()
    negative: bool = False  # an int below 0
    beyond: bool = False  # an int of 2**63 or more
    inexact: int | None = None  # an int that is no float64

    def with_cell(self, cell: Cell) -> ColumnType:
        """The type that also holds one more value; Clash if there is none."""
        return self.with_values(cell.type, cell.numbers)

    def with_values(self, kind: pa.DataType, numbers: Iterable[int]) -> ColumnType:
        """The type that also holds values of `kind`; Clash if there is none."""
        arrow = merged(self.arrow, kind)
        if arrow is None:
            raise Clash
        negative, beyond, inexact = self.negative, self.beyond, self.inexact
        for number in numbers:
            negative = negative or number < 0
            beyond = beyond or number >= 2**63
            if inexact is None and abs(number) > EXACT and int(float(number)) != number:
                inexact = number
        if element_type(arrow) == pa.uint64() and not beyond and (_is_signed(self.arrow) or _is_signed(kind)):
            arrow = _with_element(arrow, pa.int64())
        return ColumnType(arrow, negative, beyond, inexact)._checked()

    def witnesses(self) -> list[int]:
        """Ints that tell another type all that is known here about the values."""
        known = [-1] * self.negative + [2**63] * self.beyond
        return known if self.inexact is None else [*known, self.inexact]

    def _checked(self) -> ColumnType:
        element = element_type(self.arrow)
        if self.negative and self.beyond and pa.types.is_integer(element):
            raise Clash(" with values that no one integer type holds together with this one")
        if self.inexact is not None and pa.types.is_floating(element):
            raise Clash(f", and float64 does not hold {self.inexact} exactly")
        return self


def merged(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """The type for values of both, or None.

    uint64 for a signed type with uint64 is a guess where the values decide: `ColumnType` corrects it.
    """
    if old == new or pa.types.is_null(new):
        return old
    if pa.types.is_null(old):
        return new
    if is_list(old) and is_list(new):
        inner = merged(old.value_type, new.value_type)
        large = pa.types.is_large_list(old) or pa.types.is_large_list(new)
        return None if inner is None else (pa.large_list if large else pa.list_)(inner)
    if {old, new} == {pa.string(), pa.large_string()}:
        return pa.large_string()
    if {old, new} == {pa.binary(), pa.large_binary()}:
        return pa.large_binary()
    return _merged_numbers(old, new)


def _merged_numbers(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    integers = pa.types.is_integer(old) + pa.types.is_integer(new)
    floats = pa.types.is_floating(old) + pa.types.is_floating(new)
    if integers + floats != 2:
        return None
    if integers == floats:
        return pa.float64()
    wide = np.promote_types(numpy_dtype(old), numpy_dtype(new))
    # numpy makes float64 of uint64 and a signed type, which would round.
    return pa.uint64() if integers and wide.kind == "f" else pa.from_numpy_dtype(wide)


def is_list(kind: pa.DataType) -> bool:
    """Whether values of the type are lists, of either size of offsets."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_signed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(element_type(kind)))


def element_type(kind: pa.DataType) -> pa.DataType:
    """The type inside a list type; any other type itself."""
    return kind.value_type if is_list(kind) else kind


def _with_element(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    if pa.types.is_large_list(kind):
        return pa.large_list(element)
    return pa.list_(element) if pa.types.is_list(kind) else element


def is_number(kind: pa.DataType) -> bool:
    """Whether values of the type are integers or floats."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


_NAMED_TYPES = {
    str(kind): kind
    for kind in (
        pa.null(),
        *NUMBERS,
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32()),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    )
}


_CLOSED = frozenset(_NAMED_TYPES.values())


def is_label_type(kind: pa.DataType) -> bool:
    """Whether a label column can have this type: one of a closed list, or a list of one of them."""
    return element_type(kind) in _CLOSED


def type_text(kind: pa.DataType) -> Any:
    """A column's type as JSON: its name, or ["list" | "large_list", inner type]."""
    if is_list(kind):
        return ["large_list" if pa.types.is_large_list(kind) else "list", type_text(kind.value_type)]
    return str(kind)


def type_of_text(text: Any) -> pa.DataType:
    """The type that `type_text` wrote; ValueError for anything else."""
    if isinstance(text, list) and len(text) == 2 and isinstance(text[1], str):
        outer = {"list": pa.list_, "large_list": pa.large_list}.get(str(text[0]))
        if outer is not None:
            return outer(type_of_text(text[1]))
    if not isinstance(text, str) or text not in _NAMED_TYPES:
        raise ValueError(f"no label column has the type {str(text)[:80]!r}")
    return _NAMED_TYPES[text]
