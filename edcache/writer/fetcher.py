"""Ask a source for the samples of some indices, and add them to a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import torch

from edcache import base, identity
from edcache.base import EdcacheError, OptionError, SourceError
from edcache.codec import Columns
from edcache.identity import Recomputed
from edcache.storage import own_positions
from edcache.writer.builder import ChunkBuilder
from edcache.writer.features import After, Ask, Before, batches_of, is_stream, stream_of
from edcache.writer.job import Job, text_of

# Parts of the texts of errors that no exception class tells apart: of torch, CUDA, cuBLAS and XLA.
_WANTS_OF_MEMORY: Final = "out of memory", "allocate memory", "alloc_failed"
# Options of `map` whose errors are of the call, not of a sample.
_OF_MAP: Final = "fn", "keep"


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
        own_positions()
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
        """Add the samples of a batch, by one call of the source if it can be."""
        if self._ask is None or self._job.suspects.intersection(indices):
            parts: Iterable[tuple[list[int], Columns | list[Any] | None]] = (([k], None) for k in indices)
        else:
            parts = _parts(self._job, self._ask, indices, self._before, self._after)
        for part, made in parts:
            if made is None:
                self._compute_one(*part)
                yield 1
            else:
                yield from self._add(part, made)

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


def samples_at(source: Any, indices: list[int]) -> list[Any]:
    """Read samples of a source: several by one call if it gives batches, one by `source[index]`.

    Raises: SourceError, it gives another number of samples; as the source does.
    """
    ask, _ = batches_of(source)
    if ask is None or len(indices) == 1:
        return [source[index] for index in indices]
    return [*_rows(_counted(ask(indices), len(indices)))]


def samples_of(job: Job, indices: list[int]) -> Iterator[Any]:
    """Compute samples, in batches if the source gives them. Raises: SourceError, for one that raises.

    Yields: each sample; the source may change it while it computes the next one.
    """
    own_positions()
    ask, _ = batches_of(job.source)
    if ask is None:
        yield from map(job.compute, indices)
        return
    for part, made in _parts(job, ask, indices):
        if made is None:
            yield job.compute(*part)
        else:
            yield from _rows(made)


def compute_again(job: Job, index: int, least: int, stored: tuple[str, bytes] | None = None) -> Recomputed:
    """Compute a sample at least `least` times: alone and, if the source gives batches, in one; see `recompute`.

    stored: record; without one, what computing changes in the source is told.
    """
    own_positions()
    if is_stream(job.source):
        return identity.recompute([lambda: next(iter(job.source))], job.head.codec, least, stored)
    # The length counts different samples, and a source may repeat keys.
    end = max(index + 1, min(job.length, index + (job.options.batch_size or job.head.claim_size)))
    ways = [lambda: job.compute(index), lambda: next(samples_of(job, [*range(index, end)]))]
    if (stored is None or least > 1) and identity.holds_generator(job.source):
        least = identity.FEW_DRAWS
    described = job.source.dataset if job.is_part else job.source
    before = identity.recipe_of(described) if stored is None else None
    again = identity.recompute(ways[:least], job.head.codec, least, stored)
    return again if before is None else again._replace(state=before.changed(identity.recipe_of(described)))


def _parts(
    job: Job,
    ask: Ask,
    indices: list[int],
    before: Before = lambda index, count: None,
    after: After = lambda count, nbytes: None,
) -> Iterator[tuple[list[int], Columns | list[Any] | None]]:
    """Ask for a batch; if there is no memory for it, for its halves.

    Yields: indices, and their samples; after any other error each index, and None: alone, by `source[index]`, the
        sample that raises names itself.
    Raises: OptionError, an argument of `map` makes wrong results of every batch.
    """
    made, is_halved = None, False
    before(indices[0], len(indices))
    try:
        made = _counted(ask(indices), len(indices))
    except Exception as error:  # by `source[index]`, the error names the sample
        if isinstance(error, OptionError) and error.option in _OF_MAP:
            raise
        is_halved = len(indices) > 1 and _is_want_of_memory(error)
        if len(indices) > 1 and not is_halved:
            _warn_of(error, job, indices)
    finally:
        after(0, 0)
    # Here no error holds the memory of the batch any more.
    if made is not None:
        yield indices, made
    elif is_halved:
        half = len(indices) // 2
        yield from _parts(job, ask, indices[:half], before, after)
        yield from _parts(job, ask, indices[half:], before, after)
    else:
        yield from (([index], None) for index in indices)


def _rows(made: Columns | list[Any]) -> Iterator[Any]:
    return iter(made) if isinstance(made, list) else map(made.at, range(made.count))


def _is_want_of_memory(error: Exception) -> bool:
    text = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(
        words in text.lower() for words in _WANTS_OF_MEMORY
    )


def _warn_of(error: Exception, job: Job, indices: list[int]) -> None:
    """Warn that a batch raised, of an archive the first time."""
    what = f"{job.path}: a batch of {len(indices):,} samples, from index {indices[0]} on, raised"
    then = "its samples are computed one by one, as are those of other batches that raise"
    text = f"{job.told(what, indices[0])} {type(error).__name__}: {text_of(error)}; {then}"
    base.warn(text, once=(_warn_of, job.path))


def _counted(made: Any, count: int) -> Columns | list[Any]:
    """Return samples as a list or Columns. Raises: SourceError, they are not `count`; as Columns does."""
    samples = made if isinstance(made, list | Columns) else Columns(made)
    length = samples.count if isinstance(samples, Columns) else len(samples)
    if length != count:
        raise SourceError(f"{length:,} samples were given for {count:,} indices")
    return samples
