"""Filling: once per sample, whatever happens in between and whoever helps."""

import errno
import os
import subprocess
import sys
import time

import pytest
import torch
from systems import Small, replace_system

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    CodecError,
    LabelError,
    OptionError,
    SourceError,
    StaleCacheError,
    StorageError,
)
from edcache.reader import Reader


class Counted:
    """Remembers which samples were computed; `change` may replace or refuse one."""

    def __init__(self, length=50, change=None):
        self.length = length
        self.change = change or (lambda i, sample: sample)
        self.computed = []

    def __edcache_fingerprint__(self):
        return {}  # one that fails is the same as one that was mended

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        self.computed.append(i)
        return self.change(i, {"x": torch.full((3,), i), "y": i % 5})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "a.zip"


def refuse_at(index, error):
    def change(i, sample):
        if i == index:
            raise error
        return sample

    return change


def test_the_first_construction_fills_and_the_next_computes_nothing(path):
    first, second = Counted(), Counted()
    CachedDataset(first, path, in_memory_keys=["y"])
    assert first.computed == list(range(50))
    ds = CachedDataset(second, path, in_memory_keys=["y"])
    assert second.computed == []
    assert [s["x"][0].item() for s in ds] == list(range(50))
    assert Reader(path).sealed


def test_a_source_that_raises_is_named_and_what_was_computed_is_kept(path):
    source = Counted(change=refuse_at(30, ZeroDivisionError("by zero")))
    message = (
        r"a.zip: the source raised at index 30: ZeroDivisionError: by zero; .*a.zip keeps 30 of 50 samples; "
    )
    with pytest.raises(SourceError, match=message) as caught:
        CachedDataset(source, path, in_memory_keys=["y"])
    assert type(caught.value.__cause__) is ZeroDivisionError
    left = CachedDataset.from_cache(path, allow_partial=True)
    assert left.missing.tolist() == list(range(30, 50))
    assert left.labels.table["y"].to_pylist() == [i % 5 for i in range(30)] + [None] * 20
    again = Counted()
    ds = CachedDataset(again, path, in_memory_keys=["y"])
    assert again.computed == list(range(30, 50))
    assert ds.labels["y"].tolist() == [i % 5 for i in range(50)]


def test_an_index_error_inside_the_source_is_no_end(path):
    with pytest.raises(SourceError, match="raised at index 3: IndexError: inner"):
        CachedDataset(Counted(change=refuse_at(3, IndexError("inner"))), path)


def test_an_interrupt_passes_through_and_keeps_what_was_computed(path):
    with pytest.raises(KeyboardInterrupt):
        CachedDataset(Counted(change=refuse_at(20, KeyboardInterrupt())), path)
    assert CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == list(range(20, 50))


def test_what_was_kept_is_said(path, capsys):
    with pytest.raises(SourceError):
        CachedDataset(Counted(change=refuse_at(41, ValueError())), path)
    capsys.readouterr()
    CachedDataset(Counted(), path)
    first, last = capsys.readouterr().err.splitlines()
    assert first == "a.zip: 41 of 50 already cached"
    assert last.startswith("a.zip: 50 of 50 cached in ")


@pytest.mark.parametrize(
    ("environment", "options"),
    [({"EDCACHE_PROGRESS": "0"}, {}), ({}, {"progress": False})],
)
def test_nothing_is_said_where_nobody_looks(path, capsys, monkeypatch, environment, options):
    with pytest.raises(SourceError):
        CachedDataset(Counted(change=refuse_at(41, ValueError())), path)
    capsys.readouterr()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    CachedDataset(Counted(), path, **options)
    assert capsys.readouterr().err == ""


def test_a_bar_shows_when_asked_for(path, capsys):
    CachedDataset(Counted(), path, progress=True)
    shown = capsys.readouterr().err
    assert "caching a.zip: 100%" in shown
    assert "50/50" in shown


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"x": {1, 2}, "y": 0}, CodecError, r'a.zip: sample 7: sample\["x"\]: cannot store set'),
        ({"x": 1, "y": "cat"}, LabelError, 'a.zip: label "y": sample 7 is a str .* samples are int64'),
    ],
)
def test_a_sample_that_cannot_be_kept_is_named_and_the_others_are_kept(path, bad, error, message):
    with pytest.raises(error, match=message):
        CachedDataset(Counted(change=lambda i, s: bad if i == 7 else s), path, in_memory_keys=["y"])
    assert CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == list(range(7, 50))


