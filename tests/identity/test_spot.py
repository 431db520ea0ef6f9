"""Spot checks of archives: which samples are computed again, where, and what another one ends."""

import contextlib
import functools
import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module

import fsspec
import numpy as np
import pytest
import torch
from damage import flip_record
from filled import computed, note, processes
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, OptionError, SourceError, StaleCacheError
from edcache.errors import CorruptRecordError
from edcache.reader import Reader

pytestmark = pytest.mark.usefixtures("clock")

COUNT = 8
STALE = r"sample \d+ is another one now: field y differs"


def sample(i, y=0):
    return {"x": np.full(3, i, np.float32), "y": i + y}


class Source:
    """Logs what it computes, in which process."""

    def __init__(self, log, make=sample, count=COUNT):
        self.log, self.make, self.count = log, make, count

    def __edcache_fingerprint__(self):
        return {}  # nothing tells that another `make` makes other samples

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        note(self.log, i)
        return self.make(i)


class Keyed(Source):
    def sample_key(self, i):
        return f"key {i}"


moved = functools.partial(sample, y=1)


def failing_at(*indices, error=ValueError, make=sample):
    def compute(i):
        if i in indices:
            raise error(f"bad {i}\nand more")
        return make(i)

    return compute


def taken(log):
    """The samples that were computed since it was last asked."""
    found = computed(log)
    log.unlink(missing_ok=True)
    return found


def first_sample(path):
    with contextlib.closing(Reader(path, allow_partial=True)) as archive:
        return archive.open().origin.fingerprint["first_sample"]


def is_filled(samples):
    """True for the samples that a fill computes: each once, and before the first and two others twice, to compare."""
    counted = Counter(samples)
    return (
        counted.keys() == {*range(COUNT)}
        and counted[0] == 3
        and sorted(counted.values())[-4:] == [1, 3, 3, 3]
    )


# --- an archive that is opened with its source ---

PLACES = {
    "a file": ({}, "a.zip"),
    "a folder that is not there yet": ({}, "deep/a.zip"),
    "shared memory": ({}, "shm://spot"),
    "a URL": ({}, "memory://spot/a.zip"),
    "workers": ({"num_workers": 2}, "a.zip"),
    "lazy": ({"lazy": True}, "a.zip"),
    "compressed": ({"compression": "zstd"}, "a.zip"),
    "pickle": ({"codec": "pickle"}, "a.zip"),
}


@pytest.fixture
def memory():
    yield
    fsspec.filesystem("memory").rm("/", recursive=True)


@pytest.mark.parametrize(("options", "path"), PLACES.values(), ids=PLACES)
def test_one_sample_is_compared_in_this_process(tmp_path, log, memory, monkeypatch, options, path):
    monkeypatch.chdir(tmp_path)
    kept = CachedDataset(Source(log), path, **{**options, "lazy": False})
    assert is_filled(taken(log))
    assert len(CachedDataset(Source(log), path, **options)) == COUNT
    assert processes(log) == {os.getpid()}
    assert len(taken(log)) == 1
    with pytest.raises(StaleCacheError, match=STALE) as caught:
        CachedDataset(Source(log, moved), path, **options)
    assert caught.value.option == "spot_check"
    assert CachedDataset(Source(log, moved), path, spot_check=False, **options)[3]["y"] == 3
    kept.close()


def test_a_lazy_cache_learns_at_its_first_read_what_a_fill_learns_at_its_first_sample(path, log):
    ds = CachedDataset(Source(log), path, lazy=True)
    assert not log.exists()
    assert ds[3]["y"] == 3
    assert taken(log) == [3, 3, 3]
    assert ds[4]["y"] == 4
    assert taken(log) == [4]
    ds.close()
    made = first_sample(path)
    assert (made["repeats"], made["rounding"]) == (True, {})
    CachedDataset(Source(log), path, lazy=True).close()
    assert len(taken(log)) == 1
    with pytest.raises(StaleCacheError, match=STALE):
        CachedDataset(Source(log, moved), path, lazy=True)


