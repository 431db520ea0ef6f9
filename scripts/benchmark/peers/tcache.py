"""TensorCache: its pixel cache without quantization, one mapped file of uint8."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from tensorcache import PixelCacheDataset, PixelCacheWriter

from benchmark.peers.base import Batch, NotAvailable, Peer, Samples, matches, torch_loader
from benchmark.workloads import Sample


class TensorCache(Peer):
    """Planes are kept below each other as one image, so that no axis moves; labels in a file of their own."""

    def build(self) -> None:
        if self.workload.is_ragged:
            raise NotAvailable("tensors of one shape only")
        if any(dtype != np.uint8 for dtype, _ in self.workload.fields.values()):
            raise NotAvailable("keeps floats as integers of 8 bits: a read is not what was written")
        *rows, columns = self.workload.fields["image"][1]
        size = len(self.workload), math.prod(rows), columns
        with PixelCacheWriter(self.folder / "samples", *size, channels=1) as writer:
            for sample in self.workload:
                writer.append_image(sample["image"].reshape(size[1:]))
        np.save(self.folder / "label.npy", self.workload.labels)

    def open(self) -> None:
        self.images = PixelCacheDataset(self.folder / "samples")
        self.labels_array = np.load(self.folder / "label.npy")
        self.shape = self.workload.fields["image"][1]

    def sample(self, index: int) -> Sample:
        return {"image": self.images[index].view(self.shape), "label": int(self.labels_array[index])}

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return torch_loader(Samples(len(self.workload), self.sample), batch_size, workers)

    def select(self, label: int) -> int:
        return matches(self.labels_array, label)
