"""Functions that samples pass on their way out, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edcache.base import OptionError, shown
from edcache.dataset.ordering import checked_seed
from edcache.dataset.randomness import generator_of
from edcache.reader import FieldPath, at, replaced, steps


@dataclass(frozen=True)
class Step:
    """A function of samples, or of one field of theirs.

    Args:
        seed: of the generator that the function takes; None if it takes none. number: of the seeded functions
            before it.
    """

    function: Callable[..., Any]
    field: FieldPath = None
    seed: int | None = None
    number: int = 0

    def __call__(self, sample: Any, index: int, epoch: int, draw: int) -> Any:
        """Call the function with a sample or its field, and return the whole sample."""
        place = None if self.field is None else steps(sample, self.field, "with_transform")
        value = sample if place is None else at(sample, place)
        if self.seed is None:
            value = self.function(value)
        else:
            value = self.function(value, generator_of(self.seed, epoch, index, draw, self.number))
        return value if place is None else replaced(sample, place, value)


@dataclass(frozen=True)
class Pipeline:
    """Steps in their order."""

    steps: tuple[Step, ...]
    is_seeded: bool

    def __call__(self, sample: Any, index: int = 0, epoch: int = 0, draw: int = 0) -> Any:
        """Call all steps. index: of the sample in the root; epoch, draw: of this read."""
        for step in self.steps:
            sample = step(sample, index, epoch, draw)
        return sample


def is_seeded(transform: Any) -> bool:
    """True if a transform asks which sample it gets."""
    return isinstance(transform, Pipeline) and transform.is_seeded


def extended(
    before: Callable[[Any], Any] | None, function: Any, field: FieldPath = None, seed: int | None = None
) -> Pipeline:
    """Add a function that a user gave to the transform of a view."""
    if not callable(function):
        raise OptionError(f"with_transform() takes a function, not {shown(function)}")
    known: tuple[Step, ...] = ()
    if before is not None:
        known = before.steps if isinstance(before, Pipeline) else (Step(before),)
    number = sum(step.seed is not None for step in known)
    step = Step(function, field, None if seed is None else checked_seed(seed), number)
    return Pipeline((*known, step), number > 0 or seed is not None)
