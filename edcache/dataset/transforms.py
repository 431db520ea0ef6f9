"""Functions that samples pass on their way out, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edcache.base import OptionError, shown
from edcache.reader import FieldPath, at, replaced, steps


@dataclass(frozen=True)
class Step:
    """A function of samples, or of one field of theirs.

    takes_ctx: whether it is called with `ctx=`, the dict in which it notes what it drew.
    """

    function: Callable[..., Any]
    field: FieldPath = None
    takes_ctx: bool = False

    def __call__(self, sample: Any, ctx: dict[str, Any]) -> Any:
        """The sample as the function makes it; a field of another name or place is an OptionError."""
        options = {"ctx": ctx} if self.takes_ctx else {}
        if self.field is None:
            return self.function(sample, **options)
        place = steps(sample, self.field, "with_transform")
        return replaced(sample, place, self.function(at(sample, place), **options))


@dataclass(frozen=True)
class Pipeline:
    """Steps in their order, with one dict for each sample.

    returns_ctx: whether to give (sample, ctx) at the end.
    """

    steps: tuple[Step, ...]
    returns_ctx: bool = False

    def __call__(self, sample: Any) -> Any:
        """A sample after all steps."""
        ctx: dict[str, Any] = {}
        for step in self.steps:
            sample = step(sample, ctx)
        return (sample, ctx) if self.returns_ctx else sample


def extended(before: Callable[[Any], Any] | None, step: Step, returns_ctx: bool = False) -> Pipeline:
    """What samples pass so far, and one step more."""
    if isinstance(before, Pipeline):
        return Pipeline((*before.steps, step), before.returns_ctx or returns_ctx)
    return Pipeline((step,) if before is None else (Step(before), step), returns_ctx)


def checked_step(function: Any, field: FieldPath) -> Step:
    """A step of a function that a user gave."""
    if not callable(function):
        raise OptionError(f"with_transform() takes a function, not {shown(function)}")
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # some of those written in C have no signature
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return Step(function, field, any(p.name == "ctx" and p.kind in kinds for p in parameters))
