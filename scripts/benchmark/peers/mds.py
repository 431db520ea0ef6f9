"""mosaicml-streaming: MDS shards in a local folder."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

# Its vision part, which nothing here needs, imports torchvision, whose wheel is made for another torch.
sys.modules.setdefault("streaming.vision", ModuleType("streaming.vision"))

from streaming import MDSWriter, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from benchmark.peers.base import Batch, Peer, collation  # noqa: E402
from benchmark.workloads import Sample, Workload  # noqa: E402


class _Tensors(StreamingDataset):
    """Its arrays as tensors."""

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return {n: v if isinstance(v, (int, str)) else torch.from_numpy(v) for n, v in sample.items()}


class Mds(Peer):
    """Arrays of declared shape, no compression, no hashes."""

    visits_each_once = False  # it repeats samples where workers would get different numbers of them

    def __init__(self, workload: Workload, folder: Path) -> None:
        super().__init__(workload, folder)
        # Two datasets over one folder are refused, and what an ended process left counts as one.
        clean_stale_shared_memory()

    def build(self) -> None:
        if self.workload.is_ragged:
            columns = {"input_ids": "ndarray:int64", "text": "str"}
        else:
            columns = {
                name: f"ndarray:{dtype}:{','.join(map(str, shape))}"
                for name, (dtype, shape) in self.workload.fields.items()
            }
        with MDSWriter(out=str(self.folder), columns={**columns, "label": "int"}) as writer:
            for sample in self.workload:
                writer.write({n: v.numpy() if hasattr(v, "numpy") else v for n, v in sample.items()})

    def open(self) -> None:
        self.dataset: Any = _Tensors(
            local=str(self.folder), shuffle=True, batch_size=self.workload.batch_size
        )

    def sample(self, index: int) -> Sample:
        return self.dataset[index]

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        # The threads of a dataset that was iterated do not live in a forked worker.
        self.close()
        self.open()
        # It shuffles by itself.
        return DataLoader(
            self.dataset,
            batch_size=batch_size,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=collation(self.workload),
        )

    def close(self) -> None:
        self.dataset = None
        gc.collect()
        clean_stale_shared_memory()
