"""Archives behind URLs: the same samples, by few requests for few bytes, of one state of the object."""

import copy
import functools
import pickle
import subprocess
import sys
import traceback
from itertools import pairwise
from multiprocessing import context
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from cli_runner import error_of, run
from damage import flipped
from far import picture, pictures
from filled import available
from hypothesis import given, settings
from hypothesis import strategies as st
from likeness import outcome, same
from optional import need, needs
from range_server import serving
from torch.utils.data import DataLoader, default_collate
from written import write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.backends import RedisDataset, Url
from edcache.backends.remote import requests
from edcache.backends.remote.object import RemoteObject, runs_of
from edcache.base import PerProcess
from edcache.dataset.indexing import batch_of
from edcache.errors import (
    ArchiveNotFoundError,
    CorruptArchiveError,
    CorruptRecordError,
    EdcacheError,
    MissingDependencyError,
    OptionError,
    StaleArchiveError,
    StorageError,
)
from edcache.format import BLOCK_NBYTES, behind_nbytes
from edcache.reader import Projection, Reader, planned

from_cache = functools.partial(CachedDataset.from_cache, local=False)
COUNT = 1500
SECRET = "s3cr3t-t0ken"
GOLDEN = sorted((Path(__file__).parents[1] / "conformance" / "golden").glob("*.zip"))


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "a.zip"
    pictures(path, COUNT)
    return path


@pytest.fixture
def served(local):
    with serving(local.read_bytes()) as served:
        yield served


def opened(served, **options):
    ds = from_cache(served.url, **options)
    served.forget()
    return ds


# --- how many requests, how many bytes --------------------------------------------------------------


def test_a_server_that_knows_no_range_from_the_end_takes_one_request_more(served):
    def refuse(handler, start, end):
        is_from_end = handler.headers["Range"].startswith("bytes=-")
        if is_from_end:
            handler.say(416, {"Content-Range": f"bytes */{len(served.data)}"}, b"")
        return is_from_end

    served.faults.append(refuse)
    assert same(from_cache(served.url)[77], picture(77))
    assert len(served.requests) == 3 + 1


def test_an_end_of_another_state_is_not_taken(served):
    def other(handler, start, end):
        is_from_end = handler.headers["Range"].startswith("bytes=-")
        if is_from_end:
            handler.answer(start, end, headers={"ETag": '"v0"'}, body=bytes(end - start))
        return is_from_end

    served.faults.append(other)
    assert same(from_cache(served.url)[77], picture(77))


def test_an_archive_of_many_samples_opens_by_two(tmp_path):
    with CacheWriter(tmp_path / "a.zip", in_memory_keys=["n"]) as writer:
        for first in range(0, 200_000, 50_000):
            writer.extend_columns({"n": np.arange(first, first + 50_000)})
    with serving((tmp_path / "a.zip").read_bytes()) as served:
        ds = from_cache(served.url)
        assert len(ds) == 200_000
        assert len(served.requests) == 2
        assert served.sent < 4096 + (1 << 16) + 10_000
        assert ds[199_999] == {"n": 199_999}


def test_labels_take_one_more_request_at_their_first_use(tmp_path):
    def text(k):
        return {"label": f"{k:0200}"}

    with serving(pictures(tmp_path / "a.zip", COUNT, text)) as served:
        ds = opened(served)
        assert ds.labels["label"][3] == f"{3:0200}"
        assert len(served.requests) == 1
        assert len(ds.filter(label=f"{7:0200}")) == 1
        assert len(served.requests) == 1


def test_one_sample_is_one_request_for_its_bytes(served):
    ds = opened(served)
    assert same(ds[77], picture(77))
    assert len(served.requests) == 1
    assert served.sent == ds._archive.reader.session.index.all_rows()["nbytes"][77]


def test_a_batch_is_one_concurrent_fetch(served):
    ds = opened(served)
    served.delay = 0.05
    indices = np.arange(0, COUNT, 40)[::-1].copy()
    assert same(ds.batch(indices), default_collate([picture(k) for k in indices.tolist()]))
    assert len(served.requests) == len(indices)
    assert served.most_in_flight > 8
    assert served.sent == ds._archive.reader.session.index.all_rows()["nbytes"][indices].sum()


def test_neighbours_come_by_one_request(served):
    ds = opened(served)
    assert ds.batch(range(100, 150))["label"].tolist() == list(range(100, 150))
    assert len(served.requests) == 1


