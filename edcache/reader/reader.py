"""Readers of samples by index: of any archive (`AnyReader`), of a file or what is behind a URL (`Reader`)."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache import base, storage
from edcache.base import EdcacheError, Ints, ReadOptions
from edcache.codec import STORED, Decode, Decoding
from edcache.format import Blocks, Failure, Head, Records
from edcache.reader.digests import check_digest, no_digest, parse_digest
from edcache.reader.file_session import FileSession
from edcache.reader.session import Session
from edcache.storage import ByteSource, Location, absolute, located

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from edcache.codec import Decoder
    from edcache.reader.group import Group


_CHUNK_START = Blocks._fields.index("records_offset")
# States of archives of which this process has warned.
_warned: set[tuple[object, ...]] = set()


class Archive(ABC):
    """What is known of an archive without reading a sample; each process opens it at the first use.

    None of it imports torch: head, records, schemas, failures, missing(), and the labels, which
    `Labels(reader.labels, num_rows=len(reader))` filters. Reading a sample does.
    A fork inherits the session, in which nothing has a file position; a pickle leaves it behind.

    Attributes:
        known_length: samples of a source in hand, which justify memory whatever the archive has.
    """

    path: str
    # How messages call another archive under the same name.
    _another = "another archive is here now"

    def __init__(self, allow_pickle: bool, decode: Decode) -> None:
        self.allow_pickle = allow_pickle
        self.decoding = None if decode == STORED else Decoding.of(decode)
        self.known_length = 0
        self._uuid: bytes | None = None
        self._session: Session | None = None
        self._closed = False

    @abstractmethod
    def _open(self) -> Session:
        """Look at the archive; warnings and all errors but those of another uuid are its own."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_uuid": self.session.head.uuid, "_session": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    @property
    def session(self) -> Session:
        """What this process has open, which a refresh replaces; it is opened at the first use."""
        # Two threads may both open it; either session serves, so no lock that a fork could freeze.
        session = self._session
        if session is None or self._closed:
            if self._closed:
                raise base.ArchiveClosedError(f"{self.path}: closed; open it again to read")
            session = self._open()
            self._uuid = session.head.uuid
            self._keep(session)
        return session

    def _check_uuid(self, session: Session) -> None:
        if self._uuid not in (None, session.head.uuid):
            raise base.StaleArchiveError(
                f"{self.path}: {self._another} than the one that was opened; open it again"
            )

    def _keep(self, session: Session) -> None:
        """Read from `session` on, unless another thread has closed the reader meanwhile."""
        self._session = session
        if self._closed:
            self.close()
            session.close()
            self.session  # noqa: B018 - which says that it is closed

    def close(self) -> None:
        """Let go of what is open; memory that was handed out stays valid. Idempotent."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- what it says ---

    def __len__(self) -> int:
        return self.session.length

    @property
    def head(self) -> Head:
        """What the archive says about itself."""
        return self.session.head

    @property
    def sealed(self) -> bool:
        """Whether it was sealed when it was opened or last refreshed; in a server, whether it is complete."""
        return self.session.sealed

    @property
    def declared_length(self) -> int | None:
        """Samples of the source as the archive was told: None where it was written without a dataset."""
        return None if self.head.length is None else len(self)

    @property
    def chunks(self) -> int | None:
        """Number of chunks, where the chain was walked; None for a sealed archive."""
        return self.session.chunks

    @property
    def damaged(self) -> list[str]:
        """What was unreadable in an unsealed archive, a line a chunk; those samples are missing."""
        return list(self.session.damaged)

    @property
    def nbytes(self) -> int:
        """Bytes of the file, as mapped; in a server, of the records and of what tells of them."""
        return self.session.nbytes

    def memory(self) -> dict[str, int]:
        """Bytes that reading takes in this process: "mapped", shared by all; "private", whatever is read."""
        return {"mapped": self.session.mapped_nbytes, "private": self.session.private_nbytes}

    @property
    def records(self) -> Records:
        """Where each record lies: read-only arrays, over mapped memory where it is sealed.

        In a server, those that are not known to be gone; offsets tell nothing there.
        """
        return self.session.records

    @property
    def schemas(self) -> Sequence[str]:
        """The schema texts that `records.schema` numbers."""
        return self.session.contents.index.schemas

    def chunk_of(self, indices: Ints) -> Ints:
        """Which chunk holds the record of each sample, counted as they lie in the file; -1 for no record.

        Args:
            indices: int64 [n], each in [0, len(self)).
        Returns: int64 [n], a copy. Cost: reads the index alone; 8 to 32 bytes of memory a sample.
        """
        session = self.session
        index, rows = session.contents.index, session.rows_of(indices)
        chunks = np.full(len(indices), -1, np.int64)
        found = rows >= 0
        offsets = index.records.offset[rows[found]].view(np.int64)
        chunks[found] = np.searchsorted(index.blocks[:, _CHUNK_START], offsets, side="right") - 1
        return chunks

    def missing(self) -> Ints:
        """The indices without a record, sorted: int64 [k], a copy. A server is asked what it still has.

        Raises:
            LengthError: the archive claims more samples than its size justifies allocating for.
            StaleArchiveError: the server has lost some, and another cache is under the prefix now.
        """
        index = self.session.held()
        if index is None:
            return np.empty(0, np.int64)
        self.justify(9)
        absent = np.ones(len(self), bool)
        absent[index] = False
        return np.flatnonzero(absent)

    @property
    def present(self) -> int:
        """How many indices have a record, as far as known."""
        return self.session.present

    @property
    def complete(self) -> bool:
        """Whether it is sealed, and every index has a record, or is recorded as absent for good."""
        return self.sealed and self.has_all

    @property
    def has_all(self) -> bool:
        """The same as far as known: of an archive that is not sealed, chunks may be missing unnoticed."""
        return self.session.has_all

    @property
    def is_abandoned(self) -> bool:
        """Whether it is what a first fill left that failed before its first sample: no process writes it."""
        return self.session.is_abandoned

    @property
    def failures(self) -> Sequence[Failure]:
        """Why samples have no record, where they failed: by rising index."""
        return self.session.contents.index.failures

    @property
    def label_names(self) -> list[str]:
        """The label columns: those of the head, and those that were added or dropped afterwards."""
        return [name for name, _ in self.session.label_columns]

    @property
    def unoriginal_labels(self) -> frozenset[str]:
        """Columns of the head that may hold other values than the samples' own, or were dropped."""
        session = self.session
        original = {name for name, is_revised in session.label_columns if not is_revised}
        return frozenset(name for name, _ in session.head.labels if name not in original)

    def justify(self, nbytes: int, count: int | None = None) -> None:
        """Refuse to allocate so many bytes for each sample, or for `count` of them, on the archive's word.

        Raises:
            LengthError: neither the file's size nor a source in hand (`known_length`) justifies it.
        """
        count = len(self) if count is None else count
        if count <= self.known_length:
            base.check_books(count, nbytes, self.path)
        else:
            base.justify(nbytes * count, self.session.justified_nbytes, self.path, f"{count:,} samples")


