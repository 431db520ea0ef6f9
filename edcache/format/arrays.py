"""Arrow arrays and their types, from and to numpy, without pandas.

`pa.array` and `Array.to_numpy` import pandas, if it is installed, to see if it made the values: up to half a second, at
the first sample that a process writes or reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

__all__ = ["pa", "pc"]

_OFFSET_LIMIT = 2**31 - 1  # most bytes behind int32 offsets of strings and lists

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:

    class _Arrow:
        def __getattr__(self, name: str) -> Any:
            import pyarrow

            # Kept, so that Python finds it at the next look-up.
            value = self.__dict__[name] = getattr(pyarrow, name)
            return value

    class _Compute:
        def __getattr__(self, name: str) -> Any:
            import pyarrow.compute

            value = self.__dict__[name] = getattr(pyarrow.compute, name)
            return value

    # Imported at first use: together they take 0.2 s.
    pa, pc = _Arrow(), _Compute()


@cache
def numpy_dtypes() -> dict[pa.DataType, np.dtype[Any]]:
    """Return the Arrow types of bools, integers and floats, and the numpy dtype of each."""
    # kind.to_pandas_dtype() needs pandas before pyarrow 15.
    codes = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8"
    return {pa.from_numpy_dtype(np.dtype(code)): np.dtype(code) for code in codes.split()}


@cache
def number_type(dtype: np.dtype[Any]) -> pa.DataType | None:
    """Return the Arrow type of a numpy bool, integer or float of any byte order; None of any other dtype."""
    native = dtype.newbyteorder("=")
    return next((kind for kind, own in numpy_dtypes().items() if own == native), None)


def numpy_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy dtype of an Arrow bool, number, date, date-time or duration."""
    if is_time(kind):
        unit = "D" if pa.types.is_date32(kind) else kind.unit
        return np.dtype(f"{'m8' if pa.types.is_duration(kind) else 'M8'}[{unit}]")
    return numpy_dtypes()[kind]


def is_list(kind: pa.DataType) -> bool:
    """True if values of the type are lists, with offsets of 32 or 64 bits."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_time(kind: pa.DataType) -> bool:
    """True if values of the type are dates, date-times or durations, which numpy has too."""
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind))


def is_text(kind: pa.DataType) -> bool:
    """True if a type is of strings or bytes."""
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def detached(value: Any) -> Any:
    """Convert a tensor to numpy, bfloat16, which numpy lacks, to float32; return anything else as it is."""
    if not hasattr(value, "detach"):
        return value
    value = value.detach().cpu().resolve_conj().resolve_neg()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()


def fits_arrow(values: npt.NDArray[Any]) -> bool:
    """True if Arrow keeps the values of a numpy array.

    It cuts text at a zero character, takes 10s for s, and wraps days beyond 32 bits.
    """
    if values.dtype.kind not in "mM":
        return values.dtype.kind in "biuf"
    unit, count = np.datetime_data(values.dtype)
    if unit == "D" and count == 1 and values.dtype.kind == "M":
        days = values[~np.isnat(values)].astype(np.int64)
        return bool(np.all(days == days.astype(np.int32)))
    return count == 1 and unit in ("s", "ms", "us", "ns")


def number_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return the integers or floats that are not null, read only; without nulls a view of the memory."""
    values = stored_values(array)
    values = values[~missing_rows(array)] if array.null_count else values
    values.flags.writeable = False
    return values


def stored_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return the bools, numbers or times of an array, anything for a null; bools and dates are copied."""
    if pa.types.is_date32(array.type):
        return stored_values(array.view(pa.int32())).astype("M8[D]")
    dtype = numpy_dtype(array.type)
    if not len(array):
        return np.empty(0, dtype)
    if dtype == np.bool_:
        return _flags(array, 1)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def missing_rows(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Mark the values that are null: bool [n]."""
    if not array.null_count or pa.types.is_null(array.type):
        return np.full(len(array), array.null_count > 0)
    return ~_flags(array, 0)


