"""A folder with one torch.save file a sample: what most people write first."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from benchmark.peers.base import Batch, Peer, Samples, collation, torch_loader
from benchmark.workloads import Sample


class Files(Peer):
    """Files named by index."""

    def build(self) -> None:
        for index, sample in enumerate(self.workload):
            torch.save(sample, self.folder / f"{index}.pt")

    def open(self) -> None:
        self.prefix = str(self.folder)

    def sample(self, index: int) -> Sample:
        # Its own files: the unpickler in C is faster than the one that weights_only=True takes.
        return torch.load(f"{self.prefix}/{index}.pt", weights_only=False)

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        dataset = Samples(len(self.workload), self.sample)
        return torch_loader(dataset, batch_size, workers, collate_fn=collation(self.workload))
