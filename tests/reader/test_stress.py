"""Many processes, threads and rounds: nothing hangs, is torn, lost, doubled, leaked or freed too early."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from descriptors import open_files
from scale import scaled, seeded
from systems import HANGS, WAYS, ended, in_a_fork, in_child, reading_by
from torch.utils.data import DataLoader
from written import write

import edcache
from edcache import CachedDataset, CacheWriter, format
from edcache.errors import ArchiveError, EdcacheError
from edcache.format import Head
from edcache.reader import Reader
from edcache.storage.file import File
from edcache.writer.appender import Appender
from tests.kit.systems import child_environ

# Forking while threads run is what some of these tests are about.
pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]
START_METHODS = [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]
COUNT = 40


def sample(i: int) -> dict[str, Any]:
    return {
        "x": torch.full((2, 5), i, dtype=torch.int32),
        "a": np.arange(3.0) + i,
        "name": f"n{i}",
        "y": i % 4,
    }


def is_sample(found: Any, i: int) -> bool:
    return (
        list(found) == ["x", "a", "name", "y"]
        and found["x"].dtype == torch.int32
        and found["x"].tolist() == [[i] * 5] * 2
        and found["a"].tolist() == [i, i + 1.0, i + 2.0]
        and (found["name"], found["y"]) == (f"n{i}", i % 4)
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a folder: what is tried here is not the disk."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="edcache-stress-", dir=memory) as name:
        yield Path(name)


@pytest.fixture
def sealed(folder: Path) -> Path:
    with CacheWriter(folder / "sealed.zip", in_memory_keys=["y"], chunk_size=7, sync="never") as w:
        w.extend(map(sample, range(COUNT)))
    return folder / "sealed.zip"


@contextmanager
def killed_at_last(*children: int) -> Iterator[None]:
    """Whatever the test makes of them, they are gone afterwards."""
    try:
        yield
    finally:
        for child in children:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


# --- forks of busy processes ---


class Busy:
    """Threads that read, refresh and append for as long as the block lasts."""

    def __init__(self, sealed: Path, growing: Path) -> None:
        self.cache = CachedDataset.from_cache(sealed)
        self.reader = Reader(growing, allow_partial=True)
        self.growing = growing
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._published = 0
        self.forks = 0
        work = (self._read, self._read_batches, self._refresh, self._append)
        self._threads = [threading.Thread(target=self._guarded, args=(one,)) for one in work]

    def __enter__(self) -> Busy:
        CacheWriter(self.growing, in_memory_keys=["y"], sync="never").abort()
        for thread in self._threads:
            thread.start()
        while not self._published:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(HANGS)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.problems.append(f"{work.__name__}: {error!r}")

    def _read(self) -> None:
        for i in itertools.cycle(range(COUNT)):
            if self._stop.is_set():
                return
            assert is_sample(self.cache[i], i)
            assert self.cache.labels["y"][i] == i % 4
            time.sleep(0.0001)

    def _read_batches(self) -> None:
        while not self._stop.is_set():
            batch = self.cache.batch(range(COUNT))
            assert batch["y"].tolist() == [i % 4 for i in range(COUNT)]
            time.sleep(0.001)

    def _refresh(self) -> None:
        while not self._stop.is_set():
            self.reader.refresh()
            if self.reader.session.length:
                assert is_sample(
                    self.reader.session.read(self.reader.session.length - 1), self.reader.session.length - 1
                )
            time.sleep(0.001)

    def _append(self) -> None:
        w = CacheWriter(self.growing, "a", chunk_size=8, sync="never")
        while not self._stop.is_set():
            # One sample for each fork, so that the archive stays short; all the others go elsewhere.
            if w.next_index < self.forks + 8:
                w.append(sample(w.next_index))
                self._published = w._appender.chain.end_index
            with CacheWriter(self.growing.with_name("other.zip"), "w", chunk_size=3, sync="never") as other:
                other.extend(map(sample, range(9)))
            time.sleep(0.001)
        w.close()


@pytest.mark.full
def test_a_thousand_forks_of_a_busy_process_read_open_and_end(folder: Path, sealed: Path, tally: Any) -> None:
    """Neither a lock that another thread holds nor a half-changed object comes along with a fork."""
    busy, rng = Busy(sealed, folder / "growing.zip"), seeded("forks")

    def work(chosen: list[int], opens: Path | None) -> None:
        assert all(is_sample(busy.cache[i], i) for i in chosen)
        before = busy.reader.session.length
        busy.reader.refresh()
        assert busy.reader.session.length >= before
        assert is_sample(
            busy.reader.session.read(busy.reader.session.length - 1), busy.reader.session.length - 1
        )
        if opens:
            again = Reader(opens)
            assert all(is_sample(again.session.read(i), i) for i in (0, again.session.length - 1))
            again.close()

    forks = scaled(1000)
    with busy:
        running: list[int] = []
        for k in range(forks):
            busy.forks = k
            chosen = [rng.randrange(COUNT) for _ in range(3)]
            opens = busy.growing if k % 25 == 0 else sealed if k % 5 == 0 else None
            running.append(in_child(lambda chosen=chosen, opens=opens: work(chosen, opens)))
            if len(running) == 2:
                assert ended(running.pop(0)) == 0
        assert [ended(child) for child in running] == [0] * len(running)
    assert busy.problems == []
    assert edcache.verify(busy.growing).problems == []
    tally("forks", forks)


# --- what is sent to processes, and closed in odd orders ---


def follow(things: tuple[Any, ...], begun: Any, go_on: Any, answers: Any) -> None:
    """Read half, wait until the parent has closed its own, read on, close twice."""
    try:
        reader, cache, view = things
        half = [is_sample(reader.session.read(i), i) and is_sample(cache[i], i) for i in range(COUNT // 2)]
        begun.set()
        assert go_on.wait(HANGS)
        half += [
            is_sample(reader.session.read(i), i) and is_sample(cache[i], i) for i in range(COUNT // 2, COUNT)
        ]
        whole = [is_sample(found, i) for found, i in zip(view, range(5, 25), strict=True)]
        for thing in (reader, cache, reader, cache):
            thing.close()
        answers.put((all(half), all(whole), _use_after_close(cache)))
    except BaseException as error:
        answers.put(repr(error))


def _use_after_close(cache: CachedDataset) -> str:
    try:
        cache[0]
    except ArchiveError as error:
        return str(error).partition(": ")[2]
    return "it reads on"


@pytest.mark.parametrize("method", START_METHODS)
def test_a_reader_goes_to_a_process_amid_reading_and_outlives_its_parents(
    sealed: Path, method: str, tally: Any
) -> None:
    context = multiprocessing.get_context(method)
    reader, cache = Reader(sealed), CachedDataset.from_cache(sealed)
    kept = [reader.session.read(3), *itertools.islice(cache, 7)]
    begun, go_on, answers = context.Event(), context.Event(), context.Queue()
    child = context.Process(target=follow, args=((reader, cache, cache[5:25]), begun, go_on, answers))
    child.start()
    assert begun.wait(HANGS)
    twin = pickle.loads(pickle.dumps(cache))
    reader.close()
    cache.close()
    go_on.set()
    assert answers.get(timeout=HANGS) == (True, True, "closed; open it again to read")
    child.join(HANGS)
    assert child.exitcode == 0
    answers.close()
    answers.join_thread()
    # What the child closed twice is open here, and what was handed out is whole.
    assert all(is_sample(twin[i], i) for i in range(COUNT))
    assert all(is_sample(found, i) for found, i in zip(kept, [3, *range(7)], strict=True))
    assert _use_after_close(cache) == "closed; open it again to read"
    cache.close()
    twin.close()
    tally("forks", 1)


@pytest.mark.parametrize("method", START_METHODS)
def test_the_workers_of_a_loader_read_on_after_the_parent_closed(sealed: Path, method: str) -> None:
    cache = CachedDataset.from_cache(sealed)
    loader = DataLoader(cache, batch_size=4, num_workers=2, multiprocessing_context=method, timeout=HANGS)
    batches = iter(loader)
    found = [next(batches)["y"].tolist()]
    cache.close()
    found += [batch["y"].tolist() for batch in batches]
    assert list(itertools.chain(*found)) == [i % 4 for i in range(COUNT)]


def test_what_lies_in_a_cycle_is_let_go_of_and_what_was_handed_out_is_not(sealed: Path) -> None:
    kept, before = [], len(open_files(sealed))
    for i in range(30):
        cache = CachedDataset.from_cache(sealed)
        cache.loop = [cache, cache[2:9]]  # type: ignore[attr-defined]
        kept.append((cache._archive.reader.session.read(i, copy=False), cache.labels["y"]))
        del cache
    gc.collect()
    assert all(is_sample(found, i) and len(labels) == COUNT for i, (found, labels) in enumerate(kept))
    # A mapping keeps a descriptor of its own, for as long as an array lies over it.
    assert len(open_files(sealed)) <= before + len(kept)
    kept.clear()
    assert len(open_files(sealed)) == before


EXITS = """
import sys, edcache
from edcache import CachedDataset, CacheWriter
from edcache.reader import Reader
path, grown = sys.argv[1:]
reader, cache = Reader(path), CachedDataset.from_cache(path)
w = CacheWriter(grown, publish_seconds=None)
w.append({"y": 0}); w.flush(); w.append({"y": 1})
other = CacheWriter(grown + ".w", "w"); other.append(1)
lazy = CachedDataset([5, 6, 7], grown + ".lazy", lazy=True, progress=False)
assert (reader.session.read(0)["y"], cache[1]["y"], lazy[2]) == (0, 1, 7)
view = cache[2:8]
cycle = [view]; cycle.append(cycle)
batches = iter(cache.loader(4)); next(batches)
sys.cycle = [reader, w, other, batches, lazy]
"""


def test_an_interpreter_ends_quietly_with_everything_open(folder: Path, sealed: Path) -> None:
    env = child_environ()
    command = [sys.executable, "-W", "error", "-c", EXITS, str(sealed), str(folder / "grown.zip")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=env)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    # What was published is there, what was not is not, and nothing claims to be whole.
    cache = CachedDataset.from_cache(folder / "grown.zip", allow_partial=True)
    assert (list(cache), cache._archive.reader.session.sealed) == ([{"y": 0}], False)
    assert not (folder / "grown.zip.w").exists()
    assert edcache.verify(folder / "grown.zip").problems == []


@pytest.mark.full
def test_an_interpreter_ends_quietly_where_a_profiler_keeps_a_dataset_longer_than_modules(
    sealed: Path,
) -> None:
    code = (
        "import cProfile, sys, edcache\nds = edcache.CachedDataset.from_cache(sys.argv[1])\n"
        "function = lambda: ds.take(3)\nprofile = cProfile.Profile(); profile.runcall(function)"
    )
    env = child_environ()
    command = [sys.executable, "-c", code, str(sealed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=env)
    assert (done.returncode, done.stderr) == (0, "")


# --- many writers, many readers ---

WRITERS, READERS, ROUNDS = 8, 4, 10


def small(writer: int, k: int) -> dict[str, Any]:
    return {"who": writer, "k": k, "x": np.full(4, 100_000 * writer + k)}


def append_many(path: Path, writer: int, count: int) -> None:
    w = CacheWriter(path, "a", chunk_size=1, publish_seconds=None, sync="never")
    for k in range(count):
        w.append(small(writer, k))
    w.abort()


class Watched:
    """A reader that checks every sample once: each writer's come in their order, none twice, none torn."""

    def __init__(self, path: Path) -> None:
        self.reader = Reader(path, allow_partial=True)
        self.seen = 0
        self.next = [0] * WRITERS

    def look(self) -> None:
        self.reader.refresh()
        length = self.reader.session.length
        assert self.reader.session.index.present == length >= self.seen
        for i in range(self.seen, length):
            found = self.reader.session.read(i)
            assert found["k"] == self.next[found["who"]], (i, found, self.next)
            assert found["x"].tolist() == [100_000 * found["who"] + found["k"]] * 4
            self.next[found["who"]] += 1
        self.seen = length


