"""Many archives as one dataset: batches that are gathered part by part are what the samples one by one are."""

import os
import pickle

import numpy as np
import pytest
import torch
from damage import flip
from hypothesis import given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from scale import scaled
from torch.utils.data import DataLoader, default_collate

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import ArchiveError, CorruptRecordError, StaleArchiveError
from edcache.format import ROW
from edcache.reader.group import Group


def sample(k):
    return {
        "image": torch.full((3, 4), k % 250, dtype=torch.uint8),
        "label": k,
        "name": f"n{k % 13}" * (k % 3),
    }


def write(path, numbers, make=sample, seal=True, **options):
    writer = CacheWriter(path, **{"in_memory_keys": ["label"], "chunk_size": 16} | options)
    writer.extend(map(make, numbers))
    writer.close() if seal else writer.flush()
    return path


def several(folder, count=12, size=20):
    return [write(folder / f"{k}.zip", range(k * size, (k + 1) * size)) for k in range(count)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return several(tmp_path_factory.mktemp("together"))


@pytest.fixture
def ds(paths):
    with CachedDataset.from_cache(paths) as ds:
        yield ds


@pytest.fixture
def decoded(monkeypatch):
    """The reads that decoded samples."""
    calls, samples = [], Group.samples
    monkeypatch.setattr(Group, "samples", lambda self: (calls.append(1), samples(self))[1])
    return calls


@settings(max_examples=scaled(300))
@given(st.data())
def test_a_batch_is_what_its_samples_are(paths, data):
    verify = data.draw(st.sampled_from(["touch", "never", "always"]))
    with CachedDataset.from_cache(paths[: data.draw(st.integers(2, 12))], verify=verify) as ds:
        for _ in range(3):
            indices = data.draw(st.lists(st.integers(-len(ds), len(ds) - 1), min_size=1, max_size=40))
            expected = [sample(k % len(ds)) for k in indices]
            assert same(ds.batch(indices), default_collate(expected))
            assert same(ds.__getitems__(indices), expected)
        view = ds.filter(f"label > {data.draw(st.integers(0, 30))}").shuffle(1)
        chosen = [sample(int(k)) for k in view.indices[:9]]
        assert same(view.batch(range(len(chosen))), default_collate(chosen))


def test_no_sample_of_a_batch_of_many_archives_is_decoded(ds, decoded):
    for batch in (*DataLoader(ds, 30, shuffle=True), *ds.loader(30, shuffle=True)):
        assert same(batch, default_collate([sample(int(k)) for k in batch["label"]]))
    assert decoded == []
    ds.__getitems__([0])
    assert decoded == [1]


def ragged(k):
    return {
        "image": np.full((4, 4096), k, np.uint16),  # rows that are copied one by one
        "boxes": torch.full((1 + k % 3, 2), k, dtype=torch.bfloat16),
        "ids": list(range(k % 4)),
        "flag": k % 2 == 0,
        "inner": [np.float32(k), {"n": k, "none": b"x" * (k % 2)}],
    }


@settings(max_examples=scaled(100))
@given(st.data())
def test_fields_of_any_kind_are_collated_alike_over_one_archive_and_many(tmp_path_factory, data):
    global _ragged
    if not _ragged:
        folder = tmp_path_factory.mktemp("ragged")
        several = [
            write(folder / f"{k}.zip", range(8 * k, 8 * k + 8), ragged, in_memory_keys=[]) for k in range(3)
        ]
        _ragged = write(folder / "all.zip", range(24), ragged, in_memory_keys=[]), several
    whole, several = _ragged
    indices = data.draw(st.lists(st.integers(0, 23), min_size=1, max_size=20))
    pad = edcache.collate(
        pad={"boxes": -1},
        jagged=["ids"],
        as_list=["inner.1.none"],
        max_length=data.draw(st.sampled_from([None, 2])),
    )
    with CachedDataset.from_cache(whole) as one, CachedDataset.from_cache(several) as joined:
        for read in (
            lambda ds: next(iter(DataLoader(ds, len(indices), sampler=indices, collate_fn=pad))),
            lambda ds: ds.select("image", "flag", "inner").batch(indices),
            lambda ds: ds.batch(indices),
            lambda ds: ds.select("ids", "boxes").__getitems__(indices),
            lambda ds: (
                edcache.concat([ds[:5], edcache.concat([ds[5:20], ds[20:]])]).select("image").batch(indices)
            ),
        ):
            expected, found = outcome(lambda read=read: read(one)), outcome(lambda read=read: read(joined))
            assert same(found, expected)


_ragged = ()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_them(ds, context):
    # To its end: a worker that is left amid a batch may abort, as its queue's thread tears down torch.
    batches = list(DataLoader(ds, 30, num_workers=2, multiprocessing_context=context))
    assert same(next(iter(ds.loader(30))), batches[0])
    assert [int(k) for batch in batches for k in batch["label"]] == list(range(240))
    assert same(pickle.loads(pickle.dumps(ds)).batch([3, 99]), ds.batch([3, 99]))


KINDS = {
    "compressed": {"compression": "zstd"},
    "not sealed": {"seal": False},
    "of another structure": {"make": lambda k: sample(k) | {"more": 1.5}},
    "of another dtype": {"make": lambda k: sample(k) | {"label": np.int32(k)}},
}


@pytest.mark.filterwarnings("ignore::edcache.errors.PartialArchiveWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_archives_of_several_kinds_are_read_as_one_by_one(tmp_path, kind):
    paths = [*several(tmp_path, 3), write(tmp_path / "other.zip", range(60, 80), **KINDS[kind])]
    ds = CachedDataset.from_cache(paths, allow_partial=True)
    for indices in ([1, 30, 50], [1, 30, 70], [65, 79], [79, -1, 0]):
        assert same(ds.__getitems__(indices), [ds[k] for k in indices])
        expected = outcome(lambda indices=indices: default_collate([ds[k] for k in indices]))
        found = outcome(lambda indices=indices: ds.batch(indices))
        assert same(found, expected) or found[1][1].startswith("the samples have different fields (image, ")


def test_a_transform_that_is_set_later_counts_at_once(ds):
    assert ds.batch([0, 100])["label"].tolist() == [0, 100]
    ds.parts[5].transform = lambda one: one | {"label": -1}
    assert ds.batch([0, 100])["label"].tolist() == [0, -1]
    ds.parts[5].transform = None
    assert ds.batch([0, 100])["label"].tolist() == [0, 100]
    ds.transform = lambda one: one | {"label": -2}
    assert ds.batch([0, 100])["label"].tolist() == [-2, -2]
    ds.transform = None
    ds.batch_transform = len
    assert ds.batch([0, 100]) == 3


def test_one_that_was_closed_says_so_and_the_others_are_read(ds):
    ds.batch(range(240))
    ds.parts[3].close()
    assert ds.batch([0, 100])["label"].tolist() == [0, 100]
    with pytest.raises(ArchiveError, match=r"3\.zip: closed"):
        ds.batch([0, 70])


def test_one_that_was_rewritten_is_read_from_its_new_file(tmp_path):
    paths = several(tmp_path, 3)
    ds = CachedDataset.from_cache(paths)
    before = ds.batch(range(60))
    CachedDataset.from_cache(paths[1]).save(paths[1])
    assert same(ds.batch(range(60)), before)
    ds.parts[1].refresh()
    assert same(ds.batch(range(60)), before)


@pytest.mark.parametrize("verify", ["touch", "always"])
def test_damage_is_named(tmp_path, verify):
    paths = several(tmp_path, 4)
    flip(paths[2], paths[2].read_bytes().index(bytes([47]) * 12))
    ds = CachedDataset.from_cache(paths, verify=verify)
    assert ds.batch([0, 20, 45, 70])["label"].tolist() == [0, 20, 45, 70]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"2\.zip: record 7 at offset"):
            ds.batch([0, 47])
    assert CachedDataset.from_cache(paths, verify="never").batch([0, 47])["label"].tolist() == [0, 47]


@pytest.mark.parametrize("verify", ["touch", "never"])
def test_a_row_that_points_out_of_its_file_is_not_followed(tmp_path, verify):
    paths = several(tmp_path, 2)
    place = CachedDataset.from_cache(paths[1])._archive.reader.session._root.index
    data = bytearray(paths[1].read_bytes())
    at = place.offset + 4 * ROW.itemsize
    data[at : at + 8] = (1 << 40).to_bytes(8, "little")
    paths[1].write_bytes(data)
    ds = CachedDataset.from_cache(paths, verify=verify)
    with pytest.raises(CorruptRecordError, match=r"1\.zip: record 4 at offset 1,099,511,627,776: it ends at"):
        ds.batch([3, 24])


def test_an_archive_that_is_deleted_or_replaced_is_read_on(tmp_path):
    paths = several(tmp_path, 3)
    ds = CachedDataset.from_cache(paths)
    os.unlink(paths[0])
    os.replace(write(tmp_path / "new.zip", range(20)), paths[1])
    for _ in range(40):  # as often as the kernel is asked whether a batch lies in memory
        assert ds.batch([3, 23, 59])["label"].tolist() == [3, 23, 59]
    assert ds[4]["label"] == 4
    with pytest.raises(StaleArchiveError, match=r"1\.zip: the file was replaced since it was opened"):
        ds.parts[1].refresh()
