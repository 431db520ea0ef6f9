"""One archive copied into several: of a size, of a number, or one for each value of a label."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from edcache import base, format, storage
from edcache.base import EdcacheError, OptionError, human_bytes, parsed_bytes
from edcache.dataset import Path
from edcache.format import (
    ChunkTable,
    IndexTable,
    LabelTypes,
    pack_chunk_table,
    pack_index,
    pack_labels,
    spread,
)
from edcache.labels import Labels, classes
from edcache.reader import OnProgress
from edcache.storage import local_path
from edcache.tools.merge import Piece, Share, Source, join, joined_head, opened
from edcache.tools.rewrite import CHUNK_NBYTES, Ints, Progress, check_free

_ASKED_BY: Final = "split()"
_DIGITS: Final = 5
_MOST_NAMED: Final = 60
_UNSAFE: Final = re.compile(r"[^\w.=+-]+", re.ASCII)
# What Arrow adds to the bytes of a column: three buffers that are padded, and its name and type.
_COLUMN_NBYTES: Final = 3 * 64
# A header, its name in the zip directory with sizes of 64 bits, and its place in the index.
_ENTRY_NBYTES: Final = format.MAX_HEADER_NBYTES + 256
_ROW_NBYTES: Final = 6 * 8


def split(
    path: Path,
    folder: Path,
    *,
    max_size: int | str | None = None,
    parts: int | None = None,
    by: str | None = None,
    on_progress: OnProgress | None = None,
    allow_partial: bool = False,
) -> list[Piece]:
    """Copy the samples of an archive into several new ones, each valid alone, and seal them.

    Their names are that of the archive with a number behind it, train-00000.zip, so that they sort in order,
    and `CachedDataset.from_cache(folder)` is the original; with `by` it has the samples value by value.
    Records are copied as they are stored, each checked by its crc32. Labels, missing samples and failures go
    with their samples.

    Args:
        folder: where the archives go; it is made, and none of them may be there.
        max_size: the most bytes that each file has, or text such as "2GB".
        parts: so many archives of consecutive samples, as many in each, or one more.
        by: a label column: one archive for each of its values, in the order of their first samples, with the
            value in its name: train-00000-cat.zip. A missing value is a value.
        allow_partial: take what there is of an archive that is not sealed.
    Returns:
        What was made, in order.
    Raises:
        OptionError: none or two of max_size, parts and by; 'split(): sample 17 alone takes an archive of up
            to 3.1 MB, max_size is 1.0 MB; allow more'.
        UnknownLabelError, LabelTypeError: `by` is no column of single values.
        PartialArchiveError: the archive is not sealed, so that samples may be missing.
        CorruptArchiveError: the archive is damaged; the text has the first problem.
        ArchiveNotFoundError, ArchiveExistsError, StorageError. After any error none of the new ones is there.
    Cost: reads and writes every record once; some 100 bytes of memory a sample, and all labels.
    Safety: as `merge`; each new archive gets its name when it is whole and on the disk. Killed, it leaves
        those that were finished, which are sound.

    >>> edcache.split("cache/train.zip", "parts", max_size="2GB")
    """
    _check_asked(max_size, parts, by)
    where = local_path(folder)
    with opened([os.fspath(path)], allow_partial) as (source,):
        whole = Share(source, range(source.length))
        cuts: list[tuple[Any, range | Ints]]
        if by is not None:
            cuts = list(_by_value(source, by))
        elif parts is not None:
            cuts = [(None, samples) for samples in _equal(source, parts)]
        else:
            cuts = [(None, samples) for samples in _Sizes(whole).cut(_bytes_of(max_size))]
        values = [value for value, _ in cuts]
        stem = os.path.splitext(os.path.basename(source.file.path))[0]
        targets = _names(os.path.join(where, stem), values, by is not None)
        for target in targets:
            check_free(target)
        shares = (Share(source, samples) for _, samples in cuts)
        pieces = _joined(zip(targets, shares, strict=True), Progress(on_progress, whole.nbytes))
    return [replace(piece, value=value) for piece, value in zip(pieces, values, strict=True)]


def _check_asked(max_size: int | str | None, parts: int | None, by: str | None) -> None:
    if sum(option is not None for option in (max_size, parts, by)) != 1:
        raise OptionError('split() takes one of max_size="2GB", parts=10 and by="label"')
    if parts is not None and (type(parts) is not int or parts < 1):
        raise OptionError(f"split(): parts={parts!r}; give a number of archives, 1 or more")


def _bytes_of(max_size: object) -> int:
    nbytes = parsed_bytes(max_size)
    if nbytes is None:
        raise OptionError(f'split(): max_size={max_size!r}; give bytes, or text such as "2GB"')
    return nbytes


def _joined(shares: Iterable[tuple[str, Share]], progress: Progress) -> list[Piece]:
    pieces: list[Piece] = []
    try:
        for target, share in shares:
            pieces.append(join(target, [share], progress, _ASKED_BY))
    except BaseException:
        for piece in pieces:
            # The error that led here is the one to report.
            with suppress(EdcacheError):
                storage.remove(piece.path)
        raise
    return pieces


def _names(stem: str, values: Sequence[Any], has_values: bool) -> list[str]:
    digits = max(_DIGITS, len(str(len(values) - 1)))
    return [
        f"{stem}-{k:0{digits}}{'-' + _in_a_name(value) if has_values else ''}.zip"
        for k, value in enumerate(values)
    ]


def _in_a_name(value: Any) -> str:
    return "none" if value is None else _UNSAFE.sub("_", str(value))[:_MOST_NAMED]


# ------------------------------------------------------------------------------------ which samples


def _equal(source: Source, parts: int) -> Iterator[range]:
    length = source.length
    if parts > max(length, 1):
        raise OptionError(f"split(): parts={parts:,}, the archive has {length:,} samples; ask for fewer")
    return (range(length * k // parts, length * (k + 1) // parts) for k in range(parts))


def _by_value(source: Source, name: str) -> Iterator[tuple[Any, range | Ints]]:
    length, file = source.length, source.file
    base.justify(48 * length, file.size(), file.path, f"{length:,} samples")
    labels = Labels(lambda: spread(source.labels, source.index, length), num_rows=length)
    values = classes(labels, name, "split")
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
        low, high = min(first + 1, count), count
        if self._nbytes(first, low, start) > most:
            what = f"sample {int(self._share.places[first])} alone" if count else "no sample at all"
            size = human_bytes(self._nbytes(first, low, start))
            raise OptionError(
                f"split(): {what} takes an archive of up to {size}, max_size is {human_bytes(most)}; "
                "allow more"
            )
        while low < high:
            middle = (low + high + 1) // 2
            if self._nbytes(first, middle, start) <= most:
                low = middle
            else:
                high = middle - 1
        return low

    def _nbytes(self, first: int, last: int, start: int) -> int:
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
        source, none = self._source, np.empty(0, np.int64)
        index, empty = source.table, source.labels.slice(0, 0)
        types = LabelTypes.of(empty)
        columns = _COLUMN_NBYTES * (empty.num_columns + _ROW_NBYTES // 8)
        table = ChunkTable(index.records.take(none), empty, list(index.schemas), types, 0)
        chunk = len(pack_chunk_table(table)) + columns + format.PAGE + 64 + _ENTRY_NBYTES
        bare = IndexTable(
            table.records, index.length, index.schemas, index.dictionaries, index.blocks[:0], []
        )
        head = joined_head([source], empty.column_names, source.length, _ASKED_BY)
        fixed = (
            len(format.pack_head(head)) + len(pack_index(bare)) + 2 * len(pack_labels(empty)) + 3 * columns
        )
        fixed += sum(format.align(entry.nbytes, format.PAGE) + _ENTRY_NBYTES for entry in index.dictionaries)
        # The seal's two entries; an amendment and a revision, each with what fills its page; the zip's end.
        return fixed + 4 * (_ENTRY_NBYTES + format.PAGE) + format.END_NBYTES, chunk + 32 * empty.num_columns
