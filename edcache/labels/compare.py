"""Comparisons of a label column with plain values and with another column.

They are exact for all types: 2.5 lies between 2 and 3, 10**30 above all integers, 2**53 + 1 between two values of a
float64 column. Only a float is rounded to the precision of a float column, so that 0.1 finds 0.1 in float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import cache, reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edcache.base import LabelError, described, once
from edcache.format import (
    family,
    from_numpy,
    from_texts,
    missing_rows,
    numpy_dtype,
    one_chunk,
    pa,
    pc,
    stored_values,
)
from edcache.labels.column import numpy_time
from edcache.labels.labels import Labels, comparable_column, missing_values, origin

# By pyarrow, and by numpy.
_OPERATIONS: dict[str, tuple[str, Any]] = {
    "==": ("equal", eq), "!=": ("not_equal", ne), "<": ("less", lt), "<=": ("less_equal", le),
    ">": ("greater", gt), ">=": ("greater_equal", ge),
}  # fmt: skip
_FEW = 16  # values that are compared one after another
_WIDE = 1 << 20  # entries of a table of integers

Mask: TypeAlias = "npt.NDArray[np.bool_]"


class Truth(NamedTuple):
    """Three-valued truth of rows: `sure` marks true ones, `possible` true and unknown ones.

    Both are one array if nothing is unknown.
    """

    sure: Mask
    possible: Mask

    def __and__(self, other: Truth) -> Truth:
        return self._join(and_, other)

    def __or__(self, other: Truth) -> Truth:
        return self._join(or_, other)

    def __invert__(self) -> Truth:
        possible = ~self.sure
        return Truth(possible if self.sure is self.possible else ~self.possible, possible)

    def _join(self, join: Callable[[Mask, Mask], Mask], other: Truth) -> Truth:
        sure = join(self.sure, other.sure)
        is_known = self.sure is self.possible and other.sure is other.possible
        return Truth(sure, sure if is_known else join(self.possible, other.possible))


class _Place(NamedTuple):
    """Place of a value in a column's type: the greatest value not above it; None if all are above."""

    below: Any
    is_equal: bool