def test_a_lazy_cache_warns_of_samples_that_do_not_repeat_and_compares_none(path, log):
    def drawn(i):
        return {"y": random.random()}

    ds = CachedDataset(Source(log, drawn), path, lazy=True)
    with pytest.warns(RuntimeWarning, match="field y of sample 2 is another one each time"):
        ds[2]
    ds.close()
    taken(log)
    CachedDataset(Source(log, drawn), path, lazy=True).close()
    assert taken(log) == []


class Stream:
    """Iterated source, which may end by an error."""

    def __init__(self, log, make=sample, count=COUNT):
        self._log, self._make, self._count = log, make, count

    def __edcache_fingerprint__(self):
        return {}

    def __iter__(self):
        for i in range(COUNT):
            if i == self._count:
                raise ValueError("stopped")
            note(self._log, i)
            yield self._make(i)


def test_a_stream_is_compared_by_its_first_sample(path, log):
    ds = CachedDataset(Stream(log), path)
    assert taken(log) == [*range(COUNT)]
    CachedDataset(Stream(log), path)
    assert taken(log) == [0]
    assert ds.spot_check(Stream(log)) == {}
    assert [*ds.spot_check(Stream(log, moved))] == [0]
    with pytest.raises(StaleCacheError, match="sample 0 is another one now"):
        CachedDataset(Stream(log, moved), path)
    with pytest.raises(OptionError, match="is an iterator, .* give the dataset that makes it"):
        ds.spot_check(iter(Stream(log)))


def test_a_stream_that_draws_is_not_compared(path, log):
    def drawn(i):
        return {"y": random.random()}

    CachedDataset(Stream(log, drawn), path)
    assert len(CachedDataset(Stream(log, drawn), path)) == COUNT


def test_a_stream_is_compared_before_it_is_filled_on(path, log):
    with pytest.raises(SourceError, match="stopped"):
        CachedDataset(Stream(log, count=5), path)
    taken(log)
    with pytest.raises(StaleCacheError, match="sample 0 is another one now"):
        CachedDataset(Stream(log, moved), path)
    assert len(CachedDataset(Stream(log), path)) == COUNT


def test_an_archive_that_only_lacks_its_seal_is_compared_before_it(path, log, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(import_module("edcache.writer.fill"), "seal", killed)
        CachedDataset(Source(log), path)
    with pytest.raises(StaleCacheError, match=STALE):
        CachedDataset(Source(log, moved), path)
    assert CachedDataset(Source(log), path).complete


def test_nothing_is_written_and_a_read_only_folder_will_do(tmp_path, log, capfd):
    folder = tmp_path / "folder"
    path = folder / "a.zip"
    folder.mkdir()
    CachedDataset(Source(log), path)
    before = path.read_bytes(), path.stat().st_mtime_ns, os.listdir(folder)
    folder.chmod(0o555)
    capfd.readouterr()
    CachedDataset(Source(log), path)
    with pytest.raises(StaleCacheError):
        CachedDataset(Source(log, moved), path)
    folder.chmod(0o755)
    assert (path.read_bytes(), path.stat().st_mtime_ns, os.listdir(folder)) == before
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("asked", "count"), [(None, 1), (True, 1), (1, 1), (3, 3), (99, COUNT), (False, 0)])
def test_as_many_as_asked_for_are_compared(path, log, asked, count):
    CachedDataset(Source(log), path)
    taken(log)
    CachedDataset(Source(log), path, spot_check=asked)
    assert len(taken(log)) == count


@pytest.mark.parametrize("asked", [0, -1, 1.5, "yes"])
def test_a_number_of_samples_is_asked_for(path, log, asked):
    with pytest.raises(OptionError, match="spot_check"):
        CachedDataset(Source(log), path, spot_check=asked)


def test_each_opening_compares_another_sample(path, log):
    CachedDataset(Source(log), path)
    taken(log)
    for _ in range(40):
        CachedDataset(Source(log), path)
    assert len({*taken(log)}) > COUNT // 2


