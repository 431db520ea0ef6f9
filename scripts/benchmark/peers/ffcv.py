"""FFCV: a .beton file, read by its own Loader of compiled functions and threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from ffcv.fields import IntField, NDArrayField
from ffcv.fields.decoders import IntDecoder, NDArrayDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import Squeeze, ToTensor
from ffcv.writer import DatasetWriter

from benchmark.peers.base import Batch, NotAvailable, Peer, Samples
from benchmark.workloads import Sample


class Ffcv(Peer):
    """Raw arrays, a random order, the file left to the page cache."""

    def build(self) -> None:
        if self.workload.is_ragged:
            raise NotAvailable("has no batches of different lengths")
        fields: dict[str, Any] = {
            n: NDArrayField(dtype, tuple(shape)) for n, (dtype, shape) in self.workload.fields.items()
        }
        page = 8 << 20
        largest = max(f.dtype.itemsize * int(np.prod(f.shape)) for f in fields.values())
        fields["label"] = IntField()
        writer = DatasetWriter(self._path(), fields, page_size=max(page, 2 * largest), num_workers=2)
        writer.from_indexed_dataset(Samples(len(self.workload), self._row))

    def _path(self) -> str:
        return str(self.folder / "samples.beton")

    def _row(self, index: int) -> tuple[Any, ...]:
        sample = self.workload[index]
        return (*(sample[name].numpy() for name in self.workload.fields), sample["label"])

    def open(self) -> None:
        pass  # its Loader opens the file

    def first(self) -> Sample:
        return self.sample_of(next(iter(self.threaded_loader(self.workload.batch_size, 1))), 0)

    def threaded_loader(self, batch_size: int, threads: int) -> Iterable[Batch]:
        arrays = {name: [NDArrayDecoder(), ToTensor()] for name in self.workload.fields}
        return Loader(
            self._path(),
            batch_size=batch_size,
            num_workers=threads,
            order=OrderOption.RANDOM,
            os_cache=True,
            drop_last=False,
            pipelines={**arrays, "label": [IntDecoder(), ToTensor(), Squeeze([-1])]},
        )

    def labels(self, batch: Batch) -> torch.Tensor:
        return batch[-1]

    def sample_of(self, batch: Batch, position: int) -> Sample:
        names = (*self.workload.fields, "label")
        return {name: column[position] for name, column in zip(names, batch, strict=True)}
