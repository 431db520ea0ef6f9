"""A server that evicts, expires, fills up, restarts and lies; processes that die: no sample is ever wrong."""

import os
import pickle
import random
import signal
import threading
import time

import filled
import numpy as np
import pytest
import redis_server
import torch
from filled import available
from likeness import outcome, same
from scale import scaled, seeded
from test_redis import COUNT, Given, Source, is_whole, sample

from edcache import CachedDataset
from edcache.backends.redis.appender import RedisAppender
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    CorruptRecordError,
    EdcacheError,
    MissingSampleError,
    StorageError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")

NBYTES = 20_000
LARGE = 200


@pytest.fixture(scope="module")
def kept_server():
    server = redis_server.Server()
    yield server
    server.close()


@pytest.fixture
def server(kept_server):
    kept_server.raw.flushall()
    return kept_server


@pytest.fixture
def small_server():
    """A server with room for some 100 of LARGE samples more."""
    server = redis_server.Server()
    used = server.raw.info("memory")["used_memory"]
    server.raw.config_set("maxmemory", used + 100 * NBYTES)
    yield server
    server.close()


def large(i):
    return {"x": torch.from_numpy(np.frombuffer(random.Random(i).randbytes(NBYTES), np.uint8).copy()), "y": i}


class Large(Source):
    def __getitem__(self, i):
        super().__getitem__(i)
        return large(i)


# --- processes that die ---


class Slow(Source):
    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)


SLOW = {"type": "slow"}  # whichever class it is


def fill_and_report(url, source):
    try:
        CachedDataset(source, url, in_memory_keys=["y"], chunk_size=4, fingerprint=SLOW)
    except BaseException:
        os._exit(1)
    os._exit(0)


class Doomed(Slow):
    """Ends its process in the middle of its second sample."""

    asked = 0

    def __getitem__(self, i):
        found = super().__getitem__(i)
        self.asked += 1
        if self.asked == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


@pytest.mark.full
def test_of_eight_processes_that_fill_one_is_killed_and_the_others_do_its_work(server, log, tally):
    # Long enough that who waits for a processor loses no claim.
    url = server.url("digits", claim_seconds=4)
    children = []
    for k in range(8):
        pid = os.fork()
        if not pid:
            fill_and_report(url, Slow(log) if k else Doomed(log))
        children.append(pid)
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    assert codes == [signal.SIGKILL] + [0] * 7
    ds = CachedDataset.from_cache(url)
    assert is_whole(ds)
    assert ds.labels["y"].tolist() == [i % 4 for i in range(COUNT)]
    computed = filled.computed(log)
    assert set(computed) == set(range(COUNT))
    # Twice at most what the killed one had in hand: a claim of one sample here, and one publication.
    assert len(computed) <= COUNT + 8
    tally("redis: fillers killed")


def test_who_was_stopped_for_longer_than_its_claim_lives_does_no_harm(server, log):
    url = server.url("digits", claim_seconds=0.5)
    pid = os.fork()
    if not pid:
        fill_and_report(url, Slow(log))
    while len(filled.computed(log)) < 5:
        time.sleep(0.005)
    os.kill(pid, signal.SIGSTOP)
    try:
        ds = CachedDataset(Slow(log), url, in_memory_keys=["y"], fingerprint=SLOW)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_whole(ds)
    assert is_whole(CachedDataset.from_cache(url))


def test_a_claim_lives_while_its_holder_does_and_goes_with_it(server):
    url = server.url("digits", claim_seconds=0.4)
    head = CachedDataset(Source(), url)._reader.head
    one, other = RedisAppender.open(url, head), RedisAppender.open(url, head)
    one.claims.join_fillers()
    assert one.claims.claim(3)
    assert not other.claims.claim(3)
    time.sleep(1.0)
    assert not other.claims.claim(3)
    assert other.claims.has_fillers
    one.close()
    assert other.claims.claim(3)
    assert not other.claims.has_fillers
    other.claims.release(3)
    other.close()
    assert not [key for key in server.all_keys() if ":claim:" in key]


