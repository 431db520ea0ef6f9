"""MONAI's CacheDataset and PersistentDataset, whose caches are archives.

The transforms before the first random one run once, and their results are cached in `<cache_dir>/<hash>.zip`. The hash
is of the data and of hash_transform. The other transforms run at every access. docs/migrating.md has the differences.
"""

from __future__ import annotations

import copy
import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.util import Finalize
from typing import Any

import monai.data
from monai.transforms import Compose
from monai.utils import convert_to_tensor
from torch.utils.data import Dataset

from edcache.base import StaleArchiveError
from edcache.dataset import CachedDataset

__all__ = ["CacheDataset", "PersistentDataset"]


class PersistentDataset(monai.data.PersistentDataset):  # type: ignore[misc]
    """MONAI's PersistentDataset over an archive, which is filled at first reads.

    Args:
        data, transform, hash_func, hash_transform, reset_ops_id, track_meta: as MONAI's.
        cache_dir: folder of the archives; None caches nothing.
        options: MONAI's others, without meaning.
    Raises: as `CachedDataset` on the first access.
    """

    def __init__(
        self, data: Sequence[Any], transform: Any, cache_dir: Any, *args: Any, **options: Any
    ) -> None:
        self._cache: Any = None
        super().__init__(data, transform, cache_dir, *args, **options)
        self.set_data(data)

    def set_data(self, data: Sequence[Any]) -> None:
        """Take other data, and remove the archive of the data before."""
        if self._cache is not None:
            # Another rank with the same data may have removed it.
            with suppress(StaleArchiveError, FileNotFoundError):
                self._cache.close()
                os.remove(self._cache.path)
        self.data, self._cache = data, None
        if self.cache_dir is not None and len(data):
            path = _path(self, self.cache_dir, data, self.transform_hash)
            self._cache = CachedDataset(_Prepared(self, range(len(data))), path, lazy=True)

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
        num_workers: processes that fill it, if it is more than 1. progress: False shows no bar.
        runtime_cache: anything but False fills it at first reads.
        cache_dir: folder of the archive; None is a temporary folder, deleted with the dataset.
        options: MONAI's others, without meaning.
    Raises: as `CachedDataset`.
    """

    def __init__(
        self,
        data: Sequence[Any],
        *args: Any,
        cache_dir: Any = None,
        runtime_cache: Any = False,
        **options: Any,
    ) -> None:
        self._folder, self._is_lazy = cache_dir, runtime_cache not in (False, None)
        super().__init__(data, *args, **options)
        self.copy_cache = False

    def _fill_cache(self, indices: Any = None) -> Any:
        if not indices:
            return []
        source, folder = _Prepared(self, indices), self._folder
        if folder is None:
            folder = tempfile.mkdtemp(prefix="edcache-")
            Finalize(source, shutil.rmtree, (folder, True), exitpriority=0)  # not in a forked child
        return CachedDataset(
            source,
            _path(self, folder, [self.data[index] for index in indices]),
            lazy=self._is_lazy,
            num_workers=self.num_workers if (self.num_workers or 0) > 1 else 0,
            progress=None if self.progress else False,
        )

    def _cached(self, index: int) -> Any:
        return self._load_cache_item(index)


class _Prepared(Dataset[Any]):
    """Items after the transforms before the first random one.

    The path has MONAI's hash of the items. Transforms keep data that they read, so only their names are compared.
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self._dataset, self._indices = copy.copy(dataset), indices
        self._dataset._cache = None

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
