"""split() and kfold() on real labels, with scikit-learn as the yardstick of balance."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optional import Library
from scale import scaled

from edcache import CachedDataset, CacheWriter
from edcache.dataset.split import apportioned
from edcache.errors import LabelError, OptionError, UnknownLabelError

FASHION = Path("/usr/share/datasets/fashion-mnist/train-labels-idx1-ubyte.gz")
SEEDS = range(3)

sklearn = Library("sklearn.model_selection")


def digits():
    return Library("sklearn.datasets").load_digits().target


def fashion_mnist():
    with gzip.open(FASHION) as file:
        return np.frombuffer(file.read(), np.uint8, offset=8)


SETS = {"digits": digits} | ({"fashion-mnist": fashion_mnist} if FASHION.exists() else {})


@pytest.fixture(scope="module", params=SETS)
def real(request, tmp_path_factory):
    """Real classes; and writers of 1 to 60 samples each, who wrote more of some classes than of others."""
    classes = SETS[request.param]().astype(int)
    random = np.random.default_rng(5)
    order = np.argsort(random.random(len(classes)) + classes % 5 / 5)
    writers = np.empty(len(classes), int)
    writers[order] = np.repeat(np.arange(len(classes)), random.integers(1, 61, len(classes)))[: len(classes)]
    path = tmp_path_factory.mktemp("real") / "real.zip"
    with CacheWriter(path, in_memory_keys=["label", "writer"], chunk_size=10_000) as w:
        pairs = zip(classes.tolist(), writers.tolist(), strict=True)
        w.extend({"label": label, "writer": writer} for label, writer in pairs)
    return CachedDataset.from_cache(path)


def table(parts, classes):
    """How many samples of each class each part has: [parts, classes]."""
    return np.array([np.bincount(classes[part], minlength=classes.max() + 1) for part in parts])


def imbalance(parts, classes, shares):
    """By how much parts miss their shares of the classes: the mean over parts and classes, in samples."""
    counts = table(parts, classes)
    return float(np.abs(counts - np.outer(shares, counts.sum(axis=0))).mean())


def assert_partition(parts, count):
    assert (np.bincount(np.concatenate(parts), minlength=count) == 1).all()
    assert sum(map(len, parts)) == count
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stratified_split_is_as_even_as_that_of_scikit_learn(real, seed, tally):
    labels = real.labels["label"]
    parts = [view.indices for view in real.split(0.8, 0.2, seed=seed, stratify="label")]
    assert_partition(parts, len(real))
    theirs = next(sklearn.StratifiedShuffleSplit(1, test_size=0.2, random_state=seed).split(labels, labels))
    # Theirs may round each share to the nearer side; here it is within two.
    assert imbalance(parts, labels, [0.8, 0.2]) <= imbalance(theirs, labels, [0.8, 0.2]) + 1
    tally("splits of real labels")


@pytest.mark.parametrize(
    "shares", [(0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3), (0.5, 0.25, 0.125, 0.125), (0.999, 0.001)]
)
def test_each_part_has_of_each_class_its_share_within_two(real, shares):
    labels = real.labels["label"]
    parts = [view.indices for view in real.split(*shares, stratify="label")]
    assert_partition(parts, len(real))
    wanted = np.outer(shares, np.bincount(labels))
    assert (np.abs(table(parts, labels) - wanted) < 2).all()
    assert (np.abs([len(part) for part in parts] - len(labels) * np.array(shares)) < 1).all()


@settings(max_examples=scaled(300))
@given(st.lists(st.integers(0, 400), max_size=12), st.lists(st.integers(0, 10**9), min_size=1, max_size=12))
def test_shares_of_classes_are_rounded_down_or_up_from_the_first_class_on(counts, weights):
    if not sum(weights):
        return
    table = apportioned(counts, weights)
    assert [sum(row) for row in table] == counts
    assert all(number >= 0 for row in table for number in row)
    held = np.array([[0] * len(weights), *itertools.accumulate(map(np.array, table))], object)
    ends = np.cumsum([0, *counts]).tolist()
    for row, end in zip(held, ends, strict=True):
        assert all(
            abs(has * sum(weights) - end * weight) < sum(weights)
            for has, weight in zip(row, weights, strict=True)
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_stratified_folds_are_as_even_as_those_of_scikit_learn(real, seed, tally):
    labels = real.labels["label"]
    folds = real.kfold(5, seed=seed, stratify="label")
    tests = [test.indices for _, test in folds]
    assert_partition(tests, len(real))
    for train, test in folds:
        assert (np.bincount([*train.indices, *test.indices], minlength=len(real)) == 1).all()
    splitter = sklearn.StratifiedKFold(5, shuffle=True, random_state=seed)
    theirs = [test for _, test in splitter.split(labels, labels)]
    counts, their_counts = table(tests, labels), table(theirs, labels)
    assert np.ptp(counts, axis=0).max() <= np.ptp(their_counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1
    tally("splits of real labels")


def assert_whole_groups(parts, groups):
    owners = [set(groups[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set().union(*owners))


@pytest.mark.parametrize("n", [2, 5, 10])
def test_folds_of_whole_groups_are_as_even_as_those_of_scikit_learn(real, n, tally):
    writers = real.labels["writer"]
    theirs = [test for _, test in sklearn.GroupKFold(n).split(writers, groups=writers)]
    for seed in (None, *SEEDS):
        tests = [test.indices for _, test in real.kfold(n, seed=seed, group="writer")]
        assert_partition(tests, len(real))
        assert_whole_groups(tests, writers)
        uneven = np.ptp([len(test) for test in tests]) - np.ptp([len(test) for test in theirs])
        # By chance among groups of about one size, it is a part of the largest group that may be missed.
        assert uneven <= (0 if seed is None else 30)
        tally("splits of real labels")


@pytest.mark.full
@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_stratified_folds_of_whole_groups_are_as_even_as_those_of_scikit_learn(real, seed, tally):
    labels, writers = real.labels["label"], real.labels["writer"]
    ours = theirs = 0.0
    for n in (2, 3, 5):
        shares = np.full(n, 1 / n)
        tests = [test.indices for _, test in real.kfold(n, seed=seed, stratify="label", group="writer")]
        assert_partition(tests, len(real))
        assert_whole_groups(tests, writers)
        ours += imbalance(tests, labels, shares) / 3
        folds = sklearn.StratifiedGroupKFold(n).split(labels, labels, writers)
        theirs += imbalance([test for _, test in folds], labels, shares) / 3
        tally("splits of real labels")
    assert ours <= theirs + (0 if seed is None else 1)


@pytest.mark.parametrize("stratify", [None, "label"])
def test_splits_of_whole_groups_are_nearer_to_their_shares_than_scikit_learns(real, stratify, tally):
    labels, writers = real.labels["label"], real.labels["writer"]
    missed, uneven = np.zeros(2), np.zeros(2)
    for seed in SEEDS:
        parts = [view.indices for view in real.split(0.8, 0.2, seed=seed, stratify=stratify, group="writer")]
        assert_partition(parts, len(real))
        assert_whole_groups(parts, writers)
        theirs = next(
            sklearn.GroupShuffleSplit(1, test_size=0.2, random_state=seed).split(labels, labels, writers)
        )
        missed += [abs(len(split[1]) - 0.2 * len(real)) for split in (parts, theirs)]
        uneven += [imbalance(split, labels, [0.8, 0.2]) for split in (parts, theirs)]
        tally("splits of real labels")
    assert missed[0] < missed[1]
    assert stratify is None or uneven[0] < uneven[1]


def test_another_seed_makes_another_split_and_the_same_one_the_same(real):
    for options in ({}, {"stratify": "label"}, {"group": "writer"}, {"stratify": "label", "group": "writer"}):
        first, again, other = (real.split(0.5, 0.5, seed=seed, **options)[0].indices for seed in (1, 1, 2))
        assert first.tolist() == again.tolist()
        assert first.tolist() != other.tolist()
        assert real.kfold(3, seed=1, **options)[0][1].indices.tolist() != first.tolist()


def test_without_a_seed_samples_are_taken_in_order(real):
    n = len(real)
    first, second = real.split(0.25, 0.75, seed=None)
    assert [*first.indices, *second.indices] == list(range(n))
    assert abs(len(first) - n / 4) < 1
    stratified = real.split(0.25, 0.75, seed=None, stratify="label")[0]
    for value in real.labels.unique("label").tolist():
        view = stratified.filter(label=value)
        assert view.indices.tolist() == np.flatnonzero(real.labels["label"] == value)[: len(view)].tolist()
    tests = [test.indices.tolist() for _, test in real.kfold(4, seed=None)]
    assert [index for test in tests for index in test] == list(range(n))


def test_folds_share_one_array(real):
    folds = real.kfold(5)
    arrays = [view.indices for pair in folds for view in pair]
    assert {id(array.base) if array.base is not None else 0 for array in arrays} != {0}
    base = arrays[0].base
    assert all(np.shares_memory(array, base) for array in arrays)
    assert base.nbytes == 16 * len(real)


# --------------------------------------------------------------------------------------- small sets


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Ten samples: y None, 0, 0, 0, 1, 1, 2, ...; g, a group of 1, 2, 3 and 4; box, a list; t, text."""
    path = tmp_path_factory.mktemp("small") / "small.zip"
    with CacheWriter(path, in_memory_keys=["y", "g", "box", "t"]) as w:
        for k, (y, g) in enumerate(zip([None, 0, 0, 0, 1, 1, 2, 2, 2, 2], "abbcccdddd", strict=True)):
            w.append({"y": y, "g": g, "box": [k, k], "t": "xy"[k % 2]})
    return CachedDataset.from_cache(path)


