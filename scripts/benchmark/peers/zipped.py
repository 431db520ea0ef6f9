"""A zip file of pickles, as edflow's CachedDataset keeps it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from zipfile import ZIP_STORED, ZipFile

from benchmark.peers import pickled
from benchmark.peers.base import Batch, Peer, Samples, collation, torch_loader
from benchmark.workloads import Sample


class Zipped(Peer):
    """Stored entries named by index."""

    def build(self) -> None:
        with ZipFile(self.folder / "samples.zip", "w", ZIP_STORED) as archive:
            for index, sample in enumerate(self.workload):
                archive.writestr(str(index), pickled.pack(sample))

    def open(self) -> None:
        self.archive = ZipFile(self.folder / "samples.zip")
        self.process = os.getpid()

    def sample(self, index: int) -> Sample:
        if self.process != os.getpid():
            self.open()  # a file that two processes seek in is read wrongly
        return pickled.unpack(self.archive.read(str(index)))

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        dataset = Samples(len(self.workload), self.sample)
        return torch_loader(dataset, batch_size, workers, collate_fn=collation(self.workload))
