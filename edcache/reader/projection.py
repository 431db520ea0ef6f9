"""Field paths, and `Projection`: reading only the fields at some paths."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from edcache.base import OptionError, shown
from edcache.codec import namedtuple_fields

# Opening an archive takes no decoder.
if TYPE_CHECKING:
    from edcache.codec import Decoder, Node

FieldPath = Any  # a key, an index, "target.boxes", or a tuple of keys and indices
Steps = tuple[Any, ...]


@dataclass(frozen=True)
class Projection:
    """Fields of a sample that a view selects, and their container.

    Args:
        paths: field paths, in the order of the result: "image", "target.boxes", 1, ("target", 0).
        as_tuple: True gives a tuple of the fields. False gives a dict with the paths as keys.
    """

    paths: tuple[FieldPath, ...]
    as_tuple: bool

    def __post_init__(self) -> None:
        if not self.paths:
            raise OptionError('select() takes at least one field: select("image")')
        for path in self.paths:
            if not isinstance(path, (str, int, tuple)):
                raise OptionError(
                    f"select() takes field paths, not {shown(path)}; one is a key, an index, text with dots "
                    'or a tuple of keys and indices: select("image", ("target", 0))'
                )
            if self.paths.count(path) > 1:
                raise OptionError(f"select() names {path!r} twice; give each field once")

    def __repr__(self) -> str:
        return f"select({', '.join(map(repr, self.paths))}{', as_tuple=True' if self.as_tuple else ''})"

    def narrowed(self, paths: Sequence[FieldPath], as_tuple: bool) -> Projection:
        """Make a projection of some fields of this one.

        Raises:
            OptionError: a path is not among its paths.
        """
        for path in paths:
            if path not in self.paths:
                raise OptionError(f"select() names {path!r}; what was selected before is {self.paths!r}")
        return Projection(tuple(paths), as_tuple)

    def of_sample(self, sample: Any, labels: Container[Any] = ()) -> Any:
        """Return the selected fields of a whole sample. labels: columns, for the error if one is taken for a field."""
        return self.assembled([at(sample, steps(sample, path, "select()", labels)) for path in self.paths])

    def assembled(self, values: list[Any]) -> Any:
        """Put values, in the order of `paths`, into the tuple or dict."""
        return tuple(values) if self.as_tuple else dict(zip(self.paths, values, strict=True))


class Plan(NamedTuple):
    """Plan of reading some fields of records of one schema.

    nodes: of each field. decode: decodes the fields of a record. wanted: (start, end) of the bytes of all fields; None
    if they vary.
    """

    nodes: list[Node]
    decode: Callable[[memoryview], Any]
    wanted: tuple[int, int] | None


@functools.lru_cache(maxsize=256)
def planned(fields: Projection, decoder: Decoder) -> Plan | None:
    """Plan the reading of some fields; None if a whole sample must be decoded.

    It must be if the schema is inside the records, for an item of a list that is one leaf, and for a wrong path.
    """
    nodes = [decoder.structure and decoder.structure.at(path) for path in fields.paths]
    found = [node for node in nodes if node is not None]
    if len(found) < len(nodes):
        return None
    decodes = [decoder.part(node) for node in found]
    return Plan(
        found, lambda record: fields.assembled([decode(record) for decode in decodes]), decoder.extent(found)
    )


# --- field paths ------------------------------------------------------------------------------------


def steps(sample: Any, path: FieldPath, asked_by: str, labels: Container[Any] = ()) -> Steps:
    """Find the keys and indices that lead to a field of a sample.

    Raises:
        OptionError: "collate() names 'boxes', which the samples do not have; they are dicts with ...".
    """
    # A text is one key, else several keys with dots between them.
    readings: list[Steps] = [path if isinstance(path, tuple) else (path,)]
    if isinstance(path, str):
        readings.append(tuple(path.split(".")))
    for reading in readings:
        place = _walk(sample, reading)
        if place is not None:
            return place
    label = f"; it is a label: ds.labels[{path!r}]; zip_fields() adds fields" * (path in labels)
    raise OptionError(
        f"{asked_by} names {path!r}, which the samples do not have; they are {_describe(sample)}{label}"
    )


def _walk(sample: Any, path: Steps) -> Steps | None:
    place: list[Any] = []
    for part in path:
        number = int(part) if isinstance(part, str) and part.isascii() and part.isdigit() else part
        if isinstance(sample, Mapping):
            step = part if part in sample else number
            if step not in sample:
                return None
        elif part in (names := namedtuple_fields(type(sample)) or ()):
            step = names.index(part)
        elif isinstance(sample, (list, tuple)) and isinstance(number, int) and 0 <= number < len(sample):
            step = number
        else:
            return None
        place.append(step)
        sample = sample[step]
    return tuple(place)


def at(sample: Any, path: Steps) -> Any:
    """Return the value at a path of keys and indices."""
    for step in path:
        sample = sample[step]
    return sample


def replaced(tree: Any, path: Steps, value: Any) -> Any:
    """Replace the value at a path of a tree. Containers on the path are copied, the rest is shared."""
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
        return tuple(items) if namedtuple_fields(type(tree)) is None else type(tree)(*items)
    return items


def _describe(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return f"dicts with the keys {', '.join(map(repr, sample))}"
    if (names := namedtuple_fields(type(sample))) is not None:
        return f"{type(sample).__name__} with the fields {', '.join(names)}"
    if isinstance(sample, (list, tuple)):
        return f"{type(sample).__name__}s of {len(sample)}"
    return f"of type {type(sample).__name__}"
