"""Complete a partial copy: fetch its missing blocks, compare every crc32, rename it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

import numpy as np

from edcache import format
from edcache.backends.mirror.blocks import BLOCK_BITS, RUN, BlockFetcher, blocks_of, runs
from edcache.backends.mirror.sidecar import Note, publish, remove
from edcache.base import ArchiveError, CorruptArchiveError, StorageError, in_threads
from edcache.format import Chain, Header
from edcache.reader import check_digest
from edcache.storage import File
from edcache.writer import PARTIAL

_THREADS: Final = 8
Tell = Callable[[int, int], object]


def complete(fetcher: BlockFetcher, side: File, digest: str | None = None, tell: Tell | None = None) -> int:
    """Complete a copy under the lock of its side file; returns the bytes that were fetched.

    Args:
        digest: of the archive, which is compared. tell: called with (bytes here, bytes in all).
    Raises:
        CorruptArchiveError: an entry of the original fails its crc32, fetched twice. ArchiveError: it has
            another digest, and the copy is deleted. StaleArchiveError, StorageError: the fetched blocks stay.
    """
    copy, note = fetcher.pinned
    fetched = 0
    with closing(File.open(copy + PARTIAL, "r+")) as partial:
        for _ in range(2):
            fetched += _fetch_missing(fetcher, tell)
            damaged = _damaged(partial, note)
            if not damaged:
                break
            # A process that was killed, or a power cut, may have left other bytes than the map says.
            start, end = np.array([extent for extent, _ in damaged], np.int64).T
            for low, high in runs(np.unique(blocks_of(start, end)[1])):
                fetcher.map.mark(side, low, high, is_here=False)
        else:
            raise CorruptArchiveError(
                f"{note.origin}: {damaged[0][1]} fails its crc32, fetched twice; "
                f'run "edcache verify {note.origin}"'
            )
        if digest is not None:
            try:
                check_digest(partial, digest)
            except ArchiveError as error:
                remove(copy)
                raise ArchiveError(str(error).replace(partial.path, copy, 1)) from None
        publish(side, partial, copy, digest)
    return fetched


def _fetch_missing(fetcher: BlockFetcher, tell: Tell | None) -> int:
    """Fetch the blocks that are missing; returns their bytes."""
    (copy, note), count = fetcher.pinned, fetcher.map.count
    missing = fetcher.map.missing(np.arange(count))
    here = count - len(missing)

    def fetch(run: tuple[int, int]) -> int:
        if not fetcher.obtain(np.arange(*run)):
            raise StorageError(f"{copy}: there is no room for all of it; allow more, or free some")
        return run[1] - run[0]

    def advance(more: int) -> None:
        nonlocal here
        here += more
        if tell is not None:
            tell(min(here << BLOCK_BITS, note.nbytes), note.nbytes)

    in_threads(fetch, runs(missing, most=RUN), advance, _THREADS, "edcache-copy")
    return min(len(missing) << BLOCK_BITS, note.nbytes)


def _damaged(file: File, note: Note) -> list[tuple[tuple[int, int], str]]:
    """List the entries that fail their crc32, bytes [start, end) and a name each.

    If the chain of its entries does not read, the whole file is one.
    """
    try:
        head, cursor = format.read_head(file.pread, note.origin)
        chain = Chain(head, cursor, note.origin)
        if head.uuid.hex() != note.uuid:
            return [((0, note.nbytes), "the head")]
        headers = [chain.head_header(file.pread)]
        for group in format.walk(file.pread, note.nbytes, head.uuid, cursor, note.origin):
            chain.add(file.pread, group)
            headers += group
        if not chain.sealed:
            return [((0, note.nbytes), "the root at its end, without which it is not sealed,")]
        if chain.end != note.nbytes or not _ends_with(file, chain.directory(file.pread)):
            return [((0, note.nbytes), "an entry, or the zip directory")]
    except CorruptArchiveError as error:
        return [((0, note.nbytes), f"an entry ({error})")]

    def is_sound(header: Header) -> bool:
        return format.payload_crc32(file.pread, header) == header.crc32

    sound: list[bool] = []
    in_threads(is_sound, headers, sound.append, _THREADS, "edcache-copy")
    return [
        ((header.offset, header.payload_end), f"{header.name} at offset {header.offset:,}")
        for header, one in zip(headers, sound, strict=True)
        if not one
    ]


def _ends_with(file: File, directory: bytes) -> bool:
    return file.pread(file.size() - len(directory), len(directory)) == directory
