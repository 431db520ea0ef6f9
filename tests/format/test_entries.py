"""Entries, head, root and zip directory, against literals worked out by hand from their specification."""

import io
import itertools
import json
import struct
import subprocess
import sys
import zipfile
import zlib
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest
import reference
from chains import UUID, Archive
from damage import flipped
from written import write

from edcache import format, storage
from edcache.errors import CorruptArchiveError, LaterReleaseError, OptionError
from edcache.format import ROW, Failure, Head, Header, entries

NOTHING = np.zeros(0, ROW)
CHUNK = Header(
    *(format.CHUNK, "chunks/00000003", UUID, 3, 8192, 3904, 0x11223344, 12288, 77),
    *(4096, 5, 25, 800, 0x55667788),
)


def reading(data):
    return lambda offset, nbytes, is_sound=None: bytes(data[offset : offset + nbytes])


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


def test_every_bit_and_every_byte_of_a_header_counts():
    packed = format.pack_header(CHUNK)
    for bit in range(len(packed) * 8):
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        assert format.parse_header(bytes(flipped)) is None
    assert all(format.parse_header(packed[:n]) is None for n in range(len(packed)))
    local = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 33, 0, 0, 0, 0xFFFF, 150)
    assert format.parse_header(local.ljust(1024, b"\1")) is None
    assert all(
        format.parse_header(format.pack_header(replace(CHUNK, version=older))) is None for older in range(3)
    )


@pytest.mark.parametrize(
    "changes", [{"version": 4}, {"version": 0xFFFF}, {"kind": 7}, {"kind": 0xFFFF}], ids=str
)
def test_a_header_of_a_later_release_reads_and_may_say_more_behind_what_its_sum_is_of(changes):
    header = replace(CHUNK, **changes)
    packed = format.pack_header(header)
    assert header.is_later
    assert not CHUNK.is_later
    summed = 146 + len(CHUNK.name)
    for data in (packed, packed[:summed] + b"\xff" * (len(packed) - summed)):
        found = format.parse_header(data)
        assert (found, found.link_after) == (header, format.link_after(packed))
    for bit in range(summed * 8):
        assert format.parse_header(flipped(packed, bit >> 3, 1 << (bit & 7))) is None


# --- the head ---


def test_the_head_fills_whole_pages_and_reads_back():
    for arguments in ({}, {"x": "y" * 5000}):
        head = Head(UUID, 10, "native", "zstd", (("label", "label"),), 32, {"arguments": arguments})
        data = format.pack_head(head)
        assert len(data) % 4096 == 0
        found, header = format.read_head(reading(data), "a.zip")
        assert (found, header.next, header.number) == (head, len(data), 0)
    with pytest.raises(OptionError, match=r"head would have 2,\d+,\d+ bytes, the format allows 1,048,576"):
        format.pack_head(Head(UUID, fingerprint={"x": "y" * (2 << 20)}))


def test_the_head_names_what_is_wrong_with_it():
    data = format.pack_head(Head(UUID))
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as ordinary:
        ordinary.writestr("edcache.json", "{}" * 50)
    later = format.pack_header(replace(format.parse_header(data), version=4)) + b"{}"
    changed = "the head at offset 0 fails its checksum"
    for begin, error, message in (
        (
            b"",
            CorruptArchiveError,
            "^a.zip: it is empty: its writer begins, or died before .*; try again, or fill it",
        ),
        (b"PK\3\4" + bytes(5000), CorruptArchiveError, "does not begin with a zip entry edcache.json"),
        (
            later,
            LaterReleaseError,
            r"a.zip: needs archive format 4 \(this release knows 3\), which a later release of edcache wrote; "
            "upgrade edcache",
        ),
        (data[:100] + bytes(3996), CorruptArchiveError, changed),
        (other.getvalue(), CorruptArchiveError, changed),
        (
            bytes(sealed()[0].data[sealed()[0].headers[-1].offset :]),
            CorruptArchiveError,
            "the head at offset 0 is gone: root.json stands there",
        ),
        (data[:-1] + b"x", CorruptArchiveError, r"the head's 3,\d+ bytes fail their crc32"),
    ):
        with pytest.raises(error, match=message) as raised:
            format.read_head(reading(begin), "a.zip")
        assert raised.value.path == "a.zip"


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
    "reads": [],
    "writes": [],
    "more": {},
}


