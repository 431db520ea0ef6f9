"""Looking ahead: a thread that lets the copy of a far archive fetch what an order needs next."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from edcache.base import Ints
from edcache.reader import Session, ahead_nbytes, prepare

logger = logging.getLogger("edcache")

Item = TypeVar("Item")

# Samples that are asked for at first, so that the first batch waits for little; and bytes to ask for at once.
_FIRST, _AT_ONCE_NBYTES = 64, 1 << 23
_MOST_SAMPLES: Final = 1 << 17
_SECONDS: Final = 0.01


class Ahead:
    """Fetches what the items of an order need, before they are read.

    Args:
        session: of an archive whose `ahead_nbytes` is not 0.
        take: gives the archive's indices in the items [a, b) of the order. start, stop: which items are read.
    """

    def __init__(self, session: Session, take: Callable[[int, int], Ints], start: int, stop: int) -> None:
        self._session, self._take = session, take
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
        try:
            self._fetch_ahead()
        except Exception as error:  # noqa: BLE001 - whoever reads the sample meets it, and raises it
            logger.debug("%s: looking ahead ended: %s", self._session.path, error)

    def _fetch_ahead(self) -> None:
        position = self._reached
        # Where pieces end that were asked for and not read yet, and their bytes.
        asked: deque[tuple[int, int]] = deque()
        session, length = self._session, max(1, len(self._take(position, position + 1)))
        limit = ahead_nbytes(session)
        each = max(1, length * session.nbytes // max(1, session.present))
        window = max(1, min(limit // each, _MOST_SAMPLES // length))
        count = max(1, _FIRST // length)
        while position < self._stop and not self._ended.is_set():
            while asked and asked[0][0] <= self._reached:
                asked.popleft()
            if sum(nbytes for _, nbytes in asked) >= limit:
                self._ended.wait(_SECONDS)
                continue
            position = max(position, self._reached)
            end = min(position + count, self._stop)
            around = partial(self._take, position, min(position + window, self._stop))
            nbytes = prepare(session, self._take(position, end), around)
            if not ahead_nbytes(session):
                return
            asked.append((end, nbytes))
            position = end
            if nbytes > _AT_ONCE_NBYTES:
                count = max(1, count // 2)
            elif 2 * nbytes < _AT_ONCE_NBYTES and count < window:
                count *= 2
