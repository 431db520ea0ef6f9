"""The labels of samples as columns.

LabelCollector   takes the labels out of one sample after another, and makes a table per chunk
collected        one column from single values, with the same rules
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from edcache.base import LabelTypeError, described
from edcache.format import (
    EXACT,
    Clash,
    ColumnType,
    LabelTypes,
    from_lists,
    from_numpy,
    from_texts,
    is_list,
    is_text,
    no_type,
    numpy_dtype,
    pa,
    unify,
)
from edcache.labels.spec import LabelSource, LabelSpec
from edcache.labels.values import INTEGERS, SETTLED, NotALabel, cell_of

_PIECE = 1 << 20
_KINDS = "a bool, int, float, str, bytes, date or time, None, or a list of one of these"


class LabelCollector:
    """Gathers the labels of samples, one after another, into a table per chunk.

    The types are checked against every sample that this collector has seen, and against `seen`, the types
    of the archive's labels, so that the first sample that does not fit is named. The table of a chunk gets
    its types from the values of that chunk alone, so that its columns do not depend on who wrote the chunks
    before it. `unify` joins them.
    """

    def __init__(self, spec: LabelSpec, seen: LabelTypes | None = None) -> None:
        self.spec = spec
        types = seen.types if seen is not None else {}
        self._columns = [
            _Column(name, spec.source_of(name), types.get(name, no_type())) for name in spec.names
        ]
        self._rows = 0

    def __len__(self) -> int:
        """Samples added so far."""
        return self._rows

    def add(self, index: int, sample: Any) -> None:
        """Keep the labels of one sample; after an error the collector is as it was before the call.

        Raises:
            LabelError: a field that the sample does not have.
            LabelTypeError: `label "y": sample 7 is a str ('cat'), earlier samples are int64; ...`.
        """
        self.add_values(index, self.spec.extract(index, sample))

    def add_values(self, index: int, values: Sequence[Any]) -> None:
        """The same of the values of its labels, one for each."""
        try:
            for column, value in zip(self._columns, values, strict=True):
                column.add(index, value)
        except BaseException:  # an interrupt too leaves no column longer than another
            self.truncate(self._rows)
            raise
        self._rows += 1

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` samples; at most the last one may go."""
        self._rows = rows
        for column in self._columns:
            column.truncate(rows)

    def table(self) -> pa.Table:
        """The samples added so far, row i = i-th of them."""
        return pa.table([column.array() for column in self._columns], names=list(self.spec.names))

    def successor(self) -> LabelCollector:
        """An empty collector for the next chunk, which knows the types of all samples seen here."""
        following = LabelCollector(self.spec)
        following._columns = [column.successor() for column in self._columns]
        return following


class _Column:
    """The values of one label in the chunk at hand."""

    __slots__ = ("_chunk", "_class", "_low", "_name", "_seen", "_source", "_undo", "_values")

    def __init__(self, name: str, source: LabelSource, seen: ColumnType) -> None:
        self._name = name
        self._source = source
        self._seen = seen
        self._chunk = no_type()
        self._values: list[Any] = []
        self._class: type | None = None  # the class whose next value needs no look at the types
        self._low = 0
        self._undo = (0, self._seen, self._chunk)

    def add(self, index: int, value: Any) -> None:
        cls = type(value)
        if value is None or (
            cls is self._class
            and (cls in SETTLED or (value.isascii() if cls is str else self._low <= value <= EXACT))
        ):
            self._values.append(value)
        else:
            self._add_checked(index, value)

    def _add_checked(self, index: int, value: Any) -> None:
        try:
            cell = cell_of(value)
            seen, chunk = (of.with_values(cell.type, cell.numbers) for of in (self._seen, self._chunk))
        except NotALabel as problem:
            what = f"{str(problem) or described(value)}; a label is {_KINDS}"
            raise self._error(index, what, "convert it") from None
        except Clash as clash:
            what = f"{described(value)}, earlier samples are {self._seen.arrow}{clash}"
            raise self._error(index, what, "make it one type") from None
        self._undo = (len(self._values), self._seen, self._chunk)
        self._seen, self._chunk = seen, chunk
        self._values.append(cell.value)
        self._low = -EXACT if seen.negative and chunk.negative else 0
        cls = type(value)
        self._class = cls if cls in SETTLED or cls in INTEGERS or cls is str else None

    def truncate(self, rows: int) -> None:
        if len(self._values) > rows:
            del self._values[rows:]
            if self._undo[0] == rows:
                _, self._seen, self._chunk = self._undo
                self._class = None

    def array(self) -> pa.Array:
        return _build(self._values, self._chunk.arrow)

    def successor(self) -> _Column:
        return _Column(self._name, self._source, self._seen)

    def _error(self, index: int, what: str, verb: str) -> LabelTypeError:
        remedy = f"{verb} in the callable or the dataset"
        if isinstance(self._source, (str, int)):
            key = f'"{self._source}"' if isinstance(self._source, str) else str(self._source)
            remedy = f'{verb}, for example in_memory_keys={{"{self._name}": lambda s: str(s[{key}])}}'
        return LabelTypeError(f'label "{self._name}": sample {index} is {what}; {remedy}')


def _build(values: list[Any], kind: pa.DataType) -> pa.Array:
    """One Arrow array of the values, which are known to fit `kind`; no validity bitmap without a None."""
    if pa.types.is_null(kind):
        return pa.nulls(len(values))
    if is_text(kind):
        return from_texts(values, kind)
    if not is_list(kind):
        return _build_numpy(values, kind)
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, np.ndarray) for value in present):
        element = kind.value_type
        items = from_numpy(np.concatenate(present, dtype=numpy_dtype(element), casting="unsafe"), element)
    else:
        items = _build([item for value in present for item in value], kind.value_type)
    return from_lists([None if value is None else len(value) for value in values], items)


def _build_numpy(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind):
        unit = "D" if pa.types.is_date32(kind) else kind.unit
        dtype = np.dtype(f"{'m8' if pa.types.is_duration(kind) else 'M8'}[{unit}]")
    else:
        dtype = numpy_dtype(kind)
    missing = None
    if any(value is None for value in values):
        missing = np.fromiter((value is None for value in values), np.bool_, len(values))
        filler = np.zeros((), dtype)[()]
        values = [filler if value is None else value for value in values]
    array = np.array(values, dtype=dtype)
    if dtype.kind in "mM":
        array = array.view(np.int64).astype(np.int32 if pa.types.is_date32(kind) else np.int64)
    return from_numpy(array, kind, missing)


def collected(name: str, values: Iterable[tuple[int, Any]]) -> pa.Array:
    """One column of (index, value), as `collected_columns` makes several."""
    return collected_columns([name], ((index, [value]) for index, value in values)).column(0).chunk(0)


def collected_columns(names: Sequence[str], rows: Iterable[tuple[int, Sequence[Any]]]) -> pa.Table:
    """Columns of single values, by the rules of `LabelCollector`; at most a million of each are objects.

    Args:
        rows: (index of the sample, a value for each name); the index is for errors alone.
    Raises:
        LabelTypeError: as `LabelCollector.add`.
    """
    collector, tables = LabelCollector(LabelSpec({name: lambda sample: None for name in names})), []
    for index, values in rows:
        collector.add_values(index, values)
        if len(collector) == _PIECE:
            tables.append(collector.table())
            collector = collector.successor()
    return unify([*tables, collector.table()], "")