def head_that_says(said):
    """A head whose checksums are right, whatever it says."""
    payload = json.dumps(said).encode().ljust(4096 - format.header_nbytes("edcache.json"))
    place = 0, 0, len(payload), zlib.crc32(payload), 4096, 0
    return format.pack_header(Header(0, "edcache.json", UUID, *place)) + payload


def test_a_head_says_what_its_json_says_in_whatever_order():
    expected = Head(UUID, 10, labels=(("a", "x"), ("b", ["x", 0]), ("c", None)))
    for said in (SAID, dict(sorted(SAID.items())), dict(reversed(SAID.items()))):
        head, _ = format.read_head(reading(head_that_says(said)), "a.zip")
        assert head == expected


def test_what_may_be_ignored_of_a_head_is_and_what_a_writer_must_know_keeps_no_reader_out():
    said = SAID | {"writes": ["ledger"], "more": {"made by": ["a later release", None]}}
    head, _ = format.read_head(reading(head_that_says(said)), "a.zip")
    assert (head.writes, head.more) == (("ledger",), said["more"])
    format.check_writable([], "a.zip")
    told = "a.zip: needs 'ledger' for writing, which a later release of edcache wrote; upgrade edcache"
    with pytest.raises(LaterReleaseError, match=f"^{told}$") as raised:
        format.check_writable(head.writes, "a.zip")
    assert raised.value.path == "a.zip"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"order": [1]}, "the key 'order' of edcache.json"),
        ({"reads": ["long records"]}, "'long records'"),
        ({"reads": ["long records"], "order": [1], "labels": {}}, "'long records'"),
        ({"codec": "protobuf"}, "the codec 'protobuf'"),
    ],
    ids=str,
)
def test_a_head_that_needs_what_a_later_release_knows_says_what(changes, what):
    told = f"a.zip: the head: needs {what}, which a later release of edcache wrote; upgrade edcache"
    with pytest.raises(LaterReleaseError, match=f"^{told}$") as raised:
        format.read_head(reading(head_that_says(SAID | changes)), "a.zip")
    assert raised.value.path == "a.zip"
    assert not isinstance(raised.value, CorruptArchiveError)


@pytest.mark.parametrize(
    "changes",
    [
        *({"more": 1}, {"uuid": "xy"}, {"uuid": 5}, {"labels": [["a"]]}, {"labels": 7}, {"format": "other"}),
        *({"version": 2}, {"uuid": "00" * 16}, {"length": -1}, {"length": 1.5}, {"length": 1 << 62}),
        *({"claim_size": 0}, {"claim_size": True}, {"codec": 3}, {"compression": 3}, {"fingerprint": []}),
        *({"labels": [["", "x"]]}, {"labels": [["a", []]]}, {"labels": [["a", [None]]]}),
        *({"labels": [["a", 1.5]]}, {"labels": [["a", "x"], ["a", "y"]]}),
        *({"reads": "x"}, {"reads": [1]}, {"reads": None}, {"writes": {}}, {"writes": [[]]}, {"more": []}),
    ],
    ids=str,
)
def test_a_head_that_no_writer_left_is_corrupt(changes):
    with pytest.raises(CorruptArchiveError, match="a.zip: the head does not read: "):
        format.read_head(reading(head_that_says(SAID | changes)), "a.zip")


@pytest.mark.parametrize("key", SAID)
def test_a_head_has_every_key(key):
    said = {name: value for name, value in SAID.items() if name != key}
    with pytest.raises(CorruptArchiveError, match="a.zip: the head does not read: "):
        format.read_head(reading(head_that_says(said)), "a.zip")


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
        *({"kind": 7, "number": 3}, {"version": 4, "link": 1}, {"version": 4, "uuid": bytes(16)}),
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


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"version": 4}, "version 4 of entries"),
        ({"version": 4, "kind": 7}, "version 4 of entries"),
        ({"kind": 7}, "the kind 7 of entries"),
        ({"kind": 8}, "the kind 8 of entries"),
        ({"kind": 10, "nbytes": 1 << 40, "next": 5}, "the kind 10 of entries"),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_in_group", [False, True])
def test_a_walk_raises_at_an_entry_that_a_later_release_wrote(changes, what, is_in_group):
    archive = Archive()
    first = archive.entry(format.INDEX, "index.rows", b"") if is_in_group else archive.chunk([0])
    second = archive.chunk([1])
    packed = format.pack_header(replace(second, **changes))
    data = bytes(archive.data[: second.offset]) + packed + bytes(archive.data[second.payload_offset :])
    walked = format.walk(reading(data), len(data), UUID, archive.first, "a.zip")
    if not is_in_group:
        assert next(walked) == [first]
    told = (
        f"a.zip: needs {what}, as chunks/00000002 at offset 8,192, which a later release of edcache wrote; "
    )
    with pytest.raises(LaterReleaseError, match=f"^{told}upgrade edcache$") as raised:
        next(walked)
    assert raised.value.path == "a.zip"


