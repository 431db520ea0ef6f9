"""Two ranks make what the pages of the replaced systems show, are killed, and make it again."""

import os
import sys
import time

import numpy as np
import pytest
from filled import computed, note

import edcache
from edcache.compat import edflow, kappadata, torch_xla

COUNT, KILLED_AFTER = 40, 6


class Digits:
    root, name, in_memory_keys = "data", "digits", ["label"]

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        note("log", i)
        time.sleep(0.005)
        return {"image": np.full((4,), i, np.float32), "label": i % 3}


@edflow.cachable("cached/decorated.zip", progress=False)
def decorated():
    return Digits()


EXAMPLES = {
    "edflow": lambda url: edflow.CachedDataset(Digits()),
    "edflow, force_cache": lambda url: edflow.CachedDataset(Digits(), force_cache=True, progress=False),
    "edflow, a path": lambda url: edflow.PathCachedDataset(Digits(), "cached/path.zip", progress=False),
    "edflow, cachable": lambda url: decorated(),
    "torch_xla": lambda url: torch_xla.CachedDataset(Digits(), "cached/xla"),
    "torch_xla, warmup": lambda url: torch_xla.CachedDataset(Digits(), "cached/xla").warmup(progress=False),
    "SharedDictDataset": lambda url: edcache.CachedDataset(Digits(), "cached/kappa.zip", lazy=True),
    "SharedDataset": lambda url: edcache.CachedDataset(Digits(), f"shm://{os.getcwd()}", lazy=True),
    "RedisDataset": lambda url: kappadata.RedisDataset(Digits(), f"{url}?prefix=ranks"),
}


def rank(number, example, url):
    """Read its own half, and then all."""
    ds = EXAMPLES[example](url)
    for i in [*range(number, COUNT, 2), *range(COUNT)]:
        sample = ds[i]
        assert (sample["image"].tolist(), sample["label"]) == ([i] * 4, i % 3)
    if not isinstance(ds, kappadata.RedisDataset):
        ds.close()


def started(example, url, folder):
    """Two processes that run `rank`."""
    pids = []
    for number in range(2):
        pid = os.fork()
        if not pid:
            try:
                os.chdir(folder)
                rank(number, example, url)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
            os._exit(1)
        pids.append(pid)
    return pids


@pytest.mark.full
@pytest.mark.parametrize("example", EXAMPLES)
def test_two_ranks_are_killed_and_begin_again(tmp_path, example, redis_url):
    pids = started(example, redis_url, tmp_path)
    while len(computed(tmp_path / "log")) < KILLED_AFTER:
        assert os.waitpid(pids[0], os.WNOHANG) == (0, 0)
        time.sleep(0.001)
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    again = started(example, redis_url, tmp_path)
    assert [os.waitpid(pid, 0)[1] for pid in again] == [0, 0]
    assert set(computed(tmp_path / "log")) == set(range(COUNT))


@pytest.fixture(scope="module")
def redis_url():
    redis_server = pytest.importorskip("redis_server")
    server = redis_server.Server()
    yield server.url("").partition("?")[0]
    server.close()