def test_a_claim_that_another_has_meanwhile_is_not_released(server):
    url = server.url("digits", claim_seconds=5)
    head = CachedDataset(Source(), url)._reader.head
    one, other = RedisAppender.open(url, head), RedisAppender.open(url, head)
    assert one.claims.claim(3)
    server.raw.delete(*[key for key in server.all_keys() if ":claim:" in key])
    assert other.claims.claim(3)
    one.claims.release(3)
    assert not one.claims.claim(3)
    one.close()
    other.close()


def test_parent_and_forked_child_read_through_one_dataset(server):
    ds = CachedDataset(Source(), server.url("digits"))
    assert same(ds[0], sample(0))
    pid = os.fork()
    if not pid:
        os._exit(0 if all(same(ds[i], sample(i)) for i in range(COUNT)) else 1)
    assert all(same(ds[i], sample(i)) for i in range(COUNT))
    assert os.waitpid(pid, 0)[1] == 0


def test_threads_read_and_refresh_while_others_fill(server):
    url = server.url("digits")
    lazy = CachedDataset(Source(), url, in_memory_keys=["y"], lazy=True)
    reader = CachedDataset.from_cache(url)
    wrong = []

    def read():
        for _ in range(20):
            reader.refresh()
            for i in range(0, COUNT, 7):
                found, error = outcome(lambda i=i: reader[i])
                if error is None and not same(found, sample(i)):
                    wrong.append(i)
                elif error is not None and error[0] is not MissingSampleError:
                    wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(COUNT):
        assert same(lazy[i], sample(i))
        lazy._filler.flush() if i % 10 == 9 else None
    for thread in threads:
        thread.join()
    lazy.close()
    assert wrong == []
    reader.refresh()
    assert is_whole(reader)


# --- a server that evicts and fills up ---


def test_what_was_evicted_is_a_clear_error_and_is_missing(server):
    url = server.url("digits")
    CachedDataset(Source(), url, in_memory_keys=["y"])
    ds, unaware = CachedDataset.from_cache(url), CachedDataset.from_cache(url)
    server.lose("digits", 5, 17)
    text = r"the server has no record of sample 5 any more: it was evicted or expired; compute it again with"
    for read in (lambda: ds[5], lambda: ds.batch([1, 5]), lambda: list(ds[4:6]), lambda: ds.select("x")[5]):
        with pytest.raises(MissingSampleError, match=text):
            read()
    assert not ds.complete
    assert unaware.missing.tolist() == [5, 17]
    assert ds.missing.tolist() == [5, 17]
    assert len(available(ds)) == COUNT - 2
    assert ds.labels["y"][5] == 1
    assert "2 missing" in repr(ds)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fill_computes_again_what_was_evicted_and_nothing_else(server, log, workers):
    url = server.url("digits")
    first = CachedDataset(Source(log), url, in_memory_keys=["y"])
    log.unlink()
    server.lose("digits", 3, 4, 50)
    options = {"num_workers": workers, "multiprocessing_context": "fork"}
    assert is_whole(CachedDataset(Source(log), url, in_memory_keys=["y"], **options))
    assert filled.computed(log) == [3, 4, 50]
    server.lose("digits", 8)
    assert is_whole(first.warmup())
    assert filled.computed(log) == [3, 4, 8, 50]


def test_a_lazy_cache_computes_again_what_was_evicted_whichever_way_it_is_read(server, log):
    url = server.url("digits")
    CachedDataset(Source(), url, in_memory_keys=["y"])
    ds = CachedDataset(Source(log), url, in_memory_keys=["y"], lazy=True)
    # Its first record may bring a schema that the log did not name.
    server.lose("digits", 5)
    assert same(ds[5], sample(5))
    ds._filler.flush()
    entries = server.raw.llen(server.log("digits"))
    for read in (lambda: ds[5], lambda: ds.batch([5])["y"], lambda: list(ds[5:6]), lambda: ds.select("x")[5]):
        server.lose("digits", 5)
        read()
        ds._filler.flush()
        assert server.raw.exists(server.record("digits", 5))
    assert filled.computed(log) == [5] * 5
    assert ds.refresh()
    assert is_whole(ds)
    # A server that evicts all the time has a log that does not grow.
    assert server.raw.llen(server.log("digits")) == entries
    ds.close()


