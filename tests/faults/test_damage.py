"""A writer that opens a damaged archive leaves it as it is: what stands behind the damage is not cut."""

from __future__ import annotations

import errno
import os
import random
import warnings
from contextlib import closing
from typing import Any

import pytest
from damage import flipped
from disk import MemoryDisk
from scenarios import OPTIONS, PATH, read_all, sample, version_of
from systems import replace_system

import edcache
from edcache import CacheWriter, EdcacheError
from edcache.errors import CorruptArchiveError
from edcache.format import PAGE, Head
from edcache.writer import Appender


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


def without_header(data: bytes, chunk: int) -> bytes:
    """With the sector of a chunk's header as a power cut leaves it."""
    at = PAGE * (1 + chunk)
    return data[:at] + bytes(512) + data[at + 512 :]


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("rebooted", [False, True])
@pytest.mark.parametrize(("seal", "sync"), [(True, "seal"), (False, "chunk")])
def test_what_was_synced_behind_damage_is_never_cut(
    chunk: int, rebooted: bool, seal: bool, sync: Any
) -> None:
    data = damaged(archive(seal, sync), chunk)
    disk = MemoryDisk({PATH: data}, rebooted)
    with replace_system(disk):
        told = f"no entry fits at offset {PAGE * (1 + chunk):,}, but other bytes stand there"
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
        assert (mended.session.length, mended.session.index.missing().tolist()) == (9, lost)
        assert any("no entry fits at offset" in problem for problem in edcache.verify(PATH).problems)
        mended.close()


@pytest.mark.parametrize("garbage", [bytes(512), random.Random(0).randbytes(512)])
def test_chunks_behind_a_header_that_a_power_cut_took_are_kept(garbage: bytes) -> None:
    """Nothing says that it was synced, and the machine started since: an ordinary loss, computed again."""
    data = without_header(archive(seal=False), 1).replace(bytes(512), garbage, 1)
    disk = MemoryDisk({PATH: data}, rebooted=True)
    with replace_system(disk):
        with closing(Appender.open(PATH, Head(bytes(16)), mode="a")) as appender:
            appender.recover()
            assert appender.first_lost() == 3
        assert disk.files().keys() == {PATH}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", edcache.errors.PartialArchiveWarning)
            cache = edcache.CachedDataset.from_cache(PATH, allow_partial=True)
        assert cache.missing.tolist() == [3, 4, 5]
        cache.close()
        with CacheWriter(PATH, "a", publish_seconds=None, chunk_size=3) as w:
            # A loop that goes on at the next index writes the samples behind it again.
            assert w.next_index == 3
            w.extend(sample(index) for index in range(3, 12))
            assert w.next_index == 12
        assert edcache.verify(PATH).sound
        assert read_all(PATH) == dict.fromkeys(range(12), 0)


@pytest.mark.parametrize("rebooted", [False, True])
def test_a_flipped_bit_of_a_record_takes_no_other_sample(rebooted: bool) -> None:
    data = archive(seal=False)
    disk = MemoryDisk({PATH: flipped(data, data.index(b"and so on", PAGE * 2))}, rebooted)
    with replace_system(disk):
        w = CacheWriter(PATH, "a", publish_seconds=None)
        assert w.next_index == (3 if rebooted else 9)
        w.abort()
        found = {index for index in range(9) if index != 3}
        with edcache.numpy.open(PATH, allow_partial=True) as arrays:
            for index in found:
                assert version_of(arrays[index], index) == 0
            with pytest.raises(EdcacheError):
                arrays[3]


@pytest.mark.parametrize("shift", [4096, 512, 100, -4096, -100])
@pytest.mark.parametrize("rebooted", [False, True])
def test_bytes_that_were_put_in_or_taken_out_are_no_torn_tail(shift: int, rebooted: bool) -> None:
    data = archive(seal=False)
    for at in (PAGE + 700, PAGE * 2 - 50, PAGE * 2, PAGE * 3):
        moved = data[:at] + bytes(max(0, shift)) + data[at + max(0, -shift) :]
        if data.startswith(moved):
            continue  # nothing but the end is gone
        disk = MemoryDisk({PATH: moved}, rebooted)
        with replace_system(disk):
            with pytest.raises(
                CorruptArchiveError, match="it is damaged there.*edcache copy .* --skip-damaged"
            ):
                CacheWriter(PATH, "a")
            assert disk.files() == {PATH: moved}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", edcache.errors.PartialArchiveWarning)
                with closing(edcache.CachedDataset.from_cache(PATH, allow_partial=True)) as damaged_one:
                    damaged_one.save("/disk/mended.zip", skip_damaged=True)
            kept = read_all("/disk/mended.zip")
            assert len(kept) >= (6 if shift > 0 or at > PAGE + 700 else 3)
            assert not any(kept.values())


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
    data = without_header(archive(seal=True, sync="never"), 1)
    disk = MemoryDisk({PATH: data}, rebooted=True)
    source = [sample(index) for index in range(9)]
    options = {"in_memory_keys": ["y"], "num_workers": 0, "progress": False, "fingerprint": False}
    with replace_system(disk):
        with pytest.warns(
            edcache.errors.PartialArchiveWarning, match="entries of a seal that a power cut took"
        ):
            edcache.CachedDataset(source, PATH, **options).close()
        assert disk.files().keys() == {PATH, f"{PATH}.edcache.cut-kept"}
        assert edcache.verify(PATH).sound
        assert read_all(PATH) == dict.fromkeys(range(9), 0)
