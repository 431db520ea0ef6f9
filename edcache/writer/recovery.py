"""Recovery: files without a sample, of a creator that died within the head or of a first fill that failed; torn tails.

A file without a sample is begun again. Behind the last entry of a chain stands a torn tail, which the next writer cuts
off: of a killed writer it has no sample (format/tail.py). A power cut may leave whole chunks behind what it took. No
reader finds them, but they are set aside before the cut: a file beside, with the head and these bytes in their places,
of which `edcache copy --skip-damaged` keeps the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from edcache import base, format, storage
from edcache.base import (
    ArchiveExistsError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    PartialArchiveWarning,
)
from edcache.format import HEAD_NAME, PAGE, Chain, Head
from edcache.storage import File

_HEAD_PREFIX: Final = format.pack_head(Head(bytes(16)))[: 30 + len(HEAD_NAME)]
CUT: Final = ".edcache.cut-"
"""Ending of the name of a file of what was cut off, before an offset."""
_SECTOR: Final = 512
_COPIED_NBYTES: Final = 1 << 24
_CONSTANT: Final = [*range(14), *range(18, len(_HEAD_PREFIX))]  # the rest is a crc32


def discard_abandoned(path: str, begins_anew: Callable[[Head], bool]) -> None:
    """Delete the file of a first fill that failed before its first sample, if its head is to go.

    It is not cut: a process that has it open finds that it lost its name.
    """
    with suppress(ArchiveNotFoundError):
        with closing(File.open(path, "r")) as file:
            if not _is_abandoned(file, begins_anew):
                return
        with closing(File.open(path, "r+")) as file, file.locked(format.LOCK_APPEND):
            if file.is_named() and _is_abandoned(file, begins_anew):
                storage.remove(path)


def _is_abandoned(file: File, begins_anew: Callable[[Head], bool]) -> bool:
    try:
        head, cursor = format.read_head(file.pread, file.path)
    except CorruptArchiveError:
        return False  # opening it says so
    if not begins_anew(head) or file.is_locked(format.LOCK_FILLER, format.FILLERS):
        return False
    chain = Chain(head, cursor, file.path)
    chain.extend(file.pread, file.size())
    # Bytes behind may be a chunk with a damaged header.
    holds_nothing = chain.holds_nothing and file.size() <= chain.cursor.offset
    # One that has grown is as long as its notes say (tests/kit/model.py).
    return holds_nothing and begins_anew(replace(head, length=chain.length))


def never_created(path: str) -> bool:
    """True if a path holds at most the file of a creator that died within the head."""
    with closing(File.open(path, "r")) as file:
        return lacks_head(file)


def lacks_head(file: File, head: Head | None = None) -> bool:
    """True if the file holds at most a head that its creator did not live to finish.

    Killed, it left the head's first bytes. After a power cut any of them may read as zero.

    Args:
        head: to be written there: more zeros than it has bytes are somebody else's file.
    """
    size = file.size()
    if size > format.MAX_HEAD_NBYTES:
        return False
    start = file.pread(0, min(size, PAGE))
    header = format.parse_header(start)
    if header is not None:
        if size != header.next:
            return size < header.next
        return format.payload_crc32(file.pread, header) != header.crc32
    if any(start[i] != _HEAD_PREFIX[i] for i in _CONSTANT if i < size):
        most = format.MAX_HEAD_NBYTES if head is None else len(format.pack_head(head))
        return size <= most and _is_torn_head(file.pread(0, size))
    return size <= PAGE


def _is_torn_head(data: bytes) -> bool:
    """True if the first sector of a file has zeros, and the others zeros or the JSON of a head."""
    return (
        not data[:_SECTOR].strip(b"\0")
        and data.replace(b"\0", b"").isascii()
        and (not data.strip(b"\0") or (len(data) % PAGE == 0 and data.rstrip().endswith(b"}")))
    )


def set_aside(file: File, chain: Chain) -> None:
    """Copy the bytes behind the end of a chain to a file beside, if a sound sample stands among them; warns of it."""
    end, size = chain.end, file.size()
    later = format.later_headers(file.pread, file.next_data, end, size, chain.head.uuid)
    chunks = (one for _, one in later if one.kind == format.CHUNK and one.payload_end <= size)
    if not any(format.has_sound_record(file.pread, header, file.path) for header in chunks):
        return
    with closing(_beside(f"{file.path}{CUT}{end}")) as kept:
        for start, stop in ((0, chain.first.offset), (end, size)):
            for at in range(start, stop, _COPIED_NBYTES):
                kept.pwrite(at, file.pread(at, min(_COPIED_NBYTES, stop - at)))
        kept.sync()
        base.warn(
            f"{file.path}: a power cut took bytes that were not synced; {size - end:,} bytes behind offset {end:,} are "
            f'cut off, and kept in {kept.path}: "edcache copy {kept.path} -o NEW --skip-damaged" reads it',
            PartialArchiveWarning,
        )


def _beside(path: str) -> File:
    """Make a file of a name that is free."""
    name, number = path, 1
    while True:
        with suppress(ArchiveExistsError):
            return File.open(name, "x")
        number += 1
        name = f"{path}-{number}"
