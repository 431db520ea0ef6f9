"""The command line: what it prints, its exit codes, and that no error is more than a line."""

import contextlib
import csv
import datetime
import hashlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pictures
import pytest
import torch
from cli_runner import RUNNER
from filled import available

from edcache import CachedDataset, CacheWriter
from edcache.base import index_ranges
from edcache.base.wording import human_bytes
from edcache.cli import main
from edcache.format.spec import Head
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
                raise ValueError("cannot decode\\nthis one")
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

    number = 7
"""


def run(*arguments, code=0, **options):
    result = RUNNER.invoke(main, [str(a) for a in arguments], **options)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def objects_of(*arguments):
    """The rows of a command as JSON, one object a line."""
    return list(map(json.loads, run(*arguments, "--jsonl").stdout.splitlines()))


def error_of(*arguments, code=1):
    """The one line that a failing command leaves on stderr."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert result.stderr.startswith("edcache: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.endswith("\n")
    return result.stderr[len("edcache: ") : -1]


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
    with CacheWriter(path, in_memory_keys=["label", "split", "score", "when"]) as writer:
        writer.extend(map(sample, range(10)))
    return path


@pytest.fixture(scope="module")
def partial(tmp_path_factory):
    """Samples 0, 1 and 5 of an archive that was never sealed."""
    path = tmp_path_factory.mktemp("cli") / "partial.zip"
    writer = CacheWriter(path, in_memory_keys=["label"])
    for i in (0, 1, 5):
        writer.write(i, sample(i))
    writer.abort()
    return path


def computed(here):
    log = here / "computed.txt"
    lines = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return [int(line) for line in lines]


# ------------------------------------------------------------------------------------------ build


def test_build_fills_an_archive_and_says_so_in_one_line(here):
    result = run("build", "digits:make", "-o", "out.zip", "--key", "label", "--arg", "split=train")
    assert "out.zip: 6 samples (6 computed now, 0 kept), " in result.stdout
    assert result.stdout.count("\n") == 1
    cache = CachedDataset.from_cache("out.zip")
    assert cache.complete
    assert cache.labels["label"].tolist() == [0, 1, 2, 0, 1, 2]
    assert cache[5]["meta"] == {"split": "train"}


def test_building_again_computes_nothing(here):
    run("build", "digits:make", "-o", "out.zip", "--arg", "split=train")
    assert computed(here) == list(range(6))
    result = run("build", "digits:make", "-o", "out.zip", "--arg", "split=train")
    assert "(0 computed now, 6 kept)" in result.stdout
    assert computed(here) == []


def test_keys_may_name_columns_and_paths(here):
    run(
        "build",
        "digits:make",
        "-o",
        "out.zip",
        "--key",
        "label",
        "--key",
        "part=meta.split",
        "--arg",
        "split=a",
    )
    labels = CachedDataset.from_cache("out.zip").labels
    assert list(labels) == ["label", "part"]
    assert set(labels["part"]) == {"a"}


def test_arguments_are_json_where_they_are_json(here):
    run("build", "digits:make", "-o", "out.zip", "--arg", 'split="3"', "--arg", "n=4", "--version", "7")
    said = json.loads(run("info", "out.zip", "--json").stdout)
    assert said["samples"] == 4
    assert said["fingerprint"]["arguments"] == {"split": "3", "n": 4}
    assert said["fingerprint"]["version"] == 7
    assert said["fingerprint"]["factory"] == "digits:make"


def test_what_json_lacks_stays_text(here):
    run("build", "digits:make", "-o", "out.zip", "--arg", "split=NaN", "--arg", "n=1")
    assert CachedDataset.from_cache("out.zip")[0]["meta"]["split"] == "NaN"


def test_a_cachable_call_opens_what_was_built(here):
    run("build", "digits:cached", "-o", "train.zip", "--arg", "split=train")
    computed(here)
    import digits

    cache = digits.cached("train")
    assert computed(here) == []
    assert cache.labels["label"].tolist() == [0, 1, 2, 0, 1, 2]
    assert cache._reader.head.fingerprint["version"] == 2


def test_a_stale_archive_is_an_error_that_names_the_difference_and_the_option(here):
    build = ["build", "digits:make", "-o", "out.zip", "--arg"]
    run(*build, "split=train")
    message = error_of(*build, "split=test")
    assert "made by another call: argument split: 'train' in the archive, 'test' now" in message
    assert message.endswith(" (--rebuild)")
    run(*build, "split=test", "--rebuild")
    assert CachedDataset.from_cache("out.zip")[0]["meta"]["split"] == "test"


def test_compression_chunks_and_pickle_reach_the_archive(here):
    common = ["--arg", "split=a"]
    run(
        "build",
        "digits:make",
        "-o",
        "z.zip",
        *common,
        "--compression",
        "zstd:3",
        "--chunk-size",
        2,
        "--progress",
    )
    said = json.loads(run("info", "z.zip", "--json").stdout)
    assert said["compression"] == "zstd:3"
    assert said["record_nbytes"]["uncompressed"] > 0
    run("build", "digits:Pairs", "-o", "p.zip", "--codec", "pickle", "--key", "first=0")
    assert "pickles" in error_of("show", "p.zip", 0)
    assert "{2}" in run("show", "p.zip", 2, "--allow-pickle").stdout
    assert run("labels", "p.zip", "--columns", "first", "--csv").stdout == "index,first\n0,0\n1,1\n2,2\n3,3\n"
    assert "\npickles\n" in run("info", "p.zip").stdout


