"""`KeyedCache`: any number of threads and processes compute each value once, and what is stored stays."""

import errno
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

import edcache
from edcache import CachedDataset, KeyedCache, OptionError, SourceError, StaleCacheError, format
from edcache.dataset import keyed_cache
from edcache.errors import (
    ArchiveError,
    CodecError,
    CorruptRecordError,
    StorageError,
    UnknownLabelError,
)
from edcache.format.entries import Cursor
from tests.conformance import reference
from tests.kit.damage import flip_record
from tests.kit.likeness import same
from tests.kit.scale import scaled
from tests.kit.systems import System, child_environ, ended, in_child, replace_system


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
    [
        (["a", "ü", ""], "b"),
        ([b"\0", b"\xff"], b""),
        ([5, -7, 2**64], 0),
        ([(1, "a"), (1, "b")], ()),
        ([1, "1", b"1", (1,), "\x001"], "\ud800"),
    ],
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
        cache.close(seal=True)
    ds = CachedDataset.from_cache(path, allow_pickle=True)
    assert ds.complete
    assert [*ds.keys] == [*keys, new]
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
    assert cache.keys() == []


@pytest.mark.parametrize(
    "wrong", [None, 1.5, True, ("x", np.arange(2000)), (torch.ones(1),), (None,), ((True,),)]
)
@pytest.mark.parametrize("there", [[], ["a"], [5], [b"a", (1,)]], ids=str)
def test_what_is_no_key_is_refused_before_anything_is_computed(path, there, wrong):
    cache = KeyedCache(path)
    cache.get_many(there, list)
    never = lambda *missing: pytest.fail("it was computed")  # noqa: E731
    for call in (
        lambda: cache.get_or_create(wrong, never),
        lambda: cache.get_many(["new", wrong], never),
        lambda: cache[wrong],
        lambda: cache.get(wrong),
        lambda: wrong in cache,
    ):
        with pytest.raises(OptionError, match="a key is text, bytes, an int or a tuple"):
            call()
    assert cache.keys() == there


def test_keys_of_all_types_live_in_one_file_whatever_came_first(path):
    draw = random.Random(0)
    keys = [
        "",
        "1",
        "\0",
        "\x001",
        "\0(1,)",
        "é\ud800",
        b"",
        b"1",
        1,
        -1,
        2**63,
        -(2**90),
        (1,),
        ("1", (b"1", 1)),
        (),
    ]
    for round_ in range(scaled(100, 10)):
        path.unlink(missing_ok=True)
        draw.shuffle(keys)
        create = Created()
        at = draw.randrange(len(keys))
        with KeyedCache(path) as cache:
            cache.get_many(keys[:at], create)
            cache.close(seal=draw.random() < 0.5)
            assert all(map(same, cache.get_many(keys, create), map(value, keys)))
            assert [*map(type, cache.keys())] == [*map(type, keys)]
            assert cache.keys() == keys
            cache.close(seal=True)
        assert create.calls == Counter(keys), round_
        with replace_system(Unwritable()):
            reading = KeyedCache(path)
            assert all(same(reading[key], value(key)) for key in keys)
        ds = CachedDataset.from_cache(path)
        for view in (ds, ds[::-1]):
            assert all(same(view.by_key(key), value(key)) for key in keys)
        assert [*ds.keys] == keys
        assert reference.read_zip(path).records == reference.walk(path).records


class Keyless(list):
    """Samples without keys, or with such as `keys` gives."""


class WithKeys(Keyless):
    def sample_key(self, index):
        return f"k{index}"


def dropped(path):
    with KeyedCache(path) as cache:
        cache.get_or_create("a", lambda: 1)
    CachedDataset.from_cache(path).drop_labels("key")


def numbered(path):
    with edcache.CacheWriter(path, in_memory_keys={"key": lambda sample: sample}) as writer:
        writer.extend([5, 7])


