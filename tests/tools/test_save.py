"""save: the stored samples of a view in a new archive, bit for bit and in its order, or nothing."""

from __future__ import annotations

import errno
import os
import random
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import archives
import numpy as np
import pyarrow as pa
import pytest
import reference
from damage import flip, flip_record, flipped
from filled import available
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import same
from scale import scaled, seeded, thinned
from systems import Full, killed_at, replace_system

import edcache
from edcache import CachedDataset, CacheWriter, format
from edcache.errors import (
    ArchiveError,
    ArchiveExistsError,
    CorruptArchiveError,
    CorruptRecordError,
    EdcacheError,
    LabelError,
    OptionError,
    PartialArchiveWarning,
    StaleArchiveError,
    StorageError,
)
from edcache.format import ROW, Failure, Head
from edcache.storage.file import File
from edcache.writer import seal
from edcache.writer.appender import Appender
from edcache.writer.chunk import Chunk

SEED = st.integers(0, 2**32)


def sample(i: int) -> dict[str, Any]:
    return {"x": np.full(60, i), "y": i % 3}


def write(path: Path, indices: range = range(20), seal: bool = True, **options: Any) -> Path:
    options = {"chunk_size": 4, "publish_seconds": None, "in_memory_keys": ["y"]} | options
    w = CacheWriter(path, **options)
    w.extend(map(sample, indices))
    w.close() if seal else w.abort()
    return path


def write_grown(path: Path, **options: Any) -> Path:
    """20 samples, of which two were replaced behind the seal."""
    write(path, **options)
    with CacheWriter(path, "a", publish_seconds=None) as w:
        w.write(3, sample(300))
        w.write(4, sample(400))
    return path


GROWN = [sample({3: 300, 4: 400}.get(i, i)) for i in range(20)]


def opened(path: Any) -> CachedDataset:
    return CachedDataset.from_cache(path)


def sealed_once(path: Path | str) -> bool:
    """True if an archive is sound, and was sealed once: no older seal is in it."""
    report = edcache.verify(path)
    roots = [entry for entry in reference.entries(path) if entry.fields["kind"] == reference.ROOT]
    return (report.problems, report.sealed, len(roots)) == ([], True, 1)


def expect(path: Path, expected: list[Any]) -> None:
    """The archive is sound, and has these samples and their labels; None stands for a missing one."""
    assert sealed_once(path)
    ds = opened(path)
    assert len(ds) == len(expected)
    assert ds.missing.tolist() == [i for i, made in enumerate(expected) if made is None]
    assert all(same(ds[i], made) for i, made in enumerate(expected) if made is not None)
    labels = ds.labels["y"].tolist()
    assert all(labels[i] == made["y"] for i, made in enumerate(expected) if made is not None)
    ds.close()


def saved_to(target: Path, view: Any, **options: Any) -> Any:
    """What was saved, opened."""
    paths = view.save(target, **options)
    return opened(paths if "max_size" in options else paths[0])


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


# --------------------------------------------------------------------------- what is saved is the view


def random_archive(path: Path, rng: random.Random, compression: str | None) -> Path:
    """One of any kind, with labels that were added, changed and dropped, of missing samples too."""
    archives.make(path, rng, compressions=[compression])
    ds = CachedDataset.from_cache(path, allow_partial=True)
    for _ in range(rng.randrange(3)):
        name = rng.choice(["y", "added", "other"])
        if not ds._archive.reader.session.sealed:
            break
        if rng.random() < 0.6:
            chosen = rng.sample(range(len(ds)), rng.randrange(1, 1 + len(ds)))
            ds.add_labels(name, {i: rng.choice([i, None, -1, 0.5]) for i in chosen})
        elif name in ds.labels:
            ds.drop_labels(name)
    ds.close()
    return path


