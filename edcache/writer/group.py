"""Entries on their way into a file: their payloads piece by piece, then the headers that publish them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edcache import format
from edcache.format import Chain, Header, Place
from edcache.storage import File


class Entry:
    """Entry whose payload is written piece by piece, and whose header is not written yet."""

    def __init__(self, file: File, kind: int, name: str, number: int, offset: int) -> None:
        self.kind, self.name, self.number, self.offset = kind, name, number, offset
        self._file = file
        self._start = offset + format.header_nbytes(name)
        self._nbytes = self._crc32 = 0

    def write(self, data: Any) -> None:
        """Write the next bytes of the payload."""
        nbytes = memoryview(data).nbytes
        if nbytes:
            self._file.pwrite(self._start + self._nbytes, data)
            self._crc32 = format.crc32(data, self._crc32)
            self._nbytes += nbytes

    @property
    def place(self) -> Place:
        """Range and crc32 of the payload that was written so far."""
        return Place(self._start, self._nbytes, self._crc32)

    @property
    def next(self) -> int:
        """Offset of the next entry, if the payload is whole."""
        return format.align(self._start + self._nbytes, format.PAGE)


class Group:
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
        entry = Entry(self._file, kind, name, cursor.number + len(self._entries), offset)
        self._entries.append(entry)
        return entry

    def headers(self, durable: int, **fields: int) -> list[Header]:
        """Make the headers of the entries, to be published. durable, fields: of `Header`."""
        headers: list[Header] = []
        link = self._chain.cursor.link
        for entry in self._entries:
            _, nbytes, crc = entry.place
            place = entry.number, entry.offset, nbytes, crc, entry.next, link, durable
            header = linked(Header(entry.kind, entry.name, self._chain.head.uuid, *place, **fields))
            headers.append(header)
            link = header.link_after
        return headers

    def publish(self, headers: list[Header]) -> None:
        """Write the headers, from last to first."""
        for header in reversed(headers):
            self._file.pwrite(header.offset, format.pack_header(header))


def linked(header: Header) -> Header:
    """Copy a header, with the link that follows it."""
    return replace(header, link_after=format.link_after(format.pack_header(header)))