def test_a_sample_that_raises_is_one_line_and_the_rest_is_kept(here, monkeypatch):
    monkeypatch.setenv("FAIL_AT", "4")
    build = ["build", "digits:make", "-o", "out.zip", "--arg", "split=a"]
    message = error_of(*build)
    assert "index 4: ValueError: cannot decode; this one" in message
    monkeypatch.delenv("FAIL_AT")
    result = run(*build)
    assert "(2 computed now, 4 kept)" in result.stdout
    assert "out.zip: 4 of 6 already cached" in result.stderr


def test_an_interrupt_says_how_to_resume(here, monkeypatch):
    monkeypatch.setenv("STOP_AT", "3")
    build = ["build", "digits:make", "-o", "out.zip", "--arg", "split=a"]
    message = error_of(*build, code=130)
    assert message == "interrupted; out.zip keeps what was computed, run the same command again to go on"
    monkeypatch.delenv("STOP_AT")
    assert "(3 computed now, 3 kept)" in run(*build).stdout
    monkeypatch.setenv("STOP_AT", "3")
    message = error_of(*build, "--rebuild", code=130)
    assert message == "interrupted; out.zip is as it was before, a rebuild starts from nothing"
    assert CachedDataset.from_cache("out.zip").complete


@pytest.mark.full
def test_a_killed_build_resumes_where_it_stopped(here):
    build = ["build", "digits:make", "-o", "out.zip", "--arg", "split=a", "--arg", "n=60"]
    process = start(*build, "--chunk-size", 2, cwd=here, env={"SLOW": "0.05"})
    deadline = time.monotonic() + 60
    while not (here / "out.zip").exists() or len(Reader("out.zip", allow_partial=True).records.offset) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(Reader("out.zip", allow_partial=True).records.offset)
    assert 4 <= kept < 60
    second = start(*build, cwd=here)
    out, err = second.communicate()
    assert second.returncode == 0
    assert f"out.zip: {kept} of 60 already cached" in err
    assert f"({60 - kept} computed now, {kept} kept)" in out
    assert "out.zip: OK: 60 samples" in run("verify", "out.zip").stdout


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (
            "nowhere.at:all",
            'cannot load "nowhere.at:all": no module "nowhere" in this folder, and none is installed',
        ),
        ("digits:mak", 'cannot load "digits:mak": no "mak" in it; did you mean make?'),
        ("digits:number", '"digits:number" is 7, not a function that makes a dataset'),
        ("digits:broken", "digits:broken raised RuntimeError: no data; here; EDCACHE_DEBUG=1 shows"),
        ("digits:Pairs", "cannot store set"),
    ],
)
def test_a_factory_that_fails_is_one_line(here, factory, expected):
    assert expected in error_of("build", factory, "-o", "out.zip")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["digits.make"], "write it as package.module:factory"),
        (["digits:make"], "missing a required argument: 'split'"),
        (["digits:make", "--arg", "split=a", "--arg", "k=1"], 'digits:make: no argument "k"'),
        (["digits:make", "--arg", "split"], "write it as name=value"),
        (["digits:make", "--chunk-size", "0"], "--chunk-size"),
    ],
)
def test_wrong_usage_exits_with_2(here, arguments, expected):
    assert expected in run("build", *arguments, "-o", "out.zip", code=2).stderr
    assert not (here / "out.zip").exists()


def test_debug_shows_the_traceback(here, monkeypatch):
    monkeypatch.setenv("EDCACHE_DEBUG", "1")
    result = RUNNER.invoke(main, ["build", "digits:broken", "-o", "out.zip"])
    assert isinstance(result.exception.__cause__, RuntimeError)


# -------------------------------------------------------------------------------------- info and ls


def test_info_shows_what_an_archive_holds(archive):
    shown = run("info", archive).stdout
    lines = dict(line.split(None, 1) for line in shown.splitlines() if "  " in line)
    assert lines["samples"] == "10"
    assert lines["missing"] == "0"
    assert lines["sealed"] == "yes"
    assert lines["file"].endswith(f"({archive.stat().st_size:,} bytes)")
    assert lines["labels"].startswith("label: int64, split: string, score: double, when: timestamp")
    assert lines["image"].split() == ["tensor", "float32", "3", "x", "4"]


def test_info_as_json_has_stable_keys(archive):
    said = json.loads(run("info", archive, "--json").stdout)
    assert list(said) == [
        "path",
        "format_version",
        "uuid",
        "sealed",
        "samples",
        "missing",
        "failed",
        "chunks",
        "nbytes",
        "memory",
        "record_nbytes",
        "codec",
        "compression",
        "labels",
        "schemas",
        "fingerprint",
    ]
    nbytes = Reader(archive).records.nbytes
    assert said["record_nbytes"] == {
        "total": int(nbytes.sum()),
        "median": float(np.median(nbytes)),
        "max": int(nbytes.max()),
        "uncompressed": None,
    }
    assert sum(schema["samples"] for schema in said["schemas"]) == 10
    image = {"path": "image", "kind": "tensor", "dtype": "float32", "shape": [3, 4]}
    assert said["schemas"][0]["fields"][0] == image


def test_info_of_an_unsealed_archive_counts_what_is_missing(partial):
    said = json.loads(run("info", partial, "--json").stdout)
    assert (said["samples"], said["missing"], said["sealed"]) == (6, 3, False)
    assert said["chunks"] == 1


