"""Calls beside a process that compacts the archive again and again: they begin again by themselves."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scale import scaled

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import ArchiveLockedError, StaleArchiveError

COUNT = 12


class Source:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"y": index}


def compact_again_and_again(path: Path, ended: Any, rounds: Any) -> None:
    """Each round leaves dead bytes, and takes them out."""
    while not ended.is_set():
        CachedDataset.from_cache(path).add_labels("round", [rounds.value] * COUNT)
        edcache.compact(path)
        rounds.value += 1


@contextmanager
def compacted(path: Path) -> Iterator[Any]:
    context = multiprocessing.get_context("fork")
    ended, rounds = context.Event(), context.Value("q", 0)
    process = context.Process(target=compact_again_and_again, args=(path, ended, rounds))
    process.start()
    try:
        yield rounds
    finally:
        ended.set()
        process.join(60)
    assert process.exitcode == 0
    assert rounds.value > 1


def test_constructors_and_labels_beside_compaction(path: Path, tally: Any) -> None:
    CachedDataset(Source(), path).close()
    opened = scaled(300)
    with compacted(path) as rounds:
        number = 0
        while number < opened or rounds.value < 3:
            ds = CachedDataset(Source(), path)
            assert ds.complete
            assert ds[number % COUNT]["y"] == number % COUNT
            if number % 30 == 0:
                ds.add_labels("other", list(range(COUNT)))
                assert ds.labels["other"].tolist() == list(range(COUNT))
            ds.close()
            number += 1
    assert edcache.verify(path).sound
    tally("constructors beside compaction", number)


def test_a_writer_is_not_compacted_away(path: Path) -> None:
    with CacheWriter(path) as w:
        w.append(1)
    with CacheWriter(path, "a") as w:
        with pytest.raises(ArchiveLockedError, match="another process writes it; compact it when that has"):
            edcache.compact(path)
        w.append(2)
    assert edcache.compact(path).samples == 2


def test_an_archive_that_never_stays_ends_the_call(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CacheWriter(path, in_memory_keys=["y"]).abort()
    monkeypatch.setattr("edcache.storage.File.is_named", lambda self: False)
    with pytest.raises(StaleArchiveError, match="deleted, or another file has taken its place"):
        CachedDataset(Source(), path, in_memory_keys=["y"])
