"""A batch: collated in bulk, or merged from several; its memory, and its transfer to another process.

torch's DataLoader calls `dataset.__getitems__(indices)` and passes the result to its `collate_fn`. If that is
torch's `default_collate` or `edcache.collate`, the result is a list of one `Batch`, which stands for all
samples. `default_collate` chooses by the type of the first element, and `Batch` is registered with it. Any
other caller gets a list of samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import Subset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data._utils.worker import _worker_loop

from edcache.base import CodecError, CorruptRecordError, Ints, OptionError
from edcache.codec import memory_dtype
from edcache.reader.collation import Memory, NotInBulk, Special, collation
from edcache.reader.group import Group
from edcache.reader.session import Session

# The C library reuses smaller allocations itself.
_LARGE = 4 << 20
_KEPT = 4
# Smaller tensors reach the parent process faster as bytes in the message.
_SHARED = 1 << 19


Draws: TypeAlias = Sequence[tuple[int, int]]
"""(epoch, draw) of each sample that is read; draw tells reads of one sample in an epoch apart."""


class Batch:
    """The samples at some indices, not read yet.

    Args:
        dataset: a `Readable` of the room above. indices: int64 [n], indices of its root's samples.
        draws: (epoch, draw) of each, if a transform is seeded.
        is_sent: whether a DataLoader's worker sends the collated batch to its parent process.
    """

    __slots__ = ("_dataset", "_draws", "_indices", "_is_sent")

    def __init__(
        self,
        dataset: Any,
        indices: Ints,
        draws: Draws | None = None,
        is_sent: bool = False,
    ) -> None:
        self._dataset, self._indices, self._draws, self._is_sent = dataset, indices, draws, is_sent

    def samples(self) -> list[Any]:
        """The samples, as the dataset gives them one by one."""
        samples: list[Any] = self._dataset._read_many(self._indices, self._draws)
        return samples

    def collated(self, special: Special | None = None, memory: Memory | None = None) -> Any:
        """The batch that `default_collate` makes of the samples; `special` collates some fields instead."""
        finish = self._dataset._batch_transform
        batch = self._in_bulk(special, memory or for_this_process())
        if batch is NotImplemented:
            samples = self.samples()
            batch = _plainly(samples) if special is None else special.of_samples(samples)
        if finish is not None:
            batch = finish(batch)
        return Parcel(batch) if self._is_sent else batch

    def collated_by(self, size: int, memory: Memory) -> Iterable[Any] | None:
        """`collated()` of every `size` samples in turn, as views of one large batch.

        None if the batch has other leaves than tensors, or if parts may collate differently from the whole.
        Raises: as `collated` of the whole.
        """
        dataset = self._dataset
        if not self._is_bulk() or dataset._root._likeness(self._indices, dataset._fields) is None:
            return None
        batches = _split(self._in_bulk(None, memory), size)
        finish = dataset._batch_transform
        return batches if finish is None or batches is None else map(finish, batches)

    def _is_bulk(self) -> bool:
        """True if the batch may be gathered from the records, without samples."""
        is_stored = self._draws is None and self._dataset._transform is None
        return is_stored and len(self._indices) > 0 and not _is_changed()

    def _in_bulk(self, special: Special | None, memory: Memory) -> Any:
        if not self._is_bulk():
            return NotImplemented
        dataset = self._dataset
        try:
            return dataset._root._collated(self._indices, dataset._fields, special, memory)
        except (CodecError, CorruptRecordError):
            return NotImplemented  # reading one by one names the damaged sample


def _split(batch: Any, size: int) -> Sequence[Any] | None:
    """Split a tree of tensors into such trees of views; None if it has other leaves, or none.

    By hand: torch's pytree takes 8 us to put together a dict of two, which is half of a small batch.
    """
    if isinstance(batch, torch.Tensor):
        return torch.split(batch, size)
    keys, children = (list(batch), batch.values()) if type(batch) is dict else (None, batch)
    if not children or type(batch) not in (dict, list, tuple):
        return None
    columns = [_split(child, size) for child in children]
    if any(column is None for column in columns):
        return None
    rows = zip(*columns, strict=True)
    if keys is None:
        return [type(batch)(row) for row in rows]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _plainly(samples: list[Any]) -> Any:
    try:
        return default_collate(samples)
    except KeyError as error:
        kinds = {frozenset(one): ", ".join(map(str, one)) for one in samples if isinstance(one, Mapping)}
        if len(kinds) < 2:
            raise
        found = " / ".join([*kinds.values()][:3])
        raise OptionError(f"the samples have different fields ({found}); select() the common ones") from error


def _collate_batch(batch: list[Batch], *, collate_fn_map: Any = None) -> Any:
    return batch[0].collated()


default_collate_fn_map[Batch] = _collate_batch

_FETCH_CODE, _SUBSET_CODE = _MapDatasetFetcher.fetch.__code__, Subset.__getitems__.__code__
_WORKER_CODE = _worker_loop.__code__


def batch_for(caller: FrameType, dataset: Any, indices: Ints, draws: Draws | None) -> list[Any]:
    """The result of `dataset.__getitems__`: one `Batch` if the caller collates it, else a list of samples."""
    while caller.f_code is _SUBSET_CODE and caller.f_back is not None:
        caller = caller.f_back  # torch's Subset passes the result on unchanged
    if caller.f_code is _FETCH_CODE:
        collate = caller.f_locals["self"].collate_fn
        if collate is default_collate or isinstance(collate, Special):
            # False for a DataLoader that the user runs inside a worker.
            is_sent = caller.f_back is not None and caller.f_back.f_code is _WORKER_CODE
            return [Batch(dataset, indices, draws, is_sent)]
    return Batch(dataset, indices, draws).samples()


_KNOWN = dict(default_collate_fn_map)
# The types of gathered fields; of the second ones also subclasses.
_TENSORS = (torch.Tensor, np.ndarray)
_WITH_SUBCLASSES = (np.generic, int, float, dict, list, tuple)


def _is_changed() -> bool:
    """True if default_collate was extended for a type that is gathered here.

    A library that registers its own subclass of Tensor, as MONAI does, changes nothing for plain tensors.
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


