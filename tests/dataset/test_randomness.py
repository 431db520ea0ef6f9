"""Seeded transforms: the random numbers of a sample, whoever reads it, and when."""

import hashlib
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset

from edcache import CachedDataset, CacheWriter, concat, zip_fields
from edcache.dataset.indexing import batch_of
from edcache.errors import OptionError
from edcache.reader import Group, Made
from edcache.samplers import Balanced, ByLength, ChunkShuffle, Shuffle, Weighted

COUNT = 40
EPOCHS = 3


# --- the oracle: docs/reference/orders.md ---------------------------------------------------------------


WORD = (1 << 64) - 1
# Of PCG64: O'Neill 2014, https://www.pcg-random.org.
MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645


def first_bits(seed, epoch, index, draw, step):
    """The first 64 bits of PCG64 whose state and stream are the digest of a key."""
    key = f"{seed}/{epoch}/{index}/{draw}/{step}".encode()
    words = struct.unpack("<4Q", hashlib.blake2b(key, digest_size=32).digest())
    state, stream = (high << 64 | low for high, low in (words[:2], words[2:]))
    increment = (stream << 1 | 1) % (1 << 128)
    state = (increment + state) * MULTIPLIER + increment
    state = (state * MULTIPLIER + increment) % (1 << 128)
    mixed, turn = (state >> 64 ^ state) & WORD, state >> 122
    return (mixed >> turn | mixed << (64 - turn)) & WORD


def expected(seed, epoch, index, draw=0, step=0):
    return first_bits(seed, epoch, index, draw, step) >> 1


# --- what is transformed --------------------------------------------------------------------------------


def noisy(sample, rng):
    return {**sample, "noise": int(rng.bit_generator.random_raw()) >> 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("randomness") / "a.zip"
    with CacheWriter(path, in_memory_keys=["label"], chunk_size=7) as w:
        w.extend({"x": k, "label": k % 3} for k in range(COUNT))
    return path


@pytest.fixture
def ds(path):
    return CachedDataset.from_cache(path)


@pytest.fixture
def view(ds):
    return ds.with_transform(noisy, seed=5)


def noises(batches):
    """The noise of each x that batches have; no x twice."""
    pairs = [pair for batch in batches for pair in zip(batch["x"].tolist(), batch["noise"], strict=True)]
    noise = {x: n if isinstance(n, str) else int(n) for x, n in pairs}
    assert len(noise) == len(pairs)
    return noise


def epoch_of(epoch, seed=5):
    return {x: expected(seed, epoch, x) for x in range(COUNT)}


# --- the same, whoever reads ----------------------------------------------------------------------------


def test_a_sample_has_the_numbers_of_seed_epoch_and_index(ds):
    for seed in (0, 7, 1 << 70):
        view = ds.with_transform(noisy, seed=seed)
        for epoch in (0, 1, 9):
            view.set_epoch(epoch)
            assert [view[k]["noise"] for k in (0, 3, -1)] == [expected(seed, epoch, k) for k in (0, 3, 39)]
            assert view.batch([3, -1])["noise"].tolist() == [expected(seed, epoch, k) for k in (3, 39)]


@pytest.mark.parametrize("make", [Shuffle, ChunkShuffle, lambda view: ByLength(view, "label", 7)])
def test_samplers_tell_the_epoch(view, make):
    for sampler in (make(view), pickle.loads(pickle.dumps(make(view)))):
        options = {"batch_sampler": sampler} if isinstance(sampler, ByLength) else {"sampler": sampler}
        loader = DataLoader(view, **options | ({} if "batch_sampler" in options else {"batch_size": 7}))
        assert [noises(loader) for _ in range(EPOCHS)] == [epoch_of(epoch) for epoch in range(EPOCHS)]
        sampler.set_epoch(8)
        assert noises(loader) == epoch_of(8)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("workers", "context", "persistent"),
    [(1, "fork", False), (2, "fork", True), (4, "fork", True), (1, "spawn", True)],
)
def test_workers_have_the_epoch_of_each_position(view, workers, context, persistent):
    sampler = Shuffle(view, seed=1)
    loader = DataLoader(
        view,
        7,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=persistent,
    )
    next(iter(loader))  # one that is left behind with batches on their way
    sampler.set_epoch(3)
    assert [noises(loader) for _ in range(EPOCHS)] == [epoch_of(epoch) for epoch in range(3, 3 + EPOCHS)]


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_threads_have_the_epoch_of_their_loader(view, threads):
    for options in (
        {"shuffle": True, "seed": 3},
        {"sampler": Shuffle(view)},
        {"sampler": RandomSampler(view)},
    ):
        loader = view.loader(3, num_threads=threads, **options)
        next(iter(loader))
        assert [noises(map(copied, loader)) for _ in range(EPOCHS)] == [epoch_of(e) for e in range(EPOCHS)]
        loader.set_epoch(6)
        assert noises(map(copied, loader)) == epoch_of(6)


