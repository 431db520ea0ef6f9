"""Schema of a sample, and places of its leaves in a record, as FORMAT.md specifies both.

Pure functions of the schema text.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edcache import base
from edcache.base import CorruptRecordError, LaterReleaseError
from edcache.codec import dtypes
from edcache.codec.containers import CONTAINERS, OPAQUE
from edcache.codec.images import Decoding
from edcache.codec.leaves import LEAVES
from edcache.codec.pickles import PICKLE_SCHEMA

SELF_SCHEMA = '{"self":1}'

MAX_DEPTH = 64
# Without the sample itself: as many fields may a dict have.
MAX_NODES = 1 << 15
MAX_TEXT = 1 << 24

NodePath = tuple[Any, ...]

# Start and end of a variable leaf in a record, and its slots: the shape of an array.
LeafSpan = tuple[int, int, tuple[int, ...]]

_Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True, eq=False)
class Node:
    """Node of a parsed schema.

    Attributes:
        kind: as in FORMAT.md.
        path: keys, indices and field names from the sample to it.
        const: parameter of the kind: a TZ, a class name pair, "list" or "tuple", the dtype of a scalar, the Decoding of
            an image file.
        keys, children: of a container; keys of a dict, indices or field names.
        dtype: torch's name of a tensor's; numpy dtype of an array, scalar, bool, int, float or complex.
        memory: numpy dtype of the bytes of an array, a tensor or a scalar.
        shape: of an array or tensor, None if it varies; () of another leaf of fixed size.
        nbytes: of a leaf of fixed size, else None. code: for struct, if it is not an array.
        slots: int64 slots of a leaf of variable size.
        offset: in the record, of a leaf of fixed size. nth: number of a leaf of variable size, in tree order. The
            Layout sets both.
    """

    kind: str
    path: NodePath
    const: Any = None
    keys: tuple[Any, ...] = ()
    children: tuple[Node, ...] = ()
    dtype: str | np.dtype[Any] | None = None
    memory: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None
    nbytes: int | None = None
    align: int = 8
    code: str | None = None
    slots: int = 0
    offset: int | None = None
    nth: int = 0

    @property
    def is_container(self) -> bool:
        """True if the node has children, not bytes."""
        return self.kind in CONTAINERS

    def leaves(self, whole: Container[str] = ()) -> Iterator[Node]:
        """Yield the leaves that have bytes in a record, in tree order, and containers of kinds in `whole`."""
        if self.is_container and self.kind not in whole:
            for child in self.children:
                yield from child.leaves(whole)
        elif self.kind != "none":
            yield self

    def at(self, path: Any) -> Node | None:
        """Return the node at a field path: a key, an index, "target.boxes", or a tuple of these."""
        if not isinstance(path, tuple):
            whole = self.child(path)
            if whole is not None or not isinstance(path, str):
                return whole
            path = tuple(path.split("."))
        node: Node | None = self
        for part in path:
            node = None if node is None else node.child(part)
        return node

    def child(self, part: Any) -> Node | None:
        """Return the node of one key, index or name of a field; None without one."""
        if not self.is_container or self.kind in OPAQUE:
            return None
        places = dict(zip(self.keys, self.children, strict=True))
        if self.kind in ("namedtuple", "list", "tuple"):
            places |= enumerate(self.children)
        if part not in places and isinstance(part, str) and part.isascii() and part.isdigit():
            part = int(part)
        return places.get(part)


def dump(node: Any) -> str:
    """Return the canonical text of a JSON node."""
    return json.dumps(node, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def parse(text: str, decoding: Decoding | None = None, as_arrays: bool = False) -> Node:
    """Parse and check the text of a native schema; `decoding`: of image files, None takes the text's.

    Raises:
        CorruptRecordError: no writer of ours makes such a text, or this platform lacks a dtype in it.
        LaterReleaseError: a later one does.
        MissingDependencyError: as `array_dtype`, if `as_arrays` reads tensors as arrays.
    """
    if len(text) > MAX_TEXT:
        raise CorruptRecordError(f"schema: {len(text)} characters, more than {MAX_TEXT}")
    try:
        return _parse_tree(base.loads(text), (), itertools.count(), decoding, as_arrays)
    except (CorruptRecordError, LaterReleaseError):
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise CorruptRecordError(f"schema: {error}: {text[:80]}") from None


def stored_fields(text: str) -> list[Node]:
    """List the leaves of a schema, without None; none if each record has its own schema, or is a pickle.

    Raises CorruptRecordError. Needs neither torch nor a decoder.
    """
    return [] if text in (SELF_SCHEMA, PICKLE_SCHEMA) else list(parse(text).leaves(OPAQUE))


def _parse_tree(
    tree: Any, path: NodePath, numbers: Iterator[int], decoding: Decoding | None, as_arrays: bool
) -> Node:
    """Parse a tree of JSON to a node; `numbers` counts the nodes of a schema from 0, the sample itself."""
    if next(numbers) > MAX_NODES or len(path) > MAX_DEPTH:
        raise ValueError(f"more than {MAX_NODES:,} nodes in it, or deeper than {MAX_DEPTH}")
    # A kind without parameters is a text, one with them a list.
    kind, *parameters = tree if type(tree) is list and len(tree) > 1 else [tree]
    if type(kind) is not str:
        if type(kind) is dict:
            raise LaterReleaseError.needing(f"a schema as {dump(kind)[:80]}")
        raise ValueError("a node is neither a text nor a list")
    if kind not in CONTAINERS:
        leaf = _parse_leaf(kind, path, parameters)
        if kind == "imagefile" and decoding:
            leaf = replace(leaf, const=decoding)
        return _as_array(leaf) if as_arrays else leaf
    *header, children = parameters
    if type(children) is not list:
        raise ValueError("children are not a list")
    keys, const = CONTAINERS[kind].parse(header, len(children))
    if len(keys) != len(children):
        raise ValueError(f"{len(keys)} keys for {len(children)} children")
    pairs = zip(keys, children, strict=True)
    nodes = tuple(_parse_tree(child, (*path, key), numbers, decoding, as_arrays) for key, child in pairs)
    return Node(kind, path, const=const, keys=keys, children=nodes)


def _parse_leaf(kind: str, path: NodePath, parameters: list[Any]) -> Node:
    if kind == "none" and not parameters:
        return Node(kind, path, nbytes=0)
    if kind == "array":
        memory = dtypes.parse(parameters[0])
        return _parse_array(kind, path, memory, memory, *parameters[1:])
    if kind == "tensor":
        name = parameters[0]
        known = dtypes.TENSOR_DTYPES.get(name) if type(name) is str else None
        if known is None:
            raise LaterReleaseError.needing(f"the dtype {str(name)[:40]!r} of torch")
        return _parse_array(kind, path, name, known.array, *parameters[1:])
    leaf = LEAVES.get(kind)
    if leaf is None and kind != "none":
        raise LaterReleaseError.needing(f"the leaf {kind[:40]!r}")
    if leaf is None or bool(parameters) is (leaf.parse is None):
        raise ValueError(f"unknown kind {kind[:40]!r}")
    const: Any = leaf.parse(*parameters) if leaf.parse else None
    if leaf.code is None:
        return Node(kind, path, const, slots=1)
    if kind == "scalar":
        return replace(_parse_array(kind, path, const, const, ()), const=const, code=f"{const.itemsize}s")
    nbytes, code = struct.calcsize("<" + leaf.code), leaf.code
    dtype, align = np.dtype(leaf.dtype) if leaf.dtype else None, min(8, nbytes & -nbytes)
    return Node(kind, path, const, dtype=dtype, shape=(), nbytes=nbytes, align=align, code=code)


def _parse_array(kind: str, path: NodePath, dtype: Any, memory: np.dtype[Any], shape: Any) -> Node:
    align = dtypes.alignment(memory)
    if type(shape) is int:
        if not 0 < shape <= dtypes.MAX_NDIM:
            raise ValueError(f"ndim {shape}")
        return Node(kind, path, dtype=dtype, memory=memory, slots=shape, align=align)
    dims = dtypes.check_shape(shape)
    try:
        nbytes = dtypes.array_nbytes(dims, memory.itemsize)
    except CorruptRecordError as error:
        raise CorruptRecordError(f"schema: {error}") from None
    return Node(kind, path, dtype=dtype, memory=memory, shape=dims, nbytes=nbytes, align=align)


def _as_array(leaf: Node) -> Node:
    """Change a leaf so that it is read without torch."""
    if leaf.kind == "tensor":
        dtype = dtypes.array_dtype(str(leaf.dtype))
        return replace(leaf, kind="array", dtype=dtype, memory=dtype)
    if leaf.kind == "imagefile" and leaf.const.form == "tensor":
        return replace(leaf, const=replace(leaf.const, form="numpy"))
    return leaf


class Layout:
    """Places of the leaves of a schema in a record.

    `root` is the tree. `leaves` are in tree order. `fixed` and `variable` are indices of leaves: fixed ones by rising
    offset, the others in tree order. `slots` is the struct of all slots. `nbytes` is None if a leaf is variable.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.leaves = tuple(root.leaves())
        self.variable = [i for i, leaf in enumerate(self.leaves) if leaf.nbytes is None]
        fixed = {i: -leaf.nbytes for i, leaf in enumerate(self.leaves) if leaf.nbytes is not None}
        self.fixed = sorted(fixed, key=fixed.__getitem__)
        end = 0
        for i in self.fixed:
            leaf = self.leaves[i]
            start = align(end, leaf.align)
            leaf.offset = start
            end = start + (leaf.nbytes or 0)
        for nth, i in enumerate(self.variable):
            self.leaves[i].nth = nth
        self.slots = struct.Struct(f"<{sum(self.leaves[i].slots for i in self.variable)}q")
        self.slots_offset = align(end, 8) if self.variable else end
        self.data_offset = self.slots_offset + self.slots.size
        self.nbytes = None if self.variable else end

    def locate(self, record: memoryview, nbytes: int | None = None) -> list[LeafSpan]:
        """Return the spans of the variable leaves; CorruptRecordError if they do not fill the record.

        nbytes: of the record, if only its begin is given, up to the data.
        """
        total = record.nbytes if nbytes is None else nbytes
        if min(total, record.nbytes) < self.data_offset:
            raise CorruptRecordError(f"record of {total} bytes, its schema needs at least {self.data_offset}")
        slots = self.slots.unpack_from(record, self.slots_offset)
        spans: list[LeafSpan] = []
        at, end = 0, self.data_offset
        for i in self.variable:
            leaf = self.leaves[i]
            dims = slots[at : at + leaf.slots]
            at += leaf.slots
            nbytes = dims[0] if leaf.memory is None else dtypes.array_nbytes(dims, leaf.memory.itemsize)
            start = align(end, 8)
            end = start + nbytes
            if nbytes < 0 or end > total:
                raise CorruptRecordError(
                    f"record of {total} bytes, its leaf {list(leaf.path)} takes {nbytes}"
                )
            spans.append((start, end, dims))
        if end != total:
            raise CorruptRecordError(f"record of {total} bytes, its leaves end at {end}")
        return spans

    def locate_many(self, slots: _Ints, nbytes: _Ints) -> dict[NodePath, tuple[_Ints, _Ints, _Ints]] | None:
        """Return start, end and dimensions of the variable leaves of many records, by path.

        Args:
            slots: int64 [n, k], the slots of each record. nbytes: int64 [n], of each record.
        Returns:
            int64 [n], [n] and [n, slots of the leaf]. None for an odd record: `locate` of each raises the error.
        """
        if not len(slots) or slots.min(initial=0) < 0:
            return None
        found: dict[NodePath, tuple[_Ints, _Ints, _Ints]] = {}
        at, end = 0, np.full(len(slots), self.data_offset, np.int64)
        for i in self.variable:
            leaf = self.leaves[i]
            dims = slots[:, at : at + leaf.slots]
            at += leaf.slots
            itemsize = 1 if leaf.memory is None else leaf.memory.itemsize
            if np.maximum(dims, 1).prod(axis=1, dtype=np.float64).max() * itemsize > dtypes.MAX_NBYTES:
                return None
            sizes = dims.prod(axis=1) * itemsize
            start = (end + 7) & -8
            end = start + sizes
            if np.any(end > nbytes):
                return None
            found[leaf.path] = start, end, dims
        return found if np.array_equal(end, nbytes) else None


def align(offset: int, alignment: int) -> int:
    """Round up to a multiple of a power of two."""
    return (offset + alignment - 1) & -alignment