OTHERS = {
    "a dataset": (
        lambda path: CachedDataset(Keyless([1, 2]), path, progress=False),
        "one of samples without keys",
    ),
    "a dataset with keys": (
        lambda path: CachedDataset(WithKeys([1, 2]), path, progress=False),
        "one of samples with keys",
    ),
    "samples": (
        lambda path: edcache.CacheWriter(path).__exit__(None, None, None),
        "one of samples without keys",
    ),
    "keys dropped": (dropped, 'its label column "key" was dropped'),
    "keys of another column": (numbered, 'its label column "key" is of int64, where a KeyedCache has text'),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("is_writable", [True, False])
def test_another_archive_is_refused_before_a_byte_is_changed(path, name, is_writable):
    make, says = OTHERS[name]
    make(path)
    if says.startswith("one of"):  # as its head says
        with path.open("ab") as file:
            file.write(bytes(100))  # a torn tail
    before = path.read_bytes()
    with replace_system(System() if is_writable else Unwritable()):
        for _ in range(2):
            with pytest.raises(OptionError, match=says) as raised:
                KeyedCache(path)
            assert str(raised.value).startswith(str(path))
            assert "read it by CachedDataset.from_cache(path), and give KeyedCache another path" in str(
                raised.value
            )
    assert path.read_bytes() == before


def test_a_saved_archive_takes_further_values(path, tmp_path):
    with KeyedCache(path) as cache:
        cache.get_many(["a", 5], Created())
        cache.close(seal=True)
    CachedDataset.from_cache(path).save(tmp_path / "saved.zip")
    create = Created()
    with KeyedCache(tmp_path / "saved.zip") as cache:
        assert all(map(same, cache.get_many(["a", 5, (5,)], create), map(value, ["a", 5, (5,)])))
    assert create.calls == Counter([(5,)])


def test_a_tuple_is_another_key_than_its_text(path):
    with KeyedCache(path) as cache:
        assert cache.get_many([("a", 1), "('a', 1)", ("a", "1")], list) == [("a", 1), "('a', 1)", ("a", "1")]
        assert cache.get_or_create((np.str_("a"), np.int64(1)), lambda: 1 / 0) == ("a", 1)
        assert cache.keys() == [("a", 1), "('a', 1)", ("a", "1")]
    ds = CachedDataset.from_cache(path)
    for view in (ds, ds[::-1]):
        assert [view.by_key(key) for key in ds.keys] == [*ds.keys] == cache.keys()


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
        cache.get_or_create(number, lambda: number)
        start.wait()
        cache.close()

    context = multiprocessing.get_context("fork")
    for _ in range(scaled(60, 4)):
        path.unlink(missing_ok=True)
        start, here = context.Barrier(4), KeyedCache(path)
        processes = [context.Process(target=work, args=(here, start, number)) for number in range(4)]
        for process in processes:
            process.start()
        here.close()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        ds = CachedDataset.from_cache(path)
        assert ds.complete
        assert len(ds) == 4


def seals(path):
    """Count the seals of an archive."""
    data = path.read_bytes()
    pread = lambda offset, nbytes, is_sound=None: data[offset : offset + nbytes]  # noqa: E731
    head, header = format.read_head(pread, "a.zip")
    groups = format.walk(pread, len(data), head.uuid, Cursor.behind(header), str(path))
    return sum(group[-1].kind == format.ROOT for group in groups)


def test_a_few_values_more_are_not_worth_a_seal(path):
    with KeyedCache(path) as cache:
        cache.get_many(range(1000), lambda missing: missing)
    assert seals(path) == 1
    grown = [path.stat().st_size]
    for count in range(1, 61):
        with KeyedCache(path) as cache:
            assert cache.get_many([7, 1000 + count], lambda missing: missing) == [7, 1000 + count]
            assert len(cache) == len(cache.keys()) == 1000 + count
        grown.append(path.stat().st_size)
    # A seal takes some 80 KiB here, a chunk 4: with 40 chunks and more it pays.
    assert seals(path) == 2
    assert max(np.diff(grown)) >= 70_000
    assert sorted(np.diff(grown))[-2] < 2 * 4096
    assert edcache.verify(path).problems == []


@pytest.mark.parametrize("most_behind", [5, 1000])
def test_many_chunks_behind_the_seal_are_sealed_at_the_end(path, monkeypatch, most_behind):
    with KeyedCache(path) as cache:
        cache.get_many(range(10_000), lambda missing: missing)
    monkeypatch.setattr(keyed_cache, "_MOST_BEHIND", most_behind)
    with KeyedCache(path) as cache:
        for number in range(10_000, 10_006):
            cache.get_or_create(number, lambda n=number: n)
        assert seals(path) == 1  # in a call only if that pays
    assert seals(path) == 1 + (most_behind == 5)


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.full)])
def test_a_value_takes_8_KiB_at_most_if_each_comes_in_a_session_of_its_own(path, count):
    for number in range(count):
        cache = KeyedCache(path)
        assert cache.get_or_create(f"key {number}", lambda n=number: n) == number
        cache.close()
    assert path.stat().st_size <= count * 8192
    assert KeyedCache(path).get_many([f"key {number}" for number in range(count)], None) == [*range(count)]
    assert edcache.verify(path).problems == []


