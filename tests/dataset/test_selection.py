"""A selection is what a plain list would be, and holds no more than the array that it was made of."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled

from edcache.dataset.selection import Arranged, Selection, repeated

NUMBERS = st.integers(-40, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("cut"),
            st.builds(slice, st.none() | NUMBERS, st.none() | NUMBERS, st.sampled_from([1, 1, 2, 5, -1, -3])),
        ),
        st.tuples(st.just("repeat"), st.integers(0, 4)),
        st.tuples(st.just("pick"), st.lists(st.integers(0, 10_000), max_size=12)),
    ),
    max_size=6,
)
LONGEST = 2000


def stepped(selection, model, kind, what):
    if kind == "cut":
        return selection.cut(range(len(model))[what]), model[what]
    if kind == "repeat":
        return (
            (repeated(selection, what), model * what) if len(model) * what <= LONGEST else (selection, model)
        )
    places = [number % len(model) for number in what] if model else []
    return Selection(selection.take(np.array(places, np.int64))), [model[place] for place in places]


@settings(max_examples=scaled(500))
@given(st.integers(0, 30), st.booleans(), STEPS)
def test_a_selection_is_what_a_list_is(count, is_array, steps):
    model = [3 * k + 1 for k in range(count)]
    selection = Selection(np.array(model, np.int64)) if is_array else Selection(range(1, 3 * count + 1, 3))
    for kind, what in steps:
        selection, model = stepped(selection, model, kind, what)
        assert len(selection) == len(model)
    array = selection.array()
    assert array.dtype == np.int64
    assert array.tolist() == model
    assert not array.flags.writeable
    assert [selection.at(position) for position in range(len(model))] == model
    positions = np.arange(-len(model), len(model), dtype=np.int64)[::-1]
    assert selection.take(positions).tolist() == [model[position] for position in positions.tolist()]
    assert pickle.loads(pickle.dumps(selection)).array().tolist() == model


def base_of(selection):
    while isinstance(selection, Arranged):
        selection = selection.base
    return selection


def test_cuts_and_repetitions_of_an_array_share_its_memory():
    array = np.arange(1000)
    selection = repeated(Selection(array).cut(range(900, 100, -3)), 5).cut(range(7, 1200, 2))
    assert np.shares_memory(base_of(selection).numbers, array)
    assert np.shares_memory(Selection(array).cut(range(10, 20)).array(), array)


def test_a_range_of_any_length_holds_nothing():
    selection = repeated(Selection(range(10**15)), 1000).cut(range(5, 10**17, 3))
    assert len(selection) == -(-(10**17 - 5) // 3)
    assert len(pickle.dumps(selection)) < 300
    assert selection.at(len(selection) - 1) == (5 + 3 * (len(selection) - 1)) % 10**15


def test_more_than_an_int64_counts_is_refused():
    with pytest.raises(OverflowError):
        repeated(Selection(range(2**40)), 2**40)
