"""litdata: chunks made by `optimize`, read by its StreamingDataset and StreamingDataLoader."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import litdata

from benchmark.peers.base import Batch, Peer, collation
from benchmark.workloads import Sample, Workload


def _sample(index: int, name: str, folder: Path) -> Sample:
    key = (name, folder)
    if key not in _opened:
        _opened[key] = Workload(name, folder)
    return _opened[key][index]


_opened: dict[tuple[str, Path], Workload] = {}


class LitData(Peer):
    """64 MB chunks, as its documentation has them."""

    def build(self) -> None:
        litdata.optimize(
            fn=partial(_sample, name=self.workload.name, folder=self.workload.folder),
            inputs=list(range(len(self.workload))),
            output_dir=str(self.folder),
            chunk_bytes="64MB",
            num_workers=2,
            keep_data_ordered=True,
            verbose=False,
        )

    def open(self) -> None:
        self.dataset = self._open()

    def _open(self) -> litdata.StreamingDataset:
        return litdata.StreamingDataset(str(self.folder), shuffle=True, drop_last=False)

    def first(self) -> Sample:
        return next(iter(self.dataset))

    def sample(self, index: int) -> Sample:
        return self.dataset[index]

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return litdata.StreamingDataLoader(
            self._open(),
            batch_size=batch_size,
            num_workers=workers,
            shuffle=True,
            drop_last=False,
            collate_fn=collation(self.workload),
            persistent_workers=workers > 0,
        )
