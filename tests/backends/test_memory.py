"""Archives in shared memory: one for all processes, right for all of them, and gone with the last."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_runner import run
from descriptors import open_files
from filled import computed, note
from scale import scaled, seeded
from systems import in_threads
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, CacheWriter, storage
from edcache.errors import (
    ArchiveExistsError,
    ArchiveNotFoundError,
    CorruptArchiveError,
    OptionError,
    PartialArchiveWarning,
    SourceError,
    StaleArchiveError,
    StaleCacheError,
    StorageError,
)
from edcache.storage import memory
from edcache.storage.file import File

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


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


class Another(Source):
    def __getitem__(self, i):
        return {**super().__getitem__(i), "other": i}


def check(cache, indices=None):
    """Every sample is the source's own."""
    for i in range(len(cache)) if indices is None else indices:
        found, expected = cache[i], Source()[i]
        assert list(found) == list(expected)
        assert torch.equal(found["x"], expected["x"])
        assert found["a"].dtype == expected["a"].dtype
        assert found["a"].tolist() == expected["a"].tolist()
        assert (found["name"], found["y"]) == (expected["name"], expected["y"])


def until(condition):
    """Wait for it: a process that lists shared memory has each archive there open for a moment, and the last
    one that closes a file deletes it."""
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
    """A child opens a cache, reads all of it, says so, and keeps it until it is killed."""

    def run(say):
        cache = open_it()
        check(cache)
        say("open")
        time.sleep(60)

    return run


@pytest.fixture
def name(request):
    """A name that nobody has, and whose memory nobody has afterwards."""
    name = f"shm://test-{os.getpid()}-{request.node.name[:60]}"
    before = Counter(open_files("edcache-"))
    yield name
    gc.collect()
    until(
        lambda: storage.free_unheld_memory() is not None and files_of(name) == []
    )  # a killed child may still end
    assert Counter(open_files("edcache-")) <= before


def files_of(name):
    folder = storage.memory_folder()
    stem = name.removeprefix("shm://").partition("[")[0]
    return [file for file in os.listdir(folder) if file.startswith(stem)] if os.path.exists(folder) else []


def opens(name):
    try:
        CachedDataset.from_cache(name).close()
    except ArchiveNotFoundError:
        return False
    return True


def path_of(name):
    return f"{storage.memory_folder()}/{name.removeprefix('shm://')}.zip"


# ----------------------------------------------------------------------------- one cache for all


def test_a_name_is_the_path_of_a_private_file_that_goes_with_the_last_that_closes_it(name):
    cache = CachedDataset(Source(), name, in_memory_keys=["y"])
    check(cache)
    assert cache.path == path_of(name)
    assert os.stat(storage.memory_folder()).st_mode & 0o777 == 0o700
    assert (cache.complete, cache._archive.reader.session.sealed) == (True, True)
    assert [s["name"] for s in cache.filter(y=1)] == [f"né{i}" for i in range(40) if i % 3 == 1]
    again, by_path = CachedDataset.from_cache(name), CachedDataset.from_cache(cache.path)
    cache.close()
    check(again)
    again.close()
    check(by_path)
    del by_path
    gc.collect()
    until(lambda: files_of(name) == [])
    with pytest.raises(ArchiveNotFoundError, match="no such file"):
        CachedDataset.from_cache(name)


def test_samples_stay_when_the_memory_is_closed_and_changing_them_changes_no_cache(name):
    cache, same = CachedDataset(Source(), name), CachedDataset.from_cache(name)
    for i in range(40):
        sample = cache[i]
        sample["x"].fill_(-1)
        sample["a"][:] = -1
    check(same)
    sample = cache[4]
    cache.close()
    same.close()
    assert (sample["name"], sample["y"]) == ("né4", 1)


