"""The table of keys finds what a dict finds, also if halves of hashes collide; damage is found or does no harm."""

import hashlib
import random
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from edcache import format
from edcache.errors import CorruptArchiveError, OptionError
from tests.kit.scale import scaled


def table_of(packed, length):
    data, crc, count = packed
    return format.KeyTable(memoryview(data), crc, count, length, "a.zip")


def hashes_of(draw, count, bits):
    """Hashes whose upper halves have a few bits, so that they collide."""
    upper = np.array([draw.getrandbits(bits) << 30 for _ in range(count)], np.uint64)
    return np.stack([upper, np.array([draw.getrandbits(3) for _ in range(count)], np.uint64)], axis=1)


@pytest.mark.parametrize("bits", [1, 4, 12, 30])
def test_it_finds_the_first_sample_of_each_hash(bits):
    draw = random.Random(bits)
    for _ in range(scaled(100, 5)):
        hashes = hashes_of(draw, draw.choice([0, 1, 2, 300, 9_000]), bits)
        samples = np.sort(np.array(draw.sample(range(20_000), len(hashes)), np.int64))
        first = {}
        for pair, sample in zip(map(tuple, hashes.tolist()), samples.tolist(), strict=True):
            first.setdefault(pair, sample)
        table = table_of(format.pack_keys(hashes, samples), 20_000)
        wanted = np.concatenate([hashes, hashes_of(draw, 500, bits)])
        found = [first.get(pair, -1) for pair in map(tuple, wanted.tolist())]
        assert table.count == len(first)
        assert table.find(wanted).tolist() == found
        upper, lower, named = table.items()
        assert {
            (u, v): s for u, v, s in zip(upper.tolist(), lower.tolist(), named.tolist(), strict=True)
        } == first


@pytest.mark.parametrize("count", [200, 9_000])
def test_damage_is_found_or_does_no_harm(count):
    draw = random.Random(count)
    keys = [f"key {k}" for k in range(count)]
    data, crc, said = format.pack_keys(format.key_hashes(keys), np.arange(count))
    refused = 0
    for _ in range(scaled(2_000, 100)):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 3])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        asked = [draw.randrange(2 * count) for _ in range(draw.choice([1, 20, 500]))]
        try:
            table = table_of((bytes(damaged), crc, said), count)
            found = table.find(format.key_hashes(f"key {k}" for k in asked))
        except CorruptArchiveError:
            refused += 1
        else:
            assert found.tolist() == [k if k < count else -1 for k in asked]
    assert refused > 50


@pytest.mark.parametrize("count", [3, 9_000])
def test_a_table_of_another_length_is_damaged(count):
    packed, crc, said = format.pack_keys(format.key_hashes(map(str, range(count))), np.arange(count))
    data = bytes(packed)
    for nbytes in (*range(len(data) - 30, len(data)), *range(len(data) + 1, len(data) + 30), 1, 0):
        told = f"a.zip: index.keys has {nbytes:,} bytes for {count:,} keys"
        with pytest.raises(CorruptArchiveError, match=told):
            table_of(((data + bytes(30))[:nbytes], crc, said), count)
    for other in (0, said - 1, said + 1, 1 << 50):
        with pytest.raises(
            CorruptArchiveError, match=f"index.keys has {len(data):,} bytes for {other:,} keys"
        ):
            table_of((data, crc, other), count)


@pytest.mark.parametrize("count", [0, 1, 3, 2_730, 2_731, 9_000])
def test_the_root_has_the_sum_of_the_sums_of_blocks_so_that_a_look_up_reads_what_it_needs(count):
    """2,730 keys are one block of 64 KiB."""
    data, crc, said = format.pack_keys(format.key_hashes(map(str, range(count))), np.arange(count))
    nbytes = 24 * count
    blocks = [zlib.crc32(data[at : min(at + (1 << 16), nbytes)]) for at in range(0, nbytes, 1 << 16)]
    behind = struct.pack(f"<{len(blocks)}I", *blocks) if len(blocks) > 1 else b""
    assert (said, data[nbytes:], crc) == (count, behind, zlib.crc32(behind or data))
    # Nothing but the sums is read before a look-up: a table that is damaged, and another crc32 of the root.
    table = table_of((bytes(nbytes) + behind, crc, count), count)
    if count:
        with pytest.raises(
            CorruptArchiveError, match=r'a.zip: index.keys fails its crc32; "edcache copy a.zip'
        ):
            table.items()
    if behind:
        with pytest.raises(CorruptArchiveError, match="index.keys fails its crc32"):
            table_of((data, crc ^ 1, count), count)


def test_hashes_are_as_the_specification_says():
    for key, text in (
        ("ä", "ä"),
        (b"\xff", "\0b'\\xff'"),
        (-12, "\0-12"),
        (("ä", 1), "\0('\\xe4', 1)"),
        ("\0ä", "\0'\\x00\\xe4'"),
    ):
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        halves = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        assert format.stored_keys([key]) == [text]
        assert tuple(format.key_hashes([text])[0].tolist()) == halves
    assert format.key_hashes([]).shape == (0, 2)


MIXED = [
    "",
    "a",
    "\0",
    "\0a",
    "\x0017",
    "\0('a',)",
    "é",
    "\ud800",
    b"",
    b"\xff",
    b"17",
    17,
    -17,
    2**80,
    (),
    ("a", (b"", -1)),
]


def test_keys_of_all_types_have_texts_of_their_own_and_come_back():
    texts = format.stored_keys(MIXED)
    assert len({*texts}) == len(MIXED)
    assert {*map(type, texts)} == {str}
    told = format.told_keys(texts)
    assert [*zip(map(type, told), told, strict=True)] == [*zip(map(type, MIXED), MIXED, strict=True)]
    assert format.stored_keys(told) == texts
    for keys in (MIXED, MIXED[:2] * 3, [*"abc"]):
        assert format.stored_keys(keys) == [format.stored_keys([key])[0] for key in keys]
    # A reader of another language knows them by Arrow's text.
    assert pa.array(texts, pa.string()).to_pylist() == texts


def test_a_column_of_integers_or_bytes_has_the_texts_of_its_keys():
    for column in ([5, -7, 2**62], [b"a", b"\xff", b""], ["a", "ä", "\x005"]):
        array = pa.array(column)
        assert format.key_texts(array).to_pylist() == (
            column if isinstance(column[0], str) else format.stored_keys(column)
        )
        hashes = format.key_hashes(format.key_texts(array).to_pylist())
        assert np.array_equal(format.column_hashes(pa.chunked_array([array[:1], array[1:]])), hashes)
    assert format.key_texts(pa.array([2**64 - 1, None], pa.uint64())).to_pylist() == [
        "\x0018446744073709551615",
        None,
    ]
    assert format.key_texts(pa.array([None, b"a"])).to_pylist() == [None, "\0b'a'"]
    for column in ([1.5], [True], [None]):
        assert format.key_texts(pa.array(column)).to_pylist() == [None]


@pytest.mark.parametrize("key", [None, 1.5, True, np.bool_(True), ("a", None), (1, (2.5,)), [], ((False,),)])
def test_what_is_no_key_has_no_text(key):
    with pytest.raises(OptionError, match="; a key is text, bytes, an int or a tuple of these"):
        format.stored_keys(["a", key])
