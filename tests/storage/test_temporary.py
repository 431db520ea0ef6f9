"""Killed at any moment, a process that writes beside a path leaves files that `--prune` finds and deletes."""

import os
import random
import signal
import time

import fsspec
import pytest
from cli_runner import report, run
from systems import Killing, ended, in_child, replace_system
from written import write

import edcache
from edcache import CachedDataset
from edcache.writer import temporary

COUNT = 30


class Stream:
    def __iter__(self):
        return iter(range(COUNT))


def copy(top):
    edcache.copy_to_local(top / "a.zip", top / "near.zip", progress=False)


def writing(top):
    write(top / "a.zip", range(COUNT), "w", chunk_size=10)


def spooled(top):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDCACHE_DIR", str(top))
        write("memory://temporary/a.zip", [1], "a")


OPERATIONS = {
    "save": lambda top: CachedDataset.from_cache([top / "a.zip", top / "b.zip"]).save(top / "new.zip"),
    "save parts": lambda top: CachedDataset.from_cache(top / "a.zip").save(top / "new.zip", max_size=2000),
    "save over itself": lambda top: CachedDataset.from_cache(top / "b.zip").save(top / "b.zip"),
    "rebuild": lambda top: CachedDataset(list(range(COUNT)), top / "a.zip", keep_existing=False),
    "rebuild a stream": lambda top: CachedDataset(Stream(), top / "a.zip", keep_existing=False),
    "write": writing,
    "copy": copy,
    "spool": spooled,
}


def make(top):
    """a.zip, sealed, and b.zip, to be compacted."""
    for name in ("a.zip", "b.zip"):
        write(top / name, ({"x": i} for i in range(COUNT)), chunk_size=10)
    write(top / "b.zip", [{"x": 0}], "a", indices=[0])
    fsspec.filesystem("memory").pipe_file("/temporary/a.zip", (top / "a.zip").read_bytes())


def on_disk(top):
    """All files, but for side files beside their copies."""
    found = {
        os.path.relpath(os.path.join(folder, name), top)
        for folder, _, names in os.walk(top)
        for name in names
    }
    copies = {name + ending for name in found for ending in (".origin",)}
    return found - copies - {name.replace(".partial", ".origin") for name in found if "partial" in name}


def listed(top):
    return {row["path"]: row["about"] for row in report("caches", top)}


@pytest.mark.full
@pytest.mark.parametrize("name", OPERATIONS)
def test_whatever_is_left_is_listed_and_pruned(tmp_path, name, tally):
    counting = tmp_path / "counting"
    counting.mkdir()
    make(counting)

    steps = Killing()
    with replace_system(steps):
        OPERATIONS[name](counting)
    later = range(3, steps.count + 1)
    some = [1, 2, *sorted(random.Random(name).sample(later, min(4, len(later))))]
    seen = set()
    for step in some:
        top = tmp_path / str(step)
        top.mkdir()
        make(top)
        kind = ended(in_child(lambda top=top: OPERATIONS[name](top), Killing(step)))
        assert kind in (-signal.SIGKILL, 0)
        seen |= set(listed(top))
        assert on_disk(top) == set(listed(top))
        run("caches", top, "--prune")
        assert not [file for file in on_disk(top) if file.endswith(".edcache.new")]
        left = on_disk(top)
        assert left == set(listed(top))
        assert {"a.zip", "b.zip"} <= left
        run("caches", top, "--max-size", "1B", "--older-than", "0", "--prune")
        assert on_disk(top) == set()
        assert not [file for file in os.listdir(top) if file.endswith(".origin")]
    assert [file for file in seen if file.endswith((".edcache.new", ".partial"))]
    tally("kills of what writes beside a path", len(some))


@pytest.mark.full
def test_what_is_killed_at_random_is_listed_and_pruned(tmp_path, tally):
    chance = random.Random(5)
    for number, name in enumerate(OPERATIONS):
        top = tmp_path / str(number)
        top.mkdir()
        make(top)
        pid = in_child(lambda top=top, name=name: OPERATIONS[name](top))
        time.sleep(chance.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        assert on_disk(top) == set(listed(top))
        run("caches", top, "--prune")
        assert not [file for file in on_disk(top) if file.endswith(".edcache.new")]
    tally("kills of what writes beside a path", len(OPERATIONS))


def held(top, begin):
    """Runs in a child that begins, and then waits to be killed."""
    ready = top / "ready"

    def step():
        kept = begin()
        ready.touch()
        time.sleep(60)
        return kept

    pid = in_child(step)
    while not ready.exists():
        time.sleep(0.01)
    ready.unlink()
    return pid


def test_what_a_living_process_writes_stays(tmp_path):
    pid = held(tmp_path, lambda: temporary.start(str(tmp_path / "a")))
    try:
        assert listed(tmp_path) == {"a.edcache.new": "another process is writing it"}
        run("caches", tmp_path, "--max-size", "1B", "--older-than", "0", "--prune")
        assert os.listdir(tmp_path) == ["a.edcache.new"]
        assert temporary.discard(str(tmp_path / "a.edcache.new")) is False
    finally:
        os.kill(pid, signal.SIGKILL)
        ended(pid)
    assert listed(tmp_path) == {"a.edcache.new": "a killed process left it; --prune deletes it"}
    run("caches", tmp_path, "--prune")
    assert os.listdir(tmp_path) == []


def test_files_of_others_with_like_names_stay(tmp_path):
    for name in ("a.new", "a.zip.new", "a.partial", "a.upload", "edcache.new.txt", "a.origin.txt"):
        (tmp_path / name).write_text("mine")
    before = sorted(os.listdir(tmp_path))
    run("caches", tmp_path, "--max-size", "1B", "--prune")
    assert sorted(os.listdir(tmp_path)) == before
