"""Comparisons of a label column with plain values and with another column, as pyarrow expressions.

They are over `comparable` columns, and exact, whatever the types: 2.5 lies between 2 and 3, 10**30 above all
integers, 2**53 + 1 between two values of a float64 column. Only a float is first rounded to the precision of
a float column, so that 0.1 finds 0.1 in a float32 column.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

import numpy as np

from edcache.base import LabelTypeError, described, once, unknown_label
from edcache.format import from_numpy, is_number, is_text, numpy_dtype, pa, pc
from edcache.labels.column import comparable_type

_OPERATIONS = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


class _Point(NamedTuple):
    """Where a value lies: at the scalar, or if not `exact` right above it, or below all where it is None."""

    scalar: pa.Scalar | None
    exact: bool


class Column:
    """One column of a schema as the left side of comparisons; each gives a pyarrow expression.

    Raises UnknownLabelError, and each method LabelTypeError for what this column does not compare with.
    """

    def __init__(self, name: str, schema: pa.Schema) -> None:
        if name not in schema.names:
            raise unknown_label(name, schema.names)
        self.name = name
        kind = schema.field(name).type
        self.type: pa.DataType = kind.value_type if pa.types.is_dictionary(kind) else kind

    @once
    def _field(self) -> pc.Expression:
        return pc.field(self.name)

    def is_null(self) -> pc.Expression:
        """True where the value is missing."""
        return self._field.is_null()

    def compare(self, operation: str, value: object) -> pc.Expression:
        """`column <operation> value`, unknown where the column has no value."""
        if value is None and operation in ("==", "!="):
            return self.is_null() if operation == "==" else ~self.is_null()
        self._check_order(operation)
        point = self._point(value)
        if point is None or (not point.exact and operation in ("==", "!=")):
            return self._always(operation == "!=")
        if point.scalar is None:
            return self._always(operation in (">", ">="))
        if not point.exact:  # it lies right above the point, and is none of the column's
            operation = "<=" if operation in ("<", "<=") else ">"
        return self._compared(operation, point.scalar)

    def _always(self, truth: bool) -> pc.Expression:
        """The same for all values, unknown where there is none."""
        return pc.if_else(self._field.is_valid(), pc.scalar(truth), _unknown())

    def _compared(self, operation: str, scalar: pa.Scalar) -> pc.Expression:
        return _OPERATIONS[operation](self._field, pc.scalar(scalar))

    def _among(self, scalars: pa.Array) -> pc.Expression:
        is_in = self._field.isin(scalars)
        return pc.if_else(self._field.is_valid(), is_in, _unknown())

    def one_of(self, values: Iterable[object]) -> pc.Expression:
        """`column in values`, unknown where the column has no value and None is not among the values."""
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu" and pa.types.is_integer(self.type):
            limits = np.iinfo(numpy_dtype(self.type))
            fits = values[(values >= int(limits.min)) & (values <= int(limits.max))]
            has_null, scalars = False, from_numpy(fits.astype(limits.dtype), self.type)
        else:
            if isinstance(values, np.ndarray):
                values = values.reshape(-1) if values.dtype.kind in "mM" else values.reshape(-1).tolist()
            values = list(values)
            present = [value for value in values if value is not None]
            points = [point for point in map(self._point, present) if point is not None]
            exact = [point.scalar for point in points if point.exact and point.scalar is not None]
            has_null, kind = len(present) < len(values), comparable_type(self.type)
            if is_number(kind):
                numbers = np.array([scalar.as_py() for scalar in exact], numpy_dtype(kind))
                scalars = from_numpy(numbers, kind)  # not by pa.array, which imports pandas
            else:
                scalars = pa.array(exact, kind)
        is_in = self._among(scalars) if len(scalars) else self._always(False)
        return self.is_null() | is_in if has_null else is_in

    def matches(self, function: str, pattern: str) -> pc.Expression:
        """`startswith(column, pattern)` or `contains(column, pattern)`."""
        if pa.types.is_null(self.type):
            return _unknown()
        family = _family(self.type)
        if family != "string":
            raise LabelTypeError(
                f'label "{self.name}" is {self.type}; {function}() looks into text; {_REMEDIES[family]}'
            )
        if function == "startswith":
            return pc.starts_with(self._field, pattern=pattern)
        return pc.match_substring(self._field, pattern=pattern)

    def truth(self) -> pc.Expression:
        """The column as a condition of its own."""
        if pa.types.is_null(self.type):
            return _unknown()
        if not pa.types.is_boolean(self.type):
            raise LabelTypeError(
                f'label "{self.name}" is {self.type}, not a condition; compare it with a value'
            )
        return self._field

    def compare_column(self, operation: str, other: Column) -> pc.Expression:
        """`column <operation> other column`, unknown where one of them has no value."""
        families = {_family(self.type), _family(other.type)}
        if "null" in families:
            return _unknown()
        if len(families) > 1 or "other" in families:
            raise LabelTypeError(
                f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}; only columns of one '
                f"kind can be compared; give a function: filter(lambda table: ...)"
            )
        self._check_order(operation)
        compare = _OPERATIONS[operation]
        (coarse, fine), (other_coarse, other_fine) = self._steps(other.type), other._steps(self.type)
        if fine is None or other_fine is None:
            return compare(coarse, other_coarse)
        return pc.if_else(coarse == other_coarse, compare(fine, other_fine), compare(coarse, other_coarse))

    def _steps(self, other: pa.DataType) -> tuple[pc.Expression, pc.Expression | None]:
        """What compares exactly with another type: this, if equal that. Arrow would round, or refuse."""
        field, kind = self._field, self.type
        if _family(kind) in _TIMES and _unit(kind) != _unit(other):
            ticks = field.cast(pa.int32()) if pa.types.is_date32(kind) else field
            ticks = ticks.cast(pa.int64())
            ratio = pc.scalar(max(_ATTOSECONDS[_unit(other)] // _ATTOSECONDS[_unit(kind)], 1))
            whole = pc.divide(ticks, ratio)
            return whole, ticks - whole * ratio
        if pa.types.is_integer(kind) and pa.types.is_floating(other):
            # So that of an integer it is not rounded to what is beyond all integers of its type.
            most = pc.scalar(float(np.nextafter(2.0 ** (64 - pa.types.is_signed_integer(kind)), 0)))
            rounded = field.cast(pa.float64(), safe=False)
            return pc.if_else(rounded > most, most, rounded), field
        if pa.types.is_floating(kind) and pa.types.is_integer(other):
            wide = pa.int64() if pa.types.is_signed_integer(other) else pa.uint64()
            return field.cast(pa.float64()), field.cast(wide, safe=False)
        if pa.types.is_integer(kind) and kind != other and pa.uint64() in (kind, other):
            return field.cast(pa.float64(), safe=False), field.cast(pa.uint64(), safe=False)
        return field, None

    def _check_order(self, operation: str) -> None:
        if operation not in ("==", "!=") and pa.types.is_boolean(self.type):
            raise LabelTypeError(f'label "{self.name}" is bool, which has no order; compare it with == or !=')

    def _point(self, value: Any) -> _Point | None:
        """Where `value` lies among the column's values; None if nothing compares with it."""
        is_time = isinstance(value, (np.datetime64, np.timedelta64))
        if not is_time and (isinstance(value, np.generic) or getattr(value, "shape", None) == ()):
            value = value.item()
        family = _family(self.type)
        if family == "null":
            return None
        if family == "number" and isinstance(value, (int, float)) and not isinstance(value, bool):
            if value != value:
                return None
            is_integer = pa.types.is_integer(self.type)
            return _integer_point(value, self.type) if is_integer else _float_point(value, self.type)
        if family in _TIMES:
            time = _attoseconds(value, self.type)
            if time is _NAT:
                return None
            if time is not None:
                return _integer_point(Fraction(time, _ATTOSECONDS[_unit(self.type)]), self.type)
        if isinstance(value, _EXPECTED.get(family, ())):
            try:
                return _Point(pa.scalar(value, self.type), exact=True)
            except UnicodeEncodeError:
                return None
        raise LabelTypeError(
            f'label "{self.name}" is {self.type}; {described(value)} cannot be compared with it; '
            f"{_REMEDIES[family]}"
        )


