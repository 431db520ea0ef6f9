"""Lazy: a sample is computed when it is first asked for, once, and comes from the archive ever after."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from edcache import CachedDataset, verify
from edcache.errors import SourceError, UnsupportedTypeError

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


class Source:
    def __init__(self, log: Path, length: int = 8) -> None:
        self.log, self.length = str(log), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, i: int) -> dict[str, Any]:
        if not 0 <= i < self.length:
            raise IndexError(i)
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"%d\n" % i)
        os.close(fd)
        return {"x": np.arange(3.0) + i, "y": i % 3}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lazy.zip"


def computed(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def lazy(log: Path, path: Path, length: int = 8, **options: Any) -> CachedDataset:
    return CachedDataset(Source(log, length), path, lazy=True, in_memory_keys=["y"], **options)


def test_construction_computes_nothing(log: Path, path: Path) -> None:
    cache = lazy(log, path)
    assert (len(cache), cache.complete, cache.missing.tolist(), computed(log)) == (8, False, list(range(8)), [])


def test_a_read_computes_one_sample(log: Path, path: Path) -> None:
    cache = lazy(log, path)
    assert cache[5]["x"].tolist() == [5.0, 6.0, 7.0]
    assert computed(log) == [5]


def test_a_second_read_comes_from_the_archive(log: Path, path: Path) -> None:
    cache = lazy(log, path, chunk_size=1)
    for _ in range(3):
        assert cache[5]["x"].tolist() == [5.0, 6.0, 7.0]
    assert computed(log) == [5]


def test_a_second_read_before_publication_does_not_compute_again(log: Path, path: Path) -> None:
    cache = lazy(log, path)
    for _ in range(3):
        assert cache[5]["x"].tolist() == [5.0, 6.0, 7.0]
    assert computed(log) == [5]


def test_edits_of_a_computed_sample_never_reach_the_cache(log: Path, path: Path) -> None:
    cache = lazy(log, path, chunk_size=1)
    cache[5]["x"][:] = -1
    assert cache[5]["x"].tolist() == [5.0, 6.0, 7.0]


def test_edits_of_an_unpublished_sample_never_reach_the_cache(log: Path, path: Path) -> None:
    cache = lazy(log, path)
    cache[5]["x"][:] = -1
    assert cache[5]["x"].tolist() == [5.0, 6.0, 7.0]
    cache.close()
    assert CachedDataset.from_cache(path)[5]["x"].tolist() == [5.0, 6.0, 7.0]


def test_close_publishes(log: Path, path: Path) -> None:
    cache = lazy(log, path)
    cache[5], cache[2]
    cache.close()
    opened = CachedDataset.from_cache(path)
    assert opened.missing.tolist() == [0, 1, 3, 4, 6, 7]
    assert opened[2]["x"].tolist() == [2.0, 3.0, 4.0]
    assert opened.labels["y"].tolist() == [None, None, 2, None, None, 2, None, None]


def test_the_last_sample_seals(log: Path, path: Path) -> None:
    cache = lazy(log, path)
    for i in (3, 0, 7, 6, 1, 2, 5, 4):
        cache[i]
    report = verify(path)
    assert (report.problems, report.sealed, report.missing) == ([], True, 0)
    assert cache.refresh() is True
    assert cache.complete


def test_a_sealed_archive_is_read_without_computing(log: Path, path: Path) -> None:
    list(lazy(log, path))
    assert [s["y"] for s in lazy(log, path)] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert computed(log) == list(range(8))


def test_warmup_computes_only_what_is_missing(log: Path, path: Path) -> None:
    cache = lazy(log, path)
    cache[5]
    cache.warmup()
    assert computed(log) == [5, 0, 1, 2, 3, 4, 6, 7]
    assert cache.complete
    assert cache.labels["y"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_a_view_of_a_lazy_cache_computes_its_own_samples(log: Path, path: Path) -> None:
    assert [s["y"] for s in lazy(log, path)[[6, 1]]] == [0, 1]
    assert computed(log) == [6, 1]


def test_a_batch_that_repeats_an_index_computes_it_once(log: Path, path: Path) -> None:
    assert [s["y"] for s in lazy(log, path).__getitems__([4, 4, 4])] == [1, 1, 1]
    assert computed(log) == [4]


def test_what_another_cache_computed_meanwhile_is_found(log: Path, path: Path) -> None:
    one, two = lazy(log, path, chunk_size=1), lazy(log, path, chunk_size=1)
    one[3]
    assert two[3]["y"] == 0
    assert computed(log) == [3]


def test_an_error_of_the_source_names_the_index(log: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = lazy(log, path)
    with monkeypatch.context() as patch:
        patch.setattr(Source, "__getitem__", lambda self, i: 1 // 0)
        with pytest.raises(SourceError, match=r"lazy\.zip: the source raised at index 5: ZeroDivisionError"):
            cache[5]
    assert cache[5]["y"] == 2


def test_a_sample_that_cannot_be_stored_is_an_error(log: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "__getitem__", lambda self, i: {"y": 0, "bad": {i}})
    with pytest.raises(UnsupportedTypeError, match=r'lazy\.zip: sample 5: sample\["bad"\]: cannot store set'):
        lazy(log, path)[5]


def test_lazy_with_keep_existing_false_computes_nothing_yet(log: Path, path: Path) -> None:
    list(lazy(log, path))
    log.unlink()
    lazy(log, path, keep_existing=False)
    assert computed(log) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_one_epoch_of_a_data_loader_fills_and_seals(log: Path, path: Path, workers: int) -> None:
    cache = lazy(log, path, length=60)
    seen = [y for batch in DataLoader(cache, batch_size=7, shuffle=True, num_workers=workers) for y in batch["y"].tolist()]
    assert sorted(seen) == [0] * 20 + [1] * 20 + [2] * 20
    assert sorted(computed(log)) == list(range(60))
    report = verify(path)
    assert (report.problems, report.sealed, report.missing) == ([], True, 0)
    assert [s["x"][0] for s in lazy(log, path, length=60)] == list(range(60))
    assert len(computed(log)) == 60


def test_a_pickled_lazy_cache_fills_the_same_archive(log: Path, path: Path) -> None:
    cache = lazy(log, path, chunk_size=1)
    copy = pickle.loads(pickle.dumps(cache))
    copy[1], cache[2]
    assert (cache[1]["y"], copy[2]["y"]) == (1, 2)
    assert computed(log) == [1, 2]
