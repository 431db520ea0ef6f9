"""RedisReader: random access to the samples of a cache in Redis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import bounded
from edcache.codec import STORED, Decode, Decoder, Decoding
from edcache.codec.compression import decompress
from edcache.errors import (
    ArchiveClosedError,
    CodecError,
    CorruptRecordError,
    EdcacheError,
    LengthError,
    MissingSampleError,
    SampleFailedError,
    SampleIndexError,
)
from edcache.format import Head
from edcache.labels.tables import Blocks, Failure, Records
from edcache.labels.view import checked_indices
from edcache.reader.group import Group
from edcache.redis import frames
from edcache.redis.client import Client
from edcache.redis.fetching import Fetched, gathered_from, held, pieces_of
from edcache.redis.hold import Hold
from edcache.redis.log import Log, no_cache, read_head, stale
from edcache.servers import Server

Ints = npt.NDArray[np.int64]

_CHUNK_START: Final = Blocks._fields.index("records_offset")


class RedisReader:
    """Random access to the samples of a cache in Redis, complete or still filling.

    Args:
        path: a URL with a prefix. Nothing is asked before the first use.
        allow_pickle, decode: as for `edcache.Reader`.
    Raises, at the first use:
        ArchiveNotFoundError, CorruptArchiveError, FormatVersionError.
        StorageError: the server does not answer, or refuses.
        StaleArchiveError: unpickled in a process where another cache is under the prefix.

    Every record's crc32 is checked whenever it is read. What is known of the samples, their labels too, is
    asked once in each process, and again by `refresh`: some 40 bytes a sample and the labels, of its own.
    Cost: a batch is one round trip, and its records pass through the connection whole.
    Safety: threads, fork, spawn, forkserver. A pickle has the URL, and no password.
    """

    # Each read is a request to the server; copies on this host are made of files only.
    by_request: Final = True
    preload: Final = None
    local: Final = None

    def __init__(self, path: str, *, allow_pickle: bool = False, decode: Decode = STORED) -> None:
        self.path = Server.of(path)
        self.allow_pickle = allow_pickle
        self.decoding = None if decode == STORED else Decoding.of(decode)
        self.known_length = 0
        self._client = Client(self.path)
        self._uuid: bytes | None = None
        self._hold: Hold | None = None
        self._closed = False
        # Of a batch that cannot be gathered: its samples are read one by one next, by the same thread.
        self._fetched = Fetched()

    def __getstate__(self) -> dict[str, Any]:
        uuid = self.head.uuid
        return self.__dict__ | {"_hold": None, "_uuid": uuid, "_fetched": Fetched()}

    def __repr__(self) -> str:
        return f"RedisReader({self.path!r})"

    def __len__(self) -> int:
        return self._here.contents.index.length

    @property
    def head(self) -> Head:
        """What the cache says about itself."""
        return self._here.log.head

    @property
    def sealed(self) -> bool:
        """Whether nothing is missing: there is nothing else to seal."""
        return self.complete

    @property
    def declared_length(self) -> int | None:
        """Samples of the source."""
        return len(self)

    @property
    def chunks(self) -> int | None:
        """Number of publications."""
        return len(self._here.log.chain.chunks)

    @property
    def damaged(self) -> list[str]:
        """Nothing: what is damaged in the log is an error."""
        return []

    @property
    def nbytes(self) -> int:
        """Bytes of the records as they are stored, and of the log."""
        here = self._here
        return int(here.records.nbytes.sum()) + here.log.nbytes

    def memory(self) -> dict[str, int]:
        """Bytes of memory that reading takes in this process: none are mapped, see `Reader.memory`."""
        here = self._here
        columns = sum(column.nbytes for column in here.contents.index.records.columns().values())
        return {"mapped": 0, "private": here.log.nbytes + columns + here.label_nbytes}

    @property
    def records(self) -> Records:
        """The records that were published, but for those that are known to be gone; offsets tell nothing."""
        return self._here.records

    @property
    def schemas(self) -> Sequence[str]:
        """The schema texts that `records.schema` numbers."""
        return self._here.contents.index.schemas

    def chunk_of(self, indices: Ints) -> Ints:
        """With which publication each sample came: int64 [n], a copy; -1 for no record."""
        here = self._here
        rows = here.rows_of(indices)
        chunks = np.full(len(indices), -1, np.int64)
        found = rows >= 0
        starts = here.contents.index.blocks[:, _CHUNK_START]
        offsets = here.contents.index.records.offset[rows[found]].view(np.int64)
        chunks[found] = np.searchsorted(starts, offsets, side="right") - 1
        return chunks

    def missing(self) -> Ints:
        """The indices without a record, sorted: int64 [k], a copy.

        Asks the server whether it still has each record that was published.

        Raises:
            LengthError: as `Reader.missing`.
            StaleArchiveError: some are gone, because another cache is under the prefix now.
        Cost: one round trip for a few thousand samples.
        """
        here = self._here
        self.justify(9)
        absent = np.ones(len(self), bool)
        index = here.indices
        held = self._held(here, index)
        if not held.all():
            here.log.check_head()
            here.gone.update(index[~held].tolist())
        absent[index[held]] = False
        return np.flatnonzero(absent)

    def _held(self, here: Hold, index: Ints) -> npt.NDArray[np.bool_]:
        return held(self._client, [here.log.keys.record(i) for i in index.tolist()])

    @property
    def present(self) -> int:
        """How many indices have a record, as far as known."""
        here = self._here
        return len(here.contents.index.records.offset) - len(here.gone)

    @property
    def complete(self) -> bool:
        """Whether every index has a record, as far as known, or is recorded as absent for good."""
        absent = sum(failure.final for failure in self.failures)
        return self.present + absent == len(self)

    @property
    def has_all(self) -> bool:
        """The same: how many samples there are is always declared."""
        return self.complete

    @property
    def is_abandoned(self) -> bool:
        """Never."""
        return False

    @property
    def failures(self) -> Sequence[Failure]:
        """Why samples have no record, where they failed: by rising index."""
        return self._here.contents.index.failures

    def has(self, index: int) -> bool:
        """Whether an index in [0, len(self)) has a record, as far as known."""
        here = self._here
        return here.find(index) is not None and index not in here.gone

    def read(self, index: int, copy: bool = True) -> Any:
        """Decode one sample.

        Args:
            index: in [0, len(self)).
            copy: False returns arrays over what the server sent where nothing is compressed, read only.
        Raises:
            SampleIndexError: out of range.
            MissingSampleError: no record yet; or "...: the server has no record of sample 17 any more: it
                was evicted or expired; ...".
            CorruptRecordError: "...: record 17: crc32 0x1c291ca3, its frame says 0x9ae0daf0; ...".
            PickleRefusedError, UnregisteredTypeError, ImageError: as `Reader.read`.
        """
        frame = self._frame(index)
        try:
            place = self._place_of(frame.schema)
            return self._here.decoder(place, self.allow_pickle, self.decoding).decode(
                self._raw(frame), copy=copy
            )
        except (CodecError, CorruptRecordError, LengthError) as error:
            raise self.placed(error, index) from error

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        """The same error over the record of a sample, with the place in front of its text."""
        if not isinstance(error, CorruptRecordError):
            return type(error)(f"{self.path}: sample {index}: {error}")
        key = self._here.log.keys.record(index)
        return type(error)(
            f"{self.path}: record {index}: {error}; delete the key {key!r}, and warmup() computes it again"
        )

    def decoder(self, index: int) -> Decoder | None:
        """How the record of a sample is decoded; None where it has no record."""
        here = self._here
        place = here.schema_of(index) if self.has(index) else None
        return None if place is None else here.decoder(place, self.allow_pickle, self.decoding)

    def read_many(self, indices: Ints, copy: bool = True) -> list[Any]:
        """Decode the samples at indices in [-len(self), len(self)); returns and raises as `read`."""
        gathered = self.group(indices) if len(indices) else None
        if gathered is not None:
            # Whatever is wrong is named by the way below.
            with suppress(EdcacheError):
                return gathered.decoded(copy)
        length = len(self)
        return [self.read(index % length, copy) for index in indices.tolist()]

    @contextmanager
    def reading_ahead(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Iterator[None]:
        """Fetch records that will be read one by one inside the block, all of them whatever is wanted."""
        here = self._here
        indices = checked_indices(indices, len(self))
        rows = here.rows_of(indices)
        found = indices[rows >= 0]
        if len(found):
            self._fetched.keep(here, found, self._values(here, found, rows[rows >= 0]))
        yield

    def record(self, index: int, wanted: tuple[int, int] | None = None) -> memoryview:
        """The bytes of a sample's record before compression, all of them whatever is wanted; as `read`.

        Of a record that was stored again with another schema `decoder` is right afterwards.
        """
        frame = self._frame(index)
        try:
            place = self._place_of(frame.schema)
            here = self._here
            if place != here.schema_of(index):
                here.remade[index] = place
            return self._raw(frame)
        except (CorruptRecordError, LengthError) as error:
            raise self.placed(error, index) from error

    def common_decoder(self, indices: Ints) -> Decoder | None:
        """The decoder of samples of one schema; None as in `group`. Reads no record."""
        found = self._alike(self._here, indices)
        return None if found is None else found[1]

    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None:
        """Records of one schema, checked as `read` would, for reading field by field.

        Args:
            indices: int64 [n], n > 0, each in [-len(self), len(self)).
            wanted: of no use here: a record comes whole, since its crc32 is of all of it.
        Returns:
            None as `Reader.group`, and where the server has lost one of the records.
        Raises: SampleIndexError, StorageError.
        """
        here = self._here
        found = self._alike(here, indices)
        if found is None:
            return None
        rows, decoder = found
        places = checked_indices(indices, len(self))
        values = self._values(here, places, rows)
        gathered = gathered_from(
            values, places.tolist(), decoder, is_compressed=here.log.head.compression is not None
        )
        if gathered is None:
            self._fetched.keep(here, places, values)
        return gathered

    def _alike(self, here: Hold, indices: Ints) -> tuple[Ints, Decoder] | None:
        """The rows and the decoder of samples that were published with one schema."""
        rows = here.rows_of(checked_indices(indices, len(self)))
        if not len(rows) or rows.min() < 0:
            return None
        numbers = here.contents.index.records.schema[rows]
        if np.any(numbers != numbers[0]):
            return None
        decoder = here.decoder(int(numbers[0]), False, self.decoding)
        return None if decoder.structure is None else (rows, decoder)

    def _values(self, here: Hold, indices: Ints, rows: Ints) -> list[Any]:
        """What the server has under the keys of records, by one round trip; None where it has nothing."""
        keys = [here.log.keys.record(index) for index in indices.tolist()]
        commands: list[tuple[Any, ...]] = [
            ("mget", keys[part]) for part in pieces_of(here.contents.index.records.nbytes[rows])
        ]
        # A server that evicts what was used least would take the head first, which nobody else reads.
        answers = self._client.ask_all([*commands, ("touch", here.log.keys.head, here.log.keys.log)])
        values = [value for answer in answers[:-1] for value in answer]
        if None in values:
            self._note_gone(here, indices, values)
        return values

    def _note_gone(self, here: Hold, indices: Ints, values: list[Any]) -> None:
        here.log.check_head()
        here.gone.update(i for i, value in zip(indices.tolist(), values, strict=True) if value is None)

    def _frame(self, index: int) -> frames.Frame:
        here = self._here
        if not 0 <= index < len(self):
            raise SampleIndexError(f"{self.path}: index {index} not in [0, {len(self):,})")
        row = here.find(index)
        if row is None:
            raise self._no_record(here, index)
        value = self._fetched.take(here, index)
        if value is None:
            value = self._values(here, np.array([index]), np.array([row]))[0]
        if value is None:
            raise MissingSampleError(
                f"{self.path}: the server has no record of sample {index} any more: it was evicted or "
                "expired; compute it again with warmup() on a dataset that has its source, read with "
                "lazy=True, or give the server more memory"
            )
        try:
            return frames.unpacked(value, index)
        except CorruptRecordError as error:
            raise self.placed(error, index) from error

    def _no_record(self, here: Hold, index: int) -> MissingSampleError:
        failure = next((failure for failure in self.failures if failure.index == index), None)
        if failure is not None:
            again = "it counts as absent for good" if failure.final else "a later fill tries again"
            return SampleFailedError(
                f"{self.path}: sample {index} failed when it was made, {again}; available() leaves it out\n"
                f"{failure.error}: {failure.message}\n{failure.traceback}"
            )
        return MissingSampleError(
            f"{self.path}: sample {index} has no record yet ({self.present:,} of {len(self):,} have); "
            "fill it with warmup() on a dataset that has its source"
        )

    def _place_of(self, schema: int) -> int:
        """Where in `schemas` the schema of a frame is, by its number there."""
        place = self._here.schema_places.get(schema)
        if place is None and self.refresh():
            place = self._here.schema_places.get(schema)
        if place is None:
            raise CorruptRecordError(f"its schema {schema:#018x} is none of those in the log")
        return place

    def _raw(self, frame: frames.Frame) -> memoryview:
        if self.head.compression is None:
            if frame.raw_nbytes != len(frame.data):
                raise CorruptRecordError(f"it has {len(frame.data):,} bytes, its frame says otherwise")
            return frame.data
        return memoryview(decompress(frame.data, frame.raw_nbytes))

    def labels(self) -> Any:
        """The label table: row i is sample i, null where it has no label. A pyarrow Table.

        Raises:
            LengthError: as `missing`.
        """
        here = self._here
        if len(here.indices) < len(self):
            self.justify(32 + 16 * len(self.head.labels))
        return here.labels()

    @property
    def has_digest(self) -> bool:
        """Never: only a file has one."""
        return False

    @property
    def label_names(self) -> list[str]:
        """The label columns."""
        return [name for name, _ in self.head.labels]

    @property
    def unoriginal_labels(self) -> frozenset[str]:
        """None: labels are not revised here."""
        return frozenset()

    def justify(self, nbytes: int, count: int | None = None) -> None:
        """Refuse to allocate so many bytes for each sample on the cache's word; see `Reader.justify`."""
        count = len(self) if count is None else count
        if count <= self.known_length:
            bounded.check_books(count, nbytes, self.path)
        else:
            bounded.justify(nbytes * count, self._here.log.nbytes, self.path, f"{count:,} samples")

    def refresh(self) -> bool:
        """Take in what was published since, and forget what was found to be gone; says whether either was.

        Raises:
            StaleArchiveError: another cache is under the prefix now.
        """
        here = self._here
        here.log.check_head()
        log = here.log.copy()  # another thread may look too
        if log.catch_up():
            self._hold = Hold(log)
            return True
        forgotten, here.gone = here.gone, set()
        return bool(forgotten)

    def close(self) -> None:
        """Let go of the connections; memory that was handed out stays valid. Idempotent."""
        self._closed = True
        self._hold = None
        self._client.close()

    @property
    def _here(self) -> Hold:
        # Two threads may both attach; either result serves, so no lock that a fork could freeze.
        hold = self._hold
        if hold is None or self._closed:
            hold = self._attach()
            self._hold = hold
        return hold

    def _attach(self) -> Hold:
        if self._closed:
            raise ArchiveClosedError(f"{self.path}: closed; open it again to read")
        found = read_head(self._client)
        if found is None:
            raise no_cache(self.path)
        packed, head, start = found
        if self._uuid not in (None, head.uuid):
            raise stale(self.path)
        log = Log(self._client, packed, head, start)
        log.catch_up()
        self._uuid = head.uuid
        return Hold(log)
