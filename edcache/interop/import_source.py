"""OldCache: a cache of another system, as a source dataset; and how its files are read."""

from __future__ import annotations

import abc
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np
from torch.utils.data import Dataset

from edcache.base import ForeignCacheError, Ints, MissingSampleError, SampleIndexError, index_ranges
from edcache.codec import MOST_NBYTES, restored, torch_loaded

_FREE_LENGTH: Final = 1_000_000
_LENGTH_A_SAMPLE: Final = 1_000


class OldCache(Dataset[Any], abc.ABC):
    """A cache of another system as a source dataset; make one with `edcache.interop.old_cache`.

    Attributes:
        path: as it was given. kind: what `old_cache` calls it.
        identity: what tells this cache from others, as plain values.
        missing: the indices without a sample: int64 [k], sorted. Reading one raises MissingSampleError.
        in_memory_keys: the label columns that the old cache had, as far as samples have them; or None.
        more_labels: name -> values of label columns that are in no sample.
        most_nbytes: what the bytes of one sample may be, in the file and unpacked; 2 GiB unless it is set.
        notes: what a person should know, each a sentence: what is missing, what was left out.

    An index is the one that the sample had in its source dataset. Nothing is renumbered.
    Safety: fork, spawn and threads; no file stays open.
    """

    kind: ClassVar[str]
    in_memory_keys: Any = None

    def __init__(self, path: str, trust_pickle: bool) -> None:
        self.path = path
        self.trust_pickle = trust_pickle
        self.most_nbytes = MOST_NBYTES
        self.identity: dict[str, Any] = {}
        self.notes: list[str] = []
        self.more_labels: dict[str, list[Any]] = {}
        self._length = 0
        self.missing: Ints = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise SampleIndexError(f"{self.path}: index {index} not in [-{len(self)}, {len(self)})")
        row = int(np.searchsorted(self.missing, position))
        if position in self.missing[row : row + 1]:
            raise MissingSampleError(f"{self.path}: no sample {position}; this {self.kind} cache has none")
        return self._read(position)

    def __repr__(self) -> str:
        lacks = f", {len(self.missing):,} missing" if len(self.missing) else ""
        return f"{type(self).__name__}({self.path!r}, {len(self):,} samples{lacks})"

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the samples, for the archive's head; where they lie does not.

        It stands there as a call, so that a CachedDataset over the real source takes the archive for its own.
        """
        arguments = {"kind": self.kind, "samples": len(self), **self.identity}
        return {"factory": "edcache import", "arguments": arguments, "version": None, "source": None}

    def first(self) -> int:
        """The first index that has a sample."""
        later = np.flatnonzero(self.missing != np.arange(len(self.missing)))
        return int(later[0]) if len(later) else len(self.missing)

    @abc.abstractmethod
    def _read(self, index: int) -> Any:
        """The sample at an index in [0, len) that is not missing."""

    def _unpickled(self, data: bytes, place: str) -> Any:
        return restored(data, place, trust=self.trust_pickle, most_nbytes=self.most_nbytes)

    def _torch_loaded(self, data: bytes, place: str) -> Any:
        return torch_loaded(data, place, trust=self.trust_pickle, most_nbytes=self.most_nbytes)

    def _set_indices(self, indices: Ints, length: int | None = None) -> None:
        """Set the indices that have a sample, unique and sorted, and the length, if one is known.

        Raises:
            ForeignCacheError: there is none, or the length is absurd.
        """
        self._set_length(max(int(indices[-1]) + 1, length or 0) if len(indices) else 0)
        if self._length > _FREE_LENGTH + _LENGTH_A_SAMPLE * len(indices):
            raise ForeignCacheError(
                f"{self.path}: {len(indices):,} samples, and the length would be {self._length:,}; remove "
                "the file or the number that is wrong"
            )
        present = np.zeros(self._length, np.bool_)
        present[indices] = True
        self.missing = np.flatnonzero(~present)
        if len(self.missing):
            missing = index_ranges(self.missing, 20, "")
            self.notes.append(f"{len(self.missing):,} of {self._length:,} samples are not in it: {missing}")

    def _set_length(self, length: int) -> None:
        """Set the length of a cache in which each sample has bytes of its own."""
        if not length:
            raise ForeignCacheError(f"{self.path}: no sample in this {self.kind} cache")
        self._length = length


class SampleFiles(OldCache):
    """A folder with a file for each sample, of torch.save unless a kind decodes them otherwise."""

    _decode = OldCache._torch_loaded

    def _set_files(self, names: Mapping[int, str], length: int | None = None) -> None:
        """Set the names of the files inside the folder, with slashes, by index."""
        self._names = dict(sorted(names.items()))
        with foreign_errors(self.path):
            stats = [(name, os.lstat(os.path.join(self.path, name))) for name in self._names.values()]
        self.identity = {"names, sizes and times": files_digest(stats)}
        self._set_indices(np.array(list(self._names), np.int64), length)

    def _read(self, index: int) -> Any:
        name = self._names[index]
        place = f"{self.path}: {name}"
        return self._decode(read_file(os.path.join(self.path, name), self.most_nbytes, place), place)


def files_digest(files: Iterable[tuple[object, os.stat_result]]) -> str:
    """A digest of the names of files, or what stands in their place, and of their sizes and times."""
    digest = hashlib.sha256()
    for name, stat in files:
        digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


@contextmanager
def foreign_errors(place: str) -> Iterator[None]:
    """Errors of the system become ForeignCacheErrors."""
    try:
        yield
    except OSError as error:
        raise ForeignCacheError(f"{place}: {error.strerror}") from error


def read_file(path: str, max_nbytes: int, place: str | None = None) -> bytes:
    """The bytes of a file; ForeignCacheError, which begins with `place`, where it has more than allowed."""
    place = place or path
    with foreign_errors(place), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_nbytes:
            raise ForeignCacheError(f"{place} has {size:,} bytes, more than the {max_nbytes:,} allowed")
        return file.read(max_nbytes + 1)


def read_part(path: str, place: str, offset: int, nbytes: int) -> bytes:
    """Bytes of a file; ForeignCacheError, which begins with `place`, where it ends before them."""
    with foreign_errors(place), open(path, "rb") as file:
        file.seek(offset)
        data = file.read(nbytes)
    if len(data) < nbytes:
        raise ForeignCacheError(f"{place}: the file ends in the middle of it")
    return data


def regular_files(folder: str) -> list[str]:
    """The names of the files of a folder, sorted, but for links, which may lead out of it."""
    with foreign_errors(folder), os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
