"""The label columns of a dataset as numpy arrays, one value per sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edcache.base import (
    LabelTypeError,
    Markup,
    MissingDependencyError,
    OptionError,
    SampleIndexError,
    check_positive,
    element,
    fragment,
    joined,
    printable,
    unknown_label,
)
from edcache.format import from_numpy, is_text, one_chunk, pa, take_rows, to_numpy
from edcache.labels.column import Classes, Description, classes_of, comparable, describe, sorted_rows
from edcache.labels.histogram import Histogram, histogram, plot

# Of a column of texts in so many rows a page shows bars only where the first rows have few values.
_MANY_ROWS = 200_000
_MANY_TEXTS = 10_000

Rows: TypeAlias = "npt.NDArray[np.int64]"


class Labels(Mapping[str, npt.NDArray[Any]]):
    """Label columns by name: `labels["label"]` is a numpy array, one value per sample.

    Args:
        table: the label table, row i = sample i; or a callable that returns it, called once, at the
            first question that needs it.
        indices: the rows that this view consists of, in its order; all rows if None.
        num_rows: the samples of the whole dataset, for an archive without labels, whose table cannot say.

    Arrays are read-only and shared: a zero-copy view of the table where Arrow's layout is numpy's (ints,
    floats, date-times; equally long lists as 2-D), otherwise a copy made once per column.
    A missing value is nan among floats, NaT among times, and None in an object array elsewhere.
    """

    def __init__(
        self,
        table: pa.Table | Callable[[], pa.Table],
        indices: npt.ArrayLike | None = None,
        *,
        num_rows: int | None = None,
    ) -> None:
        self._source = table
        self._num_rows = num_rows
        self._parent = None if indices is None else Labels(table, num_rows=num_rows)
        self._rows: Rows | None = None
        self._pending: tuple[npt.NDArray[Any], ...] = () if indices is None else (_as_indices(indices),)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._comparable: dict[str, pa.ChunkedArray] = {}  # of the whole alone
        self._table: pa.Table | None = None

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The column `name`, read-only.

        Raises:
            UnknownLabelError: `no label "lable"; this archive has: label, split`.
        """
        if not isinstance(name, str):
            raise unknown_label(name, list(self))
        array = self._arrays.get(name)
        if array is None:
            array = self._array(name)
            array.flags.writeable = False
            self._arrays[name] = array
        return array

    def _array(self, name: str) -> npt.NDArray[Any]:
        column, rows = self.whole.column(name), self.rows
        if rows is None:
            return to_numpy(one_chunk(column), nullable=column.null_count > 0)
        if is_text(column.type):
            # Objects for the taken rows alone: the whole column would be millions of str.
            return to_numpy(one_chunk(self._taken(column)), nullable=False)
        return self.whole[name][rows]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole.table.column_names)

    def __len__(self) -> int:
        """The number of columns; `num_rows` counts the samples."""
        return len(self.whole.table.column_names)

    def __contains__(self, name: object) -> bool:
        return name in self.whole.table.column_names

    # A Mapping would compare arrays and be unhashable.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        columns = printable(", ".join(f"{field.name}: {field.type}" for field in self.whole.table.schema))
        return f"Labels({columns or 'no columns'}; {self.num_rows} rows)"

    def _repr_html_(self) -> str:
        return fragment(
            element("h4", f"{self.num_rows:,} samples"), element("div", self.bars(), class_="columns")
        )

    def bars(self, most: int = 12, seconds: float = 0.25) -> Markup:
        """The histogram of each column as a part of a page, of as many columns as there is time for."""
        drawn, began = [], time.monotonic()
        for name in self:
            drawn.append(self._drawn(name, most))
            if time.monotonic() - began > seconds and len(drawn) < len(self):
                drawn.append(element("div", f"{len(self) - len(drawn):,} more columns", class_="dim"))
                break
        return joined(*drawn)

    def _drawn(self, name: str, most: int) -> Markup:
        """The histogram of a column; its name alone where there are many texts, which take long to count."""
        column = self.whole.column(name)
        is_long = self.num_rows > _MANY_ROWS and is_text(column.type)
        if is_long and len(column.slice(0, _MANY_TEXTS).unique()) > _MANY_TEXTS // 10:
            note = f"{column.type}: many values; labels.histogram(name) counts them"
            return element("div", name[:200], element("div", note, class_="dim"))
        return self.histogram(name, most).drawn()

    @property
    def num_rows(self) -> int:
        """The number of samples in this view."""
        if self._pending:
            return len(self._pending[-1])
        if self._rows is not None:
            return len(self._rows)
        return int(self.table.num_rows) if self._num_rows is None else self._num_rows

    @property
    def table(self) -> pa.Table:
        """The columns as a pyarrow Table; for a `take` a copy of its rows, made once."""
        if self._table is None:
            rows = self.rows
            if rows is not None:
                self._table = take_rows(self.whole.table, rows)
            else:
                self._table = self._source() if callable(self._source) else self._source
        return self._table

    @property
    def whole(self) -> Labels:
        """The labels of the whole dataset, whatever was taken."""
        return self if self._parent is None else self._parent

    @property
    def rows(self) -> Rows | None:
        """int64 [num_rows]: the row of `whole` for each row of this view; None if it is all of them.

        Raises:
            SampleIndexError: an index outside [-n, n), found at the first use of a lazy `take`.
        """
        for step in self._pending:
            rows = self._rows
            positions = checked_indices(step, self.whole.num_rows if rows is None else len(rows))
            self._rows = positions if rows is None else rows[positions]
        self._pending = ()
        return self._rows

    def take(self, indices: npt.ArrayLike) -> Labels:
        """The view of the given rows of this view, in their order, repeats allowed; nothing is read yet.

        Args:
            indices: integers in [-num_rows, num_rows). Not copied: do not change them afterwards.
        """
        taken = copy(self)
        taken._parent = self.whole
        taken._pending = (*self._pending, _as_indices(indices))
        taken._arrays, taken._table = {}, None
        return taken

    def is_of(self, whole: Labels) -> bool:
        """Whether this was taken from the same table."""
        return self.whole is whole.whole

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame, row i = sample i of this view."""
        with _needs("to_pandas", "pandas"):
            import pandas  # noqa: F401
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """The columns as a polars DataFrame, row i = sample i of this view; numbers are not copied."""
        with _needs("to_polars", "polars"):
            import polars
        return polars.from_arrow(self.table)

    def sql(self, query: str) -> pa.Table:
        """Ask in SQL, by duckdb; the samples of this view are the rows of the table `labels`.

        Args:
            query: one statement, such as "select split, count(*) from labels group by split".
        Returns:
            A pyarrow Table; `.to_pylist()` makes dicts of its rows.
        Raises:
            OptionError: 'labels.sql(): Binder Error: ...', whatever duckdb says of the statement.
            MissingDependencyError: duckdb is not installed.

        >>> ds.labels.sql("select patient, avg(age) as age from labels group by patient")
        """
        with _needs("sql", "duckdb"):
            import duckdb
        # Without replacements: else any name in a query may be a variable of the caller. And no file is seen.
        config: dict[str, Any] = dict.fromkeys(
            ("python_enable_replacements", "enable_external_access"), "false"
        )
        with duckdb.connect(":memory:", config=config | {"lock_configuration": "true"}) as connection:
            connection.register("labels", self.table)
            try:
                if len(connection.extract_statements(query)) > 1:
                    raise OptionError("labels.sql(): several statements; give one")
                answer = connection.sql(query)
                return pa.table({}) if answer is None else answer.to_arrow_table()
            except duckdb.Error as error:
                raise OptionError(f"labels.sql(): {error}") from error

    def describe(self) -> Description:
        """Each column's type, missing and distinct values, least, greatest and most frequent one.

        A sequence with one entry a column, which prints as a small table. Costs as `counts` of each column.
        """
        return describe(self.table)

    def histogram(self, name: str, most: int = 20) -> Histogram:
        """The values of a column and how often each occurs; of more than `most` numbers or times, ranges.

        Args:
            most: bars, at least 1; missing values, nan and infinities have bars of their own.
        Raises:
            UnknownLabelError: no such column.
        Cost: of 1 million rows some 20 ms for a column of numbers, 60 ms for few texts, 1 s for a million.

        >>> [(bar.text, bar.count, bar.where) for bar in ds.labels.histogram("score").bars]
        [('0.0 to 0.2', 412, '0.0 <= score < 0.2'), ...]
        """
        check_positive("most", most)
        kind = self.column(name).type
        column = self.column(name) if pa.types.is_nested(kind) else self.comparable(name)
        return histogram(name, column, kind, most)

    def plot(self, name: str, axes: Any = None) -> Any:
        """Draw the histogram of a column.

        Args:
            axes: matplotlib's Axes to draw on; by default those of a new figure.
        Returns:
            The Axes.
        Raises:
            UnknownLabelError: no such column. MissingDependencyError: matplotlib is not installed.

        >>> ds.labels.plot("label").figure.savefig("label.png")
        """
        spread = self.histogram(name)
        with _needs("plot", "matplotlib", extra="plot"):
            return plot(spread, axes)

    def unique(self, name: str) -> npt.NDArray[Any]:
        """The distinct values of a column, rising, missing ones left out: an array that the caller owns.

        Raises:
            UnknownLabelError: no such column. LabelTypeError: a column of lists.
        """
        column = self.singles(name, "unique")
        if pa.types.is_null(column.type):
            return np.empty(0, object)
        values = pa.chunked_array([column.unique().drop_null()])
        rows = from_numpy(sorted_rows(values, descending=False), pa.int64())
        return np.array(to_numpy(values.chunk(0).take(rows), nullable=False))

    def counts(self, name: str) -> dict[Any, int]:
        """How often each value of the column occurs, most frequent first; None counts missing values."""
        codes, values = classes(self, name, "counts")
        numbers = np.bincount(codes, minlength=len(values)).tolist()
        return dict(sorted(zip(values, numbers, strict=True), key=lambda pair: -pair[1]))

    def column(self, name: str) -> pa.ChunkedArray:
        """The column as Arrow has it."""
        whole = self.whole.table
        if name not in whole.column_names:
            raise unknown_label(name, whole.column_names)
        column = whole.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return self._taken(column)

    def comparable(self, name: str) -> pa.ChunkedArray:
        """The column as every comparison sees it (see column.py), made once for all views."""
        column, made = self.whole.column(name), self.whole._comparable
        if name not in made:
            made[name] = comparable(column)
        return self._taken(made[name])

    def singles(self, name: str, asked_by: str) -> pa.ChunkedArray:
        """The same of a column of single values.

        Raises:
            LabelTypeError: 'label "boxes" is list<item: int64>; group_by() needs a column of single values'.
        """
        kind = self.whole.column(name).type
        if pa.types.is_nested(kind):
            raise LabelTypeError(f'label "{name}" is {kind}; {asked_by}() needs a column of single values')
        return self.comparable(name)

    def _taken(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        rows = self.rows
        return column if rows is None else column.take(from_numpy(rows, pa.int64()))

    def to_list(self, name: str) -> list[Any]:
        """The column as values of Python; of times that Python does not have, as numpy's."""
        try:
            values: list[Any] = self.column(name).to_pylist()
        except (ValueError, OverflowError):
            values = list(self[name])
        return values


