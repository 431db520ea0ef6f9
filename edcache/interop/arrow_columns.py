"""Columns of samples as Arrow arrays, and Parquet files of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache.base import CodecError
from edcache.format import from_numpy, number_type, numpy_dtype, pa

_MOST_LISTED: Final = 1024


@dataclass(frozen=True)
class ArrowColumn:
    """Column of leaves of samples.

    type: of a leaf, or of the elements of an array. ndim: of an array, None for another leaf. shape: of the arrays, if
    they have the same. is_nullable: True if a sample lacks it.
    """

    name: str
    type: pa.DataType
    ndim: int | None = None
    shape: tuple[int, ...] | None = None
    is_nullable: bool = False

    @property
    def is_fixed(self) -> bool:
        """True if every sample has an array of one shape here, with a dimension and an element."""
        return bool(self.shape) and not self.is_nullable and 0 not in (self.shape or ())

    @property
    def is_large(self) -> bool:
        """True if it is fixed, and too large for Parquet, which looks at each element."""
        return self.is_fixed and math.prod(self.shape or ()) > _MOST_LISTED


def _arrow_type(column: ArrowColumn) -> pa.DataType:
    """Return the Arrow type of a column.

    Arrays of one shape are `fixed_shape_tensor`; above 1024 elements bytes (`schema_of`); 0-D ones a number. Others are
    {"values": list, "shape": list of int32}, 1-D ones plain lists.
    """
    if not column.ndim:
        return column.type
    if column.is_large:
        return pa.binary(math.prod(column.shape or ()) * numpy_dtype(column.type).itemsize)
    if column.is_fixed:
        return pa.fixed_shape_tensor(column.type, column.shape)
    values = pa.list_(column.type)
    return values if column.ndim == 1 else pa.struct({"values": values, "shape": pa.list_(pa.int32())})


def arrow_column(column: ArrowColumn, values: Sequence[Any], place: str) -> pa.Array:
    """Convert leaves to an Arrow array, images to their bytes; None if a sample lacks the leaf.

    Raises CodecError, which begins with `place`, for a value that does not fit.
    """
    kind = _arrow_type(column)
    try:
        if column.is_fixed:
            return _fixed(values, kind, column)
        plain: Sequence[Any] = values
        if column.ndim is not None:
            plain = [None if value is None else _plain(value, column.ndim) for value in values]
        return pa.array(plain, kind)
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f'{place}: field "{column.name}" does not fit {kind}: {error}') from error


def _fixed(values: Sequence[npt.NDArray[Any]], kind: pa.DataType, column: ArrowColumn) -> pa.Array:
    stacked = np.ascontiguousarray(np.stack(values))
    if stacked.shape[1:] != column.shape or number_type(stacked.dtype) != column.type:
        raise ValueError(f"arrays of {stacked.dtype} {stacked.shape[1:]}")
    if column.is_large:
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(stacked)])
    flat = from_numpy(stacked.reshape(-1), kind.value_type)
    storage = pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, storage)


def _plain(value: npt.NDArray[Any], ndim: int) -> Any:
    if ndim == 0:
        return value[()]
    flat = value.reshape(-1)
    return flat if ndim == 1 else {"values": flat, "shape": value.shape}


def schema_of(columns: Iterable[ArrowColumn], labels: pa.Schema) -> pa.Schema:
    """Make the schema of leaves, then labels; arrays as bytes have dtype and shape in metadata."""
    fields = []
    for column in columns:
        meta = None
        if column.is_large:
            meta = {"dtype": numpy_dtype(column.type).name, "shape": json.dumps(column.shape)}
        fields.append(pa.field(column.name, _arrow_type(column), metadata=meta))
    return pa.schema([*fields, *labels])


def parquet_writer(stream: Any, schema: pa.Schema) -> Any:
    """Open a `pyarrow.parquet.ParquetWriter`: zstd, a row group for each table."""
    from pyarrow import parquet

    # Arrays and images do not repeat, and looking for repetitions takes ten times as long.
    single = [field.name for field in schema if not _is_large(field.type)]
    return parquet.ParquetWriter(
        stream, schema, compression="zstd", use_dictionary=single, write_statistics=single
    )


def _is_large(kind: pa.DataType) -> bool:
    is_binary = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return is_binary or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)


def renamed(table: pa.Table, taken: Iterable[str]) -> pa.Table:
    """Rename the columns of a label table that have taken names: "labels.y" for "y"."""
    used, names = set(taken), []
    for name in table.column_names:
        while name in used:
            name = f"labels.{name}"
        used.add(name)
        names.append(name)
    return table.rename_columns(names)
