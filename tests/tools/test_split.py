"""split: one archive copied into several, each valid alone, which together are the original."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from scale import scaled
from systems import killed_at
from test_merge import SEED, random_archive, sample, write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import (
    ArchiveExistsError,
    CorruptRecordError,
    LabelTypeError,
    LengthError,
    OptionError,
    UnknownLabelError,
)
from edcache.tools import SplitArchive


def expect_as_original(folder: Path, path: Path, order: list[int] | None = None) -> None:
    """The archives in a folder are sound, and together the original; order: its samples as they are there."""
    whole = CachedDataset.from_cache(path, allow_partial=True)
    parts = CachedDataset.from_cache(folder)
    order = list(range(len(whole))) if order is None else order
    assert len(parts) == len(order) == len(whole)
    missing = set(whole.missing.tolist())
    assert parts.missing.tolist() == [k for k, i in enumerate(order) if i in missing]
    assert all(same(parts[k], whole[i]) for k, i in enumerate(order) if i not in missing)
    expected = whole.labels.take(np.array(order, np.int64)).table
    assert parts.labels.table.schema == expected.schema
    assert same(parts.labels.table.to_pydict(), expected.to_pydict())
    failures = {failure.index: failure for failure in whole.errors}
    found = [(order[f.index], f.error, f.message, f.final) for f in parts.errors]
    chosen = [failures[i] for i in order if i in failures]
    assert found == [(f.index, f.error, f.message, f.final) for f in chosen]
    for archive in parts.parts:
        report = edcache.verify(archive.path)
        assert (report.problems, report.sealed, report.dead.total) == ([], True, 0)
    whole.close()
    parts.close()


@settings(max_examples=scaled(10), suppress_health_check=list(HealthCheck))
@given(SEED, st.floats(0.5, 2), st.integers(1, 12), st.sampled_from(["y", "name", "added"]))
def test_random_archives_split_into_what_together_is_the_original(tally, seed, size, parts, column):
    with tempfile.TemporaryDirectory() as name:
        path, folder = random_archive(Path(name, "a.zip"), seed), Path(name, "parts")
        ds = CachedDataset.from_cache(path, allow_partial=True)
        made = edcache.split(path, folder, parts=min(parts, len(ds)), allow_partial=True)
        assert {piece.length - len(ds) // len(made) for piece in made} <= {0, 1}
        expect_as_original(folder, path)
        tally("archives made by splitting", len(made))
        shutil.rmtree(folder)
        most = int(size * path.stat().st_size)
        if (made := split_by_size(path, folder, most)) is not None:
            assert all(os.path.getsize(piece.path) == piece.nbytes <= most for piece in made)
            expect_as_original(folder, path)
            tally("archives made by splitting", len(made))
            shutil.rmtree(folder)
        if column in ds.labels:
            groups: dict[Any, list[int]] = {}
            for i, value in enumerate(ds.labels.to_list(column)):
                groups.setdefault(value, []).append(i)
            made = edcache.split(path, folder, by=column, allow_partial=True)
            assert [piece.value for piece in made] == list(groups)
            expect_as_original(folder, path, [i for group in groups.values() for i in group])
            tally("archives made by splitting", len(made))
        ds.close()


def split_by_size(path: Path, folder: Path, most: int) -> list[SplitArchive] | None:
    """What was made; None where a sample's part may exceed the size."""
    made, error = outcome(lambda: edcache.split(path, folder, max_size=most, allow_partial=True))
    if error is None:
        return made
    kind, text = error
    assert kind is OptionError
    assert "takes an archive of up to" in text
    assert not folder.exists()
    return None


@pytest.mark.full
def test_large_archives_are_cut_near_their_size_and_never_over_it(tmp_path):
    rng = np.random.default_rng(3)
    for kind in (None, "zstd+dict"):
        path = tmp_path / f"{kind}.zip"
        with CacheWriter(path, in_memory_keys=["name", "y"], compression=kind) as w:
            for i in range(1500):
                x = rng.integers(0, 99, rng.integers(1, 9000), np.uint8)
                w.append({"x": x, "name": "n" * int(rng.integers(1, 40)), "y": i})
        for size in ("1MB", 2_500_000):
            folder = tmp_path / f"{kind} {size}"
            most = {"1MB": 1_000_000}.get(size, size)
            made = edcache.split(path, folder, max_size=size)
            assert all(0.94 * most < piece.nbytes <= most for piece in made[:-1])
            expect_as_original(folder, path)


def test_names_are_those_of_the_archive_with_a_number_and_the_value_behind(tmp_path):
    values = ["a/b", None, "ü x" * 40]
    path = write(tmp_path / "train.zip", in_memory_keys={"y": lambda s: values[s["y"]]})
    made = edcache.split(path, tmp_path / "parts", parts=3)
    assert sorted(os.listdir(tmp_path / "parts")) == [f"train-0000{k}.zip" for k in range(3)]
    assert [piece.path for piece in made] == [
        str(tmp_path / "parts" / f"train-0000{k}.zip") for k in range(3)
    ]
    assert [(p.samples, p.length, p.value) for p in made] == [(3, 3, None), (3, 3, None), (4, 4, None)]
    edcache.split(path, tmp_path / "values", by="y")
    names = sorted(os.listdir(tmp_path / "values"))
    assert names[:2] == ["train-00000-a_b.zip", "train-00001-none.zip"]
    assert names[2:] == [f"train-00002-{('_x' * 40)[:60]}.zip"]
    numbers = write(tmp_path / "numbers.zip", in_memory_keys={"y": lambda s: s["y"]})
    values = [piece.value for piece in edcache.split(numbers, tmp_path / "numbers", by="y")]
    assert (values, {type(value) for value in values}) == ([0, 1, 2], {int})
    assert "numbers-00001-1.zip" in os.listdir(tmp_path / "numbers")