def watch(path: Path, until: int) -> None:
    """Follow the archive until so many samples are seen."""
    watched = Watched(path)
    while watched.seen < until:
        watched.look()
        time.sleep(0.1)
    watched.reader.close()


@pytest.mark.full
def test_fifty_thousand_chunks_of_eight_writers_are_all_there_once_under_four_readers(
    folder: Path, tally: Any
) -> None:
    each = scaled(50_000) // (ROUNDS * WRITERS)
    for round_ in range(ROUNDS):
        path = folder / f"{round_}.zip"
        CacheWriter(path, sync="never").abort()
        writers = [in_child(lambda k=k, path=path: append_many(path, k, each)) for k in range(WRITERS)]
        # Each reader follows for another part of the way: what it has seen it need not see again.
        parts = [each * WRITERS * (k + 1) // READERS // 2 for k in range(READERS)]
        readers = [in_child(lambda part=part, path=path: watch(path, part)) for part in parts]
        assert [ended(child) for child in [*writers, *readers]] == [0] * (WRITERS + READERS)
        w = CacheWriter(path, "a", sync="never")
        w.close()
        last = Watched(path)
        last.look()
        assert (last.next, last.reader.session.sealed) == ([each] * WRITERS, True)
        last.reader.close()
        if round_ == 0:
            assert edcache.verify(path).problems == []
        path.unlink()
    tally("chunks under readers", ROUNDS * WRITERS * each)


# --- what is left behind ---


def _private_nbytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _children() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


class Squares:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index * index


def _round(sealed: Path, path: Path, k: int) -> None:
    """Open, read, refresh, fill and close in every way, and leave nothing."""
    with reading_by(WAYS[k % 2]):
        cache, reader = CachedDataset.from_cache(sealed), Reader(sealed)
    assert all(is_sample(cache[i], i) for i in range(COUNT))
    assert len(cache.filter(y=1)) == COUNT // 4
    assert cache.batch(range(8))["y"].tolist() == [0, 1, 2, 3] * 2
    assert sum(len(batch["y"]) for batch in cache.loader(16)) == COUNT
    assert len(pickle.loads(pickle.dumps(cache))[3:5]) == 2
    write(path, map(sample, range(6)), "w", sync="never", compression="zstd", in_memory_keys=["y"])
    growing = Reader(path)
    assert growing.session.length == 6
    write(path, [sample(6)], "a", sync="never")
    assert growing.refresh()
    assert is_sample(growing.session.read(6), 6)
    with suppress(EdcacheError):
        Reader(path.with_suffix(".not there")).session.read(0)
    reader.close()
    growing.close()
    cache.close()
    if k % 40 == 0:
        filled = path.with_suffix(".filled")
        cache = CachedDataset(Squares(), filled, num_workers=2, progress=False, sync="never")
        assert sorted(cache) == [i * i for i in range(12)]
        assert sum(len(batch) for batch in DataLoader(cache, batch_size=4, num_workers=1)) == 12
        cache.close()
        filled.unlink()
    path.unlink()


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="counts through Linux's /proc")
def test_rounds_of_everything_leave_no_descriptor_memory_process_or_shared_memory(
    folder: Path, sealed: Path, tally: Any
) -> None:
    rounds, warm = scaled(200), 60

    def measured(count: int) -> tuple[int, int, set[str]]:
        for k in range(count):
            _round(sealed, folder / "round.zip", k)
        gc.collect()
        shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        return (
            len(open_files("")),
            _private_nbytes(),
            {name for name in shared if "torch" in name or "edcache" in name},
        )

    children = _children()
    descriptors, private, shared = measured(warm)
    again, later, shared_later = measured(rounds)
    assert again <= descriptors  # fewer, where an earlier test's went meanwhile
    assert {name for name in shared_later - shared if str(os.getpid()) in name} == set()
    assert _children() == children
    assert later - private < 4 << 20, f"{later - private:,} bytes more after {rounds} rounds"
    tally("rounds of open, read, refresh and close", rounds + warm)


