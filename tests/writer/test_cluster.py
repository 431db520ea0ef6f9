"""Fills by engines: Python's own pools, loky, a Dask cluster and Ray, all of them real."""

import errno
import os
import re
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from filled import available, computed, last_process, note, processes, stored_rows
from pages import PAGES
from scale import thinned
from systems import Small, replace_system
from torch.utils.data import TensorDataset

import edcache
from edcache import CachedDataset
from edcache.errors import OptionError, SourceError, StorageError
from edcache.format.entries import Cursor
from edcache.reader import Reader

COUNT = 150


class Source:
    def __init__(self, log, at=None, count=COUNT, seconds=0.002):
        self.log, self.at, self.count, self.seconds = str(log), at or {}, count, seconds

    def __edcache_fingerprint__(self):
        return {}  # one that fails is the same as one that was mended

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        note(self.log, i)
        time.sleep(self.seconds)
        if self.at.get(i) == "raise":
            raise ValueError(f"bad {i}")
        if self.at.get(i) == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": torch.arange(i % 7), "y": i % 3, "name": f"n{i}"}


def check(path, tmp_path, but=()):
    """Samples and labels are those of a local fill."""
    here = CachedDataset(Source(tmp_path / "unused"), tmp_path / "local.zip", in_memory_keys=["y", "name"])
    found = CachedDataset.from_cache(path, allow_partial=True)
    assert len(found) == len(here)
    for i in range(COUNT):
        if i not in but:
            assert found[i]["x"].equal(here[i]["x"])
            assert {**found[i], "x": 0} == {**here[i], "x": 0}
            assert found.labels["y"][i] == here.labels["y"][i]
            assert found.labels["name"][i] == here.labels["name"][i]
    assert edcache.verify(path).sound


def fill(source, path, executor, **options):
    options |= {"in_memory_keys": ["y", "name"], "spot_check": False}
    return CachedDataset(source, path, executor=executor, **options)


@pytest.fixture(scope="module", params=thinned(["fork", "spawn", "threads", "loky"], 2))
def pool(request):
    if request.param == "threads":
        made = ThreadPoolExecutor(3)
    elif request.param == "loky":
        loky = pytest.importorskip("loky")
        made = loky.ProcessPoolExecutor(2)
    else:
        made = ProcessPoolExecutor(2, mp_context=get_context(request.param))
    with made as executor:
        yield executor


@pytest.fixture(scope="module")
def dask():
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
        )
        with cluster, distributed.Client(cluster) as client:
            yield client


@pytest.fixture(scope="module")
def ray_pool():
    ray = pytest.importorskip("ray")
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
        page = PAGES["docs/howto/clusters.md"]
        (recipe,) = re.findall(r"^(class RayExecutor.*?)^ds = ", page, re.MULTILINE | re.DOTALL)
        names = {"ray": ray, "Executor": Executor}
        exec(recipe, names)
        yield names["RayExecutor"](num_cpus=1)
        ray.shutdown()


COMPRESSION = pytest.mark.parametrize("compression", [None, "zstd"])


# --- pools ------------------------------------------------------------------------------------------


def test_a_pool_fills_as_this_process_would(pool, path, log, tmp_path):
    ds = fill(Source(log), path, pool)
    assert computed(log) == list(range(COUNT))
    assert ds.complete
    assert Reader(path, allow_partial=True).session.sealed
    check(path, tmp_path)


def test_tasks_store_a_source_of_columns_without_asking_for_a_sample(path, monkeypatch):
    source = TensorDataset(torch.arange(300.0).reshape(100, 3), torch.arange(100))
    monkeypatch.setattr(TensorDataset, "__getitem__", None)
    with ThreadPoolExecutor(2) as executor:
        ds = CachedDataset(source, path, executor=executor, in_memory_keys=[1], progress=False)
    assert all(map(torch.equal, ds.batch(range(100)), source.tensors))
    assert edcache.verify(path).sound


@pytest.mark.full
@COMPRESSION
def test_records_are_compressed_there_too(path, log, tmp_path, compression):
    with ThreadPoolExecutor(2) as executor:
        fill(Source(log), path, executor, compression=compression, chunk_size=7)
    check(path, tmp_path)


