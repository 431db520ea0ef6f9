"""RedisDataset over a real redis-server that evicts, expires, fills up, restarts and lies: no sample is wrong."""

import os
import pickle
import re
import signal
import socket
import socketserver
import threading
import time
from contextlib import suppress

import archives
import filled
import numpy as np
import pytest
import redis_server
import torch
from damage import flipped
from likeness import outcome, same
from optional import needs
from scale import scaled, seeded
from systems import ended, in_child
from torch.utils.data import DataLoader

from edcache import CachedDataset, errors
from edcache.backends import redis as backend
from edcache.compat.kappadata import RedisDataset

PASSWORD = "s3cret-word"
COUNT = 60

pytestmark = [
    needs("redis"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def shared_server():
    server = redis_server.Server("--requirepass", PASSWORD)
    yield server
    server.close()


@pytest.fixture
def server(shared_server, monkeypatch, tmp_path):
    """A server with nothing in it, whose password is in the environment."""
    monkeypatch.setenv("EDCACHE_REDIS_PASSWORD", PASSWORD)
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path))
    shared_server.raw.config_set("maxmemory", 0)
    shared_server.raw.config_set("maxmemory-policy", "noeviction")
    shared_server.raw.flushall()
    return shared_server


@pytest.fixture
def url(server):
    return server.url("digits")


def sample(i):
    return {"x": torch.full((3, 5), i, dtype=torch.int16), "y": i % 4, "name": f"n{i}", "z": np.arange(i % 3)}


def large(i):
    return {"x": torch.from_numpy(np.frombuffer(seeded(f"{i}").randbytes(50_000), np.uint8).copy()), "y": i}


def slow(i):
    time.sleep(0.01)
    return sample(i)


class Source:
    """Says in a log what it computes; `make` makes a sample."""

    def __init__(self, log=None, count=COUNT, make=sample):
        self.log, self.count, self.make = log, count, make

    def __edcache_fingerprint__(self):
        return {}

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.log is not None:
            filled.note(self.log, i)
        return self.make(i)


class Other(Source):
    pass


def is_whole(ds, make=sample):
    return len(ds) == COUNT and all(same(ds[i], make(i)) for i in range(COUNT))


def test_samples_of_any_form_are_those_of_a_file(server, tmp_path):
    for number in range(scaled(20)):
        rng = seeded(f"redis {number}")
        given = [archives.sample(rng) for _ in range(30)]
        file = CachedDataset(given, tmp_path / f"{number}.zip", chunk_size=7)
        each = RedisDataset(given, server.url(f"e{number}"))
        for _ in range(2):
            some = [rng.randrange(30) for _ in range(9)]
            for found in (each.__getitems__(some), each.__getitems__(some)):
                assert all(same(one, file[i]) for one, i in zip(found, some, strict=True))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_with_the_password_of_the_url(server, monkeypatch, context):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD")
    ds = RedisDataset(Source(), server.url("digits", f":{PASSWORD}@"))
    assert ds[7]["y"] == 3
    options = {"num_workers": 2, "multiprocessing_context": context, "collate_fn": list}
    found = [one for batch in DataLoader(ds, batch_size=16, **options) for one in batch]
    assert len(found) == COUNT
    assert all(same(one, sample(i)) for i, one in enumerate(found))


def test_of_two_processes_that_read_at_once_each_sample_is_computed_by_one(url, log):
    def read():
        RedisDataset(Source(log, make=slow), url).__getitems__(range(COUNT))

    children = [in_child(read) for _ in range(2)]
    assert [ended(pid) for pid in children] == [0, 0]
    assert filled.computed(log) == list(range(COUNT))
    assert len(filled.processes(log)) == 2


def test_samples_are_computed_once_and_a_batch_is_one_round_trip(server, url, log):
    ds = RedisDataset(Source(log), url)
    assert same(ds[-1], sample(COUNT - 1))
    assert same(list(ds), [sample(i) for i in range(COUNT)])
    again = RedisDataset(Source(log), url, transform=lambda one: one["y"])
    before = server.calls("mget")
    assert again.__getitems__([5, 7, 5]) == [1, 3, 1]
    assert server.calls("mget") == before + 1
    one, two = ds.__getitems__([3, 3])
    assert one["x"].data_ptr() != two["x"].data_ptr()
    assert filled.computed(log) == list(range(COUNT))
    assert all(key.startswith("digits:") and server.raw.ttl(key) == -1 for key in server.all_keys())
    with pytest.raises(errors.SampleIndexError, match=r"index 60 not in \[-60, 60\)"):
        ds[60]