# --- locks ---


def _free(path: Path) -> dict[str, bool]:
    """Which locks of an archive another process could take now."""
    file = File.open(path, "a")
    new = File.open(str(path) + ".edcache.new", "a")
    try:
        return {
            "append": file.try_lock(format.LOCK_APPEND),
            "claim": file.try_lock(format.LOCK_CLAIM + 3),
            "filler": not file.is_locked(format.LOCK_FILLER, format.FILLERS),
            "session": new.try_lock(format.LOCK_SESSION),
        }
    finally:
        file.close()
        new.close()


NONE_FREE = {"append": False, "claim": False, "filler": False, "session": False}
ALL_FREE = dict.fromkeys(NONE_FREE, True)


class Holding:
    """Every kind of lock on an archive, held by this process."""

    def __init__(self, path: Path) -> None:
        self.appender = Appender.open(path, Head(bytes(16)), mode="a", sync="never")
        assert self.appender.claims.claim(3)
        self.appender.claims.join_fillers()
        self.replacing = CacheWriter(path, "w", sync="never")
        self._appending = self.appender.appending()
        self._appending.__enter__()

    def close(self) -> None:
        self._appending.__exit__(None, None, None)
        self.appender.close()
        self.replacing._appender.close()
        self.replacing._appender.close()