def test_every_way_to_read_many_samples_is_one_fetch(served):
    ds = opened(served)
    indices = list(range(0, COUNT, 50))
    for read in (
        lambda: list(ds.__getitems__(indices)),
        lambda: list(ds.select("image").__getitems__(indices)),
        lambda: list(ds.with_transform(lambda s: s).__getitems__(indices)),
        lambda: edcache.collate()([batch_of(ds, indices)]),
        lambda: next(iter(DataLoader(ds, len(indices), sampler=indices))),
        lambda: next(iter(ds.loader(len(indices), sampler=indices))),
    ):
        served.forget()
        read()
        assert 0 < len(served.requests) <= len(indices)


def test_samples_of_many_structures_are_one_fetch(tmp_path):
    def mixed(k):
        return {"label": k, "text": "x" * 9000, f"only{k % 3}": k}

    with serving(pictures(tmp_path / "a.zip", 90, mixed)) as served:
        ds = opened(served)
        served.delay = 0.05
        indices = list(range(0, 90, 10))
        assert same(list(ds.__getitems__(indices)), [mixed(k) for k in indices])
        assert served.most_in_flight > 3
        assert len(served.requests) <= len(indices)


def wide(k):
    return {
        "image": torch.full((1 << 20,), k % 256, dtype=torch.uint8),
        "small": torch.tensor([k] * 3),
        "label": k,
    }


def test_a_projection_fetches_its_blocks_alone(tmp_path):
    with serving(pictures(tmp_path / "a.zip", 8, wide, chunk_size=4)) as served:
        ds = opened(served)
        assert same(ds.select("small")[5], {"small": torch.tensor([5] * 3)})
        assert served.sent <= 3 * BLOCK_NBYTES
        served.forget()
        found = ds.select("small").batch([6, 1, 7])
        assert found["small"].tolist() == [[6] * 3, [1] * 3, [7] * 3]
        assert served.sent <= 9 * BLOCK_NBYTES
        served.forget()
        listed = list(ds.select("small", "label").__getitems__([0, 7]))
        assert [s["small"].tolist() for s in listed] == [[0] * 3, [7] * 3]
        assert served.sent <= 4 * BLOCK_NBYTES
        assert same(ds[5], wide(5))


def test_a_field_without_bytes_is_read(tmp_path):
    def hollow(k):
        return wide(k) | {"none": torch.zeros(0)}

    with serving(pictures(tmp_path / "a.zip", 3, hollow)) as served:
        ds = opened(served)
        assert same(ds.select("none")[1], {"none": torch.zeros(0)})
        assert ds.select("none").batch([0, 2])["none"].shape == (2, 0)


@pytest.mark.parametrize("verify", ["touch", "always", "never"])
def test_a_damaged_block_is_never_read(tmp_path, verify):
    path = tmp_path / "a.zip"
    data = pictures(path, 4, wide, chunk_size=4)
    reader = Reader(path)
    start, nbytes = (
        int(reader.session.index.all_rows()["offset"][2]),
        int(reader.session.index.all_rows()["nbytes"][2]),
    )
    low, _ = planned(Projection(("small",), False), reader.session.decoder(0, 2)).wanted
    data = flipped(data, start + low)
    assert nbytes > BLOCK_NBYTES
    with serving(data) as served:
        ds = from_cache(served.url, verify=verify)
        assert same(ds.select("small")[1], {"small": torch.tensor([1] * 3)})
        assert same(ds.select("small").batch([0, 3])["small"], torch.tensor([[0] * 3, [3] * 3]))
        for read in (lambda: ds.select("small")[2], lambda: ds.select("small").batch([1, 2]), lambda: ds[2]):
            if verify == "never":
                read()
            else:
                with pytest.raises(
                    CorruptRecordError, match=f"a.zip: record 2 at offset {start:,}: it fails its crc32"
                ):
                    read()


def test_an_unsealed_archive_takes_one_request_a_chunk(tmp_path):
    with CacheWriter(tmp_path / "a.zip", chunk_size=10, in_memory_keys=["label"]) as w:
        for k in range(40):
            w.append(picture(k))
        w.flush()
        data = (tmp_path / "a.zip").read_bytes()
    with serving(data) as served:
        ds = from_cache(served.url, allow_partial=True)
        assert len(ds) == 40
        assert len(served.requests) <= 4 + 3
        assert same(list(ds.__getitems__([39, 2])), [picture(39), picture(2)])


