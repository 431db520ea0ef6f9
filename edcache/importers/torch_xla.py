"""torch_xla's CachedDataset: a tree of files of torch.save, each named by its index."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from edcache import bounded
from edcache.codec.torchsave import torch_loaded
from edcache.errors import ForeignCacheError
from edcache.importers.source import Indices, OldCache, read_whole

METADATA: Final = "METADATA"
KEYS: Final = {"count", "compress", "max_files_per_folder"}
SAMPLE: Final = re.compile(r"(\d{1,18})(\.pt)?", re.ASCII)


class TorchXla(OldCache):
    """The folder of releases 1.7 to 2.0, and that of 1.6, which has no METADATA and no endings."""

    kind = "torch_xla"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        count, per_folder = metadata(path)
        self._names: dict[int, str] = {}
        digest = hashlib.sha256()
        twice = 0
        for index, name, stat in sorted(_samples(path), key=lambda found: found[:2]):
            if index in self._names:
                twice += 1
                if name != sample_path(index, count or 0, per_folder):
                    continue
            self._names[index] = name
            digest.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        if twice:
            self.notes.append(
                f"{twice:,} samples have two files, as when a cache grew; that where torch_xla looks counts"
            )
        beyond = [index for index in self._names if count is not None and index >= count]
        if beyond:
            self.notes.append(f"{len(beyond):,} files have an index of {count:,} or more and were left out")
        for index in beyond:
            del self._names[index]
        self._digest = digest.hexdigest()[:16]
        indices: Indices = np.array(sorted(self._names), np.int64)
        self._found(indices, count)
        if count is None:
            self.notes.append(f"it has no METADATA; by its files it has {len(self):,} samples")

    def _read(self, index: int) -> Any:
        name = self._names[index]
        shown = f"{self.path}: {name}"
        data = read_whole(os.path.join(self.path, *name.split("/")), shown, self.most_nbytes)
        return torch_loaded(data, shown, trust=self.trust_pickle, most_nbytes=self.most_nbytes)

    def _identity(self) -> dict[str, Any]:
        return {"names, sizes and times": self._digest}


def metadata(path: str) -> tuple[int | None, int]:
    """(samples, files per folder) as METADATA says; (None, 1000) where there is none.

    Raises:
        ForeignCacheError: it is no METADATA of torch_xla.
    """
    file = os.path.join(path, METADATA)
    if not os.path.isfile(file):
        return None, 1000
    try:
        said = bounded.loads(read_whole(file, file, 1 << 16))
    except ValueError as error:
        raise ForeignCacheError(f"{file}: {error}") from None
    numbers = (
        (said.get("count"), said.get("max_files_per_folder")) if isinstance(said, dict) else (None, None)
    )
    if any(type(number) is not int or number < least for number, least in zip(numbers, (0, 2), strict=True)):
        raise ForeignCacheError(f"{file}: count and max_files_per_folder are not there, or are no numbers")
    return numbers  # type: ignore[return-value]


def sample_path(index: int, count: int, per_folder: int) -> str:
    """Where torch_xla keeps a sample: folders are the digits of index // per_folder, base per_folder."""
    depth = len(_digits(count, per_folder))
    folders = _digits(index, per_folder)[:-1]
    return "/".join(["0"] * (depth - 1 - len(folders)) + folders + [f"{index}.pt"])


def _digits(number: int, base: int) -> list[str]:
    digits = [str(number)]
    number //= base
    while number:
        digits.insert(0, str(number % base))
        number //= base
    return digits


def _samples(path: str) -> Iterator[tuple[int, str, os.stat_result]]:
    """(index, path with slashes, stat) of every file named by a number, in folders named by numbers."""
    try:
        yield from _walk(path, "", 0)
    except OSError as error:
        raise ForeignCacheError(f"{error.filename}: {error.strerror}") from error


def _walk(folder: str, inside: str, depth: int) -> Iterator[tuple[int, str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            match = SAMPLE.fullmatch(entry.name)
            if match is None:
                continue
            name = inside + entry.name
            if entry.is_file(follow_symlinks=False):
                yield int(match[1]), name, entry.stat(follow_symlinks=False)
            elif entry.is_dir(follow_symlinks=False) and depth < 20:
                yield from _walk(entry.path, f"{name}/", depth + 1)
