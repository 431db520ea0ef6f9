"""Samples of archives for a new one: whole archives for merge, parts of one for split."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from edcache import format
from edcache.base import LengthError, OptionError
from edcache.format import (
    MAX_SCHEMAS,
    Contents,
    Head,
    Revision,
    labelled_columns,
    labelled_rows,
    stacked,
    take_rows,
)
from edcache.storage import ByteSource, located
from edcache.tools.rewrite import Ints, Progress, Selection, intact_dictionaries, rewriting
from edcache.tools.survey import sound_survey

_NO_COLUMN: Final = object()


@dataclass(frozen=True)
class Piece:
    """An archive that `split` made.

    path: of it. samples: those with a record. length: of the dataset, with those that have none. nbytes: of
    the file. value: of the label that it was split by.
    """

    path: str
    samples: int
    length: int
    nbytes: int
    value: Any = None


class Source:
    """One archive as it was when it was surveyed; what others append meanwhile is left out.

    Attributes:
        file, head: of it. table: the index, of its records and what goes with them. index: the sample of each
            record. labels: its label table, revisions included. absent: the samples without a record that
            have labels. length: samples of its dataset.
    """

    def __init__(self, file: ByteSource, allow_partial: bool) -> None:
        survey, contents, revised = sound_survey(file, allow_partial)
        self.file, self.head = file, survey.head
        self.table, self.labels = contents.index, revised.table
        self.length = self.table.length
        index = self.table.records.index
        self.index: Ints = np.arange(len(self.table.records.offset)) if index is None else np.asarray(index)
        # Where samples without a record were labelled the label table has a row for every sample.
        self.has_row_per_sample = self.labels.num_rows != len(self.index)
        absent = labelled_rows(self.labels) if self.has_row_per_sample else np.empty(0, np.int64)
        self.absent = absent[~np.isin(absent, self.index)]
        self._revised = {name for name, is_revised in revised.columns or () if is_revised}

    def field_of(self, name: str) -> Any:
        """The field that a label column holds; None where its values may be others."""
        return None if name in self._revised else dict(self.head.labels).get(name, _NO_COLUMN)


@contextmanager
def opened(paths: Sequence[str], allow_partial: bool) -> Iterator[list[Source]]:
    """Survey archives, wherever they are, and keep them open.

    Raises: as `sound_survey`.
    """
    with ExitStack() as stack:
        files = (stack.enter_context(closing(located(path).open())) for path in paths)
        yield [Source(file, allow_partial) for file in files]


class Share:
    """Samples of one archive, which rise, one after the other in a new one.

    Attributes:
        source: the archive. length: how many samples. rows: of the records of those that have one, int64;
            places: which of the share's samples these are. absent, absent_places: the same of samples without
            a record that have labels, as rows of the label table. failures: of samples without a record, with
            their places.
    """

    def __init__(self, source: Source, samples: range | Ints) -> None:
        self.source, self.length = source, len(samples)
        self.rows, self.places = _within(source.index, samples)
        at, self.absent_places = _within(source.absent, samples)
        self.absent = source.absent[at]
        failures = source.table.failures
        failed, places = _within(np.array([failure.index for failure in failures], np.int64), samples)
        self.failures = [
            replace(failures[k], index=place)
            for k, place in zip(failed.tolist(), places.tolist(), strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of its records."""
        return int(self.source.table.records.nbytes[self.rows].sum())

    def labels(self) -> Any:
        """The label table of its records: a row each."""
        rows = self.source.index[self.rows] if self.source.has_row_per_sample else self.rows
        return take_rows(self.source.labels, rows)

    def selection(self, first: int, labels: Any) -> Selection:
        """Its records, for an archive in which its samples begin at `first`."""
        table = self.source.table
        records = replace(table.records.take(self.rows), index=self.places + first)
        contents = Contents(table._replace(records=records), labels)
        return Selection(self.source.file, contents, self.source.index[self.rows])


def _within(rising: Ints, samples: range | Ints) -> tuple[Ints, Ints]:
    """Which of some rising indices are among samples, and the places that they have there."""
    if isinstance(samples, range):
        low, high = np.searchsorted(rising, [samples.start, samples.stop]).tolist()
        return np.arange(low, high), rising[low:high] - samples.start
    places = np.searchsorted(samples, rising)
    rows = np.flatnonzero(places < len(samples))
    rows = rows[samples[places[rows]] == rising[rows]]
    return rows, places[rows]


