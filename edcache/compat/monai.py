"""MONAI's CacheDataset and PersistentDataset, whose caches are archives.

The transforms before the first random one run once, and their results are cached in
`<cache_dir>/<hash>.zip`. The hash is of the data and of hash_transform. The other transforms run at every
access. CacheDataset has such a file too, without `cache_dir` in a temporary folder that is deleted with the
dataset. docs/migrating.md has what is different.
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
from monai.transforms import Compose
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

    def __init__(
        self, data: Sequence[Any], transform: Any, cache_dir: Any, *args: Any, **options: Any
    ) -> None:
        self._cache: Any = None
        super().__init__(data, transform, cache_dir, *args, **options)
        self._open()

    def set_data(self, data: Sequence[Any]) -> None:
        """Take other data, and remove the archive of the data before."""
        if self._cache is not None:
            _discard(self._cache)
        self.data = data
        self._open()

    def _open(self) -> None:
        self._cache = None
        if self.cache_dir is not None and len(self.data):
            path = _path(self, self.cache_dir, self.data, self.transform_hash)
            self._cache = CachedDataset(_Prepared(self), path, lazy=True)

    def _cached(self, index: int) -> Any:
        item = self._pre_transform(copy.deepcopy(self.data[index]))
        return convert_to_tensor(item, convert_numeric=False, track_meta=self.track_meta)

    def _transform(self, index: int) -> Any:
        if self._cache is None:
            return super()._transform(index)
        return self._post_transform(self._cache[index])


class CacheDataset(monai.data.CacheDataset):  # type: ignore[misc]
    """MONAI's CacheDataset over an archive, which is filled at once, or lazily with `runtime_cache`.

    Args:
        data, transform, cache_num, cache_rate, hash_as_key, hash_func: as MONAI's.
        num_workers: processes that fill it, where it is more than 1. progress: whether they show a bar.
        runtime_cache: anything but False fills it as its samples are asked for.
        cache_dir: where the archive lies, under a hash of the data.
        options: MONAI's others, which are without meaning.
    Raises: as `CachedDataset`.
    """

    runtime_cache: Any

    def __init__(
        self,
        data: Sequence[Any],
        transform: Any = None,
        *args: Any,
        cache_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self._is_temporary = cache_dir is None
        self._folder = tempfile.mkdtemp(prefix="edcache-") if cache_dir is None else os.fspath(cache_dir)
        if self._is_temporary:
            weakref.finalize(self, _remove, self._folder, os.getpid())
        self._cache: Any = []
        super().__init__(data, transform, *args, **options)
        self.copy_cache = False

    def set_data(self, data: Sequence[Any]) -> None:
        """Take other data, and fill the archive of it."""
        if self._is_temporary and self._cache:
            _discard(self._cache)
        self._is_lazy = self.runtime_cache not in (False, None)
        runtime_cache, self.runtime_cache = self.runtime_cache, False
        try:
            super().set_data(data)
        finally:
            self.runtime_cache = runtime_cache

    def _fill_cache(self, indices: Any = None) -> Any:
        if not indices:
            return []
        path = _path(self, self._folder, [self.data[index] for index in indices])
        return CachedDataset(
            _Prepared(self, indices),
            path,
            lazy=self._is_lazy,
            num_workers=self.num_workers if (self.num_workers or 0) > 1 else 0,
            progress=None if self.progress else False,
        )

    def _cached(self, index: int) -> Any:
        return self._load_cache_item(index)


class _Prepared(Dataset[Any]):
    """Apply the transforms before the first random one to some items.

    The path has MONAI's hash of the items. Transforms keep what they read, so only their names are compared.
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | None = None) -> None:
        self._dataset = copy.copy(dataset)
        self._dataset._cache = None
        self._indices = range(len(dataset.data)) if indices is None else indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._dataset._cached(self._indices[index])

    def __edcache_fingerprint__(self) -> Any:
        transforms = self._dataset.transform
        transforms = transforms.transforms if isinstance(transforms, Compose) else [transforms]
        return {"transforms": [type(transform).__name__ for transform in transforms]}


def _path(dataset: Any, folder: Any, data: Sequence[Any], more: str = "") -> str:
    os.makedirs(folder, exist_ok=True)
    digest = hashlib.sha256(more.encode())
    for item in data:
        digest.update(dataset.hash_func(item) + b"\n")
    return os.path.join(folder, f"{digest.hexdigest()}.zip")


def _discard(cache: CachedDataset) -> None:
    # Another rank, which was given the same data, may have removed it.
    with suppress(StaleArchiveError, FileNotFoundError):
        cache.close()
        os.remove(cache.path)


def _remove(folder: str, process: int) -> None:
    # A forked child has the dataset too; the folder is its parent's.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
