"""Histogram of a label column; each bar has the where-string that selects its samples."""

from __future__ import annotations

import json
import keyword
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import Markup, element, fragment
from edcache.format import family, from_numpy, is_text, number_values, numpy_dtype, one_chunk, pa, to_numpy
from edcache.labels.column import as_python

_MANY_ROWS = 200_000
_HEAD = 10_000  # rows that usually tell whether a column has many values
_WIDEST = 200  # characters of a text on a page
_LONGEST = 1_000  # characters of a where-string that is worth a click


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """Some values of a column.

    Attributes:
        text: the value or the range, in one line; "None" is a missing value.
        count: how many samples have it.
        where: the where-string that selects them; None where the where-language cannot say it.
    """

    text: str
    count: int
    where: str | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """The histogram of a column.

    Attributes:
        name, type: of the column; the type is Arrow's name for it.
        bars: numbers and times by value, texts by count, a missing value last. Empty for lists.
        rest: samples whose values have no bar; rest_values: how many values these are.
    """

    name: str
    type: str
    bars: tuple[HistogramBar, ...]
    rest: int = 0
    rest_values: int = 0

    def _repr_html_(self) -> str:
        return fragment(self.drawn())

    def drawn(self) -> Markup:
        """The bars as a part of a page."""
        greatest = max((bar.count for bar in self.bars), default=0) or 1
        rows = (
            element(
                *("div", element("span", bar.text[:_WIDEST], title=bar.text[:_WIDEST])),
                element("span", element("i", style=f"width:{100 * bar.count / greatest:.0f}%")),
                element("b", f"{bar.count:,}"),
                class_="bar",
            )
            for bar in self.bars
        )
        rest = f"{self.rest_values:,} more values of {self.rest:,} samples" if self.rest else None
        title = element("div", self.name[:_WIDEST], element("span", f" {self.type[:_WIDEST]}", class_="dim"))
        return element("div", title, rows, "" if rest is None else element("div", rest, class_="dim"))


def histogram(name: str, column: pa.ChunkedArray, type: pa.DataType, most: int) -> Histogram:
    """The histogram of a comparable column, or of one of lists; `type` is that of the column as written."""
    if pa.types.is_nested(type):
        return Histogram(name, str(type), ())
    words, is_scale = quoted_name(name), family(column.type) in ("integer", "float", "time", "UTC time")
    missing = (HistogramBar("None", column.null_count, f"{words} is None"),) if column.null_count else ()
    values = column.drop_null() if missing else column
    has_many = is_scale and len(values.slice(0, _HEAD).unique()) > most
    counted = None if has_many else values.value_counts()
    if counted is None or (is_scale and len(counted) > most):
        return Histogram(name, str(type), (*_ranges(values, words, most), *missing))
    counts, distinct = number_values(counted.field("counts")), counted.field("values")
    is_sorted = is_scale or pa.types.is_boolean(column.type)
    order = np.argsort(to_numpy(distinct, nullable=False) if is_sorted else -counts, kind="stable")
    bars = [_bar(distinct[int(i)], int(counts[i]), words) for i in order[:most]]
    rest = int(counts[order[most:]].sum())
    return Histogram(name, str(type), (*bars, *missing), rest, max(0, len(order) - most))


