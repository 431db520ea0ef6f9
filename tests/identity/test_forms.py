"""Values of one form ask, and do not refuse: the same items in another order, or of another kind."""

from __future__ import annotations

import random
import re
import threading
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edcache.identity.forms import form_of, form_of_stored

PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.binary()
)
NESTED = st.recursive(
    PLAIN, lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=3), part, max_size=4)
)


def another(value: Any, rng: random.Random) -> Any:
    """Return a value of the same items in another order, and of another kind."""
    if isinstance(value, list):
        items = [another(one, rng) for one in value]
        rng.shuffle(items)
        return rng.choice([list, tuple])(items)
    if isinstance(value, dict):
        items = [(key, another(part, rng)) for key, part in value.items()]
        rng.shuffle(items)
        return rng.choice([dict, OrderedDict])(items)
    if type(value) is int and abs(value) < 1 << 60:
        return rng.choice([int, np.int64])(value)
    if type(value) is float:
        return rng.choice([float, np.float64])(value)
    return rng.choice([str, np.str_])(value) if type(value) is str else value


def flat(value: Any) -> Any:
    """Return the items of a value as an oracle compares them: containers without an order."""
    if isinstance(value, list | tuple):
        return "list", tuple(sorted(map(repr, map(flat, value))))
    if isinstance(value, dict):
        return "dict", tuple(sorted((key, repr(flat(part))) for key, part in value.items()))
    return type(value).__name__, repr(value)


@given(NESTED, st.integers(0, 99))
def test_the_same_items_have_one_form(value, seed):
    assert form_of(value) == form_of(another(value, random.Random(seed))) != ""


@given(NESTED, NESTED)
def test_other_items_have_another_form(one, other):
    words = (
        re.compile(r"[\w.+-]+").findall(repr(flat(one))),
        re.compile(r"[\w.+-]+").findall(repr(flat(other))),
    )
    if sorted(words[0]) != sorted(words[1]):
        assert form_of(one) != form_of(other)


ALIKE = {
    "a set in a list": ([*{"b", "a"}], ["a", "b"]),
    "a pattern": (re.compile("cat|dog"), re.compile("dog|cat")),
    "a text": ("cat, dog", "dog, cat"),
    "a path": (Path("a/b"), "a/b"),
    "an array": (np.array([[2, 1]]), np.array([[1, 2]])),
    "a tensor": (torch.tensor([2.0, 1.0]), torch.tensor([1.0, 2.0], dtype=torch.float64)),
    "bfloat16": (torch.tensor([2.0, 1.0], dtype=torch.bfloat16), torch.tensor([1.0, 2.0])),
}


@pytest.mark.parametrize("values", ALIKE.values(), ids=ALIKE)
def test_these_have_one_form(values):
    assert form_of(values[0]) == form_of(values[1]) != ""


OTHERS = {
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "bool": (True, 1),
    "text": ("1", 1),
    "float": (1.0, 1),
    "twice": ([1, 1, 2], [1, 2, 2]),
    "nested": ([[1], [2, 3]], [[1, 2], [3]]),
    "decimal": ("0.5", "5.0"),
    "marks": ("a.b", "a/b"),
}


@pytest.mark.parametrize("values", OTHERS.values(), ids=OTHERS)
def test_these_have_not(values):
    assert form_of(values[0]) != form_of(values[1])


class Held:
    pass


NONE = {
    "long": [*range(5_000)],
    "a large array": np.zeros(5_000),
    "a long text": "a " * 20_000,
    "an object": Held(),
    "objects": [Held()],
    "a model": torch.nn.Linear(2, 2),
    "sparse": torch.eye(3).to_sparse(),
    "huge": 1 << 400_000,
}


@pytest.mark.parametrize("value", NONE.values(), ids=NONE)
def test_long_values_and_objects_have_none(value):
    assert form_of(value) == ""


def test_a_value_that_holds_itself_has_none():
    value: list[Any] = []
    value.append(value)
    assert form_of(value) == ""


def repr_of_kind(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize("value", [threading.Lock(), len, deque([1]), range(3), slice(1)], ids=repr_of_kind)
def test_any_value_is_taken(value):
    assert isinstance(form_of(value), str)


@pytest.mark.parametrize("value", [None, True, 3, "a b"])
def test_a_plain_description_tells_its_form(value):
    assert form_of_stored(value) == form_of(value)
    assert form_of_stored(["[1, 2]", form_of([2, 1])]) == form_of((1, 2))
    assert form_of_stored(["[1, 2]"]) == form_of_stored(object()) == ""