def test_info_of_an_archive_without_a_sample(tmp_path):
    path = tmp_path / "empty.zip"
    CacheWriter(path).close()
    assert "samples      0" in run("info", path).stdout
    assert run("ls", path).stdout == "index  offset  nbytes  crc32\n"
    assert run("ls", path, "--jsonl").stdout == ""
    assert run("labels", path).stdout == "index\n"
    assert "OK: 0 samples" in run("verify", path).stdout
    assert "no sample 0; there are 0" in error_of("show", path, 0)


def test_ls_lists_records_with_their_labels(archive):
    result = run("ls", archive, "--offset", 3, "--limit", 2)
    header, third, fourth = result.stdout.splitlines()
    assert header.split() == ["index", "offset", "nbytes", "crc32", "label", "split", "score", "when"]
    records = Reader(archive).records
    assert third.split()[:6] == [
        "3",
        f"{records.offset[3]:,}",
        f"{records.nbytes[3]:,}",
        f"{records.crc32[3]:#010x}",
        "0",
        "train",
    ]
    assert "test, \\x1b[31mred\\n  None" in fourth
    assert result.stderr == ""
    assert run("ls", archive, "--csv", "--limit", 1).stdout.splitlines()[0] == ",".join(header.split())


def test_ls_as_json(archive, partial):
    listed = objects_of("ls", archive, "--limit", 100)
    assert [row["index"] for row in listed] == list(range(10))
    assert listed[4]["labels"] == {
        "label": 1,
        "split": "test, \x1b[31mred\n",
        "score": None,
        "when": "2024-05-05T00:00:00",
    }
    assert [row["index"] for row in objects_of("ls", partial)] == [0, 1, 5]
    assert objects_of("ls", archive, "--offset", 50) == []


# ------------------------------------------------------------------------------------------- show


def test_show_prints_the_tree_of_a_sample(archive):
    rows = {line.split()[0]: line for line in run("show", archive, -1).stdout.splitlines()}
    assert rows["image"].split(None, 3)[1:3] == ["torch.Tensor", "float32"]
    assert rows["image"].endswith("3 x 4  min 9, mean 14.5, max 20")
    assert "'train'" in rows["split"]
    assert rows["boxes"].endswith("9 items")
    assert rows["text"].endswith("xx...")
    assert len(rows["text"]) < 120
    assert "2024-05-10" in rows["when"]


def test_show_escapes_what_could_steer_a_terminal(archive):
    shown = run("show", archive, 0).stdout
    assert "\x1b" not in shown
    assert "'test, \\x1b[31mred\\n'" in shown


def test_show_as_json(archive):
    said = json.loads(run("show", archive, "-7", "--json").stdout)
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
        "allnan": np.full(9, np.nan),
        "huge": np.full(9, 1e308),
        "bools": torch.tensor([True, False] * 5),
        "complex": torch.zeros(9, dtype=torch.complex64),
        "times": np.arange(9).astype("datetime64[D]"),
        "small": np.array([0.1, 2.0], np.float32),
        "scalar": np.float32(0.5),
        "empty": np.zeros((0, 4)),
        "words": np.array(["a\x1b"] * 2),
        "inf": float("inf"),
        "nothing": [],
        "deep": [{"a": (1, None)}],
    }
    path = tmp_path / "odd.zip"
    with CacheWriter(path) as writer:
        writer.append(odd)
        writer.append(3)
    rows = {line.split()[0]: line for line in run("show", path, 0).stdout.splitlines()}
    assert rows["bf16"].endswith("min 0, mean 0.5, max 1")
    assert rows["nan"].endswith("min 2, mean 2, max 2, 9 not finite")
    assert rows["allnan"].endswith("9 not finite")
    assert rows["huge"].endswith("min 1e+308, mean inf, max 1e+308")
    assert rows["bools"].endswith("min False, mean 0.5, max True")
    assert rows["small"].endswith("[0.1, 2]")
    assert rows["empty"].endswith("0 x 4")
    assert rows["words"].endswith("[a\\x1b, a\\x1b]")
    assert rows["deep.0.a.1"].split() == ["deep.0.a.1", "NoneType", "None"]
    json.loads(run("show", path, 0, "--json").stdout, parse_constant=pytest.fail)
    assert run("show", path, 1).stdout.splitlines()[1].split() == [".", "int", "3"]


# ----------------------------------------------------------------------------------------- labels


def test_labels_as_a_table(archive):
    result = run(
        "labels", archive, "--where", "label in (1, 2) and split == 'train'", "--columns", "label,score"
    )
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["index", "label", "score"],
        ["1", "1", "0.125"],
        ["5", "2", "0.625"],
        ["7", "1", "0.875"],
    ]


def test_labels_as_csv_round_trip(archive):
    rows = list(csv.DictReader(io.StringIO(run("labels", archive, "--csv").stdout, newline="")))
    cache = CachedDataset.from_cache(archive)
    assert [int(row["index"]) for row in rows] == list(range(10))
    assert [int(row["label"]) for row in rows] == cache.labels["label"].tolist()
    assert [row["split"] for row in rows] == cache.labels["split"].tolist()
    assert [row["score"] for row in rows] == ["" if i == 4 else str(i / 8) for i in range(10)]
    assert rows[2]["when"] == "2024-05-03T00:00:00"


def test_labels_as_json(archive):
    rows = objects_of("labels", archive, "--columns", "score", "--limit", 5)
    assert rows[3:] == [{"index": 3, "labels": {"score": 0.375}}, {"index": 4, "labels": {"score": None}}]
    assert objects_of("labels", archive, "--where", "label > 9") == []


