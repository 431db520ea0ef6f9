"""A column as every comparison sees it: equal values have equal bits.

-0.0 is 0.0, and all nans are one value. What is stored, and what `Labels` gives back, keeps the bits that
were written.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edcache.format import numpy_dtype, pa, widened_float16

# Of so many floats what is computed stays in the processor's cache.
_BLOCK = 1 << 15

Floats = npt.NDArray[np.floating]


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with equal bits for equal values, of its `comparable_type`; itself where it is that already.

    A missing value stays missing: null is no nan.
    """
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
    values = np.frombuffer(data, numpy_dtype(array.type), array.offset + len(array))
    starts = range(0, len(values), _BLOCK)
    if all(_is_canonical(values[start : start + _BLOCK]) for start in starts):
        return array
    canonical = np.empty_like(values)
    for start in starts:
        _canonical(values[start : start + _BLOCK], canonical[start : start + _BLOCK])
    buffers = [validity, pa.py_buffer(canonical)]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)


def _is_canonical(values: Floats) -> bool:
    bits = f"u{values.dtype.itemsize}"
    return bool((_canonical(values, np.empty_like(values)).view(bits) == values.view(bits)).all())


def _canonical(values: Floats, out: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # a signalling nan
        np.add(values, values.dtype.type(0), out=out)  # -0.0 becomes 0.0
    np.copyto(out, np.nan, where=np.isnan(out))
    return out
