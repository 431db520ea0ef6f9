"""A real redis-server that evicts, expires, fills up, restarts and lies: no sample is wrong, none is lost."""

import os
import pickle
import signal
import time

import archives
import filled
import numpy as np
import pytest
import redis_server
import torch
from click.testing import CliRunner
from likeness import outcome, same
from scale import scaled, seeded
from torch.utils.data import DataLoader

from edcache import CachedDataset, cachable, cli
from edcache.backends.redis import samples, store
from edcache.compat.kappadata import RedisDataset
from edcache.errors import (
    ArchiveNotFoundError,
    EdcacheError,
    NotAnArchiveError,
    OptionError,
    SampleIndexError,
    SourceError,
    StaleArchiveError,
    StorageError,
    UnsupportedTypeError,
)

PASSWORD = "s3cret-word"
COUNT = 60
CONTEXTS = ("fork", "spawn")

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def shared_server():
    server = redis_server.Server("--requirepass", PASSWORD)
    yield server
    server.close()


@pytest.fixture
def server(shared_server, monkeypatch, tmp_path):
    """A server with nothing in it, whose password is in the environment."""
    monkeypatch.setenv("EDCACHE_REDIS_PASSWORD", PASSWORD)
    monkeypatch.setenv("EDCACHE_SPOOL", str(tmp_path / "spool"))
    shared_server.raw.config_set("maxmemory", 0)
    shared_server.raw.flushall()
    return shared_server


def sample(i):
    return {"x": torch.full((3, 5), i, dtype=torch.int16), "y": i % 4, "name": f"n{i}", "z": np.arange(i % 3)}


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


def large(i):
    return {"x": torch.from_numpy(np.frombuffer(seeded(f"{i}").randbytes(50_000), np.uint8).copy()), "y": i}


def slow(i):
    time.sleep(0.01)
    return sample(i)


def fails(i):
    return [][i]


def is_whole(ds, make=sample):
    return len(ds) == COUNT and all(same(ds[i], make(i)) for i in range(COUNT))


def in_child(work):
    """The pid of a forked process that does something; it ends with 0 if nothing was raised."""
    pid = os.fork()
    if not pid:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


def status_of(pid):
    return os.waitpid(pid, 0)[1]


# --- an archive ---


def test_an_archive_is_filled_once_and_opened_filtered_and_labelled_as_any(server, log):
    url = server.url("digits")
    for _ in range(2):
        ds = CachedDataset(Source(log), url, in_memory_keys=["y"])
        assert is_whole(ds)
    assert filled.computed(log) == list(range(COUNT))
    assert repr(ds) == f"CachedDataset('{url}', 60 samples, labels: y)"
    opened = CachedDataset.from_cache(url)
    assert [s["name"] for s in opened.filter(y=2)[:2]] == ["n2", "n6"]
    assert opened.select("y", "x").batch([5, 7])["y"].tolist() == [1, 3]
    assert is_whole(CachedDataset.from_cache([url], preload="shm"))
    assert all(key.startswith("digits:") and server.raw.ttl(key) == -1 for key in server.all_keys())
    factory = cachable(server.url("digits-{split}", f":{PASSWORD}@"))(lambda split: Source(log))
    assert factory("a b").path == factory.cache_path("a b") == server.url("digits-a_b")


def test_samples_of_any_form_are_those_of_a_file(server, tmp_path):
    for number in range(scaled(20)):
        rng = seeded(f"redis {number}")
        given = [archives.sample(rng) for _ in range(30)]
        file = CachedDataset(given, tmp_path / f"{number}.zip", chunk_size=7)
        there = CachedDataset(given, server.url(f"a{number}"), chunk_size=7, fingerprint=False)
        each = RedisDataset(given, server.url(f"e{number}"))
        for _ in range(2):
            some = [rng.randrange(30) for _ in range(9)]
            for found in (there.__getitems__(some), each.__getitems__(some), each.__getitems__(some)):
                assert all(same(one, file[i]) for one, i in zip(found, some, strict=True))


@pytest.mark.parametrize("context", CONTEXTS)
def test_workers_read_both_with_the_password_of_the_url(server, monkeypatch, context):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD")
    url = server.url("digits", f":{PASSWORD}@")
    for ds in (CachedDataset(Source(), url), RedisDataset(Source(), url)):
        assert ds[7]["y"] == 3
        loader = DataLoader(
            ds, batch_size=16, num_workers=2, multiprocessing_context=context, collate_fn=list
        )
        found = [one for batch in loader for one in batch]
        assert all(same(one, sample(i)) for i, one in enumerate(found)), len(found) == COUNT


