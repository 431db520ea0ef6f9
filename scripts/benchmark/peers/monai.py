"""MONAI's PersistentDataset: a cache folder with a torch.save file for the hash of every item."""

from __future__ import annotations

from collections.abc import Iterable

from monai.data import PersistentDataset
from monai.transforms import Transform

from benchmark.peers.base import Batch, Peer, collation, torch_loader
from benchmark.workloads import Sample, Workload


class _Generated(Transform):
    """From an index to the sample; only what a Transform makes is kept on the disk."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def __call__(self, data: int) -> Sample:
        return self.workload[data]


class Monai(Peer):
    """The items are indices, the transform whose result it keeps is reading the sample."""

    def build(self) -> None:
        self.open()
        for index in range(len(self.workload)):
            self.dataset[index]

    def open(self) -> None:
        items = list(range(len(self.workload)))
        self.dataset = PersistentDataset(items, transform=_Generated(self.workload), cache_dir=self.folder)

    def sample(self, index: int) -> Sample:
        return self.dataset[index]

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return torch_loader(self.dataset, batch_size, workers, collate_fn=collation(self.workload))
