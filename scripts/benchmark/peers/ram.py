"""Everything in RAM: the bound that caches are measured against."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch.utils.data import get_worker_info

from benchmark.peers.base import Batch, Batches, NotAvailable, Peer, identity, matches, torch_loader
from benchmark.workloads import Sample


class InRam(Peer):
    """All arrays in RAM; a batch is one index_select a field, into memory allocated as fast as it can be.

    Nothing is built, and nothing is on the disk.
    """

    def open(self) -> None:
        if self.workload.is_ragged:
            raise NotAvailable("tensors of one shape only")
        self.tensors = {n: torch.from_numpy(np.array(array)) for n, array in self.workload.arrays.items()}
        self.tensors["label"] = torch.from_numpy(self.workload.labels)

    def sample(self, index: int) -> Sample:
        return {name: tensor[index].clone() for name, tensor in self.tensors.items()}

    def select(self, label: int) -> int:
        return matches(self.tensors["label"], label)

    def _batch(self, indices: list[int]) -> Batch:
        rows = torch.tensor(indices)
        return {name: _rows(tensor, rows) for name, tensor in self.tensors.items()}

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        dataset = Batches(len(self.workload), self.sample, self._batch)
        return torch_loader(dataset, batch_size, workers, collate_fn=identity)


def _rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    shape = (len(rows), *tensor.shape[1:])
    if get_worker_info() is None:
        # numpy asks for huge pages, torch's allocator does not: several times fewer page faults.
        out = torch.from_numpy(np.empty(shape, tensor.numpy().dtype))
    else:
        # As default_collate: the batch is made in shared memory, where the other process reads it.
        storage = tensor._typed_storage()._new_shared(int(np.prod(shape)))
        out = tensor.new(storage).resize_(shape)
    return torch.index_select(tensor, 0, rows, out=out)