def random_view(ds: Any, rng: random.Random, order: list[int]) -> tuple[Any, list[int]]:
    """A view of views, and the positions that it has in a plain list."""
    for _ in range(rng.randrange(4)):
        kind = rng.choice(["slice", "shuffle", "repeat", "picked", "available"])
        if kind == "slice":
            part = slice(
                rng.randrange(5), rng.choice([None, len(order) - rng.randrange(5)]), rng.randrange(1, 4)
            )
            ds, order = ds[part], order[part]
        elif kind == "shuffle":
            picked = ds.shuffle(rng.randrange(9))
            places = picked.indices.tolist()
            ds, order = picked, places
        elif kind == "repeat" and len(order) < 300:
            ds, order = ds.repeat(2), order * 2
        elif kind == "picked" and order:
            chosen = [rng.randrange(len(order)) for _ in range(rng.randrange(20))]
            ds, order = ds[np.array(chosen, np.int64)], [order[k] for k in chosen]
    return ds, order


def label_rows(ds):
    """The labels of each sample by name; a whole archive that is saved keeps its own order of columns."""
    return [dict(sorted(row.items())) for row in ds.labels.table.to_pylist()] or [{}] * len(ds)


@settings(max_examples=scaled(40), suppress_health_check=list(HealthCheck))
@given(SEED)
def test_a_saved_view_equals_the_view(tally, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            random_archive(Path(folder, f"{k}.zip"), rng, rng.choice([None, "zstd"]))
            for k in range(rng.randrange(1, 4))
        ]
        whole = CachedDataset.from_cache(paths if len(paths) > 1 else paths[0], allow_partial=True)
        view, order = random_view(whole, rng, list(range(len(whole))))
        size = rng.choice([None, None, 1, 700, 5000])
        paths = view.save(Path(folder, "saved.zip"), max_size=size, skip_damaged=True)
        saved = opened(paths)
        absent = set(whole.missing.tolist())
        assert len(saved) == len(view) == len(order)
        assert saved.missing.tolist() == [k for k, i in enumerate(order) if i in absent]
        assert all(same(saved[k], whole[i]) for k, i in enumerate(order) if i not in absent)
        rows = label_rows(whole)
        assert same(label_rows(saved), [rows[i] for i in order])
        if size is None:
            table, expected = saved.labels.table, view.labels.table
            names = sorted(table.column_names)
            assert names == sorted(expected.column_names)
            # Of a column without a value the type is of no account.
            valued = [name for name in names if table.column(name).null_count < len(order)]
            assert table.select(valued).schema == expected.select(valued).schema
        failures = {failure.index: failure for failure in whole.errors}
        assert saved.errors == [replace(failures[i], index=k) for k, i in enumerate(order) if i in failures]
        for part in paths:
            assert sealed_once(part)
        tally("views saved")


def test_random_archives_saved_over_themselves_hold_the_same_records(tmp_path, tally):
    rng = seeded("save over itself")
    for number in range(scaled(40)):
        path = tmp_path / f"{number}.zip"
        model = archives.make(path, rng)
        expected, before = reference.walk(path), CachedDataset.from_cache(path, allow_partial=True)
        before[:].save(path, skip_damaged=True)
        found, saved = reference.read_zip(path), opened(path)
        assert found.records == expected.records, number
        assert found.schemas == expected.schemas
        assert (found.length, found.failed) == (expected.length, expected.failed)
        assert saved._archive.reader.session.head.uuid == before._archive.reader.session.head.uuid
        assert all(same(saved[i], model.newest(i)) for i in model.versions)
        rows = saved.labels.table.to_pylist() or [{}] * len(saved)
        assert all(rows[i] == model.labels(model.newest(i)) for i in model.versions)
        assert sealed_once(path)
        tally("archives saved over themselves")


def test_a_whole_archive_keeps_where_it_comes_from(path, log):
    class Source:
        in_memory_keys = ("y",)

        def __len__(self):
            return 20

        def __getitem__(self, i):
            with open(log, "a") as file:
                file.write(f"{i}\n")
            return sample(i)

    CachedDataset(Source(), path).close()
    flip_record(path, 7)
    with pytest.warns(PartialArchiveWarning, match="1 of 20 samples are damaged and were left out: 7"):
        saved = saved_to(path.with_name("new.zip"), opened(path), skip_damaged=True)
    assert saved.missing.tolist() == [7]
    assert replace(saved._archive.reader.session.head, uuid=b"") == replace(
        opened(path)._archive.reader.session.head, uuid=b""
    )
    assert saved._archive.reader.session.head.uuid != opened(path)._archive.reader.session.head.uuid
    log.unlink()
    assert CachedDataset(Source(), path.with_name("new.zip"), spot_check=False).complete
    assert log.read_text() == "7\n"
    assert all(same(one, sample(i)) for i, one in enumerate(opened(path.with_name("new.zip"))))


