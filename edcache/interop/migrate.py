"""Where the archive of an old path lies, and what becomes of an old cache at that path."""

from __future__ import annotations

import logging
import os
from typing import Any, Final

from edcache.base import CorruptArchiveError, NotAnArchiveError
from edcache.interop.importer import import_cache, old_cache
from edcache.writer import store_at

_FOR_IMPORTING: Final = {"in_memory_keys", "codec", "compression", "allow_pickle", "num_workers", "progress"}
logger = logging.getLogger("edcache")


def migrated(
    path: str, dataset: Any, options: dict[str, Any], *, old: str | None = None, trust_pickle: bool = False
) -> str:
    """The archive that stands for an old path, after the samples of an old cache were taken over.

    Where an old cache lies at the path the archive is beside it, "toy.edcache.zip"; `old` is where else one
    may lie. It is only read, and when its samples are all there it is not looked at again. It gets the label
    columns of `dataset` where it has none; of the options of a CachedDataset those for importing count.
    """
    if "://" in path:
        return path
    if _is_something_else(path):
        path, old = f"{path.removesuffix('.zip')}.edcache.zip", path
    if old is None or not os.path.exists(old):
        return path
    archive = store_at(path).found()
    if archive is None or not archive.complete:
        source = old_cache(old, trust_pickle=trust_pickle)
        chosen: dict[str, Any] = {"in_memory_keys": getattr(dataset, "in_memory_keys", None)}
        chosen |= {name: value for name, value in options.items() if name in _FOR_IMPORTING}
        ds = import_cache(source, path, **chosen)
        for note in source.notes:
            logger.warning("%s: %s", old, note)
        logger.warning("%s: its %s samples are in %s now", old, f"{ds.reader.present:,}", path)
    return path


def _is_something_else(path: str) -> bool:
    """Whether something that is no archive is at a path."""
    try:
        is_there = os.path.exists(path) and os.path.getsize(path) > 0
        return os.path.isdir(path) or (store_at(path).found() is None and is_there)
    except NotAnArchiveError:
        return True
    except CorruptArchiveError:
        return False  # of ours: who opens it says what is wrong
