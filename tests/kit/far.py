"""Archives that are far away, and processes that are killed while they copy them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edcache import CacheWriter, storage
from edcache.errors import StorageError
from edcache.storage import calls

HANGS = 60


def sample(i: int, nbytes: int = 3000) -> dict[str, Any]:
    return {"x": np.full(nbytes, i % 251, np.uint8), "n": i, "y": i % 5}


def is_sample(found: Any, i: int, nbytes: int = 3000) -> bool:
    return bool((found["x"] == i % 251).all()) and len(found["x"]) == nbytes and found["n"] == i


def make(path: Path, count: int = 400, nbytes: int = 3000, chunk: int = 40, **options: Any) -> bytes:
    """A sealed archive; returns its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with CacheWriter(path, "w", in_memory_keys=["y"], chunk_size=chunk, **options) as writer:
        writer.extend(sample(i, nbytes) for i in range(count))
    return path.read_bytes()


class Far:
    """An origin in memory, as another file system or an object store would be one.

    delay: seconds that a read takes. read: the extents that were read. damage: of the next reads at these
    offsets so many give other bytes. fails_at: the read with this number raises.
    """

    def __init__(self, data: bytes, path: str = "far://bucket/train.zip", delay: float = 0.0) -> None:
        self.data, self.path, self.delay = data, path, delay
        self.etag = "a1"
        self.read: list[tuple[int, int]] = []
        self.damage: dict[int, int] = {}
        self.fails_at: int | None = None
        self.closed = 0
        self._lock = threading.Lock()

    def size(self) -> int:
        return len(self.data)

    def pread(self, offset: int, nbytes: int) -> bytes:
        time.sleep(self.delay)
        with self._lock:
            self.read.append((offset, nbytes))
            if self.fails_at is not None and len(self.read) > self.fails_at:
                raise StorageError(f"{self.path}: reading: connection lost")
            found = self.data[offset : offset + nbytes]
            at = next((d for d, left in self.damage.items() if left and offset <= d < offset + nbytes), None)
            if at is not None:
                self.damage[at] -= 1
                found = found[: at - offset] + bytes([found[at - offset] ^ 1]) + found[at - offset + 1 :]
            return found

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.pread(*extent) for extent in extents]

    def tag(self) -> tuple[str]:
        return (self.etag,)

    def will_need(self, offset: int, nbytes: int) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


class Killing(storage.System):
    """Ends the process at the n-th operation that changes something; None counts alone."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0
        self._lock = threading.Lock()

    def _step(self) -> None:
        with self._lock:
            self.count += 1
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._step()
        if self.count + 1 == self.at and len(data) > 1:
            super().pwrite(fd, data[: len(data) // 2], offset)  # the next step finds half of it
            self._step()
        return super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._step()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)

    def replace(self, source: str, target: str) -> None:
        self._step()
        super().replace(source, target)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)


class Full(storage.System):
    """A disk that is full from the n-th write on."""

    def __init__(self, after: int) -> None:
        self.left = after

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(28, "No space left on device")
        return super().pwrite(fd, data, offset)


class Watching(storage.System):
    """Notes which files are opened, how, and which are looked at."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, int]] = []
        self.looked: list[str] = []

    def open(self, path: str, flags: int, into: list[int]) -> None:
        self.opened.append((path, flags & (os.O_WRONLY | os.O_RDWR)))
        super().open(path, flags, into)

    def stat_path(self, path: str) -> os.stat_result:
        self.looked.append(path)
        return super().stat_path(path)


def in_child(step: Callable[[], Any], system: storage.System | None = None) -> int:
    """Do something in a fork; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HANGS)
        with calls.replace_system(system or calls.system):
            step()
        code = 0
    except BaseException:
        import traceback

        os.write(2, f"\nin a child: {traceback.format_exc()}\n".encode())
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """0, 1 after an exception, the signal as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