def test_another_process_joins_and_computes_nothing(name, log):
    first = CachedDataset(Source(log=log), name, spot_check=False)

    def join(say):
        check(CachedDataset(Source(log=log), name, spot_check=False))
        check(CachedDataset.from_cache(name))

    with children(join, join) as started:
        assert [child.code() for child in started] == [0, 0]
    assert computed(log) == list(range(40))
    check(first)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_name_that_another_source_has_is_refused(name, lazy):
    cache = CachedDataset(Source(), name)
    with pytest.raises(
        StaleCacheError, match="is another one now: .*; type: 'Source' in the archive, 'Another' now"
    ):
        CachedDataset(Another(), name, lazy=lazy)
    check(cache)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_name_is_not_taken_from_who_has_it_open_before_a_sample_is_read(name, lazy):
    cache = CachedDataset(Source(), name, lazy=True)
    with pytest.raises(
        StaleCacheError, match="type: 'Source' in the archive, 'Another' now, and it has no sample yet"
    ):
        CachedDataset(Another(), name, lazy=lazy)
    check(cache)
    check(CachedDataset.from_cache(name))


def test_building_anew_takes_the_name_and_leaves_the_old_to_who_has_it(name, log):
    old = CachedDataset(Source(log=log), name, spot_check=False)
    new = CachedDataset(Source(log=log), name, spot_check=False, keep_existing=False)
    assert computed(log) == sorted([*range(40)] * 2)
    assert (
        CachedDataset.from_cache(name)._archive.reader.session.head.uuid
        == new._archive.reader.session.head.uuid
        != old._archive.reader.session.head.uuid
    )
    check(old)
    check(new)
    with pytest.raises(StaleArchiveError, match="replaced since it was opened"):
        old.refresh()
    new.close()
    until(lambda: files_of(name) == [])
    check(old)


def test_an_iterable_and_labels_are_stored_there_too(name):
    cache = CachedDataset(iter([Source()[i] for i in range(20)]), name)
    same = CachedDataset.from_cache(name)
    cache.add_labels("z", list(range(20)))
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


@pytest.mark.parametrize("use", ["another name", "the same name", "prune"])
def test_the_memory_of_killed_processes_is_freed_at_the_next_use(name, use):
    held = CachedDataset(Source(5), name + "-held")
    with children(*[holds(lambda: CachedDataset(Source(), name + "-left"))] * 3) as started:
        assert [child.heard() for child in started] == ["open"] * 3
        left = os.path.basename(path_of(name + "-left"))
        assert left in files_of(name)
    # They are killed now. Another test's process may free what they left before this one does.
    if use == "prune":
        run("caches shm:// --prune")
        until(lambda: left not in files_of(name))
    elif use == "another name":
        CachedDataset(Source(3), name + "-next").close()
    else:
        until(lambda: not opens(name + "-left"))
        check(CachedDataset(Other(), name + "-left"))
    until(lambda: files_of(name) == [os.path.basename(path_of(name + "-held"))])
    check(held)


def test_threads_that_fork_at_once_keep_no_descriptor(name):
    cache = CachedDataset([1, 2, 3], name)

    def fork():
        for _ in range(20):
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)

    before = Counter(open_files("edcache-"))
    in_threads(*[fork] * 4)
    assert Counter(open_files("edcache-")) == before
    cache.close()
    until(lambda: files_of(name) == [])


def test_a_process_that_ends_without_closing_frees_it(name):
    code = f"""
        import edcache
        cache = edcache.CachedDataset([1, 2, 3], {name!r})
        copy = edcache.CachedDataset.from_cache({name!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    until(lambda: files_of(name) == [])


def test_a_forked_worker_frees_it_after_its_parent_was_killed(name):
    code = f"""
        import multiprocessing, os, signal, time, edcache
        cache = edcache.CachedDataset([1, 2, 3], {name!r})
        parent = os.getpid()
        def outlive():
            while os.getppid() == parent:
                time.sleep(0.01)
        multiprocessing.get_context("fork").Process(target=outlive, daemon=True).start()
        os.kill(parent, signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    until(lambda: files_of(name) == [])


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
            until(lambda: _has_open(other.pid, path_of(name)))
            creator.kill()
            assert other.heard() == "done"
            check(CachedDataset.from_cache(name))
    counts = np.bincount(computed(log), minlength=200)
    assert counts.min() == 1
    assert counts.sum() <= 200 + 3 * 5 + 64


def _has_open(pid, path):
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}") == path:
                    return True
    return False


def test_a_fill_that_fails_frees_it_and_says_so(name):
    class Failing(Source):
        def __getitem__(self, i):
            if i == 17:
                raise ValueError("no")
            return super().__getitem__(i)

    with pytest.raises(SourceError, match="keeps what was computed as long as another process has it open"):
        CachedDataset(Failing(), name, chunk_size=5)
    gc.collect()
    until(lambda: files_of(name) == [])


