"""transform= and batch_transform=: where and how often they run, and that nothing of them is kept."""

import os
import pickle
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from likeness import same
from torch.utils.data import DataLoader, Subset, default_collate
from written import write

import edcache
from edcache import CachedDataset, cachable
from edcache.dataset.indexing import batch_of
from edcache.errors import CorruptRecordError, OptionError

COUNT = 24


def sample(k):
    return {"image": torch.full((3, 2), k, dtype=torch.uint8), "label": k, "ids": torch.arange(k % 4)}


class Source:
    in_memory_keys = ("label",)

    def __len__(self):
        return COUNT

    def __getitem__(self, k):
        return sample(k)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.zip", map(sample, range(COUNT)), in_memory_keys=["label"], chunk_size=10)


class Counted:
    """A function that notes what it gets."""

    def __init__(self, function):
        self.function, self.seen = function, []

    def __call__(self, value):
        self.seen.append(value)
        return self.function(value)

    def calls(self):
        count = len(self.seen)
        self.seen.clear()
        return count


def doubled(s):
    return {"image": s["image"].float() * 2, "label": s["label"] + 1000}


def expected(indices):
    return [doubled(sample(k)) for k in indices]


def with_pid(value):
    return {"pid": os.getpid(), "value": value}


# --- transform --------------------------------------------------------------------------------------


@pytest.fixture
def live(path):
    transform = Counted(doubled)
    ds = CachedDataset.from_cache(path, transform=transform)
    return ds, transform


def test_every_sample_is_transformed_each_time_it_is_read(live):
    ds, transform = live
    assert same(ds[5], expected([5])[0])
    assert same(ds[-1], expected([COUNT - 1])[0])
    assert transform.calls() == 2
    assert same(list(ds), expected(range(COUNT)))
    assert transform.calls() == COUNT
    for _ in range(3):
        ds[5]
    assert transform.calls() == 3
    assert ds[np.int64(4)]["label"] == 1004
    assert next(iter(ds))["label"] == 1000


def as_it_is(batch):
    return list(batch)


def test_every_way_to_a_batch_transforms_each_sample_once(live):
    ds, transform = live
    indices = [5, 3, 5, -1]
    wanted = expected([5, 3, 5, COUNT - 1])
    collate = edcache.collate(as_list=["image"])
    for make, result in (
        (lambda: ds.batch(indices), default_collate(wanted)),
        (lambda: default_collate([batch_of(ds, indices)]), default_collate(wanted)),
        (lambda: default_collate(list(ds.__getitems__(indices))), default_collate(wanted)),
        (lambda: next(iter(DataLoader(ds, 4, sampler=indices))), default_collate(wanted)),
        (lambda: next(iter(DataLoader(ds, 4, sampler=indices, collate_fn=as_it_is))), wanted),
        (lambda: next(iter(ds.loader(4, sampler=indices))), default_collate(wanted)),
        (lambda: collate([batch_of(ds, indices)]), collate(wanted)),
        (lambda: next(iter(DataLoader(ds, 4, sampler=indices, collate_fn=collate))), collate(wanted)),
    ):
        assert same(make(), result)
        assert transform.calls() == 4


def test_it_gets_what_was_selected(path):
    transform = Counted(lambda s: s)
    ds = CachedDataset.from_cache(path, transform=transform)
    assert same(ds.select("label", "image")[3], {"label": 3, "image": sample(3)["image"]})
    assert same(ds.select("label", as_tuple=True)[3], (3,))
    assert same(ds.select("label", "ids").select("ids")[3], {"ids": sample(3)["ids"]})
    assert ds.select("label").batch([3, 4])["label"].tolist() == [3, 4]
    assert [set(s) for s in transform.seen] == [{"label", "image"}, {3}, {"ids"}, {"label"}, {"label"}]


