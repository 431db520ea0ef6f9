"""Fill an archive from an iterable, in its order, until it is exhausted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from edcache.base import OptionError, Progress
from edcache.storage import own_positions
from edcache.writer.job import (
    Job,
    errors_with,
    outcome,
    refusal,
    reraise_interrupt,
    worker_count,
)
from edcache.writer.seal import seal


def is_stream(source: Any) -> bool:
    """True if a source is iterated, because it is no map-style dataset."""
    if isinstance(source, IterableDataset):
        return True
    is_map = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return hasattr(source, "__iter__") and not is_map


def check_stream_workers(job: Job) -> None:
    """Raise OptionError if workers are to iterate a source that is no IterableDataset, each its own share."""
    num_workers = worker_count(job.options.num_workers)
    if num_workers and not isinstance(job.source, IterableDataset):
        raise OptionError(
            f"{job.path}: num_workers={num_workers} is for an IterableDataset, which divides itself"
        )


def fill_stream(job: Job) -> None:
    """Store the samples of `job.source` in their order, and seal the archive when there are no more.

    Samples that the archive has are passed over, not stored again.
    Of several processes one fills; the others wait for it, and go on if it ends early.
    """
    if job.options.on_error == "skip":
        # A sample that fails is gone with the iteration: there is no later try.
        job = replace(job, options=replace(job.options, on_error="skip_final"))
    with closing(job.open()) as appender:
        is_first = appender.claims.join_fillers()
        appender.claims.wait(0)
        appender.catch_up()
        if appender.chain.sealed:
            return
        # Not all below the last: a power cut may have taken chunks.
        kept = set(appender.indices_of(appender.chain.chunks).tolist()) | set(appender.chain.failures)
        builder = job.builder(appender)
        count = 0
        with Progress(job.name, job.options.progress, is_first=is_first).begin(len(kept), None) as progress:

            def ending(goes_on: bool) -> str:
                present = len(set(appender.indices_of(appender.chain.chunks).tolist()))
                return outcome(job.path, present, None, goes_on)

            with errors_with(ending):
                try:
                    for index, sample in enumerate(_samples(job)):
                        count = index + 1
                        if index in kept:
                            continue
                        before = builder.nbytes
                        builder.add(index, sample)
                        progress.advance(1, builder.nbytes - before)
                        if builder.is_due:
                            builder.publish(appender)
                finally:
                    builder.publish(appender)
            if count != appender.chain.end_index:
                appender.amend(length=count)
            seal(appender)


def _samples(job: Job) -> Iterator[Any]:
    own_positions()
    source: Iterable[Any] = job.source
    num_workers = worker_count(job.options.num_workers)
    if num_workers:
        source = DataLoader(
            job.source,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_identity,
            worker_init_fn=own_positions,
        )
    remaining = iter(source)
    for index in itertools.count():
        try:
            sample = next(remaining)
        except StopIteration:
            return
        except BaseException as error:
            reraise_interrupt(error, index)
            raise refusal(error, index, job.path) from error
        yield sample


def _identity(sample: Any) -> Any:
    return sample
