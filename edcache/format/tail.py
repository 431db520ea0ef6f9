"""The bytes behind the last entry of a chain: a torn tail, what a power cut left, or damage.

What writers leave:

- A killed one leaves payloads whose header is all zeros, as it is written last. Of a seal it may leave the last
  headers, in their places, without the first one.
- A power cut takes whole sectors of what was not synced, which then are zeros, in any combination. The headers of a
  seal are not synced until its end record stands.

So anything else means damage, in whatever boot: other bytes than zeros in the place of the next header; an entry of
this archive that stands behind, at whatever offset, unless a power cut may have taken the one before it; a root that
the end of the file points at, if the file was synced before that end was written. Damage is never cut off: readers and
writers refuse it, and `save(skip_damaged=True)` keeps what is sound. What must never happen: that an append takes
bytes away that somebody could have read.

`is_fresh` means that no power was cut since the file was written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptArchiveError, PartialArchiveWarning, warn
from edcache.format.chain import Chain
from edcache.format.entries import (
    CHUNK,
    LEAST_HEADER_NBYTES,
    MAGIC,
    MAX_HEADER_NBYTES,
    NOTE,
    PAGE,
    PART,
    ROOT,
    Cursor,
    Header,
    PRead,
    align,
    entry_at,
    parse_header,
    payload_crc32,
    walk,
)
from edcache.format.records import Rows, are_sound, read_table, stored_ends
from edcache.format.root import read_root

NextData = Callable[[int], int]
"""`next_data(offset)` finds the next bytes from an offset on that are not a hole of the file."""

_SECTOR: Final = 512
_WINDOW: Final = 1024 * PAGE


def find_damage(chain: Chain, pread: PRead, next_data: NextData, size: int, is_fresh: bool) -> str | None:
    """Describe the damage of a file of `size` bytes that was walked; None for a torn tail or the loss of a power
    cut."""
    if chain.unread is not None:
        header, group = chain.unread
        synced = header.durable >= group if header.kind == ROOT else chain.durable >= header.next
        if is_fresh or synced:
            return f"{header.name} at offset {header.offset:,} fails its crc32"
    stop = _missing_entry(chain, pread, size)
    what = f"no entry fits at offset {stop.offset:,}, but"
    if is_fresh and stop != chain.cursor:
        return f"{what} a seal has begun before it"
    if not _is_unwritten(pread, stop, size):
        return f"{what} other bytes than zeros stand there"
    sealed = read_root(pread, size, chain.where)
    if sealed is not None and sealed[1].offset > stop.offset and (is_fresh or sealed[0].is_synced):
        return f"{what} root.json follows, the payload at offset {sealed[1].offset:,}"
    # Where bytes were taken out, what follows has moved into the payload before.
    start = chain.first.offset if chain.last is None else chain.last.payload_offset
    for at, header in later_headers(pread, next_data, start, size, chain.head.uuid):
        if at == header.offset <= stop.offset:
            continue  # of the seal that is not whole
        is_of_seal = header.kind not in (CHUNK, NOTE)
        was_synced = header.durable > stop.offset
        if at != header.offset or was_synced or (is_fresh and not is_of_seal):
            return f"{what} {header.name} follows at offset {at:,}"
    return None


def _missing_entry(chain: Chain, pread: PRead, size: int) -> Cursor:
    """Find the cursor of the entry that is missing: that of the chain, or one in a seal that is not whole."""
    cursor = chain.cursor
    while (header := entry_at(pread, size, chain.head.uuid, cursor, chain.where)) is not None:
        cursor = Cursor.behind(header)
    return cursor


def _is_unwritten(pread: PRead, stop: Cursor, size: int) -> bool:
    """True if the place of a header has zeros, or if the file ends before the payload of the entry does."""
    data = pread(stop.offset, min(MAX_HEADER_NBYTES, max(0, size - stop.offset)))
    if len(data) < LEAST_HEADER_NBYTES or not data[:LEAST_HEADER_NBYTES].strip(b"\0"):
        return True
    header = parse_header(data)
    return (
        header is not None
        and (header.offset, header.number, header.link) == stop
        and header.payload_end > size
    )


def later_headers(
    pread: PRead, next_data: NextData, start: int, end: int, uuid: bytes
) -> Iterator[tuple[int, Header]]:
    """Yield the headers of an archive from `start` to `end`, each with its place, which may not be its own offset.

    Cost: reads all bytes but holes.
    """
    position = start
    while position < end:
        position = max(position, next_data(position))
        # A header may begin at the end of the window.
        data = pread(position, max(0, min(_WINDOW + MAX_HEADER_NBYTES, end - position)))
        if not data:
            return
        at = data.find(MAGIC)
        while 0 <= at < _WINDOW:
            header = parse_header(data[at : at + MAX_HEADER_NBYTES])
            if header is not None and header.uuid == uuid:
                yield position + at, header
            at = data.find(MAGIC, at + 1)
        position += _WINDOW


def salvage(chain: Chain, pread: PRead, next_data: NextData, size: int) -> None:
    """Add the chunks behind a damaged place of a chain."""
    for at, header in list(later_headers(pread, next_data, chain.cursor.offset, size, chain.head.uuid)):
        if header.kind == CHUNK and at == header.offset and header.payload_end <= size:
            chain.add(pread, [header])


def find_loss(chain: Chain, pread: PRead) -> int | None:
    """Find the offset of the first group from which a power cut took sectors; None if it took none.

    Reads the payloads that are not durable. A seal is passed over if its headers say that its payloads were synced
    before them. What fails its crc32 and lacks no sector is damage. It stays, as nothing proves more to be lost;
    reading it raises.
    Warns: PartialArchiveWarning, of such damage.
    """
    for group in walk(pread, chain.cursor.offset, chain.head.uuid, chain.first, chain.where):
        if group[-1].kind == ROOT and group[-1].durable >= group[0].offset:
            continue
        for header in group:
            if header.payload_end > chain.durable and payload_crc32(pread, header) != header.crc32:
                if _lacks_sector(pread, header, chain.where):
                    return group[0].offset
                what = f"{header.name} at offset {header.offset:,} fails its crc32"
                warn(
                    f'{chain.where}: {what}; "edcache verify {chain.where}" tells what of it',
                    PartialArchiveWarning,
                )
    return None


def has_sound_record(pread: PRead, header: Header, where: str) -> bool:
    """True if a reader of a chunk could read one of its samples."""
    try:
        rows = read_table(pread, header, where).rows
    except CorruptArchiveError:
        return False
    return bool(_are_sound(pread, header, rows).any())


def _lacks_sector(pread: PRead, header: Header, where: str) -> bool:
    """True if a sector of zeros explains why a payload fails its crc32."""
    start = header.payload_offset
    extents = [(start, header.payload_end)]
    if header.kind in (CHUNK, PART):
        try:
            rows = read_table(pread, header, where).rows
        except CorruptArchiveError:
            extents = [(start, start + header.table_nbytes)]
        else:
            failing = rows[~_are_sound(pread, header, rows)]
            extents = list(zip(failing["offset"].tolist(), stored_ends(failing).tolist(), strict=True))
    return any(_has_zero_sector(pread, max(start, low // _SECTOR * _SECTOR), high) for low, high in extents)


def _are_sound(pread: PRead, header: Header, rows: Rows) -> npt.NDArray[np.bool_]:
    start = header.payload_offset
    return are_sound(rows, memoryview(pread(start, header.nbytes)), start)


def _has_zero_sector(pread: PRead, start: int, end: int) -> bool:
    """True if a sector between two offsets has nothing but zeros; the first may begin behind a header."""
    first = align(start + 1, _SECTOR)
    edges = [start, *range(first, align(end, _SECTOR) + 1, _SECTOR)]
    data = pread(start, edges[-1] - start)
    return any(not data[low - start : high - start].strip(b"\0") for low, high in itertools.pairwise(edges))
