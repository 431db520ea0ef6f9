"""The label table of an archive whose columns were added or dropped after its samples were written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edcache.base import LabelTypeError
from edcache.format.arrays import from_numpy
from edcache.format.arrow import pa
from edcache.format.tables import Revision
from edcache.format.types import Clash, LabelTypes, column_type, no_type, unify_column

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


class _Stored(NamedTuple):
    """A column of one revision, rows behind the length left out. samples: as `Revision.index`."""

    seq: int
    values: pa.ChunkedArray
    samples: Ints | None


class _Layer(NamedTuple):
    """Values of a column. rows: where in the table they go. seq: of their entry; an array has one of each."""

    seq: Any
    values: pa.ChunkedArray
    rows: Ints | slice


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
    stored: dict[str, list[_Stored]] = {}
    for seq, revision in revisions:
        for name in revision.dropped:
            stored.pop(name, None)
            kept = [other for other in kept if other != name]
        for name in revision.labels.column_names:
            samples, values = revision.index, revision.labels.column(name)
            count = min(len(values), length) if samples is None else int(np.searchsorted(samples, length))
            part = None if samples is None else samples[:count]
            stored.setdefault(name, []).append(_Stored(seq, values.slice(0, count), part))
    records: Ints | slice = slice(0, len(written))
    if index is not None and _labels_absent(
        index, [one for of_name in stored.values() for one in of_name], length
    ):
        records, index = index, None
    count = len(written) if index is not None else length
    names = [*kept, *(name for name in stored if name not in kept)]
    columns = []
    for name in names:
        layers = [_Layer(written, labels.column(name), records)] if name in kept else []
        layers += [_layer(one, index) for one in stored.get(name, [])]
        columns.append(_column(name, layers, count, where))
    ended = tuple(name for name in labels.column_names if name not in kept)
    return Revised(pa.table(columns, names=names), tuple((name, name in stored) for name in names), ended)


def _labels_absent(index: Ints, stored: Sequence[_Stored], length: int) -> bool:
    """Whether samples without a record have labels, and a row per sample is within reason."""
    stored = [one for one in stored if not pa.types.is_null(one.values.type)]
    if not any(_reaches_absent(index, one) for one in stored):
        return False
    return length <= max(_FEW, 2 * (len(index) + max(len(one.values) for one in stored)))


def _reaches_absent(index: Ints, stored: _Stored) -> bool:
    if stored.samples is None:
        return int(np.searchsorted(index, len(stored.values))) < len(stored.values)
    return not np.isin(stored.samples, index, assume_unique=True).all()


def _layer(stored: _Stored, index: Ints | None) -> _Layer:
    """Where in the table the values go. index: the sample of each row; None where row i is sample i."""
    seq, values, samples = stored
    rows: Ints | slice
    if index is None:
        return _Layer(seq, values, slice(0, len(values)) if samples is None else samples)
    if samples is None:
        rows = slice(0, int(np.searchsorted(index, len(values))))
        own = index[rows]
    else:
        rows = np.searchsorted(index, samples)
        own = np.flatnonzero(rows < len(index))
        own = own[index[rows[own]] == samples[own]]
        rows = rows[own]
    if pa.types.is_null(values.type):  # of any length, as they take no bytes
        return _Layer(seq, pa.chunked_array([pa.nulls(len(own))]), rows)
    return _Layer(seq, values.take(from_numpy(own, pa.int64())), rows)


def _column(name: str, layers: Sequence[_Layer], count: int, where: str) -> pa.ChunkedArray | pa.Array:
    """One column of `count` rows: of each the newest value."""
    parts, last = [layer.values for layer in layers], layers[-1]
    covers = isinstance(last.rows, slice) and len(last.values) == count
    if covers and (
        len(layers) == 1
        or (
            np.max(layers[0].seq, initial=-1) < last.seq
            and last.values.type == column_type(name, parts, where)
        )
    ):
        return last.values
    pick, written = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    start = 0
    for layer in layers:
        own = np.arange(start, start + len(layer.values))
        pick[layer.rows] = np.where(written[layer.rows] > layer.seq, pick[layer.rows], own)
        written[layer.rows] = np.maximum(written[layer.rows], layer.seq)
        start += len(own)
    return unify_column(name, parts, where).take(from_numpy(pick, pa.int64(), pick < 0))


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
