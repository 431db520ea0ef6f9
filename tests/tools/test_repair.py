"""repair: all that proves good is kept, nothing else is, and what is lost is said."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import archives
import numpy as np
import pytest
import reference
from filled import available
from golden_samples import same
from scale import scaled, seeded

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    ArchiveExistsError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    EdcacheError,
    FormatVersionError,
    NotAnArchiveError,
)
from edcache.format import spec as format
from edcache.format.tables import Dictionary
from edcache.tools.repair import RepairReport
from edcache.tools.rewrite import dictionary_of
from edcache.tools.salvage import Doubtful

PAGE = 4096


def sample(i: int) -> dict[str, Any]:
    return {"x": np.full(50, i), "y": i % 3, "text": "ab" * i}


def write(path: Path, count: int = 20, seal: bool = True, **options: Any) -> None:
    w = CacheWriter(path, chunk_size=4, publish_seconds=None, in_memory_keys=["y"], **options)
    w.extend(map(sample, range(count)))
    w.close() if seal else w.abort()


def damage(path: Path, start: int, end: int | None = None) -> None:
    """Invert a byte, or several."""
    data = bytearray(path.read_bytes())
    end = start + 1 if end is None else end
    data[start:end] = bytes(byte ^ 0xFF for byte in data[start:end])
    path.write_bytes(data)


def entry(path: Path, kind: int, number: int = 0) -> dict[str, Any]:
    """The fields of the `number`th entry of a kind."""
    found: dict[str, Any] = [e.fields for e in reference.entries(path) if e.fields["kind"] == kind][number]
    return found


def table_of(fields: dict[str, Any]) -> int:
    """A byte within a chunk's table, which is no padding."""
    return int(fields["offset"] + fields["nbytes"] + 300)


def mended(path: Path) -> tuple[RepairReport, CachedDataset]:
    before = path.read_bytes()
    report = edcache.repair(path, path.with_suffix(".mended"))
    assert path.read_bytes() == before
    assert edcache.verify(path.with_suffix(".mended")).problems == []
    return report, CachedDataset.from_cache(path.with_suffix(".mended"))


def test_a_sound_archive_is_repaired_into_the_same_samples(path):
    write(path)
    report, cache = mended(path)
    assert (report.kept, report.lost.tolist(), report.problems, report.is_whole) == (20, [], [], True)
    assert cache._reader.sealed
    assert all(same(cache[i], sample(i)) for i in range(20))
    assert cache.labels["y"].tolist() == [i % 3 for i in range(20)]
    assert cache._reader.head.uuid != CachedDataset.from_cache(path)._reader.head.uuid
    assert replace(cache._reader.head, uuid=b"") == replace(
        CachedDataset.from_cache(path)._reader.head, uuid=b""
    )


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "unsealed"])
def test_a_damaged_record_alone_is_lost(path, seal):
    write(path, seal=seal)
    offset = int(CachedDataset.from_cache(path, allow_partial=True)._reader.records.offset[7])
    damage(path, offset, offset + 1)
    report, cache = mended(path)
    assert (report.kept, report.lost.dtype, report.lost.tolist()) == (19, np.int64, [7])
    assert report.problems == [f"{path}: at offset {offset:,}: record 7 fails its crc32"]
    assert (len(cache), cache.missing.tolist()) == (20, [7])
    assert all(same(cache[i], sample(i)) for i in range(20) if i != 7)


@pytest.mark.parametrize("begun", [20, 15])
def test_filling_a_repaired_archive_computes_the_lost_samples_alone(path, log, begun):
    class Source:
        in_memory_keys = ("y",)
        length = begun

        def __len__(self):
            return self.length

        def __getitem__(self, i):
            with open(log, "a") as file:
                file.write(f"{i}\n")
            return sample(i)

    CachedDataset(Source(), path).close()
    Source.length = 20
    CachedDataset(Source(), path, grow=True).close()
    offset = int(CachedDataset.from_cache(path)._reader.records.offset[7])
    damage(path, offset, offset + 1)
    mended(path)
    log.unlink()
    cache = CachedDataset(Source(), path.with_suffix(".mended"))
    assert log.read_text() == "7\n"
    assert cache.complete
    assert all(same(cache[i], sample(i)) for i in range(20))