@pytest.mark.parametrize(
    ("entry", "asked", "count"),
    [
        ({"seconds": 3.0}, None, 0),
        ({"seconds": 3.0}, True, 1),
        ({"seconds": 1.9}, None, 1),
        ({"seconds": 0.1, "repeats": False}, None, 0),
        ({"seconds": 0.1, "repeats": False}, True, 0),
    ],
)
def test_a_slow_sample_is_compared_if_asked_and_one_that_does_not_repeat_never(
    path, log, entry, asked, count, monkeypatch
):
    def with_entry(job):
        told = {**job.head.fingerprint, "first_sample": {"rounding": {}, **entry}}
        return replace(job, head=replace(job.head, fingerprint=told))

    monkeypatch.setattr(import_module("edcache.writer.fill"), "with_first_sample", with_entry)
    CachedDataset(Source(log), path)
    taken(log)
    CachedDataset(Source(log), path, spot_check=asked)
    assert len(taken(log)) == count


@pytest.mark.parametrize(
    ("seconds", "computed", "checked"), [(0.01, 6, 1), (0.45, 4, 1), (1.5, 2, 1), (3, 1, 0)]
)
def test_seconds_of_a_sample_are_measured(path, log, clock, seconds, computed, checked):
    def make(i):
        clock.sleep(seconds)
        return sample(i)

    CachedDataset(Source(log, make), path)
    assert first_sample(path)["seconds"] == seconds
    assert len(taken(log)) == COUNT + computed
    CachedDataset(Source(log, make), path)
    assert len(taken(log)) == checked


@pytest.mark.parametrize(
    ("name", "rank", "count"), [("RANK", "0", 1), ("RANK", "1", 0), ("PJRT_LOCAL_PROCESS_RANK", "3", 0)]
)
def test_one_rank_compares(path, log, monkeypatch, name, rank, count):
    CachedDataset(Source(log), path)
    taken(log)
    monkeypatch.setenv(name, rank)
    CachedDataset(Source(log), path)
    assert len(taken(log)) == count


class Opening:
    """Opens a cache at each sample."""

    def __init__(self, log, path):
        self.log, self.path = log, path

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return CachedDataset(Source(self.log), self.path)[i]["y"]


def test_a_worker_of_a_loader_compares_nothing(path, log):
    CachedDataset(Source(log), path)
    taken(log)
    loader = DataLoader(Opening(log, path), batch_size=None, num_workers=1)
    assert [*loader] == [0, 1]
    assert taken(log) == []


def test_what_has_no_record_is_not_compared(path, log):
    ds = CachedDataset(Source(log, failing_at(*range(1, 8))), path, on_error="skip_final")
    assert ds.missing.tolist() == [*range(1, 8)]
    taken(log)
    for _ in range(5):
        CachedDataset(Source(log), path, on_error="skip_final")
    assert taken(log) == [0] * 5
    assert CachedDataset.from_cache(path, allow_partial=True)[0]["y"] == 0
    assert taken(log) == []


def test_a_first_sample_that_fails_is_not_the_one_that_tells(path, log):
    CachedDataset(Source(log, failing_at(0, 1)), path, on_error="skip_final")
    assert first_sample(path)["repeats"]
    taken(log)
    for _ in range(5):
        with pytest.raises(StaleCacheError, match=STALE):
            CachedDataset(Source(log, moved), path, on_error="skip_final")


class Doubled(Keyed):
    """Has each key twice."""

    def sample_key(self, i):
        return f"key {i % (COUNT // 2)}"