def _release(held: Holding) -> None:
    for let_go in (
        lambda: held.appender.claims.release(3),
        lambda: held._appending.__exit__(None, None, None),
        lambda: held.appender.file.unlock(format.LOCK_APPEND),
        held.close,
        held.replacing.abort,
        held.replacing.close,
    ):
        with suppress(EdcacheError, StopIteration, RuntimeError):
            let_go()


@pytest.mark.parametrize("way", ["ends", "closes", "releases", "is killed", "collects"])
def test_nothing_that_a_child_does_frees_its_parents_locks(sealed: Path, way: str) -> None:
    held = Holding(sealed)

    def work() -> None:
        if way == "closes":
            held.close()
        elif way == "releases":
            _release(held)
        elif way == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif way == "collects":
            vars(held).clear()
            gc.collect()

    assert in_a_fork(lambda: _free(sealed)) == NONE_FREE
    assert ended(in_child(work)) == (-signal.SIGKILL if way == "is killed" else 0)
    assert in_a_fork(lambda: _free(sealed)) == NONE_FREE
    held.close()
    assert in_a_fork(lambda: _free(sealed)) == ALL_FREE


def test_the_death_of_a_process_frees_its_locks_though_its_children_live(sealed: Path) -> None:
    receiver, sender = os.pipe()

    def hold() -> None:
        held = Holding(sealed)
        asleep = [in_child(lambda: time.sleep(HANGS)), subprocess.Popen(["sleep", str(HANGS)]).pid]
        os.write(sender, pickle.dumps(asleep))
        time.sleep(HANGS)
        held.close()

    parent = in_child(hold)
    asleep = pickle.loads(os.read(receiver, 1000))
    os.close(receiver)
    os.close(sender)
    try:
        assert _free(sealed) == NONE_FREE
        os.kill(parent, signal.SIGKILL)
        assert ended(parent) == -signal.SIGKILL
        assert all(_is_alive(child) for child in asleep)
        assert _free(sealed) == ALL_FREE
    finally:
        for child in asleep:
            os.kill(child, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_holder_that_is_stopped_keeps_writers_waiting_and_no_reader(sealed: Path) -> None:
    receiver, sender = os.pipe()

    def hold() -> None:
        held = Holding(sealed)
        os.write(sender, b"held")
        time.sleep(0.01)
        held.close()

    holder = in_child(lambda: (hold(), time.sleep(HANGS)))
    with killed_at_last(holder):
        assert os.read(receiver, 4) == b"held"
        os.kill(holder, signal.SIGSTOP)
        held = not _free(sealed)["append"]
        reader = Reader(sealed)
        assert all(is_sample(reader.session.read(i), i) for i in range(COUNT))
        assert not reader.refresh()
        assert edcache.verify(sealed).problems == []
        writer = in_child(lambda: _append_one(sealed))
        with killed_at_last(writer):
            time.sleep(0.3)
            assert held == (os.waitpid(writer, os.WNOHANG) == (0, 0))
            os.kill(holder, signal.SIGCONT)
            assert ended(writer) == 0
        assert reader.refresh()
        assert is_sample(reader.session.read(COUNT), COUNT)
        reader.close()
    os.close(receiver)
    os.close(sender)


def _append_one(path: Path) -> None:
    write(path, [sample(COUNT)], "a", sync="never")
