"""An object behind a URL as a `ByteSource`, which must stay what it was when it was opened."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from edcache import format
from edcache.backends import Url
from edcache.backends.remote.filesystem import FilesystemEngine, filesystem_of
from edcache.backends.remote.requests import Data, Engine, ObjectStamp, Requests, gathered, run
from edcache.base import PerProcess, StaleArchiveError, StorageError
from edcache.storage import ByteSource

if TYPE_CHECKING:
    pass

# What lies no further apart is one request. A small range of nginx on the same machine takes 0.4 ms, in which
# 100 KiB more come with one that is made anyway; with gaps of 1 MiB a batch takes twice as long as with none.
GAP_NBYTES: Final = 1 << 16
# A larger run is fetched in parts of this size, several at a time.
PART_NBYTES: Final = 1 << 22
_MOST_AT_A_TIME: Final = 64
# `pread` fetches at least so much: the header of an entry comes with its table, which is read after a walk.
_AHEAD_NBYTES: Final = 1 << 16
_MOST_WINDOWS: Final = 256
WEB: Final = ("http", "https")


def runs_of(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The runs (start, end) that cover extents (offset, nbytes), in file order.

    None is within `GAP_NBYTES` of the next, unless the two are more than `PART_NBYTES`.
    """
    runs: list[tuple[int, int]] = []
    for offset, nbytes in sorted(extents):
        if not nbytes:
            continue
        start, end = runs[-1] if runs else (0, -GAP_NBYTES - 1)
        longer = max(end, offset + nbytes)
        if offset <= end + GAP_NBYTES and longer - start <= PART_NBYTES:
            runs[-1] = start, longer
        else:
            runs.append((offset, offset + nbytes))
    return runs


class _Window(NamedTuple):
    """Bytes of the object that were fetched, from an offset on."""

    start: int
    data: memoryview

    def cut(self, start: int, end: int) -> memoryview:
        return self.data[start - self.start : end - self.start]