def test_a_record_that_was_made_again_with_another_structure_is_read_as_it_is(server):
    url = server.url("digits")
    options = {"in_memory_keys": ["y"], "fingerprint": False}
    CachedDataset(Given([{"a": 1, "y": 0}, {"a": "x", "y": 1}, {"a": 3, "y": 2}]), url, **options)
    readers = [CachedDataset.from_cache(url) for _ in range(4)]
    assert [ds[2]["a"] for ds in readers] == [3] * 4
    again = [{"a": "text", "y": 0}, {"a": "x", "y": 1}, {"a": [b"unseen"], "y": 2}]
    lazy = CachedDataset(Given(again), url, lazy=True, **options)
    for index in (0, 2):
        server.lose("digits", index)
        assert lazy[index] == again[index]
    lazy.close()
    assert [readers[0].select("a")[i] for i in (2, 0, 2)] == [{"a": again[i]["a"]} for i in (2, 0, 2)]
    assert list(readers[1]) == again
    assert list(readers[2].select("a", "y").__getitems__([0, 2])) == [again[0], again[2]]
    assert readers[3].batch([0, 1])["a"] == ["text", "x"]


def test_a_lazy_cache_goes_with_its_source_to_who_reads_it(server):
    url = server.url("digits")
    ds = CachedDataset(Source(), url)
    assert ds.complete
    ds = pickle.loads(pickle.dumps(CachedDataset(Source(), url, lazy=True)))
    server.lose("digits", 5)
    assert same(ds[5], sample(5))
    ds.close()


def test_under_a_memory_limit_every_sample_of_a_lazy_cache_is_right(small_server):
    server = small_server
    server.raw.config_set("maxmemory-policy", "allkeys-lru")
    server.raw.config_set("maxmemory-samples", 10)
    ds = CachedDataset(Large(count=LARGE), server.url("large"), in_memory_keys=["y"], lazy=True)
    for epoch in range(3):
        order = np.random.default_rng(epoch).permutation(LARGE).tolist()
        for start in range(0, LARGE, 20):
            batch = ds.batch(order[start : start + 20])
            assert all(same(x, large(i)["x"]) for x, i in zip(batch["x"], order[start:], strict=False))
        ds._filler.flush()
        ds.refresh()
        # Within a second all keys were used at the same time, to the server: it may take the log too.
        assert all(y in (None, i) for i, y in enumerate(ds.labels["y"].tolist()))
    ds.close()
    assert server.raw.info("stats")["evicted_keys"] > LARGE
    opened, error = outcome(lambda: CachedDataset.from_cache(server.url("large")))
    if error is None:
        missing = set(opened.missing.tolist())
        assert missing
        assert all(same(opened[i], large(i)) for i in range(LARGE) if i not in missing)
    else:
        assert error[0] is ArchiveNotFoundError


def test_where_the_server_is_full_a_fill_ends_in_one_error_and_goes_on_when_there_is_room(small_server, log):
    server = small_server
    url = server.url("large")
    with pytest.raises(StorageError) as caught:
        CachedDataset(Large(log, LARGE), url, chunk_size=20)
    assert str(caught.value) == (
        f"{url}: the server's memory is full (maxmemory); give it more, or let it evict (maxmemory-policy "
        f"allkeys-lru) and read with lazy=True; {url} keeps 60 of 200 samples; 20 more were computed but not "
        "stored, and must be computed again; the same call computes the rest"
    )
    kept = CachedDataset.from_cache(url)
    present = LARGE - len(kept.missing)
    assert 0 < present < LARGE
    assert len(server.records("large")) == present
    server.raw.config_set("maxmemory", 0)
    log.unlink()
    assert all(same(s, large(i)) for i, s in enumerate(CachedDataset(Large(log, LARGE), url)))
    assert len(filled.computed(log)) == LARGE - present


