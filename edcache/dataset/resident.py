"""`Resident`: all samples of a dataset in the memory of a device, where batches of them are gathered.

- Its samples are as the dataset had them when it was made. A transform, a random crop and a dataset that changes with
  the epoch would give others in each epoch, and are refused.
- Samples of one schema alone: of several, the dtype of a batch may depend on its first sample.
- The size is known from the first sample, and compared with the free memory before another one is read.
- Rows are gathered as the widest numbers that divide them, which takes an eighth of the time of bytes.

What must never happen: that a batch differs by a bit from the one that the dataset itself gives; that a position out of
range reaches a GPU, whose process would end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from edcache.base import OptionError, described, free_memory
from edcache.codec import Decoding
from edcache.dataset.indexing import Readable, reading_of
from edcache.labels import checked_indices
from edcache.reader import Batch, Memory, copy_rows, fresh, kind_of

# Bytes that are read and copied to the device at once.
_PART_NBYTES = 1 << 26
_NUMBERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class Resident:
    """Samples of a dataset on a device, as one tensor a field.

    Args:
        dataset: read when this is made. device: "cpu" or "cuda".
    Raises:
        OptionError: "resident=True takes 3,010,560,000 bytes for 20,000 samples, and cuda:0 has 1,073,741,824 free;
            ..."; the samples are no tensors of one shape; the dataset has a transform; the device is another one.
    """

    def __init__(self, dataset: Readable[Any], device: torch.device) -> None:
        if device.type not in ("cpu", "cuda"):
            raise _refusal(f'takes the device "cpu" or "cuda", not {device}')
        self._reading, self._count, self._device = reading_of(dataset), len(dataset), device
        self._columns: list[torch.Tensor] = []
        if not self._count:
            return
        decodings = [reader.decoding for reader in self._reading.root.readers]
        is_random = any(isinstance(one, Decoding) and one.crop == "random" for one in decodings)
        if is_random or self._reading.is_seeded:
            raise _refusal(
                "takes samples that stay; here a random crop or a transform changes them in each epoch"
            )
        self._kind, leaves, self._tree = self._read(0, 1)
        nbytes = sum(leaf.nbytes for leaf in leaves)
        self._check_size(nbytes * self._count)
        self._columns = [self._empty((self._count, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        step = max(1, _PART_NBYTES // max(1, nbytes))
        for start in range(0, self._count, step):
            self._store(start, min(start + step, self._count))

    def batches(self, order: Iterable[Any], memory: Memory) -> Iterator[Any]:
        """Yield the batch of each array, or list, of positions. memory: of batches on a CPU.

        Raises: SampleIndexError.
        """
        finish = self._reading.root.batch_transform
        for given in order:
            positions = checked_indices(given, self._count).copy()  # torch takes no read-only array
            at = torch.from_numpy(positions).to(self._device, non_blocking=True)
            make = memory if self._device.type == "cpu" else self._empty
            batch = tree_unflatten([_gathered(column, at, make) for column in self._columns], self._tree)
            yield batch if finish is None else finish(batch)

    def _read(self, start: int, stop: int) -> tuple[object, list[torch.Tensor], Any]:
        """Collate some samples: what they have in common, the tensors, and the tree that these are in."""
        records = self._reading.asked(np.arange(start, stop))
        kind = kind_of(records)
        if kind is None:
            raise _refusal(
                "takes stored samples of one structure; this dataset has a transform, or samples of several"
            )
        leaves, tree = tree_flatten(Batch(records, None).collated(memory=fresh))
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                raise _refusal(
                    f"takes tensors, and the samples have {described(leaf)}; select() the other fields"
                )
        return kind, leaves, tree

    def _store(self, start: int, stop: int) -> None:
        kind, leaves, tree = self._read(start, stop)
        pairs = list(zip(self._columns, leaves, strict=False))
        are_alike = all(column.shape[1:] == leaf.shape[1:] for column, leaf in pairs)
        if not (are_alike and kind == self._kind and tree == self._tree):
            raise _refusal(
                f"takes samples that are alike; one of {start:,} to {stop - 1:,} has another structure or shape than "
                "the first; select() fields or filter() samples"
            )
        for column, leaf in pairs:
            column[start:stop] = leaf

    def _check_size(self, nbytes: int) -> None:
        is_cpu = self._device.type == "cpu"
        free = free_memory() if is_cpu else torch.cuda.mem_get_info(self._device)[0]
        if free is not None and nbytes > free:
            raise _refusal(
                f"takes {nbytes:,} bytes for {self._count:,} samples, and {self._device} has {free:,} free; take "
                "fewer samples or fields, or leave it out"
            )

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        nbytes = math.prod(shape) * dtype.itemsize
        if self._device.type == "cpu" and nbytes:
            # numpy asks for huge pages, torch does not.
            return torch.from_numpy(np.empty(nbytes, np.uint8)).view(dtype).view(shape)
        return torch.empty(shape, dtype=dtype, device=self._device)


def _refusal(text: str) -> OptionError:
    return OptionError(f"resident=True {text}", option="resident")


def _gathered(column: torch.Tensor, at: torch.Tensor, make: Memory) -> torch.Tensor:
    """Copy rows of a column."""
    out = make((len(at), *column.shape[1:]), column.dtype)
    if out.numel():
        copy_rows(_as_numbers(column), at, _as_numbers(out))
    return out


def _as_numbers(rows: torch.Tensor) -> torch.Tensor:
    """View rows as the widest numbers that divide them: [n, k]."""
    nbytes = rows[0].nbytes
    width = next(width for width in _NUMBERS if nbytes % width == 0)
    return rows.view(-1).view(torch.uint8).view(_NUMBERS[width]).view(len(rows), -1)
