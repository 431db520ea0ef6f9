"""Read an archive: map it, locate records, check and decode them. No lock, no write, no thread.

A reader is a path, a uuid and a few options. Its mapping and index exist per process, made at the
first use; a fork inherits them, which is safe because nothing here has a file position, and a
pickle leaves them behind.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from edcache import format
from edcache.codec import Decoder, aliased
from edcache.codec.compression import decompress
from edcache.contents import Chain, Contents, read_table
from edcache.durable import File
from edcache.errors import (
    ArchiveClosedError,
    CodecError,
    CorruptArchiveError,
    CorruptRecordError,
    MissingSampleError,
    OptionError,
    SampleIndexError,
    StaleArchiveError,
)
from edcache.format import LATTICE, Head, Header
from edcache.labels.tables import (
    ChunkTable,
    Dictionary,
    IndexTable,
    Records,
    parse_index,
    parse_labels,
    spread,
)

_LATTICE_BITS: Final = np.uint64(LATTICE.bit_length() - 1)
VERIFY_CHOICES: Final = ("touch", "always", "never")


class Reader:
    """Random access to the samples of one archive, sealed or still growing.

    Args:
        path: the archive. Nothing is opened before the first use.
        verify: when a record's crc32 is checked: "touch" at its first read in this process,
            "always" at every read, "never".
        allow_pickle: read records that are pickles, which run whatever code their author chose.
    Raises, at the first use:
        ArchiveNotFoundError, NotAnArchiveError, FormatVersionError, CorruptArchiveError.
        StaleArchiveError: unpickled in a process where the path leads to another archive.

    Cost: a sealed archive opens in the time to checksum its index (26 bytes a sample), whatever
    its size; an unsealed one reads the table of every chunk. No object per sample is made.
    Safety: threads, fork, spawn, forkserver. A pickle has under 2 kB whatever the archive's size.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, verify: str = "touch", allow_pickle: bool = False
    ) -> None:
        if verify not in VERIFY_CHOICES:
            raise OptionError(f"verify={verify!r}; choose one of {', '.join(map(repr, VERIFY_CHOICES))}")
        self.path = os.fspath(path)
        self.verify = verify
        self.allow_pickle = allow_pickle
        self._uuid: bytes | None = None
        self._attached: _Attached | None = None
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_attached": None, "_uuid": self.head.uuid}

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
        return len(self._here.view)

    @property
    def records(self) -> Records:
        """Where each record lies: arrays over mapped memory where the archive is sealed, read only."""
        return self._here.contents.index.records

    @property
    def schemas(self) -> Sequence[str]:
        """The schema texts that `records.schema` numbers."""
        return self._here.contents.index.schemas

    def missing(self) -> npt.NDArray[np.int64]:
        """The indices without a record, sorted: int64 [k], a copy."""
        index = self.records.index
        if index is None:
            return np.empty(0, np.int64)
        absent = np.ones(len(self), bool)
        absent[index] = False
        return np.flatnonzero(absent)

    @property
    def present(self) -> int:
        """How many indices have a record."""
        return len(self.records.offset)

    @property
    def complete(self) -> bool:
        """Whether every index has a record."""
        return self.records.index is None

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
        """
        here = self._here
        row = here.row(index)
        data = here.record(row, self.verify)
        try:
            return here.decoder(row, self.allow_pickle).decode(data, copy=copy)
        except CodecError as error:
            raise type(error)(f"{self.path}: sample {index}: {error}") from error
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{here.place(row)}: {error}") from error

    def root_kind(self, index: int) -> str | None:
        """What a sample is, as its schema says: "dict", "tuple", "tensor", ...

        None where it has no record, and for pickles and records that carry their own schema.
        """
        row = self._here.find(index)
        structure = None if row is None else self._here.decoder(row, False).structure
        return None if structure is None else structure.kind

    def group(self, indices: npt.NDArray[np.int64]) -> Group | None:
        """Records of one layout, checked as `read` would, for reading field by field.

        Args:
            indices: int64 [n], n > 0, each in [0, len(self)).
        Returns:
            None where the samples differ in structure, where some are missing, and where records are
            compressed, pickled or carry their own schema: then `read` them one by one.
        Raises: CorruptRecordError, as `read`.
        """
        return self._here.group(indices, self.verify)

    def labels(self) -> Any:
        """The label table: row i is sample i, null where it has no record yet. A pyarrow Table.

        Cost: the first call in a process checksums labels.arrow; columns alias the mapped file.
        """
        return self._here.labels()

    def refresh(self) -> bool:
        """Look again at a file that may have grown; says whether anything changed.

        Arrays and samples handed out before stay what they were.

        Raises:
            StaleArchiveError: the path now leads to another file.
        """
        before = self._here
        found = before.look_again()
        if found is None:
            return False
        self._attached = found
        return True

    def close(self) -> None:
        """Let go of the file; memory that was handed out stays valid. Idempotent."""
        self._closed = True
        attached, self._attached = self._attached, None
        if attached is not None:
            attached.file.close()

    @property
    def _here(self) -> _Attached:
        # Two threads may both attach; either result serves, so no lock that a fork could freeze.
        attached = self._attached
        if attached is None:
            attached = self._attach()
            self._attached = attached
        return attached

    def _attach(self) -> _Attached:
        if self._closed:
            raise ArchiveClosedError(f"{self.path}: closed; open it again to read")
        file = File.open(self.path, "r")
        try:
            attached = _Attached(file)
            if self._uuid not in (None, attached.head.uuid):
                raise StaleArchiveError(
                    f"{self.path}: another archive is here now than the one that was opened; open it again"
                )
        except BaseException:
            file.close()
            raise
        self._uuid = attached.head.uuid
        return attached


class Group:
    """Records of one schema that were checked and lie in the mapped file.

    Attributes:
        decoder: of their schema. places: int64 tensor [n], their offsets in units of 8 bytes.
    """

    def __init__(
        self,
        decoder: Decoder,
        base: torch.Tensor,
        view: memoryview,
        offset: npt.NDArray[np.uint64],
        nbytes: npt.NDArray[np.uint64],
    ) -> None:
        self.decoder = decoder
        self.places = torch.from_numpy((offset >> _LATTICE_BITS).view(np.int64))
        self._base = base
        self._view = view
        self._offset = offset
        self._nbytes = nbytes

    def __len__(self) -> int:
        return len(self.places)

    def window(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes `offset` to `offset + nbytes` of whatever record begins at each multiple of 8 of the file.

        A uint8 tensor of overlapping rows over the mapped file; index it with `places`, never write it.
        """
        rows = (len(self._base) - offset - nbytes) // LATTICE + 1
        return self._base.as_strided((rows, nbytes), (LATTICE, 1), offset)

    def values(self, path: tuple[Any, ...]) -> list[Any]:
        """One field of every record, decoded, in memory that the caller owns."""
        decode = self.decoder.decode_field
        return [decode(path, self._record(row)) for row in range(len(self))]

    def _record(self, row: int) -> memoryview:
        start = int(self._offset[row])
        return self._view[start : start + int(self._nbytes[row])]


