"""with_transform(): the functions that samples pass on their way out."""

import pickle

import pytest
import torch
from likeness import same
from torch.utils.data import DataLoader, default_collate
from written import write

from edcache import CachedDataset
from edcache.dataset.indexing import batch_of
from edcache.errors import OptionError

COUNT = 12


def sample(k):
    return {"image": torch.full((2, 2), k, dtype=torch.uint8), "label": k % 3, "box": {"left": k}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("transforms") / "a.zip"
    return write(path, map(sample, range(COUNT)), in_memory_keys=["label"])


@pytest.fixture
def ds(path):
    return CachedDataset.from_cache(path)


def doubled(value):
    return value * 2


def numbered(sample):
    return {**sample, "number": int(sample["image"][0, 0])}


def test_transforms_run_in_the_order_given_after_the_caches_own(path):
    ds = CachedDataset.from_cache(path, transform=lambda s: [s["label"]])
    view = ds.with_transform(lambda s: [*s, "first"]).with_transform(lambda s: [*s, "second"])
    assert view[4] == [1, "first", "second"]
    assert ds[4] == [1]


def test_one_field_is_transformed_and_the_rest_is_as_it_was(ds):
    view = ds.with_transform(doubled, field="image").with_transform(field="box.left", fn=doubled)
    assert same(view[5], {"image": sample(5)["image"] * 2, "label": 2, "box": {"left": 10}})
    assert same(ds[5], sample(5))
    pair = ds.select("image", "label", as_tuple=True).with_transform(doubled, field=0)
    assert same(pair[5], (sample(5)["image"] * 2, 2))
    dotted = ds.select("box.left").with_transform(doubled, field="box.left")
    assert dotted[5] == {"box.left": 10}


def test_a_field_that_is_not_there_is_named(ds):
    with pytest.raises(OptionError) as caught:
        ds.with_transform(doubled, field="imge")[0]
    assert str(caught.value) == (
        "with_transform() names 'imge', which the samples do not have; they are dicts with the keys "
        "'image', 'label', 'box'"
    )


def test_what_is_no_function_is_refused(ds):
    with pytest.raises(OptionError) as caught:
        ds.with_transform("flip")
    assert str(caught.value) == "with_transform() takes a function, not 'flip'"


def test_fields_selected_after_a_transform_are_those_that_it_made(ds):
    view = ds.with_transform(numbered).select("number", "box.left")
    assert view[3] == {"number": 3, "box.left": 3}
    with pytest.raises(OptionError, match="select\\(\\) names 'nope', which the samples do not have"):
        ds.with_transform(numbered).select("nope")[0]


def test_fields_selected_before_a_transform_are_all_that_it_gets(ds):
    seen = []
    ds.select("label").with_transform(seen.append)[4]
    assert seen == [{"label": 1}]


def test_with_transforms_batches_are_collated_from_the_samples(ds):
    view = ds.with_transform(numbered)[[3, 5, 4]]
    wanted = default_collate([numbered(sample(k)) for k in (3, 5, 4)])
    assert same(view.batch([0, 1, 2]), wanted)
    assert same(default_collate([batch_of(view, [0, 1, 2])]), wanted)
    assert same(next(iter(view.loader(3))), wanted)
    assert same(next(iter(DataLoader(view, 3))), wanted)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_transform(ds, context):
    view = ds.with_transform(numbered).select("number", "label")
    loader = DataLoader(view, 4, num_workers=1, multiprocessing_context=context)
    assert same(list(loader), list(DataLoader(view, 4)))
    assert pickle.loads(pickle.dumps(view))[5] == {"number": 5, "label": 2}
