"""Equal samples are found as a dict finds them."""

import random

import numpy as np
import pyarrow as pa
import pytest

from edcache.identity import Keyed, keys
from tests.kit.scale import scaled


def texts_of(draw, count, kind):
    """Keys of one kind, many of which repeat or differ in a byte."""
    if kind == "ints":
        return [
            draw.choice([0, -1, 1, 255, 2**40, -(2**63), 2**63 - 1, draw.randrange(9)]) for _ in range(count)
        ]
    alphabet = "a\0\x7fäß\N{SNOWMAN}" if kind == "text" else "a\0\x7f\x80\xff"
    sizes = [0, 1, 7, 8, 9, 16, 17, 40]
    made = ["".join(draw.choice(alphabet) for _ in range(draw.choice(sizes))) for _ in range(count)]
    made = [draw.choice(made) if draw.random() < 0.3 else one for one in made]
    return ["x" + one for one in made] if kind == "text" else [one.encode("latin-1") for one in made]


def keyed(keys, versions):
    return Keyed(pa.array(keys, None if keys else pa.string()), pa.array(versions, pa.string()))


@pytest.mark.parametrize("kind", ["text", "bytes", "ints"])
def test_samples_are_found_as_a_dict_finds_them(kind):
    draw = random.Random(kind)
    for _ in range(scaled(200, 20)):
        sides = []
        for count in (draw.randrange(40), draw.randrange(40)):
            names = texts_of(draw, count, kind)
            sides.append([(name, draw.choice(["", "1", "(2,)", ":a"])) for name in names])
        if draw.random() < 0.3:  # it has grown at its end
            sides[0] = sides[1] + sides[0]
        own, there = ([*map(list, zip(*side, strict=True))] if side else [[], []] for side in sides)
        first = {}
        for place, sample in enumerate(sides[1]):
            first.setdefault(sample, place)
        found = keyed(*own).places_in(keyed(*there))
        assert found.tolist() == [first.get(sample, -1) for sample in sides[0]]
        same = keyed(*there)
        assert same.first_equal.tolist() == [first[sample] for sample in sides[1]]
        assert same.firsts.tolist() == sorted(first.values())


def test_where_the_key_ends_and_the_version_begins_counts():
    there = keyed(["a:", "a", "1:a", ""], ["b", ":b", "", "a:b"])
    assert there.first_equal.tolist() == [0, 1, 2, 3]
    assert keyed(["a", "a:", "1"], [":b", ":b", ":a"]).places_in(there).tolist() == [1, -1, -1]


def test_keys_of_columns_of_several_types_are_compared_by_what_they_are():
    marked = keyed(["\x0017", "17", "\0b'17'"], [""] * 3)
    assert keyed([17, 1], ["", ""]).places_in(marked).tolist() == [0, -1]
    assert keyed([b"17", b""], ["", ""]).places_in(marked).tolist() == [2, -1]
    assert keyed([17], [""]).places_in(keyed([b"17"], [""])).tolist() == [-1]


def test_samples_without_a_key_or_a_version_are_no_ones():
    columns = {"key": pa.array(["", None, "", "b"]), "version": pa.array([None, "", "", ""])}
    own, indices = Keyed.stored(columns, np.array([True, True, True, False]))
    assert (own.keys.to_pylist(), indices.tolist()) == ([""], [2])
    own, indices = Keyed.stored({"key": columns["key"]})
    assert (own.versions.to_pylist(), indices.tolist()) == (["", "", ""], [0, 2, 3])


class Told(list):
    __edcache_ignore__ = ("told",)

    def sample_keys(self):
        return self.told


@pytest.mark.parametrize(
    ("told", "stored"),
    [
        (np.array(["b", "a"]), pa.array(["b", "a"])),
        (np.array([b"b", b"a"]), pa.array([b"b", b"a"])),
        (np.array([3, 1], np.uint8), pa.array([3, 1])),
        ((key for key in ("b", "a")), pa.array(["b", "a"])),
        ([("a", 1), ("b",)], pa.array(["\0('a', 1)", "\0('b',)"])),
        ([2, np.int64(1)], pa.array([2, 1])),
        ([np.uint8(2), -1], pa.array([2, -1])),
        ([b"b", np.bytes_(b"a")], pa.array([b"b", b"a"])),
        ([np.uint64(2**64 - 1), 1], pa.array([f"\0{2**64 - 1}", "\x001"])),
        (["b", 1], pa.array(["b", "\x001"])),
        ([b"b", 1], pa.array(["\0b'b'", "\x001"])),
        ([2**63, 1], pa.array([f"\0{2**63}", "\x001"])),
    ],
)
def test_keys_come_in_any_form_of_many_values(monkeypatch, told, stored):
    monkeypatch.setattr(keys, "_TOLD", 1)
    source = Told([0.5, 1.5])
    source.told = told
    found = Keyed.of(source)
    assert found.keys.equals(stored)
    assert found.versions.to_pylist() == ["", ""]


def test_the_digest_tells_keys_versions_and_their_order():
    sides = [
        (["a", "b"], ["", ""]),
        (["b", "a"], ["", ""]),
        (["ab", ""], ["", ""]),
        (["a", "b"], ["b", ""]),
        ([b"a", b"b"], ["", ""]),
        ([1, 2], ["", ""]),
        (["1", "2"], ["", ""]),
        ([12, 2], ["", ""]),
    ]
    assert len({keyed(*side).digest for side in sides}) == len(sides)
    whole = keyed([*"abcd"], [*"0123"])
    assert Keyed(whole.keys[1:3], whole.versions[1:3]).digest == keyed([*"bc"], [*"12"]).digest
