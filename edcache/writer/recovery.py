"""What a crash may have left of an archive, and opening it nevertheless: format.py has each crash point."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Final

from edcache import format, storage
from edcache.base import ArchiveNotFoundError, CorruptArchiveError
from edcache.format import PAGE, Chain, Head, find_headers
from edcache.storage import File
from edcache.writer.log import Log

_MOST_RANGES: Final = 100  # as JSON they fit into one page behind a header
_HEAD_PREFIX: Final = format.pack_head(Head(bytes(16)))[: 30 + len("edcache.json")]
_CONSTANT: Final = [*range(14), *range(26, len(_HEAD_PREFIX))]  # the rest is crc32 and sizes


def recover(path: str) -> None:
    """Do to an archive what opening it for appending does, for one who reads before writing."""
    with closing(File.open(path, "a")) as file, file.locked(format.LOCK_APPEND):
        recover_log(Log(file, *format.read_head(file.pread, path), "never"))


def recover_log(log: Log) -> None:
    """Take in what is there, and make it an archive that reads, whatever a crash left; append lock held."""
    log.catch_up()
    is_fresh = storage.written_since_boot(log.file)
    end, size = log.end, log.file.size()
    if size > end:
        _refuse_damage(log, is_fresh, end, size)
    if not is_fresh:
        _give_up_lost(log)
    if size > end:
        # Behind a chain that a power cut broke there may be a seal still, which readers would believe.
        log.cut_torn_tail()


def _refuse_damage(log: Log, is_fresh: bool, end: int, size: int) -> None:
    """Raise CorruptArchiveError for damage, behind which entries stand that are no torn tail to cut off.

    A kill leaves no whole entry behind a broken one, but the labels of a seal. A power cut may, where
    that entry does not say that everything before it was synced; none came after a fresh file was written.
    """
    if log.chain.gave_up_last:
        return
    for later in find_headers(log.file, end, size, log.head.uuid):
        is_behind = later.offset > end and later.kind != format.KIND_LABELS
        if is_behind and (is_fresh or later.durable > end):
            raise CorruptArchiveError(
                f"{log.file.path}: no entry fits at offset {end:,}, but {later.name} follows at offset "
                f'{later.offset:,}: it is damaged there; "edcache copy --skip-damaged" keeps what is sound'
            )


def _give_up_lost(log: Log) -> None:
    """Write down what a power cut took, so that everyone counts those samples as missing.

    In one write within one page, which no kill can leave half done, and before anything else is written:
    with a half, or with the torn tail cut first, the file would look as if written since the machine
    started, and the next writer would not look for losses. As the tail is not cut, what lies behind may
    be an entry that followed the very same amendment once, in a recovery that lost its power too; with a
    hash of it in the amendment, its link does not fit (tests/faults/test_crash_states.py).
    """
    lost = _few_ranges(sorted(log.chain.find_lost(log.file.pread)))
    if lost:
        behind = log.file.pread(log.chain.cursor.offset + PAGE, format.MAX_HEADER_NBYTES)
        loss = {"lost": lost, "behind": f"{format.link_after(behind):016x}"}
        text = json.dumps(loss, separators=(",", ":")).encode("ascii")
        assert len(text) <= PAGE - format.HEADER_NBYTES
        log.publish_whole(format.KIND_AMENDMENT, text, at_once=True)


def _few_ranges(numbers: list[int]) -> list[list[int]]:
    """The ranges [first, last] that hold these numbers; where they are too many, others between them too."""
    gaps = [
        (after - before, i) for i, (before, after) in enumerate(pairwise(numbers), 1) if after > before + 1
    ]
    splits = sorted(i for _, i in heapq.nlargest(_MOST_RANGES - 1, gaps))
    bounds = [0, *splits, len(numbers)]
    return [[numbers[start], numbers[stop - 1]] for start, stop in pairwise(bounds) if stop]


def discard_abandoned(path: str, begins_anew: Callable[[Head], bool]) -> None:
    """Delete what a first fill left that failed before its first sample, where its head is to go.

    Deleted, not cut: who has it open finds that it lost its name.
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
    # What lies behind may be a chunk of which the header is damaged.
    holds_nothing = chain.holds_nothing and file.size() <= chain.cursor.offset
    # One that has grown is as long as its amendments say (tests/kit/model.py).
    return holds_nothing and begins_anew(replace(head, length=chain.length))


def never_created(path: str) -> bool:
    """True if a path holds at most what a creator left that died within the head."""
    with closing(File.open(path, "r")) as file:
        return lacks_head(file)


def lacks_head(file: File, head: Head | None = None) -> bool:
    """True if the file holds at most a head that its creator did not live to finish.

    Killed, it left the head's first bytes. After a power cut any of them may read as zero.

    Args:
        head: what is to be written there: more zeros than it has bytes are somebody else's file.
    """
    size = file.size()
    if size > format.MAX_HEAD_NBYTES:
        return False
    start = file.pread(0, min(size, PAGE))
    header = format.parse_header(start)
    if header is not None:
        if size != header.next:
            return size < header.next
        return format.crc32(file.pread(header.nbytes, size - header.nbytes)) != header.payload_crc
    if any(start[i] != _HEAD_PREFIX[i] for i in _CONSTANT if i < size):
        most = format.MAX_HEAD_NBYTES if head is None else len(format.pack_head(head))
        return size <= most and not file.pread(0, size).strip(b"\0")
    return size <= PAGE
