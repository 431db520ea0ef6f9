"""The label table of an archive whose columns were added or dropped after its samples were written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.errors import LabelTypeError
from edcache.labels.arrays import from_numpy
from edcache.labels.arrow import pa
from edcache.labels.columns import column_type, unify_column
from edcache.labels.tables import Revision, spread
from edcache.labels.types import Clash, LabelTypes, no_type

# A row for each of so many samples takes little, whatever they are; beyond, what is stored must justify it.
_FEW: Final = 1 << 20

Ints = npt.NDArray[np.int64]


class Placed(NamedTuple):
    """A revision and the sequence number of its entry."""

    seq: int
    revision: Revision


class Revised(NamedTuple):
    """The label table that chunks and revisions make together.

    table: rows as the records, or one per sample. columns: their names, and whether a revision has rows of
    each; None where there is no revision. ended: columns of the chunks that those have no say in any more.
    """

    table: pa.Table
    columns: tuple[tuple[str, bool], ...] | None
    ended: tuple[str, ...] = ()

    def folded(self, index: Ints | None) -> Revision | None:
        """One revision that says what all of them say; None where there is nothing to say.

        Args:
            index: the sample of each record; None where dense.
        """
        names = [name for name, is_revised in self.columns or () if is_revised]
        if not names and not self.ended:
            return None
        if not names:
            return label_revision({}, dropped=self.ended)
        is_per_sample = index is None or self.table.num_rows != len(index)
        return Revision(self.table.select(names), self.ended, None if is_per_sample else index)


class _Layer(NamedTuple):
    """The rows of a column in one revision, those behind the length left out. samples: of each row, as
    `Revision.index`."""

    seq: int
    values: pa.ChunkedArray
    samples: Ints | None


def revised(
    labels: pa.Table, index: Ints | None, written: Ints, revisions: Sequence[Placed], length: int, where: str
) -> Revised:
    """Apply revisions to the labels that the chunks have (format.py section 3).

    Args:
        labels: a row per record. index: int64, the sample of each, strictly rising; None where dense.
        written: int64, the sequence number of the chunk that each record is in.
        revisions: in chain order. length: samples of the dataset. where: what messages begin with.
    Returns:
        `labels` itself where there is no revision. A column that the last revision covers aliases it.
    Raises:
        LabelTypeError: columns that make no one type, which no writer publishes.
    Memory: of a column that is put together, its bytes twice and 8 bytes a row.
    """
    if not revisions:
        return Revised(labels, None)
    kept = list(labels.column_names)
    layers: dict[str, list[_Layer]] = {}
    for seq, revision in revisions:
        for name in revision.dropped:
            layers.pop(name, None)
            kept = [other for other in kept if other != name]
        for name in revision.labels.column_names:
            layers.setdefault(name, []).append(_layer(seq, revision, name, length))
    names = [*kept, *(name for name in layers if name not in kept)]
    places = _Places(index, written, length, [layer for of_one in layers.values() for layer in of_one])
    columns = [
        _column(name, labels.column(name) if name in kept else None, layers.get(name, []), places, where)
        for name in names
    ]
    ended = tuple(name for name in labels.column_names if name not in kept)
    return Revised(pa.table(columns, names=names), tuple((name, name in layers) for name in names), ended)


def _layer(seq: int, revision: Revision, name: str, length: int) -> _Layer:
    index, values = revision.index, revision.labels.column(name)
    count = min(len(values), length) if index is None else int(np.searchsorted(index, length))
    return _Layer(seq, values.slice(0, count), None if index is None else index[:count])


class _Places:
    """Where the rows of the table are.

    Attributes:
        count: rows. of_records: of each record, int64. written: as in `revised`.
    """

    def __init__(self, index: Ints | None, written: Ints, length: int, layers: Sequence[_Layer]) -> None:
        self.written = written
        self._index, self._length = index, length
        self._is_per_sample = index is None or self._labels_absent(index, layers)
        self.count = length if self._is_per_sample else len(written)
        self.of_records = np.arange(len(written)) if index is None or not self._is_per_sample else index

    def _labels_absent(self, index: Ints, layers: Sequence[_Layer]) -> bool:
        """Whether samples without a record have labels, and a row per sample is within reason."""
        stored = [layer for layer in layers if not pa.types.is_null(layer.values.type)]
        if not any(self._reaches_absent(index, layer) for layer in stored):
            return False
        return self._length <= max(_FEW, 2 * (len(index) + max(len(layer.values) for layer in stored)))

    def _reaches_absent(self, index: Ints, layer: _Layer) -> bool:
        if layer.samples is None:
            return int(np.searchsorted(index, len(layer.values))) < len(layer.values)
        return not np.isin(layer.samples, index, assume_unique=True).all()

    def of(self, layer: _Layer) -> tuple[Ints | slice, Ints | None]:
        """The rows of the table that a layer is for, and which of its own go there, None for all."""
        if self._is_per_sample:
            return slice(0, len(layer.values)) if layer.samples is None else layer.samples, None
        assert self._index is not None
        if layer.samples is None:
            count = int(np.searchsorted(self._index, len(layer.values)))
            return slice(0, count), self._index[:count]
        at = np.searchsorted(self._index, layer.samples)
        found = np.flatnonzero(at < len(self._index))
        found = found[self._index[at[found]] == layer.samples[found]]
        return at[found], found


def _column(
    name: str, told: pa.ChunkedArray | None, layers: Sequence[_Layer], places: _Places, where: str
) -> pa.ChunkedArray | pa.Array:
    """One column of the table. told: what the chunks say of it, None where that does not count."""
    if not layers:
        assert told is not None
        return _spread(told, places)
    rows, parts = [], []
    for layer in layers:
        for_rows, own = places.of(layer)
        rows.append(for_rows)
        parts.append(_taken(layer.values, own))
    known = [*([] if told is None else [told]), *parts]
    is_newest = told is None or not len(places.written) or int(places.written.max()) < layers[-1].seq
    covers = isinstance(rows[-1], slice) and len(parts[-1]) == places.count
    if is_newest and covers and parts[-1].type == column_type(name, known, where):
        return parts[-1]
    pick = _newest(None if told is None else len(told), layers, rows, [len(part) for part in parts], places)
    return unify_column(name, known, where).take(from_numpy(pick, pa.int64(), pick < 0))


def _newest(
    told: int | None,
    layers: Sequence[_Layer],
    rows: Sequence[Ints | slice],
    counts: Sequence[int],
    places: _Places,
) -> Ints:
    """For each row of the table the place of its newest value in all parts one after another, or -1."""
    pick = np.full(places.count, -1, np.int64)
    written = np.full(places.count, -1, np.int64)
    if told is not None:
        pick[places.of_records] = np.arange(told)
        written[places.of_records] = places.written
    start = told or 0
    for layer, for_rows, count in zip(layers, rows, counts, strict=True):
        own = np.arange(start, start + count)
        pick[for_rows] = np.where(written[for_rows] > layer.seq, pick[for_rows], own)
        start += count
    return pick


def _taken(values: pa.ChunkedArray, rows: Ints | None) -> pa.ChunkedArray:
    if rows is None:
        return values
    if pa.types.is_null(values.type):  # of any length, as they take no bytes
        return pa.chunked_array([pa.nulls(len(rows))])
    return values.take(from_numpy(rows, pa.int64()))


def _spread(told: pa.ChunkedArray, places: _Places) -> pa.ChunkedArray:
    if places.count == len(told):
        return told
    return spread(pa.table({"": told}), places.of_records, places.count).column(0)


def label_revision(
    columns: Mapping[str, pa.Array], index: Ints | None = None, dropped: Sequence[str] = ()
) -> Revision:
    """A revision of these columns, and without those dropped; index: as in `Revision`."""
    return Revision(pa.table(dict(columns)), dropped, index)


class RevisionTypes(NamedTuple):
    """The types of a revision's columns, and the columns that it drops."""

    columns: LabelTypes
    dropped: tuple[str, ...]

    @classmethod
    def of(cls, revision: Revision) -> RevisionTypes:
        """The types of one revision."""
        return cls(LabelTypes.of(revision.labels), tuple(revision.dropped))


