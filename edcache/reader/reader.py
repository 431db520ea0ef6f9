"""The reader: a path, a uuid and a few options.

Its hold on the file exists per process, made at the first use; a fork inherits it, which is safe
because nothing here has a file position, and a pickle leaves it behind.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edcache import bounded, durable
from edcache.codec import STORED, Decoder, Decoding
from edcache.digests import check_digest, no_digest, parse_digest
from edcache.durable import ByteSource, Location, absolute, located
from edcache.errors import (
    ArchiveClosedError,
    CodecError,
    CorruptArchiveError,
    CorruptRecordError,
    EdcacheError,
    NotAnArchiveError,
    OptionError,
    PartialArchiveWarning,
    StaleArchiveError,
)
from edcache.format import Head
from edcache.labels.tables import Failure, Records
from edcache.options import ReadKeywords, ReadOptions, takes
from edcache.reader.group import Group
from edcache.reader.hold import Hold

if TYPE_CHECKING:
    from typing_extensions import Unpack

# States of archives of which this process has warned.
_warned: set[tuple[object, ...]] = set()


@takes(ReadOptions)
class Reader:
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
        **keywords: Unpack[ReadKeywords],
    ) -> None:
        options = ReadOptions.of(options, keywords, "Reader")
        if options.local is None and options.max_bytes is not None:
            raise OptionError(
                f"max_bytes={options.max_bytes!r}; it is for the copies in local=, which was not given"
            )
        self._where = located(path, storage_options)
        self.path = self._where.path
        if options.preload and self._where.is_volatile:
            raise OptionError(f"{self.path}: in memory already; leave preload out")
        self.preload = options.preload
        if options.local is not None:
            durable.check_outlives(options.local)
        self.local = None if options.local is None else absolute(options.local)
        self._max_bytes: Any = options.max_bytes
        self.verify = options.verify
        self.allow_pickle = options.allow_pickle
        self.allow_partial = options.allow_partial
        self.io = options.io
        self.decoding = None if options.decode == STORED else Decoding.of(options.decode)
        self.known_length = 0
        expected = options.expected_digest
        self._expected_digest = None if expected is None else parse_digest(expected)
        self._proven_nbytes: int | None = None
        self._uuid: bytes | None = None
        # Of the copy that is read, where another process opened it.
        self._token: Any = None
        self._hold: Hold | None = None
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_hold": None, "_uuid": self.head.uuid, "_token": self._here.file.token}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.preload or self._where.is_volatile:
            # In memory it is there while somebody has it open, which whoever sent this may cease to.
            self.head  # noqa: B018

    def __repr__(self) -> str:
        return f"Reader({self.path!r})"

    def __len__(self) -> int:
        return self._here.contents.index.length

    @property
    def head(self) -> Head:
        """What the archive says about itself."""
        return self._here.head

    @property
    def sealed(self) -> bool:
        """Whether the archive was sealed when it was opened or last refreshed."""
        return self._here.sealed

    @property
    def declared_length(self) -> int | None:
        """Samples of the source as the archive was told: None where it was written without a dataset."""
        return None if self.head.length is None else len(self)

    @property
    def chunks(self) -> int | None:
        """Number of chunks, where the chain was walked; None for a sealed archive."""
        return self._here.chunks

    @property
    def damaged(self) -> list[str]:
        """What was unreadable in an unsealed archive, a line a chunk; those samples are missing."""
        return list(self._here.damaged)

    @property
    def nbytes(self) -> int:
        """Bytes of the file, as mapped."""
        return self._here.nbytes

    def memory(self) -> dict[str, int]:
        """Bytes of memory that reading takes in this process, samples that were handed out aside.

        Returns:
            "mapped": of the file, shared by all processes and given back when memory is short.
            "private": of this process alone; does not grow with what is read.
        """
        return {"mapped": self._here.storage.mapped_nbytes, "private": self._here.private_nbytes}

    @property
    def records(self) -> Records:
        """Where each record lies: arrays over mapped memory where the archive is sealed, read only."""
        return self._here.contents.index.records

    @property
    def schemas(self) -> Sequence[str]:
        """The schema texts that `records.schema` numbers."""
        return self._here.contents.index.schemas

    def chunk_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Which chunk holds the record of each sample, counted as they lie in the file; -1 for no record.

        Args:
            indices: int64 [n], each in [0, len(self)).
        Returns:
            int64 [n], a copy.
        Cost: reads the index alone; 8 to 32 bytes of memory a sample.
        """
        return self._here.chunk_of(indices)

    def missing(self) -> npt.NDArray[np.int64]:
        """The indices without a record, sorted: int64 [k], a copy.

        Raises:
            LengthError: the archive claims more samples than its size justifies allocating for.
        """
        index = self.records.index
        if index is None:
            return np.empty(0, np.int64)
        self.justify(9)
        absent = np.ones(len(self), bool)
        absent[index] = False
        return np.flatnonzero(absent)

    @property
    def present(self) -> int:
        """How many indices have a record."""
        return len(self.records.offset)

    @property
    def complete(self) -> bool:
        """Whether it is sealed, and every index has a record, or is recorded as absent for good."""
        return self.sealed and self.has_all

    @property
    def has_all(self) -> bool:
        """The same as far as known: of an archive that is not sealed, chunks may be missing unnoticed."""
        return self._here.has_all

    @property
    def is_abandoned(self) -> bool:
        """Whether it is what a first fill left that failed before its first sample: no process writes it."""
        here = self._here
        return here.holds_nothing and not here.has_writer

    @property
    def failures(self) -> Sequence[Failure]:
        """Why samples have no record, where they failed: by rising index."""
        return self._here.contents.index.failures

    def has(self, index: int) -> bool:
        """Whether an index in [0, len(self)) has a record."""
        return self._here.find(index) is not None

    def read(self, index: int, copy: bool = True) -> Any:
        """Decode one sample.

        Args:
            index: in [0, len(self)).
            copy: True returns memory that the caller owns. False returns arrays over the mapped
                file where nothing is compressed; writing to them is an error or undefined.
        Raises:
            SampleIndexError: out of range. MissingSampleError: no record yet.
            CorruptRecordError: "train.zip: record 17 at offset 4,096: crc32 0x1c291ca3, the index
                says 0x9ae0daf0; ...".
            PickleRefusedError, UnregisteredTypeError: the record needs what was not allowed.
            ImageError: "train.zip: sample 17: JPEG does not decode: ...".
        """
        here = self._here
        row = here.row(index)
        data = here.record(row)
        try:
            return here.decoder(row, self.allow_pickle).decode(data, copy=copy)
        except (CodecError, CorruptRecordError) as error:
            raise self.placed(error, index) from error

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        """The same error over the record of a sample, with the place in front of its text."""
        here = self._here
        where = here.place(here.row(index)) if isinstance(error, CorruptRecordError) else None
        return type(error)(f"{where or f'{self.path}: sample {index}'}: {error}")

    def decoder(self, index: int) -> Decoder | None:
        """How the record of a sample is decoded; None where it has no record."""
        row = self._here.find(index)
        return None if row is None else self._here.decoder(row, self.allow_pickle)

    def read_many(self, indices: npt.NDArray[np.int64], copy: bool = True) -> list[Any]:
        """Decode the samples at indices in [-len(self), len(self)); returns and raises as `read`."""
        group = self.group(indices) if len(indices) else None
        if group is not None:
            # Whatever is wrong is named by the way below.
            with suppress(EdcacheError):
                return group.decoded(copy)
        length = len(self)
        with self.reading_ahead(indices):
            return [self.read(index % length, copy) for index in indices.tolist()]

    @property
    def by_request(self) -> bool:
        """Whether it is behind a URL, so that each read is a request."""
        return self._where.by_request

    @contextmanager
    def reading_ahead(
        self, indices: npt.NDArray[np.int64], wanted: tuple[int, int] | None = None
    ) -> Iterator[None]:
        """Let this thread read records one by one inside the block, all of which are fetched at once before.

        Does nothing where the archive is not behind a URL.

        Args:
            indices: int64 [n]; what is out of range or has no record is left out.
            wanted: as in `record`.
        Raises: CorruptRecordError, StaleArchiveError, StorageError.
        """
        with self._here.reading_ahead(indices, wanted):
            yield

    def record(self, index: int, wanted: tuple[int, int] | None = None) -> memoryview:
        """The bytes of a sample's record before compression; of a mapped file read only, not a copy.

        Args:
            wanted: which of them will be read, half-open: only those, and the block around, are checked.
        Raises: as `read`.
        """
        here = self._here
        return here.record(here.row(index), wanted)

    def common_decoder(self, indices: npt.NDArray[np.int64]) -> Decoder | None:
        """The decoder of samples of one schema; None as in `group`. Reads no record."""
        found = self._here.alike(indices)
        return None if found is None else found.decoder

    def group(self, indices: npt.NDArray[np.int64], wanted: tuple[int, int] | None = None) -> Group | None:
        """Records of one schema, checked as `read` would, for reading field by field.

        Args:
            indices: int64 [n], n > 0, each in [-len(self), len(self)).
            wanted: the bytes of each record that will be read, half-open; None for all of it.
        Returns:
            None where the samples differ in structure, where some are missing, and where records are
            pickled or carry their own schema: then `read` them one by one.
        Raises: CorruptRecordError, SampleIndexError, as `read`.
        """
        return self._here.group(indices, wanted)

    def labels(self) -> Any:
        """The label table: row i is sample i, null where it has no label. A pyarrow Table.

        Raises:
            LengthError: as `missing`. CorruptArchiveError: labels.arrow is damaged.
        Cost: the first call in a process checksums labels.arrow; columns alias the mapped file.
        """
        here = self._here
        if self.records.index is not None and not here.has_label_rows:
            self.justify(32 + 16 * len(self.head.labels))
        return here.labels()

    @property
    def has_digest(self) -> bool:
        """Whether it was opened with an expected_digest."""
        return self._expected_digest is not None

    @property
    def label_names(self) -> list[str]:
        """The label columns: those of the head, and those that were added or dropped afterwards."""
        return [name for name, _ in self._here.label_columns]

    @property
    def unoriginal_labels(self) -> frozenset[str]:
        """Columns of the head that may hold other values than the samples' own, or were dropped."""
        return self._here.unoriginal_labels

    def justify(self, nbytes: int, count: int | None = None) -> None:
        """Refuse to allocate so many bytes for each sample, or for `count` of them, on the archive's word.

        Raises:
            LengthError: neither the file's size nor a source in hand (`known_length`) justifies it.
        """
        count = len(self) if count is None else count
        if count <= self.known_length:
            bounded.check_books(count, nbytes, self.path)
        else:
            bounded.justify(nbytes * count, self.nbytes, self.path, f"{count:,} samples")

    def refresh(self) -> bool:
        """Look again at a file that may have grown; says whether anything changed.

        Arrays and samples handed out before stay what they were.

        Where the archive was compacted meanwhile, the new file is opened. With `local=` the
        samples stay those of the copy, and another state of the archive takes opening it again; but where
        nearly all of the copy is here by now, it is made whole, and mapped from here on.

        Raises:
            StaleArchiveError: the path now leads to another archive; or the file changed and was opened
                with an expected_digest.
        """
        before = self._here
        if self.local is not None:
            self._keep(self._whole(before) or before)
            return False
        found = before.look_again()
        if found is None:
            return False
        if self._expected_digest is not None:
            found.file.close()
            raise StaleArchiveError(
                f"{self.path}: the file has changed since its digest was checked; open it again"
            )
        self._keep(found.settled())
        return True

    def close(self) -> None:
        """Let go of the file; memory that was handed out stays valid. Idempotent."""
        self._closed = True
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.file.close()

    @property
    def _here(self) -> Hold:
        # Two threads may both attach; either result serves, so no lock that a fork could freeze.
        hold = self._hold
        if hold is None or self._closed:
            hold = self._attach()
            self._keep(hold)
        return hold

    def _keep(self, hold: Hold) -> None:
        """Read from this hold on, unless another thread has closed the reader meanwhile."""
        self._hold = hold
        if self._closed:
            self.close()
            hold.file.close()
            raise self._closed_error()

    def _closed_error(self) -> ArchiveClosedError:
        return ArchiveClosedError(f"{self.path}: closed; open it again to read")

    def _attach(self) -> Hold:
        if self._closed:
            raise self._closed_error()
        try:
            return self._opened()
        except (CorruptArchiveError, NotAnArchiveError, StaleArchiveError):
            # Over a network it may have been the way, or it was replaced just then.
            if not self.by_request or self.local is not None:
                raise
        return self._opened()

    def _opened(self) -> Hold:
        file = self._source()
        try:
            if self._expected_digest is not None:
                self._prove(file, self._expected_digest)
            hold = self._hold_on(file).settled()
            if self._expected_digest is not None and not hold.sealed:
                raise no_digest(self.path)
            if self._uuid not in (None, hold.head.uuid):
                raise StaleArchiveError(
                    f"{self.path}: another archive is here now than the one that was opened; open it again"
                )
            if self._uuid is None and not self.allow_partial:
                _warn_of(hold)
        except BaseException:
            file.close()
            raise
        self._uuid = hold.head.uuid
        return hold

    def _source(self) -> ByteSource:
        # A process that got this by pickle reads what its sender reads, though the file may have changed.
        if self.local is not None:
            options = {"folder": self.local, "max_bytes": self._max_bytes}
            return durable.open_copy("local", self._where, self._token, **options)
        if self.preload is not None:
            return durable.open_copy(self.preload, self._where, self._token)
        return self._where.open()

    def _hold_on(self, file: ByteSource) -> Hold:
        # A copy that lost in a power cut what it had: fetched again, it may make sense.
        try:
            hold = Hold(file, self.io, self.verify, self.decoding)
            if not hold.sealed and file.mend_opening():  # only a sealed archive is copied
                hold = Hold(file, self.io, self.verify, self.decoding)
        except (CorruptArchiveError, NotAnArchiveError):
            if not file.mend_opening():
                raise
            hold = Hold(file, self.io, self.verify, self.decoding)
        file.accept()
        # Only who opened the copy makes it whole.
        whole = self._whole(hold) if self._token is None else None
        if whole is None:
            return hold
        file.close()
        return whole

    def _whole(self, hold: Hold) -> Hold | None:
        """A hold on the copy where nearly all of it is here by now; None where that is how it is held."""
        found = hold.file.finish(*hold.record_extents()) if hold.file.is_partial else None
        return None if found is None else self._hold_on(found)

    def _prove(self, file: ByteSource, expected: str) -> None:
        """Hash the file, once for this reader and all its copies in other processes."""
        if self._proven_nbytes is None:
            self._proven_nbytes = check_digest(file, expected)
        if file.size() != self._proven_nbytes:
            raise StaleArchiveError(
                f"{self.path}: {file.size():,} bytes, {self._proven_nbytes:,} when its digest was checked; "
                "open it again"
            )


def _warn_of(hold: Hold) -> None:
    """Warn of an archive that is not sealed and that nobody writes, once; and of one that is damaged."""
    if hold.sealed or (hold.has_writer and not hold.damaged):
        return
    state = hold.path, *hold.file.tag()
    if state not in _warned:
        warnings.warn(hold.partial_text(), PartialArchiveWarning, stacklevel=2)
        _warned.add(state)
