"""`OldCache`: a cache of another system, as a source dataset; and reading of its files."""

from __future__ import annotations

import abc
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from tarfile import TarError
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from edcache.base import ArchiveError, Ints, MissingSampleError, index_ranges
from edcache.identity import Recipe
from edcache.interop.kinds import Kind


class OldCache(Dataset[Any], abc.ABC):
    """Cache of another system as a source dataset; `old_cache` opens one.

    Attributes:
        missing: the indices without a sample: int64 [k], sorted. Reading one raises MissingSampleError.
        in_memory_keys: the label columns of the old cache that are fields of samples; or None.
        more_labels: name -> values of other label columns.
        notes: sentences for the user, about missing samples and files that are left out.

    A sample keeps the index that it had in its source dataset.
    Safety: fork, spawn and threads.
    """

    kind: Kind
    in_memory_keys: Any = None

    def __init__(self, path: str, trust_pickle: bool) -> None:
        self.path = path
        self.trust_pickle = trust_pickle
        self.notes: list[str] = []
        self.more_labels: dict[str, list[Any]] = {}
        self.missing: Ints = np.empty(0, np.int64)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        row = int(np.searchsorted(self.missing, index))
        if index in self.missing[row : row + 1]:
            raise MissingSampleError(f"{self.path}: no sample {index}; this {self.kind} cache has none")
        return self._read(index)

    def first(self) -> Any:
        """Read the first sample that is not missing."""
        later = np.flatnonzero(self.missing != np.arange(len(self.missing)))
        return self[int(later[0]) if len(later) else len(self.missing)]

    @abc.abstractmethod
    def _read(self, index: int) -> Any:
        """Read the sample at an index in [0, len) that is not missing."""

    def _set_indices(self, indices: Iterable[int], length: int | None = None) -> None:
        """Set the length by the indices of present samples, or to a larger one that a file states."""
        present = np.array(sorted(indices), np.int64)
        self._length = max(int(present[-1]) + 1, length or 0) if len(present) else 0
        self.missing = np.setdiff1d(np.arange(self._length), present, assume_unique=True)
        if len(self.missing):
            missing = index_ranges(self.missing, 20, "")
            self.notes.append(f"{len(self.missing):,} of {self._length:,} samples are not in it: {missing}")


def recipe_of_files(kind: Kind, path: str) -> Recipe:
    """Identify an old cache by the names, sizes and times of its files; its own path does not count.

    It is one of a call, so that a CachedDataset over the real source accepts the archive.
    """
    digest = hashlib.sha256()
    with foreign_errors(path):
        for file in files_below(path):
            stat = os.stat(file)
            name = os.path.relpath(file, path)
            digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
    stats = {"argument kind": kind, "argument names, sizes and times": digest.hexdigest()[:16]}
    return Recipe({"factory": "edcache import", **stats, "version": None})


def files_below(path: str) -> Iterator[str]:
    """Yield the path itself if it is a file, else the files of the tree, sorted folder by folder; no links."""
    if not os.path.isdir(path):
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders.sort()
        files = (os.path.join(folder, name) for name in sorted(names))
        yield from (file for file in files if not os.path.islink(file))


@contextmanager
def foreign_errors(place: str) -> Iterator[None]:
    """Turn errors of the system, and of a damaged tar, into ArchiveErrors."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"{place}: {error.strerror}") from error
    except TarError as error:
        raise ArchiveError(f"{place}: does not read as a tar: {error.args[0]}") from error


def read_file(path: str) -> bytes:
    """Read a file."""
    with foreign_errors(path), open(path, "rb") as file:
        return file.read()
