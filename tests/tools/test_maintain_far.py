"""Saving and checking archives that are behind a URL, in a server or in memory."""

import os

import fsspec
import pytest
from damage import flipped
from range_server import serving

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CorruptRecordError, OptionError, PartialArchiveWarning, StaleArchiveError

COUNT = 50


def write(path, first=0):
    with CacheWriter(path, "w", in_memory_keys=["y"], chunk_size=7) as writer:
        writer.extend({"x": "s" * (i % 40), "y": i} for i in range(first, first + COUNT))


def check(path, expected):
    ds = CachedDataset.from_cache(path)
    assert [ds[i] for i in range(len(ds))] == [{"x": "s" * (i % 40), "y": i} for i in expected]
    assert ds.labels["y"].tolist() == list(expected)


@pytest.fixture
def far(path):
    write(path)
    with serving(path.read_bytes()) as served:
        yield served


@pytest.fixture(scope="module")
def bucket():
    """A store of objects of this process, whose name ends in a slash."""
    pytest.importorskip("fsspec")
    yield "memory://bucket/"
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_archives_behind_urls_are_saved_with_others(far, path, tmp_path):
    write(tmp_path / "b.zip", COUNT)
    CachedDataset.from_cache([far.url, tmp_path / "b.zip"]).save(tmp_path / "all.zip")
    check(tmp_path / "all.zip", range(2 * COUNT))
    ds = CachedDataset.from_cache(far.url)
    ds.save(tmp_path / "one.zip")
    check(tmp_path / "one.zip", range(COUNT))
    ds.filter("y in (3, 5, 40)").save(tmp_path / "few.zip")
    check(tmp_path / "few.zip", [3, 5, 40])
    check(ds.save(tmp_path / "parts.zip", max_size=5000), range(COUNT))


def test_a_copy_that_fills_as_it_is_read_is_saved(far, tmp_path):
    ds = CachedDataset.from_cache(far.url, local=tmp_path / "copies")
    ds[::3].save(tmp_path / "third.zip")
    check(tmp_path / "third.zip", range(0, COUNT, 3))


def test_an_object_of_a_store_is_saved(bucket, path, tmp_path):
    write(path)
    fsspec.filesystem("memory").pipe_file("/bucket/a.zip", path.read_bytes())
    CachedDataset.from_cache(bucket + "a.zip").save(tmp_path / "one.zip")
    check(tmp_path / "one.zip", range(COUNT))


def test_it_is_verified_and_identified(far, path):
    assert edcache.verify(far.url).sound
    assert edcache.digest(far.url) == edcache.digest(path)


def test_one_that_changes_meanwhile_is_not_mixed(path, tmp_path):
    with CacheWriter(path) as writer:
        writer.extend(bytes([i]) * 1_000_000 for i in range(10))
    with serving(path.read_bytes()) as far:

        def change(done, total):
            far.etag = "v2"

        with pytest.raises(StaleArchiveError):
            CachedDataset.from_cache(far.url).save(tmp_path / "all.zip", on_progress=change)
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]


def test_damage_behind_a_url_leaves_no_new_archive_or_is_left_out(far, path, tmp_path):
    far.data = flipped(far.data, far.data.index(b"s" * 39))
    ds = CachedDataset.from_cache(far.url)
    with pytest.raises(CorruptRecordError, match="record 39 at offset .* fails its crc32"):
        ds.save(tmp_path / "all.zip")
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]
    with pytest.warns(PartialArchiveWarning, match="1 of 50 samples are damaged and were left out: 39"):
        ds.save(tmp_path / "all.zip", skip_damaged=True)
    assert CachedDataset.from_cache(tmp_path / "all.zip").missing.tolist() == [39]


@pytest.mark.parametrize("target", ["s3://bucket/x.zip", "https://example.org/x.zip", "memory://bucket/x"])
def test_what_is_written_goes_to_a_path(path, target, tmp_path):
    write(path)
    with pytest.raises(OptionError, match=f"{target}: this takes a path; copy the archive from its URL"):
        CachedDataset.from_cache(path).save(target)
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]


def test_a_name_in_memory_is_a_source_and_no_target(path, tmp_path):
    write(path)
    name = f"shm://edcache-far-{os.getpid()}"
    ds = CachedDataset([{"x": "", "y": 0}] * 3, name, in_memory_keys=["y"])
    assert edcache.verify(name).sound
    assert edcache.digest(name).startswith("sha256:")
    assert len(CachedDataset.from_cache(ds.save(tmp_path / "small.zip")[0])) == 3
    both = CachedDataset.from_cache([str(path), name]).save(tmp_path / "all.zip")
    assert len(CachedDataset.from_cache(both[0])) == COUNT + 3
    before = sorted(tmp_path.rglob("*"))
    for saved in (ds, CachedDataset.from_cache(path)):
        for target in ("shm://new", name):
            with pytest.raises(OptionError, match="shared memory is deleted when nobody has it open"):
                saved.save(target)
    assert sorted(tmp_path.rglob("*")) == before
    ds.close()


def test_an_archive_that_is_preloaded_is_saved(path, tmp_path):
    write(path)
    ds = CachedDataset.from_cache(path, preload="shm")
    ds.save(tmp_path / "new.zip")
    check(tmp_path / "new.zip", range(COUNT))
