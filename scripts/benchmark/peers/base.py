"""What every system is asked for. A method that a system does not have is a dash in the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from benchmark.workloads import Sample, Workload

Batch = Any


class NotAvailable(Exception):
    """This system cannot do this workload; the text says why, in one line."""


class Peer:
    """One system with one workload.

    Args:
        workload: what it is built from and compared with.
        folder: where its files are; nothing else of it is on the disk.
    Raises:
        NotAvailable: for a workload that it cannot keep.
    """

    visits_each_once = True
    """Whether an epoch has every sample exactly once."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.workload = workload
        self.folder = folder

    def build(self) -> None:
        """Write the whole workload into `folder`, which is there and empty."""
        raise NotImplementedError

    def open(self) -> None:
        """Open what `build` wrote."""
        raise NotImplementedError

    def first(self) -> Sample:
        """The first sample that a program gets."""
        return self.sample(0)

    def sample(self, index: int) -> Sample:
        """One sample by its index, for a map-style system."""
        raise NotImplementedError

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        """Shuffled batches by torch's DataLoader, or by a class of the system's derived from it."""
        raise NotImplementedError

    def threaded_loader(self, batch_size: int, threads: int) -> Iterable[Batch]:
        """Shuffled batches by a loader of the system's own that has threads, not processes."""
        raise NotImplementedError

    def labels(self, batch: Batch) -> torch.Tensor:
        """The labels of a batch."""
        return batch["label"]

    def sample_of(self, batch: Batch, position: int) -> Sample:
        """The sample at a position of a batch, to compare it."""
        return {name: column[position] for name, column in batch.items()}

    def select(self, label: int) -> int:
        """Select the samples with a label without reading samples; how many they are."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what outlives the process."""


def torch_loader(dataset: Any, batch_size: int, workers: int, **options: Any) -> DataLoader:
    """A shuffling DataLoader whose workers live on from epoch to epoch."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        **options,
    )


def identity(batch: Batch) -> Batch:
    """The collate_fn of a dataset whose `__getitems__` answers with a batch."""
    return batch


def lists(samples: list[Sample]) -> Batch:
    """The collate_fn for samples of different lengths: a list per key, the labels a tensor."""
    columns: Batch = {name: [sample[name] for sample in samples] for name in samples[0]}
    if get_worker_info() is not None:
        # As views of one tensor they are one piece of shared memory, not one each: ten times as fast.
        tokens = columns["input_ids"]
        columns["input_ids"] = list(torch.cat(tokens).split([len(each) for each in tokens]))
    columns["label"] = torch.as_tensor(columns["label"])
    return columns


def collation(workload: Workload) -> Callable[[list[Sample]], Batch] | None:
    """The collate_fn for ordinary samples: torch's own, where the samples are of one shape."""
    return lists if workload.is_ragged else None


def matches(labels: Any, label: int) -> int:
    """How many of an array of labels are this one, found the way a dataset is indexed with."""
    return len(np.flatnonzero(np.asarray(labels) == label))


class Samples(Dataset[Any]):
    """A map-style dataset out of a function from index to sample."""

    def __init__(self, count: int, sample: Callable[[int], Any]) -> None:
        self.count = count
        self.sample = sample

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.sample(index)


class Batches(Samples):
    """A dataset that is asked for whole batches: `batch` takes a list of indices."""

    def __init__(self, count: int, sample: Callable[[int], Any], batch: Callable[[list[int]], Any]) -> None:
        super().__init__(count, sample)
        self.batch = batch

    def __getitems__(self, indices: list[int]) -> Any:
        return self.batch(indices)