def test_the_index_of_a_seal_stands_in_for_the_table_of_a_chunk(path):
    write(path)
    damage(path, table_of(entry(path, reference.CHUNK, 2)))
    report, cache = mended(path)
    assert (report.kept, report.lost.tolist(), report.doubtful) == (20, [], [])
    assert cache.labels["y"].tolist() == [i % 3 for i in range(20)]


def test_the_tables_of_the_chunks_stand_in_for_the_index(path):
    write(path)
    damage(path, table_of(entry(path, reference.INDEX)))
    report, cache = mended(path)
    assert (report.kept, report.is_whole) == (20, True)
    assert any("index.pages is damaged" in line for line in report.problems)
    assert all(same(cache[i], sample(i)) for i in range(20))


def test_the_table_of_a_chunk_that_nothing_stands_in_for_is_doubtful(path):
    write(path, seal=False)
    fields = entry(path, reference.CHUNK, 2)
    damage(path, table_of(fields))
    report, cache = mended(path)
    assert report.doubtful == [Doubtful(2, fields["offset"], 4)]
    assert not report.is_whole
    assert (report.kept, report.lost.tolist()) == (16, [])
    assert (len(cache), cache.missing.tolist()) == (20, [8, 9, 10, 11])
    assert (
        f"{path}: at offset {fields['offset']:,}: chunks/00000002: the table of its 4 samples is damaged"
        in (report.problems)
    )


def test_a_header_that_nothing_stands_in_for_is_doubtful(path):
    write(path, seal=False)
    fields = entry(path, reference.CHUNK, 2)
    damage(path, fields["offset"] + 20)
    report, cache = mended(path)
    assert report.doubtful == [Doubtful(2, fields["offset"], None)]
    assert (report.kept, len(cache), cache.missing.tolist()) == (16, 20, [8, 9, 10, 11])
    assert "no entry fits here, chunks/00000003 follows at offset" in report.problems[0]


def test_the_last_header_of_an_unsealed_archive_is_doubtful_too(path):
    write(path, seal=False)
    fields = entry(path, reference.CHUNK, 4)
    damage(path, fields["offset"] + 20)
    report, cache = mended(path)
    assert report.doubtful == [Doubtful(4, fields["offset"], None)]
    assert (report.kept, len(cache)) == (16, 16)
    assert "an entry begins here that is damaged" in report.problems[0]


def test_an_older_record_is_never_taken_for_a_newer_one_that_is_damaged(path):
    write(path)
    with CacheWriter(path, "a", publish_seconds=None) as w:
        w.write(5, sample(500))
        w.write(6, sample(600))
    offset = int(CachedDataset.from_cache(path)._reader.records.offset[5])
    damage(path, offset, offset + 1)
    report, cache = mended(path)
    assert (report.kept, report.lost.tolist(), cache.missing.tolist()) == (19, [5], [5])
    assert same(cache[6], sample(600))


def test_a_sample_that_needs_a_damaged_dictionary_is_lost_and_one_that_does_not_is_kept(path):
    w = CacheWriter(path, chunk_size=20, publish_seconds=None, compression="zstd+dict")
    w.extend(sample(i) for i in range(5))
    w.flush()  # too few to train on
    w.extend(sample(i) for i in range(5, 60))
    w.close()
    damage(path, table_of(entry(path, reference.DICTIONARY)))
    report, cache = mended(path)
    assert report.lost.tolist() == list(range(5, 60))
    assert "needs a dictionary that is damaged" in report.problems[-2]
    assert report.problems[-1] == f"{path}: and 35 more records"
    assert all(same(cache[i], sample(i)) for i in range(5))


@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "unsealed"])
@pytest.mark.parametrize("where", ["magic", "version", "header", "json"])
def test_without_its_head_an_archive_is_told_from_the_rest(path, seal, where):
    write(path, seal=seal, compression="zstd")
    places = {"magic": (0, 4), "version": (46, 48), "header": (60, 61), "json": (300, 301)}
    damage(path, *places[where])
    report, cache = mended(path)
    assert (report.kept, report.head_lost, report.lost.tolist()) == (20, True, [])
    assert "the head is damaged: fingerprint, codec and label paths are not known" in report.problems[0]
    assert (cache._reader.head.compression, cache._reader.head.labels) == ("zstd", (("y", None),))
    assert cache.labels["y"].tolist() == [i % 3 for i in range(20)]
    assert all(same(cache[i], sample(i)) for i in range(20))


