"""Iterables and growing sources: stored until they end, continued where they stopped."""

import os
import pickle
import subprocess
import sys
import textwrap
import time
import warnings
from concurrent.futures import Executor

import pytest
import torch
from filled import available
from torch.utils.data import IterableDataset, get_worker_info

import edcache
from edcache import CachedDataset
from edcache.errors import LabelError, OptionError, SourceError, StaleCacheError
from edcache.reader import Reader
from edcache.writer.appender import Appender
from edcache.writer.store import store_at


def sample(i):
    return {"x": torch.full((4,), i), "y": i % 3}


class Stream(IterableDataset):
    """Divides itself among workers, as torch's documentation has it; fails at an index where asked to."""

    def __init__(self, count=50, fails_at=None, odd_at=()):
        self.count, self.fails_at, self.odd_at = count, fails_at, odd_at

    def __edcache_fingerprint__(self):
        return {"count": self.count}  # one that fails is the same as one that was mended

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.count, step):
            if i == self.fails_at:
                raise ValueError(f"bad {i}")
            yield [1] if i in self.odd_at else sample(i)


def store(source, path, **options):
    return CachedDataset(source, path, in_memory_keys=["y"], spot_check=False, **options)


def order(path):
    return [s["x"][0].item() for s in CachedDataset.from_cache(path)]


def test_an_iterable_is_stored_until_it_ends(path):
    ds = store(Stream(), path)
    assert len(ds) == 50
    assert ds.complete
    assert Reader(path).session.sealed
    assert order(path) == list(range(50))
    assert ds.labels["y"].tolist() == [i % 3 for i in range(50)]
    assert edcache.verify(path).sound


def test_any_iterable_will_do(path):
    assert len(store((sample(i) for i in range(7)), path)) == 7
    assert order(path) == list(range(7))


def test_an_empty_one_makes_an_empty_archive(path):
    assert len(store(Stream(0), path)) == 0
    assert Reader(path).session.sealed


def test_a_whole_archive_is_not_iterated_again(path):
    store(Stream(), path)
    assert len(store(Stream(fails_at=0), path)) == 50


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_one_goes_on_where_it_stopped(path, workers):
    with pytest.raises(SourceError, match="the source raised at index .*ValueError") as caught:
        store(Stream(fails_at=31), path, num_workers=workers, chunk_size=4)
    assert "bad 31" in str(caught.value)
    kept = Reader(path, allow_partial=True).session.index.present
    assert 25 <= kept <= 31
    assert not Reader(path, allow_partial=True).session.sealed
    told = []
    ds = store(
        Stream(), path, num_workers=workers, progress=lambda present, total: told.append((present, total))
    )
    assert told[0] == (kept + 1, None)
    assert sorted(order(path)) == list(range(50))
    assert ds.complete


def test_workers_each_store_their_share_in_the_order_of_a_data_loader(path):
    store(Stream(), path, num_workers=2)
    assert order(path) == list(range(50))


class Whole(IterableDataset):
    """Gives every sample to every worker."""

    def __init__(self, count, bad_at=()):
        self.count, self.bad_at = count, bad_at

    def __iter__(self):
        return (
            {"x": torch.full((4,), i), "y": i} if i not in self.bad_at else object()
            for i in range(self.count)
        )


