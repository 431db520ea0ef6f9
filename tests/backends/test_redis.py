"""A cache in Redis is the same dataset as one in a file: samples, labels, views, batches, who fills it."""

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor

import archives
import filled
import numpy as np
import pytest
import redis_server
import torch
from click.testing import CliRunner
from filled import available
from likeness import outcome, same
from scale import scaled, seeded
from torch.utils.data import DataLoader

import edcache
from edcache import CachedDataset, cli
from edcache.backends.redis.url import Server
from edcache.errors import (
    ArchiveClosedError,
    ArchiveNotFoundError,
    MissingDependencyError,
    MissingSampleError,
    OptionError,
    SampleFailedError,
    SampleIndexError,
    SourceError,
    StaleArchiveError,
    StaleCacheError,
    StorageError,
)
from edcache.samplers import ChunkShuffle
from edcache.writer.store import store_at

PASSWORD = "s3cret-word"
COUNT = 60


@pytest.fixture(scope="module")
def shared_server():
    server = redis_server.Server("--requirepass", PASSWORD)
    yield server
    server.close()


@pytest.fixture
def server(shared_server, monkeypatch):
    """A server with nothing in it, whose password is in the environment."""
    monkeypatch.setenv("EDCACHE_REDIS_PASSWORD", PASSWORD)
    shared_server.raw.flushall()
    return shared_server


def sample(i):
    return {"x": torch.full((3, 5), i, dtype=torch.int16), "y": i % 4, "name": f"n{i}", "z": np.arange(i % 3)}


class Source:
    """Says in a log what it computes; fails where it is told to."""

    def __init__(self, log=None, count=COUNT, fails=()):
        self.log, self.count, self.fails = log, count, fails

    def __edcache_fingerprint__(self):
        return {}  # one that fails is the same as one that was mended

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if self.log is not None:
            filled.note(self.log, i)
        if i in self.fails:
            raise ValueError(f"no sample {i}")
        return sample(i)


