"""edflow's names over archives: CachedDataset, PathCachedDataset and cachable.

Samples are dicts with "index_" (numpy.int64) added; the archive of a dataset with `root` and `name` is
`<root>/cached/<name>.zip`. `edcache import` makes it of an old zip. docs/migrating.md has what is different.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import edcache.dataset
from edcache.base import OptionError, SampleIndexError
from edcache.writer import source_fingerprint

__all__ = ["CachedDataset", "PathCachedDataset", "cachable"]


class PathCachedDataset(edcache.dataset.CachedDataset):
    """edflow's PathCachedDataset: an archive at a path; the dataset may be None if it is complete.

    Options are those of `edcache.CachedDataset`; by default what is missing is computed now.
    """

    base_dataset: Any

    def __init__(self, dataset: Any, path: str | os.PathLike[str], **options: Any) -> None:
        self.base_dataset = dataset
        if dataset is not None:
            # The fingerprint is that of the dataset, as without these names.
            options = {"chunk_size": 64, "fingerprint": source_fingerprint(dataset)} | options
        super().__init__(None if dataset is None else Indexed(dataset), path, **options)

    def cache_dataset(self) -> None:
        """Compute every missing sample now, as `warmup`."""
        self.warmup()

    def get_example(self, i: int) -> Any:
        """The sample at an index, as `self[i]`."""
        return self[i]

    @property
    def store_path(self) -> str:
        """The archive."""
        return self.path

    @property
    def root(self) -> str:
        """The folder above `cached`."""
        return os.path.dirname(os.path.dirname(self.path))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        return state | {"base_dataset": None} if self.complete else state


class CachedDataset(PathCachedDataset):
    """edflow's CachedDataset over an archive at `<root>/cached/<name>.zip`.

    Args:
        dataset: has `root`, `name`, len() and [index], which returns a dict; `in_memory_keys` are its labels.
        force_cache: True computes what is missing now; False when it is asked for.
        keep_existing: False, with force_cache, builds the archive anew.
        _legacy: without meaning: there is one layout.
        options: as for `edcache.CachedDataset`: chunk_size (64), num_workers, progress, transform, ...
    Raises: as `edcache.CachedDataset`; OptionError for a dataset without `root` and `name`.
    """

    def __init__(
        self,
        dataset: Any,
        force_cache: bool = False,
        keep_existing: bool = True,
        _legacy: bool = True,
        **options: Any,
    ) -> None:
        root, name = getattr(dataset, "root", None), getattr(dataset, "name", None)
        if root is None or name is None:
            raise OptionError(
                f"the dataset, a {type(dataset).__name__}, has no `root` and `name` to make the path of its "
                "cache from; set them, or use PathCachedDataset(dataset, path)"
            )
        filling = {"lazy": not force_cache, "keep_existing": keep_existing or not force_cache}
        super().__init__(dataset, _path(os.fspath(root), str(name)), **filling, **options)

    @classmethod
    def from_cache(  # type: ignore[override]
        cls, root: str, name: str, _legacy: bool = True, **options: Any
    ) -> PathCachedDataset:
        """Open `<root>/cached/<name>.zip` without the dataset that made it."""
        return PathCachedDataset(None, _path(os.fspath(root), name), **options)


def cachable(path: str | os.PathLike[str], **options: Any) -> Any:
    """Cache the datasets that a function makes, at a path, as edflow's decorator was meant to.

    Args:
        path: the archive.
        options: as for `edcache.cachable`: in_memory_keys, num_workers, version, ...
    Returns:
        A decorator; the decorated function returns an `edcache.CachedDataset` of dicts with "index_".

    Calls with other arguments raise StaleCacheError, where edflow returned the first call's samples; name
    them in the path ("cache/{split}.zip") to have a cache for each.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., edcache.dataset.CachedDataset]:
        @functools.wraps(function)
        def indexed(*args: Any, **kwargs: Any) -> Indexed:
            return Indexed(function(*args, **kwargs))

        return edcache.dataset.cachable(path, **options)(indexed)

    return decorate


class Indexed:
    """A dataset of dicts, with "index_" added as edflow did: numpy.int64."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.in_memory_keys = getattr(dataset, "in_memory_keys", None)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[Any, Any]:
        if not 0 <= index < len(self):
            raise SampleIndexError(f"index {index} not in [0, {len(self)})")
        sample = self.dataset[index]
        if not isinstance(sample, dict):
            raise OptionError(f"sample {index} is a {type(sample).__name__}; samples of edflow are dicts")
        return {**sample, "index_": np.int64(index)}


def _path(root: str, name: str) -> str:
    return os.path.join(root, "cached", f"{name}.zip")
