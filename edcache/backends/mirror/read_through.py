"""A copy that is read while it fills: a sparse file, and which blocks of it were fetched.

What is read is fetched once, by whichever process of this machine needs it first, and kept. Who fetches a
block has its claim, a lock that the kernel frees with its holder; who needs it meanwhile waits for that.
That a block is there proves nothing: what lies in it is compared with its crc32 as ever, and fetched again
where it does not fit (`ReadThrough.mend`).

Where `max_bytes` allows less than the archive, blocks go again (`room`). The map says so before they go, and
who has read looks at it again: what was there before and after was there meanwhile. What is not worth a block
is read from far and not kept.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import base, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.block_map import BlockMap
from edcache.backends.mirror.copy import THREADS
from edcache.backends.mirror.fetch import Fetch, read_many
from edcache.backends.mirror.room import BLOCK_BITS, BLOCK_NBYTES, Room, claimed, runs
from edcache.backends.mirror.sidecar import CLAIMS, ROOM, Side, Version
from edcache.base import ArchiveNotFoundError, CorruptRecordError, PerProcess, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File, Wrapped
from edcache.writer import LOCK_USE, PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

Opener = Callable[[], ByteSource]
Ints = npt.NDArray[np.int64]

# What is asked of the origin at once, and in one piece.
_AT_ONCE, _RUN = 256, 16
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
_FULL: Final = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, errno.EROFS, errno.EACCES)


class Pinned(NamedTuple):
    """What names a copy to other processes: `copy` is its path once it is whole."""

    source: str
    copy: str
    version: Version


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
        self._opener, self._limit = opener, limit
        self._nbytes = pinned.version.nbytes
        self.blocks = BlockMap(pinned.copy, self._nbytes)
        # Where the whole archive fits, what it has stays, whoever reads it.
        self._room = None if limit is None or is_whole else Room(pinned.copy, self._nbytes, limit)
        self._here, self._last = threading.local(), -1
        self._out: File | None = None
        self._origin: PerProcess[ByteSource] = PerProcess()
        self._is_full = False
        # Bytes that batches may yet read without their blocks.
        self._alone, self._first = self._nbytes >> _NEW_BITS, _NOT_BEGUN
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
        return reopened(self.pinned, self._opener, self._limit)

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
            origin = self._open_origin()
            if self._touched is not None or origin.has_read(offset, nbytes):
                data = origin.pread(offset, nbytes)
                self._check_identity(origin)
                return data
        # Records that are read one after the other make their block worth it.
        is_worth = nbytes >= BLOCK_NBYTES // 2 or self._last == blocks.start
        for _ in range(_MOST_LOOKS):
            before = bytes(self.blocks.known[blocks.start : blocks.stop])
            if all(state & 1 for state in before):
                data = self.data.pread(offset, nbytes)
                if self.blocks.look(blocks.start, blocks.stop) == before:
                    return data
            elif not self._obtain(blocks, worth=None if is_worth else ()):
                break
        self._last = blocks[-1] if blocks else -1
        return bytes(self._open_origin().read_many([(offset, nbytes)])[0])

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
        if self._holds_all:
            self._obtain(blocks.tolist())
        before = self.blocks.states(blocks)
        if not np.all(before & 1):
            return None
        data = self.data.read_many(extents)
        return data if np.array_equal(self.blocks.states(blocks), before) else None

    def announce(self, start: Ints, end: Ints) -> None:
        """See `ByteSource`: fetches what is missing of them, all at once."""
        if not self.is_partial:
            return
        self._first = max(self._first, _UNDER_WAY)
        self._passed().clear()
        blocks, _ = self.blocks.around(start, end)
        if self._is_new(len(blocks) << BLOCK_BITS, int((end - start).sum())):
            self._pass(start, end)
            self._first = _DONE
            return
        blocks, worth = self._with_opening(blocks), None
        if self._holds_all:
            blocks = self.blocks.unknown(blocks)
        else:
            worth = self.blocks.worth(start, end) | self._worth
        kept = [
            self._obtain(blocks[first : first + _AT_ONCE].tolist(), worth=worth)
            for first in range(0, len(blocks), _AT_ONCE)
        ]
        if not all(kept):
            self._pass(start, end)
        self._first = _DONE

    @property
    def ahead_nbytes(self) -> int:  # type: ignore[override]
        """See `ByteSource`: a quarter of what there is room for."""
        if not self.is_partial or self._is_full:
            return 0
        if self._room is None or self._room.holds_all():
            return _AHEAD_NBYTES
        return min(_AHEAD_NBYTES, self._room.allowance()) // 4

    def lacking(self, start: Ints, end: Ints) -> list[tuple[int, int]]:
        """See `ByteSource`: blocks."""
        blocks = self.blocks.of(start, end)[1]
        if self._holds_all:
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
        if self._room is None or self._holds_all:
            return
        soon = around()
        with closing(File.open(self.pinned.copy + SIDE, "r+")) as side:
            noted = self._room.expect(side, list(dict.fromkeys(self.blocks.of(*soon)[1].tolist())), is_new)
        self._worth = self.blocks.worth(*soon) & noted

    def prepare(self, start: Ints, end: Ints) -> bool:
        """See `ByteSource`."""
        blocks = self._with_opening(self.blocks.around(start, end)[0]).tolist()
        # The first batch has the wire for itself. No lock: a fork could leave it taken.
        begun = time.monotonic()
        while time.monotonic() - begun < _HEAD_STARTS[self._first]:
            time.sleep(_HEAD_STARTS[_NOT_BEGUN] / 50)
        self._first = _DONE
        return self._obtain(blocks, worth=None if self._holds_all else self._worth, waits=False)

    def _with_opening(self, blocks: Ints) -> Ints:
        """Rising blocks, and for once those that it was opened by, which belong to the copy too."""
        opening, self._opening = self._opening, set()
        return np.union1d(blocks, sorted(opening)).astype(np.int64) if opening else blocks

    @property
    def _holds_all(self) -> bool:
        """Whether there is room for the whole archive."""
        return self._room is None or self._room.holds_all()

    def _is_new(self, nbytes: int, wanted: int) -> bool:
        """Whether so little is here that a batch shall not wait for all bytes of its blocks, but for its own.

        Blocks come by looking ahead then, or as soon as batches have read a part of the archive in this way.
        """
        if 2 * wanted > nbytes or wanted > self._alone:
            return False
        if storage.allocated(self.pinned.copy + PARTIAL) > self._nbytes >> _NEW_BITS:
            self._alone = 0
            return False
        self._alone -= wanted
        return True

    def _pass(self, start: Ints, end: Ints) -> None:
        """Read from far what of extents is not here, all at once, for this thread to read next."""
        known = np.frombuffer(self.blocks.known, np.uint8) & 1
        first, last = (np.clip(at >> BLOCK_BITS, 0, self.blocks.last) for at in (start, end - 1))
        far = np.flatnonzero((known[first] & known[last] == 0) & (end > start))
        extents = list(zip(start[far].tolist(), (end - start)[far].tolist(), strict=True))
        origin = self._open_origin()
        data = read_many(origin, extents)
        self._check_identity(origin)
        self._passed().update((offset, one) for (offset, _), one in zip(extents, data, strict=True))

    def _passed(self) -> dict[int, bytes | memoryview]:
        """What this thread has read from far for the batch that it makes, by offset."""
        passed: dict[int, bytes | memoryview] = vars(self._here).setdefault("passed", {})
        return passed

    def mend(self, offset: int, nbytes: int) -> bool:
        """See `ByteSource`; CorruptRecordError where it cannot be fetched again."""
        self._passed().clear()
        try:
            return self._fetch_again(_blocks(offset, nbytes))
        except (base.ArchiveError, OSError) as error:
            raise CorruptRecordError(
                f"{self.data.path}: bytes {offset:,} to {offset + nbytes:,} fail their crc32, and cannot be "
                f"fetched again: {error}"
            ) from error

    def mend_opening(self) -> bool:
        """Fetch again all that was read so far; whether that can make a difference, which it can once."""
        blocks, self._touched = sorted(self._touched or ()), None
        return self._fetch_again(blocks)

    def _fetch_again(self, blocks: Sequence[int]) -> bool:
        before = self.data.stamp()
        is_mended = bool(blocks) and self._obtain(blocks, again=True)
        if is_mended and not self.is_partial:
            # The side file knows the copy by its time; where another process copies anew it need not.
            with sidecar.locked_side(self.pinned.copy, wait=False) as side:
                note = None if side is None else side.read()
                version = None if note is None else note.version_of(before)
                if side is not None and version is not None:
                    side.replace(version, version._replace(stamp=self.data.stamp()))
        return is_mended

    def accept(self) -> None:
        """Say that what was read so far made sense."""
        self._opening, self._touched = self._touched or set(), None

    def close(self) -> None:
        """Let go of the copy, of the lock that says it is open, and of the origin."""
        for source in (self.data, self.blocks, self._out, self._origin.pop()):
            if source is not None:
                source.close()

    def finish(self, start: Ints, end: Ints) -> ReadThrough | None:
        """Where nearly all records are here, fetch the rest, prove all of it and give the copy its name.

        Gives the whole copy, opened. Who has this open goes on with it.
        """
        if not self.is_partial or not self._holds_all:
            return None
        wanted = self.blocks.around(start, end)[0].tolist()
        if len(self.blocks.missing(wanted)) > _REST * max(1, len(wanted)):
            return None
        with sidecar.locked_side(self.pinned.copy, wait=False) as side:
            if side is None:
                return None
            try:
                self._complete(side)
            except (base.ArchiveError, OSError) as error:
                logger.warning("%s: it stays a partial copy: %s", self.pinned.copy, error)
                return None
        whole = attached(self.pinned, self._opener, self._limit)
        return whole if whole is not None and not whole.is_partial else None

    def _complete(self, side: Side) -> None:
        copy, note = self.pinned.copy, side.read()
        if note is None or storage.exists(copy):
            return  # what has its name is a copy no more: somebody has changed it
        origin = self._open_origin()
        with closing(File.open(copy + PARTIAL, "r+")) as partial, side.file.locked(ROOM):
            Fetch(origin, THREADS).into(partial)
            self._check_identity(origin)
            side.publish(partial, copy, note._replace(versions=note.versions[:1]))

    # --- blocks ---

    def _obtain(
        self,
        blocks: Sequence[int],
        again: bool = False,
        worth: Collection[int] | None = None,
        waits: bool = True,
    ) -> bool:
        """Have rising blocks here, by fetching them or by waiting for who does; False where not all are kept.

        Args:
            again: fetch them whether they are here or not. worth: for which of them others may be freed.
            waits: for those that others fetch.
        """
        while missing := list(blocks) if again else self.blocks.missing(blocks):
            if self._is_full and not again:
                return False
            try:
                # A descriptor for each fetch: a claim is of the open file, so that threads exclude each other
                # too, and closing it ends all claims.
                side = File.open(self.pinned.copy + SIDE, "r+")
            except StorageError as error:
                self._keep_no_more(error)
                return False
            with closing(side):
                mine = claimed(side, missing, wait=again)
                if not mine and waits:
                    side.lock(CLAIMS + missing[0])
                # It may have been fetched between the look and the claim.
                lacking = self.blocks.missing(mine)
                if not self._fetch(side, mine if again else lacking, None if again else worth, not waits):
                    return False
            if len(mine) == len(missing) or not waits:
                break
        return True

    def _keep_no_more(self, error: StorageError) -> None:
        """Go on where there is no room, or no right, to write to a copy that is not whole; else raise it."""
        if not self.is_partial or error.errno not in _FULL:
            raise error
        self._is_full = True
        base.warn(f"{error}; what is not here yet is read from {self.path} every time")

    def _fetch(self, side: File, blocks: list[int], worth: Collection[int] | None, is_ahead: bool) -> bool:
        """Fetch rising blocks, of which the caller has the claims and has just looked at the map.

        Gives whether all are here now.
        """
        kept = blocks
        if blocks and self._room is not None:
            try:
                kept = self._room.take(side, self._open_out(), blocks, worth, is_ahead)
            except StorageError as error:
                self._keep_no_more(error)
                return False
        if not kept:
            return not blocks
        ranges = list(runs(kept, _RUN))
        starts = [(low << BLOCK_BITS, min(high << BLOCK_BITS, self._nbytes)) for low, high in ranges]
        extents = [(start, end - start) for start, end in starts]
        origin = self._open_origin()
        fetched = read_many(origin, extents)
        self._check_identity(origin)
        for (offset, nbytes), data in zip(extents, fetched, strict=True):
            if len(data) < nbytes:
                raise StorageError(
                    f"{self.path}: got {len(data):,} of {nbytes:,} bytes at offset {offset:,}; read again"
                )
        try:
            out = self._open_out()
            for (low, high), data in zip(ranges, fetched, strict=True):
                out.pwrite(low << BLOCK_BITS, data)
                if self.is_partial:
                    # Behind its bytes: who is killed in between has fetched for nothing, and that is all.
                    self.blocks.mark(side, low, high)
        except StorageError as error:
            self._keep_no_more(error)
            return False
        return len(kept) == len(blocks)

    def _open_out(self) -> File:
        """The copy, to be written; closed in a child that was forked meanwhile."""
        if self._out is None or self._out.closed:
            # Its name may have been that of a partial copy when this one was opened.
            try:
                out = File.open(self.pinned.copy, "r+")
            except ArchiveNotFoundError:
                out = File.open(self.pinned.copy + PARTIAL, "r+")
            if out.identity() != self.identity():
                raise StaleArchiveError(f"{out.path}: another copy is here now; open it again")
            self._out = out
        return self._out

    def keep_origin(self, origin: ByteSource) -> None:
        """Read from this one, which is open; it is closed with this."""
        self._origin.get(lambda: origin)

    def _open_origin(self) -> ByteSource:
        """The origin, as this process has it open."""

        def opened() -> ByteSource:
            origin = self._opener()
            try:
                self._check_identity(origin)
            except BaseException:
                origin.close()
                raise
            return origin

        return self._origin.get(opened)

    def _check_identity(self, origin: ByteSource) -> None:
        if sidecar.identity_of(origin) != self.pinned.version.identity:
            raise StaleArchiveError(
                f"{self.path}: it has changed since it was opened; open it again, which begins another copy"
            )


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
