"""Ask a source for the samples of some indices, and add them to a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from edcache.base import SourceError
from edcache.codec import Columns
from edcache.writer.builder import ChunkBuilder
from edcache.writer.features import batches_of
from edcache.writer.job import Job

Before: TypeAlias = Callable[[int, int], object]
"""Called with the first index of a call of the source, and the number of its samples; with -1 and 0 before waiting for
a claim; may raise."""
After: TypeAlias = Callable[[int, int], object]
"""Called with the number of samples that were computed or found, and the bytes of their raw records."""


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

    def compute(self, batches: Iterable[list[int]]) -> Iterator[int]:
        """Add the samples of batches of rising indices.

        Yields: the number of samples that were added or refused since the last one; the chunk may be published then.
        Raises: SourceError, CodecError, LabelError, for a sample that is refused, unless failures are kept.
        """
        for indices in batches:
            yield from self._compute(indices)

    def _compute(self, indices: list[int]) -> Iterator[int]:
        """Add the samples of a batch; if the source raises, try its halves, down to the sample that raises."""
        if self._ask is None or self._job.suspects.intersection(indices):
            for index in indices:
                self._compute_one(index)
                yield 1
            return
        made = self._made(indices, self._ask)
        if isinstance(made, Columns):
            yield from self._add_columns(indices, made)
        elif made is not None:
            for index, sample in zip(indices, made, strict=True):
                nbytes = self._builder.nbytes
                self._builder.add(index, sample)
                self._after(1, self._builder.nbytes - nbytes)
                yield 1
        elif len(indices) == 1:
            self._compute_one(indices[0])
            yield 1
        else:
            half = len(indices) // 2
            yield from self._compute(indices[:half])
            yield from self._compute(indices[half:])

    def _made(self, indices: list[int], ask: Callable[[list[int]], Any]) -> Columns | list[Any] | None:
        """Ask for a batch; None if the source raises, or gives another number of samples."""
        self._before(indices[0], len(indices))
        try:
            with suppress(Exception):  # by `source[index]`, the error names the sample
                made = ask(indices)
                columns = made if isinstance(made, list | Columns) else Columns(made)
                count = columns.count if isinstance(columns, Columns) else len(columns)
                return columns if count == len(indices) else None
        finally:
            self._after(0, 0)
        return None

    def _add_columns(self, indices: list[int], columns: Columns) -> Iterator[int]:
        row = 0
        while row < len(indices):
            nbytes = self._builder.nbytes
            count = self._builder.add_columns(indices, columns, row)
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
