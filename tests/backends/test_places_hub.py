"""Archives in repositories of a Hugging Face hub: a server that speaks its API, and the CDN it leads to."""

import functools
import hashlib
import json
import re
import threading
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from far import picture, pictures
from likeness import same
from torch.utils.data import DataLoader

from edcache import CachedDataset
from edcache.errors import ArchiveNotFoundError, StorageError

pytest.importorskip("huggingface_hub")

from_cache = functools.partial(CachedDataset.from_cache, local=False)
COUNT = 120
TOKEN = "hf_s3cr3t"
URL = "hf://datasets/user/data/sub/a.zip"


class Hub:
    """One dataset repository. commits: the files of each, by the name of the commit; the last is main."""

    def __init__(self):
        self.commits, self.asked, self.status = {}, [], None
        self.hub = self.cdn = ""

    def commit(self, **files):
        name = hashlib.sha1(str(len(self.commits)).encode(), usedforsecurity=False).hexdigest()
        self.commits[name] = {f"sub/{file}.zip": data for file, data in files.items()}

    def resolved(self, revision):
        return list(self.commits)[-1] if revision == "main" else revision


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, path = self.server.hub, self.path
        hub.asked.append((self.command, path, dict(self.headers)))
        if path.startswith("/cdn/"):
            self.send_range(hub)
        elif hub.status is not None:
            self.say(hub.status)
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.say(401, {"X-Error-Code": "GatedRepo"})
        elif found := re.fullmatch(r"/api/datasets/user/data(?:/revision/(\w+))?(?:\?.*)?", path):
            sha = hub.resolved(found[1] or "main")
            body = {"id": "user/data", "sha": sha, "private": True, "tags": [], "siblings": []}
            self.say(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
        elif found := re.fullmatch(r"/datasets/user/data/resolve/(\w+)/(.*)", path):
            self.send_place(hub, hub.resolved(found[1]), found[2])
        else:
            self.say(404, {"X-Error-Code": "RepoNotFound"})

    def send_place(self, hub, commit, name):
        data = hub.commits[commit].get(name)
        if data is None:
            self.say(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        digest = hashlib.sha256(data).hexdigest()
        told = {"X-Repo-Commit": commit, "X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{digest}"'}
        self.say(302, told | {"Location": f"{hub.cdn}/cdn/{commit}/{name}?signature=x"})

    def send_range(self, hub):
        _, _, commit, name = self.path.partition("?")[0].split("/", 3)
        data = hub.commits[commit][name]
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        if "Authorization" in self.headers:
            self.say(400)  # as a store does whose URL is signed
            return
        body = data[first : last + 1]
        told = {"Content-Range": f"bytes {first}-{first + len(body) - 1}/{len(data)}", "ETag": '"part-of-it"'}
        self.say(206, told, body)

    def say(self, status, headers=None, body=b""):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def server(hub):
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.daemon_threads, running.hub = True, hub
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


@pytest.fixture
def hub(tmp_path):
    found = Hub()
    found.commit(a=pictures(tmp_path / "a.zip", COUNT, chunk_size=50))
    with ExitStack() as stack:
        found.hub, found.cdn = (stack.enter_context(server(found)) for _ in range(2))
        yield found


def opened(hub, url=URL, **options):
    told = {"endpoint": hub.hub, "token": TOKEN, "request_tries": 2} | options
    return from_cache(url, storage_options=told)


def test_an_archive_in_a_repository_is_read_by_ranges(hub):
    ds = opened(hub)
    assert len(hub.asked) <= 7  # four, of which those to the CDN come by way of the hub
    assert len(ds.filter("label < 10")) == 10
    hub.asked.clear()
    assert same(ds[7], picture(7))
    assert [path.split("/")[1] for _, path, _ in hub.asked] == ["datasets", "cdn"]
    assert same(list(ds.__getitems__([3, 99, -1])), [picture(k) for k in (3, 99, COUNT - 1)])


def test_what_was_opened_is_read_from_its_commit_until_it_is_refreshed(hub, tmp_path):
    ds = opened(hub)
    hub.commit(a=pictures(tmp_path / "b.zip", COUNT + 5, chunk_size=50))
    assert same(ds[8], picture(8))
    assert len(ds) == COUNT
    assert len(opened(hub)) == COUNT + 5
    assert len(opened(hub, f"hf://datasets/user/data@{next(iter(hub.commits))}/sub/a.zip")) == COUNT
    hub.commit(b=b"")
    with pytest.raises(ArchiveNotFoundError):
        ds.refresh()
    assert same(ds[9], picture(9))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_the_state_that_their_parent_opened(hub, method):
    ds = opened(hub)
    assert same(ds[7], picture(7))
    loader = DataLoader(ds, 5, sampler=range(0, COUNT, 12), num_workers=2, multiprocessing_context=method)
    assert torch.cat([batch["label"] for batch in loader]).tolist() == list(range(0, COUNT, 12))


def test_what_is_not_there_and_who_is_not_let_in_are_told_without_the_token(hub):
    with pytest.raises(ArchiveNotFoundError, match="no such object; check the URL"):
        opened(hub, URL.replace("a.zip", "b.zip"))
    for changes in ({"url": "hf://datasets/other/data/a.zip"}, {"token": TOKEN + "x"}):
        with pytest.raises(StorageError, match="or none that you may read; give credentials in") as raised:
            opened(hub, **changes)
        assert TOKEN not in str(raised.value)
    ds = opened(hub)
    hub.status = 503
    with pytest.raises(StorageError, match=r"a\.zip: .*503 Service Unavailable; asked 2 times"):
        ds.refresh()
    hub.status = 403
    for read in (ds.refresh, lambda: opened(hub, URL.replace("user", "another"))):
        hub.asked.clear()
        with pytest.raises(StorageError, match="403 Forbidden; give credentials") as raised:
            read()
        assert TOKEN not in repr(raised.value)
        assert len(hub.asked) == 1
