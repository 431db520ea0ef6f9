"""verify: nothing wrong with what a writer makes, and a line with the offset for what it does not."""

import os
import re
from contextlib import closing

import numpy as np
import pytest
import reference
from damage import flip, flip_record
from systems import System, Watching, replace_system
from written import write

import edcache
from edcache import CacheWriter
from edcache.format import Head
from edcache.writer import Appender

KINDS = ["sealed", "grown", "unsealed", "torn", "sparse", "zstd", "empty", "no labels"]


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
        write(path, map(sample, range(20, 25)), "a")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_writer_makes_is_sound(tmp_path, kind):
    make(tmp_path / "a.zip", kind)
    report = edcache.verify(tmp_path / "a.zip")
    assert report.problems == []
    assert report.sealed is report.sound is (kind not in ("unsealed", "torn"))
    counts = {"sparse": (10, 7), "empty": (0, 0), "grown": (25, 0)}
    assert (report.samples, report.missing) == counts.get(kind, (20, 0))
    assert report.nbytes == (tmp_path / "a.zip").stat().st_size


def places(path):
    """One offset inside each kind of byte that an archive has, found without the package."""
    entries = list(reference.entries(path))
    by_kind = {e.fields["kind"]: e.fields for e in entries}
    chunk, index, labels, root = (
        by_kind[kind] for kind in (reference.CHUNK, reference.INDEX, reference.COLUMN, reference.ROOT)
    )
    records = chunk["offset"] + chunk["nbytes"] + -(-chunk["table_nbytes"] // 64) * 64
    return {
        "record": (records + 8, rf"at offset {chunk['offset']:,}: chunks/.* has crc32 0x"),
        "table": (chunk["offset"] + chunk["nbytes"] + 300, r"its table fails its crc32"),
        "header": (
            chunk["offset"] + 20,
            rf"no entry fits at offset {chunk['offset']:,}, but other bytes stand there",
        ),
        "index": (index["offset"] + index["nbytes"] + 90, r"index.rows has crc32 0x"),
        "labels": (labels["offset"] + labels["nbytes"] + 300, r"labels/y.arrow has crc32 0x"),
        "directory": (root["offset"] + root["nbytes"] + len(entries[-1].payload) + 20, r"zip directory"),
    }


def damaged(path, place):
    """An archive with a flipped bit in one place, and what is said of that."""
    make(path, "sealed")
    offset, message = places(path)[place]
    flip(path, offset, mask=4)
    return message


@pytest.mark.parametrize("place", ["record", "table", "header", "index", "labels", "directory"])
def test_damage_is_reported_with_its_place(tmp_path, place):
    path = tmp_path / "a.zip"
    message = damaged(path, place)
    report = edcache.verify(path)
    assert not report.sound
    assert any(line.startswith(f"{path}: ") for line in report.problems)
    assert any(re.search(message, line) for line in report.problems), report.problems


def test_a_broken_chain_is_told_from_a_torn_tail(tmp_path):
    path = tmp_path / "a.zip"
    make(path, "unsealed")
    second = [e.fields for e in reference.entries(path)][2]
    flip(path, second["offset"] + 5)
    (problem,) = edcache.verify(path).problems
    assert "no entry fits at offset 8,192, but other bytes stand there" in problem
    data = bytearray(path.read_bytes())
    data[second["offset"] : second["offset"] + 512] = bytes(512)
    path.write_bytes(data)
    (problem,) = edcache.verify(path).problems
    assert "no entry fits at offset 8,192, but chunks/00000003 follows at offset 12,288;" in problem


@pytest.mark.parametrize("what", ["header", "bytes taken out", "bytes put in"])
def test_what_a_sealed_archive_has_behind_damage_is_found_by_its_root(tmp_path, what):
    path = tmp_path / "a.zip"
    make(path, "sealed")
    chunk = [e.fields for e in reference.entries(path)][2]
    data, at = path.read_bytes(), chunk["offset"]
    changed = {
        "header": data[:at] + bytes(512) + data[at + 512 :],
        "bytes taken out": data[:at] + data[at + 4096 :],
        "bytes put in": data[:at] + bytes(4096) + data[at:],
    }
    path.write_bytes(changed[what])
    problems = edcache.verify(path).problems
    told = f"no entry fits at offset {at:,}, but (root.json|chunks/.*|index.rows) follows"
    assert any(re.search(told, line) for line in problems), problems


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
    flip(path, 192 + 10)
    with pytest.raises(edcache.errors.CorruptArchiveError, match="the head's 3,904 bytes fail their crc32"):
        edcache.verify(path)


# ------------------------------------------------------------------------------------- without records


@pytest.mark.parametrize("kind", KINDS)
def test_a_quick_look_says_the_same_of_a_sound_archive(tmp_path, kind):
    make(tmp_path / "a.zip", kind)
    whole, quick = edcache.verify(tmp_path / "a.zip"), edcache.verify(tmp_path / "a.zip", quick=True)
    assert (whole.quick, quick.quick) == (False, True)
    quick.quick = False
    assert quick == whole


@pytest.mark.parametrize("place", ["table", "header", "index", "labels", "directory"])
def test_a_quick_look_finds_what_leads_to_the_records(tmp_path, place):
    path = tmp_path / "a.zip"
    message = damaged(path, place)
    problems = edcache.verify(path, quick=True).problems
    assert any(re.search(message, line) for line in problems), problems


def test_a_quick_look_reads_no_record(tmp_path):
    path = tmp_path / "a.zip"
    write(path, (np.full(10_000, i) for i in range(100)))
    flip_record(path, 50, at=100)

    with replace_system(Watching()) as quick:
        assert edcache.verify(path, quick=True).sound
    size = path.stat().st_size
    assert quick.nbytes < size / 40
    with replace_system(Watching()) as whole:
        assert not edcache.verify(path).sound
    # Each byte once; headers and tables, which are little, more often.
    assert size < whole.nbytes < 1.05 * size


def test_a_large_chunk_takes_no_more_memory_than_a_small_one(tmp_path, monkeypatch):
    monkeypatch.setattr("edcache.writer.builder.CHUNK_NBYTES", 1 << 30)
    path = tmp_path / "a.zip"
    write(path, (np.full(500_000, i) for i in range(10)))

    class Measuring(System):
        largest = 0

        def pread(self, fd, nbytes, offset):
            self.largest = max(self.largest, nbytes)
            return super().pread(fd, nbytes, offset)

    with replace_system(Measuring()) as system:
        report = edcache.verify(path)
    assert (report.sound, report.chunks) == (True, 1)
    assert system.largest <= 1 << 26, "a window"


# ---------------------------------------------------------------------------------- each kind of damage


def problems_of(path, offset, data=b"\xff"):
    """What verify finds after bytes were written at an offset."""
    original = path.read_bytes()
    path.write_bytes(original[:offset] + data + original[offset + len(data) :])
    try:
        return edcache.verify(path).problems
    finally:
        path.write_bytes(original)


def test_a_record_is_named_with_its_place_and_what_helps(tmp_path):
    path = tmp_path / "a.zip"
    make(path, "sealed")
    offset = int(edcache.reader.Reader(path).session.index.all_rows()["offset"][7])
    problems = problems_of(path, offset)
    remedy = f'run "edcache copy {path} -o NEW --skip-damaged"'
    assert f"{path}: at offset {offset:,}: record 7 fails its crc32; {remedy}" in problems
    assert all(line.endswith(f"; {remedy}") for line in problems)


def test_records_over_many_windows_are_checked_to_the_last_byte(tmp_path, monkeypatch):
    monkeypatch.setattr("edcache.writer.builder.CHUNK_NBYTES", 1 << 30)
    path = tmp_path / "a.zip"
    with CacheWriter(path) as w:
        for nbytes in (10, 3 << 20, 0, 5, (1 << 20) - 2000, 1 << 20, 700):
            w.append(np.zeros(nbytes, np.uint8))
    rows = edcache.reader.Reader(path).session.index.all_rows()
    assert edcache.verify(path).problems == []
    for row, (offset, nbytes) in enumerate(
        zip(rows["offset"].tolist(), rows["nbytes"].tolist(), strict=True)
    ):
        for place in {offset, offset + nbytes // 2, offset + nbytes - 1} if nbytes else ():
            named = [line for line in problems_of(path, place) if "fails its crc32" in line]
            assert [line.partition(": record ")[2][:2] for line in named] == [f"{row} "], place


def test_many_damaged_records_of_a_chunk_are_not_as_many_lines(tmp_path):
    path = tmp_path / "a.zip"
    write(path, (np.full(50, i) for i in range(100)))
    offset = int(edcache.reader.Reader(path).session.index.all_rows()["offset"][0])
    problems = problems_of(path, offset, b"\xff" * 40_000)
    assert sum(": record " in line for line in problems) == 20
    assert any("the same of 80 more records of chunks/00000001" in line for line in problems)


def test_failures_are_counted(tmp_path):
    path = tmp_path / "a.zip"
    edcache.CachedDataset(Failing(), path, on_error="skip", progress=False).close()
    report = edcache.verify(path)
    assert (report.samples, report.missing, report.failures, report.problems) == (10, 2, 2, [])


class Failing:
    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i in (3, 7):
            raise ValueError("not this one")
        return i


def test_an_archive_that_grows_while_it_is_verified_is_sound(tmp_path):
    path = tmp_path / "a.zip"
    make(path, "unsealed")
    appended = []

    class Growing(System):
        """Another writer appends, and seals, between any two reads."""

        def pread(self, fd, nbytes, offset):
            found = super().pread(fd, nbytes, offset)
            if len(appended) < 6:
                appended.append(offset)
                with replace_system(System()):
                    w = CacheWriter(path, "a")
                    w.append(sample(20))
                    w.close() if len(appended) % 2 else w.abort()
            return found

    with replace_system(Growing()):
        report = edcache.verify(path)
    assert (report.problems, len(appended)) == ([], 6)
    assert os.path.getsize(path) > report.nbytes


def test_a_length_that_no_file_holds_takes_no_time(tmp_path):
    """An archive that is not sealed may say any length; of 2**60 samples the windows alone would take years."""
    path = tmp_path / "a.zip"
    writer = CacheWriter(path)
    writer.append({"x": 1})
    writer.abort()
    with closing(Appender.open(path, Head(bytes(16)), mode="a", sync="never")) as appender:
        appender.amend(length=1 << 60)
    report = edcache.verify(path)
    assert report.samples == 1 << 60
    assert report.missing == (1 << 60) - 1
