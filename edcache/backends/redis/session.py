"""RedisReader: random access to the samples of a cache in Redis; and what one process has of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache.backends.redis.client import Client
from edcache.backends.redis.log import RedisLog, no_cache, read_head
from edcache.backends.redis.records import gathered_from, held, pieces_of, schema_number, unpacked
from edcache.backends.redis.url import Server
from edcache.base import CorruptRecordError, EdcacheError, Ints, LengthError, MissingSampleError, once
from edcache.codec import STORED, Decode, Decoding, decompress
from edcache.format import Head, Records
from edcache.labels import checked_indices
from edcache.reader import AnyReader, RecordIndex, Session

if TYPE_CHECKING:
    from edcache.codec import Decoder
    from edcache.reader import Group


class RedisReader(AnyReader):
    """Random access to the samples of a cache in Redis, complete or still filling; asks at the first use.

    Every record's crc32 is checked whenever it is read. What is known of the samples is asked once in each
    process, and again by `refresh`. A batch is one round trip. A pickle has the URL, and no password.
    """

    by_request = True
    _another = "another cache is under this prefix now"

    def __init__(self, path: str, *, allow_pickle: bool = False, decode: Decode = STORED) -> None:
        super().__init__(allow_pickle, decode)
        self.path: Server = Server.of(path)

    def _open(self) -> RedisSession:
        client = Client(self.path)
        known = read_head(client)
        if known is None:
            raise no_cache(self.path)
        session = RedisSession(RedisLog(client, *known), self.allow_pickle, self.decoding)
        self._check_uuid(session)
        return session

    def refresh(self) -> bool:
        """Take in what was published since, and forget what was found gone; says whether either was."""
        session = self.session
        assert isinstance(session, RedisSession)
        session.log.check_head()
        newer = session.look_again()
        if newer is not None:
            self._keep(newer)
            return True
        forgotten, session.gone = session.gone, set()
        return bool(forgotten)


class _Fetched(threading.local):
    """Values by index that a thread has fetched, and will read one by one."""

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}


class RedisSession(Session):
    """What one process knows of a cache, as of one look at its log; `gone`: samples found to be lost."""

    def __init__(
        self, log: RedisLog, allow_pickle: bool, decoding: Decoding | None, before: RedisSession | None = None
    ) -> None:
        contents = log.contents()
        super().__init__(log.server, log.head, RecordIndex.of(contents.index), allow_pickle, decoding)
        self._table = contents.labels
        self.log = log
        self.chunks = len(log.chain.chunks)
        self.gone: set[int] = set()
        self._newer: RedisSession | None = None
        # Of a batch that cannot be gathered: its samples are read one by one next, by the same thread.
        self._fetched: _Fetched = _Fetched() if before is None else before._fetched

    # --- what is there ---

    @property
    def origin(self) -> Head:
        return self.log.chain.origin

    @property
    def sealed(self) -> bool:
        """Whether nothing is missing: there is nothing else to seal."""
        return self.has_all

    @property
    def nbytes(self) -> int:
        """Bytes of the records as they are stored, and of the log."""
        return int(self.records.nbytes.sum()) + self.log.nbytes

    @property
    def justified_nbytes(self) -> int:
        """See the base class: the log may tell of records that are not there."""
        return self.log.nbytes

    @property
    def private_nbytes(self) -> int:
        assert self.index.memory is not None
        return self.log.nbytes + self.index.nbytes + len(self.index.memory) + self.label_nbytes

    @once
    def indices(self) -> Ints:
        """The samples that were published."""
        held = self.index.held()
        return np.arange(self.length) if held is None else held

    @property
    def records(self) -> Records:
        """Those that are not known to be gone."""
        records = self.index.table().records
        if not self.gone:
            return records
        rows = np.flatnonzero(~np.isin(self.indices, np.fromiter(self.gone, np.int64, len(self.gone))))
        return Records(**{**records.take(rows).columns(), "index": self.indices[rows]})

    @property
    def present(self) -> int:
        return self.index.rows - len(self.gone)

    def has(self, index: int) -> bool:
        return super().has(index) and index not in self.gone

    def held(self) -> Ints | None:
        """See the base class: the server is asked for each that was published."""
        index = self.indices
        there = held(self.log.client, self.log.keys, index.tolist())
        self._note_gone(index[~there])
        return index[there]

    def _note_gone(self, indices: Ints) -> None:
        if len(indices):
            self.log.check_head()
            self.gone.update(indices.tolist())

    def look_again(self) -> RedisSession | None:
        """A new session where something was published since, else None."""
        log = self.log.copy()  # another thread may look too
        return RedisSession(log, self._allow_pickle, self._decoding, self) if log.catch_up() else None

    def close(self) -> None:
        self.log.client.close()

    def _label_table(self) -> Any:
        return self._table

    # --- samples ---

    def fetch(self, index: int, wanted: tuple[int, int] | None = None) -> tuple[memoryview, Decoder]:
        """See the base class: all of the record, whatever is wanted."""
        row = self.row(index)
        value = self._fetched.values.pop(index, None)
        if value is None:
            value = self._values(np.array([index]), np.array([row]))[0]
        if value is None:
            raise MissingSampleError(
                f"{self.path}: the server has no record of sample {index} any more: it was evicted or "
                "expired; compute it again with warmup() on a dataset that has its source, read with "
                "lazy=True, or give the server more memory"
            )
        try:
            is_compressed = self.head.compression is not None
            frame = unpacked(value, index, is_compressed=is_compressed)
            data = memoryview(decompress(frame.data, frame.raw_nbytes)) if is_compressed else frame.data
            return data, self._decoder_for(frame.schema)
        except (CorruptRecordError, LengthError) as error:
            raise self.placed(error, index) from error

    def _decoder_for(self, schema: int) -> Decoder:
        """The decoder of a schema by its number in frames, which may be one that was published since."""
        if schema in self._numbers:
            return self.decoder(self._numbers[schema])
        if self._newer is None or schema not in self._newer._numbers:
            self._newer = self.look_again()
        if self._newer is None or schema not in self._newer._numbers:
            raise CorruptRecordError(f"its schema {schema:#018x} is none of those in the log")
        return self._newer.decoder(self._newer._numbers[schema])

    @once
    def _numbers(self) -> dict[int, int]:
        """The number of each schema in the index, by its number in frames."""
        texts = self.index.schemas
        return {schema_number(text): number for number, text in enumerate(texts)}

    def placed(self, error: EdcacheError, index: int) -> EdcacheError:
        if not isinstance(error, CorruptRecordError):
            return type(error)(f"{self.path}: sample {index}: {error}")
        key = self.log.keys.record(index)
        return type(error)(
            f"{self.path}: record {index}: {error}; delete the key {key!r}, and warmup() computes it again"
        )

    @contextmanager
    def reading_ahead(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Iterator[None]:
        """See the base class: all of the records, but for those that a gather has just fetched."""
        indices = checked_indices(indices, self.length)
        rows = self.index.rows_of(indices)
        indices, rows = indices[rows >= 0], rows[rows >= 0]
        if not self._fetched.values.keys() >= set(indices.tolist()):
            self._keep(indices, self._values(indices, rows))
        yield

    def group(self, indices: Ints, wanted: tuple[int, int] | None = None) -> Group | None:
        """See the base class; None too where one is lost. A record comes whole, as its crc32 is."""
        indices = checked_indices(indices, self.length)
        alike = self.alike(indices)
        if alike is None:
            return None
        values = self._values(indices, alike.rows)
        is_compressed = self.head.compression is not None
        group = gathered_from(values, indices.tolist(), alike.decoder, is_compressed=is_compressed)
        if group is None:
            self._keep(indices, values)
        return group

    def _keep(self, indices: Ints, values: list[Any]) -> None:
        self._fetched.values = dict(zip(indices.tolist(), values, strict=True))

    def _values(self, indices: Ints, rows: Ints) -> list[Any]:
        """What the server has under the keys of records, by one round trip; None where it has nothing."""
        keys = [self.log.keys.record(index) for index in indices.tolist()]
        commands: list[tuple[Any, ...]] = [("mget", keys[part]) for part in pieces_of(self.index.sizes(rows))]
        # A server that evicts what was used least would take the head first, which nobody else reads.
        answers = self.log.client.ask_all([*commands, ("touch", self.log.keys.head, self.log.keys.log)])
        values = [value for answer in answers[:-1] for value in answer]
        self._note_gone(indices[[value is None for value in values]])
        return values
