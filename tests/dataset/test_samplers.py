"""edcache.samplers: what each draws, and that all of them share epochs, ranks and a way to resume."""

import inspect
import itertools
import json
import math
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import archives
import numpy as np
import orders
import pytest
import torch
from filled import available
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled, seeded
from torch.utils.data import BatchSampler, DataLoader
from written import written

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.dataset.epoch import EpochSampler
from edcache.dataset.indexing import Readable, reading_of
from edcache.dataset.root import Reading, SampleRoot
from edcache.dataset.samplers import chunk_size, chunks_of
from edcache.errors import OptionError, UnknownLabelError
from edcache.samplers import Balanced, ByLength, ByShape, ChunkShuffle, Shuffle, Weighted

COUNT = 203


class Chunked(SampleRoot):
    """Archive of samples in order, in chunks of one size."""

    def __init__(self, length, chunk):
        self.ranges = [range(length)]
        index = SimpleNamespace(chunk_size=lambda chunks: chunk)
        session = SimpleNamespace(index=index, chunks=0, head=SimpleNamespace(uuid=b""))
        self.archives = [SimpleNamespace(session=session, options=SimpleNamespace(local=None))]

    @property
    def readers(self):
        return self.archives


class Labelled(Readable):
    """What a sampler needs of a dataset, and of an archive: samples in order, in chunks of 10."""

    labels = None

    def __init__(self, length, chunk=10, **labels):
        self.labels, self._reading = labels, Reading(Chunked(length, chunk))


def some(length):
    numbers = np.arange(length)
    return Labelled(
        length, label=numbers % 7 % 5, weight=numbers % 4, n_tokens=(numbers * 7919 % 97) * (numbers % 3) + 1
    )


MAKE = {
    "Shuffle": Shuffle,
    "Balanced": lambda ds, **o: Balanced(ds, "label", **o),
    "Weighted": lambda ds, **o: Weighted(ds, "weight", **o),
    "ByLength": lambda ds, **o: ByLength(ds, "n_tokens", 8, **o),
    "ByTokens": lambda ds, **o: ByLength(ds, "n_tokens", max_tokens=400, **o),
    "ByShape": lambda ds, **o: ByShape(ds, "label", 8, **o),
    "ChunkShuffle": lambda ds, **o: ChunkShuffle(ds, 3, **o),
}
every_sampler = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """200 samples in chunks of 16; label, weight and length of each are labels, and missing for a few."""
    path = tmp_path_factory.mktemp("samplers") / "a.zip"
    with CacheWriter(path, in_memory_keys=["label", "weight", "n_tokens"], chunk_size=16) as w:
        for k in range(COUNT):
            label = None if k % 50 == 0 else f"c{k % 7 % 3}"
            w.append({"x": torch.tensor([k]), "label": label, "weight": float(k % 4), "n_tokens": k * k % 97})
    return path


@pytest.fixture
def ds(archive):
    return CachedDataset.from_cache(archive)


def flat(drawn):
    return [
        position for item in drawn for position in (item if isinstance(item, (list, np.ndarray)) else [item])
    ]


# --- what all of them promise ------------------------------------------------------------------------


@every_sampler
def test_an_epoch_is_as_long_as_said_and_of_positions(make, ds):
    for dataset in (ds, ds[20:90], ds.filter("n_tokens > 30"), ds[::-1]):
        sampler = make(dataset)
        drawn = list(sampler)
        assert len(drawn) == len(sampler) > 0
        assert {type(position) for position in flat(drawn)} == {int}
        assert set(flat(drawn)) <= set(range(len(dataset)))


@pytest.mark.parametrize("name", MAKE)
def test_an_order_is_the_same_on_every_platform_with_every_numpy(name):
    """Written down once: a state that is loaded elsewhere goes on in this order."""
    golden = json.loads(Path(__file__).with_name("golden_orders.json").read_text())[name]
    assert len(golden) == 2
    sampler = MAKE[name](some(40), seed=1)
    for epoch, order in golden.items():
        sampler.set_epoch(int(epoch))
        assert list(sampler) == order


# Arguments of each beside the dataset, and another value of each option. tests/dataset/test_mixture.py has Mixture.
ARGUMENTS = {
    "Balanced": ["label"],
    "Weighted": ["weight"],
    "ByLength": ["n_tokens", 8],
    "ByShape": ["label", 8],
}
OTHER = {"num_samples": 90, "bucket": 2.0, "max_tokens": 200, "batch_size": 5, "buffer": 3, "lanes": 5}
INSTEAD = {"max_tokens": {"batch_size": None}}


