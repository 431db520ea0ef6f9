"""Fetch an archive: what the file lacks, by several threads; what it has is proven, not believed.

The unit is the part: an entry of the chain, whose header and crc32 prove it, or what lies between entries
(the zip directories). Which parts there are is read from the origin; which of them the file has, from the
file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from edcache import format
from edcache.backends.mirror.origin import Origin
from edcache.base import CorruptArchiveError, OptionError, StaleArchiveError
from edcache.format import Chain, Header, PRead, has_sound_payload
from edcache.reader import OnProgress
from edcache.storage import File

PIECE_NBYTES: Final = 1 << 22
# The directory of a million entries.
_DIRECTORY_NBYTES: Final = 1 << 26
_HEADERS_AT_ONCE: Final = 1 << 12

Item = TypeVar("Item")


@dataclass(eq=False)
class _Part:
    """Bytes [start, end) of the archive; header: of the entry that they are, if a crc32 proves them."""

    start: int
    end: int
    header: Header | None = None
    pieces_left: int = 0
    is_sound: bool = False

    @property
    def nbytes(self) -> int:
        return self.end - self.start

    def is_in(self, file: File) -> bool:
        """Whether a file has it, by the crc32 of the entry."""
        header = self.header
        if header is None or file.next_data(self.start) >= self.end:
            return False
        there = file.pread(header.offset, header.nbytes)
        return there == format.pack_header(header) and has_sound_payload(file.pread, header)


class Plan:
    """What a sealed archive consists of, as the origin says it; reads its headers, not its samples.

    Attributes:
        size: bytes. uuid: of the archive.
    Raises:
        NotAnArchiveError, FormatVersionError, CorruptArchiveError.
        OptionError: "train.zip: it is not sealed, so it may still grow; ...".
    """

    def __init__(self, origin: Origin) -> None:
        self._where = origin.path
        self.size = origin.size()
        head, cursor = format.read_head(origin.pread, origin.path)
        self.uuid = head.uuid
        seal = format.read_seal(origin.pread, self.size, head.uuid)
        if seal is None:
            raise not_sealed(origin.path)
        self._seal = seal
        pread = _reading_ahead(origin, seal[1].payload_end, self.size)
        self._chain = Chain(head, cursor, origin.path)
        headers = [self._chain.head_header(pread)]
        for header in format.walk(pread, self.size, head.uuid, cursor):
            self._chain.note(pread, header)
            headers.append(header)
        self._chain.check_seal(pread, self.size, seal)
        self.parts = list(self._divided(headers))

    def _divided(self, headers: Iterable[Header]) -> Iterator[_Part]:
        position = 0
        for header in headers:
            if header.offset > position:
                yield _Part(position, header.offset)
            # What a power cut took fits no crc32; it is copied as it is.
            is_lost = header.kind != format.KIND_HEAD and header.seq in self._chain.lost
            yield _Part(header.offset, header.payload_end, None if is_lost else header)
            position = header.payload_end
        if position < self.size:
            yield _Part(position, self.size)

    def check(self, file: File) -> None:
        """Check that a file whose parts are sound is this archive: one chain, its seal, its directory.

        Raises:
            CorruptArchiveError.
        """
        head, cursor = format.read_head(file.pread, file.path)
        chain = Chain(head, cursor, file.path)
        chain.extend(file.pread, self.size)
        chain.check_seal(file.pread, self.size, self._seal)


def not_sealed(path: str) -> OptionError:
    """The error for an archive that may still change."""
    return OptionError(
        f"{path}: it is not sealed, so it may still grow; copy it when its fill has ended, or seal what is "
        f'there with "edcache compact --allow-partial {path}"'
    )


def _reading_ahead(origin: Origin, directory: int, size: int) -> PRead:
    """Reads an origin, the headers that its zip directory lists all at once."""
    listed = origin.pread(directory, min(size - directory, _DIRECTORY_NBYTES))
    offsets = [offset for offset in format.directory_offsets(listed) if offset < size]
    known: dict[int, bytes] = {directory: listed}
    for first in range(0, len(offsets), _HEADERS_AT_ONCE):
        some = offsets[first : first + _HEADERS_AT_ONCE]
        headers = origin.read_many([(offset, format.MAX_HEADER_NBYTES) for offset in some])
        known |= zip(some, map(bytes, headers), strict=True)

    def pread(offset: int, nbytes: int) -> bytes:
        data = known.get(offset, b"")
        return data[:nbytes] if len(data) >= nbytes else origin.pread(offset, nbytes)

    return pread


def fetch(
    origin: Origin,
    plan: Plan,
    file: File,
    *,
    threads: int,
    older: File | None = None,
    on_progress: OnProgress | None = None,
) -> int:
    """Make a file equal to an origin, byte for byte, whatever it held before; not synced.

    Args:
        plan: of the origin. file: writable. threads: as many reads at a time.
        older: a copy of an earlier state, of which parts may have stayed what they were.
        on_progress: called with (bytes that are here, bytes of the archive), by this thread.
    Returns:
        Bytes that were fetched from the origin.
    Raises:
        CorruptArchiveError: "far/train.zip: chunks/00000003 at offset 16,384 fails its crc32, read twice;
            ...".
        StaleArchiveError: the origin became shorter. StorageError.
    Cost: reads once what the file has, and writes what it lacks; `PIECE_NBYTES` of memory a thread, twice.
    """
    fetching = _Fetch(origin, plan, file, threads, on_progress or (lambda done, size: None))
    fetching.run(older)
    return fetching.fetched


class _Fetch:
    def __init__(self, origin: Origin, plan: Plan, file: File, threads: int, on_progress: OnProgress) -> None:
        self._origin, self._plan, self._file = origin, plan, file
        self._threads, self._on_progress = threads, on_progress
        self._counting = threading.Lock()
        self._done = 0
        self.fetched = 0

    def run(self, older: File | None) -> None:
        """Fetch all of it."""
        parts = self._plan.parts
        self._file.truncate(self._plan.size)
        self._look(parts, self._file, self._note)
        if older is not None:
            missing = _missing(parts)
            self._look(missing, older, lambda nbytes: None)
            self._copy([part for part in missing if part.is_sound], older.pread)
        for _ in range(2):
            missing = _missing(parts)
            self.fetched += self._copy(missing, self._origin.pread)
            self._done -= sum(part.nbytes for part in _missing(missing))
        for part in _missing(parts):
            assert part.header is not None
            raise CorruptArchiveError(
                f"{self._origin.path}: {part.header.name} at offset {part.start:,} fails its crc32, read "
                f'twice; run "edcache verify {self._origin.path}"'
            )
        self._plan.check(self._file)

    def _look(self, parts: list[_Part], file: File, note: Callable[[int], object]) -> None:
        """Which parts a file has."""

        def look(part: _Part) -> int:
            part.is_sound = part.is_in(file)
            return part.nbytes if part.is_sound else 0

        self._each(look, parts, note)

    def _copy(self, parts: list[_Part], pread: PRead) -> int:
        """Write parts as `pread` has them, and look which of them came out sound; returns their bytes."""

        def pieces() -> Iterator[tuple[_Part, int]]:
            for part in parts:
                starts = range(part.start, part.end, PIECE_NBYTES)
                part.pieces_left, part.is_sound = len(starts), False
                yield from ((part, start) for start in starts)

        def copy(piece: tuple[_Part, int]) -> int:
            part, start = piece
            nbytes = min(PIECE_NBYTES, part.end - start)
            data = pread(start, nbytes)
            if len(data) < nbytes:
                raise StaleArchiveError(
                    f"{self._origin.path}: it ends at {start + len(data):,}, it had "
                    f"{self._plan.size:,} bytes when copying it began; copy it again"
                )
            self._file.pwrite(start, data)
            with self._counting:
                part.pieces_left -= 1
                is_last = not part.pieces_left
            if is_last:
                part.is_sound = part.header is None or part.is_in(self._file)
                self._file.write_back(part.start, part.nbytes)
            return nbytes

        self._each(copy, pieces(), self._note)
        return sum(part.nbytes for part in parts)

    def _note(self, nbytes: int) -> None:
        if nbytes:
            self._done += nbytes
            self._on_progress(self._done, self._plan.size)

    def _each(
        self, work: Callable[[Item], int], items: Iterable[Item], note: Callable[[int], object]
    ) -> None:
        """Do something with each of many, by several threads; this one hears of what is done."""
        pending: deque[Future[int]] = deque()
        with ThreadPoolExecutor(self._threads, "edcache-copy") as pool:
            try:
                for item in items:
                    pending.append(pool.submit(work, item))
                    if len(pending) >= 2 * self._threads:
                        note(pending.popleft().result())
                while pending:
                    note(pending.popleft().result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _missing(parts: list[_Part]) -> list[_Part]:
    return [part for part in parts if not part.is_sound]
