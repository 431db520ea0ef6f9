"""What stands behind the last entry of a chain: a torn tail, the loss of a power cut, or damage; of bytes in memory."""

import json
import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from chains import UUID, Archive
from damage import flipped

from edcache import format
from edcache.format import Chain

SECTOR = 512
RECORDS = [bytes([65 + k]) * 700 for k in range(4)]
BOOTS = pytest.mark.parametrize("is_fresh", [True, False], ids=["same boot", "later boot"])
"""Whether no power was cut since the file was written."""


class Bytes:
    """The bytes of a file, read as one. asked: extents that were read."""

    def __init__(self, data):
        self.data, self.asked = bytes(data), []

    def pread(self, offset, nbytes, is_sound=None):
        self.asked.append((offset, nbytes))
        return self.data[offset : offset + nbytes]

    def next_data(self, offset):
        """Holes are whole pages of zeros."""
        while offset < len(self.data) and not self.data[offset : offset + 4096].strip(b"\0"):
            offset += 4096
        return offset


def walked(data):
    file = Bytes(data)
    chain = Chain(*format.read_head(file.pread, "a.zip"), "a.zip")
    chain.extend(file.pread, len(data))
    return file, chain


def damage(data, is_fresh):
    file, chain = walked(data)
    return format.find_damage(chain, file.pread, file.next_data, len(data), is_fresh)


def loss(data):
    file, chain = walked(data)
    found = format.find_loss(chain, file.pread)
    return found.end, [header.name for header in found.chunks]


def three(**fields):
    """An archive of three chunks of four samples, a page each. fields: of the third one's header."""
    archive = Archive(["y"])
    for k in range(3):
        labels = pa.table({"y": [4 * k + i for i in range(4)]})
        archive.chunk(range(4 * k, 4 * k + 4), RECORDS, labels=labels, **(fields if k == 2 else {}))
    return archive


def replaced(data, at, new):
    return bytes(data[:at]) + new + bytes(data[at + len(new) :])


def zeros(data, header):
    """Without the sector of a header."""
    return replaced(data, header.offset, bytes(SECTOR))


# --- torn tails: what a killed writer leaves ---


@BOOTS
def test_a_payload_without_its_header_is_a_torn_tail(is_fresh):
    archive = three()
    last = archive.headers[2]
    data = replaced(archive.data, last.offset, bytes(last.payload_offset - last.offset))
    for size in (len(data), last.payload_end, last.payload_offset + 10, last.payload_offset, last.offset + 9):
        assert damage(data[:size], is_fresh) is None
        assert loss(data[:size]) == (None, [])


def test_a_file_that_ends_within_a_payload_was_cut_unless_a_power_cut_took_its_end():
    """The header is written last: no kill leaves it without its payload."""
    archive = three()
    last = archive.headers[2]
    told = f"the file ends within {last.name} at offset {last.offset:,}"
    for size in (last.payload_offset, last.payload_offset + 1, last.payload_end - 1):
        assert damage(archive.data[:size], is_fresh=True) == told
        assert damage(archive.data[:size], is_fresh=False) is None
        assert loss(archive.data[:size]) == (None, [])


def test_a_file_that_ends_within_a_seal_was_cut_if_the_seal_has_begun():
    """Its first header is written last of them."""
    archive = sealed()
    index, column, root = archive.headers[3:]
    assert damage(archive.data, is_fresh=True) is None
    for header in (index, column, root):
        within = f"the file ends within {header.name} at offset {header.offset:,}"
        sizes = dict.fromkeys([header.payload_offset, header.payload_end - 1], within)
        if header is not index:
            begun = f"no entry fits at offset {header.offset:,}, but a seal has begun before it"
            sizes |= dict.fromkeys([header.offset - 1, header.offset, header.offset + 100], begun)
        for size, told in sizes.items():
            assert damage(archive.data[:size], is_fresh=True) == told
            assert damage(archive.data[:size], is_fresh=False) is None
    for size in (index.offset - 1, index.offset, index.offset + 100, root.payload_end):
        assert damage(archive.data[:size], is_fresh=True) is None


