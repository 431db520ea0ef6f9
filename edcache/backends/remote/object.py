"""An object behind a URL as a `ByteSource`: it must stay what it was when it was opened."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn

from edcache import format
from edcache.backends.remote import loop
from edcache.backends.remote.engines import engine_of
from edcache.backends.remote.extents import Run, cut, runs_of
from edcache.backends.remote.request import Engine, Patience, Stamp, answered, patience_of
from edcache.backends.remote.url import Url
from edcache.base import PerProcess, StaleArchiveError, StorageError
from edcache.storage import ByteSource

# What is fetched of the end at once: the seal's headers and directory of some thousand entries.
TAIL_NBYTES: Final = 1 << 16
# An index up to so large is one request, for some two million samples; a larger one comes in parts.
_INDEX_PART_NBYTES: Final = 1 << 26
_MOST_AT_A_TIME: Final = 32
# What is fetched ahead by `pread`: so much at first, twice as much as long as it goes on in order.
_AHEAD_NBYTES, _MOST_AHEAD_NBYTES = 1 << 16, 1 << 24
# The header of an entry, which a walk reads, comes with its table, which is read after the walk.
_MOST_WALKED: Final = 256


class _Window(NamedTuple):
    """Bytes of the object that were fetched, from an offset on."""

    start: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def holds(self, start: int, end: int) -> bool:
        """Whether it has these bytes."""
        return self.start <= start and end <= self.end

    def part(self, start: int, end: int) -> memoryview:
        """Those bytes, not copied."""
        return self.data[start - self.start : end - self.start]


class RemoteObject(ByteSource):
    """One state of an object behind a URL.

    Opening makes one request, for its state and its first page. The first `pread` behind that page fetches
    the end, and where the archive is sealed what lies from index.arrow to the header of labels.arrow: two
    more. All of that is kept.

    Raises:
        StorageError: "https://example.org/train.zip: reading 4,096 bytes at offset 8,192: 503 Service
            Unavailable, asked 5 times". A request is limited to `request_timeout` seconds and one more for
            each half MiB, and made `request_tries` times; both are storage options.
        StaleArchiveError: the object was replaced or deleted since it was opened.
    Safety: threads, fork. Event loop and clients are of the process that uses it.
    """

    by_request = True

    def __init__(self, url: Url) -> None:
        self.path = url.shown
        self._url = url
        self._patience: Patience
        self._patience, self._options = patience_of(url.options)
        self._engines: PerProcess[Engine] = PerProcess()
        self._stamp: Stamp
        self._stamp, head = self._ask("opening it", format.PAGE, lambda engine: engine.begin(format.PAGE))
        self._windows = [_Window(0, memoryview(head))]
        self._ahead = _Window(0, memoryview(b""))
        self._walked: deque[_Window] = deque(maxlen=_MOST_WALKED)
        self._has_end = len(head) == self._stamp.size

    # --- one state ---

    def size(self) -> int:
        """See `ByteSource`."""
        size: int = self._stamp.size
        return size

    def identity(self) -> Stamp:
        """See `ByteSource`."""
        return self._stamp

    def tag(self) -> tuple[object, ...]:
        """See `ByteSource`."""
        told = f"{self.path}\0{self._stamp.size}\0{self._stamp.tag}"
        return (hashlib.sha256(told.encode()).hexdigest()[:32],)

    def reopened(self) -> RemoteObject:
        """See `ByteSource`."""
        return RemoteObject(self._url)

    def check_unchanged(self) -> None:
        """See `ByteSource`: one request."""
        found = self._ask("looking for its state", 0, lambda engine: engine.stamp())
        if found != self._stamp:
            raise StaleArchiveError(
                f"{self.path}: the object was replaced since it was opened: it has {found.size:,} bytes and "
                f"the state {found.tag[:80] or 'unknown'}, {self._stamp.size:,} and "
                f"{self._stamp.tag[:80] or 'unknown'} then; open it again"
            )

    # --- bytes ---

    def pread(self, offset: int, nbytes: int) -> bytes:
        """See `ByteSource`."""
        start, end = self._clipped(offset, nbytes)
        found = self._kept(start, end)
        if found is None and not self._has_end:
            self._fetch_end()
            found = self._kept(start, end)
        return bytes(self._fetched_ahead(start, end) if found is None else found)

    def read_many(self, extents: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ByteSource`: up to 32 requests at a time; a run of over 8 MiB is several."""
        clipped = [self._clipped(offset, nbytes) for offset, nbytes in extents]
        kept = [self._kept(start, end) for start, end in clipped]
        absent = [
            (start, end - start) for (start, end), found in zip(clipped, kept, strict=True) if found is None
        ]
        runs = runs_of(absent)
        data = self._fetch(runs)
        return [
            cut(runs, data, start, end - start) if found is None else found
            for (start, end), found in zip(clipped, kept, strict=True)
        ]

    def _clipped(self, offset: int, nbytes: int) -> tuple[int, int]:
        size = self._stamp.size
        start = min(offset, size)
        return start, min(start + nbytes, size)

    def _kept(self, start: int, end: int) -> memoryview | None:
        if start == end:
            return memoryview(b"")
        for window in (*self._windows, self._ahead, *self._walked):
            if window.holds(start, end):
                return window.part(start, end)
        return None

    def _fetch_end(self) -> None:
        """Fetch the tail, and what a seal has before it: the index and the header behind it."""
        size = self._stamp.size
        first = self._windows[0].end
        start = max(first, (size - TAIL_NBYTES) // 64 * 64)
        (tail,) = self._fetch([Run(start, size)])
        windows = [_Window(start, tail)]
        seal = format.parse_tail(bytes(tail[-format.TAIL_NBYTES :]), size)
        if seal is not None and first <= seal.index_offset < min(start, seal.labels_offset):
            end = min(seal.labels_offset + format.MAX_HEADER_NBYTES, size)
            windows = self._with_index(Run(seal.index_offset, min(end, start)), windows[0], end > start)
        self._windows = [*self._windows, *windows]
        self._has_end = True

    def _with_index(self, run: Run, tail: _Window, is_joined: bool) -> list[_Window]:
        (index,) = self._fetch([run], _INDEX_PART_NBYTES)
        if not is_joined:
            return [_Window(run.start, index), tail]
        return [_Window(run.start, memoryview(b"".join((index, tail.data))))]

    def _fetched_ahead(self, start: int, end: int) -> memoryview:
        before = self._ahead
        goes_on = before.start < start <= before.end
        ahead = min(2 * len(before.data), _MOST_AHEAD_NBYTES) if goes_on else _AHEAD_NBYTES
        run = Run(start, min(max(end, start + ahead), self._stamp.size))
        (data,) = self._fetch([run])
        self._ahead = _Window(start, data)
        if not goes_on:
            self._walked.append(self._ahead)
        return data[: end - start]

    # --- requests ---

    def _fetch(self, runs: Sequence[Run], part_nbytes: int | None = None) -> list[memoryview]:
        if not runs:
            return []
        parts = [run.parts() if part_nbytes is None else run.parts(part_nbytes) for run in runs]
        wanted = [part for some in parts for part in some]
        found = iter(loop.run(self._fetch_parts(self._engine(), wanted)))
        return [
            self._joined([next(found) for _ in of_run], run) for of_run, run in zip(parts, runs, strict=True)
        ]

    def _joined(self, pieces: list[bytes | bytearray], run: Run) -> memoryview:
        if len(pieces) == 1:
            return memoryview(pieces[0])
        try:
            return memoryview(b"".join(pieces))
        except MemoryError:
            raise StorageError(f"{self.path}: no memory for {run.end - run.start:,} bytes") from None

    async def _fetch_parts(self, engine: Engine, parts: list[tuple[int, int]]) -> list[bytes | bytearray]:
        turns = asyncio.Semaphore(_MOST_AT_A_TIME)

        async def fetch(start: int, end: int) -> bytes | bytearray:
            nbytes = end - start
            doing = f"reading {nbytes:,} bytes at offset {start:,}"
            async with turns:
                return await answered(
                    self._url, self._patience, doing, nbytes, lambda: engine.fetch(self._stamp, start, end)
                )

        tasks = [asyncio.ensure_future(fetch(start, end)) for start, end in parts]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def _ask(self, doing: str, nbytes: int, ask: Any) -> Any:
        engine = self._engine()
        return loop.run(answered(self._url, self._patience, doing, nbytes, lambda: ask(engine)))

    def _engine(self) -> Engine:
        # Made in the thread that asks: some file systems connect when they are made, and wait for the loop.
        return self._engines.get(lambda: engine_of(self._url, self._options))

    def map(self, nbytes: int) -> NoReturn:
        """See `ByteSource`: it cannot be."""
        raise StorageError(f"{self.path}: mapping {nbytes:,} bytes: it is behind a URL")

    def close(self) -> None:
        """See `ByteSource`: clients are of the process, not of this."""
