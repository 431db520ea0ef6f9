"""Jobs that die and go on with other ranks, batches and workers read what one that never died reads."""

import itertools
import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale import scaled
from test_samplers import MAKE, Labelled, every_sampler, flat, some
from torch.utils.data import DataLoader
from written import write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import OptionError
from edcache.samplers import Balanced, ByLength, ByShape, ChunkShuffle, Sequential, Shuffle, Weighted

# With `uneven` and `global_batch_size`: batches by length are of the whole job then.
SHARED = {name: make for name, make in MAKE.items() if not name.startswith("By")} | {
    "Sequential": Sequential,
    "ByLength": lambda ds, **o: ByLength(ds, "n_tokens", **o),
    "ByShape": lambda ds, **o: ByShape(ds, "label", **o),
}
LIVES = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 8, 5]), st.integers(1, 9), st.integers(0, 6)), max_size=6
)


@settings(max_examples=scaled(400))
@given(
    st.sampled_from(list(MAKE)),
    st.integers(2, 90),
    LIVES,
    st.integers(0, 3),
    st.sampled_from(["repeat", "drop"]),
)
def test_whatever_dies_and_comes_back_reads_one_order(name, length, lives, epoch, uneven):
    def made(**options):
        return MAKE[name](some(length), uneven=uneven, **options)

    alone = made()
    alone.set_epoch(epoch)
    whole = list(alone)
    state, used = None, 0
    for ranks, size, steps in [*lives, (3, 4, length)]:
        job = [made(num_replicas=ranks, rank=rank) for rank in range(ranks)]
        for sampler in job:
            if state is None:
                sampler.set_epoch(epoch)
            else:
                sampler.load_state_dict(json.loads(json.dumps(state)))
                sampler.set_epoch(state["epoch"])
        rest = len(whole) - used
        each = rest // ranks if uneven == "drop" else math.ceil(rest / ranks)
        mine = []
        for rank, sampler in enumerate(job):
            iterator = iter(sampler)
            mine.append(list(itertools.islice(iterator, steps * size)))
            taken = sampler.state_dict()
            assert taken == sampler.state_dict(steps, batch_size=size) or not mine[-1]
            ahead = len(list(itertools.islice(iterator, 2)))  # as workers draw ahead
            assert len(mine[-1]) == min(steps * size, each)
            assert ahead == min(2, each - len(mine[-1]))
            assert flat(mine[-1]) == [
                position
                for step in range(math.ceil(len(mine[-1]) / size))
                for position in job[0].which(step, rank, batch_size=size).tolist()
            ]
        together = [drawn for turn in zip(*mine, strict=True) for drawn in turn]
        expected = whole[used : used + len(together)]
        assert together == expected + (whole * ranks)[: len(together) - len(expected)]
        (state,) = {json.dumps(sampler.state_dict(steps, batch_size=size)) for sampler in job}
        state = json.loads(state)
        used = len(whole) if steps * size >= each else used + steps * size * ranks
        assert (state["epoch"], state["consumed"], state["length"]) == (epoch, used, len(whole))
    assert used == len(whole)


def steps_of(whole, size, uneven):
    """What all ranks together read in each step of an epoch."""
    steps = [whole[k : k + size] for k in range(0, len(whole), size)]
    if steps and len(steps[-1]) < size:
        if uneven == "drop":
            steps.pop()
        elif uneven == "repeat":
            steps[-1] += (whole * size)[: size - len(steps[-1])]
    return steps


def dealt(shares):
    """What the ranks of a step have, in the order in which the job draws it."""
    together = [position for turn in itertools.zip_longest(*shares) for position in turn]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    return [position for position in together if position is not None]


WORLDS = st.lists(st.tuples(st.sampled_from([1, 2, 3, 8, 5]), st.integers(0, 5)), max_size=6)