# --- the same as from a file ------------------------------------------------------------------------


@pytest.fixture
def in_memory():
    """Puts bytes where memory:// finds them."""
    system = fsspec.filesystem("memory")

    def put(data):
        system.pipe_file("/bucket/a.zip", data)
        return "memory://bucket/a.zip"

    yield put
    system.store.clear()


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_golden_archives_read_the_same_behind_a_url(golden, in_memory):
    url = in_memory(golden.read_bytes())
    opened = [
        outcome(lambda p=p: from_cache(p, allow_pickle=True, allow_partial=True)) for p in (golden, url)
    ]
    (here, refused), (there, refused_there) = opened
    if refused is not None:
        assert golden.stem.startswith("v3-later-")
        assert refused[0] is refused_there[0] is edcache.errors.LaterReleaseError
        assert refused[1].replace(str(golden), url) == refused_there[1]
        return
    assert len(here) == len(there)
    for read in (
        lambda ds: [
            outcome(lambda k=k: bytes(ds._archive.reader.session.fetch(k)[0]))[0] for k in range(len(ds))
        ],
        lambda ds: available(ds).batch(range(len(available(ds)))),
        lambda ds: ds.labels.table.to_pydict(),
        lambda ds: edcache.verify(ds.path).problems,
        lambda ds: edcache.digest(ds.path),
    ):
        found, wanted = outcome(lambda read=read: read(there)), outcome(lambda read=read: read(here))
        assert same(found[0], wanted[0])
        assert (found[1] or [None])[0] is (wanted[1] or [None])[0]


def test_a_published_digest_is_checked(served, local):
    digest = edcache.digest(local)
    assert from_cache(served.url, expected_digest=digest)[3]["label"] == 3
    with pytest.raises(edcache.errors.ArchiveError):
        from_cache(served.url, expected_digest="0" * 64)


extents = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 18)), max_size=20)


@settings(max_examples=60)
@given(extents)
def test_runs_cover_extents_and_little_between_them(extents):
    runs = runs_of(extents)
    assert all(before < after for (_, before), (after, _) in pairwise(runs))
    wanted = np.zeros(2 << 20, bool)
    for offset, nbytes in extents:
        wanted[offset : offset + nbytes] = True
    read = sum(end - start for start, end in runs)
    assert read <= 1.125 * wanted.sum() + 512 * len(extents)
    for offset, nbytes in extents:
        assert not nbytes or any(start <= offset and offset + nbytes <= end for start, end in runs)
    starts, ends = {e[0] for e in extents}, {sum(e) for e in extents}
    assert all(start in starts and end in ends for start, end in runs)


def test_what_was_fetched_ahead_is_kept_also_if_a_request_fails(served):
    file = RemoteObject(Url(served.url, {"request_tries": 1}))
    assert file.pread(1_000_000, 10) == served.data[1_000_000:1_000_010]
    served.faults = [lambda handler, start, end: (handler.say(403, {}, b""), True)[1]]
    with pytest.raises(StorageError):
        file.pread(2_000_000, 10)
    served.forget()
    for offset in (1_000_010, 1_065_526):
        assert file.pread(offset, 10) == served.data[offset : offset + 10]
    assert not served.requests
    served.faults = []
    for offset in (*range(0, 2_000_000, 400_000), *range(0, len(served.data), 10_000)):
        assert file.pread(offset, 400_000) == served.data[offset : offset + 400_000]
        file.pread(offset, 10)
    assert sum(len(window.data) for window in file._windows) < 1.1 * len(served.data)


def test_a_record_of_many_parts_is_whole(tmp_path):
    def large(k):
        return {
            "image": torch.from_numpy(np.random.default_rng(k).integers(0, 255, 20 << 20, np.uint8)),
            "label": k,
        }

    with serving(pictures(tmp_path / "a.zip", 2, large)) as served:
        ds = opened(served)
        assert same(ds[1], large(1))
        assert len(served.requests) == 6
        nbytes = int(ds._archive.reader.session.index.all_rows()["nbytes"][1])
        assert served.sent == nbytes + behind_nbytes(nbytes)


# --- one state of the object ------------------------------------------------------------------------


def other(k):
    return picture(k + 1)


