"""Field paths in samples, and the fields at some: their bytes alone are read, none where labels hold them."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import CodecError, CorruptRecordError, Ints, OptionError
from edcache.codec import Decoder
from edcache.labels import Labels
from edcache.reader.group import Collate, Memory, NotInBulk, collation_of
from edcache.reader.reader import AnyReader

FieldPath = Any  # a key, an index, "target.boxes", or a tuple of keys and indices
Steps = tuple[Any, ...]

# Leaves whose values a label column holds exactly, and the kinds of numpy array that it then is.
_EXACT = {"int": "iu", "float": "f", "bool": "b", "str": "O"}


@dataclass(frozen=True)
class Projection:
    """Which fields of a sample are wanted, and in what they are given.

    Args:
        paths: field paths, in the order wanted: "image", "target.boxes", 1, ("target", 0).
        as_tuple: give a tuple of them; False gives a dict with the paths as its keys.
        known: label columns by the field path that they were taken from.
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
                    f"select() takes field paths, not {path!r}; one is a key, an index, text with dots or a "
                    'tuple of keys and indices: select("image", ("target", 0))'
                )
            if self.paths.count(path) > 1:
                raise OptionError(f"select() names {path!r} twice")

    @property
    def columns(self) -> dict[FieldPath, str]:
        """The label columns that have fields of this projection, by field path."""
        return {path: self.known[path] for path in self.paths if path in self.known}

    def __repr__(self) -> str:
        return f"select({', '.join(map(repr, self.paths))}{', as_tuple=True' if self.as_tuple else ''})"

    def narrowed(self, paths: Sequence[FieldPath], as_tuple: bool) -> Projection:
        """A projection of this one's fields.

        Raises:
            OptionError: one is not among them.
        """
        for path in paths:
            if path not in self.paths:
                raise OptionError(f"select() names {path!r}; what was selected before is {self.paths!r}")
        return Projection(tuple(paths), as_tuple, self.known)

    def likeness(self, decoder: Decoder) -> object:
        """What is equal where fields of other samples are collated in the same way; None where unknown."""
        nodes = [None if decoder.structure is None else decoder.structure.at(path) for path in self.paths]
        return None if None in nodes else (self.paths, self.as_tuple, nodes)

    def of_sample(self, sample: Any) -> Any:
        """The fields of a sample that is there as a whole."""
        return self.assembled([at(sample, steps(sample, path, "select")) for path in self.paths])

    def assembled(self, values: list[Any]) -> Any:
        """The values of the fields, in their order, as a sample has them."""
        return tuple(values) if self.as_tuple else dict(zip(self.paths, values, strict=True))

    def read(self, reader: AnyReader, labels: Labels, index: int) -> Any:
        """The fields of one sample of an archive.

        Raises:
            OptionError: the sample has no such field. Else as `Reader.read`.
        """
        decoder = reader.decoder(index)
        plan = self._planned(reader, decoder)
        if plan is None:
            return self.of_sample(reader.read(index))
        record, values = None, []
        for part in plan.parts:
            column = part.column_in(labels)
            if column is not None:
                values.append(column[index : index + 1].tolist()[0])
                continue
            if record is None:
                record, stored_by = reader.fetch(index, plan.wanted)
                if stored_by is not decoder:
                    # It was lost and made again meanwhile, with another structure.
                    return self.of_sample(reader.read(index))
            try:
                values.append(part.decode(record))
            except (CodecError, CorruptRecordError) as error:
                raise reader.placed(error, index) from error
        return self.assembled(values)

    def reading_ahead(self, reader: AnyReader, labels: Labels, indices: Ints) -> AbstractContextManager[None]:
        """What `read` of those samples takes, by one fetch; see `Reader.reading_ahead`."""
        plan = self._planned(reader, reader.common_decoder(indices))
        if plan is None:
            return reader.reading_ahead(indices)
        if all(part.column_in(labels) is not None for part in plan.parts):
            return nullcontext()
        return reader.reading_ahead(indices, plan.wanted)

    def collated(self, reader: AnyReader, labels: Labels, indices: Ints, memory: Memory) -> Any:
        """What default_collate makes of the fields of many samples; NotImplemented where it must see them."""
        plan = self._planned(reader, reader.common_decoder(indices))
        if plan is None or not all(part.collate for part in plan.parts):
            return NotImplemented
        columns = [part.column_in(labels) for part in plan.parts]
        group = reader.group(indices, plan.wanted) if any(column is None for column in columns) else None
        values = []
        for part, column in zip(plan.parts, columns, strict=True):
            if column is not None:
                values.append(_collated_column(column[indices], part.kind, self.as_tuple))
            elif group is None or part.collate is None:
                return NotImplemented
            else:
                values.append(part.collate(group, memory))
        # default_collate makes a list of tuples' columns.
        return values if self.as_tuple else dict(zip(self.paths, values, strict=True))

    def _planned(self, reader: AnyReader, decoder: Decoder | None) -> _ReadPlan | None:
        if decoder is None:
            return None
        # Where labels were revised, samples alone are read.
        return _plan(self, decoder, reader.unoriginal_labels.isdisjoint(self.known.values()))