def test_of_a_chunk_that_the_file_does_not_hold_whole_the_records_that_it_holds_are_sound():
    archive = three()
    header = archive.headers[2]
    rows = format.read_table(archive.pread, header, "a.zip").rows
    for kept in range(4):
        size = int(rows["offset"][kept]) + 100
        sound = format.find_sound(Bytes(archive.data[:size]).pread, header, "a.zip")
        assert sound.tolist() == [k < kept for k in range(4)]


def sealed(**fields):
    """Three chunks with a seal: index, a column and the root."""
    archive = three()
    tables = [format.read_table(archive.pread, header, "a.zip") for header in archive.headers]
    rows = np.concatenate([table.rows for table in tables])
    archive.seal(rows, ["a"], pa.table({"y": list(range(12))}), **fields)
    return archive


@BOOTS
def test_of_a_seal_a_kill_leaves_the_last_headers_and_no_end(is_fresh):
    archive = sealed()
    index, column, root = archive.headers[3:]
    data = bytes(archive.data[: root.payload_end])
    assert damage(data, is_fresh) is None  # without its end record it is completed
    for headers in ([index], [index, column], [index, column, root]):
        torn = data
        for header in headers:
            torn = replaced(torn, header.offset, bytes(header.payload_offset - header.offset))
        assert damage(torn, is_fresh) is None


def test_a_seal_of_which_a_later_header_lacks_is_damaged_unless_a_power_cut_took_it():
    archive = sealed()
    column, root = archive.headers[4:]
    data = bytes(archive.data[: root.payload_end])
    for header in (column, root):
        torn = replaced(data, header.offset, bytes(header.payload_offset - header.offset))
        told = f"no entry fits at offset {header.offset:,}, but a seal has begun before it"
        assert damage(torn, is_fresh=True) == told
        assert damage(torn, is_fresh=False) is None


# --- damage: a header is there, and does not fit ---


@BOOTS
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_one_flipped_bit_of_a_header_is_damage_in_whatever_boot(is_fresh, nth):
    archive = three()
    header = archive.headers[nth]
    told = f"no entry fits at offset {header.offset:,}, but other bytes stand there"
    for bit in range(0, 192 * 8, 5):
        data = flipped(archive.data, header.offset + (bit >> 3), 1 << (bit & 7))
        assert damage(data, is_fresh) == told, bit


@BOOTS
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_header_with_some_bytes_of_others_is_damage(is_fresh, nth):
    """All but its link, which no other bytes have."""
    archive, draw = three(), random.Random(nth)
    header = archive.headers[nth]
    link = archive.data.index(header.link.to_bytes(8, "little"), header.offset) - header.offset
    for start, stop in ((0, 30), (30, link), (link + 8, 192), (0, link)):
        other = draw.randbytes(stop - start)
        data = replaced(archive.data, header.offset + start, other)
        assert damage(data, is_fresh).startswith(f"no entry fits at offset {header.offset:,}, but ")


@pytest.mark.parametrize(
    "other",
    [b"\xff" * SECTOR, random.Random(5).randbytes(SECTOR), (b"text " * 103)[:SECTOR]],
    ids=["ones", "random", "text"],
)
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_garbage_in_the_place_of_a_header_is_as_if_nothing_stood_there(nth, other):
    """It may be what the disk had there; damage is what the entries behind it prove."""
    archive = three()
    header = archive.headers[nth]
    lacking, garbage = zeros(archive.data, header), replaced(archive.data, header.offset, other)
    for is_fresh in (True, False):
        assert damage(garbage, is_fresh) == damage(lacking, is_fresh)
    assert (damage(garbage, is_fresh=True) is None) == (nth == 2)


@BOOTS
@pytest.mark.parametrize("nbytes", [8, 64, 512, 4096, 4097])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_bytes_that_were_taken_out_or_put_in_are_damage(is_fresh, nth, nbytes):
    """Nothing stands where it says; the entries behind are all there, and shifted."""
    archive = three()
    for k in range(12, 18):
        archive.chunk([k], RECORDS[:1], labels=pa.table({"y": [k]}))
    data, at = bytes(archive.data), archive.headers[nth].payload_offset + 300
    for shifted in (data[:at] + data[at + nbytes :], data[:at] + b"x" * nbytes + data[at:]):
        assert damage(shifted, is_fresh) is not None


