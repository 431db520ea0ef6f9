"""Headers of entries, the chain that they make, the end of a sealed file, and its head."""

from __future__ import annotations

import struct
from dataclasses import replace

from fuzz_draw import Draw

from edcache import format
from edcache.errors import EdcacheError
from edcache.format import Cursor, Header

UUID = bytes(range(16))
SIZE = 1 << 15
_NAMES = ("nbytes", "next", "table_nbytes", "first", "end", "durable", "number", "offset", "link")


def run(data: bytes) -> None:
    draw = Draw(data)
    (_raw, _forged, _chain, _chain, _tail, _head)[draw.below(6)](draw)


def seeds() -> list[bytes]:
    forged = [bytes([1, kind, *range(10, 40)]) for kind in range(6)]
    chains = [bytes([2, n, *([1, 0, 0, 0, 0, 0, 2, 0] * 8)]) for n in range(1, 5)]
    packed = b"\0" + format.pack_header(_header(Draw(b""), 1, 0, 0, 0))
    return [packed, *forged, *chains, b"\4" + bytes(40), b"\5" + bytes(9)]


def _raw(draw: Draw) -> None:
    _check_parsed(draw.rest())


def _check_parsed(data: bytes) -> Header | None:
    header = format.parse_header(data)
    if header is not None and header.name.isascii():
        assert format.parse_header(format.pack_header(header)) == header
        assert (header.payload_offset - header.offset) % 64 == 0
    return header


def _header(draw: Draw, kind: int, offset: int, number: int, link: int) -> Header:
    """One that lies within a page and says the truth, but for the fields that are drawn."""
    name = draw.pick(("chunks/00000001", "index.rows", "labels/y.arrow"))
    nbytes = format.PAGE - format.header_nbytes(name)
    place = number, offset, nbytes, draw.byte(), (offset + format.PAGE) % (1 << 64), link
    lies = {draw.pick(_NAMES): draw.number() for _ in range(draw.below(3) if draw else 0)}
    return replace(Header(kind, name, UUID, *place, end=1, table_nbytes=nbytes), **lies)


def _packed(draw: Draw, header: Header) -> bytes:
    """Its bytes, and a checksum over whatever was changed in them."""
    data = format.pack_header(header)
    if draw.below(4) or not draw:
        return data
    place = 30 + len(header.name) + 20 + 92
    data = draw.changed(data[:place]).ljust(place, b"\0")[:place]
    return (data + struct.pack("<I", format.crc32(data))).ljust(format.header_nbytes(header.name), b"\0")


def _forged(draw: Draw) -> None:
    header = _header(draw, draw.below(7), draw.number(), draw.number(), draw.number())
    found = _check_parsed(_packed(draw, header) + bytes(draw.below(300)))
    assert found is None or found.kind in range(6)


def _chain(draw: Draw) -> None:
    file = bytearray(SIZE)
    offset, number, link = 0, 0, 0
    for _ in range(1 + draw.below(7)):
        header = _header(draw, 1 + draw.below(5), offset, number, link)
        data = _packed(draw, header)
        file[offset : offset + len(data)] = data[: SIZE - offset]
        link = format.link_after(data) if format.parse_header(data) else 0
        offset, number = min(SIZE, offset + format.PAGE), number + 1
    size = SIZE if draw.flag() else draw.below(SIZE)
    end = 0
    for group in format.walk(_pread(bytes(file[:size])), size, UUID, Cursor(0, 0, 0)):
        assert group[-1].kind in (format.CHUNK, format.NOTE, format.ROOT)
        for header in group:
            assert header.offset >= end
            assert header.payload_end <= size
            end = header.next
            assert end > header.offset


def _pread(data: bytes) -> format.PRead:
    return lambda offset, nbytes: data[offset : offset + nbytes]


def _tail(draw: Draw) -> None:
    """The end of a file that points at a root which is none, or at none."""
    root = replace(_header(draw, format.ROOT, 0, 1, 0), nbytes=draw.byte(), crc32=format.crc32(b""))
    try:
        end = format.pack_directory([root], draw.number())
    except struct.error:
        return  # what is drawn cannot be written
    tail = draw.changed(end) if draw.flag() else end
    data = draw.some() + tail
    try:
        assert format.read_root(_pread(data), len(data), "fuzz.zip") is None
    except EdcacheError:
        return


def _head(draw: Draw) -> None:
    data = format.pack_head(format.Head(UUID))
    header = format.parse_header(data)
    assert header is not None
    if draw.flag():
        data = _packed(draw, replace(header, nbytes=draw.number(), next=draw.number())) + data[192:]
    else:
        data = draw.changed(data[:250]) + data[250:]
    try:
        head, cursor = format.read_head(_pread(data), "fuzz.zip")
    except EdcacheError:
        return
    assert head.uuid == UUID
    assert cursor.offset == header.next
