"""Archives as files on a disk: which there are, when each was last used, which may go.

To look at an archive is not to use it: heads are read here without leaving an access time, where the
system has a way to (Linux, files of one's own). Otherwise to list archives would make every one of
them fresh, and nothing would ever be old enough to go.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edcache import base, format, storage, writer
from edcache.format import Chain, Cursor, Head, Header
from edcache.storage import File, copies_on_disk, located
from edcache.writer import PARTIAL, SIDE, copies_beside, store_at

# Start and length: LOCK_APPEND is the first of all locks, sessions and claims lie behind it.
_EVERY_LOCK: Final = format.LOCK_APPEND, (1 << 63) - 1 - format.LOCK_APPEND
_NO_ACCESS_TIME: Final = getattr(os, "O_NOATIME", 0)


@dataclass(frozen=True, slots=True)
class Listed:
    """An archive as it lies on the disk.

    path: as found. nbytes: of the file. used: when it was last read or written, in seconds since 1970.
    was_read: whether reading was the last of the two. present: samples that have a record; absent:
    those that failed and count as absent for good. length: samples of the dataset. fingerprint: what the
    head says of where they come from. problem: why the file cannot be read, in one message; what it would
    have told is then 0 or None. origin: what it is a copy of, if it is one. is_left: whether it is a file or
    folder that a process was writing, which has ended.
    """

    path: str
    nbytes: int
    used: float
    was_read: bool
    present: int = 0
    absent: int = 0
    length: int = 0
    sealed: bool = False
    fingerprint: dict[str, Any] | None = None
    problem: str | None = None
    origin: str | None = None
    is_left: bool = False

    @property
    def complete(self) -> bool:
        """Whether it is sealed, and every sample has a record or is absent for good."""
        return self.problem is None and self.sealed and self.present + self.absent == self.length


def archives_in(directory: str | os.PathLike[str]) -> list[Listed]:
    """The archives in a folder and in those below it, least recently used first.

    Files that are no archives are left out; what is damaged or cannot be read is listed with its
    problem, a folder too. Symbolic links are not followed. OptionError where there is no such folder.

    Cost: opens every file there. A sealed archive is read at its head and its end, whatever its size; of
        one that lacks samples, the index, and of an unsealed one the table of every chunk.
    Safety: takes no lock; whoever fills, appends or deletes meanwhile is not disturbed.
    """
    top = os.fspath(directory)
    if not os.path.isdir(top):
        what = "no folder" if os.path.lexists(top) else "no such folder"
        raise base.OptionError(f"{top}: {what}; name one that holds archives")
    return sorted(_archives(top), key=lambda archive: (archive.used, archive.path))


def _archives(top: str) -> Iterator[Listed]:
    unreadable: list[OSError] = []
    for path in _regular_files(top, unreadable.append):
        try:
            yield _temporary(path) or _partial_copy(path) or look_at(path)
        except (base.NotAnArchiveError, base.ArchiveNotFoundError):
            continue
        except base.ArchiveError as error:
            yield Listed(path, *_on_disk(path), problem=str(error))
    for refused in unreadable:
        name = str(refused.filename)
        yield Listed(name, 0, 0.0, False, problem=f"{name}: listing the folder: {refused.strerror}")


def _temporary(path: str) -> Listed | None:
    """What has no name yet, or says of what something is a copy that is not there."""
    is_stray = path.endswith(SIDE) and not any(map(os.path.exists, copies_beside(path)))
    if not (writer.is_temporary(path) or is_stray):
        return None
    is_held = why_not_now(path) is not None
    why = "another process is writing it" if is_held else "a process that has ended left it; prune deletes it"
    return Listed(path, *_on_disk(path), problem=f"{path}: {why}", is_left=not is_held)


def _partial_copy(path: str) -> Listed | None:
    """A copy that is not whole yet."""
    kept = copies_on_disk().copy_at(path.removesuffix(PARTIAL)) if path.endswith(PARTIAL) else None
    if kept is None:
        return None
    here = f"{base.human_bytes(kept.here)} of {base.human_bytes(kept.nbytes)}"
    problem = f"{path}: a copy of {kept.origin} that is not whole yet: {here} are here; asked for, it goes on"
    return Listed(path, kept.here, kept.used, True, problem=problem, origin=kept.origin)


def _regular_files(top: str, on_error: Callable[[OSError], None]) -> Iterator[str]:
    """Files in a folder and below it, and the folders that are temporary; links are not followed."""
    for folder, folders, names in os.walk(top, onerror=on_error):
        unnamed = [name for name in folders if writer.is_temporary(name)]
        folders[:] = [name for name in folders if name not in unnamed]
        for name in [*unnamed, *names]:
            path = os.path.join(folder, name)
            if not os.path.islink(path) and (name in unnamed or os.path.isfile(path)):
                yield path


def look_at(path: str | os.PathLike[str]) -> Listed:
    """One archive, as `archives_in` lists it; raises as `format.read_head`."""
    name = os.fspath(path)
    with closing(_open_unnoticed(name)) as file:
        nbytes, used, was_read = _on_disk(name)
        head, cursor = format.read_head(file.pread, name)
        counts = _samples(file, head, cursor)
    copy = copies_on_disk().copy_at(name)
    if copy is not None and copy.used > used:
        used, was_read = copy.used, True
    origin = None if copy is None else copy.origin
    return Listed(name, nbytes, used, was_read, *counts, fingerprint=head.fingerprint, origin=origin)


def head_of(path: str | os.PathLike[str]) -> Head:
    """What an archive says about itself; raises as `format.read_head`."""
    where = located(path)
    with closing(where.open() if where.by_request else _open_unnoticed(where.path)) as file:
        return format.read_head(file.pread, file.path)[0]


def _open_unnoticed(path: str) -> File:
    """Open for reading, and leave the access time as it is if that can be asked for."""
    if _NO_ACCESS_TIME and os.path.isfile(path):
        # Another user's file may be read all the same; other errors are put into words below.
        with suppress(base.StorageError):
            return File.open(path, "r", _NO_ACCESS_TIME)
    return File.open(path, "r")


def _on_disk(path: str) -> tuple[int, float, bool]:
    """Bytes, time of the last use, and whether that was a read."""
    try:
        status = os.stat(path)
    except OSError:  # gone since
        return 0, 0.0, False
    nbytes = status.st_size
    if stat.S_ISDIR(status.st_mode):
        nbytes = sum(_on_disk(os.path.join(path, name))[0] for name in os.listdir(path))
    return nbytes, max(status.st_atime, status.st_mtime), status.st_atime >= status.st_mtime


def _samples(file: File, head: Head, cursor: Cursor) -> tuple[int, int, int, bool]:
    """Samples with a record, absent for good, of the dataset; and whether the archive is sealed."""
    size = file.size()
    seal = format.read_seal(file.pread, size, head.uuid)
    if seal is not None:
        return seal.index.samples, _sealed_absent(file, seal.index), seal.index.end_index, True
    chain = Chain(head, cursor, file.path)
    chain.extend(file.pread, size)
    # Of each table the indices alone are kept; labels take memory, and need not go together to be counted.
    tables = (format.read_table(file.pread, header, file.path) for header in chain.chunks)
    indices = [np.array(table.records.index) for table in tables]
    present = np.unique(np.concatenate([np.empty(0, np.int64), *indices]))
    length = max(chain.end_index, chain.length or 0)
    final = [index for index, (_, failure) in chain.failures.items() if failure.final and index < length]
    return len(present), len(np.setdiff1d(np.array(final, np.int64), present)), length, False


def _sealed_absent(file: File, index: Header) -> int:
    if index.samples == index.end_index:
        return 0
    data = file.pread(index.table_offset, index.table_nbytes)
    place = f"{file.path}: {index.name} at offset {index.offset:,}"
    if format.crc32(data) != index.table_crc:
        raise base.CorruptArchiveError(f'{place} fails its crc32; run "edcache verify {file.path}"')
    try:
        failures = format.parse_root(data, index.samples, index.payload_nbytes, file.size()).failures
    except base.CorruptArchiveError as error:
        raise base.CorruptArchiveError(f"{place}: {error}") from error
    return sum(failure.final for failure in failures)


def why_not_now(path: str) -> str | None:
    """Why a file should not be deleted at this moment, in one line; None where nothing speaks against it.

    Who has it open and holds no lock on it just now, such as a CacheWriter between two publications, is not
    seen. On macOS, where one lock stands for all, anybody is seen only while publishing.
    Safety: takes every lock of the file and lets go at once, for which it needs the right to write.
    """
    if writer.is_temporary(path):
        return f"{path}: another process is writing it" if writer.is_held(path) else None
    if not os.path.exists(path):
        return None
    reason = copies_on_disk().why_stays(path.removesuffix(PARTIAL).removesuffix(SIDE))
    if reason is not None:
        return f"{path}: {reason}"
    try:
        with closing(File.open(path, "r+")) as file:
            is_free = file.try_lock(*_EVERY_LOCK)
    except base.ArchiveNotFoundError:
        return None
    except base.StorageError as error:
        return f"{error}, so nobody can tell whether it is being filled"
    return None if is_free else f"{path}: another process is filling it or appending to it"


def check_deletable(path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Raise OptionError for a link and for what is in memory, ArchiveError for what is in use.

    What is no archive raises as `head_of`. force: also what is in use; who fills it loses what it computes.
    """
    name = os.fspath(path)
    store_at(path).check_deletable()
    if os.path.islink(name):
        raise base.OptionError(f"{name}: a symbolic link; name the archive itself, {os.path.realpath(name)}")
    if _partial_copy(name) is None:
        head_of(name)
    reason = None if force else why_not_now(name)
    if reason is not None:
        raise base.ArchiveError(f"{reason}; wait for it to end, or force the deletion (--force)")


