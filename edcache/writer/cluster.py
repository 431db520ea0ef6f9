"""Engine of an executor of `concurrent.futures`, or one with its interface: pools, loky, Dask, Ray, MPI.

A task computes and encodes the samples of one batch and returns them as chunks, which the process that fills appends.
So the executor's processes need no common disk. A task that runs again, as after the death of a worker, does no harm:
samples that the archive has are left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import replace
from typing import Final, TypeAlias

from edcache.base import EdcacheError, SourceError
from edcache.format import Failure, Head
from edcache.writer.chunk import Chunk
from edcache.writer.engine import BatchEngine, Here, PartOfBatch, Pending
from edcache.writer.job import Carried, Job, carried

# The most tasks that are submitted and whose chunks are not appended yet, which bounds the memory of this process.
_IN_FLIGHT: Final = 64
_LOOK_SECONDS: Final = 0.2

_Encoded: TypeAlias = tuple[list[Chunk], list[Failure], Carried | None]


def encode_samples(job: Job, indices: list[int]) -> _Encoded:
    """Compute and encode samples in a process of an executor, which need not see the archive.

    After an error, which is returned too, the chunks have the samples before it.
    """
    builder = job.builder(seconds=math.inf)
    chunks: list[Chunk] = []
    error: Carried | None = None
    try:
        for part, made in Here(job).submit(indices):
            row = 0
            while row < len(part):
                row += builder.add_made(part, made, row)
                if builder.is_due:
                    chunks.append(builder.take())
    except EdcacheError as raised:
        error = carried(raised)
    if len(builder):
        chunks.append(builder.take())
    return chunks, builder.failures, error


class Cluster(BatchEngine):
    """Executor of a job, `job.options.executor`. head: of the archive, which says how records are encoded."""

    depth = _IN_FLIGHT

    def __init__(self, job: Job, head: Head) -> None:
        self._job = replace(job, head=head)
        self._tasks: dict[Future[_Encoded], Pending] = {}

    def submit(self, indices: list[int]) -> Pending:
        """Submit a task."""
        job = replace(self._job, spec=self._job.spec.of(indices), keyed=None, todo=None)
        try:
            future = job.options.executor.submit(encode_samples, job, indices)
        except RuntimeError as failure:  # a process of it died between two tasks, or it was shut down
            raise self._failed(failure) from failure
        self._tasks[future] = self._result(future)
        return self._tasks[future]

    def ended(self, running: deque[Pending]) -> list[Pending]:
        """Wait a moment for tasks, and take out the ones that have ended, in any order."""
        done = wait(self._tasks, _LOOK_SECONDS, FIRST_COMPLETED).done
        ended = [self._tasks.pop(future) for future in done]
        for pending in ended:
            running.remove(pending)
        return ended

    def __exit__(self, *raised: object) -> None:
        """Cancel the tasks that have not ended, after an error."""
        for future in self._tasks:
            future.cancel()

    def _result(self, future: Future[_Encoded]) -> Iterator[PartOfBatch]:
        try:
            failure = future.exception()
        except CancelledError as cancelled:
            failure = cancelled
        if isinstance(failure, EdcacheError):
            raise failure
        if failure is not None:
            raise self._failed(failure) from failure
        chunks, failures, error = future.result()
        yield from (([one.index], one) for one in failures)
        yield from ((chunk.samples.tolist(), chunk) for chunk in chunks)
        if error is not None:
            raise error.restored()

    def _failed(self, failure: BaseException) -> SourceError:
        """Make the error of a task; raised as it is, an exit or an interrupt of a task would be one of this process."""
        name, text = type(self._job.options.executor).__name__, f"{type(failure).__name__}: {failure}"
        return SourceError(f"{self._job.path}: a task of {name} failed: {text}", path=self._job.path)
