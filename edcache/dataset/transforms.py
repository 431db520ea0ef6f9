"""Functions that samples pass on their way out, one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edcache.base import OptionError
from edcache.reader import FieldPath, Projection, at, replaced, steps

Context = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A function of samples, or of one field of theirs.

    takes_ctx: whether it is called with `ctx=`, the dict in which it notes what it drew.
    """

    function: Callable[..., Any]
    field: FieldPath = None
    takes_ctx: bool = False

    def __call__(self, sample: Any, ctx: Context) -> Any:
        """The sample as the function makes it; a field of another name or place is an OptionError."""
        if self.field is None:
            return self._called(sample, ctx)
        place = steps(sample, self.field, "with_transform")
        return replaced(sample, place, self._called(at(sample, place), ctx))

    def _called(self, value: Any, ctx: Context) -> Any:
        return self.function(value, ctx=ctx) if self.takes_ctx else self.function(value)


@dataclass(frozen=True)
class Selected:
    """The fields of a sample that a function has made."""

    fields: Projection

    def __call__(self, sample: Any, ctx: Context) -> Any:
        """The fields."""
        return self.fields.of_sample(sample)


@dataclass(frozen=True)
class Pipeline:
    """Steps in their order, with one dict for each sample.

    returns_ctx: whether to give (sample, ctx) at the end.
    """

    steps: tuple[Callable[[Any, Context], Any], ...]
    returns_ctx: bool = False

    def __call__(self, sample: Any) -> Any:
        """A sample after all steps."""
        ctx: Context = {}
        for step in self.steps:
            sample = step(sample, ctx)
        return (sample, ctx) if self.returns_ctx else sample


def extended(
    before: Callable[[Any], Any] | None, step: Callable[[Any, Context], Any], returns_ctx: bool = False
) -> Pipeline:
    """What samples pass so far, and one step more."""
    if isinstance(before, Pipeline):
        return Pipeline((*before.steps, step), before.returns_ctx or returns_ctx)
    return Pipeline((step,) if before is None else (Step(before), step), returns_ctx)


def checked_step(function: Any, field: FieldPath) -> Step:
    """A step of a function that a user gave.

    Raises:
        OptionError: it is none.
    """
    if not callable(function):
        raise OptionError(f"with_transform() takes a function, not {function!r}")
    return Step(function, field, _takes_ctx(function))


def _takes_ctx(function: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some of those written in C have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(parameter.name == "ctx" and parameter.kind in kinds for parameter in parameters[1:])