def test_labels_count_most_frequent_first(archive):
    counted = run("labels", archive, "--count", "label", "--csv").stdout
    assert counted == "value,count\n0,4\n1,3\n2,3\n"
    counted = objects_of("labels", archive, "--count", "label", "--where", "split == 'train'")
    assert sorted(counted, key=str) == [
        {"value": 0, "count": 2},
        {"value": 1, "count": 2},
        {"value": 2, "count": 1},
    ]
    assert run("labels", archive, "--count", "label", "--limit", 1).stdout == "value  count\n    0      4\n"


def test_labels_leave_out_samples_without_a_record(partial):
    assert run("labels", partial, "--csv").stdout == "index,label\n0,0\n1,1\n5,2\n"
    assert run("labels", partial, "--count", "label", "--where", "label is None").stdout == "value  count\n"


def test_labels_errors(archive):
    assert error_of("labels", archive, "--where", "lable == 1") == (
        'no label "lable"; this archive has: label, split, score, when; did you mean label?'
    )
    assert error_of("labels", archive, "--count", "x").startswith('no label "x"')
    assert error_of("labels", archive, "--columns", "label,y").startswith('no label "y"')
    assert "column 1: invalid syntax" in error_of("labels", archive, "--where", "label __import__('os')")
    assert (
        "leave --columns out" in run("labels", archive, "--count", "label", "--columns", "x", code=2).stderr
    )


def test_labels_are_added_from_files_and_dropped(tmp_path):
    path = str(tmp_path / "a.zip")
    with CacheWriter(path, in_memory_keys=["id", "split"]) as w:
        w.extend({"id": index, "split": "ab"[index % 2]} for index in range(4))
    np.save(tmp_path / "c.npy", np.arange(4) * 10)
    (tmp_path / "ages.csv").write_text("id,age\n2,30\n0,40\n")
    (tmp_path / "all.csv").write_text("u,v\n1,a\n2,b\n3,c\n4,d\n")
    cluster, ages = f"cluster={tmp_path / 'c.npy'}", f"years={tmp_path / 'ages.csv'}"
    assert run("labels", path, "--add", cluster).stdout == (
        f"{path}: labels are now id: int64, split: string, cluster: int64\n"
    )
    with pytest.warns(RuntimeWarning, match='2 of 4 samples have no row in the table of "id", and get None'):
        run("labels", path, "--add", ages, "--on", "id", "--drop", "split")
    run("labels", path, "--add", tmp_path / "all.csv")
    assert run("labels", path, "--csv").stdout.splitlines() == [
        "index,id,cluster,years,u,v",
        "0,0,0,40,1,a",
        "1,1,10,,2,b",
        "2,2,20,30,3,c",
        "3,3,30,,4,d",
    ]
    assert run("labels", path, "--drop", "id").stdout.startswith(f"{path}: labels are now cluster: int64")


def test_labels_that_cannot_be_added_are_refused(archive, tmp_path):
    table, text = tmp_path / "t.csv", tmp_path / "t.txt"
    table.write_text("a,b\n1,2\n")
    text.write_text("1")
    np.save(tmp_path / "o.npy", np.array([None, "x"], dtype=object), allow_pickle=True)
    assert (
        error_of("labels", archive, "--add", f"c={table}")
        == f'{table}: which column is "c" is open; it has a, b'
    )
    assert error_of("labels", archive, "--add", f"c={text}") == (
        f"{text}: labels are read from .csv, .parquet, .npy files"
    )
    assert error_of("labels", archive, "--add", "c=nowhere.npy") == "nowhere.npy: no such file"
    assert "cannot be read as npy: Object arrays cannot be loaded" in error_of(
        "labels", archive, "--add", f"c={tmp_path / 'o.npy'}"
    )
    assert error_of("labels", archive, "--drop", "nonsense").startswith('no label "nonsense"')
    assert "--on goes with --add" in run("labels", archive, "--on", "id", code=2).stderr
    both = run("labels", archive, "--drop", "label", "--count", "label", code=2).stderr
    assert "--add and --drop change labels; list them by another call" in both
    np.save(tmp_path / "n.npy", np.arange(2))
    assert (
        "has one column without a name" in run("labels", archive, "--add", tmp_path / "n.npy", code=2).stderr
    )


def test_a_file_that_cannot_be_read_drops_no_column(tmp_path):
    path = tmp_path / "a.zip"
    with CacheWriter(path, in_memory_keys=["y"]) as w:
        w.extend({"y": index} for index in range(4))
    before = path.read_bytes()
    error_of("labels", path, "--drop", "y", "--add", f"y={tmp_path / 'typo.npy'}")
    assert path.read_bytes() == before


def test_a_terminal_gets_no_control_characters_and_no_letters_that_it_lacks(tmp_path):
    path = tmp_path / "a.zip"
    with CacheWriter(path, in_memory_keys=["s"]) as w:
        w.extend({"s": text} for text in ("\x1b[31mred", "\u65e5"))
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


def test_an_archive_without_labels_lists_its_indices(tmp_path):
    path = tmp_path / "bare.zip"
    with CacheWriter(path) as writer:
        writer.extend(range(3))
    assert run("labels", path, "--csv").stdout == "index\n0\n1\n2\n"
    assert [row["labels"] for row in objects_of("ls", path)] == [{}] * 3
    assert "has no labels" in error_of("labels", path, "--where", "label == 1")


