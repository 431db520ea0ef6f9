"""Comparisons of a label column with values and with another column, by the kernels of pyarrow.

They are exact for all types: 2.5 lies between 2 and 3, 10**30 above all integers, 2**53 + 1 between two values of a
float64 column. Only a float is rounded to the precision of a float column, so that 0.1 finds 0.1 in float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edcache.base import LabelError, described
from edcache.format import (
    detached,
    family,
    from_numpy,
    missing_rows,
    numpy_dtype,
    pa,
    pc,
    stored_values,
    widened_float16,
)
from edcache.labels.label_types import NotALabel, OutOfRange, array_of, typed
from edcache.labels.labels import Labels

Truth: TypeAlias = "pa.ChunkedArray"
"""Truth of each row: true, false, or null if it is unknown."""
Mask: TypeAlias = "npt.NDArray[np.bool_]"

_OPERATIONS = {
    "==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal",
}  # fmt: skip
_FEW = 8  # values that are compared one after another
_KINDS = {"integer": "number", "float": "number"}
# Functions of pyarrow.compute, which is imported at its first use.
_SEARCHES = {"startswith": "starts_with", "contains": "match_substring"}
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


def kernel(name: str, *columns: Any) -> Truth:
    """Call a function of pyarrow.compute."""
    # Not by its module, which makes a Python function for each of 300 kernels: 20 ms.
    from pyarrow._compute import call_function

    return call_function(name, list(columns))


def both(one: Truth, other: Truth) -> Truth:
    """Return `one and other`."""
    return kernel("and_kleene", one, other)


def either(one: Truth, other: Truth) -> Truth:
    """Return `one or other`."""
    return kernel("or_kleene", one, other)


def opposite(truth: Truth) -> Truth:
    """Return `not truth`; unknown stays unknown."""
    return kernel("invert", truth)


def true_rows(truth: Truth) -> Mask:
    """Mark the rows that are true, neither false nor unknown."""
    masks = [
        stored_values(chunk) & ~missing_rows(chunk) if chunk.null_count else stored_values(chunk)
        for chunk in truth.chunks
    ]
    return masks[0] if len(masks) == 1 else np.concatenate([np.empty(0, np.bool_), *masks])


class ComparedColumn:
    """Left side of comparisons; each returns a `Truth`, unknown for a missing value.

    Attributes: column, type, family: the values, none of them of float16, the type in the archive, and its kind.
    Raises UnknownLabelError; its methods raise LabelError for a value that this column does not compare with.
    """

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.column = labels.column(name)
        self.type: pa.DataType = self.column.type
        self.family = family(self.type)
        self.texts: list[list[str]] = []  # that == and `in` looked for
        if pa.types.is_float16(self.type):  # Older pyarrow compares no float16.
            self.column = pa.chunked_array(map(widened_float16, self.column.chunks), pa.float32())

    def unique(self) -> list[Any]:
        """List the distinct values, in the order of the rows."""
        return self.column.unique().drop_null().to_pylist()  # type: ignore[no-any-return]

    def compare(self, operation: str, value: object) -> Truth:
        """Evaluate `column <operation> value`."""
        if value is None and operation in ("==", "!="):
            return kernel("is_null" if operation == "==" else "is_valid", self.column)
        if operation not in ("==", "!=") and self.family == "bool":
            raise self._no_order()
        if operation == "==" and self.family == "text" and isinstance(value, str):
            self.texts.append([value])
        near = self._nearest(value)
        if near is None or (not near[1] and operation in ("==", "!=")):
            return self._always(operation == "!=")
        below, is_equal = near
        if below is None:
            return self._always(operation in (">", ">="))
        if not is_equal:  # right above that value, below the next one
            operation = "<=" if operation in ("<", "<=") else ">"
        return kernel(_OPERATIONS[operation], self.column, array_of([below], self.column.type)[0])

    def one_of(self, values: Iterable[object]) -> Truth:
        """Evaluate `column in values`; None among the values finds missing ones."""
        values = detached(values)
        if isinstance(values, np.ndarray):
            values = values.reshape(-1) if values.dtype.kind in "mM" else values.reshape(-1).tolist()
        values = list(values)
        present = [value for value in values if value is not None]
        if self.family == "text":
            self.texts.append([value for value in present if isinstance(value, str)])
        wanted = self._convert(present)
        if len(wanted) <= _FEW:
            equal = (kernel("equal", self.column, one) for one in array_of(wanted, self.column.type))
            is_in = reduce(either, equal, self._always(False))
        else:
            if self.family == "float":  # is_in compares bits
                wanted += [-value for value in wanted if value == 0]
            is_in = pc.is_in(self.column, value_set=array_of(wanted, self.column.type))
            is_in = either(is_in, self._always(False))
        return is_in if len(present) == len(values) else either(is_in, self.compare("==", None))

    def in_range(self, wanted: range) -> Truth:
        """Evaluate `column in range`."""
        first, last = sorted((wanted[0], wanted[-1])) if wanted else (0, -1)
        between = both(self.compare(">=", first), self.compare("<=", last))
        if first >= last or (abs(wanted.step) == 1 and self.family == "integer"):
            return between
        mask = true_rows(between)
        rows = np.flatnonzero(mask)
        values = self.column.take(from_numpy(rows, pa.int64())).to_pylist()
        mask = np.zeros(len(mask), np.bool_)
        mask[rows] = [int(value) in wanted if value == value // 1 else False for value in values]
        return both(self._always(True), pa.chunked_array([from_numpy(mask, pa.bool_())]))

    def matches(self, function: str, pattern: str) -> Truth:
        """Evaluate `startswith(column, pattern)` or `contains(column, pattern)`."""
        if self.family == "null":
            return self._always(False)
        if self.family != "text":
            raise LabelError(
                f'label "{self.name}" is {self.type}; {function}() looks into text; {_REMEDIES[self.family]}'
            )
        return getattr(pc, _SEARCHES[function])(self.column, pattern=pattern)

    def truth(self) -> Truth:
        """Take a bool column as a condition of its own."""
        if self.family not in ("bool", "null"):
            raise LabelError(f'label "{self.name}" is {self.type}, not a condition; compare it with a value')
        return self.column.cast(pa.bool_())

    def compare_column(self, operation: str, other: ComparedColumn) -> Truth:
        """Evaluate `column <operation> other column`, unknown if one of them has no value."""
        if "null" in (self.family, other.family):
            return pa.chunked_array([pa.nulls(len(self.column), pa.bool_())])
        types = f'label "{self.name}" is {self.type} and "{other.name}" is {other.type}'
        kinds = {_KINDS.get(one, one) for one in (self.family, other.family)}
        if len(kinds) > 1 or "list" in kinds:
            raise LabelError(
                f"{types}; only columns of one kind can be compared; give a function: filter(lambda table: ...)"
            )
        if operation not in ("==", "!=") and self.family == "bool":
            raise self._no_order()
        try:
            return kernel(_OPERATIONS[operation], self.column, other.column)
        except pa.ArrowInvalid as error:
            # pyarrow casts columns of two types to a third, if no value changes.
            raise LabelError(
                f"{types}, and no type holds the values of both: {error}; give a function: "
                "filter(lambda table: ...)"
            ) from None

    def _always(self, truth: bool) -> Truth:
        """Return the same truth for all values, unknown for a missing one."""
        unknown = pa.nulls(1, pa.bool_())[0]
        is_known = kernel("is_valid", self.column)
        return kernel("if_else", is_known, from_numpy(np.array([truth]), pa.bool_())[0], unknown)

    def _no_order(self) -> LabelError:
        return LabelError(f'label "{self.name}" is bool, which has no order; compare it with == or !=')

    def _convert(self, values: list[Any]) -> list[Any]:
        """Convert values to the column's type; drop the values that no row can have."""
        if self.family == "integer" and set(map(type, values)) == {int}:
            limits = np.iinfo(numpy_dtype(self.type))
            return [value for value in values if limits.min <= value <= limits.max]
        return [near[0] for near in map(self._nearest, values) if near is not None and near[1]]

    def _nearest(self, value: Any) -> tuple[Any, bool] | None:
        """Find the greatest value of the column's type that is not above `value`, None if all are; True if equal.

        None for a value that is neither equal to one nor ordered among them, as nan.
        """
        own, plain = self.family, value
        if own == "null":
            return None
        if isinstance(value, str) and own in ("time", "UTC time"):
            plain = _parsed(value, own)
            of = "text" if plain is None else own
        else:
            try:
                kind, plain = typed(value)
            except OutOfRange as error:
                kind, plain = error.kind, value if isinstance(value, int) else None
            except NotALabel:
                raise self._refusal(value) from None
            of = family(kind)
        is_same = (
            of == own != "list" or {of, own} == {"integer", "float"} or (of, own) == ("time", "UTC time")
        )
        if not is_same and of != "null":
            raise self._refusal(value)
        if plain is None or plain != plain:
            return None
        if isinstance(plain, (np.datetime64, np.timedelta64)):
            plain = Fraction(int(plain.astype(np.int64))) / _PER_SECOND[np.datetime_data(plain.dtype)[0]]
        if isinstance(plain, Fraction):
            dtype = numpy_dtype(self.type)
            ticks = plain * _PER_SECOND[np.datetime_data(dtype)[0]]
            return _at_or_below(ticks, np.dtype(np.int32 if pa.types.is_date32(self.type) else np.int64))
        return _at_or_below(plain, numpy_dtype(self.type)) if own in ("integer", "float") else (plain, True)

    def _refusal(self, value: Any) -> LabelError:
        return LabelError(
            f'label "{self.name}" is {self.type}; {described(value)} cannot be compared with it; '
            f"{_REMEDIES[self.family]}"
        )


