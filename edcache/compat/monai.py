"""The names of MONAI; see edcache/interop/compat_monai.py."""

from edcache.interop.compat_monai import CacheDataset, PersistentDataset

__all__ = ["CacheDataset", "PersistentDataset"]
