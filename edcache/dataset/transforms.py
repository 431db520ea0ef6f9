"""Functions that samples pass on their way out, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from torch.utils.data import get_worker_info

from edcache import base
from edcache.base import Draw, ForkLock, Ints, OptionError, Turn, shown
from edcache.reader import FieldPath, at, replaced, steps

# torch.random, random and numpy.random have one state for all threads of a process.
_globals = ForkLock()


@dataclass(frozen=True)
class Seeded:
    """A function of samples whose random choices belong to the sample: `transform=` takes it, among others.

    Args:
        function: takes a sample and a parameter `rng`: a new `numpy.random.Generator` for each read, or a
            `torch.Generator` of the CPU where the parameter has this annotation.
        seed: an integer of 0 or more.
        seed_global: True also seeds torch's generator of the CPU, `random` and `numpy.random` while the
            function runs, and sets them back after it, for functions that take no `rng`.
    Raises:
        OptionError: "flip takes no rng, so a seed has no use for it; add a parameter rng, or give
            seed_global=True"; when it is called by anything but the dataset whose transform it is.

    What a generator gives depends on seed, epoch and index of the sample, and on nothing else: not on worker,
    thread, rank, batch or resumption. Each seeded function that a sample passes has numbers of its own.
    `docs/reference/orders.md` has the key. The epoch is that of `ds.loader` or of a sampler of
    `edcache.samplers` that was made of the same dataset; any other DataLoader needs `set_epoch`.

    Cost: 10 us a sample in a batch, 25 us alone; with seed_global 0.2 ms, and threads take turns. These three
    generators belong to the process: what other threads draw from them meanwhile is neither theirs nor
    repeatable. So use seed_global in the workers of a DataLoader, or where only transforms draw from them.

    >>> ds.transform = edcache.Seeded(augment, seed=1)
    """

    function: Callable[..., Any]
    seed: int
    seed_global: bool = False
    _is_seeded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionError(f"Seeded() takes a function, not {shown(self.function)}")
        base.checked_seed(self.seed)
        if not self.seed_global and "rng" not in _further_parameters(self.function):
            raise OptionError(
                f"{_name(self.function)} takes no rng, so a seed has no use for it; add a parameter rng, or "
                "give seed_global=True"
            )

    @base.once
    def _generator(self) -> Callable[[bytes], Any] | None:
        """What makes the generator that the function takes, of a key."""
        rng = _further_parameters(self.function).get("rng")
        return None if rng is None else base.torch_generator if _is_of_torch(rng) else base.numpy_generator

    def __getstate__(self) -> dict[str, Any]:
        return {"function": self.function, "seed": self.seed, "seed_global": self.seed_global}

    def __call__(self, sample: Any) -> Any:
        """The sample as the function makes it."""
        options: dict[str, Any] = {}
        key = base.step_key(self.seed)
        if key is None:
            raise OptionError(
                f"Seeded({_name(self.function)}) is called outside of a dataset, and knows no sample; give "
                "it to with_transform() or transform= itself, and not inside of another function"
            )
        if self._generator is not None:
            options["rng"] = self._generator(key)
        if not self.seed_global:
            return self.function(sample, **options)
        with _globals.held(), base.seeded_globals(key):
            return self.function(sample, **options)


def is_seeded(transform: Any) -> bool:
    """Whether a transform asks which sample it gets."""
    return getattr(transform, "_is_seeded", False) is True


def turns_of(ds: Any, given: Any, positions: Ints, is_loader: bool = False) -> list[Turn] | None:
    """The turn of each sample that is read of a dataset; None where nothing that it passes asks for it.

    Args:
        given: what was asked for, perhaps a list of Draws. positions: the same in [-n, n), int64 [k].
        is_loader: whether a DataLoader asks, which is not to read all epochs alike by mistake.
    Raises:
        OptionError: nobody knows the epoch, and a DataLoader or a worker of one asks.
    """
    if not ds._is_seeded:
        return None
    places = places_of(ds, positions)
    if isinstance(given, list) and given and isinstance(given[0], Draw):
        return [Turn(one.epoch, place, one.number) for one, place in zip(given, places, strict=True)]
    # A transform may read other samples.
    epoch, told = base.current_epoch(), ds._root._epoch
    if epoch is None and told is None and (is_loader or get_worker_info() is not None):
        raise OptionError(
            "a seeded transform or Decoding depends on the epoch, and this DataLoader does not know it; call "
            "set_epoch(epoch) of the dataset before each iteration, or give the DataLoader a sampler of "
            "edcache.samplers that was made of this very dataset"
        )
    if epoch is None:
        epoch = 0 if told is None else int(told)
    return [Turn(epoch, place, 0) for place in places]


def places_of(ds: Any, positions: Ints) -> list[int]:
    """See `base.Turn`."""
    return (positions % len(ds) + 1).tolist() if ds._repeats else [0] * len(positions)


@dataclass(frozen=True)
class Step:
    """A function of samples, or of one field of theirs."""

    function: Callable[..., Any]
    field: FieldPath = None

    def __call__(self, sample: Any) -> Any:
        """The sample as the function makes it; a field of another name or place is an OptionError."""
        if self.field is None:
            return self.function(sample)
        place = steps(sample, self.field, "with_transform")
        return replaced(sample, place, self.function(at(sample, place)))


@dataclass(frozen=True)
class Pipeline:
    """Steps in their order."""

    steps: tuple[Step, ...]

    @base.once
    def _is_seeded(self) -> bool:
        return any(is_seeded(step.function) for step in self.steps)

    def __call__(self, sample: Any) -> Any:
        """A sample after all steps."""
        for step in self.steps:
            sample = step(sample)
        return sample


def extended(before: Callable[[Any], Any] | None, step: Step) -> Pipeline:
    """What samples pass so far, and one step more."""
    if isinstance(before, Pipeline):
        return Pipeline((*before.steps, step))
    return Pipeline((step,) if before is None else (Step(before), step))


def checked_step(function: Any, field: FieldPath, seed: int | None, seed_global: bool) -> Step:
    """A step of a function that a user gave."""
    if not callable(function):
        raise OptionError(f"with_transform() takes a function, not {shown(function)}")
    if seed is not None:
        function = Seeded(function, seed, seed_global)
    elif seed_global:
        raise OptionError("seed_global=True needs a seed; give seed=0, or another")
    parameters = _further_parameters(function.function if isinstance(function, Seeded) else function)
    rng = parameters.get("rng")
    if rng is not None and rng.default is rng.empty and not isinstance(function, Seeded):
        raise OptionError(f"{_name(function)} takes rng; give its seed: with_transform(..., seed=0)")
    return Step(function, field)


def _further_parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """What a function takes by name, behind the sample."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception:  # noqa: BLE001 - annotations as text may name what is not there
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # some of those written in C have no signature
            return {}
    parameters = list(signature.parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in kinds}


def _is_of_torch(rng: inspect.Parameter) -> bool:
    """Whether an annotation names torch's generator, perhaps as text or beside others."""
    if isinstance(rng.annotation, str):
        return "torch.Generator" in rng.annotation
    kinds = (rng.annotation, *get_args(rng.annotation))
    return any(getattr(kind, "__module__", "").startswith("torch") for kind in kinds)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