def test_a_server_that_is_stopped_is_an_error_in_bounded_time_and_is_asked_again(server, url, monkeypatch):
    monkeypatch.setattr(backend, "_TIMEOUT_SECONDS", 2)
    ds = RedisDataset(Source(), url)
    assert same(ds[3], sample(3))
    server.stopped(True)
    try:
        began = time.monotonic()
        with pytest.raises(errors.StorageError, match="does not do as it is asked: Timeout"):
            ds[3]
        assert time.monotonic() - began < 2 * 2
    finally:
        server.stopped(False)
    assert same(ds[3], sample(3))


def test_what_expires_or_is_forgotten_is_computed_again(server, log):
    each = RedisDataset(Source(log), server.url("digits", ttl=1))
    assert is_whole(each)
    time.sleep(1.1)
    assert server.all_keys() == []
    assert is_whole(each)
    assert len(filled.computed(log)) == 2 * COUNT
    server.restart()
    assert is_whole(each)


def test_under_eviction_every_sample_is_right(server, url, log):
    server.raw.config_set("maxmemory-policy", "allkeys-lru")
    server.fill_up(1_500_000)
    ds = RedisDataset(Source(log, make=large), url)
    for _ in range(2):
        assert is_whole(ds, large)
    assert server.raw.info("stats")["evicted_keys"] > 0
    assert len(filled.computed(log)) > COUNT


def test_a_full_server_keeps_nothing_more_and_says_so_once(server, url, log):
    server.raw.config_set("maxmemory", 1)  # not what is used now: the server frees some of it meanwhile
    text = "used memory > 'maxmemory'.*; samples that it does not have are computed at every read"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        assert is_whole(RedisDataset(Source(log), url))
    assert len(caught) == 1
    assert server.all_keys() == []


def test_whatever_a_key_holds_no_sample_is_wrong(server, url, log, tally, monkeypatch):
    """Another sample's value too, and one of another type."""
    ds = RedisDataset(Source(log), url)
    assert is_whole(ds)
    keys, rng = server.all_keys(), seeded("redis samples")
    for _ in range(scaled(1000)):
        key, other = rng.sample(keys, 2)
        data, index = server.raw.get(key), int(key.rpartition(":")[2])
        cut = data[: rng.randrange(len(data))]
        changed = flipped(data, rng.randrange(len(data)), 1 << rng.randrange(8))
        server.raw.set(key, rng.choice([changed, cut, server.raw.get(other), pickle.dumps(1)]))
        before = len(filled.computed(log))
        assert same(ds[index], sample(index))
        assert len(filled.computed(log)) == before + 1
        tally("redis: values damaged")
    server.raw.delete(keys[0])
    server.raw.rpush(keys[0], "theirs")
    monkeypatch.setattr(backend, "_CLAIM_MS", 200)
    assert is_whole(ds)


def test_the_claim_of_a_killed_process_goes_and_that_of_a_failed_one_at_once(url, monkeypatch):
    monkeypatch.setattr(backend, "_CLAIM_MS", 500)
    ds = RedisDataset(Source(make=lambda i: os.kill(os.getpid(), signal.SIGKILL)), url)
    assert ended(in_child(lambda: ds[3])) == -signal.SIGKILL
    began = time.monotonic()
    ds.source.make = lambda i: [][i]
    with pytest.raises(errors.SourceError, match="the source raised at index 3: IndexError: list index out"):
        ds[3]
    assert time.monotonic() - began > 0.2
    ds.source.make = lambda i: {1, 2}
    with pytest.raises(errors.CodecError, match="sample 3: sample: cannot store set"):
        ds[3]
    ds.source.make = sample
    assert same(ds[3], sample(3))


def test_another_source_and_a_longer_one_have_keys_of_their_own(url, log):
    makers = [lambda i: i, lambda i: -i, lambda i: 2 * i, lambda i: 3 * i]
    kinds = [(Source, COUNT, None), (Other, COUNT, None), (Source, 70, None), (Source, 70, {"version": 2})]
    for _ in range(2):
        for make, (kind, count, given) in zip(makers, kinds, strict=True):
            assert RedisDataset(kind(log, count, make), url, fingerprint=given)[5] == make(5)
    assert len(filled.computed(log)) == 4
    for kind, make in ((Source, makers[1]), (Other, makers[2])):
        assert RedisDataset(kind(None, 9, make), url, fingerprint=False)[5] == -5


# --- credentials, and what is refused ---


