"""Old scripts run with one import changed, over old caches and new ones."""

import logging
import pickle
import re
import subprocess
import sys
import textwrap

import fsspec
import numpy as np
import object_servers
import old_caches
import pytest
import torch
from likeness import same
from old_caches import edflow_samples, edflow_zip, with_index, xla_folder
from torch.utils.data import DataLoader

import edcache
from edcache import View
from edcache.compat import edflow, torch_xla
from edcache.errors import (
    ArchiveNotFoundError,
    CodecError,
    MissingSampleError,
    OptionError,
    PartialArchiveWarning,
    SampleIndexError,
    SourceError,
    StaleCacheError,
)

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


@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "module"),
    [(EDFLOW_SCRIPT, "edcache.compat.edflow"), (XLA_SCRIPT, "edcache.compat.torch_xla")],
    ids=["edflow", "torch_xla"],
)
def test_an_old_script_runs_with_one_import_changed(tmp_path, script, module):
    (tmp_path / "script.py").write_text(textwrap.dedent(script.format(module=module)))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
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
    ds = edflow.CachedDataset(source)
    assert ds.base_dataset is source
    assert source.computed == []
    assert same(ds[4], with_index(source.samples[4], 4))
    ds[4]
    assert source.computed == [4]
    ds.cache_dataset()
    assert sorted(source.computed) == list(range(11))
    assert ds.complete
    assert pickle.loads(pickle.dumps(ds)).base_dataset is None
    with pytest.raises(IndexError):
        ds[11]
    assert isinstance(ds[2:4], View)
    assert edflow.CachedDataset(source, force_cache=True, keep_existing=False, chunk_size=3).complete
    assert len(source.computed) == 22


def test_an_old_zip_in_the_place_is_taken_over_once_and_stays(tmp_path, caplog):
    source = Source(tmp_path)
    old = edflow_zip(tmp_path / "cached" / "toy.zip", source.samples, ["label"])
    before = old.read_bytes()
    with caplog.at_level(logging.WARNING):
        ds = edflow.CachedDataset(source, force_cache=True)
    assert caplog.messages == [f"{old}: its 11 samples are in {tmp_path}/cached/toy.edcache.zip now"]
    assert ds.path == str(tmp_path / "cached" / "toy.edcache.zip")
    assert all(same(ds[i], with_index(sample, i)) for i, sample in enumerate(source.samples))
    assert ds.labels["label"].tolist() == [i % 3 for i in range(11)]
    assert source.computed == []
    caplog.clear()
    opened = edflow.CachedDataset.from_cache(str(tmp_path), "toy")
    assert opened[3]["index_"] == 3
    assert caplog.messages == []
    assert old.read_bytes() == before


@pytest.mark.parametrize("kind", ["zip", "folder"])
def test_an_old_cache_without_the_ending_is_taken_over(tmp_path, kind):
    source = Source(tmp_path)
    old = edflow_zip(tmp_path / "cached" / "toy.zip", source.samples, ["label"])
    if kind == "folder":
        old_caches.unpacked(old, old.with_suffix(""))
        old.unlink()
    else:
        old.rename(old.with_suffix(""))
    ds = edflow.CachedDataset.from_cache(tmp_path, "toy")
    assert ds.path == str(tmp_path / "cached" / "toy.zip")
    assert same(ds[10], with_index(source.samples[10], 10))


def test_what_an_old_zip_lacks_is_computed(tmp_path, caplog):
    source = Source(tmp_path)
    old = edflow_zip(tmp_path / "cached" / "toy.zip", source.samples, labels=0, skip=(2, 5))
    old_caches.killed(old)
    with caplog.at_level(logging.WARNING):
        ds = edflow.CachedDataset(source, force_cache=True)
    assert f"{old}: 2 of 11 samples are not in it: 2, 5" in caplog.messages
    assert source.computed == [2, 5]
    assert all(same(ds[i], with_index(sample, i)) for i, sample in enumerate(source.samples))
    assert ds.labels["label"].tolist() == [i % 3 for i in range(11)]


class Custom:
    pass


def test_an_old_zip_that_needs_a_class_is_refused_unless_it_is_trusted(tmp_path):
    edflow_zip(tmp_path / "cached" / "toy.zip", [{"x": Custom()}], labels=0)
    with pytest.raises(CodecError, match=r"toy\.zip: example_0\.p needs test_compat\.Custom; "):
        edflow.CachedDataset.from_cache(tmp_path, "toy")
    with pytest.raises(CodecError, match=r"cannot store test_compat\.Custom; .*, or choose codec="):
        edflow.CachedDataset.from_cache(tmp_path, "toy", trust_pickle=True)
    path = tmp_path / "cached" / "toy.zip"
    (tmp_path / "cached" / "toy.edcache.zip").unlink()
    ds = edflow.PathCachedDataset(None, path, trust_pickle=True, codec="pickle", allow_pickle=True)
    assert type(ds[0]["x"]) is Custom


