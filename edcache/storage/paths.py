"""Operations on files by path: make it absolute, replace, delete, look up."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress

from edcache.base import ArchiveNotFoundError, OptionError, StorageError
from edcache.storage import calls
from edcache.storage.errors import storage_error, storage_errors, with_errno
from edcache.storage.registry import scheme_of

Stamp = tuple[int, int, int]
"""Bytes of a file, time of its last write (ns since 1970), inode: equal while the file is the same."""


def cache_folder() -> str:
    """The folder of files whose path nobody chose: `$EDCACHE_DIR`, by default `~/.cache/edcache`."""
    return os.environ.get("EDCACHE_DIR") or os.path.join(os.path.expanduser("~"), ".cache", "edcache")


def home_expanded(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path as text, its "~" as the home folder: no shell has read a path in a program or a settings file."""
    return os.path.expanduser(os.fsdecode(path))


def absolute(path: str | bytes | os.PathLike[str]) -> str:
    """Return the absolute path, without resolving links; "~" is the user's home folder. A URL stays unchanged.

    Raises: OptionError, no file system takes it. StorageError, the working folder is gone.
    """
    name = home_expanded(path)
    if scheme_of(name):
        return name
    if not name:
        raise OptionError("an empty path; give that of a file")
    try:
        is_name = b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise OptionError(f"{name!a}: not a path, because it has a NUL or half of a surrogate pair")
    if os.path.isabs(name):
        return name
    try:
        # Not normalised: behind a link, ".." is another folder.
        return os.path.join(os.getcwd(), name)
    except OSError as error:
        doing = "asking for the folder that this process works in; give an absolute path"
        raise storage_error(name, doing, error) from error


def replace(source: str, target: str) -> None:
    """Rename the file `source` to `target` atomically, then sync the folder."""
    with storage_errors(target, f"giving {source} its name"):
        calls.replace(source, target)
    sync_directory(os.path.dirname(target))


def touch(path: str, modified: int | None = None) -> None:
    """Set the times of a file to now, or to nanoseconds since 1970."""
    with storage_errors(path, "setting its times"):
        if modified is None:
            calls.touch(path)
        else:
            calls.touch(path, ns=(modified, modified))


def copy_permissions(source: str, target: str) -> None:
    """Give `target` the permissions of `source`."""
    with storage_errors(target, f"giving it the permissions of {source}"):
        calls.copy_permissions(source, target)


def followed(path: str) -> str:
    """The path that a symbolic link leads to, as open() would follow it; other paths as they are."""
    return os.path.realpath(path) if os.path.islink(path) else path


def remove(path: str) -> None:
    """Delete a file's name. Processes that have it open or mapped keep it."""
    try:
        calls.remove(path)
    except FileNotFoundError as error:
        raise with_errno(ArchiveNotFoundError(f"{path}: no such file", path=path), error) from None
    except OSError as error:
        raise storage_error(path, "deleting it", error) from error


def try_remove(path: str) -> None:
    """Delete a file's name if that is possible: for a way out of an error, and that is the one to report."""
    with suppress(StorageError, ArchiveNotFoundError):
        remove(path)


def sync_directory(path: str) -> None:
    """Sync the names in a folder to the disk; "" is the working folder."""
    try:
        calls.sync_directory(path or os.curdir)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM):
            raise storage_error(path or os.curdir, "syncing the folder", error) from error


def exists(path: str) -> bool:
    """True if something is at a path."""
    with storage_errors(path, "looking for it"):
        try:
            calls.stat_path(path)
        except FileNotFoundError:
            return False
    return True


def make_parent(path: str) -> None:
    """Make the parent folders of `path` if they are absent."""
    parent = os.path.dirname(path)
    if parent:
        with storage_errors(parent, "making the folder"):
            calls.make_folders(parent)


def stamp_of(status: os.stat_result) -> Stamp:
    """Return the stamp of a file, from its status."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def stamp(path: str) -> Stamp:
    """`File.stamp` of the file at a path, by one system call."""
    return stamp_of(status_of(path))


def allocated(path: str) -> int:
    """Bytes of disk space of a file; 0 if there is no file."""
    with suppress(ArchiveNotFoundError):
        return 512 * status_of(path).st_blocks  # of 512 bytes on every file system
    return 0


def free(path: str) -> int:
    """Bytes that are free on the disk of a path, where nothing need be."""
    path = os.path.abspath(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path).free


def status_of(path: str) -> os.stat_result:
    """Ask for the status of a file. Raises: ArchiveNotFoundError, there is none."""
    try:
        return calls.stat_path(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise with_errno(ArchiveNotFoundError(f"{path}: no such file", path=path), error) from None
    except OSError as error:
        raise storage_error(path, "looking for it", error) from error