@pytest.mark.parametrize("count", [0, 1, 3, 50])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_source_that_does_not_divide_itself_is_stored_once(path, count, compression):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ds = store(Whole(count), path, num_workers=2, compression=compression)
    assert order(path) == list(range(count))
    assert ds.complete
    texts = [str(one.message) for one in caught]
    assert [" is read in this process alone; " in text for text in texts] == [True] * (count > 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(store(Whole(count), path, num_workers=2)) == count


def test_it_is_noticed_beside_a_sample_that_cannot_be_stored(path):
    with pytest.warns(RuntimeWarning, match="the first samples of all 2 workers are the same"):
        ds = store(Whole(9, bad_at=[1]), path, num_workers=2, on_error="skip_final")
    assert [error.index for error in ds.errors] == [1]
    assert [s["y"] for s in available(ds)] == [0, *range(2, 9)]


class Blank(Stream):
    """Divides itself, and all of its samples are the same."""

    def __iter__(self):
        return (sample(0) for _ in super().__iter__())


def test_samples_that_are_the_same_are_stored_as_often_as_they_are_given(path):
    with pytest.warns(RuntimeWarning, match="the first samples of all 2 workers are the same"):
        assert len(store(Blank(20), path, num_workers=2)) == 20


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_one_of_the_first_samples_may_fail(path, fails_at):
    with pytest.raises(SourceError, match=f"the source raised at index {fails_at}: ValueError") as caught:
        store(Stream(fails_at=fails_at), path, num_workers=2, chunk_size=1)
    assert f"bad {fails_at}" in str(caught.value)
    assert Reader(path, allow_partial=True).session.index.present == fails_at


@pytest.mark.full
def test_another_number_of_workers_makes_another_order_so_it_is_noticed(path):
    with pytest.raises(SourceError):
        store(Stream(fails_at=31), path, num_workers=2)
    with pytest.raises(StaleCacheError, match="num_workers: 2 in the archive, 1 now"):
        store(Stream(), path, num_workers=1)


def test_a_sample_that_cannot_be_stored_ends_it_or_is_recorded(path):
    with pytest.raises(LabelError, match=r'a.zip: label "y": sample 7 has no field'):
        store(Stream(odd_at=[7]), path)
    ds = store(Stream(odd_at=[7, 49]), path, on_error="skip_final")
    assert [error.index for error in ds.errors] == [7, 49]
    assert len(ds) == 50
    assert ds.complete
    assert [s["y"] for s in available(ds)] == [i % 3 for i in range(49) if i != 7]


@pytest.mark.full
def test_what_needs_an_index_is_refused(path):
    for options in ({"lazy": True}, {"executor": Executor()}, {"timeout": 1.0}):
        wanted = f"the source can only be iterated; {next(iter(options))}=(True)? takes one with len"
        with pytest.raises(OptionError, match=wanted):
            store(Stream(), path, **options)
    with pytest.raises(OptionError, match="num_workers=2 is for an IterableDataset, which divides itself"):
        store(iter([sample(0)]), path, num_workers=2)


def test_building_anew_begins_with_nothing(path):
    store(Stream(), path)
    assert len(store(Stream(20), path, keep_existing=False)) == 20


@pytest.mark.full
def test_a_killed_one_goes_on_and_two_at_once_store_it_once(path, tmp_path):
    script = tmp_path / "stream.py"
    script.write_text(
        textwrap.dedent(f"""
            import sys, time
            sys.path[:] = {sys.path!r}
            from test_stream import Stream, store
            class Slow(Stream):
                def __iter__(self):
                    for made in super().__iter__():
                        time.sleep(0.04)
                        yield made
            Slow.__module__, Slow.__qualname__ = "test_stream", "Stream"
            store(Slow(), {str(path)!r})
        """)
    )
    first = subprocess.Popen([sys.executable, script])
    second = subprocess.Popen([sys.executable, script])
    limit = time.monotonic() + 60
    while (found := store_at(path).found()) is None or found.session.index.present < 5:
        assert time.monotonic() < limit
    first.kill()
    first.wait()
    assert second.wait(60) == 0
    assert order(path) == list(range(50))
    assert Reader(path).session.sealed


# --- sources that have grown ------------------------------------------------------------------------


class Counted:
    def __init__(self, count):
        self.count, self.computed = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        self.computed.append(i)
        return sample(i)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_that_has_grown_adds_the_rest(path, workers):
    store(Counted(20), path)
    source = Counted(35)
    ds = store(source, path, grow=True, num_workers=workers)
    assert workers or source.computed == list(range(20, 35))
    assert len(ds) == 35
    assert ds.complete
    assert Reader(path).session.sealed
    assert order(path) == list(range(35))
    assert ds.labels["y"].tolist() == [i % 3 for i in range(35)]
    again = Counted(35)
    assert len(store(again, path)) == 35
    assert again.computed == []
    with pytest.raises(StaleCacheError, match="begun for 35 samples, the source has 34 now; build it again"):
        store(Counted(34), path, grow=True)


def test_what_can_only_be_iterated_does_not_grow(path):
    def made(count):
        return (sample for sample in [{"y": k} for k in range(count)])

    text = (
        "the source can only be iterated, so nothing tells whether it became longer; grow=True takes one with"
    )
    with pytest.raises(OptionError, match=text):
        store(made(3), path, grow=True, fingerprint=False)
    store(made(3), path, fingerprint=False)
    with pytest.raises(OptionError, match=text):
        store(made(4), path, grow=True, fingerprint=False)
    decorated = edcache.cachable(path.with_name("c.zip"), progress=False)(made)
    assert len(decorated(3)) == 3
    with pytest.raises(OptionError, match=text):
        edcache.cachable(path.with_name("c.zip"), grow=True, progress=False)(made)(3)


def test_a_lazy_cache_grows_too(path):
    store(Counted(20), path)
    ds = store(Counted(35), path, grow=True, lazy=True)
    assert ds[34]["y"] == 1
    assert ds.missing.tolist() == list(range(20, 35))
    ds.close()


# A global, since a value that a factory closes over is as good as an argument.
LENGTH = 20


def test_a_decorated_factory_grows(path, monkeypatch):
    @edcache.cachable(path, in_memory_keys=["y"], grow=True)
    def make():
        return Counted(LENGTH)

    assert len(make()) == 20
    monkeypatch.setattr(f"{__name__}.LENGTH", 25)
    assert len(make()) == 25
    assert order(path) == list(range(25))


# --- what deaths leave ------------------------------------------------------------------------------


def test_a_chunk_that_a_power_cut_took_is_stored_again(path):
    with pytest.raises(SourceError):
        store(Stream(fails_at=30), path, chunk_size=10)
    offset = int(Reader(path, allow_partial=True).session.index.all_rows()["offset"][10])
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 64)
    os.utime(path, (1, 1))  # before the kernel started
    ds = store(Stream(), path, chunk_size=10)
    assert ds.complete
    assert order(path) == list(range(50))
    assert edcache.verify(path).sound


def test_a_failure_survives_a_kill_between_it_and_its_chunk(path, monkeypatch):
    def die(self, chunk, **options):
        raise SystemExit

    monkeypatch.setattr(Appender, "append", die)
    with pytest.raises(SystemExit):
        store(Stream(odd_at=[3]), path, on_error="skip")
    monkeypatch.undo()
    ds = store(Stream(odd_at=[3]), path, on_error="skip")
    assert [(error.index, error.final) for error in ds.errors] == [(3, True)]
    assert ds.complete
    assert ds.missing.tolist() == [3]
    assert ds.warmup() is ds
    assert len(pickle.loads(pickle.dumps(ds))) == 50
