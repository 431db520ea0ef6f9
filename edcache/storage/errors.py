"""Errors of the operating system as errors of edcache, with the same errno."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from edcache.base import ArchiveError, StorageError
from edcache.storage.memory import MORE_MEMORY, is_in_memory

UNWRITABLE: Final = errno.EACCES, errno.EPERM, errno.EROFS
"""Errors of a system for a file or a folder that this process may read and not write."""

E = TypeVar("E", bound=ArchiveError)


def storage_error(path: str, doing: str, error: OSError) -> ArchiveError:
    """The StorageError or ArchiveError for an OSError that came while `doing` something.

    What is an error of edcache already is returned as it is.
    """
    if isinstance(error, ArchiveError):
        return error
    reason = error.strerror or str(error)
    if error.errno in (errno.EDEADLK, errno.ETIMEDOUT):
        return with_errno(ArchiveError(f"{path}: {doing}: {reason}", path=path), error)
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        reason += f"; this process may have {limit:,} (ulimit -n): "
        reason += "allow more, or open fewer archives and workers"
    if error.errno == errno.ENOSPC and is_in_memory(path):
        reason += f"; {MORE_MEMORY}"
    return with_errno(StorageError(f"{path}: {doing}: {reason}", path=path), error)


def with_errno(raised: E, cause: OSError) -> E:
    """The same error, with the errno and file name of its cause."""
    like_os: Any = raised  # a subclass of OSError too, as every class that is raised for one
    like_os.errno, like_os.filename = cause.errno, cause.filename
    return raised


@contextmanager
def storage_errors(path: str, doing: str) -> Iterator[None]:
    """Turn an OSError in the block into a StorageError that names the operation."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, doing, error) from error
