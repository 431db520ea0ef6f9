"""Transforms and other attributes that are set on a dataset; what is no index is refused."""

import pickle
import shutil

import numpy as np
import pytest
import torch
from filled import available
from likeness import same
from torch.utils.data import DataLoader, Subset, default_collate, random_split
from written import written

import edcache
from edcache import CachedDataset
from edcache.errors import ArchiveError, OptionError

COUNT = 8


def sample(k):
    return {"image": torch.full((2, 2), k, dtype=torch.uint8), "label": k % 3}


@pytest.fixture
def ds(tmp_path):
    return written(tmp_path / "a.zip", map(sample, range(COUNT)), in_memory_keys=["label"])


@pytest.fixture
def several(ds, tmp_path):
    shutil.copy(ds.path, tmp_path / "copy.zip")
    return CachedDataset.from_cache([ds.path, tmp_path / "copy.zip"])


def number(s):
    return {**s, "number": int(s["image"][0, 0])}


def negative(s):
    return {**s, "number": -int(s["image"][0, 0])}


def twice(s):
    return {**s, "number": 2 * s["number"]}


def numbers(dataset):
    """By every way to a sample."""
    every = list(range(len(dataset)))
    found = [dataset[k]["number"] for k in every]
    listed = [s["number"] for s in dataset.__getitems__(every)]
    loaded = [n for batch in DataLoader(dataset, 3) for n in batch["number"].tolist()]
    assert found == listed == loaded
    if not isinstance(dataset, Subset):
        own = [n for batch in dataset.loader(3) for n in batch["number"].tolist()]
        assert found == [s["number"] for s in dataset] == dataset.batch(every)["number"].tolist() == own
    return found


# --- transform --------------------------------------------------------------------------------------


def test_a_transform_that_is_set_is_that_of_later_reads(ds):
    assert ds.transform is None
    ds.transform = number
    assert ds.transform is number
    assert numbers(ds) == list(range(COUNT))
    ds.transform = negative
    assert numbers(ds) == [-k for k in range(COUNT)]
    assert numbers(pickle.loads(pickle.dumps(ds))) == [-k for k in range(COUNT)]
    ds.transform = None
    assert same(list(ds), [sample(k) for k in range(COUNT)])
    assert same(ds.batch([1, 2]), default_collate([sample(1), sample(2)]))


def test_subsets_and_views_see_it(ds):
    parts = [Subset(ds, [5, 2, 1]), *random_split(ds, [0.5, 0.5]), ds[2:5], ds.filter(label=1), ds[::-1][1:3]]
    chosen = [list(part.indices) for part in parts]
    doubled = ds[1:4].with_transform(twice)
    for transform, sign in ((number, 1), (negative, -1)):
        parts[0].dataset.transform = transform
        assert [numbers(part) for part in parts] == [[sign * k for k in places] for places in chosen]
        assert numbers(doubled) == [sign * 2 * k for k in (1, 2, 3)]
    ds.transform = None
    assert same([parts[3][0], parts[4][1]], [sample(2), sample(4)])


def test_a_view_may_have_its_own(ds):
    train, test = ds[:5], ds[5:]
    before = train[:2]
    train.transform = number
    assert train.transform is number
    assert numbers(train) == numbers(train[:]) == [0, 1, 2, 3, 4]
    assert numbers(train.with_transform(twice)[2:]) == [4, 6, 8]
    assert train.select("number")[3] == {"number": 3}
    assert same([test[0], before[1], ds[1]], [sample(5), sample(1), sample(1)])
    ds.transform = lambda s: {**s, "image": s["image"] + 10}
    assert numbers(train) == [10, 11, 12, 13, 14]
    train.transform = None
    assert same(train[1], sample(1) | {"image": sample(11)["image"]})


def test_it_gets_the_fields_that_were_selected_and_labels_stay(ds):
    view = ds.select("label")
    ds.transform = lambda s: {"number": -s["label"]}
    assert numbers(view) == [-(k % 3) for k in range(COUNT)]
    assert numbers(view[2:4]) == [-2, 0]
    assert view.labels["label"].tolist() == [k % 3 for k in range(COUNT)]


def test_datasets_that_were_put_together_see_it(ds, several, tmp_path):
    other = written(tmp_path / "b.zip", ({"other": k} for k in range(COUNT)))
    both = edcache.concat([ds, ds[:2]])
    zipped = edcache.zip_fields(ds, other)
    some = several[[1, COUNT + 2]]
    ds.transform = several.transform = number
    assert numbers(both) == [*range(COUNT), 0, 1]
    assert numbers(zipped) == list(range(COUNT))
    assert zipped.select("number", "other")[3] == {"number": 3, "other": 3}
    assert numbers(several) == [*range(COUNT)] * 2
    assert numbers(some) == [1, 2]
    assert several.transform is number
    both.transform = twice
    assert numbers(both[-3:]) == [14, 0, 2]


