"""Whole copies: all blocks of a partial copy are fetched and proven, and it gets its name."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple

from edcache import base, storage
from edcache.backends.mirror import sidecar
from edcache.backends.mirror.blocks import BlockFetcher, Origin, Pinned
from edcache.backends.mirror.complete import complete
from edcache.backends.mirror.evict import Budget
from edcache.backends.mirror.sidecar import Note, stamp_of, whole_note
from edcache.base import ArchiveExistsError, OptionError, Progress, Show, StorageError, human_bytes
from edcache.reader import OnProgress, check_digest, parse_digest
from edcache.storage import ByteSource, File, Location, located
from edcache.writer import PARTIAL, note_use

logger = logging.getLogger("edcache")

_PIECE_NBYTES: Final = 1 << 24


class Copied(NamedTuple):
    """The result of a call: path of the copy, its bytes, and the bytes that were fetched."""

    path: str
    nbytes: int
    fetched: int


@base.cut_traceback
def copy_to_local(
    src: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    expected_digest: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Show = None,
) -> str:
    """Copy a remote, sealed archive to a disk of this machine, once for all processes.

    Args:
        src: the path or URL of the archive.
        target: the folder for the copy, which is created if it does not exist; or the path of the copy,
            if it has the same ending as `src`.
        expected_digest: "sha256:...", as `edcache.digest` returned it for the archive.
        storage_options: options for the library that reads a URL, see `edcache.reader.Reader`.
        progress: True shows a bar, False nothing. By default a terminal and a notebook show a bar, and pipes
            and log files get a line now and then. A function is called with (bytes copied, bytes in all)
            instead.
    Returns:
        The path of the copy, which opens as any archive.
    Raises:
        ArchiveNotFoundError, CorruptArchiveError; ArchiveError for a newer format.
        OptionError: "far/train.zip: it is not sealed, so it may still grow; ...".
        CorruptArchiveError: bytes of the remote archive failed their crc32, fetched twice.
        ArchiveExistsError: "ssd/train.zip: exists already, and is not as it was copied from ...".
        ArchiveError: the remote archive is not the one with this digest; no copy is left.
        StorageError: there is too little space, which is checked first; or the system refused.

    The copy gets its name after all crc32s were compared and it is on the disk. The next call continues the
    copy of a killed process. If several processes call it at the same time, one copies and the others wait.
    If the remote archive has changed (size, time or inode), or the copy was cut, another copy takes its place.
    Open readers keep the old copy.
    Cost: reads the remote archive once, and writes as much; reads the copy once. If the copy is there: one
    look at each file.
    """
    where = located(src, storage_options)
    src, storage_options = where.path, None  # a traceback with locals would show credentials
    with Progress(os.path.basename(src), progress, doing="copying", unit="B") as tell:
        copied = copy_local(where, target, expected_digest, tell)
    return copied.path


def copy_local(
    src: str | os.PathLike[str] | Location,
    target: str | os.PathLike[str],
    expected_digest: str | None = None,
    on_progress: OnProgress | None = None,
) -> Copied:
    """Copy as `copy_to_local` does, unless that was done; returns the copy and the bytes that were fetched."""
    expected = None if expected_digest is None else parse_digest(expected_digest)
    source, target = located(src), located(target).local_path()
    is_folder = os.path.isdir(target) or target.endswith(os.sep)
    if is_folder or not target.endswith(os.path.splitext(source.path)[1]):
        target = os.path.join(target, os.path.basename(source.path))
    # Looked at without the lock, so also in a folder that cannot be written.
    note = whole_note(target)
    is_current = note is not None and note.identity == sidecar.identity_at(source)
    if note is not None and is_current and note.digest == (expected or note.digest):
        note_use(target)
        return Copied(target, note.nbytes, 0)
    storage.make_parent(target)
    with closing(source.open()) as origin:
        nbytes, fetched = copy_from(origin, target, expected, on_progress)
    return Copied(target, nbytes, fetched)


def copy_from(
    origin: ByteSource,
    copy: str,
    digest: str | None = None,
    tell: OnProgress | None = None,
) -> tuple[int, int]:
    """Copy an open origin unless that was done, alone on this machine; returns its bytes, and those fetched."""
    state = sidecar.note_of_origin(origin)
    if state is None:
        raise OptionError(
            f"{origin.path}: it is not sealed, so it may still grow; copy it when its fill has ended, or "
            f'seal what is there with "edcache copy {origin.path} -o NEW --skip-damaged"'
        )
    with sidecar.locked_side(copy):
        _check_replaceable(copy, state, origin)
        if not state.is_like(whole_note(copy)):
            _check_room(copy, state.nbytes)
    with sidecar.locked_copy(copy, state) as side:
        note = whole_note(copy)
        if note is not None:  # another process has made it
            with closing(File.open(copy, "r")) as file:
                if digest is not None:
                    check_digest(file, digest)
            note_use(copy)
            return note.nbytes, 0
        logger.info("%s: copying %s", copy, origin.path)
        pinned = Pinned(copy, state)
        with closing(File.open(copy + PARTIAL, "r")) as data:
            fetcher = BlockFetcher(
                pinned, data, Origin(pinned, lambda: origin), Budget(os.path.dirname(copy))
            )
            with closing(fetcher):
                return state.nbytes, complete(fetcher, side, digest, tell)


def _check_room(copy: str, nbytes: int) -> None:
    """Raise StorageError if the disk is too full for a copy; one of an earlier state goes before."""
    more = nbytes - storage.allocated(copy) - storage.allocated(copy + PARTIAL)
    free = storage.free(copy)
    if more > free:
        error = StorageError(
            f"{copy}: the copy takes {human_bytes(more)} more, the disk has {human_bytes(free)} left; free "
            "some, or copy it to another disk",
            path=copy,
        )
        error.errno = errno.ENOSPC
        raise error


def _check_replaceable(copy: str, state: Note, origin: ByteSource) -> None:
    """Raise ArchiveExistsError if a file is at the path of a copy, and is not an earlier state of it.

    A file that was cut gives way too: all that it has is in the origin.
    """
    stamp, note = stamp_of(copy), sidecar.note_of(copy)
    if stamp is None:
        return
    if note is None or (note.stamp != stamp and not _begins(copy, origin)):
        of = "" if note is None else f" from {note.origin}"
        raise ArchiveExistsError(
            f"{copy}: exists already, and is not as it was copied{of}; give another path, or delete it",
            path=copy,
        )
    if note.origin != state.origin and note.uuid != state.uuid:
        raise ArchiveExistsError(
            f"{copy}: a copy of another archive, {note.origin}; give {state.origin} another path or folder",
            path=copy,
        )


def _begins(copy: str, origin: ByteSource) -> bool:
    """True if a file is shorter than the origin, and has its first bytes; reads as much of both."""
    with closing(File.open(copy, "r")) as file:
        nbytes = file.size()
        pieces = [(at, min(_PIECE_NBYTES, nbytes - at)) for at in range(0, nbytes, _PIECE_NBYTES)]
        is_cut = nbytes < origin.size()
        return is_cut and all(file.read_many([one]) == origin.read_many([one]) for one in pieces)
