"""A fill that is broken off loses nothing that was published and little else, and continues where it stopped.

That this holds of every call, every moment and every power cut is in tests/faults.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from likeness import same
from scale import thinned
from systems import Rebooted, replace_system
from written import write

import edcache
from edcache import CachedDataset, CacheWriter, EdcacheError
from edcache.errors import CorruptRecordError, MissingSampleError
from edcache.writer.appender import Appender

OPTIONS: dict[str, Any] = {"in_memory_keys": ["y"], "publish_seconds": None, "uuid": bytes(range(16))}


def sample(i: int) -> dict[str, Any]:
    return {"x": np.full(40, i, np.int32), "y": i, "text": f"sample {i}" * (1 + i % 3)}


def readable(path: Path) -> int:
    """How many samples read, each compared with what was written; they are the first ones."""
    with CachedDataset.from_cache(path, allow_partial=True) as cache:
        assert cache.missing.size == 0
        assert all(same(cache[i], sample(i)) for i in range(len(cache)))
        assert cache.labels["y"].tolist() == list(range(len(cache)))
        return len(cache)


def continues(path: Path, count: int) -> None:
    """A writer goes on behind the samples that are there, and the result is whole."""
    with CacheWriter(path, "a", in_memory_keys=["y"], publish_seconds=None, sync="never") as w:
        assert w.next_index == count
        for i in range(count, count + 4):
            w.append(sample(i))
    assert readable(path) == count + 4
    report = edcache.verify(path)
    assert report.problems == []
    assert report.sealed


# --- power cuts: a header is there, the payload behind it is not ---


def _without_payload(path: Path, kind: int, nth: int = 0, *, keeps_table: bool = False) -> None:
    entries = [e for e in reference.entries(path) if e.fields["kind"] == kind]
    fields = entries[nth].fields
    data = bytearray(path.read_bytes())
    start = fields["offset"] + fields["nbytes"] + (fields["table_nbytes"] if keeps_table else 0)
    data[start : fields["next"]] = bytes(fields["next"] - start)
    path.write_bytes(data)


def unsealed(path: Path, count: int = 9) -> list[Any]:
    source = [sample(i) for i in range(count)]
    w = CacheWriter(path, chunk_size=3, **OPTIONS)
    w.extend(source)
    w.abort()
    return source


@pytest.mark.parametrize("nth", [0, 1, 2])
@pytest.mark.parametrize("keeps_table", [False, True])
def test_a_file_ends_before_a_chunk_that_a_power_cut_took(
    tmp_path: Path, nth: int, keeps_table: bool
) -> None:
    path = tmp_path / "cut.zip"
    source = unsealed(path)
    _without_payload(path, 1, nth, keeps_table=keeps_table)
    lost = range(3 * nth, 3 * nth + 3)
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert all(same(cache[i], sample(i)) for i in range(len(cache)) if i not in lost)
    for i in set(lost) & set(range(len(cache))):
        with pytest.raises((MissingSampleError, CorruptRecordError)):
            cache[i]
    with replace_system(Rebooted()):
        w = CacheWriter(path, "a", publish_seconds=None)
        assert w.next_index == 3 * nth
        w.abort()
    # A writer after it finds nothing to recover, and the same end.
    with CacheWriter(path, "a", publish_seconds=None) as w:
        assert w.next_index == 3 * nth
        w.extend(source[3 * nth :])
    assert readable(path) == 9
    continues(path, 9)


def test_what_was_synced_is_not_read_again_after_a_power_cut(tmp_path: Path) -> None:
    """Behind a seal only what is newer is checked, so that opening does not read a large archive."""
    path = tmp_path / "cut.zip"
    write(path, ({"x": np.full(50_000, i)} for i in range(9)), publish_seconds=None)
    w = CacheWriter(path, "a", publish_seconds=None)
    w.append({"x": np.full(10, 9)})
    w.abort()

    class Watched(Rebooted):
        nbytes = 0

        def pread(self, fd: int, nbytes: int, offset: int) -> bytes:
            self.nbytes += nbytes
            return super().pread(fd, nbytes, offset)

    with replace_system(Watched()) as system, CacheWriter(path, "a", publish_seconds=None) as w:
        assert w.next_index == 10
    assert system.nbytes < 300_000 < path.stat().st_size / 10


def test_a_note_lost_in_a_power_cut_does_not_end_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "cut.zip"
    unsealed(path, 6)
    appender = Appender.open(path, edcache.reader.Reader(path, allow_partial=True).session.head, mode="a")
    appender.amend(length=6)
    appender.close()
    _without_payload(path, 2)
    with replace_system(Rebooted()):
        continues(path, 6)


# --- sources that raise, and kills ---


class Failing:
    """A source that raises at one index until it is repaired."""

    def __init__(self, fails_at: int, error: BaseException) -> None:
        self.fails_at: int | None = fails_at
        self.error = error
        self.asked: list[int] = []

    def __edcache_fingerprint__(self) -> dict[str, int]:
        return {}  # one that fails is the same as one that was mended

    def __len__(self) -> int:
        return 200

    def __getitem__(self, i: int) -> dict[str, object]:
        self.asked.append(i)
        if i == self.fails_at:
            raise self.error
        return {"x": np.full(3, i), "y": i}


@pytest.mark.parametrize("k", thinned([0, 1, 63, 64, 130, 199], 1))
def test_an_exception_in_the_source_keeps_everything_before_it(
    tmp_path: Path, k: int, capfd: pytest.CaptureFixture[str]
) -> None:
    source = Failing(k, OSError("broken file"))
    path, options = tmp_path / "failing.zip", {"in_memory_keys": ["y"], "spot_check": False}
    with pytest.raises(
        edcache.errors.SourceError, match=rf"raised at index {k}: OSError: broken file"
    ) as raised:
        CachedDataset(source, path, **options)
    assert raised.value.__cause__ is source.error
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert cache.missing.tolist() == list(range(k, 200))
    assert all(cache[i]["x"].tolist() == [i] * 3 for i in range(k))
    if k:
        assert cache.labels.table["y"].to_pylist() == list(range(k)) + [None] * (200 - k)
    assert edcache.verify(path).problems == []
    capfd.readouterr()

    source.fails_at, source.asked = None, []
    repaired = CachedDataset(source, path, **options)
    assert source.asked == list(range(k, 200))
    assert repaired.complete
    assert [sample["y"] for sample in repaired] == list(range(200))
    *first, last = capfd.readouterr().err.splitlines()
    assert first == ([f"failing.zip: {k} of 200 already cached"] if k else [])
    assert last.startswith("failing.zip: 200 of 200 cached in ")
    assert edcache.verify(path).sealed


@pytest.mark.full
def test_an_exception_that_is_no_exception_keeps_everything_too(tmp_path: Path) -> None:
    source = Failing(77, SystemExit(3))
    with pytest.raises(edcache.SourceError):
        CachedDataset(source, tmp_path / "exit.zip")
    assert CachedDataset.from_cache(tmp_path / "exit.zip", allow_partial=True).missing.tolist() == list(
        range(77, 200)
    )


@pytest.mark.full
def test_a_killed_creator_leaves_what_the_next_call_replaces(tmp_path: Path) -> None:
    """Killed while the head was written: any cut of the head, and the decorator as well as the class."""
    path = tmp_path / "new.zip"
    with edcache.CacheWriter(path) as w:
        w.append(1)
    head = path.read_bytes()[:4096]
    problems = []
    for way in ("class", "decorator", "writer"):
        for cut in (0, 1, 3, 4, 20, 41, 42, 100, 191, 192, 1000, 4095):
            path.write_bytes(head[:cut])
            try:
                if way == "class":
                    CachedDataset([1, 2, 3], path)
                elif way == "decorator":
                    edcache.cachable(path)(lambda: [1, 2, 3])()
                else:
                    write(path, [1, 2, 3], "a")
                assert list(CachedDataset.from_cache(path)) == [1, 2, 3]
            except EdcacheError as error:
                problems.append(f"{way}, {cut} bytes: {type(error).__name__}: {error}")
    assert problems == []


def test_a_kill_costs_what_was_written_in_the_last_seconds(path: Path) -> None:
    w = CacheWriter(path, publish_seconds=0.05, sync="never")
    for i in range(3):
        w.append(sample(i))
    time.sleep(0.1)
    w.append(sample(3))
    assert edcache.reader.Reader(path, allow_partial=True).session.index.present == 4
    w.abort()
