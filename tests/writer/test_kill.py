"""A fill that is broken off loses nothing that was published and little else, and continues where it stopped.

That this holds of every moment is in tests/faults/test_kills.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scale import thinned

import edcache
from edcache import CachedDataset, EdcacheError

COUNT = 1500

PROGRAM = (
    f"COUNT = {COUNT}"
    + """
import json, os, sys, time, traceback, warnings
import numpy as np, torch
import edcache

class Source:
    def __init__(self, log, count=COUNT, fails_at=None):
        self.log, self.count, self.fails_at = log, count, fails_at

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if not 0 <= i < self.count:
            raise IndexError(i)
        if i == self.fails_at:
            raise ValueError(f"broken file {i}")
        fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, b"%d\\n" % i)
        os.close(fd)
        time.sleep(0.001)
        return {"x": torch.full((2, 9), i, dtype=torch.int32), "name": f"sample {i}", "y": i % 11}

def by_class(path, log):
    return edcache.CachedDataset(Source(log), path, in_memory_keys=["y", "name"])

def by_decorator(path, log):
    @edcache.cachable(path, in_memory_keys=["y", "name"])
    def dataset(log):
        return Source(log)
    return dataset(log)

def fill(way, path, log, err):
    fd = os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 2)
    sys.stderr = os.fdopen(fd, "w", buffering=1)
    warnings.simplefilter("error")
    try:
        {"class": by_class, "decorator": by_decorator}[way](path, log)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

# Imports once and forks for each fill: a start costs milliseconds, not seconds.
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        code = fill(*json.loads(line))
        sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
)


def expected(i: int) -> dict[str, object]:
    return {"x": torch.full((2, 9), i, dtype=torch.int32), "name": f"sample {i}", "y": i % 11}


def is_expected(sample: dict[str, object], i: int) -> bool:
    other = expected(i)
    return (
        list(sample) == list(other)
        and torch.equal(sample["x"], other["x"])
        and (sample["name"], sample["y"]) == (other["name"], other["y"])
    )