@settings(max_examples=scaled(400))
@given(
    st.sampled_from(list(SHARED)),
    st.integers(2, 90),
    st.integers(8, 20),
    WORLDS,
    st.integers(0, 3),
    st.sampled_from(["repeat", "drop", "allow"]),
)
def test_a_step_of_the_job_has_the_same_samples_on_any_ranks(name, length, size, lives, epoch, uneven):
    def made(ranks, rank):
        options = {"num_replicas": ranks, "rank": rank, "global_batch_size": size, "uneven": uneven}
        return SHARED[name](some(length), **options)

    whole = some_epoch(name, length, size, epoch)
    expected, found, state = steps_of(whole, size, uneven), [], None
    for ranks, steps in [*lives, (3, length)]:
        job = [made(ranks, rank) for rank in range(ranks)]
        for sampler in job:
            if state is None:
                sampler.set_epoch(epoch)
            else:
                sampler.load_state_dict(json.loads(json.dumps(state)))
                sampler.set_epoch(state["epoch"])
        mine = []
        for rank, sampler in enumerate(job):
            mine.append(list(itertools.islice(iter(sampler), steps)))
            assert mine[-1] == [job[0].which(step, rank).tolist() for step in range(len(mine[-1]))]
            assert sampler.state_dict(steps) == sampler.state_dict() or len(mine[-1]) < steps
        if uneven != "allow":
            assert len(set(map(len, mine))) == 1
        found += [dealt(shares) for shares in itertools.zip_longest(*mine, fillvalue=[])]
        (state,) = {json.dumps(sampler.state_dict(steps)) for sampler in job}
        state = json.loads(state)
        assert state["consumed"] == (len(whole) if len(found) == len(expected) else len(found) * size)
    assert found == expected
    if uneven == "allow" and "eighted" not in name and name != "Balanced":
        # A step of one shape is full, or left out.
        assert sorted(flat(found)) == (sorted(whole) if name == "ByShape" else list(range(length)))
        assert len(set(whole)) == len(whole)
    following = [list(sampler) for sampler in job]
    assert [dealt(shares) for shares in itertools.zip_longest(*following, fillvalue=[])] == steps_of(
        some_epoch(name, length, size, epoch + 1), size, uneven
    )


def some_epoch(name, length, size, epoch):
    """All draws of one rank alone, which needs no steps but where the batches are the order."""
    options = {"global_batch_size": size, "uneven": "allow"} if name.startswith("By") else {}
    sampler = SHARED[name](some(length), **options)
    sampler.set_epoch(epoch)
    return flat(list(sampler))


@settings(max_examples=scaled(200))
@given(st.sampled_from(list(MAKE)), st.integers(2, 60), st.sampled_from([1, 2, 3, 8, 5]), st.integers(0, 60))
def test_ranks_may_differ_by_one_where_that_is_allowed(name, length, ranks, start):
    """And every draw comes once, also where a state continues."""
    whole = list(MAKE[name](some(length), uneven="allow"))
    state = MAKE[name](some(length)).state_dict() | {"consumed": min(start, len(whole))}
    job = [MAKE[name](some(length), uneven="allow", num_replicas=ranks, rank=k) for k in range(ranks)]
    assert sum(map(len, job)) == len(whole)
    for sampler in job:
        sampler.load_state_dict(state)
        sampler.set_epoch(0)
    shares = [list(sampler) for sampler in job]
    assert dealt(shares) == whole[start:]
    assert {(sampler.state_dict()["epoch"], sampler.state_dict()["consumed"]) for sampler in job} == {
        (0, len(whole))
    }
    assert [len(list(sampler)) for sampler in job] == [len(sampler) for sampler in job]
    assert {sampler.epoch for sampler in job} == {1}


def test_a_global_batch_is_for_so_many_ranks():
    with pytest.raises(OptionError) as caught:
        Shuffle(range(40), global_batch_size=7, num_replicas=8, rank=0)
    assert str(caught.value) == "global_batch_size=7 for 8 ranks; give at least one sample for each"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "a.zip"
    return write(path, ({"k": k} for k in range(103)), in_memory_keys=["k"], chunk_size=16)


def read(batches):
    return [batch["k"].tolist() for batch in batches]


