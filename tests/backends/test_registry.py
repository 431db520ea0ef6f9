"""A backend of somebody else's: one class and one line of packaging, found by its scheme."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from written import write

import edcache
from edcache import CachedDataset, CacheWriter
from edcache.backends.objects import ObjectStore
from edcache.errors import ArchiveExistsError, ArchiveNotFoundError, OptionError, SourceError
from edcache.storage.registry import located
from edcache.writer.store import store_at

COUNT = 60

# Rows of 4 kB in a database; an update of all rows of a name is one transaction.
BACKEND = '''
import sqlite3
from edcache.storage import ByteSource
from edcache.errors import ArchiveNotFoundError, StorageError
from edcache.backends import ObjectStore

PIECE = 4096

class Rows(ByteSource):
    by_request = True

    def __init__(self, store):
        self.path, self._store = store.path, store
        with store.connected() as db:
            found = db.execute("SELECT version, nbytes FROM names WHERE name = ?", (store.name,)).fetchone()
        if found is None:
            raise ArchiveNotFoundError(f"{self.path}: no such name")
        self._version, self._nbytes = found

    def size(self):
        return self._nbytes

    def identity(self):
        return self._version, self._nbytes

    def tag(self):
        return (abs(hash((self.path, self._version))),)

    def reopened(self):
        return Rows(self._store)

    def pread(self, offset, nbytes):
        end = min(offset + nbytes, self._nbytes)
        query = "SELECT data FROM pieces WHERE name = ? AND version = ? AND number BETWEEN ? AND ?"
        numbers = offset // PIECE, max(end - 1, 0) // PIECE
        with self._store.connected() as db:
            rows = db.execute(query + " ORDER BY number", (self._store.name, self._version, *numbers))
            data = b"".join(data for (data,) in rows)
        return data[offset % PIECE : offset % PIECE + max(0, end - offset)]

    def read_many(self, extents):
        return [memoryview(self.pread(offset, nbytes)) for offset, nbytes in extents]

    def map(self, nbytes):
        raise StorageError(f"{self.path}: in a database")

    def close(self):
        pass

class SqliteStore(ObjectStore):
    """sqlite:///tmp/shelf.db/train.zip"""

    def __init__(self, text, storage_options=None):
        super().__init__(text, storage_options)
        self._file, _, self.name = text.partition("://")[2].rpartition("/")

    def connected(self):
        db = sqlite3.connect(self._file)
        db.execute("CREATE TABLE IF NOT EXISTS names (name PRIMARY KEY, version, nbytes)")
        db.execute("CREATE TABLE IF NOT EXISTS pieces (name, version, number, data)")
        return db

    def open(self):
        return Rows(self)

    def put(self, path, tell):
        with open(path, "rb") as file, self.connected() as db:
            version = db.execute("SELECT count(DISTINCT version) FROM pieces").fetchone()[0] + 1
            pieces = iter(lambda: file.read(PIECE), b"")
            rows = ((self.name, version, number, data) for number, data in enumerate(pieces))
            db.executemany("INSERT INTO pieces VALUES (?, ?, ?, ?)", rows)
            db.execute("REPLACE INTO names VALUES (?, ?, ?)", (self.name, version, file.tell()))
            tell(file.tell(), file.tell())