def test_an_archive_that_no_process_closes_is_sealed_now_and_then(path, monkeypatch):
    """Opening reads each chunk behind the seal."""
    monkeypatch.setattr(keyed_cache, "_MOST_BEHIND", 10)

    def put(cache, process):
        for number in range(60):
            assert cache.get_or_create(f"{process} {number}", lambda n=number: n) == number

    children = [in_child(lambda k=k: put(KeyedCache(path), k)) for k in range(2)]
    assert [ended(child) for child in children] == [0, 0]
    # Seals do not take more than chunks.
    assert 3 <= seals(path) <= 120 // 10
    assert path.stat().st_size <= 120 * 8192
    cache = KeyedCache(path)
    assert len(cache) == 120
    assert all(cache[f"{k} {number}"] == number for k in range(2) for number in range(60))
    assert edcache.verify(path).sound


def test_values_behind_the_seal_are_there_and_a_seal_can_be_asked_for(path):
    with KeyedCache(path) as cache:
        cache.get_many(range(1000), lambda missing: missing)
    cache = KeyedCache(path)
    assert cache.get_or_create(1000, lambda: 5) == 5
    cache.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = CachedDataset.from_cache(path)
    assert (ds.by_key(1000), len(ds), ds.complete) == (5, 1001, False)
    cache.close()
    assert seals(path) == 1
    other = KeyedCache(path)
    for _ in range(2):
        cache.close(seal=True)
        assert seals(path) == 2
    other.close()
    ds = CachedDataset.from_cache(path)
    assert (ds.by_key(1000), len(ds), ds.complete) == (5, 1001, True)


class Syncing(System):
    """Notes writes and syncs."""

    def __init__(self):
        self.calls = []

    def pwrite(self, *arguments):
        self.calls.append("write")
        return super().pwrite(*arguments)

    def sync(self, fd):
        self.calls.append("sync")
        super().sync(fd)


def test_values_that_are_not_sealed_are_synced(path):
    with KeyedCache(path) as cache:
        cache.get_many(range(1000), lambda missing: missing)
    with replace_system(Syncing()) as system, KeyedCache(path) as cache:
        cache.get_or_create(1000, lambda: 5)
    assert system.calls[-2:] == ["write", "sync"]
    assert seals(path) == 1


def test_what_makes_the_values_identifies_them(path):
    KeyedCache(path, fingerprint={"model": "a"}).close()
    KeyedCache(path, fingerprint={"model": "a"}).close()
    for other in ({"model": "b"}, None, {"model": "a", "more": 1}):
        with pytest.raises(StaleCacheError):
            KeyedCache(path, fingerprint=other)


class Unwritable(System):
    """A file system that refuses to open for writing, as a read-only one does whoever asks."""

    def open(self, path, flags, mode):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system")
        return super().open(path, flags, mode)


