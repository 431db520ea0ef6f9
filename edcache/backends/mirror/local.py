"""Opens an archive by its copy in a folder of this machine: `local=`."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import closing, nullcontext
from typing import Final

import numpy as np

from edcache import format, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.blocks import Pinned, blocks_of
from edcache.backends.mirror.complete import state_of
from edcache.backends.mirror.evict import limit_of
from edcache.backends.mirror.read_through import ReadThrough, attached, completed, reopened
from edcache.backends.mirror.sidecar import Identity, locked_copy, note_of, whole_note
from edcache.base import ArchiveNotFoundError, Ints, StaleArchiveError, StorageError
from edcache.format import Seal
from edcache.storage import ByteSource, Location, Stamp
from edcache.writer import SIDE

logger = logging.getLogger("edcache")

# Most bytes of the index, and of the end, that are fetched with the head of a new copy.
_INDEX_NBYTES: Final = 1 << 20
_TAIL_NBYTES: Final = 1 << 16


def open_copy(
    where: Location, token: Pinned | None, *, folder: str, max_bytes: int | str | None = None
) -> ReadThrough:
    """Open an archive by its copy in a folder, which begins empty and fills as it is read.

    Args:
        where: the archive, sealed. token: of a copy that another process has open: the origin is not looked
            at then. folder: created if absent. max_bytes: as in `copy_to_local`.
    Raises:
        ArchiveNotFoundError, StorageError: the archive is not there, and neither is a whole copy of it.
        StaleArchiveError: the copy with this token is gone. OptionError: it is not sealed.
    """
    limit = limit_of(max_bytes)
    if token is not None:
        return reopened(token, where.open, limit)
    try:
        # Asked for its identity, it is open: each opening of a URL is a round trip.
        origin = where.open() if where.by_request else None
        identity = sidecar.identity_at(where) if origin is None else sidecar.identity_of(origin)
    except (StorageError, ArchiveNotFoundError) as error:
        if where.has_query:
            raise
        return _without_origin(where, folder, error)
    try:
        file = _opened(where, folder, identity, limit, origin)
    except BaseException:
        if origin is not None:
            origin.close()
        raise
    if origin is not None:
        file.fetcher.keep_origin(origin)
    return file


def _opened(
    where: Location, folder: str, identity: Identity, limit: int | None, origin: ByteSource | None
) -> ReadThrough:
    """Open the copy of this state of the origin; begin one if there is none. origin: if it is open."""
    copy = os.path.join(folder, os.path.basename(where.path))
    made = whole_note(copy)
    if made is None or made.identity != identity:
        stem, ending = os.path.splitext(copy)
        key = hashlib.sha256(json.dumps([where.path, identity]).encode()).hexdigest()[:16]
        copy = f"{stem}-{key}{ending}"
    opening: tuple[Seal, int] | None = None
    while True:
        note = note_of(copy)
        file = None if note is None else attached(Pinned(copy, note), where.open, limit)
        if file is not None:
            break
        storage.make_parent(copy)
        with closing(where.open()) if origin is None else nullcontext(origin) as opened:
            state, seal = state_of(opened)
        if state.identity != identity:
            raise StaleArchiveError(f"{where.path}: it changed while it was opened; open it again")
        with locked_copy(copy, state):
            opening = seal, state.nbytes
    if origin is not None:
        file.fetcher.keep_origin(origin)
    if opening is not None:
        file.fetcher.obtain(_opened_by(*opening))
    return completed(file)


def _opened_by(seal: Seal, nbytes: int) -> Ints:
    """The blocks that opening an archive reads, to be fetched together: head, tail, and index."""
    table = seal.index.table_offset
    places = np.array(
        [
            (0, format.PAGE),
            (seal.index.offset, min(seal.index.offset + _INDEX_NBYTES, nbytes)),
            (table, table + seal.index.table_nbytes),
            (max(0, nbytes - _TAIL_NBYTES), nbytes),
        ]
    )
    return np.unique(blocks_of(*places.T)[1])


def _without_origin(where: Location, folder: str, error: Exception) -> ReadThrough:
    """Open the newest whole copy of what cannot be reached; raises the error if there is none."""
    copies: list[tuple[Stamp, Pinned]] = []
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for copy in (os.path.join(folder, name.removesuffix(SIDE)) for name in names if name.endswith(SIDE)):
        note = whole_note(copy)
        if note is not None and note.stamp is not None and note.origin == where.path:
            copies.append((note.stamp, Pinned(copy, note)))
    for _, pinned in sorted(copies, key=lambda one: one[0][1], reverse=True):
        file = attached(pinned, where.open, None)
        if file is not None:
            logger.warning("%s: reading its copy %s: %s", where.path, pinned.copy, error)
            return file
    raise error
