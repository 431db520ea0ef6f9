"""Files by their paths: replaced, moved, deleted, looked for."""

from __future__ import annotations

import errno
import os
import shutil

from edcache.base import ArchiveNotFoundError
from edcache.storage import calls
from edcache.storage.file import File, Stamp, stamp_of
from edcache.storage.keeping import take_over
from edcache.storage.naming import naming_of
from edcache.storage.refusals import refused, with_errno
from edcache.storage.registry import scheme_of


def replace(source: str, target: str) -> None:
    """Give the file `source` the name `target` in one step, then sync the folder."""
    try:
        calls.system.replace(source, target)
    except OSError as error:
        refused(target, f"giving {source} its name", error)
    take_over(target)
    sync_directory(os.path.dirname(target))


def move(file: File, target: str) -> None:
    """Give an open file the name `target` in one step, then sync the folder.

    Whoever has open what had that name before keeps it.
    """
    replace(file.absolute, target)
    file.renamed(target)


def touch(path: str) -> None:
    """Set the times of a file to now."""
    try:
        calls.system.touch(path)
    except OSError as error:
        refused(path, "setting its times", error)


def copy_permissions(source: str, target: str) -> None:
    """Let `target` be read and written by whom `source` may be."""
    try:
        calls.system.copy_permissions(source, target)
    except OSError as error:
        refused(target, f"giving it the permissions of {source}", error)


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
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            calls.system.remove(path)
    except OSError as error:
        refused(path, "deleting it", error)


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
    try:
        calls.system.stat_path(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        refused(path, "looking for it", error)
    return True


def names_in(folder: str) -> list[str]:
    """What a folder has."""
    try:
        return os.listdir(folder)
    except OSError as error:
        refused(folder, "listing it", error)


def make_parent(path: str) -> None:
    """Make the folder of `path` and those above it, where they are absent."""
    naming, parent = naming_of(path), os.path.dirname(path)
    try:
        if parent and not naming.is_volatile:
            calls.system.make_folders(parent)
    except OSError as error:
        refused(parent, "making the folder", error)


def stamp(path: str) -> Stamp:
    """What `File.stamp` says, of a path; one call of the system.

    Raises:
        ArchiveNotFoundError, StorageError.
    """
    return stamp_of(_stat_path(path))


def allocated(path: str) -> int:
    """Bytes that a file takes of its disk; 0 where there is none."""
    try:
        found = _stat_path(path)
    except ArchiveNotFoundError:
        return 0
    # 512 whatever the file system's own blocks are; Windows does not tell.
    return 512 * found.st_blocks if hasattr(found, "st_blocks") else found.st_size


def _stat_path(path: str) -> os.stat_result:
    try:
        return calls.system.stat_path(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise with_errno(ArchiveNotFoundError(f"{path}: no such file"), error) from None
    except OSError as error:
        refused(path, "looking for it", error)
