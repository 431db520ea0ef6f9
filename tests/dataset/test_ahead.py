"""What an order needs next is fetched before it is read: once, not too far ahead, for far archives alone."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far import make
from fsspec.asyn import get_loop
from range_server import serving
from systems import ended, in_child
from torch.utils.data import BatchSampler, DataLoader

from edcache import CachedDataset, samplers, variants, zip_fields
from edcache.dataset import ahead
from edcache.format import PAGE, TAIL_NBYTES

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="has workers that are forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
COUNT, NBYTES = 600, 16_000  # 37 blocks


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("far") / "train.zip"
    make(path, COUNT, NBYTES, chunk=16)
    return path


def opened(url: str, tmp_path: Path, **options: Any) -> CachedDataset:
    return CachedDataset.from_cache(url, local=tmp_path / "ssd", **options)


def becomes(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


def is_ahead() -> bool:
    return any(thread.name == "edcache-ahead" for thread in threading.enumerate())


WAYS: dict[str, Callable[[Any], Any]] = {
    "loader": lambda ds: ds.loader(8, shuffle=True, seed=3, num_threads=1, prefetch=1),
    "view": lambda ds: ds[::-1].loader(8, num_threads=1, prefetch=1),
    "batches": lambda ds: ds.loader(
        None, sampler=samplers.ByLength(ds, np.arange(COUNT), 8), num_threads=1, prefetch=1
    ),
    "foreign": lambda ds: ds.loader(8, sampler=list(range(COUNT)), num_threads=1, prefetch=1),
    "sampler": lambda ds: DataLoader(ds, 8, sampler=samplers.Shuffle(ds)),
    "chunks, workers": lambda ds: DataLoader(ds, 8, sampler=samplers.ChunkShuffle(ds, 2), num_workers=2),
    "batch sampler": lambda ds: DataLoader(
        ds, batch_sampler=BatchSampler(samplers.Shuffle(ds), 8, False), num_workers=1
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_order_is_fetched_ahead_of_who_reads_it(far, tmp_path, way):
    nbytes = far.stat().st_size
    with serving(far.read_bytes()) as served:
        served.delay = 0.005
        ds = opened(served.url, tmp_path)
        batches = iter(WAYS[way](ds))
        seen = next(batches)["n"].tolist()
        assert becomes(lambda: served.sent > 0.9 * nbytes), "nobody reads"
        for batch in batches:
            assert (batch["x"] == (batch["n"] % 251)[:, None]).all()
            seen += batch["n"].tolist()
        assert sorted(seen) == list(range(COUNT))
        # Every process opens it.
        assert served.sent <= 1.03 * nbytes + 3 * (PAGE + TAIL_NBYTES)
        assert not is_ahead()


@pytest.mark.parametrize("tells", [True, False], ids=["loader", "sampler"])
def test_of_several_datasets_an_epoch_is_fetched_ahead_that_reads_a_far_one(far, tmp_path, tells):
    nbytes, near = far.stat().st_size, CachedDataset.from_cache(far)

    def read(ds: Any, epoch: int) -> int:
        order = samplers.Shuffle(ds)
        order.set_epoch(epoch)
        batches = iter(ds.loader(8, sampler=order, prefetch=1) if tells else DataLoader(ds, 8, sampler=order))
        next(batches)
        if epoch:
            assert becomes(lambda: served.sent > 0.9 * nbytes), "nobody reads"
        return 8 + sum(len(batch["x"]) for batch in batches)

    with serving(far.read_bytes()) as served:
        both = variants([near, opened(served.url, tmp_path)])
        assert read(both, 0) == COUNT
        assert served.sent < nbytes / 10
        assert read(both, 1) == COUNT
    with serving(far.read_bytes()) as served:
        sides = zip_fields(near.select("n"), opened(served.url, tmp_path / "other").select("x"))
        assert read(sides[::-1], 1) == COUNT


@pytest.mark.parametrize("way", ["loader", "sampler"])
def test_nobody_looks_ahead_before_the_first_batch_of_each_reader_is_there(far, tmp_path, way):
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, tmp_path)
        prefetch = ds._archive.reader.session.file.ahead
        assert prefetch is not None

        def wait() -> None:
            held = prefetch.hold()
            time.sleep(60)
            held.close()

        pid = in_child(wait)
        assert becomes(prefetch.is_held)
        batches = iter(WAYS[way](ds))
        next(batches)
        time.sleep(0.5)
        assert served.sent < far.stat().st_size / 2
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        assert becomes(lambda: served.sent > 0.9 * far.stat().st_size)
        assert sum(len(batch["n"]) for batch in batches) == COUNT - 8


def test_it_goes_so_far_ahead_and_no_further(far, tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "_AHEAD_NBYTES", 1 << 20)
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, tmp_path)
        batches = iter(ds.loader(8, num_threads=1, prefetch=1))
        next(batches)
        time.sleep(0.5)
        before = served.sent
        assert before < 4 << 20
        for _ in range(40):
            next(batches)
        assert becomes(lambda: served.sent > before + (3 << 20))
        time.sleep(0.3)
        assert served.sent < far.stat().st_size - (1 << 20)
        del batches
        assert becomes(lambda: not is_ahead()), "an iteration that is given up ends it"


def test_a_place_that_fails_is_an_error_where_it_is_read(far, tmp_path):
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, tmp_path)
        batches = iter(ds.loader(8, num_threads=1, prefetch=1))
        next(batches)
        assert becomes(lambda: served.sent > 0.9 * far.stat().st_size)
    for _ in batches:
        pass  # all of it is here

    def gone(handler: Any, start: int, end: int) -> bool:
        handler.say(404, {}, b"")
        return True

    with serving(far.read_bytes()) as served:
        ds = opened(served.url, tmp_path)
        served.faults.append(gone)
        with pytest.raises(Exception, match=served.url):
            list(ds.loader(8, num_threads=1))
        assert becomes(lambda: not is_ahead())


def test_what_is_near_is_not_looked_ahead_for(far, monkeypatch):
    def started(thread: threading.Thread) -> None:
        assert thread.name != "edcache-ahead"
        start(thread)

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", started)
    ds = CachedDataset.from_cache(far)
    assert len(list(ds.loader(100))) == 6
    assert len(list(samplers.Shuffle(ds))) == COUNT


@pytest.mark.parametrize("way", ["loader", "sampler"])
def test_an_iteration_that_another_thread_collects_stops_no_request(far, tmp_path, way):
    """The thread of requests collected one whose look-ahead waited for a request: neither ended."""
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, tmp_path)
        batches = iter(WAYS[way](ds))
        next(batches)
        served.delay = 0.2
        assert becomes(lambda: served.in_flight > 0)
        cycle = [batches]
        cycle.append(cycle)

        async def collect() -> None:
            gc.collect()

        gc.disable()
        try:
            del batches, cycle
            asyncio.run_coroutine_threadsafe(collect(), get_loop()).result(20)
        finally:
            gc.enable()
        served.delay = 0.0
        assert ds[COUNT - 1]["n"] == COUNT - 1
        assert becomes(lambda: not is_ahead())
