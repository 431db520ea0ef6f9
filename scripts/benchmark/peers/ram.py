"""Everything in RAM: what a cache is measured against."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch.utils.data import TensorDataset, get_worker_info

from benchmark.peers.base import Batch, Batches, NotAvailable, Peer, identity, matches, torch_loader
from benchmark.workloads import Sample


class _Loaded(Peer):
    """All arrays read into RAM by `open`; nothing is built and nothing is on the disk."""

    def open(self) -> None:
        if self.workload.is_ragged:
            raise NotAvailable("tensors of one shape only")
        self.tensors = {n: torch.from_numpy(np.array(array)) for n, array in self.workload.arrays.items()}
        self.tensors["label"] = torch.from_numpy(self.workload.labels)

    def sample(self, index: int) -> Sample:
        return {name: tensor[index].clone() for name, tensor in self.tensors.items()}

    def select(self, label: int) -> int:
        return matches(self.tensors["label"], label)


class InTensorDataset(_Loaded):
    """torch's TensorDataset, sample by sample, collated by torch."""

    def open(self) -> None:
        super().open()
        self.dataset = TensorDataset(*self.tensors.values())

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return torch_loader(self.dataset, batch_size, workers)

    def labels(self, batch: Batch) -> torch.Tensor:
        return batch[-1]

    def sample_of(self, batch: Batch, position: int) -> Sample:
        return {name: column[position] for name, column in zip(self.tensors, batch, strict=True)}


class InRam(_Loaded):
    """One index_select a field and batch, into memory allocated as fast as it can be."""

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
        # What default_collate does too: the batch is made where the other process reads it.
        storage = tensor._typed_storage()._new_shared(int(np.prod(shape)))
        out = tensor.new(storage).resize_(shape)
    return torch.index_select(tensor, 0, rows, out=out)
