"""Random orders: the functions that are written down, for every count; and no less random than a shuffle."""

import math
import pickle
import tracemalloc

import numpy as np
import orders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled

from edcache.dataset.permutation import Permutation, permuted, word, words

COUNTS = st.integers(1, 300) | st.sampled_from([65_535, 65_536, 65_537, 100_003]) | st.integers(1, 2**63 - 1)
KEYS = st.lists(st.integers(-(2**70), 2**70), max_size=3)

# count, key -> the first eight. A later version leaves these as they are.
GOLDEN = {
    (20, (7,)): [2, 10, 4, 3, 14, 19, 16, 17],
    (40, (1, 3)): [29, 0, 12, 38, 37, 20, 24, 35],
    (100_000, (3, 2)): [77136, 16057, 7772, 4784, 21735, 20368, 57941, 58145],
    (10**12, (0,)): [
        *(572955961521, 735205411450, 310094965555, 406048779294),
        *(378880748011, 956860161067, 204032646096, 689233602584),
    ],
}


def whole(count, *key):
    return Permutation(count, *key).take(np.arange(count))


@pytest.mark.parametrize(("count", "key"), GOLDEN)
def test_an_order_stays_for_ever(count, key):
    assert Permutation(count, *key).take(np.arange(8)).tolist() == GOLDEN[count, key]


@settings(max_examples=scaled(300))
@given(COUNTS, KEYS, st.data())
def test_one_and_many_are_what_the_written_functions_give(count, key, data):
    near = st.integers(0, min(count - 1, 4000))
    positions = data.draw(st.lists(near | st.integers(0, count - 1), min_size=1, max_size=20))
    named = orders.word(count, *key)
    if count <= 1 << 20:
        written = orders.permutation(count, named)
        expected = [written[position] for position in positions]
    else:
        expected = [orders.order(position, count, named) for position in positions]
    order = Permutation(count, *key)
    assert [order.at(position) for position in positions] == expected
    assert order.take(np.array(positions)).tolist() == expected
    assert [order.at(position) for position in positions] == expected
    many = np.resize(np.array(positions), 3000)
    assert Permutation(count, *key).take(many)[: len(expected)].tolist() == expected
    pickled = pickle.dumps(order)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).take(np.array(positions)).tolist() == expected


@settings(max_examples=scaled(300))
@given(st.lists(st.tuples(COUNTS.map(lambda n: min(n, 2**52)), KEYS, st.floats(0, 0.999)), max_size=20))
def test_positions_of_orders_of_their_own_are_those_of_each_order(asked):
    positions = [int(count * part) for count, _, part in asked]
    named = [word(count, *key) for count, key, _ in asked]
    counts = [count for count, _, _ in asked]
    expected = [orders.order(*each) for each in zip(positions, counts, named, strict=True)]
    arrays = np.array(positions, np.int64), np.array(counts, np.int64), np.array(named, np.uint64)
    assert permuted(*arrays).tolist() == expected


@given(st.integers(0, 2**64 - 1), st.lists(st.tuples(*[st.integers(0, 2**63 - 1)] * 2), max_size=9))
def test_words_are_those_of_the_written_function(first, numbers):
    columns = np.array(numbers, np.int64).reshape(-1, 2).T
    expected = [orders.derived(first, *pair) for pair in numbers]
    assert words(first, *columns).tolist() == expected
    assert len(set(expected)) == len(set(numbers))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 1000, 65_536, 300_000, 2**20, 2**20 + 1])
def test_every_number_comes_once(count):
    order = whole(count, 3)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))


def computed(count, *key):
    """The order of a few things within an order, as `permuted` has it."""
    every = np.full(count, word(count, *key), np.uint64)
    return permuted(np.arange(count), np.full(count, count), every)


every_way = pytest.mark.parametrize("whole", [whole, computed])


def fits(observed, expected):
    """Whether counts are what chance gives: their chi-square is within five standard deviations."""
    square = ((np.asarray(observed) - expected) ** 2 / expected).sum()
    freedom = np.size(observed) - 1
    return abs(square - freedom) < 5 * math.sqrt(2 * freedom)


@every_way
@pytest.mark.parametrize("count", [9, 50])
def test_each_number_comes_to_each_place_and_beside_each_other_as_often(count, whole):
    rounds = 2000
    drawn = np.array([whole(count, seed) for seed in range(rounds)])
    places = [np.bincount(column, minlength=count) for column in drawn.T]
    assert fits(np.concatenate(places), rounds / count)
    steps = np.bincount(((drawn[:, 1:] - drawn[:, :-1]) % count).ravel(), minlength=count)[1:]
    assert fits(steps, rounds)


def test_an_order_of_a_billion_takes_no_memory():
    tracemalloc.start()
    Permutation(10**9, 1).take(np.arange(10**9 - 4096, 10**9))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