@cache
def _unknown() -> pc.Expression:
    return pc.scalar(pa.scalar(None, pa.bool_()))


_EXPECTED: dict[str, type] = {"bool": bool, "string": str, "bytes": bytes}
_TIMES = ("time", "UTC time", "duration")
_REMEDIES = {
    "bool": "compare it with True or False",
    "number": "compare it with a number",
    "string": "compare it with a str",
    "bytes": "compare it with bytes",
    "time": "compare it with a date, a time without a zone or an ISO string",
    "UTC time": "compare it with a date, a time or an ISO string",
    "duration": "compare it with a timedelta",
    "null": "",
    "other": "such a column compares with None alone; give a callable that gets the numpy column",
}


def _family(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if is_number(kind):
        return "number"
    if is_text(kind):
        return "string" if "string" in str(kind) else "bytes"
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return "time" if pa.types.is_date32(kind) or kind.tz is None else "UTC time"
    if pa.types.is_duration(kind):
        return "duration"
    return "null" if pa.types.is_null(kind) else "other"


def _integer_point(value: float | Fraction, kind: pa.DataType) -> _Point:
    """Where a number lies among the integers of a type, or the ticks of a time's."""
    ticks = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    dtype = numpy_dtype(kind if pa.types.is_integer(kind) else ticks)
    limits = np.iinfo(dtype)
    if value < int(limits.min):
        return _Point(None, exact=False)
    floor = int(limits.max) if value > int(limits.max) else math.floor(value)
    return _Point(_scalar(floor, dtype, kind), exact=floor == value)


def _float_point(value: float, kind: pa.DataType) -> _Point:
    dtype = numpy_dtype(kind)
    try:
        wide = float(value)
    except OverflowError:
        wide = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        below = dtype.type(wide)
        # A finite float is what it is rounded to.
        is_exact = isinstance(value, float) and bool(np.isfinite(below))
        if not is_exact and float(below) > value:
            below = np.nextafter(below, dtype.type(-np.inf))
    # -0.0 becomes 0.0.
    wider = comparable_type(kind)
    scalar = _scalar(float(below) + 0.0, numpy_dtype(wider), wider)
    return _Point(scalar, is_exact or float(below) == value)


def _scalar(value: float, dtype: np.dtype[Any], kind: pa.DataType) -> pa.Scalar:
    """A number or a time's ticks as Arrow has it; not by pa.scalar, which imports pandas."""
    return from_numpy(np.array([value], dtype), kind)[0]


# ---- times, and durations, as attoseconds since 1970: an int, which is exact for all that numpy has

_NAT = object()
_SECOND = 10**18
_ATTOSECONDS: dict[str, int] = {
    **{unit: 10 ** (18 - 3 * i) for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
    **{unit: _SECOND * seconds for unit, seconds in (("m", 60), ("h", 3600), ("D", 86_400), ("W", 604_800))},
}
_ISO = re.compile(
    r"\d{4}-\d\d(-\d\d)?"
    r"([T ]\d\d(:\d\d(:\d\d(?P<fraction>\.\d{1,18})?)?)?(?P<zone>Z|[+-]([01]\d|2[0-3]):?[0-5]\d)?)?",
    re.ASCII,
)
# Years and months beyond all that a column has, which numpy still counts in days.
_FAR = 10**15


def _attoseconds(value: Any, kind: pa.DataType) -> Any:
    """A value as attoseconds, _NAT for NaT; None if it is no time of the column's kind."""
    if pa.types.is_duration(kind):
        if hasattr(value, "to_timedelta64"):  # a pandas.Timedelta, which has nanoseconds
            value = value.to_timedelta64()
        if isinstance(value, dt.timedelta):
            return _elapsed(value)
        return _ticks(value) if isinstance(value, np.timedelta64) else None
    has_zone = pa.types.is_timestamp(kind) and kind.tz is not None
    if isinstance(value, str):
        return _parsed(value, has_zone)
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None and not has_zone:
            return None  # a column without a zone has no instant to compare with
        if not hasattr(value, "to_datetime64"):
            since = value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)
            return _elapsed(since - (value.utcoffset() or dt.timedelta()))
        value = value.to_datetime64()  # of a pandas.Timestamp, which has nanoseconds
    elif isinstance(value, dt.date):
        value = np.datetime64(value, "D")
    return _ticks(value) if isinstance(value, np.datetime64) else None


def _elapsed(value: dt.timedelta) -> int:
    return value // dt.timedelta(microseconds=1) * 10**12


def _parsed(text: str, has_zone: bool) -> int | None:
    # Not by numpy or Python alone, which lose or wrap what has more digits than their types.
    parts = _ISO.fullmatch(text)
    if parts is None or (parts["zone"] and not has_zone):
        return None
    fraction, zone = parts["fraction"] or "", parts["zone"] or "Z"
    seconds = text.removesuffix(parts["zone"] or "").removesuffix(fraction)
    minutes = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 60 + int(zone[-2:]))
    try:
        whole: int = _ticks(np.datetime64(seconds))
    except ValueError:
        return None
    return whole + int(fraction[1:].ljust(18, "0")) - minutes * 60 * _SECOND


def _ticks(value: Any) -> Any:
    """A numpy time as attoseconds, _NAT for NaT; None if its unit has no fixed length."""
    if np.isnat(value):
        return _NAT
    unit, step = np.datetime_data(value.dtype)
    count = int(value.astype("i8")) * step
    if unit in ("Y", "M") and value.dtype.kind == "M":
        near = np.int64(max(-_FAR, min(count, _FAR))).astype(f"M8[{unit}]")
        unit, count = "D", int(near.astype("M8[D]").astype("i8"))
    return count * _ATTOSECONDS[unit] if unit in _ATTOSECONDS else None


def _unit(kind: pa.DataType) -> str:
    return "D" if pa.types.is_date32(kind) else str(kind.unit)