# --- in bulk ----------------------------------------------------------------------------------------


def collated(session: Session, indices: Ints, special: Special | None, memory: Memory) -> Any:
    """The batch of samples at indices in [-n, n); NotImplemented if default_collate needs the samples."""
    group = session.group(indices)
    return NotImplemented if group is None else collated_group(group, special, memory)


def collated_group(group: Group, special: Special | None, memory: Memory) -> Any:
    """What default_collate makes of the samples of records; NotImplemented where it must see them."""
    collate = collation(group.decoder, special)
    return NotImplemented if collate is None else collate(group, memory)


def merged(batches: Sequence[Any], places: Sequence[Ints], memory: Memory) -> Any:
    """Merge batches, which were collated from samples of the same schema.

    Args:
        places: the positions of each batch's samples in the merged one: int64, together 0 to n - 1.
    Raises:
        NotInBulk: tensors differ in shape, or default_collate must decide for another reason.
    """
    first = batches[0]
    if type(first) is torch.Tensor:
        return _merged_tensors(batches, places, memory)
    if isinstance(first, Mapping):
        values = {key: merged([batch[key] for batch in batches], places, memory) for key in first}
        return values if type(first) is dict else type(first)(values)  # type: ignore[call-arg]
    if not isinstance(first, (list, tuple)):
        raise NotInBulk
    if len(first) == len(places[0]) and all(isinstance(value, (str, bytes)) for value in first):
        # A list with one text per sample, not one batch per item of a sample.
        column: list[Any] = [None] * sum(map(len, places))
        for batch, place in zip(batches, places, strict=True):
            for value, at in zip(batch, place.tolist(), strict=True):
                column[at] = value
        return type(first)(column)
    parts = [merged(list(items), places, memory) for items in zip(*batches, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)


def _merged_tensors(batches: Sequence[Any], places: Sequence[Ints], memory: Memory) -> torch.Tensor:
    kinds = {(batch.dtype, batch.shape[1:]) for batch in batches}
    if len(kinds) > 1 or any(len(batch) != len(place) for batch, place in zip(batches, places, strict=True)):
        raise NotInBulk
    out = memory((sum(map(len, places)), *batches[0].shape[1:]), batches[0].dtype)
    for batch, place in zip(batches, places, strict=True):
        out[torch.from_numpy(place)] = batch
    return out


# --- memory -----------------------------------------------------------------------------------------
#
# A fresh allocation of many megabytes is slow because of page faults: 7 GB/s, memory in use 18 GB/s.
# The C library redraws allocations beyond 32 MiB to the kernel. So large memory is kept here for the next
# batch, once no tensor uses it. A worker of a DataLoader gathers straight into shared memory.


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized tensor in memory of this process."""
    stored, is_known = _stored(dtype)
    nbytes = math.prod(shape) * stored.itemsize
    if nbytes < _LARGE:
        array: npt.NDArray[Any] = np.empty(shape, stored)
    else:
        array = _reused(nbytes)[:nbytes].view(stored).reshape(shape)
    tensor = torch.from_numpy(array)
    return tensor if is_known else tensor.view(dtype)


@functools.cache
def _stored(dtype: torch.dtype) -> tuple[np.dtype[Any], bool]:
    """The numpy dtype with the memory layout of a torch dtype, and whether it is the same type."""
    stored = memory_dtype(dtype)
    return stored, torch.from_numpy(np.empty(0, stored)).dtype == dtype


def shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized tensor in shared memory, which a worker sends without a copy; small ones `fresh`."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _SHARED:
        return fresh(shape, dtype)
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    flat = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,), (1,))
    return flat.view(dtype).view(shape)


def for_this_process() -> Any:
    """`fresh`, or `shared` in a worker of a DataLoader."""
    return fresh if get_worker_info() is None else shared


_kept: list[npt.NDArray[np.uint8]] = []


class _Lease:
    """Lends memory to one array, and takes it back when no array or tensor uses it any more."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory

    # Default arguments, because at the end of the interpreter module names may vanish before the last batch.
    def __del__(self, kept: list[npt.NDArray[np.uint8]] = _kept, most: int = _KEPT) -> None:
        kept.append(self._memory)
        del kept[:-most]


def _reused(nbytes: int) -> npt.NDArray[np.uint8]:
    """At least `nbytes` bytes: kept memory if it has less than twice as many, else a new allocation."""
    for place in range(len(_kept) - 1, -1, -1):
        try:
            memory = _kept.pop(place)
        except IndexError:
            continue
        if nbytes <= len(memory) < 2 * nbytes:
            return np.asarray(_Lease(memory))
        _kept.insert(place, memory)
    return np.asarray(_Lease(np.empty(nbytes, np.uint8)))


# --- to the parent of a worker ----------------------------------------------------------------------
#
# torch moves every tensor into its own shared memory and sends a descriptor for each over a new connection:
# half a millisecond per tensor of any size. Large tensors are in shared memory already. Small ones go as
# bytes in the message. That needs an object with its own pickle. It is made only if the DataLoader itself
# called the collate function, so that no user code sees the object before it is pickled.


class Parcel:
    """A batch that is being sent; it unpickles as the batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (tree_map(_packed, self._batch),)


class Packed:
    """It unpickles as the result of `make(*arguments)`."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._made = make, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made


def _unpacked(batch: Any) -> Any:
    return batch


def _packed(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and _is_small(leaf):
        data = bytearray(leaf.contiguous().view(-1).view(torch.uint8).numpy().data)
        return Packed(_tensor, data, leaf.dtype, tuple(leaf.shape))
    pack = getattr(leaf, "packed", None)
    return leaf if pack is None else pack(_packed)


def _is_small(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    is_lazy = tensor.is_conj() or tensor.is_neg()
    return is_plain and not is_lazy and 0 < tensor.numel() * tensor.element_size() < _SHARED


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)
