"""The samplers: orders that know the labels or the chunks of a dataset, and read no sample."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data.distributed import DistributedSampler
from typing_extensions import Self

from edcache import base
from edcache.base import (
    Cycle,
    Ints,
    OptionError,
    Permutation,
    Selection,
    Shuffled,
    check_count,
    described,
    once,
    shuffled,
)
from edcache.dataset.state import VERSION, State, archive_of, check_change, check_fit, check_shape, digest
from edcache.format import detached, pa
from edcache.labels import classes_of, comparable

Floats = npt.NDArray[np.float64]
Column = str | npt.ArrayLike
"""A label's name, or one value for each sample."""

# Of the series for logarithms: ten digits, enough for chance.
_TERMS = 9
_LANES = 8
# Of which a lane of ChunkShuffle keeps the orders: those that a batch and the one after it take from.
_MOST_WINDOWS = 8


# A DistributedSampler, so that what shards samplers by itself, such as Lightning, leaves this one alone.
class EpochSampler(DistributedSampler[Any]):
    """The base class of the samplers: positions of a dataset, in an order set by seed and epoch.

    Args:
        count: the number of draws in an epoch, by all ranks together.
        seed: any integer. The same seed and epoch give the same order in every process and on every
            platform.
        drop_last: True drops the draws that do not divide evenly among the ranks. False repeats the first
            draws instead. Every rank always draws equally many.
        ds: what is drawn from; if it has a copy of a far archive (`local=`), an iteration fetches ahead.
        num_replicas: the number of ranks that share an epoch.
        rank: the number of this rank. Give both or neither. None takes both from torch.distributed when an
            epoch begins, and is one rank if torch.distributed is not initialised. Give 1 and 0 if every rank
            shall draw everything, or if another library shards the sampler, as Accelerate does.
    Raises:
        OptionError: an argument is out of range, or only one of num_replicas and rank is given.

    An order is a function of the sampler's options, seed and epoch, and not of the number of ranks. What the
    ranks have drawn after k draws each is its beginning: of n ranks that begin at draw c of the epoch, rank r
    draws c + r, c + r + n, c + r + 2n, ... So a state goes on exactly with any other number of ranks, batch
    size or workers.

    Each iteration that reaches its end advances to the next epoch. An iteration that stops early repeats its
    epoch. A sampler does not see samples that are added after it was made.
    """

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Keeps the arguments, of which `load_state_dict` may make the sampler of fewer samples."""
        sampler = super().__new__(cls)
        sampler._made_with = args, options
        return sampler

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    # DistributedSampler.__init__ would count a dataset and ask torch.distributed too early.
    def __init__(
        self,
        count: int,
        seed: int,
        drop_last: bool,
        num_replicas: int | None,
        rank: int | None,
        ds: Any,
    ) -> None:
        if (num_replicas is None) != (rank is None):
            raise OptionError(f"num_replicas={num_replicas!r} and rank={rank!r}; give both, or none")
        if num_replicas is not None:
            check_count("num_replicas", num_replicas)
            if not isinstance(rank, (int, np.integer)) or not 0 <= rank < num_replicas:
                raise OptionError(
                    f"rank={rank!r} of num_replicas={num_replicas}; give 0 to {num_replicas - 1}"
                )
        if not isinstance(seed, (int, np.integer)):
            raise OptionError(f"seed={seed!r}; give an integer")
        self.seed = int(seed)
        self.epoch = 0
        self.drop_last = drop_last
        self._count = count
        self._num_replicas, self._rank = num_replicas, rank
        # Of the whole job where the iteration begins, and of this rank since.
        self._start = self._taken = 0
        self._resumed = False
        self._ds, self._samples, self._archive = ds, len(ds), archive_of(ds)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_ds": None, "_made_with": ((), {})}

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """The number of ranks that share an epoch."""
        if self._num_replicas is not None:
            return self._num_replicas
        return torch.distributed.get_world_size() if _is_distributed() else 1

    @property
    def rank(self) -> int:  # type: ignore[override]
        """The number of this rank, from 0."""
        if self._rank is not None:
            return self._rank
        return torch.distributed.get_rank() if _is_distributed() else 0

    def __len__(self) -> int:
        """The number of draws of this rank in an epoch; all ranks have the same."""
        return self._draws(0)

    def __repr__(self) -> str:
        ranks = self.num_replicas
        share = f", rank {self.rank} of {ranks}" if ranks > 1 else ""
        return f"{type(self).__name__}({len(self):,} an epoch, epoch {self.epoch}{share})"

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, at its start or where a loaded state stopped."""
        check_count("epoch", epoch, 0)
        if epoch != self.epoch:
            self._resumed = False
        if epoch != self.epoch or (self._is_complete and not self._resumed):
            self._start = self._taken = 0
        self.epoch = int(epoch)

    def state_dict(self, steps: int | None = None, *, batch_size: int = 1) -> State:
        """The position of the whole job, the same on every rank: plain numbers and strings.

        Args:
            steps: the number of batches that each rank has used of this iteration. A DataLoader with workers
                draws ahead of them, so the training loop counts. None counts the draws, which is right
                without workers, and with torchdata's StatefulDataLoader.
            batch_size: the number of draws in a batch of one rank.
        Returns:
            seed, epoch, consumed (draws of all ranks in this epoch), length (of an epoch), samples, archive
            (its uuid), version, order, and the options and data that determine the order.

        At the end of an epoch all draws are consumed, also those that `drop_last` left out.
        """
        taken = self._taken
        if steps is not None:
            check_count("steps", steps, 0)
            check_count("batch_size", batch_size)
            taken = int(steps) * int(batch_size)
        return self._state(self.epoch, self._consumed(self._start, taken))

    def load_state_dict(self, state: State, *, on_change: str = "error") -> None:
        """Continue at the position of a `state_dict`, with its seed and any number of ranks.

        Args:
            state: what `state_dict` returned, on any rank.
            on_change: what a dataset that has grown since is: "error", or "continue" to draw the old samples
                only, in this epoch and the following ones.
        Raises:
            OptionError: the state is of another order, archive or number of samples, or is no state.
        """
        check_shape(state)
        check_change(on_change)
        fitting = self
        if on_change == "continue" and self._ds is not None and state["samples"] < self._samples:
            fitting = self._of_first(state["samples"])
        check_fit(state, fitting._state(0, 0))
        vars(self).update(vars(fitting))
        self.set_epoch(state["epoch"])
        self.seed = state["seed"]
        self._start, self._taken, self._resumed = state["consumed"], 0, True

    def which(
        self, step: int, rank: int | None = None, *, batch_size: int = 1, epoch: int | None = None
    ) -> Ints:
        """The positions that a step reads: int64 [batch_size], fewer in a last batch. It draws nothing.

        Args:
            step: from 0, in the epoch; in one that a loaded state continues, from there.
            rank: None is this one.
            batch_size: as of `state_dict`; of `ByLength` leave it out.
            epoch: None is the current one; another is counted from its beginning.
        Raises:
            OptionError: the step or the rank does not exist.

        Cost: `Shuffle` and `ChunkShuffle` compute the positions alone, `Weighted` with replacement looks each
        up in log(n) steps. The others compute the order of the epoch first.
        """
        check_count("step", step, 0)
        check_count("batch_size", batch_size)
        ranks, rank = self.num_replicas, self.rank if rank is None else rank
        if not 0 <= rank < ranks:
            raise OptionError(f"rank={rank!r} of {ranks}; give 0 to {ranks - 1}")
        is_current = epoch is None or epoch == self.epoch
        order = self._order(self.epoch if epoch is None else epoch, self._start if is_current else 0, rank)
        steps = -(-len(order) // batch_size)
        if step >= steps:
            raise OptionError(f"step={step} of {steps:,} steps; give less")
        return _drawn_in(order, step * batch_size, min((step + 1) * batch_size, len(order)))

    def order(self, epoch: int | None = None) -> Any:
        """All draws of this rank in an epoch: a sequence of len(self). It does not advance the iteration.

        Args:
            epoch: the number of the epoch; None is the current one.
        Returns:
            order[k] is an int, order[a:b] an int64 array [b - a], np.asarray(order) all of it.
        """
        return self._order(self.epoch if epoch is None else epoch, 0)

    def __iter__(self) -> Iterator[Any]:
        # Only the first iterator after load_state_dict() continues. Some loaders make one to look for a state
        # and never use it: the next one must not continue then.
        resumed, self._resumed = (self.epoch, self._start) if self._resumed else None, False
        return self._iterate(resumed)

    def _iterate(self, resumed: tuple[int, int] | None) -> Iterator[Any]:
        """From the first draw on, so that a `set_epoch` behind `iter` counts too."""
        start = 0
        if resumed is not None and resumed[0] == self.epoch:
            start = resumed[1]
        elif self._is_complete:
            self.epoch += 1
        self._start, self._taken = start, 0
        order = self._order(self.epoch, start)
        items, look = _items(order, 0), getattr(self._ds, "_looking_ahead", None)
        ahead = None if look is None else look(partial(_drawn_in, order), 0, len(order))
        if ahead is not None:
            items = ahead.follow(items, 1)
        for self._taken, drawn in enumerate(items, 1):
            yield drawn

    @property
    def _is_complete(self) -> bool:
        return self._start + self._taken > 0 and self._consumed(self._start, self._taken) == self._count

    def _draws(self, start: int) -> int:
        """How many each rank has from a start on."""
        rest, ranks = self._count - start, self.num_replicas
        return rest // ranks if self.drop_last else -(-rest // ranks)

    def _consumed(self, start: int, taken: int) -> int:
        """By all ranks, when each has drawn so many from a start on."""
        return self._count if taken >= self._draws(start) else start + taken * self.num_replicas

    def _state(self, epoch: int, consumed: int) -> State:
        return {
            "version": VERSION,
            "order": type(self).__name__,
            "archive": self._archive,
            "seed": self.seed,
            "epoch": epoch,
            "samples": self._samples,
            "length": self._count,
            "consumed": consumed,
            **self._options(),
        }

    def _of_first(self, samples: int) -> Self:
        """This sampler of the first samples: made anew, by arguments of which the columns are cut."""
        args, options = self._made_with
        made_with = inspect.signature(type(self)).bind(*args, **options).arguments
        plain = (str, int, float, np.number, type(None))
        make: Any = type(self)
        cut = {name: one if isinstance(one, plain) else one[:samples] for name, one in made_with.items()}
        fewer: Self = make(**cut)
        return fewer

    def _options(self) -> State:
        """What the order is a function of, beside seed, epoch and length."""
        return {}

    def _generator(self, epoch: int) -> np.random.Generator:
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed % (1 << 64), spawn_key=(epoch,)))
        )

    def _drawn(self, epoch: int) -> Selection:
        """The draws of all ranks together, in order: of length `count`."""
        raise NotImplementedError

    def _order(self, epoch: int, start: int, rank: int | None = None) -> Any:
        """The draws of a rank from a start of all of them on."""
        return self._share(self._drawn(epoch), start, self.rank if rank is None else rank)

    def _share(self, drawn: Selection, start: int, rank: int) -> Selection:
        """Every n-th of n ranks. The first draws of the epoch follow the last."""
        ranks = self.num_replicas
        total = start + self._draws(start) * ranks
        part = range(start + rank, total, ranks)
        return Cycle(part, drawn) if total > len(drawn) else drawn.cut(part)


