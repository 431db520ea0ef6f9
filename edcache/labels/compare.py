"""Comparisons of a label column with plain values, as pyarrow expressions.

A value is compared exactly with an integer column (2.5 lies between 2 and 3, 10**30 above all), with a time
column too; with a float column it is first rounded to the column's own precision, so that 0.1 finds 0.1
in a float32 column.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from edcache.errors import LabelTypeError
from edcache.labels.arrays import numpy_dtype
from edcache.labels.wording import unknown_label

_OPERATIONS: dict[str, Callable[[pc.Expression, pc.Expression], pc.Expression]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


class _Point(NamedTuple):
    """Where a value lies on a column's axis.

    `scalar` is the value itself if `exact`; otherwise the greatest value of the column's type below it,
    None if there is none. A value that equals nothing and orders with nothing (nan) is no point at all.
    """

    scalar: pa.Scalar | None
    exact: bool


class Column:
    """One column of a schema as the left side of comparisons; each gives a pyarrow expression.

    Raises:
        UnknownLabelError: the schema has no such column.
        LabelTypeError: in each method, a value that this column is not comparable with.
    """

    def __init__(self, name: str, schema: pa.Schema) -> None:
        if name not in schema.names:
            raise unknown_label(name, schema.names)
        self.name = name
        self.type: pa.DataType = schema.field(name).type
        self._field: pc.Expression = pc.field(name)
        if pa.types.is_dictionary(self.type):
            self.type = self.type.value_type
            self._field = self._field.cast(self.type)
        if pa.types.is_float16(self.type):
            self.type = pa.float32()  # exact, and Arrow compares no float16
            self._field = self._field.cast(self.type)

    @property
    def expression(self) -> pc.Expression:
        """The column itself."""
        return self._field

    def is_null(self) -> pc.Expression:
        """True where the value is missing."""
        return self._field.is_null()

    def compare(self, operation: str, value: object) -> pc.Expression:
        """`column <operation> value`, unknown where the column has no value."""
        if value is None and operation in ("==", "!="):
            return self.is_null() if operation == "==" else self._field.is_valid()
        if operation not in ("==", "!=") and pa.types.is_boolean(self.type):
            raise LabelTypeError(f'label "{self.name}" is bool, which has no order; compare it with == or !=')
        point = self._point(value)
        if point is None:
            return self._constant(operation == "!=")
        if point.exact:
            return _OPERATIONS[operation](self._field, pc.scalar(point.scalar))
        return self._compare_between(operation, point.scalar)

    def _compare_between(self, operation: str, below: pa.Scalar | None) -> pc.Expression:
        """The comparison with a value that lies right above `below` and is no value of the column."""
        if operation in ("==", "!="):
            return self._constant(operation == "!=")
        less = operation in ("<", "<=")
        if below is None:
            return self._constant(not less)
        limit = pc.scalar(below)
        return self._field <= limit if less else self._field > limit

    def one_of(self, values: Iterable[object]) -> pc.Expression:
        """`column in values`, unknown where the column has no value and None is not among the values."""
        with_null, scalars = self._value_set(values)
        found = self._field.isin(scalars) if len(scalars) else self._constant(False)
        if with_null:
            return self.is_null() | found if len(scalars) else self.is_null()
        return self._unless_null(found)

    def between(self, first: int, last: int) -> pc.Expression:
        """`first <= column <= last`."""
        return self.compare(">=", first) & self.compare("<=", last)

    def matches(self, function: str, pattern: str) -> pc.Expression:
        """`startswith(column, pattern)` or `contains(column, pattern)`."""
        if not _is_string(self.type):
            raise LabelTypeError(f'label "{self.name}" is {self.type}; {function}() needs a string column')
        if function == "startswith":
            return pc.starts_with(self._field, pattern=pattern)
        return pc.match_substring(self._field, pattern=pattern)

    def truth(self) -> pc.Expression:
        """The column as a condition of its own."""
        if not pa.types.is_boolean(self.type):
            raise LabelTypeError(f'label "{self.name}" is {self.type}, no condition; compare it with a value')
        return self._field

    def compare_column(self, operation: str, other: Column) -> pc.Expression:
        """`column <operation> other column`."""
        if _family(self.type) != _family(other.type) or _family(self.type) in ("other", "null"):
            raise LabelTypeError(
                f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}; '
                f"only columns of one kind compare"
            )
        return _OPERATIONS[operation](self._field, other._field)

    def _constant(self, truth: bool) -> pc.Expression:
        return self._unless_null(pc.scalar(truth))

    def _unless_null(self, expression: pc.Expression) -> pc.Expression:
        return pc.if_else(self._field.is_valid(), expression, pc.scalar(pa.scalar(None, pa.bool_())))

    def _value_set(self, values: Iterable[object]) -> tuple[bool, pa.Array]:
        if isinstance(values, np.ndarray):
            if values.dtype.kind in "iu" and pa.types.is_integer(self.type):
                return False, _representable(values, self.type)
            values = values.reshape(-1) if values.dtype.kind in "mM" else values.reshape(-1).tolist()
        with_null, scalars = False, []
        for value in values:
            if value is None:
                with_null = True
                continue
            point = self._point(value)
            if point is not None and point.exact and point.scalar is not None:
                scalars.append(point.scalar)
        return with_null, pa.array(scalars, type=self.type)

    def _point(self, value: object) -> _Point | None:
        """Where `value` lies among the column's values; None if nothing compares with it."""
        value = _plain(value)
        family = _family(self.type)
        if family == "null":
            return None
        if family == "number" and isinstance(value, (int, float)) and not isinstance(value, bool):
            return _number_point(value, self.type)
        if family == "time":
            ticks = _ticks_of(value, self.type)
            if ticks is not None:
                return None if np.isnat(ticks) else _time_point(ticks, self.type)
        if family in _EXPECTED and isinstance(value, _EXPECTED[family]):
            return _Point(pa.scalar(value, self.type), exact=True) if _encodable(value) else None
        raise self._mismatch(value, family)

    def _mismatch(self, value: object, family: str) -> LabelTypeError:
        name = type(value).__name__
        article = "an" if name[0].lower() in "aeiou" else "a"
        shown = f"{value!r:.60}" if isinstance(value, (str, bytes, int, float)) else f"the {name}"
        return LabelTypeError(
            f'label "{self.name}" is {self.type}; {shown} is {article} {name}; {_REMEDIES[family]}'
        )


