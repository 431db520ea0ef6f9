"""A batch that is not read yet, and who gets one.

torch's DataLoader asks a dataset for `__getitems__(indices)` and hands the result to its `collate_fn`.
Where that is torch's `default_collate` or `edcache.collate`, the result is a list of one `Batch`, which
stands for all samples and is collated in bulk: `default_collate` chooses by the type of the first
element, and `Batch` is registered with it. Everybody else gets a list of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from edcache.base import CodecError, CorruptRecordError
from edcache.reader.collation import Special
from edcache.reader.group import Memory
from edcache.reader.handover import Parcel, is_sent
from edcache.reader.memory import for_this_process
from edcache.reader.projection import Projection

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

    @property
    def _root(self) -> Root: ...

    @property
    def _transform(self) -> Callable[[Any], Any] | None: ...

    @property
    def _batch_transform(self) -> Callable[[Any], Any] | None: ...

    def _read_many(self, indices: Rows) -> list[Any]:
        """Samples by their indices in [-n, n) of the root, as the dataset's own `[i]` gives them."""


class Batch:
    """The samples at some indices, not read yet.

    Args:
        dataset: theirs. indices: int64 [n], each in [-n, n) of its root's samples.
        is_sent: whether the collated batch goes from a DataLoader's worker to its parent as it is.
    """

    __slots__ = ("_dataset", "_indices", "_is_sent")

    def __init__(self, dataset: Samples, indices: Rows, is_sent: bool = False) -> None:
        self._dataset = dataset
        self._indices = indices
        self._is_sent = is_sent

    def collated(self, special: Special | None = None, memory: Memory | None = None) -> Any:
        """What `default_collate` makes of the samples, some fields in a `special` way; or what it raises."""
        finish = self._dataset._batch_transform
        batch = self._in_bulk(special, memory or for_this_process())
        if batch is NotImplemented:
            samples = self._dataset._read_many(self._indices)
            batch = default_collate(samples) if special is None else special.of_samples(samples)
        if special is not None:
            batch = special.finished(batch)
        if finish is not None:
            batch = finish(batch)
        return Parcel(batch) if self._is_sent else batch

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
        return self._dataset._transform is None and len(self._indices) > 0 and not _is_changed()

    def _in_bulk(self, special: Special | None, memory: Memory) -> Any:
        if not self._is_bulk():
            return NotImplemented
        dataset = self._dataset
        try:
            return dataset._root._collated(self._indices, dataset._fields, special, memory)
        except (CodecError, CorruptRecordError):
            return NotImplemented  # read one by one, the sample at fault is named


def _collate_batch(batch: list[Batch], *, collate_fn_map: Any = None) -> Any:
    return batch[0].collated()


default_collate_fn_map[Batch] = _collate_batch

_FETCH_CODE, _SUBSET_CODE = _MapDatasetFetcher.fetch.__code__, Subset.__getitems__.__code__


def batch_for(caller: FrameType, dataset: Samples, indices: Rows) -> list[Any]:
    """What `dataset.__getitems__` returns to its caller: one `Batch` where that collates it, else samples."""
    while caller.f_code is _SUBSET_CODE and caller.f_back is not None:
        caller = caller.f_back  # a Subset returns it as it is
    if caller.f_code is _FETCH_CODE:
        collate = caller.f_locals["self"].collate_fn
        if collate is default_collate or isinstance(collate, Special):
            return [Batch(dataset, indices, is_sent=is_sent(caller))]
    return dataset._read_many(indices)


_KNOWN = dict(default_collate_fn_map)
# A field that is gathered is one of these, or of a class below one of the second.
_TENSORS = (torch.Tensor, np.ndarray)
_WITH_SUBCLASSES = (np.generic, int, float, dict, list, tuple)


def _is_changed() -> bool:
    """Whether somebody taught default_collate another way with what is gathered here.

    A library that teaches it its own subclass of Tensor, as MONAI does, changes nothing for plain ones.
    """
    if default_collate_fn_map == _KNOWN:
        return False
    changed = [key for key, way in default_collate_fn_map.items() if _KNOWN.get(key) is not way]
    kinds = [kind for key in changed for kind in (key if isinstance(key, tuple) else (key,))]
    return len(default_collate_fn_map) < len(_KNOWN) or any(
        issubclass(kind, _WITH_SUBCLASSES)
        or any(issubclass(gathered, kind) for gathered in _TENSORS + _WITH_SUBCLASSES)
        for kind in kinds
    )
