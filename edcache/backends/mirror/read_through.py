"""A copy that is read while it fills: a sparse file, and which blocks of it were fetched.

What is read is fetched once, by whichever process of this machine needs it first, and kept (`block_fetcher`).
That a block is there proves nothing: what lies in it is compared with its crc32 as ever, and fetched again
where it does not fit (`ReadThrough.mend`).

Where `max_bytes` allows less than the archive, blocks go again, and the map says so before they go. So who
has read looks at it again: what was there before and after was there meanwhile. What is not worth a block is
read from far and not kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

import numpy as np
import numpy.typing as npt

from edcache import base, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.block_fetcher import BlockFetcher, Opener, Pinned
from edcache.backends.mirror.room import BLOCK_BITS, BLOCK_NBYTES
from edcache.base import ArchiveNotFoundError, CorruptRecordError, StaleArchiveError
from edcache.storage import File, Wrapped
from edcache.writer import LOCK_USE, PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

Ints = npt.NDArray[np.int64]

# Blocks that are fetched at once.
_AT_ONCE: Final = 256
# Up to this part of a copy, as a power of two, it is new.
_NEW_BITS: Final = 7
# How long looking ahead waits for a first batch that is not begun, under way, and done, in seconds.
_NOT_BEGUN, _UNDER_WAY, _DONE = range(3)
_HEAD_STARTS: Final = (0.2, 2.0, 0.0)
# How far is looked ahead.
_AHEAD_NBYTES: Final = 1 << 28
# How often a block may go while it is read, before it is read from far.
_MOST_LOOKS: Final = 3
# Where no more than this part of the records is missing when it is opened, all the rest is fetched too.
_REST: Final = 1 / 16


class ReadThrough(Wrapped):
    """An archive of which this machine has a copy, `data`, whole or not; messages name the origin.

    Safety: threads and forks; a child opens for itself what it writes to, and the origin.
    """

    def __init__(
        self, pinned: Pinned, data: File, is_whole: bool, opener: Opener, limit: int | None = None
    ) -> None:
        super().__init__(data)
        self.data: File = data
        self.path = pinned.source
        self.pinned = self.token = pinned
        self.is_partial = not is_whole
        self._nbytes = pinned.version.nbytes
        self.fetcher = BlockFetcher(pinned, data, self.is_partial, opener, limit)
        self.blocks = self.fetcher.blocks
        self._here, self._last = threading.local(), -1
        self._first = _NOT_BEGUN
        # Blocks that opening reads, until it is accepted, and then until they are fetched.
        self._touched: set[int] | None = set()
        self._opening: set[int] = set()
        # Blocks that are expected to be read, for which others go.
        self._worth: set[int] = set()

    def size(self) -> int:
        """Bytes of the origin when it was pinned."""
        return self._nbytes

    def reopened(self) -> ReadThrough:
        """The same copy; another state of the origin would be another one."""
        return reopened(self.pinned, self.fetcher.opener, self.fetcher.limit)

    def pread(self, offset: int, nbytes: int) -> bytes:
        """See `ByteSource`: fetches what was not yet; StaleArchiveError where the origin has changed."""
        nbytes = max(0, min(nbytes, self._nbytes - offset))
        blocks = _blocks(offset, nbytes)
        if self._touched is not None:
            self._touched.update(blocks)
        if not self.is_partial:
            return self.data.pread(offset, nbytes)
        passed = self._passed().get(offset, b"")
        if len(passed) >= nbytes:
            return bytes(passed[:nbytes])
        if (self._touched is not None or self._opening) and self.blocks.missing(blocks):
            # What an archive is opened by, the origin reads by few requests, some of them at once.
            origin = self.fetcher.origin()
            if self._touched is not None or origin.has_read(offset, nbytes):
                data = origin.pread(offset, nbytes)
                self.fetcher.check_identity(origin)
                return data
        # Records that are read one after the other make their block worth it.
        is_worth = nbytes >= BLOCK_NBYTES // 2 or self._last == blocks.start
        for _ in range(_MOST_LOOKS):
            before = bytes(self.blocks.known[blocks.start : blocks.stop])
            if all(state & 1 for state in before):
                data = self.data.pread(offset, nbytes)
                if self.blocks.look(blocks.start, blocks.stop) == before:
                    return data
            elif not self.fetcher.obtain(blocks, worth=None if is_worth else ()):
                break
        self._last = blocks[-1] if blocks else -1
        return bytes(self.fetcher.origin().read_many([(offset, nbytes)])[0])

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: where all is here, or there is room for all, it is read together."""
        if not self.is_partial:
            return self.data.read_many(extents)
        passed = self._passed()
        is_opened = self._touched is None and not self._opening
        for _ in range(_MOST_LOOKS if len(extents) > 1 and is_opened else 0):
            rest = [extent for extent in extents if len(passed.get(extent[0], b"")) < extent[1]]
            together = self._read_together(rest) if rest else []
            if together is not None:
                read = dict(zip(rest, together, strict=True))
                return [
                    read[extent] if extent in read else memoryview(passed[extent[0]])[: extent[1]]
                    for extent in extents
                ]
            # Blocks have gone since they were announced. One by one, each takes a round trip.
            start, nbytes = np.array(rest, np.int64).T
            self._pass(start, start + nbytes)
        return [memoryview(self.pread(*extent)) for extent in extents]

    def _read_together(self, extents: Sequence[tuple[int, int]]) -> list[memoryview] | None:
        """What extents hold; None where a block of them is not here, or goes meanwhile."""
        start, nbytes = np.array(extents, np.int64).T
        blocks, _ = self.blocks.around(start, start + nbytes)
        if self.fetcher.holds_all:
            self.fetcher.obtain(blocks.tolist())
        before = self.blocks.states(blocks)
        if not np.all(before & 1):
            return None
        data = self.data.read_many(extents)
        return data if np.array_equal(self.blocks.states(blocks), before) else None

    def announce(self, start: Ints, end: Ints) -> None:
        """See `ByteSource`: fetches what is missing of them, all at once."""
        if not self.is_partial:
            return
        is_first, self._first = self._first == _NOT_BEGUN, max(self._first, _UNDER_WAY)
        self._passed().clear()
        blocks, _ = self.blocks.around(start, end)
        if is_first and self._is_new(len(blocks) << BLOCK_BITS, int((end - start).sum())):
            self._pass(start, end)
            self._first = _DONE
            return
        blocks, worth = self._with_opening(blocks), None
        if self.fetcher.holds_all:
            blocks = self.blocks.unknown(blocks)
        else:
            worth = self.blocks.worth(start, end) | self._worth
        kept = [
            self.fetcher.obtain(blocks[first : first + _AT_ONCE].tolist(), worth=worth)
            for first in range(0, len(blocks), _AT_ONCE)
        ]
        if not all(kept):
            self._pass(start, end)
        self._first = _DONE

    @property
    def ahead_nbytes(self) -> int:  # type: ignore[override]
        """See `ByteSource`: a quarter of what there is room for."""
        if not self.is_partial or self.fetcher.is_full:
            return 0
        if self.fetcher.room is None or self.fetcher.room.holds_all():
            return _AHEAD_NBYTES
        return min(_AHEAD_NBYTES, self.fetcher.room.allowance()) // 4

    def lacking(self, start: Ints, end: Ints) -> list[tuple[int, int]]:
        """See `ByteSource`: blocks."""
        blocks = self.blocks.of(start, end)[1]
        if self.fetcher.holds_all:
            blocks = self.blocks.unknown(blocks)
        blocks = blocks[np.sort(np.unique(blocks, return_index=True)[1])]
        missing = set(self.blocks.missing(np.sort(blocks).tolist()))
        return [
            (block << BLOCK_BITS, min(block + 1 << BLOCK_BITS, self._nbytes))
            for block in blocks.tolist()
            if block in missing
        ]

    def expect(self, around: Callable[[], tuple[Ints, Ints]], is_new: bool) -> None:
        """See `ByteSource`; where there is no room for all, what is read soon goes last."""
        if self.fetcher.room is None or self.fetcher.holds_all:
            return
        soon = around()
        with closing(File.open(self.pinned.copy + SIDE, "r+")) as side:
            noted = self.fetcher.room.expect(
                side, list(dict.fromkeys(self.blocks.of(*soon)[1].tolist())), is_new
            )
        self._worth = self.blocks.worth(*soon) & noted

    def prepare(self, start: Ints, end: Ints) -> bool:
        """See `ByteSource`."""
        blocks = self._with_opening(self.blocks.around(start, end)[0]).tolist()
        # The first batch has the wire for itself. No lock: a fork could leave it taken.
        begun = time.monotonic()
        while time.monotonic() - begun < _HEAD_STARTS[self._first]:
            time.sleep(_HEAD_STARTS[_NOT_BEGUN] / 50)
        self._first = _DONE
        return self.fetcher.obtain(blocks, worth=None if self.fetcher.holds_all else self._worth, waits=False)

    def _with_opening(self, blocks: Ints) -> Ints:
        """Rising blocks, and for once those that it was opened by, which belong to the copy too."""
        opening, self._opening = self._opening, set()
        return np.union1d(blocks, sorted(opening)).astype(np.int64) if opening else blocks

    def _is_new(self, nbytes: int, wanted: int) -> bool:
        """Whether so little is here that a first batch shall wait for its records and not for all blocks."""
        most = self._nbytes >> _NEW_BITS
        is_worth = 2 * wanted <= nbytes and wanted <= most
        return is_worth and storage.allocated(self.pinned.copy + PARTIAL) <= most

    def _pass(self, start: Ints, end: Ints) -> None:
        """Read from far what of extents is not here, all at once, for this thread to read next."""
        known = np.frombuffer(self.blocks.known, np.uint8) & 1
        first, last = (np.clip(at >> BLOCK_BITS, 0, self.blocks.last) for at in (start, end - 1))
        far = np.flatnonzero((known[first] & known[last] == 0) & (end > start))
        extents = list(zip(start[far].tolist(), (end - start)[far].tolist(), strict=True))
        data = self.fetcher.read_far(extents)
        self._passed().update((offset, one) for (offset, _), one in zip(extents, data, strict=True))

    def _passed(self) -> dict[int, bytes | memoryview]:
        """What this thread has read from far for the batch that it makes, by offset."""
        passed: dict[int, bytes | memoryview] = vars(self._here).setdefault("passed", {})
        return passed

    def mend(self, offset: int, nbytes: int) -> bool:
        """See `ByteSource`; CorruptRecordError where it cannot be fetched again."""
        self._passed().clear()
        try:
            return self.fetcher.obtain_again(_blocks(offset, nbytes))
        except (base.ArchiveError, OSError) as error:
            raise CorruptRecordError(
                f"{self.data.path}: bytes {offset:,} to {offset + nbytes:,} fail their crc32, and cannot be "
                f"fetched again: {error}"
            ) from error

    def mend_opening(self) -> bool:
        """Fetch again all that was read so far; whether that can make a difference, which it can once."""
        blocks, self._touched = sorted(self._touched or ()), None
        return self.fetcher.obtain_again(blocks)

    def accept(self) -> None:
        """Say that what was read so far made sense."""
        self._opening, self._touched = self._touched or set(), None

    def close(self) -> None:
        """Let go of the copy, of the lock that says it is open, and of the origin."""
        self.data.close()
        self.fetcher.close()

    def finish(self, start: Ints, end: Ints) -> ReadThrough | None:
        """Where nearly all records are here, fetch the rest, prove all of it and give the copy its name.

        Gives the whole copy, opened. Who has this open goes on with it.
        """
        if not self.is_partial or not self.fetcher.holds_all:
            return None
        wanted = self.blocks.around(start, end)[0].tolist()
        if len(self.blocks.missing(wanted)) > _REST * max(1, len(wanted)):
            return None
        with sidecar.locked_side(self.pinned.copy, wait=False) as side:
            if side is None:
                return None
            try:
                self.fetcher.complete(side)
            except (base.ArchiveError, OSError) as error:
                logger.warning("%s: it stays a partial copy: %s", self.pinned.copy, error)
                return None
        whole = attached(self.pinned, self.fetcher.opener, self.fetcher.limit)
        return whole if whole is not None and not whole.is_partial else None


def _blocks(offset: int, nbytes: int) -> range:
    return range(offset >> BLOCK_BITS, (offset + nbytes - 1 >> BLOCK_BITS) + 1) if nbytes > 0 else range(0)


def reopened(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough:
    """Open a copy that is there; StaleArchiveError where it is gone."""
    file = attached(pinned, opener, limit)
    if file is None:
        raise StaleArchiveError(f"{pinned.copy}: this copy of {pinned.source} is gone; open it again")
    return file


def attached(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough | None:
    """Open a copy that is there, whole or not, so that it is not cleared away."""
    for name, is_whole in ((pinned.copy, True), (pinned.copy + PARTIAL, False), (pinned.copy, True)):
        try:
            data = File.open(name, "r")
        except ArchiveNotFoundError:
            continue
        try:
            data.share(LOCK_USE)
            # Between opening and sharing somebody may have deleted it, or given it its name.
            is_there = data.is_named() and data.size() == pinned.version.nbytes
        except BaseException:
            data.close()
            raise
        if is_there:
            note_use(pinned.copy)
            return ReadThrough(pinned, data, is_whole, opener, limit)
        data.close()
    return None
