"""A column as numpy, as every comparison sees it, and as small numbers: which are equal, which come first.

To comparisons equal values have equal bits: -0.0 is 0.0, and all nans are one value. What is stored, and
what `Labels` gives back, keeps the bits that were written.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import shown
from edcache.format import is_list, is_number, is_text, number_values, numpy_dtype, pa, pc, widened_float16

# Of so many values what is computed stays in the processor's cache.
_BLOCK = 1 << 15
SMALL_RANGE = 1 << 16
"""Integers of so small a range are looked up in a table instead of being hashed."""


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column as one contiguous array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type=column.type)


def to_numpy(array: pa.Array, *, nullable: bool) -> npt.NDArray[Any]:
    """One Arrow array as numpy, a view where the layouts agree; lists of numbers of one length become 2-D.

    nullable: whether the column as a whole has missing values, which decides the dtype.
    """
    kind = array.type
    if is_number(kind) and not nullable:
        return number_values(array)
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists_to_numpy(array, nullable)
    if pa.types.is_null(kind):
        return np.full(len(array), None, dtype=object)
    if not nullable or not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    filled = array.fill_null(pa.scalar(0).cast(kind))
    values: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False).astype(object)
    values[array.is_null().to_numpy(zero_copy_only=False)] = None
    return values


def _lists_to_numpy(array: pa.Array, nullable: bool) -> npt.NDArray[Any]:
    flat = array.flatten()
    values = to_numpy(flat, nullable=flat.null_count > 0)
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    is_numeric = is_number(flat.type) or pa.types.is_boolean(flat.type)
    if is_numeric and not nullable and not flat.null_count and np.all(lengths == lengths[:1]):
        return np.reshape(values, (len(array), int(lengths[0]) if len(array) else 0))
    values.flags.writeable = False
    missing = array.is_null().to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    rows = np.empty(len(array), dtype=object)
    for i, (end, length) in enumerate(zip(ends, lengths.tolist(), strict=True)):
        rows[i] = None if missing[i] else values[end - length : end]
    return rows


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with equal bits for equal values, itself where it is that already; null is no nan."""
    kind = comparable_type(column.type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(kind)
    if not pa.types.is_floating(kind):
        return column
    return pa.chunked_array([_comparable_floats(chunk) for chunk in column.chunks], kind)


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """The type of a comparable column: of a dictionary its values', for float16 float32."""
    if pa.types.is_dictionary(kind):
        return comparable_type(kind.value_type)
    # Arrow compares no float16.
    return pa.float32() if pa.types.is_float16(kind) else kind


def _comparable_floats(array: pa.Array) -> pa.Array:
    if pa.types.is_float16(array.type):
        array = widened_float16(array)
    if not len(array):
        return array
    validity, data = array.buffers()
    written = values = np.frombuffer(data, numpy_dtype(array.type), array.offset + len(array))
    bits = f"u{values.dtype.itemsize}"
    for start in range(0, len(written), _BLOCK):
        block = written[start : start + _BLOCK]
        with np.errstate(invalid="ignore"):  # a signalling nan
            canonical = block + block.dtype.type(0)  # -0.0 becomes 0.0
        np.copyto(canonical, np.nan, where=np.isnan(canonical))
        if not np.array_equal(canonical.view(bits), block.view(bits)):
            values = written.copy() if values is written else values
            values[start : start + _BLOCK] = canonical
    if values is written:
        return array
    buffers = [validity, pa.py_buffer(values)]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)


class Classes(NamedTuple):
    """The distinct values of a column, in the order of their first rows, and which of them each row has.

    codes: of the smallest dtype. values: as Python has them, times as numpy does; None is a missing value.
    """

    codes: npt.NDArray[Any]
    values: list[Any]


