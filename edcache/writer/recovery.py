"""Files without a sample, of a creator that died within the head, or of a first fill that failed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Final

from edcache import format, storage
from edcache.base import ArchiveNotFoundError, CorruptArchiveError
from edcache.format import HEAD_NAME, PAGE, Chain, Head
from edcache.storage import File

_HEAD_PREFIX: Final = format.pack_head(Head(bytes(16)))[: 30 + len(HEAD_NAME)]
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
        return size <= most and not file.pread(0, size).strip(b"\0")
    return size <= PAGE
