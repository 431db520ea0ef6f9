"""Every sample that the codec takes comes back exactly, whichever encoder made it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from codec_samples import encode, encoded_bytes, samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import same
from scale import scaled

from edcache.codec.decoder import Decoder
from edcache.codec.encoder import Encoder
from edcache.errors import CodecError

LOOSE = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=scaled(400, 100), suppress_health_check=LOOSE)
@given(samples)
def test_a_sample_comes_back_exactly(sample):
    text, record = encode(sample)
    decoder = Decoder(text)
    assert same(decoder.decode(memoryview(record)), sample)
    assert same(decoder.decode(memoryview(record), copy=False), sample)
    assert decoder.nbytes in (None, len(record))


shapes = st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple)
shaped = st.builds(
    lambda a, b: {"t": torch.ones(a), "n": [np.full(b, 7, "u2"), np.float32(1)]}, shapes, shapes
)
pools = st.one_of(*(st.lists(kind, min_size=2, max_size=5) for kind in (samples, shaped)))


@settings(max_examples=120, suppress_health_check=LOOSE)
@given(pools, st.lists(st.integers(0, 4), min_size=5, max_size=25))
def test_two_encoders_make_the_same_of_the_same_samples(pool, order):
    one, other = Encoder(), Encoder()
    for k in order:
        sample = pool[k % len(pool)]
        a, b = one.encode(sample), other.encode(sample)
        assert (a.schema, a.nbytes) == (b.schema, b.nbytes)
        assert encoded_bytes(a) == encoded_bytes(b)
        assert same(Decoder(one.schemas[a.schema]).decode(memoryview(encoded_bytes(a))), sample)
    assert one.schemas == other.schemas
    assert len(one.schemas) <= 64


def array_of(code, shape, form):
    array = np.random.default_rng(sum(shape)).integers(0, 2, shape).astype(code)
    if form == "readonly":
        array.flags.writeable = False
    return {"strided": np.repeat(array, 2, -1)[..., ::2], "fortran": np.asfortranarray(array)}.get(
        form, array
    )


class Text(str):
    pass


sides = st.lists(st.integers(0, 3), min_size=1, max_size=2)
codes = st.sampled_from(["u1", "<f4", ">f4", "?", "q", "l", "f2", "c16", "g", "M8[s]"])
forms = st.sampled_from(["", "readonly", "strided", "fortran"])
flat_leaves = st.one_of(
    st.builds(array_of, codes, sides, forms),
    st.builds(
        lambda code, side: torch.from_numpy(array_of(code, side, "")), st.sampled_from(["f4", "i8"]), sides
    ),
    st.just(torch.ones(2, dtype=torch.bfloat16)),
    st.just(torch.ones(2, dtype=torch.complex64).conj()),
    st.sampled_from([True, 0, -1, 1 << 62, 1 << 63, 0.5, -0.0, float("nan"), None, "a", b"a", [1, "b"]]),
    st.sampled_from(
        [np.float64(-0.0), np.float32(2), np.int64(3), np.longlong(3), np.bool_(True), np.zeros(())]
    ),
)
names = st.sampled_from(["x", "y", "ä", Text("x"), 0, True])
flat_samples = st.one_of(
    st.dictionaries(names, flat_leaves, max_size=3),
    st.dictionaries(names, flat_leaves, max_size=3).map(OrderedDict),
    st.lists(flat_leaves, max_size=3),
    st.lists(flat_leaves, max_size=3).map(tuple),
)


def outcome_of(encoder, sample):
    try:
        made = encoder.encode(sample)
    except CodecError as error:
        return str(error)
    return made.schema, made.nbytes, encoded_bytes(made)


@settings(max_examples=scaled(300, 100), suppress_health_check=LOOSE)
@given(st.lists(flat_samples, min_size=1, max_size=3), st.lists(st.integers(0, 2), min_size=4, max_size=10))
def test_the_plan_of_the_last_sample_makes_the_record_of_the_general_walk(pool, order):
    one, other = Encoder(), Encoder()
    for k in order:
        other.plan = None
        assert outcome_of(one, pool[k % len(pool)]) == outcome_of(other, pool[k % len(pool)])
    assert one.schemas == other.schemas


@pytest.mark.parametrize(
    ("sample", "like"),
    [
        ({"x": np.zeros(3, "u1"), "y": 7}, {"x": np.ones(6, "u1")[::2], "y": -1}),
        ((np.float32(1), None, 2.5, True), (np.float32(2), None, float("nan"), False)),
        ([torch.zeros(2, 3), np.zeros((2, 2), "f8")], [torch.ones(3, 2).T, np.ones((2, 2), "f8", "F")]),
    ],
)
def test_a_sample_like_the_last_one_takes_its_plan(sample, like):
    """Else the test above would compare the general walk with itself."""
    encoder = Encoder()
    encoder.encode(sample)
    assert encoder.plan.pack(like, bytearray(encoder.plan.nbytes), 0)
    assert outcome_of(encoder, like) == outcome_of(Encoder(), like)


def test_a_plan_copies_the_sample():
    encoder, sample = Encoder(), {"x": np.zeros(3, "u1")}
    encoder.encode(sample)
    record = encoder.encode(sample)
    sample["x"][:] = 1
    assert encoded_bytes(record) == bytes(3)


NEAR_MISSES = [
    *({"a": 1, "b": 2}, {"b": 1, "a": 2}, {"a": True, "b": 2}, {"a": 1.0, "b": 2}),
    *({"a": np.int64(1), "b": 2}, {"a": 1 << 63, "b": 2}, {"a": -(1 << 63), "b": 2}),
    *({"a": 1, "b": 2, "c": 3}, {"a": 1}, {"a": None, "b": 2}, {"a": "1", "b": 2}, {"a": b"1", "b": 2}),
    *({"a": bytearray(b"1"), "b": 2}, {"a": [1], "b": 2}, {"a": (1,), "b": 2}, {1: 0, "b": 2}, {}, [], ()),
    *([1] * 7, [1] * 8, [True] * 8, [1] * 7 + [True], [1] * 7 + [1 << 64], (1,) * 8, torch.zeros(2)),
    *(torch.zeros(2, 1), torch.zeros(2, dtype=torch.float64), torch.tensor(0.0), torch.zeros(()).bool()),
    *(np.zeros(2, np.float32), np.zeros(2, ">f4"), np.zeros(2, "l"), np.zeros(2, "q"), np.zeros(2, "M8[s]")),
    *(np.zeros(2, "M8[ms]"), np.zeros((), "f4"), np.float32(0), np.float64(0), 0.0, -0.0, 0j),
]


def test_near_misses_never_take_each_others_schema():
    """Each of two samples in turn, so that the other's matcher is tried first."""
    for a in NEAR_MISSES:
        for b in NEAR_MISSES:
            encoder = Encoder()
            for sample in (a, b, a, b):
                text, record = encode(sample, encoder)
                assert text == encode(sample)[0]
                assert same(Decoder(text).decode(memoryview(record)), sample)