@pytest.mark.parametrize("ends", ["is killed", "closes it", "ends"])
def test_a_forked_child_holds_when_its_parent_goes(name, ends):
    def parent(say):
        cache = CachedDataset(Source(), name)

        def child(_):
            say(str(os.getpid()))
            until(lambda: os.getppid() != mine)
            check(cache)
            say(" holds")
            time.sleep(60)

        mine = os.getpid()
        forked = Child(child)
        if ends == "closes it":
            cache.close()
        if ends == "is killed":
            os.kill(mine, signal.SIGKILL)
        elif ends == "ends":
            memory._let_go_of_all()
        del forked

    with children(parent) as [started]:
        grandchild = int(started.heard())
        try:
            assert started.heard() == " holds"
            cache = CachedDataset.from_cache(name)
            check(cache)
        finally:
            os.kill(grandchild, signal.SIGKILL)
        check(CachedDataset.from_cache(name))


def test_two_that_close_at_once_leave_nothing(name):
    """Each must not take the other for one who stays."""
    for _ in range(scaled(100)):
        path = path_of(name)
        storage.make_memory_folder()
        files = [File.open(path, "a") for _ in range(4)]
        start = threading.Barrier(4)

        def close(file, start=start):
            start.wait()
            file.close()

        in_threads(*[partial(close, file) for file in files])
        assert not os.path.exists(path)


@pytest.mark.full
def test_random_kills_leave_nothing_wrong_and_nothing_behind(name, log, tally):
    random, length = seeded("memory kills"), 12

    def live(say):
        while True:
            cache = CachedDataset(Source(length, log), name, chunk_size=2, spot_check=False)
            check(cache)
            say(".")
            cache.close()

    def keep(say):
        # A file that was empty at one look, and an archive at the next one, is told of by a warning.
        warnings.simplefilter("ignore", PartialArchiveWarning)
        while True:
            with suppress(ArchiveNotFoundError, CorruptArchiveError):
                cache = CachedDataset.from_cache(name, allow_partial=True)
                check(cache, [i for i in range(length) if cache._archive.reader.session.index.has(i)])
                say(".")
                time.sleep(0.001)
                cache.close()

    rounds = max(50, scaled(200))
    with children() as alive:
        for _ in range(rounds):
            while len(alive) < 3:
                alive.append(Child(random.choice([live, live, keep])))
            time.sleep(random.random() * 0.02)
            assert alive.pop(random.randrange(3)).kill() == -signal.SIGKILL
        assert computed(log)
    check(CachedDataset(Source(length), name))
    tally("kills around memory", rounds)


# ------------------------------------------------------------------------------- processes of torch


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_workers_fill_it_lazily(name, method):
    cache = CachedDataset(Source(), name, lazy=True, chunk_size=4)
    assert len(cache.missing) == 40
    loader = DataLoader(cache, batch_size=None, num_workers=2, multiprocessing_context=method)
    assert [int(sample["y"]) for sample in loader] == [i % 3 for i in range(40)]
    until(lambda: cache.refresh() or cache.complete)
    until(lambda: cache.refresh() is False and cache.complete)
    check(cache)
    check(CachedDataset.from_cache(name))


def test_whoever_loads_a_pickle_holds_it(name):
    cache = CachedDataset(Source(), name)
    data = pickle.dumps(cache)
    copy = pickle.loads(data)
    cache.close()
    check(copy)
    copy.close()
    with pytest.raises(ArchiveNotFoundError, match="no such file"):
        pickle.loads(data)
    cache = CachedDataset(Source(), name)
    with pytest.raises(StaleArchiveError, match="another archive is here now"):
        pickle.loads(data)


# --------------------------------------------------------------------------------------- preload


@pytest.fixture
def archive(path):
    CachedDataset(Source(), path, in_memory_keys=["y"]).close()
    return path


def copies(path):
    """The copies of a file."""
    folder = storage.memory_folder()
    inode = os.stat(path).st_ino
    return [file for file in os.listdir(folder) if file.startswith("preload") and f"-{inode}-" in file]


