"""MONAI's CacheDataset and PersistentDataset, whose caches are archives.

The transforms before the first random one run once, and their results are cached in
`<cache_dir>/<hash>.zip`. The hash is of the data and of hash_transform. The other transforms run at every
access. docs/migrating.md has what is different.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import monai.data
from monai.transforms import RandomizableTrait, Transform
from monai.utils import convert_to_tensor
from torch.utils.data import Dataset

from edcache.base import StaleArchiveError
from edcache.dataset import CachedDataset

__all__ = ["CacheDataset", "PersistentDataset"]


class PersistentDataset(monai.data.PersistentDataset):  # type: ignore[misc]
    """MONAI's PersistentDataset over an archive, which is filled as its samples are asked for.

    Args:
        data, transform, hash_func, hash_transform, reset_ops_id, track_meta: as MONAI's.
        cache_dir: where the archives lie; None caches nothing.
        options: MONAI's others, which are without meaning.
    Raises: as `CachedDataset` on the first access.
    """

    _cache: Any = None

    def __init__(
        self, data: Sequence[Any], transform: Any, cache_dir: Any, *args: Any, **options: Any
    ) -> None:
        super().__init__(data, transform, cache_dir, *args, **options)
        self._open()

    def set_data(self, data: Sequence[Any]) -> None:
        """Take other data, and remove the archive of the data before."""
        if self._cache is not None:
            # Another rank, which was given the same data, may have removed it.
            with suppress(StaleArchiveError, FileNotFoundError):
                self._cache.close()
                os.remove(self._cache.path)
        self.data = data
        self._open()

    def _open(self) -> None:
        self._cache = None
        if self.cache_dir is not None and len(self.data):
            digest = hashlib.sha256(self.transform_hash.encode())
            for item in self.data:
                digest.update(self.hash_func(item) + b"\n")
            path = os.path.join(self.cache_dir, f"{digest.hexdigest()}.zip")
            self._cache = CachedDataset(_Prepared(self), path, lazy=True)

    def _prepared(self, index: int) -> Any:
        item = self._pre_transform(copy.deepcopy(self.data[index]))
        return convert_to_tensor(item, convert_numeric=False, track_meta=self.track_meta)

    def _transform(self, index: int) -> Any:
        if self._cache is None:
            return super()._transform(index)
        return self._post_transform(self._cache[index])


class CacheDataset(PersistentDataset):
    """MONAI's CacheDataset over an archive, which is filled at once, or lazily with `runtime_cache`.

    Args:
        data, transform, hash_func: as MONAI's.
        num_workers: processes that fill it, if it is more than 1. progress: whether they show a bar.
        runtime_cache: anything but False fills it as its samples are asked for.
        cache_dir: where the archive lies, under a hash of the data; None is a temporary folder, which goes
            with the dataset.
        options: MONAI's others, which are without meaning: all items are cached.
    Raises: as `CachedDataset`.
    """

    def __init__(
        self,
        data: Sequence[Any],
        transform: Any = None,
        cache_num: int = 0,
        cache_rate: float = 1.0,
        num_workers: int | None = 1,
        progress: bool = True,
        *,
        runtime_cache: Any = False,
        cache_dir: str | os.PathLike[str] | None = None,
        hash_func: Any = monai.data.pickle_hashing,
        **options: Any,
    ) -> None:
        self._is_lazy = runtime_cache not in (False, None)
        self._num_workers = num_workers if (num_workers or 0) > 1 else 0
        self._progress = None if progress else False
        if cache_dir is None:
            cache_dir = tempfile.mkdtemp(prefix="edcache-")
            weakref.finalize(self, _remove, cache_dir, os.getpid())
        super().__init__(data, transform, cache_dir, hash_func, reset_ops_id=False, track_meta=True)

    def _open(self) -> None:
        super()._open()
        if self._cache is not None and not self._is_lazy:
            self._cache.warmup(num_workers=self._num_workers, progress=self._progress)

    def _prepared(self, index: int) -> Any:
        return self._pre_transform(copy.deepcopy(self.data[index]))


class _Prepared(Dataset[Any]):
    """Apply the transforms before the first random one."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = copy.copy(dataset)
        self._dataset._cache = None

    def __len__(self) -> int:
        return len(self._dataset.data)

    def __getitem__(self, index: int) -> Any:
        return self._dataset._prepared(index)

    def __edcache_fingerprint__(self) -> Any:
        # The state of random transforms changes with every use.
        made = self._dataset
        first = made.transform.get_index_of_first(
            lambda one: isinstance(one, RandomizableTrait) or not isinstance(one, Transform)
        )
        return {"transforms": list(made.transform.transforms[:first]), "track_meta": made.track_meta}


def _remove(folder: str, process: int) -> None:
    # A forked child has the dataset too; the folder is its parent's.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
