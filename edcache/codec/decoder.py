"""`Decoder`: a record to its sample.

It compiles a schema into one closure per node. Only a closed set of constructors runs over a record's bytes; lengths
and dimensions are checked against the record before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from edcache.base import CodecError, CorruptRecordError, EdcacheError, once
from edcache.codec import classes
from edcache.codec.compression import content_nbytes, content_start, decompress
from edcache.codec.containers import CONTAINERS, OPAQUE, Assemble
from edcache.codec.dtypes import TENSOR_DTYPES, Array
from edcache.codec.images import Decoding
from edcache.codec.leaves import reviver
from edcache.codec.pickles import PICKLE_SCHEMA, load
from edcache.codec.schema import MAX_TEXT, SELF_SCHEMA, Layout, LeafSpan, Node, NodePath, align, parse

# Characters of all schemas whose decoders are kept.
_KEPT_TEXT = 1 << 18

# Frames that say more bytes, and more of them a byte of their own, are looked into.
_GREAT_NBYTES, _GREAT_RATIO = 1 << 20, 64

# Record, spans of its variable leaves, and for aliasing reads the record as an array that looks writable.
_Read = Callable[[memoryview, list[LeafSpan], "Array | None"], Any]

_NO_SPANS: list[LeafSpan] = []
_NO_ALIAS: Array = np.empty(0, np.uint8)


class Decoder:
    """Decoder of the records of one schema; CorruptRecordError if its text is none.

    Safety: threads, fork, spawn (by text); nothing is written after construction.

    Args:
        allow_pickle: True lets decode() unpickle, if the schema says that records are pickles.
        decoding: of image files; None takes the schema's.
        as_arrays: True reads tensors as numpy arrays, without torch.
    Attributes:
        nbytes: of every record, None if they vary. fixed_nbytes: of the part with the leaves of fixed size.
        structure, layout: parsed schema, and places of its leaves; None if records are pickles or carry a schema each.
    """

    def __init__(
        self,
        schema_text: str,
        allow_pickle: bool = False,
        decoding: Decoding | None = None,
        as_arrays: bool = False,
    ) -> None:
        self._allow_pickle = allow_pickle
        self.text = schema_text
        self._decoding, self._as_arrays = decoding, as_arrays
        self.nbytes: int | None = None
        self.fixed_nbytes = 0
        self.structure: Node | None = None
        self.layout: Layout | None = None
        own = {SELF_SCHEMA: self._decode_self, PICKLE_SCHEMA: self._decode_pickle}
        self._decode: Callable[[memoryview, bool], object] = own.get(schema_text, self._decode_native)
        if schema_text not in own:
            self.structure = parse(schema_text, decoding, as_arrays)
            self.layout = layout = Layout(self.structure)
            self.nbytes = layout.nbytes
            self.fixed_nbytes = layout.data_offset
            self._read = _compile(self.structure)
            self._aliases = any(leaf.kind == "tensor" for leaf in layout.leaves)

    @once
    def fields(self) -> Mapping[NodePath, Node]:
        """Leaves by path, in tree order, without None; empty if `structure` is None."""
        fields = () if self.structure is None else self.structure.leaves(OPAQUE)
        return MappingProxyType({field.path: field for field in fields})

    def decode(self, record: memoryview, *, copy: bool = True) -> object:
        """Decode one record.

        Args:
            record: exactly its bytes; at an address that is a multiple of 8 if copy is False.
            copy: True: the caller owns every leaf. False: arrays and tensors alias the record; arrays are read-only,
                tensors must not be written.
        Raises: CorruptRecordError, CodecError, ImageError.
        Cost: about 3 us for a small tensor and an int.
        """
        try:
            return self._decode(record, copy)
        except (ValueError, OverflowError) as error:
            if isinstance(error, EdcacheError):
                raise
            raise CorruptRecordError(f"record does not decode: {error}") from error

    def check_nbytes(self, nbytes: int) -> None:
        """Raise CorruptRecordError if no record of the schema has this number of bytes."""
        if self.nbytes not in (None, nbytes) or nbytes < self.fixed_nbytes:
            raise CorruptRecordError(f"it has {nbytes:,} bytes, its schema needs {self.fixed_nbytes:,}")

    def content_nbytes(self, frame: memoryview) -> int:
        """Read the bytes of a compressed record from its header, which a forged frame may overstate.

        Where it says many times the bytes of the frame, the slots of the variable leaves must say the same.
        Raises: CorruptRecordError, as `check_nbytes`.
        """
        nbytes = content_nbytes(frame)
        self.check_nbytes(nbytes)
        is_great = nbytes > max(_GREAT_NBYTES, _GREAT_RATIO * len(frame))
        if is_great and self.nbytes is None and self.layout is not None:
            self.layout.locate(memoryview(content_start(frame, self.layout.data_offset)), nbytes)
        return nbytes

    def decompressed(self, frame: memoryview) -> memoryview:
        """Decompress a record, in as many bytes as its schema allows. Raises: CorruptRecordError."""
        return memoryview(decompress(frame, self.content_nbytes(frame)))

    def part(self, node: Node) -> Callable[[memoryview], Any]:
        """Make the function that decodes a node from a whole record, into own memory; raises as `decode`."""
        layout, read = self.layout, _compile(node)
        assert layout is not None
        is_fixed = all(leaf.nbytes is not None for leaf in node.leaves())
        locate = (lambda record: _NO_SPANS) if is_fixed else layout.locate
        return _with_typed_errors(lambda record: read(record, locate(record), None))

    def extent(self, nodes: Sequence[Node]) -> tuple[int, int] | None:
        """Return the half-open range of bytes with the leaves of some nodes; None if it varies."""
        layout = self.layout
        assert layout is not None
        low, high = layout.data_offset, 0
        for leaf in (leaf for node in nodes for leaf in node.leaves()):
            if leaf.offset is None or leaf.nbytes is None:
                return None
            low, high = min(low, leaf.offset), max(high, leaf.offset + leaf.nbytes)
        return min(low, high), high

    def reviver(self, path: NodePath) -> Callable[[memoryview], Any] | None:
        """Return the function from data to value of a variable leaf; None for arrays, tensors and fixed leaves."""
        leaf = self.fields[path]
        if leaf.memory is not None or leaf.nbytes is not None or leaf.is_container:
            return None
        return reviver(leaf.kind, leaf.const)

    def _decode_native(self, record: memoryview, copy: bool) -> object:
        if self.nbytes is None:
            assert self.layout is not None
            spans = self.layout.locate(record)
        else:
            if record.nbytes != self.nbytes:
                self.check_nbytes(record.nbytes)
            spans = _NO_SPANS
        if copy:
            return self._read(record, spans, None)
        alias = aliased(record) if self._aliases else _NO_ALIAS
        return self._read(record.toreadonly(), spans, alias)

    def _decode_self(self, record: memoryview, copy: bool) -> object:
        size = int.from_bytes(record[:8], "little")
        if record.nbytes < 8 or size > min(record.nbytes - 8, MAX_TEXT):
            raise CorruptRecordError(f"record of {record.nbytes} bytes says its schema takes {size}")
        text = str(record[8 : 8 + size], "ascii")
        decoder = decoder_of(text, decoding=self._decoding, as_arrays=self._as_arrays)
        if decoder.structure is None:
            raise CorruptRecordError(f"record describes itself as {text}")
        return decoder.decode(record[align(8 + size, 8) :], copy=copy)

    def _decode_pickle(self, record: memoryview, copy: bool) -> object:
        if not self._allow_pickle:
            raise CodecError(
                "the record holds pickles; pass allow_pickle=True if you trust its author",
                option="allow_pickle",
            )
        return load(record)


def _with_typed_errors(read: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function: its errors over damaged bytes become CorruptRecordErrors."""

    def decode(*arguments: Any) -> Any:
        try:
            return read(*arguments)
        except (ValueError, OverflowError) as error:
            if isinstance(error, EdcacheError):
                raise
            raise CorruptRecordError(f"record does not decode: {error}") from error

    return decode