def test_parts_count_by_the_rows_of_a_later_root_alone():
    archive = Archive(["y"])
    one = archive.chunk([0], labels=pa.table({"y": [4]}))
    alone = archive.walked()
    parts = [archive.chunk([k], labels=pa.table({"y": [k + 4]}), kind=format.PART) for k in (1, 2)]
    chain = archive.chain()
    assert archive.walked() == [*alone, *([part] for part in parts)]
    assert (chain.chunks, chain.behind, chain.parts, chain.end_index) == ([one, *parts], [one], parts, 1)
    rows = [format.read_table(archive.pread, header, "a.zip").rows for header in archive.headers]
    order = np.concatenate([rows[2], rows[0]])
    root = archive.seal(order, ["a"], pa.table({"y": [6, 4]}), is_reordered=True)
    assert archive.walked() == [*alone, *([part] for part in parts), archive.headers[3:]]
    chain = archive.chain()
    assert (chain.chunks, chain.behind, chain.parts) == ([one, *parts], [], [])
    assert (chain.root, chain.sealed, chain.is_settled) == (root, True, True)
    assert (chain.end_index, root.chunks) == (2, 3)
    waiting = archive.chunk([5], labels=pa.table({"y": [9]}), kind=format.PART)
    chain = archive.chain()
    assert (chain.parts, chain.sealed, chain.is_settled, chain.end_index) == ([waiting], False, True, 2)


def test_a_part_does_not_come_between_the_entries_of_a_seal():
    archive = Archive()
    archive.chunk([0])
    alone = archive.walked()
    archive.entry(format.INDEX, "index.rows", b"")
    archive.chunk([1], kind=format.PART)
    archive.entry(format.ROOT, "root.json", b"")
    assert archive.walked() == alone


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
    data += format.pack_header(third)  # it has moved, or a record holds it: its place is not its offset
    found = format.later_headers(reading(data), lambda at: at, 5, len(data), UUID)
    places = second.offset, third.offset, len(data) - len(format.pack_header(third))
    assert list(found) == list(zip(places, (second, third, third), strict=True))


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
    # A comment points at the root, and stands where the archive does not end.
    for count in (format.END_NBYTES, format.END_NBYTES + 20, 200, len(data) - place.offset, len(data)):
        for between in (b"", bytes(8), data[-8:]):
            other = data + between + data[-count:]
            assert format.read_root(reading(other), len(other), "a.zip") is None
    assert format.read_root(reading(data[-format.END_NBYTES :]), format.END_NBYTES, "a.zip") is None
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
            {"labels": {"y": [0]}},
            {"labels": {"y": [0, 1, "int64", False]}},
            {"head": {}},
        ),
        *({"labels": {"y": [1 << 40, 1, 2, "int64", True]}}, {"labels": []}, {"more": 1}, {"more": None}),
        *({"keys": [0, 1, 2]}, {"keys": [0, 1, 2, -1]}, {"keys": [1 << 40, 1, 2, 0]}, {"keys": 5}),
        *({"is_synced": 1}, {"is_synced": None}, {"is_reordered": 0}, {"reads": "x"}, {"writes": [5]}),
    ],
    ids=str,
)
def test_a_root_that_no_writer_left_is_refused(changes):
    said = json.loads(format.pack_root(sealed()[1])) | changes
    with pytest.raises(CorruptArchiveError, match="a.zip: root.json does not read: "):
        root_that_says(said)


def root_that_says(said):
    """Read a root whose checksum is right, whatever it says."""
    data, payload = bytes(sealed()[0].data), json.dumps(said).encode()
    comment = b"edcache 3 root.json %016x %016x %08x" % (len(data), len(payload), zlib.crc32(payload))
    zip64_end, locator = bytes(56), struct.pack("<4sIQI", b"PK\6\7", 0, len(data) + len(payload), 1)
    data += payload + zip64_end + locator + data[-format.END_NBYTES :][:22] + comment
    root, _ = format.read_root(reading(data), len(data), "a.zip")
    return root


@pytest.mark.parametrize("key", [field.name for field in fields(format.Root)])
def test_a_root_has_every_key(key):
    said = json.loads(format.pack_root(sealed()[1]))
    del said[key]
    with pytest.raises(CorruptArchiveError, match="a.zip: root.json does not read: "):
        root_that_says(said)


