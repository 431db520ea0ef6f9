"""Transforms of samples at a read, and their random numbers by seed, epoch, index and draw."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.random.bit_generator import ISeedSequence

from edcache.base import OptionError, check_count, shown
from edcache.reader import FieldPath, at, replaced, steps

Draws: TypeAlias = Sequence[tuple[int, int]]
"""(epoch, draw) of each sample that is read; draw tells reads of one sample in an epoch apart."""


@dataclass(frozen=True)
class Step:
    """Transform by one function of samples, or of one field.

    Args:
        seed: of the generator that the function takes; None if it takes none. number: count of seeded
            functions before it.
    """

    function: Callable[..., Any]
    field: FieldPath = None
    seed: int | None = None
    number: int = 0

    def __call__(self, sample: Any, index: int, epoch: int, draw: int) -> Any:
        """Call the function with a sample or its field, and return the whole sample."""
        place = None if self.field is None else steps(sample, self.field, "with_transform()")
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
    """True if a transform takes random numbers."""
    return isinstance(transform, Pipeline) and transform.is_seeded


def extended(
    before: Callable[[Any], Any] | None, function: Any, field: FieldPath = None, seed: int | None = None
) -> Pipeline:
    """Add a user's function to the transform of a view."""
    if not callable(function):
        raise OptionError(f"with_transform() takes a function, not {shown(function)}")
    known: tuple[Step, ...] = ()
    if before is not None:
        known = before.steps if isinstance(before, Pipeline) else (Step(before),)
    number = sum(step.seed is not None for step in known)
    step = Step(function, field, None if seed is None else check_count("seed", seed, 0), number)
    return Pipeline((*known, step), number > 0 or seed is not None)


class Draw(int):
    """Position that a sampler drew; it reaches the worker of a DataLoader with its attributes.

    Attributes:
        epoch: of the draw. number: of the draw in the epoch, from 1, if the sampler may draw a sample twice; else 0.
    """

    epoch: int
    number: int

    def __new__(cls, position: int, epoch: int, number: int = 0) -> Draw:
        """Make an int with attributes."""
        draw = super().__new__(cls, position)
        draw.epoch, draw.number = epoch, number
        return draw

    def __reduce__(self) -> tuple[Any, ...]:
        return Draw, (int(self), self.epoch, self.number)


def generator_of(seed: int, epoch: int, index: int, draw: int, step: int) -> np.random.Generator:
    """Make the generator of one seeded function for one read of a sample. Cost: 6 us.

    numpy's own hash of a key, `SeedSequence`, takes 25 us.
    """
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}/{draw}/{step}".encode(), digest_size=32).digest()
    return np.random.Generator(np.random.PCG64(_Words(digest)))  # type: ignore[arg-type]


class _Words(ISeedSequence):
    """Seed of a generator: four words of 64 bits, little-endian."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> npt.NDArray[Any]:
        """Return the words for PCG64: uint64 [4]."""
        return np.frombuffer(self._data, "<u8").astype(np.uint64, copy=False)
