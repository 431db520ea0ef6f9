"""Entries, head, root and zip directory, against literals worked out by hand from their specification."""

import io
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from chains import UUID, Archive
from damage import flipped
from written import write

from edcache import format, storage
from edcache.errors import ArchiveError, CorruptArchiveError, OptionError
from edcache.format import ROW, Failure, Head, Header, entries

NOTHING = np.zeros(0, ROW)
CHUNK = Header(
    *(format.CHUNK, "chunks/00000003", UUID, 3, 8192, 3904, 0x11223344, 12288, 77),
    *(4096, 5, 25, 800, 0x55667788),
)


def reading(data):
    return lambda offset, nbytes: bytes(data[offset : offset + nbytes])


def test_a_header_has_the_bytes_that_the_specification_tells():
    local = struct.pack(
        "<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 33, 0x11223344, 2**32 - 1, 2**32 - 1, 15, 147
    )
    zip64 = struct.pack("<HHQQ", 1, 16, 3904, 3904)
    private = struct.pack("<HHHH16s", 0x6465, 147 - 20 - 4, 3, 1, UUID)
    private += struct.pack("<QQQQQQQQI", 3, 8192, 12288, 77, 4096, 5, 25, 800, 0x55667788)
    body = local + b"chunks/00000003" + zip64 + private
    assert format.pack_header(CHUNK) == (body + struct.pack("<I", zlib.crc32(body))).ljust(192, b"\0")


@pytest.mark.parametrize("nbytes", [0, 1, 2**32 - 1, 1 << 40])
@pytest.mark.parametrize("name", ["a", "labels/" + "%20" * 200 + ".arrow", "n" * format.MAX_NAME_NBYTES])
def test_a_header_reads_back_as_it_was(name, nbytes):
    header = replace(CHUNK, name=name, nbytes=nbytes)
    packed = format.pack_header(header)
    assert len(packed) == format.header_nbytes(name) <= format.MAX_HEADER_NBYTES
    assert header.payload_offset == 8192 + len(packed)
    assert header.payload_offset % 64 == 0
    found = format.parse_header(packed + b"more")
    assert (found, found.link_after) == (header, format.link_after(packed))


def test_every_bit_and_every_byte_of_a_header_counts(monkeypatch):
    packed = format.pack_header(CHUNK)
    for bit in range(len(packed) * 8):
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        assert format.parse_header(bytes(flipped)) is None
    assert all(format.parse_header(packed[:n]) is None for n in range(len(packed)))
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 33, 0, 0, 0, 0xFFFF, 150)
    assert format.parse_header(local.ljust(1024, b"\1")) is None
    assert format.parse_header(format.pack_header(replace(CHUNK, kind=7))) is None
    monkeypatch.setattr(entries, "VERSION", 4)
    later = format.pack_header(CHUNK)
    monkeypatch.undo()
    assert format.parse_header(later) is None


# --- the head ---


def test_the_head_fills_whole_pages_and_reads_back():
    for arguments in ({}, {"x": "y" * 5000}):
        head = Head(UUID, 10, "native", "zstd", (("label", "label"),), 32, {"arguments": arguments})
        data = format.pack_head(head)
        assert len(data) % 4096 == 0
        found, cursor = format.read_head(reading(data), "a.zip")
        assert (found, cursor.offset, cursor.number) == (head, len(data), 1)
    with pytest.raises(OptionError, match=r"head would have 2,\d+,\d+ bytes, the format allows 1,048,576"):
        format.pack_head(Head(UUID, fingerprint={"x": "y" * (2 << 20)}))


def test_the_head_names_what_is_wrong_with_it(monkeypatch):
    data = format.pack_head(Head(UUID))
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as ordinary:
        ordinary.writestr("edcache.json", "{}" * 50)
    monkeypatch.setattr(entries, "VERSION", 4)
    later = bytearray(format.pack_head(Head(UUID)))
    monkeypatch.undo()
    changed = "the head at offset 0 fails its checksum"
    for begin, error, message in (
        (b"", CorruptArchiveError, "a.zip: not an edcache archive: .*; it is empty"),
        (b"PK\3\4" + bytes(5000), CorruptArchiveError, "does not begin with a zip entry edcache.json"),
        (later, ArchiveError, "archive format 4, this release reads format 3; upgrade edcache"),
        (data[:100] + bytes(3996), CorruptArchiveError, changed),
        (other.getvalue(), CorruptArchiveError, changed),
        (data[:-1] + b"x", CorruptArchiveError, r"the head's 3,\d+ bytes fail their crc32"),
    ):
        with pytest.raises(error, match=message):
            format.read_head(reading(begin), "a.zip")


