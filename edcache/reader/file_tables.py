"""The bytes of an archive, and what they say of its samples: head, index, labels, dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from edcache import format
from edcache.base import CorruptArchiveError, Ints, StorageError, once
from edcache.codec import most_content
from edcache.format import (
    Chain,
    ChunkTable,
    Contents,
    Header,
    PRead,
    Revised,
    parse_index,
    parse_labels,
    read_revision,
    read_table,
)
from edcache.storage import ByteSource

T = TypeVar("T")
Data = TypeVar("Data", bytes, memoryview)

# With so many entries and fewer, opening walks the chain: some 10 us each.
_WALKED = 1 << 10
# The directory of some fifteen thousand.
_DIRECTORY_NBYTES = 1 << 20
_PROBES = 8
# What lies no further apart is one announcement: the kernel reads ahead that far anyway.
_GAP = 1 << 16


class Storage:
    """The bytes of one source up to `size`: mapped into memory, or read into memory of ours.

    Mapped bytes are shared by all processes and cost nothing to look at. On a file system of another
    machine a mapping fetches page by page and a lost connection is a SIGBUS, so there records are read; what
    is behind a URL cannot be mapped at all.

    Attributes:
        view: all of them, mapped and read only; None where they are read instead.
    """

    def __init__(self, file: ByteSource, size: int, io: str) -> None:
        self.file, self.size = file, size
        self.view: memoryview | None = None
        # What a partial copy lacks is fetched where it is read.
        if not file.is_partial and (io == "mmap" or (io == "auto" and not file.is_remote())):
            try:
                self.view = file.map(size)
            except StorageError as error:
                raise StorageError(f'{error}; io="pread" reads it without') from error

    def read(self, offset: int, nbytes: int) -> memoryview:
        """The bytes of an extent; fewer at the end of the file. Read only."""
        if self.view is not None:
            return self.view[offset : offset + nbytes]
        return self.read_many([(offset, nbytes)])[0]

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The same of many extents (offset, nbytes) of what is not mapped; at a time where by request."""
        return self.file.read_many([(offset, self._within(offset, nbytes)) for offset, nbytes in extents])

    def pread(self, offset: int, nbytes: int) -> bytes:
        """A copy of an extent, of what leads to records: what follows may be fetched with it."""
        if self.view is not None:
            return bytes(self.view[offset : offset + nbytes])
        return self.file.pread(offset, self._within(offset, nbytes))

    def _within(self, offset: int, nbytes: int) -> int:
        return min(nbytes, max(0, self.size - offset))

    def announce(self, start: Ints, end: Ints) -> None:
        """Let extents be fetched that will be read: by the source what it lacks, then by the kernel.

        Args:
            start, end: int64 [n], bytes from the start of the file.
        """
        self.file.announce(start, end)
        order = np.argsort(start)
        start, end = start[order], np.maximum.accumulate(end[order])
        breaks = np.flatnonzero(start[1:] > end[:-1] + _GAP) + 1
        firsts = np.concatenate(([0], breaks))
        lasts = np.concatenate((breaks, [len(start)])) - 1
        # In the order in which they will be read: the first is copied while the last is fetched.
        first_read = np.argsort(np.minimum.reduceat(order, firsts))
        firsts, lasts = firsts[first_read], lasts[first_read]
        for low, high in zip(start[firsts].tolist(), end[lasts].tolist(), strict=True):
            # One run is a pass in file order: what follows will be asked for next.
            ahead = high - low if len(firsts) == 1 else 0
            self.file.will_need(low, high - low + ahead)