class Decoders(dict[Any, Decoder]):
    """Decoders by key, up to `_KEPT_TEXT` characters of schemas: a decoder takes some 150 times their memory."""

    _text_nbytes = 0

    def keep(self, key: Hashable, decoder: Decoder) -> Decoder:
        """Keep a decoder, and return it; if there are too many, drop all others."""
        if self._text_nbytes + len(decoder.text) > _KEPT_TEXT:
            self.clear()
            self._text_nbytes = 0
        self._text_nbytes += len(decoder.text)
        self[key] = decoder
        return decoder


_shared = Decoders()


def decoder_of(
    text: str, allow_pickle: bool = False, decoding: Decoding | None = None, as_arrays: bool = False
) -> Decoder:
    """Return the decoder of a schema, compiled once a process unless there are very many; raises as `Decoder`."""
    key = text, allow_pickle, decoding, as_arrays, classes.changes
    return _shared.get(key) or _shared.keep(key, Decoder(text, allow_pickle, decoding, as_arrays))


def as_read(sample: object, codec: str, decoding: Decoding | None) -> object:
    """Return a sample as a read of its record returns it. Raises: CodecError, ImageError."""
    from edcache.codec.encoder import Encoder  # here, because it takes torch

    encoder = Encoder(codec)
    encoded = encoder.encode(sample)
    decoder = decoder_of(encoder.schemas[encoded.schema], allow_pickle=True, decoding=decoding)
    return decoder.decode(memoryview(encoded.record()))


