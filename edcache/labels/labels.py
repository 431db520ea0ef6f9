"""`Labels`: the label columns of a dataset as numpy arrays, one value per sample.

- A sealed archive has a file of Arrow for each column. At its first use it is copied and checked (`StoredLabels`), so
  that nothing that is written over the file later shows in it. Of an archive that is not sealed the columns are one
  table, merged from its chunks (format/contents.py).
- The `Labels` of the whole dataset keep all that they read: columns, their comparable form (column.py), and arrays.
- A view is the same columns and an array of rows. It takes its rows of a column at their first use, so making one reads
  nothing, and a view of a view has one array of rows too.
- A filter compares columns by Arrow's kernels (query.py, compare.py): no sample is read.

What must never happen: that an array can be written to, since all who ask get the same one; that row i of a dataset is
not of its sample i.
"""

from __future__ import annotations

from array import array as Longs
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edcache import base
from edcache.base import Ints, LabelError, OptionError, SampleIndexError
from edcache.format import StoredLabels, from_numpy, is_text, one_chunk, pa, take_rows, to_numpy
from edcache.labels.column import Description, classes_of, comparable, counted, sorted_rows, summarised

Given: TypeAlias = "pa.Table | StoredLabels | Callable[[], pa.Table | StoredLabels]"
"""Table of labels, or a function that returns it."""


