"""A copy that has no room for all of its archive gives what was published, and keeps to its room."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far import is_sample, make
from range_server import serving
from scale import scaled, seeded
from systems import ended, in_child
from torch.utils.data import DataLoader

from edcache import CachedDataset, concat, samplers, storage
from edcache.backends.mirror.blocks import BLOCK_NBYTES
from edcache.backends.mirror.read_through import ReadThrough

from_cache = functools.partial(CachedDataset.from_cache, local=False)
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]
COUNT, NBYTES = 600, 16_000  # 37 blocks
LIMIT = 12 * BLOCK_NBYTES


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("far") / "train.zip"
    make(path, COUNT, NBYTES, chunk=16)
    return path


@pytest.fixture
def ssd(tmp_path: Path) -> Path:
    return tmp_path / "ssd"


def opened(far: Path | str, ssd: Path, limit: int | None = LIMIT, **options: Any) -> CachedDataset:
    return from_cache(far, local=ssd, max_bytes=limit, **options)


def on_disk(ssd: Path) -> int:
    return sum(storage.allocated(str(path)) for path in ssd.iterdir() if not path.name.endswith(".origin"))


def read(ds: Any, indices: list[int]) -> None:
    batch = ds.batch(indices)
    assert batch["n"].tolist() == indices
    assert (batch["x"] == (np.array(indices) % 251)[:, None]).all()


def read_all(ds: Any) -> None:
    for k in range(0, COUNT, 24):
        read(ds, list(range(k, k + 24)))


def file_of(ds: CachedDataset) -> ReadThrough:
    file = ds._archive.reader.session.file
    assert isinstance(file, ReadThrough)
    return file


@pytest.mark.parametrize("way", ["batches", "one by one", "scattered"])
def test_what_has_no_room_is_read_from_far_epoch_after_epoch(far, ssd, way):
    order = list(range(COUNT))
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, ssd)
        for epoch in range(3):
            served.forget()
            if way == "scattered":
                seeded(f"scattered {epoch}").shuffle(order)
            for k in range(0, COUNT, 24):
                if way == "one by one":
                    assert all(is_sample(ds[i], i, NBYTES) for i in range(k, k + 24))
                else:
                    read(ds, order[k : k + 24])
                assert on_disk(ssd) <= LIMIT
            assert served.sent < (1.3 if epoch == 0 else 0.95) * far.stat().st_size, "what has room stays"
        assert on_disk(ssd) > LIMIT - 2 * BLOCK_NBYTES


@pytest.mark.parametrize("workers", [None, 2])
def test_an_order_that_is_known_fills_the_room_and_no_more(far, ssd, workers):
    with serving(far.read_bytes()) as served:
        ds = opened(served.url, ssd)
        sampler = samplers.ChunkShuffle(ds, 2)
        if workers is None:
            batches = ds.loader(12, sampler=sampler)
        else:
            batches = DataLoader(ds, 12, sampler=sampler, num_workers=workers)
        for _ in range(3):
            served.forget()
            seen = [n for batch in batches for n in batch["n"].tolist()]
            assert sorted(seen) == list(range(COUNT))
            assert served.sent < 1.3 * far.stat().st_size
            assert on_disk(ssd) <= LIMIT


def test_other_copies_make_room_when_nobody_has_them_open(far, ssd, tmp_path):
    other = tmp_path / "other.zip"
    make(other, COUNT, NBYTES)
    limit = int(1.5 * far.stat().st_size)
    held = opened(other, ssd, limit)
    read_all(held)
    ds = opened(far, ssd, limit)
    read_all(ds)
    assert far.stat().st_size <= on_disk(ssd) <= limit, "what is open stays"
    held.close()
    ds.close()
    read_all(opened(far, ssd, limit))
    assert not list(ssd.glob("other-*"))


def test_parts_that_lack_are_in_the_order_of_need(far, ssd):
    ds, nbytes = opened(far, ssd, None), far.stat().st_size
    rng, file = seeded("parts that lack"), file_of(ds)
    for _ in range(100):
        start = np.array([rng.randrange(nbytes) for _ in range(rng.randrange(8))], np.int64)
        end = start + np.array([rng.randrange(1, 3 * BLOCK_NBYTES) for _ in start], np.int64)
        end = np.minimum(end, nbytes)
        wanted: list[tuple[int, int]] = []
        for low, high in zip(start.tolist(), end.tolist(), strict=True):
            for block in range(low // BLOCK_NBYTES, (high - 1) // BLOCK_NBYTES + 1):
                part = block * BLOCK_NBYTES, (block + 1) * BLOCK_NBYTES
                if part not in wanted and len(file.fetcher.map.missing(np.array([block]))):
                    wanted.append(part)
        assert file.ahead.missing(start, end) == wanted
        if rng.random() < 0.2:
            at = rng.randrange(COUNT - 20)
            read(ds, list(range(at, at + 20)))
    missing = file.fetcher.map.missing(np.arange(file.fetcher.map.count))
    assert 0 < len(missing) < file.fetcher.map.count


def test_several_far_archives_in_one_order_are_looked_ahead_for(far, ssd):
    with serving(far.read_bytes()) as served:
        parts = [opened(f"{served.url}?{k}", ssd / str(k), None) for k in range(3)]
        ds = concat([parts[0], parts[1].take(COUNT), parts[2]])
        batches = iter(ds.loader(12, sampler=samplers.ChunkShuffle(ds, 2)))
        seen = next(batches)["n"].tolist()
        nbytes = 3 * far.stat().st_size
        for _ in range(3000):
            if served.sent >= 0.9 * nbytes:
                break
            time.sleep(0.01)
        # Nobody has asked for more than the first batches.
        assert served.sent >= 0.9 * nbytes
        seen += [n for batch in batches for n in batch["n"].tolist()]
        assert sorted(seen) == sorted([*range(COUNT)] * 3)
        assert served.sent < 1.05 * nbytes


def codes_of_four(work, rng, kills=True):
    """Exit statuses of four processes, of which the first three may be killed at random and the last ends."""
    pids = [in_child(partial(work, k)) for k in range(4)]
    for pid in pids[:3] if kills else ():
        time.sleep(rng.uniform(0, 0.2))
        os.kill(pid, signal.SIGKILL)
    codes = [ended(pid) for pid in pids]
    assert set(codes) <= {0, -signal.SIGKILL}
    assert codes[3] == 0
    return codes


@pytest.mark.full
def test_whoever_fetches_for_others_may_be_killed(far, ssd, tally):
    """Killed with claims held: the others go on, and so does the next reader."""

    def work(url: str, folder: Path, seed: int) -> None:
        ds = opened(url, folder, None, verify=("touch", "never")[seed % 2])
        seen = []
        for batch in ds.loader(12, sampler=samplers.ChunkShuffle(ds, 2, seed=seed)):
            assert (batch["x"] == (batch["n"] % 251)[:, None]).all()
            seen += batch["n"].tolist()
        assert sorted(seen) == list(range(COUNT))

    rng = seeded("killed fetchers")
    with serving(far.read_bytes()) as served:
        served.delay = 0.02
        for k in range(scaled(6)):
            folder = ssd / str(k)
            codes = codes_of_four(partial(work, served.url, folder), rng)
            tally("readers killed while they fetched for others", codes.count(-signal.SIGKILL))
            read_all(opened(served.url, folder, None, verify="never"))


@pytest.mark.parametrize("verify", ["touch", "never"])
@pytest.mark.parametrize("kills", [False, True])
def test_processes_that_stream_read_what_the_archive_has(far, ssd, verify, kills, tally):
    """Any order, several epochs, readers with and without a limit, some of them killed."""

    def work(seed: int) -> None:
        rng = random.Random(seed)
        ds = opened(
            far, ssd, None if seed % 4 == 3 and not kills else rng.choice([LIMIT, LIMIT // 2]), verify=verify
        )
        for _ in range(3):
            way = rng.choice(["runs", "scattered", "single"])
            for _ in range(12):
                start = rng.randrange(COUNT - 40)
                if way == "runs":
                    read(ds, list(range(start, start + 40)))
                elif way == "scattered":
                    read(ds, rng.sample(range(COUNT), 20))
                else:
                    assert all(is_sample(ds[i], i, NBYTES) for i in range(start, start + 9))

    opened(far, ssd).close()
    rng = seeded("streams")
    for _ in range(scaled(10)):
        base = 4 * rng.randrange(1000)
        codes_of_four(lambda k, base=base: work(base + k), rng, kills)
        tally("processes that streamed at once", 4)
    ds = opened(far, ssd)
    read_all(ds)
    assert not kills or on_disk(ssd) <= LIMIT


def test_an_archive_that_fits_again_becomes_a_whole_copy(far, ssd):
    read(opened(far, ssd), list(range(COUNT)))
    ds = opened(far, ssd, None)
    read(ds, list(range(COUNT)))
    ds.refresh()
    assert ds.info()["mapped"] == far.stat().st_size
    read(opened(far, ssd), list(range(COUNT)))


def test_a_room_of_no_block_reads_all_the_same(far, ssd):
    ds = opened(far, ssd, 1000)
    read(ds, list(range(0, COUNT, 7)))
    assert is_sample(ds[9], 9, NBYTES)
    assert on_disk(ssd) == 0