def check_types(told: LabelTypes | None, revisions: Sequence[RevisionTypes], where: str) -> None:
    """Refuse labels that `revised` could not put together.

    Args:
        told: the types of the chunks' columns; None where there is no chunk.
        revisions: in chain order.
    Raises:
        LabelTypeError: 'train.zip: label "y" is int64 in the archive and string in labels that were added;
            ...'.
    """
    types = {} if told is None else dict(told.types)
    for revision in revisions:
        for name in revision.dropped:
            types.pop(name, None)
        for name, new in revision.columns.types.items():
            old = types.get(name, no_type())
            try:
                types[name] = old.with_type(new)
            except Clash as clash:
                raise LabelTypeError(
                    f'{where}: label "{name}" is {old.arrow} in the archive and {new.arrow} in labels that '
                    f'were added{clash}; add them under another name, or drop_labels("{name}") first'
                ) from None


def columns_of(told: Sequence[str], revisions: Sequence[RevisionTypes]) -> tuple[list[str], list[str]]:
    """The columns that chunks have a say in, of those that they have, and the columns of revisions alone."""
    kept, others = list(told), dict[str, None]()
    for revision in revisions:
        for name in revision.dropped:
            others.pop(name, None)
        kept = [name for name in kept if name not in revision.dropped]
        others |= dict.fromkeys(name for name in revision.columns.types if name not in kept)
    return kept, list(others)


def settled(
    revision: Revision, told: Sequence[str], before: Sequence[RevisionTypes], length: int
) -> Revision:
    """The same revision, as it is published behind others.

    It drops no column that is not there; and where it has a row for every sample of a column that no chunk
    has a say in, it ends what was said of that column before, which may be of another type.

    Args:
        told: the columns that chunks have. before: the revisions so far. length: samples of the dataset.
    """
    kept, others = columns_of(told, before)
    dropped = [name for name in revision.dropped if name in kept or name in others]
    if revision.index is None and revision.end_index >= length:
        names = revision.labels.column_names
        dropped += [name for name in names if name in others and name not in dropped]
    return replace(revision, dropped=dropped)
