"""Several archives opened as one: by a list, a glob or a folder."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from descriptors import needs_proc, open_files
from filled import available
from likeness import same
from range_server import serving
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.dataset.archive_paths import natural_key
from edcache.dataset.combined import Joined
from edcache.dataset.indexing import reading_of
from edcache.dataset.samplers import chunks_of
from edcache.errors import ArchiveNotFoundError, CorruptArchiveError, LabelError, OptionError
from edcache.samplers import Balanced, ChunkShuffle


def sample(i: int) -> dict[str, Any]:
    return {"x": torch.full((3,), i), "label": i % 3, "text": f"sample {i}"}


def write(path: Path, indices: range, **options: Any) -> str:
    with CacheWriter(path, **{"in_memory_keys": ["label"], "chunk_size": 4} | options) as writer:
        writer.extend(map(sample, indices))
    return str(path)


@pytest.fixture
def folder(tmp_path):
    """part-1, part-2 and part-10 with ten samples each, in the order of their numbers."""
    (tmp_path / "cache").mkdir()
    for place, number in enumerate([1, 2, 10]):
        write(tmp_path / "cache" / f"part-{number}.zip", range(10 * place, 10 * place + 10))
    return tmp_path / "cache"


def paths_of(ds: Joined) -> list[str]:
    return [part.path for part in ds.parts]


def check(ds: Joined, count: int = 30) -> None:
    assert [s["text"] for s in ds] == [f"sample {i}" for i in range(count)]
    assert ds.labels["label"].tolist() == [i % 3 for i in range(count)]


def test_a_glob_a_folder_and_a_list_open_as_one_dataset_in_the_order_of_the_numbers_in_their_names(folder):
    names = ["part-1.zip", "part-2.zip", "part-10.zip"]
    expected = [str(folder / name) for name in names]
    asked = [
        str(folder / "part-*.zip"),
        folder,
        str(folder),
        expected,
        [str(folder / "part-?.zip"), expected[2]],
    ]
    for paths in asked:
        ds = CachedDataset.from_cache(paths)
        assert (type(ds), paths_of(ds)) == (Joined, expected)
        check(ds)
        ds.close()


def test_numbers_sort_by_their_value_and_files_by_the_folders_they_are_in(tmp_path):
    ordered = ["1/z.zip", "2/a.zip", "2/b-9.zip", "2/b-010.zip", "10.zip", "b/10/a.zip", "b/a.zip", "c.zip"]
    assert sorted(ordered, key=natural_key) == ordered
    for name in ordered:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, range(1))
    (tmp_path / "c.zip.edcache.new").write_bytes(b"left by a killed replacement")
    (tmp_path / "notes.txt").write_text("not an archive")
    expected = [str(tmp_path / name) for name in ordered]
    assert paths_of(CachedDataset.from_cache(tmp_path)) == expected
    assert paths_of(CachedDataset.from_cache(f"{tmp_path}/**/*.zip*")) == expected


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    path = write(tmp_path / "part-[1].zip", range(2))
    write(tmp_path / "part-1.zip", range(3))
    assert type(CachedDataset.from_cache(path)) is CachedDataset
    assert len(CachedDataset.from_cache(path)) == 2
    assert len(CachedDataset.from_cache([path])) == 2


def test_what_names_no_archive_is_an_error_that_says_what_was_asked_for(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    cases = [
        (
            f"{folder}/other-*.zip",
            ArchiveNotFoundError,
            "other-*.zip: no file fits this glob; is its folder right?",
        ),
        (
            tmp_path / "empty",
            ArchiveNotFoundError,
            "empty: no .zip file in this folder, nor below it; archives",
        ),
        ([], OptionError, "an empty list names no archive; give the path of one at least"),
        ([folder / "gone.zip"], ArchiveNotFoundError, "gone.zip: "),
        ([folder, folder / "part-2.zip"], OptionError, "part-2.zip: named twice; edcache.concat() takes"),
    ]
    for paths, kind, text in cases:
        with pytest.raises(kind) as caught:
            CachedDataset.from_cache(paths)
        assert text in str(caught.value)
    with pytest.raises(OptionError, match=r"name='train'\) takes one root, not a list"):
        CachedDataset.from_cache([folder], name="train")
    with pytest.raises(OptionError, match=r"from_cache\(\) takes no colour. It takes allow_partial, "):
        CachedDataset.from_cache(folder, colour=1)


@needs_proc
def test_the_archive_that_cannot_be_opened_is_named_and_the_others_are_let_go(folder):
    (folder / "part-3.zip").write_bytes(b"something else" * 1000)
    with pytest.raises(CorruptArchiveError, match="part-3.zip: "):
        CachedDataset.from_cache(folder)
    assert open_files(folder) == []


def test_options_go_to_every_archive(folder):
    ds = CachedDataset.from_cache(folder, transform=lambda s: s["text"].upper(), verify="always")
    assert (ds[0], ds[29]) == ("SAMPLE 0", "SAMPLE 29")
    assert {archive._archive.reader.options.verify for archive in ds.parts} == {"always"}
    batched = CachedDataset.from_cache(folder, batch_transform=lambda b: b["x"].sum())
    assert batched.batch([0, 1, 20]) == 63


def test_a_digest_is_of_one_archive(folder):
    digest = edcache.digest(folder / "part-1.zip")
    with pytest.raises(OptionError, match="expected_digest= is of one archive; open several one by one"):
        CachedDataset.from_cache(folder, expected_digest=digest)


def test_it_is_as_concat_of_the_archives_in_samples_views_batches_and_loaders(folder):
    ds = CachedDataset.from_cache(folder)
    whole = edcache.concat([CachedDataset.from_cache(path) for path in paths_of(ds)])
    assert all(same(one, other) for one, other in zip(ds, whole, strict=True))
    assert ds.labels.table.equals(whole.labels.table)
    views = [
        lambda d: d.filter(label=1),
        lambda d: d[3:25:4],
        lambda d: d.shuffle(3),
        lambda d: d.select("x"),
    ]
    for view in views:
        assert all(same(one, other) for one, other in zip(view(ds), view(whole), strict=True))
    assert same(ds.batch([0, 29, 13]), whole.batch([0, 29, 13]))
    for loader in (
        DataLoader(ds, batch_size=7),
        ds.loader(7),
        DataLoader(ds.filter("label < 9"), batch_size=7),
    ):
        assert torch.cat([batch["x"][:, 0].clone() for batch in loader]).tolist() == list(range(30))
    assert sorted(ds[i]["text"] for i in ChunkShuffle(ds, 2)) == sorted(s["text"] for s in whole)
    assert len(list(Balanced(ds, "label"))) == len(ds)
    again = pickle.loads(pickle.dumps(ds))
    check(again)
    assert repr(ds) == "Concat(3 datasets, 30 samples)"
    assert ds.indices.tolist() == list(range(30))


def test_archives_that_are_far_away_open_at_the_same_time(folder):
    with serving((folder / "part-1.zip").read_bytes()) as served:
        urls = [served.url.replace("a.zip", f"{k}.zip") for k in range(12)]
        CachedDataset.from_cache(urls[0]).close()
        each = len(served.requests)
        served.forget()
        served.delay = 0.05
        ds = CachedDataset.from_cache(urls)
        assert (paths_of(ds), len(ds)) == (urls, 120)
        assert len(served.requests) == 12 * each
        # An archive's head and its end are asked for together.
        assert 4 <= served.most_in_flight <= 16
        served.faults.append(lambda handler, *_: handler.path.endswith(("7.zip", "9.zip")) and gone(handler))
        with pytest.raises(ArchiveNotFoundError, match=r"/7\.zip: no such object"):
            CachedDataset.from_cache(urls)


def gone(handler: Any) -> bool:
    handler.say(404, {}, b"")
    return True


def test_the_chunks_of_several_archives_are_told_apart(folder):
    ds = CachedDataset.from_cache(folder)
    found, before = chunks_of(reading_of(ds)).reshape(3, 10), -1
    for number, part in enumerate(sorted(folder.glob("*.zip"))):
        own = chunks_of(reading_of(CachedDataset.from_cache(part)))
        assert own[0] < own[-1]
        assert np.diff(found[number]).tolist() == np.diff(own).tolist()
        assert found[number].min() > before
        before = found[number].max()
    zipped = edcache.concat([edcache.zip_fields(ds.select("x"), ds.select("text"))])
    with pytest.raises(OptionError, match=r"Zipped\(.* are put together, and have no chunk of their own"):
        ChunkShuffle(zipped)


def test_labels_that_one_archive_lacks_are_null_and_types_that_clash_are_refused(folder):
    write(folder / "part-11.zip", range(30, 33), in_memory_keys=["text"])
    ds = CachedDataset.from_cache(folder)
    assert ds.labels["label"].tolist() == [i % 3 for i in range(30)] + [None] * 3
    assert ds.labels["text"].tolist() == [None] * 30 + ["sample 30", "sample 31", "sample 32"]
    write(folder / "part-12.zip", range(2), in_memory_keys={"label": "text"})
    with pytest.raises(LabelError, match='concat\\(\\): label "label" is int64 in one dataset and string'):
        CachedDataset.from_cache(folder).labels.table  # noqa: B018


def test_what_is_missing_and_what_failed_is_told_by_the_index_in_the_whole(folder, tmp_path):
    class Source:
        def __len__(self):
            return 4

        def __getitem__(self, i):
            if i == 2:
                raise ValueError("it has no image")
            return sample(i)

    CachedDataset(Source(), folder / "part-0.zip", on_error="skip", in_memory_keys=["label"])
    with CacheWriter(folder / "part-20.zip", in_memory_keys=["label"]) as writer:
        writer.write(1, sample(1))
    ds = CachedDataset.from_cache(folder, allow_partial=True)
    assert (len(ds), ds.complete, ds.missing.tolist()) == (36, False, [2, 34])
    assert [(failure.index, failure.error) for failure in ds.errors] == [(2, "ValueError")]
    assert len(available(ds)) == 34
    assert available(ds).indices.tolist() == [i for i in range(36) if i not in (2, 34)]
    assert (ds[30:].missing.tolist(), ds[:3].errors[0].index) == ([4], 2)