@pytest.mark.parametrize("said", ["etag", "etag that is ignored", "weak etag", "date", "size", "nothing"])
def test_a_changed_object_is_never_read(tmp_path, served, said):
    changed = pictures(tmp_path / "b.zip", COUNT if said != "size" else COUNT + 100, other)
    if said != "size":
        changed = changed.ljust(len(served.data), b"\0")[: len(served.data)]
    served.etag = "v1" if "etag" in said else None
    served.modified = "Sat, 21 Nov 2026 10:00:00 GMT" if said == "date" else None
    if said == "etag that is ignored":
        served.faults = [lambda h, s, e: h.headers.__delitem__("If-Match")]
    if said == "weak etag":
        served.faults = [lambda h, s, e: (h.answer(s, e, headers={"ETag": f'W/"{h.served.etag}"'}), True)[1]]
    ds = opened(served)
    assert same(ds[7], picture(7))
    served.data = changed
    if served.etag:
        served.etag = "v2"
    if served.modified:
        served.modified = "Sat, 21 Nov 2026 10:00:01 GMT"
    allowed = StaleArchiveError if said != "nothing" else CorruptRecordError
    for read in (
        lambda: ds[8],
        lambda: ds.batch([3, 900]),
        lambda: list(ds.select("image").__getitems__([3])),
    ):
        with pytest.raises(allowed, match="a.zip: "):
            read()


def test_tags_of_other_kinds_do_not_compare(served):
    """A server may say a date where it said an ETag before, and writes some ETags without quotes."""
    ds = opened(served)
    unquoted = {"ETag": "CJi0=", "Content-Encoding": "aws-chunked"}
    for headers in ({"ETag": None, "Last-Modified": "Sat, 21 Nov 2026 10:00:00 GMT"}, {"ETag": None}):
        served.faults = [lambda h, s, e, headers=headers: (h.answer(s, e, headers=headers), True)[1]]
        assert same(ds[3], picture(3))
    served.faults = [lambda h, s, e: (h.answer(s, e, headers=unquoted), True)[1]]
    again = from_cache(served.url)
    assert same(again[3], picture(3))
    assert "If-Match" not in served.requests[-1][3]


def test_a_deleted_object_is_an_error(served):
    ds = opened(served)
    served.faults = [lambda h, s, e: (h.say(404, {}, b""), True)[1]]
    with pytest.raises(StaleArchiveError, match="404 Not Found; the object was replaced or deleted since"):
        ds[3]
    with pytest.raises(ArchiveNotFoundError, match=r"a\.zip: no such object; check the URL"):
        from_cache(served.url)


def test_refresh_goes_on_to_a_newer_state_and_not_to_another_archive(tmp_path, local):
    path = tmp_path / "a.zip"
    path.write_bytes(local.read_bytes())
    with serving(path.read_bytes()) as served:
        ds = opened(served)
        assert not ds.refresh()
        write(path, [picture(COUNT)], "a")
        served.data, served.etag = path.read_bytes(), "v2"
        with pytest.raises(StaleArchiveError):
            ds[3]
        assert ds.refresh()
        assert same(ds[COUNT], picture(COUNT))
        served.data, served.etag = pictures(tmp_path / "b.zip", COUNT, other), "v3"
        with pytest.raises(StaleArchiveError, match="the file was replaced since it was opened"):
            ds.refresh()


def test_what_is_no_archive_is_told(served):
    served.data = b"<html>" * 1000
    with pytest.raises(edcache.errors.CorruptArchiveError, match=r"a\.zip: not an edcache archive"):
        from_cache(served.url)
    served.data = b""
    with pytest.raises(edcache.errors.CorruptArchiveError, match="it is empty"):
        from_cache(served.url)
    served.data = Path(GOLDEN[0]).read_bytes()[:100]
    with pytest.raises(CorruptArchiveError):
        from_cache(served.url)


# --- engines ----------------------------------------------------------------------------------------


def s3_of(served):
    """The same server as one of S3: object a.zip in bucket "data"."""
    return "s3://data/a.zip", {
        "endpoint_url": served.url.removesuffix("/data/a.zip"),
        "key": "k",
        "secret": SECRET,
    }


