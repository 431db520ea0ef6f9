"""numpy.memmap: a batch is one fancy index; of tokens, one array of all values and one of ends."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from benchmark.peers.base import Batch, Batches, Peer, identity, matches, torch_loader
from benchmark.workloads import Sample


class Memmap(Peer):
    """One .npy file a field, opened with mmap_mode="r"."""

    def build(self) -> None:
        work = self.workload
        if work.is_ragged:
            columns = {"input_ids": work.tokens, "text": work.text, "ends": work.ends}
        else:
            columns = dict(work.arrays)
        for name, column in {**columns, "label": work.labels}.items():
            np.save(self.folder / f"{name}.npy", column)

    def open(self) -> None:
        self.columns = {f.stem: np.load(f, mmap_mode="r") for f in sorted(self.folder.glob("*.npy"))}
        self.labels_array = np.array(self.columns.pop("label"))
        if self.workload.is_ragged:
            self.ends = np.array(self.columns.pop("ends"))
            self.begins = np.concatenate([[0], self.ends[:-1]])

    def sample(self, index: int) -> Sample:
        label = int(self.labels_array[index])
        if self.workload.is_ragged:
            here = slice(self.begins[index], self.ends[index])
            tokens = torch.from_numpy(np.array(self.columns["input_ids"][here]))
            return {"input_ids": tokens, "text": str(self.columns["text"][here], "ascii"), "label": label}
        arrays = {name: torch.from_numpy(np.array(column[index])) for name, column in self.columns.items()}
        return {**arrays, "label": label}

    def _batch(self, indices: list[int]) -> Batch:
        rows = np.asarray(indices)
        labels = torch.from_numpy(self.labels_array[rows])
        if self.workload.is_ragged:
            tokens, text = self.columns["input_ids"], self.columns["text"]
            spans = list(zip(self.begins[rows].tolist(), self.ends[rows].tolist(), strict=True))
            flat = torch.from_numpy(np.concatenate([tokens[begin:end] for begin, end in spans]))
            return {
                "input_ids": list(flat.split([end - begin for begin, end in spans])),
                "text": [str(text[begin:end], "ascii") for begin, end in spans],
                "label": labels,
            }
        return {**{n: torch.from_numpy(column[rows]) for n, column in self.columns.items()}, "label": labels}

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        dataset = Batches(len(self.workload), self.sample, self._batch)
        return torch_loader(dataset, batch_size, workers, collate_fn=identity)

    def select(self, label: int) -> int:
        return matches(self.labels_array, label)
