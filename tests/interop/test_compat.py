"""Old scripts run with one import changed, over old caches and new ones."""

import pickle
import subprocess
import sys
import textwrap

import fsspec
import object_servers
import pytest
import torch
from likeness import same
from old_caches import edflow_samples, edflow_zip, with_index
from torch.utils.data import ConcatDataset, TensorDataset

import edcache
from edcache import View, import_cache
from edcache.compat import edflow, torch_xla
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    OptionError,
    PartialArchiveWarning,
    StaleCacheError,
)
from edcache.reader import Reader

EDFLOW_SCRIPT = """
    import os
    import numpy as np
    from torch.utils.data import DataLoader
    from {module} import CachedDataset, PathCachedDataset, cachable

    class Digits:
        root, name, in_memory_keys = os.getcwd(), "digits", ["label"]

        def __len__(self):
            return 20

        def __getitem__(self, i):
            with open("computed.txt", "a") as log:
                log.write("x")
            return {{"image": np.full((2, 2), i, np.float32), "label": i % 3}}

    def make():
        return Digits()

    if __name__ == "__main__":
        dataset = CachedDataset(Digits(), force_cache=True)
        assert len(dataset) == 20 and dataset.root == os.getcwd()
        assert dataset.store_path == os.path.join(os.getcwd(), "cached", "digits.zip")
        example = dataset[7]
        assert example["image"].dtype == np.float32 and example["index_"] == 7
        assert type(example["index_"]) is np.int64
        assert dataset.get_example(3)["label"] == 0
        labels = dataset.labels
        assert [labels["label"][i] for i in range(20)] == [i % 3 for i in range(20)]
        again = CachedDataset.from_cache(os.getcwd(), "digits")
        assert [example["index_"] for example in again] == list(range(20))
        batches = [b["image"].shape for b in DataLoader(dataset, batch_size=10, num_workers=1)]
        assert batches == [(10, 2, 2)] * 2
        PathCachedDataset(Digits(), "by_path.zip")
        assert PathCachedDataset(None, "by_path.zip")[19]["label"] == 1

        @cachable("decorated.zip")
        def decorated(split):
            return Digits()

        assert decorated("train")[4]["label"] == 1
        assert len(open("computed.txt").read()) == 60
        decorated("train")
        assert len(open("computed.txt").read()) == 60
        print("done")
"""

# What the notebook of torch_xla does, at the size of a test.
XLA_SCRIPT = """
    import os
    import torch
    from {module} import CachedDataset

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, i):
            with open("computed.txt", "a") as log:
                log.write("x")
            return torch.full((3, 4, 4), i / 30), i % 10

    path = os.path.join(os.getcwd(), "cached-images")
    train_dataset = CachedDataset(Images(), path, max_files_per_folder=7, compress=True)
    train_dataset.warmup()
    stand_alone = CachedDataset(None, path)
    assert len(stand_alone) == 30
    loader = torch.utils.data.DataLoader(stand_alone, batch_size=10, shuffle=True, num_workers=1)
    assert sum(len(target) for data, target in loader) == 30
    assert stand_alone[3][0].equal(torch.full((3, 4, 4), 3 / 30)) and stand_alone[3][1] == 3
    assert len(open("computed.txt").read()) == 30
    print("done")
"""


# It counts what fills compute, and an old script cannot say spot_check=False.
UNCHECKED = """
import runpy
import edcache.writer.recheck
edcache.writer.recheck._as_a_fill_does = lambda *arguments: None
runpy.run_path("script.py", run_name="__main__")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "module"),
    [(EDFLOW_SCRIPT, "edcache.compat.edflow"), (XLA_SCRIPT, "edcache.compat.torch_xla")],
    ids=["edflow", "torch_xla"],
)
def test_an_old_script_runs_with_one_import_changed(tmp_path, script, module):
    (tmp_path / "script.py").write_text(textwrap.dedent(script.format(module=module)))
    done = subprocess.run([sys.executable, "-c", UNCHECKED], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), done.stderr


# -------------------------------------------------------------------------------------------- edflow


class Source:
    """A dataset as edflow's are, which notes what it computes."""

    in_memory_keys = ("label",)

    def __init__(self, root, name="toy", count=11):
        self.root, self.name = str(root), name
        self.samples = edflow_samples(count)
        self.computed = []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        self.computed.append(i)
        return self.samples[i]


def test_without_force_cache_samples_are_computed_when_they_are_asked_for(tmp_path):
    source = Source(tmp_path)
    ds = edflow.CachedDataset(source, spot_check=False)
    assert source.computed == []
    assert same(ds[4], with_index(source.samples[4], 4))
    ds[4]
    assert source.computed == [4]
    ds.cache_dataset()
    assert sorted(source.computed) == list(range(11))
    assert ds.complete
    assert len(pickle.loads(pickle.dumps(ds))) == 11
    with pytest.raises(IndexError):
        ds[11]
    assert isinstance(ds[2:4], View)
    assert edflow.CachedDataset(
        source, force_cache=True, keep_existing=False, chunk_size=3, spot_check=False
    ).complete
    assert len(source.computed) == 22


