"""What `default_collate` makes of the samples of a schema, compiled into one function per field."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import default_collate

from edcache.codec import Decoder, Node, assembler, decoded_together
from edcache.reader.group import Group, Memory

Collate = Callable[[Group, Memory], Any]

# What torch.stack makes of a list of such tensors is what a gather gives; of others torch may refuse.
_BULK_DTYPES: Final = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    }
)
_NUMPY_TO_TORCH: Final = {
    np.dtype(name): getattr(torch, torch_name)
    for name, torch_name in (
        *(("?", "bool"), ("u1", "uint8"), ("i1", "int8"), ("<i2", "int16"), ("<i4", "int32")),
        *(("<i8", "int64"), ("<f2", "float16"), ("<f4", "float32"), ("<f8", "float64")),
        *(("<c8", "complex64"), ("<c16", "complex128")),
    )
}
_SCALARS: Final = {"int": torch.int64, "float": torch.float64}


class NotInBulk(Exception):
    """A structure that default_collate should judge itself."""


class Special:
    """Another way to collate some fields; hashable."""

    def way(self, decoder: Decoder, node: Node) -> Collate | None:
        """How what lies at a node is collated, or None for default_collate's way."""
        raise NotImplementedError

    def of_samples(self, samples: Sequence[Any]) -> Any:
        """The batch, made of samples."""
        raise NotImplementedError

    def finished(self, batch: Any) -> Any:
        """A batch whose fields are collated, in the form in which it is given out."""
        return batch


@functools.lru_cache(maxsize=256)
def collation(decoder: Decoder, special: Special | None = None) -> Collate | None:
    """How a group of records of the decoder's schema is collated; None where default_collate must see them.

    The result of `collation(group.decoder)(group, memory)` equals default_collate of the samples.
    """
    if decoder.structure is None:
        return None
    try:
        return _compiled(decoder, decoder.structure, special)
    except NotInBulk:
        return None


@functools.lru_cache(maxsize=256)
def is_gathered(decoder: Decoder) -> bool:
    """Whether all of a collated batch is gathered, so that a part of it is what the part's samples give."""
    return collation(decoder) is not None and all(
        field.offset is not None and bulk_dtype(field) is not None for field in decoder.fields.values()
    )


def collation_of(decoder: Decoder, node: Node, column: type) -> Collate:
    """The same for what lies at one node; default_collate would hold its values in a `column`.

    Raises:
        NotInBulk: default_collate must see them.
    """
    return _compiled(decoder, node, None, column)


def _compiled(decoder: Decoder, node: Node, special: Special | None, column: type = list) -> Collate:
    """How what lies at a node is collated; `column` is what default_collate holds its values in there.

    Raises:
        NotInBulk: default_collate refuses such values, or treats them in a way of its own.
    """
    own = None if special is None else special.way(decoder, node)
    if own is not None:
        return own
    if node.kind in ("dict", "OrderedDict"):
        return _mapping(decoder, node, special)
    if node.kind in ("tuple", "list", "namedtuple"):
        collate = _all(decoder, node, [_compiled(decoder, child, special, tuple) for child in node.children])
        if node.kind != "namedtuple":  # a tuple becomes a list there too
            return collate
        assemble = assembler(node)
        return lambda group, memory: assemble(collate(group, memory))
    if node.is_container or node.kind == "none":
        raise NotInBulk
    if node.kind == "imagefile":
        return _pictures(node, column)
    return _leaf(decoder.fields[node.path], column)


def _mapping(decoder: Decoder, node: Node, special: Special | None) -> Collate:
    collate = _all(decoder, node, [_compiled(decoder, child, special) for child in node.children])
    assemble = assembler(node)
    return lambda group, memory: assemble(collate(group, memory))


def _all(decoder: Decoder, node: Node, children: list[Collate]) -> Callable[[Group, Memory], list[Any]]:
    """All children in their order, made with the largest of fixed size first: that checks the records."""
    # Nothing that may raise goes first: default_collate's errors come in its order.
    sizes = [_gathered_nbytes(decoder, child) for child in node.children]
    largest = sizes.index(max(sizes)) if sizes else 0
    if largest == 0:
        return lambda group, memory: [child(group, memory) for child in children]
    before, first, after = children[:largest], children[largest], children[largest + 1 :]

    def collate(group: Group, memory: Memory) -> list[Any]:
        made = first(group, memory)
        return [
            *(child(group, memory) for child in before),
            made,
            *(child(group, memory) for child in after),
        ]

    return collate


def _gathered_nbytes(decoder: Decoder, node: Node) -> int:
    """The size of the largest leaf under a node; 0 where not all of them are gathered."""
    fields = [decoder.fields.get(leaf.path) for leaf in node.leaves()]
    if not all(field is not None and field.offset is not None and bulk_dtype(field) for field in fields):
        return 0
    return max((field.nbytes or 0 for field in fields if field is not None), default=0)


def _leaf(field: Node, column: type) -> Collate:
    dtype = bulk_dtype(field)
    if dtype is None:
        return lambda group, memory: default_collate(column(group.values(field.path)))
    if field.offset is not None:
        return lambda group, memory: group.gather(field, dtype, memory)

    def stack(group: Group, memory: Memory) -> Any:
        spans = group.spans(field.path)
        if spans is None or not (spans.dims == spans.dims[0]).all():
            return default_collate(column(group.values(field.path)))
        out = memory((len(group), *spans.dims[0].tolist()), dtype)
        group.copy(spans, out)
        return out

    return stack


def _pictures(node: Node, column: type) -> Collate:
    """Images are decoded straight into the batch, where they are arrays or tensors of one shape."""

    def stack(group: Group, memory: Memory) -> Any:
        files = group.pieces(node.path) if node.const.form in ("numpy", "tensor") else None
        together = None if files is None else decoded_together(files, node.const, memory)
        return default_collate(column(group.values(node.path))) if together is None else together

    return stack


def bulk_dtype(field: Node) -> torch.dtype | None:
    """The dtype of what default_collate stacks of a field; None where it does something else."""
    if field.kind == "tensor":
        assert isinstance(field.dtype, torch.dtype)
        return field.dtype if field.dtype in _BULK_DTYPES else None
    if field.kind in ("array", "scalar"):
        return _NUMPY_TO_TORCH.get(field.dtype)  # type: ignore[arg-type]
    return _SCALARS.get(field.kind)
