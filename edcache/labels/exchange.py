"""Columns of samples as Arrow has them, and Parquet files of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache.base import CodecError
from edcache.format import from_numpy, pa

_MOST_LISTED: Final = 1024


@dataclass(frozen=True)
class ArrowColumn:
    """A column of leaves of samples.

    kind: null, bool, int, float, complex, text, bytes, image, date, datetime, datetime with a zone, array
    or list. dtype: of an array, by numpy's name; of a list, the kind of its values. shape: of an array,
    where all have one. ndim: of an array. is_nullable: some samples lack it.
    """

    name: str
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    ndim: int = 0
    is_nullable: bool = False

    @property
    def is_fixed(self) -> bool:
        """True if it is an array that has one shape in every sample, with an element at least."""
        return (
            self.kind == "array" and self.shape is not None and not self.is_nullable and 0 not in self.shape
        )

    @property
    def is_large(self) -> bool:
        """True if it is fixed, and so large that Parquet, which looks at each element, would take long."""
        return self.is_fixed and math.prod(self.shape or ()) > _MOST_LISTED


_TYPES = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "image": pa.binary(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "datetime with a zone": pa.timestamp("us", "UTC"),
}


def _arrow_type(column: ArrowColumn) -> pa.DataType:
    """The Arrow type of a column.

    Arrays of one shape are `fixed_shape_tensor`; of over 1024 elements, their bytes (`schema_of`); of no
    dimension, their number. Others are {"values": list, "shape": list of int32}, 1-D ones plain lists.
    """
    if column.kind == "list":
        return pa.list_(_TYPES[column.dtype])
    if column.kind != "array":
        return _TYPES[column.kind]
    element = pa.from_numpy_dtype(np.dtype(column.dtype))
    if column.ndim == 0:
        return element
    if column.is_large:
        return pa.binary(math.prod(column.shape or ()) * np.dtype(column.dtype).itemsize)
    if column.is_fixed:
        return pa.fixed_shape_tensor(element, column.shape)
    if column.ndim == 1:
        return pa.list_(element)
    return pa.struct({"values": pa.list_(element), "shape": pa.list_(pa.int32())})


def arrow_column(column: ArrowColumn, values: Sequence[Any], place: str) -> pa.Array:
    """Leaves as an Arrow array; None where a sample lacks one; images as their bytes.

    Raises CodecError, which begins with `place`, for a value that the column does not hold.
    """
    kind = _arrow_type(column)
    try:
        if column.is_fixed and column.ndim:
            return _fixed(values, kind, column)
        plain: Sequence[Any] = values
        if column.kind == "array":
            plain = [None if value is None else _plain(value, column.ndim) for value in values]
        return pa.array(plain, kind)
    except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError, AttributeError) as error:
        raise CodecError(f'{place}: field "{column.name}" does not fit {kind}: {error}') from error


def _fixed(values: Sequence[npt.NDArray[Any]], kind: pa.DataType, column: ArrowColumn) -> pa.Array:
    stacked = np.ascontiguousarray(np.stack(values))
    if stacked.shape[1:] != column.shape or stacked.dtype.name != column.dtype:
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
    """The schema of leaves, then labels; arrays that are bytes have dtype and shape as metadata."""
    fields = []
    for column in columns:
        meta = {"dtype": column.dtype, "shape": json.dumps(column.shape)} if column.is_large else None
        fields.append(pa.field(column.name, _arrow_type(column), metadata=meta))
    return pa.schema([*fields, *labels])


def parquet_writer(stream: Any, schema: pa.Schema) -> Any:
    """A `pyarrow.parquet.ParquetWriter`, which compresses by zstd and has a row group for each table."""
    from pyarrow import parquet

    # Of arrays and images no value comes again, and to look for one takes ten times as long.
    single = [field.name for field in schema if not _is_large(field.type)]
    return parquet.ParquetWriter(
        stream, schema, compression="zstd", use_dictionary=single, write_statistics=single
    )


def _is_large(kind: pa.DataType) -> bool:
    is_binary = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return is_binary or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)


def renamed(table: pa.Table, taken: Iterable[str]) -> pa.Table:
    """A label table whose columns have other names than those taken: "labels.y" for "y"."""
    used, names = set(taken), []
    for name in table.column_names:
        while name in used:
            name = f"labels.{name}"
        used.add(name)
        names.append(name)
    return table.rename_columns(names)
