"""The label table of an archive whose columns were added or dropped after its samples were written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np

from edcache.base import Ints, LabelError
from edcache.format.arrays import from_numpy, pa
from edcache.format.tables import Revision
from edcache.format.types import Clash, LabelTypes, column_type, no_type, unify_column

# A row for each of so many samples takes little, whatever they are; beyond, what is stored must justify it.
_FEW: Final = 1 << 20


class Revised(NamedTuple):
    """The label table that chunks and revisions make together.

    columns: names, and whether a revision has rows of each; None where there is no revision.
    ended: columns of the chunks that those have no say in any more.
    """

    table: pa.Table
    columns: tuple[tuple[str, bool], ...] | None
    ended: tuple[str, ...] = ()

    def folded(self, index: Ints | None) -> Revision | None:
        """One revision that says what all say; None for nothing. index: of each record, None where dense."""
        names = [name for name, is_revised in self.columns or () if is_revised]
        if not names:
            return Revision(pa.table({}), self.ended) if self.ended else None
        is_per_sample = index is None or self.table.num_rows != len(index)
        return Revision(self.table.select(names), self.ended, None if is_per_sample else index)


class _Layer(NamedTuple):
    """Values of a column, and where in the table they go. seq: of their entry; an array has one of each."""

    seq: Any
    values: pa.ChunkedArray
    rows: Any


def revised(
    labels: pa.Table,
    index: Ints | None,
    written: Ints,
    revisions: Sequence[tuple[int, Revision]],
    length: int,
    where: str,
) -> Revised:
    """Apply revisions to the labels that the chunks have (spec.py section 3).

    index: the sample of each record, rising; None where dense. written: the sequence number of each record's
    chunk. revisions: (sequence number of its entry, revision). length: samples of the dataset. Raises
    LabelError, where no writer has published.
    Memory: of a column that is put together its bytes twice and 8 bytes a row; others are not copied.
    """
    if not revisions:
        return Revised(labels, None)
    kept = list(labels.column_names)
    stored: dict[str, list[_Layer]] = {}
    for seq, revision in revisions:
        for name in revision.dropped:
            stored.pop(name, None)
            kept = [other for other in kept if other != name]
        samples = revision.index
        for name, values in zip(revision.labels.column_names, revision.labels.columns, strict=True):
            count = min(len(values), length) if samples is None else int(np.searchsorted(samples, length))
            layer = _Layer(seq, values.slice(0, count), None if samples is None else samples[:count])
            stored.setdefault(name, []).append(layer)
    records: Ints | slice = slice(0, len(written))
    if index is not None and _labels_absent(index, [one for each in stored.values() for one in each], length):
        records, index = index, None
    count = length if index is None else len(written)
    names = list(dict.fromkeys([*kept, *stored]))
    columns = []
    for name in names:
        layers = [_Layer(written, labels.column(name), records)] if name in kept else []
        layers += [_placed(layer, index) for layer in stored.get(name, [])]
        columns.append(_column(name, layers, count, where))
    ended = tuple(name for name in labels.column_names if name not in kept)
    return Revised(pa.table(columns, names=names), tuple((name, name in stored) for name in names), ended)


def _labels_absent(index: Ints, stored: Sequence[_Layer], length: int) -> bool:
    """True if samples without a record have labels, and a row per sample is within reason."""

    stored = [layer for layer in stored if not pa.types.is_null(layer.values.type)]
    if all(len(_matched(layer, index)[1]) == len(layer.values) for layer in stored):
        return False
    return length <= max(_FEW, 2 * (len(index) + max(len(layer.values) for layer in stored)))


def _matched(layer: _Layer, index: Ints) -> tuple[Any, Ints]:
    """The rows that a layer has values for, and which values. index: the sample of each row."""
    if layer.rows is None:
        own = index[: np.searchsorted(index, len(layer.values))]
        return slice(0, len(own)), own
    rows = np.searchsorted(index, layer.rows)
    own = np.flatnonzero(rows < len(index))
    own = own[index[rows[own]] == layer.rows[own]]
    return rows[own], own


def _placed(layer: _Layer, index: Ints | None) -> _Layer:
    """The layer with the rows of its samples. index: the sample of each row; None where row i is sample i."""
    seq, values, samples = layer
    if index is None:
        return _Layer(seq, values, slice(0, len(values)) if samples is None else samples)
    rows, own = _matched(layer, index)
    if pa.types.is_null(values.type):  # of any length, as they take no bytes
        return _Layer(seq, pa.chunked_array([pa.nulls(len(own))]), rows)
    return _Layer(seq, values.take(from_numpy(own, pa.int64())), rows)


def _column(name: str, layers: Sequence[_Layer], count: int, where: str) -> pa.ChunkedArray | pa.Array:
    """One column of `count` rows: of each the newest value."""
    parts, last = [layer.values for layer in layers], layers[-1]
    if isinstance(last.rows, slice) and len(last.values) == count:
        is_newest = len(layers) == 1 or np.max(layers[0].seq, initial=-1) < last.seq
        if is_newest and (len(layers) == 1 or last.values.type == column_type(name, parts, where)):
            return last.values
    pick, written = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    start = 0
    for layer in layers:
        own = np.arange(start, start + len(layer.values))
        pick[layer.rows] = np.where(written[layer.rows] > layer.seq, pick[layer.rows], own)
        written[layer.rows] = np.maximum(written[layer.rows], layer.seq)
        start += len(own)
    return unify_column(name, parts, where).take(from_numpy(pick, pa.int64(), pick < 0))


class RevisionTypes(NamedTuple):
    """The types of a revision's columns, and the columns that it drops."""

    columns: LabelTypes
    dropped: tuple[str, ...]

    @classmethod
    def of(cls, revision: Revision) -> RevisionTypes:
        """The types of one revision."""
        return cls(LabelTypes.of(revision.labels), tuple(revision.dropped))


def check_types(chunks: LabelTypes | None, revisions: Sequence[RevisionTypes], where: str) -> None:
    """Refuse labels that `revised` could not put together: LabelError."""
    types = {} if chunks is None else dict(chunks.types)
    for revision in revisions:
        for name in revision.dropped:
            types.pop(name, None)
        for name, new in revision.columns.types.items():
            old = types.get(name, no_type())
            try:
                types[name] = old.joined(new)
            except Clash as clash:
                raise LabelError(
                    f'{where}: label "{name}" is {old.arrow} in the archive and {new.arrow} in labels that '
                    f'were added{clash}; add them under another name, or drop_labels("{name}") first'
                ) from None


def settled(
    revision: Revision, columns: Sequence[str], before: Sequence[RevisionTypes], length: int
) -> Revision:
    """The same revision, as it is published behind others.

    It drops no column that is not there; and where it has a row for every sample of a column that no chunk
    has a say in, it ends what was said of that column before, which may be of another type.
    """
    kept, others = set(columns), set[str]()
    for earlier in before:
        kept -= set(earlier.dropped)
        others = (others - set(earlier.dropped)) | (earlier.columns.types.keys() - kept)
    dropped = [name for name in revision.dropped if name in kept | others]
    if revision.index is None and revision.end_index >= length:
        dropped += [n for n in revision.labels.column_names if n in others and n not in dropped]
    return replace(revision, dropped=dropped)