def _at_or_below(number: float | Fraction, dtype: np.dtype[Any]) -> tuple[Any, bool]:
    """Find the greatest value of a dtype that is not above a number, None if all are; True if they are equal."""
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        if number < limits.min:
            return None, False
        floor = int(limits.max) if number > limits.max else math.floor(number)
        return floor, floor == number
    try:
        wide = float(number)
    except OverflowError:
        wide = math.inf if number > 0 else -math.inf
    with np.errstate(over="ignore"):
        below = dtype.type(wide)
        if isinstance(number, float) and np.isfinite(below):  # rounded
            return float(below), True
        if float(below) > number:
            below = np.nextafter(below, dtype.type(-np.inf))
    return float(below), float(below) == number


# Ticks of a unit.
_PER_SECOND = {"D": Fraction(1, 86_400)} | {
    unit: Fraction(1000**i) for i, unit in enumerate(("s", "ms", "us", "ns"))
}
_ISO = re.compile(
    r"(?P<seconds>\d{4}-\d\d(-\d\d)?([T ]\d\d(:\d\d(:\d\d)?)?)?)"
    r"(?P<fraction>(?<=:\d\d:\d\d)\.\d{1,18})?(?P<zone>(?<=.{13})(Z|[+-]([01]\d|2[0-3]):?[0-5]\d))?",
    re.ASCII,
)


def _parsed(text: str, family: str) -> Fraction | None:
    """Convert ISO text to seconds since 1970; None for other text, or a zone that the column lacks."""
    # Not by numpy or Python alone, which lose or wrap digits beyond their types.
    parts = _ISO.fullmatch(text)
    if parts is None or (parts["zone"] and family != "UTC time"):
        return None
    try:
        seconds = int(np.datetime64(parts["seconds"], "s").astype(np.int64))
    except ValueError:
        return None
    zone = parts["zone"] or "Z"
    minutes = 0 if zone == "Z" else int(zone[0] + "1") * (int(zone[1:3]) * 60 + int(zone[-2:]))
    return seconds - 60 * minutes + Fraction(parts["fraction"] or 0)
