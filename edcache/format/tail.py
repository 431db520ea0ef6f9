"""Bytes behind the last entry of a chain: a torn tail, the loss of a power cut, or damage.

What writers leave:

- A killed one leaves payloads whose header is all zeros, as it is written last. Of a seal it may leave the last
  headers, in their places, without the first one.
- A power cut takes whole sectors that were not synced, in any combination: they are zeros, or as the disk was before.
  It may take the end of the file too. The headers of a seal are not synced until its end record stands.

So these mean damage, in each boot: a header that is written and does not fit; an entry of this archive behind, at any
offset, unless a power cut may have taken the entry before it; a root that the end of the file points at, if the file
was synced before that end was written. Without a power cut the first header of a seal shows that all of it was written,
and any header that its payload was: where the rest lacks, as in a copy that broke off, that is damage too. Damage is
never cut off: readers and writers refuse it, and `save(skip_damaged=True)` keeps the sound samples.

What must never happen: that an append takes bytes away that hold a sound sample. After a power cut a chunk that lost
something is replaced by its sound records (`find_loss`), and so are chunks behind a header that is lost
(writer/recovery.py).

`is_fresh` means that no power was cut since the file was written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import CorruptArchiveError
from edcache.format.chain import Chain
from edcache.format.entries import (
    ALONE,
    CHUNK,
    CRC32_FROM_LINK,
    LEAST_HEADER_NBYTES,
    MAGIC,
    MAX_HEADER_NBYTES,
    PAGE,
    PART,
    ROOT,
    Cursor,
    Header,
    PRead,
    check_release,
    entry_at,
    parse_header,
    read_sound,
    stored_crc32,
    walk,
)
from edcache.format.records import are_sound, read_table
from edcache.format.root import parse_root, read_root

NextData = Callable[[int], int]
"""`next_data(offset)` finds the next bytes from an offset on that are not a hole of the file."""

_WINDOW: Final = 1024 * PAGE
_FEW_BITS: Final = 8


def find_damage(chain: Chain, pread: PRead, next_data: NextData, size: int, is_fresh: bool) -> str | None:
    """Describe the damage of a file of `size` bytes that was walked; None for a torn tail or the loss of a power
    cut.

    Raises: LaterReleaseError, an entry that only a later release knows stands behind the end: whether it counts, that
    release knows.
    """
    if chain.unread is not None:
        header, group = chain.unread
        synced = header.durable >= group if header.kind == ROOT else chain.durable >= header.next
        if is_fresh or synced:
            return f"{header.name} at offset {header.offset:,} fails its crc32"
    stop = _missing_entry(chain, pread, size)
    what = f"no entry fits at offset {stop.offset:,}, but"
    start = pread(stop.offset, min(MAX_HEADER_NBYTES, max(0, size - stop.offset)))
    there = parse_header(start)
    is_its_own = there is not None and (there.offset, there.number, there.link) == stop
    if there is not None and is_its_own and there.payload_end > size:
        if is_fresh:
            return f"the file ends within {there.name} at offset {there.offset:,}"
    elif is_fresh and stop != chain.cursor:
        return f"{what} a seal has begun before it"
    elif len(start) >= LEAST_HEADER_NBYTES and _is_damaged_header(start, stop.link):
        return f"{what} other bytes stand there"
    sealed = read_root(pread, size, chain.where)
    if sealed is not None:
        root, place = sealed
        was_written = is_fresh or root.is_synced or root.head.uuid != chain.head.uuid
        if was_written and place.offset > stop.offset:
            return f"{what} root.json follows, the payload at offset {place.offset:,}"
    # From the last payload on: where bytes were taken out, what follows has moved into it.
    for at, header in later_headers(pread, next_data, chain.last.payload_offset, size):
        if header.uuid != chain.head.uuid:
            if at == header.offset:
                return f"{what} {header.name} of another archive stands at offset {at:,}"
            continue  # in a record
        if at == header.offset <= stop.offset:
            continue  # of the seal that is not whole
        check_release(header, chain.where)
        is_of_seal = header.kind not in ALONE
        was_synced = header.durable > stop.offset
        if at != header.offset or was_synced or (is_fresh and not is_of_seal):
            return f"{what} {header.name} follows at offset {at:,}"
    return None


def _missing_entry(chain: Chain, pread: PRead, size: int) -> Cursor:
    """Find the cursor of the entry that is missing: the next one of the chain, or one in a seal that is not whole."""
    cursor = chain.cursor
    while (header := entry_at(pread, size, chain.head.uuid, cursor, chain.where)) is not None:
        cursor = Cursor.behind(header)
    return cursor


def _is_damaged_header(data: bytes, link: int) -> bool:
    """Tell a damaged header, which was written whole, from zeros, garbage, and one that was written or cut in part.

    A damaged one has the link of its place, but for a few bits. One in part has zeros for its begin or its crc32.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), 8)
    differing = np.unpackbits(windows ^ np.frombuffer(link.to_bytes(8, "little"), np.uint8), axis=1).sum(
        axis=1
    )
    at = int(differing.argmin())
    has_begin = any(data[: len(MAGIC)]) or at < LEAST_HEADER_NBYTES // 2  # it has moved: bytes were taken out
    has_crc32 = any(data[at + CRC32_FROM_LINK :][:4])
    return int(differing.min()) <= _FEW_BITS and has_begin and has_crc32


