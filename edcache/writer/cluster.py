"""Engine of an executor of `concurrent.futures`, or one with its interface: pools, loky, Dask, Ray, MPI.

A task computes and encodes the samples of one batch and returns them as chunks, which the process that fills appends.
So the executor's processes need no common disk. A task that runs again, as after the death of a worker, does no harm:
samples that the archive has are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import replace
from typing import Any, Final, TypeAlias

from edcache.base import EdcacheError, SourceError
from edcache.format import Failure, Head
from edcache.writer.chunk import Chunk
from edcache.writer.engine import Engine, Here, Pending, Stored
from edcache.writer.job import Carried, Job, carried

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
        for part, made in Here(job).compute(indices):
            row = 0
            while row < len(part):
                row += builder.add_made(part, made, row)
                if builder.is_full:
                    chunks.append(builder.take())
    except EdcacheError as raised:
        error = carried(raised)
    if len(builder):
        chunks.append(builder.take())
    return chunks, builder.failures, error


class Cluster(Engine):
    """Executor of a job, `job.options.executor`. head: of the archive, which says how records are encoded."""

    depth, encodes = _IN_FLIGHT, True

    def __init__(self, job: Job, head: Head) -> None:
        self._job = replace(job, head=head)
        self._executor: Any = job.options.executor
        self._running: set[Future[_Encoded]] = set()

    def submit(self, indices: list[int]) -> Pending:
        """Submit a task."""
        job = replace(self._job, spec=self._job.spec.of(indices))
        try:
            future = self._executor.submit(encode_samples, job, indices)
        except BrokenExecutor as failure:
            raise self.failed(failure) from failure  # a process of it died between two tasks
        self._running.add(future)
        return _Task(self, future)

    def ended(self, running: deque[Pending]) -> list[Pending]:
        """Wait a moment for tasks, and take out the ones that have ended, in any order."""
        done = wait(self._running, _LOOK_SECONDS, FIRST_COMPLETED).done
        self._running -= done
        ended = [task for task in running if isinstance(task, _Task) and task.future in done]
        for task in ended:
            running.remove(task)
        return [*ended]

    def __exit__(self, *raised: object) -> None:
        """Cancel the tasks that have not ended, after an error."""
        for future in self._running:
            future.cancel()

    def failed(self, failure: BaseException) -> SourceError:
        """Make the error of a task; raised as it is, an exit or an interrupt of a task would be one of this process."""
        name, text = type(self._executor).__name__, f"{type(failure).__name__}: {failure}"
        return SourceError(f"{self._job.path}: a task of {name} failed: {text}", path=self._job.path)


class _Task(Pending):
    def __init__(self, cluster: Cluster, future: Future[_Encoded]) -> None:
        self._cluster, self.future = cluster, future

    def result(self) -> Iterator[Stored]:
        try:
            failure = self.future.exception()
        except CancelledError as cancelled:
            failure = cancelled
        if isinstance(failure, EdcacheError):
            raise failure
        if failure is not None:
            raise self._cluster.failed(failure) from failure
        chunks, failures, error = self.future.result()
        yield from (([failure.index], failure) for failure in failures)
        yield from ((chunk.indices, chunk) for chunk in chunks)
        if error is not None:
            raise error.restored()
