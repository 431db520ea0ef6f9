"""DatasetRT: records in shards and a table of metadata, both read in Rust."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import dataset_rt
import polars as pl

from benchmark.peers.base import Batch, Peer
from benchmark.peers.records import Records
from benchmark.workloads import Sample, Workload

_NAME = "samples"


class _Source:
    """What its writer iterates over."""

    name = _NAME

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def __iter__(self) -> Iterator[dataset_rt.CacheInput]:
        records = Records(self.workload)
        for sample in self.workload:
            yield dataset_rt.CacheInput(records.pack(sample), {"label": sample["label"]})


def _batch(records: Records, samples: list[dataset_rt.CachedSample]) -> Batch:
    return records.unpack_batch([sample.data for sample in samples])


class DatasetRt(Peer):
    """Its DataLoader, with as many reading threads as it chooses; the label is metadata too."""

    visits_each_once = False  # it draws with replacement, as many samples as there are

    def build(self) -> None:
        quiet = dataset_rt.WriterConfig(show_progress=False)
        runtime = dataset_rt.DatasetRuntime(num_workers=2)
        (result,) = runtime.write_cache(_Source(self.workload), self.folder, writer_config=quiet)
        if isinstance(result, dataset_rt.CacheWriteError):
            raise RuntimeError(result.message)

    def open(self) -> None:
        runtime = dataset_rt.DatasetRuntime(num_workers=1)
        config = dataset_rt.ReaderConfig(seed=0)
        self.dataset = runtime.cached_dataset([self.folder / _NAME], reader_config=config)
        self.cache_id = self.dataset.get_metadata()["cache_id"][0]
        self.records = Records(self.workload)

    def sample(self, index: int) -> Sample:
        return self.records.unpack(self.dataset.get_item(self.cache_id, index).data)

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return self.dataset.to_torch_dataloader(
            batch_size=batch_size,
            num_workers=workers,
            collate_fn=partial(_batch, self.records),
            multiprocessing_context="fork",  # as all others
            verbose=False,
        )

    def select(self, label: int) -> int:
        return self.dataset.get_metadata().filter(pl.col("label") == label).height