def test_an_object_of_s3_is_read_by_s3fs_and_a_changed_one_is_noticed(served, tmp_path):
    url, options = s3_of(served)
    ds = from_cache(url, storage_options=options)
    assert sorted(request[0] for request in served.requests) == ["GET", "GET", "HEAD"]
    served.forget()
    served.delay = 0.05
    indices = np.arange(0, COUNT, 40)
    assert ds.batch(indices)["label"].tolist() == indices.tolist()
    assert served.sent == ds._archive.reader.session.index.all_rows()["nbytes"][indices].sum()
    assert served.most_in_flight > 12  # s3fs alone would ask for ten at a time
    served.delay = 0
    served.data, served.etag = pictures(tmp_path / "b.zip", COUNT, other), "v2"
    with pytest.raises(StaleArchiveError, match="s3://data/a.zip: .* the object was replaced or"):
        ds[4]
    served.data, served.etag = served.data[:100_000], "v3"
    with pytest.raises(StaleArchiveError, match=r"s3://data/a.zip: reading .* the object was replaced or"):
        ds[1000]


def test_credentials_that_s3_refuses_are_not_shown(served):
    served.faults = [lambda h, s, e: (h.say(403, {}, b""), True)[1]]
    url, options = s3_of(served)
    text = "give credentials in storage_options=, or in the environment"
    with pytest.raises(StorageError, match=text) as raised:
        from_cache(url, storage_options=options)
    assert SECRET not in str(raised.value)


def test_a_chain_of_file_systems_is_read(tmp_path, in_memory):
    url = in_memory(pictures(tmp_path / "a.zip", 30))
    ds = from_cache(f"simplecache::{url}")
    assert ds.path == f"simplecache::{url}"
    assert same(ds[3], picture(3))


class Odd(fsspec.get_filesystem_class("memory")):
    """A file system that does what a test says."""

    protocol = "odd"
    does = None

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("odd://").lstrip("/")

    def cat_file(self, path, start=None, end=None, **options):
        data = super().cat_file(path, start, end, **options)
        return data if Odd.does is None else Odd.does(data)

    def info(self, path, **options):
        return super().info(path, **options) | self.storage_options.get("told", {})


def raising(error):
    def does(data):
        raise error

    return does


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (
            lambda data: data[:-1],
            r"odd://b/a\.zip: reading 720 bytes at offset [\d,]+: 719 bytes came; asked 2",
        ),
        (raising(PermissionError(f"not with {SECRET}")), r"Error: not with \*\*\*; give credentials in"),
        (raising(ConnectionResetError("gone")), "ConnectionResetError: gone; asked 2 times"),
        (raising(KeyError(SECRET)), r"KeyError: '\*\*\*'; asked once"),
        (raising(FileNotFoundError("x")), "no such object; check the URL"),
    ],
)
def test_whatever_a_file_system_does_is_one_error(tmp_path, monkeypatch, does, message):
    fsspec.register_implementation("odd", Odd, clobber=True)
    Odd().pipe_file("/b/a.zip", pictures(tmp_path / "a.zip", 30))
    ds = from_cache("odd://b/a.zip", storage_options={"token": SECRET, "request_tries": 2})
    # A tail so short that this record is not in it.
    ds._archive.reader.session.file._windows.clear()
    monkeypatch.setattr(Odd, "does", staticmethod(does))
    with pytest.raises((StorageError, ArchiveNotFoundError), match=message) as raised:
        ds[3]
    assert SECRET not in str(raised.value)
    assert raised.value.__context__ is None


def test_a_file_system_that_cannot_be_made_is_told():
    with pytest.raises(StorageError, match=r"ftp://127.0.0.1:9/a.zip: ConnectionRefusedError: ") as raised:
        from_cache(f"ftp://user:{SECRET}@127.0.0.1:9/a.zip")
    assert SECRET not in str(raised.value)
    assert raised.value.__context__ is None


@pytest.mark.parametrize(
    ("told", "message"),
    [({"type": "directory"}, "a folder, not a file"), ({"size": None}, "its size is unknown")],
)
def test_what_is_no_file_is_told(tmp_path, told, message):
    fsspec.register_implementation("odd", Odd, clobber=True)
    Odd().pipe_file("/b/a.zip", b"x")
    with pytest.raises(StorageError, match=message):
        from_cache("odd://b/a.zip", storage_options={"told": told})


# --- credentials ------------------------------------------------------------------------------------


def secret_url(served):
    return served.url.replace("http://", f"http://user:{SECRET}@") + f"?sig={SECRET}"


OPTIONS = {"headers": {"X-Key": SECRET}}