def test_where_the_server_is_full_a_lazy_cache_goes_on_without_it(small_server):
    url = small_server.url("large")
    ds = CachedDataset(Large(count=LARGE), url, lazy=True, chunk_size=20)
    with pytest.warns(RuntimeWarning, match="memory is full .*; samples that are not stored yet are comput"):
        assert all(same(ds[i], large(i)) for i in range(LARGE))
    ds.close()
    assert 0 < len(small_server.records("large")) < LARGE


def read_and_close(ds):
    for i in range(len(ds)):
        ds[i]
    ds.close()


def test_what_expires_is_computed_again(server, log):
    url = server.url("digits", ttl=2)
    CachedDataset(Source(log), url, in_memory_keys=["y"])
    lazy = CachedDataset(Source(log), url, in_memory_keys=["y"], lazy=True)
    ds = CachedDataset.from_cache(url)
    assert ds[3]["y"] == 3
    time.sleep(2.2)
    with pytest.raises(MissingSampleError, match="it was evicted or expired"):
        ds[3]
    with pytest.raises(ArchiveNotFoundError, match="the server may have restarted, or evicted it"):
        CachedDataset.from_cache(url)
    assert is_whole(lazy.warmup()) if lazy.refresh() else same(lazy[3], sample(3))
    lazy.close()


# --- a server that restarts ---


class Restarting(Source):
    """Restarts the server once, in the middle."""

    def __init__(self, server, at, log=None):
        super().__init__(log)
        self.server, self.at = server, at

    def __getitem__(self, i):
        if i == self.at:
            self.at = None
            self.server.restart()
        return super().__getitem__(i)


@pytest.fixture
def own_server():
    server = redis_server.Server()
    yield server
    server.close()


def test_a_fill_whose_server_restarts_ends_in_a_clear_error_or_is_whole_and_another_completes_it(own_server):
    url = own_server.url("digits")
    found, error = outcome(
        lambda: CachedDataset(Restarting(own_server, 30), url, chunk_size=5, in_memory_keys=["y"])
    )
    assert error is None or "samples were not computed; " in error[1]
    ds = CachedDataset(Restarting(own_server, None), url, in_memory_keys=["y"])
    assert is_whole(ds)
    assert is_whole(CachedDataset.from_cache(url))
    assert found is None or is_whole(found)


def test_a_lazy_cache_goes_on_when_its_server_has_restarted(own_server):
    url = own_server.url("digits")
    ds = CachedDataset(Source(), url, in_memory_keys=["y"], lazy=True)
    for i in range(40):
        assert same(ds[i], sample(i))
        if i in (15, 30):
            ds._filler.flush()
            own_server.restart()
    # What was computed before is not asked for again.
    assert all(same(ds[i], sample(i)) for i in range(COUNT))
    ds.close()
    opened = CachedDataset.from_cache(url)
    missing = opened.missing.tolist()
    assert all(same(opened[i], sample(i)) for i in range(COUNT) if i not in missing)
    assert is_whole(CachedDataset(Source(), url, in_memory_keys=["y"]))
    assert is_whole(CachedDataset.from_cache(url))


def test_a_reader_whose_server_restarted_finds_everything_missing_and_then_filled_again(own_server):
    url = own_server.url("digits")
    source = Restarting(own_server, None)
    CachedDataset(source, url, in_memory_keys=["y"])
    ds = CachedDataset.from_cache(url)
    assert same(ds[0], sample(0))
    own_server.restart()
    with pytest.raises(MissingSampleError, match="the server has no record of sample 3 any more"):
        ds[3]
    assert len(ds.missing) == COUNT
    CachedDataset(source, url, in_memory_keys=["y"], chunk_size=7)
    ds.refresh()
    assert is_whole(ds)
    assert ds.labels["y"].tolist() == [i % 4 for i in range(COUNT)]