def copied(batch):
    return {
        name: column.clone() if isinstance(column, torch.Tensor) else column for name, column in batch.items()
    }


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_the_numbers_of_an_epoch(view, ranks):
    made = {}
    for rank in range(ranks):
        sampler = Shuffle(view, num_replicas=ranks, rank=rank, uneven="drop")
        sampler.set_epoch(2)
        made |= noises(DataLoader(view, 4, sampler=sampler))
    assert len(made) == COUNT // ranks * ranks
    assert made.items() <= epoch_of(2).items()


def drawn_by(view, ranks, rank, state=None):
    """(x, noise) of every draw of a rank, in order."""
    sampler = Weighted(view, "label", 60, seed=2, num_replicas=ranks, rank=rank)
    if state is not None:
        sampler.load_state_dict(state)
    return [(s["x"], s["noise"]) for s in map(view.__getitem__, sampler)]


def test_draws_of_one_sample_are_numbered_apart_by_any_ranks_and_resumption(view):
    whole = drawn_by(view, 1, 0)
    order = list(Weighted(view, "label", 60, seed=2))
    assert whole == [(x, expected(5, 0, x, draw=k + 1)) for k, x in enumerate(order)]
    assert len(set(whole)) == 60 > len({x for x, _ in whole})
    for ranks in (2, 3):
        shares = [drawn_by(view, ranks, rank) for rank in range(ranks)]
        assert [pair for turn in zip(*shares, strict=True) for pair in turn] == whole
    state = Weighted(view, "label", 60, seed=2, num_replicas=2, rank=1).state_dict(steps=3, batch_size=5)
    shares = [drawn_by(view, 3, rank, state) for rank in range(3)]
    assert [pair for turn in zip(*shares, strict=True) for pair in turn] == whole[30:]
    loader = view.loader(7, sampler=Weighted(view, "label", 60, seed=2), num_threads=3)
    batches = [copied(batch) for batch in loader]
    assert torch.cat([b["noise"] for b in batches]).tolist() == [noise for _, noise in whole]
    steps = {}
    for rank in range(3):
        sampler = Weighted(view, "label", 60, seed=2, num_replicas=3, rank=rank, global_batch_size=10)
        for step, batch in enumerate(DataLoader(view, batch_sampler=sampler)):
            steps.setdefault(step, []).extend(zip(batch["x"].tolist(), batch["noise"].tolist(), strict=True))
    assert {step: sorted(pairs) for step, pairs in steps.items()} == {
        step: sorted(whole[10 * step : 10 * step + 10]) for step in range(6)
    }
    balanced = [s["noise"] for s in map(view.__getitem__, Balanced(view, "label", 90))]
    assert len(set(balanced)) == 90


