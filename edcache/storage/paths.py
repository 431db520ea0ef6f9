"""Operations on files by path: replace, move, delete, look up; and keeping archives in memory open."""

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
    """Turn an OSError in the block into a StorageError that names the operation."""
    try:
        yield
    except OSError as error:
        refused(path, doing, error)


def replace(source: str, target: str) -> None:
    """Rename the file `source` to `target` atomically, then sync the folder."""
    with _refusals(target, f"giving {source} its name"):
        calls.system.replace(source, target)
    # Keepers of this name in memory hold the new file from now on.
    for keeper in _keepers.copy():
        if keeper.path == target:
            keeper.take()
    sync_directory(os.path.dirname(target))


def move(file: File, target: str) -> None:
    """Rename an open file to `target` atomically, then sync the folder.

    Processes that have the old file of that name open keep it.
    """
    replace(file.absolute, target)
    file.path, file.absolute = target, absolute(target)


def touch(path: str) -> None:
    """Set the times of a file to now."""
    with _refusals(path, "setting its times"):
        calls.system.touch(path)


def copy_permissions(source: str, target: str) -> None:
    """Give `target` the permissions of `source`."""
    with _refusals(target, f"giving it the permissions of {source}"):
        calls.system.copy_permissions(source, target)


def followed(path: str) -> str:
    """The path that a symbolic link leads to, as open() would follow it; other paths as they are."""
    return os.path.realpath(path) if os.path.islink(path) else path


def remove(path: str) -> None:
    """Delete a file's name. Processes that have it open or mapped keep it."""
    try:
        calls.system.remove(path)
    except FileNotFoundError as error:
        raise with_errno(ArchiveNotFoundError(f"{path}: no such file"), error) from None
    except OSError as error:
        refused(path, "deleting it", error)


def remove_tree(path: str) -> None:
    """Delete a file, or a folder with its content. Links are not followed."""
    with _refusals(path, "deleting it"):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            calls.system.remove(path)


def sync_directory(path: str) -> None:
    """Sync the names in a folder to the disk; "" is the working folder."""
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
    """The names in a folder."""
    with _refusals(folder, "listing it"):
        return os.listdir(folder)


def make_parent(path: str) -> None:
    """Make the parent folders of `path` if they are absent."""
    parent = os.path.dirname(path)
    if parent and not naming_of(path).is_volatile:
        with _refusals(parent, "making the folder"):
            calls.system.make_folders(parent)


def stamp(path: str) -> Stamp:
    """`File.stamp` of the file at a path, by one system call."""
    return stamp_of(_stat_path(path))


def allocated(path: str) -> int:
    """Bytes of disk space of a file; 0 if there is no file."""
    try:
        status = _stat_path(path)
    except ArchiveNotFoundError:
        return 0
    # st_blocks counts 512 bytes on every file system. Windows has no st_blocks.
    return 512 * status.st_blocks if hasattr(status, "st_blocks") else status.st_size


def _stat_path(path: str) -> os.stat_result:
    try:
        return calls.system.stat_path(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise with_errno(ArchiveNotFoundError(f"{path}: no such file"), error) from None
    except OSError as error:
        refused(path, "looking for it", error)


class Keeper:
    """Holds the file of a name in memory open, so that it is not freed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: File | None = None

    def take(self) -> None:
        """Hold the file that has the name now; an empty file if there is none."""
        with closing(File.open(self.path, "a")) as made:
            taken = made.reopened()
        self.close()
        self.file = taken

    def has_lost(self) -> bool:
        """Whether another process has replaced the file. The new file is held then."""
        if self.file is None or self.file.is_named():
            return False
        self.take()
        return True

    def close(self) -> None:
        """Release the file."""
        if self.file is not None:
            self.file.close()
            self.file = None


_keepers: list[Keeper] = []
# Name -> the file of a fill in memory that was interrupted.
_unfinished: dict[str, File] = {}


@contextmanager
def kept(path: str) -> Iterator[Keeper]:
    """Keep the file of a name in memory open for the block, even if other code closes it.

    After an interrupt or a failed sample it stays open, so that the same call can resume. The next block for
    the name that ends normally releases it.
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
