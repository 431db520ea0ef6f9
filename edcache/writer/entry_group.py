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

    place: of the payload that was written so far. fields: of its `Header`, which is not written yet, but for the
        payload and the link.
    """

    def __init__(self, file: File, name: str, offset: int, **fields: Any) -> None:
        self._file, self.fields = file, {"name": name, "offset": offset, **fields}
        self.place = Place(offset + format.header_nbytes(name), 0, 0)

    def write(self, data: Any) -> None:
        """Write the next bytes of the payload."""
        more = memoryview(data).nbytes
        if more:
            start, nbytes, crc = self.place
            self._file.pwrite(start + nbytes, data)
            self.place = Place(start, nbytes + more, format.crc32(data, crc))

    @property
    def next(self) -> int:
        """Offset of the next entry, if the payload is whole."""
        return format.align(self.place.offset + self.place.nbytes, format.PAGE)


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
        number, uuid = cursor.number + len(self._entries), self._chain.head.uuid
        self._entries.append(Entry(self._file, name, offset, kind=kind, uuid=uuid, number=number))
        return self._entries[-1]

    def headers(self, durable: int) -> list[Header]:
        """Make the headers of the entries, to be published. durable: of `Header`."""
        headers: list[Header] = []
        link = self._chain.cursor.link
        for entry in self._entries:
            _, nbytes, crc = entry.place
            header = Header(
                nbytes=nbytes, crc32=crc, next=entry.next, link=link, durable=durable, **entry.fields
            )
            headers.append(linked(header))
            link = headers[-1].link_after
        return headers

    def write_chunk(self, chunk: Chunk, labels: pa.Table) -> Entry:
        """Write the payload of a chunk or part. labels: as it has them, in the types that the archive needs."""
        number = f"{self._chain.cursor.number + len(self._entries):08d}"
        is_part = bool(chunk.maker)
        name = f"parts/{number}-{chunk.maker}" if is_part else f"chunks/{number}"
        entry = self.entry(format.PART if is_part else format.CHUNK, name)
        samples, uuid, start = chunk.samples, self._chain.head.uuid, entry.place.offset
        table = format.pack_table(samples, chunk.rows, chunk.schemas, labels, uuid, start)
        for part in (table, bytes(-len(table) % 64), chunk.data):
            entry.write(part)
        entry.fields.update(first=int(samples.min()), end=int(samples.max()) + 1)
        entry.fields.update(table_nbytes=len(table), table_crc32=format.crc32(table))
        return entry

    def publish(self, headers: list[Header]) -> None:
        """Write the headers, from last to first."""
        for header in reversed(headers):
            self._file.pwrite(header.offset, format.pack_header(header))


def linked(header: Header) -> Header:
    """Copy a header, and give it the link that the next entry carries."""
    return replace(header, link_after=format.link_after(format.pack_header(header)))
