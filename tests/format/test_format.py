"""The bytes of the format, against literals worked out by hand from its specification."""

import json
import struct
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace

import pytest

from edcache import CacheWriter, format, storage
from edcache.errors import ArchiveError, CorruptArchiveError, OptionError
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
        "<HHI16sQQQQQQQQI", 2, 1, 192, UUID, 3, 8192, 12288, 77, 5, 25, 800, 4096, 0x55667788
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


@pytest.mark.parametrize("name_nbytes", [0, 12, 300, 0xFFFF])
@pytest.mark.parametrize("payload_nbytes", [0, 0xFFFFFFFF])
def test_a_header_whose_lengths_lead_beyond_it_is_no_header(name_nbytes, payload_nbytes):
    local = struct.pack(
        "<4sHHHHHIIIHH", b"PK\3\4", 20, 0, 0, 0, 0x21, 0, payload_nbytes, payload_nbytes, name_nbytes, 150
    )
    assert format.parse_header(local.ljust(320, b"\1")) is None


def test_a_truncated_header_is_no_header():
    packed = format.pack_header(chunk())
    assert all(format.parse_header(packed[:n]) is None for n in range(len(packed)))


def test_a_header_with_a_later_version_or_an_unknown_kind_is_no_entry():
    for position, value in ((49, 3), (51, 9)):
        packed = bytearray(format.pack_header(chunk()))
        packed[position] = value
        assert format.parse_header(bytes(packed)) is None


def reading(data):
    return lambda offset, nbytes: data[offset : offset + nbytes]


def test_the_head_fills_whole_pages_and_reads_back():
    for arguments in ({}, {"x": "y" * 5000}):
        head = Head(UUID, 10, "native", "zstd", (("label", "label"),), 32, {"arguments": arguments})
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
    with pytest.raises(CorruptArchiveError, match="a.zip: not an edcache archive: .*; it is empty"):
        format.read_head(reading(b""), "a.zip")
    with pytest.raises(CorruptArchiveError, match="does not begin with a zip entry edcache.json"):
        format.read_head(reading(b"PK\3\4" + bytes(5000)), "a.zip")
    newer = bytearray(data)
    newer[30 + 12 + 4] = 3
    with pytest.raises(ArchiveError, match="archive format 3, this release reads format 2; upgrade"):
        format.read_head(reading(bytes(newer)), "a.zip")
    torn = data[:100] + bytes(3996)
    with pytest.raises(CorruptArchiveError, match="the head at offset 0 fails its checksum"):
        format.read_head(reading(torn), "a.zip")
    with pytest.raises(CorruptArchiveError, match="the head's 3,904 bytes fail their crc32"):
        format.read_head(reading(data[:-1] + b"x"), "a.zip")


def test_an_ordinary_zip_whose_first_entry_has_our_name_is_no_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as other:
        other.writestr("edcache.json", "{}" * 50)
    with pytest.raises(CorruptArchiveError, match="the head at offset 0 fails its checksum"):
        format.read_head(reading((tmp_path / "a.zip").read_bytes()), "a.zip")


def head_that_says(text, **changes):
    """A head whose checksums are right, whatever it says."""
    payload = text.encode().ljust(4096 - 192)
    said = (len(payload), zlib.crc32(payload))
    fields = {"seq": 0, "link": 0, "next": 4096, "table_nbytes": said[0], "table_crc": said[1]}
    header = Header(format.KIND_HEAD, UUID, offset=0, payload_nbytes=said[0], payload_crc=said[1], **fields)
    return format.pack_header(replace(header, **changes)) + payload


SAID = {
    "format": "edcache",
    "version": 2,
    "uuid": UUID.hex(),
    "length": 10,
    "codec": "native",
    "compression": None,
    "labels": [["a", "x"], ["b", ["x", 0]], ["c", None]],
    "claim_size": 64,
    "fingerprint": None,
}


