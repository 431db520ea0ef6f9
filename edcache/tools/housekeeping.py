"""Archives as files on a disk: list them, choose those that are too old or too large together, delete them.

The age counts from the last write: a listing reads the head of each file, so the time of the last read would be that
of the last listing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

from edcache import base, format, storage, writer
from edcache.backends import mirror
from edcache.reader import Session
from edcache.storage import File
from edcache.writer import PARTIAL, SIDE

# Start and length: LOCK_APPEND is the first of all locks, sessions and claims lie behind it.
_EVERY_LOCK: Final = format.LOCK_APPEND, (1 << 63) - 1 - format.LOCK_APPEND


@dataclass(frozen=True, slots=True)
class Listed:
    """Archive on a disk.

    path: as found. nbytes: of the file. written: time of the last write, and of the last read of a local copy, in
    seconds since 1970. present: samples with a record. length: samples of the dataset. complete: True if it is sealed,
    and every sample has a record or is absent for good. fingerprint: the call or object that made the samples. problem:
    the error of an unreadable file; counts and fingerprint are then 0 or None. origin: of a local copy, the archive far
    away. is_left: True if a killed process left this file or folder beside its path.
    """

    path: str
    nbytes: int
    written: float
    present: int = 0
    length: int = 0
    complete: bool = False
    fingerprint: dict[str, Any] | None = None
    problem: str | None = None
    origin: str | None = None
    is_left: bool = False


def archives_in(directory: str | os.PathLike[str]) -> list[Listed]:
    """List the archives in a folder and in those below it, the oldest first.

    Other files are left out. A damaged archive and an unreadable file or folder are listed with their problem. Symbolic
    links are not followed.

    Raises: OptionError, if there is no such folder.
    Cost: opens every file. Of a sealed archive it reads head and end; if samples are missing, the index too; of an
        unsealed one the table of every chunk.
    Safety: takes no lock, so that fills, appends and deletions go on.
    """
    top = storage.home_expanded(directory)
    if not os.path.isdir(top):
        what = "no folder" if os.path.lexists(top) else "no such folder"
        raise base.OptionError(f"{top}: {what}; name one that holds archives")
    return sorted(_archives(top), key=lambda archive: (archive.written, archive.path))


def _archives(top: str) -> Iterator[Listed]:
    unreadable: list[OSError] = []
    for path in _regular_files(top, unreadable.append):
        try:
            listed = _temporary(path) or _partial_copy(path)
            if listed is not None or _is_archive(path):
                yield listed or look_at(path)
        except base.ArchiveNotFoundError:
            continue
        except base.EdcacheError as error:
            yield Listed(path, *_on_disk(path), problem=str(error))
    for refused in unreadable:
        name = str(refused.filename)
        yield Listed(name, 0, 0.0, problem=f"{name}: listing the folder: {refused.strerror}")


def _is_archive(path: str) -> bool:
    with closing(File.open(path, "r")) as file:
        return format.begins_archive(file.pread(0, format.PAGE))


def _temporary(path: str) -> Listed | None:
    """List a file that is written beside its path, or the side file of a copy that is gone; else None."""
    copy = path.removesuffix(SIDE)
    is_stray = path != copy and not (os.path.exists(copy) or os.path.exists(copy + PARTIAL))
    if not (writer.is_temporary(path) or is_stray):
        return None
    is_held = mirror.is_made(copy) if is_stray else writer.is_held(path)
    why = "another process is writing it" if is_held else "a killed process left it; --prune deletes it"
    return Listed(path, *_on_disk(path), problem=f"{path}: {why}", is_left=not is_held)


def _partial_copy(path: str) -> Listed | None:
    """List a copy that is not whole yet; None for another file."""
    kept = mirror.copy_at(path.removesuffix(PARTIAL)) if path.endswith(PARTIAL) else None
    if kept is None:
        return None
    here = f"{base.human_bytes(kept.here)} of {base.human_bytes(kept.nbytes)}"
    problem = f"{path}: a copy of {kept.origin} that is not whole yet: {here} are here; asked for, it goes on"
    return Listed(path, kept.here, kept.used, problem=problem, origin=kept.origin)


def _regular_files(top: str, on_error: Callable[[OSError], None]) -> Iterator[str]:
    """Yield the files of a tree; links are not followed."""
    for folder, _, names in os.walk(top, onerror=on_error):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path) and os.path.isfile(path):
                yield path


def look_at(path: str | os.PathLike[str]) -> Listed:
    """List one archive, as `archives_in` does; raises as `Reader` at its first use."""
    name = os.fspath(path)
    with closing(File.open(name, "r")) as file:
        nbytes, written = _on_disk(name)
        session = Session(file)
    copy = mirror.copy_at(name)
    if copy is not None:
        written = max(written, copy.used)
    origin = None if copy is None else copy.origin
    if session.damaged:
        return Listed(name, nbytes, written, problem=session.damaged[0], origin=origin)
    counts = session.index.present, session.length, session.complete
    return Listed(name, nbytes, written, *counts, session.head.fingerprint, origin=origin)


def _on_disk(path: str) -> tuple[int, float]:
    """Return the bytes of a file, and the time of the last write."""
    try:
        status = os.stat(path)
    except OSError:  # gone since
        return 0, 0.0
    return status.st_size, status.st_mtime


def select(archives: Iterable[Listed], older_than: float | None, max_nbytes: int | None) -> list[Listed]:
    """Choose the oldest archives, until both conditions hold for the others.

    Args:
        archives: in the order of `archives_in`. One that cannot be read is neither chosen nor counted.
        older_than: seconds; archives that were last written longer ago are chosen.
        max_nbytes: most bytes of the others together.
    """
    since = 0.0 if older_than is None else time.time() - older_than
    readable = [archive for archive in archives if archive.problem is None or archive.origin is not None]
    nbytes = sum(archive.nbytes for archive in readable)
    chosen: list[Listed] = []
    for archive in readable:
        if archive.written >= since and (max_nbytes is None or nbytes <= max_nbytes):
            break
        chosen.append(archive)
        nbytes -= archive.nbytes
    return chosen


def delete_unused(path: str) -> str | None:
    """Delete an archive, or a file that a killed process left, unless a process writes it.

    The side file of a local copy is deleted too. A process that reads the archive goes on reading it.

    Returns:
        None if it is gone; else the reason: "a.zip: another process is filling it or appending to it".
    Raises:
        StorageError: the system refuses.
    Safety: tries every lock of the file, which takes the right to write. A CacheWriter holds none between two
        publications. On macOS a writer is seen only while it publishes.
    """
    if writer.is_temporary(path):
        return None if writer.discard(path) else f"{path}: another process is writing it"
    if storage.is_in_memory(storage.absolute(path)):
        return f"{path}: a process has it open"
    copy = path.removesuffix(PARTIAL).removesuffix(SIDE)
    if storage.exists(copy + SIDE):
        reason = mirror.delete(copy)
        return None if reason is None else f"{path}: {reason}"
    with suppress(base.ArchiveNotFoundError), closing(File.open(path, "r+")) as file:
        if not file.try_lock(*_EVERY_LOCK):
            return f"{path}: another process is filling it or appending to it"
        storage.remove(path)
    return None
