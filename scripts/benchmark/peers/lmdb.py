"""LMDB with a pickle a sample; a batch is one transaction."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import lmdb
import torch

from benchmark.peers.base import Batch, Batches, Peer, collation, torch_loader
from benchmark.workloads import Sample

_AT_ONCE = 64 << 20  # bytes that one transaction writes


def _key(index: int) -> bytes:
    # Big-endian, so that keys are appended in their order.
    return index.to_bytes(8, "big")


def _packed(sample: Sample) -> bytes:
    # Arrays of numpy pickle several times faster than tensors.
    plain = {name: v.numpy() if isinstance(v, torch.Tensor) else v for name, v in sample.items()}
    return pickle.dumps(plain, protocol=5)


def _unpacked(data: Any) -> Sample:
    plain = pickle.loads(data)
    return {n: v if isinstance(v, (int, str)) else torch.from_numpy(v) for n, v in plain.items()}


class Lmdb(Peer):
    """Read with the options that its documentation has for many readers of a finished database."""

    def build(self) -> None:
        room = 2 * self.workload.payload + (len(self.workload) << 13) + (64 << 20)
        environment = lmdb.open(str(self.folder), map_size=room, meminit=False)
        index = 0
        while index < len(self.workload):
            with environment.begin(write=True) as transaction:
                written = 0
                while index < len(self.workload) and written < _AT_ONCE:
                    record = _packed(self.workload[index])
                    transaction.put(_key(index), record, append=True)
                    written += len(record)
                    index += 1
        environment.close()

    def open(self) -> None:
        self.environment: Any = lmdb.open(
            str(self.folder), readonly=True, lock=False, readahead=False, meminit=False
        )

    def _batch(self, indices: list[int]) -> list[Sample]:
        if self.environment is None:
            self.open()
        with self.environment.begin(buffers=True) as transaction:
            return [_unpacked(transaction.get(_key(index))) for index in indices]

    def sample(self, index: int) -> Sample:
        return self._batch([index])[0]

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        if workers:
            # An environment must not be used across a fork: each worker opens its own.
            self.environment.close()
            self.environment = None
        dataset = Batches(len(self.workload), self.sample, self._batch)
        return torch_loader(dataset, batch_size, workers, collate_fn=collation(self.workload))
