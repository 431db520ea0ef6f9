"""ds.loader(): the batches of a DataLoader, made by threads, in memory that is used again."""

import gc
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from damage import flip_record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import same
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from written import write, written

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CorruptRecordError, MissingDependencyError, OptionError, SampleIndexError
from edcache.samplers import Shuffle

COUNT = 103


def sample(k):
    return {
        "image": torch.full((16, 16, 3), k % 256, dtype=torch.uint8),
        "label": k,
        "name": f"n{k}",
        "half": torch.full((3,), k, dtype=torch.bfloat16),
        "array": np.full((2, 2), k, np.int16),
    }


def expected(indices):
    return default_collate([sample(k) for k in indices])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("loader") / "a.zip"
    return write(path, map(sample, range(COUNT)), in_memory_keys=["label"], chunk_size=16)


@pytest.fixture
def ds(archive):
    return CachedDataset.from_cache(archive)


def labels(batches):
    return [label for batch in batches for label in batch["label"].tolist()]


def our_threads():
    return [t for t in threading.enumerate() if t.name.startswith("edcache-loader")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    if not set(threading.enumerate()) <= before:  # in a cycle of the test
        gc.collect()
    assert set(threading.enumerate()) <= before


def plain(k):
    return {"image": torch.full((4, 3), k % 256, dtype=torch.uint8), "pair": (k, np.float32(k)), "label": k}


@pytest.fixture(scope="module")
def plain_archive(tmp_path_factory):
    """Samples that can be gathered as a whole."""
    path = tmp_path_factory.mktemp("plain") / "a.zip"
    return write(path, map(plain, range(1000)), in_memory_keys=["label"], chunk_size=128)


# --- what it gives ----------------------------------------------------------------------------------


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, COUNT + 5),
    st.booleans(),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([None, "cpu"]),
)
def test_unshuffled_it_gives_the_batches_of_a_data_loader(ds, size, drop, threads, prefetch, device):
    loader = ds.loader(size, drop_last=drop, num_threads=threads, prefetch=prefetch, device=device)
    torchs = list(DataLoader(ds, size, drop_last=drop))
    assert len(loader) == len(torchs)
    count = 0
    for batch, other in zip(loader, torchs, strict=True):
        assert same(batch, other)
        count += 1
    assert count == len(torchs)


def test_it_works_on_views_selections_and_empty_datasets(ds):
    view = ds.filter("label >= 50")[3:20]
    assert labels(view.loader(4)) == list(range(53, 70))
    selected = view.select("label", "half", as_tuple=True)
    for batch, other in zip(selected.loader(4), DataLoader(selected, 4), strict=True):
        assert same(batch, other)
    nothing = ds.filter(label=1000)
    assert len(nothing.loader(4)) == 0
    assert list(nothing.loader(4)) == []
    assert list(ds.loader(COUNT + 1, drop_last=True)) == []


def test_with_batch_transform_it_gives_what_that_gives(archive):
    seen = []

    def finish(batch):
        seen.append(threading.current_thread().name)
        return batch["label"] * 2

    ds = CachedDataset.from_cache(archive, batch_transform=finish)
    assert torch.cat(list(ds.loader(10))).tolist() == [2 * k for k in range(COUNT)]
    assert len(seen) == 11
    assert all(name.startswith("edcache-loader") for name in seen)


# --- order ------------------------------------------------------------------------------------------


def test_shuffled_every_sample_comes_once_an_epoch(ds):
    loader = ds.loader(8, shuffle=True, seed=3)
    epochs = [labels(loader) for _ in range(3)]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    for batch in loader:
        assert same(batch, expected(batch["label"].tolist()))


def test_seed_and_epoch_determine_the_order(ds):
    one, other = ds.loader(8, shuffle=True, seed=3), ds.loader(8, shuffle=True, seed=3, num_threads=4)
    epochs = [labels(one) for _ in range(3)]
    assert [labels(other) for _ in range(3)] == epochs
    other.set_epoch(1)
    assert labels(other) == epochs[1]
    assert labels(other) == epochs[2]
    different = ds.loader(8, shuffle=True, seed=4)
    assert labels(different) != epochs[0]