def test_an_entry_behind_a_missing_header_is_damage_unless_a_power_cut_may_have_taken_it():
    archive = three()
    second, third = archive.headers[1:]
    lacking = zeros(archive.data, second)
    told = f"no entry fits at offset {second.offset:,}, but {third.name} follows at offset {third.offset:,}"
    assert damage(lacking, is_fresh=True) == told
    assert damage(lacking, is_fresh=False) is None
    # The third says that all before it was synced: no power cut took the second.
    archive = three(durable=third.offset)
    assert damage(zeros(archive.data, archive.headers[1]), is_fresh=False) == told
    # It was synced up to the second only.
    archive = three(durable=second.offset)
    assert damage(zeros(archive.data, archive.headers[1]), is_fresh=False) is None


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_root_at_the_end_of_a_file_tells_of_a_header_that_lacks(is_synced):
    archive = sealed(is_synced=is_synced)
    root = archive.headers[-1]
    data = zeros(archive.data, archive.headers[1])
    told = (
        f"no entry fits at offset 8,192, but root.json follows, the payload at offset {root.payload_offset:,}"
    )
    assert damage(data, is_fresh=True) == told
    assert damage(data, is_fresh=False) == (told if is_synced else None)


@pytest.mark.parametrize("kind", ["root", "note"])
@pytest.mark.parametrize("is_synced", [True, False])
def test_a_root_or_note_that_fails_its_sum_is_damage_if_it_was_synced(kind, is_synced):
    archive = sealed() if kind == "root" else three()
    if kind == "note":
        archive.entry(format.NOTE, "notes/00000004", b'{"length": 99}')
        if is_synced:
            archive.chunk([20], durable=archive.cursor.offset)
        header = archive.headers[3]
        data = bytes(archive.data)
    else:
        header = archive.headers[-1]
        if is_synced:
            first = archive.headers[3].offset
            header = replace(header, durable=first)
            archive.data = replaced(archive.data, header.offset, format.pack_header(header))
        data = bytes(archive.data[: header.payload_end])
    data = flipped(data, header.payload_offset + 3)
    told = f"{header.name} at offset {header.offset:,} fails its crc32"
    assert damage(data, is_fresh=True) == told
    assert damage(data, is_fresh=False) == (told if is_synced else None)


# --- what a power cut took of groups that are there ---


def test_nothing_is_lost_of_what_is_sound():
    archive = sealed()
    archive.chunk([5], RECORDS[:1], labels=pa.table({"y": [5]}))
    archive.entry(format.NOTE, "notes/00000008", b"{}")
    assert loss(archive.data) == (None, [])


@pytest.mark.parametrize("how", ["flipped", "zeros"])
@pytest.mark.parametrize("part", ["table", "record"])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_chunk_that_lost_something_is_found_and_ends_nothing(nth, part, how):
    archive = three()
    header = archive.headers[nth]
    rows = format.read_table(archive.pread, header, "a.zip").rows
    at = header.payload_offset + 30 if part == "table" else int(rows["offset"][2]) + 5
    data = flipped(archive.data, at) if how == "flipped" else replaced(archive.data, at, bytes(100))
    assert loss(data) == (None, [header.name])
    sound = format.find_sound(Bytes(data).pread, header, "a.zip")
    assert sound is None if part == "table" else sound.tolist() == [True, True, False, True]


def test_padding_is_no_loss():
    archive = three()
    header = archive.headers[1]
    rows = format.read_table(archive.pread, header, "a.zip").rows
    assert rows["offset"][1] - rows["offset"][0] == 704
    data = flipped(archive.data, int(rows["offset"][0]) + 702)
    assert format.stored_crc32(Bytes(data).pread, header.payload) != header.crc32
    assert loss(data) == (None, [])


