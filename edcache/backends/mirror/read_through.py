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
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, nullcontext
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import base, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.copy import THREADS, current
from edcache.backends.mirror.evict import left_by_others, limit_of
from edcache.backends.mirror.fetch import Fetch, read_many, sealed
from edcache.backends.mirror.room import BLOCK_BITS, BLOCK_NBYTES, Room, claimed, runs
from edcache.backends.mirror.sidecar import CLAIMS, MAP_OFFSET, ROOM, Identity, Note, Side, Version, stamp_of
from edcache.base import ArchiveNotFoundError, CorruptRecordError, PerProcess, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File, Location, Wrapped
from edcache.writer import LOCK_USE, PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

Opener = Callable[[], ByteSource]
Ints = npt.NDArray[np.int64]

# What is asked of the origin at once, and in one piece.
_AT_ONCE, _RUN = 256, 16
# How far is looked ahead, and what is asked for at once then.
_AHEAD_NBYTES, _AHEAD_BLOCKS = 1 << 26, 64
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
        count = -(-self._nbytes // BLOCK_NBYTES)
        self._known = bytearray(0 if is_whole else count)
        self._last_block = count - 1
        # Where the whole archive fits, what it has stays, whoever reads it.
        self._room = None if limit is None or is_whole else Room(pinned.copy, self._nbytes, limit)
        self._here, self._last = threading.local(), -1
        self._side: File | None = None
        self._out: File | None = None
        self._origin: PerProcess[ByteSource] = PerProcess()
        self._is_full = False
        self._touched: set[int] | None = set()

    def size(self) -> int:
        """Bytes of the origin when it was pinned."""
        return self._nbytes

    def reopened(self) -> ReadThrough:
        """The same copy; another state of the origin would be another one."""
        return _reopened(self.pinned, self._opener, self._limit)

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
        # Records that are read one after the other make their block worth it.
        is_worth = nbytes >= BLOCK_NBYTES // 2 or self._last == blocks.start or self._touched is not None
        # Opening reads the head and then the end, which come together.
        needed = blocks if self._touched is None else sorted({*blocks, self._last_block})
        for _ in range(_MOST_LOOKS):
            before = bytes(self._known[blocks.start : blocks.stop])
            if all(state & 1 for state in before):
                data = self.data.pread(offset, nbytes)
                if self._look(blocks.start, blocks.stop) == before:
                    return data
            elif not self._obtain(needed, worth=None if is_worth else ()):
                break
        self._last = blocks[-1] if blocks else -1
        return bytes(self._open_origin().read_many([(offset, nbytes)])[0])

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read extents (offset, nbytes), one after the other."""
        return [memoryview(self.pread(offset, nbytes)) for offset, nbytes in extents]

    def announce(self, start: Ints, end: Ints) -> None:
        """See `ByteSource`: fetches what is missing of them, all at once."""
        if not self.is_partial:
            return
        self._passed().clear()
        blocks, _ = self._around(start, end)
        worth = None
        if self._room is None or self._room.holds_all():
            blocks = blocks[np.frombuffer(self._known, np.uint8)[blocks] & 1 == 0]
        else:
            worth = self._worth(start, end)
        kept = [
            self._obtain(blocks[first : first + _AT_ONCE].tolist(), worth=worth)
            for first in range(0, len(blocks), _AT_ONCE)
        ]
        if not all(kept):
            self._pass(start, end)

    @property
    def ahead_nbytes(self) -> int:  # type: ignore[override]
        """See `ByteSource`: a quarter of what there is room for."""
        if not self.is_partial or self._is_full:
            return 0
        return _AHEAD_NBYTES if self._room is None else min(_AHEAD_NBYTES, self._room.allowance() // 4)

    def prepare(self, start: Ints, end: Ints, around: Callable[[], tuple[Ints, Ints]]) -> int:
        """See `ByteSource`."""
        blocks, nbytes = self._around(start, end)
        missing, worth = self._missing(blocks.tolist()), None
        if self._room is not None and not self._room.holds_all():
            worth = self._worth(*around())
            with closing(File.open(self.pinned.copy + SIDE, "r+")) as side:
                self._room.want(side, sorted(worth))
        for first in range(0, len(missing), _AHEAD_BLOCKS):
            self._obtain(missing[first : first + _AHEAD_BLOCKS], worth=worth, waits=False)
        # Of blocks that are worth it most is read soon.
        return max(int(nbytes.sum()), len(missing) << BLOCK_BITS if worth is None else 0)

    def _worth(self, start: Ints, end: Ints) -> set[int]:
        """The blocks around extents that are worth the room of others."""
        blocks, nbytes = self._around(start, end)
        return set(blocks[nbytes >= BLOCK_NBYTES // 2].tolist())

    def _pass(self, start: Ints, end: Ints) -> None:
        """Read from far what of extents is not here, all at once, for this thread to read next."""
        known = np.frombuffer(self._known, np.uint8) & 1
        first, last = (np.clip(at >> BLOCK_BITS, 0, self._last_block) for at in (start, end - 1))
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
        self._touched = None

    def close(self) -> None:
        """Let go of the copy, of the lock that says it is open, and of the origin."""
        for source in (self.data, self._side, self._out, self._origin.pop()):
            if source is not None:
                source.close()

    def finish(self, start: Ints, end: Ints) -> ReadThrough | None:
        """Where nearly all records are here, fetch the rest, prove all of it and give the copy its name.

        Gives the whole copy, opened. Who has this open goes on with it.
        """
        if not self.is_partial or not (self._room is None or self._room.holds_all()):
            return None
        wanted = self._around(start, end)[0].tolist()
        if len(self._missing(wanted)) > _REST * max(1, len(wanted)):
            return None
        with sidecar.locked_side(self.pinned.copy, wait=False) as side:
            if side is None:
                return None
            try:
                self._complete(side)
            except (base.ArchiveError, OSError) as error:
                logger.warning("%s: it stays a partial copy: %s", self.pinned.copy, error)
                return None
        whole = _attached(self.pinned, self._opener, self._limit)
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

    def _around(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """The blocks around extents, rising, and how many bytes of each are in the extents."""
        low = np.clip(start >> BLOCK_BITS, 0, self._last_block)
        counts = np.clip(end - 1 >> BLOCK_BITS, low, self._last_block) - low + 1
        which = np.repeat(np.arange(len(low)), counts)
        block = low[which] + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = block << BLOCK_BITS
        nbytes = np.minimum(end[which], first + BLOCK_NBYTES) - np.maximum(start[which], first)
        order = np.argsort(block, kind="stable")
        block = block[order]
        starts = np.flatnonzero(np.diff(block, prepend=-1))
        return block[starts], np.add.reduceat(nbytes[order], starts) if len(starts) else starts

    def _look(self, low: int, high: int) -> bytes:
        """What the map says of blocks now: odd where one is here."""
        if self._side is None:
            self._side = File.open(self.pinned.copy + SIDE, "r")
        state = self._side.pread(MAP_OFFSET + low, high - low).ljust(high - low, b"\0")
        self._known[low:high] = state
        return state

    def _missing(self, blocks: Iterable[int]) -> list[int]:
        """Those of rising blocks that are not here."""
        there = ((low, self._look(low, high)) for low, high in runs(blocks, _AT_ONCE))
        return [low + k for low, state in there for k, byte in enumerate(state) if not byte & 1]

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
        while missing := list(blocks) if again else self._missing(blocks):
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
                lacking = self._missing(mine)
                if not self._fetch(side, mine if again else lacking, None if again else worth):
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

    def _fetch(self, side: File, blocks: list[int], worth: Collection[int] | None) -> bool:
        """Fetch rising blocks, of which the caller has the claims and has just looked at the map.

        Gives whether all are here now.
        """
        kept = blocks
        if blocks and self._room is not None:
            try:
                kept = self._room.take(side, self._open_out(), blocks, worth)
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
            self._keep(side, list(zip(ranges, fetched, strict=True)))
        except StorageError as error:
            self._keep_no_more(error)
            return False
        return len(kept) == len(blocks)

    def _keep(self, side: File, fetched: list[tuple[tuple[int, int], bytes | memoryview]]) -> None:
        out = self._open_out()
        for (low, high), data in fetched:
            out.pwrite(low << BLOCK_BITS, data)
            if self.is_partial:
                # Behind its bytes: who is killed in between has fetched for nothing, and that is all.
                state = bytes(byte | 1 for byte in side.pread(MAP_OFFSET + low, high - low))
                side.pwrite(MAP_OFFSET + low, state)
                self._known[low:high] = state

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
        return self._origin.get(self._opened_origin)

    def _opened_origin(self) -> ByteSource:
        origin = self._opener()
        try:
            self._check_identity(origin)
        except BaseException:
            origin.close()
            raise
        return origin

    def _check_identity(self, origin: ByteSource) -> None:
        if sidecar.identity_of(origin) != self.pinned.version.identity:
            raise StaleArchiveError(
                f"{self.path}: it has changed since it was opened; open it again, which begins another copy"
            )


def _blocks(offset: int, nbytes: int) -> range:
    return range(offset >> BLOCK_BITS, (offset + nbytes - 1 >> BLOCK_BITS) + 1) if nbytes > 0 else range(0)


# ---------------------------------------------------------------------------------------------- opening


def open_copy(
    where: Location, token: Pinned | None, *, folder: str, max_bytes: int | str | None = None
) -> ReadThrough:
    """Open an archive by its copy in a folder, which begins empty and fills as it is read.

    Args:
        where: the archive, sealed. token: of a copy that another process has open: the origin is not looked
            at then. folder: made where it is absent. max_bytes: as in `copy_to_local`.
    Raises:
        ArchiveNotFoundError, StorageError: the archive is not there, and neither is a whole copy of it.
        StaleArchiveError: the copy with this token is gone. OptionError: it is not sealed.
    """

    opener: Opener = where.open
    limit, source = limit_of(max_bytes), where.path
    if token is not None:
        return _reopened(token, opener, limit)
    try:
        # Asked for its identity, it is open: each opening of a URL is a round trip.
        origin = where.open() if where.by_request else None
        identity = sidecar.identity_at(where) if origin is None else sidecar.identity_of(origin)
    except (StorageError, ArchiveNotFoundError) as error:
        return _without_origin(source, folder, opener, error)
    copied = os.path.join(folder, os.path.basename(source))
    try:
        version = current(copied, identity)
        file = None if version is None else _attached(Pinned(source, copied, version), opener, limit)
        file = file or _open_by(source, identity, folder, limit, opener, origin)
    except BaseException:
        if origin is not None:
            origin.close()
        raise
    if origin is not None:
        file.keep_origin(origin)
    return file


def _reopened(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough:
    file = _attached(pinned, opener, limit)
    if file is None:
        raise StaleArchiveError(f"{pinned.copy}: this copy of {pinned.source} is gone; open it again")
    return file


def _open_by(
    source: str,
    identity: Identity,
    folder: str,
    limit: int | None,
    opener: Opener,
    origin: ByteSource | None = None,
) -> ReadThrough:
    """Open a copy by the name that the origin's path and identity give it; `origin` where it is open."""
    stem, ending = os.path.splitext(os.path.basename(source))
    key = hashlib.sha256(json.dumps([source, identity]).encode()).hexdigest()[:16]
    copy = os.path.join(folder, f"{stem}-{key}{ending}")
    while True:
        note = sidecar.note_of(copy)
        if note is not None:
            file = _attached(Pinned(note.origin, copy, note.versions[0]), opener, limit)
            if file is not None:
                return file
        storage.make_parent(copy)
        with closing(opener()) if origin is None else nullcontext(origin) as opened:
            _create(source, identity, copy, limit, opened)


def _attached(pinned: Pinned, opener: Opener, limit: int | None) -> ReadThrough | None:
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


def _create(source: str, identity: Identity, copy: str, limit: int | None, origin: ByteSource) -> None:
    """Make the side file and the sparse file of a copy, unless another process did meanwhile."""
    with sidecar.locked_side(copy) as side:
        assert side is not None
        note = side.read()
        sizes = [stamp[0] for stamp in map(stamp_of, (copy, copy + PARTIAL)) if stamp is not None]
        if note is not None and note.versions[0].nbytes in sizes:
            return
        if sidecar.identity_of(origin) != identity:
            raise StaleArchiveError(f"{source}: it changed while it was opened; open it again")
        nbytes, head, _, _ = sealed(origin)
        if limit is not None:
            left_by_others(os.path.dirname(copy) or os.curdir, limit, nbytes, copy, [copy])
        with closing(File.open(copy + PARTIAL, "a")) as data:
            data.truncate(0)
            data.truncate(nbytes)
        # The note last: without it nothing else of it counts.
        side.file.truncate(0)
        side.file.truncate(MAP_OFFSET - 2 * (-nbytes // BLOCK_NBYTES))
        side.write(Note(source, (Version(identity, head.uuid.hex(), nbytes),)))


def _without_origin(source: str, folder: str, opener: Opener, error: Exception) -> ReadThrough:
    """The newest whole copy of what cannot be reached; raises the error where there is none."""
    copies: list[tuple[int, str, Version]] = []
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for copy in (os.path.join(folder, name.removesuffix(SIDE)) for name in names if name.endswith(SIDE)):
        note, stamp = sidecar.note_of(copy), stamp_of(copy)
        if note is not None and stamp is not None and note.origin == source:
            version = note.version_at(stamp)
            copies += [] if version is None else [(stamp[1], copy, version)]
    for _, copy, version in sorted(copies, reverse=True):
        file = _attached(Pinned(source, copy, version), opener, None)
        if file is not None and not file.is_partial:
            logger.warning("%s: reading its copy %s: %s", source, copy, error)
            return file
    raise error
