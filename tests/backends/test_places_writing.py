"""Archives written to URLs: filled in a spool file, resumed, and there when they are whole."""

import functools
import os
import signal
import subprocess
import sys
import time

import fsspec
import numpy as np
import object_servers
import pytest
from filled import computed, note
from likeness import same
from written import write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.backends.remote.store import ObjectSpool
from edcache.errors import (
    ArchiveExistsError,
    ArchiveNotFoundError,
    OptionError,
    SourceError,
    StaleCacheError,
    StorageError,
)
from edcache.writer.store import store_at

UUID = bytes(range(16))
# It computes only what it stores.
cached = functools.partial(CachedDataset, spot_check=False)
COUNT = 120


@pytest.fixture(autouse=True)
def spool(tmp_path, monkeypatch):
    folder = tmp_path / "spool"
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path))
    return folder


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]  # folders that other tests made
    yield system
    system.store.clear()


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s3")
    with object_servers.s3(folder) as options:
        system = fsspec.filesystem("s3", **options)
        system.call_s3("create_bucket", Bucket="bucket")
        yield system, options, folder / "log"


def sample(k):
    return {"image": np.full(500, k, np.int16), "label": k % 7}


class Source:
    def __init__(self, log, count=COUNT, fails_at=None):
        self.log, self.count, self.fails_at = log, count, fails_at

    def __edcache_fingerprint__(self):
        return "samples"

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        note(self.log, k)
        if k == self.fails_at:
            raise ValueError("out of luck")
        return sample(k)


def files(folder):
    return sorted(os.listdir(folder)) if folder.exists() else []


def written(path, mode="x", **options):
    with CacheWriter(path, mode, uuid=UUID, publish_seconds=None, in_memory_keys=["label"], **options) as w:
        w.extend(map(sample, range(COUNT)))


def test_a_writer_gives_the_same_bytes_and_nobody_sees_a_part(tmp_path, memory, spool):
    written(tmp_path / "a.zip")
    with CacheWriter("memory://bucket/a.zip", uuid=UUID, publish_seconds=None, in_memory_keys=["label"]) as w:
        w.extend(map(sample, range(COUNT)))
        w.flush()
        assert not memory.exists("/bucket/a.zip")
        assert len(files(spool)) == 1
        assert w.path == "memory://bucket/a.zip"
    assert memory.cat_file("/bucket/a.zip") == (tmp_path / "a.zip").read_bytes()
    assert memory.ls("/bucket", detail=False) == ["/bucket/a.zip"]
    assert files(spool) == []


def test_modes_are_as_with_files(memory, spool):
    url = "memory://bucket/a.zip"
    written(url)
    with pytest.raises(ArchiveExistsError, match='memory://bucket/a.zip: exists already; use mode="a" to'):
        CacheWriter(url)
    write(url, [sample(COUNT)], "a")
    assert [int(s["image"][0]) for s in CachedDataset.from_cache(url)[-2:]] == [COUNT - 1, COUNT]
    written(url, "w")
    assert len(CachedDataset.from_cache(url)) == COUNT
    assert files(spool) == []


def test_what_an_error_interrupted_is_continued(memory, spool):
    url = "memory://bucket/a.zip"
    with pytest.raises(ValueError, match="stop"), CacheWriter(url) as w:
        w.extend(map(sample, range(5)))
        raise ValueError("stop")
    assert not memory.exists("/bucket/a.zip")
    with pytest.raises(ArchiveExistsError):
        CacheWriter(url)
    with CacheWriter(url, "a") as w:
        assert w.next_index == 5
        w.append(sample(5))
    assert len(CachedDataset.from_cache(url)) == 6


@pytest.mark.parametrize("mode", ["a", "w"])
def test_what_was_interrupted_does_not_overwrite_what_came_meanwhile(memory, tmp_path, monkeypatch, mode):
    url, folders = "memory://bucket/a.zip", [str(tmp_path / "one"), str(tmp_path / "two")]
    monkeypatch.setenv("EDCACHE_DIR", folders[0])
    write(url, [1])
    w = CacheWriter(url, "a")
    w.append(2)
    w.abort()
    monkeypatch.setenv("EDCACHE_DIR", folders[1])
    write(url, [3], mode)
    published = memory.cat_file("/bucket/a.zip")
    monkeypatch.setenv("EDCACHE_DIR", folders[0])
    with pytest.raises(ArchiveExistsError, match="another archive was put there since .* was begun; delete"):
        CacheWriter(url, "a")
    assert memory.cat_file("/bucket/a.zip") == published


