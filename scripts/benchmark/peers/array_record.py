"""array_record: records in groups of one, which its documentation has for random access."""

from __future__ import annotations

import os
from collections.abc import Iterable

from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter

from benchmark.peers.base import Batch, Batches, Peer, identity, lists, torch_loader
from benchmark.peers.records import Records
from benchmark.workloads import Sample


class ArrayRecord(Peer):
    """A batch of small records is one call, which its own threads answer."""

    LARGE = 1 << 16  # bytes; records above it come twice as fast one by one

    def build(self) -> None:
        records = Records(self.workload)
        writer = ArrayRecordWriter(str(self.folder / "samples.array_record"), "group_size:1,uncompressed")
        for sample in self.workload:
            writer.write(records.pack(sample))
        writer.close()

    def open(self) -> None:
        self.source = ArrayRecordDataSource(str(self.folder / "samples.array_record"))
        self.records = Records(self.workload)
        self.process = os.getpid()

    def _here(self) -> ArrayRecordDataSource:
        if self.process != os.getpid():
            self.open()  # its threads do not live in a forked process
        return self.source

    def sample(self, index: int) -> Sample:
        return self.records.unpack(self._here()[index])

    def _batch(self, indices: list[int]) -> Batch:
        source = self._here()
        if self.workload.payload > self.LARGE * len(self.workload):
            records = [source[index] for index in indices]
        else:
            records = source.__getitems__(indices)
        if self.workload.is_ragged:
            return lists([self.records.unpack(record) for record in records])
        return self.records.unpack_batch(records)

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        dataset = Batches(len(self.workload), self.sample, self._batch)
        return torch_loader(dataset, batch_size, workers, collate_fn=identity)