def _flags(array: pa.Array, buffer: int) -> npt.NDArray[np.bool_]:
    """Unpack the bits of a buffer, one a value: of validity, or of bools."""
    first, skipped = divmod(array.offset, 8)
    packed = np.frombuffer(array.buffers()[buffer], np.uint8, (skipped + len(array) + 7) // 8, first)
    return np.unpackbits(packed, count=skipped + len(array), bitorder="little")[skipped:].view(np.bool_)


def one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Join a column to one contiguous array; text and lists of 2 GiB and more get large offsets."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    kind = addressing(column.type, column.nbytes)
    return pa.concat_arrays([chunk.cast(kind) for chunk in column.chunks] or [pa.nulls(0, kind)])


def addressing(kind: pa.DataType, nbytes: int) -> pa.DataType:
    """Return a type, or its large variant if 31 bits do not address `nbytes`."""
    if nbytes <= _OFFSET_LIMIT:
        return kind
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return pa.large_list(kind.value_type) if is_list(kind) else large.get(kind, kind)


def to_numpy(array: pa.Array, *, nullable: bool) -> npt.NDArray[Any]:
    """Convert an Arrow array to numpy, a view if the layouts agree; lists of numbers of one length become 2-D.

    nullable: True if the whole column has missing values, which decides the dtype.
    """
    kind = array.type
    if is_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists_to_numpy(array, nullable)
    if pa.types.is_null(kind):
        return np.full(len(array), None, dtype=object)
    if kind not in numpy_dtypes() and not is_time(kind):
        return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    values = stored_values(array)
    if nullable:
        values = values.astype(object if values.dtype.kind in "biu" else values.dtype)
        values[missing_rows(array)] = {"f": np.nan, "O": None}.get(values.dtype.kind, "NaT")
    return values


def _lists_to_numpy(array: pa.Array, nullable: bool) -> npt.NDArray[Any]:
    flat = array.flatten()
    values = to_numpy(flat, nullable=flat.null_count > 0)
    lengths = number_values(array.value_lengths().fill_null(0))
    has_nulls = nullable or flat.null_count > 0
    if flat.type in numpy_dtypes() and not has_nulls and np.all(lengths == lengths[:1]):
        return np.reshape(values, (len(array), int(lengths[0]) if len(array) else 0))
    values.flags.writeable = False
    missing = missing_rows(array)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    rows = np.empty(len(array), dtype=object)
    for i, (end, length) in enumerate(zip(ends, lengths.tolist(), strict=True)):
        rows[i] = None if missing[i] else values[end - length : end]
    return rows


def widened_float16(array: pa.Array) -> pa.Array:
    """Widen float16, which older pyarrow neither casts nor compares, to float32."""
    return from_numpy(stored_values(array).astype(np.float32), pa.float32(), missing_rows(array))


def from_numpy(
    values: npt.NDArray[Any], kind: pa.DataType, missing: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Make an Arrow array over numpy values of the type's own dtype, times as ticks. missing: bool [n]."""
    nulls = 0 if missing is None else int(missing.sum())
    validity = None if missing is None or not nulls else _bits(~missing)
    data = _bits(values) if values.dtype == np.bool_ else pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity, data], nulls)


def from_texts(values: Sequence[str | bytes | None], kind: pa.DataType) -> pa.Array:
    """Make an Arrow string or binary array of less than 2 GiB."""
    texts = [value.encode() if isinstance(value, str) else value for value in values]
    parts = [b"" if text is None else text for text in texts]
    offsets = np.fromiter(accumulate(map(len, parts), initial=0), np.int32, len(parts) + 1)
    missing = np.fromiter((text is None for text in texts), np.bool_, len(texts))
    nulls = int(missing.sum())
    validity = _bits(~missing) if nulls else None
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(kind, len(texts), buffers, nulls)


def same_values(one: pa.Array, other: pa.Array) -> bool:
    """True if two arrays have one type and the same values, bit for bit: nan equals itself."""
    if one.type != other.type:
        return False
    if pa.types.is_floating(one.type):
        kind = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[one.type.bit_width]
        return bool(one.view(kind).equals(other.view(kind)))
    if is_list(one.type):
        lengths = one.value_lengths().equals(other.value_lengths())
        return lengths and same_values(one.flatten(), other.flatten())
    return bool(one.equals(other))


def take_rows(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Take rows of a table; one without columns stays as it is."""
    return table.take(from_numpy(rows, pa.int64())) if table.num_columns else table


def _bits(flags: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