class LabelColumns:
    """Label columns of a whole dataset, which its views share: each is read, and converted, once.

    Args: as of `Labels`.
    Safety: threads may use it at once; two may then read or convert the same column.
    """

    def __init__(self, table: Given, num_rows: int | None) -> None:
        self._given = table
        self._num_rows = num_rows
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._comparable: dict[str, pa.ChunkedArray] = {}
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    @property
    def stored(self) -> pa.Table | StoredLabels:
        """Table from which the columns are read; a function that gives it is called once."""
        if callable(self._given):
            self._given = self._given()
        return self._given

    @property
    def num_rows(self) -> int:
        """Number of samples of the dataset."""
        return int(self.stored.num_rows) if self._num_rows is None else self._num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the columns that are in memory."""
        if isinstance(self._given, StoredLabels):
            return sum(column.nbytes for column in list(self._columns.values()))
        return 0 if callable(self._given) else int(self._given.nbytes)

    @base.once
    def table(self) -> pa.Table:
        """All columns as they are stored."""
        stored = self.stored
        if not stored.column_names:
            return _without_columns(self.num_rows)
        if not isinstance(stored, StoredLabels):
            return stored
        self.read(stored.column_names)
        return pa.table([self._columns[name] for name in stored.column_names], schema=stored.schema)

    def read(self, names: Iterable[str]) -> None:
        """Read columns together, which are else read at their first use; unknown names are ignored."""
        stored, wanted = self.stored, set(names)
        if isinstance(stored, StoredLabels):
            new = [name for name in stored.column_names if name in wanted and name not in self._columns]
            self._columns |= stored.columns(new) if new else {}

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column, of a dictionary's values. Raises: UnknownLabelError."""
        column = self._columns.get(name) if isinstance(name, str) else None
        if column is None:
            stored = self.stored
            if name not in stored.column_names:
                raise base.unknown_label(name, stored.column_names)
            column = stored.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            self._columns[name] = column
        return column

    def comparable(self, name: str) -> pa.ChunkedArray:
        """Return a column in comparable form (see column.py). Raises: UnknownLabelError."""
        column = self.column(name)
        if name not in self._comparable:
            self._comparable[name] = comparable(column)
        return self._comparable[name]

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a column as a read-only numpy array. Raises: UnknownLabelError."""
        array = self._arrays.get(name)
        if array is None:
            column = self.column(name)
            array = self._arrays[name] = to_numpy(one_chunk(column), nullable=column.null_count > 0)
            array.flags.writeable = False
        return array


def _without_columns(num_rows: int) -> pa.Table:
    """Make a table that has a length all the same."""
    return pa.table({"": pa.nulls(num_rows)}).select([])


@base.cut_traceback
class Labels(Mapping[str, npt.NDArray[Any]]):
    """Label columns of a dataset or a view: `labels["label"]` is a numpy array, one value per sample.

    Args:
        table: the label table, row i is sample i; or a function that returns it, called once, at the first use.
            `StoredLabels` read a column at its first use.
        num_rows: samples of the whole dataset; a table without columns does not tell it.
        rows: of a view its rows in the table, int64; see `take`.

    Arrays are read-only and shared. Columns of ints, floats and times are views of the table without a copy, and so are
    lists of one length, as 2-D arrays. Other columns, and columns in several batches, are copied once. A missing value
    is nan in a float array, NaT in an array of times, and None in an object array of any other type.
    """

    def __init__(
        self, table: Given | LabelColumns, *, num_rows: int | None = None, rows: Ints | None = None
    ) -> None:
        self._whole = table if isinstance(table, LabelColumns) else LabelColumns(table, num_rows)
        self._rows = rows
        self._arrays: dict[str, npt.NDArray[Any]] = {}  # of a view

    @base.cut_traceback
    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return the column `name`: a read-only array [num_rows], or [num_rows, n] for lists of one length.

        Raises:
            UnknownLabelError: `no label "lable"; this archive has: label, split`.
        """
        if not isinstance(name, str):
            raise base.unknown_label(name, list(self))
        if self._rows is None:
            return self._whole.array(name)
        array = self._arrays.get(name)
        if array is None:
            if is_text(self._whole.column(name).type):
                # str objects of the selected rows only: the whole column may have millions.
                array = to_numpy(one_chunk(self.column(name)), nullable=False)
            else:
                array = self._whole.array(name)[self._rows]
            array.flags.writeable = False
            self._arrays[name] = array
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole.stored.column_names)

    def __len__(self) -> int:
        """Return the number of columns. `num_rows` is the number of samples."""
        return len(self._whole.stored.column_names)

    def __contains__(self, name: object) -> bool:
        return name in self._whole.stored.column_names

    # Mapping.__eq__ would compare arrays, and make this class unhashable.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        columns = base.printable(base.some_of([f"{field.name}: {field.type}" for field in self.schema]))
        return f"Labels({columns or 'no columns'}; {self.num_rows} rows)"

    @property
    def num_rows(self) -> int:
        """Number of samples in this view."""
        return self._whole.num_rows if self._rows is None else len(self._rows)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns as a pyarrow Schema; reads no column."""
        return self._whole.stored.schema

    @base.once
    def table(self) -> pa.Table:
        """All columns as a pyarrow Table. A view copies its rows once."""
        if self._rows is None:
            return self._whole.table
        return take_rows(self._whole.table, self._rows) if len(self) else _without_columns(len(self._rows))

    def take(self, indices: npt.ArrayLike) -> Labels:
        """Make a view of the given rows, in the given order. No column is read yet.

        Args:
            indices: integers in [-num_rows, num_rows), repeats allowed; or a bool mask [num_rows]. Do not change the
                array afterwards.
        Raises:
            SampleIndexError: `indices[3] = 12 not in [-10, 10)`. OptionError: neither integers nor a mask.
        """
        positions = checked_indices(indices, self.num_rows)
        return Labels(self._whole, rows=positions if self._rows is None else self._rows[positions])

    def describe(self) -> Description:
        """Summarize each column: type, nulls, distinct values, minimum, maximum, most frequent value.

        The result is a tuple of ColumnSummary, which prints as a small table. Costs as `counts` of each.
        """
        self._whole.read(self)
        return Description(summarised(name, self.column(name)) for name in self)

    def unique(self, name: str) -> npt.NDArray[Any]:
        """Return the sorted distinct values of a column, without missing ones: a 1-D array that the caller owns.

        Raises: UnknownLabelError; LabelError, a column of lists.
        """
        column = single_values(self, name, "unique")
        if pa.types.is_null(column.type):
            return np.empty(0, object)
        values = pa.chunked_array([column.unique().drop_null()])
        rows = from_numpy(sorted_rows(values, descending=False), pa.int64())
        return np.array(to_numpy(values.chunk(0).take(rows), nullable=False))

    def counts(self, name: str) -> dict[Any, int]:
        """Return {value: number of samples}, most frequent first; None: missing values. Raises: as `unique`."""
        return counted(classes_of(single_values(self, name, "counts")))

    def column(self, name: str) -> pa.ChunkedArray:
        """Return the column as a pyarrow ChunkedArray. Raises: UnknownLabelError."""
        return _taken(self._whole.column(name), self._rows)

    def to_list(self, name: str) -> list[Any]:
        """Return the column as a list of Python values. Times beyond Python's range are numpy values."""
        try:
            values: list[Any] = self.column(name).to_pylist()
        except (ValueError, OverflowError):
            values = list(self[name])
        return values


