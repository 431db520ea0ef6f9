"""The names of torch_xla; see edcache/interop/compat_torch_xla.py."""

from edcache.interop.compat_torch_xla import CachedDataset

__all__ = ["CachedDataset"]
