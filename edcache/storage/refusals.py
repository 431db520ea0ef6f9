"""What the operating system refuses, as errors of ours that keep its errno."""

from __future__ import annotations

import errno
from typing import Any, NoReturn

from edcache.base import ArchiveLockedError, StorageError


def refused(path: str, doing: str, error: OSError) -> NoReturn:
    """Raise what an error of the system means that fell while `doing` something to a path."""
    if error.errno in (errno.EDEADLK, errno.ETIMEDOUT):
        raise with_errno(ArchiveLockedError(f"{path}: {doing}: {error.strerror}"), error) from error
    reason = (error.strerror or str(error)) + _remedy(error)
    raise with_errno(StorageError(f"{path}: {doing}: {reason}"), error) from error


def _remedy(error: OSError) -> str:
    """What helps against a limit of this process; nothing where another error says enough."""
    if error.errno != errno.EMFILE:
        return ""
    try:
        import resource
    except ImportError:  # Windows
        return "; close some"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"; this process may have {limit:,} (ulimit -n): allow more, or open fewer archives and workers"


def with_errno(raised: Any, cause: OSError) -> Any:
    """The same error, with the errno and file name of its cause."""
    raised.errno = cause.errno
    raised.filename = cause.filename
    return raised