def test_the_chunk_size_is_the_fifth_argument(tmp_path):
    by_position = edflow.CachedDataset(Source(tmp_path / "a"), True, True, True, 4)
    by_name = edflow.CachedDataset(Source(tmp_path / "b"), True, chunk_size=4)
    of_default = edflow.CachedDataset(Source(tmp_path / "c"), True)
    assert [Reader(ds.path).session.chunks for ds in (by_position, by_name, of_default)] == [3, 3, 1]


def test_the_decorator_compares_arguments_and_takes_them_into_the_path(tmp_path):
    @edflow.cachable(tmp_path / "c.zip")
    def made(count):
        return Source(tmp_path, count=count)

    assert len(made(3)) == 3
    with pytest.raises(StaleCacheError, match="argument count: 3 in the archive, 4 now"):
        made(4)

    @edflow.cachable(str(tmp_path / "c-{count}.zip"), in_memory_keys=["label", "name"])
    def other(count):
        return Source(tmp_path, count=count)

    assert (len(other(3)), len(other(4))) == (3, 4)
    assert list(other(4).labels) == ["label", "name"]


def test_a_path_has_the_cache_of_a_dataset(tmp_path):
    source = Source(tmp_path)
    path = tmp_path / "p.zip"
    with pytest.raises(ArchiveNotFoundError):
        edflow.PathCachedDataset(None, path)
    ds = edflow.PathCachedDataset(source, path, chunk_size=3)
    assert list(ds.labels) == ["label"]
    assert len(edflow.PathCachedDataset(None, path)) == 11
    with pytest.raises(
        StaleCacheError, match="attribute samples: .* in the archive, absent now|is another one now"
    ):
        edflow.PathCachedDataset([{}] * 11, path)


def test_an_old_zip_at_the_place_of_the_archive_names_the_import(tmp_path):
    (tmp_path / "cached").mkdir()
    edflow_zip(tmp_path / "cached" / "toy.zip", edflow_samples(3), ["label"])
    with pytest.raises(
        CorruptArchiveError, match=r'"edcache import .*toy.zip -o NEW --from edflow" reads it'
    ):
        edflow.CachedDataset.from_cache(str(tmp_path), "toy")


def test_a_cache_of_a_killed_run_is_finished_by_the_call_with_the_dataset(tmp_path):
    old, path, source = tmp_path / "old.zip", tmp_path / "new.zip", Source(tmp_path)
    edflow_zip(old, [source[k] for k in range(7)], ["label"], labels=0, skip=(3,))
    import_cache(old, path, "edflow", in_memory_keys=["label"], progress=False)
    ds = edflow.PathCachedDataset(source, path, progress=False)
    assert ds.complete
    assert ds.labels["label"].tolist() == [source[k]["label"] for k in range(11)]


def test_a_dataset_of_edflow_has_a_root_and_a_name():
    with pytest.raises(OptionError, match="the source has no attributes `root` and `name`"):
        edflow.CachedDataset([{}])


def test_sums_and_multiples_keep_labels_and_what_is_not_there_is_not_silent(tmp_path):
    ds = edflow.CachedDataset(Source(tmp_path), force_cache=True)
    labels = ds.labels["label"].tolist()
    assert len((ds + ds + ds[:3]).labels["label"]) == 25
    for whole in (ds + ds, 2 * ds, ds * 2):
        assert whole.labels["label"].tolist() == labels * 2
        assert same(whole[12], ds[1])
    assert type(ds + TensorDataset(torch.ones(1))) is ConcatDataset
    for name in ("append_labels", "expand", "labels"):
        with pytest.raises(AttributeError):
            setattr(ds, name, {})
    assert (ds.append_labels, ds.expand) == (False, False)


# ----------------------------------------------------------------------------------------- torch_xla


@pytest.mark.parametrize("source", [None, [1, 2]], ids=["none", "a dataset"])
def test_an_old_folder_of_torch_xla_is_not_computed_again_in_silence(tmp_path, source):
    (tmp_path / "old").mkdir()
    torch.save(1, tmp_path / "old" / "0.pt")
    (tmp_path / "old" / "METADATA").write_text('{"count": 1, "compress": true, "max_files_per_folder": 1000}')
    with pytest.raises(OptionError, match="import it with .*old.zip --from torch_xla") as caught:
        torch_xla.CachedDataset(source, tmp_path / "old")
    assert caught.value.option == "path"
    import_cache(tmp_path / "old", tmp_path / "old.zip", "torch_xla", progress=False)
    assert torch_xla.CachedDataset(None, tmp_path / "old")[0] == 1


