"""Records of a damaged archive with their labels: picked, and put one behind the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptArchiveError
from edcache.format import MAX_SCHEMAS, Contents, Records, take_rows, unify

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Records with their offsets in the file and their index, their schemas, and their labels row by row."""

    records: Records
    schemas: list[str]
    labels: Any

    @property
    def index(self) -> Ints:
        """The sample of each."""
        assert self.records.index is not None
        return self.records.index


def rows_of(contents: Contents) -> Rows:
    """All that an index lists."""
    return Rows(indexed(contents.index.records), contents.index.schemas, contents.labels)


def indexed(records: Records) -> Records:
    """The same with an index, where row i is sample i without one."""
    return records if records.index is not None else replace(records, index=np.arange(len(records.offset)))


def without(rows: Rows, index: Ints) -> Rows:
    """Those of other samples than these."""
    kept = np.flatnonzero(~np.isin(rows.index, index))
    return Rows(rows.records.take(kept), rows.schemas, take_rows(rows.labels, kept))


def joined(first: Rows, second: Rows, where: str) -> Rows:
    """Both together, one behind the other.

    Raises:
        CorruptArchiveError: more schemas than an index may have.
    """
    if not len(second.index):
        return first
    schemas = list(dict.fromkeys([*first.schemas, *second.schemas]))
    if len(schemas) > MAX_SCHEMAS:
        raise CorruptArchiveError(f"{where}: {len(schemas):,} schemas, the format allows {MAX_SCHEMAS:,}")
    compresses = any(rows.records.raw_nbytes is not None for rows in (first, second))
    columns = []
    for rows in (first, second):
        numbers = np.array([*map(schemas.index, rows.schemas), 0], np.uint16)
        own = rows.records.columns() | {"schema": numbers[rows.records.schema]}
        if compresses:
            own.setdefault("raw_nbytes", np.zeros(len(rows.index), np.uint64))
        columns.append(own)
    records = Records(**{name: np.concatenate([own[name] for own in columns]) for name in columns[0]})
    labels = unify([first.labels, second.labels], where) if len(first.index) else second.labels
    return Rows(records, schemas, labels)
