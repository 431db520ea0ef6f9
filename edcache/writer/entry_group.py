"""Entries on their way into a file: their payloads piece by piece, then the headers that publish them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edcache import format
from edcache.format import Chain, Header, Place, pa
from edcache.storage import File
from edcache.writer.chunk import Chunk


class Entry:
    """Entry whose payload is written piece by piece.

    header: of the payload that was written so far; it is not written yet, and has no link.
    """

    def __init__(self, file: File, header: Header) -> None:
        self._file, self.header = file, header

    def write(self, data: Any) -> None:
        """Write the next bytes of the payload."""
        header, more = self.header, memoryview(data).nbytes
        if more:
            self._file.pwrite(header.payload_end, data)
            crc = format.crc32(data, header.crc32)
            self.header = replace(header, nbytes=header.nbytes + more, crc32=crc)

    @property
    def place(self) -> Place:
        """Range and crc32 of the payload that was written so far."""
        return Place(self.header.payload_offset, self.header.nbytes, self.header.crc32)

    @property
    def next(self) -> int:
        """Offset of the next entry, if the payload is whole."""
        return format.align(self.header.payload_end, format.PAGE)


class EntryGroup:
    """Entries that are published together: their payloads, then headers from last to first.

    So a kill leaves all of them or none.
    """

    def __init__(self, file: File, chain: Chain) -> None:
        self._file, self._chain = file, chain
        self._entries: list[Entry] = []

    def entry(self, kind: int, name: str) -> Entry:
        """Begin an entry; the payload of the last one is whole."""
        cursor = self._chain.cursor
        offset = self._entries[-1].next if self._entries else cursor.offset
        place = cursor.number + len(self._entries), offset, 0, 0, 0, 0
        self._entries.append(Entry(self._file, Header(kind, name, self._chain.head.uuid, *place)))
        return self._entries[-1]

    def headers(self, durable: int) -> list[Header]:
        """Make the headers of the entries, to be published. durable: of `Header`."""
        headers: list[Header] = []
        link = self._chain.cursor.link
        for entry in self._entries:
            header = replace(entry.header, next=entry.next, link=link, durable=durable)
            headers.append(linked(header))
            link = headers[-1].link_after
        return headers

    def write_chunk(self, chunk: Chunk, labels: pa.Table) -> Entry:
        """Write the payload of a chunk or part. labels: as it has them, in the types that the archive needs."""
        number = f"{self._chain.cursor.number + len(self._entries):08d}"
        is_part = bool(chunk.maker)
        name = f"parts/{number}-{chunk.maker}" if is_part else f"chunks/{number}"
        entry = self.entry(format.PART if is_part else format.CHUNK, name)
        samples, start = chunk.samples, entry.place.offset
        table = format.pack_table(samples, chunk.rows, chunk.schemas, labels, entry.header.uuid, start)
        for part in (table, bytes(-len(table) % 64), chunk.data):
            entry.write(part)
        first, end, crc = int(samples.min()), int(samples.max()) + 1, format.crc32(table)
        entry.header = replace(entry.header, first=first, end=end, table_nbytes=len(table), table_crc32=crc)
        return entry

    def publish(self, headers: list[Header]) -> None:
        """Write the headers, from last to first."""
        for header in reversed(headers):
            self._file.pwrite(header.offset, format.pack_header(header))


def linked(header: Header) -> Header:
    """Copy a header, and give it the link that the next entry carries."""
    return replace(header, link_after=format.link_after(format.pack_header(header)))
