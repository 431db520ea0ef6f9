"""Caches of edflow, torch_xla and MONAI read back through edcache equal what went in."""

import importlib
import os
import pickle
import shutil
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import old_caches
import pytest
import torch
from click.testing import CliRunner
from likeness import same
from old_caches import edflow_samples, edflow_zip, with_index, xla_folder
from written import write

from edcache import CachedDataset
from edcache.cli import main
from edcache.errors import (
    ArchiveError,
    CodecError,
    MissingSampleError,
    OptionError,
    SourceError,
    StaleCacheError,
)
from edcache.interop.importer import import_cache, old_cache

KEYS = ["label", "name", "score"]


def opened(path, kind="edflow", **options):
    return old_cache(str(path), kind, **options)


def check(ds, samples, skip=()):
    """A dataset holds these samples with types and dtypes, and lacks those."""
    assert ds.missing.tolist() == sorted(skip)
    assert len(ds) == len(samples)
    for i, sample in enumerate(samples):
        if i not in skip:
            assert same(ds[i], sample), i
    return ds


def indexed(samples):
    return [with_index(sample, i) for i, sample in enumerate(samples)]


@pytest.fixture
def old(tmp_path):
    return tmp_path / "old" / "cached" / "toy.zip"


# -------------------------------------------------------------------------------------------- edflow


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_an_edflow_zip_reads_back_exactly_with_its_labels(old, path, protocol):
    samples = edflow_samples()
    edflow_zip(old, samples, KEYS, protocol=protocol)
    ds = check(import_cache(old, path, "edflow"), indexed(samples))
    assert ds.complete
    assert ds._archive.reader.session.sealed
    assert list(ds.labels) == KEYS
    for key in KEYS:
        assert ds.labels[key].tolist() == [sample[key] for sample in samples]
    assert ds.filter(label=1).indices.tolist() == [1, 4, 7, 10]
    check(CachedDataset.from_cache(path), indexed(samples))


def test_workers_read_it_too_and_an_interrupted_import_goes_on(old, path):
    samples = edflow_samples(40)
    edflow_zip(old, samples, KEYS)
    write(path, [with_index(samples[0], 0)], in_memory_keys={key: (key,) for key in KEYS})
    ds = import_cache(old, path, "edflow", num_workers=2, keep_existing=False, compression="zstd")
    check(ds, indexed(samples))
    before = path.read_bytes()
    check(import_cache(old, path, "edflow"), indexed(samples))
    assert path.read_bytes() == before


def test_another_old_cache_at_the_same_archive_is_noticed(old, path):
    edflow_zip(old, edflow_samples())
    import_cache(old, path, "edflow")
    edflow_zip(old, edflow_samples(12))
    with pytest.raises(StaleCacheError, match="argument names, sizes and times: "):
        import_cache(old, path, "edflow")


def test_the_dataset_that_made_the_old_cache_takes_the_archive_for_its_own(old, path):
    samples = edflow_samples()
    edflow_zip(old, samples, KEYS, labels=0, skip=(3, 4, 10))
    ds = import_cache(old, path, "edflow", in_memory_keys=KEYS)
    check(ds, [*indexed(samples)[:-1]], skip=(3, 4))
    assert [(e.index, e.error) for e in ds.errors] == [(3, "MissingSampleError"), (4, "MissingSampleError")]
    asked = []

    class Source:
        def __len__(self):
            return 10

        def __getitem__(self, i):
            asked.append(i)
            return with_index(samples[i], i)

    check(CachedDataset(Source(), path, in_memory_keys=KEYS, spot_check=False), indexed(samples)[:10])
    assert asked == [3, 4]


def test_gaps_keep_their_indices_and_are_named(old, path):
    samples = edflow_samples(30)
    edflow_zip(old, samples, KEYS, labels=0, skip=(3, 4, 5, 20))
    source = opened(old)
    assert source.notes == [
        "4 of 30 samples are not in it: 3-5, 20",
        "it has no labels.p, as an interrupted run leaves none; label columns are made by in_memory_keys=, or --key",
    ]
    assert source.missing.tolist() == [3, 4, 5, 20]
    with pytest.raises(MissingSampleError, match=r"toy\.zip: no sample 4; this edflow cache has none$"):
        source[4]
    check(import_cache(old, path, "edflow"), indexed(samples), skip=(3, 4, 5, 20))


