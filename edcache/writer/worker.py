"""What runs in a worker process of a fill, and the board by which its parent knows of it."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import connection, parent_process
from typing import Any, Final

import torch

from edcache.writer.job import Job, refusal, traceback_of
from edcache.writer.part import Watch, help_fill

# Whoever lost its parent may finish its sample, and publish, for so long.
GRACE_SECONDS = 2.0
# More samples than this that kill or hang their process, and something else is wrong.
MOST_ASIDE: Final = 1024
_LOOK_SECONDS = 0.5
_COUNT_SECONDS = 0.01


class Stopped(KeyboardInterrupt):
    """The fill ends for this worker; what it has computed is to be published."""


class Board:
    """What the workers and their parent know of each other, in shared memory.

    Each number has one writer, so there is no lock that a killed process could hold.

    Attributes:
        at: by worker, the sample that it computes, counted from 1, or 0. begun, computed, published: so many
            until now.
        aside, count: samples, counted from 1, that no worker is to compute any more, and how many.
        stop: whether every worker is to end before its next sample.
    """

    def __init__(self, context: Any, workers: int) -> None:
        self.at, self.begun, self.computed, self.published = (
            context.RawArray("q", workers) for _ in range(4)
        )
        self.aside, self.count = context.RawArray("q", MOST_ASIDE), context.RawValue("q", 0)
        self.stop = context.RawValue("b", 0)

    def set_aside(self, index: int) -> None:
        """Let no worker compute a sample any more; at most MOST_ASIDE of them."""
        self.aside[self.count.value] = index + 1
        self.count.value += 1

    def __contains__(self, index: int) -> bool:
        """Whether a sample was set aside."""
        count = self.count.value
        return count > 0 and index + 1 in self.aside[:count]


def work(job: Job, board: Board, number: int, results: Any) -> None:
    """Fill together with others until nothing is missing.

    Sends to `results`: True where nothing is missing, False where it was ended; or, of the exception that
    ended the fill, the traceback as text, then the exception and its cause, where each can be sent.
    """
    watch = _Watch(board, number)
    _settle(watch, number)
    error: BaseException | None = None
    try:
        help_fill(job, watch)
    except Stopped as stopped:
        error = stopped
    except KeyboardInterrupt as raised:  # by the source: a signal raises Stopped here
        error = refusal(raised, max(0, board.at[number] - 1), job.path)
        error.__cause__ = raised
    except BaseException as raised:  # noqa: BLE001 - raised in the parent
        error = raised
    with suppress(BrokenPipeError):
        if error is None or isinstance(error, Stopped):
            results.send(error is None)
        else:
            _report(error, results)
    results.close()


def _report(error: BaseException, results: Any) -> None:
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
        # Another computes it, or died in it: the kernel lets go of a claim before the parent has counted that
        # (test_crew.py, test_nobody_begins_a_sample_whose_last_death_was_not_yet_counted).
        # This worker's own place is empty between samples.
        while index + 1 in self._board.at[:]:
            with self.interruptible():
                time.sleep(_COUNT_SECONDS)
        return index in self._board

    def begin(self, index: int) -> None:
        if self._is_asked or self._board.stop.value:
            raise Stopped
        self._board.at[self._number] = index + 1
        self._board.begun[self._number] += 1

    def done(self, nbytes: int, samples: int = 1) -> None:
        self._board.at[self._number] = 0
        self._board.computed[self._number] += samples * (nbytes > 0)

    def published(self, samples: int) -> None:
        self._board.published[self._number] += samples

    def interruptible(self) -> _Watch:
        return self

    def __enter__(self) -> None:
        self._is_open = True
        if self._is_asked:
            self._is_open = False
            raise Stopped

    def __exit__(self, *error: object) -> None:
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