def test_without_a_seed_torchs_generator_gives_one(ds):
    def first(seed):
        torch.manual_seed(seed)
        return labels(ds.loader(8, shuffle=True))

    assert first(1) == first(1)
    assert first(1) != first(2)


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_is_over_with_its_last_batch_whether_or_not_one_more_is_asked_for(ds, drop_last):
    """Lightning, and whoever counts batches, asks for no more."""
    whole = ds.loader(8, shuffle=True, seed=3, drop_last=drop_last)
    counted = ds.loader(8, shuffle=True, seed=3, drop_last=drop_last)
    for _ in range(3):
        iterator = iter(counted)
        found = [next(iterator)["label"].tolist() for _ in range(len(counted))]
        assert found == [batch["label"].tolist() for batch in whole]
    state = counted.state_dict()
    iterator.close()
    following = labels(whole)
    assert labels(counted) == following
    counted.load_state_dict(state)
    assert labels(counted) == following
    counted.load_state_dict(state)
    counted.set_epoch(2)
    assert labels(counted) == []


# --- samplers ---------------------------------------------------------------------------------------


def test_a_sampler_gives_the_order(ds):
    order = [5, 5, 102, 0, 7, 33]
    for sampler in (order, tuple(order), np.array(order), torch.tensor(order)):
        loader = ds.loader(4, sampler=sampler)
        assert len(loader) == 2
        assert labels(loader) == order
        assert labels(loader) == order
    assert labels(ds.loader(4, sampler=[-1, -COUNT])) == [102, 0]
    assert labels(ds.loader(4, sampler=order, drop_last=True)) == order[:4]
    assert labels(ds.loader(4, sampler=SequentialSampler(ds))) == list(range(COUNT))


def test_torchs_samplers_serve(ds):
    chosen = [3, 50, 99]
    assert sorted(labels(ds.loader(2, sampler=SubsetRandomSampler(chosen)))) == chosen
    weights = [1.0 if k in chosen else 0.0 for k in range(COUNT)]
    weighted = ds.loader(16, sampler=WeightedRandomSampler(weights, 200))
    assert len(weighted) == 13
    assert set(labels(weighted)) <= set(chosen)
    assert sorted(labels(ds.loader(9, sampler=RandomSampler(ds)))) == list(range(COUNT))


def test_ranks_share_an_epoch_and_are_told_of_it(ds):
    def epoch(number, ranks=3):
        of_ranks = []
        for rank in range(ranks):
            sampler = DistributedSampler(ds, ranks, rank, shuffle=True, seed=7, drop_last=True)
            loader = ds.loader(5, sampler=sampler)
            loader.set_epoch(number)
            assert len(loader) == len(list(loader)) == 7
            loader.set_epoch(number)
            sampler.set_epoch(number)
            found = labels(loader)
            sampler.set_epoch(number)
            assert found == list(sampler)
            of_ranks.append(found)
        return of_ranks

    first, second = epoch(0), epoch(1)
    assert len({label for rank in first for label in rank}) == 102
    assert first != second
    assert epoch(1) == second


def test_a_sampler_without_a_length_serves_once(ds):
    loader = ds.loader(4, sampler=(k for k in [1, 2, 3, 4, 5]))
    with pytest.raises(TypeError, match="generator has no length, so this loader has none"):
        len(loader)
    assert labels(loader) == [1, 2, 3, 4, 5]


def test_a_sampler_of_a_view_counts_in_the_view(ds):
    assert labels(ds[50:60].loader(2, sampler=[0, 9])) == [50, 59]


def test_a_sampler_of_a_dataset_of_another_length_is_refused(ds):
    view = ds.take(7)
    for one, other in ((ds, view), (view, ds)):
        text = f"made of a dataset of {len(one)} samples, this one has {len(other)}; make it of this one"
        with pytest.raises(OptionError, match=text):
            other.loader(4, sampler=Shuffle(one))
    rank = Shuffle(ds, num_replicas=2, rank=0)
    assert len(list(ds.select("label").loader(4, sampler=rank))) > 0