def classes_of(column: pa.ChunkedArray | npt.NDArray[Any]) -> Classes:
    """The distinct values of a comparable column, or of numpy's integers within `SMALL_RANGE`."""
    if isinstance(column, np.ndarray):
        return _by_appearance(column)
    if not len(column) or pa.types.is_null(column.type):
        return Classes(np.zeros(len(column), np.uint8), [None] * bool(len(column)))
    encoded = one_chunk(column).dictionary_encode("encode")  # a missing value as the others
    distinct = encoded.dictionary
    array = to_numpy(distinct, nullable=distinct.null_count > 0)
    # Of times, numpy keeps what Python's types would round.
    values = list(array) if array.dtype.kind in "mM" else array.tolist()
    if distinct.null_count:
        values[int(distinct.is_null().to_numpy(zero_copy_only=False).argmax())] = None
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return Classes(codes.astype(np.min_scalar_type(len(values) - 1)), values)


def _by_appearance(column: npt.NDArray[Any]) -> Classes:
    low, span = int(column.min()), int(column.max()) - int(column.min()) + 1
    least, unsigned = column.dtype.type(low), f"u{column.dtype.itemsize}"
    order = np.empty(0, np.intp)
    numbers = np.full(span, -1, np.int32)
    codes = np.empty(len(column), np.min_scalar_type(span - 1))
    for start in range(0, len(column), _BLOCK):
        offsets = (column[start : start + _BLOCK] - least).view(unsigned)
        block = numbers[offsets]
        if block.min() < 0:
            new, rows = np.unique(offsets[block < 0], return_index=True)
            new = new[np.argsort(rows)]
            numbers[new] = np.arange(len(order), len(order) + len(new))
            order = np.append(order, new.astype(np.intp))  # of uint64 it would make floats
            block = numbers[offsets]
        codes[start : start + _BLOCK] = block
    codes = codes.astype(np.min_scalar_type(len(order) - 1), copy=False)
    return Classes(codes, [low + offset for offset in order.tolist()])


def sort_keys_of(column: pa.ChunkedArray | npt.NDArray[Any], descending: bool) -> npt.NDArray[Any]:
    """Unsigned ints in the order of a column as `classes_of` takes it; missing values and nans are last."""
    if not len(column):
        return np.empty(0, np.uint8)
    if isinstance(column, np.ndarray):
        low, high = int(column.min()), int(column.max())
        first, second = (column.dtype.type(high), column) if descending else (column, column.dtype.type(low))
        # Without an array of the wide type in between; what wraps around wraps back.
        keys = np.empty(len(column), np.min_scalar_type(high - low))
        return np.subtract(first, second, out=keys, casting="unsafe")
    keys, missing = _ordered(column)
    if missing.any():
        # So that what is not there does not count for the largest or the smallest.
        keys[missing] = keys[~missing].min(initial=np.iinfo(np.uint64).max)
    keys = keys.max() - keys if descending else keys - keys.min()
    if missing.any():
        if keys.max() == np.iinfo(keys.dtype).max:  # or there is no number left for the others
            keys = np.unique(keys, return_inverse=True)[1].astype(np.uint64)
        keys[missing] = keys.max() + np.uint64(1)
    return keys.astype(np.min_scalar_type(int(keys.max())), copy=False)


def _ordered(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Unsigned ints in the values' order, of memory of their own, and which values are missing or nan."""
    kind = column.type
    if is_text(kind) or pa.types.is_null(kind):
        codes, values = classes_of(column)
        is_none = np.array([value is None for value in values], bool)
        present = sorted(np.flatnonzero(~is_none).tolist(), key=values.__getitem__)
        ranks = np.zeros(len(values), np.uint64)
        ranks[present] = np.arange(len(present))
        return ranks[codes], is_none[codes]
    array = one_chunk(column)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if array.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        array = array.fill_null(pa.scalar(0).cast(kind))
    numbers = to_numpy(array, nullable=array.null_count > 0)
    if numbers.dtype.kind in "bu":
        return numbers.astype(np.uint64), missing
    if numbers.dtype.kind == "f":
        # Of what is below zero more bits are less.
        bits = numbers.astype(np.float64).view(np.int64)
        missing, signed = np.isnan(numbers), np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    elif numbers.dtype.kind in "mM":
        missing, signed = np.isnat(numbers), numbers.view(np.int64)
    else:
        signed = numbers.astype(np.int64)
    return signed.view(np.uint64) ^ np.uint64(1 << 63), missing


# ---- what a table holds, column by column

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