class Shuffle(EpochSampler):
    """A sampler that draws every sample once an epoch, in a random order.

    Args:
        ds: any object with `len`.
        seed, drop_last, num_replicas, rank: as in `EpochSampler`.

    Cost: no memory and no start, whatever the length: what stands at a position is computed, 30 million
    positions a second. `docs/reference/orders.md` says how.

    >>> DataLoader(ds, batch_size=64, sampler=edcache.samplers.Shuffle(ds))
    """

    def __init__(
        self,
        ds: Any,
        seed: int = 0,
        *,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(len(ds), seed, drop_last, num_replicas, rank, ds)

    def _drawn(self, epoch: int) -> Selection:
        return shuffled(Selection(range(self._count)), self.seed, epoch)


class Balanced(EpochSampler):
    """A sampler that draws every class equally often.

    Args:
        ds: a cache, a view, or any object with `len` and `.labels`.
        label: the name of the label column with the class, of any type of single values; or an array
            [len(ds)] of classes. Samples whose class is missing (None, nan, NaT) are not drawn.
        num_samples: the number of draws in an epoch, by all ranks together. None is the number of samples
            that have a class. The counts of two classes differ by at most one.
        seed, drop_last, num_replicas, rank: as in `EpochSampler`.
    Raises:
        UnknownLabelError: 'no label "lable"; this archive has: label, split; did you mean label?'.
        OptionError: an array has the wrong length; a number is below 1.

    With k classes, k consecutive draws have each class once, in a random order, so batches are balanced too.
    All samples of a class are drawn, in random order, before one is drawn again.

    Cost: 8 bytes per sample, and about 32 bytes per draw while an epoch begins. 10 million samples take
    0.3 s, and then 0.5 s per epoch; with a million classes 2.5 s, and then 0.7 s.

    >>> DataLoader(ds, batch_size=64, sampler=edcache.samplers.Balanced(ds, "label"))
    """

    def __init__(
        self,
        ds: Any,
        label: Column,
        num_samples: int | None = None,
        seed: int = 0,
        *,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self._members, self._starts = _by_class(column_of(ds, label))
        if num_samples is not None:
            check_count("num_samples", num_samples)
            if not len(self._members):
                raise OptionError(f"num_samples={num_samples}, and no sample has a class to draw from")
        count = len(self._members) if num_samples is None else num_samples
        super().__init__(count, seed, drop_last, num_replicas, rank, ds)

    def _drawn(self, epoch: int) -> Selection:
        generator, sizes = self._generator(epoch), np.diff(self._starts)
        if not len(sizes):
            return Selection(range(0))
        rounds = -(-self._count // len(sizes))
        drawn = np.empty((rounds, len(sizes)), np.int64)
        # Classes of one size are permuted together: there are few sizes, whatever the number of classes.
        for size in np.unique(sizes).tolist():
            classes = np.flatnonzero(sizes == size)
            cycles = -(-rounds // size)
            starts = np.repeat(self._starts[classes], cycles)
            members = self._members[starts[:, None] + np.arange(size)]
            generator.permuted(members, axis=1, out=members)
            drawn[:, classes] = members.reshape(len(classes), -1)[:, :rounds].T
        generator.permuted(drawn, axis=1, out=drawn)
        return Selection(drawn.reshape(-1)[: self._count])

    def _options(self) -> State:
        return {"data": self._digest}

    @once
    def _digest(self) -> str:
        return digest(self._members, self._starts)


class Weighted(EpochSampler):
    """A sampler whose probabilities are proportional to weights, as torch's WeightedRandomSampler.

    Args:
        ds: a cache, a view, or any object with `len` and `.labels`.
        weights: the name of a label column, or an array [len(ds)]. Weights are finite and not negative, and
            may have any sum.
        num_samples: the number of draws in an epoch, by all ranks together. None is len(ds), or without
            replacement the number of samples whose weight is not 0.
        replacement: False draws no sample twice in an epoch. Samples with large weights then come early.
        seed, drop_last, num_replicas, rank: as in `EpochSampler`.
    Raises:
        OptionError: 'weight of sample 17 is nan; ...'; too few weights are above 0 to draw num_samples
            without replacement.

    It takes any number of samples; torch's takes at most 2**24.

    Cost: 8 bytes per sample, 16 without replacement, and 16 to 40 bytes per draw while an epoch begins. 10
    million samples take 0.1 s, and then 1.5 s per epoch; without replacement 0.2 s, and then 3.5 s.
    """

    def __init__(
        self,
        ds: Any,
        weights: Column,
        num_samples: int | None = None,
        replacement: bool = True,
        seed: int = 0,
        *,
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        values = numbers_of(ds, weights).astype(np.float64)
        wrong = ~(np.isfinite(values) & (values >= 0))
        if wrong.any():
            at = int(wrong.argmax())
            raise OptionError(f"weight of sample {at} is {values[at]}; weights are finite and not negative")
        if num_samples is not None:
            check_count("num_samples", num_samples)
        if replacement:
            self._able, self._weights = None, np.cumsum(values)
            count = len(values) if num_samples is None else num_samples
            total = self._weights[-1] if len(values) else 0.0
            if count and not 0 < total < math.inf:
                raise OptionError(f"the weights sum to {total}; give finite ones, some above 0")
        else:
            self._able = np.flatnonzero(values)
            self._weights = values[self._able]
            count = len(self._able) if num_samples is None else num_samples
            if count > len(self._able):
                raise OptionError(
                    f"num_samples={count:,} without replacement, and {len(self._able):,} samples have a "
                    "weight above 0; draw fewer, or with replacement=True"
                )
        super().__init__(count, seed, drop_last, num_replicas, rank, ds)

    def _drawn(self, epoch: int) -> Selection:
        if not self._count:
            return Selection(range(0))
        if self._able is not None:
            generator = self._generator(epoch)
            # Efraimidis and Spirakis: each comes at an exponential time, at the rate of its weight.
            times = -_log(1 - generator.random(len(self._weights)))
            times /= self._weights
            return Selection(self._able[np.argsort(times, kind="stable")[: self._count]])
        everything = Selection(range(len(self._weights)))
        return Shuffled(range(self._count), everything, _WeightedOrder(self._weights, self.seed, epoch))

    def _options(self) -> State:
        return {"replacement": int(self._able is None), "data": self._digest}

    @once
    def _digest(self) -> str:
        return digest(self._weights, *(() if self._able is None else (self._able,)))


class ByLength(EpochSampler):
    """A batch sampler whose batches have samples of similar length.

    Args:
        ds: a cache, a view, or any object with `len` and `.labels`.
        lengths: the name of a label column, or an array [len(ds)]: integers, none missing.
        batch_size: the number of samples in a batch.
        max_tokens: used instead of batch_size. It is the largest size of a padded batch: the number of its
            samples times the length of the longest.
        drop_last: True leaves out the last batch that is not full, which has the shortest samples, and the
            batches that the ranks cannot divide evenly. False repeats some batches for that.
        shuffle: True mixes the samples within their bucket, and the order of batches. False begins with the
            longest samples.
        bucket: the factor by which lengths in a bucket may differ, at least 1. The padding of a batch is less
            than 1 - 1 / bucket, unless a bucket has too few samples for a batch. A larger factor mixes more.
        seed, num_replicas, rank: as in `EpochSampler`; the ranks divide batches.
    Raises:
        OptionError: 'sample 3 has length 600, max_tokens=512; ...'; batch_size and max_tokens are both given
            or both missing; the lengths are not integers.

    Of lengths as texts have them (lognormal, sigma 1, up to 4,000) batches of 32 in random order are 81 %
    padding; with buckets of 1.1, batches of 32 out of 100,000 are 4 %. `len` counts batches, as many in every
    epoch. Lightning with several devices wants `Trainer(use_distributed_sampler=False)` beside any batch
    sampler: the ranks share by themselves.

    Cost: 16 bytes a sample while an epoch is made, 8 else. 10 million samples: 0.5 s, then 0.2 s an epoch.

    >>> DataLoader(ds, batch_sampler=edcache.samplers.ByLength(ds, "n_tokens", max_tokens=8192))
    """

    def __init__(
        self,
        ds: Any,
        lengths: Column,
        batch_size: int | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int = 0,
        bucket: float = 1.1,
        *,
        max_tokens: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if (batch_size is None) == (max_tokens is None):
            raise OptionError("give either batch_size or max_tokens")
        check_count(*(("batch_size", batch_size) if max_tokens is None else ("max_tokens", max_tokens)))
        if not bucket >= 1:
            raise OptionError(f"bucket={bucket!r}; give 1 or more")
        values = numbers_of(ds, lengths)
        if values.dtype.kind not in "iu":
            raise OptionError(f"lengths of {values.dtype}; give integers")
        values = values.astype(np.int64)
        wrong = (values < 0) | (values > (max_tokens or math.inf))
        if wrong.any():
            at = int(wrong.argmax())
            most = "" if max_tokens is None else f", max_tokens={max_tokens:,}"
            raise OptionError(f"sample {at} has length {values[at]:,}{most}; filter() such samples out")
        rising = base.stable_order(values.view(np.uint64))
        self._sorted = rising[::-1].copy()
        self.shuffle = shuffle
        self._mixed: list[tuple[int, int]] = []
        starts, size = [np.empty(0, np.int64)], 0
        for begin, end, size in _buckets(values[rising], batch_size, max_tokens, bucket):
            starts.append(np.arange(begin, end, size))
            if shuffle and end - begin > size:
                self._mixed.append((begin, end))
        self._bounds = np.concatenate((*starts, [len(values)]))
        count = len(self._bounds) - 1
        if drop_last and count and self._bounds[-1] - self._bounds[-2] < size:
            count -= 1
        super().__init__(count, seed, drop_last, num_replicas, rank, ds)

    @property
    def sampler(self) -> ByLength:
        """This one: frameworks tell the epoch to a batch sampler's `sampler`."""
        return self

    def order(self, epoch: int | None = None) -> _Batches:
        """The batches of this rank in an epoch: a sequence of int64 arrays."""
        order: _Batches = super().order(epoch)
        return order

    def _order(self, epoch: int, start: int, rank: int | None = None) -> _Batches:
        generator = self._generator(epoch)
        positions = self._sorted.copy() if self._mixed else self._sorted
        for begin, end in self._mixed:
            generator.shuffle(positions[begin:end])
        return _Batches(positions, self._bounds, super()._order(epoch, start, rank))

    def _options(self) -> State:
        return {"shuffle": int(self.shuffle), "data": self._digest}

    @once
    def _digest(self) -> str:
        return digest(self._sorted, self._bounds, np.array(self._mixed, np.int64))

    def _drawn(self, epoch: int) -> Selection:
        numbers = Selection(range(self._count))
        return shuffled(numbers, self.seed, epoch) if self.shuffle else numbers


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
        seed, drop_last, num_replicas, rank: as in `EpochSampler`.
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
        drop_last: bool = False,
        num_replicas: int | None = None,
        rank: int | None = None,
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
        super().__init__(len(ds), seed, drop_last, num_replicas, rank, ds)

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


class _WeightedOrder:
    """Draws by weight: the hash of a position is a uniform number, which is looked up in sums of the weights.

    Args:
        sums: float64 [n], of the weights up to each sample.
    """

    def __init__(self, sums: Floats, *key: int) -> None:
        text = "/".join(("edcache weighted", *(format(part, "x") for part in (1, *key))))
        self._key = np.frombuffer(hashlib.shake_128(text.encode()).digest(8), "<u8")
        self._sums = sums

    def at(self, position: int) -> int:
        """See `base.Order`."""
        return int(self.take(np.array([position]))[0])

    def take(self, positions: Ints) -> Ints:
        """See `base.Order`."""
        # SplitMix64.
        hashed = (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + self._key
        hashed = (hashed ^ hashed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        hashed = (hashed ^ hashed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        drawn = ((hashed ^ hashed >> np.uint64(31)) >> np.uint64(11)) * (2.0**-53 * self._sums[-1])
        # In rising order, or each would miss the processor's cache.
        rising = np.argsort(drawn)
        taken = np.empty(len(positions), np.int64)
        taken[rising] = np.searchsorted(self._sums, drawn[rising], side="right")
        return taken


class _ChunkOrder:
    """The order of `ChunkShuffle`: chunks at random, and each window of them; then lanes that take turns.

    Args:
        starts: int64 [chunks + 1], where each chunk begins among the samples that are ordered.
    """

    def __init__(self, starts: Ints, buffer: int, lanes: int, key: tuple[int, ...]) -> None:
        count, buffer = len(starts) - 1, max(1, buffer // lanes)
        chunks = Permutation(count, *key).take(np.arange(count))
        sizes = np.diff(starts)[chunks]
        self._ends = np.cumsum(sizes)
        self._shifts = starts[chunks] - self._ends + sizes
        self._bounds = np.concatenate(([0], self._ends[buffer - 1 : -1 : buffer], self._ends[-1:]))
        self._key, self._lanes = key, lanes
        self._windows: dict[int, Permutation] = {}

    def at(self, position: int) -> int:
        """See `base.Order`."""
        return int(self.take(np.array([position]))[0])

    def take(self, positions: Ints) -> Ints:
        """See `base.Order`."""
        if self._lanes == 1:
            return self._in_lanes(positions)
        rounds, lanes = np.divmod(positions, self._lanes)
        each, more = divmod(int(self._ends[-1]), self._lanes)
        places = rounds + lanes * each + np.minimum(lanes, more)
        rising = np.argsort(places)
        taken = np.empty(len(positions), np.int64)
        taken[rising] = self._in_lanes(places[rising])
        return taken

    def _in_lanes(self, positions: Ints) -> Ints:
        """What stands at positions of all lanes one after the other."""
        numbers: Ints = np.searchsorted(self._bounds, positions, side="right") - 1
        runs = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1)).tolist()
        taken = np.empty(len(positions), np.int64)
        for start, end in itertools.pairwise(runs):
            number = int(numbers[start])
            begin = self._bounds[number]
            taken[start:end] = self._window(number).take(positions[start:end] - begin) + begin
        taken += self._shifts[np.searchsorted(self._ends, taken, side="right")]
        return taken

    def _window(self, number: int) -> Permutation:
        window = self._windows.get(number)
        if window is None:
            # Another thread may look ahead in the same order.
            if len(self._windows) >= _MOST_WINDOWS * self._lanes:
                self._windows.clear()
            size = int(self._bounds[number + 1] - self._bounds[number])
            window = self._windows[number] = Permutation(size, *self._key, number)
        return window


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _log(values: Floats) -> Floats:
    """The natural logarithm of numbers up to 1, to ten digits, by IEEE 754's basic operations alone.

    Those of the platforms differ in their last bit, by which the order may differ between ranks.
    """
    mantissa, exponent = np.frexp(values)
    ratio = (mantissa - 1) / (mantissa + 1)
    square = ratio * ratio
    series: Floats = np.zeros_like(square)
    for term in reversed(range(_TERMS)):
        series *= square
        series += 1 / (2 * term + 1)
    series *= ratio
    series *= 2
    series += exponent * math.log(2)
    return series


def _drawn_in(order: Any, start: int, stop: int) -> Ints:
    """The positions in items of an order."""
    if isinstance(order, Selection):
        return order.take(np.arange(start, stop))
    return np.concatenate([order[number] for number in range(start, stop)])


def _items(order: Any, start: int) -> Iterator[Any]:
    """Positions as ints, batches of them as lists."""
    if isinstance(order, Selection):
        return iter(order.cut(range(start, len(order))))
    return (order[number].tolist() for number in range(start, len(order)))


class _Batches(Sequence[Ints]):
    """Batch k is positions[bounds[numbers[k]]:bounds[numbers[k] + 1]]."""

    def __init__(self, positions: Ints, bounds: Ints, numbers: Selection) -> None:
        self._positions, self._bounds, self._numbers = positions, bounds, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> Any:
        number = self._numbers[index]
        return self._positions[self._bounds[number] : self._bounds[number + 1]]


def _buckets(
    rising: Ints, batch_size: int | None, max_tokens: int | None, bucket: float
) -> Iterator[tuple[int, int, int]]:
    """Begin, end and batch size of buckets in the order from the longest: of whole batches, but the last."""
    count, begin = len(rising), 0
    while begin < count:
        longest = int(rising[count - 1 - begin])
        size = batch_size or (max_tokens or 0) // max(longest, 1)
        alike = count - begin - int(np.searchsorted(rising, math.ceil(longest / bucket)))
        end = min(begin + max(alike // size, 1) * size, count)
        yield begin, end, size
        begin = end


def column_of(ds: Any, column: Column) -> npt.NDArray[Any]:
    """One value per sample: [len(ds)]."""
    if isinstance(column, str) and not hasattr(ds, "labels"):
        raise OptionError(f"{type(ds).__name__} has no labels; give an array, one value for each sample")
    try:
        values = ds.labels[column] if isinstance(column, str) else np.asarray(detached(column))
    except ValueError as error:
        raise OptionError(f"{described(column)}: {error}; give one value for each sample") from error
    if values.ndim != 1:
        raise OptionError(f"{_named(column)} of shape {list(values.shape)}; give one value for each sample")
    if len(values) != len(ds):
        raise OptionError(f"{len(values):,} values for {len(ds):,} samples; give one for each")
    return values


def numbers_of(ds: Any, column: Column) -> npt.NDArray[Any]:
    """One number per sample, none missing: [len(ds)], integers, floats or bools."""
    values = column_of(ds, column)
    missing = _is_missing(values)
    if missing.any():
        at = int(missing.argmax())
        raise OptionError(
            f"{_named(column)}: sample {at} has no value; filter() such samples out, or give an array"
        )
    if values.dtype == object:
        # As the labels of a view are without those that have none.
        listed = values.tolist()
        if all(isinstance(value, (int, float)) for value in listed):
            values = np.array(listed, None if listed else np.int64)
    if values.dtype.kind not in "iufb":
        raise OptionError(f"{_named(column)} of {values.dtype}; give numbers")
    return values


def _named(column: Column) -> str:
    return f'label "{column}"' if isinstance(column, str) else "an array"


def _is_missing(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a column has no value: None, nan or NaT, as the dtype has it."""
    if values.dtype == object:
        return np.fromiter((value is None for value in values.tolist()), bool, len(values))
    return np.asarray(values != values)


def _by_class(values: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    """Positions by class, as `base.grouped` gives them, without those of missing values.

    Numbers and times come by rising class, others as they appear.
    """
    try:
        column = pa.array(values, from_pandas=True)
        codes, classes = classes_of(comparable(pa.chunked_array([column])))
    except pa.ArrowException:
        codes, classes = _numbered(values)
    kept = [code for code, value in enumerate(classes) if value is not None]
    if values.dtype.kind in "iufbmM":
        kept.sort(key=classes.__getitem__)
    numbers = np.full(len(classes), len(kept), np.min_scalar_type(len(kept)))
    numbers[kept] = np.arange(len(kept))
    positions, ends = base.grouped(numbers[codes], len(kept) + 1)
    return positions[: ends[-2]], ends[:-1]


def _numbered(values: npt.NDArray[Any]) -> tuple[Ints, list[Any]]:
    """The number of each object's class, by appearance, and the classes, None for those that are no value."""
    numbers: defaultdict[Any, int] = defaultdict(itertools.count().__next__)
    try:
        codes = np.fromiter(map(numbers.__getitem__, values.tolist()), np.int64, len(values))
    except TypeError:
        raise OptionError(f"classes of {type(values[0]).__name__}; give single values") from None
    # pandas' NA does not say whether it is itself.
    is_missing = (type(one).__name__ == "NAType" or (one != one) in (True, np.True_) for one in numbers)
    return codes, [None if missing else one for one, missing in zip(numbers, is_missing, strict=True)]
