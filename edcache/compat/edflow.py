"""The names of edflow; see edcache/interop/compat_edflow.py."""

from edcache.interop.compat_edflow import CachedDataset, ExamplesFolder, PathCachedDataset, cachable

__all__ = ["CachedDataset", "ExamplesFolder", "PathCachedDataset", "cachable"]
