"""Samples as functions of their index, for property tests: leaves, trees of them, and an archive of some."""

from collections import OrderedDict, namedtuple

import numpy as np
import torch
from hypothesis import strategies as st

import edcache
from edcache import CachedDataset, CacheWriter

Pair = edcache.register(namedtuple("Pair", ["left", "right"]))

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16),
    *(torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(getattr(torch, name) for name in ("uint16",) if hasattr(torch, name)),  # not in torch 2.2
]
ARRAYS = ["?", "u1", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", ">f4", "<u2", "U3", "M8[s]"]


def tensors(shape, dtype):
    return lambda k: (torch.arange(int(np.prod(shape))) + k).reshape(shape).to(dtype)


def arrays(shape, dtype):
    return lambda k: (np.arange(int(np.prod(shape))) % 7 + k % 5).reshape(shape).astype(dtype)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
numbers = st.one_of(
    st.builds(tensors, shapes, st.sampled_from(DTYPES)), st.builds(arrays, shapes, st.sampled_from(ARRAYS))
)


def trees(children, keys=("a", "b", "a.b", 3, "3"), min_size=1):
    """Dicts, sequences and named tuples of children."""
    keys = st.sampled_from(keys)
    several = st.lists(children, min_size=min_size, max_size=3)
    return st.one_of(
        st.dictionaries(keys, children, min_size=min_size, max_size=3).map(
            lambda parts: lambda k: {key: part(k) for key, part in parts.items()}
        ),
        st.dictionaries(keys, children, min_size=1, max_size=2).map(
            lambda parts: lambda k: OrderedDict((key, part(k)) for key, part in parts.items())
        ),
        several.map(lambda parts: lambda k: tuple(part(k) for part in parts)),
        several.map(lambda parts: lambda k: [part(k) for part in parts]),
        st.tuples(children, children).map(lambda parts: lambda k: Pair(parts[0](k), parts[1](k))),
    )


def at(sample, path):
    """What stands in a sample behind keys, positions and names."""
    for step in path:
        is_name = isinstance(step, str) and isinstance(sample, tuple)
        sample = getattr(sample, step) if is_name else sample[step]
    return sample


def write(path, samples, indices=None, **options):
    """An archive of samples, opened."""
    with CacheWriter(path, "w", **options) as writer:
        if indices is None:
            writer.extend(samples)
        else:
            for index, sample in zip(indices, samples, strict=True):
                writer.write(index, sample)
    return CachedDataset.from_cache(path)