def test_a_root_says_what_its_json_says_in_whatever_order_and_what_may_be_ignored_is():
    root = sealed()[1]
    said = json.loads(format.pack_root(root)) | {"writes": ["ledger"], "more": {"x": 5}}
    said["head"] |= {"writes": ["log"], "more": {"y": 5}}
    head = replace(root.head, writes=("log",), more={"y": 5})
    expected = replace(root, head=head, writes=("ledger",), more={"x": 5})
    assert root_that_says(said) == root_that_says(dict(sorted(said.items()))) == expected


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"order": [1]}, "the key 'order' of root.json"),
        ({"reads": ["long records"]}, "'long records'"),
        ({"reads": ["long records"], "index": {"of": "a later release"}}, "'long records'"),
        ({"labels": {"y": [0, 1, 2, "blob", True]}}, "the label type 'blob'"),
        ({"labels": {"y": [0, 1, 2, ["map", "int8", "int8"], True]}}, "the label type .*map.*"),
        ({"head": SAID | {"reads": ["long records"]}}, "'long records'"),
        ({"head": SAID | {"codec": "protobuf"}}, "the codec 'protobuf'"),
        ({"head": SAID | {"order": 5}}, "the key 'order' of edcache.json"),
    ],
    ids=str,
)
def test_a_root_that_needs_what_a_later_release_knows_says_what(changes, what):
    told = f"a.zip: root.json: needs {what}, which a later release of edcache wrote; upgrade edcache"
    with pytest.raises(LaterReleaseError, match=f"^{told}$") as raised:
        root_that_says(json.loads(format.pack_root(sealed()[1])) | changes)
    assert raised.value.path == "a.zip"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"reads": ["long records"]}, "'long records'"),
        ({"order": 5}, "the key 'order' of a note"),
        ({"writes": []}, "the key 'writes' of a note"),
    ],
)
def test_a_note_that_needs_what_a_later_release_knows_says_what(change, what):
    archive = Archive()
    archive.entry(format.NOTE, "notes/00000001", json.dumps({"length": 7, "more": {"x": 1}}).encode())
    assert archive.chain().length == 7
    archive.entry(format.NOTE, "notes/00000002", json.dumps({"length": 7} | change).encode())
    place = "a.zip: notes/00000002 at offset 8,192"
    with pytest.raises(LaterReleaseError, match=f"^{place}: needs {what}, which a later release"):
        archive.chain()


@pytest.mark.parametrize("said", [[], {"more": []}, {"length": 1.5}, {"reads": [5]}, 7], ids=str)
def test_a_note_that_no_writer_left_is_refused(said):
    archive = Archive()
    archive.entry(format.NOTE, "notes/00000001", json.dumps(said).encode())
    with pytest.raises(CorruptArchiveError, match="a.zip: notes/00000001 at offset 4,096 does not read: "):
        archive.chain()


@pytest.mark.parametrize(
    ("label", "entry"),
    [
        ("y", "labels/y.arrow"),
        ("Label", "labels/%4Cabel.arrow"),
        ("con", "labels/%63on.arrow"),
        ("lpt7", "labels/%6Cpt7.arrow"),
        ("CON", "labels/%43%4F%4E.arrow"),
        ("contour", "labels/contour.arrow"),
        ("ü/x %", "labels/%C3%BC%2Fx%20%25.arrow"),
    ],
)
def test_entries_of_columns_have_names_that_every_file_system_takes_and_keeps_apart(label, entry):
    assert format.column_name(label) == entry == reference.column_name(label)


def test_no_two_columns_have_entries_that_differ_in_case_alone():
    letters = ["A", "a", "%", "4", "1", "É", "é", "c", "o", "n", "ß", "."]
    labels = {"".join(one) for n in range(1, 4) for one in itertools.product(letters, repeat=n)}
    assert len({format.column_name(label).casefold() for label in labels}) == len(labels)


def test_the_directory_lists_the_newest_of_each_name_for_zip_tools():
    archive, root = sealed(dropped=["y"])
    with zipfile.ZipFile(io.BytesIO(archive.data)) as read:
        assert read.testzip() is None
        names = ["edcache.json", "chunks/00000001", "index.rows", "labels/y.arrow"]
        assert read.namelist() == [*names, "labels/%C3%BC%2Fx.arrow", "root.json"]
        assert read.read("root.json") == format.pack_root(root)
    assert archive.chain().end == len(archive.data)


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