def test_credentials_are_sent_and_shown_nowhere(served, caplog):
    caplog.set_level(0)
    ds = from_cache(secret_url(served), storage_options=OPTIONS)
    headers = served.requests[-1][3]
    assert headers["Authorization"].startswith("Basic ")
    assert headers["X-Key"] == SECRET
    told = [
        repr(ds),
        str(ds),
        repr(ds._archive.reader),
        ds.path,
        ds._archive.reader.path,
        str(ds.info()),
        caplog.text,
    ]
    told += [repr(ds.filter(label=3)), repr(pickle.dumps(ds)), repr(vars(ds._archive.reader))]
    assert [text for text in told if SECRET in text] == []
    assert ds.path == served.url


def test_a_proxy_is_heeded(served, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # A client is of a process, and sees the environment once.
    monkeypatch.setattr(requests, "_cached", PerProcess())
    monkeypatch.setenv("http_proxy", served.url.rpartition("/")[0])
    ds = from_cache("http://far.invalid/a.zip")
    assert same(ds[3], picture(3))
    assert served.requests[-1][3]["Host"] == "far.invalid"


@pytest.mark.parametrize("way", ["preload", "local", "offline"])
def test_urls_that_differ_in_their_query_are_two_archives(tmp_path, way):
    def made(name):
        write(tmp_path / name, ({"of": name, "x": bytes(9000)} for _ in range(9)), uuid=name.encode() * 4)
        return (tmp_path / name).read_bytes()

    with serving(made("aaaa")) as served, serving(made("bbbb")) as other:
        served.etag = served.modified = None
        other = other.data

        def by_query(handler, start, end):
            if handler.path.endswith("?id=b"):
                headers = {"Content-Range": f"bytes {start}-{min(end, len(other)) - 1}/{len(other)}"}
                handler.say(206, headers, other[start:end])
            return handler.path.endswith("?id=b")

        served.faults = [by_query]
        options = {"preload": "shm"} if way == "preload" else {"local": tmp_path / "near"}
        first = from_cache(served.url + "?id=a", **options)
        assert {sample["of"] for sample in first} == {"aaaa"}
        first.refresh()
        if way == "offline":
            served.faults = [lambda handler, *_: (handler.say(403, {}, b""), True)[1]]
            with pytest.raises(StorageError):
                from_cache(served.url + "?id=b", **options)
        else:
            assert from_cache(served.url + "?id=b", **options)[5]["of"] == "bbbb"


def test_headers_of_the_configuration_of_fsspec_are_sent(served, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "http", {"headers": {"X-Key": "one"}, "block_size": 5})
    from_cache(served.url)
    assert served.requests[-1][3]["X-Key"] == "one"
    from_cache(served.url, storage_options={"headers": {"X-Key": "two"}})
    assert served.requests[-1][3]["X-Key"] == "two"


def test_a_url_of_any_letters_is_quoted_once(served):
    folder = served.url.rpartition("/")[0]
    for name, asked in [("my é.zip", "my%20%C3%A9.zip"), ("a%20b.zip?s=%2F+x", "a%20b.zip?s=%2F+x")]:
        asking = []
        served.faults = [lambda handler, *_, asking=asking: asking.append(handler.path)]
        from_cache(f"{folder}/{name}")
        assert set(asking) == {f"/data/{asked}"}


def test_a_copy_keeps_its_credentials(served):
    ds = copy.deepcopy(from_cache(secret_url(served), storage_options=OPTIONS))
    served.forget()
    assert same(ds[3], picture(3))
    assert served.requests[-1][3]["X-Key"] == SECRET


def guarded(handler, start, end):
    if handler.headers.get("X-Key") == SECRET:
        return False
    handler.say(403, {}, b"")
    return True


def raising(served):
    """Calls that raise, with credentials in what they were given."""
    url, bad = secret_url(served), {"key": "k", "secret": SECRET, "endpoint_url": "http://127.0.0.1:9"}
    bad["config_kwargs"] = {"retries": {"max_attempts": 0}}
    s3, once = "s3://bucket/a.zip", {"request_tries": 1}
    redis = f"redis://:{SECRET}@127.0.0.1:9/0?prefix=a"
    yield from (
        lambda: CachedDataset.from_cache(url, storage_options=OPTIONS | once),
        lambda: from_cache(url, storage_options=OPTIONS | once),
        lambda: from_cache(url, storage_options={"odd": SECRET}),
        lambda: from_cache(url, storage_options=OPTIONS, vrify=True),
        lambda: from_cache([url, url], storage_options=OPTIONS | once),
        lambda: edcache.verify(url, storage_options=OPTIONS | once),
        lambda: edcache.digest(url, storage_options=OPTIONS | once),
        lambda: CachedDataset([1], url, storage_options=OPTIONS | once),
        lambda: CachedDataset([1], url, storage_options=OPTIONS, vrify=True),
        lambda: edcache.numpy.open(url, storage_options=OPTIONS, vrify=True),
        lambda: edcache.cachable(url, storage_options=OPTIONS | once)(lambda: [1])(),
        lambda: edcache.copy_to_local(url, "ssd", storage_options=OPTIONS | once),
        lambda: edcache.numpy.open(url, storage_options=OPTIONS | once),
        lambda: from_cache(s3, storage_options=bad | once),
        lambda: from_cache(s3, storage_options=bad | once | {"client_kwargs": SECRET}),
        lambda: CacheWriter(url, storage_options=OPTIONS | once),
        lambda: RedisDataset([1], redis)[0],
        lambda: RedisDataset([1], redis.partition("?")[0]),
    )


def frames_of(error):
    """The frames that a traceback of an error shows, with the reprs of their locals."""
    shown = [traceback.TracebackException.from_exception(error, capture_locals=True)]
    while shown:
        one = shown.pop()
        yield from one.stack
        shown += [other for other in (one.__cause__, one.__context__) if other is not None]


def test_no_local_of_ours_holds_credentials_while_an_error_is_raised(served):
    served.faults = [lambda handler, *_: (handler.say(403, {}, b""), True)[1]]
    package = str(Path(edcache.__file__).parent)
    for call in raising(served):
        with pytest.raises(EdcacheError) as caught:
            call()
        ours = [frame for frame in frames_of(caught.value) if frame.filename.startswith(package)]
        assert ours
        for frame in ours:
            for name, value in (frame.locals or {}).items():
                assert SECRET not in value, f"{frame.filename}:{frame.lineno}: {name}"


def test_a_pickle_has_no_credentials_and_the_error_says_so(served):
    served.faults = [guarded]
    ds = from_cache(served.url, storage_options=OPTIONS)
    packed = pickle.dumps(ds)
    assert len(packed) < 2000
    with pytest.raises(StorageError, match="403 Forbidden; it was opened with credentials, which"):
        pickle.loads(packed)[3]
    with pytest.raises(StorageError, match="403 Forbidden; give credentials in storage_options="):
        from_cache(served.url)


def test_a_pickle_for_a_process_that_is_being_spawned_has_them(served):
    url = Url(secret_url(served), OPTIONS)
    context.set_spawning_popen(object())
    try:
        packed = pickle.dumps(url)
    finally:
        context.set_spawning_popen(None)
    assert pickle.loads(packed).url == url.url
    assert pickle.loads(packed).options == OPTIONS
    assert pickle.loads(pickle.dumps(url)).url == served.url


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_it_with_its_credentials_after_the_parent_did(served, method):
    served.faults = [guarded]
    ds = from_cache(served.url, storage_options=OPTIONS)
    indices = list(range(0, COUNT, 5))
    assert same(ds[3], picture(3))
    workers = 2 if method == "fork" else 1
    loader = DataLoader(ds, 50, sampler=indices, num_workers=workers, multiprocessing_context=method)
    assert torch.cat([batch["label"] for batch in loader]).tolist() == indices
    assert same(ds[4], picture(4))


def test_credentials_stay_with_the_server_that_they_are_for(served, local):
    with serving(local.read_bytes()) as elsewhere:
        served.faults = [lambda h, s, e: (h.say(302, {"Location": elsewhere.url}, b""), True)[1]]
        ds = from_cache(secret_url(served), storage_options=OPTIONS)
        assert same(ds[3], picture(3))
        told = [str(request[3]) for request in elsewhere.requests]
        assert told
        assert not [text for text in told if SECRET in text or "Authorization" in text]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@ss@host:8/a/b.zip?X-Amz-Signature=1#f", "https://host:8/a/b.zip"),
        ("http://host/b@c.zip", "http://host/b@c.zip"),
        ("s3://bucket/a?b#c.zip", "s3://bucket/a?b#c.zip"),
        ("gs://bucket/a.zip", "gs://bucket/a.zip"),
        ("simplecache::https://u:p@host/a.zip?t=1", "simplecache::https://host/a.zip"),
        ("ftp://user:word@host/a.zip", "ftp://host/a.zip"),
    ],
)
def test_urls_are_shown_without_credentials(url, shown):
    assert Url(url) == shown
    assert repr(Url(url, {"key": SECRET})) == repr(shown)