@pytest.mark.parametrize("change", ["none", "changed", "dropped", "dropped and added"])
def test_an_archive_that_was_saved_over_itself_grows_on_with_its_labels(path, change):
    write_grown(path, compression="zstd")
    ds = opened(path)
    if "dropped" in change:
        ds.drop_labels("y")
    if change != "none" and change != "dropped":
        ds.add_labels("y", ["text"] * 20 if "dropped" in change else list(range(20)))
    ds.add_labels("more", list(range(20)))
    expected = ds.labels.table.to_pylist()
    ds.save(path)
    assert opened(path).labels.table.to_pylist() == expected
    with CacheWriter(path, "a") as w:
        w.append(sample(20))
    assert edcache.verify(path).problems == []
    grown = opened(path).labels.table.to_pylist()
    own = {"none": 2, "changed": 2}.get(change)
    assert grown == [*expected, {name: own if name == "y" else None for name in expected[0]}]


def test_records_are_copied_as_they_are_stored(tmp_path):
    a, b = write(tmp_path / "a.zip", compression="zstd"), write(tmp_path / "b.zip", compression="zstd:9")
    saved = saved_to(tmp_path / "new.zip", opened([a, b]))._archive.reader
    parts = [opened(path)._archive.reader for path in (a, b)]
    assert stored_records(saved) == [record for part in parts for record in stored_records(part)]


def stored_records(reader):
    data = Path(reader.path).read_bytes()
    return [data[offset : offset + nbytes] for offset, nbytes, *_ in reader.session.index.all_rows().tolist()]


def test_compressed_records_and_others_are_saved_into_one_archive(tmp_path):
    paths = [write(tmp_path / "a.zip"), write(tmp_path / "b.zip", compression="zstd")]
    ds = opened(paths)
    saved = saved_to(tmp_path / "new.zip", ds)
    assert all(same(saved[i], ds[i]) for i in range(len(ds)))
    assert same(saved.batch([0, 25, 3]), ds.batch([0, 25, 3]))


def test_the_fields_of_labels_are_known_if_all_archives_agree(tmp_path):
    a, b, e = (write(tmp_path / f"{name}.zip") for name in "abe")
    c = write(tmp_path / "c.zip", in_memory_keys={"y": lambda s: s["y"]})
    d = write(tmp_path / "d.zip", in_memory_keys=[])
    opened(e).add_labels("y", [7] * 20)
    for paths, field in [((a, b), "y"), ((a, c), None), ((a, d), None), ((a, e), None)]:
        saved = saved_to(tmp_path / "new.zip", opened(list(paths)))
        assert saved._archive.reader.session.head.labels == (("y", field),)
        assert [saved.select("y")[i]["y"] for i in range(len(saved))] == [s["y"] for s in saved]
        os.remove(tmp_path / "new.zip")


def test_missing_samples_stay_missing_with_their_failures_and_labels(tmp_path):
    a, b = write(tmp_path / "a.zip", range(10)), tmp_path / "b.zip"
    failed = [Failure(2, True, "ValueError", "it is bad", "Trace"), Failure(5, False, "OSError", "gone", "")]
    with CacheWriter(b, in_memory_keys=["y"]) as w:
        w.write(3, sample(3))
    appender = Appender.open(b, Head(bytes(16)), mode="a")
    appender.amend(length=7, failed=[failure.to_json() for failure in failed])
    seal(appender)
    appender.close()
    opened(b).add_labels("note", {1: "absent", 3: "there", 6: "absent too"})
    both = opened([b, a])
    with pytest.raises(ArchiveError, match=r"5 of 17 samples have no record; fill it, or pass"):
        both.save(tmp_path / "new.zip")
    ds = saved_to(tmp_path / "new.zip", both, skip_damaged=True)
    assert (len(ds), ds.missing.tolist()) == (17, [0, 1, 2, 4, 5, 6])
    assert ds.errors == failed
    notes = [None, "absent", None, "there", None, None, "absent too", *[None] * 10]
    assert ds.labels["note"].tolist() == notes
    # What failed for good is not missing, nor what a view leaves out.
    assert saved_to(tmp_path / "two.zip", both[2:4]).missing.tolist() == [0]
    assert saved_to(tmp_path / "eleven.zip", available(both)).complete


