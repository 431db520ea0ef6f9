"""Logs of batches: which samples each step had and what they were, as hashes, and whether that is so.

A log is JSON lines. An iteration begins with {"rank", "ranks", "batch_size", "is_stored", "state"}: the state
that it went on from, and whether batches are what the archive holds. Each step is {"rank", "step", "indices",
"batch"}, and counts from that state.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from edcache.dataset.epoch import EpochSampler
from edcache.dataset.state import digest


class BatchLog:
    """A log that is written: a line a step, by one call of the system, at the end of the file.

    Args:
        path: made where it is absent; "{rank}" in it is the rank's number. Ranks may share a file of a local
            disk.
    """

    def __init__(
        self, path: str | os.PathLike[str], ds: Any, sampler: EpochSampler, batch_size: int | None
    ) -> None:
        self._rank = sampler.rank
        self._file = open(os.fspath(path).replace("{rank}", str(self._rank)), "ab", 0)  # noqa: SIM115 - closed by close()
        # Who was killed may have left half a line.
        head = {"ranks": sampler.num_replicas, "batch_size": batch_size, "is_stored": _is_stored(ds)}
        self._write({**head, "state": sampler.state_dict()}, b"\n")
        self._indices: deque[str] = deque()

    def note(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The positions of batches, as they are handed on to be read."""
        for positions in batches:
            self._indices.append(indices_hash(positions))
            yield positions

    def write(self, step: int, batch: Any) -> None:
        """Log the next batch of those that were noted. Cost: 1.2 ns a byte of the batch."""
        self._write({"step": step, "indices": self._indices.popleft(), "batch": batch_hash(batch)})

    def _write(self, line: Mapping[str, Any], before: bytes = b"") -> None:
        self._file.write(before + json.dumps({"rank": self._rank, **line}).encode() + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def batch_hash(batch: Any) -> str:
    """Of a batch with its structure, names, dtypes, shapes and bytes: 16 hexadecimal digits."""
    hashed = hashlib.blake2b(digest_size=8)

    def add(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            array = item.detach().cpu().contiguous()
            hashed.update(f"tensor {array.dtype} {list(array.shape)}\0".encode())
            hashed.update(array.reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(item, Mapping):
            hashed.update(f"dict {len(item)}\0".encode())
            for name, value in item.items():
                hashed.update(f"{name!r}\0".encode())
                add(value)
        elif isinstance(item, (list, tuple)):
            hashed.update(f"{'list' if isinstance(item, list) else 'tuple'} {len(item)}\0".encode())
            for value in item:
                add(value)
        elif isinstance(item, np.ndarray):
            hashed.update(f"array {item.dtype} {list(item.shape)}\0".encode())
            hashed.update(item.tobytes())
        else:
            hashed.update(f"{type(item).__name__} {item!r}\0".encode())

    add(batch)
    return hashed.hexdigest()


def _is_stored(ds: Any) -> bool:
    """Whether batches of a dataset are what its archive holds, as it is read without options."""
    reader = getattr(getattr(ds, "cache", None), "reader", None)
    is_plain = ds._transform is None and ds._batch_transform is None and ds._fields is None
    return reader is not None and reader.decoding is None and is_plain


def indices_hash(positions: Any) -> str:
    """Of positions: 16 hexadecimal digits."""
    return digest(np.asarray(positions, np.int64))