def test_texts_of_libraries_are_shown_without_credentials():
    options = {"client": {"key": b"k3y!"}, "list": ["item"], "n": 1}
    url = Url(f"https://us%40er:{SECRET}@h/a?token=t0%2Bken&x=1", options)
    text = f"GET {url.url}: us@er, {SECRET}, t0+ken, t0%2Bken, k3y!, item, https://h/a"
    assert url.scrubbed(text) == "GET https://h/a: ***, ***, ***, ***, ***, ***, https://h/a"


# --- what is refused, and what is not there ---------------------------------------------------------


@pytest.mark.full
def test_nothing_is_imported_and_no_thread_begun_before_the_first_use():
    code = (
        "import sys, threading, edcache.reader\n"
        "reader = edcache.reader.Reader('https://localhost/a.zip', storage_options={'headers': {}})\n"
        "assert threading.active_count() == 1\n"
        "sys.exit('aiohttp' in sys.modules or 's3fs' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("a.zip", {"key": "x"}, r"a\.zip: storage_options are for URLs, and this is a path"),
        ("http://h/a.zip", ["key"], "storage_options of type list; give a dict"),
        ("http://h/a.zip", {"key": 1}, "http://h/a.zip: storage_options takes headers, request_.*, not key"),
        ("http://h/a.zip", {"request_timeout": 0}, "request_timeout=0; give seconds above 0"),
        ("http://h/a.zip", {"request_tries": 0}, "request_tries=0; give an integer of 1 or more"),
        ("nonsense://h/a.zip", None, "nonsense://h/a.zip: Protocol not known: nonsense"),
    ],
)
def test_wrong_options_are_told(path, options, message):
    need("aiohttp")
    with pytest.raises(OptionError, match=message):
        from_cache(path, storage_options=options)