@pytest.mark.parametrize("seals", [True, False])
def test_a_file_that_cannot_be_written_is_read_by_key(path, seals):
    cache = KeyedCache(path, fingerprint={"model": "a"})
    cache.get_many(["a", "b"], lambda keys: [value(key) for key in keys])
    if seals:
        cache.close(seal=True)
    before = path.read_bytes()
    with replace_system(Unwritable()):
        cache = KeyedCache(path, fingerprint={"model": "a"})
        assert cache.get_many(["b", "a"], None)[0]["key"] == "b"
        assert (cache.keys(), "c" in cache, cache.get("c", 5)) == (["a", "b"], False, 5)
        with pytest.raises(StorageError) as raised:
            cache.get_or_create("c", lambda: pytest.fail("it cannot be stored"))
        assert str(raised.value) == (
            f"{path}: 'c' has no value, and the file cannot be written here: Read-only file system; values that are "
            "there can be read. Copy it to where you may write, to add others"
        )
        assert raised.value.errno == errno.EROFS
        with pytest.raises(StaleCacheError):
            KeyedCache(path, fingerprint={"model": "b"})
        if seals:
            cache.close(seal=True)
        else:
            with pytest.raises(StorageError, match="it is not sealed, and the file cannot be written here"):
                cache.close(seal=True)
    assert path.read_bytes() == before


def test_values_of_another_process_are_read_where_none_can_be_added(path):
    writing = KeyedCache(path)
    with replace_system(Unwritable()):
        reading = KeyedCache(path)
    writing.get_or_create("a", lambda: 1)
    assert reading["a"] == 1
    writing.close(seal=True)
    assert (reading["a"], reading.keys()) == (1, ["a"])


def test_a_cache_that_is_not_sealed_is_open_for_further_values(path):
    KeyedCache(path).get_or_create("a", lambda: 1)
    done = subprocess.run([sys.executable, "-m", "edcache", "info", path], capture_output=True, text=True)
    assert "sealed       no: a KeyedCache, open for further values\n" in done.stdout


def test_a_cache_that_cannot_be_made_says_why(path):
    with replace_system(Unwritable()), pytest.raises(StorageError, match="Read-only file system") as raised:
        KeyedCache(path)
    assert not isinstance(raised.value, FileNotFoundError)


PLAIN = [
    None, False, 0, 1, 1.5, "", "clip-b32", "clip-l14", [], ["clip-b32"], ["clip-l14"], [["a"], {"b": None}],
    {"model": "a"}, {"model": None}, {"fingerprint": "clip-b32"}, {"version": "clip-b32"}, {"1": 2}, {"ü": "é"},
]  # fmt: skip


@pytest.mark.parametrize("made", PLAIN, ids=repr)
def test_any_value_of_json_identifies_the_values(path, made):
    for _ in range(2):
        with KeyedCache(path, fingerprint=made) as cache:
            assert cache.get_or_create("k", lambda: 1) == 1
    for other in PLAIN:
        if repr(other) != repr(made):
            with pytest.raises(StaleCacheError) as caught:
                KeyedCache(path, fingerprint=other)
            assert str(caught.value).endswith("use another path, or delete the file")
            assert caught.value.option == "fingerprint"


def test_the_error_shows_both_fingerprints(path):
    KeyedCache(path, fingerprint="clip-b32").close()
    with pytest.raises(StaleCacheError, match="fingerprint: 'clip-b32' in the archive, 'clip-l14' now"):
        KeyedCache(path, fingerprint="clip-l14")


def test_values_that_json_writes_alike_are_the_same(path):
    for made in ({1: (2, 3)}, {"1": [2, 3]}, {1: [2, 3]}):
        KeyedCache(path, fingerprint=made).close()


@pytest.mark.parametrize(
    "made",
    [
        {"p": b"x"},
        np.float32(1),
        {"scale": np.float32(1)},
        {1},
        float("nan"),
        [object()],
        {(1, 2): 3},
        {1: 2, "1": 3},
    ],
    ids=lambda made: type(made).__name__,
)
def test_a_fingerprint_that_is_no_json_is_refused(path, made):
    with pytest.raises(
        OptionError, match="^fingerprint=.* is no value of JSON: .*; give text, numbers"
    ) as caught:
        KeyedCache(path, fingerprint=made)
    assert caught.value.option == "fingerprint"
    assert not path.exists()


