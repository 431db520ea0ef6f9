"""The label tables of several datasets as one: below each other, or side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edcache.labels.arrow import pa
from edcache.labels.columns import unify


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