class AnyReader(Archive):
    """Random access to samples; a subclass says where they are, and how they are opened."""

    # Whether each read is a request, as behind a URL and to a server.
    by_request: bool = False
    preload: str | None = None
    local: str | None = None
    # Whether it was opened with an expected_digest.
    has_digest: bool = False

    def has(self, index: int) -> bool:
        """Whether an index in [0, len(self)) has a record, as far as known."""
        return self.session.has(index)

    def read(self, index: int, copy: bool = True) -> Any:
        """Decode one sample.

        Args:
            index: in [0, len(self)).
            copy: False returns arrays over the mapped file, or over what a server sent, where nothing is
                compressed; writing to them is an error or undefined. True returns memory of the caller's own.
        Raises:
            SampleIndexError: out of range.
            MissingSampleError: no record yet, or none any more in a server.
            CorruptRecordError: "train.zip: record 17 at offset 4,096: crc32 0x1c291ca3, the index
                says 0x9ae0daf0; ...".
            PickleRefusedError, UnregisteredTypeError: the record needs what was not allowed.
            ImageError: "train.zip: sample 17: JPEG does not decode: ...".
        """
        return self.session.read(index, copy)

    def read_many(self, indices: Ints, copy: bool = True) -> list[Any]:
        """Decode the samples at indices in [-len(self), len(self)); returns and raises as `read`."""
        return self.session.read_many(indices, copy)

    def reading_ahead(
        self, indices: Ints, wanted: tuple[int, int] | None = None
    ) -> AbstractContextManager[None]:
        """Fetch records at once that this thread reads one by one in the block, where a read is a request.

        Args:
            indices: int64 [n]; what is out of range or has no record is left out.
            wanted: as in `fetch`.
        Raises: CorruptRecordError, StaleArchiveError, StorageError.
        """
        return self.session.reading_ahead(indices, wanted)

    def fetch(self, index: int, wanted: tuple[int, int] | None = None) -> tuple[memoryview, Decoder]:
        """The record of a sample before compression, and how it is decoded.

        Args:
            wanted: the bytes of it that will be read, half-open: those, and the block around, are checked.
        Returns:
            Read-only bytes, of a mapped file no copy. The decoder may be another than `decoder` gives, of a
            sample that a server lost and that was made again.
        Raises: as `read`.
        """
        return self.session.fetch(index, wanted)

    def record(self, index: int, wanted: tuple[int, int] | None = None) -> memoryview:
        """The bytes of a sample's record before compression; as `fetch`."""
        return self.fetch(index, wanted)[0]

    def decoder(self, index: int) -> Decoder | None:
        """How the record of a sample is decoded; None where it has no record."""
        session = self.session
        row = session.find(index) if session.has(index) else None
        return None if row is None else session.decoder_at(row)

    def common_decoder(self, indices: Ints) -> Decoder | None:
        """The decoder of samples of one schema; None as in `group`. Reads no record."""
        alike = self.session.alike(indices)
        return None if alike is None else alike.decoder

    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None:
        """Records of one schema, checked as `read` would, for reading field by field.

        Args:
            indices: int64 [n], n > 0, each in [-len(self), len(self)).
            wanted: the bytes of each record that will be read, half-open; None for all of it.
        Returns:
            None where samples differ in structure or are missing, or records are pickled or carry their own
            schema: `read` them one by one.
        Raises: CorruptRecordError, SampleIndexError, as `read`.
        """
        return self.session.group(indices, wanted)

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        """The same error over the record of a sample, with the place in front of its text."""
        return self.session.placed(error, index)

    def labels(self) -> Any:
        """The label table: row i is sample i, null where it has no label. A pyarrow Table.

        Raises:
            LengthError: as `missing`. CorruptArchiveError: labels.arrow is damaged.
        Cost: the first call in a process checksums labels.arrow; columns alias the mapped file.
        """
        session = self.session
        if session.contents.index.records.index is not None and not session.has_label_rows:
            self.justify(32 + 16 * len(session.head.labels))
        return session.labels

    @abstractmethod
    def refresh(self) -> bool:
        """Look again at what may have grown; says whether anything changed."""


