"""A sample that is computed again and its record: equal, rounded, near, another one, or another one each time."""

import contextlib
import functools
import random
import types

import numpy as np
import pytest
import torch
from codec_samples import arrays, leaves, samples, tensors
from hypothesis import assume, given
from hypothesis import strategies as st
from likeness import same

from edcache.codec import Encoder
from edcache.errors import CodecError
from edcache.identity import (
    FEW_DRAWS,
    FirstSample,
    Other,
    held_generators,
    learned,
    recompute,
)
from edcache.identity.samples import find_other

F64, BF16 = torch.float64, torch.bfloat16


def record(sample, codec="native", behind=()):
    """As an archive has it, also behind other samples in a chunk."""
    encoder = Encoder(codec)
    for one in behind:
        encoder.encode(one)
    encoded = encoder.encode(sample)
    return encoder.schemas[encoded.schema], bytes(encoded.record())


def other_of(before, now, codec="native", is_asked=False, made=None, behind=()):
    return find_other(record(before, codec, behind), [record(now, codec)], made, codec, is_asked)


def reordered(sample):
    """The same, with the keys of each dict the other way round."""
    if type(sample) is dict:
        return {key: reordered(part) for key, part in reversed(sample.items())}
    return [*map(reordered, sample)] if type(sample) is list else sample


def near(sample, number):
    """With a field that differs a bit, so that the other fields are compared one by one."""
    return {"sample": sample, "near": torch.tensor(1 + number * 1e-6)}


# --- equal ---


@pytest.mark.parametrize("codec", ["native", "pickle"])
@given(sample=samples, before=samples)
def test_an_equal_sample_is_no_other_one(codec, sample, before):
    try:
        assert other_of(sample, sample, codec, is_asked=True, behind=[before]) is None
    except CodecError:
        assume(codec == "native")  # pickle has no tensor of some dtypes
        raise
    assert other_of(sample, reordered(sample), codec, is_asked=True, behind=[before]) is None
    assert other_of(near(sample, 0), near(reordered(sample), 1), codec) is None


class Node:
    """Equal to itself alone, and it holds itself."""

    def __init__(self, value):
        self.value, self.itself, self.names = value, self, {f"name {value}" for value in range(9)}


class Slots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("make", [Node, Slots, lambda value: {value}, lambda value: np.array([{value}])])
def test_an_object_without_a_comparison_is_told_apart_by_its_parts(make):
    assert other_of(near(make(1), 0), near(make(1), 1), "pickle") is None
    assert str(other_of(near(make(1), 0), near(make(2), 1), "pickle")).startswith("field sample")


# --- another one ---


def leaf_paths(sample, path=()):
    """The keys that lead to each leaf."""
    if type(sample) not in (dict, list) or not sample:
        return [path]
    items = sample.items() if type(sample) is dict else enumerate(sample)
    return [one for key, part in items for one in leaf_paths(part, (*path, key))]


def replaced(sample, path, leaf):
    if not path:
        return leaf
    copy = sample.copy()
    copy[path[0]] = replaced(copy[path[0]], path[1:], leaf)
    return copy


exact = st.one_of(
    st.integers(), st.integers(-(1 << 70), 1 << 70), st.text(max_size=9), st.binary(max_size=9), st.none()
)
containers = st.recursive(
    exact,
    lambda parts: (
        st.lists(parts, min_size=1, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "c", "a.b", 1, "1"]), parts, min_size=1, max_size=4)
    ),
    max_leaves=9,
)


@given(sample=containers, leaf=exact, data=st.data())
def test_a_changed_leaf_is_found_and_named(sample, leaf, data):
    path = data.draw(st.sampled_from(leaf_paths(sample)))
    changed = replaced(sample, path, leaf)
    assume(not same(sample, changed))
    assert other_of(sample, changed).field == ".".join(map(str, path))


@given(one=arrays | tensors | leaves, other=arrays | tensors | leaves)
def test_of_any_two_leaves_it_says_something(one, other):
    found = other_of({"field": one}, {"field": other})
    assert found is None or str(found).startswith("field field")


