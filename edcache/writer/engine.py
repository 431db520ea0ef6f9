"""Engines of a fill: what computes a batch of samples. `writer/loop.py` has the loop that asks them.

    Here                 this process, by `source[index]`, or by one call for a batch
    cluster.Cluster      tasks of an executor, whose results are chunks
    `__edcache_engine__` of the source: a device, which computes a batch while the next one is read

An engine must
- take any batch at `submit` without waiting for its samples, and remember at most `depth` of these;
- give each sample of a batch, or its error, exactly once, under the index that was asked for, as `Pending` is iterated;
- compute a batch by `Here` that it cannot compute itself: so want of memory halves a batch, any other error has its
  samples computed one by one, and the one that raises is named, in one place for all engines;
- call code of the user inside of `with watch.begin(...)`, since that code may hang or end the process.

A crew (writer/crew.py) is no engine, but processes that run the loop, each with an engine of its own.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from edcache import base, identity
from edcache.base import OptionError, SourceError
from edcache.codec import Columns
from edcache.format import Failure
from edcache.identity import Recomputed, Record
from edcache.storage import own_positions
from edcache.writer.chunk import Chunk
from edcache.writer.job import Job
from edcache.writer.source import batches_of, is_interrupt, is_stream, refusal, text_of

MadeSamples: TypeAlias = Columns | list[Any] | SourceError
"""Samples of some indices; or the error of one."""
PartOfBatch: TypeAlias = tuple[list[int], MadeSamples | Failure | Chunk]
"""Some indices, and their samples; or what another process made of them: the failure of one, or a chunk."""
Pending: TypeAlias = Iterator[PartOfBatch]
"""Waits for the samples of a batch that an engine was given, and gives them in parts.

Raises: EdcacheError, the fill cannot go on; parts that were given before stay.
"""

# Parts of the texts of errors that no exception class tells apart: of torch, CUDA, cuBLAS and XLA.
_WANTS_OF_MEMORY: Final = "out of memory", "allocate memory", "alloc_failed"


class Watch(AbstractContextManager["Watch"]):
    """Told by the loop and its engine which samples this process computes; here it does nothing with that.

    In a worker it tells the parent process, and lets signals end a sample (writer/worker.py).

    >>> with watch.begin(index, 1):  # raises an error that ends the fill, if a signal ends this process meanwhile
    ...     sample = source[index]
    >>> watch.end()  # when the sample is added
    """

    def begin(self, index: int, count: int) -> Watch:
        """Tell that `count` samples from `index` on are being computed; (-1, 0): that a claim is waited for."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Tell that they are computed, and are to be added."""

    def end(self) -> None:
        """Tell that they are added, or that the wait is over."""


class BatchEngine(AbstractContextManager["BatchEngine"]):
    """Computes batches; a context, at whose end it lets go of processes and devices.

    depth: most batches to submit before the first result is taken.
    gives_batches: True if a batch is computed by one call. takes_any: True if that may be of any size.
    watch: told what this process computes.
    """

    watch = Watch()
    depth = 1
    gives_batches = takes_any = False

    @abstractmethod
    def submit(self, indices: list[int]) -> Pending:
        """Begin to compute samples."""

    def ended(self, running: deque[Pending]) -> list[Pending]:
        """Take out of `running` the batches whose results are to be added next: the oldest one, by default.

        An empty list: none is due yet.
        """
        return [running.popleft()]


class Here(BatchEngine):
    """Engine of this process, which calls the source: by `source[index]`, or once for a batch."""

    def __init__(self, job: Job, watch: Watch | None = None, suspects: frozenset[int] = frozenset()) -> None:
        own_positions()
        self._job, self.watch, self._suspects = job, watch or self.watch, suspects
        self._ask, self.takes_any = batches_of(job.source)
        self.gives_batches = self._ask is not None and not self.takes_any

    def __exit__(self, *raised: object) -> None:
        """Let go of nothing."""

    def is_suspect(self, indices: list[int]) -> bool:
        """True if a batch that began with one of these indices has ended its process: they are computed one by one."""
        return not self._suspects.isdisjoint(indices)

    def is_interrupt(self, error: BaseException, indices: list[int]) -> bool:
        """True for an exception amid a batch that code of the user did not cause; see `writer/source.py`."""
        return is_interrupt(error, indices[0])

    def submit(self, indices: list[int]) -> Iterator[tuple[list[int], MadeSamples]]:
        """Compute a batch by one call if the source gives batches; or its halves, or each sample alone.

        Yields: parts of the indices, in their order, with their samples, which the source may change when it computes
            the next ones; or with the SourceError of a sample that raises.
        Raises: OptionError, it names an option: an argument of the user's call is wrong, and so is every sample.
        """
        source = self._job.source
        parts = [(indices, None if self.is_suspect(indices) else self._ask)]
        while parts:
            part, ask = parts.pop()
            if ask is None and len(part) > 1:
                parts += [([index], None) for index in reversed(part)]
                continue
            made: MadeSamples | None = None
            try:
                with self.watch.begin(part[0], len(part)):
                    made = [source[part[0]]] if ask is None else counted(ask(part), len(part))
            except BaseException as error:  # of the source, which may raise SystemExit
                is_of_call = isinstance(error, OptionError) and error.option is not None
                if is_of_call or self.is_interrupt(error, part):
                    raise
                if ask is None:
                    made = refusal(error, part[0], self._job.path, source)
                elif len(part) > 1 and _is_want_of_memory(error):
                    half = len(part) // 2
                    parts += [(part[half:], ask), (part[:half], ask)]
                else:
                    parts.append((part, None))
                    if len(part) > 1:
                        _warn_of(error, self._job, part)
            if made is not None:
                yield part, made
                del made  # no memory of it beside the next one