@pytest.mark.full
def test_what_a_source_raises_in_a_task_is_raised_here(pool, path, log, tmp_path):
    with pytest.raises(SourceError, match="the source raised at index 77: ValueError: bad 77") as caught:
        fill(Source(log, at={77: "raise"}), path, pool)
    assert 'raise ValueError(f"bad {i}")' in str(caught.value.__cause__)
    fill(Source(log), path, pool)
    check(path, tmp_path)


@pytest.mark.full
def test_failures_are_recorded(pool, path, log, tmp_path):
    ds = fill(Source(log, at={7: "raise", 77: "raise"}), path, pool, on_error="skip_final")
    assert [(e.index, e.final, e.message) for e in ds.errors] == [(7, True, "bad 7"), (77, True, "bad 77")]
    assert ds.complete
    check(path, tmp_path, but=(7, 77))


class Twice(ThreadPoolExecutor):
    """An engine that runs every task twice, and gives the second result."""

    def submit(self, fn, /, *args, **kwargs):
        return super().submit(self._both, fn, args, kwargs)

    @staticmethod
    def _both(fn, args, kwargs):
        fn(*args, **kwargs)
        return fn(*args, **kwargs)


@pytest.mark.full
def test_a_task_that_runs_twice_leaves_one_record_a_sample(path, log, tmp_path):
    with Twice(2) as executor:
        fill(Source(log), path, executor)
    assert stored_rows(path) == list(range(COUNT))
    check(path, tmp_path)


def chunks_of(path):
    from edcache import format

    with open(path, "rb") as file:
        data = file.read()

    def pread(offset, nbytes, is_sound=None):
        return data[offset : offset + nbytes]

    head, header = format.read_head(pread, str(path))
    groups = format.walk(pread, len(data), head.uuid, Cursor.behind(header), str(path))
    return [header for group in groups for header in group if header.kind == format.CHUNK]


@pytest.mark.full
def test_a_local_fill_and_an_engine_share_the_work(path, log, tmp_path):
    source = Source(log, seconds=0.01)
    local = threading.Thread(
        target=lambda: CachedDataset(
            source, path, in_memory_keys=["y", "name"], num_workers=1, spot_check=False
        )
    )
    local.start()
    with ThreadPoolExecutor(1) as executor:
        fill(source, path, executor)
    local.join()
    assert computed(log) == list(range(COUNT))
    assert len(processes(log)) == 2
    check(path, tmp_path)


@pytest.mark.full
def test_samples_before_a_bad_one_of_the_same_task_are_kept_and_progress_counts_all(path, log):
    shown, count = [], 6400
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(SourceError, match="index 40"):
            fill(Source(log, at={40: "raise"}, count=count, seconds=0), path, executor)
        assert Reader(path, allow_partial=True).session.index.present >= 40
        source = Source(log, count=count, seconds=0)
        fill(source, path, executor, progress=lambda done, total: shown.append((done, total)))
    assert shown[-1] == (count, count)


def test_progress_counts_samples_that_failed(path, log):
    shown = []
    with ThreadPoolExecutor(2) as executor:
        source = Source(log, at={3: "raise", 30: "raise"}, seconds=0)
        fill(
            source, path, executor, on_error="skip", progress=lambda done, total: shown.append((done, total))
        )
    assert shown[-1] == (COUNT, COUNT)


class Counted(ThreadPoolExecutor):
    """Counts the tasks whose results nobody has asked for yet."""

    waiting, most = 0, 0

    def submit(self, fn, /, *args, **kwargs):
        future = super().submit(fn, *args, **kwargs)
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        result = future.result

        def taken(*args):
            self.waiting -= 1
            return result(*args)

        future.result = taken
        return future


@pytest.mark.full
def test_a_bounded_number_of_results_comes_back_at_a_time(path, log):
    with Counted(2) as executor:
        fill(Source(log, count=20_000, seconds=0), path, executor)
    assert 2 <= executor.most <= 64
    assert len(chunks_of(path)) > 200
    assert CachedDataset.from_cache(path, allow_partial=True).complete


def test_an_engine_whose_processes_end_is_one_error_and_keeps_what_was_published(path, log, tmp_path):
    text = "a task of ProcessPoolExecutor failed: BrokenProcessPool: "
    pool = ProcessPoolExecutor(1, mp_context=get_context("fork"))
    with pool as executor, pytest.raises(SourceError, match=text):
        fill(Source(log, at={100: "kill"}), path, executor, chunk_size=5)
    assert 50 < Reader(path, allow_partial=True).session.index.present <= 100
    fill(Source(log), path, None)
    check(path, tmp_path)