def test_an_integer_that_python_does_not_write_is_shown_by_its_head(tmp_path):
    with CacheWriter(tmp_path / "long.zip") as writer:
        writer.append({"n": -(2**20_000) - 1, "m": 7, "more": [2**20_000, 10**30]})
    leaves = {
        leaf["path"]: leaf["value"]
        for leaf in json.loads(run("show", tmp_path / "long.zip", 0, "--json").stdout)["leaves"]
    }
    assert leaves["n"] == "-0x10000000... of 20,001 bits"
    assert (leaves["m"], leaves["more.1"]) == (7, 10**30)
    assert "0x10000000... of 20,001 bits" in run("show", tmp_path / "long.zip", 0).stdout


# ----------------------------------------------------------------------------------------- verify


def test_verify_says_ok(archive, partial):
    assert run("verify", archive).stdout.startswith(f"{archive}: OK: 10 samples in 1 chunk, ")
    shown = run("verify", partial, "--progress", code=1).stdout
    assert f"{partial}: not whole: 6 samples, 3 missing in 1 chunk, " in shown
    assert shown.splitlines()[-2].endswith("not sealed")


def test_verify_lists_the_problems_and_exits_with_1(archive, tmp_path):
    path = tmp_path / "damaged.zip"
    data = bytearray(archive.read_bytes())
    data[Reader(archive).records.offset[3]] ^= 1
    path.write_bytes(data)
    lines = run("verify", path, code=1).stdout.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert f"{path}: {len(lines) - 1} problem" in lines[-1]
    said = json.loads(run("verify", path, "--json", code=1).stdout)
    assert said["sound"] is False
    assert said["problems"] == lines[:-1]
    assert 'run "edcache verify' in error_of("show", path, 3)
    run("show", path, 4)


def test_verify_as_json(archive):
    said = json.loads(run("verify", archive, "--json").stdout)
    assert said == {
        "path": str(archive),
        "sound": True,
        "quick": False,
        "sealed": True,
        "samples": 10,
        "missing": 0,
        "failures": 0,
        "chunks": 1,
        "nbytes": archive.stat().st_size,
        "superseded": 0,
        "dead": 0,
        "problems": [],
    }


def test_verify_may_leave_the_records_unread(archive):
    assert run("verify", archive, "--quick").stdout.endswith(", sealed; records were not read\n")
    assert json.loads(run("verify", archive, "--quick", "--json").stdout)["quick"] is True


