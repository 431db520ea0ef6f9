"""verify: nothing wrong with what a writer makes, and a line with the offset for what it does not."""

import re

import numpy as np
import pytest
import reference

import edcache
from edcache import CacheWriter, format

KINDS = ["sealed", "grown", "unsealed", "torn", "sparse", "zstd", "zstd+dict", "empty", "no labels"]


def sample(i):
    return {"x": np.full(50, i), "y": i % 3, "text": "ab" * i}


def make(path, kind):
    options = {"chunk_size": 4, "publish_seconds": None}
    options["in_memory_keys"] = None if kind == "no labels" else ["y"]
    if kind.startswith("zstd"):
        options["compression"] = kind
    w = CacheWriter(path, **options)
    if kind == "sparse":
        for i in (9, 2, 5, 2):
            w.write(i, sample(i))
    elif kind != "empty":
        w.extend(map(sample, range(20)))
    if kind in ("unsealed", "torn"):
        w.abort()
    else:
        w.close()
    if kind == "torn":
        with open(path, "ab") as file:
            file.write(b"half a chunk" * 100)
    if kind == "grown":
        with CacheWriter(path, "a") as w:
            w.extend(map(sample, range(20, 25)))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_writer_makes_is_sound(tmp_path, kind):
    make(tmp_path / "a.zip", kind)
    report = edcache.verify(tmp_path / "a.zip")
    assert report.problems == []
    assert report.sound
    assert report.sealed is (kind not in ("unsealed", "torn"))
    counts = {"sparse": (10, 7), "empty": (0, 0), "grown": (25, 0)}
    assert (report.samples, report.missing) == counts.get(kind, (20, 0))
    assert report.nbytes == (tmp_path / "a.zip").stat().st_size


def places(path):
    """One offset inside each kind of byte that an archive has, found without the package."""
    entries = list(reference.entries(path))
    by_kind = {e.fields["kind"]: e.fields for e in entries}
    chunk, index, labels = by_kind[1], by_kind[4], by_kind[5]
    records = chunk["offset"] + chunk["nbytes"] + -(-chunk["table_nbytes"] // 64) * 64
    return {
        "record": (records + 8, rf"at offset {chunk['offset']:,}: chunks/.* has crc32 0x"),
        "table": (chunk["offset"] + chunk["nbytes"] + 300, r"its table fails its crc32"),
        "header": (
            chunk["offset"] + 20,
            rf"at offset {chunk['offset']:,}: no entry fits here, so the chain ends before its seal",
        ),
        "index": (index["offset"] + index["nbytes"] + 900, r"index.arrow has crc32 0x"),
        "labels": (labels["offset"] + labels["nbytes"] + 300, r"labels.arrow has crc32 0x"),
        "directory": (labels["offset"] + labels["nbytes"] + labels["table_nbytes"] + 20, r"zip directory"),
    }


@pytest.mark.parametrize("place", ["record", "table", "header", "index", "labels", "directory"])
def test_damage_is_reported_with_its_place(tmp_path, place):
    path = tmp_path / "a.zip"
    make(path, "sealed")
    offset, message = places(path)[place]
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)
    report = edcache.verify(path)
    assert not report.sound
    assert any(line.startswith(f"{path}: ") for line in report.problems)
    assert any(re.search(message, line) for line in report.problems), report.problems


def test_the_dead_directory_of_an_earlier_seal_is_checked_too(tmp_path):
    path = tmp_path / "a.zip"
    make(path, "sealed")
    dead = path.stat().st_size - 30
    with CacheWriter(path, "a") as w:
        w.append(sample(20))
    data = bytearray(path.read_bytes())
    data[dead] ^= 1
    path.write_bytes(data)
    (problem,) = edcache.verify(path).problems
    assert "the dead directory of an earlier seal is damaged" in problem


def test_a_broken_chain_is_told_from_a_torn_tail(tmp_path):
    path = tmp_path / "a.zip"
    make(path, "unsealed")
    second = [e.fields for e in reference.entries(path)][2]
    data = bytearray(path.read_bytes())
    data[second["offset"] + 5] ^= 1
    path.write_bytes(data)
    (problem,) = edcache.verify(path).problems
    assert "the chain is broken: no entry fits here, but chunks/00000002 follows at offset" in problem


def test_progress_counts_bytes_up_to_the_whole(tmp_path):
    make(tmp_path / "a.zip", "sealed")
    seen = []
    edcache.verify(tmp_path / "a.zip", lambda done, total: seen.append((done, total)))
    size = (tmp_path / "a.zip").stat().st_size
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert all(done <= total == size for done, total in seen)


def test_the_head_is_needed_to_verify_at_all(tmp_path):
    path = tmp_path / "a.zip"
    make(path, "sealed")
    data = bytearray(path.read_bytes())
    data[format.HEADER_NBYTES + 10] ^= 1
    path.write_bytes(data)
    with pytest.raises(edcache.errors.CorruptArchiveError, match="the head's 3,904 bytes fail their crc32"):
        edcache.verify(path)
