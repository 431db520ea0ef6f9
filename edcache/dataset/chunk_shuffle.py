"""An order that reads the archive chunk by chunk, for storage on which random reads are slow."""

from __future__ import annotations

from typing import Any

import numpy as np

from edcache.base import OptionError
from edcache.dataset.sampler_columns import grouped
from edcache.dataset.sampler_epochs import EpochSampler, Ints, check_count


class ChunkShuffle(EpochSampler):
    """Draws every sample once, from a few chunks of the archive at a time.

    Args:
        ds: a cache or a view.
        buffer: how many chunks are mixed at a time. Chunks have some 4 MiB, or the writer's `chunk_size`.
        seed, drop_last, num_replicas, rank: as in `EpochSampler`; but a rank's share lies together, so that
            ranks read different chunks.
    Raises:
        OptionError: "12 of 100 samples have no record, and so no chunk; take ds.available()".

    The chunks come in a new random order every epoch, `buffer` of them at a time, and their samples are
    permuted together. So samples end up as far from where they lie as in a full permutation (mean
    displacement 1.0 of that), but neighbours in the order are of one chunk once in `buffer` times. Of 500
    chunks, with buffers of 4, 16, 64: 25 %, 6.3 %, 1.6 % (permutation: 0.2 %, file order: 99 %); the
    correlation of neighbours' places is 0.24, 0.06, 0.02 (0.00, 1.00). Where like samples lie together, as
    in files sorted by class, a batch has those of `buffer` chunks: write them in a mixed order, or take a
    larger buffer. Every chunk is read once an epoch, by a rank that holds `buffer` of them at a time.

    Cost: 8 bytes a sample, and 24 while an epoch is made. 10 million samples: 0.5 s, then 0.3 s an epoch.
    """

    def __init__(
        self,
        ds: Any,
        buffer: int = 16,
        seed: int = 0,
        *,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        check_count("buffer", buffer)
        cache: Any = getattr(ds, "cache", None)
        reader = getattr(cache, "reader", cache)
        if not hasattr(reader, "chunk_of"):
            raise OptionError(f"{type(ds).__name__} has no chunks; give a cache, or a view of one")
        chunks = reader.chunk_of(ds.indices)
        missing = int(np.count_nonzero(chunks < 0))
        if missing:
            raise OptionError(
                f"{missing:,} of {len(ds):,} samples have no record, and so no chunk; take ds.available()"
            )
        self.buffer = buffer
        self._positions, self._starts = grouped(chunks)
        super().__init__(len(chunks), seed, drop_last, num_replicas, rank)

    def _drawn(self, generator: np.random.Generator) -> Ints:
        chunks = generator.permutation(len(self._starts) - 1)
        sizes = np.diff(self._starts)[chunks]
        ends = np.cumsum(sizes)
        places = np.repeat(self._starts[chunks] - ends + sizes, sizes) + np.arange(self._count)
        drawn = self._positions[places]
        bounds = np.concatenate(([0], ends))[:: self.buffer].tolist()
        for begin, end in zip(bounds, [*bounds[1:], self._count], strict=True):
            generator.shuffle(drawn[begin:end])
        return drawn

    def _part(self, drawn: Ints, rank: int, ranks: int) -> Ints:
        parts: Ints = drawn.reshape(ranks, -1)[rank]
        return parts
