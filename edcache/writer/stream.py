"""Fill an archive from what can only be iterated: until it is exhausted, in its order."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from edcache import storage
from edcache.base import OptionError, Progress
from edcache.writer import temporary
from edcache.writer.crew import worker_count
from edcache.writer.job import Job, check_blame, check_origin, refusal
from edcache.writer.protocol import AnyAppender


def is_stream(source: Any) -> bool:
    """Whether a source is iterated, because it is no map-style dataset."""
    if isinstance(source, IterableDataset):
        return True
    is_map = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return hasattr(source, "__iter__") and not is_map


def fill_stream(job: Job, rebuild: bool = False) -> int:
    """Store the samples of `job.source` in their order, and seal the archive when there are no more.

    `num_workers` are DataLoader workers that iterate an IterableDataset, each its own share of it. Their
    order, which a DataLoader keeps, depends on their number.

    Args:
        rebuild: as `fill` has it.
    Returns:
        How many samples were stored. What is there from before is passed over, not stored again.
    Raises:
        SourceError: the source raised; everything before is published. Else as `fill`.

    Of several processes one fills; the others wait for it, and go on where it ends early.
    """
    num_workers = worker_count(job.options.num_workers)
    if num_workers and not isinstance(job.source, IterableDataset):
        raise OptionError(
            f"{job.path}: num_workers={num_workers} is for an IterableDataset, which divides itself"
        )
    if job.options.on_error == "skip":
        # What fails is gone with the iteration: there is no later try.
        job = replace(job, options=replace(job.options, on_error="skip_final"))
    if not rebuild:
        return _fill(job, num_workers)
    with temporary.replacing(job.path) as session:
        stored = _fill(replace(job, path=session.path), num_workers)
        storage.replace(session.path, job.path)
    return stored


def _fill(job: Job, num_workers: int) -> int:
    appender = job.store.appender(job.head, job.sync)
    try:
        is_first = appender.join_fillers()
        appender.wait_claim(0)
        appender.catch_up()
        check_origin(job.path, appender.head, job)
        if appender.chain.seal is not None:
            return 0
        return _Stream(job, appender).run(num_workers, is_first)
    finally:
        appender.close()


class _Stream:
    def __init__(self, job: Job, appender: AnyAppender) -> None:
        self._job = job
        self._appender = appender
        self._publisher = job.publisher(appender)
        # Not all below the last: a power cut may have taken a chunk between others.
        self._kept = set(appender.indices_of(appender.chain.chunks).tolist()) | set(appender.chain.failures)

    def run(self, num_workers: int, is_first: bool) -> int:
        name, kept = os.path.basename(self._job.path), len(self._kept)
        with Progress(name, kept, None, self._job.options.progress, is_first) as progress:
            try:
                count = self._store(self._samples(num_workers), progress)
            finally:
                self._publisher.publish()
            if count != self._appender.end_index:
                self._appender.amend(length=count)
            self._appender.seal()
        return count - len(self._kept)

    def _store(self, samples: Iterator[Any], progress: Progress) -> int:
        count = 0
        for index, sample in enumerate(samples):
            count = index + 1
            if index in self._kept:
                continue
            before = self._publisher.pending_nbytes
            self._publisher.add(index, sample)
            progress.advance(1, self._publisher.pending_nbytes - before)
            if self._publisher.full or self._publisher.overdue:
                self._publisher.publish()
        return count

    def _samples(self, num_workers: int) -> Iterator[Any]:
        source: Iterable[Any] = self._job.source
        if num_workers:
            source = DataLoader(
                self._job.source, batch_size=None, num_workers=num_workers, collate_fn=_as_it_is
            )
        remaining = iter(source)
        for index in itertools.count():
            try:
                sample = next(remaining)
            except StopIteration:
                return
            except BaseException as error:
                check_blame(error, index)
                raise refusal(error, index, self._job.path) from error
            yield sample


def _as_it_is(sample: Any) -> Any:
    return sample
