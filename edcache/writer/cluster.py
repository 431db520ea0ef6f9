"""Fill by an executor that has the interface of `concurrent.futures.Executor`: Dask, Ray, MPI, Slurm, pools.

Where its processes see the file, each task is a part in the fill like any other. Where they do not, tasks
return encoded chunks, which the caller appends. A task that runs twice does no harm: claims, or the
caller's look at what is there, leave one record for each sample.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor
from dataclasses import replace
from functools import partial
from typing import Any

from edcache.base import EdcacheError, MissingDependencyError, SourceError, WorkerError
from edcache.format import Failure
from edcache.writer.cache import adopt_labels
from edcache.writer.chunk import Chunk
from edcache.writer.job import Job
from edcache.writer.part import Presence, Watch, help_fill
from edcache.writer.publisher import ChunkEncoder
from edcache.writer.store import AnyAppender

# Every task carries the source and looks through the archive, so there are not too many of them.
_MOST_TASKS, _TASKS_A_WORKER = 128, 4
# Chunks that are computed or on their way, where they come back to the caller.
_IN_FLIGHT = 64
_TICK_SECONDS, _POLL_SECONDS = 0.2, 0.01

_Task = tuple[int, Callable[[], Any]]
"""A number, and what submits a task and returns its future."""


def encode_samples(job: Job, indices: list[int]) -> tuple[list[Chunk], list[Failure]]:
    """A task that does not see the file: compute some samples, and return them encoded."""
    spec = adopt_labels(job.head, job.spec, job.path)
    encoder = ChunkEncoder(job.head, job.path, spec, job.chunk_size, failure_of=job.failure_of)
    chunks: list[Chunk] = []
    for index in indices:
        try:
            sample = job.compute(index)
        except SourceError as error:
            encoder.refuse(index, error)
        else:
            encoder.add(index, sample)
        if encoder.full:
            chunks.append(encoder.take())
    if encoder.pending:
        chunks.append(encoder.take())
    return chunks, encoder.failures


class Cluster:
    """One fill by an executor, `job.options.executor`; `tick` is called several times a second."""

    def __init__(self, job: Job, appender: AnyAppender, presence: Presence, tick: Callable[[], None]) -> None:
        self._executor = job.options.executor
        self._job = job
        self._appender = appender
        self._claims = appender.claims
        self._presence = presence
        self._tick = tick

    def run(self, claims: list[int]) -> None:
        """Have what is missing in some claims computed; raises what a task did."""
        if not self._job.options.shared_filesystem:
            self._run_returning(claims)
            return
        workers = getattr(self._executor, "_max_workers", None)
        tasks_wanted = _TASKS_A_WORKER * workers if isinstance(workers, int) else _MOST_TASKS
        size = max(1, -(-len(claims) // tasks_wanted))
        parts = [claims[start : start + size] for start in range(0, len(claims), size)]
        tasks = ((0, partial(self._executor.submit, help_fill, self._job, Watch(), part)) for part in parts)
        for _ in self._results(tasks, len(parts)):
            continue

    def _run_returning(self, claims: list[int]) -> None:
        """Append here what tasks return. After an error, claims are held until the appender is closed."""
        # The head says how records are encoded; the executor's processes have nothing else to learn it from.
        self._job = replace(self._job, head=self._appender.head)
        self._publisher = self._job.publisher(self._appender)
        of_others: list[int] = []
        self._encode(self._tasks(claims, of_others))
        for claim in of_others:
            # Nothing is held while waiting.
            self._claims.wait(claim)
            self._encode(self._task(claim))

    def _tasks(self, claims: list[int], of_others: list[int]) -> Iterator[_Task]:
        """Those of claims that nobody else computes, locked one by one; the others go into a list."""
        for claim in claims:
            if self._claims.claim(claim):
                yield from self._task(claim)
            else:
                of_others.append(claim)

    def _task(self, claim: int) -> Iterator[_Task]:
        """What computes a locked claim, if anything is missing in it."""
        # Its last holder published before letting go, so now is the time to look.
        self._presence.update()
        indices = self._presence.missing_in(claim)
        if indices:
            yield claim, partial(self._executor.submit, encode_samples, self._job, indices)
        else:
            self._claims.release(claim)

    def _encode(self, tasks: Iterator[_Task]) -> None:
        """Append what comes back, and let go of each claim."""
        for claim, (chunks, failures) in self._results(tasks, _IN_FLIGHT):
            self._publisher.failures += failures
            for chunk in chunks:
                self._presence.update()
                new = chunk.without({i for i in chunk.indices if self._presence.has(i)})
                if new.count:
                    self._publisher.append(new)
            self._publisher.publish()
            self._claims.release(claim)

    def _results(self, tasks: Iterator[_Task], most: int) -> Iterator[tuple[int, Any]]:
        """What tasks return, in the order in which they end, at most so many under way."""
        running: dict[Any, int] = {}
        ticked = time.monotonic()
        try:
            while True:
                while len(running) < most and (task := next(tasks, None)) is not None:
                    running[task[1]()] = task[0]
                if not running:
                    return
                ended = [future for future in running if future.done()]
                # First those that went well: what they made is kept though another failed.
                ended.sort(key=lambda future: future.cancelled() or future.exception() is not None)
                for future in ended:
                    yield running.pop(future), self._result(future)
                if not ended:
                    time.sleep(_POLL_SECONDS)
                if time.monotonic() - ticked > _TICK_SECONDS:
                    ticked = time.monotonic()
                    self._tick()
        finally:
            for future in running:
                future.cancel()

    def _result(self, future: Any) -> Any:
        try:
            error = future.exception()
        except CancelledError as cancelled:
            error = cancelled
        if error is None:
            return future.result()
        if isinstance(error, EdcacheError):
            raise error
        # Raised here as it is, an exit or an interrupt of a task would be one of this process.
        raise WorkerError(
            f"{self._job.path}: a task of {type(self._executor).__name__} failed: "
            f"{type(error).__name__}: {error}"
        ) from error


def ray_executor(**options: Any) -> Executor:
    """An Executor whose tasks run in Ray.

    Args:
        options: of a Ray task: num_cpus, resources, max_retries, ...
    Raises:
        MissingDependencyError: Ray is not installed.

    Ray is started, or joined, as `ray.init()` does it, unless that was done before.

    >>> CachedDataset(source, "train.zip", executor=edcache.ray_executor(num_cpus=1))
    """
    try:
        import ray
    except ImportError:
        raise MissingDependencyError("ray_executor() needs Ray: pip install edcache[ray]") from None
    if not ray.is_initialized():
        ray.init()
    return _RayExecutor(ray, options)


class _RayExecutor(Executor):
    def __init__(self, ray: Any, options: dict[str, Any]) -> None:
        call = ray.remote(_call)
        self._call = call.options(**options) if options else call

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._call.remote(fn, args, kwargs).future()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
