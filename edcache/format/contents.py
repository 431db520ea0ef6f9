"""`Contents`: the rows and labels of an archive, from its last root and the chunks behind it.

An archive that is not sealed has no index as a whole. It is made of these, each over the ones before:

1. The rows of the last root, if there is one; they stand for all chunks before it.
2. The rows of each chunk behind it, in the order of the chain, so the last record of a sample counts.

- The merge is an assignment, sample by sample. A seal writes it window by window; a reader takes all at once.
- A chunk numbers its schemas for itself: its rows get the archive's numbers here.
- A row in the file has a sum that is bound to its place. In memory it has the crc32 of the record (`bound`), and an
  index binds it again.
- A label column of the root has the values of all chunks before it, and the ones that were added since. A column that
  the root dropped counts no more, in later chunks too.
- Its type holds the values of all chunks (`joined_schema`); a sample without a value is null.
- Once a root has numbered samples anew, the chunks before it count by its rows alone.
- A chunk whose table is damaged has no samples here (`TableOf` gives None); a seal raises instead.
- `verify` compares the root with the chunks alone (`of_chunks`).

Cost: reads the table of each chunk behind the last root once, if all have at most 64 MiB; beyond, again for each window
and each column.

What must never happen: that a row of the root overrides one of a later chunk; that a seal takes rows from an index
whose crc32 was not compared. A reader need not compare it: each row is bound to its record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from edcache.base import CorruptArchiveError, Ints
from edcache.format.arrays import addressing, from_numpy, missing_rows, one_chunk, pa
from edcache.format.chain import Chain
from edcache.format.columns import read_column
from edcache.format.entries import CHUNK, PART, Header, Place, PRead, came_again, reported, stored_crc32
from edcache.format.key_table import KEY_COLUMN, KeyTable, column_hashes, has_keys, pack_keys
from edcache.format.records import (
    MAX_SCHEMAS,
    PRESENT,
    ROW,
    ChunkTable,
    Failure,
    Rows,
    bound,
    salt,
)
from edcache.format.root import Root, read_places
from edcache.format.types import cast, joined_schema

TableOf = Callable[[Header], ChunkTable | None]
"""Reads the table of a chunk; None leaves its samples out."""

WINDOW: Final = 1 << 21
"""Samples that a seal merges at once: 48 MiB of rows."""
# Bytes of tables that are kept; others are read again for each window and column.
_MOST_KEPT_NBYTES: Final = 1 << 26


class Contents:
    """Rows and labels of an archive.

    Args:
        chain: walked to its end. pread: reads the file. table_of: reads the table of a chunk.
        of_chunks: True takes rows and label columns from all chunks, none from the root unless it is reordered.
        checks_index: False takes rows of the root's index one by one, as a reader of a sealed archive does.
        parts: that a seal to come will make count. Their samples get numbers behind all others, in the order of the
            parts and of their rows.
    Attributes:
        length: of the dataset, and of the parts behind it, which have `part_count` samples. schemas: of the rows.
        schema: names and types of the label columns.
        columns: of the root, by name.
    Raises: CorruptArchiveError: there are too many schemas; at the first use, the root's index or a column of it fails
        its crc32.
        LabelError, as `joined_schema`.
    """

    def __init__(
        self,
        chain: Chain,
        pread: PRead,
        table_of: TableOf,
        *,
        of_chunks: bool = False,
        checks_index: bool = True,
        parts: Sequence[Header] = (),
    ) -> None:
        self._chain, self._pread, self._table_of = chain, pread, table_of
        last = chain.root
        # Chunks before an index of another order have other numbers.
        of_chunks = of_chunks and not chain.is_reordered
        root = self._root = None if of_chunks else last
        self._unchecked = root.index if root is not None and checks_index else None
        self.columns = {} if root is None else dict(root.labels)
        dropped = () if last is None else last.dropped
        self._names = [name for name, _ in chain.head.labels if name not in dropped]
        self._kept: dict[int, ChunkTable] = {}
        self._last: dict[str, pa.ChunkedArray] = {}
        numbers = {text: number for number, text in enumerate(root.schemas if root is not None else ())}
        room = _MOST_KEPT_NBYTES
        kinds = {name: column.type for name, column in self.columns.items()}
        schema = pa.schema([(name, kinds.get(name, pa.null())) for name in self._names])
        label_nbytes = Counter({name: column.place.nbytes for name, column in self.columns.items()})
        # Chunks that read, with the number of each of their schemas here. What the root has includes all before it.
        self._chunks: list[tuple[Header, Ints]] = []
        counting = [one for one in chain.chunks if one.kind == CHUNK] if of_chunks else chain.behind
        end = max([chain.length or 0, 0 if last is None else last.length, *(one.end for one in counting)])
        for header in [*counting, *parts]:
            table = table_of(header)
            if table is None:
                continue
            if header.kind == PART:
                header = replace(header, first=end, end=end + len(table.rows))
                end = header.end
            if header.table_nbytes <= room:
                room -= header.table_nbytes
                self._kept[header.number] = table
            known = [numbers.setdefault(text, len(numbers)) for text in table.schemas]
            self._chunks.append((header, np.array(known, np.int64)))
            with reported(f"{chain.where}: {header.name}: its labels"):
                labels = table.labels.select(self._names)
            schema = joined_schema(schema, labels.schema, chain.where)
            label_nbytes.update({name: labels.column(name).nbytes for name in self._names})
        if len(numbers) > MAX_SCHEMAS:
            raise CorruptArchiveError(f"{chain.where}: {len(numbers):,} schemas, at most {MAX_SCHEMAS:,} fit")
        self.schemas = list(numbers)
        self.length = end
        self.part_count = sum(one.end - one.first for one, _ in self._chunks if one.kind == PART)
        kinds |= {field.name: addressing(field.type, label_nbytes[field.name]) for field in schema}
        names = [*self._names, *(name for name in self.columns if name not in self._names)]
        self.schema = pa.schema([(name, kinds[name]) for name in names])

    def held(self) -> Ints:
        """List the samples that have a record, rising: int64 [n]; of 10**9 samples few may have one."""
        windows = self._of_root(0, self.length)
        known = [first + np.flatnonzero(rows["flags"] & PRESENT) for first, rows in windows]
        own = [samples for samples, _, _ in self._tables(0, self.length)]
        return np.unique(np.concatenate([np.empty(0, np.int64), *known, *own]))

    def rows(self, start: int, stop: int) -> Rows:
        """Return the rows of samples from `start` to `stop` as in memory, new; all zeros for an absent one."""
        try:
            rows = np.zeros(stop - start, ROW)  # takes memory as it is written
        except (MemoryError, ValueError) as error:  # numpy says so of more than it can count
            what = f"the rows of {stop - start:,} samples are more than fit in memory; fill it and seal it"
            raise CorruptArchiveError(f"{self._chain.where}: {what}") from error
        self._check_index()
        for first, known in self._of_root(start, stop):
            rows[first - start : first - start + len(known)] = known
        for samples, table, numbers in self._tables(start, stop):
            places, inside = _places(samples, start, stop)
            rows[places] = table.rows[inside]
            rows["schema"][places] = numbers[table.rows["schema"][inside]]
        return rows

    def _of_root(self, start: int, stop: int) -> Iterator[tuple[int, Rows]]:
        """Yield the rows of a range that the last root has, as in memory: windows, each with its first sample."""
        if self._root is None:
            return
        offset, end = self._root.index.offset, min(stop, self._root.length)
        for first in range(start, end, WINDOW):
            count = min(end - first, WINDOW)
            # All were checked together: that these are the same, a second answer tells.
            data = self._pread(offset + ROW.itemsize * first, ROW.itemsize * count, came_again())
            rows = np.frombuffer(data, ROW, count)
            yield first, bound(np.arange(first, first + count), rows, salt(self._chain.head.uuid, offset))

    def _check_index(self) -> None:
        where, index = self._chain.where, self._unchecked
        if index is not None and stored_crc32(self._pread, index) != index.crc32:
            raise CorruptArchiveError(
                f"{where}: index.rows at offset {index.offset:,} fails its crc32", path=where
            )
        self._unchecked = None

    def column(self, name: str, start: int = 0, stop: int | None = None) -> pa.Array:
        """Return the values of a label column for samples from `start` to `stop`; null for an absent one."""
        stop = self.length if stop is None else stop
        kind = self.schema.field(name).type
        pick, parts, count = np.full(stop - start, -1), [], 0

        def put(places: Any, values: pa.Array) -> None:
            nonlocal count
            pick[places] = np.arange(count, count + len(values))
            parts.append(cast(values, kind))
            count += len(values)

        stored = self._stored(name)
        if stored is not None and start < len(stored):
            before = one_chunk(stored.slice(start, stop - start))
            put(slice(0, len(before)), before)
        if name in self._names:
            for samples, table, _ in self._tables(start, stop):
                places, inside = _places(samples, start, stop)
                chunk = table.labels.column(name).chunk(0)
                put(places, chunk if type(inside) is slice else chunk.take(from_numpy(inside, pa.int64())))
        if not parts:
            return pa.nulls(len(pick), kind)
        values = pa.concat_arrays(parts)
        is_whole = np.array_equal(pick, np.arange(len(values)))
        return values if is_whole else values.take(from_numpy(pick, pa.int64(), pick < 0))

    def table(self) -> pa.Table:
        """Return all labels: row i is sample i."""
        columns = [self.column(name) for name in self.schema.names]
        return pa.table(columns, schema=self.schema)

    def failures(self, rows: Rows) -> list[Failure]:
        """List the failures of samples without a record, by rising index. rows: of all samples."""
        found = [failure for _, failure in self._chain.failures.values() if failure.index < len(rows)]
        return sorted(one for one in found if not rows["flags"][one.index] & PRESENT)

    def keys(self) -> KeyTable | None:
        """Make the table of the keys; None if no column has them."""
        if KEY_COLUMN not in self.schema.names:
            return None
        column = self.column(KEY_COLUMN)
        if not has_keys(column.type):
            return None
        table = pack_keys(column_hashes(column.drop_null()), np.flatnonzero(~missing_rows(column)))
        return KeyTable(*table, self.length, self._chain.where)

    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield consecutive ranges of samples, of at most `WINDOW`."""
        for start in range(0, self.length, WINDOW):
            yield start, min(start + WINDOW, self.length)

    def _tables(self, start: int, stop: int) -> Iterator[tuple[Ints, ChunkTable, Ints]]:
        """Yield the samples and tables of chunks with some of a range, and the numbers of their schemas, in order."""
        for header, numbers in self._chunks:
            if header.first < stop and header.end > start:
                table = self._kept.get(header.number) or self._table_of(header)
                if table is None:
                    raise CorruptArchiveError(f"{self._chain.where}: {header.name} changed while it was read")
                # The header of a part has the numbers that its samples have here.
                is_part = header.kind == PART
                yield np.arange(header.first, header.end) if is_part else table.samples, table, numbers

    def _stored(self, name: str) -> pa.ChunkedArray | None:
        """Read a column of the root; the last one is kept, for the next window."""
        if name not in self.columns or self._root is None:
            return None
        if name not in self._last:
            labels = StoredLabels(self._root, partial(read_places, self._pread), self._chain.where)
            self._last = {name: labels.column(name)}
        return self._last[name]


