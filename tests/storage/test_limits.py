"""Where the system refuses what it has little of: an error of ours, nothing lost, nothing temporary left."""

import gc
import os
import resource
import sys

import pyarrow as pa
import pytest
from descriptors import open_files
from systems import ended, in_child

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import EdcacheError, StorageError

COUNT = 40


class Source:
    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        return {"x": i, "b": bytes(2000)}


OPERATIONS = {
    "alone": lambda top: CachedDataset(Source(), top / "new.zip"),
    "fork": lambda top: CachedDataset(
        Source(), top / "new.zip", num_workers=4, multiprocessing_context="fork"
    ),
    "rebuild": lambda top: CachedDataset(Source(), top / "in" / "0.zip", keep_existing=False),
    "lazy": lambda top: list(CachedDataset(Source(), top / "new.zip", lazy=True)),
    "several": lambda top: CachedDataset.from_cache(top / "in"),
    "save": lambda top: CachedDataset.from_cache(top / "in").save(top / "new.zip"),
    "save parts": lambda top: CachedDataset.from_cache(top / "in" / "0.zip").save(
        top / "new.zip", max_size=1
    ),
    "copy": lambda top: edcache.copy_to_local(top / "in" / "0.zip", top / "near.zip", progress=False),
    "spool": lambda top: CachedDataset(Source(), "memory://limits/a.zip"),
    "preload": lambda top: CachedDataset.from_cache(top / "in" / "0.zip", preload="shm")[0],
    "in memory": lambda top: CachedDataset(Source(), f"shm://limits-{os.getpid()}"),
}


@pytest.fixture
def top(tmp_path, monkeypatch):
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path))
    for k in range(6):
        CachedDataset(Source(), tmp_path / "in" / f"{k}.zip").close()
    return tmp_path


def refused_or_done(operation, top, spare):
    """Runs in a child that may open a few files more than it has."""
    pa.array([1])  # which imports pandas, if it is there
    most = max(map(int, os.listdir("/proc/self/fd"))) + spare
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        operation(top)
    except EdcacheError as error:
        text = str(error)
        assert f"Too many open files; this process may have {most} (ulimit -n): allow more" in text, text


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("spare", [1, 2, 4])
def test_few_descriptors_are_an_error_that_names_the_limit(top, name, spare):
    assert ended(in_child(lambda: refused_or_done(OPERATIONS[name], top, spare))) == 0
    for k in range(6):
        assert CachedDataset.from_cache(top / "in" / f"{k}.zip").complete
    left = [file for _, _, files in os.walk(top) for file in files if file.endswith(".zip.edcache.new")]
    assert spare < 4 or left == []
    if name in ("alone", "fork", "lazy"):
        ds = CachedDataset(Source(), top / "new.zip")
        assert [sample["x"] for sample in ds] == list(range(COUNT))


def test_a_writer_that_runs_out_of_descriptors_keeps_what_it_published(path):
    def run():
        writer = CacheWriter(path, chunk_size=1)
        writer.append(1)
        gc.collect()
        free = os.dup(0)  # the least number that is free
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
        writer.append(2)
        with pytest.raises(StorageError, match="Too many open files"):
            CachedDataset.from_cache(path, allow_partial=True)
        writer.close()

    assert ended(in_child(run)) == 0
    assert list(CachedDataset.from_cache(path, allow_partial=True)) == [1, 2]


def test_an_open_archive_takes_a_descriptor_and_its_mapping_another_one_before_python_3_13(top):
    path, each = top / "in" / "0.zip", 1 if sys.version_info >= (3, 13) else 2
    cache = CachedDataset.from_cache(path)
    assert cache.batch([1, 2])["x"].tolist() == [1, 2]
    assert open_files(path) == [str(path)] * each
    assert ended(in_child(lambda: assert_open(cache, path, each))) == 0
    cache.close()
    assert open_files(path) == []


def assert_open(cache, path, count):
    assert cache[3]["x"] == 3
    assert open_files(path) == [str(path)] * count


def test_a_process_has_more_archives_open_than_its_soft_limit_of_descriptors(top):
    paths = [top / "in" / f"copy-{k}.zip" for k in range(150)]
    for path in paths:
        path.write_bytes((top / "in" / "0.zip").read_bytes())

    def read_all():
        # Lower numbers may be free.
        free = max(map(int, os.listdir("/proc/self/fd")))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
        caches = [CachedDataset.from_cache(path) for path in paths]
        for cache in caches:
            assert cache[3]["x"] == 3
        soft, after = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert (min(hard, 1 << 16), hard) == (soft, after)

    assert ended(in_child(read_all)) == 0
