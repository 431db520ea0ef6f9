"""RedisAppender: a cache in Redis open for appending, claims included."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from edcache import format
from edcache.backends.redis.claims import Claims
from edcache.backends.redis.client import PIECE_KEYS, Client
from edcache.backends.redis.log import RedisLog, read_head, stale
from edcache.backends.redis.records import FRAME_NBYTES, held, packed, pieces_of, schema_number
from edcache.backends.redis.url import Server
from edcache.base import LabelError, OptionError, StorageError
from edcache.format import PAGE, Head, Header
from edcache.writer import AnyAppender

if TYPE_CHECKING:
    from edcache.writer import Chunk

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


class RedisAppender(AnyAppender):
    """A cache in Redis, open for appending by this process; `AnyAppender` says what each method does."""

    path: Server
    _log: RedisLog
    _claims: Claims

    def __init__(self, log: RedisLog) -> None:
        super().__init__(log, Claims(log.client, log.keys))
        self._client, self._keys = log.client, log.keys
        self.path, self.head = log.server, log.head
        self._closed = False
        self._opened_at = log.chain.cursor.seq

    @classmethod
    def open(cls, path: str, head: Head) -> RedisAppender:
        """Open a cache, or make one with `head` where there is none; two that make one share a head."""
        if head.compression is not None and "+dict" in head.compression:
            raise OptionError(
                f'{path}: compression={head.compression!r}; records in Redis take "zstd" or "zstd:LEVEL", a '
                "dictionary might be evicted and take them all along"
            )
        client = Client(Server.of(path))
        known = read_head(client)
        if known is None:
            packed_head = format.pack_head(replace(head, uuid=uuid_of(head)))
            client.ask("set", client.server.head_key, packed_head, nx=True, px=client.server.ttl_ms)
            known = read_head(client)
            if known is None:
                raise StorageError(
                    f"{client.server}: the server lost the head at once; give it more memory, or a longer ttl"
                )
        return cls(RedisLog(client, *known))

    def indices_of(self, chunks: Iterable[Header]) -> npt.NDArray[np.int64]:
        """See the base class: of what was published before this was opened, those that are still there."""
        headers = list(chunks)
        before = super().indices_of(header for header in headers if header.seq < self._opened_at)
        since = super().indices_of(header for header in headers if header.seq >= self._opened_at)
        return np.concatenate([before[held(self._client, self._keys, before.tolist())], since])

    def present(self, indices: Sequence[int]) -> set[int]:
        return set(itertools.compress(indices, held(self._client, self._keys, indices).tolist()))

    def append(self, chunk: Chunk, *, restores: bool = False) -> None:
        """See the base class; with `restores` the log of a server that evicts does not grow."""
        self.check_usable()
        self._store(chunk)
        try:
            self._announce(chunk, restores)
        except LabelError:
            self._take_back(chunk)
            raise

    def _announce(self, chunk: Chunk, restores: bool) -> None:
        """Append to the log what others are to know of a chunk whose records are stored."""
        self._log.catch_up()
        while True:
            new = chunk.without(self._log.published(chunk)) if restores else chunk
            if not new.count:
                self._push(b"")
                return
            table = new.table(self._joined_types(new.labels))
            records_nbytes = format.align(len(table), 64) - len(table) + len(new.data)
            fields = {"samples": new.count, "end_index": max(new.indices) + 1}
            if self._push(self._entry(format.KIND_CHUNK, table, records_nbytes, **fields)):
                return

    def _publish_amendment(self, text: bytes) -> None:
        self.check_usable()
        self._log.catch_up()
        while not self._push(self._entry(format.KIND_AMENDMENT, text)):
            continue

    def _entry(self, kind: int, table: bytes, behind_nbytes: int = 0, **fields: Any) -> bytes:
        """What the log gets: the header that such an entry has in a file, and its table."""
        cursor = self.chain.cursor
        crc, nbytes = format.crc32(table), len(table) + behind_nbytes
        bare = Header(kind, self.head.uuid, cursor.seq, cursor.offset, cursor.link, nbytes, crc)
        total = format.align(bare.nbytes + nbytes, PAGE)
        fields |= {"payload_nbytes": total - bare.nbytes, "next": cursor.offset + total}
        header = replace(bare, table_nbytes=len(table), table_crc=crc, **fields)
        return format.pack_header(header) + table

    def _push(self, entry: bytes) -> bool:
        """Append an entry to the log unless somebody else was first; with none, let it live on."""
        seen = [self._log.packed_head, self._log.last_header, entry, self.path.ttl_ms or 0]
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
        ttl = self.path.ttl_ms
        try:
            for piece in pieces_of(chunk.records.nbytes):
                values = self._values(chunk, piece)
                if ttl is None:
                    # A few at a time: a server evicts between commands.
                    keys, parts = list(values), pieces_of(chunk.records.nbytes[piece], _SET_NBYTES)
                    sets: list[tuple[Any, ...]] = [
                        ("mset", {key: values[key] for key in keys[part]}) for part in parts
                    ]
                else:
                    sets = [("set", key, value, None, ttl) for key, value in values.items()]
                self._client.ask_all(sets)
        except StorageError as error:
            if error.errno == errno.ENOSPC:
                self._take_back(chunk)
            raise

    def _values(self, chunk: Chunk, piece: slice) -> dict[str, bytes]:
        """The values of some records by their keys."""
        records, numbers = chunk.records, [schema_number(text) for text in chunk.schemas]
        raw_nbytes = records.nbytes if records.raw_nbytes is None else records.raw_nbytes
        columns = (records.samples, records.offset, records.nbytes, raw_nbytes, records.schema)
        values: dict[str, bytes] = {}
        for index, offset, nbytes, raw, schema in zip(*(c[piece].tolist() for c in columns), strict=True):
            if nbytes + 2 * FRAME_NBYTES > _MOST_NBYTES:
                raise StorageError(
                    f"{self.path}: sample {index} takes {nbytes:,} bytes, Redis keeps {_MOST_NBYTES:,} under "
                    "one key; keep this cache in a file"
                )
            data = chunk.data[offset : offset + nbytes]
            values[self._keys.record(index)] = packed(index, numbers[schema], data, raw)
        return values

    def _take_back(self, chunk: Chunk) -> None:
        """Delete records that nobody will be told of."""
        keys = [self._keys.record(index) for index in set(chunk.indices) - self._log.published(chunk)]
        # Where that fails too, they are overwritten when they are computed again.
        with suppress(StorageError):
            for start in range(0, len(keys), PIECE_KEYS):
                self._client.ask("unlink", *keys[start : start + PIECE_KEYS])

    def append_dictionary(self, dictionary: bytes) -> None:
        raise AssertionError("a cache in Redis has no compression dictionary")

    def dictionaries(self) -> list[bytes]:
        return []

    def seal(self) -> None:
        """Nothing: a cache in Redis is complete when nothing is missing."""

    def _is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if self._pid == os.getpid() and not self._closed:
            self._closed = True
            self._claims.close()
            self._client.close()


def uuid_of(head: Head) -> bytes:
    """The uuid of a cache that nobody asked to build anew: the same for whoever makes a lost head again."""
    return hashlib.sha256(format.pack_head(replace(head, uuid=bytes(16)))).digest()[:16]