@pytest.mark.parametrize("sampler", [[1.5, 2.0], [True] * COUNT, [[1, 2], [3]], ["1"], [None]])
def test_a_sampler_of_anything_but_integers_is_an_error(ds, sampler):
    with pytest.raises((OptionError, TypeError, ValueError)):
        list(ds.loader(4, sampler=sampler))


# --- resuming ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "drop_last"),
    [(0, False), (1, True), (6, False), (6, True), (12, False), (12, True), (13, False)],
)
def test_a_state_taken_amid_an_epoch_continues_exactly(ds, taken, drop_last):
    loader = ds.loader(8, shuffle=True, seed=11, drop_last=drop_last)
    epochs = [[batch["label"].tolist() for batch in loader] for _ in range(3)]
    loader = ds.loader(8, shuffle=True, seed=11, drop_last=drop_last)
    list(loader)
    state = loader.state_dict()
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
        state = loader.state_dict()
    other = ds.loader(8, shuffle=True, drop_last=drop_last)
    other.load_state_dict(state)
    other.set_epoch(1)
    assert [batch["label"].tolist() for batch in other] == epochs[1][taken:]
    assert [batch["label"].tolist() for batch in other] == epochs[2]


def test_a_sampler_of_another_library_keeps_its_own_state(ds):
    sampler = DistributedSampler(ds, 2, 0, seed=3)
    loader = ds.loader(4, sampler=sampler)
    assert loader.sampler is sampler
    state = ds.loader(4).state_dict()
    for call in (loader.state_dict, lambda: loader.load_state_dict(state)):
        with pytest.raises(
            OptionError, match=r"^DistributedSampler is no sampler of edcache.samplers; save its own"
        ):
            call()


