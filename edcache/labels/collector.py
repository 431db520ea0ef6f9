"""Collect labels from one sample after another into columns, a table per chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from edcache import format
from edcache.base import Ints, LabelError, described
from edcache.format import EXACT, is_widened, merged, pa
from edcache.labels.label_spec import LabelSource, LabelSpec, OfIndex, value_of
from edcache.labels.label_types import NotALabel, array_of, beyond_exact, typed, typed_column

_PIECE = 1 << 20
_NONE = np.empty(0, np.int64)
_KINDS = "a bool, int, float, str, bytes, date or time, None, or a list of one of these"
_FLOATS = (np.float16, np.float32, np.float64)
_INTEGERS = tuple(np.dtype(code).type for code in np.typecodes["AllInteger"])
# After a first value of such a class, another one changes no type of a column.
_PLAIN = frozenset({bool, float, bytes, np.bool_, *_FLOATS})
# Nor does an ASCII str, or an integer that float64 holds, of these classes.
_CHECKED = frozenset({str, int, *_INTEGERS})


class LabelCollector:
    """Collector of the labels of samples, one after another, into a table per chunk.

    The error for a value that does not fit the columns so far, or `seen`, the columns of the archive, names its sample.
    The types of a chunk's table hold the values of all earlier chunks too. Labels that the index tells are no work of a
    sample: the table takes them from their arrays.
    """

    def __init__(
        self, spec: LabelSpec, seen: pa.Schema | None = None, *, columns: Sequence[_Column] = ()
    ) -> None:
        self.spec = spec
        types = {} if seen is None else dict(zip(seen.names, seen.types, strict=True))
        self._columns = columns or [
            _Column(name, source, types.get(name, pa.null())) for name, source in spec.sources.items()
        ]
        self._of_sample, own = list[_Column](), dict[str, LabelSource]()
        for column in self._columns:
            if not isinstance(column.source, OfIndex):
                self._of_sample.append(column)
                own[column.name] = column.source
        self._own = LabelSpec(own)
        self._rows = 0

    def __len__(self) -> int:
        """Return the number of samples added so far."""
        return self._rows

    def add(self, index: int, sample: Any) -> None:
        """Append the labels of one sample; LabelError names it, and changes nothing."""
        if self._of_sample:
            self.add_values(index, self._own.extract(index, sample))
        else:
            self._rows += 1

    def add_values(self, index: int, values: Sequence[Any]) -> None:
        """Append the values of a sample, one for each column that its index does not tell; raises as `add`."""
        rows = self._rows
        try:
            for column, value in zip(self._of_sample, values, strict=True):
                column.add(index, value)
            self._rows += 1
        finally:
            if self._rows == rows:  # an interrupt too leaves no column longer than another
                self.truncate(rows)

    def add_columns(self, indices: Sequence[int], columns: Any, sample: Callable[[int], Any]) -> None:
        """Append the labels of samples given as a tree of columns, as `add` of each would.

        sample: makes the k-th of them, for columns that are functions.
        """
        rows, count = self._rows, len(indices)
        try:
            for column in self._of_sample:
                label, source = (column.name, column.source), column.source
                values = None if callable(source) else value_of(*label, indices[0], columns)
                # A tree of columns is no column of trees.
                if callable(source) or isinstance(values, (dict, tuple)):
                    values = [value_of(*label, index, sample(k)) for k, index in enumerate(indices)]
                column.add_all(indices, values)
            self._rows += count
        finally:
            if self._rows == rows:  # as in `add_values`
                self.truncate(rows)

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` samples; at most the last addition may go."""
        self._rows = rows
        for column in self._of_sample:
            column.truncate(rows)

    def table(self, samples: Ints = _NONE) -> pa.Table:
        """Make the table of the samples added so far, row i = i-th of them.

        samples: their indices, int64 [n], if the index tells a label.
        """
        for column in self._columns:
            if isinstance(column.source, OfIndex):
                column.truncate(0)  # of an interrupted call
                column.add_all(samples.tolist(), column.source.of(samples))
        return pa.table([column.array() for column in self._columns], names=list(self.spec.names))

    def successor(self) -> LabelCollector:
        """Make an empty collector for the next chunk, which knows the types of all samples here."""
        return LabelCollector(self.spec, columns=[column.successor() for column in self._columns])


