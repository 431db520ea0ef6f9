"""Worker processes that fill an archive together, and the process that looks after them.

Each runs the loop (writer/loop.py) with an engine of its own, and finds its work by the archive's claims: no batch and
no record passes between processes, and chunks are published as soon as they are due. The process that looks after them
counts what no worker can: a worker that dies is replaced; a batch that ends its process, or takes too long, is computed
one by one by the next workers; a sample that ends its process three times, or takes too long, is recorded as failed,
and every worker sees that when it takes the sample's claim.

What must never happen: that one sample ends workers for ever, or that a worker goes on without its parent.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Final

from edcache.base import OptionError, SourceError, foreign_code
from edcache.format import Failure
from edcache.identity import Recomputed
from edcache.storage import storage_error
from edcache.writer.appender import Appender
from edcache.writer.engine import Again
from edcache.writer.job import Carried, Job, worker_count
from edcache.writer.worker import work

logger = logging.getLogger("edcache")

# Of a worker that imports a script without a main guard, and comes to the call that started it.
_NO_GUARD: Final = 77
_NAME: Final = "edcache-"
# A sample that ends its process so often is not tried again; memory may have been short before.
_DEATHS: Final = 3
_TICK_SECONDS: Final = 0.2
_STOP_SECONDS: Final = 1.5


@dataclass
class _Worker:
    """Worker process.

    report: int64 [3], written by the worker alone: the first index that it computes, counted from 1, or 0; when it
        began, as of `time.monotonic_ns`; how many samples it computes at once.
    results: the worker's last word, see `work`. slot: its number in the crew, from 0, which a replacement gets too.
    is_late: its sample took longer than the timeout.
    """

    process: Any
    results: Any
    report: Any
    slot: int
    is_late: bool = False


def crew_size(job: Job, count: int) -> int:
    """Return the number of worker processes that fill a number of samples; 0 if this process is to compute."""
    if job.options.executor is not None or multiprocessing.current_process().daemon:
        return 0  # a daemonic process, such as a DataLoader's worker, may not start others
    workers = min(worker_count(job.options.num_workers), -(-count // job.head.claim_size))
    return workers if job.options.timeout is None else max(1, workers)


def compute_apart(job: Job, asked: Again) -> Recomputed | None:
    """Let a worker process compute samples again; None if the process ends or hangs first.

    Raises: as the source, with the traceback as text.
    """
    worker = _start_worker(job, 0, 0, asked)
    message: Any = None
    try:
        connection.wait([worker.results, worker.process.sentinel], job.options.timeout)
        message = _last_word(worker)
    finally:
        _end_worker(worker, _STOP_SECONDS if message is not None else 0)
    if isinstance(message, Carried):
        raise message.restored()
    return message if isinstance(message, Recomputed) else None  # a number: a signal ended it


class Crew:
    """Worker processes of one fill.

    appender: records samples that end or hang their process. tick: called several times a second.
    """

    def __init__(self, job: Job, workers: int, appender: Appender, tick: Callable[[], None]) -> None:
        self._job, self._path, self._options = job, job.path, job.options
        self._appender, self._tick = appender, tick
        self._workers: list[_Worker] = []
        self._size = workers
        self._numbers = itertools.count()
        # By sample, or by the first of a batch and its size; -1 counts workers that computed none.
        self._deaths: Counter[tuple[int, int]] = Counter()
        self._failures: list[str] = []
        # First indices of batches that have ended their process.
        self._suspects = frozenset[int]()

    def run(self) -> None:
        """Start the workers, and return when all have ended.

        Raises the error of a worker at once, and SourceError for samples that ended their process after the
        others are filled; SourceError if workers end and no sample is to blame.
        """
        try:
            for slot in range(self._size):
                self._start(slot)
            while self._workers:
                events = [event for w in self._workers for event in (w.results, w.process.sentinel)]
                connection.wait(events, _TICK_SECONDS)
                for worker in list(self._workers):
                    if worker.results.poll() or not worker.process.is_alive():
                        self._receive(worker)
                    else:
                        self._check_timeout(worker)
                self._tick()
        finally:
            self._stop()
        if self._failures and self._options.on_error == "raise":
            raise SourceError(f"{self._path}: {'; '.join(self._failures)}", path=self._path)

    def _start(self, slot: int) -> None:
        self._workers.append(_start_worker(self._job, slot, next(self._numbers), self._suspects))

    def _receive(self, worker: _Worker) -> None:
        """Take the last word of a worker, or its silence, and replace it unless its work is done."""
        message = _last_word(worker, worker.report[0] - 1)
        _end_worker(worker, _STOP_SECONDS)
        self._workers.remove(worker)
        if isinstance(message, Carried):
            raise message.restored()
        if worker.process.exitcode == _NO_GUARD:
            raise OptionError(
                f"{self._path}: each worker process imports this script anew, and comes to this call again; "
                'put the call below `if __name__ == "__main__":`, or use num_workers=0'
            )
        if message is not None:
            if not worker.is_late:
                self._note_death(message, worker.report[2], worker.process.exitcode)
            self._start(worker.slot)

    def _check_timeout(self, worker: _Worker) -> None:
        timeout = self._options.timeout
        # In this order: a batch that the worker begins meanwhile has begun later.
        index, began, size = worker.report[0] - 1, worker.report[1], worker.report[2]
        if timeout is None or index < 0:
            return
        late = (time.monotonic_ns() - began) / 1e9 - timeout * size
        if late > 0 and not worker.is_late:
            text = f"took longer than timeout={timeout:g} seconds"
            if size == 1 and self._options.on_error == "raise":
                raise SourceError(f"{self._path}: sample {index} {text}", path=self._path, index=index)
            # Before it lets go of its claim, or the next one would hang there too.
            self._blame(index, size, "TimeoutError", text)
            # Code in Python ends, and the samples before are published; code in C does not hear it.
            worker.is_late = True
            worker.process.terminate()
        elif late > _STOP_SECONDS:
            worker.process.kill()

    def _note_death(self, index: int, size: int, exitcode: int | None) -> None:
        """Count a worker that ended while it computed `size` samples; SourceError if many did that computed none."""
        ending = _ending(exitcode)
        size = size if index >= 0 else 0
        self._deaths[index, size] += 1
        count = self._deaths[index, size]
        if index >= 0:
            what = f"{size} samples" if size > 1 else f"sample {index}"
            text = f"{self._path}: the process that computed {what} ended ({ending})"
            logger.warning("%s", self._job.told(text, index))
            if size > 1 or count == _DEATHS:
                self._blame(index, size, "SourceError", f"ended its process {count} times ({ending})")
        elif count > _DEATHS * self._size:
            raise SourceError(
                f"{self._path}: {count} worker processes ended ({ending}) while they computed no sample; use "
                "num_workers=0 to see why",
                path=self._path,
            )

    def _blame(self, index: int, size: int, error: str, text: str) -> None:
        """Record a sample as failed, so that no worker begins it again.

        One of a batch is to blame: the workers that start from now on compute its samples one by one.
        """
        if size > 1:
            self._suspects |= {index}
            return
        text = self._job.told(f"sample {index} {text}", index)
        failure = Failure(index, self._options.on_error == "skip_final", error, text, "")
        self._failures.append(failure.message)
        self._appender.note_failures([failure], self._job.maker)

    def _stop(self) -> None:
        """End the workers: politely, so that they publish, then by force; a second interrupt at once."""
        try:
            for worker in self._workers:
                worker.process.terminate()
            limit = time.monotonic() + _STOP_SECONDS
            for worker in self._workers:
                worker.process.join(max(0.0, limit - time.monotonic()))
        finally:
            for worker in self._workers:
                _end_worker(worker, 0)


def _start_worker(job: Job, slot: int, number: int, task: frozenset[int] | Again) -> _Worker:
    """Start a process. number: of all workers of the fill. task: as of `work`."""
    process = multiprocessing.current_process()
    if process.name.startswith(_NAME) and getattr(process, "_inheriting", False):
        os._exit(_NO_GUARD)
    asked = job.options.multiprocessing_context
    context: Any = multiprocessing.get_context(asked) if isinstance(asked, str | None) else asked

    def refused(error: Exception) -> Exception:
        if isinstance(error, OSError):
            return storage_error(job.path, "starting a worker process", error)
        return OptionError(
            f"{job.path}: the source cannot be sent to worker processes: {error}; use "
            f'num_workers=0, or multiprocessing_context="fork"'
        )

    with foreign_code(refused):  # pickling runs code of the source
        report = context.RawArray("q", 3)
        results, end = context.Pipe(duplex=False)
        with closing(end):
            process = context.Process(
                target=work, args=(job, task, report, slot, number, end), name=f"{_NAME}{number}"
            )
            process.start()
        return _Worker(process, results, report, slot)


def _last_word(worker: _Worker, silence: object = None) -> Any:
    """Receive the last word of a worker, or return `silence` if it died before, or amid it."""
    if worker.results.poll():
        with suppress(EOFError, OSError):
            return worker.results.recv()
    return silence


def _end_worker(worker: _Worker, seconds: float) -> None:
    """Wait for a worker's process, then kill it: threads of the source may still run in it."""
    worker.process.join(seconds)
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
    worker.results.close()


def _ending(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
