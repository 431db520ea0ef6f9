"""Convert labels given as lists, numpy, pandas, polars or Arrow to label columns."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping, Set
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.base import LabelError, OptionError, article, shown, some_of, warn
from edcache.format import pa, pc
from edcache.labels.collector import collected
from edcache.labels.column import comparable
from edcache.labels.label_types import held_type

_REMEDY = (
    "columns are bool, integers, floats, text, bytes, dates, times, durations, and lists of one of these"
)
_PIECE = 1 << 16  # texts that are Python objects at once


def given_column(name: str, values: Any) -> pa.Array:
    """Convert a user's values to one contiguous array; numbers of a numpy array are not copied.

    Raises LabelError for a type that no label column holds, OptionError for no sequence.
    """
    try:
        values = format.detached(values)
    except (TypeError, RuntimeError) as error:
        raise LabelError(f'label "{name}" is no tensor for numpy: {error}; {_REMEDY}') from None
    if isinstance(values, np.ma.MaskedArray):
        pairs = zip(values.data, np.ma.getmaskarray(values), strict=True)
        return collected(name, enumerate(None if is_masked else value for value, is_masked in pairs))
    if isinstance(values, np.ndarray):
        return _of_numpy(name, values)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return _plain(name, values)
    if hasattr(values, "to_arrow"):  # polars
        return _plain(name, values.to_arrow())
    if type(values).__module__.partition(".")[0] == "pandas":
        if values.dtype == object:
            pairs = zip(values, values.isna(), strict=True)
            return collected(name, enumerate(None if missing else value for value, missing in pairs))
        return _plain(name, pa.array(values, from_pandas=True))
    is_unordered = isinstance(values, Set) and not isinstance(values, KeysView)
    if is_unordered or isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise OptionError(
            f'label "{name}" got {article(values)}; give one value per sample: an array, a list, or '
            "{index: value}"
        )
    return collected(name, enumerate(values))


def given_rows(
    name: str, values: Mapping[Any, Any], length: int, stored: pa.DataType | None
) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """Convert {index: value} to rising samples and their column; OptionError for a bad index.

    Args:
        stored: type of the archive's column, which stays if it holds the numbers exactly.
    """
    for index in values:
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise OptionError(
                f'label "{name}": {shown(index)} is {article(index)}; the keys are sample indices'
            )
        if not -length <= index < length:
            raise OptionError(f'label "{name}": index {shown(index)} not in [{-length}, {length})')
    wanted = {int(index) % length: value for index, value in values.items()}
    if len(wanted) != len(values):
        raise OptionError(f'label "{name}": an index comes twice, once counted from the end')
    ordered = sorted(wanted)
    column = collected(name, ((index, wanted[index]) for index in ordered))
    return np.array(ordered, np.int64), column if stored is None else _as_stored(column, stored)


def _as_stored(column: pa.Array, stored: pa.DataType) -> pa.Array:
    """Cast numbers to the type of a stored column of their kind, if that changes none."""
    if format.family(column.type) == format.family(stored) and format.family(stored) in ("integer", "float"):
        try:
            kept = column.cast(stored)
        except pa.ArrowException:
            return column
        before, after = format.number_values(column), format.number_values(kept)
        if np.array_equal(before, after, equal_nan=before.dtype.kind == "f"):
            return kept
    return column


def _of_numpy(name: str, values: npt.NDArray[Any]) -> pa.Array:
    if values.ndim == 2 and values.dtype.kind in "biuf":
        ends = np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]
        items = _of_numpy(name, np.ascontiguousarray(values).reshape(-1))
        if ends[-1] > np.iinfo(np.int32).max:
            return pa.LargeListArray.from_arrays(format.from_numpy(ends, pa.int64()), items)
        return pa.ListArray.from_arrays(format.from_numpy(ends.astype(np.int32), pa.int32()), items)
    if values.ndim != 1:
        raise OptionError(
            f'label "{name}" got an array of shape {values.shape}; give one value per sample, or one row of '
            "numbers"
        )
    number_type = format.number_type(values.dtype)
    if number_type is not None:
        return format.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=False), number_type)
    if values.dtype.kind in "US":
        with suppress(UnicodeEncodeError):  # `collected` raises it with its row
            return _of_texts(values)
    if format.fits_arrow(values):
        return _plain(name, pa.array(values.astype(values.dtype.newbyteorder("="), copy=False)))
    return collected(name, enumerate(values))


def _of_texts(values: npt.NDArray[Any]) -> pa.Array:
    # Into one buffer: joining arrays of the pieces takes the memory of the column twice.
    data, limit = bytearray(), np.iinfo(np.int32).max
    # UTF-8 has at most the bytes of numpy's characters.
    ends = np.zeros(len(values) + 1, np.int32 if values.nbytes <= limit else np.int64)
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE].tolist()
        texts = [text.encode() if isinstance(text, str) else text for text in piece]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends[start + 1 : start + 1 + len(texts)] = len(data) + np.cumsum(lengths)
        data += b"".join(texts)
    is_large = len(data) > limit
    kinds = (pa.string(), pa.large_string()) if values.dtype.kind == "U" else (pa.binary(), pa.large_binary())
    offsets = ends.astype(np.int64 if is_large else np.int32, copy=False)
    return pa.Array.from_buffers(
        kinds[is_large], len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _plain(name: str, values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Cast Arrow values to one array of a label type."""
    kind = held_type(values.type)
    if kind is None:
        raise LabelError(f'label "{name}" is {values.type}, which no label column holds; {_REMEDY}')
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    try:
        column = column if column.type == kind else column.cast(kind)
    except pa.ArrowException as error:
        raise LabelError(f'label "{name}" is {values.type}: {error}; {_REMEDY}') from error
    return format.one_chunk(column)


