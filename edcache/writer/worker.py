"""What runs in a worker process of a fill, and the board by which its parent knows of it."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing import connection, parent_process
from typing import Any, Final

import torch

from edcache.writer.job import Job, refusal, traceback_of
from edcache.writer.part import Part, Presence, Watch

# Whoever lost its parent may finish its sample, and publish, for so long.
GRACE_SECONDS = 2.0
# More samples than this that kill or hang their process, and something else is wrong.
MOST_ASIDE: Final = 1024
_LOOK_SECONDS = 0.5
_COUNT_SECONDS = 0.01


class Stopped(KeyboardInterrupt):
    """The fill ends for this worker; what it has computed is to be published."""


class Board:
    """A few numbers for each worker in shared memory, which the parent reads.

    One writer each, so no lock that a killed process could hold.

    Args:
        context: a multiprocessing context. workers: how many.
    """

    def __init__(self, context: Any, workers: int) -> None:
        self._index = context.RawArray("q", workers)
        self._begun = context.RawArray("q", workers)
        self._published = context.RawArray("q", workers)
        self._aside = context.RawArray("q", MOST_ASIDE)
        self._count = context.RawValue("q", 0)
        self._stop = context.RawValue("b", 0)

    def begin(self, worker: int, index: int) -> None:
        """A worker computes a sample now."""
        self._index[worker] = index + 1
        self._begun[worker] += 1

    def end(self, worker: int) -> None:
        """It computes none."""
        self._index[worker] = 0

    def at(self, worker: int) -> tuple[int | None, int]:
        """Which sample a worker computes, None between samples, and how many it has begun."""
        index = self._index[worker]
        return (index - 1 if index else None), self._begun[worker]

    def is_at_another(self, worker: int, index: int) -> bool:
        """Whether another worker computes a sample, or ended in it, which the parent has not counted yet."""
        return any(at == index + 1 for number, at in enumerate(self._index) if number != worker)

    def published(self, worker: int, samples: int) -> None:
        """A worker has published some more."""
        self._published[worker] += samples

    @property
    def total(self) -> int:
        """Samples that all workers have published."""
        return sum(self._published)

    def set_aside(self, index: int) -> None:
        """Let no worker compute a sample any more; at most MOST_ASIDE of them."""
        self._aside[self._count.value] = index + 1
        self._count.value += 1

    def __contains__(self, index: object) -> bool:
        """Whether a sample was set aside."""
        count = self._count.value
        return count > 0 and isinstance(index, int) and index + 1 in self._aside[:count]

    def stop(self) -> None:
        """Let every worker end before its next sample."""
        self._stop.value = 1

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return bool(self._stop.value)


def work(job: Job, board: Board, number: int, results: Any) -> None:
    """Fill together with others until nothing is missing.

    Sends to `results`: None where nothing is missing, False where it was ended; or, of the exception that
    ended the fill, the traceback as text, then the exception and its cause, where each can be sent.
    """
    watch = _Watch(board, number)
    _settle(watch, number)
    error: BaseException | None = None
    is_stopped = False
    try:
        with closing(job.open()) as appender:
            appender.join_fillers()
            presence = Presence(appender, job.length, job.since)
            Part(job, appender, presence, watch).run(presence.missing_claims)
    except Stopped:
        is_stopped = True
    except KeyboardInterrupt as raised:  # by the source: a signal raises Stopped here
        error = refusal(raised, board.at(number)[0] or 0, job.path)
        error.__cause__ = raised
    except BaseException as raised:  # noqa: BLE001 - raised in the parent
        error = raised
    with suppress(BrokenPipeError):
        results.send(False) if is_stopped else _report(error, results)
    results.close()


def _report(error: BaseException | None, results: Any) -> None:
    if error is None:
        results.send(None)
        return
    results.send(traceback_of(error))
    cause = error.__cause__
    # Where tblib is installed, as by Dask, an exception is pickled with these, which may not be possible.
    error.__cause__ = error.__context__ = None
    for part in (error, cause):
        # What cannot be sent is of the user's class; the traceback tells of it.
        try:
            results.send(part)
        except Exception as why:  # noqa: BLE001
            results.send(f"{type(why).__name__}: {why}")


class _Watch(Watch):
    def __init__(self, board: Board, number: int) -> None:
        self._board = board
        self._number = number
        self._is_open = False
        self._is_asked = False

    def is_aside(self, index: int) -> bool:
        # The kernel lets go of a dead worker's claim before the parent has counted that death
        # (test_crew.py, test_nobody_begins_a_sample_whose_last_death_was_not_yet_counted).
        while self._board.is_at_another(self._number, index):
            with self.interruptible():
                time.sleep(_COUNT_SECONDS)
        return index in self._board

    def begin(self, index: int) -> None:
        if self._is_asked or self._board.stopped:
            raise Stopped
        self._board.begin(self._number, index)

    def done(self, nbytes: int) -> None:
        self._board.end(self._number)

    def published(self, samples: int) -> None:
        self._board.published(self._number, samples)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        self._is_open = True
        try:
            if self._is_asked:
                raise Stopped
            yield
        finally:
            self._is_open = False

    def interrupt(self, signum: int, frame: object) -> None:
        """End the sample that is being computed; a publication goes on to its end."""
        self._is_asked = True
        if self._is_open:
            self._is_open = False
            raise Stopped


def _settle(watch: _Watch, number: int) -> None:
    signal.signal(signal.SIGINT, watch.interrupt)
    signal.signal(signal.SIGTERM, watch.interrupt)
    torch.set_num_threads(1)
    # A fork inherits the generators, and all workers would draw the same numbers.
    seed = (int(torch.randint(1 << 31, ())) + number) % (1 << 32)
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    threading.Thread(target=_end_with_parent, name="edcache-parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is None:
        return
    # Of forked workers each holds open what tells the others that the parent is gone.
    is_child = os.getppid() == parent.pid
    while not connection.wait([parent.sentinel], _LOOK_SECONDS):
        if is_child and os.getppid() != parent.pid:
            break
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