@pytest.mark.parametrize("name", sorted({*edcache.samplers.__all__} - {"Mixture"}))
def test_a_state_of_another_order_is_refused_whichever_option_differs(name):
    kind, arguments = getattr(edcache.samplers, name), ARGUMENTS.get(name, [])
    shared = inspect.signature(EpochSampler.__init__).parameters
    own = [*inspect.signature(kind).parameters.values()][1:]
    first = kind(some(COUNT), *arguments)
    for option in own:
        if option.name in shared or option.default is option.empty:
            continue
        assert option.name in OTHER, f"give OTHER a value of {option.name} that makes another order"
        given = dict(zip([one.name for one in own], arguments, strict=False)) | INSTEAD.get(option.name, {})
        other = kind(some(COUNT), **given | {option.name: OTHER[option.name]})
        with pytest.raises(OptionError):
            other.load_state_dict(first.state_dict())
        assert list(other) != list(first), option.name


@every_sampler
def test_seed_and_epoch_alone_determine_the_order(make):
    one, other = make(some(COUNT), seed=3), make(some(COUNT), seed=3)
    epochs = [list(one) for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    for epoch in (2, 0, 1, 1):
        other.set_epoch(epoch)
        assert list(other) == epochs[epoch]
    assert list(make(some(COUNT), seed=4)) != epochs[0]
    for seed in (-1, 1 << 70):
        assert len(list(make(some(COUNT), seed=seed))) == len(epochs[0])


@every_sampler
def test_an_abandoned_epoch_begins_where_it_began(make):
    sampler = make(some(COUNT))
    for place, _ in enumerate(sampler):
        if place == 5:
            break
    whole = list(make(some(COUNT)))
    assert list(sampler) == whole
    sampler.load_state_dict(make(some(COUNT)).state_dict(3, batch_size=1))
    assert list(itertools.islice(sampler, 2)) == whole[3:5]
    # A look at the first batch does not lose the place that was loaded.
    assert list(itertools.islice(sampler, 2)) == whole[3:5]
    assert list(sampler) == whole[3:]
    assert list(sampler) != whole[3:]


@every_sampler
def test_nothing_is_drawn_of_an_empty_dataset(make):
    sampler = make(some(0))
    assert (len(sampler), list(sampler), list(sampler)) == (0, [], [])
    assert list(make(some(0), num_replicas=3, rank=1)) == []


@every_sampler
def test_a_state_taken_anywhere_continues_exactly(make, tally):
    ds = some(41)
    sampler = make(ds, seed=9)
    epochs = [list(sampler) for _ in range(3)]
    for taken in range(len(epochs[1]) + 1):
        sampler = make(ds, seed=9)
        list(sampler)
        state, iterator = sampler.state_dict(), iter(sampler)
        for _ in range(taken):
            next(iterator)
            state = sampler.state_dict()
        for is_set in (False, True):
            other = make(ds)
            other.load_state_dict(json.loads(json.dumps(state)))
            if is_set:
                other.set_epoch(state["epoch"])
            assert other.state_dict() == state
            found = list(other)
            if taken == 0 and is_set:
                assert found == []
                found = list(other)
            elif taken == len(epochs[1]) and is_set:
                assert found == []
            elif taken == len(epochs[1]):
                assert found == epochs[2]
                continue
            assert found == epochs[1][taken:]
            assert list(other) == epochs[2]
        tally("states of samplers resumed")


def test_another_epoch_than_that_of_a_loaded_state_begins_at_its_beginning():
    sampler, fresh = Balanced(some(40), "label"), Balanced(some(40), "label")
    list(itertools.islice(fresh, 9))
    sampler.load_state_dict(fresh.state_dict())
    sampler.set_epoch(1)
    fresh.set_epoch(1)
    assert sampler.state_dict() == fresh.state_dict()
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["consumed"]) == (1, 0)
    assert list(sampler) == list(fresh)


@every_sampler
def test_an_iterator_that_is_never_used_takes_nothing(make):
    """As loaders do: they make two iterators, and use the second."""
    sampler = make(some(40))
    epochs = [list(sampler), list(sampler)]
    for taken in (0, 2, len(epochs[0])):
        sampler = make(some(40))
        state = sampler.state_dict() | {"consumed": sampler.state_dict(taken, batch_size=1)["consumed"]}
        sampler = make(some(40))
        sampler.load_state_dict(state)
        unused, used = iter(sampler), iter(sampler)
        expected = epochs[0][taken:] or epochs[1]
        assert list(used) == expected
        del unused


def test_batches_where_a_data_loader_takes_positions_are_refused(ds):
    for sampler in (ByLength(ds, np.arange(len(ds)), 8), Shuffle(ds, global_batch_size=8)):
        with pytest.raises(OptionError, match="this sampler gives batches; pass it as batch_sampler="):
            next(iter(DataLoader(ds, 2, sampler=sampler)))


