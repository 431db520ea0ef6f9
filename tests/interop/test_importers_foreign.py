"""Caches that other systems wrote themselves (scripts/make_foreign.py) read back as what went in."""

import contextlib
import importlib.util
import io
import json
import os
import pickle
import shutil
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import old_caches
import pictures
import pytest
import torch
from likeness import same
from scale import scaled, seeded
from tensordict import TensorDict

from edcache import CachedDataset, ImageFile
from edcache.errors import (
    EdcacheError,
    ForeignCacheError,
    MissingDependencyError,
    OptionError,
    PickleRefusedError,
    SourceError,
)
from edcache.interop import compat_edflow as edflow
from edcache.interop import importer
from edcache.interop.import_packaged import HuggingFace
from edcache.interop.importer import import_cache, old_cache

FOREIGN = Path(__file__).parents[1] / "conformance" / "golden" / "foreign"


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


def imported(old, path, expected, pictures_at=None, **options):
    """Import, and compare every sample, types and dtypes included, with what its maker was given."""
    ds = import_cache(old_cache(old) if isinstance(old, (str, Path)) else old, path, **options)
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
    source = old_cache(FOREIGN / "edflow" / "cached" / "digits.zip")
    assert source.notes == ["labels.p is in it 2 times; the last one counts"]
    ds = imported(source, path, [digit(i) for i in range(7)])
    assert ds.labels["label"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert ds.labels["name"].tolist() == [f"n{i}" for i in range(7)]


def test_what_edflows_server_wrote_reads_back_after_a_kill_and_under_its_old_name(copied):
    old = old_caches.killed(copied("edflow/cached/digits.zip"))
    ds = edflow.CachedDataset.from_cache(old.parent.parent, "digits")
    assert [same(ds[i], digit(i)) for i in range(7)] == [True] * 7
    assert ds.labels["label"].tolist() == [0, 1, 2, 0, 1, 2, 0]


# ---------------------------------------------------------------------------------------- webdataset


def wds_sample(i):
    values = {"cls": i, "json": {"x": [i]}, "npy": np.arange(i, dtype="f4"), "pth": torch.arange(i)}
    values |= {"pyd": {"k": np.arange(i)}, "raw.bin": b"xy", "txt": f"té{i}"}
    return {"__key__": f"a/s{i}", **values}


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_of_webdataset_read_back_in_order(path, workers):
    source = old_cache(FOREIGN / "webdataset")
    assert source.kind == "webdataset"
    ds = imported(source, path, [wds_sample(i) for i in range(4)], "png", num_workers=workers)
    assert ds.labels["__key__"].tolist() == ["a/s0", "a/s1", "a/s2", "a/s3"]
    assert ds.filter(cls=[1, 3]).indices.tolist() == [1, 3]
    assert [s["cls"] for s in old_cache(FOREIGN / "webdataset" / "shard-1.tar")] == [2, 3]


def test_a_shard_that_was_cut_yields_the_samples_before_the_last(copied, tally):
    shard = copied("webdataset/shard-0.tar")
    data = shard.read_bytes()
    with tarfile.open(shard) as tar:
        end, second = tar.getmembers()[-1].offset_data, tar.getmember("a/s1.cls").offset
    cuts = [*range(second + 513, end, 300), end + 5, end + 512]
    for cut in cuts:
        shard.write_bytes(data[:cut])
        source = old_cache(shard)
        assert source.notes == ["shard-0.tar was cut: its last sample, a/s1, was left out"], cut
        assert len(source) == 1
    tally("cut foreign shards", len(cuts))


@pytest.mark.parametrize("cut", [9217, 700, 100])
def test_a_shard_without_a_whole_sample_has_none(copied, cut):
    shard = copied("webdataset/shard-0.tar")
    os.truncate(shard, cut)
    none, no_tar = "no sample in this webdataset cache$", r"no tar that reads: .*; unpack \.tar\.gz first$"
    with pytest.raises(ForeignCacheError, match=none if cut > 512 else no_tar):
        old_cache(shard, "webdataset")


def shard_of(path, *files):
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            if isinstance(data, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, data
                tar.addfile(entry)
            else:
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return path


def test_links_and_what_is_no_data_are_left_out(tmp_path):
    shard = shard_of(
        tmp_path / "s.tar",
        ("__index__/x.json", b"1"),
        ("a.cls", b"3"),
        ("a.bin", "/etc/passwd"),
        ("noext", b"x"),
    )
    source = old_cache(shard)
    assert source[0] == {"__key__": "a", "cls": 3}
    assert source.notes == ["2 entries of s.tar are links or have no extension: left out"]


def npy(descr, shape):
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("cls", b"three", r"a\.cls: does not decode: invalid literal for int"),
        ("txt", b"\xff", "does not decode: 'utf-8' codec"),
        ("json", b"[" * 100_000, "does not decode: maximum recursion depth"),
        ("npy", b"no array", "does not decode: begins with b'no array', as no .npy does$"),
        (
            "npy",
            npy("'<f4'", "(99999999999,)"),
            r"shape \(99999999999,\) and dtype float32, and 0 bytes for it$",
        ),
        ("npy", npy("'<f4'", "(-1,)"), "does not decode: malformed shape$"),
        ("npy", npy("'|O'", "(1,)"), r"does not decode: schema: not a dtype here: \|O"),
        ("npy", npy("[('a', '|O')]", "(1,)"), r"does not decode: schema: not a dtype here: \|O"),
        ("npy", npy("5", "(1,)"), "does not decode: 'int' object is not iterable$"),
        ("npy", npy("'<f4'", "__import__('os').system('touch ran')"), "does not decode: malformed node"),
        ("npy", npy("'<f4'", "("), "does not decode: "),
        ("npy", npy("'<f4'", "()" + " " * 10_000), r"does not decode: a header of 10,0\d\d bytes$"),
        ("npy", npy("'<f4', 'more': 1", "()"), "does not decode: a header that numpy does not write$"),
    ],
)
def test_a_file_that_does_not_decode_is_named(tmp_path, monkeypatch, name, data, told):
    monkeypatch.chdir(tmp_path)
    source = old_cache(shard_of(tmp_path / "s.tar", (f"a.{name}", data)))
    with pytest.raises(ForeignCacheError, match=told):
        source[0]
    assert os.listdir() == ["s.tar"]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_of_every_version_of_npy_are_read(tmp_path, version):
    structure = np.dtype([("a", "<i4"), ("b", ">f8", (2,))])
    padded = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    for array in (
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        *(np.zeros(2, structure), np.zeros(2, padded), np.array(["é", "b"]), np.array(3.0), np.zeros((0, 2))),
    ):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version)
        shard = shard_of(tmp_path / "s.tar", ("a.npy", file.getvalue()))
        assert same(old_cache(shard)[0]["npy"], array)


