"""Orders that need no labels: as the dataset has it, a permutation, chunk by chunk, and those of others."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import Self

from edcache import base
from edcache.base import (
    Computed,
    Ints,
    OptionError,
    Permutation,
    Selection,
    Shuffled,
    check_count,
    once,
    permuted,
    shuffled,
    word,
    words,
)
from edcache.dataset.epoch import EpochSampler, SamplerKeywords
from edcache.dataset.state import State, digest

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LANES = 8


class Sequential(EpochSampler):
    """A sampler that draws every sample once an epoch, in the order of the dataset.

    Args:
        ds: any object with `len`.
        uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.

    >>> DataLoader(test, batch_size=64, sampler=edcache.samplers.Sequential(test, uneven="allow"))
    """

    def __init__(self, ds: Any, **keywords: Unpack[SamplerKeywords]) -> None:
        super().__init__(ds, len(ds), 0, **keywords)

    def _drawn(self, epoch: int) -> Selection:
        return Selection(range(self._count))


class Shuffle(EpochSampler):
    """A sampler that draws every sample once an epoch, in a random order.

    Args:
        ds: any object with `len`.
        seed, uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.

    Cost: no memory and no start, whatever the length: what stands at a position is computed, 30 million
    positions a second. `docs/reference/orders.md` says how.

    >>> DataLoader(ds, batch_size=64, sampler=edcache.samplers.Shuffle(ds))
    """

    def __init__(self, ds: Any, seed: int = 0, **keywords: Unpack[SamplerKeywords]) -> None:
        super().__init__(ds, len(ds), seed, **keywords)

    def _drawn(self, epoch: int) -> Selection:
        return shuffled(Selection(range(self._count)), self.seed, epoch)


class ChunkShuffle(EpochSampler):
    """A sampler that draws every sample once, from a few chunks of the archive at a time.

    Args:
        ds: a cache or a view.
        buffer: the number of chunks that are mixed at a time, by all ranks together: buffer / lanes, but at
            least one, in each lane. A chunk has about 4 MiB, or the `chunk_size` of the writer.
        lanes: the order has so many parts, of chunks of their own, that take turns. Where the number of ranks
            divides `lanes`, each chunk is read by one rank, else by n / gcd(n, lanes) of n ranks. None is
            what a loaded state has, or else 8, or the number of ranks if that is more. The order depends on
            it: give it, for the same order in jobs of more than 8 ranks that begin anew.
        seed, uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.
    Raises:
        OptionError: "12 of 100 samples have no record, and so no chunk; take ds.available()".

    The chunks come in a new random order every epoch, a few of them at a time, and their samples are
    permuted together; every chunk is read once. So samples end up as far from where they lie as in a full
    permutation, but a lane's neighbours are often of one chunk: of 500 chunks in one lane, with buffers of 4,
    16, 64: 25 %, 6.3 %, 1.6 % (permutation: 0.2 %, file order: 99 %). Where like samples lie together, as in
    files sorted by class, a batch has those of `buffer` chunks: write them in a mixed order, or take a larger
    buffer.

    Where samples lie in the file in the order of their indices, a chunk here is a run of consecutive samples.
    Cost: 40 bytes and 0.2 us a chunk. Of samples in another order (`edcache.compact` sorts them), and of
    views but slices, 8 bytes and 0.05 us a sample.
    """

    def __init__(
        self,
        ds: Any,
        buffer: int = 16,
        seed: int = 0,
        *,
        lanes: int | None = None,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        check_count("buffer", buffer)
        if lanes is not None:
            check_count("lanes", lanes)
        cache = getattr(ds, "cache", None)
        reader: Any = getattr(cache, "reader", cache)
        if not hasattr(reader, "chunk_of"):
            raise OptionError(f"{type(ds).__name__} has no chunks; give a cache, or a view of one")
        self.buffer, self._lanes = buffer, lanes
        starts = reader.chunk_starts()
        cuts = None if starts is None else ds._whole_selection().cuts(starts)
        if cuts is not None:
            self._positions, self._starts = Selection(range(len(ds))), cuts
        else:
            indices = ds.indices
            chunks = reader.chunk_of(indices) if starts is None else np.searchsorted(starts, indices, "right")
            missing = int(np.count_nonzero(chunks < 0))
            if missing:
                raise OptionError(
                    f"{missing:,} of {len(ds):,} samples have no record, and so no chunk; take ds.available()"
                )
            places, ends = base.grouped(chunks.astype(np.uint64), int(chunks.max(initial=0)) + 1)
            self._positions, self._starts = Selection(places), ends[np.append(True, ends[1:] != ends[:-1])]
        super().__init__(ds, len(ds), seed, **keywords)

    @property
    def lanes(self) -> int:
        """The number of parts of the order that take turns."""
        return max(_LANES, self.num_replicas) if self._lanes is None else self._lanes

    def load_state_dict(self, state: State, *, on_change: str = "error") -> None:
        """See the base class. Takes the state's lanes where none were given."""
        given, lanes = self._lanes, state.get("lanes") if isinstance(state, dict) else None
        if given is None and type(lanes) is int and lanes > 0:
            self._lanes = lanes
        try:
            super().load_state_dict(state, on_change=on_change)
        except OptionError:
            self._lanes = given
            raise

    def _of_first(self, samples: int) -> Self:
        fewer = super()._of_first(samples)
        fewer._lanes = self._lanes
        return fewer

    def _drawn(self, epoch: int) -> Selection:
        order = _ChunkOrder(self._starts, self.buffer, self.lanes, (self.seed, epoch))
        return Shuffled(range(self._count), self._positions, order)

    def _options(self) -> State:
        return {"buffer": self.buffer, "lanes": self.lanes, "data": self._digest}

    @once
    def _digest(self) -> str:
        places = self._positions.numbers
        return digest(self._starts, *(() if isinstance(places, range) else (places,)))


