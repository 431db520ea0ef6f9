"""Caches that other systems wrote themselves (scripts/make_foreign.py) give what these systems read."""

import contextlib
import importlib
import io
import os
import pickle
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import old_caches
import pytest
import torch
from likeness import same
from scale import scaled, seeded

from edcache import CachedDataset, ImageFile, import_cache
from edcache.compat import edflow
from edcache.errors import (
    ArchiveError,
    CodecError,
    EdcacheError,
    MissingDependencyError,
    OptionError,
    SourceError,
)
from edcache.interop.importer import old_cache

FOREIGN = Path(__file__).parents[1] / "conformance" / "golden" / "foreign"


PICKLED = {"codec": "pickle", "allow_pickle": True}
# streaming leaves the closing of its files to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def library(name):
    """The library that wrote a cache; the test is skipped where it does not import."""
    with contextlib.suppress(ImportError, RuntimeError):  # of a torchvision for another torch
        return importlib.import_module(name)
    pytest.skip(f"{name} does not import here")


@pytest.fixture
def copied(tmp_path):
    """copied("mds/plain"): a copy that may be changed."""

    def copy(name):
        source, target = FOREIGN / name, tmp_path / "old" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return target

    return copy


def picture(i):
    return np.full((4, 5, 3), 10 * i, np.uint8)


def imported(old, path, kind, expected, pictures_at=None, **options):
    """Import, and compare every sample, types and dtypes included, with what its maker was given."""
    ds = import_cache(old, path, kind, progress=False, **options)
    assert ds.complete
    assert len(ds) == len(expected)
    ds = CachedDataset.from_cache(path, decode="numpy")
    for i, sample in enumerate(expected):
        found = ds[i]
        if pictures_at:
            assert same(found.pop(pictures_at), picture(i))
        assert same(found, sample), (found, sample)
    return ds


# -------------------------------------------------------------------------------------------- edflow


def digit(i):
    sample = {"image": np.full((2, 3), i, np.uint8), "label": i % 3, "name": f"n{i}", "index_": np.int64(i)}
    return {**sample, "points": torch.arange(i), "meta": {"size": (i, 2.5), "none": None}}


