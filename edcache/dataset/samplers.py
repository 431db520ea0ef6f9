"""Orders without labels: of the dataset, a permutation, chunk by chunk, of another sampler."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from edcache.base import Ints, OptionError, check_count
from edcache.dataset.epoch import EpochSampler, Pass, SamplerKeywords
from edcache.dataset.indexing import Readable, reading_of
from edcache.dataset.orders import Batches, EpochDraws, RankOrder, RankSteps
from edcache.dataset.permutation import Computed, Permutation, permuted, word, words
from edcache.dataset.root import Reading, SampleRoot
from edcache.dataset.selection import Arranged, Selection
from edcache.dataset.split import grouped
from edcache.dataset.state import State

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Windows of a lane that grow to full size, and the divisor of the first one's size.
_GROWING, _SMALLEST = 6, 64


class Sequential(EpochSampler):
    """Sampler that draws every sample once an epoch, in the order of the dataset.

    Args:
        ds: any object with `len`.
        uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.

    >>> DataLoader(test, batch_size=64, sampler=edcache.samplers.Sequential(test, uneven="allow"))
    """

    def __init__(self, ds: Sized, **keywords: Unpack[SamplerKeywords]) -> None:
        super().__init__(ds, len(ds), 0, **keywords)

    def _drawn(self, epoch: int) -> EpochDraws:
        return Selection(range(self._count))


class Shuffle(EpochSampler):
    """Sampler that draws every sample once an epoch, in a random order.

    Args:
        ds: any object with `len`.
        seed, uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.

    Cost: an epoch of up to a million samples is shuffled at its start: 1 ms for 60,000, 25 ms and 8 MiB for a
    million. Orders of more are computed, 30 million positions a second, without memory and start;
    `docs/reference/orders.md` says how.

    >>> DataLoader(ds, batch_size=64, sampler=edcache.samplers.Shuffle(ds))
    """

    def __init__(self, ds: Sized, seed: int = 0, **keywords: Unpack[SamplerKeywords]) -> None:
        super().__init__(ds, len(ds), seed, **keywords)

    def _drawn(self, epoch: int) -> EpochDraws:
        return Permutation(self._count, self.seed, epoch)


class ChunkShuffle(EpochSampler):
    """Sampler that draws every sample once an epoch, from a few chunks of the archive at a time.

    Args:
        ds: a cache or a view.
        buffer: the number of chunks that are mixed at a time, by all lanes and ranks together. A chunk has about 4 MiB,
            or the `chunk_size` of the writer.
        lanes: the number of parts of the order, each with its own chunks, that take turns. If the number of ranks
            divides `lanes`, each chunk is read by one rank, else by n / gcd(n, lanes) of n ranks. For more than 8 ranks
            give their number.
        seed, uneven, global_batch_size, num_replicas, rank: as in `EpochSampler`.
    Raises:
        OptionError: "12 of 100 samples have no record, and so no chunk; leave out ds.missing".

    The chunks come in a new random order every epoch. A lane permutes a window of them together, then the next one, and
    no two lanes change windows at the same time. The first six windows of a lane are smaller, so that a first batch
    does not wait for whole chunks of a far archive: they begin at a 64th of a whole one, and double. So samples move as
    far as in a full permutation, but neighbours in a lane are often of one chunk: of 500 chunks in one lane, with
    buffers of 4, 16, 64: 23 %, 7 %, 2.6 % (permutation: 0.2 %, file order: 99 %). If like samples lie together, as in
    files sorted by class, a batch has samples of `buffer` chunks: write them in a mixed order, or take a larger buffer.

    A chunk here is a run of consecutive samples, of the average length of a chunk.
    Cost: none, if samples are stored in the order of their indices. In another order (`ds.save(ds.path)` sorts them),
    and for views but slices, 8 bytes and 0.05 us a sample.
    """

    def __init__(
        self,
        ds: Sized,
        buffer: int = 16,
        seed: int = 0,
        *,
        lanes: int = 8,
        **keywords: Unpack[SamplerKeywords],
    ) -> None:
        check_count("buffer", buffer)
        check_count("lanes", lanes)
        if not isinstance(ds, Readable):
            raise OptionError(f"{type(ds).__name__} has no chunks; give a cache, or a view of one")
        self.buffer, self.lanes = int(buffer), int(lanes)
        self._positions, self._size = _sorted_by_chunk(reading_of(ds))
        if not isinstance(self._positions.numbers, range):
            self._arrays = [self._positions.numbers]
        super().__init__(ds, len(ds), seed, **keywords)

    def _drawn(self, epoch: int) -> EpochDraws:
        order = _ChunkOrder(self._count, self._size, self.buffer, self.lanes, self.seed, epoch)
        return Arranged(range(self._count), self._positions, order)

    def _options(self) -> State:
        return {"buffer": self.buffer, "lanes": self.lanes, "run": self._size}


class Foreign:
    """Passes over a sampler that is not of edcache, for `Loader`: each is drawn anew, for one rank.

    After a pass that reached its end comes the next epoch, unless `set_epoch` of the sampler has named another.

    Args:
        sampler: yields positions, or batches of them if gives_lists. It keeps its own state.
    """

    def __init__(self, sampler: Iterable[Any], gives_lists: bool) -> None:
        self._sampler, self._gives_lists = sampler, gives_lists
        self._pass, self._count = Pass(0), 0

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self._pass.epoch

    def __len__(self) -> int:
        if not isinstance(self._sampler, Sized):
            raise TypeError(f"{type(self._sampler).__name__} has no length, so this loader has none")
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also of the sampler if it has a `set_epoch`."""
        check_count("epoch", epoch, 0)
        self._pass = Pass(epoch)
        tell = getattr(self._sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)

    def begin(self) -> tuple[Pass, RankOrder]:
        """See `EpochSampler.begin`."""
        told = getattr(self._sampler, "epoch", None)
        if isinstance(told, int) and told != self.epoch:
            self._pass = Pass(told)
        elif self._pass.taken >= self._count > 0:
            self.set_epoch(self.epoch + 1)
        else:
            self._pass = Pass(self.epoch)
        items = list(self._sampler)
        count = self._count = len(items)
        draws: EpochDraws
        if self._gives_lists:
            batches = [_positions(item) for item in items]
            draws = Batches(np.concatenate([_positions([]), *batches]), np.cumsum([0, *map(len, batches)]))
        else:
            draws = _positions(items)
        share = RankSteps(count, 0, count, each=1, rank=0, ranks=1)
        return self._pass, RankOrder(self.epoch, draws, share, self._gives_lists, may_repeat=False)