def engine_of(
    job: Job, watch: Watch | None = None, slot: int = 0, suspects: frozenset[int] = frozenset()
) -> BatchEngine:
    """Return the engine of one process of a fill: the source's own, if it has one, else `Here`.

    slot: number of the process in its crew, by which the source chooses a device. suspects: first indices of batches
    that have ended their process.
    """
    here = Here(job, watch, suspects)
    own = getattr(job.source, "__edcache_engine__", None)
    engine: BatchEngine | None = None if own is None else own(here, slot)
    return here if engine is None else engine


def samples_at(source: Any, indices: list[int]) -> list[Any]:
    """Read samples of a source: several by one call if it gives batches, one by `source[index]`.

    Raises: SourceError, it gives another number of samples; as the source does.
    """
    ask, _ = batches_of(source)
    if ask is None or len(indices) == 1:
        return [source[index] for index in indices]
    return [*_each(counted(ask(indices), len(indices)))]


def samples_of(here: Here, indices: list[int]) -> Iterator[Any]:
    """Compute samples in this process. Raises: SourceError, for one that raises.

    Yields: each sample; the source may change it while it computes the next one.
    """
    for _, made in here.submit(indices):
        if isinstance(made, SourceError):
            raise made
        yield from _each(made)


class Again(NamedTuple):
    """Samples to compute again: one `least` times or more; and `beside` it some others, alone, if they are cheap.

    stored: schema and record to compare with. Without them the result tells which state of the source has changed.
    """

    position: int
    least: int = 1
    stored: Record | None = None
    beside: tuple[int, ...] = ()


def compute_again(job: Job, asked: Again) -> Recomputed:
    """Compute a sample again: first alone, then in a batch; see `recompute`."""
    own_positions()
    index, least, stored, beside = asked
    if is_stream(job.source):
        return identity.recompute([lambda: next(iter(job.source))], job.head.codec, least, stored)
    if (stored is None or least > 1) and identity.held_generators(job.source):
        least = identity.FEW_DRAWS
    before, began = identity.recipe_of(job.source) if stored is None else None, time.monotonic()
    again = identity.recompute(_ways(job, index)[:least], job.head.codec, least, stored)._replace(
        position=index
    )
    more = list[Recomputed]()
    for other in beside:
        left = identity.SECONDS - (time.monotonic() - began)
        if least * again.seconds > left:
            break
        with suppress(Exception):  # the fill raises it again
            made = identity.recompute(_ways(job, other)[:1], job.head.codec, least, seconds=left)
            more.append(made._replace(position=other))
    state = () if before is None else before.changed(identity.recipe_of(job.source))
    return again._replace(state=state, more=tuple(more))


def _ways(job: Job, index: int) -> list[Callable[[], Any]]:
    """Return the ways to compute a sample: alone, and as the first one of a batch."""
    end = min(job.length, index + (job.options.batch_size or job.head.claim_size))
    return [
        lambda: next(samples_of(Here(job, suspects=frozenset({index})), [index])),
        lambda: next(samples_of(Here(job), [*range(index, end)])),
    ]


def _each(made: Any) -> Iterator[Any]:
    return iter(made) if isinstance(made, list) else map(made.at, range(made.count))


def _is_want_of_memory(error: BaseException) -> bool:
    text = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(
        words in text.lower() for words in _WANTS_OF_MEMORY
    )


def _warn_of(error: BaseException, job: Job, indices: list[int]) -> None:
    """Warn that a batch raised, of an archive the first time."""
    what = f"{job.path}: a batch of {len(indices):,} samples, from index {indices[0]} on, raised"
    then = "its samples are computed one by one, as are those of other batches that raise"
    text = f"{job.told(what, indices[0])} {type(error).__name__}: {text_of(error)}; {then}"
    base.warn(text, once=(_warn_of, job.path))


def counted(made: Any, count: int) -> Columns | list[Any]:
    """Return samples as a list or Columns. Raises: SourceError, they are not `count`; as Columns does."""
    samples = made if isinstance(made, list | Columns) else Columns(made)
    length = samples.count if isinstance(samples, Columns) else len(samples)
    if length != count:
        raise SourceError(f"{length:,} samples were given for {count:,} indices")
    return samples
