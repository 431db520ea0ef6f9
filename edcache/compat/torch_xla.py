"""torch_xla's CachedDataset, which releases 1.6 to 2.0 had in torch_xla.utils.cached_dataset.

A cache is one file, `<path>.zip`; `edcache import` makes it of an old folder. docs/migrating.md has the differences.
"""

from __future__ import annotations

import os
from typing import Any

import edcache.dataset
from edcache.base import OptionError
from edcache.writer import store_at

__all__ = ["CachedDataset"]


class CachedDataset(edcache.dataset.CachedDataset):
    """torch_xla's CachedDataset over an archive: computes a sample at its first read.

    Args:
        data_set: the dataset to cache; None opens an existing archive.
        path: the archive, or a URL; one that does not end in ".zip" gets the ending.
        max_files_per_folder, compress: without meaning.
        options: as for `edcache.CachedDataset`; by default lazy=True for a file. Behind a URL all samples are computed
            at once, and the complete archive is uploaded.
    Raises: as `edcache.CachedDataset`; OptionError, the path is an old cache of torch_xla that was not imported.
    """

    def __init__(
        self,
        data_set: Any,
        path: str | os.PathLike[str],
        max_files_per_folder: int = 1000,
        compress: bool = True,
        **options: Any,
    ) -> None:
        where = os.fspath(path).rstrip("/").removesuffix(".zip") + ".zip"
        store = store_at(where, options.pop("storage_options", None))
        path = where = store.path  # without credentials, which a traceback with locals would show
        if not store.by_request and not os.path.exists(where):
            _refuse_old(where.removesuffix(".zip"), where)
        if data_set is not None and not store.by_request:
            options = {"lazy": True} | options
        super().__init__(data_set, store, **options)


def _refuse_old(folder: str, archive: str) -> None:
    """Raise if a folder is a cache of torch_xla: computing its samples again may take hours."""
    if os.path.isfile(os.path.join(folder, "METADATA")):
        raise OptionError(
            f"{folder}: a cache of torch_xla, and {archive} is not there; import it with "
            f'"edcache import {folder} -o {archive} --from torch_xla", or give another path',
            option="path",
        )
