"""The bulk path gives what default_collate of the samples gives: values, dtypes, structure, types, errors."""

import copy
import pickle
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from torch.utils.data import DataLoader, Subset, default_collate, random_split
from torch.utils.data._utils.collate import default_collate_fn_map

from edcache import CachedDataset, CacheWriter
from edcache.batch import Batch
from edcache.errors import CorruptRecordError, MissingSampleError, SampleIndexError

Pair = namedtuple("Pair", ["left", "right"])

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16),
    *(torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(getattr(torch, name) for name in ("uint16",) if hasattr(torch, name)),  # not in torch 2.2
]
ARRAYS = ["?", "u1", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", ">f4", "<u2", "U3", "M8[s]"]


def tensors(shape, dtype):
    return lambda k: (torch.arange(int(np.prod(shape))) + k).reshape(shape).to(dtype)


def arrays(shape, dtype):
    return lambda k: (np.arange(int(np.prod(shape))) % 7 + k % 5).reshape(shape).astype(dtype)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
leaves = st.one_of(
    st.builds(tensors, shapes, st.sampled_from(DTYPES)),
    st.builds(arrays, shapes, st.sampled_from(ARRAYS)),
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


def trees(children):
    keys = st.sampled_from(["a", "b", 3])
    return st.one_of(
        st.dictionaries(keys, children, max_size=3).map(
            lambda parts: lambda k: {key: part(k) for key, part in parts.items()}
        ),
        st.dictionaries(keys, children, min_size=1, max_size=2).map(
            lambda parts: lambda k: OrderedDict((key, part(k)) for key, part in parts.items())
        ),
        st.lists(children, max_size=3).map(lambda parts: lambda k: tuple(part(k) for part in parts)),
        st.lists(children, max_size=3).map(lambda parts: lambda k: [part(k) for part in parts]),
        st.tuples(children, children).map(lambda parts: lambda k: Pair(parts[0](k), parts[1](k))),
    )


samples = st.recursive(leaves, trees, max_leaves=5)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(samples, st.lists(st.integers(-8, 7), min_size=1, max_size=6), st.sampled_from([None, "zstd"]))
def test_the_bulk_path_equals_default_collate_of_the_samples(tmp_path, make, indices, compression):
    with CacheWriter(tmp_path / "a.zip", "w", compression=compression, chunk_size=3) as w:
        w.extend(make(k) for k in range(8))
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    expected, error = outcome(lambda: default_collate([ds[i] for i in indices]))
    for collated in (lambda: ds.batch(indices), lambda: default_collate(ds.__getitems__(indices))):
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
    with CacheWriter(tmp_path / "a.zip") as w:
        w.extend({"x": dtype.type(value)} for value in values)
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    everything = range(len(ds))
    expected, error = outcome(lambda: default_collate([ds[i] for i in everything]))
    found, found_error = outcome(lambda: ds.batch(everything))
    assert found_error == error
    assert same(found, expected)


def sample(i):
    return {"image": torch.full((2, 3), i, dtype=torch.uint8), "label": i % 4, "name": f"n{i}"}


@pytest.fixture
def ds(tmp_path):
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["label"], chunk_size=16) as w:
        w.extend(map(sample, range(60)))
    return CachedDataset.from_cache(tmp_path / "a.zip")


def images(loader):
    return torch.cat([batch["image"][:, 0, 0] for batch in loader]).tolist()


def test_a_plain_data_loader_gets_it(ds):
    (batch,) = DataLoader(ds, batch_size=60)
    assert same(batch, default_collate([sample(i) for i in range(60)]))


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
    with CacheWriter(tmp_path / "a.zip") as w:
        w.extend(map(large, range(12)))
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    batches = list(DataLoader(ds, batch_size=4, num_workers=2, collate_fn=collate))
    assert all(same(b, default_collate([large(4 * k + i) for i in range(4)])) for k, b in enumerate(batches))
    assert all(batch["image"].is_shared() for batch in batches)


def test_a_bare_tensor_array_or_number_is_collated_in_bulk(tmp_path):
    for make in (lambda k: torch.full((3,), k), lambda k: np.full(3, k), lambda k: k, lambda k: k / 2):
        with CacheWriter(tmp_path / "a.zip", "w") as w:
            w.extend(map(make, range(9)))
        ds = CachedDataset.from_cache(tmp_path / "a.zip")
        ds._read_many = None  # a way that reads samples one by one would fail
        for workers in (0, 1):
            batches = list(DataLoader(ds, batch_size=4, num_workers=workers))
            assert same(batches[1], default_collate([make(k) for k in range(4, 8)]))


def test_views_subsets_and_splits_keep_it(ds):
    view = ds.filter(label=1)[2:9]
    wanted = list(range(1, 60, 4))[2:9]
    assert images(DataLoader(view, batch_size=3)) == wanted
    assert isinstance(view.__getitems__([0, 1]), Batch)
    subset = Subset(ds, [5, 9, 2])
    assert isinstance(subset.__getitems__([2, 0]), Batch)
    assert images(DataLoader(subset, batch_size=2)) == [5, 9, 2]
    left, right = random_split(ds, [20, 40])
    assert sorted(images(DataLoader(left, 7)) + images(DataLoader(right, 7))) == list(range(60))


def test_any_other_collate_function_sees_ordinary_samples(ds):
    seen = []
    for batch in DataLoader(ds, batch_size=20, collate_fn=lambda batch: batch):
        assert len(batch) == 20
        assert [type(s) for s in batch] == [dict] * 20
        seen += list(batch)
        assert isinstance(batch[0], dict)
        assert same(dict(batch[0]), dict(batch[-20]))
        assert same(batch[1:3], [batch[1], batch[2]])
        with pytest.raises(IndexError):
            batch[20]
    assert [s["name"] for s in seen] == [f"n{i}" for i in range(60)]


def test_a_list_made_of_a_batch_collates_too(ds):
    batch = ds.__getitems__([4, 5, 6])
    expected = default_collate([sample(i) for i in (4, 5, 6)])
    assert same(default_collate(list(batch)), expected)
    assert same(default_collate([batch[i] for i in range(3)]), expected)


def test_copies_and_pickles_are_ordinary(ds):
    batch = ds.__getitems__([4, 5])
    assert [type(s) for s in pickle.loads(pickle.dumps(batch))] == [dict, dict]
    for twin in (copy.copy(batch[0]), copy.deepcopy(batch[0]), pickle.loads(pickle.dumps(batch[0]))):
        assert type(twin) is dict
        assert same(twin, sample(4))


def test_a_batch_is_the_callers_own(ds):
    first = ds.batch([3, 4])
    first["image"].zero_()
    assert same(ds.batch([3, 4]), default_collate([sample(3), sample(4)]))


def test_a_corrupt_record_is_named_as_in_a_single_read(ds):
    row = int(ds.reader.records.offset[7])
    with open(ds.path, "r+b") as file:
        file.seek(row)
        file.write(b"\xff")
    with pytest.raises(CorruptRecordError, match="record 7 at offset .*: crc32 0x"):
        CachedDataset.from_cache(ds.path).batch([1, 7, 2])
    unverified = CachedDataset.from_cache(ds.path, verify="never").batch([7, 8])
    assert unverified["image"].shape == (2, 2, 3)


def test_missing_samples_and_wrong_indices_are_errors(tmp_path, ds):
    with CacheWriter(tmp_path / "sparse.zip") as w:
        for i in (1, 3, 5):
            w.write(i, {"x": torch.tensor(i)})
    sparse = CachedDataset.from_cache(tmp_path / "sparse.zip")
    assert sparse.batch([5, 1])["x"].tolist() == [5, 1]
    with pytest.raises(MissingSampleError, match="sample 2 has no record yet"):
        sparse.batch([1, 2])
    with pytest.raises(SampleIndexError, match="60"):
        ds.batch([0, 60])


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


def sorted_by_label(batch):
    batch.sort(key=lambda s: s["label"], reverse=True)
    return [s["label"] for s in batch]


def changed_like_a_list(batch):
    batch[0] = {**batch[0], "label": 100}
    del batch[1]
    batch.append({**batch[0], "label": 200})
    batch.insert(0, {**batch[0], "label": 300})
    assert len(batch) == 5
    doubled = batch + batch.copy()
    assert [s["label"] for s in doubled] == [s["label"] for s in batch] * 2
    return default_collate(batch)["label"].tolist()


def test_a_collate_function_may_use_a_batch_as_a_list(ds):
    (labels,) = DataLoader(ds[:4], batch_size=4, collate_fn=sorted_by_label)
    assert labels == [3, 2, 1, 0]
    (labels,) = DataLoader(ds[:4], batch_size=4, collate_fn=changed_like_a_list)
    assert labels == [300, 100, 2, 3, 200]


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


@pytest.mark.parametrize("kind", [torch.Tensor, int, np.int64, dict, NUMPY_SCALARS])
def test_what_default_collate_was_taught_it_does_here_too(tmp_path, monkeypatch, kind):
    with CacheWriter(tmp_path / "a.zip") as w:
        w.extend({"t": torch.full((2,), k), "k": k, "n": np.int64(k)} for k in range(4))
    ds = CachedDataset.from_cache(tmp_path / "a.zip")
    before = ds.batch([0, 1])
    monkeypatch.setitem(default_collate_fn_map, kind, lambda batch, *, collate_fn_map: ["taught", len(batch)])
    expected = default_collate([ds[0], ds[1]])
    assert not same(expected, before)
    assert same(ds.batch([0, 1]), expected)
    assert same(default_collate(ds.__getitems__([0, 1])), expected)


def test_what_default_collate_was_taught_of_other_types_leaves_the_bulk_path(ds, monkeypatch):
    monkeypatch.setitem(default_collate_fn_map, slice, lambda batch, *, collate_fn_map: batch)
    monkeypatch.setattr(CachedDataset, "_read_many", None)
    assert ds.select("image").batch([0, 1])["image"].shape == (2, 2, 3)