def test_what_was_interrupted_goes_on_where_nothing_came_meanwhile(memory, spool):
    url = "memory://bucket/a.zip"
    written(url)
    for k in (1, 2):
        w = CacheWriter(url, "a")
        w.append(sample(k))
        w.flush()
        w.abort()
    write(url, [sample(3)], "a")
    labels = CachedDataset.from_cache(url).labels["label"].tolist()
    assert labels == [*(k % 7 for k in range(COUNT)), 1, 2, 3]


def test_an_object_has_a_spool_of_its_own(memory):
    azure = "abfss://{}@account.dfs.core.windows.net/a.zip".format
    stores = [store_at(azure(name), {"account_name": name}) for name in ("alice", "bob")]
    stores += [store_at(azure("bob"), {"account_name": "carol"})]
    stores += [
        store_at("s3://b/k.zip", {"client_kwargs": {"endpoint_url": url}}) for url in ("http://a", "http://b")
    ]
    assert len({store.spool().path for store in stores}) == len(stores)
    assert stores[0].path == azure("alice")
    assert store_at(azure("alice:secret"), {}).path == "abfss://account.dfs.core.windows.net/a.zip"


def test_a_fill_goes_to_its_url_once_and_is_resumed(memory, log, spool):
    url = "memory://bucket/train.zip"
    with pytest.raises(SourceError):
        cached(Source(log, fails_at=70), url, in_memory_keys=["label"], chunk_size=10)
    assert not memory.exists("/bucket/train.zip")
    assert len(files(spool)) == 1
    ds = cached(Source(log), url, in_memory_keys=["label"])
    assert computed(log) == sorted([*range(COUNT), 70])
    assert files(spool) == []
    assert ds.path == url
    assert same(list(ds.__getitems__([3, 70])), [sample(3), sample(70)])
    again = cached(Source(log), url, in_memory_keys=["label"])
    assert len(computed(log)) == COUNT + 1
    assert len(again.filter(label=3)) == len([k for k in range(COUNT) if k % 7 == 3])
    with pytest.raises(StaleCacheError, match="memory://bucket/train.zip"):
        cached(Source(log, count=COUNT - 1), url, in_memory_keys=["label"])
    grown = cached(Source(log, count=COUNT + 5), url, in_memory_keys=["label"], grow=True)
    assert len(computed(log)) == COUNT + 6
    assert len(grown) == COUNT + 5
    cached(Source(log), url, in_memory_keys=["label"], keep_existing=False)
    assert len(computed(log)) == 2 * COUNT + 6


@pytest.mark.parametrize("path", ["memory://bucket/train.zip", "train.zip"])
def test_progress_names_the_archive_and_not_the_file_that_stands_for_it(
    memory, path, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDCACHE_PROGRESS", raising=False)
    for source in (list(range(9)), map(sample, range(9))):
        CachedDataset(source, path, keep_existing=False, fingerprint=False)
        lines = [line for line in capsys.readouterr().err.splitlines() if line]
        assert lines
        assert [line.partition(":")[0] for line in lines if "cached" in line] == ["train.zip"]


def test_an_iterable_and_workers_fill_it(memory, log):
    CachedDataset(map(sample, range(20)), "memory://bucket/i.zip", progress=False)
    assert len(CachedDataset.from_cache("memory://bucket/i.zip")) == 20
    ds = CachedDataset(Source(log), "memory://bucket/w.zip", num_workers=2, multiprocessing_context="fork")
    assert same(ds[7], sample(7))


def test_a_decorated_factory_fills_its_url_once(memory, log):
    @edcache.cachable("memory://bucket/{split}.zip", in_memory_keys=["label"], spot_check=False)
    def make(split):
        return Source(log)

    assert same(make("train")[3], sample(3))
    assert make.cache_path("train") == "memory://bucket/train.zip"
    assert same(make("train")[4], sample(4))
    assert computed(log) == list(range(COUNT))


def test_another_archive_that_came_meanwhile_is_kept(memory, log, spool):
    url = "memory://bucket/a.zip"
    with (
        pytest.raises(ArchiveExistsError, match="another archive was put there while this one"),
        CacheWriter(url) as w,
    ):
        w.append(sample(1))
        memory.pipe_file("/bucket/a.zip", b"mine")
    assert memory.cat_file("/bucket/a.zip") == b"mine"
    assert len(files(spool)) == 1


@pytest.mark.filterwarnings("ignore:.*the code of:RuntimeWarning")
def test_the_same_fill_on_another_machine_may_win(memory, log, tmp_path, monkeypatch):
    url = "memory://bucket/a.zip"

    class Slow(Source):
        def __getitem__(self, k):
            if k == COUNT - 1:
                with monkeypatch.context() as patch:
                    patch.setenv("EDCACHE_DIR", str(tmp_path / "other"))
                    CachedDataset(Source(log), url)
            return sample(k)

    Slow.__qualname__, Slow.__module__ = Source.__qualname__, Source.__module__
    ds = CachedDataset(Slow(log), url)
    assert same(ds[5], sample(5))


@pytest.mark.parametrize("url", ["https://host/a.zip", "simplecache::s3://bucket/a.zip"])
def test_what_cannot_be_written_is_told_before_anything_is_computed(url, log):
    with pytest.raises(OptionError, match=":// is only read; write to s3://"):
        CachedDataset(Source(log), url)
    with pytest.raises(OptionError, match=":// is only read; write to s3://"):
        CacheWriter(url)
    assert computed(log) == []


def test_a_folder_is_made_before_anything_is_computed(tmp_path, log):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"a\.zip: opening it: NotADirectoryError: .*; asked once"):
        CachedDataset(Source(log), f"local://{tmp_path}/file/a.zip", storage_options={"request_tries": 1})
    assert computed(log) == []
    assert len(CachedDataset(Source(log), f"local://{tmp_path}/new/folder/a.zip")) == COUNT


