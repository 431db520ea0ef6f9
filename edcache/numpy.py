"""Read an archive without torch, as numpy arrays: `open(path)` is an `ArrayDataset`."""

from edcache.dataset.array_dataset import ArrayDataset

__all__ = ["ArrayDataset", "open"]

open = ArrayDataset