def test_a_new_archive_takes_the_place_of_the_old_one_whose_pieces_go(server):
    url = server.url("digits")
    old = CachedDataset(Source(make=large), url)
    count = len(server.all_keys())
    assert count > 3
    new = CachedDataset(Source(), url, keep_existing=False)
    assert is_whole(new)
    assert len(server.all_keys()) == 2
    with pytest.raises(StaleArchiveError, match="another archive was put there since it was opened"):
        old[3]
    with pytest.raises(StaleArchiveError):
        old.refresh()


def test_an_archive_that_lost_a_piece_is_none_and_is_filled_again(server, log):
    url = server.url("digits")
    ds = CachedDataset(Source(log, make=large), url)
    server.raw.delete(next(key for key in server.all_keys() if key.endswith(":1")))
    with pytest.raises(StorageError, match="evicted a part of the archive, or it has expired; build it ag"):
        [ds[i] for i in range(COUNT)]
    with pytest.raises(ArchiveNotFoundError, match="evicted a part of the archive"):
        CachedDataset.from_cache(url)
    assert is_whole(CachedDataset(Source(log, make=large), url), large)
    assert len(filled.computed(log)) == 2 * COUNT
    assert len(server.all_keys()) == 4


def test_an_archive_expires_as_a_whole(server):
    url = server.url("digits", ttl=1)
    ds = CachedDataset(Source(), url)
    assert is_whole(ds)
    time.sleep(1.1)
    assert server.all_keys() == []
    assert is_whole(CachedDataset(Source(), url))


