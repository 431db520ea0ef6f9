"""What differs between two archives: what they say of themselves, labels, samples.

Samples are compared by what the index has of them, length, crc32 and schema: no record is read. Where the two
are not compressed alike that tells nothing, and their records are decompressed if that is wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edcache import display
from edcache.base import Ints, named, plain
from edcache.format import missing_rows, one_chunk, pa
from edcache.labels import Labels
from edcache.reader import Reader

_SAID = ("samples", "sealed", "codec", "compression")
_MADE = ("type", "factory", "version", "source")


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between the archives `first` and `second`.

    Attributes:
        about: what each says of itself, of the call that made it, of its fields and its label columns: the
            value of each of the two by name, those alone that differ; None where one says nothing.
        only_first, only_second: samples that have a record in one alone.
        records: samples in both whose records differ.
        labels: samples in both that have another value in a label column, by name.
        unknown: how many samples in both cannot be compared by what is stored; None where `records` has all.
    """

    about: Mapping[str, tuple[Any, Any]]
    only_first: Ints
    only_second: Ints
    records: Ints
    labels: Mapping[str, Ints]
    unknown: int | None

    @property
    def is_none(self) -> bool:
        """Whether they are the same."""
        samples = len(self.only_first) + len(self.only_second) + len(self.records) + (self.unknown or 0)
        return not (self.about or samples or self.labels)


def difference(first: Reader, second: Reader, *, deep: bool = False) -> Difference:
    """What differs between two archives; where their samples lie in the files is not compared.

    Args:
        deep: read the records that are stored differently, and compare them decompressed.
    Raises: what reading the indices, the labels and, if deep, the records of either raises.
    Cost: some 50 bytes of memory a sample, and the labels. Two records that differ have the same length and
        crc32 once in four billion times.
    """
    one, other = first.records.samples, second.records.samples
    both, *rows = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    differ, is_other_schema = _stored_differently((first, second), rows)
    is_comparable = first.head.codec == second.head.codec
    is_known = is_comparable and (deep or first.head.compression == second.head.compression)
    if deep and is_comparable:
        for at in np.flatnonzero(differ & ~is_other_schema):
            left, right = (side.session.fetch(int(both[at]))[0] for side in (first, second))
            differ[at] = left != right
    labels = [Labels(side.labels, num_rows=len(side)).take(both) for side in (first, second)]
    relabelled = {name: both[_unlike(labels[0], labels[1], name)] for name in labels[0] if name in labels[1]}
    said = _said(first), _said(second)
    about = {name: (said[0].get(name), said[1].get(name)) for name in {**said[0], **said[1]}}
    return Difference(
        {name: pair for name, pair in about.items() if pair[0] != pair[1]},
        np.setdiff1d(one, other, assume_unique=True),
        np.setdiff1d(other, one, assume_unique=True),
        both[differ] if is_known else both[:0],
        {name: indices for name, indices in relabelled.items() if len(indices)},
        None if is_known else int(differ.sum()),
    )


def _stored_differently(
    sides: tuple[Reader, Reader], rows: Sequence[Ints]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Of the samples in both, those with another length, crc32 or schema, and those with another schema."""
    chosen = [side.records.take(taken) for side, taken in zip(sides, rows, strict=True)]
    numbers = {text: k for k, text in enumerate(dict.fromkeys([*sides[0].schemas, *sides[1].schemas]))}
    left, right = (
        np.array([numbers[text] for text in side.schemas], np.int64)[records.schema]
        for side, records in zip(sides, chosen, strict=True)
    )
    is_other_schema = left != right
    differ = (chosen[0].nbytes != chosen[1].nbytes) | (chosen[0].crc32 != chosen[1].crc32)
    return differ | is_other_schema, is_other_schema


def _said(archive: Reader) -> dict[str, Any]:
    """What an archive says of itself, by the names that a person sees."""
    summary = display.summary(archive)
    said = {name: summary[name] for name in _SAID}
    made = summary["fingerprint"] or {}
    said |= {name: made[name] for name in _MADE if made.get(name) is not None}
    for word in ("argument", "attribute"):
        said |= {f"{word} {name}": value for name, value in named(made, f"{word}s").items()}
    fields: dict[str, set[str]] = {}
    for path, *kind in (row for schema in summary["schemas"] for row in display.field_rows(schema)):
        fields.setdefault(path, set()).add(" ".join(kind).rstrip())
    said |= {f"field {path}": ", ".join(sorted(texts)) for path, texts in fields.items()}
    return said | {f"label {name}": kind for name, kind in summary["labels"].items()}


def _unlike(first: Labels, second: Labels, name: str) -> npt.NDArray[np.bool_]:
    columns = first.column(name), second.column(name)
    if any(pa.types.is_nested(column.type) or pa.types.is_null(column.type) for column in columns):
        values = zip(first.to_list(name), second.to_list(name), strict=True)
        return np.array([plain(left) != plain(right) for left, right in values], bool)
    left, right = first[name], second[name]
    nulls = [missing_rows(one_chunk(column)) for column in columns]
    if {left.dtype.kind, right.dtype.kind} in ({"i", "f"}, {"u", "f"}, {"i", "u"}):
        left = left.astype(object)  # numpy would round integers beyond 2**53, Python does not
    is_same = (left == right) | (left != left) & (right != right)  # nan is nan
    is_same = is_same.astype(bool) | nulls[0] & nulls[1]  # what lies under a null depends on the column
    return np.asarray(~is_same | (nulls[0] != nulls[1]), bool)