def test_an_epoch_goes_on_with_the_same_numbers(view):
    loader = view.loader(6, shuffle=True, seed=1)
    loader.set_epoch(4)
    batches = iter(loader)
    before = noises([copied(next(batches)) for _ in range(3)])
    again = view.loader(5, shuffle=True, seed=8, num_threads=1)
    again.load_state_dict(loader.state_dict())
    batches.close()
    assert before | noises(map(copied, again)) == epoch_of(4)


# --- an epoch that is set -------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_that_stay_see_an_epoch_that_is_set(view, context):
    loader = DataLoader(
        Subset(view, range(COUNT)),
        7,
        shuffle=True,
        num_workers=2 if context == "fork" else 1,
        multiprocessing_context=context,
        persistent_workers=True,
    )
    for epoch in (3, 4, 0):
        view._of.set_epoch(epoch)
        assert noises(loader) == epoch_of(epoch)


def test_a_loader_that_does_not_know_the_epoch_is_refused(view):
    message = "a seeded transform depends on the epoch, and this DataLoader does not know it"
    with pytest.raises(OptionError, match=message):
        next(iter(DataLoader(view, 4, shuffle=True)))
    with pytest.raises(OptionError, match=message):  # the sampler is of a dataset that draws nothing
        next(iter(DataLoader(view, 4, sampler=Shuffle(view._of))))
    around = ConcatDataset([view])  # reads one by one
    with pytest.raises(OptionError, match=message):
        next(iter(DataLoader(around, 4, num_workers=1)))
    view.set_epoch(1)
    assert noises(DataLoader(view, 4)) == epoch_of(1)
    assert noises(DataLoader(around, 4, num_workers=1)) == epoch_of(1)
    with pytest.raises(OptionError, match=message):  # of a copy, which would not see it change
        next(iter(DataLoader(pickle.loads(pickle.dumps(view)), 4)))


def test_a_position_that_is_drawn_keeps_its_epoch_when_it_is_pickled(view):
    draws = pickle.loads(pickle.dumps(list(Shuffle(view))))
    assert {view[draw]["x"]: view[draw]["noise"] for draw in draws} == epoch_of(0)
    assert {type(position) for position in Shuffle(view._of)} == {int}


# --- which sample it is ---------------------------------------------------------------------------------


def test_views_of_a_seeded_view_have_its_samples(view):
    for other in (
        view[7:30:3],
        view.shuffle(2),
        view.filter(label=1),
        view[[5, 3, 5]],
        view.split(0.5, 0.5)[1],
    ):
        assert [s["noise"] for s in other] == [expected(5, 0, x) for x in other.indices.tolist()]
    fields = view.select("noise", as_tuple=True)
    assert fields[3] == (expected(5, 0, 3),)


def test_a_view_that_repeats_samples_has_numbers_for_each_of_its_positions(view):
    for other in (view.repeat(3), view.filter(label=[0, 1]).oversample("label"), view.repeat(2).shuffle(1)):
        made = [s["noise"] for s in other]
        assert made == [expected(5, 0, x, draw=p + 1) for p, x in enumerate(other.indices.tolist())]
        assert other[-1]["noise"] == made[-1]
        assert noises_in_order(DataLoader(other, 9, sampler=range_of_epoch(other, 0))) == made
    assert view.repeat(1)[3] == view[3]
    assert view.repeat(2)[COUNT]["noise"] != view.repeat(2)[0]["noise"]


def range_of_epoch(view, epoch):
    view.set_epoch(epoch)
    return range(len(view))


def noises_in_order(batches):
    return [noise for batch in batches for noise in batch["noise"].tolist()]


def test_each_seeded_function_has_numbers_of_its_own(ds, view):
    def second(sample, rng):
        return {**sample, "second": int(rng.bit_generator.random_raw()) >> 1}

    def third(x, rng):
        return x, int(rng.bit_generator.random_raw()) >> 1

    made = view.with_transform(lambda s: s).with_transform(second, seed=5)
    sample = made.with_transform(third, field="x", seed=6)[4]
    assert sample["noise"] == expected(5, 0, 4)
    assert sample["second"] == expected(5, 0, 4, step=1)
    assert sample["x"] == (4, expected(6, 0, 4, step=2))


