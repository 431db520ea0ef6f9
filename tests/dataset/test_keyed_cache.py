"""`KeyedCache`: any number of threads and processes compute each value once, and what is stored stays."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch

import edcache
from edcache import CachedDataset, KeyedCache, OptionError, SourceError, StaleCacheError
from edcache.errors import CodecError, CorruptRecordError, LabelError, UnknownLabelError
from tests.conformance import reference
from tests.kit.damage import flip_record
from tests.kit.likeness import same
from tests.kit.scale import scaled
from tests.kit.systems import child_environ


def value(key):
    return {"x": torch.full((len(str(key)) % 5 + 1,), 1.5, dtype=torch.bfloat16), "key": key}


class Created:
    """Make values; count the calls by key."""

    def __init__(self):
        self.calls = Counter()

    def __call__(self, missing):
        self.calls.update(missing)
        return [value(key) for key in missing]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "values.zip"


@pytest.mark.parametrize(
    ("keys", "new"),
    [(["a", "ü", ""], "b"), ([b"\0", b"\xff"], b""), ([5, -7, 2**62], 0), ([(1, "a"), (1, "b")], ())],
)
@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"codec": "pickle"}])
def test_values_come_back_as_they_were_in_every_state_of_the_archive(path, keys, new, options):
    create = Created()
    with KeyedCache(path, **options) as cache:
        assert [*map(same, cache.get_many(keys, create), map(value, keys))] == [True] * len(keys)
        for key in keys:
            assert same(cache.get_or_create(key, create), value(key))
            assert same(cache[key], value(key))
            assert same(cache.get(key), value(key))
            assert key in cache
        assert len(cache) == len(keys)
    with KeyedCache(path, **options) as cache:  # sealed now
        assert [*map(same, cache.get_many(keys[::-1], create), map(value, keys[::-1]))] == [True] * len(keys)
        assert create.calls == Counter(keys)
        assert all(map(same, cache.get_many([new, keys[0], new], create), map(value, [new, keys[0], new])))
        assert create.calls == Counter([*keys, new])
    ds = CachedDataset.from_cache(path, allow_pickle=True)
    assert ds.complete
    assert all(same(ds.by_key(key), value(key)) for key in keys)
    assert edcache.verify(path).problems == []
    assert reference.read_zip(path).records == reference.walk(path).records


def test_refusals(path):
    cache = KeyedCache(path)
    assert (cache.get("a"), cache.get("a", 5)) == (None, 5)
    with pytest.raises(UnknownLabelError, match="no value has the key 'a'"):
        cache["a"]
    with pytest.raises(UnknownLabelError, match=r"no value has the key \(3, 'a'\)"):
        cache[3, "a"]
    with pytest.raises(SourceError, match=r"zip: \(3, 'a'\): ZeroDivisionError"):
        cache.get_or_create((3, "a"), lambda: 1 / 0)
    with pytest.raises(SourceError, match="'a': ZeroDivisionError: division by zero"):
        cache.get_or_create("a", lambda: 1 / 0)
    with pytest.raises(OptionError, match="2 keys were asked for, and 1 values returned"):
        cache.get_many(["a", "b"], lambda missing: [1])
    with pytest.raises(OptionError, match="a key is text, bytes, an int or a tuple"):
        cache.get_or_create(1.5, lambda: 1)
    cache.get_or_create("a", lambda: 1)
    with pytest.raises(LabelError):
        cache.get_or_create(5, lambda: 1)
    assert cache.keys() == ["a"]
    assert 5 not in cache


def test_after_a_value_that_cannot_be_stored_others_are(path):
    cache = KeyedCache(path)
    with pytest.raises(CodecError):
        cache.get_many(["a", "b", "c"], lambda missing: [1, 2, threading.Lock()])
    assert cache.keys() == []
    assert cache.get_many(["c"], lambda missing: missing) == ["c"]
    cache.close()
    ds = CachedDataset.from_cache(path)
    assert [*zip(ds.keys, ds, strict=True)] == [("c", "c")]


def test_of_processes_that_close_at_once_one_seals(path):
    def work(cache, start, number):
        cache.get_or_create(f"k{number}", lambda: number)
        start.wait()
        cache.close()

    context = multiprocessing.get_context("fork")
    for round_ in range(scaled(60, 4)):
        start, here = context.Barrier(4), KeyedCache(path)
        processes = [
            context.Process(target=work, args=(here, start, f"{round_}.{number}")) for number in range(4)
        ]
        for process in processes:
            process.start()
        here.close()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        ds = CachedDataset.from_cache(path)
        assert ds.complete
        assert len(ds) == 4 * (round_ + 1)


def test_what_makes_the_values_identifies_them(path):
    KeyedCache(path, fingerprint={"model": "a"}).close()
    KeyedCache(path, fingerprint={"model": "a"}).close()
    for other in ({"model": "b"}, None, {"model": "a", "more": 1}):
        with pytest.raises(StaleCacheError):
            KeyedCache(path, fingerprint=other)


def test_a_damaged_value_is_an_error(path):
    with KeyedCache(path) as cache:
        cache.get_many(list("abc"), Created())
    flip_record(path, 1)
    with KeyedCache(path) as cache:
        assert same(cache["a"], value("a"))
        with pytest.raises(CorruptRecordError, match="record 1 at offset"):
            cache["b"]


def test_memoize(path):
    calls = []

    def make(version=None):
        @edcache.memoize(path, key=lambda text: text.lower(), version=version)
        def length(text):
            """Count letters."""
            calls.append(text)
            return {"n": len(text)}

        return length

    length = make()
    assert not path.exists()
    assert (length("ab"), length("AB"), length.__doc__) == ({"n": 2}, {"n": 2}, "Count letters.")
    assert length.many(["cde", "aB", "CDE", "f"]) == [{"n": 3}, {"n": 2}, {"n": 3}, {"n": 1}]
    assert [text.lower() for text in calls] == ["ab", "cde", "f"]
    length.cache.close()
    with pytest.raises(StaleCacheError, match="version"):
        make(version=2)("ab")


def test_threads_compute_each_value_once(path):
    cache, create = KeyedCache(path), Created()

    def work(seed):
        draw = random.Random(seed)
        for _ in range(60):
            keys = [f"k{draw.randrange(40)}" for _ in range(draw.randrange(1, 4))]
            assert all(map(same, cache.get_many(keys, create), map(value, keys)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {*create.calls.values()} == {1}


def test_a_fork_and_a_pickle_open_it_anew(path):
    cache = KeyedCache(path)
    cache.get_or_create("a", lambda: 1)

    def child(cache):
        assert cache.get_or_create("b", lambda: 2) == 2
        assert cache["a"] == 1

    processes = [multiprocessing.get_context("fork").Process(target=child, args=(cache,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert cache["b"] == 2
    assert len(cache) == 2


_WORK = """
import random, sys, time
import edcache
from tests.dataset.test_keyed_cache import value

