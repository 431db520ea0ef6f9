"""`Metadata`: what an open archive says besides its samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from edcache import base, format
from edcache.base import once
from edcache.format import Contents, Head, Header, parse_root, read_table
from edcache.reader.extents import Extents
from edcache.reader.index import RecordIndex
from edcache.reader.sealed import SealedLabels
from edcache.storage import ByteSource

T = TypeVar("T")


class Metadata:
    """What an archive says besides its samples, as one process found it when it opened the file.

    It does not change. A refresh makes a new one, and threads at work keep the old one.

    Args:
        verify: as in `Reader`. before: of an earlier look at the same file.
        trusts_seal: False reads the table of every chunk, as of an archive that is not sealed.
    Attributes:
        size: bytes of the file. seal: the headers of its seal; None if it is not sealed. chain: its entries;
            of a sealed archive only the head was read.
        index: where the record of every sample lies. length: the samples of the dataset.
        extents: its bytes. mapped_nbytes: mapped bytes, which all processes share.
        damaged: one line per unreadable chunk.
    """

    def __init__(
        self,
        file: ByteSource,
        verify: str = "touch",
        before: Metadata | None = None,
        trusts_seal: bool = True,
    ) -> None:
        self.file, self.path = file, file.path
        self.verify = verify
        self.size = file.size()
        head, first = format.read_head(file.pread, self.path)
        self.seal: format.Seal | None = None
        if trusts_seal:
            self.seal = format.read_seal(file.pread, self.size, head.uuid, file.by_request)
        self.chain = format.Chain(head, first, self.path)
        self._tables: dict[int, format.ChunkTable | None] = {}
        self.damaged: list[str] = []
        self._contents_before: Contents | None = None
        if before is not None and before.seal is None:
            # A growing archive is opened again and again: its old entries are not read again.
            self.chain, self._tables = before.chain.copy(), before._tables
            self.damaged = before.damaged.copy()
            self._contents_before = before._contents
        if self.seal is None:
            self.chain.extend(file.pread, self.size)
            if self.chain.seal is not None and trusts_seal:
                # The seal may have been written between the two looks.
                self.seal = format.read_seal(file.pread, self.size, head.uuid)
        # Map no byte behind the last entry: a writer may cut off a torn tail, and reading a mapping beyond
        # the end of the file is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        end = self.chain.cursor.offset if self.seal is None else self.size
        self.sealed, self.nbytes = self.seal is not None, min(end, self.size)
        self.extents = Extents(file, self.nbytes)
        self._view = self.extents.view
        self.mapped_nbytes = 0 if self._view is None else self.nbytes
        self.head = head
        self.index = self._opened_index()
        self.length = self.index.length
        if self.sealed and self._view is not None:
            file.rest()
        self._sealed_labels: SealedLabels | None = None
        if self.seal is not None:
            names, remedy = [name for name, _ in head.labels], f"; {_lost_index(self.path)}"
            places = self.extents, self.seal, self.index.labels
            self._sealed_labels = SealedLabels(*places, names, self.path, remedy)

    @property
    def origin(self) -> Head:
        """The head, with fingerprint and length of the source that was the last to lengthen the archive."""
        # Without an amendment of its length there is none.
        if self.seal is not None and self.head.length not in (None, self.length):
            chain = self.chain.copy()
            chain.extend(self.extents.pread, self.size)
            return chain.origin
        return self.chain.origin

    def check_chain(self) -> None:
        """Raise CorruptArchiveError if the chain of entries breaks before a seal that was never synced.

        A power cut may have left such a seal, and not what is before it. Other archives are not walked.
        """
        seal = self.seal
        if seal is None or seal.index.durable >= seal.index.offset:
            return
        chain = self.chain.copy()
        chain.extend(self.file.pread, self.size)
        if chain.seal != seal:
            raise base.CorruptArchiveError(
                f"{self.path}: the chain of entries ends at offset {chain.cursor.offset:,}, before its seal "
                f"at offset {seal.index.offset:,}; {_lost_index(self.path)}",
                path=self.path,
            )

    # --- index ---

    def _opened_index(self) -> RecordIndex:
        if self.seal is None:
            return RecordIndex.of(self._contents.index)
        header, remedy = self.seal.index, f"; {_lost_index(self.path)}"
        table = self.extents.sound(
            self.extents.read, header.table_offset, header.table_nbytes, header.table_crc
        )
        if table is None:
            raise base.CorruptArchiveError(
                f"{self.path}: index.pages at offset {header.offset:,} fails its crc32{remedy}",
                path=self.path,
            )
        start, end, extents = header.payload_offset, header.payload_end, self.extents
        memory = None if self._view is None else self._view[start:end]

        def fetch(parts: Sequence[format.Extent]) -> list[memoryview | None]:
            # The session is not held: a cycle would keep the mapping until the next garbage collection.
            return extents.checked([part._replace(at=start + part.at) for part in parts])

        try:
            root = parse_root(table, header.samples, header.payload_nbytes, self.size)
            if root.length != header.end_index:
                raise base.CorruptArchiveError(f"index.pages claims {root.length:,} samples")
            index = RecordIndex(root, self.size, memory=memory, fetch=fetch, where=self.path, remedy=remedy)
        except base.CorruptArchiveError as error:
            raise base.CorruptArchiveError(f"{self.path}: {error}{remedy}", path=self.path) from error
        return index

    @once
    def _contents(self) -> Contents:
        """Merge the chunks of an archive that is not sealed: index and labels."""
        before, self._contents_before = self._contents_before, None
        return self.chain.contents(self._sound_table, before)

    def _sound(self, read: Callable[[format.PRead, Header, str], T], header: Header) -> T | None:
        """The content of a chunk or a revision; None if a power cut left its header without its payload."""
        try:
            return read(self.extents.pread, header, self.path)
        except base.CorruptArchiveError as error:
            self.damaged.append(str(error))
            return None

    def _sound_table(self, header: Header) -> format.ChunkTable | None:
        if header.seq not in self._tables:
            self._tables[header.seq] = self._sound(read_table, header)
        return self._tables[header.seq]

    # --- samples that are there ---

    @property
    def present(self) -> int:
        """The number of samples that have a record."""
        return self.index.rows

    @property
    def has_all(self) -> bool:
        """True if no sample is missing, as far as known. A sealed archive knows all its samples."""
        absent = sum(failure.final for failure in self.index.failures)
        return self.index.rows + absent == self.length

    # --- labels ---

    @once
    def _revised(self) -> format.Revised:
        """The labels of an archive that is not sealed."""
        return self.chain.revised(self._contents, partial(self._sound, format.read_revision))

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        """(name, whether values were added after the samples were written) of each label column."""
        columns = self._revised.columns if self._sealed_labels is None else self._sealed_labels.columns
        return [(name, False) for name, _ in self.head.labels] if columns is None else columns

    @once
    def labels(self) -> Any:
        """The labels with one row per sample: a pyarrow Table, or `StoredLabels`."""
        sealed = self._sealed_labels
        stored = self._revised.table if sealed is None else sealed.table()
        return format.spread(stored, self.index.held(), self.length)

    @property
    def label_nbytes(self) -> int:
        """Bytes of the labels that were read."""
        return int(self.labels.nbytes) if "labels" in vars(self) else 0

    # --- writers ---

    @property
    def has_writer(self) -> bool:
        """True if a process of this machine writes the archive now; False if unknown, as for a URL."""
        return self.file.is_locked(format.LOCK_FILLER, format.FILLERS) or self.is_appended

    @property
    def is_appended(self) -> bool:
        """True if a process publishes an entry at this moment; False if unknown."""
        return self.file.is_locked(format.LOCK_APPEND, 1)

    @property
    def is_abandoned(self) -> bool:
        """True if a first fill failed before its first sample and no process writes the archive now."""
        # No sample was published, and no bytes behind the chain could be one.
        is_empty = not self.sealed and self.chain.holds_nothing and self.size <= self.chain.cursor.offset
        return is_empty and not self.has_writer


def _lost_index(path: str) -> str:
    return (
        f'the samples are not lost: "edcache copy {path} -o NEW --skip-damaged" keeps them, and '
        f'"edcache verify {path}" says what is damaged'
    )
