"""The labels of samples as columns: taken out of one sample after another, a table per chunk."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from edcache import format
from edcache.base import LabelTypeError, described, shown
from edcache.format import EXACT, ColumnType, deciding_numbers, detached, no_type, pa
from edcache.labels.label_spec import LabelSource, LabelSpec, value_of

_PIECE = 1 << 20
_KINDS = "a bool, int, float, str, bytes, date or time, None, or a list of one of these"
_FLOATS = (float, np.float16, np.float32, np.float64)
_INTEGERS = tuple(np.dtype(code).type for code in np.typecodes["AllInteger"])
# No value of these classes can change a column's type, but for a str that is not UTF-8.
_SETTLED = frozenset({bool, bytes, np.bool_, *_FLOATS})
_COUNTED = frozenset({int, *_INTEGERS, str})


class LabelCollector:
    """Gathers the labels of samples, one after another, into a table per chunk.

    Types are checked against every sample seen here, and against `seen`, those of the archive: the first
    sample that does not fit is named. A chunk's table has types of its own; `unify` joins them.
    """

    def __init__(self, spec: LabelSpec, seen: format.LabelTypes | None = None) -> None:
        self.spec = spec
        types = seen.types if seen is not None else {}
        self._columns = [_Column(n, source, types.get(n, no_type())) for n, source in spec.sources.items()]
        self._rows = 0

    def __len__(self) -> int:
        """Samples added so far."""
        return self._rows

    def add(self, index: int, sample: Any) -> None:
        """Keep the labels of one sample: LabelError or LabelTypeError names it, and all is as before."""
        if self._columns:
            self.add_values(index, self.spec.extract(index, sample))
        else:
            self._rows += 1

    def add_values(self, index: int, values: Sequence[Any]) -> None:
        """The same of the values of its labels, one for each."""
        try:
            for column, value in zip(self._columns, values, strict=True):
                column.add(index, value)
        except BaseException:  # an interrupt too leaves no column longer than another
            self.truncate(self._rows)
            raise
        self._rows += 1

    def add_columns(self, index: int, columns: Any, count: int, sample: Callable[[int], Any]) -> None:
        """Keep the labels of `count` samples given as a tree of columns, as `add` of each would.

        sample: makes one of them, for the columns that are functions.
        """
        try:
            for column in self._columns:
                label = column._name, column._source
                is_function = callable(column._source)
                values = None if is_function else value_of(*label, index, columns)
                # A tree of columns is no column of trees.
                if is_function or isinstance(values, (dict, tuple)):
                    values = [value_of(*label, index + k, sample(k)) for k in range(count)]
                column.add_all(index, values, count)
        except BaseException:  # as in `add_values`
            self.truncate(self._rows)
            raise
        self._rows += count

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` samples; at most what was added last may go."""
        self._rows = rows
        for column in self._columns:
            column.truncate(rows)

    def table(self) -> pa.Table:
        """The samples added so far, row i = i-th of them."""
        return pa.table([column.array() for column in self._columns], names=list(self.spec.names))

    def successor(self) -> LabelCollector:
        """An empty collector for the next chunk, which knows the types of all samples seen here."""
        following = LabelCollector(self.spec)
        following._columns = [_Column(c._name, c._source, c._seen) for c in self._columns]
        return following


