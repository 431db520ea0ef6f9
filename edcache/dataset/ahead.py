"""Looking ahead: threads that let the copies of far archives fetch what an order needs next."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import numpy as np

from edcache.base import Ints
from edcache.reader import Session, ahead_nbytes, prepare

logger = logging.getLogger("edcache")

Item = TypeVar("Item")
Shares = list[tuple[Session, Ints]]
"""Which samples of which archives."""

# Samples that are asked for at first, so that the first batch waits for little; and bytes to ask for at once.
_FIRST, _AT_ONCE_NBYTES = 64, 1 << 23
_MOST_SAMPLES: Final = 1 << 17
_SECONDS: Final = 0.01
# Pieces on their way: one crosses the wire while the next is asked for. Archives that are asked at once.
_PIECES: Final = 3
_THREADS: Final = 8


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
        self._reached, self._stop = start, stop
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
        position = self._reached
        # Pieces of the order that are asked for; where those end that came, and their bytes.
        on_way: deque[tuple[int, int, list[Future[int]]]] = deque()
        asked: deque[tuple[int, int]] = deque()
        sessions = self._sessions
        length = max(1, sum(len(indices) for _, indices in self._take(position, position + 1)))
        limit = min(map(ahead_nbytes, sessions))
        present = sum(session.present for session in sessions)
        each = max(1, length * sum(session.nbytes for session in sessions) // max(1, present))
        window = max(1, min(limit // each, _MOST_SAMPLES // length))
        count = max(1, _FIRST // length)
        while position < self._stop and not self._ended.is_set():
            while on_way and all(future.done() for future in on_way[0][2]):
                begin, end, futures = on_way.popleft()
                nbytes = sum(future.result() for future in futures)
                asked.append((end, nbytes))
                # At most four times as many: the next may lie less together.
                count = end - begin
                count = max(1, min(window, 4 * count, count * _AT_ONCE_NBYTES // max(1, nbytes)))
            while asked and asked[0][0] <= self._reached:
                asked.popleft()
            if not all(map(ahead_nbytes, sessions)):
                return
            expected = len(on_way) * max(count * each, _AT_ONCE_NBYTES // 2)
            is_enough = bool(on_way or asked) and sum(nbytes for _, nbytes in asked) + expected >= limit
            if is_enough or len(on_way) == _PIECES:
                self._ended.wait(_SECONDS)
                continue
            position = max(position, self._reached)
            end = min(position + count, self._stop)
            futures = [
                pool.submit(prepare, session, indices, partial(self._around, session, position, window))
                for session, indices in self._take(position, end)
            ]
            on_way.append((position, end, futures))
            position = end

    def _around(self, session: Session, position: int, window: int) -> Ints:
        shares = self._take(position, min(position + window, self._stop))
        own = [indices for other, indices in shares if other is session]
        return np.concatenate(own) if own else np.empty(0, np.int64)
