"""Fill by an executor of `concurrent.futures`, or one with its interface: pools, loky, Dask, Ray, MPI.

A task computes and encodes the samples of one claim and returns them as chunks, which the driver appends. So
the executor's processes need no common disk. A task that runs again, as after the death of a worker, does no
harm: the driver leaves out the samples that the archive has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import replace
from typing import Final, TypeAlias

from edcache.base import EdcacheError, SourceError
from edcache.format import Failure
from edcache.writer.appender import Appender
from edcache.writer.chunk import Chunk
from edcache.writer.fetcher import Fetcher
from edcache.writer.job import Carried, Job, carried
from edcache.writer.part import Presence

# The most tasks that are submitted and whose chunks are not appended yet: this bounds the driver's memory.
_IN_FLIGHT: Final = 64
_LOOK_SECONDS: Final = 0.2

_Encoded: TypeAlias = tuple[list[Chunk], list[Failure], Carried | None]


def encode_samples(job: Job, indices: list[int]) -> _Encoded:
    """Compute and encode samples in a process of an executor, which need not see the archive.

    After an error, which is returned too, the chunks have the samples before it.
    """
    builder = job.builder()
    chunks: list[Chunk] = []
    error: Carried | None = None
    try:
        for _ in Fetcher(job, builder).compute([indices]):
            if builder.is_full:
                chunks.append(builder.take())  # noqa: PERF401 - those before an error stay
    except EdcacheError as raised:
        error = carried(raised)
    if len(builder):
        chunks.append(builder.take())
    return chunks, builder.failures, error


class Cluster:
    """One fill by an executor, `job.options.executor`.

    look: brings `presence` up to date and shows the progress; called several times a second.
    """

    def __init__(self, job: Job, appender: Appender, presence: Presence, look: Callable[[], None]) -> None:
        # The head says how records are encoded; tasks do not see the archive's.
        self._job = replace(job, head=appender.head)
        self._executor = job.options.executor
        self._appender = appender
        self._claims = appender.claims
        self._presence = presence
        self._look = look
        self._builder = job.builder(appender)

    def run(self, claims: list[int]) -> None:
        """Append the samples that are missing in some claims; raises the first error of a task.

        After an error, claims stay locked until the appender is closed.
        """
        of_others: list[int] = []
        self._append(self._tasks(claims, of_others))
        for claim in of_others:
            # Nothing is locked while waiting, so that two fills cannot wait for each other.
            self._claims.wait(claim)
            self._append(self._task(claim))

    def _tasks(self, claims: list[int], of_others: list[int]) -> Iterator[tuple[int, Future[_Encoded]]]:
        """Lock claims one by one and submit them; claims of other processes go into `of_others`."""
        for claim in claims:
            if self._claims.claim(claim):
                yield from self._task(claim)
            else:
                of_others.append(claim)

    def _task(self, claim: int) -> Iterator[tuple[int, Future[_Encoded]]]:
        """Submit a locked claim if samples are missing in it."""
        # Its last holder published before letting go, so now is the time to look.
        self._look()
        indices = self._presence.missing_in(claim)
        if indices:
            job = replace(self._job, spec=self._job.spec.of(indices))
            try:
                task = self._executor.submit(encode_samples, job, indices)
            except BrokenExecutor as failure:
                raise self._failed(failure) from failure  # a process of it died between two tasks
            yield claim, task
        else:
            self._claims.release(claim)

    def _append(self, tasks: Iterator[tuple[int, Future[_Encoded]]]) -> None:
        """Append the chunks of each task that ends; at most `_IN_FLIGHT` tasks are under way."""
        running: dict[Future[_Encoded], int] = {}
        try:
            while True:
                while len(running) < _IN_FLIGHT and (task := next(tasks, None)) is not None:
                    running[task[1]] = task[0]
                if not running:
                    return
                ended = wait(running, _LOOK_SECONDS, FIRST_COMPLETED).done
                errors = [self._publish(running.pop(future), future) for future in ended]
                for error in filter(None, errors):
                    raise error
                self._look()
        finally:
            for future in running:
                future.cancel()

    def _publish(self, claim: int, future: Future[_Encoded]) -> EdcacheError | None:
        """Append the chunks of a task and free its claim; return the error that ended the task."""
        failure = _failure(future)
        if isinstance(failure, EdcacheError):
            return failure
        if failure is not None:
            error = self._failed(failure)
            error.__cause__ = failure
            return error
        chunks, failures, carried_error = future.result()
        self._builder.failures += failures
        for chunk in chunks:
            self._look()
            new = self._presence.lacking(chunk)
            if new.count:
                self._builder.append(self._appender, new)
        self._builder.publish(self._appender)
        self._claims.release(claim)
        return None if carried_error is None else carried_error.restored()

    def _failed(self, failure: BaseException) -> SourceError:
        """Make the error of a task; raised as it is, an exit or an interrupt of a task would be one of this process."""
        name, text = type(self._executor).__name__, f"{type(failure).__name__}: {failure}"
        return SourceError(f"{self._job.path}: a task of {name} failed: {text}", path=self._job.path)


def _failure(future: Future[_Encoded]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as cancelled:
        return cancelled