def test_a_head_says_what_its_json_says():
    head, _ = format.read_head(reading(head_that_says(json.dumps(SAID))), "a.zip")
    assert head == Head(UUID, 10, labels=(("a", "x"), ("b", ["x", 0]), ("c", None)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": 1}, "the head's JSON does not read: it has other keys than those of this format version"),
        ({"uuid": "xy"}, "the head's JSON does not read: non-hexadecimal number found"),
        ({"uuid": 5}, "the head's JSON does not read: "),
        ({"labels": [["a"]]}, "the head's JSON does not read: not enough values to unpack"),
        ({"labels": 7}, "the head's JSON does not read: 'int' object is not iterable"),
        *(
            (changed, "the head's JSON is not one that this format version allows")
            for changed in (
                {"format": "other"},
                {"version": 0},
                {"uuid": "00" * 16},
                {"length": -1},
                {"length": 1.5},
                {"claim_size": 0},
                {"claim_size": True},
                {"codec": "json"},
                {"compression": 3},
                {"fingerprint": []},
                {"labels": [["", "x"]]},
                {"labels": [["a", []]]},
                {"labels": [["a", [None]]]},
                {"labels": [["a", 1.5]]},
                {"labels": [["a", "x"], ["a", "y"]]},
            )
        ),
    ],
    ids=str,
)
def test_a_head_that_no_writer_left_is_corrupt(changes, message):
    with pytest.raises(CorruptArchiveError, match=message):
        format.read_head(reading(head_that_says(json.dumps(SAID | changes))), "a.zip")


@pytest.mark.parametrize(
    "changes", [{"samples": 1}, {"seq": 1}, {"link": 1}, {"durable": 4096}, {"table_crc": 0}], ids=str
)
def test_a_header_with_more_than_a_head_needs_begins_no_archive(changes):
    with pytest.raises(CorruptArchiveError, match="the header at offset 0 is not one that begins an archive"):
        format.read_head(reading(head_that_says(json.dumps(SAID), **changes)), "a.zip")


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


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 0},
        {"samples": 2},
        {"table_nbytes": 4096},
        {"end_index": format.MAX_LENGTH + 1},
        {"next": 1 << 20},
        {"kind": format.KIND_HEAD},
        {"kind": format.KIND_AMENDMENT},
        {"kind": format.KIND_AMENDMENT, "samples": 0},
        {"kind": format.KIND_LABELS},
        {"kind": format.KIND_INDEX},
        {"kind": format.KIND_INDEX, "samples": 2, "table_nbytes": 3904},
    ],
    ids=str,
)
def test_an_entry_whose_sizes_do_not_go_together_is_no_entry(changes):
    data, headers = chain(2)
    page = headers[1].offset
    forged = format.pack_header(replace(headers[1], **changes))
    assert walked(data[:page] + forged + data[page + 192 :]) == headers[:1]


def test_an_entry_that_reaches_over_pages_that_its_content_does_not_take_is_no_entry():
    data, headers = chain(3)
    page, first = headers[0].offset, headers[0]
    as_amendment = {"kind": format.KIND_AMENDMENT, "samples": 0, "end_index": 0, "table_nbytes": 30}
    forged = format.pack_header(replace(first, **as_amendment))
    assert walked(data[:page] + forged + data[page + 192 :])[0].kind == format.KIND_AMENDMENT
    larger = {"payload_nbytes": first.payload_nbytes + 4096, "next": first.next + 4096}
    forged = format.pack_header(replace(first, **as_amendment, **larger))
    assert walked(data[:page] + forged + data[page + 192 :]) == []


def sealed():
    """A chain of two chunks and a seal of it; returns bytes and the seal's headers."""
    data, headers = chain(2)
    cursor = format.after(headers[-1])
    tables = b"index" * 20, b"labels" * 20
    bare = [
        Header(
            *(kind, UUID, cursor.seq, cursor.offset, cursor.link, len(table), zlib.crc32(table)),
            samples=1,
            end_index=1,
            table_nbytes=len(table),
            table_crc=zlib.crc32(table),
        )
        for kind, table in zip((format.KIND_INDEX, format.KIND_LABELS), tables, strict=True)
    ]
    index, labels, directory = format.seal_headers(*bare, headers)
    for header, table in zip((index, labels), tables, strict=True):
        data += format.pack_header(header) + table
    return data + directory, index, labels


def test_a_seal_is_found_at_the_end_alone():
    data, index, labels = sealed()
    assert format.read_seal(reading(data), len(data), UUID) == format.Seal(index, labels)
    assert walked(data)[-2:] == [index, labels]
    for other in (data[:-1], data + b"\0", data[: labels.payload_end], b""):
        assert format.read_seal(reading(other), len(other), UUID) is None


