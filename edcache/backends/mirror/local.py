"""Opens an archive by its copy in a folder of this machine: `local=`."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from contextlib import closing, nullcontext

from edcache import storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.block_fetcher import Opener, Pinned
from edcache.backends.mirror.copy import current
from edcache.backends.mirror.evict import left_by_others, limit_of
from edcache.backends.mirror.fetch import sealed
from edcache.backends.mirror.read_through import ReadThrough, attached, reopened
from edcache.backends.mirror.room import BLOCK_NBYTES
from edcache.backends.mirror.sidecar import MAP_OFFSET, Identity, Note, Version, stamp_of
from edcache.base import ArchiveNotFoundError, StaleArchiveError, StorageError
from edcache.storage import ByteSource, File, Location
from edcache.writer import PARTIAL, SIDE

logger = logging.getLogger("edcache")


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
        return reopened(token, opener, limit)
    try:
        # Asked for its identity, it is open: each opening of a URL is a round trip.
        origin = where.open() if where.by_request else None
        identity = sidecar.identity_at(where) if origin is None else sidecar.identity_of(origin)
    except (StorageError, ArchiveNotFoundError) as error:
        if where.has_query:
            raise
        return _without_origin(source, folder, opener, error)
    copied = os.path.join(folder, os.path.basename(source))
    try:
        version = current(copied, identity)
        file = None if version is None else attached(Pinned(source, copied, version), opener, limit)
        file = file or _open_by(source, identity, folder, limit, opener, origin)
    except BaseException:
        if origin is not None:
            origin.close()
        raise
    if origin is not None:
        file.fetcher.keep_origin(origin)
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
            file = attached(Pinned(note.origin, copy, note.versions[0]), opener, limit)
            if file is not None:
                return file
        storage.make_parent(copy)
        with closing(opener()) if origin is None else nullcontext(origin) as opened:
            _create(source, identity, copy, limit, opened)


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
        file = attached(Pinned(source, copy, version), opener, None)
        if file is not None and not file.is_partial:
            logger.warning("%s: reading its copy %s: %s", source, copy, error)
            return file
    raise error
