"""A sample to a record.

The general way walks the sample and writes its schema node by node. Samples mostly repeat, so the encoder
first tries the matchers of the last few skeletons it met: schemas whose arrays have an ndim in place of a
shape. An array's shape is part of the schema until it is seen to vary. Both ways end in the same plan, which
puts wire values at their offsets.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from edcache.base import CorruptRecordError, OptionError, UnsupportedTypeError
from edcache.codec import dtypes
from edcache.codec.containers import take
from edcache.codec.leaves import Refusal, leaf_of
from edcache.codec.matchers import matcher
from edcache.codec.pickled import PICKLE_SCHEMA
from edcache.codec.pickled import dump as dump_pickle
from edcache.codec.schema import MAX_DEPTH, MAX_NODES, SELF_SCHEMA, Layout, align, dump, parse

MAX_SCHEMAS = 64
_RECENT = 4
_MAX_SKELETONS = 256

Buffer = Any


class Encoded(NamedTuple):
    """A record, not yet in one place.

    Attributes:
        schema: position of its schema in the encoder's `schemas`.
        nbytes: length of the record.
        pieces: (offset in the record, C-contiguous buffer) by rising offset, without overlap; bytes between
            them are zero. A buffer may be the sample's own memory: copy it before the sample changes.
    """

    schema: int
    nbytes: int
    pieces: list[tuple[int, Buffer]]


class Encoder:
    """Turns samples into records and collects the schemas that they need; one thread at a time.

    Args:
        codec: "native" for the closed list of types, "pickle" for anything; OptionError for another.
    Attributes:
        schemas: schema texts in order of first use, at most 64; an id is a position here. The same samples in
            the same order give the same texts.
    """

    def __init__(self, codec: str = "native") -> None:
        if codec not in ("native", "pickle"):
            raise OptionError(f'codec={codec!r}: choose "native" or "pickle"')
        self._pickles = codec == "pickle"
        self.schemas: list[str] = []
        self._ids: dict[str, int] = {}
        self._skeletons: dict[str, _Skeleton] = {}
        self._recent: list[_Skeleton] = []

    def encode(self, sample: object) -> Encoded:
        """Encode one sample, copying as little as possible: what comes back may hold views of it.

        Args:
            sample: a tree of dict, list, tuple, namedtuple, OrderedDict, registered classes and PIL images
                over leaves, at most 64 levels deep.
        Raises:
            UnsupportedTypeError: as 'sample["meta"][2]: cannot store set; convert it to a list, or choose
                codec="pickle"'.
            ImageError: 'sample["image"]: cannot store image file "a.jpg" (No such file or directory); ...'.
        Cost: about 3 us for a small sample like an earlier one; 30 us and more for a new schema.
        """
        if self._pickles:
            data = dump_pickle(sample)
            return Encoded(self._id(PICKLE_SCHEMA), len(data), [(0, data)])
        for skeleton in self._recent:
            values: list[Any] = []
            if skeleton.match(sample, values):
                if skeleton is not self._recent[0]:
                    self._touch(skeleton)
                return self._plan(skeleton, values).encode(values)
        walk = _Walk(sample)
        skeleton = self._skeleton(walk)
        encoded = self._plan(skeleton, walk.values).encode(walk.values)
        self._touch(skeleton)
        return encoded

    def _skeleton(self, walk: _Walk) -> _Skeleton:
        for array_node in walk.array_nodes:
            array_node[2] = len(array_node[2]) or []
        text = dump(walk.node)
        skeleton = self._skeletons.get(text)
        if skeleton is None:
            if json.loads(text) != walk.node:
                raise UnsupportedTypeError("sample: cannot store it: a class or field name holds surrogates")
            if len(self._skeletons) >= _MAX_SKELETONS:
                del self._skeletons[next(iter(self._skeletons))]
            skeleton = self._skeletons[text] = _Skeleton(walk)
        return skeleton

    def _touch(self, skeleton: _Skeleton) -> None:
        others = [other for other in self._recent if other is not skeleton]
        self._recent = [skeleton, *others[: _RECENT - 1]]

    def _plan(self, skeleton: _Skeleton, values: list[Any]) -> _Plan:
        if skeleton.plan is not None:
            for place, shape in skeleton.constant:
                if values[place].shape != shape:
                    break
            else:
                if len(skeleton.constant) < len(skeleton.array_places):
                    skeleton.check(values)
                return skeleton.plan
        try:
            skeleton.check(values)
            constant = skeleton.still_constant(values)
            plan = self._admit(skeleton.text(constant))
        except CorruptRecordError as error:
            # The plan checks its schema as a reader will: better refused now than unreadable later.
            raise UnsupportedTypeError(f"sample: cannot store it: {error}") from error
        skeleton.constant, skeleton.plan = constant, plan
        return plan

    def _admit(self, text: str) -> _Plan:
        layout = Layout(parse(text))
        if text in self._ids or len(self.schemas) < MAX_SCHEMAS - 1:
            return _Plan(self._id(text), b"", layout)
        data = text.encode("ascii")
        prefix = struct.pack("<Q", len(data)) + data
        return _Plan(self._id(SELF_SCHEMA), prefix.ljust(align(len(prefix), 8), b"\0"), layout)

    def _id(self, text: str) -> int:
        known = self._ids.get(text)
        if known is None:
            known = self._ids[text] = len(self.schemas)
            self.schemas.append(text)
        return known


class _Walk:
    """One general walk over a sample: its schema node, and its wire values in tree order.

    `array_nodes` are those of arrays and tensors, each with its shape at place 2; `array_places` say where
    their arrays are in `values`.
    """

    def __init__(self, sample: object) -> None:
        self.values: list[Any] = []
        self.array_nodes: list[list[Any]] = []
        self.array_places: list[int] = []
        self._path: list[tuple[Any, bool]] = []
        self._left = MAX_NODES
        try:
            self.node = self._node(sample)
        except Refusal as refusal:
            raise refusal.error(f"{self._where()}: cannot store {refusal}") from refusal.__cause__

    def _node(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise Refusal(f"a sample of more than {MAX_NODES} values; put them into arrays")
        if len(self._path) > MAX_DEPTH:
            raise Refusal(
                f"a tree deeper than {MAX_DEPTH} levels; flatten it, or see whether it contains itself"
            )
        if value is None:
            return "none"
        leaf = leaf_of(value)
        if leaf is not None:
            node, wire = leaf
            if node[0] in ("tensor", "array"):
                self.array_nodes.append(node)
                self.array_places.append(len(self.values))
            self.values.append(wire)
            return node
        parts = take(value)
        children = []
        for key, child in zip(parts.keys, parts.values, strict=True):
            self._path.append((key, parts.attributes))
            children.append(self._node(child))
            self._path.pop()
        return [*parts.header, children]

    def _where(self) -> str:
        # An endless tree would show an endless path.
        steps = [_step(key, attribute) for key, attribute in self._path[:MAX_DEPTH]]
        return "sample" + "".join(steps if len(steps) < 12 else [*steps[:6], "...", *steps[-3:]])


def _step(key: Any, attribute: bool) -> str:
    if attribute:
        return f".{key}"
    return f"[{json.dumps(key, ensure_ascii=False)}]" if type(key) is str else f"[{key!r}]"


class _Skeleton:
    """A schema without shapes, its matcher, and the plan for the samples that have it.

    Attributes:
        array_places: as in the walk. constant: which of them have had one shape so far, and the shape.
        plan: None before the first sample.
    """

    def __init__(self, walk: _Walk) -> None:
        self._node, self._array_nodes, self.array_places = walk.node, walk.array_nodes, walk.array_places
        self.match = matcher(walk.node)
        self.plan: _Plan | None = None
        self.constant: list[tuple[int, tuple[int, ...]]] = []

    def check(self, values: list[Any]) -> None:
        """CorruptRecordError where an array is empty beside a dimension that no reader takes."""
        for place in self.array_places:
            if not values[place].nbytes:
                dtypes.array_nbytes(values[place].shape, values[place].itemsize)

    def still_constant(self, values: list[Any]) -> list[tuple[int, tuple[int, ...]]]:
        """What `constant` is after these values."""
        if self.plan is None:
            return [(place, values[place].shape) for place in self.array_places]
        return [(place, shape) for place, shape in self.constant if values[place].shape == shape]

    def text(self, constant: list[tuple[int, tuple[int, ...]]]) -> str:
        """Return the schema text with these shapes; the others are left open."""
        shapes, abstract = dict(constant), [node[2] for node in self._array_nodes]
        for node, place in zip(self._array_nodes, self.array_places, strict=True):
            if place in shapes:
                node[2] = list(shapes[place])
        text = dump(self._node)
        for node, ndim in zip(self._array_nodes, abstract, strict=True):
            node[2] = ndim
        return text


class _Plan:
    """Puts wire values at the offsets of one schema, behind a prefix: empty, or a schema text of its own."""

    def __init__(self, schema: int, prefix: bytes, layout: Layout) -> None:
        self._schema = schema
        self._layout = layout
        self._base = len(prefix)
        self._head: list[tuple[int, Buffer]] = [(0, prefix)] if prefix else []
        self._fixed = list(_fixed_pieces(layout, len(prefix)))
        self._nbytes = len(prefix) + (layout.nbytes or 0)

    def encode(self, values: list[Any]) -> Encoded:
        """Place wire values, one for each leaf of the layout."""
        pieces = self._head.copy()
        for offset, pack, places in self._fixed:
            if pack is None:
                pieces.append((offset, values[places[0]]))
            else:
                pieces.append((offset, pack(*[values[place] for place in places])))
        if self._layout.nbytes is not None:
            return Encoded(self._schema, self._nbytes, pieces)
        return Encoded(self._schema, self._place_variable(values, pieces), pieces)

    def _place_variable(self, values: list[Any], pieces: list[tuple[int, Buffer]]) -> int:
        layout = self._layout
        slots: list[int] = []
        data: list[tuple[int, Buffer]] = []
        end = self._base + layout.data_offset
        for place in layout.variable:
            wire = values[place]
            start = align(end, 8)
            if layout.leaves[place].memory is None:
                nbytes = len(wire)
                slots.append(nbytes)
            else:
                nbytes = wire.nbytes
                slots.extend(wire.shape)
                wire = dtypes.as_buffer(wire) if nbytes else b""
            end = start + nbytes
            if nbytes:
                data.append((start, wire))
        pieces.append((self._base + layout.slots_offset, layout.slots.pack(*slots)))
        pieces.extend(data)
        return end


def _fixed_pieces(layout: Layout, base: int) -> Iterator[tuple[int, Callable[..., Buffer] | None, list[int]]]:
    """Cut the fixed part into arrays and into runs of small leaves: offset, what packs them, places."""
    fixed = [(place, layout.leaves[place]) for place in layout.fixed]
    for is_array, run in groupby(fixed, key=lambda item: item[1].code is None):
        places, leaves = zip(*run, strict=True)
        offsets = [leaf.offset or 0 for leaf in leaves]
        if is_array:
            for place, leaf, offset in zip(places, leaves, offsets, strict=True):
                if leaf.nbytes:
                    is_buffer = dtypes.is_exportable(leaf.memory)
                    yield base + offset, None if is_buffer else dtypes.as_buffer, [place]
            continue
        ends = [offsets[0], *(offset + leaf.nbytes for leaf, offset in zip(leaves, offsets, strict=True))]
        codes = "".join(f"{o - end}x{leaf.code}" for leaf, o, end in zip(leaves, offsets, ends, strict=False))
        yield base + offsets[0], struct.Struct("<" + codes).pack, list(places)
