"""The sound archives that hostile ones are made from."""

import datetime as dt

import torch
from ordeal import Original

from edcache import CacheWriter

OPTIONS = {"uuid": bytes(range(16)), "publish_seconds": None, "sync": "never"}


def plain(i):
    return {
        "image": torch.full((6, 8), i, dtype=torch.uint8),
        "text": f"text of sample {i} " * (1 + i % 3),
        "y": i % 3,
    }


def rich(i):
    when = dt.datetime(2020, 1, 1) + dt.timedelta(hours=i)
    return plain(i) | {"boxes": [float(i)] * (1 + i % 4), "when": when, "ok": i % 2 == 0}


def tiny(i):
    return {"image": torch.full((2, 2), i % 256, dtype=torch.uint8), "text": "t", "y": i % 3}


ORIGINALS = {
    # More rows than a page of the index has.
    "paged": (tiny, range(4100), {"in_memory_keys": ["y"], "chunk_size": 4096}),
    "plain": (plain, range(10), {"in_memory_keys": ["y", "text"], "chunk_size": 4}),
    "rich": (rich, range(40), {"in_memory_keys": ["y", "text", "boxes", "when", "ok"], "chunk_size": 15}),
    "zstd": (plain, range(10), {"in_memory_keys": ["y"], "chunk_size": 4, "compression": "zstd"}),
    "sparse": (plain, range(0, 30, 3), {"in_memory_keys": ["y", "text"], "chunk_size": 4}),
    "grown": (plain, range(10), {"in_memory_keys": ["y", "text"], "chunk_size": 4}),
}


def original(name, folder):
    """Write one and say what it holds."""
    make, indices, options = ORIGINALS[name]
    path = folder / f"{name}.zip"
    samples = {i: make(i) for i in indices}
    parts = [indices[:5], indices[5:]] if name == "grown" else [indices]
    for part in parts:
        with CacheWriter(path, "a", **OPTIONS, **options) as w:
            for i in part:
                w.write(i, samples[i])
    labels = {key: {i: sample[key] for i, sample in samples.items()} for key in options["in_memory_keys"]}
    return Original(path, samples, labels)
