"""edcache: the general path, and what only it has."""

from __future__ import annotations

from collections.abc import Iterable

import edcache
from benchmark.peers.base import Batch, Peer, collation, torch_loader
from benchmark.workloads import Sample
from edcache import CachedDataset, CacheWriter


class Edcache(Peer):
    """Dicts appended one by one, read by torch's DataLoader with its default collate function."""

    def build(self) -> None:
        with CacheWriter(self.folder / "samples.zip", in_memory_keys=["label"]) as writer:
            for sample in self.workload:
                writer.append(sample)

    def open(self) -> None:
        self.dataset = CachedDataset.from_cache(self.folder / "samples.zip")

    def sample(self, index: int) -> Sample:
        return self.dataset[index]

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return torch_loader(self.dataset, batch_size, workers, collate_fn=collation(self.workload))

    def select(self, label: int) -> int:
        return len(self.dataset.filter(label=label))


class Lists(Edcache):
    """A list per key, whose tensors are views of one buffer."""

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        collate = edcache.collate(as_list=["input_ids", "text"])
        return torch_loader(self.dataset, batch_size, workers, collate_fn=collate)


class Padded(Edcache):
    """Token ids as one tensor, padded with 0."""

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        collate = edcache.collate(pad={"input_ids": 0})
        return torch_loader(self.dataset, batch_size, workers, collate_fn=collate)

    def sample_of(self, batch: Batch, position: int) -> Sample:
        values, lengths = batch["input_ids"]
        rest = super().sample_of({**batch, "input_ids": values}, position)
        return {**rest, "input_ids": values[position, : lengths[position]]}


class OwnLoader(Edcache):
    """The dataset's own loader: threads, no worker processes."""

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        raise NotImplementedError

    def threaded_loader(self, batch_size: int, threads: int) -> Iterable[Batch]:
        return self.dataset.loader(batch_size=batch_size, shuffle=True, num_threads=threads)
