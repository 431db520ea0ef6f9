"""Records as they are stored, into the chunks of a new archive: nothing is decoded or compressed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import durable, format, temporary
from edcache.codec import Compression
from edcache.contents import Contents
from edcache.durable import ByteSource
from edcache.errors import ArchiveExistsError, ArchiveNotFoundError, StorageError
from edcache.format import Head
from edcache.labels.arrays import take_rows
from edcache.labels.tables import Dictionary, IndexTable, Records
from edcache.writer import Appender, Chunk

CHUNK_NBYTES: Final = 4 << 20
# Records that lie no further apart are read by one call, unless it would read more than `_SPAN`.
_GAP: Final = 1 << 12
_SPAN: Final = 2 * CHUNK_NBYTES

Ints = npt.NDArray[np.int64]
OnDamage = Callable[[Ints, str], None]
"""`on_damage(rows, why)`: rows of the index table whose records are left out."""


class NewArchive:
    """An archive written beside the path that it is for, under `target + ".edcache.new"`, until `publish`.

    Leaving the block without that removes it.

    Args:
        like: what it gets its permissions from, where that is a file.
    Attributes:
        appender: writes into it. nbytes: of the file, once published.
    Raises:
        ArchiveLockedError: another process is writing the same file.
    """

    def __init__(self, target: str, head: Head, like: ByteSource) -> None:
        durable.check_outlives(target)
        self._target = target
        self._session = temporary.start(target)
        self._work = self._session.path
        self._is_published = False
        self.nbytes = 0
        try:
            if not like.by_request:
                durable.copy_permissions(like.path, self._work)
            self.appender = Appender.open(self._work, head, create=False)
        except BaseException:
            self._discard()
            raise

    def publish(self, *, replace: bool) -> None:
        """Seal it, bring it to the disk and give it its name in one step.

        Raises:
            ArchiveExistsError: something is at the target, and it is not to be replaced.
        """
        self.appender.seal()
        self.nbytes = self._session.size()
        check_free(self._target, replace)
        self.appender.move(self._target)
        self._is_published = True

    def __enter__(self) -> NewArchive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.appender.close()
        finally:
            if self._is_published:
                self._session.close()
            else:
                self._discard()

    def _discard(self) -> None:
        # The error that led here is the one to report; the next run empties what could not be removed.
        # Where its folder could not be synced, it has its new name already.
        try:
            with suppress(StorageError, ArchiveNotFoundError):
                durable.remove(self._work)
        finally:
            self._session.close()


def check_free(target: str, replace: bool = False) -> None:
    """Raise ArchiveExistsError where something is in the way of a new file."""
    if not replace and durable.exists(target):
        raise ArchiveExistsError(f"{target}: exists already; give a path where nothing is")


class Copier:
    """Copies records into a new archive, in the order of the rows that it is given.

    Args:
        source: where they are. out: the archive that they go to.
        on_nbytes: called with the bytes of the records that were read, a chunk at a time.
        on_damage: what becomes of records that fail their crc32, or are not accepted.

    Attributes:
        accepts: whether a record whose bytes are good can be read at all; None takes every one.
        compression: for the records of a source that does not compress, in an archive that does.
    """

    def __init__(
        self, source: ByteSource, out: Appender, on_nbytes: Callable[[int], object], on_damage: OnDamage
    ) -> None:
        self._source = source
        self._out = out
        self._on_nbytes = on_nbytes
        self._on_damage = on_damage
        self.accepts: Callable[[memoryview], bool] | None = None
        self.compression: Compression | None = None

    def copy(self, contents: Contents) -> None:
        """Append the records of a table, and their labels, as chunks of about 4 MiB."""
        index = contents.index.records.index
        if index is None:
            index = np.arange(len(contents.index.records.offset))
        for rows in chunk_rows(contents.index.records.nbytes):
            part = contents.index.records.take(rows)
            data = self._read(part)
            self._on_nbytes(int(part.nbytes.sum()))
            crcs = np.array([format.crc32(record) for record in data], np.uint32)
            good = self._left(rows, crcs == part.crc32, "fails its crc32")
            if self.accepts is not None:
                readable = np.fromiter(map(self.accepts, data), bool, len(data)) | ~good
                good &= self._left(rows, readable, "needs a dictionary that is damaged")
            if not good.all():
                rows, data = rows[good], [record for record, fits in zip(data, good, strict=True) if fits]
                part = part.take(np.flatnonzero(good))
            if len(rows):
                if self.compression is not None:
                    part, data = _compressed(part, data, self.compression)
                labels = take_rows(contents.labels, rows)
                self._out.append(_chunk(contents.index, part, index[rows], labels, data))

    def _left(self, rows: Ints, good: npt.NDArray[np.bool_], why: str) -> npt.NDArray[np.bool_]:
        if not good.all():
            self._on_damage(rows[~good], why)
        return good

    def copy_dictionaries(self, dictionaries: Iterable[Dictionary]) -> None:
        """Append compression dictionaries that the archive has not yet, but for those that are damaged."""
        known = set(self._out.dictionaries())
        for data in intact_dictionaries(self._source, dictionaries):
            if data not in known:
                known.add(data)
                self._out.append_dictionary(data)

    def _read(self, records: Records) -> list[memoryview]:
        """The bytes of each record; what lies close together is read at once."""
        start, nbytes = records.offset.astype(np.int64), records.nbytes.astype(np.int64)
        order = np.argsort(start, kind="stable")
        low, high = start[order], np.maximum.accumulate((start + nbytes)[order])
        breaks = (low[1:] > high[:-1] + _GAP) | (low[1:] // _SPAN != low[:-1] // _SPAN)
        found: list[memoryview] = []
        for run in np.split(order, np.flatnonzero(breaks) + 1):
            first = int(start[run[0]])
            data = memoryview(self._source.pread(first, int((start + nbytes)[run].max()) - first))
            begins, ends = (start[run] - first).tolist(), (start + nbytes)[run] - first
            found += [data[begin:end] for begin, end in zip(begins, ends.tolist(), strict=True)]
        if np.array_equal(order, np.arange(len(order))):
            return found
        return [found[place] for place in np.argsort(order).tolist()]


def _compressed(
    records: Records, data: Sequence[memoryview], compression: Compression
) -> tuple[Records, list[memoryview]]:
    frames = [memoryview(compression.compress(record)) for record in data]
    compressed = replace(
        records,
        nbytes=np.array([len(frame) for frame in frames], np.uint64),
        crc32=np.array([format.crc32(frame) for frame in frames], np.uint32),
        raw_nbytes=records.nbytes,
    )
    return compressed, frames


def intact_dictionaries(source: ByteSource, dictionaries: Iterable[Dictionary]) -> Iterator[bytes]:
    """The compression dictionaries that fit their crc32."""
    for entry in dictionaries:
        data = source.pread(entry.offset, entry.nbytes)
        if len(data) == entry.nbytes and format.crc32(data) == entry.crc32:
            yield data


def chunk_rows(nbytes: npt.NDArray[np.uint64]) -> Iterator[Ints]:
    """Consecutive rows that make a chunk each: one that reaches `CHUNK_NBYTES` is full.

    Args:
        nbytes: uint64 [n], of the records.
    """
    # Records of a few bytes take as much in the table.
    ends = np.cumsum(np.maximum(nbytes, 32).astype(np.int64))
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = min(int(np.searchsorted(ends, before + CHUNK_NBYTES)) + 1, len(ends))
        yield np.arange(first, last)
        first = last


def chunk_count(nbytes: npt.NDArray[np.uint64]) -> int:
    """How many chunks records of these sizes make."""
    return sum(1 for _ in chunk_rows(nbytes))


def _chunk(table: IndexTable, records: Records, index: Ints, labels: Any, data: list[memoryview]) -> Chunk:
    offsets, buffer = _laid_out(data)
    used, local = np.unique(records.schema, return_inverse=True)
    schemas = [table.schemas[number] for number in used.tolist()]
    moved = Records(
        offset=offsets.astype(np.uint64),
        nbytes=records.nbytes,
        crc32=records.crc32,
        schema=local.reshape(-1).astype(np.uint16),
        index=index,
        raw_nbytes=records.raw_nbytes,
    )
    return Chunk(moved, labels, schemas, buffer, format.block_crcs(buffer), False)


def _laid_out(data: list[memoryview]) -> tuple[Ints, memoryview]:
    """Records at their alignment, zeros between them: where each starts, and the bytes."""
    starts, end, is_dense = [], 0, True
    for length in map(len, data):
        start = format.align(end, format.record_alignment(length))
        is_dense = is_dense and start == end
        starts.append(start)
        end = start + length
    offsets = np.array(starts, np.int64)
    if is_dense:
        return offsets, memoryview(b"".join(data))
    buffer = np.zeros(end, np.uint8).data
    for start, record in zip(starts, data, strict=True):
        buffer[start : start + len(record)] = record
    return offsets, buffer
