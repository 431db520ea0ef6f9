"""Where the archive of an old path lies, and what becomes of an old cache at that path."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from edcache.errors import CorruptArchiveError, NotAnArchiveError
from edcache.importers import import_cache, old_cache
from edcache.stores import store_at

_TAKING: Final = {"in_memory_keys", "codec", "compression", "allow_pickle", "num_workers", "progress"}
logger = logging.getLogger("edcache")


def is_url(path: str) -> bool:
    """Whether a path has a scheme, as gs://bucket/folder has."""
    return "://" in path


def settled(path: str, old: str | None = None, *, trust_pickle: bool = False, **options: Any) -> str:
    """The archive that stands for an old path, after the samples of an old cache were taken over.

    Args:
        path: where the archive lies unless an old cache does; then it is beside that, "toy.edcache.zip".
        old: where else an old cache may lie.
        options: as for `import_cache`.
    Raises:
        PickleRefusedError, ForeignCacheError, StaleCacheError: as `import_cache`.

    The old cache is only read, and when its samples are all there it is not looked at again.
    """
    if is_url(path):
        return path
    if _is_taken(path):
        path, old = f"{path.removesuffix('.zip')}.edcache.zip", path
    if old is None or not os.path.exists(old):
        return path
    found = store_at(path).found()
    if found is None or not found.complete:
        source = old_cache(old, trust_pickle=trust_pickle)
        ds = import_cache(source, path, **options)
        for note in source.notes:
            logger.warning("%s: %s", old, note)
        logger.warning("%s: its %s samples are in %s now", old, f"{ds.reader.present:,}", path)
    return path


def taking(dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Those options of a dataset's that also matter when an old cache is taken over."""
    kept = {name: value for name, value in options.items() if name in _TAKING}
    # An old cache that lacks label columns gets them from its samples.
    return {"in_memory_keys": getattr(dataset, "in_memory_keys", None)} | kept


def _is_taken(path: str) -> bool:
    """Whether something that is no archive is at a path."""
    try:
        return os.path.isdir(path) or (store_at(path).found() is None and _has_bytes(path))
    except NotAnArchiveError:
        return True
    except CorruptArchiveError:
        return False  # of ours: who opens it says what is wrong


def _has_bytes(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0
