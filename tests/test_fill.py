"""Filling: every sample computed once, errors that name their place, and nothing lost by any of them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edcache import CachedDataset, CacheWriter, Reader, durable, verify
from edcache.durable import System
from edcache.errors import LabelError, LabelTypeError, OptionError, SourceError, StorageError, UnsupportedTypeError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


class Source:
    """Sample i is {"n": i}, but for those that `special` names: an exception is raised, else returned."""

    def __init__(self, length: int = 10, special: dict[int, Any] | None = None) -> None:
        self.length, self.special = length, special or {}
        self.computed: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> Any:
        if not 0 <= i < self.length:
            raise IndexError(i)
        self.computed.append(i)
        found = self.special.get(i, {"n": i})
        if isinstance(found, BaseException):
            raise found
        return found


class Logging:
    """Notes in a file which process computed what."""

    def __init__(self, log: str, length: int) -> None:
        self.log, self.length = log, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> int:
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"%d %d\n" % (i, os.getpid()))
        os.close(fd)
        time.sleep(0.001)
        return i


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.zip"


def kept(path: Path) -> list[int]:
    reader = Reader(path)
    try:
        return sorted(set(range(len(reader))) - set(reader.missing().tolist()))
    finally:
        reader.close()


def test_what_the_source_raises_is_named_with_its_index(path: Path) -> None:
    cause = ValueError("no such image")
    with pytest.raises(SourceError, match=r"f\.zip: the source raised at index 7: ValueError: no such image; ") as caught:
        CachedDataset(Source(special={7: cause}), path)
    assert caught.value.__cause__ is cause


def test_what_was_computed_before_an_error_is_kept(path: Path) -> None:
    with pytest.raises(SourceError):
        CachedDataset(Source(special={7: ValueError()}), path)
    assert kept(path) == [0, 1, 2, 3, 4, 5, 6]
    assert CachedDataset.from_cache(path)[6] == {"n": 6}
    source = Source()
    assert [sample["n"] for sample in CachedDataset(source, path)] == list(range(10))
    assert source.computed == [7, 8, 9]


def test_an_index_error_of_the_source_does_not_end_the_fill_early(path: Path) -> None:
    with pytest.raises(SourceError, match="the source raised at index 3: IndexError: list index out of range"):
        CachedDataset(Source(special={3: IndexError("list index out of range")}), path)
    assert kept(path) == [0, 1, 2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_interrupt_keeps_everything(path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        CachedDataset(Source(special={5: error}), path)
    assert kept(path) == [0, 1, 2, 3, 4]


def test_a_sample_that_cannot_be_stored_names_path_index_and_field(path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match=r'f\.zip: sample 4: sample\["boxes"\]\[1\]: cannot store set'):
        CachedDataset(Source(special={4: {"n": 4, "boxes": [1, {2}]}}), path)
    assert kept(path) == [0, 1, 2, 3]


def test_a_label_of_another_type_names_label_index_and_both_types(path: Path) -> None:
    with pytest.raises(LabelTypeError, match=r'f\.zip: label "n": sample 6 is .*str.*, earlier samples are int64'):
        CachedDataset(Source(special={6: {"n": "six"}}), path, in_memory_keys=["n"])
    assert kept(path) == [0, 1, 2, 3, 4, 5]


def test_a_label_of_another_type_than_in_earlier_chunks_is_refused(path: Path) -> None:
    special = {6: {"n": "six"}}
    with pytest.raises(LabelTypeError, match=r'f\.zip: .*label "n" .*int64.*string'):
        CachedDataset(Source(special=special), path, in_memory_keys=["n"], chunk_size=3)
    assert kept(path) == [0, 1, 2, 3, 4, 5]


def test_a_sample_without_the_label_is_named(path: Path) -> None:
    with pytest.raises(LabelError, match=r'f\.zip: label "n": sample 2 has no field "n"; its keys are "m"'):
        CachedDataset(Source(special={2: {"m": 1}}), path, in_memory_keys=["n"])


@pytest.mark.parametrize("samples", [0, 1])
def test_the_smallest_sources_give_a_sealed_archive(path: Path, samples: int) -> None:
    cache = CachedDataset(Source(samples), path, in_memory_keys=["n"])
    assert (len(cache), cache.complete, list(cache)) == (samples, True, [{"n": 0}] * samples)
    assert cache.filter([]).indices.tolist() == []
    report = verify(path)
    assert (report.problems, report.sealed, report.samples) == ([], True, samples)
    assert len(CachedDataset(Source(samples), path)) == samples


@pytest.mark.parametrize(("chunk_size", "chunks"), [(1, 10), (3, 4), (10, 1), (None, 1)])
def test_chunk_size_is_respected(path: Path, chunk_size: int | None, chunks: int) -> None:
    CachedDataset(Source(), path, chunk_size=chunk_size)
    assert verify(path).chunks == chunks


@pytest.mark.parametrize("chunk_size", [0, -1, 2.5, True, "3"])
def test_a_chunk_size_that_is_no_positive_integer_is_refused(path: Path, chunk_size: Any) -> None:
    with pytest.raises(OptionError, match=f"chunk_size={chunk_size!r}; give a positive integer"):
        CachedDataset(Source(), path, chunk_size=chunk_size)


def test_an_unknown_sync_is_refused(path: Path) -> None:
    with pytest.raises(OptionError, match="sync='always'; choose one of 'never', 'seal', 'chunk'"):
        CachedDataset(Source(), path, sync="always")


def test_a_slow_source_is_published_before_its_chunk_is_full(path: Path) -> None:
    class Slow(Source):
        def __getitem__(self, i: int) -> Any:
            if i == 4:
                assert kept(path) != []
            time.sleep(0.11)
            return super().__getitem__(i)

    CachedDataset(Slow(5), path)


def test_a_full_disk_is_one_error_and_keeps_what_was_published(path: Path) -> None:
    class Full(System):
        written = 0

        def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
            if offset + len(data) > 20_000:
                raise OSError(28, "No space left on device")
            return super().pwrite(fd, data, offset)

    with (
        durable.replace_system(Full()),
        pytest.raises(StorageError, match=r"f\.zip: writing .* bytes at offset .*: No space left on device") as caught,
    ):
        CachedDataset(Source(), path, chunk_size=2)
    assert caught.value.errno == 28
    before = kept(path)
    assert 0 < len(before) < 10
    source = Source()
    CachedDataset(source, path)
    assert source.computed == [i for i in range(10) if i not in before]


def test_two_processes_compute_each_sample_once_and_both_return(path: Path, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def fill() -> None:
        cache = CachedDataset(Logging(log, 400), path, chunk_size=16)
        results.put((cache.complete, list(cache) == list(range(400))))

    processes = [context.Process(target=fill) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [results.get() for _ in processes] == [(True, True), (True, True)]
    lines = [line.split() for line in Path(log).read_text().splitlines()]
    assert sorted(int(index) for index, _ in lines) == list(range(400))
    assert len(Counter(pid for _, pid in lines)) == 2
    assert verify(path).problems == []


def test_a_fill_takes_over_what_a_killed_one_had_claimed(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    process = context.Process(target=CachedDataset, args=(Logging(str(log), 300), path), kwargs={"chunk_size": 8})
    process.start()
    while not log.exists() or log.stat().st_size < 500:
        time.sleep(0.01)
    process.kill()
    process.join()
    before = len(kept(path))
    source = Source(300)
    source.__class__ = Logging  # type: ignore[assignment]
    source.log = str(tmp_path / "second")  # type: ignore[attr-defined]
    assert list(CachedDataset(source, path)) == list(range(300))
    assert len((tmp_path / "second").read_text().splitlines()) == 300 - before


def test_a_writers_archive_longer_than_the_source_is_kept_whole(path: Path) -> None:
    with CacheWriter(path) as writer:
        writer.extend(range(4))
    assert len(CachedDataset(Source(4), path)) == 4
