"""digest: the value that sha256sum prints, compared before anything of a file is believed."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch
from damage import flip, flip_in_root
from systems import Watching, replace_system

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    ArchiveError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    OptionError,
    StaleArchiveError,
)

WRONG = "sha256:" + "ab" * 32


def write(path: Path, count: int = 20) -> str:
    """Make a sealed archive; its digest, computed here."""
    with CacheWriter(path, in_memory_keys=["y"]) as w:
        w.extend({"x": torch.full((300,), i), "y": i % 3} for i in range(count))
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_digest_is_that_of_the_whole_file(path):
    expected = write(path)
    seen: list[tuple[int, int]] = []
    assert edcache.digest(path, lambda done, total: seen.append((done, total))) == expected
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
    assert edcache.digest(str(path)) == expected


def test_an_archive_that_may_grow_has_none(path):
    w = CacheWriter(path)
    w.append(1)
    w.abort()
    message = (
        rf"{path}: it is not sealed, so it may still grow and has no digest; fill it, or seal what is there: "
        rf'"edcache copy {path} -o NEW --skip-damaged"'
    )
    with pytest.raises(ArchiveError, match=message):
        edcache.digest(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ArchiveError, match=message):
        CachedDataset.from_cache(path, expected_digest=found)
    CachedDataset.from_cache(path, allow_partial=True).save(path, skip_damaged=True)
    assert edcache.digest(path).startswith("sha256:")


def test_what_is_no_archive_has_no_digest(path):
    with pytest.raises(ArchiveNotFoundError):
        edcache.digest(path)
    path.write_bytes(b"no archive" * 1000)
    with pytest.raises(CorruptArchiveError):
        edcache.digest(path)
    path.unlink()
    write(path)
    flip_in_root(path)
    with pytest.raises(CorruptArchiveError, match=r"root.json at offset .* fails its crc32: it is damaged"):
        edcache.digest(path)


def test_the_published_file_opens_and_any_other_does_not(path):
    digest = write(path)
    for text in (digest, digest[7:], digest.upper(), digest[7:].upper()):
        cache = CachedDataset.from_cache(path, expected_digest=text)
        assert cache[3]["x"].tolist() == [3] * 300
    message = (
        rf"{path}: its sha256 is {digest[7:]}, expected {'ab' * 32}; it is not the file that was published"
    )
    with pytest.raises(ArchiveError, match=message):
        CachedDataset.from_cache(path, expected_digest=WRONG)
    flip(path, path.stat().st_size // 2)
    with pytest.raises(ArchiveError, match="it is not the file that was published"):
        CachedDataset.from_cache(path, expected_digest=digest)


def test_the_digest_is_compared_before_anything_is_parsed(path):
    path.write_bytes(b"PK\x03\x04" + os.urandom(10_000))
    with pytest.raises(ArchiveError, match="it is not the file that was published"):
        CachedDataset.from_cache(path, expected_digest=WRONG)


@pytest.mark.parametrize(
    "text", ["", "sha256:", "ab" * 31, "ab" * 33, "md5:" + "ab" * 32, "gh" * 32, 5, b"ab" * 32]
)
def test_what_is_no_digest_is_an_option_error(path, text):
    write(path)
    with pytest.raises(
        OptionError, match='give "sha256:" and 64 hex digits, as edcache.digest\\(\\) returns it'
    ):
        CachedDataset.from_cache(path, expected_digest=text)


def test_the_descriptor_that_was_hashed_is_the_one_that_is_read(path):
    digest = write(path)
    other = path.with_name("other.zip")
    write(other, count=5)

    class Swapping(Watching):
        """Another file takes the path's name while the first is hashed."""

        def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
            if other.exists():
                os.replace(other, path)
            return super().pread(fd, nbytes, offset)

    with replace_system(Swapping()) as system:
        cache = CachedDataset.from_cache(path, expected_digest=digest)
        assert len(cache) == 20
        assert [cache[i]["y"] for i in range(20)] == [i % 3 for i in range(20)]
    assert [opened for opened, _ in system.opened] == [str(path)]


def test_a_copy_in_another_process_hashes_nothing(path):
    digest = write(path, count=200)
    cache = CachedDataset.from_cache(path, expected_digest=digest)
    with replace_system(Watching()) as system:
        copy = pickle.loads(pickle.dumps(cache))
        assert copy[7]["x"].tolist() == [7] * 300
    assert 0 < system.nbytes < path.stat().st_size / 5


def test_a_copy_refuses_a_file_of_another_size_or_uuid_and_takes_a_copy_of_the_file(path):
    digest = write(path)
    pickled = pickle.dumps(CachedDataset.from_cache(path, expected_digest=digest))
    original = path.read_bytes()
    path.unlink()
    path.write_bytes(original)  # another inode, the same archive
    assert len(pickle.loads(pickled)) == 20
    with CacheWriter(path, "a") as w:
        w.append({"x": torch.zeros(1), "y": 0})
    with pytest.raises(
        StaleArchiveError, match=rf"{len(original):,} when its digest was checked; open it again"
    ):
        len(pickle.loads(pickled))
    while True:  # decimal numbers in it may have a digit less
        path.unlink()
        write(path)
        if path.stat().st_size == len(original):
            break
    with pytest.raises(StaleArchiveError, match="another archive is here now"):
        len(pickle.loads(pickled))


def test_a_proven_archive_does_not_change_under_its_reader(path):
    digest = write(path)
    cache = CachedDataset.from_cache(path, expected_digest=digest)
    assert not cache.refresh()
    with CacheWriter(path, "a") as w:
        w.append({"x": torch.zeros(1), "y": 0})
    with pytest.raises(
        StaleArchiveError, match="the file has changed since its digest was checked; open it again"
    ):
        cache.refresh()
    assert len(cache) == 20
    assert cache[19]["y"] == 1


def test_a_cache_that_is_filled_here_has_no_published_digest(path):
    message = r"expected_digest= is for CachedDataset.from_cache\(\)"
    with pytest.raises(OptionError, match=message):
        CachedDataset([1, 2], path, expected_digest=WRONG)
    with pytest.raises(OptionError, match=message):
        edcache.cachable(path, expected_digest=WRONG)(list)
    assert not path.exists()