def has_many_texts(column: pa.ChunkedArray) -> bool:
    """True if to count the texts of a column takes long, as some of its rows tell."""
    if len(column) <= _MANY_ROWS or not is_text(column.type):
        return False
    some = from_numpy(np.arange(0, len(column), len(column) // _HEAD), pa.int64())
    return len(column.take(some).unique()) > _HEAD // 10


def _bar(value: pa.Scalar, count: int, name: str) -> HistogramBar:
    """One value of a column."""
    kind = value.type
    if pa.types.is_floating(kind):
        return _float_bar(numpy_dtype(kind).type(value.as_py()), count, name)
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return _ticks_bar(value.value, value.value, count, kind, name)
    plain = as_python(value)
    if isinstance(plain, bool | int):
        return HistogramBar(str(plain), count, f"{name} == {plain}")
    if isinstance(plain, str):
        where = f"{name} == {quoted(plain)}"
        return HistogramBar(plain, count, where if len(where) <= _LONGEST else None)
    return HistogramBar(plain.hex() if isinstance(plain, bytes) else str(plain), count, None)


def _float_bar(number: np.floating[Any], count: int, name: str) -> HistogramBar:
    most = np.finfo(number.dtype).max
    if np.isnan(number):
        where = f"{name} != {name}"
    elif np.isinf(number):
        where = f"{name} > {most!s}" if number > 0 else f"{name} < -{most!s}"
    else:
        where = f"{name} == {number!s}"
    return HistogramBar(str(number), count, where)


def _ticks_bar(first: int, last: int, count: int, kind: pa.DataType, name: str) -> HistogramBar:
    """The integers, or the times by their ticks, from the first to the last."""
    ends = [str(first), str(last)]
    if not pa.types.is_integer(kind):
        unit: Any = "D" if pa.types.is_date32(kind) else kind.unit
        zone = "Z" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
        ends = [f"{np.datetime_as_string(np.datetime64(tick, unit))}{zone}" for tick in (first, last)]
    texts = list(map(_short, dict.fromkeys(ends)))
    if pa.types.is_integer(kind) or all(re.match(r"\d{4}-", end) for end in ends):
        begin, end = ends if pa.types.is_integer(kind) else map(quoted, ends)
        where = f"{name} == {begin}" if first == last else f"{begin} <= {name} <= {end}"
        return HistogramBar(" to ".join(texts), count, where)
    return HistogramBar(" to ".join(texts), count, None)  # the where-language has years of four digits


def _short(time: str) -> str:
    """A time without zeros that say nothing."""
    return re.sub(r"T00:00(:00(\.0+)?)?$", "", re.sub(r"\.0+(?=Z?$)", "", time).removesuffix("Z"))


def _ranges(values: pa.ChunkedArray, name: str, most: int) -> Iterator[HistogramBar]:
    """Bars of equal width, and one for each value that is not finite."""
    kind = values.type
    array = to_numpy(one_chunk(values), nullable=False)
    if pa.types.is_floating(kind):
        is_finite = np.isfinite(array)
        yield from _float_ranges(array[is_finite], name, most)
        for number, count in zip(*np.unique(array[~is_finite], return_counts=True), strict=True):
            yield _float_bar(number, int(count), name)
        return
    ticks = array.view(np.int64) if array.dtype.kind in "mM" else array
    low, high = int(ticks.min()), int(ticks.max())
    starts = range(low, high + 1, math.ceil((high - low + 1) / most))
    for start, count in zip(starts, _counts(ticks, starts[1:]), strict=True):
        yield _ticks_bar(start, min(start + starts.step - 1, high), count, kind, name)


def _float_ranges(array: npt.NDArray[Any], name: str, most: int) -> Iterator[HistogramBar]:
    """Bars between edges of three digits, but for the least and the greatest value."""
    if not len(array):
        return
    low, high, of = float(array.min()), float(array.max()), array.dtype.type
    inner = {of(f"{low * (1 - part) + high * part:.3g}") for part in np.arange(1, most) / most}
    edges = [of(low), *sorted(edge for edge in inner if low < edge < high), of(high)]
    if low == high:
        yield _float_bar(of(low), len(array), name)
        return
    for k, count in enumerate(_counts(array, edges[1:-1])):
        sign = "<=" if k == len(edges) - 2 else "<"
        where = f"{edges[k]!s} <= {name} {sign} {edges[k + 1]!s}"
        yield HistogramBar(f"{edges[k]:.4g} to {edges[k + 1]:.4g}", count, where)


def _counts(array: npt.NDArray[Any], edges: Sequence[Any]) -> list[int]:
    """The number of values below the first edge, from each to the next, and from the last on."""
    # Not np.histogram, which computes with integers as float64.
    places = np.searchsorted(np.array(edges, array.dtype), array, side="right")
    counts: list[int] = np.bincount(places, minlength=len(edges) + 1).tolist()
    return counts


def quoted(text: str) -> str:
    """A text as a where-string has it."""
    return json.dumps(text, ensure_ascii=False)


def quoted_name(name: str) -> str:
    """A column's name as a where-string has it: as it is, or col("odd name")."""
    parts = name.split(".")
    is_plain = name.isascii() and all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    return name if is_plain else f"col({quoted(name)})"
