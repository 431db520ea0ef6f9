"""What is timed, and that the right thing is: samples are compared with the generated ones first."""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from benchmark.peers.base import Batch, NotAvailable, Peer
from benchmark.workloads import CHOSEN_LABEL, Sample, digest

READ_SECONDS = 0.3


def check(peer: Peer) -> None:
    """Compare a handful of samples and of batches with the generated ones.

    Raises:
        ValueError: 'sample 7: image is uint8 [28, 28], not ...'.
    """
    count = len(peer.workload)
    try:
        for index in sorted({0, 1, count // 3, count // 2, count - 1}):
            _compare(peer, peer.sample(index), index)
    except NotImplementedError:
        pass  # it has no random access
    for loader in _loaders(peer):
        for _, batch in zip(range(2), loader, strict=False):
            size = len(peer.labels(batch))
            for position in sorted({0, 1, size // 2, size - 1}):
                sample = peer.sample_of(batch, position)
                found = peer.workload.index_of.get(digest(sample))
                if found is None:
                    raise ValueError(f"position {position} of a batch: no generated sample has its content")
                _compare(peer, sample, found)


def check_size(peer: Peer) -> None:
    """Raise ValueError where what a system wrote cannot be the whole workload.

    A cache that keeps only a part and computes the rest again would otherwise look like one.
    """
    size = size_on_disk(peer.folder)
    if 0 < size < peer.workload.payload:
        raise ValueError(f"{size} bytes on the disk, the samples have {peer.workload.payload}")


def _loaders(peer: Peer) -> Iterable[Iterable[Batch]]:
    for make in (peer.loader, peer.threaded_loader):
        try:
            yield make(peer.workload.batch_size, 0 if make == peer.loader else 1)
        except NotImplementedError:
            continue


def _compare(peer: Peer, found: Sample, index: int) -> None:
    expected = peer.workload[index]
    if set(found) != set(expected):
        raise ValueError(f"sample {index}: keys {list(found)}, not {list(expected)}")
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            got = found[name]
            if not isinstance(got, torch.Tensor) or got.dtype != value.dtype or not torch.equal(got, value):
                raise ValueError(f"sample {index}: {name} is {_short(got)}, not {_short(value)}")
        elif (int(found[name]) if isinstance(value, int) else found[name]) != value:
            raise ValueError(f"sample {index}: {name} is {_short(found[name])}, not {_short(value)}")


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} {value.flatten()[:3].tolist()}..."
    return repr(value)[:40]


def build(peer: Peer) -> dict[str, float]:
    """Seconds until the builder returned, and until what it wrote was on the disk."""
    os.sync()
    began = time.perf_counter()
    peer.build()
    written = time.perf_counter() - began
    os.sync()
    return {"written": written, "build": time.perf_counter() - began}


def open_first(peer: Peer) -> dict[str, float]:
    """Seconds to open and to get a first sample, in a process that did neither before."""
    began = time.perf_counter()
    peer.open()
    peer.first()
    return {"open": time.perf_counter() - began}


def select(peer: Peer) -> dict[str, float]:
    """Seconds to select by label, the first time that a process does it.

    Raises:
        ValueError: the selection is not what the labels say.
    """
    peer.open()
    began = time.perf_counter()
    count = peer.select(CHOSEN_LABEL)
    seconds = time.perf_counter() - began
    expected = int((peer.workload.labels == CHOSEN_LABEL).sum())
    if count != expected:
        raise ValueError(f"selected {count} samples, not {expected}")
    return {"select": seconds}


def read(peer: Peer, seed: int) -> dict[str, float]:
    """Seconds for one sample at a random index, the mean over READ_SECONDS of such reads."""
    indices = np.random.default_rng(seed).permutation(len(peer.workload)).tolist()
    done = 0
    began = time.perf_counter()
    for index in indices:
        peer.sample(index)
        done += 1
        if time.perf_counter() - began > READ_SECONDS:
            break
    return {"read": (time.perf_counter() - began) / done}


def epoch(peer: Peer, loader: Iterable[Batch]) -> dict[str, float]:
    """Seconds a sample of one shuffled epoch.

    Raises:
        ValueError: the epoch was not every sample once.
    """
    seen = total = 0
    began = time.perf_counter()
    for batch in loader:
        labels = peer.labels(batch)
        seen += len(labels)
        total += int(labels.sum())
    seconds = time.perf_counter() - began
    expected = len(peer.workload), int(peer.workload.labels.sum())
    if peer.visits_each_once and (seen, total) != expected:
        raise ValueError(f"an epoch had {seen} samples with label sum {total}, not {expected}")
    if seen < expected[0]:
        raise ValueError(f"an epoch had {seen} samples of {expected[0]}")
    return {"epoch": seconds / seen}


def memory() -> dict[str, int]:
    """Bytes that only this process has: written ones, and clean ones, which are pages of mapped files."""
    gc.collect()
    found = {"Private_Dirty": 0, "Private_Clean": 0}
    with open("/proc/self/smaps_rollup") as rollup:
        for line in rollup:
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0]) * 1024
    return {"dirty": found["Private_Dirty"], "clean": found["Private_Clean"]}


def size_on_disk(folder: Any) -> int:
    """Bytes of the blocks that the files of a folder have."""
    return sum(
        os.lstat(os.path.join(where, name)).st_blocks * 512
        for where, _, names in os.walk(folder)
        for name in names
    )


def in_child(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a fork of this process, which has imported everything and opened nothing."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        answer = answered(function)
        with os.fdopen(writable, "w") as out:
            json.dump(answer, out)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as out:
        text = out.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return {"error": f"its process ended with status {status}"}
    return json.loads(text)


def answered(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function returns, or in its place why it did not."""
    try:
        return function()
    except NotImplementedError:
        return {"absent": True}
    except NotAvailable as reason:
        return {"unavailable": str(reason)}
    except BaseException as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"error": f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]}
