"""`Metadata`: what an open archive says besides its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edcache import format, storage
from edcache.base import CorruptArchiveError, once
from edcache.format import Chain, ChunkTable, Contents, Head, Header, Place, Root, StoredLabels
from edcache.reader.extents import Extents
from edcache.reader.index import RecordIndex
from edcache.storage import ByteSource, File


class Metadata:
    """What an archive says besides its samples, as one process found it when it opened the file.

    It does not change. A refresh makes a new one, and threads at work keep the old one.

    Args:
        verify: as in `Reader`. before: of an earlier look at the same file.
        skips_damage: True reads an archive whose index, labels or chain are damaged by what is left of it.
    Attributes:
        size: bytes of the file. head: of it. sealed: it ends with a root. chain: its entries, if it does not.
        index: where the record of every sample lies. length: the samples of the dataset.
        extents: its bytes. mapped_nbytes: mapped bytes, which all processes share.
        damaged: one line per unreadable chunk.
    """

    def __init__(
        self,
        file: ByteSource,
        verify: str = "touch",
        before: Metadata | None = None,
        skips_damage: bool = False,
    ) -> None:
        self.file, self.path, self.verify = file, file.path, verify
        self.skips_damage = skips_damage
        self.size = file.size()
        self._tables: dict[int, ChunkTable | None] = {}
        self.damaged: list[str] = []
        self._chain: Chain | None = None
        self._root: Root | None = None
        self._root_place: Place | None = None
        found = None if skips_damage else format.read_root(file.pread, self.size, self.path)
        if found is not None:
            self._root, self._root_place = found
            self.head, end = self._root.head, self.size
        else:
            self._chain = self._walked(before)
            # If it ended with a root, bytes behind it show that samples may be lost: it grew, and was cut.
            self.head, end = self._chain.head, self._chain.cursor.offset
        self.sealed = self._root is not None
        # Map no byte behind the last entry: a writer may cut off a torn tail, and reading a mapping beyond
        # the end of the file is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        self.nbytes = min(end, self.size)
        self.extents = Extents(file, self.nbytes)
        self._view = self.extents.view
        self.mapped_nbytes = 0 if self._view is None else self.nbytes
        self.index = self._opened_index()
        self.length = self.index.length
        if self._root is not None and self._view is not None:
            file.rest()

    def _walked(self, before: Metadata | None) -> Chain:
        """The chain of an archive that is not sealed, or of which the end is damaged."""
        file = self.file
        if before is not None and before._chain is not None:
            # A growing archive is opened again and again: its old entries are not read again.
            chain, self._tables = before._chain.copy(), before._tables
            self.damaged = before.damaged.copy()
        else:
            chain = Chain(*format.read_head(file.pread, self.path), self.path)
        chain.extend(file.pread, self.size)
        if self.skips_damage:
            chain.salvage(file.pread, file.next_data, self.size)
            return chain
        while self.size > chain.end or chain.unread is not None:
            is_fresh = not isinstance(file, File) or storage.written_since_boot(file)
            damage = chain.damage(file.pread, file.next_data, self.size, is_fresh)
            # A writer may have published what follows since.
            if damage is None:
                break
            if not chain.extend(file.pread, self.size):
                raise CorruptArchiveError(
                    f"{self.path}: {damage}: it is damaged there; {_lost(self.path)}", path=self.path
                )
        return chain

    @property
    def chain(self) -> Chain:
        """The entries of the archive. Cost: of a sealed one the header of each is read, at the first use."""
        chain = self._chain
        if chain is None:
            chain = Chain(*format.read_head(self.extents.pread, self.path), self.path)
            chain.extend(self.extents.pread, self.size)
            self._chain = chain
        return chain

    @property
    def is_durable(self) -> bool:
        """False if it was sealed without a sync, and a power cut may have taken some of it since."""
        if (
            self._root_place is None
            or not isinstance(self.file, File)
            or storage.written_since_boot(self.file)
        ):
            return True
        start = self._root_place.offset - format.header_nbytes("root.json")
        header = format.parse_header(self.file.pread(start, format.MAX_HEADER_NBYTES))
        return header is not None and header.durable > 0

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return len(self.chain.chunks) if self._root is None else self._root.chunks

    @property
    def origin(self) -> Head:
        """The head, with fingerprint and length of the source that was the last to lengthen the archive."""
        return self.chain.origin if self._root is None else self._root.origin

    @property
    def declared_length(self) -> int | None:
        """Samples of the dataset; None for an archive that was written without one."""
        has_length = self.head.length is not None or (not self.sealed and self.chain.length is not None)
        return self.length if has_length else None

    # --- index ---

    def _opened_index(self) -> RecordIndex:
        root, view = self._root, self._view
        if root is not None:
            start, nbytes, _ = root.index
            extents = self.extents
            memory = None if view is None else view[start : start + nbytes]
            # The session is not held: a cycle would keep the mapping until the next garbage collection.
            return RecordIndex.of(root, memory, extents.read_many)
        contents = self._contents
        rows = contents.rows(0, contents.length)
        return RecordIndex(
            rows, contents.length, contents.present(), contents.schemas, contents.failures(rows)
        )

    def check(self) -> None:
        """Check index and labels; CorruptArchiveError if one is damaged. It reads all of them."""
        if self._root is not None and self.extents.checked([self._root.index])[0] is None:
            raise CorruptArchiveError(
                f"{self.path}: index.rows fails its crc32; {_lost(self.path)}", path=self.path
            )
        labels = self.labels
        if isinstance(labels, StoredLabels):
            labels.read(labels.column_names)

    @once
    def _contents(self) -> Contents:
        """Rows and labels of an archive that is not sealed."""
        # It does not hold the session: a cycle would keep the mapping until the next garbage collection.
        pread, path, tables, damaged = self.extents.pread, self.path, self._tables, self.damaged

        def sound_table(header: Header) -> ChunkTable | None:
            """The table of a chunk; None if a power cut left its header without its payload."""
            if header.number not in tables:
                try:
                    tables[header.number] = format.read_table(pread, header, path)
                except CorruptArchiveError as error:
                    damaged.append(str(error))
                    tables[header.number] = None
            return tables[header.number]

        return Contents(self.chain, pread, sound_table, trusts_index=not self.skips_damage)

    # --- samples that are there ---

    @property
    def present(self) -> int:
        """The number of samples that have a record."""
        return self.index.present

    @property
    def has_all(self) -> bool:
        """True if no sample is missing, as far as known. A sealed archive knows all its samples."""
        absent = sum(failure.final for failure in self.index.failures)
        return self.index.present + absent == self.length

    # --- labels ---

    @property
    def label_columns(self) -> Sequence[tuple[str, bool]]:
        """(name, whether values were added after the samples were written) of each label column."""
        if self._root is not None:
            return [(name, column.is_added) for name, column in self._root.labels.items()]
        columns = self._contents.columns
        return [(name, name in columns and columns[name].is_added) for name in self._contents.schema.names]

    @property
    def dropped(self) -> Sequence[str]:
        """Label columns that chunks have and the archive no more."""
        root = self._root or self.chain.root
        return () if root is None else root.dropped

    @once
    def labels(self) -> Any:
        """The labels with one row per sample: a pyarrow Table, or `StoredLabels`."""
        if self._root is None:
            return self._contents.table()
        return StoredLabels(self._root, self.extents.checked, self.path)

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


def _lost(path: str) -> str:
    return f'"edcache copy {path} -o NEW --skip-damaged" keeps what is sound'