class Custom:
    pass


def test_pickles_in_a_shard_are_refused_by_name(tmp_path):
    shard = shard_of(tmp_path / "s.tar", ("a.pyd", pickle.dumps(Custom())))
    with pytest.raises(PickleRefusedError, match=r"s\.tar: a\.pyd needs test_importers_foreign\.Custom; "):
        old_cache(shard)[0]
    assert type(old_cache(shard, trust_pickle=True)[0]["pyd"]) is Custom


def test_a_field_twice_and_a_shard_that_went_are_errors(tmp_path):
    with pytest.raises(ForeignCacheError, match=r"a\.cls comes twice in one sample$"):
        old_cache(shard_of(tmp_path / "s.tar", ("a.cls", b"1"), ("a.cls", b"2")))
    shard = shard_of(tmp_path / "t.tar", ("a.cls", b"1"))
    source = old_cache(shard)
    source.most_nbytes = 0
    with pytest.raises(ForeignCacheError, match=r"a\.cls has 1 bytes, more than the 0 allowed$"):
        source[0]
    source.most_nbytes = 9
    os.truncate(shard, 512)
    with pytest.raises(ForeignCacheError, match=r"a\.cls: the file ends in the middle of it$"):
        source[0]
    shard.unlink()
    with pytest.raises(ForeignCacheError, match=r"a\.cls: No such file or directory$"):
        source[0]


