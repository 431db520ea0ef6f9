"""The labels of samples as columns: taken out of one sample after another, a table per chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from edcache import format
from edcache.base import LabelError, described
from edcache.format import EXACT, ColumnType, deciding_numbers, no_type, number_type, pa
from edcache.labels.label_spec import LabelSource, LabelSpec, value_of
from edcache.labels.label_types import NotALabel, typed, whole_numbers

_PIECE = 1 << 20
_KINDS = "a bool, int, float, str, bytes, date or time, None, or a list of one of these"
_FLOATS = (np.float16, np.float32, np.float64)
_INTEGERS = tuple(np.dtype(code).type for code in np.typecodes["AllInteger"])
# Once there is one, no other value of these classes changes a column's type; of the second if it is ASCII, or
# an integer that every type of numbers holds.
_SETTLED = frozenset({bool, float, bytes, np.bool_, *_FLOATS})
_COUNTED = frozenset({str, int, *_INTEGERS})


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
        """Keep the labels of one sample: LabelError names it, and all is as before."""
        if self._columns:
            self.add_values(index, self.spec.extract(index, sample))
        else:
            self._rows += 1

    def add_values(self, index: int, values: Sequence[Any]) -> None:
        """Keep the values of a sample's labels, one for each column; raises as `add`."""
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
                label = column.name, column.source
                is_function = callable(column.source)
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
        following._columns = [_Column(c.name, c.source, c.joined_type()) for c in self._columns]
        return following


class _Column:
    """The values of one label in the chunk at hand. before: the type of those in chunks before it."""

    def __init__(self, name: str, source: LabelSource, before: ColumnType) -> None:
        self.name = name
        self.source = source
        self._before = before
        self._type = no_type()
        # Whole columns, and lists of values between them; of so many rows together. Behind them the values.
        self._parts: list[Any] = []
        self._rows = 0
        self._values: list[Any] = []
        # Classes of the values so far, and the least integer that needs no wider type.
        self._classes: frozenset[type] = frozenset()
        self._least = 0
        self._undo = (0, self._type)

    def joined_type(self) -> ColumnType:
        """The type of all values so far."""
        return self._before.joined(self._type)

    def add(self, index: int, value: Any) -> None:
        """Append a value, and copy it if it can change; LabelError names the sample."""
        cls = type(value)
        if value is None or (
            cls in self._classes
            and (cls in _SETTLED or (value.isascii() if cls is str else self._least <= value <= EXACT))
        ):
            self._values.append(value)
            return
        try:
            own, value = typed(value)
            self._widen(own)
        except NotALabel as problem:
            what = f"{str(problem) or described(value)}; a label is {_KINDS}"
            raise self._error(index, what, "convert it") from None
        except format.Clash as clash:
            what = f"{described(value)}, earlier samples are {self.joined_type().arrow}{clash}"
            raise self._error(index, what, "make it one type") from None
        self._values.append(value)
        if cls in _SETTLED or cls in _COUNTED:
            self._classes |= {cls}
            self._least = -EXACT if self._type.negative else 0

    def add_all(self, index: int, values: Any, count: int) -> None:
        """Append the values of `count` samples: an array of numbers at once, if it goes with the others."""
        undo = (self._rows + len(self._values), self._type)
        try:
            if not self._add_array(whole_numbers(values)):
                for row in range(count):
                    self.add(index + row, None if values is None else values[row])
        finally:
            self._undo = undo

    def _add_array(self, array: Any) -> bool:
        if array is None:
            return False
        try:
            self._widen(ColumnType.of(number_type(array.dtype), deciding_numbers(array)))
        except format.Clash:
            return False  # one by one, which names the sample
        rows = self._rows + len(self._values) + len(array)
        # One assignment, so that an interrupt finds all of it or nothing.
        self._parts, self._rows, self._values = [*self._parts, self._values, array], rows, []
        return True

    def _widen(self, own: ColumnType) -> None:
        """Let the type hold the values of another one; Clash if there is none, or not with those before."""
        wider = self._type.joined(own)
        self._before.joined(wider)
        self._undo, self._type = (self._rows + len(self._values), self._type), wider

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` values; at most what was added last may go."""
        if self._rows + len(self._values) > rows:
            del self._values[max(0, rows - self._rows) :]
            while self._rows > rows:
                self._rows -= len(self._parts.pop())
            if self._undo[0] == rows:
                self._type, self._classes = self._undo[1], frozenset()

    def array(self) -> pa.Array:
        """The values as one array of their type."""
        kind = self._type.arrow
        parts = [_build(part, kind) for part in (*self._parts, self._values) if len(part)]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [_build([], kind)])

    def _error(self, index: int, what: str, verb: str) -> LabelError:
        remedy = f"{verb} in the callable or the dataset"
        if isinstance(self.source, (str, int)):
            key = f'"{self.source}"' if isinstance(self.source, str) else str(self.source)
            remedy = f'{verb}, for example in_memory_keys={{"{self.name}": lambda s: str(s[{key}])}}'
        return LabelError(f'label "{self.name}": sample {index} is {what}; {remedy}', index=index)


def _build(values: Any, kind: pa.DataType) -> pa.Array:
    """One Arrow array of the values, which are known to fit `kind`; no validity bitmap without a None."""
    # Not by pa.array, which imports pandas: 0.3 s and 57 MB in every process that writes.
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
            items = _build(np.concatenate(present), kind.value_type)
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
