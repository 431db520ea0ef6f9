"""Archives in shared memory: one for all processes, right for all of them, and gone with the last."""

from __future__ import annotations

import errno
import gc
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from descriptors import open_files
from filled import computed, note
from scale import scaled, seeded
from systems import replace_system
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, CacheWriter, storage
from edcache.backends.shm import memory
from edcache.base import bounded
from edcache.cli import main
from edcache.errors import (
    ArchiveExistsError,
    ArchiveNotFoundError,
    NotAnArchiveError,
    OptionError,
    SourceError,
    StaleArchiveError,
    StaleCacheError,
    StorageError,
)
from edcache.storage import calls
from edcache.storage.file import File
from edcache.writer.lazy import LazyFiller

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

FOLDER = Path(f"/dev/shm/edcache-{os.geteuid()}")


class Source:
    """Samples of many shapes, with text and numbers."""

    def __init__(self, length=40, log=None, seconds=0.0):
        self.length, self.log, self.seconds = length, log, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        if self.log is not None:
            note(self.log, i)
        time.sleep(self.seconds)
        return {"x": torch.full((i % 5 + 1, 3), i), "a": np.arange(i % 4) + i, "name": f"né{i}", "y": i % 3}


class Other(Source):
    pass


def check(cache, indices=None):
    """Whether every sample is the source's own."""
    for i in range(len(cache)) if indices is None else indices:
        found, expected = cache[i], Source()[i]
        assert list(found) == list(expected)
        assert torch.equal(found["x"], expected["x"])
        assert found["a"].dtype == expected["a"].dtype
        assert found["a"].tolist() == expected["a"].tolist()
        assert (found["name"], found["y"]) == (expected["name"], expected["y"])


def processes_with(name):
    """Who has the memory open or mapped, by what the kernel says of every process of this sid."""
    sign, found = f"/memfd:edcache:{name.removeprefix('shm://')} (deleted)", set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getsid(int(process.name)) != os.getsid(0):
                continue
            for fd in os.listdir(process / "fd"):
                with suppress(OSError):
                    if os.readlink(process / "fd" / fd) == sign:
                        found.add(int(process.name))
            if sign in (process / "maps").read_text():
                found.add(int(process.name))
    return found


def entries_of(name):
    stem = name.removeprefix("shm://")
    return [entry for entry in os.listdir(FOLDER) if entry.startswith(stem)] if FOLDER.exists() else []


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "waited for 20 seconds"
        time.sleep(0.02)


class Child:
    """A forked process that runs a function of `say`, which lets `heard` return what it was given."""

    def __init__(self, function):
        self._reads, writes = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reads)
            code = 1
            try:
                function(lambda text: os.write(writes, text.encode()))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writes)
        self._code = None

    def heard(self):
        return os.read(self._reads, 1000).decode()

    def kill(self):
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        return self.code()

    def code(self):
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._reads)
        return self._code


@contextmanager
def children(*functions):
    started = []
    try:
        for function in functions:
            started.append(Child(function))
        yield started
    finally:
        for child in started:
            child.kill()


def holds(open_it):
    """What a child does: open a cache, read all of it, say so, and keep it until it is killed."""

    def run(say):
        cache = open_it()
        check(cache)
        say("open")
        time.sleep(60)

    return run


@pytest.fixture
def name(request):
    """A name in memory that nobody has, and that nobody has again afterwards."""
    name = f"shm://test-{os.getpid()}-{request.node.name[:60]}"
    before = Counter(open_files("edcache"))
    yield name
    gc.collect()
    assert processes_with(name) == set()
    assert Counter(open_files("edcache")) <= before


# ----------------------------------------------------------------------------- one cache for all


def test_what_is_in_memory_is_what_was_written_and_is_gone_with_the_last_that_closes_it(name):
    cache = CachedDataset(Source(), name, in_memory_keys=["y"])
    check(cache)
    assert cache.path == name
    assert cache.complete
    assert cache._reader.sealed
    assert cache.labels["y"].tolist() == [i % 3 for i in range(40)]
    assert [s["name"] for s in cache.filter(y=1)] == [f"né{i}" for i in range(40) if i % 3 == 1]
    again = CachedDataset.from_cache(name)
    assert processes_with(name) == {os.getpid()}
    cache.close()
    check(again)
    again.close()
    assert processes_with(name) == set()
    assert entries_of(name) == []
    with pytest.raises(ArchiveNotFoundError, match=f"{name}: no process of this user has it open in memory"):
        CachedDataset.from_cache(name)