class _Column:
    """The values of one label in the chunk at hand."""

    def __init__(self, name: str, source: LabelSource, seen: ColumnType) -> None:
        self._name = name
        self._source = source
        self._seen = seen
        self._chunk = no_type()
        # Whole columns, and lists of values between them; of so many rows together. Behind them the values.
        self._parts: list[Any] = []
        self._rows = 0
        self._values: list[Any] = []
        self._class: type | None = None  # the class whose next value needs no look at the types
        self._low = 0
        self._undo = (0, self._seen, self._chunk)

    def add(self, index: int, value: Any) -> None:
        cls = type(value)
        if value is None or (
            cls is self._class
            and (cls in _SETTLED or (value.isascii() if cls is str else self._low <= value <= EXACT))
        ):
            self._values.append(value)
            return
        try:
            cell = _cell(value)
            seen, chunk = (of.with_values(cell.type, cell.numbers) for of in (self._seen, self._chunk))
        except _NotALabel as problem:
            what = f"{str(problem) or described(value)}; a label is {_KINDS}"
            raise self._error(index, what, "convert it") from None
        except format.Clash as clash:
            what = f"{described(value)}, earlier samples are {self._seen.arrow}{clash}"
            raise self._error(index, what, "make it one type") from None
        self._undo = (self._rows + len(self._values), self._seen, self._chunk)
        self._seen, self._chunk = seen, chunk
        self._values.append(cell.value)
        self._low = -EXACT if seen.negative and chunk.negative else 0
        self._class = cls if cls in _SETTLED or cls in _COUNTED else None

    def add_all(self, index: int, values: Any, count: int) -> None:
        """Add the values of `count` samples: an array of numbers at once, if it goes with the others."""
        undo = (self._rows + len(self._values), self._seen, self._chunk)
        try:
            if not self._add_array(_whole(values)):
                for row in range(count):
                    self.add(index + row, None if values is None else values[row])
        finally:
            self._undo = undo

    def _add_array(self, array: Any) -> bool:
        if array is None:
            return False
        kind, numbers = _numpy_types()[array.dtype.type], deciding_numbers(array)
        try:
            seen, chunk = (of.with_values(kind, numbers) for of in (self._seen, self._chunk))
        except format.Clash:
            return False  # one by one, which names the sample
        rows = self._rows + len(self._values) + len(array)
        self._seen, self._chunk, self._class = seen, chunk, None
        # One assignment, so that an interrupt finds all of it or nothing.
        self._parts, self._rows, self._values = [*self._parts, self._values, array], rows, []
        return True

    def truncate(self, rows: int) -> None:
        if self._rows + len(self._values) > rows:
            del self._values[max(0, rows - self._rows) :]
            while self._rows > rows:
                self._rows -= len(self._parts.pop())
            if self._undo[0] == rows:
                _, self._seen, self._chunk = self._undo
                self._class = None

    def array(self) -> pa.Array:
        kind = self._chunk.arrow
        parts = [_build(part, kind) for part in (*self._parts, self._values) if len(part)]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [_build([], kind)])

    def _error(self, index: int, what: str, verb: str) -> LabelTypeError:
        remedy = f"{verb} in the callable or the dataset"
        if isinstance(self._source, (str, int)):
            key = f'"{self._source}"' if isinstance(self._source, str) else str(self._source)
            remedy = f'{verb}, for example in_memory_keys={{"{self._name}": lambda s: str(s[{key}])}}'
        return LabelTypeError(f'label "{self._name}": sample {index} is {what}; {remedy}')


def _build(values: Any, kind: pa.DataType) -> pa.Array:
    """One Arrow array of the values, which are known to fit `kind`; no validity bitmap without a None."""
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if isinstance(values, np.ndarray):
        return format.from_numpy(values.astype(format.numpy_dtype(kind)), kind)
    if format.is_text(kind):
        return format.from_texts(values, kind)
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    if format.is_list(kind):
        present = [value for value in values if value is not None]
        if present and all(isinstance(value, np.ndarray) for value in present):
            dtype = format.numpy_dtype(kind.value_type)
            items = format.from_numpy(np.concatenate(present, dtype=dtype, casting="unsafe"), kind.value_type)
        else:
            items = _build([item for value in present for item in value], kind.value_type)
        ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int32)
        return pa.ListArray.from_arrays(format.from_numpy(ends, pa.int32(), np.append(missing, False)), items)
    dtype = format.numpy_dtype(kind)
    if missing.any():
        filler = np.zeros((), dtype)[()]
        values = [filler if value is None else value for value in values]
    array = np.array(values, dtype=dtype)
    if dtype.kind in "mM":
        array = array.view(np.int64).astype(np.int32 if pa.types.is_date32(kind) else np.int64)
    return format.from_numpy(array, kind, missing)


def collected(name: str, values: Iterable[tuple[int, Any]]) -> pa.Array:
    """One column of (index, value), as `collected_columns` makes several."""
    return collected_columns([name], ((index, [value]) for index, value in values)).column(0).chunk(0)


def collected_columns(names: Sequence[str], rows: Iterable[tuple[int, Sequence[Any]]]) -> pa.Table:
    """Columns of (index, values), by the rules of `LabelCollector`; at most a million of each are objects."""
    collector, tables = LabelCollector(LabelSpec({name: lambda sample: None for name in names})), []
    for index, values in rows:
        collector.add_values(index, values)
        if len(collector) == _PIECE:
            tables.append(collector.table())
            collector = collector.successor()
    return format.unify([*tables, collector.table()], "")


# ---- one value, as its column keeps it


class _Cell(NamedTuple):
    """A value, and the ints that decide about a wider type: all, or least, greatest, first inexact."""

    type: pa.DataType
    value: Any
    numbers: Sequence[int] = ()


class _NotALabel(Exception):
    """A value that no column holds; the text says why, where the type alone does not."""