NAN, INF = float("nan"), float("inf")
DIFFERENT = {
    "integers above 2**53": (2**60, 2**60 + 1),
    "an array of them": (np.array([2**60]), np.array([2**60 + 1])),
    "a tensor of them": (torch.tensor([2**62, 1]), torch.tensor([2**62 + 1, 1])),
    "unsigned ones": (np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64)),
    "numbers with a square of 0": (1e-200, 2e-200),
    "numbers with an infinite square": (1e200, 2e200),
    "the largest ones": (1e308, -1e308),
    "nan": (NAN, 1.0),
    "inf": (INF, -INF),
    "nan in an array": (torch.tensor([1.0, NAN]), torch.tensor([NAN, 1.0])),
    "complex": (1 + 1j, 1 - 1j),
    "0-dimensional": (np.array(1.0), np.array(2.0)),
    "another shape": (np.ones((2, 3)), np.ones((3, 2))),
    "another shape of one number": (np.array(["a"]), np.array([["a"]])),
    "empty ones": (np.ones((0, 3)), np.ones((0, 4))),
    "texts": (np.array(["a", "b"]), np.array(["a", "c"])),
    "days": (np.array(["2020", "2021"], "M8[Y]"), np.array(["2020", "2022"], "M8[Y]")),
    "records": (np.zeros(2, [("a", "u1")]), np.ones(2, [("a", "u1")])),
    "a flag": (np.array([True, False]), np.array([True, True])),
    "bytes that are no image": (np.array([7, 8], np.uint8), np.array([7, 9], np.uint8)),
    "none": (None, 0),
    "a text for bytes": ("a", b"a"),
    "empty containers": ([], {}),
    "a key that another one is like": ({"1": 1, 1: 2}, {"1": 3, 1: 2}),
    "a key with a dot": ({"a.b": 1, "a": {"b": 2}}, {"a.b": 3, "a": {"b": 2}}),
}


@pytest.mark.parametrize(("before", "now"), DIFFERENT.values(), ids=DIFFERENT)
@pytest.mark.parametrize("codec", ["native", "pickle"])
def test_what_is_exact_is_another_one(before, now, codec):
    for one, other in ((before, now), (now, before)):
        assert other_of({"a": [one]}, {"a": [other]}, codec).field.split(".")[0] == "a"
        assert other_of([one], [one], codec, is_asked=True) is None


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "field a.b differs by 50 %: 1 in the archive, 2 now"),
        ({"a": 1, "b": 2}, {"a": 1}, "field b differs: 2 in the archive, absent now"),
        ({"a": 1}, {"a": 1, "c": 3}, "field c differs: absent in the archive, 3 now"),
        ([1, [2]], [1, [3]], "field 1.0 differs by 33 %: 2 in the archive, 3 now"),
        ("cat", "dog", "it differs: 'cat' in the archive, 'dog' now"),
        (2**60, 2**60 + 1, f"it differs: {2**60} in the archive, {2**60 + 1} now"),
        (
            np.arange(4),
            -np.arange(4),
            "it differs by 200 %: [0, 1, 2, ...] in the archive, [0, -1, -2, ...] now",
        ),
        (np.array(1), np.array(2), "it differs by 50 %: 1 in the archive, 2 now"),
    ],
)
def test_the_field_that_differs_most_is_told(before, now, text):
    assert str(other_of(before, now)) == text


# --- rounded, and near ---

LIMITS = [
    ("float64", torch.ones(9, dtype=F64), 1e-6, 1e-5),
    ("float32", torch.ones(9), 1e-6, 1e-5),
    ("float32 image", torch.ones(3, 4, 4), 1e-6, 1e-5),
    ("float16", np.ones(9, np.float16), 0.001, 0.002),
    ("bfloat16", torch.ones(9, dtype=BF16), 0.008, 0.016),
    ("complex64", torch.ones(9, dtype=torch.complex64), 1e-6, 1e-5),
    ("a float", 1.0, 1e-15, 1e-6),
    ("a complex number", 1 + 1j, 1e-15, 1e-6),
    ("a number of numpy", np.float32(1), 1e-6, 1e-5),
]