class Foreign(EpochSampler):
    """What `Loader` takes another sampler for: an order that it draws anew, and this process reads alone.

    Args:
        sampler: gives positions, or batches of them.
    """

    def __init__(self, ds: Any, sampler: Iterable[Any], gives_lists: bool) -> None:
        self._sampler, self._told = sampler, 0
        self._is_of_lists = gives_lists
        count = len(sampler) if isinstance(sampler, Sized) else sys.maxsize
        super().__init__(ds, count, 0, num_replicas=1, rank=0)

    def __len__(self) -> int:
        if not isinstance(self._sampler, Sized):
            raise TypeError(f"{type(self._sampler).__name__} has no length, so this loader has none")
        return len(self._sampler)

    @property
    def epoch(self) -> int:
        """That of the sampler, whoever told it; where it knows of none, this one's."""
        epoch = getattr(self._sampler, "epoch", None)
        if isinstance(epoch, int) and epoch != self._told:
            self._told, self._start, self._taken, self._is_resumed = epoch, 0, 0, False
            self._iteration = object()
        return self._told

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._told = epoch

    def set_epoch(self, epoch: int) -> None:
        """See the base class."""
        super().set_epoch(epoch)
        tell = getattr(self._sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)

    def load_state_dict(self, state: State, *, on_change: str = "error") -> None:
        """See the base class."""
        super().load_state_dict(state, on_change=on_change)
        # Others may name an epoch to the sampler, and the same one unseen.
        self._is_set = True

    def _state(self, epoch: int, consumed: int) -> State:
        return super()._state(epoch, consumed) | {"order": type(self._sampler).__name__}

    def _of_first(self, samples: int) -> Self:
        return self

    @property
    def _gives_lists(self) -> bool:
        return self._is_of_lists

    def _order(self, epoch: int, start: int, rank: int | None = None) -> Any:
        drawn = list(self._sampler)[start:]
        return [_positions(each) for each in drawn] if self._is_of_lists else Selection(_positions(drawn))


class _ChunkOrder(Computed):
    """The order of `ChunkShuffle`: chunks at random, and each window of them; then lanes that take turns.

    Args:
        starts: int64 [chunks + 1], where each chunk begins among the samples that are ordered.
    """

    def __init__(self, starts: Ints, buffer: int, lanes: int, key: tuple[int, ...]) -> None:
        super().__init__(int(starts[-1]))
        count, buffer = len(starts) - 1, max(1, buffer // lanes)
        chunks = Permutation(count, *key).take(np.arange(count))
        sizes = np.diff(starts)[chunks]
        self._ends = np.cumsum(sizes)
        self._shifts = starts[chunks] - self._ends + sizes
        self._bounds = np.concatenate(([0], self._ends[buffer - 1 : -1 : buffer], self._ends[-1:]))
        self._sizes, self._word, self._lanes = np.diff(self._bounds), word(*key), lanes

    def _computed(self, positions: Ints) -> Ints:
        rounds, lanes = np.divmod(positions, self._lanes)
        each, more = divmod(int(self._ends[-1]), self._lanes)
        places = rounds + lanes * each + np.minimum(lanes, more)
        windows = np.searchsorted(self._bounds, places, side="right") - 1
        begins: Ints = self._bounds[windows]
        taken = permuted(places - begins, self._sizes[windows], words(self._word, windows)) + begins
        taken += self._shifts[np.searchsorted(self._ends, taken, side="right")]
        return taken


def _positions(drawn: Any) -> Ints:
    array = np.asarray(drawn)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise OptionError(
            f"the sampler gives {array.dtype} of shape {array.shape}; it gives integers, and with "
            "batch_size=None lists of them"
        )
    return array.astype(np.int64)
