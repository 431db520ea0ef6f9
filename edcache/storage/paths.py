"""Files by their paths: replaced, moved, deleted, looked for; and kept, where they are in memory."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager

from edcache.base import ArchiveNotFoundError, SourceError, WorkerError
from edcache.storage import calls
from edcache.storage.calls import refused, with_errno
from edcache.storage.file import File, Stamp, absolute, stamp_of
from edcache.storage.registry import backend_of, naming_of, scheme_of


@contextmanager
def _refusals(path: str, doing: str) -> Iterator[None]:
    """Let what the system refuses in the block be a StorageError that says what was being done."""
    try:
        yield
    except OSError as error:
        refused(path, doing, error)


def replace(source: str, target: str) -> None:
    """Give the file `source` the name `target` in one step, then sync the folder."""
    with _refusals(target, f"giving {source} its name"):
        calls.system.replace(source, target)
    # Those that keep what had a name in memory keep what has it now.
    for keeper in _keepers.copy():
        if keeper.path == target:
            keeper.take()
    sync_directory(os.path.dirname(target))


def move(file: File, target: str) -> None:
    """Give an open file the name `target` in one step, then sync the folder.

    Whoever has open what had that name before keeps it.
    """
    replace(file.absolute, target)
    file.path, file.absolute = target, absolute(target)


def touch(path: str) -> None:
    """Set the times of a file to now."""
    with _refusals(path, "setting its times"):
        calls.system.touch(path)


def copy_permissions(source: str, target: str) -> None:
    """Let `target` be read and written by whom `source` may be."""
    with _refusals(target, f"giving it the permissions of {source}"):
        calls.system.copy_permissions(source, target)


def remove(path: str) -> None:
    """Take a file's name away; who has it open or mapped keeps it."""
    try:
        calls.system.remove(path)
    except FileNotFoundError as error:
        raise with_errno(ArchiveNotFoundError(f"{path}: no such file"), error) from None
    except OSError as error:
        refused(path, "deleting it", error)


def remove_tree(path: str) -> None:
    """Take a file away, or a folder with all that is in it; links are not followed."""
    with _refusals(path, "deleting it"):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            calls.system.remove(path)


def sync_directory(path: str) -> None:
    """Bring the names in a folder to the disk; "" is the working folder."""
    if scheme_of(path):
        return
    try:
        calls.system.sync_directory(path or os.curdir)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):
            refused(path or os.curdir, "syncing the folder", error)


def exists(path: str) -> bool:
    """Whether something is at a path."""
    with _refusals(path, "looking for it"):
        try:
            calls.system.stat_path(path)
        except FileNotFoundError:
            return False
    return True


def names_in(folder: str) -> list[str]:
    """What a folder has."""
    with _refusals(folder, "listing it"):
        return os.listdir(folder)


def make_parent(path: str) -> None:
    """Make the folder of `path` and those above it, where they are absent."""
    parent = os.path.dirname(path)
    if parent and not naming_of(path).is_volatile:
        with _refusals(parent, "making the folder"):
            calls.system.make_folders(parent)


def stamp(path: str) -> Stamp:
    """What `File.stamp` says, of a path; one call of the system.

    Raises:
        ArchiveNotFoundError, StorageError.
    """
    return stamp_of(_stat_path(path))


def allocated(path: str) -> int:
    """Bytes that a file takes of its disk; 0 where there is none."""
    try:
        status = _stat_path(path)
    except ArchiveNotFoundError:
        return 0
    # 512 whatever the file system's own blocks are; Windows does not tell.
    return 512 * status.st_blocks if hasattr(status, "st_blocks") else status.st_size


def _stat_path(path: str) -> os.stat_result:
    try:
        return calls.system.stat_path(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise with_errno(ArchiveNotFoundError(f"{path}: no such file"), error) from None
    except OSError as error:
        refused(path, "looking for it", error)


class Keeper:
    """Holds what has a name in memory; nothing where the path is that of anything else."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File | None = None

    def take(self) -> None:
        """Hold what has the name now; an empty file where nothing has."""
        with closing(File.open(self.path, "a")) as made:
            taken = made.reopened()
        self.close()
        self.file = taken

    def has_lost(self) -> bool:
        """Whether the name was given to what another process made, which is then held."""
        if self.file is None or self.file.is_named():
            return False
        self.take()
        return True

    def close(self) -> None:
        """Hold nothing."""
        if self.file is not None:
            self.file.close()
            self.file = None


_keepers: list[Keeper] = []
# By name, what a fill left in memory that did not come to its end.
_unfinished: dict[str, File] = {}


@contextmanager
def kept(path: str) -> Iterator[Keeper]:
    """Let what has a name in memory, or gets it here, stay for the block, whoever closes it.

    After an interrupt, or where a sample could not be made, it stays until the next time that this process
    has done with the name, so that the same call goes on where it stopped.
    """
    keeper = Keeper(path)
    if not backend_of(path).is_volatile:
        yield keeper
        return
    keeper.take()
    _keepers.append(keeper)
    try:
        yield keeper
    except (KeyboardInterrupt, SourceError, WorkerError):
        if keeper.file is not None and keeper.file.is_named():
            _unfinished[path] = keeper.file.reopened()
        raise
    else:
        _unfinished.pop(path, None)
    finally:
        _keepers.remove(keeper)
        keeper.close()
