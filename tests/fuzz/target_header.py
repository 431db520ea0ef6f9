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


def run(data: bytes) -> None:
    draw = Draw(data)
    (_raw, _forged, _chain, _chain, _seal, _tail, _head)[draw.below(7)](draw)


def seeds() -> list[bytes]:
    forged = [bytes([1, kind, *range(10, 40)]) for kind in range(6)]
    chains = [bytes([2, n, *([1, 0, 0, 0, 0, 0, 2, 0] * 8)]) for n in range(1, 5)]
    packed = b"\0" + format.pack_header(_header(Draw(b""), 1, 0, 0, 0))
    return [packed, *forged, *chains, b"\4" + bytes(40), b"\5" + bytes(40), b"\6" + bytes(9)]


def _raw(draw: Draw) -> None:
    _check_parsed(draw.rest())


def _check_parsed(data: bytes) -> Header | None:
    header = format.parse_header(data)
    if header is not None:
        assert format.pack_header(header) == data[: header.nbytes]
        assert header.payload_offset % 64 == 0
    return header


def _header(draw: Draw, kind: int, offset: int, seq: int, link: int) -> Header:
    """One that lies within a page and says the truth, but for the fields that are drawn."""
    header = Header(kind, UUID, seq, offset, link, 0, draw.byte(), samples=1, end_index=1)
    nbytes = format.PAGE - header.nbytes
    honest = replace(
        header, payload_nbytes=nbytes, next=(offset + format.PAGE) % (1 << 64), table_nbytes=nbytes
    )
    names = (
        "payload_nbytes",
        "next",
        "table_nbytes",
        "samples",
        "end_index",
        "durable",
        "seq",
        "offset",
        "link",
    )
    lies = {draw.pick(names): draw.number() for _ in range(draw.below(3) if draw else 0)}
    return replace(honest, **lies)


def _packed(draw: Draw, header: Header) -> bytes:
    """Its bytes, and a checksum over whatever was changed in them."""
    data = format.pack_header(header)
    if draw.below(4) or not draw:
        return data
    data = draw.changed(data)
    place = 30 + len(header.name) + header._zip64_nbytes + 4 + 92
    unsigned = data[:place] + bytes(4) + data[place + 4 :]
    return data[:place] + format.crc32(unsigned).to_bytes(4, "little") + data[place + 4 :]


def _forged(draw: Draw) -> None:
    header = _header(draw, draw.below(6), draw.number(), draw.number(), draw.number())
    found = _check_parsed(_packed(draw, header) + bytes(draw.below(300)))
    assert found is None or found.kind in range(6)


def _chain(draw: Draw) -> None:
    file = bytearray(SIZE)
    offset, seq, link = 0, 0, 0
    for _ in range(1 + draw.below(7)):
        header = _header(draw, 1 + draw.below(5), offset, seq, link)
        data = _packed(draw, header)
        file[offset : offset + len(data)] = data[: SIZE - offset]
        offset, seq, link = min(SIZE, offset + format.PAGE), seq + 1, format.link_after(data)
    size = SIZE if draw.flag() else draw.below(SIZE)
    end = 0
    for header in format.walk(_pread(bytes(file[:size])), size, UUID, Cursor(0, 0, 0)):
        assert header.offset >= end
        assert header.payload_end <= size
        end = header.next
        assert end > header.offset


def _pread(data: bytes) -> format.PRead:
    return lambda offset, nbytes: data[offset : offset + nbytes]


def _seal(draw: Draw) -> None:
    """A sealed file that is right but for what is drawn, behind its checksums."""
    file = bytearray(2 * format.PAGE)
    index, labels = (
        replace(_header(draw, kind, format.PAGE, 1, 7), payload_nbytes=draw.byte()) for kind in (4, 5)
    )
    try:
        index, labels, directory = format.seal_headers(index, labels, [])
        format.pack_header(labels)
    except struct.error:
        return  # what is drawn cannot be written
    directory = draw.changed(directory) if draw.flag() else directory
    for at, data in ((index.offset, index), (labels.offset, labels)):
        if at < len(file):
            packed = _packed(draw, data)
            file[at : at + len(packed)] = packed
    start = min(labels.payload_end, 4 * format.PAGE)
    file[start:] = directory
    found = format.read_seal(_pread(bytes(file)), len(file), UUID)
    assert found is None or found.directory_offset <= len(file)


def _tail(draw: Draw) -> None:
    size, offset, nbytes = draw.number(), draw.number(), draw.number()
    end = format.pack_end(draw.number(), offset, nbytes) if offset + nbytes < 1 << 64 else b""
    tail = draw.changed(end) if draw.flag() else end
    found = format.parse_tail(
        tail.rjust(format.TAIL_NBYTES, b"\0"), offset + nbytes + 98 if draw.flag() else size
    )
    assert found is None or found.directory_offset == offset or tail != end


def _head(draw: Draw) -> None:
    data = format.pack_head(format.Head(UUID))
    header = format.parse_header(data)
    assert header is not None
    if draw.flag():
        data = _packed(draw, replace(header, payload_nbytes=draw.number(), next=draw.number())) + data[192:]
    else:
        data = draw.changed(data[:250]) + data[250:]
    try:
        head, cursor = format.read_head(_pread(data), "fuzz.zip")
    except EdcacheError:
        return
    assert head.uuid == UUID
    assert cursor.offset == header.next