def test_the_last_reference_lets_go_too(name):
    cache = CachedDataset(Source(), name)
    del cache
    gc.collect()
    assert processes_with(name) == set()
    assert entries_of(name) == []


def test_what_was_handed_out_stays_when_the_memory_is_closed(name):
    cache = CachedDataset(Source(), name)
    sample, array = cache[4], cache._reader.read(7, copy=False)["a"]
    cache.close()
    assert (sample["name"], array.tolist()) == ("né4", [7, 8, 9])
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert processes_with(name) == {os.getpid()}


def test_editing_a_sample_never_reaches_the_cache(name):
    cache, same = CachedDataset(Source(), name), CachedDataset.from_cache(name)
    for i in range(40):
        sample = cache[i]
        sample["x"].fill_(-1)
        sample["a"][:] = -1
    cache.batch([3])["y"].fill_(-1)
    check(cache)
    check(same)


def test_a_second_process_joins_and_computes_nothing(name, log):
    first = CachedDataset(Source(log=log), name)

    def join(say):
        check(CachedDataset(Source(log=log), name))
        check(CachedDataset.from_cache(name))

    with children(join, join) as started:
        assert [child.code() for child in started] == [0, 0]
    assert computed(log) == list(range(40))
    check(first)


def test_a_decorated_function_takes_a_name(name):
    @edcache.cachable(name + "-{split}", in_memory_keys=["y"])
    def make(split):
        calls.append(split)
        return Source()

    calls = []
    caches = [make("train"), make("train"), make("test")]
    assert calls == ["train", "test"]
    assert [cache.path for cache in caches] == [f"{name}-train", f"{name}-train", f"{name}-test"]
    for cache in caches:
        check(cache)


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (Other(), {}, StaleCacheError, "another source:\n  type: 'test_memory:Source' .*Other"),
        (Source(39), {}, StaleCacheError, "begun for 40 samples, the source has 39 now"),
        (Source(), {"fingerprint": {"seed": 1}}, StaleCacheError, "made by another source"),
        (Source(), {"in_memory_keys": ["name"]}, OptionError, r"in_memory_keys=\['name'\]"),
        (Source(), {"compression": "zstd"}, OptionError, "the archive was begun with None"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_name_that_another_source_has_is_refused(name, source, options, error, message, lazy):
    cache = CachedDataset(Source(), name, in_memory_keys=["y"])
    with pytest.raises(error, match=message):
        CachedDataset(source, name, lazy=lazy, **options)
    check(cache)


@pytest.mark.parametrize("source", [Source(), [Source()[i] for i in range(40)]], ids=["source", "list"])
def test_building_anew_takes_the_name_and_leaves_the_old_to_who_has_it(name, source):
    old = CachedDataset(source, name)
    new = CachedDataset(source, name, keep_existing=False)
    assert new._reader.head.uuid != old._reader.head.uuid
    assert CachedDataset.from_cache(name)._reader.head.uuid == new._reader.head.uuid
    check(old)
    check(new)
    with pytest.raises(StaleArchiveError, match="replaced since it was opened"):
        old.refresh()


def test_building_anew_computes_each_sample_once(name, log):
    old = CachedDataset(Source(log=log), name)
    new = CachedDataset(Source(log=log), name, keep_existing=False)
    assert computed(log) == sorted([*range(40)] * 2)
    check(old)
    check(new)


def test_what_takes_the_name_and_goes_while_a_cache_is_opened_is_not_missed(name, monkeypatch):
    def create_late(filler):
        if not built:
            built.append(name)
            with children(lambda _: CachedDataset(Source(), name, keep_existing=False, **same)) as [other]:
                assert other.code() == 0
        create(filler)

    built, same, create = [], {"fingerprint": {"of": "both"}}, LazyFiller.create
    first = CachedDataset(Source(), name, lazy=True, **same)
    monkeypatch.setattr(LazyFiller, "create", create_late)
    cache = CachedDataset(Source(), name, lazy=True, **same)
    assert built
    assert cache._reader.head.uuid != first._reader.head.uuid
    check(cache)
    cache.close()
    first.close()


def test_an_iterable_is_stored_in_memory_too(name):
    cache = CachedDataset(iter([Source()[i] for i in range(20)]), name)
    assert len(cache) == 20
    check(cache)


def test_labels_are_added_in_memory_and_seen_by_all(name):
    cache, same = CachedDataset(Source(), name), CachedDataset.from_cache(name)
    cache.add_labels("z", list(range(40)))
    assert same.refresh()
    assert same.filter(z=[7])[0]["name"] == "né7"


# --------------------------------------------------------------------------------- who is killed


def test_the_others_go_on_when_the_creator_is_killed(name):
    with children(holds(lambda: CachedDataset(Source(), name))) as [creator]:
        assert creator.heard() == "open"
        cache = CachedDataset.from_cache(name)
        assert creator.kill() == -signal.SIGKILL
        check(cache)
        with children(holds(lambda: CachedDataset.from_cache(name))) as [third]:
            assert third.heard() == "open"
            cache.close()
            check(CachedDataset.from_cache(name))
    assert processes_with(name) == set()


def test_when_all_are_killed_at_once_nothing_is_left(name):
    def open_it():
        return CachedDataset(Source(), name)

    with children(holds(open_it), holds(open_it), holds(open_it)) as started:
        assert [child.heard() for child in started] == ["open"] * 3
        assert processes_with(name) == {child.pid for child in started}
        for child in started:
            os.kill(child.pid, signal.SIGKILL)
        for child in started:
            child.code()
    assert processes_with(name) == set()
    # What the entry says of them is not believed, and the name is anybody's.
    assert entries_of(name) != []
    with pytest.raises(ArchiveNotFoundError, match="no process of this user has it open"):
        CachedDataset.from_cache(name)
    assert entries_of(name) == []
    check(CachedDataset(Other(), name))


def test_who_makes_a_name_removes_those_that_killed_processes_left(name):
    with children(holds(lambda: CachedDataset(Source(), name))) as [creator]:
        creator.heard()
    assert entries_of(name) == [f"{name.removeprefix('shm://')}.entry"]
    cache = CachedDataset(Source(), name + "-2")
    assert entries_of(name) == [f"{name.removeprefix('shm://')}-2.entry"]
    cache.close()


def test_a_fill_goes_on_when_its_creator_is_killed_amid_it(name, log):
    def fill(say):
        say("begun")
        cache = CachedDataset(Source(200, log, 0.01), name, num_workers=2, chunk_size=5)
        check(cache)
        say("done")
        time.sleep(60)

    with children(fill) as [creator]:
        creator.heard()
        until(lambda: len(computed(log)) > 20)
        with children(fill) as [other]:
            other.heard()
            # It joins before its first sample.
            until(lambda: other.pid in processes_with(name))
            creator.kill()
            assert other.heard() == "done"
            check(CachedDataset.from_cache(name))
    counts = np.bincount(computed(log), minlength=200)
    assert counts.min() == 1
    assert counts.sum() <= 200 + 3 * 5 + 64


def test_a_fill_that_failed_goes_on_where_it_stopped(name, log):
    class Failing(Source):
        fails = True

        def __getitem__(self, i):
            if i == 17 and self.fails:
                raise self.fails
            return super().__getitem__(i)

    for fails, error in ((ValueError("no"), SourceError), (KeyboardInterrupt(), KeyboardInterrupt)):
        Failing.fails = fails
        with pytest.raises(error, match="keeps 17 of 40 samples"):
            CachedDataset(Failing(log=log), name, chunk_size=5)
        gc.collect()
        assert processes_with(name) == {os.getpid()}
    Failing.fails = None
    cache = CachedDataset(Failing(log=log), name)
    assert computed(log) == list(range(40))
    check(cache)
    cache.close()


def test_a_forked_child_holds_when_its_parent_is_killed(name):
    def parent(say):
        cache = CachedDataset(Source(), name)

        def child(_):
            say(str(os.getpid()))
            os.kill(os.getppid(), signal.SIGKILL)
            until(lambda: os.getppid() != mine)
            check(cache)
            say(" holds")
            time.sleep(60)

        mine = os.getpid()
        Child(child).code()

    with children(parent) as [started]:
        grandchild = int(started.heard())
        try:
            assert started.heard() == " holds"
            assert started.code() == -signal.SIGKILL
            cache = CachedDataset.from_cache(name)
            assert processes_with(name) == {grandchild, os.getpid()}
        finally:
            os.kill(grandchild, signal.SIGKILL)
        until(lambda: processes_with(name) == {os.getpid()})
        check(cache)


@pytest.mark.full
def test_random_kills_leave_nothing_wrong_and_nothing_behind(name, log, tally):
    random, length = seeded("memory kills"), 12

    def live(say):
        while True:
            cache = CachedDataset(Source(length, log), name, chunk_size=2)
            check(cache)
            say(".")
            cache.close()

    def keep(say):
        while True:
            with suppress(ArchiveNotFoundError, NotAnArchiveError):
                cache = CachedDataset.from_cache(name, allow_partial=True)
                check(cache, [i for i in range(length) if cache._reader.has(i)])
                say(".")
                time.sleep(0.001)
                cache.close()

    rounds = max(50, scaled(200))
    with children() as none:
        alive = none
        for _ in range(rounds):
            while len(alive) < 3:
                alive.append(Child(random.choice([live, live, keep])))
            time.sleep(random.random() * 0.02)
            assert alive.pop(random.randrange(3)).kill() == -signal.SIGKILL
        assert computed(log)
    until(lambda: not processes_with(name))
    check(CachedDataset(Source(length), name))
    tally("kills around memory", rounds)


# ------------------------------------------------------------------------------- processes of torch


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_workers_fill_it_lazily(name, method):
    cache = CachedDataset(Source(), name, lazy=True, chunk_size=4)
    assert len(cache.missing) == 40
    loader = DataLoader(
        cache, batch_size=None, num_workers=2, multiprocessing_context=method, worker_init_fn=_free_of_torch
    )
    assert [int(sample["y"]) for sample in loader] == [i % 3 for i in range(40)]
    until(lambda: cache.refresh() or cache.complete)
    until(lambda: cache.refresh() is False and cache.complete)
    check(cache)
    check(CachedDataset.from_cache(name))


def _free_of_torch(worker):
    """Workers hold what they read."""
    dataset = torch.utils.data.get_worker_info().dataset
    assert os.getpid() in processes_with(dataset.path)


@pytest.mark.full
def test_spawned_workers_fill_it(name, log):
    cache = CachedDataset(Source(log=log), name, num_workers=1, multiprocessing_context="spawn")
    assert computed(log) == list(range(40))
    check(cache)


def test_a_pickle_carries_the_name_and_who_loads_it_holds(name):
    cache = CachedDataset(Source(), name)
    data = pickle.dumps(cache)
    copy = pickle.loads(data)
    cache.close()
    check(copy)
    copy.close()
    with pytest.raises(ArchiveNotFoundError, match="no process of this user has it open in memory"):
        pickle.loads(data)
    cache = CachedDataset(Source(), name)
    with pytest.raises(StaleArchiveError, match="another archive is here now"):
        pickle.loads(data)


# --------------------------------------------------------------------------------------- preload


@pytest.fixture
def archive(path):
    CachedDataset(Source(), path, in_memory_keys=["y"]).close()
    _of_others[:] = []
    _of_others[:] = copies(path)
    return path


# Copies of a file that had the inode before, which a test beside this one has open still.
_of_others = []


def copies(path):
    """The names of the copies of a file, that somebody has."""
    inode = os.stat(path).st_ino
    found = [n for n in memory.names() if n.split("-")[3:4] == [str(inode)] and "preload" in n]
    return [n for n in found if n not in _of_others and memory.holders(calls.system, n)]


def test_a_preloaded_archive_is_read_from_a_copy_that_all_share(archive):
    with CloseAll() as opened:
        first = opened(CachedDataset.from_cache(archive, preload="shm"))
        second = opened(CachedDataset.from_cache(archive, preload="shm"))
        [copy] = copies(archive)
        assert processes_with(copy) == {os.getpid()}
        archive.unlink()
        check(first)
        check(second)
        check(opened(pickle.loads(pickle.dumps(first))))
        assert first.path == str(archive)
    assert processes_with(copy) == set()
    assert entries_of(copy) == []


class CloseAll:
    def __enter__(self):
        self._opened = []
        return self._open

    def _open(self, cache):
        self._opened.append(cache)
        return cache

    def __exit__(self, *error):
        for cache in self._opened:
            cache.close()
        self._opened.clear()
        gc.collect()


def test_jobs_that_start_at_once_make_one_copy(archive):
    def job(say):
        cache = CachedDataset.from_cache(archive, preload="shm")
        check(cache)
        say("-".join(map(str, cache._reader.session.file.identity())))
        time.sleep(60)

    with children(*[job] * 4) as started:
        assert len({child.heard() for child in started}) == 1
        [copy] = copies(archive)
        assert processes_with(copy) == {child.pid for child in started}
    until(lambda: not processes_with(copy))


def test_who_waits_for_a_copy_makes_it_when_the_copier_is_killed(archive):
    class Slow(storage.System):
        def freeze(self, fd):
            os.pwrite(fd, bytes(5000), 3000)
            tell("copied")
            time.sleep(60)

    def copier(say):
        global tell
        tell = say
        with replace_system(Slow()):
            CachedDataset.from_cache(archive, preload="shm")

    with children(copier) as [started]:
        assert started.heard() == "copied"
        found = []
        waiting = threading.Thread(
            target=lambda: found.append(CachedDataset.from_cache(archive, preload="shm"))
        )
        waiting.start()
        until(lambda: len(processes_with(copies(archive)[0])) == 2)
        assert waiting.is_alive()
        started.kill()
        waiting.join()
    [cache] = found
    check(cache)
    cache.close()


def test_nobody_can_write_into_a_copy(archive):
    cache = CachedDataset.from_cache(archive, preload="shm")
    [copy] = copies(archive)
    file = File.open(copy, "a")
    with pytest.raises(StorageError, match="Operation not permitted"):
        file.pwrite(0, b"x")
    with pytest.raises(StorageError, match="Operation not permitted"):
        file.truncate(0)
    file.close()
    with pytest.raises(OptionError, match=f"{archive}: opened with preload=, and a copy is not changed"):
        cache.add_labels("z", list(range(40)))
    check(cache)
    cache.close()


def test_a_file_that_has_changed_gets_a_copy_of_its_own(archive):
    old = CachedDataset.from_cache(archive, preload="shm")
    data = pickle.dumps(old)
    assert old.refresh() is False
    CachedDataset.from_cache(archive).add_labels("z", list(range(40)))
    new, same = CachedDataset.from_cache(archive, preload="shm"), pickle.loads(data)
    assert ("z" in new.labels, "z" in old.labels, "z" in same.labels) == (True, False, False)
    assert len(copies(archive)) == 2
    assert old.refresh()
    same.close()
    assert "z" in old.labels
    assert len(copies(archive)) == 1
    old.close()
    new.close()


def test_preload_takes_what_was_filled_just_now_and_what_a_digest_names(path):
    make = edcache.cachable(path, preload="shm")(Source)
    for _ in range(2):
        cache = make()
        check(cache)
        assert len(copies(path)) == 1
        cache.close()
    digest = edcache.digest(path)
    cache = CachedDataset.from_cache(path, preload="shm", expected_digest=digest)
    check(pickle.loads(pickle.dumps(cache)))
    cache.close()


def test_options_that_contradict_preload_are_refused(name, path):
    for options, message in (
        ({"preload": "ram"}, "preload='ram'; choose one of None, 'shm'"),
        ({"preload": "shm", "lazy": True}, "preload= takes a complete archive, lazy=True has none yet"),
    ):
        with pytest.raises(OptionError, match=message):
            CachedDataset(Source(), path, **options)
    with pytest.raises(OptionError, match=f"{name}: in memory already; leave preload out"):
        CachedDataset(Source(), name, preload="shm")


def test_what_is_no_archive_is_not_copied(tmp_path):
    path = tmp_path / "text"
    path.write_text("no archive" * 1000)
    with pytest.raises(NotAnArchiveError, match=str(path)):
        CachedDataset.from_cache(path, preload="shm")
    with pytest.raises(ArchiveNotFoundError, match=r"nowhere\.zip: no such file"):
        CachedDataset.from_cache(tmp_path / "nowhere.zip", preload="shm")
    assert copies(path) == []


def test_workers_read_a_copy_that_their_parent_has(archive):
    cache = CachedDataset.from_cache(archive, preload="shm")
    archive.unlink()
    loader = DataLoader(cache, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [sample["name"] for sample in loader] == [f"né{i}" for i in range(40)]
    cache.close()


# ---------------------------------------------------------------------------------- too little memory


@contextmanager
def files_no_larger_than(nbytes):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Large(Source):
    def __getitem__(self, i):
        return torch.full((100_000,), i % 256, dtype=torch.uint8)


def test_memory_that_ends_is_an_error_and_what_was_published_stays(name):
    keeper = CachedDataset(Large(), name, lazy=True, chunk_size=2)
    with files_no_larger_than(1_000_000), pytest.raises(StorageError, match="File too large; end what") as e:
        CachedDataset(Large(), name, chunk_size=2)
    assert e.value.errno == errno.EFBIG
    keeper.refresh()
    assert 0 < keeper._reader.present < 10
    check_large(keeper)
    assert len(CachedDataset(Large(), name, chunk_size=2).missing) == 0


def check_large(cache):
    assert all(torch.equal(cache[i], Large()[i]) for i in range(len(cache)))


def test_a_lazy_cache_computes_what_memory_cannot_hold(name):
    cache = CachedDataset(Large(), name, lazy=True, chunk_size=2)
    with files_no_larger_than(1_000_000), pytest.warns(RuntimeWarning, match="File too large"):
        check_large(cache)
    cache.refresh()
    assert 0 < cache._reader.present < 40
    check_large(cache)
    cache.close()


def test_a_fill_ends_before_memory_does(name, monkeypatch):
    monkeypatch.setattr(bounded, "_SPARE_NBYTES", 1 << 60)
    monkeypatch.setattr(memory.MemoryStore.naming, "_unlooked_nbytes", 1 << 20)
    with pytest.raises(
        StorageError, match="Cannot allocate memory, 0 bytes are free; end what else"
    ) as caught:
        CachedDataset(Large(), name, chunk_size=20)
    assert caught.value.errno == errno.ENOMEM


def test_a_copy_for_which_memory_is_too_small_is_not_begun(archive, monkeypatch):
    monkeypatch.setattr(bounded, "_SPARE_NBYTES", 1 << 60)
    with pytest.raises(StorageError, match="takes .* of memory, 0 bytes are free; end what else") as caught:
        CachedDataset.from_cache(archive, preload="shm")
    assert caught.value.errno == errno.ENOMEM
    monkeypatch.undo()
    with (
        files_no_larger_than(5_000),
        pytest.raises(StorageError, match="its copy in memory: .*File too large"),
    ):
        CachedDataset.from_cache(archive, preload="shm")
    assert copies(archive) == []


@pytest.mark.parametrize(
    ("groups", "files", "free"),
    [
        ("", {}, 1000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/b/memory.current": "9\n"}, 1000),
        ("0::/a/b\n", {"a/b/memory.max": "700\n", "a/b/memory.current": "100\n"}, 600),
        (
            "1:cpu:/x\n0::/a/b\n",
            {
                "a/b/memory.max": "700\n",
                "a/b/memory.current": "100\n",
                "a/memory.max": "500\n",
                "a/memory.current": "450\n",
                "a/memory.stat": "anon 3\ninactive_file 40\nactive_file 100\n",
            },
            190,
        ),
        ("0::/\n", {"memory.max": "100\n", "memory.current": "450\n"}, 0),
        (
            "4:cpu,memory:/a\n0::/\n",
            {
                "memory/a/memory.limit_in_bytes": "600",
                "memory/a/memory.usage_in_bytes": "100",
                "memory/a/memory.stat": "active_file 7\ntotal_inactive_file 1\ntotal_active_file 2\n",
            },
            503,
        ),
    ],
)
def test_free_memory_is_that_of_the_tightest_group(tmp_path, monkeypatch, groups, files, free):
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "of_process").write_text(groups)
    (tmp_path / "machine").write_text("MemTotal: 9999 kB\nMemAvailable:  1000 kB\nHugePages: 3\n")
    monkeypatch.setattr(bounded, "_GROUPS_OF_PROCESS", str(tmp_path / "of_process"))
    monkeypatch.setattr(bounded, "_GROUPS", str(tmp_path))
    monkeypatch.setattr(bounded, "_MACHINE", str(tmp_path / "machine"))
    monkeypatch.setattr(bounded, "_SPARE_NBYTES", 0)
    assert bounded.available() == (free if free != 1000 else 1000 * 1024)


# ------------------------------------------------------------------------------------ names, entries


@pytest.mark.parametrize("name", ["shm://", "shm://" + "x" * 201, "shm://" + "é" * 100, "shm://a\0"])
def test_a_name_has_1_to_200_letters(name):
    with pytest.raises(OptionError, match='give 1 to 200 letters after "shm://"'):
        CachedDataset(Source(), name)


def test_a_path_that_has_lost_a_slash_is_noticed():
    with pytest.raises(OptionError, match='shm:/digits: write it as text, "shm://name"; a Path has lost'):
        CachedDataset(Source(), Path("shm://digits"))


@pytest.mark.parametrize("tail", ["/../..", "a b", "ü", ".", "%2F"])
def test_any_letters_make_a_name(name, tail):
    cache = CachedDataset(Source(), name + tail)
    assert name + tail in memory.names()
    check(CachedDataset.from_cache(name + tail))
    assert all(entry.parent == FOLDER for entry in FOLDER.iterdir())
    cache.close()


def test_a_name_that_exists_is_not_made_again(name):
    file = File.open(name, "x")
    with pytest.raises(ArchiveExistsError, match=f"{name}: exists already"):
        File.open(name, "x")
    assert storage.exists(name)
    file.close()
    assert not storage.exists(name)


def test_a_name_of_another_container_is_refused(name):
    cache = CachedDataset(Source(), name)
    entry = Path(memory.entry(name))
    text = entry.read_text()
    entry.write_text(" ".join([*text.split()[:2], "1"]))
    with pytest.raises(
        StorageError, match=rf"{name}: opening it: process {os.getpid()} has it, .*another contai"
    ):
        CachedDataset.from_cache(name)
    entry.write_text("no numbers at all")
    with pytest.raises(StorageError, match=r"\.entry is damaged; choose another name"):
        CachedDataset.from_cache(name)
    entry.write_text(text)
    check(CachedDataset.from_cache(name))
    cache.close()


def test_a_number_that_leads_elsewhere_is_not_joined(name, tmp_path):
    """As where a process ended, its number was given again, and a fork without Python kept its lock."""
    first = CachedDataset(Source(), name)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    entry = os.open(memory.entry(name), os.O_RDWR)
    calls.system.lock(entry, memory.Holder(os.getpid(), other).byte, 1, False)
    calls.system.lock(entry, memory.Holder(1 << 22, 3).byte, 1, False)
    # The kernel tells of locks in the order in which their files were opened.
    cache = CachedDataset.from_cache(name)
    first.close()
    assert len(memory.holders(calls.system, name)) == 3
    check(CachedDataset.from_cache(name))
    os.close(entry)
    os.close(other)
    cache.close()


def test_a_process_that_ends_is_waited_for_and_one_that_does_not_is_named(name, monkeypatch):
    cache = CachedDataset(Source(), name)
    entry = os.open(memory.entry(name), os.O_RDWR)
    calls.system.lock(entry, memory.Holder(1 << 22, 3).byte, 1, False)
    cache.close()
    ends = threading.Timer(0.2, lambda: os.close(entry))
    monkeypatch.setattr(memory, "_ENDING_SECONDS", 0.05)
    with pytest.raises(StorageError, match=f"process {1 << 22} has it, which this one cannot look into;"):
        CachedDataset.from_cache(name)
    monkeypatch.undo()
    ends.start()
    with pytest.raises(ArchiveNotFoundError, match="no process of this user has it open in memory"):
        CachedDataset.from_cache(name)
    ends.join()
    assert entries_of(name) == []


def test_what_takes_another_name_is_not_kept(name, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    with storage.kept(name):
        storage.replace(str(tmp_path / "a"), str(tmp_path / "b"))
        [holder] = memory.holders(calls.system, name)
        assert holder.pid == os.getpid()
    assert (tmp_path / "b").read_bytes() == b"a"
    assert memory.holders(calls.system, name) == []


def test_what_lost_its_name_is_not_kept_after_an_interrupt(name):
    with pytest.raises(KeyboardInterrupt), storage.kept(name):
        os.unlink(memory.entry(name))
        raise KeyboardInterrupt
    assert memory.holders(calls.system, name) == []


def test_a_process_that_cannot_be_looked_into_is_named(name):
    """One that has changed its user, as this one does, may be looked into by root alone."""

    def become_unreadable():
        import ctypes

        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        assert ctypes.CDLL(None).prctl(4, 0) == 0  # PR_SET_DUMPABLE

    def hold(say):
        become_unreadable()
        file = File.open(name, "a")
        say("open")
        time.sleep(60)
        file.close()

    def join(say):
        become_unreadable()
        try:
            File.open(name, "r")
        except StorageError as error:
            say(f"{error.errno} {error}")

    with children(hold) as [holder]:
        assert holder.heard() == "open"
        with children(join) as [other]:
            told = other.heard()
    assert told.startswith(f"{errno.EACCES} {name}: opening it: process {holder.pid} has it, which this one")
    assert "Permission denied); choose another name" in told


def test_a_folder_that_is_not_the_users_own_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_TOP", str(tmp_path))
    (tmp_path / FOLDER.name).write_text("in the way")
    with pytest.raises(StorageError, match="is not a folder of this user; delete it"):
        CachedDataset(Source(), name)
    monkeypatch.setattr(memory, "_TOP", str(tmp_path / "absent"))
    with pytest.raises(OptionError, match="take Linux with memfd_create, /proc and /dev/shm; elsewhere give"):
        CachedDataset(Source(), name)


def test_what_would_be_gone_at_once_is_not_made(name, archive):
    gone = f"{name}: an archive in memory would be lost at the end of this call; give the path of a file"
    for make in (
        lambda: CacheWriter(name),
        lambda: CachedDataset.from_cache(archive).save(name),
    ):
        with pytest.raises(OptionError, match=gone):
            make()


def test_opening_and_closing_leaves_no_descriptor_and_no_entry(name):
    before = Counter(open_files("edcache"))
    for _ in range(30):
        cache = CachedDataset(Source(5), name)
        CachedDataset.from_cache(name)[0]
        cache.close()
    assert Counter(open_files("edcache")) <= before
    assert entries_of(name) == []


# ------------------------------------------------------------------------------------- the command


def test_the_command_lists_what_is_in_memory_and_will_not_delete_it(name):
    run = CliRunner().invoke
    cache = CachedDataset(Source(), name)
    listed = run(main, ["caches", "shm://", "--json"])
    [row] = [row for row in json.loads(listed.stdout)["archives"] if row["path"] == name]
    assert row == {"path": name, "nbytes": cache.info()["nbytes"], "processes": [os.getpid()]}
    assert f"{name}  " in run(main, ["caches", "shm://"]).stdout
    assert run(main, ["verify", name]).exit_code == 0
    assert "40" in run(main, ["info", name]).stdout
    refused = run(main, ["rm", name, "--yes"])
    assert refused.exit_code == 1
    assert refused.stderr == (
        f"edcache: {name}: in memory, where it is freed as soon as no process has it open; these have: "
        f"{os.getpid()}\n"
    )
    cache.close()
    assert run(main, ["rm", name, "--yes"]).exit_code == 1
    assert name not in run(main, ["caches", "shm://"]).stdout


def test_compact_keeps_in_a_file_what_is_in_memory(name, tmp_path):
    cache = CachedDataset(Source(), name)
    done = CliRunner().invoke(main, ["compact", name, "-o", str(tmp_path / "kept.zip")])
    assert done.exit_code == 0, done.output
    cache.close()
    check(CachedDataset.from_cache(tmp_path / "kept.zip"))


@pytest.mark.full
def test_the_command_builds_nothing_that_would_be_gone(name, tmp_path):
    (tmp_path / "counting.py").write_text("def make(): return [1, 2]\n")
    command = [sys.executable, "-m", "edcache", "build", "counting:make", "-o", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{name}: an archive in memory would be lost at the end of this call" in done.stderr