SAID = {
    "format": "edcache",
    "version": 3,
    "uuid": UUID.hex(),
    "length": 10,
    "codec": "native",
    "compression": None,
    "labels": [["a", "x"], ["b", ["x", 0]], ["c", None]],
    "claim_size": 64,
    "fingerprint": None,
}


def head_that_says(said):
    """A head whose checksums are right, whatever it says."""
    payload = json.dumps(said).encode().ljust(4096 - format.header_nbytes("edcache.json"))
    place = 0, 0, len(payload), zlib.crc32(payload), 4096, 0
    return format.pack_header(Header(0, "edcache.json", UUID, *place)) + payload


def test_a_head_says_what_its_json_says():
    head, _ = format.read_head(reading(head_that_says(SAID)), "a.zip")
    assert head == Head(UUID, 10, labels=(("a", "x"), ("b", ["x", 0]), ("c", None)))


@pytest.mark.parametrize(
    "changes",
    [
        *({"more": 1}, {"uuid": "xy"}, {"uuid": 5}, {"labels": [["a"]]}, {"labels": 7}, {"format": "other"}),
        *({"version": 2}, {"uuid": "00" * 16}, {"length": -1}, {"length": 1.5}, {"length": 1 << 62}),
        *(
            {"claim_size": 0},
            {"claim_size": True},
            {"codec": "json"},
            {"compression": 3},
            {"fingerprint": []},
        ),
        *({"labels": [["", "x"]]}, {"labels": [["a", []]]}, {"labels": [["a", [None]]]}),
        *({"labels": [["a", 1.5]]}, {"labels": [["a", "x"], ["a", "y"]]}),
    ],
    ids=str,
)
def test_a_head_that_no_writer_left_is_corrupt(changes):
    with pytest.raises(CorruptArchiveError, match="a.zip: the head does not read: "):
        format.read_head(reading(head_that_says(SAID | changes)), "a.zip")


# --- a walk ---


def test_a_walk_finds_groups_and_stops_where_the_next_belongs():
    archive = Archive()
    first, second = archive.chunk([0, 1]), archive.chunk([2])
    archive.seal(NOTHING, [], pa.table({"y": [1]}))
    index, column, root = archive.headers[2:]
    note = archive.entry(format.NOTE, "notes/00000006", b"{}")
    groups = [[first], [second], [index, column, root], [note]]
    data = bytes(archive.data)
    assert archive.walked() == groups
    assert archive.walked(data + b"torn tail") == groups
    for size in range(0, len(data), 97):
        whole = [group for group in groups if group[-1].payload_end <= size]
        assert archive.walked(data[:size]) == whole
    for header in (index, column, root):
        torn = data[: header.offset] + bytes(192) + data[header.offset + 192 :]
        assert archive.walked(torn) == groups[:2]


@pytest.mark.parametrize("kind", [entries.HEAD, entries.CHUNK, entries.NOTE])
def test_a_group_ends_with_a_root_alone(kind):
    archive = Archive()
    archive.entry(format.INDEX, "index.rows", b"")
    archive.entry(kind, "x", b"", first=0, end=1)
    archive.entry(format.ROOT, "root.json", b"")
    assert archive.walked() == []


@pytest.mark.parametrize(
    "changes",
    [
        *({"uuid": bytes(16)}, {"number": 3}, {"offset": 4096}, {"offset": 4096, "next": 8192}, {"link": 1}),
        *({"next": 8192}, {"next": 20480}, {"next": 12289}, {"nbytes": 1 << 40}, {"nbytes": (1 << 64) - 1}),
        *({"table_nbytes": 1 << 20}, {"table_nbytes": 3905}, {"first": 2}, {"first": 9}, {"end": 1 << 63}),
        *({"end": (1 << 62) + 1}, {"kind": 0}, {"kind": format.ROOT + 1}, {"kind": format.INDEX}),
    ],
    ids=str,
)
def test_a_walk_ends_before_an_entry_that_does_not_fit(changes):
    archive = Archive()
    first, second = archive.chunk([0]), archive.chunk([1])
    assert second.offset == 8192
    archive.chunk([2])
    data, packed = bytes(archive.data), format.pack_header(replace(second, **changes))
    data = data[: second.offset] + packed + data[second.payload_offset :]
    assert archive.walked(data) == [[first]]


def test_a_stale_entry_does_not_come_back_after_a_cut_and_a_new_append():
    """Its number, offset and uuid still fit; only the link does not."""
    archive = Archive()
    first, second, _ = archive.chunk([0]), archive.chunk([1]), archive.chunk([2])
    other = replace(second, crc32=99)
    at = second.offset
    data = archive.data[:at] + format.pack_header(other) + archive.data[second.payload_offset :]
    assert archive.walked(data) == [[first], [other]]


