"""The names of MONAI; see edcache/interop/monai.py."""

from edcache.interop.monai import CacheDataset, PersistentDataset

__all__ = ["CacheDataset", "PersistentDataset"]
