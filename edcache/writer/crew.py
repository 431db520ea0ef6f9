"""Worker processes that fill an archive together, and the process that looks after them.

The workers find their work by the archive's claims and append for themselves. What they share is the file
and a `Board`. A worker that dies is replaced; a sample that ends or hangs its process is set aside.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from edcache.base import OptionError, SourceError, WorkerError, check_workers
from edcache.format import Failure
from edcache.storage import refused
from edcache.writer.appender import Appender
from edcache.writer.job import Job
from edcache.writer.worker import MOST_ASIDE, Board, work

logger = logging.getLogger("edcache")

# A sample that ends its process so often is not tried again; memory may have been short before.
_DEATHS = 3
_TICK_SECONDS = 0.2
_STOP_SECONDS = 1.5


@dataclass
class _Worker:
    number: int
    process: Any
    results: Any
    since: float
    began: int = 0
    is_late: bool = False


class Crew:
    """The workers of one fill, and the samples `set_aside`: they ended or hung their process too often.

    appender: writes down who is set aside, where that ends no fill. tick: called several times a second.
    """

    def __init__(self, job: Job, workers: int, appender: Appender, tick: Callable[[], None]) -> None:
        self._job, self._path, self._options = job, job.path, job.options
        self._context = crew_context(job.options.multiprocessing_context)
        self._appender, self._tick = appender, tick
        try:
            self._board = Board(self._context, workers)
        except OSError as error:  # it stands in a temporary file
            refused(job.path, "starting worker processes", error)
        self._workers: list[_Worker] = []
        self._size = workers
        self._deaths: Counter[int] = Counter()
        self._progress = (0, 0)
        self._barren_deaths = 0
        self.set_aside: list[Failure] = []

    @property
    def lost(self) -> int:
        """Samples that workers computed and did not publish."""
        return int(sum(self._board.computed) - sum(self._board.published))

    def run(self) -> None:
        """Start the workers, and return when all have ended; raises what a worker did, or WorkerError."""
        try:
            for number in range(self._size):
                self._start(number)
            while self._workers:
                self._look()
                self._tick()
        finally:
            self._stop()
        if self.set_aside and self._options.on_error == "raise":
            reasons = "; ".join(failure.message for failure in self.set_aside)
            raise SourceError(f"{self._path}: {reasons}")

    def _start(self, number: int) -> None:
        end = None
        try:
            results, end = self._context.Pipe(duplex=False)
            process = self._context.Process(
                target=work, args=(self._job, self._board, number, end), name=f"edcache-{number}"
            )
            process.start()
            self._workers.append(_Worker(number, process, results, since=time.monotonic()))
        except OSError as error:
            refused(self._path, "starting a worker process", error)
        except Exception as error:
            raise OptionError(
                f"{self._path}: the source cannot be sent to worker processes: {error}; use "
                f'num_workers=0, or multiprocessing_context="fork"'
            ) from error
        finally:
            if end is not None:
                end.close()

    def _look(self) -> None:
        events = [event for worker in self._workers for event in (worker.results, worker.process.sentinel)]
        connection.wait(events, _TICK_SECONDS)
        for worker in list(self._workers):
            if worker.results.poll():
                self._receive(worker)
            elif not worker.process.is_alive():
                self._replace(worker)
            else:
                self._check_timeout(worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.results.recv()
        except (EOFError, OSError):  # it died in the middle of a word, or before the first
            message = False
        if message is False:  # or somebody else ended it, or its sample took too long
            self._replace(worker)
            return
        error = None if message is True else _received(worker.results, message)
        self._reap(worker)
        if error is not None:
            raise error

    def _check_timeout(self, worker: _Worker) -> None:
        timeout, now = self._options.timeout, time.monotonic()
        at, begun = self._board.at[worker.number], self._board.begun[worker.number]
        if begun != worker.began or not at:
            worker.began, worker.since = begun, now
        elif timeout is not None and now - worker.since > timeout:
            # Code in Python ends and what was computed before is published; code in C does not hear it.
            if not worker.is_late:
                # Before it lets go of its claim, or the next one would hang there too.
                self._note_delay(at - 1)
                worker.is_late = True
                worker.process.terminate()
            elif now - worker.since > timeout + _STOP_SECONDS:
                worker.process.kill()

    def _replace(self, worker: _Worker) -> None:
        """Somebody ended without a word: start another, unless its sample has done so before."""
        self._reap(worker)
        at = self._board.at[worker.number]
        if at and not worker.is_late:
            self._note_death(at - 1, worker.process.exitcode)
        # What it computed and did not publish is computed again, and not lost to this fill.
        self._board.computed[worker.number] = self._board.published[worker.number]
        # Not before: whoever has the dead one's claim now waits to hear whether the sample is set aside.
        self._board.at[worker.number] = 0
        if not worker.is_late:
            self._check_progress(worker.process.exitcode)
        self._start(worker.number)

    def _check_progress(self, exitcode: int | None) -> None:
        """Give up where one worker after the other ends and nothing comes of it."""
        progress = sum(self._board.published), len(self.set_aside)
        self._barren_deaths = 1 if progress != self._progress else self._barren_deaths + 1
        self._progress = progress
        if self._barren_deaths > _DEATHS * (self._size + 1):
            method = self._context.get_start_method()
            guard = f'; {method} needs `if __name__ == "__main__":` above the call' * (method != "fork")
            raise WorkerError(
                f"{self._path}: {self._barren_deaths} worker processes ended one after the other "
                f"({_ending(exitcode)}) and published nothing; use num_workers=0 to see why{guard}"
            )

    def _note_delay(self, index: int) -> None:
        text = f"took longer than timeout={self._options.timeout:g} seconds"
        if self._options.on_error == "raise":
            raise SourceError(f"{self._path}: sample {index} {text}")
        self._put_aside(index, "TimeoutError", text)

    def _note_death(self, index: int, exitcode: int) -> None:
        self._deaths[index] += 1
        ending = _ending(exitcode)
        logger.warning("%s: the process that computed sample %d ended (%s)", self._path, index, ending)
        if self._deaths[index] >= _DEATHS:
            self._put_aside(index, "WorkerError", f"ended its process {self._deaths[index]} times ({ending})")

    def _put_aside(self, index: int, error: str, text: str) -> None:
        if index in self._board:
            return  # another worker had begun it before it was
        failure = Failure(index, self._options.on_error == "skip_final", error, f"sample {index} {text}", "")
        self.set_aside.append(failure)
        if self._options.on_error != "raise":
            # At once: whatever ends this fill, the next need not find it out again.
            self._appender.amend(failed=[failure.to_json()])
        if len(self.set_aside) > MOST_ASIDE:
            raise WorkerError(
                f"{self._path}: {len(self.set_aside)} samples ended or hung their process, the last is "
                f"{index}: it {text}; use num_workers=0 to see why"
            )
        self._board.set_aside(index)

    def _stop(self) -> None:
        """End whoever is left: politely, so that it publishes, then by force; a second interrupt at once."""
        self._board.stop.value = 1
        try:
            for worker in self._workers:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGTERM)
            limit = time.monotonic() + _STOP_SECONDS
            for worker in self._workers:
                worker.process.join(max(0.0, limit - time.monotonic()))
        finally:
            for worker in list(self._workers):
                self._reap(worker, 0)

    def _reap(self, worker: _Worker, seconds: float = _STOP_SECONDS) -> None:
        """Wait for a worker's process, then kill it: threads of the source may still run in it."""
        worker.process.join(seconds)
        if worker.process.is_alive():
            worker.process.kill()
        worker.process.join()
        worker.results.close()
        self._workers.remove(worker)


