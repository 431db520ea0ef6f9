"""merge, split and export on the command line: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_runner import RUNNER
from test_merge import expect_as_concat, sample, write
from test_split import expect_as_original

from edcache import CachedDataset, CacheWriter
from edcache.base.wording import human_bytes
from edcache.cli import main


def run(*arguments: Any, code: int = 0) -> str:
    """What a command prints, to stderr where it fails."""
    done = RUNNER.invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output + done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def parts(tmp_path):
    """Archives part-1, part-2 and part-10; of the last, two samples are missing."""
    (tmp_path / "parts").mkdir()
    for k, number in enumerate((1, 2)):
        write(tmp_path / "parts" / f"part-{number}.zip", range(10 * k, 10 * k + 10))
    with CacheWriter(tmp_path / "parts" / "part-10.zip", in_memory_keys=["y"]) as w:
        w.write(2, sample(22))
    return tmp_path / "parts"


def test_merge_takes_archives_globs_and_folders_and_says_what_it_made(parts, tmp_path):
    new = tmp_path / "new.zip"
    paths = [parts / f"part-{number}.zip" for number in (1, 2, 10)]
    for asked in (paths, [parts], [f"{parts}/part-?.zip", paths[2]]):
        said = run("merge", *asked, "-o", new)
        expect_as_concat(new, paths)
        size = human_bytes(new.stat().st_size)
        assert said == f"{new}: 23 samples, 2 missing from 3 archives, {size}, sealed\n"
        new.unlink()
    assert run("merge", paths[0], "-o", new).startswith(f"{new}: 10 samples from 1 archive, ")
    new.unlink()
    report = json.loads(run("merge", parts, "-o", new, "--json"))
    assert report == {
        "path": str(new),
        "archives": 3,
        "samples": 21,
        "length": 23,
        "nbytes": new.stat().st_size,
    }


def test_a_merge_that_fails_is_one_line_and_exit_code_1(parts, tmp_path):
    said = run("merge", f"{parts}/other-*.zip", "-o", tmp_path / "new.zip", code=1)
    assert said == f"edcache: {parts}/other-*.zip: no file fits this glob; is its folder right?\n"
    said = run("merge", parts, "-o", parts / "part-1.zip", code=1)
    assert said == f"edcache: {parts}/part-1.zip: exists already; give a path where nothing is\n"
    assert "Missing option '-o'" in run("merge", parts, code=2)


def test_split_says_which_archives_it_made(parts, tmp_path):
    path, folder = tmp_path / "train.zip", tmp_path / "out"
    run("merge", parts, "-o", path)
    said = run("split", path, "--parts", 2, "-o", folder).splitlines()
    expect_as_original(folder, path)
    assert said[0].split() == ["path", "samples", "missing", "size"]
    assert said[1].split()[:3] == [str(folder / "train-00000.zip"), "11", "0"]
    assert said[2].split()[:3] == [str(folder / "train-00001.zip"), "12", "2"]
    size = sum(file.stat().st_size for file in folder.iterdir())
    assert said[3:] == [f"23 samples in 2 archives, {human_bytes(size)}"]
    said = run("split", path, "--by", "y", "-o", tmp_path / "by").splitlines()
    assert [line.split()[-1] for line in said[:-1]] == ["value", "0", "1", "2", "None"]
    pieces = json.loads(run("split", path, "--max-size", "100kB", "-o", tmp_path / "sizes", "--json"))
    assert [(piece["length"], piece["samples"], piece["value"]) for piece in pieces] == [(23, 21, None)]
    expect_as_original(tmp_path / "sizes", path)


def test_split_wants_to_know_how(parts, tmp_path):
    path = parts / "part-1.zip"
    for options in ([], ["--parts", 2, "--by", "y"]):
        said = run("split", path, "-o", tmp_path / "out", *options, code=2)
        assert "say how: one of --max-size 2GB, --parts 10 and --by label" in said
    assert "write a number with its unit" in run("split", path, "-o", tmp_path, "--max-size", "7", code=2)
    said = run("split", path, "-o", tmp_path / "out", "--by", "z", code=1)
    assert said == 'edcache: no label "z"; this archive has: y\n'
    assert not os.path.exists(tmp_path / "out")


def test_export_writes_what_was_chosen(parts, tmp_path):
    path, folder = parts / "part-1.zip", tmp_path / "out"
    said = run("export", path, "-o", folder, "--to", "files", "--where", "y == 1", "--field", "x")
    assert sorted(os.listdir(folder)) == ["0", "1", "2"]
    assert [sorted(os.listdir(folder / name)) for name in "012"] == [["labels.json", "x.npy"]] * 3
    assert [int(np.load(folder / name / "x.npy")[0]) for name in "012"] == [1, 4, 7]
    size = human_bytes(sum(file.stat().st_size for file in folder.rglob("*.*")))
    assert said == f"{folder}: 3 samples as files, 6 files, {size}\n"
    options = ["--available", "--no-labels", "-j", "1", "--json", "--shard-size", "2kB"]
    report = json.loads(run("export", parts, "-o", tmp_path / "tars", "--to", "webdataset", *options))
    files = len(os.listdir(tmp_path / "tars"))
    assert (report["samples"], report["files"], report["to"]) == (21, files, "webdataset")
    assert files > 1
    run("export", path, "-o", tmp_path / "table", "--to", "parquet", "--label", "y")
    assert pq.read_table(tmp_path / "table").column_names == ["x", "y"]


def test_an_export_that_cannot_be_is_one_line(parts, tmp_path):
    said = run("export", parts, "-o", tmp_path / "out", "--to", "files", code=1)
    assert said.startswith(f"edcache: {parts}/part-10.zip: 2 of 3 samples have no record, the first is")
    said = run("export", parts, "-o", tmp_path / "out", "--to", "tar", code=2)
    assert "'tar' is not one of 'webdataset', 'files', 'parquet'" in said
    options = ["--to", "files", "--label", "y", "--no-labels"]
    assert "--label and --no-labels contradict" in run("export", parts, "-o", tmp_path, *options, code=2)
    assert not (tmp_path / "out").exists()


def test_commands_for_one_archive_take_no_folder(parts):
    for command in (["labels"], ["show"], ["ls"]):
        arguments = [*command, parts, *(["0"] if command == ["show"] else [])]
        assert f"edcache: {parts}: " in run(*arguments, code=1)
    assert len(CachedDataset.from_cache(parts)) == 23


def test_a_bar_shows_the_bytes_of_all_archives(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("EDCACHE_PROGRESS", "1")
    done = RUNNER.invoke(main, ["merge", str(parts), "-o", str(tmp_path / "new.zip")])
    assert "merging into new.zip" in done.stderr
    done = RUNNER.invoke(
        main, ["split", str(tmp_path / "new.zip"), "--parts", "2", "-o", str(tmp_path / "out")]
    )
    assert "splitting new.zip" in done.stderr
