"""Old caches of pickles: edflow's, torch_xla's CachedDataset, MONAI's PersistentDataset."""

from __future__ import annotations

import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

from edcache.base import ArchiveError, LabelError, OptionError
from edcache.codec import restored, torch_loaded
from edcache.interop.import_source import OldCache, files_below, foreign_errors, read_file
from edcache.labels import collected

_LABELS: Final = "labels.p"
# Zero-padded before edflow's first release.
_EXAMPLE: Final = re.compile(r"example_(\d{1,18})\.p", re.ASCII)
_METADATA: Final = "METADATA"
_SAMPLE: Final = re.compile(r"(\d{1,18})(\.pt)?", re.ASCII)

_SIGNATURE: Final = b"PK\x03\x04"
_HEADER: Final = struct.Struct("<4s2xHHxxxxIIIHH")


class Edflow(OldCache):
    """Cache of edflow: `<root>/cached/<name>.zip`, whole or killed, with or without its ending; or unpacked."""

    kind = "edflow"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        # The later one of two members with the same name counts.
        self._members = {} if os.path.isdir(path) else {m.filename: m for m in self._infos()}
        names = self._members or [os.path.basename(file) for file in files_below(path)]
        matches = filter(None, map(_EXAMPLE.fullmatch, names))
        self._names = {int(match[1]): match[0] for match in matches}
        self._set_indices(self._names, self._stated_length())
        if _LABELS in names:
            self._add_labels()
        elif self._names:
            self.notes.append(
                "it has no labels.p, as an interrupted run leaves none; label columns were not made"
            )

    def _infos(self) -> list[zipfile.ZipInfo]:
        with foreign_errors(self.path), open(self.path, "rb") as file:
            try:
                with zipfile.ZipFile(file) as opened:
                    return opened.infolist()
            except (zipfile.BadZipFile, struct.error, NotImplementedError, EOFError, ValueError):
                self.notes.append(
                    "it has no directory, as when edflow was killed: its members were found by their headers"
                )
                return list(_find_headers(file))

    def _read(self, index: int) -> Any:
        name = self._names[index]
        return restored(self._bytes(name), f"{self.path}: {name}", trust=self.trust_pickle)

    def _bytes(self, name: str) -> bytes:
        if self._members:
            return _member_bytes(self.path, self._members[name])
        return read_file(os.path.join(self.path, name))

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


def _find_headers(file: BinaryIO) -> Iterator[zipfile.ZipInfo]:
    """Yield members by their local headers, up to the first that is no header or is cut."""
    end, offset = os.fstat(file.fileno()).st_size, 0
    while True:
        file.seek(offset)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return
        signature, _, method, crc, nbytes, size, name_nbytes, extra_nbytes = _HEADER.unpack(header)
        info = zipfile.ZipInfo(file.read(name_nbytes).decode("utf-8", "replace") or "?")
        info.header_offset, info.compress_type, info.CRC = offset, method, crc
        info.compress_size, info.file_size = nbytes, size
        offset += _HEADER.size + name_nbytes + extra_nbytes + nbytes
        # The header of a member says zero bytes until it is written completely.
        if signature != _SIGNATURE or offset > end or not nbytes:
            return
        yield info


def _member_bytes(path: str, info: zipfile.ZipInfo) -> bytes:
    """Unpack a member without a ZipFile, which processes cannot share, and which lists all when it opens."""
    place = f"{path}: {info.filename} at offset {info.header_offset:,}"
    with foreign_errors(place), open(path, "rb") as file:
        file.seek(info.header_offset)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_SIGNATURE):
            raise ArchiveError(f"{place}: no member begins there")
        file.seek(sum(_HEADER.unpack(header)[-2:]), os.SEEK_CUR)
        data = file.read(info.compress_size)
    try:
        if info.compress_type == zipfile.ZIP_DEFLATED:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, info.file_size + 1)
    except zlib.error as error:
        raise ArchiveError(f"{place}: does not unpack: {error}") from None
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise ArchiveError(f"{place}: its bytes have another length or crc32 than its header says")
    return data


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
    """Cache of torch_xla: files named by index, of releases 1.7 to 2.0, or of 1.6: no METADATA, no endings."""

    kind = "torch_xla"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        count, per_folder = _metadata(path)
        found = [os.path.relpath(file, path) for file in files_below(path)]
        numbered = [(int(match[1]), name) for name in sorted(found) if (match := _sample_name(name))]
        self._names = {}
        for index, name in numbered:
            if (count is None or index < count) and (
                index not in self._names or name == sample_path(index, count or 0, per_folder)
            ):
                self._names[index] = name
        if len(numbered) > len(self._names):
            self.notes.append(
                f"{len(numbered) - len(self._names):,} files were left out: torch_xla looks elsewhere for "
                "these samples, as after a cache grew, or METADATA counts fewer"
            )
        self._set_indices(self._names, count)
        if count is None:
            self.notes.append(f"it has no METADATA; by its files it has {len(self):,} samples")


def _sample_name(name: str) -> re.Match[str] | None:
    """Match the last part of a path whose parts are all numbers."""
    *folders, last = name.split(os.sep)
    return _SAMPLE.fullmatch(last) if all(part.isdecimal() for part in folders) else None


def _metadata(path: str) -> tuple[int | None, int]:
    """Read (samples, files per folder) from METADATA; (None, 1000) without it."""
    file = os.path.join(path, _METADATA)
    if not os.path.isfile(file):
        return None, 1000
    try:
        stated = json.loads(read_file(file))
        count, per_folder = int(stated["count"]), int(stated["max_files_per_folder"])
        if count < 0 or per_folder < 2:
            raise ValueError(f"count {count}, max_files_per_folder {per_folder}")
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveError(f"{file}: not as torch_xla writes it: {error!r:.200}") from None
    return count, per_folder


def sample_path(index: int, count: int, per_folder: int) -> str:
    """Return the path of a sample of torch_xla: folders are the digits of index // per_folder, base per_folder."""
    depth = len(_digits(count, per_folder))
    folders = _digits(index, per_folder)[:-1]
    return "/".join(["0"] * (depth - 1 - len(folders)) + folders + [f"{index}.pt"])


def _digits(number: int, base: int) -> list[str]:
    digits = [str(number)]
    while number := number // base:
        digits.insert(0, str(number % base))
    return digits


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