def test_what_was_synced_is_not_read():
    archive = three(durable=3 * 4096)
    data = flipped(flipped(archive.data, 5000), 9000)
    assert loss(data) == (None, [])
    file, chain = walked(data)
    file.asked.clear()
    format.find_loss(chain, file.pread)
    payloads = [(at, nbytes) for at, nbytes in file.asked if nbytes > format.MAX_HEADER_NBYTES]
    assert [at for at, _ in payloads] == [archive.headers[2].payload_offset]


def test_a_note_that_is_lost_ends_the_archive_before_it():
    archive = three()
    note = archive.entry(format.NOTE, "notes/00000004", json.dumps({"length": 30}).encode())
    archive.chunk([12], RECORDS[:1], labels=pa.table({"y": [5]}))
    data = replaced(archive.data, note.payload_offset, bytes(note.nbytes))
    assert loss(data) == (note.offset, [])


@pytest.mark.parametrize("is_synced", [False, True])
def test_a_seal_that_was_not_synced_counts_no_more_if_something_before_it_is_lost(is_synced):
    archive = sealed()
    if is_synced:
        for number, header in enumerate(archive.headers):
            if header.kind == format.ROOT:
                new = replace(header, durable=archive.headers[3].offset)
                archive.data = replaced(archive.data, header.offset, format.pack_header(new))
                archive.headers[number] = new
    data = flipped(archive.data, archive.headers[1].payload_offset + 40)
    assert loss(data) == ((None, []) if is_synced else (8192, []))
    for header in archive.headers[3:-1]:
        data = flipped(archive.data, header.payload_offset + 5)
        assert loss(data) == ((None, []) if is_synced else (archive.headers[3].offset, []))


# --- what is kept of a damaged archive ---


def test_chunks_behind_damage_are_found_again_where_they_say_that_they_are():
    archive = sealed()
    archive.chunk([12], RECORDS[:1], labels=pa.table({"y": [5]}))
    data = flipped(archive.data, archive.headers[1].offset + 20)
    data += b"\0" * (-len(data) % 4096) + format.pack_header(archive.headers[0])  # in a record, as of a copy
    file, chain = walked(data)
    found = format.salvaged(chain, file.pread, file.next_data, len(data))
    names = ["chunks/00000001", "chunks/00000003", "chunks/00000007"]
    assert [header.name for header in found.chunks] == names
    assert (chain.chunks, chain.root) == ([archive.headers[0]], None)
    # The root says where the records of the chunk lie whose header is damaged.
    assert found.root_header == next(one for one in archive.headers if one.kind == format.ROOT)
    assert [header.name for header in found.behind] == names[2:]


def test_a_root_that_has_moved_counts_no_more():
    archive = sealed()
    data = replaced(archive.data, archive.headers[1].offset, bytes(512))
    data = data[: archive.headers[2].offset] + bytes(4096) + data[archive.headers[2].offset :]
    file, chain = walked(data)
    found = format.salvaged(chain, file.pread, file.next_data, len(data))
    assert (found.root, [header.moved for header in found.behind]) == (None, [0, 4096])


def test_parts_of_which_the_root_is_lost_are_found_again():
    archive = Archive()
    first = archive.chunk([0, 1])
    part = archive.chunk([2], kind=format.PART)
    last = archive.chunk([3])
    for damaged in (archive.headers[0].offset + 3, part.payload_end):
        file, chain = walked(flipped(archive.data, damaged))
        found = format.salvaged(chain, file.pread, file.next_data, len(archive.data))
        expected = (
            [part.name, last.name] if damaged < first.payload_offset else [first.name, part.name, last.name]
        )
        assert [header.name for header in found.chunks] == expected


def test_headers_are_found_at_any_place_of_a_large_file(monkeypatch):
    monkeypatch.setattr("edcache.format.tail._WINDOW", 4096)
    archive = three()
    for shift in (0, 1, 3500, 4000, 4096 - 190, 4095, 4096):
        data = bytes(shift) + bytes(archive.data)
        file = Bytes(data)
        found = list(format.later_headers(file.pread, file.next_data, 0, len(data), UUID))
        assert [at for at, _ in found] == [shift, *(shift + one.offset for one in archive.headers)]
        assert [header for _, header in found[1:]] == archive.headers