@pytest.mark.parametrize(
    ("ones", "right", "wrong"), [case[1:] for case in LIMITS], ids=[c[0] for c in LIMITS]
)
def test_floating_point_numbers_may_be_rounded(ones, right, wrong):
    for is_asked in (False, True):
        assert other_of(ones, ones * (1 + right), is_asked=is_asked) is None
        assert other_of(ones, ones * (1 + wrong), is_asked=is_asked) is not None
    assert other_of(ones, ones * 0) is not None


@pytest.mark.parametrize("ones", [case[1] for case in LIMITS], ids=[case[0] for case in LIMITS])
def test_numbers_that_a_fill_saw_rounded_may_be_near(ones):
    made = FirstSample(0.0, rounding={"": 1e-3})
    for by, is_right, is_near in ((0.009, True, True), (0.018, False, True), (0.05, False, False)):
        changed = ones * (1 + by)
        assert (other_of(ones, changed, made=made, is_asked=True) is None) == is_right
        assert (other_of(ones, changed, made=made) is None) == is_near
    assert other_of(
        {"x": ones, "y": ones}, {"x": ones, "y": ones * 1.018}, made=FirstSample(0.0, rounding={"x": 1e-3})
    )


@pytest.mark.parametrize("make", [torch.tensor, np.array], ids=["torch", "numpy"])
def test_a_photo_may_differ_by_two_levels_and_half_of_one_in_the_mean(make):
    levels = np.arange(9, 201, dtype=np.uint8).reshape(8, 8, 3)
    few, some = np.zeros_like(levels), np.zeros_like(levels)
    few[0, 0], some[::2] = 1, 1
    for change, is_near in (
        (few * 2, True),
        (some, True),
        (few * 3, False),
        (some * 2, False),
        (few + 1, False),
    ):
        assert (other_of(make(levels), make(levels + change)) is None) == is_near
        assert other_of(make(levels), make(levels - change), is_asked=True) is not None


@pytest.mark.parametrize("count", [2, 4, 32])
def test_a_mask_of_few_classes_is_exact(count):
    classes = (np.arange(64 * 64) % count).astype(np.uint8).reshape(64, 64)
    assert other_of(classes, classes) is None
    assert other_of(classes, classes + np.uint8(1)) is not None


KINDS = {
    "a wider float": (np.ones(3, np.float32), np.ones(3)),
    "integers": (np.ones(3, np.float32), np.ones(3, np.int64)),
    "bools": (np.ones(3, np.bool_), np.ones(3, np.uint8)),
    "a number of Python": (3, 3.0),
    "a bool of Python": (0, False),
    "a tensor": (np.arange(3), torch.arange(3)),
    "a tuple": ([1, 2], (1, 2)),
    "nothing in it": (np.zeros(0, np.float32), np.zeros(0, np.int64)),
}


@pytest.mark.parametrize(("one", "other"), KINDS.values(), ids=KINDS)
def test_equal_numbers_of_another_kind_are_others(one, other):
    assert other_of(one, one) is None
    assert None not in (other_of(one, other), other_of(other, one))


# --- one that is another one each time ---

HELD = {
    "random": random.Random(1),
    "numpy": np.random.default_rng(1),
    "torch": torch.Generator().manual_seed(1),
}
COINS = {
    "random": lambda: random.random() < 0.5,
    "numpy": lambda: bool(np.random.rand() < 0.5),
    "torch": lambda: bool(torch.rand(()) < 0.5),
    "a generator of random": lambda: HELD["random"].random() < 0.5,
    "a generator of numpy": lambda: bool(HELD["numpy"].random() < 0.5),
    "a generator of torch": lambda: bool(torch.rand((), generator=HELD["torch"]) < 0.5),
}


@pytest.mark.parametrize("coin", COINS.values(), ids=COINS)
def test_a_coin_is_no_sample_that_repeats(coin, clock):
    def again(least, stored=None):
        return recompute([lambda: {"x": coin()}], "native", least, stored)

    least = FEW_DRAWS if "HELD" in coin.__code__.co_names else 2  # as of a source that holds a generator
    found = [learned(again(least), "native") for _ in range(300)]
    assert sum(first.repeats for first, _, _ in found) < 6
    assert all(first.repeats is (other is None) for first, _, other in found)
    # Nor is one that was not noticed taken for another one later.
    stored = record({"x": True})
    found = [find_other(stored, again(FEW_DRAWS, stored).records, None, "native", True) for _ in range(300)]
    assert sum(one is not None and not one.is_random for one in found) < 6


