"""How a DataLoader's worker hands a batch to its parent.

torch moves every tensor into shared memory of its own and passes a descriptor for each, over a new
connection each time: half a millisecond a tensor, whatever its size. Large tensors were gathered
into such memory already. Small ones go as bytes with the message instead.

That takes an object that pickles in its own way, so it is only made where nobody meets it before it
is pickled: where the DataLoader itself called the collate function, known by its code.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data._utils.worker import _worker_loop

from edcache.reader.memory import SHARED

_WORKER_CODE = _worker_loop.__code__


def is_sent(fetch: FrameType) -> bool:
    """Whether what a DataLoader's fetcher in this frame returns goes from a worker to its parent as it is."""
    # Not what a DataLoader of the user's gets that runs within a worker.
    return fetch.f_back is not None and fetch.f_back.f_code is _WORKER_CODE


class Parcel:
    """A batch on its way; arrives as the batch itself."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, (tree_map(_packed, self._batch),)


def _unpacked(batch: Any) -> Any:
    return batch


class _Bytes:
    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        tensor = self._tensor
        data = bytearray(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return _tensor, (data, tensor.dtype, tuple(tensor.shape))


def _packed(leaf: Any) -> Any:
    if type(leaf) is torch.Tensor and _is_small(leaf):
        return _Bytes(leaf)
    pack = getattr(leaf, "packed", None)
    return leaf if pack is None else pack(_packed)


def _is_small(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    is_lazy = tensor.is_conj() or tensor.is_neg()
    return is_plain and not is_lazy and 0 < tensor.numel() * tensor.element_size() < SHARED


def _tensor(data: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)