def later_headers(
    pread: PRead, next_data: NextData, start: int, end: int, uuid: bytes | None = None
) -> Iterator[tuple[int, Header]]:
    """Yield the headers of an archive from `start` to `end`, each with its place, which may not be its own offset.

    uuid: of the archive; None for any.

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
            if header is not None and uuid in (None, header.uuid):
                yield position + at, header
            at = data.find(MAGIC, at + 1)
        position += _WINDOW


def salvaged(chain: Chain, pread: PRead, next_data: NextData, size: int) -> Chain:
    """Walk a damaged archive again, also behind the damage; returns another chain.

    A chunk, a part or a note counts where it is, also within the last payload, if bytes were taken out. A root behind
    the damage counts if it stands at its offset, as it says where all else lies, and if its index is sound.
    """
    found = Chain(chain.head, chain.head_header, chain.where)
    groups = walk(pread, size, found.head.uuid, found.first, found.where)
    walked = [(one.offset, one) for group in groups for one in group]
    behind = later_headers(pread, next_data, chain.last.payload_offset, size, chain.head.uuid)
    for at, header in [*walked, *behind]:
        check_release(header, chain.where)
        one = replace(header, moved=at - header.offset)
        is_next = found.last.number < one.number
        counts = one.kind in ALONE or (one.kind == ROOT and _counts_alone(pread, one, chain))
        if is_next and counts and one.payload_end <= size:
            found.add(pread, [one])
    return found


def _counts_alone(pread: PRead, root: Header, walked: Chain) -> bool:
    """True if a root is of the walked chain, or stands at its offset with a sound index."""
    if walked.root_header is not None and root.number <= walked.root_header.number:
        return True
    data = None if root.moved else read_sound(pread, root.payload)
    if data is None:
        return False
    index = parse_root(data, root.payload_end, walked.where).index
    return stored_crc32(pread, index) == index.crc32


class Loss(NamedTuple):
    """Entries that a power cut took.

    end: offset of the first group that is lost with all behind it, or None. chunks: others that lost table or records.
    ends: zip directories of seals that entries follow, each with its offset and as it was; no reader needs them.
    """

    end: int | None
    chunks: list[Header]
    ends: list[tuple[int, bytes]]


NO_LOSS: Final = Loss(None, [], [])


def find_loss(chain: Chain, pread: PRead, mended: Collection[int] = ()) -> Loss:
    """Find what a power cut took of the groups of a chain: reads all payloads that are not durable.

    A seal is passed over if its headers say that its payloads were synced before them. One that was not counts no more
    if a chunk before it lost something: its index has rows of that chunk.

    mended: numbers of chunks that lost something, whose sound records stand in others.
    """
    chunks: list[Header] = []
    ends: list[tuple[int, bytes]] = []
    known = Chain(chain.head, chain.head_header, chain.where)
    for group in walk(pread, chain.cursor.offset, chain.head.uuid, chain.first, chain.where):
        last, start = group[-1], group[0].offset
        if known.sealed and start > chain.durable:
            ends += _torn_end(known, pread, start)
        known.add(pread, group)
        if last.kind == ROOT and last.durable >= start:
            continue
        suspect = [
            one
            for one in group
            if one.payload_end > chain.durable
            and one.number not in mended
            and stored_crc32(pread, one.payload) != one.crc32
        ]
        if last.kind in (CHUNK, PART):
            chunks += [one for one in suspect if not _is_whole(pread, one, chain.where)]
        elif suspect or (last.kind == ROOT and chunks):
            return Loss(min(one.offset for one in [*chunks, *group]), [], ends)
    return Loss(None, chunks, ends)


def _torn_end(chain: Chain, pread: PRead, stop: int) -> list[tuple[int, bytes]]:
    """Return the zip directory of the last seal, and zeros up to the next entry at `stop`, if other bytes stand there.

    Nothing if they do not fill the place, as another writer may have left it.
    """
    assert chain.root_header is not None
    start = chain.root_header.payload_end
    if not 0 <= stop - chain.end < PAGE:
        return []
    expected = chain.directory().ljust(stop - start, b"\0")
    return [(start, expected)] if pread(start, stop - start) != expected else []


def _is_whole(pread: PRead, header: Header, where: str) -> bool:
    """True if the table and all records of a chunk are sound: what fails its crc32 then is padding."""
    sound = find_sound(pread, header, where)
    return sound is not None and bool(sound.all())


def find_sound(pread: PRead, header: Header, where: str) -> npt.NDArray[np.bool_] | None:
    """Mark the rows of a chunk whose records are sound: bool [n]; None if its table is not.

    Behind the end of the file are zeros.
    """
    try:
        rows = read_table(pread, header, where).rows
    except CorruptArchiveError:
        return None
    start = header.payload_offset
    return are_sound(rows, memoryview(pread(start, header.nbytes).ljust(header.nbytes, b"\0")), start)