path, log, seed = sys.argv[1:]

def create(missing):
    with open(log, "a") as file:
        file.write("".join(f"{key}\\n" for key in missing))
    time.sleep(0.002)
    return [value(key) for key in missing]

draw, cache = random.Random(seed), edcache.KeyedCache(path)
keys = [f"key {i}" for i in range(300)]
draw.shuffle(keys)
while keys:
    asked = [keys.pop() for _ in range(min(len(keys), draw.randrange(1, 4)))]
    assert [one["key"] for one in cache.get_many(asked, create)] == asked
cache.close()
"""


@pytest.mark.full
def test_processes_that_are_killed_lose_what_they_compute_alone(tmp_path, path):
    log, draw, kills = tmp_path / "log", random.Random(0), 0
    log.touch()
    for round_ in range(5):
        running = [
            subprocess.Popen(
                [sys.executable, "-c", _WORK, str(path), str(log), f"{round_}.{k}"], env=child_environ()
            )
            for k in range(4)
        ]
        if round_ < 4:
            before, limit = len(log.read_text()), time.monotonic() + 60
            while len(log.read_text()) <= before and time.monotonic() < limit:
                if all(one.poll() is not None for one in running):
                    break
                time.sleep(0.05)
            time.sleep(draw.uniform(0, 0.4))
            for one in running:
                if one.poll() is None:
                    os.kill(one.pid, signal.SIGKILL)
                    kills += 1
        for one in running:
            assert one.wait() in ((0,) if round_ == 4 else (0, -signal.SIGKILL))
    calls = Counter(log.read_text().splitlines())
    assert len(calls) == 300
    assert sum(calls.values()) <= 300 + 3 * kills
    ds = CachedDataset.from_cache(path)
    assert ds.complete
    assert all(same(ds.by_key(f"key {i}"), value(f"key {i}")) for i in range(300))
