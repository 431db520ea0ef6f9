"""edflow's caches: a zip of pickles, also one that was killed, or the folder that it unpacks to."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from edcache.base import ForeignCacheError, Ints, LabelTypeError, PickleRefusedError
from edcache.codec import restored
from edcache.interop.import_members import Member, read_member, zip_members
from edcache.interop.import_source import OldCache, SampleFiles, read_file, regular_files
from edcache.labels import collected

LABELS: Final = "labels.p"
# Zero-padded before edflow's first release.
EXAMPLE: Final = re.compile(r"example_(\d{1,18})\.p", re.ASCII)

_MOST_LABELS = 1 << 33
_SIDE_NBYTES = 1 << 20
# An example: its index, what a Member has behind its name, and how many digits the name has.
_ROW: Final = np.dtype(
    [
        *(("index", "i8"), ("offset", "i8"), ("nbytes", "i8"), ("size", "i8")),
        *(("crc", "u4"), ("method", "u2"), ("digits", "u2")),
    ]
)


class EdflowZip(OldCache):
    """`<root>/cached/<name>.zip`, with or without an ending, or the zip of edflow's `@cachable(path)`."""

    kind = "edflow"

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        members, has_directory = zip_members(path)
        if not has_directory:
            self.notes.append(
                "it has no directory, as when edflow was killed: its members were found by their headers"
            )
        matches = ((EXAMPLE.fullmatch(member.name), member) for member in members)
        # Of two for one index the later.
        rows = {int(match[1]): (*member[1:], len(match[1])) for match, member in matches if match}
        try:
            self._examples = np.array([(index, *rows[index]) for index in sorted(rows)], _ROW)
        except OverflowError:
            raise ForeignCacheError(f"{path}: its members claim sizes beyond any file's") from None
        # A copy: to search a field of a table would copy it every time.
        self._indices: Ints = self._examples["index"].copy()
        digest = hashlib.sha256()
        for name in ("index", "size", "crc"):
            digest.update(self._examples[name].tobytes())
        self.identity = {"sizes and crc32s": digest.hexdigest()[:16]}
        self._set_indices(self._indices, self._stated_length())
        labels = [member for member in members if member.name == LABELS]
        if len(labels) > 1:
            self.notes.append(f"labels.p is in it {len(labels)} times; the last one counts")
        _add_labels(self, read_member(self.path, labels[-1], _MOST_LABELS) if labels else None)

    def _read(self, index: int) -> Any:
        _, *fields, digits = self._examples[np.searchsorted(self._indices, index)].item()
        member = Member(f"example_{index:0{digits}}.p", *fields)
        return self._unpickled(
            read_member(self.path, member, self.most_nbytes), f"{self.path}: {member.name}"
        )

    def _stated_length(self) -> int | None:
        """What the files of `@cachable(path)` beside the zip say: path + ".p", path + "parameters.p"."""
        parameters, length = f"{self.path}parameters.p", f"{self.path}.p"
        if os.path.isfile(parameters):
            try:
                args, kwargs = restored(read_file(parameters, _SIDE_NBYTES), parameters)
                note = f"it was made by a call with the arguments {args!r:.200} {kwargs!r:.200}"
            except (PickleRefusedError, TypeError, ValueError) as error:
                note = f"the arguments of its call were not read: {error}"
            self.notes.append(note)
        if not os.path.isfile(length):
            return None
        count = restored(read_file(length, _SIDE_NBYTES), length)
        if type(count) is not int or count < 0:
            raise ForeignCacheError(f"{length}: no number, as edflow writes it")
        return count


class EdflowFolder(SampleFiles):
    """The files of edflow's zip in a folder: example_0.p, ..., labels.p."""

    kind = "edflow"
    _decode = OldCache._unpickled

    def __init__(self, path: str, trust_pickle: bool = False) -> None:
        super().__init__(path, trust_pickle)
        files = regular_files(path)
        # Of two for one index the padded goes, which comes first.
        self._set_files({int(match[1]): match[0] for match in map(EXAMPLE.fullmatch, files) if match})
        labels = os.path.join(path, LABELS)
        _add_labels(self, read_file(labels, _MOST_LABELS) if LABELS in files else None)


def _add_labels(cache: OldCache, data: bytes | None) -> None:
    """Make label columns of labels.p: by field where samples have the field, else by their values."""
    if data is None:
        cache.notes.append(
            "it has no labels.p, as an interrupted run leaves none; label columns were not made"
        )
        return
    place = f"{cache.path}: {LABELS}"
    labels = restored(data, place, trust=cache.trust_pickle, most_nbytes=_MOST_LABELS)
    if not isinstance(labels, dict) or not all(type(values) is list for values in labels.values()):
        raise ForeignCacheError(f"{place} is no dict of lists, as edflow writes it")
    sample = cache[cache.first()]
    keys: dict[str, tuple[str, ...]] = {}
    for name, values in labels.items():
        if reason := _no_column(name, values):
            cache.notes.append(f"label {name!r} was left out{reason}")
        elif isinstance(sample, dict) and name in sample:
            keys[name] = (name,)
        elif len(values) == len(cache):
            cache.more_labels[name] = values
        else:
            cache.notes.append(
                f"label {name!r} was left out: no sample has it, and labels.p has {len(values):,} values"
            )
    cache.in_memory_keys = keys


def _no_column(name: Any, values: Sequence[Any]) -> str:
    """Why values make no label column, as the end of a sentence; nothing where they do."""
    if type(name) is not str or not name:
        return ": a column is named by a text"
    try:
        collected(name, enumerate(values))
    except LabelTypeError as error:
        return f", its values make no column: {error}"
    return ""