# ---------------------------------------------------------------------------------------- tensordict


def tensordict_sample(i):
    b = torch.arange(8).reshape(4, 2).bfloat16()[i]
    nested = {"b": b, "deep": {"c": torch.arange(4.0).double()[i]}}
    return {"a": torch.arange(12).reshape(4, 3)[i], "n": nested, "ok": torch.tensor(i % 2 == 0)}


def by_key(value):
    return {k: by_key(value[k]) for k in sorted(value)} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", ["folder", "archive.tdz"])
def test_a_tensordict_reads_back_row_by_row(path, name):
    source = old_cache(FOREIGN / "tensordict" / name)
    assert source.kind == "tensordict"
    assert [same(by_key(source[i]), tensordict_sample(i)) for i in range(4)] == [True] * 4
    ds = import_cache(source, path)
    assert [same(by_key(ds[i]), tensordict_sample(i)) for i in range(4)] == [True] * 4


def test_a_tensordict_has_private_and_empty_leaves(path, tmp_path):
    leaves = {"_weight": torch.arange(4), "empty": torch.zeros(4, 0)}
    TensorDict(leaves, [4]).memmap(tmp_path / "td")
    ds = import_cache(tmp_path / "td", path, progress=False)
    assert same(ds[2], {"_weight": torch.tensor(2), "empty": torch.zeros(0)})


KEYS = [
    "a b",
    "x/y",
    "50%",
    "%41",
    "",
    ".",
    "..",
    "...",
    'q"*:<>?|',
    "back\\slash",
    "tab\tnul\0del\x7f",
    "ünï",
]


@pytest.mark.parametrize("is_robust", [True, False])
@pytest.mark.parametrize("is_zip", [False, True])
def test_a_tensordict_whose_keys_are_no_names_of_files(path, tmp_path, is_zip, is_robust):
    # Without encoding tensordict writes only names that a file system takes.
    keys = KEYS if is_robust else ["a b", "50%", "%41", "...", 'q"*:<>?|', "ünï"]
    leaves = {key: torch.arange(12).reshape(4, 3) + place for place, key in enumerate(keys)}
    nested = {f"{key}+": {key: leaf + 100} for key, leaf in leaves.items()}
    if is_robust:
        nested |= {"n": {key: {key: leaf + 200} for key, leaf in leaves.items()}}
    td = TensorDict(leaves | nested, [4])
    old = tmp_path / ("td.tdz" if is_zip else "td")
    td.memmap(old, robust_key=is_robust)
    ds = import_cache(old, path, progress=False)
    for i in range(4):
        assert same(by_key(ds[i]), by_key(td[i].to_dict()))


def test_what_is_no_tensor_in_a_tensordict_is_refused_by_name():
    with pytest.raises(
        ForeignCacheError, match="texts: text: NonTensorStack; only plain tensors are read, save the"
    ):
        old_cache(FOREIGN / "tensordict" / "texts")


def lied(folder, change, inside=""):
    meta = folder / inside / "meta.json"
    said = json.loads(meta.read_text())
    change(said)
    meta.write_text(json.dumps(said))
    return folder


