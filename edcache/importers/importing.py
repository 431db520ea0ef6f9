"""An old cache to an archive."""

from __future__ import annotations

import os
from typing import Any

from edcache.dataset import CachedDataset
from edcache.importers.looking import old_cache
from edcache.importers.source import OldCache


def import_cache(
    old: str | os.PathLike[str] | OldCache, path: str | os.PathLike[str], **options: Any
) -> CachedDataset:
    """Fill an archive with the samples of another system's cache; the old one is only read.

    Args:
        old: where it lies; or what `old_cache` returned, to say more about it.
        path: the archive. One that an interrupted import left is continued.
        options: as for CachedDataset: num_workers, progress, compression, in_memory_keys, ... By default the
            label columns are those of the old cache.
    Returns:
        The CachedDataset over it. Samples that the old cache lacks are missing in it too, and keep their
        indices: `CachedDataset(source, path)` with the dataset that made the old cache computes them.
    Raises:
        PickleRefusedError: "train.zip: example_3.p needs module.Class; ...".
        ForeignCacheError: the old cache is damaged; what was read before is kept, on_error="skip" goes on.

    >>> import_cache("cached/train.zip", "train.zip", num_workers=4)
    """
    source = old if isinstance(old, OldCache) else old_cache(old)
    source[source.first()]  # what it needs is said at once, and by its own error
    if len(source.missing):
        options = {"on_error": "skip"} | options
    if options.get("in_memory_keys") is None:
        options["in_memory_keys"] = source.in_memory_keys
    ds = CachedDataset(source, path, **{"fingerprint": source.fingerprint()} | options)
    more = {name: values for name, values in source.more_labels.items() if name not in ds.labels}
    if more:
        ds.add_labels(more)
    return ds