def test_pickles_stay_pickles_when_the_head_is_lost(path):
    with CacheWriter(path, codec="pickle") as w:
        w.extend([{1}, {2}])
    damage(path, 0, 4)
    edcache.repair(path, path.with_suffix(".mended"))
    with pytest.raises(edcache.errors.PickleRefusedError):
        CachedDataset.from_cache(path.with_suffix(".mended"))[0]
    assert CachedDataset.from_cache(path.with_suffix(".mended"), allow_pickle=True)[1] == {2}


def test_labels_that_nothing_tells_any_more_are_null_and_said(path):
    write(path)
    labels = table_of(entry(path, reference.LABELS))
    damage(path, table_of(entry(path, reference.CHUNK, 2)))
    damage(path, labels)
    report, cache = mended(path)
    assert report.unlabelled.tolist() == [8, 9, 10, 11]
    assert (report.kept, report.lost.tolist(), report.is_whole) == (20, [], False)
    found = cache.labels.table.column("y").to_pylist()
    assert found == [None if 8 <= i < 12 else i % 3 for i in range(20)]


def test_the_length_and_the_failures_are_kept(path):
    write(path, count=3, seal=False)
    appender = edcache.writer.Appender.open(path, format.Head(bytes(16)), mode="a")
    appender.amend(length=30, failed=[[7, True, *archives.FAILURE], [9, False, *archives.FAILURE]])
    appender.close()
    report, cache = mended(path)
    assert (report.length, len(cache)) == (30, 30)
    assert [(f.index, f.final, f.message) for f in cache.errors] == [
        (7, True, "it has no image"),
        (9, False, "it has no image"),
    ]


def test_a_torn_tail_is_no_damage(path):
    write(path, seal=False)
    with open(path, "ab") as file:
        file.write(bytes(PAGE) + b"half a chunk" * 100)
    report, _ = mended(path)
    assert report.is_whole
    assert report.problems[0].endswith("5,296 bytes behind the last entry are no entry: a torn tail")


def test_a_file_that_was_cut_keeps_what_is_left_of_its_last_chunk(path):
    w = CacheWriter(path, publish_seconds=None)
    w.extend({"x": np.full(1000, i)} for i in range(8))
    w.abort()
    offsets = CachedDataset.from_cache(path, allow_partial=True)._reader.records.offset
    os.truncate(path, int(offsets[5]) + 100)
    report, cache = mended(path)
    assert (report.kept, report.lost.tolist()) == (5, [5, 6, 7])
    assert cache[4]["x"].tolist() == [4] * 1000


def test_an_entry_of_a_history_that_was_cut_off_does_not_come_back(path):
    write(path, count=12, seal=False)
    stale = path.read_bytes()
    second = entry(path, reference.CHUNK, 1)["offset"]
    os.truncate(path, second)
    with CacheWriter(path, "a", chunk_size=4, publish_seconds=None) as w:
        w.extend(sample(100 + i) for i in range(4))
        w.abort()
    end = path.stat().st_size
    with open(path, "ab") as file:
        file.write(stale[end:])  # the page of the third chunk, as if the cut had not reached the disk
    report, cache = mended(path)
    assert (report.kept, len(cache)) == (8, 8)
    assert [cache[i]["x"][0] for i in range(8)] == [0, 1, 2, 3, 100, 101, 102, 103]