TENSORDICT_LIES = {
    "a larger shape": (
        lambda said: said["a"].update(shape=[4, 1 << 40]),
        r"a\.memmap has 96 bytes; its shape and",
    ),
    "a shorter leaf": (lambda said: said["a"].update(shape=[3, 4]), r"a: shape \[3, 4\], in a batch of 4$"),
    "a negative shape": (
        lambda said: said["a"].update(shape=[4, -3]),
        "a: torch.int64; only plain tensors are read",
    ),
    "an unknown dtype": (
        lambda said: said["a"].update(dtype="torch.load"),
        "a: torch.load; only plain tensors",
    ),
    "a way out": (
        lambda said: said.update({"../x": said["a"]}),
        r"folder: \.\.%2Fx\.memmap is no file; its shape and dtype take 96$",
    ),
    "the folder above": (
        lambda said: said.update({"..": {"type": "TensorDict"}}),
        r"^[^ ]*folder: %2E%2E/meta\.json: No such file or directory$",
    ),
    "half a character": (
        lambda said: said.update({"\ud800": said["a"]}),
        r"folder: the key '\\ud800' is no UTF-8, and no name of a file$",
    ),
    "no file": (
        lambda said: said.update({"z": said["a"]}),
        r"z\.memmap is no file; its shape and dtype take 96$",
    ),
    "no batch": (
        lambda said: said.update(shape=[]),
        r"batch size \[\]; samples are along a first dimension of all$",
    ),
    "no shape": (lambda said: said.pop("shape"), "no shape in it, which tensordict writes$"),
    "another class": (
        lambda said: said.update(_type="LazyStackedTensorDict"),
        "of LazyStacked.*; save a plain",
    ),
    "a long batch": (
        lambda said: said.update(shape=[1 << 40]),
        "a: shape .*, in a batch of 1,099,511,627,776$",
    ),
    "no leaves": (
        lambda said: [said.pop(k) for k in ("a", "n", "ok")] + [said.update(shape=[1 << 40])],
        "samples without a byte$",
    ),
    "a batch below": (
        lambda said: said["n"].update(type="Tensorclass"),
        "n: Tensorclass; only plain tensors are",
    ),
}


@pytest.mark.parametrize("name", TENSORDICT_LIES)
def test_a_meta_that_lies_is_an_error_that_says_so(copied, name):
    change, told = TENSORDICT_LIES[name]
    folder = lied(copied("tensordict/folder"), change)
    with pytest.raises(ForeignCacheError, match=told):
        old_cache(folder)


def test_a_nested_batch_of_another_size_and_links_are_refused(copied, tmp_path):
    folder = lied(copied("tensordict/folder"), lambda said: said.update(shape=[3]), "n")
    with pytest.raises(ForeignCacheError, match=r"n/meta\.json: batch size \[3\]"):
        old_cache(folder)
    (folder / "n").rename(tmp_path / "elsewhere")
    (folder / "n").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ForeignCacheError, match=r"n/meta\.json is a link; links are not followed$"):
        old_cache(folder)
    (folder / "meta.json").write_text("{")
    with pytest.raises(ForeignCacheError, match=r"folder: meta\.json: Expecting property name"):
        old_cache(folder)


def test_a_tensordict_file_that_shrinks_or_goes_is_an_error(copied):
    folder = copied("tensordict/folder")
    source = old_cache(folder)
    os.truncate(folder / "a.memmap", 50)
    with pytest.raises(ForeignCacheError, match=r"a\.memmap: row 3: the file ends in the middle of it$"):
        source[3]
    (folder / "a.memmap").unlink()
    with pytest.raises(ForeignCacheError, match=r"a\.memmap: row 3: No such file or directory$"):
        source[3]


def repacked(old, target, method=zipfile.ZIP_STORED, leave_out=()):
    with zipfile.ZipFile(old) as whole, zipfile.ZipFile(target, "w", method) as out:
        for name in whole.namelist():
            if name not in leave_out:
                out.writestr(name, whole.read(name))
    return target


def test_a_tdz_is_proven_by_its_checksums(copied, tmp_path):
    old = copied("tensordict/archive.tdz")
    assert len(old_cache(repacked(old, tmp_path / "again.tdz"))) == 4
    with pytest.raises(ForeignCacheError, match=r"a\.memmap is compressed; unzip it, and import the folder$"):
        old_cache(repacked(old, tmp_path / "packed.tdz", zipfile.ZIP_DEFLATED))
    with pytest.raises(ForeignCacheError, match=r"no member a\.memmap$"):
        old_cache(repacked(old, tmp_path / "less.tdz", leave_out=["a.memmap"]))
    data = old.read_bytes()
    at = data.index(np.arange(12).tobytes())
    old.write_bytes(data[:at] + b"\x01" + data[at + 1 :])
    with pytest.raises(
        ForeignCacheError, match=r"a\.memmap at offset [\d,]+: crc32 0x\w+, its header says 0x\w+$"
    ):
        old_cache(old)


