"""What runs in a worker process of a fill."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, parent_process
from typing import Any

import torch

from edcache.writer.board import Board
from edcache.writer.job import Job, Stopped, refusal, traceback_of
from edcache.writer.part import Part, Watch

# Whoever lost its parent may finish its sample, and publish, for so long.
GRACE_SECONDS = 2.0
_LOOK_SECONDS = 0.5
_COUNT_SECONDS = 0.01


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
        appender = job.open()
        try:
            appender.join_fillers()
            Part(job, appender, watch).run()
        finally:
            appender.close()
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