def test_an_archive_that_is_not_sealed_passes_for_no_whole_one(path):
    write(path, seal=False)
    ds, new = CachedDataset.from_cache(path, allow_partial=True), path.with_name("new.zip")
    with pytest.raises(ArchiveError, match=r"a\.zip is not sealed, so samples may be missing; fill it"):
        ds.save(new)
    assert len(saved_to(new, ds[:19])) == 19
    with open(path, "ab") as file:
        file.write(bytes(5000) + b"torn")
    CachedDataset.from_cache(path, allow_partial=True).save(path, skip_damaged=True)
    expect(path, [sample(i) for i in range(20)])


@pytest.mark.parametrize(
    ("seal", "harm", "sound", "held"),
    [
        *((True, "record", 19, 20), (True, "cut", 5, 10)),
        *((False, "record", 19, 20), (False, "table", 15, 20), (False, "cut", 5, 10)),
    ],
)
def test_an_archive_is_not_replaced_by_fewer_samples_unless_it_is_forced(tmp_path, seal, harm, sound, held):
    path, new = write(tmp_path / "a.zip", seal=seal, chunk_size=5), tmp_path / "new.zip"
    fields = [one.fields for one in reference.entries(path) if one.fields["kind"] == reference.CHUNK][1]
    if "record" in harm:
        flip_record(path, 2)
    if harm == "table":
        flip(path, fields["offset"] + fields["nbytes"] + 20)
    if "cut" in harm:
        os.truncate(path, fields["offset"] + fields["nbytes"] + 100)
    told = (
        pytest.warns(PartialArchiveWarning, match="the file ends within") if harm == "cut" else nullcontext()
    )
    with told:
        before, ds = path.read_bytes(), CachedDataset.from_cache(path, allow_partial=True)
    refused = rf"a\.zip: save\(\) would leave at most {sound} of the {held} samples that it has or had, .*"
    with pytest.raises(ArchiveError, match=f"{refused}; save to another path, or pass force=True") as raised:
        ds.save(path, skip_damaged=True)
    assert raised.value.option == "force"
    assert (path.read_bytes(), names(path)) == (before, ["a.zip"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartialArchiveWarning)
        kept = saved_to(new, ds, skip_damaged=True)
        assert len(available(kept)) == sound
        assert len(available(saved_to(path, ds, skip_damaged=True, force=True))) == sound
        opened(path).save(path, skip_damaged=True)


@pytest.mark.parametrize("seal", [True, False])
def test_an_archive_without_a_loss_is_replaced(tmp_path, seal):
    """The end of a seal, the tail of a killed writer and a table whose rows the index has too are no samples."""
    path = write(tmp_path / "a.zip", seal=seal)
    if seal:
        flip(path, 4096 + 300)
        os.truncate(path, path.stat().st_size - 10)
    else:
        path.write_bytes(path.read_bytes() + bytes(9000) + b"torn")
    CachedDataset.from_cache(path, allow_partial=True).save(path, skip_damaged=True)
    expect(path, [sample(i) for i in range(20)])


def test_empty_views_are_saved(tmp_path):
    a, b = write(tmp_path / "a.zip"), write(tmp_path / "b.zip")
    assert len(saved_to(tmp_path / "1.zip", opened(a)[:0])) == 0
    assert len(saved_to(tmp_path / "2.zip", opened([a, b])[:0])) == 0
    assert len(saved_to(tmp_path / "3.zip", opened([a, b])[:0], max_size="1MB")) == 0
    CacheWriter(tmp_path / "empty.zip").close()
    assert len(saved_to(tmp_path / "empty.zip", opened(tmp_path / "empty.zip"))) == 0


def test_small_records_and_large_ones_lie_as_the_format_wants_them(path):
    with CacheWriter(path, chunk_size=1, publish_seconds=None) as w:
        for i in range(40):
            w.append(np.arange(i * i, dtype=np.uint8))
        w.append(np.ones(5_000_000, np.uint8))
        w.append(np.ones(10, np.uint8))
    ds = saved_to(path, opened(path))
    report = edcache.verify(path)
    assert (report.chunks, report.problems) == (3, [])
    assert all(np.array_equal(ds[i], np.arange(i * i, dtype=np.uint8)) for i in range(40))
    assert len(ds[40]) == 5_000_000


# ------------------------------------------------------------------------------------------ several files


def test_max_size_writes_files_of_about_this_size(tmp_path):
    rng = np.random.default_rng(3)
    path = tmp_path / "train.zip"
    with CacheWriter(path, in_memory_keys=["name", "y"]) as w:
        for i in range(1500):
            x = rng.integers(0, 99, rng.integers(1, 9000), np.uint8)
            w.append({"x": x, "name": "n" * int(rng.integers(1, 40)), "y": i})
    for number, (size, most) in enumerate([("1MB", 1_000_000), (2_500_000, 2_500_000)]):
        parts = saved_to(tmp_path / f"part{number}.zip", opened(path), max_size=size)
        files = [tmp_path / f"part{number}-{k:05}.zip" for k in range(len(parts.parts))]
        assert [part.path for part in parts.parts] == list(map(str, files))
        assert all(0.9 * most < file.stat().st_size < 1.1 * most for file in files[:-1])
        assert parts.labels["y"].tolist() == list(range(1500))
    for wrong in ("much", 0, -1, 2.5):
        with pytest.raises(OptionError, match=r"save\(\): max_size="):
            opened(path).save(tmp_path / "new.zip", max_size=wrong)


def test_when_one_of_several_files_fails_none_is_left(tmp_path):
    path = write(tmp_path / "a.zip")
    (tmp_path / "new-00002.zip").write_bytes(b"in the way")
    before = names(path)
    with pytest.raises(ArchiveExistsError, match=r"new-00002\.zip: exists already"):
        opened(path).save(tmp_path / "new.zip", max_size=1)
    assert names(path) == before
    os.remove(tmp_path / "new-00002.zip")
    flip_record(path, 7)
    with pytest.raises(CorruptRecordError, match=r"a\.zip: record 7 at offset"):
        opened(path).save(tmp_path / "new.zip", max_size=1)
    assert names(path) == ["a.zip"]


# --------------------------------------------------------------------------------------- what is refused


def refused(view: Any, target: Path, kind: type[Exception], *texts: str) -> None:
    """Saving fails with these words, and the folder is as it was."""
    before = {name: (target.parent / name).stat().st_mtime_ns for name in names(target)}
    with pytest.raises(kind) as caught:
        view.save(target)
    assert [text for text in texts if text not in str(caught.value)] == []
    assert {name: (target.parent / name).stat().st_mtime_ns for name in names(target)} == before


def test_samples_that_are_not_as_they_are_stored_are_refused(tmp_path):
    path, new = write(tmp_path / "a.zip"), tmp_path / "new.zip"
    ds, kind = opened(path), OptionError
    remedy = "CachedDataset(view, path) stores what a view gives"
    refused(ds.select("x"), new, kind, "save() copies samples as they are stored", "selected", remedy)
    refused(ds.with_transform(lambda s: s), new, kind, "a transform changes them", remedy)
    refused(CachedDataset.from_cache(path, transform=lambda s: s), new, kind, "a transform changes them")
    refused(edcache.concat([ds, ds.select("x")]), new, kind, "only some of their fields are selected")
    refused(edcache.zip_fields(ds.select("x"), ds.select("y")), new, kind, "several datasets", remedy)


def test_archives_that_do_not_go_together_are_refused(tmp_path):
    a, new = write(tmp_path / "a.zip"), tmp_path / "new.zip"
    pickled = write(tmp_path / "pickled.zip", codec="pickle")
    text = f"{a} is of codec='native', {pickled} of codec='pickle'; save them"
    refused(opened([a, pickled]), new, OptionError, text)
    other = write(tmp_path / "other.zip", in_memory_keys={"y": lambda s: "text"})
    text = 'label "y" is int64 in one dataset and string in another'
    refused(opened([a, other]), new, LabelError, text)
    refused(opened(a), other, ArchiveExistsError, "other.zip: exists already; give a path where nothing is")
    text = "replaces an archive only by all of its samples in their order"
    refused(opened(a)[:5], a, OptionError, text)
    refused(edcache.concat([opened(a), opened(a)]), a, OptionError, text)
    refused(opened(a).shuffle(1), a, OptionError, text)


def test_more_structures_than_an_archive_holds_are_refused(tmp_path):
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for k, path in enumerate(paths):
        appender = Appender.open(path, Head(bytes([k]) * 16), mode="x")
        schemas = [f"{k} {i}" for i in range(33_000)]
        row = np.array([(0, 6, format.crc32(b"record"), 0, 1)], ROW)
        appender.append(Chunk(np.zeros(1, np.int64), row, pa.table({}), schemas, memoryview(b"record")))
        seal(appender)
        appender.close()
    text = "save(): 66,000 structures of samples together, an archive holds 65,536"
    refused(opened(paths), tmp_path / "new.zip", OptionError, text)


def test_progress_is_told_in_bytes_of_records(tmp_path):
    paths = [write(tmp_path / f"{k}.zip", range(100)) for k in range(3)]
    told: list[tuple[int, int]] = []
    opened(paths).save(tmp_path / "new.zip", on_progress=lambda done, total: told.append((done, total)))
    nbytes = sum(int(opened(path)._archive.reader.session.index.all_rows()["nbytes"].sum()) for path in paths)
    assert (told[0], told[-1]) == ((0, nbytes), (nbytes, nbytes))
    assert told == sorted(told)


# ------------------------------------------------------------------------------------------- with others


def test_a_live_reader_keeps_the_old_file_and_finds_the_new_one_when_it_looks_again(path):
    write_grown(path)
    cache = opened(path)
    nbytes, chunks = cache._archive.reader.session.nbytes, edcache.verify(path).chunks
    opened(path).save(path)
    assert (chunks, edcache.verify(path).chunks) == (6, 1)
    assert all(same(cache[i], made) for i, made in enumerate(GROWN))
    assert cache._archive.reader.session.nbytes == nbytes
    assert cache.refresh()
    assert cache._archive.reader.session.nbytes == path.stat().st_size < nbytes
    assert all(same(cache[i], made) for i, made in enumerate(GROWN))
    assert cache.labels["y"].tolist() == [made["y"] for made in GROWN]
    assert not cache.refresh()
    expect(path, GROWN)


@pytest.mark.parametrize("begins", ["before", "meanwhile"])
def test_an_archive_that_another_process_fills_is_not_replaced(path, begins):
    write_grown(path)
    before = path.read_bytes()
    fillers: list[File] = []

    def begin(done: int, total: int) -> None:
        if not fillers:
            fillers.append(File.open(path, "a"))
            fillers[0].lock(format.LOCK_FILLER + 5)

    if begins == "before":
        begin(0, 0)
    with pytest.raises(ArchiveError, match="somebody writes it; save it when that has ended"):
        opened(path).save(path, on_progress=begin)
    assert (path.read_bytes(), names(path)) == (before, ["a.zip"])
    opened(path).save(path.with_name("b.zip"))
    fillers[0].close()


@pytest.mark.parametrize("how", ["appended", "labelled", "replaced"])
def test_an_archive_that_changed_since_it_was_opened_is_not_replaced(path, how):
    write_grown(path)

    def change(done: int, total: int) -> None:
        if done < total:
            return
        if how == "labelled":
            opened(path).add_labels("more", [1] * 20)
        else:
            with CacheWriter(path.with_name("other.zip") if how == "replaced" else path, "a") as w:
                w.append({"x": np.zeros(1), "y": 0})
        if how == "replaced":
            os.replace(path.with_name("other.zip"), path)

    ds = opened(path)
    with pytest.raises(
        StaleArchiveError, match="changed since it was opened|was replaced since it was opened"
    ):
        ds.save(path, on_progress=change)
    assert names(path) == ["a.zip"]
    assert (len(opened(path)), edcache.verify(path).problems) == (
        {"appended": 21, "replaced": 1}.get(how, 20),
        [],
    )


def test_an_archive_that_is_being_replaced_is_refused(path):
    write(path)
    with CacheWriter(path, "w", in_memory_keys=["y"]) as w:
        w.append(sample(0))
        with pytest.raises(ArchiveError, match=r"a\.zip\.edcache\.new: another process is writing it"):
            opened(path).save(path)
    expect(path, [sample(0)])


def test_a_writer_never_appends_to_the_file_without_a_name(path):
    # A filler would have been seen; who adds labels, or fills lazily, has it open without a lock.
    write_grown(path)
    holder = Appender.open(path, Head(bytes(16)), mode="a")
    opened(path).save(path)
    with pytest.raises(StaleArchiveError, match="another file has taken its place"):
        holder.amend(length=100)
    holder.close()
    expect(path, GROWN)


def test_permissions_and_a_symbolic_link_stay(path, tmp_path):
    write_grown(path)
    os.chmod(path, 0o640)
    link = tmp_path / "link.zip"
    link.symlink_to(path)
    opened(link).save(link)
    assert link.is_symlink()
    opened(path).save(tmp_path / "b.zip")
    assert os.stat(path).st_mode & 0o777 == os.stat(tmp_path / "b.zip").st_mode & 0o777 == 0o640
    expect(path, GROWN)


# ------------------------------------------------------------------------------------- when things fail


@pytest.mark.parametrize("over", [True, False], ids=["over itself", "new"])
def test_a_full_disk_leaves_the_archive_as_it_was_and_nothing_beside_it(path, over):
    write_grown(path)
    before, target = path.read_bytes(), path if over else path.with_name("b.zip")
    for writes in range(100):
        raised: StorageError | None = None
        try:
            with replace_system(Full(writes)):
                opened(path).save(target)
        except StorageError as error:
            raised = error
        if raised is None:
            break
        assert raised.errno == errno.ENOSPC
        assert (path.read_bytes(), names(path)) == (before, ["a.zip"])
    assert writes > 5
    expect(target, GROWN)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["over itself", "new", "several"])