def column_of_records(field: pa.Field, tables: Iterable[ChunkTable], rows: Rows) -> pa.Array | None:
    """Make a label column of what chunks say of the records of rows; None if they do not have all records.

    A record has its place in one chunk, also if its sample got another number since. A damaged row has another crc32:
    it may name the record of another sample, and its own sample gets null.

    rows: of all samples, as in memory.
    """
    known = [table for table in tables if field.name in table.labels.column_names]
    values = [cast(table.labels.column(field.name).chunk(0), field.type) for table in known]
    stored = np.concatenate([np.empty(0, ROW), *(table.rows for table in known)])
    order, held = np.argsort(stored["offset"]), np.flatnonzero(rows["flags"] & PRESENT)
    at = np.searchsorted(stored["offset"], rows["offset"][held], sorter=order)
    if np.any(at == len(stored)) or np.any(stored["offset"][order[at]] != rows["offset"][held]):
        return None
    pick = np.full(len(rows), -1)
    pick[held] = np.where(stored["crc32"][order[at]] == rows["crc32"][held], order[at], -1)
    return pa.concat_arrays([pa.nulls(0, field.type), *values]).take(from_numpy(pick, pa.int64(), pick < 0))


class StoredLabels:
    """Label columns of a sealed archive, each checked when it is read. None is kept.

    Args:
        read: reads the bytes of several places, None for one that fails its crc32. where: the archive's path.
    Attributes: schema, num_rows: as of a pyarrow Table.
    """

    def __init__(
        self, root: Root, read: Callable[[Sequence[Place]], Sequence[bytes | memoryview | None]], where: str
    ) -> None:
        self.num_rows = root.length
        self._root, self._read, self._where = root, read, where

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return pa.schema([(name, column.type) for name, column in self._root.labels.items()])

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in their order."""
        return list(self._root.labels)

    def column(self, name: str) -> pa.ChunkedArray:
        """Read a column. Raises: CorruptArchiveError, it is damaged."""
        return self.columns([name])[name]

    def columns(self, names: Sequence[str]) -> dict[str, pa.ChunkedArray]:
        """Read columns together, as views of the bytes that were read. Raises: CorruptArchiveError, one is damaged."""
        places = [self._root.labels[name].place for name in names]
        columns = {}
        for name, data, place in zip(names, self._read(places), places, strict=True):
            if data is None:
                raise CorruptArchiveError(
                    f"{self._where}: the label column {name!r} at offset {place.offset:,} fails its crc32; "
                    f'"edcache copy {self._where} -o NEW --skip-damaged" keeps what is sound',
                    path=self._where,
                )
            columns[name] = read_column(data, name, self._root.labels[name].type, self.num_rows)
        return columns


def _places(samples: Ints, start: int, stop: int) -> tuple[Any, Any]:
    """Find the rows of a chunk in a range of samples: their places there, and the rows; slices if possible."""
    first, count = int(samples[0]), len(samples)
    if start <= first and int(samples[-1]) == first + count - 1 < stop and np.all(np.diff(samples) == 1):
        return slice(first - start, first - start + count), slice(None)
    inside = np.flatnonzero((samples >= start) & (samples < stop))
    # numpy assigns in order: if a chunk has a sample twice, the last record counts.
    return samples[inside] - start, inside
