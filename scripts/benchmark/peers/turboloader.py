"""turboloader: a .tbl file of records, mapped and read in C++."""

from __future__ import annotations

from collections.abc import Iterable

import turboloader

from benchmark.peers.base import Batch, Batches, Peer, identity, torch_loader
from benchmark.peers.records import Records
from benchmark.workloads import Sample


class TurboLoader(Peer):
    """Records of any kind, their checksums not compared: its own loaders do not either.

    Its image loaders make float32 of the stored uint8. Its ArrayDataLoader indexes arrays that the user maps, as
    `memmap` does. Its MapDataLoader, threads over a dataset as this one, was slower here.
    """

    def _path(self) -> str:
        return str(self.folder / "samples.tbl")

    def build(self) -> None:
        records = Records(self.workload)
        writer = turboloader.TblWriterV2(self._path(), enable_compression=False)
        for sample in self.workload:
            writer.add_sample(records.pack(sample), turboloader.SampleFormat.RAW_U8)
        writer.finalize()

    def open(self) -> None:
        self.reader = turboloader.TblReaderV2(self._path(), verify_checksums=False)
        self.records = Records(self.workload)

    def sample(self, index: int) -> Sample:
        return self.records.unpack(self.reader.read_sample(index))

    def _batch(self, indices: list[int]) -> Batch:
        return self.records.unpack_batch([self.reader.read_sample(index) for index in indices])

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        dataset = Batches(len(self.workload), self.sample, self._batch)
        return torch_loader(dataset, batch_size, workers, collate_fn=identity)
