"""Another archive is copied over an open one, as by `cp`, while something is read of it: never a value of the other.

The copy comes at the worst moments: behind every check before a read, and amid a batch.
"""

import os
import re
import threading

import numpy as np
import pytest
import torch
from scale import scaled
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.dataset.keys import record_versions
from edcache.errors import CorruptArchiveError, StaleArchiveError
from edcache.format import KeyTable
from edcache.reader import collation
from edcache.reader.group import Lattice
from edcache.reader.index import Extents, RecordIndex
from edcache.writer import Appender

COUNT = 120
KINDS = {
    "plain": {},
    "ragged": {},
    "of two structures": {},
    "compressed": {"compression": "zstd"},
}


def sample(k, kind="plain"):
    one = {"x": torch.full((300,), k), "y": k, "text": f"{k:06}", "key": f"k{k % 1000}"}
    if kind == "ragged":
        return one | {"r": torch.full((3 + k % 5,), k)}
    return one | {"more": k} if kind == "of two structures" and k % 2 else one


def write(path, first, kind="plain"):
    with CacheWriter(path, in_memory_keys=["y", "key"], **KINDS[kind]) as writer:
        writer.extend(sample(k + first, kind) for k in range(COUNT))
    return path


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """An archive, and another one with the same places whose values are 1000 more: bytes of both."""
    folder = tmp_path_factory.mktemp("pair")
    return [write(folder / f"{first}.zip", first, request.param).read_bytes() for first in (0, 1000)]


@pytest.fixture(scope="module")
def rest(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rest") / "rest.zip", 5000)


def copy_over(path, data):
    """Write from the first byte to the last, without cutting the file: who has it mapped would get a SIGBUS."""
    file = os.open(path, os.O_WRONLY)
    for at in range(0, len(data), 1 << 16):
        os.pwrite(file, data[at : at + (1 << 16)], at)
    os.close(file)


@pytest.fixture
def before(monkeypatch):
    """`before(owner, name, act)`: do something once, before the next call of a function."""

    def set_up(owner, name, act, calls=1):
        function, left = getattr(owner, name), [calls]

        def call(*arguments, **keywords):
            left[0] -= 1
            if not left[0]:
                act()
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, call)

    return set_up


# How a sample is looked up, and what is read by it.
READS = {
    "a sample": ("row", lambda ds: ds[3]),
    "a field": ("row", lambda ds: ds.select("x")[3]),
    "a batch": ("", lambda ds: ds.batch([3, 4, 5])),
    "a batch of a view": ("", lambda ds: ds[::-1].batch(range(len(ds)))),
    "a batch of some fields": ("", lambda ds: ds.select("y", "text").batch([3, 4, 5])),
    "samples": ("", lambda ds: ds.__getitems__([3, 4, 5])),
    "a padded batch": (
        "",
        lambda ds: next(iter(DataLoader(ds, 5, collate_fn=edcache.collate(pad={"x": 0}, as_list=["text"])))),
    ),
    "a DataLoader": ("", lambda ds: list(DataLoader(ds, 7))),
    "a loader": ("", lambda ds: list(ds.loader(7))),
    "a transform": ("", lambda ds: ds.with_transform(lambda one: one).batch([3, 4])),
}