def test_chunk_size_is_the_most_that_one_publication_holds(path):
    with pytest.raises(SourceError):
        CachedDataset(Counted(100, refuse_at(95, ValueError())), path, chunk_size=10)
    assert Reader(path, allow_partial=True).chunks == 10


@pytest.mark.parametrize(("chunk_size", "chunks"), [(1, 50), (7, 8), (50, 1), (51, 1)])
def test_a_fill_publishes_as_many_chunks_as_chunk_size_asks_for(path, chunk_size, chunks):
    CachedDataset(Counted(), path, chunk_size=chunk_size)
    assert edcache.verify(path).chunks == chunks


@pytest.mark.parametrize("chunk_size", [0, -1, 2.5, True, "3"])
def test_a_chunk_size_that_is_no_positive_integer_is_refused(path, chunk_size):
    with pytest.raises(OptionError, match=f"chunk_size={chunk_size!r}; give 1 or more"):
        CachedDataset(Counted(), path, chunk_size=chunk_size)


def test_an_unknown_sync_is_refused(path):
    with pytest.raises(OptionError, match="sync='always'; choose one of 'never', 'seal', 'chunk'"):
        CachedDataset(Counted(), path, sync="always")


def test_a_label_of_another_type_than_in_published_chunks_is_refused(path):
    source = Counted(change=lambda i, s: s | {"y": "six"} if i == 6 else s)
    with pytest.raises(LabelError, match='a.zip: label "y": sample 6 is a str .*samples are int64'):
        CachedDataset(source, path, in_memory_keys=["y"], chunk_size=3)
    assert CachedDataset.from_cache(path, allow_partial=True).missing.tolist() == list(range(6, 50))


def test_a_sample_without_the_label_is_named(path):
    source = Counted(change=lambda i, s: {"m": 1} if i == 2 else s)
    with pytest.raises(LabelError, match='a.zip: label "y": sample 2 has no field "y"; it has the keys "m"'):
        CachedDataset(source, path, in_memory_keys=["y"])


def test_a_slow_source_is_published_before_its_chunk_is_full(path):
    def look(i, sample):
        time.sleep(0.18)  # a small chunk waits a second
        if i == 7:
            assert len(CachedDataset.from_cache(path).missing) < 8
        return sample

    CachedDataset(Counted(8, look), path)


def test_a_full_disk_is_one_error_and_keeps_what_was_published(path):
    with (
        replace_system(Small(20_000)),
        pytest.raises(StorageError, match="a.zip: writing .* bytes at offset .*: No space left") as caught,
    ):
        CachedDataset(Counted(), path, chunk_size=2)
    assert caught.value.errno == errno.ENOSPC
    missing = CachedDataset.from_cache(path, allow_partial=True).missing.tolist()
    assert missing == list(range(missing[0], 50))
    assert 0 < missing[0] < 50
    again = Counted()
    assert CachedDataset(again, path).complete
    assert again.computed == missing


def test_a_source_computes_what_a_writer_left_out(path):
    with CacheWriter(path) as writer:
        writer.write(2, "kept")
    source = Counted(4)
    assert CachedDataset(source, path, fingerprint=False)[2] == "kept"
    assert source.computed == [0, 1, 3]


def test_another_length_or_class_is_noticed(path):
    CachedDataset(Counted(50), path)
    with pytest.raises(StaleCacheError, match="begun for 50 samples, the source has 60 now; grow=True"):
        CachedDataset(Counted(60), path)
    with pytest.raises(StaleCacheError, match="begun for 50 samples, the source has 40 now; build it again"):
        CachedDataset(Counted(40), path)
    with pytest.raises(StaleCacheError, match="type: .*Counted.* in the archive, .*list.* now"):
        CachedDataset([0] * 50, path)
    assert len(CachedDataset(Counted(60), path, keep_existing=False)) == 60


