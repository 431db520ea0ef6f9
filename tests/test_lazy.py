"""Lazy caches: computed when asked for, kept for everyone, sealed by whoever brings the last sample."""

import os
import pickle
import time

import pytest
import torch
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, Reader
from edcache.errors import OptionError, SourceError, StaleCacheError, UnsupportedTypeError


class Logged:
    def __init__(self, log, length=40):
        self.log, self.length = str(log), length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{i}\n".encode())
        os.close(fd)
        return {"x": torch.full((2,), i), "y": i % 3}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.zip"


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def computed(log):
    return sorted(map(int, log.read_text().split())) if log.exists() else []


def wait_for(path, samples):
    """Publication goes on in a thread."""
    limit = time.monotonic() + 10
    while Reader(path).present < samples:
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_nothing_is_computed_before_it_is_asked_for(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, in_memory_keys=["y"])
    assert computed(log) == []
    assert len(ds) == 40
    assert not ds.complete
    assert ds[7]["x"].tolist() == [7, 7]
    assert computed(log) == [7]
    ds.close()
    assert CachedDataset.from_cache(path)[7]["y"] == 1
    assert CachedDataset.from_cache(path).missing.tolist() == [i for i in range(40) if i != 7]


def test_after_one_epoch_the_archive_is_sealed_and_the_next_computes_nothing(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, in_memory_keys=["y"])
    for _ in range(2):
        assert [s["y"] for s in ds] == [i % 3 for i in range(40)]
    assert computed(log) == list(range(40))
    assert Reader(path).sealed
    ds.refresh()
    assert ds.complete
    assert ds.labels["y"].tolist() == [i % 3 for i in range(40)]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_data_loader_fill_it_together(path, log, persistent):
    ds = CachedDataset(Logged(log), path, lazy=True)
    loader = DataLoader(ds, batch_size=5, num_workers=2, persistent_workers=persistent)
    seen = torch.cat([batch["x"][:, 0] for batch in loader])
    assert seen.tolist() == list(range(40))
    del loader
    assert computed(log) == list(range(40))
    assert edcache.verify(path).sealed
    assert CachedDataset.from_cache(path).complete


def test_warmup_computes_the_rest(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True)
    ds[3], ds[-1]
    assert ds.warmup() is ds
    assert computed(log) == list(range(40))
    assert ds.complete


def test_a_source_that_raises_says_so_at_the_read(path):
    class Broken(Logged):
        def __getitem__(self, i):
            raise ValueError("broken")

    ds = CachedDataset(Broken("unused"), path, lazy=True)
    with pytest.raises(SourceError, match="the source raised at index 4: ValueError: broken"):
        ds[4]


def test_a_lazy_cache_of_a_whole_archive_needs_its_source_no_more(path, log):
    CachedDataset(Logged(log), path)
    ds = CachedDataset(Logged(log), path, lazy=True)
    assert ds[5]["y"] == 2
    assert computed(log) == list(range(40))


def test_a_dropped_lazy_cache_publishes_what_it_computed(path, log):
    ds = CachedDataset(Logged(log), path, force_cache=False)
    ds[1]
    del ds
    assert CachedDataset.from_cache(path)[1]["y"] == 1


def test_a_published_sample_is_not_computed_again(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, chunk_size=1)
    assert [ds[5]["y"] for _ in range(3)] == [2, 2, 2]
    assert computed(log) == [5]


def test_a_sample_that_is_not_published_yet_is_not_computed_again(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True)
    assert [ds[5]["y"] for _ in range(3)] == [2, 2, 2]
    assert computed(log) == [5]


def test_a_batch_that_repeats_an_index_computes_it_once(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True)
    assert [s["y"] for s in ds.__getitems__([4, 4, 4])] == [1, 1, 1]
    assert computed(log) == [4]


@pytest.mark.parametrize("chunk_size", [1, None])
def test_edits_of_a_sample_never_reach_the_cache(path, log, chunk_size):
    ds = CachedDataset(Logged(log), path, lazy=True, chunk_size=chunk_size)
    ds[5]["x"].fill_(-1)
    assert ds[5]["x"].tolist() == [5, 5]
    ds.close()
    assert CachedDataset.from_cache(path)[5]["x"].tolist() == [5, 5]


def test_a_view_computes_its_own_samples(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True)
    assert [s["y"] for s in ds[[8, 1]]] == [2, 1]
    assert computed(log) == [1, 8]


def test_what_another_cache_published_meanwhile_is_not_computed_again(path, log):
    one = CachedDataset(Logged(log), path, lazy=True, chunk_size=1)
    two = CachedDataset(Logged(log), path, lazy=True, chunk_size=1)
    assert one[3]["y"] == 0
    wait_for(path, 1)
    assert two[3]["y"] == 0
    assert computed(log) == [3]


def test_a_pickled_lazy_cache_fills_the_same_archive(path, log):
    ds = CachedDataset(Logged(log), path, lazy=True, chunk_size=1)
    copy = pickle.loads(pickle.dumps(ds))
    copy[1], ds[2]
    wait_for(path, 2)
    assert (ds[1]["y"], copy[2]["y"]) == (1, 2)
    assert computed(log) == [1, 2]


def test_a_sample_that_cannot_be_stored_says_so_at_the_read(path):
    class Sets(Logged):
        def __getitem__(self, i):
            return {"bad": {i}}

    ds = CachedDataset(Sets("unused"), path, lazy=True)
    with pytest.raises(UnsupportedTypeError, match=r'a.zip: sample 4: sample\["bad"\]: cannot store set'):
        ds[4]


def test_another_length_is_noticed_at_the_construction(path, log):
    CachedDataset(Logged(log), path, lazy=True)
    with pytest.raises(StaleCacheError, match="begun for 40 samples, the source has 41 now"):
        CachedDataset(Logged(log, 41), path, lazy=True)


def test_lazy_does_not_begin_anew(path, log):
    with pytest.raises(OptionError, match="lazy=True fills what is there; to begin anew delete the file"):
        CachedDataset(Logged(log), path, lazy=True, keep_existing=False)
