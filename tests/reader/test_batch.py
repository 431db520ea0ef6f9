"""The bulk path gives what default_collate of the samples gives: values, dtypes, structure, types, errors."""

import functools
import pickle
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from sample_trees import Pair, numbers, trees
from scale import scaled
from torch.utils.data import DataLoader, Dataset, StackDataset, Subset, default_collate, random_split
from torch.utils.data._utils.collate import default_collate_fn_map
from written import written

from edcache import CachedDataset, CacheWriter
from edcache.dataset.indexing import batch_of
from edcache.reader import Group, collation

leaves = st.one_of(
    numbers,
    st.just(lambda k: torch.arange(k % 3)),
    st.just(lambda k: k),
    st.just(lambda k: k / 3),
    st.just(lambda k: k % 2 == 0),
    st.just(lambda k: "text" * (k % 3)),
    st.just(lambda k: bytes([k])),
    st.sampled_from("?bBhHiIlLqQefdFD").map(lambda code: lambda k: np.dtype(code).type(k * 0.3)),
    st.just(lambda k: [k] * 9),
    st.just(lambda k: None if k == 4 else k),
    st.just(lambda k: complex(k, 1)),
)


samples = st.recursive(leaves, lambda some: trees(some, ("a", "b", 3), 0), max_leaves=5)