def test_a_preloaded_archive_is_read_from_a_copy_that_all_share(archive):
    first = CachedDataset.from_cache(archive, preload="shm")
    second = CachedDataset.from_cache(archive, preload="shm")
    [copy] = copies(archive)
    archive.unlink()
    check(first)
    check(second)
    third = pickle.loads(pickle.dumps(first))
    loader = DataLoader(third, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [sample["name"] for sample in loader] == [f"né{i}" for i in range(40)]
    assert first.path == str(archive)
    for cache in (first, second, third):
        cache.close()
    gc.collect()
    until(lambda: not os.path.exists(os.path.join(storage.memory_folder(), copy)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("end", ["pass", pytest.param("raise ValueError", marks=pytest.mark.full)])
def test_workers_that_python_ends_leave_no_copy(archive, method, end):
    """They live until multiprocessing ends them by a signal, after most of what Python does at its end."""
    code = f"""
        import torch, edcache
        if __name__ == "__main__":
            ds = edcache.CachedDataset.from_cache({str(archive)!r}, preload="shm")
            loader = torch.utils.data.DataLoader(
                ds, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context={method!r}
            )
            assert len(list(loader)) == len(ds)
            {end}
    """
    program = archive.with_name("program.py")
    program.write_text(textwrap.dedent(code))
    ended = subprocess.run([sys.executable, program], check=False, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == (0 if end == "pass" else 1), ended.stderr
    assert end == "pass" or ended.stderr.endswith("ValueError\n")
    until(lambda: copies(archive) == [])


def test_jobs_that_start_at_once_make_one_copy_though_the_copier_is_killed(archive, monkeypatch):
    def slow(source, file):
        file.pwrite(3000, bytes(5000))
        if os.getpid() == copier:
            tell("copying")
            time.sleep(60)
        copy_bytes(source, file)

    def job(say):
        global tell, copier
        tell, copier = say, os.getpid() if is_first else 0
        cache = CachedDataset.from_cache(archive, preload="shm")
        check(cache)
        say("-".join(map(str, cache._archive.reader.session.file.identity())))
        time.sleep(60)

    from edcache.backends.shm import memory

    copy_bytes = memory.copy_bytes
    monkeypatch.setattr(memory, "copy_bytes", slow)
    is_first = True
    with children(job) as [first]:
        assert first.heard() == "copying"
        is_first = False
        with children(*[job] * 3) as started:
            [copy] = copies(archive)
            path = os.path.join(storage.memory_folder(), copy)
            until(lambda: all(_has_open(child.pid, path) for child in started))
            first.kill()
            assert len({child.heard() for child in started}) == 1
    storage.free_unheld_memory()
    until(lambda: copies(archive) == [])


def test_a_file_that_has_changed_gets_a_copy_of_its_own(archive):
    old = CachedDataset.from_cache(archive, preload="shm")
    assert old.refresh() is False
    with pytest.raises(OptionError, match=f"{archive}: opened with preload=, and a copy is not changed"):
        old.add_labels("z", list(range(40)))
    data = pickle.dumps(old)
    CachedDataset.from_cache(archive).add_labels("z", list(range(40)))
    new, same = CachedDataset.from_cache(archive, preload="shm"), pickle.loads(data)
    assert ("z" in new.labels, "z" in old.labels, "z" in same.labels) == (True, False, False)
    assert len(copies(archive)) == 2
    assert old.refresh()
    same.close()
    until(lambda: len(copies(archive)) == 1)
    assert "z" in old.labels
    old.close()
    new.close()


def test_preload_takes_an_archive_filled_just_now_one_named_by_a_digest_and_one_in_memory(name, path):
    cache = CachedDataset(Source(), path, preload="shm")
    check(cache)
    cache.close()
    cache = CachedDataset.from_cache(path, preload="shm", expected_digest=edcache.digest(path))
    check(pickle.loads(pickle.dumps(cache)))
    cache.close()
    until(lambda: copies(path) == [])
    cache = CachedDataset(Source(), name, preload="shm")
    assert files_of(name) == [os.path.basename(path_of(name))]
    check(cache)


def test_what_is_no_archive_is_not_copied(tmp_path):
    path = tmp_path / "text"
    path.write_text("no archive" * 1000)
    with pytest.raises(CorruptArchiveError, match=str(path)):
        CachedDataset.from_cache(path, preload="shm")
    with pytest.raises(ArchiveNotFoundError, match=r"nowhere\.zip: no such file"):
        CachedDataset.from_cache(tmp_path / "nowhere.zip", preload="shm")
    assert copies(path) == []


# ---------------------------------------------------------------------------------- too little memory


class Large(Source):
    def __getitem__(self, i):
        return torch.full((1_000_000,), i % 256, dtype=torch.uint8)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A /dev/shm of 64 MB, which is what a container has."""
    folder = tmp_path / "shm"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder]
    if os.geteuid() or subprocess.run(mount).returncode:
        pytest.skip("mounting a tmpfs takes root")
    monkeypatch.setattr(memory, "_FOLDERS", str(folder))
    yield
    gc.collect()
    subprocess.run(["umount", "-l", folder], check=True)


def test_an_archive_for_which_there_is_no_room_is_not_copied(small, path):
    CachedDataset(Large(90), path).close()
    with pytest.raises(StorageError, match="left; give a container .*--shm-size") as caught:
        CachedDataset.from_cache(path, preload="shm")
    assert caught.value.errno == errno.ENOSPC
    assert list(Path(storage.memory_folder()).iterdir()) == []
    with pytest.raises(StorageError, match="No space left on device; give .*--shm-size") as caught:
        CachedDataset(Large(90), "shm://large", chunk_size=2)
    assert caught.value.errno == errno.ENOSPC
    gc.collect()
    cache = CachedDataset(Large(50), "shm://fits", chunk_size=2)
    assert torch.equal(cache[49], Large()[49])
    cache.close()


@pytest.mark.parametrize(("limit", "least", "most"), [(None, 40e6, 51e6), (1.0, 60e6, 68e6)])
def test_a_lazy_cache_leaves_room_for_the_batches_of_workers(small, limit, least, most):
    cache = CachedDataset(Large(90), "shm://lazy", lazy=True, max_bytes=limit, chunk_size=2)
    with pytest.warns(RuntimeWarning, match="samples that are not stored yet are computed at every read"):
        samples = [cache[i] for i in range(90)]
    assert all(torch.equal(sample, Large()[i]) for i, sample in enumerate(samples))
    assert least < os.stat(cache.path).st_blocks * 512 < most
    cache.close()


# ------------------------------------------------------------------------------------------ names


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
    assert os.path.dirname(cache.path) == storage.memory_folder()
    assert len(files_of(name)) == 1
    check(CachedDataset.from_cache(name + tail))


def test_a_file_that_exists_is_not_made_again(name):
    path = path_of(name)
    storage.make_memory_folder()
    file = File.open(path, "x")
    with pytest.raises(ArchiveExistsError, match="exists already"):
        File.open(path, "x")
    file.close()
    assert not storage.exists(path)


def test_a_folder_that_is_not_the_users_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_FOLDERS", str(tmp_path))
    Path(storage.memory_folder()).mkdir(mode=0o755)
    with pytest.raises(StorageError, match="is not a private folder of this user; delete it"):
        CachedDataset(Source(), "shm://anything")


def test_what_would_be_gone_at_once_is_not_made(name, archive, tmp_path):
    gone = "an archive in shared memory is deleted when nobody has it open; give the path of a file"
    for make in (lambda: CacheWriter(name), lambda: CachedDataset.from_cache(archive).save(name)):
        with pytest.raises(OptionError, match=gone):
            make()
    (tmp_path / "counting.py").write_text("def make(): return [1, 2]\n")
    command = [sys.executable, "-m", "edcache", "build", "counting:make", "-o", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert gone in done.stderr
    cache = CachedDataset(Source(), name)
    cache.save(tmp_path / "kept.zip")
    cache.close()
    check(CachedDataset.from_cache(tmp_path / "kept.zip"))


def test_the_command_lists_it_and_will_not_delete_it_while_it_is_open(name):
    cache = CachedDataset(Source(), name)
    file = os.path.basename(path_of(name))
    assert file in run("caches shm://").stdout
    run("verify", name)
    assert "40" in run("info", name).stdout
    pruned = run("caches shm:// --max-size 1B --prune")
    assert f"{file}: a process has it open; it stays" in pruned.stderr
    assert file in run("caches shm://").stdout
    check(cache)
    cache.close()
    assert file not in run("caches shm://").stdout
