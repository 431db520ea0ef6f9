"""An old cache to an archive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from edcache.dataset import CachedDataset
from edcache.errors import OptionError
from edcache.importers.looking import old_cache
from edcache.importers.source import OldCache


def import_cache(
    old: str | os.PathLike[str] | OldCache,
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    trust_pickle: bool = False,
    order: Sequence[str] | None = None,
    **options: Any,
) -> CachedDataset:
    """Fill an archive with the samples of another system's cache; the old one is only read.

    Args:
        old: where it lies; or what `old_cache` returned.
        path: the archive. One that an interrupted import left is continued.
        kind, trust_pickle, order: as for `old_cache`, which has them already where `old` comes from it.
        options: as for CachedDataset: num_workers, progress, compression, in_memory_keys, ... By default the
            label columns are those of the old cache.
    Returns:
        The CachedDataset over it. Samples that the old cache lacks are missing in it too, and keep their
        indices: `CachedDataset(source, path)` with the dataset that made the old cache computes them.
    Raises:
        OptionError: one of the three comes with what `old_cache` returned.
        PickleRefusedError: "train.zip: example_3.p needs module.Class; ...".
        ForeignCacheError: the old cache is damaged; what was read before is kept, on_error="skip" goes on.

    >>> import_cache("cached/train.zip", "train.zip", num_workers=4)
    """
    if not isinstance(old, OldCache):
        source = old_cache(old, kind, trust_pickle=trust_pickle, order=order)
    elif kind is None and not trust_pickle and order is None:
        source = old
    else:
        raise OptionError(f"{old.path}: give kind=, trust_pickle= and order= to old_cache(), which opened it")
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
