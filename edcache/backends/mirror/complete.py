"""Complete a partial copy: fetch its missing blocks, compare every crc32, rename it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np

from edcache import format, storage
from edcache.backends.mirror.blocks import BLOCK_BITS, BLOCK_NBYTES, RUN, Fetcher, blocks_of, runs
from edcache.backends.mirror.sidecar import Note, Side, identity_of
from edcache.base import (
    ArchiveError,
    CorruptArchiveError,
    Ints,
    OptionError,
    StorageError,
    in_threads,
)
from edcache.format import Chain, Header, Seal
from edcache.reader import check_digest
from edcache.storage import ByteSource, File
from edcache.writer import PARTIAL, SIDE

THREADS: Final = 8
Tell = Callable[[int, int], object]


def state_of(origin: ByteSource) -> tuple[Note, Seal]:
    """The state of an archive that is to be copied; OptionError if it is not sealed."""
    nbytes = origin.size()
    head, _ = format.read_head(origin.pread, origin.path)
    seal = format.read_seal(origin.pread, nbytes, head.uuid)
    if seal is None:
        raise OptionError(
            f"{origin.path}: it is not sealed, so it may still grow; copy it when its fill has ended, or "
            f'seal what is there with "edcache copy {origin.path} -o NEW --skip-damaged"'
        )
    return Note(origin.path, identity_of(origin), head.uuid.hex(), nbytes), seal


def complete(
    fetcher: Fetcher, side: Side, threads: int = THREADS, digest: str | None = None, tell: Tell | None = None
) -> int:
    """Complete a copy under the lock of its side file; returns the bytes that were fetched.

    Args:
        digest: that it must have. tell: called with (bytes here, bytes in all).
    Raises:
        CorruptArchiveError: an entry of the original fails its crc32, fetched twice. ArchiveError: no copy is
            left. StaleArchiveError, StorageError: what was fetched stays.
    """
    (copy, note), blocks = fetcher.pinned, np.arange(fetcher.map.count)
    missing = fetcher.map.missing(blocks)
    done = fetched = 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done = min(done + nbytes, note.nbytes)
        if tell is not None and nbytes:
            tell(done, note.nbytes)

    def fetch(run: tuple[int, int]) -> int:
        if not fetcher.obtain(np.arange(*run)):
            raise StorageError(f"{copy}: there is no room for all of it; allow more, or free some")
        return run[1] - run[0] << BLOCK_BITS

    with closing(File.open(copy + PARTIAL, "r+")) as partial:
        advance(len(blocks) - len(missing) << BLOCK_BITS)
        for is_again in (False, True):
            in_threads(fetch, runs(missing, most=RUN), advance, threads, "edcache-copy")
            fetched += min(len(missing) << BLOCK_BITS, note.nbytes)
            damaged = _damaged(partial, note, threads)
            if not damaged:
                break
            if is_again:
                raise CorruptArchiveError(
                    f"{note.origin}: {damaged[0].what} fails its crc32, fetched twice; "
                    f'run "edcache verify {note.origin}"'
                )
            # A process that was killed, or a power cut, may have left them so.
            missing = _blocks_of(damaged)
            for low, high in runs(missing):
                fetcher.map.mark(side.file, low, high, is_here=False)
            done -= min(len(missing) * BLOCK_NBYTES, done)
        if digest is not None:
            try:
                check_digest(partial, digest)
            except ArchiveError as error:
                storage.remove(partial.path)
                storage.remove(copy + SIDE)
                raise ArchiveError(str(error).replace(partial.path, copy, 1)) from None
        side.publish(partial, copy, digest)
    return fetched


class _Damage(NamedTuple):
    """A damaged part of a copy, bytes [start, end); what: its name in messages."""

    start: int
    end: int
    what: str


def _damaged(file: File, note: Note, threads: int) -> list[_Damage]:
    """List the entries that fail their crc32; the whole file if its chain of entries does not read."""
    try:
        head, cursor = format.read_head(file.pread, note.origin)
        seal = format.read_seal(file.pread, note.nbytes, head.uuid)
        chain = Chain(head, cursor, note.origin)
        headers = [chain.head_header(file.pread)]
        for header in format.walk(file.pread, note.nbytes, head.uuid, cursor):
            chain.note(file.pread, header)
            headers.append(header)
        if seal is None or head.uuid.hex() != note.uuid:
            return [_Damage(0, note.nbytes, "the head or the end")]
        chain.check_seal(file.pread, note.nbytes, seal)
    except CorruptArchiveError as error:
        return [_Damage(0, note.nbytes, f"an entry ({error})")]
    damaged: list[_Damage] = []

    def look(header: Header) -> _Damage | None:
        # An entry that a power cut took fails its crc32 in the original too; it is copied as it is.
        is_lost = header.kind != format.KIND_HEAD and header.seq in chain.lost
        if is_lost or format.has_sound_payload(file.pread, header):
            return None
        return _Damage(header.offset, header.payload_end, f"{header.name} at offset {header.offset:,}")

    in_threads(look, headers, lambda one: damaged.extend([one] if one else []), threads, "edcache-copy")
    return damaged


def _blocks_of(damaged: list[_Damage]) -> Ints:
    start, end = np.array([(one.start, one.end) for one in damaged], np.int64).T
    return np.unique(blocks_of(start, end)[1])
