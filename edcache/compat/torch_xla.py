"""torch_xla's CachedDataset, which releases 1.6 to 2.0 had in torch_xla.utils.cached_dataset.

`CachedDataset(data_set, path)` computes a sample when it is first asked for, `warmup()` all of them,
`CachedDataset(None, path)` opens what is there. A cache is one file, `<path>.zip`. docs/migrating.md has
what is different.
"""

from __future__ import annotations

import os
from typing import Any

import edcache.dataset
from edcache.interop import migrated

__all__ = ["CachedDataset"]


class CachedDataset(edcache.dataset.CachedDataset):
    """torch_xla's CachedDataset over an archive.

    Args:
        data_set: the dataset to cache; None opens what is there.
        path: the archive; one that does not end in ".zip" gets the ending. A folder that torch_xla wrote at
            the path is taken over. A URL ("gs://bucket/folder") goes to edcache with the ending.
        max_files_per_folder, compress: without meaning.
        trust_pickle: unpickle the old folder whatever it holds.
        options: as for `edcache.CachedDataset`; by default lazy=True.
    Raises: as `edcache.CachedDataset`; CodecError for an old folder whose samples need a class.
    """

    def __init__(
        self,
        data_set: Any,
        path: str | os.PathLike[str],
        max_files_per_folder: int = 1000,
        compress: bool = True,
        *,
        trust_pickle: bool = False,
        **options: Any,
    ) -> None:
        given = os.fspath(path).rstrip("/")
        where = given if given.endswith(".zip") else f"{given}.zip"
        where = migrated(where, data_set, options, old=given, trust_pickle=trust_pickle)
        if data_set is not None:
            options = {"lazy": True} | options
        super().__init__(data_set, where, **options)