def test_a_part_is_an_archive_of_its_own(tmp_path):
    path = write(tmp_path / "a.zip", range(10))
    edcache.split(path, tmp_path / "parts", parts=2)
    one, other = sorted((tmp_path / "parts").iterdir())
    heads = [CachedDataset.from_cache(p)._reader.head for p in (path, one, other)]
    assert len({head.uuid for head in heads}) == 3
    assert [(head.length, head.fingerprint, head.labels) for head in heads[1:]] == [
        (5, None, (("y", "y"),))
    ] * 2
    with CacheWriter(other, "a") as w:
        w.append(sample(10))
    edcache.merge([one, other], tmp_path / "again.zip")
    assert [int(s["x"][0]) for s in CachedDataset.from_cache(tmp_path / "again.zip")] == list(range(11))


def refused(path: Path, folder: Path, kind: type[Exception], text: str, **asked: Any) -> None:
    with pytest.raises(kind) as caught:
        edcache.split(path, folder, **asked)
    assert text in str(caught.value)
    assert not folder.exists() or not os.listdir(folder)


def test_what_cannot_be_split_so_is_refused_and_leaves_nothing(tmp_path):
    path, folder = write(tmp_path / "a.zip"), tmp_path / "parts"
    one_of = 'split() takes one of max_size="2GB", parts=10 and by="label"'
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (OptionError, one_of, {}),
        (OptionError, one_of, {"parts": 2, "by": "y"}),
        (OptionError, "split(): parts=0; give 1 or more", {"parts": 0}),
        (OptionError, "split(): parts=11, the archive has 10 samples; ask for fewer", {"parts": 11}),
        (
            OptionError,
            "split(): max_size='2 pears'; give bytes, or text such as \"2GB\"",
            {"max_size": "2 pears"},
        ),
        (OptionError, "split(): max_size=0; give bytes, or text such as", {"max_size": 0}),
        (OptionError, "split(): sample 0 alone takes an archive of up to ", {"max_size": "2kB"}),
        (UnknownLabelError, 'no label "z"; this archive has: y', {"by": "z"}),
    ]
    for kind, text, asked in cases:
        refused(path, folder, kind, text, **asked)
    lists = write(tmp_path / "lists.zip", in_memory_keys={"y": lambda s: [s["y"]]})
    refused(
        lists, folder, LabelTypeError, 'label "y" is list<item: int64>; split() needs a column of', by="y"
    )
    empty = tmp_path / "empty.zip"
    CacheWriter(empty).close()
    refused(empty, folder, OptionError, "split(): no sample at all takes an archive of up to", max_size=99)
    far = tmp_path / "far.zip"
    with CacheWriter(far, in_memory_keys=["y"]) as w:
        w.write(1 << 40, sample(1))
    refused(far, folder, LengthError, "far.zip: 1,099,511,627,777 samples would take", by="y")
    assert [piece.length for piece in edcache.split(far, tmp_path / "far", parts=2)] == [
        1 << 39,
        (1 << 39) + 1,
    ]
    assert [piece.length for piece in edcache.split(empty, tmp_path / "none", parts=1)] == [0]


def test_a_split_that_fails_takes_back_what_it_made(tmp_path):
    path, folder = write(tmp_path / "a.zip"), tmp_path / "parts"
    records = CachedDataset.from_cache(path)._reader.records
    data = bytearray(path.read_bytes())
    data[int(records.offset[9])] ^= 1
    path.write_bytes(data)
    text = f'a.zip: record 9 at offset {records.offset[9]:,} fails its crc32; run "edcache repair'
    refused(path, folder, CorruptRecordError, text, parts=5)
    (folder / "a-00003.zip").write_text("in the way")
    with pytest.raises(ArchiveExistsError, match="a-00003.zip: exists already; give a path where nothing is"):
        edcache.split(path, folder, parts=5)
    assert os.listdir(folder) == ["a-00003.zip"]


def test_a_split_that_is_killed_leaves_whole_archives_alone(tmp_path, tally):
    path = write(tmp_path / "a.zip")
    rng = random.Random(2)
    for count in sorted(rng.sample(range(1, 40), 8)):
        folder = tmp_path / f"parts {count}"
        was_killed = killed_at(count, lambda folder=folder: edcache.split(path, folder, parts=3))
        names = sorted(os.listdir(folder)) if folder.exists() else []
        whole = [name for name in names if name.endswith(".zip")]
        assert whole == [f"a-0000{k}.zip" for k in range(len(whole))]
        assert set(names) - set(whole) <= {f"a-0000{len(whole)}.zip.edcache.new"}
        for name in whole:
            assert edcache.verify(folder / name).sound
        tally("killed splits", was_killed)


def test_progress_counts_all_records(tmp_path):
    path, told = write(tmp_path / "a.zip", range(100)), []
    edcache.split(
        path, tmp_path / "parts", parts=4, on_progress=lambda done, total: told.append((done, total))
    )
    nbytes = int(CachedDataset.from_cache(path)._reader.records.nbytes.sum())
    assert (told[0], told[-1]) == ((0, nbytes), (nbytes, nbytes))