def join(target: str, shares: Sequence[Share], progress: Progress, asked_by: str) -> Piece:
    """Write a sealed archive of the samples of some shares, one after the other; nothing may be at the path.

    Raises:
        OptionError, LengthError: as `joined_head`. LabelTypeError: label columns that make none together.
        CorruptRecordError: a record fails its crc32.
        ArchiveExistsError, ArchiveLockedError, StorageError; then there is no new archive.
    """
    firsts = np.cumsum([0, *(share.length for share in shares)]).tolist()
    length = firsts.pop()
    labels, revision = _joined_labels(shares, firsts, asked_by)
    sources = list(dict.fromkeys(share.source for share in shares))
    head = joined_head(sources, labels[0].column_names, length, asked_by)
    failures = [
        replace(failure, index=failure.index + first)
        for share, first in zip(shares, firsts, strict=True)
        for failure in share.failures
    ]
    with rewriting(target, head, sources[0].file, progress) as new:
        for share, first, rows in zip(shares, firsts, labels, strict=True):
            new.copy(share.selection(first, rows))
        new.publish(failures=failures, revision=revision)
    return Piece(target, sum(len(share.rows) for share in shares), length, new.nbytes)


def _joined_labels(
    shares: Sequence[Share], firsts: Sequence[int], asked_by: str
) -> tuple[list[Any], Revision | None]:
    """The label tables of some shares as one: of the records of each, and of all samples without one."""
    counts = [len(share.rows) for share in shares] + [len(share.absent) for share in shares]
    tables = [share.labels() for share in shares]
    tables += [take_rows(share.source.labels, share.absent) for share in shares]
    table = stacked(tables, counts, asked_by)
    starts = np.cumsum([0, *counts]).tolist()
    labels = [table.slice(starts[k], counts[k]) for k in range(len(shares))]
    absent = labelled_columns(table.slice(starts[len(shares)]))
    places = [share.absent_places + first for share, first in zip(shares, firsts, strict=True)]
    return labels, Revision(absent, (), np.concatenate(places)) if absent.num_columns else None


def joined_head(sources: Sequence[Source], names: Sequence[str], length: int, asked_by: str) -> Head:
    """The head of an archive of samples of these.

    Its compression is that of the first that compresses; of a label column it knows the field only if that is
    the same in all of them. It has no fingerprint: no call makes these samples.

    Raises:
        OptionError: their codecs differ, or they have too many schemas. LengthError: too many samples.
    """
    first = sources[0]
    for other in sources:
        if other.head.codec != first.head.codec:
            raise OptionError(
                f'{asked_by}: {first.file.path} is of codec="{first.head.codec}", {other.file.path} of '
                f'codec="{other.head.codec}"; what reads one would refuse the other, so keep them apart, or '
                "open them together: CachedDataset.from_cache([...])"
            )
    schemas = {text for source in sources for text in source.table.schemas}
    if len(schemas) > MAX_SCHEMAS:
        raise OptionError(
            f"{asked_by}: {len(schemas):,} structures of samples together, an archive holds {MAX_SCHEMAS:,}"
        )
    if length > format.MAX_LENGTH:
        raise LengthError(f"{asked_by}: {length:,} samples together, an archive holds {format.MAX_LENGTH:,}")
    compressions = (source.head.compression for source in sources)
    return Head(
        uuid=uuid.uuid4().bytes,
        length=length,
        codec=first.head.codec,
        compression=next((text for text in compressions if text is not None), None),
        labels=tuple((name, _common_field(sources, name)) for name in names),
        claim_size=first.head.claim_size,
    )


def _common_field(sources: Sequence[Source], name: str) -> Any:
    first, *others = (source.field_of(name) for source in sources)
    return None if first is _NO_COLUMN or any(other != first for other in others) else first


def check_dictionaries(sources: Sequence[Source], asked_by: str) -> None:
    """Refuse different compression dictionaries of one id: a record says by its id which it needs."""
    known: dict[bytes, tuple[bytes, str]] = {}
    for source in sources:
        for data in intact_dictionaries(source.file, source.table.dictionaries):
            other, path = known.setdefault(data[:8], (data, source.file.path))
            if other != data:
                number = int.from_bytes(data[4:8], "little")
                raise OptionError(
                    f"{asked_by}: {path} and {source.file.path} have different compression dictionaries of "
                    f"one id, {number}; write one of them anew from its samples"
                )
