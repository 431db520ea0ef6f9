"""`Encoder`: a sample to a record.

A walk over the sample returns its wire values and its skeleton: the schema with the ndim of arrays in the place of
their shape. An array's shape is part of the schema until it varies. Samples mostly repeat: a known skeleton has a plan,
which puts wire values at their offsets.
"""

from __future__ import annotations

import collections
import enum
import json
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from edcache.base import CodecError, CorruptRecordError, Ints
from edcache.codec import dtypes, pickles
from edcache.codec.columns import Columns, Run, Wires, row_buffers
from edcache.codec.compression import Buffer
from edcache.codec.containers import CONTAINERS, disassemble, dump_key
from edcache.codec.leaves import ENCODERS, PACKED_LENGTH, Refusal, encode_enum, encode_packed
from edcache.codec.plan import FlatPlan
from edcache.codec.schema import MAX_DEPTH, MAX_NODES, SELF_SCHEMA, Layout, Node, align, dump, parse
from edcache.codec.tensors import encode_tensor

MAX_SCHEMAS = 64
_MAX_SKELETONS = 256
# Samples that are encoded together; and bytes of a record above which one by one is as fast.
_MOST_ROWS, _LARGE = 1 << 14, 1 << 16


class Encoded(NamedTuple):
    """Record in pieces, with the number of its schema, and its length.

    The pieces are (offset, C-contiguous buffer) by rising offset, without overlap; bytes between them are zero. A
    buffer may be the sample's own memory: copy it before the sample changes.
    """

    schema: int
    nbytes: int
    pieces: list[tuple[int, Buffer]]

    def record(self) -> bytearray:
        """Return the record, in new memory."""
        record = bytearray(self.nbytes)
        for offset, piece in self.pieces:
            flat = memoryview(piece).cast("B")
            record[offset : offset + len(flat)] = flat
        return record