@pytest.mark.skipif(shutil.which("zip") is None, reason="takes Info-ZIP")
def test_a_killed_edflow_zip_is_read_after_the_program_that_its_error_names(old, path):
    samples = edflow_samples()
    edflow_zip(old, samples, KEYS, labels=0, skip=(7,))
    old_caches.killed(old)
    with pytest.raises(
        ArchiveError, match=r"toy\.zip: opens as no zip \(File is not a zip file\); edflow "
    ) as told:
        opened(old)
    command = str(told.value).rpartition("mend it with: ")[2].split()
    subprocess.run(command, cwd=old.parent, input="y\n", text=True, check=True, stdout=subprocess.DEVNULL)
    check(import_cache(old.with_name("mended.zip"), path, "edflow"), indexed(samples), skip=(7,))


def test_of_labels_twice_the_last_counts(old, path):
    samples = edflow_samples()
    edflow_zip(old, samples, KEYS, labels=2)
    assert import_cache(old, path, "edflow").labels["name"].tolist() == [s["name"] for s in samples]


def test_of_a_sample_twice_the_last_counts(old):
    samples = edflow_samples(4)
    edflow_zip(old, samples, order=[0, 1, 2, 3])
    with zipfile.ZipFile(old, "a", zipfile.ZIP_DEFLATED) as out, pytest.warns(UserWarning, match="Duplicate"):
        out.writestr("example_2.p", pickle.dumps({"image": "newer"}))
    assert opened(old)[2] == {"image": "newer"}


@pytest.mark.parametrize("kind", ["without an ending", "padded"])
def test_the_other_layouts_of_edflow_are_read(old, path, kind):
    samples = edflow_samples()
    edflow_zip(old, samples, KEYS, name="example_{:02}.p" if kind == "padded" else "example_{}.p")
    place = old if kind == "padded" else old.rename(old.with_suffix(""))
    ds = check(import_cache(place, path, "edflow"), indexed(samples))
    assert list(ds.labels) == KEYS
    assert len(import_cache(place, path, "edflow")) == 11


def test_the_files_of_the_decorator_are_read(tmp_path, path):
    samples = edflow_samples()
    old = old_caches.edflow_decorated(tmp_path / "c.zip", samples, KEYS, ("train",), {"n": 2}, length=13)
    source = opened(old)
    assert source.notes[0] == "2 of 13 samples are not in it: 11-12"
    check(import_cache(old, path, "edflow"), [*indexed(samples), None, None], skip=(11, 12))
    Path(f"{old}.p").write_bytes(pickle.dumps("many"))
    with pytest.raises(ArchiveError, match=r"c\.zip\.p: no number, as edflow writes it$"):
        opened(old)


def labels_of(old, labels):
    samples = edflow_samples(3)
    edflow_zip(old, samples, labels=0)
    with zipfile.ZipFile(old, "a") as out:
        out.writestr("labels.p", pickle.dumps(labels))
    return opened(old)


def test_labels_that_make_no_column_are_left_out_and_named(old, path):
    extra, odd = [7, 8, 9], [{}, [[1]], 3]
    source = labels_of(old, {"label": [0, 1, 2], "image": odd, "extra": extra, "short": [1], 5: [1, 2, 3]})
    assert len(source.notes) == 3
    assert source.notes[0].startswith(
        "label 'image' was left out, its values make no column: label \"image\": "
    )
    assert source.notes[1:] == [
        "label 'short' was left out: no sample has it, and labels.p has 1 values",
        "label 5 was left out: a column is named by a text",
    ]
    ds = import_cache(old, path, "edflow")
    assert ds.labels["label"].tolist() == [0, 1, 2]
    assert ds.labels["extra"].tolist() == extra
    assert list(import_cache(old, path, "edflow").labels) == ["label", "extra"]


@pytest.mark.parametrize("labels", [[1], {"label": 5}], ids=["a list", "no lists"])
def test_labels_that_edflow_did_not_write_are_refused(old, labels):
    with pytest.raises(ArchiveError, match=r"labels\.p is no dict of lists, as edflow writes it$"):
        labels_of(old, labels)


