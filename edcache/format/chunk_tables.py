"""What the chunks of an archive amount to: the newest record of every sample, and its labels.

The writer seals it into the file part by part; the reader needs it while an archive is not sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptArchiveError
from edcache.format import spec, tables
from edcache.format.arrays import pa, take_rows
from edcache.format.spec import Header
from edcache.format.tables import ChunkTable, Failure, Records
from edcache.format.types import WholeSchema, cast_table

TableOf = Callable[[Header], ChunkTable | None]
"""Reads the table of a chunk; None leaves its samples out."""

# Rows are merged in parts of about so many, or as many as lie side by side in chunks of one range.
_PART_ROWS: Final = 1 << 16
# Tables are read again for each pass, but for the first of so many bytes together.
_MOST_KEPT_NBYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Contents:
    """Where the record of every sample lies, by rising index, and their labels, row by row.

    index.records.index is None when no sample is absent; labels are what the chunks say. merged: for a merge
    of these chunks and more.
    """

    index: tables.IndexTable
    labels: Any
    merged: Merged | None = None


class _Span(NamedTuple):
    """A chunk that reads: its first sample, and the number of each of its schemas in the whole."""

    first: int
    header: Header
    schemas: npt.NDArray[np.int64]


class _MergedRows(NamedTuple):
    """Rows of chunks, by rising index: those of `columns`, one of which is the number of the chunk."""

    columns: dict[str, npt.NDArray[Any]]
    labels: Any

    def __len__(self) -> int:
        return len(self.columns["index"])


class Merged(NamedTuple):
    """What a merge of chunks came to, and all their newest rows."""

    chunks: list[Header]
    rows: _MergedRows | None
    label_types: WholeSchema
    most_rows: int
    is_compressed: bool
    schemas: list[str]
    blocks: npt.NDArray[np.int64]


class Merge:
    """Merges the tables of chunks; of two records of an index the later wins.

    Args:
        chunks: their headers, in chain order. label_names: of the labels where there is no chunk.
        failures: of samples that may have a record since.
        before: of the first of the chunks, whose tables are not read again.
    Attributes:
        most_rows: records of all chunks, outdated ones too. end_index: one more than the largest index.
        schemas, blocks: as in `IndexTable`. is_compressed: whether records have raw_nbytes.
        schema: the columns of labels, whose types hold the labels of all chunks, outdated ones too.
        rows, failures: once all parts were taken, how many records they have, and which samples have none.
    Raises: LabelError, as `unify`; CorruptArchiveError, there are too many schemas.

    `parts` takes some 100 bytes for each of `_PART_ROWS` rows, or for each row of chunks whose samples are
    mixed with one another.
    """

    def __init__(
        self,
        chunks: Sequence[Header],
        table_of: TableOf,
        label_names: Sequence[str],
        where: str,
        failures: Sequence[Failure] = (),
        before: Merged | None = None,
    ) -> None:
        self._table_of, self._where = table_of, where
        self.failures, self.rows = sorted(failures), 0
        self._kept: dict[int, ChunkTable] = {}
        self._spans: list[_Span] = []
        self._chunks = list(chunks)
        # The samples of a chunk whose table is damaged are missing, whichever chunk it is.
        self.end_index = max((header.end_index for header in chunks), default=0)
        if before is None or self._chunks[: len(before.chunks)] != before.chunks:
            before = Merged([], None, WholeSchema(where), 0, False, [], np.empty((0, 3), np.int64))
        self._before, self._labels = before, before.label_types.copy()
        self.most_rows, self.is_compressed = before.most_rows, before.is_compressed
        numbers = {text: number for number, text in enumerate(before.schemas)}
        blocks: list[tables.Blocks] = []
        room = _MOST_KEPT_NBYTES
        for header in self._chunks[len(before.chunks) :]:
            table = table_of(header)
            if table is None:
                continue
            if header.table_nbytes <= room:
                room -= header.table_nbytes
                self._kept[header.seq] = table
            self._labels.add(table.labels)
            own = [numbers.setdefault(text, len(numbers)) for text in table.schemas]
            self._spans.append(_Span(int(table.records.samples.min()), header, np.array(own, np.int64)))
            self.most_rows += len(table.records.offset)
            self.is_compressed |= table.records.raw_nbytes is not None
            crcs = header.payload_offset + header.table_nbytes - 4 * spec.block_count(table.records_nbytes)
            blocks.append(tables.Blocks(crcs, header.records_offset, table.records_nbytes))
        if len(numbers) > tables.MAX_SCHEMAS:
            raise CorruptArchiveError(
                f"{where}: {len(numbers):,} schemas, the format allows {tables.MAX_SCHEMAS:,}"
            )
        self.schemas = list(numbers)
        self.blocks = np.concatenate([before.blocks, np.array(blocks, np.int64).reshape(-1, 3)])
        no_labels = pa.schema([(name, pa.null()) for name in label_names])
        self.schema = self._labels.schema() if len(self.blocks) else no_labels

    def parts(self) -> Iterator[tuple[Records, Any]]:
        """Records with their index, which rises from part to part, and their labels, row by row.

        They may be taken again: then the tables are read again, but for the first ones.
        """
        for part in self._merged_rows():
            columns = {name: column for name, column in part.columns.items() if name != "seq"}
            yield Records(**columns), part.labels

    def _merged_rows(self) -> Iterator[_MergedRows]:
        self.rows = 0
        spans = sorted(self._spans, key=lambda span: span.first)
        rows_before = self._before.rows
        pending = [] if rows_before is None else [self._as_all(rows_before.columns, rows_before.labels)]
        # Rows that are pending, and that were left by the last part.
        count = left = sum(map(len, pending))
        if not spans:
            yield from map(self._counted, pending)
        for k, span in enumerate(spans):
            pending.append(self._rows(span))
            count += len(pending[-1])
            bound = spans[k + 1].first if k + 1 < len(spans) else spec.MAX_LENGTH
            # What stays is not joined again and again, where chunks have samples of all ranges.
            if k + 1 == len(spans) or count >= max(_PART_ROWS, 2 * left):
                whole = self._joined(pending)
                below = int(np.searchsorted(whole.columns["index"], bound))
                if below:
                    columns = {name: column[:below] for name, column in whole.columns.items()}
                    yield self._counted(_MergedRows(columns, whole.labels.slice(0, below)))
                rest = {name: column[below:] for name, column in whole.columns.items()}
                pending = [_MergedRows(rest, whole.labels.slice(below))]
                count = left = len(pending[0])

    def _counted(self, part: _MergedRows) -> _MergedRows:
        self.rows += len(part)
        if self.failures:
            failed = np.array([failure.index for failure in self.failures])
            self.failures = list(compress(self.failures, ~np.isin(failed, part.columns["index"])))
        return part

    def _rows(self, span: _Span) -> _MergedRows:
        header = span.header
        table = self._kept.get(header.seq) or self._table_of(header)
        if table is None:
            raise CorruptArchiveError(f"{self._where}: {header.name} changed while it was read")
        columns = table.records.columns()
        columns["offset"] = columns["offset"] + np.uint64(header.records_offset)
        columns["schema"] = span.schemas[columns["schema"]].astype(np.uint16)
        columns["seq"] = np.full(len(columns["offset"]), header.seq)
        return self._as_all(columns, table.labels)

    def _as_all(self, columns: dict[str, npt.NDArray[Any]], labels: Any) -> _MergedRows:
        """Rows with the columns, and labels of the types, that all of them have."""
        if self.is_compressed and "raw_nbytes" not in columns:
            columns = columns | {"raw_nbytes": np.zeros(len(columns["offset"]), np.uint64)}
        return _MergedRows(columns, cast_table(labels, self.schema))

    def _joined(self, pending: list[_MergedRows]) -> _MergedRows:
        """All rows by rising index, the newest of each."""
        columns = {k: np.concatenate([rows.columns[k] for rows in pending]) for k in pending[0].columns}
        labels = pa.concat_tables([rows.labels for rows in pending])
        index = columns["index"]
        if np.all(index[1:] > index[:-1]):
            return _MergedRows(columns, labels)
        order = np.lexsort((columns["seq"], index))
        ordered = index[order]
        kept = order[np.append(ordered[1:] != ordered[:-1], True)]
        labels = take_rows(labels.combine_chunks(), kept)
        return _MergedRows({name: column[kept] for name, column in columns.items()}, labels)

    def whole(self) -> Merged:
        """All parts as one."""
        parts, rows = list(self._merged_rows()), None
        if parts:
            names = parts[0].columns
            columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
            rows = _MergedRows(columns, pa.concat_tables([part.labels for part in parts]).combine_chunks())
        numbers = self.most_rows, self.is_compressed
        return Merged(self._chunks, rows, self._labels, *numbers, self.schemas, self.blocks)

    def index(self, length: int | None) -> tables.IndexTable:
        """The index of all parts, once they were taken, but for its records and label columns.

        Args:
            length: of the dataset, if it is known.
        """
        length = max(self.end_index, length or 0)
        failures = [failure for failure in self.failures if failure.index < length]
        return tables.IndexTable(no_records(), length, self.schemas, self.blocks, failures)


def no_records() -> Records:
    """Records of nothing."""
    names = [name for name in tables.COLUMNS if name != "raw_nbytes"]
    return Records(**{name: np.empty(0, tables.COLUMNS[name]) for name in names})


def merge(
    chunks: Sequence[Header],
    table_of: TableOf,
    length: int | None,
    label_names: Sequence[str],
    where: str,
    failures: Sequence[Failure] = (),
    before: Contents | None = None,
) -> Contents:
    """All that `Merge` gives, in memory: some 56 bytes a sample, and labels twice.

    before: of the first of these chunks. The cost is then that of the others, and a copy of all rows.
    """
    merge = Merge(chunks, table_of, label_names, where, failures, None if before is None else before.merged)
    merged = merge.whole()
    index, records = merge.index(length), no_records()
    # schema.empty_table() imports pandas (test_imports.py).
    labels = pa.table([pa.nulls(0, field.type) for field in merge.schema], schema=merge.schema)
    if merged.rows is not None:
        columns = {name: column for name, column in merged.rows.columns.items() if name != "seq"}
        records, labels = Records(**columns), merged.rows.labels
    if merge.rows == index.length:
        records = replace(records, index=None)
    return Contents(index._replace(records=records), labels, merged)
