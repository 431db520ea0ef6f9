"""What all samplers share: the order of an epoch, its shares for ranks, and a place amid it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch.distributed
from torch.utils.data.distributed import DistributedSampler

from edcache.base import Ints, OptionError, shown

# Positions become Python's integers so many at a time.
_BLOCK = 1 << 13


# A DistributedSampler, so that what shards samplers by itself, such as Lightning, leaves this one alone.
class EpochSampler(DistributedSampler[Any]):
    """An order of positions that seed and epoch determine, and this rank's share of it.

    Args:
        count: what all ranks draw together in an epoch.
        seed: any integer. The same seed and epoch give the same order in every process and on every
            platform (numpy's PCG64).
        drop_last: leave out what the ranks cannot share evenly; False repeats the first ones instead.
        num_replicas: how many ranks share an epoch. rank: which of them this is. None for both asks
            torch.distributed when an epoch begins, and means one rank where that was not initialised. Give
            1 and 0 where every rank shall have everything, or something else shards (Accelerate does).

    An epoch that was iterated to its end is followed by the next; one that was abandoned begins anew.
    A state says how much was drawn, and a DataLoader with workers draws ahead: torchdata's
    StatefulDataLoader sees to that. With another one, set "taken" to what the training has seen.
    Of a dataset that grows it draws what was there when it was made.
    """

    # DistributedSampler.__init__ would count a dataset and ask torch.distributed too early.
    def __init__(
        self, count: int, seed: int, drop_last: bool, num_replicas: int | None, rank: int | None
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
        self._taken = 0
        self._resumed = False

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """How many ranks share an epoch."""
        if self._num_replicas is not None:
            return self._num_replicas
        return torch.distributed.get_world_size() if _is_distributed() else 1

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Which of them this is."""
        if self._rank is not None:
            return self._rank
        return torch.distributed.get_rank() if _is_distributed() else 0

    def __len__(self) -> int:
        """What this rank draws in an epoch; as much as every other."""
        ranks = self.num_replicas
        return self._count // ranks if self.drop_last else -(-self._count // ranks)

    def __repr__(self) -> str:
        ranks = self.num_replicas
        share = f", rank {self.rank} of {ranks}" if ranks > 1 else ""
        return f"{type(self).__name__}({len(self):,} an epoch, epoch {self.epoch}{share})"

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration this epoch; from its beginning, unless a state amid it was loaded."""
        if not isinstance(epoch, (int, np.integer)) or epoch < 0:
            raise OptionError(f"epoch={epoch!r}; give 0 or more")
        if epoch != self.epoch:
            self._resumed = False
        if epoch != self.epoch or (self._is_complete and not self._resumed):
            self._taken = 0
        self.epoch = int(epoch)

    def state_dict(self) -> dict[str, int]:
        """Where the iteration is: plain integers, with what must agree where it goes on.

        Returns:
            epoch, taken (how much of it this rank has drawn), seed, length (of this rank's epoch).
        """
        return {"epoch": self.epoch, "taken": self._taken, "seed": self.seed, "length": len(self)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where a `state_dict` was taken, in the order of its seed."""
        lacking = {"epoch", "taken", "seed", "length"} - state.keys()
        if lacking:
            raise OptionError(f"no state of a sampler: it has no {', '.join(sorted(lacking))}")
        if state["length"] != len(self):
            raise OptionError(
                f"a state amid an epoch of {state['length']:,}, and this sampler draws {len(self):,}; "
                "make it with the same options, or begin an epoch with set_epoch()"
            )
        if not 0 <= state["taken"] <= len(self):
            raise OptionError(f"a state with {state['taken']:,} taken of {len(self):,}")
        self.set_epoch(state["epoch"])
        self.seed = state["seed"]
        self._taken, self._resumed = state["taken"], True

    def order(self, epoch: int | None = None) -> Any:
        """All that this rank draws in an epoch, whatever was drawn of it: int64 [len(self)].

        Args:
            epoch: None is the current one.
        """
        return self._share(self._drawn(self._generator(epoch)))

    def __iter__(self) -> Iterator[Any]:
        # The iterator that is made first after a load goes on; one that was made and never used, as by
        # loaders that look for a state, must not leave that to the next.
        resumed, self._resumed = (self.epoch, self._taken) if self._resumed else None, False
        return self._iterate(resumed)

    def _iterate(self, resumed: tuple[int, int] | None) -> Iterator[Any]:
        """From the first draw on, so that a `set_epoch` behind `iter` counts too."""
        taken = 0
        if resumed is not None and resumed[0] == self.epoch:
            taken = resumed[1]
        elif self._is_complete:
            self.epoch += 1
        self._taken = taken
        for self._taken, drawn in enumerate(_items(self.order(), taken), taken + 1):  # noqa: B020
            yield drawn

    @property
    def _is_complete(self) -> bool:
        return 0 < self._taken == len(self)

    def _generator(self, epoch: int | None) -> np.random.Generator:
        epoch = self.epoch if epoch is None else epoch
        return np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(self.seed % (1 << 64), spawn_key=(epoch,)))
        )

    def _drawn(self, generator: np.random.Generator) -> Ints:
        """What all ranks draw together, in order: int64 [count]."""
        raise NotImplementedError

    def _share(self, drawn: Ints) -> Ints:
        """This rank's part, of the length that every rank's has."""
        ranks, total = self.num_replicas, len(self) * self.num_replicas
        if total > len(drawn):
            drawn = np.concatenate((drawn, drawn[np.arange(total - len(drawn)) % len(drawn)]))
        return self._part(drawn[:total], self.rank, ranks)

    def _part(self, drawn: Ints, rank: int, ranks: int) -> Ints:
        return drawn[rank::ranks]


def check_count(name: str, value: Any) -> None:
    """Refuse what is no integer of 1 or more."""
    if not isinstance(value, (int, np.integer)) or value < 1:
        raise OptionError(f"{name}={shown(value)}; give 1 or more")


def _items(order: Any, start: int) -> Iterator[Any]:
    if isinstance(order, np.ndarray):
        blocks = (order[begin : begin + _BLOCK].tolist() for begin in range(start, len(order), _BLOCK))
        return (position for block in blocks for position in block)
    return (order[number].tolist() for number in range(start, len(order)))


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