def _taken(column: pa.ChunkedArray, rows: Ints | None) -> pa.ChunkedArray:
    return column if rows is None else column.take(from_numpy(rows, pa.int64()))


def origin(labels: Labels) -> tuple[LabelColumns, Ints | None]:
    """Return the columns of the whole dataset, and the rows of this view; None for all in order."""
    return labels._whole, labels._rows


def comparable_column(labels: Labels, name: str) -> pa.ChunkedArray:
    """Return a column in comparable form (see column.py), made once for all views."""
    whole, rows = origin(labels)
    return _taken(whole.comparable(name), rows)


def single_values(labels: Labels, name: str, method: str) -> pa.ChunkedArray:
    """Return `comparable_column`, but of no lists; the error names `method`.

    Raises: LabelError, 'label "boxes" is list<item: int64>; group_by() needs a column of ...'.
    """
    kind = origin(labels)[0].column(name).type
    if pa.types.is_nested(kind):
        raise LabelError(f'label "{name}" is {kind}; {method}() needs a column of single values')
    return comparable_column(labels, name)


def is_array(index: Any) -> bool:
    """True if an index is an array; to numpy a tuple is one index of several dimensions."""
    try:
        return not isinstance(index, int | tuple) and np.ndim(index) == 1
    except ValueError:  # a list of lists of several lengths
        return False


def checked_indices(indices: Any, length: int) -> Ints:
    """Convert an array or a list of indices in [-length, length), or a bool mask, to int64 in [0, length).

    Raises: SampleIndexError, `indices[3] = 12 not in [-10, 10)`; OptionError, neither integers nor a mask.
    """
    if type(indices) is list and indices and type(indices[0]) is int:
        # A DataLoader's sampler gives these; numpy takes longer to find that they are integers.
        with suppress(TypeError, OverflowError):
            indices = np.frombuffer(Longs("q", indices), np.int64)
    array: npt.NDArray[Any] = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise OptionError(
            f"indices of {array.dtype} with {array.ndim} dimensions; give a 1-dim array of integers, or a bool mask"
        )
    if array.dtype == np.bool_:
        if len(array) != length:
            raise OptionError(f"mask has {len(array):,} entries, but the dataset has {length:,}")
        return np.flatnonzero(array)
    rows = array.astype(np.int64, copy=False)
    if not len(array):
        return rows
    # Not min() and max(), which take 4 us each when the caches are full of other data.
    low, high = int(array[array.argmin()]), int(array[array.argmax()])
    if low < -length or high >= length:
        at = int(np.flatnonzero((array < -length) | (array >= length))[0])
        raise SampleIndexError(f"indices[{at}] = {array[at]} not in [-{length}, {length})")
    return np.where(rows < 0, rows + length, rows) if low < 0 else rows
