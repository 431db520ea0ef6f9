"""edflow's caches: a zip of pickles, also one that was killed, or the folder that it unpacks to."""

from __future__ import annotations

import abc
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from edcache.codec.foreign import restored
from edcache.errors import ForeignCacheError, LabelTypeError, PickleRefusedError
from edcache.importers.members import Member, contents, listed
from edcache.importers.source import Indices, OldCache, read_whole, regular_files
from edcache.labels.columns import collected

LABELS: Final = "labels.p"
# Zero-padded before edflow's first release.
EXAMPLE: Final = re.compile(r"example_(\d{1,18})\.p", re.ASCII)

_MOST_LABELS = 1 << 33
_SIDE_NBYTES = 1 << 20
_TABLE = np.dtype(
    [("index", "i8"), ("offset", "i8"), ("nbytes", "i8"), ("size", "i8"), ("crc", "u4"), ("method", "u2")]
)


class Edflow(OldCache):
    """What edflow's zip and its folder have in common: samples by index, and labels.p."""

    kind = "edflow"

    def _read(self, index: int) -> Any:
        name, data = self._example(index)
        return restored(data, f"{self.path}: {name}", trust=self.trust_pickle, most_nbytes=self.most_nbytes)

    @abc.abstractmethod
    def _example(self, index: int) -> tuple[str, bytes]:
        """The name and the pickle of a sample."""

    def _take_labels(self, data: bytes | None) -> None:
        """Make label columns of labels.p: by field where samples have the field, else by their values."""
        if data is None:
            self.notes.append(
                "it has no labels.p, as an interrupted run leaves none; label columns were not made"
            )
            return
        found = restored(data, f"{self.path}: {LABELS}", trust=self.trust_pickle, most_nbytes=_MOST_LABELS)
        if not isinstance(found, dict) or not all(type(values) is list for values in found.values()):
            raise ForeignCacheError(f"{self.path}: {LABELS} is no dict of lists, as edflow writes it")
        sample = self[self.first()]
        keys: dict[str, tuple[str, ...]] = {}
        for name, values in found.items():
            if not self._is_column(name, values):
                continue
            if isinstance(sample, dict) and name in sample:
                keys[name] = (name,)
            elif len(values) == len(self):
                self.more_labels[name] = values
            else:
                self.notes.append(
                    f"label {name!r} was left out: no sample has it, and labels.p has {len(values):,} values"
                )
        self.in_memory_keys = keys

    def _is_column(self, name: Any, values: Sequence[Any]) -> bool:
        if type(name) is not str or not name:
            self.notes.append(f"label {name!r} was left out: a column is named by a text")
            return False
        try:
            collected(name, enumerate(values))
        except LabelTypeError as error:
            self.notes.append(f"label {name!r} was left out, its values make no column: {error}")
            return False
        return True


class EdflowZip(Edflow):
    """`<root>/cached/<name>.zip`, with or without an ending, or the zip of edflow's `@cachable(path)`."""

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        members, has_directory = listed(path)
        if not has_directory:
            self.notes.append(
                "it has no directory, as when edflow was killed: its members were found by their headers"
            )
        self._table, padded = _example_table(members)
        self._names = "example_{}.p" if not padded else f"example_{{:0{padded}}}.p"
        # A field of the table has gaps, and would be copied for every search.
        self._indices: Indices = np.ascontiguousarray(self._table["index"], np.int64)
        self._found(self._indices, self._length_said())
        self._take_labels(self._labels(members))

    def _example(self, index: int) -> tuple[str, bytes]:
        row = self._table[np.searchsorted(self._indices, index)]
        member = Member(self._names.format(index), *(int(row[name]) for name in _TABLE.names[1:]))  # type: ignore[index]
        return member.name, contents(self.path, member, self.most_nbytes)

    def _labels(self, members: Iterable[Member]) -> bytes | None:
        found = [member for member in members if member.name == LABELS]
        if len(found) > 1:
            self.notes.append(f"labels.p is in it {len(found)} times; the last one counts")
        return contents(self.path, found[-1], _MOST_LABELS) if found else None

    def _identity(self) -> dict[str, Any]:
        columns = (self._table[name] for name in ("index", "size", "crc"))
        values = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
        return {"sizes and crc32s": hashlib.sha256(values).hexdigest()[:16]}

    def _length_said(self) -> int | None:
        """What the files of `@cachable(path)` beside the zip say: path + ".p", path + "parameters.p"."""
        parameters, length = f"{self.path}parameters.p", f"{self.path}.p"
        if os.path.isfile(parameters):
            self.notes.append(self._call_said(parameters))
        if not os.path.isfile(length):
            return None
        said = restored(read_whole(length, length, _SIDE_NBYTES), length)
        if type(said) is not int or said < 0:
            raise ForeignCacheError(f"{length}: no number, as edflow writes it")
        return said

    def _call_said(self, parameters: str) -> str:
        try:
            args, kwargs = restored(read_whole(parameters, parameters, _SIDE_NBYTES), parameters)
        except (PickleRefusedError, TypeError, ValueError) as error:
            return f"the arguments of its call were not read: {error}"
        return f"it was made by a call with the arguments {args!r:.200} {kwargs!r:.200}"


class EdflowFolder(Edflow):
    """The files of edflow's zip in a folder: example_0.p, ..., labels.p."""

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        names: dict[int, str] = {}
        digest = hashlib.sha256()
        for entry in sorted(regular_files(path), key=lambda entry: entry.name):
            match = EXAMPLE.fullmatch(entry.name)
            if match:
                names[int(match[1])] = entry.name
                stat = entry.stat(follow_symlinks=False)
                digest.update(f"{entry.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        self._digest = digest.hexdigest()[:16]
        self._files = [names[index] for index in sorted(names)]
        self._indices: Indices = np.array(sorted(names), np.int64)
        self._found(self._indices)
        labels = os.path.join(path, LABELS)
        is_there = os.path.isfile(labels) and not os.path.islink(labels)
        self._take_labels(read_whole(labels, labels, _MOST_LABELS) if is_there else None)

    def _example(self, index: int) -> tuple[str, bytes]:
        name = self._files[int(np.searchsorted(self._indices, index))]
        shown = f"{self.path}: {name}"
        return name, read_whole(os.path.join(self.path, name), shown, self.most_nbytes)

    def _identity(self) -> dict[str, Any]:
        return {"names, sizes and times": self._digest}


def _example_table(members: Iterable[Member]) -> tuple[Any, int]:
    """The examples by index, of two for one index the later; and the digits of padded names."""
    rows, padded = {}, 0
    for member in members:
        match = EXAMPLE.fullmatch(member.name)
        if match:
            rows[int(match[1])] = (int(match[1]), *member[1:])
            padded = len(match[1]) if match[1].startswith("0") and len(match[1]) > 1 else padded
    return np.array([rows[index] for index in sorted(rows)], _TABLE), padded
