"""Functions that samples pass on their way out, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from edcache.base import OptionError, shown
from edcache.dataset.ordering import checked_seed
from edcache.dataset.randomness import numpy_generator, torch_generator
from edcache.reader import FieldPath, at, replaced, steps


@dataclass(frozen=True)
class Step:
    """A function of samples, or of one field of theirs.

    Args:
        generator: makes the `rng` that the function takes of seed, epoch, index, draw and number; None if it
            takes none. number: of the seeded functions before it.
    """

    function: Callable[..., Any]
    field: FieldPath = None
    seed: int = 0
    generator: Callable[[int, int, int, int, int], Any] | None = None
    number: int = 0

    def __call__(self, sample: Any, index: int, epoch: int, draw: int) -> Any:
        """Call the function with a sample or its field, and return the whole sample."""
        options: dict[str, Any] = {}
        if self.generator is not None:
            options["rng"] = self.generator(self.seed, epoch, index, draw, self.number)
        if self.field is None:
            return self.function(sample, **options)
        place = steps(sample, self.field, "with_transform")
        return replaced(sample, place, self.function(at(sample, place), **options))


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
    rng = _further_parameters(function).get("rng")
    name = str(getattr(function, "__name__", type(function).__name__))
    if seed is not None and rng is None:
        raise OptionError(f"{name} takes no rng, so a seed has no use for it; add a parameter rng")
    if seed is None and rng is not None and rng.default is rng.empty:
        raise OptionError(f"{name} takes rng; give its seed: with_transform(..., seed=0)")
    known: tuple[Step, ...] = ()
    if before is not None:
        known = before.steps if isinstance(before, Pipeline) else (Step(before),)
    step = Step(function, field)
    if seed is not None and rng is not None:
        generator = torch_generator if _is_of_torch(rng) else numpy_generator
        number = sum(step.generator is not None for step in known)
        step = Step(function, field, checked_seed(seed), generator, number)
    return Pipeline((*known, step), any(step.generator is not None for step in (*known, step)))


def _further_parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters that a function takes by name, behind the sample."""
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
    """True if an annotation names torch's generator, perhaps as text or beside others."""
    if isinstance(rng.annotation, str):
        return "torch.Generator" in rng.annotation
    kinds = (rng.annotation, *get_args(rng.annotation))
    return any(getattr(kind, "__module__", "").startswith("torch") for kind in kinds)