def test_both_samples_of_a_key_are_compared(path, log):
    def made(y):
        return lambda i: sample(i % (COUNT // 2), y)

    CachedDataset(Doubled(log, made(0)), path)
    for _ in range(12):
        with pytest.raises(StaleCacheError, match=STALE):
            CachedDataset(Doubled(log, made(1)), path)


def test_a_whole_archive_of_a_factory_is_opened_without_it(path, log):
    @edcache.cachable(path)
    def make():
        made.append(1)
        return Source(log)

    made = []
    make()
    taken(log)
    assert make()[2]["y"] == 2
    assert (made, taken(log)) == ([1], [])


@pytest.mark.parametrize("error", [ValueError, SystemExit, IndexError])
@pytest.mark.parametrize("progress", [None, False])
def test_a_source_that_raises_is_told_in_a_line(path, log, capfd, error, progress):
    CachedDataset(Source(log), path)
    capfd.readouterr()
    source = Source(log, failing_at(*range(COUNT), error=error))
    assert CachedDataset(source, path, progress=progress)[1]["y"] == 1
    said = capfd.readouterr().err
    if progress is None:
        assert said.startswith(f"{path}: sample ")
        assert "was not compared: the source raised at index " in said
        assert f"{error.__name__}: bad " in said
    assert said.count("\n") == (progress is None)


def test_a_record_that_is_another_one_is_compared_once(path, log, monkeypatch):
    """To compare a large one takes longer than to compute it."""
    CachedDataset(Source(log), path)
    spot, calls = import_module("edcache.identity.samples"), []
    worst = spot._worst
    monkeypatch.setattr(spot, "_worst", lambda *args: (calls.append(args), worst(*args))[1])
    taken(log)
    with pytest.raises(StaleCacheError):
        CachedDataset(Source(log, moved), path)
    assert len(taken(log)) > 2
    assert len(calls) == 1


def test_an_interrupt_is_one(path, log):
    CachedDataset(Source(log), path)
    with pytest.raises(KeyboardInterrupt):
        CachedDataset(Source(log, failing_at(*range(COUNT), error=KeyboardInterrupt)), path)


def test_a_damaged_record_is_told_where_it_is_read(path, log, capfd):
    CachedDataset(Source(log, count=1), path)
    flip_record(path, 0)
    capfd.readouterr()
    ds = CachedDataset(Source(log, count=1), path)
    assert re.fullmatch(r"\S+a\.zip: sample 0 was not compared: .*\n", capfd.readouterr().err)
    with pytest.raises(CorruptRecordError):
        ds[0]


# --- a fill ---


@pytest.mark.parametrize("way", ["here", "workers", "threads"])
def test_a_fill_computes_its_first_sample_again_where_it_computes(path, log, way):
    with ThreadPoolExecutor(1) as pool:
        options = {"here": {}, "workers": {"num_workers": 2}, "threads": {"executor": pool}}[way]
        CachedDataset(Source(log), path, **options)
    assert (os.getpid() in processes(log)) == (way != "workers")
    assert is_filled(taken(log))
    known = first_sample(path)
    assert (known["repeats"], known["rounding"]) == (True, {})
    CachedDataset(
        Source(log), path.with_name("b.zip"), spot_check=False, num_workers=options.get("num_workers", 0)
    )
    assert taken(log) == [*range(COUNT)]
    with pytest.raises(KeyError):
        first_sample(path.with_name("b.zip"))


def resumed(path, log, **options):
    with pytest.raises(SourceError):
        CachedDataset(Source(log, failing_at(5)), path)


def grown(path, log, **options):
    CachedDataset(Source(log, count=5), path)


def keyed(path, log, **options):
    CachedDataset(Keyed(log, count=5), path)


BEGUN = {"resumed": (resumed, Source), "grown": (grown, Source), "keyed": (keyed, Keyed)}


def test_a_changed_source_adds_nothing_to_what_reads_have_computed(path, log):
    """Such an archive does not tell how long a sample takes."""
    with CachedDataset(Source(log), path, lazy=True) as ds:
        assert [ds[i]["y"] for i in range(5)] == [*range(5)]
    taken(log)
    with pytest.raises(StaleCacheError, match=STALE):
        CachedDataset(Source(log, moved), path)
    assert {*taken(log)} <= {*range(5)}
    assert [one["y"] for one in CachedDataset(Source(log), path)] == [*range(COUNT)]
    again = taken(log)
    assert (again[0] < 5, again[1:]) == (True, [5, 6, 7])


@pytest.mark.parametrize("way", ["here", "workers", "threads"])
@pytest.mark.parametrize(("begin", "kind"), BEGUN.values(), ids=BEGUN)
def test_a_changed_source_adds_nothing(path, log, way, begin, kind):
    begin(path, log)
    known, before = first_sample(path), path.read_bytes()
    taken(log)
    with ThreadPoolExecutor(1) as pool:
        options = {"here": {}, "workers": {"num_workers": 2}, "threads": {"executor": pool}}[way] | {
            "grow": True
        }
        with pytest.raises(StaleCacheError, match=STALE):
            CachedDataset(kind(log, moved), path, **options)
        assert (os.getpid() in processes(log)) == (way != "workers")
        assert {*taken(log)} <= {*range(5)}
        if kind is Keyed:
            assert path.read_bytes() == before
        with contextlib.closing(Reader(path, allow_partial=True)) as archive:
            assert archive.session.index.present == 5
        assert sorted(path.parent.iterdir()) == [path]
        ds = CachedDataset(kind(log), path, **options)
    again = taken(log)
    assert len(again) == 4
    assert again[0] < 5
    assert again[1:] == [5, 6, 7]
    assert [one["y"] for one in ds] == [*range(COUNT)]
    assert first_sample(path) == known


ENDINGS = {"exits": lambda: os._exit(3), "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL)}


def ending(what, *indices):
    def compute(i):
        if i in indices:
            ENDINGS[what]()
        return sample(i)

    return compute


@pytest.mark.parametrize("what", ENDINGS)
def test_a_source_that_ends_its_process_ends_it_as_without_a_check(tmp_path, log, what, capfd):
    said = []
    for asked in (False, None):
        path = tmp_path / f"{asked}.zip"
        with pytest.raises(SourceError) as caught:
            CachedDataset(Source(log, ending(what, 0)), path, num_workers=1, spot_check=asked, progress=False)
        said.append(str(caught.value).replace(str(path), ""))
    assert said[0] == said[1]
    # A stored sample that does so now.
    resumed(path := tmp_path / "c.zip", log)
    assert CachedDataset(Source(log, ending(what, *range(5))), path, num_workers=1).complete


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_worker_ends_the_check_alone(path, log, number, capfd):
    def compute(i):
        if not os.path.exists(f"{path}.sent"):
            open(f"{path}.sent", "w").close()
            os.kill(os.getpid(), number)
        return sample(i)

    resumed(path, log)
    assert CachedDataset(Source(log, compute), path, num_workers=1).complete
    assert "compared" not in capfd.readouterr().err


def test_a_first_sample_that_hangs_is_waited_for_no_longer_than_any(path, log):
    stop = tmp = path.with_name("hangs")

    def compute(i):
        if i == 0 and not os.path.exists(stop):
            open(tmp, "w").close()
            signal.pause()
        return sample(i)

    assert CachedDataset(Source(log, compute), path, timeout=1.0).complete


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("way", ["here", "workers", "threads"])
def test_what_the_first_sample_raises_the_fill_raises(tmp_path, log, error, way):
    said = []
    for asked in (False, None):
        path = tmp_path / f"{asked}.zip"
        with ThreadPoolExecutor(1) as pool:
            options = {"here": {}, "workers": {"num_workers": 1}, "threads": {"executor": pool}}[way]
            with pytest.raises((SourceError, KeyboardInterrupt)) as caught:
                CachedDataset(Source(log, failing_at(0, error=error), 1), path, spot_check=asked, **options)
        text = str(caught.value).partition("; ")[0].replace(str(path), "").removeprefix("interrupted ")
        said.append((type(caught.value), text))
    assert said[0] == said[1]


def test_of_several_that_build_anew_at_once_one_does(path, log, monkeypatch):
    def slow(i):
        time.sleep(0.05)
        return sample(i)

    CachedDataset(Source(log), path, spot_check=False)
    taken(log)
    monkeypatch.setattr("edcache.writer.recheck._some_beside", lambda *arguments: ())
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(CachedDataset, Source(log, slow), path, keep_existing=False) for _ in range(3)]
        assert len({one.result()._archive.reader.session.head.uuid for one in made}) == 1
    assert taken(log).count(COUNT - 1) == 1


def test_a_keyed_source_is_not_computed_under_the_lock_of_its_archive(path, log):
    """Another fill publishes meanwhile: here one that the source waits for."""
    keyed(path, log)
    pool, others = ThreadPoolExecutor(1), []

    def compute(i):
        if not others:
            others.append(pool.submit(CachedDataset, Keyed(log, count=6), path, spot_check=False))
            others.append(len(others[0].result(10)))
        return sample(i)

    assert len(CachedDataset(Keyed(log, compute, count=7), path)) == 7
    pool.shutdown()
    assert others[1:] == [6]


# --- samples that are another one each time ---

HELD = random.Random(3)
COINS = {
    "random": lambda i: {"x": random.random() < 0.5},
    "numpy": lambda i: {"x": np.random.rand() < 0.5},
    "torch": lambda i: {"x": bool(torch.rand(()) < 0.5)},
    "a generator of its own": lambda i: {"x": HELD.random() < 0.5},
}


@pytest.mark.parametrize("make", COINS.values(), ids=COINS)
def test_a_coin_is_warned_of_once_and_is_never_stale(path, log, make):
    with pytest.warns(RuntimeWarning, match="a.zip: field x of sample 0 is another one each time") as caught:
        CachedDataset(Source(log, make), path)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    taken(log)
    for _ in range(10):
        CachedDataset(Source(log, make), path, spot_check=True)
    assert taken(log) == []


@pytest.mark.parametrize("make", COINS.values(), ids=COINS)
def test_samples_that_do_not_repeat_though_the_first_one_does_are_not_stale(path, log, make):
    def some(i):
        return make(i) if i else {"x": True}

    with pytest.warns(RuntimeWarning, match=r"a.zip: field x of sample [1-7] is another one each time"):
        CachedDataset(Source(log, some), path)
    assert first_sample(path)["repeats"] is False
    taken(log)
    CachedDataset(Source(log, some), path)
    assert taken(log) == []


@pytest.mark.parametrize("make", COINS.values(), ids=COINS)
def test_a_check_that_meets_a_sample_which_does_not_repeat_says_so(path, log, make, monkeypatch):
    def some(i):
        return make(i) if i == 5 else {"x": False}

    monkeypatch.setattr("edcache.writer.recheck._some_beside", lambda *arguments: (1, 2))
    CachedDataset(Source(log, some), path)

    def opened():
        while True:  # a check leaves the generators as they were
            _ = random.random(), np.random.rand(), torch.rand(())
            yield CachedDataset(Source(log, some), path)

    with pytest.warns(RuntimeWarning, match=r"a.zip: field x of sample 5 is another one each time") as caught:
        list(itertools.islice(opened(), 120))  # half of the draws are equal
    assert {str(one.message).count("sample 5") for one in caught} == {1}


@pytest.mark.parametrize("fails", [False, True])
def test_the_generators_are_as_they_were(path, log, fails):
    def draw(i):
        drawn = random.random() + np.random.rand() + float(torch.rand(()))
        if fails:
            raise ValueError(drawn)
        return {"x": drawn < 99}

    CachedDataset(Source(log, lambda i: {"x": True}), path)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    CachedDataset(Source(log, draw), path)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


# --- models ---


def test_rounding_of_a_model_is_learned(path, log):
    def model(batch):
        note(log, len(batch["x"]))
        return {"z": batch["x"] * (1 + 1e-4 * len(batch["x"]))}  # as another kernel for each size

    rows = [{"x": torch.full((3,), float(i))} for i in range(1, 9)]
    edcache.map(model, rows, path, batch_size=4, progress=False)
    sizes = taken(log)
    assert {*sizes} == {1, 4}
    assert sizes.count(4) == 1 + 2
    assert sizes.count(1) == 1 + 2 * 2
    assert first_sample(path)["rounding"] == {"z": pytest.approx(3e-4, rel=0.1)}
    edcache.map(model, rows, path, batch_size=4, progress=False, spot_check=8)
    assert taken(log) == [1] * 8


def test_a_model_that_changed_where_nothing_tells_it_is_stale(path):
    weights = path.with_name("weights.txt")

    class Model:
        def __call__(self, x):
            return {"z": x["x"] * float(weights.read_text())}

    weights.write_text("1.0")
    rows = [{"x": torch.full((3,), float(i))} for i in range(1, 9)]
    edcache.map(Model(), rows, path, progress=False)
    for text, by in (("1.01", r"0\.99"), ("1.1", r"9\.1")):
        weights.write_text(text)
        with pytest.raises(StaleCacheError, match=rf"field z differs by {by} %"):
            edcache.map(Model(), rows, path, progress=False)
    weights.write_text("1.000001")  # as another number of threads
    edcache.map(Model(), rows, path, progress=False)


# --- what computing a sample changes ---


class Memo:
    """Fills a list with an item for each sample, which is None at first."""

    def __init__(self):
        self.memo = [None] * COUNT

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        self.memo[i] = self.memo[i] or i + 1.0
        return {"y": self.memo[i]}


def test_a_memo_of_all_samples_is_state(path):
    for _ in range(2):
        assert CachedDataset(Memo(), path)[3]["y"] == 4
    assert CachedDataset(Memo(), path, num_workers=2)[3]["y"] == 4


class Counting(torch.nn.Linear):
    def __init__(self, seed):
        super().__init__(2, 2)
        torch.nn.init.constant_(self.weight, seed)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Encoded:
    def __init__(self, net):
        self.net = net

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        with torch.no_grad():
            return {"y": self.net(torch.full((2,), float(i)))}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_counter_in_an_argument_is_state_and_what_stands_beside_it_is_a_setting(path, workers):
    made = []

    @edcache.cachable(path, num_workers=workers)
    def encoded(net):
        made.append(1)
        return Encoded(net)

    for _ in range(2):
        torch.manual_seed(0)
        assert len(encoded(Counting(1.0).eval())) == COUNT
    assert len(made) == 1
    with pytest.raises(StaleCacheError, match=r"argument net\.weights: "):
        encoded(Counting(2.0).eval())


@pytest.mark.parametrize("batches", [None, 2])
def test_a_sample_behind_as_many_as_there_are_different_ones_is_compared(tmp_path, batches):
    class Repeated(Keyed):
        def sample_key(self, i):
            return f"key {i // COUNT}"

    path, log = tmp_path / "a.zip", tmp_path / "log"
    one, other = sample(1), sample(1, 1)
    ds = CachedDataset(Repeated(log, lambda i: one), path, progress=False, batch_size=batches)
    assert len(ds) == COUNT
    with pytest.raises(StaleCacheError, match=STALE):
        CachedDataset(
            Repeated(log, lambda i: other), path, progress=False, batch_size=batches, spot_check=COUNT
        )
    assert len(ds.spot_check(Repeated(log, lambda i: other), COUNT)) == COUNT


def test_changed_code_says_nothing_of_an_archive_without_samples(tmp_path, recwarn):
    for value in (1, 2):

        class Empty(Keyed):
            def __getitem__(self, i, value=value):
                return value

        assert len(CachedDataset(Empty(tmp_path / "log", count=0), tmp_path / "a.zip", progress=False)) == 0
    assert [str(one.message) for one in recwarn] == []


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_first_fill_of_keys_that_repeat_is_compared_before_it_goes_on(tmp_path, repeats):
    class Repeated(Keyed):
        def sample_key(self, i):
            return f"key {i // repeats}"

    path, log = tmp_path / "a.zip", tmp_path / "log"

    def made(i, y=0):
        return sample(i // repeats, y)

    with pytest.raises(SourceError):
        CachedDataset(Repeated(log, failing_at(COUNT - repeats, make=made)), path, progress=False)
    with pytest.raises(StaleCacheError, match=STALE):
        CachedDataset(Repeated(log, functools.partial(made, y=1)), path, progress=False)
    assert len(CachedDataset(Repeated(log, made), path, progress=False)) == COUNT


class Doubling:
    """Source that changes what it keeps."""

    def __init__(self):
        self.data = np.ones((5, 3))

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.data[index] *= 2
        return {"x": self.data[index]}


def test_a_source_that_changes_what_it_keeps_is_told_which_attribute(tmp_path):
    text = r"is computed\. Computing it changes attribute data: if samples are made of that, change a copy\. Random"
    with pytest.warns(RuntimeWarning, match=text):
        CachedDataset(Doubling(), tmp_path / "a.zip", progress=False)