def test_a_lazy_cache_is_a_file(log):
    with pytest.raises(OptionError, match="lazy=True fills a file; for a URL all is filled at once"):
        CachedDataset(Source(log), "memory://bucket/a.zip", lazy=True)


# --- S3 ---------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_is_told_before_anything_is_computed(s3, log):
    _, options, _ = s3
    message = "s3://bucte/train.zip: no bucket bucte; check the URL, or make it first"
    with pytest.raises(ArchiveNotFoundError, match=message):
        CachedDataset(Source(log), "s3://bucte/train.zip", storage_options=options)
    with pytest.raises(ArchiveNotFoundError, match=message):
        CacheWriter("s3://bucte/train.zip", storage_options=options)
    assert computed(log) == []


def test_a_fill_goes_to_s3_whole(s3, log, spool):
    system, options, _ = s3
    url = "s3://bucket/a folder/train.zip"
    ds = cached(Source(log), url, storage_options=options, in_memory_keys=["label"])
    assert same(ds.batch([3, 4])["label"].tolist(), [3, 4])
    assert cached(Source(log), url, storage_options=options).complete
    assert len(computed(log)) == COUNT

    class Losing(Source):
        def __getitem__(self, k):
            if k == COUNT - 1:
                system.call_s3("delete_bucket", Bucket="later")
            return super().__getitem__(k)

    system.call_s3("create_bucket", Bucket="later")
    with pytest.raises(ArchiveNotFoundError, match="s3://later/a.zip: no such object; check the URL"):
        cached(Losing(log), "s3://later/a.zip", storage_options=options, fingerprint=False)
    system.call_s3("create_bucket", Bucket="later")
    again = cached(Source(log), "s3://later/a.zip", storage_options=options, fingerprint=False)
    assert again.complete
    assert len(computed(log)) == 2 * COUNT
    assert files(spool) == []


SENDING = """
import sys
from edcache.writer import store_at
from edcache.backends.remote.store import ObjectSpool
ObjectSpool(store_at(sys.argv[1], {"endpoint_url": sys.argv[2], "key": "k", "secret": "s"}).url).finish()
"""


@pytest.mark.full
def test_an_upload_that_is_killed_is_made_again(s3, spool, monkeypatch):
    system, options, log = s3
    url = "s3://bucket/large.zip"
    spooled = ObjectSpool(store_at(url, options).url)
    spool.mkdir()
    data = np.random.default_rng(0).bytes(128 << 20)
    with open(spooled.path, "wb") as file:
        file.write(data)
    command = [sys.executable, "-c", SENDING, url, options["endpoint_url"]]
    child = subprocess.Popen(command)
    try:
        sent = []
        while not sent:
            assert child.poll() is None
            time.sleep(0.01)
            sent = [line for line in log.read_text().splitlines() if "partNumber" in line]
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert not system.exists("bucket/large.zip")
    spooled.finish()
    assert system.cat_file("bucket/large.zip") == data
    assert files(spool) == []