def test_what_is_no_dataset_at_all_is_refused(path):
    with pytest.raises(OptionError, match=r"the source is an object without len.. and .index."):
        CachedDataset(object(), path)
    assert not path.exists()


def test_an_empty_source_gives_a_sealed_empty_archive(path):
    ds = CachedDataset([], path)
    assert (len(ds), ds.complete, Reader(path).sealed) == (0, True, True)


def test_keep_existing_false_builds_anew_while_the_old_one_is_read(path):
    old = CachedDataset(Counted(), path)
    new = Counted(change=lambda i, s: "new")
    assert list(CachedDataset(new, path, keep_existing=False)) == ["new"] * 50
    assert old[3]["y"] == 3
    assert os.listdir(path.parent) == ["a.zip"]


HELPER = """
import os, sys, time
from edcache import CachedDataset

class Logged:
    def __len__(self):
        return 400
    def __getitem__(self, i):
        fd = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, f"{i}\\n".encode())
        os.close(fd)
        time.sleep(0.002)
        return {"i": i, "x": bytes(4096)}  # chunks that are not held back for being small

ds = CachedDataset(Logged(), sys.argv[1], in_memory_keys=["i"])
assert ds.complete and [s["i"] for s in ds] == list(range(400)), ds
"""


@pytest.mark.full
def test_processes_that_fill_one_archive_share_the_work(path, tmp_path):
    log = tmp_path / "log"
    command = [sys.executable, "-c", HELPER, str(path), str(log)]
    helpers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for helper in helpers:
        _, errors = helper.communicate()
        assert helper.returncode == 0, errors
    assert sorted(map(int, log.read_text().split())) == list(range(400))
    assert edcache.verify(path).sound


@pytest.mark.full
def test_a_fill_takes_over_what_a_killed_one_had_claimed(path, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    helper = subprocess.Popen([sys.executable, "-c", HELPER, str(path), str(first)])
    while not first.exists() or len(first.read_text().split()) < 130:
        time.sleep(0.01)
    helper.kill()
    helper.wait()
    missing = CachedDataset.from_cache(path, allow_partial=True).missing.tolist()
    assert 0 < len(missing) < 400
    subprocess.run([sys.executable, "-c", HELPER, str(path), str(second)], check=True)
    assert sorted(map(int, second.read_text().split())) == missing


def test_an_archive_with_more_samples_than_its_source_is_noticed(path):
    with edcache.CacheWriter(path) as w:
        w.extend(range(10))
    with pytest.raises(StaleCacheError, match="begun for 10 samples, the source has 5 now"):
        CachedDataset([0] * 5, path, fingerprint={"type": "any"})


# --- the disk is too small --------------------------------------------------------------------------


class Large(Counted):
    def __getitem__(self, i):
        time.sleep(0.03)
        return {**super().__getitem__(i), "big": torch.zeros(100_000, dtype=torch.uint8)}


@pytest.mark.parametrize("lazy", [False, True])
def test_an_archive_that_was_written_without_a_dataset_becomes_as_long_as_the_one_it_gets(path, lazy):
    with edcache.CacheWriter(path) as w:
        w.append(0)
    source = list(range(3))
    cache = CachedDataset(source, path, lazy=lazy, progress=False, fingerprint=False)
    assert len(cache) == 3
    assert list(cache.warmup(progress=False)) == source
    cache.close()
    assert list(CachedDataset.from_cache(path)) == source


def test_the_last_sample_of_a_dataset_that_fails_is_missing_from_an_archive_written_without_one(path):
    class Source:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            if index == 2:
                raise KeyError(index)
            return index

    with edcache.CacheWriter(path) as w:
        w.append(0)
    cache = CachedDataset(Source(), path, on_error="skip_final", progress=False, fingerprint=False)
    assert (len(cache), cache.missing.tolist(), cache.complete) == (3, [2], True)
    with pytest.raises(edcache.errors.MissingSampleError, match="sample 2 failed when it was made"):
        cache[2]
