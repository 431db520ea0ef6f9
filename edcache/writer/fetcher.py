"""Ask a source for the samples of some indices, and add them to a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from edcache import identity
from edcache.base import EdcacheError, SourceError
from edcache.codec import Columns
from edcache.identity import Recomputed
from edcache.writer.builder import ChunkBuilder
from edcache.writer.features import After, Ask, Before, batches_of, stream_of
from edcache.writer.job import Job


class Fetcher:
    """Compute samples of a source and add them to a chunk: a batch at a time if the source gives batches.

    Args: before, after: called around each call of the source.
    Attributes: takes_any: True if any number of samples may be asked for at once.
    """

    def __init__(
        self,
        job: Job,
        builder: ChunkBuilder,
        before: Before = lambda index, count: None,
        after: After = lambda count, nbytes: None,
    ) -> None:
        self._job, self._builder = job, builder
        self._before, self._after = before, after
        self._ask, self.takes_any = batches_of(job.source)
        self._stream = stream_of(job.source)

    def compute(self, batches: Iterable[list[int]]) -> Iterator[int]:
        """Add the samples of batches of rising indices.

        Yields: the number of samples that were added or refused since the last one; the chunk may be published then.
        Raises: SourceError, CodecError, LabelError, for a sample that is refused, unless failures are kept.
        """
        if self._stream is None:
            for indices in batches:
                yield from self._compute(indices)
            return
        for indices, results in self._stream(iter(batches), self._before, self._after, self._job.suspects):
            self._after(0, 0)
            made = None
            with suppress(
                EdcacheError
            ):  # it makes no columns; by `source[index]`, the error names the sample
                made = _counted(results, len(indices))
            yield from self._compute(indices) if made is None else self._add(indices, made)

    def _compute(self, indices: list[int]) -> Iterator[int]:
        """Add the samples of a batch; if the source raises, try its halves, down to the sample that raises."""
        if self._ask is None or self._job.suspects.intersection(indices):
            for index in indices:
                self._compute_one(index)
                yield 1
            return
        made = self._made(indices, self._ask)
        if made is not None:
            yield from self._add(indices, made)
        elif len(indices) == 1:
            self._compute_one(indices[0])
            yield 1
        else:
            half = len(indices) // 2
            yield from self._compute(indices[:half])
            yield from self._compute(indices[half:])

    def _made(self, indices: list[int], ask: Ask) -> Columns | list[Any] | None:
        """Ask for a batch; None if the source raises, or gives another number of samples."""
        self._before(indices[0], len(indices))
        try:
            with suppress(Exception):  # by `source[index]`, the error names the sample
                return _counted(ask(indices), len(indices))
        finally:
            self._after(0, 0)
        return None

    def _add(self, indices: list[int], made: Columns | list[Any]) -> Iterator[int]:
        row = 0
        while row < len(indices):
            nbytes, count = self._builder.nbytes, 1
            if isinstance(made, Columns):
                count = self._builder.add_columns(indices, made, row)
            else:
                self._builder.add(indices[row], made[row])
            row += count
            self._after(count, self._builder.nbytes - nbytes)
            yield count

    def _compute_one(self, index: int) -> None:
        """Compute a sample, and add it or its failure."""
        nbytes = self._builder.nbytes
        self._before(index, 1)
        try:
            sample = self._job.compute(index)
        except SourceError as error:
            self._builder.refuse(index, error)
        else:
            self._builder.add(index, sample)
        finally:
            self._after(1, self._builder.nbytes - nbytes)


def samples_of(job: Job, indices: list[int]) -> list[Any]:
    """Compute samples, by one call of a source that gives batches. Raises: SourceError, for one that raises."""
    ask, _ = batches_of(job.source)
    if ask is not None:
        with suppress(Exception):  # by `source[index]`, the error names the sample
            made = _counted(ask(indices), len(indices))
            if made is not None:
                return made if isinstance(made, list) else [made.at(row) for row in range(made.count)]
    return [job.compute(index) for index in indices]


def compute_again(job: Job, index: int, least: int, stored: tuple[str, bytes] | None = None) -> Recomputed:
    """Compute a sample at least `least` times, alone and, if the source gives batches, in one; see `recompute`."""
    ways = [lambda: job.compute(index), lambda: _in_batch(job, index)]
    return identity.recompute(ways[:least], job.head.codec, least, stored)


def _in_batch(job: Job, index: int) -> Any:
    """Compute a sample in the batch that begins with it, if the source gives batches."""
    indices = [*range(index, min(job.length, index + (job.options.batch_size or job.head.claim_size)))]
    ask, _ = batches_of(job.source)
    made = None
    if ask is not None:
        with suppress(Exception):  # as in a fill
            made = _counted(ask(indices), len(indices))
    return job.compute(index) if made is None else made[0] if isinstance(made, list) else made.at(0)


def _counted(made: Any, count: int) -> Columns | list[Any] | None:
    """Return samples as a list or Columns; None if they are not `count`. Raises: as Columns does."""
    columns = made if isinstance(made, list | Columns | None) else Columns(made)
    length = columns.count if isinstance(columns, Columns) else len(columns or ())
    return columns if length == count else None