@pytest.mark.parametrize("is_joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize("verify", ["touch", "always", "never"])
@pytest.mark.parametrize("read", READS)
def test_a_read_that_it_comes_amid_is_stale(tmp_path, pair, rest, before, read, verify, is_joined):
    path = tmp_path / "a.zip"
    path.write_bytes(pair[0])
    with CachedDataset.from_cache([path, rest] if is_joined else path, verify=verify) as ds:
        ds.__getitems__(list(range(COUNT)))
        of_one, function = READS[read]
        is_one = bool(of_one) and not is_joined
        look_ups = ["row"] if is_one else ["offsets", "rows"]
        done = []

        def act():
            done or copy_over(path, pair[1])
            done.append(1)

        for name in look_ups:
            before(RecordIndex, name, act)
        if is_joined and of_one:
            before(RecordIndex, "row", act)
        told = f"{path}: another archive was written over it while it was open; open it again"
        with pytest.raises(StaleArchiveError, match=re.escape(told)):
            function(ds)
        assert done


def test_a_batch_that_it_comes_amid_mixes_no_archives(tmp_path, before, monkeypatch):
    path, other = write(tmp_path / "a.zip", 0), write(tmp_path / "b.zip", 1000)
    data = other.read_bytes()
    for owner, name, read in (
        (collation, "copy_rows", lambda ds: ds.batch(range(9))),
        (Lattice, "window", lambda ds: edcache.concat([ds[:5], ds[50:60]]).batch(range(9))),
        (Lattice, "window", lambda ds: ds.batch(range(9))),
    ):
        write(path, 0) if not path.exists() else path.unlink() or write(path, 0)
        with CachedDataset.from_cache(path) as ds, monkeypatch.context():
            ds.batch(range(COUNT))
            before(owner, name, lambda: copy_over(path, data), calls=2)
            with pytest.raises(StaleArchiveError):
                read(ds)


def test_numpy_s_batches_are_stale(tmp_path, pair, before):
    path = tmp_path / "a.zip"
    path.write_bytes(pair[0])
    with edcache.numpy.open(path) as arrays:
        [arrays[k] for k in range(COUNT)]
        for name in ("offsets", "rows"):
            before(RecordIndex, name, lambda: copy_over(path, pair[1]))
        with pytest.raises(StaleArchiveError):
            arrays.batch([4, 6])


@pytest.mark.parametrize("is_joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize("happens", ["overwritten", "emptied"])
def test_labels_that_were_read_stay_as_they_were(tmp_path, happens, is_joined):
    data = write(tmp_path / "b.zip", 1000).read_bytes()
    path = write(tmp_path / "a.zip", 0)
    with CachedDataset.from_cache(path) as one:
        ds = edcache.concat([one]) if is_joined else one
        held, table = ds.labels["y"], ds.labels.table
        before = uses_of_labels(ds), held.tolist(), table.to_pydict()
        if happens == "emptied":  # a mapping would be a SIGBUS
            os.truncate(path, 0)
        else:
            copy_over(path, data)
        assert (uses_of_labels(ds), held.tolist(), table.to_pydict()) == before


def uses_of_labels(ds):
    return [
        ds.filter(y=3).indices.tolist(),
        ds.filter("y < 1000").indices.tolist(),
        ds.filter(y=lambda y: y < 1000).indices.tolist(),
        ds.labels["key"].tolist(),
        ds[::2].labels["y"].tolist(),
        ds[::2].labels.table.to_pydict(),
        ds.labels.to_list("y"),
        ds.labels.counts("y"),
        ds.labels.unique("y").tolist(),
        str(ds.labels.describe()),
        ds.sort_by("y", descending=True).indices.tolist(),
        ds.oversample("y").indices.tolist(),
        [part.indices.tolist() for part in ds.split(0.5, 0.5, group="y")],
    ]


@pytest.mark.parametrize("is_joined", [False, True], ids=["alone", "joined"])
def test_labels_that_were_not_read_are_stale(tmp_path, before, is_joined):
    data = write(tmp_path / "b.zip", 1000).read_bytes()
    for happens in ("before", "amid"):
        path = write(tmp_path / f"{happens}.zip", 0)
        with CachedDataset.from_cache(path) as one:
            ds = edcache.concat([one]) if is_joined else one
            if happens == "amid":
                before(Extents, "read_many", lambda path=path: copy_over(path, data))
            else:
                copy_over(path, data)
            with pytest.raises((StaleArchiveError, CorruptArchiveError)):
                ds.filter(y=3)


def test_keys_versions_and_missing_samples_are_of_one_archive(tmp_path, before):
    data = write(tmp_path / "b.zip", 1000).read_bytes()
    for k, (owner, name, use) in enumerate(
        [
            (KeyTable, "find", lambda ds: ds.indices_of(["k3"])),
            (KeyTable, "find", lambda ds: "k3" in ds.keys),
            (RecordIndex, "row", lambda ds: ds.by_key("k3")),
            (RecordIndex, "missing", lambda ds: ds.missing),
            (RecordIndex, "unbound_rows", lambda ds: record_versions(ds, ["y"])),
        ]
    ):
        path = write(tmp_path / f"{k}.zip", 0)
        with CachedDataset.from_cache(path) as ds:
            assert ds.by_key("k3")["y"] == 3
            before(owner, name, lambda path=path: copy_over(path, data))
            with pytest.raises(StaleArchiveError):
                use(ds)


@pytest.mark.parametrize("calls", [1, 2])
def test_a_save_that_it_comes_amid_writes_no_file(tmp_path, pair, before, calls):
    path, target = tmp_path / "a.zip", tmp_path / "saved.zip"
    path.write_bytes(pair[0])
    owner, name = ((RecordIndex, "unbound_rows"), (Appender, "append"))[calls - 1]
    with CachedDataset.from_cache(path) as ds:
        before(owner, name, lambda: copy_over(path, pair[1]))
        with pytest.raises(StaleArchiveError):
            ds.save(target)
    assert not target.exists()


def test_batches_and_labels_beside_a_copy_are_of_one_archive(tmp_path):
    """At random moments: a thread copies while this one reads."""
    old, new = write(tmp_path / "old.zip", 0).read_bytes(), write(tmp_path / "new.zip", 1000).read_bytes()
    rng = np.random.default_rng(0)
    for k in range(scaled(1000)):
        path = tmp_path / f"{k}.zip"
        path.write_bytes(old)
        with CachedDataset.from_cache(path) as ds:
            ds.batch(range(COUNT)), ds.filter(y=3)
            copier = threading.Thread(target=copy_over, args=(path, new))
            copier.start()
            with pytest.raises(StaleArchiveError):
                while True:
                    assert ds.batch(rng.permutation(COUNT))["y"].max() < 1000
                    assert ds.filter("y >= 1000").indices.tolist() == []
                    assert ds[3]["y"] == 3
            copier.join()
        path.unlink()
