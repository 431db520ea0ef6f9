"""Bytes that no writer left: a value or CorruptRecordError, never anything else, never a large allocation."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import re
import struct
import tracemalloc

import numpy as np
import pytest
import torch
from codec_samples import Access, Box, Color, Point, encode, random_array, samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.codec.schema import MAX_NODES, MAX_TEXT, Layout, parse
from edcache.errors import CodecError, CorruptRecordError, EdcacheError, LaterReleaseError

RICH = {
    "t": torch.arange(6).reshape(2, 3),
    "h": torch.ones(3, dtype=torch.bfloat16),
    "flag": True,
    "n": 5,
    "s": "text é",
    "list": list(range(10)),
    "bools": [True] * 9,
    "strs": ["a", "bb", ""] * 4,
    "floats": (0.5,) * 9,
    "big": 1 << 100,
    "color": Color.RED,
    "access": Access.READ,
    "box": Box(Point(1, b"x"), np.float32(2)),
    "m": np.zeros(3, "M8[s]"),
    "v": np.void(b"abc"),
}


def rich(variable):
    encoder = Encoder()
    if variable:
        for n in range(6):
            out = encode(
                {**RICH, "t": torch.zeros(2, n), "m": random_array(np.dtype("M8[s]"), (n,), n)}, encoder
            )
        return out
    return encode(RICH, encoder)


def self_described():
    encoder = Encoder()
    for n in range(63):
        encoder.encode([None] * n)
    return encode(RICH, encoder)


def attempt(text, record):
    """Decode both ways; anything but an EdcacheError propagates and fails the test."""
    errors = []
    for copy in (True, False):
        try:
            Decoder(text).decode(memoryview(record), copy=copy)
        except EdcacheError as error:
            errors.append(error)
    return errors


@pytest.mark.parametrize("make", [lambda: rich(False), lambda: rich(True), self_described])
def test_every_truncation_and_extension_is_corrupt(make):
    text, record = make()
    decoder = Decoder(text)
    for cut in range(len(record)):
        with pytest.raises(CorruptRecordError):
            decoder.decode(memoryview(record[:cut]))
    for extra in (b"\0", b"x" * 8, b"\0" * 64):
        with pytest.raises(CorruptRecordError):
            decoder.decode(memoryview(record + extra))


@pytest.mark.parametrize("make", [lambda: rich(False), lambda: rich(True)])
def test_flipped_bytes_of_records(make):
    text, record = make()
    decoder = Decoder(text)
    rng = random.Random(5)
    for place in range(len(record)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)):
            broken = bytearray(record)
            broken[place] = value
            for copy in (True, False):
                with contextlib.suppress(CorruptRecordError):
                    decoder.decode(memoryview(broken), copy=copy)


LOOSE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=150, suppress_health_check=LOOSE)
@given(samples, st.data())
def test_random_damage(sample, data):
    text, record = encode(sample)
    broken = bytearray(record)
    for _ in range(data.draw(st.integers(1, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    for error in attempt(
        text, broken[: data.draw(st.integers(0, len(broken)))] if data.draw(st.booleans()) else broken
    ):
        assert isinstance(error, CorruptRecordError)


@pytest.mark.parametrize(
    "dims",
    [
        (-1, 4),
        (1 << 62, 1 << 62),
        (0, 1 << 62),
        (1 << 40, 0),
        (3, 1),
        (1 << 31, 1 << 31),
        (-1, -4),
        (-(1 << 63), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_hostile_dimensions(dims, kind):
    text = json.dumps([kind, "<f4" if kind == "array" else "float32", 2], separators=(",", ":"))
    record = struct.pack("<2q", *dims) + bytes(16)
    with pytest.raises(CorruptRecordError):
        Decoder(text).decode(memoryview(record))
    empty = struct.pack("<2q", *dims)
    attempt(text, empty)


def test_dimensions_beside_a_zero_cost_nothing():
    """Legal bytes: an empty array may have a long other side."""
    for kind, name in (("array", "<f4"), ("tensor", "float32"), ("array", "|V0")):
        text = json.dumps([kind, name, 2])
        tracemalloc.start()
        out = Decoder(text).decode(memoryview(struct.pack("<2q", 0, 1 << 40)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert tuple(out.shape) == (0, 1 << 40)
        assert peak < 1 << 20


@pytest.mark.parametrize("length", [-1, 1 << 62, (1 << 63) - 1, 9, 7], ids=str)
@pytest.mark.parametrize("kind", ['"str"', '"bytes"', '["ints","list"]', '["strs","tuple"]', '"bigint"'])
def test_hostile_lengths(kind, length):
    with pytest.raises(CorruptRecordError, match=r"record of 16 bytes, its lea"):
        Decoder(kind).decode(memoryview(struct.pack("<q", length) + b"\0" * 8))


@pytest.mark.parametrize(
    "words", [(-1,), (1,), (1, 1), (1, -1), (2, 1 << 62, 1 << 62), (1 << 61,), (0, 0), ()], ids=str
)
def test_hostile_texts(words):
    body = struct.pack(f"<{len(words)}q", *words)
    with pytest.raises(CorruptRecordError):
        Decoder('["strs","list"]').decode(memoryview(struct.pack("<q", len(body)) + body))


@pytest.mark.parametrize(
    ("text", "record"),
    [
        ('"bool"', b"\x02"),
        ('"date"', bytes(8)),
        ('"date"', b"\xff" * 8),
        ('["datetime",null]', b"\xff" * 7 + b"\x7f"),
        ('["datetime",null]', b"\xff" * 8),
        ('"timedelta"', b"\xff\xff\xff\x7f" * 3),
        ('"str"', struct.pack("<q", 1) + b"\xff"),
        ('["bools","list"]', struct.pack("<q", 1) + b"\x02"),
        ('["ints","list"]', struct.pack("<q", 7) + b"\x02" * 7),
        ('["path","PosixPath"]', struct.pack("<q", 1) + b"\xff"),
        ('{"self":1}', b""),
        ('{"self":1}', struct.pack("<Q", 1 << 63)),
        ('{"self":1}', struct.pack("<Q", 10) + b'{"self":1}' + bytes(6)),
        ('{"self":1}', struct.pack("<Q", 12) + b'{"pickle":5}' + bytes(4)),
        ('{"self":1}', struct.pack("<Q", 6) + b'"n\xc3ne"' + bytes(2)),
    ],
)
def test_hostile_values(text, record):
    with pytest.raises(CorruptRecordError):
        Decoder(text).decode(memoryview(record))


@pytest.mark.parametrize(
    "record",
    [b"", b"x", b"\x80\x05", b"\x80\x05cno_such_module\nx\n.", b"\x80\x05X\xff\xff\xff\xff", b"(i\n\n."],
)
def test_hostile_pickles(record):
    with pytest.raises(CorruptRecordError, match="record does not unpickle: "):
        Decoder('{"pickle":5}', allow_pickle=True).decode(memoryview(record))


# ruff: noqa: E501 - a table
BAD_TEXTS = [
    "", "x", "null", "1", "[]", '["int"]', "[1]", '["list"]',
    '["list",[1]]', '["list",1]', '["dict",["a"],[]]', '["dict",["a","a"],["int","int"]]', '["dict","a",["int"]]',
    '["dict",[["int",1],["bool",true]],["int","int"]]', '["dict",[["int",true]],["int"]]', '["dict",[["x"]],["int"]]',
    '["tensor","float32",[-1]]', '["tensor","float32",-1]', '["tensor","float32",0]',
    '["tensor","float32",65]', '["tensor","float32",[true]]',
    '["array","<f4",[4611686018427387904]]',
    '["array",["struct",[["a",null,0,"|O8"]],8,false],[1]]',
    '["array",["struct",[["a",null,-4,"<f4"]],8,false],[1]]', '["array",["struct",[["a",null,8,"<f4"]],8,false],[1]]',
    '["array",["struct",[["a",0,"<f4"],["a",4,"<f4"]],8],[1]]', '["array",["sub","<f4",[2]],[1]]',
    '["array",["struct",1,8],[1]]', '["array",["other"],[1]]',
    '["enum","m"]', '["enum",1,"q"]', '["namedtuple","m","q",["a"],[]]', '["namedtuple","m","q",["a","a"],["int","int"]]',
    '["dataclass","m","q",[1],["int"]]', '["path","Popen"]',
    '["datetime","../../etc/passwd"]', '["datetime","/etc/passwd"]', '["datetime",[1,2]]', '["datetime",[86400000000]]',
    "[" * 100_000, '["list",[' * 70 + '"int"' + "]]" * 70, '["ints","set"]',
    '["array",5,[1]]', '["array",["struct",[[1,0,"<f4"]],8],[1]]', '["datetime",["x"]]',
    '["list",["int"],["int"]]', '["list",[' + '"none",' * MAX_NODES + '"none"]]', '"\udcff"',
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_TEXTS, ids=lambda text: text[:60].encode("ascii", "replace").decode())
def test_malformed_schemas(text):
    with pytest.raises(CorruptRecordError, match="schema: "):
        Decoder(text)


LATER_TEXTS = {
    "{}": "a schema as {}",
    '{"pickle":4}': 'a schema as {"pickle":4}',
    '{"self":2}': 'a schema as {"self":2}',
    '"nothing"': "the leaf 'nothing'",
    '["image","RGB",null,["int"]]': "the leaf 'image'",
    '["tensor","float31",[1]]': "the dtype 'float31' of torch",
    '["tensor","nn",[1]]': "the dtype 'nn' of torch",
    '["tensor",["float32"],[1]]': "the dtype \"['float32']\" of torch",
    '["array","O",[1]]': "the dtype 'O'",
    '["array","|O8",[1]]': "the dtype '|O8'",
    '["array","f4,f4",[1]]': "the dtype 'f4,f4'",
    '["array","<M8[xx]",[1]]': "the dtype '<M8[xx]'",
    '["array","<U99999999999",[1]]': "the dtype '<U99999999999'",
    '["scalar","|O8"]': "the dtype '|O8'",
}


@pytest.mark.parametrize("text", LATER_TEXTS)
def test_a_schema_that_no_writer_of_this_release_makes_says_what_it_needs(text):
    """Nothing of it is tried: neither a dtype with objects, nor one of another library."""
    told = f"needs {LATER_TEXTS[text]}, which a later release of edcache wrote; upgrade edcache"
    with pytest.raises(LaterReleaseError, match=f"^{re.escape(told)}$"):
        Decoder(text)
    with pytest.raises(LaterReleaseError, match=re.escape(told)):
        Decoder(f'["dict",["a"],[{text}]]')


def test_namedtuples_of_hostile_names_run_nothing():
    # A module's function or a class that is no tuple is passed over.
    for name in ("x(); import os", "system", "path.join", "environ", "PathLike", "stat_result"):
        decoder = Decoder(f'["namedtuple","os","{name}",["a"],["none"]]')
        with pytest.raises(CodecError, match="which this process has not registered"):
            decoder.decode(memoryview(b""))


@pytest.mark.parametrize(
    ("value", "broken", "message"),
    [
        (datetime.date(2000, 1, 1), bytes(8), "record does not decode: ordinal must be >= 1"),
        (True, b"\x02", "bool stored as 2"),
        ("ab", struct.pack("<q", 2) + b"\xff\xff", "record does not decode: 'utf-8' codec can't decode"),
        ("ab", struct.pack("<q", 3) + b"ab", "record of 10 bytes, its leaf"),
    ],
)
def test_one_leaf_alone_is_as_corrupt_as_its_record(value, broken, message):
    decoder = Decoder(encode({"a": value})[0])
    assert decoder.structure is not None
    for decode in (
        lambda: decoder.decode(memoryview(broken)),
        lambda: decoder.part(decoder.fields["a",])(memoryview(broken)),
        lambda: decoder.part(decoder.structure)(memoryview(broken)),
    ):
        with pytest.raises(CorruptRecordError, match=message):
            decode()


@pytest.mark.parametrize(
    ("slots", "nbytes"),
    [
        ([[2, 3, 4], [-1, 3, 4]], [64, 64]),
        ([[2, 3, 4], [1 << 40, 1 << 40, 4]], [64, 64]),
        ([[2, 3, 4], [2, 3, 4]], [64, 56]),
        ([[2, 3, 4], [2, 3, 4]], [64, 72]),
        ([[2, 3, 4], [2, 3, 4]], [64, 40]),
        (np.empty((0, 3)), []),
    ],
    ids=str,
)
def test_many_records_are_located_at_once_only_where_all_are_plain(slots, nbytes):
    layout = Layout(parse('["list",[["array","<f4",2],"str"]]'))
    good = layout.locate_many(np.array([[2, 3, 4]], np.int64), np.array([24 + 24 + 4], np.int64))
    spans = layout.locate(memoryview(struct.pack("<3q", 2, 3, 4) + bytes(28)))
    assert [(start[0], end[0]) for start, end, _ in good.values()] == [span[:2] for span in spans]
    assert layout.locate_many(np.array(slots, np.int64), np.array(nbytes, np.int64)) is None


def test_a_schema_of_any_length_is_refused_before_it_is_parsed():
    with pytest.raises(CorruptRecordError, match="schema: 16777217 characters, more than 16777216"):
        Decoder('"int"'.ljust(MAX_TEXT + 1))