def finished(batch):
    return {**batch, "finished": True}


def test_a_batch_transform_that_is_set_is_that_of_later_batches(ds, several):
    view = ds[2:5]
    ds.batch_transform = several.batch_transform = finished
    both = edcache.concat([ds, ds])
    for dataset in (ds, view, both, several, several[3:6]):
        assert dataset.batch_transform is finished
        expected = finished(default_collate([sample(k % COUNT) for k in dataset.indices.tolist()]))
        assert same(dataset.batch(range(len(dataset))), expected)
        assert same(next(iter(DataLoader(dataset, 99))), expected)
        assert same(next(iter(dataset.loader(99))), expected)
    ds.batch_transform = None
    assert same(view.batch([0]), default_collate([sample(2)]))


def test_a_batch_transform_belongs_to_the_whole_dataset(ds):
    view = ds[:3]
    with pytest.raises(OptionError) as caught:
        view.batch_transform = finished
    assert str(caught.value) == (
        f"{view!r} uses the batch_transform of its dataset; set it there: dataset.batch_transform = ..."
    )


@pytest.mark.parametrize("name", ["transform", "batch_transform"])
def test_what_is_no_function_is_refused(ds, name):
    with pytest.raises(OptionError, match=f"^{name}='flip'; give a function, or None$"):
        setattr(ds, name, "flip")


# --- other attributes -------------------------------------------------------------------------------


def test_whatever_else_users_hang_on_a_dataset_stays_there(ds):
    for dataset in (ds, ds[:2], edcache.concat([ds, ds])):
        dataset.classes = ["a", "b", "c"]
        dataset.name = "mine"
        assert pickle.loads(pickle.dumps(dataset)).classes == ["a", "b", "c"]


def test_a_subclass_does_not_read_samples_in_a_way_that_batches_do_not_know():
    with pytest.raises(OptionError) as caught:

        class Flipped(CachedDataset):
            def __getitem__(self, index):
                return super().__getitem__(index)["image"].flip(0)

    assert str(caught.value) == (
        "class Flipped overrides __getitem__ but not __getitems__, by which a DataLoader reads; "
        "give a transform= instead, which batches and views know too"
    )


def test_a_subclass_that_says_how_both_are_read_is_read_so(ds):
    class Flipped(CachedDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)["label"] + 10

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    assert next(iter(DataLoader(Flipped(None, ds.path), 3))).tolist() == [10, 11, 12]


# --- with, and indices ------------------------------------------------------------------------------


def test_with_closes(ds, several):
    view = CachedDataset.from_cache(ds.path)[:5]
    for dataset in (ds, several, view):
        with dataset as opened:
            assert opened is dataset
            assert opened.complete
            assert same(opened[3], sample(3))
        with pytest.raises(ArchiveError, match="closed; open it again to read$"):
            dataset[3]


def test_with_publishes_what_a_lazy_cache_holds(tmp_path):
    with (
        pytest.raises(KeyError, match="stop"),
        CachedDataset(range(5), tmp_path / "l.zip", lazy=True) as lazy,
    ):
        assert [lazy[3], lazy[1]] == [3, 1]
        raise KeyError("stop")
    assert available(CachedDataset.from_cache(tmp_path / "l.zip", allow_partial=True)).indices.tolist() == [
        1,
        3,
    ]


ADVICE = "use an int, a slice, a list of ints, an int array or a bool mask"


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("index", "name"),
    [
        *((True, "bool"), (False, "bool"), (np.True_, "bool"), (torch.tensor(True), "Tensor")),
        *((1.0, "float"), (np.float32(1), "float32"), (None, "NoneType"), (..., "ellipsis")),
        *(((1, 2), "tuple"), ((), "tuple"), ((0, "label"), "tuple"), ({1}, "set")),
        *(([1, [2, 3]], "list"), (np.zeros((2, 2), int), "ndarray"), (b"label", "bytes")),
    ],
    ids=repr,
)
def test_what_is_no_index_is_refused(ds, index, name, whole):
    dataset = ds if whole else ds[1:]
    with pytest.raises(OptionError, match=f" of type {name}_?; {ADVICE}$"):
        dataset[index]


@pytest.mark.parametrize("name", ["label", "image"])
def test_a_name_is_no_index_and_the_message_says_what_to_do(ds, name):
    for dataset in (ds, ds[1:], CachedDataset.from_cache([ds.path])):
        with pytest.raises(OptionError) as caught:
            dataset[name]
        assert str(caught.value) == (
            f"index {name!r} of type str; {ADVICE}; ds.labels[{name!r}] is a label column, "
            f"ds.select({name!r}) is a view of this field"
        )