def test_a_log_that_was_lost_alone_is_begun_again(server):
    url = server.url("digits")
    ds = CachedDataset(Source(count=40), url, in_memory_keys=["y"], chunk_size=5)
    filling = RedisAppender.open(url, ds._reader.head)
    server.raw.delete(server.log("digits"))
    assert len(CachedDataset.from_cache(url).missing) == 40
    again = CachedDataset(Source(count=40), url, in_memory_keys=["y"], chunk_size=8)
    # More entries than the 8 that were seen, and others.
    for _ in range(4):
        filling.amend(failed=[[1, False, "ValueError", "text", ""]])
    assert is_whole(again, 40)
    assert ds.refresh()
    assert is_whole(ds, 40)
    assert is_whole(CachedDataset.from_cache(url), 40)
    filling.close()


def test_a_log_of_the_same_length_with_other_entries_is_noticed(server):
    url = server.url("digits")
    ds = CachedDataset(Source(count=40), url, in_memory_keys=["y"], chunk_size=10)
    filling = RedisAppender.open(url, ds._reader.head)
    server.raw.delete(server.log("digits"))
    CachedDataset(Source(count=40), url, in_memory_keys=["y"], chunk_size=12)
    assert server.raw.llen(server.log("digits")) == 4
    filling.amend(failed=[[1, False, "ValueError", "text", ""]])
    filling.close()
    assert is_whole(CachedDataset.from_cache(url), 40)
    assert server.raw.llen(server.log("digits")) == 5


@pytest.mark.full
def test_a_server_that_is_gone_is_one_clear_error(own_server):
    url = own_server.url("digits")
    ds = CachedDataset(Source(), url)
    lazy = CachedDataset(Source(), own_server.url("lazy"), lazy=True)
    own_server.stop()
    for call in (lambda: ds[3], lambda: CachedDataset.from_cache(url), lambda: lazy[3]):
        with pytest.raises(StorageError, match="the server does not answer: .*; it was asked 4 times"):
            call()
    own_server.start()


# --- a server that lies ---


def test_a_flipped_bit_of_a_record_is_an_error_that_names_it(server, tally):
    url = server.url("digits")
    CachedDataset(Source(count=4), url, in_memory_keys=["y"])
    key, rng = server.record("digits", 2), seeded("redis flips")
    sound = server.raw.get(key)
    end = 40 + int.from_bytes(sound[24:32], "little")
    ds = CachedDataset.from_cache(url)
    for _ in range(scaled(150)):
        flipped = bytearray(sound)
        flipped[rng.randrange(end)] ^= 1 << rng.randrange(8)
        server.raw.set(key, bytes(flipped))
        for read in (lambda: ds[2], lambda: ds.batch([1, 2]), lambda: ds.select("x")[2]):
            with pytest.raises(CorruptRecordError) as caught:
                read()
            assert "record 2: " in str(caught.value)
            assert f"delete the key '{key}', and warmup() computes it again" in str(caught.value)
        tally("redis: flipped bits of records")
    server.raw.set(key, sound)
    assert is_whole(ds, 4)


