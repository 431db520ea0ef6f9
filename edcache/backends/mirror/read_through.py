"""A copy that is read while it fills: a sparse file, and which blocks of it were fetched.

What is read is fetched once, by whichever process of this machine needs it first, and kept. Two that need one
block at once both fetch it and write the same bytes. That a block is there proves nothing: what lies in it is
compared with its crc32 as ever, and fetched again where it does not fit (`ReadThrough.mend`).
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.copy import THREADS, current
from edcache.backends.mirror.evict import limit_of, make_room
from edcache.backends.mirror.fetch import Fetch, read_many, sealed
from edcache.backends.mirror.sidecar import MAP_OFFSET, Identity, Note, Side, Version, stamp_of
from edcache.base import (
    ArchiveError,
    ArchiveNotFoundError,
    CorruptRecordError,
    PerProcess,
    StaleArchiveError,
    StorageError,
)
from edcache.storage import ByteSource, File, Location, Wrapped
from edcache.writer import LOCK_USE, PARTIAL, SIDE, note_use

logger = logging.getLogger("edcache")

Opener = Callable[[], ByteSource]
Ints = npt.NDArray[np.int64]

BLOCK_BITS: Final = 18
BLOCK_NBYTES: Final = 1 << BLOCK_BITS
# What is asked of the origin at once, and in one piece.
_AT_ONCE, _RUN = 256, 16
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

    def __init__(self, pinned: Pinned, data: File, is_whole: bool, opener: Opener) -> None:
        super().__init__(data)
        self.data: File = data
        self.path = pinned.source
        self.pinned = self.token = pinned
        self.is_partial = not is_whole
        self._opener = opener
        self._nbytes = pinned.version.nbytes
        count = -(-self._nbytes // BLOCK_NBYTES)
        self._known = bytearray(0 if is_whole else count)
        self._last = count - 1
        self._side: File | None = None
        self._writers: tuple[File, File] | None = None
        self._origin: PerProcess[ByteSource] = PerProcess()
        self._is_full = False
        self._touched: set[int] | None = set()

    def size(self) -> int:
        """Bytes of the origin when it was pinned."""
        return self._nbytes

    def reopened(self) -> ReadThrough:
        """The same copy; another state of the origin would be another one."""
        return _reopened(self.pinned, self._opener)

    def pread(self, offset: int, nbytes: int) -> bytes:
        """See `ByteSource`: fetches what was not yet; StaleArchiveError where the origin has changed."""
        nbytes = max(0, min(nbytes, self._nbytes - offset))
        blocks = _blocks(offset, nbytes)
        if self._touched is not None:
            self._touched.update(blocks)
        if self.is_partial and self._known.find(0, blocks.start, blocks.stop) >= 0:
            missing = self._missing(blocks)
            if missing and (self._is_full or not self._fetch(missing)):
                return self._open_origin().pread(offset, nbytes)
        return self.data.pread(offset, nbytes)

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read extents (offset, nbytes), one after the other."""
        return [memoryview(self.pread(offset, nbytes)) for offset, nbytes in extents]

    def announce(self, start: Ints, end: Ints) -> None:
        """See `ByteSource`: fetches what is missing of them, all at once."""
        if not self.is_partial or self._is_full:
            return
        wanted = self._around(start, end)
        blocks = self._missing(wanted[np.frombuffer(self._known, np.uint8)[wanted] == 0].tolist())
        for first in range(0, len(blocks), _AT_ONCE):
            if not self._fetch(blocks[first : first + _AT_ONCE]):
                return

    def mend(self, offset: int, nbytes: int) -> bool:
        """See `ByteSource`; CorruptRecordError where it cannot be fetched again."""
        try:
            return self._fetch_again(_blocks(offset, nbytes))
        except (ArchiveError, OSError) as error:
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
        is_mended = bool(blocks) and self._fetch(blocks)
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
        for source in (self.data, self._side, *(self._writers or ()), self._origin.pop()):
            if source is not None:
                source.close()

    def finish(self, start: Ints, end: Ints) -> ReadThrough | None:
        """Where nearly all records are here, fetch the rest, prove all of it and give the copy its name.

        Gives the whole copy, opened. Who has this open goes on with it.
        """
        if not self.is_partial:
            return None
        wanted = self._around(start, end).tolist()
        if len(self._missing(wanted)) > _REST * max(1, len(wanted)):
            return None
        with sidecar.locked_side(self.pinned.copy, wait=False) as side:
            if side is None:
                return None
            try:
                self._complete(side)
            except (ArchiveError, OSError) as error:
                logger.warning("%s: it stays a partial copy: %s", self.pinned.copy, error)
                return None
        whole = _attached(self.pinned, self._opener)
        return whole if whole is not None and not whole.is_partial else None

    def _complete(self, side: Side) -> None:
        copy, note = self.pinned.copy, side.read()
        if note is None or storage.exists(copy):
            return  # what has its name is a copy no more: somebody has changed it
        origin = self._open_origin()
        with closing(File.open(copy + PARTIAL, "r+")) as partial:
            Fetch(origin, THREADS).into(partial)
            self._check_identity(origin)
            side.publish(partial, copy, note._replace(versions=note.versions[:1]))

    # --- blocks ---

    def _around(self, start: Ints, end: Ints) -> Ints:
        """The blocks around extents, rising."""
        edges = np.zeros(self._last + 2, np.int64)
        np.add.at(edges, np.clip(start >> BLOCK_BITS, 0, self._last), 1)
        np.add.at(edges, np.clip(end - 1 >> BLOCK_BITS, 0, self._last) + 1, -1)
        return np.flatnonzero(np.cumsum(edges[:-1]) > 0)

    def _missing(self, blocks: Iterable[int]) -> list[int]:
        """Those of rising blocks that nobody has fetched yet."""
        if self._side is None:
            self._side = File.open(self.pinned.copy + SIDE, "r")
        missing = []
        for low, high in _runs(blocks, _AT_ONCE):
            there = self._side.pread(MAP_OFFSET + low, high - low).ljust(high - low, b"\0")
            self._known[low:high] = there
            missing += [low + k for k, fetched in enumerate(there) if not fetched]
        return missing

    def _fetch(self, blocks: Iterable[int]) -> bool:
        """Fetch rising blocks, whether they are here or not; False where they cannot be kept."""
        runs = list(_runs(blocks, _RUN))
        starts = [(low << BLOCK_BITS, min(high << BLOCK_BITS, self._nbytes)) for low, high in runs]
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
            out, side = self._open_writers()
            for (low, high), (offset, _), data in zip(runs, extents, fetched, strict=True):
                out.pwrite(offset, data)
                if self.is_partial:
                    # Behind its bytes: who is killed in between has fetched for nothing, and that is all.
                    side.pwrite(MAP_OFFSET + low, b"\1" * (high - low))
                    self._known[low:high] = b"\1" * (high - low)
        except StorageError as error:
            if not self.is_partial or error.errno not in _FULL:
                raise
            self._is_full = True
            warnings.warn(
                f"{error}; what is not here yet is read from {self.path} every time",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        return True

    def _open_writers(self) -> tuple[File, File]:
        """The copy and its side file, to be written; closed in a child that was forked meanwhile."""
        writers = self._writers
        if writers is None or writers[0].closed:
            # Its name may have been that of a partial copy when this one was opened.
            try:
                out = File.open(self.pinned.copy, "r+")
            except ArchiveNotFoundError:
                out = File.open(self.pinned.copy + PARTIAL, "r+")
            if out.identity() != self.identity():
                raise StaleArchiveError(f"{out.path}: another copy is here now; open it again")
            writers = self._writers = out, File.open(self.pinned.copy + SIDE, "r+")
        return writers

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


def _runs(blocks: Iterable[int], most: int) -> Iterator[tuple[int, int]]:
    """Rising numbers as half-open ranges of at most so many."""
    low = high = -1
    for block in blocks:
        if block != high or high - low == most:
            if low >= 0:
                yield low, high
            low = block
        high = block + 1
    if low >= 0:
        yield low, high


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
    if token is not None:
        return _reopened(token, opener)
    limit, source = limit_of(max_bytes), where.path
    try:
        identity = sidecar.identity_at(where)
    except (StorageError, ArchiveNotFoundError) as error:
        return _without_origin(source, folder, opener, error)
    copied = os.path.join(folder, os.path.basename(source))
    version = current(copied, identity)
    whole = None if version is None else _attached(Pinned(source, copied, version), opener)
    return _open_by(source, identity, folder, limit, opener) if whole is None else whole


def _reopened(pinned: Pinned, opener: Opener) -> ReadThrough:
    file = _attached(pinned, opener)
    if file is None:
        raise StaleArchiveError(f"{pinned.copy}: this copy of {pinned.source} is gone; open it again")
    return file


def _open_by(source: str, identity: Identity, folder: str, limit: int | None, opener: Opener) -> ReadThrough:
    """Open a copy by the name that the origin's path and identity give it."""
    stem, ending = os.path.splitext(os.path.basename(source))
    key = hashlib.sha256(json.dumps([source, identity]).encode()).hexdigest()[:16]
    copy = os.path.join(folder, f"{stem}-{key}{ending}")
    while True:
        note = sidecar.note_of(copy)
        if note is not None:
            file = _attached(Pinned(note.origin, copy, note.versions[0]), opener)
            if file is not None:
                return file
        storage.make_parent(copy)
        _create(source, identity, copy, limit, opener)


def _attached(pinned: Pinned, opener: Opener) -> ReadThrough | None:
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
            return ReadThrough(pinned, data, is_whole, opener)
        data.close()
    return None


def _create(source: str, identity: Identity, copy: str, limit: int | None, opener: Opener) -> None:
    """Make the side file and the sparse file of a copy, unless another process did meanwhile."""
    with sidecar.locked_side(copy) as side:
        assert side is not None
        note = side.read()
        sizes = [stamp[0] for stamp in map(stamp_of, (copy, copy + PARTIAL)) if stamp is not None]
        if note is not None and note.versions[0].nbytes in sizes:
            return
        with closing(opener()) as origin:
            if sidecar.identity_of(origin) != identity:
                raise StaleArchiveError(f"{source}: it changed while it was opened; open it again")
            nbytes, head, _, _ = sealed(origin)
        make_room(os.path.dirname(copy) or os.curdir, limit, nbytes, copy, [copy])
        with closing(File.open(copy + PARTIAL, "a")) as data:
            data.truncate(0)
            data.truncate(nbytes)
        # The note last: without it nothing else of it counts.
        side.file.truncate(0)
        side.file.truncate(MAP_OFFSET - (-nbytes // BLOCK_NBYTES))
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
        file = _attached(Pinned(source, copy, version), opener)
        if file is not None and not file.is_partial:
            logger.warning("%s: reading its copy %s: %s", source, copy, error)
            return file
    raise error