@every_sampler
def test_a_seed_is_an_integer(make):
    with pytest.raises(OptionError, match=r"^seed=None; give an integer$"):
        make(some(40), seed=None)
    assert list(make(some(40), seed=np.int64(3))) == list(make(some(40), seed=3))


def test_what_a_dataset_lacks_is_named():
    with pytest.raises(OptionError) as caught:
        Balanced([1, 2, 3], "label")
    assert str(caught.value) == "list has no labels; give an array, one value for each sample"
    assert sorted(Balanced([1, 2, 3], [0, 1, 2])) == [0, 1, 2]
    with pytest.raises(OptionError, match=r"^list has no chunks; give a cache, or a view of one$"):
        ChunkShuffle([1, 2, 3])


def test_samples_without_a_number_can_be_filtered_out(tmp_path):
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["n", "w"]) as w:
        for k in range(20):
            w.append({"n": k if k % 4 else None, "w": k / 2 if k % 4 else None})
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    for make in (lambda ds: ByLength(ds, "n", 4), lambda ds: Weighted(ds, "w"), lambda ds: Weighted(ds, "n")):
        with pytest.raises(OptionError, match=r"sample 0 has no value; filter\(\) such samples out"):
            make(ds)
    view = ds[np.arange(20) % 4 > 0]
    assert sorted(flat(ByLength(view, "n", 4))) == list(range(15))
    assert len(list(Weighted(view, "w"))) == len(list(Weighted(view, "n"))) == 15
    assert list(ByLength(view[:0], "n", 4)) == list(Weighted(view[:0], "n")) == []


@every_sampler
def test_draws_that_are_kept_are_those_of_seed_and_epoch(make):
    """Asked for in turns: of two epochs, of two seeds, and after a state."""
    expected = {}
    for seed, epoch in itertools.product((1, 2), (0, 5)):
        fresh = make(some(COUNT), seed=seed)
        fresh.set_epoch(epoch)
        expected[seed, epoch] = flat(fresh)
    sampler, other = make(some(COUNT), seed=1), make(some(COUNT), seed=2)
    for seed in (1, 2, 1):
        for epoch in (0, 5, 0, 0):
            found = [sampler.which(step, epoch=epoch).tolist() for step in range(len(sampler))]
            assert flat(found) == expected[seed, epoch]
        sampler.load_state_dict((other if seed == 1 else make(some(COUNT), seed=1)).state_dict())


@every_sampler
def test_it_says_what_it_is(make):
    sampler = make(some(COUNT), num_replicas=2, rank=1)
    name = type(sampler).__name__
    assert repr(sampler) == f"{name}({len(sampler)} an epoch, epoch 0, rank 1 of 2)"
    assert repr(make(some(COUNT))).endswith(" an epoch, epoch 0)")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_replicas": 2}, "num_replicas=2 and rank=None; give both, or none"),
        ({"rank": 0}, "num_replicas=None and rank=0; give both, or none"),
        ({"num_replicas": 0, "rank": 0}, "num_replicas=0; give an integer of 1 or more"),
        ({"num_replicas": 2, "rank": 2}, "rank=2 of 2; give 0 to 1"),
        ({"num_replicas": 2, "rank": -1}, "rank=-1 of 2; give 0 to 1"),
        ({"uneven": "pad"}, 'uneven=\'pad\'; give "repeat", "drop" or "allow"'),
    ],
)
@every_sampler
def test_wrong_ranks_are_refused(make, options, text):
    with pytest.raises(OptionError) as caught:
        make(some(40), **options)
    assert str(caught.value) == text


@pytest.mark.parametrize("workers", [0, 2])
@every_sampler
def test_a_data_loader_reads_what_is_drawn(make, ds, workers):
    expected = list(make(ds))
    if isinstance(expected[0], list):
        loader = DataLoader(ds.select("x"), batch_sampler=make(ds), num_workers=workers)
    else:
        loader = DataLoader(ds.select("x"), 8, sampler=make(ds), num_workers=workers)
        expected = list(BatchSampler(expected, 8, False))
    assert [batch["x"].flatten().tolist() for batch in loader] == expected


# --- Balanced -----------------------------------------------------------------------------------------

CLASSES = {
    "int": lambda k: k % 3,
    "int8": lambda k: np.int8(-128 if k % 3 else 127),
    "wide": lambda k: (k % 3) << 40,
    "float": lambda k: [1.5, -2.0][k % 2] if k % 5 else math.nan,
    "text": lambda k: "ab"[k % 2] if k % 5 else None,
    "bool": lambda k: k % 4 == 0,
    "nullable bool": lambda k: k % 4 == 0 if k % 5 else None,
    "time": lambda k: np.datetime64(k % 3, "s") if k % 5 else np.datetime64("NaT"),
    "one": lambda k: 7,
    "each its own": lambda k: k,
}