def test_a_damaged_value_is_an_error(path):
    with KeyedCache(path) as cache:
        cache.get_many(list("abc"), Created())
    flip_record(path, 1)
    with KeyedCache(path) as cache:
        assert same(cache["a"], value("a"))
        with pytest.raises(CorruptRecordError, match="record 1 at offset"):
            cache["b"]


@pytest.mark.parametrize(
    "form",
    [list, tuple, iter, lambda keys: (key for key in keys), lambda keys: map(str, keys), dict.fromkeys],
    ids=["list", "tuple", "iterator", "generator", "map", "dict"],
)
def test_keys_may_come_from_any_iterable(path, form):
    for _ in range(2):
        assert KeyedCache(path).get_many(form("abc"), lambda missing: [*map(str.upper, missing)]) == [*"ABC"]
    with KeyedCache(path) as cache:
        cache.close(seal=True)
    assert CachedDataset.from_cache(path).indices_of(form("cb")).tolist() == [2, 1]
    assert KeyedCache(path).get_many(["d", "e"], lambda missing: map(str.upper, missing)) == [*"DE"]


@pytest.mark.parametrize("error", [ValueError("no 3"), KeyboardInterrupt(), RecursionError()])
def test_what_was_computed_one_by_one_before_an_error_is_kept(path, error):
    def create(missing):
        for number in missing:
            calls.append(number)
            if number == 3 and len(calls) == 4:
                raise error
            yield number

    calls = []
    cache = KeyedCache(path)
    with pytest.raises((SourceError, type(error))) as caught:
        cache.get_many(range(6), create)
    assert not isinstance(error, ValueError) or ".zip: 3: ValueError: no 3" in str(caught.value)
    assert sorted(cache.keys()) == [0, 1, 2]
    assert cache.get_many(range(6), create) == [*range(6)]
    assert calls == [0, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize("made", [{"a": 1, "b": 2}, {1, 2}, "xy", b"xy"], ids=repr)
def test_values_without_an_order_are_no_values(path, made):
    with pytest.raises(OptionError, match="was returned for 2 keys; return a list of their values"):
        KeyedCache(path).get_many(["a", "b"], lambda missing: made)
    assert KeyedCache(path).keys() == []


def test_options_are_told_where_it_is_written(path):
    for options in ({"chunk_size": 3}, {"in_memory_keys": ["y"]}, {"spot_check": 2}, {"codec": "other"}):
        with pytest.raises(OptionError, match=next(iter(options))):
            KeyedCache(path, **options)
    assert not path.exists()


def test_many_keys_are_computed_some_at_a_time(path):
    asked = []
    keys = [f"k{number}" for number in range(3_000)]
    with KeyedCache(path) as cache:
        assert cache.get_many(keys, lambda missing: (asked.append(missing), missing)[1]) == keys
        assert asked == [keys[:1024], keys[1024:2048], keys[2048:]]
        assert len(cache) == 3_000


class Logged:
    """Make values; append the keys to a file, which processes share."""

    def __init__(self, path, seconds=0.0):
        self.path, self.seconds = path, seconds

    def __call__(self, missing):
        time.sleep(self.seconds)
        with self.path.open("a") as file:
            file.write("".join(f"{key}\n" for key in missing))
        return [value(key) for key in missing]

    def calls(self):
        return self.path.read_text().split()


@pytest.fixture
def create(tmp_path, monkeypatch):
    """Create values; 4 at most are computed at a time."""
    monkeypatch.setattr(keyed_cache, "_MOST_LOCKS", 4)
    (tmp_path / "log").touch()
    return Logged(tmp_path / "log")


@pytest.mark.parametrize("threads", [1, 3])
def test_few_and_many_keys_are_computed_once_in_whatever_order_they_are_asked(path, create, threads):
    create.seconds = 0.001

    def work(cache, seed):
        draw = random.Random(seed)
        for _ in range(12):
            keys = draw.sample(range(100), draw.choice([1, 3, 8, 30]))
            assert all(map(same, cache.get_many(keys, create), map(value, keys)))

    def process(seed):
        cache = KeyedCache(path)
        running = [threading.Thread(target=work, args=(cache, f"{seed}.{k}")) for k in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    for round_ in range(scaled(40, 2)):
        path.unlink(missing_ok=True)
        create.path.write_text("")
        children = [in_child(lambda k=k, r=round_: process(f"{r}.{k}")) for k in range(3)]
        assert [ended(child) for child in children] == [0, 0, 0]
        calls = Counter(create.calls())
        assert {*calls.values()} == {1}
        assert sorted(map(str, KeyedCache(path).keys())) == sorted(calls)


def mixed_keys(count):
    """Make keys of all types, of which four at a time have one number."""
    makes = [str, int, lambda n: (n,), lambda n: b"%d" % n, lambda n: ("a", (str(n), n)), lambda n: f"\0{n}"]
    return [makes[number % len(makes)](number // len(makes)) for number in range(count)]


@pytest.mark.parametrize(
    ("processes", "threads", "count"), [(2, 2, 60), pytest.param(8, 2, 500, marks=pytest.mark.full)]
)
def test_values_of_mixed_keys_are_computed_once_while_threads_close_the_archive(
    path, tmp_path, processes, threads, count
):
    log = tmp_path / "log"
    keys = mixed_keys(count)

    def create(key):
        with log.open("a") as file:
            file.write(f"{key!r}\n")
        return value(key)

    def ask(cache, seed):
        draw = random.Random(seed)
        own = draw.sample(keys, len(keys))
        while own:
            asked = [own.pop() for _ in range(min(len(own), draw.choice([1, 1, 5])))]
            found = cache.get_many(asked, lambda missing: [*map(create, missing)])
            assert all(map(same, found, map(value, asked)))

    def close(cache, seed, is_done):
        draw = random.Random(seed)
        while not is_done.wait(draw.uniform(0, 0.03)):
            cache.close(seal=draw.random() < 0.1)

    def process(number):
        cache, is_done, errors = KeyedCache(path), threading.Event(), []
        threading.excepthook = lambda raised: errors.append(raised.exc_value)
        asking = [threading.Thread(target=ask, args=(cache, f"{number}.{k}")) for k in range(threads)]
        closing = threading.Thread(target=close, args=(cache, number, is_done))
        for thread in [*asking, closing]:
            thread.start()
        for thread in asking:
            thread.join()
        is_done.set()
        closing.join()
        cache.close()
        assert errors == []

    children = [in_child(lambda k=k: process(k)) for k in range(processes)]
    assert [ended(child) for child in children] == [0] * processes
    assert Counter(log.read_text().splitlines()) == Counter(map(repr, keys))
    with KeyedCache(path) as cache:
        assert {*cache.keys()} == {*keys}
        cache.close(seal=True)
    assert edcache.verify(path).sound


def test_a_close_waits_for_calls_under_way(path):
    is_begun, may_end = threading.Event(), threading.Event()

    def compute(cache):
        is_begun.set()
        assert may_end.wait(20)
        return cache.get_or_create("inner", lambda: 4) + 1

    def step():
        cache = KeyedCache(path)
        asking = threading.Thread(target=cache.get_or_create, args=("a", lambda: compute(cache)))
        closing = threading.Thread(target=cache.close)
        asking.start()
        assert is_begun.wait(20)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive()
        assert cache.get_or_create("b", lambda: 6) == 6  # of another session
        assert ended(in_child(lambda: cache.get_or_create("c", lambda: 7) == cache["b"] + 1 or 1 / 0)) == 0
        may_end.set()
        for thread in (asking, closing):
            thread.join(20)
            assert not thread.is_alive()
        assert [cache.get(key) for key in ("a", "inner", "b", "c")] == [5, 4, 6, 7]
        cache.close()
        assert CachedDataset.from_cache(path).complete

    assert ended(in_child(step)) == 0


def test_a_child_that_is_forked_amid_calls_does_not_wait_for_them(path):
    def step():
        cache, is_done = KeyedCache(path), threading.Event()

        def work(number):
            for count in itertools.count():
                if is_done.is_set():
                    return
                cache.get_or_create((number, count), lambda n=count: n)
                if count % 7 == number:
                    cache.close()

        running = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in running:
            thread.start()
        for number in range(scaled(100, 6)):
            child = in_child(lambda n=number: cache.get_or_create(n, lambda: n) == n or 1 / 0)
            assert ended(child) == 0
            assert cache[number] == number
        is_done.set()
        for thread in running:
            thread.join()

    assert ended(in_child(step)) == 0


def test_a_close_within_a_call_of_its_own_thread_does_not_wait_for_it(path):
    def step():
        cache = KeyedCache(path)
        with pytest.raises(ArchiveError, match="closed; open it again"):
            cache.get_or_create("a", lambda: cache.close() or 5)
        assert cache.get_or_create("a", lambda: 5) == 5

    assert ended(in_child(step)) == 0


def test_values_are_made_of_other_ones_while_many_are_computed(path, create):
    """In the same thread and in another one, few and many."""

    def make(cache, missing):
        def inner():
            assert same(cache.get_or_create("few", lambda: create(["few"])[0]), value("few"))
            assert len(cache.get_many([f"many {number}" for number in range(9)], Created())) == 9

        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()
        inner()
        return create(missing)

    def step():
        cache = KeyedCache(path)
        cache.get_many([f"outer {number}" for number in range(9)], lambda missing: make(cache, missing))
        cache.get_many(["a", "b"], lambda missing: make(cache, missing))

    assert ended(in_child(step)) == 0
    assert len(KeyedCache(path)) == 21


def test_a_value_is_made_of_many_while_another_process_waits_for_it(path, create):
    meeting = multiprocessing.get_context("fork").Barrier(2, timeout=60)

    def first():
        cache = KeyedCache(path)
        cache.get_or_create("a", lambda: (meeting.wait(), cache.get_many([*"bcdefghij"], create)[0])[1])

    def second():
        cache = KeyedCache(path)
        cache.get_or_create("x", lambda: (meeting.wait(), cache.get_or_create("a", create))[1])

    assert [ended(child) for child in [in_child(first), in_child(second)]] == [0, 0]
    assert create.calls() == [*"bcdefghij"]


def asks_itself(path):
    cache = KeyedCache(path)
    return cache.get_or_create("a", lambda: cache.get_or_create("a", lambda: 1))


def asks_itself_by_another(path):
    return KeyedCache(path).get_or_create("a", lambda: KeyedCache(path).get_or_create("a", lambda: 1))


def asks_itself_among_many(path):
    cache = KeyedCache(path)
    return cache.get_many(["b", "a"], lambda missing: cache.get_many(["c", "a"], lambda missing: missing))


def is_recursive(path):
    cache = KeyedCache(path)

    def f(number):
        return cache.get_or_create(number, lambda: f((number + 1) % 10))

    return f(3)


@pytest.mark.parametrize("run", [asks_itself, asks_itself_by_another, asks_itself_among_many, is_recursive])
def test_a_value_that_asks_for_itself_is_a_recursion(path, run):
    def step():
        for _ in range(2):
            with pytest.raises(RecursionError, match="computing its value asks for this value"):
                run(path)
        assert KeyedCache(path).get_or_create("a", lambda: 5) == 5 if run is not is_recursive else True

    assert ended(in_child(step)) == 0


ORDERS = [([5, 6], [1, 2]), ([6, 5], [2, 1])]


@pytest.mark.parametrize("orders", ORDERS, ids=str)
@pytest.mark.parametrize("where", ["threads", "processes"])
def test_batches_that_wait_for_each_other_go_on(path, tmp_path, monkeypatch, where, orders):
    """6 needs 1, and 2 needs 5: each is in the other's batch."""
    monkeypatch.setattr(keyed_cache, "_SECONDS", 0.3)
    context = multiprocessing.get_context("fork")
    meeting = threading.Barrier(2) if where == "threads" else context.Barrier(2)

    cache = KeyedCache(path)

    def many(numbers):
        return cache.get_many(numbers, lambda missing: [*map(compute, missing)])

    def compute(number):
        if number in (6, 2):
            meeting.wait(20)
            return many([{6: 1, 2: 5}[number]])[0] * 10
        return number

    def step():
        kind = threading.Thread if where == "threads" else context.Process
        running = [kind(target=many, args=(numbers,)) for numbers in orders]
        for one in running:
            one.start()
        for one in running:
            one.join()
        assert cache.get_many([1, 2, 5, 6], lambda missing: 1 / 0) == [1, 50, 5, 10]
        assert sorted(cache.keys()) == [1, 2, 5, 6]

    assert ended(in_child(step)) == 0


@pytest.mark.parametrize("how", ["two caches", "closed between"])
def test_values_that_wait_for_each_other_in_two_sessions_go_on(path, monkeypatch, how):
    """A thread's claims count whichever session has them."""
    monkeypatch.setattr(keyed_cache, "_SECONDS", 0.3)
    low, high = sorted("ab", key=lambda key: int(format.key_hashes([key])[0, 0]) % keyed_cache._CLAIMS)

    def step():
        cache, meeting = KeyedCache(path), threading.Barrier(2)
        other = KeyedCache(path) if how == "two caches" else cache

        def compute(asked, key):
            meeting.wait(20)
            if how == "closed between" and key == low:
                cache._files.pop()  # as a close() does, which waits then
            meeting.wait(20)
            return asked.get_or_create(key, lambda: key) + "!"

        running = [
            threading.Thread(target=cache.get_or_create, args=(high, lambda: compute(other, low))),
            threading.Thread(target=other.get_or_create, args=(low, lambda: compute(cache, high))),
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert {cache[low], cache[high]} <= {low, high, f"{low}!", f"{high}!", f"{low}!!", f"{high}!!"}

    assert ended(in_child(step)) == 0


def test_values_that_need_each_other_in_two_threads_are_a_recursion(path, monkeypatch):
    monkeypatch.setattr(keyed_cache, "_SECONDS", 0.3)
    cache, meeting, errors = KeyedCache(path), threading.Barrier(2), []

    def value_of(name):
        return cache.get_or_create(name, lambda: compute(name))

    def compute(name):
        if name == threading.current_thread().name:
            meeting.wait(20)
        return value_of({"a": "b", "b": "a"}[name])

    def work(name):
        with pytest.raises(RecursionError):
            value_of(name)
        errors.append(name)

    def step():
        running = [threading.Thread(target=work, args=(name,), name=name) for name in "ab"]
        for one in running:
            one.start()
        for one in running:
            one.join()
        assert sorted(errors) == ["a", "b"]

    assert ended(in_child(step)) == 0


def test_values_made_of_others_are_computed_once_where_none_waits_in_a_circle(path, create):
    def step(seed):
        cache = KeyedCache(path)

        def make(number):
            create([number])
            return number if number < 2 else f(number - 1) + f(number - 2)

        def f(number):
            return cache.get_or_create(number, lambda: make(number))

        assert f(12 + seed % 2) == (144, 233)[seed % 2]

    children = [in_child(lambda k=k: step(k)) for k in range(4)]
    assert [ended(child) for child in children] == [0] * 4
    assert {*Counter(create.calls()).values()} == {1}


def test_a_claim_of_a_thread_that_has_ended_is_free(path):
    """One that an interrupt hit between two lines may hold it still."""
    cache = KeyedCache(path)
    with cache._in_use() as session:
        claims = session._claims
    ended_thread = threading.Thread(target=int)
    ended_thread.start()
    ended_thread.join()
    hashed = int(format.key_hashes(["a"])[0, 0]) % keyed_cache._CLAIMS
    claims._held[hashed] = ended_thread
    assert cache.get_or_create("a", lambda: 5) == 5
    assert claims._held == {}


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