@base.takes(ReadOptions)
class Reader(AnyReader):
    """Random access to the samples of one archive, sealed or still growing.

    Args:
        path: the archive, or its URL: http, https, s3, gs, hf, whatever fsspec knows. Nothing is opened
            before the first use.
        options: as an object; keywords stand in place of some.
        storage_options: for the engine that reads a URL, see `edcache.CachedDataset`.
        keywords: these options.
    Raises, at the first use:
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError.
        StaleArchiveError: unpickled in a process where the path leads to another archive.
        DigestError: "train.zip: its sha256 is ab12..., expected cd34...; it is not the file that was
            published"; or it is not sealed, so that it has none.
    Warns, at the first use:
        PartialArchiveWarning: it is not sealed, and no process of this machine writes it: its writer was
            killed, or the file was cut, so that nobody knows how many samples there were. Once a process.

    Cost: a sealed archive opens in the time to checksum its index (26 bytes a sample), whatever
    its size; an unsealed one reads the table of every chunk. No object per sample is made.
    Safety: threads, fork, spawn, forkserver. A pickle has under 2 kB whatever the archive's size.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Location,
        options: ReadOptions | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **keywords: Unpack[base.ReadKeywords],
    ) -> None:
        if options is None or keywords:
            options = ReadOptions.of(options, keywords, "Reader")
        if options.local is None and options.max_bytes is not None:
            raise base.OptionError(
                f"max_bytes={options.max_bytes!r}; it is for the copies in local=, which was not given"
            )
        super().__init__(options.allow_pickle, options.decode)
        self._where = located(path, storage_options)
        self.path, self.by_request = self._where.path, self._where.by_request
        if options.preload and self._where.is_volatile:
            raise base.OptionError(f"{self.path}: in memory already; leave preload out")
        self.preload = options.preload
        if options.local is not None:
            storage.check_outlives(options.local)
        self.local = None if options.local is None else absolute(options.local)
        self._max_bytes: Any = options.max_bytes
        self.verify, self.io, self.allow_partial = options.verify, options.io, options.allow_partial
        expected = options.expected_digest
        self._expected_digest = None if expected is None else parse_digest(expected)
        self.has_digest = expected is not None
        self._proven_nbytes: int | None = None
        # Of the copy that is read, where another process opened it.
        self._token: Any = None

    def __getstate__(self) -> dict[str, Any]:
        session = self.session
        assert isinstance(session, FileSession)
        return super().__getstate__() | {"_token": session.file.token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.preload or self._where.is_volatile:
            # In memory it is there while somebody has it open, which whoever sent this may cease to.
            self.head  # noqa: B018

    def refresh(self) -> bool:
        """Look again at a file that may have grown or was compacted; says whether anything changed.

        Arrays and samples handed out before stay what they were. With `local=` the samples stay those of the
        copy; where nearly all of it is here by now, it is made whole, and mapped from here on.

        Raises:
            StaleArchiveError: the path now leads to another archive; or the file changed and was opened
                with an expected_digest.
        """
        before = self.session
        assert isinstance(before, FileSession)
        if self.local is not None:
            self._keep(self._whole(before) or before)
            return False
        newer = before.look_again()
        if newer is None:
            return False
        if self._expected_digest is not None:
            newer.close()
            raise base.StaleArchiveError(
                f"{self.path}: the file has changed since its digest was checked; open it again"
            )
        self._keep(newer.settled())
        return True

    def _open(self) -> FileSession:
        try:
            return self._opened()
        except (base.CorruptArchiveError, base.NotAnArchiveError, base.StaleArchiveError):
            # Over a network it may have been the way, or it was replaced just then.
            if not self.by_request or self.local is not None:
                raise
        return self._opened()

    def _opened(self) -> FileSession:
        file = self._source()
        try:
            if self._expected_digest is not None:
                # Once for this reader and all its copies in other processes.
                if self._proven_nbytes is None:
                    self._proven_nbytes = check_digest(file, self._expected_digest)
                if file.size() != self._proven_nbytes:
                    raise base.StaleArchiveError(
                        f"{self.path}: {file.size():,} bytes, {self._proven_nbytes:,} when its digest was "
                        "checked; open it again"
                    )
            session = self._session_with(file).settled()
            if self._expected_digest is not None and not session.sealed:
                raise no_digest(self.path)
            self._check_uuid(session)
            if self._uuid is None and not self.allow_partial:
                _warn_of(session)
        except BaseException:
            file.close()
            raise
        return session

    def _source(self) -> ByteSource:
        # A process that got this by pickle reads what its sender reads, though the file may have changed.
        if self.local is not None:
            options = {"folder": self.local, "max_bytes": self._max_bytes}
            return storage.open_copy("local", self._where, self._token, **options)
        if self.preload is not None:
            return storage.open_copy(self.preload, self._where, self._token)
        return self._where.open()

    def _session_with(self, file: ByteSource) -> FileSession:
        def look() -> FileSession:
            return FileSession(file, self.io, self.verify, self.allow_pickle, self.decoding)

        # A copy that lost in a power cut what it had: fetched again, it may make sense.
        try:
            session = look()
            if not session.sealed and file.mend_opening():  # only a sealed archive is copied
                session = look()
        except (base.CorruptArchiveError, base.NotAnArchiveError):
            if not file.mend_opening():
                raise
            session = look()
        if self.local is not None:
            file.accept()
        # Only who opened the copy makes it whole.
        whole = self._whole(session) if self._token is None else None
        if whole is None:
            return session
        file.close()
        return whole

    def _whole(self, session: FileSession) -> FileSession | None:
        """A session with the copy where nearly all of it is here by now; else None."""
        start, nbytes = session.contents.index.blocks[:, 1:3].T
        whole = session.file.finish(start, start + nbytes) if session.file.is_partial else None
        return None if whole is None else self._session_with(whole)


def _warn_of(session: FileSession) -> None:
    """Warn of an archive that is not sealed and that nobody writes, once; and of one that is damaged."""
    if session.sealed or (session.has_writer and not session.damaged):
        return
    state = session.path, *session.file.tag()
    if state not in _warned:
        warnings.warn(session.partial_text(), base.PartialArchiveWarning, stacklevel=2)
        _warned.add(state)
