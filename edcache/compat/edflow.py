"""edflow's names: CachedDataset, PathCachedDataset, ExamplesFolder and cachable.

Samples are dicts with "index_" (numpy.int64) added; the archive of a dataset with `root` and `name` is
`<root>/cached/<name>.zip`. An old zip is read once into `<name>.edcache.zip` beside it, by an allow-list of
names unless `trust_pickle=True`, and stays as it is. docs/migrating.md has what is different.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np

import edcache.dataset
from edcache.base import OptionError, SampleIndexError
from edcache.interop import migrated
from edcache.writer import source_fingerprint

__all__ = ["CachedDataset", "ExamplesFolder", "PathCachedDataset", "cachable"]

CHUNK_SIZE = 64


class PathCachedDataset(edcache.dataset.CachedDataset):
    """edflow's PathCachedDataset: an archive at a path. An old zip goes to "<path without .zip>.edcache.zip".

    The dataset may be None where the archive is complete. Options are those of CachedDataset; by default what
    is missing is computed now.
    """

    base_dataset: Any

    def __init__(
        self, dataset: Any, path: str | os.PathLike[str], *, trust_pickle: bool = False, **options: Any
    ) -> None:
        where = migrated(os.fspath(path), dataset, options, trust_pickle=trust_pickle)
        self._open(dataset, where, options)

    def _open(self, dataset: Any, path: str, options: dict[str, Any]) -> None:
        self.base_dataset = dataset
        source = None
        if dataset is not None:
            # The fingerprint is that of the dataset, as without these names.
            defaults = {"chunk_size": CHUNK_SIZE, "fingerprint": source_fingerprint(dataset)}
            source, options = Indexed(dataset), defaults | options
        super().__init__(source, path, **options)

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
    def store_dir(self) -> str:
        """The folder of the archive."""
        return os.path.dirname(self.path)

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
        chunk_size: most samples that one publication holds.
        trust_pickle: unpickle an old cache whatever it holds.
        options: as for `edcache.CachedDataset`: num_workers, progress, transform, ...
    Raises: as `edcache.CachedDataset`; CodecError for an old cache that needs a class.
    """

    def __init__(
        self,
        dataset: Any,
        force_cache: bool = False,
        keep_existing: bool = True,
        _legacy: bool = True,
        chunk_size: int = CHUNK_SIZE,
        *,
        trust_pickle: bool = False,
        **options: Any,
    ) -> None:
        root, name = getattr(dataset, "root", None), getattr(dataset, "name", None)
        if root is None or name is None:
            raise OptionError(
                f"the dataset, a {type(dataset).__name__}, has no `root` and `name` to make the path of its "
                "cache from; set them, or use PathCachedDataset(dataset, path)"
            )
        path = _migrated(os.fspath(root), str(name), trust_pickle, dataset, options)
        keep_existing = keep_existing or not force_cache
        options |= {"lazy": not force_cache, "keep_existing": keep_existing, "chunk_size": chunk_size}
        self._open(dataset, path, options)

    @classmethod
    def from_cache(  # type: ignore[override]
        cls, root: str, name: str, _legacy: bool = True, *, trust_pickle: bool = False, **options: Any
    ) -> CachedDataset:
        """Open `<root>/cached/<name>.zip`, or the old cache there, without the dataset that made it."""
        cache = cls.__new__(cls)
        cache._open(None, _migrated(os.fspath(root), name, trust_pickle, None, {}), options)
        return cache

    @property
    def root(self) -> str:
        """The folder above `cached`."""
        return os.path.dirname(self.store_dir)


class ExamplesFolder:
    """The files of an unzipped cache of edflow, by name, as bytes.

    >>> ExamplesFolder("cached/train").read("example_3.p")
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)

    def read(self, name: str) -> bytes:
        """The bytes of a file of the folder; they are not unpickled.

        Raises:
            OptionError: the name leads out of the folder. OSError.
        """
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise OptionError(f"{self.root}: {name!r} is no name of a file in this folder")
        with open(os.path.join(self.root, name), "rb") as file:
            return file.read()


def cachable(path: str | os.PathLike[str], *, trust_pickle: bool = False, **options: Any) -> Any:
    """Cache the datasets that a function makes, at a path, as edflow's decorator was meant to.

    Args:
        path: the archive, or an old zip that edflow's decorator wrote.
        trust_pickle: as in CachedDataset.
        options: as for `edcache.cachable`: in_memory_keys, num_workers, version, ...
    Returns:
        A decorator; the decorated function returns an `edcache.CachedDataset` of dicts with "index_".

    Calls with other arguments raise StaleCacheError, where edflow returned the first call's samples; name
    them in the path ("cache/{split}.zip") to have a cache for each. Samples of an old zip are taken for those
    of any arguments.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def indexed(*args: Any, **kwargs: Any) -> Indexed:
            return Indexed(function(*args, **kwargs))

        factory = edcache.dataset.cachable(path, **options)(indexed)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> edcache.dataset.CachedDataset:
            wanted = factory.cache_path(*args, **kwargs)
            where = migrated(wanted, None, options, trust_pickle=trust_pickle)
            if where == wanted:
                return factory(*args, **kwargs)
            literal = where.replace("{", "{{").replace("}", "}}")
            own = edcache.dataset.cachable(literal, **options | {"on_stale": "ignore"})(indexed)
            return own(*args, **kwargs)

        return call

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


def _migrated(root: str, name: str, trust_pickle: bool, dataset: Any, options: dict[str, Any]) -> str:
    base = os.path.join(root, "cached", name)
    return migrated(f"{base}.zip", dataset, options, old=base, trust_pickle=trust_pickle)