@settings(max_examples=scaled(60))
@given(WORLDS, st.sampled_from(["Shuffle", "Sequential", "ChunkShuffle"]), st.booleans())
def test_a_step_of_the_job_is_the_same_by_any_loader(path, lives, name, is_threaded):
    ds = CachedDataset.from_cache(path)

    def made(ranks, rank):
        sampler = SHARED[name](ds, global_batch_size=20, uneven="allow", num_replicas=ranks, rank=rank)
        return sampler, ds.loader(None, sampler=sampler) if is_threaded else DataLoader(
            ds, batch_sampler=sampler
        )

    found, state = [], None
    for ranks, steps in [*lives, (8, 103)]:
        job = [made(ranks, rank) for rank in range(ranks)]
        if state is not None:
            for sampler, _ in job:
                sampler.load_state_dict(state)
                sampler.set_epoch(0)
        mine = [read(itertools.islice(iter(loader), steps)) for _, loader in job]
        found += [dealt(shares) for shares in itertools.zip_longest(*mine, fillvalue=[])]
        if len(found) == 6:
            break
        if steps:
            (state,) = {json.dumps(sampler.state_dict()) for sampler, _ in job}
            state = json.loads(state)
    assert found == steps_of(list(SHARED[name](ds)), 20, "allow")


