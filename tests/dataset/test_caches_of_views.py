"""A cache of a cache, or of a view of it: the archive is known by its uuid, the view by its samples and functions."""

import shutil

import numpy as np
import pytest

import edcache
from edcache import CachedDataset, StaleCacheError


class Source:
    def __init__(self, n=10):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return {"x": np.full(3, index), "label": index % 3}


def twice(sample):
    return sample | {"x": sample["x"] * 2}


VIEWS = {
    "the cache": lambda ds: ds,
    "filter": lambda ds: ds.filter(label=[0, 1]),
    "slice": lambda ds: ds[2:8],
    "reversed": lambda ds: ds[::-1],
    "shuffle": lambda ds: ds.shuffle(3),
    "repeat": lambda ds: ds.repeat(2),
    "select": lambda ds: ds.select("x"),
    "function": lambda ds: ds.with_transform(twice),
    "lambda": lambda ds: ds.with_transform(lambda sample: twice(sample)),
    "seed 1": lambda ds: ds.with_transform(lambda sample, rng: sample, seed=1),
    "seed 2": lambda ds: ds.with_transform(lambda sample, rng: sample, seed=2),
    "concat": lambda ds: edcache.concat([ds, ds[:3]]),
    "view of concat": lambda ds: edcache.concat([ds, ds[:3]]).select("x"),
    "zip_fields": lambda ds: edcache.zip_fields(ds.select("x"), ds.select("label")),
    "variants": lambda ds: edcache.variants([ds.select("x"), ds.select("label")]),
    "concat of the same": lambda ds: edcache.concat([ds.select("x")[:5], ds.select("label")[:5]]),
}


def cached(folder, source, **options):
    CachedDataset(source, folder / "cached.zip", progress=False, **options).close()


@pytest.fixture
def parent(tmp_path):
    CachedDataset(Source(), tmp_path / "a.zip", in_memory_keys=["label"], progress=False).close()
    return tmp_path / "a.zip"


@pytest.mark.parametrize("name", VIEWS)
def test_a_cache_of_a_view_is_found_again_and_that_of_another_view_is_stale(parent, tmp_path, name):
    cached(tmp_path, VIEWS[name](CachedDataset.from_cache(parent)))
    (tmp_path / "moved").mkdir()
    moved = shutil.copy(parent, tmp_path / "moved" / "b.zip")
    used = CachedDataset.from_cache(parent)
    assert used[0]["label"] == used.labels["label"][0] == 0
    for ds in (
        used,
        CachedDataset.from_cache(moved, verify="always"),
        CachedDataset(Source(), parent, in_memory_keys=["label"], progress=False),
    ):
        cached(tmp_path, VIEWS[name](ds))
    for other in VIEWS.keys() - {name}:
        with pytest.raises(StaleCacheError):
            cached(tmp_path, VIEWS[other](used), spot_check=False)


@pytest.mark.parametrize("change", ["parent", "transform", "decode"])
def test_a_cache_of_a_cache_is_stale_if_its_parent_makes_other_samples(parent, tmp_path, change):
    cached(tmp_path, CachedDataset.from_cache(parent))
    if change == "parent":
        CachedDataset(Source(), parent, keep_existing=False, progress=False).close()
    options = {"transform": {"transform": twice}, "decode": {"decode": "numpy"}}.get(change, {})
    with pytest.raises(StaleCacheError):
        cached(tmp_path, CachedDataset.from_cache(parent, **options))


@pytest.mark.parametrize("view", [lambda ds, n: ds, lambda ds, n: ds[:n], lambda ds, n: ds[np.arange(n)]])
def test_a_cache_of_a_view_grows_with_it(tmp_path, view):
    path = tmp_path / "grown.zip"
    for length in (10, 15):
        CachedDataset(Source(length), path, grow=True, progress=False).close()
        cached(tmp_path, view(CachedDataset.from_cache(path), length), grow=True)
    ds = CachedDataset.from_cache(tmp_path / "cached.zip")
    assert [sample["x"][0] for sample in ds] == list(range(15))