def test_killed_at_any_operation_there_is_what_was_there_or_all_of_it(path, tally, kind):
    write_grown(path, compression="zstd")
    original, target = path.read_bytes(), path if kind == "over itself" else path.with_name("b.zip")

    def save() -> None:
        opened(path).save(target, max_size=2000 if kind == "several" else None)

    operations = 1
    while killed_at(operations, save):
        tally("kills while saving")
        operations += 1
        left = [path.with_name(name) for name in names(path) if not name.endswith(".edcache.new")]
        assert all(edcache.verify(file).problems == [] for file in left)
        if kind != "several":
            assert all(len(opened(file)) == 20 for file in left)
        for file in left:
            file.unlink()
        path.write_bytes(original)
        save()
        assert not [name for name in names(path) if name.endswith(".edcache.new")]
        for name in names(path):
            path.with_name(name).unlink()
        path.write_bytes(original)
    assert operations > 10


# ------------------------------------------------------------------------------------------------ damage


def saved_of(path: Path, ds: CachedDataset | None = None) -> CachedDataset:
    """A damaged archive, saved without what is damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartialArchiveWarning)
        ds = CachedDataset.from_cache(path, allow_partial=True) if ds is None else ds
        target = path.with_suffix(".saved")
        target.unlink(missing_ok=True)
        saved = saved_to(target, ds, skip_damaged=True)
    assert edcache.verify(target).problems == []
    return saved


@pytest.mark.parametrize("kind", thinned(["sealed", "unsealed", "zstd"], 2))
def test_a_damaged_record_is_an_error_that_names_it_or_is_left_out(path, kind):
    compression = kind if "zstd" in kind else None
    write(path, seal=kind != "unsealed", compression=compression)
    sound = path.read_bytes()
    rng = seeded(f"damaged record {kind}")
    rows = CachedDataset.from_cache(path, allow_partial=True)._archive.reader.session.index.all_rows()
    offsets = rows["offset"].tolist()
    for i in range(20):
        place = int(rows["offset"][i]) + rng.randrange(int(rows["nbytes"][i]))
        path.write_bytes(flipped(sound, place, 1 << rng.randrange(8)))
        ds = CachedDataset.from_cache(path, allow_partial=True)
        with pytest.raises(CorruptRecordError, match=rf"a\.zip: record {i} at offset {offsets[i]:,} fails"):
            ds[:20].save(path.with_name("new.zip")) if ds.complete else ds[i : i + 1].save(
                path.with_name("new.zip")
            )
        assert not path.with_name("new.zip").exists()
        saved = saved_of(path)
        assert (len(saved), saved.missing.tolist()) == (20, [i])
        assert all(same(saved[k], sample(k)) for k in range(20) if k != i)
        assert saved.labels["y"].tolist() == [k % 3 for k in range(20)]


def test_what_is_saved_without_damage_stays_as_strict_as_it_was(path):
    write(path, range(2000))
    at = next(one.fields for one in reference.entries(path) if one.fields["kind"] == reference.COLUMN)
    flip(path, at["offset"] + at["nbytes"] + 600)  # in the column
    ds = opened(path)
    for _ in range(2):
        with pytest.raises(CorruptArchiveError, match="label column"):
            opened(path).labels["y"]
        with pytest.raises(CorruptArchiveError, match="label column"):
            ds.labels["y"]
        saved = saved_of(path, ds)
        assert saved.labels["y"].tolist() == [i % 3 for i in range(2000)]


def test_one_damaged_bit_behind_the_head_costs_one_sample_at_most(path, tally):
    write_grown(path, compression="zstd")
    opened(path).add_labels("more", list(range(20)))
    sound, head = path.read_bytes(), reference.entries(path)[0].fields["next"]
    expected = opened(path).labels.table.to_pylist()
    rng = seeded("one damaged bit")
    structure = [
        e.fields["offset"] + k for e in reference.entries(path)[1:] for k in (0, 20, 60, 100, 130, 250, 500)
    ]
    rng.shuffle(structure)
    places = structure[: scaled(len(structure), 20)] + [
        rng.randrange(head, len(sound)) for _ in range(scaled(150))
    ]
    for place in places + list(range(len(sound) - scaled(60), len(sound))):
        path.write_bytes(flipped(sound, place, 1 << rng.randrange(8)))
        saved = saved_of(path)
        lost = saved.missing.tolist()
        assert len(saved) == 20, place
        assert len(lost) <= 1, place
        assert all(same(saved[i], GROWN[i]) for i in range(20) if i not in lost), place
        rows = saved.labels.table.to_pylist()
        assert all(rows[i]["y"] == expected[i]["y"] for i in range(20) if i not in lost), place
        tally("damaged bits")


def _zeroed(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data) // 4096 + 1) * 4096
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))


def _scribbled(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    length = min(rng.randrange(1, 9000), len(data) - start)
    data[start : start + length] = rng.randbytes(length)


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _end(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randrange(1, 5)):
        data[-rng.randrange(1, min(len(data), 12_000))] ^= 1 << rng.randrange(8)


DAMAGES: list[Callable[[bytearray, random.Random], None]] = [_zeroed, _scribbled, _cut, _end]


@pytest.mark.parametrize("how", DAMAGES, ids=lambda how: how.__name__[1:])
def test_whatever_is_damaged_what_is_saved_was_written(tmp_path, tally, how):
    rng = seeded(f"save damaged {how.__name__}")
    path = tmp_path / "a.zip"
    for _ in range(scaled(12)):
        model = archives.make(path, rng)
        for _ in range(5):
            data = bytearray(model.data)
            how(data, rng)
            path.write_bytes(data)
            saved = None
            with suppress(EdcacheError):
                saved = saved_of(path)
            for i in [] if saved is None else available(saved).indices.tolist():
                # The chunk with a newer record may be what is damaged.
                assert any(same(saved[i], version.sample) for version in model.versions[i])
            tally("damaged archives saved")
        path.unlink()
