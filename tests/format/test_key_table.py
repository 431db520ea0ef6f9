"""The table of keys finds what a dict finds, also if halves of hashes collide; damage is found or does no harm."""

import hashlib
import random
import zlib

import numpy as np
import pytest

from edcache import format
from edcache.errors import CorruptArchiveError
from tests.kit.scale import scaled


def table_of(data, length, crc=None):
    return format.KeyTable(memoryview(data), zlib.crc32(data) if crc is None else crc, length, "a.zip")


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
    data = format.pack_keys(format.key_hashes(keys), np.arange(count))
    crc, refused = zlib.crc32(data), 0
    for _ in range(scaled(2_000, 100)):
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 3])):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        asked = [draw.randrange(2 * count) for _ in range(draw.choice([1, 20, 500]))]
        try:
            found = table_of(bytes(damaged), count, crc).find(format.key_hashes(f"key {k}" for k in asked))
        except CorruptArchiveError:
            refused += 1
        else:
            assert found.tolist() == [k if k < count else -1 for k in asked]
    assert refused > 50


@pytest.mark.parametrize("count", [3, 9_000])
def test_a_table_of_another_length_is_damaged(count):
    data = format.pack_keys(format.key_hashes(map(str, range(count))), np.arange(count))
    for nbytes in (*range(len(data) - 23, len(data)), *range(len(data) + 1, len(data) + 24), 1):
        with pytest.raises(CorruptArchiveError):
            table_of((data + bytes(30))[:nbytes], count).find(format.key_hashes(["1"]))


def test_hashes_are_as_the_specification_says():
    for key, data in (("ä", b"s\xc3\xa4"), (b"\xff", b"b\xff"), (-12, b"i-12")):
        digest = hashlib.blake2b(data, digest_size=16).digest()
        halves = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
        assert tuple(format.key_hashes([key])[0].tolist()) == halves
    assert format.key_hashes(["a", b"a", 5]).shape == (3, 2)
    assert format.key_hashes([]).shape == (0, 2)
