"""compact: the same samples in fewer bytes, in one step, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import archives
import numpy as np
import pytest
import reference
from filled import available
from golden_samples import same
from scale import scaled, seeded
from systems import Full, Rebooted, killed_at, replace_system

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    ArchiveError,
    ArchiveExistsError,
    ArchiveLockedError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    CorruptRecordError,
    StaleArchiveError,
    StorageError,
)
from edcache.format import spec as format
from edcache.format.spec import Head
from edcache.storage.file import File
from edcache.writer.appender import Appender


def sample(i: int) -> dict[str, Any]:
    return {"x": np.full(60, i), "y": i % 3}


def write(path: Path, **options: Any) -> None:
    """20 samples in small chunks, then grown by two that replace earlier ones: much is dead."""
    options = {"chunk_size": 4, "publish_seconds": None, "in_memory_keys": ["y"]} | options
    with CacheWriter(path, **options) as w:
        w.extend(map(sample, range(20)))
    with CacheWriter(path, "a", publish_seconds=None) as w:
        w.write(3, sample(300))
        w.write(4, sample(400))


EXPECTED = {i: sample({3: 300, 4: 400}.get(i, i)) for i in range(20)}


def check(path: Path, expected: dict[int, Any] = EXPECTED) -> None:
    cache = CachedDataset.from_cache(path)
    assert available(cache).indices.tolist() == sorted(expected)
    assert all(same(cache[i], made) for i, made in expected.items())
    assert [cache.labels["y"][i] for i in expected] == [made["y"] for made in expected.values()]
    cache.close()


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def test_what_is_dead_goes_and_every_sample_stays(path):
    write(path)
    before = edcache.verify(path)
    assert (before.superseded, before.dead.superseded > 0, before.dead.old_seals > 0) == (2, True, True)
    head = CachedDataset.from_cache(path)._reader.head
    report = edcache.compact(path)
    after = edcache.verify(path)
    assert (report.path, report.rewritten, report.samples) == (str(path), True, 20)
    assert (report.nbytes_before, report.nbytes) == (before.nbytes, after.nbytes)
    assert report.dead_nbytes == before.nbytes - after.nbytes > before.dead.total
    assert (report.chunks_before, report.chunks, after.chunks) == (6, 1, 1)
    assert (after.problems, after.sealed, after.dead.total, after.superseded) == ([], True, 0, 0)
    assert CachedDataset.from_cache(path)._reader.head == head
    assert names(path) == ["a.zip"]
    check(path)


def test_nothing_is_written_where_nothing_is_to_gain(path):
    write(path)
    edcache.compact(path)
    before = os.stat(path)
    report = edcache.compact(path)
    assert (report.rewritten, report.dead_nbytes, report.nbytes) == (False, 0, before.st_size)
    assert (os.stat(path).st_ino, os.stat(path).st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_target_gets_the_same_bytes_and_the_archive_stays(path, tmp_path):
    write(path)
    before = path.read_bytes()
    report = edcache.compact(path, tmp_path / "deep" / "small.zip")
    assert path.read_bytes() == before
    assert report.path == str(tmp_path / "deep" / "small.zip")
    edcache.compact(path)
    assert (tmp_path / "deep" / "small.zip").read_bytes() == path.read_bytes()
    with pytest.raises(ArchiveExistsError, match=r"small\.zip: exists already; give a path where nothing is"):
        edcache.compact(path, tmp_path / "deep" / "small.zip")
    # Nothing to gain is no reason to make no file that was asked for.
    assert edcache.compact(path, tmp_path / "again.zip").rewritten
    assert (tmp_path / "again.zip").read_bytes() == path.read_bytes()


def test_an_unsealed_archive_with_a_torn_tail_is_sealed(path):
    w = CacheWriter(path, chunk_size=3, publish_seconds=None, in_memory_keys=["y"])
    for i in (2, 9, 5):
        w.write(i, sample(i))
    w.abort()
    with open(path, "ab") as file:
        file.write(bytes(5000) + b"torn")
    assert edcache.verify(path).dead.torn == 5004
    edcache.compact(path, allow_partial=True)
    report = edcache.verify(path)
    assert (report.sealed, report.samples, report.missing, report.problems) == (True, 10, 7, [])
    check(path, {i: sample(i) for i in (2, 5, 9)})


def test_an_empty_archive_is_compacted_too(path):
    CacheWriter(path).abort()
    assert edcache.compact(path, allow_partial=True).samples == 0
    assert edcache.verify(path).sealed
    assert not edcache.compact(path).rewritten


def test_random_archives_hold_the_same_afterwards(tmp_path, tally):
    rng = seeded("compact")
    for number in range(scaled(60)):
        path = tmp_path / f"{number}.zip"
        model = archives.make(path, rng)
        expected = reference.walk(path)
        report = edcache.compact(path, allow_partial=True)
        found = reference.read_zip(path)
        assert found.records == expected.records, number
        assert found.schemas == expected.schemas
        assert (found.length, found.failed) == (expected.length, expected.failed)
        cache = CachedDataset.from_cache(path)
        assert all(same(cache[i], model.newest(i)) for i in model.versions)
        rows = cache.labels.table.to_pylist() or [{}] * len(cache)
        assert all(rows[i] == model.labels(model.newest(i)) for i in model.versions)
        after = edcache.verify(path)
        assert (after.problems, after.sealed, after.dead.total, after.nbytes) == ([], True, 0, report.nbytes)
        assert not edcache.compact(path).rewritten
        tally("archives compacted")


def test_small_records_and_large_ones_lie_where_the_format_wants_them(path):
    with CacheWriter(path, chunk_size=1, publish_seconds=None) as w:
        for i in range(40):
            w.append(np.arange(i * i, dtype=np.uint8))
        w.append(np.ones(5_000_000, np.uint8))
        w.append(np.ones(10, np.uint8))
    assert edcache.compact(path).chunks == 2
    assert edcache.verify(path).problems == []
    cache = CachedDataset.from_cache(path)
    assert all(np.array_equal(cache[i], np.arange(i * i, dtype=np.uint8)) for i in range(40))
    assert len(cache[40]) == 5_000_000


# ------------------------------------------------------------------------------------------ with others


def test_a_live_reader_keeps_the_old_file_and_finds_the_new_one_when_it_looks_again(path):
    write(path)
    cache = CachedDataset.from_cache(path, zero_copy=True)
    old = cache[7]["x"]
    nbytes = cache._reader.nbytes
    edcache.compact(path)
    assert same(cache[8], sample(8))
    assert cache._reader.nbytes == nbytes
    assert cache.refresh()
    assert cache._reader.nbytes == path.stat().st_size < nbytes
    assert old.tolist() == [7] * 60
    assert same(cache[9], sample(9))
    assert cache.labels["y"].tolist() == [made["y"] for made in EXPECTED.values()]
    assert not cache.refresh()


def test_a_reader_that_looks_again_refuses_another_archive(path):
    write(path)
    cache = CachedDataset.from_cache(path)
    path.unlink()
    write(path)
    with pytest.raises(StaleArchiveError, match="the file was replaced since it was opened; open it again"):
        cache.refresh()
    path.unlink()
    path.write_bytes(b"no archive")
    with pytest.raises(StaleArchiveError, match="the file was replaced since it was opened"):
        cache.refresh()
    assert same(cache[8], sample(8))


def test_an_archive_that_another_process_fills_is_refused(path):
    write(path)
    before = path.read_bytes()
    filler = File.open(path, "a")
    filler.lock(format.LOCK_FILLER + 5)
    with pytest.raises(ArchiveLockedError, match="another process writes it; compact it when that has ended"):
        edcache.compact(path)
    assert path.read_bytes() == before
    edcache.compact(path, path.with_name("b.zip"))
    filler.close()
    assert edcache.compact(path).rewritten
    check(path)


def test_a_filler_that_begins_meanwhile_is_not_left_behind(path):
    write(path)
    before = path.read_bytes()
    fillers: list[File] = []

    def begin(done: int, total: int) -> None:
        if not fillers:
            fillers.append(File.open(path, "a"))
            fillers[0].lock(format.LOCK_FILLER)

    with pytest.raises(ArchiveLockedError, match="another process writes it"):
        edcache.compact(path, on_progress=begin)
    assert (path.read_bytes(), names(path)) == (before, ["a.zip"])
    fillers[0].close()


def test_an_archive_that_another_process_replaces_is_refused(path):
    write(path)
    before = path.read_bytes()
    with CacheWriter(path, "w", in_memory_keys=["y"]) as w:
        w.append(sample(0))
        with pytest.raises(ArchiveLockedError, match=r"a\.zip\.edcache\.new: another process is writing it"):
            edcache.compact(path)
        assert path.read_bytes() == before
    check(path, {0: sample(0)})


def test_what_others_append_meanwhile_is_taken_over(path):
    write(path, compression="zstd+dict")
    others: list[int] = []

    def append(done: int, total: int) -> None:
        if done == total and not others:
            others.append(1)
            with CacheWriter(path, "a", publish_seconds=None) as w:
                w.append(sample(20))
                w.write(7, sample(700))
            appender = edcache.writer.Appender.open(path, format.Head(bytes(16)), mode="a")
            appender.amend(length=25, failed=[[20, True, *archives.FAILURE], [22, True, *archives.FAILURE]])
            appender.close()

    edcache.compact(path, on_progress=append)
    assert edcache.verify(path).problems == []
    check(path, EXPECTED | {7: sample(700), 20: sample(20)})
    cache = CachedDataset.from_cache(path)
    assert (len(cache), [failure.index for failure in cache.errors]) == (25, [22])


def test_an_archive_that_was_replaced_meanwhile_is_not_overwritten(path):
    write(path)

    replaced: list[bool] = []

    def replace(done: int, total: int) -> None:
        if not replaced:
            replaced.append(True)
            with CacheWriter(path.with_name("other.zip"), in_memory_keys=["y"]) as w:
                w.append(sample(1))
            os.replace(path.with_name("other.zip"), path)

    with pytest.raises(StaleArchiveError, match="was replaced since it was opened; compact it again"):
        edcache.compact(path, on_progress=replace)
    check(path, {0: sample(1)})


def test_who_had_it_open_never_appends_to_the_file_without_a_name(path):
    # A writer would have been seen; who adds labels, or fills lazily, has it open without a lock.
    write(path)
    holder = Appender.open(path, Head(bytes(16)), mode="a")
    edcache.compact(path)
    with pytest.raises(StaleArchiveError, match="another file has taken its place"):
        holder.amend(length=100)
    holder.close()
    check(path)


# ------------------------------------------------------------------------------------- when things fail


@pytest.mark.parametrize("in_place", [True, False])
def test_a_full_disk_leaves_the_archive_as_it_was_and_nothing_beside_it(path, in_place):
    write(path)
    before = path.read_bytes()
    target = None if in_place else path.with_name("b.zip")
    for writes in range(100):
        raised: StorageError | None = None
        try:
            with replace_system(Full(writes)):
                edcache.compact(path, target)
        except StorageError as error:
            raised = error
        if raised is None:
            break
        assert raised.errno == errno.ENOSPC
        assert "No space left on device" in str(raised)
        assert path.read_bytes() == before
        assert names(path) == ["a.zip"]
    assert writes > 5
    check(target or path)


@pytest.mark.full
def test_killed_at_any_operation_the_path_leads_to_all_samples_and_a_second_run_works(path, tally):
    write(path)
    original = path.read_bytes()
    operations = 1
    while killed_at(operations, lambda: edcache.compact(path)):
        check(path)
        assert edcache.verify(path).problems == []
        edcache.compact(path)
        assert names(path) == ["a.zip"]
        check(path)
        path.write_bytes(original)
        operations += 1
        tally("kills while compacting")
    assert operations > 10
    check(path)


def test_a_damaged_archive_is_refused_and_left_as_it_is(path):
    write(path)
    sound = path.read_bytes()
    offset = int(CachedDataset.from_cache(path)._reader.records.offset[7])
    chunk = [e.fields for e in reference.entries(path)][2]
    for at, kind, message in [
        (offset, CorruptRecordError, rf"record 7 at offset {offset:,} fails its crc32; run .edcache repair "),
        (chunk["offset"] + 500, CorruptArchiveError, "its table fails its crc32; run .edcache repair "),
        (chunk["offset"] + 20, CorruptArchiveError, "no entry fits here, so the chain ends before its seal"),
        (len(sound) - 30, CorruptArchiveError, "zip directory|seal"),
    ]:
        data = bytearray(sound)
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(kind, match=message):
            edcache.compact(path)
        assert (path.read_bytes(), names(path)) == (bytes(data), ["a.zip"])
    with pytest.raises(ArchiveNotFoundError):
        edcache.compact(path.with_name("none.zip"))
    assert names(path) == ["a.zip"]


def test_what_a_power_cut_took_is_left_out(path):
    w = CacheWriter(path, chunk_size=4, publish_seconds=None, in_memory_keys=["y"], sync="never")
    w.extend(map(sample, range(12)))
    w.abort()
    data = bytearray(path.read_bytes())
    lost = [e.fields for e in reference.entries(path)][2]
    data[lost["offset"] + lost["nbytes"] : lost["next"]] = bytes(
        lost["next"] - lost["offset"] - lost["nbytes"]
    )
    path.write_bytes(data)

    with replace_system(Rebooted()):
        edcache.compact(path, allow_partial=True)
    check(path, {i: sample(i) for i in (0, 1, 2, 3, 8, 9, 10, 11)})


def test_permissions_and_a_symbolic_link_stay(path, tmp_path):
    write(path)
    os.chmod(path, 0o640)
    link = tmp_path / "link.zip"
    link.symlink_to(path)
    report = edcache.compact(link)
    assert report.path == str(link)
    assert link.is_symlink()
    assert os.stat(path).st_mode & 0o777 == 0o640
    edcache.compact(path, tmp_path / "b.zip")
    assert os.stat(tmp_path / "b.zip").st_mode & 0o777 == 0o640
    check(path)


def test_progress_counts_the_bytes_of_the_records(path):
    write(path)
    seen: list[tuple[int, int]] = []
    edcache.compact(path, on_progress=lambda done, total: seen.append((done, total)))
    total = int(CachedDataset.from_cache(path)._reader.records.nbytes.sum())
    assert (seen[0], seen[-1]) == ((0, total), (total, total))


def test_a_compacted_archive_grows_on(path):
    write(path, compression="zstd+dict")
    edcache.compact(path)
    with CacheWriter(path, "a") as w:
        w.append(sample(20))
    assert edcache.verify(path).problems == []
    check(path, EXPECTED | {20: sample(20)})


def test_an_error_is_always_an_archive_error(tmp_path):
    for name in ("folder", "text"):
        path = tmp_path / name
        path.mkdir() if name == "folder" else path.write_text("no archive")
        with pytest.raises(ArchiveError):
            edcache.compact(path)
