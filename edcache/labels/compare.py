"""Comparisons of a label column with plain values and with another column.

They are exact whatever the types: 2.5 lies between 2 and 3, 10**30 above all
integers, 2**53 + 1 between two values of a float64 column. Only a float is first rounded to the precision of
a float column, so that 0.1 finds 0.1 in a float32 column.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import LabelTypeError, described, once, unknown_label
from edcache.format import (
    family,
    from_numpy,
    from_texts,
    missing_rows,
    numpy_dtype,
    one_chunk,
    pa,
    pc,
    to_numpy,
)
from edcache.labels.column import comparable_type, numpy_time
from edcache.labels.labels import Labels, comparable_column

# By pyarrow, and by numpy.
_OPERATIONS: dict[str, tuple[str, Any]] = {
    "==": ("equal", eq), "!=": ("not_equal", ne), "<": ("less", lt), "<=": ("less_equal", le),
    ">": ("greater", gt), ">=": ("greater_equal", ge),
}  # fmt: skip


class _Place(NamedTuple):
    """A value as the greatest one of a column's type that is not above it; None if all are above."""

    below: Any
    is_equal: bool


class Column:
    """One column as the left side of comparisons; each gives a bool array, null where it is unknown.

    Raises UnknownLabelError, and each method LabelTypeError for what this column does not compare with.
    """

    def __init__(self, name: str, labels: Labels) -> None:
        if name not in labels:
            raise unknown_label(name, list(labels))
        kind = labels.schema.field(name).type
        self.name = name
        self.type: pa.DataType = kind.value_type if pa.types.is_dictionary(kind) else kind
        self._labels = labels
        self._family = family(self.type)

    @once
    def _values(self) -> pa.ChunkedArray:
        # Arrow compares no float16.
        is_half = pa.types.is_float16(self.type)
        return comparable_column(self._labels, self.name) if is_half else self._labels.column(self.name)

    @once
    def _missing(self) -> npt.NDArray[np.bool_]:
        return np.concatenate([np.empty(0, np.bool_), *map(missing_rows, self._values.chunks)])

    @once
    def _integers(self) -> npt.NDArray[Any] | None:
        """The column as numpy, which compares integers faster than pyarrow; None if it is of other values."""
        is_whole = self._family == "integer" and not self._values.null_count
        return self._labels[self.name] if is_whole else None

    def is_null(self) -> pa.Array:
        """True where the value is missing."""
        return from_numpy(self._missing, pa.bool_())

    def compare(self, operation: str, value: object) -> pa.Array:
        """`column <operation> value`, unknown where the column has no value."""
        if value is None and operation in ("==", "!="):
            return from_numpy(self._missing == (operation == "=="), pa.bool_())
        self._check_order(operation)
        place = self._place(value)
        if place is None or (not place.is_equal and operation in ("==", "!=")):
            return self._always(operation == "!=")
        if place.below is None:
            return self._always(operation in (">", ">="))
        if not place.is_equal:  # right above that value, and none of the column's
            operation = "<=" if operation in ("<", "<=") else ">"
        by_arrow, by_numpy = _OPERATIONS[operation]
        if self._integers is not None:
            return from_numpy(by_numpy(self._integers, place.below), pa.bool_())
        return one_chunk(getattr(pc, by_arrow)(self._values, self._scalars([place.below])[0]))

    def one_of(self, values: Iterable[object]) -> pa.Array:
        """`column in values`, unknown where the column has no value and None is not among the values."""
        if isinstance(values, np.ndarray):
            values = values.reshape(-1) if values.dtype.kind in "mM" else values.reshape(-1).tolist()
        values = list(values)
        present = [value for value in values if value is not None]
        places = [place for place in map(self._place, present) if place is not None]
        wanted = [place.below for place in places if place.is_equal]
        if not wanted:
            is_in = self._always(False)
        elif self._integers is not None:
            is_in = from_numpy(np.isin(self._integers, np.array(wanted, self._integers.dtype)), pa.bool_())
        else:
            # It compares bits, unlike ==.
            column = comparable_column(self._labels, self.name) if self._family == "float" else self._values
            found = one_chunk(pc.is_in(column, value_set=self._scalars(wanted)))
            is_in = from_numpy(to_numpy(found, nullable=False), pa.bool_(), self._missing)
        return is_in if len(present) == len(values) else pc.or_kleene(self.is_null(), is_in)

    def in_range(self, wanted: range) -> pa.Array:
        """True if the value is a number of the range."""
        first, last = sorted((wanted[0], wanted[-1])) if wanted else (0, -1)
        between = pc.and_kleene(self.compare(">=", first), self.compare("<=", last))
        if first >= last or (wanted.step in (1, -1) and self._family == "integer"):
            return between
        mask = to_numpy(between.fill_null(False), nullable=False).copy()
        rows = np.flatnonzero(mask)
        values = to_numpy(one_chunk(self._values).take(from_numpy(rows, pa.int64())), nullable=False)
        mask[rows] = _on_step(values, range(first, last + 1, abs(wanted.step)))
        return from_numpy(mask, pa.bool_())

    def matches(self, function: str, pattern: str) -> pa.Array:
        """`startswith(column, pattern)` or `contains(column, pattern)`."""
        if self._family == "null":
            return self._always(False)
        if self._family != "text":
            raise LabelTypeError(
                f'label "{self.name}" is {self.type}; {function}() looks into text; {_REMEDIES[self._family]}'
            )
        search = pc.starts_with if function == "startswith" else pc.match_substring
        return one_chunk(search(self._values, pattern=pattern))

    def truth(self) -> pa.Array:
        """The column as a condition of its own."""
        if self._family not in ("bool", "null"):
            raise LabelTypeError(
                f'label "{self.name}" is {self.type}, not a condition; compare it with a value'
            )
        return self._always(False) if self._family == "null" else one_chunk(self._values)

    def compare_column(self, operation: str, other: Column) -> pa.Array:
        """`column <operation> other column`, unknown where one of them has no value."""
        if "null" in (self._family, other._family):
            return pa.nulls(len(self._missing), pa.bool_())
        kinds = {_KINDS.get(one, one) for one in (self._family, other._family)}
        if len(kinds) > 1 or "list" in kinds:
            raise LabelTypeError(
                f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}; only columns of one '
                f"kind can be compared; give a function: filter(lambda table: ...)"
            )
        self._check_order(operation)
        try:
            return one_chunk(getattr(pc, _OPERATIONS[operation][0])(self._values, other._values))
        except pa.ArrowInvalid as error:
            # To compare a column with one of another type pyarrow casts both to a third, if no value changes.
            raise LabelTypeError(
                f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}, and no type holds '
                f"the values of both: {error}; give a function: filter(lambda table: ...)"
            ) from None

    def _always(self, truth: bool) -> pa.Array:
        """The same for all values, unknown where there is none."""
        return from_numpy(np.full(len(self._missing), truth), pa.bool_(), self._missing)

    def _scalars(self, values: list[Any]) -> pa.Array:
        # Not by pa.array, which imports pandas.
        if self._family in ("text", "bytes"):
            small = pa.string() if self._family == "text" else pa.binary()
            return from_texts(values, small).cast(self.type)
        kind = comparable_type(self.type)
        return from_numpy(np.array(values, _ticks_dtype(kind)), kind)

    def _check_order(self, operation: str) -> None:
        if operation not in ("==", "!=") and self._family == "bool":
            raise LabelTypeError(f'label "{self.name}" is bool, which has no order; compare it with == or !=')

    def _place(self, value: Any) -> _Place | None:
        """Find the nearest value of the column's type at or below `value`; None if no value can equal it."""
        is_time = isinstance(value, (np.datetime64, np.timedelta64))
        if not is_time and (isinstance(value, np.generic) or getattr(value, "shape", None) == ()):
            value = value.item()
        if self._family == "null":
            return None
        if (
            self._family in ("integer", "float")
            and isinstance(value, (int, float))
            and type(value) is not bool
        ):
            if value != value:
                return None
            return (_integer_place if self._family == "integer" else _float_place)(value, self.type)
        if self._family in _TIMES:
            try:
                seconds = _seconds(value, self._family)
            except (OverflowError, _NotATime):
                return None
            if seconds is not None:
                return _integer_place(seconds * _per_second(self.type), self.type)
        if isinstance(value, _EXPECTED.get(self._family, ())):
            is_valid = not isinstance(value, str) or value.encode(errors="ignore").decode() == value
            return _Place(value, is_equal=True) if is_valid else None
        raise LabelTypeError(
            f'label "{self.name}" is {self.type}; {described(value)} cannot be compared with it; '
            f"{_REMEDIES[self._family]}"
        )


