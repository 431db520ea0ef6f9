"""Archives that are far away, and processes that are killed while they copy them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from written import write

from edcache.base import Sound
from edcache.errors import StorageError
from edcache.storage import ByteSource


def sample(i: int, nbytes: int = 3000) -> dict[str, Any]:
    return {"x": np.full(nbytes, i % 251, np.uint8), "n": i, "y": i % 5}


def is_sample(found: Any, i: int, nbytes: int = 3000) -> bool:
    return bool((found["x"] == i % 251).all()) and len(found["x"]) == nbytes and found["n"] == i


def make(path: Path, count: int = 400, nbytes: int = 3000, chunk: int = 40, **options: Any) -> bytes:
    """A sealed archive; returns its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"in_memory_keys": ["y"], "chunk_size": chunk} | options
    return write(path, (sample(i, nbytes) for i in range(count)), "w", **options).read_bytes()


def picture(k: int) -> dict[str, Any]:
    return {"image": torch.full((40, 50), k % 256, dtype=torch.uint8), "label": k}


def pictures(path: Path, count: int, make: Callable[[int], Any] = picture, **options: Any) -> bytes:
    """A sealed archive of samples with a label; returns its bytes."""
    options = {"in_memory_keys": ["label"], "chunk_size": 100} | options
    return write(path, map(make, range(count)), "w", **options).read_bytes()


class Far(ByteSource):
    """An origin in memory, as another file system or an object store would be one.

    delay: seconds that a read takes. read: the extents that were read. damage: of the next reads at these
    offsets so many give other bytes. fails_at: the read with this number raises.
    """

    tries = 2

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

    def known(self, offset: int, nbytes: int) -> None:
        return None

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        data = self._pread(offset, nbytes)
        if is_sound is None:
            return data
        return bytes(self.until_sound([(offset, nbytes)], [memoryview(data)], [is_sound])[0])

    def _pread(self, offset: int, nbytes: int) -> bytes:
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

    def read_many(
        self, extents: Sequence[tuple[int, int]], checks: Sequence[Sound] | None = None
    ) -> list[memoryview]:
        data = [memoryview(self._pread(*extent)) for extent in extents]
        return data if checks is None else self.until_sound(extents, data, checks)

    def map(self, nbytes: int) -> memoryview:
        raise StorageError(f"{self.path}: mapping it")

    def identity(self) -> str:
        return self.etag

    def reopened(self) -> ByteSource:
        return self

    def tag(self) -> tuple[str]:
        return (self.etag,)

    def will_need(self, extents: Sequence[tuple[int, int]]) -> None:
        pass

    def close(self) -> None:
        self.closed += 1
