"""RedisAppender: a cache in Redis open for appending, claims included; and building it anew."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.contents import Chain
from edcache.errors import (
    LabelError,
    OptionError,
    StorageError,
)
from edcache.fingerprint import differences
from edcache.format import PAGE, Head, Header
from edcache.labels.tables import ChunkTable, pack_chunk_table
from edcache.labels.types import LabelTypes
from edcache.redis import frames
from edcache.redis.claims import Claims
from edcache.redis.client import PIECE_KEYS, PIECE_NBYTES, Client
from edcache.redis.fetching import held
from edcache.redis.keys import Keys, head_key
from edcache.redis.log import Log, read_head, stale
from edcache.redis.removing import remove_of
from edcache.servers import Server
from edcache.writer import Appending, Chunk

_MOST_NBYTES: Final = 512 << 20
_SET_NBYTES: Final = 1 << 17

# Keys: head, log. Arguments: the head; the header of the entry that was seen last; an entry, or none to
# append nothing; milliseconds that what was written lives, 0 for ever. So head and log outlive every record.
_APPEND: Final = """
local head = redis.call('GET', KEYS[1])
if head and head ~= ARGV[1] then return -1 end
if ARGV[3] ~= '' then
  local last = redis.call('LINDEX', KEYS[2], -1)
  if (last and string.sub(last, 1, #ARGV[2]) or '') ~= ARGV[2] then return 0 end
  if last and ARGV[2] == '' then return 0 end
end
if not head then redis.call('SET', KEYS[1], ARGV[1]) end
local fresh = {not head, redis.call('EXISTS', KEYS[2]) == 0}
if ARGV[3] ~= '' then redis.call('RPUSH', KEYS[2], ARGV[3]) end
local ttl = tonumber(ARGV[4])
for i, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  if ttl == 0 then
    redis.call('PERSIST', key)
  elseif fresh[i] or (left >= 0 and left < ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
return 1
"""
# Keys: head. Arguments: the head that was seen, the one that takes its place.
_REPLACE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class RedisAppender(Appending):
    """A cache in Redis, open for appending by this process; see `Appender`, whose words these are.

    Attributes:
        head: what the cache says about itself. path: its URL. chain: what was published, as far as seen.
    """

    can_lock = True

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.path: Server = log.server
        self.head = log.head
        self._log = log
        self._client = log.client
        self._keys = Keys(log.server, log.head.uuid)
        self._claims = Claims(log.client, self._keys)
        self._closed = False
        self._logged = _Logged()
        self._opened_at = log.chain.cursor.seq

    @classmethod
    def open(cls, path: str, head: Head) -> RedisAppender:
        """Open a cache, or make one with `head` where there is none yet.

        Raises:
            OptionError: the URL names no prefix; compression="zstd+dict". StorageError, CorruptArchiveError.
        Safety: two processes that make one at once end up with one head.
        """
        if head.compression is not None and "+dict" in head.compression:
            raise OptionError(
                f'{path}: compression={head.compression!r}; records in Redis take "zstd" or "zstd:LEVEL", a '
                "dictionary might be evicted and take them all along"
            )
        client = Client(Server.of(path))
        found = read_head(client)
        if found is None:
            packed = format.pack_head(replace(head, uuid=_uuid_of(head)))
            ttl = client.server.ttl
            client.ask("set", head_key(client.server), packed, nx=True, px=None if ttl is None else _ms(ttl))
            found = read_head(client)
            if found is None:
                raise StorageError(
                    f"{client.server}: the server lost the head at once; give it more memory, or a longer ttl"
                )
        log = Log(client, *found)
        log.catch_up()
        return cls(log)

    @property
    def chain(self) -> Chain:
        """The entries of the log, as far as seen; another one after the server lost it."""
        return self._log.chain

    def catch_up(self) -> None:
        """Take in what others published since."""
        self.check_usable()
        self._log.catch_up()

    def indices_of(self, chunks: Iterable[Header]) -> npt.NDArray[np.int64]:
        """The sample indices in these chunks: int64 [n], a copy.

        Of what was published before this was opened, those alone that the server still has.
        """
        headers = list(chunks)
        before = self.logged_in(header for header in headers if header.seq < self._opened_at)
        since = self.logged_in(header for header in headers if header.seq >= self._opened_at)
        is_there = held(self._client, [self._keys.record(index) for index in before.tolist()])
        return np.concatenate([before[is_there], since])

    def logged_in(self, chunks: Iterable[Header]) -> npt.NDArray[np.int64]:
        """The same, whatever the server has lost."""
        tables = [self._log.table(header).records.index for header in chunks]
        return np.concatenate([np.empty(0, np.int64), *(index for index in tables if index is not None)])

    def schemas_of(self, chunks: Iterable[Header]) -> set[str]:
        """The schemas that these chunks name."""
        return {text for header in chunks for text in self._log.table(header).schemas}

    def held(self, indices: Sequence[int]) -> set[int]:
        """Which of some samples that were published the server still has."""
        found = held(self._client, [self._keys.record(index) for index in indices])
        return {index for index, is_there in zip(indices, found.tolist(), strict=True) if is_there}

    def append(self, chunk: Chunk) -> None:
        """Publish a chunk.

        Raises:
            LabelTypeError: its label columns do not go with those of the cache.
            StorageError: the server is full or lost; none of its samples were published.
        """
        self._publish(chunk, is_all_told=True)

    def keep(self, chunk: Chunk) -> None:
        """Publish a chunk; of a sample that was published before only the record is stored again.

        So that a server which evicts and gets the same records again and again has a log that does not grow.
        Raises: as `append`.
        """
        self._publish(chunk, is_all_told=False)

    def _publish(self, chunk: Chunk, is_all_told: bool) -> None:
        self.check_usable()
        self._store(chunk)
        try:
            self._tell(chunk, is_all_told)
        except LabelError:
            self._take_back(chunk)
            raise

    def _tell(self, chunk: Chunk, is_all_told: bool) -> None:
        self._log.catch_up()
        while True:
            new = chunk if is_all_told else chunk.without(self._logged.of(self, chunk))
            if not new.count:
                self._push(b"")
                return
            types, known = LabelTypes.of(new.labels), self.label_types()
            if known is not None:
                types = known.joined(types, self.path)
            table = ChunkTable(new.records, new.labels, new.schemas, types, len(new.data))
            packed = b"".join([pack_chunk_table(table), new.block_crcs])
            index = new.records.index
            assert index is not None
            records_nbytes = format.align(len(packed), 64) - len(packed) + len(new.data)
            told = {"samples": new.count, "end_index": int(index.max()) + 1}
            if self._push(self._entry(format.KIND_CHUNK, packed, records_nbytes, **told)):
                return

    def amend(self, **changes: object) -> None:
        """Revise what the head said: `length`; or tell of samples that `failed`."""
        self.check_usable()
        text = json.dumps(changes, ensure_ascii=True).encode("ascii")
        self._log.catch_up()
        while not self._push(self._entry(format.KIND_AMENDMENT, text)):
            continue

    def _entry(self, kind: int, table: bytes, behind_nbytes: int = 0, **told: Any) -> bytes:
        """What the log gets: the header that such an entry has in a file, and its table."""
        cursor = self.chain.cursor
        crc, nbytes = format.crc32(table), len(table) + behind_nbytes
        bare = Header(kind, self.head.uuid, cursor.seq, cursor.offset, cursor.link, nbytes, crc)
        total = format.align(bare.nbytes + nbytes, PAGE)
        told |= {"payload_nbytes": total - bare.nbytes, "next": cursor.offset + total}
        header = replace(bare, table_nbytes=len(table), table_crc=crc, **told)
        return format.pack_header(header) + table

    def _push(self, entry: bytes) -> bool:
        """Append an entry to the log unless somebody else was first; with none, let it live on."""
        ttl = self.path.ttl
        seen = [self._log.packed_head, self._log.last_header, entry, 0 if ttl is None else _ms(ttl)]
        answer = self._client.run(_APPEND, [self._keys.head, self._keys.log], seen)
        if answer < 0:
            raise stale(self.path)
        if entry and not self._log.catch_up():
            # As long as the one that was seen, and another.
            self._log.begin_again()
            self._log.catch_up()
        return bool(answer)

    def _store(self, chunk: Chunk) -> None:
        """Set the records of a chunk: none of them counts before the log tells of it."""
        commands: list[tuple[Any, ...]] = []
        nbytes = 0
        try:
            for values in self._batches(chunk):
                commands += self._setting(values)
                nbytes += sum(map(len, values.values()))
                if nbytes >= PIECE_NBYTES:
                    self._client.ask_all(commands)
                    commands, nbytes = [], 0
            self._client.ask_all(commands)
        except StorageError as error:
            if error.errno == errno.ENOSPC:
                self._take_back(chunk)
            raise

    def _batches(self, chunk: Chunk) -> Iterator[dict[str, bytes]]:
        """The values of records by their keys, a few at a time: a server evicts between commands."""
        values: dict[str, bytes] = {}
        nbytes = 0
        for index, value in self._values(chunk):
            values[self._keys.record(index)] = value
            nbytes += len(value)
            if nbytes >= _SET_NBYTES:
                yield values
                values, nbytes = {}, 0
        if values:
            yield values

    def _setting(self, values: dict[str, bytes]) -> list[tuple[Any, ...]]:
        ttl = self.path.ttl
        if ttl is None:
            return [("mset", values)]
        return [("set", key, value, None, _ms(ttl)) for key, value in values.items()]

    def _values(self, chunk: Chunk) -> Iterable[tuple[int, bytes]]:
        records, numbers = chunk.records, [frames.schema_number(text) for text in chunk.schemas]
        assert records.index is not None
        raw_nbytes = records.nbytes if records.raw_nbytes is None else records.raw_nbytes
        columns = (records.index, records.offset, records.nbytes, raw_nbytes, records.schema)
        for index, offset, nbytes, raw, schema in zip(*(c.tolist() for c in columns), strict=True):
            if nbytes + 2 * frames.NBYTES > _MOST_NBYTES:
                raise StorageError(
                    f"{self.path}: sample {index} takes {nbytes:,} bytes, Redis keeps {_MOST_NBYTES:,} under "
                    "one key; keep this cache in a file"
                )
            yield index, frames.packed(index, numbers[schema], chunk.data[offset : offset + nbytes], raw)

    def _take_back(self, chunk: Chunk) -> None:
        """Delete records that nobody will be told of."""
        keys = [self._keys.record(index) for index in set(chunk.indices) - self._logged.of(self, chunk)]
        # Where that fails too, they are overwritten when they are computed again.
        with suppress(StorageError):
            for start in range(0, len(keys), PIECE_KEYS):
                self._client.ask("unlink", *keys[start : start + PIECE_KEYS])

    def append_dictionary(self, dictionary: bytes) -> None:
        """Not here: see `open`."""
        raise AssertionError("a cache in Redis has no compression dictionary")

    def dictionaries(self) -> list[bytes]:
        """None."""
        return []

    def label_types(self) -> LabelTypes | None:
        """The types of the cache's label columns; None where nothing is published yet."""
        chunks = self.chain.chunks
        return self._log.table(chunks[-1]).label_types if chunks else None

    def seal(self) -> None:
        """Nothing: a cache in Redis is complete when nothing is missing."""

    def join_fillers(self) -> bool:
        """Let others see, until `close`, that this process fills the cache; says whether no other did."""
        self.check_usable()
        return self._claims.join_fillers()

    @property
    def has_fillers(self) -> bool:
        """Whether another process fills the cache."""
        self.check_usable()
        return self._claims.has_fillers

    def claim(self, number: int) -> bool:
        """Take claim `number` of a fill if nobody else has it; says whether it did."""
        self.check_usable()
        return self._claims.claim(number)

    def wait_claim(self, number: int) -> None:
        """Take claim `number`, waiting until its holder publishes or is dead for `claim_seconds`."""
        self.check_usable()
        self._claims.wait(number)

    def release(self, number: int) -> None:
        """Let go of a claim."""
        self._claims.release(number)

    def _is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Let go of claims and connections; idempotent, and nothing in a process that inherited it."""
        if self._pid == os.getpid() and not self._closed:
            self._closed = True
            self._claims.close()
            self._client.close()


class _Logged:
    """What the log tells of, kept up to date with it."""

    def __init__(self) -> None:
        self._chain: Chain | None = None
        self._chunks = 0
        self._indices: set[int] = set()
        self._schemas: set[str] = set()

    def of(self, appender: RedisAppender, chunk: Chunk) -> set[int]:
        """The samples of a chunk that were published, and whose records decode by a schema that was."""
        chain = appender.chain
        if chain is not self._chain:
            self._chain, self._chunks, self._indices, self._schemas = chain, 0, set(), set()
        new = chain.chunks[self._chunks :]
        self._chunks += len(new)
        self._indices.update(appender.logged_in(new).tolist())
        self._schemas.update(appender.schemas_of(new))
        known = [text in self._schemas for text in chunk.schemas]
        numbers = chunk.records.schema.tolist()
        told = (index for index, number in zip(chunk.indices, numbers, strict=True) if known[number])
        return self._indices.intersection(told)


def replace_head(path: str, head: Head) -> None:
    """Begin a cache anew: another head takes the old one's place, and the old one's keys are deleted.

    Where another process does the same already, this one joins it.

    Raises:
        StorageError: the server does not answer.
    """
    client = Client(Server.of(path))
    try:
        found = read_head(client)
        if found is None:
            return
        packed, before, _ = found
        is_rebuild = before.uuid != _uuid_of(before)
        if (
            is_rebuild
            and not _changed(before, head)
            and Claims(client, Keys(client.server, before.uuid)).has_fillers
        ):
            return
        new = format.pack_head(head)
        if client.run(_REPLACE, [head_key(client.server)], [packed, new]):
            remove_of(client, Keys(client.server, before.uuid))
    finally:
        client.close()


def _changed(found: Head, asked: Head) -> list[str]:
    if asked.fingerprint is None:
        return []
    return differences(found.fingerprint, asked.fingerprint)


def _uuid_of(head: Head) -> bytes:
    """The uuid of a cache that nobody asked to build anew: of equal heads the same.

    So whoever makes a head again that the server has lost makes the same one.
    """
    return hashlib.sha256(format.pack_head(replace(head, uuid=bytes(16)))).digest()[:16]


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))