_EXPECTED: dict[str, type] = {"bool": bool, "text": str, "bytes": bytes}
_KINDS = {"integer": "number", "float": "number"}
_TIMES = ("time", "UTC time", "duration")
_REMEDIES = {
    "bool": "compare it with True or False",
    "integer": "compare it with a number",
    "float": "compare it with a number",
    "text": "compare it with a str",
    "bytes": "compare it with bytes",
    "time": "compare it with a date, a time without a zone or an ISO string",
    "UTC time": "compare it with a date, a time or an ISO string",
    "duration": "compare it with a timedelta",
    "list": "such a column compares with None alone; give a callable that gets the numpy column",
}


def _ticks_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """The dtype of a column's numbers, for times of their ticks."""
    if pa.types.is_date32(kind):
        return np.dtype(np.int32)
    dtype = numpy_dtype(kind)
    return np.dtype(np.int64) if dtype.kind in "mM" else dtype


def _integer_place(value: float | Fraction, kind: pa.DataType) -> _Place:
    """Where a number lies among the integers of a type, or the ticks of a time's."""
    limits = np.iinfo(_ticks_dtype(kind))
    if value < int(limits.min):
        return _Place(None, is_equal=False)
    floor = int(limits.max) if value > int(limits.max) else math.floor(value)
    return _Place(floor, is_equal=floor == value)