def test_it_may_give_anything(path):
    for value in (None, 7, "text", object, {"x": {1}}, [torch.ones(2)]):
        ds = CachedDataset.from_cache(path, transform=lambda _, value=value: value)
        assert ds[3] is value
        assert list(ds.__getitems__([1, 2])) == [value, value]
    with pytest.raises(TypeError, match="NoneType"):
        CachedDataset.from_cache(path, transform=lambda _: None).batch([1])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_it_runs_in_the_worker(path, context):
    ds = CachedDataset.from_cache(path, transform=with_pid)
    loader = DataLoader(ds[:8].select("label"), 4, num_workers=2, multiprocessing_context=context)
    batches = list(loader)
    assert [batch["value"]["label"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    pids = {int(pid) for batch in batches for pid in batch["pid"]}
    assert len(pids) == 2
    assert os.getpid() not in pids


def shift(s):
    s["image"].add_(1)
    s["label"] += 1
    s["more"] = s.pop("ids")
    return s


def test_it_may_change_the_sample_in_place(path):
    ds = CachedDataset.from_cache(path, transform=shift)
    for _ in range(2):
        assert ds[5]["label"] == 6
        assert ds[5]["image"].unique().tolist() == [6]
        assert ds.select("image", "label", "ids").batch([5, 9])["label"].tolist() == [6, 10]
        assert ds.select("image", "label", "ids").batch([5, 9])["image"][:, 0, 0].tolist() == [6, 10]
    assert same(list(CachedDataset.from_cache(path)), [sample(k) for k in range(COUNT)])


def test_duplicates_in_a_batch_are_transformed_apart(path):
    ds = CachedDataset.from_cache(path, transform=shift)
    assert [s["label"] for s in ds.__getitems__([5, 5, 5])] == [6, 6, 6]
    assert [int(s["image"][0, 0]) for s in ds.__getitems__([5, 5, 5])] == [6, 6, 6]


class Odd(Exception):
    pass


def refuse_seven(s):
    if s["label"] == 7:
        raise Odd("seven")
    return s


def test_what_it_raises_is_raised_as_it_is(path):
    ds = CachedDataset.from_cache(path, transform=refuse_seven)
    for read in (
        lambda: ds[7],
        lambda: list(ds),
        lambda: ds.batch([6, 7]),
        lambda: list(ds.__getitems__([7])),
        lambda: list(DataLoader(ds.select("label", "image"), 8)),
        lambda: list(DataLoader(ds.select("label"), 8, num_workers=1)),
        lambda: list(ds.select("label").loader(8)),
    ):
        with pytest.raises(Odd, match="seven"):
            read()
    assert ds[8]["label"] == 8


@pytest.mark.full
def test_a_damaged_record_is_not_transformed(path):
    offset = int(CachedDataset.from_cache(path)._archive.reader.session.index.all_rows()["offset"][7])
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff")
    transform = Counted(lambda s: s)
    ds = CachedDataset.from_cache(path, transform=transform)
    with pytest.raises(CorruptRecordError, match="record 7 at offset"):
        ds[7]
    assert transform.calls() == 0


# --- batch_transform --------------------------------------------------------------------------------


@pytest.fixture
def finished(path):
    finish = Counted(lambda batch: ("finished", batch))
    return CachedDataset.from_cache(path, batch_transform=finish), finish


def test_every_collated_batch_is_transformed_once(finished):
    ds, finish = finished
    view = ds.select("image", "label")
    indices = [5, 3, -1]
    wanted = default_collate(
        [{name: sample(k)[name] for name in ("image", "label")} for k in (5, 3, COUNT - 1)]
    )
    ragged = edcache.collate(pad={"ids": 0})
    padded = ragged([sample(k) for k in (5, 3, COUNT - 1)])
    for make, result in (
        (lambda: view.batch(indices), wanted),
        (lambda: default_collate([batch_of(view, indices)]), wanted),
        (lambda: next(iter(DataLoader(view, 3, sampler=indices))), wanted),
        (lambda: next(iter(DataLoader(Subset(view, indices), 3))), wanted),
        (lambda: next(iter(view.loader(3, sampler=indices))), wanted),
        (lambda: view[3:].batch([2, 0, -1]), wanted),
        (lambda: ragged([batch_of(ds, indices)]), padded),
        (lambda: next(iter(DataLoader(ds, 3, sampler=indices, collate_fn=ragged))), padded),
        (lambda: edcache.collate(as_list=["label"])([batch_of(view, [4])]), None),
    ):
        found = make()
        assert type(found) is tuple
        assert found[0] == "finished"
        assert result is None or same(found[1], result)
        assert finish.calls() == 1


def test_a_batch_that_is_collated_from_samples_is_transformed_once_too(path):
    finish = Counted(lambda batch: ("finished", batch))
    transform = Counted(doubled)
    ds = CachedDataset.from_cache(path, transform=transform, batch_transform=finish)
    ragged = edcache.collate(as_list=["image"])
    for make in (
        lambda: ds.batch([3, 4]),
        lambda: default_collate([batch_of(ds, [3, 4])]),
        lambda: next(iter(DataLoader(ds, 2, sampler=[3, 4]))),
        lambda: next(iter(ds.loader(2, sampler=[3, 4]))),
        lambda: ragged([batch_of(ds, [3, 4])]),
    ):
        name, batch = make()
        assert name == "finished"
        assert batch["label"].tolist() == [1003, 1004]
        assert (finish.calls(), transform.calls()) == (1, 2)


def test_samples_and_other_collate_functions_are_left_alone(finished):
    ds, finish = finished
    assert same(ds[3], sample(3))
    assert same(list(ds[:4]), [sample(k) for k in range(4)])
    assert same(list(ds.__getitems__([3, 4])), [sample(3), sample(4)])
    assert same(next(iter(DataLoader(ds, 2, collate_fn=as_it_is))), [sample(0), sample(1)])
    assert same(next(iter(DataLoader(ds, None))), sample(0))
    assert finish.calls() == 0


def looked_at(batch):
    assert len(batch) == 3
    assert all(s["label"] >= 0 for s in batch)
    return default_collate(batch)


def test_a_collate_function_of_the_users_that_ends_in_torchs_own_makes_a_batch_of_its_own(finished):
    ds, finish = finished
    found = next(iter(DataLoader(ds.select("label"), 3, collate_fn=looked_at)))
    assert same(found, {"label": torch.arange(3)})
    assert finish.calls() == 0


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("collate", [None, edcache.collate(as_list=["image"])])
def test_it_runs_in_the_worker_where_there_is_one(path, context, collate):
    ds = CachedDataset.from_cache(path, batch_transform=with_pid).select("image", "label")
    options = {"num_workers": 2, "multiprocessing_context": context}
    batches = list(DataLoader(ds, 6, collate_fn=collate, **options))
    pids = {batch["pid"] for batch in batches}
    assert len(pids) == 2
    assert os.getpid() not in pids
    here = list(DataLoader(ds, 6, collate_fn=collate))
    assert {batch["pid"] for batch in here} == {os.getpid()}
    assert all(
        list(one["value"]["image"]) and same(one["value"]["label"], other["value"]["label"])
        for one, other in zip(batches, here, strict=True)
    )


def refuse(batch):
    raise Odd("batch")


def test_what_it_raises_for_a_batch_is_raised_as_it_is(path):
    ds = CachedDataset.from_cache(path, batch_transform=refuse).select("label")
    for read in (
        lambda: ds.batch([1]),
        lambda: default_collate([batch_of(ds, [1])]),
        lambda: list(DataLoader(ds, 2)),
        lambda: list(DataLoader(ds, 2, num_workers=1)),
        lambda: list(ds.loader(2)),
        lambda: edcache.collate()([batch_of(ds, [1])]),
    ):
        with pytest.raises(Odd, match="batch"):
            read()
    assert ds[3] == {"label": 3}


# --- what a worker sends ----------------------------------------------------------------------------

Point = edcache.register(namedtuple("Point", ["x", "y"]))


def odd_tensors(batch):
    """Whatever a transform may make of a batch."""
    n = len(batch["label"])
    base = torch.arange(24.0).reshape(4, 6)
    once = torch.ones(n)
    return {
        "batch": batch,
        "strided": base[::2, 1::3],
        "transposed": base.T,
        "expanded": torch.ones(3, 1).expand(3, 4),
        "empty": torch.empty(0, 3, dtype=torch.int16),
        "scalar": torch.tensor(5),
        "grad": torch.ones(2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "bfloat16": torch.ones(3, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "uint16": torch.tensor([1, 65535], dtype=getattr(torch, "uint16", torch.int32)),  # not in torch 2.2
        "large": torch.arange(200_000).reshape(2, -1),
        "array": np.arange(3),
        "point": Point(torch.ones(1), {"a": [torch.zeros(2)]}),
        "ordered": OrderedDict(b=torch.ones(1), a=(torch.ones(1), None, "text")),
        "set": {1, 2},
        "object": Thing(torch.arange(3)),
        "one": once,
        "other": once,
    }


class Thing:
    def __init__(self, tensor):
        self.tensor = tensor

    def __eq__(self, other):
        return self.tensor.equal(other.tensor)

    __hash__ = None


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("collate", [None, edcache.collate(as_list=["image"])])
def test_whatever_it_makes_arrives_as_it_was(path, context, collate):
    ds = CachedDataset.from_cache(path, batch_transform=odd_tensors).select("image", "label")
    here = list(DataLoader(ds, 12, collate_fn=collate))
    there = list(DataLoader(ds, 12, num_workers=1, collate_fn=collate, multiprocessing_context=context))
    for one, other in zip(there, here, strict=True):
        assert list(one) == list(other)
        for name in one:
            if name == "batch":
                assert same(list(one[name]["image"]), list(other[name]["image"]))
                assert same(one[name]["label"], other[name]["label"])
            else:
                assert same(one[name], other[name]), name
        assert one["grad"].requires_grad
        assert one["parameter"].requires_grad
        assert not one["strided"].requires_grad
        for name in ("strided", "bfloat16", "large", "bool"):
            one[name].fill_(1)


# --- nothing is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_nothing_of_a_transform_is_stored(tmp_path, lazy):
    transform, finish = Counted(shift), Counted(lambda batch: batch)
    ds = CachedDataset(
        Source(), tmp_path / "a.zip", lazy=lazy, transform=transform, batch_transform=finish, chunk_size=7
    )
    assert (transform.calls(), finish.calls()) == (0, 0)
    assert [ds[k]["label"] for k in range(COUNT)] == list(range(1, COUNT + 1))
    assert [int(ds[k]["image"][0, 0]) for k in range(COUNT)] == list(range(1, COUNT + 1))
    assert transform.calls() == 2 * COUNT
    ds.warmup()
    assert transform.calls() == 0
    ds.close()
    stored = CachedDataset.from_cache(tmp_path / "a.zip")
    assert same(list(stored), [sample(k) for k in range(COUNT)])
    assert stored.labels["label"].tolist() == list(range(COUNT))
    assert same(list(CachedDataset(Source(), tmp_path / "a.zip")), [sample(k) for k in range(COUNT)])


def test_a_lazy_cache_gives_a_sample_that_may_be_changed_in_place(tmp_path):
    ds = CachedDataset(Source(), tmp_path / "a.zip", lazy=True, transform=shift, chunk_size=100)
    found = [s["label"] for s in ds.__getitems__(list(range(COUNT)))]
    assert found == list(range(1, COUNT + 1))
    ds.close()
    assert same(list(CachedDataset.from_cache(tmp_path / "a.zip")), [sample(k) for k in range(COUNT)])


class Kept(Source):
    """A source whose samples are its own: what is changed in place stays changed there."""

    def __init__(self):
        self.samples = [sample(k) for k in range(COUNT)]

    def __getitem__(self, k):
        return self.samples[k]


def test_a_source_that_keeps_its_samples_has_them_transformed_once(tmp_path):
    source = Kept()
    ds = CachedDataset(source, tmp_path / "a.zip", lazy=True, transform=lambda s: s["label"], chunk_size=100)
    assert [ds[k] for k in range(COUNT)] == list(range(COUNT))
    assert [ds[k] for k in range(COUNT)] == list(range(COUNT))


def test_the_same_archive_opens_with_any_transform_or_none(tmp_path):
    first = CachedDataset(Source(), tmp_path / "a.zip", transform=doubled)
    data = (tmp_path / "a.zip").read_bytes()
    second = CachedDataset(Source(), tmp_path / "a.zip", transform=lambda s: s["label"])
    third = CachedDataset(Source(), tmp_path / "a.zip")
    assert (first[3]["label"], second[3], third[3]["label"]) == (1003, 3, 3)
    assert (tmp_path / "a.zip").read_bytes() == data


# --- the decorator ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_a_decorated_factory_transforms_at_its_first_call_and_later(tmp_path, lazy):
    transform, finish = Counted(doubled), Counted(with_pid)
    made = []

    @cachable(tmp_path / "a.zip", transform=transform, batch_transform=finish, lazy=lazy)
    def factory():
        made.append(1)
        return Source()

    for _ in range(3):
        ds = factory()
        assert transform.calls() == 0
        assert same(list(ds), expected(range(COUNT)))
        assert transform.calls() == COUNT
        batch = ds.batch([3, 4])
        assert batch["pid"] == os.getpid()
        assert same(batch["value"], default_collate(expected([3, 4])))
        assert (transform.calls(), finish.calls()) == (2, 1)
        ds.close()
    assert len(made) == 1
    assert same(list(CachedDataset.from_cache(tmp_path / "a.zip")), [sample(k) for k in range(COUNT)])


def test_another_transform_makes_no_archive_stale(tmp_path):
    def factory():
        return Source()

    one = cachable(tmp_path / "a.zip", transform=doubled)(factory)
    other = cachable(tmp_path / "a.zip")(factory)
    assert one()[3]["label"] == 1003
    assert other()[3]["label"] == 3
    assert one()[3]["label"] == 1003


def test_from_cache_refuses_what_it_does_not_take(path):
    with pytest.raises(OptionError) as caught:
        CachedDataset.from_cache(path, transforms=doubled)
    assert str(caught.value) == (
        "from_cache() takes no transforms; did you mean transform? It takes allow_partial, allow_pickle, "
        "batch_transform, decode, expected_digest, local, max_bytes, preload, storage_options, "
        "transform, verify"
    )


def test_both_go_along_in_a_pickle(path):
    ds = CachedDataset.from_cache(path, transform=doubled, batch_transform=with_pid)
    for twin in (pickle.loads(pickle.dumps(ds)), pickle.loads(pickle.dumps(ds[2:]))[1:], ds.refresh() or ds):
        assert same(twin[3]["image"].dtype, torch.float32)
        assert twin.batch([3])["pid"] == os.getpid()
