"""`EpochSampler`: passes over epochs that ranks share, and the state of the whole job. Every order is a subclass.

A pass is one iteration over an epoch, from a draw of all ranks on. These rules hold:

- The draws of an epoch are a function of options, seed and epoch. Each rank makes them for itself, and takes its items
  out of them (`orders.py`). Ranks exchange nothing.
- After k items of each rank, the job has consumed the k steps behind the start of the pass. So a state is epoch and
  consumed draws. It names neither ranks nor batches nor workers: any number of ranks shares the rest.
- At the end of an epoch all draws are consumed, also the ones that uneven="drop" leaves out.

A sampler has one current pass, which `Pass` replaces by another one:

| event | current pass | next pass |
|---|---|---|
| an iteration begins | at its end, but not named | the next epoch, begun |
| | any other | the same epoch from the same start, begun: after `break` its draws come again |
| `set_epoch` | of another epoch | that epoch, begun |
| | loaded or named | the same start, named: at the end of an epoch its iteration is empty |
| | begun, at its end | the same epoch, begun |
| | begun, before its end | stays |
| `load_state_dict` | any | epoch and consumed draws of the state, loaded |
| an iteration is loaded (`_Iteration`) | at its end | stays: this iteration is empty, the next one begins as above |

What must never happen:

- A sample comes twice in an epoch, or never. So a pass begins at the consumed draws of all ranks, and only the events
  above change its start. A replaced pass goes on counting, to no effect.
- Two ranks disagree about a draw. It depends on no rank, on no time, and on no random numbers that numpy may change.
- Two ranks disagree about the end. Behind the draw of a state a rank may have an item less than others, and counts as
  if it had as many.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import torch.distributed
from torch.utils.data.distributed import DistributedSampler
from typing_extensions import Self

from edcache.base import Ints, OptionError, check_count, cut_traceback, once, shown
from edcache.dataset.ahead import looking_ahead
from edcache.dataset.indexing import Readable, reading_of
from edcache.dataset.orders import EpochDraws, RankOrder, RankSteps
from edcache.dataset.selection import Selection
from edcache.dataset.state import VERSION, State, archive_text, check_fit, digest, view_text

Uneven = Literal["repeat", "drop", "allow"]

# Items behind the end of a pass. A rank with one item less than others learns of the end only there.
ENDED = sys.maxsize


class SamplerKeywords(TypedDict, total=False):
    """Options of all samplers; see `EpochSampler`."""

    uneven: Uneven
    global_batch_size: int | None
    num_replicas: int | None
    rank: int | None


@dataclass
class Pass:
    """Iteration over an epoch from the draw `start` of all ranks on. Only `taken` of this rank changes.

    Attributes:
        phase: "begun", also before its first draw. "loaded": it begins at the draw of a state. "named": set_epoch()
            named the epoch of a loaded one.
        taken: the number of items that this rank has drawn; ENDED behind the last one.
    """

    epoch: int
    start: int = 0
    phase: Literal["begun", "loaded", "named"] = "begun"
    taken: int = 0

    def begun(self, is_complete: bool) -> Pass:
        """Return the pass of an iteration that begins."""
        if is_complete and self.phase != "named":
            return Pass(self.epoch + 1)
        return Pass(self.epoch, self.start)

    def named(self, epoch: int, is_complete: bool) -> Pass:
        """Return the pass after set_epoch()."""
        if epoch != self.epoch:
            return Pass(epoch)
        if self.phase != "begun":
            return Pass(epoch, self.start, "named")
        return Pass(epoch) if is_complete else self


# A DistributedSampler, so that Lightning and others, which shard samplers, leave this one alone.
class EpochSampler(DistributedSampler[Any]):
    """Base class of the samplers: positions of a dataset, in an order set by seed and epoch.

    Args:
        ds: the dataset; if it has a copy of a far archive (`local=`), an iteration fetches ahead.
        count: the number of draws in an epoch, by all ranks together.
        seed: any integer. The same seed and epoch give the same order in every process and on every platform.
        uneven: the treatment of an epoch that the ranks cannot share evenly. "repeat": the first draws come
            again, until all ranks have equally many. "drop": the last draws are left out instead. "allow": every
            draw comes once, so some ranks have one item more than others. With DDP that needs torch's `Join`; it
            suits an evaluation.
        global_batch_size: the number of samples in a step of all ranks together. The sampler then gives a list for
            each step, with the positions of this rank. If the ranks do not divide the step, some ranks have one more.
            Step k has the same samples on any number of ranks. Give the sampler to a DataLoader as `batch_sampler=`, or
            to `ds.loader(None)` as `sampler=`. `uneven` then decides about a last step that is not full: "repeat" fills
            it up, "drop" leaves it out, "allow" keeps it as it is.
        num_replicas: the number of ranks that share an epoch.
        rank: the number of this rank. Give both or neither. None takes both from torch.distributed when an epoch
            begins, and is one rank if torch.distributed is not initialised. Give 1 and 0 if every rank shall draw
            everything, or if another library shards the sampler, as Accelerate does.
    Raises:
        OptionError: an argument is out of range, or only one of num_replicas and rank is given; "global_batch_size=4
            for 8 ranks; give at least one sample for each".

    An order is a function of the sampler's options, seed and epoch, and not of the number of ranks. An iteration or a
    step begins at draw c of the epoch. Rank r of n ranks then has the draws c + r, c + r + n, c + r + 2n, ... So a
    state goes on exactly with any other number of ranks, batch size or workers.

    Each iteration that reaches its end advances to the next epoch. If an iteration stops early, the next one begins
    where it began: at the draw of a loaded state, or else at the first draw of the epoch. An iteration ends with its
    last draw. The workers of a DataLoader make that before the last batch is read, so give each DataLoader a sampler of
    its own. A sampler does not see samples that are added after it was made.
    """

    def __init_subclass__(cls) -> None:
        """Let inspect and help() show the options behind `**keywords`, and cut the tracebacks of errors."""
        make: Any = cls.__init__
        own, ours = inspect.signature(make), inspect.signature(EpochSampler.__init__).parameters.values()
        named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        if len(named) < len(own.parameters):
            named += [one for one in ours if one.kind is one.KEYWORD_ONLY]
        make.__signature__ = own.replace(parameters=named)
        cut_traceback(cls)

    _may_repeat = False  # True if a sample may be drawn twice an epoch
    _arrays: Sequence[npt.NDArray[Any]] = ()  # that determine the order

    # DistributedSampler.__init__ would count a dataset and ask torch.distributed too early.
    def __init__(
        self,
        ds: Sized,
        count: int,
        seed: int,
        *,
        uneven: Uneven = "repeat",
        global_batch_size: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        if (num_replicas is None) != (rank is None):
            raise OptionError(
                f"num_replicas={num_replicas!r} and rank={rank!r}; give both, or none", option="num_replicas"
            )
        if num_replicas is not None:
            check_count("num_replicas", num_replicas)
        if not isinstance(seed, (int, np.integer)):
            raise OptionError(f"seed={seed!r}; give an integer", option="seed")
        if uneven not in ("repeat", "drop", "allow"):
            raise OptionError(f'uneven={shown(uneven)}; give "repeat", "drop" or "allow"', option="uneven")
        if global_batch_size is not None:
            check_count("global_batch_size", global_batch_size)
            global_batch_size = int(global_batch_size)  # a state is plain
        self.seed = int(seed)
        self.uneven, self.global_batch_size = uneven, global_batch_size
        # An attribute of torch's DistributedSampler and BatchSampler.
        self.drop_last = uneven == "drop"
        self._count, self._gives_lists = int(count), global_batch_size is not None
        self._num_replicas, self._rank = num_replicas, rank
        self._pass = Pass(0)
        # Options, seed and epoch with their draws: an array is made once an epoch.
        self._last: tuple[Any, EpochDraws] | None = None
        self._ds = ds
        self._samples, self._archive, self._selections = len(ds), "", list[Selection]()
        if isinstance(ds, Readable):
            reading = reading_of(ds)
            self._archive, self._selections = archive_text(reading.root.readers), reading.selections()
        self._share(0, self.rank)  # checks the ranks; torch may know them only when an epoch begins

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": None}

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """Number of ranks that share an epoch."""
        if self._num_replicas is not None:
            return int(self._num_replicas)
        return torch.distributed.get_world_size() if _is_distributed() else 1

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Number of this rank, from 0."""
        if self._rank is not None:
            return self._rank
        return torch.distributed.get_rank() if _is_distributed() else 0

    def __len__(self) -> int:
        """Return the number of draws of this rank in an epoch, or of steps with `global_batch_size`.

        All ranks have the same, but for uneven="allow".
        """
        return len(self._share(0, self.rank))

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """Number of the epoch, from 0."""
        return self._pass.epoch

    @property
    def sampler(self) -> Self:
        """Itself, as frameworks tell the epoch to a batch sampler's `sampler`, or to its `batch_sampler`."""
        return self

    batch_sampler = sampler

    def __repr__(self) -> str:
        ranks = self.num_replicas
        share = f", rank {self.rank} of {ranks}" if ranks > 1 else ""
        return f"{type(self).__name__}({len(self):,} an epoch, epoch {self.epoch}{share})"

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, at its start or at the draw of a loaded state."""
        check_count("epoch", epoch, 0)
        self._pass = self._pass.named(int(epoch), self._is_complete)

    def state_dict(self, steps: int | None = None, *, batch_size: int | None = None) -> State:
        """Return the position of the whole job, the same on every rank: plain numbers and strings.

        Args:
            steps: the number of batches that each rank has used of this iteration. A DataLoader with workers draws
                ahead of them, so the training loop counts. None counts the draws, which is right without workers, and
                with torchdata's StatefulDataLoader.
            batch_size: the number of draws in a batch of one rank, which `steps` needs, but for samplers
                that give lists.
        Returns:
            seed, epoch, consumed (draws of all ranks in this epoch), length (of an epoch), samples, archive (its uuid),
            view (its selection of samples), version, order, and the options and data that determine the order.
        Raises:
            OptionError: "steps=3 without a batch_size; ...".

        At the end of an epoch all draws are consumed, also the ones that uneven="drop" left out. With uneven="allow" a
        rank with one draw less knows of the end when its iteration has ended.
        Cost: the first one of a view with an index array reads it, 1 ns a byte.
        """
        taken = self._pass.taken
        if steps is not None:
            check_count("steps", steps, 0)
            if batch_size is None and steps and not self._gives_lists:
                text = "give that of the DataLoader, or 1 to count draws"
                raise OptionError(f"steps={steps} without a batch_size; {text}", option="steps")
            batch_size = 1 if batch_size is None else batch_size
            check_count("batch_size", batch_size)
            taken = int(steps) * int(batch_size)
        share = self._share(self._pass.start, 0)
        return self._state(
            self.epoch, self._count if taken >= len(share) else share.start + taken * share.each
        )

    def load_state_dict(self, state: State) -> None:
        """Continue at the position of a `state_dict`, with its seed and any number of ranks.

        Args:
            state: the result of `state_dict`, on any rank.
        Raises:
            OptionError: the state is of another order, archive, view or number of samples, or is no state: "a state
                with view='0:500:1', and here is view='500:1000:1'; give the view that it is of, ...".

        If the archive has grown since, make the sampler of its first samples: `ds.take(state["samples"])`. Behind a
        state at the end of its epoch the next iteration is the next epoch. After `set_epoch` with its own number it is
        empty, so a loop from `state["epoch"]` on that sets each epoch repeats nothing.
        """
        check_fit(state, self._state(0, 0))
        self.seed = state["seed"]
        self._pass = Pass(state["epoch"], state["consumed"], "loaded")

    def which(
        self, step: int, rank: int | None = None, *, batch_size: int = 1, epoch: int | None = None
    ) -> Ints:
        """Return the positions that a step reads: int64 [batch_size], fewer in a last batch. It draws nothing.

        With `global_batch_size` they are the rank's share. They include repetitions by `uneven`.

        Args:
            step: from 0, in the epoch; in one that a loaded state continues, from there.
            rank: None is this one.
            batch_size: as in `state_dict`.
            epoch: None is the current one; another is counted from its beginning.
        Raises:
            OptionError: the step or the rank does not exist.

        Cost: of the positions; of the whole order, if it is an array of another epoch.
        """
        check_count("step", step, 0)
        check_count("batch_size", batch_size)
        epoch = self.epoch if epoch is None else epoch
        check_count("epoch", epoch, 0)
        asked = self._pass if epoch == self.epoch else Pass(epoch)
        order = self._order(asked, self.rank if rank is None else rank)
        steps = -(-len(order) // batch_size)
        if step >= steps:
            raise OptionError(f"step={step} of {steps:,} steps; give less", option="step")
        return order.positions(step * batch_size, (step + 1) * batch_size)

    def __iter__(self) -> Iterator[Any]:
        return _Iteration.of(self._items(), lambda: self._is_complete)

    def _items(self) -> Iterator[Any]:
        # The first draw begins the iteration, not `iter`, which a DataLoader with workers calls twice
        # (test_samplers.py, test_an_iterator_that_is_never_used_takes_nothing).
        current, order = self.begin()
        if isinstance(self._ds, Readable):
            reading = reading_of(self._ds)
            items = order.items(is_seeded=reading.is_seeded)
            ahead = looking_ahead(reading, order.epoch, order.positions, len(order))
            items = items if ahead is None else ahead.follow(items, 1)
        else:
            items = order.items(is_seeded=False)
        for taken, item in enumerate(items, 1):
            current.taken = taken
            yield item
        current.taken = ENDED

    def begin(self) -> tuple[Pass, RankOrder]:
        """Begin an iteration without `iter`, as a loader does that takes many items at once.

        Returns:
            The pass, whose `taken` the caller sets to the number of items that it took, and the items.
        """
        self._pass = self._pass.begun(self._is_complete)
        return self._pass, self._order(self._pass, self.rank)

    def check_loader(self, samples: int, batch_size: int | None) -> None:
        """Check that the items fit a loader.

        Args:
            samples: the length of its dataset.
            batch_size: None if it takes complete batches.
        Raises:
            OptionError: "batch_size=None and a Shuffle that gives positions; give a batch_size"; the positions are of a
                dataset of another length.
        """
        kind, gives_lists = type(self).__name__, self._gives_lists
        if gives_lists != (batch_size is None):
            raise OptionError(
                f"batch_size={batch_size} and a {kind} that gives batches; give batch_size=None"
                if gives_lists
                else f"batch_size=None and a {kind} that gives positions; give a batch_size",
                option="batch_size",
            )
        # The dataset of the sampler may have grown, or the order may be of its first samples.
        if self._samples != samples != len(self._ds):
            made_of = f"the sampler was made of a dataset of {len(self._ds):,} samples"
            text = f"{made_of}, this one has {samples:,}; make it of this one"
            raise OptionError(text, option="sampler")

    @property
    def _is_complete(self) -> bool:
        start, taken = self._pass.start, self._pass.taken
        # At the draw of a state, another rank may have a draw left when this one has none. Rank 0 has most.
        rank = self.rank if self._pass.phase == "begun" else 0
        return start + taken > 0 and taken >= len(self._share(start, rank))

    def _state(self, epoch: int, consumed: int) -> State:
        data = {"data": self._digest} if self._arrays else {}
        return {
            "version": VERSION,
            "order": type(self).__name__,
            "archive": self._archive,
            "samples": self._samples,
            "view": self._view,
            **self._options(),
            **data,
            "length": self._count,
            "seed": self.seed,
            "epoch": epoch,
            "consumed": consumed,
        }

    @once
    def _view(self) -> str:
        return view_text(self._selections)

    @once
    def _digest(self) -> str:
        return digest(*self._arrays)

    def _options(self) -> State:
        """Return the parameters of the order, beside seed, epoch, length and arrays: as JSON has them."""
        return {}

    def _drawn(self, epoch: int) -> EpochDraws:
        """Return the draws of all ranks together: as many as `count`."""
        raise NotImplementedError

    def _share(self, start: int, rank: int) -> RankSteps:
        """Return the share of a rank in the draws from `start` on; OptionError if it has none."""
        size, ranks = self.global_batch_size, self.num_replicas
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < ranks:
            raise OptionError(f"rank={rank!r} of {ranks}; give 0 to {ranks - 1}", option="rank")
        if size is not None and size < ranks:
            raise OptionError(
                f"global_batch_size={size} for {ranks} ranks; give at least one sample for each",
                option="global_batch_size",
            )
        each, stop = ranks if size is None else size, self._count
        rest = (stop - start) % each
        if self.uneven == "drop":
            stop -= rest
        elif self.uneven == "repeat" and rest:
            stop += each - rest
        return RankSteps(self._count, start, stop, each, rank, ranks)

    def _order(self, asked: Pass, rank: int) -> RankOrder:
        """Return the items of a rank in a pass."""
        key, last = (self.seed, asked.epoch, self._options()), self._last
        if last is None or last[0] != key:
            last = self._last = key, self._drawn(asked.epoch)
        share = self._share(asked.start, rank)
        return RankOrder(asked.epoch, last[1], share, self._gives_lists, self._may_repeat)


class _Iteration(itertools.chain[Any]):
    """Iteration of a sampler. Its state is for torchdata's StatefulDataLoader, which loads the sampler's first.

    Behind the end of an epoch that makes an iteration which it throws away, perhaps after its workers have read ahead
    of it. So there it is empty, as torchdata's own are: else it may take the whole next epoch.
    """

    # A chain, whose items take 10 ns each; a `__next__` of our own takes ten times as long.
    parts: list[Iterator[Any]]
    is_behind_end: Callable[[], bool]

    @classmethod
    def of(cls, items: Iterator[Any], is_behind_end: Callable[[], bool]) -> _Iteration:
        parts = [items]
        made: _Iteration = cls.from_iterable(parts)  # type: ignore[assignment]
        made.parts, made.is_behind_end = parts, is_behind_end
        return made

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        if self.is_behind_end():
            self.parts.clear()


def draws_of(num_samples: int | None, default: int) -> int:
    """Return the number of draws in an epoch that a user asks for."""
    if num_samples is None:
        return default
    check_count("num_samples", num_samples)
    return int(num_samples)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