def test_repair_refuses_what_is_no_archive_and_what_is_in_the_way(path, tmp_path):
    target = tmp_path / "new.zip"
    with pytest.raises(ArchiveNotFoundError):
        edcache.repair(path, target)
    path.write_bytes(b"PK\x03\x04 nothing of ours" * 1000)
    with pytest.raises(NotAnArchiveError, match="not an edcache archive"):
        edcache.repair(path, target)
    path.unlink()
    write(path)
    data = bytearray(path.read_bytes())
    head_only = path.with_name("head.zip")
    data[300] ^= 1
    head_only.write_bytes(data[:PAGE])
    with pytest.raises(CorruptArchiveError, match="the head's 3,904 bytes fail their crc32"):
        edcache.repair(head_only, target)
    data[46:48] = b"\x63\x00"
    head_only.write_bytes(data[:PAGE])
    with pytest.raises(FormatVersionError, match="archive format 99"):
        edcache.repair(head_only, target)
    target.write_text("mine")
    with pytest.raises(ArchiveExistsError, match=r"new\.zip: exists already; give a path where nothing is"):
        edcache.repair(path, target)
    assert target.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.zip", "head.zip", "new.zip"]


def test_progress_counts_the_bytes_of_the_records(path, tmp_path):
    write(path)
    seen: list[tuple[int, int]] = []
    edcache.repair(path, tmp_path / "new.zip", lambda done, total: seen.append((done, total)))
    total = int(CachedDataset.from_cache(path)._reader.records.nbytes.sum())
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)


def test_the_dictionary_that_a_frame_needs_is_told_from_its_header():
    import zstandard

    samples = [bytes(random.Random(i).choices(b"abcdef", k=300)) for i in range(100)]
    known = zstandard.train_dictionary(2000, samples)
    for size in (10, 300, 70_000, 2_000_000):
        data = (samples[0] * 7000)[:size]
        for options in ({}, {"dict_data": known}):
            frame = zstandard.ZstdCompressor(**options).compress(data)
            assert dictionary_of(memoryview(frame)) == zstandard.get_frame_parameters(frame).dict_id
    assert dictionary_of(memoryview(b"")) == 0


# ------------------------------------------------------------------------- random archives, any damage


def flipped(data: bytearray, model: archives.Model, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zeroed(data: bytearray, model: archives.Model, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 3)):
        start = rng.randrange(len(data) // PAGE + 1) * PAGE
        data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))


