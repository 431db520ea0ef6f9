"""Hugging Face datasets: an Arrow file, mapped; batches asked for by a batch sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Array2D, Array3D, Dataset, Features, Sequence, Value, concatenate_datasets
from datasets.utils.logging import disable_progress_bar
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from benchmark.peers.base import Batch, Peer, Samples, identity, matches
from benchmark.workloads import Sample, Workload

disable_progress_bar()
_AT_ONCE = 64 << 20  # bytes that are handed to Arrow together; its lists have 32-bit offsets


def _features(workload: Workload) -> Features:
    if workload.is_ragged:
        arrays: dict[str, Any] = {"input_ids": Sequence(Value("int64")), "text": Value("string")}
    else:
        kinds = {2: Array2D, 3: Array3D}
        arrays = {n: kinds[len(shape)](shape, str(dtype)) for n, (dtype, shape) in workload.fields.items()}
    return Features({**arrays, "label": Value("int64")})


def _samples(name: str, folder: Path) -> Iterator[Sample]:
    for sample in Workload(name, folder):
        yield {n: v.numpy() if hasattr(v, "numpy") else v for n, v in sample.items()}


class HuggingFace(Peer):
    """with_format("arrow"), made into tensors here: its torch format turns every integer into int64."""

    def build(self) -> None:
        Dataset.from_generator(
            _samples,
            features=_features(self.workload),
            cache_dir=str(self.folder),
            gen_kwargs={"name": self.workload.name, "folder": self.workload.folder},
            writer_batch_size=int(np.clip(_AT_ONCE * len(self.workload) // self.workload.payload, 1, 1000)),
        )

    def open(self) -> None:
        files = sorted(str(file) for file in self.folder.rglob("*.arrow"))
        parts = [Dataset.from_file(file) for file in files]
        self.dataset = concatenate_datasets(parts).with_format("arrow")

    def sample(self, index: int) -> Sample:
        batch = self._tensors(self.dataset[index])
        return {**{name: column[0] for name, column in batch.items()}, "label": int(batch["label"][0])}

    def _tensors(self, table: pa.Table) -> Batch:
        labels = torch.from_numpy(table["label"].to_numpy())
        if not self.workload.is_ragged:
            columns = {n: _dense(table[n], *field) for n, field in self.workload.fields.items()}
            return {**columns, "label": labels}
        tokens = table["input_ids"].combine_chunks()
        flat = torch.from_numpy(np.array(tokens.flatten().to_numpy()))
        return {
            "input_ids": list(flat.split(tokens.value_lengths().to_pylist())),
            "text": table["text"].to_pylist(),
            "label": labels,
        }

    def loader(self, batch_size: int, workers: int) -> Iterable[Batch]:
        return DataLoader(
            Samples(len(self.workload), lambda indices: self._tensors(self.dataset[indices])),
            sampler=BatchSampler(RandomSampler(self.dataset), batch_size, drop_last=False),
            batch_size=None,
            collate_fn=identity,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    def select(self, label: int) -> int:
        return matches(self.dataset.data.column("label"), label)


def _dense(column: pa.ChunkedArray, dtype: np.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A column of nested lists of one shape, copied into one tensor."""
    out = np.empty((len(column), *shape), dtype)
    begin = 0
    for chunk in column.chunks:
        values = chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk
        while pa.types.is_list(values.type):
            values = values.flatten()
        out[begin : begin + len(chunk)] = values.to_numpy().reshape(len(chunk), *shape)
        begin += len(chunk)
    return torch.from_numpy(out)