@pytest.mark.parametrize("of", CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize("num_samples", [None, 1, 10, 97])
def test_balanced_draws_classes_equally_often_and_permutations_of_each(of, num_samples, tally):
    classes = [of(k) for k in range(60)]
    values = np.array(classes, object) if None in classes else np.array(classes)
    members = {}
    for position, value in enumerate(values.tolist()):
        if value is not None and value == value:
            members.setdefault(value, []).append(position)
    whose = {position: value for value, positions in members.items() for position in positions}
    sampler = Balanced(Labelled(60, y=values), "y", num_samples)
    assert len(sampler) == (num_samples or len(whose))
    for drawn in (list(sampler), list(sampler)):
        assert len(drawn) == len(sampler)
        for begin in range(0, len(drawn), len(members)):
            group = [whose[position] for position in drawn[begin : begin + len(members)]]
            assert len(set(group)) == len(group)
        for value, positions in members.items():
            sequence = [position for position in drawn if whose[position] == value]
            for begin in range(0, len(sequence), len(positions)):
                cycle = sequence[begin : begin + len(positions)]
                assert len(set(cycle)) == len(cycle)
        tally("balanced epochs")


def test_balanced_takes_an_array_and_any_place_of_a_view(ds):
    view = ds[100:]
    of_array = Balanced(view, np.array([k % 2 for k in range(len(view))]))
    assert sorted(Counter(k % 2 for k in of_array).values()) == [51, 52]
    drawn = [view[k]["label"] for k in Balanced(view, "label", 300)]
    assert Counter(drawn) == {"c0": 100, "c1": 100, "c2": 100}


def test_balanced_draws_every_class_and_every_sample_with_the_same_chance():
    first, last = Counter(), Counter()
    sampler = Balanced(Labelled(6, y=np.array([0, 0, 0, 1, 1, 2])), "y", 2)
    rounds = scaled(6000)
    for epoch in range(rounds):
        drawn = sampler.which(0, batch_size=2, epoch=epoch).tolist()
        first[drawn[0]] += 1
        last[drawn[1]] += 1
    for counted in (first, last):
        expected = [rounds / 9] * 3 + [rounds / 6] * 2 + [rounds / 3]
        assert chi_square(counted, dict(enumerate(expected))) < 30


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("y", 0), "num_samples=0; give an integer of 1 or more"),
        (("none", 5), "num_samples=5, and no sample has a class to draw from"),
        (("mixed",), r"values such as 1: .*; give single values of one type"),
        (("lists",), r"values such as <list>; give single values of one type"),
        (([1, 2],), r"an array of shape \[2\] for 4 samples; give one value for each sample"),
        (("pairs",), r'label "pairs" of shape \[4, 2\] for 4 samples; give one value for each sample'),
    ],
)
def test_balanced_refuses(arguments, text):
    lists = np.empty(4, object)
    lists[:] = [[1], [2], [1], [2]]
    ds = Labelled(
        4,
        y=np.arange(4),
        none=np.array([None] * 4),
        lists=lists,
        pairs=np.zeros((4, 2)),
        mixed=np.array([1, "a", 2, "a"], object),
    )
    with pytest.raises(OptionError, match=f"^{text}$"):
        Balanced(ds, *arguments)


def test_a_label_that_is_not_there_is_named(ds):
    with pytest.raises(UnknownLabelError, match='no label "lable"; this archive has: label, weight'):
        Balanced(ds, "lable")


# --- Weighted -----------------------------------------------------------------------------------------


def chi_square(counted, expected):
    assert set(counted) <= set(expected)
    return sum((counted.get(key, 0) - mean) ** 2 / mean for key, mean in expected.items())


def test_weighted_draws_in_proportion_to_the_weights():
    weights = np.array([0, 1, 2, 3, 0, 0.5, 10, 0])
    number = scaled(40_000)
    for given_as in (weights, weights.tolist(), torch.tensor(weights)):
        drawn = list(Weighted(Labelled(8), given_as, number))
        expected = {k: number * w / weights.sum() for k, w in enumerate(weights) if w}
        assert chi_square(Counter(drawn), expected) < 30
        pairs = Counter(zip(drawn[::2], drawn[1::2], strict=True))
        products = itertools.product(expected, expected)
        assert chi_square(pairs, {(a, b): expected[a] * expected[b] / number / 2 for a, b in products}) < 60


