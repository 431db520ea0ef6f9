"""What a label table holds, column by column, in a few lines."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from edcache.base import shown
from edcache.format import pa, pc
from edcache.labels.column import comparable

_HEADER = ("label", "type", "nulls", "distinct", "min", "max", "most frequent", "times")


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One label column.

    Attributes:
        name, type: as the label table has them; the type is Arrow's name for it.
        nulls: rows without a value. distinct: how many values there are.
        min, max: of the values, nan aside; None where there is none.
        most_frequent: the value that occurs most, of several the first; times: how often.

    Of lists all but nulls is None.
    """

    name: str
    type: str
    nulls: int
    distinct: int | None
    min: Any
    max: Any
    most_frequent: Any
    times: int | None


class Description(tuple[ColumnSummary, ...]):
    """The summary of every label column; printed it is a small table."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        """One column by its position, or some as a Description."""
        columns = super().__getitem__(place)
        return Description(columns) if isinstance(place, slice) else columns

    def __repr__(self) -> str:
        rows = [_HEADER, *map(_cells, self)]
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = (map(str.ljust, row, widths) for row in rows)
        return "\n".join("  ".join(line).rstrip() for line in lines)


def _cells(column: ColumnSummary) -> tuple[str, ...]:
    name, kind, *values = (getattr(column, field.name) for field in fields(column))
    # Names and texts may be anybody's: nothing in them steers a terminal.
    return (name if name.isprintable() else shown(name), kind, *map(_text, values))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if type(value) is int else shown(value)


def describe(table: pa.Table) -> Description:
    """Summarise each column of a label table.

    Cost: of 10 million rows, some 0.3 s for a column of few values, and 3 s for one of ten million values.
    """
    return Description([_summary(name, table.column(name)) for name in table.column_names])


def _summary(name: str, column: pa.ChunkedArray) -> ColumnSummary:
    kind, nulls = column.type, column.null_count
    if pa.types.is_nested(kind) or len(column) == nulls:
        distinct = None if pa.types.is_nested(kind) else 0
        return ColumnSummary(name, str(kind), nulls, distinct, None, None, None, None)
    values = comparable(column).drop_null()
    counted = values.value_counts()
    at = int(np.argmax(counted.field("counts").to_numpy(zero_copy_only=False)))
    distinct, times = counted.field("values"), counted.field("counts")[at].as_py()
    is_duration = pa.types.is_duration(kind)  # which Arrow does not order
    ends = pc.min_max(distinct.view(pa.int64()) if is_duration else distinct)
    least, most = (ends[end].cast(kind) if is_duration else ends[end] for end in ("min", "max"))
    limits = as_python(least), as_python(most)
    return ColumnSummary(name, str(kind), nulls, len(distinct), *limits, as_python(distinct[at]), times)


def ascending(values: pa.Array) -> pa.Array:
    """The values in rising order, nan last."""
    if pa.types.is_duration(values.type):  # which Arrow does not order
        return values.view(pa.int64()).sort().view(values.type)
    return values.sort()


def as_python(value: pa.Scalar) -> Any:
    """A value as Python has it; as numpy does of times to the nanosecond, or beyond Python's calendar."""
    kind = value.type
    unit = "D" if pa.types.is_date32(kind) else getattr(kind, "unit", "")
    if unit != "ns":
        try:
            return value.as_py()
        except (OverflowError, ValueError):
            pass
    return np.int64(value.value).view(f"{'m8' if pa.types.is_duration(kind) else 'M8'}[{unit}]")
