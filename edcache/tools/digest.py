"""What identifies a sealed archive to anybody: the SHA-256 of its file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from edcache import format
from edcache.reader import OnProgress, file_digest, no_digest
from edcache.storage import located


def digest(
    path: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Hash a sealed archive: "sha256:" and the hex digits that `sha256sum` prints for the file.

    Args:
        path: the archive, or its URL. storage_options: for a URL, as in `edcache.Reader`.
        on_progress: called with (bytes hashed, bytes of the file) now and then.
    Raises:
        DigestError: "train.zip: it is not sealed, so it may still grow and has no digest; ...".
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError (the head).
    Cost: reads the file once. Writes and locks nothing; proves nothing: that the
        file is sound says `verify`.
    """
    with closing(located(path, storage_options).open()) as file:
        head, _ = format.read_head(file.pread, file.path)
        if format.read_seal(file.pread, file.size(), head.uuid) is None:
            raise no_digest(file.path)
        return file_digest(file, on_progress)[0]