def test_weights_of_any_size_are_drawn_by():
    for factor in (1e-300, 1e300 / 7):
        drawn = Counter(Weighted(Labelled(3), np.array([1, 0, 3]) * factor, 4000))
        assert chi_square(drawn, {0: 1000, 2: 3000}) < 20
    assert set(Weighted(Labelled(2), [1e-300, 1.0], 1000)) == {1}
    assert list(Weighted(Labelled(3), [True, False, False])) == [0, 0, 0]


FINITE = "; give finite ones of 0 or more, some above 0"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1, -1, 2],), f"weights from -1.0 up that sum to 2.0{FINITE}"),
        (([1, 1, math.inf],), f"weights from 0.0 up that sum to inf{FINITE}"),
        (([0, 0, 0],), f"weights from 0.0 up that sum to 0.0{FINITE}"),
        (([1e308, 1e308, 1],), f"weights from 0.0 up that sum to inf{FINITE}"),
        (([0, 5e-324, 0],), f"weights from 0.0 up that sum to 5e-324{FINITE}"),
        ((["a", "b", "c"],), "an array of <U1; give numbers"),
        ((["a", None, "c"],), None),
        (
            ([1, math.nan, 1],),
            "an array: sample 1 has no value; filter() such samples out, or give an array",
        ),
        (("w",), 'label "w": sample 2 has no value; filter() such samples out, or give an array'),
        (([1, 0, 2], 0), "num_samples=0; give an integer of 1 or more"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_weighted_refuses(arguments, text):
    with pytest.raises(OptionError) as caught:
        Weighted(Labelled(3, w=np.array([1, 2, None])), *arguments)
    assert text in (None, str(caught.value))


# --- ByLength -----------------------------------------------------------------------------------------


def padding(batches, lengths):
    """The share of padding in what the batches hold."""
    padded = sum(max(lengths[k] for k in batch) * len(batch) for batch in batches)
    return 1 - sum(lengths[k] for batch in batches for k in batch) / padded


@settings(max_examples=scaled(60))
@given(
    st.lists(st.integers(0, 60), max_size=80),
    st.integers(1, 12),
    st.integers(60, 300),
    st.floats(1, 4),
)
def test_by_length_every_sample_is_in_one_batch_of_the_size(lengths, size, most, bucket):
    ds = Labelled(len(lengths), n=np.array(lengths, np.int64))
    by_size = list(ByLength(ds, "n", size, bucket=bucket))
    whole, rest = divmod(len(lengths), size)
    sizes = [size] * whole + ([rest] if rest else [])
    assert sorted(map(len, by_size), reverse=True) == sizes
    full = list(ByLength(ds, "n", global_batch_size=size, bucket=bucket, uneven="drop"))
    assert [len(batch) for batch in full] == [size] * whole
    by_tokens = list(ByLength(ds, "n", max_tokens=most, bucket=bucket))
    assert all(max(lengths[k] for k in batch) * len(batch) <= most for batch in by_tokens)
    for batches in (by_size, by_tokens):
        assert sorted(flat(batches)) == list(range(len(lengths)))


LENGTHS = np.minimum(np.random.default_rng(0).lognormal(5, 1, 5000), 4000).astype(np.int64) + 1


@pytest.mark.parametrize(("bucket", "most"), [(1.0, 0.035), (1.1, 0.06), (1.3, 0.13)])
def test_by_length_a_bucket_bounds_the_padding(bucket, most):
    ds = Labelled(5000, n=LENGTHS)
    batches = list(ByLength(ds, "n", 16, bucket=bucket))
    rng = np.random.default_rng(1)
    at_random = rng.permutation(4992).reshape(-1, 16).tolist()
    assert padding(at_random, LENGTHS) > 0.6
    assert padding(batches, LENGTHS) < most
    assert padding(ByLength(ds, "n", max_tokens=8192, bucket=bucket), LENGTHS) < most


def test_by_length_batches_are_full_of_tokens():
    sampler = ByLength(Labelled(5000, n=LENGTHS), "n", max_tokens=8192)
    padded = [max(LENGTHS[batch]) * len(batch) for batch in sampler]
    assert np.mean(padded) > 0.8 * 8192
    assert len(sampler) == len(padded) == len(list(sampler))


def test_by_length_others_meet_every_epoch_and_long_batches_come_anywhere():
    sampler = ByLength(Labelled(5000, n=LENGTHS), "n", 16)
    first, second = ([frozenset(batch) for batch in sampler] for _ in range(2))
    assert len(set(first) & set(second)) < 0.1 * len(first)
    longest = [max(LENGTHS[sorted(batch)]) for batch in first]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.2


def test_by_length_tells_frameworks_that_it_is_its_own_sampler():
    sampler = ByLength(some(40), "n_tokens", 4)
    assert sampler.sampler is sampler


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "give either batch_size, max_tokens or global_batch_size"),
        ({"batch_size": 2, "max_tokens": 9}, "give either batch_size, max_tokens or global_batch_size"),
        ({"batch_size": 0}, "batch_size=0; give an integer of 1 or more"),
        ({"max_tokens": 0}, "max_tokens=0; give an integer of 1 or more"),
        ({"batch_size": 2, "bucket": 0.9}, "bucket=0.9; give 1 or more"),
        ({"batch_size": 2, "bucket": math.nan}, "bucket=nan; give 1 or more"),
        ({"max_tokens": 6}, "sample 2 has length 7, max_tokens=6; filter() such samples out"),
        (
            {"batch_size": 2, "lengths": [1, -2, 3]},
            "sample 1 has length -2; filter() such samples out",
        ),
        ({"batch_size": 2, "lengths": [1.5, 2, 3]}, "lengths of float64; give integers"),
    ],
)
def test_by_length_refuses(options, text):
    with pytest.raises(OptionError) as caught:
        ByLength(Labelled(3, n=np.array([1, 5, 7])), **{"lengths": "n", **options})
    assert str(caught.value) == text


