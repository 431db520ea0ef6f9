"""The steps in the repr of a view: short, whatever was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edcache.base import shown

_MOST_STEPS, _MOST_TEXT, _MOST_ITEMS = 6, 40, 4


def chain(steps: Sequence[str], step: str) -> tuple[str, ...]:
    """The steps with one more; of many the first two and the last three."""
    longer = (*steps, step)
    return longer if len(longer) <= _MOST_STEPS else (*longer[:2], " ... ", *longer[-3:])


def call(name: str, *arguments: object, **options: object) -> str:
    """A call of a method, with the arguments that are not None."""
    given = [argument(value) for value in arguments if value is not None]
    given += [f"{key}={argument(value)}" for key, value in options.items() if value is not None]
    return f".{name}({', '.join(given)})"


def conditions_step(name: str, where: object, conditions: Mapping[str, object]) -> str:
    """A call of filter or exclude; None is a condition there."""
    parts = [] if where is None else [argument(where)]
    parts += [f"{column}={argument(value)}" for column, value in conditions.items()]
    return f".{name}({_cut(', '.join(parts), 2 * _MOST_TEXT)})"


def argument(value: Any) -> str:
    """One argument, or a key of a dict of views."""
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return argument(value.item())
    if getattr(value, "ndim", 0) and hasattr(value, "dtype"):
        return f"<{len(value):,} {'bools' if 'bool' in str(value.dtype) else 'values'}>"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [argument(item) for item, _ in zip(value, range(_MOST_ITEMS), strict=False)]
        return f"[{', '.join(items)}{', ...' if len(value) > _MOST_ITEMS else ''}]"
    if isinstance(value, range):
        return repr(value)
    if callable(value):
        return str(getattr(value, "__name__", type(value).__name__))
    text = shown(value)
    return _cut(str(value), _MOST_TEXT) if text == "<Expression>" else text


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
