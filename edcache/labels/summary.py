"""What a label table holds, column by column, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

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
        nulls: rows without a value. distinct: how many values there are; None for lists.
        min, max: of the values, nan aside; None where there is none, and for lists.
        most_frequent: the value that occurs most, of several the first; times: how often. None for lists.
    """

    name: str
    type: str
    nulls: int
    distinct: int | None
    min: Any
    max: Any
    most_frequent: Any
    times: int | None


class Description(Sequence[ColumnSummary]):
    """The summary of every label column; printed it is a small table."""

    def __init__(self, columns: Sequence[ColumnSummary]) -> None:
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._columns)

    @overload
    def __getitem__(self, place: int) -> ColumnSummary: ...
    @overload
    def __getitem__(self, place: slice) -> Description: ...
    def __getitem__(self, place: int | slice) -> ColumnSummary | Description:
        """One column by its position, or some as a Description."""
        if isinstance(place, slice):
            return Description(self._columns[place])
        return self._columns[place]

    def __repr__(self) -> str:
        rows = [_HEADER, *(_cells(column) for column in self._columns)]
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
    found, times = counted.field("values"), counted.field("counts")[at].as_py()
    least, most = _ends(found)
    frequent = as_python(found[at])
    return ColumnSummary(name, str(kind), nulls, len(found), least, most, frequent, times)


def _ends(values: pa.Array) -> tuple[Any, Any]:
    """The least and the greatest value, nan aside."""
    if pa.types.is_duration(values.type):  # which Arrow does not order
        ends = _ends(values.view(pa.int64()))
        return tuple(as_python(value) for value in pa.array(ends, pa.int64()).view(values.type))
    ends = pc.min_max(values)
    return as_python(ends["min"]), as_python(ends["max"])


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