class Given:
    """Samples that are there."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


def is_whole(ds, count=COUNT):
    assert len(ds) == count
    assert ds.complete
    return all(same(ds[i], sample(i)) for i in range(count))


# --- the dataset ---


def test_it_is_filled_once_and_opened_without_its_source(server, log):
    url = server.url("digits")
    first = CachedDataset(Source(log), url, in_memory_keys=["y"])
    again = CachedDataset(Source(log), url, in_memory_keys=["y"])
    opened = CachedDataset.from_cache(url)
    assert filled.computed(log) == list(range(COUNT))
    assert is_whole(first)
    assert is_whole(again)
    assert is_whole(opened)
    assert opened.labels["y"].tolist() == [i % 4 for i in range(COUNT)]
    assert repr(opened) == f"CachedDataset('{url}', 60 samples, labels: y)"
    info = opened.info()
    assert (info["samples"], info["present"], info["sealed"], info["mapped"]) == (60, 60, True, 0)
    assert info["nbytes"] > 60 * 40
    assert info["private"] > 0
    with pytest.raises(SampleIndexError, match=r"index 60 not in \[-60, 60\)"):
        opened[60]


def test_all_keys_begin_with_the_prefix_and_none_expires(server):
    CachedDataset(Source(), server.url("digits"))
    keys = server.all_keys()
    assert len(keys) == COUNT + 2
    assert all(key.startswith("digits:") for key in keys)
    assert {server.raw.ttl(key) for key in keys} == {-1}


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_views_labels_and_batches_are_those_of_a_file_with_the_same_samples(
    server, tmp_path, compression, tally
):
    for number in range(scaled(4)):
        rng = seeded(f"redis {compression} {number}")
        alike = rng.random() < 0.5
        samples = [sample(rng.randrange(99)) if alike else archives.sample(rng) for _ in range(30)]
        options = {"in_memory_keys": ["y", "name"], "compression": compression, "chunk_size": 7}
        file = CachedDataset(Given(samples), tmp_path / f"{number}.zip", **options)
        there = CachedDataset(Given(samples), server.url(f"p{number}"), **options)
        assert there.labels.table.equals(file.labels.table)
        for _ in range(40):
            compare(rng, file, there)
            tally("redis: questions answered as by a file")


def compare(rng, file, there):
    chosen = rng.randrange(1 << 30)
    views = [make_view(chosen, ds) for ds in (file, there)]
    indices = [rng.randrange(len(views[0])) for _ in range(rng.randrange(1, 12))] if len(views[0]) else []
    asked = rng.choice([ask_samples, ask_batch, ask_collated, ask_labels, ask_field, ask_loader])
    one, other = (outcome(lambda view=view: asked(view, indices)) for view in views)
    if one[1] is None or other[1] is None:
        assert one[1] == other[1], asked
        assert same(one[0], other[0]), asked
    else:
        assert one[1][0] is other[1][0], (one, other)


def make_view(seed, ds):
    rng = seeded(f"view {seed}")
    for _ in range(rng.randrange(3)):
        way = rng.randrange(5)
        if way == 0:
            ds = ds.filter(y=[0, 1, 2])
        elif way == 1:
            ds = ds.shuffle(seed=seed)
        elif way == 2:
            ds = ds[rng.randrange(5) : rng.randrange(10, 25) : rng.randrange(1, 3)]
        elif way == 3:
            ds = ds.sort_by("y")
        else:
            ds = ds.repeat(2)
    return ds.select(*rng.choice([("x",), ("y", "x"), ("name",)])) if rng.random() < 0.3 else ds


def ask_samples(view, indices):
    return [view[index] for index in indices]


def ask_batch(view, indices):
    return list(view.__getitems__(indices))


def ask_collated(view, indices):
    return view.batch(indices)


def ask_labels(view, indices):
    return {name: view.labels[name] for name in view.labels}


def ask_field(view, indices):
    return view.select("y")[:]


def ask_loader(view, indices):
    return list(DataLoader(view, batch_size=8))


def test_what_a_loader_gives_is_what_the_samples_collate_to(server, tmp_path):
    source = Given([{"x": torch.full((40, 40), i, dtype=torch.uint8), "y": i} for i in range(50)])
    there = CachedDataset(source, server.url("digits"), in_memory_keys=["y"])
    file = CachedDataset(source, tmp_path / "a.zip", in_memory_keys=["y"])
    for one, other in zip(there.loader(16), file.loader(16), strict=True):
        assert same(one["x"], other["x"])
        assert same(one["y"], other["y"])


def test_a_batch_is_one_question_and_labels_are_none(server):
    CachedDataset(Given([{"x": i, "y": i % 3} for i in range(500)]), server.url("a"), in_memory_keys=["y"])
    ds = CachedDataset.from_cache(server.url("a"))
    assert ds[0]["x"] == 0
    before = server.calls("mget")
    assert ds.select("y")[:].tolist() == [i % 3 for i in range(500)]
    assert len(ds.filter(y=2)) == 166
    assert server.calls("mget") == before
    assert ds.batch(range(0, 500, 2))["x"].tolist() == list(range(0, 500, 2))
    assert server.calls("mget") == before + 1
    list(ds.__getitems__(list(range(40))))
    assert server.calls("mget") == before + 2


def test_a_batch_of_large_samples_is_asked_for_in_pieces(server):
    data = [np.full(1 << 20, i, np.uint8) for i in range(10)]
    ds = CachedDataset(Given(data), server.url("a"))
    before = server.calls("mget")
    assert torch.equal(ds.batch(range(10))[:, 0], torch.arange(10, dtype=torch.uint8))
    assert server.calls("mget") == before + 3


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_of_a_dataloader_read_it_with_the_password_of_the_url(shared_server, monkeypatch, context):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD", raising=False)
    shared_server.raw.flushall()
    url = shared_server.url("digits", f":{PASSWORD}@")
    ds = CachedDataset(Source(), url, in_memory_keys=["y"]).select("x", "y")
    assert ds[7]["y"] == 3
    loader = DataLoader(ds, batch_size=16, num_workers=1, multiprocessing_context=context)
    assert torch.cat([batch["y"] for batch in loader]).tolist() == [i % 4 for i in range(COUNT)]


def test_zero_copy_and_decoded_samples_are_the_same(server):
    CachedDataset(Source(), server.url("digits"))
    ds = CachedDataset.from_cache(server.url("digits"), zero_copy=True)
    assert is_whole(ds)
    assert not ds[5]["z"].flags.writeable


def test_a_lazy_cache_computes_what_is_asked_for_once(server, log):
    ds = CachedDataset(Source(log), server.url("digits"), in_memory_keys=["y"], lazy=True)
    assert filled.computed(log) == []
    assert same(ds[3], sample(3))
    assert same(ds[3], sample(3))
    assert [s["name"] for s in ds[:10]] == [f"n{i}" for i in range(10)]
    ds.close()
    assert filled.computed(log) == list(range(10))
    other = CachedDataset.from_cache(server.url("digits"))
    assert other.missing.tolist() == list(range(10, COUNT))
    assert not other.complete
    assert len(available(other)) == 10
    assert other.labels["y"][:3].tolist() == [0, 1, 2]
    with pytest.raises(MissingSampleError, match=r"sample 10 has no record yet \(10 of 60 have\)"):
        other[10]
    again = CachedDataset(Source(log), server.url("digits"), in_memory_keys=["y"])
    assert is_whole(again)
    assert filled.computed(log) == list(range(COUNT))
    assert other.refresh()
    assert is_whole(other)
    assert not other.refresh()


def test_workers_of_a_lazy_cache_keep_what_they_compute(server, log):
    ds = CachedDataset(Source(log), server.url("digits"), lazy=True)
    loader = DataLoader(ds, batch_size=10, num_workers=2, multiprocessing_context="fork", collate_fn=list)
    assert all(same(s, sample(i)) for i, s in enumerate(s for batch in loader for s in batch))
    assert filled.computed(log) == list(range(COUNT))
    ds.refresh()
    assert is_whole(ds)


def test_a_source_that_grew_adds_the_rest(server, log):
    CachedDataset(Source(log, 40), server.url("digits"))
    with pytest.raises(StaleCacheError, match=r"begun for 40 samples, the source has 60 now; grow=True adds"):
        CachedDataset(Source(log), server.url("digits"))
    assert is_whole(CachedDataset(Source(log), server.url("digits"), grow=True))
    assert is_whole(CachedDataset.from_cache(server.url("digits")))
    assert filled.computed(log) == list(range(COUNT))


def test_samples_that_fail_are_recorded_and_tried_again(server):
    with pytest.raises(SourceError, match="raised at index 5"):
        CachedDataset(Source(fails=[5]), server.url("digits"))
    ds = CachedDataset(Source(fails=[5]), server.url("digits"), on_error="skip")
    assert [(failure.index, failure.error) for failure in ds.errors] == [(5, "ValueError")]
    assert ds.missing.tolist() == [5]
    with pytest.raises(SampleFailedError, match="sample 5 failed when it was made, a later fill tries again"):
        ds[5]
    assert is_whole(CachedDataset(Source(), server.url("digits")))


def test_workers_fill_it_together(server, log):
    ds = CachedDataset(
        Source(log), server.url("digits"), num_workers=2, multiprocessing_context="fork", in_memory_keys=["y"]
    )
    assert is_whole(ds)
    assert filled.computed(log) == list(range(COUNT))


def test_an_executor_fills_it(server, log):
    with ProcessPoolExecutor(1) as executor:
        ds = CachedDataset(Source(log), server.url("digits"), executor=executor, compression="zstd")
    assert is_whole(ds)
    assert filled.computed(log) == list(range(COUNT))


@edcache.cachable("made below", in_memory_keys=["y"])
def digits(log, split="train", fails=()):
    return Source(log, fails=fails)


def test_a_decorated_factory_keeps_its_datasets_there(server, log):
    factory = edcache.cachable(server.url("digits-{split}"), in_memory_keys=["y"])(digits.uncached)
    assert is_whole(factory(str(log)))
    assert is_whole(factory(str(log)))
    assert filled.computed(log) == list(range(COUNT))
    assert factory.cache_path("x", "a+b c") == server.url("digits-a%2Bb_c")
    with pytest.raises(StaleCacheError, match="argument log: .* in the archive, .* now"):
        factory("elsewhere")


def test_without_a_prefix_one_is_made_of_the_call(server, log):
    factory = edcache.cachable(server.url())(digits.uncached)
    one, other = factory(str(log)), factory(str(log), "val")
    assert one.path != other.path
    assert one.path == factory.cache_path(str(log))
    assert one.path.startswith(server.url() + "?prefix=edcache:")
    bare = CachedDataset(Source(), server.url())
    assert is_whole(bare)
    assert is_whole(CachedDataset.from_cache(bare.path))
    with pytest.raises(OptionError, match="names no prefix; all keys of a cache begin with it: append"):
        CachedDataset.from_cache(server.url())


# --- whose cache it is ---


class Another(Source):
    pass


def test_another_source_under_the_same_prefix_is_refused_and_shown(server):
    url = server.url("digits")
    CachedDataset(Source(), url)
    for lazy in (False, True):
        with pytest.raises(StaleCacheError) as caught:
            CachedDataset(Another(), url, lazy=lazy)
        lines = str(caught.value).splitlines()
        assert lines[0] == f"{url}: made by another source:"
        assert lines[1] == "  type: 'test_redis:Source' in the archive, 'test_redis:Another' now"
    assert is_whole(CachedDataset(Source(), url))


def test_those_who_create_at_once_end_up_with_one_cache(server, log):
    found = []

    def create():
        found.append(CachedDataset(Source(log), server.url("digits"), compression="zstd"))

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({ds._reader.head.uuid for ds in found}) == 1
    assert all(map(is_whole, found))
    assert filled.computed(log) == list(range(COUNT))


def test_of_two_sources_that_create_at_once_one_is_refused(server):
    from edcache.labels.label_spec import LabelSpec
    from edcache.writer.cache import new_head
    from edcache.writer.fingerprint import source_fingerprint
    from edcache.writer.job import Job

    def job(source):
        spec = LabelSpec.parse(None)
        head = new_head(spec, length=COUNT, fingerprint=source_fingerprint(source))
        return Job(source, server.url("digits"), head, spec)

    # Both have looked, and found nothing.
    job(Source()).open().close()
    with pytest.raises(StaleCacheError, match="test_redis:Source' in the archive, '.*:Another' now"):
        job(Another()).open()


def test_built_anew_the_old_samples_go_and_their_readers_say_so(server, log):
    url = server.url("digits")
    CachedDataset(Source(), url)
    old, pickled = CachedDataset.from_cache(url), pickle.dumps(CachedDataset.from_cache(url))
    ds = CachedDataset(Another(log), url, keep_existing=False)
    assert filled.computed(log) == list(range(COUNT))
    assert is_whole(ds)
    assert len(server.all_keys()) == COUNT + 2
    another = "another cache is under this prefix now than the one that was opened; open it again"
    with pytest.raises(StaleArchiveError, match=another):
        old[3]
    with pytest.raises(StaleArchiveError, match=another):
        old.refresh()
    with pytest.raises(StaleArchiveError, match=another):
        pickle.loads(pickled)[3]
    assert is_whole(CachedDataset(Another(log), url))


def test_of_those_who_build_anew_at_once_one_does_and_the_others_join_it(server):
    from edcache.backends.redis.appender import RedisAppender

    url = server.url("digits")
    first = CachedDataset(Source(), url)._reader.head.uuid
    head = CachedDataset(Source(), url, keep_existing=False)._reader.head
    assert head.uuid != first
    filling = RedisAppender.open(url, head)
    filling.claims.join_fillers()
    store_at(url).begin_anew(type(head)(**{**head.__dict__, "uuid": bytes(range(16))}))
    assert CachedDataset.from_cache(url)._reader.head.uuid == head.uuid
    filling.close()
    store_at(url).begin_anew(type(head)(**{**head.__dict__, "uuid": bytes(range(16))}))
    assert CachedDataset.from_cache(url)._reader.head.uuid == bytes(range(16))
    assert server.all_keys() == ["digits:head"]


def test_samplers_know_with_which_publication_a_sample_came(server):
    ds = CachedDataset(Source(), server.url("digits"), chunk_size=10)
    assert ds._reader.chunk_of(np.array([0, 9, 10, 59])).tolist() == [0, 0, 1, 5]
    order = list(ChunkShuffle(ds, buffer=2, seed=1))
    assert sorted(order) == list(range(COUNT))
    lazy = CachedDataset(Source(), server.url("lazy"), lazy=True)
    assert lazy._reader.chunk_of(np.array([3])).tolist() == [-1]
    lazy.close()


def test_another_prefix_that_begins_alike_is_another_cache(server):
    prefixes = ["a", "a:record", "a*", "a[b]?", "a:b\\c"]
    for k, prefix in enumerate(prefixes):
        CachedDataset(Source(count=10 + k), server.url(prefix))
    server.raw.set("a:users", b"theirs")
    server.raw.set("a:0123456789ab:record:x", b"theirs")
    server.raw.set(b"a:\xff\xfe", b"theirs")
    for k, prefix in enumerate(prefixes):
        assert is_whole(CachedDataset.from_cache(server.url(prefix)), 10 + k)
    for k, prefix in enumerate(prefixes):
        assert store_at(server.url(prefix)).delete() == {"key": 12 + k, "record": 10 + k}
        for other, left in enumerate(prefixes[k + 1 :], k + 1):
            assert is_whole(CachedDataset.from_cache(server.url(left)), 10 + other)
    left = set(server.raw.scan_iter())
    assert left == {b"a:users", b"a:0123456789ab:record:x", b"a:\xff\xfe"}


def test_what_is_written_expires_after_its_ttl_and_head_and_log_no_sooner(server):
    CachedDataset(Source(count=10), server.url("a", ttl=900), chunk_size=3)
    assert all(880_000 < server.raw.pttl(key) <= 900_000 for key in server.all_keys())
    lasting = min(server.raw.pttl(key) for key in server.all_keys() if ":record:" not in key)
    assert lasting >= max(server.raw.pttl(key) for key in server.records("a"))
    # One without takes it from what tells of its records.
    CachedDataset(Source(count=12), server.url("a"), grow=True)
    assert {server.raw.ttl(key) for key in server.all_keys() if ":record:" not in key} == {-1}
    assert sum(server.raw.ttl(key) == -1 for key in server.records("a")) == 2


# --- credentials ---


def test_a_password_is_in_nothing_that_is_shown_or_pickled(server, monkeypatch):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD")
    url = server.url("digits", f"someone:{PASSWORD}@")
    server.raw.acl_setuser(
        "someone", enabled=True, passwords=[f"+{PASSWORD}"], categories=["+@all"], keys=["*"]
    )
    ds = CachedDataset(Source(), url, lazy=True)
    assert same(ds[3], sample(3))
    shown = [
        repr(ds),
        repr(ds._reader),
        str(ds.info()),
        repr(ds[:3]),
        repr(ds._reader.path),
        str(ds._building.job),
    ]
    shown += [str(outcome(lambda: CachedDataset(Another(), url))[1]), str(outcome(lambda: ds[99])[1])]
    for text in shown:
        assert PASSWORD not in text
        assert "someone" not in text
    for pickled in (pickle.dumps(ds), pickle.dumps(ds[:5]), pickle.dumps(ds._reader)):
        assert PASSWORD.encode() not in pickled
    ds.close()
    # Another program has its own.
    copy = pickle.loads(pickle.dumps(CachedDataset.from_cache(url)))
    with pytest.raises(
        StorageError, match="the server refuses this user: .*EDCACHE_REDIS_PASSWORD"
    ) as caught:
        copy[3]
    assert PASSWORD not in str(caught.value)
    monkeypatch.setenv("EDCACHE_REDIS_PASSWORD", PASSWORD)
    assert same(copy[3], sample(3))
    server.raw.acl_deluser("someone")


@pytest.mark.full
def test_a_wrong_password_is_one_clear_error(server, monkeypatch):
    monkeypatch.delenv("EDCACHE_REDIS_PASSWORD")
    for credentials in ("", ":wr0ng@"):
        with pytest.raises(StorageError, match="the server refuses this user") as caught:
            CachedDataset(Source(), server.url("digits", credentials))
        assert "wr0ng" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{PASSWORD}@h:1/0?prefix=a",
        f"rediss://u:{PASSWORD}@h/0?prefix=a",
        f"unix://:{PASSWORD}@/run/r.sock?db=1&prefix=a",
        f"unix:///run/r.sock?password={PASSWORD}&prefix=a",
        f"redis://h/0?username=u&password={PASSWORD}&prefix=a",
    ],
)
def test_a_server_is_its_url_without_credentials(url):
    server = Server.of(url)
    assert dict(server.secrets)["password"] == PASSWORD
    assert server.prefix == "a"
    assert PASSWORD not in server
    assert PASSWORD not in server.client_url
    assert "prefix" not in server.client_url
    assert Server.of(server) is server
    assert pickle.loads(pickle.dumps(server)).secrets == ()
    assert server.with_prefix("b").secrets == server.secrets
    assert server.with_prefix("b").prefix == "b"


def test_of_a_query_nothing_passes_for_credentials():
    server = Server.of(f"redis://:{PASSWORD}@h/0?prefix=a://b@c")
    assert server.prefix == "a://b@c"
    assert dict(server.secrets) == {"password": PASSWORD}


@pytest.mark.parametrize(
    "bad", ["redis://:s3#cr3t@h/0", "redis://:s3/cr3t@h/0", "redis://:s3?cr3t@h/0", "redis://:1/cr3t@h"]
)
def test_a_url_whose_password_is_not_encoded_is_refused_and_not_shown(bad):
    with pytest.raises(OptionError, match="percent-encode what is not a letter or a digit") as caught:
        CachedDataset.from_cache(f"{bad}?prefix=x")
    assert "s3" not in str(caught.value)
    assert "cr3t" not in str(caught.value)


@pytest.mark.full
def test_tls_is_spoken_where_the_url_says_so(tmp_path):
    import socket

    key, cert = tmp_path / "k.pem", tmp_path / "c.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run([*made, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl here, to make a certificate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = ["--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert)]
    clients = ["--tls-auth-clients", "no", "--requirepass", PASSWORD, "--bind", "127.0.0.1"]
    server = redis_server.Server("--tls-port", str(port), *files, *clients)
    try:
        url = f"rediss://:{PASSWORD}@localhost:{port}/0?ssl_ca_certs={cert}&prefix=digits"
        assert is_whole(CachedDataset(Source(), url))
        with pytest.raises(StorageError, match="the server does not answer: .*certificate"):
            CachedDataset(Source(), f"rediss://:{PASSWORD}@localhost:{port}/0?prefix=digits")
    finally:
        server.close()


# --- what is refused, and the command line ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compression": "zstd+dict"}, 'records in Redis take "zstd" or "zstd:LEVEL", a dictionary might be'),
        ({"sync": "chunk"}, "sync='chunk'; what a server keeps when it ends, its configuration says"),
        ({"io": "pread"}, "io= is for an archive that is a file"),
        (
            {"lazy": True, "max_bytes": 0.5},
            "max_bytes=0.5 is a part of a disk; for a cache in Redis give byt",
        ),
        ({"codec": "pickle"}, 'codec="pickle" also needs allow_pickle=True'),
    ],
)
def test_options_that_make_no_sense_there_are_refused(server, options, text):
    with pytest.raises(OptionError, match=text):
        CachedDataset(Source(), server.url("digits"), **options)
    assert server.all_keys() == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("?prefix=a%20b", "prefix='a b'; give 1 to 200 characters, and no spaces among them"),
        ("?prefix=a&ttl=soon", "ttl=soon; give seconds above 0"),
        ("?prefix=a&claim_seconds=0", "claim_seconds=0; give seconds above 0"),
        ("?prefix=a&prefix=b", "one of prefix, ttl, claim_seconds is given twice"),
        ("?prefix=a&db=x", "redis-py does not take this URL: .*db"),
    ],
)
def test_a_url_with_options_that_are_none_is_refused(more, text):
    with pytest.raises(OptionError, match=text):
        CachedDataset.from_cache(f"unix:///nowhere.sock{more}")


def test_what_takes_a_file_refuses_a_url(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = server.url("digits", f":{PASSWORD}@")
    ds = CachedDataset(Source(), url)
    refused = [
        lambda: edcache.CacheWriter(url),
        lambda: edcache.CacheWriter(url, "a"),
        lambda: edcache.CacheWriter(url, "w"),
        lambda: edcache.reader.Reader(url).head,
        lambda: edcache.verify(url),
        lambda: edcache.compact(url),
        lambda: edcache.repair(url, tmp_path / "b.zip"),
        lambda: edcache.digest(url),
        lambda: CachedDataset.from_cache(url, expected_digest="sha256:" + "0" * 64),
        lambda: CachedDataset((sample(i) for i in range(3)), url),
        lambda: ds.add_labels("new", np.arange(COUNT)),
        lambda: ds.drop_labels("y"),
    ]
    for call in refused:
        with pytest.raises(OptionError) as caught:
            call()
        assert PASSWORD not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_samples_of_any_type_are_stored_with_the_pickle_codec_where_it_is_allowed(server):
    source = Given([{1, i} for i in range(5)])
    url = server.url("sets")
    assert CachedDataset(source, url, codec="pickle", allow_pickle=True)[3] == {1, 3}
    with pytest.raises(edcache.errors.PickleRefusedError):
        CachedDataset.from_cache(url)[3]


def test_a_closed_dataset_and_an_empty_prefix_say_so(server):
    with pytest.raises(ArchiveNotFoundError, match="no cache under this prefix; check the URL, or build"):
        CachedDataset.from_cache(server.url("digits"))
    ds = CachedDataset(Source(), server.url("digits"))
    ds.close()
    with pytest.raises(ArchiveClosedError, match="closed; open it again to read"):
        ds[0]


@pytest.mark.full
def test_without_the_library_the_extra_is_named():
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "import edcache\n"
        "try: edcache.CachedDataset.from_cache('redis://h/0?prefix=a')\n"
        "except edcache.errors.MissingDependencyError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (
        "redis://h/0?prefix=a: a cache in Redis needs redis-py; install it with: pip install edcache[redis]"
    )
    assert issubclass(MissingDependencyError, ImportError)


def run(*arguments, code=0):
    done = CliRunner().invoke(cli.main, list(arguments))
    assert done.exit_code == code, done.output
    assert PASSWORD not in done.output
    return done.output


def test_the_command_line_looks_into_it_and_deletes_it(server):
    url, shown = server.url("digits", f":{PASSWORD}@"), server.url("digits")
    CachedDataset(Source(), url, in_memory_keys=["y"])
    server.raw.set("digits:users", b"theirs")
    assert "60" in run("info", url)
    assert shown in run("info", url, "--json")
    assert "n7" in run("show", url, "7")
    assert shown in run("show", url, "7", "--json")
    assert run("ls", url).count("\n") == 61
    assert "15" in run("labels", url, "--count", "y")
    for command in (["verify", url], ["compact", url], ["why", url], ["info", "--digest", url]):
        assert "this takes an archive that is a file" in run(*command, code=1)
    assert "this takes an archive that is a file" in run("repair", url, "-o", "new.zip", code=2)
    assert run("rm", url) == f"{shown}: deleted, 62 keys, 60 records among them\n"
    assert server.all_keys() == ["digits:users"]
    assert "no cache under this prefix" in run("rm", url, code=1)


def test_a_cache_that_is_being_filled_is_not_deleted_unless_forced(server):
    from edcache.backends.redis.appender import RedisAppender

    ds = CachedDataset(Source(), server.url("digits"))
    filling = RedisAppender.open(server.url("digits"), ds._reader.head)
    assert filling.claims.join_fillers()
    assert filling.claims.join_fillers()
    assert not filling.claims.has_fillers
    other = RedisAppender.open(server.url("digits"), ds._reader.head)
    assert not other.claims.join_fillers()
    other.close()
    assert "another process is filling it; wait for it to end, or pass --force" in run(
        "rm", server.url("digits"), code=1
    )
    assert len(server.records("digits")) == COUNT
    run("rm", "--force", server.url("digits"))
    filling.close()
    assert server.all_keys() == []


# --- beside files, and objects behind URLs ---


def test_several_caches_are_opened_as_one_beside_archives_in_files(server, tmp_path):
    urls = [server.url(prefix, f":{PASSWORD}@") for prefix in ("a", "b")]
    file = str(tmp_path / "c.zip")
    for path, count in zip([*urls, file], (COUNT, 10, 7), strict=True):
        CachedDataset(Source(count=count), path, in_memory_keys=["y"])
    ds = CachedDataset.from_cache([urls[0], file, urls[1]])
    expected = [*range(COUNT), *range(7), *range(10)]
    assert all(same(ds[k], sample(i)) for k, i in enumerate(expected))
    assert ds.labels["y"].tolist() == [i % 4 for i in expected]
    assert ds.select("x").batch([1, COUNT + 2, COUNT + 9])["x"][:, 0, 0].tolist() == [1, 2, 2]
    assert [part.path for part in ds.parts] == [server.url("a"), file, server.url("b")]
    assert not ds.refresh()
    server.lose("b", 3)
    assert ds.parts[2].missing.tolist() == [3]
    assert ds.missing.tolist() == [COUNT + 7 + 3]
    with pytest.raises(OptionError, match="prefix=a: named twice") as caught:
        CachedDataset.from_cache([urls[0], urls[0]])
    assert PASSWORD not in str(caught.value)


def test_it_is_exported(server, tmp_path):
    from edcache.interop.export import export

    CachedDataset(Source(), server.url("digits"))
    export(CachedDataset.from_cache(server.url("digits")).select("x", "y")[:], tmp_path / "a.npz", "npz")
    with np.load(tmp_path / "a.npz") as found:
        assert found["y"].tolist() == [i % 4 for i in range(COUNT)]
        assert np.array_equal(found["x"][:, 0, 0], np.arange(COUNT))


@pytest.mark.parametrize("url", ["redis://h/0?prefix=a", "rediss://h:1/0", "unix:///run/r.sock?prefix=a"])
def test_the_url_of_a_server_is_neither_an_object_nor_a_glob(url):
    from edcache.dataset.archive_paths import expand_paths
    from edcache.storage.registry import located, shown

    assert expand_paths(url) is None
    assert type(located(url).path) is Server
    assert shown(url.replace("://", f"://:{PASSWORD}@")) == url


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("preload", "shm"),
        ("local", "folder"),
        ("max_bytes", 10),
        ("io", "pread"),
        ("expected_digest", "sha256:" + "0" * 64),
    ],
)
def test_what_is_for_files_is_refused_by_name(server, option, value):
    with pytest.raises(OptionError, match=f"prefix=digits: {option}= is for an archive that is a file"):
        CachedDataset.from_cache(server.url("digits"), **{option: value})


def test_options_of_a_storage_are_not_for_a_server(server):
    with pytest.raises(
        OptionError, match="prefix=a: storage_options are for URLs, and this is a URL of a Re"
    ):
        CachedDataset.from_cache(server.url("a", f":{PASSWORD}@"), storage_options={"key": 1})


def test_what_takes_files_refuses_a_server_and_shows_no_password(server, tmp_path):
    from edcache import tools

    url, file, out = server.url("a", f":{PASSWORD}@"), str(tmp_path / "f.zip"), str(tmp_path / "out")
    CachedDataset(Source(), url)
    CachedDataset(Source(), file)
    calls = {
        "open": lambda: len(edcache.reader.Reader(url)),
        "write": lambda: edcache.CacheWriter(url),
        "verify": lambda: tools.verify(url),
        "digest": lambda: tools.digest(url),
        "compact": lambda: tools.compact(url),
        "compact to": lambda: tools.compact(file, url),
        "repair": lambda: tools.repair(url, out),
        "merge": lambda: tools.merge([file, url], out),
        "merge to": lambda: tools.merge([file], url),
        "split": lambda: tools.split(url, out, parts=2),
        "split to": lambda: tools.split(file, url, parts=2),
        "copy": lambda: edcache.copy_to_local(url, out),
        "copy to": lambda: edcache.copy_to_local(file, url),
        "import": lambda: edcache.import_cache(url, out),
    }
    for name, call in calls.items():
        _, (kind, text) = outcome(call)
        assert kind is OptionError, (name, text)
        assert "this takes an archive that is a file; of a cache in Redis there are" in text, name
        assert PASSWORD not in text, name
    assert [path.name for path in tmp_path.iterdir()] == ["f.zip"]
