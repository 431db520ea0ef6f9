"""Worker process of a fill."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing import connection, parent_process
from typing import Any, Final

import numpy as np
import torch

from edcache.writer.engine import Again, Watch, compute_again, engine_of
from edcache.writer.job import Job, carried
from edcache.writer.loop import FillLoop, Presence
from edcache.writer.source import refusal

# A worker that lost its parent may finish its sample, and publish, for so long.
GRACE_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """End of the fill for this worker; the samples that it has computed are to be published."""


def work(job: Job, task: frozenset[int] | Again, report: Any, slot: int, number: int, results: Any) -> None:
    """Fill together with others until nothing is missing; or compute samples again.

    Sends to `results`: None if nothing is missing; the index that it computed, or -1, if a signal ended it;
    else its error, as `Carried`. A sample that is computed again it sends as `Recomputed`.

    Args:
        task: samples to compute again; or, for a fill, first indices of batches that have ended their process, whose
            samples are computed one by one.
        report, slot: as of `crew._Worker`. number: of this worker among all of the fill, also the ended ones.
    """
    watch = _ToParent(report)
    watch.listen()
    begin_alone(number)
    threading.Thread(target=_end_with_parent, name="edcache-parent", daemon=True).start()
    message: Any = None
    try:
        if isinstance(task, Again):
            with watch.begin(task.position, 1):
                message = compute_again(job, task)
        else:
            engine = engine_of(job, watch, slot, task)
            with closing(job.open()) as appender:
                appender.claims.join_fillers()
                FillLoop(job, appender, Presence(appender, job), engine).run()
    except Stopped:
        message = watch.index
    except KeyboardInterrupt as raised:  # by the source: a signal raises Stopped here
        message = carried(refusal(raised, max(0, watch.index), job.path, job.source))
    except BaseException as raised:  # noqa: BLE001 - raised in the parent
        message = carried(raised)
    with suppress(BrokenPipeError):
        results.send(message)
    results.close()


class _ToParent(Watch):
    """Tells the parent which sample is computed. A signal ends that sample, or the wait for a claim.

    A publication goes on to its end; the signal waits for it.
    """

    def __init__(self, report: Any) -> None:
        self._report = report
        self._before: dict[int, Any] = {}
        self._of_thread = threading.local()
        self._is_open = self._is_asked = False
        self.index = -1

    def begin(self, index: int, count: int) -> Watch:
        """Note that `count` samples will be computed now, or a claim waited for (-1)."""
        self.index = index
        self._report[2] = count
        self._report[1] = time.monotonic_ns()
        self._report[0] = index + 1
        self._is_open = True
        if self._is_asked:
            self._is_open = False
            raise Stopped
        return self

    def __exit__(self, *raised: object) -> None:
        """Let signals wait. For the parent the sample is being computed until `end`, when it is added."""
        self._is_open = False

    def end(self) -> None:
        """Note that it was added, or waited for."""
        self._is_open = False
        self._report[0] = 0

    def listen(self) -> None:
        """Install handlers: SIGINT and SIGTERM end the sample. A process forked by the source gets the old ones."""
        for number in _SIGNALS:
            # None is a handler that Python did not set.
            self._before[number] = signal.signal(number, self._interrupt) or signal.SIG_DFL
        # A signal that comes between the fork and the change of the handlers is to wait for it.
        os.register_at_fork(before=self._hold, after_in_parent=self._go_on, after_in_child=self._unlisten)

    def _hold(self) -> None:
        self._of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def _go_on(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.mask)

    def _unlisten(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._interrupt:
                signal.signal(number, handler)
        self._go_on()

    def _interrupt(self, signum: int, frame: object) -> None:
        self._is_asked = True
        if self._is_open:
            self._is_open = False
            raise Stopped


def begin_alone(number: int) -> None:
    """Compute in one thread, with random numbers of this process. number: tells it from the others of one parent."""
    torch.set_num_threads(1)
    # A fork inherits the generators, and all workers would draw the same numbers.
    seed = (int(torch.randint(1 << 31, ())) + number) % (1 << 32)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def await_end(is_ended: Callable[[], object] = lambda: False) -> None:
    """Wait until the parent process is gone, or `is_ended`, asked now and then, is true."""
    parent = parent_process()
    assert parent is not None
    # Each forked process holds open the pipe that tells the others that the parent is gone.
    is_child = os.getppid() == parent.pid
    while not connection.wait([parent.sentinel], _LOOK_SECONDS) and not is_ended():
        if is_child and os.getppid() != parent.pid:
            return


def _end_with_parent() -> None:
    await_end()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
