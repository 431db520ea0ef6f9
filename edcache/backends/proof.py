"""Prove the copy of a whole archive: every byte that a sum covers fits it, or the origin sends it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from edcache import format
from edcache.base import CorruptArchiveError, Sound, in_threads
from edcache.format import Chain, Header
from edcache.storage import ByteSource, File

_THREADS: Final = 8
# Count the copy, whose bytes may be damaged, and two answers of its origin, which are compared.
LEAST_TRIES: Final = 3


class Asked(Protocol):
    """Origin of a copy."""

    @property
    def tries(self) -> int:
        """See `ByteSource`."""

    def ask_again(self, extents: Sequence[tuple[int, int]], /) -> Sequence[bytes | memoryview]:
        """See `ByteSource`."""


class NewCopy(File):
    """Copy that is made: its origin sends again what fails a sum in it, to be written over."""

    def __init__(self, path: str, origin: Asked) -> None:
        super().__init__(path, "r+")
        self.origin, self.tries = origin, max(LEAST_TRIES, origin.tries)

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        data = super().pread(offset, nbytes)
        if is_sound is None:
            return data
        return bytes(self.until_sound([(offset, nbytes)], [memoryview(data)], [is_sound])[0])

    def ask_again(self, extents: Sequence[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        return self.origin.ask_again(extents)

    def mend(self, offset: int, data: memoryview) -> None:
        self.pwrite(offset, data)


def prove(file: ByteSource, where: str, uuid: bytes | None) -> None:
    """Check all entries of an archive; `where` names it.

    uuid: of a sealed one, which must end so.
    Raises: CorruptArchiveError, an entry fails its crc32 after all tries.
    """
    chain = Chain(*format.read_head(file.pread, where), where)
    headers = [chain.head_header]
    for group in format.walk(file.pread, file.size(), chain.head.uuid, chain.cursor, where):
        chain.add(file.pread, group)
        headers += group
    if uuid is not None:
        _check_end(file, chain, where, uuid)

    def failing(header: Header) -> Header | None:
        _read_padding(file, header)
        is_sound = format.stored_crc32(file.pread, header.payload) == header.crc32
        return None if is_sound or header.number in chain.lost else header

    def report(header: Header | None) -> None:
        if header is not None:
            raise _damaged(where, f"{header.name} at offset {header.offset:,}")

    in_threads(failing, headers, report, _THREADS, "edcache-copy")


def _check_end(file: ByteSource, chain: Chain, where: str, uuid: bytes) -> None:
    if not chain.sealed or chain.head.uuid != uuid:
        raise _damaged(where, "the root at its end, without which it is not sealed,")
    directory = chain.directory()
    start = file.size() - len(directory)
    end = file.pread(start, len(directory), lambda data: bytes(data) == directory)
    if chain.end != file.size() or end != directory:
        raise _damaged(where, "an entry, or the zip directory,")


def _read_padding(file: ByteSource, header: Header) -> None:
    """Read the bytes between an entry and the next one: zeros, or a directory that no reader needs."""
    is_root = header.kind == format.ROOT
    check = format.came_again() if is_root else lambda data: not any(data)
    file.pread(header.payload_end, max(0, min(header.next, file.size()) - header.payload_end), check)


def _damaged(where: str, what: str) -> CorruptArchiveError:
    text = f'{where}: {what} fails its crc32, however often it is asked for; run "edcache verify {where}"'
    return CorruptArchiveError(text, path=where)
