"""Canonical form of a column for classes, joins and `in`; its order; its summary.

In it equal values have equal bits: -0.0 is 0.0, and all nans are one value. Archive and `Labels` keep the bits
that were written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import shown, text_table
from edcache.format import (
    is_text,
    missing_rows,
    number_values,
    numpy_dtype,
    one_chunk,
    pa,
    pc,
    to_numpy,
    widened_float16,
)


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Give equal values equal bits; returns the same column if they have them. null is no nan."""
    if not pa.types.is_floating(column.type):
        return column
    # Arrow compares no float16.
    kind = pa.float32() if pa.types.is_float16(column.type) else column.type
    return pa.chunked_array([_comparable_floats(chunk) for chunk in column.chunks], kind)


def _comparable_floats(array: pa.Array) -> pa.Array:
    if pa.types.is_float16(array.type):
        array = widened_float16(array)
    if not len(array):
        return array
    validity, data = array.buffers()
    written = np.frombuffer(data, numpy_dtype(array.type), array.offset + len(array))
    with np.errstate(invalid="ignore"):  # a signalling nan
        values = written + written.dtype.type(0)  # -0.0 becomes 0.0
    np.copyto(values, np.nan, where=np.isnan(values))
    bits = f"u{values.dtype.itemsize}"
    if np.array_equal(values.view(bits), written.view(bits)):
        return array
    buffers = [validity, pa.py_buffer(values)]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)


class Classes(NamedTuple):
    """Distinct values of a column, in the order of their first rows, and the position of each row's value in them.

    codes: of the smallest dtype. values: as Python's types, times as numpy's; None is a missing value.
    """

    codes: npt.NDArray[Any]
    values: list[Any]


def classes_of(column: pa.ChunkedArray) -> Classes:
    """Find the distinct values of a comparable column."""
    if not len(column) or pa.types.is_null(column.type):
        return Classes(np.zeros(len(column), np.uint8), [None] * bool(len(column)))
    encoded = one_chunk(column).dictionary_encode("encode")  # a missing value is one of them
    distinct = encoded.dictionary
    if is_text(distinct.type):
        values = distinct.to_pylist()
    else:
        array = to_numpy(distinct, nullable=distinct.null_count > 0)
        # numpy's times keep digits that Python's would round.
        values = list(array) if array.dtype.kind in "mM" else array.tolist()
    if distinct.null_count:
        values[int(missing_rows(distinct).argmax())] = None
    return Classes(number_values(encoded.indices).astype(np.min_scalar_type(len(values) - 1)), values)


def counted(classes: Classes) -> dict[Any, int]:
    """Count the rows of each class, most frequent first; None: missing values."""
    numbers = np.bincount(classes.codes, minlength=len(classes.values)).tolist()
    return dict(sorted(zip(classes.values, numbers, strict=True), key=lambda pair: -pair[1]))


def sorted_rows(column: pa.ChunkedArray, descending: bool) -> npt.NDArray[np.int64]:
    """Argsort of a comparable column, stable; missing values and nans are last."""
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, kind), column)
    elif is_text(kind):
        # Ranks are compared faster, and a text is likely to occur often.
        encoded = one_chunk(column).dictionary_encode()
        column = pc.rank(encoded.dictionary).take(encoded.indices)
    elif pa.types.is_duration(kind):  # which Arrow does not order
        column = column.cast(pa.int64())
    rows = pc.sort_indices(column, sort_keys=[("", "descending" if descending else "ascending")])
    return number_values(rows).view(np.int64)


# ---- summary, column by column


class ColumnSummary(NamedTuple):
    """Summary of one label column.

    Attributes:
        name, type: of the column; the type is Arrow's name for it.
        nulls: rows without a value. distinct: number of different values.
        min, max: of the values, nan aside; None without values. Times are numpy's.
        most_frequent: the first of the most frequent values; times: its rows.
    For lists all but nulls is None.
    """

    name: str
    type: str
    nulls: int
    distinct: int | None = None
    min: Any = None
    max: Any = None
    most_frequent: Any = None
    times: int | None = None


class Description(tuple[ColumnSummary, ...]):
    """Summary of every label column; printed it is a small table."""

    __slots__ = ()

    def __repr__(self) -> str:
        header = ("label", "type", "nulls", "distinct", "min", "max", "most frequent", "times")
        return "\n".join(text_table(header, map(_cells, self)))


def _cells(column: ColumnSummary) -> tuple[str, ...]:
    name, kind, *values = column
    # Names and texts of a stranger, escaped, do not steer a terminal.
    return (name if name.isprintable() else shown(name), kind, *map(_cell, values))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if type(value) is int else shown(value)


def summarised(name: str, column: pa.ChunkedArray) -> ColumnSummary:
    """Summarise a column of a label table."""
    kind = str(column.type)
    if pa.types.is_nested(column.type):
        return ColumnSummary(name, kind, column.null_count)
    counts = counted(classes_of(comparable(column)))
    nulls = counts.pop(None, 0)
    ordered = [value for value in counts if value == value]
    frequent, times = next(iter(counts.items()), (None, None))
    ends = min(ordered, default=None), max(ordered, default=None)
    return ColumnSummary(name, kind, nulls, len(counts), *ends, frequent, times)