@pytest.mark.parametrize(
    ("scheme", "module", "message"),
    [
        ("https", "aiohttp", r"reading http:// and https:// needs aiohttp; .* edcache\[remote\]"),
        ("s3", "s3fs", r"reading s3:// needs another package: .*: pip install edcache\[s3\]"),
        ("gs", "gcsfs", r"reading gs:// needs another package: .*: pip install edcache\[gs\]"),
    ],
)
def test_a_missing_library_is_told_with_its_pip_command(monkeypatch, scheme, module, message):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(MissingDependencyError, match=message):
        from_cache(f"{scheme}://bucket/a.zip")


def test_what_only_files_allow_is_refused(served):
    ds = opened(served)
    with pytest.raises(OptionError, match="an archive behind a URL is only read; change the labels"):
        ds.add_labels("x", np.arange(COUNT))


@needs("aiohttp")
def test_a_closed_port_is_told():
    with pytest.raises(
        StorageError, match="http://127.0.0.1:9/a.zip: opening it: no connection: .*; asked once"
    ):
        from_cache("http://127.0.0.1:9/a.zip", storage_options={"request_tries": 1})


def test_a_file_url_is_a_path(local):
    ds = from_cache(local.as_uri())
    assert ds.path == str(local)
    assert not ds._archive.reader.by_request


def test_the_command_line_reads_urls_and_shows_no_credentials(served, monkeypatch):
    url = secret_url(served)
    monkeypatch.setenv("EDCACHE_PROGRESS", "1")
    lines = ["info", "digest --json", "show 3 --json", "labels --limit 2", "verify --quick", "verify --json"]
    for line in [*lines, "labels --count label --limit 1"]:
        name, *options = line.split()
        assert SECRET not in run(name, url, *options).output
    served.faults = [lambda h, s, e: (h.say(403, {}, b""), True)[1]]
    said = error_of("info", url)
    assert served.url in said
    assert SECRET not in said


def test_the_first_root_of_edflow_may_be_a_url(served):
    root = served.url.removesuffix("/a.zip")
    assert len(from_cache(root, name="a")) == COUNT
    assert served.requests