class RemoteObject(ByteSource):
    """One state of an object behind a URL.

    Opening makes two requests at once, for its first page and its end. The last 256 windows that were opened
    or read by `pread` are kept. Event loop and clients are of the process that uses it.
    """

    by_request = True

    def __init__(self, url: Url) -> None:
        self.path = str(url)
        self._requests = Requests(url)
        self._engines: PerProcess[Engine] = PerProcess()
        engine = self._engine()
        nbytes = format.PAGE + format.TAIL_NBYTES
        self._stamp, head, tail = run(
            self._requests.answer("opening it", nbytes, lambda: engine.begin(format.PAGE, format.TAIL_NBYTES))
        )
        self._head, size = bytes(head), self._stamp.size
        self._windows = deque([_Window(0, memoryview(self._head))], _MOST_WINDOWS)
        if len(head) < size:
            # What is aligned in the file is aligned in memory.
            start = -(-(size - len(tail)) // 64) * 64
            end = _Window(start, memoryview(bytes(tail[start - size :]))) if tail else self._end()
            self._windows.append(end)

    def _end(self) -> _Window:
        start = max(len(self._head), format.align(self._stamp.size - format.TAIL_NBYTES, 64))
        return self._fetch([(start, self._stamp.size - start)])[0]

    # --- one state ---

    def size(self) -> int:
        return self._stamp.size

    def identity(self) -> ObjectStamp:
        return self._stamp

    def tag(self) -> tuple[object, ...]:
        text = f"{self.path}\0{self._stamp.size}\0{self._stamp.tag}\0"
        # With its head: a path has no query, and some servers send no tag.
        return (hashlib.sha256(text.encode() + self._head).hexdigest()[:32],)

    def reopened(self) -> RemoteObject:
        return RemoteObject(self._requests.url)

    def check_unchanged(self) -> None:
        """See `ByteSource`: one request."""
        stamp = run(self._requests.answer("looking for its state", 0, self._engine().stamp))
        if stamp != self._stamp:
            text = f"it has {stamp.size:,} bytes, {self._stamp.size:,} then, or another state; open it again"
            raise StaleArchiveError(
                f"{self.path}: the object was replaced since it was opened: {text}", path=self.path
            )

    # --- bytes ---

    def pread(self, offset: int, nbytes: int) -> bytes:
        start, end = self._clipped(offset, nbytes)
        data = self.known(start, end - start)
        if data is None and end - start > _AHEAD_NBYTES:  # hundreds of these would fill the memory
            (data,) = self.read_many([(start, end - start)])
        elif data is None:
            data = self._keep([(start, _AHEAD_NBYTES)])[0].cut(start, end)
        return bytes(data)

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: up to 64 requests at a time; a run of over 4 MiB is several."""
        ranges = [self._clipped(offset, nbytes) for offset, nbytes in extents]
        known = [self.known(start, end - start) for start, end in ranges]
        absent = [(a, b - a) for (a, b), data in zip(ranges, known, strict=True) if data is None]
        windows = self._fetch(absent)
        starts = [window.start for window in windows]
        return [
            windows[bisect_right(starts, start) - 1].cut(start, end) if data is None else data
            for (start, end), data in zip(ranges, known, strict=True)
        ]

    def _clipped(self, offset: int, nbytes: int) -> tuple[int, int]:
        start = min(offset, self._stamp.size)
        return start, min(start + nbytes, self._stamp.size)

    def known(self, offset: int, nbytes: int) -> memoryview | None:
        start, end = self._clipped(offset, nbytes)
        if start == end:
            return memoryview(b"")
        for window in tuple(self._windows):
            if window.start <= start and end <= window.start + len(window.data):
                return window.cut(start, end)
        return None

    def _keep(self, extents: Sequence[tuple[int, int]]) -> list[_Window]:
        windows = self._fetch([(at, min(nbytes, self._stamp.size - at)) for at, nbytes in extents])
        self._windows.extend(windows)
        return windows

    # --- requests ---

    def _fetch(self, extents: Sequence[tuple[int, int]]) -> list[_Window]:
        """The windows that cover extents (offset, nbytes), in file order."""
        runs = runs_of(extents)
        if not runs:
            return []
        parts = [
            [(low, min(low + PART_NBYTES, end)) for low in range(start, end, PART_NBYTES)]
            for start, end in runs
        ]
        engine = self._engine()
        calls = [partial(self._fetch_part, engine, *part) for some in parts for part in some]
        pieces = iter(run(gathered(calls, _MOST_AT_A_TIME)))
        whole = [[next(pieces) for _ in some] for some in parts]
        data = [memoryview(some[0] if len(some) == 1 else b"".join(some)) for some in whole]
        return [_Window(start, one) for (start, _), one in zip(runs, data, strict=True)]

    async def _fetch_part(self, engine: Engine, start: int, end: int) -> Data:
        doing = f"reading {end - start:,} bytes at offset {start:,}"
        return await self._requests.answer(doing, end - start, lambda: engine.fetch(self._stamp, start, end))

    def _engine(self) -> Engine:
        # Made in the thread that asks: some file systems connect when they are made, and wait for the loop.
        return self._engines.get(lambda: _engine_of(self._requests))

    def map(self, nbytes: int) -> NoReturn:
        raise StorageError(f"{self.path}: mapping {nbytes:,} bytes: it is behind a URL", path=self.path)

    def close(self) -> None:
        """See `ByteSource`: clients are of the process, not of this."""


def _engine_of(requests: Requests) -> Engine:
    """The engine of an object, in this process; MissingDependencyError, OptionError."""
    url = requests.url
    if url.scheme in WEB and "::" not in url.url:
        from edcache.backends.remote.http import plain_engine

        return plain_engine(requests)
    filesystem, path = filesystem_of(requests)
    if url.scheme == "hf" and "::" not in url.url:
        from edcache.backends.remote.hub import HubEngine

        return HubEngine(filesystem, path)
    return FilesystemEngine(filesystem, path)
