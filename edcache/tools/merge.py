"""Samples of several archives in a new one: whole archives for merge, parts of one for split."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edcache import base, format
from edcache.base import Ints, LengthError, OptionError
from edcache.dataset import Path, expand_paths
from edcache.format import Contents, Head, Revision
from edcache.reader import OnProgress
from edcache.storage import ByteSource, local_path, located
from edcache.tools.rewrite import RecordSelection, RewriteProgress, check_free, intact_dictionaries, rewriting
from edcache.tools.verify import sound_survey


@dataclass(frozen=True)
class MergeReport(base.Tabular):
    """What `merge` did.

    path: the new archive. archives: how many went into it. samples: those with a record. length: of the
    dataset, with those that have none. nbytes: of the file.
    """

    path: str
    archives: int
    samples: int
    length: int
    nbytes: int


@dataclass(frozen=True)
class SplitArchive:
    """An archive that `split` made.

    path: of it. samples, length, nbytes: as of `MergeReport`. value: of the label that it was split by.
    """

    path: str
    samples: int
    length: int
    nbytes: int
    value: Any = None


def merge(
    paths: Path | Iterable[Path],
    target: str | os.PathLike[str],
    on_progress: OnProgress | None = None,
    *,
    allow_partial: bool = False,
) -> MergeReport:
    """Copy the samples of several archives into a new archive, one archive after the other, and seal it.

    The new archive has the samples and labels of `edcache.concat`. Missing samples stay missing, and failures
    and added labels are kept. The records are copied without decoding them, and the crc32 of each is checked.
    If one archive is compressed, the records of the others are compressed too. A label column that an archive
    does not have is null for its samples. The new archive has a new uuid and no fingerprint, so
    `CachedDataset(source, path)` compares none.

    Args:
        paths: a list, a glob or a folder, as `CachedDataset.from_cache` takes them; URLs too.
        target: the path of the new archive, which must not exist. Until it is on the disk, the new archive is
            `target + ".edcache.new"`.
        on_progress: a function that is called with (bytes of records copied, bytes of records) now and then.
        allow_partial: True accepts archives that are not sealed, and copies the samples that they have.
    Returns:
        A report with the path, the number of archives and samples, and the size.
    Raises:
        PartialArchiveError: an archive is not sealed, so samples may be missing.
        OptionError: 'merge(): a.zip is of codec="native", b.zip of codec="pickle"; ...'; compression
            dictionaries that contradict each other.
        LabelTypeError: 'merge(): label "y" is int64 in one dataset and string in another; ...'.
        CorruptArchiveError: an archive is damaged; the message has the first problem.
        ArchiveNotFoundError, ArchiveExistsError, ArchiveLockedError, StorageError.
        After any error there is no new archive, and the others are unchanged.
    Cost: reads and writes every record once. It takes about 100 bytes of memory per sample, and all labels.
    Safety: samples that others append after the start are not copied. After a kill there is no file at the
        target. The next run replaces a `.edcache.new` that was left.

    >>> edcache.merge("cache/part-*.zip", "cache/train.zip")
    """
    named = expand_paths(paths)
    if named is None:
        assert isinstance(paths, str | bytes | os.PathLike)
        named = [os.fsdecode(paths)]
    destination = local_path(target)
    check_free(destination)
    with opened(named, allow_partial) as sources:
        _check_dictionaries(sources)
        shares = [Share(source, range(source.length)) for source in sources]
        progress = RewriteProgress(on_progress, sum(share.nbytes for share in shares))
        piece = join(destination, shares, progress)
    return MergeReport(piece.path, len(named), piece.samples, piece.length, piece.nbytes)


class MergeSource:
    """One archive as it was when it was surveyed; what others append meanwhile is left out.

    table: the index, of its records and what goes with them. index: the sample of each record. labels: its
    label table, revisions included. absent: the samples without a record that have labels.
    """

    def __init__(self, file: ByteSource, allow_partial: bool) -> None:
        survey = sound_survey(file, allow_partial)
        self.file, self.head = file, survey.head
        self.table, self.labels = survey.contents.index, survey.revised.table
        self.length = self.table.length
        self.index: Ints = self.table.records.samples
        # Where samples without a record were labelled the label table has a row for every sample.
        self.has_row_per_sample = self.labels.num_rows != len(self.index)
        absent = format.labelled_rows(self.labels) if self.has_row_per_sample else np.empty(0, np.int64)
        self.absent = absent[~np.isin(absent, self.index)]
        self._revised = {name for name, is_revised in survey.revised.columns or () if is_revised}

    def field_of(self, name: str) -> Any:
        """The field that a label column holds; None where it is not there, or its values may be others."""
        return None if name in self._revised else dict(self.head.labels).get(name)


@contextmanager
def opened(paths: Sequence[str], allow_partial: bool) -> Iterator[list[MergeSource]]:
    """Survey archives, wherever they are, and keep them open; raises as `sound_survey`."""
    with ExitStack() as stack:
        files = (stack.enter_context(closing(located(path).open())) for path in paths)
        yield [MergeSource(file, allow_partial) for file in files]


class Share:
    """Samples of one archive, which rise, one after the other in a new one.

    rows: of the records of those that have one; places: which of the share's samples these are. absent,
    absent_places: the same of samples without a record that have labels, as rows of the label table.
    """

    def __init__(self, source: MergeSource, samples: range | Ints) -> None:
        self.source, self.length = source, len(samples)
        self.rows, self.places = _within(source.index, samples)
        at, self.absent_places = _within(source.absent, samples)
        self.absent = source.absent[at]
        failures = source.table.failures
        at, places = _within(np.array([failure.index for failure in failures], np.int64), samples)
        pairs = zip(at.tolist(), places.tolist(), strict=True)
        self.failures = [replace(failures[row], index=place) for row, place in pairs]

    @property
    def nbytes(self) -> int:
        """Bytes of its records."""
        return int(self.source.table.records.nbytes[self.rows].sum())

    def labels(self) -> Any:
        """The label table of its records: a row each."""
        rows = self.source.index[self.rows] if self.source.has_row_per_sample else self.rows
        return format.take_rows(self.source.labels, rows)

    def selection(self, first: int, labels: Any) -> RecordSelection:
        """Its records, for an archive in which its samples begin at `first`."""
        table = self.source.table
        records = replace(table.records.take(self.rows), index=self.places + first)
        contents = Contents(table._replace(records=records), labels)
        return RecordSelection(self.source.file, contents, self.source.index[self.rows])


def _within(rising: Ints, samples: range | Ints) -> tuple[Ints, Ints]:
    """Which of some rising indices are among samples, and the places that they have there."""
    if isinstance(samples, range):
        low, high = np.searchsorted(rising, [samples.start, samples.stop]).tolist()
        return np.arange(low, high), rising[low:high] - samples.start
    _, rows, places = np.intersect1d(rising, samples, assume_unique=True, return_indices=True)
    return rows, places


def join(target: str, shares: Sequence[Share], progress: RewriteProgress) -> SplitArchive:
    """Write a sealed archive of the samples of some shares, one after the other, where nothing is."""
    firsts = np.cumsum([0, *(share.length for share in shares)]).tolist()
    length = firsts.pop()
    labels, revision = _joined_labels(shares, firsts)
    sources = list(dict.fromkeys(share.source for share in shares))
    head = joined_head(sources, labels[0].column_names, length)
    failures = [
        replace(failure, index=failure.index + first)
        for share, first in zip(shares, firsts, strict=True)
        for failure in share.failures
    ]
    with rewriting(target, head, sources[0].file, progress) as new:
        for share, first, rows in zip(shares, firsts, labels, strict=True):
            new.copy(share.selection(first, rows))
        new.publish(failures=failures, revision=revision)
    return SplitArchive(target, sum(len(share.rows) for share in shares), length, new.nbytes)


def _joined_labels(shares: Sequence[Share], firsts: Sequence[int]) -> tuple[list[Any], Revision | None]:
    """The label tables of some shares as one: of the records of each, and of all samples without one."""
    counts = [len(share.rows) for share in shares] + [len(share.absent) for share in shares]
    tables = [share.labels() for share in shares]
    tables += [format.take_rows(share.source.labels, share.absent) for share in shares]
    table = format.stacked(tables, counts, "merge()")
    starts = np.cumsum([0, *counts]).tolist()
    labels = [table.slice(starts[k], counts[k]) for k in range(len(shares))]
    absent = format.labelled_columns(table.slice(starts[len(shares)]))
    places = [share.absent_places + first for share, first in zip(shares, firsts, strict=True)]
    return labels, Revision(absent, (), np.concatenate(places)) if absent.num_columns else None


def joined_head(sources: Sequence[MergeSource], names: Sequence[str], length: int) -> Head:
    """The head of an archive of samples of these, which no call makes, so that it has no fingerprint.

    It compresses as the first that does; of a label column it knows the field if all have the same.
    """
    first = sources[0]
    for other in sources:
        if other.head.codec != first.head.codec:
            raise OptionError(
                f'merge(): {first.file.path} is of codec="{first.head.codec}", {other.file.path} of '
                f'codec="{other.head.codec}"; what reads one would refuse the other, so keep them apart, or '
                "open them together as one dataset"
            )
    schemas = {text for source in sources for text in source.table.schemas}
    if len(schemas) > format.MAX_SCHEMAS:
        raise OptionError(
            f"merge(): {len(schemas):,} structures of samples together, "
            f"an archive holds {format.MAX_SCHEMAS:,}"
        )
    if length > format.MAX_LENGTH:
        raise LengthError(f"merge(): {length:,} samples together, an archive holds {format.MAX_LENGTH:,}")

    def common_field(name: str) -> Any:
        field, *others = (source.field_of(name) for source in sources)
        return field if all(other == field for other in others) else None

    return Head(
        uuid=uuid.uuid4().bytes,
        length=length,
        codec=first.head.codec,
        compression=next(filter(None, (source.head.compression for source in sources)), None),
        labels=tuple((name, common_field(name)) for name in names),
        claim_size=first.head.claim_size,
    )


def _check_dictionaries(sources: Sequence[MergeSource]) -> None:
    """Refuse different compression dictionaries of one id: a record says by its id which it needs."""
    known: dict[bytes, tuple[bytes, str]] = {}
    for source in sources:
        for data in intact_dictionaries(source.file, source.table.dictionaries):
            other, path = known.setdefault(data[:8], (data, source.file.path))
            if other != data:
                number = int.from_bytes(data[4:8], "little")
                raise OptionError(
                    f"merge(): {path} and {source.file.path} have different compression dictionaries of "
                    f"one id, {number}; write one of them anew from its samples"
                )
