"""Look-ahead: threads that fetch the next samples of an order into copies of far archives.

A thread for an iteration asks the order what comes next, and each copy which blocks of it are missing, and passes
requests of some 4 MiB to eight threads. It is ahead of the reading by some 256 MiB at most.

    waits      until the first batch is made (`begin`), which has the wire alone; then for the first batches of other
               readers of a copy: at most 10 seconds each, 0.2 where the reader does not tell
    fetches    in the order of need
    ended      the order or the iteration has ended, a disk has no room, or a request has failed

- It is a hint. A read fetches for itself any block that is not here, and raises the error that ended a look-ahead.
- Blocks have claims (backends/mirror/blocks.py): no two processes fetch one, and a look-ahead waits for none of them.
- An iteration that ends waits for its threads: a later fork finds none.

What must never happen: that an error of it reaches the loop; that an iteration waits for a thread that waits for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

import numpy as np

from edcache import format
from edcache.base import EdcacheError, Ints
from edcache.dataset.root import Reading, SampleRoot
from edcache.reader import Session
from edcache.storage import Prefetch

logger = logging.getLogger("edcache")

OrderItem = TypeVar("OrderItem")
Shares = list[tuple[Session, Ints]]
"""Samples of several archives: the session of each, and indices int64 [n]."""
_Range = tuple[int, int]

# Bytes of look-ahead; bytes of a request; requests at once.
_AHEAD_NBYTES: Final = 1 << 28
_REQUEST_NBYTES: Final = 1 << 22
_REQUESTS: Final = 8
# Least samples of one look at the order, and most samples ahead of the reading.
_STEP, _MOST_SAMPLES = 64, 1 << 17
_SECONDS: Final = 0.01
# Seconds for which the first batches of all readers of a copy have the wire alone; fewer for a DataLoader, which does
# not tell when its first batch is made.
_HEAD_START, _UNTOLD_HEAD_START = 10.0, 0.2


def looking_ahead(
    reading: Reading, epoch: int, positions: Callable[[int, int], Ints], count: int
) -> Ahead | None:
    """Make the look-ahead of an order in an epoch; None if no archive is far.

    Args:
        positions: returns the positions in the items [a, b) of the order. count: of the items.
    """
    sessions = _far_sessions(reading.root)
    if not sessions or not count:
        return None
    return Ahead(sessions, lambda low, high: [*_far_shares(reading, positions(low, high), epoch)], 0, count)


def _far_sessions(root: SampleRoot) -> list[Session]:
    """List the sessions of far archives that a look-ahead can fetch from."""
    found = [reader.session for reader in root.readers if reader.options.local]
    return [session for session in found if session.file.ahead is not None and session.index.present]


def _far_shares(reading: Reading, positions: Ints, epoch: int) -> Iterator[tuple[Session, Ints]]:
    """Yield the samples of each far archive that a read of some positions takes."""
    for share in reading.stored(positions, epoch):
        yield from ((session, share.positions) for session in _far_sessions(share.part.root))


class Ahead:
    """Look-ahead in an order: fetches items before they are read.

    Args:
        sessions: of far archives, whose files have `ahead`.
        take: returns their samples in the items [a, b) of the order. start, stop: range of the items to be read.
    """

    def __init__(
        self, sessions: Sequence[Session], take: Callable[[int, int], Shares], start: int, stop: int
    ) -> None:
        self._sessions, self._take = sessions, take
        self._reached, self._stop = start, stop
        self._head_start = _UNTOLD_HEAD_START
        self._begun, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="edcache-ahead", daemon=True)

    def begin(self) -> None:
        """Start to fetch: the first batch is made."""
        self._begun.set()

    def follow(self, items: Iterator[OrderItem], step: int, *, tells: bool = False) -> Iterator[OrderItem]:
        """Yield the items of the order, `step` at a time, while later ones are fetched.

        tells: True if `begin` will be called.
        """
        is_ending, reader = sys.is_finalizing, threading.get_ident()
        self._head_start = _HEAD_START if tells else _UNTOLD_HEAD_START
        try:
            self._thread.start()
            for item in items:
                yield item
                self._reached += step
        finally:
            self._ended.set()
            self._begun.set()
            # A later fork then copies no thread. But the collector of garbage may end an iteration in the thread of
            # requests, for which this thread waits (test_ahead.py, test_an_iteration_that_another_thread_collects_*).
            if not is_ending() and self._thread.is_alive() and threading.get_ident() == reader:
                self._thread.join()

    def _let_others_begin(self) -> None:
        """Wait for the first batch of this reader, and then of other readers."""
        held = [prefetch.hold() for prefetch in self._prefetches()]
        self._begun.wait(self._head_start)
        for one in held:
            one.close()
        end = time.monotonic() + _HEAD_START
        while time.monotonic() < end and any(one.is_held() for one in self._prefetches()):
            if self._ended.wait(_SECONDS):
                return

    def _prefetches(self) -> list[Prefetch]:
        return [session.file.ahead for session in self._sessions if session.file.ahead is not None]

    def _run(self) -> None:
        pool = ThreadPoolExecutor(_REQUESTS, "edcache-ahead")
        try:
            self._let_others_begin()
            self._fetch_ahead(pool)
        except (
            EdcacheError,
            RuntimeError,
        ) as error:  # the read of the sample raises it too; or no thread starts
            logger.debug("%s: looking ahead ended: %s", self._sessions[0].path, error)
        finally:
            pool.shutdown(wait=True, cancel_futures=self._ended.is_set())

    def _fetch_ahead(self, pool: ThreadPoolExecutor) -> None:
        position = self._reached
        if position >= self._stop:  # all was read while others began
            return
        length = max(1, sum(len(indices) for _, indices in self._take(position, position + 1)))
        present = sum(session.index.present for session in self._sessions)
        each = max(1, length * sum(session.nbytes for session in self._sessions) // max(1, present))
        window = max(1, min(_AHEAD_NBYTES // each, _MOST_SAMPLES // length))
        step = min(window, max(1, _STEP // length, _REQUEST_NBYTES // 8 // each))
        queue = _Queue()
        running: list[Future[None]] = []
        while (queue.nbytes or running or position < self._stop) and not self._ended.is_set():
            for future in [future for future in running if future.done()]:
                running.remove(future)
                future.result()
            if not all(session.file.ahead and session.file.ahead.has_room for session in self._sessions):
                return
            position = max(position, self._reached)
            end = min(position + step, self._stop, self._reached + window)
            if queue.nbytes < _REQUEST_NBYTES and position < end:
                for session, indices in self._take(position, end):
                    queue.add(session, indices)
                position = end
            elif queue.nbytes and len(running) < _REQUESTS:
                running.append(pool.submit(queue.fetch, *queue.pop()))
            else:
                self._ended.wait(_SECONDS)


class _Queue:
    """Missing ranges, in the order of need. nbytes: of ranges that wait for a request."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._waiting: deque[tuple[Prefetch, _Range]] = deque()
        # Waiting ones, and requested ones.
        self._known: set[tuple[Prefetch, _Range]] = set()

    def add(self, session: Session, indices: Ints) -> None:
        """Append the missing ranges of some samples."""
        prefetch = session.file.ahead
        if prefetch is not None:
            missing = ((prefetch, one) for one in prefetch.missing(*_places(session, indices)))
            new = [one for one in missing if one not in self._known]
            self._waiting += new
            self._known.update(new)
            self.nbytes += sum(end - start for _, (start, end) in new)

    def pop(self) -> tuple[Prefetch, list[_Range]]:
        """Take the first ranges of one archive, up to the size of a request."""
        prefetch, ranges, nbytes = self._waiting[0][0], list[_Range](), 0
        while self._waiting and self._waiting[0][0] is prefetch and nbytes < _REQUEST_NBYTES:
            _, (start, end) = self._waiting.popleft()
            ranges.append((start, end))
            nbytes += end - start
        self.nbytes -= nbytes
        return prefetch, ranges

    def fetch(self, prefetch: Prefetch, ranges: list[_Range]) -> None:
        """Fetch ranges, in another thread."""
        prefetch.fetch(ranges)
        self._known.difference_update([(prefetch, one) for one in ranges])


def _places(session: Session, indices: Ints) -> tuple[Ints, Ints]:
    """Return start and end of records in the file: int64 [m] each, without absent ones, and rows of a wrong answer."""
    rows = session.index.rows(indices)
    rows = rows[(rows["flags"] & format.PRESENT > 0) & (rows["offset"] < session.nbytes)]
    rows = rows[rows["nbytes"] <= session.nbytes - rows["offset"].astype(np.int64)]
    return rows["offset"].astype(np.int64), format.stored_ends(rows)