class _Attached:
    """A reader's hold on the file in one process: mapping, index, decoders, what was verified."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.path = file.path
        self._size = file.size()
        self.head, first = format.read_head(file.pread, self.path)
        self._seal = format.read_seal(file.pread, self._size, self.head.uuid)
        self._chain = Chain(self.head, first, self.path)
        self.chunks: int | None = None
        self.damaged: list[str] = []
        if self._seal is None:
            self._chain.extend(file.pread, self._size)
            self.chunks = len(self._chain.chunks)
        # Not a byte behind the last entry: a writer may cut a torn tail off, and a mapping of what is no
        # longer there is a SIGBUS (test_process.py, test_a_torn_tail_that_is_cut_*).
        end = self._chain.cursor.offset if self._seal is None else self._size
        # access= works on every platform; the mapping outlives the descriptor.
        self.view = memoryview(mmap.mmap(file.fd, min(end, self._size), access=mmap.ACCESS_READ))
        self.contents = self._sealed_contents() if self._seal else self._chain.contents(self._sound_table)
        self._prepare()

    @property
    def sealed(self) -> bool:
        return self._seal is not None

    def _pread(self, offset: int, nbytes: int) -> bytes:
        return bytes(self.view[offset : offset + nbytes])

    def _sealed_contents(self) -> Contents:
        assert self._seal is not None
        header = self._seal[0]
        index = parse_index(self._checked(header, "index.arrow"), header.samples)
        return Contents(index, None)

    def _checked(self, header: Header, name: str) -> memoryview:
        data = self.view[header.payload_offset : header.payload_end]
        if format.crc32(data) != header.payload_crc:
            raise CorruptArchiveError(
                f"{self.path}: {name} at offset {header.offset:,} fails its crc32; the samples are not "
                f'lost: open the archive with CacheWriter(..., mode="a") after "edcache verify {self.path}"'
            )
        return data

    def _sound_table(self, header: Header) -> ChunkTable | None:
        try:
            return read_table(self._pread, header, self.path)
        except CorruptArchiveError as error:
            # A power cut may leave a header without its payload: those samples are missing.
            self.damaged.append(str(error))
            return None

    def _prepare(self) -> None:
        index: IndexTable = self.contents.index
        records = index.records
        self._rows = len(records.offset)
        # Reading one element of a memoryview costs half of what numpy takes.
        self._offset, self._nbytes = records.offset.data, records.nbytes.data
        self._crc32, self._schema = records.crc32.data, records.schema.data
        self._raw_nbytes = None if records.raw_nbytes is None else records.raw_nbytes.data
        self._index = records.index
        self._touched = bytearray(self._rows + 7 >> 3)
        self._untouched = self._rows
        self._all_touched = False
        self._decoders: dict[tuple[int, bool], Decoder] = {}
        self._labels: Any = None
        self._dictionaries: list[bytes] | None = None

    def row(self, index: int) -> int:
        """The row of the index table that holds a sample."""
        length = self.contents.index.length
        if not 0 <= index < length:
            raise SampleIndexError(f"{self.path}: index {index} not in [0, {length:,})")
        row = self.find(index)
        if row is None:
            raise MissingSampleError(
                f"{self.path}: sample {index} has no record yet ({self._rows:,} of {length:,} have); "
                "fill it with warmup() on a dataset that has its source"
            )
        return row

    def find(self, index: int) -> int | None:
        """The row of the index table for an index in range, or None where it has no record."""
        if self._index is None:
            return index
        row = int(np.searchsorted(self._index, index))
        return row if row < len(self._index) and self._index[row] == index else None

    def place(self, row: int) -> str:
        """Names a record in messages."""
        index = row if self._index is None else int(self._index[row])
        return f"{self.path}: record {index} at offset {self._offset[row]:,}"

    def record(self, row: int, verify: str) -> memoryview:
        """The bytes of a record before compression, checked as `verify` says."""
        offset, nbytes = self._offset[row], self._nbytes[row]
        end = offset + nbytes
        if end > len(self.view):
            raise CorruptRecordError(
                f"{self.place(row)}: it ends at {end:,}, the file at {len(self.view):,}; "
                f'run "edcache verify {self.path}"'
            )
        data = self.view[offset:end]
        if verify != "never":
            self._verify(row, data, verify == "always")
        if self._raw_nbytes is None:
            return data
        return self._decompressed(row, data)

    def _verify(self, row: int, data: memoryview, always: bool) -> None:
        bit = 1 << (row & 7)
        touched = self._touched[row >> 3] & bit
        if touched and not always:
            return
        found = format.crc32(data)
        if found != self._crc32[row]:
            raise CorruptRecordError(
                f"{self.place(row)}: crc32 {found:#010x}, the index says {self._crc32[row]:#010x}; "
                f'run "edcache verify {self.path}"'
            )
        if not touched:
            self._touched[row >> 3] |= bit
            self._untouched -= 1

    def _decompressed(self, row: int, data: memoryview) -> memoryview:
        assert self._raw_nbytes is not None
        try:
            return memoryview(decompress(data, self._raw_nbytes[row], self.dictionaries()))
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{self.place(row)}: {error}") from error

    def dictionaries(self) -> list[bytes]:
        """The compression dictionaries, read and checked once per process."""
        if self._dictionaries is None:
            found = (self._dictionary(entry) for entry in self.contents.index.dictionaries)
            self._dictionaries = [data for data in found if data is not None]
        return self._dictionaries

    def _dictionary(self, entry: Dictionary) -> bytes | None:
        """None where it fails its crc32: then only the records that need it are unreadable, and say so."""
        data = self._pread(entry.offset, entry.nbytes)
        return data if len(data) == entry.nbytes and format.crc32(data) == entry.crc32 else None

    def decoder(self, row: int, allow_pickle: bool) -> Decoder:
        """The decoder for a record's schema, compiled once per process."""
        key = self._schema[row], allow_pickle
        decoder = self._decoders.get(key)
        if decoder is None:
            schemas = self.contents.index.schemas
            if key[0] >= len(schemas):
                raise CorruptRecordError(f"{self.place(row)}: schema {key[0]} of {len(schemas)}")
            decoder = self._decoders[key] = Decoder(schemas[key[0]], allow_pickle=allow_pickle)
        return decoder

    def group(self, indices: npt.NDArray[np.int64], verify: str) -> Group | None:
        """See `Reader.group`."""
        records = self.contents.index.records
        rows = indices if self._index is None else np.searchsorted(self._index, indices)
        if self._raw_nbytes is not None or not self._has_rows(rows, indices):
            return None
        decoder = self.decoder(int(rows[0]), False)
        if not self._uniform and not self._lie_on_lattice(records.take(rows), decoder):
            return None
        if verify == "always" or (verify == "touch" and not self._is_all_touched()):
            self._verify_rows(rows, verify == "always")
        return Group(decoder, self._base, self.view, records.offset[rows], records.nbytes[rows])

    @cached_property
    def _uniform(self) -> bool:
        """Whether any records of the archive can be gathered together; looks at the whole index once."""
        return self._rows > 0 and self._lie_on_lattice(self.contents.index.records, self.decoder(0, False))

    def _has_rows(self, rows: npt.NDArray[np.int64], indices: npt.NDArray[np.int64]) -> bool:
        if self._index is None:
            return True
        return bool(np.all(rows < len(self._index))) and bool(np.all(self._index[rows] == indices))

    def _lie_on_lattice(self, chosen: Records, decoder: Decoder) -> bool:
        """Whether the records have one schema and a gather stays within them.

        Where not, reading them one by one works, or says what is wrong.
        """
        size, least = len(self.view), decoder.fixed_nbytes
        return bool(
            decoder.structure is not None
            and not np.any(chosen.schema != chosen.schema[0])
            and chosen.offset.max() <= size
            and chosen.nbytes.max() <= size
            and (chosen.offset + chosen.nbytes).max() <= size
            and not np.any(chosen.offset % LATTICE)
            and chosen.nbytes.min() >= least
            and (decoder.nbytes is None or chosen.nbytes.max() == least)
        )

    def _is_all_touched(self) -> bool:
        if self._untouched > 0:
            return False
        if not self._all_touched:
            # Threads may count a row twice; the bits tell.
            touched = int(np.unpackbits(np.frombuffer(self._touched, np.uint8)).sum())
            self._untouched = self._rows - touched
            self._all_touched = self._untouched == 0
        return self._all_touched

    def _verify_rows(self, rows: npt.NDArray[np.int64], always: bool) -> None:
        """Check the crc32 of many records, as `_verify` does of one."""
        touched = np.frombuffer(self._touched, np.uint8)
        if not always:
            rows = rows[(touched[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 0]
        records, view, crc32 = self.contents.index.records, self.view, format.crc32
        columns = (records.offset[rows], records.nbytes[rows], records.crc32[rows])
        for row, start, nbytes, expected in zip(rows, *(column.tolist() for column in columns), strict=True):
            if crc32(view[start : start + nbytes]) != expected:
                self._verify(int(row), view[start : start + nbytes], always)
        np.bitwise_or.at(touched, rows >> 3, np.uint8(1) << (rows & 7).astype(np.uint8))
        self._untouched -= len(rows)

    @cached_property
    def _base(self) -> torch.Tensor:
        return torch.from_numpy(aliased(self.view))

    def labels(self) -> Any:
        """The label table with one row per sample."""
        if self._labels is None:
            index = self.contents.index
            table = self.contents.labels if self._seal is None else self._sealed_labels(self._seal[1])
            self._labels = spread(table, index.records.index, index.length)
        return self._labels

    def _sealed_labels(self, header: Header) -> Any:
        try:
            return parse_labels(self._checked(header, "labels.arrow"), header.samples)
        except CorruptArchiveError as error:
            raise CorruptArchiveError(f"{self.path}: {error}") from error

    def _has_changed(self, file: File) -> bool:
        size = file.size()
        if self.sealed:
            return size != self._size
        # The size alone does not tell: a torn tail may have been cut and its bytes used for a chunk.
        return next(format.walk(file.pread, size, self.head.uuid, self._chain.cursor), None) is not None

    def look_again(self) -> _Attached | None:
        """A new hold on the file if it changed, else None."""
        file = File.open(self.path, "r")
        try:
            if file.identity() != self.file.identity():
                raise StaleArchiveError(
                    f"{self.path}: the file was replaced since it was opened; open it again"
                )
            if not self._has_changed(file):
                file.close()
                return None
            return _Attached(file)
        except BaseException:
            file.close()
            raise
