"""Small tests of checks that larger tests pass by."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip_record
from disk import MemoryDisk
from scenarios import OPTIONS, PATH, sample
from systems import Full, replace_system
from written import write

from edcache import CachedDataset, CacheWriter
from edcache.errors import PartialArchiveWarning, StorageError
from edcache.labels import LabelSpec
from edcache.reader import Reader
from edcache.writer import Appender, new_head


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("absent", [[3], [0], [1, 2], [0, 1, 2, 3]])
def test_missing_has_the_first_and_the_last_sample(path: Path, absent: list[int], seal: bool) -> None:
    appender = Appender.open(path, new_head(LabelSpec.parse(None), length=4), mode="x")
    appender.close()
    w = CacheWriter(path, "a", publish_seconds=None)
    for index in {0, 1, 2, 3} - set(absent):
        w.write(index, {"x": index})
    w.flush()
    if seal:
        w.seal()
    w._appender.close()
    with closing(CachedDataset.from_cache(path, allow_partial=True)) as cache:
        assert cache.missing.tolist() == absent


def test_a_replacement_deletes_what_a_killed_one_left_and_cuts_nothing(path: Path) -> None:
    """Somebody may have it mapped."""
    left = Path(f"{path}.edcache.new")
    w = CacheWriter(left)
    w.append({"x": np.arange(1000)})
    w.abort()
    before = left.read_bytes()
    with left.open("rb") as opened:
        write(path, [{"x": 1}], "w")
        assert opened.read() == before
    assert not left.exists()


def operations(disk: MemoryDisk) -> list[tuple[str, int]]:
    """What was done to a disk in order, and of writes the offset."""
    return [(name, arguments[1] if name == "write" else 0) for name, *arguments in disk.journal]


@pytest.mark.parametrize("sync", ["never", "seal", "chunk"])
def test_a_new_archive_has_its_head_and_its_name_on_the_disk_before_its_first_chunk(sync: str) -> None:
    disk = MemoryDisk()
    with replace_system(disk), CacheWriter(PATH, sync=sync, publish_seconds=None) as w:
        w.append(sample(0))
    done = [name if name != "write" else f"write {offset > 0}" for name, offset in operations(disk)]
    before = done[: done.index("write True")]
    assert [name for name in before if name != "make_folders"] == [
        "create",
        "write False",
        "sync",
        "sync_directory",
    ]


def test_the_name_of_a_replacement_is_brought_to_the_disk_after_its_bytes() -> None:
    disk = MemoryDisk()
    with replace_system(disk):
        for mode in ("x", "w"):
            write(PATH, [sample(0)], mode, publish_seconds=None)
    names = [name for name, _ in operations(disk)]
    at = names.index("replace")
    assert names[at - 1 : at + 2] == ["sync", "replace", "sync_directory"]


class SyncFailsOnce(MemoryDisk):
    """From when it is told."""

    fails = False

    def sync(self, fd: int) -> None:
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


@pytest.mark.parametrize("sync", ["chunk", 1e-9])
def test_after_a_failed_sync_an_open_writer_publishes_nothing_more(sync: Any) -> None:
    """The kernel may have dropped the pages and marked them clean: a second sync would prove nothing."""
    disk = SyncFailsOnce()
    with replace_system(disk):
        w = CacheWriter(PATH, **(OPTIONS | {"sync": sync}))
        w.write(0, sample(0))
        disk.fails = True
        with pytest.raises(StorageError, match="Input/output error"):
            w.flush()
        before = disk.files()
        assert not disk.fails
        with pytest.raises(StorageError, match="a sync failed, so what was written since the last one is in"):
            w.write(1, sample(1))
        with pytest.raises(StorageError, match="a sync failed"):
            w.seal()
        assert disk.files() == before
        w._appender.close()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_came_after_the_last_seal_is_saved_as_the_newer(path: Path, is_damaged: bool) -> None:
    write(path, ({"x": index} for index in range(3)), publish_seconds=None)
    w = CacheWriter(path, "a", publish_seconds=None)
    w.write(1, {"x": 100})
    w.abort()
    if is_damaged:
        flip_record(path, 1)
    told = pytest.warns(PartialArchiveWarning, match="left out: 1") if is_damaged else nullcontext()
    with closing(CachedDataset.from_cache(path, allow_partial=True)) as cache, told:
        cache.save(path.with_name("new.zip"), skip_damaged=True)
    with closing(CachedDataset.from_cache(path.with_name("new.zip"), allow_partial=True)) as cache:
        there = set(range(3)) - set(cache.missing.tolist())
        assert {k: cache[k]["x"] for k in there} == {0: 0, 2: 2} | ({} if is_damaged else {1: 100})


class InterruptsOnce(MemoryDisk):
    """Right behind the write of a header, from when it is told."""

    interrupts = False

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        done = super().pwrite(fd, data, offset)
        if self.interrupts and bytes(data[:4]) == b"PK\3\4" and offset:
            self.interrupts = False
            raise KeyboardInterrupt
        return done


def test_a_chunk_that_was_interrupted_when_it_was_out_is_there_once() -> None:
    """Appended samples would get other indices the second time, and be there twice."""
    disk = InterruptsOnce()
    with replace_system(disk):
        w = CacheWriter(PATH, publish_seconds=None)
        for index in range(3):
            w.append({"x": index})
        disk.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            w.flush()
        assert not disk.interrupts
        with pytest.raises(StorageError, match="an append was broken off"):
            w.close()
        with CacheWriter(PATH, "a") as w:
            w.append({"x": w.next_index})
        with closing(CachedDataset.from_cache(PATH, allow_partial=True)) as cache:
            assert [cache[k]["x"] for k in range(len(cache))] == [0, 1, 2, 3]
            assert cache._archive.reader.session.chunks == 2


def test_a_full_disk_gets_the_bytes_of_half_a_chunk_back(path: Path) -> None:
    write(path, [{"x": 0}], publish_seconds=None)
    before = path.read_bytes()
    w = CacheWriter(path, "a", publish_seconds=None)
    w.append({"x": 1})
    with replace_system(Full(1)), pytest.raises(StorageError, match="No space left on device"):
        w.flush()
    assert path.read_bytes() == before
    with pytest.raises(StorageError, match="an append was broken off"):
        w.close()
    write(path, [{"x": 1}], "a")
    with closing(CachedDataset.from_cache(path, allow_partial=True)) as cache:
        assert [cache[k]["x"] for k in range(2)] == [0, 1]


@pytest.mark.parametrize("seal", [False, True])
def test_a_closed_archive_is_let_go_without_the_collector(path: Path, seal: bool) -> None:
    """Its mapping would keep a file system busy, and the disk space of a file that was replaced."""
    w = CacheWriter(path, in_memory_keys=["x"], publish_seconds=None)
    w.append({"x": 0})
    w.close() if seal else w.abort()
    gc.disable()
    try:
        reader = Reader(path, allow_partial=True)
        assert (reader.session.read(0), reader.session.labels.table.num_rows) == ({"x": 0}, 1)
        session = weakref.ref(reader.session)
        reader.close()
        del reader
        assert session() is None
    finally:
        gc.enable()
