"""One archive, many processes and threads: the same samples everywhere, and nothing lost."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from descriptors import needs_proc, open_files
from likeness import same
from systems import CALLS, WAYS, System, in_a_fork, in_threads, reading_by, replace_system, routed
from written import write, written

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.errors import ArchiveError, StaleArchiveError
from edcache.format import END_NBYTES
from edcache.reader import Reader
from tests.kit.systems import child_environ

MODULE = '''
import numpy as np
import torch

class Source:
    """Importable by name, as a user's dataset is."""

    def __len__(self):
        return 60

    def __getitem__(self, i):
        if not 0 <= i < 60:
            raise IndexError(i)
        return {"image": torch.full((3, 4), i, dtype=torch.uint8), "x": np.arange(3.0) + i,
                "name": f"n{i}", "y": i % 4}
'''
# Forking while threads run is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
START_METHODS = [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("module")
    (folder / "a_users_module.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("a_users_module")
    sys.path.remove(str(folder))
    del sys.modules["a_users_module"]


@pytest.fixture
def path(tmp_path: Path, module: ModuleType) -> Path:
    path = tmp_path / "shared.zip"
    CachedDataset(module.Source(), path, in_memory_keys=["y", "name"], chunk_size=16).close()
    return path


# --- reading ---


@pytest.mark.parametrize("way", WAYS)
def test_eight_threads_read_one_reader(path: Path, module: ModuleType, way: str) -> None:
    source = module.Source()
    expected = [source[i] for i in range(60)]
    for _ in range(3):
        with reading_by(way):
            cache = CachedDataset.from_cache(path)
        barrier = threading.Barrier(8)

        def read(seed: int, cache: CachedDataset = cache, barrier: threading.Barrier = barrier) -> None:
            order = np.random.default_rng(seed).permutation(60).tolist()
            barrier.wait(30)
            for i in order * 3:
                assert same(cache[i], expected[i])
                assert cache.labels["y"][i] == i % 4
                assert same(cache.__getitems__([i, 3, i]), [expected[k] for k in (i, 3, i)])

        in_threads(*[functools.partial(read, k) for k in range(8)])
        cache.close()


@pytest.mark.parametrize("samples", [1, 5000])
def test_a_pickled_reader_is_small_and_carries_no_data(tmp_path: Path, samples: int) -> None:
    path = tmp_path / "pickled.zip"
    write(path, ({"y": i} for i in range(samples)), in_memory_keys=["y"])
    reader = Reader(path)
    assert reader.session.length == samples
    assert reader.session.read(0) == {"y": 0}
    assert reader.session.labels.table.num_rows == samples
    data = pickle.dumps(reader)
    assert len(data) < 2000
    assert len(pickle.dumps(CachedDataset.from_cache(path))) < 2000
    again = pickle.loads(data)
    assert again.session.read(samples - 1) == {"y": samples - 1}


def test_a_pickled_reader_notices_another_archive_at_its_path(path: Path) -> None:
    data = pickle.dumps(Reader(path))
    path.unlink()
    write(path, [1])
    with pytest.raises(StaleArchiveError, match="another archive is here now"):
        pickle.loads(data).open()


def run_python(program: str, *arguments: object, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=child_environ() | env,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_process_without_the_source_module_reads_everything(path: Path) -> None:
    program = """
import sys, edcache
cache = edcache.CachedDataset.from_cache(sys.argv[1])
print(len(cache), cache[59]["name"], cache.labels["y"].tolist() == [i % 4 for i in range(60)])
print(cache.filter(y=3)[0]["name"], "a_users_module" in sys.modules)
"""
    assert run_python(program, path) == "60 n59 True\nn3 False\n"


# --- reading while others write ---


def sample(i: int) -> dict[str, Any]:
    return {"x": np.full(50, i, np.int32), "y": i}


def appends(path: str, count: int) -> None:
    with CacheWriter(path, "a", chunk_size=7) as w:
        for i in range(count):
            w.append(sample(i))
            time.sleep(0.0005)


def writes(path: str, start: int, count: int, step: int, done: Any) -> None:
    try:
        w = CacheWriter(path, "a", chunk_size=5, publish_seconds=None)
        for i in range(start, count, step):
            w.write(i, sample(i))
        w.close()
        done.put("")
    except BaseException as error:
        done.put(repr(error))


def test_a_reader_sees_more_and_more_while_another_process_appends(tmp_path: Path) -> None:
    path = tmp_path / "growing.zip"
    w = CacheWriter(path, in_memory_keys=["y"])
    w.abort()
    reader = Reader(path, allow_partial=True)
    assert reader.session.length == 0
    child = multiprocessing.get_context("fork").Process(target=appends, args=(str(path), 400))
    child.start()
    lengths = [0]
    while child.is_alive() or lengths[-1] < 400:
        reader.refresh()
        count = reader.session.length
        lengths.append(count)
        for i in {0, count // 2, count - 1} & set(range(count)):
            assert reader.session.read(i)["y"] == i
            assert (reader.session.read(i)["x"] == i).all()
        assert reader.session.labels.table.num_rows == count
        assert child.exitcode in (None, 0)
    child.join()
    reader.refresh()
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 5
    assert reader.session.sealed
    assert [reader.session.read(i)["y"] for i in range(400)] == list(range(400))
    assert not reader.refresh()


def test_a_reader_that_looked_before_the_end_of_a_seal_sees_it_by_refresh(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    write(path, (sample(i) for i in range(10)))
    whole = path.read_bytes()
    os.truncate(path, len(whole) - END_NBYTES)
    reader = Reader(path, allow_partial=True)
    assert (reader.session.length, reader.session.sealed, reader.refresh()) == (10, False, False)
    with path.open("r+b") as f:
        f.write(whole)
    assert reader.refresh()
    assert reader.session.sealed
    assert not reader.refresh()


def test_a_view_of_an_open_cache_stays_valid_while_the_archive_grows(tmp_path: Path) -> None:
    path = tmp_path / "growing.zip"
    cache = written(path, (sample(i) for i in range(10)), in_memory_keys=["y"])
    array, view = cache._archive.reader.session.read(3, copy=False)["x"], cache[2:5]
    with CacheWriter(path, "a") as w:
        w.extend(sample(i) for i in range(10, 20))
        w.write(3, {"x": np.zeros(50, np.int32), "y": -3})
    assert (array == 3).all()
    assert view[1]["y"] == 3
    assert cache.refresh()
    assert len(cache) == 20
    assert (array == 3).all()
    assert cache[3]["y"] == -3
    assert cache.labels["y"].tolist() == [0, 1, 2, -3, *range(4, 20)]


@pytest.mark.parametrize("method", START_METHODS)
def test_two_processes_write_one_archive_and_lose_nothing(tmp_path: Path, method: str) -> None:
    path = tmp_path / "together.zip"
    CacheWriter(path, in_memory_keys=["y"]).abort()
    context = multiprocessing.get_context(method)
    done = context.Queue()
    children = [context.Process(target=writes, args=(str(path), k, 300, 2, done)) for k in (0, 1)]
    for child in children:
        child.start()
    assert [done.get(timeout=60) for _ in children] == ["", ""]
    for child in children:
        child.join(30)
    done.close()
    done.join_thread()
    cache = CachedDataset.from_cache(path)
    assert len(cache) == 300
    assert cache.complete
    assert cache._archive.reader.session.sealed
    assert [s["y"] for s in cache] == list(range(300))
    assert cache.labels["y"].tolist() == list(range(300))
    report = edcache.verify(path)
    assert report.problems == []
    assert report.chunks == 60


INHERITED: dict[str, Callable[[CacheWriter], object]] = {
    "flush": lambda w: w.flush(),
    "append": lambda w: w.append(sample(2)),  # not at the flush alone, which os._exit never reaches
    "append and close": lambda w: (w.append(sample(2)), w.close()),
    "close": lambda w: w.close(),
    "seal": lambda w: w.seal(),
}


@pytest.mark.parametrize("way", INHERITED)
def test_a_forked_child_cannot_write_through_its_parents_writer(tmp_path: Path, way: str) -> None:
    path = tmp_path / "inherited.zip"
    w = CacheWriter(path, in_memory_keys=["y"], publish_seconds=None)
    w.append(sample(0))
    w.flush()
    w.append(sample(1))

    def refused() -> str:
        with pytest.raises(ArchiveError) as caught:
            INHERITED[way](w)
        return str(caught.value)

    assert f"{path}: opened for appending by process {os.getpid()}, used in" in in_a_fork(refused)
    # The parent's own work is untouched by what its child tried.
    w.append(sample(2))
    w.close()
    assert [s["y"] for s in CachedDataset.from_cache(path)] == [0, 1, 2]
    assert edcache.verify(path).sound


# --- what two writers can do to each other's labels ---


@pytest.mark.parametrize(
    "values",
    [
        ["a", None, 3],
        [None, "a", 3],
        [-1, np.uint64(2**63)],
        [2**53 + 1, 0.5],
        [np.uint64(2**63), -1],
        [0.5, 2**53 + 1],
    ],
    ids=str,
)
@pytest.mark.parametrize("writers", ["reopened", "together"])
def test_labels_that_make_no_column_never_end_an_archive(
    tmp_path: Path, values: list[Any], writers: str
) -> None:
    """They are refused before they are published: a chunk in the file cannot be taken back."""
    path = tmp_path / "labels.zip"
    CacheWriter(path, in_memory_keys=["y"]).abort()
    both = [CacheWriter(path, "a", publish_seconds=None) for _ in range(2)]
    taken: list[Any] = []
    for k, value in enumerate(values):
        w = both[k % 2] if writers == "together" else CacheWriter(path, "a", publish_seconds=None)
        try:
            w.append({"y": value})
            w.flush()
            taken.append(value)
        except edcache.errors.LabelError:
            pass
        if writers == "reopened":
            w.abort()
    for w in both:
        w.abort()
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert [s["y"] for s in cache] == taken
    assert taken[: len(values) - 1] == values[:-1]
    assert len(cache.labels["y"]) == len(taken)
    with CacheWriter(path, "a"):
        pass
    assert edcache.verify(path).sealed


# --- files that grow or shrink meanwhile, and descriptors that leak ---


@routed(CALLS)
class Meanwhile(System):
    """Before the n-th call, something else is done to the file."""

    def __init__(self, n: int, action: Callable[[], object]) -> None:
        self.left, self.action = n, action

    def around(self, name: str, plain: Callable[..., Any], *arguments: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.action()
        return plain(*arguments)


def grown(path: Path) -> None:
    write(path, (sample(i) for i in range(10, 13)), "a")


def labelled(path: Path) -> None:
    CachedDataset.from_cache(path, allow_partial=True).add_labels("z", {0: 7})


def opened_and_read(path: Path) -> list[int]:
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert cache.labels["y"].tolist() == [s["y"] for s in cache]
    return [s["y"] for s in cache]


def refreshed(path: Path) -> list[int]:
    cache = CachedDataset.from_cache(path, allow_partial=True)
    assert len(cache)
    cache.refresh()
    return [s["y"] for s in cache]


def verified(path: Path) -> list[int]:
    report = edcache.verify(path)
    assert report.problems == []
    return list(range(report.samples))


@pytest.mark.parametrize(("action", "seal"), [(grown, True), (grown, False), (labelled, True)])
@pytest.mark.parametrize("look", [opened_and_read, refreshed, verified])
def test_an_archive_that_changes_at_any_moment_of_opening_it_is_never_called_damaged(
    tmp_path: Path, action: Callable[[Path], None], look: Callable[[Path], list[int]], seal: bool
) -> None:
    base, path = tmp_path / "base.zip", tmp_path / "a.zip"
    w = CacheWriter(base, in_memory_keys=["y"])
    w.extend(sample(i) for i in range(10))
    w.close() if seal else w.abort()
    n, system = 0, Meanwhile(0, lambda: None)
    while system.left <= 0:
        n += 1
        shutil.copy(base, path)
        system = Meanwhile(n, lambda: action(path))
        with replace_system(system):
            assert look(path) in (list(range(10)), list(range(13)))
    assert n > 5


class Shrinking(System):
    """Another writer cuts its torn tail right after the reader's n-th look at the file's size."""

    def __init__(self, path: Path, size: int, n: int) -> None:
        self.path, self.size, self.left = path, size, n

    def stat(self, fd: int) -> os.stat_result:
        found = super().stat(fd)
        self.left -= 1
        if self.left == 0:
            os.truncate(self.path, self.size)
        return found


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    path = tmp_path / "torn.zip"
    w = CacheWriter(path, in_memory_keys=["y"])
    w.extend(sample(i) for i in range(10))
    w.abort()
    with open(path, "ab") as file:
        file.write(b"\0" * 5000)
    return path


def values(path: Path) -> str:
    return str([s["y"] for s in CachedDataset.from_cache(path, allow_partial=True)])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_torn_tail_that_is_cut_while_a_reader_opens_is_nothing_to_it(torn: Path, n: int) -> None:
    def read() -> str:
        with replace_system(Shrinking(torn, torn.stat().st_size - 5000, n)):
            return values(torn)

    assert in_a_fork(read) == str(list(range(10)))


def test_a_torn_tail_that_is_cut_after_a_reader_mapped_it_kills_nobody(torn: Path) -> None:
    """Touching a mapped page behind the end of the file is a SIGBUS: the chain is not walked there."""
    mapped: list[int] = []

    class Cutting(System):
        def map(self, fd: int, nbytes: int) -> memoryview:
            found: memoryview = super().map(fd, nbytes)
            mapped.append(nbytes)
            os.truncate(torn, torn.stat().st_size - 5000)
            return found

    def read() -> str:
        with replace_system(Cutting()):
            return f"{values(torn)} {len(mapped)}"

    assert in_a_fork(read) == f"{list(range(10))} 1"


@needs_proc
def test_a_dropped_cache_gives_its_descriptors_back(path: Path, module: ModuleType) -> None:
    for _ in range(5):
        CachedDataset.from_cache(path)[0]
        CachedDataset(module.Source(), path)[0]
        edcache.cachable(path, on_stale="ignore")(module.Source)()[0]
    assert open_files(path) == []

    reader = Reader(path)
    assert reader.session.length == 60
    before = len(open_files(path))
    for _ in range(3):
        write(path, [module.Source()[0]], "a")
        assert reader.refresh()
    assert len(open_files(path)) <= before + 1
    reader.close()
