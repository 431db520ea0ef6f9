"""tensordict: each field is one mapped tensor, in a folder."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tensordict import TensorDict

from benchmark.peers.base import Batch, NotAvailable, Peer, identity, matches, torch_loader
from benchmark.workloads import Sample


class Folder(Peer):
    """A batch is one index of the whole."""

    def _whole(self) -> TensorDict:
        if self.workload.is_ragged:
            raise NotAvailable("keeps samples of different lengths as a folder per sample only")
        tensors = {name: torch.from_numpy(array[:]) for name, array in self.workload.arrays.items()}
        tensors["label"] = torch.from_numpy(self.workload.labels)
        return TensorDict(tensors, batch_size=[len(self.workload)])

    def build(self) -> None:
        self._whole().memmap(self.folder)

    def open(self) -> None:
        self.dataset = TensorDict.load_memmap(self.folder)

    def sample(self, index: int) -> Sample:
        return self.dataset[index].clone().to_dict()

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return torch_loader(self.dataset, batch_size, workers, collate_fn=identity)

    def select(self, label: int) -> int:
        return matches(self.dataset["label"], label)
