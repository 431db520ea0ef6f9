"""The command line: what each command does, its JSON, its exit codes, and that an error is one line."""

import csv
import datetime
import hashlib
import io
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from cli_runner import RUNNER, error_of, report, run
from damage import flip_record
from filled import available
from written import write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.base import index_ranges
from edcache.cli import main
from edcache.format import Head
from edcache.reader import Reader
from edcache.writer.appender import Appender

ROOT = str(Path(__file__).parents[2])

DIGITS = """
    import os, time
    import torch
    from edcache import cachable

    class Digits:
        def __init__(self, split, n):
            self.split, self.n = split, n
        def __len__(self):
            return self.n
        def __getitem__(self, i):
            with open("computed.txt", "a") as log:
                log.write(f"{i}\\n")
            time.sleep(float(os.environ.get("SLOW", 0)))
            if str(i) == os.environ.get("FAIL_AT"):
                raise ValueError("row 7: kind=dog where=field label=3\\nLINE 4: see the manual")
            if str(i) == os.environ.get("STOP_AT"):
                raise KeyboardInterrupt
            image = torch.full((2, 3), i, dtype=torch.uint8)
            return {"image": image, "label": i % 3, "meta": {"split": self.split}}

    def make(split, n=6):
        return Digits(split, n)

    @cachable("{split}.zip", in_memory_keys=["label"], version=2)
    def cached(split, n=6):
        return Digits(split, n)

    def broken():
        raise RuntimeError("no data\\nhere")

    class Pairs:
        def __len__(self):
            return 4
        def __getitem__(self, i):
            return i, {i}

    class Batches:
        def __len__(self):
            return 7
        def __getitem__(self, i):
            return self.__getitems__([i])[0]
        def __getitems__(self, indices):
            with open("computed.txt", "a") as log:
                log.write(f"{len(indices)}\\n")
            return [{"x": i} for i in indices]

    number = 7
"""
BUILD = "build digits:make -o out.zip --arg split=a"