_EXPECTED: dict[str, type] = {"bool": bool, "string": str, "bytes": bytes}
_REMEDIES = {
    "bool": "compare it with True or False",
    "number": "compare it with a number",
    "string": "compare it with a str",
    "bytes": "compare it with bytes",
    "time": "compare it with a date or time of its kind, an ISO string or a timedelta",
    "null": "",
    "other": "such a column compares with None alone; give a callable that gets the numpy column",
}


def _family(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "bool"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "number"
    if _is_string(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytes"
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or pa.types.is_duration(kind):
        return "time"
    return "null" if pa.types.is_null(kind) else "other"


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _plain(value: Any) -> Any:
    """A numpy scalar, or an array or tensor without dimensions, as its Python value."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return value
    if isinstance(value, np.generic) or getattr(value, "shape", None) == ():
        return value.item()
    return value


def _encodable(value: object) -> bool:
    if not isinstance(value, str) or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number_point(value: float, kind: pa.DataType) -> _Point | None:
    if isinstance(value, float) and math.isnan(value):
        return None
    if pa.types.is_floating(kind):
        return _Point(pa.scalar(_rounded(value, kind), kind), exact=True)
    limits = np.iinfo(numpy_dtype(kind))
    low, high = int(limits.min), int(limits.max)
    if value < low:
        return _Point(None, exact=False)
    if value > high:
        return _Point(pa.scalar(high, kind), exact=False)
    floor = math.floor(value)
    return _Point(pa.scalar(floor, kind), exact=floor == value)


def _rounded(value: float, kind: pa.DataType) -> float:
    try:
        wide = float(value)
    except OverflowError:
        wide = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        return float(numpy_dtype(kind).type(wide))


def _representable(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    dtype = numpy_dtype(kind)
    limits = np.iinfo(dtype)
    fits = (values >= int(limits.min)) & (values <= int(limits.max))
    return pa.array(values[fits].astype(dtype), type=kind)


# ---- times: a value as datetime64 or timedelta64, then down to the column's unit


def _ticks_of(value: object, kind: pa.DataType) -> Any:
    """The value as datetime64 or timedelta64; None if it is no time of the column's kind."""
    if pa.types.is_duration(kind):
        return _duration_of(value)
    return _instant_of(value, aware_column=pa.types.is_timestamp(kind) and kind.tz is not None)


def _time_point(ticks: Any, kind: pa.DataType) -> _Point:
    unit = "D" if pa.types.is_date32(kind) else kind.unit
    floor, exact = _floor_ticks(ticks, unit)
    return _tick_point(floor, exact, kind)


def _duration_of(value: object) -> Any:
    if isinstance(value, np.timedelta64):
        return value
    if isinstance(value, dt.timedelta):
        return np.timedelta64(value // dt.timedelta(microseconds=1), "us")
    return None


def _instant_of(value: object, aware_column: bool) -> Any:
    if isinstance(value, np.datetime64):
        return value
    if isinstance(value, str):
        return _parsed_instant(value, aware_column)
    if isinstance(value, dt.datetime):
        return _datetime_instant(value, aware_column)
    return np.datetime64(value, "D") if isinstance(value, dt.date) else None


def _parsed_instant(text: str, aware_column: bool) -> Any:
    if not re.match(r"\d{4}-\d\d", text):
        return None  # numpy also reads "now" and "today"
    try:
        if re.search(r"(Z|[+-]\d\d:?\d\d)$", text[10:]):
            return _datetime_instant(dt.datetime.fromisoformat(text.replace("Z", "+00:00")), aware_column)
        return np.datetime64(text)
    except ValueError:
        return None


def _datetime_instant(value: dt.datetime, aware_column: bool) -> Any:
    if hasattr(value, "to_datetime64"):
        return value.to_datetime64()
    if value.tzinfo is None:
        return np.datetime64(value, "us")
    if not aware_column:
        return None  # a column without a zone has no instant to compare with
    return np.datetime64(value.astimezone(dt.timezone.utc).replace(tzinfo=None), "us")


_TICKS_PER_DAY = {
    "D": 1,
    "h": 24,
    "m": 24 * 60,
    **{unit: 86_400 * 1000**i for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
}


def _floor_ticks(value: Any, unit: str) -> tuple[int, bool]:
    """The value in whole units, rounded down, and whether nothing was lost; in unbounded integers."""
    if np.datetime_data(value.dtype)[0] in ("Y", "M", "W"):
        value = value.astype(f"{value.dtype.kind}8[D]")
    own, step = np.datetime_data(value.dtype)
    scaled = int(value.astype("i8")) * step * _TICKS_PER_DAY[unit]
    floor, rest = divmod(scaled, _TICKS_PER_DAY[own])
    return floor, rest == 0


def _tick_point(floor: int, exact: bool, kind: pa.DataType) -> _Point:
    storage = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    limits = np.iinfo(numpy_dtype(storage))
    if floor <= int(limits.min):
        return _Point(None, exact=False)
    exact = exact and floor <= int(limits.max)
    ticks = pa.array([min(floor, int(limits.max))], type=storage)
    return _Point(ticks.view(kind)[0], exact)
