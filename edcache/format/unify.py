"""The label tables of several chunks, or of several datasets, as one.

unify            tables below each other, of the same columns
stacked          the same of any columns
beside           tables side by side
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edcache.format.arrays import list_items, widened_float16
from edcache.format.arrow import pa
from edcache.format.types import Clash, chunk_clash, common_names, is_list, no_type, numbers_in

_OFFSET_LIMIT = 2**31 - 1  # what the int32 offsets of string and list can address


def unify(tables: Sequence[pa.Table], where: str, piece: str = "chunk") -> pa.Table:
    """Join the label tables of several chunks, in their order, by the rules of types.py.

    Args:
        tables: any number; none gives a table without columns. Columns are matched by name.
        where: what the error message begins with, usually the archive's path.
        piece: what it calls that which a table is of.
    Returns:
        A table with one contiguous array per column and no metadata. string and binary become their
        large_ forms past 2 GiB.
    Raises:
        LabelTypeError: `train.zip: label "y" is int64 in one chunk and string in another; ...`.
        LabelError: chunks with different columns.
    """
    if not tables:
        return pa.table({})
    names = common_names([table.column_names for table in tables], where)
    if not names:
        return tables[0] if len(tables) == 1 else pa.concat_tables([table.select([]) for table in tables])
    columns = [unify_column(name, [table.column(name) for table in tables], where, piece) for name in names]
    return pa.table(columns, names=names)


def unify_column(name: str, parts: Sequence[pa.ChunkedArray], where: str, piece: str = "chunk") -> pa.Array:
    """The parts of one column as one contiguous array; raises as `unify`."""
    kind = column_type(name, parts, where, piece)
    chunks = [_cast(chunk, kind) for part in parts for chunk in part.chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], type=kind)


def column_type(name: str, parts: Sequence[pa.ChunkedArray], where: str, piece: str = "chunk") -> pa.DataType:
    """The type of the parts of one column together; raises as `unify`."""
    whole, part = no_type(), parts[0]
    try:
        for part in parts:
            whole = whole.with_values(part.type, numbers_in(part))
    except Clash as clash:
        raise chunk_clash(name, (whole.arrow, part.type, str(clash)), where, piece) from None
    kind = whole.arrow
    if is_list(kind):
        items = sum(len(list_items(chunk)) for part in parts if is_list(part.type) for chunk in part.chunks)
        return pa.large_list(kind.value_type) if items > _OFFSET_LIMIT else kind
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    if kind in large and sum(part.nbytes for part in parts) > _OFFSET_LIMIT:
        return large[kind]
    return kind


def _cast(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    if chunk.type == kind:
        return chunk
    if pa.types.is_null(chunk.type):
        return pa.nulls(len(chunk), kind)
    if pa.types.is_float16(chunk.type):
        chunk = widened_float16(chunk)
    # Unchecked: Arrow would refuse exact ints past 2**53; ColumnType has seen every value.
    return chunk.cast(kind, safe=False)


def no_labels(names: Sequence[str]) -> pa.Table:
    """A label table with these columns and no rows."""
    return pa.table({name: pa.nulls(0) for name in names})


def stacked(tables: Sequence[pa.Table], counts: Sequence[int], where: str) -> pa.Table:
    """The rows of all tables, one table after the other; columns that one lacks are null there.

    Args:
        counts: the rows of each, which a table without columns cannot say.
    Raises:
        LabelTypeError: 'concat(): label "y" is int64 in one dataset and string in another; ...'.
    """
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    if not names:
        return tables[0]
    whole = []
    for table, count in zip(tables, counts, strict=True):
        nulls = pa.chunked_array([pa.nulls(count)])
        columns = [table.column(name) if name in table.column_names else nulls for name in names]
        plain = (c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in columns)
        whole.append(pa.table(list(plain), names=names))
    return unify(whole, where, "dataset")


def beside(tables: Sequence[pa.Table]) -> pa.Table:
    """The columns of tables of one length; of a name that is there twice the first."""
    columns: dict[str, pa.ChunkedArray] = {}
    for table in tables:
        for name in table.column_names:
            columns.setdefault(name, table.column(name))
    return pa.table(columns) if columns else tables[0]


def labelled_rows(table: pa.Table) -> npt.NDArray[np.int64]:
    """The rows that have a value in some column: int64, rising."""
    is_labelled = np.zeros(table.num_rows, bool)
    for column in table.columns:
        is_labelled |= column.is_valid().to_numpy()
    return np.flatnonzero(is_labelled)


def labelled_columns(table: pa.Table) -> pa.Table:
    """The columns that have a value in some row."""
    names = table.column_names
    return table.select([name for name in names if table.column(name).null_count < table.num_rows])
