"""Memory of collated batches, and their transfer from a DataLoader's worker to its parent.

A fresh allocation of many megabytes is slow because of page faults: 7 GB/s, memory in use 18 GB/s. The C library
returns allocations beyond 32 MiB to the kernel. So large memory that no tensor uses is kept here for the next batch. A
worker of a DataLoader gathers straight into shared memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map
from torch.utils.data import get_worker_info

from edcache.codec import memory_dtype

Memory = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""`memory(shape, dtype)` returns a contiguous, uninitialized tensor."""

# The C library reuses smaller allocations itself, without a page fault.
_LARGE = 1 << 20
# Kept are at most as many as are lent, since a batch may have many; and a few when nothing is lent.
_KEPT = 4
# Smaller tensors reach the parent process faster as bytes in the message.
_SHARED = 1 << 19


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make an uninitialized tensor in memory of this process."""
    stored, is_known = _stored_dtype(dtype)
    nbytes = math.prod(shape) * stored.itemsize
    if nbytes < _LARGE:
        array: npt.NDArray[Any] = np.empty(shape, stored)
    else:
        array = _reuse(nbytes)[:nbytes].view(stored).reshape(shape)
    tensor = torch.from_numpy(array)
    return tensor if is_known else tensor.view(dtype)


@functools.cache
def _stored_dtype(dtype: torch.dtype) -> tuple[np.dtype[Any], bool]:
    """Return the numpy dtype with the memory layout of a torch dtype; and True if it is the same type."""
    stored = memory_dtype(dtype)
    return stored, torch.from_numpy(np.empty(0, stored)).dtype == dtype


def shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Make an uninitialized tensor in shared memory, which a worker sends without a copy; a small one `fresh`."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _SHARED:
        return fresh(shape, dtype)
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    flat = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,), (1,))
    return flat.view(dtype).view(shape)


def for_this_process() -> Any:
    """Return `fresh`, or `shared` in a worker of a DataLoader that is a process: torch 2.15 names a thread."""
    worker = get_worker_info()
    is_process = worker is not None and getattr(worker, "worker_method", None) != "thread"
    return shared if is_process else fresh


_kept: list[npt.NDArray[np.uint8]] = []
_lent: set[int] = set()


class _Lease:
    """Loan of memory to one array; the memory comes back when no array or tensor uses it any more."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        _lent.add(id(self))

    # Default arguments, because at the end of the interpreter module names may vanish before the last batch.
    def __del__(
        self, kept: list[npt.NDArray[np.uint8]] = _kept, lent: set[int] = _lent, least: int = _KEPT
    ) -> None:
        lent.discard(id(self))
        kept.append(self._memory)
        del kept[: -max(least, len(lent))]


def _reuse(nbytes: int) -> npt.NDArray[np.uint8]:
    """Return at least `nbytes` bytes: kept memory of less than twice as many, else a new allocation."""
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
# torch moves every tensor into its own shared memory and sends a descriptor for each over a new connection: half a
# millisecond per tensor of any size. Large tensors are in shared memory already; small ones go as bytes in the message,
# by an object with its own pickle. It is made only if the DataLoader itself called the collate function, so that no
# user code sees the object.


def parcel(batch: Any) -> Packed:
    """Pack a batch for its way to another process, where it unpickles as the batch."""
    return Packed(_unpack, tree_map(_pack, batch))


class Packed:
    """Object that unpickles as the result of `make(*arguments)`."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._made = make, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made


def _unpack(batch: Any) -> Any:
    return batch


def _pack(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and _is_small(leaf):
        data = bytearray(leaf.contiguous().view(-1).view(torch.uint8).numpy().data)
        return Packed(_tensor, data, leaf.dtype, tuple(leaf.shape))
    pack = getattr(leaf, "packed", None)
    return leaf if pack is None else pack(_pack)


def _is_small(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    is_lazy = tensor.is_conj() or tensor.is_neg()
    return is_plain and not is_lazy and 0 < tensor.numel() * tensor.element_size() < _SHARED


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)
