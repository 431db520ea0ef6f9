"""An archive on a read-only place opens, however it was left; nothing tries to write, lock or delete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from systems import System, replace_system

import edcache
from edcache import CachedDataset, CacheWriter
from tests.kit.systems import child_environ

KINDS = ["sealed", "unsealed", "torn"]


def make(path: Path, kind: str) -> None:
    w = CacheWriter(path, chunk_size=4, publish_seconds=None, in_memory_keys=["y"])
    w.extend({"x": np.full(9, i), "y": i % 3} for i in range(10))
    w.close() if kind == "sealed" else w.abort()
    if kind == "torn":
        with open(path, "ab") as file:
            file.write(b"half a chunk" * 500)


USE = """
import json, sys
import edcache
path, target, command = sys.argv[1:]
if command == "from_cache":
    cache = edcache.CachedDataset.from_cache(path, allow_partial=True)
    print(json.dumps([cache[i]["x"].tolist()[0] for i in range(10)] + cache.labels["y"].tolist()))
else:
    from edcache.cli import main
    rest = ["-o", target, "--skip-damaged"] if command == "copy" else []
    main([command, path, "--json", *rest])
"""


MOUNT = """
mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && ! touch "$0/probe" 2>/dev/null && exec "$@"
"""


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "--bind", folder, folder], capture_output=True)
    return done.returncode == 0


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_read_only_mount_is_enough(tmp_path, kind):
    """Where this process may not mount, a folder and file without write permission stand in for it."""
    folder = tmp_path / "published"
    folder.mkdir()
    path = folder / "a.zip"
    make(path, kind)
    os.chmod(path, 0o444)
    os.chmod(folder, 0o555)
    before = path.read_bytes()
    mounting = ["unshare", "-m", "sh", "-c", MOUNT, str(folder)] if _can_mount(folder) else []
    environment = child_environ()
    said: dict[str, Any] = {}
    for command in ("from_cache", "verify", "info", "labels", "copy"):
        done = subprocess.run(
            [*mounting, sys.executable, "-c", USE, str(path), str(tmp_path / "new.zip"), command],
            capture_output=True,
            text=True,
            env=environment,
        )
        is_whole = command != "verify" or kind == "sealed"
        assert (done.returncode, done.stderr) == (0 if is_whole else 1, ""), command
        said[command] = json.loads(done.stdout)
    os.chmod(folder, 0o755)
    assert said["from_cache"] == [*range(10), *(i % 3 for i in range(10))]
    assert (said["verify"]["problems"], said["verify"]["sealed"]) == ([], kind == "sealed")
    assert (said["info"]["samples"], len(said["labels"])) == (10, 10)
    assert len(edcache.CachedDataset.from_cache(tmp_path / "new.zip").missing) == 0
    assert path.read_bytes() == before
    assert edcache.verify(tmp_path / "new.zip").sound


class ReadOnly(System):
    """Allows nothing but reading one file."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def open(self, path: str, flags: int, mode: int) -> int:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        assert path != self._path or not writes, f"{path} opened with {flags:#x}"
        fd = super().open(path, flags, mode)
        if path == self._path:
            self.protected = fd
        elif fd == getattr(self, "protected", -1):
            self.protected = -1  # it was closed, and its number is another file's now
        return fd

    def _refuse(self, fd: int, what: str) -> None:
        assert fd != self.protected, what

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._refuse(fd, "pwrite")
        return super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._refuse(fd, "truncate")
        super().truncate(fd, size)

    def lock(self, fd: int, start: int, length: int, wait: bool) -> None:
        self._refuse(fd, "lock")
        super().lock(fd, start, length, wait)

    def sync(self, fd: int) -> None:
        self._refuse(fd, "sync")
        super().sync(fd)

    def replace(self, source: str, target: str) -> None:
        assert self._path not in (source, target)
        super().replace(source, target)

    def remove(self, path: str) -> None:
        assert path != self._path
        super().remove(path)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_reading_is_asked_of_the_system(tmp_path, kind):
    path = tmp_path / "a.zip"
    make(path, kind)
    with replace_system(ReadOnly(path)):
        cache = CachedDataset.from_cache(path, allow_partial=True)
        assert [cache[i]["x"][0] for i in range(10)] == list(range(10))
        assert cache.labels["y"].tolist() == [i % 3 for i in range(10)]
        assert not cache.refresh()
        assert kind != "sealed" or cache.warmup() is cache
        assert edcache.verify(path).problems == []
        assert edcache.verify(path, quick=True).problems == []
        cache.save(tmp_path / "small.zip", skip_damaged=True)
    assert edcache.verify(tmp_path / "small.zip").sound