def test_a_number_drawn_anew_each_time_is_not_another_one():
    records = [record({"x": x}) for x in (0.2, 0.2, 0.7)]
    other = find_other(record({"x": 0.4}), records, None, "native", True)
    assert other is not None
    assert other.is_random
    assert str(other) == "field x is another one each time that it is computed"
    other = find_other(record({"x": 0.4}), records[:2], None, "native", False)
    assert other is not None
    assert not other.is_random


def states():
    return [random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state()]


@pytest.mark.parametrize(
    ("seconds", "least", "stored", "count"),
    [
        (0.01, 1, False, 1),
        (0.03, 2, False, 2),
        (0.2, 2, False, 2),
        (3, 2, False, 1),
        (0.01, 1, True, 1),
        (3, 8, True, 1),
    ],
)
@pytest.mark.parametrize("draws", [False, True])
def test_a_sample_is_computed_for_seconds_alone(clock, seconds, least, stored, count, draws):
    def compute():
        clock.sleep(seconds)
        return torch.rand(()) > 2 if draws else 0

    again = recompute([compute], "native", least, record(1) if stored else None)
    assert len(again.records) == (min(64, 1 + int(2 / seconds)) if draws else count)
    assert again.seconds == pytest.approx(seconds)
    assert len(recompute([compute], "native", 8, record(compute())).records) == 1


@pytest.mark.parametrize("least", [1, 2])
def test_a_sample_that_repeats_is_learned(least):
    draws = [lambda: torch.manual_seed(7).seed() and {"x": 1.5}, lambda: {"x": 1.5 * (1 + 1e-4)}]
    again = recompute(draws[:least], "native", least)
    first, _, other = learned(again, "native")
    assert other is None
    assert first.repeats
    assert first.rounding.keys() == {"x"} - {"x" for _ in range(2 - least)}
    assert FirstSample.of({"first_sample": first.to_json()}).rounding.keys() == first.rounding.keys()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_the_generators_are_as_they_were(fails, bits):
    def draw():
        drawn = random.random(), np.random.rand(), torch.rand(3)
        random.seed(3)
        torch.manual_seed(3)
        if fails:
            raise KeyError(drawn)
        return drawn

    kept = np.random.get_bit_generator()
    np.random.set_bit_generator(bits(5))
    try:
        before = states()
        with pytest.raises(KeyError) if fails else contextlib.nullcontext():
            assert len(recompute([draw], "native").records) > 1
        assert same(states(), before)
    finally:
        np.random.set_bit_generator(kept)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        7,
        {},
        {"seconds": 1.0},
        {"seconds": "1", "rounding": {}},
        {"seconds": 1.0, "rounding": {"x": "much"}},
    ],
)
def test_what_another_program_wrote_is_no_first_sample(entry):
    assert FirstSample.of({"first_sample": entry}) is None
    assert FirstSample.of(None) is None


def test_a_value_is_told_in_short():
    assert len(str(Other("x", INF, "a" * 9999, list(range(9999))))) < 500


HOLDING = {
    "an attribute": lambda generator: types.SimpleNamespace(rng=generator),
    "a transform of a list": lambda generator: types.SimpleNamespace(
        fns=[abs, types.SimpleNamespace(rng=generator)]
    ),
    "a dict": lambda generator: {"rng": generator},
    "a closure": lambda generator: lambda x: generator,
    "a partial": lambda generator: functools.partial(abs, generator),
    "a method": lambda generator: types.MethodType(abs, types.SimpleNamespace(rng=generator)),
}


@pytest.mark.parametrize("make", HOLDING.values(), ids=HOLDING)
def test_a_source_that_holds_a_generator_is_known(make):
    assert all(held_generators(make(generator)) for generator in HELD.values())
    assert not held_generators(make("no generator"))


def test_looking_for_a_generator_ends():
    loop = [1]
    loop.append(loop)
    assert not held_generators(loop)
    assert not held_generators([[k] for k in range(100_000)])