# --- ByShape ------------------------------------------------------------------------------------------


@settings(max_examples=scaled(60))
@given(
    st.lists(st.sampled_from(["1x2", "2x1", "3x3", None]), max_size=60), st.integers(1, 9), st.integers(1, 3)
)
def test_by_shape_every_batch_has_one_shape(shapes, size, ranks):
    ds = Labelled(len(shapes), shape=np.array(shapes, object))
    counts = Counter(shape for shape in shapes if shape is not None)
    batches = list(ByShape(ds, "shape", size))
    assert all(len({shapes[k] for k in batch}) == 1 for batch in batches)
    assert sorted(flat(batches)) == [k for k, shape in enumerate(shapes) if shape is not None]
    assert len(batches) == sum(-(-count // size) for count in counts.values())

    size *= ranks
    shares = [
        list(ByShape(ds, "shape", global_batch_size=size, num_replicas=ranks, rank=k)) for k in range(ranks)
    ]
    steps = [flat(step) for step in zip(*shares, strict=True)]
    assert all(len(step) == len(set(step)) == size for step in steps)
    assert all(len({shapes[k] for k in step}) == 1 for step in steps)
    assert len(steps) == sum(count // size for count in counts.values())


def test_by_shape_others_meet_in_every_epoch_and_others_are_left_out():
    ds = Labelled(400, shape=np.arange(400) % 3)
    sampler = ByShape(ds, "shape", global_batch_size=32)
    first, second = ([frozenset(batch) for batch in sampler] for _ in range(2))
    assert not set(first) & set(second)
    assert frozenset().union(*first) != frozenset().union(*second)
    assert [min(step) % 3 for step in first] != sorted(min(step) % 3 for step in first)


@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "global_batch_size": 2}])
def test_by_shape_refuses_none_or_two_sizes(options):
    with pytest.raises(OptionError, match="^give either batch_size or global_batch_size$"):
        ByShape(some(9), "label", **options)


@pytest.mark.parametrize("name", ["batch_size", "global_batch_size"])
def test_by_shape_names_the_size_that_is_wrong(name):
    with pytest.raises(OptionError, match=f"^{name}=0; give an integer of 1 or more$"):
        ByShape(some(9), "label", **{name: 0})


# --- ChunkShuffle -------------------------------------------------------------------------------------


def test_samples_of_one_chunk_lie_together_in_the_file(tmp_path, tally):
    rng = seeded("chunk_of")
    for number in range(scaled(25)):
        path = tmp_path / f"{number}.zip"
        model = archives.make(path, rng)
        ds = CachedDataset.from_cache(path, allow_partial=True)
        numbers = chunks_of(reading_of(ds), np.arange(model.length))
        held = sorted(model.versions, key=lambda k: model.versions[k][-1].record)
        assert np.all(np.diff(numbers[held]) >= 0)
        assert (numbers < 0).sum() == model.length - len(held)
        assert numbers.max(initial=0) < max(1, ds._archive.reader.session.chunks)
        assert chunks_of(reading_of(ds), np.arange(model.length)[::-3]).tolist() == numbers[::-3].tolist()
        assert chunks_of(reading_of(ds), np.arange(0)).tolist() == []
        tally("archives whose chunks were named")