def behind(data, seal, headers):
    """The bytes of an archive with a revision behind its seal, and the seal with it."""
    cursor, table = format.after(seal.last), b"revision"
    bare = Header(
        *(format.KIND_REVISION, UUID, cursor.seq, cursor.offset, cursor.link, len(table), zlib.crc32(table)),
        table_nbytes=len(table),
        table_crc=zlib.crc32(table),
    )
    header, directory = format.behind_seal(bare, seal, headers)
    data = data.ljust(header.offset, b"\0") + format.pack_header(header) + table + directory
    return data, replace(seal, revisions=(*seal.revisions, header))


def test_revisions_behind_a_seal_leave_it_valid_up_to_a_number():
    data, index, labels = sealed()
    headers, seal = walked(data)[:-2], format.Seal(index, labels)
    for count in range(1, format.MAX_BEHIND_SEAL + 1):
        before = data
        data, seal = behind(data, seal, headers + list(seal.revisions))
        assert format.read_seal(reading(data), len(data), UUID) == seal
        assert walked(data)[-count:] == list(seal.revisions)
        # Cut anywhere, it is as sealed as any torn tail.
        for end in (len(before) + 1, seal.last.offset + 100, len(data) - 1):
            assert format.read_seal(reading(data[:end]), end, UUID) is None
        hidden = data[: seal.last.offset] + bytes(192) + data[seal.last.payload_offset :]
        assert format.read_seal(reading(hidden), len(hidden), UUID) is None
    data, seal = behind(data, seal, headers + list(seal.revisions))
    assert format.read_seal(reading(data), len(data), UUID) is None


def test_revisions_behind_labels_of_records_alone_are_none_behind_a_seal():
    data, index, labels = sealed()
    longer, labels = replace(index, end_index=2), replace(labels, end_index=2)
    index, labels, directory = format.seal_headers(longer, labels, walked(data)[:-2])
    data = data[: index.offset] + format.pack_header(index) + data[index.payload_offset :]
    data = data[: labels.offset] + format.pack_header(labels) + data[labels.payload_offset :]
    data = data[: labels.payload_end] + directory
    seal = format.Seal(index, labels)
    assert format.read_seal(reading(data), len(data), UUID) == seal
    data, _ = behind(data, seal, walked(data)[:-2])
    assert format.read_seal(reading(data), len(data), UUID) is None


def test_a_seal_counts_only_with_both_of_its_headers():
    data, index, labels = sealed()
    for header, other in ((index, labels), (labels, index)):
        for forged in (
            bytes(192),
            format.pack_header(replace(other, offset=header.offset)),
            format.pack_header(replace(header, samples=0)),
            format.pack_header(replace(header, uuid=bytes(16))),
        ):
            at = header.offset
            broken = (
                data[:at] + forged.ljust(header.nbytes, b"\0")[: header.nbytes] + data[at + header.nbytes :]
            )
            assert len(broken) == len(data)
            assert format.read_seal(reading(broken), len(data), UUID) is None


def test_an_index_without_its_labels_ends_the_walk_before_it():
    data, _, labels = sealed()
    at = labels.offset
    for forged in (b"", format.pack_header(replace(labels, kind=format.KIND_AMENDMENT))):
        assert len(walked(data[:at] + forged.ljust(labels.nbytes, b"\0") + data[at + labels.nbytes :])) == 2


@pytest.mark.full
def test_without_isal_the_same_bytes_are_written_and_read(tmp_path):
    script = (
        "import sys, zlib\n"
        "sys.modules['isal'] = None\n"
        "from edcache import CacheWriter, CachedDataset, format\n"
        "assert format.crc32 is zlib.crc32\n"
        "with CacheWriter(sys.argv[1], uuid=bytes(16)) as w: w.extend(range(50))\n"
        "assert list(CachedDataset.from_cache(sys.argv[2])) == list(range(50))\n"
    )
    with CacheWriter(tmp_path / "a.zip", uuid=bytes(16)) as w:
        w.extend(range(50))
    paths = [str(tmp_path / "b.zip"), str(tmp_path / "a.zip")]
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()


def test_the_whole_file_lock_is_the_append_lock():
    """Where only whole files can be locked, this is the byte that stands for the file."""
    assert storage.WHOLE_FILE_LOCK == format.LOCK_APPEND


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
