"""What an archive holds: the tables of its chunks, read with care and merged into one.

Shared by the writer, which seals the merged tables into the file, and the reader, which needs the
same while an archive is not sealed. Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.errors import CorruptArchiveError
from edcache.format import Header, PRead
from edcache.labels.columns import unify
from edcache.labels.tables import ChunkTable, Dictionary, IndexTable, Records, parse_chunk_table

_PIECE_NBYTES = 1 << 22
MAX_SCHEMAS = 1 << 16


@dataclass(frozen=True, slots=True)
class Contents:
    """Every sample of an archive: where its record lies, and its labels, row by row.

    index: the records, sorted by sample index; index.records.index is None when no sample up to
    index.length is absent. labels: an Arrow table with the same rows, or no columns.
    """

    index: IndexTable
    labels: Any


def read_table(pread: PRead, header: Header, where: str) -> ChunkTable:
    """Read and check the table of one chunk.

    Raises:
        CorruptArchiveError: "train.zip: chunk 3 at offset 16,384: ...".
    """
    place = f"{where}: chunk {header.seq} at offset {header.offset:,}"
    data = pread(header.payload_offset, header.table_nbytes)
    if len(data) != header.table_nbytes or format.crc32(data) != header.table_crc:
        raise CorruptArchiveError(f'{place}: its table fails its crc32; run "edcache verify {where}"')
    try:
        table = parse_chunk_table(data, header.samples)
    except CorruptArchiveError as error:
        raise CorruptArchiveError(f"{place}: {error}") from error
    if not _within(header, table):
        raise CorruptArchiveError(f"{place}: its table points outside of it, or at a schema it has not")
    return table


def _within(header: Header, table: ChunkTable) -> bool:
    records, room = table.records, header.payload_end - header.records_offset
    if not len(records.offset):
        return True
    if room < 0 or records.index is None or int(records.schema.max()) >= len(table.schemas):
        return False
    if int(records.offset.max()) > room or int(records.nbytes.max()) > room:  # so that the sum cannot wrap
        return False
    ends = int((records.offset + records.nbytes).max())
    indices = int(records.index.min()), int(records.index.max())
    return ends <= room and indices[0] >= 0 and indices[1] == header.end_index - 1


def read_amendment(pread: format.PRead, header: Header, where: str) -> dict[str, Any]:
    """What an amendment revises.

    Raises:
        CorruptArchiveError: it fails its crc32 or is not one that a writer makes.
    """
    data = pread(header.payload_offset, header.table_nbytes)
    try:
        if format.crc32(data) != header.table_crc:
            raise ValueError("it fails its crc32")
        said = json.loads(data)
        if not isinstance(said, dict) or type(said.get("length", 0)) is not int or said.get("length", 0) < 0:
            raise ValueError(f"it says {said!r}")
    except (ValueError, RecursionError) as error:
        place = f"{where}: amendment {header.seq} at offset {header.offset:,}"
        raise CorruptArchiveError(f"{place}: {error}") from error
    return said


def payload_crc(pread: PRead, header: Header) -> int:
    """The crc32 that an entry's payload has, to compare with `header.payload_crc`; reads all of it."""
    crc, position = 0, header.payload_offset
    while position < header.payload_end:
        part = pread(position, min(_PIECE_NBYTES, header.payload_end - position))
        if not part:
            break
        crc = format.crc32(part, crc)
        position += len(part)
    return crc


def merge(
    chunks: Sequence[Header],
    tables: Callable[[Header], ChunkTable | None],
    dictionaries: Sequence[Header],
    length: int | None,
    where: str,
) -> Contents:
    """Merge the tables of chunks in chain order into one; of two records of an index the later wins.

    Args:
        tables: reads the table of a chunk; None leaves its samples out.
        length: what the head or an amendment says; None takes one more than the largest index.
    Cost: some 40 bytes of memory a sample, and its labels twice.
    """
    rows = sum(header.samples for header in chunks)
    merged = _Columns(rows)
    schemas: dict[str, int] = {}
    labels: list[Any] = []
    end_index = 0
    for header in chunks:
        table = tables(header)
        if table is None:
            continue
        merged.add(header, table, schemas)
        labels.append(table.labels)
        end_index = max(end_index, header.end_index)
    if len(schemas) > MAX_SCHEMAS:
        raise CorruptArchiveError(f"{where}: {len(schemas):,} schemas, the format allows {MAX_SCHEMAS:,}")
    length = max(end_index, length or 0)
    records, table = merged.records(), unify(labels, where)
    assert records.index is not None
    kept = _newest(records.index)
    if kept is not None:
        records, table = records.take(kept), table.take(kept)
    if len(records.offset) == length:
        records = replace(records, index=None)
    known = [Dictionary(d.payload_offset, d.table_nbytes, d.table_crc) for d in dictionaries]
    return Contents(IndexTable(records, length, list(schemas), known), table)


class _Columns:
    """The columns of many chunks, filled one chunk after the other into arrays of the final size."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._used = 0
        self._columns: dict[str, npt.NDArray[Any]] = {
            "offset": np.empty(rows, np.uint64),
            "nbytes": np.empty(rows, np.uint64),
            "crc32": np.empty(rows, np.uint32),
            "schema": np.empty(rows, np.uint16),
            "index": np.empty(rows, np.int64),
        }

    def add(self, header: Header, table: ChunkTable, schemas: dict[str, int]) -> None:
        """Take in a chunk, its offsets counted from the start of the file, its schemas archive-wide."""
        part = table.records
        if part.raw_nbytes is not None and "raw_nbytes" not in self._columns:
            self._columns["raw_nbytes"] = np.zeros(self._rows, np.uint64)
        numbers = [schemas.setdefault(text, len(schemas)) for text in table.schemas]
        rows = slice(self._used, self._used + len(part.offset))
        for name, values in part.columns().items():
            self._columns[name][rows] = values
        self._columns["offset"][rows] += np.uint64(header.records_offset)
        self._columns["schema"][rows] = np.array(numbers, np.int64)[part.schema]
        self._used = rows.stop

    def records(self) -> Records:
        """The rows taken in."""
        return Records(**{name: column[: self._used] for name, column in self._columns.items()})


def _newest(index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """The rows to keep, sorted by index; None where all stay as they are."""
    if np.all(index[1:] > index[:-1]):
        return None
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    kept: npt.NDArray[np.int64] = order[last]
    return kept
