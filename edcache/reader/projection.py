"""Field paths, and reading only the fields at some paths. Fields that are labels need no read at all."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from edcache.base import CodecError, CorruptRecordError, Ints, OptionError, shown
from edcache.codec import Decoder, Node
from edcache.labels import Labels
from edcache.reader.reader import Reader

if TYPE_CHECKING:
    from edcache.reader.collation import Collate, Memory

FieldPath = Any  # a key, an index, "target.boxes", or a tuple of keys and indices
Steps = tuple[Any, ...]

# Kinds of leaves that a label column holds exactly, with the kinds of its numpy dtype.
_EXACT = {"int": "iu", "float": "f", "bool": "b", "str": "O"}


@dataclass(frozen=True)
class Projection:
    """The fields of a sample that a view selects, and their container.

    Args:
        paths: field paths, in the order of the result: "image", "target.boxes", 1, ("target", 0).
        as_tuple: True gives a tuple of the fields. False gives a dict with the paths as keys.
        known: field path -> the label column with its values.
    """

    paths: tuple[FieldPath, ...]
    as_tuple: bool
    known: Mapping[FieldPath, str] = field(hash=False)

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

    @property
    def columns(self) -> dict[FieldPath, str]:
        """The label columns with the values of selected fields, by field path."""
        return {path: self.known[path] for path in self.paths if path in self.known}

    def __repr__(self) -> str:
        return f"select({', '.join(map(repr, self.paths))}{', as_tuple=True' if self.as_tuple else ''})"

    def narrowed(self, paths: Sequence[FieldPath], as_tuple: bool) -> Projection:
        """A projection of some fields of this one.

        Raises:
            OptionError: a path is not among its paths.
        """
        for path in paths:
            if path not in self.paths:
                raise OptionError(f"select() names {path!r}; what was selected before is {self.paths!r}")
        return Projection(tuple(paths), as_tuple, self.known)

    def likeness(self, decoder: Decoder) -> object:
        """A value that is equal for schemas whose fields collate in the same way; None if unknown."""
        nodes = [None if decoder.structure is None else decoder.structure.at(path) for path in self.paths]
        return None if None in nodes else (self.paths, self.as_tuple, nodes)

    def of_sample(self, sample: Any, labels: Container[Any] = ()) -> Any:
        """The selected fields of a whole sample. labels: for the error, columns that are perhaps no field."""
        return self.assembled([at(sample, steps(sample, path, "select", labels)) for path in self.paths])

    def assembled(self, values: list[Any]) -> Any:
        """The tuple or dict of the values of the fields, which are in the order of `paths`."""
        return tuple(values) if self.as_tuple else dict(zip(self.paths, values, strict=True))

    def read(self, reader: Reader, labels: Labels, index: int) -> Any:
        """The fields of one sample of an archive.

        Raises:
            OptionError: the sample has no such field. Others as `Reader.read`.
        """
        decoder = reader.decoder(index)
        plan = self._planned(reader, decoder)
        if plan is None:
            return self.of_sample(reader.read(index), labels)
        record, values = None, []
        for part in plan.parts:
            column = part.column_in(labels)
            if column is not None:
                values.append(column[index : index + 1].tolist()[0])
                continue
            if record is None:
                record = reader.record(index, plan.wanted)
            try:
                values.append(part.decode(record))
            except (CodecError, CorruptRecordError) as error:
                raise reader.placed(error, index) from error
        return self.assembled(values)

    def reading_ahead(self, reader: Reader, labels: Labels, indices: Ints) -> AbstractContextManager[None]:
        """Fetch together what `read` needs of some samples; see `Reader.reading_ahead`."""
        plan = self._planned(reader, reader.common_decoder(indices))
        if plan is None:
            return reader.reading_ahead(indices)
        if all(part.column_in(labels) is not None for part in plan.parts):
            return nullcontext()
        return reader.reading_ahead(indices, plan.wanted)

    def collated(self, reader: Reader, labels: Labels, indices: Ints, memory: Memory) -> Any:
        """The collated fields of many samples; NotImplemented if default_collate needs the samples."""
        plan = self._planned(reader, reader.common_decoder(indices))
        collates = None if plan is None else _collates(self, plan.decoder)
        if plan is None or collates is None:
            return NotImplemented
        columns = [part.column_in(labels) for part in plan.parts]
        group = reader.group(indices, plan.wanted) if any(column is None for column in columns) else None
        values = []
        for k, column in enumerate(columns):
            if column is not None:
                from edcache.reader.collation import column_tensor

                values.append(column_tensor(column[indices], plan.parts[k].node.kind, self.as_tuple))
            elif group is None:
                return NotImplemented
            else:
                values.append(collates[k](group, memory))
        # default_collate turns a tuple into a list.
        return values if self.as_tuple else dict(zip(self.paths, values, strict=True))

    def _planned(self, reader: Reader, decoder: Decoder | None) -> _ReadPlan | None:
        if decoder is None:
            return None
        # Labels that were changed later are not the fields: read the samples then.
        return _plan(self, decoder, reader.unoriginal_labels.isdisjoint(self.known.values()))


class _FieldPart(NamedTuple):
    """One field: how it is decoded, and the label column with its values, if there is one."""

    node: Node
    column: str | None
    decode: Callable[[memoryview], Any]

    def column_in(self, labels: Labels) -> npt.NDArray[Any] | None:
        """The label column of the field; None if there is none with exactly its values."""
        column = None if self.column is None else labels[self.column]
        return column if column is not None and column.dtype.kind in _EXACT[self.node.kind] else None


class _ReadPlan(NamedTuple):
    """wanted: (start, end) of a record's bytes with the fields that are no labels; None if they vary."""

    decoder: Decoder
    parts: list[_FieldPart]
    wanted: tuple[int, int] | None


