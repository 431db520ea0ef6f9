"""A new archive of samples of others, whose records are copied as they are stored; for merge and split."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from edcache import format
from edcache.codec import Compression
from edcache.contents import Contents
from edcache.digests import OnProgress
from edcache.durable import ByteSource, located
from edcache.errors import CorruptRecordError, LengthError, OptionError
from edcache.format import Head
from edcache.labels.arrays import take_rows
from edcache.labels.joining import labelled_columns, labelled_rows, stacked
from edcache.labels.tables import MAX_SCHEMAS, Failure, Revision
from edcache.maintain.copying import Copier, Ints, NewArchive, intact_dictionaries
from edcache.maintain.survey import Survey, sound_survey

_NO_COLUMN: Final = object()


class Source:
    """One archive as it was when it was surveyed; what others append meanwhile is left out.

    Attributes:
        file, head: of it. contents: its records, and its labels as the chunks have them. labels: its label
            table, revisions included. length: samples of its dataset.
    """

    def __init__(self, file: ByteSource, allow_partial: bool) -> None:
        survey: Survey = sound_survey(file, allow_partial)
        assert survey.contents is not None
        assert survey.revised is not None
        self.file, self.head = file, survey.head
        self.contents: Contents = survey.contents
        self.labels = survey.revised.table
        self.length = self.contents.index.length
        self._revised = {name for name, is_revised in survey.revised.columns or () if is_revised}

    @property
    def compresses(self) -> bool:
        """Whether its records are compressed."""
        return self.contents.index.records.raw_nbytes is not None

    @property
    def index(self) -> Ints | None:
        """The sample of each record; None where row i is sample i."""
        return self.contents.index.records.index

    def has_row_per_sample(self) -> bool:
        """Whether the label table has rows for samples without a record too."""
        return self.index is not None and self.labels.num_rows != len(self.index)

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


@dataclass(frozen=True)
class Share:
    """Samples of one archive in the order in which they go into a new one, one after the other.

    source: the archive. length: how many samples. rows: of the records of those that have one, int64;
    places: which of the share's samples these are. failures: of samples without a record, their indices in
    the share. absent: of samples without a record that have labels: rows of the label table, and places.
    """

    source: Source
    length: int
    rows: Ints
    places: Ints
    failures: Sequence[Failure]
    absent: tuple[Ints, Ints]

    @classmethod
    def whole(cls, source: Source) -> Share:
        """All samples of an archive."""
        index = source.index
        rows = np.arange(len(source.contents.index.records.offset))
        empty = np.empty(0, np.int64)
        absent = empty
        if index is not None and source.has_row_per_sample():
            absent = labelled_rows(source.labels)
            absent = absent[~np.isin(absent, index)]
        places = rows if index is None else np.asarray(index)
        return cls(source, source.length, rows, places, source.contents.index.failures, (absent, absent))

    def taken(self, samples: range | Ints) -> Share:
        """Some samples of a whole archive; those of an array rise."""
        rows, places = _within(self.places, samples)
        at, absent = _within(self.absent[1], samples)
        failed, failed_places = _within(np.array([f.index for f in self.failures], np.int64), samples)
        failures = [
            replace(self.failures[k], index=place)
            for k, place in zip(failed.tolist(), failed_places.tolist(), strict=True)
        ]
        absent_rows = self.absent[0][at]
        return Share(self.source, len(samples), self.rows[rows], places, failures, (absent_rows, absent))

    @property
    def nbytes(self) -> int:
        """Bytes of its records."""
        return int(self.source.contents.index.records.nbytes[self.rows].sum())

    def labels(self) -> Any:
        """The label table of its records: a row each."""
        source = self.source
        rows = (
            source.index[self.rows] if source.has_row_per_sample() and source.index is not None else self.rows
        )
        return take_rows(source.labels, rows)

    def absent_labels(self) -> Any:
        """The label table of its samples without a record that have labels."""
        return take_rows(self.source.labels, self.absent[0])


def _within(rising: Ints, samples: range | Ints) -> tuple[Ints, Ints]:
    """Which of some rising indices are among samples, and the places that they have there."""
    if isinstance(samples, range):
        low, high = np.searchsorted(rising, [samples.start, samples.stop]).tolist()
        return np.arange(low, high), rising[low:high] - samples.start
    places = np.searchsorted(samples, rising)
    found = np.flatnonzero(places < len(samples))
    found = found[samples[places[found]] == rising[found]]
    return found, places[found]


@dataclass(frozen=True)
class Assembled:
    """path: of a new archive. samples: those with a record. length: of the dataset. nbytes: of the file."""

    path: str
    samples: int
    length: int
    nbytes: int


class Progress:
    """Counts the bytes of records that were copied, over one or more archives."""

    def __init__(self, tell: OnProgress | None, total: int) -> None:
        self._tell, self._done, self._total = tell or (lambda done, total: None), 0, total
        self._tell(0, total)

    def advance(self, nbytes: int) -> None:
        """Some more bytes were read."""
        self._done += nbytes
        self._tell(self._done, self._total)


def joined_head(sources: Sequence[Source], names: Sequence[str], length: int, asked_by: str) -> Head:
    """The head of an archive of samples of these.

    Its compression is that of the first that compresses; of a label column it knows the field only if that is
    the same in all of them. It has no fingerprint: no call makes these samples.

    Raises:
        OptionError: their codecs differ, or they have too many schemas.
    """
    first = sources[0]
    for other in sources:
        if other.head.codec != first.head.codec:
            raise OptionError(
                f'{asked_by}: {first.file.path} is of codec="{first.head.codec}", {other.file.path} of '
                f'codec="{other.head.codec}"; what reads one would refuse the other, so keep them apart, or '
                "open them together: CachedDataset.from_cache([...])"
            )
    schemas = {text for source in sources for text in source.contents.index.schemas}
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
    fields = [source.field_of(name) for source in sources]
    return fields[0] if fields[0] is not _NO_COLUMN and all(f == fields[0] for f in fields) else None


def check_dictionaries(sources: Sequence[Source], asked_by: str) -> None:
    """Refuse different compression dictionaries of one id: a record says by its id which it needs."""
    known: dict[bytes, tuple[bytes, str]] = {}
    for source in sources:
        for data in intact_dictionaries(source.file, source.contents.index.dictionaries):
            other, path = known.setdefault(data[:8], (data, source.file.path))
            if other != data:
                number = int.from_bytes(data[4:8], "little")
                raise OptionError(
                    f"{asked_by}: {path} and {source.file.path} have different compression dictionaries of "
                    f"one id, {number}; write one of them anew from its samples"
                )


def assemble(
    target: str, shares: Sequence[Share], like: ByteSource, progress: Progress, asked_by: str
) -> Assembled:
    """Write a sealed archive of the samples of some shares, one after the other; nothing may be at the path.

    Args:
        like: what it gets its permissions from, where that is a file.
    Raises:
        CorruptRecordError: a record fails its crc32. LabelTypeError: label columns that make none together.
        ArchiveExistsError, ArchiveLockedError, StorageError; then there is no new archive.
    """
    sources = list(dict.fromkeys(share.source for share in shares))
    labels = _Labels(shares, asked_by)
    length = sum(share.length for share in shares)
    head = joined_head(sources, labels.names, length, asked_by)
    with NewArchive(target, head, like=like) as new:
        first = 0
        for number, share in enumerate(shares):
            _copy(share, first, labels.of_records(number), new, progress)
            first += share.length
        failures = _failures(shares)
        if failures:
            new.appender.amend(failed=[failure.to_json() for failure in failures])
        revision = labels.of_absent()
        if revision is not None:
            new.appender.revise(revision)
        new.publish(replace=False)
    return Assembled(target, sum(len(share.rows) for share in shares), length, new.nbytes)


def _copy(share: Share, first: int, labels: Any, new: NewArchive, progress: Progress) -> None:
    """Append the records of a share, whose samples begin at index `first` of the new archive."""
    source, index = share.source, share.source.contents.index
    records = replace(index.records.take(share.rows), index=share.places + first)

    def refuse(rows: Ints, why: str) -> None:
        row = int(share.rows[rows[0]])
        sample = row if source.index is None else int(source.index[row])
        path = source.file.path
        raise CorruptRecordError(
            f"{path}: record {sample} at offset {index.records.offset[row]:,} {why}; "
            f'run "edcache repair {path} -o NEW"'
        )

    copier = Copier(source.file, new.appender, progress.advance, refuse)
    if new.appender.head.compression is not None and not source.compresses:
        copier.compression = Compression.parse(new.appender.head.compression)
    copier.copy_dictionaries(index.dictionaries)
    copier.copy(Contents(index._replace(records=records), labels))


def _failures(shares: Sequence[Share]) -> list[Failure]:
    found, first = [], 0
    for share in shares:
        found += [replace(failure, index=failure.index + first) for failure in share.failures]
        first += share.length
    return found


class _Labels:
    """The label tables of some shares as one: of their records, then of samples without one."""

    def __init__(self, shares: Sequence[Share], asked_by: str) -> None:
        counts = [len(share.rows) for share in shares] + [len(share.absent[0]) for share in shares]
        tables = [share.labels() for share in shares] + [share.absent_labels() for share in shares]
        self._table = stacked(tables, counts, asked_by)
        self._starts = np.cumsum([0, *counts]).tolist()
        self._shares = shares
        self.names = list(self._table.column_names)

    def of_records(self, number: int) -> Any:
        """A row for each record of a share."""
        start, end = self._starts[number : number + 2]
        return self._table.slice(start, end - start)

    def of_absent(self) -> Revision | None:
        """What there is to say of samples without a record."""
        places, first = [], 0
        for share in self._shares:
            places.append(share.absent[1] + first)
            first += share.length
        start = self._starts[len(self._shares)]
        table = labelled_columns(self._table.slice(start))
        return Revision(table, (), np.concatenate(places)) if table.num_columns else None
