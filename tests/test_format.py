"""The bytes of the format, against literals worked out by hand from its specification."""

import struct
import zlib
from dataclasses import replace

import pytest

from edcache import durable, format
from edcache.errors import CorruptArchiveError, FormatVersionError, NotAnArchiveError, OptionError
from edcache.format import Head, Header

UUID = bytes(range(16))


def chunk(**changes):
    fields = {
        "kind": format.KIND_CHUNK,
        "uuid": UUID,
        "seq": 3,
        "offset": 8192,
        "link": 77,
        "payload_nbytes": 4096 - 192,
        "payload_crc": 0x11223344,
        "next": 12288,
        "samples": 5,
        "end_index": 25,
        "table_nbytes": 800,
        "table_crc": 0x55667788,
        "durable": 4096,
    }
    return Header(**(fields | changes))


def test_a_header_has_the_bytes_that_the_specification_tells():
    private = struct.pack(
        "<HHI16sQQQQQQQQI", 1, 1, 192, UUID, 3, 8192, 12288, 77, 5, 25, 800, 4096, 0x55667788
    )
    name = b"chunks/00000003"
    local = struct.pack(
        "<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, 0x21, 0x11223344, 3904, 3904, 15, 192 - 30 - 15
    )
    extra = struct.pack("<HH", 0x6465, 192 - 30 - 15 - 4)
    before = local + name + extra + private
    rest = bytes(192 - len(before) - 4)
    crc = zlib.crc32(before + bytes(4) + rest)
    assert format.pack_header(chunk()) == before + struct.pack("<I", crc) + rest


@pytest.mark.parametrize("payload_nbytes", [0, 1, 0xFFFFFFFE, 0xFFFFFFFF, 1 << 40])
@pytest.mark.parametrize("kind", range(6))
def test_a_header_reads_back_as_it_was(kind, payload_nbytes):
    header = chunk(kind=kind, payload_nbytes=payload_nbytes)
    packed = format.pack_header(header)
    assert len(packed) == header.nbytes
    assert format.parse_header(packed + b"more") == header
    assert (header.offset + header.nbytes) % 64 == 0


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 4095, 4096, 10**13 + 7])
def test_a_payload_starts_on_64_wherever_its_header_is(offset):
    header = chunk(kind=format.KIND_LABELS, offset=offset)
    assert header.payload_offset % 64 == 0
    assert 192 <= header.nbytes <= format.MAX_HEADER_NBYTES
    assert format.parse_header(format.pack_header(header)) == header


def test_every_bit_of_a_header_counts():
    packed = format.pack_header(chunk())
    for bit in range(len(packed) * 8):
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        assert format.parse_header(bytes(flipped)) is None


def test_a_truncated_header_is_no_header():
    packed = format.pack_header(chunk())
    assert all(format.parse_header(packed[:n]) is None for n in range(len(packed)))


def test_a_header_with_a_later_version_or_an_unknown_kind_is_no_entry():
    for position, value in ((49, 2), (51, 9)):
        packed = bytearray(format.pack_header(chunk()))
        packed[position] = value
        assert format.parse_header(bytes(packed)) is None


def reading(data):
    return lambda offset, nbytes: data[offset : offset + nbytes]


def test_the_head_fills_whole_pages_and_reads_back():
    for arguments in ({}, {"x": "y" * 5000}):
        head = Head(UUID, 10, "native", "zstd", (("label", "label"),), {"arguments": arguments}, 32)
        data = format.pack_head(head)
        assert len(data) % 4096 == 0
        found, cursor = format.read_head(reading(data), "a.zip")
        assert found == head
        assert cursor.offset == len(data)


def test_a_head_that_would_not_fit_is_refused():
    with pytest.raises(OptionError, match=r"head would have 2,\d+,\d+ bytes, the format allows 1,048,576"):
        format.pack_head(Head(UUID, fingerprint={"x": "y" * (2 << 20)}))


