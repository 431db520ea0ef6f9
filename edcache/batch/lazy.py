"""A batch that is read when it is asked for, and how torch's `default_collate` is told of it.

torch's DataLoader asks a dataset for `__getitems__(indices)` and hands what it gets to `collate_fn`.
A `Batch` is a sequence of ordinary samples for any collate function of the user's. torch's own looks
at `batch[0]` and chooses by its type what to do. To that function alone, known by its code, a batch
shows a `_Mark` there, a type that is registered with it; so nobody else meets an unusual sample, and
samples of any type take this way. Were it not recognised any more, it would see ordinary samples.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate as torch_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from edcache.batch.collation import Special
from edcache.batch.handover import Parcel, is_next
from edcache.batch.memory import for_this_process
from edcache.batch.projection import Projection
from edcache.errors import CodecError, CorruptRecordError
from edcache.reader import Memory

Rows = npt.NDArray[np.int64]


class Root(Protocol):
    """What is indexed when a batch is read: an archive, or several of them together."""

    def _collated(
        self, indices: Rows, fields: Projection | None, special: Special | None, memory: Memory
    ) -> Any:
        """What default_collate makes of its samples, untransformed; NotImplemented where it must see them."""

    def _collated_by(self, indices: Rows, size: int, memory: Memory) -> Iterable[Any] | None:
        """The same of every `size` samples in turn; None where they are to be made one by one."""


class Samples(Protocol):
    """The dataset of a batch: a root or a view of one."""

    _fields: Projection | None
    _transform: Callable[[Any], Any] | None
    _batch_transform: Callable[[Any], Any] | None

    @property
    def _root(self) -> Root: ...

    def _read_many(self, indices: Rows) -> list[Any]:
        """Samples by their indices in [-n, n) of the root, as the dataset's own `[i]` gives them."""


class Batch(MutableSequence[Any]):
    """The samples at some indices, not read yet; what lists can do it can do, as collate functions sort them.

    Args:
        dataset: theirs. indices: int64 [n], each in [-n, n) of its root's samples.
    """

    __slots__ = ("_dataset", "_indices", "_samples")

    def __init__(self, dataset: Samples, indices: Rows) -> None:
        self._dataset = dataset
        self._indices = indices
        self._samples: list[Any] | None = None

    def __len__(self) -> int:
        return len(self._indices if self._samples is None else self._samples)

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            caller = sys._getframe(1)
            if _is_default_collate(caller):
                # default_collate, which calls this function of torch's, may be called by the DataLoader.
                return _MARK_TO_HAND_OVER if _is_handed_over(caller) else _MARK
        return self._list()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._list()[index] = value

    def __delitem__(self, index: Any) -> None:
        del self._list()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._list())

    def __add__(self, other: Any) -> list[Any]:
        return [*self._list(), *other]

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self._list()]

    def insert(self, index: int, value: Any) -> None:
        """As of a list."""
        self._list().insert(index, value)

    def sort(self, *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> None:
        """As of a list."""
        self._list().sort(key=key, reverse=reverse)

    def copy(self) -> list[Any]:
        """The samples as a list."""
        return self._list().copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._list(),)

    def _list(self) -> list[Any]:
        """All samples, read once: a collate function may go over them several times."""
        if self._samples is None:
            self._samples = self._dataset._read_many(self._indices)
        return self._samples

    def collated(self, special: Special | None = None, memory: Memory | None = None) -> Any:
        """What `default_collate` makes of the samples, some fields in a `special` way; or what it raises."""
        finish = self._dataset._batch_transform
        batch = self._in_bulk(special, memory or for_this_process())
        if batch is NotImplemented:
            samples = self._list()
            batch = default_collate(samples) if special is None else special.of_samples(samples)
        return batch if finish is None else finish(batch)

    def collated_by(self, size: int, memory: Memory) -> Iterable[Any] | None:
        """`collated()` of every `size` samples in turn, by one gather a field for all of them.

        They share memory. None where not every field can be gathered, and for a selection of fields.
        """
        dataset = self._dataset
        if not self._is_bulk() or dataset._fields is not None:
            return None
        batches = dataset._root._collated_by(self._indices, size, memory)
        if batches is None:
            return None
        finish = dataset._batch_transform
        return batches if finish is None else map(finish, batches)

    def _is_bulk(self) -> bool:
        """Whether what default_collate makes of the samples may be gathered from their records."""
        if self._dataset._transform is not None or not len(self._indices) or _is_changed():
            return False
        return self._samples is None  # whoever has seen them may have changed them

    def _in_bulk(self, special: Special | None, memory: Memory) -> Any:
        if not self._is_bulk():
            return NotImplemented
        dataset = self._dataset
        try:
            return dataset._root._collated(self._indices, dataset._fields, special, memory)
        except (CodecError, CorruptRecordError):
            return NotImplemented  # read one by one, the sample at fault is named


class _Mark:
    """Stands for the first sample of a batch."""


class _MarkToHandOver:
    """The same, where the collated batch goes to the parent of this worker as it is."""


_MARK, _MARK_TO_HAND_OVER = _Mark(), _MarkToHandOver()
_COLLATE_CODE = torch_collate.__code__


def _is_default_collate(frame: Any) -> bool:
    if frame.f_code is not _COLLATE_CODE:
        return False
    known = frame.f_locals.get("collate_fn_map")
    return known is default_collate_fn_map


def _is_handed_over(frame: Any) -> bool:
    above = frame.f_back
    return above is not None and above.f_back is not None and is_next(above.f_back)


def _collate_marked(batch: Batch, *, collate_fn_map: Any = None) -> Any:
    return batch.collated()


def _collate_to_hand_over(batch: Batch, *, collate_fn_map: Any = None) -> Any:
    return Parcel(batch.collated())


default_collate_fn_map[_Mark] = _collate_marked
default_collate_fn_map[_MarkToHandOver] = _collate_to_hand_over

_KNOWN = dict(default_collate_fn_map)
_IN_BULK = (torch.Tensor, np.ndarray, np.generic, int, float, dict, list, tuple)


def _is_changed() -> bool:
    """Whether somebody taught default_collate another way with what is gathered here."""
    if default_collate_fn_map == _KNOWN:
        return False
    changed = [key for key, way in default_collate_fn_map.items() if _KNOWN.get(key) is not way]
    kinds = (kind for key in changed for kind in (key if isinstance(key, tuple) else (key,)))
    return len(default_collate_fn_map) < len(_KNOWN) or any(issubclass(kind, _IN_BULK) for kind in kinds)
