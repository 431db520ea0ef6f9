"""Local copies of archives behind URLs: whole ones, and ones that fill as they are read."""

import pickle
import shutil
import sys
from pathlib import Path

import object_servers
import pytest
from far import picture, pictures
from likeness import same
from optional import need
from range_server import serving

import edcache
from edcache import CachedDataset
from edcache.errors import StorageError

COUNT = 600
SECRET = "s3cr3t-t0ken"


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    path = tmp_path_factory.mktemp("far") / "train.zip"
    pictures(path, COUNT)
    return path


@pytest.fixture
def served(far):
    with serving(far.read_bytes()) as served:
        served.url += "train.zip" if served.url.endswith("/") else "/train.zip"
        yield served


@pytest.fixture
def ssd(tmp_path):
    return tmp_path / "ssd"


def test_a_whole_copy_is_made_once_and_equals_what_is_behind_the_url(served, far, ssd, tmp_path):
    copy = edcache.copy_to_local(served.url, ssd)
    assert Path(copy).read_bytes() == far.read_bytes()
    served.forget()
    assert edcache.copy_to_local(served.url, ssd) == copy
    assert served.sent < 1 << 17, "what it takes to see that it is the same"
    assert same(CachedDataset.from_cache(copy)[7], picture(7))
    served.data, served.etag = pictures(tmp_path / "b.zip", 20), "v2"
    assert Path(edcache.copy_to_local(served.url, ssd)).read_bytes() == served.data


def test_what_is_read_is_fetched_once_and_a_full_copy_needs_no_server(served, far, ssd):
    ds = CachedDataset.from_cache(served.url, local=ssd)
    assert all(same(ds[k], picture(k)) for k in range(0, COUNT, 7))
    served.forget()
    assert all(same(ds[k], picture(k)) for k in range(0, COUNT, 7))
    assert served.requests == []
    assert ds.labels["label"].tolist() == list(range(COUNT))
    list(ds)
    ds.close()
    ds = CachedDataset.from_cache(served.url, local=ssd)
    served.faults.append(lambda handler, start, end: handler.say(500, {}, b"") or True)
    assert all(same(picture(k), found) for k, found in enumerate(ds))
    ds.close()
    options = {"request_tries": 1}
    again = CachedDataset.from_cache(served.url, local=ssd, storage_options=options)
    assert same(again[3], picture(3))


def test_credentials_are_in_no_side_file_and_no_pickle(served, ssd):
    options = {"headers": {"Authorization": f"Bearer {SECRET}"}}
    ds = CachedDataset.from_cache(served.url, local=ssd, storage_options=options)
    assert same(ds[1], picture(1))
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
