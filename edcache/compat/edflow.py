"""The names of edflow; see edcache/interop/edflow.py."""

from edcache.interop.edflow import CachedDataset, ExamplesFolder, PathCachedDataset, cachable

__all__ = ["CachedDataset", "ExamplesFolder", "PathCachedDataset", "cachable"]
