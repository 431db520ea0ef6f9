"""The payloads of a seal, made of those of the seal before where one revision is all that came since."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from edcache import format
from edcache.base import CorruptArchiveError
from edcache.format import Chain, Extent, Header, Placed, PRead, Revision, StoredLabels, pa

_PIECE_NBYTES = 1 << 22


class Sealed(NamedTuple):
    """What a seal says: the payload of index.pages, which is written, and the labels, which are to be.

    rows: of the index. length: of the dataset. label_rows: of the labels. batches: their tables, in order.
    """

    pages: format.Written
    rows: int
    length: int
    schema: pa.Schema
    batches: Iterable[pa.Table]
    label_rows: int


def revised_seal(
    pread: PRead,
    chain: Chain,
    before: tuple[Header, Header],
    revision: Revision,
    write: Callable[[Any], None],
) -> Sealed | None:
    """The seal of a chain whose last entry is a revision, and `before` the seal just before that.

    Returns: what the chunks would make, or None where those alone tell: samples are missing, or a type may
        change.
    Raises: CorruptArchiveError, now or from `batches`: the seal before is damaged, the chunks may not be.
    Cost: reads no chunk. Copies the index, and the labels batch by batch.
    """
    index, labels = before
    if index.samples != index.end_index:
        return None
    stored = _stored(pread, labels, chain.where)
    if not _keeps_types(stored, revision, chain):
        return None
    kept = [field for field in stored.schema if field.name not in revision.dropped]
    known = {field.name for field in kept}
    schema = pa.schema([*kept, *(field for field in revision.labels.schema if field.name not in known)])
    written = _copied_index(pread, index, schema.names, revision, write)
    batches = _revised(stored, revision, schema, chain.where)
    return Sealed(written, index.samples, index.end_index, schema, batches, index.samples)


def _stored(pread: PRead, header: Header, where: str) -> StoredLabels:
    """The labels of a seal; CorruptArchiveError, then or at their first use, where they are damaged."""

    def load(parts: Sequence[Extent]) -> list[memoryview]:
        data = [memoryview(pread(header.payload_offset + part.at, part.nbytes)) for part in parts]
        if any(format.crc32(one) != part.crc32 for one, part in zip(data, parts, strict=True)):
            raise CorruptArchiveError(f"{where}: labels.arrow at offset {header.offset:,} fails its crc32")
        return data

    at = header.table_offset - header.payload_offset
    (table,) = load([Extent(at, header.table_nbytes, header.table_crc)])
    return format.parse_label_table(table, header.payload_nbytes, header.samples, load, where=where)


def _keeps_types(stored: StoredLabels, revision: Revision, chain: Chain) -> bool:
    """Whether the columns that a revision changes surely have the types that they had."""
    # Of all values of a column, replaced ones too.
    nbytes = sum(header.table_nbytes for header in (*chain.chunks, *chain.revisions))
    old = {field.name: field.type for field in stored.schema if field.name not in revision.dropped}
    for field in revision.labels.schema:
        kind = old.get(field.name, field.type)
        if field.type not in (kind, pa.null()) or format.may_be_large(kind, nbytes):
            return False
    return len(stored.schema) > 0


def _copied_index(
    pread: PRead, header: Header, names: Sequence[str], revision: Revision, write: Callable[[Any], None]
) -> format.Written:
    """Write the pages and blocks of an index again, and its table with other columns of labels."""
    crc, position = 0, header.payload_offset
    while position < header.table_offset:
        part = pread(position, min(_PIECE_NBYTES, header.table_offset - position))
        if not part:
            raise CorruptArchiveError("index.pages is cut")
        write(part)
        crc, position = format.crc32(part, crc), position + len(part)
    table = pread(position, header.table_nbytes)
    if format.crc32(table, crc) != header.payload_crc:
        raise CorruptArchiveError("index.pages fails its crc32")
    table = format.relabelled_root(table, names, revision)
    write(table)
    nbytes = position - header.payload_offset + len(table)
    return format.Written(nbytes, format.crc32(table, crc), len(table), format.crc32(table))


def _revised(stored: StoredLabels, revision: Revision, schema: pa.Schema, where: str) -> Iterator[pa.Table]:
    start = 0
    for batch in stored.batches():
        count = batch.num_rows
        if revision.index is None:
            part = Revision(revision.labels.slice(start, count), revision.dropped)
        else:
            low, high = np.searchsorted(revision.index, (start, start + count)).tolist()
            rows = revision.index[low:high] - start
            part = Revision(revision.labels.slice(low, high - low), revision.dropped, rows)
        table = format.revised(batch, None, np.full(count, -1), [Placed(0, part)], count, where).table
        yield format.cast_table(table, schema)
        start += count