def test_an_engine_has_its_own_processes(path, log):
    with ThreadPoolExecutor(1) as executor, pytest.raises(OptionError, match="neither num_workers= nor"):
        fill(Source(log), path, executor, num_workers=2)


# --- Dask and Ray -----------------------------------------------------------------------------------


@pytest.mark.full
def test_dask_fills_as_this_process_would(dask, path, log, tmp_path):
    ds = fill(Source(log), path, dask.get_executor())
    assert ds.complete
    assert len(processes(log)) > 1
    assert os.getpid() not in processes(log)
    check(path, tmp_path)


@pytest.mark.full
def test_a_loky_worker_that_is_killed_is_one_error_and_keeps_what_was_published(path, log, tmp_path):
    loky = pytest.importorskip("loky")
    killer = threading.Thread(target=kill_one, args=(log,))
    killer.start()
    with loky.ProcessPoolExecutor(2) as executor, pytest.raises(SourceError, match="a task of ProcessPoolEx"):
        fill(Source(log, seconds=0.02), path, executor)
    killer.join()
    assert 10 < Reader(path, allow_partial=True).session.index.present < COUNT
    fill(Source(log), path, None)
    check(path, tmp_path)


class Broken(ThreadPoolExecutor):
    """A pool that loses its processes between two tasks."""

    def submit(self, *args, **kwargs):
        if self._work_queue.qsize() or self._threads:
            raise BrokenExecutor("a process was killed")
        return super().submit(*args, **kwargs)


def test_an_executor_that_breaks_before_it_takes_a_task_is_one_error(path, log):
    with (
        Broken(1) as executor,
        pytest.raises(SourceError, match="a task of Broken failed: BrokenExecutor: a process"),
    ):
        fill(Source(log), path, executor, chunk_size=3)


@pytest.mark.full
def test_a_dask_worker_that_is_killed_costs_nothing(dask, path, log, tmp_path):
    killer = threading.Thread(target=kill_one, args=(log,))
    killer.start()
    ds = fill(Source(log, seconds=0.02), path, dask.get_executor())
    killer.join()
    assert ds.complete
    check(path, tmp_path)


@pytest.mark.full
def test_ray_fills_as_this_process_would(ray_pool, path, log, tmp_path):
    ds = fill(Source(log), path, ray_pool)
    assert ds.complete
    assert os.getpid() not in processes(log)
    check(path, tmp_path)


@pytest.mark.full
def test_a_ray_worker_that_is_killed_costs_nothing(ray_pool, path, log, tmp_path):
    killer = threading.Thread(target=kill_one, args=(log,))
    killer.start()
    ds = fill(Source(log, seconds=0.02), path, ray_pool)
    killer.join()
    assert ds.complete
    check(path, tmp_path)


def kill_one(log):
    limit = time.monotonic() + 200
    while not log.exists() or len(computed(log)) < 30:
        assert time.monotonic() < limit
        time.sleep(0.01)
    os.kill(last_process(log), signal.SIGKILL)


class TwoKinds(Source):
    """Half of the labels are no numbers, so they make no column with the others."""

    def __getitem__(self, i):
        return {**super().__getitem__(i), "y": i if i < 75 else f"text {i}"}


def test_labels_of_two_types_are_failures_of_those_that_come_second(path, log):
    with ThreadPoolExecutor(2) as executor:
        ds = fill(TwoKinds(log), path, executor, on_error="skip_final")
    assert ds.complete
    assert len(ds.errors) + ds._archive.reader.session.index.present == COUNT
    assert {e.error for e in ds.errors} == {"LabelError"}
    kept = {type(sample["y"]) for sample in available(ds)}
    assert len(kept) == 1
    assert edcache.verify(path).sound


def test_a_full_disk_of_a_task_is_the_error_that_it_is(path, log):
    with replace_system(Small(20_000)), ThreadPoolExecutor(2) as executor:
        with pytest.raises(StorageError, match="No space left on device") as caught:
            fill(Source(log), path, executor, chunk_size=3)
        assert caught.value.errno == errno.ENOSPC