def test_whatever_the_pieces_hold_no_sample_is_wrong(server, tally):
    CachedDataset(Source(make=large), server.url("digits"), in_memory_keys=["y"])
    kept = {key: server.raw.get(key) for key in server.all_keys()}
    rng = seeded("redis pieces")
    for _ in range(scaled(100)):
        key = rng.choice(sorted(kept))
        damaged = bytearray(kept[key])
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        server.raw.set(key, rng.choice([bytes(damaged), bytes(damaged[: len(damaged) // 2]), b"", b"x 9999"]))
        ds, error = outcome(lambda: CachedDataset.from_cache(server.url("digits"), allow_partial=True))
        outcomes = [(None, error)] if error else [outcome(lambda i=i, ds=ds: ds[i]) for i in range(COUNT)]
        for i, (found, error) in enumerate(outcomes):
            assert issubclass(error[0], EdcacheError) if error else same(found, large(i))
        server.raw.set(key, kept[key])
        tally("redis: pieces damaged")
    server.raw.set("digits:archive", "theirs")
    with pytest.raises(NotAnArchiveError, match="another program keeps digits:archive"):
        CachedDataset.from_cache(server.url("digits"))


def test_an_upload_that_was_killed_leaves_nothing_to_read_and_the_next_call_sends_it(
    server, log, monkeypatch
):
    url = server.url("digits")

    def die():
        ask = store.Client.ask

        def asked(client, *commands, **options):
            if commands[0][0] == "persist":
                os.kill(os.getpid(), signal.SIGKILL)
            return ask(client, *commands, **options)

        monkeypatch.setattr(store.Client, "ask", asked)
        CachedDataset(Source(log, make=large), url)

    assert status_of(in_child(die)) == signal.SIGKILL
    assert len(server.all_keys()) == 3
    assert all(0 < server.raw.ttl(key) <= 86_400 for key in server.all_keys())
    with pytest.raises(ArchiveNotFoundError, match="no archive under this prefix; build it first"):
        CachedDataset.from_cache(url)
    assert is_whole(CachedDataset(Source(log, make=large), url), large)
    assert filled.computed(log) == list(range(COUNT))


def test_a_full_server_keeps_the_old_archive_and_the_fill(server, log):
    url = server.url("digits")
    CachedDataset(Source(), url)
    server.fill_up(1 << 20)
    with pytest.raises(StorageError, match="the server's memory is full; give it more"):
        CachedDataset(Other(log, make=large), url, keep_existing=False)
    assert is_whole(CachedDataset.from_cache(url))
    assert len(server.all_keys()) == 2
    server.raw.config_set("maxmemory", 0)
    assert is_whole(CachedDataset(Other(log, make=large), url, keep_existing=False), large)


@pytest.mark.parametrize("of_samples", [False, True])
def test_of_two_processes_that_fill_at_once_each_sample_is_computed_by_one(server, log, of_samples):
    def fill():
        if of_samples:
            assert (
                len(RedisDataset(Source(log, make=slow), server.url("digits")).__getitems__(range(COUNT)))
                == COUNT
            )
        else:
            CachedDataset(Source(log, make=slow), server.url("digits"))

    children = [in_child(fill) for _ in range(2)]
    assert [status_of(pid) for pid in children] == [0, 0]
    assert filled.computed(log) == list(range(COUNT))
    assert len(filled.processes(log)) == 2


# --- a key a sample ---


def test_samples_are_computed_once_and_a_batch_is_one_round_trip(server, log):
    url = server.url("digits")
    ds = RedisDataset(Source(log), url)
    assert same(ds[-1], sample(COUNT - 1))
    assert same(list(ds), [sample(i) for i in range(COUNT)])
    assert repr(ds) == f"RedisDataset('{url}', 60 samples)"
    again = RedisDataset(Source(log), url, transform=lambda one: one["y"])
    before = server.calls("mget")
    assert again.__getitems__([5, 7, 5]) == [1, 3, 1]
    assert server.calls("mget") == before + 1
    one, two = ds.__getitems__([3, 3])
    assert one["x"].data_ptr() != two["x"].data_ptr()
    assert filled.computed(log) == sorted(range(COUNT))
    assert all(key.startswith("digits:") and server.raw.ttl(key) == -1 for key in server.all_keys())
    with pytest.raises(SampleIndexError, match=r"index 60 not in \[-60, 60\)"):
        ds[60]


def test_what_is_evicted_or_expires_is_computed_again(server, log):
    ds = RedisDataset(Source(log), server.url("digits", ttl=1))
    assert is_whole(ds)
    server.raw.delete(*server.all_keys()[:7])
    assert is_whole(ds)
    assert len(filled.computed(log)) == COUNT + 7
    time.sleep(1.1)
    assert server.all_keys() == []
    assert is_whole(ds)
    server.restart()
    assert is_whole(ds)


def test_under_eviction_every_sample_is_right(server, log):
    server.raw.config_set("maxmemory-policy", "allkeys-lru")
    server.fill_up(1_500_000)
    ds = RedisDataset(Source(log, make=large), server.url("digits"))
    assert is_whole(ds, large)
    assert is_whole(ds, large)
    assert server.raw.info("stats")["evicted_keys"] > 0
    assert len(filled.computed(log)) > COUNT
    server.raw.config_set("maxmemory-policy", "noeviction")


def test_a_full_server_keeps_nothing_more_and_says_so_once(server, log):
    server.fill_up(0)
    ds = RedisDataset(Source(log), server.url("digits"))
    with pytest.warns(RuntimeWarning, match="memory is full; .* are computed at every read") as caught:
        assert is_whole(ds)
    assert len(caught) == 1
    assert server.all_keys() == []


def test_whatever_a_key_holds_no_sample_is_wrong(server, log, tally, monkeypatch):
    """Another sample's value too, and that of another structure."""
    ds = RedisDataset(Source(log), server.url("digits"))
    assert is_whole(ds)
    keys = server.all_keys()
    rng = seeded("redis samples")
    for _ in range(scaled(1000)):
        key = rng.choice(keys)
        damaged = bytearray(server.raw.get(key))
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        other = server.raw.get(rng.choice([other for other in keys if other != key]))
        cut = bytes(damaged[: rng.randrange(len(damaged))])
        server.raw.set(key, rng.choice([bytes(damaged), cut, b"", other, pickle.dumps(sample(1))]))
        index, before = int(key.rpartition(":")[2]), len(filled.computed(log))
        assert same(ds[index], sample(index))
        assert len(filled.computed(log)) == before + 1
        tally("redis: values damaged")
    server.raw.delete(keys[0])
    server.raw.rpush(keys[0], "theirs")
    monkeypatch.setattr(samples, "_CLAIM_MS", 200)
    assert is_whole(ds)


def test_the_claim_of_a_killed_process_goes_and_that_of_a_failed_one_at_once(server, log, monkeypatch):
    monkeypatch.setattr(samples, "_CLAIM_MS", 500)
    ds = RedisDataset(Source(make=lambda i: os.kill(os.getpid(), signal.SIGKILL)), server.url("digits"))
    assert status_of(in_child(lambda: ds[3])) == signal.SIGKILL
    began = time.monotonic()
    ds.source.make = fails
    with pytest.raises(SourceError, match="the source raised at index 3: IndexError: list index out of"):
        ds[3]
    assert time.monotonic() - began > 0.2
    ds.source.make = lambda i: {1, 2}
    with pytest.raises(UnsupportedTypeError, match=r"sample 3: sample: cannot store set"):
        ds[3]
    ds.source.make = sample
    assert same(ds[3], sample(3))


def test_another_source_and_a_longer_one_have_keys_of_their_own(server, log):
    url = server.url("digits")
    makers = [lambda i: i, lambda i: -i, lambda i: 2 * i, lambda i: 3 * i]
    kinds = [(Source, COUNT, None), (Other, COUNT, None), (Source, 70, None), (Source, 70, {"version": 2})]
    for _ in range(2):
        for make, (kind, count, given) in zip(makers, kinds, strict=True):
            assert RedisDataset(kind(log, count, make), url, fingerprint=given)[5] == make(5)
    assert len(filled.computed(log)) == 4
    assert RedisDataset(Source(None, 9, makers[1]), url, fingerprint=False)[5] == -5
    assert RedisDataset(Other(None, 70, makers[2]), url, fingerprint=False)[5] == -5


# --- servers, credentials, what is refused ---


def test_a_password_is_in_nothing_that_is_shown_or_pickled(server, monkeypatch):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD")
    url = server.url("digits", f"someone:{PASSWORD}@")
    server.raw.acl_setuser(
        "someone", enabled=True, passwords=[f"+{PASSWORD}"], categories=["+@all"], keys=["*"]
    )
    ds, each = CachedDataset(Source(), url, in_memory_keys=["y"]), RedisDataset(Source(), url)
    run = [CliRunner().invoke(cli.main, [*command.split(), url]) for command in ("info", "verify", "ls")]
    assert [done.exit_code for done in run] == [0, 0, 0]
    shown = [repr(ds), repr(each), str(ds.info()), ds.path, each.path, *(done.output for done in run)]
    for refused in (f"{url}&foo=1", f"{url}&ttl=0", f"{url}&socket_timeout=x", url.replace("sock", "none")):
        shown += [outcome(lambda url=refused: CachedDataset.from_cache(url))[1][1]]
        shown += [outcome(lambda url=refused: RedisDataset(Source(), url)[0])[1][1]]
    server.raw.acl_deluser("someone")
    for refused in (lambda: ds.refresh(), lambda: each[3]):
        shown += [outcome(refused)[1][1]]
    for data in (pickle.dumps(ds), pickle.dumps(each), pickle.dumps(ds[:5])):
        assert PASSWORD.encode() not in data
        assert b"someone" not in data
    for text in shown:
        assert PASSWORD not in text
        assert "someone" not in text


def test_in_another_program_the_environment_has_the_password(server):
    url = server.url("digits", f":{PASSWORD}@")
    for ds in (CachedDataset(Source(), url), RedisDataset(Source(), url)):
        assert is_whole(pickle.loads(pickle.dumps(ds)))


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://h/0", r"redis://h/0: names no prefix, with which all its keys begin; append \?prefix=name"),
        ("redis://h/0?prefix=a%20b", "names no prefix"),
        ("redis://h/0?prefix=a&ttl=soon", "ttl=soon; give seconds above 0"),
        ("redis://h/0?prefix=a&claim_seconds=1", "redis-py does not take this URL: .*claim_seconds"),
        *((f"redis://:s3{bad}r3t@h/0?prefix=a", "percent-encode what is not a letter") for bad in "#/?"),
        ("redis://localhost:1/0?prefix=a", "the server does not answer: .*; it was asked 4 times"),
    ],
)
def test_a_url_that_leads_nowhere_says_why(url, text):
    for make in (CachedDataset.from_cache, lambda url: RedisDataset([1], url)[0]):
        with pytest.raises((OptionError, StorageError), match=text) as caught:
            make(url)
        assert "r3t" not in str(caught.value)


def test_what_is_filled_as_it_is_read_is_another_class(server):
    with pytest.raises(OptionError, match=r"edcache.compat.kappadata.RedisDataset\(source, url\)"):
        CachedDataset(Source(), server.url("digits"), lazy=True)


def test_options_of_redis_py_may_be_given_beside_the_url(server, monkeypatch):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD")
    url = server.url("digits")
    with pytest.raises(StorageError, match="refuses this user: .*; give the password in the URL or "):
        CachedDataset(Source(), url)
    assert is_whole(CachedDataset(Source(), url, storage_options={"password": PASSWORD}))
