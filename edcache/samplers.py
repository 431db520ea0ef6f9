"""Samplers that know labels and chunks, for caches, views and other datasets with `len` and `.labels`.

Shuffle        every sample once
Balanced       every class equally often
Weighted       each sample by its weight
ByLength       batches of samples that are alike in length
ChunkShuffle   the archive chunk by chunk, mixed within a buffer
"""

from edcache.dataset.samplers import Balanced, ByLength, ChunkShuffle, Shuffle, Weighted

__all__ = ["Balanced", "ByLength", "ChunkShuffle", "Shuffle", "Weighted"]