class Fill:
    """One filling process, started by the program above."""

    def __init__(self, program: subprocess.Popen[str], way: str, archive: Path, log: Path) -> None:
        self._program = program
        self._err = archive.with_name("stderr")
        print(json.dumps([way, str(archive), str(log), str(self._err)]), file=program.stdin, flush=True)
        self._pid = int(program.stdout.readline())

    def send(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)

    def ended(self) -> tuple[int, str]:
        """Exit code, negative for a signal, and what it wrote to stderr."""
        code = int(self._program.stdout.readline())
        return code, self._err.read_text() if self._err.exists() else ""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path_factory.mktemp("program") / "fill_program.py"
    path.write_text(PROGRAM)
    env = os.environ | {"PYTHONPATH": str(Path(edcache.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    env.pop("EDCACHE_PROGRESS", None)
    command = [sys.executable, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
    ) as child:
        yield child
        child.stdin.close()


def computed(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def published(path: Path) -> set[int]:
    """What is there, after every sample and every label of it was compared with the source."""
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert len(cache) == COUNT
    present = sorted(set(range(COUNT)) - set(cache.missing.tolist()))
    for i in present:
        assert is_expected(cache[i], i)
    for i in cache.missing[:3].tolist():
        with pytest.raises(edcache.errors.MissingSampleError):
            cache[i]
    labels = cache.labels.table
    for column in ("y", "name"):
        values = labels[column].to_pylist() if present else []
        assert [values[i] for i in present] == [expected(i)[column] for i in present]
        assert all(value is None for i, value in enumerate(values) if i not in set(present))
    cache.close()
    return set(present)


@pytest.mark.full
def test_a_kill_costs_little_of_what_was_computed(program: subprocess.Popen[str], tmp_path: Path) -> None:
    archive, log = tmp_path / "killed.zip", tmp_path / "log"
    child = Fill(program, "class", archive, log)
    while len(computed(log)) < 1400:
        time.sleep(0.01)
    child.send(signal.SIGKILL)
    child.ended()
    # A chunk as small as these is due after a second; the rest is slack for a busy machine.
    assert len(published(archive)) >= 200


@pytest.mark.full
def test_ctrl_c_keeps_everything_before_it(program: subprocess.Popen[str], tmp_path: Path) -> None:
    archive, log = tmp_path / "stopped.zip", tmp_path / "log"
    child = Fill(program, "decorator", archive, log)
    while len(computed(log)) < 300:
        time.sleep(0.01)
    child.send(signal.SIGINT)
    code, err = child.ended()
    assert code != 0
    assert "KeyboardInterrupt" in err
    done = computed(log)
    # The one that was being computed may be lost; all others were published on the way out.
    assert published(archive) >= set(done[:-1])
    kept = len(published(archive))
    log.unlink()
    code, err = Fill(program, "decorator", archive, log).ended()
    assert (code, f"{kept:,} of {COUNT:,} already cached" in err) == (0, True), err
    assert len(computed(log)) == COUNT - kept
    assert published(archive) == set(range(COUNT))


class Failing:
    """A source that raises at one index until it is repaired."""

    def __init__(self, fails_at: int, error: BaseException) -> None:
        self.fails_at: int | None = fails_at
        self.error = error
        self.asked: list[int] = []

    def __edcache_fingerprint__(self) -> dict[str, int]:
        return {}  # one that fails is the same as one that was mended

    def __len__(self) -> int:
        return 200

    def __getitem__(self, i: int) -> dict[str, object]:
        self.asked.append(i)
        if i == self.fails_at:
            raise self.error
        return {"x": np.full(3, i), "y": i}


@pytest.mark.parametrize("k", thinned([0, 1, 63, 64, 130, 199], 1))
def test_an_exception_in_the_source_keeps_everything_before_it(
    tmp_path: Path, k: int, capfd: pytest.CaptureFixture[str]
) -> None:
    source = Failing(k, OSError("broken file"))
    path = tmp_path / "failing.zip"
    with pytest.raises(
        edcache.errors.SourceError, match=rf"raised at index {k}: OSError: broken file"
    ) as raised:
        CachedDataset(source, path, in_memory_keys=["y"])
    assert raised.value.__cause__ is source.error
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert cache.missing.tolist() == list(range(k, 200))
    assert all(cache[i]["x"].tolist() == [i] * 3 for i in range(k))
    if k:
        assert cache.labels.table["y"].to_pylist() == list(range(k)) + [None] * (200 - k)
    assert edcache.verify(path).problems == []
    capfd.readouterr()

    source.fails_at, source.asked = None, []
    repaired = CachedDataset(source, path, in_memory_keys=["y"])
    assert source.asked == list(range(k, 200))
    assert repaired.complete
    assert [sample["y"] for sample in repaired] == list(range(200))
    *first, last = capfd.readouterr().err.splitlines()
    assert first == ([f"failing.zip: {k} of 200 already cached"] if k else [])
    assert last.startswith("failing.zip: 200 of 200 cached in ")
    assert edcache.verify(path).sealed


@pytest.mark.full
def test_an_exception_that_is_no_exception_keeps_everything_too(tmp_path: Path) -> None:
    source = Failing(77, SystemExit(3))
    with pytest.raises(edcache.SourceError):
        CachedDataset(source, tmp_path / "exit.zip")
    assert CachedDataset.from_cache(tmp_path / "exit.zip", allow_partial=True).missing.tolist() == list(
        range(77, 200)
    )


@pytest.mark.full
def test_a_killed_creator_leaves_what_the_next_call_replaces(tmp_path: Path) -> None:
    """Killed while the head was written: any cut of the head, and the decorator as well as the class."""
    path = tmp_path / "new.zip"
    with edcache.CacheWriter(path) as w:
        w.append(1)
    head = path.read_bytes()[:4096]
    problems = []
    for way in ("class", "decorator", "writer"):
        for cut in (0, 1, 3, 4, 20, 41, 42, 100, 191, 192, 1000, 4095):
            path.write_bytes(head[:cut])
            try:
                if way == "class":
                    CachedDataset([1, 2, 3], path)
                elif way == "decorator":
                    edcache.cachable(path)(lambda: [1, 2, 3])()
                else:
                    with edcache.CacheWriter(path, "a") as w:
                        w.extend([1, 2, 3])
                assert list(CachedDataset.from_cache(path)) == [1, 2, 3]
            except EdcacheError as error:
                problems.append(f"{way}, {cut} bytes: {type(error).__name__}: {error}")
    assert problems == []