def test_a_tdz_member_of_another_size_is_refused(copied, tmp_path):
    old = copied("tensordict/archive.tdz")
    wrong = tmp_path / "wrong.tdz"
    with zipfile.ZipFile(old) as whole, zipfile.ZipFile(wrong, "w") as out:
        for name in whole.namelist():
            out.writestr(name, whole.read(name)[: 90 if name == "a.memmap" else None])
    with pytest.raises(ForeignCacheError, match=r"a\.memmap has 90 bytes; its shape and dtype take 96$"):
        old_cache(wrong)


# --------------------------------------------------------------------------------------------- MONAI


def test_a_folder_of_monai_reads_back_in_the_order_of_its_list(path):
    order = (FOREIGN / "monai" / "order.txt").read_text().split()
    source = old_cache(FOREIGN / "monai", order=order)
    assert source.kind == "monai"
    for i in range(4):
        found = source[i]
        assert list(found) == ["image", "label", "array", "name"]
        assert same(found["image"], torch.full((1, 2, 2), float(i)))
        assert (found["label"], found["name"], list(found["array"])) == (i, f"n{i}", list(range(i)))
    assert import_cache(source, path).complete


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


def test_shards_of_mds_read_back_exactly(path):
    source = old_cache(FOREIGN / "mds" / "plain")
    assert source.kind == "mds"
    assert source[0]["im"].format == "PNG"
    imported(source, path, [mds_sample(i) for i in range(4)], "im")


def test_compressed_shards_of_mds_say_how_to_unpack_them():
    with pytest.raises(
        ForeignCacheError, match=r'its shards are compressed; unpack them first: "zstd -d \*\.zstd"$'
    ):
        old_cache(FOREIGN / "mds" / "zstd")


def shard_said(folder, change):
    file = folder / "index.json"
    said = json.loads(file.read_text())
    change(said["shards"][0])
    file.write_text(json.dumps(said))
    return folder


MDS_LIES = {
    "many samples": (
        lambda s: s.update(samples=1 << 31),
        r"shard\.00000\.mds: has 877 bytes, index\.json says 877 and",
    ),
    "a way out": (
        lambda s: s["raw_data"].update(basename="../x"),
        "not as MDSWriter writes it: .*a shard '../x'",
    ),
    "no file": (lambda s: s["raw_data"].update(basename="x"), r"plain/x: is no file, index\.json says 877"),
    "no number": (lambda s: s.update(samples="4"), "'4' where a number of samples or bytes should be"),
    "a size": (lambda s: s.update(column_sizes=[-1] * 13), "-1 where a number of samples or bytes should be"),
    "a column less": (lambda s: s.update(column_sizes=[]), "not as MDSWriter writes it: ValueError"),
    "an encoding": (
        lambda s: s.update(column_encodings=["pil"] * 13),
        "column 'a' is encoded as pil, which is not",
    ),
    "no shard": (lambda s: s.clear(), "not as MDSWriter writes it: KeyError"),
}


@pytest.mark.parametrize("name", MDS_LIES)
def test_an_index_of_mds_that_lies_is_an_error_that_says_so(copied, name):
    change, told = MDS_LIES[name]
    folder = shard_said(copied("mds/plain"), change)
    with pytest.raises(ForeignCacheError, match=told):
        old_cache(folder)


def written(folder, offset, data):
    shard = folder / "shard.00000.mds"
    whole = bytearray(shard.read_bytes())
    whole[offset : offset + len(data)] = data
    shard.write_bytes(whole)
    return folder