@settings(max_examples=scaled(60))
@given(LIVES, st.sampled_from(["shuffle", "in order", "Shuffle", "ChunkShuffle"]))
def test_a_loader_goes_on_with_other_ranks_and_batches(path, lives, kind):
    ds = CachedDataset.from_cache(path)

    def made(size, ranks, rank):
        if kind in ("shuffle", "in order"):
            return ds.loader(size, shuffle=kind == "shuffle", seed=3, num_threads=ranks)
        make = {"Shuffle": Shuffle, "ChunkShuffle": ChunkShuffle}[kind]
        return ds.loader(size, sampler=make(ds, 3, num_replicas=ranks, rank=rank))

    whole = flat(read(made(8, 1, 0)))
    state, used = None, 0
    for ranks, size, steps in [*lives, (1, 4, 103)]:
        ranks = ranks if kind in MAKE else 1
        job, mine = [made(size, ranks, rank) for rank in range(ranks)], []
        for loader in job:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            iterator = iter(loader)
            batches = read(itertools.islice(iterator, steps))
            mine.append(flat(batches))
        together = [drawn for turn in zip(*mine, strict=True) for drawn in turn]
        assert together[: 103 - used] == whole[used : used + len(together)]
        if steps:
            state = loader.state_dict()
            assert all(other.state_dict() == state for other in job)
        used = min(103, used + len(together))
        if used == 103:
            break
    assert used == 103
    assert (state["consumed"], state["epoch"]) in ((103, 0), (0, 1))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_that_divide_the_lanes_read_chunks_of_their_own(ranks):
    ds = some(16_000)
    for start in (0, 3_000):
        job = [ChunkShuffle(ds, num_replicas=ranks, rank=rank) for rank in range(ranks)]
        for sampler in job:
            sampler.load_state_dict({**sampler.state_dict(), "consumed": start})
        read = [{position // 10 for position in sampler} for sampler in job]
        assert sum(map(len, read)) - len(set.union(*read)) <= 8 * 4, "chunks that two ranks read"


def test_the_number_of_ranks_changes_no_lanes():
    whole = list(ChunkShuffle(some(2_000), seed=1))
    job = [ChunkShuffle(some(2_000), seed=1, num_replicas=12, rank=rank) for rank in range(12)]
    assert [drawn for turn in zip(*job, strict=True) for drawn in turn][:2_000] == whole


def test_which_computes_no_epoch_of_a_billion_samples():
    job = {"num_replicas": 8, "rank": 3}
    for sampler in (Shuffle(range(10**9), 1, **job), ChunkShuffle(Labelled(10**9, chunk=50_000), **job)):
        step = sampler.which(41_237, batch_size=64)
        assert (step.dtype, len(set(step.tolist()))) == (np.int64, 64)
        assert step.tolist() == [k for n in range(64) for k in sampler.which(41_237 * 64 + n).tolist()]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s: s.which(3, batch_size=4), "step=3 of 3 steps; give less"),
        (lambda s: s.which(-1), "step=-1; give an integer of 0 or more"),
        (lambda s: s.which(0, 2), "rank=2 of 1; give 0 to 0"),
        (lambda s: s.which(0, batch_size=0), "batch_size=0; give an integer of 1 or more"),
        (lambda s: s.which(0, epoch=-1), "epoch=-1; give an integer of 0 or more"),
        (lambda s: s.which(0, epoch=1.5), "epoch=1.5; give an integer of 0 or more"),
        (lambda s: s.set_epoch(-1), "epoch=-1; give an integer of 0 or more"),
        (lambda s: s.set_epoch(None), "epoch=None; give an integer of 0 or more"),
        (lambda s: s.state_dict(-1), "steps=-1; give an integer of 0 or more"),
        (
            lambda s: s.state_dict(3),
            "steps=3 without a batch_size; give that of the DataLoader, or 1 to count draws",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, text):
    with pytest.raises(OptionError) as caught:
        call(Shuffle(range(10)))
    assert str(caught.value) == text


REFUSED = {
    "version": [2, "1", None],
    "order": ["Other"],
    "archive": ["ab"],
    "seed": [None, 1.5],
    "epoch": [-1, 1.0, True],
    "samples": [39, 41],
    "length": [39, -40],
    "view": ["0:39:1"],
    "consumed": [-1, 41, 3.0, "3", None],
    "data": ["0"],
}


@every_sampler
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(make):
    sampler = make(some(40), seed=5)
    before = sampler.state_dict()
    for name, values in REFUSED.items():
        for value in values:
            with pytest.raises(OptionError, match=rf"{name}="):
                sampler.load_state_dict({**before, name: value} | ({"epoch": 7} if name != "epoch" else {}))
    for name in before:
        with pytest.raises(OptionError, match=name):
            sampler.load_state_dict({key: value for key, value in before.items() if key != name})
    with pytest.raises(OptionError, match="^not a state: None; give what"):
        sampler.load_state_dict(None)
    assert sampler.state_dict() == before


def test_other_data_or_options_are_refused():
    ds = some(40)
    for one, other in (
        (Balanced(ds, "label"), Balanced(ds, np.arange(40) % 3)),
        (Weighted(ds, "weight"), Weighted(ds, np.arange(40.0))),
        (ChunkShuffle(ds, 3), ChunkShuffle(ds, 4)),
        (ChunkShuffle(ds, lanes=2), ChunkShuffle(ds, lanes=4)),
    ):
        with pytest.raises(OptionError, match=r"^a state with \w+=.*, and here is \w+=.*set_epoch\(\)$"):
            other.load_state_dict(one.state_dict())


def test_a_state_of_another_view_of_the_same_length_is_refused(path):
    ds = CachedDataset.from_cache(path)
    odd = np.arange(103) % 2 == 1
    views = {
        "first": ds[:51],
        "last": ds[52:],
        "reversed": ds[50::-1],
        "odd": ds[odd],
        "even": ds[~odd][:51],
        "shuffled": ds.shuffle(1)[:51],
        "shuffled otherwise": ds.shuffle(2)[:51],
        "of the shuffled": ds.shuffle(1)[52:],
        "repeated": ds[:17].repeat(3),
        "together": edcache.concat([ds[:20], ds[20:51]]),
        "together otherwise": edcache.concat([ds[:21], ds[21:51]]),
    }
    for name, view in views.items():
        for other in views:
            sampler, state = Shuffle(view), Shuffle(views[other]).state_dict()
            if name == other:
                sampler.load_state_dict(state)
                continue
            with pytest.raises(OptionError, match="^a state with (view|archive)="):
                sampler.load_state_dict(state)
    with pytest.raises(OptionError) as caught:
        views["last"].loader(4, shuffle=True).load_state_dict(Shuffle(views["first"]).state_dict())
    assert str(caught.value) == (
        "a state with view='0:51:1', and here is view='52:103:1'; give the view that it is of, or begin an "
        "epoch with set_epoch()"
    )
    # Neither the way to a view nor a copy of its sampler matters.
    Shuffle(ds[5:][:20]).load_state_dict(Shuffle(ds[5:25]).state_dict())
    sampler = Shuffle(views["odd"])
    assert pickle.loads(pickle.dumps(sampler)).state_dict() == sampler.state_dict()


def test_another_archive_is_refused_and_the_old_samples_of_one_that_grew_go_on(tmp_path):
    def written(name, count):
        with CacheWriter(tmp_path / name, in_memory_keys=["k"]) as w:
            w.extend({"k": k} for k in range(count))
        return CachedDataset.from_cache(tmp_path / name)

    ds, other = written("a.zip", 40), written("b.zip", 40)
    several = edcache.concat([ds, other])
    for one in (ds, other, several):
        for fits in (ds, other, several):
            state = Shuffle(one).state_dict()
            if one is fits:
                Shuffle(fits).load_state_dict(state)
                continue
            with pytest.raises(OptionError, match=r"^a state with archive="):
                Shuffle(fits).load_state_dict(state)

    w = CacheWriter(tmp_path / "c.zip", in_memory_keys=["k"])
    w.extend({"k": k} for k in range(30))
    w.flush()
    small = CachedDataset.from_cache(tmp_path / "c.zip", allow_partial=True)
    makes = [Shuffle, lambda ds: Balanced(ds, "k"), lambda ds: Weighted(ds, np.arange(1.0, 1 + len(ds)))]
    states, orders = [], []
    for make in makes:
        sampler = make(small)
        orders.append([*itertools.islice(sampler, 10), *()] and list(sampler))
        sampler.set_epoch(0)
        iterator = iter(sampler)
        list(itertools.islice(iterator, 10))
        states.append(sampler.state_dict())
    shuffled = small.loader(5, shuffle=True, seed=2)
    epoch, second = read(shuffled), read(shuffled)
    shuffled.set_epoch(0)
    list(itertools.islice(shuffled, 2))
    w.extend({"k": k} for k in range(30, 50))
    w.close()
    grown = CachedDataset.from_cache(tmp_path / "c.zip")
    for make, state, order in zip(makes, states, orders, strict=True):
        with pytest.raises(
            OptionError,
            match=r"samples=30, and here is samples=50; make the sampler of the old ones, ds.take\(30\)",
        ):
            make(grown).load_state_dict(state)
        sampler = make(grown.take(state["samples"]))
        sampler.load_state_dict(state)
        assert list(sampler) == order[10:]
        assert max(flat(read(grown.take(30).loader(5, sampler=sampler)))) < 30
    with pytest.raises(OptionError, match="samples=50"):
        grown.loader(5, shuffle=True).load_state_dict(shuffled.state_dict())
    loader = grown.take(30).loader(5, shuffle=True)
    loader.load_state_dict(shuffled.state_dict())
    assert [read(loader), read(loader)] == [epoch[2:], second]
    with pytest.raises(OptionError, match="samples=50, and here is samples=30"):
        Shuffle(small).load_state_dict(Shuffle(grown).state_dict())


def test_the_steps_of_a_training_loop_are_what_counts_with_workers(path):
    ds = CachedDataset.from_cache(path)
    sampler = Shuffle(ds, 1, num_replicas=2, rank=0)
    whole = list(Shuffle(ds, 1))
    iterator = iter(DataLoader(ds, 4, sampler=sampler, num_workers=2))
    used = flat(read(itertools.islice(iterator, 3)))
    assert used == whole[0:24:2]
    assert sampler.state_dict()["consumed"] > 24
    state = sampler.state_dict(3, batch_size=4)
    assert state["consumed"] == 24
    other = Shuffle(ds)
    other.load_state_dict(state)
    assert list(other) == whole[24:]


# --- what a state names, and when it counts ---


def cache_of(path, first, count):
    """An archive of so many numbers from `first` on; one that is there may grow."""
    samples = [{"x": first + k} for k in range(count)]
    return CachedDataset(samples, path, progress=False, fingerprint=False, grow=path.exists())


def combined(how, folder, second):
    one, other = (cache_of(folder / f"{k}.zip", k, size) for k, size in ((0, 40), (second, 60)))
    if how == "mix":
        return edcache.mix([one, other], [1, 2], num_samples=90)
    ds = {
        "concat": lambda: edcache.concat([one, other]),
        "several": lambda: CachedDataset.from_cache([one.path, other.path])[10:],
        "zip": lambda: edcache.zip_fields(one, other[:40].with_transform(lambda sample: {"y": sample["x"]})),
    }[how]()
    return Shuffle(ds, 1)


@pytest.mark.parametrize("how", ["concat", "mix", "several", "zip"])
def test_a_state_of_several_archives_names_them(tmp_path, how):
    sampler = combined(how, tmp_path, 100)
    again = combined(how, tmp_path, 100)
    again.load_state_dict(sampler.state_dict())
    foreign = combined(how, tmp_path, 1000)
    with pytest.raises(OptionError, match="a state with archive="):
        foreign.load_state_dict(sampler.state_dict())


def test_where_several_have_grown_the_old_samples_are_not_known(tmp_path):
    parts = [cache_of(tmp_path / "a.zip", 0, 4), cache_of(tmp_path / "b.zip", 100, 6)]
    state = Shuffle(edcache.concat(parts)).state_dict(2, batch_size=1)
    parts[0] = cache_of(tmp_path / "a.zip", 0, 6)
    grown = Shuffle(edcache.concat(parts))
    with pytest.raises(OptionError, match="a state with "):
        grown.load_state_dict(state)
    old = Shuffle(edcache.concat([parts[0].take(4), parts[1]]))
    old.load_state_dict(state)
    assert len(list(old)) == 8


def test_ranks_that_have_nothing_left_stay_in_the_epoch_of_a_state():
    whole = list(Shuffle(range(10), uneven="allow"))
    state = Shuffle(range(10), num_replicas=1, rank=0, uneven="allow").state_dict(9, batch_size=1)
    ranks = [Shuffle(range(10), num_replicas=4, rank=rank, uneven="allow") for rank in range(4)]
    for rank in ranks:
        rank.load_state_dict(state)
    assert [list(rank) for rank in ranks] == [whole[9:], [], [], []]
    assert [rank.epoch for rank in ranks] == [0] * 4
    following = Shuffle(range(10), uneven="allow")
    following.set_epoch(1)
    shares = [list(rank) for rank in ranks]
    assert sorted(itertools.chain(*shares)) == sorted(following)
    assert [rank.epoch for rank in ranks] == [1] * 4


def test_a_short_rank_has_the_state_of_the_others_behind_its_last_batch(tmp_path):
    ds = cache_of(tmp_path / "a.zip", 0, 5)
    states = []
    for rank in range(4):
        loader = ds.loader(2, sampler=Shuffle(ds, num_replicas=4, rank=rank, uneven="allow"))
        next(iter(loader))
        states.append(loader.state_dict())
    assert states == [states[0]] * 4


@pytest.mark.parametrize("by", ["sampler", "loader", "loader that shuffles"])
def test_an_epoch_that_is_set_amid_an_iteration_is_the_next(tmp_path, by):
    ds = cache_of(tmp_path / "a.zip", 0, 8)
    draws = Shuffle(ds, 1)
    if by != "sampler":
        draws = ds.loader(2, sampler=draws) if by == "loader" else ds.loader(2, shuffle=True, seed=1)
    for k, _ in enumerate(draws):
        if k == 1:
            draws.set_epoch(5)
        assert k < 1 or (draws.state_dict()["epoch"], draws.state_dict()["consumed"]) == (5, 0)
    expected = Shuffle(ds, 1)
    expected.set_epoch(5)
    found = list(draws) if by == "sampler" else [x for batch in draws for x in batch["x"].tolist()]
    assert found == list(expected)


def test_states_are_plain_whatever_the_options_are(tmp_path):
    ds = cache_of(tmp_path / "a.zip", 0, 40)
    n = np.int64
    for sampler in (
        Balanced(ds, np.arange(40) % 3, num_samples=n(10), num_replicas=n(2), rank=n(1)),
        ChunkShuffle(ds, buffer=n(2), lanes=n(2), seed=n(3), global_batch_size=n(8)),
        edcache.mix([ds, ds], [n(1), n(2)], num_samples=n(30)),
        ByLength(ds, np.arange(40), batch_size=n(4)),
    ):
        state = json.loads(json.dumps(sampler.state_dict(n(1), batch_size=n(1))))
        sampler.load_state_dict(state)
        assert sampler.state_dict(0) == state