def _cell(value: Any) -> _Cell:
    """The value of one sample: a scalar, or a flat list of scalars."""
    value = _from_tensor(value)
    if isinstance(value, np.ma.MaskedArray):
        raise _NotALabel
    if isinstance(value, (list, tuple)):
        return _list_cell([_scalar_cell(_from_tensor(item)) for item in value])
    if not isinstance(value, np.ndarray) or value.ndim == 0:
        return _scalar_cell(value)
    if value.ndim > 1:
        raise _NotALabel
    kind = _numpy_types().get(value.dtype.type)
    if kind is None:
        return _list_cell([_scalar_cell(item) for item in value])
    # A copy: the caller may fill the same buffer again for the next sample.
    own = np.array(value, dtype=value.dtype.newbyteorder("="))
    return _Cell(pa.list_(kind), own, deciding_numbers(own))


@cache
def _numpy_types() -> dict[type, pa.DataType]:
    scalars = (np.bool_, *_INTEGERS, *_FLOATS[1:])
    return {scalar: pa.from_numpy_dtype(np.dtype(scalar)) for scalar in scalars}


def _whole(values: Any) -> Any:
    """A copy of a column of numbers or bools [n] as a native array; None for any other column."""
    try:
        values = _from_tensor(values)
    except _NotALabel:
        return None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.type not in _numpy_types():
        return None
    return np.array(values, dtype=values.dtype.newbyteorder("="))


def _from_tensor(value: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    try:
        return detached(value)
    except (TypeError, RuntimeError):
        raise _NotALabel from None


def _list_cell(items: list[_Cell]) -> _Cell:
    inner = no_type()
    try:
        for item in items:
            inner = inner.with_values(item.type, item.numbers)
    except format.Clash as clash:
        kinds = " and ".join(dict.fromkeys(str(item.type) for item in items))
        raise _NotALabel(f"a list of mixed types ({kinds}{clash})") from None
    numbers = [number for item in items for number in item.numbers]
    return _Cell(pa.list_(inner.arrow), [item.value for item in items], numbers)


def _scalar_cell(value: Any) -> _Cell:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if value is None:
        return _Cell(pa.null(), None)
    known = _numpy_types().get(type(value))
    if known is not None:
        item = value.item()
        return _Cell(known, item, (item,) if pa.types.is_integer(known) else ())
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**64:
            raise _NotALabel(f"an int of {value.bit_length()} bits, which neither int64 nor uint64 holds")
        return _Cell(pa.int64() if value < 2**63 else pa.uint64(), int(value), (int(value),))
    plain: dict[Any, pa.DataType] = {bool: pa.bool_(), float: pa.float64(), bytes: pa.binary()}
    for cls, kind in plain.items():
        if isinstance(value, cls):
            return _Cell(kind, cls(value))
    if not isinstance(value, str):
        return _time_cell(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _NotALabel(f"a str that is not UTF-8 ({shown(value)})") from None
    return _Cell(pa.string(), str.__str__(value))


def _time_cell(value: Any) -> _Cell:
    """A date, a time or a duration, as numpy's scalar of the unit that its column has."""
    time, zone = _numpy_time(value)
    code, unit = time.dtype.kind, np.datetime_data(time.dtype)[0]
    if unit == "generic" and np.isnat(time):
        return _Cell(pa.null(), None)
    if code == "m" and unit in ("generic", "Y", "M"):
        raise _NotALabel(f"a timedelta64 without a fixed length (unit {unit})")
    if unit in ("ps", "fs", "as"):
        raise _NotALabel(f"a time in {unit}, finer than the ns that Arrow has")
    if code == "M" and unit in ("Y", "M", "W", "D"):
        kind, unit = pa.date32(), "D"
    else:
        unit = unit if unit in ("s", "ms", "us", "ns") else "s"
        kind = pa.duration(unit) if code == "m" else pa.timestamp(unit, zone)
    ticks = time.astype(f"{code}8[{unit}]")
    if np.isnat(ticks):
        return _Cell(kind, None)
    if unit == "D" and not -(2**31) <= int(ticks.astype("i8")) < 2**31:
        raise _NotALabel("a date outside the years that 32-bit days reach")
    return _Cell(kind, ticks)


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
            raise _NotALabel("a datetime outside the years 1 to 9999 in UTC") from None
        return np.datetime64(utc, "us"), zone
    if isinstance(value, dt.date):
        return np.datetime64(value, "D"), None
    if not isinstance(value, dt.timedelta):
        raise _NotALabel
    micros = value // dt.timedelta(microseconds=1)
    if not -(2**63) <= micros < 2**63:
        raise _NotALabel("a timedelta longer than 64-bit microseconds reach")
    return np.timedelta64(micros, "us"), None