class Custom:
    pass


def test_a_sample_that_needs_a_class_is_refused_by_name_before_anything_is_written(old, path):
    edflow_zip(old, [{"x": Custom()}] * 3, labels=0)
    with pytest.raises(
        CodecError, match=r"toy\.zip: example_0\.p needs test_importers\.Custom; if you trust"
    ):
        import_cache(old, path, "edflow")
    assert not path.exists()
    ds = import_cache(old, path, "edflow", trust_pickle=True, codec="pickle", allow_pickle=True)
    assert type(ds[2]["x"]) is Custom


def test_a_later_sample_that_needs_a_class_ends_the_import_and_keeps_the_others(old, path):
    samples = edflow_samples(3)
    samples[1]["x"] = Custom()
    edflow_zip(old, samples, labels=0)
    with pytest.raises(
        SourceError, match=r"index 1: CodecError: .*example_1\.p needs test_importers\.Custom"
    ):
        import_cache(old, path, "edflow")
    ds = import_cache(old, path, "edflow", on_error="skip")
    assert ds.missing.tolist() == [1]


# ------------------------------------------------------------------------------------- damaged zips


def patched(old, at, fmt, value):
    """One number of the first member changed in the directory."""
    data = bytearray(old.read_bytes())
    struct.pack_into(fmt, data, data.index(b"PK\x01\x02") + at, value)
    old.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "fmt", "value", "told"),
    [
        (16, "<I", 1, "Bad CRC-32 for file 'example_0.p'"),
        (24, "<I", 5, "Bad CRC-32 for file 'example_0.p'"),
        (10, "<H", 99, "That compression method is not supported"),
        (42, "<I", 7, "Bad magic number for file header"),
    ],
)
def test_a_directory_that_lies_is_an_error_that_says_where(old, path, at, fmt, value, told):
    edflow_zip(old, edflow_samples(2), labels=0, order=[0, 1])
    patched(old, at, fmt, value)
    with pytest.raises(ArchiveError, match=rf"toy\.zip: example_0\.p: does not unpack: {told}$"):
        opened(old)[0]
    assert opened(old)[1]["label"] == 1
    assert import_cache(old, path, "edflow", on_error="skip").missing.tolist() == [0]


def test_bytes_that_do_not_unpack_are_an_error(old):
    edflow_zip(old, edflow_samples(2), labels=0, order=[0, 1])
    data = bytearray(old.read_bytes())
    data[41:60] = b"\xff" * 19
    old.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"example_0\.p: does not unpack: Error -3"):
        opened(old)[0]


def test_a_file_that_became_shorter_is_an_error(old):
    edflow_zip(old, edflow_samples(2), labels=0, order=[0, 1])
    source = opened(old)
    old.write_bytes(old.read_bytes()[:60])
    with pytest.raises(ArchiveError, match=r"example_[01]\.p: does not unpack: "):
        [source[0], source[1]]


def test_members_beside_the_samples_and_ways_out_of_the_folder_are_not_looked_at(old):
    edflow_zip(old, edflow_samples(2), labels=0)
    with zipfile.ZipFile(old, "a") as out:
        for name in (
            "../example_5.p",
            "/tmp/example_6.p",
            "x/example_7.p",
            "example_8.p.exe",
            "example_-1.p",
        ):
            out.writestr(name, b"")
    assert len(opened(old)) == 2


def test_links_in_a_folder_are_not_followed(tmp_path):
    root = xla_folder(tmp_path / "xla", [1, 2, 3], per_folder=2)
    (root / "1" / "2.pt").unlink()
    (root / "1" / "2.pt").symlink_to("/etc/passwd")
    (root / "4").symlink_to("/etc")
    assert opened(root, "torch_xla").missing.tolist() == [2]


# ----------------------------------------------------------------------------------------- torch_xla


def xla_samples(count):
    return [(torch.full((2, 2), i, dtype=torch.bfloat16), i, {"name": f"n{i}"}) for i in range(count)]


