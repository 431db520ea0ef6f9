"""What is no path of an archive, at every door: an error of ours, or the TypeError that Python has for it."""

import os
import shutil

import pytest

import edcache
from edcache import CachedDataset, CacheWriter, cachable
from edcache.errors import EdcacheError
from edcache.reader import Reader

STRANGE = [
    *("", "\0", "a\0b", "\ud800", "x" * 300 + ".zip", "/" + "d/" * 3000 + "a.zip", "dir.zip", "dir.zip/"),
    *("text", "text/a.zip", "loop", "fifo", "/dev/null", "/proc/self/mem", ".", "*", "[", "::", "zip::"),
    *("http://[", "redis://h:notaport/0", "shm://", "shm:///", "shm://" + "x" * 300, "shm://a/b", "file://"),
    *(5, None, 3.5, True, {}, object()),
]
DOORS = {
    "open": CachedDataset.from_cache,
    "fill": lambda p: CachedDataset([1, 2, 3], p),
    "fill lazily": lambda p: CachedDataset([1, 2, 3], p, lazy=True),
    "append": lambda p: CacheWriter(p, "a").abort(),
    "replace": lambda p: CacheWriter(p, "w").abort(),
    "read": lambda p: Reader(p).session.head,
    "decorate": lambda p: cachable(p)(lambda: [1, 2])(),
    "verify": edcache.verify,
    "digest": edcache.digest,
    "save to": lambda p: CachedDataset.from_cache("good.zip").save(p),
    "save parts to": lambda p: CachedDataset.from_cache("good.zip").save(p, max_size=1),
    "copy": lambda p: edcache.copy_to_local(p, "copies", progress=False),
    "copy to": lambda p: edcache.copy_to_local("good.zip", p, progress=False),
    "keep near": lambda p: CachedDataset.from_cache("good.zip", local=p),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that the test works in, with what a path may lead to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDCACHE_DIR", str(tmp_path / "default"))
    CachedDataset([{"x": i} for i in range(4)], "good.zip").close()
    os.mkdir("dir.zip")
    (tmp_path / "text").write_text("text")
    os.symlink("loop", "loop")
    os.mkfifo("fifo")
    return tmp_path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_path_is_told_by_an_error_of_ours(folder, door):
    for path in STRANGE:
        try:
            opened = DOORS[door](path)
        except (EdcacheError, TypeError):
            pass
        else:
            if hasattr(opened, "close"):
                opened.close()
        shutil.rmtree(folder / "new", ignore_errors=True)
        (folder / "new").unlink(missing_ok=True)
    assert (folder / "text").read_text() == "text"
    assert [CachedDataset.from_cache("good.zip")[i]["x"] for i in range(4)] == list(range(4))
    assert not [name for name in os.listdir(folder) if name.endswith("good.zip.edcache.new")]
