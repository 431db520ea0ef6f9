"""After a power cut every sound sample is kept, whatever was lost around it; a flipped bit costs one sample at most.

What a power cut may leave of every call is in tests/faults; here are single losses, and what stands beside afterwards.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from cli_runner import RUNNER
from likeness import same
from scale import scaled, seeded
from systems import Rebooted, System, replace_system

import edcache
from edcache import CachedDataset, CacheWriter, format, storage
from edcache.cli import main
from edcache.errors import CorruptArchiveError, CorruptRecordError, PartialArchiveWarning
from edcache.writer import Appender

SECTOR = 512
OPTIONS: dict[str, Any] = {"in_memory_keys": ["y"], "publish_seconds": None}


def sample(i: int, version: int = 0) -> dict[str, Any]:
    """Of more than two sectors, none of which is zeros."""
    return {"x": np.full(300, 1000 + i, np.int32), "y": i, "text": f"{i}.{version}" * 40}


def write(
    path: Path, indices: Iterable[int], version: int = 0, *, seal: bool = False, **options: Any
) -> None:
    """Chunks of three."""
    w = CacheWriter(path, "a", chunk_size=3, **OPTIONS, **options)
    for i in indices:
        w.write(i, sample(i, version))
    w.close() if seal else w.abort()


def chunks(path: Path) -> list[dict[str, Any]]:
    return [one.fields for one in reference.entries(path) if one.fields["kind"] == reference.CHUNK]


def place(path: Path, part: str, nth: int) -> int:
    """A sector's begin inside a header, table or record of the nth chunk; of the second of its records."""
    chunk = chunks(path)[nth]
    if part == "header":
        return int(chunk["offset"])
    if part == "table":
        return int(chunk["offset"] + chunk["nbytes"])
    with closing(edcache.reader.Reader(path, allow_partial=True)) as reader:
        table = format.read_table(
            reader.session.file.pread, format.parse_header(path.read_bytes()[chunk["offset"] :]), str(path)
        )
    return -(-int(table.rows["offset"][1]) // SECTOR) * SECTOR


def damage(path: Path, *offsets: int, how: str = "zeros") -> None:
    """Take sectors away, or flip a bit in each."""
    data = bytearray(path.read_bytes())
    for at in offsets:
        if how == "flipped":
            data[at + 20] ^= 4
        else:
            data[at : at + SECTOR] = bytes(SECTOR) if how == "zeros" else random.Random(at).randbytes(SECTOR)
    path.write_bytes(data)


def recover(path: Path) -> tuple[int, list[str]]:
    """Open and close it as a writer of the next boot; where this goes on, and what it warns of."""
    with warnings.catch_warnings(record=True) as told, replace_system(Rebooted()):
        warnings.simplefilter("always")
        w = CacheWriter(path, "a", publish_seconds=None)
        at = w.next_index
        w.abort()
    return at, [str(one.message) for one in told if one.category is PartialArchiveWarning]


def copy(path: Path, new: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartialArchiveWarning)
        done = RUNNER.invoke(main, ["copy", str(path), "-o", str(new), "--skip-damaged"])
    assert done.exit_code == 0, done.output


def versions(path: Path) -> dict[int, int]:
    """The version of each sample that reads, all of it compared; its label too."""
    found = {}
    with CachedDataset.from_cache(path, allow_partial=True) as cache:
        labels = cache.labels["y"] if len(cache) else []
        for i in np.setdiff1d(np.arange(len(cache)), cache.missing).tolist():
            made = cache[i]
            found[i] = int(made["text"].partition(".")[2].partition(f"{i}.")[0])
            assert same(made, sample(i, found[i]))
            assert labels[i] == i
    return found


def sound(path: Path, expected: dict[int, int]) -> None:
    """By every reader the archive has these samples; a writer goes on and seals it."""
    assert versions(path) == expected
    assert edcache.verify(path).problems == []
    assert sorted(reference.walk(path).records) == sorted(expected)
    end = max([-1, *expected]) + 1
    write(path, [end], seal=True)
    assert versions(path) == expected | {end: 0}
    assert edcache.verify(path).problems == []
    walked, listed = reference.walk(path), reference.read_zip(path)
    assert walked.records == listed.records


# --- records and tables ---


@pytest.mark.parametrize("how", ["zeros", "garbage", "flipped"])
@pytest.mark.parametrize("part", ["record", "table"])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_chunk_that_lost_something_is_replaced_by_its_sound_records(path, nth, part, how):
    write(path, range(9))
    damage(path, place(path, part, nth), how=how)
    lost = {3 * nth + 1} if part == "record" else {*range(3 * nth, 3 * nth + 3)}
    with CachedDataset.from_cache(path, allow_partial=True) as before:
        for i in set(range(9)) - lost:
            if i < len(before) and i not in before.missing:
                assert same(before[i], sample(i))
        for i in lost if part == "record" else ():
            with pytest.raises(CorruptRecordError, match=f"record {i} at offset"):
                before[i]
    at, _ = recover(path)
    assert at == min(lost)
    assert recover(path)[0] == at  # there is nothing left to do
    sound(path, {i: 0 for i in range(9) if i not in lost})
    assert [*path.parent.iterdir()] == [path]


def test_a_sample_that_was_written_again_keeps_its_newer_value(path):
    write(path, [0, 1, 2, 3, 4, 5])
    write(path, [1, 4, 7], version=1)
    damage(path, place(path, "record", 0), place(path, "record", 1))
    recover(path)
    sound(path, {0: 0, 1: 1, 2: 0, 3: 0, 4: 1, 5: 0, 7: 1})


@pytest.mark.parametrize("how", ["zeros", "flipped"])
def test_a_newer_value_that_is_lost_gives_back_no_other_sample_than_the_older_one(path, how):
    write(path, [0, 1, 2])
    write(path, [0, 1, 2], version=1)
    damage(path, place(path, "record", 1), how=how)
    recover(path)
    sound(path, {0: 1, 1: 0, 2: 1})


def test_losses_of_records_tables_and_headers_cost_what_they_hit(path):
    """Of each sample the newest value counts that is sound, in a chunk whose header and table are."""
    for run in range(scaled(200, 8)):
        rng, expected = seeded(f"losses {run}"), dict[int, int]()
        path.unlink(missing_ok=True)
        history = [[*dict.fromkeys(rng.randrange(14) for _ in range(3))] for _ in range(rng.randrange(2, 7))]
        for version, some in enumerate(history):
            write(path, some, version)
        data = bytearray(path.read_bytes())
        for version, (some, chunk) in enumerate(zip(history, chunks(path), strict=True)):
            header = format.parse_header(bytes(data[chunk["offset"] :][:1024]))
            rows = format.read_table(
                lambda at, n, _=None, data=data: bytes(data[at : at + n]), header, ""
            ).rows
            if rng.random() < 0.15:
                data[chunk["offset"] : chunk["offset"] + SECTOR] = bytes(SECTOR)
                continue
            if rng.random() < 0.1:
                data[header.payload_offset + rng.randrange(header.table_nbytes)] ^= 1 << rng.randrange(8)
                continue
            for i, row in zip(some, rows, strict=True):
                if rng.random() < 0.25:
                    data[int(row["offset"]) + rng.randrange(int(row["nbytes"]))] ^= 1 << rng.randrange(8)
                else:
                    expected[i] = version
        path.write_bytes(data)
        recover(path)
        assert versions(path) == expected
        sound(path, expected)
        assert [*path.parent.iterdir()] == [path]


def test_what_was_replaced_is_not_replaced_at_the_next_boot(path):
    write(path, range(9), sync="never")
    damage(path, place(path, "record", 1))
    recover(path)
    before = path.read_bytes()
    recover(path)
    assert path.read_bytes() == before
    write(path, [9], seal=True, sync="never")
    before = path.read_bytes()
    assert recover(path)[1] == []
    assert path.read_bytes() == before


# --- headers ---


@pytest.mark.parametrize("how", ["zeros", "garbage"])
@pytest.mark.parametrize("nth", [0, 1])
def test_what_stands_behind_a_header_that_is_lost_is_kept(path, nth, how):
    write(path, range(9))
    damage(path, place(path, "header", nth), how=how)
    at, _ = recover(path)
    assert at == 3 * nth
    sound(path, {i: 0 for i in range(9) if i // 3 != nth})
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_flipped_bit_of_a_header_is_refused_and_nothing_is_cut(path, nth):
    write(path, range(9))
    at = place(path, "header", nth)
    damage(path, at, how="flipped")
    before = path.read_bytes()
    told = f"no entry fits at offset {at:,}, but other bytes stand there: it is damaged there; "
    for system in (Rebooted(), System()):
        with replace_system(system):
            with pytest.raises(CorruptArchiveError, match=told):
                CacheWriter(path, "a")
            with pytest.raises(CorruptArchiveError, match="other bytes stand there"):
                CachedDataset([0], path, in_memory_keys=["y"], progress=False)
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]
    new = path.with_name("new.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy(path, new)
    assert versions(new) == {i: 0 for i in range(9) if i // 3 != nth}


def test_chunks_behind_a_lost_header_keep_the_newer_of_two_values(path):
    write(path, [0, 1, 2])
    write(path, [3, 4, 5])
    write(path, [1, 4, 5], version=1)
    write(path, [5], version=2)
    damage(path, place(path, "header", 1), place(path, "record", 0))
    recover(path)
    sound(path, {0: 0, 1: 1, 2: 0, 4: 1, 5: 2})


@pytest.mark.parametrize(("nbytes", "left"), [(1, 4), (7, 4), (8, 3), (208, 3), (209, 3), (215, 3), (216, 2)])
def test_a_record_whose_last_zeros_are_beyond_the_end_of_the_file_is_kept(path, nbytes, left):
    """A power cut may take the end of the file; a small number ends with 7 zeros."""
    with CacheWriter(path, chunk_size=2, sync="never") as writer:
        writer.extend({"y": k + 1, "x": np.zeros(50, np.float32)} for k in range(4))
        writer.abort()
    os.truncate(path, path.stat().st_size - nbytes)
    recover(path)
    with closing(CachedDataset.from_cache(path, allow_partial=True)) as cache:
        assert [cache[k]["y"] for k in range(len(cache))] == [1, 2, 3, 4][:left]
    with CacheWriter(path, "a") as writer:
        writer.append({"y": 9, "x": np.zeros(50, np.float32)})
    assert edcache.verify(path).problems == []


# --- seals ---


def cut_seal(path: Path) -> dict[int, int]:
    """A seal that was not synced, and samples behind it; a power cut took something of the seal."""
    write(path, range(6), seal=True, sync="never")
    write(path, range(6, 9), sync="never")
    (index,) = [e.fields for e in reference.entries(path) if e.fields["kind"] == reference.INDEX]
    damage(path, index["offset"] + index["nbytes"])
    return dict.fromkeys(range(9), 0)


def test_samples_behind_a_seal_that_is_lost_are_kept_beside_if_not_in_it(path):
    everything = cut_seal(path)
    at, told = recover(path)
    assert at == 6
    (kept,) = {*path.parent.iterdir()} - {path}
    (line,) = told
    assert line == (
        f"{kept}: entries of a seal that a power cut took are kept here: "
        f'"edcache copy {kept} -o NEW --skip-damaged" reads them'
    )
    new = path.with_name("new.zip")
    copy(kept, new)
    sound(path, dict.fromkeys(range(6), 0))
    assert versions(new) | dict.fromkeys(range(6), 0) == everything


@pytest.mark.parametrize("at", ["begin", "end"])
def test_samples_behind_a_seal_whose_directory_lost_something_are_kept(path, at):
    """The seal counts, and `verify` finds it whole again."""
    write(path, range(6), seal=True, sync="never")
    root, end = reference.entries(path)[-1], path.stat().st_size
    begin = root.fields["offset"] + root.fields["nbytes"] + len(root.payload)
    write(path, range(6, 9), sync="never")
    damage(path, (begin // SECTOR + 1 if at == "begin" else (end - 1) // SECTOR) * SECTOR)
    assert edcache.verify(path).problems != []
    assert recover(path) == (9, [])
    sound(path, dict.fromkeys(range(9), 0))
    assert [*path.parent.iterdir()] == [path]


class Named:
    """Samples with keys, so that new ones come as parts before a seal."""

    def __init__(self, indices: Iterable[int]) -> None:
        self.indices = [*indices]

    def __len__(self) -> int:
        return len(self.indices)

    def sample_key(self, i: int) -> str:
        return f"key {self.indices[i]}"

    def __getitem__(self, i: int) -> dict[str, Any]:
        computed.append(self.indices[i])
        return sample(self.indices[i])


computed: list[int] = []


def test_new_samples_of_a_refill_by_keys_whose_seal_is_lost_wait_for_the_next(path):
    for sync, indices in (("seal", range(3)), ("never", range(1, 6))):
        CachedDataset(Named(indices), path, in_memory_keys=["y"], progress=False, sync=sync).close()
    index = [e.fields for e in reference.entries(path) if e.fields["kind"] == reference.INDEX][-1]
    damage(path, index["offset"] + index["nbytes"])
    with (
        replace_system(Rebooted()),
        pytest.warns(PartialArchiveWarning, match=r"edcache\.cut-kept: entries of a seal"),
    ):
        edcache.writer.recover(str(path))
    assert versions(path) == {0: 0, 1: 0, 2: 0}
    computed.clear()
    source, options = Named(range(1, 6)), {"in_memory_keys": ["y"], "progress": False, "spot_check": False}
    with CachedDataset(source, path, **options) as cache:
        assert all(same(cache[k], sample(i)) for k, i in enumerate(range(1, 6)))
    assert computed == []


def test_a_part_that_lost_a_record_to_a_power_cut_keeps_the_others(path, monkeypatch):
    options = {"in_memory_keys": ["y"], "progress": False, "sync": "never", "spot_check": False}
    CachedDataset(Named(range(3)), path, **options).close()
    filling = importlib.import_module("edcache.writer.fill")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(filling, "seal", interrupted)
        CachedDataset(Named(range(1, 6)), path, **options)
    part = [e.fields for e in reference.entries(path) if e.fields["kind"] == reference.PART][-1]
    damage(path, part["offset"] + part["nbytes"] + -(-part["table_nbytes"] // 64) * 64)
    computed.clear()
    with replace_system(Rebooted()), CachedDataset(Named(range(1, 6)), path, **options) as cache:
        assert all(same(cache[k], sample(i)) for k, i in enumerate(range(1, 6)))
    assert computed == [3]
    assert edcache.verify(path).problems == []


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


# --- crashes of the recovery ---


class Kills(Rebooted):
    """States of all files of a folder before each change, as a kill leaves them."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.states = folder, list[dict[Path, bytes]]()

    def look(self) -> None:
        files = {path: path.read_bytes() for path in self.folder.iterdir()}
        if not self.states or self.states[-1] != files:
            self.states.append(files)


for _name in ("pwrite", "truncate", "remove", "replace", "sync"):

    def _watched(self: Kills, *arguments: Any, name: str = _name) -> Any:
        self.look()
        return getattr(System, name)(self, *arguments)

    setattr(Kills, _name, _watched)


def losses() -> dict[str, Callable[[Path], dict[int, int]]]:
    def record(path: Path) -> dict[int, int]:
        write(path, range(9))
        damage(path, place(path, "record", 1))
        return {i: 0 for i in range(9) if i != 4}

    def header(path: Path) -> dict[int, int]:
        write(path, range(9))
        damage(path, place(path, "header", 1))
        return {i: 0 for i in range(9) if i not in (3, 4, 5)}

    def both(path: Path) -> dict[int, int]:
        write(path, [0, 1, 2, 3, 4, 5])
        write(path, [1, 3, 6], version=1)
        damage(path, place(path, "record", 0), place(path, "header", 1))
        return {0: 0, 1: 1, 2: 0, 3: 1, 6: 1}

    return {"record": record, "header": header, "both": both, "seal": cut_seal}


@pytest.mark.parametrize("boot", [Rebooted, System], ids=["and another power cut", "same boot"])
@pytest.mark.parametrize("lost", losses())
def test_a_recovery_that_is_killed_is_done_again(tmp_path, lost, boot):
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "a.zip"
    expected = losses()[lost](path)
    with replace_system(Kills(folder)) as system, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        CacheWriter(path, "a", publish_seconds=None).abort()
    system.look()
    assert len(system.states) > 3
    for files in system.states:
        for file in folder.iterdir():
            file.unlink()
        for file, data in files.items():
            file.write_bytes(data)
        with replace_system(boot()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CacheWriter(path, "a", publish_seconds=None).abort()
        found = versions(path)
        for number, kept in enumerate(folder.glob("*-kept*")):
            new = folder / f"new{number}.zip"
            copy(kept, new)
            found = versions(new) | found
        assert found == expected
        assert not (folder / "a.zip.edcache.cut").exists()


def test_a_failure_a_length_and_labels_are_kept_with_the_rest(path):
    write(path, range(3))
    with closing(Appender.open(path, format.Head(bytes(16)), mode="a")) as appender:
        appender.amend(length=12)
        appender.amend(failed=[[9, True, "ValueError", "it has no image", ""]])
    write(path, range(3, 9))
    damage(path, place(path, "record", 0))
    recover(path)
    notes = [json.loads(e.payload) for e in reference.entries(path) if e.fields["kind"] == reference.NOTE]
    assert notes[-1]["lost"] == [1]
    with CachedDataset.from_cache(path, allow_partial=True) as cache:
        assert len(cache) == 12
        assert [(error.index, error.message) for error in cache.errors] == [(9, "it has no image")]
        assert cache.missing.tolist() == [1, 9, 10, 11]
        assert cache.labels.to_list("y") == [0, None, 2, 3, 4, 5, 6, 7, 8, None, None, None]


@pytest.mark.parametrize("left", [b"", bytes(100), b"PK\x03\x04" * 50])
def test_a_file_that_another_recovery_left_changes_no_archive(path: Path, left: bytes) -> None:
    with CacheWriter(path) as w:
        w.extend(sample(i) for i in range(3))
    before = path.read_bytes()
    beside = path.with_name(path.name + storage.RECOVERY)
    beside.write_bytes(left)
    CacheWriter(path, "a").abort()
    assert path.read_bytes() == before
    assert not beside.exists()
