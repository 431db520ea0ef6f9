"""Local copies of archives behind URLs: whole ones, and ones that fill as they are read."""

import pickle
import shutil
import sys
from pathlib import Path

import object_servers
import pytest
import torch
from likeness import same
from optional import need
from range_server import serving

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import ArchiveNotFoundError, StaleArchiveError, StorageError

COUNT = 600
SECRET = "s3cr3t-t0ken"


def sample(k, version=0):
    return {"image": torch.full((40, 50), (k + version) % 256, dtype=torch.uint8), "label": k}


def written(path, version=0):
    with CacheWriter(path, "w", in_memory_keys=["label"], chunk_size=50) as w:
        w.extend(sample(k, version) for k in range(COUNT))
    return path


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    return written(tmp_path_factory.mktemp("far") / "train.zip")


@pytest.fixture
def served(far):
    with serving(far.read_bytes()) as served:
        served.url += "train.zip" if served.url.endswith("/") else "/train.zip"
        yield served


@pytest.fixture
def ssd(tmp_path):
    return tmp_path / "ssd"


def test_a_whole_copy_is_made_once_and_equals_what_is_behind_the_url(served, far, ssd):
    copy = edcache.copy_to_local(served.url, ssd)
    assert Path(copy).read_bytes() == far.read_bytes()
    served.forget()
    assert edcache.copy_to_local(served.url, ssd) == copy
    assert served.sent < 1 << 17, "what it takes to see that it is the same"
    assert same(CachedDataset.from_cache(copy)[7], sample(7))


def test_an_object_that_changed_is_copied_anew(served, far, ssd, tmp_path):
    edcache.copy_to_local(served.url, ssd)
    served.data, served.etag = written(tmp_path / "b.zip", version=1).read_bytes(), "v2"
    copy = edcache.copy_to_local(served.url, ssd)
    assert Path(copy).read_bytes() == served.data


def test_what_is_read_is_fetched_once_and_a_full_copy_needs_no_server(served, far, ssd):
    ds = CachedDataset.from_cache(served.url, local=ssd)
    assert all(same(ds[k], sample(k)) for k in range(0, COUNT, 7))
    served.forget()
    assert all(same(ds[k], sample(k)) for k in range(0, COUNT, 7))
    assert served.requests == []
    assert ds.labels["label"].tolist() == list(range(COUNT))
    list(ds)
    ds.close()
    ds = CachedDataset.from_cache(served.url, local=ssd)
    served.faults.append(lambda handler, start, end: handler.say(500, {}, b"") or True)
    assert all(same(sample(k), found) for k, found in enumerate(ds))
    ds.close()
    options = {"request_tries": 1}
    again = CachedDataset.from_cache(served.url, local=ssd, storage_options=options)
    assert same(again[3], sample(3))


def test_an_object_that_changes_while_it_is_read_through_is_never_mixed(served, ssd, tmp_path):
    ds = CachedDataset.from_cache(served.url, local=ssd)
    assert same(ds[0], sample(0))
    served.data, served.etag = written(tmp_path / "b.zip", version=1).read_bytes(), "v2"
    with pytest.raises(StaleArchiveError):
        [ds[k] for k in range(COUNT)]
    fresh = CachedDataset.from_cache(served.url, local=ssd)
    assert all(same(fresh[k], sample(k, 1)) for k in range(0, COUNT, 50))


def test_an_object_that_is_not_there_is_told(served, ssd):
    served.faults.append(lambda handler, start, end: handler.say(404, {}, b"") or True)
    with pytest.raises(ArchiveNotFoundError):
        CachedDataset.from_cache(served.url, local=ssd)
    with pytest.raises(ArchiveNotFoundError):
        edcache.copy_to_local(served.url, ssd)


def test_credentials_are_in_no_side_file_and_no_pickle(served, ssd):
    options = {"headers": {"Authorization": f"Bearer {SECRET}"}}
    ds = CachedDataset.from_cache(served.url, local=ssd, storage_options=options)
    assert same(ds[1], sample(1))
    edcache.copy_to_local(served.url, ssd / "whole", storage_options=options)
    assert all(SECRET in str(headers) for *_, headers in served.requests)
    assert SECRET.encode() not in pickle.dumps(ds)
    assert SECRET not in repr(ds)
    for file in ssd.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()


def test_a_server_without_ranges_is_an_error_that_says_what_to_do(far, tmp_path):
    """Python's own server is one."""
    need("aiohttp")
    port = object_servers.free_port()
    shutil.copy(far, tmp_path / "train.zip")
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "-d", str(tmp_path)]
    with object_servers.running(command, f"http://127.0.0.1:{port}", tmp_path / "log"):
        message = (
            "200 for a range: the server sends files as a whole only; download it with curl -O; asked once"
        )
        with pytest.raises(StorageError, match=message):
            CachedDataset.from_cache(f"http://127.0.0.1:{port}/train.zip")