def test_whatever_is_under_a_key_no_sample_is_wrong_and_no_code_runs(server, tmp_path, tally):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    url, rng = server.url("digits"), seeded("redis hostile")
    CachedDataset(Source(count=12), url, in_memory_keys=["y"], chunk_size=4)
    keys = [server.record("digits", 2), server.log("digits"), "digits:head"]
    dumps = {key: server.raw.dump(key) for key in keys}
    entries = server.raw.lrange(keys[1], 0, -1)
    hostile = [b"", b"x", bytes(64), pickle.dumps(Evil()), server.raw.get(server.record("digits", 3))]
    hostile += [entries[0], server.raw.get(keys[2]), b"EDR1" + bytes(36), b"\xff" * 400, rng.randbytes(500)]

    def check(key):
        for ask in (
            lambda ds: [same(ds[i], sample(i)) for i in range(12)],
            lambda ds: [same(x, sample(i)["x"]) for i, x in enumerate(ds.select("x").batch(range(12))["x"])],
            lambda ds: [y in (None, i % 4) for i, y in enumerate(ds.labels["y"].tolist())],
            lambda ds: [RedisAppender.open(url, ds._reader.head).close() is None],
        ):
            found, error = outcome(lambda ask=ask: ask(CachedDataset.from_cache(url)))
            assert error is not None or all(found), key
            assert error is None or issubclass(error[0], EdcacheError), (key, error)
        server.raw.delete(key)
        server.raw.restore(key, 0, dumps[key])
        tally("redis: hostile values")

    for key in keys:
        for value in hostile:
            server.raw.delete(key)
            server.raw.rpush(key, value) if key == keys[1] else server.raw.set(key, value)
            check(key)
        for other in ("list", "set", "hash", "string"):
            server.raw.delete(key)
            if other == "list":
                server.raw.rpush(key, b"x", b"y")
            elif other == "set":
                server.raw.sadd(key, b"x")
            elif other == "hash":
                server.raw.hset(key, "a", b"x")
            else:
                server.raw.set(key, b"x")
            check(key)
    for _ in range(scaled(60)):
        place = rng.randrange(len(entries))
        flipped = bytearray(entries[place])
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        server.raw.lset(keys[1], place, bytes(flipped))
        check(keys[1])
        head = bytearray(server.raw.get(keys[2]))
        head[rng.randrange(900)] ^= 1 << rng.randrange(8)
        server.raw.set(keys[2], bytes(head))
        check(keys[2])
    assert is_whole(CachedDataset.from_cache(url), 12)
    assert not (tmp_path / "ran").exists()


def test_a_log_of_another_program_says_how_to_delete_it(server):
    url = server.url("digits")
    CachedDataset(Source(), url)
    server.raw.rpush(server.log("digits"), b"theirs")
    with pytest.raises(CorruptArchiveError, match="is none that edcache wrote; delete the cache: edcache rm"):
        CachedDataset.from_cache(url)
    server.raw.delete(server.log("digits"))
    server.raw.rpush("digits:head2", b"theirs")
    server.raw.rename("digits:head2", "digits:head")
    with pytest.raises(
        CorruptArchiveError, match="another program keeps something else under one of its keys"
    ):
        CachedDataset.from_cache(url)


def test_a_head_that_claims_a_trillion_samples_takes_no_memory(server):
    from edcache.format import spec as format

    url = server.url("digits")
    head = CachedDataset(Source(), url)._reader.head
    claimed = format.pack_head(type(head)(**{**head.__dict__, "length": 10**12}))
    server.raw.set("digits:head", claimed)
    server.raw.delete(server.log("digits"))
    ds = CachedDataset.from_cache(url)
    assert len(ds) == 10**12
    for ask in (lambda: ds.missing, lambda: ds.labels.table):
        with pytest.raises(EdcacheError, match="1,000,000,000,000 samples would take"):
            ask()


def test_a_schema_that_the_log_does_not_name_is_an_error(server):
    url = server.url("digits")
    CachedDataset(Given([{"a": 1}, {"a": 2}]), url)
    CachedDataset(Given([{"b": 1.5}, {"b": 2.5}]), server.url("other"))
    server.raw.set(server.record("digits", 1), server.raw.get(server.record("other", 1)))
    ds = CachedDataset.from_cache(url)
    with pytest.raises(CorruptRecordError, match="its schema 0x[0-9a-f]{16} is none of those in the log"):
        ds[1]
    with pytest.raises(CorruptRecordError, match="its schema"):
        ds.batch([0, 1])