@settings(max_examples=scaled(400, 100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples, st.lists(st.integers(-8, 7), min_size=1, max_size=6), st.sampled_from([None, "zstd"]))
def test_the_bulk_path_equals_default_collate_of_the_samples(tmp_path, make, indices, compression):
    ds = written(tmp_path / "a.zip", (make(k) for k in range(8)), "w", compression=compression, chunk_size=3)
    listed = ds.__getitems__(indices)
    assert same(listed, [ds[i] for i in indices])
    assert same(listed, [make(range(8)[i]) for i in indices])
    expected, error = outcome(lambda: default_collate(listed))
    for collated in (lambda: ds.batch(indices), lambda: default_collate([batch_of(ds, indices)])):
        found, found_error = outcome(collated)
        assert found_error == error
        assert same(found, expected)
        assert error or same(default_collate([ds[i] for i in indices]), expected)


@pytest.mark.parametrize("code", "?bBhHiIlLqQefdFD")
def test_extreme_numpy_scalars_are_collated_as_ever(tmp_path, code):
    dtype = np.dtype(code)
    values = [dtype.type(k) for k in (0, 1, 1, 0)]
    if dtype.kind in "iu":
        values += [np.iinfo(dtype).min, np.iinfo(dtype).max]
    elif dtype.kind in "fc":
        finite = np.finfo(dtype)
        values += [finite.min, finite.max, finite.smallest_subnormal, -0.0, np.inf, -np.inf, np.nan]
    ds = written(tmp_path / "a.zip", ({"x": dtype.type(value)} for value in values))
    everything = range(len(ds))
    expected, error = outcome(lambda: default_collate([ds[i] for i in everything]))
    found, found_error = outcome(lambda: ds.batch(everything))
    assert found_error == error
    assert same(found, expected)


def sample(i):
    return {"image": torch.full((2, 3), i, dtype=torch.uint8), "label": i % 4, "name": f"n{i}"}


@pytest.fixture
def ds(tmp_path):
    return written(tmp_path / "a.zip", map(sample, range(60)), in_memory_keys=["label"], chunk_size=16)


def images(loader):
    return torch.cat([batch["image"][:, 0, 0] for batch in loader]).tolist()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_hand_over_the_same_batches(ds, context):
    loader = DataLoader(ds, batch_size=7, num_workers=2, multiprocessing_context=context)
    batches = list(loader)
    assert same(batches[0], default_collate([sample(i) for i in range(7)]))
    assert images(batches) == list(range(60))
    batches[0]["image"].zero_()


def large(i):
    return {"image": torch.full((400, 400), i, dtype=torch.uint8), "pair": Pair(i, [f"n{i}", i / 2])}


def collated_within_a_function(batch):
    collated = default_collate(batch)
    assert type(collated) is dict
    return collated


@pytest.mark.parametrize("collate", [None, collated_within_a_function])
def test_large_tensors_are_gathered_into_what_a_worker_hands_over(tmp_path, collate):
    ds = written(tmp_path / "a.zip", map(large, range(12)))
    batches = list(DataLoader(ds, batch_size=4, num_workers=2, collate_fn=collate))
    assert all(same(b, default_collate([large(4 * k + i) for i in range(4)])) for k, b in enumerate(batches))
    assert all(batch["image"].is_shared() for batch in batches)


@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_a_worker_that_is_a_thread_gathers_into_memory_of_its_own_process(tmp_path, monkeypatch, method):
    info = SimpleNamespace(id=0, num_workers=1, seed=0, dataset=None, worker_method=method)
    monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", info)
    ds = written(tmp_path / "a.zip", map(large, range(4)))
    (batch,) = DataLoader(ds, batch_size=4)
    assert same(batch, default_collate([large(i) for i in range(4)]))
    assert batch["image"].is_shared() == (method == "multiprocessing")


def test_a_bare_tensor_array_or_number_is_collated_in_bulk(tmp_path, monkeypatch):
    monkeypatch.setattr(Group, "samples", None)  # a way that reads samples would fail
    for make in (lambda k: torch.full((3,), k), lambda k: np.full(3, k), lambda k: k, lambda k: k / 2):
        ds = written(tmp_path / "a.zip", map(make, range(9)), "w")
        for workers in (0, 1):
            batches = list(DataLoader(ds, batch_size=4, num_workers=workers))
            assert same(batches[1], default_collate([make(k) for k in range(4, 8)]))


def test_views_subsets_and_splits_keep_it(ds, monkeypatch):
    monkeypatch.setattr(Group, "samples", None)  # a way that reads samples would fail
    view = ds.filter(label=1)[2:9]
    wanted = list(range(1, 60, 4))[2:9]
    assert images(DataLoader(view, batch_size=3)) == wanted
    assert images(DataLoader(Subset(ds, [5, 9, 2]), batch_size=2)) == [5, 9, 2]
    left, right = random_split(ds, [20, 40])
    assert sorted(images(DataLoader(left, 7)) + images(DataLoader(right, 7))) == list(range(60))


def identity(batch):
    return batch


def stacked(batch):
    return torch.stack([s["image"] for s in batch])


def sorted_by_label(batch):
    batch.sort(key=lambda s: s["label"], reverse=True)
    return [s["label"] for s in batch]


class Wrapper(Dataset):
    """A dataset of the user's that hands its batches on."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitems__(self, indices):
        return [(s["name"], s["label"]) for s in self.dataset.__getitems__(indices)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("wrap", [lambda ds: ds, lambda ds: Subset(Subset(ds, range(60)), range(60))])
def test_a_collate_function_of_the_users_gets_a_list(ds, workers, wrap):
    def load(collate):
        return list(DataLoader(wrap(ds), batch_size=20, collate_fn=collate, num_workers=workers))

    expected = [[sample(i) for i in range(k, k + 20)] for k in (0, 20, 40)]
    batches = load(identity)
    assert [type(batch) for batch in batches] == [list] * 3
    assert same(batches, expected)
    assert same(load(stacked), [torch.stack([s["image"] for s in batch]) for batch in expected])
    assert same(load(sorted_by_label), [[3] * 5 + [2] * 5 + [1] * 5 + [0] * 5] * 3)
    assert same(load(functools.partial(default_collate)), list(map(default_collate, expected)))


def test_whoever_else_asks_for_samples_gets_a_list(ds):
    for dataset in (ds, ds[:], Subset(ds, range(60))):
        found = dataset.__getitems__([4, 59, 4])
        assert type(found) is list
        assert same(found, [sample(4), sample(59), sample(4)])
    assert same(pickle.loads(pickle.dumps(found)), found)
    found[0]["image"].zero_()
    assert same(found[2], sample(4))
    (batch,) = DataLoader(StackDataset(ds, ds), 60)
    assert same(batch, default_collate([(sample(k), sample(k)) for k in range(60)]))
    (batch,) = DataLoader(Wrapper(ds), 60)
    assert same(batch, default_collate([(sample(k)["name"], sample(k)["label"]) for k in range(60)]))


def test_samples_that_are_read_together_share_no_memory(tmp_path):
    def numbers(k):
        return (
            torch.full((3, 4), k, dtype=torch.bfloat16),
            np.full((2,), k, ">f4"),
            torch.tensor(k),
            [k, k / 2],
        )

    ds = written(tmp_path / "a.zip", map(numbers, range(9)))
    found = ds.__getitems__([4, 4, 7])
    assert same(found, [numbers(4), numbers(4), numbers(7)])
    assert [s[0].untyped_storage().nbytes() for s in found] == [24] * 3
    assert [s[1].flags.owndata and s[1].flags.writeable for s in found] == [True] * 3
    for s in found[:1]:
        s[0].zero_(), s[1].fill(0), s[2].zero_(), s[3].clear()
    assert same(found[1:], [numbers(4), numbers(7)])
    assert same(ds[4], numbers(4))


def test_a_batch_is_the_callers_own(ds):
    first = ds.batch([3, 4])
    first["image"].zero_()
    assert same(ds.batch([3, 4]), default_collate([sample(3), sample(4)]))


def test_a_forwarded_getitems_of_the_source_does_not_bypass_the_cache(tmp_path):
    class Source:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"x": i}

        def __getitems__(self, indices):
            raise AssertionError("the source was asked")

    ds = CachedDataset(Source(), tmp_path / "a.zip")
    assert ds.batch([2, 3])["x"].tolist() == [2, 3]


def test_memory_is_used_again_only_when_nothing_is_over_it(tmp_path):
    with CacheWriter(tmp_path / "a.zip", sync="never") as w:
        w.extend({"x": torch.full((300, 400), k, dtype=torch.uint8), "k": k} for k in range(120))
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    held, views, addresses = [], [], []
    for round_ in range(4):
        for number, batch in enumerate(DataLoader(ds, batch_size=40, shuffle=True)):
            addresses.append(batch["x"].data_ptr())
            if (round_ + number) % 3 == 0:
                held.append(batch)
            elif number == 1:
                views.append((batch["x"][7, 3], int(batch["k"][7])))
        assert all((batch["x"] == batch["k"][:, None, None]).all() for batch in held)
        assert all((view == k).all() for view, k in views)
    assert len(set(addresses)) < len(addresses)
    assert len({batch["x"].data_ptr() for batch in held}) == len(held)


NUMPY_SCALARS = next(kind for kind in default_collate_fn_map if isinstance(kind, tuple))


@pytest.mark.parametrize("kind", [torch.Tensor, int, np.int64, dict, Mapping, object, NUMPY_SCALARS])
def test_what_default_collate_was_taught_it_does_here_too(tmp_path, monkeypatch, kind):
    ds = written(tmp_path / "a.zip", ({"t": torch.full((2,), k), "k": k, "n": np.int64(k)} for k in range(4)))
    before = ds.batch([0, 1])
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, *, collate_fn_map: ["taught", len(batch)])
    expected = default_collate([ds[0], ds[1]])
    assert not same(expected, before)
    assert same(ds.batch([0, 1]), expected)
    assert same(default_collate([batch_of(ds, [0, 1])]), expected)


class TensorOfALibrary(torch.Tensor):
    pass


@pytest.mark.parametrize("kind", [slice, TensorOfALibrary])
def test_what_default_collate_was_taught_of_other_types_leaves_the_bulk_path(ds, monkeypatch, kind):
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, *, collate_fn_map: batch)
    monkeypatch.setattr(Group, "samples", None)
    assert ds.select("image").batch([0, 1])["image"].shape == (2, 2, 3)


@settings(max_examples=scaled(60, 20))
@given(st.data())
def test_rows_are_copied_alike_with_one_thread_and_with_several(data):
    draw, rng = data.draw, np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    nbytes, count = draw(st.sampled_from([1, 7, 8, 784, 40_000, 300_000])), draw(st.integers(0, 60))
    memory = rng.integers(0, 256, 1 << 20, np.uint8)
    table = np.ndarray(((len(memory) - nbytes) // 8 + 1, nbytes), np.uint8, memory, 0, (8, 1))
    if nbytes == 8 and draw(st.booleans()):
        table = memory.view(np.int64)
    places = rng.integers(0, len(table), count)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = torch.zeros((count, *table.shape[1:]), dtype=torch.from_numpy(table[:0]).dtype)
            collation.copy_rows(torch.from_numpy(table), torch.from_numpy(places), out)
            assert np.array_equal(out.numpy(), table[places])
    finally:
        torch.set_num_threads(before)