def delete(path: str | os.PathLike[str]) -> int:
    """Delete a file and return how many bytes it had; 0 where it is gone already.

    Whoever has the archive open keeps reading it. With a local copy goes what lies beside it.
    """
    name = os.fspath(path)
    nbytes, is_gone = _on_disk(name)[0], True
    if writer.is_temporary(name):
        is_gone = writer.discard(name)
    elif name.endswith(SIDE):
        is_gone = copies_on_disk().discard_side(name)
    else:
        try:
            storage.remove(name)
        except FileNotFoundError:
            return 0
        for beside in copies_on_disk().leftovers(name):
            with suppress(FileNotFoundError):
                storage.remove(beside)
    return nbytes if is_gone else 0


@dataclass(slots=True)
class Pruning:
    """What goes, what stays, least recently used first, and why some stay that would have to go."""

    doomed: list[Listed] = field(default_factory=list)
    kept: list[Listed] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)


def plan_pruning(
    archives: Iterable[Listed],
    *,
    older_than: float | None = None,
    max_nbytes: float | None = None,
    now: float | None = None,
) -> Pruning:
    """Choose which archives go: the least recently used, until both conditions hold. Deletes nothing.

    What a process left that has ended goes in any case.

    Args:
        archives: as `archives_in` lists them; others with a problem are left out of everything.
        older_than: seconds; none stays that was last used longer ago.
        max_nbytes: what stays has at most this many bytes together.
        now: seconds since 1970; the clock's by default.
    """
    oldest = (time.time() if now is None else now) - older_than if older_than is not None else -np.inf
    most = np.inf if max_nbytes is None else max_nbytes
    order = sorted(archives, key=lambda a: (a.used, a.path))
    sound = [archive for archive in order if archive.problem is None or archive.origin is not None]
    nbytes, pruning = sum(archive.nbytes for archive in sound), Pruning()
    pruning.doomed = [archive for archive in order if archive.is_left]
    for archive in sound:
        must_go = archive.used < oldest or nbytes > most
        reason = why_not_now(archive.path) if must_go else None
        if must_go and reason is None:
            pruning.doomed.append(archive)
            nbytes -= archive.nbytes
            continue
        pruning.kept.append(archive)
        if reason is not None:
            pruning.busy.append(reason)
    return pruning