def _sorted_by_chunk(reading: Reading) -> tuple[Selection, int]:
    """Sort positions by chunk; return them, and the average number of samples in a chunk.

    Raises: OptionError, a sample has no record, or the dataset has no chunks.
    """
    length, size, step = len(reading), chunk_size(reading.root), reading.whole.step
    if size is not None and step is not None:
        return Selection(range(length)), -(-size // abs(step))
    chunks = chunks_of(reading) if size is None else reading.whole.array() // size
    missing = int(np.count_nonzero(chunks < 0))
    if missing:
        raise OptionError(
            f"{missing:,} of {length:,} samples have no record, and so no chunk; leave out ds.missing"
        )
    positions, ends = grouped(chunks.astype(np.uint64), int(chunks.max(initial=0)) + 1)
    return Selection(positions), -(-length // max(1, int(np.count_nonzero(np.diff(ends))))) or 1


def chunks_of(reading: Reading, positions: Ints | None = None) -> Ints:
    """Return the number of the chunk of each sample, counted over all archives: int64 [n], -1 without one.

    Raises: OptionError, a sample is of several datasets.
    """
    shares = reading.stored(positions)
    numbers, first = np.full(sum(len(share.places) for share in shares), -1, np.int64), 0
    for share in shares:
        root = share.part.root
        if root.parts:
            raise OptionError(f"the samples of {root!r} are put together, and have no chunk of their own")
        session = share.session
        # Equal parts of the file, in bytes: one for each chunk.
        rows, nbytes = session.index.rows(share.positions), -(-session.nbytes // max(1, session.chunks))
        own = rows["offset"].astype(np.int64) // nbytes + first
        numbers[share.places] = np.where(rows["flags"] == 0, -1, own)
        first = max(first, int(numbers[share.places].max(initial=-1)) + 1)
    return numbers


def chunk_size(root: SampleRoot) -> int | None:
    """Return the average number of samples in a chunk; None if they are not stored in their order."""
    if not root.parts:
        session = root.readers[0].session
        return session.index.chunk_size(session.chunks)
    chunks = 0
    for part in root.parts if root.is_divided else ():
        size, step = chunk_size(part.root), part.whole.step
        if size is not None and step is not None:
            chunks += -(-len(part) * abs(step) // size)
        elif len(part):
            return None
    return -(-len(root) // chunks) if chunks else None


class _ChunkOrder(Computed):
    """Order of `ChunkShuffle`: lanes take turns; each permutes windows of a line of runs.

    Args:
        count: number of samples, in runs of `size`, the last one shorter.
        key: of the order.
    """

    def __init__(self, count: int, size: int, buffer: int, lanes: int, *key: int) -> None:
        super().__init__(count)
        self._size, self._lanes, self._word = size, lanes, word(*key)
        whole = count // size
        self._runs = Permutation(whole, *key)
        # The last run, whose samples begin at `_last`, has a random place among the others.
        self._last = whole * size
        self._slot = int(words(self._word, np.array([lanes]))[0]) % (whole + 1) * size
        self._window = max(1, min(count, -(-buffer * size // lanes)))
        first = np.maximum(1, self._window * (lanes + np.arange(lanes)) // (_SMALLEST * lanes))
        growing = np.minimum(first << np.arange(_GROWING)[:, None], self._window)
        self._bounds = np.append(np.zeros((1, lanes), np.int64), np.cumsum(growing, axis=0), axis=0)

    def _computed(self, positions: Ints) -> Ints:
        rounds, lanes = np.divmod(positions, self._lanes)
        each, more = divmod(self._count, self._lanes)
        bounds, window = self._bounds, self._window
        windows = np.count_nonzero(rounds >= bounds[1:, lanes], axis=0)
        begins, ends = bounds[windows, lanes], bounds[np.minimum(windows + 1, _GROWING), lanes]
        equal = (rounds - begins) // window * (windows == _GROWING)
        begins = begins + equal * window
        ends = np.minimum(np.where(windows == _GROWING, begins + window, ends), each + (lanes < more))
        places = permuted(rounds - begins, ends - begins, words(self._word, lanes, windows + equal))
        return self._sample(places + begins + lanes * each + np.minimum(lanes, more))

    def _sample(self, places: Ints) -> Ints:
        """Return the samples at places of the line of runs."""
        rest = self._count - self._last
        is_last = (places >= self._slot) & (places < self._slot + rest)
        run, offset = np.divmod(places - rest * (places >= self._slot + rest), self._size)
        samples = np.where(is_last, self._last + places - self._slot, offset)
        others = np.flatnonzero(~is_last)
        samples[others] += self._runs.take(run[others]) * self._size
        return samples


def _positions(drawn: Any) -> Ints:
    array = np.asarray(drawn)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise OptionError(
            f"the sampler gives {array.dtype} of shape {array.shape}; it gives integers, and with "
            "batch_size=None lists of them"
        )
    return array.astype(np.int64)
