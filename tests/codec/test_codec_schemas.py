"""Schemas: their text, their number, where they put leaves, and what a decoder says about them."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from codec_samples import Box, Point, encode, run_script
from likeness import same

from edcache.codec.decoder import Decoder, _shared
from edcache.codec.encoder import Encoder
from edcache.codec.schema import Layout, parse
from edcache.errors import CodecError


def test_the_text_and_the_bytes_of_a_small_sample():
    sample = {"label": 3, "image": torch.arange(5, dtype=torch.uint8), "ok": True, "name": "é", "none": None}
    text, record = encode(sample)
    assert text == (
        '["dict",["label","image","ok","name","none"],["int",["tensor","uint8",[5]],"bool","str","none"]]'
    )
    assert record == (
        b"\x03\0\0\0\0\0\0\0"  # label, at 0: the largest
        b"\x00\x01\x02\x03\x04"  # image
        b"\x01"  # ok
        b"\0\0"  # padding before the slots
        b"\x02\0\0\0\0\0\0\0"  # nbytes of name
        b"\xc3\xa9"
    )


def test_the_largest_array_lies_first():
    sample = (1, np.zeros(3, "u1"), {"image": torch.zeros(3, 4, 4), "box": np.zeros((2, 2))}, 2.0)
    text, record = encode(sample)
    fields = Decoder(text).fields
    assert fields[2, "image"].offset == 0
    assert fields[2, "box"].offset == 192
    assert fields[0,].offset == 224
    assert fields[3,].offset == 232
    assert fields[1,].offset == 240
    assert len(record) == 243


def test_the_extent_of_fields_is_from_their_first_byte_to_their_last():
    sample = {"image": torch.zeros(3, 4, 4), "box": np.zeros((2, 2)), "k": 1, "none": None, "text": "a"}
    decoder = Decoder(encode(sample)[0])

    def extent(*names):
        return decoder.extent([decoder.structure.at(name) for name in names])

    assert extent("image") == (0, 192)
    assert extent("box") == (192, 224)
    assert extent("k", "box") == (192, 232)
    assert extent("k", "image") == extent("image", "k", "none") == (0, 232)
    assert extent("none") == (0, 0)
    assert extent("k", "text") is None


def test_fields_describe_leaves():
    sample = {
        "t": torch.zeros(2, 3, dtype=torch.int16),
        "k": 1,
        "s": "a",
        "p": Point(np.float32(1), None),
        "b": Box([1.5]),
    }
    decoder = Decoder(encode(sample)[0])
    fields = decoder.fields
    assert list(fields) == [("t",), ("k",), ("s",), ("p", "x"), ("b", "corner", 0), ("b", "size")]
    assert fields["t",].dtype == "int16"
    assert fields["t",].shape == (2, 3)
    assert fields["k",].dtype == np.dtype("i8")
    assert (fields["s",].shape, fields["s",].offset, fields["s",].nbytes) == (None, None, None)
    assert fields["p", "x"].dtype == np.dtype("f4")
    assert decoder.nbytes is None


def test_layout_is_a_function_of_the_text_with_aligned_offsets():
    sample = [
        np.zeros(3, "c16"),
        np.float16(1),
        1,
        np.zeros((), "u1"),
        np.zeros(2, "f4"),
        1j,
        np.zeros(1, [("a", "u1")]),
    ]
    text, record = encode(sample)
    layout = Layout(parse(text))
    spans = sorted((layout.leaves[i].offset, layout.leaves[i]) for i in layout.fixed)
    end = 0
    for offset, leaf in spans:
        assert offset % leaf.align == 0
        assert end <= offset < end + 8
        end = offset + leaf.nbytes
    assert end == layout.nbytes == len(record)


def test_a_shape_is_fixed_until_it_is_seen_to_vary_each_array_for_itself():
    encoder = Encoder()
    ids = []
    for sizes in ["123", "123", "423", "123", "523", "529", "623", "673", "123"]:
        a, b, c = map(int, sizes)
        ids.append(encoder.encode({"a": np.zeros(a), "b": torch.zeros(b), "c": np.zeros(c)}).schema)
    assert ids == [0, 0, 1, 1, 1, 2, 2, 3, 3]
    shapes = [[node[2] for node in json.loads(text)[2]] for text in encoder.schemas]
    assert shapes == [[[1], [2], [3]], [1, [2], [3]], [1, [2], 1], [1, 1, 1]]


def test_skeletons_keep_their_shapes_apart():
    encoder = Encoder()
    for n in range(6):
        encoder.encode([np.zeros((2, n))])
        encoder.encode([np.zeros(n)])
    assert len(encoder.schemas) == 4


def test_never_more_than_64_schemas():
    encoder = Encoder()
    for n in range(200):
        sample = {"kind": [None] * (n % 150), "n": n, "t": torch.full((n % 3,), n)}
        text, record = encode(sample, encoder)
        assert same(Decoder(text).decode(memoryview(record)), sample)
        assert same(Decoder(text).decode(memoryview(record), copy=False), sample)
    assert len(encoder.schemas) == 64
    assert encoder.schemas[63] == '{"self":1}'
    assert encoder.encode({"kind": [], "n": 1, "t": torch.ones(0, dtype=torch.int64)}).schema == 0


def test_self_described_records():
    encoder = Encoder()
    for n in range(63):
        encoder.encode([None] * n)
    sample = {"a": np.arange(4), "b": "text"}
    text, record = encode(sample, encoder)
    assert text == '{"self":1}'
    inner, own = encode(sample)
    assert record == len(inner).to_bytes(8, "little") + inner.encode() + bytes(-len(inner) % 8) + own
    for _ in range(6):
        sample = {"a": np.arange(_), "b": "x"}
        text, record = encode(sample, encoder)
        assert same(Decoder(text).decode(memoryview(record)), sample)
    assert Decoder(text).nbytes is None


@pytest.mark.full
def test_schema_texts_do_not_depend_on_the_process():
    script = (
        "from codec_samples import *\n"
        "sample = {'a': 1, 'z': Box(Point(1)), 'c': [Color.RED, np.zeros(2, NUMPY_DTYPES[-3])], 7: 'x'}\n"
        "print(encode(sample))"
    )
    first = run_script(script, PYTHONHASHSEED="1")
    assert "Color" in first
    assert first == run_script(script, PYTHONHASHSEED="2")


@pytest.mark.parametrize("text", ["a\ud83d\ude00", "\U0001f600", "\ud83d"], ids=ascii)
def test_names_with_surrogates(text):
    """JSON folds two lone surrogates into one character: names that it would change are refused."""
    dtype = np.dtype([(text, "u1")])
    if len(text) == 3:
        with pytest.raises(CodecError, match="holds surrogates"):
            encode(np.zeros(2, dtype))
    else:
        encoded, record = encode(np.zeros(2, dtype))
        assert same(Decoder(encoded).decode(memoryview(record)), np.zeros(2, dtype))


def test_structures_without_end_are_forgotten_and_made_again():
    encoder, made = Encoder(), {}
    for n in [*range(300), *range(300)]:
        text, record = encode({f"key{n}": n}, encoder)
        assert made.setdefault(n, (text, record)) == (text, record)
        assert Decoder(text).decode(memoryview(record)) == {f"key{n}": n}


def test_self_described_schemas_without_end_take_bounded_memory():
    decoder = Decoder('{"self":1}')
    for n in range(40):
        text = encode({f"{'k' * 20_000}{n}": n})[0]
        record = struct.pack("<Q", len(text)) + text.encode() + bytes(-len(text) % 8) + struct.pack("<q", n)
        assert list(decoder.decode(memoryview(record)).values()) == [n]
    assert sum(len(text) for text, *_ in _shared) < 1 << 19