class FileTables:
    """What a file says of its samples, as of one look at it.

    Args:
        io, verify: as in `Reader`. before: an earlier look at the same file.
    Attributes:
        size: of the file. head: what the archive says about itself. seal: its last one, where it is sealed.
        chain: its entries, as far as walked. contents: its index.
        chunks: how many, where the chain was walked. damaged: what was unreadable, a line a chunk.
    """

    def __init__(self, file: ByteSource, io: str, verify: str, before: FileTables | None = None) -> None:
        self.path = file.path
        self.size = file.size()
        is_at_hand = not (file.by_request or file.is_partial)
        self.head, first = format.read_head(file.pread, self.path)
        self.seal = format.read_seal(file.pread, self.size, self.head.uuid)
        self.chain = Chain(self.head, first, self.path)
        self._tables: dict[int, ChunkTable | None] = {}
        self.chunks: int | None = None
        self.damaged: list[str] = []
        if before is not None and before.seal is None:
            # A growing archive is looked at again and again: what was read of it is not read again.
            self.chain, self._tables = before.chain.copy(), before._tables
            self.damaged = before.damaged.copy()
        if self.seal is None:
            self.chain.extend(file.pread, self.size)
            self.chunks = len(self.chain.chunks)
            if self.chain.seal is not None:
                # Its last header may have been written since it was looked for.
                self.seal = format.read_seal(file.pread, self.size, self.head.uuid)
        elif verify == "open" or (verify != "never" and self.seal[0].seq <= _WALKED and is_at_hand):
            # Cheap among a file's few entries; then the zip directory and the index can tell of no others.
            self._announce_headers(file, self.seal[1].payload_end)
            self.chain.extend(file.pread, self.size)
            self.chain.check_seal(file.pread, self.size, self.seal)
            self.chunks = len(self.chain.chunks)
        # Not a byte behind the last entry: a writer may cut a torn tail off, and a mapping of what is no
        # longer there is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        end = self.chain.cursor.offset if self.seal is None else self.size
        self.storage = Storage(file, min(end, self.size), io)
        self.contents = self._sealed_contents() if self.seal else self.chain.contents(self._sound_table)

    def _announce_headers(self, file: ByteSource, directory: int) -> None:
        """Let the kernel fetch every header at once, rather than each when the one before was read."""
        listed = file.pread(directory, min(self.size - directory, _DIRECTORY_NBYTES))
        offsets = [offset for offset in format.directory_offsets(listed) if offset < self.size]
        if not file.are_cached(offsets[:: 1 + len(offsets) // _PROBES]):
            for offset in offsets:
                file.will_need(offset, format.HEADER_NBYTES)

    @property
    def holds_nothing(self) -> bool:
        """Whether no sample was ever published, and nothing lies behind that could have been one."""
        chain = self.chain
        return self.seal is None and chain.holds_nothing and self.size <= chain.cursor.offset

    def has_changed(self, file: ByteSource) -> bool:
        """Whether the same file, opened again, says something else by now."""
        size = file.size()
        if self.seal is not None:
            return size != self.size
        # The size alone does not tell: a torn tail may have been cut and its bytes used for a chunk.
        return next(format.walk(file.pread, size, self.head.uuid, self.chain.cursor), None) is not None

    # --- index ---

    def _sealed_contents(self) -> Contents:
        assert self.seal is not None
        header = self.seal[0]
        data = self._payload(header, "index.arrow")
        try:
            index = parse_index(data, header.samples)
        except CorruptArchiveError as error:
            raise CorruptArchiveError(f"{self.path}: {error}; {self._lost_index}") from error
        if self.chunks is not None:
            self.chain.check_index(index)
        self._check_sizes(index.records, index.length, header.end_index)
        return Contents(index, None)

    def _check_sizes(self, records: format.Records, length: int, end_index: int) -> None:
        """All records together have no more bytes than the file: else a batch could take any memory."""
        size, nbytes = self.size, records.nbytes
        sound = length == end_index
        if sound and len(nbytes):
            sound = bool(
                records.offset.max() <= size and nbytes.max() <= size and nbytes.sum(dtype=np.float64) <= size
            )
        if sound and len(nbytes) and records.raw_nbytes is not None:
            sound = int(records.raw_nbytes.max()) <= most_content(size)
        if not sound:
            raise CorruptArchiveError(
                f"{self.path}: index.arrow lists more than a file of {size:,} bytes holds; {self._lost_index}"
            )

    @property
    def _lost_index(self) -> str:
        return (
            'the samples are not lost: open the archive with CacheWriter(..., mode="a") after '
            f'"edcache verify {self.path}"'
        )

    def _payload(self, header: Header, name: str) -> memoryview:
        extent = header.payload_offset, header.payload_nbytes
        data = self._mended(self.storage.read, *extent, header.payload_crc)
        if data is None:
            raise CorruptArchiveError(
                f"{self.path}: {name} at offset {header.offset:,} fails its crc32; {self._lost_index}"
            )
        return data

    def _mended(self, read: Callable[[int, int], Data], offset: int, nbytes: int, crc: int) -> Data | None:
        """The bytes of an extent, fetched again where that helps; None where they fail their crc32."""
        data = read(offset, nbytes)
        if format.crc32(data) != crc and self.storage.file.mend(offset, nbytes):
            data = read(offset, nbytes)
        return data if len(data) == nbytes and format.crc32(data) == crc else None

    @once
    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries, read once; only the records that need an unreadable one say so."""
        entries = self.contents.index.dictionaries
        read = [self._mended(self.storage.pread, one.offset, one.nbytes, one.crc32) for one in entries]
        return [data for data in read if data is not None]

    def _sound(self, read: Callable[[PRead, Header, str], T], header: Header) -> T | None:
        """What a chunk or a revision says; None where a power cut left its header without its payload."""
        try:
            return read(self.storage.pread, header, self.path)
        except CorruptArchiveError as error:
            self.damaged.append(str(error))
            return None

    def _sound_table(self, header: Header) -> ChunkTable | None:
        if header.seq not in self._tables:
            self._tables[header.seq] = self._sound(read_table, header)
        return self._tables[header.seq]

    # --- labels ---

    @once
    def revised(self) -> Revised:
        """The labels of an archive that is not sealed."""
        return self.chain.revised(self.contents, partial(self._sound, read_revision))

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        """The label columns, and whether values of them were added after the samples were written."""
        columns = self.contents.index.labels if self.seal is not None else self.revised.columns
        return [(name, False) for name, _ in self.head.labels] if columns is None else columns

    def labels(self) -> Any:
        """The label table, a row for each record or for each sample."""
        if self.seal is None:
            return self.revised.table
        header = self.seal[1]
        told_by = "the head" if self.contents.index.labels is None else "index.arrow"
        try:
            names = [name for name, _ in self.label_columns]
            return parse_labels(self._payload(header, "labels.arrow"), header.samples, names, told_by)
        except CorruptArchiveError as error:
            raise CorruptArchiveError(f"{self.path}: {error}") from error