def test_a_shard_of_mds_that_lies_is_an_error_that_says_so(copied):
    folder = copied("mds/plain")
    source = old_cache(folder)
    begin = struct.unpack("<I", (folder / "shard.00000.mds").read_bytes()[4:8])[0]
    good = (folder / "shard.00000.mds").read_bytes()
    written(folder, 8, b"\xff\xff\xff\x7f")
    with pytest.raises(ForeignCacheError, match=r"sample 0: from offset [\d,]+ to 2,147,483,647 of 877$"):
        source[0]
    (folder / "shard.00000.mds").write_bytes(good)
    written(folder, begin + 8, b"\xff\xff\xff\x7f")
    with pytest.raises(ForeignCacheError, match=r"sample 0: \d+ bytes, its columns claim 2,\d{3},"):
        source[0]
    (folder / "shard.00000.mds").unlink()
    with pytest.raises(ForeignCacheError, match="sample 0: No such file or directory$"):
        source[0]


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("str_int", "a: does not decode as str_int: "),
        ("ndarray", "a: does not decode as ndarray: "),
        ("ndarray:object", "a: does not decode as ndarray:object: dtype 'object'"),
        ("ndarray:uint8:9", r"a: does not decode as ndarray:uint8:9: shape \(9,\) for 8 values$"),
        ("pkl", "a does not unpickle: "),
    ],
)
def test_a_value_of_mds_that_does_not_decode_is_named(copied, encoding, told):
    folder = copied("mds/plain")
    shard_said(folder, lambda s: s["column_encodings"].__setitem__(0, encoding))
    with pytest.raises(ForeignCacheError, match=told):
        old_cache(folder)[1]


# ------------------------------------------------------------------------------- litdata and datasets

needs_litdata = pytest.mark.skipif(
    importlib.util.find_spec("litdata") is None,
    reason="litdata brings a torchvision, which does not load beside every torch; install it to test with it",
)


@needs_litdata
def test_a_folder_of_litdata_is_read_by_litdata(path):
    source = old_cache(FOREIGN / "litdata" / "plain")
    assert source.kind == "litdata"
    expected = [{"a": i, "x": np.arange(3) * i, "t": [f"t{i}", torch.ones(2) * i]} for i in range(4)]
    imported(source, path, expected)
    assert same(pickle.loads(pickle.dumps(source))[2], expected[2])


@needs_litdata
def test_what_litdata_would_unpickle_is_refused_unless_it_is_trusted(copied):
    with pytest.raises(
        PickleRefusedError, match="pickled: has pickle, for which litdata may unpickle or import; if"
    ):
        old_cache(FOREIGN / "litdata" / "pickled")
    assert old_cache(FOREIGN / "litdata" / "pickled", trust_pickle=True)[2] == {"a": {1, 2}}
    folder = copied("litdata/plain")
    index = folder / "index.json"
    index.write_text(index.read_text().replace("builtins.dict", "collections.defaultdict"))
    with pytest.raises(
        PickleRefusedError, match=r"has collections\.defaultdict, for which litdata may unpickle or"
    ):
        old_cache(folder)
    index.write_text('{"chunks": []}')
    with pytest.raises(ForeignCacheError, match="not as litdata writes it: KeyError"):
        old_cache(folder)


def test_what_datasets_saved_is_read_by_datasets(path):
    source = old_cache(FOREIGN / "huggingface")
    assert source.kind == "huggingface"
    rows = {
        "a": [0, 1, 2, 3],
        "t": ["w", "x", "y", None],
        "l": [np.array(row) for row in ([1.0], [2.0, 3.0], [], [4.5])],
    }
    expected = [{key: values[i] for key, values in rows.items()} for i in range(4)]
    imported(source, path, expected, "im")
    assert isinstance(pickle.loads(pickle.dumps(source))[2]["im"], ImageFile)


