"""How the values of a label column are spread, as bars, each with the where-string that selects it."""

from __future__ import annotations

import keyword
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edcache.base import Markup, element, fragment
from edcache.format import from_numpy, is_number, is_text, number_values, numpy_dtype, one_chunk, pa, to_numpy
from edcache.labels.column import as_python

_WRITTEN = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\t": r"\t", "\r": r"\r"}
_MANY_ROWS = 200_000
_HEAD = 10_000  # rows that usually tell whether a column has many values
_WIDEST = 200  # characters of a text on a page
_LONGEST = 1_000  # characters of a where-string that is worth a click
_NICE = (1, 2, 5, 10)
_DAY = 86_400
_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200)
_DAYS = (1, 2, 7, 14, 30, 90, 180, 365, 730, 1825, 3650, 9125, 18_250, 36_500, 365_000)


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
    """How the values of a column are spread.

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
    kind, words = column.type, quoted_name(name)
    is_scale = is_number(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    missing = (HistogramBar("None", column.null_count, f"{words} is None"),) if column.null_count else ()
    values = column.drop_null() if missing else column
    head = values.slice(0, _HEAD)
    counted = (values if len(head.unique()) <= most or not is_scale else head).value_counts()
    if is_scale and len(counted) > most:
        return Histogram(name, str(type), (*_ranges(values, words, most), *missing))
    counts = number_values(counted.field("counts"))
    distinct = counted.field("values")
    is_sorted = is_scale or pa.types.is_boolean(kind)
    order = np.argsort(to_numpy(distinct, nullable=False) if is_sorted else -counts, kind="stable")
    bars = [_bar(distinct[int(i)], int(counts[i]), words) for i in order[:most]]
    rest = int(counts[order[most:]].sum())
    return Histogram(name, str(type), (*bars, *missing), rest, max(0, len(order) - most))


def has_many_texts(column: pa.ChunkedArray) -> bool:
    """Whether to count the texts of a column takes long, as some of its rows tell."""
    if len(column) <= _MANY_ROWS or not is_text(column.type):
        return False
    some = from_numpy(np.arange(0, len(column), len(column) // _HEAD), pa.int64())
    return len(column.take(some).unique()) > _HEAD // 10


def _bar(value: pa.Scalar, count: int, name: str) -> HistogramBar:
    """One value of a column."""
    kind = value.type
    if pa.types.is_floating(kind):
        number = numpy_dtype(kind).type(value.as_py())
        return HistogramBar(str(number), count, _float_is(number, name))
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        text = _time(value.value, kind)
        return HistogramBar(_short(text), count, _where(f'{name} == "{text}"') if _is_iso(text) else None)
    plain = as_python(value)
    if isinstance(plain, bool | int):
        return HistogramBar(str(plain), count, f"{name} == {plain}")
    if isinstance(plain, str):
        return HistogramBar(plain, count, _where(f"{name} == {quoted(plain)}"))
    return HistogramBar(plain.hex() if isinstance(plain, bytes) else str(plain), count, None)


def _float_is(number: np.floating[Any], name: str) -> str:
    if np.isnan(number):
        return f"{name} != {name}"
    if np.isinf(number):
        most = str(np.finfo(number.dtype).max)
        return f"{name} > {most}" if number > 0 else f"{name} < -{most}"
    return f"{name} == {number!s}"


def _ranges(values: pa.ChunkedArray, name: str, most: int) -> Iterator[HistogramBar]:
    """Bars of equal width that begin at round numbers, and one for each value that is not finite."""
    kind = values.type
    array = to_numpy(one_chunk(values), nullable=False)
    if pa.types.is_floating(kind):
        is_finite = np.isfinite(array)
        yield from _float_ranges(array[is_finite], name, most)
        for number, count in zip(*np.unique(array[~is_finite], return_counts=True), strict=True):
            yield HistogramBar(str(number), int(count), _float_is(number, name))
        return
    if pa.types.is_integer(kind):
        low, high = int(array.min()), int(array.max())
        step = _nice_step(math.ceil((high - low + 1) / most))
        edges = range(low // step * step, high + step + 1, step)
        for start, count in _counted(array, edges):
            first, last = max(start, -(2**63)), min(start + step - 1, 2**64 - 1)
            if step == 1:
                yield HistogramBar(str(first), count, f"{name} == {first}")
            else:
                yield HistogramBar(f"{first} to {last}", count, f"{first} <= {name} <= {last}")
        return
    yield from _time_ranges(array.view(np.int64) if array.dtype.kind in "mM" else array, kind, name, most)


def _time_ranges(ticks: Any, kind: pa.DataType, name: str, most: int) -> Iterator[HistogramBar]:
    low, high = int(ticks.min()), int(ticks.max())
    second = 0 if pa.types.is_date32(kind) else {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    steps = [s * second for s in _SECONDS if second] + [d * (second * _DAY or 1) for d in _DAYS]
    wanted = math.ceil((high - low + 1) / most)
    round_step = _nice_step(wanted)
    step = round_step if round_step < second else next((s for s in steps if s >= wanted), round_step)
    edges = range(low // step * step, high + step + 1, step)
    for start, count in _counted(ticks, edges):
        first, end = _time(max(start, low), kind), _time(min(start + step, high), kind)
        sign = "<=" if start + step > high else "<"
        where = f'"{first}" <= {name} {sign} "{end}"' if _is_iso(first) and _is_iso(end) else None
        yield HistogramBar(f"{_short(first)} to {_short(end)}", count, where)


def _float_ranges(array: Any, name: str, most: int) -> Iterator[HistogramBar]:
    if not len(array):
        return
    low, high = float(array.min()), float(array.max())
    if low == high:
        yield HistogramBar(str(array[0]), len(array), _float_is(array[0], name))
        return
    least = min(high / most - low / most, sys.float_info.max)
    exponent = math.floor(math.log10(max(least, np.finfo(array.dtype).tiny * 10)))
    # Decimal edges: 0.2 is written so, and not as a sum of steps.
    step = next(n for n in _NICE if float(f"{n}e{exponent}") >= least or n == 10)
    width = float(f"{step}e{exponent}")
    first, last = math.floor(low / width), math.floor(high / width)
    with np.errstate(over="ignore"):  # an edge beyond the type is inf, and left out below
        numbers = [array.dtype.type(float(f"{k * step}e{exponent}")) for k in range(first, last + 2)]
    inside = sorted({number for number in numbers if low < number < high})
    # A round edge may be beyond the type, or on the wrong side when it is rounded.
    begins_round, ends_round = -np.inf < numbers[0] <= low, high < numbers[-1] < np.inf
    edges = [numbers[0] if begins_round else low, *inside, numbers[-1] if ends_round else high]
    edges = [array.dtype.type(edge) for edge in edges]
    for i, (start, count) in enumerate(_counted(array, edges)):
        begin, end = str(start), str(edges[i + 1])
        sign = "<" if ends_round or i < len(edges) - 2 else "<="
        yield HistogramBar(f"{begin} to {end}", count, f"{begin} <= {name} {sign} {end}")


def _counted(array: Any, edges: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    """Each edge but the last, with how many values lie from it to the next; the last value counts too."""
    inner = np.array(list(edges[1:-1]), array.dtype)
    numbers = np.bincount(np.searchsorted(inner, array, side="right"), minlength=len(inner) + 1)
    return zip(edges[:-1], numbers.tolist(), strict=True)


def _nice_step(least: int) -> int:
    """The least of 1, 2, 5, 10, 20, ... that is not below."""
    scale: int = 10 ** (len(str(least)) - 1)
    return next(n * scale for n in _NICE if n * scale >= least)


def _time(ticks: int, kind: pa.DataType) -> str:
    unit: Any = "D" if pa.types.is_date32(kind) else kind.unit
    zone = "Z" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
    return f"{np.datetime_as_string(np.datetime64(ticks, unit))}{zone}"


def _is_iso(text: str) -> bool:
    """Whether a where-string can hold the time: its year has four digits."""
    return re.match(r"\d{4}-", text) is not None


def _short(time: str) -> str:
    """A time without zeros that say nothing."""
    return re.sub(r"T00:00(:00(\.0+)?)?$", "", re.sub(r"\.0+(?=Z?$)", "", time).removesuffix("Z"))


def _where(text: str) -> str | None:
    return text if len(text) <= _LONGEST else None


def plot(spread: Histogram, axes: Any = None) -> Any:
    """A histogram as bars on matplotlib's Axes; see `Labels.plot`."""
    from matplotlib import pyplot

    axes = pyplot.subplots(layout="constrained")[1] if axes is None else axes
    # Of a text matplotlib would read what stands between dollars as a formula.
    texts = [bar.text[:30].replace("$", r"\$") for bar in spread.bars]
    axes.barh(range(len(texts)), [bar.count for bar in spread.bars])
    axes.set_yticks(range(len(texts)), texts)
    axes.invert_yaxis()
    axes.set(xlabel="samples", ylabel=spread.name.replace("$", r"\$"))
    return axes


def quoted(text: str) -> str:
    """A text as a where-string has it."""
    return '"' + re.sub(r'[\\"\n\t\r]', lambda match: _WRITTEN[match[0]], text) + '"'


def quoted_name(name: str) -> str:
    """A column's name as a where-string has it: as it is, or col("odd name")."""
    parts = name.split(".")
    is_plain = name.isascii() and all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    return name if is_plain else f"col({quoted(name)})"
