"""A writer that opens a damaged archive leaves it as it is: what stands behind the damage is not cut."""

from __future__ import annotations

import errno
import os
import warnings
from typing import Any

import pytest
from damage import flipped
from disk import MemoryDisk
from scenarios import OPTIONS, PATH, read_all, sample
from systems import replace_system

import edcache
from edcache import CacheWriter
from edcache.errors import CorruptArchiveError
from edcache.format import PAGE


def archive(seal: bool, sync: Any = "seal") -> bytes:
    disk = MemoryDisk()
    with replace_system(disk):
        w = CacheWriter(PATH, chunk_size=3, **(OPTIONS | {"sync": sync}))
        w.extend(sample(index) for index in range(9))
        w.close() if seal else w.abort()
    return disk.files()[PATH]


def damaged(data: bytes, chunk: int) -> bytes:
    """With one bit of a chunk's header flipped."""
    return flipped(data, PAGE * (1 + chunk) + 60)


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize(("seal", "sync"), [(True, "seal"), (False, "chunk")])
def test_what_was_synced_behind_damage_is_never_cut(
    chunk: int, rebooted: bool, seal: bool, sync: Any
) -> None:
    data = damaged(archive(seal, sync), chunk)
    disk = MemoryDisk({PATH: data}, rebooted)
    with replace_system(disk):
        told = f"no entry fits at offset {PAGE * (1 + chunk):,}, but .* follows"
        with pytest.raises(CorruptArchiveError, match=told):
            CacheWriter(PATH, "a")
        assert disk.files()[PATH] == data
        assert not disk.open_files
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", edcache.errors.PartialArchiveWarning)
            damaged_one = edcache.CachedDataset.from_cache(PATH, allow_partial=True)
        damaged_one.save("/disk/mended.zip", skip_damaged=True)
        damaged_one.close()
        mended = edcache.reader.Reader("/disk/mended.zip")
        # A root says where the records lie, whatever the header of their chunk says.
        lost = [] if seal else list(range(3 * chunk, 3 * chunk + 3))
        assert (len(mended), mended.session.index.missing().tolist()) == (9, lost)
        assert any("no entry fits at offset" in problem for problem in edcache.verify(PATH).problems)
        mended.close()


def test_what_a_power_cut_left_behind_a_torn_header_is_cut() -> None:
    """Nothing says that it was synced, and the machine started since: an ordinary loss, computed again."""
    disk = MemoryDisk({PATH: damaged(archive(seal=False), 1)}, rebooted=True)
    with replace_system(disk):
        with CacheWriter(PATH, "a", publish_seconds=None, chunk_size=3) as w:
            assert w.next_index == 3
            w.extend(sample(index) for index in range(3, 9))
        assert edcache.verify(PATH).sound
        assert read_all(PATH) == dict.fromkeys(range(9), 0)


def test_an_unsealed_archive_that_was_written_since_the_start_is_not_cut_either() -> None:
    disk = MemoryDisk({PATH: damaged(archive(seal=False), 1)})
    with replace_system(disk), pytest.raises(CorruptArchiveError, match="edcache copy .* --skip-damaged"):
        CacheWriter(PATH, "a")


def test_damage_where_nothing_can_be_written_is_told_as_damage() -> None:
    class ReadOnly(MemoryDisk):
        def open(self, path: str, flags: int, mode: int) -> int:
            if flags & os.O_RDWR:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return super().open(path, flags, mode)

    data = damaged(archive(seal=False), 1)
    disk = ReadOnly({PATH: data})
    with replace_system(disk):
        with pytest.raises(CorruptArchiveError, match="it is damaged there; .*edcache copy"):
            edcache.CachedDataset([sample(index) for index in range(9)], PATH, in_memory_keys=["y"])
        assert not disk.open_files


def test_a_seal_that_a_power_cut_left_without_its_chunks_is_cut_and_its_samples_computed_again() -> None:
    data = damaged(archive(seal=True, sync="never"), 1)
    disk = MemoryDisk({PATH: data}, rebooted=True)
    source = [sample(index) for index in range(9)]
    options = {"in_memory_keys": ["y"], "num_workers": 0, "progress": False, "fingerprint": False}
    with replace_system(disk):
        edcache.CachedDataset(source, PATH, **options).close()
        assert edcache.verify(PATH).sound
        assert read_all(PATH) == dict.fromkeys(range(9), 0)
