"""Old caches of pickles: edflow's, torch_xla's CachedDataset, MONAI's PersistentDataset."""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any, Final

from edcache.base import ArchiveError, LabelError, OptionError, PerProcess
from edcache.codec import restored, torch_loaded
from edcache.interop.import_source import OldCache, files_below, foreign_errors, read_file
from edcache.labels import collected

_LABELS: Final = "labels.p"
# Zero-padded before edflow's first release.
_EXAMPLE: Final = re.compile(r"example_(\d{1,18})\.p", re.ASCII)
_METADATA: Final = "METADATA"
_SAMPLE: Final = re.compile(r"(?:\d+/)*(\d{1,18})\.pt", re.ASCII)
# Errors of zipfile over damaged bytes; RuntimeError: of an encrypted member, or a method that it lacks.
_ZIP_ERRORS: Final = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


class Edflow(OldCache):
    """Cache of edflow: `<root>/cached/<name>.zip`, with or without its ending."""

    kind = "edflow"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        # Processes cannot share the position in an open file.
        self._zips: PerProcess[zipfile.ZipFile] = PerProcess()
        found = set(self._zip().namelist())
        matches = filter(None, map(_EXAMPLE.fullmatch, found))
        self._names = {int(match[1]): match[0] for match in matches}
        self._set_indices(self._names, self._stated_length())
        if _LABELS in found:
            self._add_labels()
        elif self._names:
            self.notes.append(
                "it has no labels.p, as an interrupted run leaves none; label columns are made by "
                "in_memory_keys=, or --key"
            )

    def _zip(self) -> zipfile.ZipFile:
        with foreign_errors(self.path):
            try:
                return self._zips.get(lambda: zipfile.ZipFile(self.path))
            except _ZIP_ERRORS as error:
                raise ArchiveError(
                    f"{self.path}: opens as no zip ({error}); edflow leaves such a file when it is killed: "
                    f"mend it with: zip -FF {self.path} --out mended.zip"
                ) from error

    def _read(self, index: int) -> Any:
        name = self._names[index]
        return restored(self._bytes(name), f"{self.path}: {name}", trust=self.trust_pickle)

    def _bytes(self, name: str) -> bytes:
        """Read the last member of a name, with its crc32 checked."""
        opened = self._zip()
        with foreign_errors(f"{self.path}: {name}"):
            try:
                return opened.read(name)
            except _ZIP_ERRORS as error:
                raise ArchiveError(f"{self.path}: {name}: does not unpack: {error}") from error

    def _stated_length(self) -> int | None:
        """Read the file that `@cachable(path)` left beside the zip: path + ".p"."""
        length = f"{self.path}.p"
        if not os.path.isfile(length):
            return None
        count = restored(read_file(length), length)
        if type(count) is not int or count < 0:
            raise ArchiveError(f"{length}: no number, as edflow writes it")
        return count

    def _add_labels(self) -> None:
        """Make label columns of labels.p: by field if samples have the field, else by its values."""
        place = f"{self.path}: {_LABELS}"
        labels = restored(self._bytes(_LABELS), place, trust=self.trust_pickle)
        if not isinstance(labels, dict) or not all(type(values) is list for values in labels.values()):
            raise ArchiveError(f"{place} is no dict of lists, as edflow writes it")
        try:
            sample = self.first()
        except ArchiveError:
            sample = None
        self.in_memory_keys = {}
        for name, values in labels.items():
            if reason := _no_column(name, values):
                self.notes.append(f"label {name!r} was left out{reason}")
            elif isinstance(sample, dict) and name in sample:
                self.in_memory_keys[name] = (name,)
            elif len(values) == len(self):
                self.more_labels[name] = values
            else:
                self.notes.append(
                    f"label {name!r} was left out: no sample has it, and labels.p has {len(values):,} values"
                )


def _no_column(name: Any, values: Sequence[Any]) -> str:
    """Return the reason why values make no label column, the end of a sentence; "" if they do."""
    if type(name) is not str or not name:
        return ": a column is named by a text"
    try:
        collected(name, enumerate(values))
    except LabelError as error:
        return f", its values make no column: {error}"
    return ""


class _TorchFiles(OldCache):
    """Folder with a file of torch.save for each sample. _names: inside the folder, by index."""

    _names: dict[int, str]

    def _read(self, index: int) -> Any:
        name = self._names[index]
        data = read_file(os.path.join(self.path, name))
        return torch_loaded(data, f"{self.path}: {name}", trust=self.trust_pickle)


class TorchXla(_TorchFiles):
    """Cache of torch_xla, of releases 1.7 to 2.0: files named by index, and METADATA with their number."""

    kind = "torch_xla"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        count = _stated_count(path)
        # A cache that grew has deeper folders, and the old files stay where they were.
        found = sorted((os.path.relpath(file, path) for file in files_below(path)), key=_depth)
        numbered = [(int(match[1]), match[0]) for match in map(_SAMPLE.fullmatch, found) if match]
        self._names = {index: name for index, name in numbered if index < count}
        if len(numbered) > len(self._names):
            self.notes.append(
                f"{len(numbered) - len(self._names):,} files were left out: a file of the same sample lies "
                "deeper, as after a cache grew, or METADATA counts fewer"
            )
        self._set_indices(self._names, count)


def _depth(path: str) -> int:
    return path.count(os.sep)


def _stated_count(path: str) -> int:
    """Read the number of samples from METADATA."""
    file = os.path.join(path, _METADATA)
    try:
        count = int(json.loads(read_file(file))["count"])
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveError(f"{file}: not as torch_xla writes it: {error!r:.200}") from None
    if count < 0:
        raise ArchiveError(f"{file}: not as torch_xla writes it: count {count}")
    return count


class Monai(_TorchFiles):
    """Cache of MONAI: `<hash>.pt` of every data item, in the given order, else by name."""

    kind = "monai"

    def __init__(self, path: str, trust_pickle: bool = False, order: Sequence[str] | None = None) -> None:
        super().__init__(path, trust_pickle)
        with foreign_errors(path):
            present = sorted(name for name in os.listdir(path) if name.endswith(".pt"))
        names = present
        if order is None:
            self.notes.append(
                "its samples are in the order of their file names, which are hashes; see order="
            )
        else:
            names = [name if name.endswith(".pt") else f"{name}.pt" for name in order]
            if left_out := len(set(present) - set(names)):
                self.notes.append(f"{left_out:,} files that the order does not name were left out")
        if len(set(names)) != len(names):
            raise OptionError(f"{path}: order= names a file twice")
        self._names = {k: name for k, name in enumerate(names) if name in set(present)}
        self._set_indices(self._names, len(names))