def test_the_decorator_takes_over_what_edflows_left(tmp_path):
    source = Source(tmp_path)
    old = old_caches.edflow_decorated(tmp_path / "c.zip", source.samples, ["label"], ("train",))
    calls = []

    @edflow.cachable(old)
    def made(split):
        calls.append(split)
        return source

    assert made.__name__ == "made"
    assert same(made("train")[3], with_index(source.samples[3], 3))
    assert made("test").path == str(tmp_path / "c.edcache.zip")
    assert calls == []


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
    assert ds.store_dir == str(tmp_path)
    assert list(ds.labels) == ["label"]
    assert len(edflow.PathCachedDataset(None, path)) == 11
    with pytest.raises(
        StaleCacheError, match="type: 'test_compat:Source' in the archive, 'builtins:list' now"
    ):
        edflow.PathCachedDataset([{}] * 11, path)


def test_a_dataset_of_edflow_has_a_root_a_name_and_dicts(tmp_path):
    with pytest.raises(
        OptionError, match="the dataset, a list, has no `root` and `name` to make the path of its"
    ):
        edflow.CachedDataset([{}])
    with pytest.raises(
        SourceError, match="index 0: OptionError: sample 0 is a int; samples of edflow are dicts"
    ):
        edflow.PathCachedDataset([1], tmp_path / "p.zip")
    with pytest.raises(SampleIndexError, match=r"index 1 not in \[0, 1\)"):
        edflow.Indexed([{}])[1]


def test_the_files_of_a_folder_are_read_by_name_alone(tmp_path):
    folder = old_caches.unpacked(edflow_zip(tmp_path / "a.zip", edflow_samples(2)), tmp_path / "a")
    assert pickle.loads(edflow.ExamplesFolder(folder).read("example_1.p"))["label"] == 1
    for name in ("../a.zip", "/etc/passwd", "..", ""):
        with pytest.raises(OptionError, match=re.escape(f"{name!r} is no name of a file in this folder")):
            edflow.ExamplesFolder(folder).read(name)
    with pytest.raises(FileNotFoundError):
        edflow.ExamplesFolder(folder).read("example_2.p")


def test_what_is_at_the_path_and_is_ours_but_damaged_is_left_to_the_reader(tmp_path):
    path = tmp_path / "p.zip"
    edflow.PathCachedDataset([{"a": i} for i in range(3)], path)
    data = bytearray(path.read_bytes())
    data[60:4000] = bytes(3940)
    path.write_bytes(data)
    with pytest.raises(edcache.errors.CorruptArchiveError):
        edflow.PathCachedDataset(None, path)
    assert path.read_bytes() == data


# ----------------------------------------------------------------------------------------- torch_xla


def test_torch_xla_computes_what_is_asked_for(tmp_path):
    computed = []

    class Images:
        def __len__(self):
            return 5

        def __getitem__(self, i):
            computed.append(i)
            return None if i == 2 else (torch.ones(2) * i, i)

    path = tmp_path / "cache"
    ds = torch_xla.CachedDataset(Images(), path)
    assert ds[-1][1] == 4
    assert ds[2] is None
    ds[2]
    assert computed == [4, 2]
    with pytest.warns(PartialArchiveWarning), pytest.raises(MissingSampleError):
        torch_xla.CachedDataset(None, str(path))[0]
    ds.warmup(progress=False)
    assert sorted(computed) == [0, 1, 2, 3, 4]
    assert ds.path == f"{path}.zip"
    assert len(torch_xla.CachedDataset(None, f"{path}.zip")) == 5
    assert torch_xla.CachedDataset(Images(), tmp_path / "now", lazy=False).complete


@pytest.mark.parametrize("era", ["1.6", "1.7"])
def test_a_torch_xla_folder_is_taken_over_once(tmp_path, caplog, era):
    samples = [(torch.ones(2) * i, np.float32(i)) for i in range(12)]
    root = xla_folder(tmp_path / "cache", samples, per_folder=5, era=era)
    files = sorted(p.name for p in root.rglob("*"))
    with caplog.at_level(logging.WARNING):
        ds = torch_xla.CachedDataset(None, f"{root}/")
    assert caplog.messages[-1] == f"{root}: its 12 samples are in {root}.zip now"
    assert all(same(ds[i], sample) for i, sample in enumerate(samples))
    assert [len(b[1]) for b in DataLoader(ds, batch_size=6)] == [6, 6]
    caplog.clear()
    torch_xla.CachedDataset(None, root)
    assert caplog.messages == []
    assert sorted(p.name for p in root.rglob("*")) == files


def test_what_a_torch_xla_folder_lacks_is_computed(tmp_path):
    samples = [(torch.ones(2) * i, i) for i in range(6)]
    root = xla_folder(tmp_path / "cache", samples, skip=(1, 5))
    computed = []

    class Images(list):
        def __getitem__(self, i):
            computed.append(i)
            return super().__getitem__(i)

    ds = torch_xla.CachedDataset(Images(samples), root)
    assert all(same(ds[i], sample) for i, sample in enumerate(samples))
    assert computed == [1, 5]


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