def _received(results: Any, text: str) -> BaseException:
    """The exception that a worker sent after its traceback, or what stands for one that cannot be sent."""
    error, cause = _next(results), _next(results)
    if not isinstance(error, Exception):
        return WorkerError(f"a worker process raised what cannot be raised here ({error}):\n{text}")
    if isinstance(cause, BaseException):
        error.__cause__ = cause
    if hasattr(error, "add_note"):
        error.add_note(f"\nin a worker process:\n{text}")
    return error


def _next(results: Any) -> Any:
    """What a worker sent next; where it cannot be rebuilt, why."""
    try:
        return results.recv()
    except Exception as error:  # noqa: BLE001 - of the user's class: it may raise anything
        return f"{type(error).__name__}: {error}"


def _ending(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"


def usable_cpus() -> int:
    """How many processors this process may use: its affinity and its control group, not the machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    with suppress(OSError, StopIteration, ValueError):
        with open("/proc/self/cgroup", encoding="ascii") as file:
            group = next(line.split(":", 2)[2].strip() for line in file if line.startswith("0::"))
        with open(f"/sys/fs/cgroup{group.rstrip('/')}/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()  # "max" where there is none
        count = min(count, int(quota) // int(period))
    return max(1, count)


def worker_count(asked: int | str | None) -> int:
    """How many workers `num_workers=` asks for; OptionError for what is no number from 0 up, nor "auto"."""
    check_workers(asked)
    return asked if isinstance(asked, int) else usable_cpus()


def crew_context(asked: Any) -> Any:
    """A multiprocessing context: the platform's, or one by name; OptionError where there is none such."""
    if asked is None or isinstance(asked, str):
        try:
            return multiprocessing.get_context(asked)
        except ValueError:
            known = ", ".join(map(repr, multiprocessing.get_all_start_methods()))
            raise OptionError(f"multiprocessing_context={asked!r}; choose one of {known}") from None
    return asked