@settings(max_examples=scaled(300))
@given(
    *(st.integers(1, most) for most in (300, 70, 40, 12)),
    st.integers(0, 2**70),
    st.integers(0, 9),
    st.data(),
)
def test_chunk_shuffle_draws_what_the_written_function_gives(count, size, buffer, lanes, seed, epoch, data):
    sampler = ChunkShuffle(Labelled(count, chunk=size), buffer, seed, lanes=lanes)
    expected = orders.chunk_shuffled(count, size, buffer, lanes, seed, epoch)
    assert sorted(expected) == list(range(count))
    assert sampler.which(0, batch_size=count, epoch=epoch).tolist() == expected
    for k in data.draw(st.lists(st.integers(0, count - 1), min_size=1)):
        assert sampler.which(k, epoch=epoch).tolist() == [expected[k]]


def test_chunk_shuffle_draws_every_sample_once_from_few_chunks_at_a_time(ds):
    assert size_of_chunks(ds) == 16
    some = ds[np.array([5, 5, 90, 91, 17, 180])]
    for dataset, each in (ds, 16), (ds[::-1], 16), (ds[::3], 6), (ds[7:150], 16), (some, 2):
        by_chunk = (
            np.argsort(dataset.indices // 16, kind="stable") if dataset is some else np.arange(len(dataset))
        )
        for buffer in (1, 3, 100):
            drawn = list(ChunkShuffle(dataset, buffer, lanes=1))
            assert sorted(drawn) == list(range(len(dataset)))
            place = np.argsort(drawn)
            for start in range(0, len(dataset), each):
                assert np.ptp(place[by_chunk[start : start + each]]) < (2 * buffer + 1) * each


def test_an_epoch_of_chunk_shuffle_over_a_billion_samples_begins_at_once():
    began = time.process_time()
    tracemalloc.start()
    try:
        sampler = ChunkShuffle(Labelled(10**9, chunk=4_000), num_replicas=8, rank=3)
        drawn = list(itertools.islice(sampler, 100_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(set(drawn)) == 100_000
    assert len({k // 4_000 for k in drawn}) <= 300
    assert peak < 10 * 10**6
    assert time.process_time() - began < 5


def size_of_chunks(ds):
    return chunk_size(reading_of(ds).root)


def written_as(write, count, tmp_path, **options):
    with CacheWriter(tmp_path / f"{len(list(tmp_path.iterdir()))}.zip", **options) as w:
        for k in write:
            w.write(k, {"x": torch.tensor([k])})
    ds = CachedDataset.from_cache(w.path)
    assert len(ds) == count
    return ds


def test_runs_are_taken_for_chunks_where_samples_lie_in_order_and_only_there(tmp_path):
    in_order = written_as(range(100), 100, tmp_path, chunk_size=16)
    assert size_of_chunks(in_order) == 15
    mixed = np.random.default_rng(0).permutation(1000).tolist()
    claims = [block + worker + 4 * k for block in range(0, 60, 12) for worker in range(4) for k in range(3)]
    by_four_workers = [16 * claim + k for claim in claims for k in range(16)]
    for places, size in ((mixed, 50), (by_four_workers, 48)):
        ds = written_as(places, len(places), tmp_path, chunk_size=size)
        assert size_of_chunks(ds) is None
        drawn = list(ChunkShuffle(ds, 1, lanes=1))
        assert sorted(drawn) == list(range(len(places)))
        # Of each chunk one after the other, but where one or two windows have the end of one and the next.
        numbers = chunks_of(reading_of(ds), np.array(drawn))
        changes = np.flatnonzero(np.diff(numbers))
        assert len(np.unique(changes // size)) <= 2 * len(set(numbers.tolist()))
        assert [np.ptp(np.flatnonzero(numbers == k)) < 3 * size for k in set(numbers.tolist())]
    assert size_of_chunks(written_as([0, 2, 3], 4, tmp_path)) is None


def test_slices_and_concatenations_of_archives_in_order_have_runs_too(tmp_path, tally):
    rng = seeded("runs of views")
    archives = [written_as(range(n), n, tmp_path, chunk_size=7) for n in (50, 1, 33)]
    for _ in range(scaled(60)):
        parts = [archives[rng.randrange(3)] for _ in range(rng.randint(1, 4))]
        steps = [rng.choice([1, 1, 1, 2, 5, -1, -3]) for _ in range(len(parts) + 1)]
        parts = [
            part[rng.randrange(9) :: step] if step > 0 else part[::step]
            for part, step in zip(parts, steps, strict=False)
        ]
        ds = edcache.concat(parts)
        whole = ds[:: steps[-1]]
        sampler = ChunkShuffle(whole, 1, lanes=1)
        drawn = list(sampler)
        assert sorted(drawn) == list(range(len(whole)))
        assert sampler._positions.numbers == range(len(whole)), "each position was listed"
        touched = sum(len(set((part.indices // 7).tolist())) for part in parts)
        assert size_of_chunks(ds) <= 7
        assert len(ds) / size_of_chunks(ds) <= touched + len(parts)
        tally("views of concatenations with runs")


def test_chunk_shuffle_wants_records(tmp_path):
    ds = written(tmp_path / "a.zip", [{"x": 1}, {"x": 1}], indices=[1, 4])
    with pytest.raises(OptionError) as caught:
        ChunkShuffle(ds)
    assert str(caught.value) == "3 of 5 samples have no record, and so no chunk; leave out ds.missing"
    assert sorted(ChunkShuffle(available(ds))) == [0, 1]
    with pytest.raises(OptionError, match=r"^buffer=0; give an integer of 1 or more$"):
        ChunkShuffle(available(ds), 0)


def test_chunk_shuffle_reads_a_growing_archive_as_it_was(tmp_path):
    w = CacheWriter(tmp_path / "a.zip", chunk_size=4)
    for k in range(20):
        w.append({"x": k})
    w.flush()
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    sampler = ChunkShuffle(ds, 1, lanes=1)
    w.close()
    drawn = list(sampler)
    assert sorted(drawn) == list(range(20))
    assert all(np.ptp([drawn.index(4 * chunk + k) for k in range(4)]) < 12 for chunk in range(5))


# --- ds.loader() --------------------------------------------------------------------------------------


def loader_of(make, ds, **options):
    sampler = make(ds, seed=2, **options)
    size = None if isinstance(sampler, (ByLength, ByShape)) else 8
    return ds.select("x").loader(size, sampler=sampler)


def read(batches):
    return [batch["x"].flatten().tolist() for batch in batches]


@every_sampler
def test_the_loader_reads_what_is_drawn_epoch_after_epoch(make, ds):
    loader, sampler = loader_of(make, ds), make(ds, seed=2)
    for _ in range(3):
        drawn = list(sampler)
        expected = drawn if isinstance(drawn[0], list) else list(BatchSampler(drawn, 8, False))
        assert len(loader) == len(expected)
        assert read(loader) == expected


@every_sampler
def test_the_loaders_own_state_resumes_amid_an_epoch(make, ds, tally):
    loader = loader_of(make, ds)
    epochs = [read(loader) for _ in range(3)]
    for taken in (1, 4, len(epochs[1])):
        loader = loader_of(make, ds)
        loader.set_epoch(1)
        iterator = iter(loader)
        assert read(itertools.islice(iterator, taken)) == epochs[1][:taken]
        state = json.loads(json.dumps(loader.state_dict()))
        iterator.close()
        other = loader_of(make, ds)
        other.load_state_dict(state)
        other.set_epoch(1)
        assert read(other) == epochs[1][taken:]
        assert read(other) == epochs[2]
        tally("states of loaders with samplers resumed")


@every_sampler
def test_the_loader_follows_a_sampler_that_is_told_of_an_epoch(make, ds):
    sampler = make(ds)
    loader = ds.select("x").loader(None if isinstance(sampler, (ByLength, ByShape)) else 8, sampler=sampler)
    sampler.set_epoch(5)
    fifth = read(loader)
    loader.set_epoch(5)
    assert read(loader) == fifth
    sixth, alone = read(loader), make(ds)
    alone.set_epoch(6)
    assert flat(sixth) == flat(alone) != flat(fifth)


def test_the_loader_takes_batches_of_torchs_batch_sampler(ds):
    batches = BatchSampler(range(20), 7, False)
    loader = ds.select("x").loader(None, sampler=batches)
    assert len(loader) == 3
    assert read(loader) == list(batches)


def test_the_loader_says_what_a_sampler_should_give(ds):
    with pytest.raises(OptionError) as caught:
        read(ds.loader(None, sampler=[3, 4]))
    assert str(caught.value) == (
        "the sampler gives int64 of shape (); it gives integers, and with batch_size=None lists of them"
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_state_counts_draws_within_and_between_the_blocks_that_are_computed(ranks):
    def sampler():
        return Shuffle(range(40_000), 3, num_replicas=ranks, rank=ranks - 1)

    drawn, iterated = sampler(), sampler()
    order = list(drawn)
    assert len(order) == -(-40_000 // ranks)
    for taken, position in enumerate(iterated, 1):
        assert position == order[taken - 1]
        if taken % 8192 in (0, 1, 8191) or taken == len(order):
            state = iterated.state_dict()
            assert state["consumed"] == min(taken * ranks, state["length"])
            resumed = sampler()
            resumed.load_state_dict(state)
            if taken < len(order):
                assert next(iter(resumed)) == order[taken]
