"""The table of keys finds what a dict finds, also if halves of hashes collide; damage is found or does no harm."""

import hashlib
import random
import struct
import zlib

import numpy as np
import pytest

from edcache import format
from edcache.errors import CorruptArchiveError
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
    for key, data in (("ä", b"s\xc3\xa4"), (b"\xff", b"b\xff"), (-12, b"i-12")):
        digest = hashlib.blake2b(data, digest_size=16).digest()
        halves = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        assert tuple(format.key_hashes([key])[0].tolist()) == halves
    assert format.key_hashes(["a", b"a", 5]).shape == (3, 2)
    assert format.key_hashes([]).shape == (0, 2)