def test_entries_behind_damage_are_found_unless_they_are_of_another_archive():
    archive = Archive()
    first, second, third = archive.chunk([0]), archive.chunk([1]), archive.chunk([2])
    data = flipped(archive.data, first.offset)
    data += format.pack_header(replace(third, uuid=bytes(16), offset=len(data))).ljust(4096, b"\0")
    data += format.pack_header(third)  # a record may hold one: it says another offset
    found = entries.later_headers(reading(data), lambda at: at, 5, len(data), UUID)
    assert list(found) == [second, third]


# --- root and directory ---


def sealed(**changes):
    """An archive that is sealed, and its root."""
    archive = Archive(["y"])
    archive.chunk([0, 1], labels=pa.table({"y": [5, 6]}))
    rows = format.read_table(archive.pread, archive.headers[0], "a.zip").rows
    root = archive.seal(rows, ["a"], pa.table({"y": [5, 6], "ü/x": ["a", None]}), added=["ü/x"])
    if changes:
        root = replace(root, **changes)
        archive.publish_root(root)
    return archive, root


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"failures": [Failure(1, True, "ValueError", "ü", "Traceback")], "uniform": (0, 6, 6)},
        {"dropped": ["y"], "fingerprint": {"x": [1]}},
        {"schemas": ["a", "x" * 100_000]},  # larger than what opening reads of the end
    ],
    ids=str,
)
def test_a_root_reads_back_from_the_end_of_a_file(changes):
    archive, root = sealed(**changes)
    found, place = format.read_root(archive.pread, len(archive.data), "a.zip")
    assert found == root
    assert archive.place(archive.headers[-1]) == place
    data = bytes(archive.data)
    for other in (data[:-1], data + b"\0", data[: place.offset], b"", bytes(70_000), b"PK\5\6" * 200):
        assert format.read_root(reading(other), len(other), "a.zip") is None
    for at in range(place.offset, place.offset + place.nbytes, 1 + place.nbytes // 50):
        assert format.read_root(reading(flipped(data, at)), len(data), "a.zip") is None


@pytest.mark.parametrize(
    "changes",
    [
        *({"length": 3}, {"length": -1}, {"present": 3}, {"chunks": 1.5}, {"schemas": [5]}, {"dropped": [1]}),
        *({"index": (0, 48)}, {"index": (1 << 40, 48, 0)}, {"index": (0, 24, 0)}, {"uniform": (0, 1)}),
        *(
            {"fingerprint": []},
            {"failures": [[0, 1, "", "", ""]]},
            {"labels": {"y": [0, 1, 2]}},
            {"head": {}},
        ),
        *({"labels": {"y": [0, 1, 2, "blob", True]}}, {"labels": []}, {"more": 1}),
    ],
    ids=str,
)
def test_a_root_that_no_writer_left_is_refused(changes):
    archive, root = sealed()
    said = json.loads(format.pack_root(root)) | changes
    payload = json.dumps(said).encode()
    data, place = bytes(archive.data), len(archive.data)
    comment = b"edcache 3 root.json %016x %016x %08x" % (place, len(payload), zlib.crc32(payload))
    end = data[-format.END_NBYTES :][:22] + comment
    data += payload + end
    with pytest.raises(CorruptArchiveError, match="a.zip: root.json does not read: "):
        format.read_root(reading(data), len(data), "a.zip")


def test_the_directory_lists_the_newest_of_each_name_for_zip_tools():
    archive, root = sealed(dropped=["y"])
    with zipfile.ZipFile(io.BytesIO(archive.data)) as read:
        assert read.testzip() is None
        names = ["edcache.json", "chunks/00000001", "index.rows", "labels/y.arrow"]
        assert read.namelist() == [*names, "labels/%C3%BC%2Fx.arrow", "root.json"]
        assert read.read("root.json") == format.pack_root(root)
    names = ["edcache.json", *{header.name for header in archive.headers}]
    assert archive.headers[-1].payload_end + format.directory_nbytes(names) == len(archive.data)


def test_the_whole_file_lock_is_the_append_lock():
    """Where only whole files can be locked, this is the byte that stands for the file."""
    assert storage.WHOLE_FILE_LOCK == format.LOCK_APPEND


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
    write(tmp_path / "a.zip", range(50), uuid=bytes(16))
    paths = [str(tmp_path / "b.zip"), str(tmp_path / "a.zip")]
    subprocess.run([sys.executable, "-c", script, *paths], check=True)
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()
