"""Field paths in samples: "image", "target.boxes", 1, ("target", 0)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from edcache.base import OptionError

FieldPath = Any  # a key, an index, "target.boxes", or a tuple of keys and indices
Steps = tuple[Any, ...]


def find(sample: Any, path: FieldPath, asked_by: str) -> Any:
    """What lies at a field path of a sample; raises as `steps`."""
    return at(sample, steps(sample, path, asked_by))


def steps(sample: Any, path: FieldPath, asked_by: str) -> Steps:
    """The keys and indices that lead to a field of a sample.

    Raises:
        OptionError: "collate() names 'boxes', which the samples do not have; they are dicts with ...".
    """
    for reading in _readings(path):
        found = _walked(sample, reading)
        if found is not None:
            return found
    raise OptionError(
        f"{asked_by}() names {path!r}, which the samples do not have; they are {_described(sample)}"
    )


def _readings(path: FieldPath) -> Iterable[Steps]:
    """A text is a key as it stands, or else keys between dots."""
    if isinstance(path, tuple):
        return [path]
    return [(path,), tuple(path.split("."))] if isinstance(path, str) else [(path,)]


def _walked(sample: Any, path: Steps) -> Steps | None:
    found: list[Any] = []
    for part in path:
        number = int(part) if isinstance(part, str) and part.isascii() and part.isdigit() else part
        if isinstance(sample, Mapping):
            step = part if part in sample else number
            if step not in sample:
                return None
        elif isinstance(sample, tuple) and part in getattr(sample, "_fields", ()):
            step = getattr(sample, "_fields").index(part)  # noqa: B009 - tuple has none for mypy
        elif isinstance(sample, (list, tuple)) and isinstance(number, int) and 0 <= number < len(sample):
            step = number
        else:
            return None
        found.append(step)
        sample = sample[step]
    return tuple(found)


def at(sample: Any, path: Steps) -> Any:
    """What lies at the end of the steps."""
    for step in path:
        sample = sample[step]
    return sample


def replaced(tree: Any, path: Steps, value: Any) -> Any:
    """A tree with another value in one place; containers on the way are copied, the rest is shared."""
    if not path:
        return value
    step, deeper = path[0], path[1:]
    child = replaced(tree[step], deeper, value)
    if isinstance(tree, OrderedDict):
        return OrderedDict((key, child if key == step else old) for key, old in tree.items())
    if isinstance(tree, Mapping):
        return {key: child if key == step else old for key, old in tree.items()}
    items = [child if place == step else old for place, old in enumerate(tree)]
    if isinstance(tree, tuple):
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return items


def _described(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return f"dicts with the keys {', '.join(map(repr, sample))}"
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return f"{type(sample).__name__} with the fields {', '.join(sample._fields)}"
    if isinstance(sample, (list, tuple)):
        return f"{type(sample).__name__}s of {len(sample)}"
    return f"of type {type(sample).__name__}"
