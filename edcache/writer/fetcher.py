"""Ask a source for the samples of some indices, and add them to a chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias

import numpy as np

from edcache.base import SourceError
from edcache.codec import Columns
from edcache.writer.builder import ChunkBuilder
from edcache.writer.features import columns_of
from edcache.writer.job import Job

Before: TypeAlias = Callable[[int], object]
"""Called with the index of the next sample, or with -1 before waiting for a claim; may raise."""
After: TypeAlias = Callable[[int, int], object]
"""Called with the number of samples that were computed or found, and the bytes of their raw records."""


class Fetcher:
    """Compute samples of a source and add them to a chunk: many at once if it gives them as columns.

    Args: before, after: called around each call of the source.
    """

    def __init__(
        self,
        job: Job,
        builder: ChunkBuilder,
        before: Before = lambda index: None,
        after: After = lambda count, nbytes: None,
    ) -> None:
        self._job, self._builder = job, builder
        self._before, self._after = before, after
        self._columns_of = columns_of(job.source)

    def compute(self, indices: list[int]) -> Iterator[None]:
        """Add the samples of rising indices; after each yield the chunk may be published.

        Raises: SourceError, CodecError, LabelError, for a sample that is refused, unless failures are kept.
        """
        for run in self._runs(indices):
            columns = self._ask(run)
            if columns is None:
                for index in run:
                    self._add(index)
                    yield
                continue
            row = 0
            while row < len(run):
                nbytes = self._builder.nbytes
                count = self._builder.add_columns(run[row], columns, row)
                row += count
                self._after(count, self._builder.nbytes - nbytes)
                yield

    def _runs(self, indices: list[int]) -> list[list[int]]:
        """Divide indices into runs; the source gets each run by one call, if it can."""
        if self._columns_of is None:
            return [indices]
        gaps = np.flatnonzero(np.diff(indices) > 1) + 1
        return [run.tolist() for run in np.split(np.array(indices, np.int64), gaps) if len(run)]

    def _ask(self, run: list[int]) -> Columns | None:
        """Get several samples by one call; None if they are to be computed one by one, which names a bad one."""
        if self._columns_of is None:
            return None
        self._before(run[0])
        try:
            with suppress(Exception):
                columns = self._columns_of(slice(run[0], run[-1] + 1))
                return columns if columns.count == len(run) else None
        finally:
            self._after(0, 0)
        return None

    def _add(self, index: int) -> None:
        """Compute a sample, and add it or its failure."""
        nbytes = self._builder.nbytes
        self._before(index)
        try:
            sample = self._job.compute(index)
        except SourceError as error:
            self._builder.refuse(index, error)
        else:
            self._builder.add(index, sample)
        finally:
            self._after(1, self._builder.nbytes - nbytes)
