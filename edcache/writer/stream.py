"""Fill an archive from an iterable, in its order, until it is exhausted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final

from torch.utils.data import DataLoader, IterableDataset

from edcache.base import CodecError, OptionError, Progress, SourceError, warn
from edcache.codec import Encoder
from edcache.storage import own_positions
from edcache.writer.job import Job, telling_kept, worker_count
from edcache.writer.recheck import check_before, note_seconds
from edcache.writer.seal import seal
from edcache.writer.source import is_interrupt, refusal

# First samples of each worker that are compared with another worker's, before one is stored.
_COMPARED: Final = 4


def fill_stream(job: Job) -> None:
    """Store the samples of `job.source` in their order, and seal the archive when there are no more.

    Samples that the archive has are passed over, not stored again.
    Of several processes one fills; the others wait for it, and go on if it ends early.
    Raises: OptionError, workers are to iterate a source that is no IterableDataset, each its own share.
    """
    num_workers = worker_count(job.options.num_workers)
    if num_workers and not isinstance(job.source, IterableDataset):
        raise OptionError(
            f"{job.path}: num_workers={num_workers} is for an IterableDataset, which divides itself"
        )
    if job.options.on_error == "skip":
        # A sample that fails is gone with the iteration: there is no later try.
        job = replace(job, options=replace(job.options, on_error="skip_final"))
    with closing(job.open()) as appender:
        is_first = appender.claims.join_fillers()
        appender.claims.wait(0)
        appender.catch_up()
        if appender.chain.sealed:
            return

        def held() -> set[int]:
            # Not all below the last: a power cut may have taken chunks.
            return {*appender.indices_of(appender.chain.chunks).tolist()}

        kept, count = held() | {*appender.chain.failures}, 0
        builder = job.builder(appender)
        shown = Progress(job.name, job.options.progress, is_first=is_first)
        with shown.begin(len(kept), None) as progress:
            with telling_kept(job, lambda: len(held())):
                if kept:
                    check_before(job)
                try:
                    began = time.monotonic()
                    for index, sample in enumerate(_samples(job, num_workers)):
                        if isinstance(sample, SourceError):
                            raise sample
                        count = index + 1
                        if index == 0:
                            note_seconds(job, appender, time.monotonic() - began)
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


def _samples(job: Job, num_workers: int) -> Iterator[Any]:
    """Yield the samples of the source; the SourceError of what it raises comes last."""
    own_positions()
    return _of_workers(job, num_workers) if num_workers else _given(job, job.source)


def _given(job: Job, source: Iterable[Any]) -> Iterator[Any]:
    """Yield what an iterable gives; the SourceError of what it raises comes last."""
    remaining = iter(source)
    for index in itertools.count():
        try:
            one = next(remaining)
        except StopIteration:
            return
        except BaseException as error:  # of the source, which may raise SystemExit
            if is_interrupt(error, index):
                raise
            yield refusal(error, index, job.path, job.source)
            return
        yield one


def _of_workers(job: Job, num_workers: int) -> Iterator[Any]:
    """Yield samples of workers in turn; with a warning, all from this process, if each worker gives all."""
    loader = DataLoader(
        job.source,
        batch_size=None,
        num_workers=num_workers,
        collate_fn=_unchanged,
        worker_init_fn=own_positions,
    )
    told = _given(job, loader)
    first = [*itertools.islice(told, num_workers * _COMPARED)]
    if num_workers > 1 and _gives_all(job, first, num_workers):
        warn(
            f"{job.path}: the first samples of all {num_workers} workers are the same, so the source does not divide "
            "itself, and is read in this process alone; let its __iter__ give each worker of "
            "torch.utils.data.get_worker_info() its share, or use num_workers=0"
        )
        first, told = [], _given(job, job.source)
    yield from first
    yield from told


def _gives_all(job: Job, first: list[Any], num_workers: int) -> bool:
    """True if the records of the first samples, which workers give in turn, are the same of every worker.

    A sample that cannot be stored is left out: the fill refuses it.
    """
    records: list[list[tuple[str, bytearray]]] = [[] for _ in range(num_workers)]
    for number, sample in enumerate(first):
        encoder = Encoder(job.head.codec)
        with suppress(CodecError):
            encoded = encoder.encode(sample)
            records[number % num_workers].append((encoder.schemas[encoded.schema], encoded.record()))
    return records[0] != [] and all(one == records[0] for one in records)


def _unchanged(sample: Any) -> Any:
    return sample
