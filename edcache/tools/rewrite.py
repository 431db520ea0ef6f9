"""A new archive of records of others: compact, merge, split and repair, which differ in what they select.

Records go as they are stored, each compared with its crc32; nothing is decoded, and compressed is only what
goes from an archive that does not compress into one that does. The new one is written beside its path, under
`target + ".edcache.new"`, and gets its name in one step when it is sealed and on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edcache import format, storage, writer
from edcache.base import ArchiveExistsError, CorruptRecordError, Ints
from edcache.codec import Compression
from edcache.format import Contents, Head, Records, Revision
from edcache.reader import OnProgress
from edcache.storage import ByteSource, File
from edcache.writer import CHUNK_NBYTES, Appender, Chunk

OnDamage = Callable[[Ints, str], object]
"""`on_damage(rows, why)`: rows of the selection whose records are left out."""


class RecordSelection(NamedTuple):
    """Records of one archive, in the order in which they go into a new one.

    contents: where they lie, the sample of the new archive that each is, their labels row by row, and the
    dictionaries that they may need. samples: what each is in its own archive, where that is not the same.
    """

    file: ByteSource
    contents: Contents
    samples: Ints | None = None


class RewriteProgress:
    """Counts the bytes of records that were copied, into one or more archives."""

    def __init__(self, on_progress: OnProgress | None, total: int) -> None:
        self._on_progress, self._done, self._total = on_progress or (lambda done, total: None), 0, total
        self._on_progress(0, total)

    def advance(self, nbytes: int) -> None:
        """Some more bytes were read; more than the total where others have appended meanwhile."""
        self._done = min(self._done + nbytes, self._total)
        self._on_progress(self._done, self._total)


def check_free(target: str) -> None:
    """Raise ArchiveExistsError where something is in the way of a new file."""
    if storage.exists(target):
        raise ArchiveExistsError(f"{target}: exists already; give a path where nothing is")


@contextmanager
def rewriting(target: str, head: Head, like: ByteSource, progress: RewriteProgress) -> Iterator[Rewrite]:
    """A new archive for a path; what was written goes, unless the block publishes it.

    It has the permissions of `like`, where that is a file.
    """
    storage.check_outlives(target)
    with writer.replacing(target) as session:
        if not like.by_request:
            storage.copy_permissions(like.path, session.path)
        with closing(Appender.open(session.path, head, mode="r+")) as out:
            yield Rewrite(target, session, out, progress)


class Rewrite:
    """A new archive on its way, which `out` appends to; nbytes: of the file, once published."""

    def __init__(self, target: str, session: File, out: Appender, progress: RewriteProgress) -> None:
        self._target, self._session, self._progress = target, session, progress
        self.out = out
        self.nbytes = 0

    def copy(self, selection: RecordSelection, on_damage: OnDamage | None = None) -> None:
        """Append records and their labels, as chunks of about 4 MiB.

        `on_damage` takes note of records that are left out: those that fail their crc32, and those that need
        a dictionary that is damaged. None raises CorruptRecordError.
        """
        file, contents, samples = selection
        table, records = contents.index, contents.index.records
        index = records.samples
        known = self._copy_dictionaries(file, table.dictionaries)
        is_compressed, text = records.raw_nbytes is not None, self.out.head.compression
        compression = None if is_compressed or text is None else Compression.parse(text)
        for rows in chunk_rows(records.nbytes):
            part = records.take(rows)
            data = _read(file, part)
            self._progress.advance(int(part.nbytes.sum()))
            sound = np.array([format.crc32(record) for record in data], np.uint32) == part.crc32
            if on_damage is not None:
                on_damage(rows[~sound], "fails its crc32")
                if is_compressed:
                    readable = np.array([dictionary_of(frame) in known for frame in data], bool)
                    on_damage(rows[sound & ~readable], "needs a dictionary that is damaged")
                    sound &= readable
                rows, data, part = rows[sound], list(compress(data, sound)), part.take(np.flatnonzero(sound))
            elif not sound.all():
                row = rows[~sound][0]
                raise CorruptRecordError(
                    f"{file.path}: record {(index if samples is None else samples)[row]} at offset "
                    f'{records.offset[row]:,} fails its crc32; run "edcache repair {file.path} -o NEW"'
                )
            if len(rows):
                if compression is not None:
                    part, data = _compressed(part, data, compression)
                labels = format.take_rows(contents.labels, rows)
                self.out.append(Chunk.of(replace(part, index=index[rows]), labels, table.schemas, data))

    def _copy_dictionaries(self, file: ByteSource, dictionaries: Sequence[format.Dictionary]) -> set[int]:
        """Append those that are intact and not there yet; gives the ids of those that records may need."""
        known = set(self.out.dictionaries())
        for data in intact_dictionaries(file, dictionaries):
            if data not in known:
                known.add(data)
                self.out.append_dictionary(data)
        return {0, *(int.from_bytes(data[4:8], "little") for data in known)}

    def publish(
        self,
        length: int | None = None,
        failures: Sequence[format.Failure] = (),
        revision: Revision | None = None,
        *,
        origin: format.Head | None = None,
        replace: bool = False,
    ) -> None:
        """Write down what the records do not tell, seal it, bring it to the disk and give it its name.

        length: of the dataset, where neither head nor records say it. origin: as of `Chain`, of what was
        copied. replace: what is at the target.
        """
        if origin is not None and origin.fingerprint not in (None, self.out.chain.origin.fingerprint):
            self.out.amend(length=origin.length, fingerprint=origin.fingerprint)
        changes: dict[str, object] = {}
        if length not in (None, self.out.chain.length):
            changes["length"] = length
        if failures:
            changes["failed"] = [failure.to_json() for failure in failures]
        if changes:
            self.out.amend(**changes)
        if revision is not None:
            self.out.revise(revision)
        self.out.seal()
        self.nbytes = self._session.size()
        if not replace:
            check_free(self._target)
        self.out.move(self._target)


def _read(file: ByteSource, records: Records) -> list[memoryview]:
    """The bytes of each record, read in the order in which they lie."""
    order = np.argsort(records.offset, kind="stable")
    extents = zip(records.offset[order].tolist(), records.nbytes[order].tolist(), strict=True)
    data = file.read_many(list(extents))
    return [data[place] for place in np.argsort(order).tolist()]


def _compressed(
    records: Records, data: Sequence[memoryview], compression: Compression
) -> tuple[Records, list[memoryview]]:
    frames = [memoryview(compression.compress(record)) for record in data]
    nbytes = np.array(list(map(len, frames)), np.uint64)
    crcs = np.array(list(map(format.crc32, frames)), np.uint32)
    return replace(records, nbytes=nbytes, crc32=crcs, raw_nbytes=records.nbytes), frames


def intact_dictionaries(file: ByteSource, dictionaries: Sequence[format.Dictionary]) -> Iterator[bytes]:
    """The compression dictionaries that fit their crc32."""
    for entry in dictionaries:
        data = file.pread(entry.offset, entry.nbytes)
        if len(data) == entry.nbytes and format.crc32(data) == entry.crc32:
            yield data


def dictionary_of(frame: memoryview) -> int:
    """The id of the dictionary that a zstd frame needs, 0 for none (RFC 8878, section 3.1.1.1)."""
    if len(frame) < 5:
        return 0
    descriptor = frame[4]
    start = 5 if descriptor & 0x20 else 6  # a single segment has no window descriptor
    nbytes = (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(frame[start : start + nbytes], "little")


def chunk_rows(nbytes: npt.NDArray[np.uint64]) -> Iterator[Ints]:
    """Consecutive rows that make a chunk each: one that reaches `CHUNK_NBYTES` is full."""
    # Records of a few bytes take as much in the table.
    ends = np.cumsum(np.maximum(nbytes, 32).astype(np.int64))
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        last = min(int(np.searchsorted(ends, before + CHUNK_NBYTES)) + 1, len(ends))
        yield np.arange(first, last)
        first = last
