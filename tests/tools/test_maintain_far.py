"""What mends, joins, divides and measures archives, where one is behind a URL, in a server or in memory."""

import os

import fsspec
import pytest
from range_server import serving

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import CorruptRecordError, OptionError, StaleArchiveError

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


def test_archives_behind_urls_are_merged_with_others(far, path, tmp_path):
    write(tmp_path / "b.zip", COUNT)
    report = edcache.merge([far.url, tmp_path / "b.zip"], tmp_path / "all.zip")
    assert (report.archives, report.samples) == (2, 2 * COUNT)
    check(tmp_path / "all.zip", range(2 * COUNT))
    assert edcache.merge(far.url, tmp_path / "one.zip").samples == COUNT
    check(tmp_path / "one.zip", range(COUNT))


def test_an_archive_behind_a_url_is_divided(far, tmp_path):
    pieces = edcache.split(far.url, tmp_path / "parts", parts=4)
    assert [os.path.basename(piece.path) for piece in pieces] == [f"a-{k:05}.zip" for k in range(4)]
    check(tmp_path / "parts", range(COUNT))


def test_an_object_of_a_store_is_merged_and_divided(bucket, path, tmp_path):
    write(path)
    fsspec.filesystem("memory").pipe_file("/bucket/a.zip", path.read_bytes())
    edcache.merge([bucket + "a.zip"], tmp_path / "all.zip")
    check(tmp_path / "all.zip", range(COUNT))
    edcache.split(bucket + "a.zip", tmp_path / "parts", parts=2)
    check(tmp_path / "parts", range(COUNT))


def test_it_is_verified_identified_and_exported(far, path, tmp_path):
    assert edcache.verify(far.url).sound
    assert edcache.digest(far.url) == edcache.digest(path)
    assert edcache.export(far.url, tmp_path / "out", to="parquet").samples == COUNT


def test_one_that_changes_meanwhile_is_not_mixed(path, tmp_path):
    with CacheWriter(path) as writer:
        writer.extend(bytes([i]) * 1_000_000 for i in range(10))
    with serving(path.read_bytes()) as far:

        def change(done, total):
            far.etag = "v2"

        with pytest.raises(StaleArchiveError):
            edcache.merge(far.url, tmp_path / "all.zip", change)
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]


def test_damage_behind_a_url_leaves_no_new_archive(far, path, tmp_path):
    data = bytearray(far.data)
    at = data.index(b"s" * 39)
    data[at] ^= 1
    far.data = bytes(data)
    with pytest.raises(CorruptRecordError, match="fails its crc32"):
        edcache.merge(far.url, tmp_path / "all.zip")
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]


TARGETS = ["s3://bucket/x.zip", "https://example.org/x.zip", "memory://bucket/x"]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_written_goes_to_a_path(path, target, tmp_path):
    write(path)
    for call in (
        lambda: edcache.merge([path], target),
        lambda: edcache.split(path, target, parts=2),
        lambda: edcache.compact(path, target),
        lambda: edcache.repair(path, target),
        lambda: edcache.export(path, target, to="files"),
        lambda: edcache.compact(target),
        lambda: edcache.repair(target, tmp_path / "new.zip"),
    ):
        with pytest.raises(OptionError, match=f"{target}: this takes a path; copy the archive from its URL"):
            call()
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]


def test_a_name_in_memory_is_a_source_and_no_target(path, tmp_path):
    write(path)
    name = f"shm://edcache-far-{os.getpid()}"
    ds = CachedDataset([{"x": "", "y": 0}] * 3, name, in_memory_keys=["y"])
    assert edcache.verify(name).sound
    assert edcache.digest(name).startswith("sha256:")
    assert edcache.merge([path, name], tmp_path / "all.zip").samples == COUNT + 3
    assert edcache.compact(name, tmp_path / "small.zip").samples == 3
    assert edcache.repair(name, tmp_path / "whole.zip").kept == 3
    assert len(edcache.split(name, tmp_path / "parts", parts=3)) == 3
    before = sorted(tmp_path.rglob("*"))
    for call in (
        lambda: edcache.merge([path], "shm://new"),
        lambda: edcache.split(path, "shm://new", parts=2),
        lambda: edcache.compact(path, "shm://new"),
        lambda: edcache.compact(name),
        lambda: edcache.repair(path, "shm://new"),
        lambda: edcache.export(path, "shm://new", to="files"),
    ):
        with pytest.raises(
            OptionError, match="shm://.*: an archive in memory would be lost at the end of this call"
        ):
            call()
    assert sorted(tmp_path.rglob("*")) == before
    ds.close()
