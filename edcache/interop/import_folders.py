"""Folders with a file of torch.save for each sample: torch_xla's CachedDataset, MONAI's PersistentDataset."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Final

from edcache import base
from edcache.base import ForeignCacheError, OptionError
from edcache.interop.import_source import SampleFiles, foreign_errors, read_file, regular_files

METADATA: Final = "METADATA"
SAMPLE: Final = re.compile(r"(\d{1,18})(\.pt)?", re.ASCII)

_DEEPEST: Final = 20


class TorchXla(SampleFiles):
    """A tree of files named by their index, of releases 1.7 to 2.0, or of 1.6: no METADATA, no endings."""

    kind = "torch_xla"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        count, per_folder = _metadata(path)
        files: dict[int, str] = {}
        twice, beyond = 0, 0
        for index, name in sorted(_samples(path)):
            if count is not None and index >= count:
                beyond += 1
                continue
            is_second = index in files
            twice += is_second
            if not is_second or name == sample_path(index, count or 0, per_folder):
                files[index] = name
        if twice:
            self.notes.append(
                f"{twice:,} samples have two files, as when a cache grew; that where torch_xla looks counts"
            )
        if beyond:
            self.notes.append(f"{beyond:,} files have an index of {count:,} or more and were left out")
        self._set_files(files, count)
        if count is None:
            self.notes.append(f"it has no METADATA; by its files it has {len(self):,} samples")


def _metadata(path: str) -> tuple[int | None, int]:
    """(samples, files per folder) as METADATA says; (None, 1000) where there is none."""
    file = os.path.join(path, METADATA)
    if not os.path.isfile(file):
        return None, 1000
    try:
        stated = base.loads(read_file(file, 1 << 16))
    except ValueError as error:
        raise ForeignCacheError(f"{file}: {error}") from None
    stated = stated if isinstance(stated, dict) else {}
    count, per_folder = stated.get("count"), stated.get("max_files_per_folder")
    if type(count) is not int or type(per_folder) is not int or count < 0 or per_folder < 2:
        raise ForeignCacheError(f"{file}: count and max_files_per_folder are not there, or are no numbers")
    return count, per_folder


def sample_path(index: int, count: int, per_folder: int) -> str:
    """Where torch_xla keeps a sample: folders are the digits of index // per_folder, base per_folder."""
    depth = len(_digits(count, per_folder))
    folders = _digits(index, per_folder)[:-1]
    return "/".join(["0"] * (depth - 1 - len(folders)) + folders + [f"{index}.pt"])


def _digits(number: int, base: int) -> list[str]:
    digits = [str(number)]
    while number := number // base:
        digits.insert(0, str(number % base))
    return digits


def _samples(path: str, inside: str = "", depth: int = 0) -> Iterator[tuple[int, str]]:
    """(index, path with slashes) of every file named by a number, in folders named by numbers."""
    folder = os.path.join(path, inside) if inside else path
    with foreign_errors(folder), os.scandir(folder) as entries:
        for entry in entries:
            match = SAMPLE.fullmatch(entry.name)
            if match is not None and entry.is_file(follow_symlinks=False):
                yield int(match[1]), inside + entry.name
            elif match is not None and entry.is_dir(follow_symlinks=False) and depth < _DEEPEST:
                yield from _samples(path, f"{inside}{entry.name}/", depth + 1)


class Monai(SampleFiles):
    """`<hash>.pt` of every data item, in the order given, else by name."""

    kind = "monai"

    def __init__(self, path: str, trust_pickle: bool = False, order: Sequence[str] | None = None) -> None:
        super().__init__(path, trust_pickle)
        files = [name for name in regular_files(path) if name.endswith(".pt")]
        if order is None:
            names = files
            self.notes.append(
                "its samples are in the order of their file names, which are hashes; see order="
            )
        else:
            names = [name if name.endswith(".pt") else f"{name}.pt" for name in order]
            if left_out := len(set(files) - set(names)):
                self.notes.append(f"{left_out:,} files that the order does not name were left out")
        if len(set(names)) != len(names):
            raise OptionError(f"{path}: order= names a file twice")
        present = set(files)
        self._set_files({k: name for k, name in enumerate(names) if name in present}, len(names))