@contextmanager
def _needs(method: str, package: str, extra: str | None = None) -> Iterator[None]:
    try:
        yield
    except ImportError:
        raise MissingDependencyError(
            f"labels.{method}() needs {package}; install it with: pip install edcache[{extra or package}]"
        ) from None


def _as_indices(indices: npt.ArrayLike) -> npt.NDArray[Any]:
    array = np.asarray(indices)
    if array.ndim == 1 and (array.dtype.kind in "iu" or not array.size):
        return array if array.size else array.astype(np.int64)
    raise OptionError(
        f"labels.take() got an array of {array.dtype} with {array.ndim} dimensions; give a 1-dim array of "
        f"integers, for a bool mask numpy.flatnonzero(mask)"
    )


def checked_indices(indices: npt.NDArray[Any], length: int) -> Rows:
    """Indices as int64 in [0, length); SampleIndexError says `indices[3] = 12 not in [-10, 10)`."""
    if not indices.size:
        return indices.astype(np.int64)
    low, high = int(indices.min()), int(indices.max())
    if low < -length or high >= length:
        at = int(np.flatnonzero((indices < -length) | (indices >= length))[0])
        raise SampleIndexError(f"indices[{at}] = {indices[at]} not in [-{length}, {length})")
    rows = indices.astype(np.int64, copy=False)
    return np.where(rows < 0, rows + length, rows) if low < 0 else rows


def classes(labels: Labels, name: str, asked_by: str) -> Classes:
    """The distinct values of a column; UnknownLabelError, or LabelTypeError for lists."""
    return classes_of(labels.singles(name, asked_by))


def order_by(labels: Labels, name: str, descending: bool) -> Rows:
    """The rows in the order of a column, stable; missing values and nans are last. Raises as `classes`."""
    return sorted_rows(labels.singles(name, "sort_by"), descending)