def test_draws_that_repeat_are_numbered_apart_in_parts_too(view):
    both = concat([view[:5], view[5:]])
    sampler = Weighted(both, np.ones(COUNT), 90, seed=4)
    order = sampler.which(0, batch_size=90)
    wanted = [expected(5, 0, x, draw=k + 1) for k, x in enumerate(order)]
    assert noises_in_order(DataLoader(both, 9, sampler=sampler)) == wanted


def test_parts_of_what_is_put_together_have_their_own_indices(view, ds):
    both = concat([view[10:20], ds.select("x", "label").with_transform(noisy, seed=6)])
    wanted = [expected(5, 2, x) for x in range(10, 20)] + [expected(6, 2, x) for x in range(COUNT)]
    sampler = Shuffle(both, seed=3)
    sampler.set_epoch(2)
    batches = list(DataLoader(both, 8, sampler=sampler))
    assert noises_in_order(batches) == [wanted[k] for k in sampler.which(0, batch_size=len(both), epoch=2)]
    top = both.with_transform(lambda s, rng: {**s, "top": int(rng.bit_generator.random_raw()) >> 1}, seed=5)
    assert top[12]["noise"] == expected(6, 0, 2)
    assert top[12]["top"] == expected(5, 0, 12)
    repeated = concat([view.repeat(2), view])
    assert len({repeated[k]["noise"] for k in (3, COUNT + 3, 2 * COUNT + 3)}) == 3
    wide = zip_fields(view.select("noise"), ds)
    wide.set_epoch(7)
    assert wide.batch([4, 1])["noise"].tolist() == [expected(5, 7, 4), expected(5, 7, 1)]
    assert wide[4]["noise"] == expected(5, 7, 4)


# --- global generators --------------------------------------------------------------------------------


# --- values and their quality ---------------------------------------------------------------------------


def test_the_numbers_are_those_of_every_platform_and_release(ds):
    golden = json.loads(Path(__file__).with_name("golden_random.json").read_text())
    for case in golden:
        seed, epoch, index = case["seed"], case["epoch"], case["index"]
        view = ds.with_transform(noisy, seed=seed)
        view.set_epoch(epoch)
        assert view[index]["noise"] == case["raw"] == expected(seed, epoch, index)


# --- what is refused ------------------------------------------------------------------------------------


def flip(sample):
    return sample


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda ds: ds.with_transform(noisy, seed=float("nan")), "seed=nan; give an integer of 0 or more"),
        (lambda ds: ds.with_transform(noisy, seed=-1), "seed=-1; give an integer of 0 or more"),
        (lambda ds: ds.with_transform(noisy, seed=True), "seed=True; give an integer of 0 or more"),
        (lambda ds: ds.set_epoch(-1), "epoch=-1; give an integer of 0 or more"),
        (lambda ds: ds.set_epoch(1.5), "epoch=1.5; give an integer of 0 or more"),
    ],
)
def test_what_means_nothing_is_refused(ds, ask, message):
    with pytest.raises(OptionError, match=message):
        ask(ds)


def test_a_seed_goes_with_a_function_that_takes_a_generator(ds):
    with pytest.raises(TypeError, match="flip"):
        ds.with_transform(flip, seed=1)[0]
    with pytest.raises(TypeError, match="noisy.*rng"):
        ds.with_transform(noisy)[0]


def test_a_parameter_rng_that_has_a_default_needs_no_seed(ds):
    assert ds.with_transform(lambda sample, rng=None: rng)[0] is None


def test_without_a_seed_batches_are_gathered_as_before(ds, view):
    assert isinstance(batch_of(ds, [0])._records, Group)
    assert isinstance(batch_of(view, [0])._records, Made)
