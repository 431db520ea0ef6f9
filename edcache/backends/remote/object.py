"""An object behind a URL as a `ByteSource`, which must stay what it was when it was opened."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from edcache import format
from edcache.backends import Url
from edcache.backends.remote.filesystem import FilesystemEngine, filesystem_of
from edcache.backends.remote.requests import Changed, Data, Engine, ObjectStamp, Requests, gathered, run
from edcache.base import PerProcess, Sound, StorageError
from edcache.storage import PART_NBYTES, ByteSource

if TYPE_CHECKING:
    pass

# Part of the bytes of extents which may come beside them, as gaps that make two requests one; and any gap that is
# smaller than the headers of a request. A small range of nginx on the same machine takes 0.4 ms, in which 100 KiB come.
_GAPS: Final = 1 / 8
_SMALL_GAP, _MOST_GAP = 1 << 9, 1 << 16
_MOST_AT_A_TIME: Final = 64
# `pread` fetches at least so much: the header of an entry comes with its table, which is read after a walk.
_AHEAD_NBYTES: Final = 1 << 16
_MOST_WINDOWS: Final = 256
WEB: Final = ("http", "https")


def runs_of(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the runs (start, end) that cover extents (offset, nbytes), in file order; a run is one request.

    The smallest gaps are read too, as `_GAPS` and `_SMALL_GAP` allow. No run is longer than `PART_NBYTES`, unless one
    extent is.
    """
    covered: list[tuple[int, int]] = []
    for start, end in sorted((offset, offset + nbytes) for offset, nbytes in extents if nbytes):
        if covered and start <= covered[-1][1]:
            covered[-1] = covered[-1][0], max(covered[-1][1], end)
        else:
            covered.append((start, end))
    gaps = [after[0] - before[1] for before, after in pairwise(covered)]
    room = int(_GAPS * sum(end - start for start, end in covered))
    joined = set()
    for number in sorted(range(len(gaps)), key=gaps.__getitem__):
        room -= gaps[number] * (gaps[number] > _SMALL_GAP)
        if room < 0 or gaps[number] > _MOST_GAP:
            break
        joined.add(number)
    runs = covered[:1]
    for number, (start, end) in enumerate(covered[1:]):
        if number in joined and end - runs[-1][0] <= PART_NBYTES:
            runs[-1] = runs[-1][0], end
        else:
            runs.append((start, end))
    return runs


class _Window(NamedTuple):
    """Bytes of the object that were fetched, from an offset on."""

    start: int
    data: memoryview

    def cut(self, start: int, end: int) -> memoryview:
        return self.data[start - self.start : end - self.start]

    def has_part(self, extents: Sequence[tuple[int, int]]) -> bool:
        end = self.start + len(self.data)
        return any(offset < end and self.start < offset + nbytes for offset, nbytes in extents)


class RemoteObject(ByteSource):
    """One state of an object behind a URL.

    Opening makes two requests at once, for its first page and its end. The last 256 windows that were opened
    or read by `pread` are kept. Event loop and clients are of the process that uses it.
    """

    by_request = True

    def __init__(self, url: Url) -> None:
        self.path = str(url)
        self._requests = Requests(url)
        self.tries = self._requests.tries
        self._engines: PerProcess[Engine] = PerProcess()
        engine = self._engine()
        nbytes = format.PAGE + format.TAIL_NBYTES
        self._stamp, head, tail = run(
            self._requests.answer("opening it", nbytes, lambda: engine.begin(format.PAGE, format.TAIL_NBYTES))
        )
        self._tag: tuple[object, ...] | None = None
        self._windows = deque([_Window(0, memoryview(bytes(head)))], _MOST_WINDOWS)
        size = self._stamp.size
        if len(head) < size:
            # What is aligned in the file is aligned in memory.
            start = format.align(size - len(tail), 64)
            self._windows.append(_Window(start, memoryview(bytes(tail[start - size :]))))

    # --- one state ---

    def size(self) -> int:
        return self._stamp.size

    def identity(self) -> ObjectStamp:
        return self._stamp

    def tag(self) -> tuple[object, ...]:
        if self._tag is None:
            # With its head: a path has no query, and some servers send no tag.
            head = self.pread(0, format.PAGE, format.is_head)
            text = f"{self.path}\0{self._stamp.size}\0{self._stamp.tag}\0"
            self._tag = (hashlib.sha256(text.encode() + head).hexdigest()[:32],)
        return self._tag

    def reopened(self) -> RemoteObject:
        return RemoteObject(self._requests.url)

    def check_unchanged(self) -> None:
        """See `ByteSource`: one request."""
        run(self._requests.answer("looking for its state", 0, partial(self._look, self._engine())))

    async def _look(self, engine: Engine) -> None:
        stamp = await engine.stamp()
        if stamp != self._stamp:
            text = (
                f"it has {stamp.size:,} bytes now, {self._stamp.size:,} when it was opened, or another state"
            )
            raise Changed(text)

    # --- bytes ---

    def pread(self, offset: int, nbytes: int, is_sound: Sound | None = None) -> bytes:
        start, end = self._clipped(offset, nbytes)
        data = self.known(start, end - start)
        if data is None and end - start > _AHEAD_NBYTES:  # hundreds of these would fill the memory
            (data,) = self.read_many([(start, end - start)])
        elif data is None:
            data = self._keep([(start, _AHEAD_NBYTES)])[0].cut(start, end)
        if is_sound is not None:
            (data,) = self.until_sound([(start, end - start)], [data], [is_sound])
        return bytes(data)

    def read_many(
        self, extents: Sequence[tuple[int, int]], checks: Sequence[Sound] | None = None
    ) -> list[memoryview]:
        """See `ByteSource`: up to 64 requests at a time; a run of over 4 MiB is several."""
        ranges = [self._clipped(offset, nbytes) for offset, nbytes in extents]
        known = [self.known(start, end - start) for start, end in ranges]
        absent = [(a, b - a) for (a, b), data in zip(ranges, known, strict=True) if data is None]
        windows = self._fetch(absent)
        starts = [window.start for window in windows]
        data = [
            windows[bisect_right(starts, start) - 1].cut(start, end) if data is None else data
            for (start, end), data in zip(ranges, known, strict=True)
        ]
        return data if checks is None else self.until_sound(extents, data, checks)

    def ask_again(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: windows with a part of them go."""
        self._windows = deque((one for one in self._windows if not one.has_part(extents)), _MOST_WINDOWS)
        return self.read_many(extents)

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
