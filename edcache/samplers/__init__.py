"""Samplers that know labels and chunks, for caches, views and other datasets with `len` and `.labels`.

    columns.py         a column of labels, or an array, as what a sampler can use
    epochs.py          EpochSampler: epochs, ranks and a place amid an epoch, which all of these share
    balanced.py        Balanced: every class equally often
    weighted.py        Weighted: each sample by its weight
    by_length.py       ByLength: batches of samples that are alike in length
    chunk_shuffle.py   ChunkShuffle: the archive chunk by chunk, mixed within a buffer

Imports run upwards in this list only.
"""

from edcache.samplers.balanced import Balanced
from edcache.samplers.by_length import ByLength
from edcache.samplers.chunk_shuffle import ChunkShuffle
from edcache.samplers.weighted import Weighted

__all__ = ["Balanced", "ByLength", "ChunkShuffle", "Weighted"]
