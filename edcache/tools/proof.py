"""The bytes of one chunk against its crc32s: payload, blocks and records, from one read of each byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from edcache import format
from edcache.base import Ints
from edcache.format import ChunkTable, Header, PRead

# A multiple of the block; what is read stays in a processor's cache while three checksums pass over it.
_WINDOW: Final = 64 * format.BLOCK_NBYTES
_SHOWN: Final = 20

OnProblem = Callable[[int, str], None]
"""`on_problem(offset, what)`; the offset counts from the start of the file."""


def check_layout(header: Header, table: ChunkTable, on_problem: OnProblem) -> None:
    """Report records that are not aligned; `read_table` saw that none reaches into another. Reads nothing."""
    records = table.records
    alignment = np.where(records.nbytes >= 1024, np.uint64(64), np.uint64(8))
    rows = np.flatnonzero(records.offset % alignment)
    _report_rows(header, table, rows, "is not aligned", on_problem)


def check_chunk(
    pread: PRead, header: Header, table: ChunkTable, table_bytes: bytes, on_problem: OnProblem
) -> int:
    """Compare records, blocks and gaps of a chunk with its table; returns the crc32 of its payload.

    Memory: a window of 1 MiB, whatever the chunk's size.
    """
    check_layout(header, table, on_problem)
    records, first_offset, crc32 = table.records, header.records_offset, format.crc32
    start = records.offset.astype(np.int64)
    end = start + records.nbytes.astype(np.int64)
    # A record may reach over many windows.
    crcs, block_crcs = np.zeros(len(start), np.uint32), b""
    has_foreign = False
    crc = crc32(format.padding_of(pread, header), crc32(table_bytes))
    for base in range(0, header.payload_end - first_offset, _WINDOW):
        nbytes = min(_WINDOW, header.payload_end - first_offset - base)
        window = memoryview(pread(first_offset + base, nbytes))
        if not window:
            break  # the file was cut
        crc = crc32(window, crc)
        block_crcs += format.block_crcs(window[: max(0, table.records_nbytes - base)])
        first, last = np.searchsorted(end, base, "right"), np.searchsorted(start, base + len(window))
        low = (start[first:last] - base).clip(0)
        high = (end[first:last] - base).clip(None, len(window))
        parts = zip(low.tolist(), high.tolist(), crcs[first:last].tolist(), strict=True)
        crcs[first:last] = [crc32(window[begin:stop], before) for begin, stop, before in parts]
        foreign = _foreign(window, np.append(0, high), np.append(low, len(window)))
        if len(foreign) and not has_foreign:
            has_foreign = True
            on_problem(first_offset + base + int(foreign[0]), "bytes that belong to no record are not zero")
    _report_rows(header, table, np.flatnonzero(crcs != records.crc32), "fails its crc32", on_problem)
    if block_crcs != table_bytes[len(table_bytes) - table.behind_nbytes :]:
        on_problem(first_offset, "the crc32 of its blocks do not fit its records")
    return crc


def _foreign(window: memoryview, start: Ints, end: Ints) -> Ints:
    """Where bytes of some gaps are not zero."""
    nbytes = end - start
    places = np.repeat(end - np.cumsum(nbytes), nbytes) + np.arange(nbytes.sum())
    foreign: Ints = places[np.frombuffer(window, np.uint8)[places] != 0]
    return foreign


def _report_rows(header: Header, table: ChunkTable, rows: Ints, what: str, on_problem: OnProblem) -> None:
    assert table.records.index is not None
    for row in rows[:_SHOWN].tolist():
        offset = header.records_offset + int(table.records.offset[row])
        on_problem(offset, f"record {int(table.records.index[row])} {what}")
    if len(rows) > _SHOWN:
        more = f"{len(rows) - _SHOWN:,} more records of {header.name}"
        on_problem(header.records_offset, f"the same of {more}")