def test_an_attribute_error_of_a_package_is_told_as_it_is(monkeypatch):
    def refuse(dataset, name):
        raise AttributeError(f"no attribute {name}")

    def fail(cache):
        raise AttributeError("the cause")

    # As older torch has it.
    monkeypatch.setattr(torch.utils.data.Dataset, "__getattr__", refuse, raising=False)
    monkeypatch.setattr(HuggingFace, "_open", fail)
    with pytest.raises(AttributeError, match="^the cause$"):
        old_cache(FOREIGN / "huggingface")


@pytest.mark.parametrize(("name", "module"), [("litdata/plain", "litdata"), ("huggingface", "datasets")])
def test_a_package_that_is_not_there_is_named(name, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=f"needs {module}; pip install {module}$"):
        old_cache(FOREIGN / name)


# -------------------------------------------------------------------------------------------- images


def test_a_tree_that_kappadata_copied_is_an_image_folder(tmp_path, path):
    root = tmp_path / "tree"
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/3.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(pictures.jpeg(seed=len(name)))
    assert old_cache(root).kind == "images"
    (root / "autocopy_start.txt").write_text("x")
    source = old_cache(root)
    assert source.notes == [
        "its copying did not end: autocopy_start.txt is there, autocopy_end.txt is not; files may be missing"
    ]
    (root / "autocopy_end.txt").write_text("x")
    source = old_cache(root)
    assert source.notes == []
    ds = import_cache(source, path)
    assert ds.labels["label"].tolist() == [0, 0, 1]
    assert ds.labels["path"].tolist() == ["cat/1.jpg", "cat/2.jpg", "dog/3.jpg"]
    assert CachedDataset.from_cache(path, decode=None)[2]["image"].data == (root / "dog/3.jpg").read_bytes()
    shutil.rmtree(root / "cat")
    shutil.rmtree(root / "dog")
    with pytest.raises(OptionError, match="no folder in it"):
        old_cache(root)


@pytest.mark.parametrize("text", ["[]", "no json", '{"other": 1}'])
def test_an_index_of_no_known_system_is_not_recognised(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(
        ForeignCacheError, match="not recognised as one of edflow, torch_xla, monai, webdataset, "
    ):
        old_cache(tmp_path)


def test_an_index_is_not_read_where_names_tell_the_kind(tmp_path, monkeypatch):
    def read(*told):
        raise AssertionError("read")

    monkeypatch.setattr(importer, "read_file", read)
    folder = shutil.copytree(xla_seed(tmp_path), tmp_path / "with an index")
    (folder / "index.json").write_text("{}")
    assert old_cache(folder).kind == "torch_xla"


def test_an_import_of_a_bad_sample_names_it(tmp_path, path):
    shard = shard_of(tmp_path / "s.tar", ("a.cls", b"1"), ("b.cls", b"x"))
    with pytest.raises(SourceError, match=r"index 1: ForeignCacheError: .*s\.tar: b\.cls: does not decode"):
        import_cache(shard, path)


def edflow_seed(tmp_path):
    return old_caches.edflow_zip(tmp_path / "seed.zip", old_caches.edflow_samples(4), ["label"])


def xla_seed(tmp_path):
    return old_caches.xla_folder(tmp_path / "seed", [{"a": i} for i in range(4)])


SEEDS = {
    "edflow": (edflow_seed, ""),
    "torch_xla": (xla_seed, "METADATA"),
    "webdataset": (lambda tmp_path: FOREIGN / "webdataset" / "shard-0.tar", ""),
    "tensordict": (lambda tmp_path: FOREIGN / "tensordict" / "folder", "meta.json"),
    "tensordict tdz": (lambda tmp_path: FOREIGN / "tensordict" / "archive.tdz", ""),
    "mds": (lambda tmp_path: FOREIGN / "mds" / "plain", "index.json"),
    "mds shard": (lambda tmp_path: FOREIGN / "mds" / "plain", "shard.00000.mds"),
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
            source = old_cache(old, name.partition(" ")[0])
            for i in range(min(len(source), 6)):
                with contextlib.suppress(EdcacheError):
                    source[i]
    tally("changed old caches", count)
