"""The log of a cache: what was published, as one process has seen it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Final

from edcache import format
from edcache.backends.redis.client import Client
from edcache.backends.redis.url import Keys, Server
from edcache.base import ArchiveNotFoundError, CorruptArchiveError, StaleArchiveError
from edcache.format import Chain, ChunkTable, Contents, Cursor, Head, Header, read_table

if TYPE_CHECKING:
    from edcache.writer import Chunk

_ENDLESS: Final = 1 << 62
_ENTRIES: Final = 64
_KINDS: Final = (format.KIND_CHUNK, format.KIND_AMENDMENT)


def read_head(client: Client) -> tuple[bytes, Head, Cursor] | None:
    """The head of a cache, packed and parsed, and where its log begins; None where there is none."""
    packed = client.ask("get", client.server.head_key)
    if packed is None:
        return None
    head, cursor = format.read_head(lambda at, nbytes: packed[at : at + nbytes], client.server)
    return packed, head, cursor


def no_cache(server: Server) -> ArchiveNotFoundError:
    """What to raise where there is no head."""
    return ArchiveNotFoundError(
        f"{server}: no cache under this prefix; check the URL, or build the cache first (the server may have "
        "restarted, or evicted it)"
    )


class RedisLog:
    """The entries of a cache's log in their order, as far as seen, and what they amount to.

    Offsets of the chain are those of an archive that had the records too. nbytes: of the entries.
    """

    def __init__(self, client: Client, packed_head: bytes, head: Head, start: Cursor) -> None:
        self.client, self.server = client, client.server
        self.head, self.packed_head = head, packed_head
        self.keys = Keys(client.server, head.uuid)
        self.losses = -1
        self._start = start
        self.begin_again()
        self.catch_up()

    def begin_again(self) -> None:
        """Begin with none of the entries: at first, and where the server has lost them."""
        self.losses += 1
        self.chain = Chain(self.head, self._start, self.server)
        # As of entries that a power cut took: whoever counts by the chain counts again (writer/presence.py).
        self.chain.lost = {-1 - loss for loss in range(self.losses)}
        self.nbytes, self.last_header = 0, b""
        self._at: dict[int, bytes] = {}  # headers and tables, by offset
        self._tables: dict[int, ChunkTable] = {}  # by sequence number
        self._counted, self._indices, self._schemas = 0, set[int](), set[str]()

    @property
    def seen(self) -> int:
        """How many entries were taken in."""
        return self.chain.cursor.seq - self._start.seq

    def copy(self) -> RedisLog:
        """The same as far as seen; one may go on without the other."""
        other = copy.copy(self)
        other.chain, other._at, other._tables = self.chain.copy(), self._at.copy(), self._tables.copy()
        return other

    def catch_up(self) -> bool:
        """Take in what was published since; says whether anything changed."""
        changed, begun = False, self.seen == 0
        count = self.client.ask("llen", self.keys.log)
        if count < self.seen:
            self.begin_again()
            changed = begun = True
        while self.seen < count:
            first = self.seen
            entries = self.client.ask("lrange", self.keys.log, first, first + _ENTRIES - 1)
            if not entries:
                break  # lost between the two questions; the next call finds out
            if self._take(entries):
                changed = True
            elif begun:
                raise CorruptArchiveError(
                    f"{self.server}: entry {first} of the list {self.keys.log!r} is none that edcache wrote; "
                    f"delete the cache: edcache rm '{self.server}'"
                )
            else:
                # Another log, begun by somebody else after the server had lost the one that was seen.
                self.begin_again()
                changed = begun = True
        return changed

    def _take(self, entries: list[bytes]) -> bool:
        """Take in entries that follow; says whether the first of them did."""
        before = self.seen
        for entry in entries:
            header = format.parse_header(entry[: format.MAX_HEADER_NBYTES])
            whole = None if header is None else header.nbytes + header.table_nbytes
            if header is None or header.kind not in _KINDS or len(entry) != whole:
                break
            if header.offset != self.chain.cursor.offset:
                break
            self._at[header.offset] = entry[: header.nbytes]
            self._at[header.payload_offset] = entry[header.nbytes :]
            self.chain.extend(self._pread, _ENDLESS)
            if self.chain.cursor.offset != header.next:
                break
            self.last_header = entry[: header.nbytes]
            self.nbytes += len(entry)
        return self.seen > before

    def _pread(self, offset: int, nbytes: int) -> bytes:
        """What an archive has at a place, where that is a header or what is its table."""
        return self._at.get(offset, b"")[:nbytes]

    def table(self, header: Header) -> ChunkTable:
        """The table of a chunk; CorruptArchiveError where it does not read."""
        if header.seq not in self._tables:
            try:
                self._tables[header.seq] = read_table(self._pread, header, self.server)
            except CorruptArchiveError as error:
                raise CorruptArchiveError(
                    f"{self.server}: the list {self.keys.log!r} is damaged: {error}; "
                    f"delete the cache: edcache rm '{self.server}'"
                ) from None
        return self._tables[header.seq]

    def published(self, chunk: Chunk) -> set[int]:
        """The samples of a chunk that were published, and whose records decode by a schema that was."""
        for table in map(self.table, self.chain.chunks[self._counted :]):
            if table.records.index is not None:
                self._indices.update(table.records.index.tolist())
            self._schemas.update(table.schemas)
        self._counted = len(self.chain.chunks)
        is_known = [text in self._schemas for text in chunk.schemas]
        numbers = chunk.records.schema.tolist()
        return self._indices.intersection(
            index for index, number in zip(chunk.indices, numbers, strict=True) if is_known[number]
        )

    def contents(self) -> Contents:
        """Which samples were published, and their labels."""
        return self.chain.contents(self.table)

    def check_head(self) -> None:
        """Raise StaleArchiveError where another cache is under the prefix now; none is no error."""
        packed = self.client.ask("get", self.keys.head)
        if packed is not None and packed != self.packed_head:
            raise stale(self.server)


def stale(server: Server) -> StaleArchiveError:
    """What to raise where the head is another."""
    return StaleArchiveError(
        f"{server}: another cache is under this prefix now than the one that was opened; open it again"
    )