def _float_place(value: float, kind: pa.DataType) -> _Place:
    dtype = numpy_dtype(kind)
    try:
        wide = float(value)
    except OverflowError:
        wide = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        below = dtype.type(wide)
        if isinstance(value, float) and np.isfinite(below):  # what it is rounded to
            return _Place(float(below) + 0.0, is_equal=True)  # -0.0 becomes 0.0
        if float(below) > value:
            below = np.nextafter(below, dtype.type(-np.inf))
    return _Place(float(below) + 0.0, is_equal=float(below) == value)


def _on_step(values: npt.NDArray[Any], wanted: range) -> npt.NDArray[np.bool_]:
    """Mask of the values that are in `wanted`; all lie between its first and its last."""
    if not len(values):
        return np.empty(0, np.bool_)
    is_whole = values == np.floor(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
    if wanted.step >= 2**63 or values.min().item() < -(2**63) or values.max().item() >= 2**63:
        pairs = zip(values.tolist(), is_whole.tolist(), strict=True)
        return np.array([whole and int(value) in wanted for value, whole in pairs])
    is_on: npt.NDArray[np.bool_] = values.astype(np.int64) % wanted.step == wanted[0] % wanted.step
    return is_on & is_whole


# ---- times and durations as seconds since 1970: a Fraction, which is exact for all that numpy has

_UNITS: dict[str, Fraction] = {
    **{unit: Fraction(1, 1000**i) for i, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
    **{unit: Fraction(n) for unit, n in (("m", 60), ("h", 3600), ("D", 86_400), ("W", 604_800))},
}
_ISO = re.compile(
    r"(?P<seconds>\d{4}-\d\d(-\d\d)?([T ]\d\d(:\d\d(:\d\d)?)?)?)"
    r"(?P<fraction>(?<=:\d\d:\d\d)\.\d{1,18})?(?P<zone>(?<=.{13})(Z|[+-]([01]\d|2[0-3]):?[0-5]\d))?",
    re.ASCII,
)
# Years and months beyond all that a column has, which numpy still counts in days.
_FAR = 10**15


def _per_second(kind: pa.DataType) -> Fraction:
    return 1 / _UNITS["D" if pa.types.is_date32(kind) else kind.unit]


class _NotATime(Exception):
    """NaT, which equals nothing."""


def _seconds(value: Any, family: str) -> Fraction | None:
    """A value as seconds; None if it is no time of the column's kind. Raises _NotATime, OverflowError."""
    if isinstance(value, str):
        return None if family == "duration" else _parsed(value, family)
    time, zone = numpy_time(value)
    # A column without a zone has no instant to compare with.
    if time is None or (time.dtype.kind == "m") != (family == "duration") or (zone and family != "UTC time"):
        return None
    return _counted(time)


def _parsed(text: str, family: str) -> Fraction | None:
    # Not by numpy or Python alone, which lose or wrap what has more digits than their types.
    parts = _ISO.fullmatch(text)
    if parts is None or (parts["zone"] and family != "UTC time"):
        return None
    try:
        whole = _counted(np.datetime64(parts["seconds"]))
    except ValueError:
        return None
    zone = parts["zone"] or "Z"
    minutes = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 60 + int(zone[-2:]))
    return whole + Fraction("0" + (parts["fraction"] or "")) - minutes * 60 if whole is not None else None


def _counted(value: Any) -> Fraction | None:
    """A numpy time as seconds; None if its unit has no fixed length."""
    if np.isnat(value):
        raise _NotATime
    unit, step = np.datetime_data(value.dtype)
    count = int(value.astype("i8")) * step
    if unit in ("Y", "M") and value.dtype.kind == "M":
        near = np.int64(max(-_FAR, min(count, _FAR))).astype(f"M8[{unit}]")
        unit, count = "D", int(near.astype("M8[D]").astype("i8"))
    return count * _UNITS[unit] if unit in _UNITS else None