class _FieldPart(NamedTuple):
    """One field: how it is decoded and collated, or the label column that has it."""

    kind: str
    column: str | None
    decode: Callable[[memoryview], Any]
    collate: Collate | None

    def column_in(self, labels: Labels) -> npt.NDArray[Any] | None:
        """The label column of the field; None where there is none whose values are the field's own."""
        column = None if self.column is None else labels[self.column]
        return column if column is not None and column.dtype.kind in _EXACT[self.kind] else None


class _ReadPlan(NamedTuple):
    """wanted: the bytes of a record with the fields that no label has, half-open; None where they vary."""

    parts: list[_FieldPart]
    wanted: tuple[int, int] | None


@functools.lru_cache(maxsize=256)
def _plan(projection: Projection, decoder: Decoder, has_labels: bool) -> _ReadPlan | None:
    """How the fields of a schema's samples are read; None where records have no schema of their own."""
    structure = decoder.structure
    if structure is None:
        return None
    labelled = ((structure.at(path), name) for path, name in projection.known.items() if has_labels)
    columns = {node.path: name for node, name in labelled if node is not None}
    parts, in_records = [], []
    for path in projection.paths:
        node = structure.at(path)
        if node is None:
            return None  # an item of a list that is one leaf, or an error that a sample shows
        column = columns.get(node.path) if node.kind in _EXACT else None
        if column is None:
            in_records.append(node)
        try:
            collate = collation_of(decoder, node, tuple if projection.as_tuple else list)
        except NotInBulk:
            collate = None
        parts.append(_FieldPart(node.kind, column, decoder.part(node), collate))
    return _ReadPlan(parts, decoder.extent(in_records) if in_records else None)


def _collated_column(values: npt.NDArray[Any], kind: str, as_tuple: bool) -> Any:
    if kind == "str":
        return tuple(values.tolist()) if as_tuple else values.tolist()
    dtype = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}[kind]
    if values.dtype.kind == "u":
        # torch 2.2 takes no array of unsigned integers; what int64 does not hold is an error.
        fits = int(values.max(initial=0)) < 1 << 63
        return torch.tensor(values.astype(np.int64) if fits else values.tolist(), dtype=dtype)
    return torch.tensor(values, dtype=dtype)


# --- field paths ------------------------------------------------------------------------------------


def steps(sample: Any, path: FieldPath, asked_by: str) -> Steps:
    """The keys and indices that lead to a field of a sample.

    Raises:
        OptionError: "collate() names 'boxes', which the samples do not have; they are dicts with ...".
    """
    # A text is a key as it stands, or else keys between dots.
    readings: list[Steps] = [path if isinstance(path, tuple) else (path,)]
    if isinstance(path, str):
        readings.append(tuple(path.split(".")))
    for reading in readings:
        place = _walked(sample, reading)
        if place is not None:
            return place
    raise OptionError(
        f"{asked_by}() names {path!r}, which the samples do not have; they are {_described(sample)}"
    )


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