@functools.lru_cache(maxsize=256)
def _plan(projection: Projection, decoder: Decoder, has_labels: bool) -> _ReadPlan | None:
    """How the fields of samples of one schema are read; None if the schema is inside the records."""
    structure = decoder.structure
    if structure is None:
        return None
    labelled = ((structure.at(path), name) for path, name in projection.known.items() if has_labels)
    columns = {node.path: name for node, name in labelled if node is not None}
    parts, in_records = [], []
    for path in projection.paths:
        node = structure.at(path)
        if node is None:
            return None  # an item of a list that is one leaf, or a wrong path: reading a sample tells
        column = columns.get(node.path) if node.kind in _EXACT else None
        if column is None:
            in_records.append(node)
        parts.append(_FieldPart(node, column, decoder.part(node)))
    return _ReadPlan(decoder, parts, decoder.extent(in_records) if in_records else None)


# What collates takes torch, and reading one sample need not import it.


@functools.lru_cache(maxsize=256)
def _collates(projection: Projection, decoder: Decoder) -> list[Collate] | None:
    """How the fields are collated; None where default_collate needs the samples."""
    from edcache.reader.collation import NotInBulk, collation_of

    nodes = [decoder.structure and decoder.structure.at(path) for path in projection.paths]
    column = tuple if projection.as_tuple else list
    try:
        return [collation_of(decoder, node, column) for node in nodes if node is not None]
    except NotInBulk:
        return None


# --- field paths ------------------------------------------------------------------------------------


def steps(sample: Any, path: FieldPath, asked_by: str, labels: Container[Any] = ()) -> Steps:
    """The keys and indices that lead to a field of a sample.

    Raises:
        OptionError: "collate() names 'boxes', which the samples do not have; they are dicts with ...".
    """
    # A text is one key, or else several keys with dots between them.
    readings: list[Steps] = [path if isinstance(path, tuple) else (path,)]
    if isinstance(path, str):
        readings.append(tuple(path.split(".")))
    for reading in readings:
        place = _walked(sample, reading)
        if place is not None:
            return place
    label = f"; it is a label: ds.labels[{path!r}]; zip_fields() adds fields" * (path in labels)
    raise OptionError(
        f"{asked_by}() names {path!r}, which the samples do not have; they are {_described(sample)}{label}"
    )


def _walked(sample: Any, path: Steps) -> Steps | None:
    place: list[Any] = []
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
        place.append(step)
        sample = sample[step]
    return tuple(place)


def at(sample: Any, path: Steps) -> Any:
    """The value at a path of keys and indices."""
    for step in path:
        sample = sample[step]
    return sample


def replaced(tree: Any, path: Steps, value: Any) -> Any:
    """A tree with another value at a path. Containers on the path are copied, the rest is shared."""
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