class Column:
    """Left side of comparisons; each returns a `Truth`, unknown for a missing value.

    Numbers, bools and times are compared by numpy, as a view of Arrow's memory; texts by pyarrow. Raises
    UnknownLabelError; its methods raise LabelError for a value that this column does not compare with.
    """

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.type: pa.DataType = origin(labels)[0].column(name).type
        self._labels = labels
        self._family = family(self.type)
        self.texts: list[list[str]] = []  # that == and `in` looked for

    @once
    def _arrow(self) -> pa.ChunkedArray:
        # Arrow compares no float16.
        is_half = pa.types.is_float16(self.type)
        return comparable_column(self._labels, self.name) if is_half else self._labels.column(self.name)

    @once
    def _missing(self) -> Mask | None:
        """Mask of missing values; None if every row has one."""
        return missing_values(self._labels, self.name)

    @once
    def _numbers(self) -> list[npt.NDArray[Any]]:
        """Numbers and bools, times as ticks, chunk by chunk; any value for a missing one."""
        if self._missing is None and origin(self._labels)[0].column(self.name).num_chunks == 1:
            found = [self._labels[self.name]]  # which is kept
        else:
            # Joining the chunks takes longer than comparing them.
            chunks = self._labels.column(self.name).chunks or [pa.nulls(0, self.type)]
            found = [stored_values(chunk) for chunk in chunks]
        return [values.view(np.int64) if values.dtype.kind in "mM" else values for values in found]

    def _each(self, compare: Callable[..., Mask], *operands: Any) -> Mask:
        """Join the masks of `compare(numbers, *operands)`."""
        masks = [compare(numbers, *operands) for numbers in self._numbers]
        return masks[0] if len(masks) == 1 else np.concatenate(masks)

    def unique(self) -> list[Any]:
        """List the distinct values, in the order of the rows."""
        return pc.unique(self._arrow).drop_null().to_pylist()  # type: ignore[no-any-return]

    def is_null(self) -> Truth:
        """Compare with None."""
        missing = self._always(False).possible
        return Truth(missing, missing)

    def compare(self, operation: str, value: object) -> Truth:
        """Evaluate `column <operation> value`."""
        if value is None and operation in ("==", "!="):
            return self.is_null() if operation == "==" else ~self.is_null()
        self._check_order(operation)
        if operation == "==" and self._family == "text" and isinstance(value, str):
            self.texts.append([value])
        place = self._place(value)
        if place is None or (not place.is_equal and operation in ("==", "!=")):
            return self._always(operation == "!=")
        if place.below is None:
            return self._always(operation in (">", ">="))
        if not place.is_equal:  # right above that value, below the next one
            operation = "<=" if operation in ("<", "<=") else ">"
        by_arrow, by_numpy = _OPERATIONS[operation]
        if self._is_text:
            return self._from_arrow(getattr(pc, by_arrow)(self._arrow, self._texts([place.below])[0]))
        return self._with_missing(self._each(by_numpy, place.below))

    def one_of(self, values: Iterable[object]) -> Truth:
        """Evaluate `column in values`; None among the values finds missing ones."""
        if isinstance(values, np.ndarray):
            values = values.reshape(-1) if values.dtype.kind in "mM" else values.reshape(-1).tolist()
        values = list(values)
        present = [value for value in values if value is not None]
        if self._family == "text":
            self.texts.append([value for value in present if isinstance(value, str)])
        wanted = self._convert(present)
        if not len(wanted):
            is_in = self._always(False)
        elif self._is_text:
            is_in = self._from_arrow(pc.is_in(self._arrow, value_set=self._texts(wanted)))
        else:
            is_in = self._with_missing(self._each(_mark_among, wanted))
        return is_in if len(present) == len(values) else self.is_null() | is_in

    def _convert(self, values: list[Any]) -> list[Any]:
        """Convert values to the column's type, without impossible ones."""
        if self._family == "integer" and set(map(type, values)) == {int}:
            least, most = _limits(self._numbers[0].dtype)
            if least <= min(values) and max(values) <= most:
                return values
        places = map(self._place, values)
        return [place.below for place in places if place is not None and place.is_equal]

    def in_range(self, wanted: range) -> Truth:
        """Evaluate `column in range`."""
        first, last = sorted((wanted[0], wanted[-1])) if wanted else (0, -1)
        between = self.compare(">=", first) & self.compare("<=", last)
        if first >= last or (wanted.step in (1, -1) and self._family == "integer"):
            return between
        rows = np.flatnonzero(between.sure)
        if not len(rows):
            return between
        mask = np.zeros(len(between.sure), np.bool_)
        mask[rows] = _mark_on_step(
            np.concatenate(self._numbers)[rows], range(first, last + 1, abs(wanted.step))
        )
        return self._with_missing(mask)

    def matches(self, function: str, pattern: str) -> Truth:
        """Evaluate `startswith(column, pattern)` or `contains(column, pattern)`."""
        if self._family == "null":
            return self._always(False)
        if self._family != "text":
            raise LabelError(
                f'label "{self.name}" is {self.type}; {function}() looks into text; {_REMEDIES[self._family]}'
            )
        search = pc.starts_with if function == "startswith" else pc.match_substring
        return self._from_arrow(search(self._arrow, pattern=pattern))

    def truth(self) -> Truth:
        """Take a bool column as a condition of its own."""
        if self._family not in ("bool", "null"):
            raise LabelError(f'label "{self.name}" is {self.type}, not a condition; compare it with a value')
        return self._always(False) if self._family == "null" else self._with_missing(self._each(np.asarray))

    def compare_column(self, operation: str, other: Column) -> Truth:
        """Evaluate `column <operation> other column`, unknown if one of them has no value."""
        if "null" in (self._family, other._family):
            unknown = np.ones(self._labels.num_rows, np.bool_)
            return Truth(~unknown, unknown)
        kinds = {_KINDS.get(one, one) for one in (self._family, other._family)}
        if len(kinds) > 1 or "list" in kinds:
            raise LabelError(
                f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}; only columns of one '
                f"kind can be compared; give a function: filter(lambda table: ...)"
            )
        self._check_order(operation)
        try:
            found = one_chunk(getattr(pc, _OPERATIONS[operation][0])(self._arrow, other._arrow))
        except pa.ArrowInvalid as error:
            # pyarrow casts columns of two types to a third, if no value changes.
            raise LabelError(
                f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}, and no type holds '
                f"the values of both: {error}; give a function: filter(lambda table: ...)"
            ) from None
        mask, missing = stored_values(found), missing_rows(found)
        return Truth(mask & ~missing, mask | missing)

    @property
    def _is_text(self) -> bool:
        return self._family in ("text", "bytes")

    def _texts(self, values: list[Any]) -> pa.Array:
        # Not by pa.array, which imports pandas.
        small = pa.string() if self._family == "text" else pa.binary()
        return from_texts(values, small).cast(self.type)

    def _from_arrow(self, found: pa.ChunkedArray) -> Truth:
        """Convert pyarrow's result to a truth, unknown for a missing value."""
        return self._with_missing(stored_values(one_chunk(found)))

    def _with_missing(self, mask: Mask) -> Truth:
        """Make a mask a truth, unknown for a missing value."""
        missing = self._missing
        return Truth(mask, mask) if missing is None else Truth(mask & ~missing, mask | missing)

    def _always(self, truth: bool) -> Truth:
        """Return the same truth for all values, unknown for a missing one."""
        return self._with_missing(np.full(self._labels.num_rows, truth))

    def _check_order(self, operation: str) -> None:
        if operation not in ("==", "!=") and self._family == "bool":
            raise LabelError(f'label "{self.name}" is bool, which has no order; compare it with == or !=')

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
            place = _integer_place if self._family == "integer" else _float_place
            return place(value, self._numbers[0].dtype)
        if self._family in _TIMES:
            try:
                time = _attoseconds(value, self._family)
            except (OverflowError, _NotATime):
                return None
            if time is not None:
                tick = _UNITS[np.datetime_data(numpy_dtype(self.type))[0]]
                near = _integer_place(time // tick, np.dtype(np.int64))
                return _Place(near.below, is_equal=near.is_equal and time % tick == 0)
        if isinstance(value, _EXPECTED.get(self._family, ())):
            is_valid = not isinstance(value, str) or value.encode(errors="ignore").decode() == value
            return _Place(value, is_equal=True) if is_valid else None
        raise LabelError(
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


@cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _integer_place(value: float, dtype: np.dtype[Any]) -> _Place:
    """Find a number among the integers of a dtype."""
    least, most = _limits(dtype)
    if value < least:
        return _Place(None, is_equal=False)
    floor = most if value > most else math.floor(value)
    return _Place(floor, is_equal=floor == value)


def _float_place(value: float, dtype: np.dtype[Any]) -> _Place:
    try:
        wide = float(value)
    except OverflowError:
        wide = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        below = dtype.type(wide)
        if isinstance(value, float) and np.isfinite(below):  # rounded
            return _Place(float(below) + 0.0, is_equal=True)  # -0.0 becomes 0.0
        if float(below) > value:
            below = np.nextafter(below, dtype.type(-np.inf))
    return _Place(float(below) + 0.0, is_equal=float(below) == value)


def _mark_among(numbers: npt.NDArray[Any], wanted: list[Any]) -> Mask:
    """Mark the rows whose number is in `wanted`, whose numbers fit the column's dtype."""
    if len(wanted) <= _FEW:
        return reduce(or_, [numbers == number for number in wanted])
    if numbers.dtype.kind in "iu" and max(wanted) - min(wanted) < _WIDE:
        return _mark_by_table(numbers, np.array(wanted, numbers.dtype))
    if numbers.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # a signalling nan
            numbers = numbers.astype(np.float64) + 0.0  # is_in compares bits, and -0.0 becomes 0.0
    kind = pa.from_numpy_dtype(numbers.dtype)
    values = from_numpy(np.array(wanted, numbers.dtype), kind)
    return stored_values(pc.is_in(from_numpy(numbers, kind), value_set=values))


def _mark_by_table(numbers: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Mask:
    """Mark the rows whose integer is in `wanted`, by a table; np.isin takes twice as long."""
    # Unsigned, so that a number below the least wraps to one above the greatest.
    unsigned = np.dtype(f"u{numbers.dtype.itemsize}")
    least = wanted.min().view(unsigned)
    entries = wanted.view(unsigned) - least
    span = int(entries.max()) + 1
    table = np.zeros(span + 1, np.bool_)
    table[entries] = True
    most = unsigned.type(min(span, np.iinfo(unsigned).max))
    mask: Mask = table[np.minimum(numbers.view(unsigned) - least, most).astype(np.intp)]
    return mask


def _mark_on_step(values: npt.NDArray[Any], wanted: range) -> npt.NDArray[np.bool_]:
    """Mark the values in `wanted`; there is one or more, all between its first and its last."""
    is_whole = values == np.floor(values) if values.dtype.kind == "f" else np.ones(len(values), np.bool_)
    if wanted.step >= 2**63 or values.min().item() < -(2**63) or values.max().item() >= 2**63:
        pairs = zip(values.tolist(), is_whole.tolist(), strict=True)
        return np.array([whole and int(value) in wanted for value, whole in pairs])
    is_on: npt.NDArray[np.bool_] = values.astype(np.int64) % wanted.step == wanted[0] % wanted.step
    return is_on & is_whole


# ---- times and durations as attoseconds since 1970: exact for all units of numpy

_UNITS: dict[str, int] = {
    **{unit: 1000**i for i, unit in enumerate(("as", "fs", "ps", "ns", "us", "ms", "s"))},
    **{unit: n * 10**18 for unit, n in (("m", 60), ("h", 3600), ("D", 86_400), ("W", 604_800))},
}
_ISO = re.compile(
    r"(?P<seconds>\d{4}-\d\d(-\d\d)?([T ]\d\d(:\d\d(:\d\d)?)?)?)"
    r"(?P<fraction>(?<=:\d\d:\d\d)\.\d{1,18})?(?P<zone>(?<=.{13})(Z|[+-]([01]\d|2[0-3]):?[0-5]\d))?",
    re.ASCII,
)
# More years or months than a column can have, which numpy still converts to days.
_FAR = 10**15


class _NotATime(Exception):
    """Error for NaT, which equals nothing."""


def _attoseconds(value: Any, family: str) -> int | None:
    """Convert a value to attoseconds; None if it is no time of the column's kind. Raises _NotATime, OverflowError."""
    if isinstance(value, str):
        return None if family == "duration" else _parse(value, family)
    time, zone = numpy_time(value)
    # A column without a zone has no instants to compare with.
    if time is None or (time.dtype.kind == "m") != (family == "duration") or (zone and family != "UTC time"):
        return None
    return _count_attoseconds(time)


def _parse(text: str, family: str) -> int | None:
    # Not by numpy or Python alone, which lose or wrap digits beyond their types.
    parts = _ISO.fullmatch(text)
    if parts is None or (parts["zone"] and family != "UTC time"):
        return None
    try:
        whole = _count_attoseconds(np.datetime64(parts["seconds"]))
    except ValueError:
        return None
    zone = parts["zone"] or "Z"
    minutes = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 60 + int(zone[-2:]))
    fraction = int((parts["fraction"] or ".")[1:].ljust(18, "0"))
    return None if whole is None else whole + fraction - minutes * _UNITS["m"]


def _count_attoseconds(value: Any) -> int | None:
    """Convert a numpy time to attoseconds; None if its unit has no fixed length."""
    if np.isnat(value):
        raise _NotATime
    unit, step = np.datetime_data(value.dtype)
    count = int(value.astype("i8")) * step
    if unit in ("Y", "M") and value.dtype.kind == "M":
        near = np.int64(max(-_FAR, min(count, _FAR))).astype(f"M8[{unit}]")
        unit, count = "D", int(near.astype("M8[D]").astype("i8"))
    return count * _UNITS[unit] if unit in _UNITS else None