def test_groups_and_classes_may_be_text(small):
    parts = small.split(0.6, 0.4, group="g", stratify="t")
    assert sorted(index for part in parts for index in part.indices.tolist()) == list(range(10))
    assert not set(parts[0].labels["g"]) & set(parts[1].labels["g"])


def test_a_part_of_nothing_is_empty(small):
    for options in ({}, {"stratify": "y"}, {"group": "g"}):
        empty, everything = small.split(0.0, 1.0, **options)
        assert (len(empty), len(everything)) == (0, 10)
    assert [len(part) for part in small[:0].split(0.5, 0.5, stratify="y", group="g")] == [0, 0]
    assert [len(part) for part in small[:0].split(0, 0)] == [0, 0]


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (
            (0.8, 0.1),
            "split(0.8, 0.1): the sum of the fractions is 0.9; give fractions whose sum is 1",
        ),
        ((5, 4), "split(5, 4): these are 9 samples, but the dataset has 10; give counts with that sum"),
        ((-0.5, 1.5), "split(-0.5, 1.5): a part cannot be negative or infinite; give fractions or counts"),
        (
            (float("nan"), 1.0),
            "split(nan, 1.0): a part cannot be negative or infinite; give fractions or counts",
        ),
        (("0.8", 0.2), "split() takes fractions or counts, not '0.8', 0.2"),
        ((), "split() needs the sizes of the parts: fractions, split(0.8, 0.2), or counts of samples"),
    ],
)
def test_parts_that_are_not_everything_are_refused(small, parts, text):
    with pytest.raises(OptionError) as caught:
        small.split(*parts)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ds: ds.kfold(1), "n=1; give an integer of 2 or more"),
        (lambda ds: ds.kfold(2.0), "n=2.0; give an integer of 2 or more"),
        (lambda ds: ds.kfold(11), "kfold(11): there are 10 samples; give at most as many folds"),
        (
            lambda ds: ds.kfold(5, group="g"),
            'kfold(5): there are 4 groups of "g"; give at most as many folds',
        ),
        (lambda ds: ds.split(0.5, 0.5, seed=-1), "seed=-1; give an integer of 0 or more"),
        (lambda ds: ds.kfold(2, seed=0.5), "seed=0.5; give an integer of 0 or more"),
    ],
)
def test_impossible_folds_and_seeds_are_refused(small, call, text):
    with pytest.raises(OptionError) as caught:
        call(small)
    assert str(caught.value) == text


def test_wrong_columns_are_named(small):
    with pytest.raises(UnknownLabelError, match='no label "nope"; this archive has: y, g, box, t'):
        small.split(0.5, 0.5, stratify="nope")
    with pytest.raises(LabelError) as caught:
        small.kfold(2, group="box")
    assert str(caught.value) == 'label "box" is list<item: int64>; kfold() needs a column of single values'
