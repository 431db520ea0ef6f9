"""Ranks that are threads of one process, as torch_xla runs them on a CPU: one path, a dataset each."""

import functools
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
import torch
from filled import computed, note
from scale import scaled
from written import write

import edcache
from edcache import CachedDataset
from edcache.backends.remote.store import ObjectSpool
from edcache.writer.store import store_at

COUNT, RANKS = 150, 4


class Source:
    in_memory_keys = ("y",)

    def __init__(self, log, count=COUNT):
        self.log, self.count = str(log), count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        note(self.log, i)
        time.sleep(0.0005)
        return {"x": torch.full((40,), i, dtype=torch.bfloat16), "y": i % 7}


class Stream(torch.utils.data.IterableDataset):
    in_memory_keys = ("y",)

    def __init__(self, log):
        self.source = Source(log)

    def __iter__(self):
        return (self.source[i] for i in range(COUNT))


@pytest.fixture(autouse=True)
def spool(tmp_path, monkeypatch):
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path))
    yield tmp_path / "spool"
    fsspec.filesystem("memory").store.clear()


def run_ranks(rank, number=RANKS):
    """What each rank returned; all begin at once."""
    start = threading.Barrier(number)

    def run(place):
        start.wait(60)
        return rank(place)

    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(run, place) for place in range(number)]
        return [future.result() for future in futures]


def lazily(source, path):
    ds = cached(source, path, lazy=True)
    for i in np.random.default_rng(threading.get_ident()).permutation(COUNT).tolist():
        assert ds[i]["y"] == i % 7
    return ds.warmup()


def decorated(source, path):
    return edcache.cachable(path, spot_check=False)(make)(source.log)


def make(log):
    return Source(log)


# They compute only what they store.
cached = functools.partial(CachedDataset, spot_check=False)
WAYS = {
    "a file": cached,
    "by workers": lambda source, path: cached(source, path, num_workers=2, multiprocessing_context="fork"),
    "anew": lambda source, path: cached(source, path, keep_existing=False),
    "synced": lambda source, path: cached(source, path, sync=0.05),
    "an iterable": lambda source, path: cached(Stream(source.log), path),
    "a preloaded file": lambda source, path: cached(source, path, preload="shm"),
    "memory": lambda source, path: cached(source, f"shm://ranks{str(path).replace('/', '-')}"),
    "memory by workers": lambda source, path: cached(
        source, f"shm://rankw{str(path).replace('/', '-')}", num_workers=2, multiprocessing_context="fork"
    ),
    "lazily": lazily,
    "a decorated factory": decorated,
    "a URL": lambda source, path: cached(source, f"memory://bucket{path}"),
}


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_make_the_same_call_share_its_work(tmp_path, way, tally):
    expected = torch.arange(COUNT).to(torch.bfloat16)[:, None].expand(COUNT, 40)
    for turn in range(scaled(2)):
        log, path = tmp_path / f"log-{turn}", tmp_path / f"{turn}.zip"
        found = run_ranks(lambda rank, log=log, path=path: WAYS[way](Source(log), path))
        for ds in found:
            assert ds.complete
            assert torch.equal(ds.batch(range(COUNT))["x"], expected)
            assert ds.labels["y"].tolist() == [i % 7 for i in range(COUNT)]
        if way != "lazily":  # who asks gets the sample at once, though another computes it already
            assert computed(log) == list(range(COUNT))
        for ds in found:
            ds.close()
        if path.exists():
            assert edcache.verify(path).sound
        tally("fills by threads", RANKS)


@pytest.mark.parametrize("way", ["a file", "by workers", "memory", "an iterable"])
def test_threads_say_once_what_was_there_before_them(tmp_path, way, capfd, monkeypatch):
    monkeypatch.delenv("EDCACHE_PROGRESS", raising=False)
    path, log = tmp_path / "a.zip", tmp_path / "log"
    run_ranks(lambda rank: WAYS[way](Source(log), path))
    # A fill that takes long says more before its end.
    *_, last = capfd.readouterr().err.splitlines()
    assert re.fullmatch(rf"\S+: {COUNT}( of {COUNT}| samples) cached in 0:0\d:\d\d", last)
    if way != "a file":
        return
    path.unlink()
    write(path, (Source(log)[i] for i in range(50)), in_memory_keys=["y"])
    run_ranks(lambda rank: CachedDataset(Source(log), path, grow=True, fingerprint=False))
    first, *_, last = capfd.readouterr().err.splitlines()
    assert first == f"a.zip: 50 of {COUNT} already cached"
    assert last.startswith(f"a.zip: {COUNT} of {COUNT} cached in ")


def test_a_rank_that_comes_to_its_end_after_another_uploaded_takes_what_is_there(log):
    url = "memory://bucket/late.zip"
    in_first, second_done, uploaded = threading.Event(), threading.Event(), threading.Event()

    class Meeting(Source):
        """The first sample is the early rank's, the second the late one's."""

        def __getitem__(self, i):
            if i == 0:
                in_first.set()
                assert second_done.wait(60)
            return super().__getitem__(i)

    Meeting.__qualname__, Meeting.__module__ = Source.__qualname__, Source.__module__
    held = []

    def late_progress(present, total):
        second_done.set()
        if present == total:
            held.append(uploaded.wait(60))

    def rank(place):
        if place == 0:
            ds = CachedDataset(Meeting(log, 2), url, spot_check=False)
            uploaded.set()
            return ds
        assert in_first.wait(60)
        return CachedDataset(Meeting(log, 2), url, progress=late_progress, spot_check=False)

    found = run_ranks(rank, 2)
    assert held == [True]
    assert [[ds[i]["y"] for i in range(2)] for ds in found] == [[0, 1], [0, 1]]
    assert computed(log) == [0, 1]


def test_threads_that_copy_what_is_behind_a_url_copy_it_once(spool):
    url = "memory://bucket/large.zip"
    write(url, (np.full(1 << 20, i, np.uint8) for i in range(20)))
    whole = fsspec.filesystem("memory").cat_file("/bucket/large.zip")

    def rank(place):
        spooled = ObjectSpool(store_at(url).url)
        spooled.begin("a")
        return os.stat(spooled.path).st_ino, spooled.path

    [(_, path)] = set(run_ranks(rank, 8))
    with open(path, "rb") as file:
        assert file.read() == whole
    assert not os.path.exists(f"{path}.edcache.new")


def test_what_a_killed_process_left_of_a_copy_is_not_in_the_next(spool):
    url = "memory://bucket/small.zip"
    write(url, [1])
    spooled = ObjectSpool(store_at(url).url)
    spool.mkdir(exist_ok=True)
    with open(f"{spooled.path}.edcache.new", "wb") as file:
        file.write(b"left" * 100_000)
    spooled.begin("a")
    with open(spooled.path, "rb") as file:
        assert file.read() == fsspec.filesystem("memory").cat_file("/bucket/small.zip")
