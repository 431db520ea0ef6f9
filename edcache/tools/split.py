"""One archive copied into several: of a size, of a number, or one for each value of a label."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from edcache import base, format, storage
from edcache.base import EdcacheError, Ints, OptionError, check_count, human_bytes, parsed_bytes
from edcache.dataset import Path
from edcache.labels import Labels, classes_of, single_values
from edcache.reader import OnProgress
from edcache.storage import local_path
from edcache.tools.merge import MergeSource, Share, SplitArchive, join, joined_head, opened
from edcache.tools.rewrite import RewriteProgress, check_free
from edcache.writer import CHUNK_NBYTES

_DIGITS: Final = 5
_MOST_NAMED: Final = 60
_UNSAFE: Final = re.compile(r"[^\w.=+-]+", re.ASCII)
# What Arrow adds to the bytes of a column: three buffers that are padded, and its name and type.
_COLUMN_NBYTES: Final = 3 * 64
# A header, its name in the zip directory with sizes of 64 bits, and its place in the index.
_ENTRY_NBYTES: Final = format.MAX_HEADER_NBYTES + 256
_ROW_NBYTES: Final = 6 * 8

# The value of the label that a piece is for, and its samples.
_Cut = tuple[Any, range | Ints]


def split(
    path: Path,
    folder: Path,
    *,
    max_size: int | str | None = None,
    parts: int | None = None,
    by: str | None = None,
    on_progress: OnProgress | None = None,
    allow_partial: bool = False,
) -> list[SplitArchive]:
    """Copy the samples of an archive into several new archives, and seal them. Each is complete in itself.

    Their names are that of the archive and a number, train-00000.zip, so they sort in order.
    `CachedDataset.from_cache(folder)` has the same samples as the original; with `by`, they are ordered by
    the value. The crc32 of each record is checked. Labels, missing samples and failures are kept.

    Args:
        path: the archive.
        folder: the folder for the new archives. It is created if it does not exist.
        max_size: the largest size of a file, in bytes or as text such as "2GB".
        parts: the number of archives. Each has the same number of consecutive samples, or one more.
        by: a label column. Each of its values gets an archive, in order of first occurrence, with the value
            in its name: train-00000-cat.zip. A missing value is a value.
        on_progress: a function that is called with (bytes of records copied, bytes of records) now and then.
        allow_partial: True accepts an archive that is not sealed, and copies the samples that it has.
    Returns: a list that describes the new archives, in order.
    Raises:
        OptionError: none or two of max_size, parts and by are given; 'split(): sample 17 alone takes an
            archive of up to 3.1 MB, max_size is 1.0 MB; allow more'.
        UnknownLabelError, LabelTypeError: `by` is not a column of single values.
        PartialArchiveError: the archive is not sealed, so samples may be missing.
        CorruptArchiveError: the archive is damaged; the message has the first problem.
        ArchiveNotFoundError, ArchiveExistsError, StorageError. After any error there are no new archives.
    Cost: reads and writes every record once. It takes about 100 bytes of memory per sample, and all labels.
    Safety: as `merge`. After a kill, the archives that were finished are there, and are complete.

    >>> edcache.split("cache/train.zip", "parts", max_size="2GB")
    """
    where = local_path(folder)
    nbytes = _checked(max_size, parts, by)
    with opened([os.fspath(path)], allow_partial) as (source,):
        whole = Share(source, range(source.length))
        if parts is not None and parts > max(source.length, 1):
            has = f"parts={parts:,}, the archive has {source.length:,} samples"
            raise OptionError(f"split(): {has}; ask for fewer")
        if by is not None:
            cuts = list(_by_value(source, by))
        elif parts is not None:
            ends = [source.length * k // parts for k in range(parts + 1)]
            cuts = [(None, range(start, end)) for start, end in pairwise(ends)]
        else:
            cuts = [(None, samples) for samples in _Sizes(whole).cut(nbytes)]
        stem = os.path.splitext(os.path.basename(source.file.path))[0]
        digits = max(_DIGITS, len(str(len(cuts) - 1)))
        texts = ("none" if value is None else _UNSAFE.sub("_", str(value)) for value, _ in cuts)
        names = ["" if by is None else f"-{text[:_MOST_NAMED]}" for text in texts]
        targets = [os.path.join(where, f"{stem}-{k:0{digits}}{name}.zip") for k, name in enumerate(names)]
        for target in targets:
            check_free(target)
        return _written(source, targets, cuts, RewriteProgress(on_progress, whole.nbytes))


def _checked(max_size: int | str | None, parts: int | None, by: str | None) -> int:
    """The most bytes that an archive may have, where that is what it is split by."""
    if sum(option is not None for option in (max_size, parts, by)) != 1:
        raise OptionError('split() takes one of max_size="2GB", parts=10 and by="label"')
    if parts is not None:
        check_count("split(): parts", parts)
    nbytes = 0 if max_size is None else parsed_bytes(max_size)
    if nbytes is None:
        raise OptionError(f'split(): max_size={base.shown(max_size)}; give bytes, or text such as "2GB"')
    return nbytes


def _written(
    source: MergeSource, targets: list[str], cuts: list[_Cut], progress: RewriteProgress
) -> list[SplitArchive]:
    pieces: list[SplitArchive] = []
    try:
        for target, (value, samples) in zip(targets, cuts, strict=True):
            piece = join(target, [Share(source, samples)], progress)
            pieces.append(replace(piece, value=value))
    except BaseException:
        for piece in pieces:
            # The error that led here is the one to report.
            with suppress(EdcacheError):
                storage.remove(piece.path)
        raise
    return pieces


def _by_value(source: MergeSource, name: str) -> Iterator[_Cut]:
    length, file = source.length, source.file
    base.justify(48 * length, file.size(), file.path, f"{length:,} samples")
    labels = Labels(lambda: format.spread(source.labels, source.index, length), num_rows=length)
    values = classes_of(single_values(labels, name, "split"))
    for code, value in enumerate(values.values):
        yield value, np.flatnonzero(values.codes == code)


class _Sizes:
    """How large an archive of consecutive samples becomes, at the most."""

    def __init__(self, share: Share) -> None:
        self._share, self._source = share, share.source
        records = share.source.table.records
        nbytes = records.nbytes.astype(np.int64)
        padding = np.array([format.record_alignment(n) - 1 for n in nbytes.tolist()], np.int64)
        self._stored = np.concatenate(([0], np.cumsum(nbytes + padding)))
        self._counted = np.concatenate(([0], np.cumsum(np.maximum(nbytes, 32))))
        failures = [len(json.dumps(failure.to_json())) for failure in share.failures]
        self._failed = np.array([failure.index for failure in share.failures], np.int64)
        self._failed_nbytes = np.concatenate(([0], np.cumsum(failures, dtype=np.int64)))
        self._fixed, self._each_chunk = self._overheads()

    def cut(self, most: int) -> Iterator[range]:
        """Consecutive samples that make archives of at most so many bytes, as many in each as fit."""
        places, count = self._share.places, len(self._share.rows)
        first = start = 0
        while first < count or not start:
            last = self._last(first, start, most)
            stop = int(places[last]) if last < count else self._source.length
            yield range(start, stop)
            if last >= count:
                return
            first, start = last, stop

    def _last(self, first: int, start: int, most: int) -> int:
        """One past the last record that fits behind the first."""
        count = len(self._share.rows)
        least = min(first + 1, count)
        nbytes = partial(self._nbytes, first, start)
        if nbytes(least) > most:
            what = f"sample {int(self._share.places[first])} alone" if count else "no sample at all"
            raise OptionError(
                f"split(): {what} takes an archive of up to {human_bytes(nbytes(least))}, max_size is "
                f"{human_bytes(most)}; allow more"
            )
        return least + bisect_right(range(least + 1, count + 1), most, key=nbytes)

    def _nbytes(self, first: int, start: int, last: int) -> int:
        """At most so many bytes has an archive of these records, whose samples begin at `start`."""
        places, count = self._share.places, last - first
        stop = int(places[last]) if last < len(places) else self._source.length
        stored = int(self._stored[last] - self._stored[first])
        chunks = int(self._counted[last] - self._counted[first]) // CHUNK_NBYTES + 1
        low, high = np.searchsorted(self._failed, [start, stop]).tolist()
        failed = int(self._failed_nbytes[high] - self._failed_nbytes[low])
        blocks = 4 * (stored // format.BLOCK_NBYTES + chunks)
        rows = 2 * _ROW_NBYTES * count + self._label_nbytes(first, last, start, stop)
        return self._fixed + chunks * self._each_chunk + stored + blocks + rows + 2 * failed

    def _label_nbytes(self, first: int, last: int, start: int, stop: int) -> int:
        """Of the labels in chunks, in labels.arrow, and in a revision."""
        labels = self._source.labels
        if self._source.has_row_per_sample:
            return 3 * int(labels.slice(start, stop - start).nbytes)
        return 2 * int(labels.slice(first, last - first).nbytes)

    def _overheads(self) -> tuple[int, int]:
        """What an archive takes without records, and what each chunk takes besides."""
        index, empty = self._source.table, self._source.labels.slice(0, 0)
        none = index.records.take(np.empty(0, np.int64))
        columns = _COLUMN_NBYTES * (empty.num_columns + _ROW_NBYTES // 8)
        table = format.ChunkTable(none, empty, list(index.schemas), format.LabelTypes.of(empty), 0)
        chunk = len(format.pack_chunk_table(table)) + columns + format.PAGE + 64 + _ENTRY_NBYTES
        head = joined_head([self._source], empty.column_names, index.length)
        bare = index._replace(records=none, blocks=index.blocks[:0], failures=[], labels=None)
        batches = 1 + index.length // format.BATCH_ROWS
        labels = len(format.pack_labels(self._source.labels.slice(0, 1))[0])
        fixed = len(format.pack_head(head)) + len(format.pack_index(bare)[0]) + (1 + batches) * labels
        fixed += 3 * columns
        fixed += sum(format.align(entry.nbytes, format.PAGE) + _ENTRY_NBYTES for entry in index.dictionaries)
        # The seal's two entries; an amendment and a revision, each with what fills its page; the zip's end.
        return fixed + 4 * (_ENTRY_NBYTES + format.PAGE) + format.END_NBYTES, chunk + 32 * empty.num_columns