def test_what_edflows_server_wrote_reads_back_exactly(path):
    ds = imported(FOREIGN / "edflow" / "cached" / "digits.zip", path, "edflow", [digit(i) for i in range(7)])
    assert ds.labels["label"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert ds.labels["name"].tolist() == [f"n{i}" for i in range(7)]


def test_what_edflows_server_wrote_reads_back_under_its_old_name(copied):
    old = copied("edflow/cached/digits.zip")
    import_cache(old, old.with_name("new.zip"), "edflow", in_memory_keys=["label"])
    old.with_name("new.zip").rename(old)
    ds = edflow.CachedDataset.from_cache(old.parent.parent, "digits")
    assert [same(ds[i], digit(i)) for i in range(7)] == [True] * 7
    assert ds.labels["label"].tolist() == [0, 1, 2, 0, 1, 2, 0]


# ---------------------------------------------------------------------------------------- webdataset


def wds_sample(i):
    values = {"cls": i, "json": {"x": [i]}, "npy": np.arange(i, dtype="f4"), "pth": torch.arange(i)}
    values |= {"pyd": {"k": np.arange(i)}, "raw.bin": b"xy", "txt": f"té{i}"}
    return {"__key__": f"a/s{i}", **values}


def test_shards_of_webdataset_read_back_in_order(path):
    library("webdataset")
    ds = imported(FOREIGN / "webdataset", path, "webdataset", [wds_sample(i) for i in range(4)], "png")
    assert ds.labels["__key__"].tolist() == ["a/s0", "a/s1", "a/s2", "a/s3"]
    one = import_cache(
        FOREIGN / "webdataset" / "shard-1.tar", f"{path}.one", "webdataset", in_memory_keys=["cls"]
    )
    assert one.labels["cls"].tolist() == [2, 3]
    with pytest.raises(OptionError, match="num_workers=2 is for an IterableDataset, which divides itself"):
        import_cache(FOREIGN / "webdataset", f"{path}.two", "webdataset", num_workers=2)


def shard_of(path, *files):
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


def test_an_import_that_a_bad_file_ended_goes_on_when_it_is_mended(tmp_path, path):
    library("webdataset")
    shard = tmp_path / "s.tar"
    shard_of(shard, ("a.cls", b"1"), ("b.cls", b"x"))
    with pytest.raises(SourceError, match=r"index 1: ArchiveError: .*s\.tar: b\.cls: does not decode"):
        import_cache(shard, path, "webdataset", fingerprint=False)
    assert CachedDataset.from_cache(path, allow_partial=True)[0]["cls"] == 1
    shard_of(shard, ("a.cls", b"7"), ("b.cls", b"2"))
    assert [s["cls"] for s in import_cache(shard, path, "webdataset", fingerprint=False)] == [1, 2]


@pytest.mark.parametrize("cut", [700, 9217])
def test_a_shard_that_was_cut_is_an_error(copied, path, cut):
    library("webdataset")
    shard = copied("webdataset/shard-0.tar")
    os.truncate(shard, cut)
    with pytest.raises(ArchiveError, match=r"shard-0\.tar: a tar without its end; it was cut, or is"):
        import_cache(shard, path, "webdataset")


class Custom:
    pass


def test_pickles_in_a_shard_are_refused_by_name(tmp_path, path):
    library("webdataset")
    shard = shard_of(tmp_path / "s.tar", ("a.pyd", pickle.dumps(Custom())))
    with pytest.raises(CodecError, match=r"s\.tar: a\.pyd needs test_importers_foreign\.Custom; "):
        import_cache(shard, path, "webdataset")
    ds = import_cache(shard, path, "webdataset", trust_pickle=True, **PICKLED)
    assert type(ds[0]["pyd"]) is Custom


def test_a_file_whose_name_is_a_command_is_a_file(tmp_path, path, monkeypatch):
    library("webdataset")
    monkeypatch.chdir(tmp_path)
    shard_of("pipe:touch ran;.tar", ("a.cls", b"3"))
    assert import_cache("pipe:touch ran;.tar", path, "webdataset")[0]["cls"] == 3
    assert not os.path.exists("ran")


# --------------------------------------------------------------------------------------------- MONAI


def test_a_folder_of_monai_reads_back_in_the_order_of_its_list(path):
    order = (FOREIGN / "monai" / "order.txt").read_text().split()
    ds = import_cache(FOREIGN / "monai", path, "monai", order=order)
    assert ds.complete
    for i, found in enumerate(ds):
        assert list(found) == ["image", "label", "array", "name"]
        assert same(found["image"], torch.full((1, 2, 2), float(i)))
        assert (found["label"], found["name"], list(found["array"])) == (i, f"n{i}", list(range(i)))


# ----------------------------------------------------------------------------------------------- MDS


def mds_sample(i):
    typed = np.ones((2, 2 + 298 * (i == 3)), "i2")
    sample = {"a": i, "b": b"x" * i, "f": np.float64(i / 2), "j": {"k": [i]}, "p": {"z": (i,)}, "sf": 0.1 * i}
    sample |= {
        "si": i * 10**30,
        "t": f"t{i}",
        "typed": typed,
        "u8": np.uint8(i),
        "x": np.arange(i + 1, dtype="f4"),
    }
    sample["fixed"] = np.ones((2, 2), "f4") * i
    return {key: sample[key] for key in sorted(sample)}


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_of_mds_read_back_exactly(path, workers):
    library("streaming")
    imported(
        FOREIGN / "mds" / "plain", path, "mds", [mds_sample(i) for i in range(4)], "im", num_workers=workers
    )
    assert CachedDataset.from_cache(path, decode=None)[0]["im"].format == "PNG"


def test_shards_of_mds_that_are_compressed_or_cut_or_pickled_are_errors(copied, path):
    library("streaming")
    with pytest.raises(ArchiveError, match=r"no shard\.00000\.mds; of compressed shards: zstd"):
        import_cache(FOREIGN / "mds" / "zstd", path, "mds")
    folder = copied("mds/plain")
    shard = folder / "shard.00000.mds"
    whole = shard.read_bytes()
    kept = pickle.dumps({"z": (0,)})
    assert kept in whole
    shard.write_bytes(whole.replace(kept, b"cos\nabort\n)R.".ljust(len(kept), b".")))
    with pytest.raises(CodecError, match=r"plain: sample 0: p needs os\.abort; if you trust"):
        import_cache(folder, path, "mds")
    shard.write_bytes(whole[:300])
    with pytest.raises(IndexError):  # as streaming raises it
        import_cache(folder, path, "mds")
    (folder / "index.json").write_text('{"shards": [], "version": 1}')
    with pytest.raises(ArchiveError, match="plain: does not open as mds: ValueError: Unsupported"):
        import_cache(folder, path, "mds")


# ------------------------------------------------------------------------------- litdata and datasets


def test_a_folder_of_litdata_is_read_by_litdata(path):
    library("litdata")
    expected = [{"a": i, "x": np.arange(3) * i, "t": [f"t{i}", torch.ones(2) * i]} for i in range(4)]
    imported(FOREIGN / "litdata" / "plain", path, "litdata", expected)


def test_bytes_of_litdata_are_bytes(path):
    library("litdata")
    imported(
        FOREIGN / "litdata" / "bytes", path, "litdata", [{"a": i, "b": bytes([i]) * 300} for i in range(4)]
    )


def test_what_litdata_would_unpickle_is_refused_unless_it_is_trusted(copied, path):
    library("litdata")
    with pytest.raises(CodecError, match="pickled: has pickle, for which litdata may unpickle or import"):
        import_cache(FOREIGN / "litdata" / "pickled", path, "litdata")
    ds = import_cache(FOREIGN / "litdata" / "pickled", f"{path}.1", "litdata", trust_pickle=True, **PICKLED)
    assert ds[2] == {"a": {1, 2}}
    folder = copied("litdata/plain")
    index = folder / "index.json"
    index.write_text(index.read_text().replace("builtins.dict", "collections.defaultdict"))
    with pytest.raises(CodecError, match=r"has collections\.defaultdict, for which litdata may"):
        import_cache(folder, f"{path}.2", "litdata")
    index.write_text('{"chunks": []}')
    with pytest.raises(ArchiveError, match="does not open as litdata: KeyError"):
        import_cache(folder, f"{path}.2", "litdata")


@pytest.mark.parametrize("workers", [0, 2])
def test_what_datasets_saved_is_read_by_datasets(path, workers):
    library("datasets")
    rows = {
        "a": [0, 1, 2, 3],
        "t": ["w", "x", "y", None],
        "l": [np.array(row) for row in ([1.0], [2.0, 3.0], [], [4.5])],
    }
    expected = [{key: values[i] for key, values in rows.items()} for i in range(4)]
    imported(FOREIGN / "huggingface", path, "huggingface", expected, "im", num_workers=workers)
    assert isinstance(CachedDataset.from_cache(path, decode=None)[2]["im"], ImageFile)


PACKAGES = {
    "litdata/plain": "litdata",
    "huggingface": "datasets",
    "mds/plain": "streaming",
    "webdataset": "webdataset",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_is_not_there_is_named(name, path, monkeypatch):
    for module in ("", ".tariterators", ".autodecode"):
        monkeypatch.setitem(sys.modules, f"{PACKAGES[name]}{module}", None)
    extra = name.partition("/")[0]
    text = rf"reading it takes a package; install it with: pip install edcache\[{extra}\]$"
    with pytest.raises(MissingDependencyError, match=text):
        import_cache(FOREIGN / name, path, extra)


def edflow_seed(tmp_path):
    return old_caches.edflow_zip(tmp_path / "seed.zip", old_caches.edflow_samples(4), ["label"])


def xla_seed(tmp_path):
    return old_caches.xla_folder(tmp_path / "seed", [{"a": i} for i in range(4)])


SEEDS = {
    "edflow": (edflow_seed, ""),
    "torch_xla": (xla_seed, "METADATA"),
}


@pytest.mark.parametrize("name", SEEDS)
def test_whatever_the_bytes_a_sample_is_read_or_a_typed_error_raised(tmp_path, name, tally):
    make, inside = SEEDS[name]
    seed = make(tmp_path)
    old = tmp_path / "old"
    (shutil.copytree if seed.is_dir() else shutil.copy)(seed, old)
    file = old / inside if inside else old
    data = file.read_bytes()
    random, count = seeded(f"old caches {name}"), scaled(120)
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(random.choice([1, 2, 4])):
            at = random.randrange(len(changed))
            changed[at : at + random.choice([0, 1, 1, 5])] = random.choices(
                b'0919-[]{"\xff\x00', k=random.randrange(4)
            )
        file.write_bytes(changed)
        with contextlib.suppress(EdcacheError):
            source = old_cache(str(old), name)
            for i in range(min(len(source), 6)):
                with contextlib.suppress(EdcacheError):
                    source[i]
    tally("changed old caches", count)