def given_table(table: Any) -> pa.Table:
    """Convert a pyarrow Table, a pandas or polars DataFrame, or a dict of columns to a Table of label types."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if isinstance(table, pa.Table):
        names, values = table.column_names, table.columns
    elif isinstance(table, Mapping):
        names, values = list(table), table.values()
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        names = list(table.columns)
        values = (table[name] for name in names)
    else:
        raise OptionError(
            f"add_labels() got {article(table)}; give a name and its values, or a pyarrow Table, a DataFrame "
            "or a dict of columns"
        )
    if len(set(names)) != len(names):
        raise OptionError("the table has two columns of one name; rename one of them")
    columns = [given_column(name, column) for name, column in zip(names, values, strict=True)]
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        counts = ", ".join(f'"{name}" {len(column):,}' for name, column in zip(names, columns, strict=True))
        raise OptionError(f"the columns of the table have different lengths: {counts}")
    return pa.table(columns, names=names)


def joined(table: pa.Table, on: str, keys: pa.ChunkedArray) -> pa.Table:
    """Left join: for each key the row of `table` with that value in column `on`, else nulls; without `on`.

    Warns of the number of samples without a row. Raises OptionError without a column `on`; LabelError for keys of
    another kind, a key that comes twice, or no match at all.
    """
    if on not in table.column_names:
        names = some_of(list(map(str, table.column_names)))
        raise OptionError(f'the table has no column "{on}" to join on; its columns are {names}')
    known, keys = comparable(table.column(on)), comparable(keys)
    kind = format.merged(known.type, keys.type)
    if kind is None and {format.family(known.type), format.family(keys.type)} <= {"integer", "float"}:
        kind = pa.uint64()  # if each is such a number
    if kind is None or format.is_list(kind):
        raise LabelError(
            f'label "{on}" is {keys.type} in the archive and {known.type} in the table; make them one type'
        )
    present = known.drop_null()
    if len(pc.unique(present)) != len(present):
        counted = pc.value_counts(present.combine_chunks())
        twice = counted.filter(pc.greater(counted.field("counts"), 1)).field("values")
        raise LabelError(
            f'the table has "{on}" = {_first(twice)} more than once, so the row to use is not clear; '
            "drop the duplicates"
        )
    try:
        found = pc.index_in(keys.cast(kind), value_set=known.cast(kind).combine_chunks())
        rows = pc.if_else(keys.is_valid(), found, None)
    except pa.ArrowInvalid:  # no Arrow type holds both; Python compares any two numbers exactly
        places = {value: row for row, value in enumerate(known.to_pylist()) if value is not None}
        rows = pa.array(map(places.get, keys.to_pylist()), pa.int64())
    if len(rows) and rows.null_count == len(rows):
        here, there = (
            f"{_first(column)} for example" if len(column) else "no value"
            for column in (keys.drop_null(), present)
        )
        raise LabelError(f'no sample has a row in the table: "{on}" is {here}, and the table has {there}')
    if rows.null_count:
        warn(f'{rows.null_count:,} of {len(rows):,} samples have no row in the table of "{on}", and get None')
    rest = [name for name in table.column_names if name != on]
    return table.select(rest).take(rows)


def _first(column: pa.Array | pa.ChunkedArray) -> str:
    # Not by Arrow, which writes no time beyond Python's calendar.
    return shown(format.to_numpy(format.one_chunk(column.slice(0, 1)), nullable=False).tolist()[0])
