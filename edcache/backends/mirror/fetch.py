"""Fetch an archive: what the file lacks, by several threads; what it has is proven, not believed.

The unit is the part: an entry of the chain, whose header and crc32 prove it, or what lies between entries
(the zip directories). Which parts there are is read from the origin; which of them the file has, from the
file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from edcache import format
from edcache.base import CorruptArchiveError, OptionError, StaleArchiveError, in_threads
from edcache.format import Chain, Cursor, Head, Header, PRead, Seal, has_sound_payload
from edcache.reader import OnProgress
from edcache.storage import ByteSource, File

PIECE_NBYTES: Final = 1 << 22
# The directory of a million entries.
_DIRECTORY_NBYTES: Final = 1 << 26
_HEADERS_AT_ONCE: Final = 1 << 12


@dataclass(eq=False)
class _FetchPart:
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


class Fetch:
    """Makes files equal to a sealed archive, byte for byte; begins by reading its headers, not its samples.

    Raises OptionError where it is not sealed, and as opening does.
    """

    def __init__(self, origin: ByteSource, threads: int, on_progress: OnProgress | None = None) -> None:
        self._origin, self._threads, self._on_progress = origin, threads, on_progress
        self.size, head, cursor, self._seal = sealed(origin)
        self.uuid = head.uuid
        pread = _reading_ahead(origin, self._seal.directory_offset, self.size)
        chain = Chain(head, cursor, origin.path)
        headers = [chain.head_header(pread)]
        for header in format.walk(pread, self.size, head.uuid, cursor):
            chain.note(pread, header)
            headers.append(header)
        chain.check_seal(pread, self.size, self._seal)
        self._parts = list(self._divided(headers, chain.lost))
        self._done = 0
        self._counting = threading.Lock()

    def _divided(self, headers: Iterable[Header], lost: set[int]) -> Iterator[_FetchPart]:
        position = 0
        for header in headers:
            if header.offset > position:
                yield _FetchPart(position, header.offset)
            # What a power cut took fits no crc32; it is copied as it is.
            is_lost = header.kind != format.KIND_HEAD and header.seq in lost
            yield _FetchPart(header.offset, header.payload_end, None if is_lost else header)
            position = header.payload_end
        if position < self.size:
            yield _FetchPart(position, self.size)

    def into(self, file: File, older: File | None = None) -> int:
        """Make a file equal to it, whatever it held before; returns the bytes that came from the origin.

        Not synced.

        Args:
            older: a copy of an earlier state, of which parts may have stayed what they were.
        Raises:
            CorruptArchiveError: an entry fails its crc32, read twice. StaleArchiveError, StorageError.
        """
        parts, fetched = self._parts, 0
        file.truncate(self.size)
        self._look(parts, file)
        if older is not None:
            missing = _missing(parts)
            self._look(missing, older, counts=False)
            self._copy([part for part in missing if part.is_sound], older.pread, file)
        for _ in range(2):
            missing = _missing(parts)
            self._copy(missing, self._origin.pread, file)
            fetched += sum(part.nbytes for part in missing)
        for part in _missing(parts):
            assert part.header is not None
            raise CorruptArchiveError(
                f"{self._origin.path}: {part.header.name} at offset {part.start:,} fails its crc32, read "
                f'twice; run "edcache verify {self._origin.path}"'
            )
        # Its parts are sound; so must be what they amount to, seal and all.
        chain = Chain(*format.read_head(file.pread, file.path), file.path)
        chain.extend(file.pread, self.size)
        chain.check_seal(file.pread, self.size, self._seal)
        return fetched

    def _look(self, parts: list[_FetchPart], file: File, *, counts: bool = True) -> None:
        """See which parts a file has."""

        def look(part: _FetchPart) -> int:
            part.is_sound = part.is_in(file)
            return part.nbytes if part.is_sound and counts else 0

        in_threads(look, parts, self._tell, self._threads, "edcache-copy")

    def _copy(self, parts: list[_FetchPart], pread: PRead, file: File) -> None:
        """Write parts as `pread` has them, in pieces, and see which of them came out sound."""
        pieces: list[tuple[_FetchPart, int]] = []
        for part in parts:
            starts = range(part.start, part.end, PIECE_NBYTES)
            part.pieces_left, part.is_sound = len(starts), False
            pieces += ((part, start) for start in starts)

        def copy(piece: tuple[_FetchPart, int]) -> int:
            part, start = piece
            nbytes = min(PIECE_NBYTES, part.end - start)
            data = pread(start, nbytes)
            if len(data) < nbytes:
                raise StaleArchiveError(
                    f"{self._origin.path}: it ends at {start + len(data):,}, it had {self.size:,} bytes when "
                    "copying it began; copy it again"
                )
            file.pwrite(start, data)
            with self._counting:
                part.pieces_left -= 1
                is_last = not part.pieces_left
            if is_last:
                part.is_sound = part.header is None or part.is_in(file)
                file.write_back(part.start, part.nbytes)
            return nbytes

        in_threads(copy, pieces, self._tell, self._threads, "edcache-copy")
        self._done -= sum(part.nbytes for part in _missing(parts))

    def _tell(self, nbytes: int) -> None:
        self._done += nbytes
        if nbytes and self._on_progress is not None:
            self._on_progress(self._done, self.size)


def _missing(parts: list[_FetchPart]) -> list[_FetchPart]:
    return [part for part in parts if not part.is_sound]


def sealed(origin: ByteSource) -> tuple[int, Head, Cursor, Seal]:
    """How many bytes an archive has, its head, where its chain begins, and its seal; raises as it."""
    nbytes = origin.size()
    head, cursor = format.read_head(origin.pread, origin.path)
    seal = format.read_seal(origin.pread, nbytes, head.uuid)
    if seal is None:
        raise OptionError(
            f"{origin.path}: it is not sealed, so it may still grow; copy it when its fill has ended, or "
            f'seal what is there with "edcache copy {origin.path} -o NEW --skip-damaged"'
        )
    return nbytes, head, cursor, seal


def read_many(origin: ByteSource, extents: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
    """The bytes of extents (offset, nbytes); the kernel is told of all before the first is read."""
    if len(extents) > 1:
        origin.will_need(extents)
    return origin.read_many(extents)


def _reading_ahead(origin: ByteSource, directory: int, size: int) -> PRead:
    """Reads an origin, the headers that its zip directory lists all at once."""
    listed = origin.pread(directory, min(size - directory, _DIRECTORY_NBYTES))
    offsets = [offset for offset in format.directory_offsets(listed) if offset < size]
    known: dict[int, bytes] = {directory: listed}
    for first in range(0, len(offsets), _HEADERS_AT_ONCE):
        some = offsets[first : first + _HEADERS_AT_ONCE]
        headers = read_many(origin, [(offset, format.MAX_HEADER_NBYTES) for offset in some])
        known |= zip(some, map(bytes, headers), strict=True)

    def pread(offset: int, nbytes: int) -> bytes:
        data = known.get(offset, b"")
        return data[:nbytes] if len(data) >= nbytes else origin.pread(offset, nbytes)

    return pread