def test_a_password_is_in_nothing_that_is_shown_or_pickled(server, monkeypatch):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD")
    url = server.url("digits", f"someone:{PASSWORD}@")
    rights = {"passwords": [f"+{PASSWORD}"], "categories": ["+@all"], "keys": ["*"]}
    server.raw.acl_setuser("someone", enabled=True, **rights)
    ds = RedisDataset(Source(), url)
    assert is_whole(ds)
    shown = [repr(ds), ds.path]
    for refused in (f"{url}&foo=1", f"{url}&ttl=0", f"{url}&socket_timeout=x", url.replace("sock", "none")):
        shown += [outcome(lambda url=refused: RedisDataset(Source(), url)[0])[1][1]]
    shown += [outcome(lambda: CachedDataset.from_cache(url))[1][1]]
    pickled = pickle.dumps(ds)
    server.raw.acl_deluser("someone")
    shown += [outcome(lambda: ds[3])[1][1]]
    for text in (*shown, repr(pickled)):
        assert PASSWORD not in text
        assert "someone" not in text
    with pytest.raises(errors.StorageError, match="give its password in the URL or in EDCACHE_REDIS_PAS"):
        pickle.loads(pickled)[0]
    monkeypatch.setenv("EDCACHE_REDIS_PASSWORD", PASSWORD)
    assert is_whole(pickle.loads(pickled))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://h/0", "all keys begin with prefix"),
        *(
            (f"redis://h/0?prefix=a&ttl={ttl}", "expire after ttl in whole seconds")
            for ttl in ("soon", 0, -1)
        ),
        ("redis://h/0?prefix=a&claim_seconds=1", "claim_seconds"),
        *(
            (f"redis://:s3{bad}r3t@h/0?prefix=a", "in it all but letters and digits is percent-encoded")
            for bad in "#/?"
        ),
        ("redis://h/0?prefix=a&password=s3r3t", "a password stands before the host"),
        ("redis://localhost:1/0?prefix=a", "the server does not do as it is asked: .*refused"),
    ],
)
def test_a_url_that_leads_nowhere_says_why(url, text):
    with pytest.raises((errors.OptionError, errors.StorageError), match=text) as caught:
        RedisDataset([1], url)[0]
    assert "r3t" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*samples that it does not have are computed:RuntimeWarning")
@pytest.mark.parametrize("every", [1, 2, 5])
def test_replies_that_come_twice_are_the_right_samples_or_a_typed_error(server, tmp_path, tally, every):
    """Between us and the server something sends again the replies of every k-th question."""

    class Repeating(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(OSError), socket.socket(socket.AF_UNIX) as behind:
                behind.connect(server.socket)
                number = 0
                while data := self.request.recv(1 << 16):
                    behind.sendall(data)
                    time.sleep(0.005)
                    replies = behind.recv(1 << 20)
                    number += 1
                    self.request.sendall(replies * (1 + (number % every == 0)))

    with socketserver.ThreadingUnixStreamServer(str(tmp_path / "s"), Repeating) as repeating:
        repeating.daemon_threads, repeating.block_on_close = True, False
        threading.Thread(target=repeating.serve_forever, args=(0.05,), daemon=True).start()
        ds = RedisDataset(Source(), f"unix://{tmp_path}/s?prefix=each")
        for k in range(0, COUNT, 7):
            with suppress(errors.EdcacheError):
                assert same(ds[k], sample(k))
                tally("redis: replies that came twice")
        repeating.shutdown()


@pytest.mark.parametrize("reply", [b":5\r\n", b"$-1\r\n", b"*1\r\n:5\r\n", b"+OK\r\n", b"nonsense\r\n"])
def test_a_reply_of_another_type_is_a_storage_error(reply, monkeypatch):
    """A server that answers each question by the same."""
    monkeypatch.setattr(backend, "_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setenv("EDCACHE_REDIS_PASSWORD", "")

    class Liar(socketserver.BaseRequestHandler):
        def handle(self):
            while data := self.request.recv(1 << 16):
                for name in re.findall(rb"\*\d+\r\n\$\d+\r\n(\w+)\r\n", data):
                    self.request.sendall(reply if name == b"MGET" else b"+OK\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Liar) as lying:
        lying.daemon_threads, lying.block_on_close = True, False
        threading.Thread(target=lying.serve_forever, args=(0.05,), daemon=True).start()
        other = f"redis://127.0.0.1:{lying.server_address[1]}/0?prefix=digits&protocol=2"
        with pytest.raises(errors.StorageError, match="a reply of another type|Protocol error"):
            RedisDataset(Source(), other)[3]
        lying.shutdown()