def test_torch_xla_computes_what_is_asked_for(tmp_path):
    computed = []

    class Images:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            computed.append(i)
            return None if i == 2 else (torch.ones(2) * i, i)

    path = tmp_path / "cache"
    ds = torch_xla.CachedDataset(Images(), path, spot_check=False)
    assert ds[-1][1] == 4
    assert ds[2] is None
    ds[2]
    assert computed == [4, 2]
    with pytest.warns(PartialArchiveWarning), pytest.raises(RuntimeError, match="no record yet"):
        torch_xla.CachedDataset(None, str(path))[0]
    ds.warmup(progress=False)
    assert sorted(computed) == [0, 1, 2, 3, 4]
    assert ds.path == f"{path}.zip"
    assert len(torch_xla.CachedDataset(None, f"{path}.zip")) == 5
    assert torch_xla.CachedDataset(Images(), tmp_path / "now", lazy=False).complete


def test_behind_a_url_everything_is_computed_at_once(tmp_path):
    samples = [(torch.full((3,), i), i) for i in range(9)]
    with object_servers.gs(tmp_path) as options:
        for _ in range(2):
            ds = torch_xla.CachedDataset(samples, "gs://bucket/folder", storage_options=options)
            assert same(list(ds), samples)
            assert ds.complete
        lazy = edcache.CachedDataset(samples, ds.path, lazy=True, storage_options=options)
        assert same(list(lazy), samples)
        with pytest.raises(OptionError, match="lazy=True fills a file; for a URL all is filled at once"):
            edcache.CachedDataset(samples, "gs://bucket/b.zip", lazy=True, storage_options=options)


def test_a_url_is_opened_where_the_new_archive_lies(tmp_path):
    """An archive that was uploaded beside the old folder, under its name and the ending."""
    samples = [(torch.full((3,), i), i) for i in range(9)]
    edcache.CachedDataset(samples, tmp_path / "folder.zip")
    with object_servers.gs(tmp_path) as options:
        system = fsspec.filesystem("gs", **options)
        system.pipe_file("bucket/folder.zip", (tmp_path / "folder.zip").read_bytes())
        ds = torch_xla.CachedDataset(None, "gs://bucket/folder/", storage_options=options)
        assert same(list(ds), samples)
        with pytest.raises(ArchiveNotFoundError, match=r"gs://bucket/other\.zip"):
            torch_xla.CachedDataset(None, "gs://bucket/other", storage_options=options)


# ----------------------------------------------------------------------------------------- KappaData


class Items:
    """A KDDataset: in place of [index] it has a method for each item."""

    def __init__(self, classes):
        self.classes = classes

    def __len__(self):
        return len(self.classes)

    def getitem_x(self, idx, ctx=None):
        ctx["offset"] = 10  # items of a sample may share what they draw
        return torch.full((2,), idx)

    def getitem_y(self, idx, ctx=None):
        return idx + ctx["offset"]

    def getitem_class(self, idx, ctx=None):
        return self.classes[idx]


class Wrapped(Items):
    """What KappaData's own base class has: [index], which raises."""

    def __getitem__(self, idx):
        raise RuntimeError("use a ModeWrapper")

    __getitem__.__module__ = "kappadata.datasets.kd_dataset"


@pytest.mark.parametrize("kind", [Items, Wrapped])
def test_a_dataset_of_items_is_cached_by_its_items(tmp_path, kind):
    ds = edcache.CachedDataset(kind([2, 0, 1]), tmp_path / "k.zip", in_memory_keys=["class"], progress=False)
    assert same(ds[1], {"index": 1, "class": 0, "x": torch.full((2,), 1), "y": 11, "ctx": {"offset": 10}})
    assert ds.select("x", "y", "index", as_tuple=True)[-1][1:] == (12, 2)
    assert ds.labels["class"].tolist() == [2, 0, 1]
    assert edcache.CachedDataset(kind([2, 0, 1]), tmp_path / "k.zip").complete
    with pytest.raises(StaleCacheError):
        edcache.CachedDataset(kind([2, 0, 2]), tmp_path / "k.zip")


class ModeWrapper(Wrapped):
    """KappaData's wrapper, which finds the methods of its dataset."""

    def __init__(self, dataset, mode, return_ctx=False):
        self.dataset, self.mode, self.return_ctx = dataset, mode, return_ctx
        self.root_dataset = dataset

    def __len__(self):
        return len(self.dataset)


@pytest.mark.parametrize("returns", [True, False])
def test_the_context_of_a_sample_is_kept_with_return_ctx(tmp_path, returns):
    source = ModeWrapper(Items([2, 0, 1]), "x y", return_ctx=returns)
    source.classes = source.dataset.classes
    ds = edcache.CachedDataset(source, tmp_path / "k.zip", progress=False)
    assert ("ctx" in ds[1]) == returns
    assert ds.select("x", "y", as_tuple=True)[1][1] == 11
    if returns:
        assert ds.select("class", "ctx.offset", as_tuple=True)[2] == (1, 10)


class Plain(Items):
    """Items that share nothing."""

    def getitem_x(self, idx, ctx=None):
        return torch.full((2,), idx)

    def getitem_y(self, idx, ctx=None):
        return idx


def test_a_context_in_which_nothing_was_put_is_no_field(tmp_path):
    ds = edcache.CachedDataset(Plain([2, 0, 1]), tmp_path / "k.zip", progress=False)
    assert sorted(ds[1]) == ["class", "index", "x", "y"]
