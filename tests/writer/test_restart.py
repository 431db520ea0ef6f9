"""A first fill that failed before its first sample does not block its path; labels added to a whole cache."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import flip
from written import write

import edcache
from edcache import CachedDataset, CacheWriter, cachable, storage
from edcache.errors import (
    ArchiveExistsError,
    CodecError,
    CorruptArchiveError,
    LabelError,
    OptionError,
    SourceError,
    StaleArchiveError,
    StaleCacheError,
)
from edcache.labels import LabelSpec
from edcache.reader import Reader
from edcache.writer.match import new_head
from edcache.writer.store import store_at


class Source:
    computed = 0

    def __init__(self, length: int = 6, kind: str = "good") -> None:
        self.length, self.kind = length, kind

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        type(self).computed += 1
        if self.kind == "raises":
            raise ValueError("no data")
        return {"x": {1} if self.kind == "sets" else np.full(3, index), "y": index, "z": f"z{index}"}


FAILURES: dict[str, tuple[dict[str, Any], str, type[Exception]]] = {
    "a misspelt key": ({"in_memory_keys": ["yy"]}, "good", LabelError),
    "a type that is not stored": ({}, "sets", CodecError),
    "a source that raises": ({"compression": "zstd"}, "raises", SourceError),
    "another codec": ({"codec": "pickle", "allow_pickle": True}, "raises", SourceError),
    "another fingerprint": ({"fingerprint": {"call": 1}}, "raises", SourceError),
    "skipped": ({"on_error": "skip", "in_memory_keys": ["yy"]}, "raises", LookupError),
}


@pytest.mark.parametrize("why", FAILURES)
def test_a_fill_that_failed_before_its_first_sample_is_begun_anew(why: str, path: Path) -> None:
    options, kind, error = FAILURES[why]
    if error is LookupError:
        CachedDataset(Source(9, kind), path, **options).close()
    else:
        with pytest.raises(error):
            CachedDataset(Source(9, kind), path, **options)
    assert path.exists()
    ds = CachedDataset(Source(6), path, in_memory_keys=["y"])
    assert ds.complete
    assert ds.labels["y"].tolist() == list(range(6))
    assert ds._archive.reader.session.head.codec == "native"
    assert ds._archive.reader.session.head.compression is None
    assert edcache.verify(path).sound


def test_the_same_call_goes_on_with_what_it_began(path: Path) -> None:
    with pytest.raises(SourceError):
        CachedDataset(Source(6, "raises"), path, fingerprint={"call": 1})
    uuid = CachedDataset.from_cache(path, allow_partial=True)._archive.reader.session.head.uuid
    ds = CachedDataset(Source(6), path, fingerprint={"call": 1})
    assert (ds.complete, ds._archive.reader.session.head.uuid) == (True, uuid)


def test_of_processes_that_begin_at_once_none_removes_what_another_has_begun(path: Path) -> None:
    def begun(setting: int, seconds: float | None) -> bytes:
        entry = (
            {} if seconds is None else {"first_sample": {"seconds": seconds, "repeats": True, "rounding": {}}}
        )
        head = new_head(LabelSpec({}), length=3, fingerprint={"settings": {"one": setting}, **entry})
        with closing(store_at(path).appender(head, "never")) as appender:
            return appender.head.uuid

    first = begun(1, 0.1)
    assert [begun(1, 0.2), begun(1, None)] == [first, first]
    assert begun(2, 0.1) != first


def test_a_cachable_call_begins_anew_too(path: Path) -> None:
    def factory(length: int = 6, kind: str = "good") -> Source:
        return Source(length, kind)

    with pytest.raises(LabelError):
        cachable(str(path), in_memory_keys=["yy"])(factory)(9)
    assert len(cachable(str(path), in_memory_keys=["y"])(factory)(6)) == 6


def test_what_has_a_sample_or_a_writer_is_kept(path: Path) -> None:
    with pytest.raises(LabelError), CacheWriter(path, in_memory_keys=["y"]) as w:
        w.append({"y": 1})
        w.append({"z": 1})
    with pytest.raises(ArchiveExistsError):
        CacheWriter(path)
    with pytest.raises(StaleCacheError):
        CachedDataset(Source(0), path, in_memory_keys=["y"])
    path.unlink()
    living = CacheWriter(path, in_memory_keys=["yy"])
    with pytest.raises(ArchiveExistsError):
        CacheWriter(path)
    with pytest.raises(OptionError, match="begun with"):
        CacheWriter(path, "a", in_memory_keys=["y"])
    with pytest.raises(OptionError, match="begun with"):
        CachedDataset(Source(), path, in_memory_keys=["y"])
    living.append({"yy": 5})
    living.close()


def test_a_new_writer_begins_where_one_failed(path: Path) -> None:
    CacheWriter(path, in_memory_keys=["yy"], codec="pickle").abort()
    with CacheWriter(path, "a") as w:  # asks for nothing else
        w.append({"yy": 1})
    assert CachedDataset.from_cache(path, allow_pickle=True).labels["yy"].tolist() == [1]
    for mode in ("x", "a"):
        path.unlink()
        CacheWriter(path, in_memory_keys=["yy"], codec="pickle").abort()
        write(path, [{"y": 1}], mode, in_memory_keys=["y"], codec="native")
        assert CachedDataset.from_cache(path).labels["y"].tolist() == [1]


def test_a_chunk_with_a_damaged_header_is_not_taken_for_nothing(path: Path) -> None:
    w = CacheWriter(path)
    w.append({"y": 1})
    w.abort()
    flip(path, 4096 + 60)
    data = path.read_bytes()
    with pytest.raises(ArchiveExistsError):
        CacheWriter(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize("tail", [bytes(5000), b"PK\3\4garbage" * 100])
def test_a_torn_tail_of_a_first_fill_is_taken_for_nothing_at_once(path: Path, tail: bytes) -> None:
    CacheWriter(path, in_memory_keys=["y"]).abort()
    with path.open("ab") as file:
        file.write(tail)
    ds = CachedDataset(Source(0), path, in_memory_keys=["y"], lazy=True, fingerprint=False)
    # Had it been taken over with its tail cut, it would be begun anew now, while it is open.
    assert ds.warmup().complete


def test_what_a_recovery_that_was_killed_left_beside_a_head_is_not_taken_for_nothing(path: Path) -> None:
    w = CacheWriter(path, in_memory_keys=["y"])
    w.append({"y": 1})
    w.abort()
    path.with_name(path.name + storage.RECOVERY).write_bytes(path.read_bytes())
    os.truncate(path, 4096)
    with pytest.raises(ArchiveExistsError):
        CacheWriter(path)
    with CacheWriter(path, "a") as w:
        w.append({"y": 2})
    assert CachedDataset.from_cache(path).labels["y"].tolist() == [1, 2]


def test_who_has_what_was_begun_anew_open_is_told(path: Path) -> None:
    CacheWriter(path, in_memory_keys=["yy"]).abort()
    reader = CachedDataset.from_cache(path, allow_partial=True)
    write(path, [{"y": 1}], in_memory_keys=["y"])
    with pytest.raises(StaleArchiveError):
        reader.refresh()


@pytest.mark.parametrize("pages", [1, 2, 16, 256, 300])
def test_zeros_are_overwritten_only_as_far_as_a_head_reaches(path: Path, pages: int) -> None:
    path.write_bytes(bytes(4096 * pages))
    if pages == 1:
        write(path, [1], "a")
        assert edcache.verify(path).sound
        return
    with pytest.raises(CorruptArchiveError):
        CacheWriter(path, "a")
    with pytest.raises(CorruptArchiveError):
        CachedDataset(Source(), path)
    assert path.read_bytes() == bytes(4096 * pages)


# --- a label key added to a complete cache ---


def test_a_key_more_is_made_of_the_stored_samples(path: Path) -> None:
    CachedDataset(Source(), path, in_memory_keys=["y"]).close()
    Source.computed, state = 0, torch.random.get_rng_state()
    for _ in range(2):
        keys = {"y": "y", "z": "z", "first": lambda s: s["x"][0]}
        ds = CachedDataset(Source(), path, in_memory_keys=keys, spot_check=False)
        assert ds.labels["z"].tolist() == [f"z{i}" for i in range(6)]
        assert ds.labels["first"].tolist() == list(range(6))
        ds.close()
    assert Source.computed == 0
    assert torch.equal(torch.random.get_rng_state(), state)
    chunks = edcache.verify(path)
    assert (chunks.sound, chunks.sealed) == (True, True)
    ds = CachedDataset(Source(), path, in_memory_keys=["y"])
    assert list(ds.labels) == ["y", "z", "first"]
    ds.drop_labels("z", "y")
    assert list(CachedDataset(Source(), path, in_memory_keys=["y"]).labels) == ["first"]


def test_a_key_more_under_cachable(path: Path) -> None:
    def factory() -> Source:
        return Source()

    cachable(str(path), in_memory_keys=["y"])(factory)()
    Source.computed = 0
    for _ in range(2):
        ds = cachable(str(path), in_memory_keys=["y", "z"], spot_check=False)(factory)()
        assert ds.filter(z="z3")[0]["y"] == 3
    assert Source.computed == 0


def test_a_misspelt_key_is_named_and_changes_nothing(path: Path) -> None:
    CachedDataset(Source(), path, in_memory_keys=["y"]).close()
    before = path.read_bytes()
    said = r'a\.zip: label "zz": sample 0 has no field "zz"; it has the keys "x", "y", "z"'
    with pytest.raises(LabelError, match=said):
        CachedDataset(Source(), path, in_memory_keys=["y", "zz"])
    with pytest.raises(LabelError, match=said):
        CachedDataset(None, path, in_memory_keys=["y", "zz"])
    with pytest.raises(OptionError, match="begun with"):
        CachedDataset(Source(), path, in_memory_keys=["z"])  # not one more: others
    assert path.read_bytes() == before


def test_a_damaged_middle_chunk_is_told_before_anything_is_appended(path: Path) -> None:
    w = CacheWriter(path, chunk_size=2, publish_seconds=None)
    w.extend(range(6))
    w.abort()
    second = Reader(path, allow_partial=True).session.chain.chunks[1]
    flip(path, second.payload_offset + 30)
    data = path.read_bytes()
    with pytest.raises(CorruptArchiveError, match=f"{second.name} at offset .*: its table fails its crc32"):
        CacheWriter(path, "a")
    assert path.read_bytes() == data
    assert os.path.getsize(path) == len(data)