'''


class Source:
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        if i == 30 and os.path.exists(f"{self.log}.broken"):
            raise ValueError("broken")
        with open(self.log, "a") as log:
            log.write(f"{i}\n")
        return {"x": np.full(300, i, np.int32), "y": i % 4, "split": "train" if i < 40 else "test"}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A database's URL; the backend is installed as pip would leave it."""
    installed = tmp_path / "site"
    (installed / "shelf-1.0.dist-info").mkdir(parents=True)
    (installed / "shelf.py").write_text(BACKEND)
    (installed / "shelf-1.0.dist-info" / "METADATA").write_text("Name: shelf\nVersion: 1.0\n")
    (installed / "shelf-1.0.dist-info" / "entry_points.txt").write_text(
        "[edcache.backends]\nsqlite = shelf:SqliteStore\n"
    )
    monkeypatch.syspath_prepend(installed)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), *sys.path]))
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path))
    return f"sqlite://{tmp_path}/shelf.db/train.zip"


def computed(log):
    return sorted(map(int, Path(log).read_text().split()))


def check(ds):
    assert len(ds) == COUNT
    assert ds[7]["x"].tolist() == [7] * 300
    assert ds.batch([50, 3])["y"].tolist() == [2, 3]
    view = ds.filter(split="test", y=[1])
    assert [int(sample["x"][0]) for sample in view] == [41, 45, 49, 53, 57]


def test_it_fills_reads_and_filters(shelf, tmp_path):
    log = tmp_path / "log"
    with pytest.raises(ArchiveNotFoundError, match="train.zip: no such name"):
        len(CachedDataset.from_cache(shelf))
    broken = tmp_path / "log.broken"
    broken.touch()
    with pytest.raises(SourceError, match="broken"):
        CachedDataset(Source(log), shelf, in_memory_keys=["y", "split"], chunk_size=10)
    broken.unlink()
    ds = CachedDataset(Source(log), shelf, in_memory_keys=["y", "split"], chunk_size=10, num_workers=2)
    check(ds)
    assert computed(log) == list(range(COUNT)), "what the first fill published was not computed again"
    check(CachedDataset.from_cache(shelf))
    check(pickle.loads(pickle.dumps(CachedDataset.from_cache(shelf))))
    CachedDataset(Source(log), shelf, in_memory_keys=["y", "split"])
    assert len(computed(log)) == COUNT
    assert os.listdir(tmp_path / "spool") == []


def test_a_process_that_has_it_installed_finds_it(shelf, tmp_path):
    CachedDataset(Source(tmp_path / "log"), shelf, in_memory_keys=["y", "split"])
    command = [sys.executable, "-m", "edcache", "labels", shelf, "--count", "split"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "train" in shown.stdout
    assert "40" in shown.stdout


def test_whatever_takes_a_url_takes_it(shelf, tmp_path):
    write(shelf, (Source(tmp_path / "log")[i] for i in range(COUNT)), in_memory_keys=["y", "split"])
    with pytest.raises(ArchiveExistsError, match="train.zip: exists already"):
        CacheWriter(shelf)
    assert edcache.verify(shelf).sound
    copy = edcache.copy_to_local(shelf, tmp_path / "ssd")
    check(CachedDataset.from_cache(copy))
    check(CachedDataset.from_cache(shelf, local=tmp_path / "blocks"))
    with pytest.raises(OptionError, match="train.zip: this takes a path; copy the archive from its URL"):
        CachedDataset.from_cache(shelf).save(shelf)
    with pytest.raises(OptionError, match="lazy=True fills a file; for a URL all is filled at once"):
        CachedDataset(Source(tmp_path / "log"), shelf.replace("train", "lazy"), lazy=True)


def test_a_path_is_told_from_a_url_once(shelf, tmp_path, monkeypatch):
    assert isinstance(store_at(shelf), ObjectStore)
    assert type(store_at(shelf)).__module__ == "shelf"
    store = store_at(shelf)
    assert store_at(store) is store
    monkeypatch.chdir(tmp_path)
    for path in ("train.zip", "c:/train.zip", "a:b.zip", f"file://{tmp_path}/train.zip"):
        assert store_at(path).local_path() == str(tmp_path / path.removeprefix("file:///")).replace(
            f"{tmp_path}{tmp_path}", str(tmp_path)
        )
    for url in ("https://h/a.zip", "s3://b/a.zip", "zip://a.zip::https://h/b.zip"):
        with pytest.raises(OptionError, match="this takes"):
            located(url).local_path()
    with pytest.raises(OptionError, match="train.zip: storage_options are for URLs, and this is a path"):
        store_at("train.zip", {"key": "k"})