def test_an_xla_device_takes_torch_xla(ds, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    with pytest.raises(
        MissingDependencyError,
        match=r'device="xla:1" needs torch_xla; install it with: pip install edcache\[xla\]',
    ):
        ds.loader(4, device="xla:1")


# --- memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (2, 2), (4, 1), (1, 6)])
def test_a_batch_is_intact_until_the_next_but_one_is_asked_for(ds, threads, prefetch):
    loader = ds.loader(3, shuffle=True, seed=5, num_threads=threads, prefetch=prefetch)
    for _ in range(2):
        before = None
        for batch in loader:
            time.sleep(0.002)
            assert same(batch, expected(batch["label"].tolist()))
            if before is not None:
                held, order = before
                assert same(held, expected(order))
            before = batch, batch["label"].tolist()


@pytest.mark.parametrize(("threads", "prefetch"), [(1, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("size", [3, 7])
def test_small_batches_are_gathered_several_at_once(plain_archive, threads, prefetch, size):
    ds = CachedDataset.from_cache(plain_archive, batch_transform=lambda batch: {**batch, "more": 1})
    loader = ds.loader(size, shuffle=True, num_threads=threads, prefetch=prefetch)
    beside = 0
    for _ in range(4):
        seen, before = [], None
        for batch in loader:
            order = batch["label"].tolist()
            assert same(batch, {**default_collate([plain(k) for k in order]), "more": 1})
            if before is not None:
                image = before["image"]
                beside += image.data_ptr() + image.nbytes == batch["image"].data_ptr()
                assert not before["image"].any(), "the caller's own change is undone"
            batch["image"].zero_()
            seen += order
            before = batch
        assert sorted(seen) == list(range(1000))
    assert beside > len(loader)


@pytest.mark.parametrize(
    "put_together",
    [
        lambda ds: ds.select("image", "label"),
        lambda ds: ds.select("label", "image", as_tuple=True),
        lambda ds: edcache.concat([ds[:400], ds[300:]]).select("image", "label"),
        lambda ds: edcache.zip_fields(ds.select("image"), ds.select("label")),
        # Of which a batch is of integers or floats, as its first sample is.
        lambda ds: edcache.zip_fields(ds.select("image"), ds.with_transform(odd_or_half).select("value")),
    ],
    ids=["fields", "tuples", "several", "zipped", "zipped with a transform"],
)
def test_small_batches_gathered_at_once_are_those_of_a_data_loader(plain_archive, put_together):
    ds = put_together(CachedDataset.from_cache(plain_archive))
    for _ in range(2):
        for batch, other in zip(ds.loader(3), DataLoader(ds, 3), strict=True):
            assert same(batch, other)


def odd_or_half(sample):
    return {"value": sample["label"] if sample["label"] % 4 else 0.5}


def test_what_a_batch_transform_raises_amid_several_comes_at_its_batch(plain_archive):
    def check(batch):
        calls.append(batch["label"].tolist())
        if 500 in calls[-1]:
            raise ODD
        return batch

    loader = CachedDataset.from_cache(plain_archive, batch_transform=check).loader(3)
    for _ in range(3):
        calls = []
        found, error = consume(loader)
        assert (found, error) == (list(range(498)), ODD)
        assert len({tuple(call) for call in calls}) == len(calls), "a batch was transformed twice"


def test_all_batches_of_an_epoch_stay(ds):
    batches = list(ds.loader(3, shuffle=True, seed=5, num_threads=4))
    assert sorted(labels(batches)) == list(range(COUNT))
    for batch in batches:
        assert same(batch, expected(batch["label"].tolist()))
    assert len({batch["image"].data_ptr() for batch in batches}) == len(batches)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Samples of which a batch of five has 5 MB: memory that edcache keeps itself."""
    path = tmp_path_factory.mktemp("large") / "a.zip"
    write(path, ({"x": torch.full((1 << 20,), k, dtype=torch.uint8), "k": k} for k in range(40)))
    return CachedDataset.from_cache(path)


def test_large_memory_is_used_again(large):
    places = [batch["x"].data_ptr() for batch in large.repeat(20).loader(5)]
    assert len(set(places)) < len(places) / 3


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 7))
def test_what_is_held_of_a_batch_is_never_overwritten(ds, large, data, threads, prefetch, size):
    # Tensors, rows, views and arrays over them, held across epochs and let go in any order.
    parts = (
        lambda x: x,
        lambda x: x[-1],
        lambda x: x.flatten(1)[:, 1:],
        lambda x: x.numpy(),
        lambda x: x[0].numpy(),
    )
    held = []
    for dataset, name, label in ((large, "x", "k"), (ds, "image", "label")):
        loader = dataset.loader(size, shuffle=True, num_threads=threads, prefetch=prefetch)
        for _ in range(2):
            for batch in loader:
                part = data.draw(st.sampled_from(parts))
                samples = dataset.batch([int(k) for k in batch[label]])
                held.append((part(batch[name]), part(samples[name])))
                if data.draw(st.booleans()):
                    held.pop(data.draw(st.integers(0, len(held) - 1)))
    assert all(np.array_equal(one, other) for one, other in held)


def test_small_batches_have_storages_and_counts_of_changes_of_their_own(plain_archive):
    loader = CachedDataset.from_cache(plain_archive).loader(5)
    for _ in range(2):  # the first one learns that batches are small
        batches = list(loader)
    for name in ("image", "label"):
        tensors = [batch[name] for batch in batches]
        assert all(x.untyped_storage().nbytes() == x.numel() * x.itemsize for x in tensors)
        tensors[0].zero_()
        tensors[0].share_memory_()
        assert [x._version for x in tensors[1:]] == [0] * (len(tensors) - 1)
        assert not any(x.is_shared() for x in tensors[1:])


def test_a_batch_outlives_its_loader(ds):
    loader = ds.loader(50)
    *_, last = loader
    del loader
    gc.collect()
    assert same(last, expected(range(100, COUNT)))


@pytest.mark.parametrize("is_abandoned", [False, True])
def test_the_last_batch_of_an_epoch_is_intact_when_the_next_begins(ds, is_abandoned):
    loader = ds.loader(3, num_threads=3)
    for _ in range(3):
        for last in loader:
            if is_abandoned and last["label"][0] >= 30:
                break
        order = last["label"].tolist()
        iterator = iter(loader)
        first = next(iterator)
        time.sleep(0.01)
        assert same(last, expected(order))
        assert same(first, expected(range(3)))
        del iterator


def test_writing_into_a_batch_changes_no_other(ds):
    for batch in ds.loader(4):
        assert same(batch, expected(batch["label"].tolist()))
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.fill_(77)
    assert same(ds.batch(range(8)), expected(range(8)))


def test_batches_of_growing_size_fit(tmp_path):
    made = [{"x": torch.full((1 + k // 4 * 50, 7), k)} for k in range(40)]
    ds = written(tmp_path / "a.zip", made)
    order = [*range(40), *reversed(range(40))]
    for place, batch in enumerate(ds.loader(4, sampler=order)):
        assert same(batch, default_collate([made[k] for k in order[place * 4 : place * 4 + 4]]))


# --- what goes wrong --------------------------------------------------------------------------------


def consume(loader):
    found = []
    with pytest.raises(Exception) as caught:
        for batch in loader:
            found += batch["label"].tolist() if isinstance(batch, dict) else []
    return found, caught.value


def test_a_corrupt_record_raises_at_its_batch(tmp_path, archive):
    path = tmp_path / "b.zip"
    path.write_bytes(archive.read_bytes())
    flip_record(path, 45)
    ds = CachedDataset.from_cache(path)
    loader = ds.loader(10)
    found, error = consume(loader)
    assert type(error) is CorruptRecordError
    assert re.search("record 45 at offset .*: it fails its crc32", str(error))
    assert found == list(range(40))
    assert consume(loader)[0] == found
    assert labels(ds.loader(10, sampler=range(46, COUNT))) == list(range(46, COUNT))


def test_batches_before_the_one_that_fails_are_all_given(tmp_path):
    write(tmp_path / "a.zip", ({"label": k} for k in range(3000)))
    flip_record(tmp_path / "a.zip", 2777)
    for threads in (1, 3):
        loader = CachedDataset.from_cache(tmp_path / "a.zip").loader(1, num_threads=threads)
        for _ in range(2):
            assert consume(loader)[0] == list(range(2777))
            assert loader.state_dict()["consumed"] == 2777


class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(one)
        self.two = two


ODD = Odd("one", "two")


def raise_odd(_):
    raise ODD


@pytest.mark.parametrize("options", [{"transform": raise_odd}, {"batch_transform": raise_odd}])
def test_what_a_transform_raises_is_raised_as_it_is(archive, options):
    loader = CachedDataset.from_cache(archive, **options).loader(10)
    assert consume(loader)[1] is ODD
    assert consume(loader)[1] is ODD


def stop(_):
    raise StopIteration("from a transform")


@pytest.mark.parametrize("name", ["transform", "batch_transform"])
def test_a_stop_iteration_ends_no_epoch_silently(archive, name):
    ds = CachedDataset.from_cache(archive, **{name: stop})
    with pytest.raises((RuntimeError, StopIteration)):
        for _ in ds.loader(10):
            pass


def test_an_index_out_of_range_is_an_error(ds):
    with pytest.raises(SampleIndexError, match="103"):
        list(ds.loader(10, sampler=[0, 103]))


def test_what_does_not_stack_is_an_error(tmp_path):
    write(tmp_path / "a.zip", (torch.zeros(k) for k in range(4)))
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(CachedDataset.from_cache(tmp_path / "a.zip").loader(2))


def broken(loader):
    for _ in loader:
        break


def failed(loader):
    with pytest.raises(KeyError):
        for _ in loader:
            raise KeyError


def deleted(loader):
    iterator = iter(loader)
    next(iterator)
    assert our_threads()
    del iterator


def closed(loader):
    iterator = iter(loader)
    next(iterator)
    iterator.close()


def begun_only(loader):
    iter(loader)


def returned(loader):
    def first():
        for batch in loader:
            return batch
        return None

    assert first() is not None


def in_a_generator(loader):
    def doubled():
        for batch in loader:
            yield batch
            yield batch

    next(doubled())


@pytest.mark.parametrize("abandon", [broken, failed, deleted, closed, begun_only, returned, in_a_generator])
def test_abandoning_an_iteration_leaves_no_thread(ds, abandon):
    loader = ds.loader(2, num_threads=3, prefetch=4)
    abandon(loader)
    assert our_threads() == []
    assert labels(loader) == list(range(COUNT))
    assert our_threads() == []


EXITING = """
import sys, edcache
loader = edcache.CachedDataset.from_cache(sys.argv[1]).loader(2, shuffle=True)
iterator = iter(loader)
next(iterator)
print("bye")
"""


@pytest.mark.full
def test_a_process_that_holds_an_iteration_exits(archive):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXITING, archive], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")


COUNTING = """
import sys, threading, torch, edcache

def of_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]

torch.set_num_threads(2)
before = torch.get_num_threads(), of_a_new_thread()
loader = edcache.CachedDataset.from_cache(sys.argv[1]).loader(2, num_threads=8)
for _ in range(5):
    list(loader)
    assert before == (torch.get_num_threads(), of_a_new_thread())
print("left")
"""


@pytest.mark.full
def test_torchs_number_of_threads_is_left_as_it_is(archive):
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, archive], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "left\n", done.stderr


def test_torch_uses_no_other_threads_in_those_of_a_loader(archive):
    found = []
    ds = CachedDataset.from_cache(archive, batch_transform=lambda _: found.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        list(ds.loader(5))
    finally:
        torch.set_num_threads(before)
    assert set(found) == {1}


def test_two_loaders_in_two_threads_do_not_meet(ds):
    found = {}

    def run(seed):
        loader = ds.loader(7, shuffle=True, seed=seed)
        found[seed] = [same(batch, expected(batch["label"].tolist())) for _ in range(3) for batch in loader]

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(found[seed]) == 45 and all(found[seed]) for seed in range(4))


# --- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_size": 0}, "batch_size=0; give an integer of 1 or more"),
        ({"batch_size": -1}, "batch_size=-1; give an integer of 1 or more"),
        ({"batch_size": 2.0}, "batch_size=2.0; give an integer of 1 or more"),
        ({"batch_size": None}, "batch_size=None; give an integer of 1 or more"),
        (
            {"batch_size": None, "sampler": [[1]], "drop_last": True},
            "drop_last=True needs a batch_size; here the sampler makes the batches",
        ),
        (
            {"batch_size": 8, "sampler": Shuffle(range(9), global_batch_size=3)},
            "batch_size=8 and a Shuffle that gives batches; give batch_size=None",
        ),
        (
            {"batch_size": None, "sampler": Shuffle(range(9))},
            "batch_size=None and a Shuffle that gives positions; give a batch_size",
        ),
        ({"num_threads": 0}, "num_threads=0; give an integer of 1 or more"),
        ({"prefetch": 0}, "prefetch=0; give an integer of 1 or more"),
        (
            {"shuffle": True, "sampler": [1]},
            "shuffle=True cannot be combined with sampler=; let the sampler shuffle",
        ),
    ],
)
def test_wrong_options_are_refused(ds, options, text):
    with pytest.raises(OptionError) as caught:
        ds.loader(**{"batch_size": 4, **options})
    assert str(caught.value) == text


def test_a_device_is_where_the_batches_are(ds):
    (batch, *_) = ds.loader(8, device="cpu")
    assert batch["image"].device == torch.device("cpu")
    (batch, *_) = ds.loader(8, device=torch.device("meta"))
    assert batch["image"].device.type == batch["half"].device.type == "meta"
    assert batch["name"] == [f"n{k}" for k in range(8)]
    with pytest.raises(OptionError, match="device='nowhere': Expected one of cpu, cuda"):
        ds.loader(8, device="nowhere")


def test_a_growing_archive_is_read_as_it_was_when_the_loader_was_made(tmp_path):
    w = CacheWriter(tmp_path / "a.zip")
    w.extend(map(sample, range(10)))
    w.flush()
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    loader = ds.loader(4)
    assert labels(loader) == list(range(10))
    w.extend(map(sample, range(10, 20)))
    w.close()
    assert ds.refresh()
    assert labels(loader) == list(range(10))
    assert labels(ds.loader(4)) == list(range(20))