class _Column:
    """Values of one label in the current chunk.

    kind: type of all earlier values. inexact: an integer among these that float64 may not hold.
    """

    def __init__(self, name: str, source: LabelSource, kind: pa.DataType, inexact: int | None = None) -> None:
        self.name = name
        self.source = source
        # Whole columns and lists of values, `_rows` together; then the values behind them.
        self._parts: list[Any] = []
        self._rows = 0
        self._values: list[Any] = []
        # (rows before it, type, inexact integer) of each change of the type; the last one holds now.
        self._types: list[tuple[int, pa.DataType, int | None]] = [(0, kind, inexact)]
        self._classes: frozenset[type] = frozenset()  # of the values so far

    def successor(self) -> _Column:
        """Make an empty column for the next chunk."""
        return _Column(self.name, self.source, *self._types[-1][1:])

    def add(self, index: int, value: Any) -> None:
        """Append a value, and copy it if it can change; LabelError names the sample."""
        cls = type(value)
        if value is None or (
            cls in self._classes
            and (cls in _PLAIN or (value.isascii() if cls is str else -EXACT <= value <= EXACT))
        ):
            self._values.append(value)
            return
        try:
            kind, value = typed(value)
        except NotALabel as problem:
            what = f"{str(problem) or described(value)}; a label is {_KINDS}"
            raise self._error(index, what, "convert it") from None
        clash = self._widen(kind, beyond_exact(value))
        if clash is not None:
            what = f"{described(value)}, earlier samples are {self._types[-1][1]}{clash}"
            raise self._error(index, what, "make it one type")
        self._values.append(value)
        if cls in _PLAIN or cls in _CHECKED:
            self._classes |= {cls}

    def add_all(self, indices: Sequence[int], values: Any) -> None:
        """Append the values of samples: numbers and texts at once, if they go with the others."""
        column = typed_column(values)
        # Else one by one, so that the error names the sample.
        if column is None or self._widen(column[0], beyond_exact(column[1])) is not None:
            for row, index in enumerate(indices):
                self.add(index, None if values is None else values[row])
            return
        rows = self._rows + len(self._values) + len(indices)
        # One assignment, so that an interrupt keeps all of it or nothing.
        self._parts, self._rows, self._values = [*self._parts, self._values, column[1]], rows, []

    def _widen(self, kind: pa.DataType, inexact: int | None) -> str | None:
        """Widen the type to hold another one; if none does, return the reason, or ""."""
        _, known, before = self._types[-1]
        wider, inexact = merged(known, kind), before if inexact is None else inexact
        if wider is None:
            return ""
        if inexact is not None and (is_widened(known, wider) or is_widened(kind, wider)):
            return f", and float64 does not hold {inexact} exactly"
        if (wider, inexact) != (known, before):
            self._types.append((self._rows + len(self._values), wider, inexact))
        return None

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` values; at most the columns that were added last may go."""
        if self._rows + len(self._values) > rows:
            del self._values[max(0, rows - self._rows) :]
            while self._rows > rows:
                self._rows -= len(self._parts.pop())
        while len(self._types) > 1 and self._types[-1][0] >= rows:
            self._types.pop()
            self._classes = frozenset()

    def array(self) -> pa.Array:
        """Build one array of the values."""
        kind = self._types[-1][1]
        parts = [array_of(part, kind) for part in (*self._parts, self._values) if len(part)]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [array_of([], kind)])

    def _error(self, index: int, what: str, verb: str) -> LabelError:
        remedy = f"{verb} in the callable or the dataset"
        if isinstance(self.source, (str, int)):
            key = f'"{self.source}"' if isinstance(self.source, str) else str(self.source)
            remedy = f'{verb}, for example in_memory_keys={{"{self.name}": lambda s: str(s[{key}])}}'
        return LabelError(f'label "{self.name}": sample {index} is {what}; {remedy}', index=index)


def collected(name: str, values: Iterable[tuple[int, Any]]) -> pa.Array:
    """Collect a column from (index, value), as `collected_columns` does several."""
    return collected_columns([name], ((index, [value]) for index, value in values)).column(0).chunk(0)


def collected_columns(names: Sequence[str], rows: Iterable[tuple[int, Sequence[Any]]]) -> pa.Table:
    """Collect columns from (index, values), by `LabelCollector`; at most a million rows at once are objects."""
    collector, tables = LabelCollector(LabelSpec({name: lambda sample: None for name in names})), []
    for index, values in rows:
        collector.add_values(index, values)
        if len(collector) == _PIECE:
            tables.append(collector.table())
            collector = collector.successor()
    return format.unify([*tables, collector.table()], "")
