"""The store of a path or a URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from edcache.places import Where, located
from edcache.stores.file import FileStore, MemoryStore
from edcache.stores.remote import RemoteStore
from edcache.stores.server import ServerStore
from edcache.stores.store import Store

# The first that has a path is its kind.
_KINDS: Final[tuple[type[Store], ...]] = (ServerStore, RemoteStore, MemoryStore, FileStore)


def store_at(path: Where | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Store:
    """Where a cache is; nothing is opened.

    Args:
        path, storage_options: as for `edcache.Reader`.
    Raises:
        OptionError: a URL that does not read, or storage_options for what is none.
    """
    where = located(path, storage_options)
    return next(kind(where) for kind in _KINDS if kind.has(where))