@pytest.mark.parametrize("command", ["info", "verify"])
def test_several_archives_are_reported_one_after_the_other_and_the_worst_decides(command, archive, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    good = [folder / "part-2.zip", folder / "part-10.zip"]
    for path in good:
        path.write_bytes(archive.read_bytes())
    for paths in (good, [folder], [folder / "part-*.zip"]):
        listed = json.loads(run(command, *paths, "--json").stdout)
        assert [one["path"] for one in listed] == [str(path) for path in good]
        assert {one["samples"] for one in listed} == {10}
    text = run(command, *good).stdout
    assert text.index("part-2.zip") < text.index("part-10.zip")
    bad = folder / "part-1.zip"
    bad.write_bytes(b"no archive")
    shown = run(command, folder, "--json", code=1)
    assert [("error" in one, one["path"]) for one in json.loads(shown.stdout)] == [
        (path is bad, str(path)) for path in [bad, *good]
    ]
    assert f"edcache: {bad}: not an edcache archive" in shown.stderr
    text = run(command, folder, code=1).stdout
    assert text.startswith(("archive", str(good[0])))
    assert json.loads(run(command, good[0], "--json").stdout)["path"] == str(good[0])


def test_the_digest_is_that_of_one_archive(archive, partial):
    assert "--digest is that of one archive" in error_of(
        "verify", archive, partial, "--digest", "0" * 64, code=2
    )


def test_verify_compares_the_digest_that_was_published(archive):
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    run("verify", archive, "--digest", f"sha256:{digest}", "--quick")
    said = error_of("verify", archive, "--digest", "0" * 64)
    assert said == (
        f"{archive}: its sha256 is {digest}, expected {'0' * 64}; it is not the file that was published"
    )
    assert 'give "sha256:" and 64 hex digits' in error_of("verify", archive, "--digest", "12")


def test_verify_says_what_is_dead_and_what_failed(grown):
    lines = run("verify", grown, code=1).stdout.splitlines()
    assert lines[0].startswith(f"{grown}: not whole: 12 samples, 1 missing in 3 chunks, ")
    assert lines[2] == "1 sample failed when tried; they are among the missing"
    assert re.fullmatch(
        rf"5\.\d kB are dead, 1 outdated record among them; edcache copy {grown} -o {grown} leaves them out",
        lines[3],
    )


@pytest.fixture
def grown(tmp_path):
    """Sealed, grown by a record that replaces one, with a failure and a torn tail."""
    path = tmp_path / "grown.zip"
    with CacheWriter(path, in_memory_keys=["label"]) as writer:
        writer.extend(map(sample, range(10)))
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


# ------------------------------------------------------------------------------------- copy, digest


@pytest.fixture
def damaged(archive, tmp_path):
    """Record 3 and records 6 to 8 of ten are damaged."""
    path = tmp_path / "damaged.zip"
    data = bytearray(archive.read_bytes())
    for i in (3, 6, 7, 8):
        data[Reader(archive).records.offset[i]] ^= 1
    path.write_bytes(data)
    return path


def test_copy_without_damage_says_how_many_were_left_out(damaged, tmp_path):
    target = tmp_path / "new.zip"
    text = f"record 3 at offset {Reader(damaged).records.offset[3]:,} fails its crc32"
    said = error_of("copy", damaged, "-o", target)
    assert text in said
    assert said.endswith("(--skip-damaged)")
    assert not target.exists()
    shown = run("copy", damaged, "-o", target, "--skip-damaged").stdout
    assert shown == f"{target}: 10 samples, 4 left out, {human_bytes(target.stat().st_size)}\n"
    assert CachedDataset.from_cache(target).missing.tolist() == [3, 6, 7, 8]
    run("verify", target)


def test_copy_of_an_archive_whose_index_is_damaged(archive, tmp_path):
    path, target = tmp_path / "damaged.zip", tmp_path / "new.zip"
    data = bytearray(archive.read_bytes())
    data[Reader(archive).session.seal.index.payload_end - 20] ^= 1
    path.write_bytes(data)
    assert "copy" in error_of("copy", path, "-o", target)
    run("copy", path, "-o", target, "--skip-damaged")
    assert CachedDataset.from_cache(target).complete


def test_copy_joins_filters_and_divides(archive, tmp_path):
    (tmp_path / "parts").mkdir()
    for number in (2, 10):
        (tmp_path / "parts" / f"part-{number}.zip").write_bytes(archive.read_bytes())
    both, few = tmp_path / "both.zip", tmp_path / "few.zip"
    (listed,) = json.loads(run("copy", tmp_path / "parts", "-o", both, "--json", "--progress").stdout)
    assert listed == {"path": str(both), "samples": 20, "present": 20, "nbytes": both.stat().st_size}
    run("copy", both, "-o", few, "--where", "label in (0, 2)")
    assert CachedDataset.from_cache(few).labels["label"].tolist() == [0, 2, 0, 2, 0, 2, 0] * 2
    lines = run("copy", both, "-o", tmp_path / "p.zip", "--max-size", "10KB").stdout.splitlines()
    files = sorted(tmp_path.glob("p-*.zip"))
    assert [line.partition(": ")[0] for line in lines[:-1]] == list(map(str, files))
    assert lines[-1].startswith(f"20 samples in {len(files)} archives, ")
    assert len(CachedDataset.from_cache(files)) == 20
    assert "exists already; give a path where nothing is" in error_of("copy", archive, "-o", both)


def test_copy_over_itself_gives_back_what_is_dead(grown):
    before = grown.stat().st_size
    assert error_of("copy", grown, "-o", grown).endswith("(--skip-damaged)")
    assert grown.stat().st_size == before
    shown = run("copy", grown, "-o", grown, "--skip-damaged", "--progress")
    after = grown.stat().st_size
    assert shown.stdout == f"{grown}: 12 samples, 1 left out, {human_bytes(after)}\n"
    assert after < before
    assert CachedDataset.from_cache(grown)[3]["when"] == sample(8)["when"]
    assert len(CachedDataset.from_cache(grown).errors) == 1


def test_copy_of_a_file_and_of_samples_are_told_apart(archive, tmp_path):
    assert "is for a copy of a file" in error_of(
        "copy", archive, "-o", tmp_path / "a.zip", "--digest", "0" * 64, code=2
    )
    assert "are for a new archive" in error_of("copy", archive, tmp_path, "--where", "label == 1", code=2)
    for paths in ([archive], [archive, archive, tmp_path]):
        assert "name SRC and TARGET, or a new archive with -o OUT" in error_of("copy", *paths, code=2)
    run("copy", archive, tmp_path)
    assert (tmp_path / archive.name).read_bytes() == archive.read_bytes()


def test_digest_prints_what_sha256sum_does(archive, partial):
    digest = f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    assert run("digest", archive).stdout == f"{digest}\n"
    assert json.loads(run("digest", archive, "--json").stdout) == {"path": str(archive), "digest": digest}
    assert "it is not sealed, so it may still grow and has no digest" in error_of("digest", partial)


@pytest.mark.parametrize(
    ("indices", "text"),
    [([17, 40, 41, 42], "17, 40-42"), ([0], "0"), ([0, 1], "0-1"), ([1, 3, 5], "1, 3, 5")],
)
def test_indices_are_shown_as_ranges(indices, text):
    assert index_ranges(np.array(indices)) == text


def test_very_many_ranges_are_cut():
    shown = index_ranges(np.arange(0, 1000, 2))
    assert shown.endswith("396, 398, and 300 more runs; --json lists all")


def test_progress_of_each_command_is_on_stderr_and_only_when_asked(grown, tmp_path):
    empty = tmp_path / "empty.zip"
    with CacheWriter(empty):
        pass
    for number, path in enumerate((grown, empty)):
        for name, rest in (("verify", []), ("copy", ["--skip-damaged", "-o"])):
            targets = [[*rest, tmp_path / f"{name}{number}{k}"] if rest else [] for k in range(2)]
            code = int(name == "verify" and path == grown)
            shown = run(name, path, *targets[0], "--progress", code=code)
            assert path.name in shown.stderr
            assert path.name not in run(name, path, *targets[1], code=code).stderr


# ------------------------------------------------------------------------------- all commands alike


@pytest.mark.parametrize("command", [["info"], ["ls"], ["show", 0], ["labels"], ["verify"], ["digest"]])
def test_a_path_that_is_no_archive_is_one_line(command, tmp_path):
    name, *rest = command
    missing, foreign = tmp_path / "missing.zip", tmp_path / "foreign.zip"
    foreign.write_bytes(b"PK\x05\x06" + bytes(18))
    assert error_of(name, missing, *rest).startswith(f"{missing}: no such file")
    assert error_of(name, foreign, *rest).startswith(f"{foreign}: not an edcache archive")
    assert str(tmp_path) in error_of(name, tmp_path, *rest)


def test_help_names_exit_codes_completion_and_ends_with_an_example():
    shown = run("--help").stdout
    assert "130  interrupted" in shown
    assert 'eval "$(_EDCACHE_COMPLETE=bash_source edcache)"' in shown
    for name in main.commands:
        text = run(name, "--help").stdout
        assert f"\n  Example:\n    edcache {name} " in text
    assert run("--version").stdout.startswith("edcache 0.")


def test_help_has_every_command_in_a_group_with_one_short_line():
    text = run("--help").stdout
    commands = re.findall(r"^  ([a-z]+)  +(.*)$", text[text.index("\nMake:") :], re.MULTILINE)
    assert sorted(name for name, _ in commands) == sorted(main.commands)
    assert all(line.endswith(".") and not line.endswith("..") for _, line in commands)
    assert "\nOthers:" not in text


def test_one_thing_has_one_name_in_all_commands():
    flags = {flag for command in main.commands.values() for p in command.params for flag in p.opts}
    assert not flags & {"--out", "--format", "--expect", "--threads", "--sha256", "--workers"}
    for name, command in main.commands.items():
        for option in command.params:
            assert ("-o" in option.opts) == ("--output" in option.opts), name
    rows = {name for name, c in main.commands.items() if any("--jsonl" in p.opts for p in c.params)}
    assert rows == {"labels", "ls"}
    reports = {name for name, c in main.commands.items() if any("--json" in p.opts for p in c.params)}
    assert set(main.commands) - rows - reports <= {"view"}


@pytest.mark.parametrize("without", [{}, {"NO_COLOR": "1"}])
def test_a_terminal_gets_twenty_rows_and_colours_unless_it_wants_none(tmp_path, without):
    path = tmp_path / "many.zip"
    with CacheWriter(path, in_memory_keys={"name": lambda i: "\x1b[31m"}) as writer:
        writer.extend(range(1000))

    def shown(*arguments):
        environment = os.environ | {"TERM": "xterm", "PYTHONPATH": ROOT} | without
        controller, terminal = pty.openpty()
        command = [sys.executable, "-m", "edcache", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment)
        os.close(terminal)
        text = b""
        with contextlib.suppress(OSError):  # how a terminal ends whose other side is closed
            while part := os.read(controller, 65536):
                text += part
        os.close(controller)
        process.wait()
        return text.decode().splitlines()

    bold = "" if without else "\x1b[1m"
    lines = shown("labels", path)
    assert len(lines) == 22
    assert lines[0].startswith(f"{bold}index  name")
    assert lines[1].split() == ["0", "\\x1b[31m"]
    assert lines[-1] == "... of 1,000 rows; --all shows all"
    assert len(shown("labels", path, "--all")) == 1001
    assert ("\x1b[32mOK\x1b[0m" in shown("verify", path, "--no-progress")[0]) == (not without)
    assert shown("info", tmp_path / "x.zip")[0].startswith("edcache: " if without else "\x1b[31m")
    assert run("labels", path).stdout.count("\n") == 1001


def test_help_does_not_wait_for_torch():
    code = "import sys, edcache.cli; sys.exit('torch' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_what_reads_labels_does_not_wait_for_torch(archive, tmp_path):
    """Nor what completes them: who is at a prompt waits for each of these."""
    code = """
        import sys
        from click.shell_completion import BashComplete
        from edcache.cli import main
        path, other = sys.argv[1:]
        calls = ["info"], ["ls"], ["why"], ["labels", "--count", "label"], ["info", other]
        calls += (["labels", "--where", "label == 1"],)
        for name, *rest in calls:
            main([name, path, *rest], standalone_mode=False)
            assert "pandas" not in sys.modules, name
        items = BashComplete(main, {}, "e", "_E").get_completions(["labels", path, "--where"], "la")
        sys.exit("torch" in sys.modules or [item.value for item in items] != ["label"])
    """
    other = tmp_path / "other.zip"
    other.write_bytes(archive.read_bytes())
    command = [sys.executable, "-c", textwrap.dedent(code), str(archive), str(other)]
    assert subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def test_wrong_usage_is_exit_code_2(archive):
    run("nonsense", code=2)
    run("info", code=2)
    run("show", archive, "--jsn", code=2)
    run("show", archive, "first", code=2)


def test_as_a_module_errors_are_one_line(tmp_path):
    process = start("info", tmp_path / "none.zip")
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert err == f"edcache: {tmp_path}/none.zip: no such file; check the path, or build the cache first\n"


@pytest.mark.full
def test_a_reader_that_stops_reading_ends_it_quietly(tmp_path):
    path = tmp_path / "many.zip"
    with CacheWriter(path, in_memory_keys={"name": lambda i: f"sample {i}"}) as writer:
        writer.extend(range(20_000))
    process = start("labels", path)
    assert process.stdout.readline().split() == ["index", "name"]
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait()


@pytest.mark.parametrize("jobs", [["-j"], ["-j", "2"], ["--num-workers", "auto"], []])
def test_a_build_takes_workers(here, jobs):
    done = run("build", "digits:make", "-o", "out.zip", "--arg", "split=a", *jobs)
    assert "6 samples (6 computed now, 0 kept)" in done.stdout
    assert CachedDataset.from_cache("out.zip").complete


def test_a_number_of_workers_is_a_number(here):
    done = run("build", "digits:make", "-o", "out.zip", "--arg", "split=a", "-j", "two", code=2)
    assert "--num-workers two: give a number, or auto" in done.stderr


def test_a_build_goes_on_after_a_sample_that_fails(here, monkeypatch):
    monkeypatch.setenv("FAIL_AT", "3")
    build = ["build", "digits:make", "-o", "out.zip", "--arg", "split=a", "--on-error", "skip"]
    assert "5 computed now, 0 kept, 1 sample failed" in run(*build).stdout


def test_larger_images_are_stored_smaller_from_the_command_line(here):
    (here / "tree" / "a").mkdir(parents=True)
    for side in (30, 90):
        (here / "tree" / "a" / f"{side}.jpg").write_bytes(pictures.jpeg(side, side))
    run("images", "tree", "-o", "a.zip", "--max-side", "40")
    found = [sample["image"] for sample in CachedDataset.from_cache("a.zip")]
    assert [image.size for image in found] == [(30, 30), (40, 40)]
    assert "--max-side" in error_of("images", "tree", "-o", "b.zip", "--max-side", "0", code=2)


def test_a_folder_of_images_is_cached_from_the_command_line(here):
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.png"):
        (here / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "tree" / name).write_bytes(pictures.jpeg())
    (here / "tree" / "dog" / "2.jpg").write_bytes(b"")
    told = error_of("images", "tree", "-o", "a.zip")
    assert 'a.zip: sample 3: sample["image"]: cannot store image file ' in told
    found = run("images", "tree", "-o", "a.zip", "--decode", "tensor", "--rebuild", "--on-error", "skip")
    assert "a.zip: 4 samples (3 computed now, 0 kept, 1 sample failed), " in found.stdout
    ds = CachedDataset.from_cache("a.zip", allow_partial=True)
    assert [s["image"].shape for s in available(ds)] == [(3, 17, 23)] * 3
    assert ds.labels["path"].tolist()[:3] == ["cat/1.jpg", "cat/2.jpg", "dog/1.png"]
    assert "the folder 'cat' has no .png file" in error_of(
        "images", "tree", "-o", "b.zip", "--extension", ".png"
    )
    (here / "tree" / "dog" / "2.jpg").unlink()
    told = error_of("images", "tree", "-o", "a.zip", "--decode", "tensor")
    before, now = (
        "'cat/1.jpg', 'cat/2.jpg', 'dog/1.png', 'dog/2.jpg'",
        "'cat/1.jpg', 'cat/2.jpg', 'dog/1.png'",
    )
    assert f"argument names: [{before}] in the archive, [{now}] now" in told
    assert told.endswith(" (--rebuild)")
    shown = run("show", "a.zip", "0").stdout
    assert "3 x 17 x 23" in shown
    assert "imagefile" in run("info", "a.zip").stdout


# ------------------------------------------------------------------------------------- wrong usage

# The command line, a part of its one line on stderr, its exit code.
WRONG = {
    "a path": ("info here/ten.zp", "here/ten.zp: no such file", 1),
    "a folder": ("show here 0", "here: not a regular file", 1),
    "no archive": ("info digits.py", "digits.py: not an edcache archive: ", 1),
    "a command": ("inf here/ten.zip", 'no command "inf"; did you mean info? (see edcache --help)', 2),
    "a path for a command": ("here/ten.zip", "give a command first: edcache info here/ten.zip", 2),
    "a folder for a command": ("here", 'no command "here"; edcache caches here lists this folder', 2),
    "an option": ("info --jsn here/ten.zip", "--json", 2),
    "no path": ("info", "Missing argument 'PATH...' (see edcache info --help)", 2),
    "an index": ("show here/ten.zip 10", "no sample 10; there are 10, from 0 on or from -1 back", 1),
    "no index": ("show here/ten.zip x", "Invalid value for 'INDEX': ", 2),
    "a label": ("labels here/ten.zip --count lable", "did you mean label?", 1),
    "a condition": ("labels here/ten.zip --where spilt=='a'", "did you mean split?", 1),
    "text without quotes": ("labels here/ten.zip --where split==train", 'write text in quotes: "train"', 1),
    "a format": ("export here/ten.zip -o new --to csv", "Invalid value for '--to': 'csv' is not one of ", 2),
    "a factory": ("build digits:mak -o new.zip", 'no "mak" in it; did you mean make?', 1),
    "an argument": ("build digits:make -o new.zip --arg spilt=train", "did you mean split?", 2),
    "an argument without a value": ("build digits:make -o new.zip --arg split", "name=value", 2),
    "a module": ("build digit:make -o new.zip", 'no module "digit" in this folder', 1),
    "an empty field": ("build digits:make -o new.zip --key =x", '"=x"; write a field, ', 2),
    "no cache": ("import old.tar.gz -o new.zip", "old.tar.gz: No such file or directory", 1),
}


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_one_line(here, archive, use):
    (here / "here").mkdir()
    (here / "here" / "ten.zip").symlink_to(archive)
    arguments, part, code = WRONG[use]
    assert part in error_of(*arguments.split(), code=code)
    assert not (here / "new.zip").exists()


def test_an_error_of_the_source_is_printed_as_it_is(here):
    (here / "bad.py").write_text(textwrap.dedent(BAD))
    said = error_of("build", "bad:make", "-o", "new.zip")
    assert "ValueError: row 7: kind=dog where=field label=3; LINE 4: see the manual; " in said
    assert "keeps 0 of 3 samples; the same call computes the rest" in said


BAD = """
    class Bad(list):
        def __getitem__(self, index):
            raise ValueError("row 7: kind=dog where=field label=3\\nLINE 4: see the manual")

    def make():
        return Bad([0, 1, 2])
"""


def test_help_is_a_command_too(here):
    assert run("help").output == run("--help").output
    assert run("help", "info").output == run("info", "--help").output
    assert "did you mean info?" in error_of("help", "inf", code=2)
