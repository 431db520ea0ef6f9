"""What the codec does not store: the message names the place, the type and the remedy."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import re

import numpy as np
import pytest
import torch
from codec_samples import Frozen, Point, encode, same

from edcache.codec import Decoder, Encoder, register
from edcache.errors import OptionError, PickleRefusedError, UnsupportedTypeError


class Hue(enum.Enum):
    BLUE = 1


@dataclasses.dataclass
class Loose:
    a: int = 0


@register
@dataclasses.dataclass
class Strict:
    a: int


class Tz(dt.tzinfo):
    pass


class Named(collections.namedtuple("Named", "a")):
    pass


class Sub(dict):
    pass


class Text(str):
    pass


def endless():
    loop = []
    loop.append(loop)
    return loop


def deep(levels):
    tree = 0
    for _ in range(levels):
        tree = [tree]
    return tree


def with_attribute():
    value = Named(1)
    value.extra = 2
    return value


# ruff: noqa: E501 - a table
CASES = {
    "set": ({"meta": [0, 1, {1}]}, 'sample["meta"][2]: cannot store set; convert it to a list, or choose codec="pickle"'),
    "root": (frozenset(), "sample: cannot store frozenset; convert it to a list"),
    "grad": ([torch.ones(1, requires_grad=True)], "sample[0]: cannot store a tensor that requires grad; call .detach() on it"),
    "parameter": (torch.nn.Parameter(torch.ones(1)), "cannot store torch.nn.parameter.Parameter; call .detach() on it"),
    "meta": (torch.ones(1, device="meta"), "cannot store a tensor on device meta; call .cpu() on it"),
    "sparse": (torch.ones(2, 2).to_sparse(), "cannot store a tensor of layout torch.sparse_coo; call .to_dense() on it"),
    "function": (len, "cannot store builtin_function_or_method; convert it to tensors"),
    "object": (np.array([None]), "cannot store an array of dtype object; convert it to a dtype of fixed size"),
    "masked": (np.ma.masked_array([1], [True]), "store its .data and its .mask"),
    "recarray": (np.rec.array([(1,)], dtype=[("a", "i4")]), "call numpy.asarray() on it"),
    "size": (torch.Size([1]), "cannot store torch.Size; convert it to a tuple"),
    "subclass": (Sub(), "Sub; convert it to a dict"),
    "counter": (collections.Counter(), "cannot store collections.Counter; convert it to a dict"),
    "text": (Text("a"), "Text; convert it to a str"),
    "enum": (Hue.BLUE, "Hue; register it with edcache.register(Hue)"),
    "dataclass": ({"a": Loose()}, "Loose; register it with edcache.register(Loose)"),
    "class": (Loose, "cannot store type; convert it to tensors, arrays or plain Python values"),
    "key": ({"a": {(1, 2): 0}}, 'sample["a"]: cannot store a dict key of type tuple; use str, int'),
    "big key": ({1 << 64: 0}, "sample: cannot store a dict key of type int; use str, int (64 bits)"),
    "text key": ({Text("a"): 0}, "Text; use str"),
    "endless": (endless(), "cannot store a tree deeper than 64 levels; flatten it, or see whether it contains itself"),
    "deep": (deep(65), "sample[0][0][0][0][0][0]...[0][0][0]: cannot store a tree deeper than 64"),
    "tzinfo": (dt.datetime(2000, 1, 1, tzinfo=Tz()), "Tz; use zoneinfo.ZoneInfo or datetime.timezone"),
    "attributes": (with_attribute(), "Named with attributes beside its fields; convert it to a dict"),
    "field": ((Frozen(1), Point(1, [object()])), "sample[1].y[0]: cannot store object; convert it"),
    "lambda": (lambda: 0, "cannot store function"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "message"), CASES.values(), ids=CASES)
def test_refusal(value, message):
    encoder = Encoder()
    for _ in range(2):
        with pytest.raises(
            UnsupportedTypeError, match="^sample.*" + re.escape(message.removeprefix("sample"))
        ):
            encoder.encode(value)
    assert encoder.schemas == []


def test_refusals_after_a_good_sample():
    """A sample that an earlier one's matcher turns down still gets its message, and spoils nothing."""
    encoder = Encoder()
    good = {"t": torch.ones(2), "h": torch.ones(2, dtype=torch.bfloat16), "n": np.ones(2)}
    encode(good, encoder)
    bad = [
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
    ]
    for tensor in bad:
        with pytest.raises(UnsupportedTypeError, match=r'^sample\["t"\]: cannot store'), torch.no_grad():
            encoder.encode({**good, "t": tensor})
        with pytest.raises(UnsupportedTypeError, match=r'^sample\["h"\]: cannot store'):
            encoder.encode(
                {**good, "h": tensor.to(torch.bfloat16) if tensor.device.type == "cpu" else tensor}
            )
    text, record = encode(good, encoder)
    assert same(Decoder(text).decode(memoryview(record)), good)
    assert len(encoder.schemas) == 1


def test_depth_64_is_stored():
    text, record = encode(deep(64))
    assert Decoder(text).decode(memoryview(record)) == deep(64)


def test_dataclass_with_more_or_less_than_its_fields():
    value = Strict(1)
    value.extra = 1
    with pytest.raises(
        UnsupportedTypeError, match=r"Strict with the attribute 'extra', which is no field; make it a field"
    ):
        encode(value)
    value = Strict(1)
    del value.a
    with pytest.raises(UnsupportedTypeError, match="Strict whose field 'a' is not set; set it"):
        encode(value)


def test_dataclasses_with_state_elsewhere_do_not_register():
    @dataclasses.dataclass
    class Odd(dict):
        a: int = 0

    with pytest.raises(OptionError, match="keeps state outside its fields"):
        register(Odd)


def test_too_many_values_are_refused(monkeypatch):
    monkeypatch.setattr("edcache.codec.encode.MAX_NODES", 50)
    with pytest.raises(UnsupportedTypeError, match="a sample of more than 50 values; put them into arrays"):
        encode([[1, "a"]] * 20)


def test_unknown_codec():
    with pytest.raises(OptionError, match=r'codec=\'msgpack\': choose "native" or "pickle"'):
        Encoder("msgpack")


def test_pickle_needs_permission():
    encoder = Encoder("pickle")
    text, record = encode({1, 2}, encoder)
    assert encoder.schemas == [text]
    with pytest.raises(
        PickleRefusedError, match="the record holds pickles; pass allow_pickle=True if you trust its author"
    ):
        Decoder(text).decode(memoryview(record))
    assert Decoder(text, allow_pickle=True).decode(memoryview(record)) == {1, 2}
    assert Decoder(text).nbytes is None
    assert dict(Decoder(text).fields) == {}


def test_what_pickle_refuses():
    with pytest.raises(UnsupportedTypeError, match="sample: pickle cannot store it: "):
        Encoder("pickle").encode(lambda: 0)
