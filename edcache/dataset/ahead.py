"""Looking ahead: threads that let the copies of far archives fetch what an order needs next."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

import numpy as np

from edcache.base import Ints
from edcache.reader import Session, ahead_nbytes, expect, lacking, prepare

logger = logging.getLogger("edcache")

Item = TypeVar("Item")
Shares = list[tuple[Session, Ints]]
"""Which samples of which archives."""

# Bytes of a request, which holds what the order needs next, and how many are under way at once.
_REQUEST_NBYTES: Final = 1 << 22
_REQUESTS: Final = 8
# At least so many samples of the order are looked at together, and at most so many before they are read.
_STEP, _MOST_SAMPLES = 64, 1 << 17
_SECONDS: Final = 0.01
# Archives that are asked at once.
_THREADS: Final = 8


class _Part(NamedTuple):
    """Bytes [start, end) of an archive that are not here; items [item, end_item) need them first."""

    session: Session
    start: int
    end: int
    item: int
    end_item: int


class Ahead:
    """Fetches what the items of an order need, before they are read.

    Args:
        sessions: of archives whose `ahead_nbytes` is not 0.
        take: which samples of them are in the items [a, b) of the order. start, stop: which items are read.
    """

    def __init__(
        self, sessions: Sequence[Session], take: Callable[[int, int], Shares], start: int, stop: int
    ) -> None:
        self._sessions, self._take = sessions, take
        self._start, self._reached, self._stop = start, start, stop
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edcache-ahead", daemon=True)

    def follow(self, items: Iterator[Item], step: int) -> Iterator[Item]:
        """The items of the order, `step` at a time, while others are fetched behind them."""
        is_ending = sys.is_finalizing
        try:
            self._thread.start()
            for item in items:
                yield item
                self._reached += step
        finally:
            self._ended.set()
            # Who forks when this is over forks no thread.
            if not is_ending() and self._thread.is_alive():
                self._thread.join()

    def _run(self) -> None:
        pool = ThreadPoolExecutor(_THREADS, "edcache-ahead")
        try:
            self._fetch_ahead(pool)
        except Exception as error:  # noqa: BLE001 - whoever reads the sample meets it, and raises it
            logger.debug("%s: looking ahead ended: %s", self._sessions[0].path, error)
        finally:
            pool.shutdown(wait=True, cancel_futures=self._ended.is_set())

    def _fetch_ahead(self, pool: ThreadPoolExecutor) -> None:
        sessions, position = self._sessions, self._reached
        length = max(1, sum(len(indices) for _, indices in self._take(position, position + 1)))
        limit = min(map(ahead_nbytes, sessions))
        size = min(_REQUEST_NBYTES, limit // _REQUESTS)
        present = sum(session.present for session in sessions)
        each = max(1, length * sum(session.nbytes for session in sessions) // max(1, present))
        window = max(1, min(limit // each, _MOST_SAMPLES // length))
        step = min(window, max(1, _STEP // length, size // 8 // each))
        # What is to be asked for, in the order of need; `known` are those and what is on its way.
        queue: deque[_Part] = deque()
        known: set[tuple[Session, tuple[int, int]]] = set()
        on_way: list[_Request] = []
        # Of what is here and not read yet: the end of the items that need it first, and its bytes.
        unread: deque[tuple[int, int]] = deque()
        expected, full_at = position, -1
        while (queue or on_way or position < self._stop) and not self._ended.is_set():
            for request in [request for request in on_way if request.is_done()]:
                on_way.remove(request)
                known -= request.known()
                if request.is_kept():
                    unread.append((request.end_item, request.nbytes))
                else:
                    # There is no room until more is read: it is looked for again then.
                    position, full_at = min(position, request.item), self._reached
                    queue.clear()
                    known = {part for other in on_way for part in other.known()}
            while unread and unread[0][0] <= self._reached:
                unread.popleft()
            if not all(map(ahead_nbytes, sessions)):
                return
            if self._reached >= expected:
                for session in sessions:
                    expect(session, partial(self._around, session, window), expected == self._start)
                expected = self._reached + window // 4 + 1
            position = max(position, self._reached)
            end = min(position + step, self._stop, self._reached + window)
            asked = sum(request.nbytes for request in on_way) + sum(nbytes for _, nbytes in unread)
            if sum(part.end - part.start for part in queue) < size and position < end:
                for session, indices in self._take(position, end):
                    new = [part for part in lacking(session, indices) if (session, part) not in known]
                    queue += [_Part(session, *part, position, end) for part in new]
                    known |= {(session, part) for part in new}
                position = end
            elif queue and len(on_way) < _REQUESTS and asked < limit and self._reached != full_at:
                request = _Request(queue, size)
                request.futures = [pool.submit(prepare, *share) for share in request.parts.items()]
                on_way.append(request)
            else:
                self._ended.wait(_SECONDS)

    def _around(self, session: Session, window: int) -> Ints:
        # What was drawn last is not read yet: a loader draws ahead of its workers.
        low, high = self._reached - window // 2, self._reached + 4 * window
        shares = self._take(max(low, self._start), min(high, self._stop))
        own = [indices for other, indices in shares if other is session]
        return np.concatenate(own) if own else np.empty(0, np.int64)


class _Request:
    """The first parts of a queue, of so many bytes, which are asked for at once."""

    def __init__(self, queue: deque[_Part], nbytes: int) -> None:
        self.nbytes, self.item = 0, queue[0].item
        self.parts: dict[Session, list[tuple[int, int]]] = {}
        while queue and self.nbytes < nbytes:
            session, start, end, _, self.end_item = queue.popleft()
            self.parts.setdefault(session, []).append((start, end))
            self.nbytes += end - start
        self.futures: list[Future[bool]] = []

    def known(self) -> set[tuple[Session, tuple[int, int]]]:
        """Its parts."""
        return {(session, part) for session, parts in self.parts.items() for part in parts}

    def is_done(self) -> bool:
        """Whether all of it was fetched, or found no room."""
        return all(future.done() for future in self.futures)

    def is_kept(self) -> bool:
        """Whether all of it is here; raises what fetching it raised."""
        return all(future.result() for future in self.futures)
