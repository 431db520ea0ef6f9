"""The bulk path: many records of one layout become a collated batch by one gather a field.

torch's DataLoader asks a dataset for `__getitems__(indices)` and hands what it gets to `collate_fn`.
A `Batch` is a sequence of ordinary samples for any collate function of the user's, but its first
sample is of a type that torch's own `default_collate` is told about here, and which leads it to
`Batch.collated`. The result equals `default_collate` of the samples exactly (test_batch.py): where
a field is not of one layout, that field alone is collated from its values, and where samples differ
in structure, all of it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from edcache.codec import Node
from edcache.reader import Reader

Rows = npt.NDArray[np.int64]

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


class Batch(Sequence[Any]):
    """The samples at some indices, not read yet.

    Args:
        reader: the archive. indices: int64 [n], each in [0, len(reader)).
        sample: reads one sample by its position in `indices`, as the dataset's own `[i]` does.
    """

    def __init__(self, reader: Reader, indices: Rows, sample: Callable[[int], Any]) -> None:
        self._reader = reader
        self._indices = indices
        self._sample = sample

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._sample(i) for i in range(len(self))[index]]
        position = range(len(self))[index]
        sample = self._sample(position)
        return _marked(sample, self) if position == 0 else sample

    def __iter__(self) -> Iterator[Any]:
        return (self._sample(position) for position in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    @property
    def is_led_to(self) -> bool:
        """Whether `default_collate` of this finds its way to `collated`, as its samples are containers."""
        root = self._reader.root_kind(int(self._indices[0])) if len(self) else None
        return root in _LED_TO

    def collated(self) -> Any:
        """What `default_collate` makes of the samples; raises what it raises."""
        group = self._reader.group(self._indices) if len(self) else None
        if group is None or group.decoder.structure is None:
            return default_collate(list(self))
        try:
            return _Collation(group).node(group.decoder.structure)
        except _NotInBulk:
            return default_collate(list(self))


class _NotInBulk(Exception):
    """A structure that default_collate should judge itself."""


class _Collation:
    """One batch of records of one schema, collated node by node."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._fields = group.decoder.fields

    def node(self, node: Node, column: type = list) -> Any:
        """Collate what lies at a node; `column` is what default_collate holds its values in there."""
        if node.kind in ("dict", "OrderedDict"):
            pairs = ((key, self.node(child)) for key, child in zip(node.keys, node.children, strict=True))
            return dict(pairs) if node.kind == "dict" else OrderedDict(pairs)
        if node.kind in ("tuple", "list"):
            return [self.node(child, tuple) for child in node.children]  # a tuple becomes a list there too
        if node.is_container or node.kind == "none":
            raise _NotInBulk
        field = self._fields[node.path]
        dtype = _bulk_dtype(field)
        if dtype is None or field.offset is None:
            return default_collate(column(self._group.values(node.path)))
        return self._gather(field, dtype)

    def _gather(self, field: Any, dtype: torch.dtype) -> torch.Tensor:
        if not field.nbytes:
            return torch.empty((len(self._group), *field.shape), dtype=dtype)
        out = _memory(len(self._group), field.nbytes)
        torch.index_select(self._group.window(field.offset, field.nbytes), 0, self._group.places, out=out)
        return out.view(dtype).view(len(self._group), *field.shape)


def _bulk_dtype(field: Any) -> torch.dtype | None:
    if field.kind == "tensor":
        return field.dtype if field.dtype in _BULK_DTYPES else None
    if field.kind == "array":
        return _NUMPY_TO_TORCH.get(field.dtype)
    return _SCALARS.get(field.kind)


def _memory(rows: int, nbytes: int) -> torch.Tensor:
    """Fresh bytes: in a worker the shared memory that is handed over, elsewhere numpy's huge pages."""
    if get_worker_info() is None:
        return torch.from_numpy(np.empty((rows, nbytes), np.uint8))
    storage = torch.UntypedStorage._new_shared(rows * nbytes)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (rows, nbytes), (nbytes, 1))


# --- what leads default_collate here ---------------------------------------------------------------


class _Marked:
    """Mixed into the type of a batch's first sample; it is a sample like the others but for its type."""

    batch: Batch

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain = _plain(self)
        return type(plain), (list(plain.items()) if isinstance(plain, dict) else list(plain),)


def _plain(marked: Any) -> Any:
    """A marked sample as what it would be without the mark."""
    kind: Any = next(kind for kind, marked_kind in _MARKED.items() if marked_kind is type(marked))
    return kind(marked)


class _MarkedDict(_Marked, dict):  # type: ignore[type-arg]
    pass


class _MarkedOrderedDict(_Marked, OrderedDict):  # type: ignore[type-arg]
    pass


class _MarkedTuple(_Marked, tuple):  # type: ignore[type-arg]
    pass


class _MarkedList(_Marked, list):  # type: ignore[type-arg]
    pass


_MARKED: Final[dict[type, type]] = {
    dict: _MarkedDict,
    OrderedDict: _MarkedOrderedDict,
    tuple: _MarkedTuple,
    list: _MarkedList,
}
_LED_TO: Final = frozenset(kind.__name__ for kind in _MARKED)


def _marked(sample: Any, batch: Batch) -> Any:
    kind = _MARKED.get(type(sample))
    if kind is None:
        return sample
    marked = kind(sample)
    marked.batch = batch
    return marked


def _collate_marked(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, Batch):
        return batch.collated()
    # A list that somebody made of a batch: its first sample is nothing special any more.
    return collate([_plain(batch[0]), *batch[1:]], collate_fn_map=collate_fn_map)


default_collate_fn_map[_Marked] = _collate_marked
