"""bagz: one file of records, asked for a batch at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable

import bagz

from benchmark.peers.base import Batch, Batches, Peer, identity, lists, torch_loader
from benchmark.peers.records import Records
from benchmark.workloads import Sample


class Bagz(Peer):
    """Not compressed; where records end is kept in memory, as its documentation has for random access."""

    LARGE = 1 << 16  # bytes; records below it come several times faster without its threads

    def build(self) -> None:
        records = Records(self.workload)
        options = bagz.Writer.Options(compression=bagz.CompressionNone())
        with bagz.Writer(self.folder / "samples.bag", options) as writer:
            for sample in self.workload:
                writer.write(records.pack(sample))

    def open(self) -> None:
        is_large = self.workload.payload > self.LARGE * len(self.workload)
        options = bagz.Reader.Options(
            compression=bagz.CompressionNone(),
            limits_storage=bagz.LimitsStorage.IN_MEMORY,
            max_parallelism=len(os.sched_getaffinity(0)) if is_large else 1,
        )
        self.reader = bagz.Reader(self.folder / "samples.bag", options)
        self.records = Records(self.workload)
        self.process = os.getpid()

    def _here(self) -> bagz.Reader:
        if self.process != os.getpid():
            self.open()  # its threads do not live in a forked process
        return self.reader

    def sample(self, index: int) -> Sample:
        return self.records.unpack(self._here()[index])

    def _batch(self, indices: list[int]) -> Batch:
        records = self._here().read_indices(indices)
        if self.workload.is_ragged:
            return lists([self.records.unpack(record) for record in records])
        return self.records.unpack_batch(records)

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        dataset = Batches(len(self.workload), self.sample, self._batch)
        return torch_loader(dataset, batch_size, workers, collate_fn=identity)