def assembler(node: Node) -> Assemble:
    """Return the function that makes the container at a node from a list of its children."""
    return CONTAINERS[node.kind].assemble(node.keys, node.const)


def _compile(node: Node) -> _Read:
    if node.kind == "none":
        return lambda record, spans, alias: None
    if not node.is_container:
        is_array = node.code is None and node.memory is not None
        return _array_reader(node) if is_array else _value_reader(node)
    children = [_compile(child) for child in node.children]
    assemble = assembler(node)
    return lambda record, spans, alias: assemble([child(record, spans, alias) for child in children])


def _value_reader(leaf: Node) -> _Read:
    offset, nth, revive = leaf.offset, leaf.nth, reviver(leaf.kind, leaf.const)
    if offset is not None and leaf.code is not None:
        unpack = struct.Struct("<" + leaf.code).unpack_from
        if revive is None:
            return lambda record, spans, alias: unpack(record, offset)[0]
        return lambda record, spans, alias: revive(unpack(record, offset)[0])
    assert revive is not None

    def read(record: memoryview, spans: list[LeafSpan], alias: Array | None) -> Any:
        start, end, _ = spans[nth]
        return revive(record[start:end])

    return read


def _array_reader(leaf: Node) -> _Read:
    make, offset, nth, shape = _array_maker(leaf), leaf.offset, leaf.nth, leaf.shape
    if offset is not None:
        return lambda record, spans, alias: make(record, offset, shape, alias)

    def read(record: memoryview, spans: list[LeafSpan], alias: Array | None) -> Any:
        start, _, shape = spans[nth]
        return make(record, start, shape, alias)

    return read


def _array_maker(leaf: Node) -> Callable[[memoryview, int, Any, Array | None], Any]:
    dtype: Any = leaf.memory
    ndarray, copied, itemsize = np.ndarray, np.array, dtype.itemsize
    from_numpy: Any = None
    view: Any = None
    if leaf.kind == "tensor":
        import torch  # arrays alone are read without it

        from edcache.codec.tensors import torch_dtype

        known, from_numpy = torch_dtype(leaf.dtype), torch.from_numpy
        view = None if TENSOR_DTYPES[str(leaf.dtype)].bits is None else known

    def make(record: memoryview, offset: int, shape: Any, alias: Array | None) -> Any:
        if not itemsize or 0 in shape:
            # Not np.empty(): it makes one-byte items of "S0".
            array = ndarray(shape, dtype)
            array.flags.writeable = alias is None or from_numpy is not None
        elif alias is None:
            # numpy allocates large arrays in huge pages, which torch does not ask for.
            array = copied(ndarray(shape, dtype, record, offset))
        else:
            array = ndarray(shape, dtype, record if from_numpy is None else alias, offset)
        if from_numpy is None:
            return array
        tensor = from_numpy(array)
        return tensor if view is None else tensor.view(view)

    return make


def aliased(record: memoryview) -> Array:
    """View bytes as a uint8 array that torch takes without a warning, though they must not be written."""
    if not record.nbytes:
        return _NO_ALIAS
    memory = np.frombuffer(record, np.uint8)
    if not record.readonly:
        return memory
    # torch has no read-only tensors and warns of a read-only array: so numpy is told that it is writable.
    interface = memory.__array_interface__
    interface["data"] = interface["data"][0], False
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=memory))
