"""A sample as plain bytes, for systems that keep records: decoded without a copy too many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from benchmark.peers.base import Batch, lists
from benchmark.workloads import Sample, Workload

_LABEL = 8  # bytes: every record begins with its label, int64


class Records:
    """Samples of a workload to records and back: the label, then the arrays; of tokens, ids then text."""

    def __init__(self, workload: Workload) -> None:
        self.is_ragged = workload.is_ragged
        self.fields = {} if self.is_ragged else dict(workload.fields)

    def pack(self, sample: Sample) -> bytes:
        """The record of a sample."""
        label = int(sample["label"]).to_bytes(_LABEL, "little")
        if self.is_ragged:
            return label + sample["input_ids"].numpy().tobytes() + sample["text"].encode("ascii")
        return label + b"".join(sample[name].numpy().tobytes() for name in self.fields)

    def unpack(self, record: Any) -> Sample:
        """The sample of a record, in memory of its own."""
        label = int.from_bytes(record[:_LABEL], "little")
        if self.is_ragged:
            split = _LABEL + (len(record) - _LABEL) // 9 * 8  # a token has 8 bytes, its character one
            tokens = torch.frombuffer(bytearray(record[_LABEL:split]), dtype=torch.int64)
            return {"input_ids": tokens, "text": str(record[split:], "ascii"), "label": label}
        sample: Sample = {}
        begin = _LABEL
        for name, (dtype, shape) in self.fields.items():
            end = begin + dtype.itemsize * math.prod(shape)
            array = np.frombuffer(bytearray(memoryview(record)[begin:end]), dtype)
            sample[name] = torch.from_numpy(array.reshape(shape))
            begin = end
        return {**sample, "label": label}

    def unpack_batch(self, records: Sequence[Any]) -> Batch:
        """The collated batch of records: one copy a field, no object a sample; lists of tokens."""
        if self.is_ragged:
            return lists([self.unpack(record) for record in records])
        views = [memoryview(record) for record in records]
        labels = np.frombuffer(b"".join([view[:_LABEL] for view in views]), np.int64)
        batch: Batch = {}
        begin = _LABEL
        for name, (dtype, shape) in self.fields.items():
            end = begin + dtype.itemsize * math.prod(shape)
            out = np.empty((len(views), end - begin), np.uint8)
            for row, view in zip(out, views, strict=True):
                row[:] = view[begin:end]
            batch[name] = torch.from_numpy(out.view(dtype).reshape(len(views), *shape))
            begin = end
        return {**batch, "label": torch.from_numpy(labels.copy())}
