"""What the codec does not store: the message names the place, the type and the remedy."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import enum
import re
import zoneinfo

import numpy as np
import pytest
import torch
from codec_samples import Frozen, Point, encode
from likeness import same

import edcache.numpy
from edcache import CachedDataset, CacheWriter
from edcache.codec import tensors
from edcache.codec.classes import register
from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.codec.schema import MAX_NODES
from edcache.errors import CodecError, OptionError


class Hue(enum.Enum):
    BLUE = 1


@dataclasses.dataclass
class Loose:
    a: int = 0


@register
@dataclasses.dataclass
class Strict:
    a: int


@register
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


class Located(torch.Tensor):
    pass


class Hidden:
    __slots__ = ("place",)


@register
@dataclasses.dataclass
class Shown(Hidden):
    a: int = 0


def having(value, **attributes):
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


class Cell(np.void):
    pass


@register
class Code(enum.Enum):
    OK = 200

    @classmethod
    def _missing_(cls, value):
        made = object.__new__(cls)
        made._name_, made._value_ = f"CODE_{value}", value
        return made


# ruff: noqa: E501 - a table
CASES = {
    "set": ({"meta": [0, 1, {1}]}, 'sample["meta"][2]: cannot store set; convert it to tensors, arrays or plain Python values, register its class with edcache.register(set, encode=..., decode=...), or choose codec="pickle"'),
    "root": (frozenset(), "sample: cannot store frozenset; convert it to tensors, arrays or plain Python values"),
    "grad": ([torch.ones(1, requires_grad=True)], "sample[0]: cannot store a tensor that requires grad, or has one; call .detach() on it"),
    "parameter": (torch.nn.Parameter(torch.ones(1)), "cannot store torch.nn.parameter.Parameter; convert it to tensors, arrays or plain Python values"),
    "meta": (torch.ones(1, device="meta"), "cannot store a tensor on device meta; call .cpu() on it"),
    "gradient": (having(torch.ones(1), grad=torch.ones(1)), "a tensor that requires grad, or has one; call .detach() on it"),
    "tensor attribute": ([having(torch.ones(1), place=3)], "sample[0]: cannot store a tensor with the attribute 'place'; store that beside it, and call .detach() on the tensor"),
    "half attribute": (having(torch.ones(1, dtype=torch.bfloat16), place=3), "a tensor with the attribute 'place'"),
    "mapping attribute": (having(collections.OrderedDict(), place=3), "cannot store OrderedDict with attributes beside its items; convert it to a dict"),
    "slot": (having(Shown(), place=3), "Shown with the attribute 'place', which is no field; make it a field"),
    "dtype metadata": (np.zeros(1, np.dtype("f4", metadata={"unit": "m"})), "an array of dtype float32; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "field metadata": (np.zeros(1, [("a", np.dtype("f4", metadata={"unit": "m"}))]), "; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "record": (np.rec.array([(1,)], dtype=[("a", "i4")])[0], "cannot store numpy.record; convert it to tensors, arrays or plain Python values"),
    "sparse": (torch.ones(2, 2).to_sparse(), "cannot store a tensor of layout torch.sparse_coo; call .to_dense() on it"),
    "function": (len, "cannot store builtin_function_or_method; convert it to tensors"),
    "object": (np.array([None]), "cannot store an array of dtype object; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "masked": (np.ma.masked_array([1], [True]), "MaskedArray; convert it to tensors, arrays or plain Python values"),
    "recarray": (np.rec.array([(1,)], dtype=[("a", "i4")]), "convert it to tensors, arrays or plain Python values, register its class with edcache.register(recarray, encode=..., decode=...), or choose"),
    "tensor subclass": (torch.ones(1).as_subclass(Located), "Located; convert it to tensors, arrays or plain Python values, register its class with edcache.register(Located, encode"),
    "enum key": ({Hue.BLUE: 1}, "cannot store a dict key of type test_codec_refusals.Hue; use str or int"),
    "zone": (dt.datetime(2000, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1), "MY")), "a datetime of time zone datetime.timezone(datetime.timedelta(seconds=3600), 'MY'); call .astimezone(datetime.timezone.utc) on it"),
    "long double": (np.zeros(1, "g"), "cannot store an array of dtype float128; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "long scalar": (np.longdouble(1), "cannot store a numpy scalar of dtype float128; call .item()"),
    "subarray": (np.zeros(1, [("a", "f4", 2)]), "; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "title": (np.zeros(1, [(("title", "a"), "f4")]), "; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "subclass": (Sub(), "Sub; convert it to tensors, arrays or plain Python values, register its class with edcache.register(Sub"),
    "counter": (collections.Counter(), "cannot store collections.Counter; convert it to tensors, arrays or plain Python values"),
    "text": (Text("a"), "Text; convert it to tensors, arrays or plain Python values"),
    "enum": (Hue.BLUE, "Hue; register it with edcache.register(Hue)"),
    "dataclass": ({"a": Loose()}, "Loose; register it with edcache.register(Loose)"),
    "class": (Loose, "cannot store type; convert it to tensors, arrays or plain Python values"),
    "key": ({"a": {(1, 2): 0}}, 'sample["a"]: cannot store a dict key of type tuple; use str or int'),
    "big key": ({1 << 64: 0}, "sample: cannot store a dict key of type int; use str or int (64 bits)"),
    "text key": ({Text("a"): 0}, "Text; use str"),
    "endless": (endless(), "cannot store a tree deeper than 64 levels; flatten it, or see whether it contains itself"),
    "deep": (deep(65), "sample[0][0][0][0][0][0]...[0][0][0]: cannot store a tree deeper than 64"),
    "tzinfo": (dt.datetime(2000, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), "a datetime of time zone zoneinfo.ZoneInfo(key='UTC'); call"),
    "time": (dt.time(1, 2), "cannot store datetime.time; convert it to tensors, arrays or plain Python values, register"),
    "bool key": ({True: 1}, "a dict key of type bool; use str or int (64 bits) keys, or choose codec"),
    "float key": ({"a": {0.5: 1}}, 'sample["a"]: cannot store a dict key of type float; use'),
    "bytes key": ({b"": 1}, "a dict key of type bytes; use"),
    "no key": ({None: 1}, "a dict key of type NoneType; use"),
    "surrogates": ({"\ud83d\ude00": 1}, "sample: cannot store it: a key, class or field name holds surrogates"),
    "attributes": (with_attribute(), "Named with attributes beside its fields; convert it to a dict"),
    "field": ((Frozen(1), Point(1, [object()])), "sample[1].y[0]: cannot store object; convert it"),
    "lambda": (lambda: 0, "cannot store function"),
    "dimensions": (torch.ones((1,) * 65), "cannot store a tensor of 65 dimensions, more than 64; reshape it"),
    "nested dtype": (np.zeros(1, [("a", [("b", "u1")])]), "; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "void class": (np.zeros(1, (Cell, [("a", "i4")])), "; convert it to numbers or texts with .astype(), or store its fields or its bits, .view()"),
    "time unit": (np.zeros(1, "M8[1234567890s]"), "cannot store an array of dtype datetime64[1234567890s]; convert it"),
    "scalar": (np.datetime64(1, "1234567890s"), "cannot store a numpy scalar of dtype datetime64[1234567890s]; call .item() on it"),
    "no member": (Code(404), "<Code.CODE_404: 404>, which is no member of its enum; store its value"),
    "no address": (np.empty((0, 1 << 50)), "sample: cannot store it: schema: array of shape (0, 1125899906842624) does not fit an address space"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "message"), CASES.values(), ids=CASES)
def test_refusal(value, message):
    encoder = Encoder()
    for _ in range(2):
        with pytest.raises(CodecError, match="^sample.*" + re.escape(message.removeprefix("sample"))):
            encoder.encode(value)
    assert encoder.schemas == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8),
            "quantized tensor; call .dequ",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2)]),
            "a nested tensor; store .unbind() of it, a tuple",
        ),
    ],
)
def test_tensors_of_another_kind_are_refused(make, message):
    with pytest.raises(CodecError, match=re.escape(message)):
        Encoder().encode(make())


def test_dtypes_of_ml_dtypes_are_refused_and_both_ways_of_the_message_store_them():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name, bits in (("bfloat16", "u2"), ("float8_e5m2", "u1"), ("int4", "u1")):
        array = np.ones(2, getattr(ml_dtypes, name))
        with pytest.raises(
            CodecError, match=rf"dtype {name}; .*\.astype\(\), or store .* its bits, \.view\(\)"
        ):
            Encoder().encode(array)
        encode([array.astype("float32"), array.view(bits)])
        with pytest.raises(CodecError, match=rf"ml_dtypes\.{name}; convert it to"):
            Encoder().encode(array[0])


@pytest.mark.parametrize(
    "like", [torch.ones(3), torch.ones(3, dtype=torch.bfloat16), collections.OrderedDict(a=1)]
)
def test_an_attribute_behind_samples_without_one_is_refused(like):
    """A flat sample like the last one takes another way to its record."""
    encoder = Encoder()
    for _ in range(2):
        encode({"a": copy.deepcopy(like), "n": 1}, encoder)
    for sample in ({"a": having(copy.deepcopy(like), place=3), "n": 1}, {"a": like, "n": 1}):
        if sample["a"] is like:
            encode(sample, encoder)
            continue
        with pytest.raises(CodecError, match=r'^sample\["a"\]: cannot store .* attribute'):
            encoder.encode(sample)


def test_a_tensor_without_memory_of_its_own_is_refused():
    """Within vmap and the like, where a tensor stands for many."""

    def encode_one(tensor):
        with pytest.raises(CodecError, match=r"this tensor; call .detach\(\).clone\(\) on it \("):
            Encoder().encode(tensor)
        return tensor

    torch.vmap(encode_one)(torch.ones(2))


def test_a_dtype_that_is_newer_than_the_table_is_refused(monkeypatch):
    monkeypatch.delitem(tensors.NAMES, torch.bfloat16)
    message = r"a tensor of torch.bfloat16; convert it to another dtype"
    with pytest.raises(CodecError, match=message):
        Encoder().encode(torch.ones(1, dtype=torch.bfloat16))


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
        with pytest.raises(CodecError, match=r'^sample\["t"\]: cannot store'), torch.no_grad():
            encoder.encode({**good, "t": tensor})
        with pytest.raises(CodecError, match=r'^sample\["h"\]: cannot store'):
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
        CodecError, match=r"Strict with the attribute 'extra', which is no field; make it a field"
    ):
        encode(value)
    value = Strict(1)
    del value.a
    with pytest.raises(CodecError, match="Strict whose field 'a' is not set; set it"):
        encode(value)


def test_dataclasses_with_state_elsewhere_do_not_register():
    @dataclasses.dataclass
    class Odd(dict):
        a: int = 0

    with pytest.raises(OptionError, match="keeps state outside its fields"):
        register(Odd)


def test_too_many_values_are_refused(monkeypatch):
    monkeypatch.setattr("edcache.codec.encoder.MAX_NODES", 50)
    with pytest.raises(CodecError, match="a sample of more than 50 values; put them into arrays"):
        encode([[1, "a"]] * 20)


@pytest.mark.parametrize(
    "sample", [dict.fromkeys(map(str, range(MAX_NODES)), 7), ["a", *[7] * (MAX_NODES - 1)]]
)
def test_as_many_values_as_the_limit_are_stored(sample, path):
    """Writer and readers count alike: the sample itself is none of its values."""
    cache = CachedDataset([sample, sample], path)
    arrays = edcache.numpy.open(path)
    name = "6" if isinstance(sample, dict) else 6
    assert cache[1] == sample == arrays[1]
    assert cache.batch([0, 1])[name].tolist() == [7, 7] == arrays.batch([0, 1])[name].tolist()
    more = {**sample, "more": 7} if isinstance(sample, dict) else [*sample, 7]
    with pytest.raises(CodecError, match="a sample of more than 32,768 values; put them into arrays"):
        encode(more)


def test_pickle_needs_permission():
    encoder = Encoder("pickle")
    text, record = encode({1, 2}, encoder)
    assert encoder.schemas == [text]
    with pytest.raises(
        CodecError, match="the record holds pickles; pass allow_pickle=True if you trust its author"
    ):
        Decoder(text).decode(memoryview(record))
    assert Decoder(text, allow_pickle=True).decode(memoryview(record)) == {1, 2}
    assert Decoder(text).nbytes is None
    assert dict(Decoder(text).fields) == {}


def test_what_pickle_refuses():
    with pytest.raises(CodecError, match="sample: pickle cannot store it: "):
        Encoder("pickle").encode(lambda: 0)


@pytest.mark.skipif(not hasattr(torch, "uint16"), reason="torch 2.2 has no uint16")
def test_a_tensor_that_torch_would_not_unpickle_is_refused_when_it_is_written(tmp_path):
    with CacheWriter(tmp_path / "a.zip", codec="pickle") as writer:
        writer.append({"x": torch.zeros(3)})
        with pytest.raises(CodecError, match='tensor of torch.uint16; codec="native" stores it'):
            writer.append({"x": torch.zeros(3, dtype=torch.uint16)})
    assert len(CachedDataset.from_cache(tmp_path / "a.zip", allow_pickle=True)) == 1
