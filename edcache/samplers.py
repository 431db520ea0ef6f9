"""Samplers that know labels and chunks, for caches, views and other datasets with `len` and `.labels`.

Sequential     every sample once, in the order of the dataset
Shuffle        every sample once, in a random order
Balanced       every class equally often
Weighted       each sample by its weight
ByLength       batches of samples of similar length
ByShape        batches of samples of one shape
ChunkShuffle   the archive chunk by chunk, mixed within a buffer
Mixture        several datasets in fixed proportions; edcache.mix makes it
"""

from edcache.dataset.label_samplers import Balanced, ByLength, ByShape, Weighted
from edcache.dataset.mixture import Mixture
from edcache.dataset.samplers import ChunkShuffle, Sequential, Shuffle

__all__ = ["Balanced", "ByLength", "ByShape", "ChunkShuffle", "Mixture", "Sequential", "Shuffle", "Weighted"]
