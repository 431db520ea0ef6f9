"""merge: the samples of several archives copied into one, bit for bit, or nothing."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

import archives
import numpy as np
import pytest
import reference
from filled import available
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import same
from scale import scaled, seeded
from systems import killed_at

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    ArchiveExistsError,
    ArchiveLockedError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    CorruptRecordError,
    LabelTypeError,
    LengthError,
    OptionError,
)
from edcache.format.spec import Head
from edcache.format.tables import Failure, Records
from edcache.format.types import no_labels
from edcache.writer import temporary
from edcache.writer.appender import Appender
from edcache.writer.chunk import Chunk

SEED = st.integers(0, 2**32)


def sample(i: int) -> dict[str, Any]:
    return {"x": np.full(60, i), "y": i % 3}


def write(path: Path, indices: range = range(10), **options: Any) -> Path:
    options = {"chunk_size": 4, "publish_seconds": None, "in_memory_keys": ["y"]} | options
    with CacheWriter(path, **options) as w:
        w.extend(map(sample, indices))
    return path


def random_archive(path: Path, seed: int) -> Path:
    """One of any kind, with labels that were added, changed and dropped, of missing samples too."""
    rng = random.Random(seed)
    archives.make(path, rng)
    ds = CachedDataset.from_cache(path, allow_partial=True)
    for _ in range(rng.randrange(3)):
        name = rng.choice(["y", "added", "other"])
        if rng.random() < 0.6:
            chosen = rng.sample(range(len(ds)), rng.randrange(1, 1 + len(ds)))
            ds.add_labels(name, {i: rng.choice([i, None, -1, 0.5]) for i in chosen})
        elif name in ds.labels:
            ds.drop_labels(name)
    ds.close()
    return path


def expect_as_concat(merged: Path, paths: list[Path]) -> None:
    """The archive has samples, labels and failures of the others, one after the other, and is sound."""
    whole, ds = CachedDataset.from_cache(paths, allow_partial=True), CachedDataset.from_cache(merged)
    assert len(ds) == len(whole)
    assert ds.missing.tolist() == whole.missing.tolist()
    assert all(same(ds[i], whole[i]) for i in available(whole).indices.tolist())
    assert ds.labels.table.schema == whole.labels.table.schema
    assert ds.labels.num_rows == whole.labels.num_rows
    assert same(ds.labels.table.to_pydict(), whole.labels.table.to_pydict())
    assert ds.errors == whole.errors
    report = edcache.verify(merged)
    assert (report.problems, report.sealed, report.dead.total) == ([], True, 0)
    assert reference.walk(merged).length == len(ds)
    whole.close()
    ds.close()


@settings(max_examples=scaled(20), suppress_health_check=list(HealthCheck))
@given(st.lists(SEED, min_size=1, max_size=4))
def test_random_archives_merge_to_what_concat_of_them_is(tally, seeds):
    with tempfile.TemporaryDirectory() as folder:
        paths = [random_archive(Path(folder, f"{k}.zip"), seed) for k, seed in enumerate(seeds)]
        merged = Path(folder, "merged.zip")
        report = edcache.merge(paths, merged, allow_partial=True)
        expect_as_concat(merged, paths)
        ds = CachedDataset.from_cache(merged)
        assert (report.archives, report.samples, report.length) == (len(paths), ds._reader.present, len(ds))
        assert (report.path, report.nbytes) == (str(merged), merged.stat().st_size)
        tally("random archives merged", len(paths))


def test_a_merged_archive_grows_and_merges_again(tmp_path):
    a, b = write(tmp_path / "a.zip"), write(tmp_path / "b.zip", range(10, 20), compression="zstd")
    edcache.merge([a, b], tmp_path / "ab.zip")
    with CacheWriter(tmp_path / "ab.zip", "a") as w:
        w.extend(map(sample, range(20, 25)))
    edcache.merge([tmp_path / "ab.zip", a], tmp_path / "twice.zip")
    expect_as_concat(tmp_path / "twice.zip", [tmp_path / "ab.zip", a])
    assert [s["x"][0] for s in CachedDataset.from_cache(tmp_path / "ab.zip")] == list(range(25))


@pytest.mark.parametrize(
    "kinds",
    [
        (None, "zstd"),
        ("zstd", None),
        ("zstd+dict", "zstd+dict"),
        ("zstd:19", None, "zstd+dict"),
        (None, None),
    ],
)
def test_archives_with_other_compressions_and_dictionaries_merge(tmp_path, kinds):
    paths = []
    for k, kind in enumerate(kinds):
        paths.append(tmp_path / f"{k}.zip")
        with CacheWriter(paths[-1], compression=kind, chunk_size=30, publish_seconds=None) as w:
            w.extend({"t": f"archive {k} " * 9 + f"text of sample {i}"} for i in range(100))
    edcache.merge(paths, tmp_path / "merged.zip")
    expect_as_concat(tmp_path / "merged.zip", paths)
    head = CachedDataset.from_cache(tmp_path / "merged.zip")._reader.head
    assert head.compression == next((kind for kind in kinds if kind), None)
    dictionaries = sum(
        entry.fields["kind"] == reference.DICTIONARY for entry in reference.entries(tmp_path / "merged.zip")
    )
    assert dictionaries == sum(kind == "zstd+dict" for kind in kinds)


def test_records_of_one_compression_are_copied_as_they_are_stored(tmp_path):
    a, b = write(tmp_path / "a.zip", compression="zstd"), write(tmp_path / "b.zip", compression="zstd:9")
    edcache.merge([a, b], tmp_path / "merged.zip")
    records = CachedDataset.from_cache(tmp_path / "merged.zip")._reader.records
    parts = [CachedDataset.from_cache(path)._reader.records for path in (a, b)]
    assert records.crc32.tolist() == [crc for part in parts for crc in part.crc32.tolist()]
    assert records.nbytes.tolist() == [n for part in parts for n in part.nbytes.tolist()]


def test_the_fields_of_labels_are_known_where_all_archives_agree(tmp_path):
    a = write(tmp_path / "a.zip", in_memory_keys=["y"])
    b = write(tmp_path / "b.zip", in_memory_keys=["y"])
    c = write(tmp_path / "c.zip", in_memory_keys={"y": lambda s: s["y"]})
    d = write(tmp_path / "d.zip", in_memory_keys=[])
    e = write(tmp_path / "e.zip")
    CachedDataset.from_cache(e).add_labels("y", [7] * 10)
    for paths, field in [((a, b), "y"), ((a, c), None), ((a, d), None), ((a, e), None)]:
        merged = tmp_path / "merged.zip"
        edcache.merge(paths, merged)
        expect_as_concat(merged, list(paths))
        ds = CachedDataset.from_cache(merged)
        assert ds._reader.head.labels == (("y", field),)
        assert [ds.select("y")[i]["y"] for i in range(len(ds))] == [s["y"] for s in ds]
        merged.unlink()


def test_missing_samples_stay_missing_with_their_failures_and_labels(tmp_path):
    a, b = write(tmp_path / "a.zip"), tmp_path / "b.zip"
    failed = [
        Failure(2, True, "ValueError", "it is bad", "Traceback"),
        Failure(5, False, "OSError", "gone", ""),
    ]
    with CacheWriter(b, in_memory_keys=["y"]) as w:
        w.write(3, sample(3))
    appender = Appender.open(b, Head(bytes(16)), mode="a")
    appender.amend(length=7, failed=[failure.to_json() for failure in failed])
    appender.seal()
    appender.close()
    CachedDataset.from_cache(b).add_labels("note", {1: "absent", 3: "there", 6: "absent too"})
    edcache.merge([b, a], tmp_path / "merged.zip")
    ds = CachedDataset.from_cache(tmp_path / "merged.zip")
    assert (len(ds), ds.missing.tolist()) == (17, [0, 1, 2, 4, 5, 6])
    assert ds.errors == failed
    notes = [None, "absent", None, "there", None, None, "absent too", *[None] * 10]
    assert ds.labels["note"].tolist() == notes
    expect_as_concat(tmp_path / "merged.zip", [b, a])


def test_a_glob_or_a_folder_says_which_archives_go_in(tmp_path):
    (tmp_path / "parts").mkdir()
    for k in (10, 2, 1):
        write(tmp_path / "parts" / f"p-{k}.zip", range(k, k + 2))
    for k, asked in enumerate([tmp_path / "parts", f"{tmp_path}/parts/p-*.zip", [f"{tmp_path}/parts/*"]]):
        edcache.merge(asked, tmp_path / f"{k}.zip")
        ds = CachedDataset.from_cache(tmp_path / f"{k}.zip")
        assert [int(s["x"][0]) for s in ds] == [1, 2, 2, 3, 10, 11]
    report = edcache.merge(tmp_path / "0.zip", tmp_path / "copy.zip")
    assert (report.archives, report.samples) == (1, 6)


def test_empty_archives_merge(tmp_path):
    for name in ("a", "b"):
        CacheWriter(tmp_path / f"{name}.zip", in_memory_keys=["y"]).close()
    edcache.merge([tmp_path / "a.zip", tmp_path / "b.zip"], tmp_path / "empty.zip")
    expect_as_concat(tmp_path / "empty.zip", [tmp_path / "a.zip", tmp_path / "b.zip"])
    edcache.merge([tmp_path / "a.zip", write(tmp_path / "c.zip")], tmp_path / "one.zip")
    expect_as_concat(tmp_path / "one.zip", [tmp_path / "a.zip", tmp_path / "c.zip"])


def refused(paths: Any, target: Path, kind: type[Exception], *texts: str) -> None:
    """The merge fails with these words, and the folder is as it was."""
    before = sorted(os.listdir(target.parent))
    with pytest.raises(kind) as caught:
        edcache.merge(paths, target)
    for text in texts:
        assert text in str(caught.value)
    assert sorted(os.listdir(target.parent)) == before


def test_what_cannot_be_merged_is_refused_and_leaves_nothing(tmp_path):
    a, new = write(tmp_path / "a.zip"), tmp_path / "new.zip"
    pickled = write(tmp_path / "pickled.zip", codec="pickle")
    text = 'merge(): {0} is of codec="native", {1} of codec="pickle"; what reads one would refuse the other'
    refused([a, pickled], new, OptionError, text.format(a, pickled), "together as one dataset")
    other = write(tmp_path / "other.zip", in_memory_keys={"y": lambda s: "text"})
    refused(
        [a, other], new, LabelTypeError, 'merge(): label "y" is int64 in one dataset and string in another'
    )
    refused([a, tmp_path / "gone.zip"], new, ArchiveNotFoundError, "gone.zip: ")
    refused([], new, OptionError, "an empty list names no archive")
    refused([a, other], a, ArchiveExistsError, "a.zip: exists already; give a path where nothing is")
    session = temporary.start(str(new))
    refused(
        [a], new, ArchiveLockedError, "new.zip.edcache.new: another process is writing it; wait for it to end"
    )
    session.close()


def test_a_length_that_no_archive_holds_is_refused(tmp_path):
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for path in paths:
        with CacheWriter(path) as w:
            w.write(1 << 61, sample(1))
    edcache.merge([paths[0], write(tmp_path / "c.zip")], tmp_path / "long.zip")
    ds = CachedDataset.from_cache(tmp_path / "long.zip")
    assert (len(ds), ds._reader.present, int(ds[(1 << 61) + 5]["x"][0])) == ((1 << 61) + 11, 11, 4)
    text = f"merge(): {(1 << 62) + 2:,} samples together, an archive holds {1 << 62:,}"
    refused(paths, tmp_path / "new.zip", LengthError, text)


def test_different_dictionaries_of_one_id_are_refused(tmp_path):
    paths = []
    for k, name in enumerate(("a.zip", "b.zip")):
        paths.append(tmp_path / name)
        appender = Appender.open(paths[-1], Head(bytes([k]) * 16), mode="x")
        appender.append_dictionary(b"\x37\xa4\x30\xec" + (77).to_bytes(4, "little") + bytes([k]) * 300)
        appender.seal()
        appender.close()
    text = "have different compression dictionaries of one id, 77; write one of them anew from its samples"
    refused(paths, tmp_path / "new.zip", OptionError, f"merge(): {paths[0]} and {paths[1]} {text}")
    edcache.merge([paths[0]], tmp_path / "new.zip")


def test_more_structures_than_an_archive_holds_are_refused(tmp_path):
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for k, path in enumerate(paths):
        one, zero = np.zeros(1, np.uint64), np.zeros(1, np.uint32)
        records = Records(one, one, zero, np.zeros(1, np.uint16), np.zeros(1, np.int64))
        appender = Appender.open(path, Head(bytes([k]) * 16), mode="x")
        schemas = [f"{k} {i}" for i in range(33_000)]
        appender.append(Chunk(records, no_labels([]), schemas, memoryview(b""), False))
        appender.seal()
        appender.close()
    text = "merge(): 66,000 structures of samples together, an archive holds 65,536"
    refused(paths, tmp_path / "new.zip", OptionError, text)


def test_damage_is_found_before_it_is_copied(tmp_path):
    rng = seeded("merge damage")
    a = write(tmp_path / "a.zip")
    for _ in range(scaled(20)):
        b = write(tmp_path / "b.zip", range(10, 20))
        records = CachedDataset.from_cache(b)._reader.records
        row = rng.randrange(10)
        data = bytearray(b.read_bytes())
        data[int(records.offset[row]) + rng.randrange(int(records.nbytes[row]))] ^= 1 << rng.randrange(8)
        b.write_bytes(data)
        text = (
            f'b.zip: record {row} at offset {records.offset[row]:,} fails its crc32; run "edcache repair {b}'
        )
        refused([a, b], tmp_path / "new.zip", CorruptRecordError, text)
        b.unlink()
    data = bytearray(a.read_bytes())
    data[5000] ^= 1
    a.write_bytes(data)
    refused([a], tmp_path / "new.zip", CorruptArchiveError, "a.zip: at offset")


def test_progress_is_told_in_bytes_of_records(tmp_path):
    paths = [write(tmp_path / f"{k}.zip", range(100)) for k in range(3)]
    told: list[tuple[int, int]] = []
    edcache.merge(paths, tmp_path / "new.zip", lambda done, total: told.append((done, total)))
    nbytes = sum(int(CachedDataset.from_cache(path)._reader.records.nbytes.sum()) for path in paths)
    assert [total for _, total in told] == [nbytes] * len(told)
    assert told[0][0] == 0
    assert told[-1][0] == nbytes
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.full
def test_a_merge_that_is_killed_leaves_nothing_at_the_path_or_the_whole(tmp_path, tally):
    paths = [write(tmp_path / f"{k}.zip", compression="zstd+dict" if k else None) for k in range(2)]
    new, count = tmp_path / "new.zip", 1
    was_there = set()
    while killed_at(count, lambda: edcache.merge(paths, new)):
        tally("killed merges")
        count += 1
        was_there.add(new.exists())
        if new.exists():
            expect_as_concat(new, paths)
            new.unlink()
    expect_as_concat(new, paths)
    assert (count > 10, was_there) == (True, {False, True})
    new.unlink()
    killed_at(count // 2, lambda: edcache.merge(paths, new))
    assert Path(f"{new}.edcache.new").exists()
    edcache.merge(paths, new)
    expect_as_concat(new, paths)
    assert not Path(f"{new}.edcache.new").exists()
