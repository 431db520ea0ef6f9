"""Archives on real servers: nginx, an S3, a Google Cloud Storage."""

import functools
import os
from itertools import count

import fsspec
import object_servers
import pytest
import torch
from far import picture, pictures
from likeness import same
from optional import need
from torch.utils.data import DataLoader, default_collate

from edcache import CachedDataset
from edcache.errors import ArchiveNotFoundError, StaleArchiveError

from_cache = functools.partial(CachedDataset.from_cache, local=False)
COUNT = 300


class Place:
    """Where a server has an object: its URL, the options that lead there, and what puts bytes there."""

    def __init__(self, url, options, put):
        self.url, self.options, self.put = url, options, put

    def open(self, name="a.zip"):
        return from_cache(self.url + name, storage_options=self.options)


@pytest.fixture(scope="module")
def nginx(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nginx")
    with object_servers.nginx(folder) as url:
        ticks = count(1_700_000_000)

        def put(name, data):
            (folder / "www" / name).write_bytes(data)
            # nginx tells the states of a file apart by its size and the second of its last write.
            os.utime(folder / "www" / name, (0, next(ticks)))

        yield Place(f"{url}/", None, put)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with object_servers.s3(tmp_path_factory.mktemp("s3")) as options:
        system = fsspec.filesystem("s3", **options)
        system.call_s3("create_bucket", Bucket="bucket")
        yield Place(
            "s3://bucket/a folder/", options, lambda name, data: put(system, f"a folder/{name}", data)
        )


@pytest.fixture(scope="module")
def gs(tmp_path_factory):
    with object_servers.gs(tmp_path_factory.mktemp("gs")) as options:
        system = fsspec.filesystem("gs", **options)
        yield Place("gs://bucket/folder/", options, lambda name, data: put(system, f"folder/{name}", data))


def put(system, name, data):
    system.pipe_file(f"bucket/{name}", data)


@pytest.fixture(params=["nginx", "s3", "gs"])
def place(request, tmp_path):
    need("aiohttp")
    place = request.getfixturevalue(request.param)
    place.put("a.zip", pictures(tmp_path / "a.zip", COUNT))
    return place


def test_a_server_gives_the_samples_and_notices_a_change(place, tmp_path):
    ds = place.open()
    indices = [*range(0, COUNT, 17), 3, -1]
    assert same(ds.batch(indices), default_collate([picture(k % COUNT) for k in indices]))
    assert same(ds[7], picture(7))
    assert len(ds.filter("label < 10")) == 10
    place.put("a.zip", pictures(tmp_path / "b.zip", COUNT, lambda k: picture(k + 1)))
    for read in (lambda: ds[8], lambda: ds.batch([30, 299])):
        with pytest.raises(StaleArchiveError, match=r"/a\.zip: "):
            read()
    with pytest.raises(ArchiveNotFoundError, match="no such object; check the URL"):
        place.open("absent.zip")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_forked_workers_read_an_object_that_their_parent_has_read(request, tmp_path, scheme):
    place = request.getfixturevalue(scheme)
    place.put("a.zip", pictures(tmp_path / "a.zip", COUNT))
    ds = place.open()
    assert same(ds[7], picture(7))
    indices = list(range(0, COUNT, 30))
    loader = DataLoader(ds, 5, sampler=indices, num_workers=2, multiprocessing_context="fork")
    assert torch.cat([batch["label"] for batch in loader]).tolist() == indices
    assert same(ds[8], picture(8))