@pytest.mark.parametrize("compress", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(("count", "per_folder"), [(5, 1000), (10, 3), (27, 3), (1001, 1000)])
def test_a_torch_xla_folder_reads_back_exactly(tmp_path, path, count, per_folder, compress):
    samples = xla_samples(min(count, 30))
    root = xla_folder(tmp_path / "xla", samples, per_folder=per_folder, compress=compress)
    source = opened(root, "torch_xla")
    assert source.notes == []
    assert source.kind == "torch_xla"
    ds = check(import_cache(root, path, "torch_xla"), samples)
    assert ds.complete


def test_samples_that_torch_would_not_load_by_itself_any_more_are_read(tmp_path, path):
    """numpy arrays in a file of torch.save: since torch 2.6 torch_xla saw such a cache as empty."""
    samples = [{"x": np.arange(i), "y": np.float32(i)} for i in range(4)]
    root = xla_folder(tmp_path / "xla", samples)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(root / "3.pt")
    check(import_cache(root, path, "torch_xla"), samples)


def test_a_view_takes_the_room_of_the_view(tmp_path, path):
    whole = torch.arange(100_000, dtype=torch.float32).reshape(1000, 100)
    root = xla_folder(tmp_path / "xla", [whole[i] for i in range(3)])
    assert (root / "0.pt").stat().st_size > 400_000
    import_cache(root, path, "torch_xla")
    assert path.stat().st_size < 40_000


def test_a_torch_xla_folder_that_is_not_full_is_missing_the_rest(tmp_path, path):
    samples = xla_samples(10)
    root = xla_folder(tmp_path / "xla", samples, per_folder=3, skip=(4, 9))
    source = opened(root, "torch_xla")
    assert source.notes == ["2 of 10 samples are not in it: 4, 9"]
    check(import_cache(root, path, "torch_xla"), samples, skip=(4, 9))


def test_files_from_before_a_cache_grew_are_told_apart(tmp_path):
    root = xla_folder(tmp_path / "xla", xla_samples(10), per_folder=3)
    torch.save("old place", root / "7.pt")
    torch.save("beyond", root / "12.pt")
    (root / "notes.txt").write_text("x")
    source = opened(root, "torch_xla")
    assert source.notes == [
        "2 files were left out: a file of the same sample lies deeper, as after a cache grew, or METADATA "
        "counts fewer"
    ]
    assert len(source) == 10
    assert source[7][1] == 7


def test_a_truncated_file_fails_its_sample_and_says_which(tmp_path, path):
    root = xla_folder(tmp_path / "xla", xla_samples(4))
    os.truncate(root / "2.pt", 500)
    with pytest.raises(SourceError, match=r"index 2: ArchiveError: .*xla: 2\.pt does not unpickle: "):
        import_cache(root, path, "torch_xla")
    os.truncate(root / "2.pt", 0)
    with pytest.raises(ArchiveError, match=r"xla: 2\.pt begins with b'', as no file of torch\.save does$"):
        opened(root, "torch_xla")[2]


@pytest.mark.parametrize("said", ["[]", '{"count": -1, "max_files_per_folder": 9}', "{}", "{"])
def test_a_metadata_that_torch_xla_did_not_write_is_refused(tmp_path, said):
    root = xla_folder(tmp_path / "xla", xla_samples(2))
    (root / "METADATA").write_text(said)
    with pytest.raises(ArchiveError, match="METADATA: not as torch_xla writes it: "):
        opened(root, "torch_xla")


# --------------------------------------------------------------------------------------------- MONAI


def test_a_monai_folder_is_read_by_name_or_in_a_given_order(tmp_path, path):
    root = tmp_path / "monai"
    root.mkdir()
    names = ["c" * 64, "a" * 64, "b" * 64]
    samples = [{"image": torch.ones(1, 2) * i, "label": i} for i in range(3)]
    for name, sample in zip(names, samples, strict=True):
        torch.save(sample, root / f"{name}.pt")
    by_name = opened(root, "monai")
    assert by_name.notes == ["its samples are in the order of their file names, which are hashes; see order="]
    assert [by_name[i]["label"] for i in range(3)] == [1, 2, 0]
    assert opened(root, "monai", order=names).notes == []
    check(import_cache(root, path, "monai", order=names), samples)
    some = opened(root, "monai", order=[f"{names[0]}.pt", "d" * 64])
    assert some.notes == [
        "2 files that the order does not name were left out",
        "1 of 2 samples are not in it: 1",
    ]
    with pytest.raises(OptionError, match="order= names a file twice$"):
        opened(root, "monai", order=[names[0], names[0]])


def test_a_name_that_is_no_utf_8_ends_no_import(tmp_path, path):
    root = tmp_path / "monai"
    root.mkdir()
    torch.save({"label": 7}, root / os.fsdecode(b"\xff.pt"))
    check(import_cache(root, path, "monai"), [{"label": 7}])


# ------------------------------------------------------------------------------------ what is none


def test_what_is_no_old_cache_is_an_error_that_says_so(tmp_path):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, kind, told in (
        ("no", "edflow", "no: No such file or directory$"),
        ("empty", "edflow", "empty: Is a directory$"),
        ("text", "edflow", r"text: opens as no zip \(File is not a zip file\)"),
        ("text", "torch_xla", "text/METADATA: Not a directory$"),
        ("empty", "torch_xla", "empty/METADATA: No such file or directory$"),
        ("text", "monai", "text: Not a directory$"),
    ):
        with pytest.raises(ArchiveError, match=told):
            opened(tmp_path / name, kind)
    with pytest.raises(OptionError, match="kind='lmdb'; choose one of edflow, torch_xla, monai"):
        opened(tmp_path / "empty", "lmdb")
    with pytest.raises(OptionError, match='order= is for "monai", this is "edflow"$'):
        opened(tmp_path / "empty", order=[])


# ---------------------------------------------------------------------------------- the command line


def invoke(*arguments):
    result = CliRunner().invoke(main, ["import", "--from", "edflow", *map(str, arguments)])
    return result.exit_code, result.output


def test_edcache_import_fills_an_archive_and_resumes(old, path):
    samples = edflow_samples()
    edflow_zip(old, samples, KEYS)
    code, text = invoke(old, "-o", path, "-j", 1)
    assert (code, f"{path}: 11 of 11 samples, " in text) == (0, True)
    check(CachedDataset.from_cache(path), indexed(samples))
    assert invoke(old, "-o", path)[0] == 0


@pytest.mark.full
def test_edcache_import_names_what_is_missing_and_exits_with_1(old, path):
    edflow_zip(old, edflow_samples(), KEYS, labels=2, skip=(3, 4, 8))
    command = [sys.executable, "-m", "edcache", "import", str(old), "-o", str(path), "--from", "edflow"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1] == "missing: 3-4, 8"
    assert f"{old}: 3 of 11 samples are not in it: 3-4, 8" in done.stderr.splitlines()


CALLED = """
    import edcache

    class Source(list):
        pass

    @edcache.cachable("c-{split}.zip", in_memory_keys=["label"])
    def made(split):
        raise AssertionError("the archive is not taken")
"""


def test_edcache_import_makes_the_archive_of_a_cachable_call(old, tmp_path, monkeypatch):
    samples = edflow_samples()
    edflow_zip(old, samples, KEYS)
    (tmp_path / "mine.py").write_text(textwrap.dedent(CALLED))
    options = ["--for", "mine:made", "--arg", "split=train", "--key", "label"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert invoke(old, "-o", "c-train.zip", *options)[0] == 0
    ds = importlib.import_module("mine").made("train")
    assert (len(ds), list(ds.labels)) == (11, ["label"])


def test_edcache_import_refuses_pickles_by_name_and_options_that_do_not_go_together(old, path):
    edflow_zip(old, [{"x": Custom()}], labels=0)
    code, text = invoke(old, "-o", path)
    assert (code, "example_0.p needs test_importers.Custom; if you trust its author" in text) == (1, True)
    code, text = invoke(old, "-o", path, "--arg", "split=train")
    assert (code, "--arg goes with --for MODULE:FACTORY" in text) == (2, True)
    code, text = invoke(old, "-o", path, "--trust-pickle", "--codec", "pickle")
    assert code == 0
    assert type(CachedDataset.from_cache(path, allow_pickle=True)[0]["x"]) is Custom
