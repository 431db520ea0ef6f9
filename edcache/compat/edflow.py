"""edflow's CachedDataset, PathCachedDataset and cachable over archives.

Samples are dicts with "index_" (numpy.int64) added; the archive of a dataset with `root` and `name` is
`<root>/cached/<name>.zip`. `edcache import` makes it of an old zip. docs/migrating.md has the differences.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import edcache.dataset
from edcache.identity import recipe_of

__all__ = ["CachedDataset", "PathCachedDataset", "cachable"]


class CachedDataset(edcache.dataset.CachedDataset):
    """edflow's CachedDataset over an archive at `<root>/cached/<name>.zip`.

    Args:
        dataset: has `root`, `name`, len() and [index], which returns a dict; `in_memory_keys` are its labels.
        force_cache: True computes missing samples now; False at their first read.
        keep_existing: False, with force_cache, builds the archive anew.
        _legacy: without meaning: there is one layout.
        chunk_size: samples that are published together.
        options: as for `edcache.CachedDataset`: num_workers, progress, transform, ...
    Raises: as `edcache.CachedDataset`; OptionError for a dataset without `root` and `name`.
    """

    def __init__(
        self,
        dataset: Any,
        force_cache: bool = False,
        keep_existing: bool = True,
        _legacy: bool = True,
        chunk_size: int = 64,
        **options: Any,
    ) -> None:
        if dataset is not None:
            filling = {
                "chunk_size": chunk_size,
                "grow": True,  # a zip of a killed run has the first samples alone
                "lazy": not force_cache,
                "keep_existing": keep_existing or not force_cache,
            }
            # "index_" does not change the fingerprint.
            options = {"fingerprint": recipe_of(dataset)} | filling | options
            dataset = Indexed(dataset)
        super().__init__(dataset, **options)

    @classmethod
    def from_cache(  # type: ignore[override]
        cls, root: str, name: str, _legacy: bool = True, **options: Any
    ) -> PathCachedDataset:
        """Open `<root>/cached/<name>.zip` without the dataset that made it."""
        return PathCachedDataset(None, os.path.join(root, "cached", f"{name}.zip"), **options)

    cache_dataset = edcache.dataset.CachedDataset.warmup
    get_example = edcache.dataset.CachedDataset.__getitem__
    __mul__ = __rmul__ = edcache.dataset.CachedDataset.repeat

    append_labels = expand = property(lambda self: False, doc="False; use `transform=`.")

    @property
    def store_path(self) -> str:
        """Path of the archive."""
        return self.path

    @property
    def root(self) -> str:
        """Folder above `cached`."""
        return os.path.dirname(os.path.dirname(self.path))


class PathCachedDataset(CachedDataset):
    """CachedDataset at a path, filled at once; the dataset may be None if the archive is complete."""

    def __init__(self, dataset: Any, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(dataset, True, path=path, **options)


def cachable(path: str | os.PathLike[str], **options: Any) -> Any:
    """Cache the datasets that a function makes, as `edcache.cachable` with a path and its other options.

    The decorated function returns an `edcache.CachedDataset` of dicts with "index_". Calls with other arguments raise
    StaleCacheError, while edflow returned the first call's samples; name them in the path ("cache/{split}.zip") to have
    a cache for each.
    """

    return lambda function: edcache.dataset.cachable(path, **options)(_indexed(function))


def _indexed(function: Callable[..., Any]) -> Callable[..., Indexed]:
    return functools.wraps(function)(lambda *args, **kwargs: Indexed(function(*args, **kwargs)))


class Indexed:
    """Dataset of dicts, with "index_" added as by edflow: numpy.int64."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.in_memory_keys = dataset, getattr(dataset, "in_memory_keys", None)
        self.root, self.name = getattr(dataset, "root", None), getattr(dataset, "name", None)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[Any, Any]:
        return {**self.dataset[index], "index_": np.int64(index)}
