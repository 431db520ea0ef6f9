"""diff: what it prints, what it compares, that it reads no sample."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from edcache import CachedDataset, CacheWriter
from edcache.cli import main
from edcache.reader.session import Session


def run(*arguments, code=0):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.output


def document(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code))


def sample(i):
    return {"x": np.full(4, i), "label": i % 3, "score": None if i == 4 else i / 8, "when": WHEN}


WHEN = datetime.datetime(2024, 5, 1)


def write(path, samples, **options):
    with CacheWriter(path, in_memory_keys=["label", "score"], **options) as writer:
        for index, value in samples.items():
            writer.write(index, value)
    return path


@pytest.fixture
def ten(tmp_path):
    return write(tmp_path / "ten.zip", {i: sample(i) for i in range(10)})


@pytest.fixture
def unread(monkeypatch):
    """No sample is read."""
    for name in ("fetch", "read"):
        monkeypatch.setattr(Session, name, lambda *arguments: pytest.fail("a sample was read"))


def test_the_same_samples_are_no_difference_wherever_they_lie(ten, tmp_path, unread):
    other = write(tmp_path / "other.zip", {i: sample(i) for i in reversed(range(10))})
    assert run("diff", ten, other).startswith("no difference between ")
    assert document("diff", ten, other)["same"] is True


def test_null_is_null_whatever_the_type_of_its_column(tmp_path):
    paths = [tmp_path / "int.zip", tmp_path / "float.zip"]
    for path, kind in zip(paths, (pa.int64(), pa.float64()), strict=True):
        write(path, {i: sample(i) for i in range(3)})
        CachedDataset.from_cache(path).add_labels("y", pa.array([1, 2, None], kind))
    shown = document("diff", *paths, code=1)
    assert "y" not in shown["labels"]


def test_a_difference_is_named_sample_by_sample(ten, tmp_path, unread):
    changed = {i: sample(i) for i in (0, 1, 2, 3, 4, 5, 7, 8, 9, 10)}
    changed[2] |= {"x": np.full(4, 99)}
    changed[3] |= {"label": 9}
    changed[4] |= {"score": float("nan")}
    changed[5] |= {"x": np.full(5, 5.0)}
    other = write(tmp_path / "other.zip", changed)
    found = document("diff", ten, other, code=1)
    assert (found["only_first"], found["only_second"]) == ([6], [10])
    assert found["records"] == [2, 3, 4, 5]
    assert found["labels"] == {"label": [3], "score": [4]}
    assert found["about"]["samples"] == [10, 11]
    assert found["about"].keys() - {"samples", "sealed"} == {"field x"}
    text = run("diff", ten, other, code=1)
    assert 'label "label" differs: 1 sample: 3\n' in text
    assert "records differ: 4 samples: 2-5\n" in text


def test_what_is_compressed_otherwise_is_compared_when_that_is_wanted(ten, tmp_path):
    other = write(tmp_path / "z.zip", {i: sample(i + (i == 5) * 3) for i in range(10)}, compression="zstd")
    shallow = document("diff", ten, other, code=1)
    assert (shallow["records"], shallow["unknown"]) == ([], 10)
    assert shallow["about"] == {"compression": [None, "zstd"]}
    deep = document("diff", ten, other, "--deep", code=1)
    assert (deep["records"], deep["unknown"]) == ([5], None)
    assert "--deep reads them" in run("diff", ten, other, code=1)


def test_an_archive_that_cannot_be_read_is_exit_code_2(ten, tmp_path):
    (tmp_path / "no.zip").write_text("no archive")
    assert "not an edcache archive" in run("diff", ten, tmp_path / "no.zip", code=2)


def test_a_long_difference_is_cut_in_text_and_whole_in_json(tmp_path):
    one = write(tmp_path / "one.zip", {i: sample(i) for i in range(40)})
    other = write(tmp_path / "other.zip", {i: sample(i + i % 2) for i in range(40)})
    assert document("diff", one, other, code=1)["records"] == list(range(1, 40, 2))
    assert "20 samples: 1, 3, 5, 7, 9, and 15 more runs; --json lists all\n" in run(
        "diff", one, other, code=1
    )


def test_integers_and_floats_are_compared_exactly(tmp_path):
    wholes = {0: 2**53, 1: 2**53 + 1, 2: -3}
    one = write(tmp_path / "one.zip", {i: {"label": n, "score": n} for i, n in wholes.items()})
    other = write(tmp_path / "other.zip", {i: {"label": float(n), "score": n} for i, n in wholes.items()})
    assert document("diff", one, other, code=1)["labels"] == {"label": [1]}


def test_an_integer_that_python_does_not_write_is_shown_by_its_head(tmp_path):
    with CacheWriter(tmp_path / "long.zip") as writer:
        writer.append({"n": -(2**20_000) - 1, "m": 7, "more": [2**20_000, 10**30]})
    leaves = {leaf["path"]: leaf["value"] for leaf in document("show", tmp_path / "long.zip", 0)["leaves"]}
    assert leaves["n"] == "-0x10000000... of 20,001 bits"
    assert (leaves["m"], leaves["more.1"]) == (7, 10**30)
    assert "0x10000000... of 20,001 bits" in run("show", tmp_path / "long.zip", 0)
