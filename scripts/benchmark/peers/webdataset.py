"""webdataset: tar shards read from front to back, shuffled in a buffer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import webdataset

from benchmark.peers.base import Batch, Peer
from benchmark.peers.records import Records
from benchmark.workloads import Sample

_SHARDS = 8
_BUFFER = 256 << 20  # bytes that the shuffle buffer may have


class WebDataset(Peer):
    """One raw record a sample, so that nothing is decoded that need not be; batches made in the pipeline."""

    def build(self) -> None:
        records = Records(self.workload)
        pattern = str(self.folder / "%06d.tar")
        per_shard = -(-len(self.workload) // _SHARDS)
        with webdataset.ShardWriter(pattern, maxcount=per_shard, maxsize=1 << 40, verbose=0) as sink:
            for index, sample in enumerate(self.workload):
                sink.write({"__key__": f"{index:08d}", "bin": records.pack(sample)})

    def open(self) -> None:
        self.shards = sorted(str(file) for file in self.folder.glob("*.tar"))
        self.records = Records(self.workload)

    def first(self) -> Sample:
        pipeline = webdataset.WebDataset(self.shards, shardshuffle=False)
        return self.records.unpack(next(iter(pipeline))["bin"])

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        buffered = min(1000, _BUFFER * len(self.workload) // self.workload.payload)
        pipeline = webdataset.WebDataset(
            self.shards, shardshuffle=len(self.shards), workersplitter=webdataset.split_by_worker
        )
        pipeline = pipeline.shuffle(buffered).batched(batch_size, collation_fn=self._batch)
        return webdataset.WebLoader(
            pipeline, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        )

    def _batch(self, samples: list[dict[str, Any]]) -> Batch:
        return self.records.unpack_batch([sample["bin"] for sample in samples])