def scribbled(data: bytearray, model: archives.Model, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    length = min(rng.randrange(1, 9000), len(data) - start)
    data[start : start + length] = rng.randbytes(length)


def cut(data: bytearray, model: archives.Model, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def aimed(data: bytearray, model: archives.Model, rng: random.Random) -> None:
    """At heads, amendments, dictionaries and tables, which matter more than they weigh."""
    tables = [version.table for versions in model.versions.values() for version in versions]
    for _ in range(rng.randrange(1, 4)):
        low, high = rng.choice([*model.others, *model.dictionaries, rng.choice(tables)])
        data[rng.randrange(low, high)] ^= 1 << rng.randrange(8)


def unfinished(data: bytearray, model: archives.Model, rng: random.Random) -> None:
    """At the end, where index, labels and directory are."""
    for _ in range(rng.randrange(1, 5)):
        data[-rng.randrange(1, min(len(data), 12_000))] ^= 1 << rng.randrange(8)


DAMAGES: list[Callable[[bytearray, archives.Model, random.Random], None]] = [
    flipped,
    zeroed,
    scribbled,
    cut,
    aimed,
    unfinished,
]


def _is_untouched(model: archives.Model, data: bytes, extents: list[tuple[int, int]]) -> bool:
    return all(low < len(data) or low == high for low, high in extents) and all(
        data[low:high] == model.data[low:high] for low, high in extents
    )


def _complaints(model: archives.Model, data: bytes, path: Path, target: Path) -> list[str]:
    """What a repair did that it must not do; the oracle is the model."""
    certain = {
        index
        for index, versions in model.versions.items()
        if _is_untouched(model, data, [versions[-1].record, versions[-1].table, *model.dictionaries])
    }
    path.write_bytes(data)
    try:
        report = edcache.repair(path, target)
    except EdcacheError as error:
        return [f"{len(certain)} samples are there, but {error!r}"] if certain else []
    wrong = [] if path.read_bytes() == data else ["it wrote into the damaged archive"]
    wrong += edcache.verify(target).problems
    cache = CachedDataset.from_cache(target)
    kept = set(available(cache).indices.tolist())
    lost = set(report.lost.tolist())
    hides = bool(report.doubtful) or any(
        "torn tail" in line or "a seal begins" in line for line in report.problems
    )
    wrong += [f"{index} is kept and was never there" for index in kept - set(model.versions)]
    wrong += [f"{index} is lost and was never there" for index in lost - set(model.versions)]
    wrong += [f"{index} is kept and lost" for index in kept & lost]
    wrong += [f"{index} is whole and was not kept" for index in certain - kept]
    wrong += [] if report.kept == len(kept) else [f"{report.kept} kept, {len(kept)} there"]
    complete = len(data) == len(model.data) and not hides
    if complete and kept | lost != set(model.versions):
        wrong.append(f"nothing is said of {sorted(set(model.versions) - kept - lost)}")
    if complete and _is_untouched(model, data, model.others) and len(cache) != model.length:
        wrong.append(f"length {len(cache)}, it was {model.length}")
    unlabelled = set(report.unlabelled.tolist())
    rows = cache.labels.table.to_pylist() or [{}] * len(cache)
    for index in sorted(kept & set(model.versions)):
        versions = [v.sample for v in model.versions[index]]
        # Where a chunk hides, or the file was cut, nobody can know of the newer records in it.
        allowed = versions[-1:] if complete else versions
        found = [made for made in allowed if same(cache[index], made)]
        if not found:
            wrong.append(f"{index} has other values; {report}")
            continue
        if index in unlabelled:
            wrong += (
                [] if rows[index] == dict.fromkeys(rows[index]) else [f"{index} has labels from somewhere"]
            )
        elif rows[index] != model.labels(found[-1]):
            wrong.append(f"{index} has other labels: {rows[index]}")
    cache.close()
    return wrong


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__)
def test_a_repair_holds_right_samples_alone_and_all_that_are_whole(tmp_path, tally, how):
    rng = seeded(f"repair {how.__name__}")
    wrong: list[str] = []
    for number in range(scaled(12)):
        origin = tmp_path / f"{number}.zip"
        model = archives.make(origin, rng)
        for turn in range(6):
            data = bytearray(model.data)
            how(data, model, rng)
            target = tmp_path / f"{number}-{turn}.zip"
            found = _complaints(model, bytes(data), tmp_path / "damaged.zip", target)
            wrong += [f"archive {number}, damage {turn}: {what}" for what in found]
            target.unlink(missing_ok=True)
            tally("repairs")
        origin.unlink()
    assert wrong == []


def test_a_repair_of_a_sound_archive_loses_nothing(tmp_path, tally):
    rng = seeded("sound repairs")
    for number in range(scaled(30)):
        path, target = tmp_path / f"{number}.zip", tmp_path / f"{number}-new.zip"
        model = archives.make(path, rng)
        assert _complaints(model, model.data, path, target) == []
        report = edcache.repair(path, tmp_path / f"{number}-again.zip")
        assert report.is_whole
        assert report.problems == []
        found = {
            f.index: [f.final, f.error, f.message, f.traceback]
            for f in CachedDataset.from_cache(target).errors
        }
        assert found == model.failed
        tally("repairs")


# ------------------------------------------------------------------------------------- hostile archives

FIELDS = ("samples", "end_index", "table_nbytes", "next", "payload_nbytes", "durable", "seq", "kind")
HUGE = [0, 1, 2**31, 2**40, 2**62 - 1, 2**62, 2**63 - 1, 2**64 - 1]


@pytest.mark.full
@pytest.mark.parametrize("seal", [True, False], ids=["sealed", "unsealed"])
def test_absurd_numbers_in_headers_that_fit_are_survived(tmp_path, tally, seal):
    """Each header field in turn, with its crc32 made anew."""
    path, hostile = tmp_path / "a.zip", tmp_path / "hostile.zip"
    write(path, seal=seal)
    data = path.read_bytes()
    targets = [e.fields["offset"] for e in reference.entries(path)]
    for offset in targets:
        header = format.parse_header(data[offset : offset + 320])
        for name in (
            "samples",
            "end_index",
            "table_nbytes",
            "next",
            "payload_nbytes",
            "durable",
            "seq",
            "kind",
        ):
            for value in HUGE[: 2 if name == "kind" else None]:
                try:
                    packed = format.pack_header(replace(header, **{name: value}))
                except Exception:
                    continue  # no such bytes
                hostile.write_bytes(data[:offset] + packed + data[offset + len(packed) :])
                for function in (edcache.verify, edcache.compact, _repaired):
                    with suppress(EdcacheError):
                        function(hostile)
                    tally("hostile files")


def _repaired(path: Path) -> None:
    target = path.with_suffix(".mended")
    target.unlink(missing_ok=True)
    edcache.repair(path, target)
    assert edcache.verify(target).sound


LIES = {
    "offsets beyond the file": ("offset", lambda values: values + np.uint64(1 << 40)),
    "offsets that wrap around": ("offset", lambda values: values - np.uint64(1 << 62)),
    "offsets of the neighbour": ("offset", lambda values: np.roll(values, 1)),
    "the same offset": ("offset", lambda values: np.full_like(values, values[0])),
    "lengths beyond the file": ("nbytes", lambda values: values + np.uint64(1 << 62)),
    "lengths that overlap": ("nbytes", lambda values: values * np.uint64(3)),
    "other checksums": ("crc32", lambda values: values ^ np.uint32(1)),
    "lengths before compression": ("raw_nbytes", lambda values: values + np.uint64(8)),
    "schemas that are none": ("schema", lambda values: values + np.uint16(9)),
}


# These are none, so that nothing is believed of the whole index.
NO_INDEX = {"offsets that wrap around", "lengths beyond the file"}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("also", ["", "a damaged table"])
def test_an_index_that_lies_with_a_fitting_crc32_gives_no_wrong_sample(path, monkeypatch, tally, lie, also):
    name, change = LIES[lie]
    add = edcache.format.IndexWriter.add

    def lying(writer, records):
        add(writer, replace(records, **{name: change(getattr(records, name))}))

    monkeypatch.setattr("edcache.format.IndexWriter.add", lying)
    write(path, compression="zstd" if name == "raw_nbytes" else None)
    monkeypatch.undo()
    assert not edcache.verify(path, quick=True).sound
    if also:
        damage(path, table_of(entry(path, reference.CHUNK, 2)))
    report, cache = mended(path)
    assert len(cache) == 20
    assert report.is_whole == (lie in NO_INDEX and not also)
    # With neither index nor table nothing names the samples of that chunk.
    assert report.kept + len(report.lost) == (16 if lie in NO_INDEX and also else 20)
    # Where the table of a chunk does not read, nothing contradicts the index about its records.
    trusted = [i for i in range(20) if cache._reader.has(i) and not (also and 8 <= i < 12)]
    assert all(same(cache[i], sample(i)) for i in trusted)
    tally("hostile files")


def test_dictionaries_that_overlap_cost_no_more_than_the_file(path, monkeypatch):
    finish = edcache.format.IndexWriter.finish

    def lying(writer, table):
        data = path.read_bytes()
        known = [Dictionary(k, 5000, format.crc32(data[k : k + 5000])) for k in range(4096, 6000)]
        return finish(writer, table._replace(dictionaries=known))

    monkeypatch.setattr("edcache.format.IndexWriter.finish", lying)
    write(path)
    monkeypatch.undo()
    report, cache = mended(path)
    assert (report.kept, len(cache)) == (20, 20)
    kinds = [e.fields["kind"] for e in reference.entries(path.with_suffix(".mended"))]
    assert kinds.count(reference.DICTIONARY) <= path.stat().st_size // 5000


def test_a_sequence_number_that_the_file_has_no_room_for_is_not_believed(path):
    """An amendment that gives up all entries before it would name as many as it likes."""
    write(path, seal=False)
    fields = entry(path, reference.CHUNK, 4)
    data = path.read_bytes()
    text = json.dumps({"lost": [[0, 2**61]]}).encode()
    payload = text.ljust(PAGE - 192, b"\0")
    header = format.parse_header(data[fields["offset"] : fields["offset"] + 320])
    forged = replace(
        header,
        kind=format.KIND_AMENDMENT,
        seq=2**61 + 1,
        payload_nbytes=len(payload),
        payload_crc=format.crc32(payload),
        table_nbytes=len(text),
        table_crc=format.crc32(text),
        next=header.offset + PAGE,
    )
    path.write_bytes(data[: header.offset] + format.pack_header(forged) + payload)
    report, _ = mended(path)
    assert report.kept == 16