class Encoder:
    """Encoder of samples to records, which collects their schemas; for one thread at a time.

    `codec` is "native" for the closed list of types, "pickle" for anything. `schemas` has the texts in order of first
    use, at most 64: the same for the same samples in the same order.
    """

    def __init__(self, codec: str = "native") -> None:
        self._pickles = codec == "pickle"
        self.schemas: list[str] = []
        self._ids: dict[str, int] = {}
        self._skeletons: dict[Any, _Skeleton] = {}
        self.plan: FlatPlan | None = None  # of the last sample

    def encode(self, sample: object) -> Encoded:
        """Encode one sample, with few copies: the result may hold views of it.

        Raises:
            CodecError: 'sample["meta"][2]: cannot store set; convert it to tensors, ..., or choose codec="pickle"'.
            ImageError: 'sample["image"]: cannot store image file "a.jpg" (No such file or directory); ...'.
        Cost: about 1 us for a small flat sample like the last one, 3 us for one like an earlier one; 30 us and more for
            a new schema.
        """
        plan = self.plan
        if plan is not None:
            record = bytearray(plan.nbytes)
            if plan.pack(sample, record, 0):
                return Encoded(plan.schema, len(record), [(0, record)])
        return self.encode_unlike(sample)

    def encode_unlike(self, sample: object) -> Encoded:
        """Do as `encode`, for a sample that `plan` does not pack."""
        if self._pickles:
            data = pickles.dump(sample)
            return Encoded(self._id(pickles.PICKLE_SCHEMA), len(data), [(0, data)])
        skeleton, values = self._plan(sample)
        self.plan = skeleton.plan
        return skeleton.encode(values)

    def encode_columns(self, columns: Columns, start: int, most: int, most_nbytes: int) -> Run | None:
        """Encode the samples from `start` on: one to `most`, of about `most_nbytes`.

        None if they differ in structure, one is refused, or the first is large: `encode` each then.
        Raises: as `encode`, of the first.
        """
        if self._pickles:
            return None
        skeleton, values = self._plan(columns.at(start))
        encoded = skeleton.encode(values)
        if encoded.nbytes > _LARGE:
            return None
        record = np.frombuffer(encoded.record(), np.uint8)
        most = min(most, columns.count - start, most_nbytes // max(1, len(record)) + 1, _MOST_ROWS)
        wires = columns.wires(slice(start, start + most), _walk_all)
        return None if wires is None else skeleton.run(record, wires, most)

    def _plan(self, sample: object) -> tuple[_Skeleton, _Values]:
        values = _Values()
        values.nodes, values.depth = 0, 0
        try:
            # The skeleton, in tuples.
            node = _ENCODERS.get(type(sample), _encode_other)(sample, values)
        except Refusal as refusal:
            raise refusal.error(f"{_path_text(refusal.path)}: cannot store {refusal}") from refusal.__cause__
        skeleton = self._skeletons.get(node) or self._new_skeleton(node, values)
        try:
            if not skeleton.fits(values):
                skeleton.widen(values, self._admit)
        except CorruptRecordError as error:
            # A schema is checked as by a reader: refused now, not unreadable later.
            raise CodecError(f"sample: cannot store it: {error}") from error
        return skeleton, values

    def _new_skeleton(self, node: Any, values: list[Any]) -> _Skeleton:
        if _as_tuples(json.loads(dump(node))) != node:
            raise CodecError("sample: cannot store it: a key, class or field name holds surrogates")
        if len(self._skeletons) >= _MAX_SKELETONS:
            self._skeletons.clear()
        skeleton = self._skeletons[node] = _Skeleton(node, values)
        return skeleton

    def _admit(self, text: str) -> tuple[int, bytes, Layout]:
        """Return the number of a schema, the bytes before its records, and its layout."""
        layout = Layout(parse(text))
        if text in self._ids or len(self.schemas) < MAX_SCHEMAS - 1:
            return self._id(text), b"", layout
        data = text.encode("ascii")
        prefix = struct.pack("<Q", len(data)) + data
        return self._id(SELF_SCHEMA), prefix.ljust(align(len(prefix), 8), b"\0"), layout

    def _id(self, text: str) -> int:
        known = self._ids.get(text)
        if known is None:
            known = self._ids[text] = len(self.schemas)
            self.schemas.append(text)
        return known


class _Values(list[Any]):
    """Wire values in tree order, the number of nodes inside the sample, and the depth of the walk."""

    __slots__ = ("depth", "nodes")
    depth: int
    nodes: int


def _children(items: Collection[Any], keys: Sequence[Any], is_attribute: bool, values: _Values) -> Any:
    values.nodes += len(items)
    values.depth += 1
    if values.nodes > MAX_NODES:
        raise Refusal(f"a sample of more than {MAX_NODES:,} values; put them into arrays")
    if values.depth > MAX_DEPTH and items:
        raise Refusal(f"a tree deeper than {MAX_DEPTH} levels; flatten it, or see whether it contains itself")
    nodes: list[Any] = []
    try:
        for item in items:
            nodes.append(_ENCODERS.get(type(item), _encode_other)(item, values))  # noqa: PERF401 - read on error
    except Refusal as refusal:
        refusal.path.append((keys[len(nodes)], is_attribute))
        raise
    values.depth -= 1
    return tuple(nodes)


def _encode_dict(value: dict[Any, Any], values: _Values) -> Any:
    if getattr(value, "__dict__", None):
        raise Refusal(f"{type(value).__name__} with attributes beside its items; convert it to a dict")
    keys = tuple(value)
    is_plain = set(map(type, keys)) <= _TEXTS
    nodes = _children(value.values(), keys, False, values)
    return type(value).__name__, keys if is_plain else tuple(map(dump_key, keys)), nodes


def _encode_sequence(value: Any, values: _Values) -> Any:
    if len(value) >= PACKED_LENGTH:
        node = encode_packed(value, values)
        if node is not None:
            return node
    return type(value).__name__, _children(value, range(len(value)), False, values)


def _encode_other(value: Any, values: _Values) -> Any:
    if isinstance(value, enum.Enum):
        return encode_enum(value, values)
    header, keys, items = disassemble(value)
    return *header, _children(items, keys, True, values)


_TEXTS = {str}
_NUMBERS = {int, bool}
_INT64 = -(2**63), 2**63 - 1
_ENCODERS: dict[type, Any] = ENCODERS | {
    torch.Tensor: encode_tensor,
    list: _encode_sequence,
    tuple: _encode_sequence,
    dict: _encode_dict,
    collections.OrderedDict: _encode_dict,
}


def _walk_all(items: list[Any]) -> list[Wires] | None:
    """Return the wire values of each leaf, in tree order; None if the values differ in structure."""
    kinds = set(map(type, items))
    if len(kinds) > 1:
        return None
    if kinds <= _NUMBERS and _INT64[0] <= min(items) and max(items) <= _INT64[1]:
        return [items]  # as their encoders append them one by one
    encode = _ENCODERS.get(type(items[0]), _encode_other)
    values = _Values()
    # Values of one structure have the nodes and depth of the first, which was checked with its sample.
    values.nodes, values.depth = -MAX_NODES * len(items), 0
    try:
        if len({encode(item, values) for item in items}) > 1:
            return None
    except Refusal:
        return None  # one by one, the error names the sample
    width = len(values) // len(items)
    return [values[leaf::width] for leaf in range(width)]


def _path_text(path: list[tuple[Any, bool]]) -> str:
    steps = []
    for key, is_attribute in reversed(path):
        text = json.dumps(key, ensure_ascii=False) if type(key) is str else repr(key)
        steps.append(f".{key}" if is_attribute else f"[{text}]")
    # An endless tree would show an endless path.
    return "sample" + "".join(steps if len(steps) < 12 else [*steps[:6], "...", *steps[-3:]])


def _as_tuples(tree: Any) -> Any:
    return tuple(map(_as_tuples, tree)) if type(tree) is list else tree


def _insert_shapes(node: Any, shapes: Iterator[tuple[int, ...] | None]) -> Any:
    """Insert the shapes of arrays into a node; None leaves the ndim."""
    if node[0] in CONTAINERS:
        return *node[:-1], [_insert_shapes(child, shapes) for child in node[-1]]
    shape = next(shapes) if node[0] in ("tensor", "array") else None
    return node if shape is None else (*node[:2], shape)


class _Skeleton:
    """Schema without shapes, and the plan that puts the wire values of its samples at their offsets.

    Shapes that did not vary so far are constants of the plan's schema.
    """

    def __init__(self, node: Any, values: list[Any]) -> None:
        self._node = node
        self._arrays = [place for place, wire in enumerate(values) if isinstance(wire, np.ndarray)]
        self._constant: list[tuple[int, tuple[int, ...]]] = []
        self._layout: Layout | None = None
        self.plan: FlatPlan | None = None

    def fits(self, values: list[Any]) -> bool:
        """True if the plan fits these values."""
        for place, shape in self._constant:
            if values[place].shape != shape:
                return False
        return self._layout is not None

    def widen(self, values: list[Any], admit: Callable[[str], tuple[int, bytes, Layout]]) -> None:
        """Make a plan for these values and all before; raises CorruptRecordError as `parse`."""
        if self._layout is None:
            constant = [(place, values[place].shape) for place in self._arrays]
        else:
            constant = [(place, shape) for place, shape in self._constant if values[place].shape == shape]
        shapes = map(dict(constant).get, self._arrays)
        schema, prefix, layout = admit(dump(_insert_shapes(self._node, shapes)))
        self._constant, self.schema, self._layout = constant, schema, layout
        self.plan = None if prefix else FlatPlan.of(layout, schema)
        self._base = len(prefix)
        self._head: list[tuple[int, Buffer]] = [(0, prefix)] if prefix else []
        self._fixed = list(_fixed_pieces(layout, len(prefix)))

    def encode(self, values: list[Any]) -> Encoded:
        """Place wire values, one for each leaf of the layout."""
        layout = self._layout
        assert layout is not None
        pieces = self._head.copy()
        for offset, get, pack in self._fixed:
            piece = get(values)
            pieces.append((offset, piece if pack is None else pack(*piece)))
        if layout.nbytes is not None:
            return Encoded(self.schema, self._base + layout.nbytes, pieces)
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
        return Encoded(self.schema, end, pieces + data)

    def run(self, record: npt.NDArray[np.uint8], wires: list[Wires], count: int) -> Run:
        """Make the records of the first of `count` samples, up to one with other shapes; `record`: of the first."""
        layout, base = self._layout, self._base
        assert layout is not None
        for place, shape in self._constant:
            if type(wires[place]) is list:
                others = (row for row, wire in enumerate(wires[place][:count]) if wire.shape != shape)
                count = next(others, count)
        fields: list[tuple[int, dtypes.Array]] = []
        for place in layout.fixed:
            leaf, column = layout.leaves[place], wires[place][:count]
            if isinstance(column, list) and leaf.nbytes:
                raw = [wire.tobytes() for wire in column] if leaf.code is None else column
                is_bytes = type(raw[0]) is bytes
                column = np.array(raw, f"S{leaf.nbytes}" if is_bytes else leaf.code).view(dtypes.U1)
                column = column.reshape(count, -1)
            if leaf.nbytes:
                fields.append((base + (leaf.offset or 0), column))  # type: ignore[arg-type]
        if layout.nbytes is not None:
            return Run(self.schema, record, np.full(count, len(record)), fields, len(record), [])
        pieces: list[tuple[Ints, list[Any]]] = []
        slot, end = base + layout.slots_offset, np.full(count, base + layout.data_offset)
        head_nbytes = int(end[0])
        for place in layout.variable:
            leaf, column = layout.leaves[place], wires[place][:count]
            start = (end + 7) & -8
            gaps = start - end
            if isinstance(column, list):
                shapes, buffers = _pack_varying(column, leaf)
                fields.append((slot, shapes))
                pieces.append((gaps, buffers))
                end = start + shapes.prod(axis=1) * (1 if leaf.memory is None else leaf.memory.itemsize)
            else:
                end = start + column[0].nbytes
                if pieces:
                    pieces.append((gaps, row_buffers(column)))
                else:
                    fields.append((int(start[0]), column))
                    head_nbytes = int(end[0])
            slot += 8 * leaf.slots
        return Run(self.schema, record, end, fields, head_nbytes, pieces)


def _pack_varying(column: list[Any], leaf: Node) -> tuple[Ints, list[Any]]:
    """Return the slots of a variable leaf, int64 [n, slots], and its buffers."""
    if leaf.memory is None:
        return np.fromiter(map(len, column), np.int64, len(column))[:, np.newaxis], column
    shapes = np.array([wire.shape for wire in column], np.int64)
    return shapes, [dtypes.as_buffer(wire) if wire.nbytes else b"" for wire in column]


def _fixed_pieces(layout: Layout, base: int) -> Iterator[tuple[int, Any, Callable[..., Buffer] | None]]:
    """Cut the fixed part into arrays and runs of small leaves: offset, getter, packer."""
    fixed = [(place, layout.leaves[place]) for place in layout.fixed]
    for is_array, run in groupby(fixed, key=lambda item: item[1].code is None):
        places, leaves = zip(*run, strict=True)
        offsets = [leaf.offset or 0 for leaf in leaves]
        if is_array:
            for place, leaf, offset in zip(places, leaves, offsets, strict=True):
                if leaf.nbytes:
                    is_buffer = dtypes.is_exportable(leaf.memory)
                    get = itemgetter(place if is_buffer else slice(place, place + 1))
                    yield base + offset, get, None if is_buffer else dtypes.as_buffer
            continue
        ends = [offsets[0], *(offset + leaf.nbytes for leaf, offset in zip(leaves, offsets, strict=True))]
        codes = "".join(f"{o - end}x{leaf.code}" for leaf, o, end in zip(leaves, offsets, ends, strict=False))
        get = itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))
        yield base + offsets[0], get, struct.Struct("<" + codes).pack
