"""Where the bytes of a batch go.

A fresh allocation of many megabytes is bound by page faults: 7 GB/s where memory in use takes 18.
numpy asks for huge pages, the C library gives back what it frees beyond 32 MiB to the kernel; so
large memory is kept here for the next batch, once the tensors over it are gone. A worker of a
DataLoader hands its batch over in shared memory: there the batch is gathered straight into that.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from edcache.codec import memory_dtype

# The C library keeps and reuses smaller ones itself.
_LARGE = 4 << 20
_KEPT = 4
# Smaller tensors reach the parent sooner as bytes in its message.
SHARED = 1 << 19


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of its own memory."""
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
    """The numpy dtype of a torch dtype's memory, and whether it is the same type."""
    stored = memory_dtype(dtype)
    return stored, torch.from_numpy(np.empty(0, stored)).dtype == dtype


def shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor in shared memory, which a worker hands over without a copy; a small one in its own."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < SHARED:
        return fresh(shape, dtype)
    storage = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    flat = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,), (1,))
    return flat.view(dtype).view(shape)


def for_this_process() -> Any:
    """`fresh`, or `shared` in a worker."""
    return fresh if get_worker_info() is None else shared


_kept: list[npt.NDArray[np.uint8]] = []


class _Lease:
    """Lends memory to one array, and takes it back when no array or tensor is over it any more."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory

    # Bound here: when the interpreter ends, the module's names may go before the last batch does.
    def __del__(self, kept: list[npt.NDArray[np.uint8]] = _kept, most: int = _KEPT) -> None:
        kept.append(self._memory)
        del kept[:-most]


def _reused(nbytes: int) -> npt.NDArray[np.uint8]:
    """At least `nbytes` bytes, from what was given back if one fits without wasting half of it."""
    for place in range(len(_kept) - 1, -1, -1):
        try:
            memory = _kept.pop(place)
        except IndexError:
            continue
        if nbytes <= len(memory) < 2 * nbytes:
            return np.asarray(_Lease(memory))
        _kept.insert(place, memory)
    return np.asarray(_Lease(np.empty(nbytes, np.uint8)))
