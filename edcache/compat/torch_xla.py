"""The names of torch_xla; see edcache/interop/torch_xla.py."""

from edcache.interop.torch_xla import CachedDataset

__all__ = ["CachedDataset"]