def test_the_head_names_what_is_wrong_with_it():
    data = format.pack_head(Head(UUID))
    with pytest.raises(NotAnArchiveError, match="a.zip: not an edcache archive: .*; it is empty"):
        format.read_head(reading(b""), "a.zip")
    with pytest.raises(NotAnArchiveError, match="does not begin with a zip entry edcache.json"):
        format.read_head(reading(b"PK\3\4" + bytes(5000)), "a.zip")
    newer = bytearray(data)
    newer[30 + 12 + 4] = 2
    with pytest.raises(FormatVersionError, match="archive format 2, this release reads up to 1; upgrade"):
        format.read_head(reading(bytes(newer)), "a.zip")
    torn = data[:100] + bytes(3996)
    with pytest.raises(CorruptArchiveError, match="the head at offset 0 fails its checksum"):
        format.read_head(reading(torn), "a.zip")
    with pytest.raises(CorruptArchiveError, match="the head's 3,904 bytes fail their crc32"):
        format.read_head(reading(data[:-1] + b"x"), "a.zip")


def chain(count):
    """A head and `count` chunks with one page of payload each; returns bytes and headers."""
    data = format.pack_head(Head(UUID))
    _, cursor = format.read_head(reading(data), "a.zip")
    headers = []
    for number in range(count):
        payload = bytes([number]) * (4096 - 192)
        header = Header(
            kind=format.KIND_CHUNK,
            uuid=UUID,
            seq=cursor.seq,
            offset=cursor.offset,
            link=cursor.link,
            next=cursor.offset + 4096,
            payload_nbytes=len(payload),
            payload_crc=zlib.crc32(payload),
            samples=1,
            end_index=1,
            table_nbytes=30,
        )
        data += format.pack_header(header) + payload
        headers.append(header)
        cursor = format.after(header)
    return data, headers


def walked(data, size=None):
    _, cursor = format.read_head(reading(data), "a.zip")
    return list(format.walk(reading(data), len(data) if size is None else size, UUID, cursor))


def test_a_walk_finds_the_chunks_and_stops_where_the_next_belongs():
    data, headers = chain(5)
    assert walked(data) == headers
    assert walked(data + b"torn tail") == headers
    assert walked(data[:-1]) == headers[:-1]


def test_a_stale_chunk_does_not_come_back_after_a_cut_and_a_re_append():
    """Its sequence number, offset and uuid still fit; only the link does not."""
    data, headers = chain(3)
    other = replace(headers[1], payload_crc=99)
    page = headers[1].offset
    rewritten = data[:page] + format.pack_header(other) + data[page + 192 :]
    assert walked(rewritten) == [headers[0], other]


def test_a_chunk_of_another_archive_is_no_chunk():
    data, headers = chain(2)
    foreign = format.pack_header(replace(headers[1], uuid=bytes(16)))
    page = headers[1].offset
    assert walked(data[:page] + foreign + data[page + 192 :]) == headers[:1]


def test_the_whole_file_lock_is_the_append_lock():
    """Where only whole files can be locked, this is the byte that stands for the file."""
    assert durable.WHOLE_FILE_LOCK == format.LOCK_APPEND


def test_foreign_bytes_at_the_end_are_no_tail():
    for tail in (bytes(format.TAIL_NBYTES), b"\xff" * format.TAIL_NBYTES, b"PK\6\6" * 200):
        assert format.parse_tail(tail[: format.TAIL_NBYTES], 10_000) is None


def test_a_directory_tells_where_its_entries_begin():
    headers = [chunk(kind=format.KIND_CHUNK, offset=4096 * n, seq=n) for n in (1, 2, 1 << 21)]
    index = chunk(kind=format.KIND_INDEX, offset=5 << 32)
    directory = format.pack_directory([*headers, index], 6 << 32)
    assert list(format.directory_offsets(directory)) == [4096, 8192, 1 << 33, 5 << 32]
    assert list(format.directory_offsets(directory[:-1])) == [4096, 8192, 1 << 33, 5 << 32]
    assert list(format.directory_offsets(b"")) == []
    assert all(0 <= at < 1 << 64 for at in format.directory_offsets(b"PK\1\2" + b"\xff" * 300))
