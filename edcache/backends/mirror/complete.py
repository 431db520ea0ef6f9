"""Complete a partial copy: fetch its missing blocks, compare every crc32, rename it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

import numpy as np

from edcache.backends import NewCopy, prove
from edcache.backends.mirror.blocks import BLOCK_BITS, RUN, BlockFetcher, runs
from edcache.backends.mirror.sidecar import publish, remove
from edcache.base import ArchiveError, StorageError, in_threads
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
        CorruptArchiveError: an entry of the original fails its crc32, after all tries. ArchiveError: it has
            another digest, and the copy is deleted. StaleArchiveError, StorageError: the fetched blocks stay.
    """
    copy, note = fetcher.pinned
    fetched = _fetch_missing(fetcher, tell)
    with closing(NewCopy(copy + PARTIAL, fetcher.origin)) as partial:
        prove(partial, note.origin, bytes.fromhex(note.uuid))
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