def start(*arguments, **options):
    command = [sys.executable, "-m", "edcache", *map(str, arguments)]
    path = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path} | options.pop("env", {})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **pipes, **options)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with digits.py in it, as the current one."""
    (tmp_path / "digits.py").write_text(textwrap.dedent(DIGITS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "digits", raising=False)
    yield tmp_path
    sys.modules.pop("digits", None)


def sample(i):
    return {
        "image": torch.arange(12, dtype=torch.float32).reshape(3, 4) + i,
        "label": i % 3,
        "split": "train" if i % 2 else "test, \x1b[31mred\n",
        "score": None if i == 4 else i / 8,
        "boxes": [1.5] * i,
        "text": "x" * 1000,
        "raw": b"\x00\x01",
        "when": datetime.datetime(2024, 5, i + 1),
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "ten.zip"
    return write(path, map(sample, range(10)), in_memory_keys=["label", "split", "score", "when"])


@pytest.fixture(scope="module")
def partial(tmp_path_factory):
    """Samples 0, 1 and 5 of an archive that was never sealed."""
    path = tmp_path_factory.mktemp("cli") / "partial.zip"
    writer = CacheWriter(path, in_memory_keys=["label"])
    for i in (0, 1, 5):
        writer.write(i, sample(i))
    writer.abort()
    return path


@pytest.fixture
def damaged(archive, tmp_path):
    """Record 3 and records 6 to 8 of ten are damaged."""
    path = shutil.copy(archive, tmp_path / "damaged.zip")
    flip_record(path, 3, 6, 7, 8)
    return path


@pytest.fixture
def grown(tmp_path):
    """Sealed, grown by a record that replaces one, with a failure and a torn tail."""
    path = tmp_path / "grown.zip"
    write(path, map(sample, range(10)), in_memory_keys=["label"])
    writer = CacheWriter(path, "a")
    writer.write(3, sample(8))
    writer.flush()
    writer.write(11, sample(1))
    writer.abort()
    appender = Appender.open(path, Head(bytes(16)), mode="a")
    appender.amend(failed=[[10, True, "ValueError", "broken", ""]])
    appender.close()
    with open(path, "ab") as file:
        file.write(b"\0torn")
    return path


def computed(here):
    """The samples that were computed since the last look, sorted."""
    log = here / "computed.txt"
    lines = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return sorted(map(int, lines))


# ------------------------------------------------------------------------------------------ build


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("jobs", ["", "-j", "-j 2", "--num-workers auto"])
def test_build_fills_an_archive_and_again_computes_nothing(here, jobs):
    line = f"{BUILD} --key label --key part=meta.split {jobs}"
    said = report(line)
    assert said.pop("seconds") > 0
    nbytes = (here / "out.zip").stat().st_size
    counts = {"samples": 6, "present": 6, "failed": 0, "missing": []}
    assert said == {"path": str(here / "out.zip"), "nbytes": nbytes, **counts}
    assert computed(here) == list(range(6))
    cache = CachedDataset.from_cache("out.zip")
    assert {name: list(cache.labels[name]) for name in cache.labels} == {
        "label": [0, 1, 2, 0, 1, 2],
        "part": ["a"] * 6,
    }
    assert run(line).stdout.startswith(f"{here}/out.zip: 6 of 6 samples, ")
    assert computed(here) == []


@pytest.mark.usefixtures("unchecked")
def test_build_asks_in_batches(here):
    run("build digits:Batches -o out.zip --batch-size 3")
    assert computed(here) == [1, 3, 3]


@pytest.mark.parametrize(("text", "split"), [('"3"', "3"), ("3", 3), ("NaN", "NaN"), ("a b", "a b")])
def test_arguments_are_json_where_they_are_json(here, text, split):
    run("build digits:make -o out.zip --version 7 --arg n=4 --arg", f"split={text}")
    said = report("info out.zip")
    assert said["samples"] == 4
    given = {"argument split": split, "argument n": 4}
    assert said["fingerprint"]["settings"] == {"factory": "make", **given, "version": 7}


def test_a_cachable_call_opens_what_was_built(here):
    run("build digits:cached -o train.zip --arg split=train")
    computed(here)
    import digits

    cache = digits.cached("train")
    assert len(computed(here)) == 1  # it is compared
    assert cache.labels["label"].tolist() == [0, 1, 2, 0, 1, 2]
    assert cache._archive.reader.session.head.fingerprint["settings"]["version"] == 2


def test_a_stale_archive_is_an_error_that_names_the_difference_and_the_option(here):
    run(BUILD)
    message = error_of("build digits:make -o out.zip --arg split=test")
    assert "argument split: 'a' in the archive, 'test' now" in message
    assert message.endswith(" (--rebuild)")
    run("build digits:make -o out.zip --arg split=test --rebuild")
    assert CachedDataset.from_cache("out.zip")[0]["meta"]["split"] == "test"


def test_compression_and_pickle_reach_the_archive(here):
    run(f"{BUILD} --compression zstd:3 --chunk-size 2 --progress")
    said = report("info out.zip")
    assert (said["compression"], said["chunks"]) == ("zstd:3", 3)
    assert "cannot store set" in error_of("build digits:Pairs -o q.zip")
    run("build digits:Pairs -o p.zip --codec pickle --key first=0")
    assert "pickles" in error_of("show p.zip 0")
    assert report("show p.zip 2 --allow-pickle")["leaves"][0]["value"] == 2
    assert report("labels p.zip")[3] == {"index": 3, "labels": {"first": 3}}
    assert "pickle" in run("info p.zip").stdout


@pytest.mark.usefixtures("unchecked")
def test_a_sample_that_raises_is_one_line_as_the_source_says_it_and_the_rest_is_kept(here, monkeypatch):
    monkeypatch.setenv("FAIL_AT", "4")
    message = error_of(BUILD)
    assert "index 4: ValueError: row 7: kind=dog where=field label=3; LINE 4: see the manual; " in message
    assert "keeps 4 of 6 samples" in message
    assert computed(here) == [0, 1, 2, 3, 4]
    assert {"present": 5, "failed": 1, "missing": [4]}.items() <= report(f"{BUILD} --on-error skip").items()
    monkeypatch.delenv("FAIL_AT")
    computed(here)
    assert report(f"{BUILD} --on-error raise")["present"] == 6
    assert computed(here) == [4]


@pytest.mark.usefixtures("unchecked")
def test_an_interrupt_keeps_what_was_computed(here, monkeypatch):
    monkeypatch.setenv("STOP_AT", "3")
    said = run(BUILD, code=130)
    assert said.stderr.endswith("edcache: interrupted\n")
    computed(here)
    monkeypatch.delenv("STOP_AT")
    run(BUILD)
    assert computed(here) == [3, 4, 5]
    monkeypatch.setenv("STOP_AT", "3")
    run(BUILD, "--rebuild", code=130)
    assert CachedDataset.from_cache("out.zip").complete


@pytest.mark.full
@pytest.mark.usefixtures("unchecked")
def test_a_killed_build_resumes_where_it_stopped(here):
    build = [*BUILD.split(), "--arg", "n=60"]
    process = start(*build, "--chunk-size", 2, cwd=here, env={"SLOW": "0.05"})
    deadline = time.monotonic() + 60
    while not (here / "out.zip").exists() or Reader("out.zip", allow_partial=True).session.index.present < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = Reader("out.zip", allow_partial=True).session.index.present
    assert 4 <= kept < 60
    computed(here)
    run(*build)
    assert len(computed(here)) == 60 - kept
    assert report("verify out.zip")["sound"]


def test_a_folder_of_images_is_cached(here):
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.png"):
        (here / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "tree" / name).write_bytes(pictures.jpeg())
    (here / "tree" / "dog" / "2.jpg").write_bytes(b"")
    said = error_of("images tree -o a.zip")
    assert """a.zip: sample 3 (key 'dog/2.jpg'): sample["image"]: cannot store image file """ in said
    images = "images tree -o a.zip --decode tensor"
    assert report(f"{images} --rebuild --on-error skip")["failed"] == 1
    ds = CachedDataset.from_cache("a.zip", allow_partial=True)
    assert [s["image"].shape for s in available(ds)] == [(3, 17, 23)] * 3
    assert ds.labels["path"].tolist()[:3] == ["cat/1.jpg", "cat/2.jpg", "dog/1.png"]
    (here / "tree" / "dog" / "2.jpg").unlink()
    assert (report(images)["samples"], report(images)["failed"]) == (3, 0)
    assert error_of(images.replace("tensor", "numpy")).endswith(" (--rebuild)")
    assert report("show a.zip 0")["leaves"][0]["shape"] == [3, 17, 23]


# -------------------------------------------------------------------------------- info and show


class Keyed(list):
    def sample_key(self, index):
        return f"k{list.__getitem__(self, index)}"

    def __getitem__(self, index):
        return {"x": list.__getitem__(self, index)}


def test_info_tells_how_the_parents_of_an_archive_are(here):
    def parents(path):
        lines = run("info", path).stdout.splitlines()
        return [line.replace(f"{here}/", "").split("parent ", 1) for line in lines if "parent  " in line]

    def twice(rows):
        ds = CachedDataset(Keyed(rows), "p.zip", progress=False)
        return edcache.map(lambda sample: {"y": 2 * sample["x"]}, ds, "m.zip", progress=False)

    child = CachedDataset(twice([1, 2]), "n.zip", progress=False)
    assert parents("n.zip") == [["", "      m.zip: as it was"], ["  ", "    p.zip: as it was"]]
    assert [one["path"] for one in report("info n.zip")["fingerprint"]["parents"]] == [f"{here}/m.zip"]
    twice([1, 2, 3])
    assert parents("n.zip") == [["", "      m.zip: filled again since"], ["  ", "    p.zip: as it was"]]
    CachedDataset(Keyed([1]), "p.zip", progress=False)
    assert parents("m.zip") == [["", "      p.zip: filled again since"]]
    (here / "moved").mkdir()
    for name in ("m.zip", "n.zip"):
        (here / name).rename(here / "moved" / name)
    (here / "p.zip").unlink()
    moved = [["", "      moved/m.zip: filled again since"], ["  ", "    p.zip: not there"]]
    assert parents("moved/n.zip") == moved
    with CacheWriter("moved/m.zip", "w") as writer:
        writer.append({"x": 1})
    assert parents("moved/n.zip") == [["", "      moved/m.zip: another archive"]]
    del child


@pytest.mark.parametrize(
    "named",
    [5, [5], [{}], [{"path": "https://localhost:1/a.zip"}], [{"path": "/dev/null"}], [{"path": "a\0b"}]],
)
def test_info_takes_any_parents_that_a_program_may_have_written(here, named):
    CachedDataset([{"x": 1}], "a.zip", fingerprint={"parents": named}, progress=False)
    run("info a.zip")


def test_info_shows_what_an_archive_holds(archive):
    shown = run("info", archive).stdout
    lines = dict(line.split(None, 1) for line in shown.splitlines() if "  " in line)
    assert (lines["samples"], lines["missing"], lines["sealed"]) == ("10", "0", "yes")
    assert lines["file"].endswith(f"({archive.stat().st_size:,} bytes)")
    assert lines["labels"].startswith("label: int64, split: string, score: double, when: timestamp")
    assert lines["image"].split() == ["tensor", "float32", "3", "x", "4"]


@pytest.mark.parametrize(("nbytes", "torn"), [(4096, 0), (4096, 904), (-10, 0)])
def test_info_counts_the_bytes_of_a_cut_file_and_those_of_no_whole_entry(archive, tmp_path, nbytes, torn):
    cut = tmp_path / "cut.zip"
    # Of -10 the zip directory alone is cut; of an entry that is being written the header lacks.
    cut.write_bytes(archive.read_bytes()[:nbytes] + bytes(torn))
    said, text, size = report("info", cut), run("info", cut).stdout, cut.stat().st_size
    assert (said["nbytes"], said["torn_nbytes"]) == (size, torn)
    told = f", the last {torn} of an entry that is being written, or was cut" if torn else ""
    assert f"({size:,} bytes{told})\n" in text
    assert CachedDataset.from_cache(cut, allow_partial=True).info()["nbytes"] == size


def test_info_as_json_has_stable_keys(archive, partial, tmp_path):
    said = report("info", archive)
    keys = (
        "path format_version uuid sealed takes_values samples missing failed chunks nbytes torn_nbytes memory"
    )
    more = "record_nbytes codec compression labels schemas fingerprint"
    assert list(said) == [*keys.split(), *more.split()]
    nbytes = Reader(archive).session.index.all_rows()["nbytes"]
    sizes = {"total": int(nbytes.sum()), "median": float(np.median(nbytes)), "max": int(nbytes.max())}
    assert said["record_nbytes"] == sizes
    assert sum(schema["samples"] for schema in said["schemas"]) == 10
    image = {"path": "image", "kind": "tensor", "dtype": "float32", "shape": [3, 4]}
    assert said["schemas"][0]["fields"][0] == image
    said = report("info", partial)
    assert (said["samples"], said["missing"], said["sealed"], said["chunks"]) == (6, 3, False, 1)
    CacheWriter(tmp_path / "empty.zip").close()
    assert report("info", tmp_path / "empty.zip")["samples"] == 0


def test_labels_are_listed_of_the_samples_that_have_a_record(archive, partial):
    header, *_, fourth = run("labels", archive, "--limit", 5).stdout.splitlines()
    assert header.split() == ["index", "label", "split", "score", "when"]
    assert "test, \\x1b[31mred\\n  None" in fourth
    for i, row in enumerate(report("labels", archive)):
        labels = {name: value for name, value in sample(i).items() if name in ("label", "split", "score")}
        assert row == {"index": i, "labels": labels | {"when": f"2024-05-{i + 1:02}T00:00:00"}}
    assert [row["index"] for row in report("labels", partial)] == [0, 1, 5]


def test_show_prints_the_tree_of_a_sample(archive):
    rows = {line.split()[0]: line for line in run("show", archive, "--", -1).stdout.splitlines()}
    assert rows["image"].endswith("3 x 4  min 9, mean 14.5, max 20")
    assert rows["boxes"].endswith("items 9")
    assert rows["text"].endswith("xx...")
    assert len(rows["text"]) < 120
    said = json.loads(run("show --json", archive, "--", -7).stdout)
    assert said["index"] == 3
    leaves = {leaf.pop("path"): leaf for leaf in said["leaves"]}
    assert leaves["image"] == {
        "type": "torch.Tensor",
        "dtype": "float32",
        "shape": [3, 4],
        "min": 3.0,
        "mean": 8.5,
        "max": 14.0,
    }
    assert leaves["boxes.2"] == {"type": "float", "value": 1.5}
    assert leaves["raw"] == {"type": "bytes", "items": 2}
    assert leaves["score"] == {"type": "float", "value": 0.375}


def test_show_of_odd_leaves(tmp_path):
    odd = {
        "bf16": torch.linspace(0, 1, 10, dtype=torch.bfloat16),
        "nan": np.array([np.nan] * 9 + [2.0]),
        "huge": np.full(9, 1e308),
        "bools": torch.tensor([True, False] * 5),
        "complex": torch.zeros(9, dtype=torch.complex64),
        "times": np.arange(9).astype("datetime64[D]"),
        "small": np.array([0.1, 2.0], np.float32),
        "empty": np.zeros((0, 4)),
        "words": np.array(["a\x1b"] * 2),
        "inf": float("inf"),
        "nothing": [],
        "long": -(2**20_000) - 1,
        "deep": [{"a": (1, None)}],
    }
    path = tmp_path / "odd.zip"
    write(path, [odd, 3])
    rows = {line.split()[0]: line for line in run("show", path, 0).stdout.splitlines()}
    ends = {
        "bf16": "min 0, mean 0.5, max 1",
        "nan": "min 2, mean 2, max 2, nonfinite 9",
        "huge": "min 1e+308, mean inf, max 1e+308",
        "bools": "min False, mean 0.5, max True",
        "small": "[0.1, 2]",
        "empty": "0 x 4",
        "words": "[a\\x1b, a\\x1b]",
        "long": "-0x10000000... of 20,001 bits",
        "deep.0.a.1": "NoneType                 None",
    }
    assert [name for name, end in ends.items() if " ".join(rows[name].split()[-1:]) not in end] == []
    assert all(rows[name].endswith(ends[name]) for name in list(ends)[:-1])
    assert len(report("show", path, 0)["leaves"]) >= len(odd)
    assert report("show", path, 1)["leaves"] == [{"path": "", "type": "int", "value": 3}]


# ----------------------------------------------------------------------------------------- labels


def test_labels_are_listed_filtered_and_counted(archive, partial):
    where = "--where \"label in (1, 2) and split == 'train'\""
    lines = run(f"labels {archive} {where} --columns label,score").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["index", "label", "score"],
        *(["1", "1", "0.125"], ["5", "2", "0.625"], ["7", "1", "0.875"]),
    ]
    rows = report("labels", archive, "--columns", "score", "--limit", 5)
    assert rows[3:] == [{"index": 3, "labels": {"score": 0.375}}, {"index": 4, "labels": {"score": None}}]
    assert report("labels", archive, "--where", "label > 9") == []
    assert report("labels", archive, "--count", "label") == [
        *({"value": 0, "count": 4}, {"value": 1, "count": 3}, {"value": 2, "count": 3})
    ]
    assert run("labels", archive, "--count", "label", "--csv").stdout == "value,count\n0,4\n1,3\n2,3\n"
    assert run("labels", partial, "--csv").stdout == "index,label\n0,0\n1,1\n5,2\n"
    assert report("labels", partial, "--count", "label", "--where", "label is None") == []


def test_labels_as_csv_round_trip(archive):
    rows = list(csv.DictReader(io.StringIO(run("labels", archive, "--csv").stdout, newline="")))
    labels = CachedDataset.from_cache(archive).labels
    assert [int(row["index"]) for row in rows] == list(range(10))
    assert [int(row["label"]) for row in rows] == labels["label"].tolist()
    assert [row["split"] for row in rows] == labels["split"].tolist()
    assert [row["score"] for row in rows] == ["" if i == 4 else str(i / 8) for i in range(10)]
    assert rows[2]["when"] == "2024-05-03T00:00:00"


def test_a_terminal_gets_no_control_characters_and_no_letters_that_it_lacks(tmp_path):
    path = tmp_path / "a.zip"
    write(path, ({"s": text} for text in ("\x1b[31mred", "\u65e5")), in_memory_keys=["s"])
    command = [sys.executable, "-m", "edcache", "labels", str(path), "--csv"]
    plain = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout
    assert plain == "index,s\n0,\x1b[31mred\n1,\u65e5\n"
    mine, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    subprocess.run(command, check=True, stdout=theirs, env=environment)
    shown = os.read(mine, 1000)
    os.close(mine)
    os.close(theirs)
    assert b"\x1b" not in shown
    assert shown.splitlines()[1:] == [b"0,\\x1b[31mred", b"1,\\u65e5"]


def test_a_table_has_twenty_rows_unless_more_are_asked_for(tmp_path):
    path = tmp_path / "many.zip"
    write(path, range(1000), in_memory_keys={"name": lambda i: "\x1b[31m"})
    shown = run("labels", path)
    assert shown.stdout.splitlines()[1].split() == ["0", "\\x1b[31m"]
    assert shown.stdout.count("\n") == 21
    assert shown.stderr.startswith("... of 1,000 rows; ")
    shown = run("labels", path, "--limit", 1000)
    assert (shown.stdout.count("\n"), shown.stderr) == (1001, "")
    assert run("labels", path, "--csv").stdout.count("\n") == 1001
    assert len(report("labels", path)) == 1000


# ----------------------------------------------------------------------- verify, digest and copy


def test_verify_of_what_is_sound(archive):
    counts = {"samples": 10, "missing": 0, "failures": 0, "chunks": 1, "nbytes": archive.stat().st_size}
    expected = {"path": str(archive), "sound": True, "quick": False, "sealed": True, **counts}
    assert report("verify", archive) == {**expected, "has_writer": False, "problems": []}
    assert report("verify", archive, "--quick")["quick"]
    assert run("verify", archive).stdout.startswith(f"{archive}: OK: 10 samples in 1 chunk, ")


def test_verify_exits_with_1_for_what_is_not(damaged, partial, grown):
    said = report("verify", damaged, code=1)
    assert not said["sound"]
    lines = run("verify", damaged, code=1).stdout.splitlines()
    assert said["problems"] == lines[:-1]
    assert all(line.startswith(f"{damaged}: ") for line in lines)
    assert 'run "edcache verify' in error_of("show", damaged, 3)
    run("show", damaged, 4)
    said = report("verify", partial, code=1)
    assert (said["sealed"], said["missing"], said["problems"]) == (False, 3, [])
    assert "its writer was killed" in run("verify", partial, code=1).stdout
    said = report("verify", grown, code=1)
    assert (said["failures"], said["missing"], said["chunks"]) == (1, 1, 3)


@pytest.mark.parametrize("command", ["info", "verify"])
def test_several_archives_are_reported_one_after_the_other_and_the_worst_decides(command, archive, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    good = [folder / "part-2.zip", folder / "part-10.zip"]
    for path in good:
        path.write_bytes(archive.read_bytes())
    for paths in (good, [folder], [folder / "part-*.zip"]):
        assert [one["path"] for one in report(command, *paths)] == list(map(str, good))
    text = run(command, *good).stdout
    assert text.index("part-2.zip") < text.index("part-10.zip")
    bad = folder / "part-1.zip"
    bad.write_bytes(b"no archive")
    shown = run(command, folder, "--json", code=1)
    found = [("error" in one, one["path"]) for one in json.loads(shown.stdout)]
    assert found == [(path is bad, str(path)) for path in [bad, *good]]
    assert shown.stderr.startswith(f"edcache: {bad}: not an edcache archive")
    assert report(command, good[0])["path"] == str(good[0])


def test_digest_is_what_sha256sum_prints_and_copy_compares(archive, partial, tmp_path):
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert run("digest", archive).stdout == f"sha256:{digest}\n"
    assert report("digest", archive) == {"path": str(archive), "digest": f"sha256:{digest}"}
    error_of("digest", partial)
    assert digest in error_of("copy", archive, tmp_path, "--digest", "0" * 64)
    error_of("copy", archive, tmp_path, "--digest", "12")
    run("copy", archive, tmp_path, "--digest", digest)
    assert (tmp_path / archive.name).read_bytes() == archive.read_bytes()
    for line in (f"{archive} -o a.zip --digest {digest}", f"{archive} {tmp_path} --where label==1", archive):
        run(f"copy {line}", code=2)


def test_copy_leaves_out_what_is_damaged(damaged, archive, tmp_path):
    target = tmp_path / "new.zip"
    assert error_of("copy", damaged, "-o", target).endswith("(--skip-damaged)")
    assert not target.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("copy", damaged, "-o", target, "--skip-damaged", "--json")
    (listed,) = json.loads(done.stdout)
    assert (listed["samples"], listed["present"]) == (10, 6)
    assert done.stderr.startswith(
        f"edcache: warning: {target}: the records of 4 of 10 samples are damaged and"
    )
    assert CachedDataset.from_cache(target).missing.tolist() == [3, 6, 7, 8]
    assert report("verify", target)["sound"]
    data = bytearray(archive.read_bytes())
    data[data.rindex(b'{"head"') + 9] ^= 1
    damaged.write_bytes(data)
    error_of("copy", damaged, "-o", tmp_path / "whole.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        said = run("copy", damaged, "-o", tmp_path / "whole.zip", "--skip-damaged").stderr
    assert said.startswith(f"edcache: warning: {damaged}: root.json at offset ")
    state = "; read are [0-9] chunks, with 0 chunks found behind the damage: 10 of 10 samples; if a seal"
    assert re.search(state, said)
    assert CachedDataset.from_cache(tmp_path / "whole.zip").complete


def test_copy_replaces_an_archive_by_fewer_samples_only_if_it_is_forced(archive, tmp_path):
    """A command that is followed blindly takes nothing away."""
    cut = tmp_path / "cut.zip"
    cut.write_bytes(archive.read_bytes()[:5000])
    before = cut.read_bytes()
    remedy = f'"edcache copy {cut} -o NEW --skip-damaged"'
    assert remedy in error_of("digest", cut)
    assert remedy in run("verify", cut, code=1).stdout
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        refused = run("copy", cut, "-o", cut, "--skip-damaged", code=1).stderr.strip()
    assert "would leave at most 0 of the 10 samples" in refused
    assert refused.endswith("(--force)")
    assert cut.read_bytes() == before
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("copy", cut, "-o", cut, "--skip-damaged", "--force", "--json")
    assert "the file ends within chunks/00000001" in done.stderr
    (listed,) = json.loads(done.stdout)
    assert listed["present"] == 0
    run("copy", archive, tmp_path, "--force", code=2)


def test_copy_joins_filters_and_divides(archive, tmp_path):
    (tmp_path / "parts").mkdir()
    for number in (2, 10):
        (tmp_path / "parts" / f"part-{number}.zip").write_bytes(archive.read_bytes())
    both, few = tmp_path / "both.zip", tmp_path / "few.zip"
    (listed,) = report("copy", tmp_path / "parts", "-o", both)
    assert listed == {"path": str(both), "samples": 20, "present": 20, "nbytes": both.stat().st_size}
    run("copy", both, "-o", few, "--where", "label in (0, 2)")
    assert CachedDataset.from_cache(few).labels["label"].tolist() == [0, 2, 0, 2, 0, 2, 0] * 2
    listed = report("copy", both, "-o", tmp_path / "p.zip", "--max-size", "10KB")
    files = sorted(tmp_path.glob("p-*.zip"))
    assert [one["path"] for one in listed] == list(map(str, files))
    assert len(CachedDataset.from_cache(files)) == 20
    error_of("copy", archive, "-o", both)


def test_copy_over_itself_gives_back_what_is_outdated(grown):
    before = grown.stat().st_size
    error_of("copy", grown, "-o", grown)
    assert grown.stat().st_size == before
    (listed,) = report("copy", grown, "-o", grown, "--skip-damaged")
    assert (listed["samples"], listed["present"]) == (12, 11)
    assert listed["nbytes"] == grown.stat().st_size < before
    assert CachedDataset.from_cache(grown)[3]["when"] == sample(8)["when"]
    assert len(CachedDataset.from_cache(grown).errors) == 1


@pytest.mark.parametrize(
    ("indices", "text"),
    [([17, 40, 41, 42], "17, 40-42"), ([0], "0"), ([0, 1], "0-1"), ([1, 3, 5], "1, 3, 5")],
)
def test_indices_are_shown_as_ranges(indices, text):
    assert index_ranges(np.array(indices)) == text


def test_very_many_ranges_are_cut():
    shown = index_ranges(np.arange(0, 1000, 2))
    assert shown.endswith("396, 398, and 300 more runs; --json lists all")


@pytest.mark.parametrize("line", ["verify {}", "digest {}", "copy {} -o {}.copy"])
def test_progress_is_on_stderr_and_only_when_asked(archive, tmp_path, line):
    path = tmp_path / "a.zip"
    path.write_bytes(archive.read_bytes())
    assert run(line.format(path, path)).stderr == ""
    (tmp_path / "a.zip.copy").unlink(missing_ok=True)
    assert "a.zip" in run(line.format(path, path), "--progress").stderr


# ------------------------------------------------------------------------------- all commands alike


# Command lines that go wrong, and a part of what they say on one line.
WRONG = {
    "show {} 10": "no sample 10; there are 10, from 0 on or from -1 back",
    "labels {} --count lable": "did you mean label?",
    "labels {} --columns label,y": 'no label "y"',
    "labels {} --where spilt=='a'": "did you mean split?",
    "labels {} --where split==train": 'write text in quotes: "train"',
    "labels {} --where \"label __import__('os')\"": "column 1: invalid syntax",
    "build nowhere.at:all -o new.zip": "ModuleNotFoundError: No module named 'nowhere'",
    "build digits:mak -o new.zip": "AttributeError: module 'digits' has no attribute 'mak'",
    "build digits:number -o new.zip": '"digits:number" is 7, not a function that makes a dataset',
    "build digits:broken -o new.zip": "digits:broken raised RuntimeError: no data; here; EDCACHE_DEBUG=1",
    "import old.zip -o new.zip --from edflow": "old.zip: No such file or directory",
    "images nowhere -o new.zip": "nowhere: No such file or directory",
}
WRONG_USAGE = {
    "inf {}": "inf",
    "info": "PATH...",
    "info {} --jsn": "--jsn",
    "show {} x": "INDEX",
    "import {} -o new --from csv": "--from",
    "build digits.make -o new.zip": "package.module:factory",
    "build digits:make -o new.zip": "missing a required argument: 'split'",
    "build digits:make -o new.zip --arg split=a --arg k=1": "'k'",
    "build digits:make -o new.zip --arg split": "name=value",
    "build digits:make -o new.zip --arg split=a --chunk-size 0": "--chunk-size",
    "build digits:make -o new.zip --arg split=a -j two": "give a number, or auto",
    "build digits:make -o new.zip --key =x": "--key",
    "labels {} --count x --columns y": "--count shows one column",
    "caches --max-size x": "500MB",
}


@pytest.mark.parametrize("line", [*WRONG, *WRONG_USAGE])
def test_a_wrong_use_says_so_and_makes_nothing(here, archive, line):
    if line in WRONG:
        assert WRONG[line] in error_of(line.format(archive))
    else:
        assert WRONG_USAGE[line] in run(line.format(archive), code=2).stderr
    assert not (here / "new.zip").exists()
    assert not (here / "new").exists()


def test_debug_shows_the_traceback(here, monkeypatch):
    monkeypatch.setenv("EDCACHE_DEBUG", "1")
    result = RUNNER.invoke(main, ["build", "digits:broken", "-o", "out.zip"])
    assert isinstance(result.exception.__cause__, RuntimeError)


def test_help_has_every_command_with_an_example():
    shown = run("--help").stdout
    for name in main.commands:
        assert f"\n  {name} " in shown
        assert f"\n  Example:\n    edcache {name} " in run(f"{name} --help").stdout
    assert run("--version").stdout.startswith("edcache 0.")


def test_one_thing_has_one_name_in_all_commands():
    reports = {
        name for name, c in main.commands.items() if any("--json" in option.opts for option in c.params)
    }
    assert set(main.commands) - reports == {"view"}
    for name, command in main.commands.items():
        for option in command.params:
            assert ("-o" in option.opts) == ("--output" in option.opts), name


def test_help_does_not_wait_for_torch():
    code = "import sys, edcache.cli; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_what_reads_labels_does_not_wait_for_torch(archive):
    code = """
        import sys
        from edcache.cli import main
        path, = sys.argv[1:]
        calls = ["info"], ["labels", "--count", "label"], ["labels", "--where", "label == 1"]
        for name, *rest in calls:
            main([name, path, *rest], standalone_mode=False)
            assert "pandas" not in sys.modules, name
        sys.exit("torch" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(archive)]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def test_as_a_module_errors_are_one_line(tmp_path):
    process = start("info", tmp_path / "none.zip")
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err == f"edcache: {tmp_path}/none.zip: no such file; check the path, or build the cache first\n"


@pytest.mark.full
def test_a_reader_that_stops_reading_ends_it_quietly(tmp_path):
    path = tmp_path / "many.zip"
    write(path, range(20_000), in_memory_keys={"name": lambda i: f"sample {i}"})
    process = start("labels", path, "--csv")
    assert process.stdout.readline() == "index,name\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()
