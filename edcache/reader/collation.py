"""Records of one schema collated to the batch of `default_collate`, by one gather a field."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import default_collate

from edcache.codec import Decoder, Node, assembler, decoded_together, torch_dtype
from edcache.reader.group import Group

Memory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""`memory(shape, dtype)` returns a contiguous, uninitialized tensor."""

Collate = Callable[[Group, Memory], Any]

# Fields of _BY_TURNS bytes or more are checked and copied in turns of _STEP bytes.
_BY_TURNS, _LARGE, _STEP, _LARGE_STEP = 1 << 14, 1 << 16, 1 << 22, 1 << 20

# For these dtypes a gather equals torch.stack of the list. torch may refuse others.
_NUMPY_TO_TORCH: Final = {
    np.dtype(code): torch.from_numpy(np.empty(0, code)).dtype
    for code in ("?", "u1", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16")
}
_BULK_DTYPES: Final = frozenset({*_NUMPY_TO_TORCH.values(), torch.bfloat16})
_SCALARS: Final = {"int": torch.int64, "float": torch.float64}


class NotInBulk(Exception):
    """Only default_collate can collate these samples."""


class Special:
    """A collation of some fields in another way. A subclass is hashable."""

    def way(self, decoder: Decoder, node: Node) -> Collate | None:
        """How the value at a node is collated; None for the way of default_collate."""
        raise NotImplementedError

    def of_samples(self, samples: Sequence[Any]) -> Any:
        """The batch of a list of samples."""
        raise NotImplementedError


@functools.lru_cache(maxsize=256)
def collation(decoder: Decoder, special: Special | None = None) -> Collate | None:
    """How records of a schema are collated; None if default_collate needs the samples.

    `collation(group.decoder)(group, memory)` equals default_collate of the samples.
    """
    if decoder.structure is None:
        return None
    try:
        return collation_of(decoder, decoder.structure, list, special)
    except NotInBulk:
        return None


def collation_of(decoder: Decoder, node: Node, column: type, special: Special | None = None) -> Collate:
    """How the values at a node are collated; `column` is the container in which default_collate sees them.

    Raises:
        NotInBulk: default_collate refuses such values, or treats them in a special way.
    """
    own = None if special is None else special.way(decoder, node)
    if own is not None:
        return own
    if node.kind in ("dict", "OrderedDict", "tuple", "list", "namedtuple"):
        return _container(decoder, node, special)
    if node.is_container or node.kind == "none":
        raise NotInBulk
    if node.kind == "imagefile":
        return _pictures(node, column)
    return _leaf(decoder.fields[node.path], column)


def _container(decoder: Decoder, node: Node, special: Special | None) -> Collate:
    """Collate all children. The largest one of fixed size goes first: gathering it checks the records."""
    is_mapping = node.kind in ("dict", "OrderedDict")
    column = list if is_mapping else tuple
    children = [collation_of(decoder, child, column, special) for child in node.children]
    # A child that may raise keeps its turn, so that errors come in the order of default_collate.
    sizes = [_gathered_nbytes(decoder, child) for child in node.children]
    largest = children[sizes.index(max(sizes))] if children else None

    def collate(group: Group, memory: Memory) -> list[Any]:
        first = None if largest is None else largest(group, memory)
        return [first if child is largest else child(group, memory) for child in children]

    if node.kind in ("tuple", "list"):  # default_collate turns a tuple into a list
        return collate
    if node.kind == "dict" and all(type(key) is str for key in node.keys):
        return lambda group, memory: dict(zip(node.keys, collate(group, memory), strict=True))
    assemble = assembler(node)
    return lambda group, memory: assemble(collate(group, memory))


def _gathered_nbytes(decoder: Decoder, node: Node) -> int:
    """Bytes of the largest field below a node; 0 if one of its fields cannot be gathered."""
    fields = [decoder.fields.get(leaf.path) for leaf in node.leaves()]
    if any(field is None or field.offset is None or bulk_dtype(field) is None for field in fields):
        return 0
    return max((field.nbytes or 0 for field in fields if field is not None), default=0)


def _leaf(field: Node, column: type) -> Collate:
    dtype = bulk_dtype(field)
    if dtype is None:
        return lambda group, memory: default_collate(column(group.values(field.path)))
    if field.offset is not None:
        return lambda group, memory: _gathered(group, field, dtype, memory)

    def stack(group: Group, memory: Memory) -> Any:
        spans = group.spans(field.path)
        if spans is None or not (spans.dims == spans.dims[0]).all():
            return default_collate(column(group.values(field.path)))
        out = memory((len(group), *spans.dims[0].tolist()), dtype)
        group.copy(spans, bytes_of(out))
        return out

    return stack


def _pictures(node: Node, column: type) -> Collate:
    """Decode images straight into the batch, if they are arrays or tensors of one shape."""

    def stack(group: Group, memory: Memory) -> Any:
        files = group.pieces(node.path) if node.const.form in ("numpy", "tensor") else None
        together = None if files is None else decoded_together(files, node.const, memory)
        return default_collate(column(group.values(node.path))) if together is None else together

    return stack


def bulk_dtype(field: Node) -> torch.dtype | None:
    """The dtype of the stacked field in a batch; None if default_collate does not stack it."""
    if field.kind == "tensor":
        dtype = torch_dtype(field.dtype)
        return dtype if dtype in _BULK_DTYPES else None
    if field.kind in ("array", "scalar"):
        return _NUMPY_TO_TORCH.get(field.dtype)  # type: ignore[arg-type]
    return _SCALARS.get(field.kind)


# --- gathered ---------------------------------------------------------------------------------------


def _gathered(group: Group, field: Node, dtype: torch.dtype, memory: Memory) -> torch.Tensor:
    """One field of fixed shape of every record: a tensor [n, *field.shape] of a dtype of the same size."""
    assert field.offset is not None
    rows, nbytes = len(group), field.nbytes or 0
    out = memory((rows, *(field.shape or ())), dtype)
    if not nbytes:
        return out
    window = group.records.tensors.get((field.offset, nbytes))
    if window is None:
        window = torch.from_numpy(group.records.window(field.offset, nbytes))
        group.records.tensors[field.offset, nbytes] = window
    flat = out if dtype == window.dtype else out.view(-1).view(window.dtype)
    if flat.ndim != window.ndim:
        flat = flat.view(rows, nbytes) if window.ndim == 2 else flat.view(rows)
    check, places = group.check, torch.from_numpy(group.places)
    if check is None or nbytes < _BY_TURNS:
        group.ensure()
        torch.index_select(window, 0, places, out=flat)
        return out
    # In small steps: the records that were checked are still in the processor's cache when copied.
    step = max(1, (_STEP if nbytes < _LARGE else _LARGE_STEP) // nbytes)
    for low in range(0, rows, step):
        check(slice(low, low + step))
        torch.index_select(window, 0, places[low : low + step], out=flat[low : low + step])
    group.check = None
    return out


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(bytearray())
